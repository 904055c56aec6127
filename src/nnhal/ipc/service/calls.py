"""The service's action for each call of a client: queries, compilation, executions, bursts, driver memory."""

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from nnhal.base import trace
from nnhal.base.answers import close_quietly
from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, LOOP_TIMEOUT_MAXIMUM_NS, Preference, Priority
from nnhal.base.errors import Cancelled, InvalidArgument, ResourceExhausted, bounded_text
from nnhal.base.levels import V1_3, Level
from nnhal.base.memory import Memory, is_ordinary_memfd, seals
from nnhal.base.operands import dtype_of
from nnhal.base.records import replace
from nnhal.hal.answers import (
    allocated_by,
    cache_files_by,
    checked_info,
    checked_memory_use,
    checked_status,
    driver_capabilities,
    fenced_by,
)
from nnhal.hal.background import FencedExecution
from nnhal.hal.binding import Place, bind_request
from nnhal.hal.cache.files import Cache
from nnhal.hal.chain import (
    PreparedChain,
    checked_prepared,
    checked_reconfigure,
    checked_restored,
    release_weights,
)
from nnhal.hal.claims import consider_support, query_verdicts
from nnhal.hal.device import (
    FAST,
    MOST_THREADS,
    NUMERICS_PREFIX,
    Device,
    Hints,
    cache_record_identity,
    code_by,
    identity_of,
    where_of,
)
from nnhal.hal.fence import Fence
from nnhal.hal.host import copy_in, copy_out
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, merge
from nnhal.hal.request import Control
from nnhal.hal.waiting import client_of
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import (
    capabilities_to_wire,
    claims_to_wire,
    error_to_wire,
    model_from_wire,
    options_from_wire,
    timing_to_wire,
)
from nnhal.ipc.service.binding import DONE, Answer, HeldMemories, LaunchedRequest, ServiceBinding
from nnhal.ipc.service.burst import ServiceBurst
from nnhal.ipc.service.exports import ClientFiles, ConsideredModel, Export, Exports
from nnhal.ipc.service.metrics import OK, ExecutionTally, outcome_of
from nnhal.ipc.service.pools import ServicePools
from nnhal.ipc.service.quota import DECODED, Claim, ClientShare
from nnhal.ipc.service.scope import CallScope, ObjectCloser
from nnhal.ipc.transport.channel import Descriptors
from nnhal.model.graph import Model
from nnhal.model.parts import extract_part
from nnhal.model.validate import validate, validate_outline

Work = Callable[[], tuple[wire.ServiceCall, Sequence[int]]]
_OfModel = wire.PrepareModel | wire.PrepareModelFromCache | wire.Consider


class Client(Protocol):
    """The interface of the connection that calls use. It owns their handler and outlives each of them.

    watch: a pidfd of the client's process, or -1. wanted: reports abandoned calls. ends: runs an object's end,
    elsewhere. share: what the client holds. tally: counts its executions, None without metrics. scope: where spans of
    its calls go.
    """

    watch: int
    wanted: CallScope
    ends: ObjectCloser
    share: ClientShare
    tally: ExecutionTally | None
    scope: trace.Scope

    def in_background(self, work: Work, priority: Priority, *, takes_long: bool = False) -> None:
        """Do work in another thread and send its notification, exactly once; the highest priority runs first.

        takes_long: whether other work must not wait for it.
        """


