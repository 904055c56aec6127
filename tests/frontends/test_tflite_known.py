"""What bytes are by their beginnings, to the byte that decides; and all that the metadata of a file may say."""

import io
import struct
import zipfile
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.frontends.source import archive_listing, bundle, exists_in_archive, known, split
from nnhal.frontends.tflite import load
from nnhal.model.file import write_model
from tests.frontends.test_tflite_metadata import Said, pictured, said

BEHIND = bytes(range(128, 160))


def what(data: bytes) -> str:
    return known(np.frombuffer(data, np.uint8))


BEGIN = {
    b"\x89PNG\r\n\x1a\n": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"BM": "a BMP picture",
    b"II*\0": "a TIFF picture",
    b"MM\0*": "a TIFF picture",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras writes it",
    b"GGUF": "a GGUF file",
    b"\x93NUMPY": "a numpy array",
    b"\x1f\x8b": "compressed with gzip",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\0": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"7z\xbc\xaf": "a 7z archive",
    b"%PDF": "a PDF document",
    b"\x7fELF": "a program or library (ELF)",
    b"version https://git-lfs": "a pointer of Git LFS: `git lfs pull` fetches the file",
    b"\x08\x01\x12": "the graph of a TensorFlow SavedModel",
    b"\x01\x02\x03\x04ORTM": "an ONNX Runtime model",
    b"\x01\x02\x03\x04M001": "metadata of a .tflite file",
    b"\x01\x02\x03\x04TFL2": "a .tflite file of schema 2",
    b"RIFF\x01\x02\x03\x04WEBP": "a WebP picture",
    b"RIFF\x01\x02\x03\x04WAVE": "sound (WAVE)",
    b"RIFF\x01\x02\x03\x04AVI ": "a RIFF file",
}


@pytest.mark.parametrize("start", BEGIN)
def test_a_format_is_known_by_the_whole_of_its_beginning(start):
    assert what(start + BEHIND) == BEGIN[start]
    assert what(start) == BEGIN[start]
    assert what(b"\xfe" + start + BEHIND) == ""
    if not start.startswith(b"RIFF"):
        assert what(start[:-1] + b"\xfe" + BEHIND) == ""


def test_a_tar_archive_is_known_by_byte_257():
    tar = bytes([0xFF]) * 257 + b"ustar" + BEHIND
    assert what(tar) == "a tar archive"
    assert what(tar[1:]) == what(b"\xff" + tar) == ""


def test_safetensors_begin_with_a_length_that_the_file_has():
    for size, expected in ((0, "a safetensors file"), (40, "a safetensors file"), (41, "")):
        data = struct.pack("<Q", size) + b"{" + BEHIND[:31]
        assert len(data) == 40 and what(data) == expected
    assert what(struct.pack("<Q", 1) + b"[" + BEHIND) == ""


def test_a_pickle_has_a_protocol_of_2_to_5_and_something_in_it():
    pickle = "a Python pickle, as PyTorch writes it"
    assert [what(bytes([0x80, n]) + BEHIND) for n in range(1, 7)] == ["", pickle, pickle, pickle, pickle, ""]
    assert what(b"\x81\x04" + BEHIND) == what(b"\x80") == ""


def test_onnx_is_a_version_and_then_one_of_its_fields():
    fields = (0x12, 0x1A, 0x22, 0x2A, 0x32, 0x3A, 0x42)
    for version, fits in ((0, False), (1, True), (20, True), (21, False)):
        for field in range(0x08, 0x50):
            found = what(bytes([8, version, field]) + BEHIND)
            expected = "an ONNX model" if fits and field in fields else ""
            if (version, field) == (1, 0x12):
                expected = "the graph of a TensorFlow SavedModel"
            assert found == expected, (version, field)


TEXTS = {
    b"a" * 16: "text",
    b"a" * 15: "",
    b"a" * 15 + b"\t": "text",
    b"a" * 15 + b"\r": "text",
    b"a" * 15 + b"\x08": "",
    b"a" * 15 + b"\x0e": "",
    b"a" * 15 + b"\x1f": "",
    b"a" * 15 + b"\xff": "",
    b"  \n{" + b" " * 20: "JSON",
    b"[" + b" " * 20: "JSON",
    b"  <!DOCTYPE HTML>" + b" " * 20: "a web page",
    b"<HTML>" + b" " * 20: "a web page",
    b"<?xml?>" + b" " * 20: "XML",
    b"<?xml?><net name='x'>" + b" " * 20: "an OpenVINO model (XML)",
    b"<?xml?><network/>" + b" " * 20: "XML",
}


@pytest.mark.parametrize("data", TEXTS)
def test_text_is_known_by_its_letters(data):
    assert what(data) == TEXTS[data]


