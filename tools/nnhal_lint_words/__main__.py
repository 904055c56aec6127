"""The command line: `python -m nnhal_lint_words [--update] [PATH ...]`, in the root of the repository."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nnhal_lint_words import ratchet
from nnhal_lint_words.rules import Finding

SHOWN = 20  # findings of a group that has too many


def main(arguments: Sequence[str] | None = None, root: Path = Path(), file: Path = ratchet.FILE) -> int:
    """Runs the check and prints its result, the answer first.

    Args:
        arguments: The command line without the program's name; that of this process by default.
        root: The root of the repository.
        file: The committed numbers.

    Returns:
        The exit status: 1 if a package or page has more findings than allowed.
    """
    parser = argparse.ArgumentParser("nnhal_lint_words", description="Check the words of code and pages.")
    parser.add_argument("paths", nargs="*", help="list all findings below these paths instead")
    parser.add_argument("--update", action="store_true", help="lower the allowed numbers to those of now")
    options = parser.parse_args(arguments)
    found = ratchet.findings(root)
    if options.paths:
        return _listed([each for each in found if each.file.startswith(tuple(options.paths))])
    now = ratchet.counts(found)
    allowed = ratchet.read(file)
    if allowed is None:
        if not options.update:
            print(f"{file}: is missing, must be committed; run with --update to write it")
            return 1
        allowed = now
    more, fewer = ratchet.above(now, allowed), ratchet.below(now, allowed)
    print(f"{len(found)} findings, {sum(allowed.values())} allowed: {f'{len(more)} FAILED' if more else 'PASSED'}")
    for name, count in more.items():
        print(f"\n{name}: is {now[name]} findings, must be at most {count}; replace the words:")
        those = [each for each in found if ratchet.group_of(each.file) == name]
        print(*those[:SHOWN], sep="\n")
        if len(those) > SHOWN:
            print(f"and {len(those) - SHOWN} more: python -m nnhal_lint_words {name}")
    if options.update:
        ratchet.write({**now, **more}, file)  # never higher
    elif fewer:
        print(f"{len(fewer)} packages or pages have fewer findings than allowed: lower the numbers with --update")
    return 1 if more else 0


def _listed(found: Sequence[Finding]) -> int:
    print(f"{len(found)} findings")
    print(*found, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
