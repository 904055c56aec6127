"""`nnhal test`: suites of tests on a device, with one table, and reports as JUnit XML, JSON and an HTML page."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from nnhal.base.brief import with_count as many
from nnhal.base.columns import WIDTH, columns
from nnhal.base.errors import InvalidArgument, NnhalError
from nnhal.base.names import printable, suggestion
from nnhal.base.records import Record, replace
from nnhal.base.version import __version__
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.judged import run_with_progress, timeout_option
from nnhal.cli.main import ANSWER_NO
from nnhal.cli.vectors import specs_type, temporary
from nnhal.conformance.device_under_test import ANY
from nnhal.conformance.execution_paths import WAYS
from nnhal.conformance.pool import TaskResult
from nnhal.conformance.specs.archive import SUFFIX, UNTESTED
from nnhal.conformance.suites.report import expected as expected_failures
from nnhal.conformance.suites.report.documents import as_json as document_of
from nnhal.conformance.suites.report.documents import as_junit
from nnhal.conformance.suites.report.lines import as_lines
from nnhal.conformance.suites.report.page import as_page
from nnhal.conformance.suites.report.results import EXPECTED, ExpectedFailure, SuiteResult, TestReport
from nnhal.conformance.suites.run import ONLY_FOR, SUITES, VECTORS, Progress, listed, notes_of, run_suite
from nnhal.conformance.suites.suite import CaseOutcome, SuiteRun
from nnhal.ops import OPS

PAGE, JUNIT, DOCUMENT = "index.html", "junit.xml", "results.json"
_JUDGED = "passed", "failed", "crashed", "hung"
folder_type = click.Path(exists=True, file_okay=False, path_type=Path)
file_type = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Plan(Record, frozen=True):
    """The suites to run, and how."""

    names: Sequence[str]
    run: SuiteRun
    expectations: Sequence[ExpectedFailure]
    jobs: int
    quiet: bool


@nnhal_command("test")
@click.argument("suites", nargs=-1, metavar="SUITE...")
@click.option("--device", "-d", default="", help="Device under test (default: that of --driver, else reference).")
@common.driver_option
@common.option_option
@common.isolate_option
@click.option(
    "--level",
    "--version",
    "level",
    default="",
    metavar="VERSION",
    help="Test the device at this HAL version: 1.0 to 1.3.",
)
@click.option(
    "--sample",
    default=1.0,
    show_default=True,
    metavar="FRACTION",
    help="Run this share of the cases, chosen by a hash.",
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    metavar="NAME",
    help="Run only cases of this operation; may be repeated.",
)
@click.option("--filter", "pattern", default="", metavar="REGEX", help="Run only cases whose name matches.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random choices.")
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Multiply the number of drawn cases and calls, and the durations.",
)
@timeout_option("Time until a call of the driver counts as hung.")
@common.jobs_option("Processes that run cases at once.")
@click.option("--vectors", type=folder_type, help="Folder of test vectors, for the suite vectors.")
@click.option("--specs", type=specs_type, help="AOSP's test specifications, instead of --vectors.")
@click.option("--flag", default="", help="Run only vectors with this flag, such as deviceMemory.")
@click.option("--published-only", is_flag=True, help="Leave out the variants that nnhal derives from vectors.")
@click.option(
    "--execution-path",
    type=click.Choice(list(WAYS)),
    default="plain",
    show_default=True,
    help="How the driver executes a vector.",
)
@click.option("--model", type=click.Path(), default="", metavar="MODEL", help="Your model, for the suite mlts.")
@click.option(
    "--data",
    type=click.Path(),
    default="",
    metavar="DIR",
    help="Inputs of your model, or a folder of them for each class, for the suite mlts, or saved inputs for fuzz.",
)
@click.option(
    "--labels", type=click.Path(), default="", metavar="FILE", help="Classes of your inputs, for the suite mlts."
)
@click.option(
    "--expected",
    type=file_type,
    metavar="FILE",
    help="TOML file of expected failures. A listed case that passes fails the run.",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Write {PAGE}, {JUNIT} and {DOCUMENT} here, and a vector of each kind of failure.",
)
@click.option("--list", "as_list", is_flag=True, help="List the suites, or the cases of SUITE, and run none.")
@common.verbose_option
@common.json_option
def command(
    suites: Sequence[str],
    specs: Path | None,
    expected: Path | None,
    report: Path | None,
    jobs: int,
    as_list: bool,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run test suites on a device.

    `nnhal test --list` shows the suites. The exit code is 1 if a case fails, crashes or hangs, or if one of several suites
    tests nothing. It is 2 if nothing is tested at all.
    """
    names = _known(suites) if suites or not as_list else []
    vectors = options["vectors"]
    if VECTORS in names and (vectors is None) == (specs is None):
        raise click.UsageError("the suite vectors needs a folder of test vectors: give --vectors DIR or --specs DIR")
    try:
        re.compile(options["pattern"])
    except re.error as error:
        raise click.UsageError(f"--filter {options['pattern']!r}: must be a regular expression: {error}") from None
    given = {
        "options": common.parse_options(options.pop("driver_options"), None, options["device"] or ANY),
        "operations": frozenset(name.upper() for name in options["operations"]),
        "vectors": str(vectors or ""),
        "specs": str(specs or ""),
        "report": str(report.absolute()) if report is not None else "",
    }
    run = SuiteRun(**options | given)
    _require_use(names, run)
    if as_list:
        return _list(names, run, as_json)
    plan = _Plan(names, run, expected_failures.read(expected) if expected is not None else [], jobs, as_json)
    if report is not None:
        _make(report)
    with _first_interrupt_only():
        found = _run(plan)
        if report is not None:
            _write(report, found)
        nothing = not found.stopped and not any(each.verdict in (*_JUDGED, EXPECTED) for each in found.results)
        _show(found, report, verbose=verbose, as_json=as_json, errors=not nothing)
    if found.stopped:
        raise click.Abort
    if nothing:
        raise click.UsageError("; ".join(f"suite {suite.name}: {suite.error}" for suite in found.suites))
    return ANSWER_NO if found.is_bad else 0


