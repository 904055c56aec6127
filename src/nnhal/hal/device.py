"""What a driver is. The runtime sees these classes only, whether the driver is in this process or in another.

A driver author writes a `Device` with `supports` and `prepare`, and a `Prepared` with `run`; all else has a default.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from inspect import ismethod
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nnhal.base import trace
from nnhal.base.answers import answering, let_go, raise_own, shown
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
from nnhal.hal.cache.files import MOST_FILES, Cache, CacheContent, CacheFiles, give_up
from nnhal.hal.choices import Proofs
from nnhal.hal.code import MADE_OTHERWISE, CodeIdentity, MadeWith, code_of
from nnhal.hal.fence import Fence
from nnhal.hal.host import HostBuffer, LocalBurst
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, merge
from nnhal.hal.memory_use import MOST as MOST_BYTES
from nnhal.hal.memory_use import MemoryUse
from nnhal.hal.queue import RunQueue, places, sustained, units_of
from nnhal.hal.request import UNLIMITED, Act, Control, Request, Signature, Timing, plausible, standing_before
from nnhal.hal.turns import Turns
from nnhal.hal.waiting import OWN, Pace, QueueClient, ShapedPaces
from nnhal.model.graph import Model, Operation
from nnhal.model.layouts import LAYOUTS, laid_out
from nnhal.model.orders import Layout
from nnhal.model.validate import let_constants_go, shape_of

if TYPE_CHECKING:
    from typing import Self

    from nnhal.hal.idle import Guard

_log = logger("compilation")
T = TypeVar("T")
MOST_THREADS = 1024  # that an engine may be asked to use
MOST_AT_ONCE = 4096  # executions
NUMERICS = "numerics"  # an option of devices that declare more than "fast"
FAST, EXACT = "fast", "exact"  # its values
NUMERICS_PREFIX = "numerics:"  # before them, where they travel among the relaxations
RELAXATIONS = {
    "clipped_nan": "a NaN that an activation clips may be either of its bounds",
    "float16": "between operations float16 may be float32: not rounded, and not infinite beyond 65504",
    "infinities": "an infinite result may be the greatest number of its type",
    "long_sums": "a sum of n products or exponentials may be off by n / 4 units of 2**-24 of the sum of their magnitudes",
    "subnormals": "numbers nearer to 0 than the least normal one may be taken for 0, going in and coming out",
}


class Verdict(NamedTuple):
    """Whether a device can run an operation of a model, and why (not)."""

    ok: bool
    reason: str = ""


YES = Verdict(True)


class Performance(NamedTuple):
    """Stated performance against the CPU reference, which is 1.0; less is faster, or needs less power."""

    exec_time: float = 1.0
    power_usage: float = 1.0


class Capabilities(Record, frozen=True):
    """Stated performance by operand type; types that are not listed are unsupported as far as performance goes."""

    operands: Mapping[int, Performance] = field(default_factory=dict)
    relaxed_scalar: Performance = Performance()
    relaxed_tensor: Performance = Performance()
    if_performance: Performance = Performance()
    while_performance: Performance = Performance()

    @classmethod
    def uniform(cls, exec_time: float, power_usage: float = 1.0) -> "Capabilities":
        """The same performance for everything."""
        each = Performance(exec_time, power_usage)
        return cls(dict.fromkeys(OperandType, each), each, each, each, each)

    def of(self, type: int, *, relaxed: bool = False) -> Performance | None:
        """Performance for an operand type, float32 ones relaxed where asked; None where none is stated."""
        if relaxed and type == OperandType.TENSOR_FLOAT32:
            return self.relaxed_tensor
        if relaxed and type == OperandType.FLOAT32:
            return self.relaxed_scalar
        return self.operands.get(type)


class Hints(Record, frozen=True):
    """What the application wants of a compilation.

    threads: how many the engine may use, at most `MOST_THREADS`, 0 for its own choice; a device is given no more than this
    process has CPUs. deadline: monotonic nanoseconds, None for no limit. options: the device's own, as given in
    `driver_options`. worked_out: for `Device.prepare` only, what `consider` worked out of a model that this one is, or was
    cut from; None where there is no such thing, which may be at any time. cache: files that `Device.prepare` may save to,
    empty, and `Device.prepare_from_cache` is to read; None where nothing is kept, as for any device that asks for no files.
    """

    preference: Preference = Preference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    threads: int = 0
    deadline: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    worked_out: "WorkedOut | None" = None
    cache: Cache | None = None


class OperationGroup(Record, frozen=True):
    """Operations that a device runs as one, where enough of them stand in one step.

    operations: their places in the main subgraph; each is in one group of a device at most. performance: what it states for
    them as one, against the CPU reference's for all of them. at_least: how many are enough, 0 for all.
    """

    operations: Sequence[int]
    performance: Performance
    at_least: int = 0


class Considered(Record, frozen=True):
    """What a device says of a model. verdicts: one for each operation of the main subgraph, of that operation by itself.

    groups: what it runs as one; an operation whose verdict is no is taken within its group only. worked_out: anything that
    helps to prepare the model or a part of it, for `Hints.worked_out`; the last reference to it goes when that is over.
    """

    verdicts: Sequence[Verdict]
    groups: Sequence[OperationGroup] = ()
    worked_out: Any = None


def _as_verdicts(given: Any) -> Any:
    """What a driver's `supports` gave, with a Verdict for each bool; `considered_by` judges all else."""
    return (
        [Verdict(each) if isinstance(each, bool) else each for each in given] if isinstance(given, Sequence) else given
    )


