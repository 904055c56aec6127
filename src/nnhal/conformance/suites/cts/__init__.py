"""Suite `cts`: the driver behind the runtime, as an application uses it.

Each module has some areas. The expected results are those of the reference, or numpy's.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from nnhal.conformance.suites.cts import (  # noqa: F401 (each registers its areas)
    caching,
    extensions,
    flow,
    introspection,
    memories,
    partitions,
    running,
    selection,
    shapes,
    threads,
)
from nnhal.conformance.suites.cts.area import AREAS, AreaTrial, cases_of
from nnhal.conformance.suites.process_state import kept_as_it_was
from nnhal.conformance.suites.suite import Case, Context, Suite, SuiteRun


class Cts(Suite):
    """The suite."""

    name = "cts"
    bundle = 24

    def cases(self, run: SuiteRun) -> Iterable[Case]:
        return cases_of(self.name, run.scale)

    def run(self, case: Case, context: Context) -> Mapping[str, Any] | None:
        trial = AreaTrial(case, context)
        with kept_as_it_was(context.device), trial.held:
            return AREAS[case.arguments[0]].check(trial)


SUITE = Cts()
