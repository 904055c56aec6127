"""Checks of deadlines, cancellation, measured times, and resource leaks."""

import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise

from nnhal.base.errors import Cancelled, LoopTimeout, MissedDeadline, NnhalError
from nnhal.conformance.control import WhileCall, endless_loop
from nnhal.conformance.differential import Outputs, arrays_of, model_of
from nnhal.conformance.draw import Call
from nnhal.conformance.place import place_in
from nnhal.conformance.pool import children_of
from nnhal.conformance.validate.check import check
from nnhal.conformance.validate.trial import PLAIN, NotAsked, RequirementNotMet, Trial, copies
from nnhal.conformance.worker import process_of
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.prepared import PreparedWrapper
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.wrappers import Wrapper
from nnhal.model.graph import Model

SHORT_NS, GRACE_NS, FAR_NS = 20_000_000, 300_000_000, 600_000_000_000
TRIES = 3  # of which one in time is enough: the machine may be busy
BLOCKS = 3  # of iterations; a leak grows in each of them
BLOCK_SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 0.05, 5, 40
NOISE = 8 << 10  # bytes per iteration
PAGE = os.sysconf("SC_PAGESIZE")


class EntryLimit:
    """The moment at which an execution enters the driver: after it, no queue can refuse the execution."""

    def __init__(self) -> None:
        self.limit: Callable[[Control], Control] | None = None
        self.limited = 0

    def __call__(self, control: Control) -> Control:
        """Return the control for the driver. limit: changes it. limited: how many controls were changed."""
        if self.limit is None:
            return control
        self.limited += 1
        return self.limit(control)


class WithEntryLimit(Wrapper):
    """The driver, whose executions pass an `EntryLimit`."""

    def __init__(self, inner: Device, entry: EntryLimit) -> None:
        super().__init__(inner)
        self.entry = entry

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Prepare as the driver does."""
        return _EnteredModel(self.inner.prepare(model, hints), model, self.entry)


class _EnteredModel(PreparedWrapper):
    def __init__(self, inner: Prepared, model: Model, entry: EntryLimit) -> None:
        super().__init__(inner, model)
        self.entry = entry

    def run(self, request: Request, control: Control) -> Timing | None:
        """Run as the driver does."""
        return self.inner.run(request, self.entry(control))


@check(
    "deadline",
    "An execution ends at its deadline, with its result or MissedDeadline, and harms no later one.",
    inside=True,
)
def deadline(trial: Trial) -> int:
    entry = EntryLimit()
    driver = WithEntryLimit(trial.device, entry)
    for call, model in trial.calls.samples():
        wanted = trial.alone(model, arrays_of(call))
        prepared = trial.prepare(model, through=driver)
        far, passed = (Control(deadline=time.monotonic_ns() + ahead) for ahead in (FAR_NS, -1))
        if _bounded(trial, prepared, call, wanted, far, MissedDeadline):
            trial.unmet("MissedDeadline long before the deadline")
        _bounded(trial, prepared, call, wanted, passed, MissedDeadline)
        late = [_late(trial, prepared, call, wanted, entry)]
        while late[-1] >= GRACE_NS and len(late) < TRIES:
            late.append(_late(trial, prepared, call, wanted, entry))
        if min(late) > GRACE_NS:
            trial.unmet(f"returned {min(late) / 1e9:.1f} s after its deadline, must poll control.check()")
        results = trial.run(prepared, copies(arrays_of(call)))
        trial.same(call, wanted, results, "after a missed deadline")
        with suppress(MissedDeadline):
            trial.prepare(model, Hints(threads=1, deadline=time.monotonic_ns() - 1))
    return entry.limited


def _late(trial: Trial, prepared: Prepared, call: Call, wanted: Outputs, entry: EntryLimit) -> int:
    """Return the nanoseconds between a deadline soon after the entry and the execution's return."""
    point = begin = time.monotonic_ns()

    def shortly(control: Control) -> Control:
        nonlocal point
        point = time.monotonic_ns() + SHORT_NS
        return control._replace(deadline=point)

    entry.limit = shortly
    try:
        _bounded(trial, prepared, call, wanted, Control(deadline=begin + FAR_NS), MissedDeadline)
        return time.monotonic_ns() - point
    finally:
        entry.limit = None


