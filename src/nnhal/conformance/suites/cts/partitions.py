"""Graphs of several operations: on the device alone, beside partial devices, and beside devices that fail or lie."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import nnhal
from nnhal.base.operands import Array
from nnhal.conformance.graph_drawing import is_data
from nnhal.conformance.suites.cts.area import ENOUGH, AreaTrial, area, listed
from nnhal.conformance.suites.cts.graphs import MOST, TrialGraph, mixed_graph, own_graph
from nnhal.conformance.suites.cts.neighbours import HARMLESS, PREPARING, RUNNING, Partial, faulty
from nnhal.conformance.suites.suite import NotSupported
from nnhal.hal.device import Device
from nnhal.runtime import discovery


def forced(trial: AreaTrial, shares: dict[str, float]) -> Callable[[nnhal.Model, Sequence[Any]], list[str]]:
    """Return a placement that draws a device for each operation, of those that support it. shares: by label."""
    rng = np.random.default_rng([*trial.seed, 1])

    def place(model: nnhal.Model, offers: Sequence[Any]) -> list[str]:
        found = []
        for n in range(len(model.main.operations)):
            there = [each.device for each in offers if each.verdicts[n].ok and n not in each.excluded]
            weights = np.array([shares.get(label, 0.0) for label in there])
            found.append(str(rng.choice(there, p=weights / weights.sum())) if weights.sum() else "")
        return found

    return place


@area("graph/whole", "graph", 60)
def whole(trial: AreaTrial) -> None:
    """A graph on the device alone gives the right results, again and again."""
    graph, compiled = own_graph(trial)
    first, second = graph.inputs(), graph.other_inputs()
    for n, inputs in enumerate((first, second, first)):
        results = trial.execute(partial(compiled, *inputs))
        graph.check(inputs, results, f"execution {n}")
    trial.no_fallback(compiled)


def _burst(compiled: nnhal.Compiled, inputs: Sequence[Array]) -> Any:
    with compiled.burst() as run:
        run(*inputs)
        return run(*inputs)


def _fenced(compiled: nnhal.Compiled, inputs: Sequence[Array]) -> Any:
    return compiled.execute_fenced(*inputs).result(ENOUGH)


def _bound(compiled: nnhal.Compiled, inputs: Sequence[Array]) -> Any:
    given = [np.zeros_like(x) if is_data(x) else x.copy() for x in inputs]
    run = compiled.bind(*given)
    run()
    for mine, x in zip(given, inputs, strict=True):
        mine[...] = x
    return run()


WAYS: dict[str, Callable[[nnhal.Compiled, Sequence[Array]], Any]] = {
    "call": lambda compiled, inputs: compiled(*inputs),
    "burst": _burst,
    "fenced": _fenced,
    "submitted": lambda compiled, inputs: compiled.submit(*inputs).result(ENOUGH),
    "bound": _bound,
    "deadline": lambda compiled, inputs: compiled.run(*inputs, deadline=ENOUGH)[0],
    "measured": lambda compiled, inputs: compiled.run(*inputs, measure=True)[0],
}


@area("graph/ways", "graph", 4, kinds=tuple(WAYS))
def ways(trial: AreaTrial) -> None:
    """Every way of execution gives the results of a graph."""
    graph, compiled = own_graph(trial)
    for inputs in (graph.inputs(), graph.other_inputs()):
        graph.check(inputs, trial.execute(partial(WAYS[trial.kind], compiled, inputs)), trial.kind)
    trial.no_fallback(compiled)


def _taken(takes: Array, operation: int) -> bool:
    return bool(takes[operation % len(takes)])


@area("partition/forced", "graph", 50)
def forced_partition(trial: AreaTrial) -> None:
    """Operations placed at random on the device, two partial devices and the CPU give the results of the graph."""
    graph = mixed_graph(trial)
    share = trial.rng.random(2)
    takes = [trial.rng.random(4 * MOST) < each for each in share]
    others = [Partial(discovery.cpu(), f"partial-{n}", partial(_taken, mine)) for n, mine in enumerate(takes)]
    ends = [] if trial.name == discovery.CPU else [discovery.cpu()]
    shares = {trial.label: 3.0, others[0].name: 1.0, others[1].name: 1.0, discovery.CPU: 1.0}
    compiled = trial.compile(
        graph.model,
        devices=[trial.device, *others, *ends],
        fallback="forbid" if ends else "allow",
        placement=forced(trial, shares),
    )
    counts = compiled.placement.devices()
    if trial.label not in counts:
        raise NotSupported("the device supports no operation of the graph")
    names = [name for name in WAYS if name != "fenced"]
    for inputs in (graph.inputs(), graph.other_inputs()):
        name = str(trial.rng.choice(names))
        results = trial.execute(partial(WAYS[name], compiled, inputs))
        graph.check(inputs, results, f"{name}, {compiled.placement.summary()}")
    trial.no_fallback(compiled)


@area("partition/declared", "graph", 15)
def declared(trial: AreaTrial) -> None:
    """The placement by declared performance gives right results beside the CPU; so does one device for all."""
    graph = mixed_graph(trial)
    beside = [trial.device] if trial.name == discovery.CPU else [trial.device, discovery.cpu()]
    strategy: Any = "stated" if trial.number % 2 else None
    compiled = trial.compile(graph.model, devices=beside, fallback="allow", placement=strategy)
    for inputs in (graph.inputs(), graph.other_inputs()):
        results = trial.execute(partial(compiled, *inputs))
        graph.check(inputs, results, compiled.placement.summary())
    trial.no_fallback(compiled)


def _beside(trial: AreaTrial, graph: TrialGraph, other: Device, fallback: Any) -> nnhal.Compiled:
    ends = [] if trial.name == discovery.CPU else [discovery.cpu()]
    return trial.compile(
        graph.model,
        devices=[trial.device, other, *ends],
        fallback=fallback,
        placement=forced(trial, {trial.label: 1.0, other.name: 1.0}),
    )


@area("partition/beside-faulty", "graph", 2, kinds=(*PREPARING, *RUNNING))
def beside_faulty(trial: AreaTrial) -> None:
    """Beside a device that fails or lies, results are right by fallback, or end in a named error; never wrong."""
    own, _ = own_graph(trial)
    other = faulty(discovery.cpu(), "faulty", trial.kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnhal.FallbackWarning)
        compiled = _beside(trial, own, other, "allow")
        for n, inputs in enumerate((own.inputs(), own.other_inputs(), own.inputs())):
            results = trial.execute(partial(compiled, *inputs))
            own.check(inputs, results, f"execution {n} with fallback, {compiled.placement.summary()}")
        trial.no_fallback(compiled)
        _named_error_or_right(trial, own, other)
    alone = trial.compile(own.model, fallback="forbid")
    own.check(own.inputs(), trial.execute(lambda: alone(*own.inputs())), "the device alone afterwards")


def _named_error_or_right(trial: AreaTrial, graph: TrialGraph, other: Device) -> None:
    """Without fallback, the execution has right results, or its error names the faulty device."""
    try:
        compiled = _beside(trial, graph, other, "forbid")
        results = trial.execute(lambda: compiled(*graph.inputs()))
    except nnhal.NnhalError as error:
        trial.idle()
        text = str(error)
        trial.require(
            "faulty" in text, f"the error does not name the device that failed: {type(error).__name__}: {text}"
        )
    else:
        graph.check(graph.inputs(), results, f"without fallback, {compiled.placement.summary()}")


@area("fallback/device-fails", "graph", 2, kinds=(*PREPARING, *RUNNING))
def device_fails(trial: AreaTrial) -> None:
    """If the device itself fails in this way, the CPU takes over, and the results are right."""
    graph, _ = own_graph(trial)
    own = faulty(trial.device, f"failing-{trial.name}", trial.kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnhal.FallbackWarning)
        compiled = trial.compile(graph.model, devices=own, fallback="allow")
        for n, inputs in enumerate((graph.inputs(), graph.other_inputs())):
            results = trial.execute(partial(compiled, *inputs))
            graph.check(inputs, results, f"execution {n} with fallback")
    if trial.kind in HARMLESS:
        return
    placement = compiled.placement
    fell = placement.live.total + len(placement.events)
    trial.require(fell, "the device failed, but the placement reports no fallback")


@area("fallback/warning", "once")
def warning(trial: AreaTrial) -> None:
    """By default an application that names no fallback gets an error, and with "warn" a FallbackWarning."""
    graph, _ = own_graph(trial, 3)
    own = faulty(trial.device, f"failing-{trial.name}", "run-fails")
    alone = trial.compile(graph.model, devices=own)
    error = trial.must_raise(nnhal.OperationFailed, "a failing device", lambda: listed(alone(*graph.inputs())))
    trial.require(f"failing-{trial.name}" in str(error), f"the error does not name the device: {error}")
    compiled = trial.compile(graph.model, devices=own, fallback="warn")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        results = trial.execute(lambda: compiled(*graph.inputs()))
    graph.check(graph.inputs(), results, "with fallback")
    told = [each for each in found if issubclass(each.category, nnhal.FallbackWarning)]
    trial.require(told, "no FallbackWarning is issued")
