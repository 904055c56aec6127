"""Weights that a package ships, as the weights of a net of `nets`, with the ranges of every value.

A checkpoint of PyTorch lists tensors in the order of the layers: the weights of a convolution, then scale, shift, mean
and variance of the batch normalisation after it, which is folded into the convolution; at the end weights and biases of
the classifier. A batch normalisation also has the mean and spread of each channel over the pictures of the training.
The ranges follow from that: no picture calibrates them, and those of a test stay unseen.
"""

import pickle  # noqa: TID251 (the format of a checkpoint)
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from statistics import NormalDist
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnhal import zoo
from nnhal.zoo.nets import Doubles, Floats, Layer, Net, NetValue, coarse

EPSILON = 1e-3  # of the batch normalisations
REACH = 8.0  # ranges end this many standard deviations from the mean: the score of the class shown is as far off
QUANTILES = 64  # that a normal distribution is computed with
COUNT = 8  # bytes of a storage's number of elements


def values(describe: Callable[[], Net], weights: str) -> list[NetValue]:
    """Return the values of a net: first the input, then the output of each layer.

    Args:
        describe: Describes the net.
        weights: The checkpoint's name in the catalogue.

    Raises:
        ZooError: The checkpoint is unavailable.
    """
    with zoo.opened(weights) as file:
        return folded(describe(), tensors(file).values())


class _View(NamedTuple):
    """A tensor: its type, the storage that holds its elements, the first of them, and steps in elements."""

    type: type[np.generic]
    storage: str
    offset: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]


def _view(storage: tuple[type[np.generic], str], offset: int, shape: Any, steps: Any, *_: object) -> _View:
    return _View(*storage, offset, shape, steps)


class _Index(pickle.Unpickler):
    """Reads the index of a checkpoint. Nothing but these names is called, whatever the file has."""

    known = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _view,
        ("torch", "FloatStorage"): np.float32,
        ("torch", "LongStorage"): np.int64,
    }

    def find_class(self, module: str, name: str) -> Any:
        """As of `Unpickler`."""
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"checkpoint names {module}.{name}, must have tensors of float32 and int64")
        return self.known[module, name]

    def persistent_load(self, pid: Any) -> tuple[type[np.generic], str]:
        """As of `Unpickler`: type and name of a storage."""
        return pid[1], pid[2]


def tensors(file: BinaryIO) -> dict[str, NDArray[Any]]:
    """Return the tensors of a checkpoint by name, in order, but for the counters of batches.

    Args:
        file: A file in PyTorch's format before version 1.6: five pickles, then the storages.
    """
    _magic, _protocol, _system, views, names = (_Index(file).load() for _ in range(5))
    types = {view.storage: np.dtype(view.type) for view in views.values()}
    storages = {}
    for name in names:
        count = int.from_bytes(file.read(COUNT), "little")
        storages[name] = np.frombuffer(file.read(count * types[name].itemsize), types[name])

    def array(view: _View) -> NDArray[Any]:
        elements = storages[view.storage][view.offset :]
        return np.lib.stride_tricks.as_strided(elements, view.shape, [elements.itemsize * n for n in view.steps])

    return {name: array(view) for name, view in views.items() if not name.endswith(".num_batches_tracked")}


class _Spread(NamedTuple):
    """Mean and standard deviation of each channel over the pictures of the training."""

    mean: Doubles
    deviation: Doubles

    def range(self, layer: Layer) -> tuple[float, float]:
        """Return the lowest and highest value of a layer's output."""
        low, high = (self.mean - REACH * self.deviation).min(), (self.mean + REACH * self.deviation).max()
        limits = (0.0, 6.0) if layer.relu6 else (-np.inf, np.inf)
        return float(np.clip(coarse(low), *limits)), float(np.clip(coarse(high), *limits))

    def clipped(self) -> "_Spread":
        """Return the spread after relu6."""
        normal = np.array([NormalDist().inv_cdf((n + 0.5) / QUANTILES) for n in range(QUANTILES)])
        found = (self.mean + self.deviation * normal[:, None]).clip(0, 6)
        return _Spread(found.mean(0), found.std(0))


def folded(net: Net, given: Iterable[NDArray[Any]]) -> list[NetValue]:
    """Return the values of a net that has the tensors of a checkpoint."""
    height, width, channels = net.shape
    rest = iter(given)
    sizes: list[tuple[int, ...]] = [(1, height, width)]
    spreads = [_Spread(np.zeros(channels), np.ones(channels))]
    found = [NetValue((1, *net.shape), -127 / 128, 1.0)]  # (pixel - 127) / 128
    for layer in net.layers:
        first = layer.sources[0]
        constants, spread = None, spreads[first]
        if layer.kind in {"conv", "depthwise"}:
            constants, spread = _constants(layer, rest, spread)
        elif layer.kind == "add":
            other = spreads[layer.sources[1]]
            spread = _Spread(spread.mean + other.mean, np.hypot(spread.deviation, other.deviation))
        sizes.append(_size(layer, sizes[first]))
        found.append(NetValue((*sizes[-1], len(spread.mean)), *spread.range(layer), constants))
        spreads.append(spread.clipped() if layer.relu6 else spread)
    return found


def _size(layer: Layer, source: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a layer's output but for the channels."""
    if layer.kind == "pool":
        return (1, 1, 1)
    return source[:1] if layer.kind == "flatten" else (1, *(-(-n // layer.stride) for n in source[1:]))


def _constants(layer: Layer, rest: Iterator[NDArray[Any]], source: _Spread) -> tuple[tuple[Floats, Floats], _Spread]:
    """Return weights and biases of a convolution, and the spread of its output, by that of its input."""
    weights = next(rest).astype(np.float64)
    if weights.ndim == 2:  # the classifier, which has biases instead of a batch normalisation
        bias = next(rest).astype(np.float64)
        variance = np.square(weights) @ np.square(source.deviation)
        spread = _Spread(weights @ source.mean + bias, np.sqrt(variance))
        weights = weights[:, :, None, None]
    else:
        scale, shift, mean, variance = (next(rest).astype(np.float64) for _ in range(4))
        factor = scale / np.sqrt(variance + EPSILON)
        weights, bias = weights * factor[:, None, None, None], shift - mean * factor
        spread = _Spread(shift, np.abs(scale))
    order = (1, 2, 3, 0) if layer.kind == "depthwise" else (0, 2, 3, 1)
    return (weights.transpose(order).astype(np.float32), bias.astype(np.float32)), spread
