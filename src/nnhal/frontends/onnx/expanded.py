"""The task of a node that is expanded into nodes of ai.onnx, which are lowered in its place."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nnhal.frontends.onnx.file import OnnxNode, OnnxTensor
from nnhal.frontends.onnx.graph import NodeGraph
from nnhal.frontends.onnx.task import NodeTask, operator

VERSION = 23  # of the operators of ai.onnx that are written
DTYPES = {"FLOAT": np.float32, "FLOAT16": np.float16, "INT64": np.int64, "INT32": np.int32}  # of constants


class ExpandedNode(NodeTask):
    """A node that others replace: `nodes`. `commit` adds nothing else to the graph."""

    def __init__(self, graph: NodeGraph, node: OnnxNode, opset: int) -> None:
        super().__init__(graph, node, opset)
        self.nodes: list[OnnxNode] = []
        own = " ".join(filter(None, (self.name, node.name)))
        self._origin = (node.name or own) if "/" in node.place else own  # the node of the file, in messages

    def commit(self) -> None:
        """Check that each output that is read is written."""
        written = {name for node in self.nodes for name in node.outputs}
        for number, name in enumerate(self.node.outputs):
            used = self.is_output_used(number) and name not in written
            self.require(not used, f"output {number} is read, which NNAPI has no operation for")
        for step in self.later:
            step()

    def input(self, place: int) -> str:
        """Return the name of an input; "" if it is not given."""
        return self.node.inputs[place] if self.given(place) else ""

    def write(
        self, op: str, *inputs: str, gives: int | Sequence[int | None] | None = None, parts: int = 1, **attributes: Any
    ) -> Any:
        """Write a node of ai.onnx.

        Args:
            op: The operator.
            inputs: The names of its inputs.
            gives: The output of the expanded node that it gives; for several outputs, that of each, None for none.
            parts: The number of its outputs, if `gives` is not of several.
            attributes: Its attributes; None leaves one out.

        Returns:
            The name of its output, or a list of several.
        """
        place = f"{self.node.place}/{len(self.nodes)}"
        wanted = gives if isinstance(gives, Sequence) else [gives] * parts
        own = dict(enumerate(self.node.outputs))
        names = [own.get(-1 if number is None else number) or f"{place}.{n}" for n, number in enumerate(wanted)]
        lists = {key: tuple(value) for key, value in attributes.items() if isinstance(value, list)}
        found = {key: value for key, value in (attributes | lists).items() if value is not None}
        self.nodes.append(OnnxNode(place, self._origin, op, "", inputs, tuple(names), found))
        return names[0] if len(names) == 1 else names

    def constant(self, value: Any) -> str:
        """Write a constant: of INT32 or INT64 if it has integers; else of FLOAT, or of FLOAT16 if the first input is."""
        array = np.asarray(value)
        kind = "INT32" if array.dtype == np.int32 else "INT64"
        if array.dtype.kind == "f":
            kind = "FLOAT16" if self.raw(0).kind == "FLOAT16" else "FLOAT"
        array = array.astype(DTYPES[kind])
        return str(self.write("Constant", value=OnnxTensor("", kind, array.shape, values=array)))


expanded = partial(operator, task=ExpandedNode)
