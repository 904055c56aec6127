"""EMBEDDING_LOOKUP, HASHTABLE_LOOKUP, LSH_PROJECTION: rows found by index, by key, by hash."""

import math

import numpy as np

from nnhal.base.codes import MAX_RANK, LshProjection
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array, Shape, Value
from nnhal.base.records import replace
from nnhal.ops.common import indices_within
from nnhal.ops.fingerprint import fingerprint64
from nnhal.ops.ranges import Draw
from nnhal.ops.schema import F16, F32, I32, Q8, Q8S, SAME, Bound, Form, Op, T, arg, example, fixed, out, register

MOST_BYTES = 1 << 24  # of seeds and rows whose fingerprints are computed at once


def row_numbers(d: Draw) -> Array:
    """Range: indices of rows."""
    found: Array = d.whole(0, d["values"].known[0] - 1, d.shape_of("lookups"))
    return found


def sorted_keys(d: Draw) -> Array:
    """Range: keys in ascending order, sometimes with one twice."""
    return np.sort(d.whole(-3, 9, d["values"].known[0]))


def wanted_keys(d: Draw) -> Array:
    """Range: existing keys, and others."""
    found: Array = d.whole(-4, 10, d.shape_of("lookups"))
    return found


def a_row_each(d: Draw) -> Value | None:
    """Range: a weight for each row of the input; sparse projections may omit it."""
    if d["kind"] != LshProjection.DENSE and d.pick(True, False):
        return None
    return d.tensor(d.kind, d["input"].known[:1])


lookups = arg("lookups", I32, "count", drawn=row_numbers)
values = arg("values", T, rank=(2, MAX_RANK))


def rows(a: Bound) -> list[Shape]:
    """Shape rule: the shape of values, with as many rows as lookups."""
    return [(a.__dict__.get("count"), *a.values.dims[1:])]


def require_lookups_within(a: Bound) -> None:
    """Indices are within the first dimension of the values."""
    indices_within(a, "lookups", a.values.known[0])


def found(a: Bound) -> list[Shape]:
    """Shape rule: the shape of values, with as many rows as lookups; then one hit per lookup."""
    return [*rows(a), (a.__dict__.get("count"),)]


def one_a_key(a: Bound) -> None:
    """Each key has a row of values."""
    a.require(
        a.values.dims[0] in (None, a.keys_), f"values has {a.values.dims[0]} rows, must have {a.keys_}, one per key"
    )


def ascending(a: Bound) -> None:
    """Keys are in ascending order."""
    a.require((np.diff(a.keys.array.astype(np.int64)) >= 0).all(), "keys are not sorted, must be in ascending order")


def by_key(a: Bound, wanted: Array, keys: Array, values: Array) -> tuple[Array, Array]:
    """Rows without a hit are stored zeros, whatever the zero point."""
    place = np.searchsorted(keys, wanted).clip(0, max(len(keys) - 1, 0))
    hits = keys[place] == wanted if len(keys) else np.zeros(len(wanted), bool)
    output = np.zeros((len(wanted), *values.shape[1:]), values.dtype)
    output[hits] = values[place[hits]]
    return output, hits.astype(np.uint8)


def of_one_key(a: Bound, wanted: Array, keys: Array, values: Array) -> Array:
    """Open: The row of a key that occurs twice: the elements in which its rows differ."""
    mask = np.zeros((len(wanted), *values.shape[1:]), bool)
    for place, key in enumerate(wanted):
        rows = values[keys == key]
        mask[place] = (rows != rows[:1]).any(0)
    return mask


def hash_shape(a: Bound) -> list[Shape]:
    """Shape rule: one element per function; for the dense kind one per bit."""
    return [(a.functions * a.bits if a.kind == LshProjection.DENSE else a.functions,)]


def signature_fits(a: Bound) -> None:
    """A sparse signature fits in 32 bits."""
    needed = a.bits + int(np.ceil(np.log2(max(a.functions, 1))))
    a.require(
        a.kind == LshProjection.DENSE or needed <= 32, f"sparse signatures need {needed} bits, must be at most 32"
    )


