"""Models of one to three random operators, run by nnhal on a device or both, and by LiteRT's reference kernels.

    python -m tests.nightly.random_models --count 1000 --seed 1 --device both

A recipe draws one operator on a tensor: its other inputs, options, and the type of its result. LiteRT is asked for the
shapes of results. A draw passes, is wrong, is refused by nnhal, or does not count since LiteRT does not run it either.
"""

import argparse
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: TID251

import nnhal
from nnhal.base.errors import UnsupportedModel
from nnhal.frontends.tflite import load
from tests.frontends.flat import Writer

SIXTEEN_ROOM = 2.0
FLOAT_ROOM = 2e-5  # of the greatest magnitude of a result
MOST_ELEMENTS = 3000
MOST_MAGNITUDE = 50
SIXTEEN = 0.05  # of the models of quantised operators have activations of 16 bits
ROUGH = {"EQUAL", "EXP", "GELU", "NOT_EQUAL", "RESIZE_BILINEAR"}  # LiteRT's kernels of 16 bits are off by many steps
DEVICES = {"reference": ["reference"], "litert": ["litert", "reference"]}


class Unfit(Exception):
    """A recipe does not take this tensor."""


class Silent(Exception):
    """LiteRT does not run the model either."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a model. exact: whether both sides have the same elements, so that steps may be compared."""

    index: int
    kind: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero: int = 0
    exact: bool = True


@dataclass
class Outcome:
    """What became of one draw."""

    names: tuple[str, ...]
    verdict: str  # pass, wrong, refused, crashed
    text: str = ""
    operators: str = ""


class Draw:
    """A model that is being drawn."""

    def __init__(self, seed: Sequence[int]) -> None:
        self.random = np.random.default_rng(seed)
        self.writer = Writer()
        self.inputs: list[int] = []
        self.values: list[Any] = []
        self.outputs: list[int] = []
        self.names: list[str] = []

    # ------------------------------------------------------------------------------------------------------- choices

    def one(self, *choices: Any) -> Any:
        """One of several."""
        return choices[self.random.integers(len(choices))]

    def chance(self, share: float) -> bool:
        """Yes, in that share of cases."""
        return bool(self.random.random() < share)

    def shape(self, least: int = 0, most: int = 6, low: int = 1) -> tuple[int, ...]:
        """A shape of few elements."""
        rank = int(self.random.choice(np.arange(least, most + 1)))
        top = 7 if rank < 4 else 4
        return tuple(int(n) for n in self.random.integers(low, top, rank))

    def numbers(self, shape: Sequence[int], kind: str, low: float = -3, high: float = 3) -> Any:
        """Values of a type."""
        if kind == "b1":
            return self.random.integers(0, 2, shape).astype(bool)
        if kind in ("i1", "u1", "i2"):
            limits = np.iinfo(kind)
            return self.random.integers(limits.min, limits.max + 1, shape).astype(kind)
        if kind in ("i4", "i8"):
            return self.random.integers(int(np.floor(low * 4)), int(np.ceil(high * 4)) + 1, shape).astype(kind)
        return self.random.uniform(low, high, shape).astype(kind)

    def quant(self, kind: str, scale: float | None = None) -> tuple[float, int]:
        """A scale and zero point."""
        if kind == "i2":
            return float(np.float32(scale or 10 ** self.random.uniform(-4.5, -3.5))), 0
        limits = np.iinfo(kind)
        low, high = (limits.min, limits.max) if self.chance(0.2) else (limits.min + 90, limits.max - 90)
        return float(np.float32(scale or 10 ** self.random.uniform(-2, -1))), int(self.random.integers(low, high + 1))

    # ------------------------------------------------------------------------------------------------------- tensors

    def given(self, shape: Sequence[int], kind: str = "f4", data: Any = None, **more: Any) -> Tensor:
        """An input of the model, or sometimes a constant."""
        constant = more.pop("constant", self.chance(0.15))
        low, high = more.pop("low", -3), more.pop("high", 3)
        scale, zero = more.pop("scale", None), more.pop("zero", 0)
        if kind in ("i1", "u1", "i2") and scale is None and not more.pop("plain", False):
            scale, zero = self.quant(kind)
        data = self.numbers(shape, kind, low, high) if data is None else np.asarray(data, kind)
        index = self.writer.tensor(data.shape, kind, data if constant else None, scale, zero)
        if not constant:
            self.inputs.append(index)
            self.values.append(data)
        return Tensor(index, kind, data.shape, scale if isinstance(scale, float) else None, int(np.max(zero)))

    def constant(self, data: Any, kind: str = "i4", **more: Any) -> Tensor:
        """A constant."""
        data = np.asarray(data, kind)
        return Tensor(self.writer.tensor(data.shape, kind, data, **more), kind, data.shape)

    def beside(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to another one."""
        if self.chance(0.5):
            return shape
        kept = shape[int(self.random.integers(0, len(shape) + 1)) :]
        return tuple(1 if self.chance(0.4) else n for n in kept)

    def put(
        self, name: str, inputs: Sequence[Tensor | None], outs: Sequence[Any], options: str = "", **fields: Any
    ) -> list[int]:
        """An operator; outs: (kind, scale, zero) of each result."""
        shape = fields.pop("shape", ())  # which SELECT takes from the file where everything is one element
        results = [self.writer.tensor(shape, kind, None, scale, zero) for kind, scale, zero in outs]
        self.writer.operator(name, [-1 if x is None else x.index for x in inputs], results, options, **fields)
        self.names.append(name)
        self.outputs += results
        return results

    # ----------------------------------------------------------------------------------------------------- execution

    def content(self) -> bytes:
        """The file as it is now; every result is an output."""
        self.writer.ends(self.inputs, self.outputs)
        return self.writer.bytes()

    def settle(self) -> list[Any]:
        """What LiteRT gives for all results, whose shapes are then written into the file."""
        results = engine(self.content(), self.values, self.names)
        for index, value in zip(self.outputs, results, strict=True):
            self.writer.graph.tensors[index].shape = list(value.shape)
        return results


# whose reference kernels are not what LiteRT defines (a window without its last element, a sum that is not rescaled)
WRONG = {"LOCAL_RESPONSE_NORMALIZATION", "SUM"}
OPTIMISED = WRONG | {"CEIL", "ELU", "ROUND", "SEGMENT_SUM"}  # or has none


_alone: list[ProcessPoolExecutor] = []  # a process for LiteRT: some of its kernels abort


def engine(content: bytes, values: Sequence[Any], names: Sequence[str] = ()) -> list[Any]:
    """Return the results of LiteRT's reference kernels, which run in another process."""
    if not _alone:
        _alone.append(ProcessPoolExecutor(1, get_context("spawn")))
    try:
        return _alone[0].submit(run_kernels, content, values, names).result()
    except BrokenProcessPool as error:
        _alone.clear()
        raise Silent("LiteRT ends its process") from error


def run_kernels(content: bytes, values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Run LiteRT's reference kernels in this process, and return their results."""
    fast = OPTIMISED & set(names)
    kernels = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if fast else OpResolverType.BUILTIN_REF
    try:
        interpreter = Interpreter(model_content=content, experimental_op_resolver_type=kernels, num_threads=1)
        interpreter.allocate_tensors()
        for detail, value in zip(interpreter.get_input_details(), values, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return [interpreter.get_tensor(d["index"]).copy() for d in interpreter.get_output_details()]
    except (RuntimeError, ValueError) as error:
        raise Silent(str(error)) from error


# ---------------------------------------------------------------------------------------------------------------- recipes

QUANTISED = ("i1", "u1")
Results = Sequence[tuple[str, float | None, int]]


@dataclass(frozen=True)
class Recipe:
    """How one operator is drawn. kinds: types of its first input. exact: it has no rounding. steps: it jumps."""

    name: str
    make: Callable[[Draw, Tensor, str], Any]
    kinds: tuple[str, ...]
    ranks: tuple[int, int]
    exact: bool
    steps: bool
    low: float
    high: float


RECIPES: list[Recipe] = []


def recipe(
    *names: str,
    kinds: Sequence[str] = ("f4",),
    ranks: tuple[int, int] = (0, 6),
    exact: bool = False,
    steps: bool = False,
    low: float = -3,
    high: float = 3,
) -> Callable[[Callable[[Draw, Tensor, str], Any]], Callable[[Draw, Tensor, str], Any]]:
    """Make a function the recipe of operators."""

    def add(function: Callable[[Draw, Tensor, str], Any]) -> Callable[[Draw, Tensor, str], Any]:
        RECIPES.extend(Recipe(name, function, tuple(kinds), ranks, exact, steps, low, high) for name in names)
        return function

    return add


def like(x: Tensor) -> tuple[str, float | None, int]:
    """The type of a tensor, for another one."""
    return x.kind, x.scale, x.zero


def result_of(d: Draw, kind: str, scale: float | None = None) -> tuple[str, float | None, int]:
    """A type with a quantisation of its own, where it has one."""
    return (kind, *d.quant(kind, scale)) if kind in (*QUANTISED, "i2") else (kind, None, 0)


MOVED = ("f4", "i4", "b1", *QUANTISED)


@recipe("ADD", "SUB", "MUL", kinds=("f4", "f4", "i4", *QUANTISED))
def arithmetic(d: Draw, x: Tensor, name: str) -> Any:
    y = d.given(d.beside(x.shape), x.kind)
    pair = [x, y] if d.chance(0.7) else [y, x]
    scale = 0.3 if x.kind in QUANTISED else None
    d.put(name, pair, [result_of(d, x.kind, scale)], name.title(), fusedActivationFunction=d.one(0, 0, 1, 2, 3))


@recipe("DIV", kinds=("f4", "f4", "i4"))
def division(d: Draw, x: Tensor, name: str) -> Any:
    y = d.given(d.beside(x.shape), x.kind, low=0.5, high=3)
    d.put(name, [x, y], [like(x)], "Div", fusedActivationFunction=d.one(0, 0, 1, 2, 3))


@recipe("DIV", "FLOOR_DIV", "FLOOR_MOD", kinds=("i4",), exact=True)
def integer_division(d: Draw, x: Tensor, name: str) -> Any:
    data = d.numbers(d.beside(x.shape), "i4")
    data[data == 0] = 5
    d.put(name, [x, d.given(data.shape, "i4", data)], [like(x)], "Div" if name == "DIV" else "")


@recipe("FLOOR_MOD", steps=True)
@recipe("FLOOR_DIV", steps=True)
def floor_division(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.given(d.beside(x.shape), low=0.5)], [like(x)])


@recipe("POW", low=0.2)
def power(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.given(d.beside(x.shape))], [like(x)])


@recipe("POW", kinds=("i4",), exact=True)
def integer_power(d: Draw, x: Tensor, name: str) -> Any:
    shape = d.beside(x.shape)
    d.put(name, [x, d.given(shape, "i4", d.random.integers(0, 6, shape))], [like(x)])


@recipe("ADD_N", kinds=("f4", "i4"))
def many(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, *[d.given(x.shape, x.kind) for _ in range(d.one(1, 2))]], [like(x)])


