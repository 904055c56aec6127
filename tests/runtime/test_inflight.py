"""Executions in flight: how many run at once, in which order, how each ends for whoever waits for it."""

import asyncio
import gc
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

import nnhal
from nnhal.base.errors import Closed, ResourceExhausted
from nnhal.hal.request import UNLIMITED, Control
from nnhal.runtime import inflight
from nnhal.runtime.caller import InFlightTracker
from nnhal.runtime.inflight import Execution, OwnerProcess, Queue
from tests.interrupts import interrupted_at
from tests.runtime.devices import failing
from tests.runtime.test_execution import wait_until
from tests.waiting import Opened, pass_time

LONG = 60  # seconds after which something counts as hanging


def nothing() -> None:
    pass


def until(seconds: float) -> Control:
    return Control(deadline=time.monotonic_ns() + int(seconds * 1e9), cancelled=threading.Event())


def running(control: Control = UNLIMITED) -> tuple["Future[Any]", Execution]:
    """One that somebody is at work at."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future, Execution(future, control)


# -------------------------------------------------------------------------------------------------------------- queue


@pytest.fixture
def held(monkeypatch) -> Iterator[list[Callable[[], Any]]]:
    """Workers that were asked for and do not start by themselves."""
    asked: list[Callable[[], Any]] = []
    monkeypatch.setattr(inflight, "start", asked.append)
    yield asked


def started(workers: list[Callable[[], Any]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=each, daemon=True) for each in workers]
    for thread in threads:
        thread.start()
    return threads


def ended(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(LONG)
    return not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_so_many_run_at_once_and_no_more_in_the_order_in_which_they_were_submitted(most, held):
    queue, gate, begun, now, peak, lock = Queue(most), threading.Event(), [], set(), [0], threading.Lock()

    def work(n: int) -> int:
        with lock:
            begun.append(n)
            now.add(n)
            peak[0] = max(peak[0], len(now))
        gate.wait(LONG)
        with lock:
            now.discard(n)
        return n

    executions = [queue.submit(n, lambda n=n: work(n), nothing, UNLIMITED) for n in range(6)]
    assert len(held) == 6  # nobody is at work yet
    threads = started(held)
    wait_until(lambda: len(begun) == most and sum(t.is_alive() for t in threads) == most)
    assert sorted(begun) == list(range(most)) and not any(e.done() for e in executions)
    gate.set()
    assert [e.result(LONG) for e in executions] == list(range(6)) and ended(threads)
    assert peak == [most] and sorted(begun) == list(range(6)) and (most > 1 or begun == list(range(6)))


def test_no_more_workers_are_asked_for_than_may_be_at_work(held):
    queue, gate = Queue(1), threading.Event()
    queue.submit(1, lambda: gate.wait(LONG), nothing, UNLIMITED)
    threads = started(held)
    wait_until(lambda: len(queue._threads) == 1)
    queue.submit(2, nothing, nothing, UNLIMITED)
    assert len(held) == 1
    gate.set()
    assert ended(threads)
    queue.submit(3, nothing, nothing, UNLIMITED)
    assert len(held) == 2  # the one before is gone


@pytest.mark.parametrize("taken", [False, True])
def test_without_a_thread_more_what_is_submitted_is_run_by_those_that_are_at_work(taken, held, monkeypatch):
    queue, gate, done = Queue(2), threading.Event(), []
    queue.submit(1, lambda: gate.wait(LONG), nothing, UNLIMITED)
    threads = started(held)
    wait_until(lambda: len(queue._threads) == 1)

    def refused(_: Callable[[], Any]) -> None:
        if taken:
            gate.set()
            wait_until(lambda: done)
        raise ResourceExhausted("no thread")

    monkeypatch.setattr(inflight, "start", refused)
    execution = queue.submit(2, lambda: done.append(2), nothing, UNLIMITED)
    gate.set()
    assert execution.result(LONG) is None and done == [2] and ended(threads)


def test_without_any_thread_what_is_submitted_is_refused_and_never_runs(held, monkeypatch):
    queue, done = Queue(2), []

    monkeypatch.setattr(inflight, "start", failing(ResourceExhausted("no thread")))
    with pytest.raises(ResourceExhausted, match="no thread"):
        queue.submit(1, lambda: done.append(1), nothing, UNLIMITED)
    monkeypatch.setattr(inflight, "start", held.append)
    queue.submit(2, lambda: done.append(2), nothing, UNLIMITED)
    assert ended(started(held)) and done == [2] and not queue.has(1)


def test_what_was_submitted_is_the_queues_until_it_has_ended_and_left(held):
    queue, gate, left = Queue(1), threading.Event(), []
    first = queue.submit("first", lambda: gate.wait(LONG), lambda: left.append(queue.has("first")), UNLIMITED)
    second = queue.submit("second", nothing, lambda: left.append("second"), UNLIMITED)
    assert queue.has("first") and queue.has("second") and not queue.has("third")
    threads = started(held[:1])
    wait_until(lambda: "first" in queue._at_work)
    assert queue.has("first") and queue.has("second") and left == []
    gate.set()
    assert ended(threads) and first.done() and second.done()
    assert left == [False, "second"] and not queue.has("first") and not queue.has("second")


def test_what_no_worker_can_be_had_for_is_not_in_the_queue(monkeypatch):
    queue, ran = Queue(1), []
    monkeypatch.setattr(inflight, "start", failing(ResourceExhausted("no thread")))
    with pytest.raises(ResourceExhausted):
        queue.submit("lost", lambda: ran.append("lost"), nothing, UNLIMITED)
    assert not queue.has("lost")
    monkeypatch.undo()
    queue.submit("found", lambda: ran.append("found"), nothing, UNLIMITED).result(LONG)
    queue.wait_until_idle()
    assert ran == ["found"]


def test_draining_waits_for_the_last_to_have_left_and_takes_up_what_nobody_has(held, monkeypatch):
    queue, order = Queue(2), []
    queue.wait_until_idle()  # nothing is nothing to wait for
    for n in range(3):
        queue.submit(n, lambda n=n: order.append(n), lambda: (pass_time(0.01), order.append("left")), UNLIMITED)
    monkeypatch.undo()  # nobody came for them
    changed = queue._changed.wait
    monkeypatch.setattr(queue._changed, "wait", lambda _: changed(600))  # told of the end, it need not look again
    queue.wait_until_idle()
    assert order.count("left") == 3 and not queue._threads
    queue.wait_until_idle()


def test_one_that_was_cancelled_before_its_turn_does_not_run(held):
    queue, ran, left = Queue(1), [], []
    execution = queue.submit("who", lambda: ran.append(1), lambda: left.append(1), Control(cancelled=threading.Event()))
    execution.cancel()
    assert ended(started(held))
    assert (ran, left) == ([], [1]) and execution.done()
    with pytest.raises(nnhal.Cancelled, match=r"^execution: cancelled by its owner$"):
        execution.result()


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), nnhal.OperationFailed("no")])
def test_whatever_the_work_raises_is_the_outcome(error, held):
    queue = Queue(1)
    execution = queue.submit("who", failing(error), nothing, UNLIMITED)
    assert ended(started(held))
    with pytest.raises(type(error)) as caught:
        execution.result()
    assert caught.value is error


# ------------------------------------------------------------------------------------------------------------ waiting


def test_a_timeout_leaves_it_running_and_the_deadline_does_not(monkeypatch):
    monkeypatch.setattr(inflight, "_GRACE", LONG)
    future, execution = running(until(LONG))
    with pytest.raises(TimeoutError, match=r"^execution: not done after 0\.01 s$"):
        execution.result(0.01)
    with pytest.raises(TimeoutError):
        execution.result(0)
    assert not execution._control.cancelled.is_set()
    future.set_result(5)
    assert execution.result() == execution.result(0) == execution.wait() == 5

    for timeout in (None, LONG):
        future, execution = running(until(0.02))
        threading.Thread(target=cancelled_by, args=(future, execution._control), daemon=True).start()
        with pytest.raises(nnhal.MissedDeadline, match=r"^execution: the deadline has passed$"):
            execution.result(timeout)
        assert future.done()  # it gave itself up before that was said
        with pytest.raises(nnhal.MissedDeadline):
            execution.result()


def cancelled_by(future: "Future[Any]", control: Control) -> None:
    assert control.cancelled.wait(LONG)
    pass_time(0.05)
    future.set_result("late")


def test_without_a_deadline_it_is_waited_for_as_long_as_asked():
    future, execution = running()
    with pytest.raises(TimeoutError):
        execution.result(0.01)
    threading.Timer(0.05, future.set_result, ("done",)).start()
    assert execution.result() == "done"


def test_one_that_does_not_give_itself_up_is_late_all_the_same(monkeypatch):
    monkeypatch.setattr(inflight, "_GRACE", 0.01)
    future, execution = running(until(0))
    with pytest.raises(nnhal.MissedDeadline):
        execution.result()
    assert repr(execution) == "<Execution, deadline passed>" and not execution.done()
    future.set_result("after all")
    with pytest.raises(nnhal.MissedDeadline):
        execution.result()


def test_wherever_a_signal_handler_raises_in_a_wait_its_error_is_raised_and_the_end_can_come():
    """It may raise just when a lock is taken: who ends the execution must not need that lock."""
    made: list[tuple[Future[Any], Execution]] = []

    def wait() -> None:
        with suppress(TimeoutError):
            made[-1][1].result(0)

    own = "inflight.py", "_base.py", "threading.py"
    points = interrupted_at(
        lambda frame, event: event == "c_return" and frame.f_code.co_filename.endswith(own),
        wait,
        lambda: made.append(running()),
    )
    assert points and len(made) == points + 1
    for future, execution in made:
        end = threading.Thread(target=future.set_result, args=("done",), daemon=True)
        end.start()
        end.join(LONG)
        assert not end.is_alive() and execution.result(LONG) == "done"


def test_what_it_raised_is_raised():
    future, execution = running(until(LONG))
    future.set_exception(nnhal.OperationFailed("broken"))
    for _ in range(2):
        with pytest.raises(nnhal.OperationFailed, match="broken"):
            execution.result(LONG)
    assert repr(execution) == "<Execution, failed, OperationFailed>"


def test_a_cancellation_is_seen_by_who_runs_and_by_who_waits():
    future, execution = running(until(LONG))
    execution.cancel()
    assert execution._control.cancelled.is_set() and not execution.done()  # it has to be seen there
    waiting: Future[Any] = Future()
    other = Execution(waiting, UNLIMITED)
    other.cancel()
    assert other.done() and repr(other) == "<Execution, cancelled>"
    assert repr(execution) == "<Execution, in flight>"
    future.set_result(None)
    assert repr(execution) == "<Execution, done>"


# --------------------------------------------------------------------------------------------------------- descriptors


def test_its_descriptor_is_readable_from_the_end_on_and_is_one():
    future, execution = running()
    number = execution.fileno()
    assert execution.fileno() == number and not os.get_inheritable(number) and not os.get_blocking(number)
    assert select.select([number], [], [], 0)[0] == []
    future.set_result(1)
    for _ in range(2):
        assert select.select([number], [], [], LONG)[0] == [number]


def test_a_descriptor_asked_for_after_the_end_is_readable_at_once():
    future, execution = running()
    future.set_exception(ValueError())
    assert select.select([execution], [], [], LONG)[0] == [execution]


def test_descriptors_go_with_the_execution_and_those_for_its_end_with_that():
    opened = Opened()
    future, execution = running()
    execution.fileno()
    assert opened.count() == 2
    future.set_result(1)
    assert opened.count() == 1
    del execution
    opened.closed()


# ----------------------------------------------------------------------------------------------------------- awaiting


def test_what_is_awaited_is_looked_at_by_nobody_else(recwarn):
    said: list[Any] = []

    async def outcomes() -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        found: list[Any] = []
        for fail in (None, nnhal.OperationFailed("broken"), "cancel"):
            future, execution = running() if fail != "cancel" else (own := Future(), Execution(own, UNLIMITED))
            loop = asyncio.get_running_loop()
            if fail is None:
                loop.call_later(0.01, future.set_result, 3)
            elif fail == "cancel":
                loop.call_later(0.01, execution.cancel)
            else:
                loop.call_later(0.01, future.set_exception, fail)
            try:
                found.append(await execution)
            except nnhal.NnhalError as error:
                found.append(type(error))
        return found

    assert asyncio.run(outcomes()) == [3, nnhal.OperationFailed, nnhal.Cancelled]
    gc.collect()
    assert said == []


def test_awaiting_ends_at_the_deadline_though_the_work_goes_on(monkeypatch):
    monkeypatch.setattr(inflight, "_GRACE", 0.01)
    future, execution = running(until(0.03))

    async def wait() -> None:
        with pytest.raises(nnhal.MissedDeadline, match=r"^execution: the deadline has passed$"):
            await execution

    asyncio.run(wait())
    assert execution._control.cancelled.is_set() and not future.done()


# -------------------------------------------------------------------------------------------------------------- a fork


def test_what_is_in_flight_belongs_to_the_process_that_began_it(monkeypatch):
    home = OwnerProcess()
    home.check("execution")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(Closed, match=r"^thing: was launched before this process was forked"):
        home.check("thing")


# ------------------------------------------------------------------------------------------------- what is given back


class Given:
    """Counts how often it was given back."""

    def __init__(self) -> None:
        self.back, self.use = 0, InFlightTracker(self.give_back)

    def give_back(self) -> None:
        self.back += 1


class Job:
    """Stands for one."""


def test_it_is_given_back_once_when_the_owner_has_let_go_and_nothing_is_in_it():
    given = Given()
    given.use.left()
    given.use.leave(Job())
    assert given.back == 0
    for _ in range(2):
        given.use.end()
        given.use.left()
    assert given.back == 1
    given.use.wait()


def test_the_last_call_gives_it_back():
    given, one, other = Given(), Job(), Job()
    given.use.calls |= {one, other}
    given.use.end()
    waiter = threading.Thread(target=given.use.wait, daemon=True)
    waiter.start()
    given.use.leave(one)
    waiter.join(0.05)
    assert given.back == 0 and waiter.is_alive()
    given.use.leave(other)
    assert ended([waiter]) and given.back == 1


def test_what_runs_behind_fences_holds_it_and_is_not_waited_for():
    given, behind = Given(), Job()
    given.use.behind.add(behind)
    given.use.end()
    given.use.wait()
    assert given.back == 0
    given.use.leave(behind)
    assert given.back == 1


def test_what_was_interrupted_while_it_was_given_back_is_given_back_by_the_next():
    calls = []

    def give_back() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    use = InFlightTracker(give_back)
    with suppress(KeyboardInterrupt):
        use.end()
    use.end()
    use.end()
    assert len(calls) == 2
