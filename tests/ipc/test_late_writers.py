"""A client abandons a call that writes a driver buffer before the service has begun it: that call writes nothing later."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from nnhal.base.errors import Cancelled
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.host import BufferWrite, HostBuffer, contents_of, fill
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.prepared import PreparedWrapper
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.endings import Endings
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.model.graph import Model
from tests.hal.devices import OwnBuffer
from tests.ipc.support import LIMIT, numbers, prepare, served_here, wait_until

FIRST, SECOND = numbers(start=1), numbers(start=10)


class Gate:
    """Holds the first writer that comes, before it begins."""

    def __init__(self) -> None:
        self.holds, self.reached, self.opened = False, threading.Event(), threading.Event()

    def __call__(self) -> None:
        if self.holds:
            self.holds = False
            self.reached.set()
            assert self.opened.wait(LIMIT)


class GatedHostBuffer(HostBuffer):
    """A buffer of the base class."""

    gate: Gate

    def begin(self, control: Control = UNLIMITED, request: Request | None = None) -> BufferWrite:
        self.gate()
        return super().begin(control, request)


class GatedWriters(dict[object, Control]):
    """The writers of a buffer."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def __setitem__(self, writer: object, control: Control) -> None:
        self.gate()
        super().__setitem__(writer, control)


class Doubling(PreparedWrapper):
    """What writes buffers of a driver's own class."""

    def run(self, request: Request, control: Control) -> Timing | None:
        (buffer,) = request.output_buffers.values()
        assert isinstance(buffer, OwnBuffer) and request.given[0] is not None
        buffer.contents = 2 * request.given[0]
        request.filled(0, (4,))
        return None


class Gated(Reference):
    """The reference, with buffers of either kind behind a gate."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.own, self.gate = own, Gate()

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        prepared = super().prepare(model, hints)
        return Doubling(prepared, model) if self.own else prepared

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        if self.own:
            own = OwnBuffer(desc, roles)
            own.writers = GatedWriters(self.gate)
            return own
        host = GatedHostBuffer(desc, roles)
        host.gate = self.gate
        return host


def execute(prepared: RemotePrepared, x: Array, buffer: Buffer, control: Control) -> None:
    prepared.run(prepared.request([x], [None], output_buffers={0: buffer}), control)


def execute_in_background(prepared: RemotePrepared, x: Array, buffer: Buffer, control: Control) -> None:
    request = prepared.request([x], [None], output_buffers={0: buffer})
    ended, errors = threading.Event(), list[BaseException]()

    def notify(error: BaseException | None, _: object) -> None:
        if error is not None:
            errors.append(error)
        ended.set()

    prepared.execute(request, control, notify)
    assert ended.wait(LIMIT)
    if errors:
        raise errors[0]


def copy(_: RemotePrepared, x: Array, buffer: Buffer, control: Control) -> None:
    buffer.within(control).copy_from(Memory.from_array(2 * x), x.shape)


@pytest.mark.parametrize("own", [False, True], ids=["base class", "own class"])
@pytest.mark.parametrize("late", [execute, execute_in_background, copy])
def test_an_abandoned_call_does_not_write_a_buffer_after_the_next_one(
    late: Callable[[RemotePrepared, Array, Buffer, Control], None], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Gated(own=own)
    with served_here(driver) as device, ThreadPoolExecutor(1) as pool:
        prepared, session = a_model(device), device.session
        buffer = device.allocate(BufferDesc(), [BufferRole(prepared, 0, output=True)])
        fill(buffer, SECOND)
        # Only the next call itself may tell the service that the first one was abandoned.
        monkeypatch.setattr(Endings, "send", lambda *_: None)
        driver.gate.holds, cancelled = True, threading.Event()
        first = pool.submit(late, prepared, FIRST, buffer, Control(cancelled=cancelled))
        assert driver.gate.reached.wait(LIMIT)
        cancelled.set()
        with pytest.raises(Cancelled):
            first.result(LIMIT)
        execute(prepared, SECOND, buffer, UNLIMITED)
        driver.gate.opened.set()
        wait_until(
            lambda: not session.channels.abandoned and not session.notifications.pending, "the end of the first call"
        )
        assert contents_of(buffer).tolist() == (2 * SECOND).tolist()


def a_model(device: RemoteDevice) -> RemotePrepared:
    prepared = prepare(device)
    assert isinstance(prepared, RemotePrepared)
    return prepared
