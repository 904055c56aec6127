"""Proves the forms of a device's operations, over processes that a wrong one may end, and remembers what was found.

The forms of an operation and type are tried fastest first; the first right one is what runs. What is remembered is written
at the end, at once: a proof that is interrupted leaves what was there before.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from nnhal.base.codes import type_name
from nnhal.base.errors import InvalidArgument
from nnhal.base.records import Record, replace
from nnhal.conformance.pool import TaskResult, Work, run_all
from nnhal.conformance.subject import Bundle, Subject
from nnhal.conformance.suite import fate_of
from nnhal.hal.choices import FormChoice, Proved
from nnhal.hal.device import Device
from nnhal.hal.proofs import choices_of, remember

VERDICTS = "passed", "failed", "crashed", "hung", "unsupported"


class FormItem(NamedTuple):
    """An operation of a type, in one of its forms."""

    operation: str
    type: int
    form: str


class ProofOutcome(Record, frozen=True):
    """What came of one form: a verdict, and what is wrong. detail: more of it, for who repairs the driver."""

    operation: str
    type: int
    form: str
    verdict: str
    reason: str
    nanoseconds: int = 0
    detail: str = ""

    @property
    def item(self) -> FormItem:
        """Of what."""
        return FormItem(self.operation, self.type, self.form)


class _Proving(Work):
    """Forms; a slower one when the faster was not right."""

    module = "nnhal.conformance.proving.worker"
    idle = "loading"

    def __init__(self, subject: Subject, choices: Sequence[FormChoice]) -> None:
        self._known = {(c.operation, c.type): c.known for c in choices}
        super().__init__(subject, [_alone(FormItem(c.operation, c.type, c.known[0])) for c in choices])

    def lost(self, item: FormItem, verdict: str, reason: str, nanoseconds: int, stack: str) -> ProofOutcome:
        fate = fate_of(reason).partition(";")[0].removeprefix("the driver process ")
        short = f"ends its process ({fate})" if verdict == "crashed" else f"has not ended after {nanoseconds / 1e9:g} s"
        return ProofOutcome(*item, verdict, short, nanoseconds, reason)

    def late(self, first: ProofOutcome, second: ProofOutcome, before: Sequence[FormItem]) -> ProofOutcome:
        return replace(first, detail=f"{first.detail} (not alone in a fresh process)")

    def after(self, outcome: ProofOutcome) -> tuple[Sequence[Bundle], Sequence[ProofOutcome]]:
        """The next form, where there is one and this was not right."""
        known = self._known[outcome.operation, outcome.type]
        left = known[known.index(outcome.form) + 1 :]
        if outcome.verdict == "passed" or not left:
            return (), ()
        return [_alone(outcome.item._replace(form=left[0]))], ()


def _alone(item: FormItem) -> Bundle:
    return Bundle(item.operation, (item,))


def to_prove(device: Device, *, every: bool = False) -> list[FormChoice]:
    """The choices that a device has. every: also operations that it has one form of."""
    return [choice for choice in choices_of(device) if every or len(choice.known) > 1]


def run_proofs(
    subject: Subject, choices: Sequence[FormChoice], jobs: int
) -> Generator[tuple[TaskResult, int, int], None, None]:
    """As `pool.run_all`, of the forms of these choices, as far as they have to be tried."""
    return run_all(_Proving(subject, choices), jobs)


def found_by(outcomes: Iterable[ProofOutcome], choices: Sequence[FormChoice]) -> dict[tuple[str, int], Proved]:
    """What runs from now on, and why nothing faster; nothing of an operation that no call could be made of."""
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
    """Remember what was found. OperationFailed where that cannot be written."""
    proofs = device.cached_as.proofs
    if proofs is None:
        raise InvalidArgument(f"device {device.name}: has no forms to prove")
    remember(proofs.identity, found)
