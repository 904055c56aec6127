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
from nnhal.conformance.device_under_test import Bundle
from nnhal.conformance.parallel import run_vectors
from nnhal.conformance.place import place_first
from nnhal.conformance.pool import Work, run_all
from nnhal.conformance.repro import write as write_vector
from nnhal.conformance.selection import Selection, is_sampled, name_of, planned
from nnhal.conformance.specs.archive import own_specification
from nnhal.conformance.suite import Outcome
from nnhal.conformance.suites.suite import PREPARING, Case, CaseOutcome, Suite, SuiteRun
from nnhal.conformance.validate.check import CHECKS, CheckOutcome
from nnhal.conformance.validate.run import DRAWS, Validation, run_checks
from nnhal.conformance.validate.table import FAMILIES
from nnhal.conformance.vectors import index
from nnhal.conformance.verdict import BAD, data_types, kind_of, type_of_case

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
assert FAMILIES  # the import fills `CHECKS`
_OWN = frozenset((VECTORS, CONTRACT, CACHE))
# Fields of `SuiteRun` that only these suites use, which are options of `nnhal test`.
_SELECTING = "flag", "published_only"
ONLY_FOR: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("vectors", "specs", "execution_path", *_SELECTING), (VECTORS,)),
    **dict.fromkeys(("model", "labels"), ("mlts",)),
    "data": ("mlts", "fuzz"),
}
BEFORE = 20  # earlier cases that are run again before one that does not fail alone


class Progress(NamedTuple):
    """New outcomes, the number of those so far and of all known cases, the device's name, and the driver's calls.

    calls: new ones of an isolated driver, by method.
    """

    outcomes: list[CaseOutcome]
    done: int
    total: int
    device: str
    calls: Mapping[str, int] = {}


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
                    yield Progress(some.outcomes, done, total, some.device, some.calls)
        finally:
            suite.finish(run, outcomes)


def listed(name: str, run: SuiteRun) -> Iterator[tuple[str, str]]:
    """Yield the cases of a suite that are selected, with their operations. `contract`, `cache`: checks and their rules."""
    if name == VECTORS:
        for bundle in planned(_selection(run)):
            yield from ((name_of(item.id, item.variant), item.primary) for item in bundle.items)
    elif name in (CONTRACT, CACHE):
        yield from ((c.name, c.promise) for c in CHECKS.values() if name == CONTRACT or c.name.startswith(f"{CACHE}-"))
    else:
        yield from ((case.name, case.operation) for case in suite_of(name).cases(run) if _selected(run, case))


def notes_of(name: str, outcomes: Sequence[CaseOutcome]) -> Sequence[str]:
    """Return a suite's lines with measurements, for people."""
    return () if name in _OWN else suite_of(name).notes(outcomes)


def repeat_command(run: SuiteRun, outcome: CaseOutcome) -> str:
    """Return the command that runs a case again alone."""
    words = ["nnhal", "test", outcome.suite, *(["--device", run.device] if run.device else [])]
    for driver in run.drivers:
        words += ["--driver", driver]
    words += run.asked_for()
    own = [name for name, suites in ONLY_FOR.items() if outcome.suite in suites and name not in _SELECTING]
    given = {name: getattr(run, name) for name in (*own, "seed", "scale", "timeout")}
    if outcome.suite == VECTORS and run.specs:  # the vectors are temporary
        given["vectors"] = ""
        given["specs"] = run.specs if outcome.before else own_specification(run.specs, outcome.name)
    if "input" in outcome.found:  # a failure that `fuzz` found
        given["data"] = outcome.found["input"]
    defaults = SuiteRun()
    for name, value in given.items():
        if value != getattr(defaults, name):
            text = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    names = [re.escape(name) for name in (*outcome.before[-BEFORE:], outcome.name)]
    wanted = f"({'|'.join(names)})" if outcome.before else names[0]
    return shlex.join([*words, *["--jobs", "1"] * bool(outcome.before), "--filter", f"^{wanted}$"])


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

    def lost(self, item: Case, verdict: str, reason: str, nanoseconds: int, stack: str, type: str) -> CaseOutcome:
        return CaseOutcome(
            item.suite,
            item.name,
            verdict,
            reason,
            item.operation,
            item.type or type,
            nanoseconds,
            place=place_first(stack),
        )

    def late(self, first: CaseOutcome, second: CaseOutcome, before: Sequence[Case]) -> CaseOutcome:
        ran = tuple(dict.fromkeys(case.name for case in before))
        reason = (
            f"{first.reason} (not in a new process: an earlier case may be the cause, such as {', '.join(ran[-3:])})"
        )
        return replace(first, reason=reason, alone=second.verdict, before=ran)


