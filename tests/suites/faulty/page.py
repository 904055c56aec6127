"""The table of faults and of who caught them, as a page and as lines, and what in it is not as it has to be."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nnhal.base.cores import usable_cores
from tests.suites.faulty.application import COMPILE, RUN, Came
from tests.suites.faulty.driver.faults import CONFORMANCE, VALIDATE, Fault
from tests.suites.faulty.suites import Seen

PAGE = Path(__file__).parents[3] / "docs" / "contributing" / "faulty-drivers.md"
LATE = 5.0  # seconds past its limit: that a machine with much to do may take
HEAD = """# Faulty drivers

{count} drivers, each with one fault, and who catches it: `nnhal conformance` over the published vectors of one operation,
`nnhal validate` over one operation, in process and isolated, and an application that compiles for the device with fallback
allowed. Each fault is a small change of one healthy driver, in `tests/suites/faulty/driver`.
`NNHAL_FAULT=stale-output nnhal validate tests/suites/faulty/driver` is one of them alone.

This page is written by `python -m tests.suites.faulty --write`, which takes {seconds:.0f} s on {cores} cores. Of conformance
it says what most vectors were, of validate the check that names the fault, or, in brackets, others; *does not load* is an
error of its own, and an empty cell is nothing. Of the application: the right results, whichever device they are of; a named
error; or wrong numbers, where a fault stays within the contract, so that no runtime can see it and suites alone can.

| fault | what it does | conformance | isolated | validate | isolated | application |
| --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Row:
    """What the suites, in process (False) and isolated (True), and the application said of a fault."""

    fault: Fault
    seen: Mapping[tuple[str, bool], Seen]
    came: Came | None

    def cells(self) -> list[str]:
        """What stands in the table."""
        cells = [f"`{self.fault.name}`", self.fault.what]
        cells += [_cell(self.fault, suite, seen) for (suite, _), seen in self.seen.items()]
        return [*cells, "" if self.came is None else _outcome(self.came)]

    def text(self) -> str:
        """A line of text."""
        name, _, *rest = self.cells()
        return "  ".join([f"{name.strip('`'):28}", *(f"{cell:26}" for cell in rest)]).rstrip()


def _cell(fault: Fault, suite: str, seen: Seen) -> str:
    if seen.code == 4:
        return "does not load"
    if seen.clean:
        return ""
    if not seen.caught:
        return f"exit code {seen.code}"
    if suite == CONFORMANCE:
        return seen.named.most_common(1)[0][0]
    return fault.check if fault.check in seen.named else f"({', '.join(sorted(seen.named)[:2])})"


def _outcome(came: Came) -> str:
    parts = ["right"] * bool(came.right) + ["wrong numbers"] * bool(came.wrong)
    return ", ".join([*parts, *dict.fromkeys(type(error).__name__ for error in came.errors)])


def page(rows: Sequence[Row], seconds: float) -> str:
    """The page."""
    lines = [f"| {' | '.join(row.cells())} |\n" for row in rows]
    faults = sum(bool(row.fault.check) for row in rows)
    return HEAD.format(count=faults, seconds=seconds, cores=usable_cores()) + "".join(lines)


def with_rows(text: str, rows: Sequence[Row], order: Sequence[Fault]) -> str:
    """The page with these rows anew, and without those of faults that there are no more. KeyError where one is missing."""
    lines = {name: line for line in text.splitlines(keepends=True) for name in re.findall(r"^\| `(.+?)` \|", line)}
    head = "".join(line for line in text.splitlines(keepends=True) if line not in lines.values())
    head = re.sub(r"^\d+ drivers", f"{sum(bool(each.check) for each in order)} drivers", head, flags=re.MULTILINE)
    lines |= {row.fault.name: f"| {' | '.join(row.cells())} |\n" for row in rows}
    return head + "".join(lines[each.name] for each in order)


def wrong(row: Row) -> Iterator[str]:
    """What is not as it has to be."""
    fault = row.fault
    for suite in (CONFORMANCE, VALIDATE):
        both = [row.seen[suite, isolate] for isolate in (False, True)]
        for seen in both:
            if not (seen.clean or seen.caught):
                yield f"{fault.name}: {suite} ended with exit code {seen.code}: {seen.text[-300:]}"
            if not fault.check and not seen.clean:
                yield f"{fault.name}: {suite} blames a healthy driver: {dict(seen.named)} {seen.text[-300:]}"
        if suite in fault.seen_by and not any(seen.caught for seen in both):
            yield f"{fault.name}: {suite} did not catch it, must"
        if suite == VALIDATE and suite in fault.seen_by and not any(seen.by(fault.check) for seen in both):
            yield f"{fault.name}: validate named {[dict(seen.named) for seen in both]}, must name {fault.check}"
    if row.came is not None:
        problems = *misled(fault, row.came), *late(row.came)
        yield from (f"{fault.name}: the application {problem}" for problem in problems)


def misled(fault: Fault, came: Came) -> Iterator[str]:
    """What an application got that it must not get."""
    if came.wrong and not fault.numbers:
        yield f"got wrong numbers {came.wrong} times, must be right ones or an error"
    if not came.right and not came.wrong and not came.errors:
        yield "got neither a result nor an error"
    if came.errors and not fault.check:
        yield f"got {came.errors[0]!r} of a healthy driver"
    for error in came.errors:
        if "device" not in str(error) and "deadline" not in str(error):
            yield f"got an error that does not name the device: {error!r}"


def late(came: Came) -> Iterator[str]:
    """Limits of time that an application was kept waiting past."""
    for what, took, allowed in zip(("compile", "run"), came.seconds, (COMPILE, RUN), strict=True):
        if took > allowed + LATE:
            yield f"waited {took:.1f} s for {what}, must be {allowed} s at most"
