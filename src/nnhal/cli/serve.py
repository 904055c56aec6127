"""`nnhal serve`: runs a driver as a service that several processes share; shows the quotas of running services."""

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nnhal.base.errors import InvalidArgument, NnhalError
from nnhal.base.names import is_path
from nnhal.base.time import point_in_time
from nnhal.base.values import parsed_level
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.hal.request import Control
from nnhal.ipc import names
from nnhal.ipc.protocol import wire
from nnhal.runtime import discovery
from nnhal.runtime.sources import Source
from nnhal.serve import FAILED, service_name

_PATIENCE = 2  # seconds until a service must answer


@nnhal_command("serve")
@click.argument("driver", required=False)
@click.option("--name", default="", help="Name of the service (default: DRIVER-service).")
@click.option("--level", default="", metavar="VERSION", help="Serve at this HAL version: 1.0 to 1.3.")
@click.option("--read", multiple=True, type=click.Path(exists=True), help="Let the driver read a file or directory.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    type=click.Path(exists=True),
    metavar="/dev/NAME",
    help="Let the driver use a device node; may be repeated.",
)
@click.option("--allow", multiple=True, metavar="CALL[,CALL]", help="Let the driver make more system calls.")
@click.option(
    "--metrics",
    metavar="ADDRESS",
    help="Expose Prometheus metrics at HOST:PORT, a local PORT (0: any), or unix:PATH.",
)
@click.option("--unconfined", is_flag=True, help="Run without the sandbox (for debugging).")
@click.option(
    "--systemd",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Write a user unit and its socket into DIRECTORY instead of serving.",
)
@common.json_option
def command(
    driver: str | None,
    name: str,
    level: str,
    read: Sequence[str],
    devices: Sequence[str],
    allow: Sequence[str],
    metrics: str | None,
    unconfined: bool,
    systemd: Path | None,
    as_json: bool,
) -> int:
    """Share a driver between the processes of this user.

    DRIVER is a name that `nnhal devices` lists, or the path of a Python file or package. Clients name the service as a
    device: `nnhal run MODEL --device NAME`. Ctrl-C or SIGTERM ends it. With --json it prints one line once it serves.

    Without DRIVER: shows the quotas that the clients of the running services use.
    """
    if driver is None:
        if systemd is not None or level or read or devices or allow or metrics is not None or unconfined:
            raise click.UsageError("DRIVER is missing, must be given with these options")
        return _show([name] if name else names.running(), as_json=as_json)
    if is_path(driver):
        driver = str(Source(Path(driver)).path)
    elif driver not in discovery.names():
        raise InvalidArgument(f"driver {driver!r} is not known, must be one of {', '.join(discovery.names())}")
    name = service_name(driver, name)
    if level:
        parsed_level(level)
    words = [sys.executable, "-P", "-m", "nnhal.serve", driver, "--name", name]
    words += ["--level", level] if level else []
    words += [word for path in read for word in ("--read", str(Path(path).resolve()))]
    words += [word for path in devices for word in ("--device", str(Path(path).resolve()))]
    words += [word for names_ in allow for word in ("--allow", names_)]
    if metrics is not None:
        unix, path = metrics.startswith("unix:"), metrics.removeprefix("unix:")
        words += ["--metrics", f"unix:{Path(path).absolute()}" if unix and path else metrics]
    words += ["--unconfined"] if unconfined else []
    if systemd is not None:
        written = _write_units(systemd, name, words)
        if as_json:
            common.print_json({"name": name, "units": [str(path) for path in written]})
        else:
            click.echo(f"wrote {' and '.join(map(str, written))}; start with")
            click.echo(f"  systemctl --user daemon-reload && systemctl --user enable --now nnhal-{name}.socket")
        return 0
    words += ["--json"] if as_json else []
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT}
    )  # a Ctrl-C waits until `nnhal.serve` can end by it
    try:
        os.execv(sys.executable, words)  # a fresh interpreter: modules that this one imported would escape the sandbox
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _show(services: Sequence[str], *, as_json: bool) -> int:
    """Shows the quotas that clients of services use; returns the exit status."""
    found = {service: _usage(service) for service in services}
    if as_json:
        common.print_json([{"name": service, **_document(usage)} for service, usage in found.items()])
    else:
        for service, usage in found.items():
            _print(service, usage)
        if not found:
            names.directory()  # raises if the directory is the reason
            common.print_progress("no service is running")
    return FAILED if any(isinstance(usage, NnhalError) for usage in found.values()) else 0


def _usage(service: str) -> wire.Usage | NnhalError:
    """Returns the usage of a service's other clients, or the error if it does not answer."""
    try:
        session = names.connect(service, _PATIENCE)
    except NnhalError as error:
        return error
    try:
        usage = session.call(wire.GetUsage(), wire.Usage, Control(point_in_time(_PATIENCE)))[0]
    except NnhalError as error:
        return error
    finally:
        session.close()
    return wire.Usage(usage.most, usage.quotas, tuple(c for c in usage.clients if c.pid != os.getpid()))


def _document(usage: wire.Usage | NnhalError) -> dict[str, Any]:
    if isinstance(usage, NnhalError):
        return {"problem": str(usage)}
    rows = [quota.name for quota in usage.quotas]
    return {
        "most_clients": usage.most,
        "quotas": {q.name: {"most": q.most, "own": q.own, "common": q.common} for q in usage.quotas},
        "clients": [{"pid": c.pid, "used": dict(zip(rows, c.used, strict=True))} for c in usage.clients],
    }


def _print(service: str, usage: wire.Usage | NnhalError) -> None:
    if isinstance(usage, NnhalError):
        common.console.print(f"{service}: {usage}", markup=False)
        return
    rows = []
    for n, quota in enumerate(usage.quotas):
        size = common.size if quota.name in ("addresses", "memory") else str
        limits = [size(quota.most), size(quota.own) if quota.own else ""]
        rows.append([quota.name, *limits, *(size(client.used[n]) for client in usage.clients)])
    columns = ["quota", ">at most", ">reserved for each", *(f">process {client.pid}" for client in usage.clients)]
    common.table(columns, rows, f"{service}: {len(usage.clients)} clients, at most {usage.most}")


def _write_units(directory: Path, name: str, words: Sequence[str]) -> list[Path]:
    """Writes a socket unit and the service unit that systemd starts for the first client; returns the files."""
    command = shlex.join(words).replace("%", "%%")
    socket = (
        f"[Unit]\nDescription=nnhal driver service {name}\n\n"
        f"[Socket]\nListenSequentialPacket=%t/nnhal/{name}{names.SUFFIX}\nSocketMode=0600\nDirectoryMode=0700\n\n"
        "[Install]\nWantedBy=sockets.target\n"
    )
    service = (
        f"[Unit]\nDescription=nnhal driver service {name}\nRequires=nnhal-{name}.socket\n\n"
        f"[Service]\nExecStart={command}\nRestart=on-failure\nRestartSec=1\n"
    )
    directory = directory.expanduser()
    files = {directory / f"nnhal-{name}.socket": socket, directory / f"nnhal-{name}.service": service}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            file.write_text(text)
    except OSError as error:
        raise InvalidArgument(f"{directory}: {error.strerror}, must be a directory that can be written") from None
    return list(files)
