"""Fences: executions that wait for others, for signalled and for failing fences, and what they report."""

import time
from collections.abc import Sequence
from functools import partial

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import InvalidArgument, MissedDeadline, NnhalError
from nnhal.base.levels import V1_3
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.execution_paths import not_used
from nnhal.conformance.suites.vts.promise import Probe, promise
from nnhal.conformance.validate.trial import NotAsked, RequirementNotMet, copies
from nnhal.hal.answers import checked_info, fenced_by
from nnhal.hal.background import FencedExecution
from nnhal.hal.device import Prepared
from nnhal.hal.fence import Fence, fence_pair
from nnhal.hal.request import UNLIMITED, Control, Request

WAIT = 30.0  # seconds for a fence; the suite ends a driver that hangs before that
SHORT_NS = 20_000_000
EARLY = 0.02  # seconds in which an execution that ignores its fence may end
FAILURES = (  # of a fence that is waited for
    *(ErrorStatus.GENERAL_FAILURE, ErrorStatus.DEAD_OBJECT, ErrorStatus.INVALID_ARGUMENT),
    ErrorStatus.MISSED_DEADLINE_TRANSIENT,
)


class _Fenced:
    """A call, its model and its results, to execute with fences."""

    def __init__(self, probe: Probe) -> None:
        probe.since(V1_3, "fenced executions")
        unused = not_used(probe.device, "fenced")
        if unused:
            raise NotAsked(unused)
        self.probe = probe
        self.call, model = probe.closed()
        self.wanted = probe.alone(model, arrays_of(self.call))
        self.prepared = probe.prepare(model)

    def request(self) -> Request:
        """Return a request with memory for its outputs."""
        return self.probe.with_rooms(self.prepared, self.call)

    def launch(
        self, request: Request, wait_for: Sequence[Fence], control: Control = UNLIMITED, after: int | None = None
    ) -> FencedExecution:
        """Launch it."""
        with self.probe.stages.enter("execute_fenced"):
            return fenced_by(self.prepared, self.probe.where, request, control, wait_for, after)

    def ended(self, launched: FencedExecution) -> ErrorStatus:
        """Wait for the end; return the status of the fence."""
        if launched.fence is None:
            return ErrorStatus.NONE
        with self.probe.stages.enter("execute_fenced"):
            try:
                launched.fence.wait(WAIT)
            except MissedDeadline as error:
                if launched.fence.status() is None:
                    raise RequirementNotMet(
                        f"a fenced execution has not signalled within {WAIT:g} s", self.probe.place()
                    ) from error
            except NnhalError:
                pass
        status = launched.fence.status()
        assert status is not None
        return status

    def right(self, launched: FencedExecution, request: Request, what: str) -> None:
        """Raise RequirementNotMet unless it ends with its results."""
        status = self.ended(launched)
        if status != ErrorStatus.NONE:
            raise RequirementNotMet(f"{what}: its fence signals {status.name}, must be NONE", self.probe.place())
        with self.probe.stages.enter("execution info"):
            checked_info(launched, self.probe.where)
        self.probe.same(self.call, self.wanted, request.results, what)

    def still_right(self, when: str) -> None:
        """Raise RequirementNotMet unless a plain execution is right."""
        self.probe.right(self.call, self.wanted, self.prepared, when)


@promise("fences/none", "A fenced execution without fences to wait for gives its results.")
def none(probe: Probe) -> int:
    fenced = _Fenced(probe)
    request = fenced.request()
    fenced.right(fenced.launch(request, []), request, "without fences")
    return 1


@promise("fences/signalled", "A fence that is signalled already delays nothing.")
def signalled(probe: Probe) -> int:
    fenced = _Fenced(probe)
    ready, signal = fence_pair()
    signal.set()
    for _ in range(2):  # a fence is not used up
        request = fenced.request()
        fenced.right(fenced.launch(request, [ready]), request, "with a signalled fence")
    return 2


@promise("fences/all", "A fenced execution waits for all fences, whatever their order.")
def every(probe: Probe) -> int:
    fenced = _Fenced(probe)
    for order in ((0, 1, 2), (2, 0, 1)):
        pairs = [fence_pair() for _ in range(3)]
        request = fenced.request()
        launched = fenced.launch(request, [fence for fence, _ in pairs])
        for place, number in enumerate(order):
            if _ended_early(launched):
                raise RequirementNotMet(
                    f"has ended after {place} of 3 fences were signalled, must wait for all", probe.place()
                )
            pairs[number][1].set()
        fenced.right(launched, request, "with three fences")
    return 2


@promise("fences/chain", "An execution may wait for the fence of another one, and for several duplicates of it.")
def chain(probe: Probe) -> int:
    fenced = _Fenced(probe)
    ready, signal = fence_pair()
    first = fenced.request()
    begun = fenced.launch(first, [ready])
    if begun.fence is None:
        raise RequirementNotMet("has ended before its fence was signalled", probe.place())
    requests = [fenced.request() for _ in range(3)]
    launched = [fenced.launch(request, [begun.fence.duplicate()]) for request in requests]
    signal.set()
    fenced.right(begun, first, "the first of a chain")
    for each, request in zip(launched, requests, strict=True):
        fenced.right(each, request, "after the fence of another execution")
    return len(requests)


