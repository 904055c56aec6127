"""Who asks a service for its metrics: over HTTP, on a socket that was made before the process confined itself.

They may be slow, silent, hostile or many: there are `MOST` connections at once, each of `SECONDS` in all, others wait in the
kernel's queue; and collecting takes a tenth of the time at most, so that executions keep theirs.

Read before the process confines itself: nothing that imports numpy is imported here but where an error is about to be
raised.
"""

import errno
import io
import os
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from nnhal.base.log import logger

MOST = 8  # connections at once
SECONDS = 5.0  # for a request and its answer
_LOOK = 0.25  # seconds
_BREATH = 0.05  # seconds
_BACKLOG = 16
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
    scrapes = _Scrapes(listener, _Sparing(make_wsgi_app(registry, disable_compression=True)))
    threading.Thread(target=scrapes.serve, name="nnhal-metrics", daemon=True).start()


class _Sparing:
    """A WSGI application that does one request at a time, and takes no more than its share of the time."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app, self._lock, self._next = app, threading.Lock(), 0.0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """As of WSGI."""
        with self._lock:
            time.sleep(max(0.0, self._next - time.monotonic()))
            began = time.monotonic()
            try:
                return self._app(environ, start_response)
            finally:
                ended = time.monotonic()
                self._next = ended + min(_LONGEST_PAUSE, (_SHARE - 1) * (ended - began))


class _Handler(WSGIRequestHandler):
    """One request, answered without a word to anybody else."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody is told of a request."""
        _log.debug(f"metrics: {format}", *args)

    def get_stderr(self) -> Any:
        """What a request that broke off leaves to be said."""
        return io.StringIO()


class _Scrapes(WSGIServer):
    """Answers those who connect to a socket, each on a thread."""

    def __init__(self, listener: socket.socket, app: Callable[..., Any]) -> None:
        socketserver.BaseServer.__init__(self, listener.getsockname(), _Handler)
        self.socket = listener
        self.server_name, self.server_port = "nnhal", 0
        self.timeout = _LOOK
        self.setup_environ()
        self.set_app(app)
        self._open: dict[socket.socket, float] = {}  # and when its time is over
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Until the process ends."""
        while True:
            with self._lock:
                late = [sock for sock, end in self._open.items() if end < time.monotonic()]
                self.timeout = _LOOK if self._open else None
                full = len(self._open) >= MOST
                for sock in late:
                    with suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)  # its thread sees that
            if full:
                time.sleep(_BREATH)
            else:
                self.handle_request()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Who connects next; who that is does not matter."""
        try:
            return self.socket.accept()[0], ("", 0)
        except OSError:
            time.sleep(_BREATH)  # no descriptors for now, or it is gone already
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """On a thread of its own; where there is none, not at all."""
        with self._lock:
            self._open[request] = time.monotonic() + SECONDS
        try:
            threading.Thread(
                target=self._answer, args=(request, client_address), name="nnhal-scrape", daemon=True
            ).start()
        except RuntimeError:
            self._over(request)

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception as error:
            _log.debug("metrics: a request: %s", error)
        finally:
            self._over(request)

    def _over(self, request: socket.socket) -> None:
        with self._lock:
            del self._open[request]
        self.shutdown_request(request)
