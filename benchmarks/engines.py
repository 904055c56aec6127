"""Every model on every device, and on each engine called directly: how fast, and whether it is right.

    python benchmarks/engines.py [--threads N] [--pairs 30] [--json] [--svg FILE] [NAME ...]

Models are those of the zoo and of the model maker that the importer takes whole. Each device runs in pairs with its own
engine called directly (`nnhal.measure.peers`: float32 as float32, memory bound once), the first of each pair by chance,
and once in pairs with itself, which says what such a ratio is worth here. An engine that cannot read the file has no time of
its own. Right is what agrees with `reference`: floats within 5e-4 of the greatest magnitude, quantised outputs within the
drift of kernels that round otherwise, an operation at a time (`nnhal diff`). Here, for whole models, the drift is in LSB.

The last line is JSON: {"models": [{"name", "ms": {who: median}, "correct": {who: bool}, "worst": {who: number}}],
"driver_over_engine_max": {driver: ratio}, "microseconds_more_max": {driver: of models under 1 ms}, "control_max": ratio}.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path

import numpy as np

import nnhal
from nnhal import zoo
from nnhal.base.operands import quantised
from nnhal.base.records import Struct, field
from nnhal.cli.common import progress
from nnhal.cli.inputs import read_inputs
from nnhal.cli.pictures import InputOptions
from nnhal.measure.latency import ratio, timed, timed_pairs
from nnhal.measure.peers import PEERS, LiteRT, peer
from nnhal.runtime import discovery
from nnhal.zoo import maker

TOLERANCE = 5e-4  # of the greatest magnitude
DRIFT = 4  # steps, end to end, between engines each of whose operations is within one
BLOCK_NS = 200_000  # shorter calls are timed several at once
SHORT_MS = 1.0  # below, what a driver adds counts in microseconds

Call = Callable[[], Sequence[np.ndarray]]


class EngineRow(Struct):
    """What was measured on one model. ms, correct, worst by device, and by `engine directly`."""

    name: str
    ms: dict[str, float] = field(default_factory=dict)
    correct: dict[str, bool] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    control: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def outputs_of(found: object) -> list[np.ndarray]:
    """What a call gave, as a list."""
    return [np.asarray(each) for each in (found if isinstance(found, tuple | list) else [found])]


def off(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], steps: Sequence[bool]) -> float:
    """The worst output: in steps where it is quantised, else relative to the greatest magnitude."""
    worst = 0.0
    for y, e, counted in zip(found, wanted, steps, strict=True):
        if y.size != e.size or not np.isfinite(y.astype(np.float64)).all():
            return float("inf")
        far = np.abs(y.astype(np.float64).reshape(-1) - e.astype(np.float64).reshape(-1)).max(initial=0)
        worst = max(worst, float(far if counted else far / max(np.abs(e).max(initial=0), 1e-30)))
    return worst


def path_of(name: str) -> Path:
    """The file of a model of the zoo or the maker."""
    return Path(maker.path(name) if name in maker.names() else zoo.path(name))


def imported(name: str, path: Path) -> nnhal.Model | None:
    """A model of the zoo or the maker, with its usual shapes; None where it does not import whole."""
    try:
        return nnhal.load(path, shapes=None if name in maker.names() else dict(zoo.entry(name).shapes) or None)
    except nnhal.UnsupportedModel:
        return None


def measured(name: str, threads: int, pairs: int, devices: Sequence[str]) -> EngineRow | None:
    """One model on every device and engine; None where it does not import whole."""
    row, path = EngineRow(name), path_of(name)
    model = imported(name, path)
    if model is None:
        return None
    steps = [quantised(model.main.operands[i].type) for i in model.main.outputs]
    reference = nnhal.compile(model, devices="reference")
    inputs = [g.array for g in read_inputs(reference.inputs, (), 0, InputOptions())]
    wanted = outputs_of(reference(*inputs))
    carried = len(model.states)
    if carried:
        steps = steps[: len(wanted)]
    for device in devices:
        judge = "steps" if any(steps) else "relative"
        try:
            compiled = nnhal.compile(model, devices=device, fallback="forbid", threads=threads)
        except nnhal.NnhalError as error:
            row.absent[device] = str(error).splitlines()[0]
            continue
        plain = partial(compiled, *inputs)
        _note(row, device, off(outputs_of(plain()), wanted, steps), judge)
        inner = max(1, BLOCK_NS // max(timed(plain), 1))
        row.control[device] = ratio(timed_pairs(plain, plain, max(5, pairs // 3), inner)).median
        direct = None if device not in PEERS else directly(device, path, inputs, threads)
        if direct is None:
            row.ms[device] = statistics.median(timed(plain) for _ in range(pairs)) / 1e6
        else:
            who = f"{device} directly"
            _note(row, who, off(direct(), wanted, steps), judge)
            found = timed_pairs(plain, direct, pairs, inner)
            row.ratios[device] = ratio(found).median
            row.ms[device], row.ms[who] = (statistics.median(pair[side] for pair in found) / 1e6 for side in (0, 1))
        compiled.close()
    return row


def _note(row: EngineRow, who: str, worst: float, judge: str) -> None:
    row.worst[who] = worst
    row.correct[who] = worst <= (DRIFT if judge == "steps" else TOLERANCE)


def directly(device: str, path: Path, inputs: Sequence[np.ndarray], threads: int) -> Call | None:
    """The engine of a device on the file; None where it cannot read it, or takes other inputs."""
    try:
        engine = peer(device, path, threads)
        shapes = [list(x.shape) for x in inputs]
        if engine.shapes != shapes:
            engine.resize(shapes)
        engine(inputs)
        if isinstance(engine, LiteRT):
            engine.reset()  # states are as at first for who looks at the results
    except nnhal.NnhalError:
        return None
    except Exception:  # whatever an engine raises of a file that is not for it
        return None
    return partial(engine, inputs)


COLOURS = {"litert": "#4878a8", "openvino": "#7a4fa0", "onnxruntime": "#3d8f6a", "reference": "#888888"}


def picture(rows: Sequence[EngineRow], devices: Sequence[str], threads: int) -> str:
    """A chart as SVG: per model a bar an engine, its length against the slowest there; what is wrong is hatched."""
    high, gap, left, width = 13, 10, 230, 520
    lines: list[str] = []
    y = 54
    for row in rows:
        shown = [d for d in devices if d in row.ms]
        if not shown:
            continue
        most = max(row.ms[d] for d in shown)
        fastest = min((d for d in shown if row.correct[d]), key=lambda d: row.ms[d], default="")
        middle = y + len(shown) * high / 2 + 4
        lines.append(f'<text x="{left - 8}" y="{middle:.0f}" text-anchor="end">{escape(row.name)}</text>')
        for device in shown:
            long = max(1.0, row.ms[device] / most * width)
            wrong = not row.correct[device]
            fill = "url(#wrong)" if wrong else COLOURS.get(device, "#b0803c")
            note = f"{row.ms[device]:.3g} ms"
            note += f", wrong by {row.worst[device]:.2g}" if wrong else " · fastest" if device == fastest else ""
            lines.append(f'<rect x="{left}" y="{y}" width="{long:.1f}" height="{high - 2}" fill="{fill}"/>')
            lines.append(f'<text class="n" x="{left + long + 5:.1f}" y="{y + high - 4}">{escape(note)}</text>')
            y += high
        y += gap
    legend = []
    x = left
    for device in devices:
        legend.append(f'<rect x="{x}" y="28" width="11" height="11" fill="{COLOURS.get(device, "#b0803c")}"/>')
        legend.append(f'<text x="{x + 16}" y="38">{escape(device)}</text>')
        x += 30 + 8 * len(device)
    legend.append(
        f'<rect x="{x}" y="28" width="11" height="11" fill="url(#wrong)"/><text x="{x + 16}" y="38">wrong</text>'
    )
    wide = left + width + 190
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{y}" viewBox="0 0 {wide} {y}">',
        "<style>text{font:11px sans-serif;fill:#222}.n{font-size:10px;fill:#555}.t{font-size:14px}</style>",
        '<defs><pattern id="wrong" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#f6d5d0"/><rect width="3" height="6" fill="#c0392b"/></pattern></defs>',
        f'<rect width="{wide}" height="{y}" fill="white"/>',
        f'<text class="t" x="{left}" y="18">Milliseconds a call by device, threads: {threads}; shorter is faster</text>',
        *legend, *lines, "</svg>", "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--devices", nargs="+", help="all that are installed, without `reference`, by default")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    given = parser.parse_args()
    there = [each.name for each in discovery.found_with_engines() if each.device is not None]
    devices = given.devices or [name for name in there if name != "reference"]
    names = given.names or [*zoo.names(), *zoo.onnx_names(), *maker.names()]
    rows: list[EngineRow] = []
    with progress(given.json or not sys.stderr.isatty()) as bar:
        for name in bar.track(names, description="models"):
            row = measured(name, given.threads, given.pairs, devices)
            if row is None:
                continue
            rows.append(row)
            if not given.json:
                print(line(row, devices), flush=True)
    if given.svg:
        given.svg.write_text(picture(rows, devices, given.threads))
    over: dict[str, float] = {}
    more: dict[str, float] = {}
    for row in rows:
        for device, found in row.ratios.items():
            theirs = row.ms[f"{device} directly"]
            if theirs >= SHORT_MS:
                over[device] = round(max(over.get(device, 0), found), 3)
            else:
                more[device] = round(max(more.get(device, 0), (row.ms[device] - theirs) * 1e3), 1)
    document = {
        "models": [
            {
                "name": row.name,
                "ms": {who: round(ms, 4) for who, ms in row.ms.items()},
                "correct": row.correct,
                "worst": {
                    who: float(f"{worst:.3g}") if np.isfinite(worst) else None for who, worst in row.worst.items()
                },
            }
            for row in rows
        ],
        "driver_over_engine_max": over,
        "microseconds_more_max": more,
        "control_max": round(max([c for row in rows for c in row.control.values()], default=1), 3),
    }
    print(json.dumps(document))


def line(row: EngineRow, devices: Sequence[str]) -> str:
    """A model in a line: of each device milliseconds, the ratio to its engine called directly, and how far off it is."""
    cells = []
    for device in devices:
        if device not in row.ms:
            cells.append(f"{device} -")
            continue
        against = f" x{row.ratios[device]:.2f}" if device in row.ratios else ""
        mark = "" if row.correct[device] else " WRONG"
        cells.append(f"{device} {row.ms[device]:.3g} ms{against} ({row.worst[device]:.1g}){mark}")
    return f"{row.name:30} " + " | ".join(cells)


if __name__ == "__main__":
    main()