class CallHandler:
    """Answers the calls of one client. Objects, pools and buffers are private to it."""

    def __init__(self, device: Device, client: Client, *, shared: bool) -> None:
        self._device, self._own, self._where = device, identity_of(device), where_of(device)
        self._level = min(self._own.level, V1_3)
        # No reference cycle: a client's objects are released with its connection
        self._client: Client = weakref.proxy(client)
        self._wanted, self._share, self._tally = client.wanted, client.share, client.tally
        self._process = client_of(client.share.pid)
        self._scope, ends = client.scope, client.ends
        self._exports = exports = Exports(lambda end: ends(trace.with_span(end, "end", "termination")), self._share)
        self._pools = ServicePools(
            lambda number: exports.get(number, HeldMemories, "Hold").memories, self._share, shared=shared
        )
        self._contents: weakref.WeakKeyDictionary[Buffer, Claim] = weakref.WeakKeyDictionary()  # of open shape

    def answer(self, call: wire.ClientCall, fds: Descriptors, plain: Control, size: int) -> Answer:
        """Return the reply to a call.

        plain: the control of executions without limits, cancelled when the call is abandoned. size: the bytes of the
        message.
        """
        if isinstance(call, wire.ExecuteSynchronously):
            return self.binding(call.binding).run(control_of(call, plain))
        if isinstance(call, wire.PrepareModel):
            return self._prepare(call, fds, size)
        if isinstance(call, wire.PrepareModelFromCache):
            return self._restore(call, fds, size)
        if isinstance(call, wire.Consider):
            return self._consider(call, fds, size)
        if isinstance(call, wire.Bind):
            return self._bind(call, fds, size)
        abandonable = _ABANDONABLE.get(type(call))
        if abandonable is not None:
            return abandonable(self, call, fds, plain)
        return _HANDLERS[type(call)](self, call, fds)

    def settle(self) -> None:
        """Return when the driver has ended everything released before."""
        done = threading.Event()
        self._client.ends(done.set)
        done.wait()

    def close(self) -> None:
        """End everything that the client holds."""
        self._exports.close()

    def _hello(self, _: wire.Hello, __: Descriptors) -> Answer:
        raise InvalidArgument("Hello: the connection was greeted before, must be once")

    # ------------------------------------------------------------------------------------------------------- queries

    def _capabilities(self, call: wire.GetCapabilities, _: Descriptors) -> Answer:
        return capabilities_to_wire(driver_capabilities(self._device), Level(call.form)), ()

    def _status(self, _: wire.GetStatus, __: Descriptors) -> Answer:
        return wire.TextReply(int(checked_status(self._device))), ()

    def _version(self, _: wire.GetVersionString, __: Descriptors) -> Answer:
        return wire.TextReply(self._own.version), ()

    def _type(self, _: wire.GetType, __: Descriptors) -> Answer:
        return wire.TextReply(int(self._own.type)), ()

    def _relaxations(self, _: wire.GetRelaxations, __: Descriptors) -> Answer:
        more = (NUMERICS_PREFIX + each for each in self._own.numerics if each != FAST)
        return wire.NamesReply((*self._own.relaxations, *more)), ()

    def _extensions(self, _: wire.GetSupportedExtensions, __: Descriptors) -> Answer:
        return wire.NamesReply(self._own.extensions), ()

    def _supported(self, call: wire.GetSupportedOperations, fds: Descriptors) -> Answer:
        model = model_from_wire(call.model, lambda pool: self._pools.accept(pool, fds, written=False))
        validate(model)
        verdicts = tuple((v.ok, v.reason) for v in query_verdicts(self._device, model, as_is=True))
        return wire.Verdicts(verdicts), ()

    def _usage(self, _: wire.GetUsage, __: Descriptors) -> Answer:
        """Return the quotas and the holdings of all clients."""
        quotas = self._share.quotas
        rows = quotas.table.rows
        limits = tuple(wire.Quota(row.name, row.most, row.own, row.common) for row in rows.values())
        clients = tuple(wire.Usages(pid, tuple(used[name] for name in rows)) for pid, used in quotas.usage())
        return wire.Usage(quotas.table.clients, limits, clients), ()

    def _hold(self, call: wire.Hold, fds: Descriptors) -> Answer:
        self._exports.add(
            call.object, HeldMemories([self._pools.accept(pool, fds) for pool in call.pools]), lambda: None
        )
        return DONE

    def _release(self, call: wire.Release, _: Descriptors) -> Answer:
        for number in call.objects:
            self._exports.release(number)
        return DONE

    def _cancel(self, call: wire.Cancel, _: Descriptors) -> Answer:
        for number in call.objects:
            self._wanted.cancel(number)
        return DONE

    def _write_trace(self, call: wire.WriteTrace, fds: Descriptors) -> Answer:
        memory = self._pools.accept(call.pool, fds)
        if memory.readonly:
            raise InvalidArgument("trace: its memory is read-only, must be writable")
        slots = trace.slot_count(memory.size)
        if not 0 < slots <= trace.SLOTS_OF_DRIVERS:
            raise InvalidArgument(f"trace: its memory has {slots} slots, must have 1 to {trace.SLOTS_OF_DRIVERS}")
        log = trace.Log(slots, memory.bytes())
        held = memory, log
        self._exports.add(call.object, held, partial(trace.close_scope, self._scope, log))
        trace.open_scope(self._scope, log, call.begun)
        return DONE

    # --------------------------------------------------------------------------------------------------- compilation

    def _model(self, call: _OfModel, fds: Descriptors, size: int) -> tuple[Model, int]:
        """Return the model of a call with `size` bytes, and its memory for the quota."""
        model = model_from_wire(call.model, lambda pool: self._pools.accept(pool, fds, written=False, kept=True))
        return model, len(model.values) + DECODED * (size - len(model.values))

    def _consider(self, call: wire.Consider, fds: Descriptors, size: int) -> Answer:
        model, memory = self._model(call, fds, size)
        hints = _hints(call)
        validate(model)
        claims = consider_support(self._device, model, hints, as_is=True)
        kept = self._kept(call.object, ConsideredModel(claims, hints, memory))
        return claims_to_wire(claims.verdicts, claims.groups, kept=kept), ()

    def _kept(self, number: int, considered: ConsideredModel) -> bool:
        """Keep the model under a number. If its quota is exhausted, drop it; its preparation then starts again."""
        try:
            claim = self._share.take(considered=1, memory=considered.memory)
            self._exports.add(number, considered, considered.claims.release_work, claim)
        except ResourceExhausted:
            return False
        return True

    def _prepare(self, call: wire.PrepareModel, fds: Descriptors, size: int) -> Answer:
        (model, memory), hints = self._model(call, fds, size), self._with_cache(_hints(call), call.cache)

        def prepare() -> tuple[PreparedChain, Model]:
            return self._prepared(model, hints), model

        return self._prepare_later(call.object, memory, hints.priority, prepare, kept=call.cache != 0)

    def _restore(self, call: wire.PrepareModelFromCache, fds: Descriptors, size: int) -> Answer:
        (outline, memory), hints = self._model(call, fds, size), self._with_cache(_hints(call), call.cache)
        if hints.cache is None:
            raise InvalidArgument("prepareModelFromCache: cache is 0, must be the number of held files")
        memory += sum(os.fstat(fd).st_size for fd in hints.cache.files)

        validate_outline(outline)

        def restore() -> tuple[PreparedChain, Model]:
            return checked_restored(self._device, outline, hints, client=self._process), outline

        return self._prepare_later(call.object, memory, hints.priority, restore, "cache")

    def _prepared(self, model: Model, hints: Hints) -> PreparedChain:
        validate(model)
        prepared = checked_prepared(self._device, model, hints, as_is=True, client=self._process)
        release_weights(prepared, model, self._where)
        return prepared

    def _number_of_cache_files(self, _: wire.GetNumberOfCacheFiles, __: Descriptors) -> Answer:
        counts = cache_files_by(self._device)
        return wire.CacheFileCounts(
            *counts, cache_record_identity(self._device)[1], bounded_text(code_by(self._device).unknown)
        ), ()

    def _hold_files(self, call: wire.HoldFiles, fds: Descriptors) -> Answer:
        count = call.model_files + call.data_files
        with self._share.take(descriptors=count) as claim:
            held = ClientFiles(fds, count)
            weakref.finalize(held, claim.moved_to().give).atexit = False
        files = tuple(held.owner.fds)
        cache = Cache(call.token, files[: call.model_files], files[call.model_files :], held)
        self._exports.add(call.object, cache, lambda: None)
        return DONE

    def _with_cache(self, hints: Hints, number: int) -> Hints:
        return replace(hints, cache=self._exports.get(number, Cache, "cache files")) if number else hints

    def _prepare_considered(self, call: wire.PrepareConsidered, _: Descriptors) -> Answer:
        claims, hints, memory = self._exports.get(call.considered, ConsideredModel, "considered model")
        places, count = call.operations, len(claims.model.main.operations)
        if any(a >= b for a, b in pairwise(places)) or any(place >= count for place in places):
            raise InvalidArgument(
                f"prepareModel: operations of a partition must be in order, each once, and below {count}"
            )

        hints = self._with_cache(hints, call.cache)

        def prepare() -> tuple[PreparedChain, Model]:
            part = extract_part(claims.model, places or range(count)).model.again()  # its constants may be released
            return self._prepared(part, claims.hints(hints, places or None)), part

        return self._prepare_later(call.object, memory, hints.priority, prepare, kept=call.cache != 0)

    def _counted(
        self, prepare: Callable[[], tuple[PreparedChain, Model]], source: str, kept: bool
    ) -> tuple[PreparedChain, Model]:
        """Prepare, and count it if the service has metrics."""
        if self._tally is None:
            return prepare()
        metrics, began, outcome = self._tally.metrics, time.monotonic_ns(), OK
        try:
            prepared, model = prepare()
            for link in prepared.queues:
                metrics.watch(link.queue)
            return prepared, model
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            metrics.prepared(source, outcome, time.monotonic_ns() - began, kept=kept)

    def _prepare_later(
        self,
        number: int,
        memory: int,
        priority: Priority,
        prepare: Callable[[], tuple[PreparedChain, Model]],
        source: str = "model",
        *,
        kept: bool = False,
    ) -> Answer:
        """Prepare in the background, and notify. memory: the model's, for the quota. source, kept: see `Metrics`."""
        exports, claim = self._exports, self._share.take(prepared=1, memory=memory)

        def work() -> tuple[wire.ServiceCall, Sequence[int]]:
            result: wire.Acknowledged | wire.Failed | wire.PreparedTraits = wire.DONE
            try:
                if not exports.holds(number):
                    raise Cancelled("prepare: was released before it began")
                prepared, model = self._counted(prepare, source, kept)
                entry = Export(prepared, model, self._where, claim.moved_to(), priority, self._tally)
                exports.fill(number, entry, entry.release)
                traits = wire.PreparedTraits(prepared.weights_consumed, prepared.changeable, prepared.writes_later)
                if traits != wire.PreparedTraits():
                    result = traits
            except BaseException as error:
                exports.release(number)
                result = error_to_wire(error)
                claim.give()
            return wire.NotifyPrepared(number, result), ()

        exports.claim(number)
        try:
            self._client.in_background(work, priority, takes_long=True)
        except BaseException:
            exports.release(number)
            raise
        return DONE

    def _memory_use(self, call: wire.GetMemoryUse, _: Descriptors) -> Answer:
        with self._entry(call.prepared) as entry:
            return wire.WireMemoryUse(*checked_memory_use(entry.prepared, self._where)), ()

    def _reconfigure(self, call: wire.Reconfigure, _: Descriptors, plain: Control) -> Answer:
        with self._entry(call.prepared) as entry:
            checked_reconfigure(entry.prepared, self._where, options_from_wire(call.options), plain)
        return DONE

    # ----------------------------------------------------------------------------------------------------- execution

    def _bind(self, call: wire.Bind, fds: Descriptors, size: int) -> Answer:
        with self._share.take(bindings=1, memory=DECODED * size) as claim:
            binding = self._bound(self._entry(call.prepared), call.request, fds)
            self._exports.add(call.object, binding, binding.release, claim)
        return DONE

    def _bound(self, entry: Export, request: wire.WireRequest, fds: Descriptors) -> ServiceBinding:
        places: list[Place] = []
        written = {a.pool for a in request.outputs if a is not None}
        for place in request.pools:
            if isinstance(place, wire.BufferPool):
                places.append(self._exports.get(place.buffer, Buffer, "buffer"))  # type: ignore[type-abstract]
            else:
                places.append(self._pools.accept(place.memory, fds, written=len(places) in written))
        inputs = [None if a is None else (a.pool, a.offset, a.length, a.dimensions) for a in request.inputs]
        outputs = [None if a is None else (a.pool, a.offset, a.length, a.dimensions) for a in request.outputs]
        bound = bind_request(entry.model, inputs, outputs, places, entry.signature)
        memories = tuple(place for place in places if isinstance(place, Memory))
        return ServiceBinding(entry, bound, memories)

    def _entry(self, number: int) -> Export:
        return self._exports.get(number, Export, "prepared model")

    def binding(self, number: int) -> ServiceBinding:
        """Return a binding of this client."""
        return self._exports.get(number, ServiceBinding, "binding")

    def _execute(self, call: wire.Execute, _: Descriptors, plain: Control) -> Answer:
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

    def _execute_fenced(self, call: wire.ExecuteFenced, fds: Descriptors, plain: Control) -> Answer:
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

    def _execution_info(self, call: wire.GetExecutionInfo, _: Descriptors) -> Answer:
        execution, request = self._exports.get(call.execution, LaunchedRequest, "fenced execution")
        info = checked_info(execution, self._where)
        declared = [argument.fixed for argument in request.signature.outputs]
        told = None not in request.shapes and request.shapes != declared
        shapes = tuple(request.shapes) if told else ()
        return wire.ExecutionInfoReply(timing_to_wire(info.launched), timing_to_wire(info.fenced), shapes), ()

    def _burst(self, call: wire.ConfigureExecutionBurst, fds: Descriptors) -> Answer:
        if not fds:
            raise InvalidArgument("configureExecutionBurst: no descriptor is attached, must be that of the queues")
        fd = fds.take()
        try:
            with self._share.take(bursts=1) as claim:
                entry = self._entry(call.prepared)
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

    # ------------------------------------------------------------------------------------------------ memory domains

    def _allocate(self, call: wire.Allocate, _: Descriptors) -> Answer:
        roles = [BufferRole(self._entry(p).prepared, index, out, often) for p, index, out, often in call.roles]
        desc = BufferDesc(tuple(call.dimensions))
        facts = merge(desc, roles)
        size = 0 if facts.fixed is None else math.prod(facts.fixed) * dtype_of(facts.type).itemsize
        with self._share.take(buffers=1, memory=size) as claim:
            try:
                buffer = allocated_by(self._device, desc, roles)
            except MemoryError as error:  # the request is too large; the process is sound
                raise ResourceExhausted(f"allocate: {error or 'out of memory'}") from None
            end = partial(close_quietly, self._where, "close() of a buffer", buffer.close)
            self._exports.add(call.object, buffer, end, claim)
        return DONE

    def _copy_to(self, call: wire.CopyTo, fds: Descriptors, plain: Control) -> Answer:
        memory = self._pools.accept(call.pool, fds)
        buffer = self._exports.get(call.buffer, Buffer, "buffer")  # type: ignore[type-abstract]
        copy_out(buffer, memory, plain)
        return wire.Shape(tuple(buffer.shape or ())), ()

    def _copy_from(self, call: wire.CopyFrom, fds: Descriptors, plain: Control) -> Answer:
        memory = self._pools.accept(call.pool, fds)
        buffer = self._exports.get(call.buffer, Buffer, "buffer")  # type: ignore[type-abstract]
        if buffer.facts.fixed is None:
            self._contents[buffer] = self._share.take(memory=memory.size)
        copy_in(buffer, memory, tuple(call.dimensions), plain)
        return DONE

    def _shape(self, call: wire.GetShape, _: Descriptors) -> Answer:
        shape = self._exports.get(call.buffer, Buffer, "buffer").shape  # type: ignore[type-abstract]
        return wire.Shape(shape), ()


