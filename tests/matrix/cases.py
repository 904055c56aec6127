"""Small models that some engine, left to itself, computes wrongly, each with its inputs and what they give.

A case runs on the device whose engine is wrong, and on all others: see `tests.matrix.test_numbers`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import nnhal
from nnhal.base.operands import Array
from nnhal.frontends.tensor import Tensor
from nnhal.model.graph import Model

KINDS = {
    "float32": "TENSOR_FLOAT32",
    "float16": "TENSOR_FLOAT16",
    "int32": "TENSOR_INT32",
    "uint8": "TENSOR_QUANT8_ASYMM",
    "int8": "TENSOR_QUANT8_ASYMM_SIGNED",
}
NAN, INF = float("nan"), float("inf")
GREATEST = float(np.finfo(np.float32).max)
ONE, NOTHING = np.ones((1, 1, 1, 1), np.float32), np.zeros(1, np.float32)  # weights and bias of a layer


class Quantised(NamedTuple):
    """An input of stored values."""

    values: Array
    scale: float
    zero_point: int = 0


class Case(NamedTuple):
    """A model and what it gives.

    found: The device that this was found on, or several.
    inputs: The arrays.
    build: Receives the builder and the inputs; returns the output, or several.
    wanted: The outputs, None for one that is not looked at; or computes them of the arrays.
    close: The relative and absolute tolerance.
    threads: The number of threads; 0 leaves it to the driver.
    refused: Devices that do not take the model, with a part of their reason.
    fails: Devices that give something else, with the reason why they may.
    """

    found: str
    inputs: Sequence[Array | Quantised]
    build: Callable[..., Any]
    wanted: Any
    close: tuple[float, float] = (0, 0)
    threads: int = 0
    refused: Mapping[str, str] = MappingProxyType({})
    fails: Mapping[str, str] = MappingProxyType({})

    def model(self) -> Model:
        """The model."""
        b = nnhal.Builder()
        given = [
            b.input(x.values.shape, KINDS[x.values.dtype.name], scale=x.scale, zero_point=x.zero_point)
            if isinstance(x, Quantised)
            else b.input(x.shape, KINDS[x.dtype.name])
            for x in self.inputs
        ]
        made = self.build(b, *given)
        return b.finish(given, list(made) if isinstance(made, list | tuple) else [made])

    def arrays(self) -> list[Array]:
        """The inputs."""
        return [x.values if isinstance(x, Quantised) else x for x in self.inputs]

    def outputs(self) -> list[Any]:
        """What they give."""
        with np.errstate(all="ignore"):
            wanted = self.wanted(*self.arrays()) if callable(self.wanted) else self.wanted
        return list(wanted) if isinstance(wanted, list | tuple) else [wanted]


def drawn(*shape: int, least: int = -9, most: int = 9) -> Array:
    """Whole numbers."""
    return np.random.default_rng(1).integers(least, most + 1, shape).astype(np.float32)


def real(*shape: int, seed: int = 0) -> Array:
    """Real numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def layer(b: nnhal.Builder, x: Tensor, weights: Array, padding: Any = "valid", **more: Any) -> Tensor:
    """A convolution without a bias."""
    return b.conv_2d(x, weights, np.zeros(len(weights), np.float32), padding=padding, **more)


# --------------------------------------------------------------------------------------- what one operation computes

WHOLE = np.array([2**24, 2**24 + 1, -(2**31), 2**31 - 1, 5], np.int32)
OTHER = np.array([2**24 + 1, 2**24, 2**31 - 1, 2**31 - 2, 5], np.int32)
COMPARED = "less", "less_equal", "greater", "greater_equal", "equal", "not_equal"
PAIR = np.float32([NAN, 1, 3, NAN]), np.float32([2, NAN, -1, NAN])
SPECIAL = [0.0, -0.0, 1.0, -3.0, 7.0, 41.0, INF, -INF, NAN, 1e-45, -1e-40, 1.2e-38, 3e38, -3e38]
NUMBERS = np.concatenate([SPECIAL, np.arange(1, 100) * 0.36159506, np.arange(1, 100) * 41]).astype(np.float32)
SHARES = np.float32([-80, -30, -18.5, -5, 0, 90])
STEP = np.float32(1e10 / 3)


