"""The wire format of the driver interface: messages, their limits, and the HAL version of each method and field.

Each message is a MessagePack array whose first element is its tag. Structs are append-only: a field is never moved or
removed, a new one has a default. `VERSION` changes when that rule must be broken; tests hold golden bytes. Every list,
string and byte string has a limit that is checked before its memory is allocated.

This file is longer than others: it is one table, and a protocol is easier to read in one place.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, get_args

import msgspec
from msgspec import Meta

from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3, Level

VERSION = 3
INLINE = 64 << 10  # bytes in the message itself; longer messages go in a sealed memfd
MAX_MESSAGE = 1 << 30  # bytes of a message in a memfd
MAX_DESCRIPTORS = 64  # descriptors of one message; those of models with more pools are sent ahead
NOT_MEASURED = 2**64 - 1

U32 = Annotated[int, Meta(ge=0, lt=2**32)]
U64 = Annotated[int, Meta(ge=0)]  # MessagePack ends at 2**64 - 1
I32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Id = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(max_length=16384)]
Dims = Annotated[tuple[U32, ...], Meta(max_length=32)]
Indices = Annotated[tuple[U32, ...], Meta(max_length=1 << 16)]
Bytes = Annotated[bytes, Meta(max_length=MAX_MESSAGE)]


class Struct(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A component of a message."""


# --------------------------------------------------------------------------------------------------------------- model


class WireOperand(Struct, frozen=True):
    """An operand. extension: bytes of an extension's parameters. location: pool, offset, length."""

    type: U32
    dimensions: Dims
    scale: float
    zero_point: I32
    lifetime: U32
    location: tuple[U32, U64, U64]
    scales: Annotated[tuple[float, ...], Meta(max_length=1 << 20)] = ()
    axis: U32 = 0
    extension: Annotated[bytes, Meta(max_length=1 << 20)] | None = None
    name: Text = ""


class WireOperation(Struct, frozen=True):
    """An operation."""

    type: U32
    inputs: Indices
    outputs: Indices
    name: Text = ""


class WireSubgraph(Struct, frozen=True):
    """A graph."""

    operands: Annotated[tuple[WireOperand, ...], Meta(max_length=1 << 20)]
    operations: Annotated[tuple[WireOperation, ...], Meta(max_length=1 << 20)]
    inputs: Indices
    outputs: Indices


class Pool(Struct, frozen=True):
    """A memory of the client.

    Its descriptor comes with the message, or came with the `Hold` of this object and place.
    """

    kind: Text
    size: U64
    offset: U64
    readonly: bool
    held: Id = 0
    place: U32 = 0


class WireModel(Struct, frozen=True):
    """A model; the first subgraph is the main one."""

    subgraphs: Annotated[tuple[WireSubgraph, ...], Meta(min_length=1, max_length=1 << 12)]
    values: Bytes
    pools: Annotated[tuple[Pool, ...], Meta(max_length=1 << 12)]
    relaxed: bool
    extensions: Annotated[tuple[tuple[Text, U32], ...], Meta(max_length=256)]
    name: Text = ""


# ------------------------------------------------------------------------------------------------------------- request


class WireArgument(Struct, frozen=True):
    """An input or output: its place in a pool of the request. pool -1: in the driver's memory (outputs only)."""

    pool: I32
    offset: U64
    length: U64
    dimensions: Dims


class BufferPool(Struct, tag_field="t", tag=1, frozen=True):
    """A driver buffer instead of a pool, by its number."""

    buffer: Id


class MemoryPool(Struct, tag_field="t", tag=0, frozen=True):
    """A memory as a pool."""

    memory: Pool


Arguments = Annotated[tuple[WireArgument | None, ...], Meta(max_length=4096)]


class WireRequest(Struct, frozen=True):
    """The arguments of one execution."""

    inputs: Arguments
    outputs: Arguments
    pools: Annotated[tuple[MemoryPool | BufferPool, ...], Meta(max_length=4096)]


class WireTiming(Struct, frozen=True):
    """Nanoseconds; NOT_MEASURED if unknown."""

    on_device: U64 = NOT_MEASURED
    in_driver: U64 = NOT_MEASURED


class WirePerformance(Struct, frozen=True):
    """Declared performance."""

    exec_time: float
    power_usage: float


