"""Whole models on the engines that are used by name, against LiteRT run directly on the file."""

import numpy as np
import pytest

import nnhal
from nnhal import zoo
from nnhal.base.operands import quantised
from nnhal.cli.inputs import read_inputs
from nnhal.cli.pictures import InputOptions
from nnhal.measure.peers import LiteRT
from nnhal.zoo import maker

pytestmark = pytest.mark.models

FLOAT = 5e-4  # of the greatest magnitude
STEPS = 4  # end to end, between kernels each of which is within one
ENGINES = "openvino", "onnxruntime"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*zoo.names(), *maker.names()])
def test_a_model_computes_what_litert_does(name: str) -> None:
    path = maker.path(name) if name in maker.names() else zoo.path(name)
    shapes = None if name in maker.names() else zoo.entry(name).shapes or None
    try:
        model = nnhal.load(path, shapes=shapes)
    except nnhal.UnsupportedModel:
        return
    kinds = [quantised(model.main.operands[i].type) for i in model.main.outputs]
    expected = None
    for device in ENGINES:
        with nnhal.compile(model, devices=[device, "reference"], threads=1) as compiled:
            inputs = [each.array for each in read_inputs(compiled.inputs, (), 0, InputOptions())]
            if expected is None:
                direct = LiteRT(path, 1)
                direct.resize([list(x.shape) for x in inputs])
                expected = direct(inputs)
            found = compiled(*inputs)
            for mine, theirs, steps in zip(
                found if isinstance(found, tuple) else (found,), expected, kinds, strict=False
            ):
                assert np.shape(mine) == theirs.shape
                off = np.abs(np.asarray(mine, np.float64) - theirs).max()
                assert off <= (STEPS if steps else FLOAT * np.abs(theirs).max()), (device, off)
