"""The quantised LSTMs and their fixed-point arithmetic: facts beside the published vectors, which are met bit by bit."""

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Value
from nnhal.ops import fixedpoint
from tests.ops.run import I32, Q8, Q8S, Q8SYMM, Q16S, bound, result, run, value

RNG = np.random.default_rng(3)
EVERY = np.arange(-(2**15), 2**15, dtype=np.int64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# ---------------------------------------------------------------------------------------------------------- fixed point


@pytest.mark.parametrize("bits", range(7))
def test_tanh_is_within_12_units_for_every_input(bits):
    real = np.tanh(EVERY * 2.0 ** (bits - 15)) * 2**15
    assert np.abs(fixedpoint.tanh(EVERY, bits) - real).max() < 13


def test_logistic_is_within_7_units_for_every_input():
    assert np.abs(fixedpoint.logistic(EVERY, 3) - sigmoid(EVERY / 4096) * 2**15).max() < 7


def test_halving_rounds_half_away_from_zero():
    assert fixedpoint.halve(np.array([5, -5, 6, -6, 7, 1]), 1).tolist() == [3, -3, 3, -3, 4, 1]
    assert fixedpoint.halve(np.array([5, -5]), 0).tolist() == [5, -5]


def test_product_of_the_two_least_values_saturates():
    least = np.array([-(2**15)])
    assert fixedpoint.multiply(least, least).tolist() == [2**15 - 1]


@pytest.mark.parametrize("factor", [0.0, 1e-12, 2**-31, 0.3, 1.0, 12.5])
def test_scaling_is_within_one_of_the_real_product(factor):
    x = np.array([-1_000_000, -3, 0, 3, 1_000_000])
    assert np.abs(fixedpoint.scaled(x, factor) - x * factor).max() <= 1


def test_scaling_by_too_much_saturates():
    assert np.abs(fixedpoint.scaled(np.array([2**31 - 1, -(2**31)]), 2.0**40)).min() >= 2**30


def test_inverse_root_is_close_to_the_real_one():
    x = np.array([1, 2, 3, 1000, 2**20 + 1, 2**29, 2**30])
    fraction, times = fixedpoint.inverse_root(x)
    np.testing.assert_allclose(fraction * 2.0**-31 * 0.5**times, x**-0.5, rtol=2e-6)


# ------------------------------------------------------------------------------------------------- QUANTIZED_16BIT_LSTM


def random16(kind, *shape, scale, zero=0, low=0, high=256) -> Value:
    return value(kind, RNG.integers(low, high, shape), scale, zero)


def lstm16():
    """Two batches, three inputs, three outputs."""
    weight, bias = 0.004, float(np.float32(0.004)) / 128
    return [
        random16(Q8, 2, 3, scale=1 / 128, zero=128),
        *(random16(Q8, 3, 3, scale=weight, zero=100) for _ in range(8)),
        *(random16(I32, 3, scale=bias, low=-20000, high=20000) for _ in range(4)),
        random16(Q16S, 2, 3, scale=1 / 2048, low=-4000, high=4000),
        random16(Q8, 2, 3, scale=1 / 128, zero=128),
    ]


OUTPUTS16 = result(Q16S, (2, 3), 1 / 2048), result(Q8, (2, 3), 1 / 128, 128)


def real(v: Value) -> np.ndarray:
    return (v.data.astype(np.float64) - v.zero_point) * v.scale


def test_step_is_near_the_real_one_with_the_weights_joined_in_the_published_order():
    inputs = lstm16()
    x, *weights = (real(v) for v in inputs)
    memory, h = weights[12:]
    read = np.concatenate((x, h), 1)
    gates = [read @ np.concatenate((weights[4 + i], weights[i]), 1).T + weights[8 + i] for i in range(4)]
    c = sigmoid(gates[1]) * memory + sigmoid(gates[0]) * np.tanh(gates[2])
    cell, output = run("QUANTIZED_16BIT_LSTM", inputs, *OUTPUTS16)
    assert np.abs(cell / 2048 - c).max() < 4 / 2048
    assert np.abs((output.astype(int) - 128) / 128 - sigmoid(gates[3]) * np.tanh(c)).max() <= 1 / 128
    a = bound("QUANTIZED_16BIT_LSTM", inputs, *OUTPUTS16)
    assert (a.level, a.shapes) == (V1_2, [(2, 3), (2, 3)])


def test_extremes_of_everything_saturate():
    inputs = [Value(v.type, v.shape, v.scale, v.zero_point, None, np.full_like(v.data, 255)) for v in lstm16()]
    inputs[13] = value(Q16S, np.full((2, 3), 2**15 - 1), 1 / 2048)
    cell, output = run("QUANTIZED_16BIT_LSTM", inputs, *OUTPUTS16)
    assert (cell == 2**15 - 1).all() and (output == 253).all()  # sigmoid(3.8) * tanh(8) = 0.98


@pytest.mark.parametrize(
    ("index", "scale", "zero", "message"),
    [
        (0, 1 / 64, 128, "input has scale 0.015625 and zero point 128, must be 0.0078125 and 128"),
        (6, 0.004, 101, "state_to_forget has scale 0.004 and zero point 101, must be 0.004 and 100"),
        (10, 0.5, 0, "bias_forget has scale 0.5 and zero point 0, must be 3.125e-05 and 0"),
        (13, 1 / 1024, 0, "cell_state has scale 0.000976562 and zero point 0, must be 0.000488281 and 0"),
    ],
)
def test_quantisation_is_as_stated(index, scale, zero, message):
    inputs = lstm16()
    inputs[index] = value(inputs[index].type, inputs[index].data, scale, zero)
    with pytest.raises(InvalidModel, match=message):
        bound("QUANTIZED_16BIT_LSTM", inputs, *OUTPUTS16)


def test_outputs_have_the_stated_quantisation():
    with pytest.raises(InvalidModel, match=r"output 1 \(output\) has scale 0.5 and zero point 0, must be 0.0078125"):
        bound("QUANTIZED_16BIT_LSTM", lstm16(), OUTPUTS16[0], result(Q8, (2, 3), 0.5))


# ------------------------------------------------------------------------------------------------------- QUANTIZED_LSTM

CELL, STATE = 2.0**-11, 2.0**-7
HIDDEN = 2.0**-7


def quantised(kind, scale, *shape, zero=0, reach=100):
    return value(kind, RNG.integers(-reach, reach, shape), scale, zero)


def qlstm(*, project=False, norm=True, cifg=False, clips=(None, None), hidden_zero=0):
    """Two batches, three inputs, four units, two outputs where projected."""
    out = 2 if project else 4
    first = [None] if cifg else []
    bias = 2.0**-15 / 1024 if norm else 2.0**-14
    inputs = [quantised(Q8S, 2.0**-7, 2, 3, zero=5)]
    inputs += [*first, *(quantised(Q8SYMM, 2.0**-7, 4, 3) for _ in range(4 - cifg))]
    inputs += [*first, *(quantised(Q8SYMM, 2.0**-7, 4, out) for _ in range(4 - cifg)), None, None, None]
    inputs += [*first, *(quantised(I32, bias, 4, reach=1 << (24 if norm else 13)) for _ in range(4 - cifg))]
    inputs += [quantised(Q8SYMM, 2.0**-7, 2, 4), quantised(I32, HIDDEN * 2.0**-7, 2)] if project else [None, None]
    inputs += [quantised(Q8S, STATE, 2, out, zero=-3), quantised(Q16S, CELL, 2, 4, reach=3000)]
    norms = [quantised(Q16S, 2.0**-15, 4, reach=30000) for _ in range(4 - cifg)] if norm else [None] * (4 - cifg)
    inputs += [*first, *norms, *clips, *[2.0**-9] * 4, hidden_zero, HIDDEN]
    return inputs, [result(Q8S, None, STATE, -3), result(Q16S, None, CELL), result(Q8S, None, STATE, -3)]


def real_step(inputs, *, norm, cifg):
    x, h, c = real(inputs[0]), real(inputs[18]), real(inputs[19])

    def gate(i):
        z = x @ real(inputs[1 + i]).T + h @ real(inputs[5 + i]).T
        if norm:
            z = (z - z.mean(-1, keepdims=True)) / z.std(-1, keepdims=True) * real(inputs[20 + i])
        return z + real(inputs[12 + i])

    forget = sigmoid(gate(1))
    c = forget * c + (1 - forget if cifg else sigmoid(gate(0))) * np.tanh(gate(2))
    return sigmoid(gate(3)) * np.tanh(c), c


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("cifg", [False, True])
def test_quantised_step_is_near_the_real_one(norm, cifg):
    """Without projection the output is the hidden state, in its own quantisation."""
    inputs, outputs = qlstm(norm=norm, cifg=cifg)
    state, cell, output = run("QUANTIZED_LSTM", inputs, *outputs)
    h, c = real_step(inputs, norm=norm, cifg=cifg)
    assert np.abs(cell * CELL - c).max() < 0.01
    assert np.abs(output * HIDDEN - h).max() < 0.015
    assert (state == output).all()


@pytest.mark.parametrize("zero", [0, 20])
def test_projection_reads_the_hidden_state_with_its_zero_point(zero):
    inputs, outputs = qlstm(project=True, hidden_zero=zero)
    output = run("QUANTIZED_LSTM", inputs, *outputs)[2]
    h, _ = real_step(inputs, norm=True, cifg=False)
    wanted = (h @ real(inputs[16]).T + real(inputs[17])).clip(-125 / 128, 130 / 128)
    assert np.abs((output.astype(int) + 3) * STATE - wanted).max() < 0.03


def test_clips_bound_cell_and_projection():
    inputs, outputs = qlstm(project=True, clips=(0.5, 0.125))
    _, cell, output = run("QUANTIZED_LSTM", inputs, *outputs)
    assert np.abs(cell).max() == 1024
    assert np.abs(output.astype(int) + 3).max() <= 16


def test_quantised_lstm_exists_since_1_3_and_infers_its_shapes():
    inputs, outputs = qlstm(project=True)
    a = bound("QUANTIZED_LSTM", inputs, *outputs)
    assert (a.level, a.shapes) == (V1_3, [(2, 2), (2, 4), (2, 2)])


@pytest.mark.parametrize(
    ("index", "other", "message"),
    [
        (
            19,
            quantised(Q16S, 3e-4, 2, 4),
            r"cell_state has scale 0.0003, must be a power of two from 2\*\*-15 to 2\*\*-9",
        ),
        (28, 0.0, r"cell_intermediate_scale = 0.0, must be greater than 0"),
        (30, 128, r"input 30 \(hidden_state_zero_point\) = 128, must be at most 127"),
        (31, -1.0, r"hidden_state_scale = -1.0, must be greater than 0"),
        (23, None, r"so norm_output must be given too"),
        (2, quantised(Q8S, 2.0**-7, 4, 3), r"input 2 \(input_to_forget\) is TENSOR_QUANT8_ASYMM_SIGNED; allowed"),
        (18, quantised(Q8S, 0.5, 2, 4), r"output 0 has scale 0.0078125 and zero point -3, must be those of state, 0.5"),
    ],
)
def test_quantised_arguments_must_fit(index, other, message):
    inputs, outputs = qlstm()
    inputs[index] = other
    with pytest.raises(InvalidModel, match=message):
        bound("QUANTIZED_LSTM", inputs, *outputs)
