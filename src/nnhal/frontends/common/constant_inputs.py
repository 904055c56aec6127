"""Inputs of a file that the caller sets to constants."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.errors import InvalidArgument
from nnhal.base.operands import Array

Values = Mapping[str, Any]


def arrays(values: Values | None) -> dict[str, Array]:
    """Convert the values to arrays. Raises InvalidArgument for values that are not numbers or booleans."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidArgument(f"values is {safe_repr(values)}, must be a mapping of input names to numbers or arrays")
    found = {}
    for name, value in values.items():
        try:
            array = np.asarray(value)
        except ValueError:  # rows of different lengths
            array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            raise InvalidArgument(f"values: {name} is {safe_repr(value)}, must be numbers or booleans")
        found[str(name)] = array
    return found


def fitted(name: str, array: Array, dtype: str, dims: Sequence[Any] | None) -> Array:
    """Convert an array to the type and shape of an input.

    dims: entries that are not sizes match any; None matches any shape.

    Raises InvalidArgument if that would change its values.
    """
    known = [dim for dim in dims or () if isinstance(dim, int) and dim > 0]
    if dims is not None and len(known) == len(dims) and array.size == np.prod(known, dtype=np.int64) and not array.ndim:
        array = array.reshape(known)
    agree = dims is None or (
        array.ndim == len(dims) and all(n == dim or dim not in known for n, dim in zip(array.shape, dims, strict=True))
    )
    if not agree:
        must = f"[{', '.join(str(dim) if dim in known else '?' for dim in dims or ())}]"
        raise InvalidArgument(f"values: {name} has shape {list(array.shape)}, must be {must} as in the file")
    with np.errstate(all="ignore"):
        made = np.ascontiguousarray(array, dtype).reshape(array.shape)
        same = np.isclose(made, array, 1e-3, 0, equal_nan=True) if made.dtype.kind == "f" else made == array
    if not np.all(same):
        raise InvalidArgument(
            f"values: {name} is {safe_repr(array.tolist())}, must fit {np.dtype(dtype).name} as in the file"
        )
    return made


def is_all_fixed(values: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise InvalidArgument for a value whose name is not an input."""
    for name in values:
        if name not in names:
            raise InvalidArgument(f"values: {name!r} is not an input, must be one of {', '.join(names)}")
