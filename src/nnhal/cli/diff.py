"""`nnhal diff`: compares two devices on every intermediate of a model, for each operation alone and for the whole model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from nnhal.base.brief import with_count
from nnhal.base.columns import WIDTH, Section, columns, fixed, section, shortened, wrap_text
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.operands import Array, quantised
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
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.inputs import read_inputs
from nnhal.cli.main import ANSWER_NO
from nnhal.cli.model_text import type_text
from nnhal.cli.pictures import InputOptions
from nnhal.hal.answers import can_be_exact, wants_exact
from nnhal.hal.claims import query_verdicts
from nnhal.hal.device import EXACT, NUMERICS, Device
from nnhal.model.graph import Model, operation_label
from nnhal.runtime import discovery
from nnhal.runtime.arguments import ModelInterface
from nnhal.runtime.isolation import at_level

ROWS = 12
LEANS = 20  # differing elements from which a common sign of their differences is significant
NAME, OPERAND = 48, 28  # characters of the name of an output, of an operand


class DiffTolerance(NamedTuple):
    """A tolerance, as in `Difference.within`."""

    rtol: float
    lsb: float
    atol: float

    def __str__(self) -> str:
        return f"rtol {self.rtol:g}, atol {self.atol:g}, {self.lsb:g} LSB"


class OperandDrift(NamedTuple):
    """The difference of one operand: with its operation alone, and in the whole model if the device supports all of it."""

    alone: Difference
    whole: Difference | None


class Findings(NamedTuple):
    """The differences of a model.

    Attributes:
        found: All operands.
        bad: The operands whose operation alone is out of tolerance.
        drifted: The operands that are out of tolerance in the whole model.
        outputs: The outputs of the whole model.
        left: The operations that the device rejects, with its reasons.
    """

    found: Sequence[OperandDrift]
    bad: Sequence[OperandDrift]
    drifted: Sequence[Difference]
    outputs: Sequence[Drift]
    left: Mapping[int, str]


@nnhal_command("diff", formerly={"--tolerance": "--rtol", "--steps": "--lsb"})
@common.model_options
@click.option("--device", "-d", "device", required=True, help="Device under test.")
@click.option("--against", default=discovery.CPU, show_default=True, help="Device to compare with.")
@common.driver_option
@common.option_option
@common.numerics_option
@common.isolate_option
@common.input_option()
@common.seed_option
@click.option(
    "--samples", type=click.IntRange(1), default=1, show_default=True, help="Inputs to compare the model's outputs for."
)
@click.option(
    "--rtol",
    "rtol",
    type=common.FiniteRange(0),
    default=FLOAT_TOLERANCE,
    show_default=True,
    help="Tolerance of floats, relative to the greatest magnitude of the tensor.",
)
@click.option(
    "--atol",
    type=common.FiniteRange(0),
    default=0.0,
    show_default=True,
    help="Absolute tolerance of floats, added to it.",
)
@click.option(
    "--lsb",
    "lsb",
    type=common.FiniteRange(0),
    default=1.0,
    show_default=True,
    help="Tolerance of quantised and integer types, in quantisation steps.",
)
@common.verbose_option
@common.json_option
def command(model: str, device: str, against: str, files: Sequence[str], **options: Any) -> int:
    """Compare two devices on every operation of a model.

    Each operation runs alone on --device, with the intermediates of --against as its inputs; the exit code is 1 if one is
    out of tolerance. The whole model runs on both too. Correct engines drift apart there, so that decides nothing.
    Operations that --device rejects are not compared.
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
        raise UnsupportedModel(f"device {name} rejects {with_count(len(refused), 'operation')}: {listing}")
    edge = ModelInterface(graph)
    inputs = _inputs(graph, edge, files, options["seed"])
    with common.progress(options["as_json"]) as bar:
        task = bar.add_task(f"running on {against}", total=2 * len(graph.main.operations))
        right = intermediates(graph, other, inputs)
        bar.update(task, description=f"running on {device}")
        whole: dict[int, Difference] = {}
        outputs: list[Drift] = []
        if not left:
            whole = {entry.operand: entry for entry in compare(graph, intermediates(graph, one, inputs), right)}
            outputs = _drifts(graph, one, other, edge, files, options)
        bar.update(task, description=f"each operation on {device}", completed=len(graph.main.operations))
        alone: list[Difference] = []
        taken = [n for n in range(len(graph.main.operations)) if n not in left]
        for entry in each_operation(graph, one, inputs, right, taken):
            alone.append(entry)
            bar.update(task, completed=len(graph.main.operations) + entry.operation + 1)
    found = [OperandDrift(entry, whole.get(entry.operand)) for entry in alone]
    tolerance = DiffTolerance(options["rtol"], options["lsb"], options["atol"])
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
        _print(graph, findings, tolerance, device, against, verbose=options["verbose"])
    return ANSWER_NO if findings.bad else 0


def _inputs(graph: Model, edge: ModelInterface, files: Sequence[str], seed: int) -> list[Array]:
    """Returns the inputs in the model's types, with initial states."""
    read = read_inputs(edge.inputs, files, seed, InputOptions(), graph.metadata, graph)
    return edge.inside([g.array for g in read])