class WireGroup(Struct, frozen=True):
    """Operations that a device executes as one."""

    operations: Annotated[tuple[U32, ...], Meta(max_length=1 << 20)]
    performance: WirePerformance
    at_least: U32


# --------------------------------------------------------------------------------------------------------------- calls


class ClientCall(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="t"):
    """A call from the client.

    method: its HAL name, "" for nnhal's own. forms: the HAL versions that define a variant of it. phase: its phase in a
    trace.
    """

    method: ClassVar[str] = ""
    phase: ClassVar[str] = "initialisation"
    forms: ClassVar[tuple[Level, ...]] = (V1_0,)
    since: ClassVar[dict[str, Level]] = {}  # fields that later variants added


class MakingCall(ClientCall, frozen=True):
    """A call that starts or creates something. object: its number, chosen by the client and not used before.

    So the client owns the number before it asks, and releases the object even if it is interrupted before it gets the
    answer.
    """

    object: Id


class Hello(ClientCall, tag=0, frozen=True):
    """The first message of a connection."""

    version: U32
    cpus: U64


class AttachLane(MakingCall, tag=1, frozen=True):
    """Open one more channel for calls. The service makes the pair of sockets; the client's end comes with the answer.

    callbacks: whether the service sends notifications on it.
    """

    callbacks: bool


class Release(ClientCall, tag=2, frozen=True):
    """Release these objects. Needs no answer; if one is requested, it comes when the objects have ended."""

    phase: ClassVar[str] = "termination"
    objects: Annotated[tuple[Id, ...], Meta(max_length=1 << 16)]


class Cancel(ClientCall, tag=4, frozen=True):
    """Abandon the results of these executions and the calls on these channels. Needs no answer."""

    phase: ClassVar[str] = "termination"
    objects: Annotated[tuple[Id, ...], Meta(max_length=1 << 16)]


class Hold(MakingCall, tag=3, frozen=True):
    """Hold the attached pools, for messages with more pools than fit one; an object until it is released."""

    phase: ClassVar[str] = "transfers"
    pools: Annotated[tuple[Pool, ...], Meta(max_length=MAX_DESCRIPTORS)]


class HoldFiles(MakingCall, tag=42, frozen=True):
    """Hold the attached cache files, those of the model first; an object until it is released."""

    phase: ClassVar[str] = "transfers"
    token: Annotated[bytes, Meta(min_length=32, max_length=32)]
    model_files: Annotated[int, Meta(ge=0, le=32)]
    data_files: Annotated[int, Meta(ge=0, le=32)]


class WriteTrace(MakingCall, tag=43, frozen=True):
    """Write a trace of this client's work to the log in this memory, until it is released.

    Needs no answer: the log confirms it. begun: on the monotonic clock; earlier events are not recorded.
    """

    pool: Pool
    begun: U64


class GetCapabilities(ClientCall, tag=10, frozen=True):
    """Capabilities. `form` (in every versioned call): the HAL version that defines this variant of the method."""

    method: ClassVar[str] = "getCapabilities"
    forms: ClassVar[tuple[Level, ...]] = (V1_0, V1_1, V1_2, V1_3)
    form: U32


class GetStatus(ClientCall, tag=11, frozen=True):
    """The device's status."""

    method: ClassVar[str] = "getStatus"


class GetVersionString(ClientCall, tag=12, frozen=True):
    """The driver's version."""

    method: ClassVar[str] = "getVersionString"
    forms: ClassVar[tuple[Level, ...]] = (V1_2,)


class GetType(ClientCall, tag=13, frozen=True):
    """The device's type."""

    method: ClassVar[str] = "getType"
    forms: ClassVar[tuple[Level, ...]] = (V1_2,)


class GetSupportedExtensions(ClientCall, tag=14, frozen=True):
    """Names of vendor extensions."""

    method: ClassVar[str] = "getSupportedExtensions"
    forms: ClassVar[tuple[Level, ...]] = (V1_2,)


class GetNumberOfCacheFiles(ClientCall, tag=40, frozen=True):
    """The number of model and data files of one cached compilation."""

    method: ClassVar[str] = "getNumberOfCacheFilesNeeded"
    forms: ClassVar[tuple[Level, ...]] = (V1_2,)


