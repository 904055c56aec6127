"""Marks of the generations that processes write: locked by their process, so others see whether it lives."""

import contextlib
import os
from collections.abc import Callable

from nnhal.base.descriptors import Owner
from nnhal.base.memory import first_bytes
from nnhal.base.private import NotPrivate, private_file, private_folder, try_lock
from nnhal.hal.cache.files import MOST_FILES
from nnhal.runtime.cache.files import NEW, FolderFiles
from nnhal.runtime.cache.manifest import GENERATION, Manifest

MAKING = "making"
_KINDS = "new", *(f"{kind}{n}" for kind in "md" for n in range(MOST_FILES))

_made_here: set[str] = set()  # marks of this process: reading one would release its lock
os.register_at_fork(after_in_child=_made_here.clear)


class Marks:
    """The marks of one cache folder. A mark without a lock is that of a dead process, whose files `sweep` deletes."""

    def __init__(self, files: FolderFiles) -> None:
        self._files = files
        self._folder = files.path / MAKING

    def begin(self, key: str, into: Owner) -> str:
        """Begin a new generation of an entry: create its mark, locked by this process until `end`."""
        folder = Owner()
        try:
            try:
                private_folder(self._folder, folder)
            except NotPrivate as error:
                raise NotPrivate(self._folder, f"{self._folder} {error.strerror}") from None
            while True:
                generation = os.urandom(8).hex()
                _made_here.add(f"{key}.{generation}")
                mark = private_file(folder.fds[0], f"{key}.{generation}", NEW, into)
                if _is_ours(mark):
                    return generation
                into.close()  # another process removed it as that of a dead process
                _made_here.discard(f"{key}.{generation}")
        finally:
            folder.close()

    def end(self, key: str, generation: str) -> None:
        """End what `begin` began."""
        with contextlib.suppress(OSError):
            self._files.remove(f"{MAKING}/{key}.{generation}")
        _made_here.discard(f"{key}.{generation}")

    def names(self) -> list[str]:
        """Return KEY.GENERATION of each mark."""
        with contextlib.suppress(FileNotFoundError):
            return [name for name in os.listdir(self._folder) if GENERATION.fullmatch(name)]
        return []

    def sweep(self, published: Callable[[str], Manifest | None]) -> None:
        """Delete what dead processes have left. published: returns the description of an entry."""
        for name in self.names():
            if name in _made_here:
                continue
            key, generation = name.split(".")
            own = Owner()
            try:
                fd = self._files.open(f"{MAKING}/{name}", os.O_RDWR, own)
                if try_lock(fd):
                    before = first_bytes(fd, 16).decode("ascii", "replace")
                    now = published(key)
                    for each in {generation, before} - {now and now.generation}:
                        if GENERATION.fullmatch(f"{key}.{each}"):
                            for kind in _KINDS:
                                self._files.remove(f"{key}.{each}.{kind}")
                    self._files.remove(f"{MAKING}/{name}")
            except OSError:  # it disappeared, or the file system has no locks
                continue
            finally:
                own.close()


def _is_ours(mark: int) -> bool:
    """Lock a new mark; return whether no other process has it. Without locks, files of dead processes are not deleted."""
    try:
        return try_lock(mark) and os.fstat(mark).st_nlink > 0
    except OSError:
        return True
