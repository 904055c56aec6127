"""IF and WHILE: which subgraph runs on what, signatures, sizes that change, time-outs; alone and in whole models."""

import threading
import time

import numpy as np
import pytest

from nnhal.base.errors import Cancelled, InvalidModel, LoopTimeout, MissedDeadline, OperationFailed
from nnhal.base.levels import V1_3
from nnhal.base.operands import SubgraphFacts, Value
from nnhal.drivers.reference import SubgraphContext, device
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.request import Control
from nnhal.model.builder import ModelBuilder
from nnhal.ops import control
from tests import requests
from tests.ops.run import B8, F32, I32, Q8, Type, bound, known, result, run
from tests.waiting import Clock

FLAG, NUMBER = result(B8, (1,)), result(F32, (1,))
YES, NO = known(np.array([True])), known(np.array([False]))


def sub(index: int, inputs, outputs) -> Value:
    """A SUBGRAPH operand: what is known of the subgraph that it refers to."""
    return Value(Type.SUBGRAPH, data=SubgraphFacts(index, tuple(inputs), tuple(outputs)))


def calls(*functions, control: Control | None = None) -> SubgraphContext:
    """A context whose subgraphs are Python functions."""
    return SubgraphContext(lambda index, xs: list(functions[index](*xs)), control or Control())


# ------------------------------------------------------------------------------------------------------------------- IF


def branches(condition=YES, then=((NUMBER,), (NUMBER,)), other=((NUMBER,), (NUMBER,)), operands=(NUMBER,)):
    return "IF", [condition, sub(0, *then), sub(1, *other), *operands]


@pytest.mark.parametrize(("condition", "expected"), [(YES, 6.0), (NO, -5.0)])
def test_condition_chooses_the_subgraph(condition, expected):
    context = calls(lambda x: [x + 1], lambda x: [-x])
    (output,) = run(*branches(condition, operands=([5.0],)), NUMBER, context=context)
    assert output.tolist() == [expected]


def test_if_exists_since_1_3():
    assert bound(*branches()).level == V1_3


def test_shape_is_known_as_far_as_both_branches_agree():
    one, two = result(F32, (2, 3)), result(F32, (2, 4))
    assert bound(*branches(then=((NUMBER,), (one,)), other=((NUMBER,), (one,)))).shapes == [(2, 3)]
    assert bound(*branches(then=((NUMBER,), (one,)), other=((NUMBER,), (two,)))).shapes == [(2, None)]
    assert bound(*branches(then=((NUMBER,), (one,)), other=((NUMBER,), (NUMBER,)))).shapes == [None]


PAIR = result(F32, (2,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (branches(None), r"input 0 \(condition\) is omitted, must be given"),
        (branches(known(np.array([True, False]))), r"input 0 \(condition\) has dimension 0 = 2, must be 1"),
        (branches(result(B8, (None,))), r"input 0 \(condition\) has shape \[\?\], must be \[1\]"),
        (branches(operands=(NUMBER, NUMBER)), "then_model has 1 inputs, must have 2"),
        (branches(other=((NUMBER,), (NUMBER, NUMBER))), "else_model has 2 outputs, must have 1"),
        (branches(operands=(result(I32, (1,)),)), "input 0 of then_model is TENSOR_FLOAT32, must be TENSOR_INT32"),
        (branches(other=((PAIR,), (NUMBER,))), r"input 0 of else_model has shape \[2\], must be \[1\]"),
        (
            branches(other=((NUMBER,), (result(Q8, (1,), 0.5, 3),))),
            "output 0 of else_model is TENSOR_QUANT8_ASYMM, must be TENSOR_FLOAT32",
        ),
    ],
)
def test_branches_have_the_signature_of_the_operation(call, message):
    with pytest.raises(InvalidModel, match=message):
        bound(*call, NUMBER)


def test_quantisation_belongs_to_the_signature():
    inner, outer = result(Q8, (1,), 0.5, 3), result(Q8, (1,), 0.5, 4)
    with pytest.raises(InvalidModel, match=r"has scale 0.5 and zero point 3, must be 0.5 and 4"):
        bound(*branches(then=((inner,), (NUMBER,)), other=((inner,), (NUMBER,)), operands=(outer,)), NUMBER)


def test_shape_at_run_time_must_fit_the_subgraph():
    name, inputs = branches(then=((PAIR,), (PAIR,)), other=((PAIR,), (PAIR,)), operands=(result(F32),))
    assert bound(name, inputs).deferred
    inputs[3] = known([1.0, 2.0, 3.0])
    with pytest.raises(InvalidModel, match=r"input 0 of then_model has shape \[2\], must be \[3\]"):
        bound(name, inputs)


