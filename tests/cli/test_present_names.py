"""Pages call commands by their present names."""

import re
from pathlib import Path

import pytest

from nnhal.cli.main import ALIASES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").glob("*.py")]
READ = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES if page.parent.name != "changes"}


@pytest.mark.parametrize(("alias", "now"), ALIASES.items())
def test_no_page_has_an_alias(alias, now):
    found = {name: hit[0] for name, text in READ.items() if (hit := re.search(rf"nnhal {alias}\b", text))}
    assert found == {}, f"must be nnhal {now}"