@check("cancellation", "A cancelled execution ends, with its result or Cancelled, and harms no later one.", inside=True)
def cancellation(trial: Trial) -> int:
    entry = EntryLimit()
    driver = WithEntryLimit(trial.device, entry)
    for call, model in trial.calls.samples():
        wanted = trial.alone(model, arrays_of(call))
        prepared = trial.prepare(model, through=driver)
        for later in (0.0, SHORT_NS / 4e9):
            spent = min(_cancelled(trial, prepared, call, wanted, entry, later) for _ in range(TRIES))
            if spent > GRACE_NS:
                trial.unmet(f"returned {spent / 1e9:.1f} s after it was cancelled, must poll control.check()")
        results = trial.run(prepared, copies(arrays_of(call)))
        trial.same(call, wanted, results, "after a cancelled execution")
    return entry.limited


def _cancelled(trial: Trial, prepared: Prepared, call: Call, wanted: Outputs, entry: EntryLimit, later: float) -> int:
    """Return the nanoseconds of an execution that is cancelled `later` seconds after its entry into the driver."""
    event = threading.Event()
    timer = threading.Timer(later, event.set)
    begin = time.monotonic_ns()

    def cancelled(control: Control) -> Control:
        nonlocal begin
        begin = time.monotonic_ns()
        timer.start() if later else event.set()
        return control

    entry.limit = cancelled
    try:
        _bounded(trial, prepared, call, wanted, Control(cancelled=event), Cancelled)
        return time.monotonic_ns() - begin
    finally:
        entry.limit = None
        timer.cancel()


def _bounded(
    trial: Trial, prepared: Prepared, call: Call, wanted: Outputs, control: Control, allowed: type[NnhalError]
) -> bool:
    """Whether an execution raised the allowed error; RequirementNotMet for another one, or a wrong result."""
    try:
        actual = trial.run(prepared, copies(arrays_of(call)), control)
    except allowed:
        return True
    except NnhalError as error:
        text = f"{type(error).__name__}: {error}, must be a result or {allowed.__name__}"
        raise RequirementNotMet(text, place_in(error.stack) or trial.place()) from error
    trial.same(call, wanted, actual, f"with {'a deadline' if control.deadline else 'a cancellation'}")
    return False


@check(
    "loop-timeout",
    "An endless loop ends at its timeout, with LoopTimeout, and harms no later execution.",
    unseen="none of the supported loops has a limit that is an input of the model",
    only=("WHILE",),
)
def loop_timeout(trial: Trial) -> int:
    seen = 0
    for call, _ in trial.calls.samples():
        if not isinstance(call, WhileCall) or not call.limit_given:
            continue
        seen += 1
        wanted = trial.alone(model_of(call), arrays_of(call))
        prepared = trial.prepare(model_of(call))
        for _ in range(TRIES):
            begin = time.monotonic_ns()
            try:
                trial.run(prepared, copies(arrays_of(endless_loop(call))), Control(loop_timeout=SHORT_NS))
            except LoopTimeout:
                spent = time.monotonic_ns() - begin
            else:
                trial.unmet("an endless loop has a result, must be LoopTimeout")
            if spent < SHORT_NS:
                trial.unmet(
                    f"LoopTimeout after {spent / 1e6:.1f} ms, must be after the timeout of {SHORT_NS / 1e6:g} ms"
                )
            if spent < SHORT_NS + GRACE_NS:
                break
        else:
            trial.unmet(f"returned {(spent - SHORT_NS) / 1e9:.1f} s after the timeout of its loop")
        trial.same(call, wanted, trial.run(prepared, copies(arrays_of(call))), "after a loop timeout")
    return seen


