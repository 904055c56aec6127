"""Keeps LiteRT's greeting off stderr.

The first interpreter with XNNPACK in a process writes a line that no setting silences. So the driver makes that one
itself, from a model that does nothing else.
"""

from collections.abc import Callable

from nnhal.drivers.kit.engine_log import filter_stderr

GREETING = b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU."


def drop_greeting(call: Callable[[], object]) -> None:
    """Call a function, and drop the greeting from what is written to stderr meanwhile."""
    filter_stderr(call, lambda line, whole: line == GREETING if whole else GREETING.startswith(line))
