"""Pictures as a model's input: rotates them upright, resizes them, and converts their values."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.errors import DeviceUnavailable, InvalidRequest, error_text
from nnhal.base.operands import Array, Value
from nnhal.base.records import Record
from nnhal.cli.arrays import ordinary
from nnhal.model.metadata import TensorMetadata
from nnhal.ops.common import encode
from nnhal.runtime.arguments import Spec

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "PPM", "TIFF")  # the content decides, not the file's name
MOST_PIXELS = 1 << 26  # 67 million, 200 MB
PICTURES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff"))
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by channels
WHITE = 255.0
DEEP = {
    "I;16": 65535.0,
    "I;16L": 65535.0,
    "I;16B": 65535.0,
    "F": 1.0,
}  # white, of modes of one channel and more than 8 bits


class InputOptions(Record, frozen=True):
    """The conversion of pictures and sounds into tensors.

    Attributes:
        low: The real value of black. None for that of the model's metadata, else the least value of a quantised input,
            else 0.
        high: The real value of white, in the same way; the last default is 1.
        fit: Whether to letterbox a picture; it is resized otherwise.
        raw: Whether to store 0 to 255 unchanged; an int8 input gets -128 to 127.
        mean: Subtracted from the values: one number, or one for each channel.
        std: Divides the values after that: one number, or one for each channel.
        fill: The grey of the bars, 0 to 255.
        rate: The sample rate of sounds in Hz; None for that of the file.
    """

    low: float | None = None
    high: float | None = None
    fit: bool = False
    raw: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    fill: int = 0
    rate: int | None = None


class PictureLayout(NamedTuple):
    """The dimensions of a picture in an input; `first` is whether channels are before height and width."""

    height: int
    width: int
    channels: int
    first: bool


def layout_of(shape: Sequence[int]) -> PictureLayout | None:
    """Returns the layout of a picture in an input.

    Args:
        shape: [1, height, width, channels] or [1, channels, height, width], also without the 1.

    Returns:
        The layout; None if the shape has no place for a picture.
    """
    sizes = tuple(shape[1:] if len(shape) == 4 and shape[0] == 1 else shape)
    if len(sizes) != 3:
        return None
    for counts in ((1, 3), (4,)):
        if sizes[2] in counts:
            return PictureLayout(*sizes, first=False)
        if sizes[0] in counts:
            return PictureLayout(sizes[1], sizes[2], sizes[0], first=True)
    return None


def picture(
    spec: Spec, shape: tuple[int, ...], path: Path, options: InputOptions, said: TensorMetadata
) -> tuple[Array, str]:
    """Reads a picture for an input.

    Args:
        spec: The input.
        shape: The shape of the array.
        path: The file.
        options: The conversion.
        said: The input's metadata.

    Returns:
        The array, and a text that describes the conversion.

    Raises:
        InvalidRequest: The file cannot be read, or the input is not a picture.
        DeviceUnavailable: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise DeviceUnavailable("pictures need Pillow: pip install 'nnhal[pictures]'") from None
    layout = layout_of(shape)
    if layout is None:
        must = "must be [1, height, width, channels] or [1, channels, height, width] of 1, 3 or 4 channels"
        raise InvalidRequest(f"input {path}: {spec} takes no picture, {must}")
    try:
        with ordinary(path) as content, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes, which are checked here, and about metadata
            with Image.open(content, formats=FORMATS) as file:
                if math.prod(file.size) > MOST_PIXELS:
                    raise InvalidRequest(f"input {path} has {file.size} pixels, must have at most {MOST_PIXELS}")
                upright = ImageOps.exif_transpose(file)
                upright = deep(path, upright, file.format) or upright.convert(MODES[layout.channels])
    except InvalidRequest:
        raise
    except Exception as error:  # decoders raise any exception
        raise InvalidRequest(f"input {path}: cannot be read as a picture: {error_text(error)}") from None
    size, target = upright.size, (layout.width, layout.height)
    if options.fit:
        bars = (options.fill,) * layout.channels if upright.mode != "F" else options.fill
        resized = ImageOps.pad(upright, target, Image.Resampling.BICUBIC, color=bars)
    else:
        resized = upright.resize(target, Image.Resampling.BICUBIC)
    pixels = np.clip(np.asarray(resized, np.float32), 0, WHITE).reshape(layout.height, layout.width, -1)
    pixels = np.broadcast_to(pixels, (layout.height, layout.width, layout.channels))
    array, values = stored(spec, pixels, options, said)
    array = np.ascontiguousarray(array.transpose(2, 0, 1) if layout.first else array).reshape(shape)
    how = "letterboxed" if options.fit else "resized"
    return array, f"{how} {size[0]}x{size[1]} -> {layout.width}x{layout.height}, {values}"


