"""Cache files for a driver under test: empty ones, and models that are restored from them."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nnhal.hal.cache.files import TOKEN_SIZE, Cache, CacheFiles
from nnhal.hal.chain import PreparedChain, checked_prepared
from nnhal.hal.device import Device, Hints, layout_of
from nnhal.model.graph import Model
from nnhal.model.layouts import with_layout
from nnhal.model.parts import outline

TOKEN, OTHER = bytes(range(TOKEN_SIZE)), bytes(range(1, TOKEN_SIZE + 1))


@contextmanager
def empty_files(count: CacheFiles, token: bytes = TOKEN) -> Iterator[Cache]:
    """Make empty files, which end with the context."""
    with ExitStack() as held:
        fds = [held.enter_context(tempfile.TemporaryFile(buffering=0)).fileno() for _ in range(sum(count))]
        yield Cache(token, tuple(fds[: count.model]), tuple(fds[count.model :]))


def is_written(cache: Cache) -> bool:
    """Whether a driver has saved a compilation to the files."""
    return any(os.fstat(fd).st_size for fd in cache.files)


def restored_from(device: Device, model: Model, hints: Hints) -> PreparedChain:
    """Restore a model from the files of `hints.cache`, which are read from their beginning. Any NnhalError is a miss."""
    assert hints.cache is not None
    for fd in hints.cache.files:
        os.lseek(fd, 0, os.SEEK_SET)
    return checked_prepared(device, outline(with_layout(model, layout_of(device)).model), hints, restore=True)
