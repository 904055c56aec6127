"""Files that a driver leaves: in folders for temporary files, in the working directory and in the user's folder."""

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path


def folders() -> list[str]:
    """Return the folders that are looked at; the first is that for temporary files of this process."""
    home = os.path.expanduser("~")
    several = tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", os.getcwd(), home, os.path.join(home, ".cache")
    return [each for each in dict.fromkeys(map(os.path.realpath, several)) if os.path.isdir(each)]


def entries(places: Sequence[str]) -> set[str]:
    """Return the paths of what lies directly in some folders."""
    return {path for place in places for path in _listed(place)}


def new_files(places: Sequence[str], known: Collection[str]) -> set[str]:
    """Return the paths of files and folders that lie anywhere below the unknown entries of some folders."""
    fresh = entries(places) - set(known) - set(places)
    below = (
        os.path.join(root, name) for path in fresh for root, *both in os.walk(path) for names in both for name in names
    )
    return fresh.union(below)


def _listed(place: str) -> Iterator[str]:
    with suppress(OSError):
        yield from (os.path.join(place, name) for name in os.listdir(place))


def left_behind(rounds: Sequence[Collection[str]], own: str, *, ended: bool) -> str:
    """Return which files were left; "" if none were.

    A file in each round is one too many: other processes write into most of the folders, and a driver may keep a few
    files for all of its models.

    Args:
        rounds: the new files after each round of preparing and closing the same models.
        own: the process's folder for temporary files, in which nothing may remain.
        ended: whether the process has ended by itself.
    """
    steps = [sorted(set(after) - set(before)) for before, after in pairwise(rounds)]
    for where in (own, ""):
        inside = [[path for path in step if path.startswith(where)] for step in steps]
        if where == "":
            inside = [[path for path in step if os.path.lexists(path)] for step in inside]
        if all(inside):
            count = sum(map(len, inside)) / len(inside)
            return (
                f"each round of models that were closed leaves {count:.2g} files, such as {_shown(inside[-1][-1], own)}"
            )
    left = sorted(str(path.relative_to(own)) for path in Path(own).rglob("*")) if ended else []
    return f"its process has ended and left {len(left)} files in TMPDIR, such as {left[-1]}" if left else ""


def _shown(path: str, own: str) -> str:
    return path.replace(own, "TMPDIR", 1) if path.startswith(own) else path
