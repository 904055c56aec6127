"""The integrity of cache files, for all drivers: content that differs in one byte is a miss, with the reason."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from nnhal.base.digests import blake2b
from nnhal.base.errors import OperationFailed
from nnhal.base.memory import Memory
from nnhal.base.once import OnceTable
from nnhal.base.version import __version__
from nnhal.hal.cache.files import (
    Cache,
    CacheContent,
    DamagedCacheFile,
    encode_files,
    os_reason,
    parse_files,
    read,
    write,
    written_by,
)
from nnhal.hal.cache.locks import try_shared_lock
from nnhal.hal.cache.tokens import TokenStore, opened_ahead, records, state_folder
from nnhal.hal.code import CodeIdentity

_stores: OnceTable[tuple[Path, str], TokenStore] = OnceTable(lambda key: f"the record of {key[1]}")


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
    return OperationFailed(f"no private record of what was cached:{where} {os_reason(error)}")


def identity(driver: str, its_version: str, code: CodeIdentity, *, processor: bool) -> bytes:
    """Return the identity of a writer or reader: driver, version and code, nnhal's version, and the CPU if it matters."""
    facts = [driver, its_version, code.digest.hex(), __version__, features() if processor else ""]
    return blake2b("\0".join(facts).encode(), digest_size=32).digest()


@cache
def features() -> str:
    """Return the CPU's model and features, as the kernel reports them."""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return "unknown"
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in wanted)


def store_content(content: CacheContent, cache: Cache, driver: str, identity: bytes) -> None:
    """Record the content, then write it to the files. OperationFailed has the reason why there is nothing to cache."""
    store = _store(driver)
    files, digest = encode_files(content, cache.token, identity, store.key)
    try:
        store.remember(identity, cache.token, digest)
    except OSError as error:
        raise _no_record(error) from None
    try:
        for fd, data in zip(cache.files, files, strict=True):
            write(fd, data)
    except OSError as error:
        raise OperationFailed(f"it cannot be written: {os_reason(error)}") from None


def load_content(cache: Cache, pools: Sequence[Memory], driver: str, identity: bytes) -> CacheContent:
    """Read and verify the content of the files. OperationFailed (or DamagedCacheFile) has the reason if that fails."""
    content = _known(*_contents(cache), cache.token, _store(driver), identity)
    content.pools = pools
    return content


def verify_files(cache: Cache) -> None:
    """Verify files by the records of all drivers, whichever wrote them. OperationFailed has the reason.

    The name of a record is that of the driver in its process, which may be a path or a service, so all records are
    searched for the token. Files in a driver's private format are not verified. Files that are not written yet are
    valid.
    """
    if cache.files and cache.unwritten:
        return
    model, data = _contents(cache)
    identity = written_by(next(iter([*model, *data]), b""))
    if identity is None:
        raise DamagedCacheFile("has its driver's private format, or is damaged: only its driver can read it")
    wrong = DamagedCacheFile("is nothing that a driver of this user noted to have written for the token")
    for store in records():
        if store.names(identity, cache.token):
            try:
                _known(model, data, cache.token, store, identity)
                return
            except DamagedCacheFile as error:
                wrong = error
    raise wrong


def _known(
    model: Sequence[bytes], data: Sequence[bytes], token: bytes, store: TokenStore, identity: bytes
) -> CacheContent:
    """Return the content of files that the driver has recorded."""
    content, digest = parse_files(model, data, token, identity, store.key)
    if not store.knows(identity, token, digest):
        raise DamagedCacheFile("is nothing that this driver noted to have written for the token")
    return content


def _contents(cache: Cache) -> tuple[list[bytes], list[bytes]]:
    model = [_read(fd, "model", n) for n, fd in enumerate(cache.model_files)]
    return model, [_read(fd, "data", n) for n, fd in enumerate(cache.data_files)]


def _read(fd: int, kind: str, number: int) -> bytes:
    try:
        with try_shared_lock(fd):
            return read(fd)
    except BlockingIOError:
        raise OperationFailed(f"{kind} file {number} is being written by its driver") from None
    except DamagedCacheFile as error:
        raise DamagedCacheFile(f"damaged: {kind} file {number}: {error}") from None
    except OSError as error:
        raise OperationFailed(f"{kind} file {number} cannot be read: {error.strerror}") from None
