"""Inputs of fuzz targets: choices that bytes make, changes of any bytes, and the corpus that is part of nnhal."""

import random
import struct
import zipfile
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
CORPUS = Path(__file__).with_name("corpus")
LONGEST = 1 << 20  # bytes of an input
# Numbers at which sizes, counts and indices go wrong.
NUMBERS = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 127, 128, 255, 256, 4096, 4097, 65535, 2**31 - 1, 2**31, 2**32 - 1)
_SPECIAL = bytes((0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xD9, 0xDC, 0xDF, 0xFF))


class SupportsLenAndGetItem(Protocol[T_co]):
    """A sequence, as far as a choice needs one."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> T_co: ...


class Choices(random.Random):
    """Random choices that bytes make: equal bytes make equal choices, and a change of the bytes changes one choice.

    After the last byte, each choice is the first one.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data, self._at = data, 0

    def getrandbits(self, k: int, /) -> int:
        """Return the next bits."""
        end = self._at + (k + 7) // 8
        bits = int.from_bytes(self._data[self._at : end], "little") & ((1 << k) - 1)
        self._at = end
        return bits

    def _randbelow(self, n: int) -> int:
        if n > 256:
            return self.getrandbits(n.bit_length()) % n
        at = self._at
        self._at = at + 1
        return self._data[at] % n if at < len(self._data) else 0

    def random(self) -> float:
        """Return a number from 0 to below 1."""
        return self._randbelow(256) / 256

    def choice(self, seq: SupportsLenAndGetItem[T_co]) -> T_co:
        """Return one of several values."""
        return seq[self._randbelow(len(seq))]

    def rest(self) -> bytes:
        """Return the bytes that made no choice yet."""
        return self._data[self._at :]


def changed(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Return bytes with one to four changes. other: bytes of another input, of which a part may be taken."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind, place = rng.randrange(8), rng.randrange(len(made) + 1)
        if kind == 0 and place < len(made):
            made[place] ^= 1 << rng.randrange(8)
        elif kind == 1 and place < len(made):
            made[place] = rng.choice(_SPECIAL) if rng.random() < 0.5 else rng.randrange(256)
        elif kind == 2:
            size, order = rng.choice((("B", 1), ("H", 2), ("I", 4), ("Q", 8))), rng.choice("<>")
            limit = 1 << 8 * size[1]
            made[place : place + size[1]] = struct.pack(order + size[0], rng.choice(NUMBERS) % limit)
        elif kind == 3:
            del made[place : place + rng.choice((1, 1, 2, 4, 16, 64))]
        elif kind == 4:
            made[place:place] = rng.randbytes(rng.choice((1, 1, 2, 4, 16)))
        elif kind == 5:
            end = place + rng.choice((1, 2, 4, 16, 64))
            made[place:place] = made[place:end] * rng.choice((1, 1, 2, 8))
        elif kind == 6 and other:
            begin = rng.randrange(len(other))
            part = other[begin : begin + rng.choice((1, 4, 16, 64, len(other)))]
            made[place : place + (len(part) if rng.random() < 0.5 else 0)] = part
        elif kind == 7 and rng.random() < 0.2:
            del made[place:]
    return bytes(made[:LONGEST])


def damaged(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Return bytes that a disk or another program may have made of these: half of them with one bit flipped."""
    if not data or rng.random() < 0.5:
        return changed(rng, data, other)
    made = bytearray(data)
    made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


@cache
def corpus_of(target: str) -> tuple[bytes, ...]:
    """Return the inputs of a target in the corpus, in the order of their names; none for a target without one."""
    path = CORPUS / f"{target}.zip"
    if not path.exists():
        return ()
    with zipfile.ZipFile(path) as archive:
        return tuple(archive.read(name) for name in sorted(archive.namelist()))
