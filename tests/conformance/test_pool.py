"""What the pool does with processes that answer, end, hang, talk nonsense or do not come back.

The processes are threads here, the clock is the test's own: nothing waits, and what comes first is known.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, OperationFailed, ResourceExhausted
from nnhal.base.stacks import TELL
from nnhal.conformance import pool, worker
from nnhal.conformance.device_under_test import Bundle, Subject
from nnhal.conformance.pool import BARREN, ENDING, LOADING, OWN, TELLING, Work, _WorkProcess, children_of, run_all
from nnhal.conformance.worker import Answer, Ready, StageBoard
from tests.waiting import Opened

T = 10.0  # seconds that the driver may take
NO_PID = 1 << 22  # and above: no process has it
FRAME = 'File "/somewhere/driver.py", line {} in {}\n'
DUMP = "Thread 0x1 (most recent call first):\n" + FRAME.format(3, "inner")


class Clock:
    """Time that passes where it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Played:
    """A `DriverProcess` whose program is a thread. killed: when it was ended from outside."""

    program: Callable[["Played"], None]
    started: list["Played"]
    clock: Clock
    fails: tuple[int, str] | None = None

    def __init__(self, driver: str, command: Sequence[str], ends: Sequence[int]) -> None:
        if self.fails is not None:
            raise OSError(*self.fails)
        self.driver, self.command = driver, command
        self._socket = socket.socket(fileno=os.dup(ends[0]))
        self.connection = Connection(os.dup(ends[0]))
        memory = os.dup(ends[1])
        self.board = StageBoard(memory)
        os.close(memory)
        self.number = len(self.started)
        self.pid = NO_PID + self.number
        self.end, self.words = "", ""
        self.killed, self.hanging = threading.Event(), False
        self.at_kill: list[Any] = []  # what a Ctrl-C would do, whether it had ended
        self.waited: list[float | None] = []
        self.output = SimpleNamespace(last_words=lambda: self.words)
        self.started.append(self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the other side is gone
            type(self).program(self)
        self.connection.close()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def exit_description(self) -> str:
        return self.end

    def kill(self) -> None:
        self.at_kill.append((signal.getsignal(signal.SIGINT), not self._thread.is_alive()))
        self.killed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float | None = None) -> None:
        self.waited.append(timeout)
        self._thread.join(10 if timeout is None or self.killed.is_set() else min(timeout, 0.2))
        if self._thread.is_alive():
            self.clock.now += timeout or 0
            raise subprocess.TimeoutExpired("played", timeout or 0)

    # ------------------------------------------------------------------------------------------------- what it plays

    def loads(self) -> None:
        self.subject = self.connection.recv()
        self.connection.send(Ready("played"))

    def tasks(self) -> Iterator[Bundle]:
        while True:
            task = self.connection.recv()
            assert self.board.read() == (0, "")
            yield task

    def answers(self, *outcomes: Any) -> None:
        self.connection.send([Answer(PlayedOutcome(outcome), Counter(run=1)) for outcome in outcomes])

    def ends(self, how: str = "the driver process ended with exit status 3") -> None:
        self.end = how
        raise EOFError

    def hangs(self) -> None:
        self.hanging = True
        self.killed.wait()
        raise EOFError


def healthy(process: Played) -> None:
    """Each item passes."""
    process.loads()
    for task in process.tasks():
        for place, item in enumerate(task.items):
            process.board.write(place, "run")
            acts = {"crash": process.ends, "hang": process.hangs}
            acts.get(item.partition(" ")[0], lambda: None)()
            process.board.write(place + 1, "")
            process.answers((item, "passed"))


class PlayedOutcome(tuple[Any, ...]):
    """The item, the verdict, and what else is known."""

    @property
    def verdict(self) -> str:
        """What became of it."""
        return str(self[1])


class Playing(Work):
    """Items are texts. Nothing is tried again."""

    module = "played"

    def lost(self, item: Any, verdict: str, reason: str, nanoseconds: int, stack: str, type: str) -> Any:
        return PlayedOutcome((item, verdict, reason, nanoseconds, stack))

    def tries_again(self, verdict: str, stage: str) -> bool:
        return False

    def late(self, first: Any, second: Any, before: Sequence[Any]) -> Any:
        return PlayedOutcome((first[0], first[1], second[1], *before))


