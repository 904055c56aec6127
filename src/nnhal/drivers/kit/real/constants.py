"""Transposes and reshapes constants when they are written: an engine would keep both the original and the result."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.operands import Array
from nnhal.drivers.kit.operations.primitives import Node


class ScaledConstant(NamedTuple):
    """8-bit integers, and scales of the same rank: one, or one for each position along a dimension."""

    whole: Array
    scales: Array


class KnownConstants(ABC):
    """The `Primitives` for constants. constants: the arrays that hold them, by the name of their node."""

    def __init__(self) -> None:
        self.constants: dict[str, Array] = {}
        self._scaled: dict[str, ScaledConstant] = {}
        self._transposed: dict[tuple[str, tuple[int, ...]], Node] = {}

    @abstractmethod
    def name_of(self, x: Node) -> str:
        """Return the unique name of a node."""

    @abstractmethod
    def constant(self, array: Array) -> Node:
        """Write a constant whose array is in `constants`."""

    @abstractmethod
    def decoded(self, whole: Node, scales: Node) -> Node:
        """Write an int8 constant, converted to float32, times its scales."""

    @abstractmethod
    def turned(self, x: Node, order: Sequence[int]) -> Node:
        """Transpose a node that is not a constant."""

    @abstractmethod
    def reshaped(self, x: Node, shape: Sequence[int]) -> Node:
        """Reshape a node that is not a constant."""

    def elements(self, x: Node) -> Array | None:
        return self.constants.get(self.name_of(x))

    def decodes(self, x: Node) -> bool:
        """Whether `scaled` made a node."""
        return self.name_of(x) in self._scaled

    def scaled(self, whole: Array, scales: Array) -> Node:
        found = ScaledConstant(np.ascontiguousarray(whole), np.ascontiguousarray(scales))
        node = self.decoded(*map(self.constant, found))
        self._scaled[self.name_of(node)] = found
        return node

    def transpose(self, x: Node, order: Sequence[int]) -> Node:
        """Transpose; all readers of a constant in one order share one copy."""
        name = self.name_of(x)
        if name in self._scaled:
            return self.scaled(*(array.transpose(order) for array in self._scaled[name]))
        if name in self.constants:
            key = name, tuple(order)
            if key not in self._transposed:
                self._transposed[key] = self.constant(np.ascontiguousarray(self.constants[name].transpose(order)))
            return self._transposed[key]
        return self.turned(x, order)

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        """Reshape; the scales of a constant lie along its first dimension, which may be divided."""
        name = self.name_of(x)
        if name in self._scaled:
            whole, scales = self._scaled[name]
            cut = next(n for n in range(len(shape)) if math.prod(shape[:n]) == scales.size)
            return self.scaled(whole.reshape(shape), scales.reshape(*shape[:cut], *[1] * (len(shape) - cut)))
        if name in self.constants:
            return self.constant(self.constants[name].reshape(shape))
        return self.reshaped(x, shape)
