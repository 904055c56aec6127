"""Entry points and versions of installed distributions, without the slow import of `importlib.metadata`.

Distributions are found as Python's finder finds them: in the folders of `sys.path`, in order; the first of two with the
same name counts. `importlib.metadata` handles everything else (archives, other finders).
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

from nnhal.base.records import Record

_OWN = re.compile(r"(?P<name>[^-]+)-?.*\.(?:dist-info|egg-info)", re.IGNORECASE)
_VERSIONED = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)\.dist-info")
_EGG = re.compile(r"(?P<name>[^-]+)-?.*\.egg", re.IGNORECASE)  # a folder that is one distribution


class EntryPoint(Record, frozen=True):
    """A name in a group, and the object that it refers to: `module:attribute`."""

    name: str
    value: str
    group: str

    def load(self) -> Any:
        """Return the object. Importing its module may raise anything."""
        module, _, attributes = self.value.partition(":")
        found: Any = import_module(module.strip())
        for attribute in filter(None, attributes.partition("[")[0].strip().split(".")):
            found = getattr(found, attribute)
        return found


def entry_points(groups: Sequence[str]) -> list[EntryPoint]:
    """Return the entry points of some groups, in the order of the groups."""
    found = _quickly() if _is_plain() else None
    if found is None:
        found = _slowly()
    return [point for group in groups for point in found if point.group == group]


def version_of(module: str) -> str | None:
    """Return the version of a package's distribution without importing it; None if only the import can determine it.

    The distribution lies beside the package, and its record lists the package: others may have similar names.
    """
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    place, file = os.path.split(os.path.dirname(spec.origin))
    found = []
    try:
        for name in os.listdir(place):
            match = _VERSIONED.fullmatch(name)
            if match and _normal(match["name"]).startswith(_normal(module)):
                with open(os.path.join(place, name, "RECORD"), encoding="utf-8", errors="replace") as record:
                    if any(line.startswith(f"{file}/{os.path.basename(spec.origin)},") for line in record):
                        found.append(match["version"])
    except OSError:  # it lies in an archive, or has no record
        return None
    return found[0] if len(found) == 1 else None


def _is_plain() -> bool:
    """Whether Python's finder is the only one."""
    return not any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder)


def _quickly() -> list[EntryPoint] | None:
    """Return all entry points; None if an entry of `sys.path` is not a folder."""
    found: list[EntryPoint] = []
    seen: set[str] = set()
    for place in [str(each) for each in sys.path if isinstance(each, str | os.PathLike)]:
        try:
            names = sorted(os.listdir(place or "."))
        except OSError:
            if os.path.isfile(place):
                return None  # an archive
            continue
        egg = _EGG.fullmatch(os.path.basename(place))
        for name in sorted(names, key=lambda name: name.lower() == "egg-info"):
            match = egg if name.lower() == "egg-info" else _OWN.fullmatch(name)
            own = match and _normal(match["name"])
            if not own or own in seen:
                continue
            seen.add(own)
            try:
                path = os.path.join(place or ".", name, "entry_points.txt")
                with open(path, encoding="utf-8", errors="replace") as file:
                    found += _parsed(file)
            except OSError:  # without entry points, or unreadable
                continue
    return found


def _slowly() -> list[EntryPoint]:
    """Return all entry points through the standard library, without unreadable distributions."""
    from importlib.metadata import distributions

    found: list[EntryPoint] = []
    seen: set[str] = set()
    for each in distributions():
        try:
            name, points = _normal(each.metadata["Name"]), each.entry_points
        except Exception:  # a broken distribution, or an error of another finder
            continue
        if name not in seen:
            seen.add(name)
            found += [EntryPoint(p.name, p.value, p.group) for p in points]
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _parsed(lines: Iterator[str]) -> Iterator[EntryPoint]:
    group = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            group = line.strip("[]").strip()
        elif line and line[0] not in "#;":
            name, _, value = line.partition("=")
            yield EntryPoint(name.strip(), value.strip(), group)
