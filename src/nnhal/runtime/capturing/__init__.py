"""Captures a HAL session in a file: `session` writes it, `requests` sees the executions, `reader` reads it."""
