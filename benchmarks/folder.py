"""Every `.tflite` and `.onnx` file of a folder on every device, against the file's own engine (LiteRT, ONNX Runtime).

    python benchmarks/folder.py FOLDER [--inputs 200] [--markdown FILE]

For each file: does it import, and for each device how many operations ran there and how far outputs are off over random
inputs. That is in steps of quantised outputs, else relative to the greatest magnitude. Then the share of elements that
differ, and in how many rows of the first output (as of scores for classes) another element is the greatest: exit status 1
where one is.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from ai_edge_litert.interpreter import Interpreter

import nnhal
from nnhal.base.errors import clipped
from nnhal.bench.compare import Drift, drifts
from nnhal.cli.inputs import random_input

DEVICES = ("reference", "litert", "onnxruntime", "openvino")


@dataclass
class Row:
    """What was found of one file. ran: operations by device; off: what of each output, by device."""

    name: str
    refused: str = ""
    operations: int = 0
    ran: dict[str, int] = field(default_factory=dict)
    off: dict[str, list[Drift]] = field(default_factory=dict)


class OwnEngine:
    """The engine that a file is for."""

    def __init__(self, path: Path) -> None:
        self._litert = self._onnx = None
        if path.suffix == ".tflite":
            self._litert = Interpreter(str(path), num_threads=1)
            self._litert.allocate_tensors()
        else:
            options = onnxruntime.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 4, 1
            self._onnx = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs: dict[str, Any]) -> list[Any]:
        """The outputs, in the order of the file."""
        if self._onnx is not None:
            return list(self._onnx.run(None, inputs))
        self._litert.reset_all_variables()
        for detail, array in zip(self._litert.get_input_details(), inputs.values(), strict=True):
            self._litert.set_tensor(detail["index"], array)
        self._litert.invoke()
        return [self._litert.get_tensor(detail["index"]) for detail in self._litert.get_output_details()]


def look(path: Path, count: int) -> Row:
    row = Row(path.stem)
    try:
        model = nnhal.load(path, cache_dir=False)
    except nnhal.NnhalError as error:
        row.refused = str(error).partition(": ")[2]
        return row
    row.operations = len(model.main.operations)
    own = OwnEngine(path)
    for device in DEVICES:
        rng = np.random.default_rng(0)
        with nnhal.compile(model, devices=[device, "reference"], fallback="allow", threads=1) as compiled:
            row.ran[device] = sum(choice.device == device for choice in compiled.placement.choices)
            pairs = []
            for _ in range(count):
                given = {spec.name: random_input(spec, rng) for spec in compiled.inputs}
                expected, found = own(given), compiled(*given.values())
                pairs.append((list(found) if isinstance(found, tuple) else [found], expected))
            row.off[device] = list(drifts(model, pairs, [spec.name for spec in compiled.outputs]))
    return row


def cell(found: list[Drift]) -> str:
    """The worst of all outputs, the share of elements that differ, and where the first says something else."""
    size, differing = sum(each.size for each in found), sum(each.differing for each in found)
    changed = f", {found[0].changed} of {found[0].rows}" if found[0].rows else ""
    return f"{max(each.worst for each in found):.2g}, {differing / max(size, 1):.2%}{changed}"


def markdown(rows: list[Row]) -> str:
    heads = ["file", "operations", *DEVICES]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in (r for r in rows if not r.refused):
        cells = [f"{row.ran[device]}: {cell(row.off[device])}" for device in DEVICES]
        lines.append(f"| {' | '.join([row.name, str(row.operations), *cells])} |")
    refused = [f"- {row.name}: {clipped(row.refused, 300)}" for row in rows if row.refused]
    return "\n".join([*lines, *(["", "Refused:", "", *refused] if refused else [])]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inputs", type=int, default=20)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    files = [path for path in sorted(arguments.folder.iterdir()) if path.suffix in (".tflite", ".onnx")]
    rows = []
    for path in files:
        rows.append(look(path, arguments.inputs))
        print(markdown(rows[-1:]).splitlines()[-1], flush=True)
    if arguments.markdown:
        arguments.markdown.write_text(markdown(rows))
    return int(any(found[0].changed for row in rows for found in row.off.values()))


if __name__ == "__main__":
    sys.exit(main())
