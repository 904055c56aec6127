"""Entries of matrix products."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from nnhal.base.operands import Array, Shape, Value
from nnhal.frontends.common.element_moves import broadcast, transposed
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import broadcast_shapes
from nnhal.frontends.onnx.elementwise import floats
from nnhal.frontends.onnx.task import NodeTask, operator


@operator("MatMul", inputs=2, becomes="FULLY_CONNECTED with constant weights, else BATCH_MATMUL")
def matmul(t: NodeTask) -> None:
    """Multiply like numpy: leading dimensions broadcast, a vector is a matrix of one row or column."""
    x, y = floats(t, 0), floats(t, 1)
    ranks = t.rank(x), t.rank(y)
    t.require(min(ranks) >= 1, "of a scalar is undefined")
    if y.data is not None and ranks[1] == 2:
        t.result(0, rows_times(t, x, columns(t, y), None), scalar=ranks[0] == 1 and t.known(y)[1] == 0)
        return
    left, right = t.shape(x), t.shape(y)
    if ranks[0] == 1:
        x, left = t.reshaped(x, (1, *left)), (1, *left)
    if ranks[1] == 1:
        y, right = t.reshaped(y, (*right, 1)), (*right, 1)
    product = multiplied(t, x, y, left, right)
    whole = t.shape(product)
    shape = whole[: -2 if ranks[0] == 1 else -1] + (() if ranks[1] == 1 else whole[-1:])
    t.result(0, t.reshaped(product, shape or (1,)), scalar=not shape)


def columns(t: NodeTask, matrix: Term) -> Term:
    """Return a constant matrix, transposed."""
    return t.derived(matrix, "columns", lambda: np.asarray(matrix.data).T)


def rows_times(t: NodeTask, x: Term, weights: Term, bias: Array | None) -> Term:
    """Multiply rows of x by constant weights [units, size]."""
    shape = t.shape(x)
    units, size = t.known(weights)
    t.require(size and units, "has no elements")
    t.require(shape[-1] == size, f"has rows of {shape[-1]}, must have rows of {size}")
    kind = x.value.type
    b = constant(Value(kind), np.zeros(units, x.value.dtype) if bias is None else np.ascontiguousarray(bias))
    lead = shape[:-1]
    rows = None if None in lead else math.prod(d or 0 for d in lead)
    flat = x if len(shape) == 2 else t.reshaped(x, (rows, size))
    product = t.make("FULLY_CONNECTED", flat, weights, b, like=x, activation=0)
    return product if len(shape) == 2 else t.reshaped(product, (*lead, units) if len(lead) else (units,))


def multiplied(t: NodeTask, x: Term, y: Term, left: Shape, right: Shape) -> Term:
    """Multiply matrices whose leading dimensions broadcast."""
    if left[:-2] == right[:-2] and len(left) <= 4:
        return t.make("BATCH_MATMUL", x, y, like=x, adj_x=False, adj_y=False)
    lefts, rights = t.known(x), t.known(y)
    batch = broadcast_shapes(lefts[:-2], rights[:-2])
    count = math.prod(batch)
    if math.prod(rights[:-2]) == 1 and math.prod(lefts[:-2]) == count:  # one matrix for all rows
        rows, one = t.reshaped(x, (math.prod(lefts[:-1]), lefts[-1])), t.reshaped(y, rights[-2:])
        product = t.make("BATCH_MATMUL", rows, one, like=x, adj_x=False, adj_y=False)
    else:
        a = t.reshaped(broadcast(t, x, (*batch, *lefts[-2:])), (count, *lefts[-2:]))
        b = t.reshaped(broadcast(t, y, (*batch, *rights[-2:])), (count, *rights[-2:]))
        product = t.make("BATCH_MATMUL", a, b, like=x, adj_x=False, adj_y=False)
    return t.reshaped(product, (*batch, lefts[-2], rights[-1]))


@operator("Gemm", inputs=(2, 3), becomes="FULLY_CONNECTED with constant weights, else BATCH_MATMUL; MUL, ADD")
def gemm(t: NodeTask) -> None:
    """Write alpha A B + beta C."""
    x, y = floats(t, 0), floats(t, 1)
    alpha, beta = t.attr("alpha", 1.0), t.attr("beta", 1.0)
    turned = bool(t.attr("transB", 0))
    t.require(t.rank(x) == t.rank(y) == 2, f"has ranks {t.rank(x)} and {t.rank(y)}, must have matrices")
    if t.attr("transA", 0):
        x = transposed(t, x, (1, 0))
    c = t.maybe(2)
    if y.data is not None:
        weights = y if turned else columns(t, y)
        if alpha != 1:
            plain = np.asarray(weights.data)
            weights = t.derived(weights, ("times", alpha), lambda: plain * np.asarray(alpha, plain.dtype))
        units, bias = t.known(weights)[0], None
        if c is not None and c.data is not None and c.data.size in (1, units) and is_row(c.data):
            bias = np.broadcast_to(np.asarray(c.data).reshape(-1) * np.asarray(beta, c.data.dtype), (units,))
            c = None
        product = rows_times(t, x, weights, bias)
    else:
        product = t.make("BATCH_MATMUL", x, y, like=x, adj_x=False, adj_y=turned)
        if alpha != 1:
            product = t.make("MUL", product, t.scalar(alpha, x), activation=0)
    if c is not None and beta != 0:
        if beta != 1:
            c = t.make("MUL", c, t.scalar(beta, x), activation=0)
        product = t.make("ADD", product, c, activation=0)
    t.result(0, product)


def is_row(data: Array) -> bool:
    """Whether all elements lie along the last dimension."""
    return math.prod(data.shape[:-1]) == 1


LONGEST = 32  # characters of an equation for each tensor
Lettered = tuple[Term, str]  # a tensor, and a letter for each of its dimensions


@operator("Einsum", inputs=(1, None), becomes="TRANSPOSE, BATCH_MATMUL, RESHAPE; REDUCE_SUM of one")
def einsum(t: NodeTask) -> None:
    """Contract tensors from the first to the last; no letter may occur twice in one of them."""
    text = t.attr("equation", "").replace(" ", "")
    terms = [floats(t, place) for place in range(len(t.node.inputs))]
    parts, out = equation_letters(t, text, [t.rank(term) for term in terms])
    sizes: dict[str, int] = {}
    for part, term in zip(parts, terms, strict=True):
        for letter, size in zip(part, t.known(term), strict=False):
            whole = max(sizes.get(letter, 1), size)
            t.require(
                size in (1, whole) and sizes.get(letter, 1) in (1, whole),
                f"equation {text!r} has two sizes for {letter}",
            )
            sizes[letter] = whole
    t.require(set(out) <= sizes.keys(), f"equation {text!r} has an output letter that no input has")
    left = [without_ones(t, term, part, sizes) for part, term in zip(parts, terms, strict=True)]
    while len(left) > 1:
        (x, a), (y, b), *others = left
        kept = out + "".join(letters for _, letters in others)
        left = [contracted(t, summed(t, x, a, kept + b), summed(t, y, b, kept + a), kept, sizes), *others]
    term, letters = summed(t, *left[0], out)
    t.result(0, ordered(t, term, letters, list(out)), scalar=not out)


def equation_letters(t: NodeTask, text: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each input and of the output. An ellipsis becomes characters that no equation has."""
    given, arrow, out = text.partition("->")
    parts = given.split(",")
    t.require(
        len(text) <= LONGEST * (1 + len(ranks)), "has an equation with more letters than its tensors have dimensions"
    )
    t.require(len(parts) == len(ranks), f"equation {text!r} has {len(parts)} tensors, must have {len(ranks)}")
    wide = [rank - len(part) + 3 if "..." in part else 0 for part, rank in zip(parts, ranks, strict=True)]
    t.require(min(wide) >= 0, f"equation {text!r} does not fit tensors of {list(ranks)} dimensions")
    rest = "".join(chr(0x100 + n) for n in range(max(wide)))
    parts = [part.replace("...", rest[len(rest) - n :]) for part, n in zip(parts, wide, strict=True)]
    letters = "".join(parts)
    once = sorted(c for c in set(letters) - set(rest) if letters.count(c) == 1)
    out = out.replace("...", rest) if arrow else rest + "".join(once)
    plain = all(len(set(part)) == len(part) and "." not in part for part in (*parts, out))
    t.require(plain, f"equation {text!r} cannot be expressed in NNAPI")
    fit = all(len(part) == rank for part, rank in zip(parts, ranks, strict=True))
    t.require(fit, f"equation {text!r} does not fit tensors of {list(ranks)} dimensions")
    return parts, out


