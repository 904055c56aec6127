"""How to draw operands: shapes and quantisation by hypothesis, contents from a seed that it draws, extremes mixed in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

from nnhal.base.codes import TYPE_FACTS
from nnhal.base.operands import Array, Value, dtype_of
from nnhal.conformance.suite import tolerance
from tests.ops.run import B8, F16, F32, I32, run, value

STABLE = settings(
    max_examples=200, derandomize=True, database=None, deadline=None, phases=(Phase.generate, Phase.shrink)
)
POINTS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.0, -3.0, 6.0, 7.0, 1e-6, -1e-3)


@dataclass(frozen=True)
class Example:
    """One call of an operation: its inputs in the definition's order, and what its output is declared as."""

    inputs: tuple[Any, ...]  # Value, or a number for a scalar argument
    output: Value

    @property
    def tensors(self) -> list[Value]:
        """The inputs without the scalars."""
        return [x for x in self.inputs if isinstance(x, Value)]


def quantised(kind: int) -> bool:
    return TYPE_FACTS[kind].zero_points is not None


SIZES = [size for rank in range(1, 5) for size in product(range(1, 6), repeat=rank) if math.prod(size) <= 200]


@cache
def shapes(rank: tuple[int, int] = (1, 4)) -> st.SearchStrategy[tuple[int, ...]]:
    """A shape of few elements: broadcasting, layouts and reductions show in small ones."""
    return st.sampled_from([size for size in SIZES if rank[0] <= len(size) <= rank[1]])


def broadcastable(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast against each other, in either order."""
    full = draw(shapes())
    bits = draw(st.integers(0, 2**7 - 1))  # which dimensions of the other are 1, how many it lacks, the order
    other = tuple(1 if bits >> axis & 1 else n for axis, n in enumerate(full))[(bits >> 4 & 3) % len(full) :]
    return (full, other) if bits >> 6 else (other, full)


class Source:
    """Quantisation and contents from one seed of hypothesis: far quicker than a choice of its for each element."""

    def __init__(self, draw: Any) -> None:
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def pick(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def quant(self, kind: int, base: int = 0, spread: int = 6, exact: bool = False) -> tuple[float, int]:
        """(scale, zero point) about 2 to the power of `base`; zero points at both ends of the type are likely.

        exact: a scale of 8 significant bits, with which every real value is exact in float32.
        """
        if not quantised(kind):
            return 0.0, 0
        least, most = TYPE_FACTS[kind].zero_points
        zero = self.pick(least, most, (least + most + 1) // 2, self.rng.integers(least, most + 1))
        factor = self.rng.integers(128, 256) / 128 if exact else self.rng.uniform(1, 2)
        return float(np.float32(factor * 2.0 ** (base + self.rng.integers(-spread, spread + 1)))), int(zero)

    def contents(self, kind: int, shape: Sequence[int], span: float = 10.0, points: Sequence[float] = POINTS) -> Array:
        """Elements of a type: floats mostly within `span`, integers of the whole type; ends and points among them."""
        rng, dtype = self.rng, dtype_of(kind)
        if kind == B8:
            return rng.integers(0, 2, shape).astype(dtype)
        if dtype.kind != "f":
            limits = np.iinfo(dtype)
            full = rng.integers(limits.min, limits.max, shape, np.int64, endpoint=True)
            small = rng.integers(max(limits.min, -9), 9, shape) if kind == I32 else full
            ends = rng.choice([limits.min, limits.max, limits.min + 1, limits.max - 1, 0, 1], shape)
            return np.choose(rng.integers(0, 4, shape), [full, small, full, ends]).astype(dtype)
        near = rng.uniform(-span, span, shape)
        tiny = rng.normal(size=shape) * 10.0 ** rng.integers(-4, 1, shape)
        return np.choose(rng.integers(0, 4, shape), [near, near, tiny, rng.choice(points, shape)]).astype(dtype)

    def tensor(self, kind: int, shape: Sequence[int], q: tuple[float, int] = (0.0, 0), **more: Any) -> Value:
        """An operand whose value is known."""
        return value(kind, self.contents(kind, shape, **more), *q)


def assert_agrees(name: str, example: Example, expected: Array, *, steps: int = 1, floor: float = 0.0) -> None:
    """The reference kernel's output is `expected`, within the published tolerance; integers exactly.

    steps: how far quantised values may be apart. floor: an absolute tolerance of floats where the oracle needs a wider one.
    """
    out = example.output
    actual = run(name, example.inputs, out)[0]
    assert actual.shape == expected.shape, f"shape {actual.shape}, oracle {expected.shape}"
    assert actual.dtype == dtype_of(out.type)
    atol, rtol = tolerance(out.type, any(v.type == F16 for v in example.tensors))
    if quantised(out.type):
        atol = steps
    elif out.type in (F32, F16):
        atol = max(atol, floor)
    else:
        atol = 0
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        fine = (np.abs(a - e) <= atol + rtol * np.abs(e)) | (a == e) | (np.isnan(a) & np.isnan(e))
    bad = np.argwhere(~fine)
    if len(bad):
        at = tuple(bad[0])
        raise AssertionError(f"{len(bad)} of {a.size} differ, the first at {at}: {a[at]!r}, oracle {e[at]!r}")
