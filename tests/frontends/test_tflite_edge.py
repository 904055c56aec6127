"""The edge of an imported model: the file's own shapes and types, whichever way it is executed."""

import numpy as np
import pytest

import nnhal
from nnhal.frontends.tflite import load
from tests.frontends.cases import X, begin, c, check, f, out, refused
from tests.frontends.flat import Writer, litert, one_operator, schema, tensor

begin(__name__)

IDS = np.array([3, 0, 2], np.int64)
TABLE = np.arange(8, dtype="f4").reshape(4, 2)


def looked_up() -> bytes:
    """Rows of a table by 64-bit numbers; the greatest of all elements, a scalar; the numbers turned round."""
    w = Writer()
    ids, table, axes = w.tensor([3], "i8"), w.tensor([4, 2], "f4", TABLE), w.tensor([2], "i4", [0, 1])
    rows, most = w.tensor([3, 2]), w.tensor([])
    axis, back = w.tensor([1], "i4", [0]), w.tensor([3], "i8")
    w.operator("GATHER", [table, ids], [rows], "Gather")
    w.operator("REDUCE_MAX", [rows, axes], [most], "Reducer")
    w.operator("REVERSE_V2", [ids, axis], [back])
    return w.file([ids], [most, back])


def holds(results) -> None:
    most, back = results
    assert (most.shape, most.dtype, most.tolist()) == ((), np.float32, 7.0)
    assert (back.shape, back.dtype, back.tolist()) == ((3,), np.int64, [2, 0, 3])


def rooms() -> list[np.ndarray]:
    return [np.zeros((), "f4"), np.zeros(3, np.int64)]


@pytest.fixture(params=["reference", "litert"])
def compiled(request):
    with nnhal.compile(load(looked_up()), devices=request.param) as made:
        yield made


def test_scalars_and_64_bit_integers_are_what_litert_gives():
    holds(litert(looked_up(), IDS))


def test_a_call_has_the_shapes_and_types_of_the_file(compiled):
    (given,), results = compiled.inputs, compiled.outputs
    assert (given.dtype, given.kind) == (np.int64, "TENSOR_INT64")
    assert [(s.shape, s.dtype) for s in results] == [((), np.float32), ((3,), np.int64)]
    holds(compiled(IDS))
    holds(compiled([3, 0, 2]))
    assert list(compiled({"t0": IDS})) == [s.name for s in results]


def test_results_lie_in_the_arrays_given_for_them(compiled):
    places = rooms()
    results = compiled(IDS, out=places)
    holds(results)
    holds(places)
    assert all(np.shares_memory(x, y) for x, y in zip(results, places, strict=True))


def test_room_in_bytes_is_room_for_the_files_own_type(compiled):
    room = np.zeros(24, np.uint8)
    compiled(IDS, out=[None, room])
    assert room.view(np.int64).tolist() == [2, 0, 3]
    with pytest.raises(nnhal.OutputInsufficientSize):
        compiled(IDS, out=[None, np.zeros(23, np.uint8)])


def test_a_binding_reads_and_writes_at_each_run(compiled):
    ids, places = np.zeros(3, np.int64), rooms()
    binding = compiled.bind(ids, out=places)
    binding()
    ids[:] = IDS
    holds(binding())
    holds(places)


def test_what_is_submitted_and_run_in_bursts_has_them_too(compiled):
    holds(compiled.submit(IDS).result())
    holds(compiled.submit(IDS, out=rooms()).result())
    with compiled.burst() as burst:
        holds(burst(IDS))
        holds(burst(IDS, out=rooms()))


def test_a_fenced_execution_reads_after_its_fences_and_writes_before_its_own(compiled):
    pool = nnhal.Memory.allocate(64)
    ids, back = pool.view(0, 24, np.int64, (3,)), pool.view(24, 24, np.int64, (3,))
    fence, signal = nnhal.fence_pair()
    fenced = compiled.execute_fenced(ids, wait_for=[fence], out=[None, back])
    ids[:] = IDS
    signal.set(nnhal.ErrorStatus.NONE)
    fenced.fence.wait(10)
    assert back.tolist() == [2, 0, 3]
    holds(fenced.result(10))


