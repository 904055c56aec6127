"""A process that checks a driver: `nnhal.conformance.worker`, whose items are checks."""

import gc
import time
from collections.abc import Iterator, Sequence

from nnhal.base.answers import may_be_application_error
from nnhal.base.errors import DeadObject, NnhalError, error_text
from nnhal.base.stacks import dumped_frames, stack_of
from nnhal.conformance.suite import outcome_of_text
from nnhal.conformance.validate.check import CHECKS, CheckOutcome, ContractCheck
from nnhal.conformance.validate.place import place_first, place_in
from nnhal.conformance.validate.run import CheckItem, Validation
from nnhal.conformance.validate.table import FAMILIES
from nnhal.conformance.validate.trial import (
    DRAWING,
    Drawing,
    NotAccepted,
    NotAsked,
    ProcessDied,
    RecentDrawings,
    RequirementNotMet,
    Trial,
    open_trial,
)
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
            with open_trial(Trial(self.device, self._drawn(of), self.at, isolated=self.subject.isolate)) as trial:
                verdict, reason, place = outcome_of(CHECKS[item.check], trial)
                found = trial.found
            yield CheckOutcome(*item, verdict, reason, place, time.monotonic_ns() - begin, found)

    def _drawn(self, operation: str) -> Drawing:
        return self._drawings.of(operation, self.subject.seed, self.subject.draws, lambda: self.at(DRAWING))


def outcome_of(check: ContractCheck, trial: Trial) -> tuple[str, str, str]:
    """Return verdict, reason and place of one check; raise only what may end this process."""
    if check.inside and trial.isolated:
        return "skipped", "needs the driver in this process (without --isolate)", ""
    verdict, reason, place = _looked(check, trial)
    return verdict, reason.replace(f"{trial.where}: ", ""), place  # without the device's name


def _looked(check: ContractCheck, trial: Trial) -> tuple[str, str, str]:
    try:
        seen = check.look(trial)
    except NotAccepted as why:
        return "unsupported", str(why), ""
    except NotAsked as why:
        return "skipped", str(why), ""
    except RequirementNotMet as broken:
        return "failed", str(broken), broken.place
    except (ProcessDied, DeadObject) as error:
        return "crashed", f"{trial.stage}(): {outcome_of_text(str(error))}", place_first(dumped_frames(str(error)))
    except NnhalError as error:
        return "failed", f"{type(error).__name__}: {error}", place_in(error.stack)
    except BaseException as error:
        if may_be_application_error(error):
            raise
        return "failed", f"{error_text(error)} (escaped)", place_in(stack_of(error))
    return ("passed", "", "") if seen else ("skipped", check.unseen, "")


def main() -> None:
    """Run the process."""
    serve_with(_Checker)
