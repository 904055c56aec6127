"""A Python socket (SOCK_SEQPACKET) with msgspec structs: what a transport in plain Python reaches."""

import importlib
import os
import socket
import time
from pathlib import Path
from typing import Any

from transport_peers.peer import REQUEST, SPIN_NS, Peer, Placement, PythonPeer, Server, ready, serve

LIMIT = 4096  # bytes of a message
FIELDS = [("serial", int), ("payload", bytes)]


def codec() -> tuple[Any, Any, Any]:
    """The message's class, its encoder and its decoder: arrays without field names."""
    msgspec = importlib.import_module("msgspec")
    message = msgspec.defstruct("Message", FIELDS, array_like=True)
    return message, msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(message).decode


def receive(connection: socket.socket, spin: bool) -> bytes:
    """The next message. spin: poll and yield for SPIN_NS first."""
    if spin:
        end = time.perf_counter_ns() + SPIN_NS
        while True:
            try:
                return connection.recv(LIMIT, socket.MSG_DONTWAIT)
            except BlockingIOError:
                os.sched_yield()
                if time.perf_counter_ns() >= end:
                    break
    return connection.recv(LIMIT)


class SeqpacketMsgspec(PythonPeer):
    """Decoded and encoded again on both sides."""

    name, module, package = "seqpacket + msgspec", "msgspec", "msgspec"

    def __init__(self, waiting: str) -> None:
        self.waiting, self._spin = waiting, waiting == "spin"
        self._server: Server | None = None
        self._socket: socket.socket | None = None
        self._serial = 0

    def start(self, placement: Placement) -> None:
        self._message, self._encode, self._decode = codec()
        self._server = Server("seqpacket_msgspec", placement, self.waiting)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(self._server.address)

    def round_trip(self) -> None:
        assert self._socket
        self._serial += 1
        self._socket.send(self._encode(self._message(self._serial, REQUEST)))
        assert self._decode(receive(self._socket, self._spin)).serial == self._serial

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            self._server.stop()


def run(folder: Path, arguments: list[str]) -> None:
    """Echo every message of one client, until it hangs up."""
    _, encode, decode = codec()
    spin = arguments == ["spin"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(1)
        ready()
        connection, _ = listener.accept()
        with connection:
            while request := receive(connection, spin):
                connection.send(encode(decode(request)))


def peers() -> list[Peer]:
    """Both waiting modes."""
    return [SeqpacketMsgspec("block"), SeqpacketMsgspec("spin")]


if __name__ == "__main__":
    serve(run)
