"""Cache files that a driver writes after `prepare` or `restore` returned: in stages, or on its first execution.

    prepare(), restore():          later = Later(self, hints.cache)      # if there is a cache
    when there is more to cache:   later.save(content); later.close()

The driver duplicates the descriptors of the files, and locks them while it writes. A concurrent start treats that as a
cache miss and does not wait. The entry exists from the end of `prepare` on; it is a miss until it is written.
"""

import os

from nnhal.base.descriptors import Owner
from nnhal.base.errors import NnhalError
from nnhal.base.log import logger
from nnhal.hal.cache.files import Cache, CacheContent, CacheFiles
from nnhal.hal.cache.keeper import store_content
from nnhal.hal.cache.locks import exclusive_files
from nnhal.hal.device import Device, cache_record_identity, code_by

PATIENCE = 600  # seconds until `prepare` or `restore` has returned and its result is saved
_log = logger("driver")


class Later:
    """The cache files of one compilation, until `close` or garbage collection."""

    def __init__(self, device: Device, cache: Cache) -> None:
        """cache: of the hints, during `prepare` or `restore`. OSError if there is no free descriptor."""
        self._unknown = code_by(device).unknown
        self._by, self._owner, self._settled = cache_record_identity(device), Owner(), cache.settled
        for fd in cache.files:
            self._owner.fds.append(os.dup(fd))
        count = len(cache.model_files)
        fds = tuple(self._owner.fds)
        self._cache = Cache(cache.token, fds[:count], fds[count:], self._owner)
        cache.later.set()

    def empty(self) -> CacheContent:
        """Return empty content to fill and `save`."""
        return CacheContent.empty(CacheFiles(len(self._cache.model_files), len(self._cache.data_files)))

    def save(self, content: CacheContent) -> bool:
        """Replace the saved content; return whether that succeeded. The log has the reason of a failure.

        It waits until `prepare` or `restore` has returned and its result is saved, so do not call it in there.
        """
        if self._unknown:
            _log.warning("%s: what it compiled later is not kept: %s", self._by[0], self._unknown)
            return False
        if not self._settled.wait(PATIENCE):
            _log.warning("%s: what it compiled later is not kept: prepare() has not come back", self._by[0])
            return False
        try:
            with exclusive_files(self._cache.files):
                store_content(content, self._cache, *self._by)
        except (NnhalError, OSError, ValueError) as error:  # ValueError: closed meanwhile
            _log.warning("%s: what it compiled later is not kept: %s", self._by[0], error)
            return False
        return True

    def close(self) -> None:
        """Close the files."""
        self._owner.close()
