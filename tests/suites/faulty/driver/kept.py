"""Compilations that are kept in files: what is saved wrongly, restored wrongly, or trusted."""

import os
import time
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from typing import Any

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.errors import OperationFailed
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.hal.cache.files import Cache, CacheContent, CacheFiles, read
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import Control
from nnhal.model.graph import Model
from nnhal.model.stored import pack_device_view, unpack_device_view

from .faults import CONTRACT, CTS, fault
from .healthy import Engine, Healthy
from .operations import with_fields

HALF = 16  # bytes of a token


class Saved:
    """A prepared model that is kept as the model that it was prepared from."""

    whole: Model

    def save(self, files: CacheContent) -> bool:
        files.model[0]["model"] = pack_device_view(self.whole)
        for n, pool in enumerate(self.whole.pools):
            files.model[0][f"pool {n}"] = pool.bytes()
        return True


class KeptEngine(Saved, Engine):
    def __init__(self, device: Healthy, model: Model) -> None:
        super().__init__(device, model)
        self.whole = model


class Keeper(Device):
    """A driver that keeps compilations."""

    def number_of_cache_files(self) -> Any:
        return CacheFiles(model=1)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        sections = dict(files.model[0])
        model = unpack_device_view(
            sections.pop("model"), tuple(Memory.wrap(self.pool(data)) for data in sections.values())
        )
        return self.prepare(model, hints)

    def pool(self, data: Any) -> Any:
        return np.frombuffer(data, np.uint8)


class Keeping(Keeper, Healthy):
    """The healthy driver, which keeps compilations."""

    engine = KeptEngine


def of_saving(name: str, what: str, check: str, **settings: Any) -> Any:
    """A fault of a driver that keeps compilations."""
    return fault(name, what, check, (CONTRACT,), alone=True, **settings)


@of_saving("cache-files-nonsense", "keeps 33 files", "cache-files", operation="")
class FilesNonsense(Keeping):
    def number_of_cache_files(self) -> Any:
        return 33, 0


@of_saving("cache-files-change", "declares another number of cache files on each call", "cache-files", operation="")
class FilesChange(Keeping):
    def __init__(self) -> None:
        self.asked = count()

    def number_of_cache_files(self) -> Any:
        return CacheFiles(model=1 + next(self.asked) % 2)


@of_saving("cache-save-spoils", "a saved model computes with other constants afterwards", "cache-saved", numbers=True)
class SaveSpoils(Keeping):
    class engine(KeptEngine):  # noqa: N801 (as the attribute is called)
        def save(self, files: CacheContent) -> bool:
            self.constants = {i: x + x.dtype.type(1) for i, x in self.constants.items()}
            return super().save(files)


@of_saving("cache-never-restores", "restore() always fails", "cache-restored")
class NeverRestores(Keeping):
    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        raise KeyError("model")


@of_saving("cache-restores-nothing", "restore() gives None", "cache-restored")
class RestoresNothing(Keeping):
    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        return None


@of_saving("cache-restore-hangs", "restore() never comes back", "cache-restored", hangs=True, survives=False)
class RestoreHangs(Keeping):
    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        while True:
            time.sleep(1)


@of_saving("cache-restore-leaves", "restore() ends its process", "cache-restored", survives=False)
class RestoreLeaves(Keeping):
    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        os._exit(3)


@of_saving("cache-restores-one", "restores one prepared model for all", "cache-restored")
class RestoresOne(Keeping):
    one: Prepared | None = None

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        self.one = self.one or super().restore(files, token, hints)
        return self.one


@of_saving("cache-loses-weights", "restores weights as zeros", "cache-restored", operation="CONV_2D", numbers=True)
class LosesWeights(Keeping):
    def pool(self, data: Any) -> Any:
        return np.zeros(len(data), np.uint8)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        prepared = super().restore(files, token, hints)
        assert isinstance(prepared, Engine)
        prepared.constants = {i: np.zeros_like(x) for i, x in prepared.constants.items()}
        return prepared


@fault(
    "cache-restores-last",
    "restores the model that it prepared last",
    "",
    (CTS,),
    alone=True,
    numbers=True,
    operation="MUL",
)
class RestoresLast(Keeping):
    last: Model | None = None

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self.last = model
        return super().prepare(model, hints)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        assert self.last is not None
        return super().prepare(self.last, hints)


