"""BLAKE2b without `hashlib`, which loads OpenSSL; that takes longer than all hashing at start."""

try:
    from _blake2 import blake2b
except ImportError:  # in a Python build whose hashes all come from OpenSSL
    from hashlib import blake2b

__all__ = ["blake2b"]
