"""Arrays over the memory of a native engine, its objects in forked children, and Ctrl-C during its import."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from nnhal.base.operands import Array
from nnhal.base.threads import on_interrupt

T = TypeVar("T")
_alive: "WeakKeyDictionary[Any, Callable[[Any], object]]" = WeakKeyDictionary()


def borrowed_array(array: Array) -> Array:
    """Return a writable array over the same memory that does not keep it alive: the memory has to stay."""
    memory: Any = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    whole: Array = np.frombuffer(memory, array.dtype)
    return whole.reshape(array.shape)


def keep_alive_in_forks(holder: T, part: Callable[[T], object] = lambda holder: holder) -> None:
    """Prevent that a forked child destroys an engine's object: engines wait there for threads that only the parent has.

    holder: an object that lives as long as the engine's. part: returns the engine's object.
    """
    _alive[holder] = part


def _keep_for_ever() -> None:
    for holder, part in list(_alive.items()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part(holder)))


os.register_at_fork(after_in_child=_keep_for_ever)


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Handle Ctrl-C after what is inside: an interrupt during its initialisation aborts some extensions."""
    struck: list[object] = []
    try:
        with on_interrupt(lambda *_: struck.append(None)):
            yield
    finally:
        if struck:
            signal.raise_signal(signal.SIGINT)
