"""Every `.onnx` model of the zoo on every device, against ONNX Runtime run directly on the file.

    python benchmarks/onnx_models.py [--json] [--markdown FILE] [NAME ...]

For each model: does it import, its level and operations, where they ran, and how far the outputs of five inputs are from
ONNX Runtime's, relative to the greatest magnitude: at most 1e-4 on `onnxruntime`, 5e-4 on the others. The markdown stands in
docs/reference/model-zoo.md.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime

import nnhal
from nnhal import zoo
from nnhal.base.errors import bounded_text
from nnhal.measure.onnx_inputs import inputs_of
from nnhal.model.validate import validate

MOST = {"reference": 5e-4, "litert": 5e-4, "openvino": 5e-4, "onnxruntime": 1e-4}  # of the greatest magnitude
REQUANTISED = {
    "captcha_read_old": 0.02
}  # layers quantised over ranges found at execution: one rounding moves many steps
INPUTS = 5


@dataclass
class Row:
    """What was found of one model. By device, ran: how many operations; off: relative to the greatest magnitude."""

    name: str
    source: str
    refused: str = ""
    level: str = ""
    operations: int = 0
    kinds: int = 0
    ran: dict = field(default_factory=dict)
    off: dict = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether it was imported, and every device is near enough."""
        return not self.refused and all(
            self.off[device] <= REQUANTISED.get(self.name, most) for device, most in MOST.items()
        )


def look(name: str) -> Row:
    entry = zoo.entry(name)
    row = Row(name, f"{entry.package} {entry.version}")
    try:
        model = nnhal.load(name, cache_dir=False)
    except nnhal.UnsupportedModel as error:
        row.refused = str(error).partition(": ")[2]
        return row
    row.level, row.operations = str(validate(model).level), len(model.main.operations)
    row.kinds = len({operation.type for operation in model.main.operations})
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(str(zoo.path(name)), options, providers=["CPUExecutionProvider"])
    for device in MOST:
        with nnhal.compile(model, devices=[device, "reference"], fallback="allow", threads=1) as compiled:
            row.ran[device] = sum(choice.device == device for choice in compiled.placement.choices)
            specs = {spec.name: spec for spec in compiled.inputs}
            worst = 0.0
            for number in range(INPUTS):
                given = inputs_of(name, specs, number)
                expected = session.run(None, given)
                found = compiled(*given.values())
                for mine, theirs in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
                    if np.shape(mine) != theirs.shape or np.asarray(mine).dtype != theirs.dtype:
                        raise AssertionError(f"{name}: {np.shape(mine)}, must be {theirs.shape}")
                    worst = max(worst, float(np.abs(mine - theirs).max() / max(np.abs(theirs).max(), 1e-30)))
            row.off[device] = worst
    return row


def markdown(rows: list) -> str:
    heads = [
        "model",
        "from",
        "level",
        "operations",
        *(f"{device}: ran, off by" for device in MOST if device != "reference"),
    ]
    lines = [f"| {' | '.join([*heads, 'reference: off by'])} |", "| --- " * (len(heads) + 1) + "|"]
    for row in (r for r in rows if not r.refused):
        cells = [row.name, row.source, row.level, f"{row.operations} ({row.kinds} kinds)"]
        cells += [f"{row.ran[d]}, {row.off[d]:.2g}" for d in MOST if d != "reference"]
        lines.append(f"| {' | '.join([*cells, format(row.off['reference'], '.2g')])} |")
    lines += ["", "Not expressible in NNAPI:", ""]
    lines += [f"- {row.name} ({row.source}): {bounded_text(row.refused, 3000)}" for row in rows if row.refused]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.names or zoo.onnx_names():
        rows.append(look(name))
        if not arguments.json:
            print(json.dumps(asdict(rows[-1])), flush=True)
    if arguments.json:
        print(json.dumps({"models": [asdict(row) for row in rows], "agree": sum(row.agrees for row in rows)}))
    if arguments.markdown:
        arguments.markdown.write_text(markdown(rows))
    return 0 if all(row.agrees or row.refused for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
