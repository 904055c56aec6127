"""The driver's side: serves one device to its clients over sockets.

A client's connection is a control lane and any number of lanes for calls, each with a thread of its own here, so calls of
several client threads run at once. Objects, pools and buffers are private to the connection; when its client is gone, by
hang-up or by the end of its process, all of it goes.
"""

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, LOOP_TIMEOUT_MAXIMUM_NS, Preference, Priority
from nnhal.base.errors import DeadObject, InvalidArgument, NnhalError, ResourceExhausted
from nnhal.base.levels import V1_3, Level
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.hal.buffers import Buffer, BufferDesc, BufferRole, run_resolved
from nnhal.hal.device import Device, Hints, prepared_by
from nnhal.hal.fence import Fence
from nnhal.hal.fenced import FencedExecution
from nnhal.hal.request import Control, Request, Timing
from nnhal.ipc import _native, wire
from nnhal.ipc.binding import Bound, Place, bind_request, flat_bytes, shapes_of
from nnhal.ipc.channel import Channel, close_all
from nnhal.ipc.convert import capabilities_to_wire, error_to_wire, model_from_wire, timing_to_wire
from nnhal.ipc.exports import Entry, Exports
from nnhal.ipc.pools import MAX_POOL_BYTES, MAX_POOLS, ServicePools
from nnhal.ipc.service_burst import ServiceBurst
from nnhal.model.validate import validate

MAX_LANES = 64
MAX_CLIENTS = 64
WORKERS = 8  # threads of a connection for what it does in the background
QUEUED = 256  # background work that may wait
HELLO_TIMEOUT_NS = 10_000_000_000
CALLBACK_TIMEOUT_NS = 10_000_000_000
_INLINE_OUTPUTS = 32 << 10
_SO_PEERPIDFD = 77
_log = logger("driver")

Answer = tuple[wire.Reply, Sequence[int]]


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Process and user on the other end of a socket."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def watch_peer(sock: socket.socket) -> int:
    """A pidfd of the process on the other end, -1 where there is none to be had."""
    try:
        return struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]
    except OSError:
        try:
            return os.pidfd_open(peer_of(sock)[0])
        except OSError:
            return -1


