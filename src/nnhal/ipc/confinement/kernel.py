"""System calls by number, and settings of the process that the kernel keeps."""

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
    """Return the result of a call, or raise the OSError that it represents."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def prctl(name: str, option: int, argument: int = 0) -> int:
    """Call prctl(2). Raises OSError, which names the option."""
    return checked(name, LIBC.prctl(option, argument, 0, 0, 0))


def syscall(name: str, number: int, *arguments: int | bytes | None) -> int:
    """Make a system call by number: integers by value, bytes by pointer. Raises OSError."""
    words = [ctypes.c_long(x) if isinstance(x, int) else ctypes.c_char_p(x) for x in arguments]
    return checked(name, LIBC.syscall(ctypes.c_long(number), *words))


def end_pools() -> None:
    """Make libraries (OpenBLAS, numpy) end their thread pools, as they do before a fork; they restart them when needed.

    A thread that exists already would escape landlock. The child of that fork ends immediately.
    """
    child = _here.fork()  # without Python's handlers: the child needs none of them
    if child == 0:
        _here._exit(0)
    if child > 0:
        with suppress(ChildProcessError):  # the kernel reaps children, by a setting of the application
            os.waitpid(child, 0)


def machine_name() -> str:
    """Return the architecture of the tables.

    Raises OSError for another one, also for 32-bit Python on a 64-bit kernel.
    """
    name, bits = os.uname().machine, 8 * struct.calcsize("P")
    if name not in AUDIT_ARCH or bits != 64:
        raise OSError(0, f"system is {name} with {bits} bits, must be {' or '.join(AUDIT_ARCH)} with 64")
    return name


def no_new_privileges() -> str:
    """Disable set-user-id programs, and prevent the user's other processes from tracing this one."""
    prctl("PR_SET_NO_NEW_PRIVS", PR_SET_NO_NEW_PRIVS, 1)
    prctl("PR_SET_DUMPABLE", PR_SET_DUMPABLE, 0)
    return "no new privileges, not dumpable"
