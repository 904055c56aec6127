"""Whether memory is short, by the kernel's pressure stall information (PSI): the time that tasks waited for memory.

Uses up to two files: that of this process's control group, and that of the machine. A process opens them before it
enters its sandbox.
"""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from nnhal.base.cores import ROOT, groups_of
from nnhal.base.descriptors import Owner

SHORT = 0.05  # above this share of time with a waiting task, memory is short
_TOTAL = re.compile(rb"^some .*\btotal=(\d+)", re.MULTILINE)
_ahead: "list[Pressure]" = []


class Pressure:
    """The pressure between two calls. ahead: its files stay open; otherwise they are opened on each call."""

    def __init__(self, root: Path = ROOT, *, ahead: bool = False) -> None:
        group = next((f for g in groups_of(root) if (f := g / "memory.pressure").exists()), None)
        self._paths = [path for path in (group, root / "proc/pressure/memory") if path is not None]
        self._kept = [_opened(path) for path in self._paths] if ahead else []
        self._stalled, self._looked = self._read(), time.monotonic()

    @property
    def known(self) -> bool:
        """Whether the kernel reports pressure."""
        return any(value is not None for value in self._stalled)

    def short(self) -> bool:
        """Whether memory was short since the last call, by any of the files. False if the kernel does not report it."""
        before, self._stalled = self._stalled, self._read()
        since, self._looked = self._looked, time.monotonic()
        waits = [
            new - old for new, old in zip(self._stalled, before, strict=True) if new is not None and old is not None
        ]
        return max(waits, default=0) > SHORT * 1e6 * (self._looked - since)

    def _read(self) -> list[int | None]:
        """Read from each file the total microseconds that tasks have waited."""
        return [_total(file) for file in self._kept or map(_opened, self._paths)]


def _opened(path: Path) -> Owner:
    """Open a file; the owner is empty if that fails."""
    file = Owner()
    with suppress(OSError):
        file.fds.extend(map(os.open, (path,), (os.O_RDONLY | os.O_CLOEXEC,)))
    return file


def _total(file: Owner) -> int | None:
    found = None
    with suppress(OSError, IndexError):  # the group may be gone, or the kernel may have PSI switched off
        found = _TOTAL.search(os.pread(file.fds[0], 4096, 0))
    return int(found[1]) if found else None


def open_ahead() -> None:
    """Open the files for good, before this process enters its sandbox."""
    _ahead.append(Pressure(ahead=True))


def pressure() -> Pressure:
    """Return the pressure opened ahead, or a new one."""
    return _ahead[0] if _ahead else Pressure()
