"""A model prepared in another process: executions of all kinds."""

import math
from collections.abc import Sequence
from fcntl import F_SEAL_SHRINK
from typing import Any

import numpy as np

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS
from nnhal.base.errors import (
    ContractBroken,
    InvalidArgument,
    NnhalError,
    OperationFailed,
)
from nnhal.base.levels import V1_2, V1_3
from nnhal.base.log import logger
from nnhal.base.memory import Memory, seals
from nnhal.base.operands import Array
from nnhal.hal.background import ExecutionInfo, FencedExecution, Notify, check_fenced, notify_of
from nnhal.hal.binding import Where
from nnhal.hal.burst import Burst
from nnhal.hal.device import Prepared
from nnhal.hal.fence import Fence
from nnhal.hal.memory import Buffer
from nnhal.hal.request import UNLIMITED, Control, Request, Signature, Timing
from nnhal.ipc import wire
from nnhal.ipc.channel import close_all
from nnhal.ipc.client_buffer import RemoteBuffer
from nnhal.ipc.client_burst import RemoteBurst
from nnhal.ipc.convert import timing_from_wire
from nnhal.ipc.frames import Frame, Frames
from nnhal.ipc.pools import Packing
from nnhal.ipc.session import Session
from nnhal.model.graph import Model

_log = logger("driver")


