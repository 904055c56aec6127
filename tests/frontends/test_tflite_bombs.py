"""Small files that would cost much: every one is loaded or refused at once, within the file's budget."""

import multiprocessing
import resource
import time

import numpy as np
import pytest

import nnhal
from nnhal.frontends.tflite import load
from tests import waiting
from tests.frontends.flat import Writer, one_operator, schema, tensor

SECONDS, MEMORY, LIMIT = 2, 400 << 20, 6 << 30  # on a busy machine; of memory; of address space
DIMENSIONED = (
    "RESHAPE",
    "FILL",
    "TILE",
    "BROADCAST_TO",
    "TRANSPOSE",
    "STRIDED_SLICE",
    "REVERSE_V2",
    "SUM",
    "PAD",
    "GATHER",
)


def with_result(w: Writer, *results: int) -> bytes:
    """The file with an ordinary way from an input to an output besides."""
    x, y = w.tensor([1]), w.tensor([1])
    w.operator("ABS", [x], [y])
    return w.file([x], [y, *results])


def split_of_nothing() -> bytes:
    w = Writer()
    axis, empty, part = w.tensor([], "i4", 0), w.tensor([0]), w.tensor([0])
    w.operator("SPLIT", [axis, empty], [part], "Split", numSplits=20_000_000)
    return with_result(w)


def unpack_of_nothing() -> bytes:
    w = Writer()
    empty, part = w.tensor([30_000_000, 0]), w.tensor([0])
    w.operator("UNPACK", [empty], [part], "Unpack", num=1, axis=0)
    return with_result(w)


def sum_of_nothing() -> bytes:
    """Over the dimension of 0, which leaves a hundred million sums."""
    w = Writer()
    empty, axis, sums = w.tensor([0, 1 << 27], "i4"), w.tensor([1], "i4", [0]), w.tensor([1 << 27], "i4")
    w.operator("SUM", [empty, axis], [sums], "Reducer")
    return with_result(w)


def gathers(count: int = 300) -> bytes:
    """Each of 2000 rows of one number at 2000 places."""
    w = Writer()
    x, places = w.tensor([2000, 1], "i4", np.zeros(2000)), w.tensor([2000], "i4", np.zeros(2000))
    for _ in range(count):
        w.operator("GATHER", [x, places], [w.tensor([2000, 2000], "i4")], "Gather", axis=1)
    return with_result(w)


def batches_before_the_first() -> bytes:
    return one_operator(
        "GATHER", [tensor([2, 3]), tensor([2, 2], "i4")], [tensor([2, 2])], "Gather", axis=1, batchDims=-(2**31)
    )


def sparse(count: int = 200) -> bytes:
    """One value each, of 4 Mi elements."""
    w = Writer()
    x = w.tensor([1])
    size, results = 1 << 22, []
    for _ in range(count):
        c, y = w.tensor([size], "f4", [1.0]), w.tensor([size])
        found = w.graph.tensors[c].sparsity = schema.SparsityParametersT()
        level = schema.DimensionMetadataT()
        level.format = schema.DimensionType.SPARSE_CSR
        level.arraySegmentsType = level.arrayIndicesType = schema.SparseIndexVector.Int32Vector
        level.arraySegments, level.arrayIndices = schema.Int32VectorT(), schema.Int32VectorT()
        level.arraySegments.values, level.arrayIndices.values = [0, 1], [5]
        found.traversalOrder, found.dimMetadata = [0], [level]
        w.operator("MAXIMUM", [c, x], [y])
        results.append(y)
    return w.file([x], results)


def one_hot(count: int = 500) -> bytes:
    """Each needs a constant of a million numbers."""
    w = Writer()
    x, results = w.tensor([1], "i4"), []
    depth, on, off = w.tensor([], "i4", 1 << 20), w.tensor([], "f4", 1), w.tensor([], "f4", 0)
    for _ in range(count):
        results.append(w.tensor([1, 1 << 20]))
        w.operator("ONE_HOT", [x, depth, on, off], [results[-1]], "OneHot", axis=-1)
    return w.file([x], results)


def biases(count: int = 30) -> bytes:
    """Layers without a bias, whose weights are an input of a hundred million rows."""
    w = Writer()
    rows = 100_000_000
    x, weights, results = w.tensor([1, 1]), w.tensor([rows, 1]), []
    for _ in range(count):
        results.append(w.tensor([1, rows]))
        w.operator("FULLY_CONNECTED", [x, weights, -1], [results[-1]], "FullyConnected")
    return w.file([x, weights], results)


def sums_of_one_list(count: int = 50) -> bytes:
    """ADD_N of one tensor many times over: an operation for every four bytes."""
    w = Writer()
    x, results = w.tensor([1]), []
    for _ in range(count):
        results.append(w.tensor([1]))
        w.operator("ADD_N", [x] * 1000, [results[-1]])
    return w.file([x], results)


def states(count: int = 40) -> bytes:
    """Variables of 64 MiB that nothing gives a first value."""
    w = Writer()
    size = 1 << 26
    x, results = w.tensor([size], "i1", scale=0.5, zero=3), []
    for number in range(count):
        handle, y = w.tensor([], "resource"), w.tensor([size], "i1", scale=0.5, zero=3)
        w.operator("VAR_HANDLE", [], [handle], "VarHandle", sharedName=f"v{number}")
        w.operator("READ_VARIABLE", [handle], [y])
        w.operator("ASSIGN_VARIABLE", [handle, x], [])
        results.append(y)
    return w.file([x], results)


