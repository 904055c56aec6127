"""The driver's side: serves one device to its clients over sockets.

A client's connection has a control channel and any number of channels for calls, each with its thread in the service.
So calls of several client threads run at once. Objects, pools and buffers are private to the connection. They are
released when the client hangs up or its process ends.
"""

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from logging import DEBUG
from typing import NamedTuple

from nnhal.base import trace
from nnhal.base.codes import Priority
from nnhal.base.descriptors import Owner
from nnhal.base.digests import blake2b
from nnhal.base.errors import DeadObject, InvalidArgument, NnhalError, OperationFailed, ResourceExhausted, bounded_text
from nnhal.base.levels import V1_3
from nnhal.base.log import logger
from nnhal.hal.device import Device, code_by, identity_of
from nnhal.hal.request import Control
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_to_wire
from nnhal.ipc.service.binding import Answer
from nnhal.ipc.service.calls import CallHandler
from nnhal.ipc.service.metrics import Metrics
from nnhal.ipc.service.quota import DECODED, ENDS, LONGEST, WORKERS, Claim, ClientShare, Quotas, QuotaTable
from nnhal.ipc.service.scope import CallScope, ObjectCloser, Work, Workers
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel, Descriptors, pair
from nnhal.ipc.transport.peer_end import peer_of, watch_peer

HELLO_TIMEOUT_NS = 10_000_000_000
TURNED_AWAY = 8  # clients at once that receive the reason
END_SECONDS = 5  # for a driver to close a client's objects
_ENDS = errno.EBADF, errno.EINVAL, errno.ENOTSOCK  # of a listening socket that was closed
_BREATH = 0.05  # seconds
_DYING_MS = 20
_log = logger("driver")


def _encoded(message: wire.Reply | wire.ServiceCall) -> bytes:
    """Encode a message; if a driver's value cannot be encoded, the same message with an error that reports this."""
    try:
        return wire.encode(message)
    except Exception as error:
        failed = error_to_wire(OperationFailed(f"driver: its answer cannot be sent: {error}"))
        if isinstance(message, wire.NotifyPrepared | wire.NotifyExecuted):
            return wire.encode(type(message)(message.object, failed))
        return wire.encode(failed)


class _LongMessage:
    """Counts a long message as memory before it is read, which in a shared service waits for the rate limit."""

    def __init__(self, share: ClientShare, gone: threading.Event, *, shared: bool) -> None:
        """Count for `share`. gone: set when the client is gone."""
        self._share, self._gone, self._shared = share, gone, shared
        self._claim: Claim | None = None

    def __call__(self, length: int) -> None:
        if self._shared and length > LONGEST:
            raise ResourceExhausted(
                f"message has {length} bytes, must be at most {LONGEST} in a shared service: others wait while it is "
                "decoded; isolate the driver in a separate process (isolation='process')"
            )
        self._claim = self._share.take(memory=DECODED * length)
        pause = self._share.long.pause(length) if self._shared else 0
        if pause and self._gone.wait(pause):
            raise DeadObject("connection: is ending")

    def over(self) -> None:
        """Release the quota of the answered message."""
        self._claim = None


class Loaded(NamedTuple):
    """The driver that the process loaded, for `wire.Welcome`; later changes on disk have no effect on it."""

    origin: str = ""
    code: bytes = b""

    @classmethod
    def now(cls, origin: str, device: Device) -> "Loaded":
        """Describe the driver; call this when it is loaded. Unknown code is identified by the reason."""
        code = code_by(device)
        return cls(origin, blake2b(code.unknown.encode(), digest_size=32).digest() if code.unknown else code.digest)


_UNNAMED = Loaded()


