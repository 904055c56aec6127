"""What an execution is made of, each part alone: control, arguments, outputs given in every way, memory to fill in place."""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType
from nnhal.base.errors import Cancelled, Closed, ContractBroken, InvalidRequest, LoopTimeout, MissedDeadline
from nnhal.hal import request as requests
from nnhal.hal.memory import MOST_BYTES, MemoryUse, combined_use
from nnhal.hal.output_memory import GUARD
from nnhal.hal.request import (
    CHECK,
    UNLIMITED,
    Argument,
    Control,
    Request,
    Signature,
    Timing,
    checked_timing,
    sufficient,
    summed,
)
from nnhal.model.builder import ModelBuilder

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
X, Y = np.arange(4, dtype=np.float32), np.arange(10, 13, dtype=np.int32)
TWO = Signature([], [Argument("output 0", F32, (4,)), Argument("output 1", I32, (3,))], "device mine")
OPEN = Signature([], [Argument("output 0", F32, (None, 2)), Argument("output 1", F32, None)], "device mine")


def made(rooms: Any = None, signature: Signature = TWO, **buffers: Any) -> Request:
    return signature.make(signature, [], rooms, **buffers)


def executed(driver: Callable[[Request], Any], request: Request | None = None, control: Control = UNLIMITED) -> Request:
    request = request or made()
    request.execute(lambda r, _: driver(r), control)
    return request


def room() -> list[Any]:
    return [np.zeros(4, np.float32), np.zeros(3, np.int32)]


# ------------------------------------------------------------------------------------------------------ figures


def test_figures_together_are_known_where_all_are():
    assert summed([1, 2, 4]) == 7 and summed([]) == 0 and summed([0]) == 0
    assert summed([1, None]) is None and summed([None]) is None


@pytest.mark.parametrize("timing", [(0, 0), (5, 5), (None, None), (None, 3), (0, None), (2, 3), (0, 7)])
def test_a_timing_that_can_be_is_taken(timing):
    found = checked_timing(timing, "device mine")
    assert type(found) is Timing and found == timing


NEGATIVE, SHORTER = [(None, -1), (-1, None), (-2, -1)], [(5, 4), (1, 0)]
NO_TIMES = [[1, 2], (1,), ("1", 2), (), "fast", (1.5, 2), 7, (True, True)]


@pytest.mark.parametrize("timing", [*NEGATIVE, *SHORTER, *NO_TIMES])
def test_a_timing_below_zero_or_that_is_none_is_dropped_and_told(timing, caplog):
    assert checked_timing(timing, "device mine") is None
    assert "device mine: reports the duration" in caplog.text


def test_nothing_measured_is_nothing_to_tell(caplog):
    assert checked_timing(None, "device mine") is None and not caplog.text


def test_models_one_after_the_other_hold_the_sum_and_need_the_most_for_an_execution():
    uses = [MemoryUse(1, 10, 100, 7), MemoryUse(2, 20, 200, 9), MemoryUse(4, 40, 400, 8)]
    assert combined_use(uses) == MemoryUse(7, 70, 700, 9) and combined_use(uses[:1]) == uses[0]
    assert combined_use([]) == MemoryUse(0, 0, 0, 0)
    assert combined_use([uses[0], MemoryUse()]) == MemoryUse() == MemoryUse(None, None, None, None)
    assert combined_use([MemoryUse(1, None, 3, None), MemoryUse(1, 2, None, 4)]) == MemoryUse(2)
    assert MOST_BYTES == 2**62


# ------------------------------------------------------------------------------------------------------ control


def test_an_execution_has_no_limit_but_two_seconds_for_loops_unless_it_is_said():
    assert Control() == (None, 2_000_000_000, False, None, None, None)


def test_a_control_is_bounded_by_either_limit():
    event = threading.Event()
    found = [Control(d, cancelled=c).bounded for d in (None, 1) for c in (None, event)]
    assert found == [False, True, True, True]


def test_a_wait_is_short_where_it_may_be_cancelled():
    assert Control().patience() is None and Control(deadline=1).patience() == 0
    short = Control(cancelled=threading.Event()).patience()
    assert short is not None and 0 < short < 1


