"""Graphs for long and parallel runs: drawn from operations that the device supports, with inputs and its own results."""

import math
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.codes import Lifetime, OperandType
from nnhal.base.errors import InvalidModel, NnhalError
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.base.records import Record, replace
from nnhal.conformance.differential import Outputs, arrays_of, model_of, with_other_values
from nnhal.conformance.draw import Call, cells, draw
from nnhal.conformance.reduction import names_of
from nnhal.conformance.suites.suite import PREPARING, NotSupported
from nnhal.conformance.validate.trial import by_reference
from nnhal.frontends.python import Builder
from nnhal.frontends.tensor import Tensor
from nnhal.hal.claims import query_verdicts
from nnhal.hal.device import Device
from nnhal.hal.lowering import refusals
from nnhal.model.graph import CONSTANTS, Location, Model
from nnhal.ops import OPS

FLOAT, QUANT, SINGLE = "float32", "quant8", "single"
KINDS = FLOAT, QUANT, SINGLE
SCALE, ZERO = 0.0625, 128
ONE = 144  # stored
SOFTMAX_SCALE = 1 / 256
FILTER = 3
TRIES = 3  # draws of one operation's signature and type
PAGE = os.sysconf("SC_PAGESIZE")
RELATIVE = 1e-3  # of the greatest magnitude: another input's result differs by far more
ACTIVATIONS = "none", "relu", "relu6"
At = Callable[[str], None]


class StressGraph(Record, frozen=True):
    """A model, and the way to draw inputs of it. call: of a model of one drawn operation."""

    model: Model
    kind: str
    call: Call | None = None

    @property
    def operations(self) -> str:
        """The names of its operations, each once."""
        return ", ".join(dict.fromkeys(names_of(self.model)))

    def inputs(self, seed: int) -> list[Array]:
        """Draw the values of all inputs."""
        rng = np.random.default_rng([seed, 1])
        if self.call is not None:
            return [x.copy() for x in arrays_of(with_other_values(self.call, rng) if seed else self.call)]
        operands = [self.model.main.operands[index] for index in self.model.main.inputs]
        if self.kind == FLOAT:
            return [rng.uniform(-2, 2, o.dimensions).astype(np.float32) for o in operands]
        return [rng.integers(0, 256, o.dimensions).astype(np.uint8) for o in operands]


def supported(device: Device, kind: str, seed: Sequence[int], length: int, at: At) -> StressGraph:
    """Draw a graph whose operations the device supports all; of fewer operations, if it rejects some.

    seed: of the draw. length: the number of operations. at: receives the driver's calls.

    Raises:
        NotSupported: the device supports none of the operations in this type.
    """
    rules = dict(RULES) if kind != SINGLE else {}
    while rules:
        at(PREPARING)
        model = _Drawing([*seed, zlib.crc32(kind.encode())], kind, rules).graph(length)
        if model is None:
            break
        graph = StressGraph(model, kind)
        rejected = {
            name for name, ok in zip(names_of(graph.model), verdicts(device, graph.model, at), strict=True) if not ok
        }
        if not rejected:
            return graph
        rules = {name: rule for name, rule in rules.items() if name not in rejected}
    return _single(device, kind, seed, at)


def verdicts(device: Device, model: Model, at: At) -> list[bool]:
    """Return whether the device supports each operation, at its HAL version."""
    at(PREPARING)
    lacking = refusals(model, device.level)
    if any(lacking):
        return [not why for why in lacking]
    at("supports")
    try:
        return [verdict.ok for verdict in query_verdicts(device, model)]
    finally:
        at(PREPARING)


