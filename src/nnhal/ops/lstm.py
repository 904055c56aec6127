"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM: one time step, and a sequence, of the cell with all its optional parts.

Optional: the input gate (if omitted: coupled to the forget gate, CIFG), peepholes, projection, layer normalisation,
clips.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnhal.base.codes import RecurrentActivation
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array, Shape, UnknownValue, Value
from nnhal.base.records import replace
from nnhal.ops.common import real
from nnhal.ops.ranges import Draw, Range, among
from nnhal.ops.recurrent import (
    ACTIVATIONS,
    States,
    Step,
    activation_among,
    activation_drawn,
    all_or_none,
    aux_linking,
    batch_agrees,
    cell_inputs,
    double,
    given,
    named,
    open_if_not_finite,
    scaled_to_float32,
    sequence_shapes,
    sigmoid,
    size,
    small_weights,
    steps_of,
    time_first,
    unroll,
)
from nnhal.ops.schema import (
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    Arg,
    Bound,
    Form,
    Op,
    T,
    arg,
    args,
    example,
    out,
    per,
    register,
)

EPSILON = 1e-8  # of the layer normalisation
SCALAR = per({F32: FLOAT32, F16: FLOAT16})


def part(prefix: str, name: str) -> Range:
    """Range: an optional weight, omitted together with the others of its part of the cell."""
    stem = name.split("_", maxsplit=1)[0]
    if stem == "projection":
        needs = [stem, name]
    else:
        needs = [stem] if stem in ("peep", "norm") else ["cross"] if stem == "aux" else []
        needs += ["gate"] if name.endswith("_input") or name.endswith("to_input") else []

    def draw(d: Draw) -> Value | None:
        found = {n: aux_linking(d) == "cross" if n == "cross" else d.once(prefix + n, True, False) for n in needs}
        return weight(prefix, name)(d) if all(found.values()) else None

    return draw


def weight(prefix: str, name: str) -> Range:
    """Range: weights that keep sums small, or a bias; an integer bias, in small units, is about 1."""
    if "bias" not in name:
        return small_weights(prefix + name)

    def bias(d: Draw) -> Value:
        value: Value = d.plain(prefix + name)
        if value.type != I32:
            return scaled_to_float32(value)
        normed = prefix + "norm_cell" in d and d.once(prefix + "norm", True, False) and name != "projection_bias"
        most = 2**25 if normed else 2**14
        return replace(value, data=d.whole(-most, most, value.shape).astype(np.int32))

    return bias


def sizes(prefix: str = "") -> dict[str, Range]:
    """Ranges: without a projection the output has the size of the cell."""
    output, units = f"{prefix}output_size", f"{prefix}units"
    return {output: lambda d: d.whole(1, 5) if d.once(f"{prefix}projection", True, False) else d.size(units)}


def group(names: str, dims: str, prefix: str = "", optional: str = "", types: Any = T, **more: Any) -> tuple[Arg, ...]:
    """Make weights of one type and shape; those among `optional` may be omitted."""
    there = optional.split()
    return tuple(
        arg(prefix + n, types, dims, optional=n in there, drawn=(part if n in there else weight)(prefix, n), **more)
        for n in names.split()
    )


def cell_args(
    prefix: str = "", source: str = "input_size", *, weight: Any = T, peephole: Any = T, bias: Any = T
) -> tuple[Arg, ...]:
    """Make the weights of one cell, in the order of all LSTM operations; `source` is the size of its input."""
    units, state = f"{prefix}units", f"{prefix}output_size"
    inputs = "input_to_input input_to_forget input_to_cell input_to_output"
    states = "state_to_input state_to_forget state_to_cell state_to_output"
    peepholes = "peep_input peep_forget peep_output"
    biases = "bias_input bias_forget bias_cell bias_output"
    return (
        *group(inputs, f"{units} {source}", prefix, "input_to_input", weight),
        *group(states, f"{units} {state}", prefix, "state_to_input", weight),
        *group(peepholes, units, prefix, peepholes, peephole),
        *group(biases, units, prefix, "bias_input", bias),
        *group("projection", f"{state} {units}", prefix, "projection", weight),
        *group("projection_bias", state, prefix, "projection_bias", bias),
    )


