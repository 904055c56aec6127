"""Finds gated recurrent units (GRU) in a model: engines have them whole, NNAPI has only their parts.

One step, where * is elementwise, and `reset` is applied before the product unless `reset_behind`:

    update, reset = LOGISTIC(W x + b + R h + c)
    fresh = TANH(V x + d + reset * (U h + e))
    h' = update * (h - fresh) + fresh

The pattern is the output of `frontends.onnx` for a GRU: products of the input for all steps at once, a SPLIT, then the
steps one after another. Definition: ONNX's operator GRU.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nnhal.base.operands import Shape
from nnhal.base.records import Record
from nnhal.model.composites import CompositeSearch, optional_value
from nnhal.model.graph import Model
from nnhal.ops.schema import F32

Layer = tuple[int, int]  # weights [rows, columns] and bias [rows]


class GatedSequence(Record, frozen=True):
    """A GRU over a sequence. All fields but the sizes are float32 operands of the main subgraph.

    input: the elements of [steps, batch, size]. state: [batch, units] before the first step. of_input, of_state:
    constant weights and biases, first of both gates (update first, 2 * units rows), then of the candidate (units rows).
    reset_behind: whether the reset gate acts after the product of the state. last: the state after the last step.
    states: [steps, batch, units], the state after each step; None if nothing joins them, as for one step.
    """

    input: int
    state: int
    of_input: tuple[Layer, Layer]
    of_state: tuple[Layer, Layer]
    reset_behind: bool
    steps: int
    batch: int
    units: int
    size: int
    last: int
    states: int | None


def gated_sequences(model: Model) -> dict[int, GatedSequence]:
    """Return the GRUs of the main subgraph, by the operation after which they are complete.

    No other operation reads the intermediates of one. An engine that writes it whole needs none of its operations.
    """
    return _GatedSearch(model).found()


class _Unit(NamedTuple):
    """One step, by operands. gates, candidate: the terms of the input."""

    before: int
    after: int
    gates: int
    candidate: int
    of_state: tuple[Layer, Layer]
    reset_behind: bool


class _GatedSearch(CompositeSearch):
    def found(self) -> dict[int, GatedSequence]:
        chains: dict[int, list[_Unit]] = {}  # by the state that each has reached
        for _, _, operation in self.operations("ADD"):
            for step in self._steps(operation.outputs[0]):
                before = chains.get(step.before, [])
                same = before and (before[-1].of_state, before[-1].reset_behind) == (step.of_state, step.reset_behind)
                if same:
                    del chains[step.before]
                chains[step.after] = [*before, step] if same else [step]
        return dict(pair for steps in chains.values() for pair in self._sequence(steps))

    # ------------------------------------------------------------------------------------------------------------ a step

    def _made(self, operand: int, kind: str) -> Iterator[tuple[int, ...]]:
        """Yield the inputs of the operand's operation if it is of this kind, in both orders for sums and products."""
        made = self.maker(operand, kind)
        if made is None or made[0].T != F32:
            return
        inputs = made[1].inputs[: 3 if kind == "FULLY_CONNECTED" else 2]
        yield inputs
        if kind in ("ADD", "MUL"):
            yield inputs[::-1]

    def _piece(self, operand: int, axis: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the input and the number of a piece of a SPLIT into `count` pieces along rows (axis 0) or columns (1)."""
        made = self.maker(operand, "SPLIT")
        if made is None or made[0].T != F32:
            return
        a, operation = made
        matrix = len(self.shape(operation.inputs[0])) == 2
        if matrix and optional_value(a, "axis") in (axis, axis - 2) and len(operation.outputs) == count:
            yield operation.inputs[0], operation.outputs.index(operand)

    def _steps(self, after: int) -> Iterator[_Unit]:
        """Yield the step whose result is the state `after`, if there is one."""
        for faded, fresh in self._made(after, "ADD"):
            for update, change in self._made(faded, "MUL"):
                for before, other in self._made(change, "SUB"):
                    for total in self._made(fresh, "TANH") if other == fresh else ():
                        for candidate, seen in self._made(total[0], "ADD"):
                            yield from self._gated(after, before, update, candidate, seen)

    def _gated(self, after: int, before: int, update: int, candidate: int, seen: int) -> Iterator[_Unit]:
        for (behind, reset, of_candidate), (both, first) in (
            (one, other) for one in self._reset(before, seen) for other in self._piece(update, 1, 2)
        ):
            if first != 0 or next(self._piece(reset, 1, 2), None) != (both, 1):
                continue
            for total in self._made(both, "LOGISTIC"):
                for sums, gates in self._made(total[0], "ADD"):
                    for read, weights, bias in self._made(sums, "FULLY_CONNECTED"):
                        if read == before:
                            layers = (weights, bias), of_candidate
                            yield _Unit(before, after, gates, candidate, layers, behind)

    def _reset(self, before: int, seen: int) -> Iterator[tuple[bool, int, Layer]]:
        """Yield how the candidate reads the state: whether the gate is behind the product, the gate, its layer."""
        for reset, product in self._made(seen, "MUL"):
            for read, weights, bias in self._made(product, "FULLY_CONNECTED"):
                if read == before:
                    yield True, reset, (weights, bias)
        for product, weights, bias in self._made(seen, "FULLY_CONNECTED"):
            for reset, read in self._made(product, "MUL"):
                if read == before:
                    yield False, reset, (weights, bias)

    # -------------------------------------------------------------------------------------------------------- a sequence

    def _sequence(self, steps: Sequence[_Unit]) -> Iterator[tuple[int, GatedSequence]]:
        """Yield a complete sequence of steps and the operation that completes it."""
        found: list[tuple[int, Layer]] = []
        count = len(steps)
        for operands in ([s.gates for s in steps], [s.candidate for s in steps]):
            pieces = [next(self._piece(i, 0, count), None) for i in operands] if count > 1 else [(operands[0], 0)]
            whole = pieces[0] and pieces[0][0]
            if whole is None or pieces != [(whole, n) for n in range(count)]:
                return
            found += [(x, (weights, bias)) for x, weights, bias in self._made(whole, "FULLY_CONNECTED")]
        if len(found) < 2 or found[0][0] != found[1][0]:
            return
        x, of_input = found[0][0], (found[0][1], found[1][1])
        first, last = steps[0], steps[-1]
        constants = (i for pairs in (of_input, first.of_state) for pair in pairs for i in pair)
        if any((value := self.values[i]) is None or value.data is None for i in constants):
            return
        size, state = self.shape(of_input[0][0])[1], self.shape(first.before)
        shapes = [self.shape(i) for i in (first.gates, first.candidate)]
        batch, units = state if len(state) == 2 else (0, 0)
        if shapes != [(batch, 2 * units), (batch, units)]:
            return  # broadcasting has another meaning
        weights = [self.shape(layer[0]) for layer in (*of_input, *first.of_state)]
        if weights != [(2 * units, size), (units, size), (2 * units, units), (units, units)]:
            return  # so has a layer that merges several rows
        joined = self._joined([s.after for s in steps], (count, batch, units)) if count > 1 else None
        ends = [last.after, *([] if joined is None else [joined])]
        place, layers = self._complete(ends, {x, first.before}), (of_input, first.of_state)
        if place is not None:
            sizes = count, batch, units, size
            yield place, GatedSequence(x, first.before, *layers, first.reset_behind, *sizes, last.after, joined)

    def _joined(self, states: Sequence[int], shape: Shape) -> int | None:
        """Return the operand that concatenates all states, each with a dimension for its step."""
        views = (i for n in self.readers.get(states[0], ()) for i in self.main.operations[n].outputs)
        for n in {n: None for i in views for n in self.readers.get(i, ())}:
            a, operation = self.bounds[n], self.main.operations[n]
            if a is None or a.op.name != "CONCATENATION" or optional_value(a, "axis") != 0:
                continue
            *parts, _axis = operation.inputs
            sources = [next(self._made(i, "RESHAPE"), (None,))[0] for i in parts]
            if sources == [*states] and self.shape(operation.outputs[0]) == shape:
                return operation.outputs[0]
        return None

    def _complete(self, ends: Sequence[int], starts: set[int]) -> int | None:
        """Return the last operation that computes the ends from the starts.

        None if another operation reads an intermediate, or reads one of the ends before that.
        """
        inside: set[int] = set()
        pending = list(ends)
        while pending:
            operand = pending.pop()
            n = self.makers.get(operand)
            if operand not in starts and n is not None and n not in inside:
                inside.add(n)
                pending += self.main.operations[n].inputs
        last = max(self.makers[end] for end in ends)
        for n in inside:
            for operand in self.main.operations[n].outputs:
                others = [reader for reader in self.readers.get(operand, ()) if reader not in inside]
                if operand in ends:
                    others = [reader for reader in others if reader < last]
                elif operand in self.main.outputs:
                    return None
                if others:
                    return None
        return last
