"""Rules about values that a model computes from its integer inputs, such as indices: an execution checks them.

The operations between integer inputs and these rules are evaluated with the reference kernels, without layers and the
rest of the model. So the values of inputs can be checked before an execution, and a failure of any device can be
explained. Inputs that hide values from a softmax are found in the same way.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.codes import TYPE_FACTS, OperandType, OperationType
from nnhal.base.errors import InvalidModel, NnhalError, OperationFailed
from nnhal.base.operands import Array, UnknownValue, Value
from nnhal.base.records import replace
from nnhal.model.graph import CONSTANTS, Model, Operation
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound, bind

INTEGERS = frozenset({OperandType.TENSOR_INT32, OperandType.INT32, OperandType.TENSOR_BOOL8, OperandType.BOOL})
BYTES = frozenset({OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED})
NOT_QUANTISED = frozenset({(0.0, 0), (1.0, 0)})  # scales and zero points of integers that stand for themselves
MOST_ELEMENTS = 1 << 20  # of each operand of an operation that is evaluated
HIDDEN = -1000.0  # its exponential is 0
MOST_OPERATIONS = 10_000  # that are evaluated for one check of all rules


class BrokenRule(NamedTuple):
    """A rule that values break.

    why: the operation and the rule. inputs: the places of the inputs that decide it. operation: that has the rule.
    """

    why: str
    inputs: tuple[int, ...]
    operation: Operation


class _DecidedOperation(NamedTuple):
    """An operation on the way to rules. checks: whether it has one. reads: a bit for each input that decides it."""

    operation: Operation
    bound: Bound
    known: tuple[int, ...]  # the operands among its inputs that integer inputs alone decide
    checks: bool
    reads: int


class _Mask(NamedTuple):
    """The use of inputs as a mask.

    operand: what is added to other values; or a condition, and `chosen` the constant that takes their place when it is
    true, or if `when` is False, when it is false.
    """

    inputs: tuple[int, ...]
    operand: int
    chosen: int | None
    when: bool


class _DecidedPart(NamedTuple):
    """Operations in order, and whether each computes or only checks a rule. inputs: the places that decide them."""

    steps: list[tuple[_DecidedOperation, bool]]
    inputs: tuple[int, ...]


class ValueRules:
    """The rules of a model's main subgraph that integer inputs alone decide.

    Attributes:
        inputs: The places of the inputs that decide a rule.
    """

    def __init__(self, model: Model) -> None:
        """model: A valid model."""
        self._model, self._values = model, validate(model).subgraphs[0].values
        self._steps, self._masks = ([], []) if model.emptied else _steps(model, self._values)
        self._makers = {i: n for n, step in enumerate(self._steps) for i in step.operation.outputs}
        self._checks: dict[int, list[int]] = {}
        for n, step in enumerate(self._steps):
            for place in _places(step.reads * step.checks):
                self._checks.setdefault(place, []).append(n)
        self.inputs = tuple(sorted(self._checks))
        self._parts: dict[tuple[int, ...], _DecidedPart] = {}

    @staticmethod
    def of(model: Model) -> "ValueRules":
        """Return the rules of a model; they are looked for once."""
        found: ValueRules | None = model._memo.get("value rules")
        if found is None:
            found = model._memo["value rules"] = ValueRules(model)
        return found

    def groups(self, places: Sequence[int]) -> list[list[int]]:
        """Return some inputs in groups, so that no rule depends on inputs of two groups."""
        wanted = sum(1 << place for place in places)
        group = {place: [place] for place in places}
        for step in self._steps:
            first, *others = _places(step.reads * step.checks & wanted) or [0]
            for other in others:
                if group[other] is not group[first]:
                    few, many = sorted((group[first], group[other]), key=len)
                    many += few
                    group.update(dict.fromkeys(few, many))
        return [sorted(found) for place, found in group.items() if place == min(found)]

    def deciding(self, among: Sequence[int]) -> tuple[int, ...]:
        """Return the places of the inputs that decide the rules that some inputs decide."""
        return self._part(among).inputs

    def cost(self, among: Sequence[int]) -> int:
        """Return the number of operations that a check of the rules that some inputs decide evaluates."""
        return len(self._part(among).steps)

    def broken(self, given: Mapping[int, Array], among: Sequence[int] | None = None) -> list[BrokenRule]:
        """Return the rules that values break. For the parameters, see `values`."""
        return self._evaluated(self._known_part(given, among), given)[1]

    def values(self, given: Mapping[int, Array], among: Sequence[int] | None = None) -> dict[int, Array]:
        """Return the computed values that the rules are about, by the operand; none if a rule is broken.

        Args:
            given: Values in the model's types, by the place of the input. Rules that others decide are not checked.
            among: Check only rules that one of these inputs decides; None for all.
        """
        part = self._known_part(given, among)
        arrays, broken = self._evaluated(part, given)
        return {} if broken else {i: arrays[i] for s, _ in part if s.checks for i in s.known if i in arrays}

    def unmasked(self, zeros: Mapping[int, Array]) -> dict[int, int]:
        """Return the values, 0 or 1, with which masks hide nothing, by the place of the input.

        Masks decide on their own where large negative numbers are added to other values, or take their place, so that
        these have no share of a softmax.

        Args:
            zeros: Inputs that may be masks, with all elements 0, in the model's types, by their places.
        """
        masks = [mask for mask in self._masks if all(place in zeros for place in mask.inputs)]
        hidden = self._hidden(masks, zeros), self._hidden(masks, {n: np.ones_like(x) for n, x in zeros.items()})
        found: dict[int, int] = {}
        for mask, zero, one in zip(masks, *hidden, strict=True):
            for kept, x, y in ((1, zero, one), (0, one, zero)):
                if x is not None and y is not None and x.shape == y.shape and (x & ~y).any():
                    found = dict.fromkeys(mask.inputs, kept) | found
        return found

    def _hidden(self, masks: Sequence[_Mask], given: Mapping[int, Array]) -> list[Array | None]:
        """Return for each use of masks which elements of other values it hides; None if it is unknown."""
        needed = {i for mask in masks for i in (mask.operand, mask.chosen) if i is not None}
        arrays, _ = self._evaluated(self._before(needed, []).steps, given)
        found: list[Array | None] = []
        for mask in masks:
            value = self._array(mask.operand, arrays)
            chosen = None if mask.chosen is None else self._array(mask.chosen, arrays)
            if value is None or (mask.chosen is not None and chosen is None):
                found.append(None)
            elif chosen is None:
                found.append(value <= HIDDEN)
            else:
                hides = np.max(chosen, initial=-np.inf) <= HIDDEN
                found.append((value if mask.when else ~value) if hides else np.zeros_like(value))
        return found

    def _part(self, among: Sequence[int]) -> _DecidedPart:
        """Return the rules that some inputs decide, and the operations before them."""
        key = tuple(among)
        if key not in self._parts:
            self._parts[key] = self._before((), {n for place in key for n in self._checks.get(place, [])})
        return self._parts[key]

    def _known_part(
        self, given: Mapping[int, Array], among: Sequence[int] | None
    ) -> list[tuple[_DecidedOperation, bool]]:
        """Return the same without those that inputs that are not given decide."""
        part = self._part(self.inputs if among is None else among)
        lacking = sum(1 << place for place in part.inputs if given.get(place) is None)
        return [each for each in part.steps if not each[0].reads & lacking] if lacking else part.steps

    def _before(self, operands: Iterable[int], checks: Iterable[int]) -> _DecidedPart:
        """Return the operations before some operands, and before some rules and these, by their numbers."""
        computes = dict.fromkeys(checks, False)
        needed = [*operands, *(i for n in computes for i in self._steps[n].known)]
        while needed:
            n = self._makers.get(needed.pop())
            if n is not None and not computes.get(n):
                computes[n] = True
                needed += self._steps[n].operation.inputs
        reads = 0
        for n in computes:
            reads |= self._steps[n].reads
        return _DecidedPart([(self._steps[n], computes[n]) for n in sorted(computes)], tuple(_places(reads)))

    def _evaluated(
        self, part: Sequence[tuple[_DecidedOperation, bool]], given: Mapping[int, Array]
    ) -> tuple[dict[int, Array], list[BrokenRule]]:
        """Return the values of operands after some operations, and the rules that are broken.

        Operations after a broken rule, or after one that cannot be evaluated, are not evaluated and break none.
        """
        arrays = {self._model.main.inputs[n]: array for n, array in given.items()}
        broken: list[BrokenRule] = []
        unknown: set[int] = set()
        for step, computes in part:
            operation, results = step.operation, None
            if unknown.isdisjoint(operation.inputs):
                try:
                    values = [self._array(i, arrays) for i in operation.inputs]
                    a = self._bound(step, values)
                    results = results_of(a, values) if computes else []
                except (InvalidModel, OperationFailed) as error:
                    broken.append(BrokenRule(str(error), tuple(_places(step.reads)), operation))
                except Exception:  # the execution reports it, if it meets it too
                    results = None
            if results is None:
                unknown.update(operation.outputs)
            else:
                arrays.update(zip(operation.outputs, results, strict=False))
        return arrays, broken

    def _array(self, index: int, arrays: Mapping[int, Array]) -> Array | None:
        """Return the value of an operand, None if it is not evaluated."""
        operand = self._model.main.operands[index]
        constant = operand.lifetime in CONSTANTS and self._model.readable(operand)
        return self._model.constant(operand) if constant else arrays.get(index)

    def _bound(self, step: _DecidedOperation, arrays: Sequence[Array | None]) -> Bound:
        """Bind an operation to its known values. InvalidModel if they break a rule."""
        bound = step.bound
        if not bound.deferred:
            return bound
        values = [self._values[i] for i in step.operation.inputs]
        known = [
            v if v is None or x is None else replace(v, shape=x.shape, data=x)
            for v, x in zip(values, arrays, strict=True)
        ]
        return bind(bound.op, known, bound.outs, bound.name)


def _steps(model: Model, values: Sequence[Value | None]) -> tuple[list[_DecidedOperation], list[_Mask]]:
    """Return the operations that integer inputs alone decide or whose rules they decide, and the uses of masks."""
    main, facts = model.main, validate(model).subgraphs[0]
    beyond = 1 << len(main.inputs)  # the bit of what is not evaluated
    states = {state.input for state in model.states}
    reads: dict[int, int] = {}
    for place, index in enumerate(main.inputs):
        operand = main.operands[index]
        plain = operand.type in BYTES and (operand.scale, operand.zero_point) in NOT_QUANTISED
        whole = (operand.type in INTEGERS or plain) and place not in states
        reads[index] = 1 << place if whole else beyond
    for index, operand in enumerate(main.operands):
        if operand.lifetime in CONSTANTS and not model.readable(operand):
            reads[index] = beyond
    found: list[_DecidedOperation] = []
    masks: list[_Mask] = []
    computed = 0
    for operation, bound in zip(main.operations, facts.operations, strict=True):
        mask = 0
        for index in operation.inputs:
            mask |= reads.get(index, 0)
        evaluated = bound is not None and not bound.op.context and not bound.op.random and bound.op.weights is None
        evaluated = evaluated and all(_is_small(values[i]) for i in (*operation.inputs, *operation.outputs))
        if not evaluated or computed == MOST_OPERATIONS:
            mask |= beyond
        reads.update(dict.fromkeys(operation.outputs, mask))
        if bound is None or bound.op.context:
            continue
        masks += _masks(operation, reads, beyond)
        known = tuple(i for i in operation.inputs if 0 < reads.get(i, 0) < beyond and main.operands[i].type in INTEGERS)
        checks = bound.deferred and bool(known)
        if checks or mask < beyond:
            computed += 1
            decided = 0
            for index in known if mask >= beyond else operation.inputs:
                decided |= reads.get(index, 0)
            found.append(_DecidedOperation(operation, bound, known, checks, decided))
    return found, masks


def _masks(operation: Operation, reads: Mapping[int, int], beyond: int) -> list[_Mask]:
    """Return the uses of inputs as a mask of values that others decide."""
    inputs, found = operation.inputs, []
    uses: list[tuple[int, int, int | None, bool]] = []
    if operation.type == OperationType.ADD:
        uses = [(mask, other, None, False) for mask, other in (inputs[:2], inputs[1::-1])]
    elif operation.type == OperationType.SELECT:
        uses = [(inputs[0], inputs[2 - n], inputs[1 + n], n == 0) for n in (0, 1)]
    for mask, other, chosen, when in uses:
        of_mask, of_other = reads.get(mask, 0), reads.get(other, 0)
        alone = 0 < of_mask < beyond and of_other & ~of_mask
        if alone and (chosen is None or not reads.get(chosen, 0)):
            found.append(_Mask(tuple(_places(of_mask)), mask, chosen, when))
    return found


def _places(bits: int) -> list[int]:
    """Return the places of the bits that are set."""
    found = []
    while bits:
        found.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return found


def _is_small(value: Value | None) -> bool:
    """Whether an operand has few elements; one of unknown dimensions may have."""
    if value is None:
        return True
    facts = TYPE_FACTS.get(value.type)
    size = math.prod(d or 1 for d in value.shape or ())
    return facts is not None and facts.dtype is not None and size <= MOST_ELEMENTS


def results_of(a: Bound, given: Sequence[Array | None]) -> list[Array]:
    """Return the results of a bound operation that calls no subgraph.

    Raises:
        OperationFailed: The reference kernel fails.
    """
    try:
        with np.errstate(all="ignore"):
            results: Any = a.op.kernel(a, *([_NoContext()] if a.op.context else []), *a.form.tensors(given))
    except NnhalError:
        raise
    except (UnknownValue, ValueError, IndexError, TypeError, ArithmeticError) as error:
        raise OperationFailed(f"{a.name}: {error}") from error
    return (list(results) if isinstance(results, tuple | list) else [results])[: len(a.outs)]


class _NoContext:
    """The context of operations that call no subgraph."""

    call: Callable[..., Any]
