"""Checks that bursts, fences, callbacks and driver memory give the results of a plain call."""

import threading
import time

from nnhal.base.errors import Closed, InvalidArgument, NnhalError, OperationFailed
from nnhal.base.levels import V1_2, V1_3, Level
from nnhal.base.memory import Memory
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.execution_paths import WAYS, by_callbacks, not_used
from nnhal.conformance.validate.check import check
from nnhal.conformance.validate.state import SECOND, data_sets
from nnhal.conformance.validate.trial import NotAsked, Trial, copies
from nnhal.hal.answers import allocated_by, checked_info, fenced_by
from nnhal.hal.chain import checked_burst
from nnhal.hal.fence import fence_pair
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.prepared import driver_roles
from nnhal.hal.request import UNLIMITED

SAME = ", in the memory of the execution before"
WAIT = 30.0  # seconds for a callback
AGAIN = 0.05  # seconds in which a second one may come
EARLY = 0.02  # seconds in which an execution that ignores its fence may end


@check("burst", "A burst gives the results of plain calls, and none after its end.", SECOND)
def burst(trial: Trial) -> int:
    trial.calls.fixed()
    _since(trial, "bursts", V1_2)
    for call, model in trial.calls.samples():
        sets = data_sets(trial, call, model)
        prepared = trial.prepare(model)
        memory = copies(sets[0][1])
        for _ in range(2):
            with trial.stages.enter("burst"):
                series = checked_burst(prepared, trial.where)
            for number, what in ((0, ""), (1, ""), (2, ""), (0, ""), (0, SAME), (1, SAME)):
                each, arrays, wanted = sets[number]
                if what:
                    for place, array in zip(memory, arrays, strict=True):
                        place[...] = array
                    arrays = memory
                request = trial.request(prepared, arrays)
                with trial.stages.enter("run"):
                    request.execute(series.run, UNLIMITED)
                trial.same(each, wanted, request.results, f"in a burst{what}")
            with trial.stages.enter("close"):
                series.close()
        try:
            with trial.stages.enter("run"):
                trial.request(prepared, sets[0][1]).execute(series.run, UNLIMITED)
        except (Closed, OperationFailed):
            continue
        trial.unmet("a burst that was closed executes, must raise Closed")
    return len(trial.calls.samples())


@check(
    "fenced",
    "A fenced execution waits for its fences, gives the results of a plain call, and its fence signals the end.",
    unseen="the shapes of its outputs are unknown before the execution",
)
def fenced(trial: Trial) -> int:
    trial.calls.fixed()
    _since(trial, "fenced executions", V1_3, "fenced")
    seen = 0
    for call, model in trial.calls.samples():
        prepared = trial.prepare(model)
        if not trial.signature_of(prepared).closed:
            continue
        seen += 1
        wanted = trial.alone(model, arrays_of(call))
        request = trial.with_rooms(prepared, call)
        ready, signal = fence_pair()
        with trial.stages.enter("execute_fenced"):
            launched = fenced_by(prepared, trial.where, request, UNLIMITED, [ready])
            time.sleep(EARLY)
            if launched.fence is None or launched.fence.status() is not None:
                trial.unmet("has ended before its fence was signalled")
            signal.set()
            launched.fence.wait()
            checked_info(launched, trial.where)
        trial.same(call, wanted, request.results, "fenced")
    return seen


@check("callback", "An execution in the background notifies exactly once, with the results in place.", inside=True)
def callback(trial: Trial) -> int:
    for call, model in trial.calls.samples():
        with by_callbacks() as heard:
            wanted = trial.alone(model, arrays_of(call))
            prepared = trial.prepare(model)
            request = trial.with_rooms(prepared, call)
            came: list[NnhalError | None] = []
            done = threading.Event()

            def notify(
                error: NnhalError | None,
                timing: object,
                came: list[NnhalError | None] = came,
                done: threading.Event = done,
            ) -> None:
                came.append(error)
                done.set()

            with trial.stages.enter("execute"):
                prepared.execute(request, UNLIMITED, notify)
                if not done.wait(min(WAIT, 1e6)):
                    trial.unmet(f"has not notified within {WAIT:g} s")
                time.sleep(AGAIN)
        if len(came) > 1:
            trial.unmet(f"notified {len(came)} times, must be once")
        if heard:
            trial.unmet(heard[0])
        if came[0] is not None:
            raise came[0]
        trial.same(call, wanted, request.results, "in the background")
    return len(trial.calls.samples())


@check("allocation", "Driver memory holds inputs and outputs as arrays do, and has no contents at first.")
def allocation(trial: Trial) -> int:
    trial.calls.fixed()
    _since(trial, "driver memory", V1_3, "memory")
    for call, model in trial.calls.samples():
        wanted = trial.alone(model, arrays_of(call))
        prepared = trial.prepare(model)
        request = trial.with_rooms(prepared, call)
        with trial.stages.enter("allocate"):
            WAYS["memory"](trial.device, prepared, request, UNLIMITED)
        trial.same(call, wanted, request.results, "in driver memory")
        result = request.results[0]
        with trial.stages.enter("allocate"):
            buffer = allocated_by(trial.device, BufferDesc(result.shape), [BufferRole(prepared, 0, output=True)])
            try:
                buffer.copy_to(Memory.allocate(max(1, result.nbytes)))
            except NnhalError:
                pass
            else:
                trial.unmet("a copy from unwritten memory succeeds, must be OperationFailed")
            finally:
                buffer.close()
    return len(trial.calls.samples())


@check(
    "allocation-roles",
    "Memory is refused for contradictory or unknown roles.",
    unseen="it has no inputs",
)
def allocation_roles(trial: Trial) -> int:
    _since(trial, "driver memory", V1_3, "memory")
    call, model = trial.calls.first()
    prepared = trial.prepare(model)
    if not call.given:
        return 0
    shape = arrays_of(call)[0].shape
    role = BufferRole(prepared, 0)
    bad = {
        "no roles": (BufferDesc(shape), []),
        "an unknown input": (BufferDesc(shape), [BufferRole(prepared, 99)]),
        "a role twice": (BufferDesc(shape), [role, role]),
        "another shape than the input's": (BufferDesc((*shape, 7)), [role]),
    }
    for what, (desc, roles) in bad.items():
        try:
            with trial.stages.enter("allocate"):
                trial.device.allocate(desc, driver_roles(roles)).close()
        except InvalidArgument:
            continue
        except NnhalError as error:
            trial.unmet(f"allocate() for {what}: {type(error).__name__}: {error}, must be InvalidArgument")
        trial.unmet(f"allocate() returns memory for {what}, must be InvalidArgument")
    return len(bad)


def _since(trial: Trial, what: str, level: Level, way: str = "") -> None:
    """Raise NotAsked if the device's HAL version lacks the feature, or if nnhal does not use the driver's."""
    trial.calls.taken()  # NotAccepted has precedence
    trial.since(level, what)
    unused = not_used(trial.device, way)
    if unused:
        raise NotAsked(unused)
