"""What a driver's process says: its output and errors come through pipes, are logged, and the last words are kept.

The process has no terminal that way: nothing to read keystrokes from, nothing to send escape sequences to.
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

KEPT, LINE, WORDS = 50, 400, 4000  # lines, bytes of one, characters of all that an error takes
A_SECOND = 200  # lines logged; a driver that says more is read slowly, and what is left out is counted
CRASHES = frozenset(
    {
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT),
        *(signal.SIGTRAP, signal.SIGSYS, signal.SIGXFSZ),
    }
)
_CHUNK = 1 << 16
_BREATH = 0.01  # seconds
_LOOK = 0.02  # seconds between looks at whether a process has ended
_libc = ctypes.PyDLL(None, use_errno=True)  # calls keep the interpreter lock


class DriverProcess(subprocess.Popen[bytes]):
    """A driver's process. `output` is what it said.

    An application may take the exit status itself, by `os.wait` or by ignoring SIGCHLD. `Popen` takes that for an exit with
    status 0; here it says nothing about the driver.
    """

    def __init__(
        self,
        driver: str,
        command: Sequence[str],
        pass_fds: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """driver: its name or path. environment: None for that of this process."""
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

    def fate(self) -> str:
        """How it ended, with its last words; "" where it has not."""
        self._reap()
        code = self.returncode
        if code is None:
            try:
                code = self.wait(1)
            except subprocess.TimeoutExpired:
                return ""
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        if self._taken:
            how = "ended; how is not known, as this program takes the exit status of its children itself"
        words = self.output.last_words()
        return f"the driver process {how}" + (f"; its last words: {words}" if words else "")

    @property
    def own_end(self) -> Literal["crash", "exit", ""]:
        """How it ended by its own doing; "" where it has not.

        Anybody may send other signals than those of a crash, and the kernel sends SIGKILL where memory is short.
        """
        self._reap()
        if self.returncode is None or self._taken:
            return ""
        return "exit" if self.returncode >= 0 else "crash" if -self.returncode in CRASHES else ""

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        self._reap()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit status. TimeoutExpired after so many seconds."""
        end, pause = None if timeout is None else time.monotonic() + timeout, 0.0005
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(pause)
            pause = min(2 * pause, _LOOK)
        return code

    def _reap(self) -> None:
        """Take over its exit status where it has ended; the interpreter is kept."""
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
    """Reads what a process says, on a thread that ends with the process or its pipes.

    Errors are logged as warnings, output as information. What is not printable is escaped.
    """

    def __init__(self, log: Logger) -> None:
        """Two pipes; `ends` are those to write to. Raises OSError where there is no descriptor left."""
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
        """The process has its ends of the pipes: read from now on."""
        while self.ends:
            os.close(self.ends.pop())
        with contextlib.suppress(OSError):  # then its pipes alone say when it has ended
            self._watch = os.pidfd_open(pid)
        try:
            threading.Thread(target=self._read, name="nnhal-output", daemon=True).start()
        except RuntimeError:  # no thread to be had; a process that still speaks is told so by EPIPE
            self.close()

    def last_words(self) -> str:
        """The last lines, on one; all of them where the process has ended."""
        self._drain()
        with self._lock:
            lines = [line for line in (*self._last, *self._begun.values()) if line.strip()]
        text = " | ".join(map(_printable, lines))
        return text if len(text) <= WORDS else f"…{text[-WORDS:]}"

    def close(self) -> None:
        """Let go of the pipes."""
        with self._lock:
            fds = [*self._levels, *self.ends, *([self._watch] if self._watch >= 0 else [])]
            self._levels, self._watch = {}, -1
            self.ends.clear()
            for fd in fds:
                os.close(fd)

    def forked(self) -> None:
        """In a forked child: the process is the parent's."""
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
        """Take what is there, a chunk of each pipe; the pipes that have ended."""
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
        """As many of them as may be logged now, with their level."""
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
    """What a pipe that does not block has, b"" at its end, None where there is nothing yet; the interpreter is kept.

    Beside a busy thread each time that it is given up costs 5 ms, and somebody may wait to be told of a death.
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
