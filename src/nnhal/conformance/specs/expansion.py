"""Examples of a specification, and the tests that they become."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, Self

from nnhal.base.errors import InvalidArgument
from nnhal.conformance.specs.graph import Model, Names, Operand, Visible
from nnhal.conformance.specs.variations import (
    ActivationConverter,
    AllInputsAsInternalCoverter,
    AllTensorsAsInputsConverter,
    AxisConverter,
    DataLayoutConverter,
    ParameterAsInputConverter,
    RelaxedModeConverter,
    Skip,
    Variation,
    implicit,
)


class Test(NamedTuple):
    """One test: a model that holds inputs and expected outputs, and how it came out of its example."""

    name: str
    model: Model
    example: "Example"
    variations: list[Variation]


class Example(Visible):
    """Inputs and expected outputs of a model, with groups of variations; each choice of one of every group is a test."""

    def __init__(self, model: Model, values: tuple[Any, ...], name: str | None, line: int) -> None:
        self.model, self.name, self.line = model, name, line
        self.values = [self._pair(each) for each in values]
        self.variations: list[list[Variation]] = []
        self.expectedMultinomialDistributionTolerance: float = 0
        self.expectFailure = False
        self.testLifeTimeVariation = True

    def AddVariations(self, *variations: Any, includeDefault: bool = True, defaultName: str | None = None) -> Self:
        """Add a group of variations, with no change as its first one unless that is left out."""
        group = [Variation(defaultName)] if includeDefault else []
        self.variations.append(group + [implicit(variation) for variation in variations])
        return self

    def AddNchw(self, *operands: Operand, includeDefault: bool = True, defaultName: str | None = "nhwc") -> Self:
        """Add the layout NCHW."""
        return self._add([DataLayoutConverter("nchw")], operands, includeDefault, defaultName)

    def AddRelaxed(self, isRelaxed: bool = True, includeDefault: bool = True, defaultName: str | None = None) -> Self:
        """Add relaxed computation."""
        return self._add([RelaxedModeConverter(isRelaxed)], None, includeDefault, defaultName)

    def AddRelu(self, *operands: Operand, includeDefault: bool = True, defaultName: str | None = None) -> Self:
        """Add the activation RELU."""
        return self._add([ActivationConverter("relu")], operands, includeDefault, defaultName)

    def AddAllActivations(self, *operands: Operand) -> Self:
        """Add every activation."""
        return self._add([ActivationConverter(word) for word in sorted(ActivationConverter.known)], operands)

    def AddInput(self, *operands: Operand, includeDefault: bool = True, defaultName: str | None = None) -> Self:
        """Add constants as inputs."""
        return self._add([ParameterAsInputConverter()], operands, includeDefault, defaultName)

    def AddAxis(
        self, axis: Any, *operands: Operand, includeDefault: bool = True, defaultName: str | None = None
    ) -> Self:
        """Add axes."""
        axes = [axis] if isinstance(axis, int) else list(axis)
        return self._axes(lambda origin, dim: [(a, []) for a in axes], operands, includeDefault, defaultName)

    def AddAllPositiveAxis(self, *operands: Operand) -> Self:
        """Add every axis, counted from the front."""
        return self._axes(lambda origin, dim: [(a, []) for a in range(dim)], operands)

    def AddAllAxis(self, *operands: Operand) -> Self:
        """Add every axis, counted from both ends."""
        return self._axes(lambda origin, dim: [(a, []) for a in range(-dim, dim)], operands)

    def AddDims(
        self, dims: Any, *operands: Operand, includeDefault: bool = True, defaultName: str | None = None
    ) -> Self:
        """Add ranks."""
        ranks = [dims] if isinstance(dims, int) else list(dims)
        return self._axes(
            lambda origin, dim: [(origin, _others(origin, dim)[: dim - rank]) for rank in ranks],
            operands,
            includeDefault,
            defaultName,
        )

    def AddAllDims(self, *operands: Operand) -> Self:
        """Add every rank."""
        return self._axes(lambda origin, dim: [(origin, _others(origin, dim)[:n]) for n in range(dim)], operands)

    def AddAllDimsAndPositiveAxis(self, *operands: Operand) -> Self:
        """Add every rank with every axis, counted from the front."""
        return self._axes(
            lambda origin, dim: [(axis, list(range(n))) for n in range(dim) for axis in range(n, dim)], operands
        )

    def AddAllDimsAndAxis(self, *operands: Operand) -> Self:
        """Add every rank with every axis, counted from both ends."""
        return self._axes(
            lambda origin, dim: [
                (axis, list(range(n))) for n in range(dim) for front in range(n, dim) for axis in (front, front - dim)
            ],
            operands,
        )

    def WithMultinomialDistributionTolerance(self, expectedTolerance: float) -> Self:
        """The output is random: compare the frequencies of its classes with this tolerance."""
        if self.expectFailure:
            raise InvalidArgument("example is expected to fail, must not have a tolerance")
        self.expectedMultinomialDistributionTolerance = expectedTolerance
        return self

    def ExpectFailure(self) -> Self:
        """Compilation or execution must fail."""
        if self.expectedMultinomialDistributionTolerance:
            raise InvalidArgument("example has a tolerance, must not be expected to fail")
        self.expectFailure = True
        return self

    def DisableLifeTimeVariation(self) -> Self:
        """Leave out the two variations that every example of one operation has."""
        self.testLifeTimeVariation = False
        return self

    def complete(self) -> None:
        """Add the variations that every example has, and the names of those that have none."""
        one = len(self.model.operations) == 1
        if self.testLifeTimeVariation and one and not self.expectedMultinomialDistributionTolerance:
            self.AddVariations(AllTensorsAsInputsConverter())
            self.AddVariations(AllInputsAsInternalCoverter())
        for group in self.variations:
            for variation in group:
                if variation.name is None:
                    variation.SetToDefaultName()

    def _add(
        self,
        variations: "list[Any]",
        operands: tuple[Operand, ...] | None,
        includeDefault: bool = False,
        defaultName: str | None = None,
    ) -> Self:
        named = [variation.Identify(operands) for variation in variations]
        return self.AddVariations(*named, includeDefault=includeDefault, defaultName=defaultName)

    def _axes(
        self,
        choices: Callable[[int, int], list[tuple[int, list[int]]]],
        operands: tuple[Operand, ...],
        includeDefault: bool = False,
        defaultName: str | None = None,
    ) -> Self:
        ranks = {len(op.type.dimensions) for op in operands if op.type.type != "INT32"}
        if len(ranks) != 1:
            raise InvalidArgument(f"ranks of the operands are {sorted(ranks)}, must be one rank")
        dim = ranks.pop()
        stated = [op.value[0] for op in operands if op.type.type == "INT32" and op.value]
        origin = (stated[-1] if stated else -1) % dim
        variations = [AxisConverter(origin, axis, dim, drop) for axis, drop in choices(origin, dim)]
        return self._add(variations, operands, includeDefault, defaultName)

    def _pair(self, values: Any) -> tuple[Any, Any]:
        """Values of inputs and of outputs."""
        if isinstance(values, dict):
            for operand in (*self.model.inputs(), *self.model.outputs()):
                if operand not in values:
                    raise InvalidArgument(f"example has no values of {operand}, must have those of inputs and outputs")
            return values, values
        if isinstance(values, (tuple, list)) and len(values) == 2:
            return values[0], values[1]
        raise InvalidArgument(
            "example is neither a dictionary nor a pair, must be {operand: values} or (inputs, outputs)"
        )


def _others(origin: int, dim: int) -> list[int]:
    return [d for d in range(dim) if d != origin]


def expand(specification: str, examples: Iterable[Example], versions: Mapping[str, str | None]) -> Iterator[Test]:
    """The tests of a specification in order. versions: those that are stated for tests by name.

    Raises InvalidArgument with the line of the example.
    """
    names = Names(separator="_", first=2)
    for example in _combined(examples):
        try:
            example.complete()
            for inputs, outputs in example.values:
                example.model.feed(inputs, outputs)
                for chosen in product(*example.variations):
                    yield from _test(specification, example, chosen, names, versions)
        except Exception as error:  # a variation may be the specification's own
            raise at_line(example.line, error) from None


def _test(
    specification: str,
    example: Example,
    chosen: tuple[Variation, ...],
    names: Names,
    versions: Mapping[str, str | None],
) -> Iterator[Test]:
    model = example.model.copy({})
    try:
        for variation in chosen:
            model = variation.ApplyTo(model)
    except Skip:
        return
    words = [specification, model.name, example.name, *(variation.name for variation in chosen)]
    name = names.unique("_".join(filter(None, words)))
    model.version = None if model.isRelaxed else versions.get(name, model.version)
    yield Test(name, model, example, [variation for variation in chosen if variation.kind])


def _combined(examples: Iterable[Example]) -> list[Example]:
    """The examples; those of one model with one name and the same variations are one, at the place of the first."""
    found: dict[Any, Example] = {}
    for example in examples:
        variations = tuple(tuple(map(id, group)) for group in example.variations)
        key = id(example.model), example.name, variations
        if found.setdefault(key, example) is not example:
            found[key].values += example.values
    return list(found.values())


def at_line(line: int, error: Exception) -> InvalidArgument:
    """An error with the line of the specification that it is about."""
    kind = [] if isinstance(error, InvalidArgument) else [type(error).__name__]
    return InvalidArgument(": ".join(filter(None, [str(line), *kind, str(error)])))
