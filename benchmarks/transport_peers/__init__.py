"""Transports that nnhal's own is measured against: each echoes a request of 200 bytes between two processes."""
