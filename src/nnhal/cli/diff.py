"""`nnhal diff`: compares two devices on every intermediate of a model, each operation alone and all of them added up."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import click

from nnhal.base.brief import counted
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.operands import quantised
from nnhal.base.records import as_dict
from nnhal.bench.compare import (
    FLOAT_TOLERANCE,
    Difference,
    Drift,
    compare,
    drifts,
    each_operation,
    execute,
    intermediates,
)
from nnhal.cli import common
from nnhal.cli.inputs import read_inputs
from nnhal.cli.main import ANSWER_NO
from nnhal.cli.pictures import InputOptions
from nnhal.hal.claims import verdicts_by
from nnhal.hal.device import EXACT, NUMERICS, Device, can_be_exact, wants_exact
from nnhal.model.graph import Model, operation_label
from nnhal.runtime import discovery
from nnhal.runtime.arguments import Spec, spec_of
from nnhal.runtime.isolation import at_level

ROWS = 12
LEANS = 20  # elements that differ, from which on their side tells something
NAME = 48  # characters of an operand's name


class Pair(NamedTuple):
    """What was found of one operand: by its operation alone, and of the whole model where the device takes all of it."""

    alone: Difference
    whole: Difference | None


class Findings(NamedTuple):
    """What was found of all operands; those whose operation alone is out of tolerance; those where errors add up to that.

    outputs: of the whole model. left: operations that the device does not take, and why.
    """

    found: Sequence[Pair]
    bad: Sequence[Pair]
    drifted: Sequence[Difference]
    outputs: Sequence[Drift]
    left: Mapping[int, str]


@click.command("diff")
@common.model_options
@click.option("--device", "-d", "device", required=True, help="The device under test.")
@click.option("--against", default=discovery.CPU, show_default=True, help="The device that is right.")
@common.driver_option
@common.option_option
@common.numerics_option
@common.isolate_option
@click.option("--input", "-i", "files", multiple=True, help="[NAME=]FILE as for `nnhal run`. Default: random.")
@click.option("--seed", default=0, help="Seed of random inputs.")
@click.option(
    "--samples", type=click.IntRange(1), default=1, show_default=True, help="Inputs that the outputs are compared for."
)
@click.option(
    "--tolerance", default=FLOAT_TOLERANCE, show_default=True, help="Floats: relative to the greatest magnitude."
)
@click.option("--steps", default=1.0, show_default=True, help="Quantised and integer types: steps.")
@common.json_option
def command(model: str, device: str, against: str, files: Sequence[str], **options: Any) -> int:
    """Run MODEL on --device and on --against and compare every intermediate, in two ways.

    Alone: each operation by itself, fed with --against's intermediates; exit code 1 where one is out of tolerance. Added
    up: the whole model on either; correct engines drift apart, so this is shown and decides nothing. Operations that
    --device does not take are left out and listed; the others are compared alone then.
    """
    common.load_drivers(options["drivers"], ())
    graph = common.open_model(model, options)
    given = common.parse_options(options["driver_options"], [device, against], device)
    if options["numerics"] == EXACT:
        given = {name: {NUMERICS: EXACT, **given.get(name, {})} for name in (device, against)}
    (one, left), (other, lacking) = (
        _device(name, graph, given.get(name, {}), options["isolate"] and name != discovery.CPU)
        for name in (device, against)
    )
    if lacking or len(left) == len(graph.main.operations):
        name, refused = (against, lacking) if lacking else (device, left)
        listing = "; ".join(f"#{n}: {why}" for n, why in list(refused.items())[:ROWS])
        raise UnsupportedModel(f"device {name} does not take {counted(len(refused), 'operation')}: {listing}")
    specs = [spec_of(graph, i) for i in graph.main.inputs]
    read = read_inputs(specs, files, options["seed"], InputOptions(), graph.metadata)
    inputs = [s.form.inside(g.array, f"input {s.name}") for s, g in zip(specs, read, strict=True)]
    with common.progress(options["as_json"]) as bar:
        task = bar.add_task(f"running on {against}", total=2 * len(graph.main.operations))
        right = intermediates(graph, other, inputs)
        bar.update(task, description=f"running on {device}")
        whole: dict[int, Difference] = {}
        outputs: list[Drift] = []
        if not left:
            whole = {entry.operand: entry for entry in compare(graph, intermediates(graph, one, inputs), right)}
            outputs = _drifts(graph, one, other, specs, files, options)
        bar.update(task, description=f"each operation on {device}", completed=len(graph.main.operations))
        alone: list[Difference] = []
        taken = [n for n in range(len(graph.main.operations)) if n not in left]
        for entry in each_operation(graph, one, inputs, right, taken):
            alone.append(entry)
            bar.update(task, completed=len(graph.main.operations) + entry.operation + 1)
    found = [Pair(entry, whole.get(entry.operand)) for entry in alone]
    tolerance = options["tolerance"], options["steps"]
    findings = Findings(
        found,
        [pair for pair in found if not pair.alone.within(*tolerance)],
        [pair.whole for pair in found if pair.whole and not pair.whole.within(*tolerance)],
        outputs,
        left,
    )
    if options["as_json"]:
        _json(graph, findings)
    else:
        _print(graph, findings, device, against)
    return ANSWER_NO if findings.bad else 0


def _drifts(
    graph: Model, one: Device, other: Device, specs: Sequence[Spec], files: Sequence[str], options: Mapping[str, Any]
) -> list[Drift]:
    """Of the outputs of whole models, for as many inputs as are asked for: what no file gives is random anew."""
    pairs = []
    for number in range(options["samples"]):
        read = read_inputs(specs, files, options["seed"] + number, InputOptions(), graph.metadata)
        inputs = [s.form.inside(g.array, f"input {s.name}") for s, g in zip(specs, read, strict=True)]
        pairs.append((execute(graph, one, inputs), execute(graph, other, inputs)))
    names = [graph.main.operands[i].name or f"output {n}" for n, i in enumerate(graph.main.outputs)]
    return list(drifts(graph, pairs, names))


def _device(name: str, graph: Model, options: Mapping[str, Any], isolate: bool) -> tuple[Device, dict[int, str]]:
    """A device, and the operations that it does not take with its reasons."""
    device = at_level(name, own_process=isolate, options=options)
    if wants_exact(options, name) and not can_be_exact(device):
        raise InvalidArgument(f"numerics is 'exact', which device {name} does not declare: must be 'fast'")
    return device, {n: v.reason for n, v in enumerate(verdicts_by(device, graph)) if not v.ok}


def _label(graph: Model, n: int) -> str:
    return operation_label(graph.main.operations[n].type, n)


def _json(graph: Model, findings: Findings) -> None:
    rows = [
        as_dict(alone)
        | {"type": alone.type.name}
        | {"added_up": {"worst": whole.worst, "differing": whole.differing} if whole else None}
        for alone, whole in findings.found
    ]
    first = next((pair.alone.label for pair in findings.bad), None)
    drifted = next((entry.label for entry in findings.drifted), None)
    left = [{"operation": n, "label": _label(graph, n), "reason": why} for n, why in findings.left.items()]
    outputs = [as_dict(each) | {"type": each.type.name} for each in findings.outputs]
    common.emit(
        {
            "first_out_of_tolerance": first,
            "first_added_up": drifted,
            "left_out": left,
            "outputs": outputs,
            "operands": rows,
        }
    )


def _print(graph: Model, findings: Findings, device: str, against: str) -> None:
    worst = sorted(findings.found, key=lambda pair: (-pair.alone.worst, -pair.whole.worst if pair.whole else 0))[:ROWS]
    rows = [
        [
            e.label,
            f"%{e.operand} {e.name[-NAME:]}",
            e.type.name,
            f"{e.worst:.3g}",
            f"{e.differing} of {e.size}",
            f"{whole.worst:.3g}" if whole else "",
        ]
        for e, whole in worst
    ]
    common.table(["operation", "operand", "type", ">alone", ">elements that differ", ">added up"], rows)
    say = partial(common.console.print, markup=False)
    say("alone, added up: steps for quantised types, else relative to the greatest magnitude")
    _print_outputs(findings.outputs, device, against)
    if findings.bad:
        first, count = findings.bad[0].alone, counted(len({pair.alone.operation for pair in findings.bad}), "operation")
        say(f"{device} differs from {against} in {count}, first in {first.label} (%{first.operand} {first.name})")
    else:
        say(f"{device} agrees with {against} on each of {len(findings.found)} intermediates, its operation alone")
    if findings.drifted:
        drift = findings.drifted[0]
        say(f"differences add up beyond the tolerance from {drift.label} on (%{drift.operand} {drift.name})")
    for n, why in findings.left.items():
        say(f"left out: {_label(graph, n)}, which {device} does not take: {why}")
    if findings.left:
        say("so the whole model was not compared, only each operation alone")


def _print_outputs(outputs: Sequence[Drift], device: str, against: str) -> None:
    """How far the outputs of the whole model are off, and a warning where that changes what they say."""
    if not outputs:
        return
    rows = [
        [
            each.name[-NAME:],
            each.type.name,
            f"{each.differing} of {each.size}",
            f"{each.worst:.3g}",
            f"{each.lean:+.2g}" if each.differing else "",
            f"{each.changed} of {each.rows}" if each.rows else "",
        ]
        for each in outputs[:ROWS]
    ]
    heads = ["output", "type", ">elements that differ", ">worst", ">mean of those", ">greatest that change"]
    common.table(heads, rows, title="outputs of the whole model")
    for each in outputs:
        if each.changed:
            what = f"in {each.changed} of {each.rows} rows another element is the greatest"
            common.status.print(
                f"warning: {each.name} of {device} and of {against}: {what}", markup=False, soft_wrap=True
            )
        elif quantised(each.type) and each.differing >= LEANS and abs(each.lean) > 0.9 * each.worst:
            side = "above" if each.lean > 0 else "below"
            what = f"the {each.differing} elements that differ are nearly all {side}: {device} rounds to one side"
            common.status.print(f"warning: {each.name}: {what}", markup=False, soft_wrap=True)
