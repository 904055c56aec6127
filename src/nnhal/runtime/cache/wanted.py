"""What an application wants kept of a compilation, and what became of that."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from nnhal.base.answers import shown
from nnhal.base.digests import blake2b
from nnhal.base.errors import InvalidArgument
from nnhal.base.private import absolute
from nnhal.base.records import Record, replace
from nnhal.hal.cache.files import TOKEN_SIZE, why_of
from nnhal.hal.claims import Claims
from nnhal.hal.device import Device, Hints, prepared_by
from nnhal.model.graph import Model
from nnhal.runtime.lanes import Lane

MOST = 1 << 30  # bytes of a folder, where nobody says more or less

CacheState = Literal["hit", "miss", "off"]
Folder = str | os.PathLike[str] | Literal[False] | None  # where to keep what is compiled; False: nowhere


class CacheOutcome(NamedTuple):
    """What became of one step's entry in the cache. device: as `placement` names it. reason: why it is no hit."""

    device: str
    state: CacheState
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


class Caching(Record, frozen=True):
    """What the application wants kept. token: of the model, None where it is to be made. folder: None for nothing, `why`."""

    folder: Path | None = None
    token: bytes | None = None
    most: int = MOST
    why: str = "no cache folder was given"

    @classmethod
    def wanted(cls, folder: Folder, token: Any) -> "Caching":
        """What `compile` was asked for; NNHAL_CACHE_DIR where it says nothing. InvalidArgument for what cannot be."""
        path = os.fsdecode(folder) if isinstance(folder, str | os.PathLike) else ""
        if not (folder is None or folder is False or path) or "\0" in path:
            raise InvalidArgument(f"cache_dir is {shown(folder)}, must be the path of a folder")
        if token is not None and not (isinstance(token, bytes) and len(token) == TOKEN_SIZE):
            raise InvalidArgument(f"token is {shown(token)}, must be {TOKEN_SIZE} bytes")
        if folder is False:
            return cls(None, token, why="nothing is to be kept")
        if folder is None:
            path = os.environ.get("NNHAL_CACHE_DIR", "")
        try:
            return cls(absolute(path) if path else None, token, quota())
        except OSError as error:
            return cls(None, token, why=f"the folder {path} {why_of(error)}")

    def for_shapes(self, model: Model) -> "Caching":
        """The same for the model of one set of input shapes: it needs a token apart from that of other shapes."""
        if self.token is None:
            return self
        shapes = repr([model.main.operands[index].dimensions for index in model.main.inputs])
        token = blake2b(self.token + shapes.encode(), person=b"nnhal shapes", digest_size=TOKEN_SIZE).digest()
        return replace(self, token=token)


def quota() -> int:
    """Bytes that a cache folder may hold: NNHAL_CACHE_SIZE in MiB, or 1 GiB."""
    given = os.environ.get("NNHAL_CACHE_SIZE", "")
    if not given:
        return MOST
    if not given.isdecimal():
        raise InvalidArgument(f"NNHAL_CACHE_SIZE is {given!r}, must be a number of MiB")
    return int(given) << 20


def user_folder() -> Path:
    """The user's own folder for compilations, that of the command line: `nnhal/compiled` below XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base), "nnhal", "compiled")


class CacheEntry(Protocol):
    """Where what is prepared may be kept."""

    def prepare_in(self, lane: Lane, device: Device, model: Model, hints: Hints, label: str) -> CacheOutcome:
        """Prepare a step for its lane. label: of the device."""


class NotKept(Record, frozen=True):
    """Nothing is kept. why: in the words of a `CacheOutcome`."""

    why: str = "nothing of it is kept"

    def prepare_in(self, lane: Lane, device: Device, model: Model, hints: Hints, label: str) -> CacheOutcome:
        """As of `CacheEntry`."""
        lane.prepared = prepared_by(device, model, hints, as_is=True)
        return CacheOutcome(label, "off", self.why)


NOT_KEPT = NotKept()


class Keeping(Protocol):
    """What is kept of one model that is being compiled."""

    def entry(self, place: str, operations: Sequence[int] | None) -> CacheEntry:
        """Where a step is kept. place: in this process or another. operations: which of the model it has, None for all."""

    def considered(self, device: Device, hints: Hints, place: str, ask: Callable[[], Claims]) -> Claims:
        """What a device says of the model: as it is known, else asked."""

    def inside(self, model: Model, operation: int, name: str) -> "Keeping":
        """What is kept of a subgraph, as a model, that is compiled by itself. operation, name: as of `Inside`."""


class KeepsNothing(Record, frozen=True):
    """Nothing is kept of a model. why: as of `NotKept`."""

    why: str

    def entry(self, place: str, operations: Sequence[int] | None) -> CacheEntry:
        """As of `Keeping`."""
        return NotKept(self.why)

    def considered(self, device: Device, hints: Hints, place: str, ask: Callable[[], Claims]) -> Claims:
        """As of `Keeping`."""
        return ask()

    def inside(self, model: Model, operation: int, name: str) -> "KeepsNothing":
        """As of `Keeping`."""
        return self
