"""What a process has to itself, as the kernel counts it: beside what drivers say that they hold."""

import ctypes
import gc
import re
from pathlib import Path

from nnhal.ipc.client.process import Resilient
from nnhal.runtime.compiled import Compiled


def private_bytes(pid: int | str = "self") -> int | None:
    """Bytes of pages that no other process maps; None where the kernel does not let one look, or the process is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return sum(int(size) << 10 for size in re.findall(r"(?m)^Private_(?:Clean|Dirty):\s+(\d+) kB$", text))


def held() -> dict[str, float]:
    """Mebibytes that this process holds, its heap trimmed: `all` pages once (Pss), `private` ones, `anonymous` ones.

    `resident` counts a page as often as it is mapped, as does `peak`, the most since `/proc/self/clear_refs` was told 5.
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


def of_drivers(compiled: Compiled) -> dict[str, int | None]:
    """By device, of each process of its own that a compiled model's drivers run in: `private_bytes` of all that is there."""
    lines = compiled._caller.lines
    return {
        line.label: private_bytes(line.step.device.pid) for line in lines if isinstance(line.step.device, Resilient)
    }
