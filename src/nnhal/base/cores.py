"""The number of cores that this process may use: its affinity, limited by the CPU quota of its control group."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def usable_cores() -> int:
    """Return the number of threads that can run at once, at least 1: the affinity, limited by the quota rounded down.

    A group with a quota of 1.5 cores would be throttled for a third of the time with two busy threads. The quota is
    read once: a process calls this before it enters its sandbox.
    """
    share = _share()
    allowed = len(os.sched_getaffinity(0))
    return allowed if share is None else max(1, min(allowed, int(share)))


@cache
def _share() -> float | None:
    return share_of_time(ROOT)


def share_of_time(root: Path) -> float | None:
    """Return the smallest CPU quota of this process's control groups, in cores; None without a known quota.

    Supports both versions: `cpu.max`, or `cpu.cfs_quota_us`, of a group and of its ancestors.
    """
    shares = [share for folder, old in _groups(root) if (share := _share_in(folder, old=old)) is not None]
    return min(shares, default=None)


def groups_of(root: Path) -> Iterator[Path]:
    """Yield the visible folders of this process's version 2 control groups, the innermost first."""
    return (folder for folder, old in _groups(root) if not old)


def _groups(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield what `_groups_in` yields; nothing if the kernel does not report groups."""
    try:
        own = (root / "proc/self/cgroup").read_text()
        mounts = (root / "proc/self/mountinfo").read_text()
    except (OSError, UnicodeDecodeError):
        return iter(())
    return _groups_in(root, own, mounts)


def _groups_in(root: Path, own: str, mounts: str) -> Iterator[tuple[Path, bool]]:
    """Yield the visible folders of this process's groups and their ancestors, and whether each is of version 1."""
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
    """Decode a path from `mountinfo`."""
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _share_in(folder: Path, *, old: bool) -> float | None:
    try:
        if old:
            quota, period = ((folder / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
        else:
            quota, period = (folder / "cpu.max").read_text().split()
        share = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is not a number
        return None
    return share if share > 0 else None
