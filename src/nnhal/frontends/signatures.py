"""Signatures and help of the builder's methods, generated from the records, and the signature that a call matches.

Arguments that differ between signatures of an operation are keywords. `padding`, `stride`, `filter_size` and `dilation`
replace the arguments that they consist of.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from inspect import Parameter, Signature
from keyword import iskeyword
from textwrap import wrap
from typing import Any

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.codes import TYPE_FACTS, Activation, OperandType
from nnhal.base.errors import InvalidModel
from nnhal.base.names import suggestion
from nnhal.ops import OPS
from nnhal.ops.schema import REQUIRED, Arg, Form, Op, T, TypeTable

HABITS: dict[str, Any] = {"activation": Activation.NONE, "stride_w": 1, "stride_h": 1}  # the defaults
PAIRS = {"stride": "stride", "filter_size": "filter", "dilation": "dilation"}  # and the common name of their components
OPTIONS = ("scale", "zero_point", "out_type", "outputs", "name")  # they describe the outputs
FLAGS = ("keep_dims",)  # integers of some operations that are flags: they accept booleans
_PADDING = ("scheme", "pad_left", "pad_right", "pad_top", "pad_bottom")
_TOGETHER = {f"{part}_{axis}": short for short, part in PAIRS.items() for axis in "wh"}
_TOGETHER |= dict.fromkeys(_PADDING, "padding")
_TYPED = {"padding": "Pads", "stride": "Pair", "filter_size": "Pair", "dilation": "Pair"}


class _Text(str):
    """Text that Python shows unquoted as an annotation or default."""

    __slots__ = ()
    __repr__ = str.__str__


UNSAID = _Text("...")  # a default that depends on the signature


def method_name(operation: str) -> str:
    """Return the name of the builder's method for an operation."""
    name = operation.lower()
    return f"{name}_" if iskeyword(name) else name


def signature(record: Op) -> Signature:
    """Return the signature of an operation's method; annotations use the names of `frontends.tensor`."""
    arguments = {a.name: [form_argument(form, a.name) for form in record.forms] for a in _merged(record)}
    leading = _leading(record)
    parameters: dict[str, Parameter] = {}
    for name, found in arguments.items():
        short = _TOGETHER.get(name, name)
        if short in parameters:
            continue
        default = _default(record, name, found)
        before = [p.default for p in parameters.values()]
        by_place = (
            name in leading and short == name and all(p.kind != Parameter.KEYWORD_ONLY for p in parameters.values())
        )
        by_place = by_place and (default is not Parameter.empty or all(d is Parameter.empty for d in before))
        kind = Parameter.POSITIONAL_OR_KEYWORD if by_place else Parameter.KEYWORD_ONLY
        there = [a for a in found if a is not None]
        annotation = _Text(_TYPED[short] if short != name else " | ".join(dict.fromkeys(_type(a) for a in there)))
        if default is None:
            annotation = _Text(f"{annotation} | None")
        parameters[short] = Parameter(short, kind, default=default, annotation=annotation)
    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    return Signature([own, *parameters.values(), *_options(record)], return_annotation=_returns(record))


def describe(record: Op) -> str:
    """Return the help of a method."""
    doc = wrap(f"{' '.join(record.doc.split()).rstrip('.')}. Since {record.since}.", 100)
    inputs = [f"{name} {text}" for name, text in _shapes(record) if text]
    outputs = [f"{o.name} {_dims(o)}".strip() for o in record.outputs]
    lines = [*doc, ""]
    if inputs:
        lines += ["Shapes:", *(f"    {text}" for text in inputs)]
    lines += [
        "Returns:",
        *(f"    {text}" for text in outputs),
        "",
        "Raises:",
        "    InvalidModel: An argument breaks its rule.",
    ]
    return "\n".join(lines)


def form_argument(form: Form, name: str) -> Arg | None:
    """Return the argument of a signature by name."""
    return next((a for a in form if a.name == name), None)


