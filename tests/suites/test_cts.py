"""Suite `cts`: the reference passes a share of it, and each planted fault is caught by the area that looks at it."""

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType, OperationType
from nnhal.base.errors import OperationFailed
from nnhal.base.operands import Array
from nnhal.conformance.suites.cts import SUITE
from nnhal.conformance.suites.cts.graphs import KINDS, drawn
from nnhal.conformance.suites.cts.neighbours import PREPARING, RUNNING, FailsToRun, faulty
from nnhal.conformance.suites.run import run_suite
from nnhal.conformance.suites.suite import CaseFailed, Context, NotApplicable, NotSupported, SuiteRun
from nnhal.driver import (
    CONSTANTS,
    Activation,
    CacheContent,
    CacheFiles,
    Capabilities,
    Control,
    Device,
    Hints,
    Model,
    Prepared,
    Request,
    Timing,
    Verdict,
    validate,
)
from nnhal.runtime import discovery
from tests.models import make_model

RUN = SuiteRun()
CASES = {case.name: case for case in SUITE.cases(RUN)}


# -------------------------------------------------------------------------------------------------------- the driver


def connected(x: Array, weights: Array, bias: Array) -> Array:
    return np.asarray(x @ weights.T + bias, np.float32)


KERNELS: dict[int, Callable[..., Array]] = {
    OperationType.ADD: np.add,
    OperationType.SUB: np.subtract,
    OperationType.MUL: np.multiply,
    OperationType.RELU: lambda x: np.maximum(x, np.float32(0)),
    OperationType.FULLY_CONNECTED: connected,
}


class ComputedGraph(Prepared):
    """A prepared model of the healthy driver; faults change one of its methods."""

    def __init__(self, model: Model) -> None:
        self.main, self.scratch = model.main, [np.empty(0)]
        self.constants = {i: model.constant(o) for i, o in enumerate(model.main.operands) if o.lifetime in CONSTANTS}

    def kernel(self, code: int, *tensors: Array) -> Array:
        return KERNELS[code](*tensors)

    def computed(self, inputs: Sequence[Any], control: Control) -> list[Array]:
        arrays = self.constants | dict(zip(self.main.inputs, inputs, strict=True))
        for operation in self.main.operations:
            control.check()
            tensors = [arrays[i] for i in operation.inputs if arrays[i].ndim]
            arrays[operation.outputs[0]] = self.kernel(operation.type, *tensors)
            self.read(operation.inputs, arrays)
        return [arrays[index] for index in self.main.outputs]

    def read(self, operands: Sequence[int], arrays: dict[int, Array]) -> None:
        """An operation has read these."""

    def run(self, request: Request, control: Control) -> Timing | None:
        for place, array in enumerate(self.computed(request.inputs, control)):
            request.write(place, array)
        return None


class Healthy(Device):
    name = "planted"
    graph: type[ComputedGraph] = ComputedGraph

    def supports(self, model: Model) -> list[Verdict]:
        return [self.judge(a) for a in validate(model).subgraphs[0].operations]

    def judge(self, a: Any) -> Verdict:
        plain = a is not None and a.op.code in KERNELS and a.T == OperandType.TENSOR_FLOAT32
        ok = plain and a.__dict__.get("activation", Activation.NONE) == Activation.NONE
        return Verdict(bool(ok and (a.op.code != OperationType.FULLY_CONNECTED or a.inputs[0].rank == 2)), "no kernel")

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return self.graph(model)


# ------------------------------------------------------------------------------------------------------------ faults


class SharedArena(ComputedGraph):
    """Executions at once share their results' memory: each writes what the last one computed."""

    beside = 0

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.changed = threading.Condition()

    def run(self, request: Request, control: Control) -> Timing | None:
        made = self.computed(request.inputs, control)
        with self.changed:
            self.scratch, self.beside = made, self.beside + 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.beside > 1, 0.002)  # another execution, if there is one
            for place, array in enumerate(self.scratch):
                request.write(place, array)
            self.beside -= 1
        return None


class GivesAwayEarly(ComputedGraph):
    """A memory planner gives an intermediate away after its first reader."""

    def read(self, operands: Sequence[int], arrays: dict[int, Array]) -> None:
        ends = {*self.main.inputs, *self.main.outputs, *self.constants}
        for i in operands:
            if i not in ends:
                arrays[i] = np.zeros_like(arrays[i])


class Repeated(ComputedGraph):
    """Repeated operands are read once."""

    def kernel(self, code: int, *tensors: Array) -> Array:
        if len(tensors) == 2 and tensors[0] is tensors[1] and code == OperationType.ADD:
            return tensors[0].copy()
        return super().kernel(code, *tensors)


