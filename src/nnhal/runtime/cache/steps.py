"""Preparing the steps of a model from cache: what was kept, else anew and keep it, else anew.

A fault of the cache, or of the driver while it keeps something, is a reason for the next way, never for failing.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnhal.base.codes import FOREIGN_OPERATIONS
from nnhal.base.digests import blake2b
from nnhal.base.errors import DeadObject, InvalidArgument, MissedDeadline, NnhalError, clipped, told
from nnhal.base.kept import kept
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.records import Record, replace
from nnhal.base.version import __version__
from nnhal.hal.cache.files import TOKEN_SIZE, Cache, CacheFiles, why_of
from nnhal.hal.claims import Claims
from nnhal.hal.code import code_of_functions
from nnhal.hal.device import (
    Device,
    Hints,
    cache_files_by,
    code_by,
    identity_of,
    prepared_by,
    restored_by,
    traits_of,
    written_by,
)
from nnhal.model.graph import Model
from nnhal.model.parts import outline
from nnhal.model.stored import stored
from nnhal.ops.schema import OPS
from nnhal.runtime.cache.folder import CacheFolder, OpenFiles
from nnhal.runtime.cache.making import NewEntry, NothingSaved, UnwrittenEntry
from nnhal.runtime.cache.manifest import Blamed, Missing
from nnhal.runtime.cache.own import IMPORTED, OwnEntries, considered, imported
from nnhal.runtime.cache.tokens import token_of
from nnhal.runtime.cache.wanted import CacheOutcome, CacheState, Caching
from nnhal.runtime.lanes import Lane

_log = logger("compilation")


def imported_in(
    folder: Path,
    most: int,
    label: str,
    memory: Memory,
    asked: Sequence[Any],
    read: Callable[[], Model],
    beside: str | None = None,
) -> tuple[Model, CacheOutcome]:
    """The model of a file that is open: as it was kept, else read and kept.

    most: bytes. asked, read, beside: as of `imported`.
    """
    try:
        there = CacheFolder(folder, most)
    except OSError as error:
        return read(), CacheOutcome("model", "off", f"the folder {folder} {why_of(error)}")
    return imported(label, memory, asked, there, read, beside)


class ModelCache:
    """The entries of one model that is being compiled. of: those of the model that it is a subgraph of, and which it is."""

    def __init__(self, caching: Caching, model: Model, of: "tuple[ModelCache, int, str] | None" = None) -> None:
        self._caching, self._model, self._of = caching, model, of

    @kept
    def _folder(self) -> CacheFolder | str:
        """The folder, or why there is none."""
        if self._caching.folder is None:
            return self._caching.why
        try:
            return CacheFolder(self._caching.folder, self._caching.most)
        except OSError as error:
            return f"the folder {self._caching.folder} {why_of(error)}"

    @kept
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
        """As of `Keeping`."""
        return StepEntry(self, place, operations)

    def inside(self, model: Model, operation: int, name: str) -> "ModelCache":
        """As of `Keeping`."""
        return ModelCache(self._caching, model, (self, operation, name))

    def considered(self, device: Device, hints: Hints, place: str, ask: Callable[[], Claims]) -> Claims:
        """As of `Keeping`: a driver in this process that keeps compilations is asked once about a file's model."""
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
        return considered(device, self._model, facts, OwnEntries(folder), ask)

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
            missed, unwritten = step.restore_in(lane)
        except Blamed as blamed:
            lane.prepared = prepared_by(device, model, hints, as_is=True)
            return "off", str(blamed)
        if not missed:
            return "hit", ""
        _log.info("%s: miss: %s", lane.where, missed)
        lost = step.prepare_in(lane, self._facts(device, model, hints, place), unwritten)
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
        if unknown := code_by(device).unknown:
            return unknown
        if any(not pool.mappable for pool in model.pools):
            return "the model has constants in memory that cannot be mapped"
        kernels = code_of_functions(_registered(model))
        if kernels.unknown:
            return kernels.unknown
        try:
            seen = outline(model)
            key = _key(self._token, device, hints, place, operations, stored(seen) + kernels.digest)
            return _Step(folder, device, model, seen, hints, key, count)
        except (TypeError, ValueError) as error:
            return f"the options of the device cannot be written down: {error}"
        except OSError as error:
            return f"the model's token: {why_of(error)}"

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


class StepEntry(Record, frozen=True):
    """Where one step is kept. place, operations: as of `ModelCache.prepare_in`."""

    cache: ModelCache
    place: str = "none"
    operations: Sequence[int] | None = None

    def prepare_in(self, lane: Lane, device: Device, model: Model, hints: Hints, label: str) -> CacheOutcome:
        """As of `CacheEntry`."""
        return CacheOutcome(label, *self.cache.prepare_in(lane, device, model, hints, self.place, self.operations))


