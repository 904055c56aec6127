"""`nnhal show`: what a model consists of; as text, DOT or a picture; with --placement where each operation would run."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from nnhal import api
from nnhal.base.brief import counted
from nnhal.base.codes import type_name
from nnhal.base.errors import ShapeNeeded, UnsupportedModel
from nnhal.base.names import printable
from nnhal.cli import common
from nnhal.cli.metadata import metadata_document, metadata_lines
from nnhal.cli.placement import placement_lines
from nnhal.model.draw import Placing, colours_of, png, svg
from nnhal.model.graph import Model
from nnhal.model.outline import Outline, outline, shape_text
from nnhal.model.text import dot, listing, text
from nnhal.model.validate import validate
from nnhal.runtime.placement import Placement

REASONS = 3  # for the level, before they are counted
WHERE = re.compile(r"^\w+ #\d+: ")  # the same reason holds at many places


@click.command("show")
@common.model_options
@click.option("--all", "--operations", "everything", is_flag=True, help="List every operation and operand.")
@click.option("--dot", "as_dot", is_flag=True, help="Print Graphviz DOT.")
@click.option("--svg", "svg_path", type=common.Writable(), help="Draw a picture to this file.")
@click.option("--png", "png_path", type=common.Writable(), help="Draw a picture to this file.")
@click.option("--placement", "placed", is_flag=True, help="Say where each operation would run, and why not elsewhere.")
@common.place_options
@common.json_option
def command(model: str, placed: bool, as_dot: bool, as_json: bool, everything: bool, **options: Any) -> None:
    """Show MODEL: what goes in and out, which operations and weights it has, its work, its level.

    A model that NNAPI cannot take is shown too, with the operations that it cannot take, and why; so is one of which shapes
    have to be given first.
    """
    graph: Model | None = None
    names = common.load_drivers(options["drivers"], options["devices"])  # which may know operators of the model
    try:
        graph = common.open_model(model, options)
    except (UnsupportedModel, ShapeNeeded) as error:
        if isinstance(error, UnsupportedModel) and not error.refused:
            raise
        from nnhal.frontends.formats import refused_outline

        if isinstance(error, ShapeNeeded):
            common.status.print(f"note: {error}", markup=False, soft_wrap=True)

        facts = refused_outline(common.resolve(model), error, options["signature"])
    else:
        facts = outline(graph)
    placement = _placement(graph, names, options) if placed and graph is not None else None
    if placed and graph is None:
        common.say("note: NNAPI cannot take the model whole, so no part of it is placed")
    if as_dot or options["svg_path"] or options["png_path"]:
        _draw(facts, placement, options["svg_path"], options["png_path"])
        if as_dot:
            click.echo(dot(facts, colours_of(_placing(placement) or {})[1]), nl=False)
    elif as_json:
        common.emit(_document(facts, graph, placed, placement))
    elif everything:
        click.echo(listing(facts) if graph is None else text(graph, _notes(placement)), nl=False)
        if placement:
            click.echo(f"{counted(len(placement.steps), 'step')}, {placement.transfers} tensors cross between devices")
    else:
        _print(facts, graph, placement)


def _draw(facts: Outline, placement: Placement | None, svg_path: Path | None, png_path: Path | None) -> None:
    if svg_path:
        common.write(svg_path, svg(facts, _placing(placement), _notes(placement)).encode())
    if png_path:
        common.write(png_path, png(facts, _placing(placement)))


def _placement(graph: Model, names: list[str] | None, options: dict[str, Any]) -> Placement:
    with api.compile(graph, devices=names, cache_dir=False, **common.placing(options, names)) as compiled:
        return compiled.placement


def _placing(placement: Placement | None) -> Placing | None:
    return {c.operation: c.device for c in placement.choices if c.device} if placement else None


def _notes(placement: Placement | None) -> dict[int, str] | None:
    return {c.operation: _note(c) for c in placement.choices} if placement else None


def _note(choice: Any) -> str:
    others = "".join(f"; not {device}: {why}" for device, why in choice.others.items())
    return f"{choice.device}: {choice.reason}{others}" if choice.device else choice.reason


def _print(facts: Outline, graph: Model | None, placement: Placement | None) -> None:
    for line in summary(facts):
        common.console.print(line, markup=False)
    if graph is not None and (graph.referenced or graph.states):
        parts = counted(len(graph.referenced), "subgraph"), counted(len(graph.states), "state")
        common.console.print(f"with     {', '.join(parts)}")
    common.console.print()
    work, weights = Counter[str](), Counter[str]()
    for n, node in enumerate(facts.nodes):
        work[node.name] += facts.macs(node)
        weights[node.name] += 0 if n in facts.folded else sum(t.size for t in facts.weights(node))
    rows = [
        [printable(kind), count, _count(weights[kind]), _count(work[kind])]
        for kind, count in facts.kinds().most_common()
    ]
    common.table(["operation", ">how often", ">parameters", ">multiply-adds"], rows)
    common.console.print()
    stored = [[kind, n, _count(size), common.size(bytes)] for kind, (n, size, bytes) in facts.stored().items()]
    if stored:
        common.table(["weights", ">tensors", ">elements", ">size"], stored)
    refused = _refused(facts)
    if refused:
        common.table(["cannot be taken", "where", "why"], refused)
    for line in placement_lines(placement) if placement else ():
        common.console.print(line, markup=False)
    common.say("every operation: --all; a picture: --svg FILE or --png FILE; where it would run: --placement")


def _refused(facts: Outline) -> list[list[str]]:
    """Name, places and reason of what is refused, alike ones in one row."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for n, node in enumerate(facts.nodes):
        if node.refused:
            places[node.name, node.refused].append(f"#{n}")
    return [[printable(name), ", ".join(at), printable(why)] for (name, why), at in places.items()]


