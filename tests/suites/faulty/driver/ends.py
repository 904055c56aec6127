"""What ends the process, and what never ends, in each method."""

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from nnhal.base.operands import Array
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control
from nnhal.model.graph import Model

from .faults import fault
from .healthy import Engine, Healthy


def hang() -> None:
    while True:
        threading.Event().wait(3600)


def spin() -> None:
    end = time.monotonic() + 3600
    while time.monotonic() < end:
        pass


def freeze() -> None:
    """With the interpreter's lock held: no other thread of the process gets on."""
    ctypes.PyDLL(None).pause()


def segfault() -> None:
    ctypes.string_at(0)


def leave() -> None:
    os._exit(3)


def in_supports(act: Any) -> type:
    class Faulty(Healthy):
        def supports(self, model: Model) -> Any:
            act()
            return super().supports(model)

    return Faulty


def in_prepare(act: Any) -> type:
    class Faulty(Healthy):
        def prepare(self, model: Model, hints: Hints) -> Prepared:
            act()
            return super().prepare(model, hints)

    return Faulty


def in_run(act: Any) -> type:
    class Faulty(Engine):
        def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
            act()
            return super().computed(inputs, control)

    return Faulty


def in_close(act: Any) -> type:
    class Faulty(Engine):
        def close(self) -> None:
            act()

    return Faulty


def in_capabilities(act: Any) -> type:
    class Faulty(Healthy):
        def capabilities(self) -> Any:
            act()
            return super().capabilities()

    return Faulty


def in_load(act: Any) -> type:
    class Faulty(Healthy):
        def __init__(self) -> None:
            act()

    return Faulty


METHODS = {
    "load": in_load,
    "capabilities": in_capabilities,
    "supports": in_supports,
    "prepare": in_prepare,
    "run": in_run,
    "close": in_close,
}
ENDS = {
    "segfaults": (segfault, "reads address 0"),
    "leaves": (leave, "ends its process by os._exit"),
    "hangs": (hang, "never comes back"),
    "spins": (spin, "loops for ever"),
    "freezes": (freeze, "never comes back, with the interpreter's lock held"),
}
CHECKS = {
    "load": "identity",
    "capabilities": "capabilities",
    "supports": "verdicts",
    "prepare": "prepares",
    "run": "runs",
    "close": "close",
}
TOGETHER = {  # in which methods each is tried
    "segfaults": ("load", "supports", "prepare", "run", "close"),
    "leaves": ("load", "capabilities", "prepare", "run"),
    "hangs": tuple(METHODS),
    "spins": ("run",),
    "freezes": ("run",),
}
HANGS = "hangs", "spins", "freezes"
SURVIVED = "hangs"  # where the application gives a deadline, and it is none of these
UNBOUNDED = "load", "capabilities", "close"

for name, methods in TOGETHER.items():
    act, what = ENDS[name]
    for method in methods:
        survives = name == SURVIVED and method not in UNBOUNDED
        kind = METHODS[method](act)
        operation = "" if method in ("load", "capabilities") else "ADD"
        fault(
            f"{method}-{name}",
            f"{method} {what}",
            CHECKS[method],
            survives=survives,
            alone=True,
            operation=operation,
            hangs=name in HANGS,
        )(kind)
