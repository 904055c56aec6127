"""Layered graph layout: boxes in layers from top to bottom, each below all its inputs, wrapped into columns.

After Sugiyama: the longest path gives the layers. An edge over several layers has a point in each. Sweeps towards the
mean of the neighbours order each layer and place its boxes. A tall picture continues in the next column. An edge
between columns is not drawn as a line (`Arrangement.jumps`).
"""

import math
from collections.abc import Sequence

from nnhal.base.records import Struct, field

ACROSS, DOWN, BETWEEN = 24.0, 34.0, 40.0  # space between neighbours, layers, columns
POINT = 10.0  # the width that an edge takes up in a layer
SWEEPS = 8
SHAPE = 1.5  # approximate ratio of the picture's width to its height
SHORT = 0.25  # a shorter rest of a column is put below the column before
LEAST = 900.0  # the height of a column, if there are enough boxes


class Box(Struct):
    """A box of a given size and its inputs. The layout sets `x` (the centre) and `top`."""

    width: float
    height: float
    sources: list[int]
    x: float = 0
    top: float = 0
    rank: int = 0
    column: int = 0


class Arrangement(Struct):
    """The result of a layout. edges: source, target and the points between; jumps: edges between columns."""

    width: float = 0
    height: float = 0.0
    edges: list[tuple[int, int, list[tuple[float, float]]]] = field(default_factory=list)
    jumps: list[tuple[int, int]] = field(default_factory=list)


def arrange(boxes: Sequence[Box], *, wrapped: bool = True) -> Arrangement:
    """Place every box. wrapped: whether a tall picture continues in the next column."""
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
    """Divide the layers into columns that give the picture its shape. The last column has more than a few boxes."""
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
    """Place one column from `left` on, and return its right edge."""
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
    """Return horizontal centres. Alternating sweeps order and move each row towards the mean of its neighbours."""
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
    """Place a row's items as near to their wished places as possible, in this order, without overlap.

    Overlapping neighbours become one block at the mean of their wishes (pool adjacent violators).
    """
    offsets, at = [], 0.0
    for n, item in enumerate(row):
        at += (widths[row[n - 1]] + widths[item]) / 2 + ACROSS if n else 0.0
        offsets.append(at)
    # By block: the sum of the row's starts that its items wish for, and their number
    blocks: list[tuple[float, int]] = []
    for wish, offset in zip(wishes, offsets, strict=True):
        total, count = wish - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            more, items = blocks.pop()
            total, count = total + more, count + items
        blocks.append((total, count))
    begins = [total / count for total, count in blocks for _ in range(count)]
    for item, begin, offset in zip(row, begins, offsets, strict=True):
        xs[item] = begin + offset
