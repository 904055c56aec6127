"""Selects the vectors to run, the device and the way: the whole plan is known before anything runs."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nnhal.base.errors import InvalidArgument
from nnhal.conformance.device_under_test import Bundle, Subject
from nnhal.conformance.suite import variants
from nnhal.conformance.vectors import index, members


class Selection(Subject, frozen=True):
    """The vectors to run, and the device.

    pattern: a regular expression, only vectors and variants whose `name_of` it finds. operations: only vectors of these,
    empty for all. rerun: also the further variants that the index flags. way: one of `WAYS`. share: the share of all
    vectors that runs, chosen by a hash of the id. flag: only vectors with this flag in the index. outputs: keep those
    of failed vectors.
    """

    path: Path
    pattern: str = ""
    operations: frozenset[str] = frozenset()
    rerun: bool = True
    way: str = "plain"
    share: float = 1.0
    flag: str = ""
    outputs: bool = False

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an invalid expression, share, HAL version or time."""
        super().__post_init__()
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise InvalidArgument(f"filter is {self.pattern!r}, must be a regular expression: {error}") from None
        require_share("share", self.share)

    def takes(self, vector: str) -> bool:
        """Whether the vector is in the share; always the same ones."""
        return is_sampled(vector, self.share)


def require_share(name: str, share: float) -> None:
    """Raise InvalidArgument for an impossible share."""
    if not 0 < share <= 1:
        raise InvalidArgument(f"{name} is {share}, must be above 0 and at most 1")


def is_sampled(name: str, share: float) -> bool:
    """Whether a name is in a share of all names; always the same ones, and a larger share includes a smaller one."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


def name_of(id: str, variant: str) -> str:
    """Return the name of a vector in a variant."""
    return f"{id} ({variant})" if variant else id


class Item(NamedTuple):
    """One vector in one of its variants."""

    id: str
    variant: str
    primary: str


def planned(selection: Selection) -> list[Bundle]:
    """Return the plan by the index: the items of each specification, with its archive and member.

    InvalidArgument if index and zips do not have the same specifications.
    """
    by_specification: dict[tuple[str, str], list[Item]] = {}
    for id, entry in index(selection.path).items():
        version, specification, _ = id.split("/", 2)
        by_specification.setdefault((version, specification), []).extend(_items(selection, id, entry))
    there = {(archive.stem, name.removesuffix(".json")): (archive, name) for archive, name in members(selection.path)}
    for version, specification in there.keys() ^ by_specification.keys():
        raise InvalidArgument(f"vectors: {version}/{specification} must be both in index.json and in {version}.zip")
    return [Bundle(there[key], tuple(items)) for key, items in by_specification.items() if items]


def _items(selection: Selection, id: str, entry: Mapping[str, Any]) -> Iterator[Item]:
    primary, flags = entry.get("primary") or "several", entry.get("flags", ())
    if selection.operations and primary not in selection.operations:
        return
    if selection.takes(id) and (not selection.flag or selection.flag in flags):
        for variant in variants(flags) if selection.rerun else [""]:
            if re.search(selection.pattern, name_of(id, variant)):
                yield Item(id, variant, primary)
