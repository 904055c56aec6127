"""The table of devices and suites: runs `nnhal test` for each, keeps the counts, and draws a page of them.

    python -m tests.suites.results --write                                   # every device and suite
    python -m tests.suites.results --write --device litert --suite random    # one cell; the others stay

The counts are in `results.json` here, the page is docs/reference/test-results.md. A cell that runs replaces the stored
one. Without --write the command prints the cells that ran. The exit code is 1 if a case of these was bad.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from nnhal.base.records import Record, as_dict
from nnhal.conformance.suites.report.results import EXPECTED
from nnhal.conformance.suites.run import SUITES, VECTORS
from nnhal.runtime import discovery
from tests.conftest import DEFAULT_VECTORS

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
STORED = HERE / "results.json"
PAGE = ROOT / "docs" / "reference" / "test-results.md"
DRIVERS = {"mine": "examples/my_driver.py"}  # drivers that are not installed: the device's name, and its file
TIMEOUT = 60.0  # seconds of a call: other programs may use the cores
BAD = "failed", "crashed", "hung"
HEAD = """# Test results

*For driver engineers: what the included devices pass.* Each cell has the cases of one suite of
`nnhal test` on one device: *passed / bad / not tested*.

- Bad cases failed, crashed or hung.
- Cases are not tested if the device does not support what they need, or if the machine does not
  allow to judge them.
- An empty cell has no run yet.

[Test a driver](../how-to/drivers/test-a-driver.md) explains the suites. The device `mine` is
`examples/my_driver.py`. nnhal {version} wrote the last cell on {date}, and this page by
`python -m tests.suites.results --write`.

"""
PARTS = """
## Parts of suites

These runs left cases out. `--sample` chooses a share by a hash of the cases' names. `--scale` draws
fewer cases and shortens measurements.

"""
NOTHING = """
## Suites that tested nothing

"""
TIMES = """
## Run times

Seconds for one run of a suite. Two cores ran it beside other programs, so these are upper bounds.

"""
BAD_CASES = """
## Bad cases