class GetRelaxations(ClientCall, tag=34, frozen=True):
    """Names of permitted deviations of the device's results from the definitions; nnhal's, at every HAL version."""


class GetSupportedOperations(ClientCall, tag=15, frozen=True):
    """A verdict for each operation of the main subgraph."""

    phase: ClassVar[str] = "preparation"
    method: ClassVar[str] = "getSupportedOperations"
    forms: ClassVar[tuple[Level, ...]] = (V1_0, V1_1, V1_2, V1_3)
    form: U32
    model: WireModel


class PreparingCall(MakingCall, frozen=True):
    """A call that prepares; `NotifyPrepared` with its number follows on the callback channel, exactly once.

    options: the driver's, as JSON. deadline: a point on the monotonic clock, 0 for none. cache: the number of the
    `HoldFiles` to save to or prepare from, 0 for none.
    """

    phase: ClassVar[str] = "compilation"
    form: U32
    model: WireModel
    preference: U32 | None = None
    priority: U32 | None = None
    deadline: U64 = 0
    threads: U32 = 0
    options: Annotated[bytes, Meta(max_length=1 << 20)] = b""
    cache: Id = 0


class PrepareModel(PreparingCall, tag=16, frozen=True):
    """Compile a model."""

    method: ClassVar[str] = "prepareModel"
    forms: ClassVar[tuple[Level, ...]] = (V1_0, V1_1, V1_2, V1_3)
    since: ClassVar[dict[str, Level]] = {
        "preference": V1_1,
        "priority": V1_3,
        "deadline": V1_3,
        "cache": V1_2,
    }


class PrepareModelFromCache(PreparingCall, tag=41, frozen=True):
    """Like `PrepareModel`, from the saved files. model: its outline, without operations."""

    method: ClassVar[str] = "prepareModelFromCache"
    forms: ClassVar[tuple[Level, ...]] = (V1_2, V1_3)
    since: ClassVar[dict[str, Level]] = {"priority": V1_3, "deadline": V1_3}


class Consider(MakingCall, tag=38, frozen=True):
    """The driver's answers about a model that is to be compiled with these hints (see `PrepareModel`).

    If the answer reports it, the service keeps the model, the hints and the driver's results until the number is
    released.
    """

    phase: ClassVar[str] = "preparation"
    method: ClassVar[str] = "getSupportedOperations_1_3"
    forms: ClassVar[tuple[Level, ...]] = (V1_3,)
    model: WireModel
    preference: U32
    priority: U32
    deadline: U64 = 0
    threads: U32 = 0
    options: Annotated[bytes, Meta(max_length=1 << 20)] = b""


class PrepareConsidered(MakingCall, tag=39, frozen=True):
    """Like `PrepareModel`, for a considered model, or for the partition of it with these operations, in order.

    operations: empty for the whole model.
    """

    phase: ClassVar[str] = "compilation"
    method: ClassVar[str] = "prepareModel_1_3"
    forms: ClassVar[tuple[Level, ...]] = (V1_3,)
    considered: Id
    operations: Annotated[tuple[U32, ...], Meta(max_length=1 << 20)] = ()
    cache: Id = 0


class Bind(MakingCall, tag=19, frozen=True):
    """Check a request against a prepared model and map its memories; the binding can be executed repeatedly."""

    phase: ClassVar[str] = "transfers"
    prepared: Id
    request: WireRequest


class Execute(MakingCall, tag=20, frozen=True):
    """Execute in the background; `NotifyExecuted` with its number follows on the callback channel, exactly once."""

    phase: ClassVar[str] = "execution"
    method: ClassVar[str] = "execute"
    forms: ClassVar[tuple[Level, ...]] = (V1_0, V1_2, V1_3)
    since: ClassVar[dict[str, Level]] = {"measure": V1_2, "deadline": V1_3, "loop_timeout": V1_3}
    form: U32
    binding: Id
    measure: bool = False
    deadline: U64 = 0
    loop_timeout: U64 = 0


