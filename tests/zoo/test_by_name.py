"""Models are loaded by the names that the command line takes."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal import zoo
from nnhal.base.errors import BadFile
from nnhal.zoo import by_name, maker


def test_a_model_that_is_made_loads_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path / "models"))
    said: list[str] = []
    model = nnhal.load("add4", progress=said.append)
    assert said == [f"making add4 in {tmp_path / 'models' / 'made' / str(maker.VERSION)}"]
    assert model.main == nnhal.load(maker.make("add4")).main
    x = np.arange(4, dtype=np.float32)
    assert nnhal.compile("add4", devices="reference")(x, x).tolist() == [0, 2, 4, 6]


def test_a_model_of_a_package_loads_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = maker.make("add4")
    entry = zoo.ZooFile(
        "given", "package", "1", "given.tflite", hashlib.sha256(made).hexdigest(), "", "features", None, ""
    )
    monkeypatch.setattr(zoo, "_TABLE", {"given": entry})
    monkeypatch.setattr(zoo, "_MODELS", [entry])
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    tmp_path.chmod(0o700)
    (tmp_path / "given.tflite").write_bytes(made)
    assert nnhal.load("given").main == nnhal.load(made).main


def test_a_file_goes_before_a_model_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("face_landmark").write_bytes(maker.make("add4"))
    assert len(nnhal.load("face_landmark").main.operations) == 1


@pytest.mark.parametrize("name", ["nothing", "nothing.tflite", "face_landmark\x1b[2J", ""])
def test_a_name_that_nothing_has_says_what_there_is(name: str) -> None:
    must = "no such file or zoo model, must be a .tflite or .onnx file or a name that `nnhal models` lists"
    with pytest.raises(nnhal.BadFile) as caught:
        nnhal.load(name)
    assert must in str(caught.value) and str(caught.value).isprintable()


def test_a_model_that_cannot_be_kept_is_an_error_of_nnhal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path / "file"))
    with pytest.raises(nnhal.NnhalError, match=r"maker: cannot write add4 to .* must be your own, writable folder"):
        nnhal.load("add4")


def test_the_path_of_a_name_is_that_of_the_model_made_or_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    said: list[str] = []
    assert by_name.path("add4", said.append).read_bytes() == maker.make("add4")
    assert said == [f"making add4 in {tmp_path / maker.PLACE}"]
    monkeypatch.setattr(zoo, "path", lambda name, progress: (name, progress))
    for name in ("face_landmark", "picture_person"):
        assert by_name.path(name, said.append) == (name, said.append)  # type: ignore[comparison-overlap]


def test_a_file_that_lies_beside_is_what_was_meant(tmp_path: Path) -> None:
    for name in ("detector.tflite", "detector.task", "detector.txt"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(BadFile) as caught:
        by_name.path(str(tmp_path / "detectr.tflite"))
    assert f"did you mean {tmp_path / 'detector.tflite'}" in str(caught.value)
    assert "detector.txt" not in str(caught.value)
