"""What each way to execute asks of a driver, and what it does not let pass."""

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.errors import ContractBroken, OperationFailed
from nnhal.conformance.execution_paths import WAYS
from nnhal.drivers.reference import Reference
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.request import Control
from nnhal.hal.wrappers import Wrapper
from nnhal.model.builder import ModelBuilder
from nnhal.runtime import discovery
from tests.models import make_model


class Running(Reference):
    """Its prepared models run by what `around` makes of their `run`."""

    def __init__(self, around):
        super().__init__()
        self.around = around

    def prepare(self, model, hints):
        made = super().prepare(model, hints)
        made.run = self.around(made.run)
        return made


def doubling(around=lambda run: run):
    return checked_prepared(Running(around), make_model(lambda b, x: b.add(x, x), (2,)), Hints())


def request(prepared):
    return prepared.request([np.float32([1, 2])], [np.full(2, np.nan, np.float32)])


@pytest.mark.parametrize(("way", "runs"), [("plain", 1), ("burst", 2), ("fenced", 1), ("memory", 1), ("callback", 1)])
def test_every_way_executes_as_often_as_it_says_and_gives_the_results(way, runs):
    seen = []

    def noting(inner):
        def run(given, control):
            seen.append(given)
            return inner(given, control)

        return run

    prepared = doubling(noting)
    asked = request(prepared)
    WAYS[way](discovery.cpu(), prepared, asked, Control())
    assert asked.results[0].tolist() == [2, 4]
    assert len(seen) == runs


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_the_execution_escapes_from_every_way(way):
    def run(given, control):
        raise OperationFailed("no")

    prepared = doubling(lambda _: run)
    with pytest.raises(OperationFailed, match="no"):
        WAYS[way](discovery.cpu(), prepared, request(prepared), Control())


def test_a_second_callback_is_an_error():
    prepared = doubling()

    def execute(given, control, notify):
        given.execute(prepared.run, control)
        notify(None, None)
        notify(None, None)

    prepared.execute = execute
    with pytest.raises(ContractBroken, match="came 2 times, must come once"):
        WAYS["callback"](discovery.cpu(), prepared, request(prepared), Control())


def test_a_fenced_execution_is_given_a_fence_to_wait_for():
    prepared, waited = doubling(), []
    inner = prepared.execute_fenced

    def execute_fenced(given, control, wait_for=(), after=None):
        waited.extend(wait_for)
        return inner(given, control, wait_for, after)

    prepared.execute_fenced = execute_fenced
    WAYS["fenced"](discovery.cpu(), prepared, request(prepared), Control())
    assert len(waited) == 1


class Counting(Wrapper):
    roles = ()

    def allocate(self, desc, roles):
        self.roles += tuple((role.index, role.output) for role in roles)
        return super().allocate(desc, roles)


def test_no_memory_is_allocated_for_parameters_and_for_what_is_empty():
    for size, roles in ((2, ((0, False), (1, False), (0, True))), (0, ())):
        b = ModelBuilder()
        x, y = (b.operand(OperandType.TENSOR_FLOAT32, (size,)) for _ in range(2))
        activation, out = b.operand(OperandType.INT32, ()), b.operand(OperandType.TENSOR_FLOAT32, (size,))
        b.operation("ADD", [x, y, activation], [out])
        device, ones = Counting(discovery.cpu()), np.ones(size, np.float32)
        prepared = checked_prepared(device, b.finish([x, y, activation], [out]), Hints())
        for rooms, taken in ((np.empty(size, np.float32), roles), (None, roles[:2])):
            device.roles = ()
            asked = prepared.request([ones, -ones, np.int32(1)], [rooms])
            WAYS["memory"](device, prepared, asked, Control())
            assert asked.results[0].tolist() == [0] * size and device.roles == taken


def test_memory_of_inputs_and_outputs_is_allocated_by_the_driver():
    device, prepared = Counting(discovery.cpu()), doubling()
    WAYS["memory"](device, prepared, request(prepared), Control())
    assert device.roles == ((0, False), (0, True))
