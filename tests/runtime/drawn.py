"""Random models whose parts may run anywhere: many readers, several outputs, unread ones, constants, unknown shapes,
branches and loops within one another, with values that grow.

A `Drawing` knows of each value what its shape will be, where that does not depend on what is computed; rules take what suits
them. Nothing here knows what operations compute.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import nnhal
from nnhal.base.errors import InvalidModel
from nnhal.base.operands import Array
from nnhal.frontends.tensor import Tensor

TYPES = {
    "f": ("TENSOR_FLOAT32", "f4"),
    "h": ("TENSOR_FLOAT16", "f2"),
    "i": ("TENSOR_INT32", "i4"),
    "b": ("TENSOR_BOOL8", "?"),
    "q": ("TENSOR_QUANT8_ASYMM", "u1"),
}
SCALE, ZERO = 0.0625, 100
MOST = 400  # elements of one value
DEPTH = 2  # of control flow within control flow
Shape = tuple[int | None, ...]


class Known(NamedTuple):
    """A value: its tensor, the kind of its elements, and its shape at run time, None where that turns out."""

    tensor: Tensor
    kind: str
    shape: Shape

    @property
    def fixed(self) -> tuple[int, ...] | None:
        return None if None in self.shape else tuple(d for d in self.shape if d is not None)


class Drawing:
    """A graph that is being drawn."""

    def __init__(self, rng: np.random.Generator, b: nnhal.Builder, depth: int = 0) -> None:
        self.rng, self.b, self.depth = rng, b, depth
        self.inputs: list[Known] = []
        self.pool: list[Known] = []
        self.written: list[Known] = []

    # ------------------------------------------------------------------------------------------------------- choices

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def some(self, kinds: str = "fhibq", *, fixed: bool = True, rank: Sequence[int] = range(1, 5)) -> Known:
        """A value of such a kind; of a shape that is known where it has to be."""
        fitting = [v for v in self.pool if v.kind in kinds and len(v.shape) in rank and (v.fixed or not fixed)]
        if not fitting:
            raise Unfit
        return self.one(fitting[-6:] if self.chance(0.6) else fitting)

    def values(self, kind: str, shape: Sequence[int]) -> Array:
        dtype = TYPES[kind][1]
        if kind == "b":
            return self.rng.integers(0, 2, shape).astype("?")
        if kind == "q":
            return self.rng.integers(0, 256, shape).astype(dtype)
        if kind == "i":
            return self.rng.integers(-4, 5, shape).astype(dtype)
        return self.rng.uniform(-2, 2, shape).astype(dtype)

    def constant(self, kind: str, shape: Sequence[int]) -> Tensor:
        quant = (SCALE, ZERO) if kind == "q" else (0.0, 0)
        return self.b.constant(self.values(kind, shape), TYPES[kind][0], *quant)

    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.rng.integers(1, 5, int(self.rng.integers(1, 4))))

    # ---------------------------------------------------------------------------------------------------------- ends

    def given(self, kind: str, shape: Shape) -> Known:
        """An input; what is known of its shape is not always said."""
        said = [None if self.chance(0.15) else d for d in shape]
        if self.chance(0.05):
            said = []
        quant = (SCALE, ZERO) if kind == "q" else (0.0, 0)
        known = Known(self.b.input(said, TYPES[kind][0], *quant), kind, shape)
        self.inputs.append(known)
        self.pool.append(known)
        return known

    def put(self, tensors: Any, *facts: tuple[str, Shape]) -> list[Known]:
        """What an operation gave."""
        several = tensors if isinstance(tensors, tuple) else (tensors,)
        found = [Known(t, *fact) for t, fact in zip(several, facts, strict=True)]
        self.pool += found
        self.written += found
        return found

    def like(self, kind: str, shape: tuple[int, ...]) -> Known:
        """A value of this kind and shape that an operation has written."""
        fitting = [v for v in self.pool if v.kind == kind and v.fixed == shape]
        return self.same(self.one(fitting) if fitting else Known(self.constant(kind, shape), kind, shape))

    def same(self, x: Known) -> Known:
        """Another of the same kind and shape."""
        b = self.b
        one = {"f": [b.neg, b.abs, b.relu, b.tanh], "h": [b.relu, b.abs], "i": [b.neg, b.abs], "b": [b.logical_not]}
        (y,) = self.put(self.one(one.get(x.kind, [b.relu]))(x.tensor), (x.kind, x.shape))
        return y

    def truth(self) -> Tensor:
        """A truth value on which something depends: given, constant, or computed."""
        fitting = [v for v in self.pool if v.kind == "b" and v.fixed == (1,)]
        if fitting and self.chance(0.6):
            return self.one(fitting).tensor
        if self.chance(0.15):
            return self.b.constant([self.chance(0.5)], "TENSOR_BOOL8")
        x = self.some("fi")
        (flat,) = self.put(self.b.reshape(x.tensor, [-1]), (x.kind, (math.prod(x.fixed or ()),)))
        (first,) = self.put(self.b.slice(flat.tensor, [0], [1]), (x.kind, (1,)))
        (found,) = self.put(self.b.less(first.tensor, self.constant(x.kind, (1,))), ("b", (1,)))
        return found.tensor

    def grow(self, count: int) -> None:
        """So many operations, or fewer."""
        rules = [*RULES, *FLOW] if self.depth < DEPTH else RULES
        weights = np.array([weight for _, weight in rules], "f8")
        for _ in range(count):
            rule = rules[int(self.rng.choice(len(rules), p=weights / weights.sum()))][0]
            try:
                rule(self)
            except Unfit:
                pass
            except InvalidModel:  # what is not known beforehand some operations do not take
                if self.depth:
                    raise Unfit from None

    def inside(self) -> "Drawing":
        """A graph for a subgraph."""
        return Drawing(self.rng, self.b.subgraph(), self.depth + 1)


class Unfit(Exception):
    """A rule finds nothing that suits it."""


# ---------------------------------------------------------------------------------------------------------------- rules


def unary(d: Drawing) -> None:
    d.same(d.some(fixed=False))


def curved(d: Drawing) -> None:
    x = d.some("f", fixed=False)
    d.put(d.one([d.b.logistic, d.b.floor, d.b.exp, d.b.sin])(x.tensor), (x.kind, x.shape))


def doubled(d: Drawing) -> None:
    x = d.some("fhi", fixed=False)
    d.put(d.one([d.b.add, d.b.mul, d.b.maximum])(x.tensor, x.tensor), (x.kind, x.shape))


def binary(d: Drawing) -> None:
    x = d.some("fhi")
    others = [v for v in d.pool if v.kind == x.kind and v.fixed and _broadcast(v.fixed, x.fixed) == x.fixed]
    kept = tuple(n if d.chance(0.6) else 1 for n in x.fixed or ())
    y = d.one(others).tensor if d.chance(0.7) else d.constant(x.kind, kept)
    d.put(d.one([d.b.add, d.b.sub, d.b.mul, d.b.minimum])(x.tensor, y), (x.kind, x.shape))


def compared(d: Drawing) -> None:
    x = d.some("fi")
    d.put(d.one([d.b.less, d.b.equal, d.b.greater_equal])(x.tensor, d.constant(x.kind, x.fixed or ())), ("b", x.shape))


def selected(d: Drawing) -> None:
    x = d.some("fi")
    (where,) = d.put(d.b.greater(x.tensor, d.constant(x.kind, x.fixed or ())), ("b", x.shape))
    d.put(d.b.select(where.tensor, x.tensor, d.like(x.kind, x.fixed or ()).tensor), (x.kind, x.shape))


def cast(d: Drawing) -> None:
    x = d.some("fhi", fixed=False)
    kind = d.one([k for k in "fhi" if k != x.kind])
    d.put(d.b.cast(x.tensor, out_type=TYPES[kind][0]), (kind, x.shape))


def quantised(d: Drawing) -> None:
    x = d.some("f", fixed=False)
    d.put(d.b.quantize(x.tensor, scale=SCALE, zero_point=ZERO, out_type=TYPES["q"][0]), ("q", x.shape))


def dequantised(d: Drawing) -> None:
    x = d.some("q", fixed=False)
    d.put(d.b.dequantize(x.tensor, out_type=TYPES["f"][0]), ("f", x.shape))


def joined(d: Drawing) -> None:
    x = d.some("fhiq")
    shape = list(x.fixed or ())
    axis = int(d.rng.integers(len(shape)))
    beside = [v for v in d.pool if v.kind == x.kind and v.fixed and _but(v.fixed, axis) == _but(shape, axis)]
    y = d.one(beside)
    total = shape[axis] + (y.shape[axis] or 0)
    if math.prod(shape) // shape[axis] * total > MOST:
        raise Unfit
    shape[axis] = total
    both = [x.tensor, y.tensor]
    if x.kind == "q":
        d.put(d.b.concatenation(both, axis, scale=SCALE, zero_point=ZERO), (x.kind, tuple(shape)))
    else:
        d.put(d.b.concatenation(both, axis), (x.kind, tuple(shape)))


def split(d: Drawing) -> None:
    x = d.some("fi")
    shape = list(x.fixed or ())
    parts = [(axis, n) for axis, size in enumerate(shape) for n in (2, 3) if size % n == 0]
    if not parts:
        raise Unfit
    axis, count = d.one(parts)
    shape[axis] //= count
    d.put(d.b.split(x.tensor, axis, count, outputs=count), *[(x.kind, tuple(shape))] * count)


def transposed(d: Drawing) -> None:
    x = d.some("fhq")
    order = [int(n) for n in d.rng.permutation(len(x.shape))]
    d.put(d.b.transpose(x.tensor, order), (x.kind, tuple(x.shape[n] for n in order)))


def reshaped(d: Drawing) -> None:
    x = d.some("fhiq")
    size = math.prod(x.fixed or ())
    first = d.one([n for n in range(1, size + 1) if size % n == 0])
    shape = d.one([(size,), (first, size // first), (1, first, size // first)])
    d.put(d.b.reshape(x.tensor, [*shape[:-1], d.one([-1, shape[-1]])]), (x.kind, shape))


def sliced(d: Drawing) -> None:
    x = d.some("fhiq")
    shape = x.fixed or ()
    begin = [int(d.rng.integers(n)) for n in shape]
    sizes = [int(d.rng.integers(1, n - at + 1)) for n, at in zip(shape, begin, strict=True)]
    d.put(d.b.slice(x.tensor, begin, sizes), (x.kind, tuple(sizes)))


def tiled(d: Drawing) -> None:
    """By numbers that are computed: nobody knows the shape before."""
    x = d.some("fi")
    rank = len(x.shape)
    if math.prod(x.fixed or ()) * 3**rank > MOST:
        raise Unfit
    numbers = [v for v in d.pool if v.kind == "i" and v.fixed == (rank,)]
    n = d.one(numbers).tensor if numbers else d.like("i", (rank,)).tensor
    (low,) = d.put(d.b.minimum(n, [3] * rank), ("i", (rank,)))
    (times,) = d.put(d.b.maximum(low.tensor, [1] * rank), ("i", (rank,)))
    d.put(d.b.tile(x.tensor, times.tensor), (x.kind, (None,) * rank))


def summed(d: Drawing) -> None:
    """Along all dimensions where they turn out only at run time: so that others can go on."""
    x = d.some("f", fixed=False)
    rank = len(x.shape)
    axes = list(range(rank)) if x.fixed is None or d.chance(0.3) else [int(d.rng.integers(rank))]
    shape = tuple(1 if n in axes else size for n, size in enumerate(x.shape))
    d.put(d.one([d.b.reduce_sum, d.b.reduce_max])(x.tensor, axes, True), (x.kind, shape))


def best(d: Drawing) -> None:
    x = d.some("f")
    k = int(d.rng.integers(1, (x.shape[-1] or 0) + 1))
    shape = (*x.shape[:-1], k)
    d.put(d.b.topk_v2(x.tensor, k), ("f", shape), ("i", shape))


def gathered(d: Drawing) -> None:
    x = d.some("fiq")
    axis = int(d.rng.integers(len(x.shape)))
    which = d.rng.integers(0, x.shape[axis] or 1, int(d.rng.integers(1, 4))).astype("i4")
    d.put(d.b.gather(x.tensor, axis, which), (x.kind, (*x.shape[:axis], len(which), *x.shape[axis + 1 :])))


def connected(d: Drawing) -> None:
    x = d.some("f", rank=[2])
    units = int(d.rng.integers(1, 5))
    weights, bias = d.constant("f", (units, x.shape[1] or 0)), d.constant("f", (units,))
    d.put(d.b.fully_connected(x.tensor, weights, bias), ("f", (x.shape[0], units)))


def shared(d: Drawing) -> None:
    x = d.some("f", rank=[2, 3, 4])
    d.put(d.b.softmax(x.tensor, 1.0), ("f", x.shape))


RULES: list[tuple[Callable[[Drawing], None], float]] = [
    (unary, 3), (curved, 1), (doubled, 2), (binary, 5), (compared, 0.7), (selected, 0.7), (cast, 1), (quantised, 0.7),
    (dequantised, 1), (joined, 2), (split, 1), (transposed, 1), (reshaped, 1.5), (sliced, 1), (tiled, 1), (summed, 1),
    (best, 1), (gathered, 1), (connected, 1), (shared, 0.7),
]  # fmt: skip


def _broadcast(one: Sequence[int], other: Any) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(tuple(one), other)
    except ValueError:
        return None


def _but(shape: Sequence[int], axis: int) -> Any:
    return (*shape[:axis], *shape[axis + 1 :]) if axis < len(shape) else None


# --------------------------------------------------------------------------------------------------------- control flow


def operands(d: Drawing, most: int) -> list[Known]:
    """Values that a subgraph is given: some of them constants, some of them twice."""
    found = [d.some() for _ in range(int(d.rng.integers(1, most + 1)))]
    if not d.chance(0.2):
        found = list({id(v.tensor): v for v in found}.values())
    return [Known(d.constant(v.kind, v.fixed or ()), v.kind, v.shape) if d.chance(0.15) else v for v in found]


def omitted(d: Drawing, inner: Drawing) -> None:
    """An input that nobody is given; an operation that may do without it has it, in some."""
    units = 1 + d.depth
    bias = inner.b.input([units])
    inner.inputs.append(Known(bias, "f", (units,)))
    rows = [v for v in inner.pool if v.kind == "f" and v.fixed and len(v.fixed) == 2]
    if rows and inner.chance(0.7):
        x = inner.one(rows)
        size = x.fixed[1]
        features, times = inner.constant("f", (units, size)), inner.constant("f", (units, 3))
        state = inner.b.constant(np.zeros((x.fixed[0], 3 * units), "f4"))
        made = inner.b.svdf(x.tensor, features, times, bias, state, 1, "none")
        inner.put(made, ("f", (x.fixed[0], 3 * units)), ("f", (x.fixed[0], units)))


def results(b: nnhal.Builder, put: Callable[..., Any], made: Sequence[tuple[str, Shape]], *arguments: Any) -> None:
    put_types = [TYPES[kind][0] for kind, _ in made]
    scales = [SCALE if kind == "q" else None for kind, _ in made]
    zeros = [ZERO if kind == "q" else None for kind, _ in made]
    put(arguments[0](*arguments[1:], out_type=put_types, scale=scales, zero_point=zeros, outputs=len(made)), *made)


def chosen(d: Drawing) -> None:
    """IF: branches that draw what they like on the same operands, and give the same kinds; or longer ones than others."""
    given, condition, missing = operands(d, 3), d.truth(), d.chance(0.15)
    wanted = [(v.kind, v.fixed or ()) for v in given if d.chance(0.6)] or [(given[0].kind, given[0].fixed or ())]
    ragged = [kind in "fhi" and d.chance(0.25) for kind, _ in wanted]
    graphs = []
    for number in range(2):
        inner = d.inside()
        for v in given:
            inner.given(v.kind, v.shape)
        if missing:
            omitted(d, inner)
        inner.grow(int(d.rng.integers(0, 5)))
        ends = []
        for (kind, shape), longer in zip(wanted, ragged, strict=True):
            end = inner.like(kind, shape)
            if longer and number:
                total = (2 * shape[0], *shape[1:])
                (end,) = inner.put(inner.b.concatenation([end.tensor, end.tensor], 0), (kind, total))
            ends.append(end.tensor)
        if d.chance(0.3):
            inner.grow(1)
        graphs.append(inner.b.finish_subgraph([v.tensor for v in inner.inputs], ends))
    made = [
        (kind, (None, *shape[1:]) if longer else shape) for (kind, shape), longer in zip(wanted, ragged, strict=True)
    ]
    if not any(ragged) and d.chance(0.1):
        graphs[1] = graphs[0]
    tensors = [v.tensor for v in given] + [None] * missing
    results(d.b, d.put, made, d.b.if_, condition, *graphs, tensors)
    if d.chance(0.1):  # once more, on other values
        again = [d.like(v.kind, v.fixed or ()).tensor for v in given] + [None] * missing
        results(d.b, d.put, made, d.b.if_, d.truth(), *reversed(graphs), again)


def looped(d: Drawing) -> None:
    """WHILE: a counter up to a limit, values that a body changes, one that may grow, and others that it only reads."""
    carried, read = operands(d, 2), operands(d, 2)
    growing = [v for v in d.pool if v.kind in "fhi" and len(v.shape) == 1 and v.fixed and v.fixed[0] < 5]
    tail: Known | None = d.one(growing) if growing and d.chance(0.5) else None
    limit, missing = int(d.rng.integers(0, 5)) if d.chance(0.9) else 20, d.chance(0.1)
    ends = [Known(d.constant("i", (1,)), "i", (1,)) if d.chance(0.3) else d.like("i", (1,)) for _ in range(1)]
    zero = d.b.mul(ends[0].tensor, [0]) if d.chance(0.5) else d.b.constant(np.zeros(1, "i4"))
    counter = Known(zero, "i", (1,))
    stop = Known(d.b.constant(np.array([limit], np.int32)), "i", (1,))
    start = [counter, *carried, *([tail] if tail else []), stop, *read]

    def heads(inner: Drawing) -> None:
        for v in start:
            if v is tail and tail is not None:
                one = Known(inner.b.input([None], TYPES[v.kind][0]), v.kind, (None,))
                inner.inputs.append(one)
                inner.pool.append(one)
            else:
                inner.given(v.kind, v.shape)
        if missing:
            omitted(d, inner)

    first = d.inside()
    heads(first)
    at = 1 + len(carried) + (tail is not None)
    first.grow(int(d.rng.integers(0, 2)))
    goes_on = first.b.less(first.inputs[0].tensor, first.inputs[at].tensor)
    condition = first.b.finish_subgraph([v.tensor for v in first.inputs], [goes_on])

    body = d.inside()
    heads(body)
    body.grow(int(d.rng.integers(0, 5)))
    following = [body.b.add(body.inputs[0].tensor, [1])]
    for v in carried:
        following.append(body.like(v.kind, v.fixed or ()).tensor)
        body.grow(int(d.rng.integers(0, 2)))
    if tail is not None:
        mine = body.inputs[1 + len(carried)]
        more = body.constant(tail.kind, (2,)) if d.chance(0.5) else body.like(tail.kind, (1,)).tensor
        following.append(body.b.concatenation([mine.tensor, more], 0))
    turns = body.b.finish_subgraph([v.tensor for v in body.inputs], following)
    made: list[tuple[str, Shape]] = [(v.kind, (None,) if v is tail else v.shape) for v in start[: len(following)]]
    count = len(made) if d.chance(0.7) else int(d.rng.integers(1, len(made) + 1))
    tensors = [v.tensor for v in start] + [None] * missing
    results(d.b, d.put, made[:count], d.b.while_, condition, turns, tensors)


FLOW: list[tuple[Callable[[Drawing], None], float]] = [(chosen, 4), (looped, 4)]


# ----------------------------------------------------------------------------------------------------------------- models


def draw(seed: Sequence[int]) -> tuple[nnhal.Model, list[list[Array]]]:
    """A model, and inputs for two executions."""
    rng = np.random.default_rng(seed)
    d = Drawing(rng, nnhal.Builder("drawn"))
    for n in range(int(rng.integers(1, 4))):
        d.given("f" if n == 0 else d.one("fhibq"), d.shape())
    if d.chance(0.6):
        d.given("b", (1,))
    d.grow(int(rng.integers(4, 18)))
    if not d.written:
        d.same(d.inputs[0])
    ends = [d.one(d.written[-4:] if d.chance(0.7) else d.written) for _ in range(int(rng.integers(1, 5)))]
    outputs = {id(v.tensor): v for v in ends}
    model = d.b.finish([v.tensor for v in d.inputs], [v.tensor for v in outputs.values()])
    return model, [[d.values(v.kind, v.fixed or ()) for v in d.inputs] for _ in range(2)]
