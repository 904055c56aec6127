"""What operations, steps and crossings are thought to cost, and what the search does with that."""

import itertools
import math
import random

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.extensions import ExtensionType, register_extension
from nnhal.base.operands import Value
from nnhal.frontends.python import Builder
from nnhal.model.graph import Model
from nnhal.model.layouts import with_layout
from nnhal.runtime import costs
from nnhal.runtime.costs import Prices, layout_transposition, operand_transposition, seconds
from nnhal.runtime.schedule import Claimed, FusionGroup, Schedule
from tests.models import chain, make_model, operation_chain, relus

US, NS = 1e-6, 1e-9
CHAIN = 1000  # elements


def near(*expected: float) -> object:
    return pytest.approx(list(expected), rel=1e-9)


# -------------------------------------------------------------------------------------------------------- operations


def test_an_operation_takes_50_us_and_a_nanosecond_for_each_element_that_it_touches():
    model = make_model(lambda b, x, y: [b.relu(x), b.add(y, y)], (1000,), (3, 1))
    assert seconds(model) == near(50 * US + 2000 * NS, 50 * US + (3 + 3 + 1 + 3) * NS)  # ADD has an activation too


def test_a_dimension_that_is_not_known_counts_as_one_and_so_does_a_rank():
    assert seconds(make_model(lambda b, x: b.relu(x), (None, 40))) == near(50 * US + 80 * NS)
    assert seconds(operation_chain((OperandType.TENSOR_FLOAT32, ()), "RELU")) == near(50 * US + 2 * NS)


def test_multiplications_count_a_fifth_of_an_element():
    weights = np.ones((10, 20), np.float32), np.zeros(10, np.float32)
    model = make_model(lambda b, x: b.fully_connected(x, *weights), (3, 20))
    touched = 60 + 200 + 10 + 1 + 30
    assert seconds(model) == near(50 * US + touched * NS + 3 * 10 * 20 * 0.2 * NS)


def test_what_is_left_out_counts_nothing():
    model = make_model(
        lambda b, x, features, times, state: b.svdf(x, features, times, None, state, 1, "none")[1],
        *((1, 2), (2, 2), (2, 1), (1, 2)),
    )
    touched = 2 + 4 + 2 + 2 + 1 + 1 + 2 + 2  # rank and activation too
    assert seconds(model) == near(50 * US + touched * NS)


def typed(name: str, length: int, *, operations: int = 1) -> Model:
    """Operations of an extension, on a vector of a type of the extension of four bytes."""
    extension = register_extension(name, [ExtensionType("T", "<f4")], ["OP"])
    codes = [extension.operation("OP")] * operations
    return operation_chain((extension.type("T"), (length,)), *codes, extensions=[(extension.name, extension.prefix)])


def test_an_operation_of_an_extension_touches_elements_as_well():
    (found,) = seconds(typed("com.example.priced", 1000))
    assert found == pytest.approx(50 * US + 2000 * NS)


def pooled(times: int = 1) -> Model:
    return chain("max_pool_2d", times, (1, 4, 4, 3), padding="same", filter_size=2, stride=1)


def test_a_transpose_reads_and_writes_and_counts_for_what_it_serves():
    one = 50 * US + 2 * 48 * NS
    laid = with_layout(pooled(), "nchw")
    assert layout_transposition(laid) == {0: pytest.approx(2 * one)}  # before it and after it
    assert layout_transposition(with_layout(pooled(2), "nchw")) == {0: pytest.approx(one), 1: pytest.approx(one)}
    assert layout_transposition(with_layout(pooled(), None)) == {}
    (y,) = pooled().main.outputs
    assert operand_transposition(pooled(), laid) == dict.fromkeys(laid.turned, pytest.approx(one))
    (between,) = pooled(2).main.operations[0].outputs
    found = operand_transposition(pooled(2), with_layout(pooled(2), "nchw"))
    assert between in found and y in laid.turned
    assert list(found.values()) == [pytest.approx(one)] * len(found)


def test_a_transpose_of_what_is_not_known():
    def value(*shape: int | None) -> Value:
        return Value(OperandType.TENSOR_FLOAT32, shape)

    assert costs._transpose(None) == pytest.approx(50 * US)
    assert costs._transpose(value(None, 10)) == pytest.approx(50 * US + 20 * NS)


# --------------------------------------------------------------------------------------------------- steps, crossings


def prices(
    model: Model, alone: list[dict[str, float]], starting: dict[str, float], claimed: Claimed | None = None, **more
) -> Prices:
    return Prices(model, [1.0] * len(alone), alone, starting, Schedule(model, claimed or {}), **more)


def of(found: Prices, devices: str) -> float:
    return found.of(devices, found._schedule.steps(devices))


CROSSING = 2 * US + 4 * CHAIN * 0.2 * NS


def test_the_price_is_operations_and_steps_and_crossings():
    found = prices(relus(3, CHAIN), [{"a": 1, "b": 10}, {"a": 2, "b": 20}, {"a": 4, "b": 40}], {"a": 100, "b": 1000})
    assert of(found, "aaa") == 7 + 100
    assert of(found, "bbb") == 70 + 1000
    assert of(found, "aab") == pytest.approx(1 + 2 + 40 + 1100 + CROSSING, rel=1e-12)
    assert of(found, "aba") == pytest.approx(1 + 20 + 4 + 1200 + 2 * CROSSING, rel=1e-12)


