"""Folders and files of one user alone."""

import contextlib
import errno
import os
import signal
import stat
import sys
import threading
from pathlib import Path

import pytest

from nnhal.base import private
from nnhal.base.private import NotPrivate, absolute_path, file_lock, private_file, private_folder, replace_file
from tests.execution import run_python
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
    with pytest.raises(NotPrivate, match="is not a regular file"):
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
    fd = replace_file(folder, "file", b"head")
    os.write(fd, b", tail")
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"; end")
    assert [each.name for each in file.parent.iterdir()] == ["file"]
    assert file.read_bytes() == b"head, tail; end" and file.stat().st_mode & 0o777 == 0o600
    os.close(fd)
    os.close(folder)


def test_a_file_that_cannot_be_written_whole_takes_no_files_place(tmp_path, monkeypatch):
    folder, file = private_folder(tmp_path / "cache"), tmp_path / "cache" / "file"
    os.close(replace_file(folder, "file", b"before"))
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:2]))  # as a full disk does
    with pytest.raises(OSError, match="No space left on device"):
        replace_file(folder, "file", b"after")
    assert [each.name for each in file.parent.iterdir()] == ["file"] and file.read_bytes() == b"before"
    os.close(folder)


def test_a_folder_is_made_usable_by_its_descriptor_and_not_by_its_path(tmp_path, monkeypatch):
    """Another process may put a link there after the folder was made: no other file gets its mode."""
    victim, chmod = tmp_path / "victim", os.chmod
    victim.mkdir(mode=0o755)
    chmod(victim, 0o755)
    mkdir = os.mkdir

    def exchanged(path, mode):
        mkdir(path, mode)
        os.rmdir(path)
        os.symlink(victim, path)

    monkeypatch.setattr(os, "mkdir", exchanged)
    before = os.umask(0o777)
    try:
        with pytest.raises(NotPrivate, match="is a link"):
            private_folder(tmp_path / "cache")
    finally:
        os.umask(before)
    assert mode(victim) == 0o755


HOLD = """
import os, sys
from pathlib import Path
from nnhal.base import private
private.LONGEST_WAIT = 0.0
folder = private.private_folder(Path(sys.argv[1]))
try:
    with private.file_lock(folder):
        print("alone")
except OSError as error:
    print(error.strerror)
"""


def elsewhere(folder: Path) -> str:
    run = run_python(HOLD, folder)
    return run.stdout.strip()


def test_a_lock_is_one_process_s_and_no_forked_child_inherits_it(tmp_path):
    folder = private_folder(tmp_path / "cache")
    until, end = os.pipe()
    with file_lock(folder):
        if not (child := os.fork()):  # it lives on, with all descriptors
            os.read(until, 1)
            os._exit(0)
        assert elsewhere(tmp_path / "cache") == "was locked by another process for 0 s"
    try:
        assert elsewhere(tmp_path / "cache") == "alone"
    finally:
        os.close(end)
        os.close(until)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(folder)


def test_threads_hold_a_lock_one_at_a_time_and_another_name_is_another_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(private, "LONGEST_WAIT", 0.0)
    folder, told = private_folder(tmp_path / "cache"), []

    def other() -> None:
        try:
            with file_lock(folder, "other"):
                told.append("alone with another name")
            with file_lock(folder):
                told.append("alone")
        except OSError as error:
            told.append((error.errno, error.strerror))

    for held in (True, False):
        thread = threading.Thread(target=other)
        if held:
            with file_lock(folder):
                thread.start()
                thread.join()
        else:
            thread.start()
            thread.join()
    refused = errno.EAGAIN, "was locked by another thread for 0 s"
    assert told == ["alone with another name", refused, "alone with another name", "alone"]
    os.close(folder)


@pytest.mark.parametrize("name", ["acquire", "extend"])
def test_an_interrupt_as_a_lock_is_taken_leaves_it_to_others(tmp_path, name):
    folder = private_folder(tmp_path / "cache")

    def strike(_, event, called):
        if event == "c_return" and getattr(called, "__name__", "") == name:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(strike)
    try:
        with contextlib.suppress(KeyboardInterrupt), file_lock(folder):
            pass
    finally:
        sys.setprofile(None)
    with file_lock(folder, wait=0.0):
        assert elsewhere(tmp_path / "cache") == "was locked by another process for 0 s"
    os.close(folder)


def test_a_child_forked_while_another_thread_holds_a_lock_can_have_it_when_that_is_over(tmp_path):
    folder = private_folder(tmp_path / "cache")
    held, go, there = threading.Event(), threading.Event(), os.pipe()

    def hold() -> None:
        with file_lock(folder):
            held.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    if not (child := os.fork()):
        os.read(there[0], 1)
        with file_lock(folder):
            os._exit(7)
        os._exit(1)
    go.set()
    thread.join()
    os.write(there[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for fd in (*there, folder):
        os.close(fd)


def test_a_path_is_from_here_and_a_tilde_the_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert absolute_path("a/b") == tmp_path / "a" / "b"
    assert absolute_path("~/b") == Path("/home/me/b")
    assert absolute_path("/~/b") == Path("/~/b")


def test_a_path_below_a_home_that_is_not_known_is_refused():
    with pytest.raises(NotPrivate, match="is below a home folder that is not known") as caught:
        absolute_path("~nobody-of-this-name/b")
    assert caught.value.filename == "~nobody-of-this-name/b"


def test_a_path_from_a_folder_that_is_gone_is_refused(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError):
        absolute_path("here")
