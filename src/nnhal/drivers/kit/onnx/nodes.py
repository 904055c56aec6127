"""The nodes and constants of an ONNX graph, by the names of their tensors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.ops.common import decode

# the elements of nodes whose type is not that of their first input
RESULTS: dict[str, Any] = {"DequantizeLinear": np.float32} | dict.fromkeys(["ConvInteger", "MatMulInteger"], np.int32)
RESULTS |= dict.fromkeys(["DynamicQuantizeLinear", "QuantizeLinear"], np.uint8)
RESULTS |= dict.fromkeys(["ArgMax", "ArgMin", "TopK"], np.int64)
RESULTS |= dict.fromkeys(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN"], np.bool_)
EXTERNAL = 512  # a constant of at least this many bytes stays in its memory
NodeFacts = tuple[str, list[str], list[str], dict[str, Any]]  # kind, inputs, outputs, attributes


class OnnxNodes:
    """Nodes in order, and constants. A method with an ONNX name writes a node: `o.Add(x, 1.0)`.

    written: the nodes. arrays: constants. dtypes: of other tensors. decoded: real values of constants. shared: tensors
    by what they are made of.
    """

    def __init__(self) -> None:
        self.written: list[NodeFacts] = []
        self.arrays: dict[str, Array] = {}
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self.decoded: dict[str, Value] = {}
        self.shared: dict[Any, str] = {}

    def __getattr__(self, kind: str) -> Callable[..., str]:
        if not kind[0].isupper():
            raise AttributeError(kind)
        return partial(self.node, kind)

    def nodes(self, kind: str, inputs: Sequence[Any], count: int, **attributes: Any) -> list[str]:
        """Write a node; return the names of its outputs.

        Inputs are names, numbers (of float32), lists of whole numbers, or arrays.
        """
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        outputs = [f"{kind} {len(self.written)}.{n}" for n in range(count)]
        self.written.append((kind, names, outputs, attributes))
        for number, output in enumerate(outputs):
            self.dtypes[output] = np.dtype(attributes["to"] if kind == "Cast" else self._result(kind, names, number))
        return outputs

    def _result(self, kind: str, inputs: list[str], number: int) -> Any:
        """Return the type of the elements of a node's output."""
        if (kind, number) in (("TopK", 0), ("DynamicQuantizeLinear", 1)):
            return self.dtype(inputs[0])
        return RESULTS.get(kind) or self.dtype(inputs[kind == "Where"])

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type of a tensor's elements; float32 for the result of a refused operation."""
        array = self.arrays.get(name)
        return self.dtypes.get(name, np.dtype(np.float32)) if array is None else array.dtype

    def elements(self, name: str) -> Array | None:
        """Return the elements of a constant, and real ones of a quantised constant; None for other tensors."""
        value = self.decoded.get(name)
        return self.arrays.get(name) if value is None else decode(value, value.array)

    def node(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        return self.nodes(kind, inputs, 1, **attributes)[0]

    def constant(self, data: Any, dtype: Any = None) -> str:
        """Write a constant tensor; equal small ones are shared."""
        if dtype is None:
            dtype = np.int64 if isinstance(data, list | tuple) else np.float32 if type(data) in (int, float) else None
        array = np.asarray(data, dtype)
        key = (array.dtype.str, array.shape, array.tobytes() if array.nbytes < EXTERNAL else id(array))
        if key not in self.shared:
            self.shared[key] = f"constant {len(self.arrays)}"
            # this keeps the identity of the key; that of the argument may be reused
            self.arrays[self.shared[key]] = array
        return self.shared[key]
