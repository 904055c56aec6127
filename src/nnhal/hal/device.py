"""What a driver is. The runtime sees these classes only, whether the driver is in this process or in another.

A driver author writes a `Device` with `supports` and `prepare`, and a `Prepared` with `run`; all else has a default.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nnhal.base.codes import DeviceStatus, DeviceType, OperandType, Preference, Priority
from nnhal.base.errors import OperationFailed
from nnhal.base.levels import FL8, Level
from nnhal.base.operands import Array
from nnhal.hal.background import FencedExecution, Notify, run_fenced, run_in_background
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.fence import Fence
from nnhal.hal.host import HostBuffer, LocalBurst
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Signature, Timing
from nnhal.model.graph import Model, Operation

RELAXATIONS = {
    "float16": "between operations float16 may be float32: not rounded, and not infinite beyond 65504",
    "infinities": "an infinite result may be the greatest number of its type",
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


@dataclass(frozen=True)
class Capabilities:
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


@dataclass(frozen=True)
class Hints:
    """What the application wants of a compilation.

    threads: how many the engine may use, 0 for its own choice. deadline: monotonic nanoseconds, None for no limit.
    options: the device's own, as given in `driver_options`.
    """

    preference: Preference = Preference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    threads: int = 0
    deadline: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Prepared(ABC):
    """A model that a device has prepared. `run` may be called by several threads at once.

    model: what was prepared; set by `prepared_by`. timely: whether `run` returns at its deadline whatever the engine does,
    as it does where the engine is in another process. All methods but `run` have defaults that any driver can keep.
    """

    model: Model
    timely = False

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
            signature = self.__dict__["signature"] = Signature.of(self.model)
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
        """An executor of the driver's own for one burst from another process; None for the one that calls `run`."""
        return None

    def burst_opened(self) -> None:
        """A burst begins: time to take up a state of high performance."""

    def burst_closed(self) -> None:
        """A burst ended."""

    def close(self) -> None:
        """Give resources back. Called once, after the last run has ended."""


class Device(ABC):
    """A device and its driver. Answers to queries may not change while it lives."""

    name: str = "unnamed"
    version: str = "0"
    type: DeviceType = DeviceType.OTHER
    level: Level = FL8
    extensions: Sequence[str] = ()
    relaxations: Sequence[str] = ()  # what of `RELAXATIONS` its results may do

    def capabilities(self) -> Capabilities:
        """Stated performance; that of the CPU by default."""
        return Capabilities.uniform(1.0)

    @abstractmethod
    def supports(self, model: Model) -> Sequence[Verdict]:
        """One verdict for each operation of the main subgraph; "ok" means that it also prepares and runs."""

    @abstractmethod
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Compile a model all of whose operations have a good verdict; a new object each time.

        Raises an NnhalError where that fails: InvalidArgument where the hints are at fault, which is an error to the
        application; after any other, UnsupportedModel among them, the runtime may place the model elsewhere.
        """

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


def prepared_by(device: Device, model: Model, hints: Hints) -> Prepared:
    """What the device prepares, with its model noted; OperationFailed where that is none, or one that it gave before."""
    prepared = device.prepare(model, hints)
    if not isinstance(prepared, Prepared):
        raise OperationFailed(f"device {device.name}: prepare gave {type(prepared).__name__}, must give a Prepared")
    mark = object()
    if vars(prepared).setdefault("_handed_out", mark) is not mark:
        raise OperationFailed(f"device {device.name}: prepare gave a Prepared that it gave before, must give a new one")
    prepared.model = model
    return prepared


def verdicts_by(device: Device, model: Model) -> list[Verdict]:
    """What the device says of each operation, a bool taken for a verdict; OperationFailed where that is anything else."""
    answers = device.supports(model)
    count = len(model.main.operations)
    if not isinstance(answers, Iterable):
        raise OperationFailed(f"supports() gave {answers!r}, must be {count} verdicts, one an operation")
    verdicts = [Verdict(answer) if isinstance(answer, bool) else answer for answer in answers]
    for place, verdict in enumerate(verdicts):
        if not isinstance(verdict, Verdict) or not isinstance(verdict.ok, bool) or not isinstance(verdict.reason, str):
            raise OperationFailed(f"supports() gave {verdict!r} for operation {place}, must be a Verdict or a bool")
    if len(verdicts) != count:
        raise OperationFailed(f"supports() gave {len(verdicts)} verdicts, must be {count}, one an operation")
    return verdicts


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
