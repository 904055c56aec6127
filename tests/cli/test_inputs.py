"""What files become as inputs: which file for which input, types, shapes, and every pixel of a picture."""

import io
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nnhal.base.codes import OperandType
from nnhal.base.errors import InvalidRequest
from nnhal.cli import arrays
from nnhal.cli.inputs import InputFromFile, metadata_of_specs, read_inputs
from nnhal.cli.pictures import MOST_PIXELS, InputOptions
from nnhal.model.metadata import Metadata, TensorMetadata
from nnhal.runtime.arguments import Spec
from nnhal.runtime.random_inputs import random_input

KINDS = {
    "f4": OperandType.TENSOR_FLOAT32,
    "f2": OperandType.TENSOR_FLOAT16,
    "i4": OperandType.TENSOR_INT32,
    "i2": OperandType.TENSOR_QUANT16_SYMM,
    "u1": OperandType.TENSOR_QUANT8_ASYMM,
    "i1": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    "?": OperandType.TENSOR_BOOL8,
    "i8": OperandType.TENSOR_INT32,
}


def spec(shape: Any = (2,), dtype: str = "f4", scale: float = 0.0, zero: int = 0, name: str = "x") -> Spec:
    return Spec(name, int(KINDS[dtype]), shape, np.dtype(dtype), scale, zero)


def read(specs: Any, *files: Any, seed: int = 0, said: Metadata | None = None, **options: Any) -> list[InputFromFile]:
    several = [specs] if isinstance(specs, Spec) else specs
    return read_inputs(several, [str(file) for file in files], seed, InputOptions(**options), said)


def saved(path: Path, array: Any, dtype: str = "f4") -> Path:
    np.save(path, np.asarray(array, dtype))
    return path


# ---------------------------------------------------------------------------------------------------- which is for which


def test_files_are_taken_in_order_or_by_name_and_the_rest_is_random(tmp_path):
    specs = [spec(name=name) for name in "abc"]
    one, two = saved(tmp_path / "1.npy", [1, 1]), saved(tmp_path / "2.npy", [2, 2])
    for files, wanted in (
        ([one], [1, None, None]),
        ([one, two], [1, 2, None]),
        ([f"b={one}"], [None, 1, None]),
        ([f"b={one}", two], [2, 1, None]),
        ([f"a={one}", two], [1, 2, None]),
        ([f"c={one}", f"c={two}"], [None, None, 2]),
    ):
        found = read(specs, *files, seed=5)
        for given, number in zip(found, wanted, strict=True):
            assert (given.origin == "random, seed 5") == (number is None)
            assert number is None or given.array.tolist() == [number] * 2
    with pytest.raises(InvalidRequest, match="the model has only 3 inputs: a, b, c"):
        read(specs, one, one, one, one)


def test_an_equals_sign_in_the_name_of_a_file_is_of_the_file_unless_an_input_is_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "a=b.npy", [3, 3])
    assert read(spec(), "a=b.npy")[0].array.tolist() == [3, 3]
    with pytest.raises(
        InvalidRequest, match=r"input nothing: does not exist, must be .npy, .npz, a picture \(picture_"
    ):
        read(spec(), "nothing")


def test_a_name_that_no_input_has_is_reported_with_the_names(tmp_path):
    file = saved(tmp_path / "1.npy", [1, 1])
    with pytest.raises(InvalidRequest, match=r"1\.npy: the model has no input 'x', must be one of a, b$"):
        read([spec(name=name) for name in "ab"], f"x={file}")


def test_arrays_of_an_archive_are_for_inputs_of_their_names_else_in_order(tmp_path):
    specs = [spec(name=name) for name in "ab"]
    np.savez(tmp_path / "x.npz", b=np.float32([1, 2]))
    assert read(specs, tmp_path / "x.npz")[1].array.tolist() == [1, 2]
    assert read(specs, tmp_path / "x.npz")[0].origin == "random, seed 0"
    np.savez(tmp_path / "x.npz", q=np.float32([1, 2]), p=np.float32([3, 4]))
    found = read(specs, tmp_path / "x.npz")
    assert [g.array.tolist() for g in found] == [[1, 2], [3, 4]] and found[0].origin.endswith("x.npz[q]")
    np.savez(tmp_path / "x.npz", a=np.float32([1, 2]), p=np.float32([3, 4]))
    assert [g.array.tolist() for g in read(specs, tmp_path / "x.npz")] == [[1, 2], [3, 4]]
    np.savez(tmp_path / "x.npz", p=np.float32([1, 2]))
    with pytest.raises(InvalidRequest, match=r"holds p.npy, must hold .npy files for a, b"):
        read(specs, tmp_path / "x.npz")


