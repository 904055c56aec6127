"""Pages call commands and options by their present names."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nnhal.cli.command import Command
from nnhal.cli.main import FORMERLY, NAMES, cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").glob("*.py")]
READ = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES if page.parent.name != "changes"}


def former() -> Iterator[tuple[str, str]]:
    """Patterns of former names, with the present ones."""
    yield from ((rf"nnhal {old}\b", f"nnhal {new}") for old, new in FORMERLY.items())
    for verb in NAMES:
        command = cli.get_command(click.Context(cli), verb)  # type: ignore[attr-defined]
        if isinstance(command, Command):
            present = {name for parameter in command.params for name in parameter.opts}
            for old, new in command.formerly.items():
                assert old not in present
                yield rf"nnhal {verb} [^\n`#]*{old}\b(?!-)", new


@pytest.mark.parametrize(("pattern", "now"), list(former()))
def test_no_page_has_a_former_name(pattern, now):
    assert {name: found[0] for name, text in READ.items() if (found := re.search(pattern, text))} == {}, now
