"""Reads the window of a layer from the attributes of its node."""

from collections.abc import Sequence

from nnhal.frontends.common.windows import LayerWindow
from nnhal.frontends.onnx.task import NodeTask


def window(t: NodeTask, kernel: Sequence[int], sizes: Sequence[int | None]) -> LayerWindow:
    """Return the window of a layer. sizes: of the input."""
    count = len(kernel)

    def per(name: str, default: int) -> list[int]:
        found = t.attr.ints(name) or [default] * count
        t.require(len(found) == count, f"{name} is {found}, must have {count} numbers")
        return found

    stride, dilation = per("strides", 1), per("dilations", 1)
    good = min([*kernel, *stride, *dilation]) >= 1
    t.require(good, f"kernel {list(kernel)}, strides {stride} and dilations {dilation} must be at least 1")
    given = t.attr.ints("pads") or [0] * 2 * count
    t.require(len(given) == 2 * count and min(given) >= 0, f"pads is {given}, must be {2 * count} numbers from 0")
    pads = list(zip(given[:count], given[count:], strict=True))
    mode = t.attr("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for n, size in enumerate(sizes):
            t.require(size is not None, f"auto_pad is {mode} for a size that is known only at execution")
            reach = (kernel[n] - 1) * dilation[n] + 1
            total = max(0, (-(-(size or 0) // stride[n]) - 1) * stride[n] + reach - (size or 0))
            small = total // 2
            pads.append((small, total - small) if mode == "SAME_UPPER" else (total - small, small))
    elif mode == "VALID":
        pads = [(0, 0)] * count
    else:
        t.require(mode in ("NOTSET", ""), f"auto_pad is {mode}, must be NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    if count == 1:
        return LayerWindow([1, kernel[0]], [1, stride[0]], [1, dilation[0]], [(0, 0), pads[0]])
    return LayerWindow(list(kernel), stride, dilation, pads)
