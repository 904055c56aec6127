"""Driver memory: what roles say of it, what executions and copies do to its contents, and that nobody is hurt by others."""

import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import OperationType as Op
from nnhal.base.errors import (
    BadState,
    Closed,
    InvalidArgument,
    InvalidRequest,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    OutOfMemory,
    ResourceExhausted,
    Unmappable,
)
from nnhal.base.memory import Layout, Memory
from nnhal.base.operands import Array
from nnhal.drivers.reference import Reference
from nnhal.frontends.python import Builder
from nnhal.hal import queue
from nnhal.hal import request as request_module
from nnhal.hal.answers import allocated_by
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.host import BufferWrite, HostBuffer, contents_of, fill, run_resolved
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests.hal.devices import DEVICES, LIMIT, OwnBuffer, X, adding, device_of, execute, prepare
from tests.models import doubling, make_model
from tests.waiting import Clock, together, until

ANY = BufferDesc()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    return device_of(request.param)


def into(prepared: Prepared, index: int = 0) -> BufferRole:
    return BufferRole(prepared, index)


def out_of(prepared: Prepared, index: int = 0) -> BufferRole:
    return BufferRole(prepared, index, True)


def read(prepared: Prepared, buffer: object) -> Array:
    """What an execution makes of a buffer."""
    done, _ = execute(prepared, buffer, np.full((3, 4), np.nan, np.float32))  # type: ignore[arg-type]
    return done.results[0]


# ------------------------------------------------------------------------------------------------- executions


def test_what_one_execution_writes_the_next_one_reads(device: Device) -> None:
    first, second = prepare(device, adding(1)), prepare(device, adding(10))
    buffer = allocated_by(device, ANY, [out_of(first), into(second)])
    assert buffer.token > 0
    with pytest.raises(OperationFailed, match="has no contents"):
        read(second, buffer)
    for n in range(3):
        execute(first, X + n, buffer)
        assert buffer.shape == (3, 4)
        np.testing.assert_array_equal(read(second, buffer), X + n + 11)
    np.testing.assert_array_equal(contents_of(buffer), X + 3)


def test_two_buffers_take_turns_as_input_and_output(device: Device) -> None:
    step = prepare(device, adding(1))
    roles = [into(step), out_of(step)]
    here, there = allocated_by(device, ANY, roles), allocated_by(device, ANY, roles)
    assert here.token != there.token
    fill(here, X)
    for _ in range(5):
        execute(step, here, there)
        here, there = there, here
    np.testing.assert_array_equal(contents_of(here), X + 5)


def test_a_use_that_is_no_role_is_refused_and_changes_nothing(device: Device) -> None:
    one, other = prepare(device, adding(1)), prepare(device, adding(1))
    source, target = allocated_by(device, ANY, [into(one)]), allocated_by(device, ANY, [out_of(one)])
    fill(source, X)
    fill(target, X + 7)
    for prepared, x, y, use in (
        (one, target, np.empty_like(X), "input 0"),
        (one, X, source, "output 0"),
        (other, source, np.empty_like(X), "input 0"),
        (other, X, target, "output 0"),
    ):
        with pytest.raises(InvalidRequest, match=f"is used as {use}, must be one of its roles"):
            execute(prepared, x, y)
    np.testing.assert_array_equal(contents_of(source), X)
    np.testing.assert_array_equal(contents_of(target), X + 7)


def test_one_buffer_is_not_input_and_output_of_one_execution(device: Device) -> None:
    step = prepare(device, adding(1))
    buffer = allocated_by(device, ANY, [into(step), out_of(step)])
    fill(buffer, X)
    with pytest.raises(InvalidRequest, match="is input and output of one execution"):
        execute(step, buffer, buffer)
    np.testing.assert_array_equal(contents_of(buffer), X)


def test_a_buffer_without_contents_fails_what_reads_it(device: Device) -> None:
    step = prepare(device, adding(1))
    buffer = allocated_by(device, ANY, [into(step), out_of(step)])
    for use in (
        lambda: read(step, buffer),
        lambda: buffer.copy_to(Memory.allocate(48)),
        lambda: contents_of(buffer),
    ):
        with pytest.raises(OperationFailed, match="has no contents, must be written or copied to first"):
            use()


