"""The driver interface. The runtime sees only these classes, whether the driver runs in this process or is isolated.

A driver author writes a `Device` with `supports` and `prepare`, and a `Prepared` with `run`. Everything else has a
default.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nnhal.base.answers import driver_call, safe_repr
from nnhal.base.codes import DeviceStatus, DeviceType, OperandType, Preference, Priority
from nnhal.base.errors import ContractBroken, InvalidArgument, InvalidModel, OperationFailed
from nnhal.base.extensions import EXTENSIONS
from nnhal.base.lazy import cached_property
from nnhal.base.levels import FL8, V1_2, Level
from nnhal.base.operands import Array
from nnhal.base.records import Record, field
from nnhal.hal.background import FencedExecution, Notify, run_fenced, run_in_background
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.cache.files import Cache, CacheContent, CacheFiles
from nnhal.hal.choices import Proofs
from nnhal.hal.code import MADE_OTHERWISE, CodeIdentity, CreationArguments, code_of
from nnhal.hal.fence import Fence
from nnhal.hal.host import HostBuffer, LocalBurst
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, MemoryUse
from nnhal.hal.request import Control, Request, Signature, Timing
from nnhal.model.graph import Model, Operation
from nnhal.model.layouts import LAYOUTS
from nnhal.model.orders import Layout

if TYPE_CHECKING:
    from typing import Self

    from nnhal.hal.queue import RunQueue

T = TypeVar("T")
MOST_THREADS = 1024  # the most that an application may request
NUMERICS = "numerics"  # an option of devices that declare more than "fast"
FAST, EXACT = "fast", "exact"  # its values
NUMERICS_PREFIX = "numerics:"  # marks them among the relaxations that another process receives
RELAXATIONS = {
    "clipped_nan": "a NaN that an activation clips may be either of its bounds",
    "float16": "between operations float16 may be float32: not rounded, and not infinite beyond 65504",
    "infinities": "an infinite result may be the greatest number of its type",
    "long_sums": "a sum of n products or exponentials may be off by n / 4 units of 2**-24 of the sum of their magnitudes",
    "subnormals": "numbers nearer to 0 than the least normal one may be taken for 0, going in and coming out",
}


class Verdict(NamedTuple):
    """Whether a device supports an operation, and why (not).

    Attributes:
        ok: Whether the device supports the operation.
        reason: One line for the user.
    """

    ok: bool
    reason: str = ""


YES = Verdict(True)


class Performance(NamedTuple):
    """Declared performance relative to the CPU reference, which is 1.0; smaller is better.

    Attributes:
        exec_time: Relative execution time.
        power_usage: Relative power usage.
    """

    exec_time: float = 1.0
    power_usage: float = 1.0


class Capabilities(Record, frozen=True):
    """Declared performance by operand type, as in the HAL's `Capabilities`.

    Attributes:
        operands: By operand type. A type that is missing has no declared performance.
        relaxed_scalar: For FLOAT32 computed as float16.
        relaxed_tensor: For TENSOR_FLOAT32 computed as float16.
        if_performance: For IF.
        while_performance: For WHILE.
    """

    operands: Mapping[int, Performance] = field(default_factory=dict)
    relaxed_scalar: Performance = Performance()
    relaxed_tensor: Performance = Performance()
    if_performance: Performance = Performance()
    while_performance: Performance = Performance()

    @classmethod
    def uniform(cls, exec_time: float, power_usage: float = 1.0) -> "Capabilities":
        """Declare the same performance for everything.

        Args:
            exec_time: Relative execution time; the CPU reference is 1.0.
            power_usage: Relative power usage.
        """
        each = Performance(exec_time, power_usage)
        return cls(dict.fromkeys(OperandType, each), each, each, each, each)

    def of(self, type: int, *, relaxed: bool = False) -> Performance | None:
        """Return the performance for an operand type, or None if none is declared.

        Args:
            type: The code of the operand type.
            relaxed: Whether float32 is computed as float16.
        """
        if relaxed and type == OperandType.TENSOR_FLOAT32:
            return self.relaxed_tensor
        if relaxed and type == OperandType.FLOAT32:
            return self.relaxed_scalar
        return self.operands.get(type)


class Hints(Record, frozen=True):
    """The application's requests for a compilation.

    Attributes:
        preference: The execution preference.
        priority: The priority of the executions.
        threads: The most threads that the engine may use, up to `MOST_THREADS`; 0 leaves the choice to the driver.
            nnhal never passes more than this process has CPUs.
        deadline: Monotonic nanoseconds; None for no limit.
        options: The device's `driver_options`.
        worked_out: For `Device.prepare` only: what `consider` gave as `Considered.worked_out` for this model, or for
            one that contains it. May be None at any time.
        cache: Files that `Device.prepare` may fill, or that `Device.prepare_from_cache` reads; None without a cache,
            and for a device with `number_of_cache_files` of 0.
    """

    preference: Preference = Preference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    threads: int = 0
    deadline: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    worked_out: "ReusableWork | None" = None
    cache: Cache | None = None


class OperationGroup(Record, frozen=True):
    """Operations that a device runs as one, if enough of them are in one partition.

    Attributes:
        operations: Their numbers in the main subgraph. An operation is in one group of a device at most.
        performance: The declared performance of the group, relative to the CPU reference for all its operations.
        at_least: How many operations are enough; 0 for all.
    """

    operations: Sequence[int]
    performance: Performance
    at_least: int = 0


class Considered(Record, frozen=True):
    """A device's answer about a model.

    Attributes:
        verdicts: One for each operation of the main subgraph, for the operation alone.
        groups: Operations that the device runs as one. An operation with a negative verdict is supported only within
            its group.
        worked_out: Any object that helps to prepare the model or a part of it. nnhal passes it as `Hints.worked_out`,
            and drops it when the compilation has ended.
    """

    verdicts: Sequence[Verdict]
    groups: Sequence[OperationGroup] = ()
    worked_out: Any = None


def _as_verdicts(given: Any) -> Any:
    """Convert a bool in the driver's answer to a Verdict. `consider_support` checks everything else."""
    return (
        [Verdict(each) if isinstance(each, bool) else each for each in given] if isinstance(given, Sequence) else given
    )


