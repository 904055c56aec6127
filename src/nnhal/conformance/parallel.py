"""Runs a selection of vectors over several processes, and goes on whatever the driver under test does to one of them.

A vector whose process ends has crashed, one that gives no answer in time has hung, and its process is ended; both cost that
vector, and a fresh process goes on with the next.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, NnhalError, ResourceExhausted
from nnhal.conformance.selection import Batch, Item, Selection, planned
from nnhal.conformance.suite import Outcome, ended_in
from nnhal.conformance.worker import Answer, Board, Ready
from nnhal.ipc.client.output import DriverProcess
from nnhal.runtime import discovery

LOADING = 60.0  # seconds at least that a driver may take to load
_WORKER = "from nnhal.conformance.worker import main; main()"  # by -m, its classes would be those of __main__
BARREN = 3  # processes in a row that end before a vector has begun: the driver does not come back
ENDING = 2.0  # seconds for a process with nothing more to do


@dataclass(frozen=True)
class TaskResult:
    """Outcomes that have come, how often they called each method of an isolated driver, and the name of the device."""

    outcomes: list[Outcome]
    calls: Counter[str]
    device: str


def run_all(selection: Selection, jobs: int) -> Generator[tuple[TaskResult, int, int], None, None]:
    """Outcomes as they come, with the number of those that have, and of all. Raises where the driver does not load."""
    run = _Run(selection, jobs)
    try:
        yield from run.results()
        run.end()
    finally:
        with _on_interrupt(signal.SIG_IGN):  # a second one changes nothing: what it would end, ends
            run.kill()


class _VectorProcess:
    """One process, and its task."""

    def __init__(self, selection: Selection) -> None:
        self._timeout = selection.timeout
        self.task: Batch | None = None
        self.answered = 0  # of its items
        self.ready = False
        self.until = time.monotonic() + max(LOADING, selection.timeout)
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("nnhal-board")
        with theirs:
            try:
                os.ftruncate(memory, Board.FORM.size)
                self._board = Board(memory)
                self.connection = Connection(ours.detach())
                ends = theirs.fileno(), memory
                command = [sys.executable, "-P", "-c", _WORKER, *map(str, (*ends, os.getpid()))]
                who = selection.drivers[0] if selection.drivers else selection.device or discovery.CPU
                self.process = DriverProcess(who, command, ends)
            except OSError as error:
                raise ResourceExhausted(f"a process to run vectors in cannot be started: {error.strerror}") from None
            finally:
                os.close(memory)
        with contextlib.suppress(OSError):  # it ended at once: that is found soon
            self.connection.send(selection)

    @property
    def stage(self) -> str:
        """What the driver is asked for the vector in hand; "" where there is none."""
        return self._board.read()[1]

    def give(self, task: Batch) -> None:
        """Have it run a task."""
        self.task, self.answered = task, 0
        self._board.write(0, "")
        self.went_on()
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def went_on(self) -> None:
        """It shows that it lives."""
        self.until = time.monotonic() + self._timeout

    @property
    def in_hand(self) -> Item | None:
        """The item that the driver is asked about."""
        item, stage = self._board.read()
        return self.task.items[item] if stage and self.task is not None and item < len(self.task.items) else None

    def left(self, *, but: Item | None = None) -> list[Batch]:
        """What of its task has no answer yet, as a task."""
        items = () if self.task is None else self.task.items[self.answered :]
        kept = tuple(item for item in items if item is not but)
        return [self.task._replace(items=kept)] if self.task is not None and kept else []

    def fate(self) -> str:
        """How it ended; one that only stopped talking is ended now."""
        fate = self.process.fate()
        if not fate:
            self.kill()
            fate = "the driver process closed the connection that the suite has to it, and was ended"
        return fate

    def kill(self) -> None:
        """End it, and the driver's own process with it."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


