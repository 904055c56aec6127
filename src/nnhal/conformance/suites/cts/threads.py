"""Several threads: one compilation executed by all, several compilations, compiling beside executing."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import nnhal
from nnhal.base.operands import Array
from nnhal.conformance.suites.cts.area import EXECUTE, AreaTrial, SampleModel, area, listed
from nnhal.conformance.suites.cts.graphs import TrialGraph, own_graph
from nnhal.conformance.suites.suite import CaseFailed

COUNT = 4  # threads
EACH = 4  # executions of a thread
PER_GRAPH = 12  # executions of a graph by a thread


def at_once(trial: AreaTrial, works: Sequence[Callable[[], None]]) -> None:
    """Run all at once, each in a thread; raise the first error."""
    barrier = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            barrier.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    with trial.at(EXECUTE):  # the parent ends this process if one hangs
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    failed = [error for error in errors if isinstance(error, CaseFailed)]
    for error in (*failed, *errors):
        raise error


def _executing(sample: SampleModel, number: int, run: Callable[..., Any]) -> Callable[[], None]:
    def work() -> None:
        for n in range(EACH):
            sample.check(listed(run(*sample.arrays)), f"thread {number}, execution {n}, beside {COUNT - 1} others")

    return work


@area("threads/one-compilation", "operation")
def one_compilation(trial: AreaTrial) -> None:
    """Several threads execute one compiled model at once, each with its own inputs."""
    sample = trial.sample()
    several = [sample, *(sample.other() for _ in range(COUNT - 1))]
    at_once(trial, [_executing(each, n, sample.compiled) for n, each in enumerate(several)])
    sample.execute("afterwards")
    trial.no_fallback(sample.compiled)


@area("threads/compile-and-execute", "operation")
def compile_and_execute(trial: AreaTrial) -> None:
    """Threads compile and execute at once."""
    sample = trial.sample()
    other = sample.other()

    def compiling(number: int) -> Callable[[], None]:
        def work() -> None:
            for n in range(2):
                with nnhal.compile(sample.model, devices=trial.device, fallback="forbid", cache_dir=False) as compiled:
                    results = listed(compiled(*sample.arrays))
                sample.check(results, f"thread {number}, compilation {n}")

        return work

    at_once(
        trial,
        [compiling(0), compiling(1), *(_executing(e, n + 2, sample.compiled) for n, e in enumerate((sample, other)))],
    )


def _running(graph: TrialGraph, inputs: Sequence[Array], number: int, run: Callable[..., Any]) -> Callable[[], None]:
    def work() -> None:
        made = [listed(run(*inputs)) for _ in range(PER_GRAPH)]
        for n, results in enumerate(made):
            where = f"thread {number}, execution {n}, beside {COUNT - 1} others"
            graph.check(inputs, results, where, "executions at once share memory")

    return work


@area("threads/graph", "graph", 12)
def graphs(trial: AreaTrial) -> None:
    """Several threads execute one compiled graph at once, each with its own inputs: they share no intermediates."""
    graph, compiled = own_graph(trial, 12)
    inputs = [graph.inputs() if n == 0 else graph.other_inputs() for n in range(COUNT)]
    at_once(trial, [_running(graph, each, n, compiled) for n, each in enumerate(inputs)])
    trial.no_fallback(compiled)


@area("threads/several-graphs", "graph", 6)
def several_graphs(trial: AreaTrial) -> None:
    """Each thread executes another compilation of the device at once."""
    pairs = [own_graph(trial, 6) for _ in range(COUNT)]
    at_once(trial, [_running(graph, graph.inputs(), n, compiled) for n, (graph, compiled) in enumerate(pairs)])
    for _, compiled in pairs:
        trial.no_fallback(compiled)


@area("threads/compile-graphs", "graph", 4)
def compile_graphs(trial: AreaTrial) -> None:
    """Each thread compiles, executes and closes its own graph, at once."""
    graphs = [own_graph(trial, 6)[0] for _ in range(COUNT)]

    def compiling(graph: TrialGraph, number: int) -> Callable[[], None]:
        model = graph.model

        def work() -> None:
            for n in range(2):
                with nnhal.compile(model, devices=trial.device, fallback="forbid", cache_dir=False) as compiled:
                    results = listed(compiled(*graph.inputs()))
                graph.check(graph.inputs(), results, f"thread {number}, compilation {n}")

        return work

    at_once(trial, [compiling(graph, n) for n, graph in enumerate(graphs)])


@area("threads/bursts", "graph", 4)
def bursts(trial: AreaTrial) -> None:
    """Each thread executes one compiled graph in its own burst, at once."""
    graph, compiled = own_graph(trial, 8)
    inputs = [graph.inputs() if n == 0 else graph.other_inputs() for n in range(COUNT)]
    opened = [trial.held.enter_context(compiled.burst()) for _ in range(COUNT)]
    at_once(trial, [_running(graph, each, n, run) for n, (each, run) in enumerate(zip(inputs, opened, strict=True))])


@area("threads/close-meanwhile", "graph", 3)
def close_meanwhile(trial: AreaTrial) -> None:
    """A model that is closed while threads execute it ends each execution with right results or with Closed."""
    graph, compiled = own_graph(trial, 8)
    ready = threading.Barrier(2)

    def executing() -> None:
        for n in range(PER_GRAPH):
            try:
                results = listed(compiled(*graph.inputs()))
            except nnhal.Closed:
                break
            graph.check(graph.inputs(), results, f"execution {n} while the model is closed")
            if n == 0:
                ready.wait()

    def closing() -> None:
        ready.wait()
        compiled.close()

    at_once(trial, [executing, closing])
    trial.must_raise(nnhal.Closed, "call after close", lambda: compiled(*graph.inputs()))