def _selected(run: SuiteRun, case: Case) -> bool:
    asked = not run.operations or case.operation.upper() in run.operations
    return asked and bool(re.search(run.pattern, case.name)) and is_sampled(f"{case.suite}/{case.name}", run.sample)


def _selection(run: SuiteRun) -> Selection:
    return Selection(
        Path(run.vectors),
        **run.under_test(),
        pattern=run.pattern,
        operations=run.operations,
        rerun=not run.published_only,
        way=run.execution_path,
        share=run.sample,
        flag=run.flag,
        outputs=bool(run.report),
    )


def _vectors(run: SuiteRun, jobs: int) -> Iterator[Progress]:
    selection, saved = _selection(run), set[tuple[str, ...]]()
    entries = index(selection.path)
    flags = {flag for entry in entries.values() for flag in entry.get("flags", ())}
    if run.flag and run.flag not in flags:
        like = suggestion(run.flag, flags) or f", must be one of {', '.join(sorted(flags))}"
        raise InvalidArgument(f"flag {run.flag!r}: no vector has it{like}")
    for some, done, total in run_vectors(selection, jobs):
        outcomes = []
        for each in some.outcomes:
            kind = each.primary, each.verdict, kind_of(each.reason), each.hint
            found = {}
            if run.report and each.verdict in BAD and kind not in saved:
                saved.add(kind)
                found["vector"] = str(write_vector(Path(run.report, VECTORS), selection, each))
            outcomes.append(_of_vector(each, entries[each.id], found))
        yield Progress(outcomes, done, total, some.device, some.calls)


def _of_vector(outcome: Outcome, entry: Mapping[str, Any], found: Mapping[str, Any]) -> CaseOutcome:
    return CaseOutcome(
        VECTORS,
        name_of(outcome.id, outcome.variant),
        outcome.verdict,
        outcome.reason,
        outcome.primary,
        _type_of(entry.get("operandTypes", ()), outcome.variant),
        nanoseconds=outcome.nanoseconds,
        hint=outcome.hint,
        place=outcome.place,
        alone=outcome.alone,
        before=outcome.before,
        found=found,
    )


def _type_of(types: Sequence[str], variant: str) -> str:
    """Return the type of a vector's data: the first one."""
    found = next(iter(data_types(types)), "")
    return f"{found}_SIGNED" if variant == "signed" and found == "TENSOR_QUANT8_ASYMM" else found


def _contract(name: str, run: SuiteRun, jobs: int) -> Iterator[Progress]:
    family = CACHE if name == CACHE else ""
    chosen = Validation(
        **run.under_test(),
        seed=run.seed,
        draws=max(1, round(DRAWS * run.scale)),
        sample=run.sample,
        only=tuple(f"{family}/{each}" for each in sorted(run.operations)) or (family,) * bool(family),
        names=run.pattern,
    )
    for some, done, total in run_checks(chosen, jobs):
        asked = [each for each in some.outcomes if not each.check or chosen.takes(each.check, each.operation)]
        yield Progress([_of_check(name, outcome) for outcome in asked], done, total, some.device, some.calls)


def _of_check(suite: str, outcome: CheckOutcome) -> CaseOutcome:
    name = f"{outcome.check}/{outcome.operation}" if outcome.operation else outcome.check
    return CaseOutcome(
        suite,
        name,
        outcome.verdict,
        outcome.reason,
        outcome.operation,
        type_of_case(outcome.types),
        nanoseconds=outcome.nanoseconds,
        place=outcome.place,
        alone=outcome.alone,
        types=outcome.types,
    )
