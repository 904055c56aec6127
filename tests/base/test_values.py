"""Numbers of callers: each becomes an element of the same value, or an error names it and its place."""

import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.codes import TYPE_FACTS
from nnhal.base.errors import InvalidArgument, InvalidRequest
from nnhal.base.levels import V1_2
from nnhal.base.values import convert_argument as taken
from nnhal.base.values import convert_integer, convert_value, dimensions, parsed_level

DTYPES = sorted({facts.dtype for facts in TYPE_FACTS.values() if facts.dtype is not None}, key=str)
IN_C = {  # of the standard sizes: the native ones let a float overflow
    "float32": "<f", "float16": "<e", "int32": "<i", "uint32": "<I", "int16": "<h", "uint16": "<H", "int8": "<b",
    "uint8": "<B",
}  # fmt: skip
NUMBERS = st.one_of(st.integers(-300, 300), st.integers(-(1 << 140), 1 << 140), st.floats(), st.floats(width=16))
ANYTHING = st.one_of(NUMBERS, st.booleans(), st.none(), st.text(max_size=2))


def in_c(element: Any, dtype: np.dtype[Any]) -> Any:
    """The element as C stores it, by `struct`; None where C or the rules do not take it."""
    if dtype.kind == "b" or isinstance(element, bool):
        return element if dtype.kind == "b" and isinstance(element, bool) else None
    try:
        return struct.unpack(IN_C[dtype.name], struct.pack(IN_C[dtype.name], element))[0]
    except (struct.error, OverflowError, TypeError):
        return None


def same(one: Any, other: Any) -> bool:
    both_nan = math.isnan(one) and math.isnan(other)
    return both_nan or (one == other and math.copysign(1, one) == math.copysign(1, other))


@settings(max_examples=200)
@given(st.sampled_from(DTYPES), st.one_of(st.lists(NUMBERS, max_size=4), st.lists(ANYTHING, max_size=4)))
def test_every_element_keeps_its_value_or_the_first_that_does_not_is_named(
    dtype: np.dtype[Any], given: list[Any]
) -> None:
    wanted = [in_c(element, dtype) for element in given]
    if None in wanted:
        with pytest.raises(InvalidArgument, match=r"^x: element \[\d\] is .*, must be ") as caught:
            convert_value(given, dtype, "x")
        kinds = [i for i, e in enumerate(given) if wanted[i] is None]
        assert int(str(caught.value)[len("x: element [")]) in kinds
    else:
        made = convert_value(given, dtype, "x")
        assert made.dtype == dtype and made.shape == (len(given),)
        assert all(map(same, made.tolist(), wanted))


@settings(max_examples=200)
@given(st.sampled_from(DTYPES), st.sampled_from("bhilqBHILQefd?"), st.lists(NUMBERS, min_size=1, max_size=4))
def test_an_array_of_another_type_is_taken_like_a_list_of_its_elements(
    dtype: np.dtype[Any], code: str, numbers: list[Any]
) -> None:
    with np.errstate(all="ignore"):
        array = np.array([float(n) for n in numbers]).astype(code)
    wanted = [in_c(element, dtype) for element in array.tolist()]
    if array.dtype == dtype:
        assert convert_value(array, dtype, "x") is array
    elif None in wanted:
        with pytest.raises(InvalidArgument, match=rf"^x: element \[{wanted.index(None)}\] is "):
            convert_value(array, dtype, "x")
    elif array.dtype.kind == dtype.kind or array.dtype.itemsize < 8:  # of 8 bytes `struct` rounds to a double first
        assert all(map(same, convert_value(array, dtype, "x").tolist(), wanted))


INT32 = "an integer from -2147483648 to 2147483647"


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        ([[0, 1], [2, 1.7]], "i4", f"x: element [1, 1] is 1.7, must be {INT32}"),
        (2.0, "i4", f"x is 2.0, must be {INT32}"),
        (np.ones(2), "u1", "x: element [0] is 1.0, must be an integer from 0 to 255"),
        (True, "i4", f"x is True, must be {INT32}"),
        ([1, True], "f4", "x: element [1] is True, must be a real number of at most 3.40282e+38 (float32)"),
        ([True, 0], "?", "x: element [1] is 0, must be True or False"),
        ([1.0, None], "f4", "x: element [1] is None, must be a real number of at most 3.40282e+38 (float32)"),
        ("7", "i4", f"x is '7', must be {INT32}"),
        (np.array(["7"]), "i4", f"x: element [0] is '7', must be {INT32}"),
        (65520, "f2", "x is 65520, must be a real number of at most 65504 (float16)"),
        (1j, "f4", "x is 1j, must be a real number of at most 3.40282e+38 (float32)"),
        ([-1, 2**63], "i4", f"x: element [1] is {2**63}, must be {INT32}"),
        (-(10**5000), "i4", f"x is an integer of 16610 bits, must be {INT32}"),
        (np.array([3], "m8[s]"), "i4", f"x: element [0] is datetime.timedelta(seconds=3), must be {INT32}"),
        ([[1, 2], [3]], "i4", "x has lists of different lengths or depths, must have one shape"),
        ([[1, 2], 3], "i4", "x has lists of different lengths or depths, must have one shape"),
        ([np.zeros((2, 2)), np.zeros((3, 2))], "f4", "x has lists of different lengths or depths, must have one shape"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_what_would_not_keep_its_value_is_named_with_its_place_and_the_rule(value, dtype, message):
    with pytest.raises(InvalidArgument) as caught:
        convert_value(value, dtype, "x")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "shape"),
    [(5, ()), (np.int64(5), ()), (np.array(5), ()), ([], (0,)), ([[], []], (2, 0)), (np.zeros((0, 3), int), (0, 3))],
)
def test_single_numbers_and_empty_lists_keep_their_shape(value: Any, shape: tuple[int, ...]) -> None:
    assert convert_value(value, np.uint8, "x").shape == shape


