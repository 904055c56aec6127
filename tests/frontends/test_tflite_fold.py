"""What is computed at import is what LiteRT computes at execution; what it is not made for is left alone, at once."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import BadFile
from nnhal.frontends.common.budget import Budget, Cost
from nnhal.frontends.common.folding import CannotFold
from nnhal.frontends.tflite.graph import ImportContext, ImportGraph, typed
from nnhal.frontends.tflite.lowering import TfliteImport, lower
from nnhal.frontends.tflite.reader import read
from nnhal.frontends.tflite.task import OPERATORS
from tests.frontends import test_tflite_composed, test_tflite_newer, test_tflite_operators
from tests.frontends.cases import Case, b, begin, c, f, file_of, i, out, refused
from tests.frontends.flat import litert

begin(__name__)

MOST = 4096  # elements that are computed at import


def big() -> Budget:
    return Budget("test", 1 << 30)


def computed(content: bytes, arrays: list[Any], budget: Budget | None = None) -> list[Any] | None:
    """What import makes of a file's only operator if these are its inputs."""
    file = read(np.frombuffer(content, np.uint8), "test")._replace(budget=budget or big())
    (source,) = file.subgraphs
    graph = ImportGraph(ImportContext(file, lower), source, [typed(source.tensors[n]) for n in source.inputs])
    operator = TfliteImport(graph, source.operators[0])
    try:
        return [data for data, _ in operator.computed(operator.task(), arrays)]
    except CannotFold:
        return None


def folded(case: Case, *, budget: Budget | None = None, arrays: list[Any] | None = None) -> list[Any] | None:
    """What import makes of an operator whose inputs are known."""
    return computed(file_of(*case)[0], [x.data for x in case[1]] if arrays is None else arrays, budget)


