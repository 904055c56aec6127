"""Random graphs on a device, compared with the reference.

Cases:
- `single/OPERATION/TYPE/N`
- `long/OPERATION/TYPE/0`, with more elements than 16 bits count
- `broadcast/OPERATION/TYPE/N`, with equal sizes, where only argument N has all dimensions
- `hard/OPERATION/TYPE/0`, the calls that verify kernel variants (`proving.hard`)
- `wide/OPERATION/TYPE/0`, with more channels and longer sums than kernels have in a tile
- `fused/OPERATION/TYPE/0`, before and after operations that engines fuse with it
- `constants/N`, sums and products with constants that an engine must not join (`constants`)
- `flow/KIND/TYPE/N`, IF and WHILE whose variables depend on each other (`nnhal.conformance.flow_drawing`)
- `graph/SIZE/N`
- `views/TYPE/N`, operations on views of one result, which it must survive

`nnhal.conformance.graph_drawing` draws graphs of operations that the device supports. `nnhal.conformance.evaluation`
evaluates them and computes by how much a correct device may differ. `trials` has the ways in which each graph runs: as a
whole with several inputs one after another, with unaligned memory, from four threads at once, with half of its
operations on the CPU, and with control flow by the runtime. Drawn graphs have repeated operands, broadcasting on each
side, values with several readers, widths around those of vectors and tiles, states and control flow.

A failing graph is reduced to the fewest operations and smallest sizes. With `SuiteRun.report`, the graph is there as
`random/NAME/model.nnhal` before it runs, so that it also remains of a crash; a failure adds the reduced model, its
inputs, a picture, its text and a Python program.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.codes import type_name
from nnhal.base.errors import DeadObject, InvalidArgument, NnhalError
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.conformance.control import CONTROL
from nnhal.conformance.evaluation import Evaluation
from nnhal.conformance.flow_drawing import JOINED
from nnhal.conformance.flow_drawing import KINDS as FLOWS
from nnhal.conformance.graph_drawing import TYPES, DrawnGraph, GraphDrawing, by_type, ordinary, refusal, refusal_inside
from nnhal.conformance.proving.comparison import Wrong, compared
from nnhal.conformance.proving.hard import BOUNDED, FAMILIES, hard_calls
from nnhal.conformance.proving.wide import WIDE, wide_calls
from nnhal.conformance.reduction import Reduction, ReductionCandidate, names_of, python_of, types_of
from nnhal.conformance.suites.process_state import kept_as_it_was
from nnhal.conformance.suites.random.constants import KINDS, difference, drawn, inputs, model_of
from nnhal.conformance.suites.random.trials import WAYS, Subjects, failure, rolled
from nnhal.conformance.suites.suite import (
    PREPARING,
    Case,
    CaseFailed,
    Context,
    NotApplicable,
    NotSupported,
    Suite,
    SuiteRun,
)
from nnhal.conformance.verdict import REDUCED_TO
from nnhal.model.draw import svg
from nnhal.model.file import write_model
from nnhal.model.graph import Model
from nnhal.model.outline import outline
from nnhal.model.text import text
from nnhal.ops import OPS
from nnhal.ops.common import broadcast_shape
from nnhal.ops.schema import F32, Q8, Q8S, T

HARD = FAMILIES.keys() | BOUNDED.keys()
WIDE_TYPES = F32, Q8, Q8S
FUSED_TYPES = F32, Q8
LONG = {name for name, op in OPS.items() if (x := op.forms[0][0]).spec is T and not (x.dims or x.many or x.drawn)}
HARD_CALLS = 16  # of each operation and type
DRAWS = 2  # graphs of each operation and type
GRAPHS = {2: 10, 3: 10, 5: 10, 8: 8, 13: 6, 21: 5, 34: 4, 55: 3, 100: 2, 200: 1}  # numbers of graphs by operations
OTHERS = 8  # tries for other inputs
SEQUENCES = 9  # with constants
VIEWED = 1  # graphs of views of each type
FLOW_CASES = 1  # graphs of each kind of control flow and type
LARGE_SHARE = 0.4  # of these graphs have variables of more than
LARGE = 1 << 16  # bytes, from which the runtime carries variables of a loop in memory that it keeps
FLOW = 0.04  # the share of control flow
MOST_SINGLE = 300  # tries for a single operation
SOFT = 20  # tries after which a single operation may have any results
MOST_CANDIDATES, MOST_SECONDS = 300, 20.0  # of a reduction
REFUSALS = 12  # refused draws of a single operation after which the device counts as not supporting it
HINTS = {
    "threads": "executions share memory",
    "unaligned": "memory of the caller must not be aligned",
    "interpreted": "a subgraph alone, or the runtime's loop?",
    "partitioned": "another partition's results, or the driver's parts of a model",
}


class Random(Suite):
    """The suite."""

    name = "random"
    bundle = 8

    def cases(self, run: SuiteRun) -> Iterator[Case]:
        draws = max(1, round(DRAWS * run.scale))
        cells = dict.fromkeys((cell.op.name, cell.kind) for cell in ordinary())
        broadcasting = {cell.op.name for cell in ordinary() if cell.op.infer is broadcast_shape}
        yield from self._of_several_operations(run)
        for name, kind in cells:
            if name in HARD:
                yield self._case("hard", name, kind, 0)
            if name in WIDE and kind in WIDE_TYPES:
                yield self._case("wide", name, kind, 0)
        for name, kind in [*cells, *((name, kind) for name in CONTROL for kind in TYPES)]:
            for number in range(draws):
                yield self._case("single", name, kind, number)
            if kind in FUSED_TYPES and name not in CONTROL:
                yield self._case("fused", name, kind, 0)
            if name in LONG and kind in (F32, Q8):
                yield self._case("long", name, kind, 0)
            for n in range(2 * (name in broadcasting)):
                yield self._case("broadcast", name, kind, n)

    def _case(self, area: str, what: str, kind: int, number: int, operation: str = "") -> Case:
        """Make a case of an operand type. what: the operation, or what its name has in place of one."""
        name = f"{area}/{what}/{_label(kind)}/{number}"
        return Case(self.name, name, operation or what, type_name(kind), (what, int(kind), number, area))

    def _of_several_operations(self, run: SuiteRun) -> Iterator[Case]:
        for size, count in GRAPHS.items():
            for number in range(max(1, round(count * run.scale))):
                yield Case(self.name, f"graph/{size}/{number}", arguments=(size, number))
        for number in range(max(len(KINDS), round(SEQUENCES * run.scale))):
            yield Case(self.name, f"constants/{number}", type=type_name(F32), arguments=(0, number))
        for flow, name in FLOWS.items():
            for kind in TYPES if flow != "growing" else [kind for kind in TYPES if kind in JOINED]:
                for number in range(max(1, round(FLOW_CASES * run.scale))):
                    yield self._case("flow", flow, kind, number, name)
        for viewed in TYPES:
            for number in range(max(1, round(VIEWED * run.scale))):
                name = f"views/{_label(viewed)}/{number}"
                yield Case(self.name, name, type=type_name(viewed), arguments=(0, int(viewed)))

    def run(self, case: Case, context: Context) -> Mapping[str, Any] | None:
        context.at(PREPARING)
        if case.operation and case.arguments[3] in ("hard", "wide"):
            with kept_as_it_was(context.device):
                return _judge_hard_calls(case, context)
        rng = np.random.default_rng([context.run.seed, *np.frombuffer(case.name.encode(), np.uint8)])
        if case.name.startswith("constants/"):
            with kept_as_it_was(context.device):
                return _judge_sequence(case, context, rng)
        refusals: list[str] = []
        flow = bool(case.operation) and case.arguments[3] == "flow"

        def takes(model: Model) -> bool:
            context.at("supports")
            reason = refusal(context.device, model)
            if reason and flow and model.referenced:
                reason = refusal_inside(context.device, model)
            context.at(PREPARING)
            refusals.extend([reason] if reason else [])
            return not reason

        drawing = GraphDrawing(rng, takes, case.name, "long_sums" in context.device.relaxations)
        fused = bool(case.operation) and case.arguments[3] == "fused"
        if flow:
            _draw_flow(drawing, case, refusals)
        elif fused:
            _draw_fused(drawing, case, refusals)
        elif case.operation:
            _draw_single(drawing, case, refusals)
        elif case.type:
            _draw_views(drawing, case.arguments[1], refusals)
        else:
            _draw_graph(drawing, case.arguments[0], refusals)
        whole = not (fused or flow) and (bool(case.type) or bool(rng.random() < 0.3))
        graph = drawing.finish(whole, not case.operation)
        with kept_as_it_was(context.device):
            return _JudgedGraph(case, context, graph, rng).run()


SUITE = Random()


def _draw_single(drawing: GraphDrawing, case: Case, refusals: Sequence[str]) -> None:
    name, kind, number, how = case.arguments
    long, full_rank = how == "long", number if how == "broadcast" else None
    if name in CONTROL:
        drawing.first_inputs([kind])
        made = drawing.try_flow(name)
    else:
        cells = [cell for cell in ordinary() if (cell.op.name, cell.kind) == (name, kind)]
        made = False
        for turn in range(MOST_SINGLE):
            cell = cells[(number + turn) % len(cells)]
            wide = long or (number % 2 == 1 and turn < SOFT)
            made = drawing.try_single(cell, soft=turn >= SOFT, wide=wide, long=long, full_rank=full_rank)
            if made or len(refusals) >= REFUSALS:
                break
    if not made:
        if refusals:
            raise NotSupported(refusals[0])
        raise NotApplicable(f"none of {MOST_SINGLE} drawn calls is valid")


def _judge_hard_calls(case: Case, context: Context) -> Mapping[str, Any]:
    """Run a share of the calls on which inexact kernels fail; CaseFailed for the first wrong one."""

    def at(stage: str) -> None:
        context.at(PREPARING if stage == "reference" else stage)

    name, kind, _, how = case.arguments
    wrong, ran, refused = Wrong(), 0, ""
    calls, step = list((hard_calls if how == "hard" else wide_calls)(name, kind, context.run.seed)), 1
    if how == "hard":
        step = max(1, -(-len(calls) // max(1, round(HARD_CALLS * context.run.scale))))
        step += step % 3 == 0  # windows and shapes alternate by threes
    for call in calls[::step]:
        why = compared(context.device, call, wrong, at)
        context.at(PREPARING)
        refused, ran = refused or why, ran + (not why)
    if wrong.problem:
        raise CaseFailed(wrong.problem, "sums that saturate, or elements beside whole vectors or tiles?")
    if not ran:
        raise NotSupported(refused or "no call can be made")
    return {"calls": ran}


def _judge_sequence(case: Case, context: Context, rng: np.random.Generator) -> Mapping[str, Any]:
    sequence = drawn(rng, case.arguments[1])
    problem = difference(Subjects(context.device, model_of(sequence), inputs(rng), context.at), sequence)
    if problem:
        raise CaseFailed(problem, "one constant in place of several?")
    return {"operations": len(sequence)}


def _draw_graph(drawing: GraphDrawing, size: int, refusals: list[str]) -> None:
    if not drawing.fill(size, flow=FLOW):
        raise NotSupported(
            f"only {drawing.count} of {size} operations could be drawn; refused: {refusals[0] if refusals else 'none'}"
        )


def _draw_views(drawing: GraphDrawing, kind: int, refusals: list[str]) -> None:
    if not drawing.fill_views(kind):
        raise NotSupported(refusals[0] if refusals else f"no operation on a view of {type_name(kind)} could be drawn")


def _draw_fused(drawing: GraphDrawing, case: Case, refusals: Sequence[str]) -> None:
    name, kind, *_ = case.arguments
    if not drawing.fill_fused([cell for cell in by_type(kind) if cell.op.name == name]):
        if refusals:
            raise NotSupported(refusals[0])
        raise NotApplicable(f"no pair of {name} and another operation could be drawn")


def _draw_flow(drawing: GraphDrawing, case: Case, refusals: Sequence[str]) -> None:
    flow, kind, *_ = case.arguments
    drawing.first_inputs([kind], LARGE if drawing.rng.random() < LARGE_SHARE else 0)
    if drawing.rng.random() < 0.5:
        drawing.grow()
    if not drawing.try_dependent(flow):
        if refusals:
            raise NotSupported(refusals[-1])
        raise NotApplicable(f"no {flow} of {case.type} could be drawn")
    if drawing.rng.random() < 0.5:
        drawing.grow()


def _others(graph: DrawnGraph, rng: np.random.Generator) -> Sequence[Array]:
    """Draw other inputs with finite results, since kernels treat NaN in several ways, else the rows in another order."""
    for _ in range(OTHERS):
        drawn = graph.others(rng)
        try:
            results = Evaluation(graph.model).graph(0, drawn)
        except NnhalError:  # the reference rejects them
            return drawn
        if all(np.isfinite(x).all() for x in results if x.dtype.kind in "fc"):
            return drawn
    return rolled(graph.inputs)


class _JudgedGraph:
    """One graph on the device, in all ways."""

    def __init__(self, case: Case, context: Context, graph: DrawnGraph, rng: np.random.Generator) -> None:
        self._case, self._context, self._graph = case, context, graph
        self._seed = int(rng.integers(1 << 30))
        self._sets = [graph.inputs, _others(graph, rng)]
        name = re.sub(r"[^\w.-]+", "-", case.name)
        self._folder = Path(context.run.report, "random", name) if context.run.report else None

    def run(self) -> Mapping[str, Any]:
        self._keep()
        model, flow = self._graph.model, bool(self._graph.model.referenced)
        self._context.types.begin(*types_of(model))
        ways = [way for way in WAYS if way != "interpreted" or flow]
        if self._case.operation:  # a single operation has no parts, and few intermediates
            ways = ["whole", "unaligned", *["interpreted"] * flow]
        if flow and refusal(self._context.device, model):
            ways = ["interpreted"]
        for way in ways:
            problem, kind = self._fails(way, self._graph.model, self._sets)
            if problem:
                self._report(way, problem, kind)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return {"operations": len(self._graph.model.main.operations), "ways": ways}

    def _fails(self, way: str, model: Model, sets: Sequence[Sequence[Array]]) -> tuple[str, str]:
        at = self._context.at
        try:
            return failure(way, Subjects(self._context.device, model, sets, at, self._seed))
        finally:
            at(PREPARING)

    def _report(self, way: str, problem: str, kind: str) -> None:
        """Reduce the failing graph, keep it, and raise CaseFailed."""
        if kind == DeadObject.__name__:
            raise DeadObject(problem)
        best, found = self._reduced(way, kind), {}
        names = " ".join(names_of(best.model))
        if self._folder is not None:
            found = {"files": str(self._folder)}
            self._keep(best, way)
        count = len(best.model.main.operations)
        what = f"{kind}: {problem}" if kind else problem
        reason = f"{what}{REDUCED_TO}{count} operation{'s' * (count != 1)}: {names[:200]} {_shapes(best.model)}"
        alone = {"operation": _only(names_of(best.model)), "type": _only(types_of(best.model))}
        raise CaseFailed(reason, HINTS.get(way, ""), {"operations": count, "way": way, **found}, **alone)

    def _reduced(self, way: str, kind: str) -> ReductionCandidate:
        def fails(candidate: ReductionCandidate) -> bool:
            assert candidate.inputs is not None
            try:
                sets = [candidate.inputs, rolled(candidate.inputs)]
                problem, other = self._fails(way, candidate.model, sets)
            except (NotSupported, NnhalError):
                return False
            return bool(problem) and other == kind

        def values(candidate: ReductionCandidate) -> Mapping[int, Array]:
            run = Evaluation(candidate.model)
            run.graph(0, candidate.inputs or ())
            return run.values

        whole = self._graph.model  # the program that repeats the failure executes once: with inputs that fail alone
        alone = (inputs for inputs in self._sets if self._fails(way, whole, [inputs])[0])
        first = ReductionCandidate(whole, tuple(next(alone, self._sets[0])))
        stateless = replace(first, model=replace(first.model, states=()))
        if first.model.states and fails(stateless):
            first = stateless
        return Reduction(fails, values, MOST_CANDIDATES, MOST_SECONDS).reduce(first)

    def _keep(self, best: ReductionCandidate | None = None, way: str = "") -> None:
        """Write the graph as it was drawn, or the reduced one with all that repeats its failure in one way."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if best is None:
                write_model(self._graph.model, self._folder / "model.nnhal")
                return
            write_model(best.model, self._folder / "reduced.nnhal")
            arrays = {f"input_{n}": x for n, x in enumerate(best.inputs or ())}
            np.savez(self._folder / "inputs.npz", **arrays)  # type: ignore[arg-type]
            run = self._context.run
            seed = self._seed if way == "interpreted" else None
            path = Path(run.named)
            driver = str(path.absolute()) if run.drivers and path.exists() else run.named
            (self._folder / "repro.py").write_text(
                python_of(best.model, "reduced.nnhal", "inputs.npz", driver, seed), encoding="utf-8"
            )
            (self._folder / "model.txt").write_text(text(best.model), encoding="utf-8")
            (self._folder / "model.svg").write_text(svg(outline(best.model)), encoding="utf-8")
        except OSError as error:
            raise InvalidArgument(f"report {self._folder}: {error.strerror}, must be a writable folder") from None


def _only(names: Iterable[str]) -> str:
    """Return the name that all of several are, "" if they differ."""
    found = set(names)
    return found.pop() if len(found) == 1 else ""


def _label(kind: int) -> str:
    """Return an operand type as names of cases have it."""
    return type_name(kind).removeprefix("TENSOR_")


def _shapes(model: Model) -> str:
    operands = model.main.operands
    return "on " + ", ".join(f"{_label(operands[i].type)}{list(operands[i].dimensions)}" for i in model.main.inputs)
