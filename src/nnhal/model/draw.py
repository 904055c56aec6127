"""Draws an outline in layers, as SVG, or as PNG with Pillow: all operations, some of them, or an overview.

A box is a chain of operations, an operation a line, with key attributes, weights and the shape of its result. In an
overview a box is a group of operations. Constants have no box. An SVG picture follows the viewer's light or dark theme.
"""

import io
import math
from collections.abc import Collection, Iterator, Mapping
from html import escape
from itertools import pairwise
from typing import Any

from nnhal.base.brief import with_count
from nnhal.base.errors import DeviceUnavailable
from nnhal.base.names import printable
from nnhal.base.records import Record, Struct, field
from nnhal.model.layout import Arrangement, Box, arrange
from nnhal.model.outline import Node, Outline, shape_text
from nnhal.model.overview import groups_of

Placing = Mapping[int, str]  # the device of each operation, by its number
Notes = Mapping[int, str]  # the reason, by the operation's number
# Tints of the colours of Okabe and Ito for devices: they differ for colour-blind readers too.
COLOURS = ("#bfe3f8", "#f6d48f", "#94d6c1", "#ecc9dd", "#faf5ae", "#9dbfe6", "#d9d9d9")
PLAIN, EDGE, REFUSED, LINE, GREY = "#ffffff", "#eeeeee", "#f4a582", "#444444", "#5a5a5a"
RED = "#b03a00"
MARK = "! "  # marks a rejected operation for readers who do not see its colour
LINE_HEIGHT, PAD, MARGIN = 16.0, 7.0, 24.0
SIZE, CHARACTER = 11, 6.7  # of the font, and the width of one of its characters
NAME, LONGEST, NAMED = 40, 64, 3  # characters of a name and of a line; the most connectors that have names
PIXELS = 64_000_000  # of a PNG
READABLE = 60  # operations that a picture has at most to show each by default
STYLE = (
    f"text{{font:{SIZE}px monospace;white-space:pre}}.page{{fill:#fff}}"
    "@media (prefers-color-scheme:dark){.page{fill:#16181c}.free{fill:#d6d6d6}.edge{stroke:#a8a8a8}.head{fill:#a8a8a8}}"
)


class Rectangle(Record, frozen=True):
    """A filled rectangle. note: its tooltip."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    line: str = ""
    note: str = ""


class Label(Record, frozen=True):
    """A line of text. Its base line begins (anchor "start") or ends ("end") at x, y. free: it stands on no rectangle."""

    x: float
    y: float
    text: str
    colour: str = "#111111"
    anchor: str = "start"
    free: bool = False


class Arrow(Record, frozen=True):
    """A line through points, with a head at its end."""

    points: tuple[tuple[float, float], ...]


class Scene(Struct):
    """The items to paint, in order, on an area of a size."""

    width: float = 0.0
    height: float = 0.0
    items: list[Rectangle | Label | Arrow] = field(default_factory=list)


class BoxLine(Record, frozen=True):
    """A line of a box. operation: the number of the one that gives it its colour; None for an input or output."""

    left: str
    right: str
    operation: int | None = None


class Chain(Struct):
    """A box: operations of which each gives its result to the next only, a group of them, or an input or output."""

    nodes: list[int]
    lines: list[BoxLine]
    reads: int | None = None  # the tensor of an output


class PicturePart(Record, frozen=True):
    """The part of a model to draw. overview: groups of operations. operations: only these, by number; None for all."""

    overview: bool = False
    operations: range | None = None


def default_part(outline: Outline) -> PicturePart:
    """All operations of a small model, the overview of a larger one."""
    return PicturePart(overview=len(outline.nodes) - len(outline.folded) > READABLE)


def svg(
    outline: Outline, placing: Placing | None = None, notes: Notes | None = None, part: PicturePart | None = None
) -> str:
    """Draw a graph as an SVG document, in colours by device.

    Args:
        outline: The graph.
        placing: The device of each operation, by its number.
        notes: Text for each operation, shown where the pointer rests.
        part: The part to draw; all operations by default.
    """
    scene = _scene(outline, placing or {}, notes or {}, part or PicturePart())
    width, height = math.ceil(scene.width), math.ceil(scene.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
        '<rect class="page" width="100%" height="100%"/>',
    ]
    return "\n".join([*lines, *map(_element, scene.items), "</svg>"]) + "\n"


def png(outline: Outline, placing: Placing | None = None, part: PicturePart | None = None) -> bytes:
    """Draw the same as a PNG picture, at twice the size of the SVG if the limit allows.

    Raises:
        DeviceUnavailable: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise DeviceUnavailable("PNG pictures need Pillow: pip install 'nnhal[pictures]'; SVG needs nothing") from None
    scene = _scene(outline, placing or {}, {}, part or PicturePart())
    scale = min(2.0, math.sqrt(PIXELS / (scene.width * scene.height)))
    picture = Image.new("RGB", (math.ceil(scene.width * scale), math.ceil(scene.height * scale)), "white")
    brush, font = ImageDraw.Draw(picture), ImageFont.load_default(SIZE * scale)
    for item in scene.items:
        _paint(brush, font, item, scale)
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def colours_of(placing: Placing) -> tuple[list[str], dict[int, str]]:
    """Return the devices in order of first use, and the colour of each operation."""
    devices = list(dict.fromkeys(placing[n] for n in sorted(placing)))
    return devices, {n: COLOURS[devices.index(device) % len(COLOURS)] for n, device in placing.items()}


