"""Answers the calls of one client: finds the part that answers each kind of call.

Queries, driver buffers and held objects are here; compilations and executions have their modules.
"""

import math
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import close_quietly
from nnhal.base.errors import InvalidArgument, ResourceExhausted, bounded_text
from nnhal.base.levels import Level
from nnhal.base.operands import dtype_of
from nnhal.hal.answers import allocated_by, cache_files_by, checked_status, driver_capabilities
from nnhal.hal.claims import query_verdicts
from nnhal.hal.device import FAST, NUMERICS_PREFIX, Device, cache_record_identity, code_by, identity_of, where_of
from nnhal.hal.host import copy_in, copy_out
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, merge
from nnhal.hal.request import Control
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import capabilities_to_wire, model_from_wire
from nnhal.ipc.service.binding import DONE, Answer, HeldMemories
from nnhal.ipc.service.compilations import CompilationCalls
from nnhal.ipc.service.executions import ExecutionCalls, control_of
from nnhal.ipc.service.exports import Exports
from nnhal.ipc.service.pools import ServicePools
from nnhal.ipc.service.quota import Claim, ClientShare
from nnhal.ipc.service.scope import CallScope, Client
from nnhal.ipc.transport.channel import Descriptors
from nnhal.model.validate import validate


class CallHandler:
    """Answers the calls of one client. Objects, pools and buffers are private to it."""

    def __init__(self, device: Device, client: Client, *, shared: bool) -> None:
        # No reference cycle: a client's objects are released with its connection
        self._client: Client = weakref.proxy(client)
        share, ends = client.share, client.ends
        self._exports = exports = Exports(lambda end: ends(trace.with_span(end, "end", "termination")), share)
        pools = ServicePools(lambda number: exports.get(number, HeldMemories, "Hold").memories, share, shared=shared)
        held, queries = HeldObjects(exports, pools, client.wanted, client.scope), QueryCalls(device, pools, share)
        compilations = CompilationCalls(device, self._client, exports, pools)
        self._executions = executions = ExecutionCalls(device, self._client, exports, pools)
        buffers = BufferCalls(device, share, exports, pools)
        self._plain: dict[type[wire.ClientCall], Callable[[Any, Descriptors], Answer]] = {
            wire.Hello: _refuse_hello,
            wire.Release: held.release,
            wire.Cancel: held.cancel,
            wire.Hold: held.hold,
            wire.WriteTrace: held.write_trace,
            wire.GetCapabilities: queries.capabilities,
            wire.GetStatus: queries.status,
            wire.GetVersionString: queries.version,
            wire.GetType: queries.type,
            wire.GetSupportedExtensions: queries.extensions,
            wire.GetRelaxations: queries.relaxations,
            wire.GetSupportedOperations: queries.supported,
            wire.GetUsage: queries.usage,
            wire.GetNumberOfCacheFiles: queries.cache_files,
            wire.HoldFiles: compilations.hold_files,
            wire.PrepareConsidered: compilations.prepare_considered,
            wire.GetMemoryUse: compilations.memory_use,
            wire.GetExecutionInfo: executions.execution_info,
            wire.ConfigureExecutionBurst: executions.burst,
            wire.Allocate: buffers.allocate,
            wire.GetShape: buffers.shape,
        }
        self._sized: dict[type[wire.ClientCall], Callable[[Any, Descriptors, int], Answer]] = {
            wire.PrepareModel: compilations.prepare,
            wire.PrepareModelFromCache: compilations.restore,
            wire.Consider: compilations.consider,
            wire.Bind: executions.bind,
        }
        self._abandonable: dict[type[wire.ClientCall], Callable[[Any, Descriptors, Control], Answer]] = {
            wire.Reconfigure: compilations.reconfigure,
            wire.Execute: executions.execute,
            wire.ExecuteFenced: executions.execute_fenced,
            wire.CopyTo: buffers.copy_to,
            wire.CopyFrom: buffers.copy_from,
        }

    def answer(self, call: wire.ClientCall, fds: Descriptors, plain: Control, size: int) -> Answer:
        """Return the reply to a call.

        plain: the control of executions without limits, cancelled when the call is abandoned. size: the bytes of the
        message, for the quota.
        """
        if isinstance(call, wire.ExecuteSynchronously):
            return self._executions.binding(call.binding).run(control_of(call, plain))
        kind = type(call)
        if kind in self._sized:
            return self._sized[kind](call, fds, size)
        if kind in self._abandonable:
            return self._abandonable[kind](call, fds, plain)
        return self._plain[kind](call, fds)

    def settle(self) -> None:
        """Return when the driver has ended everything released before."""
        done = threading.Event()
        self._client.ends(done.set)
        done.wait()

    def close(self) -> None:
        """End everything that the client holds."""
        self._exports.close()


def _refuse_hello(_: wire.Hello, __: Descriptors) -> Answer:
    raise InvalidArgument("Hello: the connection was greeted before, must be once")


