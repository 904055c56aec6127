"""What calls subgraphs and what is kept from run to run: IF, WHILE, variables, recurrent operators."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.frontends.tflite import load
from tests.frontends.cases import malformed, refused
from tests.frontends.flat import Writer, litert, one_operator, tensor

BASIC = {"fusedActivationFunction": 4, "kernelType": 1, "version": 2}

RANDOM = np.random.default_rng(3)


def weights(w: Writer, *shape: int) -> int:
    return w.tensor(shape, "f4", RANDOM.uniform(-0.5, 0.5, shape))


def streams_agree(content: bytes, *shapes: Sequence[int], steps: int = 3) -> nnhal.Model:
    """Several runs of a model with states give what LiteRT gives after as many."""
    model = load(content)
    assert model.states
    stream = nnhal.compile(model, devices="reference").stream()
    xs = [RANDOM.uniform(-1, 1, shape).astype("f4") for shape in shapes]
    for step in range(1, steps + 1):
        results = stream(*xs)
        for actual, expected in zip(
            results if isinstance(results, tuple) else (results,), litert(content, *xs, calls=step), strict=True
        ):
            assert np.abs(actual - expected).max() < 1e-5
    return model


def lstm(name: str, options: str, *, cifg: bool, norms: bool, sequence: bool, projection: bool) -> bytes:
    w, (batch, time, size, units) = Writer(), (2, 3, 4, 5)
    width = 3 if projection else units
    x = w.tensor([time, batch, size] if sequence else [batch, size])
    gates = [-1 if cifg and n == 0 else n for n in range(4)]
    inputs = [x, *(n if n < 0 else weights(w, units, size) for n in gates)]
    inputs += [n if n < 0 else weights(w, units, width) for n in gates]
    inputs += [-1 if cifg else weights(w, units), weights(w, units), weights(w, units)]
    inputs += [n if n < 0 else weights(w, units) for n in gates]
    inputs += [weights(w, width, units), weights(w, width)] if projection else [-1, -1]
    inputs += [w.tensor([batch, n], isVariable=True) for n in (width, units)]
    inputs += [n if n < 0 else weights(w, units) for n in gates] if norms else []
    y = w.tensor([time, batch, width] if sequence else [batch, width])
    more = {"timeMajor": True} if sequence else {}
    w.operator(name, inputs, [y], options, fusedActivationFunction=4, cellClip=2.0, projClip=0.0, **more)
    return w.file([x], [y])


@pytest.mark.parametrize("cifg", [False, True])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("projection", [False, True])
def test_a_sequence_lstm_carries_its_variable_tensors(cifg, norms, projection):
    content = lstm(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        "UnidirectionalSequenceLSTM",
        cifg=cifg,
        norms=norms,
        sequence=True,
        projection=projection,
    )
    assert len(streams_agree(content, (3, 2, 4)).states) == 2


@pytest.mark.parametrize("cifg", [False, True])
def test_one_step_of_an_lstm(cifg):
    content = lstm("LSTM", "LSTM", cifg=cifg, norms=not cifg, sequence=False, projection=True)
    main = streams_agree(content, (2, 4)).main
    (step,) = [o for o in main.operations if o.type == OperationType.LSTM]
    assert main.operands[step.outputs[0]].dimensions == (2, 3 * 5 if cifg else 4 * 5)  # scratch: a part for each gate


@pytest.mark.parametrize("merged", [False, True])
def test_an_lstm_in_both_directions(merged):
    w, (time, size, units) = Writer(), (3, 4, 5)
    x = w.tensor([time, 1, size])
    inputs = [x]
    for _ in range(2):
        inputs += [weights(w, units, size) for _ in range(4)] + [weights(w, units, units) for _ in range(4)]
        inputs += [-1, -1, -1, *(weights(w, units) for _ in range(4)), -1, -1]
    inputs += [w.tensor([1, units], isVariable=True) for _ in range(4)] + [-1] * 9
    outputs = [w.tensor([time, 1, 2 * units])] if merged else [w.tensor([time, 1, units]) for _ in range(2)]
    options = {"fusedActivationFunction": 4, "timeMajor": True, "mergeOutputs": merged}
    w.operator("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, outputs, "BidirectionalSequenceLSTM", **options)
    assert len(streams_agree(w.file([x], outputs), (time, 1, size)).states) == 4


@pytest.mark.parametrize(
    ("name", "activation"), [*(("RNN", code) for code in range(5)), ("UNIDIRECTIONAL_SEQUENCE_RNN", 4)]
)
def test_an_rnn_has_any_activation_of_tflite(name, activation):
    w, sequence = Writer(), name != "RNN"
    x, y = (w.tensor([2, 3, 4]), w.tensor([2, 3, 5])) if sequence else (w.tensor([2, 4]), w.tensor([2, 5]))
    inputs = [x, weights(w, 5, 4), weights(w, 5, 5), weights(w, 5), w.tensor([2, 5], isVariable=True)]
    options = "SequenceRNN" if sequence else "RNN"
    w.operator(name, inputs, [y], options, fusedActivationFunction=activation)
    streams_agree(w.file([x], [y]), (2, 3, 4) if sequence else (2, 4))


def test_an_rnn_in_both_directions():
    w = Writer()
    x, outputs, inputs = w.tensor([2, 3, 4]), [w.tensor([2, 3, 5]), w.tensor([2, 3, 5])], []
    for _ in range(2):
        inputs += [weights(w, 5, 4), weights(w, 5, 5), weights(w, 5), w.tensor([2, 5], isVariable=True)]
    options = {"fusedActivationFunction": 1}
    name = "BIDIRECTIONAL_SEQUENCE_RNN"
    w.operator(name, [x, *inputs, -1, -1, -1], outputs, "BidirectionalSequenceRNN", **options)
    streams_agree(w.file([x], outputs), (2, 3, 4))


def test_svdf():
    w, (filters, memory) = Writer(), (4, 3)
    x, y = w.tensor([2, 5]), w.tensor([2, 2])
    state = w.tensor([2, filters * memory], isVariable=True)
    inputs = [x, weights(w, filters, 5), weights(w, filters, memory), weights(w, 2), state]
    w.operator("SVDF", inputs, [y], "SVDF", rank=2, fusedActivationFunction=1)
    streams_agree(w.file([x], [y]), (2, 5), steps=5)


# ------------------------------------------------------------------------------------------------------------- variables


def counter(*, initial: Any = (10, 20), read: bool = True) -> bytes:
    """y = variable + x; variable = y. Initialised by a subgraph."""
    w = Writer()
    x, y = w.tensor([2]), w.tensor([2])
    w.operator("CALL_ONCE", [], [], "CallOnce", initSubgraphIndex=1)
    handle = w.variable()
    w.operator("ADD", [w.read(handle, [2]) if read else x, x], [y], "Add")
    w.assign(handle, y)
    w.ends([x], [y])
    w.subgraph()
    w.assign(w.variable(), w.tensor([2], "f4", initial))
    return w.file([], [])


@pytest.mark.parametrize(
    ("inner", "outer", "message"),
    [
        (1, 0, "CALL_ONCE #0: gives subgraph 1 0 inputs, must be 1"),
        (0, 1, r"\(CALL_ONCE\): has 1 outputs, must have 0"),
    ],
)
def test_a_first_call_has_no_inputs_and_no_outputs(inner, outer, message):
    w = Writer()
    x, y, *results = [w.tensor([2]) for _ in range(2 + outer)]
    w.operator("CALL_ONCE", [], results, "CallOnce", initSubgraphIndex=1)
    w.operator("ABS", [x], [y])
    w.ends([x], [y])
    w.subgraph()
    malformed(w.file([w.tensor([2]) for _ in range(inner)], []), message)


def test_an_output_that_is_a_state_which_nothing_writes_is_refused():
    w = Writer()
    x, y, state = w.tensor([2]), w.tensor([2]), w.tensor([2], isVariable=True)
    w.operator("ABS", [x], [y])
    refused(w.file([x], [y, state]), "output 't2': is a variable tensor that no operator writes")


def test_a_variable_starts_with_what_it_was_given_and_is_carried():
    model = load(counter())
    (state,) = model.states
    assert (state.input, state.output) == (1, 1)
    stream, x = nnhal.compile(model, devices="reference").stream(), np.ones(2, "f4")
    assert stream(x).tolist() == [11, 21]
    assert stream(x).tolist() == [12, 22]
    assert litert(counter(), x, calls=2)[0].tolist() == [12, 22]


def test_a_variable_that_nobody_reads_is_no_state():
    assert not load(counter(read=False)).states


def test_a_variable_that_nobody_writes_is_a_constant():
    w = Writer()
    x, y = w.tensor([2]), w.tensor([2])
    w.operator("ADD", [w.read(w.variable(), [2]), x], [y], "Add")
    model = load(w.file([x], [y]))
    assert not model.states and len(model.main.inputs) == 1


def test_a_read_after_the_assignment_sees_what_was_assigned():
    w = Writer()
    x, total, y = (w.tensor([2]) for _ in range(3))
    handle = w.variable()
    w.operator("ADD", [w.read(handle, [2]), x], [total], "Add")
    w.assign(handle, total)
    assigned = w.read(handle, [2])
    w.operator("MUL", [assigned, assigned], [y], "Mul")
    stream = nnhal.compile(load(w.file([x], [y])), devices="reference").stream()
    assert [stream(np.ones(2, "f4"))[0] for _ in range(3)] == [1, 4, 9]


def test_two_variables_may_change_places():
    """Each is assigned what lies in the other: neither is the other's own to give away."""
    w = Writer()
    x, y = w.tensor([2]), w.tensor([2])
    w.operator("CALL_ONCE", [], [], "CallOnce", initSubgraphIndex=1)
    handles = [w.variable(name) for name in "ab"]
    values = [w.read(handle, [2]) for handle in handles]
    for handle, value in zip(handles, values[::-1], strict=True):
        w.assign(handle, value)
    w.operator("ADD", [values[0], x], [y], "Add")
    w.ends([x], [y])
    w.subgraph()
    for name, first in (("a", [1, 2]), ("b", [30, 40])):
        w.assign(w.variable(name), w.tensor([2], "f4", first))
    stream = nnhal.compile(load(w.file([], [])), devices="reference").stream()
    assert [stream(np.zeros(2, "f4")).tolist() for _ in range(3)] == [[1, 2], [30, 40], [1, 2]]