def _single(device: Device, kind: str, seed: Sequence[int], at: At) -> StressGraph:
    """Draw a model of one operation, of any type if `kind` is SINGLE."""
    rng = np.random.default_rng([*seed, 2])
    names = list(OPS)
    for place in rng.permutation(len(names)):
        name = names[place]
        if OPS[name].random:
            continue
        fitting = [cell for cell in cells([name]) if cell.values == "ordinary" and _of_kind(cell.kind, kind)]
        for cell in [fitting[n] for n in rng.permutation(len(fitting))[:TRIES]]:
            call = draw(cell, rng)
            model = model_of(call)
            if not call.given or not all(verdicts(device, model, at)):
                continue
            try:
                wanted = by_reference(model, arrays_of(call))
            except NnhalError:
                continue  # a valid failure
            if any(w is not None and w.size for w in wanted):
                return StressGraph(model, SINGLE, call)
    raise NotSupported(f"no operation of type {kind} is supported" if kind != SINGLE else "no operation is supported")


def _of_kind(type: int, kind: str) -> bool:
    if kind == FLOAT:
        return type == OperandType.TENSOR_FLOAT32
    return kind == SINGLE or type in (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED)


# ---------------------------------------------------------------------------------------------------------------- rules


class _Drawing:
    """A graph under construction: a picture, and everything computed from it."""

    def __init__(self, seed: Sequence[int], kind: str, rules: dict[str, "Rule"]) -> None:
        self.rng, self.kind, self.rules, self.b = np.random.default_rng(seed), kind, rules, Builder("stress")
        size = int(self.rng.integers(4, 9))
        shape = (1, size, size, int(self.pick(1, 3, 5, 8, 17, 33)))
        quantised: tuple[Any, ...] = (OperandType.TENSOR_QUANT8_ASYMM, SCALE, ZERO) if kind == QUANT else ()
        self.inputs = [self.b.input(shape, *quantised)]
        self.values, self.unread = [*self.inputs], dict[int, Tensor]()

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def graph(self, length: int) -> Model | None:
        """Return a model of so many operations or fewer; None if no rule suits even the input."""
        names = list(self.rules)
        for number in range(length):
            # Later operations read late values, so that the graph is deep; some read early ones again.
            x = self.values[-1] if self.rng.random() < 0.6 else self.pick(*self.values)
            for place in self.rng.permutation(len(names)):
                made = self.rules[names[place]](self, x)
                if made is not None:
                    break
            else:
                if not number:
                    return None
                continue
            self.values.append(made)
            self.unread[made.index] = made
        return self.b.finish(self.inputs, list(self.unread.values()))

    def read(self, *tensors: Tensor) -> None:
        """Note that tensors are read, so that they need not be outputs."""
        for tensor in tensors:
            self.unread.pop(tensor.index, None)

    def same_shape(self, x: Tensor) -> Tensor:
        """Return a value of the same shape: often `x` itself, as a repeated operand."""
        return self.pick(*[v for v in self.values if v.value.shape == x.value.shape])

    def constant(self, shape: Sequence[int], spread: float) -> Tensor:
        if self.kind == FLOAT:
            return self.b.constant(self.rng.uniform(-spread, spread, shape).astype(np.float32))
        most = max(1, min(127, round(spread / SCALE)))
        stored = self.rng.integers(ZERO - most, ZERO + most + 1, shape).astype(np.uint8)
        return self.b.constant(stored, OperandType.TENSOR_QUANT8_ASYMM, SCALE, ZERO)

    def bias(self, size: int) -> Tensor:
        values = self.rng.uniform(-0.5, 0.5, size)
        if self.kind == FLOAT:
            return self.b.constant(values.astype(np.float32))
        stored = np.round(values / SCALE**2).astype(np.int32)
        return self.b.constant(stored, OperandType.TENSOR_INT32, SCALE**2)

    @property
    def out(self) -> dict[str, Any]:
        """The quantisation of an output."""
        return {"scale": SCALE, "zero_point": ZERO} if self.kind == QUANT else {}


Rule = Callable[[_Drawing, Tensor], Tensor | None]


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(int(n) for n in x.value.known)


def _binary(name: str) -> Rule:
    def rule(d: _Drawing, x: Tensor) -> Tensor | None:
        constant = d.rng.random() < 0.4
        y = d.constant(_shape(x)[-1:], 1.0) if constant else d.same_shape(x)
        d.read(x, y)
        made: Tensor = d.b.operation(name, x, y, activation=d.pick(*ACTIVATIONS), **d.out)
        return made

    return rule


