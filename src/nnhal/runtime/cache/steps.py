"""Preparing the steps of a model from cache: what was kept, else anew and keep it, else anew.

A fault of the cache, or of the driver while it keeps something, is a reason for the next way, never for failing.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nnhal.base.answers import shown
from nnhal.base.errors import DeadObject, InvalidArgument, MissedDeadline, NnhalError, clipped, told
from nnhal.base.log import logger
from nnhal.base.private import absolute
from nnhal.base.version import __version__
from nnhal.hal.cache.files import TOKEN_SIZE, CacheFiles
from nnhal.hal.device import Device, Hints, cache_files_by, identity_of, prepared_by, restored_by
from nnhal.model.graph import Model
from nnhal.model.parts import outline
from nnhal.model.stored import stored
from nnhal.runtime.cache.folder import Blamed, CacheFolder, Missing, NewEntry
from nnhal.runtime.cache.tokens import token_of
from nnhal.runtime.lanes import Lane

MOST = 1 << 30  # bytes of a folder, where nobody says more or less
_log = logger("compilation")


CacheState = Literal["hit", "miss", "off"]
Folder = str | os.PathLike[str] | Literal[False] | None  # where to keep what is compiled; False: nowhere


class CacheOutcome(NamedTuple):
    """What became of one step's entry in the cache. device: as `placement` names it. reason: why it is no hit."""

    device: str
    state: CacheState
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


@dataclass(frozen=True)
class Caching:
    """What the application wants kept. token: of the model, None where it is to be made. folder: None for nothing, `why`."""

    folder: Path | None = None
    token: bytes | None = None
    most: int = MOST
    why: str = "no cache folder was given"

    @classmethod
    def wanted(cls, folder: "Folder", token: Any) -> "Caching":
        """What `compile` was asked for; NNHAL_CACHE_DIR where it says nothing. InvalidArgument for what cannot be."""
        if not (folder is None or folder is False or (isinstance(folder, str | os.PathLike) and os.fspath(folder))):
            raise InvalidArgument(f"cache_dir is {shown(folder)}, must be the path of a folder")
        if token is not None and not (isinstance(token, bytes) and len(token) == TOKEN_SIZE):
            raise InvalidArgument(f"token is {shown(token)}, must be {TOKEN_SIZE} bytes")
        if folder is False:
            return cls(None, token, why="nothing is to be kept")
        path = os.fsdecode(folder if folder is not None else os.environ.get("NNHAL_CACHE_DIR", ""))
        try:
            return cls(absolute(path) if path else None, token, quota())
        except OSError as error:
            return cls(None, token, why=f"the folder {path} {_why(error)}")


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


class ModelCache:
    """The entries of one model that is being compiled."""

    def __init__(self, caching: Caching, model: Model) -> None:
        self._caching, self._model = caching, model

    @cached_property
    def _folder(self) -> CacheFolder | str:
        """The folder, or why there is none."""
        if self._caching.folder is None:
            return self._caching.why
        try:
            return CacheFolder(self._caching.folder, self._caching.most)
        except OSError as error:
            return f"the folder {self._caching.folder} {_why(error)}"

    @cached_property
    def _token(self) -> bytes:
        assert isinstance(self._folder, CacheFolder)
        if self._caching.token is not None:
            return self._caching.token
        return token_of(self._model, self._folder)

    def prepare_in(
        self, lane: Lane, device: Device, model: Model, hints: Hints, place: str, operations: Sequence[int] | None
    ) -> tuple[CacheState, str]:
        """Prepare one step, for the lane; what became of its entry, and why.

        model: its part in the device's layout. place: in this process or another. operations: which of the whole model it
        has, None for all.
        """
        step = self._step(device, model, hints, place, operations)
        if isinstance(step, str):
            lane.prepared = prepared_by(device, model, hints, as_is=True)
            return "off", step
        try:
            missed = step.restore_in(lane)
        except Blamed as blamed:
            lane.prepared = prepared_by(device, model, hints, as_is=True)
            return "off", str(blamed)
        if not missed:
            return "hit", ""
        _log.info("%s: miss: %s", lane.where, missed)
        lost = step.prepare_in(lane, self._facts(device, model, hints, place))
        return "miss", f"{missed}; {lost}" if lost else missed

    def _step(
        self, device: Device, model: Model, hints: Hints, place: str, operations: Sequence[int] | None
    ) -> "_Step | str":
        """The step, or why nothing of it is kept."""
        folder = self._folder
        if isinstance(folder, str):
            return folder
        count, why = _count(device)
        if why:
            return why
        if any(not pool.mappable for pool in model.pools):
            return "the model has constants in memory that cannot be mapped"
        try:
            seen = outline(model)
            key = _key(self._token, device, hints, place, operations, stored(seen))
            return _Step(folder, device, model, seen, hints, key, count)
        except (TypeError, ValueError) as error:
            return f"the options of the device cannot be written down: {error}"
        except OSError as error:
            return f"the model's token: {_why(error)}"

    def _facts(self, device: Device, model: Model, hints: Hints, place: str) -> dict[str, Any]:
        own = identity_of(device)
        return {
            "model": clipped(self._model.name, 200),
            "operations": len(model.main.operations),
            "of": len(self._model.main.operations),
            "device": own.name,
            "version": own.version,
            "place": place,
            "preference": hints.preference.name,
            "priority": hints.priority.name,
            "token": self._token.hex(),
            "nnhal": __version__,
            "made": int(time.time()),
        }