class ReusableWork:
    """Reusable work of a device's `consider`, as its `prepare` receives it.

    Attributes:
        model: The model that was considered.
        operations: The numbers of the operations to prepare, in order.
        given: The driver's object; None once the compilation has ended, so read it once.
    """

    __slots__ = ("_kept", "model", "operations")

    def __init__(self, model: Model, operations: tuple[int, ...], kept: Sequence[Any]) -> None:
        """kept: holds the driver's object, until it is emptied."""
        self.model, self.operations, self._kept = model, operations, kept

    @property
    def given(self) -> Any:
        """The driver's object itself."""
        return next(iter(self._kept), None)

    @property
    def whole(self) -> bool:
        """Whether the model to prepare is the considered one, not a part of it."""
        return len(self.operations) == len(self.model.main.operations)


class Prepared(ABC):
    """A model that a device has prepared. Several threads may call `run` at once.

    Every method but `run` has a default that works for any driver.

    Attributes:
        model: The prepared model, or the outline of a restored one. nnhal sets it; a driver keeps what it needs itself.
        timely: Whether `run` returns at its deadline, whatever the engine does, for example because the engine runs in
            another process.
        one_at_a_time: Whether executions must not overlap: later ones wait in order of arrival. A driver's `execute` or
            `execute_fenced` has to ensure this itself.
        weights_consumed: Whether the driver no longer reads the model's constants after `prepare`. nnhal may then
            release them; reading one is `ContractBroken`.
        profiles: Whether `run` reports operation times to `control.profile`.
        changeable: The options that `reconfigure` can change.
        writes_later: Whether the driver may write to its cache files after `prepare` returned. A device that overrides
            `prepare_from_cache` has to set it; nnhal knows it for all others.
        trimmable: Whether `trim` can release memory that only executions need. A driver's `execute` or `execute_fenced`
            must not run at the same time as `trim`.
    """

    model: Model
    timely = False
    one_at_a_time: bool = False
    weights_consumed: bool = False
    profiles: bool = False
    changeable: Collection[str] = ()
    writes_later: bool = False
    trimmable: bool = False
    _wrapper: "weakref.ref[Prepared] | None" = None

    @abstractmethod
    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute the model.

        Read `request.inputs`. Give each output once with `request.write`, or fill `request.outputs[i]` in place, before
        you return. Call `control.check()` between operations, so that deadlines and cancellation take effect. A caller
        runs `request.execute(prepared.run, control)`.

        Args:
            request: The inputs and outputs.
            control: The deadline, cancellation, and what to measure.

        Returns:
            The measured times, if `control.measure` requests them, else None.

        Raises:
            NnhalError: The execution failed; the status has the kind of failure.
        """

    def request(
        self, inputs: Sequence[Array | None], rooms: Sequence[Array | None] | None = None, **buffers: Any
    ) -> Request:
        """Create a request for one execution.

        Args:
            inputs: An array for each input; None if it is omitted or lies in a buffer.
            rooms: The output arrays; None for all, or for one, lets the request allocate.
            buffers: As in `Request`.
        """
        signature = self.signature
        return signature.make(signature, inputs, rooms, **buffers)

    @cached_property
    def signature(self) -> Signature:
        """The signature of the model, for requests."""
        return Signature.of(self.model, "driver", self)

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """Execute in the background.

        Args:
            request: As in `run`.
            control: As in `run`.
            notify: Called exactly once at the end, also after a failure.

        Raises:
            NnhalError: The execution cannot be launched.
        """
        run_in_background(self._in_its_turn(), request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """Execute when every fence in `wait_for` is signalled.

        Args:
            request: As in `run`. Its outputs have fully specified shapes.
            control: As in `run`.
            wait_for: The fences.
            after: Nanoseconds that the execution may take once the fences are signalled; None for no limit.

        Returns:
            The launched execution. Its fence signals the end.

        Raises:
            InvalidArgument: An output's shape is unknown, or a fence is in error.
        """
        return run_fenced(self._in_its_turn(), request, control, wait_for, after)

    def _in_its_turn(self) -> "Prepared":
        """Return nnhal's wrapper, whose `run` waits for its turn: a driver's `execute` may call the default."""
        wrapper = None if self._wrapper is None else self._wrapper()
        return self if wrapper is None else wrapper

    def burst(self) -> Burst:
        """Open a burst: a series of executions, one at a time, that keep their resources in between."""
        return LocalBurst(self)

    def burst_executor(self) -> BurstExecutor | None:
        """Return a new executor for a burst from another process, or None to have `run` called."""
        return None

    def burst_opened(self) -> None:
        """Prepare for a burst that begins, for example by raising the clock frequency."""

    def burst_closed(self) -> None:
        """Note that a burst has ended."""

    def memory(self) -> MemoryUse:
        """Return the memory that the model holds now, as far as the driver knows.

        nnhal may call it at any time, also during executions.

        Returns:
            The memory use, in bytes.
        """
        return MemoryUse()

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """Replace the options. nnhal calls it while no execution runs.

        Args:
            options: All options, as in `Hints.options`; a missing one has its default. Only those in `changeable`
                differ from before.

        Raises:
            InvalidArgument: A value is invalid. All options are as before.
            NnhalError: The change failed. All options are as before.
        """
        raise ContractBroken("reconfigure() is missing, must be there where `changeable` names options")

    def trim(self, *, pressed: bool) -> None:
        """Release memory that only executions need.

        nnhal calls it if `trimmable` is set, when there was no execution for some seconds, or when memory is short. No
        execution runs meanwhile; new ones wait, at most 2 s. `memory` may be called at the same time. The next
        execution has the same results, and may take a few milliseconds longer.

        Args:
            pressed: Whether memory is short. The next execution may then take longer than a few milliseconds.
        """

    def save(self, files: CacheContent) -> bool:
        """Fill the sections of the cache files, from which `Device.restore` restores the model.

        nnhal calls it once, right after `prepare`, if the application has a cache and the device has cache files.

        Args:
            files: The sections to fill.

        Returns:
            Whether there is anything to cache.
        """
        return False

    def close(self) -> None:
        """Release all resources. nnhal calls it once, after the last execution has ended."""


class DeviceState:
    """The state that nnhal keeps for a device as long as it lives.

    made_with: how it was created. identity: its verified attributes, and the number of extensions then. queues: of its
    executions and compilations, by use.
    """

    __slots__ = ("identity", "made_with", "queues")

    def __init__(self) -> None:
        self.made_with = MADE_OTHERWISE
        self.identity: tuple[int, Identity] | None = None
        self.queues: dict[str, RunQueue] = {}


class Device(ABC):
    """A device and its driver. Its attributes must not change while it lives.

    Attributes:
        name: The name by which users choose the device.
        version: The version of the driver; another version makes its measurements and cache entries invalid.
        type: The HAL's `DeviceType`.
        level: The HAL version or feature level that the driver implements.
        extensions: The names of the vendor extensions that it supports.
        relaxations: Deviations from the definition that its results may have: keys of `RELAXATIONS`.
        numerics: "fast", and "exact" if `consider` and `prepare` obey the option `numerics`. With "exact", each 8-bit
            result is bit-identical with the reference, and the device rejects all other operations.
        one_at_a_time: As in `Prepared`, for all models of the device together.
        at_once: How many executions it runs at once without loss of speed, for example on other hardware than this CPU;
            0 for as many as the cores allow (`hal.queue`).
        preferred_layout: "nhwc" or "nchw" if image operations should have that layout in all models that it receives;
            None for any.
        processor_matters: Whether its cache entries are valid for this type of CPU only.
        asked_again: Whether its answers depend on more than name, version, level, options and code. nnhal then caches
            none of them.
        timely: Whether `prepare` returns at its deadline, whatever the driver does.
        proofs: For a device with several kernel variants of an operation: what to verify on this CPU, and the results
            (`hal.proofs`).
    """

    name: str = "unnamed"
    version: str = "0"
    type: DeviceType = DeviceType.OTHER
    level: Level = FL8
    extensions: Sequence[str] = ()
    relaxations: Sequence[str] = ()  # keys of `RELAXATIONS` that apply to its results
    numerics: Sequence[str] = (FAST,)
    one_at_a_time: bool = False
    at_once: int = 0
    preferred_layout: Layout | None = None
    processor_matters: bool = False
    asked_again: bool = False
    timely = False
    proofs: "Proofs[Device] | None" = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "Self":
        """Note the arguments: devices with other arguments may compile other things."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        device = super().__new__(cls)
        if cls.__new__ is Device.__new__:
            device._device_state.made_with = CreationArguments.of((args, kwargs))
        return device

    @cached_property
    def _device_state(self) -> DeviceState:
        return DeviceState()

    @property
    def code_identity(self) -> CodeIdentity:
        """The identity of the driver's code as loaded here, and of the arguments that the device was created with."""
        return code_of(type(self), self._device_state.made_with)

    def capabilities(self) -> Capabilities:
        """Return the declared performance; that of the CPU reference by default."""
        return Capabilities.uniform(1.0)

    @abstractmethod
    def supports(self, model: Model) -> Sequence[Verdict | bool]:
        """Decide which operations of a model the device supports.

        Args:
            model: The model. Its constants may be readable (`Model.readable`).

        Returns:
            A `Verdict` or a bool for each operation of the main subgraph. A supported operation must also prepare and
            run.
        """

    def consider(self, model: Model, hints: Hints) -> Considered:
        """Decide which operations of a model the device supports, with these hints. The default calls `supports`.

        Override it if verdicts depend on the hints, if the driver fuses operations, or if `prepare` can reuse work.

        Args:
            model: The model.
            hints: The hints of the compilation.

        Returns:
            The verdicts, groups and reusable work.

        Raises:
            InvalidArgument: The hints are invalid. The application receives this error.
        """
        try:
            return Considered(_as_verdicts(self.supports(model)))
        except InvalidModel:
            raise
        except InvalidArgument as error:  # `supports` receives the model only, so the hints cannot be the cause
            raise InvalidModel(str(error)) from error

    @abstractmethod
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Compile a model whose operations all have a positive verdict.

        Args:
            model: The model.
            hints: The hints of the compilation.

        Returns:
            A new object for each call.

        Raises:
            InvalidArgument: The hints are invalid. The application receives this error.
            NnhalError: The compilation failed. nnhal may place the model on another device.
        """

    def number_of_cache_files(self) -> CacheFiles:
        """Return how many files a cache entry has, up to 32 of each kind. By default none, and nothing is cached."""
        return CacheFiles()

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        """Restore a model from the sections that `Prepared.save` filled. Their contents are verified, byte for byte.

        Args:
            files: The sections.
            token: The 32 bytes that identify the compilation.
            hints: The hints that `prepare` received.

        Raises:
            NnhalError: The model cannot be restored. nnhal compiles it again.
        """
        raise OperationFailed("restore() is missing, must be there where save() is")

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        """Prepare the contents of `hints.cache`.

        By default, nnhal reads the files, compares them with the driver's private record, and calls `restore`. A driver
        that overrides this method and saves in `prepare` is responsible for integrity: it copies the files into memory
        before it parses them, and compares a keyed hash.

        Args:
            outline: The model's inputs, outputs and pools, without operations.
            hints: The hints of the compilation.

        Raises:
            NnhalError: The entry cannot be used; the message has the reason.
        """
        assert hints.cache is not None
        from nnhal.hal.cache.keeper import load_content

        content = load_content(hints.cache, outline.pools, *cache_record_identity(self))
        return self.restore(content, hints.cache.token, hints)

    @property
    def cached_as(self) -> "Device":
        """The device that owns the cache files: itself, or the device that it wraps."""
        return self

    def effective_hints(self, hints: Hints) -> Hints:
        """Return the effective hints. Compilations differ if these differ.

        Args:
            hints: The hints that the application gave.
        """
        return hints

    def status(self) -> DeviceStatus:
        """Return whether the device is available, busy or offline, as far as it knows."""
        return DeviceStatus.AVAILABLE

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """Allocate driver memory for inputs and outputs of models that this device has prepared.

        By default, the buffer is an array in the driver's process.

        Args:
            desc: The shape of the buffer.
            roles: The inputs and outputs that it is for.

        Raises:
            NnhalError: The driver refuses. nnhal then uses shared memory.
        """
        return HostBuffer(desc, roles)

    def close(self) -> None:
        """Release all resources."""


# ------------------------------------------------------------------------------------------------------ what it answers
#
# Drivers are asked by these functions alone, in this process and in their own: each looks at the answer, gives it in plain
# types, and raises nothing but NnhalErrors that name the device, whatever the driver does.

MOST = 4096  # extensions, or types with declared performance
LONGEST = 256  # characters of a name


class Identity(NamedTuple):
    """The attributes of a device, verified."""

    name: str
    version: str
    type: DeviceType
    level: Level
    extensions: tuple[str, ...]
    relaxations: tuple[str, ...]
    preferred_layout: Layout | None
    numerics: tuple[str, ...]


def identity_of(device: Device) -> Identity:
    """Return the verified attributes of a device; InvalidArgument names an invalid one.

    They are read once, and again after an extension was registered.
    """
    registered = len(EXTENSIONS)
    known = device._device_state.identity
    if known is None or known[0] != registered:
        where = f"device {type(device).__module__}:{type(device).__qualname__}"
        name = _attribute(device, "name", where, _text)
        where = f"device {name}"
        known = (
            registered,
            Identity(
                name,
                _attribute(device, "version", where, _text),
                _attribute(device, "type", where, partial(require_kind, DeviceType)),
                _attribute(device, "level", where, partial(require_kind, Level)),
                _attribute(device, "extensions", where, require_texts),
                _attribute(device, "relaxations", where, require_texts),
                _attribute(device, "preferred_layout", where, _layout),
                _attribute(device, "numerics", where, require_texts),
            ),
        )
        device._device_state.identity = known
    return known[1]


def where_of(device: Device) -> str:
    """Return the name of the device in messages.

    Args:
        device: The device.
    """
    return f"device {identity_of(device).name}"


def _attribute(device: Device, what: str, where: str, check: Callable[[Any, str], T]) -> T:
    with driver_call(where, what):
        return check(getattr(device, what), what)


def require_kind(kind: type[T], value: Any, what: str) -> T:
    """Return a driver's value; InvalidArgument if it has another class."""
    if not isinstance(value, kind):
        raise InvalidArgument(f"{what} is {safe_repr(value)}, must be a {kind.__name__}")
    return value


