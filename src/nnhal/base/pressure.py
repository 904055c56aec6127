"""Whether memory is short, as the kernel tells (PSI): how long somebody had to wait for a page.

Two files are looked at, where there are such: that of this process's control group, and that of the machine. A process that
confines itself opens them before.
"""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from nnhal.base.cores import ROOT, groups_of
from nnhal.base.descriptors import Owner

SHORT = 0.05  # of the time that somebody waited: memory is short then
_TOTAL = re.compile(rb"^some .*\btotal=(\d+)", re.MULTILINE)
_ahead: "list[Pressure]" = []


class Pressure:
    """The pressure between two looks. ahead: its files are kept open, else opened for each look."""

    def __init__(self, root: Path = ROOT, *, ahead: bool = False) -> None:
        group = next((f for g in groups_of(root) if (f := g / "memory.pressure").exists()), None)
        self._paths = [path for path in (group, root / "proc/pressure/memory") if path is not None]
        self._kept = [_opened(path) for path in self._paths] if ahead else []
        self._stalled, self._looked = self._read(), time.monotonic()

    @property
    def known(self) -> bool:
        """Whether the kernel tells at all."""
        return any(value is not None for value in self._stalled)

    def short(self) -> bool:
        """Whether memory was short since the last look, in any of the files. False where nothing is told."""
        before, self._stalled = self._stalled, self._read()
        since, self._looked = self._looked, time.monotonic()
        waits = [
            new - old for new, old in zip(self._stalled, before, strict=True) if new is not None and old is not None
        ]
        return max(waits, default=0) > SHORT * 1e6 * (self._looked - since)

    def _read(self) -> list[int | None]:
        """Microseconds that somebody has waited, ever, as each file tells."""
        return [_total(file) for file in self._kept or map(_opened, self._paths)]


def _opened(path: Path) -> Owner:
    """A file; nothing where it cannot be opened."""
    file = Owner()
    with suppress(OSError):
        file.fds.extend(map(os.open, (path,), (os.O_RDONLY | os.O_CLOEXEC,)))
    return file


def _total(file: Owner) -> int | None:
    found = None
    with suppress(OSError, IndexError):  # a group may be removed, a kernel may have it switched off
        found = _TOTAL.search(os.pread(file.fds[0], 4096, 0))
    return int(found[1]) if found else None


def open_ahead() -> None:
    """Open the files for good, for a process that will be confined."""
    _ahead.append(Pressure(ahead=True))


def pressure() -> Pressure:
    """What was opened ahead, else one's own."""
    return _ahead[0] if _ahead else Pressure()