@of_saving("cache-restore-leaks", "keeps a descriptor of each restored model", "cache-restored")
class RestoreLeaks(Keeping):
    kept: list[int] = []

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        self.kept.append(os.memfd_create("compiled"))
        return super().restore(files, token, hints)


@of_saving("cache-loses-relu1", "restores RELU1 as RELU", "cache-restored", numbers=True)
class LosesRelu1(Keeping):
    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        prepared = super().restore(files, token, hints)
        assert isinstance(prepared, Engine)
        relu1 = [getattr(a, "activation", None) == Activation.RELU1 for a in prepared.bound]
        changed = zip(prepared.bound, relu1, strict=True)
        prepared.bound = [with_fields(a, activation=Activation.RELU) if lost else a for a, lost in changed]
        return prepared


@of_saving("cache-sorts-pools", "restores memory pools in the order of their sizes", "cache-restored", numbers=True)
class SortsPools(Keeping):
    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        sections = dict(files.model[0])
        model = sections.pop("model")
        pools = (Memory.wrap(self.pool(data)) for data in sorted(sections.values(), key=len))
        return self.prepare(unpack_device_view(model, tuple(pools)), hints)


@of_saving("cache-shares-scratch", "models of one token share scratch memory", "cache-interleaved", numbers=True)
class SharesScratch(Keeping):
    scratch: dict[bytes, dict[str, list[Array]]] = {}

    class engine(KeptEngine):  # noqa: N801 (as the attribute is called)
        scratch: dict[str, list[Array]] | None = None

        def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
            results = super().computed(inputs, control)
            if self.scratch is None:
                return results
            self.scratch["results"] = results
            time.sleep(0.001)  # the race that is planted: another thread overwrites the results meanwhile
            return self.scratch["results"]

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Any:
        prepared = super().restore(files, token, hints)
        assert isinstance(prepared, SharesScratch.engine)
        prepared.scratch = self.scratch.setdefault(bytes(token), {})
        return prepared


class OwnFiles(Keeping):
    """Writes and reads the file itself."""

    class engine(KeptEngine):  # noqa: N801 (as the attribute is called)
        def save(self, files: CacheContent) -> bool:
            return False

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        if hints.cache is not None and not model.pools:
            data = pack_device_view(model)
            os.write(hints.cache.files[0], self.seal(data, hints.cache) + data)
        return super().prepare(model, hints)

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        assert hints.cache is not None
        data = read(hints.cache.files[0])
        if data[:32] != self.seal(data[32:], hints.cache):
            raise OperationFailed("the file is not what was written")
        return super().prepare(unpack_device_view(data[32:], ()), hints)

    def seal(self, data: bytes, cache: Cache) -> bytes:
        return blake2b(cache.token + data, digest_size=32).digest()


@of_saving("cache-any-token", "takes files of any token", "cache-token")
class AnyToken(OwnFiles):
    def seal(self, data: bytes, cache: Cache) -> bytes:
        return blake2b(data, digest_size=32).digest()


@of_saving("cache-half-token", "compares the first 16 bytes of a token", "cache-token")
class HalfToken(OwnFiles):
    def seal(self, data: bytes, cache: Cache) -> bytes:
        return blake2b(cache.token[:HALF] + data, digest_size=32).digest()


@of_saving("cache-trusts", "believes what is in a file", "cache-damaged", numbers=True)
class Trusts(OwnFiles):
    def seal(self, data: bytes, cache: Cache) -> bytes:
        return bytes(32)


@of_saving("cache-damage-ends", "a damaged file ends its process", "cache-damaged")
class DamageEnds(OwnFiles):
    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        try:
            return super().prepare_from_cache(outline, hints)
        except OperationFailed:
            os._exit(3)


@of_saving("cache-miss-leaks", "keeps a descriptor of each file that is a miss", "cache-damaged")
class MissLeaks(OwnFiles):
    kept: list[int] = []

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        try:
            return super().prepare_from_cache(outline, hints)
        except OperationFailed:
            self.kept.append(os.memfd_create("compiled"))
            raise


@of_saving(
    "cache-miss-spoils", "restores with zeros for constants once files were a miss", "cache-damaged", numbers=True
)
class MissSpoils(OwnFiles):
    spoilt = False

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        try:
            prepared = super().prepare_from_cache(outline, hints)
        except OperationFailed:
            self.spoilt = True
            raise
        assert isinstance(prepared, Engine)
        if self.spoilt:
            prepared.constants = {i: np.zeros_like(x) for i, x in prepared.constants.items()}
        return prepared
