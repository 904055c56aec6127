"""Measured times, held against the suite's own clock: a wrong unit, an impossible duration, profiles outside the call."""

import time
from collections.abc import Callable

from nnhal.base.errors import NnhalError
from nnhal.base.levels import V1_2
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.draw import Call
from nnhal.conformance.suites.vts.promise import OPERATION, Probe, promise
from nnhal.conformance.validate.trial import RequirementNotMet, copies
from nnhal.hal.device import Prepared
from nnhal.hal.request import Control, Request, Run, Timing

ROUNDS = 8
# A time in microseconds is a thousandth of one in nanoseconds, and the calls around a driver take less than 200 times
# as long as the driver's part.
LEAST = 200


class _Measured:
    """Executions with the suite's clock around the driver's `run`, or around the call of another process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.spent: list[int] = []
        self.given: list[Timing | None] = []

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute, and note both times."""
        begin = time.monotonic_ns()
        timing = self._run(request, control)
        self.spent.append(time.monotonic_ns() - begin)
        self.given.append(timing)
        return timing


@promise(
    "times",
    "Times are nanoseconds, also in a burst: no more than the suite measures, and no less than a two hundredth of it.",
    OPERATION,
    unseen="run() returns no times",
)
def times(probe: Probe) -> int:
    probe.since(V1_2, "measured times")
    seen = 0
    for call, model in probe.calls.samples():
        prepared = probe.prepare(model)
        seen += _judged(probe, _measured(probe, call, prepared, prepared.run))
        with probe.stages.enter("burst"), prepared.burst() as series:
            seen += _judged(probe, _measured(probe, call, prepared, series.run), "in a burst, ")
    return seen


def _measured(probe: Probe, call: Call, prepared: Prepared, run: Run) -> _Measured:
    """Execute a few times, until an execution fails."""
    measured = _Measured(run)
    for _ in range(ROUNDS):
        request = probe.request(prepared, copies(arrays_of(call)))
        try:
            with probe.stages.enter("run"):
                request.execute(measured.run, Control(measure=True))
        except NnhalError:
            break
    return measured


def _noting(noted: list[tuple[int, int, int]]) -> Callable[[int, int, int], None]:
    return lambda operation, begin, end: noted.append((operation, begin, end))


def _judged(probe: Probe, measured: _Measured, where: str = "") -> int:
    """Raise RequirementNotMet for impossible times; return the number of possible ones."""
    seen = 0
    driver_of, spent_of = 0, 0
    for spent, timing in zip(measured.spent, measured.given, strict=True):
        if timing is None or not (isinstance(timing, tuple) and len(timing) == len(Timing._fields)):
            continue
        for name, value in zip(("on the device", "in the driver"), timing, strict=True):
            if value is None:
                continue
            if type(value) is not int or value < 0:
                raise RequirementNotMet(
                    f"{where}the time {name} is {value!r:.50}, must be nanoseconds as an int", probe.place()
                )
            if value > spent:
                raise RequirementNotMet(f"{where}the time {name} is {value} ns of a call of {spent} ns", probe.place())
            seen += 1
        if timing[1] is not None:
            driver_of, spent_of = driver_of + timing[1], spent_of + spent
    if spent_of and driver_of * LEAST < spent_of:
        text = f"{where}the times in the driver are {driver_of} ns for calls of {spent_of} ns"
        why = "they may be in microseconds" if driver_of else "nothing was measured"
        raise RequirementNotMet(f"{text}; {why}", probe.place())
    return seen


@promise(
    "times/profile",
    "Times of operations lie within the execution, in order, and belong to operations of the model.",
    OPERATION,
    isolated=False,
    unseen="the prepared model reports no times of operations",
)
def profile(probe: Probe) -> int:
    seen = 0
    for call, model in probe.calls.samples():
        prepared = probe.prepare(model)
        if prepared.profiles is not True:
            continue
        noted: list[tuple[int, int, int]] = []
        request = probe.request(prepared, copies(arrays_of(call)))
        begin = time.monotonic_ns()
        try:
            with probe.stages.enter("run"):
                request.execute(prepared.run, Control(profile=_noting(noted)))
        except NnhalError:
            continue
        end = time.monotonic_ns()
        for operation, since, until in noted:
            if not 0 <= operation < len(prepared.model.main.operations):
                raise RequirementNotMet(
                    f"times of operation {operation} are reported, which the model does not have", probe.place()
                )
            if not begin <= since <= until <= end:
                span = f"{since - begin} to {until - begin} ns"
                raise RequirementNotMet(
                    f"operation {operation} took from {span} of an execution of {end - begin} ns", probe.place()
                )
        seen += len(noted)
    return seen