@recipe("SQUARED_DIFFERENCE", kinds=("f4", "i4", "i1"))
def difference(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.given(d.beside(x.shape), x.kind)], [result_of(d, x.kind, 0.3 if x.kind == "i1" else None)])


@recipe("MAXIMUM", "MINIMUM", kinds=("f4", "i4", *QUANTISED), exact=True)
def extreme(d: Draw, x: Tensor, name: str) -> Any:
    y = d.given(d.beside(x.shape), x.kind, scale=x.scale, zero=x.zero)
    d.put(name, [x, y], [like(x)], "MaximumMinimum")


@recipe(
    "EQUAL",
    "NOT_EQUAL",
    "LESS",
    "LESS_EQUAL",
    "GREATER",
    "GREATER_EQUAL",
    kinds=("f4", "i4", *QUANTISED),
    steps=True,
    exact=True,
)
def comparison(d: Draw, x: Tensor, name: str) -> Any:
    options = {"EQUAL": "Equal", "NOT_EQUAL": "NotEqual"}.get(name, "")
    d.put(name, [x, d.given(d.beside(x.shape), x.kind, scale=x.scale, zero=x.zero)], [("b1", None, 0)], options)


@recipe("LOGICAL_AND", "LOGICAL_OR", "EQUAL", "NOT_EQUAL", kinds=("b1",), exact=True)
def logic(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.given(d.beside(x.shape), "b1")], [like(x)])


@recipe("LOGICAL_NOT", kinds=("b1",), exact=True)
@recipe("ABS", "NEG", kinds=("f4", "i4"), exact=True)
@recipe("SIGN", kinds=("f4", "i4"), steps=True, exact=True)
@recipe("FLOOR", "CEIL", "ROUND", steps=True, exact=True)
@recipe("EXP", "SIN", "COS", "SQUARE", "ELU", "LOGISTIC", "TANH", "HARD_SWISH", "RELU_0_TO_1", "ZEROS_LIKE")
@recipe("LOG", "RSQRT", "SQRT", low=0.1, high=9)
@recipe("RELU", "RELU6", "RELU_N1_TO_1", low=-3, high=9)
@recipe("ZEROS_LIKE", kinds=("i4",), exact=True)
def function(d: Draw, x: Tensor, name: str) -> Any:
    options = {"LOGICAL_NOT": "LogicalNot", "COS": "Cos", "ABS": "Abs", "ZEROS_LIKE": "ZerosLike"}.get(name, "")
    d.put(name, [x], [like(x)], options)


