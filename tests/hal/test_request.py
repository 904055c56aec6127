"""What a request holds a driver to, told where a driver author would look: here, one rule a test."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import (
    Cancelled,
    Closed,
    ContractBroken,
    DriverFailed,
    InvalidRequest,
    LoopTimeout,
    MissedDeadline,
)
from nnhal.hal.request import CHECK, UNLIMITED, Control, Request, Signature
from tests.models import make_model

X = np.arange(4, dtype=np.float32)


def model(*shape: int | None, kind: str = "TENSOR_FLOAT32") -> nnhal.Model:
    return make_model(lambda b, x: b.add(x, x, name="y"), name="twice", x=(shape, kind))


def request(rooms: Any = None, *shape: int | None, kind: str = "TENSOR_FLOAT32") -> Request:
    signature = Signature.of(model(*(shape or (4,)), kind=kind), "device mine")
    return signature.make(signature, [X], rooms)


def executed(driver: Callable[[Request], Any], made: Request | None = None) -> Request:
    made = made or request()
    made.execute(lambda r, _: driver(r), UNLIMITED)
    return made


Give = Callable[[Request, np.ndarray], None]


@pytest.fixture(params=["write", "write_all"])
def give(request: pytest.FixtureRequest) -> Give:
    """Both ways to give the one output its value."""
    if request.param == "write":
        return lambda made, value: made.write(0, value)
    return lambda made, value: made.write_all([value], [value.shape])


def test_a_result_in_larger_room_lies_in_it_with_its_true_shape(give: Give) -> None:
    for room in (np.zeros(9, np.float32), np.zeros(40, np.uint8)):
        made = executed(lambda r: give(r, X), request([room], None))
        (result,) = made.results
        assert np.shares_memory(result, room) and result.tolist() == [0, 1, 2, 3] and made.shapes == [(4,)]


def test_room_with_gaps_and_another_shape_is_the_callers_mistake(give: Give) -> None:
    with pytest.raises(
        InvalidRequest, match=r"output 0 \(y\): its output buffer has gaps and shape \[9\], the output \[4\]"
    ):
        executed(lambda r: give(r, X), request([np.zeros(18, np.float32)[::2]], None))


@pytest.mark.parametrize("rooms", [None, [None]])
def test_a_new_result_is_a_copy_that_the_driver_does_not_hold(give: Give, rooms: Any) -> None:
    given = X * 3
    (result,) = executed(lambda r: give(r, given), request(rooms)).results
    given[:] = 0
    assert (result == X * 3).all() and result.base is None


@pytest.mark.parametrize("rooms", [None, [np.zeros(4, np.float32)]], ids=["fresh", "room"])
def test_after_the_end_nothing_is_taken(give: Give, rooms: Any) -> None:
    made = executed(lambda r: give(r, X), request(rooms))
    for late in (lambda: give(made, X * 9), lambda: made.filled(0, (4,))):
        with pytest.raises((Closed, ContractBroken)):
            late()
    assert (made.results[0] == X).all() and made.shapes == [(4,)]


def test_an_execution_that_was_given_up_takes_nothing_and_cannot_end_well(give: Give) -> None:
    room = np.full(4, -1, np.float32)
    made = request([room])

    def late(r: Request) -> None:
        r.abandon()  # as a lane does at the deadline
        with pytest.raises(Closed, match="is written after the execution ended"):
            give(r, X)

    with pytest.raises(Closed, match="was abandoned before it ended"):
        executed(late, made)
    assert (room == -1).all()


@pytest.mark.parametrize("first", [True, False])
def test_a_request_inside_another_is_abandoned_with_it_whether_it_was_made_before_or_after(first: bool) -> None:
    """The driver has the inner request, so the inner one must write nothing once the outer one is abandoned."""
    outer, room = request(), np.full(4, -1, np.float32)
    if first:
        outer.abandon()
    inner = outer.inside([X], [room])
    if not first:
        outer.abandon()
    with pytest.raises(Closed, match="is written after the execution ended"):
        inner.write(0, X)
    assert (room == -1).all()


def test_giving_up_waits_for_a_copy_that_is_under_way(give: Give) -> None:
    """Whoever gives up may use the room at once: a large copy on another thread has ended by then."""
    count = 1 << 24
    signature = Signature.of(model(count), "device mine")
    value = np.ones(count, np.float32)
    for _ in range(5):
        room = np.zeros(2 * count, np.float32)[::2]  # with gaps: numpy gives the interpreter up meanwhile
        made = signature.make(signature, [value], [room])
        writer = threading.Thread(target=lambda made=made: _quietly(lambda: give(made, value)))
        writer.start()
        while room[0] == 0 and writer.is_alive():
            pass
        made.abandon()
        after = room[-1]
        writer.join()
        assert room[-1] == after and (room[0] == room[-1])


def _quietly(call: Callable[[], object]) -> None:
    with suppress(Closed):
        call()


def test_an_output_of_unknown_shape_has_no_memory_to_fill():
    made = executed(lambda r: r.write(0, X) if r.outputs[0] is None else None, request(None, None))
    assert (made.results[0] == X).all()


def test_inputs_cannot_be_written_to():
    def driver(r: Request) -> None:
        r.inputs[0][:] = 9

    with pytest.raises(DriverFailed, match="ValueError: assignment destination is read-only"):
        executed(driver)
    assert X.tolist() == [0, 1, 2, 3]


def test_an_exception_of_a_drivers_own_is_its_failure_with_the_cause():
    def driver(r: Request) -> None:
        raise KeyError("weights")

    with pytest.raises(DriverFailed, match="device mine: KeyError: 'weights'") as caught:
        executed(driver)
    assert isinstance(caught.value.__cause__, KeyError)


def limits() -> dict[str, Control]:
    cancelled = threading.Event()
    cancelled.set()
    return {
        "none": UNLIMITED,
        "a deadline that passed": Control(deadline=1),
        "a deadline to come": Control(deadline=time.monotonic_ns() + 3600 * 10**9),
        "not cancelled": Control(cancelled=threading.Event()),
        "cancelled": Control(cancelled=cancelled),
    }


@pytest.mark.parametrize(
    "error, limit, kind, text",
    [
        (
            Cancelled("stop"),
            "none",
            ContractBroken,
            "device mine: reports a cancelled execution, but nobody cancelled it: .*stop",
        ),
        (Cancelled("stop"), "not cancelled", ContractBroken, "but nobody cancelled it"),
        (Cancelled("stop"), "cancelled", Cancelled, "^stop$"),
        (
            MissedDeadline("late"),
            "none",
            ContractBroken,
            "device mine: reports a missed deadline, but there is no deadline: .*late",
        ),
        (MissedDeadline("late"), "a deadline that passed", MissedDeadline, "^late$"),
        (MissedDeadline("early"), "a deadline to come", MissedDeadline, "^device mine: early$"),
        (LoopTimeout("loop"), "none", LoopTimeout, "^loop$"),
        (InvalidRequest("no"), "none", InvalidRequest, "^device mine: no$"),
    ],
)
def test_a_driver_that_lays_its_failure_on_the_caller_is_named(error, limit, kind, text):
    def run(*_: Any) -> None:
        raise error

    with pytest.raises(kind, match=text):
        request().execute(run, limits()[limit])


def test_an_interrupt_reaches_the_main_thread_only():
    def driver(r: Request) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executed(driver)
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            executed(driver)
        except BaseException as raised:
            caught.append(raised)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert isinstance(caught[0], DriverFailed)


def test_an_exit_is_the_drivers_failure():
    def driver(r: Request) -> None:
        raise SystemExit(0)

    with pytest.raises(DriverFailed, match=r"^device mine: SystemExit: 0$"):
        executed(driver)


@pytest.mark.parametrize("index", [1, -1, "y", None, 1.0])
def test_an_output_that_is_not_there_is_an_error(index):
    with pytest.raises(ContractBroken, match="is written, must be one of 0 to 0"):
        executed(lambda r: r.write(index, X))


# ---------------------------------------------------------------------------------------------- under NNHAL_CHECK


@pytest.fixture
def watched(monkeypatch) -> Request:
    monkeypatch.setenv(CHECK, "1")
    return request()


def test_every_element_to_be_filled_is_looked_at(watched):
    def driver(r: Request) -> None:
        y = r.outputs[0]
        y[0] = y[-1] = 1

    with pytest.raises(ContractBroken, match="must be filled wholly"):
        executed(driver, watched)


def test_integers_that_were_not_filled_are_found(monkeypatch):
    monkeypatch.setenv(CHECK, "1")
    with pytest.raises(ContractBroken, match="must be filled wholly"):
        executed(lambda r: r.outputs[0], request(None, 4, kind="TENSOR_INT32"))


def test_what_is_written_in_place_after_the_end_is_told_of_at_the_next_execution(watched):
    held: list[Any] = []

    def driver(r: Request) -> None:
        held.append(r.outputs[0])
        held[-1][:] = X

    executed(driver, watched)
    signature = watched.signature
    executed(driver, signature.make(signature, [X]))
    held[0][2] = 9
    with pytest.raises(ContractBroken, match=r"output 0 \(y\) of an earlier execution was written to after its end"):
        executed(driver, signature.make(signature, [X]))
    executed(driver, signature.make(signature, [X]))


def test_nothing_is_found_where_nothing_is_wrong(watched):
    for _ in range(3):
        made = watched.signature.make(watched.signature, [X])
        made.execute(lambda r, _: r.write(0, r.inputs[0]), Control())
        assert (made.results[0] == X).all()
