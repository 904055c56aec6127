"""Measurements on this machine, and their use in placement. Most starts have none, and do not open the record."""

from pathlib import Path

from nnhal.hal.cache.tokens import state_folder

FILE = "measured.sqlite"


def path() -> Path:
    """The file of the record. OSError where there is no place for it."""
    return state_folder() / FILE


def is_measured() -> bool:
    """Whether anything was measured."""
    try:
        return path().exists()
    except OSError:
        return False
