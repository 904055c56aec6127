"""A service without a socket: what a client calls is answered by a handler in this process, and counted."""

import gc
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nnhal.base import trace
from nnhal.base.codes import DeviceStatus, DeviceType, Priority
from nnhal.base.errors import (
    ResourceExhausted,
)
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.drivers.reference import Reference
from nnhal.hal.background import FencedExecution
from nnhal.hal.device import Considered, Hints, Prepared, Verdict
from nnhal.hal.fence import Fence
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, MemoryUse
from nnhal.hal.request import Control, Request, Timing
from nnhal.ipc.client.pools import ClientPools, Packing
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import model_to_wire
from nnhal.ipc.service.calls import CallHandler
from nnhal.ipc.service.scope import CallScope, Work
from nnhal.ipc.transport import _native
from nnhal.model.graph import Model
from tests.ipc.support import a_share
from tests.models import doubling

PLAIN = Control(cancelled=threading.Event())


def came(*fds: int) -> _native.Descriptors:
    """The owner of these descriptors, which are closed here, after they came with a message."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert _native.Lane(ours.fileno()).send(b"x", fds) == 0
        got = _native.Lane(theirs.fileno()).receive()
    for fd in fds:
        os.close(fd)
    assert not isinstance(got, int)
    return got[1]


class WatchedPrepared(Prepared):
    """Notes the controls of its runs."""

    def __init__(self, inner: Prepared, driver: "Watched") -> None:
        self._inner, self._driver = inner, driver
        self.weights_consumed, self.changeable = driver.consumes, driver.changes

    def run(self, request: Request, control: Control) -> Timing | None:
        self._driver.controls.append(control)
        if self._driver.fails is not None:
            raise self._driver.fails
        self._inner.run(request, control)
        return Timing(10, 20) if control.measure else None

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        self._driver.afters.append(after)
        return super().execute_fenced(request, control, wait_for, after)

    def memory(self) -> MemoryUse:
        return MemoryUse(1, 2, 3, 4)

    def reconfigure(self, options: Any) -> None:
        self._driver.options.append(dict(options))

    def close(self) -> None:
        self._driver.closed += 1


class Watched(Reference):
    """Notes what it is asked. fails: what preparations and runs raise."""

    name, version, type = "watched", "7", DeviceType.ACCELERATOR
    preferred_layout = "nchw"

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Model] = []
        self.hints: list[Hints] = []
        self.controls: list[Control] = []
        self.afters: list[int | None] = []
        self.options: list[dict[str, Any]] = []
        self.fails: BaseException | None = None
        self.closed = 0
        self.consumes, self.changes = False, ()

    def status(self) -> DeviceStatus:
        return DeviceStatus.BUSY

    def consider(self, model: Model, hints: Hints) -> Considered:
        self.models.append(model)
        self.hints.append(hints)
        return Considered([Verdict(True, "said")] * len(model.main.operations), worked_out="thoughts")

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self.models.append(model)
        self.hints.append(hints)
        if self.fails is not None:
            raise self.fails
        return WatchedPrepared(super().prepare(model, Hints()), self)

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        if self.fails is not None:
            raise self.fails
        return super().allocate(desc, roles)


class Alone:
    """The connection of one client. works: what is to be done in the background; the test does it."""

    watch, tally = -1, None

    def __init__(self) -> None:
        self.wanted, self.share, self.scope = CallScope(), a_share(), trace.Scope()
        self.works: list[Work] = []
        self.refuses = False

    def ends(self, end: Callable[[], object]) -> None:
        end()

    def in_background(self, work: Work, priority: Priority = Priority.MEDIUM, *, takes_long: bool = False) -> None:
        if self.refuses:
            raise ResourceExhausted("background: too much")
        self.works.append(work)


class Service:
    """A handler, its driver and its client."""

    def __init__(self, driver: Any = None) -> None:
        self.driver: Any = driver or Watched()
        self.client, self.memories = Alone(), list[Memory]()
        self.handler = CallHandler(self.driver, self.client, shared=False)
        self.first = self.marked = self.used()

    def used(self) -> dict[str, int]:
        """What the client holds."""
        gc.collect()
        return self.client.share.quotas.usage()[0][1]

    def mark(self) -> None:
        """What it holds now is what `more` begins with."""
        self.marked = self.used()

    def more(self) -> dict[str, int]:
        """What it holds more than at the mark, or the start."""
        return {name: n - self.marked[name] for name, n in self.used().items() if n != self.marked[name]}

    def cost(self, **units: int) -> dict[str, int]:
        """What units of some rows take in all."""
        return {name: n for name, n in self.client.share.quotas.table.cost(units).items() if n}

    def call(
        self, call: wire.ClientCall, fds: _native.Descriptors = _native.NONE, size: int = 100, plain: Control = PLAIN
    ) -> Any:
        """The reply; descriptors that come with it are closed."""
        reply, given = self.handler.answer(call, fds, plain, size)
        for fd in given:
            os.close(fd)
        return reply

    def prepared(self, number: int = 1, model: Model | None = None, **fields: Any) -> int:
        """Prepare to the end; the number."""
        packing = Packing(ClientPools(shared=False))
        sent = model_to_wire(model or doubling(), packing.pool)
        assert self.call(wire.PrepareModel(number, V1_3, sent, **fields), sent_along(packing)) is wire.DONE
        notice, _ = self.client.works.pop()()
        assert isinstance(notice, wire.NotifyPrepared) and notice.object == number
        assert not isinstance(notice.result, wire.Failed), notice.result
        return number

    def bound(self, number: int = 2, memory: Memory | None = None, prepared: int = 1, provided: bool = False) -> Memory:
        """Bind 16 bytes of a memory to the input, and the next 16 to the output; the memory, which the client keeps."""
        memory = memory or Memory.allocate(32)
        self.memories.append(memory)
        packing = Packing(ClientPools(shared=False))
        pool = wire.MemoryPool(packing.pool(memory))
        taken = wire.WireArgument(-1, 0, 0, ()) if provided else wire.WireArgument(0, 16, 16, (4,))
        request = wire.WireRequest((wire.WireArgument(0, 0, 16, (4,)),), (taken,), (pool,))
        assert self.call(wire.Bind(number, prepared, request), sent_along(packing), 1000) is wire.DONE
        return memory


def sent_along(packing: Packing) -> _native.Descriptors:
    """The descriptors of a message, as they come."""
    return came(*map(os.dup, packing.fds)) if packing.fds else _native.NONE


def modelled(model: Model) -> wire.WireModel:
    """A model without memories of its own."""
    return model_to_wire(model, lambda _: pytest.fail("has a memory"))
