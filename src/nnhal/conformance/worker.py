"""A process that runs vectors on a device: what the driver under test does to it costs one vector.

Its arguments are two descriptors and a process: a socket, to which `parallel` writes a `Selection` and then `Batch`s, and
from which it reads `Ready` and lists of an `Answer` for each item; a `Board` that both see; its parent.
"""

import ctypes
import faulthandler
import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

from nnhal.base import errors
from nnhal.base.errors import InvalidArgument, NnhalError, OperationFailed, told
from nnhal.conformance.selection import ANY, Batch, Selection
from nnhal.conformance.suite import STAGES, Outcome, run_vector
from nnhal.conformance.vectors import read_member
from nnhal.hal.device import Device, identity_of
from nnhal.hal.wrappers import WithOptions
from nnhal.ipc.client.process import Resilient
from nnhal.runtime import discovery, isolation

TOGETHER_NS = 20_000_000  # within which answers go together; what was not sent before a crash runs again
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Ready(NamedTuple):
    """The device is there: its name."""

    device: str


class Answer(NamedTuple):
    """One item's outcome, and how often an isolated driver's methods were called since the one before."""

    outcome: Outcome
    calls: Counter[str]


class Board:
    """A shared memory with the item in hand, by its place in the task, and what the driver is asked for it."""

    FORM = struct.Struct("@QQ")

    def __init__(self, fd: int) -> None:
        self._bytes = mmap.mmap(fd, self.FORM.size)

    def write(self, item: int, stage: str) -> None:
        """Take an item in hand, or go on with it."""
        self.FORM.pack_into(self._bytes, 0, item, STAGES.index(stage))

    def read(self) -> tuple[int, str]:
        """The item, and the stage: "" for none in hand."""
        item, stage = self.FORM.unpack_from(self._bytes)
        return item, STAGES[min(stage, len(STAGES) - 1)]


class Worker:
    """Runs what it is told."""

    def __init__(self, connection: Connection, board: Board) -> None:
        self._connection, self._board = connection, board
        self._socket = _file_of(connection)
        self._selection: Selection = connection.recv()
        loaded = [discovery.load_driver(driver).name for driver in self._selection.drivers]
        self._name = self._selection.device or (loaded[0] if loaded else discovery.CPU)
        self._device = self._made()
        self._process = os.getpid()

    def _made(self) -> Device:
        """The device under test; one in a process of its own is a fresh one, which knows of no deaths."""
        chosen = self._selection
        options = {**chosen.options.get(ANY, {}), **chosen.options.get(self._name, {})}
        device = isolation.at_level(self._name, chosen.level, own_process=chosen.isolate, options=options)
        self._calls = _calls(device)
        return device

    def serve(self) -> None:
        """Until there is nothing more to do."""
        self._connection.send(Ready(identity_of(self._device).name))
        while True:
            try:
                task: Batch = self._connection.recv()
            except EOFError:
                return
            self._run(task)

    def _run(self, task: Batch) -> None:
        wanted = {item.id for item in task.items}
        there = {vector.id: vector for vector in read_member(task.archive, task.member) if vector.id in wanted}
        answers: list[Answer] = []
        sent = time.monotonic_ns()
        for place, item in enumerate(task.items):
            if item.id not in there:
                raise InvalidArgument(f"vectors: {item.id} is in index.json, must be in {task.archive.name} too")
            start = time.monotonic_ns()
            if answers and start - sent > TOGETHER_NS:
                self._connection.send(answers)
                answers, sent = [], start
            at = partial(self._board.write, place)
            outcome = run_vector(there[item.id], self._device, item.variant, self._selection.way, at)
            if os.getpid() != self._process:
                os._exit(0)  # a copy that the driver forked: the vectors and the connection are its parent's
            if _file_of(self._connection) != self._socket:
                sys.stderr.write("the driver closed a descriptor that is the suite's own: the one to its results\n")
                sys.stderr.flush()
                os._exit(1)  # with the vector in hand, which it costs
            at("")
            outcome = replace(outcome, primary=item.primary, nanoseconds=time.monotonic_ns() - start)
            if not self._selection.outputs and outcome.outputs:
                outcome = replace(outcome, outputs=())
            answers.append(Answer(outcome, self._called()))
            process = _process_of(self._device)
            if process is not None and (outcome.verdict == "crashed" or process.health.total):
                self._connection.send(answers)
                answers = []
                self._device.close()
                self._device = self._made()
        self._connection.send(answers)

    def _called(self) -> Counter[str]:
        now = _calls(self._device)
        new, self._calls = now - self._calls, now
        return new


def _file_of(connection: Connection) -> tuple[int, int] | None:
    try:
        found = os.fstat(connection.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _process_of(device: Device) -> Resilient | None:
    """The device in a process of its own, None for any other."""
    inner = device.inner if isinstance(device, WithOptions) else device
    return inner if isinstance(inner, Resilient) else None


def _calls(device: Device) -> Counter[str]:
    process = _process_of(device)
    return Counter() if process is None else Counter(process.calls)


def main() -> None:
    """Serve; vectors run on a thread of their own, where an exit that a driver asks for is not that of the process."""
    faulthandler.enable()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # whatever the driver does then
    if os.getppid() != int(sys.argv[3]):  # it had ended before
        os._exit(1)
    connection, board = Connection(int(sys.argv[1])), Board(int(sys.argv[2]))

    def serve() -> None:
        try:
            worker.serve()
        except (BrokenPipeError, ConnectionResetError):
            pass
        except NnhalError as error:
            connection.send(_told(error))

    try:
        worker = Worker(connection, board)
    except Exception as error:
        connection.send(_told(error))
        return
    thread = threading.Thread(target=serve, name="nnhal-vectors", daemon=True)
    thread.start()
    thread.join()
    sys.stdout.flush()
    os._exit(0)  # whatever the driver still does, nobody waits for it


def _told(error: Exception) -> NnhalError:
    """An error that the other side knows the class of."""
    known = isinstance(error, NnhalError) and type(error).__module__ == errors.__name__
    return error if known else OperationFailed(told(error))  # type: ignore[return-value]
