"""The driver interface. The runtime sees only these classes, whether the driver runs in this process or is isolated.

A driver author writes a `Device` with `supports` and `prepare`, and a `Prepared` with `run`. Everything else has a
default.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from inspect import ismethod
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nnhal.base import trace
from nnhal.base.answers import close_quietly, driver_call, raise_application_error, safe_repr
from nnhal.base.codes import DeviceStatus, DeviceType, OperandType, Preference, Priority, type_name
from nnhal.base.cores import usable_cores
from nnhal.base.errors import ContractBroken, InvalidArgument, InvalidModel, NnhalError, OperationFailed
from nnhal.base.extensions import EXTENSIONS
from nnhal.base.levels import FL8, V1_2, Level
from nnhal.base.log import logger
from nnhal.base.operands import Array, fixed
from nnhal.base.records import Record, field, replace
from nnhal.base.time import is_number
from nnhal.hal.background import ExecutionInfo, FencedExecution, Notify, run_fenced, run_in_background
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.cache.files import MOST_FILES, Cache, CacheContent, CacheFiles, write_refusal
from nnhal.hal.choices import Proofs
from nnhal.hal.code import MADE_OTHERWISE, CodeIdentity, CreationArguments, code_of
from nnhal.hal.fence import Fence
from nnhal.hal.host import HostBuffer, LocalBurst
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, merge
from nnhal.hal.memory_use import MOST as MOST_BYTES
from nnhal.hal.memory_use import MemoryUse
from nnhal.hal.queue import RunQueue, places, sustained, units_of
from nnhal.hal.request import UNLIMITED, Act, Control, Request, Signature, Timing, checked_timing, with_check_before
from nnhal.hal.turns import OptionsLock
from nnhal.hal.waiting import OWN, LatencyByShape, LatencyEstimator, QueueClient
from nnhal.model.graph import Model, Operation
from nnhal.model.layouts import LAYOUTS, with_layout
from nnhal.model.orders import Layout
from nnhal.model.validate import release_constants, shape_of

if TYPE_CHECKING:
    from typing import Self

    from nnhal.hal.idle import TrimGuard

_log = logger("compilation")
T = TypeVar("T")
MOST_THREADS = 1024  # the most that an application may request
MOST_AT_ONCE = 4096  # executions
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
        signature: Signature | None = self.__dict__.get("signature")
        if signature is None:
            where = self.__dict__.get("_where", "driver")
            signature = self.__dict__["signature"] = Signature.of(self.model, where)
        return signature.make(signature, inputs, rooms, **buffers)

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """Execute in the background.

        Args:
            request: As in `run`.
            control: As in `run`.
            notify: Called exactly once at the end, also after a failure.

        Raises:
            NnhalError: The execution cannot be launched.
        """
        run_in_background(self, request, control, notify)

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
        return run_fenced(self, request, control, wait_for, after)

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
        vars(device)["_made_with"] = (
            CreationArguments.of((args, kwargs)) if cls.__new__ is Device.__new__ else MADE_OTHERWISE
        )
        return device

    @property
    def code_identity(self) -> CodeIdentity:
        """The identity of the driver's code as loaded here, and of the arguments that the device was created with."""
        return code_of(type(self), vars(self).get("_made_with", MADE_OTHERWISE))

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
    then, found = vars(device).get("_identity", (None, None))
    if found is None or then != registered:
        where = f"device {type(device).__module__}:{type(device).__qualname__}"
        name = _attribute(device, "name", where, _text)
        where = f"device {name}"
        found = Identity(
            name,
            _attribute(device, "version", where, _text),
            _attribute(device, "type", where, partial(_member, DeviceType)),
            _attribute(device, "level", where, partial(_member, Level)),
            _attribute(device, "extensions", where, _texts),
            _attribute(device, "relaxations", where, _texts),
            _attribute(device, "preferred_layout", where, _layout),
            _attribute(device, "numerics", where, _texts),
        )
        vars(device)["_identity"] = registered, found
    return found


def can_be_exact(device: Device) -> bool:
    """Return whether a device declares exact numerics.

    Args:
        device: The device.
    """
    return EXACT in identity_of(device).numerics