def test_result_must_fit_the_declared_output():
    unknown = result(F32, (None,))
    call = branches(then=((unknown,), (unknown,)), other=((unknown,), (unknown,)), operands=([1.0, 2.0],))
    with pytest.raises(OperationFailed, match=r"IF: the result is float32\[2\], must be float32\[3\]"):
        run(*call, result(F32, (3,)), context=calls(lambda x: [x]))


# ---------------------------------------------------------------------------------------------------------------- WHILE


def loop(operands, *, outputs=None, inner=None):
    """inner: what the subgraphs say of the operands; outputs: how many of them the body makes, all by default."""
    inner = [result(F32, (1,))] * len(operands) if inner is None else inner
    body = inner[: len(operands) if outputs is None else outputs]
    return "WHILE", [sub(0, inner, [FLAG]), sub(1, inner, body), *operands]


def test_body_runs_while_the_condition_holds():
    context = calls(lambda i, n: [i < n], lambda i, n: [i + 1])
    (output,) = run(*loop([[0.0], [5.0]], outputs=1), NUMBER, context=context)
    assert output.tolist() == [5]


def test_no_turn_gives_the_initial_value():
    (output,) = run(*loop([[7.0]]), NUMBER, context=calls(lambda x: [np.array([False])], lambda x: 1 / 0))
    assert output.tolist() == [7]


def test_state_is_carried_but_not_given_out():
    """Fibonacci: the first operand is the output, the second is state only, the third input only."""
    context = calls(lambda a, b, n: [a < n], lambda a, b, n: [b, a + b])
    (output,) = run(*loop([[1.0], [1.0], [50.0]], outputs=2), NUMBER, context=context)
    assert output.tolist() == [55]


def test_sizes_may_change_from_turn_to_turn():
    grows = result(F32, (None,))
    call = loop([[1.0]], inner=[grows])
    assert bound(*call, grows).shapes == [(None,)]
    context = calls(lambda x: [np.array([x.size < 20])], lambda x: [np.concatenate((x, x))])
    (output,) = run(*call, grows, context=context)
    assert output.shape == (32,)


def test_sizes_that_change_fit_what_the_subgraphs_state():
    grown = lambda x: [np.concatenate((x, x))]  # noqa: E731
    for inner, fine in (((1,), False), ((None,), True), (None, True)):
        call = loop([[1.0]], inner=[result(F32, inner)])
        context = calls(lambda x: [np.array([x.size < 4])], grown)
        if fine:
            assert run(*call, result(), context=context)[0].shape == (4,)
        else:
            with pytest.raises(OperationFailed, match=r"input 0 of subgraph 0 has shape \[2\], must be \[1\]"):
                run(*call, result(), context=context)


def test_an_operand_that_is_left_out_is_no_ones_to_check():
    given = []
    context = calls(lambda x, y: given.append(y) or [x])
    call = branches(then=((NUMBER, PAIR), (NUMBER,)), other=((NUMBER, PAIR), (NUMBER,)), operands=([1.0], None))
    assert run(*call, NUMBER, context=context)[0].tolist() == [1] and given == [None]


def test_size_that_does_not_change_is_known():
    assert bound(*loop([[1.0]]), result()).shapes == [(1,)]


def endless(control):
    always = lambda x: [np.array([True])]  # noqa: E731
    return run(*loop([[0.0]]), NUMBER, context=calls(always, lambda x: [x], control=control))


def test_loop_time_out_names_the_operation():
    with pytest.raises(LoopTimeout, match=r"WHILE: has run for .* ms, must end within its loop time-out of 1 ms"):
        endless(Control(loop_timeout=1_000_000))


def test_deadline_ends_a_loop():
    with pytest.raises(MissedDeadline) as caught:
        endless(Control(deadline=time.monotonic_ns() + 1_000_000))
    assert not isinstance(caught.value, LoopTimeout)


