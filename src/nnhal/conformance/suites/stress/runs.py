"""Executions of a case: one after another, or in several threads that are watched for progress."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from nnhal.base.answers import driver_call
from nnhal.base.errors import MissedDeadline
from nnhal.base.operands import Array
from nnhal.conformance.differential import Outputs
from nnhal.conformance.execution_paths import WAYS, close_and_wait
from nnhal.conformance.reduction import types_of
from nnhal.conformance.suites.stress.graphs import FLOAT, QUANT, SETS, SINGLE, StressGraph, difference, supported
from nnhal.conformance.suites.suite import PREPARING, Context, NotApplicable, NotSupported
from nnhal.conformance.switching import switching_often
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints, Prepared, where_of
from nnhal.hal.request import UNLIMITED, Control

DRAWS = 8  # of graphs, to find one whose results differ by input
PLAIN = Hints(threads=1)
WATCH = 0.1  # seconds between looks at the threads' progress
SOON_NS = 50_000


class ThreadJob(NamedTuple):
    """A graph, sets of its inputs, and the results of each set when it ran alone."""

    graph: StressGraph
    inputs: list[list[Array]]
    wanted: list[Outputs]


def executed(
    device: Device, prepared: Prepared, arrays: Sequence[Array], control: Control = UNLIMITED, way: str = "plain"
) -> Outputs:
    """Execute once, on copies of the inputs."""
    request = prepared.request([x.copy() for x in arrays])
    WAYS[way](device, prepared, request, control)
    return request.results


def closed(device: Device, prepared: Prepared) -> None:
    """Close, and return after the driver's own `close`."""
    with driver_call(where_of(device), "close() of a prepared model"):
        close_and_wait(prepared)


def briefly(device: Device, prepared: Prepared, arrays: Sequence[Array]) -> None:
    """Execute with a deadline that may pass at any stage."""
    with suppress(MissedDeadline):
        executed(device, prepared, arrays, Control(deadline=time.monotonic_ns() + SOON_NS))


def in_a_thread(call: Callable[[], object]) -> None:
    """Call a function in a new thread, and return when that has ended; raise its error."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="nnhal-stress")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def job(context: Context, kind: str, seed: Sequence[int], length: int) -> ThreadJob:
    """Draw a graph, and run it alone on each set of inputs.

    Raises:
        NotSupported: the device supports no operation of this kind.
        NotApplicable: no drawn graph has different results for different inputs.
    """
    for number in range(DRAWS):
        graph = supported(context.device, kind, [*seed, number], length, context.at)
        inputs = [graph.inputs(n) for n in range(SETS)]
        wanted = alone(context, graph, inputs)
        if all(difference(wanted[n], wanted[n - 1]) for n in range(SETS)):
            return ThreadJob(graph, inputs, wanted)
    raise NotApplicable(f"none of {DRAWS} graphs of supported operations has results that differ by input")


def any_job(context: Context, seed: int, length: int) -> ThreadJob:
    """Draw a graph of the first type that the device supports; raise as `job`."""
    for kind in (FLOAT, QUANT):
        with suppress(NotSupported, NotApplicable):
            return job(context, kind, [context.run.seed, seed], length)
    return job(context, SINGLE, [context.run.seed, seed], length)


def alone(context: Context, graph: StressGraph, inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """Prepare, execute once on each set, and close; return copies of the results."""
    device = context.device
    context.types.begin_more(*types_of(graph.model))
    context.at("prepare")
    prepared = checked_prepared(device, graph.model, PLAIN)
    found = []
    for arrays in inputs:
        context.at("run")
        found.append([None if r is None else r.copy() for r in executed(device, prepared, arrays)])
    context.at("close")
    closed(device, prepared)
    context.at(PREPARING)
    return found


class _Beats:
    """The progress of threads, each of which notes its rounds."""

    def __init__(self, count: int) -> None:
        self.counts, self.alive = [0] * count, [True] * count
        self.errors: list[BaseException] = []
        self.ending = threading.Event()

    def moved(self, before: Sequence[int]) -> bool:
        """Whether each running thread has finished a round since."""
        return all(now > then or not alive for now, then, alive in zip(self.counts, before, self.alive, strict=True))


def at_once(context: Context, stage: str, works: Sequence[Callable[[], Iterator[None]]]) -> None:
    """Run generators in a thread each; raise the first error of one.

    Each yields after a round. A thread that finishes none within the time limit hangs, whatever the others do.

    Args:
        context: of the case; it receives the stage again whenever all threads have finished a round.
        stage: the driver's call in the threads.
        works: the generators.
    """
    beats = _Beats(len(works))

    def work(place: int) -> None:
        try:
            for _ in works[place]():
                beats.counts[place] += 1
                if beats.ending.is_set():
                    break
        except BaseException as error:
            beats.errors.append(error)
            beats.ending.set()
        finally:
            beats.alive[place] = False

    threads = [threading.Thread(target=work, args=(n,), name="nnhal-stress", daemon=True) for n in range(len(works))]
    with switching_often():
        context.at(stage)
        for thread in threads:
            thread.start()
        before = list(beats.counts)
        for thread in threads:
            while thread.is_alive():
                thread.join(WATCH)
                if beats.moved(before):
                    before = list(beats.counts)
                    context.at(stage)
    if beats.errors:
        raise beats.errors[0]
    context.at(PREPARING)
