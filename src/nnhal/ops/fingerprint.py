"""A 64-bit fingerprint of bytes: FarmHash's, by its published definition.

It never changes, because models depend on it.
"""

from struct import unpack_from

MASK = (1 << 64) - 1
K0, K1, K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
Pair = tuple[int, int]


def fingerprint64(data: bytes) -> int:
    """Return the fingerprint as an unsigned number."""
    size = len(data)
    if size <= 16:
        return _to16(data, size)
    if size <= 32:
        return _mix(*_pair32(data, size), _multiplier(size))
    return _to64(data, size) if size <= 64 else _long(data, size)


def _word(data: bytes, at: int) -> int:
    number: int = unpack_from("<Q", data, at)[0]
    return number


def _turn(value: int, by: int) -> int:
    value &= MASK
    return (value >> by | value << (64 - by)) & MASK


def _fold(value: int) -> int:
    value &= MASK
    return value ^ value >> 47


def _mix(u: int, v: int, by: int) -> int:
    a = _fold((u ^ v) * by)
    return _fold((v ^ a) * by) * by & MASK


def _multiplier(size: int) -> int:
    return K2 + size * 2


def _to16(data: bytes, size: int) -> int:
    by = _multiplier(size)
    if size >= 8:
        a, b = _word(data, 0) + K2, _word(data, size - 8)
        return _mix((_turn(b, 37) * by + a) & MASK, (_turn(a, 25) + b) * by & MASK, by)
    if size >= 4:
        first, last = unpack_from("<I", data)[0], unpack_from("<I", data, size - 4)[0]
        return _mix(size + (first << 3), last, by)
    if size:
        y, z = data[0] + (data[size >> 1] << 8), size + (data[-1] << 2)
        return _fold(y * K2 ^ z * K0) * K2 & MASK
    return K2


def _pair32(data: bytes, size: int) -> Pair:
    by = _multiplier(size)
    a, b = _word(data, 0) * K1, _word(data, 8)
    c, d = _word(data, size - 8) * by, _word(data, size - 16) * K2
    return (_turn(a + b, 43) + _turn(c, 30) + d) & MASK, (a + _turn(b + K2, 18) + c) & MASK


def _to64(data: bytes, size: int) -> int:
    by = _multiplier(size)
    a, b = _word(data, 0) * K2, _word(data, 8)
    c, d = _word(data, size - 8) * by, _word(data, size - 16) * K2
    y = _turn(a + b, 43) + _turn(c, 30) + d
    z = _mix(y & MASK, (a + _turn(b + K2, 18) + c) & MASK, by)
    e, f = _word(data, 16) * by, _word(data, 24)
    g, h = (y + _word(data, size - 32)) * by, (z + _word(data, size - 24)) * by
    return _mix((_turn(e + f, 43) + _turn(g, 30) + h) & MASK, (e + _turn(f + a, 18) + g) & MASK, by)


def _weak(data: bytes, at: int, a: int, b: int) -> Pair:
    w, x, y, z = unpack_from("<4Q", data, at)
    a += w
    b = _turn(b + a + z, 21)
    c = a
    a += x + y
    return (a + z) & MASK, (b + _turn(a, 44) + c) & MASK


def _long(data: bytes, size: int) -> int:
    x, y = 81, (81 * K1 + 113) & MASK
    z = _fold(y * K2 + 113) * K2 & MASK
    v: Pair = (0, 0)
    w: Pair = (0, 0)
    x = (x * K2 + _word(data, 0)) & MASK
    rest = (size - 1) & 63
    for at in range(0, (size - 1) // 64 * 64, 64):
        x, y, z, v, w = _round(data, at, (x, y, z), v, w, K1, 1)
    by = K1 + ((z & 0xFF) << 1)
    w = ((w[0] + rest) & MASK, w[1])
    v = ((v[0] + w[0]) & MASK, v[1])
    w = ((w[0] + v[0]) & MASK, w[1])
    x, y, z, v, w = _round(data, size - 64, (x, y, z), v, w, by, 9)
    first = _mix(v[0], w[0], by) + _fold(y) * K0 + z
    return _mix(first & MASK, (_mix(v[1], w[1], by) + x) & MASK, by)


def _round(
    data: bytes, at: int, state: tuple[int, int, int], v: Pair, w: Pair, by: int, scale: int
) -> tuple[int, int, int, Pair, Pair]:
    x, y, z = state
    x = _turn(x + y + v[0] + _word(data, at + 8), 37) * by & MASK
    y = _turn(y + v[1] + _word(data, at + 48), 42) * by & MASK
    x ^= w[1] * scale & MASK
    y = (y + v[0] * scale + _word(data, at + 40)) & MASK
    z = _turn(z + w[0], 33) * by & MASK
    v = _weak(data, at, v[1] * by & MASK, (x + w[0]) & MASK)
    w = _weak(data, at + 32, (z + w[1]) & MASK, (y + _word(data, at + 16)) & MASK)
    return z, y, x, v, w
