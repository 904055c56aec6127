"""Who asks a service for its metrics: over HTTP, on a socket that was made before the process confined itself.

They may be slow, silent, hostile or many: there are `MOST` connections at once, each of `SECONDS` in all, and none is waited
for, so who asks at once is answered at once. Collecting takes a tenth of the time at most, so that executions keep theirs.

Read before the process confines itself: nothing that imports numpy is imported here but where an error is about to be
raised.
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
_SHARE = 10  # of the time: collecting takes one of so many parts
_LONGEST_PAUSE = 1.0  # seconds
PROCESS = ProcessCollector(registry=None)  # looks at what a confined process cannot, once
_log = logger("driver")


def listen(address: str) -> socket.socket:
    """A socket to be asked on, not confined yet. address: HOST:PORT, a port of this machine alone, or unix:PATH.

    InvalidArgument for what is none of these, DeviceUnavailable where it cannot be had. A Unix socket is the user's alone;
    one that is left of a process that is no more is taken over.
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
    except ValueError:  # of a host that no name can be, too
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
    """Remove a socket that nobody listens on; OSError where somebody does, or where it is something else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "is there, and no socket")
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
    """Where to ask, as a URL or unix:PATH."""
    bound = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{bound}"
    host = f"[{bound[0]}]" if listener.family == socket.AF_INET6 else bound[0]
    return f"http://{host}:{bound[1]}/metrics"


def start(listener: socket.socket, registry: CollectorRegistry) -> None:
    """Answer on a listening socket with what a registry collects, on a thread of its own, until the process ends."""
    server = Server(listener, lambda form: FORMS[form](registry))
    threading.Thread(target=server.serve, name="nnhal-metrics", daemon=True).start()


FORMS: dict[str, Callable[[CollectorRegistry], bytes]] = {  # content types that may be asked for
    "text/plain; version=0.0.4; charset=utf-8": generate_latest,
    openmetrics.CONTENT_TYPE_LATEST: openmetrics.generate_latest,
}
_PLAIN, _OPEN = FORMS


class _Caller:
    """A connection: it asks, then waits for the next collection, then takes the answer. form: it asked for, None before."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        sock.setblocking(False)
        self.sock, self.end = sock, end
        self.question = b""
        self.form: str | None = None
        self.answer: bytes | None = None

    @property
    def waits(self) -> bool:
        """Whether it has asked, and nothing was collected since."""
        return self.form is not None and self.answer is None

    def hear(self) -> None:
        """Read what there is of its question; OSError where it has ended without one."""
        data = self.sock.recv(LONGEST + 1)
        if not data:
            raise ConnectionError("ended before it asked")
        self.question += data
        head, whole, _ = self.question.partition(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        if not whole and len(self.question) <= LONGEST:
            return
        if not whole or not rest.partition(b"\r\n")[0].rpartition(b" ")[2].startswith(b"HTTP/"):
            self.answer = _response("400 Bad Request", "text/plain", b"what was asked is no request of HTTP\n")
        elif method != b"GET":
            self.answer = _response("405 Method Not Allowed", "text/plain", b"must be GET\n")
        else:
            self.form = _OPEN if b"application/openmetrics-text" in rest.lower() else _PLAIN

    def take(self) -> bool:
        """Send what it takes of the answer; whether that was all."""
        assert self.answer is not None
        self.answer = self.answer[self.sock.send(self.answer) :]
        return not self.answer


def _response(status: str, kind: str, body: bytes) -> bytes:
    lines = f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close", "", ""
    return "\r\n".join(lines).encode() + body


class Server:
    """Answers all that connect to a socket on one thread, which waits for none of them.

    Where `MOST` are connected, whoever comes takes the place of the one that is longest at asking or at taking his answer.
    All that have asked wait for the same collection, and for no more than one.
    """

    def __init__(
        self, listener: socket.socket, collect: Callable[[str], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """collect: gives what there is to tell, in one of `FORMS`. clock: seconds, monotonic."""
        listener.setblocking(False)
        self._listener, self._collect, self._clock = listener, collect, clock
        self._callers: dict[int, _Caller] = {}  # by descriptor, the one that came first before the others
        self._next = 0.0  # when it may be collected again

    def serve(self) -> None:
        """Until the process ends."""
        while True:
            try:
                self.turn()
            except Exception:
                _log.exception("metrics: what asks for them was not answered")
                time.sleep(_BREATH)

    def turn(self) -> None:
        """Wait for what comes next, and see to it."""
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
            elif self._callers[fd].waits:  # nothing is read of it meanwhile: it has hung up
                self._end(fd)
            else:
                self._see_to(fd)
        now = self._clock()
        if now >= self._next and any(caller.waits for caller in self._callers.values()):
            self._answer_all()
        for fd in [fd for fd, caller in self._callers.items() if caller.end <= now]:
            self._end(fd)

    def _has_room(self) -> bool:
        """Whether another may come; who waits for a collection, which is soon, does not give way."""
        return len(self._callers) < MOST or not all(caller.waits for caller in self._callers.values())

    def _pause(self) -> int | None:
        """Milliseconds until something is due; None for nothing."""
        due = [caller.end for caller in self._callers.values()]
        due += [self._next] if any(caller.waits for caller in self._callers.values()) else []
        return math.ceil(max(0.0, min(due) - self._clock()) * 1000) if due else None

    def _let_in(self) -> None:
        try:
            sock = self._listener.accept()[0]
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                time.sleep(_BREATH)  # no descriptors for now
            return
        if len(self._callers) >= MOST:
            self._end(next(fd for fd, caller in self._callers.items() if not caller.waits))
        self._callers[sock.fileno()] = _Caller(sock, self._clock() + SECONDS)
        self._see_to(sock.fileno())  # who knows what he wants has said so by now

    def _see_to(self, fd: int) -> None:
        caller = self._callers[fd]
        try:
            if caller.form is None and caller.answer is None:
                caller.hear()
            if caller.answer is not None and caller.take():
                self._end(fd)
        except BlockingIOError:
            pass
        except OSError as error:
            _log.debug("metrics: a connection: %s", error)
            self._end(fd)

    def _answer_all(self) -> None:
        """Collect once for all that wait, in each form that is asked for; that takes no more than its share of the time."""
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
