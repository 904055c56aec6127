"""The application's cache settings, and the outcome for each partition."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from nnhal.base.answers import safe_repr
from nnhal.base.digests import blake2b
from nnhal.base.errors import InvalidArgument
from nnhal.base.private import absolute_path
from nnhal.base.records import Record, replace
from nnhal.hal.cache.files import TOKEN_SIZE, os_reason
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import SupportReport
from nnhal.hal.device import Device, Hints
from nnhal.model.graph import Model
from nnhal.runtime.deadline_executor import DeadlineExecutor

MOST = 1 << 30  # the default quota of a folder, in bytes

CacheState = Literal["hit", "miss", "off"]
Folder = str | os.PathLike[str] | Literal[False] | None  # the cache folder; False: no cache


class CacheOutcome(NamedTuple):
    """The cache outcome of one partition.

    Attributes:
        device: The label of the device, as in `Placement`.
        reason: Why there is no hit.
    """

    device: str
    state: CacheState
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


class CacheSettings(Record, frozen=True):
    """The cache settings. token: of the model, None to compute it. folder: None for no cache, with the reason in `why`."""

    folder: Path | None = None
    token: bytes | None = None
    most: int = MOST
    why: str = "no cache folder was given"

    @classmethod
    def wanted(cls, folder: Folder, token: Any) -> "CacheSettings":
        """Return the settings of `compile`, by default from NNHAL_CACHE_DIR. InvalidArgument for invalid ones."""
        path = os.fsdecode(folder) if isinstance(folder, str | os.PathLike) else ""
        if not (folder is None or folder is False or path) or "\0" in path:
            raise InvalidArgument(f"cache_dir is {safe_repr(folder)}, must be the path of a folder")
        if token is not None and not (isinstance(token, bytes) and len(token) == TOKEN_SIZE):
            raise InvalidArgument(f"token is {safe_repr(token)}, must be {TOKEN_SIZE} bytes")
        if folder is False:
            return cls(None, token, why="nothing is to be kept")
        if folder is None:
            path = os.environ.get("NNHAL_CACHE_DIR", "")
        try:
            return cls(absolute_path(path) if path else None, token, quota())
        except OSError as error:
            return cls(None, token, why=f"the folder {path} {os_reason(error)}")

    def for_shapes(self, model: Model) -> "CacheSettings":
        """Return the settings for the model of one set of input shapes, with a token that differs from other shapes."""
        if self.token is None:
            return self
        shapes = repr([model.main.operands[index].dimensions for index in model.main.inputs])
        token = blake2b(self.token + shapes.encode(), person=b"nnhal shapes", digest_size=TOKEN_SIZE).digest()
        return replace(self, token=token)


def quota() -> int:
    """Return the quota of a cache folder in bytes: NNHAL_CACHE_SIZE in MiB, or 1 GiB."""
    given = os.environ.get("NNHAL_CACHE_SIZE", "")
    if not given:
        return MOST
    if not given.isdecimal():
        raise InvalidArgument(f"NNHAL_CACHE_SIZE is {given!r}, must be a number of MiB")
    return int(given) << 20


def user_folder() -> Path:
    """Return the user's cache folder, which the command line uses: `nnhal/compiled` below XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base), "nnhal", "compiled")


class CacheEntry(Protocol):
    """The cache entry of a partition."""

    def prepare_in(
        self, lane: DeadlineExecutor, device: Device, model: Model, hints: Hints, label: str
    ) -> CacheOutcome:
        """Prepare a partition for its executor. label: of the device."""


class UncachedEntry(Record, frozen=True):
    """No cache. why: the reason in a `CacheOutcome`."""

    why: str = "nothing of it is kept"

    def prepare_in(
        self, lane: DeadlineExecutor, device: Device, model: Model, hints: Hints, label: str
    ) -> CacheOutcome:
        """As in `CacheEntry`."""
        lane.prepared = checked_prepared(device, model, hints, as_is=True)
        return CacheOutcome(label, "off", self.why)


NOT_KEPT = UncachedEntry()


class CompilationCache(Protocol):
    """The cache of one model in compilation."""

    def entry(self, place: str, operations: Sequence[int] | None) -> CacheEntry:
        """Return the entry of a partition. place: in this process or isolated. operations: None for all."""

    def considered(self, device: Device, hints: Hints, place: str, ask: Callable[[], SupportReport]) -> SupportReport:
        """Return a device's answer about the model: the cached one, or else the result of `ask`."""

    def inside(self, model: Model, operation: int, name: str) -> "CompilationCache":
        """Return the cache of a separately compiled subgraph. operation, name: as in `InnerPlan`."""


class NoCache(Record, frozen=True):
    """No cache for a model. why: as in `UncachedEntry`."""

    why: str

    def entry(self, place: str, operations: Sequence[int] | None) -> CacheEntry:
        """As in `CompilationCache`."""
        return UncachedEntry(self.why)

    def considered(self, device: Device, hints: Hints, place: str, ask: Callable[[], SupportReport]) -> SupportReport:
        """As in `CompilationCache`."""
        return ask()

    def inside(self, model: Model, operation: int, name: str) -> "NoCache":
        """As in `CompilationCache`."""
        return self