def test_a_failed_execution_leaves_what_it_was_to_write_without_contents(device: Device) -> None:
    b = Builder("gathering")
    x, rows = b.input((3, 4)), b.input((2,), np.int32)
    step = prepare(device, b.finish([x, rows], [b.gather(x, 0, rows)]))
    source, target = allocated_by(device, ANY, [into(step)]), allocated_by(device, ANY, [out_of(step)])
    fill(source, X)

    def gathered(*rows: int) -> None:
        made = step.request(
            [None, np.array(rows, np.int32)], [None], input_buffers={0: source}, output_buffers={0: target}
        )
        made.execute(partial(run_resolved, step), Control())

    gathered(0, 1)
    assert target.shape == (2, 4)
    with pytest.raises(OperationFailed):
        gathered(0, 77)
    assert target.shape is None and source.shape == (3, 4)
    with pytest.raises(OperationFailed, match="has no contents"):
        contents_of(target)
    gathered(2, 1)
    np.testing.assert_array_equal(contents_of(target), X[[2, 1]])


def test_an_input_without_contents_spoils_what_was_to_be_written(device: Device) -> None:
    step = prepare(device, adding(1))
    empty, target = (allocated_by(device, ANY, [into(step), out_of(step)]) for _ in range(2))
    fill(target, X)
    with pytest.raises(OperationFailed, match="has no contents"):
        execute(step, empty, target)
    assert target.shape is None


def two_outputs() -> Prepared:
    model = make_model(lambda b, x: [b.add(x, x), b.mul(x, x)], (3, 4), name="two outputs")
    return prepare(device_of("reference"), model)


def test_an_output_that_does_not_fit_leaves_no_buffer_of_the_execution_with_contents() -> None:
    prepared = two_outputs()
    buffer = allocated_by(device_of("reference"), ANY, [out_of(prepared, 1)])
    fill(buffer, X)
    made = prepared.request([X], [np.empty(5, np.uint8), None], output_buffers={1: buffer})
    made.execute(partial(run_resolved, prepared), Control())
    assert made.small == (0,)
    assert buffer.shape is None


def test_a_buffer_is_not_given_for_two_outputs() -> None:
    prepared = two_outputs()
    buffer = allocated_by(device_of("reference"), ANY, [out_of(prepared, 0), out_of(prepared, 1)])
    made = prepared.request([X], output_buffers={0: buffer, 1: buffer})
    with pytest.raises(InvalidRequest, match="given for two outputs"):
        made.execute(partial(run_resolved, prepared), Control())


# ------------------------------------------------------------------------------------- dimensions that may change


def test_contents_of_changing_shape_have_the_shape_of_what_was_written_last(device: Device) -> None:
    step = prepare(device, doubling(0, 4))
    source, target = (allocated_by(device, ANY, [into(step), out_of(step)]) for _ in range(2))
    for rows in (3, 1, 5):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        fill(source, x)
        execute(step, source, target)
        assert source.shape == target.shape == (rows, 4)
        np.testing.assert_array_equal(contents_of(target), 2 * x)


def test_a_description_says_what_roles_leave_open(device: Device) -> None:
    step = prepare(device, doubling(0, 4))
    buffer = allocated_by(device, BufferDesc((3, 0)), [into(step)])
    assert buffer.facts.dimensions == (3, 4)
    buffer.copy_from(Memory.from_array(X))
    np.testing.assert_array_equal(contents_of(buffer), X)


@pytest.mark.parametrize(
    ("dimensions", "says"),
    [
        ((), "must all be given"),
        ((0, 4), "has 48 bytes, must be the 0 of"),
        ((-3, 4), "at least 0|>= 0"),
        ((4, 3), "must agree with"),
        ((12,), "must agree with"),
        ((5, 4), "has 48 bytes, must be the 80"),
    ],
)
def test_a_copy_says_its_dimensions_where_they_may_change(
    device: Device, dimensions: tuple[int, ...], says: str
) -> None:
    buffer = allocated_by(device, ANY, [into(prepare(device, doubling(0, 4)))])
    with pytest.raises(InvalidArgument, match=says):
        buffer.copy_from(Memory.from_array(X), dimensions)
    assert buffer.shape is None
    buffer.copy_from(Memory.from_array(X), (3, 4))
    assert buffer.shape == (3, 4)


