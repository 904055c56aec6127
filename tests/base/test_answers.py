"""What drivers raise and what becomes of it: the class, the words, the stack."""

import gc
import signal
import threading
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from nnhal.base import stacks
from nnhal.base.answers import close_quietly, driver_call, may_be_application_error, raise_application_error, safe_repr
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import (
    LONGEST,
    Cancelled,
    DeadObject,
    DeviceUnavailable,
    DriverFailed,
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    OutOfMemory,
    OutputInsufficientSize,
    ResourceExhausted,
    as_error,
    bounded_text,
    copy_of_error,
    error_of,
    error_text,
)
from nnhal.base.stacks import stack_of, with_note, without_frames
from tests.waiting import LIMIT


class Unshown:
    def __repr__(self) -> str:
        raise ValueError("no")


class Wordy(NnhalError):
    """Says what it likes."""

    def __str__(self) -> str:
        return "words of its own"


def asked(error: BaseException) -> NnhalError:
    with pytest.raises(NnhalError) as caught, driver_call("device d", "run()"):
        raise error
    return caught.value


def test_a_value_is_shown_in_at_most_200_characters() -> None:
    assert safe_repr("x" * 198) == repr("x" * 198) and safe_repr("x" * 199) == repr("x" * 199)[:200] + " ..."
    assert safe_repr(Unshown()) == "a Unshown that cannot be shown"


@pytest.mark.parametrize("kind", [OperationFailed, ZeroDivisionError])
@pytest.mark.parametrize("own", ["", "device d: "], ids=["named", "names itself"])
def test_what_a_driver_raises_is_one_line_that_commands_no_terminal(kind: type[Exception], own: str) -> None:
    said = str(asked(kind(f"{own}no\x1b[2J\nnnhal: all is fine")))
    assert said.startswith("device d: ") and said.endswith(r"no\x1b[2J\nnnhal: all is fine")


def test_what_a_driver_raises_names_it_and_keeps_its_class_where_that_is_one_of_nnhals() -> None:
    own = InvalidArgument("size is 0, must be 1")
    assert asked(own) is own and str(own) == "device d: size is 0, must be 1"
    told_already = InvalidArgument("device d: well said")
    assert asked(told_already) is told_already and str(told_already) == "device d: well said"
    foreign = asked(KeyError("weights"))
    assert type(foreign) is DriverFailed and str(foreign) == "device d: run() raised KeyError: 'weights'"
    assert isinstance(foreign.__cause__, KeyError)
    wordy = asked(Wordy())
    assert type(wordy) is DriverFailed and str(wordy) == "device d: run() raised Wordy: words of its own"
    assert type(asked(MemoryError())) is OutOfMemory and "ran out of memory" in str(asked(MemoryError()))
    out = OutOfMemory("device d: the pool is full")
    assert asked(out) is out and "the pool is full" in str(out)


def test_an_interrupt_is_the_applications_on_the_main_thread_and_the_drivers_elsewhere() -> None:
    error = KeyboardInterrupt()
    assert may_be_application_error(error)
    with pytest.raises(KeyboardInterrupt), driver_call("device d", "run()"):
        raise error
    with ThreadPoolExecutor(1) as elsewhere:
        found = elsewhere.submit(asked, error).result()
    assert type(found) is DriverFailed and "KeyboardInterrupt" in str(found)
    assert not may_be_application_error(ValueError())


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(3), GeneratorExit()])
def test_what_else_ends_a_program_is_the_drivers_failure_on_every_thread(error: BaseException) -> None:
    """A command would end with status 0, as if its check had passed."""
    assert type(asked(error)) is DriverFailed
    with ThreadPoolExecutor(1) as elsewhere:
        assert type(elsewhere.submit(asked, error).result()) is DriverFailed


class Alarm(SystemExit):
    """What a signal handler of the application raises: an exit, which a driver may not."""


def _raise(*_: object) -> None:
    raise Alarm


