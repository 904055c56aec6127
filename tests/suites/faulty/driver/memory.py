"""What grows: memory, descriptors, threads and contexts that are not given back."""

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.errors import ResourceExhausted
from nnhal.base.operands import Array
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control
from nnhal.model.graph import Model

from .faults import CONTRACT, STRESS, fault
from .healthy import Engine, Healthy

CONTEXTS = 8
_kept: list[Any] = []  # of the process, on purpose


def release() -> None:
    """Give back what executions kept: memory, descriptors, threads."""
    for each in _kept:
        if isinstance(each, int):
            os.close(each)
        elif isinstance(each, threading.Event):
            each.set()
    _kept.clear()


@fault("leaks-memory", "keeps 1 MB of every execution", "growth", (CONTRACT,))
class LeaksMemory(Engine):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        _kept.append(np.ones(1 << 20, np.uint8))
        return super().computed(inputs, control)


@fault("leaks-descriptors", "keeps a descriptor of every execution", "growth", (CONTRACT,))
class LeaksDescriptors(Engine):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        _kept.append(os.memfd_create("leak"))
        return super().computed(inputs, control)


@fault("leaks-threads", "keeps a thread of every execution", "growth", (CONTRACT,))
class LeaksThreads(Engine):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        _kept.append(threading.Event())
        threading.Thread(target=_kept[-1].wait, args=(60,), daemon=True).start()
        return super().computed(inputs, control)


@fault("leaks-models", "keeps 1 MB of every model that it prepared, closed or not", "growth", (CONTRACT,))
class LeaksModels(Healthy):
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        _kept.append(np.ones(1 << 20, np.uint8))
        return super().prepare(model, hints)


@fault("leaks-queries", "keeps 64 KiB of every query of supports", "", (STRESS,))
class LeaksQueries(Healthy):
    def supports(self, model: Model) -> Any:
        _kept.append(np.ones(1 << 16, np.uint8))
        return super().supports(model)


@fault("leaks-buffers", "keeps 64 KiB of every allocation of driver memory", "", (STRESS,), way="memory")
class LeaksBuffers(Healthy):
    def allocate(self, desc: Any, roles: Any) -> Any:
        _kept.append(np.ones(1 << 16, np.uint8))
        return super().allocate(desc, roles)


@fault(
    "eight-contexts",
    "has at most eight prepared models at once, and fails with IndexError",
    "many-prepared",
    (CONTRACT,),
)
class EightContexts(Healthy):
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        if self.contexts >= CONTEXTS:
            raise IndexError("pop from an empty list")
        return super().prepare(model, hints)


@fault("contexts-kept", "closes nothing: it prepares eight models in its life", "many-prepared")
class ContextsKept(Healthy):
    def __init__(self) -> None:
        self.taken = 0

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        if self.taken >= CONTEXTS:
            raise ResourceExhausted(f"device {self.name}: all {CONTEXTS} contexts are taken")
        self.taken += 1
        return super().prepare(model, hints)


class Trimmable(Engine):
    trimmable = True


@fault("trim-loses-weights", "weights are zeros once memory was given back", "trimmed", (CONTRACT,))
class TrimLosesWeights(Trimmable):
    def trim(self, *, pressed: bool) -> None:
        self.constants = {index: np.zeros_like(value) for index, value in self.constants.items()}


@fault("trim-loses-itself", "a trimmed model cannot run any more", "trimmed", (CONTRACT,))
class TrimLosesItself(Trimmable):
    def trim(self, *, pressed: bool) -> None:
        if pressed:
            self.kernels = {}


@fault("trim-raises", "trim of a prepared model raises", "trimmed", (CONTRACT,))
class TrimRaises(Trimmable):
    def trim(self, *, pressed: bool) -> None:
        raise KeyError("arena")


@fault("trim-hangs", "trim of a prepared model never comes back", "trimmed", (CONTRACT,), hangs=True)
class TrimHangs(Trimmable):
    def trim(self, *, pressed: bool) -> None:
        threading.Event().wait()
