"""What a service does for each call of a client: queries, compilation, executions, bursts, driver memory."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from nnhal.base.answers import let_go
from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, LOOP_TIMEOUT_MAXIMUM_NS, Preference, Priority
from nnhal.base.errors import DeadObject, InvalidArgument, ResourceExhausted
from nnhal.base.levels import Level
from nnhal.base.memory import Memory
from nnhal.hal.background import FencedExecution
from nnhal.hal.binding import BoundRequest, Place, bind_request, flat_bytes
from nnhal.hal.device import (
    Device,
    Hints,
    allocated_by,
    capabilities_by,
    fenced_by,
    identity_of,
    info_by,
    prepared_by,
    status_by,
    verdicts_by,
    where_of,
)
from nnhal.hal.fence import Fence
from nnhal.hal.host import run_resolved
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing, plausible
from nnhal.ipc import wire
from nnhal.ipc.convert import capabilities_to_wire, error_to_wire, model_from_wire, timing_to_wire
from nnhal.ipc.exports import Export, Exports
from nnhal.ipc.pools import ServicePools
from nnhal.ipc.service_burst import ServiceBurst
from nnhal.model.validate import validate

_INLINE_OUTPUTS = 32 << 10  # bytes of outputs in the reply itself; more travel in a memory

Answer = tuple[wire.Reply | bytes | None, Sequence[int]]  # a reply, encoded or not, None for none; descriptors to send
Again = Callable[[], Answer]  # the same call once more
Work = Callable[[], tuple[wire.ServiceCall, Sequence[int]]]


class Client(Protocol):
    """What calls need of the connection that they came by. watch: a pidfd of the client's process, or -1."""

    watch: int

    def in_background(self, work: Work) -> None:
        """Do work on another thread and send its notification, exactly once."""

    def memories(self, burst: int, slots: Sequence[int]) -> list[Memory]:
        """Ask the client for the memories of a burst's slots."""


class Gone:
    """The client of a connection that has ended."""

    watch = -1

    def in_background(self, work: Work) -> None:
        """DeadObject."""
        raise DeadObject("connection: is ending")

    def memories(self, burst: int, slots: Sequence[int]) -> list[Memory]:
        """DeadObject."""
        raise DeadObject("connection: is ending")


