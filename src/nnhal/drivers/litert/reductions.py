"""Entries of reductions along axes, and of the operations that look for extremes."""

import math

import numpy as np

from nnhal.drivers.litert.elementwise import missing, without_nan
from nnhal.drivers.litert.graph import FLOATS, QUANTS
from nnhal.drivers.litert.task import Task, entry
from nnhal.ops.schema import B8, I32, Q8

INT32 = 2  # TFLite's TensorType
IN_16_BITS = 8192  # int8 that XNNPACK's kernel for AVX2 adds up, 64 at a time in pairs, without wrapping around
KINDS = {"REDUCE_SUM": "SUM", "ARGMAX": "ARG_MAX", "ARGMIN": "ARG_MIN"}  # the others are called what NNAPI calls them


@entry("MEAN", "REDUCE_MAX", "REDUCE_MIN")
@entry("REDUCE_PROD", "REDUCE_SUM", types=FLOATS)
@entry("REDUCE_ALL", "REDUCE_ANY", types=frozenset((B8,)))
def reduce(t: Task) -> None:
    """An axis named twice counts once. What LiteRT makes of NaN in a maximum hangs on the order: it is put in afterwards."""
    x, axes, keep = t.x("input"), t.array("axes"), bool(t.a.keep_dims)
    rank = x.value.rank
    along = {int(axis) % rank for axis in axes}
    out, over = t.out_of_rank(rank if keep else rank - len(along)), t.constant(axes)
    if t.name == "MEAN" and t.a.T in QUANTS and None not in x.value.dims:
        count = math.prod(x.value.known[axis] for axis in along)
        t.require_sum(count)
        if count > IN_16_BITS:
            x, out = t.recast(x, Q8), t.recast_out(out, Q8)
    if t.name not in ("REDUCE_MAX", "REDUCE_MIN") or t.a.T not in FLOATS:
        t.emit(KINDS.get(t.name, t.name), [x, over], out, "Reducer", keepDims=keep)
        return
    found, spoilt = t.temporary(out.value), t.temporary(out.value, type=B8)
    t.emit(t.name, [x, over], found, "Reducer", keepDims=keep)
    t.emit("REDUCE_ANY", [missing(t, x), over], spoilt, "Reducer", keepDims=keep)
    t.emit("SELECT_V2", [spoilt, t.constant(np.nan, np.float32), found], out)


@entry("ARGMAX", "ARGMIN", types=FLOATS | QUANTS | {I32})
def arg_extreme(t: Task) -> None:
    """The first among equals; NaN counts as the least, or the greatest."""
    kind, x = KINDS[t.name], t.x("input")
    if t.a.T in FLOATS:
        x = without_nan(t, x, -np.inf if t.name == "ARGMAX" else np.inf)
    out = t.out_of_rank(t.a.input.rank - 1)
    t.emit(kind, [x, t.constant([t.a.axis])], out, kind.title().replace("_", ""), outputType=INT32)
