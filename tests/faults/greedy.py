"""A client that takes all it can of one quota: `python -m tests.faults.greedy SERVICE QUOTA`, told what to do by lines.

"fill" takes until it is refused, "free" lets one go, "work" executes; each answers with one line of JSON. It is for the
tests of quotas, which kill it. `WAYS` has a way to take one unit (or some) of each quota of the table.
"""

import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import model_to_wire
from nnhal.ipc.transport import _native
from tests.faults.support import Hostile, RefusedError, X, taken
from tests.models import doubling

LetGo = Callable[[], object]
SHRINK = 0x0002
BIG = 1 << 24  # floats of 64 MiB
TERABYTE = 1 << 40


def memfd(size: int) -> int:
    fd = os.memfd_create("greedy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SHRINK)
    return fd


class Client(Hostile):
    """A raw client with what it needs to take things."""

    def __init__(self, service: str) -> None:
        super().__init__(service)
        self.service = service
        self._known: dict[str, int] = {}
        self.memory, self.waiting = Memory.allocate(512), Memory.allocate(512)
        self.memory.view(0, 256, np.float32)[:] = X
        self.pool = wire.Pool("ashmem", 512, 0, False)
        self.given, self.room = wire.WireArgument(0, 0, 256, (64,)), wire.WireArgument(0, 256, 256, (64,))

    def model(self, size: int = 64, **options: Any) -> int:
        """A prepared model, made once."""
        key = f"{size} {options}"
        if key not in self._known:
            self._known[key] = self.prepare(doubling(size), **options)
        return self._known[key]

    def bound(self, model: int, memory: Memory | None = None) -> int:
        """A new binding of a memory."""
        fds = ((memory or self.memory).fd,)
        taken(self.bind(model, [self.pool], self.given, self.room, fds=fds))
        return self.made

    def binding(self, memory: Memory | None = None, **options: Any) -> int:
        """A binding, made once."""
        key = f"binding {options}"
        if key not in self._known:
            self._known[key] = self.bound(self.model(**options), memory)
        return self._known[key]

    def object(self, kind: type[wire.MakingCall], *fields: Any, fds: tuple[int, ...] = ()) -> LetGo:
        """A new object, and how to let it go. fields: of the message, after its number."""
        taken(self.make(kind, *fields, fds=fds))
        return self.releasing(self.made)

    def releasing(self, number: int) -> LetGo:
        return partial(self.call, wire.Release((number,)))

    def hold(self, count: int, size: int) -> LetGo:
        """Send memories ahead."""
        fds = tuple(memfd(size) for _ in range(count))
        try:
            return self.object(wire.Hold, (wire.Pool("ashmem", size, 0, False),) * count, fds=fds)
        finally:
            for fd in fds:
                os.close(fd)

    def consider(self) -> LetGo:
        """A model that the driver considers. Beyond the quota the answer comes and nothing is kept: that is its refusal."""
        whole = model_to_wire(doubling(64), lambda _: wire.Pool("ashmem", 1, 0, True))
        reply = self.make(wire.Consider, whole, 1, 1)
        assert isinstance(reply, wire.SupportReply), reply
        if not reply.kept:
            raise RefusedError("ResourceExhausted", "considered: is not kept, must be at most the quota")
        return self.releasing(self.made)

    def burst(self) -> LetGo:
        model, fd = self.model(), _native.create_queues(16, 16)
        try:
            return self.object(wire.ConfigureExecutionBurst, model, fds=(fd,))
        finally:
            os.close(fd)

    def fenced(self, count: int) -> LetGo:
        """An execution that waits for fences, all of one pipe."""
        binding = self.binding()
        read, write = os.pipe()
        try:
            release = self.object(wire.ExecuteFenced, binding, count, fds=(read,) * count)
        except BaseException:
            os.close(write)
            raise
        finally:
            os.close(read)

        def signal_all() -> None:
            os.write(write, b"\0")
            os.close(write)
            release()

        return signal_all

    def background(self) -> LetGo:
        """An execution that waits; when one is to end, all do."""
        binding = self.binding(self.waiting, waits=1)
        inputs = self.waiting.view(0, 256, np.float32)
        inputs[0] = -1
        taken(self.make(wire.Execute, V1_3, binding))

        def let_all_end() -> None:
            inputs[0] = X[0]
            assert self.callbacks is not None
            self.callbacks.receive(60 * 10**9)

        return let_all_end


class Greedy:
    """Several clients of one process."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.clients = [Client(service)]

    def again(self, take: Callable[[Client], LetGo], quota: str) -> LetGo:
        """Take by the last client; by one more where that one has all of one quota that it may have."""
        try:
            return take(self.clients[-1])
        except RefusedError as refused:
            if not refused.args[1].startswith(f"{quota}:"):
                raise
        self.clients.append(Client(self.service))
        return take(self.clients[-1])

    def process(self) -> LetGo:
        """A process that connects as often as it may."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            clients, why = [], ""
            try:
                while not why:
                    clients.append(Hostile(self.service, callbacks=False))
            except RefusedError as refused:
                why = refused.args[1]
            os.write(write, why.encode())
            os.close(write)
            signal.pause()
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as pipe:
            why = pipe.read()
        if not why.startswith("connections:"):
            self._end(child)
            raise RefusedError("ResourceExhausted", why)
        return partial(self._end, child)

    def _end(self, child: int) -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def first(take: Callable[[Client], LetGo]) -> Callable[[Greedy], LetGo]:
    """By one client alone."""
    return lambda greedy: take(greedy.clients[0])


WAYS: dict[str, Callable[[Greedy], LetGo]] = {
    "clients": Greedy.process,
    "connections": lambda greedy: Hostile(greedy.service, callbacks=False).close,
    "descriptors": lambda greedy: greedy.again(lambda client: client.lane().close, "lanes"),
    "threads": lambda greedy: greedy.again(Client.burst, "bursts"),
    "mappings": lambda greedy: greedy.again(lambda client: client.hold(32, 4096), "memories"),
    "addresses": first(lambda client: client.hold(1, TERABYTE)),
    "memory": first(lambda client: client.object(wire.Allocate, (BIG,), ((client.model(BIG), 0, False, 1.0),))),
    "lanes": first(lambda client: client.lane().close),
    "background": first(Client.background),
    "prepared": first(lambda client: client.releasing(client.prepare())),
    "bindings": first(lambda client: client.releasing(client.bound(client.model()))),
    "bursts": first(Client.burst),
    "fenced": first(lambda client: client.fenced(1)),
    "fences": first(lambda client: client.fenced(32)),
    "buffers": first(lambda client: client.object(wire.Allocate, (64,), ((client.model(), 0, False, 1.0),))),
    "memories": first(lambda client: client.hold(1, 4096)),
    "considered": first(Client.consider),
    "objects": first(lambda client: client.object(wire.Hold, ())),
}


def main(service: str, quota: str) -> None:
    """Do as the lines say."""
    greedy, held = Greedy(service), list[LetGo]()

    def fill() -> object:
        before = len(held)
        try:
            while True:
                held.append(WAYS[quota](greedy))
        except RefusedError as refused:
            return {"taken": len(held) - before, "kind": refused.args[0], "message": refused.args[1]}

    def free() -> object:
        held.pop()()
        return None

    def work() -> object:
        client = greedy.clients[0]
        reply = client.call(wire.ExecuteSynchronously(V1_3, client.binding()))
        right = client.memory.view(256, 256, np.float32).tobytes() == (X + X).tobytes()
        return isinstance(reply, wire.Acknowledged) and right

    greedy.clients[0].binding()
    print(json.dumps(os.getpid()), flush=True)
    for line in sys.stdin:
        print(json.dumps({"fill": fill, "free": free, "work": work}[line.strip()]()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
