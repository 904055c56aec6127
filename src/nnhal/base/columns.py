"""Text for terminals: tables and sections of bounded width and height."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from unicodedata import east_asian_width

from nnhal.base.names import printable

WIDTH, HEIGHT = 100, 24  # columns and lines that output has by default
_GAP = 2  # columns between two cells


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(c) in "WF") for c in text)


def shortened(text: str, width: int) -> str:
    """The text as printable characters, shortened to so many columns with "…"."""
    text = printable(text)
    if cells(text) <= width:
        return text
    while text and cells(text) > width - 1:
        text = text[: min(len(text) - 1, width - 1)]
    return f"{text.rstrip()}…"


def wrap_text(text: str, *, most: int, indent: str = "", width: int = WIDTH, whole: bool = False) -> list[str]:
    """The text in at most so many lines; those behind the first are indented. whole: all of it, with no word broken."""
    from textwrap import wrap

    found = wrap(printable(text), width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=not whole)
    return (
        found
        if whole or len(found) <= most
        else [*found[: most - 1], shortened(" ".join([found[most - 1], "…"]), width)]
    )


def columns(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0, width: int = WIDTH
) -> list[str]:
    """The lines of a table. The last column is shortened where a line would be wider than `width`.

    Args:
        heads: of the columns; those that begin with ">" are aligned to the right. All empty: no line of heads.
        rows: the cells.
        indent: columns before the first.
        width: most columns of a line.
    """
    titles = [head.removeprefix(">") for head in heads]
    table = [[printable(str(cell)) for cell in row] for row in rows]
    every = [titles, *table] if any(titles) else table
    if not every:
        return []
    widths = [max(cells(row[n]) for row in every) for n in range(len(heads))]
    lines = []
    for row in every:
        text = " " * indent
        for n, cell in enumerate(row):
            pad = " " * (widths[n] - cells(cell))
            text += (pad + cell if heads[n].startswith(">") else cell + pad) + " " * _GAP
        lines.append(shortened(text.rstrip(), width))
    return lines


class Section(NamedTuple):
    """A part of an output that may be drawn in fewer lines.

    size: how many rows it has. draw: its lines with at most so many rows; one line reports how many were left out.
    """

    size: int
    draw: Callable[[int], list[str]]


def fixed(*lines: str) -> Section:
    """A section that is always drawn whole."""
    return Section(0, lambda _: list(lines))


def section(title: Sequence[str], rows: Sequence[str], what: str, where: str = "--verbose") -> Section:
    """A title and rows, of which the first are drawn. what: the rows are, in the plural. where: the others are shown."""

    def draw(most: int) -> list[str]:
        left = len(rows) - most
        if left <= 1:  # a line about one row takes as much room as the row
            return [*title, *rows] if rows else []
        return [*title, *rows[:most], f"  … {left} more {what}: {where}"]

    return Section(len(rows), draw)


def fitted(sections: Sequence[Section], height: int = HEIGHT) -> list[str]:
    """The lines of all sections, an empty line between two; the largest lose rows until all fit. height: 0 for any."""
    sizes = [each.size for each in sections]
    while True:
        drawn = [lines for each, size in zip(sections, sizes, strict=True) if (lines := each.draw(size))]
        found = [line for n, lines in enumerate(drawn) for line in ([""] if n else []) + lines]
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        if not height or len(found) <= height or sizes[largest] <= 1:
            return found
        sizes[largest] = min(sizes[largest] - 1, height)
