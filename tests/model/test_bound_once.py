"""An operation is bound once: by whoever built the model. Validation takes that where the operands are the very same."""

from dataclasses import replace

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.base.errors import InvalidModel
from nnhal.drivers.litert.lowering import lower
from nnhal.frontends.tflite import load
from nnhal.model import validate as validation
from nnhal.model.layouts import with_layout
from nnhal.model.validate import validate
from tests.models import make_model


@pytest.fixture
def again(monkeypatch):
    """The labels of the operations that validation binds itself."""
    labels = []

    def bind(record, inputs, outputs, label):
        labels.append(label)
        return real(record, inputs, outputs, label)

    real = validation.bind
    monkeypatch.setattr(validation, "bind", bind)
    return labels


def built(shape=(1, 300), weights=None):
    b = nnhal.Builder()
    x = b.input(shape)
    y = b.fully_connected(b.relu(x), np.ones((2, 300), np.float32) if weights is None else weights, np.zeros(2, "f4"))
    return b.finish([x], [y])


def test_an_imported_model_is_bound_by_the_importer_alone(again):
    model = load(lower(built()).content)
    again.clear()
    nnhal.compile(model, devices="reference")
    assert again == []
    load(lower(built()).content)
    assert again == ["FULLY_CONNECTED #1"]  # by `built`: its weights are a copy of the caller's array


def test_a_model_that_is_changed_is_bound_again(again):
    model = make_model(lambda b, x: b.reshape(b.relu(x), np.array([2, 12], np.int32)), (4, 6))
    assert again == []
    main = model.main
    wider = tuple(replace(o, dimensions=(8, 6)) if o.dimensions == (4, 6) else o for o in main.operands)
    with pytest.raises(InvalidModel, match=r"RESHAPE #1"):
        nnhal.compile(replace(model, main=replace(main, operands=wider)))
    assert again == ["RELU #0", "RESHAPE #1"]


def test_of_a_model_in_another_layout_only_what_moved_is_bound_again(again):
    b = nnhal.Builder()
    x, m = b.input((1, 4, 4, 3)), b.input((2, 3))
    y = b.max_pool_2d(b.relu(x), padding="same", filter_size=2, stride=1)
    model = b.finish([x, m], [y, b.transpose(b.neg(m), np.array([1, 0], np.int32))])
    found = with_layout(model, "nchw")
    names = [OperationType(o.type).name for o in found.model.main.operations]
    assert names == ["RELU", "TRANSPOSE", "MAX_POOL_2D", "TRANSPOSE", "NEG", "TRANSPOSE"]
    assert found.inserted == {1, 3} and found.serves == (0, 1, 1, 1, 2, 3)
    again.clear()
    validate(found.model)
    assert again == ["TRANSPOSE #1", "MAX_POOL_2D #2", "TRANSPOSE #3"]


def test_what_a_caller_does_to_a_small_array_later_changes_nothing():
    b = nnhal.Builder()
    x, order = b.input((2, 3, 4)), np.array([2, 0, 1], np.int32)
    y = b.transpose(x, order)
    order[:] = 0, 1, 2
    compiled = nnhal.compile(b.finish([x], [y]), devices="reference")
    given = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(compiled(given), given.transpose(2, 0, 1))


def test_what_a_caller_does_to_an_array_after_it_became_a_constant_changes_nothing():
    b = nnhal.Builder()
    x = b.input((100,))
    indices = np.arange(50, dtype=np.int32)
    held = b.constant(indices)  # a copy
    indices[:] = 1000
    y = b.gather(x, axis=0, indices=held)
    given = np.arange(100, dtype=np.float32)
    assert np.array_equal(nnhal.compile(b.finish([x], [y]), devices="reference")(given), given[:50])
