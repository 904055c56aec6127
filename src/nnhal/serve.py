"""Serves one driver to clients in other processes: `python -m nnhal.serve DRIVER`; `nnhal serve` is the same for people.

With `--fd` it serves the one client on the other end of that socket and ends with it. Otherwise it listens on a new socket
in the user's runtime directory, or on the one that systemd hands over (LISTEN_FDS), and serves any number of clients of the
same user.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnhal.base.errors import NnhalError
    from nnhal.hal.device import Device
    from nnhal.ipc.service.metrics import Metrics
    from nnhal.ipc.service.quota import Quotas

INVALID, FAILED = 3, 4  # exit statuses
SWITCH_SECONDS = (
    0.0005  # a tenth of Python's default: a client's call keeps the interpreter from other clients for less
)
ORPHAN_NS = 10_000_000_000  # limit of a driver's process after its client's process ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves a driver.

    Args:
        arguments: The command line without the program's name; that of this process by default.

    Returns:
        The exit status.
    """
    for name in ("NNHAL_TRACE", "NNHAL_CAPTURE"):  # files of the application, which sees this process as its client
        os.environ.pop(name, None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is how a service ends
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # one that came while this interpreter started waited
    faulthandler.enable(all_threads=False)  # the crashed thread's stack is enough
    faulthandler.register(signal.SIGUSR2)  # `base.stacks.TELL`: where it hangs
    parser = argparse.ArgumentParser("nnhal.serve", description="Serve a driver to other processes.")
    parser.add_argument("driver", help="name of a driver, or a Python file or package that defines device()")
    parser.add_argument("--fd", type=int, help="serve the one client on this socket")
    parser.add_argument("--name", default="", help="name of the service; DRIVER-service by default")
    parser.add_argument("--level", default="", help="serve at this lower HAL level: 1.0 to 1.3")
    parser.add_argument("--read", action="append", default=[], help="a file or directory that the driver may read")
    parser.add_argument(
        "--device", action="append", default=[], help="a device node that it may read, write and control"
    )
    parser.add_argument(
        "--allow", action="append", default=[], help="additional system calls that it may make: NAME,NAME"
    )
    parser.add_argument("--unconfined", action="store_true", help="run without the sandbox (for debugging)")
    parser.add_argument(
        "--metrics", help="answer Prometheus here: HOST:PORT, a PORT of this machine alone, or unix:PATH"
    )
    parser.add_argument(
        "--json", action="store_true", help="print name, socket, HAL version and sandbox of the service as JSON"
    )
    given = parser.parse_args(arguments)
    try:
        return run(
            *(given.driver, given.fd, given.name, given.level, given.read),
            devices=given.device,
            allow=[name for names in given.allow for name in names.split(",")],
            confined=not given.unconfined,
            as_json=given.json,
            metrics=given.metrics,
        )
    except Exception as error:
        from nnhal.base.errors import NnhalError

        if not isinstance(error, NnhalError | ValueError):
            raise
        return report(error, as_json=given.json)


def report(error: "NnhalError | ValueError", *, as_json: bool, author: bool = False, verbose: bool = False) -> int:
    """Prints an error, as every command does.

    Args:
        error: The exception that ended the command.
        as_json: Whether it is printed as JSON, on stdout.
        author: Whether the driver is under development; then the stack is printed for every error of the driver.
        verbose: Whether the whole log and stack are printed.

    Returns:
        The exit status.
    """
    from nnhal.base.errors import DriverFailed, InvalidArgument, NnhalError
    from nnhal.base.stacks import innermost, without_process_log

    if as_json and isinstance(error, NnhalError):
        facts = {"type": type(error).__name__, "status": error.status.name, "code": error.code.name}
        stack = {"stack": error.stack} if error.stack else {}
        print(json.dumps({"error": {**facts, "message": str(error), **stack}}, indent=2), flush=True)
    else:
        message, frames = (str(error), []) if verbose else without_process_log(str(error))
        text, mark, question = message.partition("; did you mean ")
        lines = [f"error: {text}", *frames]
        if isinstance(error, NnhalError) and error.stack and (author or isinstance(error, DriverFailed)):
            lines += error.stack.splitlines() if verbose else innermost(error.stack)
        lines += [f"hint: did you mean {question}"] if mark else []
        lines += ["hint: --verbose prints the full log"] if frames else []
        print(*lines, sep="\n", file=sys.stderr)
    return INVALID if isinstance(error, InvalidArgument) else FAILED


def run(  # noqa: PLR0915  # one order, that matters
    driver: str,
    fd: int | None = None,
    name: str = "",
    level: str = "",
    read: Sequence[str] = (),
    devices: Sequence[str] = (),
    allow: Sequence[str] = (),
    confined: bool = True,
    as_json: bool = False,
    metrics: str | None = None,
) -> int:
    """Serves a driver in this process.

    The sandbox is applied before the driver's engine starts threads, which would escape it. NumPy's threads end before, and
    start again when NumPy needs them. A service that listens prints a line once it serves.

    Args:
        driver: The name or path of the driver.
        fd: The socket of the only client; None for a service that listens.
        name: The name of the service; DRIVER-service by default.
        level: Serve at this lower HAL version.
        read: Files and folders that the driver may read.
        devices: Device nodes that the driver may read, write and control.
        allow: Additional system calls that the driver may make.
        confined: Whether the process is sandboxed.
        as_json: Whether the line of a service that listens is JSON.
        metrics: The address that answers Prometheus; None for no metrics.

    Returns:
        The exit status.

    Raises:
        InvalidArgument: The service's name or address is invalid.
        DeviceUnavailable: The sandbox, the driver or prometheus-client is missing.
    """
    from nnhal.ipc import environment, names, transport
    from nnhal.ipc.confinement.confine import Limits, confine
    from nnhal.ipc.confinement.kernel import end_pools
    from nnhal.ipc.confinement.limits import raise_descriptors
    from nnhal.ipc.confinement.stdio import close_inherited, open_standard_descriptors
    from nnhal.ipc.service import quota
    from nnhal.ipc.transport import _native
    from nnhal.ipc.transport.peer_end import watch_peer

    transport.require()
    open_standard_descriptors()
    name = service_name(driver, name) if fd is None else ""
    driver, folders = locate_driver(driver)
    readable = [Path(p).resolve() for p in read] + folders
    asked = _asked_at(metrics, alone=fd is not None) if metrics is not None else None
    if fd is None and not names.has_passed_socket():
        names.removed_at_end(name)  # from before there is a socket
    sock = names.listen(name) if fd is None else socket.socket(fileno=fd)
    os.chdir("/")
    if confined:
        close_inherited([sock.fileno(), *([] if asked is None else [asked.fileno()])])
    open_before_sandbox(driver)
    limits = Limits(descriptors=quota.DESCRIPTORS[fd is None])
    capacity = quota.Capacity.of_process(limits.descriptors, limits.memory)
    raise_descriptors(limits.descriptors)
    if confined:
        sys.path[:] = [
            os.path.realpath(path) if os.path.isabs(path) else path for path in sys.path
        ]  # readlink is refused
        end_pools()
        environment.forget()
        report = confine(readable, limits, allow, [Path(d).resolve() for d in devices])
    else:
        report = {"confinement": "not applied: it was started with --unconfined"}
    if fd is not None:
        _native.end_with(watch_peer(sock), ORPHAN_NS)
    from nnhal.ipc.service.connection import Loaded, refuse, serve_clients, serve_one

    if fd is not None and sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a pipe to the client
    try:
        device = load(driver, level)
        loaded = Loaded.now(driver, device)
    except BaseException as error:  # also what ends a program: here it can only be the driver's
        if fd is not None:
            refuse(sock, error)
        raise
    if fd is None:
        path, places = names.address(sock, name), _told_of(asked)
        if as_json:
            facts = {"name": name, "socket": path, "level": str(device.level), "confinement": report, **places}
            print(json.dumps(facts), flush=True)
        else:
            where = " and ".join([path, *(f"metrics at {place}" for place in places.values())])
            print(f"serving {driver} as {name} at {where}; stop with Ctrl-C", file=sys.stderr)
        watched = None if asked is None else partial(_watched, asked, device)
        sys.setswitchinterval(SWITCH_SECONDS)
        return serve_clients(device, sock, report, quota.QuotaTable(capacity, shared=True), watched, loaded)
    serve_one(device, sock, report, quota.QuotaTable(capacity, shared=False), loaded)
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # no client waits for work that the driver still does


def _asked_at(address: str, *, alone: bool) -> socket.socket:
    """Returns the socket that answers for metrics; InvalidArgument if there is only one client (`alone`)."""
    from nnhal.base.errors import DeviceUnavailable, InvalidArgument

    if alone:
        raise InvalidArgument("metrics: --fd serves one client, must be a service that listens")
    try:
        from nnhal.ipc.service import scrapes
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("prometheus_client"):
            raise
        raise DeviceUnavailable("metrics need prometheus-client: pip install 'nnhal[metrics]'") from None
    return scrapes.listen(address)


def _told_of(asked: socket.socket | None) -> dict[str, str]:
    if asked is None:
        return {}
    from nnhal.ipc.service import scrapes

    return {"metrics": scrapes.address_of(asked)}


def _watched(asked: socket.socket, device: "Device", quotas: "Quotas") -> "Metrics":
    """Starts the metrics of a service, and answers for them on a socket."""
    from nnhal.hal.device import identity_of
    from nnhal.ipc.service import exposition

    own = identity_of(device)
    facts = {"device": own.name, "version": own.version, "level": str(own.level)}
    return exposition.start(asked, quotas, facts)


def open_before_sandbox(driver: str) -> None:
    """Opens and reads files that a sandboxed process cannot.

    They are the driver's cache files, the verification results, the control group's quota and the memory pressure.
    """
    from nnhal.base import pressure
    from nnhal.base.cores import usable_cores
    from nnhal.hal import blobcache, proofs

    blobcache.open_ahead(driver)
    proofs.open_proofs()
    pressure.open_ahead()
    usable_cores()


def locate_driver(driver: str) -> tuple[str, list[Path]]:
    """Returns a driver's name or whole path, and for a path the folder of its modules."""
    from nnhal.base.names import is_path
    from nnhal.runtime.sources import Source

    if not is_path(driver):
        return driver, []
    source = Source(Path(driver))
    return str(source.path), [source.folder]


def service_name(driver: str, name: str = "") -> str:
    """Returns the name of a service, DRIVER-service by default.

    Raises:
        InvalidArgument: The name is not valid, or is a driver's, so that clients would not reach the service by it.
    """
    from nnhal.base.errors import InvalidArgument
    from nnhal.base.names import is_path, name_of
    from nnhal.ipc import names
    from nnhal.runtime import discovery

    name = name or (name_of(driver) if is_path(driver) else f"{driver}-service")
    names.check(name)
    if name in discovery.names():
        raise InvalidArgument(
            f"service name is {name!r}, must be no driver's: clients that ask for that get the driver in their own process"
        )
    return name


def load(driver: str, level: str = "") -> "Device":
    """Loads a driver by name or path, at the lower HAL version `level` if one is given."""
    from nnhal.base import trace
    from nnhal.base.names import is_path
    from nnhal.runtime import discovery

    begin = time.monotonic_ns()
    device = discovery.load_driver(driver) if is_path(driver) else discovery.load_one(driver)
    trace.process.early.append(("load driver", f"device {device.name}", begin, time.monotonic_ns()))
    if level:
        from nnhal.base.values import parsed_level
        from nnhal.hal.wrappers import WithHalLevel

        device = WithHalLevel(device, parsed_level(level))
    return device


if __name__ == "__main__":
    sys.exit(main())
