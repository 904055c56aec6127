"""Draws the main subgraph as SVG: operations in layers from top to bottom, each below all that it reads from."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from nnhal.base.codes import Lifetime, operation_name
from nnhal.base.names import printable
from nnhal.model.graph import Model
from nnhal.model.validate import validate

WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 190, 46, 220, 84, 30
SWEEPS = 4  # of ordering each layer by where its neighbours lie
STYLE = "text{font:11px sans-serif;text-anchor:middle} .small{font-size:9px;fill:#555}"


@dataclass
class Node:
    """A box: its lines of text, what it reads from, where it lies."""

    title: str
    detail: str
    colour: str
    sources: list[int]
    rank: int = 0
    column: float = 0.0

    @property
    def centre(self) -> float:
        """Horizontal centre in pixels."""
        return MARGIN + WIDTH / 2 + self.column * ACROSS

    @property
    def top(self) -> float:
        """Upper edge in pixels."""
        return MARGIN + self.rank * DOWN


def svg(model: Model, colours: Mapping[int, str] | None = None) -> str:
    """The main subgraph as an SVG document. colours: fill colours of operations, by place."""
    nodes = _nodes(model, colours or {})
    _arrange(nodes)
    width = max(n.centre for n in nodes) + WIDTH / 2 + MARGIN
    height = max(n.top for n in nodes) + HEIGHT + MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{STYLE}</style>"]
    lines.append('<rect width="100%" height="100%" fill="white"/>')
    lines += [_edge(nodes[source], node) for node in nodes for source in node.sources]
    lines += [_box(node) for node in nodes]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _nodes(model: Model, colours: Mapping[int, str]) -> list[Node]:
    main, values = model.main, validate(model).subgraphs[0].values

    def shape(index: int) -> str:
        value = values[index]
        if value is None or value.shape is None:
            return "?"
        return "x".join("?" if d is None else str(d) for d in value.shape) or "scalar"

    nodes = [Node(main.operands[i].name or f"input %{i}", shape(i), "#eeeeee", []) for i in main.inputs]
    writer = {index: place for place, index in enumerate(main.inputs)}
    for n, operation in enumerate(main.operations):
        weights = [shape(i) for i in operation.inputs if main.operands[i].lifetime == Lifetime.CONSTANT_REFERENCE]
        detail = f"{' '.join(weights)} → {shape(operation.outputs[0])}" if weights else shape(operation.outputs[0])
        sources = list(dict.fromkeys(writer[i] for i in operation.inputs if i in writer))
        title = f"{operation_name(operation.type)} #{n}"
        nodes.append(Node(title, detail, colours.get(n, "#ffffff"), sources))
        writer.update(dict.fromkeys(operation.outputs, len(nodes) - 1))
    nodes += [Node(main.operands[i].name or f"output %{i}", shape(i), "#eeeeee", [writer[i]]) for i in main.outputs]
    return nodes


def _arrange(nodes: list[Node]) -> None:
    """Ranks by the longest path, then columns by sweeps over the layers towards the mean of the neighbours."""
    readers: list[list[int]] = [[] for _ in nodes]
    for place, node in enumerate(nodes):
        node.rank = max((nodes[s].rank + 1 for s in node.sources), default=0)
        for source in node.sources:
            readers[source].append(place)
    layers: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        layers.setdefault(node.rank, []).append(place)
    for layer in layers.values():
        for column, place in enumerate(layer):
            nodes[place].column = column
    for sweep in range(SWEEPS):
        neighbours = [node.sources for node in nodes] if sweep % 2 == 0 else readers
        for rank in sorted(layers, reverse=sweep % 2 == 1):
            _order(nodes, layers[rank], neighbours)
    least = min(node.column for node in nodes)
    for node in nodes:
        node.column -= least


def _order(nodes: list[Node], layer: list[int], neighbours: list[list[int]]) -> None:
    """Put a layer's nodes at the mean column of their neighbours, a whole column apart at least."""
    wish = {}
    for place in layer:
        columns = [nodes[n].column for n in neighbours[place]]
        wish[place] = sum(columns) / len(columns) if columns else nodes[place].column
    layer.sort(key=lambda place: wish[place])
    taken = float("-inf")
    for place in layer:
        taken = nodes[place].column = max(wish[place], taken + 1)
    shift = sum(wish[p] - nodes[p].column for p in layer) / len(layer)
    for place in layer:
        nodes[place].column += shift


def _edge(source: Node, target: Node) -> str:
    x0, y0, x1, y1 = source.centre, source.top + HEIGHT, target.centre, target.top
    bend = (y1 - y0) / 2
    path = f"M{x0:.0f},{y0:.0f} C{x0:.0f},{y0 + bend:.0f} {x1:.0f},{y1 - bend:.0f} {x1:.0f},{y1:.0f}"
    return f'<path d="{path}" fill="none" stroke="#999"/>'


def _box(node: Node) -> str:
    x, y, middle = node.centre - WIDTH / 2, node.top, node.centre
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{node.colour}" stroke="#444"/>'
        f'<text x="{middle:.0f}" y="{y + 19:.0f}">{escape(_short(node.title))}</text>'
        f'<text class="small" x="{middle:.0f}" y="{y + 35:.0f}">{escape(_short(node.detail))}</text>'
    )


def _short(text: str, limit: int = 34) -> str:
    text = printable(text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
