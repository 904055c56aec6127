"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM: one step, and a sequence, of the cell with all its optional parts.

Optional: the input gate (left out: coupled to the forget gate, CIFG), peepholes, projection, layer normalisation, clips.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnhal.base.codes import RecurrentActivation
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.common import real
from nnhal.ops.schema import BOOL, F16, F32, FLOAT16, FLOAT32, Arg, Bound, Form, Op, T, arg, args, out, per, register

ACTIVATIONS: dict[RecurrentActivation, Callable[[Array], Array]] = {
    RecurrentActivation.NONE: lambda x: x,
    RecurrentActivation.RELU: lambda x: np.maximum(x, 0),
    RecurrentActivation.RELU1: lambda x: np.clip(x, -1, 1),
    RecurrentActivation.RELU6: lambda x: np.clip(x, 0, 6),
    RecurrentActivation.TANH: np.tanh,
    RecurrentActivation.SIGN_BIT: lambda x: np.signbit(x).astype(x.dtype),
    RecurrentActivation.SIGMOID: lambda x: 0.5 * (np.tanh(0.5 * x) + 1),
}
GATES = ("input", "forget", "cell", "output")
EPSILON = 1e-8  # of the layer normalisation
SCALAR = per({F32: FLOAT32, F16: FLOAT16})


def sigmoid(x: Array) -> Array:
    return 0.5 * (np.tanh(0.5 * x) + 1)  # does not overflow


def cell_args(prefix: str = "") -> tuple[Arg, ...]:
    """The weights of one cell, in the order in which all LSTM operations take them."""

    def group(names: str, dims: str, optional: str = "") -> tuple[Arg, ...]:
        return tuple(arg(prefix + n, T, dims, optional=n in optional.split()) for n in names.split())

    return (
        *group("input_to_input input_to_forget input_to_cell input_to_output", "units input_size", "input_to_input"),
        *group("state_to_input state_to_forget state_to_cell state_to_output", "units output_size", "state_to_input"),
        *group(peepholes := "peep_input peep_forget peep_output", "units", peepholes),
        *group("bias_input bias_forget bias_cell bias_output", "units", "bias_input"),
        *group("projection", "output_size units", "projection"),
        *group("projection_bias", "output_size", "projection_bias"),
    )


def norm_args(**more: Any) -> tuple[Arg, ...]:
    """Weights of the layer normalisation of each gate."""
    return args("norm_input norm_forget norm_cell norm_output", T, "units", optional=True, **more)


STATES = (
    arg("state", T, "batch output_size", doc="output of the step before"),
    arg("cell_state", T, "batch units"),
)
SETTINGS = arg("activation_kind", RecurrentActivation), *args("cell_clip projection_clip", SCALAR, at_least=0)


def together(names: str, unless: str = "") -> Callable[[Bound], None]:
    """Rule: these optional arguments are given all or none."""

    def check(a: Bound) -> None:
        given = [n for n in names.split() if getattr(a, n) is not None]
        missing = [n for n in names.split() if getattr(a, n) is None and not (n == unless and a.input_to_input is None)]
        a.require(not given or not missing, f"{', '.join(given)} is given, so {', '.join(missing)} must be given too")

    return check


def projected(a: Bound) -> None:
    if a.projection is None:
        a.require(a.projection_bias is None, "projection_bias is given, so projection must be given too")
        a.require(
            a.units == a.output_size, f"output_size = {a.output_size}, must be units = {a.units} without projection"
        )


def coupled(a: Bound) -> None:
    a.require(
        a.input_to_input is not None or a.peep_input is None,
        "peep_input is given, must be omitted where the input gate is coupled (input_to_input omitted)",
    )


CHECKS = (
    together("input_to_input state_to_input bias_input"),
    together("peep_input peep_forget peep_output", unless="peep_input"),
    together("norm_input norm_forget norm_cell norm_output", unless="norm_input"),
    projected,
    coupled,
)


def named(a: Bound, tensors: tuple[Any, ...]) -> SimpleNamespace:
    """The tensors of a kernel call by the names of their arguments."""
    return SimpleNamespace(**{argument.name: x for (argument, _), x in zip(a.inputs, tensors, strict=True)})


def normalise(x: Array, weight: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPSILON) * weight


