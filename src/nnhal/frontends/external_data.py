"""External data files of a model: opened without following links, and read as external tensors."""

import errno
import os
import stat

from nnhal.base.descriptors import Owner
from nnhal.base.errors import BadFile
from nnhal.base.memory import Memory
from nnhal.base.sealed import Store

BESIDE = "beside"  # memo of a model: the memories of these files, by name


def read_beside(folder: str, name: str, where: str, most: int | None = None) -> tuple[int, Memory]:
    """Return the size and the bytes of a file below a folder, without following links below it."""
    own = Owner()
    try:
        at, parts = os.path.abspath(folder), name.split("/")
        own.fds.append(os.open(at, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        for n, part in enumerate(parts):
            last = n == len(parts) - 1
            flags = os.O_RDONLY | os.O_NONBLOCK if last else os.O_PATH | os.O_DIRECTORY
            own.fds.append(os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=own.fds[-1]))
        found = os.fstat(own.fds[-1])
        if not stat.S_ISREG(found.st_mode):
            raise BadFile(f"{where} is not a file")
        if most is not None and found.st_size > most:
            raise BadFile(f"{where} has {found.st_size} bytes, must have at most {most} for its tensors")
        store = Store("nnhal-model")
        store.add_file(os.path.join(at, name), own.fds[-1])
        return found.st_size, store.seal()
    except OSError as error:
        links = error.errno in (errno.ELOOP, errno.ENOTDIR)
        why = "is or follows a link, must be in the model's folder itself" if links else error.strerror
        raise BadFile(f"{where}: {why}") from error
    finally:
        own.close()
