"""External data files of an `.onnx` file. The file may only name files in its folder or below, without links."""

from collections.abc import Mapping

from nnhal.base.errors import BadFile
from nnhal.base.memory import Memory
from nnhal.base.names import short
from nnhal.frontends.common.budget import Budget
from nnhal.frontends.common.terms import Blob
from nnhal.frontends.external_data import read_beside

MOST_FILES = 1024
SPARE = 1 << 20  # unused bytes that a file may have, plus as many as it uses


class ExternalDataFiles:
    """The files that are named. folder: their place, None for a model without a folder."""

    def __init__(self, label: str, folder: str | None, budget: Budget) -> None:
        self.label, self.folder, self.budget = label, folder, budget
        self.names: list[str] = []
        self._used: list[int] = []  # for each, the bytes of its tensors
        self._needed: list[int] = []  # and its required length
        self._places: list[str] = []

    def blob(self, entries: Mapping[str, str], size: int, place: str) -> Blob:
        """Return the place of an external tensor of `size` bytes."""
        location = entries.get("location", "")
        self._check(location, place)
        offset, length = (self._number(entries.get(name, ""), name, place) for name in ("offset", "length"))
        offset = offset or 0
        if length is not None and length != size:
            raise BadFile(f"{self.label}: {place}: external length is {length}, must be {size}")
        if location not in self.names:
            if len(self.names) >= MOST_FILES:
                raise BadFile(
                    f"{self.label}: {place}: is in file {MOST_FILES + 1}, must be in one of at most {MOST_FILES}"
                )
            self.names.append(location)
            self._used.append(0)
            self._needed.append(0)
            self._places.append(place)
        file = self.names.index(location)
        self._used[file] += size
        self._needed[file] = max(self._needed[file], offset + size)
        return Blob(offset, size, 1 + file)

    def _check(self, location: str, place: str) -> None:
        parts = location.split("/")
        wrong = not location or location.startswith("/") or "\0" in location or "\\" in location
        if wrong or any(part in ("", ".", "..") for part in parts):
            must = "must be the path of a file in the model's folder, without ..".replace("..", "'..'")
            raise BadFile(f"{self.label}: {place}: external location is {short(location)!r}, {must}")

    def _number(self, text: str, name: str, place: str) -> int | None:
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise BadFile(f"{self.label}: {place}: external {name} is {short(text)!r}, must be a number from 0")
        return int(text)

    def memories(self) -> list[Memory]:
        """Return the memory of each file."""
        if self.names and self.folder is None:
            what = f"has external data in {short(self.names[0])!r}, must be loaded by its path"
            raise BadFile(f"{self.label}: {self._places[0]}: {what}")
        return [self._read(*facts) for facts in zip(self.names, self._needed, self._used, self._places, strict=True)]

    def _read(self, name: str, needed: int, used: int, place: str) -> Memory:
        where = f"{self.label}: {place}: external file {short(name)!r}"
        size, memory = read_beside(self.folder or "", name, where, most=2 * used + SPARE)
        if size < needed:
            raise BadFile(f"{where} has {size} bytes, must have at least {needed}")
        return memory
