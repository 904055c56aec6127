"""Graphs for long and parallel runs: drawn from operations that the device supports, with inputs and its own results."""

import math
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from nnhal.base.codes import Lifetime, OperandType
from nnhal.base.errors import InvalidModel, NnhalError
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.base.records import Record, replace
from nnhal.conformance.differential import Outputs
from nnhal.conformance.evaluation import Evaluation
from nnhal.conformance.graph_drawing import GraphDrawing, is_data, ordinary, refusal, refused_by
from nnhal.conformance.reduction import names_of
from nnhal.conformance.suites.suite import PREPARING, NotSupported
from nnhal.frontends.python import Builder
from nnhal.hal.device import Device
from nnhal.model.graph import CONSTANTS, Location, Model
from nnhal.ops.schema import F32, Q8, Q8S

FLOAT, QUANT, SINGLE = "float32", "quant8", "single"
KINDS = FLOAT, QUANT, SINGLE
TYPES_OF = {FLOAT: (F32,), QUANT: (Q8, Q8S)}  # of the inputs
SCALE, ZERO = 0.0625, 128
ONE = 144  # stored
SETS = 4  # of inputs for each graph
TRIES = 16  # graphs until a device supports one whole
PAGE = os.sysconf("SC_PAGESIZE")
RELATIVE = 1e-3  # of the greatest magnitude: another input's result differs by far more
At = Callable[[str], None]


class StressGraph(Record, frozen=True):
    """A model, and a function that draws inputs of it from a seed."""

    model: Model
    inputs: Callable[[int], list[Array]]

    @property
    def operations(self) -> str:
        """The names of its operations, each once."""
        return ", ".join(dict.fromkeys(names_of(self.model)))


def supported(device: Device, kind: str, seed: Sequence[int], length: int, at: At) -> StressGraph:
    """Draw a graph that the device supports whole; of fewer operations, if so many cannot be drawn.

    A device may reject an operation in a graph that it supports alone, such as one whose inputs are constants there.

    kind: one of `KINDS`. seed: of the draw. length: the number of operations. at: receives the driver's calls.

    Raises:
        NotSupported: the device supports none of the operations in this type, or none of the graphs.
    """
    stream = [*seed, zlib.crc32(kind.encode())]
    for number in range(TRIES):
        graph = _drawn(device, kind, [*stream, number] if number else stream, length, at)
        if takes(device, graph.model, at):
            return graph
    raise NotSupported(f"no graph of type {kind} is supported whole, of {TRIES}")


def _drawn(device: Device, kind: str, stream: Sequence[int], length: int, at: At) -> StressGraph:
    """Draw a graph of operations that the device supports, from a stream of random numbers."""
    in_a_row = "long_sums" in device.relaxations
    drawing = GraphDrawing(
        np.random.default_rng(stream), lambda model: takes(device, model, at), "stress", in_a_row, refused_by(device)
    )
    at(PREPARING)
    if kind == SINGLE:
        _draw_single(drawing)
    else:
        drawing.fill(length, TYPES_OF[kind])
    if not drawing.count:
        raise NotSupported(
            f"no operation of type {kind} is supported" if kind != SINGLE else "no operation is supported"
        )
    graph = drawing.finish(False, False)

    def inputs(number: int) -> list[Array]:
        return graph.others(np.random.default_rng([*stream, number])) if number else [x.copy() for x in graph.inputs]

    return StressGraph(graph.model, inputs)


def _draw_single(drawing: GraphDrawing) -> None:
    """Draw a graph of one operation of any type."""
    choices = [cell for cell in ordinary() if not cell.op.random]
    for place in drawing.rng.permutation(len(choices)):
        if drawing.try_single(choices[place], soft=False, wide=False):
            return


def takes(device: Device, model: Model, at: At) -> bool:
    """Whether the device supports all operations of a model."""
    at("supports")
    try:
        return not refusal(device, model)
    finally:
        at(PREPARING)


# --------------------------------------------------------------------------------------------------- nearly equal models

NEARLY_EQUAL = {"FULLY_CONNECTED": 1.0, "MUL": 0.5, "ADD": 0.125}  # operations, and scales of their outputs
ELEMENTS = 4096  # of the constant
CHANGED = None, 0, 16, ELEMENTS // 2, ELEMENTS - 1  # the element by which a model differs from the first


