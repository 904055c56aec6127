"""What people read: one line of at most 120 characters, whatever there is to tell; durations in the unit that fits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.brief import MOST, duration, quoted_name, short_repr, tensor, with_count
from nnhal.base.codes import OperandType


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("x" * 32, f"'{'x' * 32}'"),
        ("x" * 33, f"'{'x' * 29}...'"),
        ("x" + "\n" * 31, "'x" + "\\n" * 14 + "...'"),  # 32 characters, but 63 as they are shown
        ("it's", '"it\'s"'),
        (7, "'7'"),
    ],
)
def test_a_name_is_in_quotes_and_at_most_32_characters_long(name: object, shown: str) -> None:
    assert quoted_name(name) == shown


@pytest.mark.parametrize(
    ("name", "type", "shape", "shown"),
    [
        ("in", OperandType.TENSOR_FLOAT32, (1, None, 3), "'in' FLOAT32[1,?,3]"),
        ("", OperandType.TENSOR_FLOAT32, (2,), "FLOAT32[2]"),
        ("", OperandType.TENSOR_INT32, None, "INT32[?]"),
        ("", OperandType.INT32, (), "INT32"),
    ],
)
def test_an_operand_is_shown_with_what_is_known_of_its_shape(name, type, shape, shown) -> None:
    assert tensor(name, type, shape) == shown


def test_one_thing_is_counted_without_an_s() -> None:
    assert [with_count(n, "input") for n in (0, 1, 2)] == ["0 inputs", "1 input", "2 inputs"]


def test_details_follow_as_far_as_there_is_room() -> None:
    assert short_repr("Model") == "<Model>"
    assert short_repr("Model", ["a", "b"]) == "<Model: a, b>"
    room = MOST - len("<Model: , ...>")
    assert short_repr("Model", ["d" * room, "e"]) == f"<Model: {'d' * room}, ...>"
    assert short_repr("Model", ["d" * (room + 1), "e"]) == "<Model: ...>"
    assert short_repr("M" * (MOST - 2)) == f"<{'M' * (MOST - 2)}>"
    assert short_repr("M" * (MOST - 1)) == f"<{'M' * (MOST - 5)}...>"
    assert short_repr("M" * (MOST - 7), ["detail"]) == f"<{'M' * (MOST - 7)}: ...>"
    assert short_repr("M" * (MOST - 6), ["detail"]) == f"<{'M' * (MOST - 6)}>"


@settings(max_examples=200)
@given(st.text(st.characters(codec="ascii"), max_size=150), st.lists(st.text(max_size=60), max_size=5))
def test_it_is_never_longer_than_a_line_and_tells_all_it_can(what: str, details: list[str]) -> None:
    shown = short_repr(what, details)
    assert len(shown) <= MOST and shown[0] == "<" and shown[-1] == ">"
    whole = f"<{what}{': ' if details else ''}{', '.join(details)}>"
    assert shown == whole or (len(whole) > MOST - len(", ...>") and "..." in shown + "..." * (len(what) > MOST - 8))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0 µs"),
        (999e-9, "0.999 µs"),
        (999.4e-6, "999 µs"),
        (999.9e-6, "1 ms"),
        (12.345678e-3, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.99951, "1 s"),
        (61.26, "61.3 s"),
        (999.6, "1000 s"),
        (12345.4, "12345 s"),
    ],
)
def test_durations_have_three_digits_and_no_power_of_ten(seconds: float, told: str) -> None:
    assert duration(seconds) == told
