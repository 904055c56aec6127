"""Confine this process for good: before a driver's service runs engine code that may be broken or hostile.

Afterwards the process computes on memory and descriptors it holds or is sent, reads what it needs to import, and no more:
no other file, no write, no new socket, no program started, no child, no other process touched, no terminal read. Each of the
five parts is applied where the kernel has it (x86-64 and aarch64), and the report says what was not.

    service:  sockets made ──► chdir("/") ──► confine(driver's files, Limits()) ──► import numpy, engine ──► serve

Call it while the process has one thread, before numpy or an engine starts its own: landlock covers the calling thread and
what it starts later (all threads since ABI 8). The report counts threads that escape it; seccomp covers those too. For the
same reason nothing here imports numpy, nor what imports it.

docs/reference/sandbox.md lists the system calls that are left, and what is still open.
"""

import difflib
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from nnhal.ipc.confinement import filter as calls
from nnhal.ipc.confinement import kernel, landlock, stdio
from nnhal.ipc.confinement.limits import Limits, limit, require
from nnhal.ipc.confinement.numbers import NAMES

__all__ = ["Limits", "available", "confine"]


def confine(
    read: Sequence[Path], limits: Limits, allow: Collection[str] = (), devices: Sequence[Path] = ()
) -> dict[str, str]:
    """Confine the calling process, irreversibly.

    read: absolute paths it may read besides what Python needs. allow: names of system calls that it may make besides those
    of `confinement.allowed`, with any arguments; landlock and the limits stay. devices: absolute paths of character devices
    that it may read, write and control.

    Answers "stdio", "no_new_privs", "rlimits", "landlock", "seccomp" with "applied: what" or "not applied: why".
    Raises InvalidArgument, before anything is applied, for a path that is relative or does not exist, for what is no
    character device, and for a name that is no system call's.
    """
    for path in read:
        fits = path.is_absolute() and os.path.exists(path)
        require(fits, f"confine: read path {str(path)!r} is relative or missing, must be absolute and exist")
    for path in devices:
        fits = path.is_absolute() and path.is_char_device()
        require(
            fits, f"confine: device {str(path)!r} must be the absolute path of a character device, such as /dev/null"
        )
    for name in allow:
        like = ", ".join(difflib.get_close_matches(name, NAMES)) or "read"
        require(name in NAMES, f"confine: allowed call is {name!r}, must be the name of a system call, such as {like}")
    steps = {
        "stdio": stdio.redirect,
        "no_new_privs": kernel.no_new_privileges,
        "rlimits": lambda: limit(limits),
        "landlock": lambda: landlock.restrict(read, devices),
        "seccomp": lambda: calls.install(allow, devices=bool(devices)),
    }
    return {name: _outcome(step, "applied: ", "not applied: ") for name, step in steps.items()}


def available() -> dict[str, str]:
    """What this kernel offers, by the keys of `confine`, with nothing applied."""
    offers = {
        "stdio": lambda: "input, output and errors",
        "no_new_privs": lambda: f"prctl, now {kernel.prctl('PR_GET_NO_NEW_PRIVS', kernel.PR_GET_NO_NEW_PRIVS)}",
        "rlimits": lambda: "data, descriptors, file, core",
        "landlock": lambda: f"ABI {landlock.version()}",
        "seccomp": calls.offer,
    }
    return {name: _outcome(offer, "", "not available: ") for name, offer in offers.items()}


def _outcome(step: Callable[[], str], done: str, refused: str) -> str:
    try:
        return done + step()
    except OSError as error:
        return refused + (error.strerror or str(error))
