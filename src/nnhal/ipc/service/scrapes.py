"""Serves the metrics over HTTP, on a socket that is made before the process enters the sandbox.

Callers may be slow, silent, hostile or many. At most `MOST` are connected at once, each for at most `SECONDS`. The
server waits for none of them, so fast callers get an answer immediately. Collecting takes at most a tenth of the time;
the rest is left to executions.

This module is imported before the process enters the sandbox: it imports modules that import numpy only where it is
about to raise an error.
"""

import errno
import math
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from nnhal.base.log import logger

MOST = 32  # connections at once
SECONDS = 5.0  # for a request and its answer
LONGEST = 8192  # bytes of a request
_BREATH = 0.05  # seconds
_BACKLOG = 128
_SHARE = 10  # of the time: collecting takes one such part
_LONGEST_PAUSE = 1.0  # seconds
PROCESS = ProcessCollector(registry=None)  # reads once what a sandboxed process cannot read
_log = logger("driver")


def listen(address: str) -> socket.socket:
    """Return a listening socket, not sandboxed yet. address: HOST:PORT, PORT (of this machine only), or unix:PATH.

    Raises InvalidArgument for another address, DeviceUnavailable if the socket cannot be opened. A Unix socket is
    accessible to the user only; one that an ended process left behind is replaced.
    """
    try:
        path = address.removeprefix("unix:")
        return _listen_unix(path) if path and path != address else _listen_tcp(address)
    except OSError as error:
        from nnhal.base.errors import DeviceUnavailable

        raise DeviceUnavailable(f"metrics at {address}: {error.strerror or error}") from None


