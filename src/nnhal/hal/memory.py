"""Memory of drivers: buffers that are allocated for their roles, and the bytes that a prepared model holds."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from nnhal.base.codes import type_name
from nnhal.base.errors import InvalidArgument, InvalidRequest
from nnhal.base.memory import Memory
from nnhal.base.operands import ChannelQuant, is_tensor
from nnhal.base.records import Record
from nnhal.base.time import is_number
from nnhal.hal.request import BelongsToModel, Control, summed
from nnhal.model.validate import validate
from nnhal.ops.schema import show

MOST_BYTES = 1 << 62  # of a prepared model; more is an error of the driver


class BufferDesc(NamedTuple):
    """The requirements of a buffer.

    Attributes:
        dimensions: Its dimensions; 0 for one that is open; () if even the rank is open.
    """

    dimensions: tuple[int, ...] = ()


class BufferRole(Record, frozen=True, eq=False):
    """One use of a buffer: input or output `index` of a prepared model.

    Attributes:
        frequency: The relative frequency of this use, above 0 up to 1.
    """

    prepared: BelongsToModel
    index: int
    output: bool = False
    frequency: float = 1.0

    def __str__(self) -> str:
        return f"{'output' if self.output else 'input'} {self.index}"


class BufferFacts(NamedTuple):
    """The description of a buffer that all its roles agree on.

    A dimension of 0 changes from use to use; with dimensions of None, the rank does.
    """

    type: int
    dimensions: tuple[int, ...] | None
    scale: float
    zero_point: int
    channel: ChannelQuant | None

    @property
    def stored(self) -> str:
        """The element storage, for messages."""
        if self.channel is not None:
            return f"{type_name(self.type)} scales {list(self.channel.scales)} along axis {self.channel.axis}"
        return f"{type_name(self.type)} scale {self.scale:g} zero point {self.zero_point}"

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The dimensions; None if one may change."""
        return self.dimensions if self.dimensions is not None and 0 not in self.dimensions else None


_tokens = itertools.count(1)


