"""The service's end of a burst: a listener thread that decodes packets, executes bindings, and answers in packets.

Everything in a packet is checked before it is used. An invalid packet gets an error as its result, and does not affect
the next one. A repeated packet is the same object, and is not decoded again.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import close_quietly, driver_call
from nnhal.base.errors import InvalidArgument, OperationFailed, ResourceExhausted
from nnhal.base.levels import Level
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.hal.burst import BurstExecutor
from nnhal.hal.chain import checked_executor
from nnhal.hal.request import Control, Run
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_to_wire
from nnhal.ipc.service.binding import ServiceBinding
from nnhal.ipc.service.exports import Export
from nnhal.ipc.service.quota import Claim
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.packets import pack, unpack

_LOOK = 0.25  # seconds
_log = logger("burst")
_DONE = pack(wire.ENCODED_DONE)
_TOO_LONG = pack(wire.encode(error_to_wire(OperationFailed("burst: the result does not fit the queue"))))


class ServiceBurst:
    """One burst."""

    def __init__(
        self,
        entry: Export,
        fd: int,
        binding: Callable[[int], ServiceBinding],
        level: Level,
        watch: int,
        claim: Claim,
        scope: trace.Scope | None = None,
        number: int = 0,
    ) -> None:
        """Open the burst. binding: returns a binding of the client by its number. level: the service's.

        watch: a pidfd of the client, or -1. claim: its quota, until the listener has ended. scope: where spans go.
        number: its number in the session.
        """
        try:
            self._queues = _native.Queues(fd, _native.SERVICE)
        except ValueError as error:
            raise InvalidArgument(f"burst: {error}") from None
        self._queues.watch = watch
        self._entry, self._binding, self._level = entry, binding, level
        self._scope, self._number = scope or trace.Scope(), number
        self._held = threading.Event()
        self._unwanted = threading.Event()
        self._plain, self._measured = Control(cancelled=self._unwanted), Control(measure=True, cancelled=self._unwanted)
        self._packet = b""  # the last one, and the call in it
        self._call: tuple[ServiceBinding, Control] | None = None
        self._executor = checked_executor(entry.prepared, entry.signature.where)
        self._slots = Slots(self._executor) if self._executor is not None else None
        self._run = entry.prepared.run
        entry.__enter__()  # until the listener has ended
        try:
            with driver_call(entry.signature.where, "burst_opened()"):
                entry.prepared.burst_opened()
        except BaseException:
            entry.__exit__()
            raise
        self._claim = claim.moved_to()

    def start(self) -> None:
        """Start the listener, which ends with the burst; return when its liveness can be waited on."""
        thread = threading.Thread(target=self._listen, name="nnhal-burst", daemon=True)
        try:
            thread.start()
            while not self._held.wait(_LOOK):
                if not thread.is_alive() and not self._held.is_set():  # it had no memory to start with
                    raise RuntimeError
        except RuntimeError:
            self._finish()
            raise ResourceExhausted("burst: no thread is available; close some bursts") from None

    def close(self) -> None:
        """End the burst. The listener ends after the current execution, which is abandoned."""
        self._unwanted.set()
        self._queues.close()

    # ------------------------------------------------------------------------------------------------------- listener

    def _listen(self) -> None:
        queues = self._queues
        try:
            try:
                queues.hold()
            finally:
                self._held.set()
            while True:
                packet = queues.receive()
                if isinstance(packet, int):
                    _log.debug("burst of %s ends: %s", self._entry.signature.where, _ENDS.get(packet, packet))
                    break
                answer = self._answer if self._scope.log is None else self._answer_traced
                if queues.send(answer(packet)) == _native.FULL:
                    queues.send(_TOO_LONG)
        except BaseException:
            _log.exception("burst of %s: the listener failed", self._entry.signature.where)
        finally:
            queues.close()
            queues.drop()
            self._finish()

    def _finish(self) -> None:
        """Clean up after the listener, or if it did not start."""
        close_quietly(self._entry.signature.where, "burst_closed()", self._entry.prepared.burst_closed)
        if self._slots is not None:
            close_quietly(self._entry.signature.where, "remove() of a burst's executor", self._slots.close)
        self._call = self._slots = None
        self._entry.__exit__()
        self._claim.give()

    def _answer_traced(self, packet: bytes) -> bytes:
        log = self._scope.log
        if log is None:
            return self._answer(packet)
        with trace.trace_answer(log, self._number):
            trace.called("execute in a burst", "execution")
            return self._answer(packet)

    def _answer(self, packet: bytes) -> bytes:
        try:
            if packet is not self._packet or self._call is None:
                self._packet, self._call = packet, None
                self._call = self._decoded(packet)
            binding, control = self._call
            if not self._entry.alive:
                self._entry.refuse()
            run = self._run if self._slots is None else self._slots.executing(binding)
            reply, _ = binding.execute(run, control)  # without descriptors: the driver provides no output
            return _DONE if reply is wire.DONE else pack(wire.encode(reply))
        except BaseException as error:  # an error of the driver is a result
            return pack(wire.encode(error_to_wire(error)))

    def _decoded(self, packet: bytes) -> tuple[ServiceBinding, Control]:
        try:
            call = wire.decode_call(unpack(packet))
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        why = wire.refusal(call, self._level)
        if why:
            raise InvalidArgument(f"burst packet: {why}")
        if not isinstance(call, wire.ExecuteSynchronously) or call.deadline or call.loop_timeout:
            raise InvalidArgument(f"burst packet: is {type(call).__name__}, must be an execution without limits")
        binding = self._binding(call.binding)
        if binding.entry is not self._entry:
            raise InvalidArgument(
                f"burst packet: binding {call.binding} belongs to another model, must belong to the burst's"
            )
        if binding.provides:
            raise InvalidArgument("burst packet: an output has no memory, must have one; use a plain execution")
        return binding, self._measured if call.measure else self._plain


class Slots:
    """Numbers for the memories that a driver's own executor knows.

    Each is added before its first use, and removed with the last binding that uses it.
    """

    def __init__(self, executor: BurstExecutor) -> None:
        self._executor = executor
        self._known: dict[int, list[Any]] = {}  # id of a memory: the memory, its slot, the number of its bindings
        self._of: weakref.WeakKeyDictionary[ServiceBinding, tuple[int, ...]] = weakref.WeakKeyDictionary()
        self._gone: deque[tuple[int, ...]] = deque()  # ids of the memories of released bindings
        self._next = 1

    def executing(self, binding: ServiceBinding) -> Run:
        """Return the function that executes a request of this binding."""
        while self._gone:
            for memory in self._gone.popleft():
                self._leave(memory)
        slots = self._of.get(binding)
        if slots is None:
            memories = binding.memories
            slots = self._of[binding] = tuple(map(self._enter, memories))
            weakref.finalize(binding, self._gone.append, tuple(map(id, memories))).atexit = False
        return lambda request, control: self._executor.execute(request, slots, control)

    def close(self) -> None:
        """Remove all remaining memories."""
        while self._known:
            self._executor.remove(self._known.popitem()[1][1])

    def _enter(self, memory: Memory) -> int:
        known = self._known.get(id(memory))
        if known is None:
            slot, self._next = self._next, self._next + 1
            self._executor.add(slot, memory)
            known = self._known[id(memory)] = [memory, slot, 0]
        known[2] += 1
        return int(known[1])

    def _leave(self, memory: int) -> None:
        known = self._known[memory]
        known[2] -= 1
        if not known[2]:
            del self._known[memory]
            self._executor.remove(known[1])


_ENDS = {_native.CLOSED: "closed", _native.DEAD: "the client died", _native.CORRUPT: "its queues were tampered with"}
