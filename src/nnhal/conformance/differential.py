"""Makes models of drawn calls, executes them, and compares outputs with the definition.

One call becomes a model of one operation. Results agree within the tolerance of the definition, and within the freedom
that the record leaves to the driver: the order of sums (`Op.sums`), and the elements of `Op.leaves_open`. A device may
declare further freedom (`hal.device.RELAXATIONS`).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import singledispatch
from typing import Any

import numpy as np

from nnhal.base.codes import Lifetime, OperandType
from nnhal.base.errors import InvalidModel
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, Value, quantised
from nnhal.base.records import replace
from nnhal.conformance.compare import tolerance
from nnhal.conformance.draw import AT_BOUNDS, Call, contents
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import CONSTANTS, Location, Model
from nnhal.ops.common import ACTIVATION_RANGE, IN_A_ROW
from nnhal.ops.schema import F16, F32, Arg, Bound, bind, output_at

Outputs = list[Array | None]
ORDERS = 64  # units in the last place that another order of summation may cost, relative to the sum of magnitudes
OPEN = 0.15  # the share of models with open dimensions
THREADS = (1, 2)  # of compilations: an engine may have another kernel for several threads
POOLS = 2, 3  # of constants: the least and the most
PAGE, PART = 4096, 64  # bytes before the constants of a large pool, and to which each constant is aligned
CLIPS = {"RELU": (0.0,), "RELU1": (-1.0, 1.0), "RELU6": (0.0, 6.0)}


def model_of(call: Call) -> Model:
    """Make a model of the one operation: the values given at execution are its inputs, the others are constants."""
    b = ModelBuilder(str(call.cell))
    indices, inputs, outputs = operands_of(call, b)
    b.operation(call.cell.op.code, indices, outputs)
    return b.finish(inputs, outputs, extensions=b.extensions())


def with_pools(model: Model) -> Model | None:
    """Return the model with its constants in two or three memory pools, and no others. The first is the largest.

    None if it has fewer than two constants.
    """
    main, operands = model.main, list(model.main.operands)
    places = [place for place, operand in enumerate(operands) if operand.lifetime in CONSTANTS]
    if len(places) < POOLS[0]:
        return None
    whole = PAGE + sum(model.constant(operands[place]).nbytes for place in places)
    pools = [bytearray(begin) for begin in (whole, PART, whole // 2)][: min(len(places), POOLS[1])]
    for number, place in enumerate(places):
        pool, array = pools[number % len(pools)], model.constant(operands[place])
        pool += bytes(-len(pool) % PART)
        at = Location(number % len(pools), len(pool), array.nbytes)
        operands[place] = replace(operands[place], lifetime=Lifetime.CONSTANT_REFERENCE, location=at)
        pool += array.tobytes()
    made = tuple(Memory.from_array(np.frombuffer(pool, np.uint8)) for pool in pools)
    return replace(model, main=replace(main, operands=tuple(operands)), pools=made)


@singledispatch
def operands_of(call: Call, b: ModelBuilder) -> tuple[list[int], list[int], list[int]]:
    """Add a call's operands to a model; return all inputs, those given at execution, and the outputs."""
    indices, inputs = [], []
    for place, (argument, value) in enumerate(zip(call.arguments, call.inputs, strict=True)):
        if value is None:
            allowed = call.cell.kind if not isinstance(argument.spec, dict) else next(iter(argument.spec))
            indices.append(b.no_value(allowed))
        elif place in call.given:
            free = call.open and value.channel is None
            dims = () if argument.scalar else [0] * value.rank if free else value.known
            indices.append(b.operand(value.type, dims, value.scale, value.zero_point, channel=value.channel))
            inputs.append(indices[-1])
        else:
            described = value.type, value.array, value.scale, value.zero_point
            indices.append(b.constant(*described, channel=value.channel))
    shapes = [() if v.shape is None else [0 if call.open else d or 0 for d in v.shape] for v in call.outputs]
    outputs = [b.operand(v.type, s, v.scale, v.zero_point) for v, s in zip(call.outputs, shapes, strict=True)]
    return indices, inputs, outputs


def arrays_of(call: Call) -> list[Array]:
    """Return the arrays for the model's inputs."""
    return [value.array for place in call.given if (value := call.inputs[place]) is not None]


@singledispatch
def with_other_values(call: Call, rng: np.random.Generator) -> Call:
    """Return the call with other values in each input that may hold any elements.

    A parameter that is an input of the model gets another value, if there is one that changes only results.
    """
    arguments, inputs, bound = call.arguments, list(call.inputs), call.bound
    for place in call.given:
        value = inputs[place]
        if value is not None and arguments[place].drawn is None and not arguments[place].scalar:
            inputs[place] = replace(value, data=contents(rng, value.type, value.known, call.cell.values))
    for place in call.given:
        if not arguments[place].scalar:
            continue
        for other in _others(inputs[place], arguments[place], rng):
            changed = [*inputs[:place], other, *inputs[place + 1 :]]
            with suppress(InvalidModel):
                found = bind(call.cell.op, changed, call.outputs)
                if found.shapes == bound.shapes:
                    inputs, bound = changed, found
                    break
    return replace(call, inputs=tuple(inputs), bound=bound)


