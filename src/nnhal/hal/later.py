"""Cache files that a driver writes to when `prepare` has come back: what it compiles in stages, or when it first runs.

    prepare():                  later = Later(self, hints.cache)      # where there is a cache
    when there is more to keep: later.save(content); later.close()

The files are the driver's by descriptors of its own. While it writes it has them locked; whoever would restore from them
then takes that for a miss, and does not wait.
"""

import fcntl
import os
from contextlib import suppress

from nnhal.base.descriptors import Owner
from nnhal.base.errors import NnhalError
from nnhal.base.log import logger
from nnhal.hal.cache.files import Cache, CacheContent, CacheFiles
from nnhal.hal.cache.keeper import keep
from nnhal.hal.device import Device, written_by

PATIENCE = 600  # seconds until what `prepare` gave is saved
_log = logger("driver")


class Later:
    """The files of one compilation, until `close` or its end."""

    def __init__(self, device: Device, cache: Cache) -> None:
        """cache: that of the hints, while `prepare` runs. OSError where no descriptor is to be had."""
        self._by, self._owner, self._settled = written_by(device), Owner(), cache.settled
        for fd in cache.files:
            self._owner.fds.append(os.dup(fd))
        count = len(cache.model_files)
        fds = tuple(self._owner.fds)
        self._cache = Cache(cache.token, fds[:count], fds[count:], self._owner)

    def empty(self) -> CacheContent:
        """Content to fill and `save`."""
        return CacheContent.empty(CacheFiles(len(self._cache.model_files), len(self._cache.data_files)))

    def save(self, content: CacheContent) -> bool:
        """Put this in the place of what was saved before; whether that could be done. The log says why not.

        Waits until what `prepare` gave is saved, so not to be called in there.
        """
        if not self._settled.wait(PATIENCE):
            _log.warning("%s: what it compiled later is not kept: prepare() has not come back", self._by[0])
            return False
        try:
            for fd in self._cache.files:
                with suppress(PermissionError):  # a confined process has no locks: what is half written is a miss, too
                    fcntl.flock(fd, fcntl.LOCK_EX)
            keep(content, self._cache, *self._by)
        except (NnhalError, OSError, ValueError) as error:  # ValueError: closed meanwhile
            _log.warning("%s: what it compiled later is not kept: %s", self._by[0], error)
            return False
        finally:
            for fd in self._cache.files:
                with suppress(OSError, ValueError):
                    fcntl.flock(fd, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        """Let go of the files."""
        self._owner.close()