class WorkedOut:
    """What a device worked out of a model when it considered it, as its `prepare` gets it.

    model: what it considered. operations: the places in it of those that are to be prepared, in order. given: what the
    device gave; None once the compilation has ended, so it is to be asked for once.
    """

    __slots__ = ("_kept", "model", "operations")

    def __init__(self, model: Model, operations: tuple[int, ...], kept: Sequence[Any]) -> None:
        """kept: holds what the device gave, until it is emptied."""
        self.model, self.operations, self._kept = model, operations, kept

    @property
    def given(self) -> Any:
        """The very object."""
        return next(iter(self._kept), None)

    @property
    def whole(self) -> bool:
        """Whether the model that is to be prepared is the one that was considered, not a part of it."""
        return len(self.operations) == len(self.model.main.operations)


class Prepared(ABC):
    """A model that a device has prepared. `run` may be called by several threads at once.

    model: what was prepared, or the outline of what was restored; set by who asked for it, so a driver keeps what it needs
    for itself. timely: whether `run` returns at its deadline whatever the engine does,
    as it does where the engine is in another process. one_at_a_time: no two executions of it run at once, who comes
    meanwhile waits in order of arrival; where it has `execute` or `execute_fenced` of its own, those see to that themselves.
    weights_consumed: it asks for the model's constants no more once it is prepared, so whoever holds them only for it may
    let them go: asking is ContractBroken then. profiles: whether `run` tells `control.profile` of its operations.
    changeable: the options of its device's that `reconfigure` can change.
    writes_later: whether it may write to its cache files after it was prepared; to be said by a device that has a
    `prepare_from_cache` of its own elsewhere, and known of all others.
    trimmable: it has memory that only executions need, which `trim` gives back; what `one_at_a_time` says of drivers with
    ways to execute of their own holds here too. All methods but `run` have defaults that any driver can keep.
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
        """Execute: read `request.inputs`, give each output once with `request.write`, or fill `request.outputs[i]` in place.

        Everything has to be written when it returns. Raises an NnhalError whose status says what failed. Returns what was
        measured, if `control.measure` asks for it. Who calls it does so by `request.execute(prepared.run, control)`.
        """

    def request(
        self, inputs: Sequence[Array | None], rooms: Sequence[Array | None] | None = None, **buffers: Any
    ) -> Request:
        """A request for one execution; arguments as of `Request`."""
        signature: Signature | None = self.__dict__.get("signature")
        if signature is None:
            where = self.__dict__.get("_where", "driver")
            signature = self.__dict__["signature"] = Signature.of(self.model, where)
        return signature.make(signature, inputs, rooms, **buffers)

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """Execute in the background; `notify` is called exactly once, also on failure. Errors of launching are raised."""
        run_in_background(self, request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """Execute when every fence in `wait_for` is signalled; the result's fence tells the end.

        after: nanoseconds that the execution may take once the fences are signalled, None for no limit. Outputs need
        fully specified shapes (InvalidArgument); a fence that is in error already is InvalidArgument.
        """
        return run_fenced(self, request, control, wait_for, after)

    def burst(self) -> Burst:
        """A series of executions, one at a time, that keep what they need in between."""
        return LocalBurst(self)

    def burst_executor(self) -> BurstExecutor | None:
        """A new executor of the driver's own for one burst from another process; None for the one that calls `run`."""
        return None

    def burst_opened(self) -> None:
        """A burst begins: time to take up a state of high performance."""

    def burst_closed(self) -> None:
        """A burst ended."""

    def memory(self) -> MemoryUse:
        """What it holds by now, as far as it knows. May be asked at any time, also while executions run."""
        return MemoryUse()

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """From now on these are the options, all of them, as in `Hints.options`; one that is missing has its default.

        Called while no execution runs, with changes of what `changeable` names only. Raises an NnhalError where that
        fails, InvalidArgument for a value that cannot be; then all is as before.
        """
        raise ContractBroken("reconfigure() is missing, must be there where `changeable` names options")

    def trim(self, *, pressed: bool) -> None:
        """Give memory back that only executions need: there were none for some seconds, or memory is short (`pressed`).

        Called where `trimmable`, while no execution runs; those that come meanwhile wait, 2 s at most. The next one has
        the same results; it may take longer, by a few milliseconds, and by more only where it is `pressed`. `memory` may be
        asked meanwhile.
        """

    def save(self, files: CacheContent) -> bool:
        """Fill the sections of the cache files, to be restored from; whether there is anything to save.

        Called once, right after it was prepared, where the application wants compilations kept and the device has files.
        """
        return False

    def close(self) -> None:
        """Give resources back. Called once, after the last run has ended."""