@pytest.mark.parametrize("written", [True, False])
def test_what_lay_in_a_variable_may_be_an_output(written):
    w = Writer()
    x, y, handle = w.tensor([2]), w.tensor([2]), w.variable()
    old = w.read(handle, [2])
    w.operator("ADD", [old, x], [y], "Add")
    if written:
        w.assign(handle, y)
    stream = nnhal.compile(load(w.file([x], [old, y])), devices="reference").stream()
    found = [[float(result[0]) for result in stream(np.ones(2, "f4"))] for _ in range(3)]
    assert found == ([[0, 1], [1, 2], [2, 3]] if written else [[0, 1]] * 3)


@pytest.mark.parametrize("given", [False, True])
def test_a_state_may_be_an_output_that_an_operator_wrote_or_an_input(given):
    w = Writer()
    x, state, y = w.tensor([2]), w.tensor([2], isVariable=True), w.tensor([2])
    if not given:
        w.operator("ABS", [x], [state], "Abs")
    w.operator("NEG", [state], [y], "Neg")
    model = load(w.file([x, state] if given else [x], [state, y]))
    xs = [np.float32([-1, 2])] * len(model.main.inputs)
    kept, turned = nnhal.compile(model, devices="reference")(*xs)
    assert kept.tolist() == ([-1, 2] if given else [1, 2]) and (kept == -turned).all()


