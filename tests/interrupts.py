"""Interrupts of the main thread as Ctrl-C gives them, at any moment; not by the signal that times tests."""

import contextlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Self

import pytest


class Interrupt(KeyboardInterrupt):
    """What a strike raises."""


class Interrupts:
    """Strikes the main thread, one strike at a time. A strike within a finalizer, where Python loses it, comes again."""

    def __init__(self, kind: type[BaseException] = Interrupt) -> None:
        """kind: what a strike raises, as the handlers of programs raise errors of their own."""
        self.kind, self.armed, self.lost = kind, False, 0
        self._asked: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="interrupts", daemon=True)

    def __enter__(self) -> Self:
        self._handler = signal.signal(signal.SIGUSR1, self._strike)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.armed = False
        self._asked.put(None)
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._handler)
        sys.unraisablehook = self._hook

    def after(self, seconds: float) -> None:
        """One strike, so much later; `armed` until it was."""
        self.armed = True
        self._asked.put(seconds)

    def during(self, block: Callable[[], object], seconds: float) -> bool:
        """Run the block, struck so much later; whether it was before the end."""
        try:
            self.after(seconds)
            block()
            self.armed = False
            return False
        except self.kind:
            return True

    @contextlib.contextmanager
    def expected(self, seconds: float) -> Iterator[None]:
        """The block is struck so much later, or the test fails."""
        with pytest.raises(self.kind):
            self.after(seconds)
            yield

    def _work(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while (seconds := self._asked.get()) is not None:
            time.sleep(seconds)
            if self.armed:
                signal.pthread_kill(main, signal.SIGUSR1)

    def _strike(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise self.kind

    def _unraisable(self, what: Any) -> None:
        if what.exc_type is self.kind:
            self.lost += 1
            self.after(0)
        else:
            self._hook(what)


def interrupted_in(name: str, hits: Callable[[Any, str], bool], call: Callable[[], object]) -> int:
    """Call again and again, interrupted in function `name` at the first, the second, ... point that counts; how many."""
    return interrupted_at(lambda frame, event: frame.f_code.co_name == name and hits(frame, event), call)


def interrupted_at(
    hits: Callable[[Any, str], bool],
    call: Callable[[], object],
    before: Callable[[], object] = lambda: None,
    every: int = 1,
) -> int:
    """Call again and again, interrupted at the first, the second, ... point that counts; how many points there are.

    before: runs before each call, and is not interrupted. every: of the points, one in so many has its interrupt.

    None comes between the end of a `with` block and its `__exit__`: Python looks for signals after calls, not before them.
    """
    for place in count(0, every):
        before()
        left = [place]

        def tracer(frame: Any, event: str, argument: Any, left: list[int] = left) -> Any:
            leaves = event == "c_call" and argument.__name__ == "__exit__"
            if not leaves and hits(frame, event):
                left[0] -= 1
                if left[0] < 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt
            return None

        try:
            sys.setprofile(tracer)
            call()
            return place
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
    return 0
