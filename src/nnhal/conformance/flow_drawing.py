"""Draws IF and WHILE whose variables depend on each other: swapped, passed through, summed, nested, growing.

A driver that updates loop variables one after another, or gives two results one memory, is right for a body whose variables
are independent. Each kind here makes one such dependency. Every loop ends: its counter has a limit inside the model.
Values stay near those that the loop begins with: floats and integers are added up in a few iterations, quantised ones
are halved first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Array, Value, dtype_of, quantised
from nnhal.base.records import Record, replace
from nnhal.conformance.control import COUNTINGS, ControlCall, ControlCell, CountingLoop, facts_of, operand_of
from nnhal.model.builder import ModelBuilder
from nnhal.ops import OPS
from nnhal.ops.schema import B8, I32, INT32, bind

CAP = 4  # iterations of a loop whose limit may be any number
ROUNDS = 0, 1, 2, 2, 3, 3, 4, 4  # iterations of other loops
MEETING = 8  # the most by which two counters differ at first
INNER = 2  # the most iterations of a loop in a loop
DATA = 3  # the most variables that are no counters
COUNTERS = [each for each in COUNTINGS if each.kind == I32]  # float ones would have errors; the first counts up
TRUTH = Value(B8, (1,))
NO_ACTIVATION = FIRST_AXIS = Value(INT32, data=np.asarray(0, np.int32))
Numbers = Sequence[int]  # of values in a block


class FlowOperation(Record, frozen=True):
    """An operation in a block. inputs: numbers of the block's values, and constants. blocks: those of IF and WHILE."""

    name: str
    inputs: tuple[int | Value, ...]
    outputs: tuple[Value, ...]
    blocks: "tuple[FlowBlock, ...]" = ()

    def add_to(self, b: ModelBuilder, known: Numbers) -> list[int]:
        """Add the operation to a model; return its results. known: the operands of the block's values."""
        indices = [known[n] if isinstance(n, int) else _constant(b, n) for n in self.inputs]
        place = int(self.name == "IF")  # of the subgraphs among the inputs
        inside = [b.subgraph_operand(OperandType.SUBGRAPH, each.add_to(b)) for each in self.blocks]
        outputs = [operand_of(b, value) for value in self.outputs]
        b.operation(self.name, [*indices[:place], *inside, *indices[place:]], outputs)
        return outputs


class FlowBlock(Record, frozen=True):
    """A subgraph. Its values have numbers: its inputs, then the results of each operation. outputs: numbers."""

    inputs: tuple[Value, ...]
    steps: tuple[FlowOperation, ...]
    outputs: tuple[int, ...]

    @property
    def values(self) -> list[Value]:
        """The facts of all values, by number."""
        return [*self.inputs, *(value for step in self.steps for value in step.outputs)]

    @property
    def results(self) -> list[Value]:
        """The facts of the outputs."""
        return [self.values[n] for n in self.outputs]

    def add_to(self, b: ModelBuilder) -> int:
        """Add the subgraph to a model; return its number."""
        sub = b.subgraph()
        indices = [operand_of(sub, value) for value in self.inputs]
        for step in self.steps:
            indices += step.add_to(sub, indices)
        return sub.finish_subgraph(indices[: len(self.inputs)], [indices[n] for n in self.outputs])


class FlowCall(ControlCall, frozen=True, kw_only=True):
    """IF or WHILE over two drawn blocks. free: the positions of inputs that may have any elements."""

    blocks: tuple[FlowBlock, FlowBlock]
    free: frozenset[int]

    def subgraphs(self, b: ModelBuilder) -> list[int]:
        """Add the blocks."""
        return [block.add_to(b) for block in self.blocks]