KNOWN = {"f4", "i4", "i8", "b1"}
MORE: list[Case] = [
    *[(n, [i(2, 3), i(2, 3, low=1)], [out(2, 3, kind="i4")], n.title()) for n in ("ADD", "SUB", "MUL", "DIV")],
    ("DIV", [c([-7, 7, -7, 7, -6]), c([2, -2, -2, 2, 3])], [out(5, kind="i4")], "Div"),
    ("FLOOR_DIV", [c([-7, 7, -7, 7, -6]), c([2, -2, -2, 2, 3])], [out(5, kind="i4")]),
    ("FLOOR_DIV", [f(5, low=-9, high=9), f(5, low=0.5)], [out(5)]),
    ("FLOOR_MOD", [c([-7, 7, -7, 7, -6]), c([2, -2, -2, 2, 3])], [out(5, kind="i4")]),
    *[(n, [i(3, 4), i(4)], [out(3, 4, kind="i4")]) for n in ("MAXIMUM", "MINIMUM")],
    *[
        (n, [i(4, 5, low=0, high=3), i(5, low=0, high=3)], [out(4, 5, kind="b1")])
        for n in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
    ],
    *[
        (n, [i(2, 3, 4), c([0, 2])], [out(3, kind="i4")], "Reducer")
        for n in ("SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN")
    ],
    ("SUM", [i(2, 3, 4), c([-1])], [out(2, 3, 1, kind="i4")], "Reducer", {"keepDims": True}),
    ("ADD_N", [i(2, 3), i(2, 3), i(2, 3)], [out(2, 3, kind="i4")]),
    ("ABS", [i(5)], [out(5, kind="i4")]),
    ("NEG", [i(5)], [out(5, kind="i4")]),
    ("ROUND", [c([0.5, 1.5, 2.5, -0.5, -1.5, 1.2], "f4")], [out(6)]),
    ("CAST", [c([-2.7, 2.7, -0.2], "f4")], [out(3, kind="i4")], "Cast", {"inDataType": 0, "outDataType": 2}),
    ("CAST", [c([-2.7, 2.7, 0.0], "f4")], [out(3, kind="b1")], "Cast", {"inDataType": 0, "outDataType": 6}),
    ("CAST", [i(3)], [out(3, kind="i8")], "Cast", {"inDataType": 2, "outDataType": 4}),
    ("WHERE", [c([[True, False], [True, True]], "b1")], [out(3, 2, kind="i8")]),
    ("RANGE", [c(2), c(11), c(3)], [out(3, kind="i4")], "Range"),
    ("RANGE", [c(5), c(-4), c(-4)], [out(3, kind="i4")], "Range"),
    ("FILL", [c([2, 3]), c(7)], [out(2, 3, kind="i4")]),
    ("FILL", [c([]), c(7)], [out(kind="i4")]),
    ("BROADCAST_ARGS", [c([3, 1]), c([2, 1, 5])], [out(3, kind="i4")]),
    ("BROADCAST_TO", [i(3, 1), c([2, 3, 4])], [out(2, 3, 4, kind="i4")], "BroadcastTo", {"version": 2}),
    ("PACK", [i(2, 3), i(2, 3)], [out(2, 3, 2, kind="i4")], "Pack", {"valuesCount": 2, "axis": -1}),
    ("UNPACK", [i(2, 3)], [out(2, kind="i4")] * 3, "Unpack", {"num": 3, "axis": -1}),
    ("CONCATENATION", [i(2, 3), i(2, 1)], [out(2, 4, kind="i4")], "Concatenation", {"axis": -1}),
    ("GATHER", [i(3, 4), c([3, 0])], [out(3, 2, kind="i4")], "Gather", {"axis": -1}),
    ("GATHER", [i(2, 3, 4), c([[2, 0, 0], [1, 1, 2]])], [out(2, 3, 4, kind="i4")], "Gather", {"axis": 1, "batchDims": 1}),
    ("GATHER", [i(2, 3, 4), c([[2, 0], [1, 1]])], [out(2, 3, 2, kind="i4")], "Gather", {"axis": 2, "batchDims": -1}),
    ("GATHER", [i(2, 2, 3), c([[[2], [0]], [[1], [1]]])], [out(2, 2, 1, kind="i4")], "Gather", {"axis": 2, "batchDims": 2}),
    ("GATHER_ND", [i(3, 4, 2), c([[2, 3], [0, 1]])], [out(2, 2, kind="i4")], "GatherNd"),
    ("GATHER_ND", [i(3, 4), c([[[2], [0]]])], [out(1, 2, 4, kind="i4")], "GatherNd"),
    ("SLICE", [i(3, 4), c([1, 0]), c([-1, 3])], [out(2, 3, kind="i4")]),
    ("SLICE", [i(3, 4), c([1, 4]), c([2, -1])], [out(2, 0, kind="i4")]),
    ("STRIDED_SLICE", [i(4, 5, 6), c([1, 0, -1]), c([3, 5, -6]), c([1, 2, -2])], [out(2, 3, 3, kind="i4")], "StridedSlice"),
    (
        "STRIDED_SLICE",
        [i(4, 5, 6), c([1, 2, 1]), c([3, 5, 3]), c([1, 1, 1])],
        [out(3, 3, 5, kind="i4")],
        "StridedSlice",
        {"beginMask": 1, "endMask": 4},
    ),
    (
        "STRIDED_SLICE",
        [i(4, 5, 6), c([1, 2]), c([2, 3]), c([1, 1])],
        [out(4, 5, kind="i4")],
        "StridedSlice",
        {"ellipsisMask": 1, "shrinkAxisMask": 2},
    ),
    (
        "STRIDED_SLICE",
        [i(4, 5), c([0, 1, 0]), c([1, 3, 0]), c([1, 1, 1])],
        [out(1, 2, 1, 5, kind="i4")],
        "StridedSlice",
        {"newAxisMask": 4},
    ),
    (
        "STRIDED_SLICE",
        [i(4), c([-2]), c([-1]), c([1])],
        [out(kind="i4")],
        "StridedSlice",
        {"shrinkAxisMask": 1, "beginMask": 1},
    ),
    ("RESHAPE", [i(2, 3, 4), c([4, -1])], [out(4, 6, kind="i4")]),
    ("RESHAPE", [i(2, 3)], [out(6, 1, kind="i4")], "Reshape", {"newShape": [6, -1]}),
    ("SQUEEZE", [i(1, 3, 1, 4)], [out(3, 4, kind="i4")], "Squeeze", {"squeezeDims": []}),
    ("SQUEEZE", [i(1, 3, 1, 4)], [out(1, 3, 4, kind="i4")], "Squeeze", {"squeezeDims": [-2]}),
    ("EXPAND_DIMS", [i(2, 3), c([-1])], [out(2, 3, 1, kind="i4")]),
    ("TRANSPOSE", [i(2, 3, 4), c([2, 0, 1])], [out(4, 2, 3, kind="i4")]),
    ("TILE", [i(2, 3), c([2, 1])], [out(4, 3, kind="i4")]),
    ("SPLIT", [c(-1), i(2, 6)], [out(2, 2, kind="i4")] * 3, "Split", {"numSplits": 3}),
    ("SPLIT_V", [i(2, 6), c([1, 3, 2]), c(1)], [out(2, n, kind="i4") for n in (1, 3, 2)], "SplitV", {"numSplits": 3}),
    ("REVERSE_V2", [i(2, 3), c([0])], [out(2, 3, kind="i4")], "ReverseV2"),
    ("REVERSE_SEQUENCE", [i(2, 4, 3), c([3, 0])], [out(2, 4, 3, kind="i4")], "ReverseSequence", {"seqDim": 1}),
    (
        "REVERSE_SEQUENCE",
        [i(5, 2, 3), c([5, 1, 2])],
        [out(5, 2, 3, kind="i4")],
        "ReverseSequence",
        {"seqDim": 0, "batchDim": 2},
    ),
    *[
        ("MIRROR_PAD", [i(2, 3), c([[1, 0], [0, 2]])], [out(3, 5, kind="i4")], "MirrorPad", {"mode": mode})
        for mode in (0, 1)
    ],
    ("SPACE_TO_DEPTH", [i(2, 4, 6, 3)], [out(2, 2, 3, 12, kind="i4")], "SpaceToDepth", {"blockSize": 2}),
    ("DEPTH_TO_SPACE", [i(2, 2, 3, 12)], [out(2, 4, 6, 3, kind="i4")], "DepthToSpace", {"blockSize": 2}),
    ("BATCH_TO_SPACE_ND", [i(12, 2, 3, 2), c([2, 3]), c([[0, 0], [0, 0]])], [out(2, 4, 9, 2, kind="i4")]),
    ("BATCH_TO_SPACE_ND", [i(12, 2, 3, 2), c([2, 3]), c([[1, 0], [2, 3]])], [out(2, 3, 4, 2, kind="i4")]),
    ("SELECT", [b(3), i(3, 3), i(3, 3)], [out(3, 3, kind="i4")]),
    ("SELECT", [b(3, 3), i(3, 3), i(3, 3)], [out(3, 3, kind="i4")]),
    ("SELECT_V2", [b(3), i(3, 3), i(3, 3)], [out(3, 3, kind="i4")]),
    ("MATRIX_SET_DIAG", [i(2, 3, 3), i(2, 3)], [out(2, 3, 3, kind="i4")], "MatrixSetDiag"),
]  # fmt: skip
TABLES = (
    MORE,
    test_tflite_operators.ELEMENTS,
    test_tflite_operators.MOVES,
    test_tflite_composed.CASES,
    test_tflite_newer.NEWER,
)
CASES = [
    case
    for table in TABLES
    for case in table
    if (OPERATORS[case[0]].moves or OPERATORS[case[0]].fold) and {x.kind for x in (*case[1], *case[2])} <= KNOWN
]