def deep(path: Path, file: Any, kind: str | None) -> Any:
    """Converts a picture of one channel and more than 8 bits to values from 0 to 255; None for another picture."""
    from PIL import Image

    white = 65535.0 if file.mode == "I" and kind == "PNG" else DEEP.get(file.mode)
    if white is None:
        if file.mode == "I":
            raise InvalidRequest(
                f"input {path} has 32-bit integers, whose white is undefined, must have 8 or 16 bits, or be .npy"
            )
        return None
    values = np.asarray(file, np.float32)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= white):
        raise InvalidRequest(f"input {path} has values from {low:g} to {high:g}, must be 0 to {white:g}, or be .npy")
    return Image.fromarray(values * (WHITE / white))


def stored(spec: Spec, pixels: Array, options: InputOptions, said: TensorMetadata) -> tuple[Array, str]:
    """Converts pixels to the values of an input.

    Args:
        spec: The input.
        pixels: Values from 0 to 255, [height, width, channels].
        options: The conversion.
        said: The input's metadata.

    Returns:
        The values, and a text that describes the conversion.
    """
    mean, std = said.mean, said.std
    plain = spec.dtype == np.uint8 and not any(mean) and set(std) == {1.0}  # by metadata, pixels are stored values
    wanted = options.low is not None or options.mean or options.std
    if options.raw or (not wanted and plain):
        steps = (np.round(pixels) - (128 if spec.dtype == np.int8 else 0)).astype(spec.dtype)
        return steps, f"stored unchanged, {steps.min():g} to {steps.max():g}"
    if not wanted and len(mean) in (1, pixels.shape[-1]):
        real = (pixels - np.array(mean, np.float32)) / np.array(std, np.float32)
        values = f"{_normalised(mean, std)} (metadata)"
    else:
        low, high = options.low, options.high
        if low is None or high is None:
            low, high = (0.0, 1.0) if wanted else reach(spec)
        real, values = pixels / np.float32(WHITE) * (high - low) + low, f"values {low:g} to {high:g}"
        if options.mean or options.std:
            mean, std = options.mean or (0.0,), options.std or (1.0,)
            for name, numbers in (("mean", mean), ("std", std)):
                if len(numbers) not in (1, pixels.shape[-1]):
                    must = f"must have 1 or {pixels.shape[-1]}, one for each channel"
                    raise InvalidRequest(f"--{name} has {len(numbers)} numbers, {must}")
            real = (real - np.array(mean, np.float32)) / np.array(std, np.float32)
            values += f", {_normalised(mean, std)}"
    value = Value(spec.type, pixels.shape, spec.scale, spec.zero_point)
    return encode(value, real.astype(np.float32)).astype(spec.dtype, copy=False), values


def reach(spec: Spec) -> tuple[float, float]:
    """Returns the default real values of black and white: the range of a quantised 8-bit input, else 0 and 1."""
    if not spec.scale or spec.dtype.itemsize > 1:
        return 0.0, 1.0
    limits = np.iinfo(spec.dtype)
    return (limits.min - spec.zero_point) * spec.scale, (limits.max - spec.zero_point) * spec.scale


def _normalised(mean: Sequence[float], std: Sequence[float]) -> str:
    return f"(x - {_listed(mean)}) / {_listed(std)}"


def _listed(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else "/".join(f"{n:g}" for n in numbers)