def infinities(shape: tuple[int, ...], last: float) -> Array:
    """Rows of them, one of which ends with another number."""
    x = np.full(shape, last, np.float32)
    x[..., -1, 1] = np.copysign(GREATEST, last)
    return x


def nearest(x: Array, height: int, width: int) -> Array:
    """The elements of NHWC pictures that are nearest to those of the new size."""
    rows, columns = (np.arange(new) * old // new for new, old in zip((height, width), x.shape[1:3], strict=True))
    return x[:, rows][:, :, columns]


SIZES = [(140, 130), (130, 140), (90, 200), (200, 90)]
ONE_OPERATION = {
    "integers are compared as integers": Case(
        "openvino", [WHOLE, OTHER],
        lambda b, x, y: [getattr(b, name)(x, y) for name in COMPARED],
        lambda x, y: [getattr(np, name)(x, y) for name in COMPARED],
    ),
    "NaN compares to nothing": Case(
        "openvino", PAIR,
        lambda b, x, y: [getattr(b, name)(x, y) for name in COMPARED],
        lambda x, y: [getattr(np, name)(x, y) for name in COMPARED],
    ),
    "NaN is neither lost nor made by an extreme of two": Case(
        "litert openvino", PAIR,
        lambda b, x, y: [b.maximum(x, y), b.maximum(y, x), b.minimum(x, y), b.minimum(y, x)],
        [[NAN, NAN, 3, NAN]] * 2 + [[NAN, NAN, -1, NAN]] * 2,
    ),
    "NaN makes all of its row NaN": Case(
        "openvino", [np.float32([[NAN, 1, 2]])],
        lambda b, x: [b.softmax(x, 1.0), b.l2_normalization(x), b.exp(x)],
        [[[NAN] * 3], [[NAN] * 3], [[NAN, np.exp(1), np.exp(2)]]], (1e-6, 0),
    ),
    **{
        f"{name} of rows of infinities of {shape}, {keep=}": Case(
            "openvino", [infinities(shape, last)],
            lambda b, x, name=name, keep=keep: getattr(b, name)(x, [len(x.value.known) - 1], keep),
            lambda x, find=find, keep=keep: find(x, axis=-1, keepdims=keep),
        )
        for name, find, last in (("reduce_max", np.max, -INF), ("reduce_min", np.min, INF))
        for shape in ((2, 4), (1, 2, 4), (1, 2, 2, 4))
        for keep in (False, True)
    },
    "a quotient by what is computed of constants is rounded once": Case(
        "openvino", [NUMBERS],
        lambda b, x: b.div(x, b.neg(b.constant(NUMBERS[::-1].copy())), "none"),
        lambda x: x / -x[::-1], fails={"litert": "it declares that it takes subnormal numbers for 0"},
    ),
    "half numbers are divided by a constant": Case(  # the bounds of constant divisors are beyond float16
        "openvino", [np.array([3, 3, 65504], np.float16)],
        lambda b, x: b.div(x, b.constant(np.array([2, -0.5, 65504], np.float16))),
        [[1.5, -6, 1]],
    ),
    "a decoded value is rounded once": Case(  # a scale times the zero point alone leaves a remainder
        "openvino", [Quantised(np.uint8([117, 118]), float(STEP), 117)],
        lambda b, x: b.dequantize(x),
        [[0, STEP]], refused={"onnxruntime": "scales are 3.33333e[+]09"},
    ),
    "float32 is computed as float32": Case(  # bfloat16, an engine's choice on some processors, is off by 1e-2
        "openvino", [real(4, 256)],
        lambda b, x: b.fully_connected(x, real(64, 256, seed=1), np.zeros(64, np.float32)),
        lambda x: x.astype(np.float64) @ real(64, 256, seed=1).T.astype(np.float64), (0, 1e-4),
    ),
    "shares near 0 keep their digits": Case(
        "onnxruntime", [SHARES],
        lambda b, x: b.logistic(x),
        lambda x: 1 / (1 + np.exp(-x.astype(np.float64))), (1e-6, 1e-44),
    ),
    "nearest neighbours are those of their own layer": Case(
        "onnxruntime", [np.arange(4900, dtype=np.float32).reshape(1, 70, 70, 1)],
        lambda b, x: [b.resize_nearest_neighbor(x, out_w=width, out_h=height, nchw=False) for height, width in SIZES],
        lambda x: [nearest(x, *size) for size in SIZES],
    ),
    "integers are divided towards less": Case(
        "litert onnxruntime", [np.int32([7, -7])],
        lambda b, x: [b.div(x, np.int32([2, 2])), b.div(x, np.int32([2, -2]))],
        [[3, -4], [3, 3]], refused={"openvino": "OpenVINO's DIV does not support TENSOR_INT32"},
    ),
    "exponentials keep their tolerance": Case(  # XNNPACK's do not
        "litert", [np.linspace(0, 80, 1000, dtype=np.float32)],
        lambda b, x: b.exp(x),
        lambda x: np.exp(x.astype(np.float64)), (5 * 2**-23, 0),
    ),
    "stored values are compared as the real ones": Case(  # 2, 4, 6 with 4
        "litert", [Quantised(np.uint8([1, 2, 3]), 2.0), Quantised(np.uint8([14] * 3), 1.0, 10)],
        lambda b, x, y: b.less(x, y),
        [[True, False, False]],
    ),
    "among equals the last comes first": Case(
        "litert", [np.float32([7, 1, 7, 9, 7])],
        lambda b, x: b.topk_v2(x, 3),
        [[9, 7, 7], [3, 4, 2]],
    ),
    "explicit padding does not count": Case(
        "litert", [-np.ones((1, 4, 4, 1), np.float32)],
        lambda b, x: [
            pool(x, padding=((1, 0), (1, 0)), stride=1, filter_size=2) for pool in (b.average_pool_2d, b.max_pool_2d)
        ],
        lambda x: [x, x], (1e-6, 0),
    ),
    "half numbers are added in float32 and rounded once": Case(
        "litert", [np.array([2048, 0.1, -3, 65504], np.float16)],
        lambda b, x: b.add(x, np.array([1, 2, 3, 4], np.float16)),
        [[2048, np.float16(np.float32(np.float16(0.1)) + 2), 0, np.float16(65504 + 4)]],
    ),
    "a product of half numbers beyond float16 is infinite": Case(
        "litert", [np.array([300], np.float16)],
        lambda b, x: b.mul(x, np.array([300], np.float16)),
        [[INF]],
    ),
    "a logarithm of shares of 7 dimensions": Case(
        "litert", [np.float32([0, 1, 2, 3]).reshape(1, 1, 1, 1, 1, 1, 4)],
        lambda b, x: b.log_softmax(x, 0.5, -1),
        lambda x: x / 2 - np.log(np.exp(x.astype(np.float64) / 2).sum()), (1e-6, 0),
    ),
}  # fmt: skip

# ------------------------------------------------------------------------------------- what operations make of others

TENS = np.float32([10, 20, 30])
FILTERS = {"a column": drawn(5, 3, 3, 1), "a pixel": real(3, 1, 1, 4)}
SMALL = np.float32([[2**-20, 0.5, 1, -(2**-14)]])
SEQUENCES: dict[str, tuple[float, list[tuple[str, Any]]]] = {  # a number, and operations with constants
    "a mask and a bias": (1, [("sub", 1), ("mul", -GREATEST), ("add", [0.3, -2.0, 3.0])]),
    "a mask of ten thousands and a bias": (1, [("sub", 1), ("mul", 10000), ("add", [0.3, -2.0, 3.0])]),
    "rounding by a great addend": (2.7, [("add", 1.5 * 2**23), ("sub", 1.5 * 2**23)]),
    "a small addend behind great ones": (1, [("add", 1.5 * 2**23), ("sub", 1.5 * 2**23), ("add", 0.25)]),
    "small factors": (2.0**120, [("mul", 2.0**-80), ("mul", 2.0**-80)]),
    "great factors": (2.0**-120, [("mul", 2.0**80), ("mul", 2.0**80)]),
}
BEHIND_ONE_PIXEL: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "a sum": (lambda b, x: b.add(x, np.ones(4, np.float32)), lambda x: x + 1),
    "bounds": (lambda b, x: b.relu(x), lambda x: np.maximum(x, 0)),
    "the input": (lambda b, x: x, lambda x: x),
}


