"""Inputs for the `.onnx` models of the zoo: pictures, sounds and numbers of the kind that each model expects."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnhal import zoo
from nnhal.base.operands import Array
from nnhal.zoo import Progress

RATES = {"sr": 16000}  # inputs that are a setting


def inputs_of(name: str, specs: Mapping[str, Any], number: int, progress: Progress | None = None) -> dict[str, Array]:
    """Makes inputs for a model of the zoo.

    Args:
        name: The model's name.
        specs: Each input's shape and type, by name.
        number: The number of the input set; it seeds the values.
        progress: Called with texts during a download.

    Returns:
        The inputs by name.
    """
    kind, rng = zoo.entry(name).kind, np.random.default_rng((number, len(name)))
    given = {}
    for each, spec in specs.items():
        shape, dtype = tuple(spec.shape), np.dtype(spec.dtype)
        if each in RATES:
            given[each] = np.full(shape, RATES[each], dtype)
        elif dtype.kind in "iu":
            given[each] = rng.integers(0, 256, shape).astype(dtype)
        elif kind == "picture" and len(shape) == 4:
            given[each] = picture(shape, number, progress)
        elif kind == "audio" and max(shape) > 500:
            given[each] = sound(shape, rng).astype(dtype)
        else:
            given[each] = rng.standard_normal(shape).astype(dtype)
    return given


def picture(shape: tuple[int, ...], number: int, progress: Progress | None) -> Array:
    """Returns the zoo's picture with lines of text: mirrored or darker by `number`.

    Args:
        shape: [batch, channels, height, width].
        number: The number of the input set.
        progress: Called with texts during a download.

    Returns:
        float32 from -1 to 1.
    """
    from PIL import Image, ImageDraw

    batch, channels, height, width = shape
    with Image.open(zoo.path("picture_person", progress)) as file:
        drawn = file.convert("RGB").resize((width, height))
    draw = ImageDraw.Draw(drawn)
    for line in range(0, height, max(24, height // 6)):
        draw.rectangle((0, line, width, line + 16), fill="white")
        draw.text((4 + 3 * number, line + 2), f"Line {line} of text, {number} 0123", fill="black")
    array = np.asarray(drawn, np.float32) / 127.5 - 1
    array = array[:, ::-1] if number % 3 == 1 else array * 0.5 if number % 3 == 2 else array
    array = array.mean(2, keepdims=True) if channels == 1 else array
    return np.ascontiguousarray(np.broadcast_to(array.transpose(2, 0, 1), (batch, channels, height, width)))


def sound(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Returns tones with overtones that swell, over a little noise: samples at 16 kHz."""
    size = int(np.prod(shape))
    time = np.arange(size) / 16000
    base = rng.uniform(90, 300)
    tones = sum(np.sin(2 * np.pi * base * n * time + n) / n for n in range(1, 9))
    swell = 0.3 + 0.3 * np.sin(2 * np.pi * rng.uniform(2, 5) * time)
    return np.asarray(0.2 * swell * tones + 0.01 * rng.standard_normal(size)).reshape(shape)
