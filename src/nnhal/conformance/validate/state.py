"""Checks that executions are independent: the next one, a concurrent one, one of another model."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from nnhal.base.errors import ContractBroken, NnhalError, OperationFailed
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.conformance.differential import (
    Outputs,
    arrays_of,
    model_of,
    operands_of,
    other_constants,
    reordered,
    with_pools,
)
from nnhal.conformance.draw import Call
from nnhal.conformance.place import place_in
from nnhal.conformance.switching import switching_often
from nnhal.conformance.validate.check import check
from nnhal.conformance.validate.trial import RequirementNotMet, Trial, copies, distinct
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED, Request, Run
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.ops.schema import F32

SETS = 4  # of inputs
SECOND = ("stale-output",)  # other checks fail too if a second execution is wrong
THREADS, EACH = 4, 25  # executions of each thread
PAUSE = 0.01  # seconds
TRIES = 4  # calls that are tried with an argument at execution
INT32_ENDS = -(2**31), 2**31 - 1
NEED_NOT_CHECK = frozenset(("keys",))  # a driver may search in these without a look at their order
ALIKE = "its results are the same for all drawn inputs"

DataSet = tuple[Call, list[Array], Outputs]  # a call, its inputs, and its results on a model that runs once


def data_sets(trial: Trial, call: Call, model: Model, count: int = SETS) -> list[DataSet]:
    """Return the call with several inputs, and the results for each from a model that runs once."""
    return [
        (each, arrays_of(each), trial.alone(model, arrays_of(each)))
        for each in (call, *trial.calls.others(call, count - 1))
    ]


@check("stale-output", "A second execution gives the results for its inputs.", unseen=ALIKE)
def stale_output(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    for call, model in trial.calls.samples():
        sets = data_sets(trial, call, model)
        if type(sets[-1][0]) is Call:  # a checksum of the elements may be the same in another order
            turned = reordered(sets[-1][0])
            with suppress(NnhalError):  # it may break a rule, such as that of a box
                sets.append((turned, arrays_of(turned), trial.alone(model, arrays_of(turned))))
        prepared = trial.prepare(model)
        _, arrays, first = sets[0]
        trial.run(prepared, copies(arrays))
        for number, (each, arrays, wanted) in enumerate(sets[1:], 2):
            _own_results(trial, each, wanted, first, trial.run(prepared, copies(arrays)), f"run {number}")
            first = wanted
        seen += distinct(*(wanted for _, _, wanted in sets))
    return seen


@check(
    "same-memory",
    "A change of values in the memory of the last execution's inputs has an effect.",
    SECOND,
    unseen=ALIKE,
)
def same_memory(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    for call, model in trial.calls.samples():
        sets = data_sets(trial, call, model, 2)
        prepared = trial.prepare(model)
        memory = [x.copy() for x in sets[0][1]]
        trial.run(prepared, memory)
        for place, array in zip(memory, sets[1][1], strict=True):
            place[...] = array
        each, _, wanted = sets[1]
        _own_results(trial, each, wanted, sets[0][2], trial.run(prepared, memory), "run 2 in the same memory")
        seen += distinct(sets[0][2], wanted)
    return seen


def _own_results(trial: Trial, call: Call, wanted: Outputs, before: Outputs, actual: Outputs, what: str) -> None:
    """Raise RequirementNotMet if these are not the call's results, and note if the previous execution had them."""
    problem = trial.differs(call, wanted, actual)
    if problem and all(
        b is not None and a is not None and b.tobytes() == a.tobytes() for b, a in zip(before, actual, strict=True)
    ):
        trial.unmet(f"{what} equals the previous run with other inputs")
    if problem:
        trial.unmet(f"{what} differs from a model that runs once: {problem}")