class _Run:
    """Workers, what is left to do, and what has come."""

    def __init__(self, selection: Selection, jobs: int) -> None:
        self._selection = selection
        self._tasks = deque(planned(selection))
        self._total, self._done = sum(len(task.items) for task in self._tasks), 0
        self._jobs = min(jobs, len(self._tasks))
        self._workers: dict[int, _VectorProcess] = {}
        self._poll = select.poll()
        self._device = selection.device
        self._barren = 0  # processes in a row that ran nothing
        self._came: list[Answer] = []

    def results(self) -> Iterator[tuple[TaskResult, int, int]]:
        """As `run_all`."""
        while self._done < self._total:
            while self._tasks and len(self._workers) < self._jobs:
                self._start()
            first = min(worker.until for worker in self._workers.values())
            ready = self._poll.poll(max(0.0, first - time.monotonic()) * 1000 + 1)
            for fd, _ in ready:
                self._hear(self._workers[fd])
            heard = {fd for fd, _ in ready}
            for worker in [w for fd, w in self._workers.items() if fd not in heard and time.monotonic() >= w.until]:
                self._late(worker)
            if self._came:
                came, self._came = self._came, []
                self._done += len(came)
                calls = sum((answer.calls for answer in came), Counter[str]())
                yield TaskResult([a.outcome for a in came], calls, self._device), self._done, self._total

    def _start(self) -> None:
        worker = _VectorProcess(self._selection)
        self._workers[worker.connection.fileno()] = worker
        self._poll.register(worker.connection.fileno(), select.POLLIN)

    def _hear(self, worker: _VectorProcess) -> None:
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
            worker.answered += len(message)
            worker.went_on()
            self._came += message
            if worker.answered == len(worker.task.items):
                self._next(worker)

    def _next(self, worker: _VectorProcess) -> None:
        worker.task = None
        if self._tasks:
            worker.give(self._tasks.popleft())
        else:
            worker.until = float("inf")

    def _late(self, worker: _VectorProcess) -> None:
        """A worker that gave no answer in time."""
        seconds = self._selection.timeout if worker.ready else max(LOADING, self._selection.timeout)
        self._forget(worker)
        worker.kill()
        if worker.in_hand is not None:
            self._charge(worker, "hung", f"{self._where()}: {worker.stage}() has not ended after {seconds:g} s")
        else:
            self._spent(worker, DeviceUnavailable(f"{self._where()}: has not loaded after {seconds:g} s"))

    def _ended(self, worker: _VectorProcess, why: str | NnhalError) -> None:
        """A worker that ended, by itself or not, or says that it cannot go on."""
        self._forget(worker)
        worker.kill()
        if isinstance(why, NnhalError):
            self._spent(worker, why)
        elif worker.in_hand is not None:
            self._charge(worker, "crashed", ended_in(self._where(), worker.stage, why))
        else:
            what = "ended before a vector began" if worker.ready else "does not load"
            self._spent(worker, DeviceUnavailable(f"{self._where()}: {what}: {why}"))

    def _charge(self, worker: _VectorProcess, verdict: str, reason: str) -> None:
        """The vector in hand is what it cost; the others run in another process."""
        item = worker.in_hand
        assert item is not None
        taken = int(self._selection.timeout * 1e9) if verdict == "hung" else 0
        self._came.append(Answer(Outcome(item.id, verdict, reason, item.variant, item.primary, taken), Counter()))
        self._barren = 0
        self._tasks.extendleft(worker.left(but=item))

    def _spent(self, worker: _VectorProcess, error: NnhalError) -> None:
        """No vector was in hand: an error where the driver never loaded; where it no longer does, what is left crashed."""
        self._tasks.extendleft(worker.left())
        self._barren += 1
        if isinstance(error, InvalidArgument) or not (worker.ready or self._done or self._came):
            raise error
        if self._barren < BARREN:
            return
        reason = f"{self._where()}: does not come back: {error}"
        for task in self._tasks:
            self._came += [
                Answer(Outcome(i.id, "crashed", reason, i.variant, i.primary), Counter()) for i in task.items
            ]
        self._tasks.clear()

    def _where(self) -> str:
        return f"device {self._device or (self._selection.drivers or (discovery.CPU,))[0]}"

    def _forget(self, worker: _VectorProcess) -> None:
        fd = worker.connection.fileno()
        self._poll.unregister(fd)
        del self._workers[fd]

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
