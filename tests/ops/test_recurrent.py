"""RNN, LSTM and SVDF: steps, sequences in both layouts and directions, linking, optional parts, levels."""

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Value
from nnhal.ops.lstm import normalise
from tests.ops.run import F16, F32, Type, bound, result, run, value

RNG = np.random.default_rng(7)
NONE, RELU, RELU1, RELU6, TANH, SIGN_BIT, SIGMOID = range(7)


def some(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


# ------------------------------------------------------------------------------------------------------------------ RNN

W, U, B = some(4, 3), some(4, 4), some(4)


def rnn(x, h):
    return np.tanh(x @ W.T + h @ U.T + B)


def test_rnn_is_an_activated_sum_and_gives_it_twice():
    x, h = some(2, 3), some(2, 4)
    state, output = run("RNN", [x, W, U, B, h, TANH], result(), result())
    close(state, rnn(x, h))
    assert (state == output).all()


@pytest.mark.parametrize("time_major", [0, 1])
def test_sequence_carries_the_state_over_time(time_major):
    x, h = some(5, 2, 3), some(2, 4)
    given = x if time_major else x.swapaxes(0, 1)
    output, last = run("UNIDIRECTIONAL_SEQUENCE_RNN", [given, W, U, B, h, TANH, time_major], result(), result())
    expected = []
    for step in x:
        h = rnn(step, h)
        expected.append(h)
    close(output, np.stack(expected, 0 if time_major else 1))
    close(last, h)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (NONE, lambda x: x),
        (RELU, lambda x: np.maximum(x, 0)),
        (RELU1, lambda x: np.clip(x, -1, 1)),
        (RELU6, lambda x: np.clip(x, 0, 6)),
        (TANH, np.tanh),
        (SIGMOID, lambda x: 1 / (1 + np.exp(-x))),
    ],
)
def test_every_activation_is_the_function_of_its_name(kind, function):
    numbers = np.float32([[-80, -7, -6, -1.5, -1, -0.25, 0, 0.25, 1, 1.5, 5.5, 6, 6.5, 7.5, 80]]).T
    _, output = run("RNN", [numbers, [[1.0]], [[0.0]], [0.0], np.zeros_like(numbers), kind], result(), result())
    np.testing.assert_allclose(output, function(numbers.astype(float)), rtol=1e-6)


def test_sequence_of_no_steps_leaves_the_state():
    h = some(2, 4)
    output, last = run("UNIDIRECTIONAL_SEQUENCE_RNN", [some(2, 0, 3), W, U, B, h, RELU, 0], result(), result())
    assert output.shape == (2, 0, 4)
    close(last, h)


def test_unknown_time_stays_unknown_alone():
    inputs = [result(F32, (2, None, 3)), W, U, B, some(2, 4), RELU, 0]
    assert bound("UNIDIRECTIONAL_SEQUENCE_RNN", inputs).shapes == [(2, None, 4)]