class Buffer(ABC):
    """A driver's buffer.

    Attributes:
        token: Identifies it in this process; never 0.
    """

    def __init__(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> None:
        self.facts = merge(desc, roles)
        self.roles: tuple[BufferRole, ...] = ()
        self.token = next(_tokens)
        self._uses: set[tuple[int, int, bool]] = set()
        self.writers: dict[object, Control] = {}  # executions and copies inside that write it; see `host._using`
        self.add_roles(roles)

    @property
    def lost(self) -> bool:
        """Whether its memory no longer exists, because the process that held it has ended."""
        return False

    def add_roles(self, roles: Sequence[BufferRole]) -> None:
        """Allow these roles too."""
        self.roles += tuple(roles)
        self._uses.update((id(r.prepared), r.index, r.output) for r in roles)

    def check_role(self, prepared: BelongsToModel, index: int, output: bool) -> None:
        """Raise InvalidRequest if the buffer was not allocated for this use."""
        if (id(prepared), index, output) not in self._uses:
            roles = ", ".join(map(str, self.roles))
            use = "output" if output else "input"
            raise InvalidRequest(f"buffer {self.token} is used as {use} {index}, must be one of its roles: {roles}")

    @abstractmethod
    def copy_to(self, memory: Memory) -> None:
        """Copy the contents to a memory of exactly their size.

        Args:
            memory: The target.

        Raises:
            OperationFailed: There are no contents.
        """

    @abstractmethod
    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """Set the contents. A copy that fails leaves the buffer without contents.

        Args:
            memory: The source, of exactly the size of the contents.
            dimensions: The shape of the contents, if the buffer leaves dimensions open.

        Raises:
            InvalidArgument: The size or the dimensions do not fit.
        """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the contents; None without contents."""

    def within(self, _: Control) -> "BufferContents":
        """Return its contents for one execution. Queries to another process respect the execution's deadline."""
        return self

    def close(self) -> None:
        """Release the memory."""


class BufferContents(Protocol):
    """The access to a buffer's contents."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """As in `Buffer`."""

    def copy_to(self, memory: Memory) -> None:
        """As in `Buffer`."""

    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """As in `Buffer`."""


def merge(desc: BufferDesc, roles: Sequence[BufferRole]) -> BufferFacts:
    """Merge all roles and the requested dimensions; InvalidArgument if they contradict each other."""
    if not roles:
        raise InvalidArgument("buffer: no role is given, must be at least one")
    found: BufferFacts | None = None
    for role in roles:
        facts = _facts_of(role)
        if found is None:
            found = facts
        elif found._replace(dimensions=None) != facts._replace(dimensions=None):
            raise InvalidArgument(f"buffer: {role} is {facts.stored}, must be as the first role: {found.stored}")
        else:
            found = found._replace(dimensions=both(found.dimensions, facts.dimensions, str(role)))
    if len({(id(r.prepared), r.index, r.output) for r in roles}) < len(roles):
        raise InvalidArgument("buffer: a role is given twice, must be given once")
    assert found is not None
    return found._replace(dimensions=both(found.dimensions, desc.dimensions or None, "the description"))


def _facts_of(role: BufferRole) -> BufferFacts:
    main = role.prepared.model.main
    places = main.outputs if role.output else main.inputs
    if not 0 <= role.index < len(places):
        raise InvalidArgument(f"buffer: {role} is not there, the model has {len(places)}")
    if not is_number(role.frequency) or not 0 < role.frequency <= 1:
        raise InvalidArgument(f"buffer: frequency of {role} is {role.frequency!r}, must be above 0 and at most 1")
    operand = main.operands[places[role.index]]
    value = validate(role.prepared.model).subgraphs[0].values[places[role.index]]
    dimensions: tuple[int, ...] | None = operand.dimensions
    if value is not None and value.shape is not None:  # validation may have inferred more
        dimensions = tuple(d or 0 for d in value.shape)
    elif not dimensions and is_tensor(operand.type):
        dimensions = None
    return BufferFacts(operand.type, dimensions, operand.scale, operand.zero_point, operand.channel)


def both(one: tuple[int, ...] | None, other: tuple[int, ...] | None, where: str) -> tuple[int, ...] | None:
    """Merge two shapes, with 0 and None for open parts; InvalidArgument if they disagree."""
    if other is not None and any(d < 0 for d in other):
        raise InvalidArgument(f"buffer: dimensions {show(other)} of {where} must all be at least 0")
    if one is None or other is None:
        return one if other is None else other
    if len(one) != len(other) or any(a and b and a != b for a, b in zip(one, other, strict=True)):
        raise InvalidArgument(f"buffer: dimensions {show(other)} of {where} must agree with {show(one)}")
    return tuple(a or b for a, b in zip(one, other, strict=True))


class HasBuffers(Protocol):
    """An object with buffers as arguments of one model, by index."""

    @property
    def input_buffers(self) -> Mapping[int, Any]:
        """The buffers that are read."""

    @property
    def output_buffers(self) -> Mapping[int, Any]:
        """The buffers that are written."""


def check_use(prepared: BelongsToModel, request: HasBuffers) -> None:
    """Raise InvalidRequest if a buffer of the request was not allocated for its use."""
    read, written = request.input_buffers, request.output_buffers
    for index, buffer in read.items():
        buffer.check_role(prepared, index, False)
    for index, buffer in written.items():
        buffer.check_role(prepared, index, True)
        for other in read.values():
            if other is buffer:
                raise InvalidRequest(f"buffer {buffer.token} is input and output of one execution, must be one of them")
    if len({id(b) for b in written.values()}) < len(written):
        raise InvalidRequest("a buffer is given for two outputs, must be given for one")


class MemoryUse(NamedTuple):
    """The bytes that a prepared model holds; None for a figure that the driver does not know.

    Attributes:
        weights_copied: Constants in the driver's or engine's own memory.
        weights_in_place: Constants that the driver reads in the model's pools.
        working: Memory that it keeps between executions.
        per_execution: The most intermediates that a running execution holds at once, without temporary memory of
            kernels.
    """

    weights_copied: int | None = None
    weights_in_place: int | None = None
    working: int | None = None
    per_execution: int | None = None


def combined_use(uses: Iterable[MemoryUse]) -> MemoryUse:
    """Add up models that run one after the other; an execution is in one of them at a time."""
    several = list(uses)
    copied, in_place, working = (summed(use[place] for use in several) for place in range(3))
    each = [use.per_execution for use in several]
    most = None if None in each else max((n for n in each if n is not None), default=0)
    return MemoryUse(copied, in_place, working, most)
