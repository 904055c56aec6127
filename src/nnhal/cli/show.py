"""`nnhal show`: a model as text, DOT or SVG; with --placement where each operation would run."""

from pathlib import Path
from typing import Any

import click

from nnhal import api
from nnhal.cli import common
from nnhal.model.draw import svg
from nnhal.model.graph import Model
from nnhal.model.text import dot, text
from nnhal.model.validate import validate
from nnhal.ops.schema import show
from nnhal.runtime.isolation import Isolation
from nnhal.runtime.placement import Placement

COLOURS = ("#cfe8ff", "#ffe3b8", "#d6f5d6", "#f5d0e8", "#e6e0ff")


@click.command("show")
@common.model_options
@click.option("--dot", "as_dot", is_flag=True, help="Print Graphviz DOT.")
@click.option("--svg", "svg_path", type=click.Path(dir_okay=False), help="Draw a picture to this file.")
@click.option("--placement", "placed", is_flag=True, help="Say where each operation would run, and why not elsewhere.")
@common.place_options
@common.json_option
def command(model: str, placed: bool, as_dot: bool, svg_path: str | None, as_json: bool, **options: Any) -> None:
    """Show MODEL: inputs, outputs, operations, operands, constants with their sizes, level."""
    graph = common.open_model(model, options["shapes"], options["signature"])
    placement = _placement(graph, options) if placed else None
    if as_dot or svg_path:
        if svg_path:
            Path(svg_path).write_text(svg(graph, _colours(placement)))
            common.say(f"wrote {svg_path}")
        if as_dot:
            click.echo(dot(graph, _colours(placement)), nl=False)
        return
    if as_json:
        common.emit(_document(graph, placement))
        return
    notes = {c.operation: _note(c) for c in placement.choices} if placement else None
    click.echo(text(graph, notes), nl=False)
    if placement:
        click.echo(f"{len(placement.steps)} steps, {placement.transfers} tensors cross between devices")


def _placement(graph: Model, options: dict[str, Any]) -> Placement:
    names = common.load_drivers(options["drivers"], options["devices"])
    isolation: Isolation = "process" if options["isolate"] else "none"
    with api.compile(
        graph, devices=names, fallback=options["fallback"], threads=options["threads"], isolation=isolation
    ) as compiled:
        return compiled.placement


def _note(choice: Any) -> str:
    others = "".join(f"; not {device}: {why}" for device, why in choice.others.items())
    return f"{choice.device}: {choice.reason}{others}"


def _colours(placement: Placement | None) -> dict[int, str]:
    if placement is None:
        return {}
    devices = list(placement.devices())
    return {c.operation: COLOURS[devices.index(c.device) % len(COLOURS)] for c in placement.choices}


def _document(graph: Model, placement: Placement | None) -> dict[str, Any]:
    facts = validate(graph)
    main, binding = graph.main, facts.subgraphs[0]

    def operand(index: int) -> dict[str, Any]:
        described, value = main.operands[index], binding.values[index]
        entry: dict[str, Any] = {
            "operand": index,
            "name": described.name,
            "shape": show(value.shape if value else None),
        }
        entry |= {"type": int(described.type), "lifetime": described.lifetime.name, "bytes": described.location.length}
        return entry | ({"scale": described.scale, "zero_point": described.zero_point} if described.scale else {})

    operations = [
        {"operation": bound.name if bound else str(o.type), "inputs": list(o.inputs), "outputs": list(o.outputs)}
        for o, bound in zip(main.operations, binding.operations, strict=True)
    ]
    return {
        "name": graph.name,
        "level": str(facts.level),
        "inputs": [operand(i) for i in main.inputs],
        "outputs": [operand(i) for i in main.outputs],
        "operations": operations,
        "operands": [operand(i) for i in range(len(main.operands))],
        "subgraphs": len(graph.referenced),
        "states": len(graph.states),
        **({"placement": placement.to_dict()} if placement else {}),
    }