def wants_exact(options: Mapping[str, Any], name: str) -> bool:
    """Return whether a driver's options request exact numerics.

    Args:
        options: The options.
        name: The name of the device, for messages.

    Raises:
        InvalidArgument: The option has another value than "fast" or "exact".
    """
    found = options.get(NUMERICS, FAST)
    if found not in (FAST, EXACT):
        raise InvalidArgument(f"{name}: option {NUMERICS} is {safe_repr(found)}, must be {FAST} or {EXACT}")
    return bool(found == EXACT)


def where_of(device: Device) -> str:
    """Return the name of the device in messages.

    Args:
        device: The device.
    """
    return f"device {identity_of(device).name}"


def _attribute(device: Device, what: str, where: str, check: Callable[[Any, str], T]) -> T:
    with driver_call(where, what):
        return check(getattr(device, what), what)


def _member(kind: type[T], value: Any, what: str) -> T:
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


def _texts(values: Any, what: str) -> tuple[str, ...]:
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


def driver_capabilities(device: Device) -> Capabilities:
    """Return the performance that a device declares, verified.

    Args:
        device: The device.

    Raises:
        ContractBroken: The answer is not a `Capabilities`.
        InvalidArgument: A figure is not a positive number; the message names it.
    """
    with driver_call(where_of(device), "capabilities()"):
        stated = device.capabilities()
        if not isinstance(stated, Capabilities):
            raise ContractBroken(f"capabilities() gave {safe_repr(stated)}, must be Capabilities")
        return checked_capabilities(stated)


def checked_capabilities(stated: Capabilities) -> Capabilities:
    """Return the performance in plain types.

    Args:
        stated: The declared performance.

    Raises:
        InvalidArgument: A figure is not a positive number.
    """
    table: Any = stated.operands
    entries = list(islice(table.items(), MOST + 1)) if isinstance(table, Mapping) else None
    if entries is None or len(entries) > MOST:
        raise InvalidArgument(
            f"performance of operands is {safe_repr(table)}, must be a mapping of at most {MOST} types"
        )
    for code, _ in entries:
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code < 1 << 32:
            raise InvalidArgument(f"performance of {safe_repr(code)} is stated, must be of operand types")
    return Capabilities(
        {int(code): checked_performance(performance, type_name(code)) for code, performance in entries},
        checked_performance(stated.relaxed_scalar, "relaxed scalars"),
        checked_performance(stated.relaxed_tensor, "relaxed tensors"),
        checked_performance(stated.if_performance, "IF"),
        checked_performance(stated.while_performance, "WHILE"),
    )


def checked_performance(performance: Any, what: str) -> Performance:
    """Return one figure pair in plain types.

    Args:
        performance: The declared figures.
        what: Their name in messages.

    Raises:
        InvalidArgument: A figure is not a positive number.
    """
    if not isinstance(performance, Performance):
        raise InvalidArgument(f"performance of {what} is {safe_repr(performance)}, must be a Performance")
    for value in performance:
        if not is_number(value) or not value > 0:
            raise InvalidArgument(f"performance of {what} is {safe_repr(value)}, must be a number above 0")
    return Performance(*map(float, performance))


def checked_status(device: Device) -> DeviceStatus:
    """Return the device's status; ContractBroken if the answer is not a `DeviceStatus`."""
    with driver_call(where_of(device), "status()"):
        status = device.status()
        if not isinstance(status, DeviceStatus):
            raise ContractBroken(f"status() gave {safe_repr(status)}, must be a DeviceStatus")
        return status


def checked_prepared(
    device: Device, model: Model, hints: Hints, *, as_is: bool = False, client: QueueClient = OWN
) -> Prepared:
    """Prepare a model on a device, and verify the answer.

    The device receives the model in its preferred layout; inputs and outputs keep theirs. nnhal writes the driver's
    cache sections to the hints' cache files. If that fails, the files stay empty.

    Args:
        device: The device.
        model: The model.
        hints: The hints.
        as_is: Whether the model has the preferred layout already.
        client: The client in whose name the model is prepared and executed.

    Raises:
        ContractBroken: The answer is not a new `Prepared`.
    """
    try:
        return _prepared_by(device, with_layout(model, None if as_is else layout_of(device)).model, hints, client)
    finally:
        if hints.cache is not None:
            hints.cache.settled.set()


