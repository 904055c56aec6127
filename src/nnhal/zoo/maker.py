"""The project's own models: `.tflite` files written from the descriptions in `nets`.

Their weights are random, with fixed seeds, or those that a package ships (`trained`).

Quantised files follow TFLite's quantisation specification, and also NNAPI's: int8 activations with a zero point and
symmetric weights, per output channel in convolutions; or all uint8, one scale and zero point per tensor. Biases are
int32 with scale input * weights and zero point 0, softmax has scale 1/256, average and reshape keep the quantisation of
their input. The same versions of numpy and flatbuffers produce the same bytes.
"""

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nnhal.base.records import Record
from nnhal.zoo import Progress, ZooError, cache, entry, folder
from nnhal.zoo import path as fetched
from nnhal.zoo.nets import (
    OUT_AXIS,
    Floats,
    Layer,
    Net,
    NetValue,
    Recurrent,
    efficientnet_lite0,
    mobilenet_v1,
    mobilenet_v2,
    tiny_conv,
    values,
)

WEIGHTS = "efficientnet_lite0_weights"  # in the catalogue of packages
VERSION = 1  # increase it when a model's bytes change: cached files of other versions are ignored
PLACE = Path("made", str(VERSION))  # in the cache folder
DIGEST = 64  # hexadecimal digits
NO_TENSOR = -1  # an omitted input
BIASES = 2.0**30  # greatest bias, in steps of its scale
SAME, VALID = 0, 1
NO_ACTIVATION, RELU6, TANH = 0, 3, 4
CODES: dict[str, tuple[str, str, int]] = {  # operator, its options, its version for int8 (for other types it is 1)
    "conv": ("CONV_2D", "Conv2DOptions", 3),
    "depthwise": ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", 3),
    "dense": ("FULLY_CONNECTED", "FullyConnectedOptions", 4),
    "pool": ("AVERAGE_POOL_2D", "Pool2DOptions", 2),
    "add": ("ADD", "AddOptions", 2),
    "flatten": ("RESHAPE", "ReshapeOptions", 1),
    "softmax": ("SOFTMAX", "SoftmaxOptions", 2),
    "lstm": ("UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTMOptions", 1),
}


class AffineQuant(Record, frozen=True):
    """real = scale * (stored - zero), with one scale, or one for each index along `axis`."""

    scale: Floats
    zero: int = 0
    axis: int = 0

    def stored(self, real: Floats, type: Any) -> NDArray[Any]:
        """Return real values in an integer type, saturated."""
        across = [-1 if axis == self.axis else 1 for axis in range(real.ndim)]
        steps = np.round(real / self.scale.astype(np.float64).reshape(across)) + self.zero
        return steps.clip(np.iinfo(type).min, np.iinfo(type).max).astype(type)


Constant = tuple[str, Any, AffineQuant | None, NDArray[Any]]  # name, type, quantisation, data


