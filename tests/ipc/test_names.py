"""Services by name: their sockets, who may connect, activation by systemd, many clients at once."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nnhal.base import private
from nnhal.base.errors import DeviceUnavailable, InvalidArgument
from nnhal.base.memory import Memory
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc import names
from nnhal.ipc.protocol import wire
from tests.interrupts import Interrupts
from tests.ipc.support import LIMIT, PROBE, connected, inside, made, numbers, prepare, run, shifting, wait_until
from tests.waiting import Opened


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty XDG_RUNTIME_DIR; the folder of sockets in it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("LISTEN_FDS", raising=False)
    return tmp_path / "nnhal"


@contextlib.contextmanager
def service(name: str = "probe", *options: str, driver: str = PROBE) -> Iterator[subprocess.Popen[bytes]]:
    """A running service."""
    words = [sys.executable, "-P", "-m", "nnhal.serve", driver, "--name", name, *options]
    process = subprocess.Popen(words)
    try:
        wait_until(lambda: process.poll() is not None or name in names.running(), "the service listens")
        yield process
    finally:
        process.terminate()
        process.wait(LIMIT)


# -------------------------------------------------------------------------------------------------------------- socket


def test_a_service_is_found_by_its_name_and_serves(runtime: Path) -> None:
    with service(), connected() as device:
        assert names.running() == ["probe"]
        assert (device.name, device.session.welcome.shared, device.session.peer.process) == ("probe", True, None)
        assert np.array_equal(run(prepare(device), numbers()), 2 * numbers())


def leave_a_socket() -> Path:
    """What a service leaves that is killed together with the process that would remove it."""
    path = names.path_of("probe")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    return path


def test_the_socket_of_a_service_that_was_killed_with_all_of_its_group_is_swept_and_the_name_is_free(
    runtime: Path,
) -> None:
    path = leave_a_socket()
    assert names.running() == [] and not path.exists()
    leave_a_socket()
    with service(), connected() as device:  # also swept by the next service itself
        assert device.name == "probe"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_service_that_ends_leaves_no_socket(runtime: Path, how: signal.Signals) -> None:
    with service() as process:
        process.send_signal(how)
        process.wait(LIMIT)
        wait_until(lambda: not (runtime / "probe.sock").exists(), "the socket is removed")


def test_a_socket_whose_folder_is_locked_for_long_is_removed_later(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "LONGEST_WAIT", 0.0)
    path, pauses = leave_a_socket(), list[float]()
    with contextlib.ExitStack() as another:
        another.enter_context(names._alone())

        def pause(seconds: float) -> None:
            assert path.exists()
            pauses.append(seconds)
            another.close()

        names.sweep_ended(path, pause)
    assert not path.exists() and len(pauses) == 1


def test_the_folder_of_a_service_may_be_removed_before_its_socket_is_swept(runtime: Path) -> None:
    path = leave_a_socket()
    shutil.rmtree(runtime)
    names.sweep_ended(path)
    assert not runtime.exists()


def test_a_sweep_never_takes_the_socket_of_a_service_that_has_just_been_started(runtime: Path) -> None:
    """The sweeper is held between its look at a dead service's socket and the removal."""
    path = leave_a_socket()
    looked, go = threading.Event(), threading.Event()

    class Held(type(path)):  # type: ignore[misc]
        def unlink(self, missing_ok: bool = False) -> None:
            looked.set()
            assert go.wait(LIMIT)
            super().unlink(missing_ok)

    with ThreadPoolExecutor(2) as pool:
        sweep = pool.submit(names.sweep, Held(path))
        assert looked.wait(LIMIT)
        started = pool.submit(names.listen, "probe")
        with contextlib.suppress(TimeoutError):  # it may wait for the sweeper, and must not be swept
            started.result(1)
        go.set()
        assert sweep.result(LIMIT)
        with started.result(LIMIT):
            assert names.running() == ["probe"]


