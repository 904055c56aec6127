"""The iterations of a loop that are known before it runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import Lifetime
from nnhal.base.errors import ContractBroken
from nnhal.base.memory import Layout as Pixels
from nnhal.base.memory import Memory
from nnhal.base.records import replace
from nnhal.model.control import ASSUMED, MOST_COMPUTED, MOST_ITERATIONS, iterations, parts_of
from nnhal.model.graph import Location, Model
from nnhal.model.validate import release_constants
from tests.models import counted_loop, make_model, make_subgraph

I32 = "TENSOR_INT32"
ONE = ((1,), I32)


def loop(start: int, goes_on: Callable[[Any, Any], Any], after: Callable[[Any, Any], Any]) -> Model:
    """n = start; while goes_on(n): n = after(n)."""

    def build(b: nnhal.Builder, x: Any) -> Any:
        first = make_subgraph(b, lambda s, n, _: goes_on(s, n), ONE, (4,))
        second = make_subgraph(b, lambda s, n, y: [after(s, n), s.neg(y)], ONE, (4,))
        given = [b.constant(np.array([start], np.int32)), x]
        return b.while_(first, second, given, out_type=[I32, "TENSOR_FLOAT32"], outputs=2)[1]

    return make_model(build, (4,))


def negated(times: Callable[[nnhal.Builder], Any]) -> Model:
    """As many iterations as a value that the loop carries."""
    return make_model(lambda b, x: counted_loop(b, x, times(b), lambda s, y, *_: s.neg(y)), (4,))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (loop(0, lambda s, n: s.less(n, [7]), lambda s, n: s.add(n, [1])), 7),
        (loop(3, lambda s, n: s.less_equal(n, [10]), lambda s, n: s.add(n, [2])), 4),  # 3, 5, 7, 9
        (loop(9, lambda s, n: s.greater(n, [0]), lambda s, n: s.sub(n, [4])), 3),  # 9, 5, 1
        (loop(1, lambda s, n: s.not_equal(n, [64]), lambda s, n: s.mul(n, [2])), 6),
        (loop(5, lambda s, n: s.logical_and(s.less(n, [9]), s.greater(n, [5])), lambda s, n: s.add(n, [1])), 0),
        (loop(0, lambda s, n: s.less(n, [999]), lambda s, n: s.add(n, [1])), 999),
        (negated(lambda b: b.constant(np.array([5], np.int32))), 5),
        (negated(lambda b: b.add(b.constant(np.array([2], np.int32)), [4])), 6),
    ],
)  # fmt: skip
def test_the_iterations_of_a_loop_are_known_if_its_condition_depends_on_constants_alone(model, count):
    n = next(n for n, operation in enumerate(model.main.operations) if len(operation.outputs) == 2)
    assert iterations(model, n) == (count, False)


def test_a_count_that_an_input_has_is_assumed():
    model = make_model(lambda b, x, times: counted_loop(b, x, times, lambda s, y, *_: s.neg(y)), (4,), ONE)
    assert iterations(model, 0) == (ASSUMED, True)


def test_a_loop_that_ends_by_what_it_computes_from_an_input_has_an_assumed_count():
    def build(b: nnhal.Builder, x: Any) -> Any:
        first = make_subgraph(b, lambda s, y: s.less(y, [9.0]), (1,))
        return b.while_(first, make_subgraph(b, lambda s, y: s.add(y, [1.0]), (1,)), [x], out_type="TENSOR_FLOAT32")

    assert iterations(make_model(build, (1,)), 0) == (ASSUMED, True)


def test_large_values_are_not_computed_to_count_a_loop():
    def build(b: nnhal.Builder) -> Any:
        def ends(s: nnhal.Builder, y: Any) -> Any:
            return s.less(s.reduce_max(y, [0], keep_dims=True), [9.0])

        given = [b.constant(np.zeros(65, np.float32))]
        body = make_subgraph(b, lambda s, y: s.add(y, [1.0]), (65,))
        return b.while_(make_subgraph(b, ends, (65,)), body, given, out_type="TENSOR_FLOAT32")

    assert iterations(make_model(build), 0) == (ASSUMED, True)


def test_a_counter_may_change_by_another_value_of_the_loop():
    def build(b: nnhal.Builder) -> Any:
        first = make_subgraph(b, lambda s, n, _: s.less(n, [20]), ONE, ONE)
        second = make_subgraph(b, lambda s, n, more: [s.add(n, more), s.add(more, more)], ONE, ONE)
        given = [b.constant(np.ones(1, np.int32)) for _ in range(2)]
        return b.while_(first, second, given, out_type=[I32, I32], outputs=2)[0]

    assert iterations(make_model(build), 0) == (5, False)  # 1, 2, 4, 8, 16


def test_a_bound_that_only_a_device_can_read_leaves_the_count_assumed():
    model = negated(lambda b: b.constant(np.array([5], np.int32)))
    hidden = Memory.hardware_buffer(16, Pixels(2, 2, 1, 1))  # pixels of 4 bytes
    bound, operands = model.main.operations[0].inputs[4], list(model.main.operands)
    operands[bound] = replace(
        operands[bound], lifetime=Lifetime.CONSTANT_REFERENCE, location=Location(len(model.pools), 0, 4)
    )
    main = replace(model.main, operands=tuple(operands))
    assert iterations(replace(model, main=main, pools=(*model.pools, hidden)), 0) == (ASSUMED, True)


def test_a_loop_without_an_end_counts_as_many_iterations_as_are_computed():
    model = loop(0, lambda s, n: s.less(n, [1]), lambda s, n: s.mul(n, [1]))
    assert iterations(model, 0) == (MOST_ITERATIONS, True)


def test_the_greatest_count_is_exact_and_one_more_is_not():
    def up_to(bound: int) -> Model:
        return loop(0, lambda s, n: s.less(n, [bound]), lambda s, n: s.add(n, [1]))

    assert iterations(up_to(MOST_ITERATIONS), 0) == (MOST_ITERATIONS, False)
    assert iterations(up_to(MOST_ITERATIONS + 1), 0) == (MOST_ITERATIONS, True)


def test_all_loops_of_a_model_together_are_computed_for_so_many_operations():
    def build(b: nnhal.Builder, x: Any) -> Any:
        for _ in range(10):
            x = counted_loop(b, x, b.constant(np.array([900], np.int32)), lambda s, y, *_: s.neg(y))
        return x

    model = make_model(build, (4,))
    found = [iterations(model, n) for n in range(10)]
    exact = sum(not assumed for _, assumed in found)
    assert 0 < exact < 10 and all(each == (900, False) for each in found[:exact])
    assert sum(count for count, _ in found[:exact]) <= MOST_COMPUTED // 3  # a comparison, an addition, and the start
    assert found[-1] == (ASSUMED, True)


def test_a_condition_that_fails_is_left_to_the_execution():
    model = loop(0, lambda s, n: s.less(s.gather(s.constant(np.arange(3, dtype=np.int32)), 0, n), [9]),
                 lambda s, n: s.add(n, [1]))  # fmt: skip
    assert iterations(model, 0) == (ASSUMED, True)


def test_the_subgraphs_of_a_model_do_not_keep_the_constants_that_it_released():
    model = negated(lambda b: b.constant(np.array([5], np.int32))).again()
    assert parts_of(model, 0)[1].part.model.values
    release_constants(model, "released")
    with pytest.raises(ContractBroken, match="released"):
        parts_of(model, 0)
