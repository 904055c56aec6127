"""Operations with a fault on the reference kernels: states, several outputs, axes, control flow, memory, what lasts."""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from nnhal.base.codes import operation_name
from nnhal.base.lazy import cached_property
from nnhal.base.memory import Memory, address
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.drivers.reference import Interpreter, ReadyOperation, Reference
from nnhal.hal.binding import flat_bytes
from nnhal.hal.device import Capabilities, Hints, Prepared, Verdict
from nnhal.hal.host import HostBuffer
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model, Operation
from nnhal.ops.schema import Bound

from .faults import CONTRACT, CTS, RANDOM, STRESS, VTS, fault

OPERATIONS = (
    *(
        "ADD",
        "MUL",
        "SUB",
        "RELU",
        "CONV_2D",
        "FULLY_CONNECTED",
        "AVERAGE_POOL_2D",
        "CONCATENATION",
        "SPLIT",
        "RESHAPE",
    ),
    *("LOG_SOFTMAX", "RNN", "IF", "WHILE", "QUANTIZE", "DEQUANTIZE"),
)
HEAD = 16  # bytes
LARGE = 1024  # bytes
LATE, SHORT = 0.02, 0.001  # seconds
TABLE, TAPS = 4, 16
DEEP, BROAD = 1024, 256
LONGEST = 1 << 16  # elements
Kernel = Callable[..., Any]


class Kernels(Interpreter):
    """Reference kernels, one of which may be another."""

    operation = ""

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        """Compute the operation that is changed."""
        return kernel(a, *arguments)

    def _plan(self, number: int) -> list[ReadyOperation]:
        return [self._changed(step) for step in super()._plan(number)]

    def _changed(self, step: ReadyOperation) -> ReadyOperation:
        op = step.bound.op
        if op.name != self.operation:
            return step
        changed = partial(self.kernel_of, op.kernel)
        return replace(step, bound=with_fields(step.bound, op=replace(op, kernel=changed)))

    def kernel_of(self, kernel: Kernel, a: Bound, *arguments: Any) -> Any:
        """Call `kernel` with the arguments in the order of a record's kernel."""
        return self.kernel(a, kernel, *arguments)


def with_fields(a: Bound, **fields: Any) -> Bound:
    """A bound operation with other arguments."""
    changed = copy.copy(a)
    changed.__dict__.update(fields)
    return changed


class Whole(Reference):
    """A driver of 16 operations."""

    engine: type[Interpreter] = Kernels

    def supports(self, model: Model) -> list[Verdict]:
        verdicts = super().supports(model)
        return [self._of(each, verdict) for each, verdict in zip(model.main.operations, verdicts, strict=True)]

    def _of(self, operation: Operation, verdict: Verdict) -> Verdict:
        return (
            verdict if operation_name(operation.type) in OPERATIONS else Verdict(False, f"only {', '.join(OPERATIONS)}")
        )

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return self.engine(model)


class Every(Whole):
    """A driver of all operations of the reference."""

    def _of(self, operation: Operation, verdict: Verdict) -> Verdict:
        return verdict


def of_engine(
    name: str, what: str, operation: str, seen_by: tuple[str, ...], whole: type[Whole] = Whole, **settings: Any
) -> Callable[[type], type]:
    """A fault of an engine. whole: the driver without the fault."""

    def note(engine: type) -> type:
        device = type(f"{engine.__name__}Device", (whole,), {"engine": engine, "__module__": engine.__module__})
        fault(name, what, seen_by=seen_by, operation=operation, **{"check": "", "numbers": True, **settings})(device)
        return engine

    return note


# -------------------------------------------------------------------------------------------------- results of an operation


@of_engine("state-kept", "the state of an RNN is that of the execution before, not the given one", "RNN", (RANDOM,))
class StateKept(Kernels):
    operation = "RNN"
    state: Any = None

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        x, weights, recurrent, bias, state = arguments
        if self.state is None or self.state.shape != state.shape:
            self.state = state.copy()
        results = kernel(a, x, weights, recurrent, bias, self.state)
        self.state = np.array(results[0])
        return results


@of_engine("split-swapped", "the second and third output of a SPLIT in three are swapped", "SPLIT", (RANDOM,))
class SplitSwapped(Kernels):
    operation = "SPLIT"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        parts = list(kernel(a, *arguments))
        return [parts[0], parts[2], parts[1], *parts[3:]] if len(parts) > 2 else parts


