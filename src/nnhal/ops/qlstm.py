"""QUANTIZED_LSTM: a time step of an LSTM cell on 8-bit tensors, with all its optional parts, in fixed point.

Gates and cell state have 16 bits. Before a gate's function its value has three integer bits.
"""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnhal.base.levels import V1_3
from nnhal.base.operands import Array, Value
from nnhal.ops.fixedpoint import (
    ONE,
    dot,
    halve,
    inverse_root,
    logistic,
    multiply,
    quotient,
    saturate,
    scaled,
    tanh,
)
from nnhal.ops.lstm import cell_args, cell_checks, norm_args, sizes
from nnhal.ops.ranges import Range, among, between, sometimes, whole
from nnhal.ops.recurrent import given, named
from nnhal.ops.schema import (
    FLOAT32,
    I32,
    INT32,
    Q8S,
    Q8SYMM,
    Q16S,
    Bound,
    Form,
    Op,
    Stored,
    T,
    arg,
    args,
    example,
    out,
    register,
)

GATES = "input", "forget", "cell", "output"
GATE = 2.0**-12  # scale before the gates' functions


def power_of_two_scale(exponent: float, least: int = 0, most: int = 0) -> Range:
    """Range: a scale of about a power of two, and a zero point."""
    return lambda d: (float(np.float32(2.0 ** (exponent + d.rng.uniform(-1, 1)))), int(d.whole(least, most)))


def state_of(name: str) -> Range:
    """Range: scale and zero point of another tensor."""
    return lambda d: (d[name].scale, d[name].zero_point)


SCALES = {
    "input": power_of_two_scale(-6, -50, 50),
    "state": power_of_two_scale(-7, -8, 8),
    "cell_state": lambda d: (2.0 ** int(d.whole(-13, -10)), 0),
    "state_out": state_of("state"),
    "cell_state_out": state_of("cell_state"),
    "output": state_of("state"),
    "projection": power_of_two_scale(-7),
    **{f"{source}_to_{gate}": power_of_two_scale(-8) for source in ("input", "state") for gate in GATES},
    **{f"{kind}_{gate}": power_of_two_scale(-15) for kind in ("peep", "norm") for gate in GATES},
    **{f"bias_{gate}": power_of_two_scale(-14) for gate in GATES},
}


def cell_is_power_of_two(a: Bound) -> None:
    """The scale of cell_state is a power of two, from 2**-15 to 2**-9."""
    scale = a.cell_state.scale
    exponent = round(math.log2(scale))
    a.require(
        abs(math.log2(scale) - exponent) < 1e-3 and -15 <= exponent <= -9,
        f"cell_state has scale {scale:g}, must be a power of two from 2**-15 to 2**-9",
    )


def intermediates_positive(a: Bound) -> None:
    """With layer normalisation the intermediate scales are greater than 0."""
    for gate in GATES:
        if given(a, f"norm_{gate}"):
            scale = getattr(a, f"{gate}_intermediate_scale")
            a.require(scale > 0, f"{gate}_intermediate_scale = {scale}, must be greater than 0")


def hidden_positive(a: Bound) -> None:
    """hidden_state_scale is greater than 0."""
    a.require(a.hidden_state_scale > 0, f"hidden_state_scale = {a.hidden_state_scale}, must be greater than 0")


def states_keep_scale(a: Bound) -> None:
    """State and cell state keep their scale and zero point; the output has those of the state."""
    for index, name in ((0, "state"), (1, "cell_state"), (2, "state")):
        have, want = a.outs[index], getattr(a, name)
        a.require(
            (have.scale, have.zero_point) == (want.scale, want.zero_point),
            f"output {index} has scale {have.scale:g} and zero point {have.zero_point}, "
            f"must be those of {name}, {want.scale:g} and {want.zero_point}",
        )


def ratio(one: float, two: float, by: float) -> float:
    """Return one * two / by in single precision."""
    return float(np.float32(one) * np.float32(two) / np.float32(by))