class Again(Playing):
    def tries_again(self, verdict: str, stage: str) -> bool:
        return True


def work(*bundles: Sequence[str], kind: type[Playing] = Playing, timeout: float = T) -> Playing:
    return kind(Subject(device="played", timeout=timeout), [Bundle("of", tuple(items)) for items in bundles])


class System(SimpleNamespace):
    """Processes that are played, what they were sent, how long was waited for them."""

    def __call__(self, program: Callable[[Played], None]) -> None:
        self.kind.program = program


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> System:
    clock = Clock()
    started: list[Played] = []
    kind = type("Kind", (Played,), {"started": started, "clock": clock, "program": healthy})
    system = System(kind=kind, started=started, clock=clock, signals=[], groups=[], waits=[], children={})

    class Poll:
        def __init__(self) -> None:
            self._poll = select.poll()
            self.register, self.unregister = self._poll.register, self._poll.unregister

        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            system.waits.append(milliseconds)
            found = self._poll.poll(min(milliseconds, 5))
            if not found and any(process.hanging and not process.killed.is_set() for process in started):
                clock.now += milliseconds / 1000  # all that was said was heard
            return found

    def kill(pid: int, what: int) -> None:
        system.signals.append((pid, what))
        for process in started:
            if process.pid == pid:
                process.words += DUMP

    def killpg(pid: int, what: int) -> None:
        assert pid >= NO_PID
        system.groups.append((pid, what))

    monkeypatch.setattr(pool, "DriverProcess", kind)
    monkeypatch.setattr(pool, "time", clock)
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(pool, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(os, "killpg", killpg)
    monkeypatch.setattr(pool, "children_of", lambda pid: system.children.get(pid, []))
    return system


def came(some: Work, jobs: int = 1) -> list[Any]:
    return [outcome for result, _, _ in run_all(some, jobs) for outcome in result.outcomes]


def verdicts(outcomes: Sequence[Any]) -> dict[str, str]:
    assert len({outcome[0] for outcome in outcomes}) == len(outcomes)
    return {outcome[0]: outcome[1] for outcome in outcomes}


# ---------------------------------------------------------------------------------------------------- where all is well


def test_outcomes_come_in_order_with_how_many_have_of_how_many(played: System) -> None:
    found = list(run_all(work(["a", "b"], ["c"]), 1))
    assert [o for result, _, _ in found for o in result.outcomes] == [("a", "passed"), ("b", "passed"), ("c", "passed")]
    done = 0
    for result, so_far, total in found:
        done += len(result.outcomes)
        assert (so_far, total) == (done, 3) and result.outcomes
        assert result.calls == Counter(run=len(result.outcomes)) and result.device == "played"


@pytest.mark.parametrize(("jobs", "tasks", "processes"), [(1, 4, 1), (2, 4, 2), (3, 2, 2), (5, 1, 1), (2, 0, 0)])
def test_there_are_as_many_processes_as_are_asked_for_and_have_something_to_do(
    jobs: int, tasks: int, processes: int, played: System
) -> None:
    blocked = threading.Barrier(max(1, processes))

    def program(process: Played) -> None:
        process.loads()
        if process.number < processes:
            blocked.wait(10)  # all are there before any has done something
        for task in process.tasks():
            process.answers(*((item, "passed") for item in task.items))

    played(program)
    assert len(came(work(*([f"item {n}"] for n in range(tasks))), jobs)) == tasks
    assert len(played.started) == processes


def test_a_process_is_told_its_descriptors_its_parent_and_the_subject_and_the_pool_keeps_none(played: System) -> None:
    opened = Opened()
    some = work(["a"])
    assert came(some) == [("a", "passed")]
    (process,) = played.started
    assert process.subject == some.subject and process.driver == "played"
    *program, socket_, memory, parent = process.command
    assert program[:3] == [sys.executable, "-P", "-c"] and "from played import main" in program[3]
    assert int(parent) == os.getpid() and int(socket_) != int(memory)
    del process.board
    opened.closed()


def test_a_process_that_cannot_be_started_is_said_with_the_reason_and_leaves_no_descriptor(played: System) -> None:
    def refused() -> None:
        with pytest.raises(ResourceExhausted, match="cannot start a process: Too many open files"):
            came(work(["a"]))

    opened = Opened()
    played.kind.fails = 24, "Too many open files"
    refused()
    opened.closed()


def test_at_the_end_processes_end_by_themselves_and_then_are_killed_while_ctrl_c_changes_nothing(
    played: System,
) -> None:
    before = signal.getsignal(signal.SIGINT)
    came(work(["a"], ["b"]), 2)
    for process in played.started:
        assert process.at_kill and set(process.at_kill) == {(signal.SIG_IGN, True)}
    assert signal.getsignal(signal.SIGINT) is before
    assert {pid for pid, _ in played.groups} == {process.pid for process in played.started}
    assert {what for _, what in played.groups} == {signal.SIGKILL}


def test_processes_that_do_not_end_have_one_moment_together_and_are_killed(played: System) -> None:
    both = threading.Barrier(2)

    def program(process: Played) -> None:
        process.loads()
        task = process.connection.recv()
        both.wait(10)  # each has one
        process.answers(*((item, "passed") for item in task.items))
        process.killed.wait()

    played(program)
    assert len(came(work(["a"], ["b"]), 2)) == 2
    first, second = ([t for t in process.waited if t is not None] for process in played.started)
    assert first == [ENDING] and second == [0.0]
    assert all(process.killed.is_set() for process in played.started)


def test_who_stops_listening_leaves_no_process(played: System) -> None:
    results = run_all(work(["a"], ["b"], ["c"]), 1)
    next(results)
    results.close()
    (process,) = played.started
    assert process.killed.is_set() and played.groups == [(process.pid, signal.SIGKILL)]


def test_outcomes_come_to_a_thread_too(played: System) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(came(work(["a"]))))
    thread.start()
    thread.join()
    assert found == [("a", "passed")]