@of_engine("axis-last", "each negative axis is taken for the last one", "LOG_SOFTMAX", (RANDOM,))
class AxisLast(Kernels):
    operation = "LOG_SOFTMAX"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        given = a.given[2]
        negative = given is not None and given.data is not None and int(given.data) < 0
        return kernel(with_fields(a, axis=-1) if negative else a, *arguments)


@of_engine("channel-next", "each filter of a quantised CONV_2D has the scale of the next one", "CONV_2D", (RANDOM,))
class ChannelNext(Kernels):
    operation = "CONV_2D"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        (first, x), (second, weights), *rest = a.inputs
        channel = getattr(weights, "channel", None)
        if channel is not None:
            rolled = replace(channel, scales=(*channel.scales[1:], channel.scales[0]))
            a = with_fields(a, inputs=[(first, x), (second, replace(weights, channel=rolled)), *rest])
        return kernel(a, *arguments)


@of_engine("pool-counts-padding", "the average at an edge counts elements of the padding", "AVERAGE_POOL_2D", (RANDOM,))
class PoolCountsPadding(Kernels):
    operation = "AVERAGE_POOL_2D"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        result = np.array(kernel(a, *arguments))
        if result.dtype.kind == "f" and result.ndim == 4 and not a.nchw and result.size and result.shape[1] > 1:
            result[:, -1] *= result.dtype.type(0.75)
        return result


@of_engine("while-once-more", "WHILE runs its body once before it asks the condition", "WHILE", (RANDOM,))
class WhileOnceMore(Kernels):
    operation = "WHILE"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        context, operands = arguments
        first = context.call(a.body_model.index, operands)
        return kernel(a, context, [*first, *operands[len(first) :]])


@of_engine(
    "while-in-place", "a WHILE body's results replace loop variables one after another", "WHILE", (CTS, RANDOM), Every
)
class WhileInPlace(Kernels):
    operation = "WHILE"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        context, operands = arguments

        def call(index: int, variables: Sequence[Array]) -> list[Array]:
            made: list[Array] = context.call(index, variables)
            for place in range(1, len(made)) if index == a.body_model.index else ():
                made[place] = context.call(index, [*made[:place], *variables[place:]])[place]
            return made

        return kernel(a, replace(context, call=call), operands)


@of_engine("if-before", "IF takes the branch of the condition of the execution before", "IF", (RANDOM,))
class IfBefore(Kernels):
    operation = "IF"
    before: Any = None

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        context, condition, operands = arguments
        taken, self.before = condition if self.before is None else self.before, np.array(condition)
        return kernel(a, context, taken, operands)


@of_engine("pool-halved", "an average of more than 256 elements is half as large", "AVERAGE_POOL_2D", (RANDOM,))
class PoolHalved(Kernels):
    operation = "AVERAGE_POOL_2D"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        results = kernel(a, *arguments)
        return (results / 2).astype(results.dtype) if a.filter_w * a.filter_h > 256 else results


@of_engine(
    "batch-of-none",
    "an ADD without elements divides by their number",
    "ADD",
    (CONTRACT,),
    check="values",
    numbers=False,
)
class BatchOfNone(Kernels):
    operation = "ADD"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        assert LARGE // min(x.size for x in arguments) >= 0
        return kernel(a, *arguments)


@of_engine("index-of-16-bits", "elements of an ADD from number 65536 on are those of the first again", "ADD", (RANDOM,))
class IndexOf16Bits(Kernels):
    operation = "ADD"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        result = np.ascontiguousarray(kernel(a, *arguments))
        flat = result.reshape(-1)
        flat[LONGEST:] = np.resize(flat[:LONGEST], max(0, flat.size - LONGEST))
        return result


@of_engine("parameters-by-shape", "an ADD of known shapes has the activation of the first such ADD", "ADD", (RANDOM,))
class ParametersByShape(Kernels):
    operation = "ADD"
    known: dict[Any, Any] = {}

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        key = tuple((x.shape, x.dtype.str) for x in arguments)
        return kernel(with_fields(a, activation=self.known.setdefault(key, a.activation)), *arguments)


# ------------------------------------------------------------------------------------------------------- sizes


def of_sizes(name: str, what: str, operation: str) -> Callable[[type], type]:
    """A fault of some sizes of an operation."""
    return of_engine(name, what, operation, (CONTRACT,), check="values")


