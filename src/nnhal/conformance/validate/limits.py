"""Deadlines, cancellation, measured times, and what executions leave behind."""

import gc
import os
import threading
import time
from collections.abc import Callable
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
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control
from nnhal.model.graph import Model

SHORT_NS, GRACE_NS, FAR_NS = 20_000_000, 300_000_000, 600_000_000_000
TRIES = 3  # of which one in time is enough: the machine may be busy
BLOCKS = 3  # of rounds; what grows in each of them grows
BLOCK_SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 0.05, 5, 40
NOISE = 8 << 10  # bytes a round
PAGE = os.sysconf("SC_PAGESIZE")


@check("deadline", "An execution ends at its deadline, with its result or MissedDeadline, and harms no later one.")
def deadline(trial: Trial) -> None:
    for call, model in trial.samples():
        wanted = trial.alone(model, arrays_of(call))
        prepared = trial.prepare(model)
        for ahead in (FAR_NS, -1, SHORT_NS):
            late = []
            for _ in range(TRIES if ahead != FAR_NS else 1):
                begin = time.monotonic_ns()
                point = begin + ahead
                if _bounded(trial, prepared, call, wanted, Control(deadline=point), MissedDeadline) and ahead == FAR_NS:
                    trial.unmet("MissedDeadline long before the deadline")
                late.append(time.monotonic_ns() - max(point, begin))
                if late[-1] < GRACE_NS:
                    break
                prepared = trial.prepare(model)  # of which nobody knows yet that it would be late
            else:
                if min(late) > GRACE_NS:
                    trial.unmet(f"came back {min(late) / 1e9:.1f} s after its deadline, must poll control.check()")
        if not trial.random:
            trial.same(call, wanted, trial.run(prepared, copies(arrays_of(call))), "after a deadline that had passed")
        try:
            trial.prepare(model, Hints(threads=1, deadline=time.monotonic_ns() - 1))
        except MissedDeadline:
            continue


@check("cancellation", "A cancelled execution ends, with its result or Cancelled, and harms no later one.")
def cancellation(trial: Trial) -> None:
    for call, model in trial.samples():
        wanted = trial.alone(model, arrays_of(call))
        prepared = trial.prepare(model)
        for later in (0.0, SHORT_NS / 4e9):
            spent = min(_cancelled(trial, prepared, call, wanted, later) for _ in range(TRIES))
            if spent > GRACE_NS:
                trial.unmet(f"came back {spent / 1e9:.1f} s after it was cancelled, must poll control.check()")
        if not trial.random:
            trial.same(call, wanted, trial.run(prepared, copies(arrays_of(call))), "after a cancelled execution")


def _cancelled(trial: Trial, prepared: Prepared, call: Call, wanted: Outputs, later: float) -> int:
    """Nanoseconds that an execution took which is cancelled so many seconds after its begin."""
    event = threading.Event()
    timer = threading.Timer(later, event.set)
    if later:
        timer.start()
    else:
        event.set()
    begin = time.monotonic_ns()
    _bounded(trial, prepared, call, wanted, Control(cancelled=event), Cancelled)
    spent = time.monotonic_ns() - begin
    timer.cancel()
    return spent


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
    only=("WHILE",),
)
def loop_timeout(trial: Trial) -> None:
    asked = False
    for call, _ in trial.samples():
        if not isinstance(call, WhileCall) or not call.limit_given:
            continue
        asked = True
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
    if not asked:
        raise NotAsked("none of the loops that it takes has a limit that is given at run time")


@check("timing", "What run returns as its times can be true.", inside=True)
def timing(trial: Trial) -> None:
    for call, model in trial.samples():
        prepared = trial.prepare(model)
        trial.at("run")
        begin = time.monotonic_ns()
        given = trial.request(prepared, arrays_of(call)).execute(prepared.run, Control(measure=True))
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
def growth(trial: Trial) -> None:
    process = process_of(trial.device)
    pid = os.getpid() if process is None else process.pid
    call, model = trial.samples()[0]
    kept = trial.prepare(model)
    _look(trial, pid, "run", partial(trial.run, kept, copies(arrays_of(call))))
    trial.close(kept)
    _look(trial, pid, "prepare, run and close", partial(_whole_life, trial, call, model))


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
