"""`mlts`: latency and accuracy of real models, beside the CPU reference and the engine that the file belongs to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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

    def finish(self, run: SuiteRun, outcomes: Sequence[CaseOutcome]) -> None:
        """Write mlts.csv, and mlts.html if matplotlib is installed, into the run's folder for reports."""
        if run.report and outcomes:
            report.write(Path(run.report), run.named, outcomes)


def _executed(compiled: Compiled, work: ModelWorkload, context: Context) -> list[list[Array]]:
    """Return the outputs of all inputs; each execution has the whole time limit."""
    found = []
    for each in work.inputs:
        context.at("execute")
        found.append(outputs_of(compiled, each))
    return found


def _accuracy(work: ModelWorkload, context: Context, found: dict[str, Any]) -> None:
    """Compare the device, and the file's own engine, with the reference over all inputs."""
    specs, relaxed = work.reference.outputs, work.model.relaxed
    context.at(PREPARING)
    expected = [outputs_of(work.reference, each) for each in work.inputs]
    context.at("prepare")
    with timing.compiled_on(work.model, context.device) as compiled:
        given = _executed(compiled, work, context)
    context.at(PREPARING)
    right = accuracy.measure(specs, expected, expected, work.labels, relaxed)
    device = accuracy.measure(specs, given, expected, work.labels, relaxed)
    found["top-1 of"] = "labels" if device.labels else "the reference's classes"
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
    """Time compilation; a restored compilation must compute what a new one does."""
    (inputs, *_), specs, relaxed = work.inputs, work.reference.outputs, work.model.relaxed
    context.at("prepare")
    with timing.compiled_on(work.model, context.device) as compiled:
        context.at("execute")
        expected = [outputs_of(compiled, inputs)]
    right = accuracy.measure(specs, expected, expected, (), relaxed)

    def look(restored: Compiled) -> None:
        context.at("execute")
        given = [outputs_of(restored, inputs)]
        where = "restored from the cache, against the compilation before: "
        _judge(accuracy.measure(specs, given, expected, (), relaxed), right, relaxed, where)

    found["device"] = timing.compilations(work.model, context.device, context.at, look).to_dict()
    context.at(PREPARING)
    found["file_bytes"] = work.path.stat().st_size
    own = _own_engine(work, found)
    if own is not None:
        found["engine"] = {"compile_ms": (own.load_ns + own.compile_ns) / timing.MS}


def _latency(work: ModelWorkload, context: Context, found: dict[str, Any]) -> None:
    """Time the steady state; its last result must be its first."""
    inputs, specs, relaxed = work.inputs[0], work.reference.outputs, work.model.relaxed
    context.at("prepare")
    with timing.compiled_on(work.model, context.device) as compiled:
        context.at("execute")
        first = [outputs_of(compiled, inputs)]
        context.at(PREPARING)
        own = _own_engine(work, found)
        runners: dict[str, Callable[[], object]] = {"device": lambda: compiled(*inputs)}
        if own is not None:
            engine = own
            runners["engine"] = lambda: engine(inputs)
        stages = {"device": "execute"}
        found.update(
            timing.latencies(
                runners,
                timing.SECONDS * context.run.scale,
                lambda name: context.at(stages.get(name, PREPARING)),
            )
        )
        context.at("execute")
        last = [outputs_of(compiled, inputs)]
    context.at(PREPARING)
    found["reference"] = timing.latencies(
        {"reference": lambda: work.reference(*inputs)}, 0.0, lambda _: context.at(PREPARING), REFERENCE_RUNS
    )["reference"]
    right = accuracy.measure(specs, first, first, (), relaxed)
    runs = found["device"]["runs"]
    _judge(accuracy.measure(specs, last, first, (), relaxed), right, relaxed, f"after {runs} executions: ")


def _loadgen(work: ModelWorkload, context: Context, found: dict[str, Any]) -> None:
    """Run scenarios of LoadGen; every sample's last result must be its first."""
    specs, relaxed = work.reference.outputs, work.model.relaxed
    context.at("prepare")
    with timing.compiled_on(work.model, context.device) as compiled:
        expected = _executed(compiled, work, context)
        given = list(expected)
        spent = timed(lambda: compiled(*work.inputs[0]))

        def run(index: int) -> Sequence[Array]:
            given[index] = outputs_of(compiled, work.inputs[index])
            return given[index]

        found["device"] = loadgen.scenarios(
            run, len(work.inputs), spent, context.run.scale, lambda _: context.at("execute")
        )
    context.at(PREPARING)
    right = accuracy.measure(specs, expected, expected, (), relaxed)
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
