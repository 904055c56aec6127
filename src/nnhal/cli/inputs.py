"""Reads inputs from `.npy`, `.npz`, pictures, sounds and raw bytes, or makes seeded random data."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnhal.base.errors import InvalidRequest
from nnhal.base.operands import Array
from nnhal.base.records import Record
from nnhal.cli.arrays import ArrayFile, archive, array_file, ordinary, reading, size_of
from nnhal.cli.pictures import PICTURES, InputOptions, picture
from nnhal.cli.sounds import OTHER_SOUNDS, SOUNDS, sound
from nnhal.model.graph import Model
from nnhal.model.metadata import Metadata, TensorMetadata
from nnhal.model.outline import ShownTensor
from nnhal.ops.schema import agree, show
from nnhal.runtime.arguments import Spec
from nnhal.runtime.random_inputs import random_input, random_inputs, shape_of_random


class InputFromFile(Record, frozen=True):
    """An input's array with its file and the conversion."""

    array: Array
    file: str
    how: str = ""

    @property
    def origin(self) -> str:
        """The whole path of the file, and the conversion."""
        return ", ".join(filter(None, (self.file, self.how)))

    @property
    def short(self) -> str:
        """The name of the file, and the conversion."""
        return ": ".join(filter(None, (Path(self.file).name, self.how)))


def read_inputs(
    specs: Sequence[Spec],
    files: Sequence[str],
    seed: int,
    options: InputOptions,
    metadata: Metadata | None = None,
    model: Model | None = None,
) -> list[InputFromFile]:
    """Reads the inputs of a model.

    Args:
        specs: The model's inputs.
        files: `FILE` for the next input, or `NAME=FILE`. Inputs without a file get seeded random data.
        seed: The seed.
        options: The conversion of pictures and sounds.
        metadata: The model's metadata.
        model: The model; random data are such that it accepts them. None: of any values.

    Returns:
        An array for each input.

    Raises:
        InvalidRequest: A file cannot be read, or does not fit its input, or no data were found that the model accepts.
    """
    sources = _assign(specs, files)
    given: dict[int, InputFromFile] = {}
    for n, (spec, said) in enumerate(
        zip(specs, metadata_of_specs(specs, metadata.inputs if metadata else ()), strict=True)
    ):
        source = sources.get(spec.name)
        if isinstance(source, Path):
            given[n] = _read(spec, source, options, said)
        elif source is not None:
            given[n] = InputFromFile(_fit(spec, source), source.origin)
    generator = np.random.default_rng(seed)
    if model is not None:
        drawn = random_inputs(model, generator, {n: each.array for n, each in given.items()})
    else:
        drawn = [given[n].array if n in given else random_input(spec, generator) for n, spec in enumerate(specs)]
    return [given.get(n) or InputFromFile(array, f"random, seed {seed}") for n, array in enumerate(drawn)]


def metadata_of_specs(specs: Sequence["Spec | ShownTensor"], said: Sequence[TensorMetadata]) -> list[TensorMetadata]:
    """Returns the metadata of each input or output.

    Args:
        specs: The inputs or outputs.
        said: Their metadata, which is matched by name, or by position if the numbers are equal.
    """
    by_name = {each.name: each for each in said}
    by_place = list(said) if len(said) == len(specs) else [TensorMetadata()] * len(specs)
    if len(by_name) == len(said) and set(by_name) >= {spec.name for spec in specs}:
        return [by_name[spec.name] for spec in specs]
    return by_place


def _assign(specs: Sequence[Spec], files: Sequence[str]) -> dict[str, Path | ArrayFile]:
    """Returns the source of each input: a path, or an array of an `.npz`."""
    names = [spec.name for spec in specs]
    sources: dict[str, Path | ArrayFile] = {}
    for text in files:
        name, equals, file = text.partition("=")
        if equals and name in names:
            path = Path(file)
        elif equals and not Path(text).exists():
            raise InvalidRequest(f"input {text}: the model has no input {name!r}, must be one of {', '.join(names)}")
        else:
            name, path = next((n for n in names if n not in sources), ""), Path(text)
            if not name:
                raise InvalidRequest(f"input {text}: the model has only {len(names)} inputs: {', '.join(names)}")
        if not path.exists():
            path = _named_picture(path)
        if path.suffix == ".npz":
            sources.update(archive(path, names))
        else:
            sources[name] = path
    return sources


def _named_picture(path: Path) -> Path:
    """Returns the path of a picture of the zoo."""
    from nnhal import zoo

    if str(path) not in zoo.pictures():
        names = ", ".join(zoo.pictures())
        raise InvalidRequest(
            f"input {path}: does not exist, must be .npy, .npz, a picture ({names}), .wav, raw bytes, or NAME=FILE"
        )
    return zoo.path(str(path))


def _read(spec: Spec, path: Path, options: InputOptions, said: TensorMetadata) -> InputFromFile:
    kind = path.suffix.lower()
    if kind in PICTURES:
        array, how = picture(spec, shape_of_random(spec), path, options, said)
        return InputFromFile(array, str(path), how)
    if kind in SOUNDS:
        array, how = sound(spec, path, options.rate)
        return InputFromFile(array, str(path), how)
    if kind in OTHER_SOUNDS:
        raise InvalidRequest(f"input {path}: is {kind}, must be .wav: `ffmpeg -i {path.name} -c:a pcm_s16le out.wav`")
    if path.suffix == ".npy":
        return InputFromFile(_fit(spec, array_file(path)), str(path))
    shape = shape_of_random(spec)
    size = math.prod(shape) * spec.dtype.itemsize
    with ordinary(path) as file, reading(str(path)):
        there = size_of(file)
        if there != size:
            raise InvalidRequest(f"input {path} has {there} bytes, must have {size} for {spec}")
        data = file.read(size)
    return InputFromFile(np.frombuffer(data, spec.dtype).reshape(shape), str(path), "raw bytes")


def _fit(spec: Spec, file: ArrayFile) -> Array:
    """Converts an array to the input's type and shape: narrows numbers, adds a missing batch dimension."""
    origin, kind, shape = file.origin, file.dtype, file.shape
    wider = kind.itemsize > spec.dtype.itemsize
    alike = kind.kind == spec.dtype.kind or (wider and {kind.kind, spec.dtype.kind} == {"i", "u"})
    if not alike or (spec.dtype != np.int64 and kind.itemsize < spec.dtype.itemsize):
        raise InvalidRequest(f"input {origin} is {kind}, must be {spec.dtype} for {spec}")
    if spec.shape is not None and not agree(shape, spec.shape) and agree((1, *shape), spec.shape):
        shape = (1, *shape)
    if spec.shape is not None and not agree(shape, spec.shape):
        raise InvalidRequest(f"input {origin} has shape {show(shape)}, must be {show(spec.shape)} for {spec}")
    array = file.read()
    fitted = array.astype(spec.dtype)
    if kind.kind in "iu" and not np.array_equal(fitted, array):
        raise InvalidRequest(f"input {origin} holds {kind} that do not fit, must be {spec.dtype} for {spec}")
    return fitted.reshape(shape)
