"""`nnhal show`: shows a model as text, DOT or a picture, and with --placement where each operation would run."""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from nnhal import api
from nnhal.base.brief import with_count
from nnhal.base.codes import type_name
from nnhal.base.columns import Section, columns, fixed, section, shortened, wrap_text
from nnhal.base.errors import InvalidArgument, ShapeNeeded, UnsupportedModel
from nnhal.base.names import printable, suggestion
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.inputs import metadata_of_specs
from nnhal.cli.model_text import (
    NAME,
    count_text,
    hal_version,
    metadata_document,
    metadata_facts,
    said_of_model,
    shown_name,
    tensor_text,
    title,
    type_text,
)
from nnhal.cli.placement import chosen_operations, why_section
from nnhal.model.draw import READABLE, PicturePart, Placing, colours_of, default_part, png, svg
from nnhal.model.graph import EdgeForm, Model
from nnhal.model.outline import Outline, outline
from nnhal.model.text import dot, listing, text
from nnhal.model.validate import validate
from nnhal.runtime import placement_text as words
from nnhal.runtime.placement import Placement

REASONS = 3  # reasons for the HAL version that are shown
WHERE = re.compile(r"^\w+ #\d+: ")  # the same reason holds at many places


class PartType(click.ParamType[PicturePart]):
    """The value of --part: `overview`, `all`, or a range of operations."""

    name = "part"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> PicturePart:
        """Parses the value."""
        if isinstance(value, PicturePart):
            return value
        if value in ("overview", "all"):
            return PicturePart(overview=value == "overview")
        found = re.fullmatch(r"#?(\d{1,9})-#?(\d{1,9})", value)
        if found is None or int(found[1]) > int(found[2]):
            self.fail(f"{value!r} is not a part, must be overview, all, or operations such as 20-59", param, ctx)
        return PicturePart(operations=range(int(found[1]), int(found[2]) + 1))


@nnhal_command("show", formerly={"--all": "--operations"})
@common.model_options
@click.option("--operations", "everything", is_flag=True, help="List every operation and operand.")
@click.option("--dot", "as_dot", is_flag=True, help="Print Graphviz DOT.")
@click.option("--svg", "svg_path", type=common.Writable(), help="Draw a picture to this file.")
@click.option("--png", "png_path", type=common.Writable(), help="Draw a picture to this file.")
@click.option(
    "--part",
    type=PartType(),
    metavar="PART",
    help=f"Draw this part: overview, all, or operations such as 20-59 (default: overview above {READABLE} operations).",
)
@click.option("--placement", "placed", is_flag=True, help="Show where the model would run, and the alternatives.")
@click.option(
    "--why",
    is_flag=False,
    flag_value="all",
    metavar="OPERATION",
    help="Explain the placement of operations: '#30', LSTM (a part of a name), or all.",
)
@common.place_options
@common.verbose_option
@common.json_option
def command(model: str, placed: bool, as_dot: bool, as_json: bool, everything: bool, **options: Any) -> None:
    """Show a model: inputs, outputs, operations, weights, placement.

    A model that NNAPI does not support is shown too, with the operations that it does not support, and why. So is a model
    whose shapes have to be given first.
    """
    placed = placed or options["why"] is not None
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

        facts = refused_outline(common.model_path(model), error, options["signature"])
    else:
        facts = outline(graph)
    placement = _placement(graph, names, options) if placed and graph is not None else None
    if placed and graph is None:
        common.warn("NNAPI does not support the whole model, so it is not placed")
    if as_dot or options["svg_path"] or options["png_path"]:
        _draw(facts, placement, options["svg_path"], options["png_path"], options["part"])
        if as_dot:
            click.echo(dot(facts, colours_of(_placing(placement) or {})[1]), nl=False)
    elif as_json:
        common.print_json(_document(facts, graph, placed, placement))
    elif everything:
        click.echo(listing(facts) if graph is None else text(graph, _notes(placement)), nl=False)
        if placement:
            click.echo(words.counted_partitions(placement))
    else:
        _print(shown_name(model), facts, graph, placement, options["why"], verbose=options["verbose"])


def _print(
    name: str, facts: Outline, graph: Model | None, placement: Placement | None, why: str | None, *, verbose: bool
) -> None:
    if placement is not None and why is not None:
        for line in why_section(placement, _asked(placement, why)):
            common.console.print(line)
    else:
        sections = _model(name, facts, graph) if placement is None else _placed(name, placement)
        common.show(sections, verbose=verbose)


def _draw(
    facts: Outline,
    placement: Placement | None,
    svg_path: Path | None,
    png_path: Path | None,
    part: PicturePart | None,
) -> None:
    count = len(facts.nodes)
    if part is not None and part.operations is not None and part.operations.stop > count:
        raise InvalidArgument(f"--part: operation {part.operations.stop - 1} is not there, must be at most {count - 1}")
    part = part or default_part(facts)
    if svg_path:
        common.write(svg_path, svg(facts, _placing(placement), _notes(placement), part).encode())
    if png_path:
        common.write(png_path, png(facts, _placing(placement), part))
    if part.overview and (svg_path or png_path):
        common.print_progress(
            f"The picture shows groups of {count} operations. One group: --part 0-20. All: --part all."
        )


def _placement(graph: Model, names: list[str] | None, options: dict[str, Any]) -> Placement:
    with api.compile(graph, devices=names, cache_dir=False, **common.compile_arguments(options, names)) as compiled:
        return compiled.placement


def _placing(placement: Placement | None) -> Placing | None:
    return {c.operation: c.device for c in placement.choices if c.device} if placement else None


def _notes(placement: Placement | None) -> dict[int, str] | None:
    return {c.operation: _note(c) for c in placement.choices} if placement else None


