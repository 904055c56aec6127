"""Ranges of integers: decides whether the 64-bit integers of a file fit 32 bits."""

import math
from collections.abc import Callable, Sequence
from itertools import product

from nnhal.base.operands import Shape
from nnhal.frontends.common.terms import Term, UnsupportedOperator, fits

Span = tuple[int, int]
ANY: Span = (-(1 << 31), (1 << 31) - 1)


def corners(function: Callable[[int, int], int]) -> Callable[..., Span]:
    """Return the range of a function of two integers whose extremes lie at the ends of their ranges."""

    def span(x: Span, y: Span) -> Span:
        values = [function(a, b) for a, b in product(x, y)]
        return min(values), max(values)

    return span


def magnitude(x: Span) -> Span:
    """Return the range of the absolute value."""
    return (0 if x[0] <= 0 <= x[1] else min(map(abs, x))), max(map(abs, x))


def hull(spans: Sequence[Span]) -> Span:
    """Return the smallest range with all of them and 0, the value of padding."""
    return min(0, *(s[0] for s in spans)), max(0, *(s[1] for s in spans))


def total(shape: Shape | None, span: Span) -> Span:
    """Return the range of a sum of any elements of a tensor."""
    count = 1 << 63 if shape is None or None in shape else math.prod(d or 0 for d in shape)
    return min(0, span[0]) * count, max(0, span[1]) * count


def within(found: Span, terms: Sequence[Term]) -> Span:
    """Return a range that fits 32 bits; raise Inexpressible for another. terms: its sources."""
    if not fits(found):
        if any(term.doubtful for term in terms):
            raise UnsupportedOperator  # their operator was refused
        raise UnsupportedOperator("is of INT64 and may need more than the 32 bits that NNAPI's integers have")
    return found
