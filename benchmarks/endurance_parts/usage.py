"""What a process holds, as the kernel counts it."""

import ctypes
import gc
import os
import re
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """Open descriptors, lines of its map, threads, and bytes.

    resident; private: in no other process; anonymous: of no file or shared memory; share: resident, shared pages in part.
    """

    descriptors: int
    mappings: int
    threads: int
    resident: int
    private: int
    anonymous: int
    share: int


def usage(pid: int) -> Usage:
    """Of a process that this one may look into."""
    root = Path(f"/proc/{pid}")
    rollup = dict(re.findall(r"(?m)^(\w+):\s+(\d+) kB$", (root / "smaps_rollup").read_text()))
    size = {name: int(value) << 10 for name, value in rollup.items()}
    return Usage(
        len(os.listdir(root / "fd")),
        len((root / "maps").read_text().splitlines()),
        len(os.listdir(root / "task")),
        size["Rss"],
        size["Private_Clean"] + size["Anonymous"],
        size["Anonymous"],
        size["Pss"],
    )


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
