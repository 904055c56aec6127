"""Runs the bound requests of a client: by a call, in the background, behind fences, or in a burst."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, LOOP_TIMEOUT_MAXIMUM_NS
from nnhal.base.errors import InvalidArgument
from nnhal.base.levels import V1_3, Level
from nnhal.base.memory import Memory, is_ordinary_memfd, seals
from nnhal.hal.answers import checked_info, fenced_by
from nnhal.hal.background import FencedExecution
from nnhal.hal.binding import Place, bind_request
from nnhal.hal.device import Device, identity_of, where_of
from nnhal.hal.fence import Fence
from nnhal.hal.request import Control
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_to_wire, timing_to_wire
from nnhal.ipc.service.binding import DONE, Answer, LaunchedRequest, ServiceBinding
from nnhal.ipc.service.burst import ServiceBurst
from nnhal.ipc.service.exports import Export, Exports
from nnhal.ipc.service.metrics import OK, ExecutionTally, outcome_of
from nnhal.ipc.service.pools import ServicePools
from nnhal.ipc.service.quota import DECODED
from nnhal.ipc.service.scope import Client
from nnhal.ipc.transport.channel import Descriptors


class ExecutionCalls:
    """The bindings of one client, and their executions."""

    def __init__(self, device: Device, client: Client, exports: Exports, pools: ServicePools) -> None:
        self._where, self._level = where_of(device), min(identity_of(device).level, V1_3)
        self._client, self._share, self._tally = client, client.share, client.tally
        self._wanted, self._scope = client.wanted, client.scope
        self._exports, self._pools = exports, pools

    def bind(self, call: wire.Bind, fds: Descriptors, size: int) -> Answer:
        with self._share.take(bindings=1, memory=DECODED * size) as claim:
            binding = self._bound(self._exports.prepared(call.prepared), call.request, fds)
            self._exports.add(call.object, binding, binding.release, claim)
        return DONE

    def _bound(self, entry: Export, request: wire.WireRequest, fds: Descriptors) -> ServiceBinding:
        places: list[Place] = []
        written = {a.pool for a in request.outputs if a is not None}
        for place in request.pools:
            if isinstance(place, wire.BufferPool):
                places.append(self._exports.buffer(place.buffer))
            else:
                places.append(self._pools.accept(place.memory, fds, written=len(places) in written))
        inputs = [None if a is None else (a.pool, a.offset, a.length, a.dimensions) for a in request.inputs]
        outputs = [None if a is None else (a.pool, a.offset, a.length, a.dimensions) for a in request.outputs]
        bound = bind_request(entry.model, inputs, outputs, places, entry.signature)
        memories = tuple(place for place in places if isinstance(place, Memory))
        return ServiceBinding(entry, bound, memories)

    def binding(self, number: int) -> ServiceBinding:
        """Return a binding of this client."""
        return self._exports.get(number, ServiceBinding, "binding")

    def execute(self, call: wire.Execute, _: Descriptors, plain: Control) -> Answer:
        binding, number = self.binding(call.binding), call.object
        control = self._begun(call, plain)

        def work() -> tuple[wire.ServiceCall, Sequence[int]]:
            given: Sequence[int] = ()
            try:
                result, given = binding.run(control)
                # only a status can be reported
                if call.form < Level.V1_2 or not isinstance(result, wire.ExecutedReply):
                    result = wire.ExecutedReply()
                return wire.NotifyExecuted(number, result), given
            except BaseException as error:
                return wire.NotifyExecuted(number, error_to_wire(error)), given
            finally:
                self._wanted.ended(number)

        try:
            self._client.in_background(work, binding.entry.priority)
        except BaseException:
            self._wanted.ended(number)
            raise
        return DONE

    def _begun(self, call: wire.Execute | wire.ExecuteFenced, plain: Control) -> Control:
        """Return the control of an execution that continues after the answer; call `CallScope.ended` at its end.

        A client that abandons the call cancels its channel, then the execution: one of the two is noticed here or
        later.
        """
        event = self._wanted.begin(call.object)
        if plain.cancelled is not None and plain.cancelled.is_set():
            event.set()
        try:
            return control_of(call, Control(cancelled=event))
        except InvalidArgument:
            self._wanted.ended(call.object)
            raise

    def execute_fenced(self, call: wire.ExecuteFenced, fds: Descriptors, plain: Control) -> Answer:
        if len(fds) != call.fences:
            raise InvalidArgument(f"executeFenced: {len(fds)} descriptors are attached, must be {call.fences} fences")
        fences = [Fence.taken(fds.take) for _ in range(call.fences)]
        binding, left = self.binding(call.binding), ExitStack()
        began: int | None = None
        self._exports.claim(call.object)  # before anything irreversible
        try:
            left.enter_context(self._share.take(fenced=1, fences=call.fences))
            kept = self._share.take(descriptors=1)  # the fence, until the client releases it
            control = self._begun(call, plain)
            left.callback(self._wanted.ended, call.object)
            left.enter_context(binding.entry)
            request = binding.request()
            if self._tally is not None:
                began = self._tally.begin()
            execution = fenced_by(binding.entry.prepared, self._where, request, control, fences, call.after or None)
        except BaseException as error:
            self._exports.release(call.object)
            left.close()
            if self._tally is not None and began is not None:
                self._tally.end(began, outcome_of(error))
            raise
        execution.when_ended(left.close)
        if self._tally is not None and began is not None:
            execution.when_ended(partial(_ended, self._tally, began, execution))
        self._exports.fill(call.object, LaunchedRequest(execution, request), kept.moved_to().give)
        return wire.DONE, () if execution.fence is None else (os.dup(execution.fence.fileno()),)

    def execution_info(self, call: wire.GetExecutionInfo, _: Descriptors) -> Answer:
        execution, request = self._exports.get(call.execution, LaunchedRequest, "fenced execution")
        info = checked_info(execution, self._where)
        declared = [argument.fixed for argument in request.signature.outputs]
        told = None not in request.shapes and request.shapes != declared
        shapes = tuple(request.shapes) if told else ()
        return wire.ExecutionInfoReply(timing_to_wire(info.launched), timing_to_wire(info.fenced), shapes), ()

    def burst(self, call: wire.ConfigureExecutionBurst, fds: Descriptors) -> Answer:
        if not fds:
            raise InvalidArgument("configureExecutionBurst: no descriptor is attached, must be that of the queues")
        fd = fds.take()
        try:
            with self._share.take(bursts=1) as claim:
                entry = self._exports.prepared(call.prepared)
                if seals(fd) is not None and not is_ordinary_memfd(fd):
                    raise InvalidArgument(
                        "configureExecutionBurst: the queues are not in a memfd of ordinary pages, must be"
                    )
                told = self._level, self._client.watch, claim, self._scope, call.object
                burst = ServiceBurst(entry, fd, self.binding, *told)
        finally:
            os.close(fd)
        burst.start()  # first: if adding fails, the burst is closed, and the listener cleans up
        self._exports.add(call.object, burst, burst.close)
        return DONE


def _ended(tally: ExecutionTally, began: int, execution: FencedExecution) -> None:
    """Count a fenced execution that has ended."""
    tally.end(began, OK if execution.error is None else outcome_of(execution.error))


def control_of(call: wire.Execute | wire.ExecuteSynchronously | wire.ExecuteFenced, plain: Control) -> Control:
    """Return the control of a call, `plain` if it sets nothing. Raises InvalidArgument for too long a loop timeout."""
    if not (call.deadline or call.loop_timeout or call.measure):
        return plain
    loop = call.loop_timeout or LOOP_TIMEOUT_DEFAULT_NS
    if loop > LOOP_TIMEOUT_MAXIMUM_NS:
        raise InvalidArgument(f"loop_timeout is {loop} ns, must be at most {LOOP_TIMEOUT_MAXIMUM_NS}")
    return Control(call.deadline or None, loop, call.measure, plain.cancelled)