class Connection:
    """One client."""

    def __init__(self, device: Device, sock: socket.socket, *, shared: bool, confinement: Mapping[str, str]) -> None:
        self._device, self._shared, self._confinement = device, shared, confinement
        self._level = min(device.level, V1_3)
        self._watch = watch_peer(sock)
        self._control = Channel(sock, self._watch)
        self._exports = Exports()
        self._pools = ServicePools(shared=shared)
        self._callbacks: Channel | None = None
        self._callback_lock = threading.Lock()
        self._lanes: dict[Channel, threading.Thread] = {}
        self._peer_cpus = 0
        self._background = ThreadPoolExecutor(WORKERS, "nnhal-background")
        self._queued = threading.BoundedSemaphore(QUEUED)
        self._ending = False

    # --------------------------------------------------------------------------------------------------------- lanes

    def serve(self) -> None:
        """Greet, then answer the control lane until the client is gone; then end everything."""
        try:
            data, fds = self._control.receive(HELLO_TIMEOUT_NS)
            close_all(fds)
            if self._greet(data):
                self._answer_lane(self._control)
        except NnhalError as error:
            _log.debug("connection ends: %s", error)
        finally:
            self._end()

    def _greet(self, data: bytes) -> bool:
        try:
            hello = wire.decode_call(data)
            if not isinstance(hello, wire.Hello):
                raise InvalidArgument(f"first message is {type(hello).__name__}, must be Hello")
            if hello.version != wire.VERSION:
                raise InvalidArgument(f"client speaks version {hello.version}, must be {wire.VERSION}")
        except (wire.WireError, InvalidArgument) as error:
            self._control.send(wire.encode(error_to_wire(error)))
            return False
        self._peer_cpus = self._control.lane.peer_cpus = hello.cpus
        welcome = wire.Welcome(
            wire.VERSION,
            int(self._device.level),
            self._device.name,
            os.getpid(),
            _native.cpus(),
            self._shared,
            dict(self._confinement),
            MAX_POOLS,
            MAX_POOL_BYTES,
        )
        self._control.send(wire.encode(welcome))
        return True

    def _answer_lane(self, channel: Channel) -> None:
        """Answer calls until the lane is closed; a call that comes again byte for byte is not decoded again."""
        last, again = b"", None
        while True:
            data, fds = channel.receive()
            if data == last and again is not None and not fds:
                reply, given = again()
            else:
                reply, given, again = self._answer(data, fds)
                last = data
            try:
                if reply is not None:
                    channel.send(reply if isinstance(reply, bytes) else wire.encode(reply), given)
            finally:
                close_all(given)

    def _answer(self, data: bytes, fds: tuple[int, ...]) -> tuple[Any, Sequence[int], Any]:
        left = iter(fds)
        try:
            call = wire.decode_call(data)
            why = wire.refusal(call, self._level)
            if why:
                raise InvalidArgument(why)
            _log.debug("%s", wire.hal_name(call))
            if isinstance(call, wire.ExecuteSynchronously):
                return self._execute_synchronously(call, left)
            reply, given = _HANDLERS[type(call)](self, call, left)
            return reply, given, None
        except BaseException as error:  # whatever a driver raises is an answer, not the end of the service
            return error_to_wire(error), (), None
        finally:
            close_all(list(left))

    def _attach(self, call: wire.AttachLane, fds: Iterator[int]) -> Answer:
        fd = next(fds, -1)
        if fd < 0:
            raise InvalidArgument("AttachLane: no descriptor came along, must be one end of a socket pair")
        sock = socket.socket(fileno=fd)
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
            sock.close()
            raise InvalidArgument("AttachLane: the descriptor is no SEQPACKET socket of the Unix family, must be")
        channel = Channel(sock, self._watch, self._peer_cpus)
        if call.callbacks:
            if self._callbacks is not None:
                channel.close()
                raise InvalidArgument("AttachLane: there is a callback lane already, must be one")
            self._callbacks = channel
        elif len(self._lanes) >= MAX_LANES:
            channel.close()
            raise ResourceExhausted(f"connection: has {MAX_LANES} lanes, must be no more")
        else:
            thread = threading.Thread(target=self._lane, args=(channel,), name="nnhal-lane", daemon=True)
            self._lanes[channel] = thread
            thread.start()
        return wire.Done(), ()

    def _lane(self, channel: Channel) -> None:
        try:
            self._answer_lane(channel)
        except NnhalError as error:
            _log.debug("lane ends: %s", error)
        finally:
            self._lanes.pop(channel, None)
            channel.close()

    def _end(self) -> None:
        self._ending = True
        for channel in (*self._lanes, self._callbacks):
            with contextlib.suppress(OSError):  # its own thread may have closed it, its peer hung up
                if channel is not None:
                    channel.socket.shutdown(socket.SHUT_RDWR)
        self._background.shutdown(wait=False, cancel_futures=True)
        self._exports.close()
        self._pools.close()
        self._control.close()
        if self._watch >= 0:
            os.close(self._watch)

    # ------------------------------------------------------------------------------------------------------- queries

    def _capabilities(self, call: wire.GetCapabilities, _: Iterator[int]) -> Answer:
        return capabilities_to_wire(self._device.capabilities(), Level(call.form)), ()

    def _status(self, _: wire.GetStatus, __: Iterator[int]) -> Answer:
        return wire.Value(int(self._device.status())), ()

    def _version(self, _: wire.GetVersionString, __: Iterator[int]) -> Answer:
        return wire.Value(self._device.version), ()

    def _type(self, _: wire.GetType, __: Iterator[int]) -> Answer:
        return wire.Value(int(self._device.type)), ()

    def _extensions(self, _: wire.GetSupportedExtensions, __: Iterator[int]) -> Answer:
        return wire.Names(tuple(self._device.extensions)), ()

    def _supported(self, call: wire.GetSupportedOperations, fds: Iterator[int]) -> Answer:
        model = model_from_wire(call.model, lambda pool: self._pools.accept(pool, fds))
        validate(model)
        verdicts = tuple((bool(v.ok), str(v.reason)[:16000]) for v in self._device.supports(model))
        return wire.Verdicts(verdicts), ()

    def _announce(self, call: wire.Announce, fds: Iterator[int]) -> Answer:
        for pool in call.pools:
            self._pools.accept(pool, fds)
        return wire.Done(), ()

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

        def work() -> tuple[wire.Callback, Sequence[int]]:
            try:
                validate(model)
                entry = Entry(prepared_by(self._device, model, hints), model)
                result: wire.Object | wire.Failed = wire.Object(self._exports.add(entry, entry.release))
            except BaseException as error:
                result = error_to_wire(error)
            return wire.NotifyPrepared(call.call, result), ()

        self._in_background(work)
        return wire.Done(), ()

    def _in_background(self, work: Callable[[], tuple[wire.Callback, Sequence[int]]]) -> None:
        """Do work and notify, exactly once. ResourceExhausted where too much waits already."""
        if self._callbacks is None:
            raise InvalidArgument("connection: has no callback lane, must be attached before calls that notify")
        if not self._queued.acquire(blocking=False):
            raise ResourceExhausted(f"connection: {QUEUED} calls wait already, must be no more")

        def notify() -> None:
            try:
                message, given = work()
                try:
                    self._call_back(message, given)
                finally:
                    close_all(given)
            except NnhalError as error:  # the client is gone
                _log.debug("notification lost: %s", error)
            finally:
                self._queued.release()

        try:
            self._background.submit(notify)
        except RuntimeError:
            self._queued.release()
            raise DeadObject("connection: is ending") from None

    def _call_back(self, message: wire.Callback, fds: Sequence[int] = ()) -> None:
        assert self._callbacks is not None
        with self._callback_lock:
            self._callbacks.send(wire.encode(message), fds)

    def memories(self, burst: int, slots: Sequence[int]) -> list[Memory]:
        """The memories of slots of a burst, asked of the client."""
        if self._callbacks is None:
            raise InvalidArgument("connection: has no callback lane, must be attached before a burst")
        with self._callback_lock:
            data, fds = self._callbacks.call(
                wire.encode(wire.GetMemories(burst, tuple(slots))), (), CALLBACK_TIMEOUT_NS
            )
        left = iter(fds)
        try:
            reply = wire.decode_reply(data)
            if not isinstance(reply, wire.Memories) or len(reply.pools) != len(slots):
                raise InvalidArgument("GetMemories: the client did not answer with one memory for each slot")
            return [self._pools.accept(pool, left) for pool in reply.pools]
        except wire.WireError as error:
            raise InvalidArgument(f"GetMemories: {error}") from None
        finally:
            close_all(list(left))

    # ----------------------------------------------------------------------------------------------------- execution

    def _bind(self, entry: Entry, request: wire.Request, fds: Iterator[int]) -> Bound:
        places: list[Place] = []
        for place in request.pools:
            if isinstance(place, wire.BufferPool):
                places.append(self._exports.get(place.buffer, Buffer, "buffer"))  # type: ignore[type-abstract]
            else:
                places.append(self._pools.accept(place.memory, fds))
        inputs = [None if a is None else (a.pool, a.offset, a.length, a.dimensions) for a in request.inputs]
        outputs = [None if a is None else (a.pool, a.offset, a.length, a.dimensions) for a in request.outputs]
        return bind_request(entry.model, inputs, outputs, places)

    def _entry(self, number: int) -> Entry:
        return self._exports.get(number, Entry, "prepared model")

    def _execute_synchronously(
        self, call: wire.ExecuteSynchronously, fds: Iterator[int]
    ) -> tuple[Any, Sequence[int], Any]:
        entry = self._entry(call.prepared)
        bound = self._bind(entry, call.request, fds)
        control = control_of(call)
        simple = bound.simple and not control.measure
        last: tuple[Any, Any, bytes] | None = (
            None  # shapes, sufficiency, the encoded reply: most often all the same again
        )

        def execute() -> tuple[bytes | wire.Reply, Sequence[int]]:
            nonlocal last
            try:
                with entry:
                    request = bound.request()
                    timing = run_resolved(entry.prepared, request, control)
                if simple and last is not None and request.shapes == last[0] and request.sufficient == last[1]:
                    return last[2], ()
                reply, given = executed(bound, request, timing if control.measure else None)
            except BaseException as error:  # whatever a driver raises is an answer
                return error_to_wire(error), ()
            if not simple:
                return reply, given
            last = request.shapes, request.sufficient, wire.encode(reply)
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

        def work() -> tuple[wire.Callback, Sequence[int]]:
            given: Sequence[int] = ()
            try:
                result: wire.Executed | wire.Failed
                result, given = run_bound(entry, bound, control)
                if call.form < Level.V1_2:  # a status is all that such a driver reports
                    result = wire.Executed()
            except BaseException as error:
                result = error_to_wire(error)
            return wire.NotifyExecuted(call.call, result), given

        self._in_background(work)
        return wire.Done(), ()

    def _execute_fenced(self, call: wire.ExecuteFenced, fds: Iterator[int]) -> Answer:
        fences = [Fence(fd) for _, fd in zip(range(call.fences), fds, strict=False)]
        if len(fences) != call.fences:
            raise InvalidArgument(
                f"executeFenced: {len(fences)} descriptors came along, must be {call.fences} fences first"
            )
        entry = self._entry(call.prepared)
        bound = self._bind(entry, call.request, fds)
        entry.__enter__()
        try:
            execution = entry.prepared.execute_fenced(bound.request(), control_of(call), fences, call.after or None)
        except BaseException:
            entry.__exit__()
            raise
        execution.when_ended(entry.__exit__)
        number = self._exports.add(execution, lambda: None)
        return wire.Launched(number), () if execution.fence is None else (os.dup(execution.fence.fileno()),)

    def _execution_info(self, call: wire.GetExecutionInfo, _: Iterator[int]) -> Answer:
        info = self._exports.get(call.execution, FencedExecution, "fenced execution").get_execution_info()
        return wire.Info(timing_to_wire(info.launched), timing_to_wire(info.fenced)), ()

    def _burst(self, call: wire.ConfigureExecutionBurst, fds: Iterator[int]) -> Answer:
        fd = next(fds, -1)
        if fd < 0:
            raise InvalidArgument("configureExecutionBurst: no descriptor came along, must be that of the queues")
        try:
            burst = ServiceBurst(self._entry(call.prepared), fd, self.memories, self._watch)
        finally:
            os.close(fd)
        number = self._exports.add(burst, burst.close)
        burst.start(number)
        return wire.Object(number), ()

    def _free_memory(self, call: wire.FreeMemory, _: Iterator[int]) -> Answer:
        self._exports.get(call.burst, ServiceBurst, "burst").free(call.slot)
        return wire.Done(), ()

    def _explain(self, call: wire.ExplainBurst, _: Iterator[int]) -> Answer:
        return self._exports.get(call.burst, ServiceBurst, "burst").failed or wire.Done(), ()

    # ------------------------------------------------------------------------------------------------ memory domains

    def _allocate(self, call: wire.Allocate, _: Iterator[int]) -> Answer:
        roles = [BufferRole(self._entry(p).prepared, index, out, often) for p, index, out, often in call.roles]
        try:
            buffer = self._device.allocate(BufferDesc(tuple(call.dimensions)), roles)
        except MemoryError as error:  # what was asked for is too much, the process is sound
            raise ResourceExhausted(f"allocate: {error or 'out of memory'}") from None
        return wire.Object(self._exports.add(buffer, buffer.close)), ()

    def _copy_to(self, call: wire.CopyTo, fds: Iterator[int]) -> Answer:
        memory = self._pools.accept(call.pool, fds)
        buffer = self._exports.get(call.buffer, Buffer, "buffer")  # type: ignore[type-abstract]
        buffer.copy_to(memory)
        return wire.Shape(tuple(buffer.shape or ())), ()

    def _copy_from(self, call: wire.CopyFrom, fds: Iterator[int]) -> Answer:
        memory = self._pools.accept(call.pool, fds)
        self._exports.get(call.buffer, Buffer, "buffer").copy_from(memory, tuple(call.dimensions))  # type: ignore[type-abstract]
        return wire.Done(), ()

    def _shape(self, call: wire.GetShape, _: Iterator[int]) -> Answer:
        shape = self._exports.get(call.buffer, Buffer, "buffer").shape  # type: ignore[type-abstract]
        return wire.Shape(shape), ()


