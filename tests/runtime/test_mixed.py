"""Placement over two engines: a model that alternates between them gives what one gives."""

import numpy as np
import pytest

import nnhal
from nnhal.hal.wrappers import Limited
from nnhal.measure.peers import LiteRT
from nnhal.runtime import discovery
from nnhal.zoo import maker


def alternating() -> list[object]:
    litert = discovery.select(["litert"])[0]
    return [Limited(litert, lambda _, n: n % 2 == 0, "every other operation is left out"), "reference"]


@pytest.mark.parametrize(("name", "tolerance"), [("mobilenet_v1", 5e-4), ("mobilenet_v1_int8", 3), ("tiny_lstm", 5e-4)])
def test_a_model_that_alternates_stays_within_the_bounds_of_both(name, tolerance):
    path = maker.path(name)
    compiled = nnhal.compile(nnhal.load(path), devices=alternating())
    operations = compiled.placement.devices()
    assert operations["litert"] - operations["reference"] in (0, 1)
    assert compiled.placement.transfers >= len(compiled.placement.steps) - 1
    spec = compiled.inputs[0]
    generator = np.random.default_rng(0)
    if spec.scale:
        x = generator.integers(-128, 128, spec.shape, np.int8)
    else:
        x = generator.uniform(-1, 1, spec.shape).astype("f4")
    y, (expected,) = compiled(x), LiteRT(path, 2)([x])
    scale = 1 if spec.scale else np.abs(expected).max()
    assert np.abs(y.astype("f8") - expected.astype("f8")).max() <= tolerance * scale


def test_the_placement_says_why_each_operation_went_where():
    compiled = nnhal.compile(nnhal.load(maker.path("tiny_conv")), devices=alternating())
    reasons = [(c.device, c.reason, dict(c.others)) for c in compiled.placement]
    assert reasons[0] == (
        "litert",
        "declared 0.05x reference time, the fastest",
        {"reference": "declared 1x reference time"},
    )
    assert reasons[1] == (
        "reference",
        "the only device that supports it",
        {"litert": "every other operation is left out"},
    )
