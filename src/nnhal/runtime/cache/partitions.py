"""Prepares partitions from the cache, or else prepares and caches them, or else only prepares them.

A fault of the cache, or of the driver while it saves, leads to the next way, and never to an error.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnhal.base.codes import FOREIGN_OPERATIONS
from nnhal.base.digests import blake2b
from nnhal.base.errors import DeadObject, InvalidArgument, MissedDeadline, NnhalError, bounded_text, error_text
from nnhal.base.lazy import cached_property
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.records import Record, replace
from nnhal.base.version import __version__
from nnhal.hal.answers import cache_files_by
from nnhal.hal.cache.files import TOKEN_SIZE, Cache, CacheFiles, os_reason
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import SupportReport
from nnhal.hal.code import code_of_functions
from nnhal.hal.device import Device, Hints, cache_record_identity, code_by, identity_of
from nnhal.model.graph import Model
from nnhal.model.parts import outline
from nnhal.model.stored import pack_device_view
from nnhal.ops.schema import OPS
from nnhal.runtime.cache.folder import CacheFolder, OpenFiles
from nnhal.runtime.cache.making import EntryBeingWritten, NewEntry, NothingCached
from nnhal.runtime.cache.manifest import EntryBlocked, NoEntry
from nnhal.runtime.cache.runtime_entries import IMPORTED, RuntimeEntries, cached_import, cached_support
from nnhal.runtime.cache.tokens import token_of
from nnhal.runtime.cache.wanted import CacheOutcome, CacheSettings, CacheState
from nnhal.runtime.deadline_executor import DeadlineExecutor

_log = logger("compilation")


def import_with_cache(
    folder: Path,
    most: int,
    label: str,
    memory: Memory,
    asked: Sequence[Any],
    read: Callable[[], Model],
    beside: str | None = None,
) -> tuple[Model, CacheOutcome]:
    """Return the model of an open file: the cached one, or else a newly imported and cached one.

    most: bytes. asked, read, beside: as in `imported`.
    """
    try:
        there = CacheFolder(folder, most)
    except OSError as error:
        return read(), CacheOutcome("model", "off", f"the folder {folder} {os_reason(error)}")
    return cached_import(label, memory, asked, there, read, beside)


class ModelCache:
    """The cache entries of one model in compilation. of: those of the model that contains it as a subgraph, and its role."""

    def __init__(self, caching: CacheSettings, model: Model, of: "tuple[ModelCache, int, str] | None" = None) -> None:
        self._caching, self._model, self._of = caching, model, of

    @cached_property
    def _folder(self) -> CacheFolder | str:
        """Return the folder, or why there is none."""
        if self._caching.folder is None:
            return self._caching.why
        try:
            return CacheFolder(self._caching.folder, self._caching.most)
        except OSError as error:
            return f"the folder {self._caching.folder} {os_reason(error)}"

    @cached_property
    def _token(self) -> bytes:
        assert isinstance(self._folder, CacheFolder)
        if self._of is not None:
            whole, operation, name = self._of
            which = json.dumps([whole._token.hex(), operation, name])
            return blake2b(which.encode(), person=b"nnhal branch", digest_size=TOKEN_SIZE).digest()
        if self._caching.token is not None:
            return self._caching.token
        return token_of(self._model, self._folder)

    def entry(self, place: str, operations: Sequence[int] | None) -> "StepEntry":
        """As in `Keeping`."""
        return StepEntry(self, place, operations)

    def inside(self, model: Model, operation: int, name: str) -> "ModelCache":
        """As in `Keeping`."""
        return ModelCache(self._caching, model, (self, operation, name))

    def considered(self, device: Device, hints: Hints, place: str, ask: Callable[[], SupportReport]) -> SupportReport:
        """As in `Keeping`: an in-process driver with a cache is asked once about a file's model."""
        folder = self._folder
        if IMPORTED not in self._model._memo or isinstance(folder, str) or place != "none":
            return ask()
        if device.asked_again or code_by(device).unknown or _count(device)[1]:
            return ask()
        try:
            facts = [self._token.hex(), *_facts(device, hints)]
            json.dumps(facts)
        except (OSError, TypeError, ValueError):
            return ask()
        return cached_support(device, self._model, facts, RuntimeEntries(folder), ask)

    def prepare_in(
        self,
        lane: DeadlineExecutor,
        device: Device,
        model: Model,
        hints: Hints,
        place: str,
        operations: Sequence[int] | None,
    ) -> tuple[CacheState, str]:
        """Prepare one partition, and return the outcome of its entry, with the reason.

        lane: receives the prepared model. model: the partition in the device's layout. place: "none" or isolated.
        operations: the partition's, in the whole model; None for all.
        """
        step = self._step(device, model, hints, place, operations)
        if isinstance(step, str):
            lane.prepared = checked_prepared(device, model, hints, as_is=True)
            return "off", step
        try:
            missed, unwritten = step.restore_in(lane)
        except EntryBlocked as blamed:
            lane.prepared = checked_prepared(device, model, hints, as_is=True)
            return "off", str(blamed)
        if not missed:
            return "hit", ""
        _log.info("%s: miss: %s", lane.where, missed)
        lost = step.prepare_in(lane, self._facts(device, hints, place, operations), unwritten)
        return "miss", f"{missed}; {lost}" if lost else missed

    def _step(
        self, device: Device, model: Model, hints: Hints, place: str, operations: Sequence[int] | None
    ) -> "_Step | str":
        """Return the partition's cache access, or why it is not cached."""
        folder = self._folder
        if isinstance(folder, str):
            return folder
        count, why = _count(device)
        if why:
            return why
        if unknown := code_by(device).unknown:
            return unknown
        if any(not pool.mappable for pool in model.pools):
            return "the model has constants in memory that cannot be mapped"
        kernels = code_of_functions(_registered(model))
        if kernels.unknown:
            return kernels.unknown
        try:
            seen = outline(model)
            key = _key(self._token, device, hints, place, operations, pack_device_view(seen) + kernels.digest)
            return _Step(folder, device, model, seen, hints, key, count)
        except (TypeError, ValueError) as error:
            return f"the options of the device cannot be written down: {error}"
        except OSError as error:
            return f"the model's token: {os_reason(error)}"

    def _facts(self, device: Device, hints: Hints, place: str, operations: Sequence[int] | None) -> dict[str, Any]:
        own, whole = identity_of(device), len(self._model.main.operations)
        return {
            "model": bounded_text(self._model.name, 200),
            "operations": whole if operations is None else len(operations),  # without transposes for a layout
            "of": whole,
            "device": own.name,
            "version": own.version,
            "place": place,
            "preference": hints.preference.name,
            "priority": hints.priority.name,
            "token": self._token.hex(),
            "nnhal": __version__,
            "made": int(time.time()),
        }


