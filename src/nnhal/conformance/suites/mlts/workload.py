"""The models of the suite, and the inputs and classes that each is judged on."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnhal import api, zoo
from nnhal.base.errors import InvalidArgument, NnhalError, ShapeNeeded
from nnhal.base.operands import Array
from nnhal.conformance.suites.mlts import data
from nnhal.conformance.suites.suite import NotApplicable, SuiteRun
from nnhal.measure import onnx_inputs
from nnhal.model.graph import Model
from nnhal.model.open import OpenModel
from nnhal.ops.common import encode
from nnhal.runtime import discovery
from nnhal.runtime.arguments import Spec
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.random_inputs import random_inputs
from nnhal.zoo import by_name, maker, nets

# The families that Android's machine-learning test suite measures, as the zoo has them; EfficientNet-Lite0 is built of
# the blocks of MobileNet v2. The first three and magika are trained, and have real data with labels.
MODELS = (
    "efficientnet_lite0",
    "efficientnet_lite0_int8",
    "efficientnet_lite0_uint8",
    "mobilenet_v1",
    "mobilenet_v1_int8",
    "mobilenet_v1_uint8",
    "mobilenet_v2",
    "mobilenet_v2_int8",
    "mobilenet_v2_uint8",
    "speech_lstm_1",
    "speech_lstm_20",
    "synthesis_lstm_20",
    "captcha_read",
    "magika",
)
PICTURE = 224, 224, 3  # of the MobileNets
SAMPLES = 8  # of a model without labelled data
DRAWN = "inputs drawn by the suite"


class ModelWorkload(NamedTuple):
    """A model, compiled for the CPU reference, and its inputs.

    engine: the engine that the file's format belongs to. labels: a class for each input; empty if unknown. data: a
    phrase on the inputs.
    """

    name: str
    path: Path
    engine: str
    model: Model
    reference: Compiled
    inputs: list[list[Array]]
    labels: list[int]
    data: str


def names(run: SuiteRun) -> Sequence[str]:
    """Return the names of the models to run; InvalidArgument if the run's model, data and labels do not go together."""
    if not run.model:
        if run.data or run.labels:
            raise InvalidArgument(f"data is {run.data or run.labels!r} without a model, must come with --model")
        return MODELS
    if run.labels and not run.data:
        raise InvalidArgument(f"labels is {run.labels!r} without inputs, must come with --data")
    if run.data:
        data.labelled(Path(run.data), run.labels)  # mistakes are reported before anything runs
    path = Path(run.model)
    if not path.is_file():
        if run.model not in (*zoo.names(), *zoo.onnx_names(), *maker.names(), *maker.trained_names()):
            must = "must be a .tflite or .onnx file or a name that `nnhal models` lists"
            raise InvalidArgument(f"model is {run.model!r}, {must}")
        return (run.model,)
    return (path.stem,)


def load(name: str, run: SuiteRun) -> ModelWorkload:
    """Read a model and its inputs; NotApplicable if the model or its data are not on this machine or do not fit."""
    path, shapes = _path(name, run), None
    if not run.model or not Path(run.model).is_file():
        shapes = by_name.usual_shapes(name)
    engine = "onnxruntime" if path.suffix == ".onnx" else "litert"
    try:
        model = _model(path, shapes, run)
        reference = api.compile(model, devices=[discovery.cpu()], cache_dir=False)
    except NnhalError as error:
        raise NotApplicable(f"{name} cannot be imported: {error}") from None
    try:
        inputs, labels, about = _inputs(name, run, model, reference)
    except NnhalError as error:
        reference.close()
        raise NotApplicable(f"the inputs of {name} cannot be made: {error}") from None
    return ModelWorkload(name, path, engine, model, reference, inputs, labels, about)


def _path(name: str, run: SuiteRun) -> Path:
    if run.model and Path(run.model).is_file():
        return Path(run.model)
    if name in maker.names():
        return Path(by_name.path(name))
    labelled = name in maker.trained_names()
    needed = (maker.WEIGHTS, *zoo.datasets()) if labelled else (name,)
    if not all((zoo.folder() / zoo.entry(each).file).is_file() for each in needed):
        wanted = " ".join((name, *zoo.datasets() * labelled))
        raise NotApplicable(f"{name} is not on this machine, or its data; `nnhal models {wanted}` fetches it")
    return Path(by_name.path(name))  # with its digest verified


def _model(path: Path, shapes: api.Shapes | None, run: SuiteRun) -> Model:
    try:
        model = api.load(path, shapes=shapes, cache_dir=False)
    except ShapeNeeded:
        model = None
    if isinstance(model, Model) and not isinstance(model, OpenModel):
        return model
    files = data.labelled(Path(run.data), run.labels)[0] if run.data else []
    if not files or files[0].suffix not in data.ARRAYS:
        raise InvalidArgument(f"{path.name} leaves input shapes open, must have --data with .npy or .npz files")
    return api.load(path, shapes=data.shapes_of(files[0]), cache_dir=False)


def _inputs(name: str, run: SuiteRun, model: Model, reference: Compiled) -> tuple[list[list[Array]], list[int], str]:
    specs = reference.inputs
    if run.data:
        files, classes = data.labelled(Path(run.data), run.labels)
        inputs = [data.read(file, specs, model.metadata) for file in files]
        labels = data.indices(classes, model.metadata, reference.outputs[0])
        return inputs, labels, f"{len(files)} files of {run.data}"
    if not Path(run.model).is_file():
        if name == "magika":
            return data.magika()
        if name in maker.trained_names():
            return data.imagenet(specs[0])
    rng = np.random.default_rng(run.seed)
    if name in maker.names() and [spec.shape for spec in specs] == [(1, *PICTURE)]:
        pictures = nets.pictures(rng, PICTURE)[:SAMPLES]
        return [[_stored(specs[0], picture[None])] for picture in pictures], [], "pictures of noise in four grain sizes"
    if name in zoo.onnx_names() and not Path(run.model).is_file():
        by_input = {spec.name: spec for spec in specs}
        given = [onnx_inputs.inputs_of(name, by_input, number) for number in range(SAMPLES)]
        return [[each[spec.name] for spec in specs] for each in given], [], "pictures and sounds of the zoo"
    return [random_inputs(model, rng) for _ in range(SAMPLES)], [], DRAWN


def _stored(spec: Spec, real: Array) -> Array:
    return encode(data.value_of(spec), real.astype(np.float32)).astype(spec.dtype, copy=False)
