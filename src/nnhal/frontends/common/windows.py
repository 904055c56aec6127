"""The windows of layers: their sizes, strides, dilations and padding."""

from collections.abc import Sequence
from typing import NamedTuple

Pads = list[tuple[int, int]]


class LayerWindow(NamedTuple):
    """A window of some dimensions: size, stride, dilation, and padding before and behind for each.

    Its arguments are those of a layer of two dimensions, height and width.
    """

    size: list[int]
    stride: list[int]
    dilation: list[int]
    pads: Pads

    @property
    def reach(self) -> list[int]:
        """The elements that it covers, including those it skips."""
        return [(n - 1) * d + 1 for n, d in zip(self.size, self.dilation, strict=True)]

    def places(self, sizes: Sequence[int]) -> list[int]:
        """Return how many windows fit into each dimension of these sizes, with padding."""
        rows = zip(sizes, self.pads, self.reach, self.stride, strict=True)
        return [(size + sum(pad) - reach) // stride + 1 for size, pad, reach, stride in rows]

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
