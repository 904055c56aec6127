"""Descriptions of the nets that `maker` writes, and random weights with the ranges of every value.

A feed-forward net is a list of layers. Its float weights are random, then scaled and shifted per channel as a folded
batch normalisation would: nothing saturates or vanishes, and the outputs depend on the input. Random nets are chaotic:
a difference of one quantisation step grows from layer to layer. So most values lie in the linear part of relu6, and
depthwise filters have a positive mean. That keeps engines close to each other that round in different ways.

The arithmetic is double precision, and its results are rounded coarsely. So the same numpy computes the same weights on
every machine.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nnhal.base.records import Record, Struct, field

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Kind = Literal["conv", "depthwise", "dense", "pool", "add", "flatten", "softmax"]
OUT_AXIS: dict[str, int] = {"conv": 0, "depthwise": 3, "dense": 0}  # of the weights: the output channel
WIDEST = 5.0  # ranges end at most this many standard deviations from the mean
MARGIN = 1.2  # for values of other pictures


class Layer(Record, frozen=True):
    """One operation. sources: value numbers, 0 is the net's input and n the output of the n-th layer.

    channels: of the output of a "conv" or "dense". kernel: height and width, padding is SAME. offset: the standard
    deviation of the channels' biases, if the values in one channel have about 1.
    """

    kind: Kind
    sources: tuple[int, ...]
    channels: int = 0
    kernel: int = 1
    stride: int = 1
    relu6: bool = False
    offset: float = 0.3


class Net(Struct):
    """A picture (height, width, channels) with values in [-1, 1), and the layers that process it."""

    shape: tuple[int, int, int]
    layers: list[Layer] = field(default_factory=list)

    def add(self, kind: Kind, *sources: int, **parameters: Any) -> int:
        """Append a layer, by default after the last one; return the number of its value."""
        self.layers.append(Layer(kind, sources or (len(self.layers),), **parameters))
        return len(self.layers)

    def classify(self, classes: int, softmax: bool = True) -> "Net":
        """Append the tail of the mobilenets: global average, 1x1 convolution, softmax."""
        self.add("pool")
        self.add("conv", channels=classes, offset=1.6)
        self.add("flatten")
        if softmax:
            self.add("softmax")
        return self


def mobilenet_v1() -> Net:
    """Describe MobileNet v1 1.0 224: 569 million multiplications and additions."""
    net = Net((224, 224, 3))
    net.add("conv", channels=32, kernel=3, stride=2, relu6=True)
    head, tail = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)), ((1024, 2), (1024, 1))
    for channels, stride in (*head, *[(512, 1)] * 5, *tail):
        net.add("depthwise", kernel=3, stride=stride, relu6=True)
        net.add("conv", channels=channels, relu6=True)
    return net.classify(1001)


Blocks = tuple[int, int, int, int, int]  # expansion, channels, repeats, stride of the first, size of the kernel


def mobilenet_v2() -> Net:
    """Describe MobileNet v2 1.0 224: inverted residual blocks, 301 million multiplications and additions."""
    middle = (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3)
    return _inverted_residuals((1, 16, 1, 1, 3), *middle, (6, 320, 1, 1, 3)).classify(1001)


def efficientnet_lite0() -> Net:
    """Describe EfficientNet-Lite0: the blocks of MobileNet v2, more of them, some with kernels of 5x5; no softmax."""
    middle = (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5)
    return _inverted_residuals((1, 16, 1, 1, 3), *middle, (6, 320, 1, 1, 3)).classify(1000, softmax=False)


def _inverted_residuals(*blocks: Blocks) -> Net:
    """Describe a convolution, the blocks, and a convolution to 1280 channels."""
    net = Net((224, 224, 3))
    value, width = net.add("conv", channels=32, kernel=3, stride=2, relu6=True), 32
    for expand, channels, repeats, stride, kernel in blocks:
        for step in (stride, *[1] * (repeats - 1)):
            before = value
            if expand > 1:
                net.add("conv", channels=width * expand, relu6=True)
            net.add("depthwise", kernel=kernel, stride=step, relu6=True)
            value = net.add("conv", channels=channels)
            if step == 1 and channels == width:
                value = net.add("add", before, value)
            width = channels
    net.add("conv", channels=1280, relu6=True)
    return net


def tiny_conv() -> Net:
    """Describe convolution, fully connected, softmax over ten classes, on 8x8x3."""
    net = Net((8, 8, 3))
    net.add("conv", channels=8, kernel=3, relu6=True)
    net.add("dense", channels=10, offset=1.6)
    net.add("softmax")
    return net


class Recurrent(Record, frozen=True):
    """A stack of UNIDIRECTIONAL_SEQUENCE_LSTM, then one FULLY_CONNECTED for every step."""

    layers: int
    cells: int
    steps: int
    features: int
    outputs: int
    batch: int = 1
    time_major: bool = True


class NetValue(Record, frozen=True):
    """One value of a net: its shape with batch 1, its range, weights and biases of the layer that computes it.

    Weights have TFLite's layout: "conv" [out, height, width, in], "depthwise" [1, height, width, channel], "dense"
    [out, in].
    """

    shape: tuple[int, ...]
    low: float
    high: float
    constants: tuple[Floats, Floats] | None = None


def pictures(rng: np.random.Generator, shape: tuple[int, int, int]) -> Doubles:
    """Return eight pictures: noise of four grain sizes, from a pixel to half the picture, each in two contrasts."""
    height, width, channels = shape
    made = []
    for grain in (max(1, height * part // 8) for part in (0, 1, 2, 4)):
        for contrast in (1.0, 0.5):
            grains = rng.random((-(-height // grain), -(-width // grain), channels)) * 2 - 1
            base = (rng.random(channels) * 2 - 1) * (1 - contrast)
            made.append(grains.repeat(grain, 0).repeat(grain, 1)[:height, :width] * contrast + base)
    return np.stack(made)


@lru_cache(maxsize=1)  # the float, int8 and uint8 versions of a net are usually made one after another
def values(describe: Callable[[], Net], seed: int) -> list[NetValue]:
    """Return the values of a net: first the input, then the output of each layer. A mobilenet takes some seconds."""
    net, rng = describe(), np.random.default_rng(seed)
    last_use = {source: n for n, layer in enumerate(net.layers, 1) for source in layer.sources}
    live: dict[int, Doubles] = {0: pictures(rng, net.shape)}
    found = [NetValue((1, *net.shape), -1.0, 127 / 128)]
    for n, layer in enumerate(net.layers, 1):
        inputs = [live[source] for source in layer.sources]
        constants = None
        if layer.kind in OUT_AXIS:
            constants, live[n] = _fitted(layer, inputs[0], rng)
        else:
            live[n] = _plain(layer, inputs)
        found.append(NetValue((1, *live[n].shape[1:]), *_range(layer, live[n]), constants))
        live = {m: value for m, value in live.items() if m == n or last_use[m] > n}
    return found


def _fitted(layer: Layer, x: Doubles, rng: np.random.Generator) -> tuple[tuple[Floats, Floats], Doubles]:
    """Return random weights and biases that give every channel the wanted spread, and the layer's output."""
    k, width = layer.kernel, x.shape[-1]
    shape = {
        "conv": (layer.channels, k, k, width),
        "depthwise": (1, k, k, width),
        "dense": (layer.channels, math.prod(x.shape[1:])),
    }[layer.kind]
    weights = rng.standard_normal(shape, np.float32)
    if layer.kind == "depthwise":
        weights += np.float32(0.5)
    raw = _weighted(layer, x, weights.astype(np.float64))
    axes, channels = tuple(range(raw.ndim - 1)), raw.shape[-1]
    variance = raw.var(axes)
    # halfway to the mean, so that no channel is amplified too much
    deviation = np.sqrt((variance + variance.mean()) / 2)
    wanted = (1.5 if layer.relu6 else 1.0) * (0.5 + rng.random(channels))
    centre = 1 + 2 * rng.random(channels) if layer.relu6 else layer.offset * rng.standard_normal(channels)
    scale = coarse(wanted / deviation)
    shift = coarse(centre - raw.mean(axes) * scale)
    across = [-1 if axis == OUT_AXIS[layer.kind] else 1 for axis in range(weights.ndim)]
    constants = weights * scale.astype(np.float32).reshape(across), shift.astype(np.float32)
    result = raw * scale + shift
    return constants, result.clip(0, 6) if layer.relu6 else result


