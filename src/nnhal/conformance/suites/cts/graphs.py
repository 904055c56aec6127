"""Drawn graphs of several operations, with results computed in numpy in double precision.

A graph is drawn together with its values, so that they stay of ordinary size: no saturated tails, no NaN. The tolerance
of each result follows the graph: numpy computes it several times, each operation with an error of the size that its
definition allows, and results may differ by a few times what that changes.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

import nnhal
from nnhal.base.operands import Array

LARGEST = 4096  # elements of a tensor
GREATEST = 50.0  # of values
TIMES = 4.0  # the allowed difference, in those of the computations with errors
PERTURBED = 4  # computations with errors
ERROR = 2e-6  # of an operation, relative to the greatest value of its result
WIDE = (17, 33, 65, 130)  # last dimensions beyond a vector or a tile
SCALE, ZERO = 0.25, 128  # of quantised tensors

Build = Callable[..., Any]
Compute = Callable[..., Any]


class ComputedNode(NamedTuple):
    """An operation. kind: its name here. inputs: of its values. build: makes it in a builder. compute: in numpy."""

    kind: str
    inputs: tuple[int, ...]
    build: Build
    compute: Compute
    outputs: int = 1


class ComputedGraph:
    """A graph under construction; values: of its inputs and results so far, as drawn."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.values: list[Array] = []
        self.nodes: list[ComputedNode] = []
        self.given = 0
        self.results: list[int] = []

    # --------------------------------------------------------------------------------------------------------- drawing

    def shape(self) -> tuple[int, ...]:
        """Return the shape of an input: of rank 2 to 4, sometimes wide."""
        rank = int(self.rng.integers(2, 5))
        dims = [int(n) for n in self.rng.integers(1, 6, rank)]
        if self.rng.random() < 0.4:
            dims[-1] = int(self.rng.choice(WIDE))
        return tuple(dims)

    def draw_input(self, kind: str, shape: Sequence[int]) -> None:
        """Add an input of float32 ("f") or int32 ("i")."""
        self.values.append(self.constant(shape) if kind == "f" else self.rng.integers(-20, 21, shape).astype("i4"))
        self.given += 1

    def constant(self, shape: Sequence[int]) -> Array:
        """Return float32 values between -4 and 4, none of them near 0."""
        x = self.rng.uniform(0.25, 4, shape) * self.rng.choice([-1.0, 1.0], shape)
        return x.astype("f4")

    def some(self, kinds: str = "f", ranks: Collection[int] = (1, 2, 3, 4)) -> int:
        """Return a value of one of these types and ranks, later ones more often; Unfit if the graph has no such value."""
        fits = [n for n, v in enumerate(self.values) if kind_of(v) in kinds and v.ndim in ranks]
        if not fits:
            raise GraphNotComputable
        recent = fits[-3:] if self.rng.random() < 0.6 else fits
        return recent[int(self.rng.integers(len(recent)))]

    def put(self, kind: str, build: Build, compute: Compute, *inputs: int, outputs: int = 1) -> None:
        """Add an operation, unless its results are too large or not ordinary."""
        node = ComputedNode(kind, inputs, build, compute, outputs)
        made = _computed(node, [wide(self.values[n]) for n in inputs])
        for y in made:
            if not y.size or y.size > LARGEST or not np.isfinite(y).all():
                raise GraphNotComputable
            if not isinstance(y, _Quantised) and np.abs(y).max() > GREATEST:
                raise GraphNotComputable
        self.nodes.append(node)
        self.values += [narrow(y) for y in made]

    def grow(self, count: int, kinds: Sequence[str]) -> bool:
        """Add operations of these kinds; return whether any was possible."""
        for _ in range(count * 12):
            if len(self.nodes) >= count:
                break
            try:
                KINDS[kinds[int(self.rng.integers(len(kinds)))]](self)
            except GraphNotComputable:
                continue
        return bool(self.nodes)

    def end(self, every: float = 0.2) -> None:
        """Choose the outputs: all that no operation reads, and a share of the others."""
        read = {n for node in self.nodes for n in node.inputs}
        made = range(self.given, len(self.values))
        self.results = [n for n in made if n not in read or self.rng.random() < every]

    # ------------------------------------------------------------------------------------------------------- the model

    def model(self, name: str = "drawn") -> nnhal.Model:
        """Return the model."""
        b = nnhal.Builder(name)
        tensors: list[Any] = [b.input(v.shape, v.dtype) for v in self.values[: self.given]]
        inputs = tensors[:]
        for node in self.nodes:
            made = node.build(b, *(tensors[n] for n in node.inputs))
            tensors += list(made) if isinstance(made, tuple) else [made]
        return b.finish(inputs, [tensors[n] for n in self.results])

    def inputs(self) -> list[Array]:
        """Return copies of the drawn inputs."""
        return [v.copy() for v in self.values[: self.given]]

    def other_inputs(self) -> list[Array]:
        """Return inputs with the same values in another order, for which all results are ordinary."""
        for _ in range(8):
            found = [self.rng.permutation(v.ravel()).reshape(v.shape) for v in self.values[: self.given]]
            if all(np.isfinite(y).all() for y in self.compute(found)):
                return found
        return self.inputs()

    def compute(self, inputs: Sequence[Array], rng: np.random.Generator | None = None) -> list[Array]:
        """Return the outputs in double precision. rng: draws an error for each operation."""
        values = [wide(x) for x in inputs]
        with np.errstate(all="ignore"):
            for node in self.nodes:
                made = _computed(node, [values[n] for n in node.inputs])
                values += made if rng is None else [_disturbed(y, rng) for y in made]
        return [values[n] for n in self.results]

    def expect(self, inputs: Sequence[Array]) -> "ExpectedResults":
        """Return what an execution with these inputs has to give."""
        wanted = self.compute(inputs)
        others = [self.compute(inputs, np.random.default_rng(n)) for n in range(PERTURBED)]
        rooms = []
        for number, w in enumerate(wanted):
            spread = np.max([np.abs(other[number].astype("f8") - w.astype("f8")) for other in others], axis=0)
            kind = kind_of(narrow(w))
            room = 1e-5 + TIMES * np.maximum(spread, spread.mean()) if kind == "f" else np.ceil(spread)
            rooms.append(2 * room if kind == "q" else room)
        return ExpectedResults(self, wanted, rooms)

    def problem(self, inputs: Sequence[Array], actual: Sequence[Array]) -> str:
        """Return how outputs differ from the right ones by more than the operations allow; "" if they agree."""
        return self.expect(inputs).problem(actual)

    def maker(self, value: int) -> str:
        """Return the kind of the operation that computes a value."""
        at = self.given
        for node in self.nodes:
            at += node.outputs
            if value < at:
                return node.kind
        return "input"

    def __str__(self) -> str:
        return ", ".join(node.kind for node in self.nodes)