@pytest.mark.parametrize(
    ("dims", "desc", "given", "says"),
    [
        ((0, 0), (3, 4), (2, 6), r"was given shape \[2, 6\], must be \[3, 4\]"),  # as many bytes
        ((0, 0), (3, 4), (1, 4), r"was given shape \[1, 4\], must be \[3, 4\]"),
        ((0, 0), (3, 0), (4, 3), r"was given shape \[4, 3\], must be \[3, \?\]"),
        ((0, 0), (3, 0), (3, 7), ""),
        ((), (), (2, 3, 2), ""),
        ((), (0, 2), (3, 2), ""),
        ((), (0, 2), (2, 3), r"was given shape \[2, 3\], must be \[\?, 2\]"),
    ],
)
def test_what_an_execution_gives_a_buffer_is_of_the_buffers_shape(
    dims: tuple[int, ...], desc: tuple[int, ...], given: tuple[int, ...], says: str
) -> None:
    b = ModelBuilder()
    x, y = b.operand(Type.TENSOR_FLOAT32, dims), b.operand(Type.TENSOR_FLOAT32, dims)
    b.operation(Op.RELU, [x], [y])
    device = device_of("reference")
    prepared = prepare(device, b.finish([x], [y]))
    buffer = allocated_by(device, BufferDesc(desc), [out_of(prepared)])
    value = np.arange(np.prod(given), dtype=np.float32).reshape(given)
    if says:
        with pytest.raises(InvalidRequest, match=says):
            execute(prepared, value, buffer)
        assert buffer.shape is None
    else:
        execute(prepared, value, buffer)
        np.testing.assert_array_equal(contents_of(buffer), value)


@pytest.mark.parametrize("narrow", [0, 1])
def test_where_one_output_is_not_of_its_buffers_shape_no_buffer_of_the_execution_has_contents(narrow: int) -> None:
    model = make_model(lambda b, x: [b.relu(x), b.relu6(x)], (0, 0), name="two outputs")
    prepared = prepare(device_of("reference"), model)
    descs = [BufferDesc((3, 0)) if n == narrow else ANY for n in range(2)]
    buffers = {n: HostBuffer(desc, [out_of(prepared, n)]) for n, desc in enumerate(descs)}
    for rows in (4, 3):
        made = prepared.request([np.ones((rows, 4), np.float32)], output_buffers=buffers)
        if rows == 3:
            made.execute(partial(run_resolved, prepared), Control())
        else:
            with pytest.raises(InvalidRequest, match=r"was given shape \[4, 4\], must be \[3, \?\]"):
                made.execute(partial(run_resolved, prepared), Control())
        assert [buffer.shape for buffer in buffers.values()] == ([(3, 4)] * 2 if rows == 3 else [None] * 2)


@pytest.mark.parametrize(
    ("dims", "given", "says"),
    [
        ((3, 4), (1, 4), r"dimensions \[1, 4\] of the contents must agree with \[3, 4\]"),
        ((3, 4), (4,), r"dimensions \[4\] of the contents must agree with \[3, 4\]"),
        ((3, 4), (0, 4), r"is given shape \[0, 4\], must be \[3, 4\]"),
        ((3, 4), (), r"is given shape \[\], must be \[3, 4\]"),
        ((0, 4), (3, 5), r"dimensions \[3, 5\] of the contents must agree with \[0, 4\]"),
        ((0, 4), (), r"dimensions \[0, 4\] of the contents must all be given"),
    ],
)
def test_what_a_buffer_is_filled_with_is_of_its_shape_and_is_not_spread_over_it(
    dims: tuple[int, ...], given: tuple[int, ...], says: str
) -> None:
    buffer = HostBuffer(ANY, [into(prepare(device_of("reference"), doubling(*dims)))])
    fill(buffer, np.zeros((3, 4), np.float32))
    with pytest.raises(InvalidArgument, match=says):
        fill(buffer, np.ones(given, np.float32))
    assert buffer.shape is None


def test_contents_of_an_execution_are_no_part_of_its_input() -> None:
    b = ModelBuilder()
    x, shape, y = (
        b.operand(Type.TENSOR_FLOAT32, (3, 4)),
        b.operand(Type.TENSOR_INT32, (2,)),
        b.operand(Type.TENSOR_FLOAT32, (0, 0)),
    )
    b.operation(Op.RESHAPE, [x, shape], [y])
    device = device_of("reference")
    prepared = prepare(device, b.finish([x, shape], [y]))
    buffer = allocated_by(device, ANY, [out_of(prepared)])
    given = X.copy()
    made = prepared.request([given, np.array([4, 3], np.int32)], output_buffers={0: buffer})
    made.execute(partial(run_resolved, prepared), Control())
    given[:] = -1
    np.testing.assert_array_equal(contents_of(buffer), X.reshape(4, 3))