def test_state_output_needs_level_1_3():
    inputs = [some(2, 5, 3), W, U, B, some(2, 4), RELU, 0]
    assert bound("UNIDIRECTIONAL_SEQUENCE_RNN", inputs).level == V1_2
    assert bound("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, result(), result()).level == V1_3


def test_half_precision_rnn_needs_level_1_2():
    inputs = [*(value(F16, x) for x in (some(2, 3), W, U, B, some(2, 4))), RELU]
    assert bound("RNN", inputs, result(F16), result(F16)).level == V1_2
    assert bound("RNN", [some(2, 3), W, U, B, some(2, 4), RELU], result(), result()).level == V1_0


@pytest.mark.parametrize(
    ("index", "other", "message"),
    [
        (0, some(2, 2), r"input 1 \(weights\) has dimension 1 = 3, must be input_size = 2"),
        (2, some(4, 3), r"input 2 \(recurrent_weights\) has dimension 1 = 3, must be units = 4"),
        (4, some(3, 4), r"input 4 \(hidden_state\) has dimension 0 = 3, must be batch = 2"),
        (5, SIGN_BIT, r"activation_kind is 5 \(SIGN_BIT\), must be one of 0 \(NONE\), 1 \(RELU\)"),
        (5, 9, r"input 5 \(activation_kind\) = 9, must be one of"),
    ],
)
def test_rnn_arguments_must_fit(index, other, message):
    inputs = [some(2, 3), W, U, B, some(2, 4), RELU]
    inputs[index] = other
    with pytest.raises(InvalidModel, match=message):
        bound("RNN", inputs, result(), result())


def test_time_major_is_0_or_1():
    with pytest.raises(InvalidModel, match=r"input 6 \(time_major\) = 2, must be at most 1"):
        bound("UNIDIRECTIONAL_SEQUENCE_RNN", [some(2, 5, 3), W, U, B, some(2, 4), RELU, 2])


def test_batch_of_the_state_is_that_of_the_layout():
    with pytest.raises(InvalidModel, match=r"input 0 \(input\) has a batch of 5, must be batch = 2"):
        bound("UNIDIRECTIONAL_SEQUENCE_RNN", [some(2, 5, 3), W, U, B, some(2, 4), RELU, 1])


# ------------------------------------------------------------------------------------------------------- bidirectional

TWO = {"fw": (some(4, 3), some(4, 4), some(4), some(2, 4)), "bw": (some(5, 3), some(5, 5), some(5), some(2, 5))}
X = some(6, 2, 3)


def both(aux=None, fw_aux=None, bw_aux=None, *, merge=False, time_major=True, outputs=2, bw=TWO["bw"], x=X):
    inputs = [x, *TWO["fw"], *bw, aux, fw_aux, bw_aux, TANH, time_major, merge]
    return "BIDIRECTIONAL_SEQUENCE_RNN", inputs, *[result()] * outputs


def one_way(cell, x, extra=0.0):
    w, u, b, h = cell
    outputs = []
    for step, more in zip(x, np.broadcast_to(extra, (len(x), 2, len(b))), strict=True):
        h = np.tanh(step @ w.T + h @ u.T + b + more)
        outputs.append(h)
    return np.array(outputs)


def test_second_cell_runs_backwards():
    fw, bw, fw_last, bw_last = run(*both(outputs=4))
    close(fw, one_way(TWO["fw"], X))
    close(bw, one_way(TWO["bw"], X[::-1])[::-1])
    close(fw_last, fw[-1])
    close(bw_last, bw[0])


def test_merged_outputs_are_side_by_side_and_states_follow():
    fw, bw = run(*both())
    merged, fw_last, bw_last = run(*both(merge=True, outputs=3))
    close(merged, np.concatenate((fw, bw), -1))
    close(fw_last, fw[-1])
    close(bw_last, bw[0])
    assert bound(*both(merge=True, outputs=3)).shapes == [(6, 2, 9), (2, 4), (2, 5)]


def test_cross_linking_feeds_the_auxiliary_input_to_both_cells():
    aux, fw_aux, bw_aux = some(6, 2, 7), some(4, 7), some(5, 7)
    fw, bw = run(*both(aux, fw_aux, bw_aux))
    close(fw, one_way(TWO["fw"], X, aux @ fw_aux.T))
    close(bw, one_way(TWO["bw"], X[::-1], aux[::-1] @ bw_aux.T)[::-1])
    assert bound(*both(aux, fw_aux, bw_aux)).level == V1_2


def test_parallel_linking_feeds_the_auxiliary_input_backwards_since_1_3():
    aux, cell = some(6, 2, 7), (some(5, 7), *TWO["bw"][1:])
    fw, bw = run(*both(aux, bw=cell))
    close(fw, one_way(TWO["fw"], X))
    close(bw, one_way(cell, aux[::-1])[::-1])
    assert bound(*both(aux, bw=cell)).level == V1_3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (both(None, some(4, 7), some(5, 7)), "is given, so aux_input must be given too"),
        (both(some(6, 2, 7), some(4, 7)), "fw_aux_weights is given, so bw_aux_weights must be given too"),
        (both(some(6, 2, 7)), "bw_input_size = 3, must be aux_size = 7"),
        (both(some(5, 2, 3)), r"aux_input starts with \[5, 2\], must start with \[6, 2\]"),
        (both(merge=True), "has 2 outputs with merge_outputs = True, must be 1 or 3"),
        (both(outputs=1), "has 1 outputs with merge_outputs = False, must be 2 or 4"),
        (both(outputs=5), "has 5 outputs, must have"),
    ],
)
def test_linking_and_outputs_must_fit(call, message):
    with pytest.raises(InvalidModel, match=message):
        bound(*call)


