"""Cache files that a driver writes when `prepare` or `restore` has returned: in stages, or when it first runs.

    prepare(), restore():       later = Later(self, hints.cache)      # where there is a cache
    when there is more to keep: later.save(content); later.close()

The driver has the files by descriptors of its own, and locks them while it writes. A start that would restore from them then
takes that for a miss and does not wait. The entry is there from the end of `prepare` on; it is a miss until it is written.
"""

import os

from nnhal.base.descriptors import Owner
from nnhal.base.errors import NnhalError
from nnhal.base.log import logger
from nnhal.hal.cache.files import Cache, CacheContent, CacheFiles
from nnhal.hal.cache.keeper import keep
from nnhal.hal.cache.locks import written_alone
from nnhal.hal.device import Device, code_by, written_by

PATIENCE = 600  # seconds until `prepare` or `restore` has returned and what it gave is saved
_log = logger("driver")


class Later:
    """The files of one compilation, until `close` or its end."""

    def __init__(self, device: Device, cache: Cache) -> None:
        """cache: that of the hints, while `prepare` or `restore` runs. OSError where no descriptor is to be had."""
        self._unknown = code_by(device).unknown
        self._by, self._owner, self._settled = written_by(device), Owner(), cache.settled
        for fd in cache.files:
            self._owner.fds.append(os.dup(fd))
        count = len(cache.model_files)
        fds = tuple(self._owner.fds)
        self._cache = Cache(cache.token, fds[:count], fds[count:], self._owner)
        cache.later.set()

    def empty(self) -> CacheContent:
        """Content to fill and `save`."""
        return CacheContent.empty(CacheFiles(len(self._cache.model_files), len(self._cache.data_files)))

    def save(self, content: CacheContent) -> bool:
        """Put this in the place of what was saved before; whether that could be done. The log says why not.

        Waits until `prepare` or `restore` has returned and what it gave is saved, so not to be called in there.
        """
        if self._unknown:
            _log.warning("%s: what it compiled later is not kept: %s", self._by[0], self._unknown)
            return False
        if not self._settled.wait(PATIENCE):
            _log.warning("%s: what it compiled later is not kept: prepare() has not come back", self._by[0])
            return False
        try:
            with written_alone(self._cache.files):
                keep(content, self._cache, *self._by)
        except (NnhalError, OSError, ValueError) as error:  # ValueError: closed meanwhile
            _log.warning("%s: what it compiled later is not kept: %s", self._by[0], error)
            return False
        return True

    def close(self) -> None:
        """Let go of the files."""
        self._owner.close()
