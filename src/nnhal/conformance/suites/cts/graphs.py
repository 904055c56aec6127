"""Drawn graphs of several operations, compiled for the device, and what their results must be."""

from collections import Counter
from collections.abc import Sequence

import nnhal
from nnhal.base.codes import type_name
from nnhal.base.errors import OperationFailed
from nnhal.base.operands import Array, fixed
from nnhal.conformance.evaluation import Evaluated, evaluate
from nnhal.conformance.graph_drawing import DrawnGraph, GraphDrawing, Takes, refusal, refused_by
from nnhal.conformance.reduction import names_of
from nnhal.conformance.suites.cts.area import AreaTrial
from nnhal.conformance.suites.suite import CaseFailed, NotApplicable, NotSupported
from nnhal.model.graph import Model
from nnhal.model.validate import validate

MOST = 24  # operations of a graph
DRAWS = 12  # graphs until the device supports one
OTHERS = 8  # draws of other inputs, until the reference accepts them
ANY = 0.3  # the share of operations in mixed graphs that the device may refuse


class TrialGraph:
    """A drawn graph. Its results are computed by `nnhal.conformance.evaluation`, once for each set of inputs."""

    def __init__(self, graph: DrawnGraph, trial: AreaTrial) -> None:
        self.model = graph.model
        self._graph, self._rng, self._types = graph, trial.rng, trial.types
        self._in_a_row = "long_sums" in trial.device.relaxations
        self._known: dict[bytes, Evaluated] = {}

    def inputs(self) -> list[Array]:
        """Return copies of the drawn inputs."""
        return [x.copy() for x in self._graph.inputs]

    def other_inputs(self) -> list[Array]:
        """Draw other inputs, which the reference accepts."""
        for _ in range(OTHERS):
            inputs = self._graph.others(self._rng)
            try:
                self.expect(inputs)
            except OperationFailed:
                continue
            return inputs
        return self.inputs()

    def expect(self, inputs: Sequence[Array]) -> Evaluated:
        """Return the right results, and by how much each may differ."""
        key = b"".join(x.tobytes() for x in inputs)
        if key not in self._known:
            self._known[key] = evaluate(self.model, inputs, in_a_row=self._in_a_row)
        return self._known[key]

    def check(self, inputs: Sequence[Array], actual: Sequence[Array], where: str, hint: str = "") -> None:
        """Raise CaseFailed unless results are right."""
        wanted = self.expect(inputs)
        if len(actual) != len(wanted.outputs):
            number, found = 0, f"results are {len(actual)} arrays, must be {len(wanted.outputs)}"
        else:
            differ = ((n, wanted.difference(n, x)) for n, x in enumerate(actual))
            number, found = next((each for each in differ if each[1]), (0, ""))
        if found:
            self._types.at(type_name(self.model.main.operands[self.model.main.outputs[number]].type))
            raise CaseFailed(f"{where}: {found}; graph: {', '.join(names_of(self.model))}", hint)


def own_graph(trial: AreaTrial, count: int | None = None) -> tuple[TrialGraph, nnhal.Compiled]:
    """Return a graph that the device supports whole, compiled; NotSupported if it rejects all drawn ones."""
    reasons: list[str] = []

    def takes(model: Model) -> bool:
        return _has_fixed_outputs(model) and not _refusal(trial, model, reasons)

    for n in range(DRAWS):
        size = count or int(trial.rng.integers(2, MOST))
        graph = _drawn(trial, max(2, size >> n // 3), takes, refused_by(trial.device))
        if graph is None:
            continue
        try:
            return graph, trial.compile(graph.model, fallback="forbid")
        except nnhal.UnsupportedModel as why:
            reasons.append(str(why))
            trial.types.drop()
            trial.idle()
    raise NotSupported(reasons[-1] if reasons else "no graph fits")


def mixed_graph(trial: AreaTrial) -> TrialGraph:
    """Return a graph of any operations, those of the device more often."""

    def takes(model: Model) -> bool:
        return _has_fixed_outputs(model) and (trial.rng.random() < ANY or not _refusal(trial, model, []))

    for _ in range(DRAWS):
        graph = _drawn(trial, int(trial.rng.integers(3, MOST)), takes, None)
        if graph is not None:
            return graph
    raise NotApplicable("no operation fits the drawn inputs")


def _drawn(trial: AreaTrial, size: int, takes: Takes, refused: Counter[str] | None) -> TrialGraph | None:
    in_a_row = "long_sums" in trial.device.relaxations
    drawing = GraphDrawing(trial.rng, takes, "drawn", in_a_row, refused)
    drawing.fill(size)
    return TrialGraph(drawing.finish(False, False), trial) if drawing.count else None


def _refusal(trial: AreaTrial, model: Model, reasons: list[str]) -> str:
    with trial.at("supports"):
        reason = refusal(trial.device, model)
    reasons.extend([reason] if reason else [])
    return reason


def _has_fixed_outputs(model: Model) -> bool:
    """Whether the shapes of all outputs are known before an execution, as a fenced one requires."""
    values = validate(model).subgraphs[0].values
    return all(fixed(values[i].shape) is not None for i in model.main.outputs)  # type: ignore[union-attr]  # has a value
