"""What may be said of a custom operator, and what is wrong with the rest."""

import pytest

from nnhal.base.custom_operators import CUSTOM_OPERATORS, CustomOperator, register_custom_operator
from nnhal.base.errors import InvalidArgument


def lower(task: object) -> None:
    """Writes nothing."""


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({}, ((1, 1), (1, 1))),
        ({"inputs": 0}, ((0, 0), (1, 1))),
        ({"inputs": 3, "outputs": 2}, ((3, 3), (2, 2))),
        ({"inputs": (1, 3)}, ((1, 3), (1, 1))),
        ({"inputs": (0, 0)}, ((0, 0), (1, 1))),
        ({"inputs": (2, 2), "outputs": (1, None)}, ((2, 2), (1, None))),
    ],
)
def test_the_number_of_inputs_and_outputs_is_one_or_a_range(given, counts):
    register_custom_operator("Mine", lower, **given)
    assert CUSTOM_OPERATORS["Mine"] == CustomOperator("Mine", lower, *counts)


@pytest.mark.parametrize("what", ["inputs", "outputs"])
@pytest.mark.parametrize(
    "count", [-1, True, 1.0, "1", (1,), (1, 2, 3), (-1, 2), (1, -1), (1.0, 2), (1, "2"), [1, 2], (True, 2)]
)
def test_what_is_no_number_of_them_is_refused(what, count):
    with pytest.raises(
        InvalidArgument, match=rf"^custom operator Mine: {what} is .*, must be (a number, or two|the least)"
    ):
        register_custom_operator("Mine", lower, **{what: count})
    assert "Mine" not in CUSTOM_OPERATORS


@pytest.mark.parametrize("count", [None, (None, 1), (None, None), (3, 2), (1, 0)])
def test_a_range_begins_with_a_number_and_does_not_end_before(count):
    with pytest.raises(InvalidArgument, match=r"inputs is .*, must be the least and the greatest number$"):
        register_custom_operator("Mine", lower, inputs=count)


@pytest.mark.parametrize("name", ["", None, 5, b"Mine"])
def test_a_name_is_what_files_have_for_it(name):
    with pytest.raises(
        InvalidArgument, match=r"^custom operator: name is .*, must be the name that files have for it$"
    ):
        register_custom_operator(name, lower)


def test_it_is_lowered_by_a_function_and_the_last_one_counts():
    with pytest.raises(
        InvalidArgument, match=r"^custom operator Mine: is lowered by 5, must be a function of a CustomTask$"
    ):
        register_custom_operator("Mine", 5)  # type: ignore[arg-type]
    for function in (lower, print):
        register_custom_operator("Mine", function)
        assert CUSTOM_OPERATORS["Mine"].lower is function
