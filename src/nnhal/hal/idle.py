"""Idle prepared models release memory: after some seconds without an execution, or when memory is short.

Each trimmable model has a `TrimGuard`, which knows whether executions are inside, and makes new ones wait during a trim.
One thread watches all models of a process, and ends with the last of them. For an isolated driver, all of this is in
its process.
"""

import ctypes
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from nnhal.base.answers import close_quietly, driver_call
from nnhal.base.errors import ContractBroken, NnhalError
from nnhal.base.log import logger
from nnhal.base.pressure import pressure
from nnhal.hal.device import Prepared
from nnhal.hal.request import Act, Control

T = TypeVar("T")
VARIABLE = "NNHAL_IDLE_SECONDS"
SECONDS = 5.0  # without an execution, after which a model is trimmed
LONGEST = 2.0  # the most seconds that executions wait for a trim
_LOOK, _OFTEN = 1.0, 0.02  # the most and least seconds between checks
_log = logger("driver")


def quiet_seconds() -> float:
    """Return the seconds without an execution after which a model is trimmed; 0 for never, also if memory is short."""
    text = os.environ.get(VARIABLE, "")
    with suppress(ValueError):
        seconds = float(text)
        if 0 <= seconds < math.inf:
            return seconds
    if text:
        _log.warning("%s is %r, must be a number of seconds, 0 for never; taken for %g", VARIABLE, text[:100], SECONDS)
    return SECONDS


class TrimGuard:
    """Separates a model's executions, which run side by side, from its trim.

    An interrupt may leave one execution too many inside: then the model is not trimmed any more.
    """

    __slots__ = (
        *("__weakref__", "_done", "_inside", "_later", "_lock", "_pid", "_prepared", "_stuck", "_trimming", "_uses"),
        *("_where", "over", "quiet"),
    )

    def __init__(self, prepared: Prepared, where: str) -> None:
        """prepared: the driver's object. where: the device, for messages."""
        self._prepared, self._where = weakref.ref(prepared), where
        self._inside: deque[None] = deque()  # appends and pops are atomic
        self._uses = 0
        self._trimming = self._stuck = False
        self._pid = os.getpid()
        self.over = False  # it is not trimmed any more
        self._later: Callable[[], object] | None = None
        self._done, self._lock = threading.Event(), threading.Lock()
        self.quiet = _Quiet()

    def through(self, call: Act[T]) -> Act[T]:
        """Wrap a function, so that it never runs during a trim."""
        enter, leave = self._inside.append, self._inside.pop

        def guarded(what: Any, control: Control) -> T:
            enter(None)
            try:
                self._uses += 1
                # Checked after entering; the trim checks for executions after it has announced itself
                if self._trimming:
                    self._wait(control)
                return call(what, control)
            finally:
                leave()

        return guarded

    def watch(self) -> None:
        """Trim the model from now on when it is idle, until it is closed."""
        _keeper.add(self)

    def close(self, call: Callable[[], object]) -> None:
        """Close the model by this call after a trim; if the trim hangs, its thread closes it when it returns."""
        if os.getpid() != self._pid:  # a forked child, in which locks that were held stay held
            call()
            return
        with self._lock:
            self.over = True
        _keeper.wake()
        if self._trimming:
            self._done.wait(LONGEST)
        with self._lock:
            if self._trimming:
                self._later = call
                return
        call()

    def _wait(self, control: Control) -> None:
        """Wait for the end of the trim, within the limits of an execution. ContractBroken if it takes too long."""
        end = time.monotonic() + LONGEST * (not self._stuck)
        while self._trimming:
            left = end - time.monotonic()
            if left <= 0:
                self._stuck = True
                _keeper.relieve()
                raise ContractBroken(
                    f"{self._where}: trim() has not come back, must within {LONGEST:g} s; compile the model again"
                )
            patience = control.patience()
            self._done.wait(left if patience is None else min(patience, left))
            control.check()

    def uses(self) -> tuple[int, bool]:
        """Return how many executions have begun, and whether one is inside."""
        return self._uses, bool(self._inside)

    def trim(self, *, pressed: bool) -> bool:
        """Trim the model, unless an execution is inside or comes first; return whether it did. Raises the driver's error."""
        prepared = self._prepared()
        with self._lock:
            if self.over or self._trimming or prepared is None:
                return False
            self._done.clear()
            self._trimming = True
        try:
            if self._inside:
                return False
            with driver_call(self._where, "trim()"):
                prepared.trim(pressed=pressed)
            return True
        finally:
            with self._lock:
                self._trimming = self._stuck = False
                later, self._later = self._later, None
            self._done.set()
            if later is not None:
                close_quietly(self._where, "close() of a prepared model", later)


