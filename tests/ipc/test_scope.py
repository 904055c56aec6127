"""Scopes of connections: who works for a lane learns that nobody waits, and objects end away from those who let go."""

import gc
import threading
import weakref

import pytest

from nnhal.base.errors import InvalidArgument
from nnhal.ipc.service.exports import Exports
from nnhal.ipc.service.scope import Ends, Wanted
from tests.ipc.support import LIMIT, wait_until


def test_what_is_cancelled_is_not_wanted_any_more_and_what_goes_on_beside_it_is():
    wanted = Wanted()
    one, other = wanted.begin(1), wanted.begin(2)
    wanted.cancel(1)
    wanted.cancel(3)  # there is none
    assert one.is_set() and not other.is_set()
    wanted.ended(1)
    assert not wanted.begin(1).is_set()


def test_a_number_under_which_something_goes_on_is_refused():
    wanted = Wanted()
    wanted.begin(1)
    with pytest.raises(InvalidArgument, match="1 is the number of what goes on already, must be a new one"):
        wanted.begin(1)


def test_when_the_client_is_gone_nothing_is_wanted():
    wanted = Wanted()
    before = wanted.begin(1)
    wanted.end()
    assert before.is_set() and wanted.gone.is_set() and wanted.begin(2).is_set()


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


def test_what_ends_after_the_thread_that_ends_is_done_all_the_same():
    done: list[str] = []
    ends = Ends()
    ends(lambda: done.append("before"))
    assert ends.finish(LIMIT)
    ends(lambda: done.append("after"))
    assert done == ["before", "after"]


def test_without_a_thread_an_object_ends_at_once(monkeypatch):
    done: list[str] = []
    ends = Ends()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        ends(lambda: done.append("here"))
        assert done == ["here"]
    ends(lambda: done.append("there"))
    assert ends.finish(LIMIT) and done == ["here", "there"]


def test_what_is_released_while_it_is_filled_in_is_not_held_afterwards():
    done: list[str] = []
    exports = Exports(lambda end: end())
    exports.claim(1)
    release = threading.Thread(target=exports.release, args=(1,))
    with exports._lock:  # as `fill` does, between its look and its entry
        release.start()
        release.join(0.1)
        exports._objects[1] = None, lambda: done.append("ended")
    release.join(LIMIT)
    assert done == ["ended"] and not exports.holds(1)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
