"""A trace from its begin to its file: what `nnhal.trace` gives."""

import atexit
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from nnhal.base import trace as base
from nnhal.base.answers import shown
from nnhal.base.descriptors import Owner
from nnhal.base.errors import BadState, InvalidArgument, ResourceExhausted
from nnhal.base.log import logger
from nnhal.base.uncopied import Uncopied

if TYPE_CHECKING:
    from nnhal.runtime.tracing.timeline import Timeline

VARIABLE = "NNHAL_TRACE"
MOST_SLOTS = 1 << 24
SAMPLES = 0.05  # seconds between looks at memory
_log = logger("execution")
_beginning = threading.RLock()  # a trace that nobody has any more may end in the middle of another's begin


class Trace(Uncopied, instead="its file can be read anywhere"):
    """A trace that is being made, of this process and the drivers' processes; a context manager. path: of its file."""

    def __init__(self, path: "str | os.PathLike[str]", spans: int = base.SLOTS) -> None:
        """As of `trace`."""
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise InvalidArgument(f"trace: path is {shown(path)}, must be that of a file to write")
        if type(spans) is not int or not 1 <= spans <= MOST_SLOTS:
            raise InvalidArgument(f"trace: spans is {shown(spans)}, must be an integer of 1 to {MOST_SLOTS}")
        self.path, self._spans = Path(path), spans
        self._recording: base.Recording | None = None
        self._pid, self._ender, self._until = os.getpid(), 0, 0

    def start(self) -> "Trace":
        """Begin. BadState where another one is running, InvalidArgument where its file cannot be written."""
        from nnhal.runtime.tracing import perfetto

        with _beginning:
            if base.process.recording is not None or self._recording is not None:
                raise BadState(f"trace to {self.path}: another one is running in this process, must be ended first")
            self._file, self._pid = _opened(self.path), os.getpid()
            self._clocks = perfetto.clocks()
            recording = base.Recording(base.Log(self._spans), time.monotonic_ns())
            self._ender = self._until = 0
            self._ended = threading.Event()
            self._sampler = threading.Thread(
                target=_sample, args=(recording, self._ended), name="nnhal-trace", daemon=True
            )
            try:
                self._recording = recording
                base.begin(recording)
                with suppress(RuntimeError):  # no thread to be had: no samples
                    self._sampler.start()
            except BaseException:  # interrupted
                self._recording = None
                self._ended.set()
                base.end(recording)
                self._file.close()
                raise
        return self

    def stop(self) -> None:
        """End it and write the file; nothing happens the second time, and in a process forked from the one that began.

        What still runs then ends with the trace. An interrupt is passed on once the file is written. ResourceExhausted where
        it cannot be.
        """
        recording = self._recording
        if recording is None or os.getpid() != self._pid:
            return
        try:
            self._end(recording)
        except ResourceExhausted:
            raise
        except BaseException:  # interrupted
            self._end(recording)
            raise

    def _end(self, recording: base.Recording) -> None:
        """All of it, from wherever an interrupt came."""
        from nnhal.runtime.tracing import perfetto

        with _beginning:
            if self._recording is not recording or self._ender not in (0, threading.get_ident()):
                return
            self._ender = threading.get_ident()
            if base.process.recording is recording:
                recording.look()
            base.end(recording)
        self._until = until = self._until or time.monotonic_ns()
        self._ended.set()
        if self._sampler.is_alive():
            self._sampler.join()
        try:
            timeline = _gathered(recording, until)
            (fd,) = self._file.fds
            with suppress(OSError):  # what cannot be made shorter is no ordinary file
                os.ftruncate(fd, 0)
                os.lseek(fd, 0, os.SEEK_SET)
            with open(fd, "wb", closefd=False) as file:
                file.writelines(perfetto.written(timeline, self._clocks))
        except OSError as error:
            self._over()
            raise ResourceExhausted(f"trace {self.path}: cannot be written: {error.strerror}") from None
        self._over()
        _remember(recording)

    def _over(self) -> None:
        self._recording = None
        self._file.close()

    def __del__(self) -> None:
        """One that nobody can end any more ends."""
        with suppress(Exception):  # it may be half made
            self.stop()

    def __enter__(self) -> "Trace":
        return self.start()

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        try:
            self.stop()
        except ResourceExhausted as lost:
            if error is None:
                raise
            error.add_note(str(lost))

    def __repr__(self) -> str:
        return f"<Trace to {self.path}, {'running' if self._recording is not None else 'not running'}>"


