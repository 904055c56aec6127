"""What people read of a model, to the letter: text, listing, DOT, outline, labels."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import Activation, OperandType
from nnhal.base.extensions import register_extension
from nnhal.model.builder import ModelBuilder
from nnhal.model.metadata import AssociatedFile, Metadata, TensorMetadata
from nnhal.model.outline import Node, Outline, ShownTensor, attribute_text, outline, shape_text
from nnhal.model.text import dot, listing, text
from tests.models import make_model


@pytest.fixture(scope="module")
def model() -> nnhal.Model:
    b = nnhal.Builder("shown\x1b")
    x, unread = b.input((1, 4, 4, 2), name='pic"ture'), b.input((2,), "TENSOR_INT32")
    filters = np.arange(3 * 9 * 2, dtype=np.float32).reshape(3, 3, 3, 2)
    y = b.conv_2d(x, filters, np.zeros(3, np.float32), padding="same", stride=2, activation="relu6")
    z = b.slice(y, np.zeros(4, np.int32), np.int32([1, 1, 2, 3]))
    return b.finish([x, unread], [z, b.average_pool_2d(y, filter_size=2, padding="valid")], relaxed=True)


TEXT = r"""model shown\x1b: level 1.2, 3 operations
  level 1.2 because SLICE #1: SLICE exists since 1.2
  relaxed: float32 may be computed as float16
main
  input %0: f32[1, 4, 4, 2]  "pic"ture"
  input %1: i32[2]
  output %11: f32[1, 1, 2, 3]
  output %18: f32[1, 1, 1, 3]
  constant %2: f32[3, 3, 3, 2] = 216 bytes at pool 0+0  "filter"
  constant %3: f32[3] = [0, 0, 0]  "bias"
  constant %4: int32[] = [1]
  constant %5: int32[] = [2]
  constant %6: int32[] = [2]
  constant %7: int32[] = [3]
  constant %9: i32[4] = [0, 0, 0, 0]  "begin"
  constant %10: i32[4] = [1, 1, 2, 3]  "size"
  constant %12: int32[] = [2]
  constant %13: int32[] = [1]
  constant %14: int32[] = [1]
  constant %15: int32[] = [2]
  constant %16: int32[] = [2]
  constant %17: int32[] = [0]
  #0 %8: f32[1, 2, 2, 3] = CONV_2D(%0, %2, %3, %4, %5, %6, %7)
  #1 %11: f32[1, 1, 2, 3] = SLICE(%8, %9, %10)  # litert
  #2 %18: f32[1, 1, 1, 3] = AVERAGE_POOL_2D(%8, %12, %13, %14, %15, %16, %17)