class CallHandler:
    """Answers the calls of one client. Objects, pools and buffers are private to it."""

    def __init__(self, device: Device, client: Client, *, shared: bool) -> None:
        self._device, self._own, self._where = device, identity_of(device), where_of(device)
        self._client: Client = client
        self._exports = Exports()
        self._pools = ServicePools(shared=shared)

    def answer(
        self, call: wire.ClientCall, fds: Iterator[int]
    ) -> tuple[wire.Reply | bytes | None, Sequence[int], Again | None]:
        """The reply to a call, and, where that is worth it, how to answer the same call the next time."""
        if isinstance(call, wire.ExecuteSynchronously):
            return self._execute_synchronously(call, fds)
        reply, given = _HANDLERS[type(call)](self, call, fds)
        return reply, given, None

    def accept(self, pool: wire.Pool, fds: Iterator[int]) -> Memory:
        """A memory of the client's, mapped once."""
        return self._pools.accept(pool, fds)

    def close(self) -> None:
        """End everything that the client holds."""
        self._exports.close()
        self._pools.close()
        self._client = Gone()  # a cycle would keep all of it until the collector comes by

    # ------------------------------------------------------------------------------------------------------- queries

    def _capabilities(self, call: wire.GetCapabilities, _: Iterator[int]) -> Answer:
        return capabilities_to_wire(capabilities_by(self._device), Level(call.form)), ()

    def _status(self, _: wire.GetStatus, __: Iterator[int]) -> Answer:
        return wire.Word(int(status_by(self._device))), ()

    def _version(self, _: wire.GetVersionString, __: Iterator[int]) -> Answer:
        return wire.Word(self._own.version), ()

    def _type(self, _: wire.GetType, __: Iterator[int]) -> Answer:
        return wire.Word(int(self._own.type)), ()

    def _relaxations(self, _: wire.GetRelaxations, __: Iterator[int]) -> Answer:
        return wire.Names(self._own.relaxations), ()

    def _extensions(self, _: wire.GetSupportedExtensions, __: Iterator[int]) -> Answer:
        return wire.Names(self._own.extensions), ()

    def _supported(self, call: wire.GetSupportedOperations, fds: Iterator[int]) -> Answer:
        model = model_from_wire(call.model, lambda pool: self._pools.accept(pool, fds))
        validate(model)
        verdicts = tuple((v.ok, v.reason) for v in verdicts_by(self._device, model))
        return wire.Verdicts(verdicts), ()

    def _announce(self, call: wire.Announce, fds: Iterator[int]) -> Answer:
        for pool in call.pools:
            self._pools.accept(pool, fds)
        return wire.Acknowledged(), ()

    def _release(self, call: wire.Release, _: Iterator[int]) -> tuple[None, Sequence[int]]:
        for number, count in call.objects:
            self._exports.release(number, count)
        for pool in call.pools:
            self._pools.release(pool)
        return None, ()

    # --------------------------------------------------------------------------------------------------- compilation

    def _prepare(self, call: wire.PrepareModel, fds: Iterator[int]) -> Answer:
        model = model_from_wire(call.model, lambda pool: self._pools.accept(pool, fds))
        hints = _hints(call)

        def work() -> tuple[wire.ServiceCall, Sequence[int]]:
            try:
                validate(model)
                entry = Export(prepared_by(self._device, model, hints), model, self._where)
                result: wire.Object | wire.Failed = wire.Object(self._exports.add(entry, entry.release))
            except BaseException as error:
                result = error_to_wire(error)
            return wire.NotifyPrepared(call.call, result), ()

        self._client.in_background(work)
        return wire.Acknowledged(), ()

    # ----------------------------------------------------------------------------------------------------- execution

    def _bind(self, entry: Export, request: wire.WireRequest, fds: Iterator[int]) -> BoundRequest:
        places: list[Place] = []
        for place in request.pools:
            if isinstance(place, wire.BufferPool):
                places.append(self._exports.get(place.buffer, Buffer, "buffer"))  # type: ignore[type-abstract]
            else:
                places.append(self._pools.accept(place.memory, fds))
        inputs = [None if a is None else (a.pool, a.offset, a.length, a.dimensions) for a in request.inputs]
        outputs = [None if a is None else (a.pool, a.offset, a.length, a.dimensions) for a in request.outputs]
        return bind_request(entry.model, inputs, outputs, places, entry.signature)

    def _entry(self, number: int) -> Export:
        return self._exports.get(number, Export, "prepared model")

    def _execute_synchronously(
        self, call: wire.ExecuteSynchronously, fds: Iterator[int]
    ) -> tuple[Any, Sequence[int], Any]:
        entry = self._entry(call.prepared)
        bound = self._bind(entry, call.request, fds)
        control = control_of(call)
        simple = bound.simple and not control.measure
        direct = simple and not bound.unaligned and not bound.input_buffers
        run, signature = entry.prepared.run, bound.signature
        last: tuple[Any, Any, bytes] | None = (
            None  # shapes, sufficiency, the encoded reply: most often all the same again
        )

        def execute() -> tuple[bytes | wire.Reply, Sequence[int]]:
            nonlocal last
            try:
                with entry:
                    if direct:
                        request = signature.make(signature, bound.inputs, bound.outputs)
                        timing = request.execute(run, control)
                    else:
                        request = bound.request()
                        timing = request.execute(partial(run_resolved, entry.prepared), control)
                if simple and last is not None and request.shapes == last[0] and request.small == last[1]:
                    return last[2], ()
                reply, given = executed(bound, request, timing if control.measure else None)
            except BaseException as error:  # whatever a driver raises is an answer
                return error_to_wire(error), ()
            if not simple:
                return reply, given
            last = request.shapes, request.small, wire.encode(reply)
            return last[2], ()

        reply, given = execute()
        repeatable = not control.deadline and not any(
            isinstance(p, wire.BufferPool) or p.memory.sent for p in call.request.pools
        )
        return reply, given, execute if repeatable else None

    def _execute(self, call: wire.Execute, fds: Iterator[int]) -> Answer:
        entry = self._entry(call.prepared)
        bound = self._bind(entry, call.request, fds)
        control = control_of(call)

        def work() -> tuple[wire.ServiceCall, Sequence[int]]:
            given: Sequence[int] = ()
            try:
                result: wire.Executed | wire.Failed
                result, given = run_bound(entry, bound, control)
                if call.form < Level.V1_2:  # a status is all that such a driver reports
                    result = wire.Executed()
            except BaseException as error:
                result = error_to_wire(error)
            return wire.NotifyExecuted(call.call, result), given

        self._client.in_background(work)
        return wire.Acknowledged(), ()

    def _execute_fenced(self, call: wire.ExecuteFenced, fds: Iterator[int]) -> Answer:
        fences = [_fence(fd) for _, fd in zip(range(call.fences), fds, strict=False)]
        if len(fences) != call.fences:
            raise InvalidArgument(
                f"executeFenced: {len(fences)} descriptors came along, must be {call.fences} fences first"
            )
        entry = self._entry(call.prepared)
        bound = self._bind(entry, call.request, fds)
        entry.__enter__()
        try:
            request, control = bound.request(), control_of(call)
            execution = fenced_by(entry.prepared, self._where, request, control, fences, call.after or None)
        except BaseException:
            entry.__exit__()
            raise
        execution.when_ended(entry.__exit__)
        number = self._exports.add(execution, lambda: None)
        return wire.Launched(number), () if execution.fence is None else (os.dup(execution.fence.fileno()),)

    def _execution_info(self, call: wire.GetExecutionInfo, _: Iterator[int]) -> Answer:
        info = info_by(self._exports.get(call.execution, FencedExecution, "fenced execution"), self._where)
        return wire.Info(timing_to_wire(info.launched), timing_to_wire(info.fenced)), ()

    def _burst(self, call: wire.ConfigureExecutionBurst, fds: Iterator[int]) -> Answer:
        fd = next(fds, -1)
        if fd < 0:
            raise InvalidArgument("configureExecutionBurst: no descriptor came along, must be that of the queues")
        try:
            burst = ServiceBurst(self._entry(call.prepared), fd, self._client.memories, self._client.watch)
        finally:
            os.close(fd)
        number = self._exports.add(burst, burst.close)
        burst.start(number)
        return wire.Object(number), ()

    def _free_memory(self, call: wire.FreeMemory, _: Iterator[int]) -> Answer:
        self._exports.get(call.burst, ServiceBurst, "burst").free(call.slot)
        return wire.Acknowledged(), ()

    def _explain(self, call: wire.ExplainBurst, _: Iterator[int]) -> Answer:
        return self._exports.get(call.burst, ServiceBurst, "burst").failed or wire.Acknowledged(), ()

    # ------------------------------------------------------------------------------------------------ memory domains

    def _allocate(self, call: wire.Allocate, _: Iterator[int]) -> Answer:
        roles = [BufferRole(self._entry(p).prepared, index, out, often) for p, index, out, often in call.roles]
        try:
            buffer = allocated_by(self._device, BufferDesc(tuple(call.dimensions)), roles)
        except MemoryError as error:  # what was asked for is too much, the process is sound
            raise ResourceExhausted(f"allocate: {error or 'out of memory'}") from None
        return wire.Object(
            self._exports.add(buffer, lambda: let_go(self._where, "close() of a buffer", buffer.close))
        ), ()

    def _copy_to(self, call: wire.CopyTo, fds: Iterator[int]) -> Answer:
        memory = self._pools.accept(call.pool, fds)
        buffer = self._exports.get(call.buffer, Buffer, "buffer")  # type: ignore[type-abstract]
        buffer.copy_to(memory)
        return wire.Shape(tuple(buffer.shape or ())), ()

    def _copy_from(self, call: wire.CopyFrom, fds: Iterator[int]) -> Answer:
        memory = self._pools.accept(call.pool, fds)
        self._exports.get(call.buffer, Buffer, "buffer").copy_from(memory, tuple(call.dimensions))  # type: ignore[type-abstract]
        return wire.Acknowledged(), ()

    def _shape(self, call: wire.GetShape, _: Iterator[int]) -> Answer:
        shape = self._exports.get(call.buffer, Buffer, "buffer").shape  # type: ignore[type-abstract]
        return wire.Shape(shape), ()