def trace(path: "str | os.PathLike[str]", *, spans: int = base.SLOTS) -> Trace:
    """Trace what happens within `with nnhal.trace("trace.pftrace"):` to a file that Perfetto opens (ui.perfetto.dev).

    All threads of this process take part, and the drivers' processes as far as they work for it. One trace at a time.
    path: of the file, which keeps what is in it until the trace ends.
    spans: how many this process keeps, of 64 bytes each; those that come later are dropped, and the file says how many.
    Raises InvalidArgument at once where the file cannot be written, BadState where a trace is running.
    """
    return Trace(path, spans)


def from_environment() -> None:
    """Trace this process to its end where NNHAL_TRACE names a file; %p in it is the number of the process."""
    path = os.environ.get(VARIABLE)
    if not path or base.process.recording is not None:
        return
    running = Trace(path.replace("%p", str(os.getpid()))).start()
    atexit.register(_stop_at_exit, running)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:  # such a child ends without what atexit has
        from multiprocessing import util

        util.Finalize(None, _stop_at_exit, (running,), exitpriority=0)


def _stop_at_exit(running: Trace) -> None:
    try:
        running.stop()
    except ResourceExhausted as error:
        print(f"nnhal: {error}", file=sys.stderr)


@contextmanager
def in_memory() -> "Iterator[Callable[[], Timeline]]":
    """Trace what happens within, to no file: what comes can be called once for it. BadState where a trace is running."""
    recording = base.Recording(base.Log(base.SLOTS), time.monotonic_ns())
    try:
        with _beginning:
            if base.process.recording is not None:
                raise BadState("trace: another one is running in this process, must be ended first")
            base.begin(recording)
        yield lambda: _gathered(recording, time.monotonic_ns())
    finally:
        base.end(recording)


def _sample(recording: base.Recording, ended: threading.Event) -> None:
    """Memory of all processes, now and then, where it has changed."""
    while not ended.wait(SAMPLES):
        recording.look()


def _gathered(recording: base.Recording, until: int) -> "Timeline":
    """All that was written until then, in whichever process."""
    from nnhal.runtime.tracing.timeline import ProcessLog, merged

    log = recording.log
    parts = [ProcessLog(os.getpid(), "application", base.contents(log.memory, log.slots, recording.since, until))]
    for remote in recording.remotes:
        held = base.contents(remote.memory, remote.slots, recording.since, until)
        parts.append(ProcessLog(remote.pid, remote.name, held, remote.group))
    return merged(parts, recording.since, until, recording.notes)


def _opened(path: Path) -> Owner:
    """The file, opened, which keeps what is in it until there is something else to write."""
    file = Owner()
    try:
        how = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        file.fds.extend(map(os.open, (path,), (how,), (0o666,)))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidArgument(f"trace {path}: cannot be written: {why}") from None
    mode = os.fstat(file.fds[0]).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISCHR(mode):
        raise InvalidArgument(f"trace {path}: is no file, must be one that can be written")
    return file


def _remember(recording: base.Recording) -> None:
    """What was not followed, in the log of this process."""
    for note in recording.notes:
        _log.info("trace: %s", note)


def _begin_anew() -> None:
    """A forked child: who began or ended a trace in its parent meanwhile does not go on here."""
    global _beginning  # noqa: PLW0603
    _beginning = threading.RLock()


os.register_at_fork(after_in_child=_begin_anew)
