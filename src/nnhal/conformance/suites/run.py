"""Runs suites on a device: their cases in processes that the driver may end, vectors and contract checks among them."""

import re
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from nnhal.base.errors import InvalidArgument
from nnhal.base.names import suggestion
from nnhal.base.records import replace
from nnhal.conformance.parallel import run_vectors
from nnhal.conformance.pool import Work, run_all
from nnhal.conformance.selection import Selection, is_sampled, name_of
from nnhal.conformance.subject import Bundle
from nnhal.conformance.suite import Outcome
from nnhal.conformance.suites.suite import PREPARING, Case, CaseOutcome, Suite, SuiteRun
from nnhal.conformance.validate.check import CheckOutcome
from nnhal.conformance.validate.run import Validation, run_checks
from nnhal.conformance.vectors import index

# Suites by name, with what they test. Each but the first three is `suites.NAME` with an object `SUITE`.
VECTORS, CONTRACT, CACHE = "vectors", "contract", "cache"
SUITES = {
    "vts": "the driver interface: queries, invalid models and requests, memory, caching, service quality, fences",
    "cts": "the driver behind the runtime: selection, partitions, memory, control flow, threads, deadlines",
    VECTORS: "AOSP's test vectors or specifications",
    CONTRACT: "the driver's contract, operation by operation",
    CACHE: "saved and restored compilations",
    "random": "random graphs against the reference",
    "stress": "threads, growth of memory and time, the state of the process",
    "crash": "clients that die while the driver works",
    "fuzz": "changed inputs: importers, builder, IPC, queues, cache entries and the driver in a sandboxed process",
    "mlts": "latency and accuracy of real models",
}
_OWN = frozenset((VECTORS, CONTRACT, CACHE))


class Progress(NamedTuple):
    """New outcomes, the number of those so far and of all known cases, and the name of the device."""

    outcomes: list[CaseOutcome]
    done: int
    total: int
    device: str


def suite_of(name: str) -> Suite:
    """Return the suite of a name; InvalidArgument for an unknown name."""
    if name not in SUITES or name in _OWN:
        like = suggestion(name, SUITES) or f", must be one of {', '.join(SUITES)}"
        raise InvalidArgument(f"suite {name!r} is unknown{like}")
    suite: Suite = import_module(f"nnhal.conformance.suites.{name}").SUITE
    return suite


def run_suite(name: str, run: SuiteRun, jobs: int) -> Generator[Progress, None, None]:
    """Yield outcomes as they arrive.

    Raises:
        InvalidArgument: there is no such suite, or it lacks what it needs.
        DeviceUnavailable: the driver does not load.
    """
    if name == VECTORS:
        yield from _vectors(run, jobs)
    elif name in (CONTRACT, CACHE):
        yield from _contract(name, run, jobs)
    else:
        suite = suite_of(name)
        outcomes: list[CaseOutcome] = []
        try:
            with TemporaryDirectory(prefix=f"nnhal-{name}-", ignore_cleanup_errors=True) as scratch:
                work = _SuiteWork(suite, replace(run, scratch=scratch))
                for some, done, total in run_all(work, 1 if suite.serial else jobs):
                    outcomes += some.outcomes
                    yield Progress(some.outcomes, done, total, some.device)
        finally:
            suite.finish(run, outcomes)


def notes_of(name: str, outcomes: Sequence[CaseOutcome]) -> Sequence[str]:
    """Return a suite's lines with measurements, for people."""
    return () if name in _OWN else suite_of(name).notes(outcomes)


def repeat_command(run: SuiteRun, outcome: CaseOutcome) -> str:
    """Return the command that runs a case again alone."""
    words = ["nnhal", "test", outcome.suite, *(["--device", run.device] if run.device else [])]
    for driver in run.drivers:
        words += ["--driver", driver]
    words += run.asked_for()
    options = {"seed": run.seed, "scale": run.scale, "timeout": run.timeout}
    defaults = SuiteRun()
    words += [
        w
        for key, value in options.items()
        if value != getattr(defaults, key)
        for w in (f"--{key}", str(value).removesuffix(".0"))
    ]
    saved = str(outcome.found.get("input", run.data))  # of a failure that `fuzz` found
    source = {"specs": run.specs} if run.specs else {"vectors": run.vectors}  # vectors of specifications are temporary
    paths = {**(source if outcome.suite == VECTORS else {}), "model": run.model, "data": saved, "labels": run.labels}
    words += [word for key, value in paths.items() if value for word in (f"--{key}", value)]
    return shlex.join([*words, "--filter", f"^{re.escape(outcome.name)}$"])


