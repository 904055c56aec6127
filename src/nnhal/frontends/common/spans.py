"""Ranges of integers: what 64-bit ones of a file may hold, so that 32 bits do for them."""

from collections.abc import Callable, Sequence
from itertools import product

Span = tuple[int, int]
ANY: Span = (-(1 << 31), (1 << 31) - 1)


def corners(function: Callable[[int, int], int]) -> Callable[..., Span]:
    """Of a function of two integers that is greatest and least at the ends of their ranges."""

    def span(x: Span, y: Span) -> Span:
        values = [function(a, b) for a, b in product(x, y)]
        return min(values), max(values)

    return span


def magnitude(x: Span) -> Span:
    """Of what is left without a sign."""
    return (0 if x[0] <= 0 <= x[1] else min(map(abs, x))), max(map(abs, x))


def hull(spans: Sequence[Span]) -> Span:
    """All values of all of them, and 0, which padding has."""
    return min(0, *(s[0] for s in spans)), max(0, *(s[1] for s in spans))
