"""The outline of a file that NNAPI cannot express completely: every node, with the reasons of the refused ones."""

import math
import os
import re

import numpy as np

from nnhal.base.errors import ShapeNeeded, UnsupportedModel
from nnhal.base.memory import Memory
from nnhal.base.names import short
from nnhal.frontends.common.inputs import SHAPE_NEEDED
from nnhal.frontends.onnx import metadata_of
from nnhal.frontends.onnx.file import DTYPES, OnnxNode
from nnhal.frontends.onnx.reader import read
from nnhal.model.outline import Node, Outline, ShownTensor

OUTERMOST = re.compile(r".* of node (\d+) ")  # the node of the file whose inner graph has the refused one
SHOWN = ("kernel_shape", "strides", "pads", "dilations", "group", "axis", "mode")


def refused_outline(label: str, memory: Memory, folder: str | None, error: UnsupportedModel | ShapeNeeded) -> Outline:
    """Return the outline of a file that `load` refused with this error, node by node."""
    file = read(memory, label, folder)
    graph, asked = file.graph, isinstance(error, ShapeNeeded)
    reasons: dict[str, str] = {}
    if isinstance(error, UnsupportedModel):
        for name, place, reason in error.refused:
            why = reason or "NNAPI has no operation for it"
            inside = OUTERMOST.search(place)
            reasons.setdefault(f"#{inside[1]}" if inside else place, f"holds {name} {place}: {why}" if inside else why)
    names = dict.fromkeys([*(e.name for e in graph.inputs), *graph.constants])
    names |= dict.fromkeys(name for node in graph.nodes for name in (*node.inputs, *node.outputs) if name)
    places = {name: n for n, name in enumerate(names)}
    tensors = {}
    for name, n in places.items():
        edge, constant = graph.known.get(name), graph.constants.get(name)
        if constant is not None:
            size = math.prod(constant.shape) * np.dtype(DTYPES.get(constant.kind, "u1")).itemsize
            tensors[n] = ShownTensor(short(name), constant.kind, constant.shape, True, size, 0.0)
        else:
            dims = None if edge is None or edge.shape is None else edge.shape
            shape = None if dims is None else tuple(d if isinstance(d, int) else None for d in dims)
            tensors[n] = ShownTensor(short(name), edge.kind if edge else "", shape or (), False, 0, 0.0)
    nodes = tuple(
        Node(
            node.op,
            attributes(node),
            tuple(places[name] for name in node.inputs if name),
            tuple(places[name] for name in node.outputs if name),
            reasons.get(node.place, ""),
        )
        for node in graph.nodes
    )
    inputs = tuple(places[e.name] for e in graph.inputs)
    outputs = tuple(places[e.name] for e in graph.outputs if e.name in places)
    name = os.path.splitext(os.path.basename(label))[0]
    needed = (SHAPE_NEEDED,) if asked else ()
    return Outline(name, tensors, inputs, outputs, nodes, reasons=needed, metadata=metadata_of(file))


def attributes(node: OnnxNode) -> str:
    """Return the key attributes of a layer as text."""
    words = []
    for name in SHOWN:
        value = node.attributes.get(name)
        if isinstance(value, int | float | str):
            words.append(f"{name} {value}")
        elif isinstance(value, tuple) and len(value) <= 8:
            words.append(f"{name} {'x'.join(map(str, value))}")
    return " ".join(words)
