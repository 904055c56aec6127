"""Verifies the kernel variants of a device's operations, in processes that a wrong one may end, and stores the results.

The variants of an operation and type are tried in order, the fastest first; the first right one is used. The results
are written at the end, in one step: an interrupted verification leaves the earlier results.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from nnhal.base.codes import type_name
from nnhal.base.errors import InvalidArgument
from nnhal.base.records import Record, replace
from nnhal.conformance.device_under_test import Bundle, Subject
from nnhal.conformance.pool import TaskResult, Work, run_all
from nnhal.conformance.verdict import outcome_of_text
from nnhal.hal.choices import Proved, VariantChoice
from nnhal.hal.device import Device
from nnhal.hal.proofs import choices_of, store_proofs

VERDICTS = "passed", "failed", "crashed", "hung", "unsupported"


class FormItem(NamedTuple):
    """An operation, its type, and one of its kernel variants."""

    operation: str
    type: int
    form: str


class ProofOutcome(Record, frozen=True):
    """The result of one variant: a verdict and the fault. detail: more about the fault, for the driver's author."""

    operation: str
    type: int
    form: str
    verdict: str
    reason: str
    nanoseconds: int = 0
    detail: str = ""

    @property
    def item(self) -> FormItem:
        """The verified item."""
        return FormItem(self.operation, self.type, self.form)


class _Proving(Work):
    """Kernel variants; a slower one if the faster one was not right."""

    module = "nnhal.conformance.proving.worker"
    idle = "loading"

    def __init__(self, subject: Subject, choices: Sequence[VariantChoice]) -> None:
        self._known = {(c.operation, c.type): c.known for c in choices}
        super().__init__(subject, [_alone(FormItem(c.operation, c.type, c.known[0])) for c in choices])

    def lost(self, item: FormItem, verdict: str, reason: str, nanoseconds: int, stack: str, type: str) -> ProofOutcome:
        fate = outcome_of_text(reason).partition(";")[0].removeprefix("the driver process ")
        short = (
            f"ends its process ({fate})" if verdict == "crashed" else f"has not ended within {nanoseconds / 1e9:g} s"
        )
        return ProofOutcome(*item, verdict, short, nanoseconds, reason)

    def late(self, first: ProofOutcome, second: ProofOutcome, before: Sequence[FormItem]) -> ProofOutcome:
        return replace(first, detail=f"{first.detail} (not alone in a new process)")

    def after(self, outcome: ProofOutcome) -> tuple[Sequence[Bundle], Sequence[ProofOutcome]]:
        """Return the next variant, if there is one and this one was not right."""
        known = self._known[outcome.operation, outcome.type]
        left = known[known.index(outcome.form) + 1 :]
        if outcome.verdict == "passed" or not left:
            return (), ()
        return [_alone(outcome.item._replace(form=left[0]))], ()


def _alone(item: FormItem) -> Bundle:
    return Bundle(item.operation, (item,))


def variants_to_prove(device: Device, *, every: bool = False) -> list[VariantChoice]:
    """Return the choices of a device. every: also of operations with only one variant."""
    return [choice for choice in choices_of(device) if every or len(choice.known) > 1]


def run_proofs(
    subject: Subject, choices: Sequence[VariantChoice], jobs: int
) -> Generator[tuple[TaskResult, int, int], None, None]:
    """Verify the variants of these choices as needed, as `pool.run_all`."""
    return run_all(_Proving(subject, choices), jobs)


def found_by(outcomes: Iterable[ProofOutcome], choices: Sequence[VariantChoice]) -> dict[tuple[str, int], Proved]:
    """Return the variant to use and the reason against faster ones; nothing for an operation without a possible call."""
    tried: Mapping[tuple[str, int], dict[str, ProofOutcome]] = defaultdict(dict)
    for outcome in outcomes:
        tried[outcome.operation, outcome.type][outcome.form] = outcome
    found = {}
    for choice in choices:
        key = choice.operation, choice.type
        of = [tried[key][form] for form in choice.known if form in tried[key]]
        wrong = [outcome for outcome in of if outcome.verdict not in ("passed", "unsupported")]
        right = next((outcome.form for outcome in of if outcome.verdict == "passed"), None)
        if right is None and not wrong:
            continue
        why = "; ".join(f"{_named(outcome)} {outcome.reason}" for outcome in wrong)
        found[key] = Proved(right, why and f"{why}: {'not claimed' if right is None else f'run in {right}'}")
    return found


def _named(outcome: ProofOutcome) -> str:
    kind = type_name(outcome.type).removeprefix("TENSOR_")
    return f"{outcome.form} {outcome.operation} of {kind}".lstrip()


def keep(device: Device, found: Mapping[tuple[str, int], Proved]) -> None:
    """Store the results. OperationFailed if they cannot be written."""
    proofs = device.cached_as.proofs
    if proofs is None:
        raise InvalidArgument(f"device {device.name}: has no kernel variants to verify")
    store_proofs(proofs.identity, found)
