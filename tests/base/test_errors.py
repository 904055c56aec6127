"""The exception tree: what each error stands for in the HAL and in the NDK, and what is told of any."""

import copy
from typing import Any

import pytest

from nnhal.base import errors
from nnhal.base.codes import ErrorStatus, ResultCode
from nnhal.base.errors import (
    DriverFailed,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    OutputInsufficientSize,
    ResourceExhausted,
    as_error,
    bounded_text,
    copy_of_error,
    error_of,
    error_text,
)

# name: base, ErrorStatus, ResultCode, a class of Python's that it is as well; by the numbers of NeuralNetworks.h
# and of the HAL, which has none for a driver that died
TREE: dict[str, tuple[str, int, int, type[BaseException] | None]] = {
    "NnhalError": ("Exception", 2, 5, None),
    "InvalidArgument": ("NnhalError", 4, 4, ValueError),
    "InvalidModel": ("InvalidArgument", 4, 4, ValueError),
    "UnsupportedModel": ("InvalidModel", 4, 4, ValueError),
    "ShapeNeeded": ("InvalidArgument", 4, 4, ValueError),
    "InvalidRequest": ("InvalidArgument", 4, 4, ValueError),
    "BadFile": ("InvalidArgument", 4, 4, ValueError),
    "BadState": ("NnhalError", 4, 6, RuntimeError),
    "Closed": ("BadState", 4, 6, RuntimeError),
    "OperationFailed": ("NnhalError", 2, 5, None),
    "DriverFailed": ("OperationFailed", 2, 5, None),
    "ContractBroken": ("OperationFailed", 2, 5, None),
    "Cancelled": ("NnhalError", 2, 5, None),
    "OutputInsufficientSize": ("NnhalError", 3, 8, None),
    "DeviceUnavailable": ("NnhalError", 1, 9, None),
    "Unmappable": ("NnhalError", 2, 7, None),
    "OutOfMemory": ("NnhalError", 2, 1, MemoryError),
    "MissedDeadline": ("NnhalError", 5, 10, TimeoutError),
    "LoopTimeout": ("MissedDeadline", 5, 10, TimeoutError),
    "ResourceExhausted": ("NnhalError", 7, 12, None),
    "DeadObject": ("NnhalError", 10_000, 14, None),
}


@pytest.mark.parametrize("name", TREE)
def test_each_error_stands_for_a_status_and_a_result(name):
    base, status, code, python = TREE[name]
    kind = getattr(errors, name)
    error = kind("where is what")
    assert kind.__mro__[1].__name__ == base and issubclass(kind, python or Exception)
    assert (int(error.status), int(error.code)) == (status, code)
    assert str(error) == "where is what" and error.stack == "" and f"{name} " in (errors.__doc__ or "") + " "


def test_the_tree_holds_every_error():
    own = {n for n, k in vars(errors).items() if isinstance(k, type) and issubclass(k, NnhalError)}
    assert own == set(TREE)


@pytest.mark.parametrize("kind", [MissedDeadline, ResourceExhausted, errors.LoopTimeout])
def test_what_would_fail_again_says_so(kind):
    for persistent, name in ((False, "TRANSIENT"), (True, "PERSISTENT")):
        error = kind("late", persistent=persistent)
        assert error.status.name.endswith(name) and error.code.name == error.status.name


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("NONE", "OperationFailed"),
        ("DEVICE_UNAVAILABLE", "DeviceUnavailable"),
        ("GENERAL_FAILURE", "OperationFailed"),
        ("OUTPUT_INSUFFICIENT_SIZE", "OutputInsufficientSize"),
        ("INVALID_ARGUMENT", "InvalidArgument"),
        ("MISSED_DEADLINE_TRANSIENT", "MissedDeadline"),
        ("MISSED_DEADLINE_PERSISTENT", "MissedDeadline"),
        ("RESOURCE_EXHAUSTED_TRANSIENT", "ResourceExhausted"),
        ("RESOURCE_EXHAUSTED_PERSISTENT", "ResourceExhausted"),
        ("DEAD_OBJECT", "DeadObject"),
    ],
)
def test_a_status_alone_becomes_the_error_that_has_it(status, kind):
    error = error_of(ErrorStatus[status], "told")
    assert type(error).__name__ == kind and str(error) == "told"
    assert error.status.name == ("GENERAL_FAILURE" if status == "NONE" else status)
    assert len(ErrorStatus) == 10


