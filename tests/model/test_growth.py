"""What is done once for a model costs as much for each operation of a large one as of a small one.

Costs are counted in bytecodes of nnhal's own functions, and of comparisons of operand numbers, so that a search for one
within a tuple is seen as well; no other load on the machine changes them.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType as Type
from nnhal.base.levels import V1_1, V1_3
from nnhal.bench.graphs import GRAPHS, chain
from nnhal.drivers.litert.lowering import consider, lower
from nnhal.drivers.null import Null
from nnhal.drivers.reference import Interpreter
from nnhal.hal.device import Capabilities, OperationGroup, Performance, Verdict
from nnhal.hal.lowering import refusals
from nnhal.hal.wrappers import Limited
from nnhal.model import validate as rules
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.model.layouts import with_layout
from nnhal.model.parts import extract_part
from nnhal.model.validate import validate
from nnhal.runtime.partition import Offer, partition
from tests import requests

SMALL, LARGE = 60, 240
MOST = 4.2  # for four times the operations: 4, and less by what is paid once
OWN = str(Path(nnhal.__file__).parent)


class Number(int):
    """The number of an operand, whose comparisons are counted."""

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    __hash__ = int.__hash__


COUNTED = Number.__eq__.__code__


def bytecodes(call: Callable[[], Any]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "call" and frame.f_code is not COUNTED and not frame.f_code.co_filename.startswith(OWN):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 tells of opcodes only where some frame asked before
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def grows_with_the_model(prepare: Callable[[int], Callable[[], Any]]) -> None:
    """`prepare(n)` gives what is counted, on a model of n operations."""
    _, small, large = (bytecodes(prepare(n)) for n in (SMALL, SMALL, LARGE))  # Python 3.13 misses some the first time
    assert large <= MOST * small, f"{small} bytecodes for {SMALL} operations, {large} for {LARGE}"


graphs = pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)


def counted(model: Model) -> Model:
    """The same model, of which nothing is known yet, with numbers whose comparisons are counted."""

    def numbers(indices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(Number, indices))

    main = model.main
    operations = tuple(replace(o, inputs=numbers(o.inputs), outputs=numbers(o.outputs)) for o in main.operations)
    main = replace(main, operations=operations, inputs=numbers(main.inputs), outputs=numbers(main.outputs))
    return replace(model, main=main)


@pytest.mark.sampled(3)
@graphs
def test_building_a_model_of_many_operations(make):
    grows_with_the_model(lambda n: lambda: make(n))


@graphs
def test_validating_a_model_of_many_operations(make):
    def prepare(n):
        model = counted(make(n))
        return lambda: validate(model)

    grows_with_the_model(prepare)


def islands(n: int) -> Model:
    """Operations with a layout among some without: in the other layout half of them are transposed."""
    b = nnhal.Builder()
    x = first = b.input((1, 4, 4, 4))
    for _ in range(n // 4):
        x = b.max_pool_2d(x, padding="same", filter_size=1, stride=1)
        x = b.add(b.relu(x), first)
        x = b.reshape(x, np.array([1, 4, 4, 4], np.int32))
    return b.finish([first], [x])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", [*GRAPHS.values(), islands], ids=[*GRAPHS, "islands"])
def test_laying_out_a_model_of_many_operations(make):
    def prepare(n):
        model = counted(make(n))
        validate(model)
        return lambda: with_layout(model, "nchw").served()

    grows_with_the_model(prepare)


def test_a_model_in_which_nothing_is_wrong_is_not_described(monkeypatch):
    model, described = chain(3), []
    monkeypatch.setattr(rules, "describe", lambda *of: described.append(of) or "")
    rules.validate(replace(model))
    assert not described


@pytest.mark.sampled(3)
@graphs
def test_loading_a_file_of_many_operations(make):
    def prepare(n):
        content = lower(make(n)).content
        return lambda: nnhal.load(content)

    grows_with_the_model(prepare)


@graphs
def test_partitioning_a_model_of_many_operations(make):
    def prepare(n):
        model = counted(make(n))
        verdicts = [Verdict(place % 2 == 0) for place in range(n)], [Verdict(place % 2 == 1) for place in range(n)]
        offers = [
            Offer(name, V1_3, Capabilities.uniform(1.0), v) for name, v in zip(("even", "odd"), verdicts, strict=True)
        ]
        validate(model)
        return lambda: partition(model, offers)

    grows_with_the_model(prepare)


@pytest.mark.sampled(3)
@graphs
def test_partitioning_a_model_of_which_devices_run_groups_as_one(make):
    def prepare(n):
        model = counted(make(n))
        verdicts = [Verdict(True)] * n, [Verdict(False)] * n
        groups = [], [OperationGroup(range(at, at + 3), Performance(0.5), 2) for at in range(0, n - 3, 5)]
        offers = [
            Offer(name, V1_3, Capabilities.uniform(1.0), v, groups=g)
            for name, v, g in zip(("all", "some"), verdicts, groups, strict=True)
        ]
        validate(model)
        return lambda: partition(model, offers)

    grows_with_the_model(prepare)


@graphs
def test_cutting_a_model_into_many_parts(make):
    def prepare(n):
        model = counted(make(n))
        validate(model)
        return lambda: [extract_part(model, range(first, first + 4)) for first in range(0, n, 4)]

    grows_with_the_model(prepare)


@graphs
def test_cutting_one_large_part(make):
    def prepare(n):
        model = counted(make(n))
        validate(model)
        return lambda: extract_part(model, range(n - 1))

    grows_with_the_model(prepare)


@graphs
def test_lowering_a_model_of_many_operations_for_litert(make):
    def prepare(n):
        model = counted(make(n))
        validate(model)
        return lambda: lower(model)

    grows_with_the_model(prepare)


@graphs
def test_running_many_operations_on_the_reference(make):
    def prepare(n):
        model = make(n)
        inputs = [np.ones(4, np.float32) for _ in model.main.inputs]
        prepared = Interpreter(model)
        return lambda: requests.run(prepared, inputs)

    grows_with_the_model(prepare)


@graphs
def test_calling_a_compiled_model_of_many_operations(make):
    def prepare(n):
        model = make(n)
        compiled = nnhal.compile(model, devices="litert")
        inputs = [np.ones(4, np.float32) for _ in model.main.inputs]
        compiled(*inputs)
        return lambda: compiled(*inputs)

    grows_with_the_model(prepare)


@pytest.mark.sampled(3)
@graphs
def test_compiling_a_model_in_many_steps(make):
    half = Limited(Null(), lambda model, place: place // 4 % 2 == 0, "every other four")

    def prepare(n):
        model = counted(make(n))
        return lambda: nnhal.compile(model, devices=[half, "reference"])

    grows_with_the_model(prepare)


def test_a_tensor_cast_to_its_own_type_many_times_is_lowered_for_litert():
    def prepare(n):
        b = nnhal.Builder()
        x = b.input((4,))
        y = b.relu(x)
        for _ in range(n):
            y = b.cast(y, out_type="TENSOR_FLOAT32")
        model = counted(b.finish([x], [y]))
        validate(model)
        return lambda: consider(model)

    grows_with_the_model(prepare)


def test_many_operations_with_states_are_lowered_for_litert():
    def prepare(n):
        b = nnhal.Builder()
        x, weights, bias = b.input((1, 1, 2)), np.ones((2, 2), np.float32), np.zeros(2, np.float32)
        states = [b.input((1, 2)) for _ in range(n)]
        ends = [b.unidirectional_sequence_rnn(x, weights, weights, bias, state, "tanh", 0) for state in states]
        model = counted(b.finish([x, *states], ends))
        assert all(verdict.ok for verdict in consider(model).verdicts)
        return lambda: consider(model)

    grows_with_the_model(prepare)


def test_unknown_shapes_that_reach_from_the_last_operation_to_the_first_are_refused_below_level_1_2():
    def prepare(n):
        b = ModelBuilder()
        x, paddings = b.operand(Type.TENSOR_FLOAT32, (4,)), b.operand(Type.TENSOR_INT32, (1, 2))
        y = [b.operand(Type.TENSOR_FLOAT32, (0,)) for _ in range(n + 1)]
        b.operation("PAD", [x, paddings], y[:1])
        for place in range(n):
            b.operation("RELU", y[place : place + 1], y[place + 1 : place + 2])
        model = counted(b.finish([x, paddings], y[-1:]))
        assert all(refusals(model, V1_1))
        return lambda: refusals(model, V1_1)

    grows_with_the_model(prepare)