_HANDLERS: dict[type[wire.Call], Callable[[Any, Any, Iterator[int]], Any]] = {
    wire.AttachLane: Connection._attach,
    wire.Release: Connection._release,
    wire.Announce: Connection._announce,
    wire.GetCapabilities: Connection._capabilities,
    wire.GetStatus: Connection._status,
    wire.GetVersionString: Connection._version,
    wire.GetType: Connection._type,
    wire.GetSupportedExtensions: Connection._extensions,
    wire.GetSupportedOperations: Connection._supported,
    wire.PrepareModel: Connection._prepare,
    wire.Execute: Connection._execute,
    wire.ExecuteFenced: Connection._execute_fenced,
    wire.GetExecutionInfo: Connection._execution_info,
    wire.ConfigureExecutionBurst: Connection._burst,
    wire.FreeMemory: Connection._free_memory,
    wire.ExplainBurst: Connection._explain,
    wire.Allocate: Connection._allocate,
    wire.CopyTo: Connection._copy_to,
    wire.CopyFrom: Connection._copy_from,
    wire.GetShape: Connection._shape,
}


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


def run_bound(entry: Entry, bound: Bound, control: Control) -> tuple[wire.Executed, Sequence[int]]:
    """Run once and tell what came of it."""
    with entry:
        request = bound.request()
        timing = run_resolved(entry.prepared, request, control)
    return executed(bound, request, timing if control.measure else None)


