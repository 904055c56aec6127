"""The state of a process that a driver may not change: of its thread's arithmetic, signals, folder, masks and limits.

`vts` compares all of it around single calls. The suites compare the part that outlives a case around each case.
"""

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import numpy as np

from nnhal.conformance.suites.suite import CaseFailed
from nnhal.conformance.worker import process_of
from nnhal.hal.device import Device

State = Mapping[str, str]
ENVIRONMENT = "environment variables"  # of an engine, which a driver may set while it loads
_BETWEEN = "\0"  # between two variables
_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_FENV = 256  # bytes, more than any fenv_t has
_MXCSR, _MXCSR_AT, _X87 = 0xFFC0, 28, 0x0F00  # control bits, not the exceptions that occurred
_MASKS = {name: name for name in ("SigBlk", "SigIgn", "SigCgt", "Umask")}
_LASTING = {"SigCgt": "handled signals", "SigIgn": "ignored signals", "Umask": "umask"}
_LIMITS = "RLIMIT_NOFILE", "RLIMIT_STACK", "RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NPROC"
_FTZ, _DAZ = 1 << 15, 1 << 6


def state_of_this_process() -> State:
    """Return the state of this process and thread, in words by name."""
    found = {
        "rounding mode": str(_libm.fegetround()),
        "floating-point control": _control(),
        "working directory": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        **_settings(),
    }
    found |= {
        f"handler of {each.name}": str(signal.getsignal(each)) for each in signal.valid_signals() if each in _NAMED
    }
    return found | _status(f"/proc/self/task/{threading.get_native_id()}/status", _MASKS)


def _settings() -> State:
    """Return what Python, NumPy and the kernel keep for this process and thread, beside what `/proc` has."""
    return {
        "numpy's handling of errors": str(np.geterr()),
        ENVIRONMENT: _text(os.environ),
        "affinity of the thread": str(sorted(os.sched_getaffinity(0))),
        "nice value": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "interval timer": str(signal.getitimer(signal.ITIMER_REAL)[1]),
        "recursion limit": str(sys.getrecursionlimit()),
        "switch interval": str(sys.getswitchinterval()),
        "thread's exception hook": str(threading.excepthook),
        "standard output": _file(1),
        "standard error": _file(2),
        **{name: str(resource.getrlimit(getattr(resource, name))) for name in _LIMITS},
    }


_NAMED = frozenset(signal.Signals)


def state_of_process(pid: int) -> State:
    """Return what can be seen of another process."""
    limits = {name: str(resource.prlimit(pid, getattr(resource, name))) for name in _LIMITS}
    return {
        "working directory": os.readlink(f"/proc/{pid}/cwd"),
        "nice value": str(os.getpriority(os.PRIO_PROCESS, pid)),
        "affinity of the thread": str(sorted(os.sched_getaffinity(pid))),
        **limits,
        **_status(f"/proc/{pid}/status", _MASKS),
    }


def lasting_state(pid: int) -> State:
    """Return what a case must keep of a process, and of the calling thread if it is this one; OSError if it has ended."""
    found = {"working directory": os.readlink(f"/proc/{pid}/cwd"), **_status(f"/proc/{pid}/status", _LASTING)}
    if pid == os.getpid():
        found |= _status("/proc/thread-self/status", {"SigBlk": "blocked signals of the calling thread"})
        found["rounding mode"] = str(_libm.fegetround())
        tiny, least = np.full(64, 2.0**-130, np.float32), np.full(64, 2.0**-126, np.float32)
        found["subnormal inputs"] = "kept" if (tiny * np.float32(2.0**10)).all() else "flushed to zero"
        found["subnormal results"] = "kept" if (least * np.float32(0.5)).all() else "flushed to zero"
        found["locale"] = locale.setlocale(locale.LC_ALL)
        found |= _settings()
    return found


def watched(device: Device) -> list[int]:
    """Return the processes that the driver may change: this one, and its own if it is isolated."""
    process = process_of(device)
    return [os.getpid()] if process is None else [os.getpid(), process.pid]


@contextmanager
def kept_as_it_was(device: Device) -> Iterator[None]:
    """Raise CaseFailed if the block leaves a process that the driver may change other than it was."""
    before = _lasting_states(device)
    yield
    after = _lasting_states(device)
    for pid in before.keys() & after.keys():
        changed = changes(before[pid], after[pid])
        if changed:
            where = "the process" if pid == os.getpid() else "the driver's process"
            raise CaseFailed(f"{where} is left changed: {changed}", "a setting that the driver does not restore?")


def _lasting_states(device: Device) -> dict[int, State]:
    """Return the states of the processes that have not ended."""
    found = {}
    for pid in watched(device):
        with suppress(OSError):
            found[pid] = lasting_state(pid)
    return found


def difference(before: State, after: State) -> str:
    """Return the first difference, "" without one."""
    for name in before:
        if before[name] != after.get(name):
            was, now = _shown(name, before[name], after.get(name, ""))
            return f"{name} is {now}, was {was}"
    return ""


def changes(before: State, after: State) -> str:
    """Return all differences, "" without one."""
    several = [(what, *_shown(what, before[what], after[what])) for what in before if before[what] != after[what]]
    return "; ".join(f"{what} is {now}, must be {was} as before" for what, was, now in several)


def _shown(name: str, before: str, after: str) -> tuple[str, str]:
    """Return two values for people: of environment variables, those that differ."""
    if name != ENVIRONMENT:
        return before, after
    both = [dict(each.split("=", 1) for each in text.split(_BETWEEN) if each) for text in (before, after)]
    names = sorted(name for name in {**both[0], **both[1]} if both[0].get(name) != both[1].get(name))
    was, now = (", ".join(f"{n}={each[n]}" if n in each else f"{n} unset" for n in names) for each in both)
    return was, now


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


def _status(path: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return fields of a status file of /proc, under other names."""
    with open(path) as status:
        lines = (line.partition(":") for line in status)
        return {names[key]: value.strip() for key, _, value in lines if key in names}


def _file(fd: int) -> str:
    try:
        found = os.fstat(fd)
    except OSError:
        return "closed"
    return f"file {found.st_ino}"


def _text(environment: Mapping[str, str]) -> str:
    return _BETWEEN.join(f"{name}={environment[name]}" for name in sorted(environment))
