"""The processes of a crash test: the driver's service, and clients of it that are killed."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count

from nnhal.base.names import short
from nnhal.conformance.pool import children_of
from nnhal.conformance.suites.crash.client import ClientOrders, ClientReport
from nnhal.conformance.suites.suite import CaseFailed
from nnhal.ipc import names
from nnhal.ipc.client.output import DriverProcess

STARTING = 40.0  # seconds until a service listens
_LOOK = 0.02  # seconds between looks for the service's socket, whose creation nothing announces
_SERVE = """
from nnhal.conformance.worker import end_with
import runpy, sys
end_with(int(sys.argv.pop(1)))
runpy.run_module("nnhal.serve", run_name="__main__")
"""
_CLIENT = "from nnhal.conformance.suites.crash.client import main; main()"
_numbers = count()
MEMORY = "MiB of memory"
COUNTED = {"descriptors": "fd", "threads": "task"}


@contextlib.contextmanager
def service(driver: str, level: str) -> Iterator[tuple[str, DriverProcess]]:
    """Serve a driver to several clients for as long as the block; yield the service's name and its process.

    Raises CaseFailed if it does not start.
    """
    name = f"nnhal-test-{os.getpid()}-{next(_numbers)}"
    command = [sys.executable, "-P", "-c", _SERVE, str(os.getpid()), driver, "--name", name, "--json"]
    process = DriverProcess(driver, [*command, *(["--level", level] if level else [])], ())
    try:
        end = time.monotonic() + STARTING
        while name not in names.running():
            time.sleep(_LOOK)
            if process.poll() is not None or time.monotonic() > end:
                raise CaseFailed(
                    f"the driver's service does not start: {process.exit_description() or 'it does not listen'}"
                )
        yield name, process
    finally:
        process.kill()
        process.wait()


class ClientProcess:
    """A client's process."""

    def __init__(self, orders: ClientOrders) -> None:
        given = {name: getattr(orders, name) for name in orders.__struct_fields__}
        command = [sys.executable, "-P", "-c", _CLIENT, json.dumps(given)]
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # for as long as the process
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._words)
        assert self._process.stdout is not None
        self._out, self._begun = self._process.stdout.fileno(), b""
        self.driver = 0  # the driver's process

    def ready(self, seconds: float) -> None:
        """Wait until each of its threads has been served once; CaseFailed if the service does not serve it in time."""
        line = self._line(seconds)
        if not line.startswith("ready "):
            raise CaseFailed(f"a client cannot work: {self._problem(line, seconds)}")
        self.driver = int(line.split()[1])

    def report(self, seconds: float) -> ClientReport:
        """Wait for its end, and return its report; CaseFailed if it does not report in time."""
        line = self._line(seconds)
        if not line.startswith("{"):
            raise CaseFailed(f"a client that nobody killed has no report: {self._problem(line, seconds)}")
        self._process.wait()
        return ClientReport(**json.loads(line))

    def died(self, seconds: float) -> None:
        """Wait until it has killed itself; CaseFailed if it did not in time, because the service does not answer."""
        while (line := self._line(seconds)).startswith("ready "):
            pass
        if line.startswith("{"):
            report = ClientReport(**json.loads(line))
            raise CaseFailed(f"a client cannot work: {report.errors[0] if report.errors else 'it did nothing'}")
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        if self._process.poll() != -signal.SIGKILL:
            raise CaseFailed(f"a client cannot work: {self._problem(line, seconds)}")

    def kill(self) -> None:
        """Kill it at once."""
        self._process.kill()
        self._process.wait()

    def pause(self, *, go_on: bool) -> None:
        """Stop it, or let it go on."""
        self._process.send_signal(signal.SIGCONT if go_on else signal.SIGSTOP)

    def end(self) -> None:
        """Kill it if it still runs, and close its files."""
        self.kill()
        self._words.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _line(self, seconds: float) -> str:
        """Return its next line; "" at its end, or after so many seconds."""
        poll, end = select.poll(), time.monotonic() + seconds
        poll.register(self._out, select.POLLIN)
        while b"\n" not in self._begun:
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return ""
            chunk = os.read(self._out, 1 << 16)
            if not chunk:
                return ""
            self._begun += chunk
        line, _, self._begun = self._begun.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _problem(self, line: str, seconds: float) -> str:
        if line.startswith("{"):
            report = ClientReport(**json.loads(line))
            return short(next(iter((*report.errors, *report.wrong)), "it did nothing"))
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        if self._process.poll() is None:
            return f"the driver has not served it within {seconds:g} s"
        self._words.seek(0)
        words = self._words.read().decode("utf-8", "replace").strip().splitlines()
        return words[-1] if words else f"it ended with {self._process.returncode}"


def resources_of(pid: int) -> dict[str, float]:
    """Return what a driver's process holds: descriptors, threads, child processes, memory."""
    counts = {what: len(os.listdir(f"/proc/{pid}/{folder}")) for what, folder in COUNTED.items()}
    with open(f"/proc/{pid}/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)
    return {**counts, "processes": len(children_of(pid)), MEMORY: resident}


def ended(pid: int, seconds: float) -> bool:
    """Wait for the end of a process that this one did not start; return whether it ended. Kill it if it did not."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        if poll.poll(seconds * 1000):
            return True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watch, signal.SIGKILL)
        return False
    finally:
        os.close(watch)