@pytest.mark.parametrize("head", [b"", (1).to_bytes(8, "little")], ids=["no number", "the number of the call"])
def test_what_is_no_driver_service_is_said_to_be_none(runtime: Path, head: bytes) -> None:
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(runtime / "odd.sock"))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.send(head + b"220 mail.example ESMTP")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(DeviceUnavailable, match="service odd: is not a driver service"):
            names.connect("odd")


# ------------------------------------------------------------------------------------------------------------- clients


def test_sixteen_clients_at_once_run_models_of_their_own(runtime: Path) -> None:
    with service():

        def client(number: int) -> float:
            with connected() as device:
                prepared = prepare(device, shifting(4, number))
                for round_ in range(30):
                    x = numbers(start=round_)
                    assert np.array_equal(run(prepared, x), x + number)
                return float(run(prepared, numbers(1 + 3))[0])

        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(client, range(16))) == list(range(16))


def test_executions_of_several_clients_are_inside_the_driver_at_once(runtime: Path) -> None:
    with service(), contextlib.ExitStack() as stack:
        devices = [stack.enter_context(connected()) for _ in range(16)]
        prepared = [prepare(device, sleep=LIMIT) for device in devices]
        with ThreadPoolExecutor(16) as pool:
            control = Control(deadline=time.monotonic_ns() + 3_000_000_000)
            running = [pool.submit(run, p, numbers(), control) for p in prepared]
            with connected() as watcher:
                wait_until(lambda: inside(watcher)["inside"] == 16, "sixteen executions at once")
            assert all("MissedDeadline" in type(f.exception()).__name__ for f in running)


def test_objects_and_memories_are_private_to_a_client(runtime: Path) -> None:
    with service(), connected() as mine, connected() as theirs:
        prepared = prepare(mine)
        run(prepared, numbers())
        number = prepared.number  # type: ignore[attr-defined]
        memory = Memory.allocate(32)
        with mine.session.carrying([memory], UNLIMITED) as packing:
            held = made(mine.session, wire.Hold, (packing.pool(memory),), packing=packing)
        given, taken = wire.WireArgument(0, 0, 16, (4,)), wire.WireArgument(0, 16, 16, (4,))
        pool = wire.MemoryPool(wire.Pool("ashmem", 32, 0, False, held, 0))
        request = wire.WireRequest((given,), (taken,), (pool,))
        binding = made(mine.session, wire.Bind, number, request)
        with pytest.raises(InvalidArgument, match=f"prepared model {number} is not held by this connection"):
            made(theirs.session, wire.Bind, number, request)
        own = prepare(theirs)
        for message, words in (
            (wire.Bind(10**6, own.number, request), f"Hold {held} is not held by this connection"),  # type: ignore[attr-defined]
            (wire.ExecuteSynchronously(4, binding), f"binding {binding} is not held by this connection"),
        ):
            with pytest.raises(InvalidArgument, match=words):
                theirs.session.call(message, wire.Reply, UNLIMITED)
        mine.session.call(wire.ExecuteSynchronously(4, binding), wire.Acknowledged, UNLIMITED)
        assert np.array_equal(run(prepared, numbers()), 2 * numbers())


# ---------------------------------------------------------------------------------------------------------- activation

ACTIVATOR = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
import select
select.select([listener], [], [])  # the first client
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-P", "-m", "nnhal.serve", *sys.argv[2:]])
"""


def test_a_service_takes_the_socket_that_systemd_hands_over(runtime: Path) -> None:
    path = names.path_of("late")
    words = [sys.executable, "-c", ACTIVATOR, str(path), PROBE, "--name", "late"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"listening\n"
        with connected("late") as device:  # waits in the backlog until the service is there
            assert device.session.welcome.pid == process.pid
            assert np.array_equal(run(prepare(device), numbers()), 2 * numbers())
    finally:
        process.terminate()
        process.wait(LIMIT)
        assert process.stdout is not None
        process.stdout.close()


def test_an_interrupt_while_the_folder_is_ones_own_leaves_no_descriptor(runtime: Path) -> None:
    names.directory()

    def again() -> None:
        while True:
            with names._alone():
                pass

    opened = Opened()
    with Interrupts() as interrupts:
        for n in range(50):
            assert interrupts.during(again, n * 2e-5)
    opened.closed()
