"""How many cores this process may use: those that it may run on, and no more than its control group's share of time."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def usable_cores() -> int:
    """Threads that can run at once, at least 1: the processors of this process, and its quota of their time rounded down.

    A group that may use 1.5 cores would stand still for a third of the time with two threads that never wait. The quota is
    read once: a process that confines itself calls this before.
    """
    share = _share()
    allowed = len(os.sched_getaffinity(0))
    return allowed if share is None else max(1, min(allowed, int(share)))


@cache
def _share() -> float | None:
    return share_of_time(ROOT)


def share_of_time(root: Path) -> float | None:
    """The least quota of the control groups that this process is in, in cores; None for none, or none that is told.

    Either version of control groups: `cpu.max` of a group and all above it, or `cpu.cfs_quota_us` in the same way.
    """
    shares = [share for folder, old in _groups(root) if (share := _share_in(folder, old=old)) is not None]
    return min(shares, default=None)


def groups_of(root: Path) -> Iterator[Path]:
    """Folders of the control groups of version 2 that this process is in, its own first, as far as they can be seen."""
    return (folder for folder, old in _groups(root) if not old)


def _groups(root: Path) -> Iterator[tuple[Path, bool]]:
    """As `_groups_in`; none where the kernel does not tell."""
    try:
        own = (root / "proc/self/cgroup").read_text()
        mounts = (root / "proc/self/mountinfo").read_text()
    except (OSError, UnicodeDecodeError):
        return iter(())
    return _groups_in(root, own, mounts)


def _groups_in(root: Path, own: str, mounts: str) -> Iterator[tuple[Path, bool]]:
    """Folders of the groups of this process, and of those around them as far as they can be seen; whether of version 1."""
    paths: dict[bool, PurePosixPath] = {}
    for line in own.splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if not controllers or "cpu" in controllers.split(","):
            paths[bool(controllers)] = PurePosixPath(group)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        facts, kind = before.split(), after.split()
        if len(facts) < 5 or len(kind) < 3:
            continue
        old = kind[0] == "cgroup" and "cpu" in kind[2].split(",")
        if (not old and kind[0] != "cgroup2") or old not in paths:
            continue
        path, shown, place = paths[old], _plain(facts[3]), root / _plain(facts[4]).lstrip("/")
        within = path.relative_to(shown) if path.is_relative_to(shown) else PurePosixPath()
        if ".." not in within.parts:
            yield from ((place / each, old) for each in (within, *within.parents))
        else:
            yield place, old


def _plain(field: str) -> str:
    """A path as `mountinfo` writes it."""
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _share_in(folder: Path, *, old: bool) -> float | None:
    try:
        if old:
            quota, period = ((folder / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
        else:
            quota, period = (folder / "cpu.max").read_text().split()
        share = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None
    return share if share > 0 else None