class Connection:
    """One client's connection. share: what it holds, until the connection has ended and everything is released.

    metrics: the service's, or None.
    """

    def __init__(
        self,
        device: Device,
        sock: socket.socket,
        share: ClientShare,
        *,
        shared: bool,
        confinement: Mapping[str, str],
        metrics: Metrics | None = None,
        loaded: Loaded = _UNNAMED,
    ) -> None:
        self._device, self._shared, self._confinement, self._loaded = device, shared, confinement, loaded
        self.share, self.scope = share, trace.Scope()
        self._own = identity_of(device)
        self._level = min(self._own.level, V1_3)
        self.watch = watch_peer(sock)
        self._control = Channel(sock, self.watch)
        self.wanted, self.ends = CallScope(), ObjectCloser(share.take(**ENDS))
        self._metrics = metrics
        self.tally = None if metrics is None else metrics.connect(share.pid)
        self._calls = CallHandler(device, self, shared=shared)
        self._callbacks: Channel | None = None
        self._lock, self._callback_lock = threading.Lock(), threading.Lock()
        self._lanes: set[Channel] = set()
        self._peer_cpus = 0
        self._background = Workers(WORKERS, lambda: share.take(**share.quotas.table.worker))
        self._ending = False

    # --------------------------------------------------------------------------------------------------------- channels

    def serve(self) -> None:
        """Greet, answer the control channel until the client is gone, then end everything."""
        greeted = False
        try:
            data, _ = self._control.receive(HELLO_TIMEOUT_NS)
            greeted = self._greet(data)
            if greeted:
                self._answer_lane(self._control, Control(cancelled=self.wanted.gone))
        except NnhalError as error:
            _log.debug("connection ends: %s", error)
        finally:
            try:
                self._end()
            finally:
                self._leave(greeted)

    def _greet(self, data: bytes) -> bool:
        try:
            hello = wire.decode_call(data)
            if not isinstance(hello, wire.Hello):
                raise InvalidArgument(f"first message is {type(hello).__name__}, must be Hello")
            if hello.version != wire.VERSION:
                raise InvalidArgument(f"client has protocol version {hello.version}, must be {wire.VERSION}")
        except (wire.WireError, InvalidArgument) as error:
            self._control.answer(wire.encode(error_to_wire(error)))
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
            self._own.preferred_layout or "",
            bounded_text(self._loaded.origin),
            self._loaded.code,
        )
        self._control.answer(wire.encode(welcome))
        return True

    def _answer_lane(self, channel: Channel, plain: Control) -> None:
        """Answer calls until the channel is closed; messages without a number get no answer."""
        long = channel.admit = _LongMessage(self.share, self.wanted.gone, shared=self._shared)
        while True:
            try:
                data, fds = channel.receive()
            except (InvalidArgument, ResourceExhausted, MemoryError, OSError) as error:  # refused; the channel is sound
                channel.answer(wire.encode(error_to_wire(error)))
                continue
            answer = self._answer if self.scope.log is None else self._answer_traced
            reply, given = answer(data, fds, plain, channel)
            try:
                channel.answer(wire.ENCODED_DONE if reply is wire.DONE else _encoded(reply), given)
            finally:
                if given:
                    Owner(*given).close()
                del data, reply
                long.over()

    def _answer_traced(self, data: bytes, fds: Descriptors, plain: Control, channel: Channel) -> Answer:
        log = self.scope.log
        if log is None:
            return self._answer(data, fds, plain, channel)
        with trace.trace_answer(log, channel.number):
            return self._answer(data, fds, plain, channel)

    def _answer(self, data: bytes, fds: Descriptors, plain: Control, channel: Channel) -> Answer:
        try:
            call = wire.decode_call(data)
            why = wire.refusal(call, self._level)
            if why:
                raise InvalidArgument(why)
            if _log.isEnabledFor(DEBUG):
                _log.debug("%s", wire.hal_name(call))
            if self.scope.log is not None:
                trace.called(wire.hal_name(call), type(call).phase)
            if isinstance(call, wire.AttachLane):
                return self._attach(call)
            answer = self._calls.answer(call, fds, plain, len(data))
            if isinstance(call, wire.Release) and channel.lane.asked:
                self._calls.settle()
            return answer
        except BaseException as error:  # an error of the driver is an answer, not the end of the service
            return error_to_wire(error), ()
        finally:
            fds.close()

    def _attach(self, call: wire.AttachLane) -> Answer:
        """Open a new channel.

        This side makes both ends, so the client has no end that shares flags and options with this one.
        """
        ours, theirs = pair()
        with theirs:
            channel = Channel(ours, peer_cpus=self._peer_cpus, number=call.object)
            try:
                self._take_lane(channel, call)
            except BaseException:
                self._lanes.discard(channel)
                channel.close()
                raise
            return wire.DONE, (theirs.detach(),)

    def _take_lane(self, channel: Channel, call: wire.AttachLane) -> None:
        with self._lock:
            if self._ending:
                raise DeadObject("connection: is ending")
            if call.callbacks and self._callbacks is not None:
                raise InvalidArgument("AttachLane: there is a callback channel already, must be one")
            if call.callbacks:
                self._callbacks = channel
                return
            claim = self.share.take(lanes=1)
            self._lanes.add(channel)
        with claim:
            unwanted = self.wanted.begin(call.object)
            given = channel, call.object, Control(cancelled=unwanted), claim.moved_to()
            try:
                threading.Thread(target=self._lane, args=given, name="nnhal-lane", daemon=True).start()
            except RuntimeError:
                self.wanted.ended(call.object)
                raise ResourceExhausted("connection: no thread for another channel; wait for calls to end") from None

    def _lane(self, channel: Channel, number: int, plain: Control, claim: Claim) -> None:
        try:
            self._answer_lane(channel, plain)
        except NnhalError as error:
            _log.debug("channel ends: %s", error)
        finally:
            self.wanted.ended(number)
            self._lanes.discard(channel)
            channel.close()
            claim.give()

    def _hang_up(self) -> None:
        """End the connection from any thread: its channels notice it."""
        with contextlib.suppress(OSError):
            self._control.socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        """End everything that the client had, without waiting too long for a driver's `close`."""
        with self._lock:
            self._ending = True
            lanes = [*self._lanes, *([] if self._callbacks is None else [self._callbacks])]
        self.wanted.end()
        for channel in lanes:
            with contextlib.suppress(OSError):  # its thread may have closed it, its peer hung up
                channel.socket.shutdown(socket.SHUT_RDWR)
        self._background.end()
        self._calls.close()
        if not self.ends.finish(END_SECONDS):
            _log.warning("a driver's close() takes more than %d s; the service does not wait for it", END_SECONDS)
        self._control.close()
        if self._callbacks is not None:
            with self._callback_lock:
                self._callbacks.close()

    def _leave(self, greeted: bool) -> None:
        """Finish the end: count its cause, and close the watch."""
        if self._metrics is not None:
            how = "closed" if greeted else "not greeted"
            self._metrics.left(self.share.pid, "process ended" if _has_ended(self.watch) else how)
        if self.watch >= 0:
            os.close(self.watch)

    # ----------------------------------------------------------------------------------------------------- callbacks

    def in_background(self, work: Work, priority: Priority = Priority.MEDIUM, *, takes_long: bool = False) -> None:
        """Do work and notify, exactly once. Raises ResourceExhausted if too much work is waiting."""
        if self._callbacks is None:
            raise InvalidArgument("connection: has no callback channel, must attach one before calls that notify")
        claim = self.share.take(background=1)

        def notify() -> None:
            try:
                message, given = self._worked(work)
                try:
                    self._call_back(message, given)
                finally:
                    Owner(*given).close()
            except NnhalError as error:  # the client is gone or no longer reads: it must not wait for ever
                _log.debug("notification lost: %s", error)
                self._hang_up()
            finally:
                claim.give()

        self._background.submit(notify, priority, takes_long=takes_long)

    def _worked(self, work: Work) -> tuple[wire.ServiceCall, Sequence[int]]:
        log = self.scope.log
        if log is None:
            return work()
        with trace.trace_answer(log, 0):
            message, given = work()
            if isinstance(message, wire.NotifyPrepared | wire.NotifyExecuted):
                prepares = isinstance(message, wire.NotifyPrepared)
                trace.called("prepare" if prepares else "execute", "compilation" if prepares else "execution")
                trace.notified(message.object)
            return message, given

    def _call_back(self, message: wire.ServiceCall, fds: Sequence[int] = ()) -> None:
        with self._callback_lock:
            self._open_callbacks().send(_encoded(message), fds)

    def _open_callbacks(self) -> Channel:
        """Return the callback channel, under its lock.

        Raises DeadObject after its end: its number may have been reused.
        """
        if self._callbacks is None or self._ending:
            raise DeadObject("connection: is ending")
        return self._callbacks


