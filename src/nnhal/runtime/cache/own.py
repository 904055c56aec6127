"""The runtime's own entries in the cache: what it worked out of a model, kept as devices keep what they compiled.

Two kinds: an imported model, so that a start reads no file format and binds no operation, and what a device said of a model,
so that it need not be asked. They have the same keys, integrity and quota as those of devices, and the same rule: a fault of
the cache is a reason to work it out again, never for failing.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from nnhal.base.custom_operators import CUSTOM_OPERATORS
from nnhal.base.digests import blake2b
from nnhal.base.errors import NnhalError, clipped, told
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.records import Record
from nnhal.base.sealed import sealed
from nnhal.base.version import __version__
from nnhal.frontends.behind import Behind
from nnhal.frontends.beside import BESIDE, read_beside
from nnhal.hal.cache.files import CacheContent, CacheFiles, why_of
from nnhal.hal.cache.keeper import identity, keep, recall
from nnhal.hal.claims import Claims
from nnhal.hal.code import code_of_nnhal
from nnhal.hal.device import Device, OperationGroup, Verdict, identity_of
from nnhal.model.graph import Model
from nnhal.model.kept import kept, unkept
from nnhal.runtime.cache.folder import CacheFolder
from nnhal.runtime.cache.making import NewEntry, NothingSaved
from nnhal.runtime.cache.manifest import Missing
from nnhal.runtime.cache.tokens import digest_of
from nnhal.runtime.cache.wanted import CacheOutcome

OWN = "nnhal runtime"  # in the place of a device
IMPORTED = "imported"  # memo of a model whose import is kept
MOST_FILES = 250  # that one model lies in, and is kept
_ONE = CacheFiles(1, 0)
_log = logger("compilation")


class OwnEntries(Record, frozen=True):
    """Entries of the runtime in one folder."""

    folder: CacheFolder

    def found(self, key: bytes) -> Mapping[str, memoryview]:
        """The sections of an entry; Missing, OSError or an NnhalError says why there are none."""
        files = self.folder.entry(key.hex(), _ONE)
        try:
            return recall(files.cache(key), (), OWN, _identity()).model[0]
        finally:
            files.close()

    def keep(self, key: bytes, sections: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
        """Make an entry; why there is none, "" where there is."""
        try:
            new = NewEntry(self.folder, key.hex(), _ONE)
            try:
                keep(CacheContent([dict(sections)]), new.files.cache(key), OWN, _identity())
                new.publish(
                    key, {"device": OWN, "version": __version__, "place": "own", "made": int(time.time()), **facts}
                )
            finally:
                new.close()
        except OSError as error:
            return f"it cannot be kept: {why_of(error)}"
        except NothingSaved as error:  # who else has the folder emptied its files
            return f"it cannot be kept: {error}"
        except NnhalError as error:
            return f"it cannot be kept: {told(error)}"
        except MemoryError:
            return "it cannot be kept: it does not fit into memory"
        return ""


def imported(
    label: str,
    memory: Memory,
    asked: Sequence[Any],
    folder: CacheFolder,
    read: Callable[[], Model],
    beside: str | None = None,
) -> tuple[Model, CacheOutcome]:
    """The model of a file: as it was kept, else read and kept.

    asked: what the file is to be read as, of what JSON has. read: imports it. beside: where files lie that it names.
    """
    if CUSTOM_OPERATORS:
        return read(), CacheOutcome("model", "off", "custom operators are registered")
    if unknown := code_of_nnhal().unknown:
        return read(), CacheOutcome("model", "off", unknown)
    own = OwnEntries(folder)
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
            model = unkept(sections["model"], tuple(pools), Behind(memory.bytes(), label))
            model._memo[IMPORTED] = True
            return model, CacheOutcome("model", "hit")
        except (Missing, NnhalError) as error:
            missed = str(error) if isinstance(error, Missing) else told(error)
        model = read()
    except OSError as error:
        return read(), CacheOutcome("model", "miss", why_of(error))
    _log.info("model %s: miss: %s", label, missed)
    model._memo[IMPORTED] = True
    others: Mapping[str, Memory] = model._memo.get(BESIDE, {})
    files = [memory, *others.values()]
    if len(files) > MOST_FILES:
        return model, CacheOutcome("model", "miss", f"{missed}; it is in more than {MOST_FILES} files")
    of_the_file = [next((n for n, file in enumerate(files, 1) if pool is file), 0) for pool in model.pools]
    parts: dict[str, Any] = {"model": kept(model), "of the file": bytes(of_the_file)}
    parts |= {f"pool {n}": p.bytes().data for n, p in enumerate(model.pools) if not of_the_file[n]}
    parts[BESIDE] = msgspec.msgpack.encode([(name, digest_of(each, folder)) for name, each in others.items()])
    lost = own.keep(key, parts, _facts(model))
    return model, CacheOutcome("model", "miss", f"{missed}; {lost}" if lost else missed)


def _beside(section: memoryview, folder: str | None, label: str, cache_: CacheFolder) -> list[Memory]:
    """The files beside a model's own, which are to be what they were; Missing where one is not."""
    files = []
    for name, digest in _named(section):
        if folder is None:
            raise Missing(f"it has data in {name!r} beside it")
        memory = read_beside(folder, name, f"{label}: external file {name!r}")[1]
        if digest_of(memory, cache_) != digest:
            raise Missing(f"{name!r} beside it has changed")
        files.append(memory)
    return files


_named = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


def considered(
    device: Device, model: Model, facts: Sequence[Any], own: OwnEntries, ask: Callable[[], Claims]
) -> Claims:
    """What a device says of a model: as it was kept, else asked and kept.

    facts: what the answer may depend on, the driver's code among it, of what JSON has.
    """
    key = _key("considered", *facts)
    try:
        verdicts, groups = _said(own.found(key)["claims"])
        if len(verdicts) == len(model.main.operations):
            return Claims(model, verdicts, groups)
    except (Missing, NnhalError, OSError, msgspec.DecodeError) as error:
        _log.debug("%s: what it says of the model is not known: %s", identity_of(device).name, error)
    claims = ask()
    said = msgspec.msgpack.encode((claims.verdicts, claims.groups))
    own.keep(key, {"claims": said}, _facts(model))
    return claims


_said = msgspec.msgpack.Decoder(tuple[list[Verdict], tuple[OperationGroup, ...]]).decode


def _facts(model: Model) -> dict[str, Any]:
    count = len(model.main.operations)
    return {"model": clipped(model.name, 200), "operations": count, "of": count}


def _plain(asked: Any) -> Any:
    """Arguments of the importer as JSON has them, by their texts where it has none such: it says what is wrong there."""
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
