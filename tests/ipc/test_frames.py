"""Frames: where the arguments of an execution lie, and what becomes of a driver that writes past its outputs."""

import gc
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.errors import ContractBroken
from nnhal.base.memory import ALIGNMENT, Memory
from nnhal.base.operands import Array
from nnhal.hal.request import Argument, Request, Signature
from nnhal.ipc.client import frames as subject
from nnhal.ipc.client.frames import Frame, Frames, Where, in_pools, key_of

F32 = np.dtype(np.float32)


def request_of(given: Sequence[Array | None], outputs: Sequence[tuple[Any, Any]], rooms: Any = None) -> Request:
    """A request with outputs of these shapes and types."""
    inputs = [Argument(f"input {n}", F32 if x is None else x.dtype, None) for n, x in enumerate(given)]
    made = [Argument(f"output {n}", np.dtype(kind), shape) for n, (shape, kind) in enumerate(outputs)]
    return Request(Signature(inputs, made), given, rooms)


def floats(*sizes: int) -> list[tuple[tuple[int, ...], Any]]:
    """Outputs of so many floats each."""
    return [((size,), F32) for size in sizes]


def place(frame: Frame, at: Where | None) -> Array:
    """The bytes of an argument, as a service sees them."""
    assert at is not None
    pool, offset, length, _ = at
    return frame.pools[pool].view(offset, length)


ARRAYS = st.tuples(
    st.lists(st.integers(0, 5), max_size=3).map(tuple), st.sampled_from([np.float32, np.uint8, np.int32, np.float16])
)


@settings(max_examples=200)
@given(st.lists(ARRAYS, max_size=5), st.lists(ARRAYS, min_size=1, max_size=5), st.integers(0, 2**32))
def test_arguments_lie_apart_aligned_and_arrive_unchanged(
    inputs: list[tuple[Any, Any]], outputs: list[tuple[Any, Any]], seed: int
) -> None:
    rng = np.random.default_rng(seed)

    def fresh(shape: tuple[int, ...], kind: Any) -> Array:
        return rng.integers(0, 100, shape).astype(kind)

    wanted = [fresh(*x) for x in outputs]
    request = request_of([fresh(*x) for x in inputs], outputs)
    frame = Frame(request)
    frame.fill(request)
    places = [*frame.inputs, *frame.outputs]
    taken: set[tuple[int, int]] = set()
    for at, array in zip(places, [*request.inputs, *wanted], strict=True):
        assert at is not None and array is not None
        assert at[1] % ALIGNMENT == 0 and at[2] == array.nbytes and at[3] == array.shape
        here = {(at[0], byte) for byte in range(at[1], at[1] + at[2])}
        assert not here & taken
        taken |= here
    for at, array in zip(frame.inputs, request.inputs, strict=True):
        assert array is not None and place(frame, at).tobytes() == array.tobytes()
    for at, array in zip(frame.outputs, wanted, strict=True):
        place(frame, at)[:] = array.reshape(-1).view(np.uint8)
    frame.collect(request)
    for array, expected in zip(request.results, wanted, strict=True):
        assert array.dtype == expected.dtype and np.array_equal(array, expected)


@pytest.mark.parametrize("past", [0, 1, 63])
@pytest.mark.parametrize("size", [1, 15, 16, 17])
def test_a_write_past_an_output_is_found_and_nothing_is_handed_over(size: int, past: int) -> None:
    rooms = [np.zeros(3, np.float32), np.full(size, -1, np.float32)]
    request = request_of([], floats(3, size), rooms)
    frame = Frame(request)
    frame.fill(request)
    pool, offset, length, _ = frame.outputs[1] or (0, 0, 0, ())
    whole = frame.pools[pool].bytes()
    place(frame, frame.outputs[1])[:] = 7
    if offset + length + past < whole.size:
        whole[offset + length + past] ^= 1
    with pytest.raises(
        ContractBroken, match="wrote past the end of output 1, must stay within it; the results are dropped"
    ):
        frame.collect(request)
    assert request.results == [None, None] and np.all(rooms[1] == -1)
    frame.collect(request)  # the guard is whole again: the frame serves the next execution
    assert np.all(rooms[1].view(np.uint8) == 7)


def test_inputs_and_outputs_lie_in_memories_of_their_own_and_the_peer_cannot_write_inputs() -> None:
    frame = Frame(request_of([np.zeros(4, np.float32)], floats(4)))
    assert frame.inputs[0] is not None and frame.outputs[0] is not None
    given, taken = frame.pools[frame.inputs[0][0]], frame.pools[frame.outputs[0][0]]
    assert given is not taken
    mmap.mmap(taken.fd, taken.size).close()
    with pytest.raises(PermissionError):
        mmap.mmap(given.fd, given.size)
    mmap.mmap(given.fd, given.size, access=mmap.ACCESS_READ).close()


