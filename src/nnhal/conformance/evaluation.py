"""Evaluates a model with the reference kernels, and estimates how far the results of a correct device may be off.

Method: each operation has a tolerance for its results alone, that of AOSP's test harness and of the order of sums
(`differential.output_buffer_of`); operations that only move or compare elements have none. The model is evaluated
exactly, and `RUNS` times with errors: after each operation, each element is moved up or down at random, by at most the
operation's tolerance. A quantised one is always moved, by one quantisation step: behind a PAD, one that never moved would
have next to no tolerance. So errors pass through the operations that follow as those of a device do, and grow or shrink
with them. An element of an output may differ by `FACTOR` times the largest deviation that it, or its tensor on average,
had in these runs, and by the tolerance of the last operation. A model that only moves elements has no tolerance.
"""

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from nnhal.base.codes import Lifetime
from nnhal.base.errors import OperationFailed
from nnhal.base.operands import Array, Value, quantised
from nnhal.base.records import Record, replace
from nnhal.conformance.differential import open_masks, output_buffer_of
from nnhal.conformance.draw import Call, Cell
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.validate import validate
from nnhal.model.value_rules import results_of
from nnhal.ops.schema import Bound, bind, output_at

RUNS = 6
CONTROL = "IF", "WHILE"
FACTOR = 3.0
MOST_ITERATIONS = 64  # of a loop, which a reduction may have made endless
Room = Array | float


class Evaluated(Record, frozen=True):
    """Outputs, and by how much each element may differ: infinity for any amount."""

    outputs: tuple[Array, ...]
    rooms: tuple[Array, ...]

    def difference(self, number: int, actual: Array | None) -> str:
        """Return how an output differs by more than it may; "" if it does not."""
        wanted, room = self.outputs[number], self.rooms[number]
        if actual is None:
            return f"output {number} has no value"
        if (actual.shape, actual.dtype) != (wanted.shape, wanted.dtype):
            shapes = f"{actual.dtype}{list(actual.shape)}, must be {wanted.dtype}{list(wanted.shape)}"
            return f"output {number} is {shapes}"
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        a, e = actual.astype(wide), wanted.astype(wide)
        with np.errstate(invalid="ignore"):
            fine = (np.abs(a - e) <= room) | (a == e) | (np.isnan(a) & np.isnan(e)) | np.isinf(room)
        if fine.all():
            return ""
        bad = ~fine
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        allowed = float(np.broadcast_to(room, bad.shape)[at])
        return (
            f"output {number} differs in {int(bad.sum())} of {bad.size}, the first at {list(at)}: {a[at]:.7g},"
            f" must be {e[at]:.7g} within {allowed:.3g}"
        )

    def differences(self, actual: Sequence[Array | None]) -> str:
        """Return the difference of the first output that differs; "" if none does."""
        return next(filter(None, (self.difference(n, x) for n, x in enumerate(actual))), "")


def evaluate(model: Model, inputs: Sequence[Array], seed: int = 0, *, in_a_row: bool = False) -> Evaluated:
    """Evaluate a model on inputs.

    Args:
        model: A valid model whose operations have records.
        inputs: An array for each input.
        seed: The seed of the errors.
        in_a_row: Whether the device adds up products one after another (its relaxation "long_sums").

    Raises:
        OperationFailed: The reference fails, too, or a loop makes more than `MOST_ITERATIONS`.
    """
    exact = Evaluation(model, in_a_row=in_a_row)
    wanted = exact.graph(0, inputs)
    last = [exact.last.get(i, 0.0) for i in model.main.outputs]
    moved = []
    for number in range(RUNS):
        run = Evaluation(model, np.random.default_rng([seed, number]), exact.rooms)
        moved.append(run.graph(0, inputs))
    rooms = [output_buffer_from(w, [m[n] for m in moved], last[n]) for n, w in enumerate(wanted)]
    return Evaluated(tuple(wanted), tuple(rooms))


def output_buffer_from(wanted: Array, moved: Sequence[Array], last: Room) -> Array:
    """Return by how much a result may differ, from the results with errors and the tolerance of the last operation."""
    if wanted.dtype.kind == "b":
        flips = [m != wanted if m.shape == wanted.shape else True for m in moved]
        changed = np.any(np.broadcast_arrays(wanted, *flips)[1:], axis=0)
        return np.where(changed, np.inf, 0.0)
    deviation = deviations(wanted, moved)
    return np.asarray(FACTOR * np.maximum(deviation, np.mean(deviation) if deviation.size else 0.0) + last)


def deviations(wanted: Array, moved: Sequence[Array]) -> Array:
    """Return the largest deviation of each element in the runs with errors."""
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    e, most = wanted.astype(wide), np.zeros(wanted.shape)
    for each in moved:
        if each.shape != wanted.shape:
            return np.full(wanted.shape, np.inf)
        with np.errstate(invalid="ignore"):
            found = np.abs(each.astype(wide) - e)
        most = np.maximum(most, np.where(np.isnan(found), 0.0 if np.isnan(e).any() else np.inf, found))
    return most


