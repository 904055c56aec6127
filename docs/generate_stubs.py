"""Writes src/nnhal/frontends/operations.pyi from the records in `nnhal.ops`; with --check says whether it is up to date."""

import re
import sys
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path

from nnhal.frontends import tensor
from nnhal.frontends.signatures import describe, method_name, records, signature
from nnhal.ops.schema import Op

FILE = Path(__file__).parents[1] / "src/nnhal/frontends/operations.pyi"
TYPES = ("Integer", "Operand", "OutType", "Pads", "Pair", "Real", "Scale", "Tensor", "Truth", "ZeroPoint")
HEAD = '"""Written by `python docs/generate_stubs.py` from the records in `src/nnhal/ops`; do not edit."""'


def parameter(own: Parameter) -> str:
    """A parameter on a line of its own."""
    default = "" if own.default is Parameter.empty else f" = {quoted(own.default)}"
    return f"        {own.name}: {own.annotation}{default},"


def quoted(value: object) -> str:
    """A default as the formatter writes it."""
    return f'"{value}"' if type(value) is str else repr(value)


def method(record: Op) -> Iterator[str]:
    """The stub of one method."""
    own = signature(record)
    yield f"    def {method_name(record.name)}("
    yield "        self,"
    starred = False
    for each in list(own.parameters.values())[1:]:
        if each.kind is Parameter.KEYWORD_ONLY and not starred:
            yield "        *,"
            starred = True
        yield parameter(each)
    first, *rest = describe(record).splitlines()
    yield f"    ) -> {own.return_annotation}:"
    yield f'        """{first}'
    yield from (f"        {line}" if line else "" for line in rest)
    yield '        """'


def text() -> str:
    """The whole stub."""
    body = [line for record in records() for line in method(record)]
    words = set(re.findall(r"\w+", "\n".join(line for line in body if ":" in line)))
    arguments = [a for record in records() for form in record.forms for a in form]
    places = {a.enum.__name__: a.enum.__module__ for a in arguments if a.enum is not None}
    places |= dict.fromkeys(("Any", "Literal"), "typing") | {"Sequence": "collections.abc"}
    places |= {"SubgraphFacts": "nnhal.base.operands"} | dict.fromkeys(TYPES, tensor.__name__)
    by_module: dict[str, list[str]] = {}
    for name, module in sorted(places.items()):
        if name in words:
            by_module.setdefault(module, []).append(name)
    imports = {m: f"from {m} import {', '.join(names)}" for m, names in sorted(by_module.items())}
    lines = [HEAD, "", *(line for m, line in imports.items() if not m.startswith("nnhal")), ""]
    lines += [line for m, line in imports.items() if m.startswith("nnhal")]
    return "\n".join([*lines, "", "class Operations:", '    """The operations as methods."""', "", *body]) + "\n"


if __name__ == "__main__":
    from generated import main

    sys.exit(main(FILE, text))
