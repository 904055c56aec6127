"""Keeps OpenVINO from reading unwritten memory.

OpenVINO makes no copy for a Transpose before a layer of pictures: the layer reads the tensor in place, in another
order. It also makes no copy if that tensor is joined with others, or is reshaped elsewhere: the tensor then lies in
their memory. If both are true, the layer reads memory that was never written. So a Transpose gets a copy unless every
other reader is known to leave the tensor in place.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

GIVEN = frozenset(("Parameter", "Constant"))
LAYERS = frozenset(("Convolution", "ConvolutionBackpropData", "GroupConvolution", "MatMul", "SoftMax", "LogSoftmax"))
CURVES = frozenset(("Clamp", "Elu", "Exp", "HSwish", "Relu", "Sigmoid", "Tanh"))
LEAVING = LAYERS | CURVES | {"Result"}  # they leave the tensor in place, however OpenVINO rewrites the graph
PAIRS = frozenset(("Add", "Divide", "Maximum", "Minimum", "Multiply", "SquaredDifference", "Subtract"))
SMALL = 64  # bytes; smaller constants are compared
MOVING = ("Broadcast", "Concat", "Convert", "Gather", "Pad", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze")


# OpenVINO may compute these before a MaxPool instead of after it, as it does if the pool reads a layer
RISING = LAYERS | CURVES - {"HSwish"} | {"AvgPool", "Concat", "Convert", "FakeQuantize", "MaxPool", "Result", "Round"}
VIEWS = frozenset(("Reshape", "Squeeze", "Transpose", "Unsqueeze"))


def copy_shared_transpose_inputs(model: Any, opset: Any) -> None:
    """Give a Transpose a copy of its input if another reader may hold that in place."""
    lift_conversions(model, opset)
    keep_behind_pools(model, opset)
    nodes = ComputedNodes(model)
    known: dict[tuple[int, int], list[tuple[int, ...]]] = {}  # the orders for which a tensor is copied
    for node in nodes.ordered:
        source = node.input_value(0) if node.get_type_name() == "Transpose" else None
        if source is None or not of_float32(source) or all(keeps_tensor(other, node) for other in nodes.others(node)):
            continue
        orders = known.setdefault(nodes.value(nodes.root(source)), [])
        if order(node) not in orders:
            orders.append(order(node))
        for _ in range(orders.index(order(node)) + 1):  # a copy of a copy is a different tensor
            source = copied(source, opset)
        node.input(0).replace_source_output(source)


def copied(source: Any, opset: Any) -> Any:
    """Return a copy of a tensor of float32.

    OpenVINO would remove a plain copy. This one is bit-identical: it multiplies the numbers below 0 by 1.
    """
    return opset.prelu(source, np.ones(1, np.float32)).output(0)


def keep_behind_pools(model: Any, opset: Any) -> None:
    """Write a node that OpenVINO leaves alone after a MaxPool, unless all readers may read the pool's input instead.

    OpenVINO computes a function after a layer and a MaxPool inside the layer. That is wrong if the function falls:
    HSwish, Abs, and the operations of which HSwish consists.
    """
    for pool in model.get_ordered_ops():
        if pool.get_type_name() == "MaxPool" and not all(map(may_read_maximum_input, readers(pool.output(0)))):
            before = list(pool.output(0).get_target_inputs())
            same = opset.maximum(pool.output(0), np.finfo(np.float32).min).output(0)  # the initial value of a maximum
            for each in before:
                each.replace_source_output(same)


def may_read_maximum_input(node: Any) -> bool:
    """Whether a reader of a maximum may read the maximum's input instead."""
    if node.get_type_name() in VIEWS:
        return all(map(may_read_maximum_input, readers(node.output(0))))
    return node.get_type_name() in RISING


def readers(source: Any) -> Iterator[Any]:
    return (each.get_node() for each in source.get_target_inputs())


def lift_conversions(model: Any, opset: Any) -> None:
    """Transpose numbers after their conversion instead of before: OpenVINO does that too, but too late for a copy."""
    for node in model.get_ordered_ops():
        turned = node.input_value(0).get_node() if node.get_type_name() == "Convert" else None
        if turned is None or turned.get_type_name() != "Transpose":
            continue
        if of_float32(node.output(0)) and not of_float32(turned.output(0)):
            converted = opset.convert(turned.input_value(0), node.get_element_type())
            node.output(0).replace(opset.transpose(converted, turned.input_value(1)).output(0))


class ComputedNodes:
    """The nodes of a model, and the readers of each of their outputs.

    OpenVINO merges nodes that compute the same. Here all nodes with the same type and the same inputs count as one.
    """

    def __init__(self, model: Any) -> None:
        self.ordered = model.get_ordered_ops()
        self._same: dict[str, int] = {}  # one number for all equal nodes
        self._readers: dict[tuple[int, int], list[Any]] = {}
        known: dict[Any, int] = {}
        for node in self.ordered:
            inputs = [self.value(x) for x in node.input_values()]
            self._same[node.get_name()] = known.setdefault(self._key(node, inputs), len(known))
            for x in inputs:
                self._readers.setdefault(x, []).append(node)

    def value(self, source: Any) -> tuple[int, int]:
        """Identify a tensor; equal ones have the same identity."""
        return self._same[source.get_node().get_name()], source.get_index()

    def _key(self, node: Any, inputs: list[tuple[int, int]]) -> Any:
        name = node.get_type_name()
        if name == "Constant" and node.get_byte_size() <= SMALL:
            return name, str(node.get_element_type()), tuple(node.get_output_shape(0)), node.data.tobytes()
        return (name, *inputs) if inputs else node.get_name()

    def others(self, transpose: Any) -> Iterator[Any]:
        """Yield the other readers of a Transpose's input.

        They include those of its source if OpenVINO removes operations without an effect.
        """
        node = transpose
        for source in self._upwards(transpose.input_value(0)):
            yield from (i for i in self._readers[self.value(source)] if i.get_name() != node.get_name())
            node = source.get_node()

    def has_one_reader(self, source: Any) -> bool:
        """Whether only one node reads a tensor, or several equal ones."""
        return len({self._same[node.get_name()] for node in self._readers[self.value(source)]}) == 1

    def root(self, source: Any) -> Any:
        """Return the source of a tensor, before operations that may have no effect."""
        *_, root = source, *self._upwards(source)
        return root

    def _upwards(self, source: Any) -> Iterator[Any]:
        """Yield a computed tensor, and its sources through operations that may have no effect."""
        while kind(source) not in GIVEN:
            yield source
            node = source.get_node()
            if not (kind(source) in MOVING or is_removable(node)):
                return
            inputs = node.input_values()
            source = next((x for x in inputs if kind(x) != "Constant"), inputs[0])


def keeps_tensor(node: Any, transpose: Any) -> bool:
    """Whether a reader leaves a tensor in place."""
    name = node.get_type_name()
    if name in PAIRS:
        return not is_removable(node)
    return name in LEAVING or (name == "Transpose" and order(node) == order(transpose))  # OpenVINO merges both


def is_removable(node: Any) -> bool:
    """Whether a node may be a sum or product that OpenVINO removes: with a constant 0 or 1."""
    constants = [x.get_node().data for x in node.input_values() if kind(x) == "Constant"]
    return node.get_type_name() in PAIRS and any(data.flat[0] in (0, 1) for data in constants)


def order(transpose: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in transpose.input_value(1).get_node().data)


def of_float32(source: Any) -> bool:
    return str(source.get_element_type().to_string()) == "f32"


def kind(source: Any) -> str:
    return str(source.get_node().get_type_name())