class _SuiteWork(Work):
    """Cases of a suite."""

    module = "nnhal.conformance.suites.worker"
    idle = PREPARING

    def __init__(self, suite: Suite, run: SuiteRun) -> None:
        self._suite = suite
        cases = [case for case in suite.cases(run) if _selected(run, case)]
        seconds = max((suite.seconds(case, run) for case in cases), default=run.timeout)
        parts = [tuple(cases[start : start + suite.bundle]) for start in range(0, len(cases), suite.bundle)]
        super().__init__(replace(run, timeout=max(seconds, run.timeout)), [Bundle(suite.name, part) for part in parts])

    def is_own(self, stage: str) -> bool:
        return stage == PREPARING

    def after(self, outcome: CaseOutcome) -> tuple[Sequence[Bundle], Sequence[CaseOutcome]]:
        return (), self._suite.more(outcome)

    def lost(self, item: Case, verdict: str, reason: str, nanoseconds: int, stack: str) -> CaseOutcome:
        return CaseOutcome(item.suite, item.name, verdict, reason, item.operation, item.type, nanoseconds)

    def late(self, first: CaseOutcome, second: CaseOutcome, before: Sequence[Case]) -> CaseOutcome:
        ran = ", ".join(dict.fromkeys(case.name for case in before[-3:]))
        reason = f"{first.reason} (not in a new process: an earlier case may be the cause, such as {ran})"
        return replace(first, reason=reason, alone=second.verdict)


def _selected(run: SuiteRun, case: Case) -> bool:
    return bool(re.search(run.pattern, case.name)) and is_sampled(f"{case.suite}/{case.name}", run.sample)


def _vectors(run: SuiteRun, jobs: int) -> Iterator[Progress]:
    selection = Selection(
        Path(run.vectors),
        **run.under_test(),
        share=run.sample,
        names=run.pattern,
        specs=Path(run.specs) if run.specs else None,
    )
    entries = index(selection.path)
    for some, done, total in run_vectors(selection, jobs):
        yield Progress(
            [_of_vector(outcome, entries[outcome.id]) for outcome in some.outcomes], done, total, some.device
        )


def _of_vector(outcome: Outcome, entry: Mapping[str, Any]) -> CaseOutcome:
    return CaseOutcome(
        VECTORS,
        name_of(outcome.id, outcome.variant),
        outcome.verdict,
        outcome.reason,
        outcome.primary,
        _type_of(entry.get("operandTypes", ()), outcome.variant),
        nanoseconds=outcome.nanoseconds,
        hint=outcome.hint,
        alone=outcome.alone,
    )


def _type_of(types: Sequence[str], variant: str) -> str:
    """Return the type of a vector's data: its first tensors that are no indices or masks, if it has such."""
    tensors = [each for each in types if each.startswith("TENSOR_")]
    data = [each for each in tensors if each not in ("TENSOR_INT32", "TENSOR_BOOL8")]
    found = next(iter(data or tensors), "")
    return f"{found}_SIGNED" if variant == "signed" and found == "TENSOR_QUANT8_ASYMM" else found


def _contract(name: str, run: SuiteRun, jobs: int) -> Iterator[Progress]:
    chosen = Validation(
        **run.under_test(),
        seed=run.seed,
        sample=run.sample,
        only=(CACHE,) if name == CACHE else (),
        names=run.pattern,
    )
    for some, done, total in run_checks(chosen, jobs):
        asked = [each for each in some.outcomes if not each.check or chosen.takes(each.check, each.operation)]
        yield Progress([_of_check(name, outcome) for outcome in asked], done, total, some.device)


def _of_check(suite: str, outcome: CheckOutcome) -> CaseOutcome:
    name = f"{outcome.check}/{outcome.operation}" if outcome.operation else outcome.check
    return CaseOutcome(
        suite,
        name,
        outcome.verdict,
        outcome.reason,
        outcome.operation,
        nanoseconds=outcome.nanoseconds,
        place=outcome.place,
        alone=outcome.alone,
    )
