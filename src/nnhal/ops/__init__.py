"""One record for each operation; the table `OPS` loads the family of one when it is first asked for."""

from nnhal.ops.schema import OPS

__all__ = ["OPS"]