class ExpectedResults(NamedTuple):
    """The right outputs of a graph, in double precision, and how far each element may be from them."""

    graph: ComputedGraph
    wanted: list[Array]
    rooms: list[Array]

    def problem(self, actual: Sequence[Array]) -> str:
        """Return how outputs differ by more than they may; "" if they agree."""
        if len(actual) != len(self.wanted):
            return f"results are {len(actual)} arrays, must be {len(self.wanted)}"
        for number, (a, w, room) in enumerate(zip(actual, self.wanted, self.rooms, strict=True)):
            dtype = narrow(w).dtype
            if a.dtype != dtype or a.shape != w.shape:
                return f"output {number} is {a.dtype}{list(a.shape)}, must be {dtype}{list(w.shape)}"
            bad = ~(np.abs(a.astype("f8") - w.astype("f8")) <= room)
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                first = f"the first at {list(at)}: {float(a[at]):g}, must be {float(w[at]):g}"
                made_by = self.graph.maker(self.graph.results[number])
                return f"output {number} (of {made_by}) differs in {int(bad.sum())} of {bad.size}, {first}"
        return ""


class GraphNotComputable(Exception):
    """An operation that cannot be added here."""


class _Quantised(np.ndarray):
    """Marks stored 8-bit values, in double precision."""


def wide(x: Array) -> Array:
    """Return values in double precision, or int64; 8-bit ones are marked."""
    if x.dtype == np.uint8:
        return x.astype("f8").view(_Quantised)
    return x.astype("f8") if x.dtype == np.float32 else x if x.dtype == np.bool_ else x.astype("i8")


def narrow(x: Array) -> Array:
    """Return the values as an application sees them."""
    if isinstance(x, _Quantised):
        return np.asarray(x).astype("u1")
    return x.astype("f4") if x.dtype == np.float64 else x if x.dtype == np.bool_ else x.astype("i4")


def kind_of(x: Array) -> str:
    """Return the type of a value: "f", "i", "b", or "q" for 8-bit ones."""
    return {"f": "f", "i": "i", "b": "b", "u": "q"}[x.dtype.kind]