def _prepared_by(device: Device, model: Model, hints: Hints, client: QueueClient) -> Prepared:
    where = where_of(device)
    with trace.span(layer_of(device), "compilation", "prepare", where), driver_call(where, "prepare()"):
        hints = pin_threads(hints)
        prepared = _in_its_turn(device, where, hints, client, lambda: device.prepare(model, hints))
        _taken(device, prepared, "prepare()", model, where, hints, client)
    if hints.cache is not None:
        try:
            _save(device, prepared, hints.cache, model, where)
        except BaseException:  # interrupted
            hints.cache.settled.set()  # its end may be waiting for this event
            prepared.close()
            raise
    return _watched(prepared, where)  # after `save`, which counts as no execution


def checked_restored(device: Device, outline: Model, hints: Hints, *, client: QueueClient = OWN) -> Prepared:
    """Restore a model from `hints.cache`, as `checked_prepared` prepares one. Any NnhalError is a cache miss."""
    assert hints.cache is not None
    try:
        return _restored_by(device, outline, hints, client)
    finally:
        hints.cache.settled.set()


def _restored_by(device: Device, outline: Model, hints: Hints, client: QueueClient) -> Prepared:
    where = where_of(device)
    with trace.span(layer_of(device), "compilation", "restore", where), driver_call(where, "prepare_from_cache()"):
        hints = pin_threads(hints)
        prepared = _in_its_turn(device, where, hints, client, lambda: device.prepare_from_cache(outline, hints))
        return _watched(_taken(device, prepared, "prepare_from_cache()", outline, where, hints, client), where)


def _in_its_turn(device: Device, where: str, hints: Hints, client: QueueClient, prepare: Callable[[], T]) -> T:
    """Call `prepare` in the device's queue. For an isolated driver, its own process queues the call."""
    if device.timely:
        return prepare()
    queue: RunQueue = vars(device).setdefault("_prepare_queue", RunQueue(f"{where}: prepare", places(0), strict=False))
    return queue.run(prepare, client, hints.priority, Control(deadline=hints.deadline))


def cache_files_by(device: Device) -> CacheFiles:
    """Return how many cache files of each kind a device uses; none below HAL 1.2."""
    if identity_of(device).level < V1_2:
        return CacheFiles()
    with driver_call(where_of(device), "number_of_cache_files()"):
        numbers = device.number_of_cache_files()
        fits = isinstance(numbers, tuple) and len(numbers) == len(CacheFiles._fields)
        if not fits or not all(type(n) is int and 0 <= n <= MOST_FILES for n in numbers):
            raise ContractBroken(
                f"number_of_cache_files() gave {safe_repr(numbers)}, must be two numbers of 0 to {MOST_FILES}"
            )
        return CacheFiles(*numbers)


def code_by(device: Device) -> CodeIdentity:
    """Return the identity of the code that compiles for a device."""
    return device.cached_as.code_identity


def cache_record_identity(device: Device) -> tuple[str, bytes]:
    """Return the name of the driver's record of its cache files, and the device's identity there."""
    from nnhal.hal.cache.keeper import identity

    device = device.cached_as
    own = identity_of(device)
    matters = _member(bool, device.processor_matters, "processor_matters")
    return own.name, identity(own.name, own.version, device.code_identity, processor=matters)


def _save(device: Device, prepared: Prepared, cache: Cache, model: Model, where: str) -> None:
    from nnhal.hal.cache.keeper import store_content

    if unknown := code_by(device).unknown:
        _log.warning("%s: its compilation is not kept: %s", where, unknown)
        return
    content = CacheContent.empty(CacheFiles(len(cache.model_files), len(cache.data_files)), model.pools)
    try:
        with driver_call(where, "save()"):
            if _member(bool, prepared.save(content), "the result of save()"):
                store_content(content, cache, *cache_record_identity(device))
    except (NnhalError, OSError) as error:
        raise_application_error(error)
        _log.warning("%s: its compilation is not kept: %s", where, error)
        write_refusal(cache, str(error).removeprefix(f"{where}: "))