class Scheme(Record, frozen=True):
    """The storage of values and weights: a numpy type, and for integers whether weights have zero point 0."""

    type: Any
    symmetric: bool = False

    def input(self, value: NetValue) -> AffineQuant | None:
        """Return the quantisation of a net's input, None for float."""
        return None if self.type is np.float32 else self._ranged(value.low, value.high)

    def output(self, layer: Layer, value: NetValue, source: AffineQuant | None) -> AffineQuant | None:
        """Return the quantisation of a layer's output, by that of its first source."""
        if source is None or layer.kind in {"pool", "flatten"}:
            return source
        if layer.kind == "softmax":
            return AffineQuant(np.array([1 / 256], np.float32), int(np.iinfo(self.type).min))
        return self._ranged(value.low, value.high)

    def constants(self, layer: Layer, value: NetValue, source: AffineQuant | None) -> list[Constant]:
        """Return a layer's weights and biases, if it has any."""
        if value.constants is None:
            return []
        weights, bias = value.constants
        if source is None:
            return [("weights", np.float32, None, weights), ("bias", np.float32, None, bias)]
        fine = self._weights(layer, weights, np.abs(bias) / (source.scale * np.float32(BIASES)))
        sums = AffineQuant(source.scale * fine.scale)
        return [
            ("weights", self.type, fine, fine.stored(weights, self.type)),
            ("bias", np.int32, sums, sums.stored(bias, np.int32)),
        ]

    def _weights(self, layer: Layer, weights: Floats, least: Floats) -> AffineQuant:
        """Return the quantisation of weights. least: the smallest scales that the biases of the channels allow."""
        if not self.symmetric:
            return self._ranged(float(weights.min()), float(weights.max()))
        axis = OUT_AXIS[layer.kind]
        # One scale for FULLY_CONNECTED: NNAPI has none per channel there.
        others = None if layer.kind == "dense" else tuple(n for n in range(weights.ndim) if n != axis)
        scale = np.atleast_1d(np.abs(weights).max(others) / np.float32(127))
        if others is not None:  # a channel whose weights are 0, or nearly, computes its bias alone
            scale = np.maximum(scale, np.maximum(least, np.finfo(np.float32).tiny))
        return AffineQuant(scale, 0, axis)

    def _ranged(self, low: float, high: float) -> AffineQuant:
        """Return one scale and zero point for a range, which is extended to include 0."""
        low, high, least = min(low, 0.0), max(high, 0.0), np.iinfo(self.type).min
        scale = np.float32((high - low) / 255)
        zero = least + np.clip(np.round(-low / scale), 0, 255)
        return AffineQuant(np.array([scale]), int(zero))


SCHEMES = {"": Scheme(np.float32), "_int8": Scheme(np.int8, symmetric=True), "_uint8": Scheme(np.uint8)}


def _libraries() -> tuple[Any, Any]:
    try:
        import flatbuffers
        from ai_edge_litert import schema_py_generated as schema  # noqa: TID251 (the file format, no engine)
    except ImportError as error:
        what = f"maker: cannot write .tflite files: {error}"
        raise ZooError(f"{what}; ai-edge-litert must be installed: pip install 'nnhal[litert]'") from error
    return flatbuffers, schema


class _File:
    """Collects the tensors and operations of a model; tensors are identified by their numbers."""

    def __init__(self) -> None:
        self.flatbuffers, self.schema = _libraries()

        class Aligned(self.schema.BufferT):  # type: ignore[name-defined, misc]
            """A buffer whose bytes start at a multiple of 16 in the file, as engines that map it need."""

            def Pack(self, builder: Any) -> Any:  # noqa: N802
                builder.Prep(16, len(self.data))
                return super().Pack(builder)

        self.aligned, self.buffers = Aligned, [self.schema.BufferT()]  # buffer 0 is empty by definition
        self.tensors: list[Any] = []
        self.operations: list[Any] = []
        self.codes: dict[tuple[str, int], int] = {}

    def tensor(self, name: str, shape: tuple[int, ...], type: Any = np.float32, **fields: Any) -> int:
        """Add a tensor. fields: quant, data (a constant's value), and those of the schema."""
        quant, data = fields.pop("quant", None), fields.pop("data", None)
        if data is not None:
            self.buffers.append(self.aligned())
            self.buffers[-1].data = np.frombuffer(data.astype(type).tobytes(), np.uint8)
            fields["buffer"] = len(self.buffers) - 1
        if quant is not None:
            zeros = np.full(len(quant.scale), quant.zero, np.int64)
            axis = quant.axis if len(zeros) > 1 else 0
            fields["quantization"] = self._record(
                "QuantizationParameters", scale=quant.scale, zeroPoint=zeros, quantizedDimension=axis
            )
        fields["type"] = getattr(self.schema.TensorType, np.dtype(type).name.upper())
        self.tensors.append(self._record("Tensor", name=name, shape=np.array(shape, np.int32), **fields))
        return len(self.tensors) - 1

    def operation(self, kind: str, inputs: list[int], output: int, type: Any, options: dict[str, Any]) -> int:
        """Add an operation on values of a type; return its output."""
        builtin, record, version = CODES[kind]
        code = (builtin, version if type is np.int8 else 1)
        operation = self._record(
            "Operator",
            opcodeIndex=self.codes.setdefault(code, len(self.codes)),
            inputs=np.array(inputs, np.int32),
            outputs=np.array([output], np.int32),
            builtinOptionsType=getattr(self.schema.BuiltinOptions, record),
            builtinOptions=self._record(record, **options),
        )
        self.operations.append(operation)
        return output

    def finish(self, inputs: list[int], output: int) -> bytes:
        """Return the bytes of the file."""
        ends = {"inputs": np.array(inputs, np.int32), "outputs": np.array([output], np.int32)}
        graph = self._record("SubGraph", name="main", tensors=self.tensors, operators=self.operations, **ends)
        codes = []
        for name, version in self.codes:
            code = getattr(self.schema.BuiltinOperator, name)
            fields = {"builtinCode": code, "deprecatedBuiltinCode": code, "version": version}
            codes.append(self._record("OperatorCode", **fields))
        what = {"version": 3, "description": f"made by nnhal, version {VERSION}"}
        model = self._record("Model", operatorCodes=codes, subgraphs=[graph], buffers=self.buffers, **what)
        builder = self.flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _record(self, kind: str, /, **fields: Any) -> Any:
        made = getattr(self.schema, kind + "T")()
        for field, value in fields.items():
            setattr(made, field, value)
        return made


