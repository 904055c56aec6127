"""Pictures and outlines of models: what is counted, what is drawn where."""

import io
import re
import xml.etree.ElementTree as ET
from collections import Counter

import numpy as np
import pytest

import nnhal
from nnhal.model.draw import COLOURS, REFUSED, PicturePart, default_part, png, svg
from nnhal.model.layout import Box, arrange
from nnhal.model.outline import Node, Outline, ShownTensor, outline
from nnhal.model.overview import groups_of

PLAIN = ShownTensor("t", "FLOAT32", (1, 4))


def residual(blocks: int) -> nnhal.Model:
    b = nnhal.Builder()
    x = first = b.input((1, 8, 8, 4), name="picture")
    for _ in range(blocks):
        y = b.conv_2d(x, np.ones((4, 3, 3, 4), np.float32), np.zeros(4, np.float32), padding="same", activation="relu")
        x = b.add(x, y)
    return b.finish([first], [x])


def texts(drawn: str) -> list[str]:
    return [e.text or "" for e in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]


def test_work_of_a_convolution_is_the_outputs_size_times_the_filters():
    found = outline(residual(1))
    assert found.macs(found.nodes[0]) == (1 * 8 * 8 * 4) * (3 * 3 * 4) and found.macs(found.nodes[1]) == 0
    assert found.stored() == {"TENSOR_FLOAT32": (2, 4 * 3 * 3 * 4 + 4, 4 * (144 + 4))}


def test_constants_are_no_boxes_and_attributes_stand_with_their_operation():
    lines = texts(svg(outline(residual(1))))
    assert "#0 CONV_2D same relu weights 4x3x3x4" in lines
    assert sum("input" in line for line in lines) == 1


def test_operations_on_constants_belong_to_who_reads_them():
    tensors = {
        0: PLAIN,
        1: ShownTensor("w", "FLOAT16", (4, 4), True, 32),
        2: ShownTensor("wide", "FLOAT32", (4, 4)),
        3: PLAIN,
    }
    nodes = Node("DEQUANTIZE", "", (1,), (2,)), Node("FULLY_CONNECTED", "", (0, 2), (3,))
    graph = Outline("half", tensors, (0,), (3,), nodes)
    lines = texts(svg(graph))
    assert "#1 FULLY_CONNECTED weights 4x4" in lines and not any("DEQUANTIZE" in line for line in lines)


