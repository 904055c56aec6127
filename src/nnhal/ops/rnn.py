"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN, BIDIRECTIONAL_SEQUENCE_RNN: a fully connected cell that also reads its last output."""

from types import SimpleNamespace
from typing import Any

from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array, Shape
from nnhal.ops.common import real
from nnhal.ops.ranges import Range
from nnhal.ops.recurrent import (
    ACTIVATIONS,
    READ,
    States,
    Step,
    activation_drawn,
    aux_agrees,
    aux_linking,
    auxiliary,
    backward_reads,
    batch_agrees,
    cell_inputs,
    double,
    linked,
    named,
    open_if_not_finite,
    outputs_counted,
    sequence_shapes,
    simple_activation,
    size,
    small_weights,
    steps_of,
    time_first,
    two_way_count,
    two_way_shapes,
    two_ways,
    unroll,
)
from nnhal.ops.schema import BOOL, F16, F32, INT32, Arg, Bound, Form, Op, T, arg, args, example, out, register


def cell_args(prefix: str = "", source: str = "input_size") -> tuple[Arg, ...]:
    """Weights and state of one cell."""
    units = f"{prefix}units"
    return (
        arg(f"{prefix}weights", T, f"{units} {source}", drawn=small_weights(f"{prefix}weights")),
        arg(f"{prefix}recurrent_weights", T, f"{units} {units}", drawn=small_weights(f"{prefix}recurrent_weights")),
        arg(f"{prefix}bias", T, units, drawn=cell_inputs(f"{prefix}bias")),
        arg(
            f"{prefix}hidden_state",
            T,
            f"batch {units}",
            drawn=cell_inputs(f"{prefix}hidden_state"),
            doc="output of the previous time step",
        ),
    )


def crossed(name: str) -> Range:
    """Range: weights of the auxiliary input, if both cells read it in addition to the input."""
    return lambda d: small_weights(name)(d) if aux_linking(d) == "cross" else None


activation = activation_drawn(*ACTIVATIONS)
SEQUENCE = arg("input", T, "_ _ input_size", drawn=steps_of("input", "input_size"))


def cell(a: Bound, w: SimpleNamespace) -> tuple[Step, States]:
    """Return activation(x W' + h U' + b) as a step, and the state that it starts from."""
    act = ACTIVATIONS[a.activation_kind]

    def step(states: States, x: Array, aux: Array | None) -> States:
        total = x @ w.weights.T + states[0] @ w.recurrent_weights.T + w.bias
        return (act(total if aux is None else total + aux @ w.aux_weights.T),)

    return step, (w.hidden_state,)


def one_step(a: Bound, *tensors: Array) -> tuple[Array, Array]:
    w = named(a, tensors)
    step, states = cell(a, w)
    (state,) = step(states, w.input, None)
    return state, state


def sequence(a: Bound, *tensors: Array) -> tuple[Array, ...]:
    w = named(a, tensors)
    outputs, states = unroll(*cell(a, w), time_first(a, w.input))
    return time_first(a, outputs), *states


def both(a: Bound, *tensors: Array) -> tuple[Array, ...]:
    w, fw, bw = (named(a, tensors, prefix) for prefix in ("", "fw_", "bw_"))
    return two_ways(a, cell(a, fw), cell(a, bw), w.input, w.aux_input, w.fw_aux_weights is not None)


def one_way_shapes(a: Bound) -> list[Shape | None]:
    """Shape rule: a sequence like the input, of units; then the last state."""
    return sequence_shapes(a, size(a, "units"), "units")


def both_shapes(a: Bound) -> list[Shape | None]:
    """Shape rule: sequences like the input, of the units, their sum if merged; then the last states."""
    return two_way_shapes(a, ("fw_units", "bw_units"), "fw_units", "bw_units")


def running_sum(prefix: str = "") -> dict[str, Any]:
    """Make the arguments of examples: a cell that adds its input to its last output."""
    values = {"weights": [[1]], "recurrent_weights": [[1]], "bias": [0], "hidden_state": [[0]]}
    return {prefix + name: value for name, value in values.items()}


register(
    Op(
        "RNN",
        {F32: V1_0, F16: V1_2},
        (Form(arg("input", T, "batch input_size", drawn=cell_inputs("input")), *cell_args(), activation),),
        (out("hidden_state_out", T, "batch units"), out("output", T, "batch units")),
        real(double(one_step)),
        (simple_activation,),
        sums="terms",
        leaves_open=open_if_not_finite(one_step),
        cost="lstm",
        doc="One time step of a recurrent cell.",
        example=example(
            ([[13]], [[13]]),
            input=[[1, 2]],
            weights=[[3, 4]],
            recurrent_weights=[[0.5]],
            bias=[1],
            hidden_state=[[2]],
            activation_kind="none",
        ),
    ),
    Op(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        {F32: V1_2, F16: V1_2},
        (Form(SEQUENCE, *cell_args(), activation, arg("time_major", INT32, at_least=0, at_most=1)),),
        (out("output", T), out("hidden_state_out", T, since=V1_3, default=None)),
        real(double(sequence)),
        (simple_activation, batch_agrees),
        infer=one_way_shapes,
        sums="terms",
        leaves_open=open_if_not_finite(sequence),
        cost="lstm",
        doc="A recurrent cell over a sequence, forwards.",
        example=example([[[1], [3]]], input=[[[1], [2]]], **running_sum(), activation_kind="none", time_major=0),
    ),
    Op(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        {F32: V1_2, F16: V1_2},
        (
            Form(
                SEQUENCE,
                *cell_args("fw_"),
                *cell_args("bw_", "bw_input_size"),
                arg("aux_input", T, "_ _ aux_size", optional=True, drawn=auxiliary),
                arg("fw_aux_weights", T, "fw_units aux_size", optional=True, drawn=crossed("fw_aux_weights")),
                arg("bw_aux_weights", T, "bw_units aux_size", optional=True, drawn=crossed("bw_aux_weights")),
                activation,
                *args("time_major merge_outputs", BOOL),
            ),
        ),
        (
            out("fw_output", T),
            out("bw_output", T, default=None),  # if outputs are merged, the states follow at once
            *args("fw_hidden_state_out bw_hidden_state_out", T, since=V1_3, default=None),
        ),
        real(double(both)),
        (
            simple_activation,
            batch_agrees,
            aux_agrees,
            linked("fw_aux_weights", "bw_aux_weights"),
            backward_reads("fw_aux_weights"),
            *outputs_counted(2),
        ),
        infer=both_shapes,
        sized=READ,
        counted=two_way_count(2),
        sums="terms",
        leaves_open=open_if_not_finite(both),
        cost="lstm",
        doc="Two recurrent cells over a sequence, one forwards and one backwards.",
        example=example(
            [[[1, 3], [3, 2]]],
            input=[[[1], [2]]],
            **running_sum("fw_"),
            **running_sum("bw_"),
            activation_kind="none",
            time_major=False,
            merge_outputs=True,
        ),
    ),
)
