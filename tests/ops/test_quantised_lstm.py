"""The quantised LSTMs and their fixed-point arithmetic: facts beside the published vectors, which are met bit by bit."""

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Value
from nnhal.ops import fixedpoint
from nnhal.ops.qlstm import normalise
from tests.ops import integers
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


SOME = [*range(-(2**15), 2**15, 97), -(2**15) + 1, -1, 0, 1, 2**15 - 1]


@pytest.mark.parametrize("bits", range(7))
def test_functions_are_the_published_ones_bit_by_bit(bits):
    numbers = np.array(SOME)
    assert fixedpoint.tanh(numbers, bits).tolist() == [integers.tanh(n, bits) for n in SOME]
    assert fixedpoint.logistic(numbers, bits).tolist() == [integers.logistic(n, bits) for n in SOME]
    below = numbers[numbers <= 0]
    found = fixedpoint.exp_negative(below, bits).tolist()
    assert found == [integers.exp_on_negative_values(n, bits) for n in below.tolist()]


WIDE = [
    -(2**31),
    2**31 - 1,
    -1,
    0,
    1,
    *(int(n) for n in RNG.integers(-(2**31), 2**31, 300) >> RNG.integers(0, 31, 300)),
]


@pytest.mark.parametrize("factor", [0.0, 2.0**-62, 2.0**-31, 2.0**-16, 0.3, 1.5e-9])
def test_products_with_a_factor_are_the_published_ones(factor):
    assert fixedpoint.scaled(np.array(WIDE), factor).tolist() == [integers.scaled(n, factor) for n in WIDE]


@pytest.mark.parametrize("factor", [1 - 2.0**-33, 1.0, 3.7, 2.0**29])
def test_factors_of_1_and_more_are_applied_to_what_fits_32_bits_after_their_shift(factor):
    small = [n for n in WIDE if abs(n) * 2 * factor < 2**31]
    assert fixedpoint.scaled(np.array(small), factor).tolist() == [integers.scaled(n, factor) for n in small]


def test_products_and_halves_are_the_published_ones():
    x, y = RNG.integers(-(2**15), 2**15, (2, 400))
    pairs = [(-(2**15), -(2**15)), (2**15 - 1, 2**15 - 1), *zip(x.tolist(), y.tolist(), strict=True)]
    left, right = np.array(pairs).T
    assert fixedpoint.multiply(left, right).tolist() == [integers.high_product(*pair) for pair in pairs]
    wide = [(m << 16, n << 16) for m, n in pairs]
    left, right = np.array(wide).T
    assert fixedpoint.multiply(left, right, 31).tolist() == [integers.high_product(*pair, 31) for pair in wide]
    for times in range(6):
        assert fixedpoint.halve(np.array(SOME), times).tolist() == [integers.divided(n, times) for n in SOME]


def test_saturation_keeps_both_ends():
    ends = [-(2**31), -(2**15) - 1, -(2**15), 2**15 - 1, 2**15, 200, -129]
    assert fixedpoint.saturate(np.array(ends)).tolist() == [integers.clamped(n) for n in ends]
    assert fixedpoint.saturate(np.array(ends), 8).tolist() == [integers.clamped(n, 8) for n in ends]


def test_quotients_lose_their_fraction_on_either_side_of_0():
    assert fixedpoint.quotient(np.array([7, -7, 6, -6, 0, 2**40 + 1]), 3).tolist() == [
        2,
        -2,
        2,
        -2,
        0,
        (2**40 + 1) // 3,
    ]


def newton(x, steps=5):
    """As published: x of 31 bits times 4**pairs is between 2**27 and 2**29; Newton's steps start from 1."""
    pairs, shift = 0, 11
    while x >= 2**29:
        x, shift = x / 4, shift + 1
    while x * 4 < 2**29:
        x, shift = x * 4, shift - 1
    y = 1.0
    for _ in range(steps):
        y = 1.5 * y - 0.5 * (x / 2**29) * y**3
    return y * 0.5**0.5 * 2**28 * 2.0 ** -(shift + pairs)


@pytest.mark.parametrize("x", [2, 3, 4, 15, 16, 1000, 2**20 + 1, 2**27, 2**28 + 5, 2**29 - 1, 2**29, 2**30, 2**31 - 1])
def test_the_inverse_root_takes_five_steps(x):
    fraction, times = fixedpoint.inverse_root(np.array([x]))
    assert fraction[0] * 0.5 ** times[0] == pytest.approx(newton(x), rel=1e-8)
    assert times[0] >= 0 and fraction[0] < 2**31