def weighted(a: Bound) -> None:
    """Weights are one for each row of the input; a dense projection needs them."""
    a.require(
        a.kind != LshProjection.DENSE or a.weight is not None,
        "input 2 (weight) is omitted, must be given for a dense projection",
    )


def one_a_row(a: Bound) -> None:
    """There are as many weights as rows of the input."""
    a.require(a.input.dims[0] in (None, a.weights), f"weight has {a.weights} elements, must have {a.input.dims[0]}")


def offset_level(a: Bound) -> None:
    """Sparse signatures with an offset for each hash function exist since 1.2."""
    if a.kind == LshProjection.SPARSE:
        a.since(V1_2, "sparse projections with offsets exist since 1.2")


def project(a: Bound, hashes: Array, x: Array, weight: Array | None) -> Array:
    """A bit is the sign of the sum over rows of weight * fingerprint(seed, row)."""
    width = math.prod(x.shape[1:]) * x.itemsize
    items = np.frombuffer(x.tobytes(), np.uint8).reshape(len(x), width)
    scales = np.ones(len(items)) if weight is None else weight.astype(np.float64)
    seeds = hashes.astype(np.float32).reshape(-1, 1).view(np.uint8)
    step = max(1, MOST_BYTES // max(1, len(items) * (seeds.shape[1] + width)))
    sums = [_sums(seeds[at : at + step], items, scales) for at in range(0, len(seeds), step)]
    bits = (np.concatenate([np.zeros(0), *sums]).reshape(hashes.shape) > 0).astype(np.int32)
    if a.kind == LshProjection.DENSE:
        return bits.reshape(-1)
    signatures = (bits << np.arange(a.bits)[::-1]).sum(1)
    offsets = np.arange(a.functions) << a.bits if a.kind == LshProjection.SPARSE else 0
    return (signatures + offsets).astype(np.int32)


def _sums(seeds: Array, items: Array, scales: Array) -> Array:
    """Return the sum over items, for each seed."""
    keys = np.repeat(seeds, len(items), axis=0), np.tile(items, (len(seeds), 1))
    prints = fingerprint64(np.concatenate(keys, axis=1)).astype(np.int64).astype(np.float64)
    return np.asarray((prints.reshape(len(seeds), len(items)) * scales).sum(1))


HIT = fixed({Q8: (1.0, 0)})

register(
    Op(
        "EMBEDDING_LOOKUP",
        {F32: V1_0, F16: V1_3, I32: V1_2, Q8: V1_2, Q8S: V1_3},
        (Form(lookups, values),),
        (out("output", T, quant=SAME),),
        lambda a, wanted, values: values[wanted],
        (require_lookups_within,),
        infer=rows,
        cost="pad",
        moves=True,
        doc="Picks rows by index.",
        example=example([[5, 6], [1, 2]], lookups=[2, 0], values=[[1, 2], [3, 4], [5, 6]]),
    ),
    Op(
        "HASHTABLE_LOOKUP",
        {F32: V1_0, I32: V1_0, Q8: V1_0},
        (Form(replace(lookups, drawn=wanted_keys), arg("keys", I32, "keys_", drawn=sorted_keys), values),),
        (out("output", T, quant=SAME), out("hits", {Q8: V1_0}, quant=HIT)),
        by_key,
        (one_a_key, ascending),
        infer=found,
        leaves_open=of_one_key,
        moves=True,
        doc="Picks rows by key; a missing key gives stored zeros and no hit.",
        example=example(([[3], [0]], [1, 0]), lookups=[20, 15], keys=[10, 20], values=[[1], [3]]),
    ),
    Op(
        "LSH_PROJECTION",
        {F32: V1_0, F16: V1_2},
        (
            Form(
                arg("hashes", T, "functions bits", doc="seeds"),
                arg("input", {F32: V1_0, F16: V1_2, I32: V1_0, Q8: V1_0}),
                arg("weight", T, "weights", optional=True, drawn=a_row_each),
                arg("kind", LshProjection),
            ),
        ),
        (out("output", {I32: V1_0}),),
        project,
        (signature_fits, weighted, one_a_row, offset_level),
        infer=hash_shape,
        doc="Computes bits by locality-sensitive hashing.",
        example=example([0], hashes=[[0.5]], input=[1.0], weight=[0.0], kind="dense"),
    ),
)
