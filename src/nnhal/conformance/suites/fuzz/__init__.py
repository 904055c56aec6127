"""The suite `fuzz`: changed inputs of importers, the model builder, IPC, queues, the cache and the driver under test.

`target` has the targets by name, `guide` chooses inputs, `process` runs them in a process that an input may end, and
`supervisor` collects failures by cause. Each cause becomes an outcome, and its input is saved. `SuiteRun.data`
names saved inputs to run again.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nnhal.base.brief import with_count as many
from nnhal.base.errors import InvalidArgument
from nnhal.conformance.suites.fuzz.process import FuzzFailure, FuzzOrders
from nnhal.conformance.suites.fuzz.supervisor import FuzzResult, FuzzSupervisor, digest_of
from nnhal.conformance.suites.fuzz.target import EXECUTIONS, TARGETS
from nnhal.conformance.suites.suite import (
    PREPARING,
    Case,
    CaseFailed,
    CaseOutcome,
    Context,
    Suite,
    SuiteRun,
)

MOST_PARTS = 16  # cases of a target, which run in processes at once
CAUSES, EXECUTED = "causes", "executions"  # measurements of a case


class Fuzz(Suite):
    """The suite."""

    name = "fuzz"
    bundle = 1

    def cases(self, run: SuiteRun) -> Iterator[Case]:
        """Yield the parts of each target; `scale` multiplies the inputs. With saved inputs, yield those instead."""
        if run.data:
            yield from (
                Case(self.name, f"{path.parent.name}/{path.name}", arguments=(path.parent.name, str(path), 1))
                for path in _saved(run.data)
            )
            return
        for target in TARGETS:
            count = max(1, round(EXECUTIONS[target] * run.scale))
            parts = min(MOST_PARTS, max(1, round(run.scale)), count)
            for part in range(parts):
                share = count // parts + (part < count % parts)
                yield Case(self.name, f"{target}/{part}", arguments=(target, "", share))

    def run(self, case: Case, context: Context) -> Mapping[str, Any] | None:
        """Run the inputs of a case in another process; the failures become outcomes in `more`."""
        target, path, count = case.arguments
        inputs = (_read(path),) if path else ()
        orders = FuzzOrders(target, context.run, case.name, 0, count, inputs)
        announce = partial(context.at, PREPARING)
        result = FuzzSupervisor(orders, announce).run()
        if inputs:
            return _repeated(result)
        causes = []
        if result.failures:
            folder = Path(context.run.report or tempfile.mkdtemp(prefix="nnhal-"), self.name, target)
            causes = [_kept(failure, result, folder, orders, announce) for failure in result.failures]
        return {**_figures(result), CAUSES: causes}

    def more(self, outcome: CaseOutcome) -> Sequence[CaseOutcome]:
        """Return an outcome for each cause of failures."""
        target = outcome.name.partition("/")[0]
        return [
            CaseOutcome(
                self.name, f"{target}/{each['name']}", each["verdict"], each["reason"], place=each["place"],
                alone=each["alone"], found={"input": each["input"], "inputs": each["inputs"]},
            )
            for each in outcome.found.get(CAUSES, ())
        ]  # fmt: skip

    def notes(self, outcomes: Sequence[CaseOutcome]) -> Sequence[str]:
        """Return a line for each target: its executions, their rate, and the inputs that reached new code."""
        lines = []
        for target in TARGETS:
            parts = [o.found for o in outcomes if o.name.startswith(f"{target}/") and CAUSES in o.found]
            if not parts:
                continue
            executed = sum(part[EXECUTED] for part in parts)
            seconds = sum(part["seconds"] for part in parts)
            fresh, causes = sum(part["fresh"] for part in parts), sum(len(part[CAUSES]) for part in parts)
            guide = parts[0]["guide"]
            reached = f"{fresh:,} inputs reached new code (by {guide})" if guide else "not guided by coverage"
            lines.append(
                f"{target}: {executed:,} executions, {executed / seconds:,.0f}/s a process, {reached}, "
                f"{many(causes, 'cause')} of failures"
            )
        return lines


SUITE = Fuzz()


def _saved(data: str) -> list[Path]:
    """Return the saved inputs in a folder or file: the name of an input's folder is its target."""
    path = Path(data)
    found = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    if not found or any(each.absolute().parent.name not in TARGETS for each in found):
        raise InvalidArgument(
            f"data {data}: must be saved inputs, FOLDER/TARGET/FILE with a target of {', '.join(TARGETS)}"
        )
    return [each.absolute() for each in found]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"input {path}: cannot be read: {error.strerror}") from None


def _repeated(result: FuzzResult) -> Mapping[str, Any]:
    """Return the measurements of one saved input; CaseFailed if it fails."""
    for failure in result.failures:
        raise CaseFailed(failure.reason, verdict=failure.verdict)
    return {**_figures(result), "ends": dict(result.ends)}


def _figures(result: FuzzResult) -> dict[str, Any]:
    return {
        EXECUTED: result.executions,
        "seconds": round(result.seconds, 3),
        "fresh": result.fresh,
        "guide": result.guide,
        "ends": dict(result.ends.most_common()),
    }


def _kept(failure: FuzzFailure, result: FuzzResult, folder: Path, orders: FuzzOrders, announce: Any) -> dict[str, Any]:
    """Save the input of a failure, and run it alone in a new process if it ended one."""
    path = folder / digest_of(failure.data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(failure.data)
    except OSError as error:
        raise InvalidArgument(f"report {folder}: {error.strerror}, must be a writable folder") from None
    alone = ""
    if failure.verdict != "failed":
        again = FuzzSupervisor(orders._replace(number=1, inputs=(failure.data,)), announce).run()
        alone = again.failures[0].verdict if again.failures else "passed"
    count = result.counts[failure.cause]
    return {
        "name": path.name,
        "input": str(path),
        "inputs": count,
        "verdict": failure.verdict,
        "reason": failure.reason,
        "place": failure.place,
        "alone": "" if alone == failure.verdict else alone,
    }
