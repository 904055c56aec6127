"""The `.onnx` models of packages: each computes what ONNX Runtime does, or is refused with all that is against it."""

import numpy as np
import onnxruntime
import pytest

import nnhal
from nnhal import zoo
from nnhal.measure.onnx_inputs import inputs_of

pytestmark = pytest.mark.models

MOST = {"reference": 5e-4, "litert": 5e-4, "openvino": 5e-4, "onnxruntime": 1e-4}  # of the greatest magnitude
REFUSED = {
    "silero_vad": {"LSTM"},
}
REQUANTISED = {"captcha_read_old"}  # layers quantised over ranges found at execution: one rounding moves many steps
ALIKE = "dnsmos_personal", "dnsmos_signal"  # the graphs of dnsmos and dnsmos_background with other weights


def models():
    for name in zoo.onnx_names():
        if name not in REFUSED:
            yield pytest.param(name, marks=[pytest.mark.nightly] if name in ALIKE else [])


def test_the_catalogue_of_onnx_models_has_every_content_once():
    entries = [zoo.entry(name) for name in zoo.onnx_names()]
    assert len({e.sha256 for e in entries}) == len({e.file for e in entries}) == len(entries) == 23
    assert all(e.member.endswith(".onnx") and e.licence and e.description for e in entries)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", list(models()))
def test_a_model_computes_what_onnx_runtime_does(name):
    model = nnhal.load(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(zoo.path(name)), options, providers=["CPUExecutionProvider"])
    for device, most in MOST.items():
        with nnhal.compile(model, devices=[device, "reference"], threads=1) as compiled:
            specs = {spec.name: spec for spec in compiled.inputs}
            assert list(specs) == [each.name for each in session.get_inputs()]
            for number in range(2):
                given = inputs_of(name, specs, number)
                found = compiled(*given.values())
                for mine, theirs in zip(
                    found if isinstance(found, tuple) else (found,), session.run(None, given), strict=True
                ):
                    assert (np.shape(mine), np.asarray(mine).dtype) == (theirs.shape, theirs.dtype)
                    allowed = 0.02 if name in REQUANTISED else most
                    assert np.abs(mine - theirs).max() <= allowed * np.abs(theirs).max(), device


@pytest.mark.parametrize("rate", [16000, 8000])
def test_a_model_with_a_branch_for_each_rate_runs_at_one_that_is_fixed(rate):
    size = 576 * rate // 16000
    shapes = {"input": (1, size), "state": (2, 1, 128)}
    given = {"input": np.float32(np.sin(np.arange(size) / 9)[None]), "state": np.zeros(shapes["state"], np.float32)}
    session = onnxruntime.InferenceSession(str(zoo.path("silero_vad")), providers=["CPUExecutionProvider"])
    expected = session.run(None, {**given, "sr": np.array(rate, np.int64)})
    model = nnhal.load("silero_vad", shapes=shapes, values={"sr": rate})
    for device, most in MOST.items():
        with nnhal.compile(model, devices=[device, "reference"], threads=1) as compiled:
            for mine, theirs in zip(compiled(*given.values()), expected, strict=True):
                assert np.abs(mine - theirs).max() <= most * np.abs(theirs).max(), device


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_refused_says_all_that_is_against_it(name):
    with pytest.raises(nnhal.UnsupportedModel) as caught:
        nnhal.load(name)
    assert {operator for operator, _, _ in caught.value.refused} == REFUSED[name]
    decided = "--value NAME=N, or values={NAME: N}, leaves one branch" in str(caught.value)
    assert decided == (name == "silero_vad")
