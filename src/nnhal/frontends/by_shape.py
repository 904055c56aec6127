"""Models of files whose operations can be expressed only for known sizes of the open dimensions."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nnhal.base.codes import Lifetime
from nnhal.base.errors import InvalidModel, NnhalError, UnsupportedModel
from nnhal.base.records import replace
from nnhal.frontends.common.inputs import unsupported
from nnhal.model.graph import Model, Operand, Subgraph
from nnhal.model.open import OpenModel

Dims = tuple[int | None, ...]  # None for an open one
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
    """The inputs of a file with their open dimensions. alike: see the model's."""

    dims: dict[str, Dims]
    alike: Alike = ()

    @property
    def open(self) -> bool:
        """Whether there are open dimensions."""
        return any(None in dims for dims in self.dims.values())

    def sampled(self, first: int, other: int) -> dict[str, tuple[int, ...]]:
        """Return shapes with a size for each open dimension.

        first: the size of axis 0, and of dimensions with its names.
        """
        names = list(self.dims)
        sizes: dict[tuple[str, int], int] = {}
        for _, places in self.alike:
            size = first if any(axis == 0 for _, axis in places) else other
            sizes |= {(names[number], axis): size for number, axis in places}
        return {
            name: tuple(
                sizes.get((name, axis), other if axis else first) if d is None else d for axis, d in enumerate(dims)
            )
            for name, dims in self.dims.items()
        }


def open_model(inputs: OpenInputs, at: Import, refused: UnsupportedModel | InvalidModel, label: str) -> OpenModel:
    """Return the model of a file that was refused with open dimensions, to be imported for each set of sizes.

    It is imported for a few sizes to see whether any works. at: imports it. Raises UnsupportedModel with the operations
    that no size makes expressible, and `refused` if no size works.
    """
    found: list[tuple[dict[str, tuple[int, ...]], Model]] = []
    refusals = [refused]
    for tried, sizes in enumerate(SAMPLES):
        shapes = inputs.sampled(*sizes)
        if any(shapes == known for known, _ in found):
            continue
        if len(found) == 2 or (found and tried > 2):
            break
        try:
            found.append((shapes, at(shapes)))
        except (UnsupportedModel, InvalidModel) as error:
            refusals.append(error)
            _raise_if_always(refusals, label)
        except NnhalError:  # sizes that this file cannot have
            continue
    if not found:
        raise refused
    samples = [model for _, model in found]
    if len(samples[0].main.inputs) - len(samples[0].states) != len(inputs.dims):  # several with the same name
        raise refused
    return _outlined(inputs, samples, at)


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