def _computed(node: ComputedNode, inputs: Sequence[Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        made = node.compute(*inputs)
    return list(made) if isinstance(made, tuple | list) else [made]


def _disturbed(y: Array, rng: np.random.Generator) -> Array:
    if isinstance(y, _Quantised):
        return np.clip(np.asarray(y) + rng.integers(-1, 2, y.shape), 0, 255).view(_Quantised)
    if y.dtype != np.float64:
        return y
    size = np.abs(y).max() if y.size else 0.0
    return y + ERROR * (1 + size) * rng.choice([-1.0, 1.0], y.shape)


# ----------------------------------------------------------------------------------------------------------- operations

KINDS: dict[str, Callable[[ComputedGraph], None]] = {}


def _kind(name: str) -> Callable[..., Any]:
    def note(rule: Callable[[ComputedGraph], None]) -> Callable[[ComputedGraph], None]:
        KINDS[name] = rule
        return rule

    return note


def _quantise(real: Array) -> Array:
    return np.clip(np.rint(np.asarray(real) / SCALE) + ZERO, 0, 255).view(_Quantised)


def _real(stored: Array) -> Array:
    return (np.asarray(stored) - ZERO) * SCALE


def _unary(name: str, compute: Compute) -> None:
    @_kind(name)
    def rule(g: ComputedGraph) -> None:
        g.put(name, lambda b, x: b.operation(name, x), compute, g.some())


_UNARY: dict[str, Compute] = {
    "ABS": np.abs,
    "NEG": np.negative,
    "RELU": lambda x: np.maximum(x, 0),
    "RELU1": lambda x: np.clip(x, -1, 1),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "TANH": np.tanh,
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
    "EXP": np.exp,
    "SIN": np.sin,
}
for _name, _compute in _UNARY.items():
    _unary(_name, _compute)


def _binary(name: str, compute: Compute, kinds: str = "f") -> None:
    @_kind(name if kinds == "f" else f"{name}/int32")
    def rule(g: ComputedGraph) -> None:
        x = g.some(kinds)
        shape = g.values[x].shape
        way = g.rng.random()
        fits = [n for n, v in enumerate(g.values) if kind_of(v) in kinds and _broadcasts(v.shape, shape)]
        if way < 0.2:  # one value twice
            g.put(name, lambda b, x: b.operation(name, x, x), lambda x: compute(x, x), x)
        elif way < 0.6 and fits:
            y = fits[int(g.rng.integers(len(fits)))]
            pair = (x, y) if g.rng.random() < 0.5 else (y, x)
            g.put(name, lambda b, x, y: b.operation(name, x, y), compute, *pair)
        else:  # with a constant of fewer dimensions, or with some of them 1
            dims = [n if g.rng.random() < 0.7 else 1 for n in shape][int(g.rng.integers(len(shape))) :]
            c = g.constant(dims) if kinds == "f" else g.rng.integers(1, 9, dims).astype("i4")
            g.put(name, lambda b, x: b.operation(name, x, c), lambda x: compute(x, wide(c)), x)


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(one), reversed(other)))  # noqa: B905 (ranks differ)


for _name, _compute in {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
}.items():
    _binary(_name, _compute)
for _name, _compute in {"ADD": np.add, "MUL": np.multiply, "MAXIMUM": np.maximum, "SUB": np.subtract}.items():
    _binary(_name, _compute, "i")


@_kind("DIV")
def _div(g: ComputedGraph) -> None:
    x = g.some()
    c = g.constant(g.values[x].shape[-1:])
    g.put("DIV", lambda b, x: b.div(x, c), lambda x: x / wide(c), x)


@_kind("PRELU")
def _prelu(g: ComputedGraph) -> None:
    x = g.some()
    c = g.constant(g.values[x].shape[-1:])
    g.put("PRELU", lambda b, x: b.prelu(x, c), lambda x: np.where(x > 0, x, x * wide(c)), x)