class _Step(Record, frozen=True):
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

    def restore_in(self, lane: Lane) -> tuple[str, UnwrittenEntry | None]:
        """Prepare from the entry; why that could not be, "" where it was. Blamed where none is to be made anew either.

        The entry where its driver is still to write it, for `prepare_in`.
        """
        try:
            files = self.folder.entry(self._name, self.count)
        except Blamed:
            raise
        except Missing as missing:
            return str(missing), None
        except OSError as error:
            return f"the entry cannot be opened: {why_of(error)}", None
        cache = files.cache(self.key)
        try:
            if cache.unwritten:
                unwritten = UnwrittenEntry(files) if files.writable else None
                return "its driver has not written the entry", unwritten
        except OSError as error:
            return f"the entry {why_of(error)}", None
        return self._restored_in(lane, files, cache), None

    def _restored_in(self, lane: Lane, files: OpenFiles, cache: Cache) -> str:
        try:
            hints = replace(self.hints, cache=cache, worked_out=None)
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
        except OSError as error:
            return f"the entry {why_of(error)}"
        except NnhalError as error:
            name = identity_of(self.device).name
            return told(error).removeprefix(f"device {name}: ")
        finally:
            files.close()
        if files.deaths:
            with suppress(OSError):
                self.folder.absolve(self._name)
        return ""

    def prepare_in(self, lane: Lane, facts: Mapping[str, Any], unwritten: UnwrittenEntry | None) -> str:
        """Prepare anew, and keep it; why it was not kept, "" where it was. unwritten: the entry to keep it in, if any."""
        try:
            writing = unwritten or NewEntry(self.folder, self._name, self.count)
        except OSError as error:
            self._plainly_in(lane)
            return f"it cannot be kept: {why_of(error)}"
        try:
            return self._saved_in(lane, writing, facts)
        finally:
            writing.close()

    def _saved_in(self, lane: Lane, writing: NewEntry | UnwrittenEntry, facts: Mapping[str, Any]) -> str:
        cache = writing.files.cache(self.key)
        try:
            hints = replace(self.hints, cache=cache)
            lane.prepared = prepared_by(self.device, self.model, hints, as_is=True)
        except (MissedDeadline, InvalidArgument):
            raise
        except NnhalError as error:
            self._plainly_in(lane)
            return f"the driver failed while it was to keep it: {told(error)}"
        try:
            writing.publish(self.key, dict(facts), unwritten=traits_of(lane.prepared).writes_later)
            return "its driver may write the entry later" if cache.unwritten else ""
        except NothingSaved as error:
            return str(error)
        except OSError as error:
            return f"it cannot be kept: {why_of(error)}"

    def _plainly_in(self, lane: Lane) -> None:
        lane.prepared = prepared_by(self.device, self.model, self.hints, as_is=True)


def _count(device: Device) -> tuple[CacheFiles, str]:
    """How many files the device wants; or why it gets none."""
    try:
        count = cache_files_by(device)
    except NnhalError as error:
        return CacheFiles(), f"the driver failed to say how many files it keeps: {told(error)}"
    return count, "" if count else "the device keeps none"


def _registered(model: Model) -> list[Callable[..., Any]]:
    """What the application registered as kernels of extensions that a model uses: a driver may compute with them."""
    foreign = {
        o.type for graph in (model.main, *model.referenced) for o in graph.operations
    } & FOREIGN_OPERATIONS.keys()
    records = (OPS.get(FOREIGN_OPERATIONS[code]) for code in sorted(foreign))
    return [record.kernel for record in records if record is not None]


def _key(
    token: bytes, device: Device, hints: Hints, place: str, operations: Sequence[int] | None, seen: bytes
) -> bytes:
    """What an entry is found by. seen: the outline of the step, and the code of kernels that it may be computed by."""
    which = None if operations is None else list(operations)
    facts = [seen.hex(), token.hex(), place, which, *_facts(device, hints)]
    return blake2b(json.dumps(facts, sort_keys=True).encode(), person=b"nnhal key", digest_size=TOKEN_SIZE).digest()


def _facts(device: Device, hints: Hints) -> list[Any]:
    """What of a device and of what it is told compilations differ by."""
    own, hints = identity_of(device), device.told(hints)
    _check_keys(hints.options)
    said = int(hints.preference), int(hints.priority), hints.threads, dict(hints.options)
    return [written_by(device)[1].hex(), own.name, own.version, str(own.level), own.preferred_layout, *said]


def _check_keys(given: Any) -> None:
    """TypeError where JSON would make the same of different options: its keys are texts."""
    for key in given if isinstance(given, Mapping) else ():
        if not isinstance(key, str):
            raise TypeError(f"key {key!r} is no text")
    for each in given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else ():
        _check_keys(each)
