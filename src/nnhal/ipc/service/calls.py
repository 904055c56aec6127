"""Answers the calls of one client: finds the part that answers each kind of call."""

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from nnhal.base import trace
from nnhal.base.errors import InvalidArgument
from nnhal.hal.device import Device
from nnhal.hal.request import Control
from nnhal.ipc.protocol import wire
from nnhal.ipc.service.binding import DONE, Answer, HeldMemories
from nnhal.ipc.service.buffers import BufferCalls
from nnhal.ipc.service.compilations import CompilationCalls
from nnhal.ipc.service.executions import ExecutionCalls, control_of
from nnhal.ipc.service.exports import Exports
from nnhal.ipc.service.pools import ServicePools
from nnhal.ipc.service.queries import QueryCalls
from nnhal.ipc.service.scope import CallScope, Client
from nnhal.ipc.transport.channel import Descriptors


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
