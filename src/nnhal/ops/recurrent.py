"""Shared functions of the recurrent operations: activations, unrolling over time, two directions, linking."""

from collections.abc import Callable, Iterable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnhal.base.codes import RecurrentActivation
from nnhal.base.levels import V1_3
from nnhal.base.operands import Array, Shape, UnknownValue, Value
from nnhal.base.records import replace
from nnhal.ops.common import FLOAT, HALF
from nnhal.ops.ranges import Draw, Range, among
from nnhal.ops.schema import F16, Arg, Bound, Kernel, agree, arg, may_be_omitted, show

States = tuple[Array, ...]  # the output of the step before first
Step = Callable[[States, Array, Array | None], States]  # step(states, input, auxiliary input) -> states


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), which neither overflows nor loses precision close to 0."""
    result: Array = np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
    return result


ACTIVATIONS: dict[RecurrentActivation, Callable[[Array], Array]] = {
    RecurrentActivation.NONE: lambda x: x,
    RecurrentActivation.RELU: lambda x: np.maximum(x, 0),
    RecurrentActivation.RELU1: lambda x: np.clip(x, -1, 1),
    RecurrentActivation.RELU6: lambda x: np.clip(x, 0, 6),
    RecurrentActivation.TANH: np.tanh,
    RecurrentActivation.SIGMOID: sigmoid,
}


def activation_drawn(*kinds: RecurrentActivation) -> Arg:
    """The argument `activation_kind`, drawn from `kinds`."""
    return arg("activation_kind", RecurrentActivation, drawn=among(*kinds))


def activation_among(*kinds: RecurrentActivation) -> Callable[[Bound], None]:
    """Rule: activation_kind is one of `kinds`."""
    choices = ", ".join(f"{int(kind)} ({kind.name})" for kind in kinds)

    def check(a: Bound) -> None:
        kind = a.activation_kind
        a.require(kind in kinds, f"activation_kind is {int(kind)} ({kind.name}), must be one of {choices}")

    return check


# The fused activations of the definition, and two more that converters use and implementations support.
simple_activation = activation_among(*ACTIVATIONS)


def size(a: Bound, name: str) -> int | None:
    """Return a named dimension, None while it is unknown."""
    found: int | None = a.__dict__.get(name)
    return found


def given(a: Bound, name: str) -> bool:
    """Whether an optional argument has a value.

    Unknown for an input declared as [0], which may be omitted at execution.
    """
    value: Value | None = getattr(a, name)
    if value is not None and may_be_omitted(value):
        raise UnknownValue(name)
    return value is not None


def all_or_none(a: Bound, names: Iterable[str]) -> list[str]:
    """Require that these optional arguments are given together; return those that are."""
    there = [n for n in names if given(a, n)]
    missing = [n for n in names if n not in there]
    a.require(not there or not missing, f"{', '.join(there)} is given, so {', '.join(missing)} must be given too")
    return there


def named(a: Bound, tensors: Iterable[Any], prefix: str = "") -> SimpleNamespace:
    """Return the tensors of a kernel call by the names of their arguments.

    With a prefix, return only those that have it, without it.
    """
    pairs = zip((argument.name for argument, _ in a.inputs), tensors, strict=True)
    return SimpleNamespace(**{n.removeprefix(prefix): x for n, x in pairs if n.startswith(prefix)})


# ------------------------------------------------------------------------------------------------------------ precision


def double(kernel: Kernel) -> Kernel:
    """Make a kernel that computes in float64.

    Roundings of float32 would add up over the steps, and the gates magnify them.
    """

    @wraps(kernel)
    def wide(a: Bound, *tensors: Any) -> Any:
        return kernel(a, *(None if x is None else x.astype(np.float64) for x in tensors))

    return wide


SHAKES, STEP = 6, 2.0**-22  # the number of trials, and the relative change


def overflows(tensors: Iterable[Any]) -> bool:
    """Whether sums of products of the greatest numbers of two tensors could leave float32's range."""
    known = [x for x in tensors if x is not None and x.size]
    greatest = sorted([1.0, 1.0, *(float(np.abs(np.where(np.isfinite(x), x, 0)).max()) for x in known)])
    longest = max((n for x in known for n in x.shape), default=1)
    return bool(4 * longest * greatest[-1] * greatest[-2] > np.finfo(np.float32).max)


