"""Checks the driver contract, operation by operation: `nnhal test contract`."""
