"""gRPC over a Unix socket: a unary call of plain bytes, no protocol buffers."""

import importlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transport_peers.peer import REQUEST, Peer, Placement, PythonPeer, Server, ready, serve

SERVICE, METHOD = "transport.Echo", "Call"


class Grpc(PythonPeer):
    """The synchronous API on both sides, one worker thread in the server."""

    name, waiting, module, package = "gRPC", "block", "grpc", "grpcio"

    def __init__(self) -> None:
        self._server: Server | None = None
        self._channel: Any = None

    def start(self, placement: Placement) -> None:
        grpc = importlib.import_module("grpc")
        self._server = Server("grpc_peer", placement)
        self._channel = grpc.insecure_channel(f"unix:{self._server.address}")
        self._call = self._channel.unary_unary(f"/{SERVICE}/{METHOD}")

    def round_trip(self) -> None:
        assert len(self._call(REQUEST)) == len(REQUEST)

    def stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._server is not None:
            self._server.stop()


def run(folder: Path, _: list[str]) -> None:
    """Echo until the process is ended."""
    grpc = importlib.import_module("grpc")
    server = grpc.server(ThreadPoolExecutor(1))
    echo = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: echo}),))
    server.add_insecure_port(f"unix:{folder / 'socket'}")
    server.start()
    ready()
    threading.Event().wait()


def peers() -> list[Peer]:
    """gRPC chooses how it waits."""
    return [Grpc()]


if __name__ == "__main__":
    serve(run)
