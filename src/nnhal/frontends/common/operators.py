"""The facts that an importer knows about each operator of its format: they stand on the operator's decorator."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nnhal.base.records import Struct
from nnhal.frontends.common.integer_ranges import SpanRule

COUNTED = "has an output whose size depends on values, which NNAPI does not support"  # of an operator

Fold = Callable[..., Any]
Count = int | tuple[int, int | None]  # None: any number
Function = TypeVar("Function", bound=Callable[..., Any])


class OperatorFacts(Struct, frozen=True):
    """The facts about an operator.

    Attributes:
        lower: Writes its operations; None for an operator that is only computed at import.
        inputs: The least and the greatest number of inputs; None: any.
        outputs: Those of outputs.
        becomes: The resulting operations, for people.
        single: Whether it is elementwise, so that dimensions can be merged if NNAPI supports at most four.
        fold: Computes it from arrays if all inputs are known at import.
        moves: Like `fold`, for an operator that only moves elements, also those that are known only at execution. In ONNX
            it gets the arrays whose elements move, and the task has the other inputs.
        joins: Whether it moves the elements of all inputs, not only of the first.
        span: The range of its integers; None for an operator that does not compute with 64-bit integers.
        refused: Why it is refused if it is not computed at import and `lower` is None.
    """

    lower: Callable[[Any], None] | None
    inputs: tuple[int, int | None]
    outputs: tuple[int, int | None]
    becomes: str = ""
    single: bool = False
    fold: Fold | None = None
    moves: Fold | None = None
    joins: bool = False
    span: SpanRule | None = None
    refused: str = ""


Facts = TypeVar("Facts", bound=OperatorFacts)


class OperatorTable(dict[str, Facts], Generic[Facts]):
    """The operators of a format by name. Others have facts too: why they are refused.

    kind: the class of the facts. unknown: returns the reason for an operator that is not in the table.
    """

    def __init__(self, kind: type[Facts], unknown: Callable[[str], str]) -> None:
        super().__init__()
        self._kind, self._unknown = kind, unknown

    def __missing__(self, name: str) -> Facts:
        return self._refused(self._unknown(name))

    def _refused(self, reason: str, **facts: Any) -> Facts:
        return self._kind(None, (0, None), (0, None), refused=reason, **facts)

    def refuse(self, reason: str, *names: str) -> None:
        """Register the named operators as refused; an entry replaces that."""
        self.update(dict.fromkeys(names, self._refused(reason)))

    def operator(
        self, *names: str, inputs: Count = 1, outputs: Count = 1, **facts: Any
    ) -> Callable[[Function], Function]:
        """Register a function as the `lower` of the named operators, with their facts."""

        def add(function: Function) -> Function:
            self.update(dict.fromkeys(names, self._kind(function, _range(inputs), _range(outputs), **facts)))
            return function

        return add

    def computed(self, name: str, *, becomes: str, refused: str) -> Callable[[Function], Function]:
        """Register a function as the `fold` of an operator that is only computed at import."""

        def add(function: Function) -> Function:
            self[name] = self._refused(refused, becomes=becomes, fold=function)
            return function

        return add


def _range(count: Count) -> tuple[int, int | None]:
    return (count, count) if isinstance(count, int) else count