class HeldObjects:
    """The objects of one client, whatever their kind: released, cancelled, or held as memory for later messages."""

    def __init__(self, exports: Exports, pools: ServicePools, wanted: CallScope, scope: trace.Scope) -> None:
        self._exports, self._pools, self._wanted, self._scope = exports, pools, wanted, scope

    def hold(self, call: wire.Hold, fds: Descriptors) -> Answer:
        self._exports.add(
            call.object, HeldMemories([self._pools.accept(pool, fds) for pool in call.pools]), lambda: None
        )
        return DONE

    def release(self, call: wire.Release, _: Descriptors) -> Answer:
        for number in call.objects:
            self._exports.release(number)
        return DONE

    def cancel(self, call: wire.Cancel, _: Descriptors) -> Answer:
        for number in call.objects:
            self._wanted.cancel(number)
        return DONE

    def write_trace(self, call: wire.WriteTrace, fds: Descriptors) -> Answer:
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


class BufferCalls:
    """The driver buffers of one client. A buffer's contents count against its quota."""

    def __init__(self, device: Device, share: ClientShare, exports: Exports, pools: ServicePools) -> None:
        self._device, self._where, self._share = device, where_of(device), share
        self._exports, self._pools = exports, pools
        self._contents: weakref.WeakKeyDictionary[Buffer, Claim] = weakref.WeakKeyDictionary()  # of open shape

    def allocate(self, call: wire.Allocate, _: Descriptors) -> Answer:
        roles = [
            BufferRole(self._exports.prepared(p).prepared, index, out, often) for p, index, out, often in call.roles
        ]
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

    def copy_to(self, call: wire.CopyTo, fds: Descriptors, plain: Control) -> Answer:
        memory = self._pools.accept(call.pool, fds)
        buffer = self._exports.buffer(call.buffer)
        copy_out(buffer, memory, plain)
        return wire.Shape(tuple(buffer.shape or ())), ()

    def copy_from(self, call: wire.CopyFrom, fds: Descriptors, plain: Control) -> Answer:
        memory = self._pools.accept(call.pool, fds)
        buffer = self._exports.buffer(call.buffer)
        if buffer.facts.fixed is None:
            self._contents[buffer] = self._share.take(memory=memory.size)
        copy_in(buffer, memory, tuple(call.dimensions), plain)
        return DONE

    def shape(self, call: wire.GetShape, _: Descriptors) -> Answer:
        shape = self._exports.buffer(call.buffer).shape
        return wire.Shape(shape), ()


class QueryCalls:
    """Questions about the driver, and about what clients hold. They change nothing, and make nothing that is held."""

    def __init__(self, device: Device, pools: ServicePools, share: ClientShare) -> None:
        self._device, self._own = device, identity_of(device)
        self._pools, self._share = pools, share

    def capabilities(self, call: wire.GetCapabilities, _: Descriptors) -> Answer:
        return capabilities_to_wire(driver_capabilities(self._device), Level(call.form)), ()

    def status(self, _: wire.GetStatus, __: Descriptors) -> Answer:
        return wire.TextReply(int(checked_status(self._device))), ()

    def version(self, _: wire.GetVersionString, __: Descriptors) -> Answer:
        return wire.TextReply(self._own.version), ()

    def type(self, _: wire.GetType, __: Descriptors) -> Answer:
        return wire.TextReply(int(self._own.type)), ()

    def relaxations(self, _: wire.GetRelaxations, __: Descriptors) -> Answer:
        more = (NUMERICS_PREFIX + each for each in self._own.numerics if each != FAST)
        return wire.NamesReply((*self._own.relaxations, *more)), ()

    def extensions(self, _: wire.GetSupportedExtensions, __: Descriptors) -> Answer:
        return wire.NamesReply(self._own.extensions), ()

    def supported(self, call: wire.GetSupportedOperations, fds: Descriptors) -> Answer:
        model = model_from_wire(call.model, lambda pool: self._pools.accept(pool, fds, written=False))
        validate(model)
        verdicts = tuple((v.ok, v.reason) for v in query_verdicts(self._device, model, as_is=True))
        return wire.Verdicts(verdicts), ()

    def cache_files(self, _: wire.GetNumberOfCacheFiles, __: Descriptors) -> Answer:
        counts = cache_files_by(self._device)
        return wire.CacheFileCounts(
            *counts, cache_record_identity(self._device)[1], bounded_text(code_by(self._device).unknown)
        ), ()

    def usage(self, _: wire.GetUsage, __: Descriptors) -> Answer:
        """Return the quotas and the holdings of all clients."""
        quotas = self._share.quotas
        rows = quotas.table.rows
        limits = tuple(wire.Quota(row.name, row.most, row.own, row.common) for row in rows.values())
        clients = tuple(wire.Usages(pid, tuple(used[name] for name in rows)) for pid, used in quotas.usage())
        return wire.Usage(quotas.table.clients, limits, clients), ()
