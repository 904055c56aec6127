"""The attributes of a node, as entries read them: one of another type refuses the node."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnhal.base.names import short
from nnhal.base.operands import Array
from nnhal.frontends.common.terms import UnsupportedOperator
from nnhal.frontends.onnx.file import AttributeReference, OnnxFileGraph, OnnxTensor


class NodeAttributes:
    """The attributes of one node. Calling it reads one: `attributes("axis", 0)`."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self._attributes = attributes

    def __call__(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, a string, a tuple of them, a tensor or a graph, of the default's type."""
        value = self._attributes.get(name)
        if value is None:
            return default
        if isinstance(value, AttributeReference):
            raise UnsupportedOperator(f"attribute {name} refers to an attribute of the function, which is not set")
        wanted = type(default)
        if wanted is float and isinstance(value, int):
            value = float(value)
        ok = default is None or isinstance(value, wanted)
        if not ok:
            raise UnsupportedOperator(f"attribute {name} is {short(repr(value))}, must be {wanted.__name__}")
        return value

    def ints(self, name: str) -> list[int]:
        """Return an attribute of integers; empty if it is not set."""
        value = self(name, ())
        whole = all(isinstance(n, int) for n in value)
        if not whole:
            raise UnsupportedOperator(f"attribute {name} is {short(repr(value))}, must be integers")
        return list(value)

    def floats(self, name: str) -> Array:
        """Return an attribute of numbers as float32; empty if it is not set."""
        value = self(name, ())
        if not all(isinstance(n, int | float) for n in value):
            raise UnsupportedOperator(f"attribute {name} is {short(repr(value))}, must be floats")
        return np.array(value, np.float32)

    def graph(self, name: str) -> OnnxFileGraph:
        """Return an attribute that is a graph."""
        value = self._attributes.get(name)
        if not isinstance(value, OnnxFileGraph):
            raise UnsupportedOperator(f"attribute {name} is not a graph, must be one")
        return value

    def tensor(self, name: str) -> OnnxTensor:
        """Return an attribute that is a tensor."""
        value = self._attributes.get(name)
        if not isinstance(value, OnnxTensor):
            raise UnsupportedOperator(f"attribute {name} is not a tensor, must be one")
        return value