def reordered(call: Call) -> Call:
    """Return the call with the elements of each input that may hold any in reverse order."""
    inputs = list(call.inputs)
    for place in call.given:
        value, argument = inputs[place], call.arguments[place]
        if value is not None and argument.drawn is None and not argument.scalar:
            inputs[place] = replace(value, data=np.ascontiguousarray(np.flip(value.array)))
    return replace(call, inputs=tuple(inputs))


def _others(value: Value | None, argument: Arg, rng: np.random.Generator) -> Iterator[Value]:
    """Yield a few other values of a parameter."""
    if value is None:
        return
    now = value.array.item()
    numbers: Sequence[Any] = (now + 1, now - 1)
    if argument.enum is not None:
        numbers = [int(member) for member in rng.permutation(list(argument.enum)) if member != now]
    elif value.type == OperandType.BOOL:
        numbers = (not now,)
    elif isinstance(now, float):
        numbers = (now / 2, now * 2)
    for number in numbers:
        yield replace(value, data=np.asarray(number, value.dtype))


@singledispatch
def other_constants(call: Call, rng: np.random.Generator) -> Call:
    """Return the call with other constants; those that may not hold any elements are reordered."""
    inputs = list(call.inputs)
    for place, (argument, value) in enumerate(zip(call.arguments, call.inputs, strict=True)):
        if value is None or place in call.given or argument.scalar or value.array.dtype == np.int32:
            continue
        free = argument.drawn is None
        data = contents(rng, value.type, value.known, call.cell.values) if free else np.flip(value.array).copy()
        inputs[place] = replace(value, data=data)
    return replace(call, inputs=tuple(inputs))


def run(prepared: Prepared, arrays: Sequence[Array]) -> Outputs:
    """Execute once; errors of the driver are raised."""
    request = prepared.request(arrays)
    request.execute(prepared.run, UNLIMITED)
    return request.results


# ------------------------------------------------------------------------------------------------------------- judging


def tensors_of(call: Call, flush: bool = False) -> list[Any]:
    """Return the tensor arguments of a kernel. flush: with 0 for subnormal numbers."""
    arrays = [None if v is None else v.array for v in call.inputs]
    return call.bound.form.tensors([None if x is None else flushed(x) for x in arrays] if flush else arrays)


def flushed(x: Array) -> Array:
    """Replace subnormal numbers by 0."""
    return (
        x if x.dtype.kind != "f" else np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(0, x), x).astype(x.dtype)
    )


def bind_call(call: Call) -> Bound:
    """Bind the call with all values known."""
    return bind(call.cell.op, call.inputs, call.outputs)


@singledispatch
def compare_outputs(
    call: Call, wanted: Sequence[Array | None], actual: Sequence[Array | None], relaxations: Sequence[str] = ()
) -> str:
    """Return how outputs differ from the wanted ones by more than the definition allows; "" if they agree.

    relaxations: those that the device declares (`hal.device.RELAXATIONS`).
    """
    in_a_row = "long_sums" in relaxations and call.cell.op.sums == "products"
    if "clipped_nan" in relaxations:
        actual = [without_clipping(call, x, w) for x, w in zip(actual, wanted, strict=True)]
    problem = compare(call, wanted, actual)
    if problem and "infinities" in relaxations:
        actual = [unbounded(x, w) for x, w in zip(actual, wanted, strict=True)]
        problem = compare(call, wanted, actual)
    if problem and in_a_row:
        problem = compare(call, wanted, actual, in_a_row=True)
    if problem and "subnormals" in relaxations:
        return compare(call, kernel_outputs(call, flush=True), actual) and problem
    return problem


def without_clipping(call: Call, actual: Array | None, wanted: Array | None) -> Array | None:
    """Return results with NaN for a bound of the activation, if NaN is wanted."""
    if actual is None or wanted is None or wanted.dtype.kind != "f" or actual.shape != wanted.shape:
        return actual
    return np.where(np.isnan(wanted) & np.isin(actual, bounds(call)), wanted, actual)


def unbounded(actual: Array | None, wanted: Array | None) -> Array | None:
    """Return results with infinity for the greatest numbers, if infinity is wanted."""
    if actual is None or wanted is None or wanted.dtype.kind != "f" or actual.shape != wanted.shape:
        return actual
    greatest = np.abs(actual) == np.finfo(wanted.dtype).max
    return np.where(greatest & np.isinf(wanted) & (np.sign(actual) == np.sign(wanted)), wanted, actual)


