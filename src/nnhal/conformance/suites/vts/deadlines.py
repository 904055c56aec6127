"""Quality of service: deadlines that are past, near and far, in each way to prepare and to execute, and loop timeouts."""

import time

from nnhal.base.codes import Preference, Priority
from nnhal.base.errors import LoopTimeout, MissedDeadline, NnhalError
from nnhal.base.levels import V1_2, V1_3
from nnhal.base.records import replace
from nnhal.conformance.control import WhileCall, endless_loop
from nnhal.conformance.differential import Outputs, arrays_of, model_of
from nnhal.conformance.draw import Call
from nnhal.conformance.suites.vts.promise import OPERATION, Probe, named, promise
from nnhal.conformance.validate.state import at_once
from nnhal.conformance.validate.table import of_operation
from nnhal.conformance.validate.trial import PLAIN, RequirementNotMet, copies
from nnhal.hal.chain import checked_burst, checked_prepared
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control, Run

NEAR_NS, FAR_NS, GRACE_NS = 5_000_000, 600_000_000_000, 300_000_000
TRIES = 3  # of which one in time is enough: the machine may be busy
LOOP_NS = 20_000_000
LONGEST_LOOP_NS = 15_000_000_000


@promise("deadlines/prepare", "A compilation ends at its deadline, with a prepared model or MissedDeadline.")
def prepare(probe: Probe) -> int:
    probe.since(V1_3, "deadlines")
    call, model = probe.closed()
    wanted = probe.alone(model, arrays_of(call))
    for ahead in (-1_000_000_000, -1, NEAR_NS, FAR_NS):
        hints = replace(PLAIN, deadline=time.monotonic_ns() + ahead)
        try:
            with probe.stages.enter("prepare"):
                prepared = probe.opened(checked_prepared(probe.device, model_of(call), hints))
        except MissedDeadline as error:
            if ahead == FAR_NS:
                raise RequirementNotMet(
                    f"a compilation with a deadline in {FAR_NS / 1e9:g} s: {named(error)}"
                ) from error
            continue
        except NnhalError as error:
            text = f"a compilation with a deadline in {ahead / 1e6:g} ms: {named(error)}, must be MissedDeadline"
            raise RequirementNotMet(text) from error
        probe.right(call, wanted, prepared, f"prepared with a deadline in {ahead / 1e6:g} ms")
    probe.right(call, wanted, probe.prepare(model), "after compilations that missed their deadlines")
    return 4


@promise(
    "deadlines/execute",
    "An execution, plain, in a burst or fenced, ends at its deadline, with its result or MissedDeadline.",
    OPERATION,
)
def execute(probe: Probe) -> int:
    probe.since(V1_3, "deadlines")
    call, model = probe.closed()
    wanted = probe.alone(model, arrays_of(call))
    prepared = probe.prepare(model)
    with probe.stages.enter("burst"):
        series = checked_burst(prepared, probe.where)
    try:
        for how, run in (("", prepared.run), (" in a burst", series.run)):
            for ahead in (-1_000_000_000, NEAR_NS, FAR_NS):
                late = [_late(probe, call, wanted, prepared, run, ahead, how)]
                while late[-1] > GRACE_NS and len(late) < TRIES:
                    late.append(_late(probe, call, wanted, prepared, run, ahead, how))
                if late[-1] > GRACE_NS:
                    text = f"an execution{how} returned {late[-1] / 1e9:.1f} s after its deadline"
                    raise RequirementNotMet(f"{text}, must poll control.check()", probe.place())
            probe.right(call, wanted, prepared, f"after executions{how} that missed their deadlines")
    finally:
        with probe.stages.enter("close"):
            series.close()
    return 6


def _late(probe: Probe, call: Call, wanted: Outputs, prepared: Prepared, run: Run, ahead: int, how: str) -> int:
    """Return the nanoseconds between a deadline and the return of an execution."""
    deadline = time.monotonic_ns() + ahead
    request = probe.request(prepared, copies(arrays_of(call)))
    what = f"an execution{how} with a deadline in {ahead / 1e6:g} ms"
    try:
        with probe.stages.enter("run"):
            request.execute(run, Control(deadline=deadline))
    except MissedDeadline as error:
        if ahead == FAR_NS:
            raise RequirementNotMet(f"{what}: {named(error)}, must give its result", probe.place()) from error
    except NnhalError as error:
        raise RequirementNotMet(f"{what}: {named(error)}, must be a result or MissedDeadline", probe.place()) from error
    else:
        probe.same(call, wanted, request.results, what)
    return time.monotonic_ns() - max(deadline, deadline - ahead)


@promise(
    "deadlines/priorities",
    "Prepared models of each priority and preference give right results side by side, and at once.",
)
def priorities(probe: Probe) -> int:
    call, model = probe.closed()
    wanted = probe.alone(model, arrays_of(call))
    hints = [Hints(preference, priority, threads=1) for preference in Preference for priority in Priority]
    held = [(each, probe.prepare(model_of(call), each)) for each in hints]
    for _ in range(2):
        for each, prepared in held:
            what = f"with preference {each.preference.name} and priority {each.priority.name} beside others"
            probe.right(call, wanted, prepared, what)
    for place, results in at_once(probe, [(prepared, arrays_of(call)) for _, prepared in held]):
        each, _ = held[place]
        probe.same(
            call,
            wanted,
            results,
            f"with preference {each.preference.name} and priority {each.priority.name}, at once with others",
        )
    return len(held)


_TIMEOUT = next(check for check in of_operation("WHILE") if check.name == "loop-timeout")
promise("loops/timeout", _TIMEOUT.promise, OPERATION, operations=("WHILE",), unseen=_TIMEOUT.unseen)(_TIMEOUT.look)


@promise(
    "loops/ways",
    "An endless loop ends at its timeout in a burst too, and the greatest timeout changes no result.",
    OPERATION,
    operations=("WHILE",),
    unseen="none of the supported loops has a limit that is an input of the model",
)
def loops(probe: Probe) -> int:
    probe.since(V1_2, "bursts")
    seen = 0
    for call, _ in probe.calls.samples():
        if not isinstance(call, WhileCall) or not call.limit_given or probe.calls.random:
            continue
        model = model_of(call)
        wanted = probe.alone(model, arrays_of(call))
        prepared = probe.prepare(model)
        results = probe.run(prepared, copies(arrays_of(call)), Control(loop_timeout=LONGEST_LOOP_NS))
        probe.same(call, wanted, results, "with the greatest loop timeout")
        with probe.stages.enter("burst"):
            series = checked_burst(prepared, probe.where)
        try:
            request = probe.request(prepared, copies(arrays_of(endless_loop(call))))
            with probe.stages.enter("run"):
                request.execute(series.run, Control(loop_timeout=LOOP_NS))
        except LoopTimeout:
            seen += 1
        else:
            raise RequirementNotMet("an endless loop in a burst has a result, must be LoopTimeout", probe.place())
        finally:
            with probe.stages.enter("close"):
                series.close()
        probe.right(call, wanted, prepared, "after a loop timeout in a burst")
    return seen
