"""SVDF: a dense layer over a sequence of frames, approximated by filters over features and filters over time."""

import numpy as np

from nnhal.base.levels import V1_0, V1_2
from nnhal.base.operands import Array
from nnhal.ops.common import real
from nnhal.ops.ranges import sometimes
from nnhal.ops.recurrent import (
    ACTIVATIONS,
    activation_drawn,
    cell_inputs,
    double,
    given,
    open_if_not_finite,
    simple_activation,
    small_weights,
)
from nnhal.ops.schema import F16, F32, INT32, Bound, Form, Op, T, arg, example, out, register


def ranks_divide(a: Bound) -> None:
    """filters is a multiple of rank."""
    a.require(a.filters % a.rank == 0, f"filters = {a.filters}, must be a multiple of rank = {a.rank}")


def bias_fits(a: Bound) -> None:
    """The bias has filters / rank elements."""
    if given(a, "bias"):
        units = a.filters // a.rank
        a.require(a.units == units, f"bias has {a.units} elements, must have filters / rank = {units}")


def state_fits(a: Bound) -> None:
    """The header requires memory_size - 1 entries per filter; all implementations use memory_size."""
    sizes = [a.filters * a.memory_size, a.filters * (a.memory_size - 1)]
    a.require(
        a.state_size in sizes,
        f"state has {a.state_size} elements per batch, must have filters * memory_size = {sizes[0]} "
        f"(or, without the place for the newest, {sizes[1]})",
    )


def units(a: Bound) -> int:
    """Shape rule: filters / rank."""
    return int(a.filters // a.rank)


def svdf(
    a: Bound, x: Array, weights_feature: Array, weights_time: Array, bias: Array | None, state: Array
) -> tuple[Array, Array]:
    """Push the newest feature value of each filter into its memory, and apply the time filter to that memory."""
    batch, filters, memory = len(x), *weights_time.shape
    kept = state.reshape(batch, filters, a.state_size // max(filters, 1))
    feature = x @ weights_feature.T
    window = np.concatenate((kept[..., : memory - 1], feature[..., None]), -1)
    products = (window * weights_time).reshape(batch, units(a), a.rank * memory)
    output = products.sum(-1) + (0 if bias is None else bias)
    pushed = np.zeros_like(kept)  # its last position, if there is one, is free for the next value
    pushed[..., : memory - 1] = window[..., 1:]
    return pushed.reshape(state.shape), ACTIVATIONS[a.activation_kind](output)


register(
    Op(
        "SVDF",
        {F32: V1_0, F16: V1_2},
        (
            Form(
                arg("input", T, "batch input_size", drawn=cell_inputs("input")),
                arg("weights_feature", T, "filters input_size", drawn=small_weights("weights_feature")),
                arg("weights_time", T, "filters memory_size", drawn=small_weights("weights_time")),
                arg("bias", T, "units", optional=True, drawn=sometimes(cell_inputs("bias"))),
                arg("state", T, "batch state_size", drawn=cell_inputs("state")),
                arg("rank", INT32, at_least=1),
                activation_drawn(*ACTIVATIONS),
            ),
        ),
        (out("state_out", T, "batch state_size"), out("output", T, "batch units")),
        real(double(svdf)),
        (simple_activation, ranks_divide, bias_fits, state_fits),
        where={"units": units},
        sized={
            "filters": lambda d: d["rank"] * d.whole(1, 3),
            "units": lambda d: d.size("filters") // d["rank"],
            "state_size": lambda d: d.size("filters") * max(0, d.size("memory_size") - d.pick(0, 0, 0, 1)),
        },
        sums="terms",
        leaves_open=open_if_not_finite(svdf),
        cost="lstm",
        doc="Filters features, pushes the result into a memory and filters that over time.",
        example=example(
            ([[6, 0]], [[65]]),
            input=[[3]],
            weights_feature=[[2]],
            weights_time=[[1, 10]],
            state=[[5, 0]],
            rank=1,
            activation_kind="none",
        ),
    ),
)