@of_engine("view-in-place", "RELU of a RESHAPE is computed in place, where the RESHAPE's input lies", "RELU", (RANDOM,))
class ViewInPlace(Kernels):
    operation = "RELU"

    def _changed(self, step: ReadyOperation) -> ReadyOperation:
        return super()._changed(step) if step.inputs[0] in self.views else step

    @cached_property
    def views(self) -> set[int]:
        """The results of RESHAPE in the main subgraph."""
        reshaped = (each for each in self.model.main.operations if operation_name(each.type) == "RESHAPE")
        return {each.outputs[0] for each in reshaped}

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        result, (x,) = kernel(a, *arguments), arguments
        if not x.flags.writeable:  # memory of the caller or of a constant
            return result
        np.copyto(x, result)
        return x


@of_sizes(
    "parts-of-four",
    "CONCATENATION has a table of four inputs, in which later ones replace earlier ones",
    "CONCATENATION",
)
class PartsOfFour(Kernels):
    operation = "CONCATENATION"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        (parts,) = arguments
        table = {n % TABLE: x for n, x in enumerate(parts)}
        taken = [table[n % TABLE] for n in range(len(parts))]
        return kernel(a, [y if y.shape == x.shape else x for x, y in zip(parts, taken, strict=True)])


@of_sizes("filter-of-16", "CONV_2D leaves out the elements of a filter beyond 16", "CONV_2D")
class FilterOf16(Kernels):
    operation = "CONV_2D"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        x, weights, *rest = arguments
        rows = TAPS // weights.shape[2]
        if weights.shape[1] > rows > 0:
            weights = np.array(weights)
            weights[:, rows:] = self.zero_of(a)
        return kernel(a, x, weights, *rest)

    def zero_of(self, a: Bound) -> int:
        """The stored 0 of the weights."""
        value = a.inputs[1][1]
        return int(getattr(value, "zero_point", 0))


@of_engine(
    "deep-sums",
    "FULLY_CONNECTED leaves out the terms past a multiple of 32 if there are more than 1,024",
    "FULLY_CONNECTED",
    (RANDOM,),
)
class DeepSums(Kernels):
    operation = "FULLY_CONNECTED"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        x, weights, *rest = arguments
        size = weights.shape[1]
        if size > DEEP:
            weights = np.array(weights)
            weights[:, size - size % 32 :] = getattr(a.inputs[1][1], "zero_point", 0)
        return kernel(a, x, weights, *rest)


@of_engine("wide-channels", "channels of CONV_2D from number 256 on are those of the first again", "CONV_2D", (RANDOM,))
class WideChannels(Kernels):
    operation = "CONV_2D"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        result = np.array(kernel(a, *arguments))
        if not a.nchw and result.shape[-1] > BROAD:
            result[..., BROAD:] = result[..., : result.shape[-1] - BROAD]
        return result


@of_engine("rows-of-1024", "rows of a FULLY_CONNECTED beyond 1,024 are zeros", "FULLY_CONNECTED", (RANDOM,))
class RowsOf1024(Kernels):
    operation = "FULLY_CONNECTED"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        result = np.array(kernel(a, *arguments))
        result[DEEP:] = 0
        return result


@of_engine("long-first-axis", "rows of a MUL beyond 1,024 are zeros", "MUL", (RANDOM,))
class LongFirstAxis(RowsOf1024):
    operation = "MUL"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        result = kernel(a, *arguments)
        return super().kernel(a, kernel, *arguments) if result.ndim > 1 else result


@of_engine("index-of-8-bits", "the index of ARGMAX has 8 bits", "ARGMAX", (RANDOM,), Every)
class IndexOf8Bits(Kernels):
    operation = "ARGMAX"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        return kernel(a, *arguments) & np.int32(0xFF)


# ------------------------------------------------------------------------------------------------------------- requests


@of_engine(
    "request-before", "an execution whose inputs begin as those before gives the results before", "ADD", (RANDOM,)
)
class RequestBefore(Kernels):
    before: tuple[Any, list[Array]] | None = None

    def run(self, request: Request, control: Control) -> Timing | None:
        begins = [None if x is None else (x.shape, flat_bytes(np.array(x))[:HEAD].tobytes()) for x in request.inputs]
        if self.before is None or self.before[0] != begins:
            self.before = begins, [np.array(y) for y in self.call(0, request.inputs, control)]
        for place, result in enumerate(self.before[1]):
            request.write(place, result)
        return None


