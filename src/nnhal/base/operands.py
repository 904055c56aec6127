"""Facts about one operand: type, shape, quantisation and, if known, its value."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from nnhal.base.brief import short_repr, with_count
from nnhal.base.codes import TYPE_FACTS, OperandType, type_name
from nnhal.base.errors import InvalidModel
from nnhal.base.records import Record

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]  # None: unknown until execution


def fixed(shape: Shape | None) -> tuple[int, ...] | None:
    """Return the shape if all of it is known, else None."""
    return None if shape is None or None in shape else shape  # type: ignore[return-value]  # no None is in it


class UnknownValue(Exception):
    """A rule needs a value, dimension or rank that is only known at run time."""


class ChannelQuant(Record, frozen=True):
    """The scales of a TENSOR_QUANT8_SYMM_PER_CHANNEL operand, as in the HAL's `SymmPerChannelQuantParams`.

    Attributes:
        scales: One positive scale for each channel: a real value is the stored value times its channel's scale.
        axis: The dimension of the channels.
    """

    scales: tuple[float, ...]
    axis: int

    def __repr__(self) -> str:
        return short_repr(
            f"ChannelQuant along axis {self.axis}, {with_count(len(self.scales), 'scale')}", map(str, self.scales)
        )


class Value(Record, frozen=True):
    """One operand as an operation sees it.

    `shape` is () for scalars, None if even the rank is unknown, and holds None for single unknown dimensions. `data` is
    a read-only array of that shape (a `SubgraphFacts` for SUBGRAPH operands), None while unknown.
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
        """The shape; Unknown if the rank is not known."""
        if self.shape is None:
            raise UnknownValue
        return self.shape

    @property
    def known(self) -> tuple[int, ...]:
        """The shape; Unknown if a dimension is not known."""
        known = fixed(self.shape)
        if known is None:
            raise UnknownValue
        return known

    @property
    def rank(self) -> int:
        """The number of dimensions; Unknown if it is not known."""
        return len(self.dims)

    @property
    def array(self) -> Array:
        """The value; Unknown if it is not known."""
        if self.data is None:
            raise UnknownValue
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
    """Facts about a subgraph for the control-flow operation that refers to it."""

    index: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def dtype_of(code: int) -> np.dtype[Any]:
    """Return the numpy element type of an operand type; InvalidModel if nnhal does not know it."""
    facts = TYPE_FACTS.get(code)
    if facts is None or facts.dtype is None:
        raise InvalidModel(f"{type_name(code)} has no element type")
    dtype: np.dtype[Any] = facts.dtype
    return dtype


def is_tensor(code: int) -> bool:
    """Whether an operand of this type has dimensions. Extension types count as tensors."""
    facts = TYPE_FACTS.get(code)
    return True if facts is None else bool(facts.tensor)


def quantised(code: int) -> bool:
    """Whether this type has a scale."""
    facts = TYPE_FACTS.get(code)
    return facts is not None and facts.zero_points is not None


TENSOR_TYPES = tuple(t for t in OperandType if TYPE_FACTS[t].tensor)


def typed(room: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return the first bytes of a buffer as an array of this type and shape; the buffer itself if it is one."""
    if room.shape == shape and room.dtype == dtype:
        return room
    size = math.prod(shape) * dtype.itemsize
    return room.reshape(-1).view(np.uint8)[:size].view(dtype).reshape(shape)