# ------------------------------------------------------------------------------------------------------ crashes and hangs


def test_an_item_that_ends_its_process_has_crashed_and_the_others_run_in_another(played: System) -> None:
    found = came(work(["a", "crash b", "c"], ["d"]))
    where = "device played: run(): the driver process ended with exit status 3"
    assert found == [("a", "passed"), ("crash b", "crashed", where, 0, ""), ("c", "passed"), ("d", "passed")]
    first, _ = played.started
    assert first.killed.is_set() and played.groups[0] == (first.pid, signal.SIGKILL)  # copies that a driver made of it


def test_the_stack_of_a_crash_is_the_drivers(played: System) -> None:
    def program(process: Played) -> None:
        process.loads()
        for _ in process.tasks():
            process.board.write(0, "prepare")
            process.ends(f"the driver process was killed by SIGSEGV; its last words: {DUMP}")

    played(program)
    ((_, verdict, reason, _, stack),) = came(work(["a"]))
    assert verdict == "crashed" and reason.startswith("device played: prepare(): the driver process was killed by")
    assert stack == 'File "/somewhere/driver.py", line 3, in inner'


def test_an_item_at_which_nothing_comes_has_hung_and_its_process_is_killed(played: System) -> None:
    found = came(work(["a", "hang b", "c"]))
    where = 'File "/somewhere/driver.py", line 3, in inner'
    reason = f"device played: run() has not ended within 10 s, at {where}"
    assert found == [("a", "passed"), ("hang b", "hung", reason, 10_000_000_000, where), ("c", "passed")]
    first, _ = played.started
    assert first.killed.is_set() and played.signals == [(first.pid, TELL)]


def test_a_hang_is_seen_beside_a_process_with_nothing_to_do(played: System) -> None:
    done = threading.Event()

    def program(process: Played) -> None:
        process.loads()
        for task in process.tasks():
            (item,) = task.items
            process.board.write(0, "run")
            if item == "hang":
                done.wait(10)
                process.hangs()
            process.answers((item, "passed"))
            done.set()

    played(program)
    assert verdicts(came(work(["hang"], ["b"]), 2)) == {"hang": "hung", "b": "passed"}