Facts = Callable[[Callable[[], Net]], list[NetValue]]  # the values of a net, by its description


def _feed_forward(describe: Callable[[], Net], known: Facts, scheme: Scheme, dynamic: bool = False) -> bytes:
    """Write a net in a scheme. dynamic: the batch size stays open, by shape signatures that begin with -1."""
    file, facts = _File(), known(describe)
    quants = [scheme.input(facts[0])]

    def tensor(name: str, n: int) -> int:
        shape = facts[n].shape
        open_batch = {"shapeSignature": np.array([-1, *shape[1:]], np.int32)} if dynamic else {}
        return file.tensor(name, shape, scheme.type, quant=quants[n], **open_batch)

    ids = [tensor("input", 0)]
    for n, layer in enumerate(describe().layers, 1):
        name, source = f"{layer.kind}_{n}", layer.sources[0]
        quants.append(scheme.output(layer, facts[n], quants[source]))
        constants = scheme.constants(layer, facts[n], quants[source])
        if layer.kind == "flatten":
            constants.append(("shape", np.int32, None, np.array(facts[n].shape)))
        inputs = [ids[s] for s in layer.sources]
        for what, type, quant, data in constants:
            inputs.append(file.tensor(f"{name}/{what}", data.shape, type, quant=quant, data=data))
        options = _options(layer, facts[source].shape, facts[n].shape)
        ids.append(file.operation(layer.kind, inputs, tensor(name, n), scheme.type, options))
    return file.finish([ids[0]], ids[-1])


def _options(layer: Layer, source: tuple[int, ...], shape: tuple[int, ...]) -> dict[str, Any]:
    activation = {"fusedActivationFunction": RELU6 if layer.relu6 else NO_ACTIVATION}
    strides = {"strideW": layer.stride, "strideH": layer.stride}
    match layer.kind:
        case "conv":
            return {"padding": SAME, **strides, **activation}
        case "depthwise":
            return {"padding": SAME, **strides, **activation, "depthMultiplier": 1}
        case "pool":
            return {"padding": VALID, **strides, "filterHeight": source[1], "filterWidth": source[2]}
        case "flatten":
            return {"newShape": np.array(shape, np.int32)}
        case "softmax":
            return {"beta": 1.0}
    return activation