@check("order", "Results do not depend on earlier executions.", SECOND, unseen=ALIKE)
def order(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    for call, model in trial.calls.samples():
        sets = data_sets(trial, call, model)
        prepared = trial.prepare(model)
        for number in (0, 1, 2, 3, 2, 0, 0, 1, 3):
            each, arrays, wanted = sets[number]
            trial.same(each, wanted, trial.run(prepared, copies(arrays)), "after other runs of the same prepared model")
        seen += distinct(*(wanted for _, _, wanted in sets))
    return seen


@check("deterministic", "The same inputs give the same results.")
def deterministic(trial: Trial) -> int:
    trial.calls.fixed()
    for call, model in trial.calls.samples():
        prepared = trial.prepare(model)
        first = [None if r is None else r.copy() for r in trial.run(prepared, copies(arrays_of(call)))]
        for number in range(2, 9):
            trial.same(
                call, first, trial.run(prepared, copies(arrays_of(call))), f"run {number} on the inputs of run 1"
            )
    return len(trial.calls.samples())


@check(
    "interleaved",
    "Prepared models with other constants and parameters do not affect each other.",
    SECOND,
    unseen="none of the supported calls has constants that change its results",
)
def interleaved(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    for call, model in trial.calls.samples():
        other = other_constants(call, trial.calls.rng)
        pair = [(call, model), (other, model_of(other))]
        wanted = []
        for c, m in pair:
            try:
                wanted.append(trial.alone(m, arrays_of(c)))
            except NnhalError:  # a valid failure
                break
        if len(wanted) < 2:
            continue
        prepared = [trial.prepare(m) for _, m in pair]
        for which in (0, 1, 0, 1, 1, 0, 1):
            c = pair[which][0]
            results = trial.run(prepared[which], copies(arrays_of(c)))
            trial.same(c, wanted[which], results, "alternating with another prepared model")
        trial.close(prepared[0])
        results = trial.run(prepared[1], copies(arrays_of(pair[1][0])))
        trial.same(pair[1][0], wanted[1], results, "after another prepared model was closed")
        seen += distinct(*wanted)
        trial.end()
    return seen


@check(
    "relaxed",
    "A relaxed model does not relax the models that are prepared before and after it.",
    SECOND,
    unseen="the driver supports no call with float32 in a relaxed model",
)
def relaxed(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    floats = [
        (call, model, trial.alone(model, arrays_of(call)))
        for call, model in trial.calls.samples()
        if any(operand.type == F32 for operand in model.main.operands)
    ]
    for call, model, wanted in floats:
        twin = replace(model, relaxed=True)
        if not trial.calls.verdict(twin).ok:
            continue
        before = trial.prepare(model)
        trial.run(trial.prepare(twin), copies(arrays_of(call)))
        for what, prepared in ("before", before), ("after", trial.prepare(model)):
            results = trial.run(prepared, copies(arrays_of(call)))
            trial.same(call, wanted, results, f"prepared {what} a relaxed model")
        trial.end()
        seen += 1
    return seen


@check(
    "intermediates",
    "An intermediate that two operations read is the same for both.",
    SECOND,
    unseen="no model in which two such operations read the result of a third is supported",
)
def intermediates(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    for call, _ in trial.calls.samples():
        model = _read_twice(call)
        if model is None or not all(verdict.ok for verdict in trial.calls.verdicts(model)):
            continue
        seen += 1
        one, other = trial.run(trial.prepare(model), copies(arrays_of(call)))
        trial.same(call, [one], [other], "the output of the second of two equal operations that read one intermediate")
    return seen


def _read_twice(call: Call) -> Model | None:
    """Return y = OP(x), and twice OP(y), if an input may be the operation's result; otherwise None."""
    place = call.returns_to()
    if place is None:
        return None
    out = call.outputs[0]
    b = ModelBuilder(f"{call.cell} read twice")
    indices, given, made = operands_of(call, b)
    b.operation(call.cell.op.code, indices, made)
    ends = []
    for _ in range(2):
        ends.append(b.operand(out.type, out.known, out.scale, out.zero_point))
        b.operation(call.cell.op.code, [*indices[:place], made[0], *indices[place + 1 :]], [ends[-1]])
    return b.finish(given, ends, extensions=b.extensions())


@check(
    "constants-pools",
    "Constants in several memory pools, at offsets, give the same results.",
    SECOND,
    unseen="no supported call has two constants",
)
def constants_pools(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    for call, model, pooled in pooled_samples(trial):
        wanted = trial.alone(model, arrays_of(call))
        results = trial.run(trial.prepare(pooled), copies(arrays_of(call)))
        trial.same(call, wanted, results, "with constants in several memory pools")
        seen += 1
    return seen


def pooled_samples(trial: Trial) -> Iterator[tuple[Call, Model, Model]]:
    """Yield samples of two constants or more, and their models with those in memory pools of different sizes.

    That with the most constants comes first.
    """
    for call, model in sorted(trial.calls.samples(), key=lambda pair: -pair[0].constants):
        pooled = with_pools(model)
        if pooled is not None and trial.calls.verdict(pooled).ok:
            yield call, model, pooled


# -------------------------------------------------------------------------------------------------------------- threads


@check(
    "threads",
    f"{THREADS} threads that run one prepared model at once get the results for their inputs.",
    SECOND,
    unseen=ALIKE,
)
def threads(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    for call, model in trial.calls.samples():
        sets = data_sets(trial, call, model)
        prepared = trial.prepare(model)
        results = at_once(trial, [(prepared, arrays) for _, arrays, _ in sets])
        wrong = [(place, r) for place, r in results if trial.differs(sets[place][0], sets[place][2], r)]
        if wrong:
            place, first = wrong[0]
            problem = trial.differs(sets[place][0], sets[place][2], first)
            trial.unmet(f"{len(wrong)} of {len(results)} runs of {THREADS} threads are wrong: {problem}")
        seen += distinct(*(wanted for _, _, wanted in sets))
    return seen


def at_once(trial: Trial, executions: Sequence[tuple[Prepared, list[Array]]]) -> list[tuple[int, Outputs]]:
    """Execute models on inputs in several threads; return the number and the results of each execution."""
    came: list[tuple[int, Outputs]] = []
    failed: list[BaseException] = []
    begin = threading.Barrier(THREADS)

    def work(number: int) -> None:
        begin.wait()
        try:
            for turn in range(EACH):
                place = (number + turn) % len(executions)
                prepared, arrays = executions[place]
                came.append((place, trial.run(prepared, copies(arrays))))
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(n,), name="nnhal-validate") for n in range(THREADS)]
    with switching_often():
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if failed:
        _raised_by_a_thread(trial, failed[0])
    return came


def _raised_by_a_thread(trial: Trial, error: BaseException) -> None:
    if not isinstance(error, NnhalError):
        raise error
    place = place_in(error.stack) or trial.place()
    raise RequirementNotMet(f"with {THREADS} threads: {type(error).__name__}: {error}", place) from error


@check(
    "trimmed",
    "A trimmed model gives the same results, and can be trimmed again.",
    SECOND,
    unseen="the prepared model is not trimmable",
    inside=True,
)
def trimmed(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    for call, model in trial.calls.samples():
        prepared = trial.prepare(model)
        if not prepared.trimmable:
            continue
        seen += 1
        wanted = [None if r is None else r.copy() for r in trial.run(prepared, copies(arrays_of(call)))]
        for pressed in (False, True, True):
            with trial.stages.enter("trim"):
                while not prepared.trim_now(pressed=pressed):  # the trimming of idle models may be running
                    time.sleep(PAUSE)
            told = "after it was trimmed" + " under memory pressure" * pressed
            trial.same(call, wanted, trial.run(prepared, copies(arrays_of(call))), told)
    return seen


# ------------------------------------------------------------------------------------------------------------ malformed


@check(
    "malformed-request",
    "A request without an input, or with one of another shape, harms no later one.",
    unseen="none of the supported calls has an input",
)
def malformed_request(trial: Trial) -> int:
    seen = 0
    for call, model in trial.calls.samples():
        wanted = trial.alone(model, arrays_of(call))
        prepared = trial.prepare(model)
        arrays = arrays_of(call)
        for number, array in enumerate(arrays):
            flat = array.reshape(-1)
            for bad in (None, flat[:0] if not array.ndim else array[:0], array.reshape(1, *array.shape), flat[:1]):
                _survives(trial, trial.request(prepared, [*arrays[:number], bad, *arrays[number + 1 :]]), prepared.run)
        results = trial.run(prepared, copies(arrays))
        trial.same(call, wanted, results, "after invalid requests")
        seen += len(arrays)
    return seen


def _survives(trial: Trial, request: Request, run: Run) -> None:
    with trial.stages.enter("run"), suppress(NnhalError):
        request.execute(run, UNLIMITED)


# ------------------------------------------------------------------------------------------------------- invalid values


class _LateArgument(NamedTuple):
    """A call that gets an argument at execution, its inputs, and those with a value that breaks a rule, with the rule."""

    call: Call
    name: str
    arrays: list[Array]
    broken: list[tuple[list[Array], int, str]]


@check(
    "invalid-values",
    "An execution with an argument that breaks a rule of the operation ends in an error, and harms no later one.",
    SECOND,
    unseen="no supported call has an argument at execution that changes its results and can break a rule",
)
def invalid_values(trial: Trial) -> int:
    seen = 0
    for late in _late_arguments(trial):
        model = model_of(late.call)
        wanted = trial.alone(model, late.arrays)
        prepared = trial.prepare(model)
        for wrong, value, rule in late.broken:
            results = trial.run(prepared, copies(late.arrays))
            trial.same(late.call, wanted, results, "after invalid values")
            _must_fail(trial, prepared, wrong, results, f"with {value} in {late.name}", rule)
        seen += len(late.broken)
    return seen


def _late_arguments(trial: Trial) -> Iterator[_LateArgument]:
    """Yield a supported call for each argument of 32-bit integers that changes results of the declared shapes.

    A driver need not read an argument if the shapes of inputs and outputs leave one value for it.
    """
    tries: Counter[str] = Counter()
    for call, _ in trial.calls.taken():
        if type(call) is not Call or call.open:
            continue
        for place, (argument, value) in enumerate(zip(call.arguments, call.inputs, strict=True)):
            if value is None or value.array.dtype != np.int32 or not value.array.size:
                continue
            if argument.name in NEED_NOT_CHECK or tries[argument.name] >= TRIES:
                continue
            tries[argument.name] += 1
            late = _late_argument(trial, replace(call, given=tuple(sorted({*call.given, place}))), place)
            if late is not None and trial.calls.verdict(model_of(late.call)).ok:
                tries[argument.name] = TRIES
                yield late


def _late_argument(trial: Trial, call: Call, place: int) -> _LateArgument | None:
    """Return the argument with other values of its last element; None if they show nothing."""
    model, arrays, at = model_of(call), arrays_of(call), call.given.index(place)
    last = int(arrays[at].reshape(-1)[-1])
    known, broken = [], []
    for value in dict.fromkeys((last, last - 1, last + 1, -1, 0, *INT32_ENDS)):
        changed = copies(arrays)
        changed[at].reshape(-1)[-1] = np.clip(value, *INT32_ENDS)
        try:
            known.append(trial.calls.wanted(model, changed))
        except OperationFailed as error:
            broken.append((changed, value, str(error)))
    shown = broken and broken[0][1] != last and (trial.calls.random or distinct(*known))
    return _LateArgument(call, call.arguments[place].name, arrays, broken) if shown else None


def _must_fail(trial: Trial, prepared: Prepared, wrong: Sequence[Array], before: Outputs, what: str, rule: str) -> None:
    try:
        results = trial.run(prepared, copies(wrong))
    except ContractBroken:
        raise
    except NnhalError:
        return
    alike = "the results of the execution before" if not distinct(before, results) else "results"
    trial.unmet(f"{what} gives {alike}, must fail: {rule}")