def test_what_metadata_says_is_found_by_name_else_by_place_where_there_are_as_many():
    a, b, c = (TensorMetadata(name=name, description=name) for name in "abc")
    both = [spec(name="b"), spec(name="a")]
    assert metadata_of_specs(both, [a, b]) == [b, a] and metadata_of_specs(both, [a, b, c]) == [b, a]
    assert metadata_of_specs(both, [a, c]) == [a, c]
    assert metadata_of_specs(both, [c]) == metadata_of_specs(both, ()) == [TensorMetadata()] * 2
    assert metadata_of_specs(both, [a, a]) == [a, a]
    assert metadata_of_specs(both, [a, b, b]) == [TensorMetadata()] * 2  # nobody knows which of two is meant


# ---------------------------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    ("stored", "wanted", "fits"),
    [
        ("f8", "f4", True),
        ("f4", "f2", True),
        ("f2", "f4", False),
        ("f4", "i4", False),
        ("i4", "f4", False),
        ("i1", "i4", False),
        ("i4", "i8", True),
        ("?", "?", True),
        ("u1", "?", False),
        ("u1", "u1", True),
    ],
)
def test_a_type_is_taken_where_it_is_of_the_same_kind_and_as_wide_or_wider(tmp_path, stored, wanted, fits):
    path = saved(tmp_path / "x.npy", [0, 1], stored)
    if fits:
        (given,) = read(spec(dtype=wanted), path)
        assert given.array.dtype == wanted and given.array.tolist() == [0, 1] and given.origin == str(path)
    else:
        with pytest.raises(InvalidRequest, match=f"is {np.dtype(stored)}, must be {np.dtype(wanted)}"):
            read(spec(dtype=wanted), path)


@pytest.mark.parametrize(
    ("stored", "declared", "wanted"),
    [
        ((3,), (3,), (3,)),
        ((3,), (1, 3), (1, 3)),
        ((3,), (None, 3), (1, 3)),
        ((3,), (None,), (3,)),
        ((3,), None, (3,)),
        ((1, 3), (3,), None),
        ((3,), (2, 3), None),
        ((3,), (1, 1, 3), None),
        ((2, 3), (None, 3), (2, 3)),
    ],
)
def test_a_missing_batch_dimension_is_added_and_no_other(tmp_path, stored, declared, wanted):
    path = saved(tmp_path / "x.npy", np.zeros(stored))
    if wanted is None:
        with pytest.raises(InvalidRequest, match="has shape"):
            read(spec(declared), path)
    else:
        assert read(spec(declared), path)[0].array.shape == wanted