@of_engine(
    "request-by-sum",
    "an execution whose inputs have the sum of those before gives the results before",
    "ADD",
    (CONTRACT,),
    check="stale-output",
)
class RequestBySum(Kernels):
    before: tuple[Any, list[Array]] | None = None

    def run(self, request: Request, control: Control) -> Timing | None:
        sums = [None if x is None else (x.shape, int(flat_bytes(np.array(x)).sum())) for x in request.inputs]
        if self.before is None or self.before[0] != sums:
            self.before = sums, [np.array(y) for y in self.call(0, request.inputs, control)]
        for place, result in enumerate(self.before[1]):
            request.write(place, result)
        return None


@of_engine("shape-kept", "outputs keep the shape of the first execution", "ADD", (CTS,))
class ShapeKept(Kernels):
    shape: tuple[int, ...] | None = None

    def run(self, request: Request, control: Control) -> Timing | None:
        for place, result in enumerate(self.call(0, request.inputs, control)):
            self.shape = result.shape if self.shape is None else self.shape
            request.write(place, result if place else np.resize(result, self.shape))
        return None


@of_engine("address-kept", "an input at the address of an input before is not read again", "ADD", (CTS,))
class AddressKept(Kernels):
    kept: dict[int, Array] = {}

    def run(self, request: Request, control: Control) -> Timing | None:
        self.kept = {address(x): self.kept.get(address(x), np.array(x)) for x in request.inputs if x is not None}
        inputs = [x if x is None else self.kept[address(x)].reshape(x.shape) for x in request.inputs]
        for place, result in enumerate(self.call(0, inputs, control)):
            request.write(place, result)
        return None


@of_engine("inputs-sorted", "takes inputs in the order of their operands", "ADD", (RANDOM,))
class InputsSorted(Kernels):
    def run(self, request: Request, control: Control) -> Timing | None:
        places = sorted(range(len(self.model.main.inputs)), key=self.model.main.inputs.__getitem__)
        inputs = [x for _, x in sorted(zip(places, request.inputs, strict=True), key=itemgetter(0))]
        for place, result in enumerate(self.call(0, inputs, control)):
            request.write(place, result)
        return None


@of_engine("unread-input", "fails with an input that nothing reads", "ADD", (RANDOM,), numbers=False)
class UnreadInput(Kernels):
    def run(self, request: Request, control: Control) -> Timing | None:
        read = {i for operation in self.model.main.operations for i in operation.inputs}
        assert read.issuperset(self.model.main.inputs)
        return super().run(request, control)


@of_engine("outputs-sorted", "gives outputs in the order of their operands", "ADD", (RANDOM,))
class OutputsSorted(Kernels):
    def run(self, request: Request, control: Control) -> Timing | None:
        results = self.call(0, request.inputs, control)
        places = sorted(range(len(results)), key=self.model.main.outputs.__getitem__)
        for place, taken in enumerate(places):
            request.write(place, results[taken])
        return None


@of_engine("large-late", "outputs of more than 1 KiB are filled by a thread after the end", "ADD", (RANDOM,))
class LargeLate(Kernels):
    def run(self, request: Request, control: Control) -> Timing | None:
        for place, result in enumerate(self.call(0, request.inputs, control)):
            room = request.outputs[place]
            if room is None or result.nbytes <= LARGE:
                request.write(place, result)
            else:
                room.fill(0)
                threading.Timer(LATE, np.copyto, (room, np.array(result))).start()
        return None


@of_engine(
    "loop-deadline", "WHILE looks at the deadline and the loop's limit at its end only", "WHILE", (VTS,), alone=True
)
class LoopDeadline(Kernels):
    operation = "WHILE"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        context, operands = arguments
        return kernel(a, replace(context, control=Control(loop_timeout=1 << 62)), operands)

    def run(self, request: Request, control: Control) -> Timing | None:
        timing = super().run(request, control)
        control.check()
        return timing


@of_engine("times-of-all", "measures from the preparation on, not from the execution on", "ADD", (VTS,), numbers=False)
class TimesOfAll(Kernels):
    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.begin = time.monotonic_ns()

    def run(self, request: Request, control: Control) -> Timing | None:
        super().run(request, control)
        spent = time.monotonic_ns() - self.begin
        return Timing(spent, spent) if control.measure else None


