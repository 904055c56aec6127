"""Random inputs that a model accepts.

Floats are uniform in [-1, 1), quantised types over their range, booleans either value, integers from 0 to 9. Integers
and booleans that decide indices, or other values that an execution checks, are drawn from the part of this range that
the model accepts (`model.value_rules`). If elements are counted together, as those of a mask that becomes a length, all
are 1. So are those of a mask whose zeros hide values from a softmax; those of one whose ones do are 0.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nnhal.base.errors import InvalidRequest, OperationFailed
from nnhal.base.names import short
from nnhal.base.operands import Array
from nnhal.model.graph import Model
from nnhal.model.open import OpenModel
from nnhal.model.value_rules import BrokenRule, ValueRules
from nnhal.runtime.arguments import ModelInterface, Spec

MOST = 9  # of a random integer
FILLS = (1, 0, *range(2, MOST + 1), *(1 << n for n in range(4, 16)))  # values to try for all elements of an input


def random_input(spec: Spec, generator: np.random.Generator) -> Array:
    """Return random data of an input's shape, with 1 for unknown dimensions, whatever its model does with them."""
    shape = shape_of_random(spec)
    if spec.dtype.kind == "f":
        return generator.uniform(-1, 1, shape).astype(spec.dtype)
    if spec.dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(spec.dtype)
    if spec.scale:
        limits = np.iinfo(spec.dtype)
        return generator.integers(limits.min, limits.max, shape, spec.dtype, endpoint=True)
    return generator.integers(0, MOST + 1, shape).astype(spec.dtype)


def shape_of_random(spec: Spec) -> tuple[int, ...]:
    """Return the shape of a random input: 1 for unknown dimensions."""
    return tuple(d or 1 for d in spec.shape or ())


def random_inputs(
    model: Model, generator: np.random.Generator, given: Mapping[int, Array] | None = None
) -> list[Array]:
    """Return random inputs that a model accepts.

    Args:
        model: A model. If its operations depend on open sizes, these are 1.
        generator: Draws the values.
        given: Inputs that are known, by place.

    Returns:
        An array for each input.

    Raises:
        InvalidRequest: No values were found that the model accepts; the message names the input and the rule.
    """
    given = given or {}
    outer = ModelInterface(model.outline() if isinstance(model, OpenModel) else model)
    drawn = [given[n] if n in given else random_input(spec, generator) for n, spec in enumerate(outer.inputs)]
    if all(n in given or not _whole(spec) for n, spec in enumerate(outer.inputs)):
        return drawn
    if isinstance(model, OpenModel):
        model = model.at([array.shape for array in drawn])
    edge, rules = ModelInterface(model), ValueRules.of(model)
    whole = [n for n, spec in enumerate(edge.inputs) if n not in given and _whole(spec)]
    free = [n for n in whole if edge.given[n] in rules.inputs]
    for n in sorted({*whole} - {*free}):
        zeros = edge.inputs[n].form.inside(np.zeros_like(drawn[n]), edge.inputs[n].name)
        fill = rules.unmasked(edge.given[n], zeros)
        if fill is not None:
            drawn[n] = np.full_like(drawn[n], fill)
    return _AcceptedInputs(rules, edge, drawn, free).drawn() if free else drawn


def _whole(spec: Spec) -> bool:
    """Whether an input has integers or booleans that stand for themselves."""
    return spec.dtype.kind in "iub" and not spec.scale


class _AcceptedInputs:
    """The search for inputs that break no rule. Values of all elements that break none are the base of each input."""

    def __init__(self, rules: ValueRules, edge: ModelInterface, arrays: Sequence[Array], free: Sequence[int]) -> None:
        """arrays: all inputs as they were drawn. free: the places of those that may change."""
        self._rules, self._edge, self._arrays, self._free = rules, edge, arrays, free
        self._base = {n: self._filled(n, fill) for n, fill in self._base_fills().items()}

    def drawn(self) -> list[Array]:
        """Return all inputs: each from the widest range that breaks no rule while the others are at their base."""
        found = {n: self._within_range(n) for n in self._free}
        if self._broken(found):
            found = self._base
        return [found.get(n, array) for n, array in enumerate(self._arrays)]

    def _base_fills(self) -> dict[int, int]:
        """Return a value for all elements of each free input, so that no rule is broken."""
        why = None
        for fills in _combinations(self._free):
            broken = self._broken({n: self._filled(n, fill) for n, fill in fills.items()})
            if broken is None:
                return fills
            why = why or broken
        assert why is not None
        names = [short(self._edge.inputs[n].name) for n in self._free if self._edge.given[n] in why.inputs]
        raise InvalidRequest(
            f"input {' and '.join(names)}: no values were found that the model accepts, must be given: --input NAME=FILE, "
            f"or --value NAME=N makes it a constant; {why.why}"
        )

    def _within_range(self, n: int) -> Array:
        array, base = self._arrays[n], int(self._base[n].flat[0]) if self._base[n].size else 0
        if base == 1 and self._counts(n):
            return self._base[n]
        accepted = [fill for fill in range(MOST + 1) if fill == base or self._accepts(n, fill)]
        low = high = base
        while low - 1 in accepted:
            low -= 1
        while high + 1 in accepted:
            high += 1
        return (low + array.astype(np.int64) % (high - low + 1)).astype(array.dtype)

    def _counts(self, n: int) -> bool:
        """Whether elements of an input are counted together: one value depends on several of them."""
        array = self._arrays[n]
        first = (np.arange(array.size) < array.size // 2).reshape(array.shape)
        try:
            one, other, both = (self._values(n, mask) for mask in (first, ~first, np.ones_like(first)))
        except OperationFailed:
            return False
        return any(((b != x) & (b != y)).any() for x, y, b in zip(one, other, both, strict=True) if x.shape == b.shape)

    def _values(self, n: int, array: Array) -> list[Array]:
        given = self._inside(self._base | {n: array.astype(self._arrays[n].dtype)})
        return self._rules.values(given, [self._edge.given[n]])

    def _accepts(self, n: int, fill: int) -> bool:
        given = self._inside(self._base | {n: self._filled(n, fill)})
        return self._rules.broken(given, [self._edge.given[n]]) is None

    def _broken(self, found: Mapping[int, Array]) -> BrokenRule | None:
        return self._rules.broken(self._inside(found), [self._edge.given[n] for n in self._free])

    def _filled(self, n: int, fill: int) -> Array:
        array = self._arrays[n]
        most = 1 if array.dtype.kind == "b" else self._edge.inputs[n].form.most or fill
        return np.full(array.shape, min(fill, most), array.dtype)

    def _inside(self, found: Mapping[int, Array]) -> dict[int, Array]:
        """Return the inputs that decide rules in the model's types, by their places in it."""
        return {
            at: spec.form.inside(found.get(n, self._arrays[n]), f"input {n} ({spec.name})")
            for n, (at, spec) in enumerate(zip(self._edge.given, self._edge.inputs, strict=True))
            if at in self._rules.inputs
        }


def _combinations(free: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield values for the elements of inputs: 1, 0, then others for one input."""
    yield dict.fromkeys(free, 1)
    yield dict.fromkeys(free, 0)
    for fill in FILLS:
        for n in free:
            yield dict.fromkeys(free, 1) | {n: fill}
