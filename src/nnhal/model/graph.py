"""The model: frozen graphs of operands and operations, as the HAL has them. Made by `model.builder`."""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from nnhal.base.brief import brief, counted, named, tensor
from nnhal.base.codes import Lifetime, operation_name, type_name
from nnhal.base.errors import ContractBroken, InvalidRequest
from nnhal.base.extensions import canonical, moved, prefixes_here
from nnhal.base.kept import kept
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, ChannelQuant, dtype_of
from nnhal.base.records import PartlyCompared, Record, field, replace
from nnhal.base.sealed import sealed
from nnhal.base.values import exact
from nnhal.model.metadata import Metadata

CONSTANTS = frozenset((Lifetime.CONSTANT_COPY, Lifetime.CONSTANT_REFERENCE))


class Location(Record, frozen=True):
    """Bytes of a pool, or of the model's `values` (CONSTANT_COPY), or the number of a subgraph (in `offset`)."""

    pool: int = 0
    offset: int = 0
    length: int = 0


class Operand(PartlyCompared, frozen=True):
    """One operand. A dimension of 0, or no dimensions on a tensor, means unknown until execution.

    name: a label for people, no part of the model's identity.
    """

    type: int
    dimensions: tuple[int, ...] = ()
    scale: float = 0.0
    zero_point: int = 0
    lifetime: Lifetime = Lifetime.TEMPORARY_VARIABLE
    location: Location = Location()
    channel: ChannelQuant | None = None
    extension: bytes | None = None
    name: str = ""

    _not_compared = frozenset({"name"})


class Operation(PartlyCompared, frozen=True):
    """One operation: its type and the indices of its operands in the subgraph."""

    type: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = ""

    _not_compared = frozenset({"name"})


class Subgraph(Record, frozen=True):
    """A graph; operations stand in execution order."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __repr__(self) -> str:
        sizes = {"operand": self.operands, "operation": self.operations, "input": self.inputs, "output": self.outputs}
        return brief("Subgraph", [counted(len(given), what) for what, given in sizes.items()])


class State(PartlyCompared, frozen=True):
    """A value carried from call to call: model input and output by their place, and the bytes it starts with."""

    input: int
    output: int
    initial: Array

    _not_compared = frozenset({"initial"})


class EdgeForm(Record, frozen=True):
    """How applications have an input or output of `main` where the operand has it otherwise.

    scalar: of no dimensions; the operand has one, of 1. wide: of 64-bit integers; the operand has 32 bits.
    """

    scalar: bool = False
    wide: bool = False

    def inside(self, array: Array, where: str) -> Array:
        """A value as the operand has it; InvalidRequest where an integer does not fit."""
        if self.scalar:
            array = array.reshape(1)
        return exact(array, np.int32, where, InvalidRequest) if self.wide else array

    def outside(self, array: Array) -> Array:
        """A value of the operand as the application has it."""
        if self.wide:
            array = array.astype(np.int64)
        return array.reshape(()) if self.scalar else array


class Gone(tuple[Any, ...]):
    """Stands for what a model had and was let go of: whoever asks for any of it gets ContractBroken. why: its message."""

    why: str

    def refuse(self, *_: object) -> NoReturn:
        """Raise it."""
        raise ContractBroken(self.why)

    __getitem__ = __iter__ = __len__ = refuse


def gone(why: str) -> Gone:
    """Nothing, and why there is nothing any more."""
    made = Gone()
    made.why = why
    return made


class Model(PartlyCompared, frozen=True, dict=True):
    """A whole model: the main subgraph, the ones it refers to, and where constants lie.

    values: the bytes of CONSTANT_COPY operands. pools: memories of CONSTANT_REFERENCE operands.
    relaxed: float32 may be computed with float16's range and precision. extensions: (name, prefix) pairs.
    states: inputs and outputs of `main` that the API carries; the application neither gives nor gets them.
    metadata: what its file says about it. notes: what an importer took upon itself.
    edge: forms of inputs and outputs at the API, by operand of `main`, where they are not those of the operands.
    alike: names of open dimensions, and where they stand: input and axis, at least two of each, of one size.
    """

    main: Subgraph
    referenced: tuple[Subgraph, ...] = ()
    values: bytes = b""
    pools: tuple[Memory, ...] = ()
    relaxed: bool = False
    extensions: tuple[tuple[str, int], ...] = ()
    states: tuple[State, ...] = ()
    name: str = ""
    edge: Mapping[int, EdgeForm] = field(default_factory=dict)
    metadata: Metadata | None = None
    notes: tuple[str, ...] = ()
    alike: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()

    _not_compared = frozenset({"states", "name", "edge", "metadata", "notes", "alike"})

    @kept
    def _memo(self) -> dict[str, Any]:
        """Facts that were derived from it."""
        return {}

    def again(self) -> "Model":
        """The same model as an object of its own, with what is known of it."""
        other = replace(self)
        other._memo.update(self._memo)
        return other

    def __deepcopy__(self, _: object) -> "Model":
        return self  # nobody changes it

    def __reduce__(self) -> tuple[Any, ...]:
        given = [getattr(self, name) for name in self.__struct_fields__ if name != "pools"]
        return _rebuilt, (*given, [pool.bytes().tobytes() for pool in self.pools])

    def __repr__(self) -> str:
        facts = self._memo.get("facts")  # of a model that was validated
        words = [counted(len(self.main.operations), "operation")]
        words += [f"level {facts.level}"] if facts is not None else []
        words += [counted(len(self.main.inputs), "input"), counted(len(self.main.outputs), "output")]
        words += [counted(len(self.states), "state")] if self.states else []
        words += [counted(len(self.referenced), "subgraph")] if self.referenced else []
        head = f"Model {named(self.name)}" if self.name else "Model"
        return brief(f"{head}, {', '.join(words)}", self._interface())

    def _interface(self) -> Iterator[str]:
        """Inputs and outputs for people; what does not exist in a broken model is left out."""
        operands = self.main.operands
        for indices, mark in ((self.main.inputs, ""), (self.main.outputs, "-> ")):
            for index in indices:
                if 0 <= index < len(operands):
                    o = operands[index]
                    yield mark + tensor(o.name, o.type, [d or None for d in o.dimensions])

    def require_sizes(self) -> None:
        """Raise ShapeNeeded where the operations depend on sizes that are not known (`model.open`)."""

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The main subgraph, then the referenced ones."""
        return self.main, *self.referenced

    @property
    def emptied(self) -> bool:
        """Whether its constants were let go of; who asks for one gets ContractBroken."""
        return isinstance(self.pools, Gone)

    def readable(self, operand: Operand) -> bool:
        """Whether the value of a constant operand can be read here: not where it lies in a device's opaque memory."""
        return operand.lifetime != Lifetime.CONSTANT_REFERENCE or self.pools[operand.location.pool].mappable

    def constant(self, operand: Operand) -> Array:
        """The value of a constant operand: an array over the bytes where they lie, which nobody can make writable."""
        at = operand.location
        if isinstance(self.pools, Gone):
            self.pools.refuse()
        if operand.lifetime == Lifetime.CONSTANT_COPY:
            data = np.frombuffer(self.values, np.uint8, at.length, at.offset)
        else:
            data = np.asarray(self.pools[at.pool].view(at.offset, at.length).data.toreadonly())
        return data.view(dtype_of(canonical(operand.type, self.extensions))).reshape(operand.dimensions)


