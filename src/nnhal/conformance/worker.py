"""A process that runs items on a device: any fault of the driver under test costs one item.

Its arguments are two descriptors and a process id. `pool` writes a `Subject` and then `Bundle`s to the socket, and
reads `Ready` and lists of an `Answer` for each item from it. Both see the `StageBoard`. The process is the parent.
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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from nnhal.base import errors
from nnhal.base.errors import InvalidArgument, NnhalError, OperationFailed, error_text
from nnhal.base.records import replace
from nnhal.base.stacks import TELL
from nnhal.conformance.device_under_test import ANY, Bundle
from nnhal.conformance.execution_paths import SYNC, by_callbacks, not_used
from nnhal.conformance.selection import Item
from nnhal.conformance.suite import Outcome, run_vector
from nnhal.conformance.vectors import Vector, read_member
from nnhal.hal.device import Device, identity_of
from nnhal.hal.wrappers import WithOptions
from nnhal.ipc.client.process import ReconnectingDevice
from nnhal.runtime import discovery, isolation

# answers within this time are sent together; after a crash, items with unsent answers run again
TOGETHER_NS = 20_000_000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Ready(NamedTuple):
    """The device is loaded; its name."""

    device: str


class Answer(NamedTuple):
    """One item's outcome, and the calls of each method of an isolated driver since the previous outcome.

    died: whether the driver's process ended meanwhile; the next item has a new one.
    """

    outcome: Any
    calls: Counter[str]
    died: bool = False


class StageBoard:
    """Shared memory with the position of the current item, the driver's current call, its start time and operand type."""

    FORM = struct.Struct("@QQ32s128s")

    def __init__(self, fd: int) -> None:
        self._bytes = mmap.mmap(fd, self.FORM.size)

    def write(self, item: int, stage: str, type: str = "") -> None:
        """Begin an item, or its next call. type: the operand type under test, if there is one."""
        self.FORM.pack_into(self._bytes, 0, item, time.monotonic_ns(), stage.encode(), type.encode())

    def read(self) -> tuple[int, str]:
        """Return the item, and the stage: "" if there is none."""
        item, _, stage, _ = self.FORM.unpack_from(self._bytes)
        return item, _text(stage)

    @property
    def type(self) -> str:
        """The operand type under test, "" if there is none."""
        return _text(self.FORM.unpack_from(self._bytes)[3])

    @property
    def asked_ns(self) -> int:
        """The start time, on the monotonic clock."""
        asked: int = self.FORM.unpack_from(self._bytes)[1]
        return asked


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("ascii", "replace")


class Worker(ABC):
    """Runs bundles on the device of its `subject`."""

    def __init__(self, connection: Connection, board: StageBoard) -> None:
        self._connection, self._board = connection, board
        self._socket = _file_of(connection)
        self._type = ""
        self.subject: Any = connection.recv()
        self.begin()
        loaded = [discovery.load_driver(driver).name for driver in self.subject.drivers]
        self._name = self.subject.device or (loaded[0] if loaded else discovery.CPU)
        self.device = self._made()
        self._process = os.getpid()

    def begin(self) -> None:
        """Prepare the process; called before the driver loads."""

    @abstractmethod
    def run(self, of: Any, items: Sequence[Any]) -> Iterator[Any]:
        """Yield outcomes of the items of a bundle, in order; calls `at` before each call of the driver."""

    def at(self, stage: str) -> None:
        """Announce the driver's next call for the current item."""
        self._board.write(self._place, stage, self._type)

    def tries(self, type: str) -> None:
        """Announce the operand type of the driver's next calls for the current item, "" for none."""
        self._type = type

    def _made(self) -> Device:
        """Return the device under test; an isolated one is a new process without earlier deaths."""
        chosen = self.subject
        options = {**chosen.options.get(ANY, {}), **chosen.options.get(self._name, {})}
        device = isolation.at_level(self._name, chosen.level, own_process=chosen.isolate, options=options)
        self._calls = _calls(device)
        return device

    def serve(self) -> None:
        """Run bundles until there are no more."""
        self._connection.send(Ready(identity_of(self.device).name))
        while True:
            try:
                task: Bundle = self._connection.recv()
            except EOFError:
                return
            self._run(task)

    def _run(self, task: Bundle) -> None:
        answers: list[Answer] = []
        sent = time.monotonic_ns()
        self._place = 0
        for place, outcome in enumerate(self.run(task.of, task.items)):
            if os.getpid() != self._process:
                os._exit(0)  # a copy that the driver forked: the items and the connection belong to its parent
            if _file_of(self._connection) != self._socket:
                sys.stderr.write("the driver closed the suite's descriptor for results\n")
                os._exit(1)  # the current item gets the blame
            self.tries("")
            self.at("")
            self._place = place + 1
            process = process_of(self.device)
            died = process is not None and (outcome.verdict == "crashed" or process.health.total > 0)
            answers.append(Answer(outcome, self._called(), died))
            if died or time.monotonic_ns() - sent > TOGETHER_NS:
                self._connection.send(answers)
                answers, sent = [], time.monotonic_ns()
            if died:
                self.device.close()
                self.device = self._made()
        if answers:
            self._connection.send(answers)

    def _called(self) -> Counter[str]:
        now = _calls(self.device)
        new, self._calls = now - self._calls, now
        return new


