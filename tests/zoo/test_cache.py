"""The cache folder is the user's own: no link is followed, nothing is waited for, and only what was checked is used."""

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import nnhal
from nnhal import zoo
from nnhal.cli import common
from nnhal.zoo import cache, maker

CONTENT = b"a model"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_for_the_user_alone(tmp_path):
    made = cache.private(tmp_path / "a" / "models", "made", "1")
    assert made == tmp_path / "a" / "models" / "made" / "1"
    assert {mode(each) for each in (made, made.parent, made.parent.parent)} == {0o700}


def test_a_folder_that_others_may_write_to_is_closed_to_them(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models").chmod(0o777)
    cache.private(tmp_path / "models")
    assert mode(tmp_path / "models") == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    cache.private(tmp_path / "models")
    monkeypatch.setattr(cache.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match=r"belongs to user .*, must be yours"):
        cache.private(tmp_path / "models")


def test_a_link_in_the_place_of_the_folder_is_followed_where_it_is_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "models").symlink_to(tmp_path / "elsewhere")
    assert cache.private(tmp_path / "models", "made") == tmp_path / "elsewhere" / "made"
    assert (tmp_path / "elsewhere" / "made").is_dir()
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(OSError, match=r"Not a directory|symbolic link"):
        cache.private(tmp_path / "models")


def test_a_lock_follows_no_link_and_truncates_nothing(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".one.lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"), cache.locked(tmp_path, "one"):
        pass
    (tmp_path / ".two.lock").write_text("left by somebody")
    (tmp_path / ".two.lock").chmod(0o600)
    with cache.locked(tmp_path, "two"):
        assert (tmp_path / ".two.lock").read_text() == "left by somebody"
    assert victim.read_text() == "precious"


def plant(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        elsewhere = path.with_suffix(".elsewhere")
        elsewhere.write_bytes(CONTENT)
        path.symlink_to(elsewhere)


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "link"])
def test_what_is_no_ordinary_file_is_not_the_model(tmp_path, kind):
    plant(tmp_path / "m", kind)
    assert not cache.sound(tmp_path / "m", DIGEST)
    if kind != "folder":
        cache.write(tmp_path / "m", CONTENT)
        assert cache.sound(tmp_path / "m", DIGEST) and not (tmp_path / "m").is_symlink()


def test_the_file_that_was_checked_is_the_one_that_is_read(tmp_path):
    cache.write(tmp_path / "m", CONTENT)
    with cache.opened(tmp_path / "m", DIGEST) as file:
        cache.write(tmp_path / "m", b"put there since")
        assert file.read() == CONTENT
    with pytest.raises(OSError, match=r"the digest of .* is not"):
        cache.opened(tmp_path / "m", DIGEST)


def test_the_command_line_loads_the_file_that_was_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    content, opened = maker.make("tiny_conv"), maker.opened

    def swapped(name, progress):
        file = opened(name, progress)
        cache.write(Path(file.name), content)
        return file

    monkeypatch.setattr(maker, "opened", swapped)
    assert len(common.open_model("add4", {"shapes": (), "values": (), "signature": None}).main.operations) == 1
    assert len(nnhal.load(tmp_path / maker.PLACE / "add4.tflite").main.operations) == 3


def test_pip_runs_nothing_that_lies_in_the_working_directory(tmp_path, monkeypatch):
    """pip itself is asked for a version only: whether it is the real one is what counts."""
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    commands = []

    def run(command, **_):
        commands.append(command)
        raise OSError("not now")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", run)
        with pytest.raises(zoo.ZooError):
            zoo._download(zoo.entry("wake_alexa"), tmp_path)
    (command,) = commands
    asked = [*command[: command.index("pip") + 1], "--version"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("pip ") and not (tmp_path / "ran").exists()
    assert asked[0] == sys.executable
