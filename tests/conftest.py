"""Fixtures shared by all tests."""

import gc
import logging
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from nnhal import zoo
from nnhal.base import log
from nnhal.base.codes import FOREIGN_OPERATIONS, FOREIGN_TYPES, TYPE_FACTS, OperationType
from nnhal.base.custom_operators import CUSTOM_OPERATORS
from nnhal.base.extensions import EXTENSIONS
from nnhal.hal import proofs
from nnhal.hal.cache.tokens import state_folder
from nnhal.ops import OPS
from nnhal.ops.schema import Op
from nnhal.runtime import discovery, measured
from nnhal.runtime.measured.background_write import wait_for_writes
from tests.interrupts import Interrupts

# The same examples in every run, however slow the machine is. A nightly run draws others: NNHAL_RANDOM=1.
PROFILE = hypothesis.settings(deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("check", PROFILE, derandomize=True)
hypothesis.settings.register_profile("random", PROFILE, print_blob=True)
hypothesis.settings.load_profile("random" if os.environ.get("NNHAL_RANDOM") == "1" else "check")

pytest_plugins = ["tests.sampling"]

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


NNAPIS_OWN = frozenset(OperationType.__members__)


def foreign_records() -> dict[str, Op]:
    """Those of extensions' operations: NNAPI's own stay once they have loaded."""
    return {name: OPS[name] for name in OPS if name not in NNAPIS_OWN}


@contextmanager
def registries_as_they_were() -> Iterator[None]:
    """Devices, custom operators, extensions and their records that are registered meanwhile are gone afterwards."""
    devices, records = discovery._registered, foreign_records()
    tables: list[dict[Any, Any]] = [
        devices,
        CUSTOM_OPERATORS,
        EXTENSIONS,
        FOREIGN_OPERATIONS,
        FOREIGN_TYPES,
        TYPE_FACTS,
    ]
    before = [dict(table) for table in tables]
    yield
    discovery._registered = devices
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    for name in foreign_records():
        del OPS[name]
    OPS.update(records)


@pytest.fixture(autouse=True)
def what_a_test_registers_ends_with_it() -> Iterator[None]:
    """It holds for no other."""
    with registries_as_they_were():
        yield


@pytest.fixture(autouse=True, scope="module")
def what_a_file_of_tests_registers_ends_with_it() -> Iterator[None]:
    """What its own fixtures register stays for all its tests, and for no other file's."""
    with registries_as_they_were():
        yield


@pytest.fixture(autouse=True)
def what_a_test_wants_told_ends_with_it() -> Iterator[None]:
    """Levels of the log's tags, and who prints them, are as they were."""
    loggers = [logging.getLogger("nnhal"), *map(log.logger, log.TAGS)]
    before = [(each, each.level, list(each.handlers)) for each in loggers]
    yield
    for each, level, handlers in before:
        if each.level != level:  # setting it forgets what all loggers know of theirs
            each.setLevel(level)
        each.handlers[:] = handlers


@pytest.fixture(autouse=True)
def nothing_is_known_of_devices() -> Iterator[None]:
    """What a test had measured or proved, or what failed in it, ends with it."""
    yield
    wait_for_writes(10)
    measured.path().unlink(missing_ok=True)
    (state_folder() / proofs.FILE).unlink(missing_ok=True)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's state, empty: tokens of caches, blobs, proofs, measurements."""
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a compilation cache, not made yet."""
    return tmp_path / "cache"


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What drivers said that no text can hold, as others can read it: reports go from process to process."""
    report = yield
    report.sections = [(name, said.encode(errors="backslashreplace").decode()) for name, said in report.sections]
    return report


def pytest_collection_finish() -> None:
    """What collecting made stays for the whole run: the many garbage collections of tests need not pass over it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _what_other_files_left_stays() -> None:
    """As above: a collection took half a second in the end, and some tests make hundreds."""
    gc.collect()
    gc.freeze()
