"""Writes docs/reference/operations.md from the records in `nnhal.ops`; with --check says whether the file is up to date."""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from inspect import getclosurevars, getmodule
from itertools import groupby
from pathlib import Path
from typing import Any

from nnhal.base.codes import TYPE_FACTS, OperandType, OperationType, type_name
from nnhal.base.levels import Level
from nnhal.ops import OPS
from nnhal.ops.common import FLOAT, HALF
from nnhal.ops.schema import REQUIRED, Allowed, Arg, Form, Op, Per, Stored, T

FILE = Path(__file__).parent / "reference" / "operations.md"
WIDTH = 112
NEWLINE = "\n"  # f-strings of Python 3.11 take no backslashes
SUMS = {
    "terms": "Summed up in any order.",
    "products": "Summed up in any order; left open: all where something is not finite, and sums of products whose "
    "magnitudes add up to more than the type holds.",
}
INTRODUCTION = """\
# Operations

Written by `python docs/generate_operations.py` from the records in `src/nnhal/ops`; do not edit.

**T** is the type that all operands marked T share. *Since* is the first level that has an operation; a type, argument
or output that came later has its level in parentheses or behind "since". Dimensions of equal names have equal sizes, `_` is
any size; those marked NHWC are in the order of NCHW where the argument `nchw` is true. An argument with a default may be
left out together with those behind it; an optional one may be omitted by itself. Activations are fused into an operation:
applied to its real result, before it is quantised.

Quantisation of an output: *as the input* is that of the first T argument; *stated* is whatever the model says.

Tolerance: conformance allows for differences of {float} in float32,
{half} in float16 and where a model is relaxed, 1 in all integers, stored or not, and none in truth values. What is
*left open* is up to the driver.

In examples `b` is a `nnhal.Builder`, where lists and numbers become constants; `padding`, `stride`, `filter_size` and
`dilation` stand for their pairs of arguments, `out_type`, `scale` and `zero_point` describe the output. Results are computed
by hand from the definition, quantised ones as they are stored; None is a result whose contents are undefined.
"""


# --------------------------------------------------------------------------------------------------------------- words


def sentence(text: str) -> str:
    """Some words as a sentence, on one line."""
    text = " ".join(text.split())
    return text + ("" if text.endswith(".") else ".") if text else ""


def lowered(text: str) -> str:
    """A sentence to follow a colon."""
    return text[:1].lower() + text[1:]


def rule(function: Callable[..., Any]) -> str:
    """What a rule says of itself, or the factory that made it, with what it was made for in the places of its names."""
    if function.__name__ == "<lambda>":
        return formula(function)
    factory = getattr(getmodule(function), function.__qualname__.partition(".<locals>")[0], function)
    doc = " ".join((function.__doc__ or factory.__doc__ or "").split())
    for mark in ("Rules: ", "Rule: ", "Shape rule: ", "Open: "):
        doc = doc.removeprefix(mark)
    nonlocals = getclosurevars(function).nonlocals if function.__closure__ else {}
    made_for = {name: text for name, value in nonlocals.items() if (text := setting(value))}
    placed = [name for name in made_for if f"`{name}`" in doc]
    for name in placed:
        doc = doc.replace(f"`{name}`", made_for[name])
    rest = [made_for[name] for name in made_for if name == "prefix" or not placed]
    return sentence(doc.rstrip(".") + (f" ({'; '.join(rest)})" if rest else ""))


def formula(function: Callable[..., Any]) -> str:
    """The expression of a lambda."""
    code = function.__code__
    places = {place[:2] for place in code.co_positions()}
    for node in ast.walk(ast.parse(Path(code.co_filename).read_text())):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            inside = {(n.lineno, n.end_lineno) for n in ast.walk(node.body) if isinstance(n, ast.expr)}
            if inside & places:
                text = ast.unparse(node.body)
                for noise in ("a.", "(a)", "a, ", "math."):
                    text = text.replace(noise, "")
                return f"{text}."
    return ""


def setting(value: Any) -> str:
    """What a rule was made for: names, numbers, formulas."""
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, tuple | list):
        return ", ".join(text for text in map(setting, value) if text)
    if callable(value):
        return formula(value).rstrip(".") if value.__name__ == "<lambda>" else ""
    return ", ".join(value.split()) if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""


def since(level: Level, base: Level) -> str:
    """A level in parentheses, where it is not the operation's own."""
    return f" ({level})" if level > base else ""


