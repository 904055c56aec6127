"""Scopes of connections: who works for a lane learns that nobody waits, and objects end away from those who let go."""

import gc
import threading
import weakref

import pytest

from nnhal.base.codes import Priority
from nnhal.base.errors import DeadObject, InvalidArgument, ResourceExhausted
from nnhal.ipc.service.exports import Exports
from nnhal.ipc.service.quota import Claim, ClientShare
from nnhal.ipc.service.scope import KEPT, CallScope, ObjectCloser, Workers
from tests.ipc.support import LIMIT, a_share, wait_until
from tests.runtime.devices import failing


def test_what_is_cancelled_is_not_wanted_any_more_and_what_goes_on_beside_it_is():
    wanted = CallScope()
    one, other = wanted.begin(1), wanted.begin(2)
    wanted.cancel(1)
    wanted.cancel(3)  # there is none
    assert one.is_set() and not other.is_set()
    wanted.ended(1)
    assert not wanted.begin(1).is_set()


def test_a_number_under_which_something_goes_on_is_refused():
    wanted = CallScope()
    wanted.begin(1)
    with pytest.raises(InvalidArgument, match="1 is the number of work in progress, must be a new one"):
        wanted.begin(1)


def test_when_the_client_is_gone_nothing_is_wanted():
    wanted = CallScope()
    before = wanted.begin(1)
    wanted.end()
    assert before.is_set() and wanted.gone.is_set() and wanted.begin(2).is_set()


@pytest.fixture
def share() -> ClientShare:
    return a_share()


def room(share: ClientShare) -> Claim:
    return share.take(threads=1)


class Thing:
    def __init__(self, done: list[str], name: str) -> None:
        self.done, self.name = done, name

    def end(self) -> None:
        self.done.append(self.name)
        if self.name == "bad":
            raise SystemExit("of its own")


def test_objects_end_one_after_the_other_whatever_one_of_them_raises_and_are_not_held(share):
    ends, done = ObjectCloser(room(share)), []
    things = [Thing(done, name) for name in ("first", "bad", "last")]
    weak = [weakref.ref(thing) for thing in things if thing.name != "bad"]  # the log has that one
    for thing in things:
        ends(thing.end)
    del thing, things
    wait_until(lambda: done == ["first", "bad", "last"], "the ends")
    wait_until(lambda: gc.collect() >= 0 and not any(ref() for ref in weak), "what ended goes")
    assert ends.finish(LIMIT)


def test_an_end_that_hangs_is_not_waited_for(share):
    ends, go = ObjectCloser(room(share)), threading.Event()
    ends(go.wait)
    assert not ends.finish(0.05)
    go.set()
    wait_until(lambda: ends.finish(0.05), "the end")


def test_what_ends_after_the_thread_that_ends_is_done_all_the_same(share):
    done: list[str] = []
    ends = ObjectCloser(room(share))
    ends(lambda: done.append("before"))
    assert ends.finish(LIMIT)
    ends(lambda: done.append("after"))
    assert done == ["before", "after"]


def test_without_a_thread_an_object_ends_at_once(monkeypatch, share):
    done: list[str] = []
    ends = ObjectCloser(room(share))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", failing(RuntimeError("can't start new thread")))
        ends(lambda: done.append("here"))
        assert done == ["here"]
    ends(lambda: done.append("there"))
    assert ends.finish(LIMIT) and done == ["here", "there"]


def test_what_is_released_while_it_is_filled_in_is_not_held_afterwards(share):
    done: list[str] = []
    exports = Exports(lambda end: end(), share)
    exports.claim(1)
    release = threading.Thread(target=exports.release, args=(1,))
    with exports._lock:  # as `fill` does, between its look and its entry
        release.start()
        release.join(0.1)
        exports._objects[1] = None, lambda: done.append("ended")
    release.join(LIMIT)
    assert done == ["ended"] and not exports.holds(1)


def test_what_is_refused_when_it_is_added_ends_once_and_counts_no_more(share):
    done: list[str] = []
    exports = Exports(lambda end: end(), share)
    exports.add(1, "first", lambda: done.append("first"))
    before = used(share)
    with pytest.raises(InvalidArgument):
        exports.add(1, "second", lambda: done.append("second"), room(share))
    assert done == ["second"] and used(share) == before
    exports.release(1)
    assert done == ["second", "first"]


def test_the_thread_that_ends_objects_counts_until_it_has_ended(share):
    before = used(share)
    for go in (None, threading.Event()):
        ends = ObjectCloser(room(share))
        if go is not None:
            ends(go.wait)
            assert not ends.finish(0.05)
        else:
            assert ends.finish(0.05)
        assert (used(share) == before) == (go is None)
    go.set()
    wait_until(lambda: used(share) == before, "the end of the thread")


# ------------------------------------------------------------------------------------------------------------- workers