def test_other_files_are_raw_bytes_of_just_the_size_and_open_dimensions_are_1(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(np.float32([1, 2, 3, 4, 5, 6]).tobytes())
    (given,) = read(spec((None, 2, 3)), path)
    assert given.array.tolist() == [[[1, 2, 3], [4, 5, 6]]] and given.origin == f"{path}, raw bytes"
    for wrong in (5, 7):
        with pytest.raises(InvalidRequest, match=f"has 24 bytes, must have {4 * wrong} for"):
            read(spec((wrong,)), path)


def test_a_header_says_how_large_an_array_is_to_the_byte(tmp_path):
    most = arrays.MAX_OPERAND_BYTES
    for shape, dtype, told in (
        ((most // 4 + 1,), "f4", "must take 0 to"),
        ((most // 4,), "f4", "has 0 bytes of data, must have"),
        ((0,), "f4", ""),
        ((), "f4", "has 0 bytes of data, must have 4"),
    ):
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            buffer, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        )
        (tmp_path / "x.npy").write_bytes(buffer.getvalue())
        if told:
            with pytest.raises(InvalidRequest, match=told):
                arrays.array_file(tmp_path / "x.npy")
        else:
            assert arrays.array_file(tmp_path / "x.npy").read().shape == shape
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, np.ones(3, "f4"), version=(2, 0))
    assert arrays.array_file(tmp_path / "x.npy").read().tolist() == [1, 1, 1]


# --------------------------------------------------------------------------------------------------------------- pictures

PIXELS = np.array([[[0, 128, 255], [10, 20, 30]], [[40, 50, 60], [70, 80, 90]]], np.uint8)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "p.png")
    return tmp_path / "p.png"


def pixels(given: InputFromFile) -> Any:
    return given.array[0].astype(np.float64)


@pytest.mark.parametrize(
    ("dtype", "scale", "zero", "options", "real"),
    [
        ("f4", 0.0, 0, {}, lambda p: p / 255),
        ("f4", 0.0, 0, {"low": -1.0, "high": 1.0}, lambda p: p / 127.5 - 1),
        ("f4", 0.0, 0, {"low": 2.0, "high": 5.0}, lambda p: 2 + p / 85),
        ("f4", 0.0, 0, {"raw": True}, lambda p: p),
        ("u1", 0.5, 100, {}, lambda p: p),
        ("i1", 0.5, 100, {}, lambda p: p - 128),
        ("i1", 0.5, 100, {"raw": True}, lambda p: p - 128),
        ("u1", 1 / 64, 64, {"low": 0.0, "high": 1.0}, lambda p: p / 255 * 64 + 64),
        ("i2", 1 / 1024, 0, {}, lambda p: p / 255 * 1024),
    ],
)
def test_each_pixel_is_stored_as_the_options_and_the_input_say(picture, dtype, scale, zero, options, real):
    (given,) = read(spec((1, 2, 2, 3), dtype, scale, zero), picture, **options)
    assert given.array.dtype == dtype and given.array.shape == (1, 2, 2, 3)
    np.testing.assert_allclose(pixels(given), real(PIXELS.astype(np.float64)), atol=0.51 if scale else 1e-5)


@pytest.mark.parametrize(
    ("said", "options", "told"),
    [
        ({}, {}, "values 0 to 1"),
        ({}, {"low": -1.0, "high": 1.0}, "values -1 to 1"),
        ({}, {"raw": True}, "stored unchanged, 0 to 255"),
        ({"mean": (127.5,), "std": (127.5,)}, {}, "(x - 127.5) / 127.5 (metadata)"),
        ({"mean": (1.0, 2, 3), "std": (4.0, 4, 4)}, {}, "(x - 1/2/3) / 4 (metadata)"),
        ({"mean": (1.0, 2), "std": (4.0, 5)}, {}, "values 0 to 1"),
        ({"mean": (127.5,), "std": (127.5,)}, {"low": 0.0, "high": 1.0}, "values 0 to 1"),
    ],
)
def test_it_is_said_how_a_picture_became_numbers(picture, said, options, told):
    metadata = Metadata(inputs=(TensorMetadata(**said),))
    (given,) = read(spec((1, 2, 2, 3)), picture, said=metadata, **options)
    assert given.origin == f"{picture}, resized 2x2 -> 2x2, {told}"
    (given,) = read(spec((1, 4, 8, 3)), picture, said=metadata, fit=True, **options)
    assert ", letterboxed 2x2 -> 8x4, " in given.origin


def test_metadata_that_changes_nothing_means_steps_for_bytes_and_pixels_for_floats(picture):
    said = Metadata(inputs=(TensorMetadata(mean=(0.0,), std=(1.0,)),))
    (given,) = read(spec((1, 2, 2, 3), "u1", 0.5, 7), picture, said=said)
    assert np.array_equal(given.array[0], PIXELS) and "stored unchanged" in given.origin
    (given,) = read(spec((1, 2, 2, 3)), picture, said=said)
    assert np.array_equal(given.array[0], PIXELS.astype(np.float32)) and "(metadata)" in given.origin
    for mean, std in ((1.0, 1.0), (0.0, 2.0)):
        said = Metadata(inputs=(TensorMetadata(mean=(mean,), std=(std,)),))
        (given,) = read(spec((1, 2, 2, 3), "u1", 0.5, 7), picture, said=said)
        wanted = np.clip(np.rint((PIXELS - mean) / std / 0.5) + 7, 0, 255)
        assert np.abs(pixels(given) - wanted).max() <= 1 and "(metadata)" in given.origin


def test_fitted_pictures_have_black_bars_and_stretched_ones_none(tmp_path):
    Image.new("RGB", (4, 2), "white").save(tmp_path / "w.png")
    (given,) = read(spec((1, 4, 4, 3)), tmp_path / "w.png", fit=True)
    assert given.array[0, :, 0, 0].tolist() == [0, 1, 1, 0]
    (given,) = read(spec((1, 4, 4, 3)), tmp_path / "w.png")
    assert given.array.min() == 1


def test_one_channel_is_grey_and_pictures_are_turned_upright(tmp_path):
    red = Image.new("RGB", (2, 1), "red")
    red.save(tmp_path / "r.png")
    (given,) = read(spec((1, 1, 2, 1)), tmp_path / "r.png")
    np.testing.assert_allclose(given.array.ravel(), [76 / 255] * 2, atol=1e-3)  # 0.299 of 255, by ITU-R 601
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(PIXELS[:, :1]).save(tmp_path / "t.png", exif=exif)
    (given,) = read(spec((1, 1, 2, 3)), tmp_path / "t.png", raw=True)
    assert given.array[0, 0].tolist() == [PIXELS[1, 0].tolist(), PIXELS[0, 0].tolist()]


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 2, 3), (1, 2, 2, 2), (1, 2, 2, 5), (1, 2, 2, 3, 1)])
def test_an_input_that_takes_no_picture_says_so(picture, shape):
    must = "[1, height, width, channels] or [1, channels, height, width] of 1, 3 or 4 channels"
    with pytest.raises(InvalidRequest, match=re.escape(f"takes no picture, must be {must}")):
        read(spec(shape), picture)