def types(allowed: Allowed, base: Level) -> str:
    """Types in words."""
    tensors = {t for t in OperandType if TYPE_FACTS[t].dtype is not None}
    if set(allowed) >= tensors:
        return "any"
    return ", ".join(f"{type_name(t)}{since(level, base)}" for t, level in allowed.items())


def spec(argument: Arg, record: Op) -> str:
    """The types of an argument in words; those that follow from T grouped."""
    base = max(record.since, argument.since)
    if isinstance(argument.spec, Per):
        owners = {own: types(argument.spec.table[own], base) for own in record.types if own in argument.spec.table}
        by: dict[str, list[str]] = {}
        for own, text in owners.items():
            alone = list(owners.values()).count(text) == 1
            said = re.sub(rf"\b{type_name(own)}\b( \([^)]*\))?", "T", text) if alone else text
            by.setdefault(said, []).append(type_name(own))
        return next(iter(by)) if len(by) == 1 else "; ".join(f"{text} for {', '.join(own)}" for text, own in by.items())
    if not isinstance(argument.spec, Mapping):
        return "T"
    return types(argument.spec, base) + (f" {argument.enum.__name__}" if argument.enum is not None else "")


def shape(argument: Arg) -> str:
    """The dimensions of an argument in words."""
    if argument.dims is not None:
        return f"[{', '.join(argument.dims)}]" + (" NHWC" if argument.layout else "")
    if argument.rank is not None:
        low, high = argument.rank
        return f"rank {low}" if low == high else f"rank {low} to {high}"
    return "NHWC" if argument.layout else ""


def number(value: Any) -> str:
    """A limit or default as people write it."""
    if isinstance(value, IntEnum):
        return value.name
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value).lower()


def limits(argument: Arg, base: Level) -> str:
    """Range, presence and meaning of an argument or output."""
    low, high = argument.at_least, argument.at_most
    parts = [
        f"{number(low)} to {number(high)}" if low is not None and high is not None else "",
        f"at least {number(low)}" if low is not None and high is None else "",
        f"at most {number(high)}" if low is None and high is not None else "",
        f"{argument.many} or more of them" if argument.many is not None else "",
        "optional" if argument.optional else "",
        f"since {argument.since}" if argument.since > base else "",
        "may be left out" if argument.default is None else "",
        f"default {number(argument.default)}"
        if argument.default is not REQUIRED and argument.default is not None
        else "",
        "given with the one before" if argument.paired else "",
        argument.doc,
    ]
    return "; ".join(part for part in parts if part)


# ------------------------------------------------------------------------------------------------------------- records