class ExecuteSynchronously(ClientCall, tag=21, frozen=True):
    """Execute and reply at the end, on a channel or over the queues of a burst.

    The reply is `Acknowledged` if all outputs were written to the client's memory, in the model's declared shapes, and
    nothing was measured; otherwise `ExecutedReply` or `Failed`.
    """

    phase: ClassVar[str] = "execution"
    method: ClassVar[str] = "executeSynchronously"
    forms: ClassVar[tuple[Level, ...]] = (V1_2, V1_3)
    since: ClassVar[dict[str, Level]] = {"deadline": V1_3, "loop_timeout": V1_3}
    form: U32
    binding: Id
    measure: bool = False
    deadline: U64 = 0
    loop_timeout: U64 = 0


class ExecuteFenced(MakingCall, tag=22, frozen=True):
    """Execute once the attached fences are signalled.

    The fence of its end comes with the answer, unless it has ended already.
    """

    phase: ClassVar[str] = "execution"
    method: ClassVar[str] = "executeFenced"
    forms: ClassVar[tuple[Level, ...]] = (V1_3,)
    binding: Id
    fences: Annotated[int, Meta(ge=0, le=MAX_DESCRIPTORS)]
    measure: bool = False
    deadline: U64 = 0
    loop_timeout: U64 = 0
    after: U64 = 0


class GetExecutionInfo(ClientCall, tag=23, frozen=True):
    """The result of a fenced execution."""

    phase: ClassVar[str] = "results"
    method: ClassVar[str] = "getExecutionInfo"
    forms: ClassVar[tuple[Level, ...]] = (V1_3,)
    execution: Id


class ConfigureExecutionBurst(MakingCall, tag=24, frozen=True):
    """Open a burst over the attached queues."""

    phase: ClassVar[str] = "preparation"
    method: ClassVar[str] = "configureExecutionBurst"
    forms: ClassVar[tuple[Level, ...]] = (V1_2,)
    prepared: Id


class Allocate(MakingCall, tag=30, frozen=True):
    """Allocate a driver buffer. roles: prepared model, index, whether output, frequency."""

    phase: ClassVar[str] = "transfers"
    method: ClassVar[str] = "allocate"
    forms: ClassVar[tuple[Level, ...]] = (V1_3,)
    dimensions: Dims
    roles: Annotated[tuple[tuple[Id, U32, bool, float], ...], Meta(max_length=1024)]


class CopyTo(ClientCall, tag=31, frozen=True):
    """Copy a driver buffer to a memory."""

    phase: ClassVar[str] = "transfers"
    method: ClassVar[str] = "copyTo"
    forms: ClassVar[tuple[Level, ...]] = (V1_3,)
    buffer: Id
    pool: Pool


class CopyFrom(ClientCall, tag=32, frozen=True):
    """Copy a memory to a driver buffer."""

    phase: ClassVar[str] = "transfers"
    method: ClassVar[str] = "copyFrom"
    forms: ClassVar[tuple[Level, ...]] = (V1_3,)
    buffer: Id
    pool: Pool
    dimensions: Dims


class GetShape(ClientCall, tag=33, frozen=True):
    """The shape of a driver buffer's contents."""

    phase: ClassVar[str] = "transfers"
    buffer: Id


class GetUsage(ClientCall, tag=35, frozen=True):
    """The resources that each client of the service holds, and may hold."""


class GetMemoryUse(ClientCall, tag=36, frozen=True):
    """The memory of a prepared model, as its driver reports it."""

    prepared: Id


class Reconfigure(ClientCall, tag=37, frozen=True):
    """Change a prepared model's options while no execution of it runs. options: all of them, as JSON."""

    phase: ClassVar[str] = "preparation"
    prepared: Id
    options: Annotated[bytes, Meta(max_length=1 << 20)]


# ------------------------------------------------------------------------------------------------------------- replies


class Reply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="t"):
    """A reply from the service."""


class Acknowledged(Reply, tag=0, frozen=True):
    """Done, without a result."""


class Failed(Reply, tag=1, frozen=True):
    """An error. kind: its class in the exception tree. recycle: whether the process should be replaced by a new one.

    stack: the frames of the driver's code where it raised the error.
    """

    status: U32
    kind: Text
    message: Text
    shapes: Annotated[tuple[Dims | None, ...], Meta(max_length=4096)] = ()
    recycle: bool = False
    stack: Text = ""