def test_guards_are_at_least_as_long_as_an_alignment() -> None:
    for size in (1, 16, 17):
        frame = Frame(request_of([], floats(size)))
        _, offset, length, _ = frame.outputs[0] or (0, 0, 0, ())
        assert frame.pools[0].size - (offset + length) >= ALIGNMENT


def test_arguments_in_sealed_memory_are_referred_to_not_copied() -> None:
    memory = Memory.allocate(64)
    x, y = memory.view(0, 16, np.float32, (4,)), memory.view(32, 16, np.float32, (2, 2))
    frame = Frame(request_of([x], [((2, 2), F32)], [y]))
    assert frame.pools == [memory]
    assert (frame.inputs, frame.outputs) == ([(0, 0, 16, (4,))], [(0, 32, 16, (2, 2))])


def test_arguments_that_cannot_be_shared_are_copied(tmp_path: Any) -> None:
    file = tmp_path / "x"
    np.arange(4, dtype=np.float32).tofile(file)
    sealed, wrapped = Memory.allocate(64), Memory.wrap(np.arange(4, dtype=np.float32))
    readonly = Memory.from_file(file)
    for x in (
        readonly.view(0, 16, np.float32),
        wrapped.view(0, 16, np.float32),
        sealed.view(0, 32, np.float32)[::2],
        np.arange(8, dtype=np.float32)[::2],
    ):
        request = request_of([x], floats(4))
        frame = Frame(request)
        frame.fill(request)
        assert not {sealed, wrapped, readonly} & {*frame.pools}
        assert place(frame, frame.inputs[0]).tobytes() == np.ascontiguousarray(x).tobytes()


def test_room_in_bytes_has_no_dimensions_where_the_model_says_none() -> None:
    room = np.zeros(100, np.uint8)
    for shape, place in ((None, (100, ())), ((None, 2), (100, ())), ((3, 2), (24, (3, 2)))):
        frame = Frame(request_of([], [(shape, F32)], [room]))
        assert (frame.outputs[0] or ())[2:] == place


def test_an_omitted_input_has_no_place_and_an_output_without_memory_is_the_drivers() -> None:
    frame = Frame(request_of([None], [(None, F32)]))
    assert frame.inputs == [None] and frame.outputs == [(-1, 0, 0, ())] and frame.pools == []


def test_an_output_whose_shape_is_reported_is_the_first_bytes_of_its_room() -> None:
    rooms = [np.zeros(8, np.float32), np.zeros(32, np.uint8)]
    request = request_of([], [((None,), F32), (None, F32)], rooms)
    frame = Frame(request)
    for at in frame.outputs:
        place(frame, at).view(np.float32)[:] = range(8)
    frame.collect(request, [(3,), (2, 2)])
    assert [x.tolist() for x in request.results] == [[0, 1, 2], [[0, 1], [2, 3]]]
    assert all(np.shares_memory(x, room) for x, room in zip(request.results, rooms, strict=True))
    assert request.shapes == [(3,), (2, 2)]


@pytest.mark.parametrize("reported", [(9,), (1 << 40, 1 << 40), (2, 4), ()])
def test_a_reported_shape_that_cannot_be_is_refused(reported: tuple[int, ...]) -> None:
    room = np.full(8, -1, np.float32)
    for shape in ((None,), (8,)):
        request = request_of([], [(shape, F32)], [room])
        with pytest.raises(ContractBroken, match=r"output 0 is (said to have|given) shape"):
            Frame(request).collect(request, [reported])
        assert np.all(room == -1)


def test_an_output_that_is_kept_apart_is_copied_into_a_pool_when_it_is_collected() -> None:
    memory = Memory.allocate(16)
    request = request_of([], floats(4), [memory.view(0, 16, np.float32, (4,))])
    frame = Frame(request, apart=True)
    assert memory not in frame.pools
    place(frame, frame.outputs[0]).view(np.float32)[:] = 5
    assert not memory.bytes().any()
    frame.collect(request)
    assert memory.bytes().view(np.float32).tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize("reported", [[], [(2, 2)]])
def test_an_output_that_the_driver_writes_in_its_place_has_the_shape_of_the_signature_or_the_one_that_is_told(
    reported: list[tuple[int, ...]],
) -> None:
    room = Memory.allocate(16).view(0, 16, F32, (2, 2))
    request = request_of([np.zeros(1, np.float32)], [((2, 2), F32) if not reported else (None, F32)], [room])
    frame = Frame(request)
    assert frame.direct == [0]
    place(frame, frame.outputs[0])[:] = np.float32([1, 2, 3, 4]).view(np.uint8)
    frame.collect(request, reported)
    assert request.shapes == [(2, 2)] and request.results[0].tolist() == [[1, 2], [3, 4]]


