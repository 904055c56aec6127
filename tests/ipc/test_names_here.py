"""Names of services in this process: the folder, sockets that are bound, swept and connected to, limits of time."""

import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nnhal.base import private
from nnhal.base.errors import DeviceUnavailable, InvalidArgument, ResourceExhausted
from nnhal.ipc import names
from nnhal.ipc.client import session
from tests.runtime.devices import failing
from tests.waiting import Opened


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty XDG_RUNTIME_DIR with a short path; the folder of sockets in it."""
    monkeypatch.delenv("LISTEN_FDS", raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(Path(folder, "run")))
        yield Path(folder, "run", "nnhal")


def test_the_folder_is_made_for_the_user_alone_and_may_be_there(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        assert names.directory() == runtime and stat.S_IMODE(runtime.stat().st_mode) == 0o700
    for bad in (0o701, 0o710, 0o704, 0o770):
        runtime.chmod(bad)
        with pytest.raises(DeviceUnavailable, match=r"must be a directory that belongs to this user, with mode 0700"):
            names.directory()
    runtime.chmod(0o500)
    assert names.directory() == runtime
    user = os.getuid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: user + 1)
        with pytest.raises(DeviceUnavailable, match="must be a directory that belongs to this user"):
            names.directory()
    runtime.rmdir()
    runtime.symlink_to("/tmp")
    with pytest.raises(DeviceUnavailable, match="must be a directory that belongs to this user"):
        names.directory()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(runtime.parent))
    assert names.directory() == runtime.parent / f"nnhal-{user}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/nowhere")
    with pytest.raises(DeviceUnavailable, match=r"directory of services /proc/nowhere/nnhal: .*; set XDG_RUNTIME_DIR"):
        names.directory()
    assert names.running() == []


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "a" * 64, "0"])
def test_names_have_up_to_64_letters(name: str, runtime: Path) -> None:
    names.check(name)
    assert names.path_of(name) == runtime / f"{name}.sock"
    for bad in ("a" * 65, "", "_a", "-a", ".hidden", "../x", "a/b", "a b", "a\n", "ä"):
        with pytest.raises(InvalidArgument, match="must be up to 64 letters, digits, dots, dashes, underscores"):
            names.check(bad)


def test_a_socket_is_the_users_own_and_listens_and_its_name_is_taken(runtime: Path) -> None:
    opened, umask = Opened(), os.umask(0o022)
    try:
        with names.listen("mine") as listener:
            path = runtime / "mine.sock"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert {p.name for p in runtime.iterdir()} - {".lock"} == {"mine.sock"}
            assert os.umask(0o022) == 0o022
            assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
            assert names.address(listener, "mine") == str(path)
            assert names.running() == ["mine"] and names.sweep(path) is False and path.exists()
            with pytest.raises(DeviceUnavailable, match="is already running; stop it, or choose another name"):
                names.listen("mine")
        assert path.exists() and names.running() == [] and not path.exists()
        assert names.sweep(path) is True
        opened.closed()
    finally:
        os.umask(umask)


def test_what_is_no_socket_is_no_service_and_its_name_cannot_be_had(runtime: Path) -> None:
    names.directory()
    (runtime / "mine.sock").mkdir()
    assert names.running() == []
    with pytest.raises(DeviceUnavailable, match=r"mine.sock: Is a directory; remove it"):
        names.listen("mine")


def test_a_lock_that_is_held_for_long_keeps_nobody(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "LONGEST_WAIT", 0.0)
    monkeypatch.setattr(private.fcntl, "lockf", lambda *_: (_ for _ in ()).throw(BlockingIOError()))
    with names.listen("mine"):
        assert names.running() == ["mine"]


def test_a_name_that_somebody_takes_meanwhile_or_that_cannot_be_bound_leaves_nothing(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.directory()
    opened, umask = Opened(), os.umask(0o022)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "link", failing(FileExistsError))
            with pytest.raises(DeviceUnavailable, match="is already running; choose another name with --name"):
                names.listen("mine")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / ("long" * 40)))
        for use in (names.listen, names.connect):
            says = r"service mine: the path of its socket .* has \d+ bytes, must be at most 104; set XDG_RUNTIME_DIR to"
            with pytest.raises(DeviceUnavailable, match=says):
                use("mine")
        assert os.umask(0o022) == 0o022 and not list(runtime.glob("mine*"))
        opened.closed()
    finally:
        os.umask(umask)


def test_a_socket_whose_path_is_as_long_as_it_may_be_is_listened_on_and_found(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "n" * 60
    folder = runtime.parent.parent
    folder /= "d" * (names.LONGEST_PATH - len(os.fsencode(folder)) - len(f"//nnhal/{name}.sock"))
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(os, "getpid", lambda: 4_194_304)  # the longest number there is
    with names.listen(name):
        assert names.running() == [name]
    with pytest.raises(DeviceUnavailable, match="has 105 bytes, must be at most 104"):
        names.path_of(name + "n")


@pytest.mark.parametrize(("pid", "fds", "handed"), [(0, "1", True), (0, "2", True), (0, "0", False), (1, "1", False)])
def test_the_socket_that_systemd_hands_over_is_descriptor_3(
    pid: int, fds: str, handed: bool, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + pid))
    monkeypatch.setenv("LISTEN_FDS", fds)
    seen: list[int] = []
    make = socket.socket

    def made(*of: Any, fileno: int | None = None) -> Any:
        if fileno is not None:
            seen.append(fileno)
            return None
        return make(*of)

    monkeypatch.setattr(socket, "socket", made)
    got: Any = names.listen("mine")
    assert seen == ([3] if handed else [])
    if not handed:
        got.close()


def test_the_address_of_a_socket_that_systemd_bound_is_its_own(runtime: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "elsewhere"))
        assert names.address(listener, "mine") == str(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").unlink()
        assert names.address(listener, "mine") == str(runtime / "mine.sock")


def test_who_is_behind_with_its_clients_is_there_all_the_same(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "BACKLOG", 0)
    clients = []
    with names.listen("busy"):
        for _ in range(3):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            client.setblocking(False)
            clients.append(client)
            try:
                client.connect(str(runtime / "busy.sock"))
            except BlockingIOError:
                break
        assert names.running() == ["busy"]
        with pytest.raises(DeviceUnavailable, match=r"service busy: .*; running: busy"):
            names.connect("busy", 0.01)
    for client in clients:
        client.close()


def test_a_service_is_connected_to_within_10_s_unless_another_time_is_given(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Session:
        def __init__(self, sock: socket.socket, where: str, greeting: int) -> None:
            sent = struct.unpack("ll", sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16))
            made.append((where, sent, greeting))
            sock.close()

    monkeypatch.setattr(session, "Session", Session)
    with names.listen("mine"):
        names.connect("mine")
        names.connect("mine", 2.5)
    seconds, exact = 1_000_000_000, [(10, 0), (2, 500_000)]
    assert [(where, greeting) for where, _, greeting in made] == [
        ("service mine", 10 * seconds),
        ("service mine", 5 * seconds // 2),
    ]
    for (_, (whole, micros), _), (s, us) in zip(made, exact, strict=True):
        assert whole == s and abs(micros - us) < 10_000  # in ticks of the kernel


@pytest.mark.parametrize(("user", "taken"), [(os.getuid(), True), (0, True), (os.getuid() + 1, False)])
def test_a_service_of_another_user_is_refused(
    user: int, taken: bool, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sock(socket.socket):
        def getsockopt(self, *of: Any) -> Any:
            return struct.pack("3i", 77, user, 78) if of[1] == socket.SO_PEERCRED else super().getsockopt(*of)

    class Session:
        def __init__(self, sock: socket.socket, *_: object, **__: object) -> None:
            sock.close()

    monkeypatch.setattr(session, "Session", Session)
    with names.listen("mine"):
        monkeypatch.setattr(socket, "socket", Sock)
        if taken:
            names.connect("mine")
        else:
            with pytest.raises(DeviceUnavailable, match=f"service mine: runs as user {user}, must run as this user"):
                names.connect("mine")


def test_a_service_that_is_not_there_leaves_no_descriptor(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names.directory()
    opened = Opened()
    with pytest.raises(DeviceUnavailable, match="service none: No such file or directory; running: none is running"):
        names.connect("none")
    opened.closed()

    monkeypatch.setattr(socket, "socket", failing(OSError(24, "Too many open files")))
    with pytest.raises(ResourceExhausted, match="service none: cannot connect: Too many open files"):
        names.connect("none")