RAMP = np.add.outer(np.arange(8), np.arange(6)) / 12  # 0 to 1


@pytest.mark.parametrize("batch", [(), (1,)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_may_come_first(tmp_path, batch, channels):
    shown = np.stack([RAMP, 1 - RAMP, RAMP * 0 + 0.25, RAMP / 2], -1)[..., :channels]
    stored = np.round(shown * 255).astype(np.uint8)
    Image.fromarray(stored if channels > 1 else stored[..., 0]).save(tmp_path / "p.png")
    (last,) = read(spec((*batch, 8, 6, channels)), tmp_path / "p.png")
    (first,) = read(spec((*batch, channels, 8, 6)), tmp_path / "p.png")
    np.testing.assert_allclose(last.array.reshape(8, 6, channels), shown, atol=0.5 / 255 + 1e-6)
    np.testing.assert_array_equal(
        first.array.reshape(channels, 8, 6), last.array.reshape(8, 6, channels).transpose(2, 0, 1)
    )


@pytest.mark.parametrize(
    ("name", "white", "kind"), [("g.png", 65535, "u2"), ("g.tiff", 65535, "u2"), ("f.tiff", 1, "f4")]
)
@pytest.mark.parametrize("shape", [(1, 8, 6, 1), (1, 3, 8, 6)])
def test_pictures_of_more_than_8_bits_keep_them(tmp_path, name, white, kind, shape):
    Image.fromarray((RAMP * white).astype(kind)).save(tmp_path / name)
    (given,) = read(spec(shape), tmp_path / name)
    expected = RAMP[..., None] if shape[3] == 1 else np.broadcast_to(RAMP, (3, 8, 6))
    np.testing.assert_allclose(given.array[0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (
            (RAMP * 65535).astype(np.int32),
            "has 32-bit integers, whose white is undefined, must have 8 or 16 bits, or be .npy",
        ),
        ((RAMP * 2).astype(np.float32), "has values from 0 to 2, must be 0 to 1, or be .npy"),
    ],
)
def test_a_picture_that_says_no_white_is_refused(tmp_path, stored, why):
    Image.fromarray(stored).save(tmp_path / "p.tiff")
    with pytest.raises(InvalidRequest, match=re.escape(why)):
        read(spec((1, 8, 6, 1)), tmp_path / "p.tiff")


def test_mean_and_deviation_are_of_the_values_in_the_range(picture):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    (given,) = read(spec((1, 3, 2, 2)), picture, mean=mean, std=std)
    expected = ((PIXELS / 255 - mean) / std).transpose(2, 0, 1)
    np.testing.assert_allclose(given.array[0], expected, atol=1e-5)
    assert given.origin.endswith("values 0 to 1, (x - 0.485/0.456/0.406) / 0.229/0.224/0.225")
    (given,) = read(spec((1, 2, 2, 3)), picture, low=0.0, high=255.0, mean=(127.5,), std=(127.5,))
    np.testing.assert_allclose(given.array[0], PIXELS / 127.5 - 1, atol=1e-5)
    with pytest.raises(InvalidRequest, match="--std has 2 numbers, must have 1 or 3, one for each channel"):
        read(spec((1, 2, 2, 3)), picture, std=(1.0, 2.0))


def test_bars_have_the_grey_that_is_asked_for(tmp_path):
    Image.new("RGB", (4, 2), "white").save(tmp_path / "w.png")
    (given,) = read(spec((1, 4, 4, 3)), tmp_path / "w.png", fit=True, fill=114)
    np.testing.assert_allclose(given.array[0, :, 0, 0], [114 / 255, 1, 1, 114 / 255], atol=1e-6)


# --------------------------------------------------------------------------------------------------------------- sounds


def recorded(path, samples, *, rate=16000, width=2):
    """A file of samples from -1 to 1, [count, channels]."""
    whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64) + (128 if width == 1 else 0)
    data = whole.astype("<i8").reshape(-1, 1).view(np.uint8)[:, :width]
    with wave.open(str(path), "wb") as file:
        file.setparams((samples.shape[1], width, rate, len(samples), "NONE", "not compressed"))
        file.writeframes(data.tobytes())
    return path


def tone(count, rate, frequency=440.0):
    return np.sin(2 * np.pi * frequency * np.arange(count) / rate) / 2


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(800,), (1, 800), (1, 800, 1)])
def test_a_sound_is_samples_from_minus_1_to_1(tmp_path, width, shape):
    samples = tone(800, 16000)
    (given,) = read(spec(shape), recorded(tmp_path / "a.wav", samples[:, None], width=width))
    assert given.array.dtype == np.float32 and given.array.shape == shape
    np.testing.assert_allclose(given.array.ravel(), samples, atol=2.0 ** (2 - 8 * width))
    assert given.origin.endswith("0.05 s at 16000 Hz, taken at that rate (--rate N resamples)")


