"""Names from files are untrusted: their printable versions cannot control a terminal or a picture."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

LONGEST = 100  # characters of a member's name


def printable(text: str, keep: str = "") -> str:
    r"""Return text that is safe on a terminal: control characters and bidirectional overrides become `\x1b`, `\u202e`.

    keep: characters that stay, such as the caller's line ends.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def short(text: str) -> str:
    """Return a printable name of bounded length."""
    return printable(text[:200]) + " ..." * (len(text) > 200)


def is_path(driver: str) -> bool:
    """Whether a driver is given by the path of its file or package, not by name."""
    return driver.endswith(".py") or os.sep in driver


def name_of(driver: str) -> str:
    """Return the name of a driver that is given by path or name."""
    return Path(driver).stem if is_path(driver) else driver


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the question whether a known name was meant, for the end of an error; "" if none is similar."""
    from difflib import get_close_matches

    found = get_close_matches(name[:LONGEST], list(known), 2)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def unique(names: Iterable[str]) -> list[str]:
    """Return unique names: repeated ones get a number. Upper and lower case count as equal."""
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
    """Return for each a unique name of an archive member: a short, printable relative path without `..`."""
    return unique(map(_member, names))


def _member(name: str) -> str:
    parts = [part for part in printable(name[:LONGEST]).replace("\\", "_").split("/") if part.strip(". ")]
    return "/".join(parts)[:LONGEST].strip("/ ") or "output"