class Device(ABC):
    """A device and its driver. Answers to queries may not change while it lives.

    one_at_a_time: as of `Prepared`, for all models that it has prepared together. at_once: how many executions it runs at
    once without loss, as where its engine is no part of this processor; 0 for as many as the cores allow (`hal.queue`).
    preferred_layout: "nhwc" or "nchw" where
    operations on pictures are to have that layout in all models that it is asked about and prepares, None for any.
    processor_matters: whether what it keeps in cache files is for this kind of processor alone. asked_again: whether its
    answers depend on more than name, version, level, options and code, such as what it was made with: then none is kept.
    numerics: "fast", and "exact" where `consider` and `prepare` obey the option `numerics`. Where that is "exact", each
    result of 8 bits is the reference's under the same option, bit for bit; the device refuses all other operations.
    timely: whether preparing ends at its deadline whatever the driver does. proofs: where it knows several forms of an
    operation, what of them is to be proved on this processor, and what was (`hal.proofs`).
    """

    name: str = "unnamed"
    version: str = "0"
    type: DeviceType = DeviceType.OTHER
    level: Level = FL8
    extensions: Sequence[str] = ()
    relaxations: Sequence[str] = ()  # what of `RELAXATIONS` its results may do
    numerics: Sequence[str] = (FAST,)
    one_at_a_time: bool = False
    at_once: int = 0
    preferred_layout: Layout | None = None
    processor_matters: bool = False
    asked_again: bool = False
    timely = False
    proofs: "Proofs[Device] | None" = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "Self":
        """Note what the device is made with: other arguments may compile other things."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        device = super().__new__(cls)
        vars(device)["_made_with"] = MadeWith.of((args, kwargs)) if cls.__new__ is Device.__new__ else MADE_OTHERWISE
        return device

    @property
    def code_identity(self) -> CodeIdentity:
        """What the driver's code is, as this process loaded it, with the arguments that the device was made with."""
        return code_of(type(self), vars(self).get("_made_with", MADE_OTHERWISE))

    def capabilities(self) -> Capabilities:
        """Stated performance; that of the CPU by default."""
        return Capabilities.uniform(1.0)

    @abstractmethod
    def supports(self, model: Model) -> Sequence[Verdict | bool]:
        """One verdict, or a bool, for each operation of the main subgraph; "ok" means that it also prepares and runs."""

    def consider(self, model: Model, hints: Hints) -> Considered:
        """What the device says of a model that is to be compiled with these hints: the verdicts of `supports` by default.

        To be overridden where verdicts depend on the hints, operations are claimed in groups, or something is worked out
        that `prepare` can use. Raises InvalidArgument where the hints are at fault, which is an error to the application.
        """
        try:
            return Considered(_as_verdicts(self.supports(model)))
        except InvalidModel:
            raise
        except InvalidArgument as error:  # it was told of nothing but the model
            raise InvalidModel(str(error)) from error

    @abstractmethod
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Compile a model all of whose operations have a good verdict; a new object each time.

        Raises an NnhalError where that fails: InvalidArgument where the hints are at fault, which is an error to the
        application; after any other, UnsupportedModel among them, the runtime may place the model elsewhere.
        """

    def number_of_cache_files(self) -> CacheFiles:
        """How many files one compilation is kept in, up to 32 of each kind; none by default, and nothing is kept."""
        return CacheFiles()

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        """What `Prepared.save` of a model had filled these with, ready to run. They are what was written, byte for byte.

        hints: as given to `prepare` then. Raises an NnhalError where it cannot: the model is prepared anew.
        """
        raise OperationFailed("restore() is missing, must be there where save() is")

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        """Prepare what `hints.cache` holds. outline: inputs, outputs and pools of the model, with no operations.

        By default the files are read, held to the driver's private record of what it wrote, and given to `restore`. A driver
        that has its own here, and saves in `prepare`, sees to its own integrity: it copies the files into memory before it
        looks at them, and keeps a keyed hash of what it wrote. Raises an NnhalError, with the reason, for a miss.
        """
        assert hints.cache is not None
        from nnhal.hal.cache.keeper import recall

        content = recall(hints.cache, outline.pools, *written_by(self))
        return self.restore(content, hints.cache.token, hints)

    @property
    def cached_as(self) -> "Device":
        """Whose cache files its are: its own, or those of the device that it stands for."""
        return self

    def told(self, hints: Hints) -> Hints:
        """What the driver is told of hints; of what is different here, it compiles different things."""
        return hints

    def status(self) -> DeviceStatus:
        """What the device is busy with, as far as it tells."""
        return DeviceStatus.AVAILABLE

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """Memory of the driver's own for inputs and outputs of models that this device has prepared.

        By default an array in the driver's process. Raises an NnhalError where the driver refuses.
        """
        return HostBuffer(desc, roles)

    def close(self) -> None:
        """Give resources back."""


# ------------------------------------------------------------------------------------------------------ what it answers
#
# Drivers are asked by these functions alone, in this process and in their own: each looks at the answer, gives it in plain
# types, and raises nothing but NnhalErrors that name the device, whatever the driver does.

MOST = 4096  # extensions, or types with a stated performance
LONGEST = 256  # characters of a name


class Identity(NamedTuple):
    """What a device says that it is."""

    name: str
    version: str
    type: DeviceType
    level: Level
    extensions: tuple[str, ...]
    relaxations: tuple[str, ...]
    preferred_layout: Layout | None
    numerics: tuple[str, ...]


def identity_of(device: Device) -> Identity:
    """What the device says that it is, asked once: it may not change. InvalidArgument names what cannot be.

    It is asked again where an extension was registered since.
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
    """Whether a device declares that its numerics can be exact."""
    return EXACT in identity_of(device).numerics