def _layout(value: Any, what: str) -> Layout | None:
    text = str.__str__(value) if isinstance(value, str) else ""
    if value is not None and text not in LAYOUTS:
        raise InvalidArgument(f"{what} is {safe_repr(value)}, must be None or one of {', '.join(LAYOUTS)}")
    return next((layout for layout in LAYOUTS if layout == text), None)


def _text(value: Any, what: str) -> str:
    """Return a name as a plain str that fits in one line and can be sent to other processes."""
    text = str.__str__(value) if isinstance(value, str) else ""
    if not text.isprintable() or not 0 < len(text) <= LONGEST:
        raise InvalidArgument(f"{what} is {safe_repr(value)}, must be a str of 1 to {LONGEST} printable characters")
    return text


def require_texts(values: Any, what: str) -> tuple[str, ...]:
    """Return a driver's texts; InvalidArgument unless they are a few bounded strings."""
    several = isinstance(values, Collection) and not isinstance(values, str | bytes)
    texts = list(islice(values, MOST + 1)) if several else None
    if texts is None or len(texts) > MOST or not all(isinstance(text, str) for text in texts):
        raise InvalidArgument(f"{what} is {safe_repr(values)}, must be several str, at most {MOST}")
    return tuple(_text(text, f"{what}[{n}]") for n, text in enumerate(texts))


