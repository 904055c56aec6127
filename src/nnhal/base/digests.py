"""BLAKE2b as Python has it: `hashlib` loads OpenSSL beside it, which takes longer than what a start has to hash."""

try:
    from _blake2 import blake2b
except ImportError:  # a Python whose hashes are all OpenSSL's
    from hashlib import blake2b

__all__ = ["blake2b"]
