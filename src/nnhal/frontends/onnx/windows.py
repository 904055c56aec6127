"""The windows of layers: their sizes, strides, dilations and padding, as the attributes of a node give them."""

from collections.abc import Sequence
from typing import NamedTuple

from nnhal.frontends.onnx.task import NodeTask

Pads = list[tuple[int, int]]


class LayerWindow(NamedTuple):
    """A window of two dimensions, or of three: size, stride, dilation, and padding before and behind for each."""

    size: list[int]
    stride: list[int]
    dilation: list[int]
    pads: Pads

    @property
    def reach(self) -> list[int]:
        """The elements that it covers, including those it skips."""
        return [(n - 1) * d + 1 for n, d in zip(self.size, self.dilation, strict=True)]

    def strides(self) -> dict[str, int]:
        """Return the strides as arguments."""
        return {"stride_w": self.stride[1], "stride_h": self.stride[0]}

    def padding(self) -> dict[str, int]:
        """Return the padding as arguments."""
        (top, bottom), (left, right) = self.pads
        return {"pad_left": left, "pad_right": right, "pad_top": top, "pad_bottom": bottom}

    def dilations(self) -> dict[str, int]:
        """Return the dilation as arguments, none if it is 1."""
        return {} if self.dilation == [1, 1] else {"dilation_w": self.dilation[1], "dilation_h": self.dilation[0]}


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
