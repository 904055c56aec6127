"""Queries: the same answers in all calls and threads, at work, and after a restart."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nnhal.base.errors import NnhalError
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.suites.vts.elsewhere import answers, elsewhere, verdicts
from nnhal.conformance.suites.vts.promise import DRIVER, Probe, named, promise
from nnhal.conformance.validate.table import of_the_driver
from nnhal.conformance.validate.trial import RequirementNotMet, copies
from nnhal.hal.answers import cache_files_by, checked_status, driver_capabilities

THREADS, EACH = 4, 10


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
