"""A process that checks a driver: `nnhal.conformance.worker`, whose items are checks."""

import gc
import time
from collections.abc import Iterator, Sequence

from nnhal.base.errors import DeadObject
from nnhal.conformance.validate.check import CHECKS, CheckOutcome, ContractCheck, look_by_type
from nnhal.conformance.validate.drawing import Drawing, RecentDrawings
from nnhal.conformance.validate.run import CheckItem, Validation
from nnhal.conformance.validate.table import FAMILIES
from nnhal.conformance.validate.trial import (
    DRAWING,
    NotAccepted,
    NotAsked,
    ProcessDied,
    RequirementNotMet,
    Trial,
    open_trial,
)
from nnhal.conformance.verdict import TypeVerdicts, fault_of
from nnhal.conformance.worker import Worker, serve_with

assert FAMILIES


class _Checker(Worker):
    """Runs the requested checks."""

    subject: Validation

    def begin(self) -> None:
        """Exclude the existing objects from garbage collection, which would scan them again and again."""
        gc.collect()
        gc.freeze()
        self._drawings = RecentDrawings()

    def run(self, of: str, items: Sequence[CheckItem]) -> Iterator[CheckOutcome]:
        for item in items:
            begin = time.monotonic_ns()
            self.at(DRAWING)
            made = Trial(
                *(self.device, self._drawn(of), self.at),
                isolated=self.subject.isolate,
                types=TypeVerdicts(self.tries),
            )
            with open_trial(made) as trial:
                verdict, reason, place = outcome_of(CHECKS[item.check], trial)
                found, types = trial.found, trial.types.of_case(verdict)
            yield CheckOutcome(*item, verdict, reason, place, time.monotonic_ns() - begin, found, types=types)

    def _drawn(self, operation: str) -> Drawing:
        return self._drawings.of(operation, self.subject.seed, self.subject.draws, lambda: self.at(DRAWING))


def outcome_of(check: ContractCheck, trial: Trial) -> tuple[str, str, str]:
    """Return verdict, reason and place of one check; raise only what may end this process."""
    verdict, reason, place = _looked(check, trial)
    return verdict, reason.replace(f"{trial.where}: ", ""), place  # without the device's name


def _looked(check: ContractCheck, trial: Trial) -> tuple[str, str, str]:
    def look(trial: Trial) -> int:
        if check.inside and trial.isolated:
            trial.calls.taken()  # NotAccepted has precedence
            raise NotAsked("needs the driver in this process (without --isolate)")
        return check.look(trial)

    try:
        seen = check.look(trial) if check.whole else look_by_type(trial, look)
    except NotAccepted as why:
        return "unsupported", str(why), ""
    except NotAsked as why:
        return "skipped", str(why), ""
    except RequirementNotMet as broken:
        return "failed", str(broken), broken.place
    except ProcessDied as died:
        return fault_of(DeadObject(str(died)), trial.stages.last)
    except BaseException as error:
        return fault_of(error, trial.stages.last)
    return ("passed", "", "") if seen else ("skipped", check.unseen, "")


def main() -> None:
    """Run the process."""
    serve_with(_Checker)