def test_input_declared_as_0_may_be_left_out():
    name, inputs, *outputs = both()
    inputs[9:12] = [result(F32, (None,))] * 3
    a = bound(name, inputs, *outputs)
    assert a.deferred and a.level == V1_2


# ----------------------------------------------------------------------------------------------------------------- LSTM


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Cell:
    """Weights of one LSTM cell with 3 inputs, 4 units and, projected, 2 outputs; what is None is left out."""

    def __init__(self, *, cifg=False, peep=False, project=False, norm=False):
        out = 2 if project else 4
        self.wx = [None if cifg and i == 0 else some(4, 3) for i in range(4)]
        self.wh = [None if cifg and i == 0 else some(4, out) for i in range(4)]
        self.peep = [some(4) if peep and not (cifg and i == 0) else None for i in range(3)]
        self.bias = [None if cifg and i == 0 else some(4) for i in range(4)]
        self.project = [some(2, 4), some(2)] if project else [None, None]
        self.norm = [some(4) if norm and not (cifg and i == 0) else None for i in range(4)]
        self.states = [some(2, out), some(2, 4)]

    def weights(self):
        return [*self.wx, *self.wh, *self.peep, *self.bias, *self.project]

    def step(self, x, h, c, more=(0, 0, 0, 0)):
        def gate(i, memory=None, peep=None):
            z = x @ self.wx[i].T + h @ self.wh[i].T + more[i]
            z = z if peep is None else z + memory * peep
            if self.norm[i] is not None:
                z = (z - z.mean(-1, keepdims=True)) / z.std(-1, keepdims=True) * self.norm[i]
            return z + self.bias[i]

        forget = sigmoid(gate(1, c, self.peep[1]))
        admit = 1 - forget if self.wx[0] is None else sigmoid(gate(0, c, self.peep[0]))
        c = forget * c + admit * np.tanh(gate(2))
        h = sigmoid(gate(3, c, self.peep[2])) * np.tanh(c)
        return (h if self.project[0] is None else h @ self.project[0].T + self.project[1]), c


PARTS = [
    {},
    {"cifg": True},
    {"peep": True, "project": True},
    {"norm": True},
    {"cifg": True, "peep": True, "norm": True},
]


@pytest.mark.parametrize("parts", PARTS)
def test_lstm_step_follows_its_equations(parts):
    cell, x = Cell(**parts), some(2, 3)
    _, h, c, output = run("LSTM", [x, *cell.weights(), *cell.states, TANH, 0.0, 0.0, *cell.norm], *[result()] * 4)
    wanted = cell.step(x, *cell.states)
    close(h, wanted[0])
    close(c, wanted[1])
    assert (h == output).all()


def test_lstm_clips_cell_and_projection():
    cell, x = Cell(project=True), some(2, 3)
    inputs = [x, *cell.weights(), *cell.states, TANH, 0.25, 0.125]
    scratch, h, c, _ = run("LSTM", inputs, *[result()] * 4)
    close(c, cell.step(x, *cell.states)[1].clip(-0.25, 0.25))
    assert np.abs(h).max() <= 0.125
    assert scratch.shape == (2, 16)
    assert bound("LSTM", inputs, *[result()] * 4).level == V1_0