@recipe("LOGISTIC", "TANH", "HARD_SWISH", "ELU", "RELU", "RELU6", "RELU_N1_TO_1", "LEAKY_RELU", "GELU", kinds=QUANTISED)
@recipe("ABS", "EXP", kinds=("i1",))
def quantised_function(d: Draw, x: Tensor, name: str) -> Any:
    fixed = {"LOGISTIC": (1 / 256, 0), "TANH": (1 / 128, 128)}
    if name in fixed:
        scale, zero = fixed[name]
        out: Any = (x.kind, scale, zero - (128 if x.kind == "i1" else 0))
    else:
        out = like(x) if name.startswith("RELU") or name == "ABS" else result_of(d, x.kind)
    options = {"LEAKY_RELU": "LeakyRelu", "GELU": "Gelu", "ABS": "Abs", "EXP": "Exp"}.get(name, "")
    d.put(name, [x], [out], options, **({"alpha": 0.25} if name == "LEAKY_RELU" else {}))


@recipe("GELU")
def gelu(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [like(x)], "Gelu", approximate=d.chance(0.5))


@recipe("LEAKY_RELU")
def leaky(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [like(x)], "LeakyRelu", alpha=float(d.random.uniform(0, 1)))


@recipe("PRELU", ranks=(1, 4))
def prelu(d: Draw, x: Tensor, name: str) -> Any:
    shape = (*[1] * (len(x.shape) - 2), *x.shape[-1:]) if len(x.shape) > 1 else x.shape
    d.put(name, [x, d.given(shape, constant=True)], [like(x)])


@recipe("ATAN2")
def angle(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.given(x.shape)], [like(x)])


@recipe("FAKE_QUANT", steps=True)
def fake(d: Draw, x: Tensor, name: str) -> Any:
    d.put(
        name,
        [x],
        [like(x)],
        "FakeQuant",
        version=2,
        min=-2.0,
        max=float(d.one(1.0, 2.5)),
        numBits=8,
        narrowRange=d.chance(0.3),
    )


@recipe("RIGHT_SHIFT", kinds=("i4",), exact=True)
def shift(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.given(x.shape, "i4", d.random.integers(0, 31, x.shape))], [like(x)])


@recipe("BITWISE_XOR", kinds=("i4", "i1", "u1"), exact=True)
def exclusive(d: Draw, x: Tensor, name: str) -> Any:
    if x.kind == "i1" and x.scale != 1:
        x = d.given(x.shape, "i1", scale=1.0)
    d.put(name, [x, d.given(x.shape, x.kind, scale=x.scale, zero=x.zero)], [like(x)])


CODES = {"f4": 0, "i4": 2, "u1": 3, "b1": 6, "i1": 9}


@recipe("CAST", kinds=("f4", "i4", "b1"), steps=True, exact=True)
def cast(d: Draw, x: Tensor, name: str) -> Any:
    to = d.one("f4", "i4", "b1")
    d.put(name, [x], [(to, None, 0)], "Cast", inDataType=CODES[x.kind], outDataType=CODES[to])


@recipe("QUANTIZE", kinds=("f4", *QUANTISED), steps=True)
def quantise(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [result_of(d, d.one(*QUANTISED))], "Quantize")


@recipe("DEQUANTIZE", kinds=QUANTISED)
def dequantise(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [("f4", None, 0)])


# ---------------------------------------------------------------------------------------------------------------- moving


@recipe("RESHAPE", kinds=MOVED, exact=True)
def reshape(d: Draw, x: Tensor, name: str) -> Any:
    size = int(np.prod(x.shape))
    wanted = [int(n) for n in d.random.permutation([size, *[1] * d.one(0, 1, 3)])]
    if size % 2 == 0 and d.chance(0.6):
        wanted = [2, size // 2]
    if d.chance(0.3):
        wanted[0] = -1
    if d.chance(0.3):
        d.put(name, [x], [like(x)], "Reshape", newShape=wanted)
    else:
        d.put(name, [x, d.constant(wanted)], [like(x)])


@recipe("SQUEEZE", kinds=MOVED, exact=True)
def squeeze(d: Draw, x: Tensor, name: str) -> Any:
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    named = ones[: int(d.random.integers(0, len(ones) + 1))]
    d.put(name, [x], [like(x)], "Squeeze", squeezeDims=named)


@recipe("EXPAND_DIMS", kinds=MOVED, ranks=(0, 5), exact=True)
def expand(d: Draw, x: Tensor, name: str) -> Any:
    rank = len(x.shape)
    d.put(name, [x, d.constant(int(d.random.integers(-rank - 1, rank + 1)))], [like(x)], "ExpandDims")


@recipe("TRANSPOSE", kinds=MOVED, ranks=(1, 6), exact=True)
def transpose(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.constant(d.random.permutation(len(x.shape)))], [like(x)], "Transpose")


@recipe("TILE", kinds=MOVED, ranks=(1, 6), exact=True)
def tile(d: Draw, x: Tensor, name: str) -> Any:
    times = d.random.integers(1, 3, len(x.shape))
    if np.prod(x.shape) * np.prod(times) > MOST_ELEMENTS:
        raise Unfit
    d.put(name, [x, d.given(times.shape, "i4", times, constant=d.chance(0.8))], [like(x)], "Tile")


@recipe("BROADCAST_TO", kinds=MOVED, exact=True)
def broadcast_to(d: Draw, x: Tensor, name: str) -> Any:
    shape = [n if n > 1 else d.one(1, 3) for n in x.shape]
    if len(shape) < 5 and d.chance(0.5):
        shape = [2, *shape]
    d.put(name, [x, d.constant(shape)], [like(x)], "BroadcastTo", version=2)


@recipe("CONCATENATION", kinds=MOVED, ranks=(1, 6), exact=True)
def concatenate(d: Draw, x: Tensor, name: str) -> Any:
    axis = int(d.random.integers(0, len(x.shape)))
    others = []
    for _ in range(d.one(1, 1, 2)):
        shape = [int(d.random.integers(1, 4)) if i == axis else n for i, n in enumerate(x.shape)]
        others.append(d.given(shape, x.kind, scale=x.scale, zero=x.zero))
    terms = [others[0], x, *others[1:]] if d.chance(0.5) else [x, *others]
    d.put(name, terms, [like(x)], "Concatenation", axis=d.one(axis, axis - len(x.shape)))


