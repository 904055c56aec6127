"""Represents 64-bit integers as 32-bit ones, without loss: NNAPI has no others.

Each call checks the application's values, constants are known, and operators that only move, select or compare integers
make no greater ones. For sums and products, the importer computes the least and greatest value. If these may exceed 32
bits, the importer tries again with smaller inputs, whose values each call checks. If that does not help, the operator is
refused.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from nnhal.base.operands import Shape
from nnhal.frontends.common.terms import Term, UnsupportedOperator, fits

Span = tuple[int, int]
ANY: Span = (-(1 << 31), (1 << 31) - 1)
TOO_WIDE = "is of INT64 and may need more than the 32 bits that NNAPI's integers have"
EVERY: Span = (-(1 << 63), (1 << 63) - 1)


class Spans(NamedTuple):
    """The ranges of an operator's inputs. shape: of the first input. number: of the output."""

    inputs: Sequence[Span]
    shape: Shape | None
    number: int


SpanRule = Callable[[Spans], Span]  # the range of an output


def span_of(rule: SpanRule | None, result: Term, terms: Sequence[Term], spans: Spans, otherwise: Span) -> Span:
    """Return the range of an output; raise UnsupportedOperator if 64-bit integers of the file may exceed 32 bits.

    Those of 32 bits wrap in the file too.

    Args:
        rule: The operator's, if it has one.
        result: The output.
        terms: Its sources.
        spans: Their ranges.
        otherwise: The range of what has no rule.
    """
    found = rule(spans) if rule else spans.inputs[0] if result.value.data is not None else otherwise
    if not fits(found):
        if result.kind == "INT32":
            return ANY
        if any(term.doubtful for term in terms):
            raise UnsupportedOperator  # their operator was refused
        raise UnsupportedOperator(TOO_WIDE)
    return found


def hull(spans: Sequence[Span]) -> Span:
    """Return the smallest range with all of them and 0, the value of padding."""
    return min(0, *(s[0] for s in spans)), max(0, *(s[1] for s in spans))


def magnitude(x: Span) -> Span:
    """Return the range of the absolute value."""
    return (0 if x[0] <= 0 <= x[1] else min(map(abs, x))), max(map(abs, x))


def power(x: int, exponent: int) -> int:
    """Compute a power of an absolute value only as far as needed to see that it exceeds 32 bits."""
    return int(x ** min(exponent, 32)) if x > 1 else x


# --------------------------------------------------------------------------------------------------------------- rules


def of_all(s: Spans) -> Span:
    """Return the range of elements of all inputs."""
    return hull(s.inputs)


def of_first(s: Spans) -> Span:
    """Return the range of elements of the first input."""
    return hull(s.inputs[:1])


def unchanged(s: Spans) -> Span:
    """Return the range of converted elements."""
    return s.inputs[0] if s.inputs else ANY


def of_truth(_: Spans) -> Span:
    """Return the range of a comparison."""
    return 0, 1


def unlimited(_: Spans) -> Span:
    """Return the range of a subgraph's result: its own operators are checked."""
    return ANY


def of_indices(s: Spans) -> Span:
    """Return the range of places along a dimension of the first input."""
    known = s.shape is not None and None not in s.shape
    return 0, max(d or 0 for d in s.shape or (1,)) - 1 if known else ANY[1]


def of_values(function: Callable[..., Span]) -> SpanRule:
    """Return the rule of a function of the ranges."""
    return lambda s: function(*s.inputs)


def corners(function: Callable[[int, int], int]) -> SpanRule:
    """Return the rule of a function of two integers whose extremes lie at the ends of their ranges."""

    def span(s: Spans) -> Span:
        values = [function(a, b) for a, b in product(*s.inputs)]
        return min(values), max(values)

    return span


def of_sum(s: Spans) -> Span:
    """Return the range of a sum of any elements of the first input."""
    count = 1 << 63 if s.shape is None or None in s.shape else math.prod(d or 0 for d in s.shape)
    low, high = s.inputs[0]
    return min(0, low) * count, max(0, high) * count


added, subtracted, multiplied = corners(lambda a, b: a + b), corners(lambda a, b: a - b), corners(lambda a, b: a * b)
negated = of_values(lambda x: (-x[1], -x[0]))
absolute = of_values(magnitude)
sign = of_values(lambda x: (-1, 1))
