"""Inputs of a file that the caller sets: constants and shapes; and messages about those that are missing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.errors import InvalidArgument, InvalidModel, ShapeNeeded, UnsupportedModel
from nnhal.base.names import short
from nnhal.base.operands import Array
from nnhal.model.graph import Model
from nnhal.model.validate import validate

Values = Mapping[str, Any]
Shapes = Mapping[str, Sequence[int]] | Sequence[Sequence[int]]
SHAPE_NEEDED = "a shape that the file leaves open must be given (--shape)"  # for the outline of a file
OPEN = (0, -1)  # the marks of a dimension that is unknown until execution
Problems = Mapping[tuple[str, str], Sequence[str]]  # places, by an operator's name and the reason
Left = list[tuple[str, tuple[int, ...], str]]  # an input's name, its assumed shape, and the text of the file's shape


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


# --------------------------------------------------------------------------------------------------------- open shapes


def unsupported(label: str, problems: Problems, hint: str = "") -> UnsupportedModel:
    """Return one error that lists everything that cannot be expressed. hint: what may help."""
    parts = []
    for (name, reason), places in problems.items():
        where = " ".join([name, ", ".join(filter(None, places))]).strip()
        parts.append(f"{where}: {reason}" if reason else where)
    error = UnsupportedModel(f"{label}: cannot be expressed in NNAPI: {'; '.join([*parts, *filter(None, [hint])])}")
    error.refused = [(name, place, why) for (name, why), places in problems.items() for place in places]
    return error


def shape_hint(name: str, shape: tuple[int, ...]) -> str:
    """Return the option that sets the shape of an input, ready to copy."""
    import shlex

    option = shlex.quote(f"{short(name)}={','.join(map(str, shape))}")
    return f"--shape {option}, or shapes={{{name!r}: {shape!r}}}, with your sizes sets"


def shapes_needed_message(left: Left) -> str:
    """Return the message that asks for shapes."""
    return "; ".join(
        f"{text} is open in the file, must be given; {shape_hint(name, shape)} it" for name, shape, text in left
    )


def open_notes(left: Left) -> list[str]:
    """Return a note for each input whose open shape was assumed."""
    return [
        f"{text} is open in the file and taken as {list(shape)}; {shape_hint(name, shape)} it"
        for name, shape, text in left
    ]


def lasting(label: str, problems: Problems, always: Problems, left: Left) -> dict[tuple[str, str], list[str]]:
    """Return the problems that occur with any sizes of open dimensions.

    Args:
        label: The file, for messages.
        problems: Those with assumed sizes.
        always: Those with open sizes.
        left: The inputs with assumed sizes.

    Raises:
        ShapeNeeded: There are no such problems.
    """
    found = {key: [*places] for key, places in problems.items() if always.get(key) == places}
    if not found:
        raise ShapeNeeded(f"{label}: {shapes_needed_message(left)}")
    return found


def validated(model: Model, label: str, left: Left) -> Model:
    """Validate a model; raise ShapeNeeded for an invalid one if sizes were assumed."""
    try:
        validate(model)
    except InvalidModel as error:
        raise (ShapeNeeded(f"{label}: {shapes_needed_message(left)}") if left else error) from None
    return model
