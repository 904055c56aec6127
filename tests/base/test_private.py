"""Folders and files of one user alone."""

import os
import stat
from pathlib import Path

import pytest

from nnhal.base.private import NotPrivate, absolute, made_anew, private_file, private_folder
from tests.waiting import Opened

pytestmark = pytest.mark.cache


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o022, 0o777, 0o000])
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_made_is_the_users_alone_whatever_the_umask(tmp_path, umask):
    (tmp_path / "a").mkdir(mode=0o700)
    os.chmod(tmp_path / "a", 0o700)
    folder = private_folder(tmp_path / "a" / "cache")
    fd = private_file(folder, "file", os.O_RDWR | os.O_CREAT)
    assert (mode(tmp_path / "a" / "cache"), mode(tmp_path / "a" / "cache" / "file")) == (0o700, 0o600)
    os.write(fd, b"x")
    os.close(fd)
    again = private_file(folder, "file", os.O_RDWR | os.O_CREAT)
    assert os.pread(again, 9, 0) == b"x"
    os.close(again)
    os.close(folder)


@pytest.mark.parametrize("bits", [0o701, 0o704, 0o710, 0o770, 0o777, 0o1777])
def test_a_folder_that_others_may_use_is_refused(tmp_path, bits):
    (tmp_path / "cache").mkdir()
    os.chmod(tmp_path / "cache", bits)
    opened = Opened()
    for _ in range(3):
        with pytest.raises(NotPrivate, match=f"has mode {bits & 0o777:04o}, must be this user's alone"):
            private_folder(tmp_path / "cache")
    opened.closed()


def test_a_link_to_a_folder_and_a_file_are_refused(tmp_path):
    private_folder(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(NotPrivate, match="is a link or no folder"):
            private_folder(tmp_path / name)


def test_a_link_a_second_name_another_kind_and_an_open_file_are_refused(tmp_path):
    folder = private_folder(tmp_path / "cache")
    inside = tmp_path / "cache"
    (inside / "plain").touch(0o600)
    (inside / "link").symlink_to(inside / "plain")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        private_file(folder, "link", os.O_RDWR | os.O_CREAT)
    os.link(inside / "plain", tmp_path / "other name")
    with pytest.raises(NotPrivate, match="has 2 names, must have one"):
        private_file(folder, "plain", os.O_RDWR)
    os.mkfifo(inside / "pipe", 0o600)
    with pytest.raises(NotPrivate, match="is no regular file"):
        private_file(folder, "pipe", os.O_RDWR)
    (inside / "open").touch(0o600)
    os.chmod(inside / "open", 0o640)
    with pytest.raises(NotPrivate, match="has mode 0640"):
        private_file(folder, "open", os.O_RDWR)
    with pytest.raises(FileNotFoundError):
        private_file(folder, "missing", os.O_RDWR)
    os.close(folder)


def test_another_users_folder_is_refused(tmp_path, monkeypatch):
    folder = private_folder(tmp_path / "cache")
    fd = private_file(folder, "file", os.O_RDWR | os.O_CREAT)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(NotPrivate, match=f"belongs to user {uid}, must be this user's"):
        private_folder(tmp_path / "cache")
    with pytest.raises(NotPrivate, match=f"belongs to user {uid}, must be this user's"):
        private_file(folder, "file", os.O_RDWR)
    os.close(fd)
    os.close(folder)


def test_a_file_that_is_refused_is_closed(tmp_path):
    folder = private_folder(tmp_path / "cache")
    (tmp_path / "cache" / "open").touch(0o600)
    os.chmod(tmp_path / "cache" / "open", 0o640)
    opened = Opened()
    for _ in range(3):
        with pytest.raises(NotPrivate):
            private_file(folder, "open", os.O_RDWR)
    opened.closed()
    os.close(folder)


@pytest.mark.parametrize("there", ["nothing", "a file", "what was left of another time"])
def test_a_file_is_made_anew_in_the_place_of_what_has_its_name(tmp_path, there):
    folder, file = private_folder(tmp_path / "cache"), tmp_path / "cache" / "file"
    if there != "nothing":
        (file if there == "a file" else file.with_name("file.new")).write_bytes(b"before")
    fd = made_anew(folder, "file", b"head")
    os.write(fd, b", tail")
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"; end")
    assert [each.name for each in file.parent.iterdir()] == ["file"]
    assert file.read_bytes() == b"head, tail; end" and file.stat().st_mode & 0o777 == 0o600
    os.close(fd)
    os.close(folder)


def test_a_path_is_from_here_and_a_tilde_the_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert absolute("a/b") == tmp_path / "a" / "b"
    assert absolute("~/b") == Path("/home/me/b")
    assert absolute("/~/b") == Path("/~/b")


def test_a_path_below_a_home_that_is_not_known_is_refused():
    with pytest.raises(NotPrivate, match="is below a home folder that is not known") as caught:
        absolute("~nobody-of-this-name/b")
    assert caught.value.filename == "~nobody-of-this-name/b"


def test_a_path_from_a_folder_that_is_gone_is_refused(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError):
        absolute("here")
