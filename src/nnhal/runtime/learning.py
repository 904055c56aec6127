"""Records the times of a compiled model's first executions for its next compilation."""

import threading
import time
from typing import Any

from nnhal.base.operands import is_tensor
from nnhal.model.graph import Model
from nnhal.runtime.execute import Runner
from nnhal.runtime.job import Job, Report

UNCOUNTED, COUNTED, LEAST = 2, 10, 3  # executions: that warm up, that are measured, that suffice at the end


def measure_executions(runner: Runner) -> None:
    """Measure the first executions of a runner, if their times can be recorded."""
    plan = runner.plan
    if plan.judge.learns and _fixed(plan.model):
        plan.judge.begun(plan.partition.steps)
        Learning(runner)


def _fixed(model: Model) -> bool:
    """Whether every execution has the same amount of work, by its shapes."""
    given = [model.main.operands[i] for i in model.main.inputs]
    return all(all(o.dimensions or ()) and (o.dimensions or not is_tensor(o.type)) for o in given)


class Learning:
    """Replaces a runner's `run` while there is something to measure.

    Parallel executions are not measured, nor are any after a fallback.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner, self._plan, self._real = runner, runner.plan, runner.run
        self._steps = runner.plan.partition.steps
        self._lock, self._inside, self._begun = threading.Lock(), 0, 0
        self._took: list[tuple[int, ...]] = []  # nanoseconds of each execution: the total, then each partition
        runner.before_close = self.end
        runner.run = self.run  # type: ignore[method-assign]

    def run(self, job: Job) -> None:
        with self._lock:
            self._inside += 1
            self._begun += 1
            number = self._begun
            counts = self._inside == 1 and number > UNCOUNTED
        own = counts and len(self._steps) > 1 and job.report is None
        if own:
            job.report = Report()
        try:
            begun = time.perf_counter_ns()
            self._real(job)
            whole = time.perf_counter_ns() - begun
        finally:
            report = job.report
            if own:
                job.report = None
            with self._lock:
                self._inside -= 1
                alone = counts and self._begun == number  # no other began meanwhile
        each = () if report is None or len(self._steps) == 1 else tuple([step.total for step in report.steps])
        if alone and len(each) in (0, len(self._steps)):
            self._took.append((whole, *each))
        if self._begun >= UNCOUNTED + COUNTED:
            self.end()

    def end(self) -> None:
        """Write the measurements in the background, after enough executions or the last one."""
        with self._lock:
            if self._runner.before_close is None:
                return
            self._runner.before_close = None
        del self._runner.run  # restores the runner's method
        plan, took = self._plan, self._took
        if len(took) < LEAST or plan.live.total:
            return
        found = [sorted(each)[len(each) // 4] / 1e9 for each in zip(*took, strict=True)]
        each = found[1:] or found
        plan.live.took = tuple(each) if len(each) == len(self._steps) else ()
        rows: list[Any] = [(self._steps, found[0])]
        if len(self._steps) > 1 and plan.live.took:
            rows += [((step,), seconds) for step, seconds in zip(self._steps, each, strict=True)]

        plan.judge.record_times(rows)
