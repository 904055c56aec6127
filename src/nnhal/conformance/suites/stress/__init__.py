"""The suite `stress`: threads, many models, mapped models, growth, drift of latency, endurance."""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from nnhal.base.errors import ResourceExhausted
from nnhal.conformance.execution_paths import not_used
from nnhal.conformance.reduction import types_of
from nnhal.conformance.suites.process_state import kept_as_it_was, watched
from nnhal.conformance.suites.stress import drift
from nnhal.conformance.suites.stress.graphs import (
    CHANGED,
    FLOAT,
    KINDS,
    NEARLY_EQUAL,
    QUANT,
    SETS,
    StressGraph,
    difference,
    mapped,
    nearly_equal,
    supported,
    takes,
    with_other_constants,
)
from nnhal.conformance.suites.stress.growth import growth
from nnhal.conformance.suites.stress.runs import (
    PLAIN,
    ThreadJob,
    alone,
    any_job,
    at_once,
    briefly,
    closed,
    executed,
    in_a_thread,
    job,
)
from nnhal.conformance.suites.suite import (
    PREPARING,
    Case,
    CaseFailed,
    Context,
    NotApplicable,
    NotSupported,
    Suite,
    SuiteRun,
)
from nnhal.conformance.validate.trial import by_reference
from nnhal.hal.chain import PreparedChain, checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED

THREADS = 8
EACH = 60  # executions of each thread
ROUNDS = 12  # compilations of each thread
LENGTH, LONGEST = 8, 40  # operations of a graph
DRAWN = 8  # graphs of which one has constants that show in its results
GROUPS, GROUP = 8, 25  # of random models
OPEN = 12  # prepared random models at a time
SOAK, DRIFT, SLOW, ENDURANCE = 3.0, 4.0, 2.0, 15.0  # seconds
LEAST_COMPILATIONS = 4  # of a window
COUNTED, BEYOND = 12.0, 66_000  # seconds, and executions, of which the first limit counts
SLOWEST = 200.0  # times as slow beside a compilation: less may be the machine's fault
LIFE = "plain", "burst", "memory"  # in which each model is executed that is prepared to be closed
WAYS = "run", "burst", "fenced", "prepare", "deadline", "thread"  # of soaks
SHARED = "state that executions share, such as an arena?"
Found = Mapping[str, Any]


class Stress(Suite):
    """The suite."""

    name = "stress"
    serial = True
    bundle = 1

    def cases(self, run: SuiteRun) -> Iterator[Case]:
        """Yield the cases; `scale` changes the number of random models, and all durations."""
        for kind in KINDS:
            for what in ("execute", "compile", "mixed"):
                yield Case(self.name, f"threads/{what}/{kind}", arguments=("threads", what, kind))
        for kind in (FLOAT, QUANT):
            yield Case(self.name, f"mapped/{kind}", arguments=("mapped", kind))
            yield Case(self.name, f"constants/{kind}", arguments=("constants", kind))
        for number in range(max(1, round(GROUPS * run.scale))):
            yield Case(self.name, f"models/{number:03}", arguments=("models", number))
        yield Case(self.name, "slow-down", arguments=("slow-down",))
        for way in WAYS:
            for kind in {"run": KINDS, "prepare": (FLOAT, QUANT)}.get(way, (FLOAT,)):
                yield Case(self.name, f"growth/{way}/{kind}", arguments=("growth", way, kind))
        for kind in KINDS:
            yield Case(self.name, f"drift/{kind}", arguments=("drift", kind))
        yield Case(self.name, "drift/compile", arguments=("drift of compilations",))
        yield Case(self.name, "count", arguments=("count",))
        yield Case(self.name, "endurance", arguments=("endurance",))

    def run(self, case: Case, context: Context) -> Found | None:
        """Run a case, and compare the state of the process with that before."""
        what, *rest = case.arguments
        with kept_as_it_was(context.device):
            return _CASES[what](context, *rest)


SUITE = Stress()


# -------------------------------------------------------------------------------------------------------------- threads