def nearly_equal(operation: str, kind: str, changed: int | None) -> StressGraph:
    """Return a model of one operation with a large constant. Models differ in one element of it."""
    steps = np.arange(ELEMENTS) % 7 - 3
    if changed is not None:
        steps[changed] = 127
    b, dense = Builder("nearly equal"), operation == "FULLY_CONNECTED"
    side = math.isqrt(ELEMENTS)
    shape, out = (1, side if dense else ELEMENTS), {"scale": NEARLY_EQUAL[operation], "zero_point": ZERO}
    steps = steps.reshape(side, side) if dense else steps.reshape(shape)
    if kind == FLOAT:
        x, constant, out = b.input(shape), b.constant((steps * SCALE).astype(np.float32)), {}
        bias = b.constant(np.zeros(side, np.float32))
    else:
        type = OperandType.TENSOR_QUANT8_ASYMM
        x, constant = b.input(shape, type, SCALE, ZERO), b.constant((steps + ZERO).astype(np.uint8), type, SCALE, ZERO)
        bias = b.constant(np.zeros(side, np.int32), OperandType.TENSOR_INT32, SCALE**2)
    y = b.operation(operation, x, constant, *([bias] if dense else []), activation="none", **out)
    ones = np.full(shape, 1, np.float32) if kind == FLOAT else np.full(shape, ONE, np.uint8)
    return StressGraph(b.finish([x], [y]), lambda _: [ones.copy()])


# -------------------------------------------------------------------------------------------------------------- results


def difference(wanted: Outputs, actual: Outputs) -> str:
    """Return how results of the same inputs differ, by more than another order of sums; "" if they agree."""
    for number, (one, other) in enumerate(zip(wanted, actual, strict=True)):
        if one is None or other is None:
            if one is not other:
                return f"output {number} has {'no ' * (other is None)}value, must be as when it ran alone"
            continue
        if one.shape != other.shape:
            return f"output {number} has shape {list(other.shape)}, must be {list(one.shape)} as when it ran alone"
        a, b = one.astype(np.float64), other.astype(np.float64)
        limit = 1.0 if one.dtype.itemsize == 1 and one.dtype.kind in "iu" else 0.0
        if one.dtype.kind == "f":
            limit = RELATIVE * float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
        with np.errstate(invalid="ignore"):
            bad = ~((np.abs(a - b) <= limit) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            return (
                f"{int(bad.sum())} of {bad.size} elements of output {number} differ, the first at {list(place)}: "
                f"{b[place]:g}, must be {a[place]:g} as when it ran alone"
            )
    return ""


def mapped(graph: StressGraph, path: Path) -> StressGraph:
    """Return the graph with all constants in a mapped file, some of them at odd offsets within a page."""

    def written(data: bytes) -> Memory:
        path.write_bytes(data)
        return Memory.from_file(path)

    changed = _with_constants(graph, lambda x: x, written)
    if changed is None:
        raise InvalidModel("graph has no constants, must have at least one to be mapped")
    return changed


def with_other_constants(graph: StressGraph) -> StressGraph | None:
    """Return the graph with the elements of its constants in other places.

    None if it has no constants, or if the reference rejects it then.
    """

    def rolled(x: Array) -> Array:
        return np.roll(x, 1) if is_data(x) else x

    changed = _with_constants(graph, rolled, lambda data: Memory.from_array(np.frombuffer(data, np.uint8)))
    if changed is not None:
        try:
            for number in range(SETS):
                Evaluation(changed.model).graph(0, changed.inputs(number))
        except NnhalError:
            return None
    return changed


def _with_constants(
    graph: StressGraph, change: Callable[[Array], Array], pool_of: Callable[[bytes], Memory]
) -> StressGraph | None:
    main, data, operands = graph.model.main, bytearray(), []
    for operand in main.operands:
        if operand.lifetime not in CONSTANTS:
            operands.append(operand)
            continue
        array = change(graph.model.constant(operand))
        data += bytes(-len(data) % PAGE + 3 * array.itemsize)  # beyond the start of a page, aligned for its type alone
        operands.append(
            replace(operand, lifetime=Lifetime.CONSTANT_REFERENCE, location=Location(0, len(data), array.nbytes))
        )
        data += array.tobytes()
    if not data:
        return None
    changed = replace(main, operands=tuple(operands))
    return replace(graph, model=replace(graph.model, main=changed, values=b"", pools=(pool_of(bytes(data)),)))
