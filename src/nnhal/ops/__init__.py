"""One record for each operation; the table `OPS` loads the family of an operation on first use."""

from nnhal.ops.schema import OPS

__all__ = ["OPS"]