def _drifts(
    graph: Model, one: Device, other: Device, edge: ModelInterface, files: Sequence[str], options: Mapping[str, Any]
) -> list[Drift]:
    """Compares the outputs of the whole model for `--samples` inputs; inputs without a file are random each time."""
    pairs = []
    for number in range(options["samples"]):
        inputs = _inputs(graph, edge, files, options["seed"] + number)
        pairs.append((execute(graph, one, inputs), execute(graph, other, inputs)))
    names = [graph.main.operands[i].name or f"output {n}" for n, i in enumerate(graph.main.outputs)]
    return list(drifts(graph, pairs, names))


def _device(name: str, graph: Model, options: Mapping[str, Any], isolate: bool) -> tuple[Device, dict[int, str]]:
    """Returns a device, and the operations that it rejects with its reasons."""
    device = at_level(name, own_process=isolate, options=options)
    if wants_exact(options, name) and not can_be_exact(device):
        raise InvalidArgument(f"numerics is 'exact', which device {name} does not declare: must be 'fast'")
    return device, {n: v.reason for n, v in enumerate(query_verdicts(device, graph)) if not v.ok}


def _label(graph: Model, n: int) -> str:
    return operation_label(graph.main.operations[n].type, n)


def _json(graph: Model, findings: Findings) -> None:
    rows = [
        {name: value for name, value in as_dict(alone).items() if name != "magnitude"}
        | {"type": alone.type.name}
        | {"added_up": {"worst": whole.worst, "differing": whole.differing} if whole else None}
        for alone, whole in findings.found
    ]
    first = next((pair.alone.label for pair in findings.bad), None)
    drifted = next((entry.label for entry in findings.drifted), None)
    left = [{"operation": n, "label": _label(graph, n), "reason": why} for n, why in findings.left.items()]
    outputs = [as_dict(each) | {"type": each.type.name} for each in findings.outputs]
    common.print_json(
        {
            "first_out_of_tolerance": first,
            "first_added_up": drifted,
            "left_out": left,
            "outputs": outputs,
            "operands": rows,
        }
    )


def _print(
    graph: Model, findings: Findings, tolerance: DiffTolerance, device: str, against: str, *, verbose: bool
) -> None:
    count = len(findings.found)
    if findings.bad:
        first, operations = findings.bad[0].alone, len({pair.alone.operation for pair in findings.bad})
        where = f"first in {first.label} (%{first.operand} {first.name[-NAME:]}): max error {first.worst:.3g}"
        answer = f"FAILED: {device} differs from {against} in {with_count(operations, 'operation')}, {where}"
    else:
        answer = f"PASSED: {device} agrees with {against} on {count} of {count} intermediates ({tolerance})"
    left = [f"  {_label(graph, n)}: {why}" for n, why in findings.left.items()]
    heads = f"Not compared: {with_count(len(left), 'operation')} that {device} rejects, and the whole model"
    parts = [
        fixed(*wrap_text(answer, most=3, indent="  "), *_drifted(findings)),
        _operations(findings),
        _outputs(findings.outputs),
        section([heads], left if verbose else [shortened(line, WIDTH) for line in left], "operations"),
        fixed("Max error: in LSB of quantised types, else relative to the greatest magnitude of the tensor"),
    ]
    common.show(parts, verbose=verbose)
    _warn(findings.outputs, device, against)


def _drifted(findings: Findings) -> list[str]:
    """Returns a line that names the first operation out of tolerance in the whole model."""
    if not findings.drifted:
        return []
    drift = findings.drifted[0]
    where = f"{drift.label} (%{drift.operand} {drift.name[-NAME:]})"
    return [shortened(f"  In the whole model, errors accumulate beyond the tolerance from {where} on", WIDTH)]


def _operations(findings: Findings) -> Section:
    """Returns a table of operands, the worst first."""
    worst = sorted(findings.found, key=lambda pair: (-pair.alone.worst, -pair.whole.worst if pair.whole else 0))
    rows = [
        [
            e.label,
            shortened(f"%{e.operand} {e.name[-OPERAND:]}".rstrip(), OPERAND),
            type_text(e.type.name),
            f"{e.worst:.3g}",
            f"{e.differing}/{e.size}",
            f"{whole.worst:.3g}" if whole else "-",
        ]
        for e, whole in worst
    ]
    lines = columns(["Operation", "operand", "type", ">max error", ">differing", ">in the whole model"], rows)
    return section(lines[:1], lines[1:], "operands, none worse")


def _outputs(outputs: Sequence[Drift]) -> Section:
    """Returns a table of the outputs of the whole model."""
    rows = [
        [
            shortened(each.name[-NAME:], NAME),
            type_text(each.type.name),
            f"{each.worst:.3g}",
            f"{each.differing}/{each.size}",
            f"{each.lean:+.2g}" if each.differing else "",
            f"{each.changed}/{each.rows}" if each.rows else "",
        ]
        for each in outputs
    ]
    heads = ["Output of the whole model", "type", ">max error", ">differing", ">mean error", ">top-1 changed"]
    lines = columns(heads, rows)
    return section(lines[:1], lines[1:], "outputs")


def _warn(outputs: Sequence[Drift], device: str, against: str) -> None:
    """Warns if the top-1 element of an output changes, or if an engine rounds to one side."""
    for each in outputs:
        if each.changed:
            what = f"another element is the greatest in {each.changed} of {each.rows} rows"
            common.warn(f"output {each.name} of {device} and of {against}: {what}")
        elif quantised(each.type) and each.differing >= LEANS and abs(each.lean) > 0.9 * each.worst:
            side = "above" if each.lean > 0 else "below"
            what = f"nearly all of the {each.differing} differing elements are {side}: {device} rounds to one side"
            common.warn(f"output {each.name}: {what}")
