"""Scopes of connections: who works for a lane learns that nobody waits, and objects end away from those who let go."""

import gc
import os
import socket
import threading
import weakref
from collections.abc import Iterator

import pytest

from nnhal.ipc.service.scope import Ends, Wanted
from tests.ipc.support import LIMIT, wait_until


@pytest.fixture
def lane() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with a, b:
        yield a, b


def test_a_lane_that_is_hung_up_is_not_wanted_any_more(lane):
    wanted, (ours, theirs) = Wanted(), lane
    event = wanted.of(ours.fileno())
    theirs.send(b"a call that waits is no hang-up")
    assert not event.wait(0.05)
    theirs.shutdown(socket.SHUT_WR)
    assert event.wait(LIMIT)
    wanted.end()


def test_the_hang_up_of_an_earlier_lane_is_not_that_of_a_later_one_under_its_number(lane):
    wanted, (ours, theirs) = Wanted(), lane
    event = wanted.of(ours.fileno())
    wanted._tell(ours.fileno())  # what was seen of the earlier one
    assert not event.is_set()
    theirs.close()
    wanted._tell(ours.fileno())
    assert event.is_set()
    wanted.end()


def test_when_the_client_is_gone_nothing_is_wanted_and_nothing_is_left(lane):
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for used in (False, True):
        wanted = Wanted()
        event = wanted.of(lane[0].fileno()) if used else wanted.gone
        wanted.end()
        assert event.is_set() and wanted.gone.is_set()
        assert wanted.of(lane[0].fileno()).is_set()
        wanted.forget(lane[0].fileno())
    wait_until(lambda: threading.active_count() <= threads, "the thread ends")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, "descriptors are closed")


class Thing:
    def __init__(self, done: list[str], name: str) -> None:
        self.done, self.name = done, name

    def end(self) -> None:
        self.done.append(self.name)
        if self.name == "bad":
            raise SystemExit("of its own")


def test_objects_end_one_after_the_other_whatever_one_of_them_raises_and_are_not_held():
    ends, done = Ends(), []
    things = [Thing(done, name) for name in ("first", "bad", "last")]
    weak = [weakref.ref(thing) for thing in things if thing.name != "bad"]  # the log has that one
    for thing in things:
        ends(thing.end)
    del thing, things
    wait_until(lambda: done == ["first", "bad", "last"], "the ends")
    wait_until(lambda: gc.collect() >= 0 and not any(ref() for ref in weak), "what ended goes")
    assert ends.finish(LIMIT)


def test_an_end_that_hangs_is_not_waited_for():
    ends, go = Ends(), threading.Event()
    ends(go.wait)
    assert not ends.finish(0.05)
    go.set()
    wait_until(lambda: ends.finish(0.05), "the end")
