"""`nnhal run`: inputs in, outputs out, and where and how long."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from nnhal import api
from nnhal.base.errors import InvalidRequest
from nnhal.base.operands import Array
from nnhal.cli import common
from nnhal.cli.inputs import Given, PictureOptions, read_inputs
from nnhal.cli.placement import placement_lines
from nnhal.runtime.arguments import Spec
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.isolation import Isolation
from nnhal.runtime.job import Report

TOP = 5


@dataclass(frozen=True)
class RunRecord:
    """What one run took and gave. spent: nanoseconds by phase. top: how many of the greatest elements to show."""

    model: str
    compiled: Compiled
    given: Sequence[Given]
    outputs: Sequence[Array]
    spent: dict[str, int]
    report: Report
    labels: Sequence[str]
    top: int


@click.command("run")
@common.model_options
@click.option(
    "--input", "-i", "files", multiple=True, help="[NAME=]FILE: .npy, .npz, a picture, raw bytes. Default: random."
)
@common.place_options
@click.option(
    "--output", "-o", type=common.Writable(), help="Write outputs to a .npz, .npy (one output) or .json file."
)
@click.option("--seed", default=0, help="Seed of random inputs.")
@click.option(
    "--range", "span", default="0,1", show_default=True, help="LOW,HIGH: values of a picture's black and white."
)
@click.option("--fit", is_flag=True, help="Keep a picture's proportions, with black bars, instead of stretching it.")
@click.option("--labels", type=click.Path(exists=True, dir_okay=False), help="Text file, one label a line, for --top.")
@click.option(
    "--top", type=click.IntRange(0), help=f"Show the greatest K elements of each output ({TOP} with --labels)."
)
@click.option("--deadline", type=float, help="Seconds that the execution may take.")
@common.json_option
def command(model: str, files: Sequence[str], devices: Sequence[str], drivers: Sequence[str], **options: Any) -> None:
    """Run MODEL (a .tflite file, or a name that `nnhal models` lists) once and show its outputs."""
    names = common.load_drivers(drivers, devices)
    loading = time.monotonic_ns()
    graph = common.open_model(model, options["shapes"], options["signature"])
    compiling = time.monotonic_ns()
    isolation: Isolation = "process" if options["isolate"] else "none"
    compiled = api.compile(
        graph, devices=names, fallback=options["fallback"], threads=options["threads"], isolation=isolation
    )
    running = time.monotonic_ns()
    given = read_inputs(compiled.inputs, files, options["seed"], _picture_options(options))
    started = time.monotonic_ns()
    arrays = [g.array for g in given]
    results, report = compiled.run(*arrays, deadline=options["deadline"], measure=True)
    ended = time.monotonic_ns()
    outputs = list(results) if isinstance(results, tuple) else [results]
    spent = {"load": compiling - loading, "compile": running - compiling, "run": ended - started}
    if options["output"]:
        _write(options["output"], compiled.outputs, outputs)
    labels = _labels(options["labels"])
    top = options["top"] if options["top"] is not None else TOP if labels else 0
    assert report is not None
    done = RunRecord(model, compiled, given, outputs, spent, report, labels, top)
    if options["as_json"]:
        common.emit(_document(done))
    else:
        _print(done)


def _picture_options(options: dict[str, Any]) -> PictureOptions:
    try:
        low, high = map(float, options["span"].split(","))
    except ValueError:
        raise click.BadParameter(f"{options['span']!r}: must be LOW,HIGH", param_hint="--range") from None
    return PictureOptions(low, high, options["fit"])


def _labels(path: str | None) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="replace").splitlines() if path else []


def _write(path: Path, specs: Sequence[Spec], outputs: Sequence[Array]) -> None:
    try:
        if path.suffix == ".npy" and len(outputs) == 1:
            np.save(path, outputs[0])
        elif path.suffix == ".npz":
            np.savez(path, allow_pickle=False, **{s.name: x for s, x in zip(specs, outputs, strict=True)})
        elif path.suffix == ".json":
            path.write_text(json.dumps({s.name: x.tolist() for s, x in zip(specs, outputs, strict=True)}))
        else:
            raise InvalidRequest(f"output {path}: must end in .npz, .json, or .npy for a single output")
    except OSError as error:
        raise InvalidRequest(f"output {path}: {error.strerror}") from None


def greatest(array: Array, top: int, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The `top` greatest elements: flat index, value, label where there is one."""
    flat = array.reshape(-1)
    order = np.argsort(-flat.astype(np.float64), kind="stable")[:top]
    return [
        {"index": int(i), "value": flat[i].item(), "label": labels[int(i)] if int(i) < len(labels) else None}
        for i in order
    ]


def summary(spec: Spec, array: Array) -> dict[str, Any]:
    """An output for people: shape, type, range."""
    real = array.astype(np.float64)
    least, most, mean = (real.min(), real.max(), real.mean()) if array.size else (None, None, None)
    facts = {
        "name": spec.name,
        "shape": list(array.shape),
        "type": spec.kind,
        "min": least,
        "max": most,
        "mean": mean,
    }
    return facts | ({"scale": spec.scale, "zero_point": spec.zero_point} if spec.scale else {})


def _document(done: RunRecord) -> dict[str, Any]:
    results = []
    for spec, array in zip(done.compiled.outputs, done.outputs, strict=True):
        results.append(summary(spec, array) | ({"top": greatest(array, done.top, done.labels)} if done.top else {}))
    return {
        "model": done.model,
        "inputs": [{"name": s.name, "from": g.origin} for s, g in zip(done.compiled.inputs, done.given, strict=True)],
        "outputs": results,
        "placement": done.compiled.placement.to_dict(),
        "time_ns": done.spent,
        "steps": [{"device": s.device, "operations": s.operations, "time_ns": s.total} for s in done.report.steps],
        "fallbacks": done.report.fallbacks,
    }


def _print(done: RunRecord) -> None:
    for spec, source in zip(done.compiled.inputs, done.given, strict=True):
        common.console.print(f"input  {spec}\n       from {source.origin}", markup=False)
    for spec, array in zip(done.compiled.outputs, done.outputs, strict=True):
        facts = summary(spec, array)
        spread = f"{facts['min']:.6g} to {facts['max']:.6g}, mean {facts['mean']:.6g}" if array.size else "no elements"
        common.console.print(f"output {spec.name}: {spec.kind}{list(array.shape)}, {spread}", markup=False)
        for entry in greatest(array, done.top, done.labels) if done.top else []:
            common.console.print(
                f"       {entry['value']:>12.6g}  #{entry['index']} {entry['label'] or ''}", markup=False
            )
    for line in placement_lines(done.compiled.placement):
        common.console.print(line, markup=False)
    for step in done.report.steps:
        common.console.print(f"step   {step.device}: {step.operations} operations, {common.milliseconds(step.total)}")
    for line in (*done.report.fallbacks,):
        common.console.print(f"fell back: {line}", markup=False)
    common.console.print("time   " + ", ".join(f"{what} {common.milliseconds(ns)}" for what, ns in done.spent.items()))