def _scene(outline: Outline, placing: Placing, notes: Notes, part: PicturePart) -> Scene:
    chains, writer = _grouped(outline, placing) if part.overview else _chains(outline, part.operations)
    boxes = [_box(chain) for chain in chains]
    crossing: dict[tuple[int, int], list[int]] = {}
    for n, chain in enumerate(chains):
        for key in _reads(outline, chain):
            source = writer.get(key)
            if source is not None and source != n:
                crossing.setdefault((source, n), []).append(key)
    for source, target in crossing:
        boxes[target].sources.append(source)
    layout = arrange(boxes, wrapped=not part.overview)
    devices, colours = colours_of(placing)
    scene = Scene()
    scene.items += _head(outline, devices, part)
    right, down = _extent(scene.items)
    top = down + MARGIN
    scene.width, scene.height = max(layout.width + MARGIN, right) + MARGIN, layout.height + top + MARGIN + LINE_HEIGHT
    for box in boxes:
        box.x, box.top = box.x + MARGIN, box.top + top
    for source, target, points in layout.edges:
        moved = tuple((x + MARGIN, y + top) for x, y in points)
        scene.items.append(Arrow(moved))
        if part.overview:  # too many tensors go from group to group
            continue
        hidden = [key for key in crossing[source, target] if not _said(outline, chains[source], chains[target], key)]
        for n, key in enumerate(hidden):
            (x, y), text = moved[-1], shape_text(outline.tensors[key].shape)
            side, anchor = (6, "start") if moved[-2][0] <= x else (-6, "end")  # where the line does not come from
            scene.items.append(Label(x + side, y - 4 - 11 * n, text, GREY, anchor, free=True))
    for chain, box in zip(chains, boxes, strict=True):
        scene.items += _chain(outline, chain, box, colours, notes)
    scene.items += _connectors(chains, boxes, layout)
    return scene


def _extent(items: list[Rectangle | Label | Arrow]) -> tuple[float, float]:
    """Return how far to the right, and down, lines of text reach."""
    labels = [item for item in items if isinstance(item, Label)]
    return max(at.x + len(at.text) * CHARACTER for at in labels), max(at.y for at in labels)


def _said(outline: Outline, source: Chain, target: Chain, key: int) -> bool:
    """Whether one of two boxes shows the shape of the tensor between them."""
    first = not source.nodes or key in outline.nodes[source.nodes[-1]].outputs[:1]
    return first or target.reads is not None or outline.tensors[key].shape is None


def _chains(outline: Outline, some: range | None) -> tuple[list[Chain], dict[int, int]]:
    """Return the boxes of operations, each after its inputs, and the box that produces each tensor."""
    shown = [n for n in some or range(len(outline.nodes)) if n not in outline.folded]
    given, taken = _ends_of(outline, shown)
    readers: dict[int, int] = {}
    for n in shown:
        for key in set(outline.nodes[n].inputs):
            readers[key] = readers.get(key, 0) + 1
    for key in taken:
        readers[key] = readers.get(key, 0) + 1
    chains = [Chain([], [_named(outline, key, "input")]) for key in given]
    writer = {key: n for n, key in enumerate(given)}
    for n in shown:
        node = outline.nodes[n]
        sources = {key for key in node.inputs if key in writer}
        only = next(iter(sources)) if len(sources) == 1 else None
        before = chains[writer[only]] if only is not None else None
        line = _line(outline, n, node)
        if before is not None and only is not None and _goes_on(outline, before, only, readers):
            before.nodes.append(n)
            before.lines.append(line)
            place = writer[only]
        else:
            place = len(chains)
            chains.append(Chain([n], [line]))
        writer |= dict.fromkeys(node.outputs, place)
    chains += [Chain([], [_named(outline, key, "output")], key) for key in taken]
    return chains, writer