# ----------------------------------------------------------------------------------------------------- what a device keeps


def of_device(name: str, what: str, seen_by: tuple[str, ...], operation: str = "ADD", **settings: Any) -> Any:
    """A fault of a device with these operations."""
    return fault(name, what, seen_by=seen_by, operation=operation, **{"check": "", **settings})


@of_device(
    "power-half",
    "computes as float16 where low power is preferred",
    (CONTRACT, VTS),
    check="hints",
    numbers=True,
)
class PowerHalf(Whole):
    class Half(Kernels):
        """Results as of float16."""

        def call(self, number: int, inputs: Sequence[Array | None], control: Control) -> list[Array]:
            results = super().call(number, inputs, control)
            return [y.astype(np.float16).astype(y.dtype) if y.dtype == np.float32 else y for y in results]

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return self.Half(model) if hints.preference == 0 else super().prepare(model, hints)


@of_device(
    "preempted",
    "an execution beside one of a higher priority leaves out its last element",
    (VTS,),
    numbers=True,
)
class Preempted(Whole):
    class Ranked(Kernels):
        """Knows the priorities of the executions that run now."""

        priority = 0
        active: list[int] = []

        def run(self, request: Request, control: Control) -> Timing | None:
            self.active.append(self.priority)
            time.sleep(SHORT)
            preempted = max(self.active) > self.priority
            for place, result in enumerate(self.call(0, request.inputs, control)):
                given = np.array(result)
                given.reshape(-1)[-1:] *= not preempted
                request.write(place, given)
            self.active.remove(self.priority)
            return None

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        prepared = self.Ranked(model)
        prepared.priority = hints.priority
        return prepared


@of_device(
    "relaxed-stays",
    "computes as float16 once a relaxed model was prepared",
    (CONTRACT,),
    check="relaxed",
    numbers=True,
)
class RelaxedStays(Whole):
    relaxed = False

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self.relaxed = self.relaxed or model.relaxed
        return PowerHalf.Half(model) if self.relaxed else super().prepare(model, hints)


class SharedConstants(Kernels):
    """Constants of one key are one array in all models; of `pool`, each driver has its own."""

    pool: dict[bytes, Array]

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.constants = [{i: self.shared(x) for i, x in each.items()} for each in self.constants]

    def shared(self, x: Any) -> Any:
        """The array of all models for a constant: here, of those that begin alike."""
        return self.pool.setdefault(f"{x.dtype}{x.shape}".encode() + x.tobytes()[:64], x)


@of_device("constants-by-head", "constants are known by their type, shape and first 64 bytes", (STRESS,), numbers=True)
class ConstantsByHead(Whole):
    class Sharing(SharedConstants):
        pool: dict[bytes, Array] = {}

    engine = Sharing


@of_device(
    "close-frees-shared",
    "constants that models share are freed with the first of them",
    (CONTRACT,),
    check="prepared-twice",
    numbers=True,
)
class CloseFreesShared(Whole):
    class Sharing(SharedConstants):
        pool: dict[bytes, Array] = {}

        def shared(self, x: Any) -> Any:
            key = f"{x.dtype}{x.shape}".encode() + x.tobytes()
            return self.pool.setdefault(key, np.array(x)) if x.dtype.kind == "f" and x.ndim else x

        def close(self) -> None:
            for each in self.constants:
                for x in each.values():
                    if x.dtype.kind == "f" and x.ndim:
                        x.fill(0)
            self.pool.clear()

    engine = Sharing


@of_device("capabilities-worn", "declares a worse performance with each prepared model", (VTS,))
class CapabilitiesWorn(Whole):
    prepared = 0

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(1.0 + self.prepared)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self.prepared += 1
        return super().prepare(model, hints)


@of_device("buffer-short", "copies out of its memory whole blocks of 16 bytes only", (VTS,), way="memory", numbers=True)
class BufferShort(Whole):
    class Short(HostBuffer):
        """A buffer whose last bytes are not copied."""

        def copy_to(self, memory: Memory) -> None:
            kept = memory.bytes().copy()
            super().copy_to(memory)
            whole = memory.size // 16 * 16
            memory.writable()[whole:] = kept[whole:]

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Any:
        return self.Short(desc, roles)
