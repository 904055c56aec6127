"""The models of a calibration: chains of each family of operations in a few sizes, and models with control flow."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.frontends.python import Builder
from nnhal.frontends.tensor import Tensor
from nnhal.model.dynamic_quantisation import QUANTISED as QUANTISED_LINES
from nnhal.model.graph import Model

SCALE, FINE = 0.05, 0.002  # scales of quantised values and of quantised filters


class Values(NamedTuple):
    """Values of one kind; `zero_point` counts for quantised ones."""

    kind: str
    type: OperandType
    zero_point: int = 0

    @property
    def quantised(self) -> bool:
        """Whether they are integers with a scale."""
        return self.type != OperandType.TENSOR_FLOAT32


VALUES = {
    "float32": Values("float32", OperandType.TENSOR_FLOAT32),
    "quant8": Values("quant8", OperandType.TENSOR_QUANT8_ASYMM, 128),
    "quant8_signed": Values("quant8_signed", OperandType.TENSOR_QUANT8_ASYMM_SIGNED),
    "dynamic": Values("dynamic", OperandType.TENSOR_FLOAT32),
}
FLOATS, QUANTISED, DYNAMIC = ("float32",), ("quant8", "quant8_signed"), ("dynamic",)
# Five sizes separate the cost of multiplications from that of bytes: a small one, one with many bytes for its
# multiplications, one with few, and two large ones of these kinds.
SIZES = ((7, 16), (112, 16), (7, 256), (56, 64), (14, 256))  # side and channels of pictures
MATRICES = ((4, 32), (4, 1024), (256, 256), (64, 1024), (256, 512))  # rows and columns
SQUARES = (16, 64, 192, 384, 512)  # side of matrices that are multiplied with each other
LSTM = ((8, 16), (1, 512), (16, 128), (8, 384), (40, 64))  # time steps and cells
QUICK = (0, 1, 2)  # the sizes of a quick calibration


class Family(NamedTuple):
    """A family of operations that are measured by chains.

    Attributes:
        name: The family's name.
        link: Adds a link to a chain, from the tensor before it and the chain's input.
        tensor: The shape of the chain's tensors, by size.
        beside: The families of other operations in a link, whose time is subtracted.
        kinds: The kinds of values that it exists for.
    """

    name: str
    link: "Callable[[Builder, Values, int, Tensor, Tensor], Tensor]"
    tensor: "Callable[[int], tuple[int, ...]]"
    beside: tuple[str, ...] = ()
    kinds: tuple[str, ...] = (*FLOATS, *QUANTISED)


def picture(size: int) -> tuple[int, ...]:
    """Returns the shape of a picture: [1, side, side, channels]."""
    side, channels = SIZES[size]
    return 1, side, side, channels


def matrix(size: int) -> tuple[int, ...]:
    """Returns the shape of a matrix: [rows, columns]."""
    return MATRICES[size]


def _given(values: Values) -> dict[str, Any]:
    """How an output whose quantisation no rule gives is quantised."""
    return {"scale": SCALE, "zero_point": values.zero_point} if values.quantised else {}


def _weights(b: Builder, values: Values, shape: tuple[int, ...], zero: int | None = None) -> Tensor:
    random = np.random.default_rng(len(shape) + shape[0])
    if not values.quantised:
        return b.constant((random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))
    stored = random.integers(-60, 60, shape) + values.zero_point
    dtype = np.uint8 if values.type == OperandType.TENSOR_QUANT8_ASYMM else np.int8
    return b.constant(stored.astype(dtype), values.type, FINE, values.zero_point)


def _bias(b: Builder, values: Values, channels: int) -> Tensor:
    if not values.quantised:
        return b.constant(np.zeros(channels, np.float32))
    return b.constant(np.zeros(channels, np.int32), OperandType.TENSOR_INT32, SCALE * FINE)


def _conv(side: int, b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    channels = SIZES[size][1]
    filters = _weights(b, values, (channels, side, side, channels))
    made: Tensor = b.conv_2d(x, filters, _bias(b, values, channels), padding="same", stride=1, **_given(values))
    return made


def _depthwise(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    channels = SIZES[size][1]
    filters = _weights(b, values, (1, 3, 3, channels))
    bias = _bias(b, values, channels)
    made: Tensor = b.depthwise_conv_2d(x, filters, bias, padding="same", stride=1, depth_multiplier=1, **_given(values))
    return made


def _grouped(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    channels = SIZES[size][1]
    filters, bias = _weights(b, values, (channels, 3, 3, channels // 4)), _bias(b, values, channels)
    made: Tensor = b.grouped_conv_2d(
        x, filters, bias, padding="same", stride=1, groups=4, activation="none", nchw=False, **_given(values)
    )
    return made


def _transpose_conv(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    channels = SIZES[size][1]
    filters, bias = _weights(b, values, (channels, 3, 3, channels)), _bias(b, values, channels)
    shape = np.array(picture(size), np.int32)
    made: Tensor = b.transpose_conv_2d(
        x, filters, bias, output_shape=shape, padding="same", stride=1, activation="none", nchw=False, **_given(values)
    )
    return made


def _connected(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    width = MATRICES[size][1]
    made: Tensor = b.fully_connected(x, _weights(b, values, (width, width)), _bias(b, values, width), **_given(values))
    return made


def _matmul(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    made: Tensor = b.batch_matmul(x, first, **_given(values))
    return made


def _pool(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    made: Tensor = b.average_pool_2d(x, padding="same", filter_size=3, stride=1)
    return made


def _add(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    made: Tensor = b.add(x, first, **_given(values))
    return made


def _relu(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    if values.quantised:
        made: Tensor = b.relu(x)
        return made
    return _floats(b.neg(b.abs(x)))


def _floats(x: Any) -> Tensor:
    found: Tensor = x
    return found


def _logistic(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    return _floats(b.logistic(x))


def _quantize(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    return _floats(b.quantize(b.dequantize(x), out_type=values.type, **_given(values)))


def _softmax(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    return _floats(b.softmax(x, 1.0))


def _mean(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    return _floats(b.add(x, b.mean(x, np.array([1, 2], np.int32), 1), **_given(values)))


def _transpose(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    turned = b.transpose(x, np.array([0, 2, 1, 3], np.int32))
    return _add(b, values, size, turned, first)


def _pad(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    shape = np.array(picture(size), np.int32)
    padded = b.pad(x, np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    return _floats(b.slice(padded, np.array([0, 2, 1, 0], np.int32), shape))


def _resize(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    side = SIZES[size][0]
    larger = b.resize_bilinear(x, out_w=2 * side, out_h=2 * side)
    return _floats(b.max_pool_2d(larger, padding="valid", filter_size=2, stride=2))


def _topk(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    greatest, _ = b.topk_v2(x, SIZES[size][1])
    return _add(b, values, size, greatest, first)  # the next link has to sort again


def _lstm(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    cells, gates = LSTM[size][1], ("input", "forget", "cell", "output")
    named = {
        f"{which}_to_{gate}": _weights(b, values, (cells, cells)) for which in ("input", "state") for gate in gates
    }
    named |= {f"bias_{gate}": _bias(b, values, cells) for gate in gates}
    states = [b.constant(np.zeros((1, cells), np.float32)) for _ in range(2)]
    more: dict[str, Any] = {"activation_kind": "tanh", "cell_clip": 0.0, "projection_clip": 0.0, "time_major": True}
    return _floats(
        b.operation("UNIDIRECTIONAL_SEQUENCE_LSTM", x, state=states[0], cell_state=states[1], **named, **more)
    )


def quantised_at_execution(b: Builder, x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises a tensor at execution, as ONNX's DynamicQuantizeLinear.

    Args:
        b: The builder.
        x: The float32 tensor.

    Returns:
        The integers minus their zero point, as reals of the shape of `x`, and their scale [1].
    """
    made: dict[str, Any] = {"x": x}
    rank = len(x.shape or ())

    def argument(name: str) -> Any:
        if name in QUANTISED_LINES and name not in made:
            kind, names = QUANTISED_LINES[name]
            more = {"axes": np.arange(rank, dtype=np.int32), "keep_dims": False} if "REDUCE" in kind else {}
            made[name] = b.operation(kind, *map(argument, names), **more)
        return made[name] if name in made else b.constant(np.array([name], np.float32))

    return argument("steps"), argument("scale")