def kernel_outputs(call: Call, *, flush: bool = False, magnitudes: bool = False, ones: bool = False) -> list[Array]:
    """Return the reference kernel's results for a call.

    flush: with 0 for subnormal values. magnitudes: of the values' magnitudes. ones: with 1 for all values.
    """
    a, tensors = bind_call(call), tensors_of(call, flush)
    if magnitudes or ones:
        other = np.ones_like if ones else np.abs
        tensors = [other(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in tensors]
        a.__dict__.pop("activation", None)
    with np.errstate(all="ignore"):
        results = a.op.kernel(a, *tensors)
    return list(results) if isinstance(results, tuple | list) else [results]


def compare(
    call: Call, wanted: Sequence[Array | None], actual: Sequence[Array | None], *, in_a_row: bool = False
) -> str:
    """Compare as `compare_outputs`, for a device that computes with subnormal numbers. in_a_row: as of `agreeing`."""
    for number, (w, g) in enumerate(zip(wanted, actual, strict=True)):
        label = f"output {number}"
        if output_at(call.cell.op, number).undefined:
            continue
        if w is None or g is None:
            return f"{label} has no value"
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"{label} is {g.dtype}{list(g.shape)}, must be {w.dtype}{list(w.shape)}"
        bad = ~agreeing(call, number, w, g, in_a_row=in_a_row)
        if bad.any():
            bad &= ~np.asarray(open_masks(call, len(wanted))[number], bool)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            first = f"the first at {list(at)}: {_number(g[at])}, must be {_number(w[at])}"
            return f"{label} differs in {int(bad.sum())} of {bad.size}, {first}"
    return ""


def _number(x: Any) -> str:
    return f"{x:g}" if np.asarray(x).dtype.kind != "c" else f"{x.real:g}{x.imag:+g}j"


def open_masks(call: Call, count: int) -> list[Any]:
    """Return for each output the elements that the record leaves to the driver."""
    rule = call.cell.op.leaves_open
    masks: list[Any] = [False] * count
    if rule is not None:
        with np.errstate(all="ignore"):
            found = rule(bind_call(call), *tensors_of(call))
        for number, mask in enumerate(found if isinstance(found, tuple) else (found,)):
            masks[number] = mask
    return masks


def agreeing(call: Call, number: int, wanted: Array, actual: Array, *, in_a_row: bool = False) -> Array:
    """Return which elements of an output are within the tolerance.

    in_a_row: for products that are added up one after another, which rounds each time.
    """
    room = output_buffer_of(call, number, wanted, in_a_row=in_a_row)
    if room is None:
        return np.asarray(actual == wanted)
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), wanted.astype(wide)
    with np.errstate(invalid="ignore"):
        fine = (np.abs(a - e) <= room) | (a == e) | (np.isnan(a) & np.isnan(e)) | (room == np.inf)
    return np.asarray(fine)


def output_buffer_of(call: Call, number: int, wanted: Array, *, in_a_row: bool = False) -> Array | None:
    """Return by how much each element of an output may differ, infinity for any amount; None if it must be equal.

    in_a_row: as of `agreeing`.
    """
    value = call.outputs[number]
    if call.cell.values == AT_BOUNDS or (not quantised(value.type) and wanted.dtype.kind not in "fc"):
        return None
    half = any(v is not None and v.type in (F16, OperandType.FLOAT16) for v in call.inputs)
    atol, rtol = tolerance(value.type, half)
    e = wanted.astype(np.complex128 if wanted.dtype.kind == "c" else np.float64)
    room: Array = np.asarray(atol + rtol * np.where(np.isfinite(e), np.abs(e), 0))
    if call.cell.op.sums and value.type in (F32, F16):
        total = kernel_outputs(call, magnitudes=True)[number]
        size = np.abs(np.where(np.isfinite(total), total, 0).astype(np.float64))
        terms = kernel_outputs(call, ones=True)[number] if in_a_row else 0
        orders = ORDERS * np.maximum(1, terms / IN_A_ROW)
        room = np.where(np.isfinite(e) & ~np.isfinite(total), np.inf, room + size * orders * np.finfo(np.float32).eps)
        if call.cell.op.sums == "products":
            factors = [x for x in tensors_of(call) if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
            if not all(np.isfinite(x).all() for x in factors):
                return np.full(e.shape, np.inf)
            room = np.where(total < np.finfo(wanted.dtype).max, room, np.inf)
    return room


def bounds(call: Call) -> list[float]:
    """Return the values that a clipped NaN may have."""
    activation = call.bound.__dict__.get("activation")
    clips = CLIPS.get(call.cell.op.name) or (ACTIVATION_RANGE[activation] if activation else ())
    return [x for x in clips if np.isfinite(x)]
