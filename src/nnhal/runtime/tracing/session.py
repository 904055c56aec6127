"""A trace, from its begin to its file: the result of `nnhal.trace`."""

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
from nnhal.base.answers import safe_repr
from nnhal.base.descriptors import Owner
from nnhal.base.ending import at_end
from nnhal.base.errors import BadState, InvalidArgument, ResourceExhausted, is_out_of_resources
from nnhal.base.log import logger
from nnhal.base.uncopied import NotCopyable

if TYPE_CHECKING:
    from nnhal.runtime.tracing.timeline import Timeline

VARIABLE = "NNHAL_TRACE"
MOST_SLOTS = 1 << 24
SAMPLES = 0.05  # seconds between samples of memory
_log = logger("execution")
# Reentrant: a trace that is garbage-collected may end in the middle of another one's begin
_beginning = threading.RLock()


class Trace(NotCopyable, instead="its file can be read anywhere"):
    """A running trace of this process and the drivers' processes. A context manager.

    Attributes:
        path: The file.
    """

    def __init__(self, path: "str | os.PathLike[str]", spans: int = base.SLOTS) -> None:
        """As in `trace`."""
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise InvalidArgument(f"trace: path is {safe_repr(path)}, must be that of a file to write")
        if type(spans) is not int or not 1 <= spans <= MOST_SLOTS:
            raise InvalidArgument(f"trace: spans is {safe_repr(spans)}, must be an integer of 1 to {MOST_SLOTS}")
        self.path, self._spans = Path(path), spans
        self._recording: base.Recording | None = None
        self._pid, self._ender, self._until = os.getpid(), 0, 0

    def start(self) -> "Trace":
        """Begin the trace.

        Returns:
            This object.

        Raises:
            BadState: Another trace is running.
            InvalidArgument: The file cannot be written.
            ResourceExhausted: No descriptor is free.
        """
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
                with suppress(RuntimeError):  # without a free thread there are no samples
                    self._sampler.start()
            except BaseException:  # interrupted
                self._recording = None
                self._ended.set()
                base.end(recording)
                self._file.close()
                raise
        return self

    def stop(self) -> None:
        """End the trace and write the file. Further calls have no effect, also in a forked child.

        Running spans end with the trace. An interrupt is raised once the file is written.

        Raises:
            ResourceExhausted: The file cannot be written.
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
        """Release everything, wherever an interrupt came."""
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
            with suppress(OSError):  # only a regular file can be truncated
                os.ftruncate(fd, 0)
                os.lseek(fd, 0, os.SEEK_SET)
            with open(fd, "wb", closefd=False) as file:
                file.writelines(perfetto.encode_packets(timeline, self._clocks))
        except OSError as error:
            self._over()
            raise ResourceExhausted(f"trace {self.path}: cannot be written: {error.strerror}") from None
        self._over()
        _remember(recording)

    def _over(self) -> None:
        self._recording = None
        self._file.close()

    def __del__(self) -> None:
        """End a trace that nothing refers to any more."""
        with suppress(Exception):  # it may be half constructed
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
    """Trace everything within `with nnhal.trace("trace.pftrace"):` to a file for Perfetto (ui.perfetto.dev).

    The trace covers all threads of this process, and the drivers' processes as far as they work for it. One trace can
    run at a time.

    Args:
        path: The file. It keeps its old contents until the trace ends.
        spans: The most spans that this process records, of 64 bytes each. Later ones are dropped; the file has their
            number.

    Returns:
        The trace, a context manager.

    Raises:
        InvalidArgument: The file cannot be written.
        ResourceExhausted: No descriptor is free.
        BadState: Another trace is running.
    """
    return Trace(path, spans)


def from_environment() -> None:
    """Trace this process to its end if NNHAL_TRACE names a file; %p in it stands for the process ID."""
    path = os.environ.get(VARIABLE)
    if not path or base.process.recording is not None:
        return
    running = Trace(path.replace("%p", str(os.getpid()))).start()
    at_end(lambda: _stop_at_exit(running))


def _stop_at_exit(running: Trace) -> None:
    try:
        running.stop()
    except ResourceExhausted as error:
        print(f"nnhal: {error}", file=sys.stderr)


@contextmanager
def in_memory() -> "Iterator[Callable[[], Timeline]]":
    """Trace everything within the context to memory. The yielded function returns the timeline, once."""
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
    """Sample the memory of all processes, if it has changed."""
    while not ended.wait(SAMPLES):
        recording.look()


def _gathered(recording: base.Recording, until: int) -> "Timeline":
    """Collect all spans of all processes until this time."""
    from nnhal.runtime.tracing.timeline import ProcessLog, merged

    log = recording.log
    parts = [ProcessLog(os.getpid(), "application", base.contents(log.memory, log.slots, recording.since, until))]
    for remote in recording.remotes:
        held = base.contents(remote.memory, remote.slots, recording.since, until)
        parts.append(ProcessLog(remote.pid, remote.name, held, remote.group))
    return merged(parts, recording.since, until, recording.notes)


def _opened(path: Path) -> Owner:
    """Open the file, which keeps its contents until there is something to write."""
    file = Owner()
    try:
        how = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        file.fds.extend(map(os.open, (path,), (how,), (0o666,)))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        kind = ResourceExhausted if is_out_of_resources(error) else InvalidArgument
        raise kind(f"trace {path}: cannot be written: {why}") from None
    mode = os.fstat(file.fds[0]).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISCHR(mode):
        raise InvalidArgument(f"trace {path}: cannot be written, must be a writable file")
    return file


def _remember(recording: base.Recording) -> None:
    """Note in this process's log which processes were not traced."""
    for note in recording.notes:
        _log.info("trace: %s", note)


def _begin_anew() -> None:
    """Reset a forked child: its parent may have been beginning or ending a trace."""
    global _beginning  # noqa: PLW0603
    _beginning = threading.RLock()


os.register_at_fork(after_in_child=_begin_anew)
