"""A process that runs inputs of a fuzz target. Each input lies in shared memory before it runs, so it survives a crash.

Its arguments are two descriptors and the process id of the parent, `supervisor`, which writes `FuzzOrders` to the socket
and reads messages from it. Both see the `InputBoard`.
"""

import faulthandler
import mmap
import os
import random
import resource
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from nnhal.base.answers import may_be_application_error
from nnhal.base.errors import NnhalError, error_text
from nnhal.base.stacks import TELL, dumped_frames
from nnhal.conformance.place import frames_in, place_first, place_in
from nnhal.conformance.suites.fuzz.guide import guided, guided_by_atheris, has_atheris
from nnhal.conformance.suites.fuzz.inputs import LONGEST
from nnhal.conformance.suites.fuzz.target import BLIND, DriverEnded, FuzzTarget, ProcessSpent, WrongAnswer, target_of
from nnhal.conformance.suites.suite import CaseFailed, NotApplicable, NotSupported, SuiteRun
from nnhal.conformance.worker import end_with

TOLD_NS = 500_000_000  # between two messages about how inputs ended
MOST_CAUSES = 30  # failures of different causes that one process reports
SMALLER = 300  # executions to make a failing input smaller
INSTRUMENTED = ("nnhal.frontends", "nnhal.model", "nnhal.ipc.protocol", "nnhal.runtime.cache", "nnhal.hal")


class FuzzOrders(NamedTuple):
    """The inputs to run. first: the number of inputs that ran before, in processes that ended. inputs: exactly these."""

    target: str
    run: SuiteRun
    part: str
    first: int
    number: int
    inputs: tuple[bytes, ...] = ()


class FuzzFailure(NamedTuple):
    """An input that failed. cause: equal for failures of one cause. place: FILE:LINE."""

    data: bytes
    verdict: str
    reason: str
    cause: str
    place: str = ""


class FuzzReady(NamedTuple):
    """The target is prepared: its limits, and what guides it, "" for nothing."""

    seconds: float
    patience: float
    guide: str


class FuzzProgress(NamedTuple):
    """How inputs ended since the last message, the failures by cause, and how many reached new code so far."""

    ends: Counter[str]
    causes: Counter[str]
    fresh: int
    done: bool = False


class InputBoard:
    """Shared memory with the input under way, the number of inputs that ended, and when this one began."""

    FORM = struct.Struct("@QQQQ")
    SIZE = FORM.size + LONGEST

    def __init__(self, fd: int) -> None:
        self._bytes = mmap.mmap(fd, self.SIZE)

    def begin(self, ended: int, data: bytes) -> None:
        """Note that an input begins."""
        size = self.FORM.size
        self._bytes[size : size + len(data)] = data
        self.FORM.pack_into(self._bytes, 0, ended, time.monotonic_ns(), time.process_time_ns(), len(data))

    def end(self, ended: int) -> None:
        """Note that no input is under way."""
        self.FORM.pack_into(self._bytes, 0, ended, 0, 0, 0)

    def read(self) -> tuple[int, int, int, bytes | None]:
        """Return how many inputs ended, when this one began by both clocks, and the input; None without one."""
        ended, began, used, length = self.FORM.unpack_from(self._bytes)
        size = self.FORM.size
        return ended, began, used, bytes(self._bytes[size : size + length]) if began else None


