"""The runtime's cache entries: its work on a model, cached like that of devices.

There are two kinds: an imported model, so that a start reads no file format and binds no operation; and a device's
answer about a model, so that it need not be asked. They have the same keys, integrity, quota and error handling as
device entries: a fault of the cache causes the work to be repeated, and never an error.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from nnhal.base.custom_operators import CUSTOM_OPERATORS
from nnhal.base.digests import blake2b
from nnhal.base.errors import NnhalError, bounded_text, error_text
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.records import Record
from nnhal.base.sealed import sealed
from nnhal.base.version import __version__
from nnhal.frontends.external_data import BESIDE, read_beside
from nnhal.frontends.source import TrailingArchive
from nnhal.hal.cache.files import CacheContent, CacheFiles, os_reason
from nnhal.hal.cache.keeper import identity, load_content, store_content
from nnhal.hal.claims import SupportReport
from nnhal.hal.code import code_of_nnhal
from nnhal.hal.device import Device, OperationGroup, Verdict, identity_of
from nnhal.model.graph import Model
from nnhal.model.stored import pack_model, unpack_model
from nnhal.runtime.cache.folder import CacheFolder
from nnhal.runtime.cache.making import NewEntry, NothingCached
from nnhal.runtime.cache.manifest import NoEntry
from nnhal.runtime.cache.tokens import digest_of
from nnhal.runtime.cache.wanted import CacheOutcome

OWN = "nnhal runtime"  # in place of a device
IMPORTED = "imported"  # memo of a model whose import is cached
MOST_FILES = 250  # of one model whose import is cached
_ONE = CacheFiles(1, 0)
_log = logger("compilation")


class RuntimeEntries(Record, frozen=True):
    """The runtime's entries in one folder."""

    folder: CacheFolder

    def found(self, key: bytes) -> Mapping[str, memoryview]:
        """Return the sections of an entry; NoEntry, OSError or an NnhalError has the reason if there are none."""
        files = self.folder.entry(key.hex(), _ONE)
        try:
            return load_content(files.cache(key), (), OWN, _identity()).model[0]
        finally:
            files.close()

    def keep(self, key: bytes, sections: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
        """Write an entry; return why there is none, or ""."""
        try:
            new = NewEntry(self.folder, key.hex(), _ONE)
            try:
                store_content(CacheContent([dict(sections)]), new.files.cache(key), OWN, _identity())
                new.publish(
                    key, {"device": OWN, "version": __version__, "place": "own", "made": int(time.time()), **facts}
                )
            finally:
                new.close()
        except OSError as error:
            return f"it cannot be kept: {os_reason(error)}"
        except NothingCached as error:  # another process emptied its files
            return f"it cannot be kept: {error}"
        except NnhalError as error:
            return f"it cannot be kept: {error_text(error)}"
        except MemoryError:
            return "it cannot be kept: it does not fit into memory"
        return ""


def cached_import(
    label: str,
    memory: Memory,
    asked: Sequence[Any],
    folder: CacheFolder,
    read: Callable[[], Model],
    beside: str | None = None,
) -> tuple[Model, CacheOutcome]:
    """Return the model of a file: the cached one, or else a newly imported and cached one.

    asked: the import options as JSON data. read: imports the file. beside: the folder of external weights.
    """
    if CUSTOM_OPERATORS:
        return read(), CacheOutcome("model", "off", "custom operators are registered")
    if unknown := code_of_nnhal().unknown:
        return read(), CacheOutcome("model", "off", unknown)
    own = RuntimeEntries(folder)
    try:
        digest = digest_of(memory, folder)
        key = _key("imported", digest.hex(), label, *map(_plain, asked))
        try:
            sections = own.found(key)
            files = [memory, *_beside(sections[BESIDE], beside, label, folder)]
            pools = (
                files[of - 1] if of else sealed(bytes(sections[f"pool {n}"]))
                for n, of in enumerate(sections["of the file"])
            )
            model = unpack_model(sections["model"], tuple(pools), TrailingArchive(memory.bytes(), label))
            model._memo[IMPORTED] = True
            return model, CacheOutcome("model", "hit")
        except (NoEntry, NnhalError) as error:
            missed = str(error) if isinstance(error, NoEntry) else error_text(error)
        model = read()
    except OSError as error:
        return read(), CacheOutcome("model", "miss", os_reason(error))
    _log.info("model %s: miss: %s", label, missed)
    model._memo[IMPORTED] = True
    others: Mapping[str, Memory] = model._memo.get(BESIDE, {})
    files = [memory, *others.values()]
    if len(files) > MOST_FILES:
        return model, CacheOutcome("model", "miss", f"{missed}; it is in more than {MOST_FILES} files")
    of_the_file = [next((n for n, file in enumerate(files, 1) if pool is file), 0) for pool in model.pools]
    parts: dict[str, Any] = {"model": pack_model(model), "of the file": bytes(of_the_file)}
    parts |= {f"pool {n}": p.bytes().data for n, p in enumerate(model.pools) if not of_the_file[n]}
    parts[BESIDE] = msgspec.msgpack.encode([(name, digest_of(each, folder)) for name, each in others.items()])
    lost = own.keep(key, parts, _facts(model))
    return model, CacheOutcome("model", "miss", f"{missed}; {lost}" if lost else missed)


def _beside(section: memoryview, folder: str | None, label: str, cache_: CacheFolder) -> list[Memory]:
    """Return the external weight files of a model, which must be unchanged; NoEntry if one is not."""
    files = []
    for name, digest in _named(section):
        if folder is None:
            raise NoEntry(f"it has data in {name!r} beside it")
        memory = read_beside(folder, name, f"{label}: external file {name!r}")[1]
        if digest_of(memory, cache_) != digest:
            raise NoEntry(f"{name!r} beside it has changed")
        files.append(memory)
    return files


_named = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


def cached_support(
    device: Device, model: Model, facts: Sequence[Any], own: RuntimeEntries, ask: Callable[[], SupportReport]
) -> SupportReport:
    """Return a device's answer about a model: the cached one, or else a new and cached one.

    facts: everything that the answer may depend on, including the driver's code, as JSON data.
    """
    key = _key("considered", *facts)
    try:
        verdicts, groups = _said(own.found(key)["claims"])
        if len(verdicts) == len(model.main.operations):
            return SupportReport(model, verdicts, groups)
    except (NoEntry, NnhalError, OSError, msgspec.DecodeError) as error:
        _log.debug("%s: cannot read its cached answer about the model: %s", identity_of(device).name, error)
    claims = ask()
    said = msgspec.msgpack.encode((claims.verdicts, claims.groups))
    own.keep(key, {"claims": said}, _facts(model))
    return claims


_said = msgspec.msgpack.Decoder(tuple[list[Verdict], tuple[OperationGroup, ...]]).decode


def _facts(model: Model) -> dict[str, Any]:
    count = len(model.main.operations)
    return {"model": bounded_text(model.name, 200), "operations": count, "of": count}


def _plain(asked: Any) -> Any:
    """Convert import arguments to JSON data; invalid ones to text, so that the importer reports them."""
    if isinstance(asked, Mapping):
        return {"by name": [[_plain(name), _plain(shape)] for name, shape in asked.items()]}
    if isinstance(asked, list | tuple):
        return [_plain(each) for each in asked]
    return asked if asked is None or type(asked) in (str, int) else [type(asked).__qualname__, repr(asked)]


def _key(*facts: Any) -> bytes:
    return blake2b(json.dumps(facts).encode(), person=b"nnhal own", digest_size=32).digest()


@cache
def _identity() -> bytes:
    return identity(OWN, __version__, code_of_nnhal(), processor=False)
