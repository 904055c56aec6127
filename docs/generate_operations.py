"""Writes docs/operations.md from the records in `nnhal.ops`; with --check says whether the file is up to date."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from inspect import cleandoc, getclosurevars, getmodule
from itertools import groupby
from pathlib import Path
from typing import Any

from nnhal.base.codes import TYPE_FACTS, OperandType, OperationType, type_name
from nnhal.base.levels import V1_0, Level
from nnhal.conformance.suite import FLOAT, HALF
from nnhal.ops import OPS
from nnhal.ops.schema import REQUIRED, Allowed, Arg, Form, Op, Per, Stored, T

FILE = Path(__file__).with_name("operations.md")
WIDTH = 112
INTRODUCTION = """\
# Operations

Written by `python docs/generate_operations.py` from the records in `src/nnhal/ops`; do not edit.

**T** is the type that all operands marked T share. *Since* is the first level that has an operation; a type, argument
or output that came later has its level in parentheses or behind "since". Dimensions of equal names have equal sizes, `_` is
any size; those marked NHWC are in the order of NCHW where the argument `nchw` is true. An argument with a default may be left
out together with those behind it; an optional one may be omitted by itself. Activations are fused into an operation: applied to
its real result, before it is quantised.

Quantisation of an output: *as the input* is that of the first T argument; *stated* is whatever the model says.

Conformance allows differences of {float} in float32, {half} in float16 (and in float32 where a model is relaxed),
1 in all integers, stored or not, and none in truth values.

In examples `b` is a `nnhal.Builder`, where lists and numbers become constants; `padding`, `stride`, `filter_size` and
`dilation` stand for their pairs of arguments, `out_type`, `scale` and `zero_point` describe the output. Results are computed
by hand from the definition, quantised ones as they are stored; None is a result whose contents are undefined.
"""


# --------------------------------------------------------------------------------------------------------------- words


def sentence(text: str) -> str:
    """Some words as a sentence, on one line."""
    text = " ".join(text.split())
    return text + ("" if text.endswith(".") else ".") if text else ""


def rule(function: Callable[..., Any]) -> str:
    """What a rule says of itself; one made by a factory says it there, and what it was made for follows in parentheses."""
    factory = getattr(getmodule(function), function.__qualname__.partition(".<locals>")[0], function)
    doc = cleandoc(function.__doc__ or factory.__doc__ or "")
    for mark in ("Rules:", "Rule:", "Shape rule:"):
        doc = doc.removeprefix(mark)
    found = getclosurevars(function).nonlocals.values() if function.__closure__ else ()
    made_for = [text for text in map(setting, found) if text]
    return sentence(doc.strip().rstrip(".") + (f" ({'; '.join(made_for)})" if made_for else ""))


def setting(value: Any) -> str:
    """What a rule was made for: names and numbers."""
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, tuple | list):
        return ", ".join(text for text in map(setting, value) if text)
    return str(value) if isinstance(value, str | int | float) else ""


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
    if argument.enum is not None:
        return (
            f"{types(argument.spec, Level.FL8)} {argument.enum.__name__}" if isinstance(argument.spec, Mapping) else ""
        )
    if argument.spec is T:
        return "T"
    if isinstance(argument.spec, Per):
        by: dict[str, list[str]] = {}
        for own, allowed in ((own, argument.spec.table[own]) for own in record.types if own in argument.spec.table):
            by.setdefault(types(allowed, max(record.since, record.types[own])), []).append(type_name(own))
        if len(by) == 1:
            return next(iter(by))
        if all(text.split(" (")[0] == own for text, owns in by.items() for own in owns):
            return "T"
        return "; ".join(f"{text} for {', '.join(owns)}" for text, owns in by.items())
    assert isinstance(argument.spec, Mapping)
    return types(argument.spec, record.since)


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
    return (
        {None: "none", False: "false", True: "true"}[value]
        if value is None or value is True or value is False
        else f"{value:g}"
    )


def limits(argument: Arg, base: Level) -> str:
    """Range, presence and meaning of an argument."""
    parts = []
    low, high = argument.at_least, argument.at_most
    if low is not None or high is not None:
        parts.append(
            f"{number(low)} to {number(high)}"
            if low is not None and high is not None
            else f"at least {number(low)}"
            if low is not None
            else f"at most {number(high)}"
        )
    if argument.many is not None:
        parts.append(f"{argument.many} or more of them")
    if argument.optional:
        parts.append("optional")
    if argument.since > max(base, V1_0):
        parts.append(f"since {argument.since}")
    if argument.default is not REQUIRED:
        parts.append(f"default {number(argument.default)}")
    if argument.paired:
        parts.append("given with the one before")
    if argument.doc:
        parts.append(argument.doc)
    return "; ".join(parts)


# ------------------------------------------------------------------------------------------------------------- records


def table(head: str, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A table of Markdown, without the columns that are empty in all rows."""
    rows, names = list(rows), head.split(" | ")
    kept = [i for i in range(len(names)) if any(row[i] for row in rows)]
    yield "| " + " | ".join(names[i] for i in kept) + " |"
    yield "|" + " --- |" * len(kept)
    for row in rows:
        yield "| " + " | ".join(row[i] for i in kept) + " |"
    yield ""


def alike(arguments: Iterable[Arg]) -> Iterator[tuple[str, Arg]]:
    """Runs of arguments that differ in nothing but their names."""
    for _, run in groupby(arguments, key=lambda a: repr(replace(a, name=""))):
        members = list(run)
        yield ", ".join(f"`{a.name}`" for a in members), members[0]


def merged(forms: Iterable[Form]) -> list[Arg]:
    """The arguments of all forms, each once, in an order that all forms agree with as far as they do."""
    result: list[Arg] = []
    for form in forms:
        at = 0
        for argument in form:
            if argument in result:
                at = result.index(argument) + 1
            else:
                result.insert(at, argument)
                at += 1
    return result


def signature(form: Form) -> str:
    """The names of a form; what may be left out in brackets."""
    return ", ".join(f"[{a.name}]" if a.default is not REQUIRED else a.name for a in form)


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


def shape_rules(record: Op) -> Iterator[str]:
    """How shapes follow that names of dimensions cannot say."""
    if record.infer is not None:
        yield rule(record.infer)
    for name, compute in record.where.items():
        if text := rule(compute):
            yield f"`{name}`: {text}"


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
        yield from (f"{n}. `{signature(form)}`" for n, form in enumerate(record.forms, 1))
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
                limits(replace(o, default=REQUIRED), record.since)
                + ("" if o.default is REQUIRED else "; may be left out"),
            )
            for names, o in alike(record.outputs)
        ),
    )
    rules = [*shape_rules(record), *map(rule, record.checks)]
    rules = [text for text in dict.fromkeys(rules) if text]
    if rules:
        yield from (f"- {text}" for text in rules)
        yield ""
    if record.tolerance is not None:
        yield f"Tolerance: {record.tolerance.atol:g} + {record.tolerance.rtol:g} of the value.\n"
    if record.example is not None:
        yield f"```python\n{call(record)}  # {record.example.outputs}\n```\n"


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


def main() -> int:
    """Write the file, or say that it is stale."""
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text())
        return 0
    if FILE.exists() and FILE.read_text() == text():
        return 0
    print(f"{FILE.name} is stale, must be written again: python docs/generate_operations.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
