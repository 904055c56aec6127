"""A model prepared in another process: executions of all kinds."""

import math
from collections.abc import Sequence
from fcntl import F_SEAL_SHRINK
from typing import Any

import numpy as np

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS
from nnhal.base.errors import (
    InvalidArgument,
    NnhalError,
    OperationFailed,
)
from nnhal.base.levels import V1_2, V1_3
from nnhal.base.log import logger
from nnhal.base.memory import Memory, seals
from nnhal.base.operands import Array, dtype_of
from nnhal.hal.binding import Where
from nnhal.hal.buffers import Buffer
from nnhal.hal.burst import Burst
from nnhal.hal.device import Prepared
from nnhal.hal.fence import Fence
from nnhal.hal.fenced import ExecutionInfo, FencedExecution, Notify, as_error, check_fenced, start
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ipc import wire
from nnhal.ipc.channel import close_all
from nnhal.ipc.client_buffer import RemoteBuffer
from nnhal.ipc.client_burst import RemoteBurst
from nnhal.ipc.convert import timing_from_wire
from nnhal.ipc.frames import Frame, Frames
from nnhal.ipc.pools import Packing
from nnhal.ipc.session import Session
from nnhal.model.graph import Model
from nnhal.model.validate import shape_of, validate
from nnhal.ops.schema import agree, show

_log = logger("driver")


