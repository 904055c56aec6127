"""What an application gives and gets: which arrays are taken as they are, which are refused and by what name."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType
from nnhal.base.extensions import register_extension
from nnhal.hal.request import Control, Request
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import EdgeForm, State
from nnhal.model.validate import optional_inputs
from nnhal.runtime.arguments import ModelInterface, Spec, accept, make_control, require_no_overlap
from tests.runtime.graphs import FLOATS, SHAPE, counter, sums, svdf
from tests.runtime.test_execution import Own, relued, two_outputs

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
MS, S = 1_000_000, 1_000_000_000


@pytest.fixture(scope="module")
def compiled() -> nnhal.Compiled:
    return nnhal.compile(sums(), devices="reference")


@pytest.fixture(scope="module")
def two() -> nnhal.Compiled:
    return nnhal.compile(two_outputs(), devices="reference")


# ------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("given", "taken"),
    [(None, 2 * S), (1e-9, 1), (0.25, 250 * MS), (2, 2 * S), (15, 15 * S), (np.float32(0.5), S // 2)],
)
def test_a_loop_may_take_two_seconds_by_default_and_fifteen_at_most(given, taken):
    assert make_control(None, given, False) == Control(None, taken, False, None)


@pytest.mark.parametrize("given", [0, 1e-10, 15.000001, 16, float("inf")])
def test_no_loop_may_take_nothing_or_more_than_fifteen_seconds(given):
    with pytest.raises(nnhal.InvalidRequest, match=r"loop_timeout is .* s, must be above 0 and at most 15 s"):
        make_control(None, given, False)


def test_a_deadline_is_a_point_made_once():
    before = time.monotonic_ns()
    control = make_control(1.5, None, True)
    after = time.monotonic_ns()
    assert control.measure and control.deadline is not None
    assert before + 1500 * MS <= control.deadline <= after + 1500 * MS
    assert control.bounded and not make_control(None, None, True).bounded


# ------------------------------------------------------------------------------------------------------------- inputs


class Strict(Own):
    """Adds, and looks at what it is given."""

    def __init__(self) -> None:
        def run(request: Request, control: Control) -> None:
            for array in request.inputs:
                assert type(array) is np.ndarray and array.flags.c_contiguous and array.dtype == np.float32
            request.write(0, request.inputs[0] + request.inputs[1])  # type: ignore[operator]

        super().__init__(run)


GIVEN = {
    "an array": X,
    "a list": [0, 1, 2, 3],
    "every other of eight": np.repeat(X, 2)[::2],
    "a column": np.stack([X, X], axis=1)[:, 0],
    "read-only": np.frombuffer(X.tobytes(), np.float32),
    "a class of its own": X.view(type("Array", (np.ndarray,), {})),
    "a memory": nnhal.Memory.from_array(X),
    "a mask that masks nothing": np.ma.masked_array(X, [False] * 4),
}


@pytest.mark.parametrize("given", GIVEN)
def test_a_driver_gets_plain_contiguous_arrays_whatever_stands_for_them(given):
    compiled = nnhal.compile(sums(), devices=[Strict()])
    assert compiled(GIVEN[given], B).tolist() == compiled(X, B).tolist() == [1, 2, 3, 4]
    assert compiled(B, GIVEN[given], out=np.empty(4, np.float32)).tolist() == [1, 2, 3, 4]


REFUSED = {
    "another type": (X.astype("f8"), "is float64, must be float32"),
    "another byte order": (X.astype(">f4"), "is >f4, must be float32"),
    "another shape": (X[:3], r"has shape \[3\], must be \[4\]"),
    "another rank": (X.reshape(2, 2), r"has shape \[2, 2\], must be \[4\]"),
    "a number": (1.0, r"has shape \[\], must be \[4\]"),
    "none": (None, r"is None, must be given"),
}


@pytest.mark.parametrize("given", REFUSED)
@pytest.mark.parametrize("place", [0, 1])
def test_an_input_that_does_not_fit_is_refused_by_place_and_name(given, place, compiled):
    value, rule = REFUSED[given]
    arguments: list[Any] = [X, B]
    arguments[place] = value
    with pytest.raises(nnhal.InvalidRequest, match=rf"^input {place} \({'xb'[place]}\) {rule}"):
        compiled(*arguments)


def test_a_dimension_that_is_open_takes_any_size_but_no_other_rank():
    compiled = nnhal.compile(relued(None, 2), devices="reference")
    assert [compiled(np.ones((n, 2), np.float32)).shape for n in (1, 5)] == [(1, 2), (5, 2)]
    for shape in ((2,), (1, 3), (1, 2, 1)):
        with pytest.raises(nnhal.InvalidRequest, match=r"must be \[\?, 2\]"):
            compiled(np.ones(shape, np.float32))


def test_an_open_rank_takes_any_tensor_but_no_number():
    b = ModelBuilder("open")
    x, y = (b.operand(FLOATS, (), name=n) for n in "xy")
    b.operation("RELU", [x], [y])
    compiled = nnhal.compile(b.finish([x], [y]), devices="reference")
    assert compiled(-X).tolist() == [0] * 4 and compiled(np.ones((2, 3), np.float32)).shape == (2, 3)
    for number in (1.0, np.float32(1), np.array(1, np.float32)):
        with pytest.raises(nnhal.InvalidRequest, match=r"input 0 \(x\) is a number, must be a tensor of one dimension"):
            compiled(number)
    with pytest.raises(nnhal.InvalidRequest, match="must be a view of it: its shape is not known"):
        compiled(nnhal.Memory.from_array(X))


def test_a_memory_that_stands_for_an_input_has_just_its_size(compiled):
    for size in (15, 17):
        with pytest.raises(nnhal.InvalidRequest, match=rf"input 1 \(b\) is a memory of {size} bytes, must have 16"):
            compiled(X, nnhal.Memory.allocate(size))


def test_a_memory_of_one_byte_stands_for_no_elements():
    spec = Spec("x", FLOATS, (2, 0), np.dtype(np.float32), 0.0, 0)
    assert accept(nnhal.Memory.allocate(1), spec, "input 0").shape == (2, 0)
    with pytest.raises(nnhal.InvalidRequest, match=r"^input 0 \(x\) is a memory of 2 bytes, must have 0, or be a view"):
        accept(nnhal.Memory.allocate(2), spec, "input 0")


def test_as_many_inputs_as_there_are(compiled):
    for given in ((), (X,), (X, B, B)):
        with pytest.raises(
            nnhal.InvalidRequest,
            match=rf"^inputs: got {len(given)}, must be 2: x: TENSOR_FLOAT32\[4\], b: TENSOR_FLOAT32\[4\]$",
        ):
            compiled(*given)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, "no 'x', no 'b', must be exactly 'x', 'b'"),
        ({"x": X}, "no 'b', must be exactly 'x', 'b'"),
        ({"x": X, "b": B, "c": B}, "'c', must be exactly 'x', 'b'"),
        ({0: X, "b": B}, "0, no 'x', must be exactly 'x', 'b'"),
    ],
)
def test_named_inputs_are_just_those_there_are(given, wrong, compiled):
    with pytest.raises(nnhal.InvalidRequest, match=rf"^inputs: {wrong}$"):
        compiled(given)


def test_inputs_of_one_name_are_given_in_order():
    b = nnhal.Builder()
    x, y = b.input((4,), name="x"), b.input((4,), name="x")
    compiled = nnhal.compile(b.finish([x, y], [b.sub(x, y)]), devices="reference")
    assert compiled(X, B).tolist() == [-1, 0, 1, 2]
    with pytest.raises(nnhal.InvalidRequest, match=r"^inputs: names are not unique, must be exactly 'x', 'x'$"):
        compiled({"x": X})


def test_states_are_neither_inputs_nor_outputs_of_a_call():
    compiled = nnhal.compile(counter(), devices="reference")
    zero = np.zeros(SHAPE, np.float32)
    assert compiled(B).tolist() == [2] * 4 and (compiled.submit(B).result(20) == 2).all()
    with pytest.raises(nnhal.InvalidRequest, match="got 2, must be 1"):
        compiled(B, zero)
    with pytest.raises(nnhal.InvalidRequest, match="out: got 2 arrays, must be 1"):
        compiled(B, out=[np.empty(4, np.float32), zero])
    out = np.empty(4, np.float32)
    assert compiled(B, out=out) is out and (out == 2).all()
    assert list(compiled({"x": B})) == ["y"]


def test_a_state_is_read_and_written_at_places_of_its_own():
    b = ModelBuilder("running sum")
    total, x, following, y = (b.operand(FLOATS, SHAPE, name=n) for n in ("total", "x", "total_out", "y"))
    none = b.constant(OperandType.INT32, 0)
    b.operation("ADD", [x, total, none], [following])
    b.operation("MUL", [following, x, none], [y])
    model = b.finish([total, x], [y, following], states=[State(0, 1, np.full(SHAPE, 10, np.float32))])
    compiled = nnhal.compile(model, devices="reference")
    assert [s.name for s in (*compiled.inputs, *compiled.outputs)] == ["x", "y"]
    out = np.empty(4, np.float32)
    assert compiled(2 * B).tolist() == compiled(2 * B, out=out).tolist() == out.tolist() == [24] * 4
    stream = compiled.stream()
    assert [stream(2 * B)[0] for _ in range(3)] == [24, 28, 32]


# ----------------------------------------------------------------------------------------------- what may be left out


def test_what_one_operation_needs_may_not_be_left_out_though_another_does_without():
    assert optional_inputs(svdf()) == {3} and optional_inputs(svdf(also_added=True)) == frozenset()


def test_what_may_be_left_out_is_told_as_optional():
    with pytest.raises(
        nnhal.InvalidRequest, match=r"^inputs: no 'x', .*must be exactly 'x', .*'bias' \(optional\), 'state'$"
    ):
        nnhal.compile(svdf(), devices="reference")({})


@pytest.mark.parametrize(("reads", "optional"), [("bias", frozenset()), ("x", {3})])
def test_an_operation_of_an_extension_needs_all_of_its_inputs(reads, optional):
    extension = register_extension("com.example.needs", [], ["OP"])
    b = ModelBuilder("extended")
    shapes = {"x": (1, 2), "features": (2, 2), "times": (2, 1), "bias": (2,), "state": (1, 2), "state_out": (1, 2)}
    at = {name: b.operand(FLOATS, shape, name=name) for name, shape in (shapes | {"y": (1, 2), "z": (1, 2)}).items()}
    given = [at[name] for name in ("x", "features", "times", "bias", "state")]
    b.operation(extension.operation("OP"), [at[reads]], [at["z"]])
    one, none = b.constant(OperandType.INT32, 1), b.constant(OperandType.INT32, 0)
    b.operation("SVDF", [*given, one, none], [at["state_out"], at["y"]])
    model = b.finish(given, [at["y"], at["z"]], extensions=[(extension.name, extension.prefix)])
    assert optional_inputs(model) == optional


# ------------------------------------------------------------------------------------------------------------ outputs


def locked() -> np.ndarray:
    array = np.empty(4, np.float32)
    array.setflags(write=False)
    return array


NO_ROOM = {
    "read-only": (locked, "must be a writable contiguous numpy array"),
    "gaps": (lambda: np.empty(8, np.float32)[::2], "must be a writable contiguous numpy array"),
    "a list of numbers": (lambda: [0.0] * 4, "must be a writable contiguous numpy array"),
    "masked": (lambda: np.ma.masked_array(np.empty(4, np.float32)), "is a masked array, must be one without a mask"),
    "another type": (lambda: np.empty(4), "is float64, must be float32, or uint8 for a buffer of bytes"),
    "of as many bytes": (lambda: np.empty(4, np.int32), "is int32, must be float32"),
    "another shape": (lambda: np.empty(5, np.float32), r"has shape \[5\], must be \[4\]"),
    "another rank": (lambda: np.empty((2, 2), np.float32), r"has shape \[2, 2\], must be \[4\]"),
    "a memory of another size": (lambda: nnhal.Memory.allocate(20), "is a memory of 20 bytes, must have 16"),
}


@pytest.mark.parametrize("room", NO_ROOM)
def test_room_that_cannot_hold_an_output_is_refused_by_place_and_name(room, compiled, two):
    make, rule = NO_ROOM[room]
    with pytest.raises(nnhal.InvalidRequest, match=rf"^out 0 \(y\) {rule}"):
        compiled(X, B, out=[make()])
    with pytest.raises(nnhal.InvalidRequest, match=rf"^out 1 \(squared\) {rule}"):
        two(X, out=[None, make()])
    if isinstance(array := make(), np.ndarray):
        with pytest.raises(nnhal.InvalidRequest, match=rf"^out 0 \(y\) {rule}"):
            compiled(X, B, out=array)


def test_room_of_gaps_in_memory_of_its_own_is_refused_too():
    compiled = nnhal.compile(relued(2, 3), devices="reference")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with pytest.raises(nnhal.InvalidRequest, match="must be a writable contiguous numpy array"):
        compiled(x, out=np.empty((2, 3), np.float32, order="F"))


ROOM = {
    "an array": lambda: np.empty(4, np.float32),
    "a view": lambda: np.empty(8, np.float32)[4:],
    "bytes": lambda: np.empty(16, np.uint8),
    "more bytes": lambda: np.empty(64, np.uint8),
    "a memory": lambda: nnhal.Memory.allocate(16),
}


@pytest.mark.parametrize("room", ROOM)
@pytest.mark.parametrize("listed", [list, tuple, None])
def test_a_result_lies_in_its_room(room, listed, compiled):
    out = ROOM[room]()
    result = compiled(X, B, out=out if listed is None else listed([out]))
    assert result.dtype == np.float32 and result.tolist() == [1, 2, 3, 4]
    over = out.view(0, 16, np.float32) if isinstance(out, nnhal.Memory) else out
    assert np.shares_memory(result, over) and (result is out) == (room in ("an array", "a view"))


def test_each_output_has_room_of_its_own_or_gets_some(two):
    own = np.empty(4, np.float32)
    for place in (0, 1):
        results = two(X, out=[own if n == place else None for n in range(2)])
        assert results[place] is own and [r.tolist() for r in results] == [[0, 2, 4, 6], [0, 2, 8, 18]]
    assert [r.tolist() for r in two(X, out=None)] == [[0, 2, 4, 6], [0, 2, 8, 18]]
    assert [r.tolist() for r in two(X, out=[None, None])] == [[0, 2, 4, 6], [0, 2, 8, 18]]


def test_as_many_outputs_as_there_are(compiled, two):
    room = np.empty(4, np.float32)
    for given in ([], [room, room.copy()], ()):
        with pytest.raises(nnhal.InvalidRequest, match=rf"^out: got {len(given)} arrays, must be 1$"):
            compiled(X, B, out=given)
    for one in (room, [room]):
        with pytest.raises(nnhal.InvalidRequest, match=r"^out: got 1 arrays, must be 2$"):
            two(X, out=one)
    for nonsense in (5, "room", {0: room}):
        with pytest.raises(
            nnhal.InvalidRequest, match=r"^out is .*, must be an array, an allocation, or a list of them$"
        ):
            compiled(X, B, out=nonsense)


def test_named_inputs_give_named_outputs_in_their_room(two):
    room = np.empty(4, np.float32)
    results = two({"x": X}, out=[None, room])
    assert list(results) == ["doubled", "squared"] and results["squared"] is room and (room == 2 * X * X).all()


# ------------------------------------------------------------------------------------------------------------ overlap


def spans(*between: tuple[int, int] | None) -> list[Any]:
    """Arrays over one memory, from byte to byte."""
    return [None if each is None else MEMORY[slice(*each)] for each in between]


MEMORY = np.zeros(100, np.uint8)


@pytest.mark.parametrize(
    ("inputs", "outputs", "named"),
    [
        ([(0, 4)], [(4, 8)], None),  # side by side
        ([(4, 8)], [(0, 4)], None),
        ([], [(0, 4), (4, 8), (8, 9)], None),
        ([(0, 8), (4, 12), (4, 12)], [(12, 13)], None),  # inputs may lie on one another
        ([None], [None, None], None),
        ([None, (0, 4)], [None, (4, 6)], None),
        ([(0, 8)], [(3, 3), (8, 9)], None),  # nothing lies in no bytes
        ([(3, 3)], [(0, 8)], None),
        ([(0, 5)], [(4, 8)], 0),
        ([(4, 8)], [(0, 5)], 0),
        ([(0, 8)], [(0, 8)], 0),
        ([(0, 9)], [(2, 4)], 0),
        ([(2, 4)], [(0, 9)], 0),
        ([], [(0, 5), (4, 8)], 1),
        ([], [(4, 8), (0, 5)], 1),
        ([], [None, (0, 5), (4, 8)], 2),
        ([(50, 60)], [(0, 4), (55, 56)], 1),
        ([(50, 60)], [(55, 56), (0, 4)], 0),
        ([(0, 20), (2, 4)], [(10, 12)], 0),  # the furthest end counts, not the last
        ([(10, 12)], [(0, 20), (30, 40)], 0),
        ([(0, 4), (10, 12)], [(0, 0), (4, 8), (11, 14)], 2),
        ([(10, 12), (15, 16)], [(0, 14)], 0),
        ([(2, 3), (8, 9)], [(4, 10), (0, 1)], 0),
        ([], [(0, 20), (30, 40), (5, 6)], 2),
    ],
)
def test_no_output_lies_on_another_or_on_an_input(inputs, outputs, named):
    given, rooms = spans(*inputs), spans(*outputs)
    if named is None:
        require_no_overlap(given, rooms)
        return
    with pytest.raises(
        nnhal.InvalidRequest, match=rf"^output {named} overlaps another output or an input, must lie apart from them$"
    ):
        require_no_overlap(given, rooms)


def test_one_array_is_not_two_arguments(compiled, two):
    out, first, second = (np.empty(4, np.float32) for _ in range(3))
    cases: Sequence[tuple[Any, Any]] = (
        ((out, B), out),
        ((X, out), out),
        ((out[...], B), out),
        ((X, out[...]), out),
        ((out, B), out[...]),
        ((X, out), [out]),
        ((out[...], out[...]), out),
        ((X, out[1:].copy()[:0], B)[::2], X),
    )
    for inputs, room in cases:
        with pytest.raises(nnhal.InvalidRequest, match=r"^output 0 overlaps"):
            compiled(*inputs, out=room)
    with pytest.raises(nnhal.InvalidRequest, match=r"^output 1 overlaps"):
        two(X, out=[first, first])
    with pytest.raises(nnhal.InvalidRequest, match=r"^output 1 overlaps"):
        two(first, out=[second, first])
    with pytest.raises(nnhal.InvalidRequest, match=r"^output 0 overlaps"):
        two(first, out=[first, second])
    assert compiled(B, B, out=out).tolist() == [2] * 4  # one array may be two inputs


# -------------------------------------------------------------------------------------- other forms than the operand's


def formed(form: EdgeForm, both: bool = True, kind: int = OperandType.TENSOR_INT32) -> nnhal.Compiled:
    """y = x + x and z = y · y of 32-bit numbers, of which the application has x, or x and y, otherwise."""
    b = ModelBuilder("formed")
    x, y, z = (b.operand(kind, (1,) if form.scalar else (3,), name=n) for n in "xyz")
    none = b.constant(OperandType.INT32, 0)
    b.operation("ADD", [x, x, none], [y])
    b.operation("MUL", [y, y, none], [z])
    return nnhal.compile(b.finish([x], [y, z], edge=dict.fromkeys((x, y) if both else (x,), form)), devices="reference")


WIDE, SCALAR, BOTH = EdgeForm(wide=True), EdgeForm(scalar=True), EdgeForm(scalar=True, wide=True)
SIXTEEN = EdgeForm(scale=0.5)  # 16-bit integers that stand for floats
N = np.array([1, -2, 3])
WAYS: dict[str, Callable[..., Any]] = {
    "call": lambda compiled, x, out: compiled(x, out=out),
    "bind": lambda compiled, x, out: compiled.bind(x, out=out)(),
    "submit": lambda compiled, x, out: compiled.submit(x, out=out).result(20),
    "fenced": lambda compiled, x, out: compiled.execute_fenced(x, out=out).result(20),
}


def test_the_application_sees_the_form_that_it_has():
    compiled = formed(WIDE)
    assert [str(s) for s in (*compiled.inputs, *compiled.outputs)] == [
        "x: TENSOR_INT64[3]", "y: TENSOR_INT64[3]", "z: TENSOR_INT32[3]",
    ]  # fmt: skip
    assert [s.dtype for s in (*compiled.inputs, *compiled.outputs)] == [np.int64, np.int64, np.int32]
    assert [s.fixed for s in formed(BOTH).inputs] == [()] and formed(SCALAR).outputs[1].fixed == (1,)


def test_wide_integers_go_in_and_come_out():
    compiled = formed(WIDE)
    for y, z in (compiled(N), compiled.submit(N).result(20), compiled.bind(N)(), compiled.execute_fenced(N).result(20)):
        assert (y.dtype, z.dtype) == (np.int64, np.int32) and y.tolist() == [2, -4, 6] and z.tolist() == [4, 16, 36]
    named = compiled({"x": N})
    assert named["y"].dtype == np.int64 and named["y"].tolist() == [2, -4, 6]


def test_an_operand_that_only_the_input_has_otherwise_comes_out_as_it_is():
    y, z = formed(WIDE, both=False)(N)
    assert (y.dtype, z.dtype) == (np.int32, np.int32) and y.tolist() == [2, -4, 6]


def test_the_operands_own_form_is_refused():
    with pytest.raises(nnhal.InvalidRequest, match=r"input 0 \(x\) is int32, must be int64"):
        formed(WIDE)(N.astype(np.int32))
    with pytest.raises(nnhal.InvalidRequest, match=r"out 0 \(y\) is int32, must be int64, or uint8"):
        formed(WIDE)(N, out=[np.empty(3, np.int32), None])
    with pytest.raises(nnhal.InvalidRequest, match=r"has shape \[1\], must be \[\]"):
        formed(SCALAR)(np.array([5], np.int32))


@pytest.mark.parametrize("wide", [np.array([1, 2**31, 3]), np.array([-(2**31) - 1, 0, 0])])
def test_an_integer_that_does_not_fit_is_refused_and_the_largest_fits(wide):
    with pytest.raises(nnhal.InvalidRequest, match=r"input 0 \(x\)"):
        formed(WIDE)(wide)
    assert formed(WIDE)(np.array([2**31 - 1, -(2**31), 0]))[0].shape == (3,)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "room", [lambda: np.zeros(3, np.int64), lambda: np.zeros(24, np.uint8), lambda: np.zeros(32, np.uint8)]
)
def test_room_of_the_applications_form_is_written(way, room):
    out, other = room(), np.zeros(3, np.int32)
    y, z = WAYS[way](formed(WIDE), N, [out, other])
    assert y.dtype == np.int64 and np.shares_memory(y, out) and y.tolist() == [2, -4, 6]
    assert out.view(np.int64)[:3].tolist() == [2, -4, 6] and z is other and other.tolist() == [4, 16, 36]


def test_bound_inputs_of_another_form_are_read_at_each_run():
    x, out = N.copy(), np.zeros(3, np.int64)
    run = formed(WIDE).bind(x, out=[out, None])
    for value in (1, 7):
        x[:] = value
        assert run()[0].tolist() == out.tolist() == [2 * value] * 3


@pytest.mark.parametrize(("form", "type"), [(SCALAR, np.int32), (BOTH, np.int64)])
def test_numbers_go_in_and_come_out_as_such(form, type):
    compiled, room = formed(form), np.zeros((), type)
    for given in (7, np.array(7, type), type(7)):
        y, z = compiled(given)
        assert (y.shape, y.dtype, int(y)) == ((), type, 14) and (z.shape, int(z[0])) == ((1,), 196)
    y, _ = compiled(np.array(7, type), out=[room, None])
    assert np.shares_memory(y, room) and (y.shape, int(room)) == ((), 14)


@pytest.mark.parametrize("room", [lambda: np.zeros(3, np.int16), lambda: np.zeros(6, np.uint8)])
@pytest.mark.parametrize("way", WAYS)
def test_integers_of_16_bits_stand_for_real_values(way, room):
    compiled = formed(SIXTEEN, kind=FLOATS)
    assert [str(s) for s in (*compiled.inputs, *compiled.outputs)] == [
        "x: TENSOR_QUANT16_SYMM[3] scale 0.5 zero point 0",
        "y: TENSOR_QUANT16_SYMM[3] scale 0.5 zero point 0",
        "z: TENSOR_FLOAT32[3]",
    ]
    out, other = room(), np.zeros(3, np.float32)
    found, real = WAYS[way](compiled, np.array([1, -2, 20000], np.int16), [out, other])
    assert found.dtype == np.int16 and np.shares_memory(found, out) and found.tolist() == [2, -4, 32767]
    assert real.tolist() == [1, 4, 4e8]


def test_an_allocation_is_as_the_operand_is():
    compiled = formed(WIDE)
    given, taken = nnhal.allocate([(compiled, "input", 0)]), nnhal.allocate([(compiled, "output", 0)])
    given.write(N.astype(np.int32))
    y, z = compiled(given, out=[taken, None])
    assert y is taken and taken.read().tolist() == [2, -4, 6] and z.tolist() == [4, 16, 36]


# -------------------------------------------------------------------------------------------------------------- specs


def test_a_spec_tells_all_that_an_application_needs():
    b = ModelBuilder()
    x = b.operand(OperandType.TENSOR_QUANT8_ASYMM, (2, 0), 0.5, 128, name="x")
    y = b.operand(OperandType.TENSOR_QUANT8_ASYMM, (2, 0), 0.5, 128)
    b.operation("RELU", [x], [y])
    edge = ModelInterface(b.finish([x], [y]))
    (given,), (taken,) = edge.inputs, edge.outputs
    assert str(given) == "x: TENSOR_QUANT8_ASYMM[2, ?] scale 0.5 zero point 128"
    assert (given.scale, given.zero_point, given.dtype, given.shape, given.fixed) == (
        0.5,
        128,
        np.uint8,
        (2, None),
        None,
    )
    assert taken.name == f"operand {y}" and repr(given) == "<Spec: 'x' QUANT8_ASYMM[2,?]>"
    assert type(given.type) is OperandType
