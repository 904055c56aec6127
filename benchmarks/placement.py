"""Automatic placement against the fastest engine that is right on each model, called directly.

    python benchmarks/placement.py [--threads N] [--rounds 15] [--devices ...] [--json] [NAME ...]

Every model of the zoo, the maker and the ONNX set that imports, in one interleaved run: each engine called directly through
its own Python API with its best correct settings (`nnhal.measure.peers`; through nnhal's driver where the engine cannot read
the file), and `nnhal.compile(model)`: by the profile (calibrated), with tune=True (tuned), and the calibrated one again,
which says what a ratio is worth here (control). There has to be a profile: nnhal calibrate. Tuned times go to a copy of it.

Right is what agrees with `reference`, as benchmarks/engines.py has it. Regret: what the calibrated choice lost against the
tuned one. The last line is JSON: {"auto_over_fastest_max": of models over 1 ms,
"auto_over_best_single_geomean": [ratio, low, high], "microseconds_more_max": of models under 1 ms,
"over_fastest": {model: ratio or microseconds more, where above the bars}, all of the calibrated placement, and the same
under "tuned"; "best_single": device, "splits_that_win": [...], "regret": {model: ratio}, "control_max": ratio,
"choices": eight digits for each placement, which two runs on one profile share}.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from engines import BLOCK_NS, DRIFT, SHORT_MS, TOLERANCE, directly, imported, off, outputs_of, path_of

import nnhal
from nnhal import zoo
from nnhal.base.operands import quantised
from nnhal.base.records import Struct, field
from nnhal.bench.workloads import mixed
from nnhal.cli.common import progress
from nnhal.cli.inputs import read_inputs
from nnhal.cli.pictures import InputOptions
from nnhal.measure.latency import timed
from nnhal.runtime import discovery
from nnhal.runtime.measured import path as record_path
from nnhal.runtime.measured import record
from nnhal.zoo import maker

HOW = "calibrated", "tuned"
MADE = "conv_then_lstm"  # what is made for a split: `nnhal.bench.workloads.mixed`
DRIFT_INSIDE = 0.02  # of the greatest magnitude, of floats behind quantised operations
BAR, BAR_US = 1.03, 15.0  # above the fastest engine, for models over 1 ms and below
SLOW_NS = 400_000_000  # calls that are not measured at all: nobody's fastest

Call = Callable[[], object]


class PlacedRow(Struct):
    """What was measured on one model: seconds by who, who is right, placements in words, seconds of all placements.

    chosen: the device of each operation.
    """

    name: str
    ms: dict[str, float] = field(default_factory=dict)
    wrong: dict[str, float] = field(default_factory=dict)
    placed: dict[str, str] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, list[str]] = field(default_factory=dict)

    def fastest(self, devices: Sequence[str]) -> float:
        """Milliseconds of the fastest single engine; 0 where none was measured."""
        return min((self.ms[d] for d in devices if d in self.ms), default=0.0)


def measured(name: str, threads: int, rounds: int, devices: Sequence[str]) -> PlacedRow | None:
    """One model, everybody in turn; None where it does not import whole."""
    row, path = PlacedRow(name), None if name == MADE else path_of(name)
    model = mixed() if path is None else imported(name, path)
    if model is None:
        return None
    reference = nnhal.compile(model, devices="reference")
    inputs = [g.array for g in read_inputs(reference.inputs, (), 0, InputOptions())]
    wanted = outputs_of(reference(*inputs))
    steps = [quantised(model.main.operands[i].type) for i in model.main.outputs][: len(wanted)]
    inside = any(quantised(operand.type) for operand in model.main.operands)

    def right(who: str, call: Call) -> bool:
        worst = off(outputs_of(call()), wanted, steps)
        if worst > (DRIFT if any(steps) else DRIFT_INSIDE if inside else TOLERANCE):
            row.wrong[who] = worst
            return False
        return True

    calls: dict[str, Call] = {}
    held: list[nnhal.Compiled] = []
    for device in devices:
        engine = None if path is None else directly(device, path, inputs, threads)
        if engine is None:
            try:
                compiled = nnhal.compile(model, devices=device, fallback="forbid", threads=threads, placement="stated")
            except nnhal.NnhalError:
                continue
            held.append(compiled)
            engine = partial(compiled, *inputs)
        if right(device, engine) and timed(engine) < SLOW_NS:
            calls[device] = engine
    for how in HOW:
        compiled = nnhal.compile(model, threads=threads, fallback="allow", tune=how == "tuned")
        held.append(compiled)
        row.placed[how] = compiled.placement.summary()
        row.splits[how] = len(compiled.placement.steps)
        row.chosen[how] = [choice.device for choice in compiled.placement.choices]
        calls[how] = partial(compiled, *inputs)
        right(how, calls[how])
    calls["control"] = calls["calibrated"]
    inner = {who: max(1, int(BLOCK_NS / max(min(timed(call), timed(call)), 1))) for who, call in calls.items()}
    took: dict[str, list[float]] = {who: [] for who in calls}
    order = np.random.default_rng(0)
    for _ in range(rounds):
        for who in order.permutation(list(calls)):
            start = time.perf_counter_ns()
            for _ in range(inner[who]):
                calls[who]()
            took[who].append((time.perf_counter_ns() - start) / inner[who] / 1e6)
    row.ms = {who: statistics.median(each) for who, each in took.items()}
    for compiled in held:
        compiled.close()
    return row


def geomean(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean with its 95 % bootstrap interval over models."""
    logs = np.log(ratios)
    drawn = np.random.default_rng(0).choice(logs, (2000, len(logs))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return tuple(round(float(np.exp(x)), 3) for x in (logs.mean(), low, high))  # type: ignore[return-value]


def summary(rows: Sequence[PlacedRow], devices: Sequence[str]) -> dict[str, object]:
    """The last line."""
    everywhere = [device for device in devices if all(device in row.ms for row in rows)]
    best_single = min(everywhere, key=lambda d: float(np.mean([np.log(row.ms[d]) for row in rows])), default="")
    splits = [
        {"model": row.name, "how": how, "over_fastest": round(row.ms[how] / fastest, 3)}
        for row in rows
        for how in HOW
        if (fastest := row.fastest(devices)) and row.splits[how] > 1 and row.ms[how] < fastest / 1.02
    ]
    return {
        **against(rows, devices, best_single, "calibrated"),
        "tuned": against(rows, devices, best_single, "tuned"),
        "best_single": best_single,
        "splits_that_win": splits,
        "regret": {row.name: round(row.ms["calibrated"] / row.ms["tuned"], 3) for row in rows},
        "control_max": round(max(row.ms["control"] / row.ms["calibrated"] for row in rows), 3),
        "wrong": {row.name: row.wrong for row in rows if row.wrong},
        "choices": {how: digest({row.name: row.chosen[how] for row in rows}) for how in HOW},
    }


def digest(choices: dict[str, list[str]]) -> str:
    """Eight digits that are equal in two runs with the same choices."""
    return hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:8]