def wants_exact(options: Mapping[str, Any], name: str) -> bool:
    """Whether a driver's options ask for exact numerics. InvalidArgument for any other value."""
    found = options.get(NUMERICS, FAST)
    if found not in (FAST, EXACT):
        raise InvalidArgument(f"{name}: option {NUMERICS} is {shown(found)}, must be {FAST} or {EXACT}")
    return bool(found == EXACT)


def where_of(device: Device) -> str:
    """The device in messages."""
    return f"device {identity_of(device).name}"


def _attribute(device: Device, what: str, where: str, check: Callable[[Any, str], T]) -> T:
    with answering(where, what):
        return check(getattr(device, what), what)


def _member(kind: type[T], value: Any, what: str) -> T:
    if not isinstance(value, kind):
        raise InvalidArgument(f"{what} is {shown(value)}, must be a {kind.__name__}")
    return value


def _layout(value: Any, what: str) -> Layout | None:
    text = str.__str__(value) if isinstance(value, str) else ""
    if value is not None and text not in LAYOUTS:
        raise InvalidArgument(f"{what} is {shown(value)}, must be None or one of {', '.join(LAYOUTS)}")
    return next((layout for layout in LAYOUTS if layout == text), None)


def _text(value: Any, what: str) -> str:
    """A name as a plain str; it is shown in one line, and travels."""
    text = str.__str__(value) if isinstance(value, str) else ""
    if not text.isprintable() or not 0 < len(text) <= LONGEST:
        raise InvalidArgument(f"{what} is {shown(value)}, must be a str of 1 to {LONGEST} printable characters")
    return text


def _texts(values: Any, what: str) -> tuple[str, ...]:
    several = isinstance(values, Collection) and not isinstance(values, str | bytes)
    texts = list(islice(values, MOST + 1)) if several else None
    if texts is None or len(texts) > MOST or not all(isinstance(text, str) for text in texts):
        raise InvalidArgument(f"{what} is {shown(values)}, must be several str, at most {MOST}")
    return tuple(_text(text, f"{what}[{n}]") for n, text in enumerate(texts))


def layer_of(device: Device) -> str:
    """The layer of a trace that calls of a device are in."""
    return "ipc" if device.timely is True else "driver"


