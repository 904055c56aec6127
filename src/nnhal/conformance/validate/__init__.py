"""What a driver promises, checked operation by operation: `nnhal validate`."""
