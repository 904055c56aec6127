"""System calls by number, and what a process asks of the kernel for itself."""

import ctypes
import os
import struct
from contextlib import suppress

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.prctl.argtypes = ctypes.c_int, *[ctypes.c_ulong] * 4
_here = ctypes.PyDLL(None)  # calls keep the interpreter lock
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 4, 38, 39
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def checked(name: str, result: int) -> int:
    """The result of a call, or the OSError that it stands for."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def prctl(name: str, option: int, argument: int = 0) -> int:
    """prctl(2). Raises OSError, which names the option."""
    return checked(name, LIBC.prctl(option, argument, 0, 0, 0))


def syscall(name: str, number: int, *arguments: int | bytes | None) -> int:
    """A system call by number: integers by value, bytes by pointer. Raises OSError."""
    words = [ctypes.c_long(x) if isinstance(x, int) else ctypes.c_char_p(x) for x in arguments]
    return checked(name, LIBC.syscall(ctypes.c_long(number), *words))


def end_pools() -> None:
    """Have libraries end the threads that they start again when they need them, as they do before a fork: OpenBLAS, numpy's.

    A thread that is there already would escape landlock. The child of that fork ends at once.
    """
    child = _here.fork()  # without Python's own handlers: there is nothing in the child that needs them
    if child == 0:
        _here._exit(0)
    if child > 0:
        with suppress(ChildProcessError):  # somebody has the kernel reap children
            os.waitpid(child, 0)


def machine() -> str:
    """The architecture of the tables. Raises OSError for another one, also for a 32-bit Python on a 64-bit kernel."""
    name, bits = os.uname().machine, 8 * struct.calcsize("P")
    if name not in AUDIT_ARCH or bits != 64:
        raise OSError(0, f"system is {name} with {bits} bits, must be {' or '.join(AUDIT_ARCH)} with 64")
    return name


def no_new_privileges() -> str:
    """Programs with set-user-id give nothing any more, and other processes of the user cannot trace this one."""
    prctl("PR_SET_NO_NEW_PRIVS", PR_SET_NO_NEW_PRIVS, 1)
    prctl("PR_SET_DUMPABLE", PR_SET_DUMPABLE, 0)
    return "no new privileges, not dumpable"
