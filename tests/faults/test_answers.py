"""A driver's process that speaks the wire itself: whatever it says, its client gets a named error and loses nothing."""

import array
import re
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.errors import DeadObject, DeviceUnavailable, NnhalError
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.channel import Channel
from tests.faults.support import attempt
from tests.ipc.support import Peer, request_for, wait_until
from tests.models import doubling
from tests.waiting import Opened, until

ONE = wire.WirePerformance(1.0, 1.0)
FLOAT32, QUANT8 = int(OperandType.TENSOR_FLOAT32), int(OperandType.TENSOR_QUANT8_ASYMM)
ANSWERS: dict[type, wire.Reply] = {
    wire.GetVersionString: wire.TextReply("1"),
    wire.GetType: wire.TextReply(1),
    wire.GetSupportedExtensions: wire.NamesReply(()),
    wire.GetRelaxations: wire.NamesReply(()),
    wire.GetCapabilities: wire.CapabilitiesReply({FLOAT32: ONE, QUANT8: ONE}, (ONE,)),
    wire.GetStatus: wire.TextReply(0),
    wire.Bind: wire.DONE,
    wire.ExecuteSynchronously: wire.DONE,
}
Notes = Callable[[int], bytes]


def _prepared(call: int) -> bytes:
    return wire.encode(wire.NotifyPrepared(call, wire.DONE))


def _executed(call: int) -> bytes:
    return wire.encode(wire.NotifyExecuted(call, wire.ExecutedReply()))


class Speaker(Peer):
    """Answers as a driver would, with `gift` further descriptors each time. prepared, executed: its notifications."""

    def __init__(
        self, gift: tuple[int, ...] = (), prepared: Notes = _prepared, executed: Notes = _executed, **named: Any
    ) -> None:
        self.gift, self.notes = gift, {wire.PrepareModel: prepared, wire.Execute: executed}
        super().__init__(self._speak, **named)

    def _speak(self, lane: Channel, call: wire.ClientCall) -> None:
        note = self.notes.get(type(call))
        if note is not None:
            lane.answer(wire.ENCODED_DONE, self.gift)
            assert self.callbacks is not None
            self.callbacks.send(note(call.object), self.gift)  # type: ignore[attr-defined]
        elif not isinstance(call, wire.Release | wire.Cancel):
            lane.answer(wire.encode(ANSWERS[type(call)]), self.gift)


def test_descriptors_that_no_answer_and_no_notification_needs_are_closed():
    with Speaker(gift=(0, 1, 2)) as session:
        device = RemoteDevice(session)
        opened = Opened()
        for _ in range(20):
            device.status()
            prepared = checked_prepared(device, doubling(), Hints())
            request_for(prepared, np.ones(4, np.float32)).execute(prepared.run, Control())
            prepared.close()
        opened.closed()


WRONG = {
    "an execution's for a preparation": {"prepared": _executed},
    "a preparation's for an execution": {"executed": _prepared},
    "bytes": {"prepared": lambda _: b"\xc0"},
    "an answer": {"prepared": lambda _: wire.encode(wire.TextReply("1"))},
    "a call": {"prepared": lambda call: wire.encode(wire.Hello(1, call))},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_notification_of_the_wrong_kind_is_an_error_that_names_the_process(wrong):
    level = 2  # executions end by notifications
    with Speaker(level=level, **WRONG[wrong]) as session:
        device = RemoteDevice(session)

        def use() -> None:
            prepared = checked_prepared(device, doubling(), Hints())
            request_for(prepared, np.ones(4, np.float32)).execute(prepared.run, Control())

        error = attempt(use)
        assert isinstance(error, DeadObject) and "peer" in str(error), error
        assert session.peer.dead is not None


@pytest.mark.parametrize("number", [0, 999, 2**63])
@pytest.mark.parametrize("note", [_prepared, _executed])
def test_a_notification_that_nobody_asked_for_ends_the_session_and_says_so(note, number):
    speaker = Speaker()
    with speaker as session:
        RemoteDevice(session)
        assert speaker.callbacks is not None
        speaker.callbacks.send(note(number))
        wait_until(lambda: session.peer.dead is not None, "the end of the session")
        assert re.search(
            f"notified by Notify.* of {number}, must be of a requested object, once", str(session.peer.dead)
        )


@pytest.mark.parametrize("level", [0, 9, 255])
def test_a_service_of_a_level_that_does_not_exist_is_unavailable_and_leaves_nothing(level):
    opened = Opened()
    with pytest.raises(DeviceUnavailable, match="has HAL version"):
        Speaker(level=level)
    opened.closed()


@pytest.mark.parametrize("where", ["lane", "callbacks"])
def test_a_message_without_bytes_leaves_no_descriptor(where):
    """Its kind has no length, so that it looks like a hang-up."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 64))]

    def answer(lane: Channel, call: wire.ClientCall) -> None:
        aim = lane if where == "lane" else peer.callbacks
        assert aim is not None
        aim.socket.sendmsg([], rights)

    peer = Peer(answer)
    with peer as session:
        opened = Opened()
        for _ in range(4):
            error = attempt(lambda: session.call(wire.GetVersionString(), wire.TextReply, UNLIMITED))
            assert isinstance(error, NnhalError), error
        assert session.peer.dead is not None
        until(lambda: not opened.like(0), "what came is closed")