def layout_of(device: Device) -> Layout | None:
    """The layout that models for the device get: operations can say theirs since 1.2."""
    own = identity_of(device)
    return own.preferred_layout if own.level >= V1_2 else None


def capabilities_by(device: Device) -> Capabilities:
    """What the device states of its performance. ContractBroken where that is no Capabilities, InvalidArgument names the
    figure that cannot be.
    """
    with answering(where_of(device), "capabilities()"):
        stated = device.capabilities()
        if not isinstance(stated, Capabilities):
            raise ContractBroken(f"capabilities() gave {shown(stated)}, must be Capabilities")
        return checked_capabilities(stated)


def checked_capabilities(stated: Capabilities) -> Capabilities:
    """The same in plain types; InvalidArgument where a figure is no positive number."""
    table: Any = stated.operands
    entries = list(islice(table.items(), MOST + 1)) if isinstance(table, Mapping) else None
    if entries is None or len(entries) > MOST:
        raise InvalidArgument(f"performance of operands is {shown(table)}, must be a mapping of at most {MOST} types")
    for code, _ in entries:
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code < 1 << 32:
            raise InvalidArgument(f"performance of {shown(code)} is stated, must be of operand types")
    return Capabilities(
        {int(code): checked_performance(performance, type_name(code)) for code, performance in entries},
        checked_performance(stated.relaxed_scalar, "relaxed scalars"),
        checked_performance(stated.relaxed_tensor, "relaxed tensors"),
        checked_performance(stated.if_performance, "IF"),
        checked_performance(stated.while_performance, "WHILE"),
    )


def checked_performance(performance: Any, what: str) -> Performance:
    """The same in plain types; InvalidArgument where a figure is no positive number. what: whose it is."""
    if not isinstance(performance, Performance):
        raise InvalidArgument(f"performance of {what} is {shown(performance)}, must be a Performance")
    for value in performance:
        if not is_number(value) or not value > 0:
            raise InvalidArgument(f"performance of {what} is {shown(value)}, must be a number above 0")
    return Performance(*map(float, performance))


def status_by(device: Device) -> DeviceStatus:
    """What the device says that it is busy with; ContractBroken where that is no status."""
    with answering(where_of(device), "status()"):
        status = device.status()
        if not isinstance(status, DeviceStatus):
            raise ContractBroken(f"status() gave {shown(status)}, must be a DeviceStatus")
        return status


def prepared_by(
    device: Device, model: Model, hints: Hints, *, as_is: bool = False, client: QueueClient = OWN
) -> Prepared:
    """What the device prepares, with its model noted; ContractBroken where that is none, or one that it gave before.

    It is given the model in the layout that it prefers, unless that is done (`as_is`); inputs and outputs keep theirs.
    What it wants kept in the hints' cache is written there; where that fails, they are left empty. client: in whose
    name it is prepared, and executed.
    """
    try:
        return _prepared_by(device, laid_out(model, None if as_is else layout_of(device)).model, hints, client)
    finally:
        if hints.cache is not None:
            hints.cache.settled.set()


def _prepared_by(device: Device, model: Model, hints: Hints, client: QueueClient) -> Prepared:
    where = where_of(device)
    with trace.span(layer_of(device), "compilation", "prepare", where), answering(where, "prepare()"):
        hints = within_the_machine(hints)
        prepared = _in_its_turn(device, where, hints, client, lambda: device.prepare(model, hints))
        _taken(device, prepared, "prepare()", model, where, hints, client)
    if hints.cache is not None:
        try:
            _save(device, prepared, hints.cache, model, where)
        except BaseException:  # interrupted
            hints.cache.settled.set()  # its end may wait for who waits for that
            prepared.close()
            raise
    return _watched(prepared, where)  # after it was saved, which is no execution


def restored_by(device: Device, outline: Model, hints: Hints, *, client: QueueClient = OWN) -> Prepared:
    """What the device prepares from `hints.cache`, as `prepared_by`. Any NnhalError is a miss, and says why."""
    assert hints.cache is not None
    try:
        return _restored_by(device, outline, hints, client)
    finally:
        hints.cache.settled.set()


def _restored_by(device: Device, outline: Model, hints: Hints, client: QueueClient) -> Prepared:
    where = where_of(device)
    with trace.span(layer_of(device), "compilation", "restore", where), answering(where, "prepare_from_cache()"):
        hints = within_the_machine(hints)
        prepared = _in_its_turn(device, where, hints, client, lambda: device.prepare_from_cache(outline, hints))
        return _watched(_taken(device, prepared, "prepare_from_cache()", outline, where, hints, client), where)


