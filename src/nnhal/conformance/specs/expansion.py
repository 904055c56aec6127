"""Examples of a specification, and the tests that they become."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, Self

from nnhal.base.errors import InvalidArgument
from nnhal.conformance.specs.graph import SpecModel, SpecOperand, UniqueNames, Visible
from nnhal.conformance.specs.variations import (
    ActivationConverter,
    AllInputsAsInternalCoverter,
    AllTensorsAsInputsConverter,
    AxisConverter,
    DataLayoutConverter,
    ParameterAsInputConverter,
    RelaxedModeConverter,
    SkipVariation,
    Variation,
    implicit,
)


class GeneratedTest(NamedTuple):
    """One test: a model that holds inputs and expected outputs, and how it came out of its example."""

    name: str
    model: SpecModel
    example: "SpecExample"
    variations: list[Variation]


class SpecExample(Visible):
    """Inputs and expected outputs of a model, with groups of variations; each choice of one of every group is a test."""

    def __init__(self, model: SpecModel, values: tuple[Any, ...], name: str | None, line: int) -> None:
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

    def AddNchw(self, *operands: SpecOperand, defaultName: str | None = "nhwc", **group: Any) -> Self:
        """Add the layout NCHW."""
        return self._add([DataLayoutConverter("nchw")], operands, defaultName=defaultName, **group)

    def AddRelaxed(self, isRelaxed: bool = True, **group: Any) -> Self:
        """Add relaxed computation."""
        return self._add([RelaxedModeConverter(isRelaxed)], None, **group)

    def AddRelu(self, *operands: SpecOperand, **group: Any) -> Self:
        """Add the activation RELU."""
        return self._add([ActivationConverter("relu")], operands, **group)

    def AddAllActivations(self, *operands: SpecOperand) -> Self:
        """Add every activation."""
        words = sorted(ActivationConverter.known)
        return self._add([ActivationConverter(word) for word in words], operands, includeDefault=False)

    def AddInput(self, *operands: SpecOperand, **group: Any) -> Self:
        """Add constants as inputs."""
        return self._add([ParameterAsInputConverter()], operands, **group)

    def AddAxis(self, axis: Any, *operands: SpecOperand, **group: Any) -> Self:
        """Add axes."""
        return self._axes(operands, lambda origin, dim: [(a, []) for a in _several(axis)], **group)

    def AddAllPositiveAxis(self, *operands: SpecOperand) -> Self:
        """Add every axis, counted from the front."""
        return self._axes(operands, lambda origin, dim: [(a, []) for a in range(dim)], includeDefault=False)

    def AddAllAxis(self, *operands: SpecOperand) -> Self:
        """Add every axis, counted from both ends."""
        return self._axes(operands, lambda origin, dim: [(a, []) for a in range(-dim, dim)], includeDefault=False)

    def AddDims(self, dims: Any, *operands: SpecOperand, **group: Any) -> Self:
        """Add ranks."""
        return self._axes(operands, lambda origin, dim: [_rank(origin, dim, rank) for rank in _several(dims)], **group)

    def AddAllDims(self, *operands: SpecOperand) -> Self:
        """Add every rank."""
        return self._axes(
            operands, lambda origin, dim: [_rank(origin, dim, rank) for rank in range(dim, 0, -1)], includeDefault=False
        )

    def AddAllDimsAndPositiveAxis(self, *operands: SpecOperand) -> Self:
        """Add every rank with every axis, counted from the front."""
        return self._axes(
            operands,
            lambda origin, dim: [(axis, list(range(n))) for n in range(dim) for axis in range(n, dim)],
            includeDefault=False,
        )

    def AddAllDimsAndAxis(self, *operands: SpecOperand) -> Self:
        """Add every rank with every axis, counted from both ends."""
        return self._axes(
            operands,
            lambda origin, dim: [
                (axis, list(range(n))) for n in range(dim) for front in range(n, dim) for axis in (front, front - dim)
            ],
            includeDefault=False,
        )

    def WithMultinomialDistributionTolerance(self, expectedTolerance: float) -> Self:
        """The output is random: compare the frequencies of its classes with this tolerance."""
        if self.expectFailure:
            raise InvalidArgument("example is expected to fail, must not have a tolerance")
        if not isinstance(expectedTolerance, (int, float)) or not expectedTolerance >= 0:
            raise InvalidArgument(f"tolerance is {expectedTolerance!r}, must be a number that is at least 0")
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

    def DisableDynamicOutputShapeVariation(self) -> Self:
        """Of Android 11, and without effect: the index states which tests also run with unknown output dimensions."""
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

    def _add(self, variations: Iterable[Variation], operands: tuple[SpecOperand, ...] | None, **group: Any) -> Self:
        return self.AddVariations(*[variation.Identify(operands) for variation in variations], **group)

    def _axes(
        self,
        operands: tuple[SpecOperand, ...],
        choices: Callable[[int, int], list[tuple[int, list[int]]]],
        **group: Any,
    ) -> Self:
        """Add axes. choices: target and dropped dimensions of each, by the axis and the rank of the specification."""
        ranks = {len(op.type.dimensions) for op in operands if op.type.type != "INT32"}
        if len(ranks) != 1:
            raise InvalidArgument(f"ranks of the operands are {sorted(ranks)}, must be one rank")
        dim = ranks.pop()
        stated = [op.value[0] for op in operands if op.type.type == "INT32" and op.value]
        origin = (stated[-1] if stated else -1) % dim
        variations = [AxisConverter(origin, axis, dim, drop) for axis, drop in choices(origin, dim)]
        return self._add(variations, operands, **group)

    def _pair(self, values: Any) -> tuple[Any, Any]:
        """Values of inputs and of outputs."""
        if isinstance(values, dict):
            for operand in (*self.model.GetInputs(), *self.model.GetOutputs()):
                if operand not in values:
                    raise InvalidArgument(f"example has no values of {operand}, must have those of inputs and outputs")
            return values, values
        if isinstance(values, (tuple, list)) and len(values) == 2:
            return values[0], values[1]
        raise InvalidArgument(
            "example is neither a dictionary nor a pair, must be {operand: values} or (inputs, outputs)"
        )


def _several(numbers: Any) -> list[int]:
    return [numbers] if isinstance(numbers, int) else list(numbers)


def _rank(origin: int, dim: int, rank: int) -> tuple[int, list[int]]:
    """The same axis in fewer dimensions: those in front go first."""
    return origin, [d for d in range(dim) if d != origin][: dim - rank]


def expand(
    specification: str, examples: Iterable[SpecExample], versions: Mapping[str, str | None]
) -> Iterator[GeneratedTest]:
    """The tests of a specification in order. versions: those that are stated for tests by name.

    Raises InvalidArgument with the line of the example.
    """
    names = UniqueNames(separator="_", first=2)
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
    example: SpecExample,
    chosen: tuple[Variation, ...],
    names: UniqueNames,
    versions: Mapping[str, str | None],
) -> Iterator[GeneratedTest]:
    model = example.model.copy({})
    try:
        for variation in chosen:
            model = variation.ApplyTo(model)
    except SkipVariation:
        return
    words = [specification, model.name, example.name, *(variation.name for variation in chosen)]
    name = names.unique("_".join(str(word) for word in words if word not in {None, ""}))
    model.version = None if model.isRelaxed else versions.get(name, model.version)
    yield GeneratedTest(name, model, example, [variation for variation in chosen if variation.kind])


def _combined(examples: Iterable[SpecExample]) -> list[SpecExample]:
    """The examples; those of one model with one name and the same variations are one, at the place of the first."""
    found: dict[Any, SpecExample] = {}
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
