"""Entries of attention: products of queries, keys and values, and rotation by positions."""

import math

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Value
from nnhal.frontends.common.element_moves import joined, part_of, transposed
from nnhal.frontends.common.functions import RealArithmetic
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import either
from nnhal.frontends.onnx.elementwise import floats
from nnhal.frontends.onnx.expanded import ExpandedNode, expanded
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import B8, I32

INT32 = 6  # of TensorProto
BEYOND = 1 << 30  # the place of a row that no tensor has: an execution that reads it fails
NOTHING = -1000.0  # its exponential is 0
RAW, CAPPED, MASKED, SHARES = range(4)  # the modes of qk_matmul_output


@operator("Attention", inputs=(3, 7), outputs=(1, 4), becomes="MUL, BATCH_MATMUL, ADD, SOFTMAX, BATCH_MATMUL")
def attention(t: NodeTask) -> None:
    """Sum values by the softmax of queries times keys. The queries of heads that share a key are rows of one product."""
    flat = t.rank(t.x(0)) == 3
    q, k, v = (by_heads(t, place, "q_num_heads" if place == 0 else "kv_num_heads") for place in range(3))
    t.require(t.given(4) == t.given(5), "has a past key or value without the other")
    t.require(not t.given(4) or not t.given(6), "has a past key and nonpad_kv_seqlen, must have one of both")
    past = t.known(t.x(4))[2] if t.given(4) else 0
    if past:
        k, v = joined(t, [t.x(4), k], 2), joined(t, [t.x(5), v], 2)
    (batch, heads, rows, size), (_, shared, columns, depth) = t.known(q), t.known(v)
    t.require(
        t.known(k) == (batch, shared, columns, size), f"has keys of {list(t.known(k))} for values of {list(t.known(v))}"
    )
    t.require(heads % shared == 0, f"has {heads} heads of queries, must be a multiple of the {shared} of keys")
    r, groups = RealArithmetic(t), (batch * shared, heads // shared * rows)
    q = r("MUL", q, t.attr("scale", 0.0) or 1 / math.sqrt(size))
    keys, values = t.reshaped(k, (batch * shared, columns, size)), t.reshaped(v, (batch * shared, columns, depth))
    products = t.make("BATCH_MATMUL", t.reshaped(q, (*groups, size)), keys, like=q, adj_x=False, adj_y=True)
    scores = [t.reshaped(products, (batch, heads, rows, columns))]
    cap = t.attr("softcap", 0.0)
    scores.append(r("MUL", t.make("TANH", r("MUL", scores[RAW], 1 / cap)), cap) if cap > 0 else scores[RAW])
    scores.append(masked(t, scores[CAPPED], past))
    scores.append(shares_of(t, scores[MASKED]))
    shares = t.reshaped(scores[SHARES], (*groups, columns))
    found = t.make("BATCH_MATMUL", shares, values, like=q, adj_x=False, adj_y=False)
    found = t.reshaped(found, (batch, heads, rows, depth))
    if flat:
        found = t.reshaped(transposed(t, found, (0, 2, 1, 3)), (batch, rows, heads * depth))
    t.result(0, found)
    for number, term in enumerate((k, v, scores[t.attr("qk_matmul_output_mode", RAW)]), 1):
        if t.is_output_used(number):
            t.result(number, term)


def by_heads(t: NodeTask, place: int, count: str) -> Term:
    """Return an input as [batch, heads, positions, size]. count: the attribute with the number of heads of rows."""
    x = floats(t, place)
    shape = t.known(x)
    if len(shape) == 4:
        return x
    t.require(len(shape) == 3, f"has inputs of {len(shape)} dimensions, must be of 3 or 4")
    heads = t.attr(count, 0)
    t.require(heads > 0 and shape[2] % heads == 0, f"{count} is {heads}, must divide {shape[2]}")
    return transposed(t, t.reshaped(x, (*shape[:2], heads, shape[2] // heads)), (0, 2, 1, 3))


def masked(t: NodeTask, scores: Term, past: int) -> Term:
    """Add the mask, and minus infinity where a query would read a position that it may not."""
    r, kind, columns = RealArithmetic(t), scores.value.type, t.known(scores)[3]
    beyond = unread(t, scores, past)
    scores = scores if beyond is None else r("ADD", scores, beyond)
    if not t.given(3):
        return scores
    mask = t.x(3)
    shape = t.known(mask)
    if mask.value.type == B8:
        mask = either(t, mask, 0.0, -math.inf, OperandType(kind))
    if t.opset >= 24 and shape[-1] < columns:
        rest = np.full((*shape[:-1], columns - shape[-1]), -np.inf, scores.value.dtype)
        mask = joined(t, [mask, constant(Value(kind), rest)], len(shape) - 1)
        shape = (*shape[:-1], columns)
    t.require(shape[-1] in (1, columns), f"has a mask of {shape[-1]} positions, must be of {columns}")
    return r("ADD", scores, t.reshaped(mask, (*[1] * (4 - len(shape)), *shape)))


def unread(t: NodeTask, scores: Term, past: int) -> Term | None:
    """Return minus infinity where a query would read a later position, one outside its window, or one without a key."""
    _, _, rows, columns = t.known(scores)
    back = past + np.arange(rows)[:, None] - np.arange(columns)  # from the position of a query to that of a key
    left, right = windows(t)
    if not t.given(6):
        beyond = (back > left) | (-back > right)
        added = np.where(beyond, -np.inf, 0)[None, None].astype(scores.value.dtype)
        return constant(Value(scores.value.type), added) if beyond.any() else None
    r, lengths = RealArithmetic(t), t.index(6, "nonpad_kv_seqlen")
    lengths = t.reshaped(lengths, (*t.known(lengths), 1, 1, 1))
    places = t.integers(range(columns))
    tests = [r.test("LESS_EQUAL", lengths, t.reshaped(places, (1, 1, 1, columns)))]
    ahead = r("ADD", lengths, constant(Value(I32), (back - rows)[None, None].astype(np.int32)))
    if left < math.inf:
        tests.append(r.test("GREATER", ahead, left))
    if right < math.inf:
        tests.append(r.test("LESS", ahead, -right))
    found = tests[0]
    for each in tests[1:]:
        found = t.make("LOGICAL_OR", found, each)
    return either(t, found, -math.inf, 0.0, OperandType(scores.value.type))


def windows(t: NodeTask) -> tuple[float, float]:
    """Return how many positions a query reads before its own, and behind it."""
    left, right = (math.inf if n < 0 else n for n in (t.attr(f"{side}_window_size", -1) for side in ("left", "right")))
    return left, 0 if t.attr("is_causal", 0) else right


def shares_of(t: NodeTask, scores: Term) -> Term:
    """Return the softmax of each row; a row of minus infinities, as a mask may leave, has shares of 0.

    The greatest of a row is subtracted first: what remains of minus infinity is great enough to have a share of 0.
    """
    if not t.given(3) and not t.given(6) and windows(t)[0] == math.inf:
        return t.make("SOFTMAX", scores, 1.0, -1)
    r, kind = RealArithmetic(t), scores.value.type
    most = t.make("REDUCE_MAX", scores, t.integers([3]), True)
    below = r("SUB", scores, r("MAXIMUM", most, float(np.finfo(scores.value.dtype).min)))
    shares = t.make("SOFTMAX", r("MAXIMUM", below, NOTHING), 1.0, -1)
    return r("MUL", shares, either(t, r.test("GREATER", most, -math.inf), 1.0, 0.0, OperandType(kind)))


@operator("RotaryEmbedding", inputs=(3, 4), becomes="GATHER of positions, MUL, SUB, ADD, CONCATENATION")
def rotary_embedding(t: NodeTask) -> None:
    """Rotate pairs of elements by the angles of their position, whose sines and cosines are given."""
    x, r = floats(t), RealArithmetic(t)
    whole = t.known(x)
    heads_first = len(whole) == 4
    heads = t.attr("num_heads", 0)
    t.require(heads_first or heads > 0, "has rows without heads, must have num_heads")
    shape = whole if heads_first else (*whole[:2], heads, whole[2] // heads)
    x = t.reshaped(x, shape)
    turned = t.attr("rotary_embedding_dim", 0) or shape[3]
    half, count = turned // 2, math.prod(shape[:3])
    axis, pairs = (2, (count, half, 2)) if t.attr("interleaved", 0) else (1, (count, 2, half))
    cosine, sine = (angles(t, place, heads_first, half) for place in (1, 2))
    front = t.reshaped(part_of(t, x, 3, 0, turned), pairs)
    first, second = (t.reshaped(part_of(t, front, axis, n, 1), (*shape[:3], half)) for n in (0, 1))
    made = [
        r("SUB", r("MUL", cosine, first), r("MUL", sine, second)),
        r("ADD", r("MUL", sine, first), r("MUL", cosine, second)),
    ]
    made = [t.reshaped(each, (*pairs[:axis], 1, *pairs[axis + 1 :])) for each in made]
    rotated = t.reshaped(joined(t, made, axis), (*shape[:3], turned))
    rest = [part_of(t, x, 3, turned, shape[3] - turned)] if turned < shape[3] else []
    t.result(0, t.reshaped(joined(t, [rotated, *rest], 3) if rest else rotated, whole))


def angles(t: NodeTask, place: int, heads_first: bool, half: int) -> Term:
    """Return the cosines or sines of each position, to be multiplied with all heads."""
    found = floats(t, place)
    if t.given(3):
        ids = t.x(3)
        found = t.reshaped(t.make("GATHER", found, 0, ids), (*t.known(ids), half))
    batch, count, _ = t.known(found)
    return t.reshaped(found, (batch, 1, count, half) if heads_first else (batch, count, 1, half))


@expanded("TensorScatter", inputs=(2, 3), becomes="CONCATENATION, GATHER of rows at places by the first one")
def tensor_scatter(t: ExpandedNode) -> None:
    """Write positions of a tensor into a cache, one behind another, from a computed position of each batch on."""
    shape, new = t.known(t.x(0)), t.known(t.x(1))
    axis, mode = t.axis(t.attr("axis", -2), len(shape)), t.attr("mode", "linear")
    t.require(mode in ("linear", "circular"), f"mode is {mode!r}, must be linear or circular")
    size, rows = shape[axis], new[axis] if len(new) == len(shape) else 0
    t.require(
        axis > 0 and 0 < rows <= size and new == (*shape[:axis], rows, *shape[axis + 1 :]),
        f"writes {list(new)} into {list(shape)} along axis {axis}, must have at most as many positions",
    )
    batch, count, each = shape[0], math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    places, zero, end = (t.constant(np.asarray(n, np.int32)) for n in (np.arange(size)[None], 0, size))
    first = t.constant(np.zeros((batch, 1), np.int32))
    if t.given(2):
        first = t.write("Cast", t.write("Reshape", t.input(2), t.constant([batch, 1])), to=INT32)
        first = t.write("Mod", first, end) if mode == "circular" else first
    row = t.write("Sub", places, first)  # of the written tensor, at each place of the cache
    if mode == "circular":
        row = t.write("Where", t.write("Less", row, zero), t.write("Add", row, end), row)
    inside = t.write("And", t.write("GreaterOrEqual", row, zero), t.write("Less", row, t.constant(np.int32(rows))))
    found = t.write("Where", inside, t.write("Add", row, end), places)
    if mode == "linear" and t.given(2):
        outside = t.write("Less", first, zero), t.write("Greater", first, t.constant(np.int32(size - rows)))
        found = t.write("Add", found, t.write("Where", t.write("Or", *outside), t.constant(np.int32(BEYOND)), zero))
    offsets = (np.arange(count, dtype=np.int32) * (size + rows)).reshape(batch, -1, 1)
    found = t.write("Add", t.write("Reshape", found, t.constant([batch, 1, size])), t.constant(offsets))
    both = (t.write("Reshape", t.input(n), t.constant([count, m, each])) for n, m in enumerate((size, rows)))
    table = t.write("Reshape", t.write("Concat", *both, axis=1), t.constant([count * (size + rows), each]))
    made = t.write("Gather", table, t.write("Reshape", found, t.constant([count * size])))
    t.write("Reshape", made, t.constant(shape), gives=0)
