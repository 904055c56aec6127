"""Requests from other processes: memories by number, checked against the model and converted to arrays."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.codes import Lifetime
from nnhal.base.errors import InvalidRequest
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, dtype_of, fixed
from nnhal.base.records import Record
from nnhal.hal.memory import Buffer
from nnhal.hal.request import Request, Signature
from nnhal.model.graph import Model
from nnhal.model.validate import shape_of, validate
from nnhal.ops.schema import agree, show

Place = Memory | Buffer
Where = tuple[int, int, int, tuple[int, ...]]  # pool, offset, length, dimensions


class BoundRequest(Record, frozen=True):
    """A checked request that may run any number of times, each time as a `Request`.

    unaligned: inputs at odd addresses, which engines reject.
    """

    signature: Signature
    inputs: tuple[Array | None, ...]
    outputs: tuple[Array | None, ...]
    input_buffers: dict[int, Buffer]
    output_buffers: dict[int, Buffer]
    unaligned: bool

    def given(self) -> Sequence[Array | None]:
        """Return the inputs of one execution; those at odd addresses as copies."""
        if not self.unaligned:
            return self.inputs
        return [x if x is None or x.flags.aligned else x.copy() for x in self.inputs]

    def request(self) -> Request:
        """Return a new request for one execution."""
        given = self.given() if self.unaligned else self.inputs
        return self.signature.make(self.signature, given, self.outputs, self.input_buffers, self.output_buffers)


def bind_request(
    model: Model,
    inputs: Sequence[Where | None],
    outputs: Sequence[Where | None],
    pools: Sequence[Place],
    signature: Signature | None = None,
) -> BoundRequest:
    """Check every argument before its bytes are read. InvalidRequest names the argument and the rule."""
    main = model.main
    for kind, given, wanted in (("input", inputs, main.inputs), ("output", outputs, main.outputs)):
        if len(given) != len(wanted):
            raise InvalidRequest(f"request has {len(given)} {kind}s, must have {len(wanted)}")
    spans: list[tuple[int, int, int, str]] = []
    ins: list[Array | None] = []
    outs: list[Array | None] = []
    read: dict[int, Buffer] = {}
    written: dict[int, Buffer] = {}
    for n, at in enumerate(inputs):
        ins.append(_argument(model, main.inputs[n], at, pools, f"input {n}", False, spans, read, n))
    for n, at in enumerate(outputs):
        outs.append(_argument(model, main.outputs[n], at, pools, f"output {n}", True, spans, written, n))
    spans += _constants(model, pools)
    _no_overlap(spans)
    unaligned = any(x is not None and not x.flags.aligned for x in ins)
    return BoundRequest(signature or Signature.of(model), tuple(ins), tuple(outs), read, written, unaligned)


def _argument(
    model: Model,
    index: int,
    at: Where | None,
    pools: Sequence[Place],
    label: str,
    output: bool,
    spans: list[tuple[int, int, int, str]],
    buffers: dict[int, Buffer],
    place: int,
) -> Array | None:
    """Return an argument as an array; None without value, in a buffer, or if the driver provides the memory."""
    if at is None:
        if output:
            raise InvalidRequest(f"{label} has no value, must have memory")
        return None
    pool, offset, length, dims = at
    if pool == -1 and output:
        return None
    if not 0 <= pool < len(pools):
        raise InvalidRequest(f"{label}: pool is {pool}, must be below {len(pools)}")
    memory = pools[pool]
    if isinstance(memory, Buffer):
        buffers[place] = memory
        return None
    if offset < 0 or length < 0 or offset + length > memory.size:
        raise InvalidRequest(f"{label}: bytes {offset} to {offset + length} must lie inside the pool's {memory.size}")
    if output and memory.readonly:
        raise InvalidRequest(f"{label}: pool {pool} is for reading only, must be writable")
    spans.append((id(memory), offset, offset + length, label if output else ""))
    shape = _shape(model, index, dims, label, output)
    if output and not length and 0 in dims:  # an output without elements has exactly the given shape
        shape = tuple(dims)
    dtype = dtype_of(model.main.operands[index].type)
    size = -1 if shape is None else math.prod(shape) * dtype.itemsize
    if output and length != size:
        return memory.view(offset, length)  # a size in bytes: too small a one is OUTPUT_INSUFFICIENT_SIZE
    if length != size:
        raise InvalidRequest(f"{label} has {length} bytes, must be {size} for {show(shape)} of {dtype}")
    return memory.view(offset, length, dtype, shape)


def _shape(model: Model, index: int, dims: tuple[int, ...], label: str, output: bool) -> tuple[int, ...] | None:
    """Return the shape of an argument; None for an output of unknown shape."""
    value = validate(model).subgraphs[0].values[index]
    declared = value.shape if value is not None else shape_of(model.main.operands[index])
    given = tuple(d or None for d in dims) if output else tuple(dims)
    if dims and declared is not None and not agree(given, declared):
        raise InvalidRequest(f"{label} has dimensions {show(dims)}, must be {show(declared)}")
    if dims and (0 not in dims or not output):  # an input may have zero elements
        return tuple(dims)
    known = fixed(declared)
    if known is None and not output:
        raise InvalidRequest(f"{label} has dimensions {show(dims)}, must be fully specified")
    return known


def _constants(model: Model, pools: Sequence[Place]) -> list[tuple[int, int, int, str]]:
    """Return the places of the model's constants in memories of the request: they may not be written while they are read."""
    if model.emptied:
        return []
    shared = {place for place, memory in enumerate(model.pools) if any(memory is other for other in pools)}
    return [
        (id(model.pools[at.pool]), at.offset, at.offset + at.length, "")
        for graph in (model.subgraphs if shared else ())
        for operand in graph.operands
        if operand.lifetime == Lifetime.CONSTANT_REFERENCE and (at := operand.location).pool in shared
    ]


def _no_overlap(spans: list[tuple[int, int, int, str]]) -> None:
    spans.sort(key=lambda span: (span[0], span[1]))
    end: tuple[int, int, str] = (0, 0, "")  # the furthest end so far in this memory, and the label of its argument
    written = (0, 0, "")  # likewise of outputs
    for memory, start, stop, label in spans:
        if start == stop:
            continue
        if memory != end[0]:
            end = written = (memory, 0, "")
        other = end if label else written
        if start < other[1]:
            raise InvalidRequest(f"{label or other[2]} overlaps another argument or constant, must lie apart from all")
        if stop > end[1]:
            end = (memory, stop, label)
        if label and stop > written[1]:
            written = (memory, stop, label)


def flat_bytes(array: Array) -> Array:
    """Return the array's bytes in row-major order."""
    return np.ascontiguousarray(array).ravel().view(np.uint8)