def table(head: str, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A table of Markdown, without the columns that are empty in all rows."""
    cells, names = list(rows), head.split(" | ")
    kept = [i for i in range(len(names)) if any(row[i] for row in cells)]
    yield "| " + " | ".join(names[i] for i in kept) + " |"
    yield "|" + " --- |" * len(kept)
    for row in cells:
        yield "| " + " | ".join(row[i] for i in kept) + " |"
    yield ""


def alike(arguments: Iterable[Arg]) -> Iterator[tuple[str, Arg]]:
    """Runs of arguments that differ in nothing but their names."""
    for _, run in groupby(arguments, key=lambda a: repr(replace(a, name=""))):
        members = list(run)
        yield ", ".join(f"`{a.name}`" for a in members), members[0]


def merged(forms: Iterable[Form]) -> list[Arg]:
    """The arguments of all forms, each once; those of a later form before the next that it shares."""
    result: list[Arg] = []
    for form in forms:
        for n, argument in enumerate(form):
            if argument not in result:
                after = next((result.index(a) for a in form[n:] if a in result), len(result))
                result.insert(after, argument)
    return result


def signature(form: Form, before: Form | None) -> str:
    """The names of a form; what may be left out in brackets. One that only adds to the form before says no more."""
    names = [f"[{a.name}]" if a.default is not REQUIRED else a.name for a in form]
    if before is not None and form[: len(before)] == before:
        return f"the same, then `{', '.join(names[len(before) :])}`"
    return f"`{', '.join(names)}`"


def quantisation(output: Arg, record: Op) -> str:
    """Where the scale and zero point of an output come from."""
    tables: list[Allowed] = [record.types] if output.spec is T else []
    if isinstance(output.spec, Mapping):
        tables = [output.spec]
    elif isinstance(output.spec, Per):
        tables = list(output.spec.table.values())
    quantised = [t for allowed in tables for t in allowed if TYPE_FACTS[t].zero_points]
    if not quantised:
        return ""
    if output.quant is None:
        return "stated"
    if output.quant.same:
        return "as the input"
    pairs: dict[str, list[str]] = {}
    for kind, (scale, zero) in output.quant.fixed.items():
        pairs.setdefault(f"1/{1 / scale:g}, {zero}", []).append(type_name(kind))
    return "; ".join(f"{pair} for {', '.join(kinds)}" for pair, kinds in pairs.items())


def output_shape(output: Arg, record: Op) -> str:
    """The dimensions of an output in words."""
    if output.dims is not None and record.infer is None:
        return shape(output)
    return "" if record.infer is not None else "as the input"


def rules(record: Op) -> Iterator[str]:
    """How shapes follow that names of dimensions cannot say, then what has to hold."""
    if record.infer is not None:
        yield f"Shape: {lowered(rule(record.infer))}"
    for compute, dims in groupby(record.where, key=lambda name: rule(record.where[name])):
        yield f"`{', '.join(dims)}`: {lowered(compute)}"
    for text in map(rule, record.checks):
        yield text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]
    if record.leaves_open is not None:
        yield f"Left open: {lowered(rule(record.leaves_open))}"
    if record.sums:
        yield SUMS[record.sums]


def call(record: Op) -> str:
    """The example of a record as statements of Python that make `y` with the builder `b`."""
    assert record.example is not None
    if record.example.code:
        return record.example.code
    name = record.name.lower()
    given = [f"{key}={literal(value)}" for key, value in record.example.arguments.items()]
    line = f"y = b.{name}({', '.join(given)})"
    if len(line) <= WIDTH:
        return line
    lines, current = [f"y = b.{name}("], "   "
    for part in given:
        if len(current) + len(part) + 2 > WIDTH:
            lines.append(current)
            current = "   "
        current += f" {part},"
    return "\n".join((*lines, current, ")"))


def literal(value: Any) -> str:
    """A value of an example in Python."""
    if isinstance(value, Stored):
        settings = f", {value.scale}, {value.zero_point}" if value.scale else ""
        return f'b.constant({value.values}, "{type_name(value.type)}"{settings})'
    return f'"{value}"' if isinstance(value, str) else repr(value)


def described(record: Op) -> Iterator[str]:
    """The section of one operation."""
    yield f"## {record.name}\n"
    yield f"{sentence(record.doc)} Since {record.since}.\n"
    if record.types:
        yield f"T: {types(record.types, record.since)}.\n"
    if len(record.forms) > 1:
        pairs = zip(record.forms, (None, *record.forms), strict=False)
        yield from (f"{n}. {signature(form, before)}" for n, (form, before) in enumerate(pairs, 1))
        yield ""
    yield from table(
        "argument | type | dimensions | notes",
        ((names, spec(a, record), shape(a), limits(a, record.since)) for names, a in alike(merged(record.forms))),
    )
    yield from table(
        "output | type | dimensions | quantisation | notes",
        (
            (
                names,
                spec(o, record),
                output_shape(o, record),
                quantisation(o, record),
                limits(o, record.since),
            )
            for names, o in alike(record.outputs)
        ),
    )
    if said := list(dict.fromkeys(rules(record))):
        yield from (f"- {text}" for text in said)
        yield ""
    if record.tolerance is not None:
        yield f"Tolerance: {record.tolerance.atol:g} + {record.tolerance.rtol:g} of the value.\n"
    if record.example is not None:
        code, result = call(record), f"# {record.example.outputs}"
        fits = len(code.rpartition("\n")[2]) + len(result) + 2 <= WIDTH
        yield f"```python\n{code}{'  ' if fits else NEWLINE}{result}\n```\n"


def enums(records: Iterable[Op]) -> Iterator[str]:
    """The enums that arguments are of."""
    found = {a.enum.__name__: a.enum for op in records for form in op.forms for a in form if a.enum is not None}
    yield from table(
        "enum | members",
        ((name, ", ".join(f"{int(m)} {m.name}" for m in enum)) for name, enum in sorted(found.items())),
    )


def text() -> str:
    """The whole reference."""
    records = [op for name, op in sorted(OPS.items()) if name in OperationType.__members__]
    atol, rtol = FLOAT
    parts = [
        INTRODUCTION.format(float=f"{atol:g} + {rtol:.1g} of the value", half=f"{HALF:.2g} + {HALF:.2g} of it"),
        *enums(records),
        *table(
            "operation | since | what it does",
            ((f"[{op.name}](#{op.name.lower()})", str(op.since), sentence(op.doc)) for op in records),
        ),
        *(line for op in records for line in described(op)),
    ]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    from generated import main

    sys.exit(main(FILE, text))
