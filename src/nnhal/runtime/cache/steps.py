"""Preparing the steps of a model from cache: what was kept, else anew and keep it, else anew.

A fault of the cache, or of the driver while it keeps something, is a reason for the next way, never for failing.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nnhal.base.answers import shown
from nnhal.base.errors import InvalidArgument, MissedDeadline, NnhalError, told
from nnhal.base.log import logger
from nnhal.hal.cache.files import TOKEN_SIZE, CacheFiles
from nnhal.hal.device import Device, Hints, Prepared, cache_files_by, identity_of, prepared_by, restored_by
from nnhal.model.graph import Model
from nnhal.model.parts import outline
from nnhal.runtime.cache.folder import CacheFolder, Missing, Writing
from nnhal.runtime.cache.tokens import token_of

MOST = 1 << 30  # bytes of a folder, where nobody says more or less
_log = logger("compilation")


class CacheOutcome(NamedTuple):
    """What became of one step's entry in the cache. device: as `placement` names it. reason: why it is no hit."""

    device: str
    state: Literal["hit", "miss", "off"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


@dataclass(frozen=True)
class Caching:
    """What the application wants kept. folder: None for nothing. token: of the model, None where it is to be made."""

    folder: Path | None = None
    token: bytes | None = None
    most: int = MOST

    @classmethod
    def wanted(cls, folder: "str | os.PathLike[str] | None", token: Any) -> "Caching":
        """What `compile` was asked for; NNHAL_CACHE_DIR where it says nothing. InvalidArgument for what cannot be."""
        if folder is not None and not (isinstance(folder, str | os.PathLike) and os.fspath(folder)):
            raise InvalidArgument(f"cache_dir is {shown(folder)}, must be the path of a folder")
        if token is not None and not (isinstance(token, bytes) and len(token) == TOKEN_SIZE):
            raise InvalidArgument(f"token is {shown(token)}, must be {TOKEN_SIZE} bytes")
        path = os.fspath(folder) if folder is not None else os.environ.get("NNHAL_CACHE_DIR", "")
        return cls(Path(os.fsdecode(path)).absolute() if path else None, token, quota())


def quota() -> int:
    """Bytes that a cache folder may hold: NNHAL_CACHE_SIZE in MiB, or 1 GiB."""
    given = os.environ.get("NNHAL_CACHE_SIZE", "")
    if not given:
        return MOST
    if not given.isdecimal():
        raise InvalidArgument(f"NNHAL_CACHE_SIZE is {given!r}, must be a number of MiB")
    return int(given) << 20


def user_folder() -> Path:
    """The user's own folder for caches, which the command line uses: `nnhal` below XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "nnhal"


class ModelCache:
    """The entries of one model that is being compiled."""

    def __init__(self, caching: Caching, model: Model) -> None:
        self._caching, self._model = caching, model

    @cached_property
    def _folder(self) -> CacheFolder | str:
        """The folder, or why there is none."""
        if self._caching.folder is None:
            return "no cache folder was given"
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

    def prepare(
        self, device: Device, model: Model, hints: Hints, label: str, place: str, operations: Sequence[int] | None
    ) -> tuple[Prepared, CacheOutcome]:
        """Prepare one step. model: its part in the device's layout. place: in this process or another. operations: which of
        the whole model it has, None for all.
        """
        folder = self._folder
        if isinstance(folder, str):
            return prepared_by(device, model, hints, as_is=True), CacheOutcome(label, "off", folder)
        count, why = _count(device)
        if why or any(not pool.mappable for pool in model.pools):
            why = why or "the model has constants in memory that cannot be mapped"
            return prepared_by(device, model, hints, as_is=True), CacheOutcome(label, "off", why)
        try:
            key = _key(self._token, device, hints, place, operations)
        except (TypeError, ValueError) as error:
            why = f"the options of the device cannot be written down: {error}"
            return prepared_by(device, model, hints, as_is=True), CacheOutcome(label, "off", why)
        except OSError as error:
            why = f"the model's token: {_why(error)}"
            return prepared_by(device, model, hints, as_is=True), CacheOutcome(label, "off", why)
        step = _Step(folder, device, model, hints, key, count)
        prepared, why = step.restored()
        if prepared is not None:
            return prepared, CacheOutcome(label, "hit")
        _log.info("device %s: miss: %s", label, why)
        prepared, kept = step.prepared(self._facts(device, model, hints, place))
        return prepared, CacheOutcome(label, "miss", "; ".join(filter(None, (why, kept))))

    def _facts(self, device: Device, model: Model, hints: Hints, place: str) -> dict[str, Any]:
        own = identity_of(device)
        return {
            "model": self._model.name,
            "operations": len(model.main.operations),
            "of": len(self._model.main.operations),
            "device": own.name,
            "version": own.version,
            "place": place,
            "preference": hints.preference.name,
            "priority": hints.priority.name,
            "token": self._token.hex(),
            "nnhal": version("nnhal"),
        }


@dataclass(frozen=True)
class Entry:
    """Where one step is kept. cache: None for nowhere. place, operations: as of `ModelCache.prepare`."""

    cache: ModelCache | None
    place: str = "none"
    operations: Sequence[int] | None = None

    def prepare(self, device: Device, model: Model, hints: Hints, label: str) -> tuple[Prepared, CacheOutcome]:
        """Prepare the step."""
        if self.cache is None:
            return prepared_by(device, model, hints, as_is=True), CacheOutcome(label, "off", "")
        return self.cache.prepare(device, model, hints, label, self.place, self.operations)


NO_ENTRY = Entry(None)


@dataclass(frozen=True)
class _Step:
    """One step and its entry."""

    folder: CacheFolder
    device: Device
    model: Model
    hints: Hints
    key: bytes
    count: CacheFiles

    @property
    def _name(self) -> str:
        return self.key.hex()

    def restored(self) -> tuple[Prepared | None, str]:
        """What was prepared from the entry; or None, and why not."""
        try:
            files = self.folder.entry(self._name, self.count)
        except Missing as missing:
            return None, str(missing)
        except OSError as error:
            return None, f"the entry {_why(error)}"
        try:
            hints = replace(self.hints, cache=files.cache(self.key), worked_out=None)
            prepared = restored_by(self.device, outline(self.model), hints)
            prepared.model = self.model
            return prepared, ""
        except MissedDeadline:
            if self.hints.deadline is not None:
                raise
            return None, "the driver did not restore it in time"
        except NnhalError as error:
            where = f"device {identity_of(self.device).name}: "
            return None, told(error).replace(where, "").removeprefix("prepare_from_cache() raised Damaged: ")
        finally:
            files.close()

    def prepared(self, facts: Mapping[str, Any]) -> tuple[Prepared, str]:
        """What is prepared anew; and why it was not kept, "" where it was."""
        try:
            writing = Writing(self.folder, self._name, self.count)
        except OSError as error:
            return self._plainly(), f"it cannot be kept: {_why(error)}"
        try:
            prepared = prepared_by(
                self.device, self.model, replace(self.hints, cache=writing.files.cache(self.key)), as_is=True
            )
        except BaseException as error:
            with suppress(OSError):
                writing.discard()
            own = not isinstance(error, NnhalError) or isinstance(error, MissedDeadline | InvalidArgument)
            if own:
                raise
            return self._plainly(), f"the driver failed while it was to keep it: {told(error)}"
        try:
            kept = writing.publish(self.key, dict(facts))
        except OSError as error:
            return prepared, f"it cannot be kept: {_why(error)}"
        except BaseException:
            prepared.close()
            raise
        finally:
            writing.files.close()
        return prepared, "" if kept else "the device kept nothing of it"

    def _plainly(self) -> Prepared:
        return prepared_by(self.device, self.model, self.hints, as_is=True)


def _count(device: Device) -> tuple[CacheFiles, str]:
    """How many files the device wants; or why it gets none."""
    try:
        count = cache_files_by(device)
    except NnhalError as error:
        return CacheFiles(), f"the driver failed to say how many files it keeps: {told(error)}"
    return count, "" if count else "the device keeps none"


def _key(token: bytes, device: Device, hints: Hints, place: str, operations: Sequence[int] | None) -> bytes:
    own, hints = identity_of(device), device.told(hints)
    facts = [
        *(token.hex(), own.name, own.version, str(own.level), place, own.preferred_layout),
        *(int(hints.preference), int(hints.priority), hints.threads, dict(hints.options)),
        None if operations is None else list(operations),
    ]
    return blake2b(json.dumps(facts, sort_keys=True).encode(), person=b"nnhal key", digest_size=TOKEN_SIZE).digest()


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower() if error.errno else str(error.strerror)