def _in_its_turn(device: Device, where: str, hints: Hints, client: QueueClient, prepare: Callable[[], T]) -> T:
    """What it gives to prepare, in a queue of what the device prepares; elsewhere that is where its driver is."""
    if device.timely:
        return prepare()
    queue: RunQueue = vars(device).setdefault("_prepare_queue", RunQueue(f"{where}: prepare", places(0), strict=False))
    return queue.run(prepare, client, hints.priority, Control(deadline=hints.deadline))


def cache_files_by(device: Device) -> CacheFiles:
    """How many files of each kind the device keeps a compilation in; none below level 1.2."""
    if identity_of(device).level < V1_2:
        return CacheFiles()
    with answering(where_of(device), "number_of_cache_files()"):
        numbers = device.number_of_cache_files()
        fits = isinstance(numbers, tuple) and len(numbers) == len(CacheFiles._fields)
        if not fits or not all(type(n) is int and 0 <= n <= MOST_FILES for n in numbers):
            raise ContractBroken(
                f"number_of_cache_files() gave {shown(numbers)}, must be two numbers of 0 to {MOST_FILES}"
            )
        return CacheFiles(*numbers)


def code_by(device: Device) -> CodeIdentity:
    """The identity of the code that compiles for a device."""
    return device.cached_as.code_identity


def written_by(device: Device) -> tuple[str, bytes]:
    """The name of a device's record of what it wrote to cache files, and its identity there."""
    from nnhal.hal.cache.keeper import identity

    device = device.cached_as
    own = identity_of(device)
    matters = _member(bool, device.processor_matters, "processor_matters")
    return own.name, identity(own.name, own.version, device.code_identity, processor=matters)


def _save(device: Device, prepared: Prepared, cache: Cache, model: Model, where: str) -> None:
    from nnhal.hal.cache.keeper import keep

    if unknown := code_by(device).unknown:
        _log.warning("%s: its compilation is not kept: %s", where, unknown)
        return
    content = CacheContent.empty(CacheFiles(len(cache.model_files), len(cache.data_files)), model.pools)
    try:
        with answering(where, "save()"):
            if _member(bool, prepared.save(content), "what save() gave"):
                keep(content, cache, *written_by(device))
    except (NnhalError, OSError) as error:
        raise_own(error)
        _log.warning("%s: its compilation is not kept: %s", where, error)
        give_up(cache, str(error).removeprefix(f"{where}: "))


def _taken(
    device: Device, prepared: Any, query: str, model: Model, where: str, hints: Hints, client: QueueClient
) -> Prepared:
    """A prepared model of a device, looked at and queued as it is to be."""
    if not isinstance(prepared, Prepared):
        raise ContractBroken(f"{query} gave {shown(prepared)}, must give a Prepared")
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
    """The same, trimmed from now on where it can be."""
    try:
        trimmable = _member(bool, prepared.trimmable, "trimmable of a Prepared")
    except InvalidArgument as error:
        raise _unfit(prepared, where, f"{where}: {error}") from None
    if trimmable:
        from nnhal.hal import idle

        idle.watch(prepared, where)
    return prepared


def _unfit(prepared: Prepared, where: str, why: object) -> ContractBroken:
    """What is raised, none of the application's errors, where what a driver says of a model that it prepared cannot be."""
    let_go(where, "close() of a prepared model", prepared.close)
    return ContractBroken(str(why))


class _Way:
    """What executions of a prepared model pass before they run. turns: with changes of its options; None where nothing
    changes, or elsewhere. queues: each with the places that it takes there and the pace of the model, the innermost first.
    """

    def __init__(self, device: Device, prepared: Prepared, where: str, hints: Hints, client: QueueClient) -> None:
        self._client, self._priority = client, hints.priority
        self.queues: list[tuple[RunQueue, int, Pace | ShapedPaces]] = []
        main = prepared.model.main
        closed = all(fixed(shape_of(main.operands[i])) is not None for i in main.inputs)
        self._pace: Pace | ShapedPaces = Pace() if closed else ShapedPaces()
        here = not prepared.timely  # elsewhere the engine's own process sees to it
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
        self.turns = Turns() if traits_of(prepared).changeable and here else None

    def _pass(self, queue: RunQueue, units: int = 1) -> None:
        inner = self.queues[-1][2] if self.queues else None
        self.queues.append((queue, units, inner.around() if inner is not None else self._pace))

    def of(self, run: Act[T]) -> Act[T]:
        """What executes, in its turn."""
        for queue, units, pace in self.queues:
            run = queue.queued(run, self._client, self._priority, units, pace)
        return run if self.turns is None else self.turns.side_by_side(run)

    def change(self, change: Act[T]) -> Act[T]:
        """What changes options, when nothing of the model runs. What executions took before says nothing any more."""

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
        raise InvalidArgument(f"{what} is {shown(value)}, must be an int of 0 to {MOST_AT_ONCE}")
    return value


