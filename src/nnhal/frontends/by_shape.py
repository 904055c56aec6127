"""Models of files whose operations can be expressed only for known sizes of the open dimensions."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from nnhal.base.codes import Lifetime
from nnhal.base.errors import InvalidModel, NnhalError, UnsupportedModel
from nnhal.base.records import replace
from nnhal.frontends.common.inputs import unsupported
from nnhal.model.graph import Model, Operand, Subgraph
from nnhal.model.open import OpenModel

Dims = tuple[int | None, ...]  # None for an open one
Place = tuple[str, int]  # an input and an axis
Longer = tuple[frozenset[Place], int] | None
SEQUENCE = 2, 3  # dimensions of words, or of their features: the second is their number
MOST_SUMS = 6
Alike = Sequence[tuple[str, tuple[tuple[int, int], ...]]]  # see the model's
Import = Callable[[Mapping[str, tuple[int, ...]]], Model]
SAMPLES = (
    (1, 8),
    (2, 16),
    (1, 1),
    (1, 32),
    (1, 64),
    (1, 224),
    (1, 1024),
    (1, 16000),
)  # sizes of axis 0, and of the others


class OpenInputs(NamedTuple):
    """The inputs of a file with their open dimensions.

    alike: see the model's. likely: sizes that the file's constants have: an open dimension may have but one that fits.
    """

    dims: dict[str, Dims]
    alike: Alike = ()
    likely: Sequence[int] = ()

    @property
    def open(self) -> bool:
        """Whether there are open dimensions."""
        return any(None in dims for dims in self.dims.values())

    @property
    def groups(self) -> list[frozenset[Place]]:
        """The open dimensions that have one size each, by name and axis."""
        names = list(self.dims)
        named = [frozenset((names[number], axis) for number, axis in places) for _, places in self.alike]
        known = frozenset().union(*named)
        places = [(name, axis) for name, dims in self.dims.items() for axis, d in enumerate(dims) if d is None]
        return [*named, *(frozenset((place,)) for place in places if place not in known)]

    def sampled(self, first: int, other: int, longer: Longer = None) -> dict[str, tuple[int, ...]]:
        """Return shapes with a size for each open dimension.

        first: the size of axis 0, and of dimensions with its names. longer: a group, and by how much it is longer.
        """
        sizes: dict[Place, int] = {}
        for group in self.groups:
            size = first if any(axis == 0 for _, axis in group) else other
            more = (longer[1] or other) if longer is not None and group == longer[0] else 0
            sizes |= dict.fromkeys(group, size + more)
        return {
            name: tuple(sizes[name, axis] if d is None else d for axis, d in enumerate(dims))
            for name, dims in self.dims.items()
        }

    def sums(self) -> list[Longer]:
        """Return which group may be the sum of another and the length of an input, as a mask over a cache and new words.

        A length of 0 stands for an open one.
        """
        several = [group for group in self.groups if not any(axis == 0 for _, axis in group)]
        lengths = {dims[1] or 0 for dims in self.dims.values() if len(dims) in SEQUENCE}
        found: list[Longer] = [(group, more) for group in several for more in sorted(lengths)]
        return found[:MOST_SUMS] if len(several) > 1 else []


def open_model(inputs: OpenInputs, at: Import, refused: UnsupportedModel | InvalidModel, label: str) -> OpenModel:
    """Return the model of a file that was refused with open dimensions, to be imported for each set of sizes.

    It is imported for a few sizes to see whether any works. at: imports it. Raises UnsupportedModel with the operations
    that no size makes expressible, and `refused` if no size works.
    """
    found: list[tuple[dict[str, tuple[int, ...]], Model]] = []
    refusals = [refused]
    longer: Longer = None
    for tried, sizes in enumerate((*SAMPLES, *((1, size) for size in inputs.likely))):
        shapes = inputs.sampled(*sizes, longer)
        if any(shapes == known for known, _ in found):
            continue
        if len(found) == 2 or (found and tried > 2):
            break
        try:
            found.append((shapes, at(shapes)))
        except NnhalError as error:
            if not tried and (longer := _sum_that_works(inputs, at, found)) is not None:
                continue
            if isinstance(error, UnsupportedModel | InvalidModel):  # else sizes that this file cannot have
                refusals.append(error)
                _raise_if_always(refusals, label)
    if not found:
        raise refused
    samples = [model for _, model in found]
    if len(samples[0].main.inputs) - len(samples[0].states) != len(inputs.dims):  # several with the same name
        raise refused
    return _outlined(inputs, samples, at)


def _sum_that_works(inputs: OpenInputs, at: Import, found: list[tuple[dict[str, tuple[int, ...]], Model]]) -> Longer:
    """Return the first of `OpenInputs.sums` with which the file is imported, and append that; else None."""
    for longer in inputs.sums():
        shapes = inputs.sampled(*SAMPLES[0], longer)
        with suppress(NnhalError):
            found.append((shapes, at(shapes)))
            return longer
    return None


def _raise_if_always(refusals: Sequence[NnhalError], label: str) -> None:
    """Raise UnsupportedModel if an operation is refused for all sizes."""
    listed = [error.refused for error in refusals if isinstance(error, UnsupportedModel)]
    if len(listed) < len(refusals) or len(listed) <= 2:
        return
    problems: dict[tuple[str, str], list[str]] = {}
    for name, place, why in listed[0]:
        if all((name, place, why) in others for others in listed[1:]):
            problems.setdefault((name, why), []).append(place)
    if problems:
        raise unsupported(label, problems)


def _outlined(inputs: OpenInputs, samples: Sequence[Model], at: Import) -> OpenModel:
    """Derive inputs and outputs from the models for two sets of sizes; differing dimensions are open."""
    model, other = samples[0], samples[-1]
    graph = model.main
    operands: list[Operand] = []
    edge = {}
    for number, index in enumerate((*graph.inputs, *graph.outputs)):
        operand, given = graph.operands[index], number < len(graph.inputs)
        dims = operand.dimensions
        if given:
            if None in inputs.dims.get(operand.name, ()):
                dims = tuple(d or 0 for d in inputs.dims[operand.name])
        elif not (index in model.edge and model.edge[index].scalar):
            dims = _common(dims, other.main.operands[other.main.outputs[number - len(graph.inputs)]].dimensions)
            if len(samples) < 2:
                dims = (0,) * len(dims)
        lifetime = Lifetime.SUBGRAPH_INPUT if given else Lifetime.SUBGRAPH_OUTPUT
        if index in model.edge:
            edge[number] = model.edge[index]
        operands.append(replace(operand, dimensions=dims, lifetime=lifetime))
    taken = range(len(graph.inputs)), range(len(graph.inputs), len(operands))
    return OpenModel(
        Subgraph(tuple(operands), (), tuple(taken[0]), tuple(taken[1])),
        relaxed=model.relaxed,
        extensions=model.extensions,
        states=model.states,
        name=model.name,
        edge=edge,
        metadata=model.metadata,
        notes=model.notes,
        alike=tuple(inputs.alike),
        importer=at,
    )


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions of two samples, 0 for those that differ; () for different ranks."""
    return tuple(a if a == b else 0 for a, b in zip(one, other, strict=True)) if len(one) == len(other) else ()
