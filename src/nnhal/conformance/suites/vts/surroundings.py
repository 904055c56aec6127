"""The process and the files around a driver: as before after loading, preparing, executing and closing."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress

from nnhal.base.errors import NnhalError
from nnhal.base.operands import Array
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.suites.process_state import (
    ENVIRONMENT,
    State,
    difference,
    state_of_process,
    state_of_this_process,
)
from nnhal.conformance.suites.vts.elsewhere import elsewhere
from nnhal.conformance.suites.vts.left_files import left_behind
from nnhal.conformance.suites.vts.promise import DRIVER, OPERATION, Probe, chosen, promise
from nnhal.conformance.validate.trial import NotAsked, RequirementNotMet, copies
from nnhal.conformance.worker import process_of
from nnhal.model.graph import Model

ROUNDS = 6  # in which the same models are prepared, executed and closed
TWICE = 2  # processes that must leave files: others may write into the same folders meanwhile


def _state(probe: Probe) -> State:
    """Return the state of the driver's process, and of this thread if that is this process."""
    process = process_of(probe.device)
    try:
        return state_of_this_process() if process is None else state_of_process(process.pid)
    except OSError as error:
        raise NotAsked(f"the state of the process cannot be read: {error.strerror}") from None


@promise(
    "process/loading",
    "Loading a driver leaves the process as it was, except for environment variables.",
    DRIVER,
    isolated=False,
)
def loading(probe: Probe) -> int:
    before, after = elsewhere(probe.suite_run, "loading")
    changed = difference({name: before[name] for name in before if name != ENVIRONMENT}, after)
    if changed:
        raise RequirementNotMet(f"after the driver was loaded, {changed}, must be as before")
    return len(before)


@promise(
    "process",
    "Preparing, executing and closing leave the process as it was: arithmetic, signals, folder, masks and limits.",
    OPERATION,
)
def process(probe: Probe) -> int:
    seen = 0
    for call, model in probe.calls.samples():
        before = _state(probe)

        def look(what: str, before: State = before) -> None:
            changed = difference(before, _state(probe))
            if changed:
                raise RequirementNotMet(f"after {what}(), {changed}, must be as before", probe.place(what))

        probe.calls.verdict(model)
        look("supports")
        prepared = probe.prepare(model)
        look("prepare")
        for _ in range(2):
            with suppress(NnhalError):  # the contract's checks report that
                probe.run(prepared, copies(arrays_of(call)))
            look("run")
        probe.close(prepared)
        look("close")
        seen += 1
    return seen


@promise(
    "process/files",
    "Models that were closed leave no files, and neither does a process that has ended.",
    DRIVER,
)
def files(probe: Probe) -> int:
    models = []
    for each in chosen(probe):
        call, model = each.closed()
        each.tries(call)
        models.append((model, copies(arrays_of(call))))
    for _ in range(TWICE):
        problem = _left(probe, models)
        if not problem:
            return ROUNDS
    raise RequirementNotMet(problem)


def _left(probe: Probe, models: Sequence[tuple[Model, list[Array]]]) -> str:
    """Return which files a fresh process leaves that prepares, executes and closes models."""
    run = probe.suite_run
    with tempfile.TemporaryDirectory(prefix="nnhal-", dir=run.scratch or None, ignore_cleanup_errors=True) as made:
        own = os.path.realpath(made)
        rounds = elsewhere(run, "lives", models, ROUNDS, environment={**os.environ, "TMPDIR": own})
        return left_behind(rounds, own, ended=not run.isolate)