# --------------------------------------------------------------------------------------------------------- copies


def memories(path: Path, size: int) -> dict[str, Memory]:
    """A memory of each kind that can be mapped, of `size` bytes, not only at the beginning of what they are in."""
    (path / "file").write_bytes(bytes(mmap.PAGESIZE + 8 + size))
    fd = os.open(path / "file", os.O_RDWR)
    try:
        mapped = Memory.from_fd(fd, size, mmap.PAGESIZE + 8, readonly=False)
    finally:
        os.close(fd)
    return {
        "ashmem": Memory.allocate(size),
        "mmap_fd": mapped,
        "hardware_buffer_blob": Memory.hardware_buffer_blob(size),
        "host": Memory.wrap(np.zeros(size, np.uint8)),
    }


@pytest.mark.parametrize("kind", ["ashmem", "hardware_buffer_blob", "host"])
def test_bytes_go_in_and_out_through_memories_of_each_kind(device: Device, kind: str, tmp_path: Path) -> None:
    in_and_out(device, kind, tmp_path)


def test_bytes_go_in_and_out_through_files(device: Device, tmp_path: Path) -> None:
    in_and_out(device, "mmap_fd", tmp_path)


def in_and_out(device: Device, kind: str, tmp_path: Path) -> None:
    buffer = allocated_by(device, ANY, [into(prepare(device, adding(1)))])
    memory = memories(tmp_path, 48)[kind]
    assert memory.kind == kind
    for n in range(2):  # the second time something else, through the same memory
        memory.writable()[:] = (X + n).reshape(-1).view(np.uint8)
        buffer.copy_from(memory)
        memory.writable()[:] = 0
        assert contents_of(buffer).tolist() == (X + n).tolist()
        buffer.copy_to(memory)
        assert memory.bytes().tobytes() == (X + n).tobytes()


@pytest.mark.parametrize("size", [1, 44, 49, 52, 4096])
def test_a_copy_is_of_exactly_the_size_of_the_contents(device: Device, size: int) -> None:
    buffer = allocated_by(device, ANY, [into(prepare(device, adding(1)))])
    fill(buffer, X)
    with pytest.raises(InvalidArgument, match=f"memory has {size} bytes, must be the 48"):
        buffer.copy_to(Memory.allocate(size))
    np.testing.assert_array_equal(contents_of(buffer), X)
    with pytest.raises(InvalidArgument, match=f"memory has {size} bytes, must be the 48"):
        buffer.copy_from(Memory.allocate(size))
    assert buffer.shape is None  # a copy that failed leaves none


