"""Matches the arguments of a builder call to one signature of the operation."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.codes import TYPE_FACTS
from nnhal.base.errors import InvalidModel
from nnhal.base.names import suggestion
from nnhal.frontends.signatures import HABITS, OPTIONS, PAIRS, signature
from nnhal.ops.schema import REQUIRED, Form, Op


def chosen(
    record: Op, arguments: Sequence[Any], named: Mapping[str, Any], element: np.dtype[Any] | None
) -> tuple[Form, dict[str, Any]]:
    """Return the signature that has all the names and needs no others, and the arguments by name.

    element: the requested element type of the output, which may decide between signatures.
    """
    named = _expanded(record, named)
    problems, fitting = [], []
    for form in record.forms:
        names = [a.name for a in form]
        given = dict(zip(names, arguments, strict=False)) | dict(named)
        unknown = [n for n in named if n not in names]
        twice = [n for n in names[: len(arguments)] if n in named]
        optional = [a.name for a in form if a.optional or a.default is not REQUIRED]
        missing = [n for n in names if n not in given and n not in optional and n not in HABITS]
        if not (unknown or twice or missing) and len(arguments) <= len(names):
            fitting.append((form, given))
            continue
        wrong = (
            [f"no argument {n}" for n in unknown]
            + [f"{n} given twice" for n in twice]
            + [f"{n} missing" for n in missing]
        )
        problems.append(f"({', '.join(names)}): {', '.join(wrong) or 'too many arguments'}")
    if not fitting:
        raise InvalidModel(f"{record.name}: " + "; or ".join(problems))
    return max(fitting, key=lambda entry: element in _scalar_types(entry[0]))


def _scalar_types(form: Form) -> list[Any]:
    """Return the element types of a signature's scalar arguments."""
    return [TYPE_FACTS[t].dtype for a in form if a.scalar and isinstance(a.spec, dict) for t in a.spec]


def _expanded(record: Op, named: Mapping[str, Any]) -> dict[str, Any]:
    """Expand pairs: padding, stride, filter_size, dilation."""
    own = {a.name for form in record.forms for a in form}
    found: dict[str, Any] = {}
    for name, value in named.items():
        where = f"{record.name}: {name}"
        if name in PAIRS:
            parts = dict(zip((f"{PAIRS[name]}_h", f"{PAIRS[name]}_w"), _pair(value, where), strict=True))
        elif name == "padding":
            parts = _padding(value, where)
        else:
            parts = {name: value}
        if own.isdisjoint(parts):
            taken = [n for n in signature(record).parameters if n not in ("self", *OPTIONS)]
            raise InvalidModel(
                f"{record.name}: no argument {name}, must be of {', '.join(taken)}{suggestion(name, taken)}"
            )
        for part, each in parts.items():
            if part in found or (part != name and part in named):
                raise InvalidModel(f"{where} sets {part}, which is given too, must be one of them")
            found[part] = each
    return found


def _pair(value: Any, where: str) -> tuple[Any, Any]:
    if value is None or isinstance(value, str | bytes | Mapping):
        raise InvalidModel(f"{where} is {safe_repr(value)}, must be a number or (height, width)")
    if isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.shape):
        if len(value) != 2:
            raise InvalidModel(f"{where} is {safe_repr(value)}, must be a number or (height, width)")
        return value[0], value[1]
    return value, value


def _padding(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str | IntEnum):
        return {"scheme": value}
    try:
        (top, bottom), (left, right) = value
    except (TypeError, ValueError):
        must = 'must be "same", "valid" or ((top, bottom), (left, right))'
        raise InvalidModel(f"{where} is {safe_repr(value)}, {must}") from None
    return {"pad_top": top, "pad_bottom": bottom, "pad_left": left, "pad_right": right}