_HANDLERS: dict[type[wire.ClientCall], Callable[[Any, Any, Iterator[int]], Any]] = {
    wire.Release: CallHandler._release,
    wire.Announce: CallHandler._announce,
    wire.GetCapabilities: CallHandler._capabilities,
    wire.GetStatus: CallHandler._status,
    wire.GetVersionString: CallHandler._version,
    wire.GetType: CallHandler._type,
    wire.GetSupportedExtensions: CallHandler._extensions,
    wire.GetRelaxations: CallHandler._relaxations,
    wire.GetSupportedOperations: CallHandler._supported,
    wire.PrepareModel: CallHandler._prepare,
    wire.Execute: CallHandler._execute,
    wire.ExecuteFenced: CallHandler._execute_fenced,
    wire.GetExecutionInfo: CallHandler._execution_info,
    wire.ConfigureExecutionBurst: CallHandler._burst,
    wire.FreeMemory: CallHandler._free_memory,
    wire.ExplainBurst: CallHandler._explain,
    wire.Allocate: CallHandler._allocate,
    wire.CopyTo: CallHandler._copy_to,
    wire.CopyFrom: CallHandler._copy_from,
    wire.GetShape: CallHandler._shape,
}


def _fence(fd: int) -> Fence:
    try:
        return Fence(fd)
    except BaseException:
        os.close(fd)
        raise