def left_alone(case: Case) -> bool:
    """What import leaves to execution, by the definition: a fused activation, an offset, a size that is what is left, a
    remainder of floats.
    """
    name, inputs, fields = case[0], case[1], case[4] if len(case) > 4 else {}
    rest = name == "SPLIT_V" and -1 in inputs[1].data
    return bool(
        fields.get("fusedActivationFunction")
        or fields.get("offset")
        or rest
        or (name == "FLOOR_MOD" and inputs[0].kind == "f4")
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case[0]}-{n}") for n, case in enumerate(CASES)])
def test_what_is_computed_at_import_is_what_litert_computes(case):
    found = folded(case)
    if left_alone(case):
        assert found is None
        return
    content, fed = file_of(*case)
    assert found is not None
    for actual, expected in zip(found, litert(content, *fed), strict=True):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


MOVED = {case[0]: case for case in reversed(CASES) if OPERATORS[case[0]].moves and not left_alone(case)}


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_number_that_is_not_known_yet_moves_like_all_others(name):
    _, inputs, outputs, *_ = MOVED[name]
    known = [x.data for x in inputs]
    place = next(n for n, x in enumerate(known) if n + 1 == len(known) or known[n].size > 2)
    marked = [np.array(x) for x in known]
    marked[place].reshape(-1)[1] = 1234
    partly = [x.astype(object) if n == place else x for n, x in enumerate(known)]
    partly[place].reshape(-1)[1] = None
    found = zip(folded(MOVED[name], arrays=partly), folded(MOVED[name], arrays=marked), outputs, strict=True)
    for actual, expected, declared in found:
        here = np.array([n is None for n in actual.reshape(-1)]).reshape(actual.shape)
        assert actual.shape == declared.shape
        assert (here == (expected == 1234)).all() and here.sum() == (expected == 1234).sum()
        assert (actual[~here] == expected[~here]).all()


