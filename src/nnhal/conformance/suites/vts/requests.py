"""Invalid requests: arguments that are missing, too many, of another type or shape, or outside their memory.

nnhal refuses an invalid request before a driver in this process sees it. A driver's own process looks at it again, as
its clients are other programs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from nnhal.base.errors import ContractBroken, DeadObject, DriverFailed, InvalidArgument, MissedDeadline, NnhalError
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.suites.vts.promise import CHOSEN, OPERATION, Probe, changed, named, promise
from nnhal.conformance.suites.vts.remote import opened, prepared_on
from nnhal.conformance.validate.trial import RequirementNotMet, copies
from nnhal.hal.binding import flat_bytes
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED, Request, Signature
from nnhal.ipc.client.prepared import RemoteBinding
from nnhal.ipc.protocol import wire

NOT_NAMED = DriverFailed, ContractBroken, DeadObject, MissedDeadline  # errors that refuse nothing
Given = Sequence[Array | None]
Mutations = Callable[[list[Array]], Iterator[tuple[str, Given]]]


def _inputs(arrays: list[Array]) -> Iterator[tuple[str, Given]]:
    yield "without its last input", arrays[:-1]
    yield "with an input too many", [*arrays, arrays[-1]]
    yield "without inputs", []


def _types(arrays: list[Array]) -> Iterator[tuple[str, Given]]:
    for place, array in enumerate(arrays):
        other = np.dtype(np.int64 if array.dtype.kind == "f" else np.float64)
        yield f"with input {place} of type {other}", changed(arrays, place, np.ones(array.shape, other))


def _shapes(arrays: list[Array]) -> Iterator[tuple[str, Given]]:
    for place, array in enumerate(arrays):
        yield f"with one more dimension in input {place}", changed(arrays, place, array.reshape(*array.shape, 1))
        if array.ndim:
            yield f"with an empty input {place}", changed(arrays, place, array[:0])
            yield f"with a larger input {place}", changed(arrays, place, np.concatenate([array, array[:1]]))


def _looked(probe: Probe, mutations: Mutations) -> int:
    """Execute mutated requests; RequirementNotMet for one that a driver's process accepts, or that harms a later one."""
    call, model = probe.closed()
    wanted = probe.alone(model, arrays_of(call))
    prepared = probe.prepare(model)
    seen = 0
    for what, arrays in mutations(copies(arrays_of(call))):
        request = probe.request(prepared, arrays)
        if probe.isolated:
            _refused(probe, f"a request {what}", request, prepared)
        else:
            with probe.stages.enter("run"), suppress(NnhalError):
                request.execute(prepared.run, UNLIMITED)
        seen += 1
        probe.right(call, wanted, prepared, f"after a request {what}")
    return seen


def _refused(probe: Probe, what: str, request: Request, prepared: Prepared) -> None:
    try:
        with probe.stages.enter("run"):
            request.execute(prepared.run, UNLIMITED)
    except NOT_NAMED as error:
        raise RequirementNotMet(f"{what}: {named(error)}, must be InvalidArgument") from error
    except NnhalError:
        return
    raise RequirementNotMet(f"{what} is executed, must be refused")


@promise("requests/inputs", "A request with inputs missing or too many is refused, and harms no later one.", OPERATION)
def inputs(probe: Probe) -> int:
    return _looked(probe, _inputs)


@promise("requests/types", "A request with an input of another type is refused, and harms no later one.", OPERATION)
def types(probe: Probe) -> int:
    return _looked(probe, _types)


@promise("requests/shapes", "A request with an input of another shape is refused, and harms no later one.", OPERATION)
def shapes(probe: Probe) -> int:
    return _looked(probe, _shapes)


@promise(
    "requests/omitted",
    "A request without an input is refused, unless that input is not read, and harms no later one.",
    OPERATION,
)
def omitted(probe: Probe) -> int:
    call, model = probe.closed()
    wanted = probe.alone(model, arrays_of(call))
    prepared = probe.prepare(model)
    arrays = copies(arrays_of(call))
    for place in range(len(arrays)):
        request = probe.request(prepared, changed(arrays, place, None))
        try:
            with probe.stages.enter("run"):
                request.execute(prepared.run, UNLIMITED)
        except DeadObject:
            raise
        except NnhalError:
            probe.right(call, wanted, prepared, f"after a request without input {place}")
            continue
        probe.same(call, wanted, request.results, f"without input {place}, which is not refused")
    return len(arrays)


# ------------------------------------------------------------------------------------------------------------ on the wire


