"""Runs work in several processes, and continues whatever the driver under test does to one of them.

The work has items: test vectors (`parallel`), checks of the contract (`validate.run`) or cases of a suite
(`suites.run`). If an item's process ends, the item has crashed. If the driver does not answer in time, the item has
hung; nnhal ends its process and reports the driver's stack. Both cost only that item, and a new process continues
with the next one. An earlier item of the process may be the cause, so an item may have a second try, alone and first
in a new process.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, NnhalError, ResourceExhausted
from nnhal.base.records import Record
from nnhal.base.stacks import DUMPED, TELL, dumped_frames
from nnhal.base.threads import on_interrupt
from nnhal.conformance.device_under_test import Bundle, Subject
from nnhal.conformance.verdict import BAD
from nnhal.conformance.worker import Answer, Ready, StageBoard
from nnhal.ipc.client.output import DriverProcess
from nnhal.runtime import discovery

LOADING = 60.0  # the least number of seconds for a driver to load
_WORKER = "from {} import main; main()"  # with -m, its classes would be those of __main__
BARREN = 3  # processes that end one after another before an item has begun: then the driver no longer loads
ENDING = 2.0  # seconds for a process that has finished
LATELY = 500  # characters of a process's last output, to find new text
OWN = 60.0  # the least number of seconds for one action of the suite: drawing a call, a result of the reference
TELLING = 2.0  # seconds for a hanging process to report its stack


class TaskResult(Record, frozen=True):
    """New outcomes, their number of calls of each method of an isolated driver, and the name of the device."""

    outcomes: list[Any]
    calls: Counter[str]
    device: str


class Work(ABC):
    """The items to run: a subject, bundles of items, and their outcomes.

    module: its `main` runs the items in a process.
    """

    module: str

    def __init__(self, subject: Subject, bundles: Iterable[Bundle]) -> None:
        self.subject = subject
        self.bundles = deque(bundles)

    @abstractmethod
    def lost(self, item: Any, verdict: str, reason: str, nanoseconds: int, stack: str, type: str) -> Any:
        """Return the outcome of an item that ended its process: "crashed" or "hung".

        stack: of the driver, if known. type: the operand type under test, "" if there was none.
        """

    idle = ""  # the stage at which the driver has no call

    def is_own(self, stage: str) -> bool:
        """Whether the suite itself works at a stage. It has `OWN` seconds then; an item that takes longer is skipped."""
        return False

    def tries_again(self, verdict: str, stage: str) -> bool:
        """Whether an item that ended a process in which others had run is run again, first in a new one.

        The driver's earlier work may be the cause: of a crash at any time, or of a hang while it had no call.
        """
        return verdict == "crashed" or stage == self.idle or self.is_own(stage)

    @abstractmethod
    def late(self, first: Any, second: Any, before: Sequence[Any]) -> Any:
        """Return the outcome of an item that ended a process in which these items had run, but did not end a new one.

        first, second: its outcomes there and here.
        """

    def after(self, outcome: Any) -> tuple[Sequence[Bundle], Sequence[Any]]:
        """Return bundles to run next because of an outcome, and outcomes that follow from it without a run."""
        return (), ()

    def expected(self) -> int:
        """Return how many items and outcomes `after` will probably still return."""
        return 0


def run_all(work: Work, jobs: int) -> Generator[tuple[TaskResult, int, int], None, None]:
    """Yield outcomes as they arrive, with the number of those so far, and of all known and expected items.

    Raises if the driver does not load.
    """
    run = _Run(work, jobs)
    try:
        yield from run.results()
        run.end()
    finally:
        with on_interrupt(signal.SIG_IGN):  # a second interrupt changes nothing: everything is ending already
            run.kill()


class _WorkProcess:
    """One process, and its bundle."""

    def __init__(self, work: Work) -> None:
        subject = work.subject
        self._work, self._timeout = work, subject.timeout
        self.task: Bundle | None = None
        self.answered: int  # the number of answered items of its bundle
        self.ran: list[Any] = []  # items of the driver's process that have answers
        self.ready = False
        self._until = time.monotonic() + max(LOADING, subject.timeout)
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("nnhal-board")
        with theirs:
            try:
                os.ftruncate(memory, StageBoard.FORM.size)
                self._board = StageBoard(memory)
                self.connection = Connection(ours.detach())
                ends = theirs.fileno(), memory
                command = [sys.executable, "-P", "-c", _WORKER.format(work.module), *map(str, (*ends, os.getpid()))]
                self.process = DriverProcess(subject.named, command, ends)
            except OSError as error:
                raise ResourceExhausted(f"cannot start a process: {error.strerror}") from None
            finally:
                os.close(memory)
        with contextlib.suppress(OSError):  # it ended at once, which is detected soon
            self.connection.send(subject)

    @property
    def stage(self) -> str:
        """Return the driver's current call for the current item; "" if there is none."""
        return self._board.read()[1]

    def give(self, task: Bundle) -> None:
        """Let it run a bundle."""
        self.task, self.answered = task, 0
        self._board.write(0, "")
        self.note_progress()
        with contextlib.suppress(OSError):
            self.connection.send(task)

    @property
    def type(self) -> str:
        """Return the operand type of the driver's current call; "" if there is none."""
        return self._board.type

    def note_progress(self) -> None:
        """Note a sign of life."""
        self._until = time.monotonic() + self._timeout

    def note_idle(self) -> None:
        """Note that it has nothing to do."""
        self._until = float("inf")

    @property
    def allowed(self) -> float:
        """Return the seconds that it may take for its current action."""
        if not self.ready:
            return max(LOADING, self._timeout)
        return max(OWN, self._timeout) if self._work.is_own(self.stage) else self._timeout

    @property
    def until(self) -> float:
        """Return its deadline; each later call of the driver has a new one."""
        return max(self._until, self._board.asked_ns / 1e9 + self.allowed) if self.ready else self._until

    def is_in_time(self) -> bool:
        """Whether it is in time."""
        return time.monotonic() < self.until

    @property
    def current_item(self) -> Any:
        """Return the item of the driver's current call; None if there is none."""
        item, stage = self._board.read()
        return self.task.items[item] if stage and self.task is not None and item < len(self.task.items) else None

    def before(self, item: Any) -> list[Any]:
        """Return the items that ran before an item in the driver's process, and those that will run again."""
        items = () if self.task is None else self.task.items
        return [*self.ran, *items[self.answered : items.index(item)]]

    def left(self, *, but: Any = None) -> list[Bundle]:
        """Return the unanswered rest of its bundle."""
        items = () if self.task is None else self.task.items[self.answered :]
        kept = tuple(item for item in items if item is not but)
        return [self.task._replace(items=kept)] if self.task is not None and kept else []

    def exit_description(self) -> str:
        """Return how it ended; end it now if it only closed its connection."""
        fate = self.process.exit_description()
        if not fate:
            self.process.kill()
            fate = "the driver process closed its connection to the suite, and was ended"
        return fate

    def stack(self) -> str:
        """Return the driver's frames at which it hangs, "" if they are unknown."""
        said = self.process.output.last_words()[-LATELY:]
        for pid in children_of(self.process.pid) or [self.process.pid]:
            with contextlib.suppress(OSError):
                os.kill(pid, TELL)
        end, words = time.monotonic() + TELLING, ""
        while time.monotonic() < end:
            time.sleep(0.1)  # another process writes, and its end is not reported
            before, words = words, self.process.output.last_words()
            new = words.rpartition(said)[2] if said else words  # an earlier crash may have written a stack too
            if DUMPED in new and words == before:  # it is complete
                return dumped_frames(new)
        return ""

    def kill(self) -> None:
        """End it and the driver's process."""
        with contextlib.suppress(OSError):  # copies that the driver forked, too
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.connection.close()