def _listen_tcp(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        if not port.isdecimal() or int(port) >= 1 << 16:
            raise ValueError
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        family, kind, _, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except ValueError:  # also for an impossible host name
        from nnhal.base.errors import InvalidArgument

        raise InvalidArgument(f"metrics: address is {address!r}, must be HOST:PORT, PORT or unix:PATH") from None
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _listen_unix(path: str) -> socket.socket:
    path = os.path.abspath(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        _sweep(path)
        listener.bind(path)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(old)
    return listener


def _sweep(path: str) -> None:
    """Remove a socket that no process listens on; OSError if one does, or if it is not a socket."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "another process listens there")


def address_of(listener: socket.socket) -> str:
    """Return the address as a URL or unix:PATH."""
    bound = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{bound}"
    host = f"[{bound[0]}]" if listener.family == socket.AF_INET6 else bound[0]
    return f"http://{host}:{bound[1]}/metrics"


def start(listener: socket.socket, registry: CollectorRegistry) -> None:
    """Serve a registry's metrics on a listening socket, in a separate thread, until the process ends."""
    server = Server(listener, lambda form: FORMS[form](registry))
    threading.Thread(target=server.serve, name="nnhal-metrics", daemon=True).start()


FORMS: dict[str, Callable[[CollectorRegistry], bytes]] = {  # content types that may be requested
    "text/plain; version=0.0.4; charset=utf-8": generate_latest,
    openmetrics.CONTENT_TYPE_LATEST: openmetrics.generate_latest,
}
_PLAIN, _OPEN = FORMS


class _Caller:
    """A client's connection: it sends a request, waits for the next collection, then receives the answer.

    form: the requested one.
    """

    def __init__(self, sock: socket.socket, end: float) -> None:
        sock.setblocking(False)
        self.sock, self.end = sock, end
        self.question = b""
        self.form: str | None = None
        self.answer: bytes | None = None

    @property
    def waits(self) -> bool:
        """Whether it has sent a request that no collection has answered yet."""
        return self.form is not None and self.answer is None

    def read_input(self) -> None:
        """Read its available input; OSError if it ended without a request."""
        data = self.sock.recv(LONGEST + 1)
        if not data:
            raise ConnectionError("ended before it sent a request")
        self.question += data
        head, whole, _ = self.question.partition(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        if not whole and len(self.question) <= LONGEST:
            return
        if not whole or not rest.partition(b"\r\n")[0].rpartition(b" ")[2].startswith(b"HTTP/"):
            self.answer = _response("400 Bad Request", "text/plain", b"the request is not HTTP\n")
        elif method != b"GET":
            self.answer = _response("405 Method Not Allowed", "text/plain", b"must be GET\n")
        else:
            self.form = _OPEN if b"application/openmetrics-text" in rest.lower() else _PLAIN

    def take(self) -> bool:
        """Send as much of the answer as possible; return whether it is complete."""
        assert self.answer is not None
        self.answer = self.answer[self.sock.send(self.answer) :]
        return not self.answer


def _response(status: str, kind: str, body: bytes) -> bytes:
    lines = f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close", "", ""
    return "\r\n".join(lines).encode() + body


class Server:
    """Answers all connections to a socket in one thread, without waiting for any.

    If `MOST` are connected, a new one replaces the one that has been sending its request or reading its answer for the
    longest time. All waiting requests share the same single collection.
    """

    def __init__(
        self, listener: socket.socket, collect: Callable[[str], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """collect: returns the metrics in one of `FORMS`. clock: seconds, monotonic."""
        listener.setblocking(False)
        self._listener, self._collect, self._clock = listener, collect, clock
        self._callers: dict[int, _Caller] = {}  # by descriptor, the earliest first
        self._next = 0.0  # the time of the next collection

    def serve(self) -> None:
        """Serve until the process ends."""
        while True:
            try:
                self.handle_event()
            except Exception:
                _log.exception("metrics: a request was not answered")
                time.sleep(_BREATH)

    def handle_event(self) -> None:
        """Wait for the next event, and handle it."""
        poll = select.poll()
        for fd, caller in self._callers.items():
            poll.register(fd, select.POLLIN if caller.form is None and caller.answer is None else 0)
            if caller.answer is not None:
                poll.modify(fd, select.POLLOUT)
        if self._has_room():
            poll.register(self._listener, select.POLLIN)
        for fd, _ in poll.poll(self._pause()):
            if fd not in self._callers:
                self._let_in()
            elif self._callers[fd].waits:  # nothing is read from it while it waits: it has hung up
                self._end(fd)
            else:
                self._see_to(fd)
        now = self._clock()
        if now >= self._next and any(caller.waits for caller in self._callers.values()):
            self._answer_all()
        for fd in [fd for fd, caller in self._callers.items() if caller.end <= now]:
            self._end(fd)

    def _has_room(self) -> bool:
        """Whether another connection may come; those that wait for a collection, which is soon, are not replaced."""
        return len(self._callers) < MOST or not all(caller.waits for caller in self._callers.values())

    def _pause(self) -> int | None:
        """Return the milliseconds until something is due; None if nothing is."""
        due = [caller.end for caller in self._callers.values()]
        due += [self._next] if any(caller.waits for caller in self._callers.values()) else []
        return math.ceil(max(0.0, min(due) - self._clock()) * 1000) if due else None

    def _let_in(self) -> None:
        try:
            sock = self._listener.accept()[0]
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                time.sleep(_BREATH)  # no descriptors at the moment
            return
        if len(self._callers) >= MOST:
            self._end(next(fd for fd, caller in self._callers.items() if not caller.waits))
        self._callers[sock.fileno()] = _Caller(sock, self._clock() + SECONDS)
        self._see_to(sock.fileno())  # most callers have sent their request by now

    def _see_to(self, fd: int) -> None:
        caller = self._callers[fd]
        try:
            if caller.form is None and caller.answer is None:
                caller.read_input()
            if caller.answer is not None and caller.take():
                self._end(fd)
        except BlockingIOError:
            pass
        except OSError as error:
            _log.debug("metrics: a connection: %s", error)
            self._end(fd)

    def _answer_all(self) -> None:
        """Collect once for all waiting requests, in each requested content type, within its share of the time."""
        began = self._clock()
        told: dict[str, bytes] = {}
        for fd, caller in list(self._callers.items()):
            if caller.waits:
                form = caller.form or _PLAIN
                if form not in told:
                    told[form] = _response("200 OK", form, self._collect(form))
                caller.answer = told[form]
                self._see_to(fd)
        ended = self._clock()
        self._next = ended + min(_LONGEST_PAUSE, (_SHARE - 1) * (ended - began))

    def _end(self, fd: int) -> None:
        self._callers.pop(fd).sock.close()
