"""Importers of custom `.tflite` operators that the application has registered.

This module is separate from the importer, so that a driver's process which registers one does not load the importer.
"""

from collections.abc import Callable
from typing import Any

from nnhal.base.answers import safe_repr
from nnhal.base.errors import InvalidArgument
from nnhal.base.records import Record

Count = int | tuple[int, int | None]


class CustomOperator(Record, frozen=True):
    """How nnhal imports an operator. inputs, outputs: the least and greatest number of them; None for any."""

    name: str
    lower: Callable[[Any], object]
    inputs: tuple[int, int | None]
    outputs: tuple[int, int | None]


CUSTOM_OPERATORS: dict[str, CustomOperator] = {}


def register_custom_operator(
    name: str, lower: Callable[[Any], object], *, inputs: Count = 1, outputs: Count = 1
) -> None:
    """Register an importer for a custom operator of `.tflite` files, which `nnhal.load` then uses.

    It replaces nnhal's importer for this name, if there is one, and an earlier registration.

    Args:
        name: The operator's `custom_code` in the file.
        lower: Called with a `nnhal.frontends.tflite.custom.CustomTask` for each operator. It writes operations of NNAPI
            or of an extension, or rejects the operator.
        inputs: The number of inputs, or the least and greatest number; None for any. Another number is a `BadFile`.
        outputs: The number of outputs, likewise.

    Raises:
        InvalidArgument: An argument breaks its rule.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"custom operator: name is {safe_repr(name)}, must be the name that files have for it")
    if not callable(lower):
        raise InvalidArgument(
            f"custom operator {name}: is lowered by {safe_repr(lower)}, must be a function of a CustomTask"
        )
    counts = _count(name, "inputs", inputs), _count(name, "outputs", outputs)
    CUSTOM_OPERATORS[name] = CustomOperator(name, lower, *counts)


def _count(name: str, what: str, given: Count) -> tuple[int, int | None]:
    least, most = given if isinstance(given, tuple) and len(given) == 2 else (given, given)
    for number in (least, most):
        if number is not None and (type(number) is not int or number < 0):
            raise InvalidArgument(
                f"custom operator {name}: {what} is {safe_repr(given)}, must be a number, or two: (1, None)"
            )
    if not isinstance(least, int) or (isinstance(most, int) and most < least):
        raise InvalidArgument(
            f"custom operator {name}: {what} is {safe_repr(given)}, must be the least and the greatest number"
        )
    return least, most
