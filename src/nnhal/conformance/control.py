"""Calls of IF and WHILE: small models around drawn calls of other operations, with what comes out of them known.

The branches of an IF are two calls of one operation that read operands of their own, so that it shows which of them ran. A
WHILE counts its rounds beside the call that is its body; counter and results are carried from round to round.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.operands import Array, SubgraphFacts, Value, dtype_of, quantised
from nnhal.base.records import replace
from nnhal.conformance.compare import tolerance
from nnhal.conformance.differential import again, judge, model_of, operands_of, other_constants
from nnhal.conformance.draw import Call, Cell, cells, contents, draw
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.ops import OPS
from nnhal.ops.schema import B8, F16, F32, I32, INT32, SUBGRAPH, bind

CONTROL = "IF", "WHILE"
ROUNDS = 0, 1, 2, 5  # of a loop, in turn
FITTING = 20  # tries for a call that a subgraph can be made of
CHOSEN = 16  # inner operations, of those that a device takes
# Operations of which an error in one round is not magnified by the next.
STEADY = frozenset(("ABS", "ADD", "MAXIMUM", "MINIMUM", "NEG", "RELU", "RELU1", "RELU6", "SUB"))
Source = Callable[[np.random.Generator], Call | None]  # of calls of a kind; None where one does not turn up
Takes = Callable[[Model], bool]  # whether a device takes a model of one operation


class ControlCell(Cell, frozen=True):
    """A cell of IF or WHILE: also the operation inside."""

    inner: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()} of {self.inner}"


class IfCall(Call, frozen=True, kw_only=True):
    """IF over two calls: `then`, and `other` for else."""

    then: Call
    other: Call
    condition: bool
    condition_given: bool

    @property
    def variety(self) -> Any:
        """The condition, and when it is known."""
        return self.condition, self.condition_given

    @property
    def constants(self) -> int:
        """Those of the branches."""
        return self.then.constants + self.other.constants

    def subgraphs(self, b: ModelBuilder) -> list[int]:
        """Each branch gets the operands of both and reads its own."""
        mine, others = _given(self.then), _given(self.other)
        return [_branch(b, self.then, (), others), _branch(b, self.other, mine, ())]


class WhileCall(Call, frozen=True, kw_only=True):
    """WHILE with a call for its body, beside a counter.

    rounds: None for no end. start: what is given for the results before the first round. carried: the place of the inner
    call's input that is its own result of the round before, None for none.
    """

    inner: Call
    counting: "Counting"
    rounds: int | None
    limit_given: bool
    start: tuple[Value, ...]
    carried: int | None

    @property
    def variety(self) -> Any:
        """How often it goes round."""
        return self.rounds

    @property
    def constants(self) -> int:
        """Those of the body."""
        return self.inner.constants

    @property
    def read(self) -> list[Value]:
        """What the body reads and does not change."""
        return [v for p in self.inner.given if p != self.carried and (v := self.inner.inputs[p]) is not None]

    def subgraphs(self, b: ModelBuilder) -> list[int]:
        """Condition and body."""
        return [self._condition(b), self._body(b)]

    def _condition(self, b: ModelBuilder) -> int:
        sub = b.subgraph()
        counter, *_ = inputs = [_operand(sub, value) for value in self._carried_and_read()]
        goes_on = sub.operand(B8, (1,))
        sub.operation(self.counting.comparison, [counter, inputs[1 + len(self.start)]], [goes_on])
        return sub.finish_subgraph(inputs, [goes_on])

    def _body(self, b: ModelBuilder) -> int:
        sub = b.subgraph()
        counter = _operand(sub, self.counting.number(0))
        indices, given, made = operands_of(self.inner, sub)
        read = dict(zip(self.inner.given, given, strict=True))
        before = [_operand(sub, value) for value in self.start] if self.carried is None else [read.pop(self.carried)]
        limit = _operand(sub, self.counting.number(0))
        on = self.counting.steps(sub, counter)
        sub.operation(self.inner.cell.op.code, indices, made)
        return sub.finish_subgraph([counter, *before, limit, *read.values()], [on, *made])

    def _carried_and_read(self) -> list[Value]:
        return [self.counting.number(0), *self.start, self.counting.number(0), *self.read]


class Counting(NamedTuple):
    """How a loop counts: the type of its counter, what compares that with its limit, and what takes it one on."""

    kind: int
    comparison: str
    step: str

    def number(self, n: float) -> Value:
        """A value of the counter."""
        return Value(self.kind, (1,), data=np.full(1, n, dtype_of(self.kind)))

    def limit(self, rounds: int | None) -> Value:
        """The limit of so many rounds from 0 on; None for one that is not met."""
        down = self.step == "SUB"
        if rounds is not None:
            return self.number(-rounds if down else rounds)
        if self.comparison == "NOT_EQUAL":
            return self.number(-1)
        ends: Any = np.finfo(np.float32) if self.kind == F32 else np.iinfo(np.int32)
        return self.number(ends.min if down else ends.max)

    def steps(self, b: ModelBuilder, counter: int) -> int:
        """The operation that takes it one on; returns its result."""
        on = b.operand(self.kind, (1,))
        one = b.constant(self.kind, self.number(1).array)
        b.operation(self.step, [counter, one, b.constant(INT32, 0)], [on])
        return on

    def models(self) -> Iterator[Model]:
        """One for each of both operations."""
        b = ModelBuilder(self.comparison)
        numbers, goes_on = [b.operand(self.kind, (1,)) for _ in range(2)], b.operand(B8, (1,))
        b.operation(self.comparison, numbers, [goes_on])
        yield b.finish(numbers, [goes_on])
        b = ModelBuilder(self.step)
        counter = b.operand(self.kind, (1,))
        yield b.finish([counter], [self.steps(b, counter)])


COUNTINGS = tuple(
    Counting(kind, *how) for kind in (I32, F32) for how in (("LESS", "ADD"), ("GREATER", "SUB"), ("NOT_EQUAL", "ADD"))
)


# ---------------------------------------------------------------------------------------------------- putting together


def if_call(then: Call, other: Call, condition: bool, *, given: bool) -> IfCall:
    """IF over two calls of the same form. given: the condition is, at run time."""
    operands = [*_given(then), *_given(other)]
    branches = [_facts(n, operands, then.outputs) for n in range(2)]
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
    counting: Counting,
    rounds: int | None,
    start: Sequence[Value],
    *,
    given: bool,
    carried: int | None = None,
) -> WhileCall:
    """WHILE with a call for its body. given: the limit of its counter is, at run time. Otherwise as `WhileCall`."""
    read = [v for p in inner.given if p != carried and (v := inner.inputs[p]) is not None]
    counter, limit = counting.number(0), counting.limit(rounds)
    operands = [counter, *start, limit, *read]
    made = (replace(counter, data=None), *inner.outputs)
    goes_on = Value(B8, (1,))
    inputs = [_facts(0, operands, [goes_on]), _facts(1, operands, made), *operands]
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


def endless(call: WhileCall) -> WhileCall:
    """The same with no end, as far as is given at run time."""
    return while_call(call.inner, call.counting, None, call.start, given=True, carried=call.carried)


def _of(inner: Call, name: str, inputs: Sequence[Value], outputs: Sequence[Value], given: tuple[int, ...]) -> Any:
    record = OPS[name]
    cell = ControlCell(record, 0, inner.cell.kind, inner.cell.values, inner.cell.op.name)
    return cell, tuple(inputs), tuple(outputs), given, bind(record, inputs, outputs)


def _facts(index: int, inputs: Sequence[Value], outputs: Sequence[Value]) -> Value:
    return Value(SUBGRAPH, data=SubgraphFacts(index, tuple(inputs), tuple(outputs)))


def _given(call: Call) -> list[Value]:
    return [v for p in call.given if (v := call.inputs[p]) is not None]


def _operand(b: ModelBuilder, value: Value) -> int:
    return b.operand(value.type, value.known, value.scale, value.zero_point, channel=value.channel)


def _branch(b: ModelBuilder, call: Call, before: Sequence[Value], behind: Sequence[Value]) -> int:
    """A call as a subgraph that has further inputs before and behind those that it reads."""
    sub = b.subgraph()
    first = [_operand(sub, value) for value in before]
    indices, given, made = operands_of(call, sub)
    last = [_operand(sub, value) for value in behind]
    sub.operation(call.cell.op.code, indices, made)
    return sub.finish_subgraph([*first, *given, *last], made)


@operands_of.register(IfCall)
@operands_of.register(WhileCall)
def _operands(call: IfCall | WhileCall, b: ModelBuilder) -> tuple[list[int], list[int], list[int]]:
    numbers = iter(call.subgraphs(b))
    indices = []
    for place, value in enumerate(call.inputs):
        assert value is not None
        if isinstance(value.data, SubgraphFacts):
            indices.append(b.subgraph_operand(SUBGRAPH, next(numbers)))
        elif place in call.given:
            indices.append(_operand(b, value))
        else:
            indices.append(b.constant(value.type, value.array))
    outputs = [b.operand(v.type, [d or 0 for d in v.shape or ()], v.scale, v.zero_point) for v in call.outputs]
    return indices, [indices[place] for place in call.given], outputs


# -------------------------------------------------------------------------------------------------------- other values


@again.register
def _again_if(call: IfCall, rng: np.random.Generator) -> IfCall:
    condition = call.condition is not call.condition_given  # the other one, where it is given
    return if_call(again(call.then, rng), again(call.other, rng), condition, given=call.condition_given)


@again.register
def _again_while(call: WhileCall, rng: np.random.Generator) -> WhileCall:
    rounds = call.rounds
    if call.limit_given and rounds is not None:
        rounds = ROUNDS[(ROUNDS.index(rounds) + 1) % len(ROUNDS)]
    inner = again(call.inner, rng)
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


@judge.register
def _judge_if(
    call: IfCall, wanted: Sequence[Array | None], actual: Sequence[Array | None], relaxations: Sequence[str] = ()
) -> str:
    return judge(call.then if call.condition else call.other, wanted, actual, relaxations)


@judge.register
def _judge_while(
    call: WhileCall, wanted: Sequence[Array | None], actual: Sequence[Array | None], relaxations: Sequence[str] = ()
) -> str:
    for number, (w, a) in enumerate(zip(wanted, actual, strict=True)):
        if w is None or a is None or (a.shape, a.dtype) != (w.shape, w.dtype):
            return f"output {number} is {_shown(a)}, must be {_shown(w)}"
    if wanted[0] is None or actual[0] is None or wanted[0] != actual[0]:
        return f"output 0 (the counter) is {_shown(actual[0])}, must be {_shown(wanted[0])}"
    if call.rounds and call.carried is None:
        problem = judge(call.inner, wanted[1:], actual[1:], relaxations)
        return problem and f"after {call.rounds} rounds, of what the body gives: {problem}"
    for number, (w, a) in enumerate(zip(wanted[1:], actual[1:], strict=True), 1):
        bad = ~_near(call, number, w, a)
        if bad.any():
            return f"after {call.rounds} rounds: output {number} differs in {int(bad.sum())} of {bad.size}"
    return ""


def _near(call: WhileCall, number: int, wanted: Any, actual: Any) -> Array:
    """Which elements are near enough: errors of as many rounds as there were; none is nothing but the start."""
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
    """Where calls of IF or WHILE come from: of operations that a device takes by themselves, else of ADD."""
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
    """What may stand in a subgraph, and a model of each by itself."""
    rng = np.random.default_rng(0)
    inner = [cell for cell in cells() if cell.values == "ordinary" and not cell.op.random]
    return [(cell, model_of(call)) for cell in inner if (call := _fitting(cell, rng)) is not None]


def _ifs(cell: Cell, n: int) -> Source:
    def make(rng: np.random.Generator) -> Call | None:
        call = _fitting(cell, rng)
        return call and if_call(call, again(call, rng), n % 2 == 0, given=n % 4 < 3)

    return make


def _whiles(cell: Cell, counting: Counting, n: int) -> Source:
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
    """A call with something to give it and nothing empty, which a subgraph can be made of; None where none turns up."""
    for _ in range(FITTING):
        call = draw(cell, rng)
        if call.given and all(v.array.size for v in _given(call)):
            return call
    return None
