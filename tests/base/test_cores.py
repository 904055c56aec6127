"""How many cores this process may use."""

import os
from pathlib import Path

import pytest

from nnhal import serve
from nnhal.base import cores
from nnhal.base.cores import share_of_time, usable_cores
from nnhal.hal import blobcache, proofs

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
SETS = "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"


def tree(root: Path, own: str, mounts: str, **files: str) -> Path:
    """A file system with these groups. files: contents by path in /sys/fs/cgroup, `__` for / and `_D_` for a dot."""
    told = {"proc/self/cgroup": own, "proc/self/mountinfo": mounts}
    told |= {"sys/fs/cgroup/" + name.replace("__", "/").replace("_D_", "."): text for name, text in files.items()}
    for name, text in told.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_quota_of_version_2_is_its_time_by_its_period(tmp_path: Path) -> None:
    assert share_of_time(tree(tmp_path, "0::/app\n", V2, app__cpu_D_max="150000 100000\n")) == 1.5


def test_the_least_quota_of_a_group_and_those_around_it_counts(tmp_path: Path) -> None:
    files = {"cpu_D_max": "400000 100000", "a__cpu_D_max": "200000 100000", "a__b__cpu_D_max": "max 100000"}
    assert share_of_time(tree(tmp_path, "0::/a/b\n", V2, **files)) == 2


def test_no_quota_is_none(tmp_path: Path) -> None:
    assert share_of_time(tree(tmp_path, "0::/a\n", V2, a__cpu_D_max="max 100000\n")) is None
    assert share_of_time(tree(tmp_path / "other", "0::/a\n", V2)) is None
    assert share_of_time(tmp_path / "nothing") is None


def quota(group: str, microseconds: int) -> dict[str, str]:
    """Of a group of version 1, in a period of 50 ms."""
    folder = f"cpu,cpuacct__{group}"
    return {f"{folder}cpu_D_cfs_quota_us": f"{microseconds}\n", f"{folder}cpu_D_cfs_period_us": "50000\n"}


def test_a_quota_of_version_1_is_that_of_the_controller_of_time(tmp_path: Path) -> None:
    own = "4:memory:/other\n3:cpuset:/sets\n1:cpu,cpuacct:/app\n0::/\n"
    assert share_of_time(tree(tmp_path, own, SETS + V1, **quota("app__", 100_000))) == 2
    assert share_of_time(tree(tmp_path / "none", own, SETS + V1, **quota("app__", -1))) is None


def test_in_a_container_the_group_is_what_was_mounted(tmp_path: Path) -> None:
    """It sees its path from outside, and its own group as the root."""
    mounted = V1.replace(" / /sys", " /docker/f00 /sys")
    assert share_of_time(tree(tmp_path, "1:cpu,cpuacct:/docker/f00\n", mounted, **quota("", 75_000))) == 1.5
    beside = tree(tmp_path / "beside", "0::/../../elsewhere\n", V2, cpu_D_max="100000 100000")
    assert share_of_time(beside) == 1


def test_nonsense_is_no_quota(tmp_path: Path) -> None:
    for number, text in enumerate(("", "0 0", "100000 0", "-5 100000", "much 100000", "1 2 3")):
        assert share_of_time(tree(tmp_path / str(number), "0::/\n\nx\n", f"{V2}x\n - \n", cpu_D_max=text)) is None


@pytest.mark.parametrize(
    ("allowed", "share", "usable"), [(4, None, 4), (4, 8.0, 4), (4, 2.9, 2), (4, 0.25, 1), (1, 3.0, 1), (64, 1.0, 1)]
)
def test_usable_are_those_allowed_within_the_quota_rounded_down_and_at_least_one(
    monkeypatch: pytest.MonkeyPatch, allowed: int, share: float | None, usable: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    monkeypatch.setattr(cores, "_share", lambda: share)
    assert usable_cores() == usable


def test_this_machine_has_at_least_one() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def test_a_driver_process_looks_at_the_quota_before_it_is_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobcache, "open_ahead", lambda _: None)
    monkeypatch.setattr(proofs, "open_proofs", lambda: None)
    cores._share.cache_clear()
    serve.open_before_sandbox("any")
    assert cores._share.cache_info().currsize == 1
