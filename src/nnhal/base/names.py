"""Names that files give: data, which may hold anything. What is shown of them commands no terminal and no picture."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

LONGEST = 100  # characters of a member's name


def printable(text: str, keep: str = "") -> str:
    r"""Text as it may stand on a terminal: escapes, controls, bidirectional overrides and the like are `\x1b`, `\u202e`.

    keep: characters that are left as they are, such as the ends of lines that the caller wrote.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def short(text: str) -> str:
    """Printable, and of bounded length."""
    return printable(text[:200]) + " ..." * (len(text) > 200)


def is_path(driver: str) -> bool:
    """Whether a driver is given by the path of its file or package; else it is given by name."""
    return driver.endswith(".py") or os.sep in driver


def name_of(driver: str) -> str:
    """What a driver that is given by path or name is called."""
    return Path(driver).stem if is_path(driver) else driver


def meant(name: str, known: Iterable[str]) -> str:
    """A question at the end of an error: whether one of the names that there are was meant; "" where none is like it."""
    from difflib import get_close_matches

    found = get_close_matches(name[:LONGEST], list(known), 2)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def unique(names: Iterable[str]) -> list[str]:
    """The names, those that were there before with a number behind them; letters of either case are alike."""
    count: Counter[str] = Counter()
    taken: set[str] = set()
    found = []
    for name in names:
        new = name
        while new.casefold() in taken:
            count[name.casefold()] += 1
            new = f"{name}_{count[name.casefold()] + 1}"
        taken.add(new.casefold())
        found.append(new)
    return found


def member_names(names: Iterable[str]) -> list[str]:
    """A name for each that can be a member of an archive: a relative path without `..`, printable, short, no two alike."""
    return unique(map(_member, names))


def _member(name: str) -> str:
    parts = [part for part in printable(name[:LONGEST]).replace("\\", "_").split("/") if part.strip(". ")]
    return "/".join(parts)[:LONGEST].strip("/ ") or "output"
