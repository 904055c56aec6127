"""Runs work over several processes, and goes on whatever the driver under test does to one of them.

The work is of items: published vectors (`parallel`) or checks of a driver (`validate.run`). An item whose process ends has
crashed; one at which the driver gives no answer in time has hung, and its process is ended, with the stack that the driver
was at. Both cost that item, and a fresh process goes on with the next. What ran in the process before may be at fault, so
an item may have a second try, alone and first in a fresh one.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, NnhalError, ResourceExhausted
from nnhal.base.records import Record
from nnhal.base.stacks import DUMPED, TELL, dumped
from nnhal.conformance.subject import Bundle, Subject
from nnhal.conformance.suite import BAD, ended_in
from nnhal.conformance.worker import Answer, Board, Ready
from nnhal.ipc.client.output import DriverProcess
from nnhal.runtime import discovery

LOADING = 60.0  # seconds at least that a driver may take to load
_WORKER = "from {} import main; main()"  # by -m, its classes would be those of __main__
BARREN = 3  # processes in a row that end before a vector has begun: the driver does not come back
ENDING = 2.0  # seconds for a process with nothing more to do
LATELY = 500  # characters of what a process said last, which tell what is new
OWN = (
    60.0  # seconds at least that one step of the suite's own may take: a call that is drawn, a result of the reference
)
TELLING = 2.0  # seconds for one that hangs to say where


class TaskResult(Record, frozen=True):
    """Outcomes that have come, how often they called each method of an isolated driver, and the name of the device."""

    outcomes: list[Any]
    calls: Counter[str]
    device: str


class Work(ABC):
    """What is run: a subject, bundles of items, and what their outcomes are.

    module: whose `main` runs the items in a process.
    """

    module: str

    def __init__(self, subject: Subject, bundles: Iterable[Bundle]) -> None:
        self.subject = subject
        self.bundles = deque(bundles)

    @abstractmethod
    def lost(self, item: Any, verdict: str, reason: str, nanoseconds: int, stack: str) -> Any:
        """The outcome of an item that cost its process: "crashed" or "hung". stack: where the driver was, if known."""

    idle = ""  # the stage at which the driver is not asked anything

    def is_own(self, stage: str) -> bool:
        """Whether the suite itself is at work at a stage. It has `OWN` seconds then; an item that takes more is skipped."""
        return False

    def tries_again(self, verdict: str, stage: str) -> bool:
        """Whether an item that cost a process in which others had run before is run once more, first in a fresh one.

        What a driver left running may have done it: a crash at any time, or a hang at which it was asked nothing.
        """
        return verdict == "crashed" or stage == self.idle or self.is_own(stage)

    @abstractmethod
    def late(self, first: Any, second: Any, before: Sequence[Any]) -> Any:
        """The outcome of an item that cost a process in which these items had run before, and did not cost a fresh one.

        first, second: its outcomes there and here.
        """

    def after(self, outcome: Any) -> tuple[Sequence[Bundle], Sequence[Any]]:
        """What is to be run next because of an outcome, and outcomes that follow from it without being run."""
        return (), ()


def run_all(work: Work, jobs: int) -> Generator[tuple[TaskResult, int, int], None, None]:
    """Outcomes as they come, with the number of those that have, and of all that are known of. Raises where the driver does
    not load.
    """
    run = _Run(work, jobs)
    try:
        yield from run.results()
        run.end()
    finally:
        with _on_interrupt(signal.SIG_IGN):  # a second one changes nothing: what it would end, ends
            run.kill()


class _WorkProcess:
    """One process, and its task."""

    def __init__(self, work: Work) -> None:
        subject = work.subject
        self._work, self._timeout = work, subject.timeout
        self.task: Bundle | None = None
        self.answered: int  # of its items
        self.ran: list[Any] = []  # items, in the driver's process, as far as they have answers
        self.ready = False
        self._until = time.monotonic() + max(LOADING, subject.timeout)
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("nnhal-board")
        with theirs:
            try:
                os.ftruncate(memory, Board.FORM.size)
                self._board = Board(memory)
                self.connection = Connection(ours.detach())
                ends = theirs.fileno(), memory
                command = [sys.executable, "-P", "-c", _WORKER.format(work.module), *map(str, (*ends, os.getpid()))]
                self.process = DriverProcess(subject.named, command, ends)
            except OSError as error:
                raise ResourceExhausted(f"a process to run in cannot be started: {error.strerror}") from None
            finally:
                os.close(memory)
        with contextlib.suppress(OSError):  # it ended at once: that is found soon
            self.connection.send(subject)

    @property
    def stage(self) -> str:
        """What the driver is asked for the vector in hand; "" where there is none."""
        return self._board.read()[1]

    def give(self, task: Bundle) -> None:
        """Have it run a task."""
        self.task, self.answered = task, 0
        self._board.write(0, "")
        self.went_on()
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def went_on(self) -> None:
        """It shows that it lives."""
        self._until = time.monotonic() + self._timeout

    def rests(self) -> None:
        """It has nothing to do."""
        self._until = float("inf")

    @property
    def allowed(self) -> float:
        """Seconds that it may take for what it does now."""
        if not self.ready:
            return max(LOADING, self._timeout)
        return max(OWN, self._timeout) if self._work.is_own(self.stage) else self._timeout

    @property
    def until(self) -> float:
        """When it is late; what it has asked the driver since has a time of its own."""
        return max(self._until, self._board.asked_ns / 1e9 + self.allowed) if self.ready else self._until

    def goes_on(self) -> bool:
        """Whether it is not late."""
        return time.monotonic() < self.until

    @property
    def in_hand(self) -> Any:
        """The item that the driver is asked about; None where there is none."""
        item, stage = self._board.read()
        return self.task.items[item] if stage and self.task is not None and item < len(self.task.items) else None

    def before(self, item: Any) -> list[Any]:
        """What ran before an item in the driver's process: what has answers, and what will run again."""
        items = () if self.task is None else self.task.items
        return [*self.ran, *items[self.answered : items.index(item)]]

    def left(self, *, but: Any = None) -> list[Bundle]:
        """What of its task has no answer yet, as a task."""
        items = () if self.task is None else self.task.items[self.answered :]
        kept = tuple(item for item in items if item is not but)
        return [self.task._replace(items=kept)] if self.task is not None and kept else []

    def fate(self) -> str:
        """How it ended; one that only stopped talking is ended now."""
        fate = self.process.fate()
        if not fate:
            self.process.kill()
            fate = "the driver process closed the connection that the suite has to it, and was ended"
        return fate

    def stack(self) -> str:
        """Where the driver is that does not come back: its own frames, "" where that cannot be had."""
        said = self.process.output.last_words()[-LATELY:]
        for pid in children_of(self.process.pid) or [self.process.pid]:
            with contextlib.suppress(OSError):
                os.kill(pid, TELL)
        end, words = time.monotonic() + TELLING, ""
        while time.monotonic() < end:
            time.sleep(0.1)  # another process writes, and nothing tells when it has done
            before, words = words, self.process.output.last_words()
            new = words.rpartition(said)[2] if said else words  # an earlier crash may have dumped too
            if DUMPED in new and words == before:  # all of it has come
                return dumped(new)
        return ""

    def kill(self) -> None:
        """End it, and the driver's own process with it."""
        with contextlib.suppress(OSError):  # copies that the driver made of it, too
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.connection.close()