def _file_of(connection: Connection) -> tuple[int, int] | None:
    try:
        found = os.fstat(connection.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


def process_of(device: Device) -> ReconnectingDevice | None:
    """Return an isolated device's process, None for any other device."""
    inner = device.inner if isinstance(device, WithOptions) else device
    return inner if isinstance(inner, ReconnectingDevice) else None


def _calls(device: Device) -> Counter[str]:
    process = process_of(device)
    return Counter() if process is None else Counter(process.calls)


class _Vectors(Worker):
    """Runs test vectors."""

    def begin(self) -> None:
        """An isolated driver is also executed with callbacks, if that is the way."""
        if self.subject.way == "callback":
            os.environ[SYNC] = "0"

    def run(self, of: Any, items: Sequence[Item]) -> Iterator[Outcome]:
        archive, member = of
        wanted = {item.id for item in items}
        there = {vector.id: vector for vector in read_member(archive, member) if vector.id in wanted}
        for item in items:
            if item.id not in there:
                raise InvalidArgument(f"vectors: {item.id} is in index.json, must also be in {archive.name}")
            start = time.monotonic_ns()
            outcome = self._outcome(there[item.id], item.variant)
            outcome = replace(outcome, primary=item.primary, nanoseconds=time.monotonic_ns() - start)
            yield replace(outcome, outputs=()) if outcome.outputs and not self.subject.outputs else outcome

    def _outcome(self, vector: Vector, variant: str) -> Outcome:
        way = self.subject.way
        unused = not_used(self.device, way)
        if unused:
            return Outcome(vector.id, "unsupported", f"way {way}: {unused}", variant)
        if way != "callback":
            return run_vector(vector, self.device, variant, way, self.at)
        with by_callbacks() as heard:
            outcome = run_vector(vector, self.device, variant, way, self.at)
        return replace(outcome, verdict="failed", reason=heard[0]) if heard else outcome


def main() -> None:
    """Run test vectors."""
    serve_with(_Vectors)


def end_with(parent: int) -> None:
    """End this process when its parent ends, regardless of the driver."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def serve_with(kind: type[Worker]) -> None:
    """Serve; items run in a separate thread, so that a driver's exit does not end the process."""
    faulthandler.enable()
    faulthandler.register(TELL)
    end_with(int(sys.argv[3]))
    connection, board = Connection(int(sys.argv[1])), StageBoard(int(sys.argv[2]))

    def serve() -> None:
        try:
            worker.serve()
        except (BrokenPipeError, ConnectionResetError):
            pass
        except NnhalError as error:
            connection.send(_told(error))

    try:
        worker = kind(connection, board)
    except Exception as error:  # an error of the driver while it loads
        connection.send(_told(error))
        return
    thread = threading.Thread(target=serve, name="nnhal-items", daemon=True)
    thread.start()
    thread.join()
    sys.stdout.flush()
    os._exit(0)  # no one waits for the driver's remaining work


def _told(error: Exception) -> NnhalError:
    """Return an error whose class the other side knows."""
    if isinstance(error, NnhalError) and type(error).__module__ == errors.__name__:
        return error
    return OperationFailed(error_text(error))
