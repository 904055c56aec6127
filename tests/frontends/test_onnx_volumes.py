"""Layers of three dimensions, as ONNX Runtime computes them."""

import numpy as np
import pytest

from tests.frontends.cases import refused
from tests.frontends.onnx_models import check, model, node

RNG = np.random.default_rng(3)
DEVICES = "reference", "litert", "onnxruntime", "openvino"
CASES = {}


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


X = {"x": real(2, 4, 6, 7, 8)}


def case(name, made, constants=None, inputs=X):
    CASES[name] = made, constants or {}, inputs


for groups, units in ((1, 5), (2, 6), (4, 8)):
    for dilations in ([1, 1, 1], [2, 1, 2]):
        how = {"group": groups, "strides": [2, 1, 2], "dilations": dilations, "pads": [1, 0, 1, 2, 1, 0]}
        constants = {"w": real(units, 4 // groups, 3, 2, 3), "b": real(units)}
        case(f"Conv {groups} {dilations}", node("Conv", "x w b", **how), constants)
for mode in ("SAME_UPPER", "SAME_LOWER"):
    same = node("Conv", "x w", auto_pad=mode, strides=[2, 1, 2])
    case(f"Conv {mode}", same, {"w": real(3, 4, 3, 2, 2)})
case("Conv of one", node("Conv", "x w"), {"w": real(3, 4, 1, 1, 1)})
case("Conv of computed weights", node("Conv", "x w"), inputs=X | {"w": real(3, 4, 2, 2, 2)})
for strides in ([2, 2, 2], [3, 2, 1]):
    how = {"strides": strides, "pads": [0, 1, 0, 0, 1, 0], "output_padding": [0, 1, 0]}
    constants = {"w": real(4, 3, strides[0], 2, 3), "b": real(3)}
    case(f"ConvTranspose {strides}", node("ConvTranspose", "x w b", **how), constants)
case("ConvTranspose without bias", node("ConvTranspose", "x w", strides=[2, 2, 2]), {"w": real(4, 3, 2, 2, 2)})
WINDOWS = {
    "apart": {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]},
    "padded": {"kernel_shape": [3, 2, 3], "strides": [1, 2, 2], "pads": [1, 0, 1, 1, 1, 1]},
    "flat": {"kernel_shape": [1, 3, 3], "strides": [1, 2, 1], "pads": [0, 1, 1, 0, 1, 1]},
    "ceil": {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2], "pads": [1, 0, 1, 0, 1, 1], "ceil_mode": 1},
}
for mode in ("SAME_UPPER", "SAME_LOWER"):
    for up in (0, 1):
        how = {"kernel_shape": [3, 2, 3], "strides": [2, 1, 3], "auto_pad": mode, "ceil_mode": up}
        WINDOWS[f"{mode} {up}"] = how
for name, how in WINDOWS.items():
    case(f"MaxPool {name}", node("MaxPool", "x", **how))
    for counted in (0, 1):
        case(f"AveragePool {name} {counted}", node("AveragePool", "x", count_include_pad=counted, **how))
statistics = {"s": real(4), "b": real(4), "m": real(4), "v": np.abs(real(4))}
case("BatchNormalization", node("BatchNormalization", "x s b m v", epsilon=0.01), statistics)
case("InstanceNormalization", node("InstanceNormalization", "x s b"), {"s": real(4), "b": real(4)})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_a_layer_of_three_dimensions_is_that_of_onnx_runtime(name, device):
    layer, constants, inputs = CASES[name]
    check(model([layer], inputs, constants), inputs, device=device)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (node("ConvTranspose", "x w", strides=[1, 2, 2]), "has overlapping planes or groups, must have neither"),
        (node("ConvTranspose", "x w", auto_pad="SAME_UPPER"), "has auto_pad SAME_UPPER, must have pads"),
        (node("MaxPool", "x", kernel_shape=[2, 2]), "has a window of other than 3 dimensions"),
        (node("BatchNormalization", "x s s s s", "y m v"), "is in training mode"),
    ],
)
def test_a_layer_that_pictures_cannot_express_is_refused_by_name(layer, why):
    refused(model([layer], X, {"w": real(4, 4, 2, 2, 2), "s": real(4)}, infer=False), f"{layer.op_type} #0: .*{why}")