class Handlers:
    def method(self, number: int, frame: object) -> None:
        raise Alarm

    def __call__(self, number: int, frame: object) -> None:
        _raise()


HANDLERS = {
    "function": lambda number, frame: _raise(),
    "of any arguments": _raise,
    "with options": lambda *_, option=1: _raise(),
    "method": Handlers().method,
    "object": Handlers(),
    "partial": partial(lambda more, number, frame: _raise(), "more"),
}


def driver_in_which_the_signal_comes(wraps: str = "") -> None:
    try:
        signal.raise_signal(signal.SIGUSR2)
        threading.Event().wait(LIMIT)  # until the handler has run
    except Alarm as error:
        if wraps == "cause":
            raise RuntimeError("the engine was stopped") from error
        if wraps == "context":
            raise RuntimeError("the engine was stopped")  # noqa: B904 (a driver need not)
        raise


@pytest.mark.parametrize("wraps", ["", "cause", "context"])
@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_signal_handler_raises_is_the_applications_whatever_the_driver_makes_of_it(
    handler: str, wraps: str
) -> None:
    before = signal.signal(signal.SIGUSR2, HANDLERS[handler])  # type: ignore[arg-type]
    try:
        with pytest.raises(Alarm), driver_call("device d", "run()"):
            driver_in_which_the_signal_comes(wraps)
        try:
            driver_in_which_the_signal_comes()
        except Alarm:  # what a driver raises while the application handles that is the driver's
            assert type(asked(KeyError("weights"))) is DriverFailed
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_what_is_raised_when_something_ends_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    close_quietly("device d", "close()", lambda: {}["bolt"])  # type: ignore[index]
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert record.getMessage() == "device d: close() raised KeyError: 'bolt'"
    assert record.exc_info is not None and record.exc_info[0] is KeyError
    close_quietly("device d", "close()", lambda: None)
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1


STATUSES = {
    "INVALID_ARGUMENT": InvalidArgument,
    "DEVICE_UNAVAILABLE": DeviceUnavailable,
    "GENERAL_FAILURE": OperationFailed,
    "OUTPUT_INSUFFICIENT_SIZE": OutputInsufficientSize,
    "MISSED_DEADLINE_TRANSIENT": MissedDeadline,
    "MISSED_DEADLINE_PERSISTENT": MissedDeadline,
    "RESOURCE_EXHAUSTED_TRANSIENT": ResourceExhausted,
    "RESOURCE_EXHAUSTED_PERSISTENT": ResourceExhausted,
    "DEAD_OBJECT": DeadObject,
}


@pytest.mark.parametrize("name", STATUSES)
def test_a_status_becomes_an_error_of_that_status_with_the_words(name: str) -> None:
    error = error_of(ErrorStatus[name], "why")
    assert type(error) is STATUSES[name] and error.status == ErrorStatus[name] and str(error) == "why"


def test_the_shapes_of_what_did_not_fit_are_kept() -> None:
    assert OutputInsufficientSize("small", [(2, 3), None]).shapes == ((2, 3), None)


def test_text_is_clipped_and_can_travel() -> None:
    assert bounded_text("abcd", 4) == "abcd" and bounded_text("abcde", 4) == "abcd ..."
    assert bounded_text("a\udcffb") == "a\\udcffb"
    assert len(bounded_text("x" * 20_000)) == 16_000 + len(" ...")
    assert len(str(InvalidArgument("x" * 30_000))) == LONGEST
    assert error_text(InvalidArgument("why")) == "why" and error_text(ValueError("why")) == "ValueError: why"


def test_an_error_that_is_kept_is_raised_as_a_copy_with_its_cause() -> None:
    kept = as_error(KeyError("k"), "device d")
    assert (
        type(kept) is DriverFailed and str(kept) == "device d: KeyError: 'k'" and isinstance(kept.__cause__, KeyError)
    )
    copy = copy_of_error(kept)
    assert copy is not kept and str(copy) == str(kept) and copy.__cause__ is kept.__cause__
    own = InvalidArgument("x")
    assert as_error(own, "device d") is own


