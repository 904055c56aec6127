"""Pictures and layouts of graphs, place by place: what stands where follows from a few sizes."""

import io
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nnhal.model import draw, layout
from nnhal.model.draw import Arrow, Label, Rectangle, png, svg
from nnhal.model.layout import Box, arrange
from nnhal.model.outline import Node, Outline, ShownTensor

ACROSS, DOWN, BETWEEN, POINT = 24, 34, 40, 10  # room between neighbours, layers, columns; what an edge takes on its way


def tensor(name: str, shape: Any, constant: bool = False) -> ShownTensor:
    return ShownTensor(name, "TENSOR_FLOAT32", shape, constant, 8)


@pytest.fixture
def net() -> Outline:
    tensors = {
        0: tensor("pic<ture", (1, 8)),
        1: tensor("w", (8, 5), True),
        2: tensor("", (1, 5)),
        3: tensor("a", (1, 5)),
        4: tensor("b", (1, 3)),
        5: tensor("", None),
        6: tensor("end", (1, 3)),
    }
    nodes = (
        Node("FULLY_CONNECTED", "relu", (0, 1), (2,)),
        Node("SPLIT", "axis 1", (2,), (3, 4)),
        Node("NEG", "", (3,), (5,), "no way"),
        Node("ADD", "", (4, 5), (6,)),
    )
    return Outline("net & more", tensors, (0,), (6,), nodes, "1.2")


