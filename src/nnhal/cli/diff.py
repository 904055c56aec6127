"""`nnhal diff`: runs a model on two devices, compares every intermediate, names the first operation that differs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

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
@click.option(
    "--each", is_flag=True, help="Feed each operation with --against's intermediates, so that nothing adds up."
)
@common.json_option
def command(model: str, device: str, against: str, files: Sequence[str], **options: Any) -> int:
    """Run MODEL on --device and on --against, compare every intermediate, name the first operation out of tolerance.

    Exit code 1 where one is out of tolerance.
    """
    common.load_drivers(options["drivers"], ())
    graph = common.open_model(model, options["shapes"], options["signature"])
    one, other = (_device(name, graph) for name in (device, against))
    specs = [spec_of(graph, i) for i in graph.main.inputs]
    given = read_inputs(specs, files, options["seed"], PictureOptions())
    inputs = [s.form.inside(g.array, f"input {s.name}") for s, g in zip(specs, given, strict=True)]
    with common.progress(options["as_json"]) as bar:
        task = bar.add_task(f"running on {against}", total=len(graph.main.operations))
        right = intermediates(graph, other, inputs)
        bar.update(task, description=f"running on {device}")
        found: list[Difference] = []
        pairs = each_operation(graph, one, inputs, right) if options["each"] else None
        for entry in pairs or compare(graph, intermediates(graph, one, inputs), right):
            found.append(entry)
            bar.update(task, completed=entry.operation + 1)
    bad = [entry for entry in found if not entry.within(options["tolerance"], options["steps"])]
    if options["as_json"]:
        _json(found, bad)
    else:
        _print(found, bad, device, against)
    return ANSWER_NO if bad else 0


def _device(name: str, graph: Model) -> Device:
    device = discovery.select([name])[0]
    refused = [(n, v.reason) for n, v in enumerate(verdicts_by(device, graph)) if not v.ok]
    if refused:
        listing = "; ".join(f"#{n}: {why}" for n, why in refused[:ROWS])
        raise UnsupportedModel(f"device {name} does not take {len(refused)} operations: {listing}")
    return device


def _json(found: Sequence[Difference], bad: Sequence[Difference]) -> None:
    rows = [asdict(entry) | {"type": entry.type.name} for entry in found]
    common.emit({"first_out_of_tolerance": bad[0].label if bad else None, "operands": rows})


def _print(found: Sequence[Difference], bad: Sequence[Difference], device: str, against: str) -> None:
    worst = sorted(found, key=lambda entry: -entry.worst)[:ROWS]
    rows = [
        [e.label, f"%{e.operand} {e.name[-NAME:]}", e.type.name, f"{e.worst:.3g}", f"{e.differing} of {e.size}"]
        for e in worst
    ]
    common.table(["operation", "operand", "type", ">worst", ">elements that differ"], rows)
    common.console.print("worst: steps for quantised types, else relative to the greatest magnitude")
    if bad:
        common.console.print(
            f"{device} differs from {against} first at {bad[0].label} (%{bad[0].operand} {bad[0].name})", markup=False
        )
    else:
        common.console.print(f"{device} agrees with {against} on all {len(found)} intermediates", markup=False)
