"""A summary of a model's main subgraph: tensors, and operations with key attributes, work and weights.

`outline` summarises a model. An importer summarises a file that it rejects, with the rejected operators and why.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from nnhal.base.codes import TYPE_FACTS, OperandType, operation_name, type_name
from nnhal.base.lazy import cached_property
from nnhal.base.operands import Shape, Value, fixed
from nnhal.base.records import Record
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.metadata import Metadata
from nnhal.model.validate import validate
from nnhal.ops import OPS
from nnhal.ops.schema import Bound

SHOWN = 8  # the most elements of a small constant that are shown
# Not weights, unless they have a scale
INTEGERS = frozenset(("TENSOR_INT32", "TENSOR_BOOL8", "INT32", "INT64", "BOOL"))


class ShownTensor(Record, frozen=True):
    """A tensor. type: its name in NNAPI or in the file. bytes: the size of a constant, else 0."""

    name: str
    type: str
    shape: Shape | None
    constant: bool = False
    bytes: int = 0
    scale: float = 0.0

    @property
    def size(self) -> int:
        """The number of elements; 0 if unknown."""
        known = fixed(self.shape)
        return 0 if known is None else math.prod(known)

    @property
    def weight(self) -> bool:
        """Whether it is learnt, rather than an axis, a shape or a flag."""
        return self.constant and (self.type not in INTEGERS or bool(self.scale))


class Node(Record, frozen=True):
    """An operation. inputs, outputs: keys of tensors. refused: why nnhal rejects it, or ""."""

    name: str
    attributes: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    refused: str = ""


class Outline(Record, frozen=True, dict=True):
    """A summary of a graph. level: "" if NNAPI cannot express the file; reasons: for the level."""

    name: str
    tensors: Mapping[int, ShownTensor]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    level: str = ""
    reasons: tuple[str, ...] = ()
    metadata: Metadata | None = None

    @cached_property
    def folded(self) -> Mapping[int, int]:
        """Operations on constants alone, such as widened float16 weights, each with the first tensor that it reads.

        They count as part of their readers.
        """
        found: dict[int, int] = {}
        known = {key for key, tensor in self.tensors.items() if tensor.constant}
        for n, node in enumerate(self.nodes):
            read = [i for i in node.inputs if i in self.tensors]
            if read and known.issuperset(read) and not set(self.outputs).intersection(node.outputs):
                found[n] = read[0]
                known.update(node.outputs)
        return found

    @cached_property
    def _origin(self) -> Mapping[int, int]:
        """The outputs of folded operations, and the tensors that they are computed from."""
        return {i: read for n, read in self.folded.items() for i in self.nodes[n].outputs}

    def weights(self, node: Node) -> list[ShownTensor]:
        """Return the weights that an operation reads, as stored."""
        keys = [self._origin.get(i, i) for i in node.inputs]
        return [self.tensors[i] for i in keys if i in self.tensors and self.tensors[i].weight]

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates of one execution of an operation; 0 if shapes are unknown."""
        sides = [[self.tensors[i] for i in side if i in self.tensors] for side in (node.inputs, node.outputs)]
        return _macs(node.name, *sides)

    def kinds(self) -> Counter[str]:
        """Count the operations of each type."""
        return Counter(node.name for node in self.nodes)

    def stored(self) -> dict[str, tuple[int, int, int]]:
        """Return the weights by type: the number of tensors, elements and bytes."""
        found: dict[str, tuple[int, int, int]] = {}
        for tensor in self.tensors.values():
            if tensor.weight:
                tensors, elements, size = found.get(tensor.type, (0, 0, 0))
                found[tensor.type] = tensors + 1, elements + tensor.size, size + tensor.bytes
        return found


