"""Sandboxes this process irreversibly, before a driver's service runs engine code that may be broken or hostile.

Afterwards the process can only compute on memory and descriptors that it holds or receives, and read what it needs to
import. It cannot open other files, write files, create sockets, start programs or children, affect other processes, or
read a terminal. Each of the five mechanisms is applied if the kernel has it (x86-64 and aarch64); the report lists
those that were not.

    service:  sockets made ──► chdir("/") ──► `confine(driver's files, Limits())` ──► import numpy, engine ──► serve

Call it while the process has one thread, before numpy or an engine starts threads: landlock covers the calling thread
and threads that it starts later (all threads since ABI 8). The report counts threads that landlock misses; seccomp
covers those too. Therefore this package does not import numpy, even indirectly.

`docs/reference/sandbox.md` lists the remaining system calls and risks.
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
        read: Absolute paths that it may read in addition to Python's.
        limits: Its resource limits.
        allow: Names of system calls that it may make, with any arguments, in addition to `confinement.allowed`.
            Landlock and the limits still apply.
        devices: Absolute paths of character devices that it may read, write and control.

    Returns:
        For each of "stdio", "no_new_privs", "rlimits", "landlock" and "seccomp": "applied: what" or "not applied: why".

    Raises:
        InvalidArgument: A path is relative or missing or is not a character device, or a system call is unknown. Nothing
            is applied then.
    """
    for path in read:
        fits = path.is_absolute() and os.path.exists(path)
        require(fits, f"sandbox: read path {str(path)!r} is relative or missing, must be absolute and exist")
    for path in devices:
        fits = path.is_absolute() and path.is_char_device()
        require(
            fits,
            f"sandbox: device is {str(path)!r}, must be the absolute path of a character device, such as /dev/null",
        )
    for name in allow:
        like = ", ".join(difflib.get_close_matches(name, NAMES)) or "read"
        require(name in NAMES, f"sandbox: allowed call is {name!r}, must be the name of a system call, such as {like}")
    steps = {
        "stdio": stdio.redirect,
        "no_new_privs": kernel.no_new_privileges,
        "rlimits": lambda: limit(limits),
        "landlock": lambda: landlock.restrict(read, devices),
        "seccomp": lambda: calls.install(allow, devices=bool(devices)),
    }
    return {name: _outcome(step, "applied: ", "not applied: ") for name, step in steps.items()}


def available() -> dict[str, str]:
    """Return what this kernel offers, by the keys of `confine`, without applying anything."""
    offers = {
        "stdio": lambda: "input, output and errors",
        "no_new_privs": lambda: f"prctl, now {kernel.prctl('PR_GET_NO_NEW_PRIVS', kernel.PR_GET_NO_NEW_PRIVS)}",
        "rlimits": lambda: "data, descriptors, file, core",
        "landlock": lambda: f"ABI {landlock.version()}",
        "seccomp": calls.describe_filters,
    }
    return {name: _outcome(offer, "", "not available: ") for name, offer in offers.items()}


def _outcome(step: Callable[[], str], done: str, refused: str) -> str:
    try:
        return done + step()
    except OSError as error:
        return refused + (error.strerror or str(error))
