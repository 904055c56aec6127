"""RANDOM_MULTINOMIAL: draws classes by log-probabilities."""

import numpy as np

from nnhal.base.levels import V1_2
from nnhal.base.operands import Array, Value
from nnhal.base.records import replace
from nnhal.ops.common import decode
from nnhal.ops.ranges import Draw, array, whole
from nnhal.ops.schema import F16, F32, I32, INT32, Bound, Form, Op, T, arg, example, out, register


def generator(seeds: Array) -> "np.random.Generator":
    """Return a generator: equal seeds give equal samples, everywhere; two zeros give others each time."""
    if not seeds.any():
        return np.random.default_rng()
    return np.random.Generator(np.random.Philox(key=seeds.astype(np.uint32).astype(np.uint64)))


def draw(a: Bound, x: Array, seeds: Array) -> Array:
    """Invert the cumulative distribution of each row. An element that is not finite counts as impossible."""
    logits = decode(a.input, x).astype(np.float64)
    possible = np.isfinite(logits)
    a.require(possible.any(-1).all() or not a.sample_count, "input has a row without a finite value, must have one")
    greatest = np.where(possible, logits, -np.inf).max(-1, keepdims=True, initial=-np.inf)
    heaps = np.where(possible, np.exp(logits - greatest), 0).cumsum(-1)
    positions = generator(seeds).random((len(x), a.sample_count)) * np.nextafter(heaps[:, -1:], 0)
    samples = [np.searchsorted(heap, row, side="right") for heap, row in zip(heaps, positions, strict=True)]
    return np.array(samples, np.int32).reshape(positions.shape)


def logits(d: Draw) -> Value:
    """Range: rows in which at least one class is possible."""
    value: Value = d.plain("input")
    rows = value.array.copy()
    rows[~np.isfinite(rows).any(-1), :1] = 1
    return replace(value, data=rows)


register(
    Op(
        "RANDOM_MULTINOMIAL",
        {F32: V1_2, F16: V1_2},
        (
            Form(
                arg("input", T, "batch classes", drawn=logits, doc="logarithms of probabilities, not normalised"),
                arg("sample_count", INT32, at_least=0, drawn=whole(0, 9)),
                arg("seeds", I32, "2", drawn=array("seeds", 0, 2**31 - 1)),
            ),
        ),
        (out("output", I32, "batch samples"),),
        draw,
        where={"samples": lambda a: a.sample_count},
        random=True,
        doc="Draws samples of each row's classes.",
        example=example([[0, 0, 0]], input=[[-1]], sample_count=3, seeds=[1, 2]),
    )
)