def test_a_deadline_has_passed_after_its_very_nanosecond(monkeypatch):
    monkeypatch.setattr(requests.time, "monotonic_ns", lambda: 100)
    Control(deadline=100).check()
    with pytest.raises(MissedDeadline):
        Control(deadline=99).check()

    def late(_: Request) -> None:
        raise MissedDeadline("late")

    with pytest.raises(MissedDeadline, match=r"^late$"):  # the engine may have waited for the very deadline
        executed(late, control=Control(deadline=100))


def test_who_is_cancelled_is_told_so_though_the_deadline_passed_too():
    event = threading.Event()
    Control(cancelled=event).check()
    event.set()
    with pytest.raises(Cancelled):
        Control(deadline=1, cancelled=event).check()


# ---------------------------------------------------------------------------------------------------- arguments


def test_an_argument_has_bytes_where_its_shape_is_known():
    fixed, partly, unknown = (Argument("y", F32, shape) for shape in ((2, 3), (2, None), None))
    assert (fixed.fixed, partly.fixed, unknown.fixed) == ((2, 3), None, None)
    assert (fixed.nbytes, partly.nbytes, unknown.nbytes) == (24, None, None)
    assert Argument("y", np.dtype(np.float16), ()).nbytes == 2


@pytest.mark.parametrize(
    ("shape", "given", "says"),
    [
        ((2, None), np.zeros((2, 5), np.float32), True),
        ((2, None), np.zeros((3, 5), np.float32), False),
        ((2, None), np.zeros((2, 5), np.int32), False),
        (None, np.zeros((2, 5), np.float32), True),
        (None, np.zeros((2, 5), np.uint8), False),
        (None, np.zeros((), np.float32), False),
    ],
)
def test_room_of_the_type_and_a_shape_that_may_be_says_the_shape(shape, given, says):
    assert Argument("y", F32, shape).specified_by(given) is says


def named_and_not() -> nnhal.Model:
    b = ModelBuilder()
    x = b.operand(OperandType.TENSOR_FLOAT32, (2, 3), name="picture")
    scale, y, z = (b.operand(OperandType.TENSOR_FLOAT32, d) for d in ((1,), (0, 0), (2, 3)))
    none = b.constant(OperandType.INT32, np.int32(0))
    b.operation("ADD", [x, scale, none], [y])
    b.operation("MUL", [x, scale, none], [z])
    return b.finish([x, scale], [y, z])


def test_arguments_are_called_by_place_and_name_and_have_the_shape_that_follows():
    signature = Signature.of(named_and_not())
    assert [a.name for a in signature.inputs] == ["input 0 (picture)", "input 1"]
    assert [a.name for a in signature.outputs] == ["output 0", "output 1"]
    assert [a.shape for a in (*signature.inputs, *signature.outputs)] == [(2, 3), (1,), (2, 3), (2, 3)]
    assert signature.closed and signature.count == 2 and signature.where == "driver"


def test_a_signature_is_closed_where_all_outputs_have_a_known_shape():
    mixed = Signature([Argument("x", F32, None)], [*TWO.outputs, OPEN.outputs[0]])
    assert TWO.closed and not OPEN.closed and not mixed.closed
    assert Signature([Argument("x", F32, None)], TWO.outputs).closed


@pytest.mark.parametrize(("text", "checked"), [(None, False), ("0", False), ("1", True), ("yes", False)])
def test_everything_is_looked_at_under_the_variable_alone(text, checked, monkeypatch):
    monkeypatch.delenv(CHECK, raising=False)
    if text is not None:
        monkeypatch.setenv(CHECK, text)
    signature = Signature([], [])
    assert (type(signature.make(signature, [])) is not Request) is checked


def test_arguments_are_views_made_once_and_an_omitted_one_is_none():
    x = np.arange(4, dtype=np.float32)
    signature = Signature([Argument("x", F32, (4,))] * 2, TWO.outputs)
    request = signature.make(signature, [x, None])
    views = request.inputs
    assert views is request.inputs and views[1] is None
    assert views[0] is not x and np.shares_memory(views[0], x) and not views[0].flags.writeable and x.flags.writeable


