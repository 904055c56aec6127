"""The client's end of a burst: it executes bindings over queues in shared memory instead of a channel."""

import threading
from typing import Any

from nnhal.base import trace
from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS
from nnhal.base.descriptors import Owner
from nnhal.base.errors import BadState, Closed, DeadObject, NnhalError, ResourceExhausted
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.time import WORK_NS
from nnhal.hal.burst import Burst
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ipc.client.session import SETTLE_NS
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.packets import pack, unpack

CHANNEL_LENGTH = 1024  # elements of each queue, as in NNAPI's runtime
_DONE = pack(wire.ENCODED_DONE)
_log = logger("burst")


class RemoteBurst(Burst):
    """Executes one prepared model (a `RemotePrepared`) over two fast message queues, one execution at a time."""

    def __init__(self, prepared: Any, control: Control) -> None:
        """Open the burst. control: that of the execution that opens it; `UNLIMITED` if none does yet."""
        self._prepared = prepared
        self._session, self._frames = prepared.session, prepared.frames
        self._lease = self._session.lease()
        self._number = self._lease.number
        made = Owner()
        try:
            try:
                made.fds.extend(map(_native.create_queues, (CHANNEL_LENGTH,), (CHANNEL_LENGTH,)))
            except OSError as error:
                raise ResourceExhausted(f"burst: cannot create its queues: {error.strerror}") from None
            (fd,) = made.fds
            self._queues = _native.Queues(fd, _native.CLIENT)
            self._queues.watch = self._session.peer.watch
            self._closed = False
            message = wire.ConfigureExecutionBurst(self._number, prepared.number)
            self._session.call(message, wire.Acknowledged, control, fds=(fd,))
        finally:
            made.close()
        self._busy = threading.Lock()
        self.plain: dict[str, int] = {}  # the reasons for plain calls, with their number
        self.ended = False  # unusable, though not closed by its owner
        self._session.peer.add_recipient(self)
        if self._session.peer.dead is not None:  # it may have died between
            self.session_died()

    @property
    def busy(self) -> bool:
        return self._busy.locked()

    def session_died(self) -> None:
        """Wake the waiting thread if the kernel could not."""
        self.ended = True
        self._queues.close()

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute over the queues.

        An execution that does not fit a packet becomes a plain call; `plain` counts the reasons.
        """
        mine: list[bool] = []
        try:
            # One call, so that no interrupt comes before the result is known
            mine.extend(map(self._busy.acquire, (False,)))
            if not mine[0]:
                raise BadState("burst: an execution is running, must be one at a time; open one burst a thread")
            return self._run(request, control)
        finally:
            if mine == [True]:
                self._busy.release()

    def _run(self, request: Request, control: Control) -> Timing | None:
        if self._closed:
            raise Closed("burst: used after close")
        why = _not_in_a_packet(request, control)
        if why:
            return self._plainly(why, request, control)
        frame, home = self._frames.take(request)
        binding = frame.binding or self._prepared.bind(request, frame, control)
        packet = binding.packets.get(control.measure)
        if packet is None:
            packet = binding.packets[control.measure] = pack(binding.call(control, self._prepared.form))
        try:
            untraced = trace.process.log is None
            reply = self._queues.exchange(packet, WORK_NS) if untraced else self._traced_exchange(packet)
        except BaseException:  # interrupted: the next execution must not receive this result
            try:
                left = frame.direct and self._queues.awaiting  # otherwise it has answered, or was not asked
                if left and self._queues.receive(SETTLE_NS) == _native.TIMEOUT:
                    self._session.peer.give_up(f"{self._session.where}: an interrupted burst does not end")
            finally:  # interrupted again
                self._end()
            raise
        if reply == _DONE:
            frame.collect(request)
            home.append(frame)
            return None
        if reply == _native.FULL:
            return self._plainly("its packet does not fit the queue", request, control)
        if isinstance(reply, int):
            raise self._broken(reply)
        try:
            answer = wire.decode_reply(unpack(reply))
        except (ValueError, wire.WireError) as error:
            self._end()
            raise DeadObject(f"{self._session.where}: burst result: {error}") from None
        timing: Timing | None = self._prepared.finish(request, frame, self._prepared.executed(answer), _native.NONE)
        home.append(frame)
        return timing

    def _traced_exchange(self, packet: bytes) -> Any:
        with trace.span(
            "ipc", "execution", "exchange packets", self._session.where, (self._session.group, self._number), trace.OUT
        ):
            return self._queues.exchange(packet, WORK_NS)

    def _plainly(self, why: str, request: Request, control: Control) -> Timing | None:
        self.plain[why] = self.plain.get(why, 0) + 1
        _log.debug("plain execution: %s", why)
        timing: Timing | None = self._prepared.run(request, control)
        return timing

    def _broken(self, status: int) -> NnhalError:
        """Return why the queues ended. The burst is unusable afterwards; the session may still work."""
        if self._closed:
            return Closed("burst: used after close")
        where = self._session.where
        if status == _native.TIMEOUT:
            error: NnhalError = self._session.peer.silent("an execution in a burst", WORK_NS)
        elif status == _native.CORRUPT:
            error = DeadObject(f"{where}: the queues of the burst were tampered with; it is closed")
        else:
            error = self._session.peer.confirm_death(f"{where}: the driver process died or ended the burst")
        self._end()
        return error

    def _end(self) -> None:
        self.ended = True
        self.close()

    def free_memory(self, memory: Memory) -> None:
        """Release a memory that the driver holds because it was an argument."""
        self._prepared.frames.forget_pool(memory)

    def stats(self) -> dict[str, int]:
        """Return the counters of the queues."""
        return self._queues.stats()

    def close(self) -> None:
        """Close the burst; the service's listener ends with it."""
        if not self._closed:
            self._closed = True
            self._queues.close()
            self._lease.release()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()


def _not_in_a_packet(request: Request, control: Control) -> str:
    """Return why an execution needs a plain call; "" if the queues can carry it."""
    if control is not UNLIMITED:
        if control.deadline is not None:
            return "it has a deadline"
        if control.loop_timeout != LOOP_TIMEOUT_DEFAULT_NS:
            return "it has a loop timeout"
        if control.cancelled is not None:
            return "it may be cancelled"
    if request.input_buffers or request.output_buffers:
        return "it uses driver buffers"
    if not request.signature.closed:
        for index, argument in enumerate(request.signature.outputs):
            if argument.fixed is None and request.room(index) is None:
                return "the driver provides memory for an output"
    return ""
