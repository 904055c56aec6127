"""An optional zip file at the end of a model file, opened on first use."""

from collections.abc import Iterator, Mapping
from typing import Any

from nnhal.base.operands import Array
from nnhal.frontends.zipped import END, MOST_BEHIND


class TrailingArchive(Mapping[str, bytes]):
    """The zip file at the end of a model file, opened on first use; a missing one is empty."""

    def __init__(self, data: Array, label: str) -> None:
        there = END in data[-MOST_BEHIND:].tobytes()
        # The memory of a file without one may be released
        self._data, self._label = data if there else data[:0].copy(), label
        self._archive: Mapping[str, bytes] | None = None if there else {}

    def __reduce__(self) -> tuple[Any, ...]:
        return TrailingArchive, (self._data, self._label)

    def _opened(self) -> Mapping[str, bytes]:
        if self._archive is None:
            from nnhal.frontends.archive import Archive

            self._archive = Archive(self._data, self._label)
        return self._archive

    def __getitem__(self, name: str) -> bytes:
        return self._opened()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._opened()

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened())

    def __len__(self) -> int:
        return len(self._opened())