def executed(bound: Bound, request: Request, timing: Timing | None) -> tuple[wire.Executed, Sequence[int]]:
    """The reply to an execution; outputs that the driver provided lie in it, or in a sealed memory that comes along."""
    shapes, sufficient = shapes_of(request)
    spent = timing_to_wire(timing)
    provided = tuple(n for n, x in enumerate(bound.outputs) if x is None and n not in bound.output_buffers)
    if not provided:
        return wire.Executed(shapes, sufficient, spent), ()
    arrays = [request.outputs[n] for n in provided]
    if any(array is None for array in arrays):
        raise InvalidArgument("driver: gave no value to an output, must write all of them")
    parts = [flat_bytes(array) for array in arrays if array is not None]
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


def serve_one(device: Device, sock: socket.socket, confinement: Mapping[str, str]) -> None:
    """Serve the one client of a driver process that was started for it."""
    Connection(device, sock, shared=False, confinement=confinement).serve()


def serve_clients(device: Device, listener: socket.socket, confinement: Mapping[str, str]) -> int:
    """Serve whoever connects, of the same user, until the process is told to end; 0."""
    connections = threading.BoundedSemaphore(MAX_CLIENTS)

    def serve(sock: socket.socket) -> None:
        try:
            Connection(device, sock, shared=True, confinement=confinement).serve()
        finally:
            connections.release()

    while True:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            _log.debug("service ends: %s", error)
            return 0
        pid, uid = peer_of(sock)
        if uid not in (os.getuid(), 0) or not connections.acquire(blocking=False):
            _log.warning("refused process %d of user %d", pid, uid)
            sock.close()
            continue
        threading.Thread(target=serve, args=(sock,), name=f"nnhal-client-{pid}", daemon=True).start()