def summary(facts: Outline) -> Iterator[str]:
    """The first lines: what it is, why that level, what goes in and out."""
    stored = facts.stored().values()
    elements, size = sum(s[1] for s in stored), sum(s[2] for s in stored)
    work = sum(map(facts.macs, facts.nodes))
    yield printable(
        f"model    {facts.name or '(unnamed)'}: {counted(len(facts.nodes), 'operation')}, "
        f"{_count(elements) or 0} parameters in {common.size(size)}, {_count(work) or 0} multiply-adds"
    )
    lost = sum(bool(node.refused) for node in facts.nodes)
    if facts.level:
        reasons = list(dict.fromkeys(WHERE.sub("", reason) for reason in facts.reasons))
        because = "; ".join(reasons[:REASONS])
        more = f"; and {len(reasons) - REASONS} more reasons" if len(reasons) > REASONS else ""
        yield printable(f"level    {facts.level}, because {because or 'nothing asks for a later one'}{more}")
    elif lost:
        yield f"level    none: NNAPI cannot take {lost} of the {len(facts.nodes)} operations"
    elif facts.reasons:
        yield f"level    none: {facts.reasons[0]}"
    else:
        yield "level    none: NNAPI cannot take an input or output"
    for word, keys in (("input", facts.inputs), ("output", facts.outputs)):
        for key in keys:
            tensor = facts.tensors[key]
            yield printable(f"{word:8} {tensor.name or f'%{key}'}: {tensor.type} {shape_text(tensor.shape)}")
    if facts.metadata is not None:
        yield from metadata_lines(facts.metadata)


def _count(number: int) -> str:
    """A number for people: 12,345 or 1.23 M."""
    for power, unit in ((9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {unit}"
    return f"{number:,}" if number else ""


def _document(facts: Outline, graph: Model | None, placed: bool, placement: Placement | None) -> dict[str, Any]:
    def tensor(key: int) -> dict[str, Any]:
        found = facts.tensors[key]
        shape = None if found.shape is None else list(found.shape)
        return {"operand": key, "name": found.name, "shape": shape, "type": found.type}

    stored = {kind: dict(zip(("tensors", "elements", "bytes"), s, strict=True)) for kind, s in facts.stored().items()}
    return {
        "name": facts.name,
        "level": facts.level or None,
        "reasons": list(facts.reasons),
        "inputs": [tensor(i) for i in facts.inputs],
        "outputs": [tensor(i) for i in facts.outputs],
        "parameters": sum(s[1] for s in facts.stored().values()),
        "macs": sum(map(facts.macs, facts.nodes)),
        "histogram": dict(facts.kinds().most_common()),
        "weights": stored,
        "operations": [
            {
                "operation": node.name,
                "attributes": node.attributes,
                "inputs": list(node.inputs),
                "outputs": list(node.outputs),
                "macs": facts.macs(node),
                "refused": node.refused or None,
            }
            for node in facts.nodes
        ],
        "operands": _operands(graph) if graph is not None else [tensor(key) for key in facts.tensors],
        "subgraphs": len(graph.referenced) if graph is not None else 0,
        "states": len(graph.states) if graph is not None else 0,
        "metadata": metadata_document(facts.metadata),
        **({"placement": placement and placement.to_dict()} if placed else {}),
    }


def _operands(graph: Model) -> list[dict[str, Any]]:
    """Every operand of the main subgraph, scalars and omitted ones too."""
    found = []
    for index, (operand, value) in enumerate(
        zip(graph.main.operands, validate(graph).subgraphs[0].values, strict=True)
    ):
        shape = None if value is None or value.shape is None else list(value.shape)
        entry: dict[str, Any] = {
            "operand": index,
            "name": operand.name,
            "shape": shape,
            "type": type_name(operand.type),
        }
        entry |= {"lifetime": operand.lifetime.name, "bytes": operand.location.length}
        found.append(entry | ({"scale": operand.scale, "zero_point": operand.zero_point} if operand.scale else {}))
    return found
