"""What stands in the names of a file reaches no terminal, breaks no picture and leaves no folder."""

import json
import zipfile
from xml.dom import minidom

import numpy as np
import pytest

from nnhal.cli import main
from tests.frontends.flat import Writer

EVIL = '\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066FAKE\n"];evil[label="<script>]]>&\ufffe'


def named(name: str, *outputs: str, operator: str = "ABS") -> bytes:
    w = Writer()
    x = w.tensor([1], name=name)
    ys = [w.tensor([1], name=each) for each in outputs]
    for y in ys:
        w.operator(operator, [x], [y])
    w.ends([x], ys)
    w.signature(name, {name: x}, dict(zip(outputs, ys, strict=True)))
    return w.bytes()


def nnhal(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code, and all that the command writes."""
    with pytest.raises(SystemExit) as ended:
        main.main(list(arguments))
    said = capfd.readouterr()
    return ended.value.code or 0, said.out + said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["show"],
        ["show", "--placement", "-d", "reference"],
        ["show", "--dot"],
        ["show", "--json"],
        ["show", "--shape", "nothing=1"],
        ["show", "--signature", "nothing"],
        ["run", "-d", "reference"],
        ["run", "-d", "reference", "--json"],
        ["run", "-d", "reference", "-i", "a=b"],
        ["diff", "-d", "reference"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("operator", ["ABS", EVIL])
def test_no_verb_writes_a_control_character_of_a_name(capfd, tmp_path, arguments, operator):
    (tmp_path / "m.tflite").write_bytes(named(EVIL, EVIL, operator=operator))
    code, said = nnhal(capfd, arguments[0], str(tmp_path / "m.tflite"), *arguments[1:])
    assert code in (0, 3)
    assert not [c for c in said if not c.isprintable() and c != "\n"]
    assert "Traceback" not in said


def test_json_keeps_a_name_exactly(capfd, tmp_path):
    (tmp_path / "m.tflite").write_bytes(named(EVIL, "y"))
    _, said = nnhal(capfd, "show", str(tmp_path / "m.tflite"), "--json")
    assert json.loads(said)["inputs"][0]["name"] == EVIL


def test_a_picture_stays_well_formed(capfd, tmp_path):
    (tmp_path / "m.tflite").write_bytes(named(EVIL, "\x01\x1b<script>", "]]>&\ufffe"))
    nnhal(capfd, "show", str(tmp_path / "m.tflite"), "--svg", str(tmp_path / "m.svg"))
    picture = minidom.parse(str(tmp_path / "m.svg"))
    assert picture.getElementsByTagName("text") and not picture.getElementsByTagName("script")


NAMES = ["../../../evil", "/abs", "file", "allow_pickle", "x" * 70000, "a\0b", "o", "o"]


def test_every_output_is_a_member_with_a_safe_name_of_its_own(capfd, tmp_path):
    (tmp_path / "m.tflite").write_bytes(named("x", *NAMES))
    for form in ("npz", "json"):
        code, _ = nnhal(capfd, "run", str(tmp_path / "m.tflite"), "-d", "reference", "-o", str(tmp_path / f"o.{form}"))
        assert code == 0
    with zipfile.ZipFile(tmp_path / "o.npz") as archive:
        members = archive.namelist()
        archive.extractall(tmp_path / "here")
    with np.load(tmp_path / "o.npz", allow_pickle=False) as arrays:
        assert len(set(members)) == len(arrays) == len(NAMES)
        assert all(array.shape == (1,) for array in arrays.values())
    assert not any(part in member for member in members for part in ("..", "\0")) and max(map(len, members)) < 120
    assert list(json.loads((tmp_path / "o.json").read_text())) == [*NAMES[:-1], "o_2"]


def test_a_file_whose_own_name_is_hostile_is_refused_in_plain_text(capfd, tmp_path):
    path = tmp_path / "x\x1b[31m.tflite"
    path.write_bytes(b"junk")
    code, said = nnhal(capfd, "show", str(path))
    assert code == 3 and "\x1b" not in said and r"x\x1b[31m.tflite" in said