def test_a_driver_in_another_process_changes_nothing():
    with nnhal.compile(load(looked_up()), devices="reference", isolation="process") as compiled:
        holds(compiled(IDS))
        holds(compiled.execute_fenced(IDS).result(10))
        with compiled.burst() as burst:
            holds(burst(IDS, out=rooms()))


def test_a_scalar_alone_goes_through_the_fences_of_a_driver():
    w = Writer()
    x, y, z = w.tensor([]), w.tensor([]), w.tensor([])
    w.operator("ABS", [x], [y], "Abs")
    w.operator("ADD", [x, y], [z], "Add")
    w.ends([x], [y, z])
    pool = nnhal.Memory.allocate(8)
    room = pool.view(0, 4, np.float32, ())
    with nnhal.compile(load(w.bytes()), devices="reference", isolation="process") as compiled:
        fenced = compiled.execute_fenced(np.array(-3, "f4"), out=[room, None])
        assert fenced.way == "each partition behind its fence"
        results = fenced.result(10)
        assert [(r.shape, float(r)) for r in results] == [((), 3), ((), 0)] and float(room) == 3


def test_driver_memory_has_the_models_own_types(compiled):
    memory = nnhal.allocate([(compiled, "input", 0)])
    memory.write(IDS.astype(np.int32))
    holds(compiled(memory))


def test_a_stream_has_them_too():
    w = Writer()
    x, total, y = w.tensor([], "i8"), w.tensor([2]), w.tensor([])
    handle = w.variable()
    w.operator("ADD", [w.read(handle, [2]), w.tensor([2], "f4", [1, 1])], [total], "Add")
    w.assign(handle, total)
    w.operator("GATHER", [total, x], [y], "Gather")
    stream = nnhal.compile(load(w.file([x], [y])), devices="reference").stream()
    results = [stream(np.array(1)) for _ in range(3)]
    assert [(r.shape, float(r)) for r in results] == [((), 1), ((), 2), ((), 3)]


@pytest.mark.parametrize("way", ["call", "submit", "burst", "bind", "fenced"])
def test_a_number_that_32_bits_do_not_hold_is_an_error_of_the_caller(compiled, way):
    far = np.array([0, 1 << 40, 1], np.int64)
    ways = {
        "call": compiled,
        "submit": lambda x: compiled.submit(x).result(),
        "burst": compiled.burst(),
        "bind": lambda x: compiled.bind(x)(),
        "fenced": lambda x: compiled.execute_fenced(x).result(10),
    }
    message = r"input 0 \(t0\): element \[1\] is 1099511627776, must be an integer from -2147483648 to 2147483647"
    with pytest.raises(nnhal.InvalidArgument, match=message):
        ways[way](far)


def test_another_shape_or_type_than_the_files_is_refused(compiled):
    with pytest.raises(nnhal.InvalidArgument, match=r"is int32, must be int64"):
        compiled(IDS.astype(np.int32))
    with pytest.raises(nnhal.InvalidArgument, match=r"out 0 .* has shape \[1\], must be \[\]"):
        compiled(IDS, out=[np.zeros(1, "f4"), None])


def test_booleans_and_scalars_go_in_and_out():
    content = one_operator("LOGICAL_AND", [tensor([], "b1"), tensor([], "b1")], [tensor([], "b1")])
    result = nnhal.compile(load(content), devices="reference")(True, np.array(False))
    assert (result.shape, result.dtype, bool(result)) == ((), np.bool_, False)


# ------------------------------------------------------------------------------------- 64-bit integers that are small


def l(*numbers: int, constant: bool = False) -> X:  # noqa: E743
    return X(np.array(numbers, np.int64), "i8", constant=constant)


@pytest.mark.parametrize(
    "case",
    [
        ("PACK", [l(1, 2), l(3, 4)], [out(2, 2, kind="i8")], "Pack", {"axis": 0, "valuesCount": 2}),
        ("MAXIMUM", [l(5, -9), l(2, 4)], [out(2, kind="i8")]),
        ("LESS", [l(5, -9), l(2, 4)], [out(2, kind="b1")], "Less"),
        ("SELECT_V2", [X(np.array([True, False]), "b1"), l(1, 2), l(3, 4)], [out(2, kind="i8")], "SelectV2"),
        ("CAST", [X(np.array([3, -4], np.int32), "i4")], [out(2, kind="i8")], "Cast"),
        ("CAST", [l(3, -4)], [out(2)], "Cast"),
        ("GATHER", [l(7, 8, 9), l(2, 0)], [out(2, kind="i8")], "Gather", {"axis": 0}),
        ("RESHAPE", [l(1, 2, 3, 4), c([2, 2])], [out(2, 2, kind="i8")]),
    ],
    ids=lambda case: case[0],
)
def test_operators_that_make_no_greater_integers_are_taken_as_they_are(case):
    check(case)


