"""The builder of models: it is mutable, and `finish` makes an immutable model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.brief import quoted_name, short_repr, with_count
from nnhal.base.codes import EXTENSION_SHIFT, MAX_COPIED_CONSTANT, Lifetime, OperationType
from nnhal.base.errors import BadState, InvalidModel
from nnhal.base.extensions import EXTENSIONS
from nnhal.base.memory import Memory, aligned
from nnhal.base.operands import Array, ChannelQuant, dtype_of, is_tensor
from nnhal.base.records import replace
from nnhal.base.sealed import Store
from nnhal.base.values import convert_integer, convert_value
from nnhal.model.graph import EdgeForm, Location, Model, Operand, Operation, State, Subgraph
from nnhal.model.metadata import Metadata
from nnhal.ops.schema import Bound


class ModelBuilder:
    """Builds the main subgraph of a model or, through `subgraph()`, a referenced one.

    Constants of up to 128 bytes are copied into the model. Larger ones go into one pool that `finish` seals, or they
    stay in a pool that was added with `add_pool`.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._operands: list[Operand] = []
        self._operations: list[Operation] = []
        self._bounds: list[Bound | None] = []  # of the operations
        self._shared = _Shared()
        self._inputs: tuple[int, ...] = ()
        self._outputs: tuple[int, ...] = ()
        self._main: ModelBuilder | None = None

    def __repr__(self) -> str:
        return short_repr(
            f"ModelBuilder {quoted_name(self._name)}" if self._name else "ModelBuilder",
            [with_count(len(self._operands), "operand"), with_count(len(self._operations), "operation")],
        )

    def operand(
        self,
        type: int,
        dimensions: Sequence[int] = (),
        scale: float = 0.0,
        zero_point: int = 0,
        *,
        channel: ChannelQuant | None = None,
        extension: bytes | None = None,
        lifetime: Lifetime = Lifetime.TEMPORARY_VARIABLE,
        name: str = "",
    ) -> int:
        """Add an operand and return its index. `finish` turns operands into inputs and outputs."""
        return self._add(type, dimensions, scale, zero_point, lifetime, Location(), channel, extension, name)

    def _add(
        self,
        type: int,
        dimensions: Sequence[int],
        scale: float,
        zero_point: int,
        lifetime: Lifetime,
        location: Location,
        channel: ChannelQuant | None = None,
        extension: bytes | None = None,
        name: str = "",
    ) -> int:
        where = f"operand {len(self._operands)}"
        scale, channel = float(np.float32(scale)), rounded_scales(channel)
        dims = tuple([convert_integer(d, f"{where}: a dimension", InvalidModel) for d in dimensions])
        zero_point = convert_integer(zero_point, f"{where}: the zero point", InvalidModel)
        self._operands.append(Operand(int(type), dims, scale, zero_point, lifetime, location, channel, extension, name))
        return len(self._operands) - 1

    def constant(
        self,
        type: int,
        value: Any,
        scale: float = 0.0,
        zero_point: int = 0,
        *,
        channel: ChannelQuant | None = None,
        name: str = "",
    ) -> int:
        """Add a constant with the given value (array or number) and return its index."""
        array = convert_value(value, dtype_of(type), f"constant {name!r}", InvalidModel)
        if not array.size:
            raise InvalidModel(f"constant {name!r} has no elements, must have at least one")
        index = self.operand(
            type, array.shape if is_tensor(type) else (), scale, zero_point, channel=channel, name=name
        )
        lifetime, location = self._shared.store(array)
        self._operands[index] = replace(self._operands[index], lifetime=lifetime, location=location)
        return index

    def reference(
        self,
        type: int,
        dimensions: Sequence[int],
        pool: int,
        offset: int,
        length: int,
        scale: float = 0.0,
        zero_point: int = 0,
        *,
        channel: ChannelQuant | None = None,
        name: str = "",
    ) -> int:
        """Add a constant whose bytes are in pool `pool`, and return its index."""
        location = Location(pool, offset, length)
        return self._add(type, dimensions, scale, zero_point, Lifetime.CONSTANT_REFERENCE, location, channel, name=name)

    def no_value(self, type: int) -> int:
        """Add an operand for an omitted optional argument."""
        return self.operand(type, lifetime=Lifetime.NO_VALUE)

    def subgraph_operand(self, type: int, index: int) -> int:
        """Add a SUBGRAPH operand that refers to referenced subgraph `index`."""
        return self._add(type, (), 0.0, 0, Lifetime.SUBGRAPH, Location(0, index, 0))

    def operation(
        self,
        type: "int | str",
        inputs: Sequence[int],
        outputs: Sequence[int],
        name: str = "",
        *,
        bound: Bound | None = None,
    ) -> int:
        """Add an operation and return its place in the execution order. bound: its binding, if the caller has it."""
        code = OperationType[type] if isinstance(type, str) else type
        self._operations.append(Operation(int(code), tuple(map(int, inputs)), tuple(map(int, outputs)), name))
        self._bounds.append(bound)
        return len(self._operations) - 1

    def add_pool(self, memory: Memory) -> int:
        """Add a memory to the model's pools and return its number."""
        return self._shared.add(memory)

    def extensions(self) -> list[tuple[str, int]]:
        """Return the names and prefixes of the registered extensions used so far."""
        graphs: list[Any] = [(self._operands, self._operations)]
        graphs += [(graph.operands, graph.operations) for graph in self._shared.referenced]
        used = {each.type >> EXTENSION_SHIFT for graph in graphs for kind in graph for each in kind}
        return [(each.name, each.prefix) for each in EXTENSIONS.values() if each.prefix in used]

    def subgraph(self) -> "ModelBuilder":
        """Return a builder for a referenced subgraph, with shared constants; end it with `finish_subgraph`."""
        other = ModelBuilder()
        other._shared, other._main = self._shared, self._main or self
        return other

    def finish_subgraph(self, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        """Finish a referenced subgraph and return its index for `subgraph_operand`."""
        if self._main is None:
            raise BadState("finish_subgraph: this is the main subgraph's builder, must be one made by subgraph()")
        self._shared.referenced.append(self._freeze(inputs, outputs))
        self._shared.bounds.append(self._bounds)
        return len(self._shared.referenced) - 1

    def finish(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        relaxed: bool = False,
        states: Sequence[State] = (),
        edge: Mapping[int, EdgeForm] | None = None,
        extensions: Sequence[tuple[str, int]] = (),
        metadata: Metadata | None = None,
        notes: Sequence[str] = (),
        alike: Sequence[tuple[str, tuple[tuple[int, int], ...]]] = (),
    ) -> Model:
        """Return the model. It is not validated: `model.validate` does that, in every compilation."""
        if self._main is not None:
            raise BadState("finish: this builder is a subgraph's, must end with finish_subgraph")
        main = self._freeze(inputs, outputs)
        model = Model(
            main,
            tuple(self._shared.referenced),
            bytes(self._shared.values),
            self._shared.pools(),
            relaxed,
            tuple(extensions),
            tuple(states),
            self._name,
            dict(edge or {}),
            metadata,
            tuple(notes),
            tuple(alike),
        )
        model._memo["bounds"] = [list(self._bounds), *self._shared.bounds]
        return model

    def _freeze(self, inputs: Sequence[int], outputs: Sequence[int]) -> Subgraph:
        operands = list(self._operands)  # a copy: the builder may continue and be finished again
        for indices, lifetime in ((inputs, Lifetime.SUBGRAPH_INPUT), (outputs, Lifetime.SUBGRAPH_OUTPUT)):
            for index in indices:
                if not 0 <= index < len(operands):
                    raise InvalidModel(f"{lifetime.name} is operand {index}, must be 0 to {len(operands) - 1}")
                if operands[index].lifetime != Lifetime.TEMPORARY_VARIABLE:
                    raise InvalidModel(f"operand {index} is {operands[index].lifetime.name} and {lifetime.name}")
                operands[index] = replace(operands[index], lifetime=lifetime, location=Location())
        return Subgraph(tuple(operands), tuple(self._operations), tuple(inputs), tuple(outputs))


def rounded_scales(channel: ChannelQuant | None) -> ChannelQuant | None:
    """Round per-channel scales to float32, as models hold them."""
    return channel and ChannelQuant(tuple(float(np.float32(scale)) for scale in channel.scales), channel.axis)


class _Shared:
    """Constants, pools and referenced subgraphs of one model under construction."""

    def __init__(self) -> None:
        self.values = bytearray()
        self.memories: list[Memory | Store] = []
        self.own: Store | None = None  # the large constants since the last `pools`, and the number of their pool
        self.number: int
        self.referenced: list[Subgraph] = []
        self.bounds: list[list[Bound | None]] = []  # of their operations

    def add(self, memory: Memory | Store) -> int:
        self.memories.append(memory)
        return len(self.memories) - 1

    def store(self, array: Array) -> tuple[Lifetime, Location]:
        if array.nbytes <= MAX_COPIED_CONSTANT:
            offset = aligned(len(self.values), 8)
            self.values.extend(bytes(offset - len(self.values)) + array.tobytes())
            return Lifetime.CONSTANT_COPY, Location(0, offset, array.nbytes)
        if self.own is None:
            self.own = Store("nnhal-constants")
            self.number = self.add(self.own)
        return Lifetime.CONSTANT_REFERENCE, Location(self.number, self.own.add(array), array.nbytes)

    def pools(self) -> tuple[Memory, ...]:
        sealed = tuple(memory.seal() if isinstance(memory, Store) else memory for memory in self.memories)
        self.memories, self.own = list(sealed), None
        return sealed
