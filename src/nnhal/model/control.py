"""Control flow of a model: the subgraphs of an IF or WHILE as models, and the iterations of a WHILE."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import Lifetime, OperationType
from nnhal.base.errors import InvalidModel, NnhalError
from nnhal.base.operands import Array, Shape, UnknownValue, fixed
from nnhal.base.records import Record
from nnhal.model.graph import Model, Operation, Subgraph
from nnhal.model.parts import Part, branch
from nnhal.model.validate import COMPUTED, PARTS, validate

NAMES = {OperationType.IF: ("then", "else"), OperationType.WHILE: ("condition", "body")}
# Subgraphs of one operation that are handled separately, including nested ones; one with several references counts for
# each
MOST = 256
ASSUMED = 10  # iterations of a loop whose count is known only at execution
# Iterations and operations of a model that are computed to count iterations, and elements of each value for that
MOST_ITERATIONS, MOST_COMPUTED, SMALL = 1000, 4000, 64


def subgraphs_inside(model: Model, n: int) -> int:
    """Count the subgraphs inside an operation; one with several references counts for each."""
    known: dict[int, int] = {}

    def of(subgraph: Subgraph, operation: Operation) -> int:
        inside = [
            o.location.offset for i in operation.inputs if (o := subgraph.operands[i]).lifetime == Lifetime.SUBGRAPH
        ]
        for number in inside:
            if number not in known:
                inner = model.referenced[number]
                known[number] = 1 + sum(of(inner, each) for each in inner.operations)
        return sum(known[number] for number in inside)

    return of(model.main, model.main.operations[n])


class NamedPart(Record, frozen=True):
    """A subgraph as a model. name: its role for the operation. number: its number in the whole model."""

    name: str
    number: int
    part: Part


def parts_of(model: Model, n: int) -> tuple[NamedPart, NamedPart]:
    """Return both subgraphs of an operation of control flow, with the known shapes of their inputs. Computed once.

    A loop's value has the same shape in each iteration if the body returns the shape that it receives.
    """
    known: dict[int, tuple[NamedPart, NamedPart]] = model._memo.setdefault(PARTS, {})
    if n not in known:
        known[n] = _parts(model, n)
        for each in known[n]:
            each.part.model._memo[COMPUTED] = _left_to_compute(model)
    return known[n]


def _left_to_compute(model: Model) -> list[int]:
    """Return how many operations may still be computed to count iterations; one list for a model and its subgraphs."""
    found: list[int] = model._memo.setdefault(COMPUTED, [MOST_COMPUTED])
    return found


def _parts(model: Model, n: int) -> tuple[NamedPart, NamedPart]:
    main, operation, values = model.main, model.main.operations[n], validate(model).subgraphs[0].values
    loop = operation.type == OperationType.WHILE
    (one, other), given = (operation.inputs[:2], operation.inputs[2:]) if loop else (
        operation.inputs[1:3], operation.inputs[3:],
    )  # fmt: skip
    numbers = [main.operands[i].location.offset for i in (one, other)]
    known = [None if (v := values[i]) is None else v.shape for i in given]
    for attempt in (_carried(model, numbers[1], known) if loop else known, [None] * len(known)):
        parts = [branch(model, number, attempt) for number in numbers]
        try:
            for part in parts:
                validate(part.model)
        except InvalidModel:  # apparently one that never runs
            continue
        first, second = map(NamedPart, NAMES[OperationType(operation.type)], numbers, parts)
        return first, second
    raise AssertionError("the subgraphs' declarations were valid")


def _carried(model: Model, body: int, known: Sequence[Shape | None]) -> list[Shape | None]:
    """Return the constant shapes of a loop's values, as far as they are known."""
    found = list(known)
    changed = len(model.referenced[body].outputs)
    while True:
        part = branch(model, body, found)
        try:
            values = validate(part.model).subgraphs[0].values
        except InvalidModel:
            return [None] * changed + found[changed:]
        place = dict(zip(part.inputs, part.model.main.inputs, strict=True))
        moved = []
        for n, (i, made) in enumerate(zip(model.referenced[body].inputs, part.model.main.outputs, strict=False)):
            end = values[made]
            start = values[place[i]] if i in place else None
            stays = found[n] if start is None else start.shape
            if found[n] is not None and (end is None or end.shape != stays):
                moved.append(n)
        if not moved:
            return found
        for n in moved:
            found[n] = None