class StepEntry(Record, frozen=True):
    """The cache entry of one partition. place, operations: as in `ModelCache.prepare_in`."""

    cache: ModelCache
    place: str = "none"
    operations: Sequence[int] | None = None

    def prepare_in(
        self, lane: DeadlineExecutor, device: Device, model: Model, hints: Hints, label: str
    ) -> CacheOutcome:
        """As in `CacheEntry`."""
        return CacheOutcome(label, *self.cache.prepare_in(lane, device, model, hints, self.place, self.operations))


class _Step(Record, frozen=True):
    """One partition and its entry."""

    folder: CacheFolder
    device: Device
    model: Model
    seen: Model  # inputs and outputs only
    hints: Hints
    key: bytes
    count: CacheFiles

    @property
    def _name(self) -> str:
        return self.key.hex()

    def restore_in(self, lane: DeadlineExecutor) -> tuple[str, EntryBeingWritten | None]:
        """Prepare from the entry; return why that failed, or "". EntryBlocked if it may not be replaced either.

        The second result is the entry, if its driver has yet to fill it, for `prepare_in`.
        """
        try:
            files = self.folder.entry(self._name, self.count)
        except EntryBlocked:
            raise
        except NoEntry as missing:
            return str(missing), None
        except OSError as error:
            return f"the entry cannot be opened: {os_reason(error)}", None
        cache = files.cache(self.key)
        try:
            if cache.unwritten:
                unwritten = EntryBeingWritten(files) if files.writable else None
                return "its driver has not written the entry", unwritten
        except OSError as error:
            return f"the entry {os_reason(error)}", None
        return self._restored_in(lane, files, cache), None

    def _restored_in(self, lane: DeadlineExecutor, files: OpenFiles, cache: Cache) -> str:
        try:
            hints = replace(self.hints, cache=cache, worked_out=None)
            lane.prepared = checked_prepared(self.device, self.seen, hints, restore=True)
            lane.prepared.model = self.model
        except MissedDeadline:
            if self.hints.deadline is not None:
                raise
            return "the driver did not restore it in time"
        except DeadObject as error:  # the next one would be no better, and too many deaths end the device
            why = f"its driver's process ended when it was restored: {error_text(error)}"
            with suppress(OSError):
                self.folder.record_death(self._name, why)
            raise EntryBlocked(why) from None
        except OSError as error:
            return f"the entry {os_reason(error)}"
        except NnhalError as error:
            name = identity_of(self.device).name
            return error_text(error).removeprefix(f"device {name}: ")
        finally:
            files.close()
        if files.deaths:
            with suppress(OSError):
                self.folder.clear_deaths(self._name)
        return ""

    def prepare_in(self, lane: DeadlineExecutor, facts: Mapping[str, Any], unwritten: EntryBeingWritten | None) -> str:
        """Prepare and cache; return why it was not cached, or "". unwritten: the existing entry to fill, if any."""
        try:
            writing = unwritten or NewEntry(self.folder, self._name, self.count)
        except OSError as error:
            self._plainly_in(lane)
            return f"it cannot be kept: {os_reason(error)}"
        try:
            return self._saved_in(lane, writing, facts)
        finally:
            writing.close()

    def _saved_in(self, lane: DeadlineExecutor, writing: NewEntry | EntryBeingWritten, facts: Mapping[str, Any]) -> str:
        cache = writing.files.cache(self.key)
        try:
            hints = replace(self.hints, cache=cache)
            lane.prepared = checked_prepared(self.device, self.model, hints, as_is=True)
        except (MissedDeadline, InvalidArgument):
            raise
        except NnhalError as error:
            self._plainly_in(lane)
            return f"the driver failed while it was to keep it: {error_text(error)}"
        try:
            writing.publish(self.key, dict(facts), unwritten=lane.prepared.writes_later)
            return "its driver may write the entry later" if cache.unwritten else ""
        except NothingCached as error:
            return str(error)
        except OSError as error:
            return f"it cannot be kept: {os_reason(error)}"

    def _plainly_in(self, lane: DeadlineExecutor) -> None:
        lane.prepared = checked_prepared(self.device, self.model, self.hints, as_is=True)