def lstm(cell, **changes):
    inputs = dict(enumerate([some(2, 3), *cell.weights(), *cell.states, TANH, 0.0, 0.0, *cell.norm]))
    return "LSTM", list((inputs | {int(k[1:]): v for k, v in changes.items()}).values()), *[result()] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lstm(Cell(), _5=None), "input_to_input, bias_input is given, so state_to_input must be given too"),
        (lstm(Cell(peep=True), _10=None), "peep_input, peep_output is given, so peep_forget must be given too"),
        (lstm(Cell(cifg=True, peep=True), _11=None), "peep_forget is given, so peep_output must be given too"),
        (
            lstm(Cell(cifg=True, norm=True), _24=None),
            "norm_cell, norm_output is given, so norm_forget must be given too",
        ),
        (lstm(Cell(cifg=True, norm=True), _23=some(4)), "norm_input is given, must be omitted as input_to_input is"),
        (lstm(Cell(cifg=True, peep=True), _9=some(4)), r"peep_input is given, must be omitted as input_to_input is"),
        (lstm(Cell(norm=True), _26=None), "is given, so norm_output must be given too"),
        (lstm(Cell(), _17=some(4)), "projection_bias is given, so projection must be given too"),
        (
            lstm(Cell(), **{f"_{n}": some(4, 3) for n in range(5, 9)}, _18=some(2, 3)),
            "output_size = 3, must be units = 4 without projection",
        ),
        (
            lstm(Cell(), _20=RELU1),
            r"activation_kind is 2 \(RELU1\), must be one of 0 \(NONE\), 1 \(RELU\), 3 \(RELU6\)",
        ),
        (lstm(Cell(), _21=-1.0), r"input 21 \(cell_clip\) = -1.0, must be at least 0"),
    ],
)
def test_parts_of_a_cell_go_together(call, message):
    with pytest.raises(InvalidModel, match=message):
        bound(*call)


def test_lstm_takes_23_or_27_inputs():
    name, inputs, *outputs = lstm(Cell())
    with pytest.raises(InvalidModel, match="has 25 inputs, must have 23 or 27"):
        bound(name, inputs[:25], *outputs)


def test_a_projection_below_its_clip_is_clipped_too():
    cell, x = Cell(project=True), some(2, 3)
    cell.project = [np.float32([[1, 1, 1, 1], [-1, -1, -1, -1]]), np.float32([1, -1])]
    inputs = [x, *cell.weights(), *cell.states, TANH, 0.0, 0.05]
    _, h, _, _ = run("LSTM", inputs, *[result()] * 4)
    wanted = cell.step(x, *cell.states)[0]
    assert wanted.min() < -0.05 and wanted.max() > 0.05
    close(h, wanted.clip(-0.05, 0.05))


def test_a_layer_is_normalised_with_1e_8_beside_its_variance():
    found = normalise(np.array([[1e-4, -1e-4], [3e-4, -1e-4]]), np.array([1.0, 2.0]))
    np.testing.assert_allclose(found, [[0.5**0.5, -2 * 0.5**0.5], [2 / 5**0.5, -4 / 5**0.5]], rtol=1e-9)


def test_room_for_four_gates_or_for_three_without_an_input_gate_of_its_own():
    for cell, room, other in ((Cell(), 16, 12), (Cell(cifg=True), 12, 16)):
        name, inputs, _, *outputs = lstm(cell)
        for declared, wanted in ((None, room), ((2, room), room), ((2, other), other), ((2, None), room)):
            assert bound(name, inputs, result(F32, declared), *outputs).shapes[0] == (2, wanted)
            assert run(name, inputs, result(F32, declared), *outputs)[0].shape == (2, wanted)
        for wrong in ((2, 13), (room,)):
            with pytest.raises(InvalidModel, match=r"output 0 \(scratch\) has shape \[.*\], must be \[2, "):
                bound(name, inputs, result(F32, wrong), *outputs)


def test_room_is_not_known_while_the_input_gate_may_be_left_out():
    name, inputs, *outputs = lstm(Cell())
    late = [result(F32, (0, 0)) if n in (1, 5, 12) else x for n, x in enumerate(inputs)]
    a = bound(name, late, *outputs)
    assert a.shapes[0] == (2, None) and a.deferred
    assert bound(name, late, result(F32, (2, 12)), *outputs[1:]).shapes[0] in ((2, 12), (2, None))


