"""Lists that a loop fills row by row, as converters write the steps of a recurrent layer, give what LiteRT gives."""

import numpy as np
import pytest

from nnhal.frontends.tflite import load
from tests.frontends.cases import refused
from tests.frontends.flat import Writer, litert
from tests.requests import compute

STEPS, WIDTH = 4, 3
DEVICES = ["litert", "reference"]


def integers(w: Writer, *numbers: int) -> int:
    return w.tensor((len(numbers),), "i4", numbers)


def replaced(
    w: Writer,
    whole: int,
    row: int,
    number: int,
    *,
    ahead: int = 1,
    start: int = 0,
    axis: int = 0,
    rest: int = -1,
    across: int = -1,
) -> tuple[int, int]:
    """list[start:start + number], the row, list[number + ahead:]; the list and number + ahead."""

    def first_of(scalar: int, *others: int) -> int:
        lifted, joined = w.tensor((1,), "i4"), w.tensor((3,), "i4")
        w.operator("RESHAPE", [scalar, integers(w, 1)], [lifted], "Reshape")
        w.operator("CONCATENATION", [lifted, integers(w, *others)], [joined], "Concatenation", axis=0)
        return joined

    following = w.tensor((), "i4")
    w.operator("ADD", [number, w.tensor((), "i4", ahead)], [following], "Add")
    before, after = (w.tensor((1, 1, 1), shapeSignature=[-1] * 3) for _ in range(2))
    w.operator("SLICE", [whole, integers(w, start, 0, 0), first_of(number, -1, across)], [before], "Slice")
    w.operator("SLICE", [whole, first_of(following, 0, 0), integers(w, rest, -1, -1)], [after], "Slice")
    result = w.tensor((STEPS, 1, WIDTH))
    w.operator("CONCATENATION", [before, row, after], [result], "Concatenation", axis=axis)
    return result, following


def file_of(rows: int = 1, least: int = 1, **how: int) -> bytes:
    w = Writer()
    given = (
        w.tensor((STEPS, 1, WIDTH)),
        w.tensor((rows, 1, WIDTH), shapeSignature=[min(rows, least), 1, WIDTH]),
        w.tensor((), "i4"),
    )
    return w.file(given, [replaced(w, *given, **how)[0]])


@pytest.mark.parametrize("number", range(STEPS))
def test_a_row_of_a_list_is_replaced(number: int) -> None:
    rng = np.random.default_rng(number)
    whole, row = (rng.random((n, 1, WIDTH), np.float32) for n in (STEPS, 1))
    given = whole, row, np.array(number, np.int32)
    (found,), (wanted,) = compute(load(file_of()), *given, devices=DEVICES), litert(file_of(), *given)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found[number], row[0])


LOOKALIKES = [{"ahead": 2}, {"start": 1}, {"axis": 1}, {"rest": 1}, {"across": 1}, {"rows": 2}, {"least": -1}]


@pytest.mark.parametrize("how", LOOKALIKES, ids=str)
def test_what_only_looks_like_a_row_of_a_list_is_not_taken_for_it(how: dict[str, int]) -> None:
    refused(file_of(**how), "known only at execution")


def test_a_loop_fills_a_list_with_its_states() -> None:
    w = Writer()
    scalar, sizes = (lambda data=None: w.tensor((), "i4", data)), [(STEPS, 1, WIDTH), (1, WIDTH)]
    given = [w.tensor(size) for size in sizes]
    outs = [scalar(), *(w.tensor(size) for size in sizes)]
    w.operator("WHILE", [scalar(0), *given], outs, "While", condSubgraphIndex=1, bodySubgraphIndex=2)
    w.ends(given, outs[1:])
    w.subgraph()
    given, more = [scalar(), *(w.tensor(size) for size in sizes)], w.tensor((), "b1")
    w.operator("LESS", [given[0], scalar(STEPS)], [more], "Less")
    w.ends(given, [more])
    w.subgraph()
    given, state, row = [scalar(), *(w.tensor(size) for size in sizes)], w.tensor(sizes[1]), w.tensor((1, 1, WIDTH))
    w.operator("TANH", [given[2]], [state])
    w.operator("RESHAPE", [state, integers(w, 1, 1, WIDTH)], [row], "Reshape")
    filled, following = replaced(w, given[1], row, given[0])
    w.ends(given, [following, filled, state])
    inputs = np.zeros(sizes[0], np.float32), np.array([[1.5, -0.2, 3]], np.float32)
    results = compute(load(w.bytes()), *inputs, devices=DEVICES)
    for found, wanted in zip(results, litert(w.bytes(), *inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
