"""BIDIRECTIONAL_SEQUENCE_LSTM: two LSTM cells over a sequence, with an auxiliary input for stacked layers."""

from typing import Any

from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Array, Shape
from nnhal.ops.common import real
from nnhal.ops.lstm import (
    PLAIN,
    SETTINGS,
    cell,
    cell_activation,
    cell_args,
    cell_checks,
    example_arguments,
    group,
    norm_args,
    sizes,
    state_args,
    together,
)
from nnhal.ops.recurrent import (
    READ,
    aux_agrees,
    auxiliary,
    backward_reads,
    batch_agrees,
    double,
    linked,
    named,
    open_if_not_finite,
    outputs_counted,
    steps_of,
    two_way_count,
    two_way_shapes,
    two_ways,
)
from nnhal.ops.schema import BOOL, F16, F32, Arg, Bound, Form, Op, T, arg, args, example, out, register

AUX = "aux_to_input aux_to_forget aux_to_cell aux_to_output"


def aux_args(prefix: str) -> tuple[Arg, ...]:
    return group(AUX, f"{prefix}units aux_size", prefix, optional=AUX)


def both(a: Bound, *tensors: Any) -> tuple[Array, ...]:
    w, fw, bw = (named(a, tensors, prefix) for prefix in ("", "fw_", "bw_"))
    return two_ways(a, cell(a, fw), cell(a, bw), w.input, w.aux_input, fw.aux_to_forget is not None)


def both_shapes(a: Bound) -> list[Shape | None]:
    """Shape rule: sequences like the input with the output sizes, their sum if merged; then the last states."""
    sizes = "fw_output_size", "fw_units", "bw_output_size", "bw_units"
    return two_way_shapes(a, (sizes[0], sizes[2]), *sizes)


register(
    Op(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        {F32: V1_2, F16: V1_2},
        (
            Form(
                arg("input", T, "_ _ input_size", drawn=steps_of("input", "input_size")),
                *cell_args("fw_"),
                *cell_args("bw_", "bw_input_size"),
                *state_args("fw_"),
                *state_args("bw_"),
                arg("aux_input", T, "_ _ aux_size", optional=True, drawn=auxiliary),
                *aux_args("fw_"),
                *aux_args("bw_"),
                *SETTINGS,
                *args("merge_outputs time_major", BOOL),
                *norm_args("fw_"),
                *norm_args("bw_"),
            ),
        ),
        (
            out("fw_output", T),
            out("bw_output", T, default=None),  # if outputs are merged, the states follow at once
            *args("fw_state_out fw_cell_state_out bw_state_out bw_cell_state_out", T, since=V1_3, default=None),
        ),
        real(double(both)),
        (
            cell_activation,
            *cell_checks("fw_"),
            *cell_checks("bw_"),
            together(AUX, "fw_"),
            together(AUX, "bw_"),
            batch_agrees,
            aux_agrees,
            linked("fw_aux_to_forget", "bw_aux_to_forget"),
            backward_reads("fw_aux_to_forget"),
            *outputs_counted(4),
        ),
        infer=both_shapes,
        sized=READ | sizes("fw_") | sizes("bw_"),
        counted=two_way_count(4),
        sums="terms",
        leaves_open=open_if_not_finite(both),
        cost="lstm",
        doc="Two LSTM cells over a sequence, one forwards and one backwards.",
        example=example(
            [[[2, 1.5], [1.5, 2]]],
            input=[[[1], [1]]],
            **example_arguments("fw_"),
            **example_arguments("bw_"),
            **PLAIN,
            merge_outputs=True,
            time_major=False,
        ),
    ),
)