@recipe("PACK", kinds=("f4", "i4", *QUANTISED), ranks=(0, 4), exact=True)
def pack(d: Draw, x: Tensor, name: str) -> Any:
    others = [d.given(x.shape, x.kind, scale=x.scale, zero=x.zero) for _ in range(d.one(0, 1, 2))]
    axis = int(d.random.integers(0, len(x.shape) + 1))
    d.put(name, [x, *others], [like(x)], "Pack", axis=axis, valuesCount=1 + len(others))


@recipe("UNPACK", kinds=MOVED, ranks=(1, 5), exact=True)
def unpack(d: Draw, x: Tensor, name: str) -> Any:
    axis = int(d.random.integers(0, len(x.shape)))
    d.put(name, [x], [like(x)] * x.shape[axis], "Unpack", axis=axis, num=x.shape[axis])


@recipe("SPLIT", kinds=("f4", "i4", *QUANTISED), ranks=(1, 6), exact=True)
def split(d: Draw, x: Tensor, name: str) -> Any:
    axis = int(d.random.integers(0, len(x.shape)))
    count = d.one(*[n for n in (1, 2, 3) if x.shape[axis] % n == 0])
    d.put(name, [d.constant(axis), x], [like(x)] * count, "Split", numSplits=count)


@recipe("SPLIT_V", kinds=("f4", "i4", *QUANTISED), ranks=(1, 6), exact=True)
def split_sizes(d: Draw, x: Tensor, name: str) -> Any:
    axis = int(d.random.integers(0, len(x.shape)))
    first = int(d.random.integers(1, x.shape[axis] + 1))
    sizes = [first, x.shape[axis] - first] if first < x.shape[axis] else [first]
    if d.chance(0.4):
        sizes[-1] = -1
    d.put(name, [x, d.constant(sizes), d.constant(axis)], [like(x)] * len(sizes), "SplitV", numSplits=len(sizes))


@recipe("SLICE", kinds=MOVED, ranks=(1, 5), exact=True)
def slice_(d: Draw, x: Tensor, name: str) -> Any:
    begin = [int(d.random.integers(0, n)) for n in x.shape]
    size = [d.one(-1, int(d.random.integers(1, n - b + 1))) for n, b in zip(x.shape, begin, strict=True)]
    constant, kind = d.chance(0.85), d.one("i4", "i4", "i8")
    constant = constant or kind == "i8"
    vectors = [d.given((len(v),), kind, v, constant=constant) for v in (begin, size)]
    d.put(name, [x, *vectors], [like(x)], "Slice")


@recipe("STRIDED_SLICE", kinds=MOVED, ranks=(1, 5), exact=True)
def strided(d: Draw, x: Tensor, name: str) -> Any:
    rows = []
    shrink = 0
    for i, n in enumerate(x.shape):
        begin, end = sorted(int(v) for v in d.random.choice(n + 1, 2, replace=False))
        stride = d.one(1, 1, 2)
        if d.chance(0.2):
            shrink |= 1 << i
            begin, end, stride = min(begin, n - 1), d.one(end, 0), 1
        elif d.chance(0.25):
            begin, end, stride = end - 1, begin - n - 1, -stride
        rows.append((begin, end, stride))
    masks = {
        "beginMask": d.one(0, 0, int(d.random.integers(0, 8)) & ~shrink),
        "endMask": d.one(0, 0, int(d.random.integers(0, 8)) & ~shrink),
    }
    vectors = [d.constant(v) for v in zip(*rows, strict=True)]
    d.put(name, [x, *vectors], [like(x)], "StridedSlice", shrinkAxisMask=shrink, **masks)


@recipe("GATHER", kinds=MOVED, ranks=(1, 5), exact=True)
def gather(d: Draw, x: Tensor, name: str) -> Any:
    batches = 1 if len(x.shape) > 1 and d.chance(0.25) else 0
    axis = int(d.random.integers(batches, len(x.shape)))
    shape = (*x.shape[:batches], *d.one((), (2,), (2, 3)))
    indices = d.given(
        shape, d.one("i4", "i4", "i8") if batches == 0 else "i4", d.random.integers(0, x.shape[axis], shape)
    )
    if indices.kind == "i8" and indices.index in d.inputs:
        raise Unfit
    d.put(name, [x, indices], [like(x)], "Gather", axis=axis, batchDims=batches)


@recipe("GATHER_ND", kinds=("f4", "i4", "i1", "b1"), ranks=(1, 5), exact=True)
def gather_nd(d: Draw, x: Tensor, name: str) -> Any:
    depth = int(d.random.integers(1, len(x.shape) + 1))
    indices = d.random.integers(0, x.shape[:depth], (*d.one((2,), (3,), (2, 2)), depth))
    d.put(name, [x, d.given(indices.shape, "i4", indices, constant=d.chance(0.5))], [like(x)], "GatherNd")


@recipe("REVERSE_V2", kinds=("f4", "i4", "b1", *QUANTISED), ranks=(1, 5), exact=True)
def reverse(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.constant([int(d.random.integers(0, len(x.shape)))])], [like(x)], "ReverseV2")


@recipe("REVERSE_SEQUENCE", kinds=("f4", "i4", "u1"), ranks=(2, 5), exact=True)
def reverse_sequence(d: Draw, x: Tensor, name: str) -> Any:
    batch, steps = (int(n) for n in d.random.permutation(len(x.shape))[:2])
    lengths = d.random.integers(1, x.shape[steps] + 1, x.shape[batch])
    given = d.given(lengths.shape, "i4", lengths, constant=d.chance(0.5))
    d.put(name, [x, given], [like(x)], "ReverseSequence", batchDim=batch, seqDim=steps)


@recipe("PAD", "PADV2", kinds=("f4", "i4", *QUANTISED), ranks=(1, 5), exact=True)
def pad(d: Draw, x: Tensor, name: str) -> Any:
    paddings = d.constant(d.random.integers(0, 3, (len(x.shape), 2)), d.one("i4", "i8"))
    if name == "PAD":
        d.put(name, [x, paddings], [like(x)], "Pad")
    else:
        value = d.given((), x.kind, scale=x.scale, zero=x.zero, constant=True)
        d.put(name, [x, paddings, value], [like(x)], "PadV2")


