"""Sounds as a model's input: samples from -1 to 1, one channel, at the model's sample rate."""

import math
import wave
from pathlib import Path

import numpy as np

from nnhal.base.errors import InvalidRequest, error_text
from nnhal.base.operands import Array, Value
from nnhal.cli.arrays import ordinary
from nnhal.ops.common import encode
from nnhal.runtime.arguments import Spec

SOUNDS = frozenset((".wav", ".wave"))
OTHER_SOUNDS = frozenset((".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac", ".aiff"))
MOST_SAMPLES = 1 << 27  # of all channels together, 512 MiB


def sound(spec: Spec, path: Path, rate: int | None) -> tuple[Array, str]:
    """Reads a sound for an input; cuts a longer one, and pads a shorter one with silence.

    Args:
        spec: The input.
        path: The file.
        rate: The model's sample rate in Hz; None for that of the file.

    Returns:
        The array, and a text that describes the conversion.

    Raises:
        InvalidRequest: The file cannot be read, or the input is not a sound.
    """
    dims = spec.shape or ()
    long = [n for n, size in enumerate(dims) if size != 1]
    if len(long) != 1 or spec.dtype.kind not in "fi":
        raise InvalidRequest(f"input {path}: {spec} takes no sound, must have one dimension that is not 1, of samples")
    samples, own, channels = decoded(path)
    said = [f"{len(samples) / own:.3g} s at {own} Hz"]
    if channels > 1:
        said.append(f"{channels} channels mixed")
    if rate is not None and rate != own:
        samples = resampled(samples, own, rate)
        said.append(f"resampled to {rate} Hz")
    elif rate is None:
        said.append("taken at that rate (--rate N resamples)")
    size = dims[long[0]] or len(samples)
    if len(samples) != size:
        said.append(f"{'cut' if len(samples) > size else 'followed by silence'} to {size} samples")
        samples = np.concatenate([samples[:size], np.zeros(max(0, size - len(samples)), np.float32)])
    shape = tuple(size if n == long[0] else 1 for n in range(len(dims)))
    if spec.scale:
        array = encode(Value(spec.type, shape, spec.scale, spec.zero_point), samples)
    elif spec.dtype.kind == "i":
        most = -np.iinfo(spec.dtype).min
        array = np.clip(np.round(samples.astype(np.float64) * most), -most, most - 1)
    else:
        array = samples
    return np.ascontiguousarray(array.astype(spec.dtype)).reshape(shape), ", ".join(said)


def decoded(path: Path) -> tuple[Array, int, int]:
    """Decodes a `.wav` file.

    Args:
        path: The file.

    Returns:
        The samples from -1 to 1 with the channels mixed, the sample rate in Hz, and the number of channels.

    Raises:
        InvalidRequest: The file cannot be read, or is too long.
    """
    must = "must be a .wav file of integers of 8, 16, 24 or 32 bits: `ffmpeg -i FILE -c:a pcm_s16le out.wav` makes one"
    try:
        with ordinary(path) as content, wave.open(content, "rb") as file:
            channels, width, rate, count = file.getparams()[:4]
            if not (1 <= width <= 4 and channels and rate) or count * channels > MOST_SAMPLES:
                raise InvalidRequest(
                    f"input {path} has {count} samples of {channels} channels and {8 * width} bits at {rate} Hz, {must}"
                )
            data = np.frombuffer(file.readframes(count), np.uint8)
    except (wave.Error, EOFError) as error:
        raise InvalidRequest(f"input {path}: cannot be read as a sound: {error_text(error)}; {must}") from None
    data = data[: data.size // (width * channels) * width * channels].reshape(-1, width)
    if not data.size:
        raise InvalidRequest(f"input {path} has no samples, must have some")
    if width == 1:  # unsigned, unlike the other widths
        whole = data[:, 0].astype(np.int64) - 128
    else:
        padded = np.zeros((len(data), 4), np.uint8)
        padded[:, 4 - width :] = data
        whole = padded.view("<i4")[:, 0].astype(np.int64) >> 8 * (4 - width)
    samples = whole.reshape(-1, channels).mean(1) / (1 << (8 * width - 1))
    return samples.astype(np.float32), rate, channels


def resampled(samples: Array, rate: int, wanted: int) -> Array:
    """Resamples a sound, with the frequencies that both rates have.

    It cuts or extends the spectrum of overlapping blocks, so that the cost is linear in the length.

    Args:
        samples: The samples.
        rate: Their rate in Hz.
        wanted: The rate of the result in Hz.

    Raises:
        InvalidRequest: The rates have too small a common divisor.
    """
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    if max(up, down) > 1 << 16:
        raise InvalidRequest(f"--rate {wanted}: {rate} Hz and it have no common divisor that is practical")
    total = -(-len(samples) * up // down)
    block = down * max(1, (1 << 16) // down)  # samples whose position in the result is an integer
    margin = down * max(1, -(-(1 << 12) // down))
    pieces = []
    for start in range(0, len(samples), block):
        part = np.zeros(block + 2 * margin, np.float64)
        low, high = max(0, start - margin), min(len(samples), start + block + margin)
        part[low - start + margin : high - start + margin] = samples[low:high]
        size = len(part) * up // down
        spectrum = np.fft.rfft(part)
        kept = np.zeros(size // 2 + 1, complex)
        count = min(len(spectrum), len(kept))
        kept[:count] = spectrum[:count]
        made = np.fft.irfft(kept, size) * (size / len(part))
        first = margin * up // down
        pieces.append(made[first : first + block * up // down])
    return np.concatenate(pieces)[:total].astype(np.float32)
