"""The outline of a file that is refused: each operator as the file has it, and why it is not taken."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import ShapeNeeded
from nnhal.frontends.tflite import load
from nnhal.frontends.tflite.outline import refused_outline
from tests.frontends.flat import Writer, one_operator, tensor


def outlined(content: Any, signature: str | None = None) -> Any:
    with pytest.raises((nnhal.UnsupportedModel, ShapeNeeded)) as caught:
        load(content, signature=signature)
    return refused_outline(content, caught.value, signature)


def layers(path: Any) -> Any:
    w = Writer()
    x, weights = w.tensor([1, 8, 8, 2]), w.tensor([3, 2, 2, 2], "f4", np.zeros((3, 2, 2, 2)))
    deep, q = w.tensor([1, 2, 2, 3], "f4", np.zeros((1, 2, 2, 3))), w.tensor([4], "i1", [1, 2, 3, 4], scale=[0.5])
    sizes = w.tensor([4], "i4", [1, 4, 6, 3])
    back = w.tensor([3, 2, 2, 3], "f4", np.zeros((3, 2, 2, 3)))
    a, b, c, d, e, z = (w.tensor([1, 8, 8, 3]) for _ in range(6))
    ones = {"dilationWFactor": 1, "dilationHFactor": 1}
    w.operator("CONV_2D", [x, weights, -1], [a], "Conv2D", strideW=2, strideH=3, fusedActivationFunction=3, **ones)
    w.operator("DEPTHWISE_CONV_2D", [a, deep, -1], [b], "DepthwiseConv2D", strideW=1, strideH=1, padding=1, **ones)
    w.operator("TRANSPOSE_CONV", [sizes, back, b], [c], "TransposeConv", strideW=2, strideH=2)
    w.operator("AVERAGE_POOL_2D", [c], [d], "Pool2D", filterWidth=2, filterHeight=5, strideW=1, strideH=2)
    w.operator("MAX_POOL_2D", [d], [e], "Pool2D", filterWidth=3, filterHeight=3, strideW=1, strideH=1, padding=7)
    w.operator("MyOwnThing", [e, q], [z])
    path.write_bytes(w.file([x], [z]))
    return path


def test_the_outline_of_a_refused_file_has_every_operator_and_says_why_one_is_refused(tmp_path):
    found = outlined(layers(tmp_path / "some.net.tflite"))
    assert found.name == "some.net"
    assert [(node.name, node.attributes, node.refused) for node in found.nodes] == [
        ("CONV_2D", "stride 3x2 same relu6", ""),
        ("DEPTHWISE_CONV_2D", "valid", ""),
        ("TRANSPOSE_CONV", "stride 2x2 same", ""),
        ("AVERAGE_POOL_2D", "window 5x2 stride 2x1 same", ""),
        ("MAX_POOL_2D", "window 3x3", "padding is 7, must be 0 (SAME) or 1 (VALID)"),
        (
            "custom operation MyOwnThing",
            "",
            "is unknown; nnhal.register_custom_operator('MyOwnThing', ...) defines it",
        ),
    ]
    assert [node.inputs for node in found.nodes] == [(0, 1), (6, 2), (4, 5, 7), (8,), (9,), (10, 3)]
    assert [node.outputs for node in found.nodes] == [(6,), (7,), (8,), (9,), (10,), (11,)]
    assert (found.inputs, found.outputs, found.reasons, found.metadata) == ((0,), (11,), (), None)
    given, weights, small = (found.tensors[n] for n in (0, 1, 3))
    assert (given.name, given.type, given.shape, given.constant, given.bytes) == (
        "t0",
        "FLOAT32",
        (1, 8, 8, 2),
        False,
        0,
    )
    assert (weights.constant, weights.bytes, weights.scale) == (True, 96, 0.0)
    assert (small.type, small.bytes, small.scale) == ("INT8", 4, 0.5)


def test_the_outline_of_an_entry_point_is_that_of_its_subgraph():
    w = Writer()
    x, y = w.tensor([2]), w.tensor([2])
    w.operator("MyOwnThing", [x], [y])
    w.ends([x], [y])
    w.signature("first", {"a": x}, {"b": y})
    w.subgraph()
    x, y = w.tensor([3]), w.tensor([3])
    w.operator("AnotherThing", [x], [y])
    w.ends([x], [y])
    w.signature("second", {"a": x}, {"b": y}, 1)
    names = [outlined(w.bytes(), key).nodes[0].name for key in (None, "first", "second")]
    assert names == [f"custom operation {name}" for name in ("MyOwnThing", "MyOwnThing", "AnotherThing")]
    assert outlined(w.bytes()).name == "model"


def test_a_file_that_leaves_a_shape_open_is_outlined_with_what_is_missing():
    content = one_operator("RESHAPE", [tensor([1, 3], shapeSignature=[-1, 3]), tensor([1], "i4", [6])], [tensor([6])])
    found = outlined(content)
    assert found.reasons == ("a shape that the file leaves open must be given (--shape)",)
    assert found.tensors[0].shape == (None, 3)
    assert [node.refused for node in found.nodes] == [""]


def test_a_variable_is_no_constant_and_what_has_no_reason_says_that_there_is_no_operation():
    w = Writer()
    x, y = w.tensor([2]), w.tensor([2])
    kept = w.tensor([2], "f4", [1, 2], isVariable=True)
    w.operator("MyOwnThing", [x, kept], [y])
    w.ends([x], [y])
    error = nnhal.UnsupportedModel("no")
    error.refused = [("MyOwnThing", "#0", "")]
    found = refused_outline(w.bytes(), error)
    assert not found.tensors[kept].constant and found.tensors[kept].bytes == 8
    assert found.nodes[0].refused == "NNAPI has no operation for it"
