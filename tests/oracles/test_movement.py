"""Operations that move elements, exactly: against LiteRT's builtin kernels, or numpy where it wants one scale for all."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnhal.base.operands import Array, Value
from nnhal.ops import OPS
from tests.ops.run import F16, F32, I32, Q8, Q8S, Type, result, run, value
from tests.oracles.litert import ask
from tests.oracles.strategies import STABLE, Example, Source, assert_agrees, shapes
from tests.oracles.test_formulas import nearest, real

TYPES = (F32, F16, Q8, Q8S)
WITH_INTEGERS = (F32, F16, I32, Q8, Q8S)
Drawn = tuple[Example, Array]


def drawn(draw: Any, kind: int, size: tuple[int, ...]) -> tuple[Source, Value, Value]:
    """A source, an input and an output of its quantisation."""
    source = Source(draw)
    q = source.quant(kind)
    return source, source.tensor(kind, size, q), result(kind, None, *q)


def ints(*numbers: Any) -> Value:
    return value(I32, np.asarray(numbers, np.int32))


@st.composite
def transposed(draw: Any, kind: int) -> Drawn:
    source, x, out = drawn(draw, kind, size := draw(shapes()))
    order = ints(*source.rng.permutation(len(size)))
    return Example((x, order), out), ask("TRANSPOSE", (x, order), out, const=(1,))


@st.composite
def padded(draw: Any, kind: int) -> Drawn:
    source, x, out = drawn(draw, kind, size := draw(shapes()))
    pads = ints(*source.rng.integers(0, 4, (len(size), 2)))
    return Example((x, pads), out), ask("PAD", (x, pads), out, const=(1,))


@st.composite
def gathered(draw: Any, kind: int) -> Drawn:
    source, x, out = drawn(draw, kind, size := draw(shapes()))
    axis = draw(st.integers(-len(size), len(size) - 1))
    indices = ints(*source.rng.integers(0, size[axis], draw(shapes((1, 2)))))
    return Example((x, axis, indices), out), ask("GATHER", (x, indices), out, table="Gather", axis=axis)


@st.composite
def tiled(draw: Any, kind: int) -> Drawn:
    source, x, out = drawn(draw, kind, size := draw(shapes()))
    times = ints(*source.rng.integers(1, 4, len(size)))
    return Example((x, times), out), ask("TILE", (x, times), out, const=(1,))


@st.composite
def sliced(draw: Any, kind: int) -> Drawn:
    """Forwards and backwards; what begin and end leave is never empty; a shrunk axis keeps one element."""
    source, x, out = drawn(draw, kind, size := draw(shapes()))
    begins, ends, steps, shrink = [], [], [], 0
    for axis, n in enumerate(size):
        first, last = source.rng.integers(0, n, 2)
        step = int(source.rng.integers(1, 4)) * (1 if first <= last else -1)
        end = last + (1 if step > 0 else -1)
        if source.rng.random() < 0.2:
            shrink, step, end = shrink | 1 << axis, 1, first + 1
        begins.append(first - n * bool(source.rng.random() < 0.3))  # negative ones count from the end
        ends.append(end - n if end < n and not shrink >> axis & 1 and (end < 0 or source.rng.random() < 0.3) else end)
        steps.append(step)
    for axis in range(len(size)):
        if shrink >> axis & 1 and begins[axis] < 0:
            ends[axis] -= size[axis] if begins[axis] + 1 < 0 else 0
    begin_mask, end_mask = (int(m) & ~shrink for m in source.rng.integers(0, 2 ** len(size), 2))
    masks = {"beginMask": begin_mask, "endMask": end_mask, "shrinkAxisMask": shrink}
    operands = x, ints(*begins), ints(*ends), ints(*steps)
    y = ask("STRIDED_SLICE", operands, out, const=(1, 2, 3), table="StridedSlice", **masks)
    return Example((*operands, begin_mask, end_mask, shrink), out), y.reshape(y.shape or (1,))


@st.composite
def blocks(draw: Any, kind: int, name: str) -> Drawn:
    block, nchw = draw(st.integers(1, 3)), draw(st.booleans())
    n, h, w, c = draw(shapes((4, 4)))
    size = (n, h * block, w * block, c) if name == "SPACE_TO_DEPTH" else (n, h, w, c * block**2)
    _, x, out = drawn(draw, kind, size)
    table = "SpaceToDepth" if name == "SPACE_TO_DEPTH" else "DepthToSpace"
    y = ask(name, (x,), out, table=table, blockSize=block)
    if nchw:
        data = np.ascontiguousarray(np.moveaxis(x.array, -1, 1))
        x, y = replace(x, data=data, shape=data.shape), np.moveaxis(y, -1, 1)
    return Example((x, block, nchw), out), y


@st.composite
def joined(draw: Any, kind: int) -> Drawn:
    """Each input in a scale of its own."""
    source, size = Source(draw), draw(shapes())
    axis, count = draw(st.integers(0, len(size) - 1)), draw(st.integers(1, 4))
    sizes = [(*size[:axis], int(source.rng.integers(1, 5)), *size[axis + 1 :]) for _ in range(count)]
    parts = [source.tensor(kind, s, source.quant(kind)) for s in sizes]
    out = result(kind, None, *source.quant(kind))
    return Example((*parts, axis), out), nearest(out, np.concatenate([real(p) for p in parts], axis))


MOVES: list[tuple[str, tuple[int, ...], Callable[[int], st.SearchStrategy[Drawn]]]] = [
    ("TRANSPOSE", TYPES, transposed),
    ("CONCATENATION", TYPES, joined),
    ("PAD", TYPES, padded),
    ("STRIDED_SLICE", TYPES, sliced),
    ("GATHER", WITH_INTEGERS, gathered),
    ("SPACE_TO_DEPTH", TYPES, partial(blocks, name="SPACE_TO_DEPTH")),
    ("DEPTH_TO_SPACE", TYPES, partial(blocks, name="DEPTH_TO_SPACE")),
    ("TILE", WITH_INTEGERS, tiled),
]


@pytest.mark.parametrize(
    ("name", "kind", "draw"),
    [pytest.param(name, kind, draw, id=f"{name}-{Type(kind).name}") for name, types, draw in MOVES for kind in types],
)
@STABLE
@given(data=st.data())
def test_elements_move_as_defined(name: str, kind: int, draw: Any, data: st.DataObject) -> None:
    example, expected = data.draw(draw(kind))
    assert_agrees(name, example, expected, steps=int(name == "CONCATENATION"))


@pytest.mark.skipif("TOPK_V2" not in OPS, reason="TOPK_V2 is not registered yet")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=Type(kind).name) for kind in WITH_INTEGERS])
@STABLE
@given(data=st.data())
def test_greatest_elements_come_first_and_of_equal_ones_the_last(kind: int, data: st.DataObject) -> None:
    _, x, out = drawn(data.draw, kind, size := data.draw(shapes()))
    k = data.draw(st.integers(1, size[-1]))
    order = np.argsort(x.array.astype(np.float64), -1, kind="stable")[..., ::-1][..., :k]
    values, indices = run("TOPK_V2", (x, k), out, result(I32))
    np.testing.assert_array_equal(values, np.take_along_axis(x.array, order, -1))
    np.testing.assert_array_equal(indices, order)
