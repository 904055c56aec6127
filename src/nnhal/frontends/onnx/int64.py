"""Represents 64-bit integers as 32-bit ones, without loss: NNAPI has no others.

Each call checks the application's values, constants are known, and nodes that only move, select or compare integers
make no greater ones. For sums and products, the importer computes the least and greatest value; if these may exceed 32
bits, the node is refused.
"""

import math
from collections.abc import Callable
from typing import Protocol

from nnhal.base.operands import Shape
from nnhal.frontends.common.integer_ranges import ANY, Span, corners, hull, magnitude, total, within
from nnhal.frontends.common.terms import Term
from nnhal.frontends.onnx.file import OnnxNode

MOVES = frozenset((
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Max",
    "Min", "OneHot", "Pad", "ReduceMax", "ReduceMin", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Slice",
    "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Clip", "Relu",
))  # fmt: skip
KINDS: dict[str, Span] = {"BOOL": (0, 1), "UINT8": (0, 255), "INT8": (-128, 127)}
FIRST = ("Slice", "Gather", "Reshape", "Tile", "Expand")  # which move elements of the first input


class LoweredNode(Protocol):
    """The interface of a node that is lowered."""

    name: str
    node: OnnxNode

    def given(self, place: int) -> bool:
        """Whether input `place` is given."""

    def raw(self, place: int) -> Term:
        """Return input `place`."""


def _kept(x: Span, y: Span) -> Span:
    """Return the range of a quotient: no farther from 0 than the dividend, of either sign."""
    most = max(abs(x[0]), abs(x[1]))
    return -most, most


def _power(x: Span, y: Span) -> Span:
    """Return the range of a power. Negative exponents result in at most 1."""
    most = _raised(max(abs(x[0]), abs(x[1])), max(0, y[1]))
    even = y[0] == y[1] and y[0] % 2 == 0
    return (0 if even or x[0] >= 0 else -max(1, most)), max(1, most)


def _raised(most: int, exponent: int) -> int:
    """Compute a power only as far as needed to see that it exceeds 32 bits."""
    return int(most ** min(exponent, 32)) if most > 1 else most


def _product(shape: Shape | None, x: Span) -> Span:
    """Return the range of a product of any elements of a tensor."""
    count = 32 if shape is None or None in shape else math.prod(d or 0 for d in shape)
    most = max(1, _raised(max(abs(x[0]), abs(x[1])), count))
    return (0 if x[0] >= 0 else -most), most


SUMS: dict[str, Callable[..., Span]] = {
    "Add": corners(lambda a, b: a + b),
    "Sub": corners(lambda a, b: a - b),
    "Mul": corners(lambda a, b: a * b),
    "Neg": lambda x: (-x[1], -x[0]),
    "Abs": magnitude,
    "Sign": lambda x: (-1, 1),
    "Div": _kept,
    "Pow": _power,
    "Mod": lambda x, y: (-max(abs(y[0]), abs(y[1])), max(abs(y[0]), abs(y[1]))),
}
CARRIES = MOVES | SUMS.keys()


def span_of(t: LoweredNode, number: int, result: Term) -> Span:
    """Return the range of output `number`, 64-bit integers in the file; Inexpressible if it may exceed 32 bits."""
    terms = [t.raw(place) for place in range(len(t.node.inputs)) if t.given(place)]
    spans = [term.span or KINDS.get(term.kind, ANY) for term in terms if term.kind in ("INT64", "INT32", *KINDS)]
    if (
        t.name in ("ArgMax", "ArgMin")
        or (t.name == "TopK" and number)
        or t.name in ("NonMaxSuppression", "Size", "Shape")
    ):
        shape = terms[0].value.shape
        known = t.name in ("ArgMax", "ArgMin", "TopK") and shape is not None and None not in shape
        found: Span = (0, max(d or 0 for d in shape or (1,)) - 1 if known else ANY[1])
    elif t.name == "Cast":
        found = spans[0] if spans else ANY
    elif t.name == "ReduceProd":
        found = _product(terms[0].value.shape, spans[0])
    elif t.name in ("ReduceSum", "CumSum"):
        found = total(terms[0].value.shape, spans[0])
    elif t.name in SUMS and len(spans) in (1, 2):
        found = SUMS[t.name](*spans)
    elif t.name in MOVES:
        found = hull(spans[:1] if t.name in FIRST else spans)
    elif result.value.data is not None:
        found = spans[0]
    else:
        found = ANY
    return within(found, terms)