@recipe("DILATE", kinds=("f4", "i4", *QUANTISED), ranks=(1, 5), exact=True)
def dilate(d: Draw, x: Tensor, name: str) -> Any:
    value = d.given((), x.kind, scale=x.scale, zero=x.zero, constant=True)
    d.put(name, [x, d.constant(d.random.integers(1, 4, len(x.shape))), value], [like(x)], "Dilate")


@recipe("MIRROR_PAD", kinds=("f4", "i4", *QUANTISED), ranks=(1, 5), exact=True)
def mirror(d: Draw, x: Tensor, name: str) -> Any:
    mode = d.one(0, 1)
    paddings = [[int(d.random.integers(0, min(3, n + mode))) for _ in "ab"] for n in x.shape]
    d.put(name, [x, d.constant(paddings)], [like(x)], "MirrorPad", mode=mode)


@recipe("SPACE_TO_DEPTH", kinds=("f4", "i4", *QUANTISED), ranks=(4, 4), exact=True)
def to_depth(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [like(x)], "SpaceToDepth", blockSize=2)


@recipe("DEPTH_TO_SPACE", kinds=("f4", "i4", *QUANTISED), ranks=(4, 4), exact=True)
def to_space(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [like(x)], "DepthToSpace", blockSize=d.one(1, 2))


@recipe("SPACE_TO_BATCH_ND", kinds=("f4", "i4", *QUANTISED), ranks=(3, 4), exact=True)
def to_batch(d: Draw, x: Tensor, name: str) -> Any:
    count = len(x.shape) - 2
    block = [d.one(1, 2) for _ in range(count)]
    pads = []
    for side, n in zip(block, x.shape[1:], strict=False):
        before = d.one(0, 1)
        pads.append([before, (-(n + before)) % side])
    d.put(name, [x, d.constant(block), d.constant(pads)], [like(x)], "SpaceToBatchND")


@recipe("BATCH_TO_SPACE_ND", kinds=("f4", "i4", *QUANTISED), ranks=(3, 4), exact=True)
def from_batch(d: Draw, x: Tensor, name: str) -> Any:
    count = len(x.shape) - 2
    block = [d.one(1, x.shape[0])] + [1] * (count - 1)
    crops = [[d.one(0, 1) if n * s > 2 else 0, 0] for n, s in zip(x.shape[1:], block, strict=False)]
    d.put(name, [x, d.constant(block), d.constant(crops)], [like(x)], "BatchToSpaceND")


@recipe("MATRIX_DIAG", kinds=("f4", "i4"), ranks=(1, 4), exact=True)
def diagonal(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [like(x)], "MatrixDiag")


@recipe("MATRIX_SET_DIAG", kinds=("f4", "i4"), ranks=(2, 4), exact=True)
def set_diagonal(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.given((*x.shape[:-2], min(x.shape[-2:])), x.kind)], [like(x)], "MatrixSetDiag")


@recipe("SELECT", "SELECT_V2", kinds=("f4", "i4", "b1", *QUANTISED), ranks=(0, 5), exact=True)
def select(d: Draw, x: Tensor, name: str) -> Any:
    shape = x.shape if name == "SELECT" else d.beside(x.shape)
    y = d.given(x.shape, x.kind, scale=x.scale, zero=x.zero)
    d.put(name, [d.given(shape, "b1"), x, y], [like(x)], "Select" if name == "SELECT" else "SelectV2", shape=x.shape)


@recipe("FILL", kinds=("f4", "i4", "b1"), ranks=(0, 0), exact=True)
def fill(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [d.constant(d.shape(1, 5)), x], [like(x)], "Fill")


@recipe("ONE_HOT", kinds=("i4",), ranks=(0, 3), exact=True)
def one_hot(d: Draw, x: Tensor, name: str) -> Any:
    kind = d.one("f4", "i4", "b1")
    on, off = (d.given((), kind, n, constant=d.chance(0.8) or kind == "b1") for n in (1, 0))
    axis = int(d.random.integers(-1, len(x.shape) + 1))
    d.put(name, [x, d.constant(5), on, off], [(kind, None, 0)], "OneHot", axis=axis)


# ------------------------------------------------------------------------------------------------------------ reductions


@recipe(
    "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "MEAN", kinds=("f4", "f4", "i4"), ranks=(1, 6), low=-2, high=2
)
@recipe("REDUCE_ANY", "REDUCE_ALL", kinds=("b1",), ranks=(1, 6), exact=True)
@recipe("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", kinds=QUANTISED, ranks=(1, 4))
def reduction(d: Draw, x: Tensor, name: str) -> Any:
    rank = len(x.shape)
    axes = d.random.permutation(rank)[: int(d.random.integers(1, rank + 1))] - d.one(0, rank)
    if name == "REDUCE_PROD" and x.kind == "i4" and np.prod([x.shape[i] for i in axes]) > 12:
        raise Unfit
    same = x.kind not in QUANTISED or name in ("REDUCE_MAX", "REDUCE_MIN")
    d.put(
        name, [x, d.constant(axes)], [like(x) if same else result_of(d, x.kind, 0.2)], "Reducer", keepDims=d.chance(0.5)
    )


@recipe("ARG_MAX", "ARG_MIN", kinds=("f4", "i4", *QUANTISED), ranks=(1, 5), steps=True, exact=True)
def argument(d: Draw, x: Tensor, name: str) -> Any:
    axis = d.constant(int(d.random.integers(-len(x.shape), len(x.shape))))
    d.put(name, [x, axis], [("i4", None, 0)], "ArgMax" if name == "ARG_MAX" else "ArgMin", outputType=2)


@recipe("TOPK_V2", kinds=("f4", "i4", *QUANTISED), ranks=(1, 5), steps=True, exact=True)
def topk(d: Draw, x: Tensor, name: str) -> Any:
    k = int(d.random.integers(1, x.shape[-1] + 1))
    d.put(name, [x, d.constant(k)], [like(x), ("i4", None, 0)], "TopKV2")


@recipe("CUMSUM", kinds=("f4", "i4"), ranks=(1, 6))
def cumulative(d: Draw, x: Tensor, name: str) -> Any:
    axis = d.constant(int(d.random.integers(-len(x.shape), len(x.shape))))
    d.put(name, [x, axis], [like(x)], "Cumsum", exclusive=d.chance(0.5), reverse=d.chance(0.5))


