"""`Control.on_cancel`: an engine that cannot poll is told when its execution should end."""

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

from nnhal.base.answers import let_go
from nnhal.base.errors import ResourceExhausted
from nnhal.base.time import SLICE

_numbers = count()
_IDLE = 1.0  # seconds without a block after which the thread ends that looks after them


class Bounds(Protocol):
    """What is asked of a `Control`."""

    @property
    def bounded(self) -> bool:
        """As of `Control`."""

    def patience(self) -> float | None:
        """As of `Control`."""

    def check(self) -> None:
        """As of `Control`."""


class OnCancel:
    """A context manager; inside it `call` is called once, from another thread, when the execution should end."""

    def __init__(self, control: Bounds, call: Callable[[], object]) -> None:
        self._control, self._call = control, call
        self._over, self._lock = False, threading.Lock()
        self.number = next(_numbers)  # not its id, which another has after it

    def __enter__(self) -> "OnCancel":
        if self._control.bounded:
            _watch.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        """From here on nothing is called; where it is being called, that is waited for."""
        self._over = True
        _watch.leave(self)
        with self._lock:
            pass

    def due(self) -> float:
        """Seconds until it is to be looked at again."""
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
        """Call, unless the block has ended."""
        with self._lock:
            if not self._over:
                self._over = True  # once
                let_go("driver", "on_cancel()", self._call)


class _Watch:
    """One thread for the blocks of all executions, which is woken by none that it looks at soon enough anyway.

    It holds no block: one whose beginning was interrupted is gone, and nothing is called for it. An interrupt may come
    anywhere in `enter` and `leave`: a lock is held in a `with` alone, and what wakes the thread is written in C.
    """

    def __init__(self) -> None:
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """As at first: a process that was forked has no thread of its parent's."""
        self._lock, self._wake = threading.Lock(), SimpleQueue[None]()
        self._inside: dict[int, ref[OnCancel]] = {}
        self._watcher: object = (
            None  # what tells the thread that looks from any other that was begun; None where none does
        )
        self._next = inf  # when it looks again, on the monotonic clock; infinite while it works that out

    def enter(self, block: OnCancel) -> None:
        """Look after a block; ResourceExhausted where there is no thread for it."""
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
        """Look after it no more."""
        self._inside.pop(block.number, None)

    def _work(self, own: object) -> None:
        with self._lock:  # not before who began it has noted that, or was interrupted
            self._watcher = own
        try:
            self._keep_looking(own)
        except BaseException:  # no memory: who comes next begins again
            with self._lock:
                self._watcher = None if self._watcher is own else self._watcher
            raise

    def _keep_looking(self, own: object) -> None:
        last = time.monotonic()  # that there was a block
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
        """Tell those that should end; seconds until the next look."""
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
    """On a thread of its own: what one engine takes to stop keeps no other waiting."""
    try:
        threading.Thread(target=block.tell, name="nnhal-cancel", daemon=True).start()
    except RuntimeError:
        block.tell()


_watch = _Watch()