@check("timing", "The times that run returns are possible.", unseen="run returns no times", inside=True)
def timing(trial: Trial) -> int:
    seen = 0
    for call, model in trial.calls.samples():
        prepared = trial.prepare(model)
        request = trial.request(prepared, arrays_of(call))
        with trial.stages.enter("run"):
            begin = time.monotonic_ns()
            given = request.execute(prepared.run, Control(measure=True))
            spent = time.monotonic_ns() - begin
        if given is None:
            continue
        if not isinstance(given, tuple) or len(given) != 2 or not all(t is None or type(t) is int for t in given):
            trial.unmet(f"the result of run is {given!r:.80}, must be a Timing of nanoseconds, or None")
        device, driver = given
        if min(device or 0, driver or 0) < 0 or (driver is not None and (device or 0) > driver):
            trial.unmet(f"the result of run is {given}, must have a time on the device within the time in the driver")
        if max(device or 0, driver or 0) > spent:
            trial.unmet(f"the result of run is {given}, must be at most the {spent} ns that it took")
        seen += (device, driver) != (None, None)
    return seen


# --------------------------------------------------------------------------------------------------------------- growth


def _held(pid: int) -> dict[str, int]:
    """Return a process's resources: bytes of memory, descriptors, threads, child processes."""
    counts = counted(pid)
    with open(f"/proc/{pid}/statm") as statm:
        size, resident = (int(pages) * PAGE for pages in statm.read().split()[:2])
    return {**counts, "resident memory": resident, "address space": size}


def counted(pid: int) -> dict[str, int]:
    """Return the numbers of a process's descriptors, threads and child processes; OSError if it has ended."""
    gc.collect()
    counts = {
        what: len(os.listdir(f"/proc/{pid}/{place}")) for what, place in (("descriptors", "fd"), ("threads", "task"))
    }
    return {**counts, "processes": len(children_of(pid))}


def driver_pid(trial: Trial) -> int:
    """Return the process that the driver runs in."""
    process = process_of(trial.device)
    return os.getpid() if process is None else process.pid


@check(
    "growth", "Executions, and models that are prepared and closed, leak no memory, descriptors, threads or processes."
)
def growth(trial: Trial) -> int:
    pid = driver_pid(trial)
    call, model = trial.calls.first()
    kept = trial.prepare(model)
    _look(trial, pid, "run", partial(trial.run, kept, copies(arrays_of(call))))
    trial.close(kept)
    _look(trial, pid, "prepare, run and close", partial(_whole_life, trial, call, model))
    return BLOCKS


def _whole_life(trial: Trial, call: Call, model: Model) -> None:
    prepared = trial.prepare(model, PLAIN)
    trial.run(prepared, copies(arrays_of(call)))
    trial.close(prepared)


def _look(trial: Trial, pid: int, what: str, once: Callable[[], object]) -> None:
    """Raise RequirementNotMet if a resource grows in each block of iterations."""
    begin = time.monotonic()
    for _ in range(LEAST_ROUNDS):
        once()
    each = (time.monotonic() - begin) / LEAST_ROUNDS
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(BLOCK_SECONDS / max(each, 1e-6))))
    try:
        seen = [_held(pid)]
        for _ in range(BLOCKS):
            for _ in range(rounds):
                once()
            seen.append(_held(pid))
    except OSError as error:
        raise NotAsked(f"/proc/{pid} cannot be read: {error.strerror}") from None
    for name in seen[0]:
        counted = name in ("descriptors", "threads", "processes")
        least = rounds // 2 if counted else max(rounds * NOISE, 256 << 10)
        grown = [after[name] - before[name] for before, after in pairwise(seen)]
        if min(grown) >= least:
            per_round = sum(grown) / BLOCKS / rounds
            much = f"{round(per_round, 1):g} {name}" if counted else f"{per_round / 1024:.0f} KiB of {name}"
            place = trial.place() if what == "run" else trial.place("prepare")
            raise RequirementNotMet(f"each {what} leaks {much} ({rounds * BLOCKS} iterations)", place)