def _recurrent(net: Recurrent, seed: int) -> bytes:
    """Write a stack from [steps, batch, features], or [batch, steps, features], to [steps * batch, outputs]."""
    file, rng = _File(), np.random.default_rng(seed)
    outer = (net.steps, net.batch) if net.time_major else (net.batch, net.steps)
    options = {"fusedActivationFunction": TANH, "timeMajor": net.time_major}

    def constant(name: str, data: Floats) -> int:
        return file.tensor(name, data.shape, data=data)

    def weights(name: str, rows: int, columns: int, gain: float) -> int:
        factor = np.float32(gain / math.sqrt(columns))
        return constant(name, rng.standard_normal((rows, columns), np.float32) * factor)

    value = first = file.tensor("input", (*outer, net.features))
    for n in range(net.layers):
        # A layer's output has about a third of the range of the features.
        width, gain = (net.features, 1.0) if n == 0 else (net.cells, 3.0)
        name, gates = f"lstm_{n + 1}", "ifco"
        inputs = [value, *(weights(f"{name}/input_to_{g}", net.cells, width, gain) for g in gates)]
        inputs += [weights(f"{name}/recurrent_to_{g}", net.cells, net.cells, 1.0) for g in gates]
        inputs += [NO_TENSOR] * 3  # peepholes
        inputs += [constant(f"{name}/{g}_bias", np.full(net.cells, g == "f", np.float32)) for g in gates]
        inputs += [NO_TENSOR] * 2  # projection
        state = (net.batch, net.cells)
        inputs += [file.tensor(f"{name}/{s}_state", state, isVariable=True) for s in ("output", "cell")]
        value = file.operation("lstm", inputs, file.tensor(name, (*outer, net.cells)), np.float32, options)
    inputs = [value, weights("dense/weights", net.outputs, net.cells, 3.0)]
    inputs.append(constant("dense/bias", rng.standard_normal(net.outputs, np.float32)))
    output = file.tensor("output", (math.prod(outer), net.outputs))
    return file.finish([first], file.operation("dense", inputs, output, np.float32, {}))


def _add4() -> bytes:
    file = _File()
    inputs = [file.tensor(name, (4,)) for name in ("a", "b")]
    return file.finish(inputs, file.operation("add", inputs, file.tensor("sum", (4,)), np.float32, {}))


Recipe = tuple[str, Callable[[], bytes]]  # a line about the model, and its maker


def _net(name: str, what: str, describe: Callable[[], Net], known: Facts) -> dict[str, Recipe]:
    recipes: dict[str, Recipe] = {}
    for suffix, scheme in SCHEMES.items():
        line = f"{what}, {np.dtype(scheme.type).name}"
        recipes[name + suffix] = (line, partial(_feed_forward, describe, known, scheme))
    return recipes


def _random(seed: int) -> Facts:
    return lambda describe: values(describe, seed)


def _of_package(describe: Callable[[], Net]) -> list[NetValue]:
    from nnhal.zoo import trained  # a start with another model does not need it

    return trained.values(describe, WEIGHTS)


_RECIPES: dict[str, Recipe] = {
    "add4": ("one ADD of four floats and four floats", _add4),
    **_net("tiny_conv", "convolution, fully connected, softmax on 8x8x3", tiny_conv, _random(1)),
    "tiny_dynamic": (
        "tiny_conv, batch size open",
        partial(_feed_forward, tiny_conv, _random(1), SCHEMES[""], dynamic=True),
    ),
    "tiny_lstm": ("LSTM 2x16, 4 steps, batch 2", partial(_recurrent, Recurrent(2, 16, 4, 8, 6, batch=2), 2)),
    **_net("mobilenet_v1", "MobileNet v1 1.0 224, random weights", mobilenet_v1, _random(3)),
    **_net("mobilenet_v2", "MobileNet v2 1.0 224, random weights", mobilenet_v2, _random(4)),
    "speech_lstm_20": ("LSTM 5x640, 20 steps", partial(_recurrent, Recurrent(5, 640, 20, 80, 256), 5)),
    "speech_lstm_1": ("LSTM 5x640, 1 step", partial(_recurrent, Recurrent(5, 640, 1, 80, 256), 5)),
    "synthesis_lstm_20": (
        "LSTM 3x512, 20 steps, batch major",
        partial(_recurrent, Recurrent(3, 512, 20, 320, 187, time_major=False), 6),
    ),
}
_TRAINED = _net("efficientnet_lite0", "EfficientNet-Lite0 224, trained on ImageNet", efficientnet_lite0, _of_package)


