"""Calls on which inexact fast kernels fail: all ends of the quantised types, odd sizes, long sums.

Without better instructions, an engine multiplies 8 bits in pairs and adds up in 16, which saturates; it sums up in 16
or 32 bits, or in bfloat16; or it forgets the remainder beside whole SIMD vectors. So the rows of an input and the
channels of weights consist of one end, of the other, or of both alternately. Depths are 1, 3, 17 and 33; outputs are as
coarse as the greatest sum needs, and finer. Other operations, and further calls of these families, are drawn
(`conformance.draw`).

A kernel may also cut off the decimals of a bound that is not a stored value. One quantisation step is within the
tolerance, but may be all of RELU1 if the quantisation is coarse. So results at a bound, and zeros, must equal the
reference's.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, TypeVar

import numpy as np

from nnhal.base.codes import Activation, OperandType, OperationType, Padding
from nnhal.base.errors import InvalidModel
from nnhal.base.operands import Array, ChannelQuant, Value, dtype_of
from nnhal.base.records import replace
from nnhal.conformance.draw import AT_BOUNDS, Call, Cell, cells, contents, draw
from nnhal.ops import OPS
from nnhal.ops.schema import F32, I32, Q8, Q8PC, REQUIRED, Form, Op, bind

DEPTHS = 1, 3, 17, 33
FINER = 1, 8, 64  # divisors of the output's scale that the greatest sum needs
LONG = 300, 40_000  # products of a sum; so many of the ends exceed 32 bits
SCALE, WEIGHT_SCALE = 0.5, 0.25
CHANNELS = 4.0, 2.0**12  # ratios of the greatest scale of a channel to the least
MAGNITUDES: dict[int, tuple[float, ...]] = {
    F32: (1.0, 1e15, 1e-15, 1e-22)
}  # of floats; their products are finite, or nearly 0
PLAIN = (1,), DEPTHS, (17, 1, 3, 33)  # groups, inputs of each, outputs of each: engines choose kernels by these
GROUPS = {
    "DEPTHWISE_CONV_2D": ((1, 2, 3, 17, 33), (1,), (1, 2, 3)),
    "GROUPED_CONV_2D": ((2, 3, 5), (1, 3, 17), (1, 2, 5)),
}
WINDOWS = (3, 3), (1, 1), (2, 3)  # sizes of filters
WIDE_WINDOW = 17  # more elements than sums of 16 bits hold
ROWS = 6
BOUNDED_SCALES = 1.3, 0.7, 0.3, 0.27  # neither 1 nor 6 is a multiple of these in float32

C = TypeVar("C")
Pattern = Callable[[np.random.Generator, int, int, int], Array]


def _in_turn(times: int) -> Pattern:
    return lambda _, count, low, high: np.where(np.arange(count) // times % 2, low, high)


PATTERNS: tuple[Pattern, ...] = (
    lambda _, count, low, high: np.full(count, high),
    lambda _, count, low, high: np.full(count, low),
    _in_turn(1),
    _in_turn(2),
    lambda rng, count, low, high: rng.choice([low, high], count),
    lambda rng, count, low, high: rng.integers(low, high, count, endpoint=True),
)


def hard_calls(operation: str, kind: int, seed: int = 0) -> Iterator[Call]:
    """Yield calls of an operation of type `kind`, the same for a seed: first those of its family, then drawn ones."""
    rng = np.random.default_rng([zlib.crc32(operation.encode()), kind, seed])
    if operation in FAMILIES:
        for number, made in enumerate(FAMILIES[operation](ModelMaker(operation, kind, rng))):
            arguments, given, out = made
            try:
                yield call_of(operation, kind, arguments, given, out)
            except InvalidModel as error:  # zero points that the type does not allow
                if number == 0:
                    raise AssertionError(f"{operation}: {error}") from error
    if operation in BOUNDED and dtype_of(kind).itemsize == 1:
        for arguments, given, out in _bounded(ModelMaker(operation, kind, rng)):
            yield call_of(operation, kind, arguments, given, out, AT_BOUNDS)
    for cell in cells([operation]):
        if cell.kind == kind:
            yield draw(cell, rng)


Made = tuple[
    dict[str, Any], Sequence[str], tuple[float, int]
]  # arguments, those given at execution, output's quantisation


class ModelMaker:
    """Makes the calls of an operation. `turn` counts them, so that parameters that are not combined alternate."""

    def __init__(self, operation: str, kind: int, rng: np.random.Generator) -> None:
        self.operation, self.kind, self.rng, self.turn = operation, kind, rng, 0
        self.quantised = dtype_of(kind).itemsize == 1

    def turns(self, cases: Iterable[C]) -> Iterator[C]:
        """Yield these cases, counted."""
        for self.turn, case in enumerate(cases):
            yield case

    def mixed(self, choices: Sequence[C], count: int) -> Iterator[C]:
        """Yield so many of these, each equally often, in a new order each time."""
        times = -(-count // len(choices))
        order = np.concatenate([self.rng.permutation(len(choices)) for _ in range(times)])
        return (choices[n] for n in order[:count])

    def next(self, choices: Sequence[Any], every: int = 1) -> Any:
        """Return one of these, another one each `every` calls."""
        return choices[self.turn // every % len(choices)]

    def zero_points(self) -> tuple[int, ...]:
        """Return both ends and the middle."""
        if not self.quantised:
            return (0,)
        limits = np.iinfo(dtype_of(self.kind))
        return int(limits.min), (int(limits.min) + int(limits.max) + 1) // 2, int(limits.max)

    def tensor(self, shape: Sequence[int], zero: int = 0, scale: float = SCALE, axis: int = 0) -> Value:
        """Make a tensor.

        If it is quantised, each slice along the axis has a pattern of the type's ends; otherwise it has numbers of a
        magnitude.
        """
        shape = tuple(shape)
        if not self.quantised:
            data = contents(self.rng, self.kind, shape, "ordinary")
            if self.kind != I32:
                data = data * np.asarray(self.next(MAGNITUDES.get(self.kind, (1.0,))), data.dtype)
            return Value(self.kind, shape, data=data)
        limits = np.iinfo(dtype_of(self.kind))
        data = self.pattern(shape, axis, int(limits.min), int(limits.max))
        return Value(self.kind, shape, scale, zero, data=data.astype(limits.dtype))

    def pattern(self, shape: Sequence[int], axis: int, low: int, high: int) -> Array:
        """Return slices along an axis, each with another pattern."""
        count = shape[axis]
        rest = [n for i, n in enumerate(shape) if i != axis]
        slices = [
            PATTERNS[(n + self.turn) % len(PATTERNS)](self.rng, math.prod(rest), low, high).reshape(rest)
            for n in range(count)
        ]
        return np.stack(slices, axis)

    def weights(self, shape: Sequence[int], zero: int, axis: int, per_channel: float = 0) -> Value:
        """Make weights. per_channel: the ratio of the scales of channels, 0 for one scale."""
        if not per_channel:
            return self.tensor(shape, zero, WEIGHT_SCALE, axis)
        least = WEIGHT_SCALE / per_channel
        scales = [float(np.float32(least * per_channel ** (n / max(1, shape[axis] - 1)))) for n in range(shape[axis])]
        data = self.pattern(shape, axis, -127, 127).astype(np.int8)
        return Value(Q8PC, tuple(shape), channel=ChannelQuant(tuple(scales), axis), data=data)

    def bias(self, x: Value, weights: Value, channels: int, terms: int) -> Value:
        """Make a bias of about the magnitude of the sums."""
        if not self.quantised:
            data = contents(self.rng, self.kind, (channels,), "ordinary")
            return Value(self.kind, (channels,), data=data * np.asarray(self.next((1.0, 0.0)), data.dtype))
        reach = min(self.next((0, 127, 5000)) * terms, 2**30)
        data = self.rng.integers(-reach, reach, channels, endpoint=True).astype(np.int32)
        scale = 0.0 if weights.channel else float(np.float32(x.scale * weights.scale))
        return Value(I32, (channels,), scale, data=data)

    def products(self) -> Iterator[tuple[int, int, int]]:
        """Yield zero points of input and weights, and the products of a sum: all zero points, and long sums."""
        pairs = [(x, w) for x, w, _ in self.all_weights()]
        width = len(pairs) // 3  # zero points of weights: all depths with each
        sizes = [
            (*pair, DEPTHS[(sum(divmod(n, width)) + more) % len(DEPTHS)])
            for n, pair in enumerate(pairs)
            for more in (0, 2)
        ]
        some = dict.fromkeys((pairs[0], pairs[len(pairs) // 2], pairs[-1]))
        long = [(*pair, size) for size in LONG for pair in some]
        yield from self.turns([*sizes, *long])

    def output(self, reach: float, *, coarse: bool = False) -> tuple[float, int]:
        """Return scale and zero point for results of up to this magnitude, alternately as coarse as needed, or finer."""
        if not self.quantised:
            return 0.0, 0
        if coarse:
            return float(np.float32(2 * reach / 255)), self.zero_points()[1]
        zero = self.next(self.zero_points()[::-1], len(FINER))
        return float(np.float32(2 * reach / 255 / self.next(FINER))), zero

    def all_weights(self) -> Iterator[tuple[int, int, float]]:
        """Yield zero points of input and weights, and the ratio of the scales of channels."""
        if not self.quantised:
            yield from ((0, 0, 0.0) for _ in range(3 * len(DEPTHS)))
            return
        zeros = self.zero_points()
        yield from ((x, w, 0.0) for x, w in product(zeros, zeros if self.kind == Q8 else (0, *zeros)))
        if self.operation not in ("FULLY_CONNECTED", "BATCH_MATMUL"):
            yield from ((x, 0, ratio) for x, ratio in product(zeros, CHANNELS))


def _reach(x: Value, weights: Value, terms: int) -> float:
    """Return the greatest magnitude of a sum of so many products."""
    if not x.scale:
        return 0.0
    far_x, far_w = (
        max(abs(limit - v.zero_point) for limit in (np.iinfo(v.array.dtype).min, np.iinfo(v.array.dtype).max))
        for v in (x, weights)
    )
    return float(terms * far_x * far_w * x.scale * (max(weights.channel.scales) if weights.channel else weights.scale))


def _convolutions(m: ModelMaker) -> Iterator[Made]:
    """Yield all weights, each with two of the groupings of inputs and outputs, all of these equally often."""
    groupings, every = list(product(*GROUPS.get(m.operation, PLAIN))), list(m.all_weights())
    ways, count = list(product(WINDOWS, (1, 2), (Padding.SAME, Padding.VALID))), 2 * max(len(groupings), len(every))
    cases = (m.mixed(each, count) for each in (every, groupings, ways))
    for weights, grouping, way in m.turns(zip(*cases, strict=True)):
        yield convolution(m, weights, grouping, way, (ROWS, 4, 5))


def convolution(
    m: ModelMaker,
    weights_of: tuple[int, int, float],
    grouping: tuple[int, int, int],
    way: tuple[tuple[int, int], int, Padding],
    picture: tuple[int, int, int],
    *,
    coarse: bool = False,
) -> Made:
    """Make a convolution. picture: batches, height and width. The others are as `_convolutions` combines them."""
    (zero, weight_zero, ratio), (groups, inner, outer), ((high, wide), stride, scheme) = weights_of, grouping, way
    transposed, depthwise, grouped = (
        m.operation == n for n in ("TRANSPOSE_CONV_2D", "DEPTHWISE_CONV_2D", "GROUPED_CONV_2D")
    )
    units = groups * outer
    x, terms = m.tensor((*picture, groups * inner), zero), inner * high * wide
    shape, axis = ((1, high, wide, units), 3) if depthwise else ((units, high, wide, inner), 0)
    weights = m.weights(shape, weight_zero, axis, ratio)
    more: dict[str, Any] = {"activation": m.next((Activation.NONE, Activation.NONE, Activation.RELU))}
    if depthwise:
        more["depth_multiplier"] = outer
    elif grouped:
        more["groups"] = groups
    if transposed:
        more |= dict.fromkeys(("pad_left", "pad_right", "pad_top", "pad_bottom"), 0)
    else:
        more["scheme"] = scheme
    if transposed or grouped:
        more["nchw"] = False
    arguments = {"input": x, "filter": weights, "bias": m.bias(x, weights, units, terms), **more}
    arguments |= {"stride_w": stride, "stride_h": stride}
    return arguments, ["input"], m.output(_reach(x, weights, terms), coarse=coarse)


def _fully_connected(m: ModelMaker) -> Iterator[Made]:
    for zero, weight_zero, size in m.products():
        units = m.next((3, 1) if size in LONG else (17, 1, 3, 33), 2)
        yield dense_layer(m, (zero, weight_zero), units, size, coarse=size in LONG)


def dense_layer(
    m: ModelMaker, zeros: tuple[int, int], units: int, size: int, *, coarse: bool, rows: int = ROWS
) -> Made:
    """Make a fully connected layer."""
    x, weights = m.tensor((rows, size), zeros[0]), m.weights((units, size), zeros[1], 0)
    arguments = {"input": x, "weights": weights, "bias": m.bias(x, weights, units, size)}
    arguments |= {"activation": m.next((Activation.NONE, Activation.RELU), 4)}
    return arguments, ["input"], m.output(_reach(x, weights, size), coarse=coarse)


def _matrices(m: ModelMaker) -> Iterator[Made]:
    for zero, other, size in m.products():
        columns = m.next((3, 1) if size in LONG else (17, 1, 3, 33), 2)
        yield matrix_product(m, (zero, other), columns, size, coarse=size in LONG)


def matrix_product(
    m: ModelMaker, zeros: tuple[int, int], columns: int, size: int, *, coarse: bool, rows: int = ROWS
) -> Made:
    """Make a product of two batches of matrices."""
    x, y = m.tensor((2, rows, size), zeros[0], axis=1), m.tensor((2, size, columns), zeros[1], WEIGHT_SCALE, axis=2)
    arguments = {"x": x, "y": y, "adj_x": False, "adj_y": False}
    return arguments, m.next((["x", "y"], ["x"])), m.output(_reach(x, y, size), coarse=coarse)


def _elementwise(m: ModelMaker) -> Iterator[Made]:
    shapes = (
        ((ROWS, 33), (33,)),
        ((ROWS, 17), (ROWS, 17)),
        ((ROWS, 3), (1, 3)),
        ((ROWS, 1), (ROWS, 33)),
        ((67,), (67,)),
    )
    scales = (0.5, 0.5), (0.5, 2.0**-8), (8.0, 0.01)
    for zero, other in m.turns(product(m.zero_points() * 2, m.zero_points() * 2)):
        (shape, second), (scale, its) = m.next(shapes), m.next(scales, 2)
        x, y = m.tensor(shape, zero, scale, axis=len(shape) - 1), m.tensor(second, other, its, axis=len(second) - 1)
        reach = 255 * 255 * scale * its if m.operation == "MUL" else 255 * (scale + its)
        given = m.next((["input1", "input2"], ["input1"]))
        yield {"input1": x, "input2": y, "activation": Activation.NONE}, given, m.output(reach)


def _pools(m: ModelMaker) -> Iterator[Made]:
    for zero, depth in m.turns(product(m.zero_points() if m.quantised else (0, 0), DEPTHS)):
        yield pool(m, m.tensor((ROWS, 19, 18, depth), zero), m.next((2, 3, WIDE_WINDOW)))


def pool(m: ModelMaker, x: Value, window: int) -> Made:
    """Make a pool of square windows."""
    arguments = {"input": x, "scheme": m.next((Padding.VALID, Padding.SAME), 2), "activation": Activation.NONE}
    arguments |= {"stride_w": 1, "stride_h": 2, "filter_w": window, "filter_h": window}
    return arguments, ["input"], (x.scale, x.zero_point)


def _bounded(m: ModelMaker) -> Iterator[Made]:
    """Yield pictures of the least value, of 0 and of the greatest.

    Results are far beyond the bounds of an activation, or 0.
    """
    low, middle, high = m.zero_points()
    make, activations = BOUNDED[m.operation], (Activation.RELU1, Activation.RELU6)
    fused = m.operation not in {each.name for each in activations}
    for scale, zero, activation in product(BOUNDED_SCALES, (low, middle, high), activations if fused else [None]):
        levels = np.array([low, zero, high], dtype_of(m.kind))[:, None, None, None]
        x = Value(m.kind, (3, 4, 4, 3), scale, zero, data=np.broadcast_to(levels, (3, 4, 4, 3)).copy())
        arguments = make(m, x) | ({} if activation is None else {"activation": activation})
        names = ["input1", "input2"] if "input2" in arguments else ["input"]
        yield {names[0]: x, **arguments}, names, (scale, zero)


def _with_units(m: ModelMaker, x: Value) -> dict[str, Any]:
    """Return the arguments of a layer whose outputs are each the sum of its inputs."""
    depthwise, transposed = m.operation == "DEPTHWISE_CONV_2D", m.operation == "TRANSPOSE_CONV_2D"
    shape, axis = ((1, 1, 1, 3), 3) if depthwise else ((3, 1, 1, 1 if m.operation == "GROUPED_CONV_2D" else 3), 0)
    weights = Value(Q8PC, shape, channel=ChannelQuant((1.0,) * 3, axis), data=np.ones(shape, np.int8))
    more: dict[str, Any] = {"depth_multiplier": 1} if depthwise else {}
    more |= {"nchw": False} if transposed or m.operation == "GROUPED_CONV_2D" else {}
    more |= {"groups": 3} if m.operation == "GROUPED_CONV_2D" else {}
    pads = dict.fromkeys(("pad_left", "pad_right", "pad_top", "pad_bottom"), 0)
    more |= pads if transposed else {"scheme": Padding.VALID}
    bias = Value(I32, (3,), data=np.zeros(3, np.int32))
    return {"filter": weights, "bias": bias, "stride_w": 1, "stride_h": 1, **more}


def _dense(m: ModelMaker, x: Value) -> dict[str, Any]:
    _, middle, _ = m.zero_points()
    weights = Value(m.kind, (3, 48), 1.0, middle, data=np.full((3, 48), middle + 1, dtype_of(m.kind)))
    return {"weights": weights, "bias": Value(I32, (3,), x.scale, data=np.zeros(3, np.int32))}


def _with_a_constant(m: ModelMaker, x: Value) -> dict[str, Any]:
    """Return 0, or 1 for products, as the second argument."""
    _, middle, _ = m.zero_points()
    stored = middle + 2 * (m.operation == "MUL")
    return {"input2": Value(m.kind, x.shape, 0.5, middle, data=np.full(x.known, stored, dtype_of(m.kind)))}


def _window(m: ModelMaker, x: Value) -> dict[str, Any]:
    return {"scheme": Padding.VALID, "stride_w": 1, "stride_h": 1, "filter_w": 2, "filter_h": 2}


Hard = Callable[[ModelMaker], Iterator[Made]]
AtBounds = Callable[[ModelMaker, Value], dict[str, Any]]


def _makers(op: Op) -> tuple[Hard | None, AtBounds | None]:
    """Return what makes the calls of an operation with these arguments, and those at the bounds of an activation."""
    places = op.forms[0].places
    if op.weights is not None:
        return (_convolutions, _with_units) if op.weights.name == "filter" else (_fully_connected, _dense)
    if "filter_w" in places:
        return _pools, _window if Q8 in op.types else None
    if "activation" in places and Q8 in op.types:
        return _elementwise, _with_a_constant
    if "adj_x" in places:
        return _matrices, None
    return None, (lambda m, x: {}) if op.name in (Activation.RELU1.name, Activation.RELU6.name) else None


MAKERS = {name: _makers(op) for name, op in OPS.items() if name in OperationType.__members__}
FAMILIES = {name: hard for name, (hard, _) in MAKERS.items() if hard is not None}
BOUNDED = {name: at_bounds for name, (_, at_bounds) in MAKERS.items() if at_bounds is not None}


def call_of(
    operation: str,
    kind: int,
    arguments: dict[str, Any],
    given: Sequence[str],
    out: tuple[float, int],
    values: str = "hard",
) -> Call:
    """Make a call with the signature that has these arguments."""
    op = OPS[operation]
    number, form = next((n, form) for n, form in enumerate(op.forms) if arguments.keys() <= {a.name for a in form})
    inputs = _inputs(form, arguments)
    outputs = [Value(kind, None, *out)]
    bound = bind(op, inputs, outputs)
    made = tuple(replace(v, shape=s) for v, s in zip(outputs, bound.shapes, strict=True))
    places = tuple(form.places[name] for name in given)
    return Call(Cell(op, number, kind, values), tuple(inputs), made, places, bound)


def _inputs(form: Form, arguments: dict[str, Any]) -> list[Value | None]:
    """Return the arguments in order, without trailing ones."""
    inputs: list[Value | None] = []
    for argument in form:
        if argument.name not in arguments:
            assert argument.default is not REQUIRED, argument.name
            break
        value = arguments[argument.name]
        if not isinstance(value, Value):
            code = OperandType.BOOL if isinstance(value, bool) else OperandType.INT32
            value = Value(code, data=np.asarray(int(value), dtype_of(code)))
        inputs.append(value)
    return inputs