def _real(b: Builder, values: Tensor, scale: Tensor) -> Tensor:
    return _floats(b.mul(values, b.mul(scale, np.array([FINE], np.float32))))


def _quantised_link(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    steps, scale = quantised_at_execution(b, x)
    return _floats(b.mul(steps, scale))


def _integer_weights(b: Builder, shape: tuple[int, ...]) -> Tensor:
    random = np.random.default_rng(len(shape) + shape[0])
    return b.constant(random.integers(-127, 127, shape, endpoint=True).astype(np.float32))


def _integer_connected(b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    width = MATRICES[size][1]
    steps, scale = quantised_at_execution(b, x)
    return _real(b, b.fully_connected(steps, _integer_weights(b, (width, width)), _bias(b, values, width)), scale)


def _integer_conv(side: int, b: Builder, values: Values, size: int, x: Tensor, first: Tensor) -> Tensor:
    channels = SIZES[size][1]
    steps, scale = quantised_at_execution(b, x)
    filters = _integer_weights(b, (channels, side, side, channels))
    return _real(b, b.conv_2d(steps, filters, _bias(b, values, channels), padding="same", stride=1), scale)


FAMILIES = (
    Family("relu", _relu, picture),
    Family("add", _add, picture),
    Family("pool", _pool, picture),
    Family("pointwise", partial(_conv, 1), picture),
    Family("convolution", partial(_conv, 3), picture),
    Family("depthwise", _depthwise, picture),
    Family("grouped", _grouped, picture),
    Family("transpose_conv", _transpose_conv, picture),
    Family("fully_connected", _connected, matrix),
    Family(
        "batch_matmul",
        _matmul,
        lambda size: (1, SQUARES[size], SQUARES[size]),
        kinds=("float32", "quant8_signed"),
    ),
    Family("logistic", _logistic, picture, kinds=FLOATS),
    Family("quantize", _quantize, picture, kinds=QUANTISED),
    Family("softmax", _softmax, picture, kinds=FLOATS),
    Family("mean", _mean, picture, ("add",)),
    Family("transpose", _transpose, picture, ("add",)),
    Family("pad", _pad, picture),
    Family("resize", _resize, picture, ("pool",)),
    Family("topk", _topk, picture, ("add",)),
    Family("quantize", _quantised_link, matrix, ("add",), kinds=DYNAMIC),
    Family("fully_connected", _integer_connected, matrix, ("quantize", "add"), kinds=DYNAMIC),
    Family("pointwise", partial(_integer_conv, 1), picture, ("quantize", "add"), kinds=DYNAMIC),
    Family("convolution", partial(_integer_conv, 3), picture, ("quantize", "add"), kinds=DYNAMIC),
    Family("lstm", _lstm, lambda size: (LSTM[size][0], 1, LSTM[size][1]), kinds=FLOATS),
)


def families(kind: str) -> Iterator[Family]:
    """Returns the families of a kind of values."""
    return (each for each in FAMILIES if kind in each.kinds)


def chain(family: Family, kind: str, size: int, links: int) -> Model:
    """Builds a chain of `links` links of a family.

    Args:
        family: The family.
        kind: The kind of values, a key of `VALUES`.
        size: The index of the size.
        links: The number of links.
    """
    values, b = VALUES[kind], Builder(f"{family.name} {kind}")
    first = x = b.input(family.tensor(size), values.type, *((SCALE, values.zero_point) if values.quantised else ()))
    for _ in range(links):
        x = family.link(b, values, size, x, first)
    return b.finish([first], [x])


def single(elements: int = 4) -> Model:
    """Builds a model of one ADD."""
    b = Builder("single")
    x = b.input((1, 1, 1, elements))
    return b.finish([x], [b.add(x, x)])


def pair(side: int, channels: int) -> tuple[Model, Model]:
    """Builds a model of two operations in a row and one of a single operation, on a picture [1, side, side, channels]."""
    models = []
    for links in (2, 1):
        b = Builder("pair")
        first = x = b.input((1, side, side, channels))
        for _ in range(links):
            x = b.neg(x)
        models.append(b.finish([first], [x]))
    return models[0], models[1]


def branching() -> Model:
    """Builds an IF with a few operations in each branch."""
    b = Builder("if")
    condition, x = b.input((1,), OperandType.TENSOR_BOOL8), b.input((1, 56, 56, 16))
    sides = []
    for _ in range(2):
        sub = b.subgraph()
        y = sub.input((1, 56, 56, 16))
        sides.append(sub.finish_subgraph([y], [sub.add(sub.neg(y), y)]))
    return b.finish([condition, x], [b.if_(condition, sides[0], sides[1], [x], out_type="TENSOR_FLOAT32")])


def looping() -> Model:
    """Builds a WHILE of ten iterations of a few operations."""
    b = Builder("while")
    count, x = b.input((1,), OperandType.TENSOR_INT32), b.input((1, 56, 56, 16))
    ends, body = b.subgraph(), b.subgraph()
    n, _ = ends.input((1,), OperandType.TENSOR_INT32), ends.input((1, 56, 56, 16))
    condition = ends.finish_subgraph([n, _], [ends.less(n, np.array([10], np.int32))])
    n, y = body.input((1,), OperandType.TENSOR_INT32), body.input((1, 56, 56, 16))
    rounds = body.finish_subgraph([n, y], [body.add(n, np.array([1], np.int32)), body.neg(y)])
    found = b.while_(condition, rounds, [count, x], outputs=2, out_type=["TENSOR_INT32", "TENSOR_FLOAT32"])
    return b.finish([count, x], [found[1]])


def mixed(pictures: int = 1, side: int = 56, cells: int = 512) -> Model:
    """Builds 8-bit convolutions on pictures followed by a float LSTM: different engines are best at each.

    Args:
        pictures: The number of pictures.
        side: The height and width of a picture.
        cells: The number of cells of each LSTM layer.
    """
    b, values, floats = Builder("conv_then_lstm"), VALUES["quant8_signed"], VALUES["float32"]
    x = y = b.input((pictures, side, side, 32), values.type, SCALE, values.zero_point)
    for _ in range(4):
        filters, bias = _weights(b, values, (32, 3, 3, 32)), _bias(b, values, 32)
        y = b.conv_2d(y, filters, bias, padding="same", stride=1, activation="relu6", **_given(values))
    y = b.dequantize(b.mean(y, np.array([1, 2], np.int32), 0))
    y = b.reshape(y, np.array([pictures, 1, 32], np.int32))
    for width in (32, cells, cells, cells):
        gates = ("input", "forget", "cell", "output")
        named = {f"input_to_{gate}": _weights(b, floats, (cells, width)) for gate in gates}
        named |= {f"state_to_{gate}": _weights(b, floats, (cells, cells)) for gate in gates}
        named |= {f"bias_{gate}": _bias(b, floats, cells) for gate in gates}
        states = [b.constant(np.zeros((1, cells), np.float32)) for _ in range(2)]
        more: dict[str, Any] = {"activation_kind": "tanh", "cell_clip": 0.0, "projection_clip": 0.0, "time_major": True}
        y = b.operation("UNIDIRECTIONAL_SEQUENCE_LSTM", y, state=states[0], cell_state=states[1], **named, **more)
    return b.finish([x], [y])