def _grouped(outline: Outline, placing: Placing) -> tuple[list[Chain], dict[int, int]]:
    """Like `_chains`, with a box for each group of operations."""
    chains = [Chain([], [_named(outline, key, "input")]) for key in outline.inputs]
    writer = {key: n for n, key in enumerate(outline.inputs)}
    for group in groups_of(outline, placing):
        nodes = list(group.operations)
        first, last = nodes[0], nodes[-1]
        lost = next((n for n in nodes if outline.nodes[n].refused), first)
        title = f"#{first}" if first == last else f"#{first} to #{last}"
        lines = [BoxLine(title, _result(outline, last), lost), BoxLine(_short(group.kinds(outline), LONGEST), "", lost)]
        writer |= {key: len(chains) for n in nodes for key in outline.nodes[n].outputs}
        chains.append(Chain(nodes, lines))
    chains += [Chain([], [_named(outline, key, "output")], key) for key in outline.outputs]
    return chains, writer


def _ends_of(outline: Outline, shown: Collection[int]) -> tuple[list[int], list[int]]:
    """Return the tensors that these operations read from others, and those that others or the outputs read from them."""
    if len(shown) == len(outline.nodes) - len(outline.folded):
        return list(outline.inputs), list(outline.outputs)
    chosen = set(shown)
    written = {key for n in chosen for key in outline.nodes[n].outputs}
    folded = {key for n in outline.folded for key in outline.nodes[n].outputs}
    read = dict.fromkeys(key for n in shown for key in outline.nodes[n].inputs)
    given = [key for key in read if key in outline.tensors and key not in written | folded]
    others = {key for n, node in enumerate(outline.nodes) if n not in chosen for key in node.inputs}
    wanted = others.union(outline.outputs)
    taken = [key for n in shown for key in outline.nodes[n].outputs if key in wanted]
    return [key for key in given if not outline.tensors[key].constant], taken


def _goes_on(outline: Outline, before: Chain, key: int, readers: Mapping[int, int]) -> bool:
    """Whether the reader of this tensor continues the chain that ends with it."""
    return bool(before.nodes) and key in outline.nodes[before.nodes[-1]].outputs and readers.get(key) == 1


def _reads(outline: Outline, chain: Chain) -> list[int]:
    """Return the tensors that a box reads from others."""
    if chain.reads is not None:
        return [chain.reads]
    return list(dict.fromkeys(key for n in chain.nodes for key in outline.nodes[n].inputs))


def _named(outline: Outline, key: int, kind: str) -> BoxLine:
    tensor = outline.tensors[key]
    return BoxLine(f"{kind} {_short(tensor.name or f'%{key}', NAME)}", shape_text(tensor.shape))


def _result(outline: Outline, n: int) -> str:
    outputs = outline.nodes[n].outputs
    return shape_text(outline.tensors[outputs[0]].shape) if outputs else ""


def _line(outline: Outline, n: int, node: Node) -> BoxLine:
    weights = [shape_text(t.shape) for t in outline.weights(node)]
    kernel = max(weights, key=len, default="")
    left = " ".join(
        filter(
            None, (f"{MARK if node.refused else ''}#{n} {node.name}", node.attributes, kernel and f"weights {kernel}")
        )
    )
    return BoxLine(_short(left, LONGEST), _result(outline, n), n)


def _box(chain: Chain) -> Box:
    characters = max(len(line.left) + len(line.right) + 2 for line in chain.lines)
    return Box(characters * CHARACTER + 2 * PAD, len(chain.lines) * LINE_HEIGHT + 4, [])


def _chain(
    outline: Outline, chain: Chain, box: Box, colours: Mapping[int, str], notes: Notes
) -> Iterator[Rectangle | Label]:
    left, top = box.x - box.width / 2, box.top
    for n, line in enumerate(chain.lines):
        text, shape, operation = line.left, line.right, line.operation
        y, fill, note = top + n * LINE_HEIGHT, EDGE, text
        if operation is not None:
            node = outline.nodes[operation]
            fill = REFUSED if node.refused else colours.get(operation, PLAIN)
            said = [f"{text} → {shape}" if shape else text, *([why] if (why := notes.get(operation)) else [])]
            note = node.refused or "; ".join(said)
        yield Rectangle(left, y, box.width, LINE_HEIGHT + (4 if n + 1 == len(chain.lines) else 0), fill, "", note)
        yield Label(left + PAD, y + 12.5, text)
        yield Label(left + box.width - PAD, y + 12.5, shape, GREY, "end")
    yield Rectangle(left, top, box.width, box.height, "none", LINE)