def test_a_letter_of_several_bytes_may_lie_across_the_end_of_what_is_looked_at():
    for before in (4093, 4094, 4095):
        assert what(b"a" * before + "\N{EURO SIGN}\N{EURO SIGN}".encode()) == "text"
    for size in (2, 3, 4):
        assert all(what(b"a" * start + chr(1 << 5 * size - 3).encode() * 3000) == "text" for start in range(4))
    assert what(b"a" * 4095 + b"\xff" + b"a" * 9) == ""
    assert what(b"a" * 4000 + b"\xe2\x82") == ""


def test_only_the_first_4096_bytes_are_looked_at():
    assert what(b"a" * 4096 + b"\0\0\0") == "text"
    assert what(b"a" * 4090 + b"\0") == ""


def test_a_model_in_nnhals_format_is_no_bundle_whatever_its_constants_end_with(tmp_path):
    b = nnhal.Builder()
    x = b.input((4,), "TENSOR_QUANT8_ASYMM", 1.0, 0)
    metadata = io.BytesIO()
    with zipfile.ZipFile(metadata, "w") as file:
        file.writestr("labels.txt", "a\nb\n")
    constant = np.frombuffer(metadata.getvalue(), np.uint8)
    kept = b.constant(constant, "TENSOR_QUANT8_ASYMM", 1.0, 0)
    model = b.finish([x], [b.add(x, x, scale=2.0, zero_point=0), b.mul(kept, kept, scale=2.0, zero_point=0)])
    write_model(model, tmp_path / "m.nnhal")
    data = (tmp_path / "m.nnhal").read_bytes()
    assert b"PK\x05\x06" in data[-200:]
    for source in (tmp_path / "m.nnhal", data):
        assert len(nnhal.load(source).main.operations) == 2


def test_a_bundle_is_no_file_of_its_own_identifier():
    data = b"\x01\x02\x03\x04TFL3" + b"PK\x05\x06" + bytes(18)
    assert bundle(np.frombuffer(data, np.uint8), "x") is None
    other = b"\x01\x02\x03\x04\xff\xff\xff\xff" + b"PK\x05\x06" + bytes(18)
    assert bundle(np.frombuffer(other, np.uint8), "x") is not None


def test_at_most_twenty_members_are_listed():
    names = {f"m{n}": b"" for n in range(22)}
    assert archive_listing({}) == "nothing: it is empty"
    assert archive_listing(dict(list(names.items())[:20])).endswith("m18, m19")
    assert archive_listing(names).endswith("m18, m19 and 2 more")


def test_members_are_named_behind_a_file_that_there_is(tmp_path):
    path = tmp_path / "x.task"
    path.write_bytes(b"")
    deep = f"{path}:a:b:c:d"
    assert split(deep) == (str(path), ["a", "b", "c", "d"])
    assert split(f"{deep}:e") == (f"{deep}:e", [])
    assert split(str(path)) == (str(path), [])
    assert split(f"{tmp_path}:a") == (f"{tmp_path}:a", [])  # a folder has no members
    assert (
        exists_in_archive(deep)
        and exists_in_archive(str(tmp_path))
        and not exists_in_archive(f"{deep}:e")
        and not exists_in_archive(f"{tmp_path}:a")
    )


# ----------------------------------------------------------------------------------------------------------------- metadata


def told(**fields: Any) -> Any:
    """The metadata of a file whose one input says this."""
    s = Said()
    return load(pictured(s.bytes(s.table(f3=[s.table(f2=[s.table(**{k: v(s) for k, v in fields.items()})])])))).metadata


def test_what_goes_in_is_of_one_of_four_kinds():
    for number, name in enumerate(("", "feature", "image", "bounding boxes", "audio", "")):
        found = told(f3=lambda s, n=number: s.table(f0=("byte", n), f1=s.table(f0=("byte", 2))))
        assert found.inputs[0].content == name
        assert found.inputs[0].colour == ("grayscale" if name == "image" else "")


def test_a_picture_has_one_of_two_kinds_of_colours():
    for number, name in enumerate(("", "RGB", "grayscale", "")):
        found = told(f3=lambda s, n=number: s.table(f0=("byte", 2), f1=s.table(f0=("byte", n))))
        assert found.inputs[0].colour == name
    assert told(f3=lambda s: s.table(f0=("byte", 2))).inputs[0].colour == ""


