"""Converts callers' numbers: every element keeps its value in the array, or an error names it. Also parses levels."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from nnhal.base.answers import raise_application_error, safe_repr
from nnhal.base.errors import InvalidArgument, bounded_text, error_text
from nnhal.base.levels import Level
from nnhal.base.operands import Array

_INTEGER = np.dtype(np.int64)


def convert_value(value: Any, dtype: Any, where: str, error: type[InvalidArgument] = InvalidArgument) -> Array:
    """Convert a number, nested list or array to an operand's element type. An array of that type is returned unchanged.

    Only booleans become booleans, only integers become integers, and they must fit. Real numbers are rounded to the
    float type; NaN and infinity remain, and nothing else becomes infinite. `error` is the class of the error raised.
    """
    dtype = np.dtype(dtype)
    if isinstance(value, np.ndarray) and value.dtype == dtype:
        return value
    array = _array(value, where, error)
    with np.errstate(invalid="ignore", under="ignore"):  # comparing with NaN, rounding to 0
        misfit = _misfit(array, dtype)
        if misfit is None:
            return array.astype(dtype)
    raise error(f"{_element(array, misfit, where)}, must be {_rule(dtype)}")


def convert_argument(value: Any, dtype: Any, where: str, error: type[InvalidArgument] = InvalidArgument) -> Array:
    """Convert numbers and lists as `convert_value` does. An array must have the operand's type, and is not copied."""
    dtype = np.dtype(dtype)
    if not isinstance(value, np.ndarray):
        value = convert_value(value, dtype, where, error)
    if type(value) is not np.ndarray:  # a matrix multiplies differently, and a mask would be lost
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise error(f"{where} has masked elements, must have none")
        value = np.asarray(value)
    if value.dtype != dtype:
        raise error(f"{where} is {value.dtype}, must be {dtype}")
    return value


def dimensions(value: Any, where: str, least: int = 0) -> tuple[int, ...]:
    """Convert dimensions, each from `least` to the largest 32-bit integer; InvalidArgument for anything else."""
    several = value.ndim == 1 if isinstance(value, np.ndarray) else isinstance(value, Sequence)
    if not several or isinstance(value, str | bytes):
        raise InvalidArgument(f"{where} is {safe_repr(value)}, must be a sequence of integers")
    found = tuple(convert_integer(d, f"{where}: dimension {n}") for n, d in enumerate(value))
    if not all(least <= d < 1 << 32 for d in found):
        raise InvalidArgument(f"{where} is {_show(list(found))}, must be of integers from {least} to 2**32 - 1")
    return found


def shapes_by_name(shapes: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return input shapes, given by name or in order, by name; InvalidArgument for anything else."""
    if not isinstance(shapes, Mapping):
        if not isinstance(shapes, Sequence):
            raise InvalidArgument(f"shapes is {safe_repr(shapes)}, must be a mapping by name, or a list in order")
        if len(shapes) != len(names):
            raise InvalidArgument(f"shapes: got {len(shapes)}, must be {len(names)}: {', '.join(names)}")
        shapes = dict(zip(names, shapes, strict=True))
    for name in shapes:
        if name not in names:
            raise InvalidArgument(f"shapes: is {name!r}, must be an input: one of {', '.join(names)}")
    return dict(shapes)


def convert_integer(value: Any, where: str, error: type[InvalidArgument] = InvalidArgument) -> int:
    """Convert an integer to a Python int; `error` for anything else."""
    if type(value) is int:
        return value
    if not _becomes(type(value), _INTEGER):
        raise error(f"{where} is {_show(value)}, must be an integer")
    return int(value)


def _array(value: Any, where: str, error: type[InvalidArgument]) -> Array:
    """Return an array of Python numbers, or the value itself if it is an array."""
    try:
        if hasattr(value, "__array__"):
            return np.asarray(value)
        array = np.array(value, object)
        if any(issubclass(kind, np.generic | np.ndarray) for kind in set(map(type, array.flat))):
            array.flat[:] = [_python(element) for element in array.flat]
        ragged = any(issubclass(kind, list | tuple | np.ndarray) for kind in set(map(type, array.flat)))
    except ValueError:  # arrays in a list that have no common shape
        ragged = True
    except Exception as raised:  # from an object that pretends to be an array
        raise_application_error(raised)
        raise error(
            f"{where} is {safe_repr(value)}, must be an array or numbers: {bounded_text(error_text(raised), 200)}"
        ) from raised
    if ragged:
        raise error(f"{where} has lists of different lengths or depths, must have one shape")
    return array


def _python(element: Any) -> Any:
    """Convert numpy's number to Python's, because numpy's does not compare with large integers."""
    return element.item() if isinstance(element, np.generic | np.ndarray) and not element.shape else element


def _misfit(array: Array, dtype: np.dtype[Any]) -> int | None:
    """Return the place of the first element, in row-major order, that cannot become one of `dtype`."""
    if array.dtype != object:
        if not _becomes(array.dtype.type, dtype):
            return 0 if array.size else None
        return None if _surely(array, dtype) else _first(_beyond(array, dtype))
    fits = {kind: _becomes(kind, dtype) for kind in set(map(type, array.flat))}
    if not all(fits.values()):
        return next(place for place, element in enumerate(array.flat) if not fits[type(element)])
    return _first(_beyond(array, dtype))


def _surely(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether two fast passes show that all numbers fit; never so with NaN or infinity."""
    if not array.size or np.can_cast(array.dtype, dtype):
        return True
    low, high = _limits(dtype)
    return bool(low <= array.min() and array.max() <= high)


def _becomes(kind: type, dtype: np.dtype[Any]) -> bool:
    """Whether elements of this type can become elements of `dtype`."""
    if dtype.kind == "b":
        return issubclass(kind, bool | np.bool_)
    return issubclass(kind, Integral if dtype.kind in "iu" else Real) and not issubclass(kind, bool | np.timedelta64)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the smallest and the largest finite number as Python numbers, which compare exactly."""
    facts = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    return int(facts.min), int(facts.max)


def _beyond(array: Array, dtype: np.dtype[Any]) -> Any:
    """Return which elements are outside the range of `dtype`."""
    if dtype.kind == "b":
        return np.False_
    low, high = _limits(dtype)
    if dtype.kind in "iu":
        return (array < low) | (array > high)
    facts = np.finfo(dtype)
    bound = high + (1 << facts.maxexp - facts.nmant - 2)  # half a unit above the largest number: rounds to infinity
    return (array >= bound) & (array != math.inf) | (array <= -bound) & (array != -math.inf)


def _first(wrong: Any) -> int | None:
    return int(np.argmax(wrong)) if np.any(wrong) else None


def _element(array: Array, place: int, where: str) -> str:
    """Describe an element in messages, with its indices if it has some."""
    indices = ", ".join(str(int(i)) for i in np.unravel_index(place, array.shape))
    return (
        f"{where}: element [{indices}] is {_show(array.flat[place])}" if indices else f"{where} is {_show(array[()])}"
    )


def _show(element: Any) -> str:
    element = _python(element)
    if isinstance(element, int) and element.bit_length() > 128:
        return f"an integer of {element.bit_length()} bits"
    return reprlib.repr(element)


def _rule(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b":
        return "True or False"
    low, high = _limits(dtype)
    return f"an integer from {low} to {high}" if dtype.kind in "iu" else f"a real number of at most {high:g} ({dtype})"


def parsed_level(text: str) -> Level:
    """Parse a level as `Level.parse` does; InvalidArgument for other text."""
    try:
        return Level.parse(text)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
