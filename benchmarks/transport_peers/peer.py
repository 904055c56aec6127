"""What a contender of `benchmarks/transport.py` is, and the server process behind most of them."""

import argparse
import contextlib
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SIZE = 200  # bytes of a request and of its echo
REQUEST = bytes(range(SIZE))
SPIN_NS = 50_000  # how long a spinning receiver polls, yielding, before it blocks
START_LIMIT_S = 60  # a hang limit: a server answers within a second or so
PR_SET_PDEATHSIG = 1
FOLDER = Path(__file__).parent

Progress = Callable[[str], object]


@dataclass(frozen=True)
class Placement:
    """On which processors server and client run; None leaves it to the kernel."""

    name: str
    server: frozenset[int] | None
    client: frozenset[int] | None


def placements() -> dict[str, Placement]:
    """The three placements, on the first processors that this process may use; `two` only where there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    first, second = frozenset(allowed[:1]), frozenset(allowed[1:2])
    found = {"one": Placement("one core", first, first), "free": Placement("not pinned", None, None)}
    if second:
        found["two"] = Placement("two cores", first, second)
    return found


class Unavailable(Exception):
    """A contender that can't run here; the message says what is missing and how to get it."""


class Peer(ABC):
    """A contender: one server process and one client. `name` and `waiting` label its row.

    waiting: `block`; `spin` (poll and yield for SPIN_NS, then block); `poll` (never block).
    """

    name: str
    waiting: str
    package: str = ""  # what to install, where the contender needs more than the standard library
    module: str = ""

    @property
    def label(self) -> str:
        """Name and waiting mode, unique among contenders."""
        return f"{self.name}, {self.waiting}"

    def require(self) -> None:
        """Raise Unavailable where the contender can't run."""
        if self.module and importlib.util.find_spec(self.module) is None:
            raise Unavailable(f"not installed: pip install {self.package}")

    @abstractmethod
    def start(self, placement: Placement) -> None:
        """Start the server, connect and pin both sides; the calling process is pinned already. May raise Unavailable."""

    @abstractmethod
    def run(self, count: int) -> list[int]:
        """Durations of `count` round trips in nanoseconds."""

    @abstractmethod
    def stop(self) -> None:
        """End the server and free everything; also after a `start` that failed."""

    def resume(self) -> None:
        """Before a slice."""

    def pause(self) -> None:
        """After a slice: a server that never blocks must not disturb the others."""

    def facts(self) -> dict[str, object]:
        """Counters worth printing, such as memo hits and spins that succeeded."""
        return {}


class PythonPeer(Peer):
    """A contender whose client lives in this process."""

    @abstractmethod
    def round_trip(self) -> object:
        """One request and its reply."""

    def run(self, count: int) -> list[int]:
        clock, round_trip = time.perf_counter_ns, self.round_trip
        durations = []
        for _ in range(count):
            start = clock()
            round_trip()
            durations.append(clock() - start)
        return durations


class Server:
    """A server in a fresh interpreter: this package's module `name` with --serve, in a temporary folder of its own."""

    def __init__(self, name: str, placement: Placement, *arguments: str, keep: Sequence[int] = ()) -> None:
        """keep: descriptors that the server inherits under their numbers."""
        self._folder = tempfile.TemporaryDirectory(prefix="transport")
        self.folder = Path(self._folder.name)
        cpus = cpu_list(placement.server)
        command = [
            sys.executable,
            "-m",
            f"{__package__}.{name}",
            "--serve",
            str(self.folder),
            "--cpus",
            cpus,
            *arguments,
        ]
        path = os.pathsep.join(p for p in (str(FOLDER.parent), os.environ.get("PYTHONPATH", "")) if p)
        environment = os.environ | {"PYTHONPATH": path}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, pass_fds=tuple(keep))
        assert self.process.stdout
        if self.process.stdout.readline() != b"ready\n":
            self.stop()
            raise Unavailable(f"the server of {name} ended with {self.process.returncode} before it was ready")

    @property
    def address(self) -> str:
        """A path for its socket."""
        return str(self.folder / "socket")

    def stop(self) -> None:
        """End it and remove its folder."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(START_LIMIT_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._folder.cleanup()


def cpu_list(cpus: frozenset[int] | None) -> str:
    """As an argument: `0,1`, or `-` for no pinning."""
    return ",".join(map(str, sorted(cpus))) if cpus is not None else "-"


def pin(cpus: str) -> None:
    """Pin this process as `cpu_list` says."""
    if cpus != "-":
        os.sched_setaffinity(0, [int(cpu) for cpu in cpus.split(",")])


def ready() -> None:
    """Tell the parent that connections are taken."""
    print("ready", flush=True)


def serve(run: Callable[[Path, list[str]], None]) -> None:
    """The main function of a server: `run` is given its folder and the arguments that follow."""
    parser = argparse.ArgumentParser(description="the server side of a contender of benchmarks/transport.py")
    parser.add_argument("--serve", type=Path, required=True, metavar="FOLDER", help="where the socket goes")
    parser.add_argument("--cpus", default="-", help="processors to run on, such as 0,1; - for all")
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    pin(arguments.cpus)
    run(arguments.serve, arguments.rest)


@contextlib.contextmanager
def started(peer: Peer, placement: Placement) -> Iterator[Peer]:
    """The contender, started, and stopped at the end."""
    try:
        peer.require()
        peer.start(placement)
        yield peer
    finally:
        peer.stop()