def step(
    a: Bound, w: SimpleNamespace, x: Array, state: Array, cell: Array, aux: Array | None = None
) -> tuple[Array, Array]:
    """One time step: input [batch, input_size], state [batch, output_size], cell [batch, units] -> state, cell.

    The definition is Hochreiter and Schmidhuber's with peepholes (Gers), projection (Sak) and layer normalisation (Ba).
    """
    activation = ACTIVATIONS[a.activation_kind]

    def gate(name: str, peep: Array | None, memory: Array) -> Array:
        total = x @ getattr(w, f"input_to_{name}").T + state @ getattr(w, f"state_to_{name}").T
        if aux is not None:
            total = total + aux @ getattr(w, f"aux_to_{name}").T
        if peep is not None:
            total = total + memory * peep
        norm = getattr(w, f"norm_{name}")
        return (total if norm is None else normalise(total, norm)) + getattr(w, f"bias_{name}")

    forget = sigmoid(gate("forget", w.peep_forget, cell))
    admit = 1 - forget if w.input_to_input is None else sigmoid(gate("input", w.peep_input, cell))
    cell = forget * cell + admit * activation(gate("cell", None, cell))
    if a.cell_clip > 0:
        cell = np.clip(cell, -a.cell_clip, a.cell_clip)
    state = sigmoid(gate("output", w.peep_output, cell)) * activation(cell)
    if w.projection is not None:
        state = state @ w.projection.T + (0 if w.projection_bias is None else w.projection_bias)
        if a.projection_clip > 0:
            state = np.clip(state, -a.projection_clip, a.projection_clip)
    return state, cell


def one_step(a: Bound, *tensors: Any) -> tuple[Array, ...]:
    w = named(a, tensors)
    state, cell = step(a, w, w.input, w.state, w.cell_state)
    return np.zeros((len(cell), scratch(a)), np.float32), state, cell, state


def sequence(a: Bound, *tensors: Any) -> tuple[Array, ...]:
    w = named(a, tensors)
    state, cell, results = w.state, w.cell_state, []
    for x in w.input if a.time_major else w.input.swapaxes(0, 1):
        state, cell = step(a, w, x, state, cell)
        results.append(state)
    return np.stack(results, 0 if a.time_major else 1), state, cell


def scratch(a: Bound) -> int:
    """As declared, since its contents are undefined; else what the definition asks for."""
    declared = a.out.shape
    if declared and len(declared) == 2 and declared[1]:
        return declared[1]
    return int(a.units) * (3 if a.input_to_input is None else 4)


def steps_first(a: Bound) -> None:
    """The batch is dimension 1 of a time-major input, else 0."""
    shape = a.input.dims
    batch = shape[1 if a.time_major else 0]
    a.require(batch in (None, a.batch), f"input 0 (input) has a batch of {batch}, must be batch = {a.batch}")


def sequence_shapes(a: Bound) -> list[tuple[int | None, ...]]:
    first, second, _ = a.input.dims
    sizes = a.__dict__.get("batch"), a.__dict__.get("output_size"), a.__dict__.get("units")
    return [(first, second, sizes[1]), (sizes[0], sizes[1]), (sizes[0], sizes[2])]


LSTM_STEP = arg("input", T, "batch input_size"), *cell_args(), *STATES, *SETTINGS

register(
    Op(
        "LSTM",
        {F32: V1_0, F16: V1_2},
        (Form(*LSTM_STEP, *norm_args(since=V1_2, default=None)),),
        (
            out("scratch", T, "batch scratch_size", doc="working memory, contents undefined"),
            out("state_out", T, "batch output_size"),
            out("cell_state_out", T, "batch units"),
            out("output", T, "batch output_size"),
        ),
        real(one_step),
        CHECKS,
        where={"scratch_size": scratch},
        doc="One step of an LSTM cell.",
    ),
    Op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        {F32: V1_2, F16: V1_2},
        (Form(arg("input", T, "_ _ input_size"), *LSTM_STEP[1:], arg("time_major", BOOL), *norm_args()),),
        (
            out("output", T, rank=3),
            out("state_out", T, "batch output_size", since=V1_3, default=None),
            out("cell_state_out", T, "batch units", since=V1_3, default=None),
        ),
        real(sequence),
        (*CHECKS, steps_first),
        infer=sequence_shapes,
        doc="An LSTM over a sequence, forwards.",
    ),
)