"""


class SuiteCell(Record, frozen=True):
    """The results of one suite on one device.

    totals: the number of cases of each verdict. seconds: the duration. sample, scale, seed: the options of the run.
    error: why nothing was tested; "" otherwise. bad: the names of bad cases.
    """

    device: str
    suite: str
    totals: Mapping[str, int]
    seconds: float
    sample: float
    scale: float
    seed: int
    version: str
    date: str
    error: str = ""
    bad: Sequence[str] = ()

    @property
    def counts(self) -> str:
        """Passed, bad and untested cases; the number of expected failures, if there are any."""
        expected = self.totals[EXPECTED]
        bad = sum(self.totals[verdict] for verdict in BAD)
        others = self.totals["skipped"] + self.totals["unsupported"]
        more = f" ({expected:,} expected)" if expected else ""
        return f"{self.totals['passed']:,} / {bad:,}{more} / {others:,}"

    @property
    def is_bad(self) -> bool:
        """Whether a case was bad."""
        return bool(self.bad)

    @property
    def part(self) -> str:
        """The options that made the run a part of the suite; "" for a whole one."""
        given = {"sample": self.sample, "scale": self.scale}
        return ", ".join(f"`--{name} {value:g}`" for name, value in given.items() if value != 1)


def measured(
    device: str, suite: str, *, sample: float, scale: float, seed: int, vectors: Path, timeout: float = TIMEOUT
) -> SuiteCell:
    """Run one suite on one device, by the command that users run."""
    with tempfile.TemporaryDirectory(prefix="nnhal-results-") as folder:
        words = [sys.executable, "-m", "nnhal.cli.main", "test", suite, "--report", folder]
        words += ["--sample", f"{sample}", "--scale", f"{scale}", "--seed", f"{seed}", "--timeout", f"{timeout}"]
        words += ["--driver", str(ROOT / DRIVERS[device])] if device in DRIVERS else ["--device", device]
        words += ["--vectors", str(vectors)] if suite == VECTORS else []
        expected = HERE / "expected" / f"{device}.toml"
        words += ["--expected", str(expected)] if expected.exists() else []
        done = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True)
        report = Path(folder, "results.json")
        if not report.exists():
            raise SystemExit(f"{' '.join(words)}: exit status {done.returncode} and no report")
        return cell_of(json.loads(report.read_text()), time.strftime("%Y-%m-%d", time.gmtime()))


def cell_of(document: Mapping[str, Any], date: str) -> SuiteCell:
    """Return the cell of a report of one suite."""
    (suite,), options = document["suites"], document["options"]
    return SuiteCell(
        document["device"],
        suite["suite"],
        suite["totals"],
        round(suite["time_ns"] / 1e9, 1),
        options["sample"],
        options["scale"],
        options["seed"],
        document["version"],
        date,
        suite["error"],
        [case["name"] for case in suite["cases"] if case["verdict"] in BAD],
    )


def stored() -> dict[tuple[str, str], SuiteCell]:
    """Return the stored cells, by device and suite."""
    cells = json.loads(STORED.read_text()) if STORED.exists() else []
    return {(each["device"], each["suite"]): SuiteCell(**each) for each in cells}


def store(cells: Mapping[tuple[str, str], SuiteCell]) -> None:
    """Write the cells, and the page."""
    ordered = [as_dict(cells[key]) for key in sorted(cells)]
    STORED.write_text(json.dumps(ordered, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(cells))


def page(cells: Mapping[tuple[str, str], SuiteCell]) -> str:
    """Return the page."""
    devices = sorted({device for device, _ in cells}, key=lambda name: (name != "reference", name in DRIVERS, name))
    ordered = [cells[device, suite] for device in devices for suite in SUITES if (device, suite) in cells]
    last = max(ordered, key=lambda cell: cell.date)
    parts = [f"`{cell.suite}` on `{cell.device}`: {cell.part}" for cell in ordered if cell.part]
    notes = [f"`{cell.suite}` on `{cell.device}`: {cell.error}" for cell in ordered if cell.error]
    bad = [f"`{name}` of `{cell.suite}` on `{cell.device}`" for cell in ordered for name in cell.bad]
    suites = [suite for suite in SUITES if any(suite == cell.suite for cell in ordered)]
    text = [HEAD.format(date=last.date, version=last.version), *_table(devices, suites, cells, "counts")]
    for head, lines in ((PARTS, parts), (NOTHING, notes), (BAD_CASES, bad)):
        text += [head, *map(_item, lines)] if lines else []
    return "".join([*text, TIMES, *_table(devices, suites, cells, "seconds")])


def _item(text: str) -> str:
    return fill(text, 100, initial_indent="- ", subsequent_indent="  ", break_long_words=False) + "\n"


def _table(
    devices: Sequence[str], suites: Sequence[str], cells: Mapping[tuple[str, str], SuiteCell], field: str
) -> Iterator[str]:
    yield f"| Device | {' | '.join(suites)} |\n"
    yield f"|{' --- |' * (1 + len(suites))}\n"
    for device in devices:
        shown = [cells.get((device, suite)) for suite in suites]
        yield f"| `{device}` | {' | '.join(str(getattr(cell, field)) if cell else '' for cell in shown)} |\n"


def main() -> int:
    """The command."""
    installed = [found.name for found in discovery.found_with_engines() if found.device is not None]
    devices = [*installed, *DRIVERS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", action="append", choices=devices, help="only this device; may be repeated")
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this suite; may be repeated")
    parser.add_argument("--sample", type=float, default=1.0, help="share of the cases (default: %(default)s)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor of drawn cases and times (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds of a call (default: %(default)s)")
    parser.add_argument("--vectors", type=Path, default=Path(os.environ.get("NNHAL_VECTORS", DEFAULT_VECTORS)))
    parser.add_argument("--write", action="store_true", help=f"write {STORED.name} and the page {PAGE.name}")
    parser.add_argument("--draw", action="store_true", help="write the page from the stored cells; run nothing")
    given = parser.parse_args()
    if given.draw:
        store(stored())
        return 0
    bad = False
    for device in given.device or devices:
        for suite in given.suite or SUITES:
            cell = measured(
                device,
                suite,
                sample=given.sample,
                scale=given.scale,
                seed=given.seed,
                vectors=given.vectors,
                timeout=given.timeout,
            )
            bad |= cell.is_bad
            print(f"{device:12} {suite:9} {cell.counts:24} {cell.seconds:7.1f} s {cell.error}", *cell.bad, sep="\n  ")
            if given.write:
                store({**stored(), (device, suite): cell})
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