class Evaluation:
    """One evaluation of a model: exact, or with errors.

    Attributes:
        rooms: The tolerances of the operations, in the order in which they ran.
        last: The tolerances of the main subgraph's operands.
        values: The values of the main subgraph's operands.
    """

    def __init__(
        self,
        model: Model,
        rng: np.random.Generator | None = None,
        rooms: Sequence[Sequence[Room]] = (),
        *,
        in_a_row: bool = False,
    ) -> None:
        self.model, self._rng, self._in_a_row = model, rng, in_a_row
        self._facts = validate(model)
        self._given: Iterator[Sequence[Room]] = iter(rooms)
        self.rooms: list[Sequence[Room]] = []
        self.last: dict[int, Room] = {}
        self.values: dict[int, Array] = {}

    def graph(self, number: int, inputs: Sequence[Array]) -> list[Array]:
        """Evaluate a subgraph, the main one if number is 0."""
        subgraph, binding = self.model.subgraphs[number], self._facts.subgraphs[number]
        arrays: dict[int, Array] = dict(zip(subgraph.inputs, inputs, strict=True))
        for index, operand in enumerate(subgraph.operands):
            if operand.lifetime in CONSTANTS:
                arrays[index] = self.model.constant(operand)
        for place, operation in enumerate(subgraph.operations):
            bound = binding.operations[place]
            if bound is None:
                raise OperationFailed(f"operation {place}: has no reference kernel")
            given = [arrays.get(i) for i in operation.inputs]
            if bound.op.name in CONTROL:
                numbers = [subgraph.operands[i].location.offset + 1 for i in operation.inputs if self._calls(number, i)]
                results = self._flow(bound.op.name, numbers, [x for x in given if x is not None])
                rooms: Sequence[Room] = [0.0] * len(results)
            else:
                known = [
                    None if v is None else v if x is None else replace(v, shape=x.shape, data=x)
                    for v, x in zip([binding.values[i] for i in operation.inputs], given, strict=True)
                ]
                a, results = applied(bound, known)
                rooms = self._rooms(a, known, results)
                results = [self._moved(x, room) for x, room in zip(results, rooms, strict=True)]
            arrays.update(zip(operation.outputs, results, strict=False))
            if number == 0:
                self.last.update(zip(operation.outputs, rooms, strict=False))
        if number == 0:
            self.values = arrays
        return [arrays[i] for i in subgraph.outputs]

    def _calls(self, number: int, index: int) -> bool:
        return self.model.subgraphs[number].operands[index].lifetime == Lifetime.SUBGRAPH

    def _flow(self, name: str, numbers: Sequence[int], given: list[Array]) -> list[Array]:
        if name == "IF":
            chosen = numbers[0] if given[0].reshape(-1)[0] else numbers[1]
            return self.graph(chosen, given[1:])
        carried = len(self.model.subgraphs[numbers[1]].outputs)
        state = list(given)
        for n in count():
            if not self.graph(numbers[0], state)[0].reshape(-1)[0]:
                break
            if n == MOST_ITERATIONS:
                raise OperationFailed(f"WHILE: has made {n} iterations, must end within these")
            state = [*self.graph(numbers[1], state), *state[carried:]]
        return state[:carried]

    def _rooms(self, a: Bound, known: Sequence[Value | None], results: Sequence[Array]) -> Sequence[Room]:
        if self._rng is None:
            rooms: Sequence[Room] = output_buffers(a, known, results, in_a_row=self._in_a_row)
        else:
            rooms = next(self._given, [0.0] * len(results))
        self.rooms.append(rooms)
        return rooms

    def _moved(self, x: Array, room: Room) -> Array:
        return x if self._rng is None else moved(x, room, self._rng)


def applied(bound: Bound, known: Sequence[Value | None]) -> tuple[Bound, list[Array]]:
    """Bind an operation to known values and return its results."""
    a = bind(bound.op, known, bound.outs, bound.name) if bound.deferred or any(v is None for v in known) else bound
    return a, results_of(a, [None if v is None else v.data for v in known])


def output_buffers(
    a: Bound, known: Sequence[Value | None], results: Sequence[Array], *, in_a_row: bool = False
) -> list[Room]:
    """Return the tolerance of each result of one operation, whose inputs are exact."""
    call = as_call(a, known, results)
    if a.op.random:
        return [np.inf] * len(results)
    masks = open_masks(call, len(results))
    rooms: list[Room] = []
    for number, result in enumerate(results):
        if output_at(a.op, number).undefined:
            rooms.append(np.inf)
            continue
        room = None if _only_moves(a, known, number) else output_buffer_of(call, number, result, in_a_row=in_a_row)
        rooms.append(np.where(np.asarray(masks[number], bool), np.inf, 0.0 if room is None else room))
    return rooms


def as_call(a: Bound, known: Sequence[Value | None], results: Sequence[Array]) -> Call:
    """Return a bound operation with known values as a call."""
    cell = Cell(a.op, a.op.forms.index(a.form), int(a.T or 0), "ordinary")
    outputs = tuple(replace(v, shape=x.shape) for v, x in zip(a.outs, results, strict=True))
    return Call(cell, tuple(known), outputs, (), a)


def _only_moves(a: Bound, known: Sequence[Value | None], number: int) -> bool:
    """Whether a result has elements of the inputs, with the same meaning."""
    if not a.op.moves:
        return False
    out = a.outs[number]
    if not quantised(out.type):
        return True
    scales = {(v.scale, v.zero_point) for v in known if v is not None and v.type == out.type}
    return scales <= {(out.scale, out.zero_point)}


def moved(x: Array, room: Room, rng: np.random.Generator) -> Array:
    """Return a result with an error: each element up or down by at most its tolerance.

    A result whose shape depends on values may have another shape than the exact one, and is returned as it is.
    """
    if np.ndim(room) and np.shape(room) != x.shape:
        return x
    size = np.broadcast_to(np.where(np.isfinite(room), room, 0.0), x.shape)
    if x.dtype.kind == "b" or not size.any():
        return x
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        steps = rng.choice([-1, 1], x.shape) * np.rint(size).astype(np.int64)
        return np.clip(x.astype(np.int64) + steps, limits.min, limits.max).astype(x.dtype)
    parts = rng.choice([-1.0, -0.5, 0.5, 1.0], x.shape) * size
    with np.errstate(all="ignore"):
        return (x + parts).astype(x.dtype)
