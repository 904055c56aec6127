"""Allocates driver memory for a client, and copies its contents."""

import math
import weakref
from functools import partial

from nnhal.base.answers import close_quietly
from nnhal.base.errors import ResourceExhausted
from nnhal.base.operands import dtype_of
from nnhal.hal.answers import allocated_by
from nnhal.hal.device import Device, where_of
from nnhal.hal.host import copy_in, copy_out
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, merge
from nnhal.hal.request import Control
from nnhal.ipc.protocol import wire
from nnhal.ipc.service.binding import DONE, Answer
from nnhal.ipc.service.exports import Exports
from nnhal.ipc.service.pools import ServicePools
from nnhal.ipc.service.quota import Claim, ClientShare
from nnhal.ipc.transport.channel import Descriptors


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
