"""Inputs from files: `.npy`, `.npz`, pictures, raw bytes, or seeded random data, made to fit what the model wants."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnhal.base.errors import DeviceUnavailable, InvalidRequest, told
from nnhal.base.operands import Array, Value
from nnhal.base.records import Record
from nnhal.cli.arrays import ArrayFile, archive, array_file, ordinary, reading, size_of
from nnhal.model.metadata import Metadata, TensorMetadata
from nnhal.ops.common import encode
from nnhal.ops.schema import agree, show
from nnhal.runtime.arguments import Spec

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "PPM", "TIFF")  # no others, whatever a file is called
MOST_PIXELS = 1 << 26  # 67 million, 200 MB
PICTURES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff"))


class PictureOptions(Record, frozen=True):
    """How pictures become tensors, stretched or fitted (with black bars) to the size.

    low, high: the real values of black and white; None for what the model's metadata says, else all that a quantised input
    can hold, else 0 to 1. raw: 0 to 255 as they are stored, from -128 on in an int8 input.
    """

    low: float | None = None
    high: float | None = None
    fit: bool = False
    raw: bool = False


class Given(Record, frozen=True):
    """An input's array and a sentence on where it came from."""

    array: Array
    origin: str


def read_inputs(
    specs: Sequence[Spec], files: Sequence[str], seed: int, options: PictureOptions, metadata: Metadata | None = None
) -> list[Given]:
    """One array for each input: from `FILE` in order or `NAME=FILE`; what no file gives is seeded random data."""
    sources = _assign(specs, files)
    generator = np.random.default_rng(seed)
    given = []
    for spec, said in zip(specs, said_of(specs, metadata.inputs if metadata else ()), strict=True):
        source = sources.get(spec.name)
        if source is None:
            given.append(Given(random_input(spec, generator), f"random, seed {seed}"))
        elif isinstance(source, Path):
            given.append(_read(spec, source, options, said))
        else:
            given.append(Given(_fit(spec, source), source.origin))
    return given


def said_of(specs: Sequence[Spec], said: Sequence[TensorMetadata]) -> list[TensorMetadata]:
    """What metadata says of each input or output: by name, else by place where there are as many."""
    by_name = {each.name: each for each in said}
    by_place = list(said) if len(said) == len(specs) else [TensorMetadata()] * len(specs)
    if len(by_name) == len(said) and set(by_name) >= {spec.name for spec in specs}:
        return [by_name[spec.name] for spec in specs]
    return by_place


def _assign(specs: Sequence[Spec], files: Sequence[str]) -> dict[str, Path | ArrayFile]:
    """Which source each input has: a path, or an array of an `.npz`."""
    names = [spec.name for spec in specs]
    sources: dict[str, Path | ArrayFile] = {}
    for text in files:
        name, equals, file = text.partition("=")
        if equals and name in names:
            path = Path(file)
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
    """A picture of the zoo by its name."""
    from nnhal import zoo

    if str(path) not in zoo.pictures():
        names = ", ".join(zoo.pictures())
        raise InvalidRequest(
            f"input {path}: is no file, must be .npy, .npz, a picture ({names}), raw bytes, or NAME=FILE"
        )
    return zoo.path(str(path))


def _read(spec: Spec, path: Path, options: PictureOptions, said: TensorMetadata) -> Given:
    if path.suffix.lower() in PICTURES:
        return _picture(spec, path, options, said)
    if path.suffix == ".npy":
        return Given(_fit(spec, array_file(path)), str(path))
    shape = _shape(spec)
    size = math.prod(shape) * spec.dtype.itemsize
    with ordinary(path) as file, reading(str(path)):
        there = size_of(file)
        if there != size:
            raise InvalidRequest(f"input {path} has {there} bytes, must have {size} for {spec}")
        data = file.read(size)
    return Given(np.frombuffer(data, spec.dtype).reshape(shape), f"{path}, raw bytes")


def _fit(spec: Spec, file: ArrayFile) -> Array:
    """An array as the input's type and shape: numbers of more bytes are narrowed, a missing batch dimension is added."""
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


def _picture(spec: Spec, path: Path, options: PictureOptions, said: TensorMetadata) -> Given:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise DeviceUnavailable("pictures need Pillow: pip install 'nnhal[pictures]'") from None
    shape = _shape(spec)
    if len(shape) != 4 or shape[0] != 1 or shape[3] not in (1, 3):
        raise InvalidRequest(f"input {path}: {spec} takes no picture, must be [1, height, width, 1 or 3]")
    _, height, width, channels = shape
    try:
        with ordinary(path) as content, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are looked at here, and of metadata, which are not used
            with Image.open(content, formats=FORMATS) as file:
                if math.prod(file.size) > MOST_PIXELS:
                    raise InvalidRequest(f"input {path} has {file.size} pixels, must have at most {MOST_PIXELS}")
                picture = ImageOps.exif_transpose(file).convert("RGB" if channels == 3 else "L")
    except InvalidRequest:
        raise
    except Exception as error:  # decoders raise whatever they trip over
        raise InvalidRequest(f"input {path}: is no picture that can be read: {told(error)}") from None
    size = picture.size
    resize = ImageOps.pad if options.fit else Image.Image.resize
    picture = resize(picture, (width, height), Image.Resampling.BICUBIC)
    array, values = _stored(spec, np.asarray(picture, np.float32).reshape(shape), options, said)
    how = "fitted" if options.fit else "stretched"
    return Given(array, f"{path}, {size[0]}x{size[1]} {how} to {width}x{height}, {values}")


def _stored(spec: Spec, pixels: Array, options: PictureOptions, said: TensorMetadata) -> tuple[Array, str]:
    """Pixels from 0 to 255 as the input stores them, and a sentence on that."""
    mean, std = said.mean, said.std
    plain = spec.dtype == np.uint8 and not any(mean) and set(std) == {1.0}  # how metadata says that pixels are steps
    if options.raw or (options.low is None and plain):
        stored = (pixels - (128 if spec.dtype == np.int8 else 0)).astype(spec.dtype)
        return stored, f"stored as they are, {stored.min():g} to {stored.max():g}"
    if options.low is None and len(mean) in (1, pixels.shape[-1]):
        real = (pixels - np.array(mean, np.float32)) / np.array(std, np.float32)
        values = f"{_listed(mean)} taken off and divided by {_listed(std)}, as its metadata says"
    else:
        low, high = options.low, options.high
        if low is None or high is None:
            low, high = _reach(spec)
        real, values = pixels / 255 * (high - low) + low, f"values {low:g} to {high:g}"
    value = Value(spec.type, pixels.shape, spec.scale, spec.zero_point)
    return encode(value, real.astype(np.float32)).astype(spec.dtype, copy=False), values


def _reach(spec: Spec) -> tuple[float, float]:
    """Real values of black and white where nobody says any: all that a quantised input can hold, else 0 and 1."""
    if not spec.scale or spec.dtype.itemsize > 1:
        return 0.0, 1.0
    limits = np.iinfo(spec.dtype)
    return (limits.min - spec.zero_point) * spec.scale, (limits.max - spec.zero_point) * spec.scale


def _listed(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else "/".join(f"{n:g}" for n in numbers)


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