def norm_args(prefix: str = "", **more: Any) -> tuple[Arg, ...]:
    """Make the weights of the layer normalisation of each gate."""
    names = "norm_input norm_forget norm_cell norm_output"
    return group(names, f"{prefix}units", prefix, optional=names, **more)


def state_args(prefix: str = "") -> tuple[Arg, ...]:
    """Make output and cell state of the previous step."""
    names = {f"{prefix}state": f"batch {prefix}output_size", f"{prefix}cell_state": f"batch {prefix}units"}
    return tuple(arg(name, T, dims, drawn=cell_inputs(name)) for name, dims in names.items())


K = RecurrentActivation
KINDS = K.NONE, K.RELU, K.RELU6, K.TANH, K.SIGMOID
SETTINGS = (
    activation_drawn(*KINDS),
    *args("cell_clip projection_clip", SCALAR, at_least=0, drawn=among(0, 0, 0.5, 3)),
)
cell_activation = activation_among(*KINDS)


def together(names: str, prefix: str = "") -> Callable[[Bound], None]:
    """Rule: `names` are given all or none; the first, for the input gate, only if there is that gate."""

    def check(a: Bound) -> None:
        first, *others = (prefix + n for n in names.split())
        gate = f"{prefix}input_to_input"
        if not a.form_has(first):
            return
        if given(a, gate):
            all_or_none(a, [first, *others])
        else:
            a.require(not given(a, first), f"{first} is given, must be omitted as {gate} is (CIFG)")
            all_or_none(a, others)

    return check


def input_gate(prefix: str = "") -> Callable[[Bound], None]:
    """Rule: the weights of the input gate are given all or none."""

    def check(a: Bound) -> None:
        all_or_none(a, [f"{prefix}{n}" for n in ("input_to_input", "state_to_input", "bias_input")])

    return check


def projected(prefix: str = "") -> Callable[[Bound], None]:
    """Rule: without projection there is no bias for it, and the output has the size of the cell."""

    def check(a: Bound) -> None:
        if not given(a, f"{prefix}projection"):
            bias = f"{prefix}projection_bias"
            a.require(not given(a, bias), f"{bias} is given, so {prefix}projection must be given too")
            output, units = (f"{prefix}{n}" for n in ("output_size", "units"))
            sizes = getattr(a, output), getattr(a, units)
            a.require(sizes[0] == sizes[1], f"{output} = {sizes[0]}, must be {units} = {sizes[1]} without projection")

    return check


def cell_checks(prefix: str = "") -> tuple[Callable[[Bound], None], ...]:
    """Return the rules of one cell's optional parts."""
    return (
        input_gate(prefix),
        together("peep_input peep_forget peep_output", prefix),
        together("norm_input norm_forget norm_cell norm_output", prefix),
        projected(prefix),
    )


def normalise(x: Array, weight: Array) -> Array:
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(1, keepdims=True) + EPSILON) * weight


def cell(a: Bound, w: SimpleNamespace) -> tuple[Step, States]:
    """Return one time step, and the states [batch, output_size] and [batch, units] that it starts from.

    The definition is Hochreiter and Schmidhuber's with peepholes (Gers), projection (Sak) and layer normalisation (Ba).
    """
    activation = ACTIVATIONS[a.activation_kind]

    def step(states: States, x: Array, aux: Array | None = None) -> States:
        state, memory = states

        def gate(name: str, peep: Array | None = None) -> Array:
            total = x @ getattr(w, f"input_to_{name}").T + state @ getattr(w, f"state_to_{name}").T
            if aux is not None:
                total = total + aux @ getattr(w, f"aux_to_{name}").T
            if peep is not None:
                total = total + memory * peep
            norm = getattr(w, f"norm_{name}", None)
            return (total if norm is None else normalise(total, norm)) + getattr(w, f"bias_{name}")

        forget = sigmoid(gate("forget", w.peep_forget))
        admit = 1 - forget if w.input_to_input is None else sigmoid(gate("input", w.peep_input))
        memory = forget * memory + admit * activation(gate("cell"))
        if a.cell_clip > 0:
            memory = np.clip(memory, -a.cell_clip, a.cell_clip)
        output = sigmoid(gate("output", w.peep_output)) * activation(memory)
        if w.projection is not None:
            output = output @ w.projection.T + (0 if w.projection_bias is None else w.projection_bias)
            if a.projection_clip > 0:
                output = np.clip(output, -a.projection_clip, a.projection_clip)
        return output, memory

    return step, (w.state, w.cell_state)


