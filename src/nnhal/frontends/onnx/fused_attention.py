"""Entries of com.microsoft's attention, with and without a cache of keys and values: they are expanded into Attention.

A cache has the keys and values of earlier positions. Its shape is fixed: nnhal takes the caller's.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from nnhal.frontends.onnx.expanded import ExpandedNode, expanded
from nnhal.frontends.onnx.fused import scaled_product

LOWEST = {"FLOAT": float(np.finfo(np.float32).min), "FLOAT16": float(np.finfo(np.float16).min)}
IN_PLACE = "writes its cache in place, must give it as an output"
MASKED = 2  # of Attention's qk_matmul_output_mode


class Sizes(NamedTuple):
    """Sizes of an attention: batches, queries, keys of the cache, all keys. causal: a query reads no later key."""

    batch: int
    rows: int
    past: int
    columns: int
    causal: bool


@expanded(
    "com.microsoft.Attention", inputs=(2, 7), outputs=(1, 2), becomes="MatMul, Add, Split, Attention; Concat of caches"
)
def attention(t: ExpandedNode) -> None:
    """Project the input to queries, keys and values in one product. A cache has keys and values in one tensor."""
    t.require(not t.given(6), IN_PLACE)
    made = t.write("MatMul", t.input(0), t.input(1))
    made = t.write("Add", made, t.input(2)) if t.given(2) else made
    of_projected(t, made, mask=3, past=4, added=5)


@expanded(
    "com.microsoft.QAttention", inputs=(5, 9), outputs=(1, 2),
    becomes="of a constant scale DequantizeLinear, MatMul; else MatMulInteger, Cast, Mul; then as com.microsoft.Attention",
)  # fmt: skip
def quantised_attention(t: ExpandedNode) -> None:
    """Project integers; the attention is of reals. Columns of the weights may have scales and zero points."""
    x, weights, bias, *scales = (t.input(n) for n in range(5))
    zeros = t.input(6), t.input(7)
    if t.raw(3).data is None:  # DynamicQuantizeLinear computes it
        made = scaled_product(t, (x, weights, *zeros), (scales[0], scales[1]), bias)
    else:
        quantised = (x, scales[0], zeros[0]), (weights, *alike(t, 4, 7))
        made = t.write("MatMul", *(t.write("DequantizeLinear", *each) for each in quantised))
        made = t.write("Add", made, bias) if bias else made
    of_projected(t, made, mask=5, past=8)


def alike(t: ExpandedNode, scale: int, zero: int) -> tuple[str, str]:
    """Return constant scales and zero points, as many of one as of the other. scale, zero: their places."""
    scales, zeros = t.raw(scale).data, t.raw(zero).data if t.given(zero) else None
    if scales is None or zeros is None or scales.size == zeros.size or 1 not in (scales.size, zeros.size):
        return t.input(scale), t.input(zero)
    count = max(scales.size, zeros.size)
    several = (np.broadcast_to(each.reshape(-1), count) for each in (scales, zeros))
    first, second = (t.constant(np.ascontiguousarray(each)) for each in several)
    return first, second


def of_projected(t: ExpandedNode, made: str, *, mask: int, past: int, added: int | None = None) -> None:
    """Write the attention of queries, keys and values side by side. mask, past, added: the places of these inputs."""
    t.require(not t.attr("do_rotary", 0), "rotates, must not")
    t.require(not t.attr("past_present_share_buffer", 0), IN_PLACE)
    heads, sizes = t.attr("num_heads", 0), t.attr.ints("qkv_hidden_sizes") or [t.known(t.x(1))[1] // 3] * 3
    parts = t.write("Split", made, t.constant(np.array(sizes)), parts=3, axis=-1)
    batch, rows, _ = t.known(t.x(0))
    cache = t.known(t.x(past)) if t.given(past) else ()
    must = f"must be of 2, {batch}, {heads}"
    t.require(not cache or cache[:3] == (2, batch, heads), f"has a past of shape {list(cache)}, {must}")
    count = cache[3] if cache else 0
    caches = [cut_of(t, past, n, cache) for n in range(2 * bool(cache))]
    whole = Sizes(batch, rows, count, count + rows, bool(t.attr("unidirectional", 0)))
    _, *presents = attended(t, [*parts, *caches], heads, mask_of(t, mask, added, whole), (0, None, None))
    if t.is_output_used(1):
        flat = t.constant([1, batch * heads, whole.columns, sizes[1] // heads])
        joined = t.write("Concat", *(t.write("Reshape", each, flat) for each in presents), axis=0)
        t.write("Reshape", joined, t.constant([2, batch, heads, whole.columns, sizes[1] // heads]), gives=1)


def cut_of(t: ExpandedNode, place: int, number: int, past: tuple[int, ...]) -> str:
    """Return the keys or values of a cache that has both."""
    _, batch, heads, *each = past
    flat = t.write("Reshape", t.input(place), t.constant([2, batch * heads, *each]))
    return str(t.write("Reshape", t.write("Gather", flat, t.constant([number])), t.constant(past[1:])))


@expanded("com.microsoft.MultiHeadAttention", inputs=(1, 10), outputs=(1, 4), becomes="Split, Add, Attention")
def multi_head_attention(t: ExpandedNode) -> None:
    """Attend to keys and values: of new positions behind a cache, or all of them by heads."""
    t.require(not t.given(8) and not t.given(9), IN_PLACE)
    t.require(t.given(6) == t.given(7), "has a past key or value without the other")
    parts, shapes = zip(*separate(t), strict=True)
    ranks, heads = [len(shape) for shape in shapes], t.attr("num_heads", 0)
    t.require(
        ranks in ([3, 3, 3], [3, 4, 4]), f"has inputs of {ranks} dimensions, must be of 3, keys and values also 4"
    )
    t.require(ranks[1] == 3 or not t.given(6), "has keys by heads and a past, must have one of both")
    batch, rows, width = shapes[0]
    count, past = shapes[1][-2], t.known(t.x(6))[2] if t.given(6) else 0
    if t.given(3):
        sizes = t.constant([width, width, t.known(t.x(3))[0] - 2 * width])
        biases = t.write("Split", t.input(3), sizes, parts=3, axis=0)  # keys and values by heads already have theirs
        parts = tuple(
            t.write("Add", part, bias) if rank == 3 else part
            for part, bias, rank in zip(parts, biases, ranks, strict=True)
        )
    whole = Sizes(batch, rows, past, past + count, bool(t.attr("unidirectional", 0)))
    caches = [t.input(n) for n in (6, 7)] if past else []
    attended(t, [*parts, *caches], heads, mask_of(t, 4, 5, whole), (0, 1, 2, 3), qk_matmul_output_mode=MASKED)


def separate(t: ExpandedNode) -> list[tuple[str, tuple[int, ...]]]:
    """Return queries, keys and values with their shapes. They, or keys and values, may be one tensor of 5 dimensions."""
    for place, count in enumerate((3, 2)):
        if t.given(place) and t.rank(t.x(place)) == 5:
            batch, rows, heads, _, size = t.known(t.x(place))
            flat = t.write("Reshape", t.input(place), t.constant([batch * rows * heads, count * size]))
            parts, shape = t.write("Split", flat, t.constant([size] * count), parts=count, axis=1), (rows, heads * size)
            found = [(t.write("Reshape", part, t.constant([batch, *shape])), (batch, *shape)) for part in parts]
            return [(t.input(n), t.known(t.x(n))) for n in range(place)] + found
    t.require(t.given(1) and t.given(2), "has keys or values without the other")
    return [(t.input(n), t.known(t.x(n))) for n in range(3)]


def attended(
    t: ExpandedNode, parts: list[str], heads: int, mask: str, gives: tuple[int | None, ...], **how: Any
) -> list[str]:
    """Write the attention of projected queries, keys and values, and maybe a cache of both; return all outputs."""
    heads_of: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads, "scale": t.attr("scale", 0.0) or None}
    made: list[str] = t.write("Attention", *parts[:3], mask, *parts[3:], gives=gives, **(heads_of | how))
    return made


def mask_of(t: ExpandedNode, keys: int, scores: int | None, of: Sizes) -> str:
    """Return what is added to products of queries and keys, "" if nothing is.

    Args:
        t: The node.
        keys: The input with a 1 for each key that counts: of batches and keys, and queries between them. Or, of one
            dimension, for each batch the key where they end, then maybe for each the key where they begin, or the
            places of a packed batch, which has no further meaning here.
        scores: The input that is added, if there may be one.
        of: The sizes.
    """
    added: list[str] = []
    if t.given(keys):
        filler = t.constant(t.attr("mask_filter_value", -1e4))
        added.append(t.write("Where", counted(t, keys, of), t.constant(0.0), filler))
    later = np.arange(of.columns) > of.past + np.arange(of.rows)[:, None]
    later[-1] = False  # as in ONNX Runtime: the last query reads all keys
    if of.causal and later.any():
        lowest = LOWEST.get(t.raw(0).kind, LOWEST["FLOAT"])
        added.append(t.constant(np.where(later, lowest, 0.0)[None, None]))
    added += [t.input(scores)] if scores is not None and t.given(scores) else []
    while len(added) > 1:
        added = [t.write("Add", *added[:2]), *added[2:]]
    return added[0] if added else ""


def counted(t: ExpandedNode, place: int, of: Sizes) -> str:
    """Return which keys count."""
    shape, batch = t.known(t.x(place)), of.batch
    if shape in ((batch,), (2 * batch,), (3 * batch + 2,)):
        places = t.constant(np.arange(of.columns).reshape(1, 1, 1, of.columns))
        limits = np.arange(batch if shape[0] > 2 * batch else shape[0]).reshape(-1, batch)
        counts, *later = (
            t.write(
                op,
                places,
                t.write("Reshape", t.write("Gather", t.input(place), t.constant(rows)), t.constant([batch, 1, 1, 1])),
            )
            for op, rows in zip(("Less", "GreaterOrEqual"), limits, strict=False)
        )
        return str(t.write("And", counts, *later) if later else counts)
    t.require(len(shape) in (2, 3), f"has a mask of shape {list(shape)}, must be of {batch} lengths, 2 or 3 dimensions")
    shape = (shape[0], 1, *shape[1:]) if len(shape) == 3 else (shape[0], 1, 1, shape[1])
    return str(t.write("Greater", t.write("Reshape", t.input(place), t.constant(shape)), t.constant(0)))


@expanded("com.microsoft.RotaryEmbedding", inputs=4, becomes="RotaryEmbedding")
def rotary_embedding(t: ExpandedNode) -> None:
    """Rotate by given positions, or by those from one number on."""
    shape, places = t.known(t.x(0)), t.input(1)
    if t.rank(t.x(1)) < 2:
        count = shape[2] if len(shape) == 4 else shape[1]
        places = t.write("Add", places, t.constant(np.arange(count)[None]))
        places = t.write("Expand", places, t.constant([shape[0], count]))
    t.require(t.attr("scale", 1.0) == 1, f"scale is {t.attr('scale', 1.0)}, must be 1")
    how: dict[str, Any] = {name: t.attr(name) for name in ("interleaved", "num_heads", "rotary_embedding_dim")}
    if len(shape) == 3 and not how["num_heads"]:
        how["num_heads"] = shape[2] // (2 * t.known(t.x(2))[1])
    t.write("RotaryEmbedding", t.input(0), t.input(2), t.input(3), places, gives=0, **how)


# --------------------------------------------------------------------------------------- caches of computed lengths


@expanded(
    "com.microsoft.GroupQueryAttention", inputs=(7, 17), outputs=(1, 4),
    becomes="RotaryEmbedding, TensorScatter, Attention with a mask of the lengths",
)  # fmt: skip
def group_query_attention(t: ExpandedNode) -> None:
    """Write new keys and values into caches behind those that count, and attend to all that count then."""
    refuse_other_caches(t)
    heads, shared = t.attr("num_heads", 0), t.attr("kv_num_heads", 0)
    (batch, rows, width), total = t.known(t.x(0)), t.integer_of(6, "total_sequence_length")
    parts, size = [t.input(n) for n in range(3)], width // heads
    if not t.given(1):
        size = width // (heads + 2 * shared)
        widths = t.constant([heads * size, shared * size, shared * size])
        parts = t.write("Split", t.input(0), widths, parts=3, axis=-1)
    wanted = (batch, rows, shared * size)
    others = [t.known(t.x(n)) for n in (1, 2) if t.given(n)]
    t.require(all(shape == wanted for shape in others), f"has keys of {others}, must be of {list(wanted)}")
    lengths = t.write("Add", t.write("Reshape", t.input(5), t.constant([batch, 1])), t.constant(np.int32(1)))
    before = t.constant(np.zeros((batch, 1), np.int32))  # the keys that counted before
    if t.given(3):
        new = t.write("Reshape", t.input(16), t.constant([batch, 1])) if t.given(16) else t.constant(np.int32(rows))
        before = t.write("Max", t.write("Sub", lengths, new), t.constant(np.int32(0)))
    places = t.write("Add", before, t.constant(np.arange(rows, dtype=np.int32)[None]))
    if t.attr("do_rotary", 0):
        parts[:2] = rotated(t, parts, (heads, shared), places, first=rows == total and not t.given(16))
    by_heads = t.constant([batch, rows, shared, size])
    keys, values = (
        cached(t, n, t.write("Reshape", parts[n], by_heads), (batch, shared, rows, size), before, total) for n in (1, 2)
    )
    whole = Sizes(batch, rows, 0, total, bool(t.attr("causal", 1)))
    mask = mask_of_lengths(t, whole, lengths, places)
    sinks = t.input(11) or (t.constant(np.zeros(heads)) if t.attr("smooth_softmax", 0) == 1 else "")
    if sinks:
        zero = t.constant(
            np.zeros((batch, shared, 1, size))
        )  # a key that takes a share of the softmax and adds nothing
        keys, values = (t.write("Concat", each, zero, axis=2) for each in (keys, values))
        column = t.write("Reshape", sinks, t.constant([1, heads, 1, 1]))
        column = t.write("Expand", column, t.constant([batch, heads, rows, 1]))
        mask = t.write("Concat", t.write("Expand", mask, t.constant([batch, heads, rows, total])), column, axis=3)
    how = {"q_num_heads": heads, "kv_num_heads": shared, "softcap": t.attr("softcap", 0.0)}
    t.write("Attention", parts[0], keys, values, mask, gives=0, scale=t.attr("scale", 0.0) or None, **how)


def refuse_other_caches(t: ExpandedNode) -> None:
    """Refuse what GroupQueryAttention has beyond caches of reals in the order of positions."""
    quantised = t.given(12) or t.given(13) or {t.attr(f"{n}_quant_type", "NONE") for n in "kv"} != {"NONE"}
    t.require(not quantised, "has quantised caches, must have caches of reals")
    t.require(not t.attr("sliding_window_cache", 0), "has caches of a window, must have all positions")
    t.require(not t.given(14) and not t.given(15), "normalises queries and keys, must do so in nodes before it")
    t.require(t.given(3) == t.given(4), "has a past key or value without the other")
    t.require(t.given(1) == t.given(2), "has keys or values without the other")
    t.require(t.given(3) or not t.given(16), "has query_seqlens without a past, must have both")


def rotated(t: ExpandedNode, parts: list[str], heads: tuple[int, int], places: str, *, first: bool) -> tuple[str, str]:
    """Rotate queries and keys by their positions. first: they begin a sequence, so only the first position is used."""
    batch, rows, _ = t.known(t.x(0))
    if t.given(9):
        places = t.input(9)
        if first:
            one = t.write("Gather", t.write("Reshape", places, t.constant([-1])), t.constant([0]))
            places = t.write("Add", t.write("Reshape", one, t.constant([1, 1])), t.constant(np.arange(rows)[None]))
    places = t.write("Expand", places, t.constant([batch, rows]))
    how = {"interleaved": t.attr("rotary_interleaved", 0), "rotary_embedding_dim": 2 * t.known(t.x(7))[1]}
    made = (
        t.write("RotaryEmbedding", part, t.input(7), t.input(8), places, num_heads=count, **how)
        for part, count in zip(parts, heads, strict=False)
    )
    return next(made), next(made)


def cached(t: ExpandedNode, number: int, new: str, shape: tuple[int, ...], before: str, total: int) -> str:
    """Write new keys or values, of positions before heads, into their cache; return as many as are attended to.

    Args:
        t: The node.
        number: The output with the cache.
        new: The keys or values.
        shape: Batches, heads, positions and sizes of them.
        before: The position in each batch that is written first.
        total: The number of keys to attend to.
    """
    past = t.known(t.x(number + 2))[2] if t.given(3) else 0
    count, rows = max(past, total), shape[2]
    if not past and count == rows:
        return str(t.write("Transpose", new, perm=[0, 2, 1, 3], gives=number))
    new = t.write("Transpose", new, perm=[0, 2, 1, 3])
    kept = [t.input(number + 2)] if past else []
    if count > past:
        kept.append(t.constant(np.zeros((*shape[:2], count - past, shape[3]))))
    old = t.write("Concat", *kept, axis=2) if len(kept) > 1 else kept[0]
    first = t.write("Reshape", before, t.constant([shape[0]]))
    made = t.write("TensorScatter", old, new, first, gives=number, axis=2)
    if count > total:
        made = t.write("Slice", made, t.constant([0]), t.constant([total]), t.constant([2]))
    return str(made)


def mask_of_lengths(t: ExpandedNode, of: Sizes, lengths: str, places: str) -> str:
    """Return the mask of keys that count: up to each query's position if it is causal, else up to the length."""
    keys = t.constant(np.arange(of.columns, dtype=np.int32).reshape(1, 1, 1, -1))
    at = t.write("Reshape", places, t.constant([of.batch, 1, of.rows, 1]))
    if of.causal:
        seen = t.write("LessOrEqual", keys, at)
    else:
        seen = t.write("Less", keys, t.write("Reshape", lengths, t.constant([of.batch, 1, 1, 1])))
    window = t.attr("local_window_size", -1)
    if window > 0:
        seen = t.write("And", seen, t.write("Greater", keys, t.write("Sub", at, t.constant(np.int32(window)))))
    return str(t.write("Where", seen, t.input(10) or t.constant(0.0), t.constant(-math.inf)))
