"""Tasks in a fresh process that loads the driver again: answers after a restart, and restored models.

The process gets one task over a socket, with the descriptors that it needs, and answers once.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from nnhal.base.errors import DeadObject, NnhalError, error_text
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.conformance.cache_files import empty_files, is_written, restored_from
from nnhal.conformance.device_under_test import ANY
from nnhal.conformance.differential import Outputs, model_of
from nnhal.conformance.draw import cells, draw
from nnhal.conformance.execution_paths import WAYS, close_and_wait, not_used
from nnhal.conformance.suites.process_state import State, state_of_this_process
from nnhal.conformance.suites.suite import SuiteRun
from nnhal.conformance.suites.vts.left_files import entries, folders, new_files
from nnhal.conformance.validate.trial import PLAIN, RequirementNotMet
from nnhal.conformance.worker import end_with
from nnhal.hal.answers import cache_files_by, driver_capabilities
from nnhal.hal.cache.files import Cache
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support, query_verdicts
from nnhal.hal.device import Device, Prepared, identity_of
from nnhal.hal.lowering import refusals
from nnhal.hal.request import UNLIMITED, Request, Signature
from nnhal.ipc.client.output import DriverProcess
from nnhal.model.graph import Model
from nnhal.runtime import discovery, isolation

ENDING = 30.0  # seconds for a process to end by itself
SECONDS = 45.0  # for the process to load the driver, and for the task; less than the suite allows itself
_MAIN = "from nnhal.conformance.suites.vts.elsewhere import main; main()"

Saved = tuple[Model, bytes, tuple[int, ...], tuple[int, ...], list[Array]]  # token, model files, data files, inputs


def elsewhere(
    run: SuiteRun, task: str, *arguments: Any, fds: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> Any:
    """Return the answer of a task of `TASKS` in a fresh process, which has these descriptors under the same numbers.

    The process has ended then; one with a task of `TO_THE_END` by itself.

    Raises:
        RequirementNotMet: The task, or the process after it, does not end in time.
        DeadObject: The process ends before it answers.
        NnhalError: The driver's error there, as OperationFailed.
    """
    ours, theirs = socket.socketpair()
    connection = Connection(ours.detach())
    command = [sys.executable, "-P", "-c", _MAIN, str(theirs.fileno()), str(os.getpid())]
    with theirs:
        process = DriverProcess(run.named, command, (theirs.fileno(), *fds), environment)
    try:
        connection.send((run, task, arguments))
        if not connection.poll(max(SECONDS, run.timeout)):
            raise RequirementNotMet(f"{task} in a fresh process has not ended within {max(SECONDS, run.timeout):g} s")
        try:
            problem, answer = connection.recv()
        except (EOFError, ConnectionResetError):
            raise DeadObject(f"the fresh process: {process.exit_description() or 'closed its connection'}") from None
        if task in TO_THE_END:
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                raise RequirementNotMet(f"the process has not ended within {ENDING:g} s after its work") from None
    finally:
        connection.close()
        process.kill()
        process.wait()
    if problem:
        raise RequirementNotMet(f"in a fresh process: {problem}")
    return answer


def device_of(run: SuiteRun) -> Device:
    """Load the drivers of a run, and return the device under test."""
    loaded = [discovery.load_driver(driver).name for driver in run.drivers]
    name = run.device or (loaded[0] if loaded else discovery.CPU)
    options = {**run.options.get(ANY, {}), **run.options.get(name, {})}
    return isolation.at_level(name, run.level, own_process=run.isolate, options=options)


# ---------------------------------------------------------------------------------------------------------------- tasks


def answers(device: Device) -> dict[str, Any]:
    """Return the answers to all queries that may not change over a restart."""
    return {
        "identity": tuple(identity_of(device)),
        "capabilities": driver_capabilities(device),
        "number_of_cache_files": tuple(cache_files_by(device)),
    }


def verdicts(device: Device, seed: int, ask: Callable[[], object] = lambda: None) -> dict[str, bool | str]:
    """Return the verdict of one drawn call of each operation, signature and type. ask: is called before each."""
    found: dict[str, bool | str] = {}
    for cell in cells():
        if cell.values == "ordinary":
            model = model_of(draw(cell, np.random.default_rng(seed)))
            ask()
            try:
                ok = not any(refusals(model, device.level)) and all(v.ok for v in query_verdicts(device, model))
            except NnhalError as error:
                found[str(cell)] = type(error).__name__
            else:
                found[str(cell)] = ok
    return found


def restored(device: Device, saved: Sequence[Saved]) -> list[Outputs | str]:
    """Restore models and run each once; return the results, or the error."""
    found: list[Outputs | str] = []
    for model, token, model_files, data_files, arrays in saved:
        try:
            prepared = restored_from(device, model, replace(PLAIN, cache=Cache(token, model_files, data_files)))
            request = Request(Signature.of(prepared.model), arrays)
            request.execute(prepared.run, UNLIMITED)
        except NnhalError as error:
            found.append(f"{type(error).__name__}: {error}")
            continue
        found.append([None if each is None else np.array(each) for each in request.results])
        prepared.close()
    return found


def loading(device: Device) -> State:
    """Return the state of the process after it has loaded the device."""
    driver_capabilities(device)
    return state_of_this_process()


def lives(device: Device, models: Sequence[tuple[Model, list[Array]]], rounds: int) -> list[list[str]]:
    """Prepare, execute and close models so often; return the new files after each round."""
    places = folders()
    before, after = entries(places), []
    for _ in range(rounds):
        for model, arrays in models:
            with suppress(NnhalError):  # other promises report that
                _life(device, model, arrays)
        after.append(sorted(new_files(places, before)))
    device.close()
    return after


def _life(device: Device, model: Model, arrays: Sequence[Array]) -> None:
    """Ask for verdicts, prepare with cache files, execute in several ways, restore, execute, and close."""
    count = cache_files_by(device)
    with ExitStack() as held:
        cache = held.enter_context(empty_files(count)) if count else None
        hints = replace(PLAIN, cache=cache)
        claims = consider_support(device, model, hints)
        held.callback(claims.release_work)
        prepared = checked_prepared(device, model, claims.hints(hints))
        _executed(device, prepared, arrays)
        if cache is not None and is_written(cache):
            _executed(device, restored_from(device, model, hints), arrays)


def _executed(device: Device, prepared: Prepared, arrays: Sequence[Array]) -> None:
    """Execute in several ways, and close."""
    try:
        outputs = Signature.of(prepared.model).outputs
        for way in ("plain", "burst", "memory"):
            if not not_used(device, way):
                rooms = [None if a.fixed is None else np.empty(a.fixed, a.dtype) for a in outputs]
                WAYS[way](device, prepared, prepared.request([x.copy() for x in arrays], rooms), UNLIMITED)
    finally:
        close_and_wait(prepared)


TASKS: dict[str, Callable[..., Any]] = {
    "answers": answers,
    "verdicts": verdicts,
    "restored": restored,
    "loading": loading,
    "lives": lives,
}
TO_THE_END = frozenset(("lives",))


def main() -> None:
    """Run the process."""
    end_with(int(sys.argv[2]))
    connection = Connection(int(sys.argv[1]))
    run, task, arguments = connection.recv()
    try:
        before = state_of_this_process()
        answer = TASKS[task](device_of(run), *arguments)
        problem = ""
        if task == "loading":
            answer = before, answer
    except Exception as error:  # of the driver, of any class; the other process reports it
        problem, answer = error_text(error), None
    connection.send((problem, answer))
    sys.stdout.flush()
    if task in TO_THE_END:
        return
    os._exit(0)  # no one waits for the driver's remaining work