def test_the_number_of_outputs_is_one_that_either_kind_has_before_it_is_known_which():
    fw, bw = Cell(), Cell()
    inputs = [some(3, 2, 3), *fw.weights(), *bw.weights(), *fw.states, *bw.states, *[None] * 9]
    inputs += [TANH, 0.0, 0.0, Value(Type.BOOL, ()), True, *fw.norm, *bw.norm]
    for outputs in range(1, 7):
        if outputs in (1, 2, 5, 6):
            assert bound("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, *[result()] * outputs).deferred
        else:
            with pytest.raises(InvalidModel, match=f"has {outputs} outputs, must have 1 or 2 or 5 or 6"):
                bound("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, *[result()] * outputs)


def test_sequence_lstm_gives_both_states_or_none():
    cell = Cell()
    inputs = [some(2, 5, 3), *cell.weights(), *cell.states, TANH, 0.0, 0.0, False, *cell.norm]
    with pytest.raises(InvalidModel, match="has 2 outputs, must have 1 or 3"):
        bound("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, result(), result())


def test_bidirectional_lstm_unlike_cells_with_cross_linking():
    fw, bw = Cell(cifg=True, peep=True), Cell(project=True, norm=True)
    x, aux = some(3, 2, 3), some(3, 2, 6)
    fw_aux = [None, *(some(4, 6) for _ in range(3))]
    bw_aux = [some(4, 6) for _ in range(4)]
    inputs = [x, *fw.weights(), *bw.weights(), *fw.states, *bw.states, aux, *fw_aux, *bw_aux]
    inputs += [TANH, 0.0, 0.0, False, True, *fw.norm, *bw.norm]
    assert len(inputs) == 61
    results = run("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, *[result()] * 6)
    for cell, weights, order, place in ((fw, fw_aux, 1, 0), (bw, bw_aux, -1, 1)):
        h, c = cell.states
        for t in range(3)[::order]:
            h, c = cell.step(x[t], h, c, [0 if w is None else aux[t] @ w.T for w in weights])
            close(results[place][t], h)
        close(results[2 + 2 * place], h)
        close(results[3 + 2 * place], c)
    a = bound("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, *[result()] * 6)
    assert (a.level, a.shapes) == (V1_3, [(3, 2, 4), (3, 2, 2), (2, 4), (2, 4), (2, 2), (2, 4)])


# ----------------------------------------------------------------------------------------------------------------- SVDF


@pytest.mark.parametrize("spare", [0, 1])
def test_svdf_filters_features_then_time(spare):
    """Two units of rank 2, memory 3; the state may have a place for the newest value or not."""
    x, feature, time, bias = some(2, 5), some(4, 5), some(4, 3), some(2)
    old = some(2, 4, 2)
    state = np.concatenate((old, np.full((2, 4, spare), 9, np.float32)), -1)
    pushed, output = run("SVDF", [x, feature, time, bias, state.reshape(2, -1), 2, RELU], result(), result())
    memory = np.concatenate((old, (x @ feature.T)[..., None]), -1)
    close(output, np.maximum((memory * time).sum(-1).reshape(2, 2, 2).sum(-1) + bias, 0))
    close(pushed.reshape(state.shape)[..., :2], memory[..., 1:])
    assert (pushed.reshape(state.shape)[..., 2:] == 0).all()


@pytest.mark.parametrize(
    ("index", "other", "message"),
    [
        (5, 3, "filters = 4, must be a multiple of rank = 3"),
        (5, 0, r"input 5 \(rank\) = 0, must be at least 1"),
        (3, some(4), "bias has 4 elements, must have filters / rank = 2"),
        (4, some(2, 5), r"state has 5 elements per batch, must have filters \* memory_size = 12"),
    ],
)
def test_svdf_arguments_must_fit(index, other, message):
    inputs = [some(2, 5), some(4, 5), some(4, 3), some(2), some(2, 12), 2, NONE]
    inputs[index] = other
    with pytest.raises(InvalidModel, match=message):
        bound("SVDF", inputs, result(), result())