def test_what_is_more_than_a_list_counts_as_its_numbers() -> None:
    for value in (
        range(3),
        bytearray(b"\0\1\2"),
        [np.uint8(0), 1, np.int64(2)],
        [np.array(0), np.float16(1), Fraction(2)],
    ):
        assert convert_value(value, np.float32, "x").tolist() == [0, 1, 2]


def test_a_warning_is_nothing_that_rounding_or_nan_makes() -> None:
    with np.errstate(all="raise"):
        made = convert_value([math.nan, 1e-60, -math.inf], np.float16, "x")
    assert same(made[0], math.nan) and made[1:].tolist() == [0, -math.inf]


def test_the_error_is_of_the_class_that_is_asked_for() -> None:
    with pytest.raises(InvalidRequest, match="input 0 is None"):
        convert_value(None, np.float32, "input 0", InvalidRequest)


@pytest.mark.parametrize("value", [2.0, True, None, "3", np.float32(1)])
def test_only_integers_are_whole(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"size is .*, must be an integer"):
        convert_integer(value, "size")
    assert type(convert_integer(np.uint8(200), "size")) is int


@pytest.mark.parametrize(
    ("value", "found"),
    [([1, 2], (1, 2)), ((), ()), (np.array([3, 0]), (3, 0)), ([2**32 - 1], (2**32 - 1,)), (range(2), (0, 1))],
)
def test_dimensions_are_integers_of_32_bits(value: Any, found: tuple[int, ...]) -> None:
    assert dimensions(value, "shape") == found


@pytest.mark.parametrize(
    ("value", "least", "rule"),
    [
        ([2**32], 0, "must be of integers from 0 to"),
        ([-1], 0, "must be of integers from 0 to"),
        ([1, 0], 1, "must be of integers from 1 to"),
        ([1, 2.0], 0, "dimension 1 is 2.0, must be an integer"),
        ([True], 0, "dimension 0 is True, must be an integer"),
        (3, 0, "must be a sequence of integers"),
        ("12", 0, "must be a sequence of integers"),
        (b"12", 0, "must be a sequence of integers"),
        (np.zeros((2, 2), int), 0, "must be a sequence of integers"),
        ({1, 2}, 0, "must be a sequence of integers"),
    ],
)
def test_what_are_no_dimensions_is_refused_by_rule(value: Any, least: int, rule: str) -> None:
    with pytest.raises(InvalidArgument, match=f"(?s)shape.*{rule}"):
        dimensions(value, "shape", least)


def test_given_arrays_keep_their_memory_and_have_the_type_already() -> None:
    array = np.arange(3, dtype=np.float32)
    assert taken(array, np.float32, "x") is array
    records = array.view(np.recarray)
    plain = taken(records, np.float32, "x")
    assert type(plain) is np.ndarray and np.shares_memory(plain, array)
    assert taken([1, 2], np.float32, "x").dtype == np.float32
    with pytest.raises(InvalidArgument, match="x is int64, must be float32"):
        taken(np.arange(3), np.float32, "x")
    masked = np.ma.array(array, mask=[0, 1, 0])
    with pytest.raises(InvalidArgument, match="x has masked elements, must have none"):
        taken(masked, np.float32, "x")
    assert type(taken(np.ma.array(array), np.float32, "x")) is np.ndarray


def test_no_element_of_an_empty_array_can_be_wrong() -> None:
    assert convert_value(np.zeros((0, 2)), np.int32, "x").dtype == np.int32
    assert convert_value(np.zeros(0, "U3"), np.float32, "x").shape == (0,)


def test_an_integer_of_128_bits_is_shown_and_a_longer_one_counted() -> None:
    with pytest.raises(InvalidArgument, match=rf"is -?{2**128 - 1}, must be"):
        convert_value(2**128 - 1, np.int8, "x")
    with pytest.raises(InvalidArgument, match="is an integer of 129 bits, must be"):
        convert_value(2**128, np.int8, "x")


def test_the_ends_of_a_range_are_in_it() -> None:
    for value, place in (([127, -128, 128], 2), ([-128, 127, -129], 2), (np.array([127, -129]), 1)):
        with pytest.raises(InvalidArgument, match=rf"element \[{place}\] is "):
            convert_value(value, np.int8, "x")


def test_a_level_is_read_or_refused_by_rule() -> None:
    assert parsed_level("1.2") == V1_2
    with pytest.raises(InvalidArgument, match=r"level is '1\.4', must be one of"):
        parsed_level("1.4")


@pytest.mark.parametrize(
    ("dtype", "greatest", "step"),
    [("f2", 65504, 2**5), ("f4", (2**24 - 1) * 2**104, 2**104)],  # the step of numbers of that size
)
def test_what_rounds_to_the_greatest_number_is_that_and_half_a_step_further_is_refused(dtype, greatest, step) -> None:
    near = greatest + step // 2 - (1 if dtype == "f2" else 2**80)
    assert convert_value([near, -near], np.dtype(dtype), "x").tolist() == [greatest, -greatest]
    for sign in (1, -1):
        with pytest.raises(InvalidArgument):
            convert_value(sign * (greatest + step // 2), np.dtype(dtype), "x")
