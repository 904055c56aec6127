"""Tuning: measures candidate placements of one model, and chooses the fastest.

Candidates are: everything on each device that supports it, and the best predicted splits. They run in rounds, one
execution each, so that all see the same machine load. The lower quartile of each counts, without rounds that waited for
a core, and slow candidates drop out. Inputs are random: with control flow, the time may depend on their values.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from typing import NamedTuple

import numpy as np

from nnhal.base.disturbed import NOTICED, process_cpu_time, share
from nnhal.base.errors import InvalidArgument, NnhalError, OperationFailed
from nnhal.base.log import logger
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.model.graph import Model
from nnhal.runtime.arguments import ModelInterface
from nnhal.runtime.compilation import Compilation, Failure, Plan, Tune
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.partition import Expectation, Measured, Offer, Steps, expectations
from nnhal.runtime.placer import Placer
from nnhal.runtime.random_inputs import random_inputs
from nnhal.runtime.strategies import Strategy, manual_placement, restrict_offers

SECONDS = 2.0  # the default duration of measuring
SPLITS = 3  # candidates of several partitions
FAR = 1.5  # times the best, above which a candidate drops out
# times the best prediction of one partition, above which one comes last: predictions err by 3 either way
HOPELESS = 6.0
BLOCK_NS = 200_000  # shorter executions are measured several at once
ROUNDS, LEAST = 30, 4  # the most rounds, and those before a candidate drops out: some engines begin slowly
_log = logger("compilation")


def tune_for(seconds: float) -> Tune:
    """Measure for this many seconds.

    Devices that are not predicted to be `HOPELESS` are prepared and executed whatever time that takes, without a deadline.
    """
    return partial(_tune, seconds)


class _Round(NamedTuple):
    """One round of a candidate: nanoseconds of an execution, and the share of the time that threads waited for a core."""

    took: float
    waited: float


class _Contender:
    """A placement that is being measured. spent: seconds of its executions before the rounds."""

    def __init__(self, compiled: Compiled, inputs: Sequence[Array], devices: Sequence[str], left: float | None) -> None:
        """left: seconds for its first execution, None for no limit."""
        self.compiled, self.devices = compiled, devices
        self._run = partial(compiled, *inputs)
        self.rounds: list[_Round] = []
        began = time.perf_counter()
        compiled.run(*inputs, deadline=left)  # the first execution is not representative
        self._require_as_placed()
        self._inner = max(1, min(1000, int(BLOCK_NS / max(1, self.timed(1)))))  # a clock may stand still
        if self._inner > 1:
            self.rounds.clear()
            self.timed()
        self.spent = time.perf_counter() - began
        self._require_as_placed()

    def timed(self, inner: int = 0) -> float:
        """Run one round."""
        count, before = inner or self._inner, process_cpu_time()
        start = time.perf_counter_ns()
        for _ in range(count):
            self._run()
        took = (time.perf_counter_ns() - start) / count
        self.rounds.append(_Round(took, share(before, process_cpu_time())))
        return took

    @property
    def best(self) -> float:
        """The nanoseconds of the shortest round."""
        return min(took for took, _ in self.rounds)

    @property
    def typical(self) -> float:
        """The lower quartile of the nanoseconds of the rounds that other work did not disturb, or of all without such."""
        calm = [took for took, waited in self.rounds if waited <= NOTICED]
        return float(np.quantile(calm or [took for took, _ in self.rounds], 0.25))

    def run_round(self) -> None:
        """Run one round. NnhalError if it fails, or does not run as placed."""
        self.timed()
        self._require_as_placed()

    def _require_as_placed(self) -> None:
        for fell in self.compiled._caller.plan.live:
            raise OperationFailed(str(fell))

    @property
    def steps(self) -> Steps:
        """The assignment."""
        return self.compiled._caller.plan.partition.steps


def _tune(seconds: float, compilation: Compilation, offers: Sequence[Offer], placer: Placer) -> Placer:
    model, deadline = compilation.model, compilation.settings.deadline
    if deadline is not None:  # the other half is for preparing the winner
        now = time.monotonic_ns()
        half = (deadline - now) // 2
        seconds, compilation = min(seconds, half / 1e9), copy(compilation)
        compilation.settings = replace(compilation.settings, deadline=now + half)
    attempt, measured = partial(compilation.attempt, offers), placer.measured or Measured()
    for place, spec in enumerate(ModelInterface(model).inputs):
        if spec.fixed is None:
            raise InvalidArgument(f"tune: input {place} is {spec}, must have a shape that is known")
    inputs = random_inputs(model, np.random.default_rng(0))
    chosen, near = _chosen(_expected(model, offers, placer, measured))
    certain = near if deadline is None else 1  # however long their preparation takes
    end = time.perf_counter() + seconds
    with ExitStack() as stack:
        candidates: list[_Contender] = []

        def leave_out(assignments: Sequence[Sequence[str]], why: object) -> None:
            text = f"tuning did not measure {', '.join(dict.fromkeys(map(_devices_text, assignments)))}: {why}"
            compilation.events.append(text)
            _log.info("%s", text)

        for number, each in enumerate(chosen):
            if number >= certain and time.perf_counter() > end:
                leave_out([late.devices for late in chosen[number:]], "the time was over")
                break
            try:
                candidate = _made(each, placer, attempt, inputs, stack, None if deadline is None else end)
            except NnhalError as error:
                leave_out([each.devices], error)
                continue
            candidates.append(candidate)
            _log.info("tuning: %s: %.3g ms", candidate.compiled.placement.summary(), candidate.best / 1e6)
        if deadline is None:
            end = max(end, time.perf_counter() + seconds - sum(c.spent for c in candidates))
        candidates = _rounds(candidates, end, leave_out)
        found = {c.steps: c.typical / 1e9 for c in candidates}
    if found:
        placer.record_tuned(found)
    return replace(placer, measured=replace(measured, tuned=found))


def _expected(model: Model, offers: Sequence[Offer], placer: Placer, measured: Measured) -> list[Expectation]:
    """Return the assignments that the application permits."""
    wanted = manual_placement(model, offers, placer.strategy)
    found = expectations(model, restrict_offers(offers, wanted), placer.placement_key.preference, measured)
    return [each for each in found if len({*each.devices} - {""}) == 1] if placer.strategy.single else found


def _chosen(found: Sequence[Expectation]) -> tuple[list[Expectation], int]:
    """Order the candidates: single devices, best first, then splits, then those predicted far behind.

    Time may run out in between, and splits, which are less predictable, have to beat single devices. Also return how
    many of them are single devices that are not far behind.
    """
    single = [each for each in found if len(each.forecasts) <= 1]
    splits = [each for each in found if len(each.forecasts) > 1][:SPLITS]
    near = [each for each in single if each.seconds <= HOPELESS * single[0].seconds]
    return [*near, *splits, *single[len(near) :]], len(near)


def _made(
    each: Expectation,
    placer: Placer,
    attempt: Callable[[Placer, ExitStack], Plan | Failure],
    inputs: Sequence[Array],
    stack: ExitStack,
    end: float | None,
) -> _Contender:
    """Prepare a candidate, run it once and measure it once. NnhalError if a device fails or the time is over."""
    fixed = replace(placer, strategy=Strategy(decide=lambda model, offers: each.devices))
    with ExitStack() as undo:
        plan = attempt(fixed, undo)
        if isinstance(plan, Failure):
            raise plan.error
        compiled = Compiled(plan)
        undo.pop_all()
        stack.enter_context(compiled)
        left = None if end is None else max(0.001, end - time.perf_counter())
        return _Contender(compiled, inputs, each.devices, left)


def _rounds(
    candidates: Sequence[_Contender], end: float, leave_out: Callable[[Sequence[Sequence[str]], object], None]
) -> list[_Contender]:
    """Return the candidates that completed all rounds. leave_out: called for others, with assignments and reason."""
    scheduled = running = list(candidates)
    for number in range(ROUNDS):
        if time.perf_counter() > end or len(running) < 2:
            break
        fallen = []
        for each in running:
            try:
                each.run_round()
            except NnhalError as error:
                leave_out([each.devices], error)
                fallen.append(each)
        scheduled = [c for c in scheduled if c not in fallen]
        running = [c for c in running if c not in fallen]
        best = min((c.best for c in running), default=0.0)
        if number >= LEAST:
            running = [c for c in running if c.best <= FAR * best]
    return scheduled


def _devices_text(devices: Sequence[str]) -> str:
    """`litert`, or `a split of litert + openvino`."""
    several = list(dict.fromkeys(filter(None, devices)))
    return several[0] if len(several) == 1 else f"a split of {' + '.join(several)}"
