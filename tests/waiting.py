"""Waiting in tests: for events, never for durations; a clock that a test moves; what a test opened and did not close."""

import gc
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable
from types import ModuleType
from typing import Any

import pytest

from nnhal.hal.request import Control

LIMIT = 60.0  # seconds until a test that waits for an event fails: no duration that anything depends on
NS = 1_000_000_000
BACKGROUND = ("nnhal-idle", "nnhal-worker")  # threads that the process keeps, whichever test started them


def until(true: Callable[[], object], what: str = "the event") -> None:
    """Wait for an event that can only be looked at."""
    end, pause = time.monotonic() + LIMIT, 0.0005
    while not true():
        if time.monotonic() > end:
            pytest.fail(f"{what}: not within {LIMIT:.0f} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def pass_time(seconds: float) -> None:
    """Let so much time pass: what takes long, or what must not happen and gets time to. However long it lasts, nothing that
    is asserted of a program without fault changes."""
    time.sleep(seconds)


def jitter(dice: random.Random, seconds: float) -> None:
    """Let other threads go on meanwhile, so that many orders are tried: the test holds in each of them."""
    time.sleep(dice.uniform(0, seconds))


def together(works: Iterable[Callable[[], object]], limit: float | None = LIMIT) -> None:
    """Do all at the same time, on a thread each; raises what the first of them raised, and fails where one hangs."""
    raised: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
        assert not thread.is_alive(), f"not ended within {limit} s"
    if raised:
        raise raised[0]


class Clock:
    """A monotonic clock that stands still until a test moves it.

    It takes the place of a module's `time` (`play`); whatever else that module uses of `time` stays the real one.
    """

    def __init__(self, ns: int | None = None) -> None:
        self.ns = time.monotonic_ns() if ns is None else ns
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic_ns(self) -> int:
        """The time in nanoseconds."""
        return self.ns

    perf_counter_ns = __call__ = monotonic_ns

    def monotonic(self) -> float:
        """The time in seconds."""
        return self.ns / NS

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        """Whoever sleeps lets so much time pass."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        with self._lock:
            self.ns += round(seconds * NS)

    def within(self, seconds: float, **more: Any) -> Control:
        """A control with a deadline so far away."""
        return Control(self.ns + round(seconds * NS), **more)

    def play(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> "Clock":
        """Have these modules read this clock."""
        for module in modules:
            if hasattr(module, "time"):
                monkeypatch.setattr(module, "time", self)
            if hasattr(module, "_now"):
                monkeypatch.setattr(module, "_now", self.monotonic_ns)
        return self


def _descriptors() -> Counter[tuple[int, int]]:
    """How often each file is open in this process. A descriptor's number is used again, a file's identity is not."""
    found: Counter[tuple[int, int]] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(number))
        except OSError:  # closed meanwhile
            continue
        found[status.st_dev, status.st_ino] += 1
    return found


class Opened:
    """Descriptors opened since this was made. Those that other tests left, and may close meanwhile, do not count."""

    def __init__(self) -> None:
        self._before = _descriptors()

    def count(self) -> int:
        """How many there are now."""
        gc.collect()
        return (_descriptors() - self._before).total()

    def like(self, fd: int) -> int:
        """How many of them are duplicates of a descriptor."""
        gc.collect()
        status = os.fstat(fd)
        return (_descriptors() - self._before)[status.st_dev, status.st_ino]

    def closed(self, but: int = 0) -> None:
        """Wait until none is open, or no more than `but`."""
        until(lambda: self.count() <= but, f"descriptors are closed, all but {but}")


class Started:
    """Threads started since this was made, but for some by name: those that the process keeps."""

    def __init__(self, but: Container[str] = BACKGROUND) -> None:
        self._before, self._but = set(threading.enumerate()), but

    def threads(self) -> list[threading.Thread]:
        """Those that have not ended."""
        return [t for t in set(threading.enumerate()) - self._before if t.name not in self._but and t.is_alive()]

    def ended(self) -> None:
        """Wait until all have ended."""
        until(lambda: not self.threads(), "threads end")
