"""Fixtures shared by all tests."""

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnhal import zoo
from nnhal.base.custom_operators import CUSTOM_OPERATORS
from nnhal.runtime import discovery
from tests.interrupts import Interrupts

DEFAULT_VECTORS = Path(__file__).parents[1].parent / "shared" / "conformance"


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of published test vectors: NNHAL_VECTORS, or beside the checkout. Missing: a failure under CI."""
    path = Path(os.environ.get("NNHAL_VECTORS", DEFAULT_VECTORS))
    if not (path / "index.json").is_file():
        message = f"no test vectors at {path}; set NNHAL_VECTORS"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(autouse=True)
def devices_end_with_their_test() -> Iterator[None]:
    """What a test registers is not among "all there are" of the next one."""
    registered = discovery._registered
    before = dict(registered)
    yield
    discovery._registered = registered
    registered.clear()
    registered.update(before)


@pytest.fixture(autouse=True)
def custom_operators_end_with_their_test() -> Iterator[None]:
    """What a test says of an operator holds for no other."""
    before = dict(CUSTOM_OPERATORS)
    yield
    CUSTOM_OPERATORS.clear()
    CUSTOM_OPERATORS.update(before)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    """Strikes for one test."""
    with Interrupts() as made:
        yield made


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C is heard, by commands that tests start too: a shell has what it runs in the background ignore it.

    What drivers note of their caches is none of the user's, and no cache is where the user has one; models are.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = tempfile.TemporaryDirectory(prefix="nnhal-state-")
    config.add_cleanup(folder.cleanup)
    os.environ["NNHAL_STATE_DIR"] = folder.name
    os.environ.pop("NNHAL_CACHE_DIR", None)
    os.environ["NNHAL_MODELS"] = str(zoo.folder().absolute())
    os.environ["XDG_CACHE_HOME"] = str(Path(folder.name, "cache"))


def pytest_collection_finish() -> None:
    """What collecting made stays for the whole run: the many garbage collections of tests need not pass over it."""
    gc.collect()
    gc.freeze()
