"""Files that a script writes out of the project: written, or with `--check` compared with what is there."""

import sys
from collections.abc import Callable
from pathlib import Path


def main(file: Path, text: Callable[[], str]) -> int:
    """Write the file, or say that it is stale; the exit status."""
    if "--check" not in sys.argv[1:]:
        file.write_text(text())
        return 0
    if file.exists() and file.read_text() == text():
        return 0
    print(f"{file.name} is stale, must be written again: python docs/{Path(sys.argv[0]).name}", file=sys.stderr)
    return 1
