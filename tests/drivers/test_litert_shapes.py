"""Models of open shapes on LiteRT: what is made for one shape does not hold up another."""

import threading

import numpy as np
import pytest

import nnhal
from nnhal.drivers.litert import lowering
from tests.models import doubling, make_model

pytest.importorskip("ai_edge_litert")

LONG = 20  # seconds after which something counts as hanging


@pytest.fixture
def compiled() -> nnhal.Compiled:
    return nnhal.compile(doubling(None, name="open"), devices="litert")


def ones(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


def test_a_shape_that_takes_long_to_prepare_does_not_hold_up_the_others(compiled, monkeypatch):
    real, entered, gate = lowering.recipe_of, threading.Event(), threading.Event()

    def slow(model, *settings):
        if model.main.operands[model.main.inputs[0]].dimensions == (3,):
            entered.set()
            assert gate.wait(LONG)
        return real(model, *settings)

    monkeypatch.setattr(lowering, "recipe_of", slow)
    late = [
        compiled.submit(ones(3)) for _ in range(2)
    ]  # the second one waits for the first, and does not prepare again
    assert entered.wait(LONG)
    assert compiled(ones(5)).tolist() == [2] * 5
    gate.set()
    assert [e.result(LONG).tolist() for e in late] == [[2] * 3] * 2


def test_a_shape_that_could_not_be_prepared_is_tried_again(compiled, monkeypatch):
    real, attempts = lowering.recipe_of, []

    def broken(model, *settings):
        attempts.append(1)
        if len(attempts) == 1:
            raise MemoryError
        return real(model, *settings)

    monkeypatch.setattr(lowering, "recipe_of", broken)
    with pytest.raises(nnhal.NnhalError):
        compiled(ones(3))
    assert compiled(ones(3)).tolist() == [2] * 3 and len(attempts) == 2


GROWN = {
    "EXPAND_DIMS": lambda b, x: b.expand_dims(x, 0),
    "EXP": lambda b, x: b.exp(x),
    "PRELU": lambda b, x: b.prelu(x, np.full((1, 1, 3), 0.5, np.float32)),
    "RESHAPE": lambda b, x: b.reshape(x, (-1, 6)),
    "RESIZE_BILINEAR": lambda b, x: b.resize_bilinear(x, 4, 4),
    "SLICE": lambda b, x: b.slice(x, (0, 1, 0, 1), (-1, 1, -1, 2)),
    "SQUEEZE": lambda b, x: b.squeeze(b.slice(x, (0, 1, 0, 1), (-1, 1, -1, 2)), (1,)),
}


@pytest.mark.parametrize("name", GROWN)
def test_an_open_batch_keeps_no_operation_from_litert(name):
    model = make_model(GROWN[name], (None, 2, 2, 3), name=name)
    engine, right = (nnhal.compile(model, devices=device) for device in ("litert", "reference"))
    for batch in (1, 5):
        given = np.random.default_rng(batch).normal(size=(batch, 2, 2, 3)).astype(np.float32)
        assert engine(given).shape == right(given).shape
        np.testing.assert_allclose(engine(given), right(given), rtol=1e-5, atol=1e-6)
