"""Writes docs/reference/numerics.md: the relaxations and exact numerics that the included drivers declare.

python docs/generate_numerics.py            write the file
python docs/generate_numerics.py --check    say whether it is what would be written
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from generated import folded, main

from nnhal.drivers.kit.lowering import Entry
from nnhal.drivers.kit.onnx import TABLE as ONNX
from nnhal.drivers.litert.device import Litert
from nnhal.drivers.litert.lowering import TABLE as LITERT
from nnhal.drivers.onnxruntime.device import OnnxRuntime
from nnhal.drivers.openvino.device import TABLE as OPENVINO
from nnhal.drivers.openvino.device import OpenVINO
from nnhal.hal.device import RELAXATIONS
from nnhal.ops import OPS
from nnhal.ops.schema import Q8, Q8S, Op

FILE = Path(__file__).parent / "reference" / "numerics.md"
DEVICES = {"litert": (Litert, LITERT), "onnxruntime": (OnnxRuntime, ONNX), "openvino": (OpenVINO, OPENVINO)}
INTRODUCTION = """\
# Numerics of the devices

Written by `python docs/generate_numerics.py` from what the drivers declare; do not edit.
[How numbers are judged](../contributing/numerics.md) explains the terms.

## Relaxations

A device may differ from the definition in the ways that it names. The reference names none.

"""
EXACT = """
## Operations of 8 bits under exact numerics

- `integer`: the result is that of TensorFlow Lite's own kernel, which the reference computes in integers.
- `real`: the result is the real one, rounded once to the nearest quantisation step, halves away from zero.

A device with "yes" runs the operation; the reference runs all of them. A device may have further conditions, such as
equal scales of the tensors of a MAXIMUM. `compiled.placement` has them as reasons.

"""


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a table."""
    heads = list(heads)
    yield f"| {' | '.join(heads)} |\n"
    yield f"| {' | '.join('---' for _ in heads)} |\n"
    yield from (f"| {' | '.join(row)} |\n" for row in rows)


def on_8_bits(op: Op) -> bool:
    """Whether any tensor of the operation may be quantised."""
    return op.name in ("QUANTIZE", "DEQUANTIZE") or bool({Q8, Q8S} & {int(kind) for kind in op.types})


def exact(entry: Entry[Any] | None) -> str:
    """Whether a device runs the operation."""
    return "yes" if entry is not None and entry.exact else "no"


def text() -> str:
    """The page."""
    rows = [
        [f"`{name}`", words, *("yes" if name in kind.relaxations else "no" for kind, _ in DEVICES.values())]
        for name, words in RELAXATIONS.items()
    ]
    names = sorted(name for name, op in OPS.items() if on_8_bits(op))
    found = [
        [name, "integer" if OPS[name].integer else "real", *(exact(t.entries.get(name)) for _, t in DEVICES.values())]
        for name in names
    ]
    devices = [f"`{name}`" for name in DEVICES]
    return folded(
        "".join(
            [
                INTRODUCTION,
                *table(["name", "meaning", *devices], rows),
                EXACT,
                *table(["operation", "result", *devices], found),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main(FILE, text))