def calls(depth: int, width: int, grow: bool) -> bytes:
    """Subgraphs that call the next one `width` times, with inputs of lengths of their own where they grow."""
    w = Writer()
    for level in range(depth):
        if level:
            w.subgraph()
        condition, x = w.tensor([1], "b1"), w.tensor([1])
        for place in range(width):
            given, y = x, w.tensor([1])
            if grow:
                more = (place + 1) * (width + 1) ** (depth - level - 1)
                given = w.tensor([2])
                w.operator("PAD", [x, w.tensor([1, 2], "i4", [[0, more]])], [given], "Pad")
            w.operator(
                "IF", [condition, condition, given], [y], "If", thenSubgraphIndex=level + 1, elseSubgraphIndex=level + 1
            )
        w.ends([condition, x], [y])
    w.subgraph()
    condition, x, y = w.tensor([1], "b1"), w.tensor([1]), w.tensor([1])
    w.operator("REDUCE_MAX", [x, w.tensor([1], "i4", [0])], [y], "Reducer", keepDims=True)
    return w.file([condition, x], [y])


def loops(depth: int = 12) -> bytes:
    """Loops within loops; each is imported again for every dimension that its body makes unknown."""
    w = Writer()
    for level in range(depth):
        if level:
            w.subgraph()
        xs = [w.tensor([1]) for _ in range(3)]
        last = xs
        for _ in range(2):
            ys = [w.tensor([1]) for _ in range(3)]
            w.operator("WHILE", last, ys, "While", condSubgraphIndex=depth + 1, bodySubgraphIndex=level + 1)
            last = ys
        w.ends(xs, last)
    w.subgraph()
    xs, y = [w.tensor([1]) for _ in range(3)], w.tensor([2])
    w.operator("CONCATENATION", [xs[0], xs[0]], [y], "Concatenation")
    w.ends(xs, [xs[1], xs[2], y])
    w.subgraph()
    xs, most, yes = [w.tensor([1]) for _ in range(3)], w.tensor([1]), w.tensor([1], "b1")
    w.operator("REDUCE_MAX", [xs[1], w.tensor([1], "i4", [0])], [most], "Reducer", keepDims=True)
    w.operator("LESS", [most, w.tensor([1], "f4", [3])], [yes])
    return w.file(xs, [yes])


def entry_points(count: int = 300, names: int = 8000) -> bytes:
    """Many names for many tensors, in an order that puts every one behind all others."""
    w = Writer()
    xs, y = [w.tensor([1], name="") for _ in range(names)], w.tensor([1])
    w.operator("ABS", xs[:1], [y])
    w.ends(xs, [y])
    w.signature("first", {}, {"y": y})
    mapped = [w._map("", n) for n in reversed(xs)]
    w.model.signatureDefs[0].inputs = mapped
    for number in range(count):
        w.signature(f"s{number}", {}, {f"y{n}": y for n in range(3)})
    return w.bytes()


def dimensions(operator: str, *, option: bool = False) -> bytes:
    """A shape of 100,000 huge dimensions, whose product has a million digits."""
    w, many = Writer(), np.full(100_000, 2**31 - 1, np.int64)
    x, y = w.tensor([1, 1]), w.tensor([1, 1])
    if option:
        w.operator(operator, [x], [y], "Reshape", newShape=many)
    elif operator == "FILL":
        w.operator(operator, [w.tensor([len(many)], "i4", many), w.tensor([], "f4", 1)], [y])
    else:
        others = [w.tensor([len(many)], "i4", many) for _ in range(3 if operator == "STRIDED_SLICE" else 1)]
        w.operator(operator, [x, *others], [y], *(["StridedSlice"] if operator == "STRIDED_SLICE" else []))
    return w.file([x], [y])


BOMBS = {
    **{f"{n} of huge dimensions": lambda n=n: dimensions(n) for n in DIMENSIONED},
    "RESHAPE to an option of huge dimensions": lambda: dimensions("RESHAPE", option=True),
    "SPLIT of nothing": split_of_nothing,
    "UNPACK of nothing": unpack_of_nothing,
    "SUM of nothing": sum_of_nothing,
    "GATHER": gathers,
    "GATHER, batches": batches_before_the_first,
    "sparse constants": sparse,
    "ONE_HOT": one_hot,
    "biases": biases,
    "ADD_N": sums_of_one_list,
    "states": states,
    "calls with new shapes": lambda: calls(4, 8, True),
    "calls 12 deep with new shapes": lambda: calls(12, 2, True),
    "calls with the same shapes": lambda: calls(40, 4, False),
    "loops": loops,
    "entry points": entry_points,
}


def peak() -> int:
    """Bytes of memory that the process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def attempt(content: bytes, answer) -> None:
    """Load the file, and tell what came out, after how much processor time, and the memory it took."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    before = peak()
    started = time.process_time()
    try:
        model = load(content)
        said = f"{len(model.subgraphs)} subgraphs"
    except nnhal.NnhalError as error:
        said = f"{type(error).__name__}: {error}"
    except BaseException as error:
        said = f"TRACEBACK {error!r}"
    answer.send((said, time.process_time() - started, peak() - before))


def loaded(name: str):
    """What comes of a bomb in a process of its own: what is said, processor seconds, and bytes that it grew by."""
    content = BOMBS[name]()
    process = multiprocessing.get_context("fork")
    here, there = process.Pipe(duplex=False)
    child = process.Process(target=attempt, args=(content, there))
    child.start()
    there.close()
    try:
        assert here.poll(waiting.LIMIT), "still loading"
        return here.recv()
    finally:
        child.kill()
        child.join()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_loaded_or_refused(name):
    said, _, _ = loaded(name)
    assert not said.startswith("TRACEBACK"), said
    assert "OutOfMemory" not in said, said


@pytest.mark.nightly
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_little_time_and_memory(name):
    said, took, grown = loaded(name)
    assert took < SECONDS, (took, said)
    assert grown < MEMORY, (grown, said)