@pytest.mark.parametrize("name", ["ADD", "EQUAL", "CAST", "SUM", "FILL"])
def test_a_number_that_is_not_known_yet_is_computed_with_at_execution(name):
    case = next(case for case in CASES if case[0] == name)
    known = [x.data.astype(object) for x in case[1]]
    known[0].reshape(-1)[0] = None
    assert folded(case, arrays=known) is None


def zeros(*shape: int) -> Any:
    return np.zeros(shape, "i4")


def row(*numbers: int) -> Any:
    return np.array(numbers, "i4")


# Inputs of a result of 4096 elements, or of so many results, by how large it is in one direction.
LARGEST: dict[str, tuple[Any, str, dict[str, Any], int]] = {
    "GATHER": (lambda n: [zeros(2, 64), zeros(n)], "Gather", {}, 64),
    "GATHER_ND": (lambda n: [zeros(2, 64), zeros(n, 1)], "GatherNd", {}, 64),
    "TILE": (lambda n: [zeros(1, 64), row(n, 1)], "", {}, 64),
    "BROADCAST_TO": (lambda n: [zeros(1, 64), row(n, 64)], "BroadcastTo", {}, 64),
    "MIRROR_PAD": (lambda n: [zeros(n - 24, 64), np.array([[12, 12], [0, 0]])], "MirrorPad", {"mode": 1}, 64),
    "FILL": (lambda n: [row(n, 64), row(1)], "", {}, 64),
    "RANGE": (lambda n: [row(0), row(2 * n), row(2)], "Range", {}, MOST),
    "ADD": (lambda n: [zeros(n, 1), zeros(1, 64)], "Add", {}, 64),
    "MAXIMUM": (lambda n: [zeros(n, 1), zeros(1, 64)], "", {}, 64),
    "SUM": (lambda n: [zeros(0, n), row(0)], "Reducer", {}, MOST),
    "PACK": (lambda n: [zeros(n)], "Pack", {}, MOST),
    "UNPACK": (lambda n: [zeros(n, 0)], "Unpack", {}, MOST),
    "SPLIT": (lambda n: [row(0), zeros(n, 0)], "Split", {"numSplits": MOST}, MOST),
}


def folded_arrays(
    name: str, arrays: list[Any], options: str, count: int = 1, kind: str = "i4", **fields: Any
) -> list[Any] | None:
    """What import makes of arrays of any size, with options as a file has them. count, kind: of the outputs."""
    content, _ = file_of(name, [c(0)], [out(kind=kind)] * count, options, **fields)
    return computed(content, arrays)


@pytest.mark.parametrize("name", LARGEST)
def test_no_more_than_4096_elements_or_results_are_computed_at_import(name):
    make, options, fields, size = LARGEST[name]
    count = MOST if name in ("UNPACK", "SPLIT") else 1
    found = folded_arrays(name, make(size), options, count, **fields)
    assert found is not None
    assert len(found) == count
    assert sum(x.size for x in found) == (MOST if count == 1 else 0)
    more = fields | ({"numSplits": MOST + 1} if name == "SPLIT" else {})
    assert folded_arrays(name, make(size + 1), options, count + (count > 1), **more) is None


HUGE = {
    "GATHER": [zeros(2, 2000), zeros(2000)],
    "GATHER_ND": [zeros(2, 2000), zeros(2000, 1)],
    "TILE": [zeros(1, 2000), row(2000, 1)],
    "BROADCAST_TO": [zeros(1, 2000), row(2000, 2000)],
    "MIRROR_PAD": [zeros(1500, 2), np.array([[1500, 1500], [2, 2]])],
    "FILL": [row(2000, 2000), row(1)],
    "RANGE": [row(0), row(1 << 22), row(1)],
    "ADD": [zeros(2000, 1), zeros(1, 2000)],
    "LOGICAL_AND": [zeros(2000, 1), zeros(1, 2000)],
    "SUM": [zeros(0, 1 << 22), row(0)],
    "UNPACK": [zeros(1 << 22, 0)],
    "SPLIT": [row(0), zeros(1 << 20, 0)],
}