def test_the_inverse_root_of_1_and_less_is_the_greatest_fraction():
    assert [x.tolist() for x in fixedpoint.inverse_root(np.array([1, 1]))] == [[2**31 - 1] * 2, [0] * 2]


def test_inverse_root_is_close_to_the_real_one():
    x = np.array([1, 2, 3, 1000, 2**20 + 1, 2**29, 2**30])
    fraction, times = fixedpoint.inverse_root(x)
    np.testing.assert_allclose(fraction * 2.0**-31 * 0.5**times, x**-0.5, rtol=2e-6)


# ------------------------------------------------------------------------------------------------- QUANTIZED_16BIT_LSTM


def dot(x, weights, zero):
    return sum((a - zero) * b for a, b in zip(x, weights, strict=True))


def step16(inputs, row):
    """One row of a batch, as published: gates of three integer bits, a state of four."""
    x, h = inputs[0].data[row].tolist(), inputs[14].data[row].tolist()
    state, output = [], []
    factor = inputs[9].scale * 4096
    for unit, before in enumerate(inputs[13].data[row].tolist()):
        gates = []
        for gate in range(4):
            weights = [*inputs[5 + gate].data[unit].tolist(), *inputs[1 + gate].data[unit].tolist()]
            total = dot([*x, *h], [w - inputs[1].zero_point for w in weights], 128) + int(inputs[9 + gate].data[unit])
            gates.append(integers.clamped(integers.scaled(total, factor)))
        admit, forget, emit = (integers.logistic(gates[n], 3) for n in (0, 1, 3))
        new = integers.divided(integers.high_product(admit, integers.tanh(gates[2], 3)), 4)
        memory = integers.clamped(new + integers.high_product(forget, before))
        shown = integers.high_product(emit, integers.tanh(integers.clamped(memory << 1), 3))
        state.append(memory)
        output.append(integers.clamped(integers.divided(shown, 8), 8) + 128)
    return state, output


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


def test_every_bit_is_the_published_one():
    for _ in range(5):
        inputs = lstm16()
        cell, output = run("QUANTIZED_16BIT_LSTM", inputs, *OUTPUTS16)
        assert [(c.tolist(), o.tolist()) for c, o in zip(cell, output, strict=True)] == [
            step16(inputs, n) for n in (0, 1)
        ]


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


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_a_clip_of_0_or_less_is_none(clip):
    inputs, outputs = qlstm(project=True)
    plain = run("QUANTIZED_LSTM", inputs, *outputs)
    inputs[24:26] = [clip, clip]
    for one, other in zip(plain, run("QUANTIZED_LSTM", inputs, *outputs), strict=True):
        assert (one == other).all()


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
        (
            2,
            quantised(Q8S, 2.0**-7, 4, 3),
            r"input 2 \(input_to_forget\) is TENSOR_QUANT8_ASYMM_SIGNED, must be one of",
        ),
        (18, quantised(Q8S, 0.5, 2, 4), r"output 0 has scale 0.0078125 and zero point -3, must be those of state, 0.5"),
    ],
)
def test_quantised_arguments_must_fit(index, other, message):
    inputs, outputs = qlstm()
    inputs[index] = other
    with pytest.raises(InvalidModel, match=message):
        bound("QUANTIZED_LSTM", inputs, *outputs)


# ------------------------------------------------------------------------------------- QUANTIZED_LSTM, number by number


def truncated(x, by):
    """Without its fraction, as C divides."""
    return x // by if x >= 0 else -(-x // by)