@pytest.mark.parametrize(("dims", "wanted"), [([1], ["NEG"]), ([], ["RESHAPE", "NEG"])])
def test_what_was_assigned_is_copied_where_it_is_read_with_another_rank(dims, wanted):
    w = Writer()
    x, z, handle = w.tensor([1]), w.tensor(dims), w.variable()
    w.assign(handle, x)
    w.operator("NEG", [w.read(handle, dims)], [z], "Neg")
    model = load(w.file([x], [z]))
    assert [OperationType(o.type).name for o in model.main.operations] == wanted
    found = nnhal.compile(model, devices="reference")(np.float32([3]))
    assert found.shape == tuple(dims) and found.item() == -3


def test_a_variable_that_is_never_read_is_no_state_and_one_behind_it_may_be_a_number():
    w = Writer()
    x, y = w.tensor([]), w.tensor([])
    unread, total = w.variable("a"), w.variable("b")
    w.assign(unread, x)
    w.operator("ADD", [w.read(total, []), x], [y], "Add")
    w.assign(total, y)
    model = load(w.file([x], [y]))
    assert len(model.states) == 1
    stream = nnhal.compile(model, devices="reference").stream()
    assert [stream(np.float32(2)).tolist() for _ in range(3)] == [2, 4, 6]


def test_a_variable_whose_shape_is_not_known_when_it_is_read_is_refused():
    w = Writer()
    x, y, handle = w.tensor([2]), w.tensor([2]), w.variable()
    w.operator("ADD", [w.read(handle, [1], shapeSignature=[-1]), x], [y], "Add")
    w.assign(handle, y)
    refused(w.file([x], [y]), "READ_VARIABLE #1: its shape is known only at execution")


