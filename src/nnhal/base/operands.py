"""What is known about one operand: type, shape, quantisation and, where known, its value."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from nnhal.base.brief import brief, counted
from nnhal.base.codes import TYPE_FACTS, OperandType, type_name
from nnhal.base.errors import InvalidModel
from nnhal.base.records import Record

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]  # None: unknown until execution


def fixed(shape: Shape | None) -> tuple[int, ...] | None:
    """The shape where all of it is known, None where the rank or a dimension is not."""
    return None if shape is None or None in shape else shape  # type: ignore[return-value]  # no None is in it


class Unknown(Exception):
    """A rule asked for a value, dimension or rank that is only known at run time."""


class ChannelQuant(Record, frozen=True):
    """Per-channel scales of a TENSOR_QUANT8_SYMM_PER_CHANNEL along dimension `axis`."""

    scales: tuple[float, ...]
    axis: int

    def __repr__(self) -> str:
        return brief(
            f"ChannelQuant along axis {self.axis}, {counted(len(self.scales), 'scale')}", map(str, self.scales)
        )


class Value(Record, frozen=True):
    """One operand as an operation sees it.

    `shape` is () for scalars, None where even the rank is unknown, and holds None for single unknown dimensions.
    `data` is a read-only array of that shape (a `SubgraphFacts` for SUBGRAPH operands), None while unknown.
    """

    type: int
    shape: Shape | None = ()
    scale: float = 0.0
    zero_point: int = 0
    channel: ChannelQuant | None = None
    data: Any = None
    name: str = ""

    @property
    def dims(self) -> Shape:
        """The shape; Unknown where the rank is not known."""
        if self.shape is None:
            raise Unknown
        return self.shape

    @property
    def known(self) -> tuple[int, ...]:
        """The shape; Unknown where any dimension is not known."""
        known = fixed(self.shape)
        if known is None:
            raise Unknown
        return known

    @property
    def rank(self) -> int:
        """Number of dimensions; Unknown where it is not known."""
        return len(self.dims)

    @property
    def array(self) -> Array:
        """The value; Unknown until it is there."""
        if self.data is None:
            raise Unknown
        value: Array = self.data
        return value

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type in memory."""
        return dtype_of(self.type)

    @property
    def quantised(self) -> bool:
        """Whether real = (q - zero_point) * scale holds for the elements."""
        facts = TYPE_FACTS.get(self.type)
        return facts is not None and facts.zero_points is not None


class SubgraphFacts(Record, frozen=True):
    """What a control-flow operation may know of the subgraph that an operand refers to."""

    index: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def dtype_of(code: int) -> np.dtype[Any]:
    """The numpy element type of an operand type; InvalidModel for types whose elements nnhal does not know."""
    facts = TYPE_FACTS.get(code)
    if facts is None or facts.dtype is None:
        raise InvalidModel(f"{type_name(code)} has no element type of its own")
    dtype: np.dtype[Any] = facts.dtype
    return dtype


def is_tensor(code: int) -> bool:
    """Whether an operand of this type has dimensions (extension types are taken for tensors)."""
    facts = TYPE_FACTS.get(code)
    return True if facts is None else bool(facts.tensor)


def quantised(code: int) -> bool:
    """Whether this type carries a scale."""
    facts = TYPE_FACTS.get(code)
    return facts is not None and facts.zero_points is not None


TENSOR_TYPES = tuple(t for t in OperandType if TYPE_FACTS[t].tensor)


def typed(room: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The first bytes of some room as an array of this type and shape; the room itself where it is that."""
    if room.shape == shape and room.dtype == dtype:
        return room
    size = math.prod(shape) * dtype.itemsize
    return room.reshape(-1).view(np.uint8)[:size].view(dtype).reshape(shape)
