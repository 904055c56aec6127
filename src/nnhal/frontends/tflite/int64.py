"""Represents 64-bit integers as 32-bit ones, without loss: NNAPI has no others.

Each call checks the application's values, constants are known, and operators that only move, select or compare integers
make no greater ones. For sums and products, the importer computes the least and greatest value; if these may exceed 32
bits, the operator is refused.
"""

from collections.abc import Callable
from typing import Protocol

from nnhal.frontends.common.integer_ranges import ANY, Span, corners, hull, magnitude, total, within
from nnhal.frontends.common.terms import Term
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.graph import ImportGraph

KINDS: dict[str, Span] = {"BOOL": (0, 1), "UINT8": (0, 255)}  # NNAPI's CAST makes no int32 of other small ones
MOVES = frozenset((
    "ASSIGN_VARIABLE", "BATCH_TO_SPACE_ND", "BROADCAST_TO", "CONCATENATION", "DEPTH_TO_SPACE", "EXPAND_DIMS", "FILL",
    "DYNAMIC_UPDATE_SLICE", "MATRIX_DIAG", "MATRIX_SET_DIAG",
    "GATHER", "GATHER_ND", "MAXIMUM", "MINIMUM", "MIRROR_PAD", "ONE_HOT", "PACK", "PAD", "PADV2", "READ_VARIABLE",
    "REDUCE_MAX", "REDUCE_MIN", "RESHAPE", "REVERSE_SEQUENCE", "REVERSE_V2", "SELECT", "SELECT_V2", "SLICE",
    "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TOPK_V2", "TRANSPOSE",
    "UNPACK", "ZEROS_LIKE",
))  # fmt: skip
CALLS = frozenset(("IF", "WHILE", "STABLEHLO_COMPOSITE"))
COMPARES = frozenset(("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"))


class OperatorBeingLowered(Protocol):
    """The interface of an operator that is lowered."""

    graph: ImportGraph
    operator: Operator
    name: str
    results: dict[int, Term]


SUMS: dict[str, Callable[..., Span]] = {
    "ADD": corners(lambda a, b: a + b),
    "SUB": corners(lambda a, b: a - b),
    "MUL": corners(lambda a, b: a * b),
    "NEG": lambda x: (-x[1], -x[0]),
    "ABS": magnitude,
    "SIGN": lambda x: (-1, 1),
    "FLOOR_MOD": lambda x, y: (min(y[0] + 1, 0), max(y[1] - 1, 0)),
}
CARRIES = MOVES | CALLS | COMPARES | SUMS.keys() | {"CAST", "ARG_MAX", "ARG_MIN", "SUM"}


def span_of(t: OperatorBeingLowered, number: int) -> Span:
    """Return the range of output `number`, 64-bit integers in the file; Inexpressible if it may exceed 32 bits."""
    result = t.results[number]
    if result.data is not None and result.span is not None:
        return result.span
    terms = [t.graph.terms[i] for i in t.operator.inputs if i in t.graph.terms]
    kinds = [t.graph.source.tensors[i].type for i in t.operator.inputs if i in t.graph.terms]
    spans = [term.span or KINDS.get(kind, ANY) for term, kind in zip(terms, kinds, strict=True)]
    if t.name in ("ARG_MAX", "ARG_MIN") or (t.name == "TOPK_V2" and number):
        found: Span = (0, max((ANY[1] if d is None else d for d in terms[0].value.shape or (None,)), default=1))
    elif t.name == "CAST" and kinds[0].startswith(("FLOAT", "UINT32", "UINT64")):
        found = (-(1 << 63), (1 << 63) - 1)
    elif t.name == "SUM":
        found = total(terms[0].value.shape, spans[0])
    elif t.name in SUMS:
        found = SUMS[t.name](*spans)
    elif t.name in CALLS:  # of subgraphs, which may make others
        found = ANY
    elif t.name in MOVES:
        found = hull(spans)
    elif t.name == "CAST" or result.value.data is not None:
        found = spans[0]
    else:
        found = (-(1 << 63), (1 << 63) - 1)
    return within(found, terms)