class _FirstTry(NamedTuple):
    """The first outcome of an item that is tried again, and the items that ran before it."""

    answer: Answer
    before: Sequence[Any]


class _Run:
    """Workers, the remaining work, and its outcomes."""

    def __init__(self, work: Work, jobs: int) -> None:
        self._work, self._subject = work, work.subject
        self._tasks = work.bundles
        self._total, self._done = sum(len(task.items) for task in self._tasks), 0
        self._jobs = jobs
        self._workers: dict[int, _WorkProcess] = {}
        self._idle: list[_WorkProcess] = []
        self._poll = select.poll()
        self._device = self._subject.device
        self._barren = 0  # processes one after another that ran no item
        self._came: list[Answer] = []
        self._again: deque[Bundle] = deque()  # one item each, for new processes
        self._first: dict[Any, _FirstTry] = {}  # first tries, by item

    def results(self) -> Iterator[tuple[TaskResult, int, int]]:
        """Yield the results, as `run_all`."""
        device = self._device  # as the caller knows it
        while self._done < self._total:
            while self._tasks and self._idle:
                self._next(self._idle.pop())
            loading = sum(not worker.ready for worker in self._workers.values())  # each takes one bundle
            needed = len(self._tasks) + len(self._again) - loading
            for _ in range(min(self._jobs - len(self._workers), needed)):
                self._start()
            first = min(worker.until for worker in self._workers.values())
            wait = min(first - time.monotonic(), self._subject.timeout)  # its action may change meanwhile
            for fd, _ in self._poll.poll(max(0.0, wait) * 1000 + 1):
                self._hear(self._workers[fd])
            for worker in [each for each in self._workers.values() if not each.is_in_time()]:
                self._late(worker)
            if self._came or self._device != device:
                device = self._device
                came, self._came = self._came, []
                outcomes = [each for answer in came for each in self._with_what_follows(answer.outcome)]
                self._done += len(outcomes)
                calls = sum((answer.calls for answer in came), Counter[str]())
                yield TaskResult(outcomes, calls, self._device), self._done, self._total + self._work.expected()

    def _with_what_follows(self, outcome: Any) -> list[Any]:
        bundles, known = self._work.after(outcome)
        self._tasks.extendleft(reversed(bundles))
        self._total += sum(len(task.items) for task in bundles) + len(known)
        return [outcome, *known]

    def _start(self) -> None:
        worker = _WorkProcess(self._work)
        self._workers[worker.connection.fileno()] = worker
        self._poll.register(worker.connection.fileno(), select.POLLIN)

    def _hear(self, worker: _WorkProcess) -> None:
        try:
            message: object = worker.connection.recv()
        except Exception:  # the end, or an invalid message: the driver may have written there
            self._ended(worker, worker.exit_description())
            return
        if isinstance(message, NnhalError):
            self._ended(worker, message)
        elif isinstance(message, Ready):
            self._device, worker.ready = message.device, True
            self._next(worker)
        elif isinstance(message, list) and worker.task is not None:
            self._barren = 0
            worker.note_progress()
            doubted = [self._answered(worker, worker.task, answer) for answer in message]
            if any(doubted):  # a second try needs a new process
                self._forget(worker)
                worker.kill()
                self._tasks.extendleft(worker.left())
            elif worker.answered == len(worker.task.items):
                self._next(worker)

    def _answered(self, worker: _WorkProcess, task: Bundle, answer: Answer) -> bool:
        """Process an answer; return whether its item ended the driver's process and is tried again."""
        item = task.items[worker.answered]
        doubted = answer.died and answer.outcome.verdict == "crashed" and self._doubted(worker, item, answer, "")
        if not doubted:
            self._came.append(self._settled(item, answer))
        worker.answered += 1
        worker.ran.append(item)
        if answer.died:
            worker.ran.clear()
        return doubted

    def _next(self, worker: _WorkProcess) -> None:
        worker.task = None
        if self._again and not worker.ran:
            worker.give(self._again.popleft())
        elif self._tasks:
            worker.give(self._tasks.popleft())
        else:
            worker.note_idle()
            self._idle.append(worker)

    def _late(self, worker: _WorkProcess) -> None:
        """End a worker that gave no answer in time."""
        seconds, stage = worker.allowed, worker.stage
        self._forget(worker)
        item = worker.current_item
        stack = worker.stack()
        at = f", at {stack}" if stack else ""
        worker.kill()
        if item is not None and self._work.is_own(stage):
            why = f"{self._where()}: the suite's work ({stage}) has not ended within {seconds:g} s{at}"
            self._charge(worker, "skipped", why, stack)
        elif item is not None:
            why = f"{self._where()}: {stage}() has not ended within {seconds:g} s{at}"
            self._charge(worker, "hung", why, stack)
        else:
            self._spent(worker, DeviceUnavailable(f"{self._where()}: has not loaded within {seconds:g} s{at}"))

    def _ended(self, worker: _WorkProcess, why: str | NnhalError) -> None:
        """Process the end of a worker, or its report that it cannot continue."""
        self._forget(worker)
        worker.kill()
        if isinstance(why, NnhalError):
            self._spent(worker, why)
        elif worker.current_item is not None:
            self._charge(worker, "crashed", f"{self._where()}: {worker.stage}(): {why}", dumped_frames(why))
        else:
            what = "ended before its first call" if worker.ready else "does not load"
            self._spent(worker, DeviceUnavailable(f"{self._where()}: {what}: {why}"))

    def _charge(self, worker: _WorkProcess, verdict: str, reason: str, stack: str) -> None:
        """Give the current item its verdict; the others run in another process."""
        item = worker.current_item
        assert item is not None
        taken = 0 if verdict == "crashed" else int(worker.allowed * 1e9)
        answer = Answer(self._work.lost(item, verdict, reason, taken, stack, worker.type), Counter())
        if not self._doubted(worker, item, answer, worker.stage):
            self._came.append(self._settled(item, answer))
        self._barren = 0
        self._tasks.extendleft(worker.left(but=item))

    def _doubted(self, worker: _WorkProcess, item: Any, answer: Answer, stage: str) -> bool:
        """Whether an item that ended the driver's process is tried again, because others had run there before."""
        before = worker.before(item)
        again = self._work.tries_again(answer.outcome.verdict, stage)
        if worker.task is None or not before or item in self._first or not again:
            return False
        self._first[item] = _FirstTry(answer, before)
        self._again.append(worker.task._replace(items=(item,)))
        return True

    def _settled(self, item: Any, answer: Answer) -> Answer:
        """Return an item's answer, from both tries if there were two: a fault in a new process too is the item's."""
        first = self._first.pop(item, None)
        if first is None or answer.outcome.verdict in BAD:
            return answer
        return answer._replace(outcome=self._work.late(first.answer.outcome, answer.outcome, first.before))

    def _spent(self, worker: _WorkProcess, error: NnhalError) -> None:
        """Process the end of a worker without a current item.

        If the driver never loaded, raise an error; if it no longer loads, the remaining items crashed.
        """
        self._tasks.extendleft(worker.left())
        self._barren += 1
        if isinstance(error, InvalidArgument) or not (worker.ready or self._done or self._came):
            raise error
        if self._barren < BARREN:
            return
        reason = f"{self._where()}: no longer loads: {error}"
        for item in (item for task in (*self._tasks, *self._again) for item in task.items):
            first = self._first.pop(item, None)
            lost = Answer(self._work.lost(item, "crashed", reason, 0, "", ""), Counter())
            self._came.append(lost if first is None else first.answer)
        self._tasks.clear()
        self._again.clear()

    def _where(self) -> str:
        return f"device {self._device or (self._subject.drivers or (discovery.CPU,))[0]}"

    def _forget(self, worker: _WorkProcess) -> None:
        fd = worker.connection.fileno()
        self._poll.unregister(fd)
        del self._workers[fd]
        if worker in self._idle:
            self._idle.remove(worker)

    def end(self) -> None:
        """Give the finished processes a moment to end."""
        for worker in self._workers.values():
            worker.connection.close()
        end = time.monotonic() + ENDING
        for worker in self._workers.values():
            with contextlib.suppress(Exception):  # a TimeoutExpired: it is then killed
                worker.process.wait(max(0.0, end - time.monotonic()))

    def kill(self) -> None:
        """End all started processes."""
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.kill()


def children_of(pid: int) -> list[int]:
    """Return the running child processes of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                found += map(int, children.read().split())
    return found