def test_channels_are_mixed_what_is_long_is_cut_and_silence_follows_what_is_short(tmp_path):
    left = tone(800, 16000)
    path = recorded(tmp_path / "a.wav", np.stack([left, left * 0], -1), width=4)
    (cut,) = read(spec((1, 500)), path, rate=16000)
    np.testing.assert_allclose(cut.array[0], left[:500] / 2, atol=1e-6)
    assert cut.origin.endswith("0.05 s at 16000 Hz, 2 channels mixed, cut to 500 samples")
    (longer,) = read(spec((1, 900)), path, rate=16000)
    np.testing.assert_allclose(longer.array[0], [*left / 2, *[0] * 100], atol=1e-6)
    assert longer.origin.endswith("2 channels mixed, followed by silence to 900 samples")


@pytest.mark.parametrize(("rate", "wanted"), [(44100, 16000), (8000, 16000), (48000, 16000), (22050, 44100)])
def test_a_tone_stays_that_tone_at_another_rate(tmp_path, rate, wanted):
    """Away from the ends, where the tone begins out of nothing."""
    path = recorded(tmp_path / "a.wav", tone(3 * rate, rate)[:, None], rate=rate, width=4)
    (given,) = read(spec((1, 3 * wanted)), path, rate=wanted)
    middle = slice(wanted // 4, -wanted // 4)
    np.testing.assert_allclose(given.array[0, middle], tone(3 * wanted, wanted)[middle], atol=2e-3)
    assert f"resampled to {wanted} Hz" in given.origin


def test_a_frequency_that_the_new_rate_has_not_is_silence(tmp_path):
    path = recorded(tmp_path / "a.wav", tone(48000, 48000, 11000.0)[:, None], rate=48000, width=4)
    (given,) = read(spec((1, 16000)), path, rate=16000)
    assert np.abs(given.array[0, 2000:-2000]).max() < 5e-3


def test_samples_are_stored_as_the_input_has_them(tmp_path):
    samples = np.array([[-1], [0], [0.5]])
    path = recorded(tmp_path / "a.wav", samples, width=4)
    (whole,) = read(spec((3,), "i2"), path)
    assert whole.array.tolist() == [-32768, 0, 16384]
    (steps,) = read(spec((3,), "i1", 1 / 128, 0), path)
    assert steps.array.tolist() == [-128, 0, 64]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.wav", b"RIFF\0\0\0\0WAVE", "cannot be read as a sound"),
        ("a.wav", b"", "cannot be read as a sound"),
        ("a.mp3", b"ID3", "is .mp3, must be .wav: `ffmpeg -i a.mp3 -c:a pcm_s16le out.wav`"),
    ],
)
def test_what_is_no_wav_file_is_never_taken_as_raw_bytes(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequest, match=re.escape(why)):
        read(spec((1, len(content)), "u1") if name == "a.mp3" else spec((1, 4)), tmp_path / name)