def layer_of(device: Device) -> str:
    """Return the layer of a trace that holds the device's calls.

    Args:
        device: The device.
    """
    return "ipc" if device.timely is True else "driver"


def layout_of(device: Device) -> Layout | None:
    """Return the layout for models of this device. HAL 1.2 and later can express one.

    Args:
        device: The device.
    """
    own = identity_of(device)
    return own.preferred_layout if own.level >= V1_2 else None


def code_by(device: Device) -> CodeIdentity:
    """Return the identity of the code that compiles for a device."""
    return device.cached_as.code_identity


def cache_record_identity(device: Device) -> tuple[str, bytes]:
    """Return the name of the driver's record of its cache files, and the device's identity there."""
    from nnhal.hal.cache.keeper import identity

    device = device.cached_as
    own = identity_of(device)
    matters = require_kind(bool, device.processor_matters, "processor_matters")
    return own.name, identity(own.name, own.version, device.code_identity, processor=matters)


def each_operation(model: Model, judge: Callable[[Model, Operation], Verdict | bool | str]) -> list[Verdict]:
    """Decide operation by operation.

    Operations with constants in memory that this process cannot map are rejected without a call of `judge`.

    Args:
        model: The model.
        judge: Returns a `Verdict`, a bool, or the reason of a rejection ("" if supported).

    Returns:
        A verdict for each operation of the main subgraph.
    """
    verdicts = []
    for operation in model.main.operations:
        answer = hidden_constant(model, operation) or judge(model, operation)
        if isinstance(answer, str):
            answer = Verdict(not answer, answer)
        verdicts.append(answer if isinstance(answer, Verdict) else Verdict(answer))
    return verdicts


def hidden_constant(model: Model, operation: Operation) -> str:
    """Return why a driver cannot read an operation's constants: one lies in opaque device memory; "" if it can."""
    for index in operation.inputs:
        operand = model.main.operands[index]
        if not model.readable(operand):
            return f"constant %{index} lies in a {model.pools[operand.location.pool].kind}, which cannot be mapped here"
    return ""
