"""Logs the output and errors of a driver's process, which come through pipes, and keeps the last lines.

So the process has no terminal: it can neither read keystrokes nor send escape sequences.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING, Logger
from typing import Literal

from nnhal.base.log import logger
from nnhal.base.names import name_of

KEPT, LINE, WORDS = 50, 400, 4000  # lines; bytes of one; characters of them all in an error
A_SECOND = 200  # lines logged; a driver that prints more is read slowly, and skipped lines are counted
CRASHES = frozenset(
    {
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT),
        *(signal.SIGTRAP, signal.SIGSYS, signal.SIGXFSZ),
    }
)
_CHUNK = 1 << 16
_BREATH = 0.01  # seconds
_LOOK = 0.02  # seconds between checks whether a process has ended
_libc = ctypes.PyDLL(None, use_errno=True)  # calls keep the interpreter lock


class DriverProcess(subprocess.Popen[bytes]):
    """A driver's process. `output` is what it printed.

    An application may collect the exit status itself, by `os.wait` or by ignoring SIGCHLD. `Popen` treats that as exit
    status 0; here it reveals nothing about the driver.
    """

    def __init__(
        self,
        driver: str,
        command: Sequence[str],
        pass_fds: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process. driver: its name or path. environment: None for that of this process."""
        self._reaping, self._taken = threading.RLock(), False
        self.output = Output(logger("driver").getChild(name_of(driver)))
        try:
            super().__init__(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.output.ends[0],
                stderr=self.output.ends[1],
                pass_fds=pass_fds,
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            self.output.close()
            raise
        self.output.follow(self.pid)

    def exit_description(self) -> str:
        """Describe how it ended, with its last lines; "" while it runs."""
        self._reap()
        code = self.returncode
        if code is None:
            try:
                code = self.wait(1)
            except subprocess.TimeoutExpired:
                return ""
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        if self._taken:
            how = "ended with an unknown status, because this program collects the exit status of its children itself"
        words = self.output.last_words()
        return f"the driver process {how}" + (f"; its last words: {words}" if words else "")

    @property
    def exit_by_itself(self) -> Literal["crash", "exit", ""]:
        """How it ended by its own action; "" if it did not.

        Only the signals of a crash count: any process may send others, and the kernel sends SIGKILL when memory runs
        out.
        """
        self._reap()
        if self.returncode is None or self._taken:
            return ""
        return "exit" if self.returncode >= 0 else "crash" if -self.returncode in CRASHES else ""

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        self._reap()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status. Raises TimeoutExpired after `timeout` seconds."""
        end, pause = None if timeout is None else time.monotonic() + timeout, 0.0005
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(pause)
            pause = min(2 * pause, _LOOK)
        return code

    def _reap(self) -> None:
        """Collect its exit status if it has ended, without releasing the interpreter lock."""
        status = ctypes.c_int()
        with self._reaping:
            if self.returncode is not None:
                return
            found = _libc.waitpid(self.pid, ctypes.byref(status), os.WNOHANG)
            if found == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status.value)
            elif found < 0 and ctypes.get_errno() == errno.ECHILD:
                self.returncode, self._taken = 0, True


class Output:
    """Reads the output of a process, in a thread that ends with the process or its pipes.

    Errors are logged as warnings, output as information. Unprintable characters are escaped.
    """

    def __init__(self, log: Logger) -> None:
        """Create two pipes; `ends` are the ends to write to. Raises OSError if no descriptor is free."""
        self._log = log
        self._lock = threading.Lock()
        self._levels: dict[int, int] = {}
        self._begun: dict[int, bytes] = {}
        self._last: deque[bytes] = deque(maxlen=KEPT)
        self._second, self._logged, self._left_out = 0.0, 0, 0
        self._watch = -1
        self.ends: list[int] = []
        _outputs.add(self)
        try:
            for level in (INFO, WARNING):
                read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                self._levels[read], self._begun[read] = level, b""
                self.ends.append(write)
                os.set_blocking(write, True)
        except OSError:
            self.close()
            raise

    def follow(self, pid: int) -> None:
        """Start to read: the process has its ends of the pipes."""
        while self.ends:
            os.close(self.ends.pop())
        with contextlib.suppress(OSError):  # without it, only the pipes signal the end
            self._watch = os.pidfd_open(pid)
        try:
            threading.Thread(target=self._read, name="nnhal-output", daemon=True).start()
        except RuntimeError:  # no thread is available; a process that still writes gets EPIPE
            self.close()

    def last_words(self) -> str:
        """Return the last lines, joined into one; complete if the process has ended."""
        self._drain()
        with self._lock:
            lines = [line for line in (*self._last, *self._begun.values()) if line.strip()]
        text = " | ".join(map(_printable, lines))
        return text if len(text) <= WORDS else f"…{text[-WORDS:]}"

    def close(self) -> None:
        """Close the pipes."""
        with self._lock:
            fds = [*self._levels, *self.ends, *([self._watch] if self._watch >= 0 else [])]
            self._levels, self._watch = {}, -1
            self.ends.clear()
            for fd in fds:
                os.close(fd)

    def forked(self) -> None:
        """Reset a forked child: the process is the parent's."""
        self._lock = threading.Lock()
        self.close()

    def _read(self) -> None:
        poll = select.poll()
        for fd in (*self._levels, self._watch):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        try:
            while self._levels and any(fd != self._watch for fd, _ in poll.poll()):
                for fd in self._drain():
                    poll.unregister(fd)
                    with self._lock:
                        del self._levels[fd]
                        os.close(fd)
                if self._left_out:
                    time.sleep(_BREATH)
        finally:
            self._drain()
            self.close()

    def _drain(self) -> list[int]:
        """Read a chunk of each pipe; return the pipes that have ended."""
        ended: list[int] = []
        lines: list[tuple[int, bytes]] = []
        with self._lock:
            for fd, level in self._levels.items():
                chunk = _at_hand(fd)
                if chunk is None:
                    continue
                *whole, begun = (self._begun[fd] + chunk).split(b"\n")
                if not chunk or len(begun) > LINE:
                    whole, begun = [*whole, begun], b""
                if not chunk:
                    ended.append(fd)
                self._begun[fd] = begun
                said = [line[:LINE] for line in whole if line.strip()]
                self._last.extend(said[-KEPT:])
                lines += self._some(level, said)
        for level, line in lines:
            self._log.log(level, "%s", _printable(line))
        return ended

    def _some(self, level: int, lines: list[bytes]) -> list[tuple[int, bytes]]:
        """Return the lines that may be logged now, with their level."""
        now, before = time.monotonic(), []
        if now - self._second > 1:
            if self._left_out:
                before = [(WARNING, b"... %d lines left out" % self._left_out)]
            self._second, self._logged, self._left_out = now, 0, 0
        some = lines[: A_SECOND - self._logged]
        self._logged += len(some)
        self._left_out += len(lines) - len(some)
        return before + [(level, line) for line in some]


def _at_hand(fd: int) -> bytes | None:
    """Read from a pipe that does not block: b"" at its end, None if nothing is there. Keeps the interpreter lock.

    Beside a busy thread, each release of the lock costs 5 ms, and a caller may wait to hear of a death.
    """
    chunk = ctypes.create_string_buffer(_CHUNK)
    length = _libc.read(fd, chunk, _CHUNK)
    if length < 0 and ctypes.get_errno() in (errno.EAGAIN, errno.EINTR):
        return None
    return ctypes.string_at(chunk, max(0, length))


def _printable(line: bytes) -> str:
    text = line.decode("utf-8", "backslashreplace").rstrip().expandtabs()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_outputs: "weakref.WeakSet[Output]" = weakref.WeakSet()


def _after_fork() -> None:
    for output in list(_outputs):
        output.forked()


os.register_at_fork(after_in_child=_after_fork)