@dataclass(frozen=True)
class StepEntry:
    """Where one step is kept. cache: None for nowhere. place, operations: as of `ModelCache.prepare_in`."""

    cache: ModelCache | None
    place: str = "none"
    operations: Sequence[int] | None = None

    def prepare_in(self, lane: Lane, device: Device, model: Model, hints: Hints, label: str) -> CacheOutcome:
        """Prepare the step for its lane. label: of the device."""
        if self.cache is None:
            lane.prepared = prepared_by(device, model, hints, as_is=True)
            return CacheOutcome(label, "off", "nothing of it is kept")
        return CacheOutcome(label, *self.cache.prepare_in(lane, device, model, hints, self.place, self.operations))


NOT_KEPT = StepEntry(None)


@dataclass(frozen=True)
class _Step:
    """One step and its entry."""

    folder: CacheFolder
    device: Device
    model: Model
    seen: Model  # from outside
    hints: Hints
    key: bytes
    count: CacheFiles

    @property
    def _name(self) -> str:
        return self.key.hex()

    def restore_in(self, lane: Lane) -> str:
        """Prepare from the entry; why that could not be, "" where it was. Blamed where none is to be made anew either."""
        try:
            files = self.folder.entry(self._name, self.count)
        except Blamed:
            raise
        except Missing as missing:
            return str(missing)
        except OSError as error:
            return f"the entry {_why(error)}"
        try:
            hints = replace(self.hints, cache=files.cache(self.key), worked_out=None)
            lane.prepared = restored_by(self.device, self.seen, hints)
            lane.prepared.model = self.model
        except MissedDeadline:
            if self.hints.deadline is not None:
                raise
            return "the driver did not restore it in time"
        except DeadObject as error:  # the next one would be no better, and too many deaths end the device
            why = f"its driver's process ended when it was restored: {told(error)}"
            with suppress(OSError):
                self.folder.blame(self._name, why)
            raise Blamed(why) from None
        except NnhalError as error:
            name = identity_of(self.device).name
            return told(error).removeprefix(f"device {name}: ")
        finally:
            files.close()
        return ""

    def prepare_in(self, lane: Lane, facts: Mapping[str, Any]) -> str:
        """Prepare anew, and keep it; why it was not kept, "" where it was."""
        try:
            writing = NewEntry(self.folder, self._name, self.count)
        except OSError as error:
            self._plainly_in(lane)
            return f"it cannot be kept: {_why(error)}"
        try:
            return self._saved_in(lane, writing, facts)
        finally:
            writing.close()

    def _saved_in(self, lane: Lane, writing: NewEntry, facts: Mapping[str, Any]) -> str:
        hints = replace(self.hints, cache=writing.files.cache(self.key))
        try:
            lane.prepared = prepared_by(self.device, self.model, hints, as_is=True)
        except (MissedDeadline, InvalidArgument):
            raise
        except NnhalError as error:
            self._plainly_in(lane)
            return f"the driver failed while it was to keep it: {told(error)}"
        try:
            return "" if writing.publish(self.key, dict(facts)) else "the device kept nothing of it"
        except OSError as error:
            return f"it cannot be kept: {_why(error)}"

    def _plainly_in(self, lane: Lane) -> None:
        lane.prepared = prepared_by(self.device, self.model, self.hints, as_is=True)


def _count(device: Device) -> tuple[CacheFiles, str]:
    """How many files the device wants; or why it gets none."""
    try:
        count = cache_files_by(device)
    except NnhalError as error:
        return CacheFiles(), f"the driver failed to say how many files it keeps: {told(error)}"
    return count, "" if count else "the device keeps none"


def _key(
    token: bytes, device: Device, hints: Hints, place: str, operations: Sequence[int] | None, seen: bytes
) -> bytes:
    """What an entry is found by. seen: the outline of the step."""
    own, hints = identity_of(device), device.told(hints)
    facts = [
        seen.hex(),
        *(token.hex(), own.name, own.version, str(own.level), place, own.preferred_layout),
        *(int(hints.preference), int(hints.priority), hints.threads, dict(hints.options)),
        None if operations is None else list(operations),
    ]
    return blake2b(json.dumps(facts, sort_keys=True).encode(), person=b"nnhal key", digest_size=TOKEN_SIZE).digest()


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower() if error.errno else str(error.strerror)
