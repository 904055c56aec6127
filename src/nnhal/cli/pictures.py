"""Pictures as a model's input: turned upright, resized, and brought to the values that the model takes."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.errors import DeviceUnavailable, InvalidRequest, told
from nnhal.base.operands import Array, Value
from nnhal.base.records import Record
from nnhal.cli.arrays import ordinary
from nnhal.model.metadata import TensorMetadata
from nnhal.ops.common import encode
from nnhal.runtime.arguments import Spec

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "PPM", "TIFF")  # no others, whatever a file is called
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
    """How pictures and sounds become tensors. Pictures are stretched or fitted (with bars) to the size.

    low, high: the real values of black and white; None for what the model's metadata says, else all that a quantised input
    can hold, else 0 to 1. raw: 0 to 255 as they are stored, from -128 on in an int8 input.
    mean, std: taken off these values, and what they are divided by then, one or one for each channel.
    fill: 0 to 255, of the bars. rate: samples a second of sounds that the model takes; None for those of the file.
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
    """Where a picture lies in an input. first: whether channels are before height and width."""

    height: int
    width: int
    channels: int
    first: bool


def layout_of(shape: Sequence[int]) -> PictureLayout | None:
    """Of [1, height, width, channels] or [1, channels, height, width], also without the 1; None for what takes none."""
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
    """A picture as an input, and a sentence on what was done. Raises InvalidRequest, DeviceUnavailable without Pillow."""
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
            warnings.simplefilter("ignore")  # of sizes, which are looked at here, and of metadata, which are not used
            with Image.open(content, formats=FORMATS) as file:
                if math.prod(file.size) > MOST_PIXELS:
                    raise InvalidRequest(f"input {path} has {file.size} pixels, must have at most {MOST_PIXELS}")
                upright = ImageOps.exif_transpose(file)
                upright = deep(path, upright, file.format) or upright.convert(MODES[layout.channels])
    except InvalidRequest:
        raise
    except Exception as error:  # decoders raise whatever they trip over
        raise InvalidRequest(f"input {path}: is no picture that can be read: {told(error)}") from None
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
    """A picture of one channel and more than 8 bits, its values from 0 to 255; None for another."""
    from PIL import Image

    white = 65535.0 if file.mode == "I" and kind == "PNG" else DEEP.get(file.mode)
    if white is None:
        if file.mode == "I":
            raise InvalidRequest(
                f"input {path} has integers of 32 bits, which say no white, must have 8 or 16, or be .npy"
            )
        return None
    values = np.asarray(file, np.float32)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= white):
        raise InvalidRequest(f"input {path} has values from {low:g} to {high:g}, must be 0 to {white:g}, or be .npy")
    return Image.fromarray(values * (WHITE / white))


def stored(spec: Spec, pixels: Array, options: InputOptions, said: TensorMetadata) -> tuple[Array, str]:
    """Pixels from 0 to 255 as the input stores them, and a sentence on that."""
    mean, std = said.mean, said.std
    plain = spec.dtype == np.uint8 and not any(mean) and set(std) == {1.0}  # how metadata says that pixels are steps
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
    """Real values of black and white where nobody says any: all that a quantised input can hold, else 0 and 1."""
    if not spec.scale or spec.dtype.itemsize > 1:
        return 0.0, 1.0
    limits = np.iinfo(spec.dtype)
    return (limits.min - spec.zero_point) * spec.scale, (limits.max - spec.zero_point) * spec.scale


def _normalised(mean: Sequence[float], std: Sequence[float]) -> str:
    return f"(x - {_listed(mean)}) / {_listed(std)}"


def _listed(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else "/".join(f"{n:g}" for n in numbers)
