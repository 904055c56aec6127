"""A 64-bit fingerprint of bytes: FarmHash's, by its published definition.

It never changes, because models depend on it.
"""

import numpy as np

from nnhal.base.operands import Array

MASK = (1 << 64) - 1
K0, K1, K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
Bytes = Array  # of uint8
Words = Array  # of uint64: arithmetic is modulo 2**64
Pair = tuple[Words, Words]


def fingerprint64(rows: Bytes) -> Words:
    """Return the fingerprint of each row. rows: `[count, size]`, as they lie in memory."""
    size = rows.shape[1]
    if size <= 16:
        return _to16(rows, size)
    if size <= 32:
        return _mix(*_pair32(rows, size), _multiplier(size))
    return _to64(rows, size) if size <= 64 else _long(rows, size)


def _word(rows: Bytes, at: int, size: int = 8) -> Words:
    """Return a number of some bytes, the first one the least significant."""
    return np.ascontiguousarray(rows[:, at : at + size]).view(f"<u{size}")[:, 0].astype(np.uint64)


def _turn(value: Words, by: int) -> Words:
    return value >> by | value << (64 - by)


def _fold(value: Words) -> Words:
    return value ^ value >> 47


def _mix(u: Words, v: Words, by: int | Words) -> Words:
    a = _fold((u ^ v) * by)
    return _fold((v ^ a) * by) * by


def _multiplier(size: int) -> int:
    return K2 + size * 2


def _to16(rows: Bytes, size: int) -> Words:
    by = _multiplier(size)
    if size >= 8:
        a, b = _word(rows, 0) + K2, _word(rows, size - 8)
        return _mix(_turn(b, 37) * by + a, (_turn(a, 25) + b) * by, by)
    if size >= 4:
        return _mix((_word(rows, 0, 4) << 3) + size, _word(rows, size - 4, 4), by)
    if size:
        first, middle, last = (_word(rows, at, 1) for at in (0, size >> 1, size - 1))
        return _fold((first + (middle << 8)) * K2 ^ ((last << 2) + size) * K0) * K2
    return np.full(len(rows), K2, np.uint64)


def _pair32(rows: Bytes, size: int) -> Pair:
    by = _multiplier(size)
    a, b = _word(rows, 0) * K1, _word(rows, 8)
    c, d = _word(rows, size - 8) * by, _word(rows, size - 16) * K2
    return _turn(a + b, 43) + _turn(c, 30) + d, a + _turn(b + K2, 18) + c


def _to64(rows: Bytes, size: int) -> Words:
    by = _multiplier(size)
    a, b = _word(rows, 0) * K2, _word(rows, 8)
    c, d = _word(rows, size - 8) * by, _word(rows, size - 16) * K2
    y = _turn(a + b, 43) + _turn(c, 30) + d
    z = _mix(y, a + _turn(b + K2, 18) + c, by)
    e, f = _word(rows, 16) * by, _word(rows, 24)
    g, h = (y + _word(rows, size - 32)) * by, (z + _word(rows, size - 24)) * by
    return _mix(_turn(e + f, 43) + _turn(g, 30) + h, e + _turn(f + a, 18) + g, by)


def _weak(rows: Bytes, at: int, a: Words, b: Words) -> Pair:
    w, x, y, z = (_word(rows, at + n) for n in (0, 8, 16, 24))
    first = a + w
    last = first + x + y
    return last + z, _turn(b + first + z, 21) + _turn(last, 44) + first


def _long(rows: Bytes, size: int) -> Words:
    y = np.full(len(rows), (81 * K1 + 113) & MASK, np.uint64)
    z = _fold(y * K2 + 113) * K2
    none = np.zeros(len(rows), np.uint64)
    v, w = (none, none), (none, none)
    x = _word(rows, 0) + (81 * K2 & MASK)
    for at in range(0, (size - 1) // 64 * 64, 64):
        x, y, z, v, w = _round(rows, at, (x, y, z), v, w, K1, 1)
    by = K1 + ((z & 0xFF) << 1)
    w = w[0] + ((size - 1) & 63), w[1]
    v = v[0] + w[0], v[1]
    w = w[0] + v[0], w[1]
    x, y, z, v, w = _round(rows, size - 64, (x, y, z), v, w, by, 9)
    return _mix(_mix(v[0], w[0], by) + _fold(y) * K0 + z, _mix(v[1], w[1], by) + x, by)


def _round(
    rows: Bytes, at: int, state: tuple[Words, Words, Words], v: Pair, w: Pair, by: int | Words, scale: int
) -> tuple[Words, Words, Words, Pair, Pair]:
    x, y, z = state
    x = _turn(x + y + v[0] + _word(rows, at + 8), 37) * by
    y = _turn(y + v[1] + _word(rows, at + 48), 42) * by
    x = x ^ w[1] * scale
    y = y + v[0] * scale + _word(rows, at + 40)
    z = _turn(z + w[0], 33) * by
    v = _weak(rows, at, v[1] * by, x + w[0])
    w = _weak(rows, at + 32, z + w[1], y + _word(rows, at + 16))
    return z, y, x, v, w