def iterations(model: Model, n: int) -> tuple[int, bool]:
    """Return how often a WHILE of the main subgraph runs its body, and whether that is assumed.

    The count is computed if the condition depends on small constants alone, such as a counter and its bound. Else it is
    `ASSUMED`. It is the iterations until then for a loop that has not ended after `MOST_ITERATIONS`, or after the
    operations that `MOST_COMPUTED` leaves for it.
    """
    first, second, *given = model.main.operations[n].inputs
    numbers = [1 + model.main.operands[i].location.offset for i in (first, second)]
    outputs = [model.subgraphs[number].outputs for number in numbers]
    condition = _Slice(model, numbers[0], outputs[0])
    carried = condition.reads
    while True:
        body = _Slice(model, numbers[1], [outputs[1][k] for k in sorted(carried) if k < len(outputs[1])])
        if body.reads <= carried:
            break
        carried |= body.reads
    start = _Slice(model, 0, [given[k] for k in sorted(carried)])
    if start.reads or not (condition.computable and body.computable and start.computable):
        return ASSUMED, True
    each = 1 + condition.count + body.count
    left = _left_to_compute(model)
    left[0] -= start.count
    most = min(MOST_ITERATIONS, left[0] // each)
    if most <= ASSUMED:
        return ASSUMED, True
    count = 0
    try:
        values = dict(zip(sorted(carried), start.run({}), strict=True))
        while condition.run(values)[0].all():
            if count == most:
                return count, True
            values.update(zip(sorted(carried), body.run(values), strict=False))  # those at the end do not change
            count += 1
    except (NnhalError, UnknownValue, ValueError, IndexError, TypeError, ArithmeticError):  # an execution reports it
        return ASSUMED, True
    finally:
        left[0] -= count * each
    return count, False


class _Slice:
    """The operations of a subgraph that some of its operands depend on.

    reads: the subgraph's inputs among these, by place. count: of the operations. computable: whether all are small values
    of known shapes.
    """

    def __init__(self, model: Model, number: int, wanted: Sequence[int]) -> None:
        subgraph, binding = model.subgraphs[number], validate(model).subgraphs[number]
        self._steps: list[tuple[Operation, Any]] = []
        needed = set(wanted)
        for operation, bound in zip(reversed(subgraph.operations), reversed(binding.operations), strict=True):
            if not needed.isdisjoint(operation.outputs):
                needed.update(operation.inputs)
                self._steps.insert(0, (operation, bound))
        values = {i: binding.values[i] for i in needed}
        self._wanted, self._inputs, self.count = wanted, subgraph.inputs, len(self._steps)
        self._constants = {i: v.data for i, v in values.items() if v is not None and isinstance(v.data, np.ndarray)}
        self.reads = {k for k, i in enumerate(subgraph.inputs) if i in needed}
        shapes = (None if v is None else fixed(v.shape) for v in values.values())
        given = {*subgraph.inputs, *self._constants, *(i for operation, _ in self._steps for i in operation.outputs)}
        self.computable = (
            all(shape is not None and math.prod(shape) <= SMALL for shape in shapes)
            and all(bound is not None and not bound.op.context and not bound.deferred for _, bound in self._steps)
            and needed <= given  # the value of a constant may be unreadable
        )

    def run(self, given: Mapping[int, Array]) -> list[Array]:
        """Compute the operands, from the values of the inputs by place."""
        known: dict[int, Any] = self._constants | {self._inputs[k]: given[k] for k in self.reads}
        for operation, bound in self._steps:
            with np.errstate(all="ignore"):
                made = bound.op.kernel(bound, *bound.form.tensors([known[i] for i in operation.inputs]))
            known.update(zip(operation.outputs, made if isinstance(made, tuple | list) else (made,), strict=False))
        return [known[i] for i in self._wanted]