@recipe("REDUCE_WINDOW", kinds=("f4", "i4", "b1"), ranks=(1, 4))
def window(d: Draw, x: Tensor, name: str) -> Any:
    code = d.one(5, 6) if x.kind == "b1" else d.one(1, 2, 3, 4)
    sizes = [int(d.random.integers(1, min(n, 3) + 1)) for n in x.shape]
    apart = [d.one(1, 1, 2) if (size - 1) * 2 < n else 1 for size, n in zip(sizes, x.shape, strict=True)]
    lists = [d.constant(each, "i8") for each in (sizes, d.random.integers(1, 3, len(x.shape)), apart)]
    first = d.given((), x.kind, d.numbers((), x.kind), constant=d.chance(0.5))
    d.put(name, [x, first, *lists], [like(x)], "ReduceWindow", reduceFunction=code)


@recipe("BUCKETIZE", kinds=("f4", "i4"), steps=True, exact=True)
def buckets(d: Draw, x: Tensor, name: str) -> Any:
    bounds = sorted(float(np.float32(n)) for n in d.random.uniform(-4, 4, d.one(1, 3, 5)))
    d.put(name, [x], [("i4", None, 0)], "Bucketize", boundaries=bounds)


# ---------------------------------------------------------------------------------------------------------------- layers


def filters(d: Draw, x: Tensor, shape: Sequence[int], axis: int) -> tuple[Tensor, Tensor | None, Any]:
    """Weights, bias and the type of the result for an input."""
    units = shape[axis]
    if x.kind == "f4":
        w = d.given(shape, constant=d.chance(0.85))
        return w, d.given((units,), constant=True) if d.chance(0.8) else None, ("f4", None, 0)
    assert x.scale is not None
    if x.kind in ("i1", "i2"):
        count = units if d.chance(0.5) else 1
        scales = d.random.uniform(0.005, 0.02, count).astype("f4")
        data = d.random.integers(-127, 128, shape).astype("i1")
        w = d.constant(data, "i1", scale=scales.tolist(), zero=0, axis=axis if count > 1 else 0)
    else:
        scales = np.array([0.01], "f4")
        w = d.constant(d.numbers(shape, "u1"), "u1", scale=0.01, zero=int(d.random.integers(100, 150)))
    kind = "i8" if x.kind == "i2" else "i4"
    data = d.random.integers(-300, 300, units).astype(kind)
    bias = d.constant(data, kind, scale=(np.float32(x.scale) * scales).tolist()) if d.chance(0.8) else None
    return w, bias, result_of(d, x.kind, 0.3)


@recipe("CONV_2D", kinds=("f4", *QUANTISED), ranks=(4, 4))
def convolution(d: Draw, x: Tensor, name: str) -> Any:
    units, side = d.one(1, 3, 4), d.one((1, 1), (2, 2), (3, 2))
    w, bias, out = filters(d, x, (units, *side, x.shape[3]), 0)
    how = {"padding": d.one(0, 0, 1), "strideW": d.one(1, 2), "strideH": d.one(1, 2)}
    grown = {"dilationWFactor": d.one(1, 1, 2), "dilationHFactor": 1}
    d.put(name, [x, w, bias], [out], "Conv2D", fusedActivationFunction=d.one(0, 1, 2, 3), **how, **grown)


@recipe("DEPTHWISE_CONV_2D", kinds=("f4", *QUANTISED), ranks=(4, 4))
def depthwise(d: Draw, x: Tensor, name: str) -> Any:
    times, side = d.one(1, 2), d.one((1, 1), (2, 2), (3, 2))
    w, bias, out = filters(d, x, (1, *side, x.shape[3] * times), 3)
    how = {"padding": d.one(0, 0, 1), "strideW": (s := d.one(1, 2)), "strideH": s, "depthMultiplier": times}
    grown = {"dilationWFactor": 1, "dilationHFactor": 1}
    d.put(name, [x, w, bias], [out], "DepthwiseConv2D", fusedActivationFunction=d.one(0, 1, 2, 3), **how, **grown)


@recipe("TRANSPOSE_CONV", kinds=("f4", *QUANTISED), ranks=(4, 4))
def transposed(d: Draw, x: Tensor, name: str) -> Any:
    units, side, stride = d.one(1, 3), d.one(2, 3), d.one(1, 2)
    w, bias, out = filters(d, x, (units, side, side, x.shape[3]), 0)
    padding = d.one(0, 1)
    height, width = ((n - 1) * stride + side if padding else n * stride for n in x.shape[1:3])
    shape = d.constant([x.shape[0], height, width, units])
    terms = [shape, w, x, *([bias] if bias else [])]
    d.put(name, terms, [out], "TransposeConv", padding=padding, strideW=stride, strideH=stride, version=3)


@recipe("FULLY_CONNECTED", kinds=("f4", *QUANTISED), ranks=(2, 4))
def dense(d: Draw, x: Tensor, name: str) -> Any:
    w, bias, out = filters(d, x, (d.one(1, 3, 5), x.shape[-1]), 0)
    d.put(
        name, [x, w, bias], [out], "FullyConnected", keepNumDims=d.chance(0.6), fusedActivationFunction=d.one(0, 1, 3)
    )


@recipe("BATCH_MATMUL", kinds=("f4",), ranks=(2, 5))
def matmul(d: Draw, x: Tensor, name: str) -> Any:
    left, right = d.chance(0.3), d.chance(0.3)
    inner = x.shape[-2] if left else x.shape[-1]
    columns = d.one(1, 4)
    shape = (columns, inner) if right else (inner, columns)
    batch = d.one(x.shape[:-2], x.shape[:-2], tuple(1 if d.chance(0.5) else n for n in x.shape[:-2]))
    d.put(name, [x, d.given((*batch, *shape))], [like(x)], "BatchMatMul", adjX=left, adjY=right)


@recipe("AVERAGE_POOL_2D", "MAX_POOL_2D", kinds=("f4", *QUANTISED), ranks=(4, 4))
@recipe("L2_POOL_2D", ranks=(4, 4))
def pool(d: Draw, x: Tensor, name: str) -> Any:
    how = {"filterWidth": d.one(1, 2, 3), "filterHeight": d.one(1, 2), "strideW": d.one(1, 2), "strideH": d.one(1, 2)}
    d.put(name, [x], [like(x)], "Pool2D", padding=d.one(0, 0, 1), fusedActivationFunction=d.one(0, 0, 1, 3), **how)


@recipe("SOFTMAX", ranks=(1, 5))
def softmax(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [like(x)], "Softmax", beta=float(d.one(1.0, 0.5)))


@recipe("SOFTMAX", kinds=QUANTISED, ranks=(1, 4))
def quantised_softmax(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [(x.kind, 1 / 256, -128 if x.kind == "i1" else 0)], "Softmax", beta=1.0)


@recipe("LOG_SOFTMAX", ranks=(1, 4))
def log_softmax(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [like(x)], "LogSoftmax")


@recipe("L2_NORMALIZATION", ranks=(2, 4))
def normalised(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [like(x)], "L2Norm")