@_kind("RESHAPE")
def _reshape(g: ComputedGraph) -> None:
    x = g.some("fi")
    size = g.values[x].size
    first = int(g.rng.choice([n for n in range(1, size + 1) if size % n == 0]))
    shape = [(first, size // first), (1, first, size // first), (1, size // first, first, 1)][int(g.rng.integers(3))]
    g.put("RESHAPE", lambda b, x: b.reshape(x, list(shape)), lambda x: x.reshape(shape), x)


@_kind("TRANSPOSE")
def _transpose(g: ComputedGraph) -> None:
    x = g.some()
    order = [int(n) for n in g.rng.permutation(g.values[x].ndim)]
    g.put("TRANSPOSE", lambda b, x: b.transpose(x, order), lambda x: x.transpose(order), x)


@_kind("CONCATENATION")
def _concatenation(g: ComputedGraph) -> None:
    x = g.some()
    v = g.values[x]
    axis = int(g.rng.integers(v.ndim))
    rest = [(n, d) for n, d in enumerate(v.shape) if n != axis]
    fits = [n for n, w in enumerate(g.values) if kind_of(w) == "f" and w.ndim == v.ndim]
    fits = [n for n in fits if all(g.values[n].shape[at] == d for at, d in rest)]
    y = fits[int(g.rng.integers(len(fits)))]
    g.put(
        "CONCATENATION",
        lambda b, x, y: b.concatenation([x, y], axis),
        lambda x, y: np.concatenate([x, y], axis),
        x,
        y,
    )


@_kind("SPLIT")
def _split(g: ComputedGraph) -> None:
    x = g.some()
    shape = g.values[x].shape
    ways = [(axis, n) for axis, size in enumerate(shape) for n in (2, 3) if size % n == 0]
    if not ways:
        raise GraphNotComputable
    axis, count = ways[int(g.rng.integers(len(ways)))]
    g.put(
        "SPLIT",
        lambda b, x: b.split(x, axis, count, outputs=count),
        lambda x: np.split(x, count, axis),
        x,
        outputs=count,
    )


@_kind("SLICE")
def _slice(g: ComputedGraph) -> None:
    x = g.some()
    shape = g.values[x].shape
    begin = [int(g.rng.integers(n)) for n in shape]
    size = [int(g.rng.integers(1, n - at + 1)) for n, at in zip(shape, begin, strict=True)]
    part = tuple(slice(at, at + n) for at, n in zip(begin, size, strict=True))
    g.put("SLICE", lambda b, x: b.slice(x, begin, size), lambda x: x[part], x)


@_kind("PAD")
def _pad(g: ComputedGraph) -> None:
    x = g.some()
    around = g.rng.integers(0, 3, (g.values[x].ndim, 2)).astype("i4")
    g.put("PAD", lambda b, x: b.pad(x, around), lambda x: np.pad(x, around), x)


@_kind("TILE")
def _tile(g: ComputedGraph) -> None:
    x = g.some()
    times = g.rng.integers(1, 3, g.values[x].ndim).astype("i4")
    g.put("TILE", lambda b, x: b.tile(x, times), lambda x: np.tile(x, times), x)


@_kind("GATHER")
def _gather(g: ComputedGraph) -> None:
    x = g.some()
    axis = int(g.rng.integers(g.values[x].ndim))
    which = g.rng.integers(0, g.values[x].shape[axis], int(g.rng.integers(1, 5))).astype("i4")
    g.put("GATHER", lambda b, x: b.gather(x, axis, which), lambda x: np.take(x, which, axis), x)


@_kind("SOFTMAX")
def _softmax(g: ComputedGraph) -> None:
    def compute(x: Array) -> Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))

    g.put("SOFTMAX", lambda b, x: b.softmax(x, 1.0), compute, g.some(ranks=(2, 4)))


def _reduce(name: str, compute: Compute) -> None:
    @_kind(name)
    def rule(g: ComputedGraph) -> None:
        x = g.some()
        axis = int(g.rng.integers(g.values[x].ndim))
        g.put(
            name,
            lambda b, x: b.operation(name, x, [axis], True),
            lambda x: compute(x, axis=axis, keepdims=True),
            x,
        )


_REDUCTIONS: dict[str, Compute] = {"REDUCE_SUM": np.sum, "REDUCE_MAX": np.max, "REDUCE_MIN": np.min, "MEAN": np.mean}
for _name, _compute in _REDUCTIONS.items():
    _reduce(_name, _compute)


@_kind("FULLY_CONNECTED")
def _fully_connected(g: ComputedGraph) -> None:
    x = g.some(ranks=(2,))
    depth = g.values[x].shape[1]
    units = int(g.rng.choice([1, 3, 8, *WIDE]))
    w, c = g.constant((units, depth)) / np.float32(depth), g.constant((units,))
    g.put(
        "FULLY_CONNECTED",
        lambda b, x: b.fully_connected(x, w, c),
        lambda x: x @ wide(w).T + wide(c),
        x,
    )


