"""The null device: takes all, computes nothing, gives zeros."""

import numpy as np

import nnhal
from nnhal.base.codes import OperandType
from nnhal.drivers import null
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.memory import MemoryUse
from nnhal.hal.request import UNLIMITED
from tests import requests
from tests.models import make_model


def two_outputs(shape: tuple[int | None, ...]) -> nnhal.Model:
    return make_model(lambda b, x, q: [b.relu(x), b.dequantize(q)], shape, ((4,), "TENSOR_QUANT8_ASYMM", 0.5, 3))


def test_it_takes_every_operation_and_states_the_time_of_the_reference():
    device = null.device()
    assert [tuple(v) for v in device.supports(two_outputs((2, 3)))] == [(True, ""), (True, "")]
    assert device.capabilities().of(OperandType.TENSOR_FLOAT32) == (1.0, 1.0)
    assert (device.name, device.version) == ("null", "1")


def test_it_gives_zeros_every_time_and_holds_no_more_than_them():
    prepared = checked_prepared(null.device(), two_outputs((2, 3)), Hints())
    for given in (1, 2):
        found = requests.run(prepared, [np.full((2, 3), given, np.float32), np.full(4, 7, np.uint8)]).results
        assert [(x.shape, x.dtype, x.any()) for x in found] == [((2, 3), np.float32, False), ((4,), np.float32, False)]
    assert prepared.memory() == MemoryUse(0, 0, 4 * (2 * 3 + 4), 0)
    assert (
        prepared.request([np.zeros((2, 3), np.float32), np.zeros(4, np.uint8)]).execute(prepared.run, UNLIMITED) is None
    )


def test_a_dimension_that_is_not_known_before_is_1():
    prepared = checked_prepared(null.device(), two_outputs((None, 3)), Hints())
    first, _ = requests.run(prepared, [np.ones((5, 3), np.float32), np.zeros(4, np.uint8)]).results
    assert first.tolist() == [[0, 0, 0]]
