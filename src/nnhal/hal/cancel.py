"""`Control.on_cancel`: an engine that cannot poll is told when its execution should end."""

import threading
from collections.abc import Callable
from typing import Protocol

from nnhal.base.answers import let_go
from nnhal.base.errors import NnhalError, ResourceExhausted


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
        self._over, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> "OnCancel":
        if self._control.bounded:
            try:
                threading.Thread(target=self._watch, name="nnhal-cancel", daemon=True).start()
            except RuntimeError as error:
                raise ResourceExhausted(f"on_cancel: no thread for it: {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        """From here on nothing is called; where it is being called, that is waited for."""
        self._over.set()
        with self._lock:
            pass

    def _watch(self) -> None:
        while not self._over.wait(self._control.patience()):
            try:
                self._control.check()
            except NnhalError:
                with self._lock:
                    if not self._over.is_set():
                        let_go("driver", "on_cancel()", self._call)
                return