def _merged(record: Op) -> Iterator[Arg]:
    """Yield the arguments of all signatures by name, each once; those of a later signature before the shared ones."""
    names: list[str] = []
    for form in record.forms:
        for place, argument in enumerate(form):
            if argument.name not in names:
                after = next((names.index(a.name) for a in form[place:] if a.name in names), len(names))
                names.insert(after, argument.name)
    for name in names:
        yield next(a for form in record.forms for a in form if a.name == name)


def _leading(record: Op) -> set[str]:
    """Return the names with the same place in all signatures that are long enough."""
    names: set[str] = set()
    for place in range(max(map(len, record.forms))):
        here = {form[place].name for form in record.forms if place < len(form)}
        if len(here) > 1:
            break
        names |= here
    return names


def _default(record: Op, name: str, found: list[Arg | None]) -> Any:
    """Return the default of a parameter; empty for a required one."""
    if name in HABITS:
        value = HABITS[name]
        return value.name.lower() if isinstance(value, Activation) else value
    if _TOGETHER.get(name) == "padding":
        return Parameter.empty
    if None in found:
        return UNSAID
    defaults = [a.default for a in found if a is not None]
    if any(d is REQUIRED for d in defaults):
        return None if all(a is not None and a.optional for a in found) else Parameter.empty
    return int(defaults[0]) if isinstance(defaults[0], int) and not isinstance(defaults[0], bool) else defaults[0]


def _type(argument: Arg) -> str:
    """Return the type of an argument for type checkers."""
    if argument.enum is not None:
        members = ", ".join(f'"{m.lower()}"' for m in argument.enum.__members__)
        return f"{argument.enum.__name__} | Literal[{members}]"
    kinds = list(_kinds(argument))
    if argument.many is not None:
        return "Sequence[Operand] | Tensor"
    if not argument.scalar:
        return "Operand"
    if OperandType.SUBGRAPH in kinds:
        return "SubgraphFacts"
    if OperandType.BOOL in kinds:
        return "Truth"
    return "Real" if {OperandType.FLOAT32, OperandType.FLOAT16} & {*kinds} else "Integer"


def _kinds(argument: Arg) -> Iterator[int]:
    """Yield the types that an argument may have, except the operation's main type."""
    tables = argument.spec.table.values() if isinstance(argument.spec, TypeTable) else [argument.spec]
    for table in tables:
        if isinstance(table, Mapping):
            yield from table


def _varies(record: Op) -> bool:
    """Whether the caller chooses the number of outputs."""
    return any(o.many is not None or o.default is not REQUIRED for o in record.outputs)


def _returns(record: Op) -> str:
    if _varies(record):
        return _Text("Any")
    count = len(record.outputs)
    return _Text("Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]")


def _options(record: Op) -> Iterator[Parameter]:
    """Yield the parameters that describe the outputs."""

    def option(name: str, type: str, default: Any = None) -> Parameter:
        return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=_Text(type))

    kinds = [set(record.types) if o.spec is T else set(_kinds(o)) for o in record.outputs]
    if any(TYPE_FACTS[k].zero_points is not None for k in set().union(*kinds)):
        yield option("scale", "Scale | None")
        yield option("zero_point", "ZeroPoint | None")
    if any(o.spec is not T and len(found) > 1 for o, found in zip(record.outputs, kinds, strict=True)):
        yield option("out_type", "OutType | None")
    if _varies(record):
        yield option("outputs", "int | None")
    yield option("name", "str", "")


def _shapes(record: Op) -> Iterator[tuple[str, str]]:
    for argument in _merged(record):
        yield argument.name, "" if argument.scalar else _dims(argument)


def _dims(argument: Arg) -> str:
    if argument.dims is not None:
        return f"[{', '.join(argument.dims)}]" + (", NHWC unless nchw" if argument.layout else "")
    if argument.rank is not None:
        low, high = argument.rank
        return f"of rank {low}" if low == high else f"of rank {low} to {high}"
    return ""


def records() -> list[Op]:
    """Return the records with a method, in the order of their names."""
    return [record for _, record in sorted(OPS.items()) if record.since and not record.code >> 16]


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
