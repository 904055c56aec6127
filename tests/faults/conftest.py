"""Around every fault test: a runtime directory of its own, and nothing left behind in this process."""

import gc
import os
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from nnhal.hal import background
from nnhal.ipc.client.session import Session
from nnhal.runtime import isolation
from tests.faults.support import WITNESS, service, wait_until
from tests.waiting import Opened, Started

FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are fault tests."""
    folder = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker("faults")


@pytest.fixture(scope="package", autouse=True)
def runtime_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the services of these tests have their sockets."""
    gc.collect()
    gc.freeze()  # what tests elsewhere left: each test here collects many times
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("run")
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        patch.delenv("NNHAL_FAULTY", raising=False)
        patch.setenv("NNHAL_IDLE_SECONDS", "0")  # who looks after idle models has a descriptor for a while
        patch.setattr(background, "_LOOKS", 2)  # each test waits for the end of idle workers
        yield directory


@pytest.fixture(scope="package")
def shared(runtime_directory: Path) -> Iterator[str]:
    """The name of a service that outlives every fault of the tests that use it."""
    with service(WITNESS, "shared"):
        yield "shared"


def _sessions() -> list[Session]:
    return [s for s in gc.get_objects() if type(s) is Session]  # objects of other tests lie about their class


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note for `nothing_left` how the test went."""
    report = yield
    item.stash[FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_left(
    runtime_directory: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """Descriptors, threads and sessions of this process are what they were before the test."""
    gc.collect()
    opened, started = Opened(), Started(("nnhal-idle",))
    others = weakref.WeakSet(_sessions())  # of tests elsewhere
    yield
    isolation.close_all()
    if request.node.stash[FAILED]:
        return  # the traceback holds what the test held
    caplog.get_records("call").clear()  # and so do logged errors
    started.ended()
    wait_until(lambda: gc.collect() >= 0 and others.issuperset(_sessions()), "sessions end")
    opened.closed()
