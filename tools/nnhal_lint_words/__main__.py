"""The command line: `python -m nnhal_lint_words [PATH ...]`, in the root of the repository."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nnhal_lint_words.rules import Finding, in_markdown, in_python

PAGES = ("*.md", "docs/**/*.md")
NOT_MEASURED = ("CHANGELOG.md", "docs/changes/", "docs/contributing/")


def main(arguments: Sequence[str] | None = None, root: Path = Path()) -> int:
    """Runs the check and prints its result, the answer first.

    Args:
        arguments: The command line without the program's name; that of this process by default.
        root: The root of the repository.

    Returns:
        The exit status: 1 if there are findings.
    """
    parser = argparse.ArgumentParser("nnhal_lint_words", description="Check the words of code and pages.")
    parser.add_argument("paths", nargs="*", help="check files below these paths only")
    paths = tuple(parser.parse_args(arguments).paths)
    found = [each for each in findings(root) if each.file.startswith(paths or "")]
    print(f"{len(found)} findings: {'FAILED, replace the words' if found else 'PASSED'}", *found, sep="\n")
    return 1 if found else 0


def findings(root: Path) -> list[Finding]:
    """Returns all findings of the repository in `root`, in the order of their files and lines."""
    found: list[Finding] = []
    for path in sorted((root / "src").rglob("*.py")):
        found += in_python(path.relative_to(root).as_posix(), path.read_text())
    for path in sorted({path for pattern in PAGES for path in root.glob(pattern)}):
        file = path.relative_to(root).as_posix()
        found += in_markdown(file, path.read_text(), measured=not file.startswith(NOT_MEASURED))
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
