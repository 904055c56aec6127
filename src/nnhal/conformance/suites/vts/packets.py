"""Bursts of an isolated driver: packets with an element removed, added or changed."""

from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from nnhal.base.errors import NnhalError
from nnhal.base.levels import V1_2
from nnhal.base.records import replace
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.suites.vts.promise import CHOSEN, Probe, named, promise
from nnhal.conformance.suites.vts.remote import opened, prepared_on
from nnhal.conformance.validate.trial import NotAsked, RequirementNotMet, copies
from nnhal.hal.request import UNLIMITED, Request
from nnhal.ipc.client.burst import RemoteBurst
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.packets import ELEMENT, pack, unpack

PATIENCE_NS = 20_000_000_000
MUTANTS = 60
ENDED = {_native.CLOSED, _native.CORRUPT, _native.DEAD, _native.FULL}


class PacketBurst(RemoteBurst):
    """A burst that can send any packet."""

    def packet_of(self, request: Request) -> bytes:
        """Return the packet of an execution."""
        frame, _ = self._frames.take(request)
        self._frame = frame  # its binding lives with it
        binding = frame.binding or self._prepared.bind(request, frame, UNLIMITED)
        return pack(binding.call(UNLIMITED, self._prepared.form))

    def send(self, packet: bytes) -> bytes | int:
        """Send a packet; return the answer, or the status of the queues."""
        return self._queues.exchange(packet, PATIENCE_NS)


@promise(
    "packets/mutated",
    "A burst packet with an element removed, added or changed is refused, and harms no later burst.",
    CHOSEN,
    isolated=True,
)
def mutated(probe: Probe) -> int:
    probe.since(V1_2, "bursts")
    call, model = probe.closed()
    wanted = probe.alone(model, arrays_of(call))
    seen = 0
    with opened(probe) as device:
        prepared = prepared_on(device, model)
        probe.opened(prepared)
        if wire.form_for(wire.ConfigureExecutionBurst, device.session.methods) is None:
            raise NotAsked("the driver's process has no bursts")
        burst = PacketBurst(prepared, UNLIMITED)
        request = probe.request(prepared, copies(arrays_of(call)))
        packet = burst.packet_of(request)
        rng = np.random.default_rng(probe.suite_run.seed)
        for what, bad in _mutants(packet, rng, probe.count(MUTANTS)):
            with probe.stages.enter("burst"):
                try:
                    answer = burst.send(bad)
                except ValueError:  # the queue itself refuses it
                    continue
            seen += 1
            problem = problem_of(answer)
            if problem:
                raise RequirementNotMet(f"a packet {what}: {problem}")
            if isinstance(answer, int) and answer != _native.FULL:
                burst.close()
                burst = PacketBurst(prepared, UNLIMITED)
        burst.close()
        with probe.stages.enter("burst"), prepared.burst() as series:
            request = probe.request(prepared, copies(arrays_of(call)))
            try:
                request.execute(series.run, UNLIMITED)
            except NnhalError as error:
                raise RequirementNotMet(f"a burst after mutated packets: {named(error)}") from error
        probe.same(call, wanted, request.results, "in a burst after mutated packets")
        probe.right(call, wanted, prepared, "after mutated packets")
    return seen


def problem_of(answer: bytes | int) -> str:
    """Return what is wrong with the answer to a mutated packet: only another execution's answer may be a success."""
    if isinstance(answer, int):
        return "" if answer in ENDED else f"the queue gives status {answer} after {PATIENCE_NS / 1e9:g} s"
    try:
        reply: Any = wire.decode_reply(unpack(answer))
    except (ValueError, wire.WireError) as error:
        return f"the answer cannot be read: {error}"
    return "" if isinstance(reply, wire.Failed) else f"is answered with {type(reply).__name__}, must be an error"


def _mutants(packet: bytes, rng: np.random.Generator, most: int) -> Iterator[tuple[str, bytes]]:
    """Yield mutated packets, whose first element announces their true number of elements."""
    elements = [packet[n : n + ELEMENT] for n in range(0, len(packet), ELEMENT)]

    def joined(parts: list[bytes]) -> bytes:
        data = b"".join(parts)
        return data[:4] + len(parts).to_bytes(4, "little") + data[8:]

    for place in range(len(elements)):
        if len(elements) > 1:
            yield f"without element {place}", joined([*elements[:place], *elements[place + 1 :]])
        yield f"with element {place} twice", joined([*elements[: place + 1], *elements[place:]])
    yield "with an element of zeros at its end", joined([*elements, bytes(ELEMENT)])
    if len(elements) > 1:
        yield "of one element", joined(elements[:1])
    length = int.from_bytes(packet[8:12], "little")
    for announced in (0, length - 1, length + ELEMENT, 2**32 - 1):
        yield f"that announces {announced} bytes", packet[:8] + announced.to_bytes(4, "little") + packet[12:]
    message = unpack(packet)
    call = wire.decode_call(message)
    assert isinstance(call, wire.ExecuteSynchronously)
    for what, other in {
        "that executes a binding that is not there": replace(call, binding=call.binding + 1000),
        "that executes binding 0": replace(call, binding=0),
        "of a HAL version that is not there": replace(call, form=99),
        "with a deadline": replace(call, deadline=1),
        "with a loop timeout": replace(call, loop_timeout=1),
        "that asks for the status": wire.GetStatus(),
    }.items():
        yield what, pack(wire.encode(other))
    for size in range(1, len(message)):
        yield f"with a message of {size} bytes", pack(message[:size])
    for _ in range(most):
        changed = bytearray(message)
        place = int(rng.integers(len(message)))
        changed[place] = (changed[place] + int(rng.integers(1, 256))) % 256
        bad = bytes(changed)
        if not is_execution(bad, (call.binding,)):
            yield f"with byte {place} changed from {message[place]} to {bad[place]}", pack(bad)


def is_execution(message: bytes, bindings: Container[int]) -> bool:
    """Whether a changed message still is a valid execution of one of the bindings, such as one that is measured."""
    try:
        call = wire.decode_call(message)
    except (ValueError, wire.WireError):
        return False
    if not isinstance(call, wire.ExecuteSynchronously) or call.deadline or call.loop_timeout:
        return False
    return call.binding in bindings and call.form in {int(form) for form in wire.ExecuteSynchronously.forms}