class Traits(NamedTuple):
    """What a prepared model says of itself, asked once. As of `Prepared`."""

    weights_consumed: bool
    changeable: tuple[str, ...]
    writes_later: bool = False


def _traits(device: Device, prepared: Prepared, hints: Hints) -> Traits:
    consumed = _member(bool, prepared.weights_consumed, "weights_consumed of a Prepared")
    later = _member(bool, prepared.writes_later, "writes_later of a Prepared")
    if hints.cache is not None and not later:
        own = device.cached_as  # which may have duplicated the files, where it reads them itself
        reads = not own.timely and type(own).prepare_from_cache is not Device.prepare_from_cache
        later = reads or hints.cache.later.is_set()
    return Traits(consumed, _texts(prepared.changeable, "changeable of a Prepared"), later)


def traits_of(prepared: Prepared) -> Traits:
    """What a model that `prepared_by` gave said of itself then."""
    traits: Traits = vars(prepared)["_traits"]
    return traits


def queued_as(prepared: Prepared, run: Act[T]) -> Act[T]:
    """Another way to execute a model that `prepared_by` gave, in its turn as its `run` is."""
    way: _Way | None = vars(prepared).get("_way")
    return run if way is None else way.of(run)


def queues_of(prepared: Prepared) -> list[RunQueue]:
    """The queues that executions of a prepared model go through."""
    way: _Way | None = vars(prepared).get("_way")
    return [] if way is None else [queue for queue, _, _ in way.queues]


def guard_of(prepared: Prepared) -> "Guard | None":
    """What keeps executions and trims of a prepared model apart; None where it has nothing to give back, or not here."""
    guard: Guard | None = vars(prepared).get("_guard")
    return guard


def let_weights_go(prepared: Prepared, model: Model, where: str) -> bool:
    """Empty the caller's own copy of what the device `where` has prepared of its constants, if it needs them no more."""
    if not traits_of(prepared).weights_consumed:
        return False
    why = f"{where}: asked for constants of a model that it had prepared, must not: it said weights_consumed"
    let_constants_go(model, why)
    return True


def memory_by(prepared: Prepared, where: str) -> MemoryUse:
    """What a prepared model of the device `where` holds; ContractBroken for figures that cannot be."""
    with answering(where, "memory()"):
        use = prepared.memory()
        if not isinstance(use, MemoryUse):
            raise ContractBroken(f"memory() gave {shown(use)}, must give a MemoryUse")
        for what, size in zip(use._fields, use, strict=True):
            if size is not None and (type(size) is not int or not 0 <= size <= MOST_BYTES):
                raise ContractBroken(f"memory() gave {what} = {shown(size)}, must be bytes as an int, or None")
        return use


def reconfigured_by(prepared: Prepared, where: str, options: Mapping[str, Any], control: Control = UNLIMITED) -> None:
    """Have a prepared model of the device `where` take other options, once no execution of it runs and before the next does.

    options: all that are to be in force. control: of the wait for executions.
    """

    def reconfigure(options: Mapping[str, Any], _: Control) -> None:
        prepared.reconfigure(options)

    with answering(where, "reconfigure()"):
        if not traits_of(prepared).changeable:
            raise InvalidArgument("no option of it may change between executions")
        way: _Way | None = vars(prepared).get("_way")
        guard = guard_of(prepared)
        change = reconfigure if guard is None else guard.through(reconfigure)
        (change if way is None else way.change(change))(dict(options), control)


def within_the_machine(hints: Hints) -> Hints:
    """No more threads than can run at once: the others would only take memory."""
    most = usable_cores()
    return hints if hints.threads <= most else replace(hints, threads=most)