def test_requests_share_a_frame_only_where_their_arguments_lie_alike() -> None:
    def of(x: Array, y: Array | None, shape: Any = (4,), **apart: bool) -> Any:
        return key_of(request_of([x], [(shape, F32)], [y]), **apart)

    a, b = np.zeros(4, np.float32), np.zeros((2, 2), np.float32)
    assert of(a, a) == of(a.copy(), a.copy()) == of(a, None) == of(a, a.view(np.uint8))  # room of the frame's own
    assert len({of(a, a), of(b, a), of(a.astype(np.int32), a)}) == 3
    assert len({of(a, None, (None,)), of(a, a, (None,)), of(a, np.zeros(5, np.float32), (None,))}) == 3
    one, two = Memory.allocate(64), Memory.allocate(64)
    views = [m.view(offset, 16, np.float32, (4,)) for m in (one, two) for offset in (0, 16)]
    assert len({of(v, a) for v in views} | {of(a, a)}) == 5
    assert len({of(a, v) for v in views} | {of(a, a)}) == 5
    assert len({of(a, v, apart=False) for v in views} | {of(a, a)}) == 5
    assert {of(a, v, apart=True) for v in views} == {of(a, a)}
    assert of(views[0], a) == of(one.view(0, 16, np.float32, (4,)), a)


def test_a_frame_serves_one_request_at_a_time_and_is_used_again() -> None:
    frames, request = Frames(), request_of([np.zeros(4, np.float32)], floats(4))
    first, home = frames.take(request)
    second, _ = frames.take(request)
    assert first is not second
    home.append(first)
    assert frames.take(request)[0] is first


def test_the_frames_of_many_shapes_are_limited() -> None:
    frames = Frames()
    homes: set[int] = set()
    for size in range(1, 200):
        frame, home = frames.take(request_of([np.zeros(size, np.float32)], floats(size)))
        for _ in range(20):
            home.append(frame)
        assert isinstance(home, deque) and len(home) <= 4
        homes.add(id(home))
    assert len(frames._free) <= 16


def used(frames: Frames, request: Request) -> Frame:
    """The frame of an execution, which is free again."""
    frame, home = frames.take(request)
    home.append(frame)
    return frame


def test_the_oldest_frames_go_first() -> None:
    frames, requests = Frames(), [request_of([np.zeros(n, np.float32)], floats(n)) for n in range(1, 18)]
    first = [used(frames, request) for request in requests]  # one more than are kept
    assert [used(frames, request) is frame for request, frame in zip(requests[1:], first[1:], strict=True)] == [
        True
    ] * 16
    assert used(frames, requests[0]) is not first[0]


def in_pool(memory: Memory, offset: int = 0) -> Request:
    """A request whose input lies in a pool of the caller's."""
    return request_of([memory.view(offset, 16, np.float32, (4,))], floats(4))


def test_frames_go_with_the_pool_of_the_caller() -> None:
    frames, memory, other = Frames(), Memory.allocate(64), Memory.allocate(64)
    kept = used(frames, in_pool(other))
    gone = [weakref.ref(used(frames, in_pool(memory, offset))) for offset in (0, 16, 32)]
    for of in gone:
        of().bound(object())  # type: ignore[union-attr]
    kept.bound(object())
    del memory
    gc.collect()
    assert [of() for of in gone] == [None] * 3
    assert used(frames, in_pool(other)) is kept


def test_frames_of_a_pool_that_is_forgotten_go_though_the_pool_stays() -> None:
    frames, memory, other = Frames(), Memory.allocate(64), Memory.allocate(64)
    gone, kept = used(frames, in_pool(memory)), used(frames, in_pool(other))
    plain = used(frames, request_of([np.zeros(4, np.float32)], floats(4)))
    for _ in range(2):
        frames.forget_pool(memory)
    assert used(frames, in_pool(memory)) is not gone
    assert used(frames, in_pool(other)) is kept
    assert used(frames, request_of([np.zeros(4, np.float32)], floats(4))) is plain


def test_a_frame_in_use_while_its_pool_is_forgotten_is_not_used_again() -> None:
    frames, memory = Frames(), Memory.allocate(64)
    frame, home = frames.take(in_pool(memory))
    frames.forget_pool(memory)
    home.append(frame)
    assert used(frames, in_pool(memory)) is not frame


