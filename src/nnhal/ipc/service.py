"""The driver's side: serves one device to its clients over sockets.

A client's connection is a control lane and any number of lanes for calls, each with a thread of its own here, so calls of
several client threads run at once. Objects, pools and buffers are private to the connection; when its client is gone, by
hang-up or by the end of its process, all of it goes.
"""

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from nnhal.base.errors import DeadObject, InvalidArgument, NnhalError, OperationFailed, ResourceExhausted
from nnhal.base.levels import V1_3
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.hal.device import Device, identity_of
from nnhal.ipc import _native, wire
from nnhal.ipc.channel import MARK, Channel, close_all, failure, whole
from nnhal.ipc.convert import error_to_wire
from nnhal.ipc.pools import MAX_POOL_BYTES, MAX_POOLS
from nnhal.ipc.service_calls import Again, CallHandler, Work

MAX_LANES = 64
MAX_CLIENTS = 64
WORKERS = 8  # threads of a connection for what it does in the background
QUEUED = 256  # background work that may wait
HELLO_TIMEOUT_NS = 10_000_000_000
CALLBACK_TIMEOUT_NS = 10_000_000_000
_SO_PEERPIDFD = 77
_ENDS = errno.EBADF, errno.EINVAL, errno.ENOTSOCK  # of a listening socket that was closed
_BREATH = 0.05  # seconds
_log = logger("driver")

Reply = wire.Reply | bytes | None


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


def _encoded(message: wire.Reply | wire.ServiceCall) -> bytes:
    """A message; where a driver put in what cannot travel, the same message with an error that says so."""
    try:
        return wire.encode(message)
    except Exception as error:
        failed = error_to_wire(OperationFailed(f"driver: its answer cannot be sent: {error}"))
        if isinstance(message, wire.NotifyPrepared | wire.NotifyExecuted):
            return wire.encode(type(message)(message.call, failed))
        return wire.encode(failed)