def _known(suites: Sequence[str]) -> list[str]:
    """The names of the suites, each once; a name that is unknown may be like one."""
    if not suites:
        raise click.UsageError(f"SUITE is missing, must be one or more of {', '.join(SUITES)}")
    for name in suites:
        if name not in SUITES:
            like = suggestion(name, SUITES) or f", must be one of {', '.join(SUITES)}"
            raise click.UsageError(f"suite {name!r} is unknown{like}")
    return list(dict.fromkeys(suites))


def _require_use(names: Sequence[str], run: SuiteRun) -> None:
    """Raise UsageError for an option that applies to none of the suites."""
    for name, suites in ONLY_FOR.items():
        if getattr(run, name) != getattr(SuiteRun(), name) and not set(suites) & set(names):
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} applies to the suite {' and '.join(suites)}, must be given with it")


def _list(names: Sequence[str], run: SuiteRun, as_json: bool) -> int:
    """List the suites, or the cases of some."""
    if run.specs:
        raise click.UsageError("--list lists the vectors of a folder, must be given with --vectors DIR")
    rows = [(name, case, what) for name in names for case, what in listed(name, run)]
    if not names and as_json:
        common.print_json([{"suite": name, "tests": what} for name, what in SUITES.items()])
    elif not names:
        common.table(["suite", "tests"], SUITES.items())
    elif as_json:
        common.print_json([dict(zip(("suite", "case", "tests"), row, strict=True)) for row in rows])
    else:
        for line in columns(["suite", "case", "tests"], rows, width=sys.maxsize):
            click.echo(line)
    return 0