def test_the_pool_waits_until_the_first_process_is_late_and_a_little(played: System) -> None:
    waited = threading.Event()

    def program(process: Played) -> None:
        process.loads()
        for task in process.tasks():
            waited.wait(10)
            process.answers(*((item, "passed") for item in task.items))

    played(program)
    results = run_all(work(["a"]), 1)
    threading.Timer(0.05, waited.set).start()
    list(results)
    assert LOADING > T and {ms // 1000 for ms in played.waits} <= {LOADING, T}
    assert all(0 < ms - 1000 * limit <= 2 for ms in played.waits for limit in [LOADING if ms > 1e4 + 9 else T])


def test_each_thing_that_the_driver_is_asked_has_its_own_time(played: System) -> None:
    asked = threading.Semaphore(0)

    def program(process: Played) -> None:
        process.loads()
        for _ in process.tasks():
            for stage in ("supports", "prepare", "run"):
                process.clock.now += 0.7 * T  # longer than T in all
                process.board.write(0, stage)
            process.answers(("a", "passed"))
            asked.release()

    played(program)
    assert came(work(["a"])) == [("a", "passed")]


def test_answers_show_that_a_process_lives(played: System) -> None:
    go_on = threading.Event()

    def program(process: Played) -> None:
        process.loads()
        for _ in process.tasks():
            process.answers(("a", "passed"))
            go_on.wait(10)
            process.answers(("b", "passed"))
            process.connection.recv()

    played(program)
    results = run_all(work(["a", "b"]), 1)
    played.clock.now += 0.7 * T
    assert next(results)[0].outcomes == [("a", "passed")]
    played.clock.now += 0.7 * T
    go_on.set()
    assert [o for result, _, _ in results for o in result.outcomes] == [("b", "passed")]


def test_a_driver_may_take_longer_to_load_than_to_answer_and_then_is_said_not_to_have(played: System) -> None:
    def slow(process: Played) -> None:
        process.subject = process.connection.recv()
        process.clock.now += LOADING - 1
        process.connection.send(Ready("slow"))
        for _ in process.tasks():
            process.answers(("a", "passed"))

    def never(process: Played) -> None:
        process.subject = process.connection.recv()
        process.hangs()

    played(slow)
    assert came(work(["a"])) == [("a", "passed")]
    played(never)
    at = ', at File "/somewhere/driver.py", line 3, in inner'
    with pytest.raises(DeviceUnavailable, match=f"device played: has not loaded within 60 s{at}"):
        came(work(["a"]))
    with pytest.raises(DeviceUnavailable, match=f"has not loaded within 90 s{at}"):
        came(work(["a"], timeout=90))


def test_a_process_that_stops_talking_is_ended_and_what_is_no_message_is_the_end(played: System) -> None:
    def program(process: Played) -> None:
        process.loads()
        for task in process.tasks():
            process.board.write(0, "run")
            if task.items == ("silent",):
                process._socket.shutdown(socket.SHUT_RDWR)
                process.killed.wait()
            if task.items == ("garbage",):
                process.connection.send_bytes(b"no message")
                process.killed.wait()
            process.answers((task.items[0], "passed"))

    played(program)
    silent, garbage, other = came(work(["silent"], ["garbage"], ["c"]))
    reason = "run(): the driver process closed its connection to the suite, and was ended"
    assert silent[1] == garbage[1] == "crashed" and other == ("c", "passed")
    assert silent[2] == garbage[2] == f"device played: {reason}"
    assert all(process.killed.is_set() for process in played.started[:2])


def test_messages_that_mean_nothing_are_passed_over(played: System) -> None:
    def program(process: Played) -> None:
        process.loads()
        for task in process.tasks():
            process.connection.send("hello")
            process.answers(*((item, "passed") for item in task.items))
            process.answers(("nobody asked", "passed"))

    played(program)
    results = run_all(work(["a", "b"]), 1)
    first = next(results)
    assert first[0].outcomes == [("a", "passed"), ("b", "passed")] and first[1:] == (2, 2)
    assert list(results) == []


# ------------------------------------------------------------------------------------------------------- a second attempt


def test_what_ends_a_process_in_which_others_ran_is_tried_in_a_fresh_one_alone(played: System) -> None:
    given: dict[int, list[Any]] = {}  # by process, what it was given

    def program(process: Played) -> None:
        process.loads()
        ran = 0
        for task in process.tasks():
            given.setdefault(process.number, []).append(task.items)
            for place, item in enumerate(task.items):
                process.board.write(place, "run")
                if (item.startswith("second") and ran) or item.startswith("always"):
                    process.ends()
                ran += 1
            process.board.write(len(task.items), "")
            process.answers(*((item, "passed") for item in task.items))

    def tried(*bundles: Sequence[str], kind: type[Playing] = Again) -> dict[str, Any]:
        played.started.clear()
        given.clear()
        return {item: rest for item, *rest in came(work(*bundles, kind=kind))}

    played(program)
    assert tried(["always a", "b"])["always a"][0] == "crashed"  # the first of a fresh process
    assert given == {0: [("always a", "b")], 1: [("b",)]}
    for bundles in (["a", "second b"], ["c"]), (["a"], ["second b"], ["c"]):
        assert tried(*bundles)["second b"] == ["crashed", "passed", "a"]  # then, and now; after what
        assert given[1][0] == ("second b",)
    assert tried(["a"], ["always b"])["always b"][0] == "crashed"  # twice: it is its own
    assert tried(["a", "second b", "c"], kind=Playing)["second b"][0] == "crashed"  # others do not try again
    assert given[1] == [("a", "c")]


def test_a_crash_is_tried_again_and_a_hang_only_where_the_driver_is_asked_nothing() -> None:
    tried = [Work.tries_again(work(), verdict, stage) for verdict in ("crashed", "hung") for stage in ("run", "")]
    assert tried == [True, True, False, True]


def test_nothing_follows_from_an_outcome_unless_it_is_said() -> None:
    assert [list(each) for each in Work.after(work(), "outcome")] == [[], []]


# --------------------------------------------------------------------------------------------------------- what follows


def test_what_follows_from_an_outcome_runs_next_and_what_is_known_from_it_comes_with_it(played: System) -> None:
    class Following(Playing):
        def after(self, outcome: Any) -> Any:
            if outcome[0] != "a":
                return (), ()
            return [Bundle("of", ("b", "c")), Bundle("of", ("d",))], [("e", "known"), ("f", "known")]

    found = list(run_all(work(["a"], ["y"], ["z"], kind=Following), 1))
    assert found[0][0].outcomes == [("a", "passed"), ("e", "known"), ("f", "known")] and found[0][1:] == (3, 8)
    order = [o[0] for result, _, _ in found for o in result.outcomes]
    assert order == ["a", "e", "f", "y", "b", "c", "d", "z"]  # y was given out before
    assert found[-1][1:] == (8, 8) and len(played.started) == 1


class Following(Playing):
    """After a come c and d."""

    def after(self, outcome: Any) -> Any:
        return ([Bundle("of", ("c",)), Bundle("of", ("d",))], ()) if outcome[0] == "a" else ((), ())


def test_a_process_with_nothing_to_do_takes_what_follows_and_none_is_started_for_it(played: System) -> None:
    idle, both = threading.Event(), threading.Barrier(2)

    def program(process: Played) -> None:
        process.loads()
        for task in process.tasks():
            (item,) = task.items
            if item == "a":
                idle.wait(10)
            if item in "cd":
                both.wait(10)  # one each
            process.answers((item, f"by {process.number}"))

    played(program)
    results = run_all(work(["a"], ["b"], kind=Following), 2)
    found = next(results)[0].outcomes
    assert [o[0] for o in found] == ["b"]
    idle.set()
    found += [o for result, _, _ in results for o in result.outcomes]
    assert {o[1] for o in found if o[0] in "cd"} == {"by 0", "by 1"} and len(played.started) == 2


def test_a_process_that_ends_with_nothing_to_do_costs_nothing_and_is_not_used_again(played: System) -> None:
    gone = threading.Event()

    def program(process: Played) -> None:
        process.loads()
        for task in process.tasks():
            (item,) = task.items
            if item == "a":
                gone.wait(10)
            process.answers((item, "passed"))
            if item == "b":
                process.ends()

    played(program)
    results = run_all(work(["a"], ["b"], kind=Following), 2)
    found = next(results)[0].outcomes
    threading.Timer(0.05, gone.set).start()
    found += [o for result, _, _ in results for o in result.outcomes]
    assert verdicts(found) == dict.fromkeys("abcd", "passed")


# --------------------------------------------------------------------------------------------- drivers that do not load


def ending_at(*numbers: int, loads: bool, error: Exception | None = None) -> Callable[[Played], None]:
    """Healthy, but for some processes, which end as they load or as they are told what to do."""

    def program(process: Played) -> None:
        if process.number not in numbers:
            return healthy(process)
        if loads:
            process.loads()
            next(process.tasks())
        else:
            process.connection.recv()
        if error is not None:
            process.connection.send(error)
            process.killed.wait()
        return process.ends()

    return program


def test_a_driver_that_never_loads_is_an_error_that_says_how(played: System) -> None:
    played(ending_at(0, loads=False))
    said = "device played: does not load: the driver process ended with exit status 3"
    with pytest.raises(DeviceUnavailable, match=said):
        came(work(["a"]))
    played(ending_at(1, loads=False, error=OperationFailed("no licence")))
    with pytest.raises(OperationFailed, match=r"^no licence$"):
        came(work(["a"]))
    assert played.started[1].killed.is_set()
    with pytest.raises(DeviceUnavailable, match=r"device cpu\.py: does not load"):
        played(ending_at(2, loads=False))
        came(Playing(Subject(drivers=("cpu.py",)), [Bundle("of", ("a",))]))


def test_a_loaded_process_that_ends_before_it_is_asked_anything_costs_nothing_twice_in_a_row(played: System) -> None:
    played(ending_at(*range(BARREN - 1), loads=True))
    assert came(work(["a", "b"])) == [("a", "passed"), ("b", "passed")]
    assert len(played.started) == BARREN == 3


def test_a_driver_that_does_not_come_back_has_crashed_at_all_that_is_left(played: System) -> None:
    played(ending_at(*range(BARREN), loads=True))
    why = "ended before its first call: the driver process ended with exit status 3"
    reason = f"device played: no longer loads: device played: {why}"
    assert came(work(["a", "b"], ["c"])) == [(item, "crashed", reason, 0, "") for item in "abc"]
    assert len(played.started) == BARREN
    played.started.clear()
    played(ending_at(1, 2, 3, loads=False))  # after the first crash
    found = came(work(["a", "crash b", "c"]))
    assert [o[1] for o in found] == ["passed", "crashed", "crashed"]
    assert "no longer loads: device played: does not load: the driver process" in found[2][2]


@pytest.mark.parametrize(("between", "barren"), [("b", (0, 1, 3)), ("crash b", (0, 1, 3, 4))])
def test_processes_that_do_nothing_are_counted_in_a_row(between: str, barren: tuple[int, ...], played: System) -> None:
    """What an item passes or costs shows that the driver came back. Where it passed, that process ends after it."""

    def program(process: Played) -> None:
        if process.number == 2:
            process.loads()
            for task in process.tasks():
                item = task.items[0]
                process.board.write(0, "run")
                if not item.startswith("crash"):
                    process.board.write(0, "")
                    process.answers((item, "passed"))
                process.ends()
        ending_at(*barren, loads=True)(process)

    played(program)
    found = verdicts(came(work([between], ["c"])))
    assert found == {between: "passed" if between == "b" else "crashed", "c": "passed"}


def test_an_argument_that_is_wrong_is_an_error_however_far_it_got(played: System) -> None:
    played(ending_at(1, loads=False, error=InvalidArgument("options: no such option")))
    with pytest.raises(InvalidArgument, match="no such option"):
        came(work(["a", "crash b", "c"]))
    assert all(process.killed.is_set() for process in played.started)


def test_what_did_not_come_back_is_not_run_again_by_a_process_that_still_lives(played: System) -> None:
    held, lost = threading.Event(), threading.Event()

    def program(process: Played) -> None:
        if process.number:
            held.wait(10)  # the first process has the first task
        process.loads()
        for task in process.tasks():
            if process.number:
                if process.number > 1:
                    process.ends()
                process.board.write(1, "run")  # the second one of its task
                process.ends()
            held.set()
            lost.wait(10)
            process.answers(*((item, "passed") for item in task.items))

    played(program)
    results = run_all(work(["a"], ["b", "c"], kind=Again), 2)
    found = next(results)[0].outcomes
    assert {o[0]: o[1] for o in found} == {"b": "crashed", "c": "crashed"}
    assert (
        next(o for o in found if o[0] == "c")[2] == "device played: run(): the driver process ended with exit status 3"
    )
    lost.set()
    assert [o for result, _, _ in results for o in result.outcomes] == [("a", "passed")]
    assert len(played.started) == 1 + 1 + BARREN


def test_a_second_try_that_did_not_come_back_is_not_made_by_a_process_that_loads_later(played: System) -> None:
    busy, lost, idle = threading.Event(), threading.Event(), threading.Event()

    def program(process: Played) -> None:
        if process.number == 0:
            lost.wait(10)
            process.loads()
            if process.connection.poll(0.2):
                process.answers(*((item, "passed") for item in process.connection.recv().items))
            idle.set()
            process.killed.wait(10)
        elif process.number == 1:
            process.loads()
            for task in process.tasks():
                if task.items == ("later",):
                    busy.set()
                    idle.wait(10)
                process.answers(*((item, "passed") for item in task.items))
        elif process.number == 2:
            busy.wait(10)
            process.loads()
            next(process.tasks())
            process.board.write(1, "run")
            process.ends()
        else:
            process.ends()  # while loading

    played(program)
    results = run_all(work(["first"], ["later"], ["b", "c"], kind=Again), 3)
    found: dict[str, str] = {}
    for result, _, _ in results:
        found |= verdicts(result.outcomes)
        if {"b", "c"} <= found.keys():
            lost.set()
    assert found == {"first": "passed", "later": "passed", "b": "crashed", "c": "crashed"}
    assert len(played.started) == 3 + BARREN


# ------------------------------------------------------------------------------------------------------------ one process


@pytest.fixture
def one(played: System) -> Iterator[_WorkProcess]:
    def silent(process: Played) -> None:
        process.killed.wait()

    played(silent)
    made = _WorkProcess(work())
    yield made
    made.kill()


def test_a_process_is_late_when_its_time_has_passed(one: _WorkProcess, played: System) -> None:
    begin = played.clock.now
    assert one.until == begin + LOADING and one.is_in_time()
    played.clock.now = one.until
    assert not one.is_in_time()
    one.give(Bundle("of", ("a",)))
    assert one.until == played.clock.now + T and one.answered == 0
    played.clock.now += 3
    one.note_progress()
    assert one.until == played.clock.now + T


def test_what_was_asked_counts_where_the_driver_is_there_and_it_was_asked_later(
    one: _WorkProcess, played: System
) -> None:
    played.clock.now = 1e9
    one._board = SimpleNamespace(asked_ns=10**18, read=lambda: (0, "run"))  # type: ignore[assignment]
    one._until = 1e9 + 3.5
    assert one.is_in_time() and one.until == 1e9 + 3.5  # it loads
    one.ready = True
    assert one.is_in_time() and one.until == 1e9 + T
    one._until = 1e9 + 2 * T
    assert one.is_in_time() and one.until == 1e9 + 2 * T


class WithOwnWork(Playing):
    def is_own(self, stage: str) -> bool:
        return stage == "draw"


def standing(process: Played) -> None:
    """Each item stands still at the stage that it names."""
    process.loads()
    for task in process.tasks():
        (item,) = task.items
        process.board.write(0, item)
        process.hangs()


@pytest.mark.parametrize(("stage", "verdict", "seconds"), [("draw", "skipped", OWN), ("run", "hung", T)])
def test_work_of_the_suites_own_has_more_time_and_is_not_held_against_the_driver(
    stage: str, verdict: str, seconds: float, played: System
) -> None:
    played(standing)
    begin = played.clock.now
    ((_, found, reason, nanoseconds, _),) = came(work([stage], kind=WithOwnWork))
    assert (found, nanoseconds) == (verdict, seconds * 1e9)
    assert ("the suite's work (draw) has not ended" in reason) is (verdict == "skipped")
    assert seconds <= played.clock.now - begin < seconds + T


def test_the_pool_looks_again_within_the_drivers_time_as_the_suites_own_work_may_have_ended(played: System) -> None:
    played(standing)
    came(work(["draw"], kind=WithOwnWork))
    assert played.waits and max(played.waits[1:]) <= T * 1000 + 1


def test_an_item_is_in_hand_where_the_driver_is_asked_something_for_it(one: _WorkProcess) -> None:
    assert one.current_item is None and one.left() == []
    one._board.write(0, "run")
    assert one.current_item is None  # no task
    task = Bundle("of", ("a", "b", "c"))
    one.give(task)
    assert one.current_item is None and one.stage == ""
    for place, item in enumerate(task.items):
        one._board.write(place, "run")
        assert one.current_item is item and one.stage == "run"
    one._board.write(3, "close")
    assert one.current_item is None and one.stage == "close"
    assert one.left() == [task] and one.left(but="b") == [Bundle("of", ("a", "c"))]
    one.answered = 2
    assert one.left() == [Bundle("of", ("c",))] and one.left(but=task.items[2]) == []
    one.answered = 3
    assert one.left() == []


def test_a_killed_process_is_waited_for_with_its_copies(one: _WorkProcess, played: System) -> None:
    one.kill()
    (process,) = played.started
    assert process.waited == [None] and process.killed.is_set() and one.connection.closed
    assert played.groups == [(process.pid, signal.SIGKILL)]


def saying(process: Played, *texts: str) -> Any:
    """It has said more each time that one looks."""
    left = list(texts)
    return SimpleNamespace(last_words=lambda: left.pop(0) if len(left) > 1 else left[0])


def test_a_stack_is_what_a_process_says_when_it_is_told_to(one: _WorkProcess, played: System) -> None:
    (process,) = played.started
    assert one.stack() == 'File "/somewhere/driver.py", line 3, in inner'
    assert played.signals == [(process.pid, TELL)]
    played.children[process.pid] = [NO_PID + 77, NO_PID + 78]  # a driver in a process of its own
    played.signals.clear()
    one.stack()
    assert played.signals == [(NO_PID + 77, TELL), (NO_PID + 78, TELL)]


def test_a_stack_is_taken_when_all_of_it_has_come(one: _WorkProcess, played: System) -> None:
    (process,) = played.started
    whole = DUMP + FRAME.format(9, "outer")
    process.output = saying(process, "", "", DUMP, whole)
    assert one.stack().count("driver.py") == 2


def test_a_stack_is_that_of_now_and_not_of_a_crash_before(one: _WorkProcess, played: System) -> None:
    (process,) = played.started
    earlier = "Thread 0x1 (most recent call first):\n" + FRAME.format(1, "earlier")
    process.output = saying(process, earlier, earlier, earlier + DUMP)
    assert one.stack() == 'File "/somewhere/driver.py", line 3, in inner'


def test_a_process_that_says_nothing_has_no_stack_and_is_waited_for_no_longer(
    one: _WorkProcess, played: System
) -> None:
    (process,) = played.started
    process.output = saying(process, "hello")
    begin = played.clock.now
    played.clock.sleep = lambda seconds: setattr(played.clock, "now", played.clock.now + 1)
    assert one.stack() == ""
    assert played.clock.now - begin == TELLING


def test_children_are_those_that_a_process_started_and_that_have_not_ended() -> None:
    before = children_of(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert sorted(children_of(os.getpid())) == sorted([*before, child.pid])
        child.communicate()
    assert children_of(os.getpid()) == before
    assert children_of(NO_PID) == []