def open_if_not_finite(kernel: Kernel) -> Kernel:
    """Open: elements that depend on a value that is not finite; all, if sums of products of two of the numbers could
    leave float32's range; and elements that change by more than the tolerance if each input number changes in its last
    digit.
    """

    def open_(a: Bound, *tensors: Any) -> tuple[Any, ...]:
        def made(change: Callable[[Array], Array]) -> list[Array]:
            return list(kernel(a, *(None if x is None else change(x) for x in tensors)))[: len(a.outs)]

        def shaken(x: Array) -> Array:
            return (x * (1 + rng.choice([-STEP, STEP], x.shape))).astype(np.float32)

        rng, (atol, rtol) = np.random.default_rng(0), (HALF, HALF) if a.T == F16 else FLOAT
        exact = made(lambda x: np.where(np.isfinite(x), x, np.nan).astype(np.float64))
        masks = [np.isnan(x) | overflows(tensors) for x in exact]
        for _ in range(SHAKES):
            for n, found in enumerate(made(shaken)):
                masks[n] = masks[n] | ~(np.abs(found - exact[n]) <= atol + rtol * np.abs(exact[n]))
        return tuple(masks)

    return open_


# ------------------------------------------------------------------------------------------------------------ sequences


def time_first(a: Bound, x: Array) -> Array:
    """Transpose a sequence [batch, time, size] to [time, batch, size], or back, unless `time_major`."""
    return x if a.time_major else x.swapaxes(0, 1)


def batch_agrees(a: Bound) -> None:
    """The batch is dimension 1 of a time-major input, else 0."""
    batch = a.input.dims[1 if a.time_major else 0]
    a.require(batch in (None, a.batch), f"input 0 (input) has a batch of {batch}, must be batch = {a.batch}")


def unroll(step: Step, states: States, x: Array, aux: Array | None = None) -> tuple[Array, States]:
    """Run a cell over inputs [time, batch, size]; return its outputs, and the last states."""
    outputs = np.empty((len(x), *states[0].shape), x.dtype)
    for t in range(len(x)):
        states = step(states, x[t], None if aux is None else aux[t])
        outputs[t] = states[0]
    return outputs, states


def sequence_shapes(a: Bound, features: int | None, *states: str) -> list[Shape | None]:
    """Return the output shapes: the sequence of `features`, then the last state of each size."""
    batch = size(a, "batch")
    first, second, _ = a.input.shape or (None, None, None)
    sequence = (first, batch, features) if a.time_major else (batch, second, features)
    return [sequence, *((batch, size(a, name)) for name in states)]


def steps_of(name: str, features: str) -> Range:
    """Range: a sequence in the layout of `time_major`."""

    def draw(d: Draw) -> Value:
        times, batch = d.size("times"), d.size("batch")
        return scaled_to_float32(
            d.tensor(d.kind, (*((times, batch) if d["time_major"] else (batch, times)), d.size(features)))
        )

    return draw


def scaled_to_float32(value: Value) -> Value:
    """Scale numbers so that sums of their products stay in float32's range."""
    if value.dtype != np.float32:
        return value
    x = value.array
    return replace(value, data=np.where(np.isfinite(x), np.clip(x, -1e30, 1e30), x).astype(np.float32))


def cell_inputs(name: str) -> Range:
    """Range: inputs of a cell other than weights."""
    return lambda d: scaled_to_float32(d.plain(name))


def small_weights(name: str) -> Range:
    """Range: weights of an eighth of the class's values, none beyond 1, so that sums stay about as large as the inputs."""

    def draw(d: Draw) -> Value:
        value: Value = d.plain(name)
        if value.quantised:
            return value
        return replace(value, data=np.clip(value.array / 8, -1, 1).astype(value.dtype))

    return draw


