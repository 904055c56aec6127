"""The integrity of cache files, for any driver: what was saved is known again byte by byte, or is a miss that says why."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from nnhal.base.digests import blake2b
from nnhal.base.errors import OperationFailed
from nnhal.base.memory import Memory
from nnhal.base.once import Once
from nnhal.base.version import __version__
from nnhal.hal.cache.files import Cache, CacheContent, Damaged, read, understood, why_of, write, written, written_by
from nnhal.hal.cache.locks import read_at_once
from nnhal.hal.cache.tokens import TokenStore, opened_ahead, records, state_folder
from nnhal.hal.code import CodeIdentity

_stores: Once[tuple[Path, str], TokenStore] = Once(lambda key: f"the record of {key[1]}")


def _store(driver: str) -> TokenStore:
    try:
        if (only := opened_ahead()) is not None:
            return only
        place = state_folder(), driver
        return _stores.get(place, lambda: TokenStore.open(driver), stale=lambda store: store.gone)
    except OSError as error:
        raise _no_record(error) from None


def _no_record(error: OSError) -> OperationFailed:
    where = f" {error.filename}" if error.filename else ""
    return OperationFailed(f"no private record of what was cached:{where} {why_of(error)}")


def identity(driver: str, its_version: str, code: CodeIdentity, *, processor: bool) -> bytes:
    """What wrote a cache file, or may read it: driver, version and code, nnhal's version, the processor where it matters."""
    facts = [driver, its_version, code.digest.hex(), __version__, features() if processor else ""]
    return blake2b("\0".join(facts).encode(), digest_size=32).digest()


@cache
def features() -> str:
    """Which processor this is and what it can, as the kernel says it."""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return "unknown"
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in wanted)


def keep(content: CacheContent, cache: Cache, driver: str, identity: bytes) -> None:
    """Write what was saved to the files, and note what it was first. OperationFailed says why nothing is to be used."""
    store = _store(driver)
    files, digest = written(content, cache.token, identity, store.key)
    try:
        store.remember(identity, cache.token, digest)
    except OSError as error:
        raise _no_record(error) from None
    try:
        for fd, data in zip(cache.files, files, strict=True):
            write(fd, data)
    except OSError as error:
        raise OperationFailed(f"it cannot be written: {why_of(error)}") from None


def recall(cache: Cache, pools: Sequence[Memory], driver: str, identity: bytes) -> CacheContent:
    """What was saved, out of the files. OperationFailed, Damaged among them, says why it is none of that."""
    content = _known(*_contents(cache), cache.token, _store(driver), identity)
    content.pools = pools
    return content


def is_whole(cache: Cache) -> None:
    """Hold files to the records of all drivers, whichever one wrote them. OperationFailed says what is wrong.

    The record has the name that its process gave the driver, which may be a path or that of a service: so the one that
    notes the token is looked for. Files of a form of the driver's own are for it to judge. Files that are not written
    yet are whole.
    """
    if cache.files and cache.unwritten:
        return
    model, data = _contents(cache)
    identity = written_by(next(iter([*model, *data]), b""))
    if identity is None:
        raise Damaged("is of a form of its driver's own, or damaged: its driver will tell")
    wrong = Damaged("is nothing that a driver of this user noted to have written for the token")
    for store in records():
        if store.names(identity, cache.token):
            try:
                _known(model, data, cache.token, store, identity)
                return
            except Damaged as error:
                wrong = error
    raise wrong


def _known(
    model: Sequence[bytes], data: Sequence[bytes], token: bytes, store: TokenStore, identity: bytes
) -> CacheContent:
    """What files hold that the driver has noted to have written."""
    content, digest = understood(model, data, token, identity, store.key)
    if not store.knows(identity, token, digest):
        raise Damaged("is nothing that this driver noted to have written for the token")
    return content


def _contents(cache: Cache) -> tuple[list[bytes], list[bytes]]:
    model = [_read(fd, "model", n) for n, fd in enumerate(cache.model_files)]
    return model, [_read(fd, "data", n) for n, fd in enumerate(cache.data_files)]


def _read(fd: int, kind: str, number: int) -> bytes:
    try:
        with read_at_once(fd):
            return read(fd)
    except BlockingIOError:
        raise OperationFailed(f"{kind} file {number} is being written by its driver") from None
    except Damaged as error:
        raise Damaged(f"damaged: {kind} file {number}: {error}") from None
    except OSError as error:
        raise OperationFailed(f"{kind} file {number} cannot be read: {error.strerror}") from None