def outline(model: Model) -> Outline:
    """Summarise a model's main subgraph."""
    facts = validate(model)
    main, binding = model.main, facts.subgraphs[0]
    tensors = {}
    for index, (operand, value) in enumerate(zip(main.operands, binding.values, strict=True)):
        facts_of_type = TYPE_FACTS.get(operand.type)
        if value is not None and (facts_of_type is None or facts_of_type.tensor):
            tensors[index] = ShownTensor(
                operand.name,
                type_name(operand.type),
                value.shape,
                operand.lifetime in CONSTANTS,
                operand.location.length,
                operand.scale,
            )
    nodes = tuple(
        Node(operation_name(operation.type), _attributes(bound), operation.inputs, operation.outputs)
        for operation, bound in zip(main.operations, binding.operations, strict=True)
    )
    return Outline(
        model.name, tensors, main.inputs, main.outputs, nodes, str(facts.level), facts.reasons, model.metadata
    )


def shape_text(shape: Shape | None) -> str:
    """Return a short text for a shape: `1x224x224x3`."""
    return "?" if shape is None else "x".join("?" if d is None else str(d) for d in shape) or "scalar"


def _attributes(bound: Bound | None) -> str:
    """Return the arguments that are not defaults, pairs as one."""
    if bound is None:
        return ""
    given: dict[str, Any] = {}
    for argument in bound.form:
        value = vars(bound).get(argument.name)
        if isinstance(value, Value):
            value = value.data if value.type == OperandType.TENSOR_INT32 and np.size(value.data) <= SHOWN else None
            value = value.tolist() if isinstance(value, np.ndarray) else None
        if value is not None and value != argument.default:
            given[argument.name] = value
    return attribute_text(given)


def attribute_text(given: Mapping[str, Any]) -> str:
    """Return arguments by name as one short line: `3x3 stride 2x2 same relu6`."""
    left = dict(given)
    words = []
    for pair, label in (("filter", "window"), ("stride", "stride"), ("dilation", "dilation")):
        height, width = (left.pop(f"{pair}_{side}", 1) for side in "hw")
        words += [f"{label} {height}x{width}"] if (height, width) != (1, 1) else []
    pads = [left.pop(f"pad_{side}", 0) for side in ("top", "bottom", "left", "right")]
    words += [f"pad {','.join(map(str, pads))}"] if any(pads) else []
    for name, value in left.items():
        if isinstance(value, IntEnum):
            words += [value.name.lower()] if value.name != "NONE" else []
        elif name == "depth_multiplier" and value == 1:
            continue
        elif value is True:
            words.append(name)
        elif value is not False and isinstance(value, int | float | list):
            text = f"{value:.6g}" if isinstance(value, float) else str(value).replace(" ", "")
            words.append(f"{name} {text}")
    return " ".join(words)


def _macs(name: str, inputs: Sequence[ShownTensor], outputs: Sequence[ShownTensor]) -> int:
    if len(inputs) < 2 or not outputs:
        return 0
    shapes = [fixed(t.shape) or () for t in inputs]
    weights = OPS[name].weights if name in OPS else None
    match name:
        case "TRANSPOSE_CONV_2D" if shapes[1]:
            return inputs[0].size * math.prod(shapes[1][:3])
        case "TRANSPOSE_CONV" if shapes[1] and len(inputs) > 2:  # in the file's order: shape, filter, input
            return inputs[2].size * math.prod(shapes[1][:3])
        case _ if weights is not None and len(shapes[1]) > 1:
            return outputs[0].size * math.prod(n for axis, n in enumerate(shapes[1]) if axis != weights.axis)
        case "BATCH_MATMUL" if len(shapes[0]) > 1 and outputs[0].size:
            return outputs[0].size * (inputs[0].size // math.prod((fixed(outputs[0].shape) or ())[:-1]))
    if "LSTM" in name or "RNN" in name or name == "SVDF":
        steps = math.prod(shapes[0][:-1]) if "SEQUENCE" in name else (shapes[0] or (1,))[0]
        return steps * sum(t.size for t in inputs[1:] if t.weight and len(t.shape or ()) == 2)
    return 0
