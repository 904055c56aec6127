"""A service that lacks a thread or a descriptor: what it could not do is an error, and nothing of it is left."""

import os
import socket
from collections.abc import Sequence

import pytest

from nnhal.base.errors import ResourceExhausted
from nnhal.base.levels import V1_3
from nnhal.drivers.null import device
from nnhal.hal.device import Prepared
from nnhal.hal.request import Control, Request, Timing
from nnhal.ipc.protocol import wire
from nnhal.ipc.service.burst import ServiceBurst
from nnhal.ipc.service.connection import Connection
from nnhal.ipc.service.exports import Export
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel
from tests.ipc.support import LIMIT, a_share, without_thread
from tests.models import doubling


class Told(Prepared):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def run(self, request: Request, control: Control) -> Timing | None:
        return None

    def burst_opened(self) -> None:
        self.told.append("opened")

    def burst_closed(self) -> None:
        self.told.append("closed")

    def close(self) -> None:
        self.told.append("end")


def test_a_burst_that_gets_no_thread_is_over_for_its_driver_too(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Told()
    entry = Export(prepared, doubling(), "driver", a_share().take(prepared=1))
    fd = _native.create_queues(16, 16)
    burst = ServiceBurst(entry, fd, lambda _: pytest.fail("nothing is executed"), V1_3, -1, a_share().take(bursts=1))
    os.close(fd)
    without_thread(monkeypatch, "nnhal-burst")
    with pytest.raises(ResourceExhausted, match="thread"):
        burst.start()
    entry.release()
    assert prepared.told == ["opened", "closed", "end"]


def test_work_that_got_no_thread_is_an_error_and_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(device(), theirs, a_share(), shared=False, confinement={})
    connection._callbacks = Channel(tells)
    done: list[int] = []

    def work(number: int) -> tuple[wire.ServiceCall, Sequence[int]]:
        done.append(number)
        return wire.NotifyPrepared(number, wire.DONE), ()

    with monkeypatch.context() as patched:
        without_thread(patched, "nnhal-background")
        with pytest.raises(ResourceExhausted, match="thread"):
            connection.in_background(lambda: work(1))
    connection.in_background(lambda: work(2))
    notification = wire.decode_callback(Channel(told).receive(int(LIMIT * 1e9))[0])
    assert notification.object == 2 and done == [2]
    ours.close()
    connection._end()


def test_a_model_that_is_prepared_after_the_end_of_its_client_is_closed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(device(), theirs, a_share(), shared=False, confinement={})
    exports = connection._calls._exports
    exports.claim(1)
    connection.ends(lambda: None)  # there is a thread for what ends
    connection._end()
    prepared = Told()
    with pytest.raises(Exception, match="released"):
        entry = Export(prepared, doubling(), "driver", a_share().take(prepared=1))
        exports.fill(1, entry, entry.release)
    assert prepared.told == ["end"]
    ours.close()
