"""`mlts`: latency and accuracy of real models, beside the CPU reference and the engine that the file belongs to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.cores import usable_cores
from nnhal.base.errors import BadFile, DeviceUnavailable, UnsupportedModel
from nnhal.base.operands import Array
from nnhal.conformance.suites.mlts import accuracy, loadgen, report, timing, workload
from nnhal.conformance.suites.mlts.workload import ModelWorkload
from nnhal.conformance.suites.suite import (
    PREPARING,
    Case,
    CaseFailed,
    CaseOutcome,
    Context,
    NotSupported,
    Suite,
    SuiteRun,
)
from nnhal.measure.latency import timed
from nnhal.measure.peers import LiteRT, Peer, peer
from nnhal.runtime.compiled import Compiled

PARTS = "accuracy", "compile", "latency", "loadgen"
REFERENCE_RUNS = 3  # enough for the median of an engine that is not under test
MOST_WRONG = 8  # results of a sample in LoadGen's scenarios
OWN = 60.0  # seconds for the slowest action, which is the suite's own


class Mlts(Suite):
    """Cases are `MODEL/PART`."""

    name = "mlts"
    serial = True
    bundle = len(PARTS)

    def cases(self, run: SuiteRun) -> Iterable[Case]:
        """As of `Suite`."""
        for model in workload.names(run):
            for part in PARTS:
                yield Case(self.name, f"{model}/{part}", arguments=(model, part))

    def seconds(self, case: Case, run: SuiteRun) -> float:
        """As of `Suite`: a call of the driver may be as long as a scenario of LoadGen."""
        return max(run.timeout, OWN * max(1.0, run.scale))

    def run(self, case: Case, context: Context) -> Mapping[str, Any] | None:
        """As of `Suite`."""
        model, part = case.arguments
        work = workload.load(model, context.run)
        found: dict[str, Any] = {"model": model, "part": part, "data": work.data}
        with work.reference:
            try:
                RUN[part](work, context, found)
            except UnsupportedModel as error:
                raise NotSupported(str(error)) from None
            except CaseFailed as error:
                error.found = {**found, **error.found}
                raise
        return found

    def notes(self, outcomes: Sequence[CaseOutcome]) -> Sequence[str]:
        """Return a line for each model and engine: its accuracy and times."""
        return [*report.lines_of(outcomes)]

    def finish(self, run: SuiteRun, outcomes: Sequence[CaseOutcome]) -> None:
        """Write mlts.csv, and mlts.html if matplotlib is installed, into the run's folder for reports."""
        if run.report and outcomes:
            report.write(Path(run.report), run.named, outcomes)


def _executed(compiled: Compiled, work: ModelWorkload, context: Context, stage: str = "execute") -> list[list[Array]]:
    """Return the outputs of all inputs; each execution has the whole time limit of its stage."""
    found = []
    for each in work.inputs:
        context.at(stage)
        found.append(outputs_of(compiled, each))
    return found


def _accuracy(work: ModelWorkload, context: Context, found: dict[str, Any]) -> None:
    """Compare the device, and the file's own engine, with the reference over all inputs."""
    specs, relaxed = work.reference.outputs, work.model.relaxed
    expected = _executed(work.reference, work, context, PREPARING)
    context.at("prepare")
    with timing.compiled_on(work.model, context.device) as compiled:
        given = _executed(compiled, work, context)
    context.at(PREPARING)
    right = accuracy.measure(specs, expected, expected, work.labels, relaxed)
    device = accuracy.measure(specs, given, expected, work.labels, relaxed)
    found["top-1 of"] = report.LABELS if device.labels else "the reference's classes"
    found["device"], found["reference"] = device.to_dict(), right.to_dict()
    own = _own_engine(work, found)
    if own is not None:
        theirs = [_run_own(own, each) for each in work.inputs]
        found["engine"] = accuracy.measure(specs, theirs, expected, work.labels, relaxed).to_dict()
    _judge(device, right, relaxed)


def _judge(device: accuracy.Accuracy, reference: accuracy.Accuracy, relaxed: bool, where: str = "") -> None:
    if broken := list(accuracy.problems(device, reference, relaxed)):
        raise CaseFailed(where + "; ".join(broken))


def _compile(work: ModelWorkload, context: Context, found: dict[str, Any]) -> None:
    """Time compilation; a model that the device saves must be restored, and compute as a new one does."""
    specs, relaxed = work.reference.outputs, work.model.relaxed
    context.at("prepare")
    with timing.compiled_on(work.model, context.device) as compiled:
        expected = _executed(compiled, work, context)
    right = accuracy.measure(specs, expected, expected, (), relaxed)

    def look(restored: Compiled) -> None:
        given = _executed(restored, work, context)
        where = "restored from the cache, against the compilation before: "
        _judge(accuracy.measure(specs, given, expected, (), relaxed), right, relaxed, where)

    compilations = timing.compilations(work.model, context.device, context.at, look)
    found["device"] = compilations.to_dict()
    context.at(PREPARING)
    if compilations.lost:
        raise CaseFailed(f"the device saved the model, but it is not restored: {compilations.lost}")
    found["file_bytes"] = work.path.stat().st_size
    own = _own_engine(work, found)
    if own is not None:
        found["engine"] = {"compile_ms": (own.load_ns + own.compile_ns) / timing.MS}


