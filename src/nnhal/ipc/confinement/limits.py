"""Resource limits of a sandboxed process."""

import os
import resource

from nnhal.base.records import Record, field

FILE = 4 << 30  # bytes of one file or memory


def _three_quarters_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4


class Limits(Record, frozen=True):
    """Resource limits of a sandboxed process.

    A limit never rises above the current one, except descriptors, up to the hard one.

    Attributes:
        memory: Bytes of private writable memory (RLIMIT_DATA: heaps, stacks, arenas; shared pools do not count).
        descriptors: One more than the highest descriptor (RLIMIT_NOFILE).
        file: The most bytes of one file, or of memory that can be sent (RLIMIT_FSIZE).
        processes: All processes and threads of the *user*, not of this process alone (RLIMIT_NPROC); None for no
            change.

    Core dumps are always off.
    """

    memory: int = field(default_factory=_three_quarters_of_memory)
    descriptors: int = 1024
    file: int = FILE
    processes: int | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "descriptors", "file", "processes"):
            value = getattr(self, name)
            fits = value is None or 1 <= value < 1 << 63
            require(fits, f"Limits: {name} is {value}, must be at least 1 and below 1 << 63")


def require(fact: bool, message: str) -> None:
    """Raise InvalidArgument unless `fact` holds."""
    if not fact:
        from nnhal.base.errors import InvalidArgument  # it imports numpy, which must not start threads yet

        raise InvalidArgument(message)


def limit(limits: Limits) -> str:
    """Set the limits, irreversibly, and describe them."""
    wanted = {
        "data": (resource.RLIMIT_DATA, limits.memory),
        "descriptors": (resource.RLIMIT_NOFILE, limits.descriptors),
        "file": (resource.RLIMIT_FSIZE, limits.file),
        "core": (resource.RLIMIT_CORE, 0),
        "processes": (resource.RLIMIT_NPROC, limits.processes),
    }
    return ", ".join(f"{name} {_lowered(which, value)}" for name, (which, value) in wanted.items() if value is not None)


def _lowered(which: int, value: int) -> int:
    """Set a limit, not above the current one, and return it."""
    under = resource.getrlimit(which)[which == resource.RLIMIT_NOFILE :]
    least = min([value, *(x for x in under if x != resource.RLIM_INFINITY)])
    resource.setrlimit(which, (least, least))
    return least


def raise_descriptors(value: int) -> None:
    """Raise the number of descriptors if the hard limit allows it; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
