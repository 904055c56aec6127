"""Entries of reductions along axes, and of the operations that look for extremes."""

from nnhal.drivers.litert.graph import FLOATS, QUANTS
from nnhal.drivers.litert.task import Task, entry
from nnhal.ops.schema import B8, I32

INT32 = 2  # TFLite's TensorType
KINDS = {"REDUCE_SUM": "SUM", "ARGMAX": "ARG_MAX", "ARGMIN": "ARG_MIN"}  # the others are called what NNAPI calls them


@entry("MEAN", "REDUCE_MAX", "REDUCE_MIN")
@entry("REDUCE_PROD", "REDUCE_SUM", types=FLOATS)
@entry("REDUCE_ALL", "REDUCE_ANY", types=frozenset((B8,)))
def reduce(t: Task) -> None:
    """An axis named twice counts once."""
    x, axes, keep = t.x("input"), t.array("axes"), bool(t.a.keep_dims)
    rank = x.value.rank
    left = rank if keep else rank - len({int(axis) % rank for axis in axes})
    t.emit(KINDS.get(t.name, t.name), [x, t.constant(axes)], t.out_of_rank(left), "Reducer", keepDims=keep)


@entry("ARGMAX", "ARGMIN", types=FLOATS | QUANTS | {I32})
def arg_extreme(t: Task) -> None:
    """The first among equals."""
    kind = KINDS[t.name]
    out = t.out_of_rank(t.a.input.rank - 1)
    t.emit(kind, [t.x("input"), t.constant([t.a.axis])], out, kind.title().replace("_", ""), outputType=INT32)
