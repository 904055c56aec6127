"""Keeps OpenVINO from reading memory that nobody has written.

OpenVINO makes no copy for a Transpose before a layer of pictures: the layer reads the tensor where it lies, in another
order. Nor does it copy where that tensor is joined with others, or has another shape elsewhere: it lies in their memory
then. Where both are true, the layer reads memory that was never written. So a Transpose gets a tensor of its own wherever
another reader is not known to leave the tensor where it lies.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

GIVEN = frozenset(("Parameter", "Constant"))
LAYERS = frozenset(("Convolution", "ConvolutionBackpropData", "GroupConvolution", "MatMul", "SoftMax", "LogSoftmax"))
CURVES = frozenset(("Clamp", "Elu", "Exp", "HSwish", "Relu", "Sigmoid", "Tanh"))
LEAVING = LAYERS | CURVES | {"Result"}  # the tensor where it lies, whatever OpenVINO makes of the graph
PAIRS = frozenset(("Add", "Divide", "Maximum", "Minimum", "Multiply", "SquaredDifference", "Subtract"))
MOVING = ("Broadcast", "Concat", "Convert", "Gather", "Pad", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze")


def keep_apart(model: Any, opset: Any) -> None:
    """Give a Transpose a copy of what it reads where others may hold that in place.

    A plain copy would be removed: it is the same numbers, to the bit, those below 0 times 1.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Transpose":
            continue
        source = node.input_value(0)
        if source.get_element_type().to_string() == "f32" and not all(leaves(other, node) for other in others(node)):
            node.input(0).replace_source_output(opset.prelu(source, np.ones(1, np.float32)).output(0))


def others(transpose: Any) -> Iterator[Any]:
    """The other readers of what a Transpose reads, also of what that is where OpenVINO removes what does nothing."""
    node, source = transpose, transpose.input_value(0)
    while kind(source) not in GIVEN:
        yield from (i.get_node() for i in source.get_target_inputs() if i.get_node().get_name() != node.get_name())
        node = source.get_node()
        if not (kind(source) in MOVING or does_nothing(node)):
            return
        inputs = node.input_values()
        source = next((x for x in inputs if kind(x) != "Constant"), inputs[0])


def leaves(node: Any, transpose: Any) -> bool:
    """Whether a reader leaves a tensor where it lies."""
    name = node.get_type_name()
    if name in PAIRS:
        return not does_nothing(node)
    return name in LEAVING or (name == "Transpose" and order(node) == order(transpose))  # OpenVINO makes one of both


def does_nothing(node: Any) -> bool:
    """Whether a node may be a sum or product that OpenVINO removes: with a constant 0 or 1."""
    constants = [x.get_node().data for x in node.input_values() if kind(x) == "Constant"]
    return node.get_type_name() in PAIRS and any(data.flat[0] in (0, 1) for data in constants)


def order(transpose: Any) -> list[int]:
    return [int(n) for n in transpose.input_value(1).get_node().data]


def kind(source: Any) -> str:
    return str(source.get_node().get_type_name())
