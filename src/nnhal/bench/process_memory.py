"""The private memory of processes as the kernel counts it, to compare with the memory that drivers report."""

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


def driver_memory(compiled: Compiled) -> dict[str, int | None]:
    """Returns the `private_bytes` of each isolated driver's process of a compiled model, by device."""
    lines = compiled._caller.lines
    return {
        line.label: private_bytes(line.step.device.pid)
        for line in lines
        if isinstance(line.step.device, ReconnectingDevice)
    }