@pytest.mark.parametrize("number", [2, 3])
def test_a_basic_lstm_does_not_give_its_scratch_tensors_away(number):
    w = Writer()
    x, last, cell = w.tensor([1, 3]), *(w.tensor([1, 8], isVariable=True) for _ in range(2))
    outs = [w.tensor([1, n]) for n in (8, 8, 11, 32)]
    w.operator("LSTM", [x, last, weights(w, 32, 11), weights(w, 32), cell], outs, "LSTM", **BASIC)
    y = w.tensor([1, 11 if number == 2 else 32])
    w.operator("NEG", [outs[number]], [y])
    refused(w.file([x], [outs[0], y]), "LSTM #0: has readers of its scratch tensors")


def test_a_first_value_that_is_computed_is_refused():
    w = Writer()
    w.operator("CALL_ONCE", [], [], "CallOnce", initSubgraphIndex=1)
    w.only("NEG", [tensor([2])], [tensor([2])])
    w.subgraph()
    handle, value, other = w.variable(), w.tensor([2], "f4", [1, 2]), w.tensor([2])
    w.operator("EXP", [value], [other])
    w.assign(handle, other)
    refused(w.file([], []), "ASSIGN_VARIABLE #2 of subgraph 1: the first value of 'v' is computed")


# ---------------------------------------------------------------------------------------------------------- control flow


def choice(w: Writer, then: int, otherwise: int, *, flag: list[bool] | None = None) -> None:
    """Make an IF between two subgraphs the latest subgraph. flag: a condition that is constant."""
    given = [tensor([1], "b1", flag), tensor([2])]
    w.only("IF", given, [tensor([2])], "If", thenSubgraphIndex=then, elseSubgraphIndex=otherwise)


def branches() -> bytes:
    w = Writer()
    choice(w, 1, 2)
    w.subgraph()
    w.only("NEG", [tensor([2])], [tensor([2])])
    w.subgraph()
    x = w.tensor([2])
    return w.file([x], [x])


@pytest.mark.parametrize("flag", [True, False])
def test_if_runs_one_of_two_subgraphs(flag):
    inputs = np.array([flag]), np.array([1, 2], "f4")
    result = nnhal.compile(load(branches()), devices="reference")(*inputs)
    assert result.tolist() == litert(branches(), *inputs)[0].tolist()


def loop(body: str, shape: Sequence[int] = (1,)) -> bytes:
    """While n < 10: n = n + 1, x = body(x)."""
    w, count = Writer(), tensor([1], "i4")
    given = [count, tensor(shape)]
    w.only("WHILE", given, given, "While", condSubgraphIndex=1, bodySubgraphIndex=2)
    w.subgraph()
    n, x, limit, go = w.tensor([1], "i4"), w.tensor(shape), w.tensor([], "i4", 10), w.tensor([1], "b1")
    w.operator("LESS", [n, limit], [go])
    w.ends([n, x], [go])
    w.subgraph()
    n, x, one = w.tensor([1], "i4"), w.tensor(shape), w.tensor([], "i4", 1)
    more, y = w.tensor([1], "i4"), w.tensor(shape)
    w.operator("ADD", [n, one], [more], "Add")
    w.operator(body, [x, x], [y], body.title(), **({"axis": 0} if body == "CONCATENATION" else {}))
    return w.file([n, x], [more, y])


