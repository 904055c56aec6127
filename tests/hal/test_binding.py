"""Requests as places in memories: nothing outside the memories is ever looked at, and no output overlaps anything."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.codes import Activation, OperandType
from nnhal.base.errors import InvalidRequest
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.hal.binding import BoundRequest, bind_request, flat_bytes
from nnhal.hal.host import HostBuffer
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Signature, sufficient
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.model.validate import release_constants
from tests.hal.devices import device_of, prepare
from tests.models import make_model

Where = tuple[int, int, int, tuple[int, ...]]


def two(shape: tuple[int, ...] = (4,)) -> Model:
    """Two inputs and two outputs of float32."""
    return make_model(lambda b, x, y: [b.add(x, y), b.mul(x, y)], shape, shape)


KNOWN, OPEN, SCALARS = two(), two((0,)), two((1,))


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def inside(array: Array, memory: Memory) -> bool:
    start = address(memory.bytes())
    return start <= address(array) and address(array) + array.nbytes <= start + memory.size


SIZES = (64, 48, 1)
NUMBER = (
    st.integers(-20, 80)
    | st.sampled_from([2**31, 2**32 - 1, 2**63, 2**64 - 1])
    | st.sampled_from([0, 4, 8, 16, 32, 48])
)
ARGUMENT = st.none() | st.tuples(
    st.integers(-2, 4), NUMBER, NUMBER, st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 2**32 - 1]), max_size=3).map(tuple)
)
PLAUSIBLE = st.tuples(
    st.integers(0, 1), st.integers(0, 12).map(lambda n: 4 * n), st.just(16), st.sampled_from([(), (4,), (0,)])
)


def check_inside(bound: BoundRequest, inputs: Sequence[Any], outputs: Sequence[Any], pools: Sequence[Memory]) -> None:
    for arrays, given_ in ((bound.inputs, inputs), (bound.outputs, outputs)):
        for array, at in zip(arrays, given_, strict=True):
            if array is not None:
                assert inside(array, pools[at[0]]) and array.nbytes == at[2]
                assert array.size == 0 or address(array) == address(pools[at[0]].bytes()) + at[1]
    for array in bound.outputs:
        assert array is None or array.flags.writeable


@settings(max_examples=200)
@given(
    st.sampled_from([KNOWN, OPEN]),
    st.lists(ARGUMENT | PLAUSIBLE, max_size=3),
    st.lists(ARGUMENT | PLAUSIBLE, max_size=3),
)
def test_arguments_never_leave_their_memories(model: Model, inputs: list[Any], outputs: list[Any]) -> None:
    pools = [Memory.allocate(size) for size in SIZES]
    try:
        bound = bind_request(model, inputs, outputs, pools)
    except InvalidRequest:
        return
    assert len(inputs) == len(outputs) == 2
    check_inside(bound, inputs, outputs, pools)


def overlapping(inputs: Sequence[Where], outputs: Sequence[Where]) -> bool:
    """By counting, byte for byte: whether a byte of an output belongs to anything else."""
    read = {(pool, byte) for pool, offset, length, _ in inputs for byte in range(offset, offset + length)}
    written = [(pool, byte) for pool, offset, length, _ in outputs for byte in range(offset, offset + length)]
    return len(set(written)) < len(written) or bool(read & set(written))


PLACE = st.tuples(st.integers(0, 1), st.integers(0, 48))


@settings(max_examples=200)
@given(st.tuples(PLACE, PLACE), st.tuples(PLACE, PLACE))
def test_overlaps_are_found_as_counting_bytes_finds_them(
    read: Sequence[tuple[int, int]], written: Sequence[tuple[int, int]]
) -> None:
    pools = [Memory.allocate(64), Memory.allocate(64)]
    inputs = [(pool, offset, 16, (4,)) for pool, offset in read]
    outputs = [(pool, offset, 16, (4,)) for pool, offset in written]
    try:
        bound = bind_request(KNOWN, inputs, outputs, pools)
    except InvalidRequest as error:
        assert "overlaps another argument" in str(error) and overlapping(inputs, outputs)
    else:
        assert not overlapping(inputs, outputs)
        check_inside(bound, inputs, outputs, pools)


@settings(max_examples=200)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 8), st.integers(0, 8))
def test_overlaps_of_many_lengths_are_found(first: int, second: int, room: int, other: int) -> None:
    pools = [Memory.allocate(64)]
    inputs = [(0, 16, 8, (2,)), (0, 20, 8, (2,))]
    outputs = [(0, 4 * first, 4 * room, ()), (0, 4 * second, 4 * other, ())]
    if 4 * (first + room) > 64 or 4 * (second + other) > 64:
        return
    try:
        bind_request(OPEN, inputs, outputs, pools)
    except InvalidRequest:
        assert overlapping(inputs, outputs)
    else:
        assert not overlapping(inputs, outputs)


def test_inputs_may_overlap_each_other() -> None:
    pool = Memory.allocate(64)
    bind_request(KNOWN, [(0, 0, 16, ()), (0, 4, 16, ())], [(0, 32, 16, ()), (0, 48, 16, ())], [pool])


def test_an_output_over_a_constant_of_the_model_is_refused() -> None:
    b, weights, kind = ModelBuilder(), Memory.from_array(np.arange(64, dtype=np.float32)), OperandType.TENSOR_FLOAT32
    x, y = b.operand(kind, (64,)), b.operand(kind, (64,))
    constant = b.reference(kind, (64,), b.add_pool(weights), 0, 256)
    b.operation("ADD", [x, constant, b.constant(OperandType.INT32, Activation.NONE)], [y])
    model = b.finish([x], [y])
    pool = Memory.allocate(512)
    bind_request(model, [(0, 0, 256, ())], [(0, 256, 256, ())], [pool, weights])
    with pytest.raises(InvalidRequest, match="overlaps another argument or constant"):
        bind_request(model, [(0, 0, 256, ())], [(1, 0, 256, ())], [pool, weights])
    bind_request(model, [(1, 0, 256, ())], [(0, 0, 256, ())], [pool, weights])


def test_nothing_can_be_written_to_the_pool_that_a_builder_made() -> None:
    model = make_model(lambda b, x: b.add(x, np.arange(64, dtype=np.float32)), (64,))
    with pytest.raises(InvalidRequest, match="pool 0 is for reading only, must be writable"):
        bind_request(model, [(1, 0, 256, ())], [(0, 0, 256, ())], [*model.pools, Memory.allocate(256)])


GOOD: tuple[Where, Where] = ((0, 0, 16, ()), (0, 16, 16, ()))
ROOM_APART: tuple[Where, Where] = ((0, 48, 16, ()), (0, 64, 16, ()))
ROOM: tuple[Where, Where] = ((0, 32, 16, ()), (0, 48, 16, ()))
REFUSED: dict[str, tuple[list[Any], list[Any], str]] = {
    "too few inputs": ([GOOD[0]], [*ROOM], "request has 1 inputs, must have 2"),
    "too many outputs": ([*GOOD], [*ROOM, ROOM[0]], "request has 3 outputs, must have 2"),
    "an unknown pool": ([(2, 0, 16, ()), GOOD[1]], [*ROOM], "input 0: pool is 2, must be below 2"),
    "before the beginning": (
        [(0, -4, 16, ()), GOOD[1]],
        [*ROOM],
        "input 0: bytes -4 to 12 must lie inside the pool's 64",
    ),
    "a negative length": ([(0, 4, -4, ()), GOOD[1]], [*ROOM], "input 0: bytes 4 to 0 must lie inside the pool's 64"),
    "a negative output": (
        [*GOOD],
        [(0, -1, 16, ()), ROOM[1]],
        "output 0: bytes -1 to 15 must lie inside the pool's 64",
    ),
    "an input of the driver's": ([(-1, 0, 16, ()), GOOD[1]], [*ROOM], "input 0: pool is -1, must be below 2"),
    "past the end": ([(0, 52, 16, ()), GOOD[1]], [*ROOM], "input 0: bytes 52 to 68 must lie inside the pool's 64"),
    "a sum past 2**64": (
        [(0, 2**64 - 8, 16, ()), GOOD[1]],
        [*ROOM],
        "input 0: bytes 18446744073709551608 to 18446744073709551624 must lie inside the pool's 64",
    ),
    "a wrong length": ([(0, 0, 12, ()), GOOD[1]], [*ROOM], r"input 0 has 12 bytes, must be 16 for \[4\] of float32"),
    "wrong dimensions": ([(0, 0, 16, (5,)), GOOD[1]], [*ROOM], r"input 0 has dimensions \[5\], must be \[4\]"),
    "a wrong rank": ([(0, 0, 16, (2, 2)), GOOD[1]], [*ROOM], r"input 0 has dimensions \[2, 2\], must be \[4\]"),
    "an output without a value": ([*GOOD], [None, ROOM[1]], "output 0 has no value, must have memory"),
    "an output for reading": ([*GOOD], [(1, 0, 16, ()), ROOM[1]], "output 0: pool 1 is for reading only, must be writ"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_is_refused_by_its_name_and_rule(name: str) -> None:
    inputs, outputs, says = REFUSED[name]
    readonly = Memory.allocate(64)
    readonly.readonly = True
    with pytest.raises(InvalidRequest, match=says):
        bind_request(KNOWN, inputs, outputs, [Memory.allocate(64), readonly])


def test_an_input_of_unknown_shape_must_say_its_dimensions() -> None:
    pools = [Memory.allocate(64)]
    with pytest.raises(InvalidRequest, match=r"input 0 has dimensions .*, must be fully specified"):
        bind_request(OPEN, [*GOOD], [*ROOM], pools)
    bound = bind_request(OPEN, [(0, 0, 8, (2,)), (0, 8, 8, (2,))], [(0, 16, 8, (2,)), (0, 24, 8, ())], pools)
    assert [x.shape for x in (*bound.inputs, *bound.outputs) if x is not None] == [(2,), (2,), (2,), (8,)]


def test_an_input_of_zero_elements_is_taken() -> None:
    bound = bind_request(OPEN, [(0, 0, 0, (0,)), (0, 0, 0, (0,))], [(0, 0, 0, ()), (0, 0, 0, ())], [Memory.allocate(1)])
    assert [x.shape for x in bound.inputs if x is not None] == [(0,), (0,)]


def test_dimensions_whose_product_overflows_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="must be"):
        big: Where = (0, 0, 0, (2**32 - 1,))
        bind_request(OPEN, [big, big], [*ROOM], [Memory.allocate(64)])
    model = make_model(lambda b, x: b.relu(x), (0, 0, 0, 0))
    with pytest.raises(InvalidRequest, match="must be"):
        bind_request(model, [(0, 0, 0, (65536, 65536, 65536, 65536))], [(0, 0, 16, ())], [Memory.allocate(64)])


def test_room_that_is_too_small_or_too_large_is_room_in_bytes() -> None:
    bound = bind_request(KNOWN, [*GOOD], [(0, 32, 8, ()), (0, 40, 24, ())], [Memory.allocate(64)])
    assert [(x.dtype, x.size) for x in bound.outputs if x is not None] == [
        (np.dtype(np.uint8), 8),
        (np.dtype(np.uint8), 24),
    ]


def test_inputs_at_odd_addresses_reach_the_driver_aligned_and_anew_each_time() -> None:
    pool = Memory.allocate(64)
    bound = bind_request(KNOWN, [(0, 1, 16, ()), (0, 17, 16, ())], [(0, 33, 15, ()), (0, 48, 16, ())], [pool])
    assert bound.unaligned
    for n in range(3):
        pool.bytes()[1:17] = np.full(4, n, np.float32).view(np.uint8)
        request = bound.request()
        assert all(x is not None and x.flags.aligned for x in request.inputs)
        assert request.inputs[0] is not None and request.inputs[0].tolist() == [n] * 4


@pytest.mark.parametrize(("first", "second"), [(0, 16), (1, 20), (0, 17)])
def test_inputs_are_copied_where_they_lie_at_odd_addresses_and_there_alone(first: int, second: int) -> None:
    bound = bind_request(KNOWN, [(0, first, 16, ()), (0, second, 16, ())], [*ROOM_APART], [Memory.allocate(96)])
    odd = [first % 4 != 0, second % 4 != 0]
    assert bound.unaligned == any(odd)
    for given_ in (bound.given(), bound.request().given):
        for array, lies, is_odd in zip(given_, bound.inputs, odd, strict=True):
            assert array is not None and lies is not None and array.flags.aligned
            assert np.shares_memory(array, lies) == (not is_odd)


def test_an_input_without_a_value_is_none_beside_odd_ones_too() -> None:
    for offset in (0, 1):
        bound = bind_request(KNOWN, [(0, offset, 16, ()), None], [*ROOM_APART], [Memory.allocate(96)])
        assert bound.unaligned == bool(offset) and bound.request().given[1] is None


def test_what_is_told_of_outputs_is_what_the_driver_wrote() -> None:
    bound = bind_request(
        OPEN, [(0, 0, 8, (2,)), (0, 8, 8, (2,))], [(0, 16, 8, (2,)), (0, 24, 4, ())], [Memory.allocate(64)]
    )
    for _ in range(2):
        request = bound.request()
        request.write(0, np.ones(2, np.float32))
        request.write(1, np.ones(2, np.float32))
        assert (request.shapes, sufficient(request)) == ([(2,), (2,)], [True, False])


def test_bytes_of_an_array_are_row_major() -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert flat_bytes(array.T).tolist() == [0, 3, 1, 4, 2, 5]
    assert flat_bytes(np.ones(1, np.float32)).tolist() == [0, 0, 128, 63]


def test_an_output_that_the_driver_provides_has_no_memory_of_the_request() -> None:
    bound = bind_request(KNOWN, [*GOOD], [(-1, 0, 0, ()), ROOM[1]], [Memory.allocate(64)])
    assert bound.outputs[0] is None and bound.outputs[1] is not None
    request = bound.request()
    request.write(0, np.ones(4, np.float32))
    assert request.results[0].tolist() == [1] * 4 and request.room(0) is None


def test_arguments_in_driver_memory_are_buffers_by_their_places() -> None:
    prepared = prepare(device_of("reference"), KNOWN)
    read, written = (HostBuffer(BufferDesc(), [BufferRole(prepared, 1, output)]) for output in (False, True))
    pools = [Memory.allocate(64), read, written]
    bound = bind_request(KNOWN, [GOOD[0], (1, 0, 0, ())], [ROOM[0], (2, 0, 0, ())], pools)
    assert (bound.input_buffers, bound.output_buffers) == ({1: read}, {1: written})
    assert bound.inputs[1] is None is bound.outputs[1] and not bound.unaligned
    assert (bound.request().input_buffers, bound.request().output_buffers) == ({1: read}, {1: written})


def test_room_for_no_element_has_the_dimensions_that_it_is_said_to_have() -> None:
    pools, none = [Memory.allocate(64)], (0, 0, 0, (0,))
    bound = bind_request(OPEN, [none, none], [none, (0, 0, 0, ())], pools)
    first, second = bound.outputs
    assert first is not None and second is not None
    assert (first.dtype, first.shape) == (np.float32, (0,)) and (second.dtype, second.shape) == (np.uint8, (0,))
    first = bind_request(OPEN, [none, none], [(0, 0, 8, (0,)), none], pools).outputs[0]
    assert first is not None and (first.dtype, first.shape) == (np.uint8, (8,))  # 0 stands for what is not known


def test_a_known_shape_is_that_of_the_model_or_what_follows_from_it() -> None:
    b, kind = ModelBuilder(), OperandType.TENSOR_FLOAT32
    x, y = b.operand(kind, (2, 2)), b.operand(kind, (0, 0))
    b.operation("RELU", [x], [y])
    bound = bind_request(b.finish([x], [y]), [(0, 0, 16, ())], [(0, 16, 16, ())], [Memory.allocate(32)])
    assert [a.shape for a in (*bound.inputs, *bound.outputs) if a is not None] == [(2, 2), (2, 2)]


def test_scalars_have_no_dimensions() -> None:
    b = ModelBuilder()
    x, n, y = (
        b.operand(OperandType.TENSOR_FLOAT32, (2,)),
        b.operand(OperandType.INT32),
        b.operand(OperandType.TENSOR_FLOAT32, (2,)),
    )
    b.operation("ADD", [x, x, n], [y])
    model, pools = b.finish([x, n], [y]), [Memory.allocate(64)]
    bound = bind_request(model, [(0, 0, 8, ()), (0, 8, 4, ())], [(0, 16, 8, ())], pools)
    assert bound.inputs[1] is not None and bound.inputs[1].shape == ()
    with pytest.raises(InvalidRequest, match=r"input 1 has dimensions \[1\], must be \[\]"):
        bind_request(model, [(0, 0, 8, ()), (0, 8, 4, (1,))], [(0, 16, 8, ())], pools)


@pytest.mark.parametrize("place", [0, 60, 64, 124, 128])
def test_only_the_bytes_of_a_constant_are_kept_from_outputs(place: int) -> None:
    """Bytes 64 to 128 of the pool are a constant of the model."""
    b, kind = ModelBuilder(), OperandType.TENSOR_FLOAT32
    pool = Memory.allocate(256)
    x, y = b.operand(kind, (16,)), b.operand(kind, (1,))
    constant = b.reference(kind, (16,), b.add_pool(pool), 64, 64)
    z = b.operand(kind, (16,))
    b.operation("ADD", [x, constant, b.constant(OperandType.INT32, Activation.NONE)], [z])
    b.operation("RELU", [b.reference(kind, (1,), 0, 64, 4)], [y])
    model = b.finish([x], [z, y])

    def bind() -> None:
        bind_request(model, [(0, 192, 64, ())], [(1, 0, 64, ()), (0, place, 4, ())], [pool, Memory.allocate(64)])

    if place in (64, 124):
        with pytest.raises(InvalidRequest, match="output 1 overlaps another argument or constant"):
            bind()
    else:
        bind()


@pytest.mark.parametrize(
    ("model", "dims", "shape"), [(KNOWN, (0,), (4,)), (KNOWN, (), (4,)), (OPEN, (4,), (4,)), (OPEN, (0,), None)]
)
def test_a_dimension_of_0_of_an_output_is_one_that_is_not_said(
    model: Model, dims: tuple[int, ...], shape: tuple[int, ...] | None
) -> None:
    at = (0, 0, 16, (4,))
    first, second = bind_request(model, [at, at], [(0, 32, 16, dims), (0, 48, 16, dims)], [Memory.allocate(64)]).outputs
    for array in (first, second):
        assert array is not None
        assert (array.dtype, array.shape) == ((np.uint8, (16,)) if shape is None else (np.float32, shape))


def test_room_for_one_element_is_that_of_its_dimension() -> None:
    at = (0, 0, 4, (1,))
    bound = bind_request(OPEN, [at, at], [(0, 4, 4, (1,)), (0, 8, 1, ())], [Memory.allocate(16)])
    assert [(a.dtype, a.shape) for a in bound.outputs if a is not None] == [(np.float32, (1,)), (np.uint8, (1,))]


@pytest.mark.parametrize("emptied", [False, True])
def test_constants_in_the_only_memory_of_a_request_are_kept_from_outputs_until_they_are_let_go(emptied: bool) -> None:
    b, kind = ModelBuilder(), OperandType.TENSOR_FLOAT32
    pool = Memory.allocate(192)
    x, y = b.operand(kind, (16,)), b.operand(kind, (16,))
    constant = b.reference(kind, (16,), b.add_pool(pool), 0, 64)
    b.operation("ADD", [x, constant, b.constant(OperandType.INT32, Activation.NONE)], [y])
    model = b.finish([x], [y])
    signature = Signature.of(model)
    if emptied:
        release_constants(model, "the driver has them")
    bind_request(model, [(0, 64, 64, ())], [(0, 128, 64, ())], [pool], signature)
    if emptied:
        bind_request(model, [(0, 64, 64, ())], [(0, 0, 64, ())], [pool], signature)
    else:
        with pytest.raises(InvalidRequest, match="output 0 overlaps another argument or constant"):
            bind_request(model, [(0, 64, 64, ())], [(0, 0, 64, ())], [pool], signature)