def cost_of_crossing(model: Model, devices: str, **more) -> float:
    free = [dict.fromkeys("abc", 0.0)] * len(devices)
    return of(prices(model, free, dict.fromkeys("abc", 0.0), **more), devices)


def branching(dtype: str = "TENSOR_FLOAT32", shape: tuple[int | None, ...] = (CHAIN,)) -> Model:
    """One operation, read by three."""
    b = Builder()
    x = b.input(shape, dtype)
    y = b.relu(x)
    return b.finish([x], [b.relu(y), b.relu6(y), b.relu1(y)])


@pytest.mark.parametrize(
    ("devices", "times"), [("aaaa", 0), ("abaa", 1), ("abbb", 1), ("abca", 2), ("abcb", 2), ("abcc", 2)]
)
def test_an_operand_crosses_once_to_each_other_device(devices, times):
    assert cost_of_crossing(branching(), devices) == pytest.approx(times * CROSSING, rel=1e-12)


def test_a_price_does_not_depend_on_what_devices_are_called():
    """It was a sum in the order of a set of names, which goes with the hash seed of a process."""
    model = make_model(lambda b, x: [b.neg(y) for y in [b.relu(x)] for _ in range(5)], (1, 8))
    seconds, drawn = random.Random(1), random.Random(2)
    between = {(one, other): (seconds.random() * US, 0.0) for one in range(6) for other in range(6)}
    found = set()
    for _ in range(20):
        names = [f"{drawn.random()}" for _ in range(6)]
        crossings = {(names[one], names[other]): cost for (one, other), cost in between.items()}
        alone = [dict.fromkeys(names, US)] * 6
        prices = Prices(model, [], alone, dict.fromkeys(names, US), Schedule(model, {}), crossings=crossings)
        found.add(prices.transfer_cost(names))
    assert len(found) == 1


def test_an_input_of_the_model_does_not_cross():
    model = make_model(lambda b, x: [b.relu(x), b.relu6(x)], (CHAIN,))
    assert cost_of_crossing(model, "ab") == 0


def test_what_crosses_counts_by_its_bytes_as_far_as_known():
    assert cost_of_crossing(branching("TENSOR_FLOAT16"), "abaa") == pytest.approx(2 * US + 2 * CHAIN * 0.2 * NS)
    assert cost_of_crossing(branching(shape=(None, CHAIN)), "abaa") == pytest.approx(2 * US)


def test_an_element_of_an_extensions_type_counts_by_its_bytes():
    model = typed("com.example.crossing", CHAIN, operations=2)
    assert cost_of_crossing(model, "ab") == pytest.approx(2 * US + 4 * CHAIN * 0.2 * NS)


def test_an_element_of_a_type_that_nobody_here_knows_counts_as_a_byte():
    code = 0x7000 << 16 | 1
    model = operation_chain((code, (CHAIN,)), code, code, extensions=[("com.example.elsewhere", 0x7000)])
    assert cost_of_crossing(model, "ab") == pytest.approx(2 * US + CHAIN * 0.2 * NS)


def test_what_is_in_another_order_there_is_transposed_where_it_crosses():
    model = branching()
    (y,) = model.main.operations[0].outputs
    there = {"a": {y: 3.0}, "b": {y: 5.0}, "c": {y + 1000: 7.0}}
    for devices, more in (("aaaa", 0), ("abaa", 8), ("abbb", 8), ("acaa", 3), ("abca", 8), ("cbcc", 5), ("caab", 8)):
        crossings = len(set(devices[1:]) - {devices[0]})
        expected = pytest.approx(more + crossings * CROSSING, rel=1e-12)
        assert cost_of_crossing(model, devices, turned=there) == expected, devices


def test_what_runs_as_one_has_the_price_for_that():
    model = relus(3, CHAIN)
    together = FusionGroup("b", (0, 1), 2, 0.25)
    claimed = {"b": dict.fromkeys((0, 1), together)}
    found = Prices(
        model,
        [8.0, 16.0, 32.0],
        [{"a": 1.0}, {"a": 2.0}, {"a": 4.0, "b": 40.0}],
        {"a": 0, "b": 0},
        Schedule(model, claimed),
    )
    assert of(found, "aaa") == 7
    assert of(found, "bbb") == 0.25 * 24 + 40
    assert of(found, "bba") == pytest.approx(6 + 4 + CROSSING)


# -------------------------------------------------------------------------------------------------------- the search


