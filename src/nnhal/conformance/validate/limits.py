"""Deadlines, cancellation, measured times, and what executions leave behind."""

import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise

from nnhal.base.errors import Cancelled, LoopTimeout, MissedDeadline, NnhalError
from nnhal.conformance.control import WhileCall, endless
from nnhal.conformance.differential import Outputs, arrays_of, model_of
from nnhal.conformance.draw import Call
from nnhal.conformance.pool import children_of
from nnhal.conformance.validate.check import check
from nnhal.conformance.validate.place import place_in
from nnhal.conformance.validate.trial import PLAIN, NotAsked, Trial, Unmet, copies
from nnhal.conformance.worker import process_of
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.wrappers import PreparedWrapper, Wrapper
from nnhal.model.graph import Model

SHORT_NS, GRACE_NS, FAR_NS = 20_000_000, 300_000_000, 600_000_000_000
TRIES = 3  # of which one in time is enough: the machine may be busy
BLOCKS = 3  # of rounds; what grows in each of them grows
BLOCK_SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 0.05, 5, 40
NOISE = 8 << 10  # bytes a round
PAGE = os.sysconf("SC_PAGESIZE")


class EntryLimit:
    """The moment at which an execution enters the driver: no queue and no look at its limit can refuse it any more."""

    def __init__(self) -> None:
        self.limit: Callable[[Control], Control] | None = None
        self.limited = 0

    def __call__(self, control: Control) -> Control:
        """What the driver is given for a control. limit: changes it. limited: how many it has changed."""
        if self.limit is None:
            return control
        self.limited += 1
        return self.limit(control)


class Entered(Wrapper):
    """The driver, with its executions passing an entry."""

    def __init__(self, inner: Device, entry: EntryLimit) -> None:
        super().__init__(inner)
        self.entry = entry

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """As the driver does."""
        return _EnteredModel(self.inner.prepare(model, hints), model, self.entry)


class _EnteredModel(PreparedWrapper):
    def __init__(self, inner: Prepared, model: Model, entry: EntryLimit) -> None:
        super().__init__(inner, model)
        self.entry = entry

    def run(self, request: Request, control: Control) -> Timing | None:
        """As the driver does."""
        return self.inner.run(request, self.entry(control))


@check(
    "deadline",
    "An execution ends at its deadline, with its result or MissedDeadline, and harms no later one.",
    inside=True,
)
def deadline(trial: Trial) -> int:
    entry = EntryLimit()
    driver = Entered(trial.device, entry)
    for call, model in trial.samples():
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
            trial.unmet(f"came back {min(late) / 1e9:.1f} s after its deadline, must poll control.check()")
        results = trial.run(prepared, copies(arrays_of(call)))
        if not trial.random:
            trial.same(call, wanted, results, "after a deadline that had passed")
        with suppress(MissedDeadline):
            trial.prepare(model, Hints(threads=1, deadline=time.monotonic_ns() - 1))
    return entry.limited


def _late(trial: Trial, prepared: Prepared, call: Call, wanted: Outputs, entry: EntryLimit) -> int:
    """How many nanoseconds after a deadline shortly ahead, which counts from its entry, an execution came back."""
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
    driver = Entered(trial.device, entry)
    for call, model in trial.samples():
        wanted = trial.alone(model, arrays_of(call))
        prepared = trial.prepare(model, through=driver)
        for later in (0.0, SHORT_NS / 4e9):
            spent = min(_cancelled(trial, prepared, call, wanted, entry, later) for _ in range(TRIES))
            if spent > GRACE_NS:
                trial.unmet(f"came back {spent / 1e9:.1f} s after it was cancelled, must poll control.check()")
        results = trial.run(prepared, copies(arrays_of(call)))
        if not trial.random:
            trial.same(call, wanted, results, "after a cancelled execution")
    return entry.limited


