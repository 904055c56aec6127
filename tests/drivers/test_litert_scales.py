"""Quantised values of other scales than the output's: LiteRT's driver gives the step that is nearest to the real value."""

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType
from nnhal.frontends.tflite import load
from tests.frontends.flat import Writer, litert

Q8, Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
SCALES = [(0.04823647, 230), (0.0412184, 216), (0.03624183, 213)]  # of the heads of an SSD
OUT = (0.04973677, 223)
STEPS = np.arange(256, dtype=np.uint8).reshape(1, 256)


def far(found: np.ndarray, steps: np.ndarray, given: tuple[float, int], shift: int = 0) -> float:
    """How far the steps of the output are from the exact ones, in steps."""
    scale, zero = np.float64(np.float32(given[0])), given[1] - shift
    exact = (steps.astype(np.float64) - zero) * scale / np.float64(np.float32(OUT[0])) + OUT[1] - shift
    return float(np.abs(found - np.clip(exact, 0 - shift, 255 - shift)).max())


@pytest.mark.parametrize("kind", [Q8, Q8S])
@pytest.mark.parametrize("constant", [False, True])
def test_joined_values_are_the_nearest_steps(kind, constant):
    shift = 0 if kind == Q8 else 128
    steps = (STEPS.astype(np.int16) - shift).astype(np.uint8 if kind == Q8 else np.int8)
    b = nnhal.Builder()
    scaled = [{"scale": scale, "zero_point": zero - shift} for scale, zero in SCALES]
    inputs = [b.input((1, 256), kind, **quant) for quant in scaled[: 3 - constant]]
    parts = [*inputs, b.constant(steps, kind, **scaled[2])] if constant else inputs
    model = b.finish(inputs, [b.concatenation(parts, 1, scale=OUT[0], zero_point=OUT[1] - shift)])
    found = nnhal.compile(model, devices="litert")(*[steps] * len(inputs))
    for part, given in zip(np.split(found.astype(np.float64), 3, 1), SCALES, strict=True):
        assert far(part, steps, given, shift) <= 0.5001


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_are_the_nearest_steps(name):
    b = nnhal.Builder()
    x = b.input((1, 256), Q8, scale=SCALES[0][0], zero_point=SCALES[0][1])
    y = getattr(b, name)(x, x, scale=OUT[0], zero_point=OUT[1])
    found = nnhal.compile(b.finish([x], [y]), devices="litert")(STEPS)
    assert far(found, STEPS, SCALES[0]) <= 0.5001


def one(name: str, options: str, given: list[tuple[float, int]], shape: list[int], **fields: int) -> bytes:
    w = Writer()
    xs = [w.tensor([1, 256], "u1", None, scale, zero) for scale, zero in given]
    y = w.tensor(shape, "u1", None, *OUT)
    w.operator(name, xs, [y], options, **fields)
    return w.file(xs, [y])


@pytest.mark.parametrize("count", [2, 3, 6])
def test_files_that_join_bytes_of_other_scales_give_the_bits_of_litert(count):
    content = one("CONCATENATION", "Concatenation", (SCALES * 2)[:count], [1, 256 * count], axis=1)
    found = nnhal.compile(load(content), devices="litert")(*[STEPS] * count)
    assert np.array_equal(found, litert(content, *[STEPS] * count)[0])


@pytest.mark.parametrize("given", SCALES)
def test_bytes_of_another_scale_are_the_nearest_steps_as_in_litert_without_xnnpack(given):
    content = one("QUANTIZE", "Quantize", [given], [1, 256])
    found = nnhal.compile(load(content), devices="litert")(STEPS)
    assert far(found, STEPS, given) <= 0.5001
    assert np.array_equal(found, litert(content, STEPS)[0])
