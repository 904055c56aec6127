"""Calls some of whose parameters are given at run time: drawn, asked of a driver, and looked at where it takes them."""

from typing import Any

import numpy as np
import pytest

from nnhal.base.operands import is_tensor
from nnhal.conformance.differential import arrays_of, model_of, with_other_values
from nnhal.conformance.draw import Call, cells, draw
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Prepared, Verdict
from nnhal.model.validate import validate
from nnhal.ops.schema import F32
from tests.conformance.test_checks import looked, trial_of


def late(operation: str, seed: int = 0) -> Call:
    cell = next(c for c in cells([operation]) if (c.kind, c.values) == (F32, "ordinary"))
    return draw(cell, np.random.default_rng(seed), late=True)


@pytest.mark.parametrize("operation", ["ADD", "CONV_2D", "SOFTMAX", "RESIZE_BILINEAR", "LSTM"])
def test_a_parameter_at_least_is_an_input_of_the_model(operation: str) -> None:
    call = late(operation)
    model = model_of(call)
    scalars = [i for i in model.main.inputs if not is_tensor(model.main.operands[i].type)]
    assert call.late and scalars
    assert len(arrays_of(call)) == len(model.main.inputs)
    assert validate(model).subgraphs[0].operations[0].deferred


def test_what_is_drawn_without_is_not_late() -> None:
    cell = next(cells(["ADD"]))
    assert not any(draw(cell, np.random.default_rng(seed)).late for seed in range(9))


def test_another_set_of_inputs_has_another_parameter_of_which_no_shape_depends() -> None:
    call, rng = late("ADD"), np.random.default_rng(0)
    place = next(p for p in call.given if call.arguments[p].name == "activation")
    seen = set()
    for _ in range(40):
        other = with_other_values(call, rng)
        assert other.inputs[place].array != call.inputs[place].array  # type: ignore[union-attr]
        assert other.bound.shapes == call.bound.shapes
        assert other.bound.activation == other.inputs[place].array  # type: ignore[union-attr]
        seen.add(other.bound.activation)
        call = other
    assert len(seen) == 4  # type: ignore[arg-type]


def test_a_parameter_that_shapes_depend_on_stays() -> None:
    for seed in range(20):
        call = late("CONV_2D", seed)
        other = with_other_values(call, np.random.default_rng(seed))
        assert other.bound.shapes == call.bound.shapes
        assert [a.shape for a in arrays_of(other)] == [a.shape for a in arrays_of(call)]


class Eager(Prepared):
    """Parameters are those of the first execution."""

    def __init__(self, inner: Prepared, model: Any) -> None:
        self.inner = inner
        self.scalars = [n for n, i in enumerate(model.main.inputs) if not is_tensor(model.main.operands[i].type)]
        self.first: dict[int, Any] = {}

    def run(self, request: Any, control: Any) -> Any:
        arrays = list(request.inputs)
        for n in self.scalars:
            arrays[n] = self.first.setdefault(n, arrays[n].copy())
        inner = request.inside(arrays, None)
        inner.execute(self.inner.run, control)
        for n, result in enumerate(inner.results):
            request.write(n, result)


class EagerDevice(Reference):
    name = "eager"

    def prepare(self, model: Any, hints: Any) -> Any:
        return Eager(super().prepare(model, hints), model)


class Guessing(Reference):
    """A late activation is taken to be none."""

    name = "guessing"

    def prepare(self, model: Any, hints: Any) -> Any:
        prepared = Eager(super().prepare(model, hints), model)
        prepared.first = dict.fromkeys(prepared.scalars, np.zeros((), np.int32))
        return prepared


class Early(EagerDevice):
    """Takes no parameters that are given at run time."""

    def supports(self, model: Any) -> Any:
        return [Verdict(not a.deferred, "only what is known") for a in validate(model).subgraphs[0].operations]


def test_a_driver_that_keeps_the_first_parameters_is_found_by_its_second_execution() -> None:
    verdict, reason, _ = looked(EagerDevice(), "stale-output", "ADD")
    assert verdict == "failed" and reason.startswith("run 2 ")
    assert looked(Reference(), "stale-output", "ADD")[0] == "passed"


def test_a_driver_that_takes_a_parameter_for_its_default_has_wrong_values() -> None:
    verdict, reason, _ = looked(Guessing(), "values", "ADD")
    assert verdict == "failed" and "output 0 differs" in reason


def test_a_driver_that_says_no_to_late_parameters_is_not_asked() -> None:
    trial = trial_of(Early(), "ADD")
    assert not any(call.late for call, _ in trial.calls.many())
    assert looked(Early(), "stale-output", "ADD")[0] == "passed"


def test_more_calls_are_late_where_late_ones_were_taken() -> None:
    trial = trial_of(Reference(), "ADD")
    first = [call.late for call, _ in trial.calls.taken()]
    more = [call.late for call, _ in trial.calls.many()][len(first) :]
    assert sum(first) > 0 and sum(more) == 3 * sum(first)


def test_more_calls_are_the_same_whatever_check_asks_for_them() -> None:
    trial = trial_of(Reference(), "ADD")
    first, second = ([arrays_of(call) for call, _ in trial.calls.many()] for _ in range(2))
    for these, those in zip(first, second, strict=True):
        assert all(map(np.array_equal, these, those, [True] * len(these)))