def _rebuilt(*given: Any) -> Model:
    """A model that was pickled, its constants in sealed memories again."""
    *rest, pools = given
    names = [name for name in Model.__struct_fields__ if name != "pools"]
    return with_codes_of_here(Model(**dict(zip(names, rest, strict=True)), pools=tuple(map(sealed, pools))))


def with_codes_of_here(model: Model) -> Model:
    """A model that comes from another process, with this process's codes of types and operations of extensions."""
    here = prefixes_here(model.extensions)
    if not here:
        return model
    graphs = [
        replace(
            graph,
            operands=tuple([replace(o, type=moved(o.type, here)) for o in graph.operands]),
            operations=tuple([replace(o, type=moved(o.type, here)) for o in graph.operations]),
        )
        for graph in model.subgraphs
    ]
    extensions = tuple((name, here.get(prefix, prefix)) for name, prefix in model.extensions)
    return replace(model, main=graphs[0], referenced=tuple(graphs[1:]), extensions=extensions)


def consumers(subgraph: Subgraph) -> list[int]:
    """For each operand, how many operation inputs read it."""
    counts = [0] * len(subgraph.operands)
    for operation in subgraph.operations:
        for index in operation.inputs:
            counts[index] += 1
    return counts


def describe(model: Model, subgraph: Subgraph, index: int) -> str:
    """An operand for messages: `%3 "conv1/weights" TENSOR_FLOAT32[8,3,3,3]`."""
    operand = subgraph.operands[index]
    label = f' "{operand.name}"' if operand.name else ""
    shape = f"[{','.join(str(d) if d else '?' for d in operand.dimensions)}]" if operand.dimensions else ""
    return f"%{index}{label} {type_name(operand.type)}{shape}"


def operation_label(type: int, index: int) -> str:
    """An operation for messages: `CONV_2D #3`."""
    return f"{operation_name(type)} #{index}"
