"""Asks a device about a model and verifies the answer: verdicts, groups, and reusable work."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import driver_call, safe_repr
from nnhal.base.errors import ContractBroken, InvalidArgument, bounded_text
from nnhal.base.names import printable
from nnhal.base.records import replace
from nnhal.hal.answers import checked_performance
from nnhal.hal.chain import pin_threads
from nnhal.hal.device import (
    YES,
    Considered,
    Device,
    Hints,
    OperationGroup,
    Performance,
    ReusableWork,
    Verdict,
    layer_of,
    layout_of,
    where_of,
)
from nnhal.model.graph import Model
from nnhal.model.layouts import ModelInLayout, with_layout


class SupportReport:
    """A device's verified answer about a model in plain types, and its reusable work until that is released."""

    def __init__(
        self, model: Model, verdicts: Sequence[Verdict], groups: Sequence[OperationGroup] = (), worked_out: Any = None
    ) -> None:
        self.model, self.verdicts, self.groups = model, list(verdicts), tuple(groups)
        self._kept = [] if worked_out is None else [worked_out]
        self._laid = False  # whether `model` is laid out, unlike the one that the rest is about

    def for_original_model(self, laid: ModelInLayout, count: int) -> "SupportReport":
        """Convert claims about a laid-out model to claims about the original, of so many operations.

        An inserted TRANSPOSE counts for the operations that it serves: if it is rejected, no group has them either.
        Reusable work serves the whole model only, because a part is laid out separately.
        """
        refused, groups = self.refused(), list[OperationGroup]()
        lost = {n for place, served in laid.served().items() if place in refused for n in served}
        for group in self.groups:
            places = sorted({laid.serves[n] for n in group.operations if n not in laid.inserted})
            least, kept = min(group.at_least, len(places)), tuple(n for n in places if n not in lost)
            if kept and len(kept) >= (least or len(places)):
                groups = _joined(groups, replace(group, operations=kept, at_least=least))
        found = SupportReport(self.model, _of_original(laid, self.verdicts, count), groups)
        found._kept, found._laid = self._kept, True
        return found

    def refused(self) -> dict[int, str]:
        """Return why the device rejects the model as a whole: reasons by operation, without those in a group."""
        grouped = {place for group in self.groups for place in group.operations}
        return {n: v.reason for n, v in enumerate(self.verdicts) if not v.ok and n not in grouped}

    def hints(self, hints: Hints, operations: Sequence[int] | None = None) -> Hints:
        """Return the hints for preparing the part that is `cut` to these operations, or with None the whole model."""
        if not self._kept or (self._laid and operations is not None and len(operations) < len(self.verdicts)):
            return hints
        places: Sequence[int] = range(len(self.model.main.operations))
        if operations is not None and not self._laid:
            places = operations
        return replace(hints, worked_out=ReusableWork(self.model, tuple(places), self._kept))

    def release_work(self) -> None:
        """Release the device's reusable work, even if the driver still holds its hints."""
        self._kept.clear()


def consider_support(device: Device, model: Model, hints: Hints, *, as_is: bool = False) -> SupportReport:
    """Ask a device about a model; ContractBroken if the answer is invalid.

    The device receives a number of threads that can run at once, and the model in its preferred layout, unless the
    model has it already (`as_is`).
    """
    laid = with_layout(model, None if as_is else layout_of(device))
    query, count = _query(device), len(laid.model.main.operations)
    where = where_of(device)
    with trace.span(layer_of(device), "preparation", "ask what it supports", where), driver_call(where, query):
        given = device.consider(laid.model, pin_threads(hints))
        if not isinstance(given, Considered):
            raise ContractBroken(f"{query} gave {safe_repr(given)}, must be Considered")
        verdicts = _verdicts(given.verdicts, count, query)
        claims = SupportReport(laid.model, verdicts, _groups(given.groups, count, query), given.worked_out)
    return claims if laid.model is model else claims.for_original_model(laid, len(model.main.operations))


def _query(device: Device) -> str:
    """Return the method that the driver's author wrote."""
    written = (name for kind in type(device).__mro__ for name in ("consider", "supports") if name in vars(kind))
    return f"{next(written)}()"


def query_verdicts(device: Device, model: Model, *, as_is: bool = False) -> list[Verdict]:
    """Return the verdicts on the operations alone; as `consider_support`."""
    return consider_support(device, model, Hints(), as_is=as_is).verdicts


