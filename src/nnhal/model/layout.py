"""Layered layout: boxes of any size in layers from top to bottom, each below all that it reads from, wrapped into columns.

The way of Sugiyama: layers by the longest path; an edge over several layers is held apart by a point in each; the order of
each layer, and the places in it, by sweeps towards the mean of the neighbours. A tall picture goes on in the next column;
an edge from one column to another is not drawn as a line (`Arrangement.jumps`).
"""

import math
from collections.abc import Sequence

from nnhal.base.records import Struct, field

ACROSS, DOWN, BETWEEN = 24.0, 34.0, 40.0  # room between neighbours, layers, columns
POINT = 10.0  # the width that an edge takes on its way
SWEEPS = 8
SHAPE = 1.5  # width of the picture to its height, about
SHORT = 0.25  # of a column: less of it goes on below the one before
LEAST = 900.0  # height of a column, where there is as much


class Box(Struct):
    """A box of a size, with the boxes that it reads from; `x` (its centre) and `top` are found."""

    width: float
    height: float
    sources: list[int]
    x: float = 0
    top: float = 0
    rank: int = 0
    column: int = 0


class Arrangement(Struct):
    """Where things are. edges: source, target and the points on the way; jumps: edges from column to column."""

    width: float = 0
    height: float = 0.0
    edges: list[tuple[int, int, list[tuple[float, float]]]] = field(default_factory=list)
    jumps: list[tuple[int, int]] = field(default_factory=list)


def arrange(boxes: Sequence[Box], *, wrapped: bool = True) -> Arrangement:
    """Give each box its place. wrapped: a tall picture goes on in the next column."""
    layers = _layers(boxes)
    heights = [max(boxes[i].height for i in layer) + DOWN for layer in layers]
    widest = max(sum(boxes[i].width + ACROSS for i in layer) for layer in layers)
    columns = _columns(layers, heights, widest) if wrapped else [range(len(layers))]
    layout = Arrangement()
    for number, ranks in enumerate(columns):
        for rank in ranks:
            for place in layers[rank]:
                boxes[place].column = number
    left = 0.0
    for ranks in columns:
        left = _column(boxes, layers, heights, ranks, left, layout) + BETWEEN
    layout.width = left - BETWEEN
    layout.jumps = [
        (source, place)
        for place, box in enumerate(boxes)
        for source in box.sources
        if boxes[source].column != box.column
    ]
    return layout


def _layers(boxes: Sequence[Box]) -> list[list[int]]:
    layers: list[list[int]] = []
    for place, box in enumerate(boxes):
        box.rank = max((boxes[s].rank + 1 for s in box.sources), default=0)
        if box.rank == len(layers):
            layers.append([])
        layers[box.rank].append(place)
    return layers


def _columns(layers: Sequence[list[int]], heights: Sequence[float], width: float) -> list[range]:
    """The layers of each column: as many columns as give the picture its shape, the last not only a few boxes."""
    total = sum(heights)
    limit = max(LEAST, math.sqrt(total * width / SHAPE))
    columns, start, used, left = [], 0, 0.0, total
    for rank, height in enumerate(heights):
        if used and used + height > limit and left > limit * SHORT:
            columns.append(range(start, rank))
            start, used = rank, 0.0
        used += height
        left -= height
    return [*columns, range(start, len(layers))]


def _column(
    boxes: Sequence[Box],
    layers: Sequence[list[int]],
    heights: Sequence[float],
    ranks: range,
    left: float,
    layout: Arrangement,
) -> float:
    """Place one column from `left` on; its right edge."""
    inside = [place for rank in ranks for place in layers[rank]]
    number = {place: n for n, place in enumerate(inside)}
    widths = [boxes[place].width for place in inside]
    rows: list[list[int]] = [[number[place] for place in layers[rank]] for rank in ranks]
    above: list[list[int]] = [[] for _ in inside]
    ways: list[tuple[int, int, list[int]]] = []
    for place in inside:
        for source in boxes[place].sources:
            if source not in number:
                continue
            way = []
            before = number[source]
            for rank in range(boxes[source].rank + 1, boxes[place].rank):
                way.append(len(widths))
                widths.append(POINT)
                above.append([before])
                rows[rank - ranks.start].append(way[-1])
                before = way[-1]
            above[number[place]].append(before)
            ways.append((source, place, way))
    xs = _places(rows, widths, above)
    shift = left - min(x - w / 2 for x, w in zip(xs, widths, strict=True))
    top = 0.0
    tops = {}
    for rank in ranks:
        tops[rank] = top
        for place in layers[rank]:
            box = boxes[place]
            box.x, box.top = xs[number[place]] + shift, top
        top += heights[rank]
    layout.height = max(layout.height, top - DOWN)
    for source, target, way in ways:
        points = [(boxes[source].x, boxes[source].top + boxes[source].height)]
        for rank, point in enumerate(way, boxes[source].rank + 1):
            x = xs[point] + shift
            points += [(x, tops[rank]), (x, tops[rank] + heights[rank] - DOWN)]
        layout.edges.append((source, target, [*points, (boxes[target].x, boxes[target].top)]))
    return max(x + w / 2 for x, w in zip(xs, widths, strict=True)) + shift


def _places(rows: Sequence[list[int]], widths: Sequence[float], above: Sequence[list[int]]) -> list[float]:
    """Horizontal centres: each row ordered, and moved, towards the mean of its neighbours above and below in turn."""
    below: list[list[int]] = [[] for _ in widths]
    for item, sources in enumerate(above):
        for source in sources:
            below[source].append(item)
    xs = [0.0] * len(widths)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row in rows if down else reversed(rows):
            wish = {i: sum(xs[n] for n in neighbours[i]) / len(neighbours[i]) if neighbours[i] else xs[i] for i in row}
            row.sort(key=lambda i: wish[i])
            _apart(row, widths, xs, [wish[i] for i in row])
    return xs


def _apart(row: Sequence[int], widths: Sequence[float], xs: list[float], wishes: Sequence[float]) -> None:
    """Put a row's items as near as can be to where they should be, in this order, without overlap.

    Neighbours that would overlap become one block, which lies at the mean of what its items wish (pool adjacent violators).
    """
    offsets, at = [], 0.0
    for n, item in enumerate(row):
        at += (widths[row[n - 1]] + widths[item]) / 2 + ACROSS if n else 0.0
        offsets.append(at)
    blocks: list[tuple[float, int]] = []  # the sum of where its items wish the row to begin, and how many they are
    for wish, offset in zip(wishes, offsets, strict=True):
        total, count = wish - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            more, items = blocks.pop()
            total, count = total + more, count + items
        blocks.append((total, count))
    begins = [total / count for total, count in blocks for _ in range(count)]
    for item, begin, offset in zip(row, begins, offsets, strict=True):
        xs[item] = begin + offset