# ------------------------------------------------------------------------------------------------------------- stacks


def raised(depth: int, error: BaseException) -> BaseException:
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        raise error

    try:
        deeper(depth)
    except BaseException as caught:
        return caught
    raise AssertionError


def test_a_deep_stack_shows_its_first_and_last_frames_and_how_many_lie_between() -> None:
    for depth, lines in ((18, 20), (19, 21)):  # with `raised` and the deepest one more each
        shown = stack_of(raised(depth, ValueError("deep"))).splitlines()
        left_out = [line for line in shown if "left out" in line]
        assert left_out == ([] if lines == 20 else ["  ... 1 frames left out"])
        assert len([line for line in shown if line.startswith('  File "')]) == 20
        assert shown[-1] == "ValueError: deep" and shown[1] == "    deeper(depth)"
    assert "  ... 30 frames left out" in stack_of(raised(48, ValueError("deep")))


def test_causes_come_first_each_once_and_no_more_than_four() -> None:
    errors = [raised(0, ValueError(f"number {n}")) for n in range(6)]
    for error, cause in zip(errors[1:], errors, strict=False):
        error.__cause__ = cause
    words = [line for line in stack_of(errors[-1]).splitlines() if line.startswith("ValueError")]
    assert words == [f"ValueError: number {n}" for n in (2, 3, 4, 5)]
    errors[0].__cause__ = errors[1]
    words = [line for line in stack_of(errors[1]).splitlines() if line.startswith("ValueError")]
    assert words == ["ValueError: number 0", "ValueError: number 1"]
    assert stack_of(ValueError("never raised")) == ""


def test_what_only_says_that_it_is_time_has_no_stack() -> None:
    for kind in (Cancelled, MissedDeadline):
        error = raised(0, kind("late"))
        assert isinstance(error, NnhalError)
        stacks.store_stack(error)
        assert error.stack == ""
    error = raised(0, OperationFailed("oops"))
    assert isinstance(error, NnhalError)
    stacks.store_stack(error)
    assert error.stack.endswith("oops")


def test_a_stack_told_by_another_process_is_a_note_of_bounded_printable_text() -> None:
    error = with_note(OperationFailed("oops"), "File \x1b[2J\n" + "y" * 10_000)
    assert error.stack.startswith("File \\x1b[2J\n") and len(error.stack) <= stacks.LONGEST + len(" ...")
    assert error.__notes__ == [f"In the driver's process:\n{error.stack}"]
    assert not hasattr(with_note(OperationFailed("oops"), ""), "__notes__")


def test_an_error_that_is_kept_holds_nothing_of_what_was_at_work_its_causes_and_contexts_neither() -> None:
    class Held:
        pass

    seen: list[weakref.ref[Held]] = []

    def work(then: BaseException | None, error: BaseException, explicit: bool) -> None:
        held = Held()
        seen.append(weakref.ref(held))
        try:
            if then is not None:
                raise then
        except BaseException as before:
            if explicit:
                raise error from before
            raise error  # noqa: B904
        raise error

    kept: BaseException | None = None
    for explicit in (True, False):
        try:
            work(kept, ValueError("of a driver"), explicit)
        except ValueError as error:
            kept = error
    assert kept is not None and all(ref() is not None for ref in seen)
    assert without_frames(kept) is kept
    assert all(ref() is None for ref in seen)
    assert "of a driver" in "".join(traceback.format_exception(kept))
    loop = ValueError("loop")
    loop.__cause__ = loop
    assert without_frames(loop) is loop


def test_what_was_held_where_an_interrupt_came_goes_with_the_interrupt() -> None:
    class Held:
        pass

    def interrupted(held: Held) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise_application_error(error)

    held = Held()
    gone = weakref.ref(held)
    gc.disable()
    try:
        with suppress(KeyboardInterrupt):
            interrupted(held)
        del held
        assert gone() is None
    finally:
        gc.enable()
