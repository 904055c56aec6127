"""Bursts, streams, fences, deadlines, measurements and cancellation."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

import nnhal
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.conformance.suites.cts.area import ENOUGH, AreaTrial, SampleModel, area, listed
from nnhal.conformance.suites.cts.graphs import own_graph
from nnhal.conformance.suites.suite import CaseFailed, NotApplicable, NotSupported
from nnhal.model.graph import State

SHORT = 1e-9  # seconds: a deadline that has passed before the execution begins
TIMES = 4  # executions, or calls of a stream


@area("burst/executions", "operation")
def burst(trial: AreaTrial) -> None:
    """A burst gives the results of calls, also if it is opened again, and with memory that it has to release."""
    sample = trial.sample()
    other = sample.other()
    memories = [nnhal.Memory.from_array(x) for x in sample.arrays]
    views = [m.view(0, x.nbytes, x.dtype, x.shape) for m, x in zip(memories, sample.arrays, strict=True)]
    for opening in ("first burst", "second burst"):
        with sample.compiled.burst() as run:
            sample.execute(f"{opening}, arrays", partial(run, *sample.arrays))
            sample.execute(f"{opening}, shared memory", partial(run, *views))
            other.execute(f"{opening}, other inputs", partial(run, *other.arrays))
            for memory in memories:
                run.free_memory(memory)
            sample.execute(f"{opening}, after free_memory", partial(run, *sample.arrays))
    trial.must_raise(nnhal.Closed, "a closed burst", lambda: run(*sample.arrays))
    sample.execute("call after bursts")
    trial.no_fallback(sample.compiled)


ADDS: dict[str, tuple[Callable[..., Any], Callable[[Array, Array], Array]]] = {
    "ADD": (lambda b, s, x: b.add(s, x), np.add),
    "SUB": (lambda b, s, x: b.sub(s, x), np.subtract),
    "MAXIMUM": (lambda b, s, x: b.maximum(s, x), np.maximum),
    "MINIMUM": (lambda b, s, x: b.minimum(s, x), np.minimum),
}


@area("stream/states", "once", kinds=tuple(ADDS))
def stream(trial: AreaTrial) -> None:
    """A stream carries states from call to call; two streams have their own, and `reset` begins again."""
    build, compute = ADDS[trial.kind]
    b = nnhal.Builder(trial.kind)
    state, x = b.input([3, 5]), b.input([3, 5])
    following = build(b, state, x)
    model = b.finish([state, x], [following, b.add(following, following)])
    start = np.arange(15, dtype="f4").reshape(3, 5)
    model = replace(model, states=(State(0, 0, start),))
    try:
        compiled = trial.compile(model, fallback="forbid")
    except nnhal.UnsupportedModel as why:
        trial.idle()
        raise NotSupported(str(why)) from why
    one, two = compiled.stream(), compiled.stream()
    trial.held.callback(one.close)
    trial.held.callback(two.close)

    def follow(run: Any, now: Array, where: str) -> Array:
        data = trial.rng.integers(-9, 10, (3, 5)).astype("f4")
        (y,) = trial.execute(lambda: run(data))
        now = compute(now, data)
        trial.require((y == now + now).all(), f"{where} gives {y.ravel()[:3]}, must be {(now + now).ravel()[:3]}")
        return now

    mine = theirs = start
    for n in range(TIMES):
        mine = follow(one, mine, f"call {n} of the first stream")
        if n % 2:
            theirs = follow(two, theirs, f"call {n} of the second stream")
    one.reset()
    follow(one, start, "call after reset")
    follow(two, theirs, "call of the second stream after reset of the first")


def _fixed(sample: SampleModel) -> None:
    if any(spec.fixed is None for spec in sample.compiled.outputs):
        raise NotApplicable("the shape of an output is not known before the execution")


def _views(arrays: list[Array]) -> list[Array]:
    return [nnhal.Memory.from_array(x).view(0, x.nbytes, x.dtype, x.shape) for x in arrays]


@area("fence/wait", "operation")
def fence(trial: AreaTrial) -> None:
    """A fenced execution begins after the fences that it waits for, reads what was written before, and signals its own."""
    sample = trial.sample()
    _fixed(sample)
    for deadline in (None, ENOUGH):  # without one, a driver that executes behind fences gets the fences itself
        given = _views([np.zeros_like(x) for x in sample.arrays])
        rooms = _views([np.zeros_like(w) for w in sample.wanted])
        waits, signal = nnhal.fence_pair()
        with trial.at("execute_fenced"):
            launched = sample.compiled.execute_fenced(*given, wait_for=[waits], out=rooms, deadline=deadline)
        trial.require(not launched.done(), "the execution has ended before the fence that it waits for was signalled")
        for view, x in zip(given, sample.arrays, strict=True):
            view[...] = x
        signal.set()
        sample.execute("after the fence", partial(launched.result, ENOUGH))
        trial.require(launched.done(), "the execution has a result, but is not done")
        sample.check(rooms, "after the fence, in shared memory")
    sample.execute("without fences", lambda: sample.compiled.execute_fenced(*sample.arrays).result(ENOUGH))


@area("fence/error", "operation")
def fence_error(trial: AreaTrial) -> None:
    """If a fence ends in an error, so does the execution that waits for it; the model stays usable."""
    sample = trial.sample()
    _fixed(sample)
    waits, signal = nnhal.fence_pair()
    with trial.at("execute_fenced"):
        launched = sample.compiled.execute_fenced(*sample.arrays, wait_for=[waits], deadline=ENOUGH)
    signal.set(nnhal.ErrorStatus.GENERAL_FAILURE)
    trial.must_raise(nnhal.NnhalError, "a fence in error", lambda: launched.result(ENOUGH))
    sample.execute("after a fence in error", lambda: sample.compiled.execute_fenced(*sample.arrays).result(ENOUGH))


@area("fence/chain", "graph", 6)
def chain(trial: AreaTrial) -> None:
    """Executions launched at once, each behind the fence of the one before, read its results."""
    b = nnhal.Builder("chained")
    x = b.input([4, 33])
    try:
        compiled = trial.compile(b.finish([x], [b.add(x, np.float32(1))]), fallback="forbid")
    except nnhal.UnsupportedModel as why:
        trial.idle()
        raise NotSupported(str(why)) from why
    first = trial.rng.integers(-9, 9, (4, 33)).astype("f4")
    places = _views([first, *(np.zeros_like(first) for _ in range(TIMES))])
    waits, signal = nnhal.fence_pair()
    fences, launched = [waits], []
    for source, target in pairwise(places):
        with trial.at("execute_fenced"):
            launched.append(compiled.execute_fenced(source, wait_for=fences, out=target, deadline=ENOUGH))
        fence = launched[-1].fence
        fences = [] if fence is None else [fence]
    signal.set()
    for n, each in enumerate(launched):
        trial.execute(partial(each.result, ENOUGH))
        trial.require((places[n + 1] == first + n + 1).all(), f"execution {n} of the chain has wrong results")


@area("submit/several", "operation")
def submit(trial: AreaTrial) -> None:
    """Submitted executions have their own results, and signal their end."""
    sample = trial.sample()
    several = [sample, sample.other(), sample, sample.other()]
    with trial.at("submit"):
        launched = [sample.compiled.submit(*each.arrays) for each in several]
    for n, (each, execution) in enumerate(zip(several, launched, strict=True)):
        each.execute(f"submitted execution {n}", partial(execution.result, ENOUGH))
        trial.require(execution.done(), f"submitted execution {n} has a result, but is not done")


@area("cancel/submitted", "operation")
def cancel(trial: AreaTrial) -> None:
    """A cancelled execution raises Cancelled or has right results; the others are right."""
    sample = trial.sample()
    with trial.at("submit"):
        launched = [sample.compiled.submit(*sample.arrays) for _ in range(6)]
    for execution in launched[1::2]:
        execution.cancel()
    for n, execution in enumerate(launched):
        try:
            sample.execute(f"submitted execution {n}", partial(execution.result, ENOUGH))
        except nnhal.Cancelled:
            trial.idle()
            trial.require(n % 2, f"submitted execution {n} is cancelled, but nobody cancelled it")
    sample.execute("after cancelled executions")
    trial.no_fallback(sample.compiled)


@area("deadline/execution", "operation")
def deadline(trial: AreaTrial) -> None:
    """A deadline that has passed raises MissedDeadline, one with time does not; the next execution is right."""
    sample = trial.sample()
    compiled = sample.compiled
    for n in range(2):
        trial.must_raise(
            nnhal.MissedDeadline, "a deadline that has passed", lambda: compiled.run(*sample.arrays, deadline=SHORT)
        )
        sample.execute(f"with time, {n}", lambda: compiled.run(*sample.arrays, deadline=ENOUGH)[0])
    trial.must_raise(
        nnhal.MissedDeadline,
        "a submitted execution whose deadline has passed",
        lambda: compiled.submit(*sample.arrays, deadline=SHORT).result(),
    )
    sample.execute("after missed deadlines")


@area("deadline/compilation", "operation")
def compilation(trial: AreaTrial) -> None:
    """A compilation with too little time raises MissedDeadline, one with enough gives right results."""
    sample = trial.sample()
    trial.must_raise(
        nnhal.MissedDeadline,
        "a compilation whose deadline has passed",
        lambda: trial.compile(sample.model, fallback="forbid", deadline=SHORT),
    )
    compiled = trial.compile(sample.model, fallback="forbid", deadline=ENOUGH)
    sample.execute("compiled within a deadline", lambda: compiled(*sample.arrays))


def _until(compiled: nnhal.Compiled, inputs: Sequence[Array], rooms: Sequence[Array], seconds: float) -> Any:
    return compiled.run(*inputs, out=list(rooms), deadline=seconds)[0]


@area("deadline/writes-nothing-later", "graph", 4)
def late(trial: AreaTrial) -> None:
    """An execution that missed its deadline writes nothing to its outputs after it has ended."""
    graph, compiled = own_graph(trial, 16)
    inputs = graph.inputs()
    rooms = [np.zeros(y.shape, y.dtype) for y in trial.execute(lambda: compiled(*inputs))]
    for seconds in (SHORT, 1e-5, 1e-4, 1e-3):
        for room in rooms:
            room.reshape(-1).view(np.uint8)[...] = 77
        try:
            trial.execute(partial(_until, compiled, inputs, rooms, seconds))
        except nnhal.MissedDeadline:
            trial.idle()
            before = [room.tobytes() for room in rooms]
            results = trial.execute(lambda: compiled(*inputs))
            trial.require(
                before == [room.tobytes() for room in rooms],
                f"after a deadline of {seconds} s, outputs were written once the execution had ended",
            )
            graph.check(inputs, results, f"execution after a deadline of {seconds} s")
        else:
            graph.check(inputs, rooms, f"execution with a deadline of {seconds} s")


@area("measure/times", "operation")
def measure(trial: AreaTrial) -> None:
    """Measured times are in nanoseconds: the driver reports no more than the application waits."""
    sample = trial.sample()
    compiled = sample.compiled
    for n in range(2):
        begin = time.monotonic_ns()
        with trial.at("execute"):
            results, report = compiled.run(*sample.arrays, measure=True)
        waited = time.monotonic_ns() - begin
        sample.check(listed(results), f"measured execution {n}")
        if report is None or len(report.steps) != 1:
            raise CaseFailed(f"measured execution {n} has the report {report}, must have one of one partition")
        (step,) = report.steps
        trial.require(step.device == trial.label, f"the report names {step.device}, must be {trial.label}")
        trial.require(0 < step.total <= waited, f"the runtime reports {step.total} ns, must be at most {waited} ns")
        if step.driver is not None:
            for what, value in zip(("on device", "in driver"), step.driver, strict=True):
                trial.require(
                    value is None or 0 <= value <= waited,
                    f"the time {what} is {value} ns, must be at most the {waited} ns that the application waited",
                    "another unit than nanoseconds",
                )