def _hints(call: wire.PrepareModel) -> Hints:
    preference = Preference.FAST_SINGLE_ANSWER if call.preference is None else call.preference
    priority = Priority.MEDIUM if call.priority is None else call.priority
    if preference not in Preference.__members__.values():
        raise InvalidArgument(f"preference is {preference}, must be one of {', '.join(Preference.__members__)}")
    if priority not in Priority.__members__.values():
        raise InvalidArgument(f"priority is {priority}, must be one of {', '.join(Priority.__members__)}")
    try:
        options = json.loads(call.options) if call.options else {}
    except ValueError as error:
        raise InvalidArgument(f"options: {error}; must be a JSON object") from None
    if not isinstance(options, dict):
        raise InvalidArgument("options: must be a JSON object")
    return Hints(Preference(preference), Priority(priority), call.threads, call.deadline or None, options)


def control_of(call: wire.Execute | wire.ExecuteSynchronously | wire.ExecuteFenced) -> Control:
    """The control that a call asks for; InvalidArgument for a loop time-out past the limit."""
    loop = call.loop_timeout or LOOP_TIMEOUT_DEFAULT_NS
    if loop > LOOP_TIMEOUT_MAXIMUM_NS:
        raise InvalidArgument(f"loop_timeout is {loop} ns, must be at most {LOOP_TIMEOUT_MAXIMUM_NS}")
    return Control(call.deadline or None, loop, call.measure)


def run_bound(entry: Export, bound: BoundRequest, control: Control) -> tuple[wire.Executed, Sequence[int]]:
    """Run once and tell what came of it."""
    with entry:
        request = bound.request()
        timing = request.execute(partial(run_resolved, entry.prepared), control)
    return executed(bound, request, timing if control.measure else None)


def executed(bound: BoundRequest, request: Request, timing: Timing | None) -> tuple[wire.Executed, Sequence[int]]:
    """The reply to an execution; outputs that the driver provided lie in it, or in a sealed memory that comes along."""
    shapes, sufficient = tuple(request.shapes), tuple(request.sufficient)
    spent = timing_to_wire(plausible(timing, request.signature.where))
    provided = tuple(n for n, x in enumerate(bound.outputs) if x is None and n not in bound.output_buffers)
    if not provided or request.small:
        return wire.Executed(shapes, sufficient, spent), ()
    parts = [flat_bytes(request.results[n]) for n in provided]
    total = sum(part.size for part in parts)
    if total <= _INLINE_OUTPUTS:
        return wire.Executed(shapes, sufficient, spent, provided, b"".join(part.tobytes() for part in parts)), ()
    memory = Memory.allocate(total, "nnhal-outputs")
    offset = 0
    for part in parts:
        memory.bytes()[offset : offset + part.size] = part
        offset += part.size
    fd = os.dup(memory.fd)
    memory.close()
    return wire.Executed(shapes, sufficient, spent, provided), (fd,)
