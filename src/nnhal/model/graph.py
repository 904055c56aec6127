"""The model: immutable graphs of operands and operations, as in the HAL. `model.builder` creates them."""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from nnhal.base.brief import quoted_name, short_repr, tensor, with_count
from nnhal.base.codes import Lifetime, operation_name, type_name
from nnhal.base.errors import ContractBroken, InvalidRequest
from nnhal.base.extensions import canonical, converted_code, local_prefixes
from nnhal.base.lazy import cached_property
from nnhal.base.memory import Memory
from nnhal.base.names import short
from nnhal.base.operands import Array, ChannelQuant, Value, dtype_of
from nnhal.base.records import PartlyCompared, Record, field, replace
from nnhal.base.sealed import sealed
from nnhal.base.values import convert_value
from nnhal.model.metadata import Metadata
from nnhal.ops.common import encode
from nnhal.ops.schema import Q16S

CONSTANTS = frozenset((Lifetime.CONSTANT_COPY, Lifetime.CONSTANT_REFERENCE))


class Location(Record, frozen=True):
    """A range of bytes of a pool or of the model's `values` (CONSTANT_COPY), or a subgraph's number (in `offset`)."""

    pool: int = 0
    offset: int = 0
    length: int = 0


class Operand(PartlyCompared, frozen=True):
    """One operand. A dimension of 0, or no dimensions on a tensor, means unknown until execution.

    Attributes:
        type: The code of the `OperandType`.
        dimensions: The dimensions.
        scale: The scale of a quantised type.
        zero_point: The zero point of a quantised type.
        lifetime: Where its value comes from, as in the HAL.
        location: The place of a constant's value.
        channel: The scales of a TENSOR_QUANT8_SYMM_PER_CHANNEL.
        extension: Parameters of an extension type.
        name: A label; two models that differ only in labels are equal.
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
    """One operation: its type, and the indices of its operands in the subgraph."""

    type: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = ""

    _not_compared = frozenset({"name"})


class Subgraph(Record, frozen=True):
    """A graph. Its operations are in execution order."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __repr__(self) -> str:
        sizes = {"operand": self.operands, "operation": self.operations, "input": self.inputs, "output": self.outputs}
        return short_repr("Subgraph", [with_count(len(given), what) for what, given in sizes.items()])


class State(PartlyCompared, frozen=True):
    """A value that is carried from call to call: the places of its model input and output, and its initial bytes."""

    input: int
    output: int
    initial: Array

    _not_compared = frozenset({"initial"})


