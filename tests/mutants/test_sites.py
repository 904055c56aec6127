"""The mutation runner's own judgement: what it changes, what it leaves alone, what it calls equivalent."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, Coverage, equivalent, is_equivalent
from tests.mutants.sites import sites

SOURCE = b'''"""Documentation with 1 < 2."""

def f(x: int | None, n: int = 3) -> bool:
    """Says 5."""
    _log.debug("%d", 7)
    a.require(n < 4, "must be less than 4")
    if not x or x >= n:
        raise ValueError(f"is {n + 1}")
    for each in (x, -n):
        call(each)
        break
    return min(x, n) == 2 * n
'''


def changes(source: bytes) -> set[tuple[str, str]]:
    return {(site.was, site.text) for site in sites(Path("f.py"), source)}


def test_each_kind_of_change_is_made():
    assert changes(SOURCE) == {
        *(("3", "(3 + 1)"), ("4", "(4 + 1)"), ("2", "(2 + 1)")),
        *(("<", "<="), (">=", ">"), ("==", "!="), ("or", "and"), ("not", ""), ("-", ""), ("*", "+")),
        *(("min", "max"), ("break", "continue"), ("call(each)", "pass"), ("min(x, n) == 2 * n", "None")),
        *(('raise ValueError(f"is {n + 1}")', "pass"), ('a.require(n < 4, "must be less than 4")', "pass")),
    }


def test_lengths_that_are_always_alike_are_left_alone():
    assert changes(b"pairs = zip(x, y, strict=True)") == set()
    assert changes(b"pairs = call(x, stable=True)") == {("True", "False")}


def test_what_a_class_is_made_like_is_left_alone_and_its_defaults_are_not():
    assert changes(b"class A(Record, frozen=True, eq=False):\n    x: int = 1\n") == changes(b"x = 1\n")


def test_what_nobody_can_notice_is_left_alone():
    texts = {was for was, _ in changes(SOURCE)}
    assert not texts & {"1", "5", "7", "|", "int", "None"}


def test_every_change_is_python_and_changes_one_place():
    for site in sites(Path("f.py"), SOURCE):
        changed = site.applied(SOURCE)
        ast.parse(changed)
        assert changed != SOURCE
        assert changed[: site.start] == SOURCE[: site.start]
        assert SOURCE[site.end :] == changed[site.start + len(site.text) :]
        assert SOURCE.splitlines()[site.line - 1].decode().strip() in SOURCE.decode()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("path", sorted((ROOT / "src" / "nnhal" / "model").rglob("*.py")), ids=lambda path: path.stem)
def test_every_change_of_the_project_is_python(path):
    source = path.read_bytes()
    for site in sites(path, source):
        ast.parse(site.applied(source))


def test_the_tests_of_a_line_come_first_and_the_quickest_before_the_others():
    names, sees = "tests/base/test_codes.py::a", "tests/base/test_names.py::b"
    quick, path = "tests/base/test_names.py::c", Path("src/nnhal/base/codes.py")
    found = Coverage({(str(path), 7): frozenset([names, quick])}, {names: 2.0, sees: 1.0, quick: 0.5})
    by_text = {site.text: site for site in sites(path, SOURCE)}
    # Of line 7; the first imports the module; the last may look at what those have made for all of its file.
    assert found.tests_for(by_text["and"]) == [names, quick, sees]
    assert found.tests_for(by_text["continue"]) == [names, quick, sees]  # a line that no test runs: all of the room


@pytest.mark.nightly
def test_what_is_called_equivalent_is_still_there():
    for entry in equivalent():
        path = Path(entry["file"])
        source = (ROOT / path).read_bytes()
        lines = source.decode().splitlines()
        found = [site for site in sites(path, source) if is_equivalent(site, lines[site.line - 1], [entry])]
        assert found, entry
        assert entry["why"]


def test_coverage_takes_its_lock_where_no_interrupt_gets_in():
    program = (
        "import tests.mutants.uninterrupted, coverage\n"
        "c = coverage.Coverage(data_file=None); c.start(); c.stop()\n"
        "tracer = c._collector.tracers[0] if c._collector.tracers else c._collector\n"
        "print(type(tracer.lock_data).__name__, type(tracer.unlock_data).__name__)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said.split() == ["builtin_function_or_method"] * 2