"""
LISTING = """#0 %8: 1x2x2x3 = CONV_2D(%0, %2, %3, %4, %5, %6, %7) stride 2x2 same relu6
#1 %11: 1x1x2x3 = SLICE(%8, %9, %10) begin [0,0,0,0] size [1,1,2,3]
#2 %18: 1x1x1x3 = AVERAGE_POOL_2D(%8, %12, %13, %14, %15, %16, %17) window 2x2 valid
"""
DOT = r"""digraph model {
  node [shape=box style="rounded,filled" fillcolor=white fontname=sans fontsize=10];
  edge [fontname=sans fontsize=8];
  in0 [label="pic\"ture\n1x4x4x2" shape=ellipse];
  in1 [label="input %1\n2" shape=ellipse];
  op0 [label="#0 CONV_2D\nstride 2x2 same relu6\n3x3x3x2 3" fillcolor="red"];
  in0 -> op0 [label="1x4x4x2"];
  op1 [label="#1 SLICE\nbegin [0,0,0,0] size [1,1,2,3]"];
  op0 -> op1 [label="1x2x2x3"];
  op2 [label="#2 AVERAGE_POOL_2D\nwindow 2x2 valid"];
  op0 -> op2 [label="1x2x2x3"];
  out11 [label="output %11" shape=ellipse];
  op1 -> out11 [label="1x1x2x3"];
  out18 [label="output %18" shape=ellipse];
  op2 -> out18 [label="1x1x1x3"];
}
"""


def test_the_text_the_listing_and_the_graph_are_stable(model: nnhal.Model) -> None:
    assert text(model, {1: "litert"}) == TEXT
    assert listing(outline(model)) == LISTING
    assert dot(outline(model), {0: "red"}) == DOT


def test_text_tells_of_quantisation_branches_states_and_long_constants() -> None:
    b = nnhal.Builder()
    x = b.input((2, 2), "TENSOR_QUANT8_ASYMM", scale=0.5, zero_point=3)
    y = b.dequantize(x)
    z = b.add(y, np.arange(10, dtype=np.float32).reshape(5, 2)[:1])
    lines = text(b.finish([x], [z])).splitlines()
    assert lines[0] == "model (unnamed): level 1.0, 2 operations"
    assert "  input %0: quant8_asymm[2, 2] scale 0.5 zero 3" in lines
    model = make_model(lambda b, x: b.mul(x, np.arange(10, dtype=np.float32).reshape(1, 10)), (1, 10))
    (line,) = [s for s in text(model).splitlines() if "constant" in s and "f32" in s]
    assert "= [0, 1, 2, 3, 4, 5, 6, 7, ...]" in line


def test_what_an_importer_refuses_stands_with_the_reason() -> None:
    tensors = {0: ShownTensor("x", "FLOAT32", (1, None)), 1: ShownTensor("y", "FLOAT32", None)}
    refused = Outline("f", tensors, (0,), (1,), (Node("FANCY", "", (0, 7), (1,), "no way\x1b"),))
    assert listing(refused) == "#0 %1: ? = FANCY(%0, %7)   # cannot be taken: no way\\x1b\n"
    assert [shape_text(s) for s in ((), None, (1, None))] == ["scalar", "?", "1x?"]


class Colour(IntEnum):
    NONE = 0
    RED = 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stride_w": 2, "stride_h": 1}, "stride 1x2"),
        ({"filter_h": 3, "filter_w": 3, "dilation_h": 2, "dilation_w": 2}, "window 3x3 dilation 2x2"),
        ({"stride_h": 1, "stride_w": 1}, ""),
        ({"pad_top": 1, "pad_bottom": 2, "pad_left": 3, "pad_right": 4}, "pad 1,2,3,4"),
        ({"pad_right": 4}, "pad 0,0,0,4"),
        ({"pad_top": 0, "pad_bottom": 0, "pad_left": 0, "pad_right": 0}, ""),
        ({"activation": Activation.RELU6, "colour": Colour.NONE}, "relu6"),
        ({"depth_multiplier": 1, "beta": 2.0}, "beta 2"),
        ({"depth_multiplier": 2, "other": 1}, "depth_multiplier 2 other 1"),
        ({"keep_dims": True, "nchw": False, "beta": 0.12345678, "axes": [1, 2]}, "keep_dims beta 0.123457 axes [1,2]"),
        ({"text": "words"}, ""),
    ],
)
def test_arguments_are_one_short_line(given: dict[str, object], words: str) -> None:
    assert attribute_text(given) == words


def work(
    name: str, inputs: Sequence[tuple[int, ...] | None], output: tuple[int, ...] | None, weights: bool = True
) -> int:
    tensors = {n: ShownTensor("", "FLOAT32", shape, weights and n > 0, 4) for n, shape in enumerate(inputs)}
    tensors[99] = ShownTensor("", "FLOAT32", output)
    node = Node(name, "", tuple(range(len(inputs))), (99,))
    return Outline("", tensors, (0,), (99,), (node,)).macs(node)


@pytest.mark.parametrize(
    ("name", "inputs", "output", "macs"),
    [
        ("CONV_2D", [(1, 8, 8, 3), (5, 3, 2, 3), (5,)], (1, 7, 6, 5), (7 * 6 * 5) * (3 * 2 * 3)),
        ("GROUPED_CONV_2D", [(1, 8, 8, 4), (6, 3, 3, 2), (6,)], (1, 8, 8, 6), (8 * 8 * 6) * (3 * 3 * 2)),
        ("DEPTHWISE_CONV_2D", [(1, 8, 8, 3), (1, 3, 2, 6), (6,)], (1, 8, 8, 6), (8 * 8 * 6) * (3 * 2)),
        ("TRANSPOSE_CONV_2D", [(1, 4, 4, 3), (5, 3, 2, 3), (5,)], (1, 8, 8, 5), (4 * 4 * 3) * (5 * 3 * 2)),
        ("TRANSPOSE_CONV", [(4,), (5, 3, 2, 3), (1, 4, 4, 3)], (1, 8, 8, 5), (4 * 4 * 3) * (5 * 3 * 2)),
        ("FULLY_CONNECTED", [(2, 7), (5, 7), (5,)], (2, 5), 2 * 5 * 7),
        ("BATCH_MATMUL", [(2, 3, 7), (2, 7, 5)], (2, 3, 5), 2 * 3 * 5 * 7),
        ("LSTM", [(2, 7), (5, 7), (5, 5), (5,)], (2, 5), 2 * (5 * 7 + 5 * 5)),
        ("UNIDIRECTIONAL_SEQUENCE_RNN", [(3, 2, 7), (5, 7), (5, 5), (5,)], (3, 2, 5), 3 * 2 * (5 * 7 + 5 * 5)),
        ("SVDF", [(2, 7), (4, 7), (4, 10)], (2, 4), 2 * (4 * 7 + 4 * 10)),
        ("RNN", [(), (5, 7)], (5,), 35),
        ("CONV_2D", [(1, 8, 8, 3)], (1, 7, 6, 5), 0),
        ("CONV_2D", [(1, 8, 8, 3), None], (1, 7, 6, 5), 0),
        ("CONV_2D", [(1, 8, 8, 3), (5, 3, 2, 3)], None, 0),
        ("TRANSPOSE_CONV", [(4,), (5, 3, 2, 3)], (1, 8, 8, 5), 0),
        ("FULLY_CONNECTED", [(2, 7), (5,)], (2, 5), 0),
        ("BATCH_MATMUL", [(3, 7), (7, 5)], (3, 5), 3 * 7 * 5),
        ("BATCH_MATMUL", [(7,), (7, 5)], (5,), 0),
        ("BATCH_MATMUL", [(0, 3, 7), (0, 7, 5)], (0, 3, 5), 0),
        ("ADD", [(2, 7), (2, 7)], (2, 7), 0),
    ],
)
def test_work_is_the_multiplications_of_the_definition(name, inputs, output, macs) -> None:
    assert work(name, inputs, output) == macs


def test_what_gives_nothing_does_no_work() -> None:
    node = Node("CONV_2D", "", (0, 1), ())
    tensors = {0: ShownTensor("", "FLOAT32", (1, 8, 8, 3)), 1: ShownTensor("", "FLOAT32", (5, 3, 2, 3), True)}
    assert Outline("", tensors, (0,), (), (node,)).macs(node) == 0


def test_of_an_engines_state_only_matrices_that_are_learnt_count() -> None:
    assert work("LSTM", [(2, 7), (5, 7), (5, 5)], (2, 5), weights=False) == 0


def test_integers_are_weights_only_with_a_scale() -> None:
    kinds = [
        ("TENSOR_FLOAT32", True, 0.0),
        ("TENSOR_FLOAT32", False, 0.0),
        ("TENSOR_INT32", True, 0.0),
        ("TENSOR_INT32", True, 0.5),
        ("TENSOR_BOOL8", True, 0.0),
        ("TENSOR_QUANT8_ASYMM", True, 0.5),
    ]
    assert [ShownTensor("", t, (2,), c, 8, s).weight for t, c, s in kinds] == [True, False, False, True, False, True]
    assert ShownTensor("", "FLOAT32", (2, 3)).size == 6 and ShownTensor("", "FLOAT32", (2, None)).size == 0


def test_operations_are_counted_by_kind_and_small_constants_are_attributes(model: nnhal.Model) -> None:
    found = outline(model)
    assert found.kinds() == {"CONV_2D": 1, "SLICE": 1, "AVERAGE_POOL_2D": 1}
    assert found.level == "1.2" and found.reasons == ("SLICE #1: SLICE exists since 1.2",)
    assert 4 not in found.tensors and found.tensors[2].constant and not found.tensors[0].constant
    shown = outline(make_model(lambda b, x: [b.tile(x, np.ones(4, np.int32)), b.reshape(x, [1] * 8)], (1,) * 4))
    assert [node.attributes for node in shown.nodes] == ["multiples [1,1,1,1]", "shape [1,1,1,1,1,1,1,1]"]


def test_arguments_that_are_their_defaults_and_long_constants_are_no_attributes() -> None:
    b = nnhal.Builder()
    x = b.input((2, 9))
    outputs = [b.softmax(x, beta=2.0, axis=axis) for axis in (-1, 0)]
    outputs += [b.gather(x, axis=1, indices=np.arange(count, dtype=np.int32)) for count in (8, 9)]
    outputs += [b.concatenation([x, x], 1)]
    shown = outline(b.finish([x], outputs))
    wanted = ["beta 2", "beta 2 axis 0", "axis 1 indices [0,1,2,3,4,5,6,7]", "axis 1", "axis 1"]
    assert [node.attributes for node in shown.nodes] == wanted


def test_an_operation_without_a_record_has_no_attributes() -> None:
    extension = register_extension("com.example.shown", (), ["TWICE"])
    m = ModelBuilder()
    x, y = (m.operand(OperandType.TENSOR_FLOAT32, (2,)) for _ in range(2))
    m.operation(extension.operation("TWICE"), [x], [y])
    (node,) = outline(m.finish([x], [y], extensions=m.extensions())).nodes
    assert node.attributes == "" and (node.inputs, node.outputs) == ((0,), (1,))


def test_what_is_made_of_constants_in_several_steps_belongs_to_who_reads_the_last() -> None:
    tensors = {n: ShownTensor(f"t{n}", "FLOAT32", (2, 2)) for n in range(5)}
    tensors[1] = ShownTensor("w", "FLOAT16", (2, 2), True)
    chain = Node("CAST", "", (1,), (2,)), Node("NEG", "", (2,), (3,)), Node("FULLY_CONNECTED", "", (0, 3), (4,))
    assert Outline("", tensors, (0,), (4,), chain).folded == {0: 1, 1: 2}
    assert Outline("", tensors, (0,), (4, 2), chain).folded == {}  # whoever wants an output reads it


def test_a_tensor_has_neither_bytes_nor_scale_unless_they_are_said() -> None:
    tensors = {0: ShownTensor("", "TENSOR_INT32", (2,), True), 1: ShownTensor("", "FLOAT32", (3,), True)}
    assert Outline("", tensors, (), (), ()).stored() == {"FLOAT32": (1, 3, 0)}


FILES = {"en": b"one\ntwo\n", "de": b"eins\nzw\x1bei\n\n", "raw": b"a\xff\n"}


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        ([("de", "axis labels", "de"), ("en", "axis labels", "en-GB")], ("one", "two")),
        ([("de", "axis labels", "de"), ("en", "axis labels", "")], ("one", "two")),
        ([("de", "value labels", "de")], ("eins", "zwei")),
        ([("raw", "axis labels", "")], ("a\ufffd",)),
        ([("en", "vocabulary", "en")], ()),
        ([("gone", "axis labels", "en")], ()),
        ([], ()),
    ],
)
def test_labels_are_the_english_ones_where_there_are_some(files, labels) -> None:
    said = TensorMetadata(files=tuple(AssociatedFile(name, "", kind, locale) for name, kind, locale in files))
    assert Metadata(contents=FILES).labels(said) == labels
    assert Metadata().labels(said) == ()


@pytest.mark.parametrize(
    ("kind", "level", "why"),
    [
        (OperandType.TENSOR_FLOAT32, "1.1", "relaxed float32 exists since 1.1"),
        (OperandType.TENSOR_FLOAT16, "1.2", "TENSOR_FLOAT16 exists since 1.2"),
    ],
)
def test_a_models_level_is_that_of_the_newest_thing_in_it(kind: OperandType, level: str, why: str) -> None:
    b = nnhal.Builder()
    x = b.input((2, 2), kind)
    found = outline(b.finish([x], [b.relu(x)], relaxed=True))
    assert found.level == level and why in found.reasons