def _cancelled(trial: Trial, prepared: Prepared, call: Call, wanted: Outputs, entry: EntryLimit, later: float) -> int:
    """Nanoseconds that an execution took which is cancelled so many seconds after it has entered the driver."""
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
    """Whether an execution raised what it may; Unmet where it raised anything else, or gave a wrong result."""
    try:
        actual = trial.run(prepared, copies(arrays_of(call)), control)
    except allowed:
        return True
    except NnhalError as error:
        text = f"{type(error).__name__}: {error}, must be a result or {allowed.__name__}"
        raise Unmet(text, place_in(error.stack) or trial.place()) from error
    if not trial.random:
        trial.same(call, wanted, actual, f"with {'a deadline' if control.deadline else 'a cancellation'}")
    return False


@check(
    "loop-timeout",
    "A loop without an end is ended at its time-out, with LoopTimeout, and harms no later execution.",
    unseen="none of the loops that it takes has a limit that is given at run time",
    only=("WHILE",),
)
def loop_timeout(trial: Trial) -> int:
    seen = 0
    for call, _ in trial.samples():
        if not isinstance(call, WhileCall) or not call.limit_given:
            continue
        seen += 1
        wanted = trial.alone(model_of(call), arrays_of(call))
        prepared = trial.prepare(model_of(call))
        for _ in range(TRIES):
            begin = time.monotonic_ns()
            try:
                trial.run(prepared, copies(arrays_of(endless(call))), Control(loop_timeout=SHORT_NS))
            except LoopTimeout:
                spent = time.monotonic_ns() - begin
            else:
                trial.unmet("a loop without an end has a result, must be LoopTimeout")
            if spent < SHORT_NS:
                trial.unmet(f"LoopTimeout after {spent / 1e6:.1f} ms, the time-out is {SHORT_NS / 1e6:g} ms")
            if spent < SHORT_NS + GRACE_NS:
                break
        else:
            trial.unmet(f"came back {(spent - SHORT_NS) / 1e9:.1f} s after the time-out of its loop")
        if not trial.random:
            trial.same(call, wanted, trial.run(prepared, copies(arrays_of(call))), "after a loop that had timed out")
    return seen


@check("timing", "What run returns as its times can be true.", unseen="run returns no times", inside=True)
def timing(trial: Trial) -> int:
    seen = 0
    for call, model in trial.samples():
        prepared = trial.prepare(model)
        request = trial.request(prepared, arrays_of(call))
        with trial.asking("run"):
            begin = time.monotonic_ns()
            given = request.execute(prepared.run, Control(measure=True))
            spent = time.monotonic_ns() - begin
        if given is None:
            continue
        if not isinstance(given, tuple) or len(given) != 2 or not all(t is None or type(t) is int for t in given):
            trial.unmet(f"run gave {given!r:.80}, must be a Timing of nanoseconds, or None")
        device, driver = given
        if min(device or 0, driver or 0) < 0 or (driver is not None and (device or 0) > driver):
            trial.unmet(f"run gave {given}, must be a time on the device that is part of the time in the driver")
        if max(device or 0, driver or 0) > spent:
            trial.unmet(f"run gave {given}, must not be more than the {spent} ns that it took")
        seen += (device, driver) != (None, None)
    return seen


# --------------------------------------------------------------------------------------------------------------- growth


def _held(pid: int) -> dict[str, int]:
    """What a process holds: bytes of memory, descriptors, threads, processes that it started."""
    gc.collect()
    with open(f"/proc/{pid}/statm") as statm:
        size, resident = (int(pages) * PAGE for pages in statm.read().split()[:2])
    counts = {
        what: len(os.listdir(f"/proc/{pid}/{place}")) for what, place in (("descriptors", "fd"), ("threads", "task"))
    }
    counts["processes"] = len(children_of(pid))
    return {**counts, "resident memory": resident, "address space": size}


@check(
    "growth", "What runs, and what is prepared and closed, leaves no memory, descriptors, threads or processes behind."
)
def growth(trial: Trial) -> int:
    process = process_of(trial.device)
    pid = os.getpid() if process is None else process.pid
    call, model = trial.samples()[0]
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
    """Unmet where something grows in each block of rounds."""
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
            raise Unmet(f"each {what} leaves {much} behind ({rounds * BLOCKS} rounds)", place)
