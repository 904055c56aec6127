"""Tokens: identify a model and its weights, if the application gives none.

A token is the hash of the model's structure and constants. Hashing 100 MB takes 0.1 s at each start. So the hash of a
file is stored under the file's identity, and computed again when that changes. The hash of a file that has just been
modified is not stored: the file could change again within one tick of its clock.
"""

import os
import struct
import time

from nnhal.base.descriptors import Owner
from nnhal.base.digests import blake2b
from nnhal.base.memory import Memory
from nnhal.model.graph import Model
from nnhal.model.stored import pack_device_view
from nnhal.runtime.cache.folder import CacheFolder

SETTLED_NS = 2_000_000_000  # the least age of a file's last change for its hash to be stored
MOST = 1024  # stored hashes
_RECORD = struct.Struct("<32s32s16s")  # identity, hash, checksum


def token_of(model: Model, folder: CacheFolder) -> bytes:
    """Return the token of a model."""
    token = blake2b(person=b"nnhal token", digest_size=32)
    for pool in model.pools:
        token.update(digest_of(pool, folder))
    token.update(pack_device_view(model))
    return token.digest()


def digest_of(pool: Memory, folder: CacheFolder) -> bytes:
    """Return the hash of a memory; it is stored if the memory was read from a file."""
    if pool.origin is None or abs(time.time_ns() - pool.origin.changed_ns) < SETTLED_NS:
        return _hashed(pool)
    identity = blake2b(repr((pool.origin, pool.size)).encode(), digest_size=32).digest()
    own = Owner()
    try:
        fd = folder.files.open("digests", os.O_RDWR | os.O_CREAT, own)
    except OSError:
        return _hashed(pool)
    try:
        records = list(_RECORD.iter_unpack(os.pread(fd, MOST * _RECORD.size, 0)[: _whole(fd)]))
        for known, digest, check in records:
            if known == identity and check == _check(identity, digest):
                return bytes(digest)
        digest = _hashed(pool)
        place = len(records) if len(records) < MOST else int.from_bytes(identity[:4], "little") % MOST
        os.pwrite(fd, _RECORD.pack(identity, digest, _check(identity, digest)), place * _RECORD.size)
        return digest
    except OSError:
        return _hashed(pool)
    finally:
        own.close()


def _whole(fd: int) -> int:
    size = min(os.fstat(fd).st_size, MOST * _RECORD.size)
    return size - size % _RECORD.size


def _check(identity: bytes, digest: bytes) -> bytes:
    return blake2b(identity + digest, digest_size=16).digest()


def _hashed(pool: Memory) -> bytes:
    return blake2b(pool.bytes().data, digest_size=32).digest()
