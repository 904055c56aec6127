"""The state of a process that a driver may not change: of its thread's arithmetic, signals, folder, masks and limits."""

import ctypes
import ctypes.util
import locale
import os
import platform
import resource
import signal
import struct
import sys
import threading
from collections.abc import Mapping

import numpy as np

State = Mapping[str, str]
ENVIRONMENT = "environment variables"  # of an engine, which a driver may set while it loads
_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_FENV = 256  # bytes, more than any fenv_t has
_MXCSR, _MXCSR_AT, _X87 = 0xFFC0, 28, 0x0F00  # control bits, not the exceptions that occurred
_MASKS = "SigBlk", "SigIgn", "SigCgt", "Umask"
_LIMITS = "RLIMIT_NOFILE", "RLIMIT_STACK", "RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NPROC"
_FTZ, _DAZ = 1 << 15, 1 << 6


def state_of_this_process() -> State:
    """Return the state of this process and thread, in words by name."""
    found = {
        "rounding mode": str(_libm.fegetround()),
        "floating-point control": _control(),
        "numpy's handling of errors": str(np.geterr()),
        "working directory": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        ENVIRONMENT: _digest(os.environ),
        "affinity of the thread": str(sorted(os.sched_getaffinity(0))),
        "nice value": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "interval timer": str(signal.getitimer(signal.ITIMER_REAL)[1]),
        "recursion limit": str(sys.getrecursionlimit()),
        "switch interval": str(sys.getswitchinterval()),
        "thread's exception hook": str(threading.excepthook),
        "standard output": _file(1),
        "standard error": _file(2),
    }
    found |= {
        f"handler of {each.name}": str(signal.getsignal(each)) for each in signal.valid_signals() if each in _NAMED
    }
    found |= {name: str(resource.getrlimit(getattr(resource, name))) for name in _LIMITS}
    return found | _masks(f"/proc/self/task/{threading.get_native_id()}/status")


_NAMED = frozenset(signal.Signals)


def state_of_process(pid: int) -> State:
    """Return what can be seen of another process."""
    limits = {name: str(resource.prlimit(pid, getattr(resource, name))) for name in _LIMITS}
    return {
        "working directory": os.readlink(f"/proc/{pid}/cwd"),
        "nice value": str(os.getpriority(os.PRIO_PROCESS, pid)),
        "affinity of the thread": str(sorted(os.sched_getaffinity(pid))),
        **limits,
        **_masks(f"/proc/{pid}/status"),
    }


def difference(before: State, after: State) -> str:
    """Return the first difference, "" if there is none."""
    for name in before:
        if before[name] != after.get(name):
            return f"{name} is {after.get(name)}, was {before[name]}"
    return ""


def _control() -> str:
    """Return rounding, precision, flush-to-zero and denormals-are-zero of this thread."""
    environment = ctypes.create_string_buffer(_FENV)
    _libm.fegetenv(environment)
    if platform.machine() == "x86_64":
        (mxcsr,) = struct.unpack_from("<I", environment.raw, _MXCSR_AT)
        (x87,) = struct.unpack_from("<H", environment.raw, 0)
        flags = [name for name, bit in (("flush-to-zero", _FTZ), ("denormals-are-zero", _DAZ)) if mxcsr & bit]
        return f"MXCSR {mxcsr & _MXCSR:#06x} {' '.join(flags)}, x87 {x87 & _X87:#06x}".replace(" ,", ",")
    return environment.raw[:4].hex()  # FPCR of AArch64


def _masks(path: str) -> dict[str, str]:
    with open(path) as status:
        lines = dict(line.rstrip("\n").split(":", 1) for line in status if ":" in line)
    return {name: lines[name].strip() for name in _MASKS if name in lines}


def _file(fd: int) -> str:
    try:
        found = os.fstat(fd)
    except OSError:
        return "closed"
    return f"file {found.st_ino}"


def _digest(environment: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={environment[name]}" for name in sorted(environment))