class EdgeForm(Record, frozen=True):
    """The application's type of an input or output, if it differs from the operand's.

    Attributes:
        scalar: The application's array has no dimensions; the operand has one dimension of 1.
        wide: The application's array has 64-bit integers or floats; the operand has 32 bits.
        scale: If it is not 0, the application's array has 16-bit integers of this scale; the operand has their real
            values in float32.
        most: The greatest magnitude of integers of an input, if the model takes less than 32 bits; else 0.
    """

    scalar: bool = False
    wide: bool = False
    scale: float = 0.0
    most: int = 0

    @property
    def converts(self) -> bool:
        """Whether the application's elements have another type than the operand's."""
        return self.wide or self.scale != 0

    def dtype(self, inside: np.dtype[Any]) -> np.dtype[Any]:
        """Return the application's element type for the operand's."""
        return np.dtype(np.int16) if self.scale else np.dtype(f"{inside.kind}8") if self.wide else inside

    def operand_dtype(self, outside: np.dtype[Any]) -> np.dtype[Any]:
        """Return the operand's element type for the application's."""
        return np.dtype(np.float32) if self.scale else np.dtype(f"{outside.kind}4") if self.wide else outside

    def named(self, type: str) -> str:
        """Return the name of the application's type for that of the operand's."""
        return "TENSOR_QUANT16_SYMM" if self.scale else type.replace("32", "64") if self.wide else type

    def inside(self, array: Array, where: str) -> Array:
        """Convert an application's array to the operand's type.

        Args:
            array: The array.
            where: Its name in messages.

        Raises:
            InvalidRequest: A number does not fit into 32 bits, or is of a greater magnitude than `most`.
        """
        if self.scalar:
            array = array.reshape(1)
        if self.scale:
            return array * np.float32(self.scale)
        if not self.wide:
            return array
        found = convert_value(array, f"{array.dtype.kind}4", where, InvalidRequest)
        self.require_magnitude(found, where)
        return found

    def require_magnitude(self, array: Array, where: str) -> None:
        """Raise InvalidRequest if an integer of an operand's value is of a greater magnitude than `most`."""
        if self.most and array.size and not (-self.most <= array.min() and array.max() <= self.most):
            worst = array.max() if array.max() > self.most else array.min()
            must = f"must be from {-self.most} to {self.most}, so that the model's sums and products fit 32 bits"
            raise InvalidRequest(f"{where} has {worst}, {must}")

    def outside(self, array: Array) -> Array:
        """Convert an operand's value to the application's type. Integers with a scale are rounded and saturate.

        Args:
            array: The value.
        """
        if self.scale:
            array = encode(Value(Q16S, None, self.scale), array)
        array = array.astype(self.dtype(array.dtype), copy=False)
        return array.reshape(()) if self.scalar else array


class ReleasedPart(tuple[Any, ...]):
    """Replaces released parts of a model: any use raises ContractBroken. why: the message."""

    why: str

    def refuse(self, *_: object) -> NoReturn:
        """Raise ContractBroken."""
        raise ContractBroken(self.why)

    __getitem__ = __iter__ = __len__ = refuse


def released_part(why: str) -> ReleasedPart:
    """Return a replacement for a released part; `why` is the message of its errors."""
    made = ReleasedPart()
    made.why = why
    return made


class Model(PartlyCompared, frozen=True, dict=True):
    """A model: the main subgraph, the subgraphs that it refers to, and the constants. Immutable.

    Attributes:
        main: The main subgraph.
        referenced: The subgraphs of control flow.
        values: The bytes of CONSTANT_COPY operands.
        pools: The memories of CONSTANT_REFERENCE operands.
        relaxed: Whether float32 may be computed with the range and precision of float16.
        extensions: (name, prefix) pairs.
        name: A label.
        states: Inputs and outputs of `main` that the API carries from call to call. The application does not see them.
        metadata: The metadata of its file.
        notes: Assumptions that an importer made.
        edge: By operand of `main`: the application's type of an input or output, if it differs from the operand's.
        alike: Names of open dimensions, and the inputs and axes that share each name, at least two.
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

    @cached_property
    def _memo(self) -> dict[str, Any]:
        """Facts that were derived from it."""
        return {}

    def again(self) -> "Model":
        """Return the same model as a new object, with the facts that are known of it."""
        other = replace(self)
        other._memo.update(self._memo)
        return other

    def __deepcopy__(self, _: object) -> "Model":
        return self  # it is immutable

    def __reduce__(self) -> tuple[Any, ...]:
        given = [getattr(self, name) for name in self.__struct_fields__ if name != "pools"]
        return _rebuilt, (*given, [pool.bytes().tobytes() for pool in self.pools])

    def __repr__(self) -> str:
        facts = self._memo.get("facts")  # of a validated model
        words = [with_count(len(self.main.operations), "operation")]
        words += [f"level {facts.level}"] if facts is not None else []
        words += [with_count(len(self.main.inputs), "input"), with_count(len(self.main.outputs), "output")]
        words += [with_count(len(self.states), "state")] if self.states else []
        words += [with_count(len(self.referenced), "subgraph")] if self.referenced else []
        head = f"Model {quoted_name(self.name)}" if self.name else "Model"
        return short_repr(f"{head}, {', '.join(words)}", self._interface())

    def _interface(self) -> Iterator[str]:
        """Yield lines about inputs and outputs; a broken model may lack some."""
        operands = self.main.operands
        for indices, mark in ((self.main.inputs, ""), (self.main.outputs, "-> ")):
            for index in indices:
                if 0 <= index < len(operands):
                    o = operands[index]
                    yield mark + tensor(o.name, o.type, [d or None for d in o.dimensions])

    def require_sizes(self) -> None:
        """Raise ShapeNeeded if the operations depend on unknown sizes (`model.open`)."""

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The main subgraph, then the referenced ones."""
        return self.main, *self.referenced

    @property
    def emptied(self) -> bool:
        """Whether its constants were released; reading one raises ContractBroken."""
        return isinstance(self.pools, ReleasedPart)

    def readable(self, operand: Operand) -> bool:
        """Whether this process can read the value of a constant operand. Not if it lies in opaque device memory.

        Args:
            operand: A constant operand of the model.
        """
        return operand.lifetime != Lifetime.CONSTANT_REFERENCE or self.pools[operand.location.pool].mappable

    def constant(self, operand: Operand) -> Array:
        """Return the value of a constant operand, as a read-only array over the bytes where they lie.

        Args:
            operand: A constant operand of the model.

        Raises:
            ContractBroken: The constants were released.
            Unmappable: The value lies in opaque device memory.
        """
        at = operand.location
        if isinstance(self.pools, ReleasedPart):
            self.pools.refuse()
        if operand.lifetime == Lifetime.CONSTANT_COPY:
            data = np.frombuffer(self.values, np.uint8, at.length, at.offset)
        else:
            data = np.asarray(self.pools[at.pool].view(at.offset, at.length).data.toreadonly())
        return data.view(dtype_of(canonical(operand.type, self.extensions))).reshape(operand.dimensions)