def _latency(work: ModelWorkload, context: Context, found: dict[str, Any]) -> None:
    """Time the steady state over all inputs; its last results must be its first."""
    specs, relaxed = work.reference.outputs, work.model.relaxed
    context.at("prepare")
    with timing.compiled_on(work.model, context.device) as compiled:
        first = _executed(compiled, work, context)
        context.at(PREPARING)
        own = _own_engine(work, found)
        runners: dict[str, Callable[[], object]] = {"device": _alternating(lambda inputs: compiled(*inputs), work)}
        if own is not None:
            runners["engine"] = _alternating(own, work)
        stages = {"device": "execute"}
        found.update(
            timing.latencies(
                runners,
                timing.SECONDS * context.run.scale,
                lambda name: context.at(stages.get(name, PREPARING)),
            )
        )
        last = _executed(compiled, work, context)
    context.at(PREPARING)
    reference = _alternating(lambda inputs: work.reference(*inputs), work)
    found["reference"] = timing.latencies(
        {"reference": reference}, 0.0, lambda _: context.at(PREPARING), REFERENCE_RUNS
    )["reference"]
    right = accuracy.measure(specs, first, first, (), relaxed)
    runs = found["device"]["runs"]
    _judge(accuracy.measure(specs, last, first, (), relaxed), right, relaxed, f"after {runs} executions: ")


def _alternating(run: Callable[[list[Array]], object], work: ModelWorkload) -> Callable[[], object]:
    """Return a function that runs the next input each time: a device may keep the results of the last one."""
    inputs = cycle(work.inputs)
    return lambda: run(next(inputs))


def _loadgen(work: ModelWorkload, context: Context, found: dict[str, Any]) -> None:
    """Run scenarios of LoadGen; each result must be the first one of its sample."""
    specs, relaxed = work.reference.outputs, work.model.relaxed
    context.at("prepare")
    with timing.compiled_on(work.model, context.device) as compiled:
        expected = _executed(compiled, work, context)
        right = accuracy.measure(specs, expected, expected, (), relaxed)
        wrong: dict[int, list[list[Array]]] = {}  # results that differ from the first by more than they may, by sample
        spent = timed(lambda: compiled(*work.inputs[0]))

        def run(index: int) -> Sequence[Array]:
            given = outputs_of(compiled, work.inputs[index])
            earlier = wrong.setdefault(index, [])
            if len(earlier) < MOST_WRONG and not all(map(np.array_equal, given, expected[index])):
                off = accuracy.measure(specs, [given], [expected[index]], (), relaxed)
                earlier += [given] * any(accuracy.problems(off, right, relaxed))
            return given

        found["device"] = loadgen.scenarios(
            run, len(work.inputs), spent, context.run.scale, lambda _: context.at("execute")
        )
    context.at(PREPARING)
    for turn in range(max(map(len, wrong.values()), default=0)):
        given = [wrong[n][turn] if turn < len(wrong.get(n, ())) else each for n, each in enumerate(expected)]
        _judge(accuracy.measure(specs, given, expected, (), relaxed), right, relaxed, "in LoadGen's scenarios: ")


RUN: dict[str, Callable[[ModelWorkload, Context, dict[str, Any]], None]] = {
    "accuracy": _accuracy,
    "compile": _compile,
    "latency": _latency,
    "loadgen": _loadgen,
}


def outputs_of(compiled: Compiled, inputs: Sequence[Array]) -> list[Array]:
    """Run once; return copies of all outputs."""
    found = compiled(*inputs)
    return [np.array(each) for each in (found if isinstance(found, tuple) else (found,))]


def _own_engine(work: ModelWorkload, found: dict[str, Any]) -> Peer | None:
    """Return the file's own engine, called without nnhal; None, with the reason in `found`, if it cannot run the file."""
    found["engine_name"] = work.engine
    try:
        own = peer(work.engine, work.path, usable_cores())
        shapes = [list(each.shape) for each in work.inputs[0]]
        if own.shapes != shapes:
            own.resize(shapes)
    except (BadFile, DeviceUnavailable, RuntimeError, ValueError) as error:
        found["engine_note"] = str(error)
        return None
    return own


def _run_own(own: Peer, inputs: Sequence[Array]) -> list[Array]:
    """Run once from the initial state, as nnhal does."""
    if isinstance(own, LiteRT):
        own.reset()
    return own(inputs)


SUITE = Mlts()