def test_contents_are_not_copied_to_a_memory_for_reading(device: Device, tmp_path: Path) -> None:
    buffer = allocated_by(device, ANY, [into(prepare(device, adding(1)))])
    fill(buffer, X)
    (tmp_path / "file").write_bytes(bytes(48))
    with pytest.raises(InvalidArgument, match="reading only"):
        buffer.copy_to(Memory.from_file(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == bytes(48)


def test_what_cannot_be_mapped_is_not_copied(device: Device) -> None:
    buffer = allocated_by(device, ANY, [into(prepare(device, adding(1)))])
    fill(buffer, X)
    opaque = Memory.hardware_buffer(48, Layout(4, 3, 1, 1))
    with pytest.raises(Unmappable):
        buffer.copy_to(opaque)
    with pytest.raises(Unmappable):
        buffer.copy_from(opaque)


@pytest.mark.parametrize("kind", [HostBuffer, OwnBuffer])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4)])
def test_contents_of_a_buffer_of_any_kind_are_filled_in_and_copied_out(
    kind: type[Buffer], shape: tuple[int, ...]
) -> None:
    buffer = kind(ANY, [into(prepare(device_of("reference"), doubling(0, 4)))])
    with pytest.raises(OperationFailed, match="has no contents, must be written or copied to first"):
        contents_of(buffer)
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    fill(buffer, value)
    found = contents_of(buffer)
    assert found.shape == buffer.shape == shape and found.tolist() == value.tolist()
    fill(buffer, found + 1)
    assert found.tolist() == value.tolist()


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_a_buffer_of_a_drivers_own_is_not_used_while_who_was_given_up_may_still_write_it(
    beside: bool, reads: bool
) -> None:
    """beside: a buffer in ordinary memory is the other argument."""
    prepared = prepare(device_of("reference"), adding(1))
    own = OwnBuffer(ANY, [into(prepared), out_of(prepared)])
    host = HostBuffer(ANY, [into(prepared), out_of(prepared)])
    gate, begun, cancelled, inside = threading.Event(), threading.Event(), threading.Event(), list[str]()

    def run(name: str, request: Request, _: Control) -> None:
        inside.append(name)
        if name == "first":
            begun.set()
            assert gate.wait(LIMIT)
        if 0 in request.output_buffers:
            request.filled(0, (3, 4))
        else:
            request.write(0, X)

    def execute_(name: str, control: Control, given: Buffer | Array, into_: Buffer | Array) -> None:
        read, written = ({0: each} if isinstance(each, Buffer) else {} for each in (given, into_))
        arrays = [None if isinstance(each, Buffer) else each for each in (given, into_)]
        request = prepared.request(arrays[:1], arrays[1:], input_buffers=read, output_buffers=written)
        request.execute(partial(run_resolved, prepared, run=partial(run, name)), control)

    fill(host, X)
    other: Buffer | Array = host if beside else X
    late = threading.Thread(target=lambda: attempted(execute_, "first", Control(cancelled=cancelled), other, own))
    late.start()
    assert begun.wait(LIMIT)
    cancelled.set()
    room: Buffer | Array = host if beside else np.empty((3, 4), np.float32)
    with pytest.raises(MissedDeadline):
        execute_("second", Control(deadline=1), *((own, room) if reads else (other, own)))
    assert inside == ["first"]
    gate.set()
    late.join(LIMIT)
    fill(host, X)
    execute_("third", Control(), other, own)
    assert inside == ["first", "third"]


def attempted(call: Callable[..., None], *arguments: object) -> None:
    with suppress(NnhalError):
        call(*arguments)


def test_buffers_of_a_drivers_own_reach_it_as_they_are_beside_host_buffers() -> None:
    model = make_model(lambda b, x, y: [b.add(x, y), b.mul(x, y)], (3, 4), (3, 4), name="of two")
    prepared = prepare(device_of("reference"), model)
    own = {n: OwnBuffer(ANY, [BufferRole(prepared, n, output)]) for n, output in ((0, False), (1, True))}
    host = {n: HostBuffer(ANY, [BufferRole(prepared, n, output)]) for n, output in ((1, False), (0, True))}
    seen: list[Request] = []

    def run(request: Request, control: Control) -> Timing:
        seen.append(request)
        assert request.inputs[0] is None and request.inputs[1].tolist() == X.tolist()  # type: ignore[union-attr]
        request.write(0, 2 * X)
        request.filled(1, (3, 4))
        return Timing(1, 2)

    fill(host[1], X)
    made = prepared.request([None, None], input_buffers={0: own[0], 1: host[1]}, output_buffers={0: host[0], 1: own[1]})
    assert made.execute(partial(run_resolved, prepared, run=run), Control(measure=True)) == Timing(1, 2)
    assert (seen[0].input_buffers, seen[0].output_buffers) == ({0: own[0]}, {1: own[1]})
    assert made.shapes == [(3, 4)] * 2 and contents_of(host[0]).tolist() == (2 * X).tolist()
    foreign = prepared.request([None, X], input_buffers={0: own[0]}, output_buffers={1: own[1]})
    assert foreign.execute(partial(run_resolved, prepared, run=run), Control()) == Timing(1, 2)
    assert seen[1] is foreign  # there is nothing to resolve


def test_contents_without_elements_are_contents() -> None:
    device = device_of("reference")
    buffer = allocated_by(device, ANY, [into(prepare(device, doubling(0, 4)))])
    buffer.copy_from(Memory.allocate(1), (0, 4))
    assert buffer.shape == (0, 4) and contents_of(buffer).shape == (0, 4)
    buffer.copy_to(Memory.allocate(1))  # no memory is empty
    with pytest.raises(InvalidArgument, match="memory has 2 bytes, must be the 0 of"):
        buffer.copy_to(Memory.allocate(2))
    for size in (2, 4):
        with pytest.raises(InvalidArgument, match=f"memory has {size} bytes, must be the 0 of"):
            buffer.copy_from(Memory.allocate(size), (0, 4))


# ------------------------------------------------------------------------------------------------- size and end