def _has_ended(watch: int) -> bool:
    """Whether the process of a pidfd has ended, or is about to: its sockets are closed just before."""
    if watch < 0:
        return False
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(poll.poll(_DYING_MS))


def serve_one(
    device: Device, sock: socket.socket, confinement: Mapping[str, str], table: QuotaTable, loaded: Loaded = _UNNAMED
) -> None:
    """Serve the one client of a driver process that was started for it."""
    share = Quotas(table).connect(peer_of(sock)[0])
    Connection(device, sock, share, shared=False, confinement=confinement, loaded=loaded).serve()


def refuse(sock: socket.socket, error: BaseException) -> None:
    """Answer the greeting of a refused client with the reason."""
    channel = Channel(sock)
    try:
        channel.receive(HELLO_TIMEOUT_NS)
        channel.answer(wire.encode(error_to_wire(error)))
    finally:
        channel.close()


def serve_clients(
    device: Device,
    listener: socket.socket,
    confinement: Mapping[str, str],
    table: QuotaTable,
    watched: Callable[[Quotas], Metrics] | None = None,
    loaded: Loaded = _UNNAMED,
) -> int:
    """Serve all clients of the same user until the process is asked to end; return 0.

    watched: returns the service's metrics, None without metrics.
    """
    quotas = Quotas(table)
    metrics = None if watched is None else watched(quotas)

    def refused() -> None:
        if metrics is not None:
            metrics.refused()

    turned_away = threading.BoundedSemaphore(TURNED_AWAY)

    def serve(sock: socket.socket, share: ClientShare) -> None:
        try:
            Connection(
                device, sock, share, shared=True, confinement=confinement, metrics=metrics, loaded=loaded
            ).serve()
        finally:
            share.end()

    def turn_away(sock: socket.socket, error: Exception) -> None:
        try:
            refuse(sock, error)
        except NnhalError as gone:
            _log.debug("a refused client: %s", gone)
        finally:
            turned_away.release()

    while (sock := _accepted(listener)) is not None:
        pid, uid = peer_of(sock)
        if uid not in (os.getuid(), 0):
            _log.warning("refused process %d of user %d", pid, uid)
            refused()
            sock.close()
            continue
        share = None
        try:
            share = quotas.connect(pid)
            threading.Thread(target=serve, args=(sock, share), name=f"nnhal-client-{pid}", daemon=True).start()
        except (ResourceExhausted, RuntimeError) as error:
            _log.warning("refused process %d: %s", pid, error)
            refused()
            if share is not None:
                share.end()
            if isinstance(error, RuntimeError) or not turned_away.acquire(blocking=False):
                sock.close()
                continue
            try:
                threading.Thread(target=turn_away, args=(sock, error), name="nnhal-refusal", daemon=True).start()
            except RuntimeError:
                turned_away.release()
                sock.close()
    return 0


def _accepted(listener: socket.socket) -> socket.socket | None:
    """Return the next client's socket; None when the service ends."""
    while True:
        try:
            return listener.accept()[0]
        except OSError as error:
            if error.errno in _ENDS:
                _log.debug("service ends: %s", error)
                return None
            _log.warning("a client was not accepted: %s", error)  # no descriptors at the moment, or it is gone
            time.sleep(_BREATH)