@pytest.mark.parametrize("name", HUGE)
def test_what_would_be_large_is_not_made_to_see_how_large_it_is(name):
    options, fields = LARGEST[name][1:3] if name in LARGEST else ("", {})
    more = fields | ({"numSplits": 1 << 20} if name == "SPLIT" else {})
    folded_arrays(name, [row(1)], options, **more)  # what the first call of its kind loads
    tracemalloc.start()
    try:
        assert folded_arrays(name, HUGE[name], options, **more) is None
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


LEFT: dict[str, tuple[str, list[Any], str, dict[str, Any]]] = {
    "no operator of the table": ("CONV_2D", [zeros(1)], "", {}),
    "more inputs than 4096 elements": ("PACK", [zeros(MOST), zeros(1)], "Pack", {}),
    "an index below 0": ("GATHER", [zeros(3), row(-1)], "Gather", {}),
    "an index behind the last": ("GATHER", [zeros(3), row(3)], "Gather", {}),
    "an index of a row below 0": ("GATHER_ND", [zeros(3, 2), np.array([[-1, 0]])], "GatherNd", {}),
    "an index of a row behind the last": ("GATHER_ND", [zeros(3, 2), np.array([[0, 2]])], "GatherNd", {}),
    "batches of two sizes": ("GATHER", [zeros(2, 3), zeros(1, 3)], "Gather", {"axis": 1, "batchDims": 1}),
    "batches behind the axis": ("GATHER", [zeros(2, 3), zeros(2, 3)], "Gather", {"axis": 0, "batchDims": 1}),
    "batches below those there are": ("GATHER", [zeros(2, 3), zeros(2)], "Gather", {"axis": 1, "batchDims": -2}),
    "a begin below 0": ("SLICE", [zeros(3), row(-1), row(1)], "", {}),
    "a begin behind the end": ("SLICE", [zeros(3), row(4), row(-1)], "", {}),
    "a size below -1": ("SLICE", [zeros(3), row(1), row(-2)], "", {}),
    "a size beyond the end": ("SLICE", [zeros(3), row(1), row(3)], "", {}),
    "fewer begins than dimensions": ("SLICE", [zeros(3, 3), row(1), row(1)], "", {}),
    "an end that is a distance": ("STRIDED_SLICE", [zeros(3), row(1), row(1), row(1)], "StridedSlice", {"offset": True}),
    "two axes in one": ("EXPAND_DIMS", [zeros(3), row(0, 1)], "", {}),
    "a tile below 0": ("TILE", [zeros(3), row(-1)], "", {}),
    "no parts": ("SPLIT", [row(0), zeros(4)], "Split", {"numSplits": 0}),
    "parts below 0": ("SPLIT", [row(0), zeros(4)], "Split", {"numSplits": -1}),
    "another number of parts": ("SPLIT", [row(0), zeros(4)], "Split", {"numSplits": 2}),
    "a part that is what is left": ("SPLIT_V", [zeros(4), row(-1), row(0)], "SplitV", {}),
    "parts that are not all": ("SPLIT_V", [zeros(4), row(3), row(0)], "SplitV", {}),
    "a length below 0": ("REVERSE_SEQUENCE", [zeros(1, 3), row(-1)], "ReverseSequence", {"seqDim": 1}),
    "a length of more steps": ("REVERSE_SEQUENCE", [zeros(1, 3), row(4)], "ReverseSequence", {"seqDim": 1}),
    "a length too many": ("REVERSE_SEQUENCE", [zeros(1, 3), row(1, 1)], "ReverseSequence", {"seqDim": 1}),
    "steps that are batches": ("REVERSE_SEQUENCE", [zeros(3, 3), row(1, 1, 1)], "ReverseSequence", {"seqDim": 0}),
    "a mirror below 0": ("MIRROR_PAD", [zeros(3), np.array([[-1, 1]])], "MirrorPad", {"mode": 1}),
    "a mirror of more than there is": ("MIRROR_PAD", [zeros(3), np.array([[0, 4]])], "MirrorPad", {"mode": 1}),
    "a crop below 0": ("BATCH_TO_SPACE_ND", [zeros(4, 2, 2, 1), row(2, 2), np.array([[-1, 0], [0, 0]])], "", {}),
    "a division by 0": ("DIV", [row(1, 2), row(1, 0)], "Div", {}),
    "a quotient by 0": ("FLOOR_DIV", [row(1, 2), row(1, 0)], "", {}),
    "a remainder by 0": ("FLOOR_MOD", [row(1, 2), row(1, 0)], "", {}),
    "an activation": ("ADD", [row(1), row(2)], "Add", {"fusedActivationFunction": 1}),
    "a joined activation": ("CONCATENATION", [row(1), row(2)], "Concatenation", {"fusedActivationFunction": 1}),
    "a step of 0": ("RANGE", [row(0), row(3), row(0)], "Range", {}),
    "a range of floats": ("RANGE", [np.float32([0.5]), np.float32([3]), np.float32([1])], "Range", {}),
    "a dimension below 0": ("FILL", [row(-1), row(7)], "", {}),
    "two dimensions below 0": ("FILL", [row(-1, -1), row(7)], "", {}),
    "no number as an integer": ("CAST", [np.float32([1, np.nan])], "Cast", {}),
    "an infinite integer": ("CAST", [np.float32([1, np.inf])], "Cast", {}),
    "2**31 as an integer": ("CAST", [np.float32([2**31])], "Cast", {}),
    "an integer of 33 bits": ("CAST", [np.array([2**31])], "Cast", {}),
    "a sum of 33 bits": ("ADD", [row(2**31 - 1), row(1)], "Add", {}),
    "a shape of 9 dimensions": ("BROADCAST_ARGS", [np.ones(9, "i4"), row(1)], "", {}),
    "9 dimensions to a shape": ("BROADCAST_ARGS", [row(1), np.ones(9, "i4")], "", {}),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT)