@contextmanager
def _first_interrupt_only() -> Iterator[None]:
    """A first Ctrl-C is a KeyboardInterrupt, and leaves the time to write a report. A second one ends the command."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def struck(*_: Any) -> None:
        signal.signal(signal.SIGINT, before)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, struck)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# --------------------------------------------------------------------------------------------------------------- running


def _run(plan: _Plan) -> TestReport:
    """Run the suites, one after another. Raises the error of a device or a file if no suite came further."""
    done: list[SuiteResult] = []
    errors: list[NnhalError] = []
    device, stopped = plan.run.named, False
    for n, name in enumerate(plan.names, 1):
        if stopped:
            done.append(SuiteResult(name, error="interrupted before it began"))
            continue
        which = f"{name} ({n} of {len(plan.names)})" if len(plan.names) > 1 else name
        one = _OneSuite(name, plan)
        stopped = one.run(which)
        errors += one.errors
        device = one.device or device
        done.append(one.result())
    if errors and not any(suite.results for suite in done):
        raise errors[0]
    return TestReport(device, plan.run, done, __version__, stopped)


class _OneSuite:
    """A suite as it runs: what came so far survives an interrupt wherever it strikes."""

    def __init__(self, name: str, plan: _Plan) -> None:
        self._name, self._plan = name, plan
        self._outcomes: list[CaseOutcome] = []
        self._done, self._total, self._seconds = 0, 0, 0.0
        self._stopped = False
        self._unreadable: Sequence[str] = ()
        self._calls: Counter[str] = Counter()
        self.errors: list[NnhalError] = []
        self.device = ""

    def run(self, which: str) -> bool:
        """Run it to its end; return whether an interrupt came."""
        run, plan, begin = self._plan.run, self._plan, time.monotonic()
        try:
            specs = Path(run.specs) if self._name == VECTORS and run.specs else None
            with temporary(specs, plan.jobs, plan.quiet) if specs is not None else nullcontext() as built:
                if built is not None:
                    self._unreadable = built[1].errors
                    self._outcomes += _untested(built[1].untested, run)
                    run = replace(run, vectors=str(built[0]))
                results = self._kept(run_suite(self._name, run, plan.jobs))
                run_with_progress(results, "cases", f"{which} on", run.named, plan.quiet)
        except KeyboardInterrupt:
            self._stopped = True
        except NnhalError as error:
            self.errors.append(error)
        self._seconds = time.monotonic() - begin
        return self._stopped

    def _kept(self, progress: Generator[Progress, None, None]) -> Generator[tuple[TaskResult, int, int], None, None]:
        with closing(progress):
            for some, self._done, self._total, self.device, calls in progress:
                self._outcomes += some
                self._calls.update(calls)
                yield TaskResult(some, Counter(), self.device), self._done, self._total

    def result(self) -> SuiteResult:
        """The results, next to the expected failures."""
        run = self._plan.run
        results, unmatched = expected_failures.held_against(self._name, self._outcomes, self._plan.expectations)
        whole = not (self._stopped or self.errors or _selecting(run))
        left = max(1, self._total - self._done) if self._stopped else 0
        return SuiteResult(
            self._name,
            results,
            self._seconds,
            self._error(),
            left,
            unmatched if whole else (),
            notes_of(self._name, self._outcomes),
            self._calls,
        )

    def _error(self) -> str:
        if self.errors:
            return str(self.errors[0])
        if self._unreadable:
            return f"{many(len(self._unreadable), 'specification')} cannot be read: {self._unreadable[0]}"
        if self._stopped or any(outcome.verdict in _JUDGED for outcome in self._outcomes):
            return ""
        if self._outcomes:
            why, number = Counter(outcome.reason for outcome in self._outcomes).most_common(1)[0]
            return f"nothing was tested, {number:,} of {len(self._outcomes):,} cases: {why}"
        asked = _selecting(self._plan.run)
        unknown = next((name for name in sorted(self._plan.run.operations) if name not in OPS), "")
        like = suggestion(unknown, OPS) if unknown else ""
        selected = f"no case is selected by {' and '.join(asked)}{like}"
        return f"nothing was tested: {selected if asked else 'it has no case'}"


def _untested(specifications: Sequence[Path], run: SuiteRun) -> Iterator[CaseOutcome]:
    """Specifications without a test, as skipped cases: they have no operation and no flag."""
    for file in specifications:
        name = f"{file.resolve().parent.name}/{file.name.removesuffix(SUFFIX)}"
        if not (run.operations or run.flag) and re.search(run.pattern, name):
            yield CaseOutcome(VECTORS, name, "skipped", UNTESTED)


def _selecting(run: SuiteRun) -> list[str]:
    """The options that leave cases out."""
    return [
        *(f"--operation {name}" for name in sorted(run.operations)),
        *[f"--filter {run.pattern!r}"] * bool(run.pattern),
        *[f"--flag {run.flag}"] * bool(run.flag),
        *["--published-only"] * run.published_only,
        *[f"--sample {run.sample:g}"] * (run.sample < 1),
    ]


# --------------------------------------------------------------------------------------------------------------- reports


def _make(folder: Path) -> None:
    """Make the folder of the report before the suites run, and not after hours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"report {folder}: cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidArgument(f"report {folder}: is not writable, must be a folder that can be written")


def _write(folder: Path, report: TestReport) -> None:
    files = {
        DOCUMENT: json.dumps(common.plain(document_of(report)), indent=1, default=str).encode(),
        JUNIT: as_junit(report),
        PAGE: as_page(report).encode("utf-8", "backslashreplace"),
    }
    for name, data in files.items():
        try:
            (folder / name).write_bytes(data)
        except OSError as error:
            raise InvalidArgument(f"report {folder / name}: {error.strerror}, must be writable") from None


def _show(report: TestReport, folder: Path | None, *, verbose: bool, as_json: bool, errors: bool) -> None:
    if as_json:
        click.echo(json.dumps(common.plain(document_of(report)), indent=2, default=str))
    else:
        page = str(folder / PAGE) if folder is not None else ""
        width = WIDTH if sys.stdout.isatty() else 0
        for line in as_lines(report, page, verbose=verbose, width=width):
            click.echo(printable(line))  # a rich console prints again what an interrupt cut
    for suite in report.suites:
        if suite.error and errors:
            common.status.print(f"error: suite {suite.name}: {suite.error}", soft_wrap=True)
        for each in suite.unmatched:
            common.warn(
                f"{each.where}: no case of {each.suite} matches {each.name!r}", "delete the entry or mend its name"
            )