def _taken(
    device: Device, prepared: Any, query: str, model: Model, where: str, hints: Hints, client: QueueClient
) -> Prepared:
    """Verify a prepared model, and queue its executions."""
    if not isinstance(prepared, Prepared):
        raise ContractBroken(f"{query} gave {safe_repr(prepared)}, must give a Prepared")
    _given_once(prepared, f"{query} gave a Prepared")
    prepared.model = model
    vars(prepared)["_where"] = where
    try:
        vars(prepared)["_traits"] = _traits(device, prepared, hints)
        way = _Way(device, prepared, where, hints, client)
    except InvalidArgument as error:
        raise _unfit(prepared, where, error) from None
    if way.queues or way.turns is not None:
        vars(prepared).update(_way=way, run=way.of(prepared.run))
    return prepared


def _watched(prepared: Prepared, where: str) -> Prepared:
    """Trim the model from now on, if it can be trimmed."""
    try:
        trimmable = _member(bool, prepared.trimmable, "trimmable of a Prepared")
    except InvalidArgument as error:
        raise _unfit(prepared, where, f"{where}: {error}") from None
    if trimmable:
        from nnhal.hal import idle

        idle.watch(prepared, where)
    return prepared


def _unfit(prepared: Prepared, where: str, why: object) -> ContractBroken:
    """Return the error for an invalid attribute of a prepared model. It is not the application's fault."""
    close_quietly(where, "close() of a prepared model", prepared.close)
    return ContractBroken(str(why))


class _Way:
    """The queues and locks that a prepared model's executions pass before they run.

    turns: serialises them with changes of options; None if nothing changes, or if another process does so. queues: with
    the places that an execution takes and the model's predicted time, the innermost first.
    """

    def __init__(self, device: Device, prepared: Prepared, where: str, hints: Hints, client: QueueClient) -> None:
        self._client, self._priority = client, hints.priority
        self.queues: list[tuple[RunQueue, int, LatencyEstimator | LatencyByShape]] = []
        main = prepared.model.main
        closed = all(fixed(shape_of(main.operands[i])) is not None for i in main.inputs)
        self._pace: LatencyEstimator | LatencyByShape = LatencyEstimator() if closed else LatencyByShape()
        here = not prepared.timely  # an isolated engine's own process does it
        if here and hints.preference == Preference.SUSTAINED_SPEED:
            cores = usable_cores()
            self._pass(sustained(), hints.threads or cores)
        if _member(bool, device.one_at_a_time, "one_at_a_time"):
            self._pass(_queue_of(device, where, 1))
        elif here:
            width = places(_number(device.at_once, "at_once"))
            self._pass(_queue_of(device, where, width, strict=False), units_of(hints.threads, width))
        if _member(bool, prepared.one_at_a_time, "one_at_a_time of a Prepared") and not device.one_at_a_time:
            self._pass(_queue_of(prepared, where, 1))
        self.turns = OptionsLock() if traits_of(prepared).changeable and here else None

    def _pass(self, queue: RunQueue, units: int = 1) -> None:
        inner = self.queues[-1][2] if self.queues else None
        self.queues.append((queue, units, inner.around() if inner is not None else self._pace))

    def of(self, run: Act[T]) -> Act[T]:
        """Wrap a function that executes, so that it waits in the queues."""
        for queue, units, pace in self.queues:
            run = queue.queued(run, self._client, self._priority, units, pace)
        return run if self.turns is None else self.turns.side_by_side(run)

    def change(self, change: Act[T]) -> Act[T]:
        """Wrap a function that changes options: it runs alone, and resets the predicted time."""

        def forgetting(options: Any, control: Control) -> T:
            try:
                return change(options, control)
            finally:
                for _, _, pace in self.queues:
                    pace.forget()

        act: Act[T] = forgetting
        for queue, _, _ in self.queues:
            if queue.strict:
                act = queue.queued(act, self._client, self._priority)
        return act if self.turns is None else self.turns.alone(act)


