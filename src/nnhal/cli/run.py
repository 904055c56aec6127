"""`nnhal run`: runs a model once; shows inputs, outputs, placement and times."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import click
import numpy as np

from nnhal import api
from nnhal.base.brief import duration
from nnhal.base.columns import WIDTH, columns, fixed, section, shortened, wrap_text
from nnhal.base.errors import BadFile, InvalidRequest
from nnhal.base.names import member_names, unique
from nnhal.base.operands import Array, Shape
from nnhal.base.records import Record
from nnhal.base.time import NS
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.inputs import InputFromFile, metadata_of_specs, read_inputs
from nnhal.cli.model_text import NAME, shown_name, tensor_text, title
from nnhal.cli.pictures import InputOptions
from nnhal.cli.placement import placement_sections
from nnhal.model.metadata import Metadata
from nnhal.model.outline import outline
from nnhal.runtime.arguments import Spec
from nnhal.runtime.by_shape import CompiledByShape
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.discovery import CPU
from nnhal.runtime.job import Report

TOP = 5
ORIGIN = 60  # columns of an input's source; a longer text gets a second line


class Labels(Record, frozen=True):
    """Labels of the positions along the last dimension of an output, or of its values if `of_values`."""

    names: Sequence[str] = ()
    of_values: bool = False

    def of(self, place: int, value: Any) -> str | None:
        """Returns the label of an element by position or value; None if it has none."""
        number = int(value) if self.of_values else place % len(self.names) if self.names else 0
        return self.names[number] if 0 <= number < len(self.names) else None

    def misfit(self, array: Array) -> str:
        """Returns why the labels do not fit an output; "" if they do."""
        classes, count = next((size for size in reversed(array.shape) if size != 1), 1), len(self.names)
        if not count or self.of_values or count == classes:
            return ""
        why = {
            classes - 1: ": one label less is a list without the background class, which such models have first",
            classes + 1: ": one label more is a list with a background class first, which this model does not have",
        }
        return f"has {count} labels, must have {classes}, one for each class{why.get(count, '')}"


class RunRecord(Record, frozen=True):
    """The result of one run.

    Attributes:
        model: The model's name.
        title: The model's title line.
        compiled: The compiled model.
        given: The inputs.
        outputs: The outputs.
        spent: Nanoseconds by phase.
        report: The runtime's report.
        labels: The labels of each output.
        top: The number of greatest elements to show.
    """

    model: str
    title: str
    compiled: Compiled
    given: Sequence[InputFromFile]
    outputs: Sequence[Array]
    spent: dict[str, int]
    report: Report
    labels: "Sequence[Labels]"
    top: int


@nnhal_command("run", formerly={"--fit": "--letterbox"})
@common.model_options
@common.input_option(": .npy, .npz, picture, .wav, raw bytes")
@common.place_options
@common.cache_options
@click.option(
    "--output",
    "-o",
    type=common.Writable(),
    metavar="FILE",
    help="Write the outputs to .npz, .json or (one output) .npy.",
)
@common.seed_option
@click.option(
    "--range",
    "span",
    metavar="LOW,HIGH",
    help="Values of black and white in a picture (default: from the metadata, else the range of a quantised input, "
    "else 0,1).",
)
@click.option("--raw", is_flag=True, help="Store the 0 to 255 of a picture unchanged.")
@click.option(
    "--mean",
    metavar="N[,N,N]",
    help="Subtract this from a picture's values, which are 0 to 1, or in the range of --range.",
)
@click.option("--std", metavar="N[,N,N]", help="Divide by this after --mean.")
@click.option("--letterbox", "fit", is_flag=True, help="Keep a picture's proportions, with bars.")
@click.option(
    "--fill", type=click.IntRange(0, 255), default=0, show_default=True, help="Grey of the bars of --letterbox."
)
@click.option(
    "--rate",
    type=click.IntRange(1),
    help="Resample sounds to so many samples per second.",
)
@click.option(
    "--labels",
    type=click.Path(exists=True, dir_okay=False),
    help="Read labels for --top from a text file, one a line (default: from the metadata).",
)
@click.option(
    "--top",
    type=click.IntRange(0),
    metavar="K",
    help=f"Show the K greatest elements of each output (default: {TOP} with labels).",
)
@click.option("--deadline", type=float, metavar="SECONDS", help="Abandon the inference after so many seconds.")
@common.trace_option
@common.verbose_option
@common.json_option
def command(model: str, files: Sequence[str], devices: Sequence[str], drivers: Sequence[str], **options: Any) -> None:
    """Run a model once and show its outputs.

    MODEL is a .tflite or .onnx file, or a name that `nnhal models` lists.
    """
    folder = common.cache_folder(options["cache_dir"], options["no_cache"])
    names = common.load_drivers(drivers, devices)
    loading = time.monotonic_ns()
    graph = common.open_model(model, options, folder, any_shape=True)
    loaded = time.monotonic_ns()
    named = title(shown_name(model), outline(graph))
    compiling = time.monotonic_ns()
    compiled = api.compile(graph, devices=names, cache_dir=folder, **common.compile_arguments(options, names))
    compilation = time.monotonic_ns() - compiling
    given = read_inputs(compiled.inputs, files, options["seed"], _input_options(options), graph.metadata, graph)
    if isinstance(compiled, CompiledByShape):
        start = time.monotonic_ns()
        compiled = compiled.at([g.array.shape for g in given])
        compilation += time.monotonic_ns() - start
    chosen = names is not None or options["rules"] or options["strategy"]
    if not chosen and {*compiled.placement.devices()} <= {CPU}:
        why = [found.problem for found in api.devices() if found.device is None]
        common.warn(
            "no accelerated device runs this model, so it runs on the reference device (correct, slow)",
            "; ".join(why) or "nnhal devices",
        )
    started = time.monotonic_ns()
    arrays = [g.array for g in given]
    results, report = compiled.run(*arrays, deadline=options["deadline"], measure=True)
    ended = time.monotonic_ns()
    outputs = list(results) if isinstance(results, tuple) else [results]
    spent = {"load": loaded - loading, "compile": compilation, "run": ended - started}
    if options["output"]:
        _write(options["output"], compiled.outputs, outputs)
    labels = _labels(options["labels"], compiled.outputs, outputs, graph.metadata)
    top = options["top"] if options["top"] is not None else TOP if any(each.names for each in labels) else 0
    assert report is not None
    done = RunRecord(model, named, compiled, given, outputs, spent, report, labels, top)
    if options["as_json"]:
        common.print_json(_document(done))
    else:
        _print(done, verbose=options["verbose"])


def _input_options(options: dict[str, Any]) -> InputOptions:
    span, mean, std = (
        _numbers(name, options[key]) for name, key in (("range", "span"), ("mean", "mean"), ("std", "std"))
    )
    if options["span"] is not None and len(span) != 2:
        raise click.BadParameter(f"{options['span']!r}: must be LOW,HIGH", param_hint="--range")
    if options["raw"] and (span or mean or std):
        raise click.BadParameter("is given with --range, --mean or --std, must be without", param_hint="--raw")
    if 0 in std:
        raise click.BadParameter(f"{options['std']!r}: must not be 0", param_hint="--std")
    low, high = span or (None, None)
    rest = {name: options[name] for name in ("fit", "raw", "fill", "rate")}
    return InputOptions(low, high, mean=mean, std=std, **rest)


def _numbers(name: str, text: str | None) -> tuple[float, ...]:
    """Parses numbers with commas between them; none for None."""
    try:
        return tuple(map(float, text.split(","))) if text is not None else ()
    except ValueError:
        must = "LOW,HIGH" if name == "range" else "a number, or one for each channel"
        raise click.BadParameter(f"{text!r}: must be {must}", param_hint=f"--{name}") from None


def _labels(
    path: str | None, specs: Sequence[Spec], outputs: Sequence[Array], metadata: Metadata | None
) -> list[Labels]:
    """Returns the labels of each output: from the file `path` if their number fits, else from the model's metadata."""
    said = metadata_of_specs(specs, metadata.outputs if metadata else ())
    values = [any(file.kind == "value labels" for file in each.files) for each in said]
    if path:
        names = Path(path).read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
        if not names:
            raise InvalidRequest(f"labels {path}: holds none, must have one a line")
        found = [Labels(names, of_values) for of_values in values]
        misfits = [each.misfit(output) for each, output in zip(found, outputs, strict=True)]
        if all(misfits):
            where = [f"for output {s.name} {why}" for s, why in zip(specs, misfits, strict=True)]
            raise InvalidRequest(f"labels {path}: {misfits[0] if len(misfits) == 1 else '; '.join(where)}")
        return [Labels() if why else each for each, why in zip(found, misfits, strict=True)]
    found = []
    for each, of_values, output in zip(said, values, outputs, strict=True):
        try:
            labels = Labels(metadata.labels(each) if metadata else (), of_values)
            why = labels.misfit(output)
        except BadFile as error:
            labels, why = Labels(), str(error)
        if why:
            common.status.print(f"note: the model's own labels are not used: {why}", markup=False, soft_wrap=True)
        found.append(Labels() if why else labels)
    return found


