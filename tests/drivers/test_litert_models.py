"""Models of several operations, shared tensors, open shapes and many elements on the litert device, by hand."""

import numpy as np
import pytest

import nnhal
from nnhal import Builder
from nnhal.drivers import litert
from nnhal.drivers.litert import engine, lowering
from nnhal.drivers.litert.own_kernels import kernel_difference
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Hints
from nnhal.hal.wrappers import Limited
from tests.models import make_model

F32, I32 = "TENSOR_FLOAT32", "TENSOR_INT32"
Q8, Q8S, SYMM = "TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED", "TENSOR_QUANT8_SYMM"
X = np.float32([0, 1, 2, 3])


def compiled(b, inputs, *outputs):
    return nnhal.compile(b.finish(inputs, outputs), devices="litert", fallback="forbid", threads=1)


def refused(b, inputs, *outputs):
    with pytest.raises(nnhal.UnsupportedModel) as error:
        compiled(b, inputs, *outputs)
    return str(error.value)


def test_a_model_without_inputs_runs():
    b = Builder()
    y = b.dequantize(b.constant(np.int8([1, 2, -3]), SYMM, 0.5))
    assert compiled(b, [], y)().tolist() == [0.5, 1, -1.5]


@pytest.mark.parametrize("shape", [(None,), (None, None)])
def test_an_input_of_open_dimensions_is_not_one_left_out(shape):
    b = Builder()
    x = b.input(shape)
    given = -X.reshape((4, 1)[: len(shape)])
    np.testing.assert_array_equal(compiled(b, [x], b.abs(x))(given), -given)


def test_what_litert_cannot_take_for_shapes_seen_at_execution_is_computed_all_the_same():
    b = Builder()
    x = b.input((None, 1))
    at = {name: np.int32(numbers) for name, numbers in (("begin", [2, 0]), ("end", [5, 1]), ("strides", [1, 1]))}
    run = compiled(b, [x], b.strided_slice(x, **at, begin_mask=0, end_mask=0, shrink_mask=0))
    assert run(X.reshape(4, 1)).tolist() == [[2], [3]]
    assert run(X[:2].reshape(2, 1)).shape == (0, 1)
    assert run(X.reshape(4, 1)).tolist() == [[2], [3]]


@pytest.mark.parametrize(("type", "stored"), [(Q8, np.uint8), (Q8S, np.int8)])
def test_sums_of_many_integers_are_right_up_to_32_bits_and_refused_beyond(type, stored):
    greatest = np.iinfo(stored).max
    for count, fits in ((8_421_504, True), (8_421_505, False)):  # times 255 is 2**31 - 1 at most, and more
        b = Builder()
        x = b.input((1, count), type, 0.5, 3)
        y = b.mean(x, np.int32([1]), 1)
        if fits:
            assert compiled(b, [x], y)(np.full((1, count), greatest, stored)).tolist() == [[greatest]]
        else:
            assert "a sum has 8421505 integers of up to 255, must fit in LiteRT's 32 bits" in refused(b, [x], y)


def test_squares_of_a_long_vector_are_refused_beyond_32_bits():
    b = Builder()
    x = b.input((1, 33_100), Q8, 0.1, 0)
    assert "a sum has 33100 integers of up to 65025, must fit in LiteRT's 32 bits" in refused(
        b, [x], b.l2_normalization(x)
    )


def test_signatures_longer_than_litert_has_are_refused():
    b = Builder()
    x, w = b.input((2, 3)), b.input((2,))
    y = b.lsh_projection(np.arange(66, dtype=np.float32).reshape(2, 33), x, w, "dense")
    assert "the signatures have 33 bits, must have at most 32" in refused(b, [x, w], y)


# ------------------------------------------------------------------------------------------------------ lowered once


def test_a_whole_model_is_lowered_once_and_to_the_same_bytes(monkeypatch):
    b = Builder()
    x = b.input((1, 8, 8, 3))
    weights, bias = b.constant(np.ones((4, 3, 3, 3), np.float32)), b.constant(np.zeros(4, np.float32))
    y = b.softmax(b.reshape(b.conv_2d(x, weights, bias, padding="same", stride=2), (1, 64)), 1.0)
    model, made, anew = b.finish([x], [y]), [], []
    monkeypatch.setattr(engine, "_team", lambda recipe, team=engine._team: made.append(recipe) or team(recipe))
    lower = lowering.lower
    monkeypatch.setattr(lowering, "lower", lambda *a, **k: anew.append(1) or lower(*a, **k))
    nnhal.compile(model, devices="litert").close()
    assert not anew and made[0].lowered.content == lower(model).content
    with_floor = b.finish([x], [b.floor(y)])
    half = Limited(litert.device(), lambda m, n: n < len(m.main.operations) - 1)
    nnhal.compile(with_floor, devices=[half, "reference"]).close()
    assert len(anew) == 1


def test_what_was_lowered_for_other_options_is_not_taken(monkeypatch):
    b = Builder()
    x = b.input((2, 4))
    w = b.dequantize(b.constant(np.ones((3, 4), np.int8), SYMM, 0.5))
    model = b.finish([x], [b.fully_connected(x, w, b.constant(np.zeros(3, np.float32)))])
    device, anew, lower = litert.device(), [], lowering.lower
    assert not kernel_difference()  # which lowers models of its own, once
    monkeypatch.setattr(lowering, "lower", lambda *a, **k: anew.append(k) or lower(*a, **k))
    ways = {"dynamic_range": False}, {"dynamic_range": True}, {"numerics": "exact"}
    for asked in ways:
        for given in ways:
            claims = consider_support(device, model, Hints(options=asked))
            device.prepare(model, claims.hints(Hints(options=given))).close()
    made = [(how["dynamic_range"], how["forms"].exact) for how in anew]
    assert made == [(True, False), (False, True), (False, False), (False, True), (False, False), (True, False)]


def test_an_unknown_option_is_told_before_anything_is_placed():
    model = make_model(lambda b, x: b.floor(x), (2,))
    with pytest.raises(nnhal.InvalidArgument, match="option 'xnpack' is unknown"):
        nnhal.compile(model, devices="litert", driver_options={"litert": {"xnpack": True}})