@recipe("LOCAL_RESPONSE_NORMALIZATION", ranks=(4, 4))
def response(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x], [like(x)], "LocalResponseNormalization", radius=d.one(1, 2), bias=1.0, alpha=0.5, beta=0.75)


@recipe("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", kinds=("f4", *QUANTISED), ranks=(4, 4))
def resize(d: Draw, x: Tensor, name: str) -> Any:
    grid = d.one({}, {"alignCorners": True}, {"halfPixelCenters": True})
    size = d.constant(d.random.integers(1, 8, 2))
    d.put(
        name, [x, size], [like(x)], "ResizeBilinear" if name == "RESIZE_BILINEAR" else "ResizeNearestNeighbor", **grid
    )


@recipe("EMBEDDING_LOOKUP", ranks=(2, 4), exact=True)
def embedding(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [d.given((3,), "i4", d.random.integers(0, x.shape[0], 3)), x], [like(x)])


@recipe("SHAPE", "RANK", kinds=("f4", "i4"), exact=True)
def facts(d: Draw, x: Tensor, name: str) -> Any:
    d.put(
        name, [x], [("i4", None, 0)], "Shape" if name == "SHAPE" else "", **({"outType": 2} if name == "SHAPE" else {})
    )


@recipe("RANGE", kinds=("i4",), ranks=(0, 0), exact=True)
def span(d: Draw, _: Tensor, name: str) -> Any:
    d.put(name, [d.constant(n) for n in (1, int(d.random.integers(2, 20)), d.one(1, 2, 3))], [("i4", None, 0)], "Range")


@recipe("SCATTER_ND", kinds=("f4", "i4"), ranks=(1, 3), exact=True)
def scatter(d: Draw, x: Tensor, name: str) -> Any:
    shape = (5, *x.shape[1:])
    rows = (
        d.random.permutation(5)[: x.shape[0]]
        if x.shape[0] <= 5 and d.chance(0.6)
        else d.random.integers(0, 5, x.shape[0])
    )
    indices = d.given((x.shape[0], 1), "i4", rows.reshape(-1, 1), constant=d.chance(0.5))
    d.put(name, [indices, x, d.constant(shape)], [like(x)], "ScatterNd")


@recipe("SEGMENT_SUM", kinds=("f4", "i4"), ranks=(1, 4))
def segments(d: Draw, x: Tensor, name: str) -> Any:
    d.put(name, [x, d.constant(np.sort(d.random.integers(0, 4, x.shape[0])))], [like(x)], "SegmentSum")


@recipe(
    "UNSORTED_SEGMENT_SUM",
    "UNSORTED_SEGMENT_MAX",
    "UNSORTED_SEGMENT_MIN",
    "UNSORTED_SEGMENT_PROD",
    kinds=("f4", "i4"),
    ranks=(1, 4),
    low=-2,
    high=2,
)
def unsorted(d: Draw, x: Tensor, name: str) -> Any:
    if x.kind == "i4" and name.endswith("PROD") and x.shape[0] > 6:
        raise Unfit
    rows = d.random.integers(0, 4, x.shape[0])
    ids = d.given(rows.shape, "i4", rows, constant=d.chance(0.6))
    words = "UnsortedSegment" + name.rpartition("_")[2].title()
    d.put(name, [x, ids, d.constant(4)], [like(x)], words)


@recipe("SPARSE_TO_DENSE", kinds=("f4", "i4"), ranks=(1, 1), exact=True)
def sparse_to_dense(d: Draw, x: Tensor, name: str) -> Any:
    places = np.sort(d.random.choice(12, x.shape[0], replace=False))
    indices = d.constant(np.stack(np.unravel_index(places, (4, 3)), -1))
    default = d.given((), x.kind, constant=True)
    d.put(name, [indices, d.constant([4, 3]), x, default], [like(x)], "SparseToDense")


@recipe("DYNAMIC_UPDATE_SLICE", kinds=("f4", "i4", "b1", "i1"), ranks=(1, 5), exact=True)
def update(d: Draw, x: Tensor, name: str) -> Any:
    shape = tuple(int(d.random.integers(1, n + 1)) for n in x.shape)
    starts = d.random.integers(-1, 4, len(shape))
    part = d.given(shape, x.kind, scale=x.scale, zero=x.zero)
    d.put(name, [x, part, d.given(starts.shape, "i4", starts, constant=d.chance(0.5))], [like(x)], "DynamicUpdateSlice")


@recipe("CONV_3D", ranks=(5, 5))
def deep_convolution(d: Draw, x: Tensor, name: str) -> Any:
    side = tuple(d.one(1, 2) for _ in range(3))
    units = d.one(1, 3)
    how = {"strideD": d.one(1, 2), "strideH": 1, "strideW": d.one(1, 2), "padding": d.one(0, 1)}
    grown = dict.fromkeys(("dilationDFactor", "dilationHFactor", "dilationWFactor"), 1)
    bias = [d.given((units,), constant=True)] if d.chance(0.7) else []
    w = d.given((*side, x.shape[4], units), constant=True)
    d.put(name, [x, w, *bias], [like(x)], "Conv3D", **how, **grown, fusedActivationFunction=d.one(0, 1, 3))


@recipe("CONV_3D_TRANSPOSE", ranks=(5, 5))
def deep_transposed(d: Draw, x: Tensor, name: str) -> Any:
    units, side = d.one(1, 2), [d.one(1, 2, 3) for _ in range(3)]
    strides, padding = [d.one(1, 2) for _ in range(3)], d.one(0, 1)
    sizes = [n * s if padding == 0 else (n - 1) * s + k for n, s, k in zip(x.shape[1:4], strides, side, strict=True)]
    shape = d.constant([x.shape[0], *sizes, units])
    how = dict(zip(("strideD", "strideH", "strideW"), strides, strict=True))
    grown = dict.fromkeys(("dilationDFactor", "dilationHFactor", "dilationWFactor"), 1)
    bias = [d.given((units,), constant=True)] if d.chance(0.7) else []
    w = d.given((*side, units, x.shape[4]), constant=True)
    d.put(name, [shape, w, x, *bias], [like(x)], "Conv3D", padding=padding, **how, **grown)


@recipe("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", ranks=(1, 1), steps=True)
def suppression(d: Draw, x: Tensor, name: str) -> Any:
    boxes = d.given((x.shape[0], 4), low=0, high=1)
    soft = name.endswith("V5")
    rows = d.constant(d.one(1, 3, 8))
    more = [d.constant(np.float32(n), "f4") for n in (d.random.uniform(0.2, 0.8), d.random.uniform(-1, 1))]
    more += [d.constant(np.float32(d.one(0.0, 0.5)), "f4")] if soft else []
    outs = [("i4", None, 0), *([("f4", None, 0)] if soft else []), ("i4", None, 0)]
    d.put(name, [boxes, x, rows, *more], outs)