def _rebuilt(*given: Any) -> Model:
    """Restore a pickled model, with its constants in sealed memories again."""
    *rest, pools = given
    names = [name for name in Model.__struct_fields__ if name != "pools"]
    return with_codes_of_here(Model(**dict(zip(names, rest, strict=True)), pools=tuple(map(sealed, pools))))


def with_codes_of_here(model: Model) -> Model:
    """Convert the extension codes of a model from another process to those of this one."""
    here = local_prefixes(model.extensions)
    if not here:
        return model
    graphs = [
        replace(
            graph,
            operands=tuple([replace(o, type=converted_code(o.type, here)) for o in graph.operands]),
            operations=tuple([replace(o, type=converted_code(o.type, here)) for o in graph.operations]),
        )
        for graph in model.subgraphs
    ]
    extensions = tuple((name, here.get(prefix, prefix)) for name, prefix in model.extensions)
    return replace(model, main=graphs[0], referenced=tuple(graphs[1:]), extensions=extensions)


def consumers(subgraph: Subgraph) -> list[int]:
    """Count for each operand the operation inputs that read it."""
    counts = [0] * len(subgraph.operands)
    for operation in subgraph.operations:
        for index in operation.inputs:
            counts[index] += 1
    return counts


def describe(model: Model, subgraph: Subgraph, index: int) -> str:
    """Describe an operand for messages: `%3 "conv1/weights" TENSOR_FLOAT32[8,3,3,3]`."""
    operand = subgraph.operands[index]
    label = f' "{operand.name}"' if operand.name else ""
    shape = f"[{','.join(str(d) if d else '?' for d in operand.dimensions)}]" if operand.dimensions else ""
    return f"%{index}{label} {type_name(operand.type)}{shape}"


def operation_label(type: int, index: int, name: str = "") -> str:
    """Describe an operation for messages: `CONV_2D #3`, or `CONV_2D #3 "Conv #5 (stem)"` with its name."""
    return f"{operation_name(type)} #{index}" + (f' "{short(name)}"' if name else "")
