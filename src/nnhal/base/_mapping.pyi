"""A mapping of a file that keeps no descriptor open, as Python's own does until 3.13."""

from typing import final

from typing_extensions import Buffer

@final
class Mapping(Buffer):
    """Bytes of a file, memfd or dma-buf, shared with whoever maps them too; unmapped when the last view of it goes."""

    def __new__(cls, fd: int, size: int, offset: int, writable: bool) -> Mapping:
        """Map `size` bytes at `offset`, a multiple of the page; OSError where the kernel refuses."""

    def __len__(self) -> int:
        """How many bytes it has."""