# ------------------------------------------------------------------------------------------------------------ one draw


def fits(one: Recipe, x: Tensor) -> bool:
    """Whether a recipe takes the result of another operator."""
    jumps = one.steps or (x.kind in QUANTISED and not one.exact)
    narrow = one.low > -3 or (x.kind == "i4" and one.name == "ONE_HOT")
    return (
        x.kind in one.kinds and one.ranks[0] <= len(x.shape) <= one.ranks[1] and (x.exact or not jumps) and not narrow
    )


def draw(seed: Sequence[int], only: Sequence[str] = (), devices: Sequence[str] = ("reference",)) -> Outcome:
    """One model, and what became of it. Silent where LiteRT does not run what was drawn."""
    d = Draw(seed)
    first = d.one(*[one for one in RECIPES if not only or one.name in only])
    low, most = first.ranks
    for _ in range(20):
        shape = d.shape(low, most)
        if np.prod(shape) <= MOST_ELEMENTS:
            break
    kind = d.one(*first.kinds)
    if kind in QUANTISED and first.name not in ROUGH and d.chance(SIXTEEN):
        kind = "i2"
    x = d.given(shape, kind, low=first.low, high=first.high)
    try:
        first.make(d, x, first.name)
        expected = d.settle()
        for _ in range(d.one(0, 0, 1, 2)):
            last = d.writer.graph.tensors[d.outputs[-1]]
            kind = next((k for k, n in CODES.items() if n == last.type), "")
            quant = last.quantization
            pair = (
                (float(quant.scale[0]), int(quant.zeroPoint[0]))
                if quant is not None and quant.scale is not None
                else (None, 0)
            )
            here = Tensor(d.outputs[-1], kind, tuple(last.shape), *pair, exact=x.exact and first.exact)
            last_result = expected[-1]
            if not 0 < last_result.size <= MOST_ELEMENTS or not np.isfinite(last_result).all():
                break
            if np.abs(last_result.astype("f8")).max() > MOST_MAGNITUDE:  # integers overflow as each engine likes
                break
            ready = [one for one in RECIPES if fits(one, here)]
            if not ready:
                break
            x, first = here, d.one(*ready)
            first.make(d, x, first.name)
            expected = d.settle()
    except Unfit as error:
        raise Silent("the recipe does not take the tensor") from error
    return judge(d, d.content(), expected, devices)


def judge(d: Draw, content: bytes, expected: Sequence[Any], devices: Sequence[str]) -> Outcome:
    """nnhal's results beside LiteRT's."""
    names = tuple(d.names)
    try:
        model = load(content)
    except UnsupportedModel as error:
        return Outcome(names, "refused", str(error).removeprefix("model: cannot be expressed in NNAPI: "))
    except Exception:
        return Outcome(names, "crashed", traceback.format_exc(limit=-1))
    for device in devices:
        try:
            found = nnhal.compile(model, devices=DEVICES[device], fallback="forbid")(*d.values)
        except Exception:
            return Outcome(names, "crashed", f"on {device}: {traceback.format_exc(limit=-1)}")
        results = list(found) if isinstance(found, tuple) else [found]
        for number, (mine, theirs) in enumerate(zip(results, expected, strict=True)):
            if why := differs(np.asarray(mine), theirs):
                return Outcome(names, "wrong", f"output {number} on {device}: {why}")
    return Outcome(names, "pass")


def differs(mine: Any, theirs: Any) -> str:
    """What is wrong with a result, nothing where it is right."""
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return f"is {mine.dtype}{list(mine.shape)}, must be {theirs.dtype}{list(theirs.shape)}"
    if not theirs.size:
        return ""
    a, b = mine.reshape(theirs.shape).astype("f8"), theirs.astype("f8")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(b)
    room = 0.0
    if theirs.dtype.kind == "f":
        room = FLOAT_ROOM * max(1.0, float(np.abs(b[finite]).max(initial=0)))
    elif theirs.dtype in (np.int8, np.uint8):
        room = 1.0
    elif theirs.dtype == np.int16:  # nnhal computes these in float32, and rounds them at the end alone
        room = SIXTEEN_ROOM
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0, np.abs(a - b))
    worst = float(np.max(np.nan_to_num(distance, nan=np.inf)))
    return f"off by {worst:g}, at most {room:g}: {a.reshape(-1)[:6]} beside {b.reshape(-1)[:6]}" if worst > room else ""


@dataclass
class Tally:
    """What became of many draws."""

    verdicts: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    silent: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Of those that count, how many pass."""
        return self.verdicts["pass"] / max(1, sum(self.verdicts.values()))


def many_draws(count: int, seed: int, only: Sequence[str] = (), devices: Sequence[str] = ("reference",)) -> Tally:
    """So many draws that count."""
    tally, number = Tally(), 0
    while sum(tally.verdicts.values()) < count and number < 20 * count:
        number += 1
        try:
            outcome = draw((seed, number), only, devices)
        except Silent as error:
            tally.silent[str(error)[-90:]] += 1
            continue
        tally.verdicts[outcome.verdict] += 1
        tally.operators.update(outcome.names)
        if outcome.verdict == "refused":
            tally.reasons[outcome.text] += 1
        elif outcome.verdict != "pass":
            tally.faults.append(f"seed {seed} draw {number}: {' '.join(outcome.names)}: {outcome.text}")
    return tally


def main() -> int:
    """Draw, and say what became of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], choices=[one.name for one in RECIPES], metavar="OPERATOR")
    parser.add_argument("--device", choices=[*DEVICES, "both"], default="reference", help="where nnhal runs the models")
    parser.add_argument("--silent", action="store_true", help="why LiteRT did not run what was drawn")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    tally = many_draws(args.count, args.seed, args.only, [*DEVICES] if args.device == "both" else [args.device])
    for fault in tally.faults:
        print(fault)
    for reason, times in tally.reasons.most_common():
        print(f"refused {times} times: {reason}")
    if args.silent:
        for reason, times in tally.silent.most_common():
            print(f"silent {times} times: {reason}")
    silent = sum(tally.silent.values())
    verdicts = ", ".join(f"{times} {verdict}" for verdict, times in tally.verdicts.most_common())
    print(f"{len(tally.operators)} operators; {verdicts}; {tally.share:.1%} pass; {silent} not run by LiteRT")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
