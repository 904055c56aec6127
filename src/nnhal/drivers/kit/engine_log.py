"""Keeps log lines off stderr that no setting of an engine silences, and no other lines.

The call that writes them runs while stderr is a pipe. A thread forwards the other lines of the pipe. These include
lines of other threads, and of processes that they start meanwhile, for as long as they hold the pipe.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from nnhal.base.descriptors import Owner

Unwanted = Callable[[bytes, bool], bool]
"""Whether to drop a line. If the line has no end yet (False), whether it may become such a line."""

_PATIENCE = 1.0  # the longest wait in seconds for the last lines, unless another process holds the pipe
_lock = threading.Lock()


def filter_stderr(call: Callable[[], object], unwanted: Unwanted) -> None:
    """Call a function, and drop lines that are written to stderr meanwhile."""
    with _lock:
        real, ours, theirs = Owner(), Owner(), Owner()
        try:
            real.fds.extend(map(os.dup, (2,)))
            ours.fds.extend(os.pipe())
        except OSError:  # stderr is closed, or the process has no free descriptor
            call()
            return
        theirs.fds.append(ours.fds.pop())
        passing = threading.Thread(target=_pass_on, args=(ours, real, unwanted), name="nnhal-stderr", daemon=True)
        passing.start()
        try:
            os.dup2(theirs.fds[0], 2)
            call()
        finally:
            os.dup2(real.fds[0], 2)
            theirs.close()
            passing.join(_PATIENCE)


def _pass_on(source: Owner, target: Owner, unwanted: Unwanted) -> None:
    """Forward lines as soon as they cannot become unwanted ones, until no writer is left."""
    kept = b""
    while data := os.read(source.fds[0], 1 << 16):
        *lines, kept = (kept + data).split(b"\n")
        _write(target, b"".join(line + b"\n" for line in lines if not unwanted(line, True)))
        if not unwanted(kept, False):
            _write(target, kept)
            kept = b""
    _write(target, kept)


def _write(target: Owner, data: bytes) -> None:
    with suppress(OSError):  # stderr has no reader left
        while data:
            data = data[os.write(target.fds[0], data) :]