@promise(
    "requests/wire",
    "A driver's process refuses a request with invalid pools, offsets, lengths, dimensions or overlaps.",
    CHOSEN,
    isolated=True,
)
def on_the_wire(probe: Probe) -> int:
    call, model = probe.closed()
    wanted = probe.alone(model, arrays_of(call))
    seen = 0
    with opened(probe) as device:
        prepared = prepared_on(device, model)
        probe.opened(prepared)
        valid, memory = wire_arguments(prepared.signature, arrays_of(call))

        def bound(request: WireArguments) -> None:
            with device.session.carrying([memory], UNLIMITED) as packing:
                pools = tuple(wire.MemoryPool(packing.pool(memory)) for _ in range(request.pools))
                binding = RemoteBinding(device.session)
                whole = wire.WireRequest(tuple(request.inputs), tuple(request.outputs), pools)
                message = wire.Bind(binding.number, prepared.number, whole)
                with probe.stages.enter("bind"):
                    device.session.call(message, wire.Acknowledged, UNLIMITED, packing)

        bound(valid)
        for what, request in _mutated(valid, memory.size):
            probe.refused(f"a request {what}", (InvalidArgument, NnhalError), partial(bound, request))
            seen += 1
        probe.right(call, wanted, prepared, "after invalid requests")
    return seen


class WireArguments(NamedTuple):
    """The places of inputs and outputs. pools: how many the request has, each the same memory."""

    inputs: Sequence[wire.WireArgument]
    outputs: Sequence[wire.WireArgument | None]
    pools: int = 1


def wire_arguments(signature: Signature, arrays: Sequence[Array]) -> tuple[WireArguments, Memory]:
    """Return a valid request, whose arguments lie in one memory one after another."""
    places: list[wire.WireArgument] = []
    offset = 0
    for shape, size in [
        *((x.shape, x.nbytes) for x in arrays),
        *((a.fixed or (), a.nbytes or 0) for a in signature.outputs),
    ]:
        places.append(wire.WireArgument(0, offset, size, tuple(shape)))
        offset += -(-max(size, 1) // 64) * 64
    memory = Memory.allocate(offset, "nnhal-vts")
    for place, array in zip(places, arrays, strict=False):
        memory.bytes()[place.offset : place.offset + place.length] = flat_bytes(array)
    return WireArguments(places[: len(arrays)], places[len(arrays) :]), memory


def _mutated(valid: WireArguments, size: int) -> Iterator[tuple[str, WireArguments]]:
    inputs, outputs = valid.inputs, valid.outputs
    first, *others = inputs
    made, *more = outputs
    assert made is not None
    yield "without its last input", WireArguments(inputs[:-1], outputs)
    yield "with an input too many", WireArguments([*inputs, inputs[-1]], outputs)
    yield "without outputs", WireArguments(inputs, ())
    yield "with an output too many", WireArguments(inputs, [*outputs, outputs[-1]])
    yield "with output 0 omitted", WireArguments(inputs, [None, *more])
    yield "without pools", WireArguments(inputs, outputs, 0)
    yield "with output 0 on input 0", WireArguments(inputs, [replace(made, offset=first.offset), *more])
    yield "with input 0 a byte short", WireArguments([replace(first, length=first.length - 1), *others], outputs)
    if first.dimensions:
        unspecified = replace(first, dimensions=(0, *first.dimensions[1:]))
        yield "with an unspecified dimension in input 0", WireArguments([unspecified, *others], outputs)
    for what, bad in _misplaced(first, size):
        yield f"with an input 0 that {what}", WireArguments([bad, *others], outputs)
    for what, bad in _misplaced(made, size):
        yield f"with an output 0 that {what}", WireArguments(inputs, [bad, *more])


def _misplaced(place: wire.WireArgument, size: int) -> Iterator[tuple[str, wire.WireArgument]]:
    """Yield wrong places. size: of the only pool."""
    dims = place.dimensions
    yield "lies in pool 1 of 1", replace(place, pool=1)
    yield "lies in pool -2", replace(place, pool=-2)
    yield "begins past the end of its pool", replace(place, offset=size + 1)
    yield "ends past the end of its pool", replace(place, offset=size - place.length + 1)
    yield "ends past 2**64", replace(place, offset=2**64 - 1)
    yield "is longer than its pool", replace(place, length=size + 1)
    yield "has another rank", replace(place, dimensions=(*dims, 1, 1))
    yield "has other dimensions", replace(place, dimensions=tuple(d + 1 for d in dims) or (1, 1))
    yield "has dimensions whose product is above 2**64", replace(place, dimensions=(2**31 - 1,) * 4)