def against(rows: Sequence[PlacedRow], devices: Sequence[str], best_single: str, how: str) -> dict[str, object]:
    """A placement against the fastest engine of each model, and against the best one for all."""
    over: dict[str, float] = {}
    more: dict[str, float] = {}
    for row in rows:
        fastest = row.fastest(devices)
        if fastest >= SHORT_MS:
            over[row.name] = round(row.ms[how] / fastest, 3)
        elif fastest:
            more[row.name] = round((row.ms[how] - fastest) * 1e3, 1)
    return {
        "auto_over_fastest_max": max(over.values(), default=None),
        "auto_over_best_single_geomean": geomean([row.ms[how] / row.ms[best_single] for row in rows])
        if best_single
        else None,
        "microseconds_more_max": max(more.values(), default=None),
        "over_fastest": {
            **{name: ratio for name, ratio in over.items() if ratio > BAR},
            **{f"{name} (µs)": each for name, each in more.items() if each > BAR_US},
        },
    }


def line(row: PlacedRow, devices: Sequence[str]) -> str:
    """A model in a line."""
    engines = {d: row.ms[d] for d in devices if d in row.ms}
    fastest = min(engines, key=engines.__getitem__, default="")
    cells = [f"{d} {ms:.3g}{'*' if d == fastest else ''}" for d, ms in engines.items()]
    cells += [f"{d} WRONG" for d in row.wrong]
    ratio = {how: row.ms[how] / engines[fastest] if fastest else 1.0 for how in HOW}
    autos = [f"{how} x{ratio[how]:.2f} ({row.placed[how]})" for how in HOW]
    return f"{row.name:30} {' '.join(cells)} ms | {' | '.join(autos)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--devices", nargs="+", help="engines to compare with; those that were measured by default")
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    given = parser.parse_args()
    profile = record.profile()
    if profile is None:
        raise SystemExit("placement: nothing was measured on this machine, nnhal calibrate does that")
    there = [each.name for each in discovery.load_candidates() if each.device is not None]
    devices = given.devices or [name for name in there if name != "reference"]
    names = given.names or [*zoo.names(), *zoo.onnx_names(), *maker.names(), MADE]
    rows: list[PlacedRow] = []
    with tempfile.TemporaryDirectory(prefix="nnhal-placement-") as folder:
        known = Path(folder, "state")
        shutil.copytree(record_path().parent, known)
        os.environ["NNHAL_STATE_DIR"] = str(known)
        record.keep_profile(profile)
        with progress(given.json or not sys.stderr.isatty()) as bar:
            for name in bar.track(names, description="models"):
                row = measured(name, given.threads, given.rounds, devices)
                if row is not None:
                    rows.append(row)
                    if not given.json:
                        print(line(row, devices), flush=True)
    print(json.dumps(summary(rows, devices)))


if __name__ == "__main__":
    main()
