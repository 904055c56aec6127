"""Represents 64-bit integers as 32-bit ones, without loss: NNAPI has no others.

Each call checks the application's values, constants are known, and operators that only move, select or compare integers
make no greater ones. For sums and products, the importer computes the least and greatest value. If these may exceed 32
bits, the importer tries again with smaller inputs, whose values each call checks. If that does not help, the operator is
refused.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import NamedTuple, Protocol, TypeVar

from nnhal.base.errors import BadFile
from nnhal.base.names import short
from nnhal.base.operands import Shape
from nnhal.frontends.common.budget import Budget
from nnhal.frontends.common.terms import Term, UnsupportedOperator, fits

Span = tuple[int, int]
ANY: Span = (-(1 << 31), (1 << 31) - 1)
TOO_WIDE = "is of INT64 and may need more than the 32 bits that NNAPI's integers have"
EVERY: Span = (-(1 << 63), (1 << 63) - 1)
NO_SPANS: Mapping[str, Span] = {}
FEWER_BITS = 30, 24, 17, 10, 7  # of inputs of INT64, where operators may exceed 32


class Spans(NamedTuple):
    """The ranges of an operator's inputs. shape: of the first input. number: of the output."""

    inputs: Sequence[Span]
    shape: Shape | None
    number: int


SpanRule = Callable[[Spans], Span]  # the range of an output


def span_of(
    rule: SpanRule | None, result: Term, number: int, terms: Sequence[Term], inputs: Sequence[Span], otherwise: Span
) -> Span:
    """Return the range of an output; raise UnsupportedOperator if 64-bit integers of the file may exceed 32 bits.

    Those of 32 bits wrap in the file too.

    Args:
        rule: The operator's, if it has one.
        result: The output.
        number: Its number.
        terms: The inputs.
        inputs: Their ranges.
        otherwise: The range of what has no rule.
    """
    shape = terms[0].value.shape if terms else None
    found = rule(Spans(inputs, shape, number)) if rule else inputs[0] if result.value.data is not None else otherwise
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


# --------------------------------------------------------------------------------------------------------------- inputs


class Problems(Protocol):
    """An import: the operators that NNAPI cannot express, by name and reason, with their places."""

    @property
    def problems(self) -> Mapping[tuple[str, str], Sequence[str]]: ...


Context = TypeVar("Context", bound=Problems)
Result = TypeVar("Result")


def symmetric(bits: int) -> Span:
    """Return the range of integers whose magnitude has that many bits."""
    return -((1 << bits) - 1), (1 << bits) - 1


def import_in_32_bits(
    names: Sequence[str], budget: Budget, imported: Callable[[Mapping[str, Span]], tuple[Context, Result]]
) -> tuple[Context, Result, list[str]]:
    """Import a file; if 64-bit integers may exceed 32 bits, with smaller ranges of inputs, if that helps.

    First all inputs have as many bits as possible. Then each gets more, if the others allow it. Each of the first
    attempts may cost what an import may cost, and those of the second kind together.

    Args:
        names: The inputs of INT64.
        budget: That of the file. On return, it is what one import left.
        imported: Imports the file. It takes the ranges of some inputs.

    Returns:
        The import, and a note for each input with a smaller range.
    """
    allowed = dict(budget.left)
    context, result = imported(NO_SPANS)
    if all(why != TOO_WIDE for _, why in context.problems):
        return context, result, []
    for count in FEWER_BITS if names else ():
        spans = dict.fromkeys(names, symmetric(count))
        budget.left = dict(allowed)
        found = imported(spans)
        if not found[0].problems:
            break
    else:
        return context, result, []
    left, budget.left = budget.left, allowed
    with suppress(BadFile):  # with many inputs, those that come after the budget's end keep their range
        for name in names if len(names) > 1 else ():
            others = {each: span for each, span in spans.items() if each != name}
            for wider in (others, *(others | {name: symmetric(n)} for n in FEWER_BITS[: FEWER_BITS.index(count)])):
                again = imported(wider)
                if not again[0].problems:
                    spans, found = wider, again
                    break
    budget.left = left
    notes = [
        f"values of {short(name)} must be from {low} to {high}, so that sums and products fit 32 bits"
        for name, (low, high) in ((name, spans[name]) for name in names if name in spans)
    ]
    return *found, notes


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
