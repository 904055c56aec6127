"""Layers of three dimensions, as nodes on pictures: NNAPI has layers of two."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.frontends.common.windows import LayerWindow, Pads
from nnhal.frontends.common.writing import check_count
from nnhal.frontends.onnx.expanded import ExpandedNode
from nnhal.frontends.onnx.windows import window


def volume_window(t: ExpandedNode, kernel: Sequence[int]) -> LayerWindow:
    """Return a window of three dimensions."""
    t.require(len(kernel) == 3, "has a window of other than 3 dimensions")
    return window(t, kernel, t.known(t.x(0))[2:])


def flat_pads(pads: Pads) -> tuple[int, ...]:
    """Return pads in ONNX's order: all before, then all after."""
    return tuple(pad for side in zip(*pads, strict=True) for pad in side)


def convolution(t: ExpandedNode) -> None:
    """Convolve pictures: the planes that a filter covers at once become channels of one picture."""
    (batch, channels, deep, height, width), shape = t.known(t.x(0)), t.known(t.x(1))
    t.require(len(shape) == 5, f"has a filter of {len(shape)} dimensions, must have 5")
    units, inner, *kernel = shape
    w = volume_window(t, kernel)
    _, strides, dilations, pads = w
    x, (before, after) = t.input(0), pads[0]
    if before or after:
        x = t.write("Pad", x, t.constant([0, 0, before, 0, 0, 0, 0, after, 0, 0]))
    places, rows, columns = w.places((deep, height, width))
    t.require(places > 0, f"has a filter of depth {w.reach[0]}, which must fit into the padded depth")
    check_count(places * kernel[0])
    seen = np.arange(places)[:, None] * strides[0] + np.arange(kernel[0]) * dilations[0]
    planes = t.write("Transpose", t.write("Gather", x, t.constant(seen), axis=2), perm=(0, 2, 1, 3, 4, 5))
    planes = t.write("Reshape", planes, t.constant([batch * places, channels * kernel[0], height, width]))
    weights = t.write("Reshape", t.input(1), t.constant([units, inner * kernel[0], *kernel[1:]]))
    how: dict[str, Any] = {
        "group": t.attr("group", 1),
        "kernel_shape": tuple(kernel[1:]),
        "strides": tuple(strides[1:]),
    }
    how |= {"dilations": tuple(dilations[1:]), "pads": flat_pads(pads[1:])}
    made = t.write("Conv", planes, weights, *[t.input(2)] * t.given(2), **how)
    made = t.write("Reshape", made, t.constant([batch, places, units, rows, columns]))
    t.write("Transpose", made, gives=0, perm=(0, 2, 1, 3, 4))


def transposed_convolution(t: ExpandedNode) -> None:
    """Convolve pictures transposed, if no planes of the result overlap: the filter's planes become channels."""
    (batch, channels, deep, height, width), shape = t.known(t.x(0)), t.known(t.x(1))
    t.require(len(shape) == 5, f"has a filter of {len(shape)} dimensions, must have 5")
    (_, units, *kernel), groups = shape, t.attr("group", 1)
    mode = t.attr("auto_pad", "NOTSET")
    t.require(not mode.startswith("SAME"), f"of 3 dimensions has auto_pad {mode}, must have pads")
    _, strides, dilations, pads = volume_window(t, kernel)
    more = t.attr.ints("output_padding") or [0, 0, 0]
    apart = strides[0] == kernel[0] and dilations[0] == 1 and (*pads[0], more[0]) == (0, 0, 0)
    t.require(apart and groups == 1, "of 3 dimensions has overlapping planes or groups, must have neither")
    t.require(not t.attr.ints("output_shape"), "of 3 dimensions has output_shape, must have pads")
    planes = t.write("Transpose", t.input(0), perm=(0, 2, 1, 3, 4))
    planes = t.write("Reshape", planes, t.constant([batch * deep, channels, height, width]))
    weights = t.write("Reshape", t.input(1), t.constant([channels, units * kernel[0], *kernel[1:]]))
    how: dict[str, Any] = {
        "kernel_shape": tuple(kernel[1:]),
        "strides": tuple(strides[1:]),
        "dilations": tuple(dilations[1:]),
    }
    how |= {"pads": flat_pads(pads[1:]), "output_padding": tuple(more[1:])}
    made = t.write("ConvTranspose", planes, weights, **how)
    rows, columns = (
        (size - 1) * strides[n] - sum(pads[n]) + (kernel[n] - 1) * dilations[n] + 1 + more[n]
        for n, size in ((1, height), (2, width))
    )
    made = t.write("Reshape", made, t.constant([batch, deep, units, kernel[0], rows, columns]))
    made = t.write("Transpose", made, perm=(0, 2, 1, 3, 4, 5))
    bias = t.given(2)
    made = t.write(
        "Reshape", made, t.constant([batch, units, deep * kernel[0], rows, columns]), gives=None if bias else 0
    )
    if bias:
        t.write("Add", made, t.write("Reshape", t.input(2), t.constant([1, units, 1, 1, 1])), gives=0)


def pool(t: ExpandedNode) -> None:
    """Pool height and width, then depth: both are separable, the mean without padding too."""
    batch, channels, deep, height, width = t.known(t.x(0))
    kernel = t.attr.ints("kernel_shape")
    _, strides, dilations, pads = volume_window(t, kernel)
    how: dict[str, Any] = {"ceil_mode": t.attr("ceil_mode", 0), "count_include_pad": t.attr("count_include_pad", None)}

    def pooled(x: str, shape: Sequence[int], axes: slice) -> str:
        flat = t.write("Reshape", x, t.constant(shape))
        one = [1] * (axes == slice(0, 1))
        settings: dict[str, Any] = {
            "kernel_shape": (*kernel[axes], *one),
            "strides": (*strides[axes], *one),
            "dilations": (*dilations[axes], *one),
            "pads": flat_pads([*pads[axes], *[(0, 0)] * len(one)]),
        }
        return str(t.write(t.name, flat, **settings, **how))

    def size(n: int, old: int) -> int:
        room = old + sum(pads[n]) - (kernel[n] - 1) * dilations[n] - 1
        new = (-(-room // strides[n]) if how["ceil_mode"] else room // strides[n]) + 1
        return new - (how["ceil_mode"] and (new - 1) * strides[n] >= old + pads[n][0])

    rows, columns, planes = size(1, height), size(2, width), size(0, deep)
    found = pooled(t.input(0), [batch, channels * deep, height, width], slice(1, 3))
    found = pooled(found, [batch, channels, deep, rows * columns], slice(0, 1))
    check_count(math.prod((batch, channels, planes, rows, columns)))
    t.write("Reshape", found, t.constant([batch, channels, planes, rows, columns]), gives=0)


def batch_normalisation(t: ExpandedNode) -> None:
    """Normalise channels of pictures whose rows are those of all planes."""
    shape = t.known(t.x(0))
    batch, channels, deep, height, width = shape
    t.require(sum(map(bool, t.node.outputs)) == 1, "is in training mode, which NNAPI does not have")
    flat = t.write("Reshape", t.input(0), t.constant([batch, channels, deep * height, width]))
    parameters = [t.input(n) for n in range(1, 5)]
    how: dict[str, Any] = {name: t.attr(name) for name in ("epsilon", "training_mode", "spatial")}
    made = t.write("BatchNormalization", flat, *parameters, **how)
    t.write("Reshape", made, t.constant(shape), gives=0)