# A character is 6.7 wide, a line 16 high; 7 beside the text and 24 around the picture. The widest box has 35 + 3 characters
# and two between them: 282. Below the input, 20 high, the chain begins at 73 + 20 + 34 = 127, and has three lines and 4: 52.
# The legend ends at 258 + 18 * 6.7 = 379, further right than the boxes.
PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" width="403" height="327" viewBox="0 0 403 327">
<style>STYLE</style>
<rect class="page" width="100%" height="100%"/>
<text class="free" x="24.0" y="24.0" fill="#111111">net &amp; more: 4 operations, level 1.2</text>
<rect x="24.0" y="38.0" width="14.0" height="14.0" fill="#bfe3f8" stroke="#444444" rx="3"></rect>
<text class="free" x="44.0" y="49.0" fill="#111111">on litert</text>
<rect x="124.3" y="38.0" width="14.0" height="14.0" fill="#f6d48f" stroke="#444444" rx="3"></rect>
<text class="free" x="144.3" y="49.0" fill="#111111">on openvino</text>
<rect x="238.0" y="38.0" width="14.0" height="14.0" fill="#f4a582" stroke="#444444" rx="3"></rect>
<text class="free" x="258.0" y="49.0" fill="#111111">! not supported: 1</text>
<path class="edge" d="M165.0,93.0 C165.0,110.0 165.0,110.0 165.0,127.0" fill="none" stroke="#5a5a5a"/><path class="head" d="M165.0,127.0 l-3.5,-7 h7 z" fill="#5a5a5a"/>
<path class="edge" d="M165.0,179.0 C165.0,196.0 165.0,196.0 165.0,213.0" fill="none" stroke="#5a5a5a"/><path class="head" d="M165.0,213.0 l-3.5,-7 h7 z" fill="#5a5a5a"/>
<text class="free" x="171.0" y="209.0" fill="#5a5a5a">1x3</text>
<path class="edge" d="M165.0,233.0 C165.0,250.0 165.0,250.0 165.0,267.0" fill="none" stroke="#5a5a5a"/><path class="head" d="M165.0,267.0 l-3.5,-7 h7 z" fill="#5a5a5a"/>
<rect x="94.3" y="73.0" width="141.3" height="20.0" fill="#eeeeee"><title>input pic&lt;ture</title></rect>
<text x="101.3" y="85.5" fill="#111111">input pic&lt;ture</text>
<text x="228.7" y="85.5" fill="#5a5a5a" text-anchor="end">1x8</text>
<rect x="94.3" y="73.0" width="141.3" height="20.0" fill="none" stroke="#444444" rx="3"></rect>
<rect x="24.0" y="127.0" width="282.0" height="16.0" fill="#bfe3f8"><title>#0 FULLY_CONNECTED relu weights 8x5 → 1x5</title></rect>
<text x="31.0" y="139.5" fill="#111111">#0 FULLY_CONNECTED relu weights 8x5</text>
<text x="299.0" y="139.5" fill="#5a5a5a" text-anchor="end">1x5</text>
<rect x="24.0" y="143.0" width="282.0" height="16.0" fill="#f6d48f"><title>#1 SPLIT axis 1 → 1x5</title></rect>
<text x="31.0" y="155.5" fill="#111111">#1 SPLIT axis 1</text>
<text x="299.0" y="155.5" fill="#5a5a5a" text-anchor="end">1x5</text>
<rect x="24.0" y="159.0" width="282.0" height="20.0" fill="#f4a582"><title>no way</title></rect>
<text x="31.0" y="171.5" fill="#111111">! #2 NEG</text>
<text x="299.0" y="171.5" fill="#5a5a5a" text-anchor="end">?</text>
<rect x="24.0" y="127.0" width="282.0" height="52.0" fill="none" stroke="#444444" rx="3"></rect>
<rect x="121.2" y="213.0" width="87.7" height="20.0" fill="#bfe3f8"><title>#3 ADD → 1x3</title></rect>
<text x="128.2" y="225.5" fill="#111111">#3 ADD</text>
<text x="201.9" y="225.5" fill="#5a5a5a" text-anchor="end">1x3</text>
<rect x="121.2" y="213.0" width="87.7" height="20.0" fill="none" stroke="#444444" rx="3"></rect>
<rect x="107.8" y="267.0" width="114.5" height="20.0" fill="#eeeeee"><title>output end</title></rect>
<text x="114.8" y="279.5" fill="#111111">output end</text>
<text x="215.2" y="279.5" fill="#5a5a5a" text-anchor="end">1x3</text>
<rect x="107.8" y="267.0" width="114.5" height="20.0" fill="none" stroke="#444444" rx="3"></rect>
</svg>
"""  # noqa: E501 (as it is written)


def test_a_picture_is_drawn_to_the_letter(net: Outline) -> None:
    assert svg(net, {0: "litert", 1: "openvino", 3: "litert"}) == PICTURE.replace("STYLE", draw.STYLE)


def test_a_file_that_is_no_model_is_drawn_without_a_level() -> None:
    lines = svg(Outline("", {0: tensor("", (2,))}, (0,), (0,), ())).splitlines()
    title = "model: 0 operations, not supported as a whole"
    assert lines[3] == f'<text class="free" x="24.0" y="24.0" fill="#111111">{title}</text>'
    assert sum("input %0" in line for line in lines) == 2 and sum("output %0" in line for line in lines) == 2


def test_what_goes_to_another_column_is_named_at_both_ends() -> None:
    """Boxes of 20 + 34 in columns of 900: 16, then 16, then the rest; all read the input."""
    count = 40
    tensors = {n: tensor(f"t{n}", (1, 4)) for n in range(count + 1)}
    nodes = tuple(Node("ADD", "", (n, 0) if n else (0,), (n + 1,)) for n in range(count))
    root = svg(Outline("m", tensors, (0,), (count,), nodes)).splitlines()
    named = [line for line in root if 'fill="#b03a00"' in line]
    words = [line.split(">")[1].split("<")[0] for line in named]
    assert words[:3] == ["from #14, input t0", "from input t0", "from input t0"]
    assert words[16] == "from #30, input t0" and words.count("from input t0") == 23
    assert words[25:] == ["to #15", "to #15, #16, #17 and 22 more", "to #31"]
    tops = {line.split('">')[1].split("<")[0]: line for line in root if ">#" in line or ">input" in line}
    at = float(
        tops["#15 ADD"].split('y="')[1].split('"')[0]
    )  # the base line of a text is 12.5 below the top of its box
    assert at - 12.5 == 24 + 24 and f'y="{at - 12.5 - 4:.1f}"' in named[0]
    below = float(tops["input t0"].split('y="')[1].split('"')[0]) - 12.5 + 20 + 11
    assert f'y="{below:.1f}"' in named[26]
    left = float(tops["#15 ADD"].split('x="')[1].split('"')[0]) - 7
    assert f'x="{left:.1f}"' in named[0]


@pytest.mark.parametrize(("length", "shown"), [(24, "x" * 24), (25, "x" * 23 + "…")])
def test_the_name_of_an_end_is_cut_at_24_characters(length: int, shown: str) -> None:
    assert draw._end(draw.Chain([], [draw.BoxLine("x" * length, "1x4")]), 0) == shown


@pytest.mark.parametrize(("others", "text"), [(3, "to #1, #2, #3"), (4, "to #1, #2, #3 and 1 more")])
def test_three_ends_are_named_and_the_rest_is_counted(others: int, text: str) -> None:
    assert "to " + draw._ends([f"#{n + 1}" for n in range(others)]) == text


@pytest.mark.parametrize(("length", "shown"), [(64, 64), (65, 64)])
def test_lines_are_cut_at_64_characters(length: int, shown: int) -> None:
    words = "x" * (length - 3)
    drawn = svg(Outline("m", {0: tensor("", ()), 1: tensor("", ())}, (0,), (1,), (Node(words, "", (0,), (1,)),)))
    (line,) = [line for line in drawn.splitlines() if line.startswith("<text") and "xxx" in line]
    found = line.split(">")[1].split("<")[0]
    assert len(found) == shown and found.endswith("…") == (length > shown)


def test_the_longest_of_several_weights_stands_with_its_operation() -> None:
    tensors = {
        0: tensor("", (1, 4)),
        1: tensor("", (4,), True),
        2: tensor("", (3, 3, 4, 4), True),
        3: tensor("", (1, 4)),
    }
    drawn = svg(Outline("m", tensors, (0,), (3,), (Node("CONV", "", (0, 1, 2), (3,)),)))
    assert ">#0 CONV weights 3x3x4x4<" in drawn


def test_shapes_of_further_outputs_stand_one_above_the_other_on_the_side_where_there_is_room() -> None:
    """SPLIT gives three; ADD below reads the second and third, and comes from one side."""
    tensors = {n: tensor("", (1, n + 2)) for n in range(7)}
    nodes = Node("SPLIT", "", (0,), (1, 2, 3)), Node("ADD", "", (2, 3), (4,)), Node("NEG", "", (1,), (5,))
    lines = svg(Outline("m", tensors, (0,), (4, 5), nodes)).splitlines()
    found = [line for line in lines if 'fill="#5a5a5a"' in line and (">1x4<" in line or ">1x5<" in line)]
    (one, two) = (line for line in found if "-anchor" not in line or 'x="' in line)
    places = [
        (float(line.split('x="')[1].split('"')[0]), float(line.split('y="')[1].split('"')[0])) for line in (one, two)
    ]
    assert places[0][0] == places[1][0] and places[0][1] - places[1][1] == 11
    heads = [line for line in lines if line.startswith("<path")]
    ends = [tuple(map(float, line.split('"/><path class="head" d="M')[1].split(" ")[0].split(","))) for line in heads]
    x, y = min(ends, key=lambda end: abs(end[1] - 4 - places[0][1]) + abs(abs(end[0] - places[0][0]) - 6))
    assert y - 4 == places[0][1] and abs(x - places[0][0]) == 6
    assert ("text-anchor" in one) == (places[0][0] < x)


# --------------------------------------------------------------------------------------------------------------- Pillow


class Brush:
    """What Pillow is asked to draw."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: self.asked.append((name, *given, *more.values()))


