"""Output shapes: buffers that are too small or too large, and outputs whose shapes are known only at the end."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.errors import NnhalError
from nnhal.base.levels import V1_2
from nnhal.base.operands import Array
from nnhal.conformance.differential import Outputs, arrays_of
from nnhal.conformance.draw import Call
from nnhal.conformance.place import place_in
from nnhal.conformance.suites.vts.promise import OPERATION, Probe, changed, named, promise
from nnhal.conformance.validate.trial import NotAsked, RequirementNotMet, copies
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED, Request, Run
from nnhal.model.graph import Model

FILL = 0x5A


class _Executor(NamedTuple):
    """A prepared model, and its `run` or that of a burst of it."""

    prepared: Prepared
    run: Run
    where: str = ""


def _executed(probe: Probe, executor: _Executor, call: Call, rooms: Sequence[Array | None], what: str) -> Request:
    request = probe.request(executor.prepared, copies(arrays_of(call)), rooms)
    try:
        with probe.stages.enter("run"):
            request.execute(executor.run, UNLIMITED)
    except NnhalError as error:
        raise RequirementNotMet(
            f"{what}: {named(error)}, must report the shapes", place_in(error.stack) or probe.place()
        ) from error
    return request


def _bytes(size: int) -> Array:
    return np.full(size, FILL, np.uint8)


@promise(
    "shapes/small",
    "A buffer that is too small is reported with the true shapes, not overrun, and harms no later execution or burst.",
    OPERATION,
    unseen="no output has elements",
)
def small(probe: Probe) -> int:
    call, model = probe.closed()
    return _small(probe, call, model, probe.alone(model, arrays_of(call)))


@promise(
    "shapes/unknown",
    "Outputs of unknown shape have the shape of the definition, also where their buffer is too small.",
    OPERATION,
    unseen="no output has elements",
)
def unknown(probe: Probe) -> int:
    probe.calls.fixed()
    probe.since(V1_2, "outputs of unknown shape")
    for call, model in probe.calls.taken():
        if call.open:
            try:
                wanted = probe.calls.wanted(model, arrays_of(call))
            except NnhalError:
                continue
            if any(w is not None and w.size for w in wanted):
                probe.calls.has_one = True
                prepared = probe.prepare(model)
                probe.right(call, wanted, prepared, "with outputs of unknown shape")
                return 1 + _small(probe, call, model, wanted)
    raise NotAsked("no supported call has outputs of unknown shape")


def _small(probe: Probe, call: Call, model: Model, wanted: Outputs) -> int:
    prepared = probe.prepare(model)
    seen = _too_small(probe, call, _Executor(prepared, prepared.run), wanted)
    if probe.device.level >= V1_2:
        with prepared.burst() as series:
            seen += _too_small(probe, call, _Executor(prepared, series.run, "in a burst, "), wanted)
    probe.right(call, wanted, prepared, "after buffers that were too small")
    return seen


def _too_small(probe: Probe, call: Call, executor: _Executor, wanted: Outputs) -> int:
    sizes = [0 if w is None else w.nbytes for w in wanted]
    whole: list[Array] = [_bytes(size) for size in sizes]
    seen = 0
    for place, size in enumerate(sizes):
        for less in sorted({size - 1, size // 2, 0} - {size} if size else ()):
            if less < 0:
                continue
            behind = _bytes(size + 64)
            what = f"{executor.where}output {place} with a buffer of {less} of {size} bytes"
            request = _executed(probe, executor, call, changed(whole, place, behind[:less]), what)
            if place not in request.small:
                raise RequirementNotMet(
                    f"{what} is reported as sufficient, must be OUTPUT_INSUFFICIENT_SIZE", probe.place()
                )
            others = [n for n in request.small if n != place]
            if others:
                raise RequirementNotMet(
                    f"{what}: output {others[0]} is reported as insufficient too, must be output {place} alone"
                )
            for n, (shape, w) in enumerate(zip(request.shapes, wanted, strict=True)):
                partly = shape is None or 0 in shape or shape == () != w.shape if w is not None else True
                if w is not None and not partly and tuple(shape) != w.shape:
                    raise RequirementNotMet(
                        f"{what}: the shape of output {n} is {list(shape)}, must be {list(w.shape)}"
                    )
            shape, right = request.shapes[place], wanted[place]
            assert right is not None
            if shape is None or tuple(shape) != right.shape:
                raise RequirementNotMet(f"{what}: its shape is {shape}, must be {list(right.shape)}")
            if (behind[less:] != FILL).any():
                raise RequirementNotMet(f"{what}: is written past its end", probe.place())
            seen += 1
        if size:
            what = f"{executor.where}output {place} with a buffer of {size + 64} of {size} bytes"
            request = _executed(probe, executor, call, changed(whole, place, _bytes(size + 64)), what)
            probe.same(call, wanted, request.results, what)
    return seen
