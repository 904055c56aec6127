"""The client's end of a burst: request packets out, result packets in, memories by slot."""

import os
import threading
import weakref
from collections import OrderedDict

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, ErrorStatus
from nnhal.base.errors import BadState, Closed, DeadObject, NnhalError, OperationFailed, ResourceExhausted, error_of
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.hal.burst import Burst
from nnhal.hal.request import Control, Request, Run, Timing
from nnhal.ipc import _native, wire
from nnhal.ipc.convert import error_from_wire
from nnhal.ipc.frames import Frame, Key, key_of
from nnhal.ipc.session import Session

CHANNEL_LENGTH = 1024  # elements of each queue, as NNAPI's runtime has it
_KEPT = 8  # frames, one for each set of shapes
_log = logger("burst")


class RemoteBurst(Burst):
    """Executions of one prepared model over two fast message queues; one at a time."""

    def __init__(self, session: Session, prepared: int, run: Run) -> None:
        """prepared: the number of the model. run: the plain call, for what a packet cannot carry."""
        self._session, self._run = session, run
        try:
            fd = _native.create_queues(CHANNEL_LENGTH, CHANNEL_LENGTH)
        except OSError as error:
            raise ResourceExhausted(f"burst: its queues cannot be made: {error.strerror}") from None
        try:
            self._queues = _native.Queues(fd, _native.CLIENT)
            self._queues.watch = self._session.watch
            message = wire.ConfigureExecutionBurst(prepared)
            self._number = self._session.call(message, wire.Object, fds=(fd,))[0].object
        finally:
            os.close(fd)
        self._frames: OrderedDict[Key, Frame] = OrderedDict()
        self._last: tuple[Key, Frame] | None = None
        self._slots: dict[int, Memory] = {}
        self._slot_of: weakref.WeakKeyDictionary[Memory, int] = weakref.WeakKeyDictionary()
        self._next_slot = 1
        self._busy = threading.Lock()
        self._closed = False
        self.plain: dict[str, int] = {}  # why executions took the plain call, and how often
        self.ended = False  # of no use any more, though nobody closed it
        self._session.bursts[self._number] = self

    def memory_of(self, slot: int) -> Memory | None:
        """The memory that a slot stands for."""
        return self._slots.get(slot)

    def session_died(self) -> None:
        """Wake whoever waits, where the kernel could not."""
        self._queues.close()

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute over the queues; what a packet cannot carry takes the plain call, and `plain` counts why."""
        if not self._busy.acquire(blocking=False):
            raise BadState("burst: an execution is running, must be one at a time; open one burst a thread")
        try:
            why = _not_in_a_packet(request, control)
            if why:
                return self._plainly(why, request, control)
            last = self._last
            if last is not None and last[1].try_fill(request):
                frame = last[1]
            else:
                frame = self._frame(request)
                frame.fill(request)
            packet, good = frame.notes[control.measure]
            try:
                reply = self._queues.exchange(packet, -1)
            except (
                BaseException
            ):  # interrupted: the result is still to come, and nobody would take it for the next one's
                self._end()
                raise
            if reply is good:  # the native side gives the same object for the same bytes
                frame.collect(request)
                return None
            if reply == _native.FULL:
                return self._plainly("its packet does not fit the queue", request, control)
            return self._take(reply, request, frame, control.measure)
        finally:
            self._busy.release()

    def _plainly(self, why: str, request: Request, control: Control) -> Timing | None:
        if self._closed:
            raise Closed("burst: used after close")
        self.plain[why] = self.plain.get(why, 0) + 1
        _log.debug("plain execution: %s", why)
        return self._run(request, control)

    def _frame(self, request: Request) -> Frame:
        key = key_of(request)
        last = self._last
        if last is not None and last[0] == key:
            return last[1]
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = Frame(request)
            slots = tuple(self._slot(memory) for memory in frame.pools)
            for measure in (False, True):
                packet = _native.encode_request(tuple(frame.inputs), tuple(frame.outputs), slots, measure)
                frame.notes[measure] = packet, None
            if len(self._frames) > _KEPT:
                self._frames.popitem(last=False)
        else:
            self._frames.move_to_end(key)
        self._last = key, frame
        return frame

    def _slot(self, memory: Memory) -> int:
        memory = self._session.pools.shareable(memory)
        slot = self._slot_of.get(memory)
        if slot is None:
            slot, self._next_slot = self._next_slot, self._next_slot + 1
            self._slot_of[memory] = slot
            self._slots[slot] = memory
        return slot

    def _take(self, reply: bytes | int, request: Request, frame: Frame, measure: bool) -> Timing | None:
        if isinstance(reply, int):
            raise self._broken(reply)
        try:
            status, outputs, on_device, in_driver = _native.decode_result(reply)
        except ValueError as error:
            raise OperationFailed(f"{self._session.where}: burst result: {error}") from None
        if status not in (ErrorStatus.NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE):
            raise self._why(status)
        shapes = [tuple(d) for _, d in outputs]
        if len(outputs) != len(request.shapes) or not all(fits for fits, _ in outputs):
            request.lacks(shapes, [bool(fits) for fits, _ in outputs])
            return None
        frame.collect(request, shapes)
        if not measure and shapes == [a.fixed for a in request.signature.outputs]:
            frame.notes[False] = frame.notes[False][0], reply
        return Timing(on_device, in_driver) if measure else None

    def _why(self, status: int) -> NnhalError:
        """The error behind a status; its text is asked for, as packets hold none."""
        reply, _ = self._session.call(wire.ExplainBurst(self._number), wire.Reply)
        if isinstance(reply, wire.Failed):
            return error_from_wire(reply)
        known = status if status in ErrorStatus.__members__.values() else ErrorStatus.GENERAL_FAILURE
        return error_of(ErrorStatus(known), f"{self._session.where}: burst execution failed")

    def _broken(self, status: int) -> NnhalError:
        """Why the queues end; the burst is of no use afterwards, the session may be."""
        if self._closed:
            return Closed("burst: used after close")
        if status == _native.CORRUPT:
            error: NnhalError = DeadObject(
                f"{self._session.where}: the queues of the burst were tampered with; it is closed"
            )
        else:
            error = self._session.confirm_death(f"{self._session.where}: the driver process died or ended the burst")
        self._end()
        return error

    def _end(self) -> None:
        self.ended = True
        self.close()

    def free_memory(self, memory: Memory) -> None:
        """Have the driver forget a memory that was used as an argument."""
        with self._busy:
            slot = self._slot_of.pop(memory, None)
            if slot is None:
                return
            del self._slots[slot]
            self._frames = OrderedDict((k, f) for k, f in self._frames.items() if memory not in f.pools)
            self._last = None
            self._session.call(wire.FreeMemory(self._number, slot), wire.Acknowledged)

    def stats(self) -> dict[str, int]:
        """Counters of the queues."""
        return self._queues.stats()

    def close(self) -> None:
        """End the burst; the listener in the service ends with it."""
        if not self._closed:
            self._closed = True
            self._queues.close()
            self._session.release(self._number)

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()


def _not_in_a_packet(request: Request, control: Control) -> str:
    """Why an execution cannot go over the queues, "" where it can."""
    if control.deadline is not None:
        return "it has a deadline"
    if control.loop_timeout != LOOP_TIMEOUT_DEFAULT_NS:
        return "it has a loop time-out"
    if request.input_buffers or request.output_buffers:
        return "it uses driver buffers"
    if control.cancelled is not None:
        return "it may be cancelled"
    for index, argument in enumerate(request.signature.outputs):
        if argument.fixed is None and request.room(index) is None:
            return "the driver provides memory for an output"
    return ""
