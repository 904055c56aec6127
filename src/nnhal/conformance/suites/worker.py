"""A process that runs cases of a suite: `nnhal.conformance.worker`, whose items are cases."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from nnhal.base.records import replace
from nnhal.conformance.suites.run import suite_of
from nnhal.conformance.suites.suite import (
    PREPARING,
    Case,
    CaseFailed,
    CaseOutcome,
    Context,
    NotApplicable,
    NotSupported,
    Suite,
    SuiteRun,
)
from nnhal.conformance.verdict import fault_of, type_of_case
from nnhal.conformance.worker import Worker, serve_with


class _Cases(Worker):
    """Runs cases."""

    subject: SuiteRun

    def run(self, of: str, items: Sequence[Case]) -> Iterator[CaseOutcome]:
        suite = suite_of(of)
        for case in items:
            begin = time.monotonic_ns()
            self.at(PREPARING)
            stages = [PREPARING]

            def at(stage: str, stages: list[str] = stages) -> None:
                stages.append(stage)
                self.at(stage)

            context = Context(self.device, self.subject, at, self.tries)
            outcome = outcome_of(suite, case, context, stages)
            taken = time.monotonic_ns() - begin
            types = {} if outcome.type else context.types.of_case(outcome.verdict)
            kind = outcome.type or type_of_case(types)
            yield replace(outcome, type=kind, nanoseconds=taken, types=types)


def outcome_of(suite: Suite, case: Case, context: Context, stages: Sequence[str]) -> CaseOutcome:
    """Run one case, and return its outcome without its time; raise only what may end this process."""

    def ended(verdict: str, reason: str = "", **more: Any) -> CaseOutcome:
        return CaseOutcome(case.suite, case.name, verdict, reason, case.operation, case.type, **more)

    try:
        return ended("passed", found=suite.run(case, context) or {})
    except NotSupported as why:
        return ended("unsupported", str(why))
    except NotApplicable as why:
        return ended("skipped", str(why))
    except CaseFailed as error:
        outcome = ended(error.verdict, str(error), hint=error.hint, found=error.found)
        return replace(outcome, operation=error.operation or case.operation, type=error.type or case.type)
    except BaseException as error:
        fault = fault_of(error, stages[-1])
        return ended(fault.verdict, fault.reason, place=fault.place)


def main() -> None:
    """Run the process."""
    serve_with(_Cases)