def test_while_runs_until_its_condition_fails():
    inputs = np.array([7], "i4"), np.array([1.5], "f4")
    count, result = nnhal.compile(load(loop("ADD")), devices="reference")(*inputs)
    assert count.tolist() == [10] and result.tolist() == litert(loop("ADD"), *inputs)[1].tolist() == [12]


def test_a_loop_that_changes_a_shape_leaves_it_open():
    model = load(loop("CONCATENATION"))
    compiled = nnhal.compile(model, devices="reference")
    assert compiled.outputs[1].shape == (None,)
    assert compiled(np.array([7], "i4"), np.array([1.5], "f4"))[1].shape == (8,)


def test_a_subgraph_that_calls_itself_is_refused():
    w = Writer()
    choice(w, 1, 1)
    w.subgraph()
    choice(w, 1, 1, flag=[True])
    malformed(w.bytes(), "IF #0 of subgraph 1: subgraph 1 refers to itself")


def test_what_a_branch_cannot_express_is_listed_with_its_subgraph():
    w = Writer()
    choice(w, 1, 1)
    w.subgraph()
    w.only("BITCAST", [tensor([2])], [tensor([2])])
    with pytest.raises(nnhal.UnsupportedModel) as caught:
        load(w.bytes())
    assert str(caught.value).endswith(
        "NNAPI: BITCAST #0 of subgraph 1: reads the bits of a number as another type, which no operation of NNAPI does"
    )


def test_the_basic_lstm_gives_what_litert_gives_at_every_step():
    random, size, units = np.random.default_rng(5), 3, 8
    w = Writer()
    x, last, cell = w.tensor([1, size]), *(w.tensor([1, units], isVariable=True) for _ in range(2))
    matrix = w.tensor([4 * units, size + units], "f4", random.normal(size=(4 * units, size + units)))
    offsets = w.tensor([4 * units], "f4", random.normal(size=4 * units))
    outs = [w.tensor([1, n]) for n in (units, units, size + units, 4 * units)]
    w.operator("LSTM", [x, last, matrix, offsets, cell], outs, "LSTM", **BASIC)
    w.ends([x], [outs[0]])
    given = random.normal(size=(1, size)).astype("f4")
    session = nnhal.compile(load(w.bytes()), devices="reference").stream()
    for calls in (1, 2, 3):
        (expected,) = litert(w.bytes(), given, calls=calls)
        np.testing.assert_allclose(session(given), expected, atol=1e-5)


def byte_lstm(*, kept: bool) -> bytes:
    """The basic kernel on 8 bits; kept: its states are variable tensors."""
    random, size, units = np.random.default_rng(5), 3, 8
    w = Writer()
    byte = {"kind": "u1", "scale": 1 / 128, "zero": 128}
    x, last = w.tensor([1, size], **byte), w.tensor([1, units], isVariable=kept, **byte)
    weights = random.integers(60, 200, (4 * units, size + units))
    matrix = w.tensor(weights.shape, "u1", weights, scale=0.02, zero=120)
    offsets = w.tensor([4 * units], "i4", random.integers(-500, 500, 4 * units), scale=0.02 / 128)
    cell = w.tensor([1, units], "i2", scale=1 / 2048, isVariable=kept)
    outs = [w.tensor([1, units], **byte), w.tensor([1, units], "i2", scale=1 / 2048)]
    outs += [w.tensor([1, size + units], **byte), w.tensor([1, 4 * units], "i2", scale=1 / 4096)]
    w.operator("LSTM", [x, last, matrix, offsets, cell], outs, "LSTM", **BASIC)
    return w.file([x] if kept else [x, last, cell], outs[:2])


def test_the_basic_lstm_of_eight_bits_gives_what_litert_gives():
    random = np.random.default_rng(5)
    given = [random.integers(0, 256, (1, n)).astype("u1") for n in (3, 8)]
    given.append(random.integers(-4000, 4000, (1, 8)).astype("i2"))
    expected = litert(byte_lstm(kept=False), *given)
    actual = nnhal.compile(load(byte_lstm(kept=False)), devices="reference")(*given)
    for mine, theirs in zip(actual, expected, strict=True):
        assert np.abs(mine.astype("i4") - theirs).max() <= 1


