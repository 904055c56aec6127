"""Calls of IF and WHILE: small models around drawn calls of other operations, with known results.

The branches of an IF are two calls of one operation with separate operands, so the result shows which of them ran. The
body of a WHILE is a call and a counter of its iterations; both counter and results are carried from one iteration to
the next.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.operands import Array, SubgraphFacts, Value, dtype_of, quantised
from nnhal.base.records import replace
from nnhal.conformance.compare import tolerance
from nnhal.conformance.differential import compare_outputs, model_of, operands_of, other_constants, with_other_values
from nnhal.conformance.draw import Call, Cell, cells, contents, draw
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.ops import OPS
from nnhal.ops.schema import B8, F16, F32, I32, INT32, SUBGRAPH, bind

CONTROL = "IF", "WHILE"
ROUNDS = 0, 1, 2, 5  # numbers of iterations of a loop, used alternately
FITTING = 20  # the most tries for a call that fits in a subgraph
CHOSEN = 16  # the most inner operations, of those that a device supports
# Operations that do not magnify an error of the previous iteration.
STEADY = frozenset(("ABS", "ADD", "MAXIMUM", "MINIMUM", "NEG", "RELU", "RELU1", "RELU6", "SUB"))
Source = Callable[[np.random.Generator], Call | None]  # draws calls of a kind; returns None if it finds none
Takes = Callable[[Model], bool]  # whether a device supports a model of one operation


class ControlCell(Cell, frozen=True):
    """A cell of IF or WHILE, with the operation inside."""

    inner: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()} of {self.inner}"


class ControlCall(Call, frozen=True, kw_only=True):
    """IF or WHILE with its subgraphs."""

    def subgraphs(self, b: ModelBuilder) -> list[int]:
        """Add the subgraphs to a model; return their numbers, in the order of the inputs that refer to them."""
        raise NotImplementedError


class IfCall(ControlCall, frozen=True, kw_only=True):
    """IF over two calls: `then`, and `other` for else."""

    then: Call
    other: Call
    condition: bool
    condition_given: bool

    @property
    def variety(self) -> Any:
        """Return the condition, and whether it is constant."""
        return self.condition, self.condition_given

    @property
    def constants(self) -> int:
        """Count the constants of the branches."""
        return self.then.constants + self.other.constants

    def subgraphs(self, b: ModelBuilder) -> list[int]:
        """Add the branches; each receives the operands of both and reads its own."""
        mine, others = _given(self.then), _given(self.other)
        return [_branch(b, self.then, (), others), _branch(b, self.other, mine, ())]


class WhileCall(ControlCall, frozen=True, kw_only=True):
    """WHILE whose body is a call and a counter.

    rounds: the iterations, None for an endless loop. start: the results before the first iteration. carried: the
    position of the inner call's input that receives its previous result, or None.
    """

    inner: Call
    counting: "CountingLoop"
    rounds: int | None
    limit_given: bool
    start: tuple[Value, ...]
    carried: int | None

    @property
    def variety(self) -> Any:
        """Return the number of iterations."""
        return self.rounds

    @property
    def constants(self) -> int:
        """Count the constants of the body."""
        return self.inner.constants

    @property
    def read(self) -> list[Value]:
        """Return the values that the body reads and does not change."""
        return [v for p in self.inner.given if p != self.carried and (v := self.inner.inputs[p]) is not None]

    def subgraphs(self, b: ModelBuilder) -> list[int]:
        """Add condition and body."""
        return [self._condition(b), self._body(b)]

    def _condition(self, b: ModelBuilder) -> int:
        sub = b.subgraph()
        counter, *_ = inputs = [operand_of(sub, value) for value in self._carried_and_read()]
        goes_on = sub.operand(B8, (1,))
        sub.operation(self.counting.comparison, [counter, inputs[1 + len(self.start)]], [goes_on])
        return sub.finish_subgraph(inputs, [goes_on])

    def _body(self, b: ModelBuilder) -> int:
        sub = b.subgraph()
        counter = operand_of(sub, self.counting.number(0))
        indices, given, made = operands_of(self.inner, sub)
        read = dict(zip(self.inner.given, given, strict=True))
        before = [operand_of(sub, value) for value in self.start] if self.carried is None else [read.pop(self.carried)]
        limit = operand_of(sub, self.counting.number(0))
        on = self.counting.steps(sub, counter)
        sub.operation(self.inner.cell.op.code, indices, made)
        return sub.finish_subgraph([counter, *before, limit, *read.values()], [on, *made])

    def _carried_and_read(self) -> list[Value]:
        return [self.counting.number(0), *self.start, self.counting.number(0), *self.read]


class CountingLoop(NamedTuple):
    """How a loop counts: the type of its counter, the comparison with its limit, and the operation that increments it."""

    kind: int
    comparison: str
    step: str

    def number(self, n: float) -> Value:
        """Return a value of the counter."""
        return Value(self.kind, (1,), data=np.full(1, n, dtype_of(self.kind)))

    def limit(self, rounds: int | None) -> Value:
        """Return the limit for a number of iterations from 0; None for one that is never reached."""
        down = self.step == "SUB"
        if rounds is not None:
            return self.number(-rounds if down else rounds)
        if self.comparison == "NOT_EQUAL":
            return self.number(-1)
        ends: Any = np.finfo(np.float32) if self.kind == F32 else np.iinfo(np.int32)
        return self.number(ends.min if down else ends.max)

    def steps(self, b: ModelBuilder, counter: int) -> int:
        """Add the operation that increments the counter; return its result."""
        on = b.operand(self.kind, (1,))
        one = b.constant(self.kind, self.number(1).array)
        b.operation(self.step, [counter, one, b.constant(INT32, 0)], [on])
        return on

    def models(self) -> Iterator[Model]:
        """Yield a model of each of the two operations."""
        b = ModelBuilder(self.comparison)
        numbers, goes_on = [b.operand(self.kind, (1,)) for _ in range(2)], b.operand(B8, (1,))
        b.operation(self.comparison, numbers, [goes_on])
        yield b.finish(numbers, [goes_on])
        b = ModelBuilder(self.step)
        counter = b.operand(self.kind, (1,))
        yield b.finish([counter], [self.steps(b, counter)])


COUNTINGS = tuple(
    CountingLoop(kind, *how)
    for kind in (I32, F32)
    for how in (("LESS", "ADD"), ("GREATER", "SUB"), ("NOT_EQUAL", "ADD"))
)


# ---------------------------------------------------------------------------------------------------- putting together


def if_call(then: Call, other: Call, condition: bool, *, given: bool) -> IfCall:
    """Make an IF over two calls with one signature. given: whether the condition is an input of the model."""
    operands = [*_given(then), *_given(other)]
    branches = [facts_of(n, operands, then.outputs) for n in range(2)]
    truth = Value(B8, (1,), data=np.full(1, condition, dtype_of(B8)))
    inputs = [truth, *branches, *operands]
    places = tuple(range(0 if given else 3, len(inputs)))
    return IfCall(
        *_of(then, "IF", inputs, then.outputs, tuple(p for p in places if p not in (1, 2))),
        then=then,
        other=other,
        condition=condition,
        condition_given=given,
    )


def while_call(
    inner: Call,
    counting: CountingLoop,
    rounds: int | None,
    start: Sequence[Value],
    *,
    given: bool,
    carried: int | None = None,
) -> WhileCall:
    """Make a WHILE around a call. given: whether the counter's limit is an input of the model.

    The other arguments are those of `WhileCall`.
    """
    read = [v for p in inner.given if p != carried and (v := inner.inputs[p]) is not None]
    counter, limit = counting.number(0), counting.limit(rounds)
    operands = [counter, *start, limit, *read]
    made = (replace(counter, data=None), *inner.outputs)
    goes_on = Value(B8, (1,))
    inputs = [facts_of(0, operands, [goes_on]), facts_of(1, operands, made), *operands]
    places = tuple(p for p in range(2, len(inputs)) if given or p != 3 + len(start))
    return WhileCall(
        *_of(inner, "WHILE", inputs, made, places),
        inner=inner,
        counting=counting,
        rounds=rounds,
        limit_given=given,
        start=tuple(start),
        carried=carried,
    )


def endless_loop(call: WhileCall) -> WhileCall:
    """Make the loop endless, as far as inputs of the model determine that."""
    return while_call(call.inner, call.counting, None, call.start, given=True, carried=call.carried)


def _of(inner: Call, name: str, inputs: Sequence[Value], outputs: Sequence[Value], given: tuple[int, ...]) -> Any:
    record = OPS[name]
    cell = ControlCell(record, 0, inner.cell.kind, inner.cell.values, inner.cell.op.name)
    return cell, tuple(inputs), tuple(outputs), given, bind(record, inputs, outputs)


def facts_of(index: int, inputs: Sequence[Value], outputs: Sequence[Value]) -> Value:
    """Return the value of an input that refers to a subgraph. index: of the subgraph."""
    return Value(SUBGRAPH, data=SubgraphFacts(index, tuple(inputs), tuple(outputs)))


def _given(call: Call) -> list[Value]:
    return [v for p in call.given if (v := call.inputs[p]) is not None]


def operand_of(b: ModelBuilder, value: Value) -> int:
    """Add an operand with the facts of a value; return its index."""
    return b.operand(value.type, [n or 0 for n in value.dims], value.scale, value.zero_point, channel=value.channel)


def _branch(b: ModelBuilder, call: Call, before: Sequence[Value], behind: Sequence[Value]) -> int:
    """Add a call as a subgraph that has further inputs before and after those that it reads."""
    sub = b.subgraph()
    first = [operand_of(sub, value) for value in before]
    indices, given, made = operands_of(call, sub)
    last = [operand_of(sub, value) for value in behind]
    sub.operation(call.cell.op.code, indices, made)
    return sub.finish_subgraph([*first, *given, *last], made)


@operands_of.register
def _operands(call: ControlCall, b: ModelBuilder) -> tuple[list[int], list[int], list[int]]:
    numbers = iter(call.subgraphs(b))
    indices = []
    for place, value in enumerate(call.inputs):
        assert value is not None
        if isinstance(value.data, SubgraphFacts):
            indices.append(b.subgraph_operand(SUBGRAPH, next(numbers)))
        elif place in call.given:
            indices.append(operand_of(b, value))
        else:
            indices.append(b.constant(value.type, value.array, value.scale, value.zero_point))
    outputs = [b.operand(v.type, [d or 0 for d in v.shape or ()], v.scale, v.zero_point) for v in call.outputs]
    return indices, [indices[place] for place in call.given], outputs


# -------------------------------------------------------------------------------------------------------- other values


@with_other_values.register
def _again_if(call: IfCall, rng: np.random.Generator) -> IfCall:
    condition = call.condition is not call.condition_given  # the opposite one, if it is an input
    return if_call(
        with_other_values(call.then, rng), with_other_values(call.other, rng), condition, given=call.condition_given
    )


@with_other_values.register
def _again_while(call: WhileCall, rng: np.random.Generator) -> WhileCall:
    rounds = call.rounds
    if call.limit_given and rounds is not None:
        rounds = ROUNDS[(ROUNDS.index(rounds) + 1) % len(ROUNDS)]
    inner = with_other_values(call.inner, rng)
    start = _start(inner, call.carried, rng)
    return while_call(inner, call.counting, rounds, start, given=call.limit_given, carried=call.carried)


def _start(inner: Call, carried: int | None, rng: np.random.Generator) -> list[Value]:
    if carried is not None:
        value = inner.inputs[carried]
        assert value is not None
        return [value]
    return [replace(v, data=contents(rng, v.type, v.known, "ordinary")) for v in inner.outputs]


@other_constants.register
def _other_if(call: IfCall, rng: np.random.Generator) -> IfCall:
    then, other = other_constants(call.then, rng), other_constants(call.other, rng)
    return if_call(then, other, call.condition is call.condition_given, given=call.condition_given)


@other_constants.register
def _other_while(call: WhileCall, rng: np.random.Generator) -> WhileCall:
    inner = other_constants(call.inner, rng)
    return while_call(inner, call.counting, call.rounds, call.start, given=call.limit_given, carried=call.carried)


# ------------------------------------------------------------------------------------------------------------- judging


@compare_outputs.register
def _judge_if(
    call: IfCall, wanted: Sequence[Array | None], actual: Sequence[Array | None], relaxations: Sequence[str] = ()
) -> str:
    return compare_outputs(call.then if call.condition else call.other, wanted, actual, relaxations)


@compare_outputs.register
def _judge_while(
    call: WhileCall, wanted: Sequence[Array | None], actual: Sequence[Array | None], relaxations: Sequence[str] = ()
) -> str:
    for number, (w, a) in enumerate(zip(wanted, actual, strict=True)):
        if w is None or a is None or (a.shape, a.dtype) != (w.shape, w.dtype):
            return f"output {number} is {_shown(a)}, must be {_shown(w)}"
    if wanted[0] is None or actual[0] is None or wanted[0] != actual[0]:
        return f"output 0 differs in 1 of 1, the counter: {_shown(actual[0])}, must be {_shown(wanted[0])}"
    if call.rounds and call.carried is None:
        problem = compare_outputs(call.inner, wanted[1:], actual[1:], relaxations)
        return problem and f"after {call.rounds} iterations, results of the body: {problem}"
    for number, (w, a) in enumerate(zip(wanted[1:], actual[1:], strict=True), 1):
        bad = ~_near(call, number, w, a)
        if bad.any():
            return f"after {call.rounds} iterations: output {number} differs in {int(bad.sum())} of {bad.size}"
    return ""


def _near(call: WhileCall, number: int, wanted: Any, actual: Any) -> Array:
    """Return which elements are within the error of all iterations; of no iteration, only the start values are."""
    value, rounds = call.outputs[number], call.rounds or 0
    exact = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
    if not rounds or not (quantised(value.type) or value.type in (F32, F16)):
        return np.asarray(exact)
    atol, rtol = tolerance(value.type, False)
    a, w = actual.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(exact | (np.abs(a - w) <= rounds * (atol + rtol * np.abs(w))))


def _shown(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}" + f" {array}" * (array.size == 1)


# ------------------------------------------------------------------------------------------------------------- drawing


def sources(name: str, rng: np.random.Generator, takes: Takes) -> list[Source]:
    """Return functions that draw calls of IF or WHILE, from operations that a device supports alone, else from ADD."""
    fitting = [cell for cell, model in _alone() if takes(model)]
    fitting = fitting or [cell for cell, _ in _alone() if (cell.op.name, cell.kind) == ("ADD", F32)]
    chosen = [fitting[n] for n in rng.permutation(len(fitting))[:CHOSEN]]
    if name == "IF":
        return [_ifs(cell, n) for n, cell in enumerate(chosen * (4 // min(4, len(chosen))))]
    countings = [each for each in COUNTINGS if all(takes(model) for model in each.models())] or [COUNTINGS[0]]
    steady = [cell for cell in fitting if cell.op.name in STEADY]
    several = [*chosen, *(steady[n] for n in rng.permutation(len(steady))[: CHOSEN // 2])]
    several = several * (4 // min(4, len(several)))
    return [_whiles(cell, countings[n % len(countings)], n) for n, cell in enumerate(several)]


@cache
def _alone() -> list[tuple[Cell, Model]]:
    """Return the cells that a subgraph may contain, with a model of each alone."""
    rng = np.random.default_rng(0)
    inner = [cell for cell in cells() if cell.values == "ordinary" and not cell.op.random]
    return [(cell, model_of(call)) for cell in inner if (call := _fitting(cell, rng)) is not None]


def _ifs(cell: Cell, n: int) -> Source:
    def make(rng: np.random.Generator) -> Call | None:
        call = _fitting(cell, rng)
        return call and if_call(call, with_other_values(call, rng), n % 2 == 0, given=n % 4 < 3)

    return make


def _whiles(cell: Cell, counting: CountingLoop, n: int) -> Source:
    def make(rng: np.random.Generator) -> Call | None:
        call, place = _fitting(cell, rng), None
        if cell.op.name in STEADY:
            for _ in range(FITTING):
                place = None if call is None else call.returns_to()
                if place is not None:
                    break
                call = _fitting(cell, rng)
        if call is None or any(v.shape is None or None in v.shape or 0 in v.shape for v in call.outputs):
            return None
        start = _start(call, place, rng)
        return while_call(call, counting, ROUNDS[n % len(ROUNDS)], start, given=n % 5 < 4, carried=place)

    return make


def _fitting(cell: Cell, rng: np.random.Generator) -> Call | None:
    """Draw a non-empty call with an input, from which a subgraph can be made; None if there is none."""
    for _ in range(FITTING):
        call = draw(cell, rng)
        if call.given and all(v.array.size for v in _given(call)):
            return call
    return None