def _range(layer: Layer, value: Doubles) -> tuple[float, float]:
    """Return the lowest and highest value without outliers: a single value should not reduce the resolution of all."""
    mean, reach = value.mean(), WIDEST * value.std()
    low, high = max(MARGIN * value.min(), mean - reach), min(MARGIN * value.max(), mean + reach)
    return float(coarse(low)), min(float(coarse(high)), 6.0 if layer.relu6 else math.inf)


def coarse(values: Any) -> Any:
    """Round to 12 bits: the last bits of sums differ between machines and must have no effect."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 4096), exponent - 12)


def _weighted(layer: Layer, x: Doubles, weights: Doubles) -> Doubles:
    """Return the layer's sums of products, without bias and activation."""
    if layer.kind == "dense":
        return x.reshape(len(x), -1) @ weights.T
    total = np.zeros(())
    for i, j, part in _taps(x, layer):
        total = total + (part * weights[0, i, j] if layer.kind == "depthwise" else part @ weights[:, i, j].T)
    return total


def _taps(x: Doubles, layer: Layer) -> Iterator[tuple[int, int, Doubles]]:
    """Yield for each row and column of the kernel the slice of the padded input that it meets."""
    k, stride = layer.kernel, layer.stride
    size = [-(-n // stride) for n in x.shape[1:3]]
    reach = [(out - 1) * stride + 1 for out in size]
    missing = [max(covered + k - 1 - n, 0) for covered, n in zip(reach, x.shape[1:3], strict=True)]
    padded = np.pad(x, [(0, 0), *((m // 2, m - m // 2) for m in missing), (0, 0)])
    for i in range(k):
        for j in range(k):
            yield i, j, padded[:, i : i + reach[0] : stride, j : j + reach[1] : stride]


def _plain(layer: Layer, inputs: list[Doubles]) -> Doubles:
    x = inputs[0]
    match layer.kind:
        case "pool":
            return x.mean((1, 2), keepdims=True)
        case "add":
            return x + inputs[1]
        case "flatten":
            return x.reshape(len(x), -1)
    powers = np.exp(x - x.max(-1, keepdims=True))  # softmax
    return powers / powers.sum(-1, keepdims=True)
