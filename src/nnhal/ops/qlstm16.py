"""QUANTIZED_16BIT_LSTM: a time step of an LSTM cell on 8-bit tensors, with a 16-bit cell state of four integer bits."""

from typing import Any

import numpy as np

from nnhal.base.levels import V1_2
from nnhal.base.operands import Array, Value
from nnhal.ops.fixedpoint import dot, halve, logistic, multiply, saturate, scaled, tanh
from nnhal.ops.lstm import group
from nnhal.ops.ranges import Draw
from nnhal.ops.recurrent import named
from nnhal.ops.schema import I32, Q8, Q16S, Bound, Form, Op, Stored, T, arg, example, fixed, out, register

OUTPUT = 2.0**-7, 128  # scale and zero point of inputs and outputs: from -1 to 127/128
STATE = 2.0**-11, 0  # of the cell state: from -16 to 16
GATE = 2.0**-12  # scale before the gates' functions: three integer bits
GATES = "input", "forget", "cell", "output"


def must_have(a: Bound, name: str, wanted: tuple[float, int]) -> None:
    value: Value = getattr(a, name)
    have = np.float32(value.scale), value.zero_point
    a.require(
        have == (np.float32(wanted[0]), wanted[1]),
        f"{name} has scale {have[0]:g} and zero point {have[1]}, must be {wanted[0]:g} and {wanted[1]}",
    )


def ranges(a: Bound) -> None:
    """Input and state have scale 1/128 and zero point 128, the cell state 1/2048 and 0."""
    must_have(a, "input", OUTPUT)
    must_have(a, "state", OUTPUT)
    must_have(a, "cell_state", STATE)


def one_weight_scale(a: Bound) -> None:
    """All weights have one scale and zero point."""
    first: Value = a.input_to_input
    for name in (f"{source}_to_{gate}" for source in ("input", "state") for gate in GATES):
        must_have(a, name, (first.scale, first.zero_point))


def bias_scales(a: Bound) -> None:
    """The biases have the scale of the weights / 128 and zero point 0."""
    for gate in GATES:
        must_have(a, f"bias_{gate}", (a.input_to_input.scale * OUTPUT[0], 0))


def common_scale(d: Draw) -> tuple[float, int]:
    """Range: the one scale and zero point of all weights."""
    return float(np.float32(d.once("scale", 0.002, 0.004, 0.008))), int(d.once("zero point", 100, 128, 140))


def step(a: Bound, *tensors: Any) -> tuple[Array, Array]:
    """All implementations, and all converters, join input and state in this order and their weights in the other."""
    w = named(a, [x.astype(np.int64) for x in tensors])
    read = np.concatenate((w.input, w.state), 1)
    factor = float(np.float32(a.bias_input.scale)) / GATE

    def gate(name: str) -> Array:
        weights = np.concatenate([getattr(w, f"{source}_to_{name}") for source in ("state", "input")], 1)
        total = dot(read, OUTPUT[1], weights - a.input_to_input.zero_point) + getattr(w, f"bias_{name}")
        return saturate(scaled(total, factor))

    admit, forget, emit = (logistic(gate(name), 3) for name in ("input", "forget", "output"))
    new = halve(multiply(admit, tanh(gate("cell"), 3)), 4)
    memory = saturate(new + multiply(forget, w.cell_state))
    output = halve(multiply(emit, tanh(saturate(memory << 1), 3)), 8)
    return memory.astype(np.int16), (saturate(output, 8) + OUTPUT[1]).astype(np.uint8)


SCALES = {
    "input": lambda d: OUTPUT,
    "state": lambda d: OUTPUT,
    "cell_state": lambda d: STATE,
    **{f"bias_{gate}": lambda d: (d["input_to_input"].scale * OUTPUT[0], 0) for gate in GATES},
    **{f"{source}_to_{gate}": common_scale for source in ("input", "state") for gate in GATES},
}
HALF_OPEN = {  # for an example: half the state 8, of which tanh makes 1
    "input": Stored([[128]], Q8, *OUTPUT),
    **dict.fromkeys([f"{source}_to_{gate}" for source in ("input", "state") for gate in GATES], Stored([[0]], Q8, 1.0)),
    **dict.fromkeys([f"bias_{gate}" for gate in GATES], Stored([0], I32, OUTPUT[0])),
    "cell_state": Stored([[16384]], Q16S, *STATE),
    "state": Stored([[128]], Q8, *OUTPUT),
}

register(
    Op(
        "QUANTIZED_16BIT_LSTM",
        {Q8: V1_2},
        (
            Form(
                arg("input", T, "batch input_size"),
                *group("input_to_input input_to_forget input_to_cell input_to_output", "output_size input_size"),
                *group("state_to_input state_to_forget state_to_cell state_to_output", "output_size output_size"),
                *group("bias_input bias_forget bias_cell bias_output", "output_size", types=I32),
                arg("cell_state", Q16S, "batch output_size"),
                arg("state", T, "batch output_size", doc="output of the previous time step"),
            ),
        ),
        (
            out("cell_state_out", Q16S, "batch output_size", quant=fixed({Q16S: STATE})),
            out("output", T, "batch output_size", quant=fixed({Q8: OUTPUT})),
        ),
        step,
        (ranges, one_weight_scale, bias_scales),
        scaled=SCALES,
        cost="lstm",
        doc="One time step of an LSTM cell on 8-bit tensors.",
        example=example(([[8192]], [[192]]), **HALF_OPEN),
    )
)
