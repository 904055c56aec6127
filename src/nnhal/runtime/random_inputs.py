"""Random inputs that a model accepts.

Floats are uniform in [-1, 1), types of 8 bits and quantised ones over their range, booleans either value, integers from
0 to 9. Integers and booleans that decide indices, or other values that an execution checks, are drawn from the integers
from 0 to 9 that the model accepts (`model.value_rules`). If elements are counted together, as those of
a mask that becomes a length, all are 1. So are those of masks whose zeros hide values from a softmax; those of masks
whose ones do are 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nnhal.base.errors import InvalidRequest
from nnhal.base.names import short
from nnhal.base.operands import Array
from nnhal.model.graph import Model
from nnhal.model.open import OpenModel
from nnhal.model.value_rules import NOT_QUANTISED, BrokenRule, ValueRules
from nnhal.runtime.arguments import ModelInterface, Spec

MOST = 9  # of a random integer
MOST_OPERATIONS = 20_000  # that a search for inputs that share rules evaluates
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
    others = {edge.given[n]: n for n in sorted({*whole} - {*free})}
    zeros = {at: edge.inputs[n].form.inside(np.zeros_like(drawn[n]), edge.inputs[n].name) for at, n in others.items()}
    for at, fill in rules.unmasked(zeros).items():
        drawn[others[at]] = np.full_like(drawn[others[at]], fill)
    return _AcceptedInputs(rules, edge, drawn, free).drawn() if free else drawn


def _whole(spec: Spec) -> bool:
    """Whether an input has integers or booleans that stand for themselves."""
    return spec.dtype.kind in "iub" and (spec.scale, spec.zero_point) in NOT_QUANTISED


class _AcceptedInputs:
    """The search for inputs that break no rule. Inputs that share no rule are searched for apart."""

    def __init__(self, rules: ValueRules, edge: ModelInterface, arrays: Sequence[Array], free: Sequence[int]) -> None:
        """arrays: all inputs as they were drawn. free: the places of those that may change."""
        self._rules, self._edge, self._arrays = rules, edge, [*arrays]
        self._numbers = {edge.given[n]: n for n in range(len(arrays))}
        self._free = {edge.given[n] for n in free}
        self._left = 0  # operations that the search for a group may still evaluate

    def drawn(self) -> list[Array]:
        """Return all inputs."""
        for places in self._rules.groups(sorted(self._free)):
            self._left = MOST_OPERATIONS
            self._settle([self._numbers[place] for place in places])
        return self._arrays

    def _settle(self, group: Sequence[int]) -> None:
        """Draw inputs: each from the widest range that breaks no rule while the others are at their base."""
        wide = {n: self._arrays[n] for n in group}
        base = {n: self._filled(n, fill) for n, fill in self._base_fills(group).items()}
        self._replace(base)
        found = {n: self._within_range(n, array) for n, array in wide.items()}
        if not self._broken(group, found):
            self._replace(found)

    def _replace(self, found: Mapping[int, Array]) -> None:
        for n, array in found.items():
            self._arrays[n] = array

    def _base_fills(self, group: Sequence[int]) -> dict[int, int]:
        """Return a value for all elements of each input, so that no rule is broken, or 0 if given values break one."""
        tried: list[dict[tuple[int, ...], BrokenRule]] = []
        for fills in _combinations(group):
            broken = self._broken(group, {n: self._filled(n, fill) for n, fill in fills.items()})
            if not broken:
                return fills
            tried.append({rule.operation.outputs: rule for rule in broken})
            if self._left < 0:
                break
        always = [rule for outputs, rule in tried[0].items() if all(outputs in each for each in tried)]
        causes = always[:1] or [rule for each in tried for rule in each.values()]
        places = {place for rule in causes for place in rule.inputs}
        if places - self._free:
            return dict.fromkeys(group, 0)
        names = [short(self._edge.inputs[self._numbers[place]].name) for place in sorted(places)]
        raise InvalidRequest(
            f"input {' and '.join(names)}: no values were found that the model accepts, must be given: "
            f"--input NAME=FILE; {causes[0].why}"
        )

    def _within_range(self, n: int, array: Array) -> Array:
        base = self._arrays[n]
        low = high = int(base.flat[0]) if base.size else 0
        if low > MOST or self._left <= 0 or (low == 1 and self._counts(n)):
            return base
        while low > 0 and self._accepts(n, low - 1):
            low -= 1
        while high < min(MOST, self._most(n)) and self._accepts(n, high + 1):
            high += 1
        return (low + array.astype(np.int64) % (high - low + 1)).astype(array.dtype)

    def _counts(self, n: int) -> bool:
        """Whether elements of an input are counted together: one value depends on several of them."""
        both = self._values(n, np.ones(self._arrays[n].shape))
        for first in _splits(self._arrays[n].shape):
            one, other = self._values(n, first), self._values(n, ~first)
            for i in one.keys() & other.keys() & both.keys():
                b, x, y = both[i], one[i], other[i]
                if x.shape == y.shape == b.shape and ((b != x) & (b != y)).any():
                    return True
        return False

    def _values(self, n: int, array: Array) -> dict[int, Array]:
        among = [self._edge.given[n]]
        self._left -= self._rules.cost(among)
        given = self._inside(among, {n: array.astype(self._arrays[n].dtype)})
        return self._rules.values(given, among) if self._left >= 0 else {}

    def _accepts(self, n: int, fill: int) -> bool:
        return self._left > 0 and not self._broken([n], {n: self._filled(n, fill)})

    def _broken(self, group: Sequence[int], found: Mapping[int, Array]) -> list[BrokenRule]:
        """Return the rules of a group that are broken, those that inputs outside decide too included."""
        among = [self._edge.given[n] for n in group]
        self._left -= self._rules.cost(among)
        return self._rules.broken(self._inside(among, found), among)

    def _most(self, n: int) -> int:
        """Return the greatest value of an input's elements."""
        dtype = self._arrays[n].dtype
        return 1 if dtype.kind == "b" else self._edge.inputs[n].form.most or int(np.iinfo(dtype).max)

    def _filled(self, n: int, fill: int) -> Array:
        array = self._arrays[n]
        return np.full(array.shape, min(fill, self._most(n)), array.dtype)

    def _inside(self, among: Sequence[int], found: Mapping[int, Array]) -> dict[int, Array]:
        """Return the inputs that decide rules of some in the model's types, by their places in it."""
        given = {}
        for place in self._rules.deciding(among):
            n = self._numbers[place]
            spec = self._edge.inputs[n]
            given[place] = spec.form.inside(found.get(n, self._arrays[n]), f"input {n} ({spec.name})")
        return given


def _splits(shape: tuple[int, ...]) -> Iterator[Array]:
    """Yield halves of the elements of an input: the first ones, and every second one along each axis."""
    count = math.prod(shape)
    yield (np.arange(count) < count // 2).reshape(shape)
    for axis, size in enumerate(shape):
        if size > 1:
            every = (np.arange(size) % 2 == 0).reshape([-1] + [1] * (len(shape) - axis - 1))
            yield np.broadcast_to(every, shape)


def _combinations(free: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield values for the elements of inputs: 1, 0, then others for one input."""
    yield dict.fromkeys(free, 1)
    yield dict.fromkeys(free, 0)
    for fill in FILLS:
        for n in free:
            yield dict.fromkeys(free, 1) | {n: fill}