def test_operations_go_where_they_save_most_and_what_nobody_takes_alone_goes_first():
    model = relus(6, CHAIN)
    little, much, only = (
        FusionGroup("b", (0, 1, 2), 2, 0.5),
        FusionGroup("c", (2, 3), 2, 0.25),
        FusionGroup("d", (4, 5), 2, 9.0),
    )
    claimed = {
        "b": dict.fromkeys((0, 1, 2), little),
        "c": dict.fromkeys((2, 3), much),
        "d": dict.fromkeys((4, 5), only),
    }
    alone = [{"a": 1.0}] * 4 + [{}, {}]
    found = prices(model, alone, dict.fromkeys("abcd", 0.0), claimed)
    assert found.packed(["a"] * 4 + ["", ""]) == list("bbccdd")
    dear = FusionGroup("b", (0, 1), 2, 1.0)  # saves nothing
    found = prices(relus(2, CHAIN), [{"a": 1.0}] * 2, {"a": 0, "b": 0}, {"b": dict.fromkeys((0, 1), dear)})
    assert found.packed(["a", "a"]) == ["a", "a"]
    too_few = FusionGroup("b", (0, 1, 2), 3, 0.1), FusionGroup("c", (2, 3), 2, 0.01)
    claimed = {"b": dict.fromkeys((0, 1, 2), too_few[0]), "c": dict.fromkeys((2, 3), too_few[1])}
    found = prices(relus(4, CHAIN), [{"a": 1.0}] * 4, dict.fromkeys("abc", 0.0), claimed)
    assert found.packed(["a"] * 4) == list("aacc") or found.packed(["a"] * 4) == list("bbba")


def test_what_stands_without_the_others_goes_where_it_is_best_alone():
    together = FusionGroup("b", (0, 2), 2, 0.1)  # 1 is between them
    found = prices(
        relus(3, CHAIN),
        [{"a": 2.0, "c": 1.0}, {"a": 1.0}, {"a": 1.0, "c": 2.0}],
        dict.fromkeys("abc", 0.0),
        {"b": dict.fromkeys((0, 2), together)},
    )
    devices, steps = found.settled(["b", "a", "b"])
    assert devices == ["c", "a", "a"] and [tuple(s) for s in steps] == [("c", (0,)), ("a", (1, 2))]


def test_where_nobody_takes_it_alone_the_others_join_it_or_nothing_leads_anywhere():
    both = FusionGroup("b", (0, 1), 2, 0.1)
    claimed = {"b": dict.fromkeys((0, 1), both)}
    found = prices(relus(3, CHAIN), [{}, {"a": 1.0}, {"a": 1.0}], {"a": 0, "b": 0}, claimed)
    devices, steps = found.settled(["b", "a", "a"])
    assert devices == ["b", "b", "a"] and [s.operations for s in steps] == [(0, 1), (2,)]
    around = FusionGroup("b", (0, 2), 2, 0.1)
    stuck = prices(relus(3, CHAIN), [{}, {"a": 1.0}, {}], {"a": 0, "b": 0}, {"b": dict.fromkeys((0, 2), around)})
    assert stuck.settled(["b", "a", "b"]) is None
    assert stuck.lowered(["b", "a", "b"]) == (math.inf, ["b", "a", "b"])


def improvable(seed: int) -> bool:
    """Whether some step of what is found would be better with a neighbour; and that the price is that of what is found."""
    rng = random.Random(seed)
    length = 8
    model = relus(length, CHAIN)
    alone = [
        {d: rng.uniform(1, 40) * US for d in "abc" if d == "a" or rng.random() < 0.6} for _ in range(length)
    ]  # fmt: skip
    found = prices(model, alone, {"a": 20 * US, "b": rng.choice([5, 20]) * US, "c": 60 * US})
    start = [rng.choice(sorted(each)) for each in alone]
    price, devices = found.lowered(start)

    def by_hand(where: list[str]) -> float:
        runs = [d for d, _ in itertools.groupby(where)]
        starting = sum(found._starting[d] for d in runs)
        return sum(alone[n][d] for n, d in enumerate(where)) + starting + (len(runs) - 1) * CROSSING

    assert price == pytest.approx(by_hand(devices), rel=1e-9) and price <= by_hand(start) * (1 + 1e-9)
    at = 0
    for _, run in itertools.groupby(devices):
        members = range(at, at + len(list(run)))
        at = members.stop
        for beside in (members.start - 1, members.stop):
            if 0 <= beside < length and all(devices[beside] in alone[n] for n in members):
                moved = [devices[beside] if n in members else d for n, d in enumerate(devices)]
                if by_hand(moved) < price * (1 - 1e-9):
                    return True
    return False


def test_the_search_hardly_ever_ends_where_a_step_of_a_chain_is_better_with_a_neighbour():
    assert sum(map(improvable, range(100))) <= 2  # several that move at once may not be worth what each is


def test_a_step_that_joins_its_neighbours_gives_up_one_start_for_each():
    """Two starts of 20 us and two crossings are worth 15 us of work, though each alone is not."""
    work = {"a": 40 * US, "b": 1 * US}
    found = prices(relus(3, CHAIN), [{"a": 1 * US}, work, {"a": 1 * US}], {"a": 20 * US, "b": 0.0})
    assert found.lowered(["a", "b", "a"])[1] == ["a", "b", "a"]
    work["a"] = (20 + 1 + 2 * CROSSING / US - 0.5) * US
    assert found.lowered(["a", "b", "a"])[1] == ["a", "a", "a"]
