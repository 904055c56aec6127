"""RANDOM_MULTINOMIAL: frequencies, seeds, impossible classes."""

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel, OperationFailed
from nnhal.base.levels import V1_2
from tests.ops.run import F16, F32, I32, bound, result, run, value

LOGITS = np.log([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-30]]).astype(np.float32)


def draw(logits=LOGITS, count=20000, seeds=(37, 42)):
    return run("RANDOM_MULTINOMIAL", [logits, count, list(seeds)], result(I32))[0]


def test_classes_are_drawn_with_their_probabilities():
    shares = [np.bincount(row, minlength=3) / row.size for row in draw()]
    np.testing.assert_allclose(shares, np.exp(LOGITS), atol=0.02)


def test_log_probabilities_need_not_be_normalised():
    shift = np.float32([[80], [-80]])
    assert (draw(LOGITS + shift) == draw()).mean() > 0.99


def test_equal_seeds_give_equal_samples():
    assert (draw() == draw()).all()
    assert (draw() != draw(seeds=(37, 43))).any()
    assert (draw() != draw(seeds=(-37, 42))).any()


def test_two_zero_seeds_give_others_each_time():
    assert (draw(seeds=(0, 0)) != draw(seeds=(0, 0))).any()


def test_rows_are_independent():
    first, second = draw(np.zeros((2, 2), np.float32))
    assert 0.4 < (first == second).mean() < 0.6


def test_what_is_not_finite_is_never_drawn():
    samples = draw(np.float32([[-np.inf, 0, np.nan, 0, np.inf]]))
    assert set(np.unique(samples)) == {1, 3}


def test_half_precision_logits():
    (samples,) = run("RANDOM_MULTINOMIAL", [value(F16, LOGITS), 8, [1, 2]], result(I32))
    assert samples.shape == (2, 8) and samples.dtype == np.int32


@pytest.mark.parametrize(("shape", "count"), [((0, 3), 4), ((2, 3), 0), ((2, 0), 0)])
def test_nothing_to_draw_gives_no_samples(shape, count):
    assert draw(np.zeros(shape, np.float32), count).shape == (shape[0], count)


def test_row_without_a_possible_class_is_an_error():
    with pytest.raises(OperationFailed, match="input has a row without a finite value"):
        draw(np.full((1, 2), -np.inf, np.float32))


def test_shape_and_level():
    a = bound("RANDOM_MULTINOMIAL", [result(F32, (None, 3)), 10, [1, 2]], result(I32))
    assert (a.shapes, a.level) == ([(None, 10)], V1_2)


@pytest.mark.parametrize(
    ("count", "seeds", "message"),
    [(-1, [1, 2], r"input 1 \(sample_count\) = -1, must be at least 0"), (3, [1, 2, 3], r"dimension 0 = 3, must be 2")],
)
def test_arguments_must_fit(count, seeds, message):
    with pytest.raises(InvalidModel, match=message):
        bound("RANDOM_MULTINOMIAL", [LOGITS, count, seeds], result(I32))