def _queue_of(owner: Device | Prepared, where: str, width: int, *, strict: bool = True) -> RunQueue:
    queue: RunQueue = vars(owner).setdefault("_run_queue", RunQueue(where, width, strict=strict))
    return queue


def _number(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST_AT_ONCE:
        raise InvalidArgument(f"{what} is {safe_repr(value)}, must be an int of 0 to {MOST_AT_ONCE}")
    return value


class Traits(NamedTuple):
    """The attributes of a prepared model, read once. As in `Prepared`."""

    weights_consumed: bool
    changeable: tuple[str, ...]
    writes_later: bool = False


def _traits(device: Device, prepared: Prepared, hints: Hints) -> Traits:
    consumed = _member(bool, prepared.weights_consumed, "weights_consumed of a Prepared")
    later = _member(bool, prepared.writes_later, "writes_later of a Prepared")
    if hints.cache is not None and not later:
        own = device.cached_as  # a device that overrides it may have duplicated the files
        reads = not own.timely and type(own).prepare_from_cache is not Device.prepare_from_cache
        later = reads or hints.cache.later.is_set()
    return Traits(consumed, _texts(prepared.changeable, "changeable of a Prepared"), later)


def traits_of(prepared: Prepared) -> Traits:
    """Return the attributes that a model from `checked_prepared` had then."""
    traits: Traits = vars(prepared)["_traits"]
    return traits


def queue_like_run(prepared: Prepared, run: Act[T]) -> Act[T]:
    """Queue another function that executes a model from `checked_prepared`, as its `run` is queued."""
    way: _Way | None = vars(prepared).get("_way")
    return run if way is None else way.of(run)


def queues_of(prepared: Prepared) -> list[RunQueue]:
    """Return the queues of a prepared model's executions."""
    way: _Way | None = vars(prepared).get("_way")
    return [] if way is None else [queue for queue, _, _ in way.queues]


def trim_guard(prepared: Prepared) -> "TrimGuard | None":
    """Return what keeps executions and trims apart; None if there is nothing to trim in this process."""
    guard: TrimGuard | None = vars(prepared).get("_guard")
    return guard


def release_weights(prepared: Prepared, model: Model, where: str) -> bool:
    """Release the caller's copy of the constants, if the driver `where` no longer needs them."""
    if not traits_of(prepared).weights_consumed:
        return False
    why = f"{where}: read constants after prepare(), must not: it declares weights_consumed"
    release_constants(model, why)
    return True


def checked_memory_use(prepared: Prepared, where: str) -> MemoryUse:
    """Return the memory use of a prepared model; ContractBroken for impossible figures."""
    with driver_call(where, "memory()"):
        use = prepared.memory()
        if not isinstance(use, MemoryUse):
            raise ContractBroken(f"memory() gave {safe_repr(use)}, must give a MemoryUse")
        for what, size in zip(use._fields, use, strict=True):
            if size is not None and (type(size) is not int or not 0 <= size <= MOST_BYTES):
                raise ContractBroken(f"memory() gave {what} = {safe_repr(size)}, must be bytes as an int, or None")
        return use


def checked_reconfigure(
    prepared: Prepared, where: str, options: Mapping[str, Any], control: Control = UNLIMITED
) -> None:
    """Change the options of a prepared model while none of its executions runs.

    options: all options from now on. control: limits the wait for executions.
    """

    def reconfigure(options: Mapping[str, Any], _: Control) -> None:
        prepared.reconfigure(options)

    with driver_call(where, "reconfigure()"):
        if not traits_of(prepared).changeable:
            raise InvalidArgument("no option of it may change between executions")
        way: _Way | None = vars(prepared).get("_way")
        guard = trim_guard(prepared)
        change = reconfigure if guard is None else guard.through(reconfigure)
        (change if way is None else way.change(change))(dict(options), control)


def pin_threads(hints: Hints) -> Hints:
    """Limit the threads to those that can run at once: more would only use memory."""
    most = usable_cores()
    return hints if hints.threads <= most else replace(hints, threads=most)


def allocated_by(device: Device, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
    """Allocate a device buffer; ContractBroken if the answer is not a new buffer for these roles."""
    with driver_call(where_of(device), "allocate()"):
        buffer = device.allocate(desc, roles)
        if not isinstance(buffer, Buffer):
            raise ContractBroken(f"allocate() gave {safe_repr(buffer)}, must give a Buffer")
        wanted = merge(desc, roles)
        if getattr(buffer, "facts", None) != wanted:
            raise ContractBroken("allocate() gave a Buffer for something else, must be for what it was asked for")
        _given_once(buffer, "allocate() gave a Buffer")
        return buffer


def checked_burst(prepared: Prepared, where: str) -> Burst:
    """Open a burst of a prepared model; ContractBroken if the answer is not a new Burst."""
    with driver_call(where, "burst()"):
        burst = prepared.burst()
        if not isinstance(burst, Burst):
            raise ContractBroken(f"burst() gave {safe_repr(burst)}, must give a Burst")
        _given_once(burst, "burst() gave a Burst")
        return burst


def checked_executor(prepared: Prepared, where: str) -> BurstExecutor | None:
    """Return the executor for a burst from another process, or None for plain runs.

    Raises ContractBroken if the answer is neither, or an executor that was returned before.
    """
    with driver_call(where, "burst_executor()"):
        executor = prepared.burst_executor()
        if not isinstance(executor, BurstExecutor | None):
            raise ContractBroken(f"burst_executor() gave {safe_repr(executor)}, must give a BurstExecutor or None")
        if executor is not None:
            _given_once(executor, "burst_executor() gave a BurstExecutor")
            vars(executor)["execute"] = _executing(prepared, executor)
        return executor


def _executing(prepared: Prepared, executor: BurstExecutor) -> Callable[..., Timing | None]:
    """Wrap the executor's `execute`, so that it waits in the queues and never overlaps a trim."""
    own = executor.execute
    held: Callable[[], Callable[..., Timing | None] | None] = weakref.WeakMethod(own) if ismethod(own) else lambda: own

    def execute(given: tuple[Request, Sequence[int]], control: Control) -> Timing | None:
        call = held()
        assert call is not None  # its owner is alive: it is called through it
        return call(*given, control)

    act, guard = queue_like_run(prepared, with_check_before(own, execute)), trim_guard(prepared)
    act = act if guard is None else guard.through(act)

    def in_its_turn(request: Request, slots: Sequence[int], control: Control) -> Timing | None:
        return act((request, slots), control)

    return with_check_before(own, in_its_turn)


def fenced_by(
    prepared: Prepared,
    where: str,
    request: Request,
    control: Control,
    wait_for: Sequence[Fence],
    after: int | None = None,
) -> FencedExecution:
    """Launch a fenced execution. If the answer is invalid, raise ContractBroken and abandon the request."""
    try:
        with driver_call(where, "execute_fenced()"):
            launched = prepared.execute_fenced(request, control, wait_for, after)
            if not isinstance(launched, FencedExecution):
                raise ContractBroken(f"execute_fenced() gave {safe_repr(launched)}, must give a FencedExecution")
            if not isinstance(launched.fence, Fence | None):
                raise ContractBroken(
                    f"execute_fenced() gave fence {safe_repr(launched.fence)}, must be a Fence or None"
                )
            return launched
    except BaseException:
        request.abandon()
        raise


def checked_info(execution: FencedExecution, where: str, until: int | None = None) -> ExecutionInfo:
    """Return the verified times of a fenced execution, or raise its error.

    until: as in `FencedExecution.info_until`.
    """
    with driver_call(where, "get_execution_info()"):
        info = execution.info_until(until)
        if not isinstance(info, ExecutionInfo):
            raise ContractBroken(f"get_execution_info() gave {safe_repr(info)}, must give an ExecutionInfo")
        return ExecutionInfo(*(checked_timing(timing, where) or Timing() for timing in info))


def _given_once(item: object, what: str) -> None:
    mark = object()
    if vars(item).setdefault("_handed_out", mark) is not mark:
        raise ContractBroken(f"{what} that it gave before, must give a new one")


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