class Welcome(Reply, tag=2, frozen=True):
    """The answer to Hello. confinement: the applied parts of the sandbox, and why others were not.

    layout: the preferred layout of models, or "". origin: the loaded driver, a name or an absolute path; "" if unknown.
    code: a digest of the loaded code.
    """

    version: U32
    level: U32
    name: Text
    pid: U32
    cpus: U64
    shared: bool
    confinement: Annotated[dict[Text, Text], Meta(max_length=64)]
    layout: Text = ""
    origin: Text = ""
    code: Annotated[bytes, Meta(max_length=32)] = b""


class CapabilitiesReply(Reply, tag=3, frozen=True):
    """Capabilities: a table since 1.2; float32, quant8 and (1.1) relaxed float32 before."""

    operands: Annotated[dict[U32, WirePerformance], Meta(max_length=4096)]
    others: Annotated[tuple[WirePerformance, ...], Meta(max_length=4)]


class TextReply(Reply, tag=4, frozen=True):
    """One word."""

    value: Text | U64


class NamesReply(Reply, tag=5, frozen=True):
    """Several words."""

    names: Annotated[tuple[Text, ...], Meta(max_length=4096)]


class Verdicts(Reply, tag=6, frozen=True):
    """For each operation, whether it is supported, and why not."""

    verdicts: Annotated[tuple[tuple[bool, Text], ...], Meta(max_length=1 << 20)]


class SupportReply(Reply, tag=16, frozen=True):
    """The answer to `Consider`. kept: whether its number now refers to an object."""

    verdicts: Annotated[tuple[tuple[bool, Text], ...], Meta(max_length=1 << 20)]
    groups: Annotated[tuple[WireGroup, ...], Meta(max_length=1 << 20)] = ()
    kept: bool = False


class ExecutedReply(Reply, tag=8, frozen=True):
    """The result of an execution. provided: outputs in the driver's memory.

    Their bytes follow each other in `data`, or in the attached memory.
    """

    shapes: Annotated[tuple[Dims, ...], Meta(max_length=4096)] = ()
    sufficient: Annotated[tuple[bool, ...], Meta(max_length=4096)] = ()
    timing: WireTiming = WireTiming()
    provided: Annotated[tuple[U32, ...], Meta(max_length=4096)] = ()
    data: Bytes = b""


class Shape(Reply, tag=12, frozen=True):
    """A shape, None without contents."""

    shape: Dims | None


class ExecutionInfoReply(Reply, tag=10, frozen=True):
    """Timing of a fenced execution. shapes: those of its outputs; empty if all match the model."""

    launched: WireTiming
    fenced: WireTiming
    shapes: Annotated[tuple[Dims, ...], Meta(max_length=4096)] = ()


class Quota(Struct, frozen=True):
    """The limit of a resource or thing for each client.

    own: reserved for each; common: shared by all; both 0 for things.
    """

    name: Text
    most: U64
    own: U64 = 0
    common: U64 = 0


class Usages(Struct, frozen=True):
    """The amounts that a process's client holds, in the order of the quotas."""

    pid: U32
    used: Annotated[tuple[U64, ...], Meta(max_length=256)]


class Usage(Reply, tag=13, frozen=True):
    """All quotas, and the holdings of each client. most: clients at once."""

    most: U32
    quotas: Annotated[tuple[Quota, ...], Meta(max_length=256)]
    clients: Annotated[tuple[Usages, ...], Meta(max_length=4096)]


class WireMemoryUse(Reply, tag=14, frozen=True):
    """Bytes that a prepared model holds, see `nnhal.hal.memory`."""

    weights_copied: U64 | None = None
    weights_in_place: U64 | None = None
    working: U64 | None = None
    per_execution: U64 | None = None


class CacheFileCounts(Reply, tag=17, frozen=True):
    """The number of files of each kind.

    code: identifies the code for the cache. unknown: why it is unknown, "" otherwise.
    """

    model: Annotated[int, Meta(ge=0, le=32)]
    data: Annotated[int, Meta(ge=0, le=32)]
    code: Annotated[bytes, Meta(max_length=32)] = b""
    unknown: Text = ""


class PreparedTraits(Reply, tag=15, frozen=True):
    """The traits of a prepared model (see `nnhal.hal.device.Prepared`), in its notification."""

    weights_consumed: bool = False
    changeable: Annotated[tuple[Text, ...], Meta(max_length=4096)] = ()
    writes_later: bool = False


