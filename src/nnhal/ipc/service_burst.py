"""The service's end of a burst: a listener thread that takes request packets, executes, and writes result packets.

A packet that comes again byte for byte, as it does when a client runs the same shapes in the same memory, is neither decoded
nor bound again. Everything in a packet is checked before it is used; one that is wrong gets an error as its result, and the
next one is taken as if nothing had been.
"""

import threading
from collections.abc import Callable, Sequence

from nnhal.base.answers import answering, let_go
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import InvalidArgument
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.hal.binding import BoundRequest, bind_request
from nnhal.hal.device import executor_by
from nnhal.hal.request import Control, Request, Timing, plausible
from nnhal.ipc import _native, wire
from nnhal.ipc.convert import error_to_wire
from nnhal.ipc.exports import Export

MAX_SLOTS = 1024
_log = logger("burst")
_Again = tuple[BoundRequest, list[tuple[int, ...]], bytes]
_PLAIN, _MEASURED = Control(), Control(measure=True)


class ServiceBurst:
    """One burst. memories: asks the client for the memories of slots."""

    def __init__(
        self, entry: Export, fd: int, memories: Callable[[int, Sequence[int]], list[Memory]], watch: int
    ) -> None:
        try:
            self._queues = _native.Queues(fd, _native.SERVICE)
        except ValueError as error:
            raise InvalidArgument(f"burst: {error}") from None
        self._queues.watch = watch
        self._entry, self._memories = entry, memories
        self._slots: dict[int, Memory] = {}
        self._dropped: set[int] = set()  # freed by the client, still to be forgotten by the listener
        self._held = threading.Event()
        self._number = 0
        self._packet = b""
        self._bound: tuple[BoundRequest, tuple[int, ...], Control] | None = None
        self._run = entry.prepared.run
        self._again: _Again | None = None  # the last request, to be run again as it is bound
        self._results: dict[tuple[object, ...], bytes] = {}
        self.failed: wire.Failed | None = None
        self._executor = executor_by(entry.prepared, entry.signature.where)
        entry.__enter__()
        try:
            with answering(entry.signature.where, "burst_opened()"):
                entry.prepared.burst_opened()
        except BaseException:
            entry.__exit__()
            raise

    def start(self, number: int) -> None:
        """Start the listener; returns when its liveness can be waited on."""
        self._number = number
        threading.Thread(target=self._listen, name=f"nnhal-burst-{number}", daemon=True).start()
        self._held.wait()

    def free(self, slot: int) -> None:
        """The client will not use a slot again."""
        self._dropped.add(slot)

    def close(self) -> None:
        """End the burst; the listener ends after the execution at hand."""
        self._queues.close()

    # ------------------------------------------------------------------------------------------------------- listener

    def _listen(self) -> None:
        queues = self._queues
        queues.hold()
        self._held.set()
        try:
            while True:
                packet = queues.receive(-1)
                if isinstance(packet, int):
                    _log.debug("burst %d ends: %s", self._number, _ENDS.get(packet, packet))
                    break
                status = queues.send(self._answer(packet))
                if status == _native.FULL:
                    status = queues.send(_native.encode_result(ErrorStatus.GENERAL_FAILURE, (), None, None))
                if status < 0:
                    break
        except BaseException:
            _log.exception("burst %d: the listener failed", self._number)
        finally:
            queues.close()
            queues.drop()
            self._finish()

    def _finish(self) -> None:
        let_go(self._entry.signature.where, "burst_closed()", self._entry.prepared.burst_closed)
        self._bound, self._again, self._slots = None, None, {}
        self._entry.__exit__()

    def _answer(self, packet: bytes) -> bytes:
        try:
            again = self._again
            if again is not None and packet is self._packet and not self._dropped:
                bound, known, reply = again
                request = bound.signature.make(bound.signature, bound.inputs, bound.outputs)
                request.execute(self._run, _PLAIN)
                if request.shapes == known and not request.small:
                    return reply
                return self._result(request, None)
            self._again = None
            if packet is not self._packet or self._bound is None or self._dropped:
                self._packet, self._bound = packet, None
                self._bound = self._bind(packet)
            bound, slots, control = self._bound
            request = bound.request()
            if self._executor is not None:
                execute = self._executor.execute
                timing = request.execute(lambda r, c: execute(r, slots, c), control)
            else:
                timing = request.execute(self._run, control)
            timing = plausible(timing, request.signature.where)
            reply = self._result(request, timing if control.measure else None)
            if self._executor is None and not control.measure and not bound.unaligned and not request.small:
                self._again = bound, request.shapes, reply
            return reply
        except BaseException as error:  # whatever a driver raises is a result
            self.failed = error_to_wire(error)
            status = ErrorStatus(self.failed.status)
            return _native.encode_result(status, (), None, None)

    def _result(self, request: Request, timing: Timing | None) -> bytes:
        shapes, sufficient = tuple(request.shapes), tuple(request.sufficient)
        if timing is None:
            key = (shapes, sufficient)
            found = self._results.get(key)
            if found is None:
                if len(self._results) > 64:
                    self._results.clear()
                found = self._results[key] = self._encode(shapes, sufficient, None, None)
            return found
        return self._encode(shapes, sufficient, timing.on_device, timing.in_driver)

    @staticmethod
    def _encode(
        shapes: Sequence[tuple[int, ...]], sufficient: Sequence[bool], device: int | None, driver: int | None
    ) -> bytes:
        status = ErrorStatus.NONE if all(sufficient) else ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
        return _native.encode_result(status, tuple(zip(sufficient, shapes, strict=True)), device, driver)

    def _bind(self, packet: bytes) -> tuple[BoundRequest, tuple[int, ...], Control]:
        try:
            inputs, outputs, slots, measure = _native.decode_request(packet)
        except ValueError as error:
            raise InvalidArgument(f"burst packet: {error}") from None
        self._forget()
        unknown = [slot for slot in dict.fromkeys(slots) if slot not in self._slots]
        if unknown:
            self._learn(unknown)
        pools = [self._slots[slot] for slot in slots]
        bound = bind_request(self._entry.model, inputs, outputs, pools, self._entry.signature)
        if any(x is None for x in bound.outputs):
            raise InvalidArgument("burst packet: an output has no memory, must have; use a plain execution")
        return bound, tuple(slots), _MEASURED if measure else _PLAIN

    def _learn(self, unknown: Sequence[int]) -> None:
        if len(self._slots) + len(unknown) > MAX_SLOTS:
            raise InvalidArgument(f"burst: has {len(self._slots)} memory slots, must be at most {MAX_SLOTS}; free some")
        for start in range(0, len(unknown), wire.MAX_DESCRIPTORS):
            asked = unknown[start : start + wire.MAX_DESCRIPTORS]
            for slot, memory in zip(asked, self._memories(self._number, asked), strict=True):
                self._slots[slot] = memory
                if self._executor is not None:
                    self._executor.add(slot, memory)

    def _forget(self) -> None:
        while self._dropped:
            slot = self._dropped.pop()
            if self._slots.pop(slot, None) is not None and self._executor is not None:
                self._executor.remove(slot)


_ENDS = {_native.CLOSED: "closed", _native.DEAD: "the client died", _native.CORRUPT: "its queues were tampered with"}
