"""A sample driver that compiles in two stages: quickly first, then better while the model is already in use.

The first stage is the reference's interpreter. The second computes, once, all results that depend only on constants.
Weights of 8 or 16 bits, which a model widens in each run, are then wide. Executions that begin after that use it. So do
the cache files: the next compilation of the same model begins with the second stage.
"""

import threading

import numpy as np

from nnhal.base.codes import Lifetime
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory, aligned
from nnhal.base.records import replace
from nnhal.base.sealed import Store
from nnhal.drivers.reference import Interpreter, Reference
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.device import Capabilities, Device, Hints, Prepared, Verdict
from nnhal.hal.late_cache import Later
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.model.graph import CONSTANTS, Location, Model
from nnhal.model.parts import extract_part
from nnhal.model.stored import pack_device_view, unpack_device_view
from nnhal.model.validate import validate


class Staged(Device):
    """The device. Each stage uses the CPU reference's arithmetic."""

    name, version, level = "sample-staged", "1", V1_3

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(0.9)

    def supports(self, model: Model) -> list[Verdict]:
        return Reference().supports(model)

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(model=1, data=1)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return StagedPrepared(model, Later(self, hints.cache) if hints.cache is not None else None)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        values = files.data[0]["values"]
        more = (sealed_values(values),) if len(values) else ()
        return StagedPrepared(unpack_device_view(files.model[0]["model"], (*files.pools, *more)), folds=not more)


class StagedPrepared(Prepared):
    """A model in its first stage, then in its second.

    later: receives the cache entry of the second stage. folds: whether there is a second one.
    """

    def __init__(self, model: Model, later: Later | None = None, *, folds: bool = True) -> None:
        self._stage: Interpreter = Interpreter(model)
        self._later = later
        self._thread = threading.Thread(target=self._fold, args=(model,), name="nnhal-fold", daemon=True)
        if folds:
            self._thread.start()

    def _fold(self, model: Model) -> None:
        """Prepare the second stage, in the background."""
        better = folded(model)
        if better is not None:
            self._stage = Interpreter(better)
        if self._later is not None:
            if better is not None:
                content = self._later.empty()
                _put(content, better, len(model.pools))
                self._later.save(content)
            self._later.close()

    def run(self, request: Request, control: Control) -> Timing | None:
        return self._stage.run(request, control)

    def save(self, files: CacheContent) -> bool:
        """Save the first stage, which is ready at once."""
        _put(files, self.model, len(self.model.pools))
        return True

    def close(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()


def _put(files: CacheContent, model: Model, pools: int) -> None:
    """Write a model, with the values outside the pools that a restoring driver has."""
    files.model[0]["model"] = pack_device_view(model)
    files.data[0]["values"] = model.pools[pools].bytes() if len(model.pools) > pools else b""


def sealed_values(values: memoryview) -> Memory:
    """Return values as immutable memory."""
    store = Store("nnhal-folded")
    store.add(np.frombuffer(values, np.uint8))
    return store.seal()


def folded(model: Model) -> Model | None:
    """Return the model with constant results folded; None if there are none."""
    main, bounds = model.main, validate(model).subgraphs[0].operations
    known = {i for i, o in enumerate(main.operands) if o.lifetime in (*CONSTANTS, Lifetime.NO_VALUE)}
    done: list[int] = []
    for n, (operation, a) in enumerate(zip(main.operations, bounds, strict=True)):
        inner = all(main.operands[i].lifetime == Lifetime.TEMPORARY_VARIABLE for i in operation.outputs)
        if inner and a is not None and not (a.op.context or a.op.random) and known.issuperset(operation.inputs):
            known.update(operation.outputs)
            done.append(n)
    if not done:
        return None
    part = extract_part(model, done)
    found = dict(zip(part.outputs, Interpreter(part.model).call(0, [], UNLIMITED), strict=True))
    operands, at, pool = list(main.operands), 0, bytearray()
    for operation in (main.operations[n] for n in done):
        for index in operation.outputs:
            operand = operands[index]
            if index not in found:  # only folded operations read it
                operands[index] = replace(operand, lifetime=Lifetime.NO_VALUE)
                continue
            data = np.ascontiguousarray(found[index]).tobytes()
            at = aligned(len(pool))
            pool += bytes(at - len(pool)) + data
            place = Location(len(model.pools), at, len(data))
            shape = found[index].shape
            operands[index] = replace(
                operand, lifetime=Lifetime.CONSTANT_REFERENCE, location=place, dimensions=tuple(shape)
            )
    left = tuple(operation for n, operation in enumerate(main.operations) if n not in set(done))
    graph = replace(main, operands=tuple(operands), operations=left)
    made = replace(model, main=graph, pools=(*model.pools, sealed_values(memoryview(pool))))
    validate(made)
    return made


def device() -> Device:
    """Return the driver's device."""
    return Staged()
