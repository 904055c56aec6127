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
from nnhal.base.errors import BadState, InvalidArgument, ResourceExhausted
from nnhal.base.log import logger
from nnhal.base.uncopied import Uncopied

if TYPE_CHECKING:
    from nnhal.runtime.tracing.timeline import Timeline

VARIABLE = "NNHAL_TRACE"
MOST_SLOTS = 1 << 24
SAMPLES = 0.05  # seconds between looks at memory
_log = logger("execution")
_beginning = threading.Lock()


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
        self._pid = os.getpid()

    def start(self) -> "Trace":
        """Begin. BadState where another one is running, InvalidArgument where its file cannot be written."""
        from nnhal.runtime.tracing import perfetto

        with _beginning:
            if base.process.recording is not None:
                raise BadState(f"trace to {self.path}: another one is running in this process, must be ended first")
            self._file, self._pid = _opened(self.path), os.getpid()
            self._clocks = perfetto.clocks()
            recording = base.Recording(base.Log(self._spans), time.monotonic_ns())
            self._recording = recording
            self._ended = threading.Event()
            self._sampler = threading.Thread(target=self._sample, args=(recording,), name="nnhal-trace", daemon=True)
            try:
                base.begin(recording)
                with suppress(RuntimeError):  # no thread to be had: no samples
                    self._sampler.start()
            except BaseException:  # interrupted
                self._recording = None
                self._ended.set()
                base.end()
                os.close(self._file)
                raise
        return self

    def stop(self) -> None:
        """End it and write the file; nothing happens the second time, and in a process forked from the one that began.

        What still runs then ends with the trace. ResourceExhausted where the file cannot be written.
        """
        from nnhal.runtime.tracing import perfetto

        if os.getpid() != self._pid:
            return
        with _beginning:
            recording, self._recording = self._recording, None
            if recording is None:
                return
            recording.look()
            base.end()
        until = time.monotonic_ns()
        self._ended.set()
        if self._sampler.is_alive():
            self._sampler.join()
        _remember(recording)
        timeline = _gathered(recording, until)
        try:
            with suppress(OSError):  # what cannot be made shorter is no ordinary file
                os.ftruncate(self._file, 0)
            with open(self._file, "wb") as file:
                file.writelines(perfetto.written(timeline, self._clocks))
        except OSError as error:
            raise ResourceExhausted(f"trace {self.path}: cannot be written: {error.strerror}") from None

    def _sample(self, recording: base.Recording) -> None:
        """Memory of all processes, now and then, where it has changed."""
        while not self._ended.wait(SAMPLES):
            recording.look()

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


def _stop_at_exit(running: Trace) -> None:
    try:
        running.stop()
    except ResourceExhausted as error:
        print(f"nnhal: {error}", file=sys.stderr)


@contextmanager
def in_memory() -> "Iterator[Callable[[], Timeline]]":
    """Trace what happens within, to no file: what comes can be called once for it. BadState where a trace is running."""
    with _beginning:
        if base.process.recording is not None:
            raise BadState("trace: another one is running in this process, must be ended first")
        recording = base.Recording(base.Log(base.SLOTS), time.monotonic_ns())
        base.begin(recording)
    try:
        yield lambda: _gathered(recording, time.monotonic_ns())
    finally:
        base.end()


def _gathered(recording: base.Recording, until: int) -> "Timeline":
    """All that was written until then, in whichever process."""
    from nnhal.runtime.tracing.timeline import ProcessLog, merged

    log = recording.log
    parts = [ProcessLog(os.getpid(), "application", base.contents(log.memory, log.slots, recording.since, until))]
    for remote in recording.remotes:
        held = base.contents(remote.memory, remote.slots, recording.since, until)
        parts.append(ProcessLog(remote.pid, remote.name, held, remote.group))
    return merged(parts, recording.since, until, recording.notes)


def _opened(path: Path) -> int:
    """A descriptor of the file, which keeps what is in it until there is something else to write."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidArgument(f"trace {path}: cannot be written: {why}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode) and not stat.S_ISCHR(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidArgument(f"trace {path}: is no file, must be one that can be written")
    return fd


def _remember(recording: base.Recording) -> None:
    """What was not followed, in the log of this process."""
    for note in recording.notes:
        _log.info("trace: %s", note)
