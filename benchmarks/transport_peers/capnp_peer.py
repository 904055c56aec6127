"""Cap'n Proto RPC over a Unix socket, through pycapnp; its event loop runs inside asyncio's."""

import asyncio
import importlib
import time
from pathlib import Path
from typing import Any

from transport_peers.peer import FOLDER, REQUEST, Peer, Placement, Server, ready, serve


def schema() -> tuple[Any, Any]:
    """pycapnp, and the interface of `echo.capnp`."""
    capnp = importlib.import_module("capnp")
    return capnp, capnp.load(str(FOLDER / "echo.capnp")).Echo


class Capnp(Peer):
    """One event loop, entered for a whole slice: entering it is no part of a round trip."""

    name, waiting, module, package = "Cap'n Proto", "block", "capnp", "pycapnp"

    def __init__(self) -> None:
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kj: Any = None

    def start(self, placement: Placement) -> None:
        capnp, echo = schema()
        self._server = Server("capnp_peer", placement)

        async def connect() -> None:
            assert self._server
            await self._kj.__aenter__()
            stream = await capnp.AsyncIoStream.create_unix_connection(path=self._server.address)
            self._client = capnp.TwoPartyClient(stream)
            self._echo = self._client.bootstrap().cast_as(echo)

        self._kj = capnp.kj_loop()
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(connect())

    def run(self, count: int) -> list[int]:
        async def calls() -> list[int]:
            clock, call = time.perf_counter_ns, self._echo.call
            durations = []
            for _ in range(count):
                start = clock()
                reply = await call(request=REQUEST)
                assert len(reply.reply) == len(REQUEST)
                durations.append(clock() - start)
            return durations

        assert self._loop
        return self._loop.run_until_complete(calls())

    def stop(self) -> None:
        if self._loop is not None:
            self._echo = self._client = None
            self._loop.run_until_complete(self._kj.__aexit__(None, None, None))
            self._loop.close()
        if self._server is not None:
            self._server.stop()


def run(folder: Path, _: list[str]) -> None:
    """Echo until the process is ended."""
    capnp, echo = schema()

    class Servant(echo.Server):  # type: ignore[misc, name-defined]  # made at run time
        async def call(self, request: Any, _context: Any, **_: Any) -> Any:
            return request

    async def connected(stream: Any) -> None:
        await capnp.TwoPartyServer(stream, bootstrap=Servant()).on_disconnect()

    async def main() -> None:
        server = await capnp.AsyncIoStream.create_unix_server(connected, path=str(folder / "socket"))
        ready()
        async with server:
            await server.serve_forever()

    asyncio.run(capnp.run(main()))


def peers() -> list[Peer]:
    """asyncio chooses how it waits."""
    return [Capnp()]


if __name__ == "__main__":
    serve(run)