def test_what_may_fail_is_left_to_execution(what):
    name, arrays, options, fields = LEFT[what]
    assert folded_arrays(name, arrays, options, **fields) is None


def test_the_greatest_numbers_that_fit_are_computed():
    for name, arrays, options, expected in (
        ("CAST", [np.float32([2**31 - 128, -(2**31) + 128])], "Cast", [2**31 - 128, -(2**31) + 128]),
        ("ADD", [row(2**31 - 2), row(1)], "Add", [2**31 - 1]),
        ("SUB", [row(-(2**31) + 1), row(1)], "Sub", [-(2**31)]),
        ("REVERSE_SEQUENCE", [np.array([[1, 2, 3]]), row(3)], "ReverseSequence", [3, 2, 1]),
        ("MIRROR_PAD", [row(1, 2, 3), np.array([[0, 3]])], "MirrorPad", [1, 2, 3, 3, 2, 1]),
        ("SLICE", [row(1, 2, 3), row(1), row(2)], "", [2, 3]),
        ("FILL", [row(0), row(7)], "", []),
        ("BROADCAST_ARGS", [np.ones(8, "i4"), row(5)], "", [1] * 7 + [5]),
    ):
        fields = {"mode": 1} if name == "MIRROR_PAD" else {"seqDim": 1} if name == "REVERSE_SEQUENCE" else {}
        (found,) = folded_arrays(name, arrays, options, **fields) or [None]
        assert found is not None, name
        assert found.reshape(-1).tolist() == expected


@pytest.mark.parametrize("kind", ["i1", "f2", "f8", "string"])
def test_only_plain_types_are_computed(kind):
    assert folded_arrays("PACK", [row(1)], "Pack", kind=kind) is None


def test_a_constant_sum_of_more_than_32_bits_refuses_its_operator():
    content, _ = file_of("ADD", [c([2**33, 5], "i8"), c([2**33, 5], "i8")], [out(2, kind="i8")], "Add")
    refused(content, "ADD #0: input 0 is INT64, which NNAPI has no type for")


def test_what_is_computed_is_paid_for():
    for name in ("TILE", "PACK"):
        budget = Budget("test", 0)
        before = dict(budget.left)
        found = folded(MOVED[name], budget=budget)
        assert found is not None
        elements = sum(x.data.size for x in MOVED[name][1]) + sum(x.size for x in found)
        lists = len(MOVED[name][1]) + len(found)
        assert before[Cost.OPERATIONS] - budget.left[Cost.OPERATIONS] == 1
        assert before[Cost.ELEMENTS] - budget.left[Cost.ELEMENTS] == elements + lists
    budget.left[Cost.OPERATIONS] = 0
    with pytest.raises(BadFile, match="operations"):
        folded(MOVED["TILE"], budget=budget)