def in_order(b: nnhal.Builder, x: Tensor, case: str, apart: bool) -> Tensor:
    """The operations of a sequence, each on the one before. apart: with a reshape behind each."""
    for name, number in SEQUENCES[case][1]:
        x = getattr(b, name)(x, np.atleast_1d(np.float32(number)), "none")
        x = b.reshape(x, [1, 2, 3]) if apart else x
    return x


def computed(x: Array, case: str, apart: bool) -> Array:
    """What they give."""
    for name, number in SEQUENCES[case][1]:
        x = getattr(np, {"mul": "multiply", "sub": "subtract"}.get(name, name))(x, np.float32(number))
    return x.reshape(1, 2, 3) if apart else x


def strided(b: nnhal.Builder, x: Tensor, before: str) -> list[Tensor]:
    """A layer of one pixel with a stride, behind padding, and the mean of its result."""
    padded = b.pad(BEHIND_ONE_PIXEL[before][0](b, x), np.int32([[0, 0], [1, 1], [1, 1], [0, 0]]))
    z = layer(b, padded, FILTERS["a pixel"], stride=2)
    return [z, b.mean(z, np.int32([1, 2]), keep_dims=False)]


def strided_wanted(x: Array, before: str) -> list[Array]:
    """The same by hand."""
    padded = np.pad(BEHIND_ONE_PIXEL[before][1](x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    z = padded[:, ::2, ::2] @ FILTERS["a pixel"][:, 0, 0].T
    return [z, z.mean((1, 2))]


def one_column(x: Array, rows: tuple[int, int], columns: tuple[int, int]) -> Array:
    """A filter of 3 by 3 that begins in one column only, in each row."""
    padded = np.pad(x, ((0, 0), rows, columns, (0, 0)))
    places = [padded[:, n : n + 3, :3] for n in range(padded.shape[1] - 2)]
    return np.stack([np.einsum("bhwc,ohwc->bo", place, FILTERS["a column"]) for place in places], 1)[:, :, None]


def padded_pictures(b: nnhal.Builder, x: Tensor) -> list[Tensor]:
    """A layer with bounds, which is an output, and a layer behind padding of it."""
    first = b.conv_2d(x, ONE, NOTHING, padding="valid", activation="relu1", nchw=True)
    padded = b.pad(first, [[0, 0], [0, 0], [1, 0], [1, 1]])
    return [first, b.conv_2d(padded, ONE, NOTHING, padding="valid", nchw=True)]


def turned(b: nnhal.Builder, x: Tensor) -> list[Tensor]:
    """A transpose with three readers."""
    t = b.transpose(x, [1, 2, 0])
    bent = b.relu(t)
    chosen = b.select(b.greater_equal(t, bent), t, bent, scale=0.5, zero_point=100)
    return [b.reshape(t, [-1]), b.transpose(bent, [2, 0, 1]), chosen]


def three_layers(b: nnhal.Builder, x: Tensor) -> list[Tensor]:
    """Quantised layers of ones that read one tensor, each in its own order of dimensions."""

    def ones(*shape: int) -> Tensor:
        return b.constant(np.ones(shape, np.uint8), KINDS["uint8"], scale=1.0)

    def zeros(size: int) -> Tensor:
        return b.constant(np.zeros(size, np.int32), scale=1.0)

    first = b.fully_connected(x, ones(8, 1), zeros(8), scale=2.0, zero_point=0)
    second = b.fully_connected(x, ones(3, 4), zeros(3), scale=8.0, zero_point=0)
    return [first, second, b.conv_2d(x, ones(3, 1, 1, 2), zeros(3), padding="valid", scale=2.0, zero_point=0)]


def by_channel(b: nnhal.Builder, x: Tensor) -> Tensor:
    """Unsigned activations, and weights with a scale for each channel."""
    channel = nnhal.ChannelQuant((1.0, 2.0), 0)
    weights = b.constant(np.int8([3, -4]).reshape(2, 1, 1, 1), "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=channel)
    return b.conv_2d(x, weights, b.constant(np.int32([2, 1])), padding="valid", scale=1.0, zero_point=100)


def read_twice(b: nnhal.Builder, x: Tensor, z: Tensor) -> list[Tensor]:
    """Signed weights that another operation reads too."""
    w = b.constant(np.int8([[1, 2], [3, 4]]), KINDS["int8"], 0.5, 0)
    bias = b.constant(np.int32([0, 0]), "TENSOR_INT32", 0.125, 0)
    return [b.fully_connected(x, w, bias, scale=0.125, zero_point=0), b.add(z, w, scale=0.5, zero_point=0)]


def great_sums(b: nnhal.Builder, x: Tensor) -> Tensor:
    """Sums of some 2**26, of which a bias leaves 100; float32 has steps of 4 and more there."""
    w = np.random.default_rng(2).integers(129, 256, (16, 2000)).astype(np.uint8)
    bias = b.constant((100 - w.astype(np.int64) @ BYTES[0]).astype(np.int32), "TENSOR_INT32", scale=1.0)
    return b.fully_connected(x, b.constant(w, KINDS["uint8"], scale=1.0), bias, scale=1.0, zero_point=0)


def widened(b: nnhal.Builder, x: Tensor) -> list[Tensor]:
    """float16 constants that are cast; one of them is an output."""
    wide = b.cast(b.constant(np.array([[1, 2, 3, 4]], np.float16)), out_type=KINDS["float32"])
    weights = b.cast(b.constant(np.eye(4, dtype=np.float16)), out_type=KINDS["float32"])
    return [wide, weights, b.fully_connected(b.add(x, wide), weights, np.zeros(4, np.float32))]


def pixel(b: nnhal.Builder, x: Tensor, how: str) -> list[Tensor]:
    """A pooled pixel that is repeated, and read by another operation too."""
    y = b.max_pool_2d(x, padding="valid", filter_size=3, stride=(3, 2), nchw=True)
    repeated = b.tile(y, [1, 1, 2, 1]) if how == "tiled" else b.concatenation([y, y], 2)
    return [repeated, b.mul(y, np.full((2, 7, 1, 1), 2, np.float32))]


def recast(b: nnhal.Builder, x: Tensor) -> Tensor:
    """Stored values that another scale reads."""
    stored = b.quantize(x, out_type=KINDS["int8"], scale=1.0, zero_point=0)
    return b.dequantize(b.cast(stored, out_type=KINDS["int8"], scale=10.0, zero_point=5))


def first_part(b: nnhal.Builder, x: Tensor) -> list[Tensor]:
    """The greatest of the first row."""
    return list(b.topk_v2(b.split(x, 0, 2, outputs=2)[0], 1))


def one_weight(b: nnhal.Builder, x: Tensor) -> Tensor:
    """A layer of one weight behind one of one output."""
    one = np.ones(1, np.float32)
    return b.fully_connected(b.fully_connected(x, np.float32([[2, -3]]), one, "relu"), np.float32([[0.5]]), one)


def filled(b: nnhal.Builder, x: Tensor) -> Tensor:
    """Sums that round, with constants that FILL makes."""
    for number in (2048.0, -2048.0, 0.25):
        x = b.add(x, b.fill([1, 4], number))
    return x


def joined(b: nnhal.Builder, x: Tensor, y: Tensor) -> list[Tensor]:
    """Joined rows and their magnitudes."""
    both = b.concatenation([x, y], 0)
    return [both, b.abs(both)]


def dequantised(b: nnhal.Builder, x: Tensor, kind: str, read: bool) -> list[Tensor]:
    """A dequantised constant, which another operation reads or does not."""
    y = b.dequantize(b.constant(np.array([1, 2, 7], STORED[kind]), kind, 0.5, 0))
    return [b.add(x, y) if read else b.abs(x), y]


BYTES = np.random.default_rng(0).integers(129, 256, (1, 2000)).astype(np.uint8)
EVEN = 2 * np.random.default_rng(1).integers(0, 128, (2, 7, 7, 2), np.uint8)
STORED = {"TENSOR_QUANT8_ASYMM": np.uint8, "TENSOR_QUANT8_ASYMM_SIGNED": np.int8, "TENSOR_QUANT8_SYMM": np.int8}
SEVERAL = {
    "a sum behind a reduction adds to each its own": Case(  # OpenVINO fuses them, and takes another dimension
        "openvino", [np.arange(24, dtype=np.float32).reshape(2, 3, 4)],
        lambda b, x: b.add(b.mean(x, [2], keep_dims=0), b.constant(TENS)),
        lambda x: x.mean(2) + TENS,
    ),
    **{
        f"a filter that meets one column, {padding}": Case(  # OpenVINO's kernel for AVX-512
            "openvino", [drawn(2, 6, 3, 1)],
            lambda b, x, padding=padding: layer(b, x, FILTERS["a column"], padding, stride=(1, 4)),
            lambda x, around=around: one_column(x, *around),
        )
        for padding, around in (("valid", [(0, 0)] * 2), ("same", [(1, 1), (0, 0)]), (((1, 0),) * 2, [(1, 0)] * 2))
    },
    **{
        f"a layer of one pixel with a stride behind {before}": Case(
            "openvino", [real(1, 7, 7, 4)],
            lambda b, x, before=before: strided(b, x, before),
            lambda x, before=before: strided_wanted(x, before), (1e-4, 1e-5),
        )
        for before in BEHIND_ONE_PIXEL
    },
    "a layer of one weight behind one of one output": Case(  # OpenVINO fuses them for one thread, and fails
        "openvino", [np.float32([[1, 0], [0, 1], [4, 2]])],
        one_weight, [[[2.5], [1], [2.5]]], threads=1,
    ),
    "the least digit of a sum beyond 24 bits is kept": Case(
        "openvino", [Quantised(BYTES, 1.0)], great_sums, [[[100] * 16]],
        refused={"onnxruntime": "sums of up to .* are not exact in float32"},
    ),
    "magnitudes of joined rows leave these as they are": Case(
        "openvino", [np.float32([-1, 2, -3]), np.float32([-4, 5])],
        joined, [[-1, 2, -3, -4, 5], [1, 2, 3, 4, 5]],
    ),
    **{
        f"the greatest of the first of two rows of {size}": Case(  # OpenVINO finds that shapes do not agree
            "openvino", [np.float32([[1, 3, 2], [9, 8, 7]])[:, :size]],
            first_part, [[[1 if size == 1 else 3]], [[0 if size == 1 else 1]]],
        )
        for size in (1, 3)
    },
    "a quantised convolution reads what another layer holds in place": Case(
        "openvino", [Quantised(EVEN, 1.0)], three_layers,
        lambda x: [None, None, (x.astype(int).sum(3, keepdims=True) / 2).repeat(3, 3)],
    ),
    **{
        f"a pixel that is {how}": Case(
            "openvino", [drawn(2, 7, 3, 3, least=-99, most=99)],
            lambda b, x, how=how: pixel(b, x, how),
            lambda x: [x.max((2, 3), keepdims=True).repeat(2, 2), 2 * x.max((2, 3), keepdims=True)],
        )
        for how in ("tiled", "joined with itself")
    },
    "sums that round stay apart with filled constants": Case(  # OpenVINO computes FILL before it joins constants
        "openvino", [SMALL], filled,
        lambda x: ((x + np.float32(2048)) - np.float32(2048)) + np.float32(0.25),
    ),
    **{
        f"a reshaped tensor plus a constant of {shape}": Case(
            "openvino", [np.float32([[0, 1], [2, 3]])],
            lambda b, x, shape=shape: b.add(b.reshape(x, [4]), np.ones(shape, np.float32), "none"),
            np.float32([1, 2, 3, 4]).reshape((1,) * (len(shape) - 1) + (4,)), threads=1,
        )
        for shape in ((1, 1), (1, 1, 1), (1, 4))
    },
    **{
        f"constants that lose digits together, {case}, {apart=}": Case(
            "openvino", [np.full((2, 3), SEQUENCES[case][0], np.float32)],
            lambda b, x, case=case, apart=apart: in_order(b, x, case, apart),
            lambda x, case=case, apart=apart: computed(x, case, apart), threads=1,
        )
        for case in SEQUENCES
        for apart in (False, True)
    },
    **{
        f"a transpose of {shape} reaches all readers": Case(  # ONNX Runtime moved it behind the comparison
            "onnxruntime", [Quantised(np.random.default_rng(0).integers(0, 256, shape, np.uint8), 0.5, 100)], turned,
            lambda x: [x.transpose(1, 2, 0).ravel(), np.maximum(x, 100), np.maximum(x, 100).transpose(1, 2, 0)],
        )
        for shape in ((4, 4, 4), (3, 5, 4))
    },
    "what is an output and padded for a convolution": Case(  # ONNX Runtime's optimiser lost it
        "onnxruntime", [np.full((1, 1, 3, 3), 2, np.float32)], padded_pictures,
        lambda x: [x - 1, np.pad(x - 1, [(0, 0), (0, 0), (1, 0), (1, 1)])],
    ),
    "unsigned activations take weights with a scale for each channel": Case(
        # x = (138 - 128) / 2 = 5; 5 * 3 + 2 * 0.5 * 1 = 16 and 5 * -8 + 1 * 0.5 * 2 = -39
        "litert", [Quantised(np.full((1, 1, 1, 1), 138, np.uint8), 0.5, 128)], by_channel, [[[[[116, 61]]]]],
    ),
    "a float16 constant made wide may be an output": Case(
        "litert", [np.ones((1, 4), np.float32)], widened, [[[1, 2, 3, 4]], np.eye(4), [[2, 3, 4, 5]]],
    ),
    "stored values cast to another scale are read with it": Case(
        "litert", [np.float32([0, 1, 2, 3])], recast, [[-50, -40, -30, -20]],
    ),
    "signed weights that another operation reads too": Case(
        "litert", [Quantised(np.int8([[4, 5]]), 0.25, 3), Quantised(np.int8([[1, 1], [1, 1]]), 0.5)],
        read_twice, [[[1 * 1 + 2 * 2, 1 * 3 + 2 * 4]], [[2, 3], [4, 5]]],
    ),
    **{
        f"a dequantised constant of {kind} may be an output, {read=}": Case(
            "litert", [np.float32([1, 2, 3])],
            lambda b, x, kind=kind, read=read: dequantised(b, x, kind, read),
            [[1.5, 3, 6.5] if read else [1, 2, 3], [0.5, 1, 3.5]],
        )
        for kind in STORED
        for read in (False, True)
    },
}  # fmt: skip
CASES = ONE_OPERATION | SEVERAL