def normalised(values, weights, biases, scale):
    """ApplyLayerNorm: sums of squares in 2**-20, mean and quotients in 2**-10."""
    mean = truncated(sum(values) * 1024, len(values))
    variance = truncated(sum(v * v for v in values) * (2**20 // len(values)) - mean * mean, 2**20)
    fraction, times = (int(x[0]) for x in fixedpoint.inverse_root(np.array([max(variance, 1)])))
    made = []
    for value_, weight, bias in zip(values, weights, biases, strict=True):
        quotient = integers.divided(integers.high_product(1024 * value_ - mean, fraction, 31), times)
        total = quotient * weight + bias
        total = truncated(total + 512 if total > 0 else total - 512, 1024)
        made.append(integers.clamped(integers.scaled(total, scale * 4096)))
    return made


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_a_layer_is_normalised_as_published(count):
    for reach in (3, 3000, 32767):
        values = RNG.integers(-reach, reach + 1, (3, count))
        weights, biases = RNG.integers(-30000, 30000, count), RNG.integers(-(2**24), 2**24, count)
        found = normalise(values, weights, biases, 2.0**-15).tolist()
        given = weights.tolist(), biases.tolist(), 2.0**-15
        assert found == [normalised(row, *given) for row in values.tolist()]


def ratio(one, two, by):
    """In single precision."""
    return float(np.float32(one) * np.float32(two) / np.float32(by))


def stepped(inputs, row):
    """One row of a batch, as published, with all optional parts but clips."""
    x, h = inputs[0].data[row].tolist(), inputs[18].data[row].tolist()
    memory, units = inputs[19].data[row].tolist(), len(inputs[19].data[row])
    exponent = round(np.log2(inputs[19].scale))
    zero, hidden_scale = inputs[30], inputs[31]

    def gate(n, memory):
        norm, peep = inputs[20 + n], None if n == 2 else inputs[(9, 10, 0, 11)[n]]
        step = 2.0**-12 if norm is None else inputs[26 + n]
        bias = inputs[12 + n].data.tolist()
        totals = []
        for unit in range(units):
            products = dot(x, inputs[1 + n].data[unit].tolist(), inputs[0].zero_point)
            products += 0 if norm is not None else bias[unit]
            total = integers.clamped(integers.scaled(products, ratio(inputs[1 + n].scale, inputs[0].scale, step)))
            products = dot(h, inputs[5 + n].data[unit].tolist(), inputs[18].zero_point)
            factor = ratio(inputs[5 + n].scale, inputs[18].scale, step)
            total = integers.clamped(total + integers.scaled(products, factor))
            if peep is not None:
                factor = ratio(inputs[19].scale, peep.scale, step)
                total = integers.clamped(total + integers.scaled(memory[unit] * int(peep.data[unit]), factor))
            totals.append(total)
        return totals if norm is None else normalised(totals, norm.data.tolist(), bias, norm.scale)

    forget = [integers.logistic(g, 3) for g in gate(1, memory)]
    admit = [2**15 - 1 - f for f in forget] if inputs[1] is None else [integers.logistic(g, 3) for g in gate(0, memory)]
    new = [
        integers.divided(i * integers.tanh(g, 3), 30 + exponent) for i, g in zip(admit, gate(2, memory), strict=True)
    ]
    memory = [integers.clamped(integers.divided(f * c, 15) + n) for f, c, n in zip(forget, memory, new, strict=True)]
    emit = [integers.logistic(g, 3) for g in gate(3, memory)]
    factor = ratio(2.0**-15, 2.0**-15, hidden_scale)
    shown = [e * integers.tanh(c, exponent + 15) for e, c in zip(emit, memory, strict=True)]
    hidden = [integers.clamped(integers.scaled(s, factor) + zero, 8) for s in shown]
    if inputs[16] is not None:
        factor = ratio(inputs[16].scale, hidden_scale, inputs[18].scale)
        biases = [0] * len(inputs[16].data) if inputs[17] is None else inputs[17].data.tolist()
        sums = [dot(hidden, w.tolist(), zero) + b for w, b in zip(inputs[16].data, biases, strict=True)]
        hidden = [integers.clamped(integers.scaled(s, factor) + inputs[18].zero_point, 8) for s in sums]
    return memory, hidden


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("cifg", [False, True])
@pytest.mark.parametrize("project", [False, True])
def test_every_bit_of_a_quantised_cell_is_the_published_one(norm, cifg, project):
    for peep, zero in ((False, 0), (True, 9)):
        inputs, outputs = qlstm(project=project, norm=norm, cifg=cifg, hidden_zero=zero)
        if peep:
            inputs[9:12] = [None if cifg else quantised(Q16S, 2.0**-15, 4, reach=30000)] + [
                quantised(Q16S, 2.0**-15, 4, reach=30000) for _ in range(2)
            ]
            inputs[17] = None if zero else inputs[17]
        if project and peep:  # so that what is projected leaves 8 bits
            inputs[16] = quantised(Q8SYMM, 2.0**-4, 2, 4)
        inputs[26:30] = [2.0**-9, 2.0**-10, 2.0**-9.5, 2.0**-8]  # each its own
        state, cell, output = run("QUANTIZED_LSTM", inputs, *outputs)
        wanted = [stepped(inputs, row) for row in (0, 1)]
        assert [(c.tolist(), o.tolist()) for c, o in zip(cell, output, strict=True)] == wanted
        assert (state == output).all()
