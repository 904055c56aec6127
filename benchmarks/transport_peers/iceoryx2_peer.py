"""iceoryx2's request and response in shared memory: waiting on its events, or polling."""

import ctypes
import importlib
import os
import signal
from pathlib import Path
from typing import Any

from transport_peers.peer import REQUEST, SIZE, Peer, Placement, PythonPeer, Server, ready, serve


class Message(ctypes.Structure):
    """The request and its echo."""

    _fields_ = [("serial", ctypes.c_uint64), ("payload", ctypes.c_uint8 * (SIZE - 8))]


class Ports:
    """The services of one pair of processes: request and response, and an event for each direction."""

    def __init__(self, name: str) -> None:
        self.iceoryx: Any = importlib.import_module("iceoryx2")
        self.iceoryx.set_log_level(self.iceoryx.LogLevel.Error)
        self.node = self.iceoryx.NodeBuilder.new().create(self.iceoryx.ServiceType.Ipc)
        self.calls = self.service(f"{name}/calls").request_response(Message, Message).open_or_create()
        self.requested = self.service(f"{name}/requested").event().open_or_create()
        self.replied = self.service(f"{name}/replied").event().open_or_create()

    def service(self, name: str) -> Any:
        """A builder for a service of this name."""
        return self.node.service_builder(self.iceoryx.ServiceName.new(name))


class Iceoryx2(PythonPeer):
    """waiting: `events` (a listener blocks on both sides) or `poll` (both ask again and again, yielding between)."""

    name, module, package = "iceoryx2", "iceoryx2", "iceoryx2"

    def __init__(self, waiting: str) -> None:
        self.waiting, self._events = waiting, waiting == "events"
        self._server: Server | None = None
        self._message = Message(0, (ctypes.c_uint8 * (SIZE - 8)).from_buffer_copy(REQUEST))

    def start(self, placement: Placement) -> None:
        self._server = Server("iceoryx2_peer", placement, self.waiting)
        self._ports = Ports(self._server.folder.name)
        self._client = self._ports.calls.client_builder().create()
        self._notifier = self._ports.requested.notifier_builder().create()
        self._listener = self._ports.replied.listener_builder().create()

    def round_trip(self) -> None:
        self._message.serial += 1
        pending = self._client.send_copy(self._message)
        if self._events:
            self._notifier.notify()
            self._listener.blocking_wait()
        while (reply := pending.receive()) is None:
            os.sched_yield()
        assert reply.payload().contents.serial == self._message.serial
        reply.delete()
        pending.delete()

    def resume(self) -> None:
        """Let the polling server run."""
        if not self._events and self._server is not None:
            self._server.process.send_signal(signal.SIGCONT)

    def pause(self) -> None:
        """Stop the polling server: it would take a processor from the others."""
        if not self._events and self._server is not None:
            self._server.process.send_signal(signal.SIGSTOP)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._ports.node.try_cleanup_dead_nodes()


def run(folder: Path, arguments: list[str]) -> None:
    """Echo until the process is ended."""
    events = arguments == ["events"]
    ports = Ports(folder.name)
    server = ports.calls.server_builder().create()
    listener = ports.requested.listener_builder().create()
    notifier = ports.replied.notifier_builder().create()
    ready()
    while True:
        if events:
            listener.blocking_wait()
        while (request := server.receive()) is not None:
            request.send_copy(request.payload().contents)
            request.delete()
            if events:
                notifier.notify()
        os.sched_yield()


def peers() -> list[Peer]:
    """Both waiting modes."""
    return [Iceoryx2("events"), Iceoryx2("poll")]


if __name__ == "__main__":
    serve(run)
