"""Entries of reductions along axes, and of operations that find extremes."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.drivers.kit.sums import Stage, padding_correction, stages, summed
from nnhal.drivers.litert import quantisation as quant
from nnhal.drivers.litert.common import out_of_rank, pad
from nnhal.drivers.litert.elementwise import missing, without_nan
from nnhal.drivers.litert.graph import FLOATS, QUANTS, EngineTensor
from nnhal.drivers.litert.limits import require_sum
from nnhal.drivers.litert.task import Task, entry
from nnhal.ops.schema import B8, I32, Q8

INT32 = 2  # TFLite's TensorType
IN_16_BITS = 8192  # the int8 that XNNPACK's kernel for AVX2 adds up, 64 at a time in pairs, without wrapping around
KINDS = {"REDUCE_SUM": "SUM", "ARGMAX": "ARG_MAX", "ARGMIN": "ARG_MIN"}  # the others have NNAPI's names


@entry("MEAN", "REDUCE_MAX", "REDUCE_MIN", exact=True)
@entry("REDUCE_PROD", "REDUCE_SUM", types=FLOATS)
@entry("REDUCE_ALL", "REDUCE_ANY", types=frozenset((B8,)))
def reduce(t: Task) -> None:
    """Reduce; an axis named twice counts once.

    LiteRT's result for NaN in a maximum depends on the order, so NaN is restored afterwards. Quantised means of an even
    number of elements may be halves, which LiteRT rounds to even, so they are of real values.
    """
    x, axes, keep = t.x("input"), t.array("axes"), bool(t.a.keep_dims)
    rank = x.value.rank
    along = {int(axis) % rank for axis in axes}
    out, over = out_of_rank(t, rank if keep else rank - len(along)), t.constant(axes)
    if t.name == "MEAN" and t.a.T in QUANTS and None not in x.value.dims:
        count = math.prod(x.value.known[axis] for axis in along)
        require_sum(count)
        if count % 2 == 0 and not t.exact:
            add_up(t, "MEAN", quant.dequantised(t, x), sorted(along), quant.dequantised_out(t, out), keep=keep)
            return
        if count > IN_16_BITS:
            x, out = quant.recast(t, x, Q8), quant.recast_out(t, out, Q8)
    if t.a.T in FLOATS and t.name in ("MEAN", "REDUCE_SUM"):
        add_up(t, KINDS.get(t.name, t.name), x, sorted(along), out, keep=keep)
        return
    if t.name not in ("REDUCE_MAX", "REDUCE_MIN") or t.a.T not in FLOATS:
        t.emit(KINDS.get(t.name, t.name), [x, over], out, "Reducer", keepDims=keep)
        return
    found, spoilt = t.temporary(out.value), t.temporary(out.value, type=B8)
    t.emit(t.name, [x, over], found, "Reducer", keepDims=keep)
    t.emit("REDUCE_ANY", [missing(t, x), over], spoilt, "Reducer", keepDims=keep)
    t.emit("SELECT_V2", [spoilt, t.constant(np.nan, np.float32), found], out)


def add_up(t: Task, kind: str, x: EngineTensor, axes: Sequence[int], out: EngineTensor, *, keep: bool = True) -> None:
    """Write the MEAN or SUM of real numbers along axes, in stages if it is long.

    keep: whether the axes stay in `out`, as 1.
    """
    parts = stages(x.value.shape, axes)
    if not parts:
        t.emit(kind, [x, t.constant(axes)], out, "Reducer", keepDims=keep)
        return

    def reshape(y: EngineTensor, shape: Sequence[int]) -> EngineTensor:
        found = t.temporary(x.value, shape=tuple(shape))
        t.reshape(y, found)
        return found

    def padded(y: EngineTensor, stage: Stage) -> EngineTensor:
        return pad(t, y, tuple((0, stage.more * (axis == stage.axis)) for axis in range(len(stage.shape))))

    def reduced(y: EngineTensor, stage: Stage) -> EngineTensor:
        found = t.temporary(x.value, shape=stage.cut[: stage.along] + stage.cut[stage.along + 1 :])
        t.emit(kind, [y, t.constant([stage.along])], found, "Reducer", keepDims=False)
        return found

    found, share = summed(x, parts, reshape, padded, reduced), padding_correction(parts)
    if kind == "MEAN" and share != 1:
        whole = t.temporary(found.value)
        t.emit("MUL", [found, t.constant(share, np.float32)], whole, "Mul")
        found = whole
    t.reshape(found, out)


@entry("ARGMAX", "ARGMIN", types=FLOATS | QUANTS | {I32}, exact=True)
def arg_extreme(t: Task) -> None:
    """Return the first among equals; NaN counts as the least, or the greatest."""
    kind, x = KINDS[t.name], t.x("input")
    if t.a.T in FLOATS:
        x = without_nan(t, x, -np.inf if t.name == "ARGMAX" else np.inf)
    out = out_of_rank(t, t.a.input.rank - 1)
    t.emit(kind, [x, t.constant([t.a.axis])], out, kind.title().replace("_", ""), outputType=INT32)
