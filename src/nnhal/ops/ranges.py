"""What test generators may choose for an argument: the ranges that records name with `drawn`, `sized` and `counted`.

A range is a function of the call in the making, `Draw`: it returns a number, an array, a `Value` where the quantisation
matters too, a list of them for a variadic argument, or None to leave the argument out. Asking a draw for another argument
or dimension draws it first, so ranges may lean on each other.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from nnhal.base.operands import Array, Value


class Draw(Protocol):
    """One call of an operation in the making, as ranges see it."""

    rng: "np.random.Generator"
    kind: int  # the operation's own type

    def __getitem__(self, name: str) -> Any:
        """Argument `name`: a number where it is a scalar, a Value where it is a tensor, None where it is left out."""

    def __contains__(self, name: object) -> bool:
        """Whether the form has this argument."""

    def size(self, name: str) -> int:
        """A named dimension."""

    def type_of(self, name: str) -> int:
        """The operand type that was chosen for an argument."""

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape that an argument's pattern of dimensions takes."""

    def tensor(self, kind: int, shape: Sequence[int], quant: tuple[float, int] | None = None) -> Value:
        """A tensor whose elements are of the class that is drawn; of a quantisation that is drawn too, if none is given."""

    def quantisation(self, kind: int) -> tuple[float, int]:
        """A scale about 1, or about that of the class that is drawn, and a zero point; zeros where there is none."""

    def plain(self, name: str) -> Any:
        """What an argument is drawn as without a range of its own."""

    def once(self, key: str, *choices: Any) -> Any:
        """One of some; the same whenever this key is asked for in this call."""

    def whole(self, low: int, high: int, shape: Any = None) -> Any:
        """Integers from `low` to `high`."""

    def pick(self, *choices: Any) -> Any:
        """One of some."""


Range = Callable[[Draw], Any]


def between(low: float, high: float) -> Range:
    """Real numbers."""
    return lambda d: d.rng.uniform(low, high)


def whole(low: int, high: int) -> Range:
    """An integer."""
    return lambda d: d.whole(low, high)


def among(*choices: Any) -> Range:
    """One of some values."""
    return lambda d: d.pick(*choices)


def array(name: str, low: int, high: int) -> Range:
    """Integers for each element of tensor argument `name`."""
    return lambda d: d.whole(low, high, d.shape_of(name))


def an_axis(of: str = "input", beyond: int = 0, *, counted_back: bool = True) -> Range:
    """A dimension of another tensor (of the first of several); `beyond` more than it has."""

    def draw(d: Draw) -> int:
        rank = first(d[of]).rank + beyond
        return int(d.whole(-rank if counted_back else 0, rank - 1))

    return draw


def first(value: Any) -> Value:
    """A tensor, or the first of a variadic argument's."""
    found: Value = value[0] if isinstance(value, list) else value
    return found


def some_axes(d: Draw) -> Array:
    """Some dimensions of the input, perhaps twice."""
    rank = d["input"].rank
    found: Array = d.whole(-rank, rank - 1, d.whole(1, rank))
    return found


def element(d: Draw) -> Any:
    """One element of the type that an argument `value` has, of the class that is drawn."""
    return d.tensor(d.type_of("value"), ()).array[()]


def divisors(size: int) -> list[int]:
    """What divides a size."""
    return [n for n in range(1, size + 1) if size % n == 0] or [1]


def parts_of_axis(d: Draw) -> int:
    """What divides the input's size along the axis."""
    return int(d.pick(*divisors(d["input"].known[d["axis"]])))


def factors(d: Draw) -> list[int]:
    """A shape that holds the input's elements, with a -1 now and then."""
    left, shape = math.prod(d["input"].known), []
    for _ in range(int(d.whole(0, 3))):
        shape.append(d.pick(*divisors(left)))
        left //= max(1, shape[-1])
    shape.insert(int(d.whole(0, len(shape))), left)
    if left and d.rng.random() < 0.3:
        shape[shape.index(left)] = -1
    return shape


def leading(name: str, most: int) -> Range:
    """As many sizes as tensor `name` has dimensions, from 0 to `most` before and after each."""
    return lambda d: d.whole(0, most, (first(d[name]).rank, 2))


def like(name: str) -> Range:
    """A tensor of the own type with the shape of another."""
    return lambda d: d.tensor(d.kind, d[name].known)


def sometimes(draw: Range, share: float = 0.7) -> Range:
    """What another range gives, or nothing."""
    return lambda d: draw(d) if d.rng.random() < share else None