def allocated_by(device: Device, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
    """What the device allocates; ContractBroken where that is no buffer for these roles, or one that it gave before."""
    with answering(where_of(device), "allocate()"):
        buffer = device.allocate(desc, roles)
        if not isinstance(buffer, Buffer):
            raise ContractBroken(f"allocate() gave {shown(buffer)}, must give a Buffer")
        wanted = merge(desc, roles)
        if getattr(buffer, "facts", None) != wanted:
            raise ContractBroken("allocate() gave a Buffer for something else, must be for what it was asked for")
        _given_once(buffer, "allocate() gave a Buffer")
        return buffer


def burst_by(prepared: Prepared, where: str) -> Burst:
    """A burst of a prepared model of the device `where`; ContractBroken where that is none, or one that it gave before."""
    with answering(where, "burst()"):
        burst = prepared.burst()
        if not isinstance(burst, Burst):
            raise ContractBroken(f"burst() gave {shown(burst)}, must give a Burst")
        _given_once(burst, "burst() gave a Burst")
        return burst


def executor_by(prepared: Prepared, where: str) -> BurstExecutor | None:
    """The executor for a burst from another process, None for plain runs; ContractBroken where it is neither, or one that
    it gave before.
    """
    with answering(where, "burst_executor()"):
        executor = prepared.burst_executor()
        if not isinstance(executor, BurstExecutor | None):
            raise ContractBroken(f"burst_executor() gave {shown(executor)}, must give a BurstExecutor or None")
        if executor is not None:
            _given_once(executor, "burst_executor() gave a BurstExecutor")
            vars(executor)["execute"] = _executing(prepared, executor)
        return executor


def _executing(prepared: Prepared, executor: BurstExecutor) -> Callable[..., Timing | None]:
    """Its `execute`, as the model's `run` is done: beside no trim, and in its turn."""
    own = executor.execute
    held: Callable[[], Callable[..., Timing | None] | None] = weakref.WeakMethod(own) if ismethod(own) else lambda: own

    def execute(given: tuple[Request, Sequence[int]], control: Control) -> Timing | None:
        call = held()
        assert call is not None  # it is called through its owner
        return call(*given, control)

    act, guard = queued_as(prepared, standing_before(own, execute)), guard_of(prepared)
    act = act if guard is None else guard.through(act)

    def in_its_turn(request: Request, slots: Sequence[int], control: Control) -> Timing | None:
        return act((request, slots), control)

    return standing_before(own, in_its_turn)


def fenced_by(
    prepared: Prepared,
    where: str,
    request: Request,
    control: Control,
    wait_for: Sequence[Fence],
    after: int | None = None,
) -> FencedExecution:
    """A fenced execution that was launched; ContractBroken where that is none; then nothing is taken any more."""
    try:
        with answering(where, "execute_fenced()"):
            launched = prepared.execute_fenced(request, control, wait_for, after)
            if not isinstance(launched, FencedExecution):
                raise ContractBroken(f"execute_fenced() gave {shown(launched)}, must give a FencedExecution")
            if not isinstance(launched.fence, Fence | None):
                raise ContractBroken(f"execute_fenced() gave fence {shown(launched.fence)}, must be a Fence or None")
            return launched
    except BaseException:
        request.abandon()
        raise


def info_by(execution: FencedExecution, where: str, until: int | None = None) -> ExecutionInfo:
    """What became of a fenced execution: its times, as far as they can be true; raises what it raised. until: as of
    `FencedExecution.info_until`.
    """
    with answering(where, "get_execution_info()"):
        info = execution.info_until(until)
        if not isinstance(info, ExecutionInfo):
            raise ContractBroken(f"get_execution_info() gave {shown(info)}, must give an ExecutionInfo")
        return ExecutionInfo(*(plausible(timing, where) or Timing() for timing in info))


def _given_once(item: object, what: str) -> None:
    mark = object()
    if vars(item).setdefault("_handed_out", mark) is not mark:
        raise ContractBroken(f"{what} that it gave before, must give a new one")


def each_operation(model: Model, judge: Callable[[Model, Operation], Verdict | bool | str]) -> list[Verdict]:
    """Verdicts made operation by operation; `judge` returns a Verdict, a bool, or the reason why not ("" for yes).

    Operations whose constants lie in memory that cannot be mapped here are refused without asking.
    """
    verdicts = []
    for operation in model.main.operations:
        answer = hidden_constant(model, operation) or judge(model, operation)
        if isinstance(answer, str):
            answer = Verdict(not answer, answer)
        verdicts.append(answer if isinstance(answer, Verdict) else Verdict(answer))
    return verdicts


def hidden_constant(model: Model, operation: Operation) -> str:
    """Why a driver that reads constants cannot take an operation: one lies in opaque memory of a device; "" for none."""
    for index in operation.inputs:
        operand = model.main.operands[index]
        if not model.readable(operand):
            return f"constant %{index} lies in a {model.pools[operand.location.pool].kind}, which cannot be mapped here"
    return ""