def painted(item: Any, scale: float) -> list[tuple[Any, ...]]:
    brush = Brush()
    draw._paint(brush, "font", item, scale)
    return brush.asked


def test_lines_of_text_and_rectangles_are_painted_at_their_scale() -> None:
    assert painted(Label(10, 20, "a"), 2) == [("text", (20, 40), "a", "#111111", "font", "ls")]
    assert painted(Label(10, 20, "a", "red", "end"), 3) == [("text", (30, 60), "a", "red", "font", "rs")]
    assert painted(Rectangle(1, 2, 30, 40, "red", "blue"), 2) == [("rectangle", [2, 4, 62, 84], "red", "blue", 2)]
    assert painted(Rectangle(1, 2, 30, 40, "none"), 1) == [("rectangle", [1, 2, 31, 42], None, None, 1)]


def test_arrows_are_the_curves_of_the_svg_with_a_head() -> None:
    points = ((10.0, 0.0), (40.0, 20.0), (40.0, 50.0))
    line, head = painted(Arrow(points), 2)
    assert head == ("polygon", [(80, 100), (73, 86), (87, 86)], draw.GREY)
    name, way, colour, width, joint = line
    assert (name, colour, width, joint, len(way)) == ("line", draw.GREY, 2, "curve", 26)
    for start, (one, two) in ((0, points[:2]), (13, points[1:])):
        bend = (two[1] - one[1]) / 2
        corners = np.array([one, (one[0], one[1] + bend), (two[0], two[1] - bend), two])
        for step in range(13):
            t = step / 12
            weights = [(1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t * t, t**3]
            np.testing.assert_allclose(way[start + step], 2 * (weights @ corners), atol=1e-9)


def test_a_png_is_twice_as_large_and_no_larger_than_can_be_held(net: Outline, monkeypatch: pytest.MonkeyPatch) -> None:
    with Image.open(io.BytesIO(png(net))) as picture:
        assert picture.size == (2 * (24 + 282 + 24), 2 * 327)
        wide, high = picture.size
    monkeypatch.setattr(draw, "PIXELS", 20_000)
    with Image.open(io.BytesIO(png(net))) as picture:
        assert 18_000 < picture.size[0] * picture.size[1] < 21_000
        assert picture.size[0] / picture.size[1] == pytest.approx(wide / high, rel=0.02)


# --------------------------------------------------------------------------------------------------------------- layout


def test_a_box_stands_below_what_it_reads() -> None:
    boxes = [Box(100, 20, []), Box(60, 30, [0])]
    found = arrange(boxes)
    assert [(b.x, b.top, b.rank, b.column) for b in boxes] == [(50, 0, 0, 0), (50, 20 + DOWN, 1, 0)]
    assert (found.width, found.height, found.jumps) == (100, 20 + DOWN + 30, [])
    assert found.edges == [(0, 1, [(50, 20), (50, 20 + DOWN)])]


def test_boxes_side_by_side_are_centred_below_and_above_what_they_share() -> None:
    boxes = [Box(80, 20, []), Box(100, 20, [0]), Box(50, 40, [0]), Box(30, 20, [1, 2])]
    found = arrange(boxes)
    apart = (100 + 50) / 2 + ACROSS
    middle = 50 + apart / 2
    assert [b.x for b in boxes] == [middle, 50, 50 + apart, middle]
    assert [b.top for b in boxes] == [0, 20 + DOWN, 20 + DOWN, 20 + DOWN + 40 + DOWN]
    assert found.width == 100 + ACROSS + 50 and found.height == 20 + 40 + 20 + 2 * DOWN


def test_an_edge_over_a_layer_is_led_around_what_stands_there() -> None:
    boxes = [Box(60, 20, []), Box(100, 40, [0]), Box(60, 20, [1, 0])]
    found = arrange(boxes)
    apart = (100 + POINT) / 2 + ACROSS
    middle, way = 50 + apart / 2, 50 + apart
    assert [b.x for b in boxes] == [middle, 50, middle]
    first, second = 20 + DOWN, 20 + DOWN + 40 + DOWN
    assert found.edges == [
        (0, 1, [(middle, 20), (50, first)]),
        (1, 2, [(50, first + 40), (middle, second)]),
        (0, 2, [(middle, 20), (way, first), (way, first + 40), (middle, second)]),
    ]
    assert found.width == 100 + ACROSS + POINT


def test_boxes_are_put_in_the_order_of_what_they_read() -> None:
    boxes = [Box(50, 20, []), Box(50, 20, []), Box(50, 20, [1]), Box(50, 20, [0])]
    arrange(boxes)
    apart = 50 + ACROSS
    assert [b.x for b in boxes] == [25, 25 + apart, 25 + apart, 25]


def test_boxes_that_would_overlap_share_the_room_about_their_middle() -> None:
    """The first two wish to stand below one box, the third below another: all three are pushed alike."""
    boxes = [Box(20, 20, []), Box(20, 20, []), *(Box(100, 20, [n]) for n in (0, 0, 1))]
    arrange(boxes)
    apart = 100 + ACROSS
    assert [b.x for b in boxes[2:]] == [50, 50 + apart, 50 + 2 * apart]
    assert boxes[0].x == 50 + apart / 2 and boxes[1].x == 50 + 2 * apart


@pytest.mark.parametrize(
    ("count", "width", "columns"),
    [
        (16, 100, [16]),  # 16 * 54 is 864
        (17, 100, [17]),  # a column of one is none
        (20, 100, [20]),  # 4 * 54 is less than a quarter of 900
        (21, 100, [16, 5]),
        (36, 100, [16, 20]),
        (37, 100, [16, 16, 5]),
        (40, 100, [16, 16, 8]),
        (40, 1000, [22, 18]),  # a column is sqrt(40 * 54 * 1024 / 1.5) = 1214 high
    ],
)
def test_a_tall_picture_goes_on_in_columns(count: int, width: int, columns: list[int]) -> None:
    boxes = [Box(width, 20, [n - 1] if n else []) for n in range(count)]
    found = arrange(boxes)
    assert [sum(b.column == n for b in boxes) for n in range(len(columns))] == columns
    starts = [sum(columns[:n]) for n in range(len(columns))]
    assert found.jumps == [(n - 1, n) for n in starts[1:]]
    for n, (start, size) in enumerate(zip(starts, columns, strict=True)):
        assert [b.top for b in boxes[start : start + size]] == [54 * k for k in range(size)]
        assert {b.x for b in boxes[start : start + size]} == {width / 2 + n * (width + BETWEEN)}
    assert found.width == len(columns) * (width + BETWEEN) - BETWEEN and found.height == max(columns) * 54 - DOWN
    assert len(found.edges) == count - len(columns)


@pytest.mark.parametrize(
    ("layers", "columns"),
    [
        ([600, 300, 300], [2, 1]),  # 900 is just as high as a column may be
        ([600, 300.5, 300], [1, 2]),
        ([600, 300, 600, 300], [2, 2]),
        ([900, 225], [2]),  # a quarter of a column is too little for one
        ([900, 225.5], [1, 1]),
    ],
)
def test_a_column_is_900_high_and_the_last_more_than_a_quarter_of_that(layers: list[float], columns: list[int]) -> None:
    boxes = [Box(20, height - DOWN, [n - 1] if n else []) for n, height in enumerate(layers)]
    arrange(boxes)
    assert [sum(b.column == n for b in boxes) for n in range(len(columns))] == columns


def test_a_picture_is_as_high_as_its_boxes_however_low() -> None:
    assert arrange([Box(20, 0.5, [])]).height == 0.5


def test_a_row_lies_as_near_to_its_wishes_as_it_can_without_overlap() -> None:
    """Where the row would begin by each wish, in order: isotonic regression, by its min-max formula."""
    rng = np.random.default_rng(3)
    for count in (1, 2, 3, 5, 9) * 8:
        row, widths, wishes = rng.permutation(count), rng.integers(1, 9, count) * 10.0, rng.normal(0, 200, count)
        steps = [(widths[a] + widths[b]) / 2 + ACROSS for a, b in pairwise(row)]
        offsets = np.cumsum([0.0, *steps])
        begins = wishes - offsets
        wanted = [
            max(min(begins[a : b + 1].mean() for b in range(n, count)) for a in range(n + 1)) for n in range(count)
        ]
        xs = [0.0] * count
        layout._apart(row.tolist(), widths.tolist(), xs, wishes.tolist())
        np.testing.assert_allclose([xs[i] for i in row], wanted + offsets)


def test_edges_within_a_column_are_drawn_beside_those_that_come_from_another() -> None:
    boxes = [Box(100, 20, [0, n - 1] if n > 1 else [0] * n) for n in range(37)]
    found = arrange(boxes)
    drawn = {(source, target) for source, target, _ in found.edges}
    wanted = {(s, n) for n, box in enumerate(boxes) for s in box.sources if boxes[s].column == box.column}
    assert drawn == wanted and len(wanted) > 40 and len(drawn) + len(found.jumps) == 71
