"""Where the record of what was measured lies: known without opening it, as most starts have none."""

from pathlib import Path

from nnhal.hal.cache.tokens import state_folder

FILE = "measured.sqlite"


def path() -> Path:
    """The file. OSError where there is no place for it."""
    return state_folder() / FILE


def is_measured() -> bool:
    """Whether anything was measured."""
    try:
        return path().exists()
    except OSError:
        return False