def test_shapes_come_with_room_that_was_too_small():
    error = OutputInsufficientSize("small", [(1, 2), None])
    assert error.shapes == ((1, 2), None) and OutputInsufficientSize("small").shapes == ()
    assert error.code == ResultCode.OUTPUT_INSUFFICIENT_SIZE


# --------------------------------------------------------------------------------------------------------------- text


def test_a_message_is_text_of_bounded_length_that_moves_no_terminal():
    assert str(NnhalError("a\x1b[2Jb\nc\td")) == "a\\x1b[2Jb\nc\td"
    assert len(str(NnhalError("x" * 30_000))) == len(str(NnhalError("\x1b" * 30_000))) == 18_000
    assert str(NnhalError("x" * 18_000)) == "x" * 18_000


@pytest.mark.parametrize(
    ("text", "most", "clip"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "abc ..."),
        ("", 3, ""),
        ("ab\ud800", 10, "ab\\ud800"),
        ("ab\ud800", 4, "ab\\u ..."),
    ],
)
def test_clipped_text_is_unicode_and_says_that_there_was_more(text, most, clip):
    assert bounded_text(text, most) == clip


def test_clipped_text_has_16000_characters_where_nothing_is_said():
    assert bounded_text("x" * 16_000) == "x" * 16_000 and bounded_text("x" * 16_001) == "x" * 16_000 + " ..."


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("none of your business")


class Text(str):
    def __str__(self) -> str:
        raise RuntimeError("no text after all")


class Odd(Exception):
    def __str__(self) -> str:
        return Text("odd")


class Meta(type):
    __name__ = property(lambda _: 1 / 0)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NnhalError("where is what"), "where is what"),
        (OSError("no engine"), "OSError: no engine"),
        (Untold(), "Untold: an error without a readable message"),
        (Odd(), "Odd: odd"),
        (type("N" * 300, (Exception,), {})("long"), "N" * 200 + " ...: long"),
        (ValueError("x" * 20_000), "ValueError: " + "x" * 18_000 + " ..."),
        (KeyError("key"), "KeyError: 'key'"),
    ],
)
def test_an_error_is_told_with_its_class_where_it_is_none_of_nnhals(error, said):
    assert error_text(error) == said


def test_a_class_that_hides_its_name_is_named_all_the_same():
    hidden = Meta("Hidden", (Exception,), {})("x")
    assert error_text(hidden) == "Hidden: x"


# --------------------------------------------------------------------------------------------------------------- kept


def test_an_error_to_be_raised_again_is_a_copy_with_its_cause():
    cause = ValueError("first")
    for kept in (OperationFailed("kept"), MissedDeadline("late", persistent=True), OutputInsufficientSize("s", [(3,)])):
        kept.__cause__, kept.stack = cause, "there"
        try:
            raise kept
        except NnhalError:
            made = copy_of_error(kept)
        assert made is not kept and type(made) is type(kept) and str(made) == str(kept)
        assert (made.__cause__, made.__traceback__, made.stack) == (cause, None, "there")
        assert (made.status, made.code) == (kept.status, kept.code)
        assert getattr(made, "shapes", None) == getattr(kept, "shapes", None)


def test_a_copied_error_says_what_it_said():
    error = copy.copy(ResourceExhausted("full", persistent=True))
    assert str(error) == "full" and error.status is ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT


def test_what_a_driver_raised_is_the_cause_of_its_failure():
    own, foreign = OperationFailed("mine"), ValueError("theirs")
    assert as_error(own, "device d") is own
    made: Any = as_error(foreign, "device d")
    assert type(made) is DriverFailed and str(made) == "device d: ValueError: theirs" and made.__cause__ is foreign