class _FirstTry(NamedTuple):
    """How an item went that is tried again, and what had run before."""

    answer: Answer
    before: Sequence[Any]


class _Run:
    """Workers, what is left to do, and what has come."""

    def __init__(self, work: Work, jobs: int) -> None:
        self._work, self._subject = work, work.subject
        self._tasks = work.bundles
        self._total, self._done = sum(len(task.items) for task in self._tasks), 0
        self._jobs = jobs
        self._workers: dict[int, _WorkProcess] = {}
        self._idle: list[_WorkProcess] = []
        self._poll = select.poll()
        self._device = self._subject.device
        self._barren = 0  # processes in a row that ran nothing
        self._came: list[Answer] = []
        self._again: deque[Bundle] = deque()  # of an item each, for fresh processes
        self._first: dict[Any, _FirstTry] = {}  # of what is tried again, by item

    def results(self) -> Iterator[tuple[TaskResult, int, int]]:
        """As `run_all`."""
        while self._done < self._total:
            while self._tasks and self._idle:
                self._next(self._idle.pop())
            loading = sum(not worker.ready for worker in self._workers.values())  # each takes one
            needed = len(self._tasks) + len(self._again) - loading
            for _ in range(min(self._jobs - len(self._workers), needed)):
                self._start()
            first = min(worker.until for worker in self._workers.values())
            wait = min(first - time.monotonic(), self._subject.timeout)  # what it does may change meanwhile
            for fd, _ in self._poll.poll(max(0.0, wait) * 1000 + 1):
                self._hear(self._workers[fd])
            for worker in [each for each in self._workers.values() if not each.goes_on()]:
                self._late(worker)
            if self._came:
                came, self._came = self._came, []
                outcomes = [each for answer in came for each in self._with_what_follows(answer.outcome)]
                self._done += len(outcomes)
                calls = sum((answer.calls for answer in came), Counter[str]())
                yield TaskResult(outcomes, calls, self._device), self._done, self._total

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
        except Exception:  # the end, or what is no message: the driver may have written there
            self._ended(worker, worker.fate())
            return
        if isinstance(message, NnhalError):
            self._ended(worker, message)
        elif isinstance(message, Ready):
            self._device, worker.ready = message.device, True
            self._next(worker)
        elif isinstance(message, list) and worker.task is not None:
            self._barren = 0
            worker.went_on()
            doubted = [self._answered(worker, worker.task, answer) for answer in message]
            if any(doubted):  # a second try takes a fresh process
                self._forget(worker)
                worker.kill()
                self._tasks.extendleft(worker.left())
            elif worker.answered == len(worker.task.items):
                self._next(worker)

    def _answered(self, worker: _WorkProcess, task: Bundle, answer: Answer) -> bool:
        """Take an answer; whether its item ended the driver's own process, and is to be tried again."""
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
            worker.rests()
            self._idle.append(worker)

    def _late(self, worker: _WorkProcess) -> None:
        """A worker that gave no answer in time."""
        seconds, stage = worker.allowed, worker.stage
        self._forget(worker)
        item = worker.in_hand
        stack = worker.stack()
        at = f", at {stack}" if stack else ""
        worker.kill()
        if item is not None and self._work.is_own(stage):
            why = f"{self._where()}: the suite's own work ({stage}) has not ended after {seconds:g} s{at}"
            self._charge(worker, "skipped", why, stack)
        elif item is not None:
            why = f"{self._where()}: {stage}() has not ended after {seconds:g} s{at}"
            self._charge(worker, "hung", why, stack)
        else:
            self._spent(worker, DeviceUnavailable(f"{self._where()}: has not loaded after {seconds:g} s{at}"))

    def _ended(self, worker: _WorkProcess, why: str | NnhalError) -> None:
        """A worker that ended, by itself or not, or says that it cannot go on."""
        self._forget(worker)
        worker.kill()
        if isinstance(why, NnhalError):
            self._spent(worker, why)
        elif worker.in_hand is not None:
            self._charge(worker, "crashed", ended_in(self._where(), worker.stage, why), dumped(why))
        else:
            what = "ended before it was asked anything" if worker.ready else "does not load"
            self._spent(worker, DeviceUnavailable(f"{self._where()}: {what}: {why}"))

    def _charge(self, worker: _WorkProcess, verdict: str, reason: str, stack: str) -> None:
        """The item in hand is what it cost; the others run in another process."""
        item = worker.in_hand
        assert item is not None
        taken = 0 if verdict == "crashed" else int(worker.allowed * 1e9)
        answer = Answer(self._work.lost(item, verdict, reason, taken, stack), Counter())
        if not self._doubted(worker, item, answer, worker.stage):
            self._came.append(self._settled(item, answer))
        self._barren = 0
        self._tasks.extendleft(worker.left(but=item))

    def _doubted(self, worker: _WorkProcess, item: Any, answer: Answer, stage: str) -> bool:
        """Whether an item that cost the driver's process is tried again, as others had run there before."""
        before = worker.before(item)
        again = self._work.tries_again(answer.outcome.verdict, stage)
        if worker.task is None or not before or item in self._first or not again:
            return False
        self._first[item] = _FirstTry(answer, before)
        self._again.append(worker.task._replace(items=(item,)))
        return True

    def _settled(self, item: Any, answer: Answer) -> Answer:
        """An item's answer, after its second try out of both: what is broken in a fresh process too is the item's own."""
        first = self._first.pop(item, None)
        if first is None or answer.outcome.verdict in BAD:
            return answer
        return answer._replace(outcome=self._work.late(first.answer.outcome, answer.outcome, first.before))

    def _spent(self, worker: _WorkProcess, error: NnhalError) -> None:
        """No item was in hand: an error where the driver never loaded; where it no longer does, what is left crashed."""
        self._tasks.extendleft(worker.left())
        self._barren += 1
        if isinstance(error, InvalidArgument) or not (worker.ready or self._done or self._came):
            raise error
        if self._barren < BARREN:
            return
        reason = f"{self._where()}: does not come back: {error}"
        for item in (item for task in (*self._tasks, *self._again) for item in task.items):
            first = self._first.pop(item, None)
            lost = Answer(self._work.lost(item, "crashed", reason, 0, ""), Counter())
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
        """All is done: let the processes end by themselves, for a moment."""
        for worker in self._workers.values():
            worker.connection.close()
        end = time.monotonic() + ENDING
        for worker in self._workers.values():
            with contextlib.suppress(Exception):  # a TimeoutExpired: it is killed then
                worker.process.wait(max(0.0, end - time.monotonic()))

    def kill(self) -> None:
        """End all that was started."""
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.kill()


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                found += map(int, children.read().split())
    return found


@contextlib.contextmanager
def _on_interrupt(handler: Any) -> Iterator[None]:
    """What a Ctrl-C does meanwhile; the main thread alone hears it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
