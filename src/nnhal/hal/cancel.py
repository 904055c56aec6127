"""`Control.on_cancel`: an engine that cannot poll is told when its execution should end."""

import os
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Protocol
from weakref import ref

from nnhal.base.answers import let_go
from nnhal.base.errors import ResourceExhausted
from nnhal.base.time import SLICE

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
                let_go("driver", "on_cancel()", self._call)


class _Watch:
    """One thread for the blocks of all executions, which is woken by none that it looks at soon enough anyway.

    It holds no block: one whose beginning was interrupted is gone, and nothing is called for it.
    """

    def __init__(self) -> None:
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """As at first: a process that was forked has no thread of its parent's."""
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._inside: dict[int, ref[OnCancel]] = {}
        self._there = False  # the thread
        self._next = inf  # when it looks again, on the monotonic clock; infinite while it works that out

    def enter(self, block: OnCancel) -> None:
        """Look after a block; ResourceExhausted where there is no thread for it."""
        with self._lock:
            if not self._there:
                try:
                    threading.Thread(target=self._work, name="nnhal-cancel", daemon=True).start()
                except RuntimeError as error:
                    raise ResourceExhausted(f"on_cancel: no thread for it: {error}") from None
                self._there = True
            self._inside[id(block)] = ref(block)
        if time.monotonic() + block.due() < self._next:
            self._wake.set()

    def leave(self, block: OnCancel) -> None:
        """Look after it no more."""
        self._inside.pop(id(block), None)

    def _work(self) -> None:
        try:
            self._keep_looking()
        except BaseException:  # no memory: who comes next begins again
            self._there = False
            raise

    def _keep_looking(self) -> None:
        last = time.monotonic()  # that there was a block
        while True:
            self._next = inf
            wait = self._look()
            now = time.monotonic()
            if self._inside:
                last = now
            elif now - last > _IDLE:
                with self._lock:
                    if not self._inside:
                        self._there = False
                        return
            self._next = now + wait
            self._wake.wait(wait)
            self._wake.clear()

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