def _count(device: Device) -> tuple[CacheFiles, str]:
    """Return how many files the device requests, or why it gets none."""
    try:
        count = cache_files_by(device)
    except NnhalError as error:
        return CacheFiles(), f"the driver failed to report its number of cache files: {error_text(error)}"
    return count, "" if count else "the device keeps none"


def _registered(model: Model) -> list[Callable[..., Any]]:
    """Return the application's kernels for the extensions of a model: a driver may use them."""
    foreign = {
        o.type for graph in (model.main, *model.referenced) for o in graph.operations
    } & FOREIGN_OPERATIONS.keys()
    records = (OPS.get(FOREIGN_OPERATIONS[code]) for code in sorted(foreign))
    return [record.kernel for record in records if record is not None]


def _key(
    token: bytes, device: Device, hints: Hints, place: str, operations: Sequence[int] | None, seen: bytes
) -> bytes:
    """Return the key of an entry. seen: the outline of the partition, and the code of its registered kernels."""
    which = None if operations is None else list(operations)
    facts = [seen.hex(), token.hex(), place, which, *_facts(device, hints)]
    return blake2b(json.dumps(facts, sort_keys=True).encode(), person=b"nnhal key", digest_size=TOKEN_SIZE).digest()


def _facts(device: Device, hints: Hints) -> list[Any]:
    """Return the attributes of a device and its hints that make compilations differ."""
    own, hints = identity_of(device), device.effective_hints(hints)
    _check_keys(hints.options)
    said = int(hints.preference), int(hints.priority), hints.threads, dict(hints.options)
    return [cache_record_identity(device)[1].hex(), own.name, own.version, str(own.level), own.preferred_layout, *said]


def _check_keys(given: Any) -> None:
    """Raise TypeError if JSON would confuse different options: its keys are texts."""
    for key in given if isinstance(given, Mapping) else ():
        if not isinstance(key, str):
            raise TypeError(f"key {key!r} is not a text")
    for each in given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else ():
        _check_keys(each)