def _write(path: Path, specs: Sequence[Spec], outputs: Sequence[Array]) -> None:
    names = [spec.name for spec in specs]
    try:
        if path.suffix == ".npy" and len(outputs) == 1:
            np.save(path, outputs[0])
        elif path.suffix == ".npz":
            with ZipFile(
                path, "w", allowZip64=True
            ) as archive:  # np.savez has names as keywords, which clash with its parameters
                for name, array in zip(member_names(names), outputs, strict=True):
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
        elif path.suffix == ".json":
            path.write_text(json.dumps({n: x.tolist() for n, x in zip(unique(names), outputs, strict=True)}))
        else:
            raise InvalidRequest(f"output {path}: must end in .npz, .json, or .npy for a single output")
    except OSError as error:
        raise InvalidRequest(f"output {path}: {error.strerror}") from None


def greatest(spec: Spec, array: Array, top: int, labels: Labels) -> list[dict[str, Any]]:
    """Returns the `top` greatest elements of an output, or the first ones if its values have labels.

    Returns:
        For each element: the flat index, the value, the label, and the real value of a quantised type.
    """
    flat = array.reshape(-1)
    order = np.arange(top) if labels.of_values else np.argsort(-flat.astype(np.float64), kind="stable")
    found = []
    for i in map(int, order[: min(top, flat.size)]):
        entry = {"index": i, "value": flat[i].item(), "label": labels.of(i, flat[i])}
        found.append(entry | ({"real": real_value(spec, float(flat[i]))} if spec.scale else {}))
    return found