class Tails(ComputedGraph):
    """Elements beyond the first 64 of a row are not computed."""

    def kernel(self, code: int, *tensors: Array) -> Array:
        y = np.array(super().kernel(code, *tensors))
        y[..., 64:] = 0
        return y


class Aligned(ComputedGraph):
    """A vector instruction reads from the next lower address that is a multiple of 16."""

    def computed(self, inputs: Sequence[Any], control: Control) -> list[Array]:
        off = [x.__array_interface__["data"][0] % 16 // 4 for x in inputs]
        return super().computed([np.roll(x, n) if n else x for x, n in zip(inputs, off, strict=True)], control)


class FirstShape(ComputedGraph):
    """Shapes are those of the first execution."""

    shape: tuple[int, ...] = ()

    def computed(self, inputs: Sequence[Any], control: Control) -> list[Array]:
        made = super().computed(inputs, control)
        self.shape = self.shape or made[0].shape
        return [np.resize(made[0], self.shape), *made[1:]]


class FailsAgain(ComputedGraph):
    """The second execution fails."""

    runs = 0

    def run(self, request: Request, control: Control) -> Timing | None:
        self.runs += 1
        if self.runs == 2:
            raise OperationFailed("no reason")
        return super().run(request, control)


class Stale(ComputedGraph):
    """Inputs in shared memory are read at their first execution only."""

    kept: dict[int, Array] = {}

    def computed(self, inputs: Sequence[Any], control: Control) -> list[Array]:
        addresses = [x.__array_interface__["data"][0] for x in inputs]
        self.kept = {a: self.kept.get(a, x.copy()) for a, x in zip(addresses, inputs, strict=True)}
        return super().computed(
            [self.kept[a].reshape(x.shape) for a, x in zip(addresses, inputs, strict=True)], control
        )


class Slow(ComputedGraph):
    """Times are in picoseconds."""

    def run(self, request: Request, control: Control) -> Timing | None:
        super().run(request, control)
        return Timing(10**12, 10**12) if control.measure else None


class NotPrepared(Healthy):
    """MUL is supported, but does not compile."""

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        if any(o.type == OperationType.MUL for o in model.main.operations):
            raise OperationFailed("no kernel for MUL")
        return super().prepare(model, hints)


class Moody(Healthy):
    """Verdicts and performance change."""

    asked = 0
    seen: Sequence[Model] = ()

    def supports(self, model: Model) -> list[Verdict]:
        known, self.seen = model in self.seen, [*self.seen, model]
        return [Verdict(each.ok and not known, "not now") for each in super().supports(model)]

    def capabilities(self) -> Capabilities:
        self.asked += 1
        return Capabilities.uniform(1.0 + self.asked)


class Caching(Healthy):
    """Saves the constants of a model's operations; restores those that the last model in this process had."""

    last: Any = None

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(0, 1)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        made = Saved(model)
        Caching.last = made
        return made

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        made = Saved.__new__(Saved)
        made.__dict__.update({k: v for k, v in vars(Caching.last).items() if not k.startswith("_")})
        return made


class LosesEntries(Caching):
    """Restores nothing."""

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        raise OperationFailed("no reader of this version")


class Saved(ComputedGraph):
    def save(self, files: CacheContent) -> bool:
        files.data[0]["nothing"] = b"of use"
        return True


# ------------------------------------------------------------------------------------------------------------- tests


def outcome(name: str, device: Device) -> str:
    """The reason why a case fails on a device; "" if it passes, "-" if it cannot be judged."""
    try:
        SUITE.run(CASES[name], Context(device, RUN, lambda stage: None))
    except (NotSupported, NotApplicable):
        return "-"
    except (CaseFailed, nnhal.NnhalError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def of(graph: type[ComputedGraph]) -> Device:
    return type(graph.__name__, (Healthy,), {"graph": graph})()


CAUGHT = [
    (lambda: of(SharedArena), [f"threads/graph/{n}" for n in range(4)], "beside 3 others"),
    (lambda: of(GivesAwayEarly), [f"graph/whole/{n}" for n in range(12)], "differs"),
    (lambda: of(Repeated), [f"graph/whole/{n}" for n in range(12)], "differs"),
    (lambda: of(Tails), [f"graph/whole/{n}" for n in range(12)], "differs"),
    (lambda: of(Aligned), ["memory/unaligned/ADD"], "inputs at offset"),
    (lambda: of(FirstShape), ["shapes/changing/ADD"], "shape of the output|is float32|must be"),
    (lambda: of(FailsAgain), ["selection/only/ADD/TENSOR_FLOAT32"], "no reason"),
    (
        lambda: of(FailsAgain),
        [f"partition/beside-faulty/{way}/0" for way in ("run-fails", "run-raises")],
        "fell back",
    ),
    (lambda: of(Stale), ["memory/bound/ADD"], "changed contents"),
    (lambda: of(Slow), ["measure/times/ADD"], "must be at most"),
    (NotPrepared, ["selection/only/MUL/TENSOR_FLOAT32"], "no kernel for MUL"),
    (Moody, ["introspection/performance"], "after a compilation|performance is"),
    (Moody, ["introspection/verdicts/ADD"], "changes its verdict"),
    (LosesEntries, ["cache/hit/ADD"], "must be a hit"),
    (Caching, ["cache/other-token/ADD"], "other token|first token"),
]


@pytest.mark.parametrize(("make", "names", "text"), CAUGHT)
def test_a_planted_fault_is_caught_and_the_same_cases_pass_without_it(
    make: Callable[[], Device], names: list[str], text: str
) -> None:
    device, healthy, reasons = make(), Healthy(), []
    for name in names:
        reasons.append(outcome(name, device))
        if re.search(text, reasons[-1]):
            assert outcome(name, healthy) in ("", "-")
            return
    raise AssertionError(reasons)


def test_the_reference_passes_a_share_of_all_areas() -> None:
    areas = {case.arguments[0] for case in CASES.values()}
    some = {case.arguments[0]: name for name, case in CASES.items() if "/ADD" in name or name.endswith(("/0", "/1"))}
    left = areas - some.keys()
    some |= {CASES[name].arguments[0]: name for name in CASES if CASES[name].arguments[0] in left}
    assert some.keys() == areas
    reasons = {name: outcome(name, discovery.cpu()) for name in some.values()}
    assert set(reasons.values()) <= {"", "-"}, reasons
    assert len([reason for reason in reasons.values() if reason == ""]) > len(areas) * 3 // 4


def test_the_processes_run_the_suite_and_end_with_the_device() -> None:
    run = SuiteRun(pattern="^memory/.*/RELU$|^introspection/identity$")
    found = [outcome for progress in run_suite("cts", run, 1) for outcome in progress.outcomes]
    assert len(found) == 12 and {each.verdict for each in found} == {"passed"}
    assert {each.operation for each in found} == {"", "RELU"}


def test_names_are_unique_and_the_same_for_the_same_run() -> None:
    first, second = (list(SUITE.cases(RUN)) for _ in range(2))
    assert first == second and len(CASES) == len(first)
    assert len(list(SUITE.cases(SuiteRun(scale=2)))) > len(first)


def test_the_results_of_a_graph_are_those_that_the_reference_computes() -> None:
    kinds = set()
    for seed in range(12):
        graph = drawn(np.random.default_rng([3, seed]), 12, sorted(KINDS))
        assert graph is not None
        kinds |= {node.kind for node in graph.nodes}
        with nnhal.compile(graph.model(), devices=discovery.cpu()) as compiled:
            made = compiled(*graph.inputs())
        results = list(made) if isinstance(made, tuple) else [made]
        assert graph.problem(graph.inputs(), results) == ""
        one = next(n for n, y in enumerate(results) if y.size)
        assert graph.problem(graph.inputs(), [y + y.dtype.type(3) if n == one else y for n, y in enumerate(results)])
        assert graph.problem(graph.inputs(), [*results, results[0]])
    assert len(kinds) > 25


@pytest.mark.parametrize("fault", [*PREPARING, *RUNNING])
def test_a_faulty_neighbour_fails_an_application_that_forbids_fallback(fault: str) -> None:
    model = make_model(lambda b, x: b.add(x, x), [2, 3])
    data = np.ones((2, 3), np.float32)

    def twice() -> None:
        with nnhal.compile(model, devices=faulty(discovery.cpu(), "faulty", fault), fallback="forbid") as compiled:
            assert (compiled(data) == 2).all() and (compiled(data) == 2).all()

    if fault == "returns-another-type":
        twice()
        return
    with pytest.raises(nnhal.NnhalError, match="faulty"):
        twice()


def test_a_case_says_which_error_a_call_must_raise() -> None:
    class Late(Healthy):
        """Never looks at a deadline that has passed: the runtime does."""

        def prepare(self, model: Model, hints: Hints) -> Prepared:
            return FailsToRun(discovery.cpu(), "other", "run-fails").prepare(model, hints)

    assert "the engine fails" in outcome("deadline/execution/ADD", Late())
