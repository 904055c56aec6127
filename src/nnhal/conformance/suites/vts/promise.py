"""The promises that vts looks at: their names, rules, and the functions that look whether a driver keeps them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from nnhal.base.codes import type_name
from nnhal.base.errors import NnhalError
from nnhal.base.operands import Array
from nnhal.base.records import Record
from nnhal.conformance.differential import Outputs, arrays_of
from nnhal.conformance.draw import Call
from nnhal.conformance.place import place_in
from nnhal.conformance.suites.suite import SuiteRun
from nnhal.conformance.validate.drawing import Drawing
from nnhal.conformance.validate.trial import NotAccepted, NotAsked, RequirementNotMet, Trial, copies, open_trial
from nnhal.conformance.verdict import TypeVerdicts
from nnhal.hal.device import Device, Prepared
from nnhal.hal.request import Signature
from nnhal.model.graph import Model
from nnhal.ops import OPS

DRIVER, CHOSEN, OPERATION = "driver", "chosen operations", "operation"
# All operations, to look at what does not depend on the operation: first the oldest, which most drivers have, and of these
# the ones that compute and fuse an activation.
COMMON = sorted(OPS, key=lambda name: (OPS[name].since, "activation" not in OPS[name].forms[0].places))
FEW = 2  # operations that a promise of chosen operations is looked at with


class Probe(Trial):
    """One operation of the device under test, for a promise.

    run: the suite's run. draw: returns the drawn calls of an operation. found: lists of operations by name, which later
    probes of the same device need not find again.
    """

    def __init__(
        self,
        device: Device,
        run: SuiteRun,
        operation: str,
        draw: Callable[[str], Drawing],
        at: Callable[[str], None],
        found: dict[str, list[str]],
        types: TypeVerdicts,
    ) -> None:
        super().__init__(device, draw(operation), at, isolated=run.isolate, types=types)
        self.suite_run, self._draw, self._called, self.lists = run, draw, at, found

    def of(self, operation: str) -> "Probe":
        """Return the probe of another operation."""
        return Probe(self.device, self.suite_run, operation, self._draw, self._called, self.lists, self.types)

    def count(self, number: int) -> int:
        """Return a number of repetitions, with the run's scale."""
        return max(1, round(number * self.suite_run.scale))

    def go_on(self) -> None:
        """Announce the driver's current call again: it has the whole time limit from now on."""
        self._called(self.stages.last)

    def closed(self) -> tuple[Call, Model]:
        """Return a sample with at least one input and one output element, and repeatable results.

        Raises:
            NotAsked: no supported call has them.
        """
        self.calls.fixed()
        for call, model in self.calls.samples():
            arrays = arrays_of(call)
            if arrays and all(x.size for x in arrays) and self.device_gives(model):
                self.calls.has_one = True
                return call, model
        raise NotAsked("no supported call has an input and outputs of known shapes")

    def tries(self, call: Call) -> None:
        """Note the type of a call, in a promise of the driver: those of operations know it."""
        self.types.begin(type_name(call.cell.kind))

    def device_gives(self, model: Model) -> bool:
        """Whether all output shapes are known before the execution."""
        return Signature.of(model).closed

    def right(self, call: Call, wanted: Outputs, prepared: Prepared, when: str) -> None:
        """Raise RequirementNotMet if an execution fails, or gives other results than wanted."""
        try:
            results = self.run(prepared, copies(arrays_of(call)))
        except NnhalError as error:
            raise RequirementNotMet(
                f"{when}: {named(error)}, must give its result", place_in(error.stack) or self.place()
            ) from error
        self.same(call, wanted, results, when)

    def refused(
        self, what: str, allowed: type[NnhalError] | tuple[type[NnhalError], ...], act: Callable[[], Any]
    ) -> None:
        """Raise RequirementNotMet unless a call of the driver raises one of the allowed errors."""
        names = " or ".join(each.__name__ for each in (allowed if isinstance(allowed, tuple) else (allowed,)))
        try:
            act()
        except allowed:
            return
        except NnhalError as error:
            raise RequirementNotMet(f"{what}: {named(error)}, must be {names}", place_in(error.stack)) from error
        raise RequirementNotMet(f"{what} is accepted, must be {names}")


Look = Callable[[Probe], int]


class Promise(Record, frozen=True):
    """A rule of the driver interface, in one sentence, and the function that looks at it.

    look: returns how often it saw the rule kept. per: `DRIVER` (once), `CHOSEN` (with a few operations, in one case),
    or `OPERATION` (a case for each). isolated: True or False if it needs the driver isolated or in this process.
    operations: those that it looks at, empty for all. unseen: why nothing was seen.
    """

    name: str
    rule: str
    look: Look
    per: str
    isolated: bool | None
    operations: tuple[str, ...]
    unseen: str


PROMISES: dict[str, Promise] = {}


def promise(
    name: str,
    rule: str,
    per: str = CHOSEN,
    *,
    isolated: bool | None = None,
    operations: Sequence[str] = (),
    unseen: str = "no supported call shows it",
) -> Callable[[Look], Look]:
    """Add a promise to the table."""

    def add(look: Look) -> Look:
        assert name not in PROMISES, name
        PROMISES[name] = Promise(name, rule, look, per, isolated, tuple(operations), unseen)
        return look

    return add


def chosen(probe: Probe) -> Iterator[Probe]:
    """Yield probes of a few operations that the driver supports; NotAccepted if there are none."""
    if CHOSEN not in probe.lists:
        probe.lists[CHOSEN] = list(islice(_shown(probe), FEW))
    if not probe.lists[CHOSEN]:
        raise NotAccepted("no supported call has an input and outputs of known shapes")
    for operation in probe.lists[CHOSEN]:
        each = probe.of(operation)
        with open_trial(each):
            yield each


def _shown(probe: Probe) -> Iterator[str]:
    """Yield the operations with a call that promises can be looked at with."""
    for operation in COMMON:
        each = probe.of(operation)
        with open_trial(each), suppress(NotAsked):
            each.closed()
            yield operation


def named(error: BaseException) -> str:
    """Return an error with its class."""
    return f"{type(error).__name__}: {error}"


def changed(arrays: Sequence[Array], place: int, array: Array | None) -> list[Array | None]:
    """Return the arrays with another one in one place."""
    return [*arrays[:place], array, *arrays[place + 1 :]]
