"""Files that a script writes out of the project: written, or with `--check` compared with what is there."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import wrap

WIDTH = 100  # characters of a line of prose
WHOLE = re.compile(r"`[^`]*`|!?\[[^\]]*\]\([^)]*\)")  # code and links, which are not broken
ITEM = re.compile(r" *(?:[-*]|\d+\.) +")


def folded(text: str) -> str:
    """A page whose lines of prose have at most WIDTH characters. Tables, headings and code stay as they are."""
    return "\n".join(_folded(text.split("\n")))


def _folded(lines: list[str]) -> Iterator[str]:
    code = False
    for line in lines:
        code ^= line.startswith("```")
        if code or len(line) <= WIDTH or line.startswith(("|", "#")):
            yield line
        else:
            item = ITEM.match(line)
            whole = WHOLE.sub(lambda found: found[0].replace(" ", "\0") if len(found[0]) < WIDTH else found[0], line)
            indent = " " * (item.end() if item else 0)
            for part in wrap(whole, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False):
                yield part.replace("\0", " ")


def main(file: Path, text: Callable[[], str]) -> int:
    """Write the file, or say that it is stale; the exit status."""
    if "--check" not in sys.argv[1:]:
        file.write_text(text())
        return 0
    if file.exists() and file.read_text() == text():
        return 0
    print(f"{file.name} is stale, must be written again: python docs/{Path(sys.argv[0]).name}", file=sys.stderr)
    return 1
