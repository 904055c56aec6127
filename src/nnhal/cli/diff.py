"""`nnhal diff`: compares two devices on every intermediate of a model, each operation alone and all of them added up."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import click

from nnhal.base.errors import UnsupportedModel
from nnhal.bench.compare import FLOAT_TOLERANCE, Difference, compare, each_operation, intermediates
from nnhal.cli import common
from nnhal.cli.inputs import PictureOptions, read_inputs
from nnhal.cli.main import ANSWER_NO
from nnhal.hal.device import Device, verdicts_by
from nnhal.model.graph import Model
from nnhal.runtime import discovery
from nnhal.runtime.arguments import spec_of

ROWS = 12
NAME = 48  # characters of an operand's name


class Pair(NamedTuple):
    """What was found of one operand: by its operation alone, and of the whole model."""

    alone: Difference
    whole: Difference


class Findings(NamedTuple):
    """What was found of all operands; those whose operation alone is out of tolerance; those where errors add up to that."""

    found: Sequence[Pair]
    bad: Sequence[Pair]
    drifted: Sequence[Pair]


@click.command("diff")
@common.model_options
@click.option("--device", "-d", "device", required=True, help="The device under test.")
@click.option("--against", default=discovery.CPU, show_default=True, help="The device that is right.")
@common.driver_option
@click.option("--input", "-i", "files", multiple=True, help="[NAME=]FILE as for `nnhal run`. Default: random.")
@click.option("--seed", default=0, help="Seed of random inputs.")
@click.option(
    "--tolerance", default=FLOAT_TOLERANCE, show_default=True, help="Floats: relative to the greatest magnitude."
)
@click.option("--steps", default=1.0, show_default=True, help="Quantised and integer types: steps.")
@common.json_option
def command(model: str, device: str, against: str, files: Sequence[str], **options: Any) -> int:
    """Run MODEL on --device and on --against and compare every intermediate, in two ways.

    Alone: each operation by itself, fed with --against's intermediates; exit code 1 where one is out of tolerance. Added
    up: the whole model on either; correct engines drift apart, so this is shown and decides nothing.
    """
    common.load_drivers(options["drivers"], ())
    graph = common.open_model(model, options["shapes"], options["signature"])
    one, other = (_device(name, graph) for name in (device, against))
    specs = [spec_of(graph, i) for i in graph.main.inputs]
    given = read_inputs(specs, files, options["seed"], PictureOptions(), graph.metadata)
    inputs = [s.form.inside(g.array, f"input {s.name}") for s, g in zip(specs, given, strict=True)]
    with common.progress(options["as_json"]) as bar:
        task = bar.add_task(f"running on {against}", total=2 * len(graph.main.operations))
        right = intermediates(graph, other, inputs)
        bar.update(task, description=f"running on {device}")
        whole = {entry.operand: entry for entry in compare(graph, intermediates(graph, one, inputs), right)}
        bar.update(task, description=f"each operation on {device}", completed=len(graph.main.operations))
        alone: list[Difference] = []
        for entry in each_operation(graph, one, inputs, right):
            alone.append(entry)
            bar.update(task, completed=len(graph.main.operations) + entry.operation + 1)
    found = [Pair(entry, whole[entry.operand]) for entry in alone]
    tolerance = options["tolerance"], options["steps"]
    findings = Findings(
        found,
        [pair for pair in found if not pair.alone.within(*tolerance)],
        [pair for pair in found if not pair.whole.within(*tolerance)],
    )
    if options["as_json"]:
        _json(findings)
    else:
        _print(findings, device, against)
    return ANSWER_NO if findings.bad else 0


def _device(name: str, graph: Model) -> Device:
    device = discovery.select([name])[0]
    refused = [(n, v.reason) for n, v in enumerate(verdicts_by(device, graph)) if not v.ok]
    if refused:
        listing = "; ".join(f"#{n}: {why}" for n, why in refused[:ROWS])
        raise UnsupportedModel(f"device {name} does not take {len(refused)} operations: {listing}")
    return device


def _json(findings: Findings) -> None:
    rows = [
        asdict(alone) | {"type": alone.type.name, "added_up": {"worst": whole.worst, "differing": whole.differing}}
        for alone, whole in findings.found
    ]
    first, drifted = (next((pair.alone.label for pair in pairs), None) for pairs in (findings.bad, findings.drifted))
    common.emit({"first_out_of_tolerance": first, "first_added_up": drifted, "operands": rows})


def _print(findings: Findings, device: str, against: str) -> None:
    worst = sorted(findings.found, key=lambda pair: (-pair.alone.worst, -pair.whole.worst))[:ROWS]
    rows = [
        [
            e.label,
            f"%{e.operand} {e.name[-NAME:]}",
            e.type.name,
            f"{e.worst:.3g}",
            f"{e.differing} of {e.size}",
            f"{whole.worst:.3g}",
        ]
        for e, whole in worst
    ]
    common.table(["operation", "operand", "type", ">alone", ">elements that differ", ">added up"], rows)
    say = partial(common.console.print, markup=False)
    say("alone, added up: steps for quantised types, else relative to the greatest magnitude")
    if findings.bad:
        first, count = findings.bad[0].alone, len({pair.alone.operation for pair in findings.bad})
        say(
            f"{device} differs from {against} in {count} operations, first in {first.label} (%{first.operand} {first.name})"
        )
    else:
        say(f"{device} agrees with {against} on each of {len(findings.found)} intermediates, its operation alone")
    if findings.drifted:
        drift = findings.drifted[0].whole
        say(f"differences add up beyond the tolerance from {drift.label} on (%{drift.operand} {drift.name})")