_HANDLERS: dict[type[wire.ClientCall], Callable[[Any, Any, Descriptors], Any]] = {
    wire.Hello: CallHandler._hello,
    wire.Release: CallHandler._release,
    wire.Cancel: CallHandler._cancel,
    wire.Hold: CallHandler._hold,
    wire.GetCapabilities: CallHandler._capabilities,
    wire.GetStatus: CallHandler._status,
    wire.GetVersionString: CallHandler._version,
    wire.GetType: CallHandler._type,
    wire.GetSupportedExtensions: CallHandler._extensions,
    wire.GetRelaxations: CallHandler._relaxations,
    wire.GetSupportedOperations: CallHandler._supported,
    wire.GetUsage: CallHandler._usage,
    wire.PrepareConsidered: CallHandler._prepare_considered,
    wire.GetMemoryUse: CallHandler._memory_use,
    wire.GetNumberOfCacheFiles: CallHandler._number_of_cache_files,
    wire.HoldFiles: CallHandler._hold_files,
    wire.WriteTrace: CallHandler._write_trace,
    wire.GetExecutionInfo: CallHandler._execution_info,
    wire.ConfigureExecutionBurst: CallHandler._burst,
    wire.Allocate: CallHandler._allocate,
    wire.GetShape: CallHandler._shape,
}
_ABANDONABLE: dict[type[wire.ClientCall], Callable[[Any, Any, Descriptors, Control], Answer]] = {
    wire.Reconfigure: CallHandler._reconfigure,
    wire.Execute: CallHandler._execute,
    wire.ExecuteFenced: CallHandler._execute_fenced,
    wire.CopyTo: CallHandler._copy_to,
    wire.CopyFrom: CallHandler._copy_from,
}


def _hints(call: _OfModel) -> Hints:
    preference = Preference.FAST_SINGLE_ANSWER if call.preference is None else call.preference
    priority = Priority.MEDIUM if call.priority is None else call.priority
    if preference not in Preference.__members__.values():
        raise InvalidArgument(f"preference is {preference}, must be one of {', '.join(Preference.__members__)}")
    if priority not in Priority.__members__.values():
        raise InvalidArgument(f"priority is {priority}, must be one of {', '.join(Priority.__members__)}")
    if call.threads > MOST_THREADS:
        raise InvalidArgument(f"threads is {call.threads}, must be at most {MOST_THREADS}")
    deadline = call.deadline or None
    return Hints(Preference(preference), Priority(priority), call.threads, deadline, options_from_wire(call.options))


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
