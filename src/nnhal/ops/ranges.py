"""The values that test generators may choose for an argument.

Records name these ranges with `drawn`, `sized` and `counted`. A range is a function of the call under construction,
`Draw`. It returns a number, an array, a `Value` if the quantisation matters too, a list of them for a variadic
argument, or None to omit the argument. Reading another argument or dimension from the draw draws it first, so ranges
may depend on each other.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from nnhal.base.operands import Array, Value


class Draw(Protocol):
    """One call of an operation under construction, as ranges see it."""

    rng: "np.random.Generator"
    kind: int  # the operation's type `T`

    def __getitem__(self, name: str) -> Any:
        """Return argument `name`: a number for a scalar, a Value for a tensor, None if it is omitted."""

    def __contains__(self, name: object) -> bool:
        """Whether the signature has this argument."""

    def size(self, name: str) -> int:
        """Return a named dimension."""

    def type_of(self, name: str) -> int:
        """Return the operand type that was chosen for an argument."""

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of an argument by its pattern of dimensions."""

    def tensor(self, kind: int, shape: Sequence[int], quant: tuple[float, int] | None = None) -> Value:
        """Draw a tensor whose elements belong to the drawn class; its quantisation is drawn too, if none is given."""

    def quantisation(self, kind: int) -> tuple[float, int]:
        """Draw a scale of about 1, or about that of the drawn class, and a zero point; zeros if the type has none."""

    def plain(self, name: str) -> Any:
        """Draw an argument without its range."""

    def once(self, key: str, *choices: Any) -> Any:
        """Choose one of some; always the same for this key in this call."""

    def whole(self, low: int, high: int, shape: Any = None) -> Any:
        """Draw integers from `low` to `high`."""

    def pick(self, *choices: Any) -> Any:
        """Choose one of some."""


Range = Callable[[Draw], Any]


def between(low: float, high: float) -> Range:
    """Draw real numbers."""
    return lambda d: d.rng.uniform(low, high)


def whole(low: int, high: int) -> Range:
    """Draw an integer."""
    return lambda d: d.whole(low, high)


def among(*choices: Any) -> Range:
    """Choose one of some values."""
    return lambda d: d.pick(*choices)


def array(name: str, low: int, high: int) -> Range:
    """Draw integers for each element of tensor argument `name`."""
    return lambda d: d.whole(low, high, d.shape_of(name))


def axis_range(of: str = "input", beyond: int = 0, *, counted_back: bool = True) -> Range:
    """Draw a dimension of another tensor (of the first of several); `beyond` adds to their number."""

    def draw(d: Draw) -> int:
        rank = first(d[of]).rank + beyond
        return int(d.whole(-rank if counted_back else 0, rank - 1))

    return draw


def first(value: Any) -> Value:
    """Return a tensor, or the first one of a variadic argument."""
    found: Value = value[0] if isinstance(value, list) else value
    return found


def some_axes(d: Draw) -> Array:
    """Draw some dimensions of the input, perhaps with repetitions."""
    rank = d["input"].rank
    found: Array = d.whole(-rank, rank - 1, d.whole(1, rank))
    return found


def element(d: Draw) -> Any:
    """Draw one element of the drawn class, with the type of the argument `value`."""
    return d.tensor(d.type_of("value"), ()).array[()]


def divisors(size: int) -> list[int]:
    """Return the divisors of a size."""
    return [n for n in range(1, size + 1) if size % n == 0] or [1]


def parts_of_axis(d: Draw) -> int:
    """Draw a divisor of the input's size along the axis."""
    return int(d.pick(*divisors(d["input"].known[d["axis"]])))


def factors(d: Draw) -> list[int]:
    """Draw a shape that holds the input's elements, sometimes with a -1."""
    left, shape = math.prod(d["input"].known), []
    for _ in range(int(d.whole(0, 3))):
        shape.append(d.pick(*divisors(left)))
        left //= max(1, shape[-1])
    shape.insert(int(d.whole(0, len(shape))), left)
    if left and d.rng.random() < 0.3:
        shape[shape.index(left)] = -1
    return shape


def leading(name: str, most: int) -> Range:
    """Draw as many sizes as tensor `name` has dimensions, each with 0 to `most` before and after."""
    return lambda d: d.whole(0, most, (first(d[name]).rank, 2))


def range_of(name: str) -> Range:
    """Draw a tensor of type `T` with the shape of another."""
    return lambda d: d.tensor(d.kind, d[name].known)


def sometimes(draw: Range, share: float = 0.7) -> Range:
    """Draw from another range, or omit the argument."""
    return lambda d: draw(d) if d.rng.random() < share else None