def _unary(name: str) -> Rule:
    def rule(d: _Drawing, x: Tensor) -> Tensor | None:
        d.read(x)
        made: Tensor = d.b.operation(name, x)
        return made

    return rule


def _convolution(d: _Drawing, x: Tensor) -> Tensor | None:
    shape = _shape(x)
    if len(shape) != 4:
        return None
    side, depth = d.pick(1, FILTER), int(d.pick(2, 4, 8, 17))
    weights = d.constant((depth, side, side, shape[3]), 1 / math.sqrt(side * side * shape[3]))
    d.read(x)
    return d.b.conv_2d(x, weights, d.bias(depth), padding="same", activation=d.pick(*ACTIVATIONS), **d.out)


def _depthwise(d: _Drawing, x: Tensor) -> Tensor | None:
    shape = _shape(x)
    if len(shape) != 4:
        return None
    weights = d.constant((1, FILTER, FILTER, shape[3]), 1 / FILTER)
    d.read(x)
    return d.b.depthwise_conv_2d(
        x, weights, d.bias(shape[3]), padding="same", depth_multiplier=1, activation=d.pick(*ACTIVATIONS), **d.out
    )


def _pool(name: str) -> Rule:
    def rule(d: _Drawing, x: Tensor) -> Tensor | None:
        if len(_shape(x)) != 4:
            return None
        d.read(x)
        made: Tensor = d.b.operation(name, x, padding="same", filter_size=2, activation="none")
        return made

    return rule


def _joined(d: _Drawing, x: Tensor) -> Tensor | None:
    shape = _shape(x)
    beside = [v for v in d.values if _shape(v)[:-1] == shape[:-1] and shape[-1] + _shape(v)[-1] <= 96]
    if not beside:
        return None
    y = d.pick(*beside)
    d.read(x, y)
    return d.b.concatenation([x, y], len(shape) - 1, **d.out)


def _connected(d: _Drawing, x: Tensor) -> Tensor | None:
    shape = _shape(x)
    size = math.prod(shape[1:])
    if size > 4096:
        return None
    units = int(d.pick(3, 8, 33))
    weights = d.constant((units, size), 1 / math.sqrt(size))
    d.read(x)
    return d.b.fully_connected(x, weights, d.bias(units), activation=d.pick(*ACTIVATIONS), **d.out)


def _float_only(rule: Rule) -> Rule:
    """Their quantised outputs have other scales, which no other rule could read."""
    return lambda d, x: rule(d, x) if d.kind == FLOAT else None


RULES: dict[str, Rule] = {
    "ADD": _binary("ADD"),
    "MUL": _binary("MUL"),
    "SUB": _binary("SUB"),
    "RELU": _unary("RELU"),
    "RELU6": _unary("RELU6"),
    "LOGISTIC": _float_only(_unary("LOGISTIC")),
    "TANH": _float_only(_unary("TANH")),
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "MAX_POOL_2D": _pool("MAX_POOL_2D"),
    "AVERAGE_POOL_2D": _pool("AVERAGE_POOL_2D"),
    "CONCATENATION": _joined,
    "FULLY_CONNECTED": _connected,
}


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
    return StressGraph(b.finish([x], [y]), kind)


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
    main, data, operands = graph.model.main, bytearray(), []
    for operand in main.operands:
        if operand.lifetime not in CONSTANTS:
            operands.append(operand)
            continue
        stored = graph.model.constant(operand).tobytes()
        size = graph.model.constant(operand).dtype.itemsize
        data += bytes(-len(data) % PAGE + 3 * size)  # beyond the start of a page, aligned for its type alone
        operands.append(
            replace(operand, lifetime=Lifetime.CONSTANT_REFERENCE, location=Location(0, len(data), len(stored)))
        )
        data += stored
    if not data:
        raise InvalidModel("graph has no constants, must have at least one to be mapped")
    path.write_bytes(data)
    changed = replace(main, operands=tuple(operands))
    return replace(graph, model=replace(graph.model, main=changed, values=b"", pools=(Memory.from_file(path),)))