def aux_linking(d: Draw) -> str:
    """Range: the use of an auxiliary input, if there is one."""
    return str(d.once("linking", "none", "parallel", "cross"))


def auxiliary(d: Draw) -> Value | None:
    """Range: the auxiliary input."""
    found: Value | None = None if aux_linking(d) == "none" else steps_of("aux_input", "aux_size")(d)
    return found


READ = {"bw_input_size": lambda d: d.size("aux_size" if aux_linking(d) == "parallel" else "input_size")}

# -------------------------------------------------------------------------------------------------------- two directions


def two_way_count(states: int) -> Callable[[Draw], int]:
    """Return a function that draws the number of outputs."""
    return lambda d: (1 if d["merge_outputs"] else 2) + int(d.pick(0, states))


def linked(*weights: str) -> Callable[[Bound], None]:
    """Rule: without aux_input no `weights`; with it all of them (cross linking) or none (parallel linking)."""

    def check(a: Bound) -> None:
        there = all_or_none(a, weights)
        if there:
            all_or_none(a, (*there, "aux_input"))
        elif given(a, "aux_input"):
            a.since(V1_3, "aux_input may be given without auxiliary weights (parallel linking) since 1.3")

    return check


def aux_agrees(a: Bound) -> None:
    """The auxiliary input has the batch and the times of the input."""
    if given(a, "aux_input"):
        ours, theirs = a.aux_input.dims[:2], a.input.dims[:2]
        a.require(agree(ours, theirs), f"aux_input starts with {show(ours)}, must start with {show(theirs)} like input")


def backward_reads(weight: str) -> Callable[[Bound], None]:
    """Rule: the backward cell reads the input; in parallel linking (no auxiliary `weight`) it reads the auxiliary
    input.
    """

    def check(a: Bound) -> None:
        source = "input_size" if not given(a, "aux_input") or given(a, weight) else "aux_size"
        wanted = getattr(a, source)
        a.require(a.bw_input_size == wanted, f"bw_input_size = {a.bw_input_size}, must be {source} = {wanted}")

    return check


def outputs_counted(states: int) -> tuple[Callable[[Bound], None], ...]:
    """Rules: one output if merged, else two; then all `states` last states or none."""

    def possible(a: Bound) -> None:
        counts = 1, 2, 1 + states, 2 + states
        a.require(len(a.outs) in counts, f"has {len(a.outs)} outputs, must have {' or '.join(map(str, counts))}")

    def merged(a: Bound) -> None:
        least = 1 if a.merge_outputs else 2
        counts = least, least + states
        a.require(
            len(a.outs) in counts,
            f"has {len(a.outs)} outputs with merge_outputs = {a.merge_outputs}, must be {counts[0]} or {counts[1]}",
        )

    return possible, merged


def two_way_shapes(a: Bound, outputs: tuple[str, str], *states: str) -> list[Shape | None]:
    """Return the output shapes: one merged sequence or two, then the last states."""
    fw, bw = (size(a, name) for name in outputs)
    if a.merge_outputs:
        return sequence_shapes(a, None if fw is None or bw is None else fw + bw, *states)
    return [*sequence_shapes(a, fw)[:1], *sequence_shapes(a, bw, *states)]


def two_ways(
    a: Bound, fw: tuple[Step, States], bw: tuple[Step, States], x: Array, aux: Array | None, crossed: bool
) -> tuple[Array, ...]:
    """Run one cell forwards and one backwards; return the output sequences, merged or not, then both last states.

    crossed: whether both cells read `aux` in addition to `x`; otherwise the backward one reads it instead of `x`, if it
    is given.
    """
    x = time_first(a, x)
    aux = None if aux is None else time_first(a, aux)
    second, extra = (x, aux) if crossed or aux is None else (aux, None)
    ahead, fw_states = unroll(*fw, x, extra)
    back, bw_states = unroll(*bw, second[::-1], None if extra is None else extra[::-1])
    results = ahead, back[::-1]
    merged = (np.concatenate(results, -1),) if a.merge_outputs else results
    return (*(time_first(a, y) for y in merged), *fw_states, *bw_states)