def test_an_input_of_two_dimensions_takes_no_sound(tmp_path):
    with pytest.raises(InvalidRequest, match="takes no sound, must have one dimension that is not 1, of samples"):
        read(spec((40, 98)), recorded(tmp_path / "a.wav", tone(10, 16000)[:, None]))


def test_pictures_have_up_to_67_million_pixels(tmp_path, monkeypatch):
    assert MOST_PIXELS == 67_108_864
    monkeypatch.setattr("nnhal.cli.pictures.MOST_PIXELS", 6)
    Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    Image.new("RGB", (7, 1)).save(tmp_path / "b.png")
    assert read(spec((1, 1, 1, 3)), tmp_path / "a.png")
    with pytest.raises(InvalidRequest, match=r"has \(7, 1\) pixels, must have at most 6"):
        read(spec((1, 1, 1, 3)), tmp_path / "b.png")


@pytest.mark.parametrize("suffix", [".PNG", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff"])
def test_pictures_of_every_form_are_read(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    Image.new("RGB", (8, 8), "white").save(path)
    assert read(spec((1, 2, 2, 3)), path)[0].array.min() > 0.98


# ----------------------------------------------------------------------------------------------------------------- random


@pytest.mark.parametrize(
    ("dtype", "scale", "least", "most"),
    [
        ("f4", 0.0, -1, 1),
        ("f2", 0.0, -1, 1),
        ("i4", 0.0, 0, 9),
        ("u1", 0.5, 0, 255),
        ("i1", 0.5, -128, 127),
        ("i2", 0.5, -32768, 32767),
        ("?", 0.0, 0, 1),
    ],
)
def test_random_inputs_are_of_the_whole_range_of_their_kind(dtype, scale, least, most):
    found = random_input(spec((None, 70_000), dtype, scale), np.random.default_rng(0))
    assert found.shape == (1, 70_000) and found.dtype == dtype
    low, high = found.min(), found.max()
    if found.dtype.kind == "f":
        assert least <= low < least + 1e-3 and most - 2e-3 < high <= most
    elif dtype == "i2":
        assert least <= low < least + 20 and most - 20 < high <= most
    else:
        assert (low, high) == (least, most)


def test_random_inputs_follow_from_the_seed_one_after_the_other():
    specs = [spec((4,), name="a"), spec((4,), name="b")]
    first, again, other = (read(specs, seed=seed) for seed in (1, 1, 2))
    assert [g.array.tolist() for g in first] == [g.array.tolist() for g in again]
    assert first[0].array.tolist() != first[1].array.tolist() != other[1].array.tolist()
    generator = np.random.default_rng(1)
    assert [g.array.tolist() for g in first] == [random_input(s, generator).tolist() for s in specs]
