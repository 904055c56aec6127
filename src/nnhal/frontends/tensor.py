"""The arguments and results of the builder's methods."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from nnhal.base.brief import short_repr, tensor
from nnhal.base.codes import OperandType
from nnhal.base.operands import Shape, Value
from nnhal.base.records import Record


class Tensor(Record, frozen=True):
    """An operand of a model under construction. Pass it to the methods of its builder.

    Attributes:
        owner: The builder that created it.
    """

    index: int
    value: Value
    owner: object

    @property
    def shape(self) -> Shape | None:
        """Its shape as far as it is known; None if even the rank is unknown."""
        return self.value.shape

    def __repr__(self) -> str:
        return short_repr(f"Tensor {self.index}", [tensor(self.value.name, self.value.type, self.value.shape)])


Tensors: TypeAlias = Sequence[Tensor] | Tensor
ElementType: TypeAlias = OperandType | str | type[Any] | np.dtype[Any]
Operand: TypeAlias = Tensor | ArrayLike  # arrays and numbers become constants
Integer: TypeAlias = int | np.integer[Any] | Tensor
Real: TypeAlias = float | np.floating[Any] | np.integer[Any] | Tensor
Truth: TypeAlias = bool | np.bool_ | Tensor
Pair: TypeAlias = int | tuple[int, int]  # (height, width), or one for both
Pads: TypeAlias = Literal["same", "valid"] | tuple[tuple[int, int], tuple[int, int]]  # ((top, bottom), (left, right))
OutType: TypeAlias = (
    str | int | Sequence[str | int | None]
)  # by name or as a member of OperandType; a list has an entry for each output
Scale: TypeAlias = float | Sequence[float | None]
ZeroPoint: TypeAlias = int | Sequence[int | None]