def _threads(context: Context, what: str, kind: str) -> Found:
    """Execute one prepared model in all threads, compile one model in each, or both at once."""
    device, run = context.device, context.run
    rounds = max(2, round(ROUNDS * run.scale))
    each = max(4, round(EACH * run.scale))
    shared = what in ("execute", "mixed")
    executing = {"execute": THREADS, "compile": 0, "mixed": THREADS // 2}[what]
    jobs = [job(context, kind, [run.seed, n], LENGTH) for n in range(THREADS - executing + shared)]
    tally = _Tally()
    with ExitStack() as stack:
        works = [partial(_compiling, context, one, rounds, tally) for one in (jobs[1:] if shared else jobs)]
        if shared:
            prepared = _open(context, jobs[0].graph, stack)
            works += [partial(_executing, context, prepared, jobs[0], n, each, tally) for n in range(executing)]
        at_once(context, "run", works)
    tally.judge(f"with {THREADS} threads", SHARED)
    if tally.right == 0:
        raise NotApplicable(f"the device refused each of {tally.refused} models: {tally.why}")
    return {"executions": tally.right, "refused models": tally.refused, "threads": THREADS, "device": device.name}


class _Tally:
    """Right, wrong and refused results of several threads."""

    def __init__(self) -> None:
        self.right = self.refused = 0
        self.wrong: list[str] = []
        self.why = ""

    def took(self, of: ThreadJob, place: int, actual: Sequence[Any], stage: str = "") -> None:
        """Compare a result with that of the same inputs alone."""
        problem = difference(of.wanted[place], list(actual))
        if problem:
            self.wrong.append(f"{stage}{problem} ({of.graph.operations})")
        else:
            self.right += 1

    def judge(self, where: str, hint: str = "") -> None:
        """Raise CaseFailed if a result was wrong."""
        if self.wrong:
            count = len(self.wrong)
            raise CaseFailed(f"{count} of {count + self.right} results {where} are wrong: {self.wrong[0]}", hint)


def _executing(
    context: Context, prepared: Prepared, one: ThreadJob, first: int, each: int, tally: _Tally
) -> Iterator[None]:
    for number in range(each):
        place = (first + number) % SETS
        tally.took(one, place, executed(context.device, prepared, one.inputs[place]))
        yield


def _compiling(context: Context, one: ThreadJob, rounds: int, tally: _Tally) -> Iterator[None]:
    for number in range(rounds):
        try:
            prepared = checked_prepared(context.device, one.graph.model, PLAIN)
        except ResourceExhausted as error:  # a device may have a limit of open models
            tally.refused += 1
            tally.why = str(error)
            yield
            continue
        yield
        for place in (number % SETS, (number + 1) % SETS):
            tally.took(one, place, executed(context.device, prepared, one.inputs[place]))
            yield
        closed(context.device, prepared)
        yield


def _open(context: Context, graph: StressGraph, stack: ExitStack) -> Prepared:
    """Prepare; closed with the stack."""
    context.at("prepare")
    prepared = checked_prepared(context.device, graph.model, PLAIN)
    context.at(PREPARING)

    def close() -> None:
        context.at("close")
        closed(context.device, prepared)
        context.at(PREPARING)

    stack.callback(close)
    return prepared


# --------------------------------------------------------------------------------------------------------------- models


def _mapped(context: Context, kind: str) -> Found:
    """Prepare a model whose constants lie in a mapped file, in all threads at once."""
    one = _with_constants(context, kind)
    tally = _Tally()
    rounds = max(2, round(ROUNDS / 2 * context.run.scale))
    with tempfile.TemporaryDirectory(prefix="nnhal-") as folder:
        of_file = one._replace(graph=mapped(one.graph, Path(folder) / "constants"))
        at_once(context, "run", [partial(_compiling, context, of_file, rounds, tally) for _ in range(THREADS)])
        for pool in of_file.graph.model.pools:
            pool.close()
    tally.judge("of models in mapped memory", "constants at an offset within a page?")
    return {"executions": tally.right, "refused models": tally.refused}


def _with_constants(context: Context, kind: str) -> ThreadJob:
    """Draw a model whose results change with its constants, if there is one."""
    found: ThreadJob | None = None
    for number in range(DRAWN):
        one = job(context, kind, [context.run.seed, 100, number], LENGTH)
        if not one.graph.model.values and not one.graph.model.pools:
            continue
        other = with_other_constants(one.graph)
        if other is not None and difference(one.wanted[0], by_reference(other.model, one.inputs[0])):
            return one
        found = found or one
    if found is None:
        raise NotApplicable("the supported operations have no constants")
    return found


def _constants(context: Context, kind: str) -> Found:
    """Keep models open whose large constants differ in one element, and execute them one after the other."""
    tally, opened = _Tally(), list[tuple[Prepared, ThreadJob]]()
    with ExitStack() as stack:
        for operation in NEARLY_EQUAL:
            graphs = [nearly_equal(operation, kind, changed) for changed in CHANGED]
            if not takes(context.device, graphs[0].model, context.at):
                continue
            for graph in graphs:
                context.types.begin_more(*types_of(graph.model))
                inputs = graph.inputs(0)
                one = ThreadJob(graph, [inputs], [by_reference(graph.model, inputs)])
                opened.append((_open(context, graph, stack), one))
        for prepared, one in [*opened, *reversed(opened)]:
            context.at("run")
            tally.took(one, 0, executed(context.device, prepared, one.inputs[0]))
            context.at(PREPARING)
    if not opened:
        raise NotSupported(f"none of {', '.join(NEARLY_EQUAL)} on {kind} is supported")
    tally.judge("of models whose constants differ in one element", "constants that are known by a part of their bytes?")
    return {"models": len(opened)}


def _models(context: Context, group: int) -> Found:
    """Draw many models, keep some of them open, and execute those in random order.

    Every second one is the model before with other constants.
    """
    device, run = context.device, context.run
    rng = random.Random(f"{run.seed} {group}")
    twin: StressGraph | None = None
    opened: list[tuple[PreparedChain, ThreadJob]] = []
    tally, unsupported = _Tally(), 0

    def execute(prepared: Prepared, one: ThreadJob) -> None:
        place = rng.randrange(SETS)
        context.at("run")
        tally.took(one, place, executed(device, prepared, one.inputs[place]), f"of {len(opened)} open models: ")
        context.at(PREPARING)

    for number in range(GROUP):
        seed, kind = [run.seed, 200 + group, number], KINDS[number // 2 % len(KINDS)]
        try:
            graph = twin or supported(device, kind, seed, rng.randint(1, LONGEST), context.at)
        except NotSupported:
            unsupported += 1
            continue
        twin = None if twin is graph else with_other_constants(graph)
        inputs = [graph.inputs(n) for n in range(SETS)]
        one = ThreadJob(graph, inputs, alone(context, graph, inputs))
        context.at("prepare")
        try:
            prepared = checked_prepared(device, graph.model, PLAIN)
        except ResourceExhausted as error:
            if not opened:
                raise
            tally.refused += 1
            tally.why = str(error)
        else:
            opened.append((prepared, one))
        for _ in range(3):
            execute(*rng.choice(opened))
        if len(opened) >= OPEN or tally.refused:
            prepared, _ = opened.pop(rng.randrange(len(opened)))
            context.at("close")
            closed(device, prepared)
            context.at(PREPARING)
    for prepared, one in opened:
        execute(prepared, one)
    for prepared, _ in opened:
        context.at("close")
        closed(device, prepared)
    tally.judge("of many open models", "state that models share?")
    if unsupported == GROUP:
        raise NotSupported("no operation is supported")
    return {"models": GROUP - unsupported, "executions": tally.right, "refused models": tally.refused}


# ----------------------------------------------------------------------------------------------------------------- time


def _slow_down(context: Context) -> Found:
    """Measure executions alone and beside a thread that compiles."""
    run = context.run
    one = any_job(context, 300, LENGTH)
    other = any_job(context, 300, LONGEST)
    seconds = SLOW * run.scale
    with ExitStack() as stack:
        prepared = _open(context, one.graph, stack)
        before: list[int] = []
        at_once(context, "run", [partial(_timed, context, prepared, one, time.monotonic() + seconds, before, [])])
        after, compiled, shares = list[int](), [0], list[float]()
        until = time.monotonic() + seconds
        compiling = partial(_compiling_until, context, other, until, compiled)
        at_once(context, "run", [partial(_timed, context, prepared, one, until, after, shares), compiling])
    share = shares[0]
    slower = median(after) / median(before)
    found = {"alone_us": median(before) / 1e3, "beside_us": median(after) / 1e3, "slow-down": round(slower, 2)}
    found |= {"compilations": compiled[0], "waited": round(share, 3)}
    if slower > SLOWEST:
        if share > drift.WAITED:
            raise NotApplicable(f"the machine is busy: threads waited for a core {share:.0%} of the time")
        text = f"executions beside a compilation take {slower:.0f} times as long, must be at most {SLOWEST:g} times"
        raise CaseFailed(f"{text} ({one.graph.operations})", "a lock that is held while compiling?", found)
    return found


def _timed(
    context: Context, prepared: Prepared, one: ThreadJob, until: float, taken: list[int], shares: list[float]
) -> Iterator[None]:
    began = drift.waited()
    while not taken or time.monotonic() < until:
        begin = time.perf_counter_ns()
        executed(context.device, prepared, one.inputs[0])
        taken.append(time.perf_counter_ns() - begin)
        yield
    shares.append(drift.waiting(began, drift.waited()))


def _compiling_until(context: Context, other: ThreadJob, until: float, compiled: list[int]) -> Iterator[None]:
    while not compiled[0] or time.monotonic() < until:
        closed(context.device, checked_prepared(context.device, other.graph.model, PLAIN))
        compiled[0] += 1
        yield


def _drift(context: Context, kind: str) -> Found:
    """Measure the latency of one model over many executions."""
    one = job(context, kind, [context.run.seed, 400], LENGTH)
    with ExitStack() as stack:
        prepared = _open(context, one.graph, stack)

        def once() -> None:
            context.at("run")
            executed(context.device, prepared, one.inputs[0])

        latency = drift.measured(once, DRIFT * context.run.scale)
    return _steady(latency, "executions", one)


def _drift_of_compilations(context: Context) -> Found:
    """Measure how long one model takes to compile, many times."""
    one = any_job(context, 400, LENGTH)

    def once() -> None:
        context.at("prepare")
        prepared = checked_prepared(context.device, one.graph.model, PLAIN)
        context.at("close")
        closed(context.device, prepared)

    return _steady(drift.measured(once, DRIFT * context.run.scale, LEAST_COMPILATIONS), "compilations", one)


def _steady(latency: drift.LatencyTrend, what: str, one: ThreadJob) -> Found:
    """Return what was measured; CaseFailed if the latency drifts or has a long tail."""
    found = latency.found
    if latency.waited > drift.WAITED:
        raise NotApplicable(f"the machine is busy: threads waited for a core {latency.waited:.0%} of the time")
    if latency.rise:
        text = f"the least latency rose by {latency.rise:.0%} within {found['executions']} {what}, must not rise"
        raise CaseFailed(f"{text} ({one.graph.operations})", f"work that grows with the {what}?", found)
    if latency.tail:
        text = f"{latency.tail:.1%} of {found['executions']} {what} take more than {drift.SLOW} times the median"
        raise CaseFailed(f"{text}, must be less than {drift.TAIL:.0%} ({one.graph.operations})", "a pause?", found)
    return found


def _counted(context: Context) -> Found:
    """Execute a small model more often than 16 bits count, and compare each result with the first of its inputs."""
    one = any_job(context, 800, 1)
    until, ran, most = time.monotonic() + COUNTED * context.run.scale, 0, round(BEYOND * max(1.0, context.run.scale))
    with ExitStack() as stack:
        prepared = _open(context, one.graph, stack)
        while ran < most and time.monotonic() < until:
            context.at("run")
            problem = difference(one.wanted[ran % SETS], executed(context.device, prepared, one.inputs[ran % SETS]))
            ran += 1
            if problem:
                raise CaseFailed(f"execution {ran:,} of a model: {problem} ({one.graph.operations})", "a counter?")
    context.at(PREPARING)
    return {"executions": ran}


# ---------------------------------------------------------------------------------------------------------------- soaks


def _growth(context: Context, way: str, kind: str) -> Found:
    """Execute a model many times in one way, and look at what the process holds."""
    device = context.device
    one = job(context, kind, [context.run.seed, 500], LENGTH)
    with ExitStack() as stack:
        once = _once(context, one, way, stack)
        found = _soaked(context, once, SOAK, f"{_SOAKED[way]} ({one.graph.operations})")
    actual = alone(context, one.graph, one.inputs)
    for place in range(SETS):
        problem = difference(one.wanted[place], actual[place])
        if problem:
            raise CaseFailed(f"after {found['executions']:g} executions: {problem} ({one.graph.operations})", SHARED)
    return {**found, "device": device.name}


_SOAKED = {
    "run": "each execution",
    "burst": "each execution of a burst",
    "fenced": "each fenced execution",
    "prepare": "each model that is asked about, prepared, executed, in a burst and in driver memory too, and closed",
    "deadline": "each execution with a deadline that may pass",
    "thread": "each thread that executes",
}


def _once(context: Context, one: ThreadJob, way: str, stack: ExitStack) -> Callable[[], object]:
    device, arrays = context.device, one.inputs[0]
    if way == "prepare":
        return partial(_whole_life, context, one, [each for each in LIFE if not not_used(device, each)])
    prepared = _open(context, one.graph, stack)
    if way == "burst":
        burst = stack.enter_context(prepared.burst())

    def once() -> None:
        context.at("run")
        if way == "deadline":
            briefly(device, prepared, arrays)
        elif way == "burst":
            prepared.request([x.copy() for x in arrays]).execute(burst.run, UNLIMITED)
        else:
            executed(device, prepared, arrays, way="fenced" if way == "fenced" else "plain")

    return partial(in_a_thread, once) if way == "thread" else once


def _whole_life(context: Context, one: ThreadJob, ways: Sequence[str]) -> None:
    """Ask for verdicts, prepare, execute in some ways, and close."""
    device, model = context.device, one.graph.model
    context.at("supports")
    claims = consider_support(device, model, PLAIN)
    context.at("prepare")
    prepared = checked_prepared(device, model, claims.hints(PLAIN))
    claims.release_work()
    context.at("run")
    for way in ways:
        executed(device, prepared, one.inputs[0], way=way)
    context.at("close")
    closed(device, prepared)


def _endurance(context: Context) -> Found:
    """Execute several models alternately in every way, prepare others meanwhile, and compare each result."""
    device, seed = context.device, context.run.seed
    jobs = []
    for number, kind in enumerate((*KINDS, *KINDS)):
        try:
            jobs.append(job(context, kind, [seed, 600 + number], LENGTH))
        except (NotSupported, NotApplicable):
            continue
    if not jobs:
        raise NotSupported("no operation is supported")
    tally = _Tally()
    with ExitStack() as stack:
        opened = [(_open(context, one.graph, stack), one) for one in jobs]
        steps = cycle([(n, way) for n in range(SETS) for way in ("plain", "fenced", "burst", "deadline", "prepare")])
        turns = cycle(opened)

        def once() -> None:
            (place, way), (prepared, one) = next(steps), next(turns)
            if way == "prepare":
                context.at("prepare")
                fresh = checked_prepared(device, one.graph.model, PLAIN)
                context.at("run")
                tally.took(one, place, executed(device, fresh, one.inputs[place]), "of a new model: ")
                context.at("close")
                closed(device, fresh)
                return
            context.at("run")
            if way == "deadline":
                briefly(device, prepared, one.inputs[place])
            else:
                tally.took(one, place, executed(device, prepared, one.inputs[place], way=way), f"{way}: ")

        found = _soaked(context, once, ENDURANCE, "each round of executions and models")
    tally.judge("of the endurance run", SHARED)
    return {**found, "models": len(jobs), "results": tally.right}


def _soaked(context: Context, once: Callable[[], object], seconds: float, what: str) -> dict[str, float]:
    """Return what was measured; CaseFailed if the process holds more and more."""
    grown, found = growth(watched(context.device), once, seconds * context.run.scale)
    context.at(PREPARING)
    if grown:
        raise CaseFailed(f"{what} leaks {', '.join(map(str, grown))}", "memory or a descriptor that is kept?", found)
    return found


_CASES: dict[str, Callable[..., Found]] = {
    "threads": _threads,
    "mapped": _mapped,
    "constants": _constants,
    "models": _models,
    "slow-down": _slow_down,
    "growth": _growth,
    "drift": _drift,
    "drift of compilations": _drift_of_compilations,
    "count": _counted,
    "endurance": _endurance,
}