def real_value(spec: Spec, stored: float) -> float:
    """Returns the real value of a quantised output's stored value."""
    return (stored - spec.zero_point) * spec.scale


def summary(spec: Spec, array: Array) -> dict[str, Any]:
    """Returns name, shape, type, minimum, maximum and mean of an output."""
    numbers = array.view(np.uint8) if array.dtype == bool else array
    least, most = (numbers.min().item(), numbers.max().item()) if array.size else (None, None)
    mean = numbers.mean(dtype=np.float64).item() if array.size else None
    facts = {
        "name": spec.name,
        "shape": list(array.shape),
        "type": spec.kind,
        "min": least,
        "max": most,
        "mean": mean,
    }
    if not spec.scale:
        return facts
    values = {"min": least, "max": most, "mean": mean}
    spread = {name: None if value is None else real_value(spec, value) for name, value in values.items()}
    return facts | {"scale": spec.scale, "zero_point": spec.zero_point, "real": spread}


def _document(done: RunRecord) -> dict[str, Any]:
    results = []
    for spec, array, labels in zip(done.compiled.outputs, done.outputs, done.labels, strict=True):
        top = {"top": greatest(spec, array, done.top, labels)} if done.top else {}
        results.append(summary(spec, array) | top)
    return {
        "model": done.model,
        "inputs": [{"name": s.name, "from": g.origin} for s, g in zip(done.compiled.inputs, done.given, strict=True)],
        "outputs": results,
        "placement": done.compiled.placement.to_dict(),
        "cache": [outcome._asdict() for outcome in done.compiled.cache],
        "time_ns": done.spent,
        "steps": [{"device": s.device, "operations": s.operations, "time_ns": s.total} for s in done.report.steps],
        "fallbacks": done.report.fallbacks,
    }