@promise("fences/failed", "A fence that has failed before the launch is refused with InvalidArgument.")
def failed(probe: Probe) -> int:
    fenced = _Fenced(probe)
    for status in FAILURES:
        ready, signal = fence_pair()
        signal.set(status)
        what = f"a fence that has signalled {status.name}"
        probe.refused(what, InvalidArgument, partial(fenced.launch, fenced.request(), [ready]))
        fenced.still_right(f"after {what}")
    return len(FAILURES)


@promise("fences/failing", "An execution whose fence fails after the launch fails, and harms no later one.")
def failing(probe: Probe) -> int:
    fenced = _Fenced(probe)
    for status in FAILURES:
        ready, signal = fence_pair()
        launched = fenced.launch(fenced.request(), [ready])
        signal.set(status)
        if fenced.ended(launched) == ErrorStatus.NONE:
            raise RequirementNotMet(
                f"its fence signals NONE though the fence that it waits for fails with {status.name}", probe.place()
            )
        _info_fails(probe, launched, "of an execution whose fence failed")
        fenced.still_right(f"after a fence that fails with {status.name}")
    return len(FAILURES)


@promise("fences/abandoned", "A fence whose signalling side is gone ends the execution that waits for it.")
def abandoned(probe: Probe) -> int:
    fenced = _Fenced(probe)
    ready, signal = fence_pair()
    launched = fenced.launch(fenced.request(), [ready])
    del signal
    if fenced.ended(launched) == ErrorStatus.NONE:
        raise RequirementNotMet(
            "its fence signals NONE though nobody can signal the fence that it waits for", probe.place()
        )
    fenced.still_right("after a fence without a signalling side")
    return 1


@promise("fences/info", "Execution info before the end is OperationFailed, and the same each time after it.")
def info(probe: Probe) -> int:
    fenced = _Fenced(probe)
    ready, signal = fence_pair()
    request = fenced.request()
    launched = fenced.launch(request, [ready], Control(measure=True))
    if launched.fence is None:
        raise RequirementNotMet("has ended before its fence was signalled", probe.place())
    _info_fails(probe, launched, "before its end")
    signal.set()
    fenced.right(launched, request, "with execution info")
    with probe.stages.enter("execution info"):
        first, second = checked_info(launched, probe.where), checked_info(launched, probe.where)
    if first != second:
        raise RequirementNotMet(f"execution info is {first}, then {second}, must stay the same")
    for times in first:
        device, driver = times
        if device is not None and driver is not None and device > driver:
            raise RequirementNotMet(f"execution info has {device} ns on the device of {driver} ns in the driver")
    whole, inner = first.launched.in_driver, first.fenced.in_driver
    if whole is not None and inner is not None and inner > whole:
        raise RequirementNotMet(
            f"execution info has {inner} ns since the last fence and {whole} ns since the launch, must be less"
        )
    return 2


@promise("fences/shapes", "A fenced execution without room for an output of unknown shape is InvalidArgument.")
def shapes(probe: Probe) -> int:
    probe.calls.fixed()
    _Fenced(probe)
    for call, model in probe.calls.taken():
        prepared = probe.prepare(model) if call.open else None
        if prepared is not None and not probe.signature_of(prepared).closed:
            probe.calls.has_one = True
            request = probe.request(prepared, copies(arrays_of(call)))

            def launch(prepared: Prepared = prepared, request: Request = request) -> object:
                with probe.stages.enter("execute_fenced"):
                    return fenced_by(prepared, probe.where, request, UNLIMITED, [])

            probe.refused("a fenced execution with an output of unknown shape", InvalidArgument, launch)
            return 1
    return 0


@promise(
    "fences/duration", "A fenced execution that waits too long, or may take no time, ends with an error or its result."
)
def duration(probe: Probe) -> int:
    fenced = _Fenced(probe)

    ready, signal = fence_pair()
    launched = fenced.launch(fenced.request(), [ready], Control(deadline=time.monotonic_ns() + SHORT_NS))
    status = fenced.ended(launched)
    if status == ErrorStatus.NONE:
        raise RequirementNotMet(
            "its fence signals NONE at the deadline though the fence that it waits for is pending", probe.place()
        )
    signal.set()
    fenced.still_right("after a fenced execution that missed its deadline")
    request = fenced.request()
    try:
        launched = fenced.launch(request, [], UNLIMITED, 1)
    except MissedDeadline:
        return 1
    if fenced.ended(launched) == ErrorStatus.NONE:
        fenced.right(launched, request, "that may take 1 ns")
    fenced.still_right("after a fenced execution that may take 1 ns")
    return 2


def _ended_early(launched: FencedExecution) -> bool:
    """Whether an execution whose fences are pending ends within a short time."""
    try:
        if launched.fence is not None:
            launched.fence.wait(EARLY)
    except MissedDeadline:
        return launched.fence is not None and launched.fence.status() is not None
    except NnhalError:
        return True
    return True


def _info_fails(probe: Probe, launched: FencedExecution, when: str) -> None:
    try:
        checked_info(launched, probe.where)
    except NnhalError:  # a DeadObject too, where a fence signalled that
        return
    raise RequirementNotMet(f"execution info {when} is given, must be an error")
