"""What the fault tests share: services as real processes, hostile clients that speak the wire, and who looks for harm."""

import array
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.levels import V1_3
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import UNLIMITED, Control, Request
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import model_to_wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel, end_of
from nnhal.model.graph import Model
from tests.ipc.support import LIMIT, connected, made, numbers, run, wait_until
from tests.models import doubling

WITNESS = str(Path(__file__).parent / "drivers" / "witness.py")
X = numbers(64)
MFD_HUGETLB = 4
_libc = ctypes.CDLL(None, use_errno=True)
ONE = (1).to_bytes(8, "little")  # the number of a call, as it stands before its message


_LIMITED = (
    "import os, resource, sys; "
    "resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]),) * 2); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


def limited(what: str, value: int) -> list[str]:
    """A command that starts another one under a limit."""
    return [sys.executable, "-c", _LIMITED, what, str(value)]


def serve(driver: str, name: str, *, orders: str = "", through: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    """Start `nnhal serve`; returns when somebody listens. through: a command that starts it, limits set."""
    command = [
        *through,
        sys.executable,
        "-c",
        "from nnhal.cli.main import main; main()",
        "serve",
        driver,
        "--name",
        name,
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "NNHAL_FAULTY": orders},
    )
    wait_until(lambda: name in names.running() or process.poll() is not None, f"service {name}")
    assert process.poll() is None, f"service {name} ended with {process.returncode}"
    return process


@contextlib.contextmanager
def service(driver: str = WITNESS, name: str = "shared", *, orders: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    """A shared service for as long as the block; it must live until the end."""
    process = serve(driver, name, orders=orders)
    try:
        yield process
        assert process.poll() is None, f"service {name} ended with {process.returncode}"
    finally:
        process.kill()
        process.wait(LIMIT)


@contextlib.contextmanager
def client_of(name: str = "shared") -> Iterator[RemoteDevice]:
    """A client of a service, disconnected afterwards."""
    with connected(name) as device:
        used(device)
        yield device


def used(device: RemoteDevice) -> None:
    """Have the service end an object of this client, for which it keeps a thread from then on: no fault's trace."""
    session = device.session
    number = made(session, wire.Hold, ())
    session.endings.release(number)
    again = wire.encode(wire.Hold(session.number(), (wire.Pool("ashmem", 1, 0, True, number),)))
    wait_until(lambda: "is not held" in str(session.answer_to("Hold", again, UNLIMITED)[0]), "the release")


def prepared(device: Device, model: Model | None = None, **options: Any) -> Prepared:
    """A model of 64 floats that adds each to itself, where no other is given."""
    return checked_prepared(device, model or doubling(64), Hints(options=options)).inner


def works(device: Device) -> bool:
    """Whether the device still computes."""
    return run(prepared(device), X).tobytes() == (X + X).tobytes()


def held(device: Device) -> dict[str, int]:
    """What the process of the witness holds."""
    return dict(json.loads(device.supports(doubling())[0].reason))


def back_to(before: dict[str, int], device: Device, *whats: str) -> None:
    """Wait until the witness holds no more of these than before."""
    for what in whats or ("descriptors", "mappings", "threads"):
        wait_until(lambda what=what: held(device)[what] <= before[what], f"{what} down to {before[what]}")


def usage(device: RemoteDevice) -> wire.Usage:
    """What the clients of a service hold."""
    return device.session.call(wire.GetUsage(), wire.Usage, UNLIMITED)[0]


def most(device: RemoteDevice, name: str) -> int:
    """The limit of a client."""
    return {quota.name: quota.most for quota in usage(device).quotas}[name]


def asked_to_execute(session: Session) -> int:
    """How often, so far."""
    return sum(count for name, count in list(session.calls.items()) if name.lower().startswith("execute"))


def opened() -> list[str]:
    """What each of them is of, as far as that can be seen."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def huge_pages() -> int:
    """Bytes of a huge page; 0 where there is no memory of such pages."""
    try:
        os.close(os.memfd_create("huge", os.MFD_CLOEXEC | MFD_HUGETLB))
    except OSError:
        return 0
    found = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Hugepagesize:"))
    return int(found.split()[1]) << 10


def punch(fd: int, size: int) -> None:
    """Take the pages out of a memory; its size stays."""
    assert _libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(size)) == 0, os.strerror(ctypes.get_errno())


class Neighbour:
    """Another client, which executes again and again on a thread and compares bit by bit.

    It pauses between executions: every fault test has one, and without pauses they take most of the suite's processor time.
    """

    PAUSE = 0.01  # seconds

    def __init__(self, name: str) -> None:
        self.device = RemoteDevice(names.connect(name))
        self.rounds, self.wrong = 0, 0
        self.error: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="neighbour")
        self._thread.start()

    def _work(self) -> None:
        try:
            model, x = prepared(self.device), np.sqrt(X) + np.float32(0.1)
            expected = (x + x).tobytes()
            while not self._ending.is_set():
                self.wrong += run(model, x).tobytes() != expected
                self.rounds += 1
                self._ending.wait(self.PAUSE)
        except BaseException as error:
            self.error = error

    def still_served(self) -> None:
        """Wait for rounds that began after now."""
        wanted = self.rounds + 2
        wait_until(lambda: self.rounds >= wanted or self.error is not None, "rounds of another client")
        assert self.error is None and not self.wrong

    def end(self) -> None:
        """Stop and disconnect."""
        self._ending.set()
        self._thread.join(LIMIT)
        self.device.close()
        assert self.error is None and not self.wrong and not self._thread.is_alive()


@contextlib.contextmanager
def undisturbed(name: str = "shared") -> Iterator[Neighbour]:
    """Another client of the service, which must be served, bit by bit the same, before, during and after the block."""
    neighbour = Neighbour(name)
    try:
        neighbour.still_served()
        yield neighbour
        neighbour.still_served()
    finally:
        neighbour.end()


class RefusedError(Exception):
    """What a service answered instead."""


def taken(reply: Any) -> Any:
    """A reply that is no error."""
    if isinstance(reply, wire.Failed):
        raise RefusedError(reply.kind, reply.message)
    return reply


def next_number(lane: Channel) -> int:
    """The number of the next call on a lane, for who sends it past every check."""
    assert lane.lane.ask(b"x", (0,) * (wire.MAX_DESCRIPTORS + 1)) == _native.TOO_LARGE  # nothing is sent
    return lane.lane.called


class Hostile:
    """A client of its own making: a bare socket that speaks the wire, and whatever else it likes."""

    def __init__(self, name: str = "shared", *, greet: bool = True, callbacks: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(names.path_of(name)))
        self.channel = Channel(self.socket)
        self.callbacks: Channel | None = None
        self.made = 0  # the number of what was made last
        if greet:
            assert isinstance(taken(self.call(wire.Hello(wire.VERSION, 0))), wire.Welcome)
        if greet and callbacks:
            self.callbacks = self.lane(callbacks=True)

    def send(self, data: bytes | wire.ClientCall, fds: Sequence[int] = ()) -> None:
        """Send a message that wants no answer, or bytes that are none."""
        self.channel.send(data if isinstance(data, bytes) else wire.encode(data), fds)

    def push(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a call past every check of a lane's."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
        self.socket.sendmsg([next_number(self.channel).to_bytes(8, "little") + data], rights)

    def call(self, data: bytes | wire.ClientCall, fds: Sequence[int] = ()) -> Any:
        """Send a call, or bytes that are none, and wait for the reply; its descriptors are closed."""
        self.channel.ask(data if isinstance(data, bytes) else wire.encode(data), fds)
        return self.receive()

    def make(self, kind: type[wire.MakingCall], *fields: Any, fds: Sequence[int] = ()) -> Any:
        """The reply to a call that makes something, under the next number. fields: of the message, after its number."""
        self.made += 1
        return self.call(kind(self.made, *fields), fds)

    def receive(self) -> Any:
        """The next reply; its descriptors are closed."""
        return wire.decode_reply(self.channel.receive(int(LIMIT * 1e9))[0])

    def lane(self, *, callbacks: bool = False) -> Channel:
        """One more lane."""
        self.made += 1
        data, fds = self.channel.call(wire.encode(wire.AttachLane(self.made, callbacks)), (), int(LIMIT * 1e9))
        taken(wire.decode_reply(data))
        return Channel(end_of(fds))

    def prepare(self, model: Model | None = None, **options: Any) -> int:
        """The number of a prepared model; RefusedError where there is none."""
        whole = model_to_wire(model or doubling(64), lambda _: wire.Pool("ashmem", 1, 0, True))
        self.make(wire.Hold, ())
        self.send(wire.Release((self.made,)))  # see `used`; asked for, an answer waits for whatever is being closed
        taken(self.make(wire.PrepareModel, V1_3, whole, None, None, 0, 0, json.dumps(options).encode()))
        note = self.notification()
        assert isinstance(note, wire.NotifyPrepared) and note.object == self.made, note
        assert not isinstance(note.result, wire.Failed), note
        return self.made

    def notification(self) -> Any:
        """The next one; its descriptors are closed."""
        assert self.callbacks is not None
        return wire.decode_callback(self.callbacks.receive(int(LIMIT * 1e9))[0])

    def bind(
        self, number: int, pools: Sequence[wire.Pool], *arguments: wire.WireArgument, fds: Sequence[int] = ()
    ) -> Any:
        """The reply to a request to bind; the last argument is the output."""
        request = wire.WireRequest(arguments[:-1], arguments[-1:], tuple(wire.MemoryPool(p) for p in pools))
        return self.make(wire.Bind, number, request, fds=fds)

    def execute(
        self, number: int, pools: Sequence[wire.Pool], *arguments: wire.WireArgument, fds: Sequence[int] = ()
    ) -> Any:
        """Bind, execute and release: the reply to the execution, or why there is no binding."""
        reply = self.bind(number, pools, *arguments, fds=fds)
        if isinstance(reply, wire.Acknowledged):
            number = self.made
            reply = self.call(wire.ExecuteSynchronously(V1_3, number))
            self.send(wire.Release((number,)))
        return reply

    def close(self) -> None:
        """Go away without a word."""
        self.channel.close()
        if self.callbacks is not None:
            self.callbacks.close()

    def __enter__(self) -> "Hostile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attempt(call: Callable[[], Any]) -> Any:
    """What a call gives or raises."""
    try:
        return call()
    except Exception as error:
        return error


def request(model: Prepared) -> Request:
    """A request of `doubling(64)`."""
    return model.request([X], [np.full_like(X, np.nan)])


__all__ = ["LIMIT", "Control", "doubling", "numbers", "run", "wait_until"]
