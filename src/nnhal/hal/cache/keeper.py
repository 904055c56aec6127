"""The integrity of cache files, for any driver: what was saved is known again byte by byte, or is a miss that says why."""

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path

from nnhal.base.digests import blake2b
from nnhal.base.errors import OperationFailed
from nnhal.base.memory import Memory
from nnhal.base.once import Once
from nnhal.base.version import __version__
from nnhal.hal.cache.files import Cache, CacheContent, Damaged, read, understood, why_of, write, written, written_by
from nnhal.hal.cache.tokens import TokenStore, opened_ahead, records, state_folder

MOST_FILES = 2000  # of a driver's code
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


def identity(driver: str, its_version: str, module: str, *, processor: bool) -> bytes:
    """What wrote a cache file, or may read it: driver, version and code, those of nnhal, on whose kit the driver may be, and
    the processor where it matters.
    """
    facts = [driver, its_version, code_of(module), __version__, _code_of_nnhal(), features() if processor else ""]
    return blake2b("\0".join(facts).encode(), digest_size=32).digest()


def code_of(module: str) -> str:
    """What tells one state of a driver's code from another: the files of its package, by size and time of change."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return ""
    if not os.path.exists(file):  # in an archive, where it lies in any file
        while file != (above := os.path.dirname(file)) and not os.path.exists(above):
            file = above
        return _stamp(above, above) if os.path.isfile(above) else ""
    if not getattr(sys.modules[module], "__package__", ""):
        return _stamp(file, file)
    folder = os.path.dirname(file)
    return "\n".join(sorted(islice((_stamp(each, each[len(folder) :]) for each in _below(folder)), MOST_FILES)))


@cache
def _code_of_nnhal() -> str:
    return code_of("nnhal")


def _stamp(path: str, name: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{name} {status.st_size} {status.st_mtime_ns}"


def _below(folder: str) -> Iterator[str]:
    """The Python files of a folder and those in it, but for environments and what is hidden."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".py"):
            yield entry.path
        elif not entry.name.startswith(".") and entry.name not in ("site-packages", "__pycache__") and entry.is_dir():
            yield from _below(entry.path)


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
    notes the token is looked for. Files of a form of the driver's own are for it to judge.
    """
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
        with _shared(fd):
            return read(fd)
    except BlockingIOError:
        raise OperationFailed(f"{kind} file {number} is being written by its driver") from None
    except Damaged as error:
        raise Damaged(f"damaged: {kind} file {number}: {error}") from None
    except OSError as error:
        raise OperationFailed(f"{kind} file {number} cannot be read: {error.strerror}") from None


@contextmanager
def _shared(fd: int) -> Iterator[None]:
    """While no driver writes to it later; BlockingIOError where one does. Without locks what stands half is a miss, too."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a confined process has none
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
