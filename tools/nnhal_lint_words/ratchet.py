"""The committed number of findings of each package and page, which may only fall."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from nnhal_lint_words.rules import Finding, in_markdown, in_python

FILE = Path(__file__).with_name("allowed.txt")
PAGES = ("*.md", "docs/**/*.md")
NOT_MEASURED = ("CHANGELOG.md", "docs/changes/", "docs/contributing/")


def findings(root: Path) -> list[Finding]:
    """Returns all findings of the repository in `root`, in the order of their files and lines."""
    found: list[Finding] = []
    for path in sorted((root / "src").rglob("*.py")):
        found += in_python(path.relative_to(root).as_posix(), path.read_text())
    for path in sorted({path for pattern in PAGES for path in root.glob(pattern)}):
        file = path.relative_to(root).as_posix()
        found += in_markdown(file, path.read_text(), measured=not file.startswith(NOT_MEASURED))
    return sorted(found)


def group_of(file: str) -> str:
    """Returns what a file is counted with: its package of nnhal, the change fragments, or the page alone."""
    parts = file.split("/")
    if parts[0] == "src":
        return "/".join(parts[:3])
    return "docs/changes" if file.startswith("docs/changes/") else file


def counts(found: Iterable[Finding]) -> dict[str, int]:
    """Returns the number of findings of each package and page that has some."""
    return dict(sorted(Counter(group_of(finding.file) for finding in found).items()))


def read(file: Path = FILE) -> dict[str, int] | None:
    """Returns the committed numbers, or None if there is no such file.

    Raises:
        ValueError: A line is not `NUMBER NAME`.
    """
    if not file.exists():
        return None
    allowed = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        count, _, name = line.strip().partition(" ")
        if not (count.isdecimal() and name):
            raise ValueError(f"{file}:{number} is {line!r}, must be NUMBER NAME; delete the file and run with --update")
        allowed[name.strip()] = int(count)
    return allowed


def write(now: Mapping[str, int], file: Path = FILE) -> None:
    """Writes the numbers as the allowed ones."""
    file.write_text("".join(f"{count:5} {name}\n" for name, count in sorted(now.items())))


def above(now: Mapping[str, int], allowed: Mapping[str, int]) -> dict[str, int]:
    """Returns the groups that have more findings than allowed, with the number allowed. A new group may have none."""
    return {name: allowed.get(name, 0) for name, count in now.items() if count > allowed.get(name, 0)}


def below(now: Mapping[str, int], allowed: Mapping[str, int]) -> dict[str, int]:
    """Returns the groups that have fewer findings than allowed, with the number allowed."""
    return {name: count for name, count in allowed.items() if now.get(name, 0) < count}