def _print(done: RunRecord, *, verbose: bool) -> None:
    own, placement = done.compiled, done.compiled.placement
    took = [step.total / NS for step in done.report.steps]
    problems = [line for line in common.cache_lines(own.cache) if verbose or not common.is_ordinary(line)]
    sections = [
        fixed(done.title),
        section(["Inputs"], columns(["", "", ""], _input_rows(done, verbose=verbose), indent=2), "inputs"),
        section(*_output_lines(done, verbose=verbose), "lines of outputs"),
        *placement_sections(placement, took, verbose=verbose),
        fixed(*(line for text in problems for line in wrap_text(text, most=2, indent="  ", whole=verbose))),
        fixed(_times(done)),
    ]
    common.show(sections, verbose=verbose)


def _input_rows(done: RunRecord, *, verbose: bool) -> list[list[str]]:
    rows = []
    for spec, given in zip(done.compiled.inputs, done.given, strict=True):
        source = [given.origin] if verbose else [given.short]
        if not verbose and len(given.short) > ORIGIN:
            source = given.short.rsplit(", ", 1)
        rows.append([shortened(spec.name, NAME), _spec_text(spec, spec.shape, verbose=verbose), source[0]])
        rows += [["", "", f"  {rest}"] for rest in source[1:]]
    return rows


def _spec_text(spec: Spec, shape: Shape | None, *, verbose: bool = False) -> str:
    text = tensor_text(spec.kind, shape)
    return f"{text} scale {spec.scale:.6g} zero point {spec.zero_point}" if spec.scale and verbose else text


def _output_lines(done: RunRecord, *, verbose: bool) -> tuple[list[str], list[str]]:
    """Returns the head and the lines of outputs, with the greatest elements below each; quantised values are real values."""
    rows, below = [], []
    for spec, array, labels in zip(done.compiled.outputs, done.outputs, done.labels, strict=True):
        facts = summary(spec, array)
        numbers = facts.get("real", facts)
        spread = [f"{numbers[what]:.5g}" if array.size else "" for what in ("min", "max", "mean")]
        rows.append([shortened(spec.name, NAME), _spec_text(spec, array.shape, verbose=verbose), *spread])
        below.append([_element(spec, entry) for entry in (greatest(spec, array, done.top, labels) if done.top else [])])
    head, *lines = columns(["Outputs", "", ">min", ">max", ">mean"], [["  " + row[0], *row[1:]] for row in rows])
    return [head], [text for line, more in zip(lines, below, strict=True) for text in (line, *more)]


def _element(spec: Spec, entry: dict[str, Any]) -> str:
    """Formats one of the greatest elements: its value, index and label."""
    value = f"{entry['real']:>12.6g} ({entry['value']})" if spec.scale else f"{entry['value']:>12.6g}"
    return shortened(f"    {value}  #{entry['index']} {entry['label'] or ''}".rstrip(), WIDTH)


def _times(done: RunRecord) -> str:
    spent = {what: duration(ns / NS) for what, ns in done.spent.items()}
    states = {outcome.state for outcome in done.compiled.cache}
    cache = {"hit": "cache hit", "off": "not cached"}.get("".join(states), "cache miss")
    return f"Time: load {spent['load']}, compile {spent['compile']} ({cache}), inference {spent['run']}"
