"""The table of devices and suites: the page is that of the stored cells, and a cell is what `nnhal test` reported."""

from tests.suites import results
from tests.suites.results import BAD, DRIVERS, PAGE, cell_of, measured, page, stored

ENGINES = "litert", "onnxruntime", "openvino"


def test_the_page_is_drawn_from_the_stored_cells() -> None:
    assert PAGE.read_text() == page(stored()), "must be written again: python -m tests.suites.results --draw"


def test_no_included_device_has_an_unexplained_failure() -> None:
    cells = stored()
    assert {device for device, _ in cells} == {*ENGINES, "reference", *DRIVERS}
    assert [cell for cell in cells.values() if any(cell.totals[verdict] for verdict in BAD)] == []


def test_a_cell_is_counted_and_named() -> None:
    totals = {"passed": 2, "failed": 1, "crashed": 1, "hung": 0, "expected": 3, "skipped": 4, "unsupported": 5}
    cases = [
        {"name": "a", "verdict": "failed"},
        {"name": "b", "verdict": "crashed"},
        {"name": "c", "verdict": "passed"},
    ]
    suite = {"suite": "random", "totals": totals, "time_ns": 1_260_000_000, "error": "", "cases": cases}
    options = {"sample": 0.25, "scale": 1.0, "seed": 7}
    cell = cell_of({"device": "litert", "version": "1", "options": options, "suites": [suite]}, "2026-01-01")
    assert (cell.counts, cell.seconds, list(cell.bad)) == ("2 / 2 (3 expected) / 9", 1.3, ["a", "b"])
    text = page({("litert", "random"): cell})
    assert "| `litert` |" in text and "- `random` on `litert`: `--sample 0.25`" in text
    assert "- `b` of `random` on `litert`" in text


def test_a_suite_runs_by_the_users_command() -> None:
    cell = measured("mine", "contract", sample=0.02, scale=1.0, seed=0, vectors=results.DEFAULT_VECTORS)
    assert (cell.device, cell.suite, cell.sample, cell.error) == ("mine", "contract", 0.02, "")
    assert cell.totals["passed"] > 0 and not cell.is_bad