def test_a_sum_of_integers_that_are_known_to_be_small_is_taken():
    w = Writer()
    x, axis, place = w.tensor([2, 3]), w.tensor([], "i4", 1), w.tensor([2], "i8")
    hundred, y = w.tensor([1], "i8", [100]), w.tensor([2], "i8")
    w.operator("ARG_MAX", [x, axis], [place], "ArgMax", outputType=schema.TensorType.INT64)
    w.operator("MUL", [place, hundred], [y], "Mul")
    w.ends([x], [y])
    data = np.array([[1, 3, 2], [3, 2, 9]], "f4")
    result = nnhal.compile(load(w.bytes()), devices="reference")(data)
    assert result.dtype == np.int64 and result.tolist() == litert(w.bytes(), data)[0].tolist() == [100, 200]


@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "NEG"])
def test_a_sum_that_may_need_more_than_32_bits_is_refused(name):
    w = Writer()
    x, y, z = w.tensor([4], "i4"), w.tensor([4], "i8"), w.tensor([4], "i8")
    w.operator("CAST", [x], [y], "Cast")
    w.operator(name, [y] if name == "NEG" else [y, y], [z], name.title())
    refused(w.file([x], [z]), f"{name} #1: is of INT64 and may need more than the 32 bits")


def test_what_only_follows_from_a_refused_sum_is_not_listed():
    w = Writer()
    x, long, two = w.tensor([1], "i4"), w.tensor([1], "i8"), w.tensor([1], "i8", [2])
    y, z = w.tensor([1], "i8"), w.tensor([1], "i8")
    w.operator("CAST", [x], [long], "Cast")
    w.operator("NEG", [long], [y])
    w.operator("MUL", [y, two], [z], "Mul")
    with pytest.raises(nnhal.UnsupportedModel) as caught:
        load(w.file([x], [z]))
    assert "NEG #1" in str(caught.value) and "MUL" not in str(caught.value)


def test_what_a_subgraph_gives_may_be_anything_that_32_bits_hold():
    w = Writer()
    c, y, two = w.tensor([1], "b1"), w.tensor([1], "i8"), w.tensor([1], "i8", [2])
    small, z = w.tensor([1], "i8", [1]), w.tensor([1], "i8")
    w.operator("IF", [c, small], [y], "If", thenSubgraphIndex=1, elseSubgraphIndex=1)
    w.operator("MUL", [y, two], [z], "Mul")
    w.ends([c], [z])
    w.subgraph()
    w.only("MAXIMUM", [tensor([1], "i8"), tensor([1], "i8", [(1 << 31) - 1])], [tensor([1], "i8")])
    refused(w.bytes(), "NNAPI: MUL #1: is of INT64 and may need more than the 32")


def test_a_constant_of_64_bits_that_32_do_not_hold_is_refused():
    content = one_operator("MAXIMUM", [tensor([1], "i8"), tensor([1], "i8", [1 << 40])], [tensor([1], "i8")])
    refused(content, "MAXIMUM #0: input 1")


# ------------------------------------------------------------------------------------------- slices that take one element


@pytest.mark.parametrize("begin", [-3, -1, 0, 2])
@pytest.mark.parametrize("end", [-5, -1, 0, 1, 7])
@pytest.mark.parametrize("constant", [True, False])
def test_a_dimension_that_shrinks_gives_one_element_whatever_end_says(begin, end, constant):
    rows = [X(np.array([n, m], np.int32), "i4", constant=constant) for n, m in ((begin, 1), (end, 3), (1, 1))]
    check(("STRIDED_SLICE", [f(3, 4), *rows], [out(2)], "StridedSlice", {"shrinkAxisMask": 1}))
