"""Keeps lines off stderr that no setting of an engine silences, and nothing else.

The call that writes them is made while stderr is a pipe. A thread passes on what comes through it: what others write
meanwhile, processes that they start too, for as long as they hold the pipe.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from nnhal.base.descriptors import Owner

Unwanted = Callable[[bytes, bool], bool]
"""Whether a line is to be left out; of one that has no end yet (False), whether it may become such a line."""

_PATIENCE = 1.0  # seconds to wait until all is passed on, unless somebody else holds the pipe
_lock = threading.Lock()


def without_lines(call: Callable[[], object], unwanted: Unwanted) -> None:
    """Call, and leave lines out of what is written to stderr meanwhile."""
    with _lock:
        real, ours, theirs = Owner(), Owner(), Owner()
        try:
            real.fds.extend(map(os.dup, (2,)))
            ours.fds.extend(os.pipe())
        except OSError:  # there is no stderr, or no descriptor is left
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
    """Copy what comes, as soon as it cannot be unwanted any more, until nobody can write to it."""
    kept = b""
    while data := os.read(source.fds[0], 1 << 16):
        *lines, kept = (kept + data).split(b"\n")
        _write(target, b"".join(line + b"\n" for line in lines if not unwanted(line, True)))
        if not unwanted(kept, False):
            _write(target, kept)
            kept = b""
    _write(target, kept)


def _write(target: Owner, data: bytes) -> None:
    with suppress(OSError):  # nobody reads it any more
        while data:
            data = data[os.write(target.fds[0], data) :]