class RemotePrepared(Prepared):
    """A model prepared in the driver's process."""

    timely = True

    def __init__(self, session: Session, number: int, model: Model) -> None:
        self.session, self.number, self.model = session, number, model
        main = model.main
        values = validate(model).subgraphs[0].values
        self._declared = [v.shape if (v := values[i]) is not None else shape_of(main.operands[i]) for i in main.outputs]
        self.types = [dtype_of(main.operands[i].type) for i in main.outputs]
        self.frames = Frames(self.types)
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
        frame, home = self.frames.take(request)
        session = self.session
        plain = control is UNLIMITED or (
            control.deadline is None
            and not control.measure
            and control.cancelled is None
            and control.loop_timeout == LOOP_TIMEOUT_DEFAULT_NS
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
                good = reply if _unremarkable(result, request) else b""
                frame.notes[session] = (wire.encode(again), good, session.pools.evictions)
        timing = self._finish(request, frame, result, fds)
        home.append(frame)
        return timing

    def _synchronous(self, request: Request, control: Control, frame: Frame, packing: Packing) -> wire.Call:
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

    def _request(self, request: Request, frame: Frame, packing: Packing) -> wire.Request:
        pools: list[wire.MemoryPool | wire.BufferPool] = [wire.MemoryPool(packing.pool(m)) for m in frame.pools]

        def argument(at: Where | None, buffer: Buffer | None) -> wire.Argument | None:
            if isinstance(buffer, RemoteBuffer):
                pools.append(wire.BufferPool(buffer.of(self.session)))
                return wire.Argument(len(pools) - 1, 0, 0, ())
            if buffer is not None:
                raise InvalidArgument(f"buffer {buffer.token} is none of this device, must be allocated by it")
            return None if at is None else wire.Argument(*at)

        inputs = tuple(argument(at, request.input_buffers.get(n)) for n, at in enumerate(frame.inputs))
        outputs = tuple(argument(at, request.output_buffers.get(n)) for n, at in enumerate(frame.outputs))
        return wire.Request(inputs, outputs, tuple(pools))

    def _run_any(self, request: Request, control: Control) -> Timing | None:
        """The way of everything that is not plain: driver buffers, old levels, callbacks."""
        if self.session.methods < V1_2:  # shapes are known, but outputs of the driver's own are not
            request.outputs[:] = [
                np.empty(tuple(d or 0 for d in s or ()), t) if x is None else x
                for x, s, t in zip(request.outputs, self._declared, self.types, strict=True)
            ]
        frame, home = self.frames.take(request)
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

        def message(number: int) -> wire.Call:
            return wire.Execute(form, number, self.number, whole, measure, deadline, loop)

        return self.session.notified(message, packing, control.deadline)[1]

    def _finish(self, request: Request, frame: Frame, result: wire.Executed, fds: tuple[int, ...]) -> Timing | None:
        """Take outputs and shapes over, after a check that they can be true."""
        try:
            if result.shapes or result.provided:
                self.check_shapes(request, result)
            frame.collect_sufficient(request, result.sufficient)
            if result.provided:
                _take_provided(request, result, fds, self.types)
        finally:
            close_all(fds)
        for n, shape in enumerate(result.shapes):
            if n >= len(request.shapes):
                request.shapes.append(None)
                request.sufficient.append(True)
            request.shapes[n], request.sufficient[n] = tuple(shape), result.sufficient[n]
        return timing_from_wire(result.timing)

    def check_shapes(self, request: Request, result: wire.Executed) -> None:
        """OperationFailed where the shapes that a driver reports cannot be true."""
        count = len(request.outputs)
        if len(result.shapes) != count or len(result.sufficient) != count:
            raise OperationFailed(f"driver: reported {len(result.shapes)} output shapes, must be {count}")
        for n, (shape, declared) in enumerate(zip(result.shapes, self._declared, strict=True)):
            known = tuple(d or None for d in shape) if not result.sufficient[n] else shape
            if declared is not None and not agree(known, declared):
                raise OperationFailed(f"driver: output {n} has shape {show(shape)}, must be {show(declared)}")
            target = request.outputs[n]
            if (
                target is None
                or not result.sufficient[n]
                or target.dtype != self.types[n]
                or target.shape == tuple(shape)
            ):
                continue
            if target.nbytes < math.prod(shape) * target.dtype.itemsize:
                raise OperationFailed(f"driver: output {n} has shape {show(shape)}, its memory {show(target.shape)}")

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """Execute in the driver's background; the notification comes on a thread of its own."""
        frame = Frame(request, self.types)
        frame.fill(request)
        pending = self._launch(request, control, frame, self.session.packing())

        def wait() -> None:
            error: NnhalError | None = None
            timing: Timing | None = None
            try:
                result, fds = pending.wait(control.deadline, control.cancelled)
                timing = self._finish(request, frame, result, fds)
            except BaseException as raised:
                error = as_error(raised, "execution")
            notify(error, timing)

        start(wait, "nnhal-notify")

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """Execute once the fences are signalled; the fence that comes back is the service's."""
        if wire.form_for(wire.ExecuteFenced, self.session.methods) is None:
            return super().execute_fenced(request, control, wait_for, after)
        check_fenced(request, wait_for)
        frame = Frame(request, self.types)
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
        return RemoteBurst(self)


class RemoteExecution(FencedExecution):
    """A fenced execution in the driver's process."""

    def __init__(self, session: Session, number: int, fence: Fence | None, request: Request, frame: Frame) -> None:
        super().__init__(fence)
        self._session, self._number, self._request, self._frame = session, number, request, frame
        self._collected = False

    def get_execution_info(self) -> ExecutionInfo:
        """Asks the service; takes the outputs over on the first success."""
        reply, _ = self._session.call(wire.GetExecutionInfo(self._number), wire.Info)
        if not self._collected:
            self._collected = True
            self._frame.collect(self._request)
        return ExecutionInfo(timing_from_wire(reply.launched) or Timing(), timing_from_wire(reply.fenced) or Timing())

    def __del__(self) -> None:
        self._session.release(self._number)


def _loop(control: Control) -> int:
    return 0 if control.loop_timeout == LOOP_TIMEOUT_DEFAULT_NS else control.loop_timeout


def _unremarkable(result: wire.Executed, request: Request) -> bool:
    """Whether the reply says nothing that the request does not: all outputs there, of the shapes of their memory."""
    return (
        not result.provided
        and all(result.sufficient)
        and all(x is not None and tuple(s) == x.shape for s, x in zip(result.shapes, request.outputs, strict=False))
    )


def _take_provided(
    request: Request, result: wire.Executed, fds: tuple[int, ...], types: Sequence[np.dtype[Any]]
) -> None:
    """Outputs in the driver's memory as arrays of this process's own."""
    sizes = []
    for n in result.provided:
        if n >= len(request.outputs) or request.outputs[n] is not None:
            raise OperationFailed(f"driver: provided output {n}, must only provide what has no memory")
        sizes.append(math.prod(result.shapes[n]) * types[n].itemsize)
    total = sum(sizes)
    if fds:
        if not (seals(fds[0]) or 0) & F_SEAL_SHRINK:
            raise OperationFailed("driver: provided outputs in memory that may shrink, must be sealed")
        memory = Memory.from_fd(fds[0], total)
        data: Array = np.array(memory.bytes())
        memory.close()
    else:
        data = np.frombuffer(bytearray(result.data), np.uint8)
    if data.size != total:
        raise OperationFailed(f"driver: provided {data.size} bytes of outputs, must be {total}")
    offset = 0
    for n, size in zip(result.provided, sizes, strict=True):
        part = data[offset : offset + size]
        request.outputs[n] = np.array(part).view(types[n]).reshape(result.shapes[n])
        offset += size
