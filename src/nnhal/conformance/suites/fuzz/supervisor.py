"""Runs a fuzz target in processes that an input may end, and collects the failures by cause."""

import contextlib
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from nnhal.base.digests import blake2b
from nnhal.base.errors import NnhalError
from nnhal.base.records import Record, field
from nnhal.base.stacks import DUMPED, TELL
from nnhal.conformance.pool import LOADING, children_of
from nnhal.conformance.suites.fuzz.process import (
    FuzzFailure,
    FuzzOrders,
    FuzzProgress,
    FuzzReady,
    InputBoard,
    place_of_dump,
)
from nnhal.conformance.suites.suite import CaseFailed, NotApplicable, NotSupported
from nnhal.ipc.client.output import DriverProcess

LOOKS = 0.1  # seconds between two looks at a process
MOST_DEATHS = 20  # processes that end before the supervisor stops
TELLING = 1.0  # seconds for a hanging process to report its stack
ENDING = 5.0  # seconds for a process that has finished
_PROCESS = "from nnhal.conformance.suites.fuzz.process import main; main()"


class FuzzResult(Record, frozen=True):
    """The findings of a part of a target.

    fresh: inputs that reached new code. guide: how those were found, "" if they were not looked for. ends: how inputs
    ended. failures: one for each cause. counts: inputs of each cause.
    """

    executions: int = 0
    seconds: float = 0.0
    fresh: int = 0
    guide: str = ""
    ends: Counter[str] = field(default_factory=Counter)
    failures: tuple[FuzzFailure, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)


class _FuzzProcess:
    """A process that runs inputs, as the supervisor sees it."""

    def __init__(self, orders: FuzzOrders) -> None:
        self._home = tempfile.TemporaryDirectory(
            prefix="nnhal-fuzz-", dir=orders.run.scratch or None, ignore_cleanup_errors=True
        )
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("nnhal-fuzz")
        with theirs:
            try:
                os.ftruncate(memory, InputBoard.SIZE)
                self.board = InputBoard(memory)
                self.connection = Connection(ours.detach())
                ends = theirs.fileno(), memory
                command = [sys.executable, "-P", "-c", _PROCESS, *map(str, (*ends, os.getpid()))]
                environment = {**os.environ, "TMPDIR": self._home.name}
                self.process = DriverProcess(f"fuzz {orders.target}", command, ends, environment)
            finally:
                os.close(memory)
        self.began = time.monotonic()
        self.ready: FuzzReady | None = None
        self._seen = -1, 0.0  # the input under way at the last look, and how long the process had waited for a core
        with contextlib.suppress(OSError):
            self.connection.send(orders)

    def used(self) -> float:
        """Return its seconds of processor time."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def delayed(self) -> float:
        """Return the seconds that it has waited for a core: on a busy machine they are no hang."""
        try:
            with open(f"/proc/{self.process.pid}/schedstat") as stat:
                return int(stat.read().split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0

    def late(self) -> str:
        """Return why it takes too long; "" if it does not."""
        now = time.monotonic()
        if self.ready is None:
            return f"has not loaded within {LOADING:g} s" if now - self.began - self.delayed() > LOADING else ""
        before = ended, began, used, data = self.board.read()
        if data is None:
            return ""
        if self._seen[0] != ended:
            self._seen = ended, self.delayed()
        why = ""
        with contextlib.suppress(OSError):
            took, passed = self.used() - used / 1e9, now - began / 1e9 - (self.delayed() - self._seen[1])
            if took > 2 * self.ready.seconds:
                why = f"has not ended after {took:.1f} s of processor time, must be at most {self.ready.seconds:g} s"
            elif passed > self.ready.patience:
                why = f"has not ended within {self.ready.patience:g} s"
        if why:
            time.sleep(LOOKS)  # the process may have written the board meanwhile: then it is another input
        return why if why and self.board.read() == before else ""

    def stack(self) -> str:
        """Return the stacks of its threads as it hangs, "" if it does not report them."""
        for pid in children_of(self.process.pid) or [self.process.pid]:  # an isolated driver, if there is one
            with contextlib.suppress(OSError):
                os.kill(pid, TELL)
        end = time.monotonic() + TELLING
        while time.monotonic() < end:
            time.sleep(LOOKS)
            words = self.process.output.last_words()
            if DUMPED in words:
                return words
        return ""

    def end(self) -> None:
        """End it, and what it started."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self._home.cleanup()