# ----------------------------------------------------------------------------------------------------------- callbacks


class ServiceCall(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="t"):
    """A call from the service, on the callback channel."""


class NotifyPrepared(ServiceCall, tag=0, frozen=True):
    """The end of a PrepareModel, PrepareConsidered or PrepareModelFromCache."""

    object: Id
    result: Acknowledged | Failed | PreparedTraits


class NotifyExecuted(ServiceCall, tag=1, frozen=True):
    """The end of an Execute; a descriptor of outputs that the driver provided is attached."""

    object: Id
    result: ExecutedReply | Failed


ClientCalls = (
    Hello | AttachLane | Release | Cancel | Hold | GetCapabilities | GetStatus | GetVersionString | GetType
    | GetSupportedExtensions | GetSupportedOperations | PrepareModel | Bind | Execute | ExecuteSynchronously
    | ExecuteFenced | GetExecutionInfo | ConfigureExecutionBurst | Allocate | CopyTo | CopyFrom | GetShape
    | GetRelaxations | GetUsage | GetMemoryUse | Reconfigure | Consider | PrepareConsidered | GetNumberOfCacheFiles
    | PrepareModelFromCache | HoldFiles | WriteTrace
)  # fmt: skip
Replies = (
    Acknowledged | Failed | Welcome | CapabilitiesReply | TextReply | NamesReply | Verdicts | ExecutedReply
    | ExecutionInfoReply | Shape | Usage | WireMemoryUse | SupportReply | CacheFileCounts
)  # fmt: skip
ServiceCalls = NotifyPrepared | NotifyExecuted

encode = msgspec.msgpack.Encoder().encode
DONE = Acknowledged()
ENCODED_DONE = encode(DONE)  # compared by its bytes: most answers are this one
WireError = msgspec.DecodeError


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a decoder of one message.

    It raises WireError for all invalid ones; msgspec alone does not for bad UTF-8 and deep nesting.
    """
    inner = msgspec.msgpack.Decoder(kind).decode

    def decode(data: bytes) -> Any:
        try:
            return inner(data)
        except (UnicodeDecodeError, RecursionError) as error:
            raise WireError(str(error)) from None

    return decode


decode_call: Callable[[bytes], ClientCalls] = _decoder(ClientCalls)
decode_reply: Callable[[bytes], Replies] = _decoder(Replies)
decode_callback: Callable[[bytes], ServiceCalls] = _decoder(ServiceCalls)


def form_for(call: type[ClientCall], level: Level) -> Level | None:
    """Return the newest variant of a method that a service of this HAL version has; None if it has none."""
    return max((f for f in call.forms if f <= level), default=None)


def hal_name(call: ClientCall) -> str:
    """Return the HAL's name of a call, such as `prepareModel_1_1`; for nnhal's own messages, their class."""
    form = getattr(call, "form", call.forms[0])
    if not call.method:
        return type(call).__name__
    return call.method if form == call.forms[0] else f"{call.method}_1_{form - 1}"


def phase_of(name: str) -> str:
    """Return the phase of a call that `hal_name` named."""
    return _PHASES.get(name.partition("_1_")[0], "initialisation")


_PHASES = {call.method or call.__name__: call.phase for call in get_args(ClientCalls)}


def refusal(call: ClientCall, level: Level) -> str:
    """Return why a service of this HAL version rejects the call: a later method, variant or field; "" if it accepts."""
    form = getattr(call, "form", call.forms[0])
    if form == call.forms[-1] <= level:  # it has all fields
        return ""
    if form not in call.forms:
        return f"{call.method}: HAL version is {form}, must be one of {', '.join(map(str, call.forms))}"
    if form > level:
        return f"{hal_name(call)} requires HAL version {Level(form)}, the service has {level}"
    for name, since in call.since.items():
        if since > form and getattr(call, name) != _default(call, name):
            return f"{hal_name(call)}: {name} is set, must be left out before HAL version {since}"
    return ""


def _default(call: ClientCall, name: str) -> object:
    """Return the default of a field."""
    defaults = type(call).__struct_defaults__
    return defaults[type(call).__struct_fields__.index(name) - len(type(call).__struct_fields__) + len(defaults)]
