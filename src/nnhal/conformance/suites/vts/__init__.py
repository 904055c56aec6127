"""vts: looks at the driver interface through the HAL alone.

It complements `contract`, which holds each operation to the driver's contract: vts calls a contract check that looks at
the same promise. A promise is looked at once, with a few operations, or with each operation.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nnhal.base.errors import DeadObject
from nnhal.conformance.suites.process_state import kept_as_it_was
from nnhal.conformance.suites.suite import (
    PREPARING,
    Case,
    CaseFailed,
    Context,
    NotApplicable,
    NotSupported,
    Suite,
    SuiteRun,
)
from nnhal.conformance.suites.vts import (
    buffers,
    deadlines,
    death,
    fences,
    files,
    models,
    packets,
    queries,
    requests,
    shapes,
    signed,
    surroundings,
    times,
)
from nnhal.conformance.suites.vts.promise import CHOSEN, DRIVER, OPERATION, PROMISES, Probe, Promise, chosen
from nnhal.conformance.validate.check import look_by_type
from nnhal.conformance.validate.drawing import Drawing, RecentDrawings
from nnhal.conformance.validate.trial import (
    AFTER,
    DRAWING,
    NotAccepted,
    NotAsked,
    ProcessDied,
    RequirementNotMet,
    open_trial,
)
from nnhal.ops import OPS

PARTS = (
    *(queries, models, requests, packets, shapes, signed, buffers, files, deadlines, fences, times, surroundings),
    death,
)


class Vts(Suite):
    """The suite."""

    name = "vts"

    def __init__(self) -> None:
        self._drawings = RecentDrawings()
        self._found: dict[str, list[str]] = {}

    def cases(self, run: SuiteRun) -> Iterator[Case]:
        """Yield a case for each promise of the driver, and for each operation and promise of operations."""
        for each in PROMISES.values():
            if each.per != OPERATION and not (each.isolated is not None and each.isolated is not run.isolate):
                yield Case(self.name, each.name, arguments=(each.name,))
        for operation in OPS:
            for each in PROMISES.values():
                fits = not each.operations or operation in each.operations
                if each.per == OPERATION and fits and each.isolated in (None, run.isolate):
                    yield Case(self.name, f"{each.name}/{operation}", operation, arguments=(each.name,))

    def run(self, case: Case, context: Context) -> Mapping[str, Any] | None:
        """Look at one promise."""
        (name,) = case.arguments
        each = PROMISES[name]
        announce = _announcing(context)
        draw = self._drawing(context.run, announce)
        probe = Probe(context.device, context.run, case.operation, draw, announce, self._found, context.types)
        try:
            with kept_as_it_was(context.device), open_trial(probe):
                probes = chosen(probe) if each.per == CHOSEN else [probe]
                seen = sum(look_by_type(one, each.look) for one in probes)
        except NotAccepted as why:
            raise NotSupported(str(why)) from why
        except NotAsked as why:
            raise NotApplicable(str(why)) from why
        except RequirementNotMet as broken:
            at = f" (at {broken.place})" if broken.place else ""
            raise CaseFailed(f"{broken}{at}; rule: {each.rule}") from broken
        except ProcessDied as died:
            raise DeadObject(str(died)) from died
        if not seen:
            raise NotApplicable(each.unseen)
        return {"seen": seen}

    def _drawing(self, run: SuiteRun, at: Callable[[str], None]) -> Callable[[str], Drawing]:
        """Return a function that draws the calls of an operation."""
        return lambda operation: self._drawings.of(operation, run.seed, 1, lambda: at(DRAWING))


def _announcing(context: Context) -> Callable[[str], None]:
    """Return a function that announces stages of a trial: the suite's own work is `PREPARING`."""

    def at(stage: str) -> None:
        context.at(PREPARING if stage == DRAWING or stage.startswith(AFTER) else stage)

    return at


SUITE = Vts()
__all__ = ["DRIVER", "PARTS", "SUITE", "Promise", "Vts"]