@_kind("CONV_2D")
def _conv(g: ComputedGraph) -> None:
    x = g.some(ranks=(4,))
    _, height, width, depth = g.values[x].shape
    h, w, out = min(2, height), min(3, width), int(g.rng.choice([1, 4, 9, 66]))
    weights, bias = g.constant((out, h, w, depth)) / np.float32(depth * h * w), g.constant((out,))

    def compute(x: Array) -> Array:
        seen = np.lib.stride_tricks.sliding_window_view(x, (h, w), (1, 2))
        return np.asarray(np.einsum("nyxcij,oijc->nyxo", seen, wide(weights)) + wide(bias))

    g.put("CONV_2D", lambda b, x: b.conv_2d(x, weights, bias, padding="valid", stride=1), compute, x)


@_kind("DEPTHWISE_CONV_2D")
def _depthwise(g: ComputedGraph) -> None:
    x = g.some(ranks=(4,))
    _, height, width, depth = g.values[x].shape
    h, w = min(3, height), min(2, width)
    weights, bias = g.constant((1, h, w, depth)), g.constant((depth,))

    def compute(x: Array) -> Array:
        seen = np.lib.stride_tricks.sliding_window_view(x, (h, w), (1, 2))
        return np.asarray(np.einsum("nyxcij,ijc->nyxc", seen, wide(weights)[0]) + wide(bias))

    g.put(
        "DEPTHWISE_CONV_2D",
        lambda b, x: b.depthwise_conv_2d(x, weights, bias, padding="valid", stride=1, depth_multiplier=1),
        compute,
        x,
    )


def _pool(name: str, compute: Compute) -> None:
    @_kind(name)
    def rule(g: ComputedGraph) -> None:
        x = g.some(ranks=(4,))
        _, height, width, _ = g.values[x].shape
        h, w = min(2, height), min(2, width)
        g.put(
            name,
            lambda b, x: b.operation(name, x, padding="valid", stride=1, filter_size=(h, w)),
            lambda x: compute(np.lib.stride_tricks.sliding_window_view(x, (h, w), (1, 2)), axis=(-2, -1)),
            x,
        )


_pool("AVERAGE_POOL_2D", np.mean)
_pool("MAX_POOL_2D", np.max)


@_kind("SELECT")
def _select(g: ComputedGraph) -> None:
    x = g.some("i")
    c = g.rng.integers(-9, 9, g.values[x].shape).astype("i4")

    def build(b: Any, x: Any) -> Any:
        return b.select(b.less(x, c), x, b.add(x, c))

    g.put("SELECT", build, lambda x: np.where(x < c, x, x + c), x)


@_kind("CAST")
def _cast(g: ComputedGraph) -> None:
    g.put("CAST", lambda b, x: b.cast(x, out_type="TENSOR_FLOAT32"), lambda x: x.astype("f8"), g.some("i"))


@_kind("QUANTIZE")
def _quantize(g: ComputedGraph) -> None:
    g.put(
        "QUANTIZE",
        lambda b, x: b.quantize(x, scale=SCALE, zero_point=ZERO, out_type="TENSOR_QUANT8_ASYMM"),
        _quantise,
        g.some(),
    )


@_kind("DEQUANTIZE")
def _dequantize(g: ComputedGraph) -> None:
    g.put("DEQUANTIZE", lambda b, x: b.dequantize(x, out_type="TENSOR_FLOAT32"), _real, g.some("q"))


@_kind("ADD/quant8")
def _add_quantised(g: ComputedGraph) -> None:
    x = g.some("q")
    fits = [n for n, v in enumerate(g.values) if kind_of(v) == "q" and _broadcasts(v.shape, g.values[x].shape)]
    g.put(
        "ADD/quant8",
        lambda b, x, y: b.add(x, y, scale=SCALE, zero_point=ZERO),
        lambda x, y: _quantise(_real(x) + _real(y)),
        x,
        fits[int(g.rng.integers(len(fits)))],
    )


def drawn(rng: np.random.Generator, count: int, kinds: Sequence[str], every: float = 0.2) -> ComputedGraph | None:
    """Return a graph of about this many operations of some kinds, or None if none fits.

    every: the share of intermediate results that are outputs too.
    """
    g = ComputedGraph(rng)
    g.draw_input("f", g.shape())
    g.draw_input("f", g.values[0].shape[-1:] if rng.random() < 0.3 else g.values[0].shape)
    if rng.random() < 0.5:
        g.draw_input("i", g.shape()[:2])
    if not g.grow(count, kinds):
        return None
    g.end(every)
    return g
