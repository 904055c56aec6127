"""The memory of a process as the kernel counts it, to compare with the memory that drivers report."""

import ctypes
import gc
import re
from pathlib import Path

from nnhal.ipc.client.process import ReconnectingDevice
from nnhal.runtime.compiled import Compiled


def private_bytes(pid: int | str = "self") -> int | None:
    """Returns the bytes of pages that no other process maps; None if the process is gone or the kernel refuses."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return sum(int(size) << 10 for size in re.findall(r"(?m)^Private_(?:Clean|Dirty):\s+(\d+) kB$", text))


def process_memory() -> dict[str, float]:
    """Returns the memory of this process in MiB, after trimming its heap.

    Returns:
        The proportional set size (`all`), the `private` pages, the `anonymous` pages, the resident set size (`resident`),
        and its `peak` since 5 was written to `/proc/self/clear_refs`.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    text = "".join((Path("/proc/self") / name).read_text() for name in ("smaps_rollup", "status"))
    size = {name: int(value) / 1024 for name, value in re.findall(r"(?m)^(\w+):\s+(\d+) kB", text)}
    private = size["Private_Clean"] + size["Private_Dirty"]
    return {
        "all": size["Pss"],
        "private": private,
        "anonymous": size["Anonymous"],
        "resident": size["VmRSS"],
        "peak": size["VmHWM"],
    }


def driver_memory(compiled: Compiled) -> dict[str, int | None]:
    """Returns the `private_bytes` of each isolated driver's process of a compiled model, by device."""
    lines = compiled._caller.lines
    return {
        line.label: private_bytes(line.step.device.pid)
        for line in lines
        if isinstance(line.step.device, ReconnectingDevice)
    }