def test_buffers_may_be_given_for_one_side_alone():
    read, written = made(input_buffers={0: "a"}), made(output_buffers={1: "b"})
    assert (read.input_buffers, read.output_buffers) == ({0: "a"}, {})
    assert (written.input_buffers, written.output_buffers) == ({}, {1: "b"})


# ------------------------------------------------------------------------------------------------------- giving


WAYS: dict[str, Callable[[Request], object]] = {
    "write": lambda r: [r.write(0, X), r.write(1, Y)],
    "write in another order": lambda r: [r.write(1, Y), r.write(0, X)],
    "write_all": lambda r: r.write_all([X, Y], [(4,), (3,)]),
    "in place": lambda r: [np.copyto(y, value) for y, value in zip(r.outputs, (X, Y), strict=True)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rooms", [None, [None, None], "both", "first", "second"])
def test_each_output_gets_its_own_value(way, rooms):
    if isinstance(rooms, str):
        rooms = [r if rooms in ("both", name) else None for r, name in zip(room(), ("first", "second"), strict=True)]
    request = executed(WAYS[way], made(rooms))
    assert [r.tolist() for r in request.results] == [X.tolist(), Y.tolist()]
    assert request.shapes == [(4,), (3,)] and request.small == () and sufficient(request) == [True, True]
    assert all(r is None or result is r for result, r in zip(request.results, rooms or [None] * 2, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_too_little_room_is_told_of_the_output_that_lacks_it(way):
    enough = np.zeros(16, np.uint8)  # to the byte
    request = executed(WAYS[way], made([enough, np.zeros(11, np.uint8)]))
    assert request.small == (1,) and sufficient(request) == [True, False] and request.shapes == [(4,), (3,)]
    assert enough.view(np.float32).tolist() == X.tolist() and request.results[1] is None


@pytest.mark.parametrize("way", WAYS)
def test_bytes_that_are_as_many_as_elements_are_too_few(way):
    four = np.zeros(4, np.uint8)
    request = executed(WAYS[way], made([four, np.zeros(12, np.uint8)]))
    assert request.small == (0,) and not four.any()


def test_room_of_an_equal_type_is_filled_as_it_is():
    own = np.zeros(4, np.dtype(np.float32, copy=True))
    assert own.dtype is not F32
    request = executed(WAYS["write"], made([own, None]))
    assert request.results[0] is own and own.tolist() == X.tolist()


def test_a_result_is_a_plain_array_whatever_was_given():
    class Special(np.ndarray):
        pass

    request = executed(lambda r: [r.write(0, X.view(Special)), r.write(1, Y)])
    assert type(request.results[0]) is np.ndarray and request.results[0].tolist() == X.tolist()
    scalar = Signature([], [Argument("output 0", F32, ())])
    (result,) = executed(lambda r: r.write(0, np.float32(3)), made(signature=scalar)).results
    assert type(result) is np.ndarray and result == 3 and result.shape == ()


def test_a_new_result_lies_row_by_row_however_the_value_lies():
    picture = Signature([], [Argument("output 0", F32, (2, 3))])
    value = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    (result,) = executed(lambda r: r.write(0, value), made(signature=picture)).results
    assert result.flags.c_contiguous and (result == value).all()


@pytest.mark.parametrize("rooms", [False, True])
def test_an_output_is_not_given_for_the_first_time_after_the_end(rooms):
    request = made(room() if rooms else None)
    request.abandon()
    with pytest.raises(Closed, match="output 0 is written after the execution ended, must be before"):
        request.write(0, X)
    assert request.shapes == [None, None]


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        (lambda r: [r.write(0, X), r.write(0, X)], "device mine: output 0 is written twice, must be once"),
        (lambda r: r.write(0, X), "device mine: output 1 was not written, must be"),
        (lambda r: r.write(1, Y), "device mine: output 0 was not written, must be"),
        (lambda r: r.write(0, [0, 1, 2, 3]), "device mine: output 0 is given list, must be an array of float32"),
        (lambda r: r.write(1, X[:3]), "device mine: output 1 is given float32, must be int32"),
        (lambda r: r.write(1, Y[:2]), r"device mine: output 1 is given shape \[2\], must be \[3\]"),
        (lambda r: r.write(2, Y), "device mine: output 2 is written, must be one of 0 to 1"),
        (lambda r: r.write(-1, Y), "device mine: output -1 is written, must be one of 0 to 1"),
    ],
)
@pytest.mark.parametrize("rooms", [False, True])
def test_what_a_driver_gives_is_held_to_the_rules_with_room_and_without(driver, says, rooms):
    with pytest.raises(ContractBroken, match=says):
        executed(driver, made(room() if rooms else None))


def test_the_first_thing_that_was_wrong_is_told():
    def driver(request: Request) -> None:
        for value in (X[:2], X.astype(np.int8)):
            with pytest.raises(ContractBroken):
                request.write(0, value)
        WAYS["write"](request)

    with pytest.raises(ContractBroken, match=r"given shape \[2\]"):
        executed(driver)


def test_an_output_that_lies_in_a_buffer_is_not_written_but_said_to_be_filled():
    with pytest.raises(ContractBroken, match="output 1 is written, must be filled in its buffer and reported"):
        executed(WAYS["write"], made(output_buffers={1: object()}))
    request = made(output_buffers={1: object()})
    assert request.outputs[1] is None and request.outputs[0] is not None
    request = executed(lambda r: [r.write(0, X), r.filled(1, (3,))], made(output_buffers={1: object()}))
    assert request.shapes == [(4,), (3,)]
    with pytest.raises(Closed):
        request.filled(1, (9,))
    assert request.shapes == [(4,), (3,)]


def test_an_output_may_have_been_put_where_it_belongs():
    bytes_, second = np.zeros(24, np.uint8), np.zeros((1, 1), np.float32)
    bytes_.view(np.float32)[:] = np.arange(6)
    request = executed(lambda r: [r.filled(0, (3, 2)), r.filled(1, (1, 1))], made([bytes_, second], OPEN))
    assert request.shapes == [(3, 2), (1, 1)]
    assert request.results[0].tolist() == [[0, 1], [2, 3], [4, 5]] and np.shares_memory(request.results[0], bytes_)


@pytest.mark.parametrize(
    ("index", "shape", "says"),
    [
        (0, (3, 3), r"output 0 is reported with shape \[3, 3\], must be \[\?, 2\]"),
        (0, (4, 2), r"output 0 is reported with shape \[4, 2\], which its memory does not hold"),
        (1, (1,), r"output 1 is reported with shape \[1\], which its memory does not hold"),
    ],
)
def test_what_is_said_to_be_filled_must_be_there(index, shape, says):
    with pytest.raises(ContractBroken, match=says):
        executed(lambda r: r.filled(index, shape), made([np.zeros(31, np.uint8), None], OPEN))


@pytest.mark.parametrize(("given_up", "lines"), [(True, 0), (False, 1)])
def test_a_driver_is_blamed_for_a_late_write_unless_the_execution_was_given_up(given_up, lines, caplog):
    """At a deadline nobody waits for the driver, which finds out when it writes: that is no fault of its own."""
    request = made()
    if given_up:
        request.abandon()
    else:
        with pytest.raises(ContractBroken, match="was not written"):
            executed(lambda r: None, request)
    with caplog.at_level("WARNING"), pytest.raises(Closed):
        request.write(0, X)
    assert len(caplog.records) == lines


def test_nothing_is_filled_after_the_end():
    bytes_ = np.zeros(16, np.uint8)
    request = executed(lambda r: [r.filled(0, (1, 2)), r.write(1, X)], made([bytes_, None], OPEN))
    with pytest.raises(Closed, match="output 0 is written after the execution ended"):
        request.filled(0, (2, 2))
    assert request.shapes[0] == (1, 2)


@pytest.mark.parametrize(
    ("shapes", "enough"),
    [
        ([(1, 2), (1,)], [True, True]),
        ([(1, 2)], [False, True]),
        ([(1, 2), (1,)], [False]),
        ([(1, 2), (1,), (1,)], [False, True, True]),
    ],
)
def test_who_lacks_room_says_where_and_gives_a_shape_for_each(shapes, enough):
    with pytest.raises(ContractBroken, match="must have 2 entries, one of them false, and a shape for each"):
        executed(lambda r: r.lacks(shapes, enough), made(signature=OPEN))


@pytest.mark.parametrize("shape", [(5, 2), (0, 2), (5, 0), (0, 0), ()])
def test_shapes_of_what_lacks_room_are_told_as_far_as_they_are_known(shape):
    request = executed(lambda r: r.lacks([shape, (7,)], [False, True]), made(signature=OPEN))
    assert request.shapes == [shape, (7,)] and request.small == (0,)


@pytest.mark.parametrize("shape", [(5, 3), (2,), (0, 3), (1, 2, 0)])
def test_a_shape_that_cannot_be_is_refused_of_what_lacks_room_too(shape):
    with pytest.raises(ContractBroken, match=r"output 0 is reported with shape .*, must be \[\?, 2\]"):
        executed(lambda r: r.lacks([shape, (7,)], [False, True]), made(signature=OPEN))


def test_room_is_what_the_caller_gave():
    rooms = [None, np.zeros(3, np.int32)]
    assert made(rooms).room(1) is rooms[1] and made(rooms).room(0) is None and made().room(1) is None


def test_what_became_of_the_same_execution_with_other_memory_is_adopted():
    outer = made([np.zeros(4, np.float32), np.zeros(2, np.int32)])
    inner = executed(WAYS["write"], outer.inside([], outer.rooms))
    outer.adopt(inner)
    assert outer.results[0] is outer.rooms[0] and outer.shapes == [(4,), (3,)] and outer.small == (1,)


# ----------------------------------------------------------------------------------------------------- in place


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_floats_to_fill_in_place_are_no_numbers_before(kind):
    blank = made().memory.blank((2, 3), np.dtype(kind))
    assert blank.shape == (2, 3) and blank.dtype == kind and np.isnan(blank).all() and blank.flags.c_contiguous


@pytest.mark.parametrize("kind", ["i4", "u1", "i2", "?"])
def test_other_elements_to_fill_in_place_are_zero_before(kind):
    assert made().memory.blank((2, 3), np.dtype(kind)).tolist() == np.zeros((2, 3), kind).tolist()


@pytest.mark.parametrize("place", [0, 1, 32, 63])
def test_a_byte_that_is_written_past_the_end_is_found_wherever(place):
    assert len(GUARD) == 64

    def driver(request: Request) -> None:
        y = request.outputs[1]
        WAYS["in place"](request)
        ctypes.memset(y.ctypes.data + y.nbytes + place, 7, 1)

    with pytest.raises(ContractBroken, match="output 1 was written past its end, must not be"):
        executed(driver)


@pytest.mark.parametrize("left", [0, 3])
def test_an_end_that_was_left_is_seen(left):
    def driver(request: Request) -> None:
        WAYS["in place"](request)
        poison = request.memory.blank((), F32)
        request.outputs[0].view(np.uint32)[left] = poison.view(np.uint32)

    with pytest.raises(ContractBroken, match="output 0 was taken to be filled in place and was not"):
        executed(driver)


def test_elements_that_are_no_floats_never_seem_to_be_left() -> None:
    assert (
        made().memory.left_out(np.zeros(4, np.int32)) is False
        and made().memory.left_out(np.zeros(4, np.float32)) is False
    )


def test_memory_is_taken_once_and_what_was_written_besides_counts():
    def driver(request: Request) -> None:
        assert request.outputs[0] is request.outputs[0] is request.outputs[-2]
        assert [y.shape for y in request.outputs[1:]] == [(3,)] and len(request.outputs) == 2
        WAYS["write"](request)

    assert executed(driver).results[0].tolist() == X.tolist()
    with pytest.raises(IndexError):
        made().outputs[2]


def test_no_elements_are_filled_in_place_by_doing_nothing():
    empty = Signature([], [Argument("output 0", F32, (0, 3))])
    (result,) = executed(lambda r: r.outputs[0], made(signature=empty)).results
    assert result.shape == (0, 3)


def test_what_was_filled_in_place_is_not_taken_of_an_execution_that_was_given_up():
    rooms = room()

    def driver(request: Request) -> None:
        WAYS["in place"](request)
        request.abandon()

    request = made(rooms)
    with pytest.raises(Closed, match="device mine: the execution was abandoned before it ended"):
        executed(driver, request)
    assert request.ended and not rooms[0].any() and not rooms[1].any()


# ---------------------------------------------------------------------------------------------------- the end


class Slow(np.ndarray):
    """Room into which a copy takes until it is let go on."""

    begun: threading.Event
    go_on: threading.Event

    def __setitem__(self, key: Any, value: Any) -> None:
        self.begun.set()
        assert self.go_on.wait(30)
        super().__setitem__(key, value)


def slow() -> Slow:
    found = np.zeros(4, np.float32).view(Slow)
    found.begun, found.go_on = threading.Event(), threading.Event()
    return found


def test_an_execution_ends_after_a_copy_that_a_thread_of_the_drivers_has_begun():
    target = slow()
    request = made([target, None])
    later = threading.Timer(0.1, target.go_on.set)

    def driver(r: Request) -> None:
        r.write(1, Y)
        threading.Thread(target=r.write, args=(0, X), daemon=True).start()
        assert target.begun.wait(30)
        later.start()

    executed(driver, request)
    assert target.tolist() == X.tolist() and request.shapes == [(4,), (3,)]
    later.join()


def test_after_an_interrupt_a_request_may_be_executed_again_unless_it_was_given_up():
    request = made(room())
    with pytest.raises(ContractBroken):
        executed(lambda r: [r.write(1, Y), r.write(0, Y)], request)
    assert request.ended
    request.reopen()
    assert not request.ended and request.shapes == [None, None] == request.results and request.small == ()
    assert executed(WAYS["write"], request).shapes == [(4,), (3,)]
    request.abandon()
    request.reopen()
    assert request.ended
    with pytest.raises(Closed):
        request.write(0, X)


def test_the_callers_mistake_leaves_the_output_unwritten():
    gaps = np.zeros(16, np.float32)[::2]
    with pytest.raises(InvalidRequest, match=r"output 0: its output buffer has gaps and shape \[8\], the output \[4\]"):
        executed(lambda r: r.write(0, X), made([gaps, None]))
    assert not gaps.any()


def test_what_was_measured_comes_back_and_an_error_of_nnhals_as_it_was_raised():
    def measured(r: Request, _: Control) -> Timing:
        WAYS["write"](r)
        return Timing(1, 2)

    assert made().execute(measured, UNLIMITED) == Timing(1, 2)
    error = LoopTimeout("loop")

    def late(_: Request) -> None:
        raise error

    with pytest.raises(LoopTimeout) as caught:
        executed(late)
    assert caught.value is error and error.__cause__ is None


# -------------------------------------------------------------------------------------------- under NNHAL_CHECK


@pytest.fixture
def watching(monkeypatch) -> Signature:
    monkeypatch.setenv(CHECK, "1")
    return Signature([Argument("x", F32, (4,))] * 2, TWO.outputs, "device mine")


def test_integers_may_hold_by_right_what_unfilled_memory_holds(watching):
    request = watching.make(watching, [X, None])

    def driver(r: Request) -> None:
        r.outputs[0][:] = X
        assert (r.outputs[1] != 0).all()  # 12 bytes, left as they were

    executed(driver, request)
    wide = Signature([], [Argument("output 0", I32, (8,))])

    def but_one(r: Request) -> None:
        r.outputs[0][:7] = 0

    executed(but_one, made(signature=wide))


def test_each_input_is_compared_and_an_omitted_one_is_none(watching):
    own = X.copy()
    executed(WAYS["write"], watching.make(watching, [own, None]))

    def driver(r: Request) -> None:
        ctypes.memset(r.inputs[0].ctypes.data + 15, 1, 1)
        WAYS["write"](r)

    with pytest.raises(ContractBroken, match="x was written to"):
        executed(driver, watching.make(watching, [own, None]))