class Connection:
    """One client."""

    def __init__(self, device: Device, sock: socket.socket, *, shared: bool, confinement: Mapping[str, str]) -> None:
        self._device, self._shared, self._confinement = device, shared, confinement
        self._own = identity_of(device)
        self._level = min(self._own.level, V1_3)
        self.watch = watch_peer(sock)
        self._control = Channel(sock, self.watch)
        self._calls = CallHandler(device, self, shared=shared)
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
            int(self._own.level),
            self._own.name,
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
        receive, send = channel.lane.receive, channel.lane.send
        while True:
            try:
                got = receive()
                data, fds = got if not isinstance(got, int) and got[0][0] != MARK else whole(got)
            except (InvalidArgument, ResourceExhausted, MemoryError, OSError) as error:  # refused; the lane is sound
                channel.send(wire.encode(error_to_wire(error)))
                continue
            if data == last and again is not None and not fds:
                reply, given = again()
                if isinstance(reply, bytes) and not given and len(reply) <= wire.INLINE:
                    status = send(reply)
                    if status < 0:
                        raise failure(status)
                    continue
            else:
                reply, given, again = self._answer(data, fds)
                last = data
            try:
                if reply is not None:
                    channel.send(reply if isinstance(reply, bytes) else _encoded(reply), given)
            finally:
                close_all(given)

    def _answer(self, data: bytes, fds: tuple[int, ...]) -> tuple[Reply, Sequence[int], Again | None]:
        left = iter(fds)
        try:
            call = wire.decode_call(data)
            why = wire.refusal(call, self._level)
            if why:
                raise InvalidArgument(why)
            _log.debug("%s", wire.hal_name(call))
            if isinstance(call, wire.AttachLane):
                return self._attach(call, left)
            return self._calls.answer(call, left)
        except BaseException as error:  # whatever a driver raises is an answer, not the end of the service
            return error_to_wire(error), (), None
        finally:
            close_all(list(left))

    def _attach(self, call: wire.AttachLane, fds: Iterator[int]) -> tuple[wire.Reply, Sequence[int], None]:
        fd = next(fds, -1)
        if fd < 0:
            raise InvalidArgument("AttachLane: no descriptor came along, must be one end of a socket pair")
        try:
            sock = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            raise InvalidArgument("AttachLane: the descriptor is no socket, must be a SEQPACKET one") from None
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
            sock.close()
            raise InvalidArgument("AttachLane: the descriptor is no SEQPACKET socket of the Unix family, must be")
        channel = Channel(sock, -1, self._peer_cpus)
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
        return wire.Acknowledged(), (), None

    def _lane(self, channel: Channel) -> None:
        try:
            self._answer_lane(channel)
        except NnhalError as error:
            _log.debug("lane ends: %s", error)
        finally:
            self._lanes.pop(channel, None)
            channel.close()

    def _hang_up(self) -> None:
        """End the connection from any thread: the lanes see it."""
        with contextlib.suppress(OSError):
            self._control.socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        self._ending = True
        for channel in (*self._lanes, self._callbacks):
            with contextlib.suppress(OSError):  # its own thread may have closed it, its peer hung up
                if channel is not None:
                    channel.socket.shutdown(socket.SHUT_RDWR)
        self._background.shutdown(wait=False, cancel_futures=True)
        self._calls.close()
        self._control.close()
        if self._callbacks is not None:
            with self._callback_lock:
                self._callbacks.close()
        if self.watch >= 0:
            os.close(self.watch)

    # ----------------------------------------------------------------------------------------------------- callbacks

    def in_background(self, work: Work) -> None:
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
            except NnhalError as error:  # the client is gone, or reads no more: it must not wait for ever
                _log.debug("notification lost: %s", error)
                self._hang_up()
            finally:
                self._queued.release()

        try:
            self._background.submit(notify)
        except RuntimeError:
            self._queued.release()
            raise DeadObject("connection: is ending") from None

    def _call_back(self, message: wire.ServiceCall, fds: Sequence[int] = ()) -> None:
        with self._callback_lock:
            self._open_callbacks().send(_encoded(message), fds)

    def _open_callbacks(self) -> Channel:
        """The callback lane, under its lock; DeadObject once it was closed: its number may be another's by now."""
        if self._callbacks is None or self._ending:
            raise DeadObject("connection: is ending")
        return self._callbacks

    def memories(self, burst: int, slots: Sequence[int]) -> list[Memory]:
        """The memories of slots of a burst, asked of the client."""
        if self._callbacks is None:
            raise InvalidArgument("connection: has no callback lane, must be attached before a burst")
        with self._callback_lock:
            data, fds = self._open_callbacks().call(
                wire.encode(wire.GetMemories(burst, tuple(slots))), (), CALLBACK_TIMEOUT_NS
            )
        left = iter(fds)
        try:
            reply = wire.decode_reply(data)
            if not isinstance(reply, wire.Memories) or len(reply.pools) != len(slots):
                raise InvalidArgument("GetMemories: the client did not answer with one memory for each slot")
            return [self._calls.accept(pool, left) for pool in reply.pools]
        except wire.WireError as error:
            raise InvalidArgument(f"GetMemories: {error}") from None
        finally:
            close_all(list(left))


def serve_one(device: Device, sock: socket.socket, confinement: Mapping[str, str]) -> None:
    """Serve the one client of a driver process that was started for it."""
    Connection(device, sock, shared=False, confinement=confinement).serve()


def refuse(sock: socket.socket, error: Exception) -> None:
    """Answer the greeting of a client whose driver does not load with the reason."""
    channel = Channel(sock)
    try:
        close_all(channel.receive(HELLO_TIMEOUT_NS)[1])
        channel.send(wire.encode(error_to_wire(error)))
    finally:
        channel.close()


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
            if error.errno in _ENDS:
                _log.debug("service ends: %s", error)
                return 0
            _log.warning("a client was not accepted: %s", error)  # no descriptors for now, or it is gone already
            time.sleep(_BREATH)
            continue
        pid, uid = peer_of(sock)
        if uid not in (os.getuid(), 0) or not connections.acquire(blocking=False):
            _log.warning("refused process %d of user %d", pid, uid)
            sock.close()
            continue
        try:
            threading.Thread(target=serve, args=(sock,), name=f"nnhal-client-{pid}", daemon=True).start()
        except RuntimeError as error:
            _log.warning("no thread for process %d: %s", pid, error)
            sock.close()
            connections.release()
