"""Families of operations with similar costs, and the work of each operation of a model.

Costs are measured for each family, not for each of the hundred operations. Within a family, the time depends on the
multiplications, the bytes read and written, and the sequential iterations. Control flow costs its subgraphs as often as
they run.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from nnhal.base.brief import with_count
from nnhal.base.codes import TYPE_FACTS, OperandType, OperationType
from nnhal.base.operands import UnknownValue
from nnhal.model.control import MOST, NAMES, iterations, parts_of, subgraphs_inside
from nnhal.model.graph import Model, Operation
from nnhal.model.outline import outline
from nnhal.model.parts import live_operands
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound

FAMILIES = (  # as records name them; "pointwise" is a convolution whose window is one pixel
    *("pointwise", "convolution", "fully_connected", "batch_matmul", "depthwise", "grouped", "transpose_conv", "pool"),
    *("add", "relu", "logistic", "quantize", "softmax", "mean", "reshape", "transpose", "pad", "resize", "topk"),
    "lstm",
)
# of values, measured separately; "dynamic": float32 quantised to 8 bits at execution, with the layers of these integers
KINDS = ("float32", "relaxed", "quant8", "quant8_signed", "dynamic")
_KIND: dict[int, str] = {
    OperandType.TENSOR_QUANT8_ASYMM: "quant8",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "quant8_signed",
    OperandType.TENSOR_QUANT8_SYMM: "quant8_signed",
}
LIGHT = OperandType.INT32, OperandType.BOOL, OperandType.TENSOR_INT32  # types of arguments other than the data


class OperationWork(NamedTuple):
    """The work of one operation: its family (or ""), the kind of its values, multiplications, bytes.

    turns: iterations over a sequence, each of which waits for the one before. elements: those read and written. inside:
    the subgraphs of control flow. iterations: of a WHILE, else None. assumed: whether they are an assumption.
    """

    family: str
    kind: str
    macs: int
    bytes: int
    turns: int = 1
    elements: int = 0
    inside: "tuple[SubgraphWork, ...]" = ()
    iterations: int | None = None
    assumed: bool = False

    def total(self, price: "Callable[[OperationWork], float]") -> float:
        """Return the price of the operation, and of those inside as often as they run.

        price: of one run of an operation without those inside.
        """
        return price(self) + sum(each.runs * sum(work.total(price) for work in each.works) for each in self.inside)


class SubgraphWork(NamedTuple):
    """The work of a subgraph of control flow. runs: how often it runs in one execution of the operation."""

    runs: float
    works: tuple[OperationWork, ...]


def with_inside(works: Iterable[OperationWork]) -> Iterator[OperationWork]:
    """Yield operations, each with those inside it, once whatever their number of runs."""
    for work in works:
        yield work
        for each in work.inside:
            yield from with_inside(each.works)


class Loop(NamedTuple):
    """The predicted iterations of a WHILE.

    Attributes:
        operation: The number of the operation of the main subgraph that it is, or is inside.
        depth: How many operations of control flow it is inside.
        iterations: How often its body runs.
        assumed: Whether that is an assumption, because the count is known only at execution, or is too great to count.
    """

    operation: int
    depth: int
    iterations: int
    assumed: bool

    def __str__(self) -> str:
        where = f"{'a loop inside ' * bool(self.depth)}#{self.operation}"
        count = with_count(self.iterations, "iteration")
        return f"{where}: predicted for {count}{' (assumed: known only at execution, or too many to count)' * self.assumed}"


def loops_of(model: Model) -> Iterator[Loop]:
    """Yield the loops of a model, each before those inside it."""

    def of(operation: int, depth: int, work: OperationWork) -> Iterator[Loop]:
        if work.iterations is not None:
            yield Loop(operation, depth, work.iterations, work.assumed)
        for subgraph in work.inside:
            for each in subgraph.works:
                yield from of(operation, depth + 1, each)

    for n in live_operands(model):
        if model.main.operations[n].type in NAMES:
            yield from of(n, 0, work_of_operations(model)[n])


def work_of_operations(model: Model) -> tuple[OperationWork, ...]:
    """Return the work of each operation of the main subgraph; unknown dimensions count as 1. Computed once for a model."""
    found: tuple[OperationWork, ...] | None = model._memo.get("works")
    if found is None:
        found = model._memo["works"] = tuple(_works(model))
    return found


def _works(model: Model) -> Iterator[OperationWork]:
    shown, facts, (quantisations, layers) = outline(model), validate(model).subgraphs[0], _dynamic(model)
    quantised = {n for members in quantisations.values() for n in members}
    values = [(0, 0) if v is None else (math.prod(d or 1 for d in v.shape or ()), width(v.type)) for v in facts.values]
    for n, (operation, bound) in enumerate(zip(model.main.operations, facts.operations, strict=True)):
        touched = [values[i] for i in (*operation.inputs, *operation.outputs)]
        node, family = shown.nodes[n], "" if bound is None else _family(bound)
        elements, bytes = sum(size for size, _ in touched), sum(size * each for size, each in touched)
        count, assumed = iterations(model, n) if operation.type == OperationType.WHILE else (None, False)
        inside = _inside(model, n, count) if operation.type in NAMES and subgraphs_inside(model, n) <= MOST else ()
        kind, turns = _kind(model, operation), _turns(node.name, bound)
        if n in quantised:
            family, kind = "quantize", "dynamic"
            if n not in quantisations:  # the last operation of a quantisation stands for all
                bytes = turns = 0
        elif n in layers:
            kind = "dynamic"
        yield OperationWork(family, kind, shown.macs(node), bytes, turns, elements, inside, count, assumed)


def _dynamic(model: Model) -> tuple[Mapping[int, frozenset[int]], Collection[int]]:
    """Return what is quantised at execution; the search for it is loaded only for models that look like it."""
    if all(operation.type != OperationType.REDUCE_MIN for operation in model.main.operations):
        return {}, ()
    from nnhal.model.dynamic_quantisation import dynamic_operations

    return dynamic_operations(model)


def _inside(model: Model, n: int, count: int | None) -> tuple[SubgraphWork, ...]:
    """Return the work of both subgraphs of a WHILE with so many iterations, or of an IF.

    A loop runs its condition once more than its body. An IF costs the mean of its branches, as the HAL's `ifPerformance`
    defines.
    """
    runs = (0.5, 0.5) if count is None else (count + 1, count)
    models = [each.part.model for each in parts_of(model, n)]
    works = [tuple(work_of_operations(each)[k] for k in live_operands(each)) for each in models]
    return tuple(map(SubgraphWork, runs, works))


def _turns(name: str, bound: Bound | None) -> int:
    if bound is None or "SEQUENCE" not in name:
        return 1
    shape = bound.input.shape or (None,) * 3
    try:
        steps = shape[0 if bound.time_major else 1]
    except UnknownValue:  # known only during an execution
        steps = max(shape[0] or 1, shape[1] or 1)
    return (steps or 1) * (2 if "BIDIRECTIONAL" in name else 1)


def width(type: int) -> int:
    """Return the bytes of an element; 1 for types without elements."""
    facts = TYPE_FACTS.get(type)
    return 1 if facts is None or facts.dtype is None else facts.dtype.itemsize


def _family(bound: Bound) -> str:
    if bound.op.cost != "convolution":
        return bound.op.cost
    filters = bound.filter.shape
    return "pointwise" if filters is not None and filters[1:3] == (1, 1) else "convolution"


def main_type(model: Model, operation: Operation) -> int:
    """Return the type of the operation's first floating-point or quantised operand, or else of its first."""
    operands = model.main.operands
    types = [operands[i].type for i in (*operation.inputs, *operation.outputs)]
    return next((type for type in types if type not in LIGHT), types[0])


def _kind(model: Model, operation: Operation) -> str:
    heavy = main_type(model, operation)
    if heavy in (OperandType.TENSOR_FLOAT32, OperandType.FLOAT32) and model.relaxed:
        return "relaxed"
    return _KIND.get(heavy, "float32")