class FuzzSupervisor:
    """Runs the inputs of some orders. announce: is called again and again meanwhile."""

    def __init__(self, orders: FuzzOrders, announce: Callable[[], object]) -> None:
        self._orders, self._announce = orders, announce
        self._ends, self._counts = Counter[str](), Counter[str]()
        self._failures: dict[str, FuzzFailure] = {}
        self._fresh, self._deaths, self._executed = 0, 0, 0
        self._guide, self._done = "", False

    def run(self) -> FuzzResult:
        """Run all inputs.

        Raises:
            CaseFailed: the target ends processes before an input begins, executes nothing, or fails on a valid input.
            NotSupported, NotApplicable, NnhalError: the target cannot run here.
        """
        began, last = time.monotonic(), self._orders.number
        while self._executed < last and not self._done and self._deaths < MOST_DEATHS:
            process = _FuzzProcess(self._orders._replace(first=self._executed, number=last - self._executed))
            try:
                self._watch(process)
            finally:
                process.end()
        if not self._executed:
            raise CaseFailed(f"target {self._orders.target}: executed nothing")
        seconds = time.monotonic() - began
        found = tuple(self._failures.values())
        return FuzzResult(self._executed, seconds, self._fresh, self._guide, self._ends, found, self._counts)

    def _watch(self, process: _FuzzProcess) -> None:
        """Follow a process to its end."""
        fresh = self._fresh
        while True:
            self._announce()
            if wait([process.connection], LOOKS):
                try:
                    message: Any = process.connection.recv()
                except (EOFError, OSError):
                    self._ended(process)
                    return
                if isinstance(message, CaseFailed | NotSupported | NotApplicable | NnhalError):
                    raise message
                self._heard(message, process, fresh)
                continue
            why = process.late()
            if why:
                self._hung(process, why)
                return

    def _heard(self, message: object, process: _FuzzProcess, fresh: int) -> None:
        if isinstance(message, FuzzReady):
            process.ready, self._guide = message, message.guide
        elif isinstance(message, FuzzFailure):
            self._failures.setdefault(message.cause, message)
        elif isinstance(message, FuzzProgress):
            self._ends += message.ends
            self._counts += message.causes
            self._fresh, self._done = fresh + message.fresh, message.done

    def _ended(self, process: _FuzzProcess) -> None:
        """Process the end of a process: an input's fault if one was under way."""
        with contextlib.suppress(Exception):  # a TimeoutExpired
            process.process.wait(ENDING)
        fate = process.process.exit_description().replace("the driver process", "the process")
        ended, _, _, data = process.board.read()
        if data is None:
            self._executed = max(self._executed, ended)
            if process.ready is None or not ended:
                raise CaseFailed(f"target {self._orders.target}: its process ended before an input began: {fate}")
            return
        self._lost(ended, FuzzFailure(data, "crashed", fate, "", place_of_dump(fate)))

    def _hung(self, process: _FuzzProcess, why: str) -> None:
        if process.ready is None:
            raise CaseFailed(f"target {self._orders.target}: its process {why}")
        place = place_of_dump(process.stack())
        ended, _, _, data = process.board.read()
        if data is not None:
            self._lost(ended, FuzzFailure(data, "hung", f"{why}, at {place}" if place else why, "", place))

    def _lost(self, ended: int, failure: FuzzFailure) -> None:
        """Note an input that ended its process, or that its process was ended for."""
        kind = failure.reason.split("; its last words:")[0]
        kind = "".join(c for c in kind if not c.isdigit())
        cause = f"{failure.verdict} {failure.place or kind}"
        self._failures.setdefault(cause, failure._replace(cause=cause))
        self._counts[cause] += 1
        self._ends[failure.verdict] += 1
        self._executed, self._deaths = ended + 1, self._deaths + 1


def digest_of(data: bytes) -> str:
    """Return the name under which an input is saved."""
    return blake2b(data, digest_size=6).hexdigest()