class RemotePrepared(Prepared):
    """A model prepared in the driver's process."""

    timely = True

    def __init__(self, session: Session, number: int, model: Model) -> None:
        self.session, self.number, self.model = session, number, model
        self.signature = Signature.of(model, session.where)
        self._declared = [argument.fixed for argument in self.signature.outputs]
        self.frames = Frames()
        self._form = wire.form_for(wire.ExecuteSynchronously, session.methods)
        self._released = False

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it; the service closes it when no execution uses it any more."""
        if not self._released:
            self._released = True
            self.session.release(self.number)

    # ----------------------------------------------------------------------------------------------------- execution

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute and wait; arguments travel in a frame of shared memory unless they lie in a pool already."""
        if request.input_buffers or request.output_buffers or self._form is None:
            return self._run_any(request, control)
        frame, home = self.frames.take(request, control.bounded)
        session = self.session
        plain = control is UNLIMITED or (
            not control.bounded and not control.measure and control.loop_timeout == LOOP_TIMEOUT_DEFAULT_NS
        )
        known = frame.notes.get(session) if plain else None
        if known is not None and known[2] == session.pools.evictions:
            data, good, _ = known  # sent before: the service has its memories, and most likely gives the same reply
            reply, fds = session.transact(data)
            if reply == good and not fds:
                frame.collect(request)
                home.append(frame)
                return None
            result = self._decode(reply, fds)
        else:
            packing = session.packing()
            message = self._synchronous(request, control, frame, packing)
            result, fds = session.call(
                message, wire.Executed, packing, deadline=control.deadline, cancelled=control.cancelled
            )
            reply = wire.encode(result)
            if plain:
                again = self._synchronous(request, control, frame, session.packing())
                frame.notes.clear()
                good = reply if self._unremarkable(result) else b""
                frame.notes[session] = (wire.encode(again), good, session.pools.evictions)
        timing = self._finish(request, frame, result, fds)
        home.append(frame)
        return timing

    def _synchronous(self, request: Request, control: Control, frame: Frame, packing: Packing) -> wire.ClientCall:
        assert self._form is not None
        deadline, loop = (control.deadline or 0, _loop(control)) if self._form >= V1_3 else (0, 0)
        whole = self._request(request, frame, packing)
        return wire.ExecuteSynchronously(self._form, self.number, whole, control.measure, deadline, loop)

    def _decode(self, data: bytes, fds: tuple[int, ...]) -> wire.Executed:
        try:
            reply = wire.decode_reply(data)
        except wire.WireError as error:
            close_all(fds)
            raise OperationFailed(f"{self.session.where}: answered with what is no message: {error}") from None
        if not isinstance(reply, wire.Executed):
            close_all(fds)
            if isinstance(reply, wire.Failed):
                raise self.session.error(reply)
            raise OperationFailed(f"{self.session.where}: answered an execution with {type(reply).__name__}")
        return reply

    def _request(self, request: Request, frame: Frame, packing: Packing) -> wire.WireRequest:
        pools: list[wire.MemoryPool | wire.BufferPool] = [wire.MemoryPool(packing.pool(m)) for m in frame.pools]

        def argument(at: Where | None, buffer: Buffer | None) -> wire.WireArgument | None:
            if isinstance(buffer, RemoteBuffer):
                pools.append(wire.BufferPool(buffer.of(self.session)))
                return wire.WireArgument(len(pools) - 1, 0, 0, ())
            if buffer is not None:
                raise InvalidArgument(f"buffer {buffer.token} is none of this device, must be allocated by it")
            return None if at is None else wire.WireArgument(*at)

        inputs = tuple(argument(at, request.input_buffers.get(n)) for n, at in enumerate(frame.inputs))
        outputs = tuple(argument(at, request.output_buffers.get(n)) for n, at in enumerate(frame.outputs))
        return wire.WireRequest(inputs, outputs, tuple(pools))

    def _run_any(self, request: Request, control: Control) -> Timing | None:
        """The way of everything that is not plain: driver buffers, old levels, callbacks."""
        frame, home = self.frames.take(request, control.bounded)
        packing = self.session.packing()
        if self._form is not None:
            message = self._synchronous(request, control, frame, packing)
            result, fds = self.session.call(
                message, wire.Executed, packing, deadline=control.deadline, cancelled=control.cancelled
            )
        else:
            pending = self._launch(request, control, frame, packing)
            result, fds = pending.wait(control.deadline, control.cancelled)
        timing = self._finish(request, frame, result, fds)
        home.append(frame)
        return timing

    def _launch(self, request: Request, control: Control, frame: Frame, packing: Packing) -> Any:
        form = wire.form_for(wire.Execute, self.session.methods)
        assert form is not None
        measure = control.measure and form >= V1_2
        deadline, loop = (control.deadline or 0, _loop(control)) if form >= V1_3 else (0, 0)
        whole = self._request(request, frame, packing)

        def message(number: int) -> wire.ClientCall:
            return wire.Execute(form, number, self.number, whole, measure, deadline, loop)

        return self.session.notified(message, packing, control.deadline)[1]

    def _finish(self, request: Request, frame: Frame, result: wire.Executed, fds: tuple[int, ...]) -> Timing | None:
        """Take outputs and shapes over, after a check that they can be true."""
        try:
            shapes = [tuple(shape) for shape in result.shapes]
            if shapes and not (len(shapes) == len(result.sufficient) == len(request.shapes) and all(result.sufficient)):
                request.lacks(shapes, result.sufficient)
                return None
            frame.collect(request, shapes)
            for n in request.output_buffers:
                request.filled(n, shapes[n] if shapes else ())
            if result.provided:
                self._take_provided(request, result, fds)
        finally:
            close_all(fds)
        return timing_from_wire(result.timing)

    def _unremarkable(self, result: wire.Executed) -> bool:
        """Whether the reply says nothing that the model does not: all outputs there, of the shapes that it says."""
        return not result.provided and all(result.sufficient) and [tuple(s) for s in result.shapes] == self._declared

    def _take_provided(self, request: Request, result: wire.Executed, fds: tuple[int, ...]) -> None:
        """Outputs in the driver's memory."""
        outputs = self.signature.outputs
        places = range(len(outputs))
        if any(n not in places or n in request.output_buffers or len(result.shapes) <= n for n in result.provided):
            raise ContractBroken(f"{self.session.where}: provided outputs {list(result.provided)}, must have no memory")
        sizes = [math.prod(result.shapes[n]) * outputs[n].dtype.itemsize for n in result.provided]
        total = sum(sizes)
        if fds:
            if not (seals(fds[0]) or 0) & F_SEAL_SHRINK:
                raise ContractBroken(
                    f"{self.session.where}: provided outputs in memory that may shrink, must be sealed"
                )
            memory = Memory.from_fd(fds[0], total)
            data: Array = np.array(memory.bytes())
            memory.close()
        else:
            data = np.frombuffer(result.data, np.uint8)
        if data.size != total:
            raise ContractBroken(f"{self.session.where}: provided {data.size} bytes of outputs, must be {total}")
        offset = 0
        for n, size in zip(result.provided, sizes, strict=True):
            part = np.array(data[offset : offset + size])  # at an address that suits its type
            request.write(n, part.view(outputs[n].dtype).reshape(result.shapes[n]))
            offset += size

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """Execute in the driver's background; the notification comes on a thread of its own."""
        frame = Frame(request, control.bounded)
        frame.fill(request)
        pending = self._launch(request, control, frame, self.session.packing())

        def collect(request: Request, control: Control) -> Timing | None:
            result, fds = pending.wait(control.deadline, control.cancelled)
            return self._finish(request, frame, result, fds)

        notify_of(collect, request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """Execute once the fences are signalled; the fence that comes back is the service's."""
        if wire.form_for(wire.ExecuteFenced, self.session.methods) is None:
            return super().execute_fenced(request, control, wait_for, after)
        check_fenced(request, wait_for)
        frame = Frame(request)
        frame.fill(request)
        packing = self.session.packing()
        whole = self._request(request, frame, packing)
        message = wire.ExecuteFenced(
            self.number, whole, len(wait_for), control.measure, control.deadline or 0, _loop(control), after or 0
        )
        waited = [f.fileno() for f in wait_for]
        reply, fds = self.session.call(message, wire.Launched, packing, fds=waited, deadline=control.deadline)
        fence = Fence(fds[0]) if fds else None
        close_all(fds[1:])
        return RemoteExecution(self.session, reply.execution, fence, request, frame)

    def burst(self) -> Burst:
        """A burst over fast message queues where the service has them, else plain executions."""
        if wire.form_for(wire.ConfigureExecutionBurst, self.session.methods) is None:
            _log.debug("%s: no bursts at level %s; executions are plain calls", self.session.where, self.session.level)
            return super().burst()
        return RemoteBurst(self.session, self.number, self.run)


class RemoteExecution(FencedExecution):
    """A fenced execution in the driver's process."""

    def __init__(self, session: Session, number: int, fence: Fence | None, request: Request, frame: Frame) -> None:
        super().__init__(fence)
        self._session, self._number, self._request, self._frame = session, number, request, frame

    def get_execution_info(self) -> ExecutionInfo:
        """Asks the service; takes the outputs over on the first success."""
        if not self._done.is_set():
            reply, _ = self._session.call(wire.GetExecutionInfo(self._number), wire.Info)
            info = ExecutionInfo(
                timing_from_wire(reply.launched) or Timing(), timing_from_wire(reply.fenced) or Timing()
            )
            error: NnhalError | None = None
            try:
                self._request.execute(self._collect, UNLIMITED)
            except NnhalError as raised:
                error = raised
            self.finish(error, info)
        return super().get_execution_info()

    def _collect(self, request: Request, _: Control) -> None:
        self._frame.collect(request)
        for n, buffer in request.output_buffers.items():
            request.filled(n, buffer.shape or ())

    def __del__(self) -> None:
        self._session.release(self._number)


def _loop(control: Control) -> int:
    return 0 if control.loop_timeout == LOOP_TIMEOUT_DEFAULT_NS else control.loop_timeout
