"""`Control.on_cancel`: calls an engine that cannot poll when its execution should end."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from math import inf
from queue import Empty, SimpleQueue
from typing import Protocol
from weakref import ref

from nnhal.base.answers import close_quietly
from nnhal.base.errors import ResourceExhausted
from nnhal.base.time import SLICE

_numbers = count()
_IDLE = 1.0  # seconds without a block after which the watching thread ends


class Bounds(Protocol):
    """The part of a `Control` that is used here."""

    @property
    def bounded(self) -> bool:
        """As in `Control`."""

    def patience(self) -> float | None:
        """As in `Control`."""

    def check(self) -> None:
        """As in `Control`."""


class OnCancel:
    """A context manager; inside it, `call` is called once, from another thread, when the execution should end."""

    def __init__(self, control: Bounds, call: Callable[[], object]) -> None:
        self._control, self._call = control, call
        self._over, self._lock = False, threading.Lock()
        self.number = next(_numbers)  # not its id, which another object may get later

    def __enter__(self) -> "OnCancel":
        if self._control.bounded:
            _watch.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        """End the block: `call` is not called any more; a running call is waited for."""
        self._over = True
        _watch.leave(self)
        with self._lock:
            pass

    def due(self) -> float:
        """Return the seconds until the next check."""
        patience = self._control.patience()
        return SLICE if patience is None else min(patience, SLICE)

    def should_end(self) -> bool:
        """Whether the execution should end."""
        try:
            self._control.check()
        except Exception:
            return True
        return False

    def tell(self) -> None:
        """Make the call, unless the block has ended."""
        with self._lock:
            if not self._over:
                self._over = True  # once
                close_quietly("driver", "on_cancel()", self._call)


class _Watch:
    """One thread that watches the blocks of all executions. A block wakes it only if its next check would come too late.

    It holds blocks weakly: a block whose beginning was interrupted disappears. An interrupt may come anywhere in
    `enter` and `leave`, so locks are held in `with` only, and the wake-up is written in C.
    """

    def __init__(self) -> None:
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """Set the initial state: a forked child does not have the thread."""
        self._lock, self._wake = threading.Lock(), SimpleQueue[None]()
        self._inside: dict[int, ref[OnCancel]] = {}
        self._watcher: object = None  # identifies the current thread; None without one
        self._next = inf  # its next check, on the monotonic clock; infinite while it computes that

    def enter(self, block: OnCancel) -> None:
        """Watch a block; ResourceExhausted without a free thread."""
        self._inside[block.number] = ref(block)
        with self._lock:
            if self._watcher is None:
                own = object()
                try:
                    threading.Thread(target=self._work, args=(own,), name="nnhal-cancel", daemon=True).start()
                except RuntimeError as error:
                    raise ResourceExhausted(f"on_cancel: no thread for it: {error}") from None
                self._watcher = own
        if time.monotonic() + block.due() < self._next:
            self._wake.put(None)

    def leave(self, block: OnCancel) -> None:
        """Stop watching a block."""
        self._inside.pop(block.number, None)

    def _work(self, own: object) -> None:
        with self._lock:  # after the starting thread has noted it, or was interrupted
            self._watcher = own
        try:
            self._keep_looking(own)
        except BaseException:  # no memory: the next block starts another thread
            with self._lock:
                self._watcher = None if self._watcher is own else self._watcher
            raise

    def _keep_looking(self, own: object) -> None:
        last = time.monotonic()  # with a block
        while True:
            self._next = inf
            wait = self._look()
            now = time.monotonic()
            if self._inside:
                last = now
            with self._lock:
                if self._watcher is not own:
                    return
                if not self._inside and now - last > _IDLE:
                    self._watcher = None
                    return
            self._next = now + wait
            with suppress(Empty):
                self._wake.get(timeout=wait)

    def _look(self) -> float:
        """Call for the blocks that should end; return the seconds until the next check."""
        wait = SLICE
        for number, found in list(self._inside.items()):
            block = found()
            if block is None or block.should_end():
                self._inside.pop(number, None)
                if block is not None:
                    _tell(block)
            else:
                wait = min(wait, block.due())
        return wait


def _tell(block: OnCancel) -> None:
    """Call in another thread, because stopping one engine must not delay others."""
    try:
        threading.Thread(target=block.tell, name="nnhal-cancel", daemon=True).start()
    except RuntimeError:
        block.tell()


_watch = _Watch()