def _note(choice: Any) -> str:
    others = "".join(f"; not {device}: {why}" for device, why in choice.others.items())
    return f"{choice.device}: {choice.reason}{others}" if choice.device else choice.reason


def _asked(placement: Placement, text: str) -> list[int]:
    """Returns the operations of `--why`; BadParameter if none matches."""
    found = chosen_operations(placement, text)
    if not found:
        names = {choice.label.split(" #")[0] for choice in placement.choices}
        rule = f"must be all, #0 to #{len(placement.choices) - 1}, or a part of an operation's name"
        raise click.BadParameter(
            f"{text!r}: no operation fits, {rule}{suggestion(text.upper(), names)}", param_hint="--why"
        )
    return found


def _placed(name: str, placement: Placement) -> list[Section]:
    """Returns the sections of a placement: the result, its partitions, the alternatives."""
    from nnhal.runtime.measured import record

    known = record.profile() if placement.expected else None
    made = "measured profile"
    if known is not None:
        made = f"profile of {time.strftime('%Y-%m-%d', time.localtime(known.made))}"
    said = words.headline(placement, made)
    basis = "" if placement.expected else words.basis(placement)
    notes = list(words.partition_notes(placement, layouts=True))
    hint = f"Per operation: --why '#{len(placement.choices) - 1}', --why all. Graph: --svg FILE"
    return [
        fixed(*wrap_text(f"{shortened(name, 2 * NAME)}: {said}{basis}", most=2, indent="  ")),
        words.partition_section(placement, top=True),
        section([], notes, "notes") if notes else fixed(),
        words.alternative_section(placement),
        fixed(hint),
    ]


def _model(name: str, facts: Outline, graph: Model | None) -> list[Section]:
    """Returns the sections of a model."""
    return [
        fixed(title(name, facts), *_about(facts, graph)),
        _table(["unsupported", "at", "why"], _refused(facts), "kinds of operations"),
        _tensors("Inputs", facts, facts.inputs, graph),
        _tensors("Outputs", facts, facts.outputs, graph),
        _table(["operation", ">count", ">parameters", ">multiply-adds"], _kinds(facts), "kinds of operations"),
        _table(["weights", ">tensors", ">elements", ">size"], _weights(facts), "types of weights"),
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], what: str) -> Section:
    lines = columns(heads, rows)
    return section(lines[:1], lines[1:], what)


def _tensors(head: str, facts: Outline, keys: Sequence[int], graph: Model | None) -> Section:
    """Returns the inputs or outputs with the types and shapes that an application has for them."""
    shown, about = [facts.tensors[key] for key in keys], [""] * len(keys)
    if facts.metadata is not None:
        described = facts.metadata.inputs if head == "Inputs" else facts.metadata.outputs
        about = metadata_facts(facts.metadata, metadata_of_specs(shown, described))
    tensors = zip(keys, shown, about, strict=True)
    edge = {} if graph is None else graph.edge
    rows = []
    for key, tensor, said in tensors:
        form = edge.get(key, EdgeForm())
        as_given = tensor_text(form.named(tensor.type), () if form.scalar else tensor.shape)
        rows.append((shortened(tensor.name or f"%{key}", NAME), as_given, said))
    return section([head], columns(["", "", ""], rows, indent=2), head.lower())


def _kinds(facts: Outline) -> list[list[object]]:
    work, weights = Counter[str](), Counter[str]()
    for n, node in enumerate(facts.nodes):
        work[node.name] += facts.macs(node)
        weights[node.name] += 0 if n in facts.folded else sum(t.size for t in facts.weights(node))
    return [
        [shortened(kind, 2 * NAME), count, count_text(weights[kind]), count_text(work[kind])]
        for kind, count in facts.kinds().most_common()
    ]


def _weights(facts: Outline) -> list[list[object]]:
    stored = facts.stored().items()
    return [[type_text(kind), n, count_text(elements), common.size(held)] for kind, (n, elements, held) in stored]


def _refused(facts: Outline) -> list[list[str]]:
    """Returns name, first position and reason of unsupported operations; equal ones share a row."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for n, node in enumerate(facts.nodes):
        if node.refused:
            places[node.name, node.refused].append(f"#{n}")
    return [
        [
            printable(name).replace("custom operation ", "custom "),
            f"{at[0]} (1 of {len(at)})" if at[1:] else at[0],
            printable(why),
        ]
        for (name, why), at in places.items()
    ]


def _about(facts: Outline, graph: Model | None) -> Iterator[str]:
    """Yields the HAL version that the model requires with the reasons, and its metadata."""
    lost = sum(bool(node.refused) for node in facts.nodes)
    if facts.level:
        reasons = list(dict.fromkeys(WHERE.sub("", reason) for reason in facts.reasons))
        because = "; ".join(reasons[:REASONS]) or "nothing needs a later one"
        more = f"; {len(reasons) - REASONS} more reasons" if len(reasons) > REASONS else ""
        yield shortened(f"  requires {hal_version(facts.level)}: {because}{more}", 100)
    elif lost:
        yield f"  not supported: NNAPI rejects {lost} of the {len(facts.nodes)} operations"
    else:
        reason = facts.reasons[0] if facts.reasons else "an input or output has no type of NNAPI"
        yield from wrap_text(f"  not supported: {reason}", most=2, indent="  ")
    if graph is not None and (graph.referenced or graph.states):
        yield f"  with {with_count(len(graph.referenced), 'subgraph')} and {with_count(len(graph.states), 'state')}"
    if facts.metadata is not None and (about := said_of_model(facts.metadata)):
        yield shortened(f"  {about}", 100)


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
    """Returns every operand of the main subgraph, including scalars and omitted ones."""
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
