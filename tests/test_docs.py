"""The documentation: generated pages are up to date, links lead somewhere, terms have one definition, the site builds."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import generate_reference
import pytest

from nnhal.base import errors

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "changes")]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|:::).*?^\1$", re.MULTILINE | re.DOTALL)
SCRIPT = re.compile(r"""(?:src|href)=["'](https?:)?//[^"']*\.(?:js|css|woff2?)""")


SCRIPTS = [
    import_module(f"generate_{name}") for name in ("numerics", "operations", "onnx_operators", "tflite_operators")
]
TEXTS = {script.FILE: script.text for script in SCRIPTS} | {
    generate_reference.FOLDER / name: text for name, text in generate_reference.PAGES.items()
}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_a_page_that_is_generated_from_code_is_up_to_date(page: Path) -> None:
    assert page.read_text() == TEXTS[page](), "run python docs/generate_*.py"


def attributes_of_errors() -> Iterator[tuple[str, str]]:
    """The classes of errors that pages handle, and the attributes that they read."""
    for name, (_, fix) in generate_reference.CAUSES.items():
        yield from ((name, attribute) for attribute in re.findall(r"`\.(\w+)`", fix))
    for page in PAGES:
        for name, handler in re.findall(
            r"^except nnhal\.(\w+) as error:\n((?: .*\n)+)", page.read_text(), re.MULTILINE
        ):
            yield from ((name, attribute) for attribute in re.findall(r"\berror\.(\w+)", handler))


def test_errors_have_the_attributes_that_pages_read() -> None:
    named = set(attributes_of_errors())
    assert {("MissedDeadline", "status"), ("NnhalError", "code"), ("UnsupportedModel", "refused")} <= named
    assert [(name, of) for name, of in sorted(named) if not hasattr(getattr(errors, name)("why"), of)] == []


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The names of headings, as GitHub and MyST make them."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).replace("`", "").lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in plain}


def dead_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if ":" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert list(dead_links(page)) == []


def test_the_program_names_no_page_that_is_not_there() -> None:
    named = {
        (str(file.relative_to(ROOT)), page)
        for folder in ("src", "benchmarks", "examples", "docs")
        for file in (ROOT / folder).rglob("*.py")
        for page in re.findall(r"\bdocs/[\w/-]+\.(?:md|svg|json)\b", file.read_text("utf-8"))
    }
    assert sorted((file, page) for file, page in named if not (ROOT / page).exists()) == []


def test_each_term_of_the_glossary_has_one_definition() -> None:
    text = (DOCS / "reference" / "glossary.md").read_text()
    terms = Counter(term for words in re.findall(r"\*\*(.+?)\*\*", text) for term in words.split(", "))
    assert len(terms) > 50 and [term for term, count in terms.items() if count > 1] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_the_readme_counts_operations_and_operators_as_the_reference_does() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    operations = (DOCS / "reference" / "operations.md").read_text().count("\n| [")
    assert f"all {operations} operations" in readme
    for page, kind in ("tflite", "TFLite"), ("onnx", "ONNX"):
        text = " ".join((DOCS / "reference" / f"{page}-operators.md").read_text().split())
        found = re.search(r"imports (\d+) of the (\d+) operators", text)
        assert found is not None and f"{found[1]} of {found[2]} [{kind} operators]" in readme


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    there = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if DOCS in page.parents} - {"index"}
    assert there == listed


@pytest.mark.skipif(not all(map(find_spec, ("sphinx", "furo", "myst_parser"))), reason="needs the extra docs")
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    command = [DOCS / "build", "-d", tmp_path / "doctrees"]
    environment = {**os.environ, "PYTHON": sys.executable, "SITE": str(tmp_path / "site")}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES) / 2 and (tmp_path / "site" / "searchindex.js").exists()
    assert [page.name for page in pages if SCRIPT.search(page.read_text())] == []