def test_work_is_done_by_as_many_threads_as_there_is_room_for_and_all_of_it_is_done(share):
    before, go, at_work, done = used(share), threading.Semaphore(0), [], []

    def work(n: int) -> None:
        at_work.append(threading.get_ident())
        assert go.acquire(timeout=LIMIT)
        done.append(n)

    workers = Workers(3, lambda: room(share))
    for n in range(10):
        workers.submit(lambda n=n: work(n))
    wait_until(lambda: len(at_work) == 3, "three at work")
    assert used(share)["threads"] == before["threads"] + 3
    go.release(10)
    wait_until(lambda: sorted(done) == list(range(10)), "all is done")
    assert len(set(at_work)) <= 3
    workers.end()
    wait_until(lambda: used(share) == before, "the ends of the threads")


def test_where_there_is_room_for_one_thread_it_does_all_the_work_and_where_there_is_none_it_is_refused():
    share = a_share(threads=0)  # which leaves the least that a client needs
    most = share.quotas.table.rows["threads"].most - used(share)["threads"]
    others = share.take(threads=most - 1)
    workers, done = Workers(3, lambda: room(share)), []
    for n in range(10):
        workers.submit(lambda n=n: done.append((n, threading.get_ident())))
    wait_until(lambda: len(done) == 10, "all is done")
    assert len({thread for _, thread in done}) == 1
    workers.end()
    others.give()
    wait_until(lambda: used(share)["threads"] <= 2, "the end of the thread")
    others = share.take(threads=most)
    with pytest.raises(ResourceExhausted, match="threads: this client has"):
        Workers(3, lambda: room(share)).submit(lambda: None)


def test_what_waits_at_the_end_of_the_workers_is_dropped_and_let_go(share):
    before, go, begun = used(share), threading.Event(), threading.Event()
    workers, thing = Workers(1, lambda: room(share)), Thing([], "dropped")
    waits, held = weakref.ref(thing), share.take(background=1)
    workers.submit(lambda: (begun.set(), go.wait(LIMIT), 1 / 0))  # what work raises ends nothing else
    workers.submit(lambda thing=thing, held=held: thing.end())
    del thing, held
    assert begun.wait(LIMIT)
    workers.end()
    wait_until(lambda: gc.collect() >= 0 and waits() is None, "what waited goes")
    assert used(share)["background"] == before["background"]
    go.set()
    wait_until(lambda: used(share) == before, "the end of the thread")
    with pytest.raises(DeadObject, match="is ending"):
        workers.submit(lambda: None)


def test_work_that_takes_long_leaves_threads_to_other_work_and_is_all_done_the_most_urgent_first(share):
    before, go, begun, done = used(share), threading.Semaphore(0), [], []

    def long(n: int) -> None:
        begun.append(n)
        assert go.acquire(timeout=LIMIT)
        done.append(n)
        if n % 2:
            raise OSError("told to")

    workers, short = Workers(2 + KEPT, lambda: room(share)), threading.Semaphore(0)
    for n in range(9):
        workers.submit(lambda n=n: long(n), Priority.HIGH if n == 8 else Priority.LOW, takes_long=True)
    wait_until(lambda: len(begun) == 2, "two at work")
    for _ in range(20):
        workers.submit(short.release, Priority.LOW)
    for _ in range(20):
        assert short.acquire(timeout=LIMIT)
    assert sorted(begun) == [0, 1]
    go.release()
    wait_until(lambda: len(begun) == 3, "the next")
    assert begun[2] == 8
    go.release(8)
    wait_until(lambda: sorted(done) == list(range(9)), "all is done")
    workers.end()
    wait_until(lambda: used(share) == before, "the ends of the threads")


def test_work_that_takes_long_and_has_not_begun_is_dropped_at_the_end(share):
    go, done = threading.Event(), []
    workers, thing = Workers(1 + KEPT, lambda: room(share)), Thing(done, "dropped")
    waits = weakref.ref(thing)
    workers.submit(lambda: go.wait(LIMIT), takes_long=True)
    workers.submit(lambda thing=thing: thing.end(), takes_long=True)
    del thing
    workers.end()
    wait_until(lambda: gc.collect() >= 0 and waits() is None, "what waited goes")
    before = used(share)["threads"]
    go.set()
    wait_until(lambda: used(share)["threads"] < before, "the end of the thread")
    assert not done


def used(share: ClientShare) -> dict[str, int]:
    return share.quotas.usage()[0][1]


def test_of_what_waits_for_a_worker_the_most_urgent_is_done_first_and_then_what_came_first(share):
    go, done = threading.Event(), []
    workers = Workers(1, lambda: room(share))
    workers.submit(lambda: go.wait(LIMIT))
    came = [Priority.LOW, Priority.MEDIUM, Priority.HIGH, Priority.MEDIUM, Priority.HIGH]
    for number, priority in enumerate(came):
        workers.submit(lambda number=number: done.append(number), priority)
    go.set()
    wait_until(lambda: len(done) == len(came), "all is done")
    assert done == [2, 4, 1, 3, 0]
    workers.end()