def without_ones(t: NodeTask, x: Term, letters: str, sizes: Mapping[str, int]) -> Lettered:
    """Remove the dimensions of 1 that are larger in other tensors."""
    shape = t.known(x)[: len(letters)]
    kept = [i for i, letter in enumerate(letters) if shape[i] == sizes[letter]]
    return t.reshaped(x, [shape[i] for i in kept] or [1]), "".join(letters[i] for i in kept)


def contracted(t: NodeTask, left: Lettered, right: Lettered, kept: str, sizes: Mapping[str, int]) -> Lettered:
    """Multiply two tensors, summed over their common letters that are not kept."""
    (x, a), (y, b) = left, right
    batch = [c for c in a if c in b and c in kept]
    inner = [c for c in a if c in b and c not in kept]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    count = [math.prod(sizes[c] for c in letters) for letters in (batch, rows, inner, columns)]
    x = t.reshaped(ordered(t, x, a, [*batch, *rows, *inner]), (count[0], count[1], count[2]))
    y = t.reshaped(ordered(t, y, b, [*batch, *inner, *columns]), (count[0], count[2], count[3]))
    product = t.make("BATCH_MATMUL", x, y, like=x, adj_x=False, adj_y=False)
    letters = "".join([*batch, *rows, *columns])
    return t.reshaped(product, [sizes[c] for c in letters] or [1]), letters


def summed(t: NodeTask, x: Term, letters: str, kept: str) -> tuple[Term, str]:
    """Sum over the letters that are not kept."""
    gone = [i for i, letter in enumerate(letters) if letter not in kept]
    if not gone:
        return x, letters
    left = "".join(letter for letter in letters if letter in kept)
    return t.make("REDUCE_SUM", x, t.integers(gone), False), left


def ordered(t: NodeTask, x: Term, letters: Sequence[str], wanted: Sequence[str]) -> Term:
    """Permute the dimensions of a term to the order of other letters."""
    order = [list(letters).index(c) for c in wanted]
    return x if order == sorted(order) else transposed(t, x, order)
