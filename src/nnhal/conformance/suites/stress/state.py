"""The state of a process that a driver must leave as it was."""

import ctypes
import locale
import os
from pathlib import Path

import numpy as np

MASKS = {"SigCgt": "handled signals", "SigIgn": "ignored signals", "Umask": "umask"}
_libm = ctypes.CDLL(None)  # Python is linked with it


def state_of(pid: int) -> dict[str, str]:
    """Return the state of a process, and of the calling thread if it is this process; OSError if it has ended."""
    found = {"working directory": os.readlink(f"/proc/{pid}/cwd"), **_status(Path(f"/proc/{pid}/status"), MASKS)}
    if pid == os.getpid():
        blocked = {"SigBlk": "blocked signals of the calling thread"}
        found |= _status(Path("/proc/thread-self/status"), blocked)
        found["rounding mode"] = str(_libm.fegetround())
        tiny, least = np.full(64, 2.0**-130, np.float32), np.full(64, 2.0**-126, np.float32)
        found["subnormal inputs"] = "kept" if (tiny * np.float32(2.0**10)).all() else "flushed to zero"
        found["subnormal results"] = "kept" if (least * np.float32(0.5)).all() else "flushed to zero"
        found["locale"] = locale.setlocale(locale.LC_ALL)
    return found


def _status(path: Path, wanted: dict[str, str]) -> dict[str, str]:
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return {wanted[key]: value.strip() for key, _, value in lines if key in wanted}


def changes(before: dict[str, str], after: dict[str, str]) -> str:
    """Return what changed; "" if nothing did."""
    return "; ".join(
        f"{what} is {after[what]}, must be {before[what]} as before" for what in before if before[what] != after[what]
    )