def one_step(a: Bound, *tensors: Any) -> tuple[Array, ...]:
    w = named(a, tensors)
    step, states = cell(a, w)
    state, memory = step(states, w.input, None)
    return np.zeros((len(memory), scratch_size(a, w.input_to_input is not None))), state, memory, state


def sequence(a: Bound, *tensors: Any) -> tuple[Array, ...]:
    w = named(a, tensors)
    outputs, states = unroll(*cell(a, w), time_first(a, w.input))
    return time_first(a, outputs), *states


def scratch(a: Bound) -> int:
    """The size of the scratch output.

    Unknown if none is declared and the input gate may be omitted at execution.
    """
    weights = a.input_to_input
    if weights is not None and weights.data is None and not (a.out.shape and a.out.shape[-1]):
        raise UnknownValue("scratch_size")
    return scratch_size(a, given(a, "input_to_input"))


def scratch_size(a: Bound, own_gate: bool) -> int:
    """Return the size for four gates, or for three without a separate input gate; the other one if that is declared."""
    sizes = [int(a.units) * count for count in ((4, 3) if own_gate else (3, 4))]
    declared = a.out.shape
    return sizes[1] if declared and declared[-1] == sizes[1] else sizes[0]


def outputs_counted(a: Bound) -> None:
    """Both last states are outputs, or neither."""
    a.require(len(a.outs) != 2, "has 2 outputs, must have 1 or 3: both last states or none")


def one_way_shapes(a: Bound) -> list[Shape | None]:
    """Shape rule: a sequence like the input, of output_size; then the last states."""
    return sequence_shapes(a, size(a, "output_size"), "output_size", "units")


def example_arguments(prefix: str = "") -> dict[str, Any]:
    """Make the arguments of examples.

    All weights are 0, so the gates are half open; half of the state 6 and of the bias 2 make 4.
    """
    weights = [f"{source}_to_{gate}" for source in ("input", "state") for gate in ("forget", "cell", "output")]
    biases = {"bias_forget": [0], "bias_cell": [2], "bias_output": [0]}
    values: dict[str, Any] = {name: [[0]] for name in weights} | biases | {"state": [[0]], "cell_state": [[6]]}
    return {prefix + name: value for name, value in values.items()}


PLAIN = {"activation_kind": "none", "cell_clip": 0, "projection_clip": 0}

LSTM_STEP = arg("input", T, "batch input_size", drawn=cell_inputs("input")), *cell_args(), *state_args(), *SETTINGS

register(
    Op(
        "LSTM",
        {F32: V1_0, F16: V1_2},
        (Form(*LSTM_STEP), Form(*LSTM_STEP, *norm_args(since=V1_2))),
        (
            out("scratch", T, "batch scratch_size", undefined=True, doc="working memory, contents undefined"),
            out("state_out", T, "batch output_size"),
            out("cell_state_out", T, "batch units"),
            out("output", T, "batch output_size"),
        ),
        real(double(one_step)),
        (cell_activation, *cell_checks()),
        where={"scratch_size": scratch},
        sized=sizes(),
        sums="terms",
        leaves_open=open_if_not_finite(one_step),
        cost="lstm",
        doc="One time step of an LSTM cell.",
        example=example((None, [[2]], [[4]], [[2]]), input=[[1]], **example_arguments(), **PLAIN),
    ),
    Op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        {F32: V1_2, F16: V1_2},
        (
            Form(
                arg("input", T, "_ _ input_size", drawn=steps_of("input", "input_size")),
                *LSTM_STEP[1:],
                arg("time_major", BOOL),
                *norm_args(),
            ),
        ),
        (
            out("output", T),
            out("state_out", T, "batch output_size", since=V1_3, default=None),
            out("cell_state_out", T, "batch units", since=V1_3, default=None),
        ),
        real(double(sequence)),
        (cell_activation, *cell_checks(), batch_agrees, outputs_counted),
        infer=one_way_shapes,
        sized=sizes(),
        counted=among(1, 3),
        sums="terms",
        leaves_open=open_if_not_finite(sequence),
        cost="lstm",
        doc="An LSTM over a sequence, forwards.",
        example=example([[[2], [1.5]]], input=[[[1], [1]]], **example_arguments(), **PLAIN, time_major=False),
    ),
)