def _connectors(chains: list[Chain], boxes: list[Box], layout: Arrangement) -> Iterator[Label]:
    """Name the ends of a line to another column: the source above its reader, the reader below the source."""
    sources: dict[int, list[int]] = {}
    targets: dict[int, list[int]] = {}
    for source, target in layout.jumps:
        sources.setdefault(target, []).append(source)
        targets.setdefault(source, []).append(target)
    for place, others in sources.items():
        box = boxes[place]
        text = "from " + _ends([_end(chains[n], -1) for n in others])
        yield Label(box.x - box.width / 2, box.top - 4, text, RED, free=True)
    for place, others in targets.items():
        box = boxes[place]
        text = "to " + _ends([_end(chains[n], 0) for n in others])
        yield Label(box.x - box.width / 2, box.top + box.height + 11, text, RED, free=True)


def _ends(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _end(chain: Chain, which: int) -> str:
    return f"#{chain.nodes[which]}" if chain.nodes else _short(chain.lines[0].left, 24)


def _head(outline: Outline, devices: list[str], part: PicturePart) -> Iterator[Rectangle | Label]:
    """Yield the title and legend."""
    level = f", level {outline.level}" if outline.level else ", not supported as a whole"
    title = f"{_short(outline.name or 'model', LONGEST)}: {with_count(len(outline.nodes), 'operation')}{level}"
    if part.operations is not None:
        title += f", operations #{part.operations.start} to #{part.operations.stop - 1}"
    yield Label(MARGIN, MARGIN, title + (", in groups" if part.overview else ""), free=True)
    legend = [(f"on {device}", COLOURS[n % len(COLOURS)]) for n, device in enumerate(devices)]
    lost = sum(bool(node.refused) for node in outline.nodes)
    legend += [(f"{MARK}not supported: {lost}", REFUSED)] if lost else []
    x = MARGIN
    for text, colour in legend:
        yield Rectangle(x, MARGIN + 14, 14, 14, colour, LINE)
        yield Label(x + 20, MARGIN + 25, _short(text, NAME), free=True)
        x += 40 + min(len(text), NAME) * CHARACTER


def _short(text: str, limit: int) -> str:
    text = printable(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _element(item: Rectangle | Label | Arrow) -> str:
    """Return an item as SVG."""
    match item:
        case Label(x, y, text, colour, anchor, free):
            side = f' text-anchor="{anchor}"' if anchor != "start" else ""
            kind = ' class="free"' if free else ""
            return f'<text{kind} x="{x:.1f}" y="{y:.1f}" fill="{colour}"{side}>{escape(text)}</text>'
        case Rectangle(x, y, width, height, fill, line, note):
            title = f"<title>{escape(printable(note))}</title>" if note else ""
            size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            stroke = f' stroke="{line}" rx="3"' if line else ""
            return f'<rect {size} fill="{fill}"{stroke}>{title}</rect>'
        case Arrow(points):
            x, y = points[-1]
            (x0, y0), path = points[0], f"M{points[0][0]:.1f},{points[0][1]:.1f}"
            for x1, y1 in points[1:]:
                bend = (y1 - y0) / 2
                path += f" C{x0:.1f},{y0 + bend:.1f} {x1:.1f},{y1 - bend:.1f} {x1:.1f},{y1:.1f}"
                x0, y0 = x1, y1
            head = f'<path class="head" d="M{x:.1f},{y:.1f} l-3.5,-7 h7 z" fill="{GREY}"/>'
            return f'<path class="edge" d="{path}" fill="none" stroke="{GREY}"/>{head}'


def _paint(brush: Any, font: Any, item: Rectangle | Label | Arrow, scale: float) -> None:
    """Paint an item with Pillow."""
    match item:
        case Label(x, y, text, colour, anchor, _):
            brush.text((x * scale, y * scale), text, colour, font, anchor="rs" if anchor == "end" else "ls")
        case Rectangle(x, y, width, height, fill, line, _):
            corners = [x * scale, y * scale, (x + width) * scale, (y + height) * scale]
            brush.rectangle(corners, fill if fill != "none" else None, line or None, round(scale))
        case Arrow(points):
            way = [point for one, two in pairwise(points) for point in _bent(one, two)]
            brush.line([(x * scale, y * scale) for x, y in way], GREY, round(scale), "curve")
            x, y = points[-1][0] * scale, points[-1][1] * scale
            brush.polygon([(x, y), (x - 3.5 * scale, y - 7 * scale), (x + 3.5 * scale, y - 7 * scale)], GREY)


def _bent(one: tuple[float, float], two: tuple[float, float]) -> Iterator[tuple[float, float]]:
    """Yield points of the curve between two, which leaves and arrives vertically, as in `_element`."""
    for step in range(13):
        t = step / 12
        across = t * t * (3 - 2 * t)
        down = 1.5 * t * (1 - t) ** 2 + 1.5 * t * t * (1 - t) + t**3
        yield one[0] + (two[0] - one[0]) * across, one[1] + (two[1] - one[1]) * down