def test_cancelling_ends_a_loop():
    cancelled = threading.Event()
    timer = threading.Timer(0.01, cancelled.set)
    timer.start()
    with pytest.raises(Cancelled):
        endless(Control(cancelled=cancelled))
    timer.join()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([sub(0, [NUMBER], [FLAG]), sub(1, [NUMBER], [])], "has 2 inputs, must have 3 or more"),
        ([sub(0, [], [FLAG]), sub(1, [NUMBER], [NUMBER]), NUMBER], "condition_model has 0 inputs, must have 1"),
        ([sub(0, [NUMBER], [FLAG, FLAG]), sub(1, [NUMBER], [NUMBER]), NUMBER], "has 2 outputs, must have 1"),
        ([sub(0, [NUMBER], [NUMBER]), sub(1, [NUMBER], [NUMBER]), NUMBER], "is TENSOR_FLOAT32, must be TENSOR_BOOL8"),
        (
            [sub(0, [NUMBER], [result(B8, (None,))]), sub(1, [NUMBER], [NUMBER]), NUMBER],
            r"output 0 of condition_model has shape \[\?\], must be \[1\]",
        ),
        ([sub(0, [NUMBER], [FLAG]), sub(1, [NUMBER], []), NUMBER], "body_model has 0 outputs, must have 1 to 1"),
        ([sub(0, [NUMBER], [FLAG]), sub(1, [NUMBER], [NUMBER] * 2), NUMBER], "body_model has 2 outputs, must have 1"),
        (
            [sub(0, [NUMBER, PAIR], [FLAG]), sub(1, [NUMBER, PAIR], [NUMBER, NUMBER]), NUMBER, PAIR],
            r"output 1 of body_model has shape \[1\], must be \[2\]",
        ),
        ([sub(0, [NUMBER], [FLAG]), sub(1, [NUMBER], [NUMBER]), None], "operand 0 is omitted, must be given"),
    ],
)
def test_models_of_a_loop_fit_the_operation_and_each_other(inputs, message):
    with pytest.raises(InvalidModel, match=message):
        bound("WHILE", inputs, NUMBER)


# --------------------------------------------------------------------------------------------------------- whole models


def condition(builder: ModelBuilder, limit: float) -> int:
    """A subgraph: its only input < limit."""
    b = builder.subgraph()
    x, flag = b.operand(F32, [1]), b.operand(B8, [1])
    b.operation("LESS", [x, b.constant(F32, [limit])], [flag])
    return b.finish_subgraph([x], [flag])


def plus(builder: ModelBuilder, number: float, dims=(1,)) -> int:
    """A subgraph: its only input + number."""
    b = builder.subgraph()
    x, y = b.operand(F32, dims), b.operand(F32, dims)
    b.operation("ADD", [x, b.constant(F32, [number]), b.constant(Type.INT32, 0)], [y])
    return b.finish_subgraph([x], [y])


def execute(b: ModelBuilder, x: int, y: int, data, **control) -> np.ndarray:
    prepared = checked_prepared(device(), b.finish([x], [y]), Hints())
    return requests.run(prepared, [np.array(data, np.float32)], Control(**control)).results[0]


def refer(b: ModelBuilder, *subgraphs: int) -> list[int]:
    return [b.subgraph_operand(Type.SUBGRAPH, index) for index in subgraphs]


def test_loop_within_a_loop():
    """Inside: up to the next multiple of ten by ones; outside: once more, below 35."""
    b = ModelBuilder()
    below, step = condition(b, 10), plus(b, 1)
    body = b.subgraph()
    x, inner, y = (body.operand(F32, [1]) for _ in range(3))
    body.operation("WHILE", [*refer(body, below, step), x], [inner])
    body.operation("ADD", [inner, body.constant(F32, [10.0]), body.constant(Type.INT32, 0)], [y])
    outer = body.finish_subgraph([x], [y])
    x, y = b.operand(F32, [1]), b.operand(F32, [1])
    b.operation("WHILE", [*refer(b, condition(b, 35), outer), x], [y])
    assert execute(b, x, y, [3]).tolist() == [40]  # 3 .. 10, 20, 30, 40


class Ticking(Clock):
    """A clock that moves by a tenth of a millisecond whenever it is read."""

    def monotonic_ns(self) -> int:
        self.advance(1e-4)
        return self.ns


def test_time_out_of_an_inner_loop_ends_the_execution(monkeypatch):
    Ticking().play(monkeypatch, control)
    b = ModelBuilder()
    below, still = condition(b, 10), plus(b, 0)
    body = b.subgraph()
    x, y = body.operand(F32, [1]), body.operand(F32, [1])
    body.operation("WHILE", [*refer(body, below, still), x], [y])
    outer = body.finish_subgraph([x], [y])
    x, y = b.operand(F32, [1]), b.operand(F32, [1])
    b.operation("WHILE", [*refer(b, condition(b, 35), outer), x], [y])
    with pytest.raises(LoopTimeout, match="WHILE #0 of subgraph 2"):
        execute(b, x, y, [3], loop_timeout=2_000_000)


def test_unknown_rank_passes_through_a_branch():
    b = ModelBuilder()
    then, other = plus(b, 1, ()), plus(b, 2, ())
    x, y = b.operand(F32, []), b.operand(F32, [])
    b.operation("IF", [b.constant(B8, [False]), *refer(b, then, other), x], [y])
    assert execute(b, x, y, [[1, 2], [3, 4]]).tolist() == [[3, 4], [5, 6]]
