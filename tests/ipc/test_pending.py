"""Waiting for a notification: it comes, or never will, and nothing is left of the wait."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from nnhal.base.errors import Cancelled, DeadObject, MissedDeadline, OperationFailed
from nnhal.ipc.client import pending as subject
from nnhal.ipc.client.pending import Pending
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport import _native
from tests.waiting import Opened


@pytest.fixture(params=["with a descriptor", "with none to be had"])
def pending(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pending:
    if request.param != "with a descriptor":

        def refused(*_: int) -> int:
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(os, "eventfd", refused)
    return Pending(1, wire.NotifyExecuted)


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that does nothing, until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_what_came_is_returned_whenever_it_comes(pending: Pending, pause: float) -> None:
    opened = Opened()
    for each in (pending, *(Pending(n, wire.NotifyExecuted) for n in range(2, 10))):
        threading.Timer(pause, each.set, [wire.DONE]).start()
        assert each.wait(None) == (wire.DONE, _native.NONE)
        assert each.came
        del each
    opened.closed()


def test_an_error_that_came_is_raised_as_often_as_it_is_asked_for(pending: Pending) -> None:
    pending.set(OperationFailed("the driver says no"))
    for _ in range(2):
        with pytest.raises(OperationFailed, match="says no"):
            pending.wait(None)


def test_who_waits_sees_the_end_of_the_process_himself(pending: Pending, other: "subprocess.Popen[bytes]") -> None:
    watch = os.pidfd_open(other.pid)
    try:
        threading.Timer(0.05, other.kill).start()
        with pytest.raises(DeadObject):
            pending.wait(None, None, watch)
        assert not pending.came
    finally:
        os.close(watch)


def test_a_deadline_and_a_cancellation_end_the_wait(pending: Pending) -> None:
    with pytest.raises(MissedDeadline):
        pending.wait(time.monotonic_ns() + 10_000_000)
    cancelled = threading.Event()
    threading.Timer(0.02, cancelled.set).start()
    with pytest.raises(Cancelled):
        pending.wait(None, cancelled)


def test_a_deadline_may_lie_as_far_away_as_there_are_numbers(pending: Pending) -> None:
    threading.Timer(0.02, pending.set, [wire.DONE]).start()
    assert pending.wait(2**63)[0] == wire.DONE


def test_how_long_is_waited_at_a_stretch_is_what_is_left_and_no_more_than_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    millisecond = 1_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: 100 * millisecond)
    for deadline, most, wait in (
        (None, None, None),
        (None, 20 * millisecond, 20),
        (110 * millisecond, None, 12),  # with the grace of 2 ms
        (110 * millisecond, 20 * millisecond, 12),
        (120 * millisecond, 20 * millisecond, 20),
        (95 * millisecond, None, 0),
        (50 * millisecond, 20 * millisecond, 0),
    ):
        assert subject._milliseconds(deadline, most) == wait
    assert 0 < (subject._milliseconds(2**63, None) or 0) < 2**31  # what poll takes
