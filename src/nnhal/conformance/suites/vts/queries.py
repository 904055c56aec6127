"""Queries: the same answers in all calls and threads, at work, and after a restart."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nnhal.base.codes import OperandType
from nnhal.base.errors import NnhalError
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.suites.vts.elsewhere import answers, elsewhere, verdicts
from nnhal.conformance.suites.vts.promise import DRIVER, Probe, named, promise
from nnhal.conformance.validate.limits import driver_pid
from nnhal.conformance.validate.table import of_the_driver
from nnhal.conformance.validate.trial import NotAsked, RequirementNotMet, copies
from nnhal.hal.answers import cache_files_by, checked_status, driver_capabilities
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.ops.schema import F32

THREADS, EACH = 4, 10
LARGE = 1 << 14, 1 << 15  # dimensions; 2 GiB of float32
BINARY = "ADD", "MUL"
LARGE_ONES = *BINARY, "RELU", "LOGISTIC"
MOST_MEBIBYTES = 256  # of memory for a query


for _check in of_the_driver():
    promise(f"queries/{_check.name}", _check.promise, DRIVER)(_check.look)


@promise("queries/threads", "Queries of several threads at once have the same answers as those of one.", DRIVER)
def threads(probe: Probe) -> int:
    def ask() -> Any:
        found = driver_capabilities(probe.device), cache_files_by(probe.device)
        checked_status(probe.device)
        return found

    wrong: list[str] = []
    with probe.stages.enter("capabilities"):
        first = ask()
        begin = threading.Barrier(THREADS)

        def work() -> None:
            begin.wait()
            for _ in range(EACH):
                try:
                    found = ask()
                except NnhalError as error:
                    wrong.append(named(error))
                    return
                if found != first:
                    wrong.append(f"{found!s:.100}, and {first!s:.100} to one thread")

        workers = [threading.Thread(target=work, name="nnhal-vts") for _ in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if wrong:
        raise RequirementNotMet(f"a query of {THREADS} threads gives {wrong[0]}")
    return THREADS * EACH


@promise("queries/at-work", "Queries have the same answers while and after models are prepared and executed.")
def at_work(probe: Probe) -> int:
    before = answers(probe.device)
    call, model = probe.closed()
    prepared = [probe.prepare(model) for _ in range(EACH)]
    _same_answers(probe, before, f"while {EACH} models are prepared")
    with suppress(NnhalError):  # the contract's checks report that
        probe.run(prepared[0], copies(arrays_of(call)))
    _same_answers(probe, before, "after an execution")
    for each in prepared:
        probe.close(each)
    _same_answers(probe, before, "after all models were closed")
    return 3 * len(before)


def _same_answers(probe: Probe, before: Mapping[str, Any], when: str) -> None:
    with probe.stages.enter("capabilities"):
        now = answers(probe.device)
    for what, answer in before.items():
        if now[what] != answer:
            raise RequirementNotMet(f"{what} is {now[what]!s:.150} {when}, was {answer!s:.150} before")


@promise("queries/large", "A query about a model with large tensors takes no memory of their size.", DRIVER)
def large(probe: Probe) -> int:
    pid = driver_pid(probe)
    asked = 0
    for name in LARGE_ONES:
        probe.calls.verdict(_sized(name, (1, 1)))  # an engine may load at the first query
        before = _peak(pid)
        probe.calls.verdict(_sized(name, LARGE))
        grown = _peak(pid) - before
        if grown > MOST_MEBIBYTES:
            text = f"a query about {name} of {LARGE[0]:,} x {LARGE[1]:,} elements takes {grown:,.0f} MiB"
            raise RequirementNotMet(f"{text}, must be at most {MOST_MEBIBYTES}", probe.place("supports"))
        asked += 1
    return asked


def _sized(name: str, shape: tuple[int, int]) -> Model:
    """Return a model of one operation on inputs of this shape."""
    b = ModelBuilder(f"{name} of {shape}")
    inputs = [b.operand(F32, shape) for _ in range(1 + (name in BINARY))]
    output = b.operand(F32, shape)
    b.operation(name, [*inputs, *[b.constant(OperandType.INT32, 0)] * (name in BINARY)], [output])
    return b.finish(inputs, [output])


def _peak(pid: int) -> float:
    """Return the most memory that a process had so far, in MiB; NotAsked if that cannot be read."""
    try:
        with open(f"/proc/{pid}/status") as status:
            (line,) = (line for line in status if line.startswith("VmHWM:"))
    except (OSError, ValueError) as error:
        raise NotAsked(f"/proc/{pid}/status cannot be read: {error}") from None
    return int(line.split()[1]) / 1024


@promise("queries/restart", "After a restart, all queries have the same answers.", DRIVER)
def restart(probe: Probe) -> int:
    with probe.stages.enter("capabilities"):
        here = answers(probe.device)
    there = elsewhere(probe.suite_run, "answers")
    for what, answer in here.items():
        if there[what] != answer:
            raise RequirementNotMet(
                f"{what} is {answer!s:.150} here and {there[what]!s:.150} after a restart, must be the same"
            )
    return len(here)


@promise("queries/verdicts-restart", "After a restart, supports() has the same answers.", DRIVER)
def verdicts_restart(probe: Probe) -> int:
    with probe.stages.enter("supports"):
        here = verdicts(probe.device, probe.suite_run.seed, probe.go_on)
    there = elsewhere(probe.suite_run, "verdicts", probe.suite_run.seed)
    for cell, answer in here.items():
        if there[cell] != answer:
            raise RequirementNotMet(
                f"supports() of {cell} is {answer} here and {there[cell]} after a restart, must be the same"
            )
    return len(here)
