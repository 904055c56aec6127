"""A model prepared in another process: executions of all kinds."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, ErrorStatus, Priority
from nnhal.base.errors import (
    ContractBroken,
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    OperationFailed,
)
from nnhal.base.levels import V1_2, V1_3, Level
from nnhal.base.log import logger
from nnhal.base.memory import first_bytes
from nnhal.base.operands import Array
from nnhal.base.threads import held_lock
from nnhal.base.time import seconds_until
from nnhal.hal.background import (
    ExecutionInfo,
    FencedExecution,
    InfoUnavailable,
    Notify,
    check_fenced,
    notify_of,
    signal_after,
)
from nnhal.hal.binding import Where
from nnhal.hal.burst import Burst
from nnhal.hal.device import Prepared
from nnhal.hal.fence import Fence
from nnhal.hal.memory import Buffer, MemoryUse
from nnhal.hal.request import UNLIMITED, Control, Request, Signature, Timing
from nnhal.ipc.client.buffer import RemoteBuffer
from nnhal.ipc.client.burst import RemoteBurst
from nnhal.ipc.client.channels import KEPT_LANES, MAX_LANES
from nnhal.ipc.client.frames import Frame, Frames, in_pools
from nnhal.ipc.client.pending import Pending
from nnhal.ipc.client.pools import Packing
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import options_to_wire, timing_from_wire
from nnhal.ipc.transport.channel import Descriptors
from nnhal.model.graph import Model

TELL_NS = 1_000_000_000  # the least time that a process has to report the result of an ended execution
_log = logger("driver")


class RemotePrepared(Prepared):
    timely = True

    def __init__(self, session: Session, model: Model, priority: Priority = Priority.MEDIUM) -> None:
        self.session, self.model, self._lease = session, model, session.lease()
        self.number = self._lease.number
        self._lanes = MAX_LANES - KEPT_LANES * (Priority.HIGH - priority)
        self.signature = Signature.of(model, session.where)
        self.frames = Frames()
        self.form = wire.form_for(wire.ExecuteSynchronously, session.methods)
        self._method = "" if self.form is None else wire.hal_name(wire.ExecuteSynchronously(self.form, 0))
        self._ended = False

    def close(self) -> None:
        """Release it; the service closes it when no execution uses it any more."""
        self.frames.close()
        self._lease.release()

    def end(self) -> None:
        """Like `close`, but return only when the driver's own `close` has.

        Raises DeadObject if its process ends with that.
        """
        if not self._ended:
            self._ended = True
            self._lease.keep()
            self.frames.close()
            self.session.end_object(self.number)

    def memory(self) -> MemoryUse:
        use, _ = self.session.call(wire.GetMemoryUse(self.number), wire.WireMemoryUse, UNLIMITED)
        return MemoryUse(*msgspec.structs.astuple(use))

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """Change options in the driver's process, while no execution runs."""
        data = options_to_wire(options, f"options of {self.session.welcome.name}")
        self.session.call(wire.Reconfigure(self.number, data), wire.Acknowledged, UNLIMITED)

    # ----------------------------------------------------------------------------------------------------- execution

    def bound(
        self, request: Request, control: Control, *, apart: bool = False
    ) -> tuple[Frame, deque[Frame], "RemoteBinding"]:
        """Return a frame for this request alone, filled and bound in the service, and the queue to return it to.

        apart: see `Frame`; also applies if the execution may end early.
        """
        if request.output_buffers or request.input_buffers:
            self.session.wait_for_abandoned(control)
        frame, home = self.frames.take(request, apart or control.bounded)
        if request.output_buffers:
            for buffer in request.output_buffers.values():
                if isinstance(buffer, RemoteBuffer):
                    buffer.begin(frame.mark)
        if request.input_buffers:
            for buffer in request.input_buffers.values():
                if isinstance(buffer, RemoteBuffer):
                    buffer.require_contents()
        return frame, home, frame.binding or self.bind(request, frame, control)

    def bind(self, request: Request, frame: Frame, control: Control) -> "RemoteBinding":
        """Bind a frame in the service."""
        session, binding = self.session, RemoteBinding(self.session)
        with session.carrying(frame.pools, control) as packing:
            message = wire.Bind(binding.number, self.number, self._request(request, frame, packing))
            reply, _ = session.ask(message, control, packing)
        if reply is not wire.DONE:
            answered(request, frame)  # nothing has begun
            session.expected(message, reply, wire.Acknowledged)
        frame.bound(binding)
        return binding

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute and wait. Arguments travel in a frame of shared memory unless they lie in a pool."""
        frame, home, binding = self.bound(request, control, apart=self.form is None)
        session = self.session
        if self.form is None:
            result, fds = session.outcome_of(self._execution(binding, control), control)
            answered(request, frame)
        else:
            call = binding.call(control, self.form)
            reply, fds = session.answer_to(
                self._method,
                call,
                control,
                direct=bool(frame.direct),
                lanes=self._lanes,
                work=True,
            )
            if request.output_buffers:
                answered(request, frame)
            if isinstance(reply, wire.Acknowledged):
                self.taken(request, frame, control)
                home.append(frame)
                return None
            result = self.executed(reply)
        timing = self.finish(request, frame, result, fds)
        home.append(frame)
        return timing

    def taken(self, request: Request, frame: Frame, control: Control, shapes: Sequence[tuple[int, ...]] = ()) -> None:
        """Collect the outputs. shapes: empty if all match the model."""
        if shapes and len(shapes) != len(request.shapes):
            raise ContractBroken(f"{self.session.where}: reported {len(shapes)} shapes, must be {len(request.shapes)}")
        frame.collect(request, shapes)
        for n, buffer in request.output_buffers.items():
            request.filled(n, self.signature.outputs[n].fixed or buffer.within(control).shape or ())

    def executed(self, reply: wire.Reply) -> wire.ExecutedReply:
        """Return the reply to an execution; raise the error that it reports."""
        if isinstance(reply, wire.ExecutedReply):
            return reply
        if isinstance(reply, wire.Failed):
            raise self.session.peer.error(reply)
        raise OperationFailed(f"{self.session.where}: answered an execution with {type(reply).__name__}")

    def _request(self, request: Request, frame: Frame, packing: Packing) -> wire.WireRequest:
        pools: list[wire.MemoryPool | wire.BufferPool] = [wire.MemoryPool(packing.pool(m)) for m in frame.pools]

        def argument(at: Where | None, buffer: Buffer | None) -> wire.WireArgument | None:
            if isinstance(buffer, RemoteBuffer):
                pools.append(wire.BufferPool(buffer.of(self.session)))
                return wire.WireArgument(len(pools) - 1, 0, 0, ())
            if buffer is not None:
                raise InvalidArgument(
                    f"buffer {buffer.token}: belongs to another device, must be allocated by this one"
                )
            return None if at is None else wire.WireArgument(*at)

        inputs = tuple(argument(at, request.input_buffers.get(n)) for n, at in enumerate(frame.inputs))
        outputs = tuple(argument(at, request.output_buffers.get(n)) for n, at in enumerate(frame.outputs))
        return wire.WireRequest(inputs, outputs, tuple(pools))

    def _execution(self, binding: "RemoteBinding", control: Control) -> wire.Execute:
        form = wire.form_for(wire.Execute, self.session.methods)
        assert form is not None
        measure = control.measure and form >= V1_2
        deadline, loop = (control.deadline or 0, _loop(control)) if form >= V1_3 else (0, 0)
        return wire.Execute(self.session.number(), form, binding.number, measure, deadline, loop)

    def finish(self, request: Request, frame: Frame, result: wire.ExecutedReply, fds: Descriptors) -> Timing | None:
        """Collect outputs and shapes after verifying that they are possible."""
        shapes = [tuple(shape) for shape in result.shapes]
        if shapes and not (len(shapes) == len(result.sufficient) == len(request.shapes) and all(result.sufficient)):
            request.lacks(shapes, result.sufficient)
            return None
        frame.collect(request, shapes)
        for n in request.output_buffers:
            request.filled(n, shapes[n] if shapes else ())
        if result.provided:
            self._take_provided(request, result, fds)
        return timing_from_wire(result.timing)

    def _take_provided(self, request: Request, result: wire.ExecutedReply, fds: Descriptors) -> None:
        """Collect outputs that lie in the driver's memory."""
        outputs = self.signature.outputs
        places = range(len(outputs))
        if any(n not in places or n in request.output_buffers or len(result.shapes) <= n for n in result.provided):
            raise ContractBroken(f"{self.session.where}: provided outputs {list(result.provided)}, must have no memory")
        sizes = [math.prod(result.shapes[n]) * outputs[n].dtype.itemsize for n in result.provided]
        total = sum(sizes)
        if fds:
            fd = fds.take()
            try:
                length = os.fstat(fd).st_size
                data: Array = np.frombuffer(first_bytes(fd, min(total, length)), np.uint8)
            except OSError as error:
                raise ContractBroken(f"{self.session.where}: provided outputs that cannot be read: {error}") from None
            finally:
                os.close(fd)
        else:
            data = np.frombuffer(result.data, np.uint8)
        if data.size != total:
            raise ContractBroken(f"{self.session.where}: provided {data.size} bytes of outputs, must be {total}")
        offset = 0
        for n, size in zip(result.provided, sizes, strict=True):
            part = np.array(data[offset : offset + size])  # at an address with the alignment of its type
            request.write(n, part.view(outputs[n].dtype).reshape(result.shapes[n]))
            offset += size

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """Execute in the driver's background; the notification comes in a separate thread."""
        frame, home, binding = self.bound(request, control, apart=True)
        pending = self.session.notified(self._execution(binding, control), control)
        notify_of(partial(self._notified, pending, frame, home), request, control, notify)

    def _notified(
        self, pending: Pending, frame: Frame, home: deque[Frame], request: Request, control: Control
    ) -> Timing | None:
        result, fds = self.session.outcome(pending, control)
        answered(request, frame)
        timing = self.finish(request, frame, result, fds)
        home.append(frame)
        return timing

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """Execute once the fences are signalled, and return the service's fence.

        Exception: outputs in pools, of an execution that may end early. The driver does not write there itself, but the
        outputs must be there when the fence is signalled.
        """
        early = control.bounded or after is not None
        if wire.form_for(wire.ExecuteFenced, self.session.methods) is None or (early and in_pools(request)):
            return super().execute_fenced(request, control, wait_for, after)
        check_fenced(request, wait_for)
        wait_for = [fence for fence in wait_for if fence.status() != ErrorStatus.NONE]
        frame, home, binding = self.bound(request, control, apart=early)
        if wait_for and (frame.copies or len(wait_for) > wire.MAX_DESCRIPTORS):  # inputs are read only then
            wait_for = [signal_after(wait_for, lambda: frame.fill(request))]
        execution = RemoteExecution(self, request, control, frame, home)
        execution.launch(binding, wait_for, after or 0)
        answered(request, frame)
        return execution

    def burst(self) -> Burst:
        """Return a burst over fast message queues if the service has them, otherwise plain executions."""
        return self.open_burst(UNLIMITED)

    def open_burst(self, control: Control) -> Burst:
        """Like `burst`, within the budget of an execution."""
        if wire.form_for(wire.ConfigureExecutionBurst, self.session.methods) is None:
            _log.debug(
                "%s: no bursts at HAL version %s; executions are plain calls", self.session.where, self.session.level
            )
            return super().burst()
        return RemoteBurst(self, control)