class FuzzLoop:
    """Runs inputs one after another, and reports how they ended."""

    def __init__(self, target: FuzzTarget, orders: FuzzOrders, connection: Connection, board: InputBoard) -> None:
        self._target, self._orders = target, orders
        self._connection, self._board = connection, board
        self._ended, self._last = orders.first, orders.first + orders.number
        self._ends, self._causes, self._known = Counter[str](), Counter[str](), set[str]()
        self._sent, self._fresh = time.monotonic_ns(), 0

    def reached(self, fresh: int) -> None:
        """Note how many inputs have reached new code."""
        self._fresh = fresh

    def execute(self, data: bytes) -> None:
        """Run one input; end the process after the last one."""
        data = data[:LONGEST]
        self._board.begin(self._ended, data)
        began = time.process_time()
        failure, spent = self._failure(data)
        took = time.process_time() - began
        if failure is None and took > self._target.seconds and not spent:
            limit = self._target.seconds
            text = f"took {took:.1f} s of processor time, must be at most {limit:g} s"
            failure = FuzzFailure(data, "hung", text, "slow")
        if failure is not None:
            self._note(failure)
        self._ended += 1
        self._board.end(self._ended)
        if failure is not None and failure.verdict == "crashed":
            self._target.recover()
        now = time.monotonic_ns()
        if spent or self._ended >= self._last or now - self._sent > TOLD_NS:
            self.report(done=self._ended >= self._last)
            if spent or self._ended >= self._last:
                self._connection.close()
                self._target.close()
                os._exit(0)

    def _failure(self, data: bytes) -> tuple[FuzzFailure | None, bool]:
        """Run an input; return why it failed, None if it is right, and whether this process must end."""
        try:
            self._ends[self._target.run(data)] += 1
        except ProcessSpent as end:
            self._ends[str(end)] += 1
            return None, True
        except DriverEnded as error:
            return FuzzFailure(data, "crashed", str(error), _cause(error), ""), False
        except WrongAnswer as error:
            place = place_in(error.__cause__.stack) if isinstance(error.__cause__, NnhalError) else ""
            return FuzzFailure(data, "failed", str(error), _cause(error), place), False
        except BaseException as error:
            if may_be_application_error(error) and not isinstance(error, MemoryError):
                raise
            place = place_of_error(error)
            return FuzzFailure(
                data, "failed", f"{error_text(error)} at {place}", f"{type(error).__name__} {place}", place
            ), False
        return None, False

    def _note(self, failure: FuzzFailure) -> None:
        """Report the first failure of a cause, with an input that is as small as it is cheap to find."""
        self._ends[failure.verdict] += 1
        self._causes[failure.cause] += 1
        if failure.cause in self._known or len(self._known) >= MOST_CAUSES:
            return
        self._known.add(failure.cause)
        if failure.verdict == "failed" and not self._orders.inputs:
            before = self._ends.copy()
            failure = failure._replace(data=self._smaller(failure))
            self._ends = before
        self._connection.send(failure)

    def _smaller(self, failure: FuzzFailure) -> bytes:
        """Return a part of a failing input that fails in the same way."""
        data, left = failure.data, SMALLER
        until = time.monotonic() + self._target.seconds
        size = len(data) // 2
        while size and left:
            place = 0
            while place < len(data) and left and time.monotonic() < until:
                candidate = data[:place] + data[place + size :]
                self._board.begin(self._ended, candidate)
                found, _ = self._failure(candidate)
                left -= 1
                if found is not None and found.cause == failure.cause:
                    data = candidate
                else:
                    place += size
            size //= 2
        return data

    def report(self, *, done: bool = False) -> None:
        """Send how inputs ended since the last message."""
        self._connection.send(FuzzProgress(self._ends, self._causes, self._fresh, done))
        self._ends, self._causes, self._sent = Counter(), Counter(), time.monotonic_ns()


def place_of_error(error: BaseException) -> str:
    """Return FILE:LINE of the innermost frame of nnhal or a driver, else of any code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "nnhal" in f.filename and "/suites/fuzz/" not in f.filename] or list(frames)
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"


def place_of_dump(words: str) -> str:
    """Return FILE:LINE of the innermost frame of a driver in the output of faulthandler, else of nnhal."""
    driver = place_first(dumped_frames(words))
    if driver:
        return driver
    frames = [(file, line) for file, line in frames_in(words) if "nnhal" in file and "/suites/fuzz/" not in file]
    return f"{Path(frames[0][0]).name}:{frames[0][1]}" if frames else ""


def _cause(error: Exception) -> str:
    return "".join(c for c in str(error) if not c.isdigit())[:200]


def _limited(memory: int) -> None:
    """Limit the address space, unless a sanitizer needs it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _target(orders: FuzzOrders, atheris: bool) -> FuzzTarget:
    if not atheris:
        return target_of(orders.target, orders.run)
    with import_module("atheris").instrument_imports(include=list(INSTRUMENTED)):
        return target_of(orders.target, orders.run)


def _serve(connection: Connection, board: InputBoard) -> None:
    orders: FuzzOrders = connection.recv()
    atheris = has_atheris() and orders.target not in BLIND and not orders.inputs
    try:
        target = _target(orders, atheris)
    except (NnhalError, NotSupported, NotApplicable) as error:
        connection.send(error)
        return
    except WrongAnswer as error:
        connection.send(CaseFailed(str(error)))
        return
    _limited(target.memory)
    guide = "" if not target.guided or orders.inputs else "atheris" if atheris else "traces"
    connection.send(FuzzReady(target.seconds, target.patience or orders.run.timeout, guide))
    loop = FuzzLoop(target, orders, connection, board)
    rng = random.Random(f"{orders.run.seed} {orders.target} {orders.part} {orders.first}")
    if orders.inputs:
        for data in orders.inputs[orders.first :]:
            loop.execute(data)
    else:
        (guided_by_atheris if atheris else guided)(target, rng, orders.number, loop.execute, loop.reached)


def main() -> None:
    """Run the process."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    faulthandler.register(TELL)
    end_with(int(sys.argv[3]))
    _serve(Connection(int(sys.argv[1])), InputBoard(int(sys.argv[2])))