def test_a_pool_does_not_keep_the_frames_of_a_model_that_is_gone() -> None:
    memory = Memory.allocate(64)
    frames = Frames()
    of = weakref.ref(used(frames, in_pool(memory)))
    del frames
    gc.collect()
    assert of() is None


def test_a_bound_frame_keeps_neither_the_callers_pools_nor_a_descriptor() -> None:
    memory = Memory.allocate(64)
    frame = Frame(in_pool(memory))
    binding, (own,) = object(), frame.memories
    assert own.fd >= 0 and frame.pools == [memory, own]
    frame.bound(binding)
    assert frame.binding is binding and frame.pools == [] and own.fd == -1
    frame.fill(request := in_pool(memory))
    frame.collect(request)
    assert request.results[0].tolist() == [0] * 4


def test_room_beside_a_buffer_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of([], floats(2, 3, 4))
    request.output_buffers = {0: object(), 2: object()}  # type: ignore[dict-item]
    frame = Frame(request)
    assert [at and at[2] for at in frame.outputs] == [None, 12, None]


def test_the_same_arrays_again_take_the_short_way_and_what_lies_elsewhere_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The short way is a matter of speed, but for whom it is not: then it is the wrong frame."""
    memory, frames, asked = Memory.allocate(64), Frames(), list[int]()
    key = subject.key_of
    monkeypatch.setattr(subject, "key_of", lambda *of: asked.append(1) or key(*of))
    room = np.zeros(4, np.float32)

    def ordinary(n: float, rooms: Any = None) -> Request:
        return request_of([np.full(4, n, np.float32)], floats(4), rooms)

    def given(frame: Frame) -> list[float]:
        return place(frame, frame.inputs[0]).view(np.float32).tolist()

    plain = used(frames, ordinary(1))
    for n, rooms in ((2, None), (3, [None]), (4, [room])):
        assert used(frames, ordinary(n, rooms)) is plain and given(plain) == [n] * 4
    assert len(asked) == 1
    view = memory.view(16, 16, np.float32, (4,))
    for other in (
        request_of([view], floats(4)),
        ordinary(5, [view]),
        request_of([None], floats(4)),
        request_of([np.ones((2, 2), np.float32)], floats(4)),
        request_of([np.ones(4, np.int32)], floats(4)),
    ):
        assert used(frames, other) is not plain
        again = used(frames, ordinary(6))
        assert again is plain and given(again) == [6] * 4
    lies = used(frames, request_of([view], floats(4)))
    assert lies.inputs[0] == (0, 16, 16, (4,)) and lies.pools[0] is memory
    assert used(frames, ordinary(7)) is plain and given(plain) == [7] * 4
    two = request_of([np.ones(4, np.float32), np.ones(4, np.float32)], floats(4))
    assert used(frames, two) is not plain
    buffered = ordinary(8)
    buffered.input_buffers = {0: Buffered()}  # type: ignore[dict-item]
    assert used(frames, buffered) is not plain


class Buffered:
    token = 7


def test_outputs_that_a_driver_may_write_where_they_lie_are_those_in_pools_that_it_may_map() -> None:
    memory = Memory.allocate(64)
    whole, strided = memory.view(0, 16, np.float32, (4,)), memory.view(0, 32, np.float32)[::2]
    readonly = Memory.from_array(np.zeros(4, np.float32).view(np.uint8))
    for rooms, there in (
        ([whole], True),
        ([None], False),
        (None, False),
        ([np.zeros(4, np.float32)], False),
        ([strided], False),
        ([Memory.wrap(np.zeros(4, np.float32)).view(0, 16, np.float32, (4,))], False),
        ([readonly.view(0, 16, np.float32, (4,))], not readonly.readonly),
    ):
        assert in_pools(request_of([], floats(4), rooms)) is there
    odd = memory.view(1, 17)[:16].view(np.float32)
    assert Frame(request_of([odd], floats(4))).pools[0] is not memory  # not at an address that suits its type


def test_an_output_may_fill_its_room_to_the_last_byte() -> None:
    room = np.zeros(8, np.float32)
    request = request_of([], [((None,), F32)], [room])
    Frame(request).collect(request, [(8,)])
    assert request.shapes == [(8,)]


def test_of_many_shapes_in_one_pool_only_those_that_are_kept_are_noted() -> None:
    memory, frames = Memory.allocate(4096), Frames()
    for n in range(200):
        used(frames, request_of([memory.view(4 * n, 16, np.float32, (4,))], floats(4)))
    assert len(frames._in_pools[memory]) <= 64 and len(frames._free) == 16
    assert set(frames._free) <= frames._in_pools[memory]
    frames.close()
    assert not frames._free and frames._last is None