@pytest.mark.parametrize("shape", [(2**29, 2**29), (2**31 - 1,) * 4])
def test_what_cannot_be_had_is_refused_and_the_device_lives(device: Device, shape: tuple[int, ...]) -> None:
    step = prepare(device, doubling(*(0,) * len(shape)))
    with pytest.raises((OutOfMemory, ResourceExhausted)):
        allocated_by(device, BufferDesc(shape), [into(step)])
    small = (1,) * len(shape)
    fill(allocated_by(device, BufferDesc(small), [into(step)]), np.ones(small, np.float32))


def test_the_bytes_that_could_not_be_had_are_told() -> None:
    step = prepare(device_of("reference"), doubling(0, 0))
    with pytest.raises(OutOfMemory, match=f"buffer: {2**60} bytes could not be allocated"):
        HostBuffer(BufferDesc((2**29, 2**29)), [into(step)])


def test_a_buffer_that_is_closed_while_an_execution_writes_to_it_stays_closed() -> None:
    step = prepare(device_of("reference"), doubling(3, 4))
    buffer = HostBuffer(ANY, [out_of(step)])
    writing = buffer.begin()
    buffer.close()
    writing.end(X)
    assert buffer.shape is None
    with pytest.raises(BadState, match="used after close"):
        buffer.array()


def test_a_writing_that_ends_with_another_shape_is_refused_and_leaves_no_contents() -> None:
    buffer = HostBuffer(ANY, [out_of(prepare(device_of("reference"), doubling(0, 4)))])
    fill(buffer, X)
    writing = buffer.begin()
    with pytest.raises(InvalidRequest, match=r"was given shape \[4, 3\], must be \[\?, 4\]"):
        writing.end(X.reshape(4, 3))
    assert buffer.shape is None
    writing.end(X)  # it has ended
    assert buffer.shape is None
    buffer.begin().end(X)
    assert buffer.shape == (3, 4)


def test_a_closed_buffer_is_closed_for_every_use(device: Device) -> None:
    step = prepare(device, adding(1))
    buffer = allocated_by(device, ANY, [into(step), out_of(step)])
    fill(buffer, X)
    buffer.close()
    buffer.close()
    for use in (
        lambda: read(step, buffer),
        lambda: execute(step, X, buffer),
        lambda: buffer.copy_to(Memory.allocate(48)),
        lambda: buffer.copy_from(Memory.allocate(48)),
    ):
        with pytest.raises(BadState):
            use()


# -------------------------------------------------------------------------------------------------- many at a time


def test_readers_at_the_same_time_see_the_same_bits(device: Device) -> None:
    step = prepare(device, adding(0.1, (64, 64)))
    x = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
    buffer = allocated_by(device, ANY, [into(step)])
    fill(buffer, x)
    seen: list[bytes] = []

    def work() -> None:
        for _ in range(20):
            done, _ = execute(step, buffer, np.full_like(x, np.nan))
            seen.append(done.results[0].tobytes())
            seen.append((contents_of(buffer) + np.float32(0.1)).tobytes())

    together([work] * 6)
    assert len(seen) == 240 and set(seen) == {(x + np.float32(0.1)).tobytes()}


def test_writers_at_the_same_time_neither_crash_nor_hang(device: Device) -> None:
    step = prepare(device, doubling(0, 256))
    buffer = allocated_by(device, ANY, [into(step), out_of(step)])

    def work(n: int) -> None:
        x = np.full((n + 1, 256), n, np.float32)
        for _ in range(40):
            try:
                if n % 3 == 0:
                    execute(step, x, buffer)
                elif n % 3 == 1:
                    fill(buffer, x)
                else:
                    contents_of(buffer)
            except NnhalError:
                pass  # an error is one of the two things that may happen

    together([lambda n=n: work(n) for n in range(6)])  # type: ignore[misc]

    def written() -> bool:
        try:
            execute(step, np.ones((2, 256), np.float32), buffer)
        except Unmappable:  # another process gives the storm's descriptors back only by and by
            return False
        return True

    until(written, "it is written")
    np.testing.assert_array_equal(contents_of(buffer), np.full((2, 256), 2, np.float32))


def test_a_buffer_may_be_closed_while_it_is_used(device: Device) -> None:
    step = prepare(device, adding(1, (64, 64)))
    x = np.ones((64, 64), np.float32)
    for _ in range(5):
        buffer = allocated_by(device, ANY, [into(step), out_of(step)])

        def work(buffer: object = buffer) -> None:
            for _ in range(10):
                try:
                    execute(step, x, buffer)  # type: ignore[arg-type]
                except NnhalError as error:
                    assert isinstance(error, (BadState, InvalidArgument))

        together([work, work, buffer.close])