def test_boxes_do_not_overlap_and_stand_below_what_they_read():
    boxes = [Box(100 + n % 7, 20 + n % 5, sorted({max(0, n - 1), n // 2} - {n})) for n in range(200)]
    arrange(boxes)
    for n, one in enumerate(boxes):
        for other in boxes[:n]:
            beside = abs(one.x - other.x) >= (one.width + other.width) / 2
            assert beside or one.top >= other.top + other.height or other.top >= one.top + one.height
        assert all(boxes[s].column < one.column or boxes[s].top < one.top for s in one.sources)


def test_the_last_of_eight_sweeps_goes_upwards():
    """Box 1 and the edge from 2 to 3 both want to be above 88, and are 76 / 2 + 24 + 10 / 2 apart: 33.5 to each side."""
    boxes = [Box(76, 20, sources) for sources in ([], [0], [], [1, 2])]
    arrange(boxes)
    assert [box.x for box in boxes] == [38, 88 - 33.5, 38 + 76 + 24, 88]


def test_seven_hundred_operations_make_a_picture_of_the_shape_of_a_page():
    root = ET.fromstring(svg(outline(residual(350))))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert 0.5 < width / height < 4 and max(width, height) < 8000


def test_every_operation_is_drawn_once():
    found = [re.match(r"#(\d+) ", line) for line in texts(svg(outline(residual(60))))]
    assert sorted(int(m.group(1)) for m in found if m) == list(range(120))


@pytest.mark.parametrize("name", ["</text><script>", "\x1b]0;x\x07", "a" * 70_000, "[/x]", "\x00", "\u202e", "\ud800"])
def test_names_are_data_in_pictures(name):
    graph = Outline(
        name, {0: ShownTensor(name, name, (1,)), 1: PLAIN}, (0,), (1,), (Node(name, name, (0,), (1,), name),)
    )
    drawn = svg(graph, {0: name})
    drawn.encode()
    assert ET.fromstring(drawn) is not None and "\x1b" not in drawn and len(drawn) < 200_000


def test_devices_have_colours_and_a_legend_and_what_is_refused_is_marked():
    tensors = dict.fromkeys(range(3), PLAIN)
    nodes = Node("ADD", "", (0,), (1,)), Node("custom operation X", "", (1,), (2,), "NNAPI has none")
    drawn = svg(Outline("m", tensors, (0,), (2,), nodes), {0: "litert"})
    assert "on litert" in texts(drawn) and "! not supported: 1" in texts(drawn)
    assert "! #1 custom operation X" in texts(drawn)  # not by its colour alone
    assert drawn.count(COLOURS[0]) == 2 and REFUSED in drawn and "<title>NNAPI has none</title>" in drawn


def test_why_an_operation_is_where_it_is_shows_where_the_pointer_rests():
    nodes = Node("ADD", "", (0,), (1,)), Node("NEG", "", (1,), (2,))
    drawn = svg(Outline("m", dict.fromkeys(range(3), PLAIN), (0,), (2,), nodes), {0: "a"}, {0: "a: <best>"})
    assert drawn.count("; a: &lt;best&gt;</title>") == 1


def test_a_shape_stands_once_and_that_of_a_further_output_at_its_arrow():
    shapes = {0: (1, 8), 1: (1, 5), 2: (1, 3), 3: (1, 5), 4: (1, 3)}
    tensors = {n: ShownTensor(f"t{n}", "TENSOR_FLOAT32", shape) for n, shape in shapes.items()}
    nodes = Node("SPLIT", "", (0,), (1, 2)), Node("NEG", "", (1,), (3,)), Node("EXP", "", (2,), (4,))
    found = [text for text in texts(svg(Outline("m", tensors, (0,), (3, 4), nodes))) if text in ("1x8", "1x5", "1x3")]
    assert Counter(found) == {"1x8": 1, "1x5": 3, "1x3": 3}  # input; SPLIT, NEG, output; the arrow to EXP, EXP, output


def test_a_title_that_is_longer_than_the_graph_is_wide_fits():
    drawn = svg(Outline("x" * 60, {0: PLAIN}, (0,), (0,), ()))
    width = float(re.search(r'width="(\d+)"', drawn).group(1))
    assert width > 60 * 6.6  # of a monospaced font of 11 pixels


@pytest.mark.parametrize("count", [40, 75, 130])
def test_the_last_column_is_not_only_a_few_boxes(count):
    boxes = [Box(100, 20, [n - 1] if n else []) for n in range(count)]
    arrange(boxes)
    columns = Counter(box.column for box in boxes)
    assert min(columns.values()) >= 0.2 * max(columns.values())


def test_png_is_a_picture_in_the_same_colours():
    from PIL import Image

    with Image.open(io.BytesIO(png(outline(residual(2)), {0: "litert"}))) as picture:
        assert picture.format == "PNG"
        colours = {c for _, c in picture.convert("RGB").getcolors(1 << 24) or []}
    assert tuple(bytes.fromhex(COLOURS[0][1:])) in colours


# ---------------------------------------------------------------------------------------------- overview and parts


def size_of(drawn: str) -> tuple[float, float]:
    root = ET.fromstring(drawn)
    return float(root.get("width", 0)), float(root.get("height", 0))


def test_a_model_of_seven_hundred_operations_is_an_overview_by_default_which_fits_a_page() -> None:
    graph = outline(residual(350))
    assert default_part(outline(residual(30))) == PicturePart() and default_part(graph) == PicturePart(overview=True)
    drawn = svg(graph, {n: "litert" if n < 400 else "reference" for n in range(700)}, None, default_part(graph))
    width, height = size_of(drawn)
    assert width < 900 and height < 2200
    titles = [text for text in texts(drawn) if re.match(r"#\d+", text)]
    assert 15 <= len(titles) <= 30 and titles[0].startswith("#0 to #") and titles[-1].endswith("#699")
    assert any(title.startswith("#400") for title in titles)  # a group lies on one device
    assert not any(text.startswith(("from #", "to #")) for text in texts(drawn))  # one column


def test_groups_hold_every_operation_once_and_end_where_few_tensors_are_alive() -> None:
    graph = outline(residual(60))  # in each block, both the sum and the convolution's input are alive in the middle
    groups = groups_of(graph, {})
    assert [n for group in groups for n in group.operations] == list(range(120))
    assert all(group.operations[-1] % 2 for group in groups)
    assert groups[0].kinds(graph) == f"{len(groups[0].operations) // 2} CONV_2D, {len(groups[0].operations) // 2} ADD"


def test_a_device_that_changes_more_often_than_there_are_groups_does_not_cut_them() -> None:
    graph = outline(residual(60))
    assert groups_of(graph, {n: str(n % 2) for n in range(120)}) == groups_of(graph, {})


def test_a_part_has_its_operations_and_what_goes_in_and_out_of_them() -> None:
    drawn = texts(svg(outline(residual(60)), part=PicturePart(operations=range(10, 14))))
    assert sorted(int(m.group(1)) for text in drawn if (m := re.match(r"#(\d+) ", text))) == [10, 11, 12, 13]
    assert sum(text.startswith("input ") for text in drawn) == sum(text.startswith("output ") for text in drawn) == 1


def test_a_dark_theme_changes_what_stands_on_the_page_and_nothing_on_a_box() -> None:
    drawn = svg(outline(residual(2)))
    assert "prefers-color-scheme:dark" in drawn
    free = [e.text for e in ET.fromstring(drawn).iter() if e.get("class") == "free"]
    assert any("4 operations" in (text or "") for text in free) and not any("CONV_2D" in (text or "") for text in free)