def _joined(groups: Sequence[OperationGroup], group: OperationGroup) -> list[OperationGroup]:
    """Return the groups with one more.

    An operation may be in several groups of a laid-out model, one for each order in which its output is read. Such
    groups are merged, at the highest of their prices.
    """
    sharing = [each for each in groups if not set(group.operations).isdisjoint(each.operations)]
    others = [each for each in groups if each not in sharing]
    if sharing:
        all_of = [group, *sharing]
        places = tuple(sorted({n for each in all_of for n in each.operations}))
        times, powers = zip(*[(g.performance.exec_time, g.performance.power_usage) for g in all_of], strict=True)
        group = OperationGroup(places, Performance(max(times), max(powers)))
    return [*others, group]


def _of_original(laid: ModelInLayout, verdicts: Sequence[Verdict], count: int) -> list[Verdict]:
    """Return verdicts on the original operations: an inserted TRANSPOSE counts for those that it serves."""
    found = [YES] * count
    for place, n in enumerate(laid.serves):
        if place not in laid.inserted and (not verdicts[place].ok or found[n] is YES):
            found[n] = verdicts[place]
    for place, served in laid.served().items():
        if not verdicts[place].ok:
            why = verdicts[place].reason or "is not supported"
            for n in served:
                found[n] = Verdict(False, f"its layout needs a TRANSPOSE, which the device refuses: {why}")
    return found


def _verdicts(given: Any, count: int, query: str) -> list[Verdict]:
    """Return a verdict for each of so many operations; a bool counts as one."""
    if not isinstance(given, Iterable):
        raise ContractBroken(f"{query} gave {safe_repr(given)}, must be {count} verdicts, one an operation")
    verdicts = [_verdict(answer, place, query) for place, answer in enumerate(islice(given, count + 1))]
    if len(verdicts) != count:
        many = len(given if isinstance(given, list | tuple) else verdicts)
        raise ContractBroken(f"{query} gave {many} verdicts, must be {count}, one an operation")
    return verdicts


def _verdict(answer: Any, place: int, query: str) -> Verdict:
    verdict = Verdict(answer) if isinstance(answer, bool) else answer
    if not isinstance(verdict, Verdict) or not isinstance(verdict.ok, bool) or not isinstance(verdict.reason, str):
        raise ContractBroken(f"{query} gave {safe_repr(verdict)} for operation {place}, must be a Verdict or a bool")
    return Verdict(verdict.ok, printable(bounded_text(str.__str__(verdict.reason))))


def _groups(given: Any, count: int, query: str) -> list[OperationGroup]:
    """Return groups over so many operations; each operation is in one group at most."""
    if not isinstance(given, Iterable):
        raise ContractBroken(f"{query} gave groups {safe_repr(given)}, must be several of OperationGroup")
    found: list[OperationGroup] = []
    taken: dict[int, int] = {}  # the group of each operation
    for number, group in enumerate(islice(given, count + 1)):
        where = f"{query} gave group {number}"
        if not isinstance(group, OperationGroup):
            raise ContractBroken(f"{where} as {safe_repr(group)}, must be an OperationGroup")
        places = _places(group.operations, count, where)
        for place in places:
            if taken.setdefault(place, number) != number:
                raise ContractBroken(
                    f"{where} with operation {place}, which is in group {taken[place]} too, must be in one"
                )
        try:
            performance = checked_performance(group.performance, "its operations")
        except InvalidArgument as error:
            raise ContractBroken(f"{where}: {error}") from None
        least = group.at_least
        if not isinstance(least, int) or isinstance(least, bool) or not 0 <= least <= len(places):
            raise ContractBroken(f"{where} at_least {safe_repr(least)}, must be 0 to its {len(places)} operations")
        found.append(OperationGroup(places, performance, int(least)))
    return found


def _places(given: Any, count: int, where: str) -> tuple[int, ...]:
    """Return the numbers of operations in order, without duplicates."""
    if not isinstance(given, Iterable):
        raise ContractBroken(f"{where} with operations {safe_repr(given)}, must be places of operations")
    places = list(islice(given, count + 1))
    for place in places:
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < count:
            raise ContractBroken(f"{where} with operation {safe_repr(place)}, must be 0 to {count - 1}")
    if not places or len(set(places)) < len(places):
        what = "an operation twice" if places else "no operation"
        raise ContractBroken(f"{where} with {what}, must be at least one, each once")
    return tuple(sorted(map(int, places)))
