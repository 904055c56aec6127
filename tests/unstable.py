"""A pytest plugin for `./check`: repeats each failed test alone, and shares long files evenly over the workers.

A test that fails in the run and passes alone is *unstable*. The plugin names it at the end of the run. Up to
`--unstable N` such tests do not fail the run; one more does, and so does a test that fails again.
"""

import subprocess
import sys
from collections.abc import Callable

import pytest
from xdist.scheduler import LoadScopeScheduling

REPEATED = 20  # failed tests at most; more is no chance
EVEN = (  # their tests go to any worker, one by one
    *(f"tests/differential/test_{name}.py" for name in ("chains", "devices", "models", "readers", "reference")),
    "tests/conformance/test_vectors.py",
)


class EvenShares(LoadScopeScheduling):
    """One worker runs all tests of a file, except of the files in `EVEN`."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(EVEN) else nodeid.partition("::")[0]


def pass_alone(nodeid: str) -> tuple[bool, str]:
    """Run one test in a process of its own.

    Args:
        nodeid: The test's name as pytest reports it.

    Returns:
        Whether it passed, and what pytest printed.
    """
    program = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", nodeid]
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode == 0, done.stdout


class Repeater:
    """Knows what failed in the run, and what of it is unstable."""

    def __init__(self, allowed: int, alone: Callable[[str], tuple[bool, str]] = pass_alone) -> None:
        self.allowed, self.alone = allowed, alone
        self.failed: list[str] = []
        self.unstable: list[str] = []
        self.broken: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(self.failed) <= REPEATED:
            return
        for nodeid in self.failed:
            passed, printed = self.alone(nodeid)
            if passed:
                self.unstable.append(nodeid)
            else:
                self.broken[nodeid] = printed
        if not self.broken and len(self.unstable) <= self.allowed:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid, printed in self.broken.items():
            terminalreporter.section(f"failed again, alone: {nodeid}")
            terminalreporter.write_line(printed)
        if self.unstable:
            terminalreporter.section(f"unstable: failed in the run, passed alone (allowed: {self.allowed})")
            for nodeid in self.unstable:
                terminalreporter.write_line(f"UNSTABLE {nodeid}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unstable", type=int, default=0, metavar="N", help="allow N tests that fail, then pass alone")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Repeater(config.getoption("--unstable")))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> EvenShares | None:
    return EvenShares(config, log) if config.getoption("dist") == "loadfile" else None
