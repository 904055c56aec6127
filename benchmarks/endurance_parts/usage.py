"""What a process holds, as the kernel counts it."""

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