def test_variable_tensors_of_uint8_start_at_a_stored_0_as_in_litert():
    model, x = load(byte_lstm(kept=True)), np.full((1, 3), 200, "u1")
    assert sorted(np.unique(state.initial).tolist() for state in model.states) == [[0], [0]]
    stream = nnhal.compile(model, devices="reference").stream()
    for calls in (1, 2, 3):
        for mine, theirs in zip(stream(x), litert(byte_lstm(kept=True), x, calls=calls), strict=True):
            assert np.abs(mine.astype("i4") - theirs).max() <= 1


def nested(depth: int) -> bytes:
    """IF within IF, the last of `depth` with a NEG."""
    w = Writer()
    for number in range(1, depth + 1):
        choice(w, number, number, flag=[True])
        w.subgraph()
    w.only("NEG", [tensor([2])], [tensor([2])])
    return w.bytes()


def test_subgraphs_may_be_64_deep_with_the_main_one():
    assert nnhal.validate(load(nested(63)))
    for depth in (64, 400):
        malformed(nested(depth), "IF #0 of subgraph 63: subgraphs are nested deeper than 64")


def looped(operator: str, condition: str = "LESS", **changed: int) -> bytes:
    """WHILE over one number, whose body and condition are an operator each."""
    w, number = Writer(), tensor([1])
    graphs = {"condSubgraphIndex": changed.get("cond", 1), "bodySubgraphIndex": changed.get("body", 2)}
    w.only("WHILE", [number], [number], "While", **graphs)
    w.subgraph()
    w.only(condition, [number, tensor([1], "f4", [10])], [tensor([1], "b1")])
    w.subgraph()
    x, y = w.tensor([1]), w.tensor([1])
    w.operator(operator, [x, x] if operator == "ADD" else [x], [y], "Add" if operator == "ADD" else "")
    return w.file([x], [y])


def test_a_loop_whose_body_or_condition_is_refused_is_no_reason_of_its_own():
    assert nnhal.compile(load(looped("ADD")), devices="reference")(np.array([3], "f4")).tolist() == [12]
    for content, name, place in (
        (looped("BITCAST"), "BITCAST", "#0 of subgraph 2"),
        (looped("ADD", "MyOwnTest"), "custom operation MyOwnTest", "#0 of subgraph 1"),
    ):
        with pytest.raises(nnhal.UnsupportedModel) as caught:
            load(content)
        assert [(found, where) for found, where, _ in caught.value.refused] == [(name, place)]


@pytest.mark.parametrize(
    ("given", "says"), [(3, "refers to subgraph 3, must be 0 to 2"), (-1, "refers to subgraph -1")]
)
def test_a_loop_of_a_subgraph_that_is_not_there_is_a_bad_file(given, says):
    for which in ("cond", "body"):
        malformed(looped("ADD", **{which: given}), f"WHILE #0: {says}")


def called(flag_shape: list[int], kinds: tuple[str, str] = ("f4", "f4"), count: int = 1) -> bytes:
    """IF whose subgraph takes `count` tensors of the second type, and is given one of the first."""
    w = Writer()
    given, result = (tensor([2], kind) for kind in kinds)
    w.only("IF", [tensor(flag_shape, "b1"), given], [result], "If", thenSubgraphIndex=1, elseSubgraphIndex=1)
    w.subgraph()
    xs, y = [w.tensor([2], kinds[1]) for _ in range(count)], w.tensor([2], kinds[1])
    w.operator("ABS", xs[:1], [y], "Abs")
    return w.file(xs, [y])


def test_a_call_gives_what_its_subgraph_takes():
    assert load(called([1])).main.operations and load(called([])).main.operations
    for content, says in (
        (called([2]), r"the condition has shape \(2,\), must be one element"),
        (called([1], ("i4", "f4")), "input 0 of subgraph 1 is FLOAT32, must be INT32"),
        (called([1], count=2), "gives subgraph 1 1 inputs, must be 2"),
    ):
        refused(content, f"IF #0: {says}")


