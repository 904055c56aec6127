"""Inputs from files: `.npy`, `.npz`, pictures, raw bytes, or seeded random data, made to fit what the model wants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.errors import DeviceUnavailable, InvalidRequest
from nnhal.base.operands import Array, Value
from nnhal.ops.common import encode
from nnhal.ops.schema import agree, show
from nnhal.runtime.arguments import Spec

PICTURES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff"))


@dataclass(frozen=True)
class PictureOptions:
    """How pictures become tensors: values scaled to [low, high], stretched or fitted (with black bars) to the size."""

    low: float = 0.0
    high: float = 1.0
    fit: bool = False


@dataclass(frozen=True)
class Given:
    """An input's array and a sentence on where it came from."""

    array: Array
    origin: str


def read_inputs(specs: Sequence[Spec], files: Sequence[str], seed: int, options: PictureOptions) -> list[Given]:
    """One array for each input: from `FILE` in order or `NAME=FILE`; what no file gives is seeded random data."""
    sources = _assign(specs, files)
    generator = np.random.default_rng(seed)
    given = []
    for spec in specs:
        source = sources.get(spec.name)
        if source is None:
            given.append(Given(random_input(spec, generator), f"random, seed {seed}"))
        elif isinstance(source, Path):
            given.append(_read(spec, source, options))
        else:
            given.append(Given(_fit(spec, source[0], source[1]), source[1]))
    return given


def _assign(specs: Sequence[Spec], files: Sequence[str]) -> dict[str, Any]:
    """Which source each input has: a path, or (array, origin) out of an `.npz`."""
    names = [spec.name for spec in specs]
    sources: dict[str, Any] = {}
    for text in files:
        name, equals, file = text.partition("=")
        if equals and name in names:
            path = Path(file)
        else:
            name, path = next((n for n in names if n not in sources), ""), Path(text)
            if not name:
                raise InvalidRequest(f"input {text}: the model has only {len(names)} inputs: {', '.join(names)}")
        if not path.is_file():
            path = _named_picture(path)
        if path.suffix == ".npz":
            sources.update(_archive(path, names))
        else:
            sources[name] = path
    return sources


def _named_picture(path: Path) -> Path:
    """A picture of the zoo by its name."""
    from nnhal.bench import zoo

    if str(path) not in zoo.pictures():
        names = ", ".join(zoo.pictures())
        raise InvalidRequest(
            f"input {path}: is no file, must be .npy, .npz, a picture ({names}), raw bytes, or NAME=FILE"
        )
    return zoo.path(str(path))


def _archive(path: Path, names: Sequence[str]) -> Mapping[str, tuple[Array, str]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"input {path}: {error}") from None
    if set(arrays) <= set(names):
        return {key: (array, f"{path}[{key}]") for key, array in arrays.items()}
    if len(arrays) != len(names):
        raise InvalidRequest(f"input {path} holds {', '.join(arrays)}, must hold {', '.join(names)}")
    return {name: (array, f"{path}[{key}]") for name, (key, array) in zip(names, arrays.items(), strict=True)}


def _read(spec: Spec, path: Path, options: PictureOptions) -> Given:
    if path.suffix.lower() in PICTURES:
        return _picture(spec, path, options)
    if path.suffix == ".npy":
        try:
            return Given(_fit(spec, np.load(path, allow_pickle=False), str(path)), str(path))
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"input {path}: {error}") from None
    shape = _shape(spec)
    data = path.read_bytes()
    size = int(np.prod(shape)) * spec.dtype.itemsize
    if len(data) != size:
        raise InvalidRequest(f"input {path} has {len(data)} bytes, must have {size} for {spec}")
    return Given(np.frombuffer(data, spec.dtype).reshape(shape), f"{path}, raw bytes")


def _fit(spec: Spec, array: Array, origin: str) -> Array:
    """An array as the input's type and shape; float64 and int64 are narrowed, a missing batch dimension is added."""
    if array.dtype != spec.dtype:
        if array.dtype.kind != spec.dtype.kind or (
            spec.dtype != np.int64 and array.dtype.itemsize < spec.dtype.itemsize
        ):
            raise InvalidRequest(f"input {origin} is {array.dtype}, must be {spec.dtype} for {spec}")
        array = array.astype(spec.dtype)
    if spec.shape is not None and not agree(array.shape, spec.shape) and agree((1, *array.shape), spec.shape):
        array = array[None]
    if spec.shape is not None and not agree(array.shape, spec.shape):
        raise InvalidRequest(f"input {origin} has shape {show(array.shape)}, must be {show(spec.shape)} for {spec}")
    return array


def _picture(spec: Spec, path: Path, options: PictureOptions) -> Given:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise DeviceUnavailable("pictures need Pillow: pip install 'nnhal[pictures]'") from None
    shape = _shape(spec)
    if len(shape) != 4 or shape[0] != 1 or shape[3] not in (1, 3):
        raise InvalidRequest(f"input {path}: {spec} takes no picture, must be [1, height, width, 1 or 3]")
    _, height, width, channels = shape
    try:
        with Image.open(path) as file:
            picture = ImageOps.exif_transpose(file).convert("RGB" if channels == 3 else "L")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidRequest(f"input {path}: {error}") from None
    size = picture.size
    picture = ImageOps.pad(picture, (width, height)) if options.fit else picture.resize((width, height))
    real = np.asarray(picture, np.float32).reshape(shape) / 255 * (options.high - options.low) + options.low
    array = encode(Value(spec.type, shape, spec.scale, spec.zero_point), real.astype(np.float32))
    how = "fitted" if options.fit else "stretched"
    origin = f"{path}, {size[0]}x{size[1]} {how} to {width}x{height}, values {options.low:g} to {options.high:g}"
    return Given(array, origin)


def random_input(spec: Spec, generator: np.random.Generator) -> Array:
    """Seeded random data: floats uniform in [-1, 1), quantised types over their range, integers 0 to 9, booleans."""
    shape = _shape(spec)
    if spec.dtype.kind == "f":
        return generator.uniform(-1, 1, shape).astype(spec.dtype)
    if spec.dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(spec.dtype)
    if spec.scale:
        limits = np.iinfo(spec.dtype)
        return generator.integers(limits.min, limits.max, shape, spec.dtype, endpoint=True)
    return generator.integers(0, 10, shape).astype(spec.dtype)


def _shape(spec: Spec) -> tuple[int, ...]:
    """The shape with unknown dimensions taken as 1."""
    return tuple(d or 1 for d in spec.shape or ())