class _Quiet:
    """How long a model has been idle, as the thread has seen it, and after which execution it was trimmed."""

    __slots__ = ("pressed", "since", "trimmed", "uses")

    def __init__(self) -> None:
        self.uses, self.since = 0, time.monotonic()
        self.trimmed, self.pressed = 0, -1  # a model that was never executed releases little, except if memory is short

    def due(self, uses: int, seconds: float, *, pressed: bool) -> bool:
        """Whether to trim a model that has had so many executions, with none inside."""
        if uses != self.uses:
            self.uses, self.since = uses, time.monotonic()
            return False  # trimming a busy model again and again would cost more than it gains
        if pressed:
            return self.pressed != uses
        return max(self.trimmed, self.pressed) != uses and time.monotonic() - self.since >= seconds

    def done(self, *, pressed: bool) -> None:
        """Note that it was trimmed."""
        self.trimmed = self.uses
        if pressed:
            self.pressed = self.uses


class _Keeper:
    """The thread that trims; it lives as long as there are models to watch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guards: weakref.WeakSet[TrimGuard] = weakref.WeakSet()
        self._turn: object = None  # identifies the current thread; another one ends
        self._woken: SimpleQueue[None] = SimpleQueue()  # finalizers may put into it at any point
        self._trimming_since = math.inf

    def add(self, guard: TrimGuard) -> None:
        """Watch one more model."""
        with self._lock:
            self._guards.add(guard)
        self.relieve()

    def wake(self) -> None:
        """Have the thread notice closed models at once."""
        if self._turn is not None:
            self._woken.put(None)

    def relieve(self) -> None:
        """Start another thread unless there is one that does not hang in a trim."""
        seconds = quiet_seconds()
        with self._lock:
            hangs = time.monotonic() - self._trimming_since > LONGEST
            if not seconds or (self._turn is not None and not hangs):
                return
            turn = object()
            work = threading.Thread(target=self._work, args=(turn, seconds), name="nnhal-idle", daemon=True)
            try:
                self._turn, self._trimming_since = turn, math.inf
                work.start()
            except RuntimeError as error:
                self._turn = None
                _log.info("idle models keep their memory: no thread to look after them: %s", error)
            except BaseException:  # interrupted: the next model starts another thread
                self._turn = None
                raise

    def _work(self, turn: object, seconds: float) -> None:
        told, look, short = pressure(), min(_LOOK, max(seconds / 4, _OFTEN)), False
        while True:
            with suppress(Empty):
                self._woken.get(timeout=look)
            with self._lock:
                if self._turn is not turn:
                    return
                guards = [guard for guard in self._guards if not guard.over]
                self._guards = weakref.WeakSet(guards)
                if not guards:
                    self._turn = None
                    return
            before, short = short, told.short()
            if self._look_at(guards, turn, seconds, pressed=short or before):
                give_back_free_memory()
            del guards

    def _look_at(self, guards: list[TrimGuard], turn: object, seconds: float, *, pressed: bool) -> bool:
        """Trim the models that are due; return whether there were any."""
        trimmed = False
        while guards:
            guard = guards.pop()
            uses, inside = guard.uses()
            if inside or not guard.quiet.due(uses, seconds, pressed=pressed):
                continue
            self._trimming_since = time.monotonic()
            late = threading.Timer(LONGEST * 1.01, self.relieve)
            late.name, late.daemon = "nnhal-idle", True
            with suppress(RuntimeError):  # without a free thread, the execution that waits for the trim starts one
                late.start()
            try:
                done = guard.trim(pressed=pressed)
            except NnhalError as error:
                _log.warning("%s; it is trimmed no more", error)
                done, guard.over = False, True
            finally:
                late.cancel()
            with self._lock:
                if self._turn is not turn:
                    return False
                self._trimming_since = math.inf
            if done:
                guard.quiet.done(pressed=pressed)
                trimmed = True
        return trimmed


def give_back_free_memory() -> None:
    """Have the allocator return free memory to the system."""
    with suppress(AttributeError):  # a function of glibc
        ctypes.CDLL(None).malloc_trim(0)


def _begin_anew() -> None:
    """Reset a forked child: it has no thread, and its models are closed."""
    global _keeper  # noqa: PLW0603
    _keeper = _Keeper()


_keeper = _Keeper()
os.register_at_fork(after_in_child=_begin_anew)