def normalise(x: Array, weight: Array, bias: Array, scale: float) -> Array:
    """Normalise a layer: mean and quotient have 10 more bits, the bias has the scale of the weights / 1024."""
    n = x.shape[1]
    mean = quotient(x.sum(1, keepdims=True) * 1024, n)
    variance = quotient((x * x).sum(1, keepdims=True) * (2**20 // n) - mean * mean, 2**20)
    fraction, times = inverse_root(np.maximum(variance, 1))
    normal = halve(multiply(1024 * x - mean, fraction, 31), times)
    return saturate(scaled(halve(normal * weight + bias, 10), scale / GATE))


def gate(a: Bound, w: SimpleNamespace, name: str, memory: Array) -> Array:
    """Return the sum of all inputs of a gate, every term rounded and saturated at the scale before the gate's function."""
    norm, bias = getattr(w, f"norm_{name}"), getattr(w, f"bias_{name}")
    step = GATE if norm is None else getattr(a, f"{name}_intermediate_scale")
    total: Array = np.zeros((), np.int64)
    for source, read in (("input", a.input), ("state", a.state)):
        weights: Value = getattr(a, f"{source}_to_{name}")
        products = dot(getattr(w, source), read.zero_point, getattr(w, f"{source}_to_{name}"))
        if norm is None and source == "input":
            products = products + bias
        total = saturate(total + scaled(products, ratio(weights.scale, read.scale, step)))
    peephole = getattr(w, f"peep_{name}", None)
    if peephole is not None:
        factor = ratio(a.cell_state.scale, getattr(a, f"peep_{name}").scale, step)
        total = saturate(total + scaled(memory * peephole, factor))
    return total if norm is None else normalise(total, norm, bias, getattr(a, f"norm_{name}").scale)


def project(a: Bound, w: SimpleNamespace, hidden: Array) -> Array:
    total = dot(hidden, a.hidden_state_zero_point, w.projection)
    if w.projection_bias is not None:
        total = total + w.projection_bias
    factor = ratio(a.projection.scale, a.hidden_state_scale, a.state.scale)
    output = saturate(scaled(total, factor) + a.state.zero_point, 8)
    if a.projection_clip is None or a.projection_clip <= 0:
        return output
    reach = int(min(a.projection_clip / a.state.scale, 255))
    return np.clip(output, a.state.zero_point - reach, a.state.zero_point + reach)


def step(a: Bound, *tensors: Any) -> tuple[Array, Array, Array]:
    w = named(a, [None if x is None else x.astype(np.int64) for x in tensors])
    shift = round(math.log2(a.cell_state.scale))
    forget = logistic(gate(a, w, "forget", w.cell_state), 3)
    admit = ONE - forget if w.input_to_input is None else logistic(gate(a, w, "input", w.cell_state), 3)
    new = halve(admit * tanh(gate(a, w, "cell", w.cell_state), 3), 30 + shift)
    memory = saturate(halve(forget * w.cell_state, 15) + new)
    if a.cell_clip is not None and a.cell_clip > 0:
        reach = int(min(a.cell_clip / a.cell_state.scale, ONE))
        memory = np.clip(memory, -reach, reach)
    emit = logistic(gate(a, w, "output", memory), 3)
    factor = ratio(2.0**-15, 2.0**-15, a.hidden_state_scale)
    hidden = saturate(scaled(emit * tanh(memory, shift + 15), factor) + a.hidden_state_zero_point, 8)
    output = (hidden if w.projection is None else project(a, w, hidden)).astype(np.int8)
    return output, memory.astype(np.int16), output


HALF_OPEN = {  # for an example: half the state; tanh(x) is x if x is small
    "input": Stored([[1]], Q8S, 1.0),
    **dict.fromkeys(
        [f"{source}_to_{gate}" for source in ("input", "state") for gate in GATES[1:]], Stored([[0]], Q8SYMM, 1.0)
    ),
    **{f"bias_{gate}": [0] for gate in GATES[1:]},
    "state": Stored([[0]], Q8S, 2**-9),
    "cell_state": Stored([[40]], Q16S, 2**-9),
    **dict.fromkeys([f"{gate}_intermediate_scale" for gate in GATES], 0),
    "hidden_state_zero_point": 0,
    "hidden_state_scale": 2**-9,
}

register(
    Op(
        "QUANTIZED_LSTM",
        {Q8S: V1_3},
        (
            Form(
                arg("input", T, "batch input_size"),
                *cell_args(weight=Q8SYMM, peephole=Q16S, bias=I32),
                arg("state", T, "batch output_size", doc="output of the previous time step"),
                arg("cell_state", Q16S, "batch units"),
                *norm_args(types=Q16S),
                *args("cell_clip projection_clip", FLOAT32, optional=True, drawn=sometimes(among(0, 0.3, 1.5))),
                *args(
                    " ".join(f"{name}_intermediate_scale" for name in GATES), FLOAT32, drawn=among(2.0**-12, 2.0**-10)
                ),
                arg("hidden_state_zero_point", INT32, at_least=-128, at_most=127, drawn=whole(-8, 8)),
                arg("hidden_state_scale", FLOAT32, drawn=between(0.004, 0.01)),
            ),
        ),
        (
            out("state_out", T, "batch output_size"),
            out("cell_state_out", Q16S, "batch units"),
            out("output", T, "batch output_size"),
        ),
        step,
        (*cell_checks(), cell_is_power_of_two, intermediates_positive, hidden_positive, states_keep_scale),
        sized=sizes() | {name: whole(1, 5) for name in ("units", "input_size")},  # with more, roundings add up
        scaled=SCALES,
        cost="lstm",
        doc="One time step of an LSTM cell on 8-bit tensors, with optional parts like LSTM.",
        example=example(([[10]], [[20]], [[10]]), **HALF_OPEN, scale=2**-9),
    )
)
