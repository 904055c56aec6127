"""Sandboxes this process for good, before a driver's service runs engine code that may be broken or hostile.

Afterwards, the process computes on memory and descriptors that it holds or receives, and reads what it needs to import.
It opens no other file, writes none, creates no socket, starts no program or child, and reaches no other process or
terminal. Each of the five mechanisms is applied if the kernel has it (x86-64 and aarch64); the report lists the others.

    service:  sockets made ──► chdir("/") ──► confine(driver's files, Limits()) ──► import numpy, engine ──► serve

Call it while the process has one thread, before numpy or an engine starts others. Landlock covers the calling thread
and its later threads (all threads since ABI 8). The report counts threads that escape it; seccomp covers those too. So
nothing here imports numpy, directly or indirectly.

docs/confinement.md lists the remaining system calls and the remaining risks.
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
    """Sandbox the calling process, irreversibly.

    Args:
        read: Absolute paths that it may read, in addition to Python's.
        limits: The resource limits.
        allow: Names of system calls to allow with any arguments, in addition to those of `confinement.allowed`.
            Landlock and the limits still apply.
        devices: Absolute paths of character devices that it may read, write and control.

    Returns:
        For "stdio", "no_new_privs", "rlimits", "landlock" and "seccomp": "applied: what" or "not applied: why".

    Raises:
        InvalidArgument: A path is relative or missing, a device is not a character device, or a system call is unknown.
            Nothing was applied.
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
    """Return what this kernel supports, by the keys of `confine`; nothing is applied."""
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
