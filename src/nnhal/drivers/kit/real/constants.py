"""Constants that are turned and reshaped where they are written: an engine would keep them as they were and as they are."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.operands import Array
from nnhal.drivers.kit.real.engine import Node


class Scaled(NamedTuple):
    """Whole numbers of 8 bits, and scales of the same rank: one, or one for each place along a dimension."""

    whole: Array
    scales: Array


class KnownConstants(ABC):
    """Of `Primitives` those about constants. constants: what they lie in, by the name of their node."""

    def __init__(self) -> None:
        self.constants: dict[str, Array] = {}
        self._scaled: dict[str, Scaled] = {}
        self._transposed: dict[tuple[str, tuple[int, ...]], Node] = {}

    @abstractmethod
    def name_of(self, x: Node) -> str:
        """The name of a node, which no other has."""

    @abstractmethod
    def constant(self, array: Array) -> Node:
        """As of `Primitives`; the array is in `constants`."""

    @abstractmethod
    def decoded(self, whole: Node, scales: Node) -> Node:
        """A constant of int8 in float32, times its scales."""

    @abstractmethod
    def turned(self, x: Node, order: Sequence[int]) -> Node:
        """As `transpose`, of what is no constant."""

    @abstractmethod
    def reshaped(self, x: Node, shape: Sequence[int]) -> Node:
        """As `reshape`, of what is no constant."""

    def elements(self, x: Node) -> Array | None:
        """As of `Primitives`."""
        return self.constants.get(self.name_of(x))

    def decodes(self, x: Node) -> bool:
        """Whether `scaled` made a node."""
        return self.name_of(x) in self._scaled

    def scaled(self, whole: Array, scales: Array) -> Node:
        """As of `Primitives`."""
        found = Scaled(np.ascontiguousarray(whole), np.ascontiguousarray(scales))
        node = self.decoded(*map(self.constant, found))
        self._scaled[self.name_of(node)] = found
        return node

    def transpose(self, x: Node, order: Sequence[int]) -> Node:
        """As of `Primitives`. All readers of a constant in one order share one copy."""
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
        """As of `Primitives`. Scales lie along the first dimension, which may be cut."""
        name = self.name_of(x)
        if name in self._scaled:
            whole, scales = self._scaled[name]
            cut = next(n for n in range(len(shape)) if math.prod(shape[:n]) == scales.size)
            return self.scaled(whole.reshape(shape), scales.reshape(*shape[:cut], *[1] * (len(shape) - cut)))
        if name in self.constants:
            return self.constant(self.constants[name].reshape(shape))
        return self.reshaped(x, shape)