def answered(request: Request, frame: Frame) -> None:
    """Record that the service has answered an execution, and knows whether its output buffers have contents."""
    for buffer in request.output_buffers.values():
        if isinstance(buffer, RemoteBuffer):
            buffer.answered(frame.mark)


class RemoteBinding:
    """A request that the service has bound, by its number; released with the last reference."""

    __slots__ = ("_calls", "_lease", "number", "packets")

    def __init__(self, session: Session) -> None:
        self._lease = session.lease()
        self.number = self._lease.number
        self._calls: dict[bool, bytes] = {}
        self.packets: dict[bool, bytes] = {}  # of bursts, by whether they measure

    def call(self, control: Control, form: Level) -> bytes:
        """Return the encoded call that executes it."""
        deadline, loop = (control.deadline or 0, _loop(control)) if form >= V1_3 else (0, 0)
        if deadline or loop:
            message = wire.ExecuteSynchronously(form, self.number, control.measure, deadline, loop)
            return wire.encode(message)
        call = self._calls.get(control.measure)
        if call is None:
            message = wire.ExecuteSynchronously(form, self.number, control.measure)
            call = self._calls[control.measure] = wire.encode(message)
        return call


class RemoteExecution(FencedExecution):
    timely = True

    def __init__(
        self, prepared: RemotePrepared, request: Request, control: Control, frame: Frame, home: deque[Frame]
    ) -> None:
        super().__init__(None)
        self._prepared, self._session = prepared, prepared.session
        self._request, self._control, self._frame, self._home = request, control, frame, home
        self._asking = threading.Lock()
        self._lease = self._session.lease()
        self._number = self._lease.number

    def launch(self, binding: RemoteBinding, wait_for: Sequence[Fence], after: int) -> None:
        """Start the execution."""
        control = self._control
        message = wire.ExecuteFenced(
            self._number, binding.number, len(wait_for), control.measure, control.deadline or 0, _loop(control), after
        )
        sent = [fence.owner() for fence in wait_for]
        waited = [owner.fds[0] for owner in sent]
        _, fds = self._session.call(message, wire.Acknowledged, control, fds=waited, work=True)
        self.fence = Fence.taken(fds.take) if fds else None
        self._session.peer.holders.add(self)
        self._session.endings.watch_cancellation(self._number, control.cancelled)

    def get_execution_info(self) -> ExecutionInfo:
        """Ask the service, and collect the outputs on the first success; concurrent callers wait for that."""
        return self.info_until(None)

    def info_until(self, until: int | None) -> ExecutionInfo:
        """Like `get_execution_info`. The process has until then or the deadline, and at least `TELL_NS`."""
        if not self._done.is_set():
            limits = [point for point in (until, self._control.deadline) if point is not None]
            control = Control(max(min(limits), time.monotonic_ns() + TELL_NS)) if limits else UNLIMITED
            left = seconds_until(control.deadline) if control.deadline is not None else -1
            with held_lock(self._asking, left) as mine:
                if not mine:
                    raise self._untold()
                if not self._done.is_set():
                    self._ask(control)
        return super().get_execution_info()

    def _ask(self, control: Control) -> None:
        if self._request.ended:
            self._request.reopen()  # an earlier caller was interrupted
        message = wire.GetExecutionInfo(self._number)
        try:
            answer, _ = self._session.ask(message, control)
        except MissedDeadline:
            raise self._untold() from None
        reply = self._session.expected(message, answer, wire.ExecutionInfoReply)
        info = ExecutionInfo(timing_from_wire(reply.launched) or Timing(), timing_from_wire(reply.fenced) or Timing())
        self._session.endings.unwatch_cancellation(self._number)
        self._session.peer.holders.discard(self)
        error: NnhalError | None = None
        try:
            self._request.execute(partial(self._collect, reply.shapes), control)
        except NnhalError as raised:
            error = raised
        self.finish(error, info)
        if error is None:
            self._home.append(self._frame)  # only once: the outputs are collected

    def _untold(self) -> InfoUnavailable:
        return InfoUnavailable(f"{self._session.where}: did not report the result of an execution in time")

    def _collect(self, shapes: Sequence[tuple[int, ...]], request: Request, control: Control) -> None:
        self._prepared.taken(request, self._frame, control, shapes)
        if request.small:
            raise InvalidArgument("fenced execution: an output is larger than its memory")

    def __del__(self) -> None:
        if hasattr(self, "_number"):
            self._session.endings.unwatch_cancellation(self._number)


def _loop(control: Control) -> int:
    return 0 if control.loop_timeout == LOOP_TIMEOUT_DEFAULT_NS else control.loop_timeout
