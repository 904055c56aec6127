"""A process that runs cases of a suite: `nnhal.conformance.worker`, whose items are cases."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
            verdict, reason, place, hint, found = outcome_of(suite, case, context, stages)
            taken = time.monotonic_ns() - begin
            types = {} if case.type else context.types.of_case(verdict)
            kind = case.type or type_of_case(types)
            yield CaseOutcome(
                *(case.suite, case.name, verdict, reason, case.operation, kind, taken, hint, place),
                found=found,
                types=types,
            )


def outcome_of(
    suite: Suite, case: Case, context: Context, stages: Sequence[str]
) -> tuple[str, str, str, str, Mapping[str, Any]]:
    """Return verdict, reason, place, hint and measurements of one case; raise only what may end this process."""
    try:
        return "passed", "", "", "", suite.run(case, context) or {}
    except NotSupported as why:
        return "unsupported", str(why), "", "", {}
    except NotApplicable as why:
        return "skipped", str(why), "", "", {}
    except CaseFailed as error:
        return error.verdict, str(error), "", error.hint, error.found
    except BaseException as error:
        return *fault_of(error, stages[-1]), "", {}


def main() -> None:
    """Run the process."""
    serve_with(_Cases)