def test_a_loop_gives_as_many_results_as_it_is_given():
    w, number = Writer(), tensor([1])
    w.only("WHILE", [number], [number, number], "While", condSubgraphIndex=1, bodySubgraphIndex=1)
    w.subgraph()
    x = w.tensor([1])
    refused(w.file([x], [x]), "WHILE #0: must have as many outputs as inputs")


def test_a_loop_whose_body_gives_more_than_it_takes_is_refused():
    w, number = Writer(), tensor([1])
    w.only("WHILE", [number], [number], "While", condSubgraphIndex=1, bodySubgraphIndex=2)
    w.subgraph()
    w.ends([w.tensor([1])], [w.tensor([1], "b1", [False])])
    w.subgraph()
    x, y = w.tensor([1]), w.tensor([1])
    w.operator("ABS", [x], [y], "Abs")
    refused(w.file([x], [x, y]), "WHILE #0: the body has 2 outputs, must have 1")


def variables(**second: object) -> bytes:
    """A variable that is read and assigned x + itself, then assigned a second tensor of its own type or another."""
    w = Writer()
    x, total, other = w.tensor([2]), w.tensor([2]), w.tensor(**{"shape": [2], **second})
    handle = w.variable()
    w.operator("ADD", [x, w.read(handle, [2])], [total], "Add")
    w.assign(handle, total)
    w.assign(handle, other)
    return w.file([x, other], [total])


def test_a_variable_is_what_it_was_assigned_last():
    with nnhal.compile(load(variables()), devices="reference") as compiled:
        session = compiled.stream()
        first = session(np.array([1, 2], "f4"), np.array([10, 20], "f4"))
        second = session(np.array([1, 2], "f4"), np.array([0, 0], "f4"))
    assert [np.asarray(r).tolist() for r in (first, second)] == [[1, 2], [11, 22]]


@pytest.mark.parametrize("second", [{"shape": [3]}, {"kind": "i4"}])
def test_a_variable_keeps_its_type_and_shape(second):
    refused(variables(**second), r"ASSIGN_VARIABLE #4: assigns .*, must have type, shape and scale of 'v'")


def test_what_is_no_handle_is_no_variable():
    with pytest.raises(nnhal.UnsupportedModel, match="READ_VARIABLE #0: input 0 is not a handle of a variable"):
        load(one_operator("READ_VARIABLE", [tensor([2])], [tensor([2])], "ReadVariable"))


def read_as(*kinds: tuple[str, float | None]) -> bytes:
    """A variable read as several types, each assigned what was read."""
    w = Writer()
    handle, results = w.tensor([1], "resource"), []
    w.operator("VAR_HANDLE", [], [handle], "VarHandle", container="a", sharedName="b")
    for kind, scale in kinds:
        results.append(w.tensor([2], kind, scale=scale))
        w.operator("READ_VARIABLE", [handle], [results[-1]], "ReadVariable")
    return w.file([], results)


@pytest.mark.parametrize("second", [("i4", None), ("f2", None)])
def test_a_variable_is_read_as_the_type_it_has(second):
    says = "READ_VARIABLE #2: reads variable 'a/b' with another type or scale than it was assigned"
    refused(read_as(("f4", None), second), says)


@pytest.mark.parametrize(
    ("size", "limit"),
    [
        (1 << 28, "bytes of constants that are not in the file"),  # such a small file may not have it
        ((1 << 28) + 1, "must have at most 1073741824 bytes"),
    ],
)
def test_a_state_of_more_than_a_gibibyte_is_refused(size, limit):
    w = Writer()
    y, handle = w.tensor([size]), w.variable()
    w.operator("ABS", [w.read(handle, [size])], [y], "Abs")
    w.assign(handle, y)
    with pytest.raises((nnhal.UnsupportedModel, nnhal.BadFile), match=limit):
        load(w.file([], [y]))


def test_eight_bits_without_a_scale_stand_for_themselves():
    w = Writer()
    x, y = w.tensor([2], "i1"), w.tensor([2], "i1")
    w.operator("MAXIMUM", [x, x], [y])
    model = load(w.file([x], [y]))
    assert {(o.scale, o.zero_point) for o in model.main.operands} == {(1.0, 0)}