class BlockDrawing:
    """A block under construction."""

    def __init__(self, rng: np.random.Generator, inputs: Sequence[Value]) -> None:
        self.rng = rng
        self.values = [replace(value, data=None) for value in inputs]
        self._inputs, self._steps = len(inputs), list[FlowOperation]()

    def add(self, name: str, *inputs: int | Value, out: Value) -> int:
        """Add an operation with one result; return its number."""
        return self.add_step(FlowOperation(name, inputs, (out,)))[0]

    def add_step(self, step: FlowOperation) -> list[int]:
        """Add an operation; return the numbers of its results."""
        self._steps.append(step)
        self.values += step.outputs
        return list(range(len(self.values) - len(step.outputs), len(self.values)))

    def sum(self, a: int, b: int) -> int:
        """Add a sum or a difference; of quantised values half a sum, which is in the range of its type."""
        value = self.values[a]
        if quantised(value.type):
            return self.add("ADD", self._half(a), self._half(b), NO_ACTIVATION, out=value)
        return self.add(self._pick("ADD", "SUB"), a, b, NO_ACTIVATION, out=value)

    def _half(self, a: int) -> int:
        value = self.values[a]
        half = Value(value.type, (1,), 1 / 128, 0, data=np.full(1, 64, value.dtype))
        return self.add("MUL", a, half, NO_ACTIVATION, out=value)

    def same(self, a: int) -> int:
        """Add an operation that returns its input."""
        value = self.values[a]
        name = self._pick(*(name for name in ("RESHAPE", "MAXIMUM", "MINIMUM") if value.type in OPS[name].types))
        if name != "RESHAPE" or None in value.dims:
            return self.add("MAXIMUM" if name == "RESHAPE" else name, a, a, out=value)
        sizes = np.array(value.known, np.int32)
        return self.add("RESHAPE", a, Value(I32, sizes.shape, data=sizes), out=value)

    def mixed(self, data: Numbers, counter: int | None) -> int:
        """Add an operation on two of the values, or on one and the counter.

        Quantised values get no MAXIMUM: it hides most errors, so that those of a correct device look wrong.
        """
        a, b = (int(n) for n in self.rng.choice(data, 2, replace=len(data) < 2))
        value = self.values[a]
        if counter is not None and not quantised(value.type) and self.rng.random() < 0.3:
            if value.type != I32:
                counter = self.add("CAST", counter, out=Value(value.type, (1,)))
            return self.add("ADD", a, counter, NO_ACTIVATION, out=value)
        if quantised(value.type) or self.rng.random() < 0.6:
            return self.sum(a, b)
        return self.add(self._pick("MAXIMUM", "MINIMUM"), a, b, out=value)

    def finish(self, outputs: Numbers) -> FlowBlock:
        """Return the block. An output that is an input or another output too is a copy, as models require."""
        found: list[int] = []
        for n in outputs:
            found.append(self.same(n) if n < self._inputs or n in found else n)
        return FlowBlock(tuple(self.values[: self._inputs]), tuple(self._steps), tuple(found))

    def _pick(self, *names: str) -> str:
        return names[int(self.rng.integers(len(names)))]


# --------------------------------------------------------------------------------------------------------- the kinds

Update = Callable[[BlockDrawing, Numbers, int | None], list[int]]  # a block, its variables, the counter: the next ones