# ------------------------------------------------------------------------------------------------- who began last


class RunsBy(Reference):
    """Its prepared models run by a function."""

    def __init__(self, run: Callable[[Request, Control], None]) -> None:
        super().__init__()
        self.run = run

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        made = super().prepare(model, hints)
        made.run = self.run  # type: ignore[method-assign, assignment]
        return made


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("later", ["written", "copied to", "executed"])
def test_a_late_execution_gives_no_contents_to_a_buffer_that_was_written_since(later: str, varying: bool) -> None:
    begun, gate = threading.Event(), threading.Event()
    shape = (0, 4) if varying else (3, 4)

    def run(request: Request, control: Control) -> None:
        if not begun.is_set():
            begun.set()
            gate.wait(LIMIT)
        request.write(0, request.inputs[0] + 1)  # type: ignore[operator]

    step = prepare(RunsBy(run), doubling(*shape))
    buffer = HostBuffer(ANY, [out_of(step)])
    late_one = threading.Thread(target=lambda: execute(step, X, buffer), daemon=True)
    late_one.start()
    assert begun.wait(LIMIT)
    if later == "written":
        fill(buffer, X * 5)
    elif later == "copied to":
        buffer.copy_from(Memory.from_array(X * 5), (3, 4))
    else:
        execute(step, X * 5 - 1, buffer)
    gate.set()
    late_one.join(LIMIT)
    np.testing.assert_array_equal(contents_of(buffer), X * 5)


def test_an_execution_that_ends_after_its_deadline_leaves_a_buffer_without_contents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock().play(monkeypatch, queue, request_module)

    def run(request: Request, control: Control) -> None:
        request.write(0, X)
        clock.advance(0.1)

    step = prepare(RunsBy(run), doubling(3, 4))
    buffer = HostBuffer(ANY, [out_of(step)])
    with pytest.raises(MissedDeadline):
        execute(step, X, buffer, clock.within(0.05))
    assert buffer.shape is None


def test_an_execution_that_was_given_up_leaves_its_buffer_without_contents() -> None:
    step = prepare(device_of("reference"), doubling(3, 4))
    buffer = HostBuffer(ANY, [out_of(step)])
    made = step.request([X], output_buffers={0: buffer})

    def run(inner: Request, control: Control) -> None:
        inner.write(0, X)
        made.abandon()

    with pytest.raises(Closed, match="the execution was abandoned before it ended"):
        made.execute(partial(run_resolved, step, run=run), Control())
    assert buffer.shape is None


def test_an_execution_that_was_given_up_beside_a_buffer_writes_nothing_to_the_callers_memory() -> None:
    step = prepare(device_of("reference"), doubling(3, 4))
    buffer, room = HostBuffer(ANY, [into(step)]), np.full((3, 4), -9, np.float32)
    fill(buffer, X)
    made = step.request([None], [room], input_buffers={0: buffer})

    def run(inner: Request, control: Control) -> None:
        made.abandon()
        inner.write(0, X)

    with pytest.raises(Closed, match="is written after the execution ended"):
        made.execute(partial(run_resolved, step, run=run), Control())
    assert (room == -9).all()


def test_an_execution_that_was_abandoned_before_it_began_leaves_what_the_next_one_wrote() -> None:
    reached, opened = threading.Event(), threading.Event()

    class Gated(HostBuffer):
        def begin(self, control: Control = UNLIMITED, request: Request | None = None) -> BufferWrite:
            if request is first:
                reached.set()
                assert opened.wait(LIMIT)
            return super().begin(control, request)

    step = prepare(device_of("reference"), doubling(3, 4))
    buffer = Gated(ANY, [out_of(step)])
    first, second = (step.request([each], output_buffers={0: buffer}) for each in (X, 2 * X))
    late = threading.Thread(
        target=lambda: attempted(first.execute, partial(run_resolved, step), Control(deadline=2**62))
    )
    late.start()
    assert reached.wait(LIMIT)
    first.abandon()
    second.execute(partial(run_resolved, step), Control())
    opened.set()
    late.join(LIMIT)
    assert contents_of(buffer).tolist() == (4 * X).tolist()