def names() -> tuple[str, ...]:
    """Return the models that can be made without a download."""
    return tuple(_RECIPES)


def trained_names() -> tuple[str, ...]:
    """Return the models that are made with the weights of a package."""
    return tuple(_TRAINED)


def source(name: str) -> str:
    """Return where the weights of a model come from. Raises ZooError for an unknown name."""
    _recipe(name)
    if name not in _TRAINED:
        return "made by nnhal, fixed seed"
    found = entry(WEIGHTS)
    return f"made by nnhal from {found.package} {found.version}"


def description(name: str) -> str:
    """Return a line about a model. Raises ZooError for an unknown name."""
    return _recipe(name)[0]


def make(name: str) -> bytes:
    """Return the bytes of a model's file, the same each time.

    Raises:
        ZooError: The name is unknown, LiteRT is not installed, or the weights of a trained model are unavailable.
    """
    return _recipe(name)[1]()


def path(name: str, progress: Progress | None = None) -> Path:
    """Return the model's file in the cache folder, made if it is missing. progress: called before a slow action."""
    _recipe(name)
    try:
        return _kept(name, progress)[0]
    except OSError as error:
        what = f"maker: cannot write {name} to {folder() / PLACE}: {error}"
        raise ZooError(f"{what}; must be your own, writable folder; set NNHAL_MODELS to another one") from error


def opened(name: str, progress: Progress | None = None) -> BinaryIO:
    """Open the model's file for reading, with its digest verified. Raises ZooError."""
    _recipe(name)
    with suppress(OSError):  # it exists, and is read once
        root = cache.private(folder(), *PLACE.parts)
        return cache.opened(root / f"{name}.tflite", _noted(root / f"{name}.sha256"))
    path(name, progress)
    try:
        return cache.opened(*_kept(name, progress))
    except OSError as error:
        raise ZooError(f"maker: {name} was changed during the access: {error}; must stay unchanged") from error


def _kept(name: str, progress: Progress | None) -> tuple[Path, str]:
    """Return the model's file and its digest, which is written last: a file without one is made again."""
    root = cache.private(folder(), *PLACE.parts)
    file, note = root / f"{name}.tflite", root / f"{name}.sha256"
    if (digest := _noted(note)) and cache.sound(file, digest):
        return file, digest
    with cache.locked(root, name):
        if not ((digest := _noted(note)) and cache.sound(file, digest)):  # no other process was faster
            if name in _TRAINED:
                fetched(WEIGHTS, progress)
            if progress is not None:
                progress(f"making {name} in {root}")
            content = make(name)
            digest = hashlib.sha256(content).hexdigest()
            cache.write(file, content)
            cache.write(note, digest.encode())
    return file, digest


def _noted(note: Path) -> str:
    """Return the digest in a file, "" if there is none."""
    try:
        with cache.ordinary(note) as file:
            return file.read(DIGEST).decode(errors="replace")
    except OSError:
        return ""


def _recipe(name: str) -> Recipe:
    recipes = _RECIPES | _TRAINED
    try:
        return recipes[name]
    except KeyError:
        raise ZooError(f"maker: {name!r} is not known, must be one of {', '.join(recipes)}") from None