def _swapped(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    return [*reversed(data)]


def _rotated(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    return [*data[1:], data[0]] if b.rng.random() < 0.5 else [data[-1], *data[:-1]]


def _fibonacci(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    return [*data[1:], b.sum(data[0], data[-1])]


def _passed(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    passed, *others = b.rng.permutation(data)
    return [int(n) if n == passed or n not in others[:1] else b.sum(int(n), int(passed)) for n in data]


def _twice(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    made = b.sum(data[0], data[1])
    return [made, made, *(b.sum(n, made) for n in data[2:])]


def _drawn(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    return [b.mixed(data, counter) for _ in data]


def _growing(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    """The first variable gets rows: those of the second one, which changes."""
    first, second, *others = data
    longer = b.add("CONCATENATION", first, second, FIRST_AXIS, out=b.values[first])
    return [longer, b.mixed([second, *others], counter), *(b.sum(n, second) for n in others)]


def _with_if(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    """An IF makes the variables: one branch in the first iteration, the other one in further ones."""
    assert counter is not None
    condition = b.add("EQUAL", counter, COUNTERS[0].number(0), out=TRUTH)
    given = [b.values[n] for n in data]
    blocks = _block(b.rng, given, _fibonacci), _block(b.rng, given, _swapped)
    return b.add_step(FlowOperation("IF", (condition, *data), tuple(given), blocks[:: b.rng.choice([-1, 1])]))


def _with_while(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    """A WHILE makes the variables."""
    given = [b.values[n] for n in data]
    loop = drawn_loop(b.rng, given, _fibonacci if b.rng.random() < 0.5 else _drawn, int(b.rng.integers(1, INNER + 1)))
    inputs = tuple(data[each] if isinstance(each, int) else each for each in loop.operands)
    made = b.add_step(FlowOperation("WHILE", inputs, tuple(loop.body.results), (loop.condition, loop.body)))
    return [made[loop.operands.index(n)] for n in range(len(data))]


def _unchanged(b: BlockDrawing, data: Numbers, counter: int | None) -> list[int]:
    return list(data)


LOOPS: Mapping[str, Update] = {
    "swapped": _swapped,
    "rotated": _rotated,
    "fibonacci": _fibonacci,
    "passed": _passed,
    "twice": _twice,
    "drawn": _drawn,
    "growing": _growing,
    "if": _with_if,
    "while": _with_while,
}
BRANCHES: Mapping[str, tuple[Update, Update]] = {
    "unchanged": (_unchanged, _swapped),
    "exchanged": (_swapped, _drawn),
    "repeated": (_twice, _unchanged),
    "loop": (_with_while, _fibonacci),
}
JOINED = OPS["CONCATENATION"].types  # of variables that grow
KINDS = {**dict.fromkeys(LOOPS, "WHILE"), **dict.fromkeys(BRANCHES, "IF")}  # the operation of each kind


def _block(rng: np.random.Generator, data: Sequence[Value], update: Update) -> FlowBlock:
    b = BlockDrawing(rng, data)
    return b.finish(update(b, range(len(data)), None))


# ---------------------------------------------------------------------------------------------------------- the loops


class DrawnLoop(NamedTuple):
    """A WHILE. operands: numbers of the variables that are no counters, and the values of counters and limits.

    limit: the position of a limit that may be any number, since the condition has another one; None without one.
    """

    operands: tuple[int | Value, ...]
    condition: FlowBlock
    body: FlowBlock
    limit: int | None


def drawn_loop(
    rng: np.random.Generator, data: Sequence[Value], update: Update, rounds: int, how: str = "inside"
) -> DrawnLoop:
    """Draw a loop with a counter among its variables, at any place.

    Args:
        rng: Draws everything.
        data: The facts of the variables that are no counters, with the shapes that the body declares.
        update: Adds what the body does with them.
        rounds: The iterations, unless there are two counters.
        how: One of `CONDITIONS`.
    """
    counting = COUNTERS[int(rng.integers(len(COUNTERS))) if how != "meeting" else 0]
    starts = [counting.number(0)]
    if how == "meeting":
        starts.append(counting.number(int(rng.integers(1, MEETING + 1))))
    variables: list[int | Value] = [*range(len(data))]
    for start in starts:
        variables.insert(int(rng.integers(len(variables) + 1)), start)
    limits = [counting.limit(rounds)] if how in ("limit", "capped") else []
    operands = (*variables, *limits)
    facts = [data[each] if isinstance(each, int) else each for each in operands]
    places = [next(n for n, each in enumerate(variables) if each is start) for start in starts]
    condition = _condition(rng, facts, counting, how, places, rounds)
    b = BlockDrawing(rng, facts)
    first = [variables.index(n) for n in range(len(data))]
    made = dict(zip(first, update(b, first, places[0]), strict=True))
    made[places[0]] = b.add(counting.step, places[0], counting.number(1), NO_ACTIVATION, out=facts[places[0]])
    if how == "meeting":  # the second one comes down by the first one, as it was
        made[places[1]] = b.add("SUB", places[1], places[0], NO_ACTIVATION, out=facts[places[1]])
    body = b.finish([made[n] for n in range(len(variables))])
    return DrawnLoop(operands, condition, body, len(variables) if how == "capped" else None)


CONDITIONS = "inside", "limit", "capped", "meeting"  # where the limit is


def _condition(
    rng: np.random.Generator, facts: Sequence[Value], counting: CountingLoop, how: str, places: Numbers, rounds: int
) -> FlowBlock:
    b = BlockDrawing(rng, facts)
    if how == "meeting":
        return b.finish([b.add("LESS", *places, out=TRUTH)])
    limit: int | Value = counting.limit(rounds) if how == "inside" else len(facts) - 1
    goes_on = b.add(counting.comparison, places[0], limit, out=TRUTH)
    if how == "capped":
        down = counting.step == "SUB"
        cap = b.add("GREATER" if down else "LESS", places[0], counting.number(-CAP if down else CAP), out=TRUTH)
        goes_on = b.add("LOGICAL_AND", goes_on, cap, out=TRUTH)
    return b.finish([goes_on])


# ----------------------------------------------------------------------------------------------------------- the calls


def drawn_flow(
    rng: np.random.Generator, kind: str, first: Value, fitting: Sequence[Value], fresh: Callable[[Value], Array]
) -> FlowCall:
    """Draw an IF or WHILE.

    Args:
        rng: Draws everything.
        kind: One of `KINDS`.
        first: The value of one variable.
        fitting: Values of the same type, quantisation and shape, which others may have.
        fresh: Draws elements like those of a value.

    Raises:
        InvalidModel: the type has none of the operations.
    """
    name = KINDS[kind]
    count = int(rng.integers(2, DATA + 1)) if kind != "rotated" else DATA
    starts, places = _starts(rng, first, fitting, fresh, count)
    if name == "IF":
        condition = Value(B8, (1,), data=np.full(1, rng.random() < 0.5, dtype_of(B8)))
        then, other = (_block(rng, starts, update) for update in BRANCHES[kind])
        given = (
            {0: True, **{1 + n: free for n, free in places.items()}}
            if rng.random() < 0.8
            else {1 + n: free for n, free in places.items()}
        )
        return _call(name, kind, first, [condition, *starts], (then, other), then.results, given)
    how = CONDITIONS[int(rng.integers(len(CONDITIONS)))]
    facts = [
        replace(value, shape=(None, *value.dims[1:])) if kind == "growing" and not n else value
        for n, value in enumerate(starts)
    ]
    loop = drawn_loop(rng, facts, LOOPS[kind], int(rng.choice(ROUNDS[kind == "growing" :])), how)
    operands = [starts[each] if isinstance(each, int) else each for each in loop.operands]
    given = {n: places[each] for n, each in enumerate(loop.operands) if isinstance(each, int) and each in places}
    numbers = [n for n, each in enumerate(loop.operands) if not isinstance(each, int)]
    given |= {n: n == loop.limit for n in numbers if rng.random() < 0.4 or n == loop.limit}
    results = loop.body.results
    if isinstance(loop.operands[len(results) - 1], Value) and rng.random() < 0.5:
        results = results[:-1]  # a counter that no result shows
    return _call(name, kind, first, operands, (loop.condition, loop.body), results, given)


def _starts(
    rng: np.random.Generator, first: Value, fitting: Sequence[Value], fresh: Callable[[Value], Array], count: int
) -> tuple[list[Value], dict[int, bool]]:
    """Return the variables' first values; and by position whether one that is given may have any elements.

    One is `first`; others are the same one, values of the graph, inputs of it and constants.
    """
    starts, given = list[Value](), dict[int, bool]()
    at = int(rng.integers(count))
    for n in range(count):
        way = rng.random()
        if n == at or way < 0.1:
            starts.append(first)
        elif way < 0.4 and fitting:
            starts.append(fitting[int(rng.integers(len(fitting)))])
        else:
            starts.append(replace(first, data=fresh(first)))
            if way > 0.7:
                continue
        given[n] = True
    return starts, given


def _call(
    name: str,
    kind: str,
    first: Value,
    operands: Sequence[Value],
    blocks: tuple[FlowBlock, FlowBlock],
    results: Sequence[Value],
    given: Mapping[int, bool],
) -> FlowCall:
    """Return the call. given: positions among the operands of inputs of the model, and whether they are free."""
    record, place = OPS[name], int(name == "IF")
    facts = [facts_of(n, block.inputs, block.results) for n, block in enumerate(blocks)]
    inputs = (*operands[:place], *facts, *operands[place:])
    moved = {n if n < place else n + 2: free for n, free in given.items()}
    cell = ControlCell(record, 0, first.type, "ordinary", kind)
    bound = bind(record, inputs, results)
    free = frozenset(n for n, free in moved.items() if free)
    return FlowCall(cell, inputs, tuple(results), tuple(sorted(moved)), bound, blocks=blocks, free=free)


def _constant(b: ModelBuilder, value: Value) -> int:
    return b.constant(value.type, value.array, value.scale, value.zero_point)