def test_a_file_that_goes_with_a_model_is_of_one_of_six_kinds():
    kinds = ("", "descriptions", "axis labels", "value labels", "score calibration", "vocabulary", "index")
    for number, name in enumerate((*kinds, "")):
        files = [
            lambda s, n=number: s.table(f0="a.txt", f1="names", f2=("byte", n), f3="de"),
        ]
        s = Said()
        model, graph, tensor = ([each(s) for each in files] for _ in range(3))
        given = s.table(f6=tensor)
        found = load(pictured(s.bytes(s.table(f3=[s.table(f2=[given], f4=graph)], f6=model)))).metadata
        (own,) = found.inputs[0].files
        assert (own.name, own.description, own.kind, own.locale) == ("a.txt", "names", name, "de")
        assert len(found.files) == 2 and {each.kind for each in found.files} == {name}


def test_a_threshold_and_dimensions_are_those_of_the_file():
    value = struct.unpack("<I", struct.pack("<f", 0.25))[0]

    def unit(s: Said) -> Any:
        s.b.StartObject(1)
        s.b.PrependFloat32Slot(0, 0.25, 0.0)
        return s.b.EndObject()

    s = Said()
    options = unit(s)
    given = s.table(f2=[s.part("rows"), s.part("columns")], f4=[s.table(f0=("byte", 3), f1=options)])
    found = load(pictured(s.bytes(s.table(f3=[s.table(f2=[given])])))).metadata
    assert found.inputs[0].threshold == 0.25 and value
    assert found.inputs[0].dimension_names == ("rows", "columns")
    assert found.inputs[0].mean == ()
    assert told(f0=lambda s: "x").inputs[0].threshold is None


@pytest.mark.parametrize(
    ("mean", "std", "kept"),
    [
        ((1.0, 2.0), (3.0, 4.0), True),
        ((1.0, 2.0), (3.0, 0.0), False),
        ((1.0,), (3.0, 4.0), False),
        ((float("inf"),), (1.0,), False),
        ((1.0,), (float("nan"),), False),
    ],
)
def test_a_normalisation_counts_where_it_can_be_divided_by(mean, std, kept):
    found = load(pictured(said(mean, std))).metadata.inputs[0]
    assert (found.mean, found.std) == ((mean, std) if kept else ((), ()))


def test_another_subgraph_than_those_described_has_the_models_words_only():
    s = Said()
    found = load(pictured(s.bytes(s.table(f0="Pets", f3=[])))).metadata
    assert (found.name, found.inputs, found.outputs) == ("Pets", (), ())


def problem(make: Any) -> str:
    s = Said()
    return load(pictured(s.bytes(make(s)))).metadata.problem


def test_metadata_has_so_many_records_and_no_more():
    """A vector of n references counts as 1 + n, and each text as one more: 4 texts of the root besides, and its files."""
    for count, fits in ((4900, True), (5001, False)):
        found = problem(lambda s, n=count: s.table(f0="x", f3=[s.table()] * n))
        assert (found == "") is fits
        assert fits or found == "metadata cannot be read: has more than 5000 records"


def test_metadata_has_so_much_text_and_no_more():
    most = 1 << 20
    assert problem(lambda s: s.table(f0="x" * most)) == ""
    assert "has a text of 1048577 bytes" in problem(lambda s: s.table(f0="x" * (most + 1)))
    assert "has a text of 2 bytes" in problem(lambda s: s.table(f0="x" * (most - 1), f1="yy"))


def test_statistics_have_4096_numbers_at_most():
    for count, fits in ((4096, True), (4097, False)):
        s = Said()
        given = s.table(f5=s.table(f0=("floats", [1.0] * count)))
        found = load(pictured(s.bytes(s.table(f3=[s.table(f2=[given])])))).metadata
        assert ("has 4097 numbers in a row, must have at most 4096" in found.problem) is not fits
        assert len(found.inputs[0].greatest if fits else ()) == (count if fits else 0)


def test_metadata_of_another_identifier_or_of_very_many_bytes_is_not_read():
    assert "identifier is b'M002', must be b'M001'" in load(pictured(said().replace(b"M001", b"M002"))).metadata.problem
    large = said() + bytes((1 << 24) - len(said()))
    assert load(pictured(large)).metadata.name == "Pets"
    assert load(pictured(large + b"\0")).metadata.problem == ("metadata has 16777217 bytes, must have at most 16777216")


def test_control_characters_of_texts_are_left_out_but_for_line_ends():
    s = Said()
    found = load(pictured(s.bytes(s.table(f0="a\tb\x1bc\nd")))).metadata
    assert found.name == "abc\nd"


def test_a_zip_file_behind_a_model_is_looked_into_when_it_is_asked():
    found = load(pictured(said(), members={"labels.txt": b"cat\n", "b": b"2"})).metadata.contents
    assert "labels.txt" in found and "c" not in found
    assert (sorted(found), len(found), found["b"]) == (["b", "labels.txt"], 2, b"2")
    none = load(pictured(said())).metadata.contents
    assert (list(none), len(none), "b" in none) == ([], 0, False)
