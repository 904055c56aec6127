"""Placement by measurement: least predicted time, what was measured believed first, splits only where they are worth it."""

import itertools
import random
import re
from collections.abc import Sequence

import pytest

from nnhal.base.codes import Preference
from nnhal.base.records import replace
from nnhal.frontends.python import Builder
from nnhal.hal.device import Capabilities, Verdict
from nnhal.model.graph import Model
from nnhal.runtime import placement_text as words
from nnhal.runtime.costs import Prices
from nnhal.runtime.partition import Measured, Offer, Partition, expectations, partition
from nnhal.runtime.placement import Placement
from nnhal.runtime.schedule import Schedule, StepPlan
from tests.effort import lines
from tests.models import relus

MS, US = 1e-3, 1e-6
FAST = Preference.FAST_SINGLE_ANSWER


def says(name: str, predicted: Sequence[float] | None, takes: str, stated: float = 1.0, step: float = 20 * US) -> Offer:
    verdicts = [Verdict(t == "y", "" if t == "y" else "no") for t in takes]
    return Offer(name, 9, Capabilities.uniform(stated), verdicts, predicted=predicted, step=step)  # type: ignore[arg-type]


def where(found: Partition) -> str:
    return "".join(choice.device for choice in found.choices)


def test_the_device_of_the_least_predicted_time_has_it_whatever_others_state() -> None:
    offers = [says("a", [MS, MS], "yy", stated=0.0001), says("b", [0.1 * MS, 0.1 * MS], "yy", stated=1.0)]
    assert where(partition(relus(2, 10), offers)) == "aa"
    found = partition(relus(2, 10), offers, FAST, Measured())
    assert where(found) == "bb"
    assert found.choices[0].reason == "predicted 100 µs, the fastest" and found.choices[0].others == {
        "a": "predicted 1 ms"
    }
    (forecast,) = found.forecasts
    assert forecast.seconds == pytest.approx(0.2 * MS + 20 * US) and not forecast.known


def test_a_split_that_is_predicted_to_win_by_much_is_made() -> None:
    offers = [says("a", [9 * MS, MS], "yy"), says("b", [MS, 9 * MS], "yy")]
    found = partition(relus(2, 10), offers, FAST, Measured())
    assert where(found) == "ba" and len(found.forecasts) == 2


def test_a_split_that_is_predicted_to_win_by_little_is_not() -> None:
    offers = [says("a", [1.1 * MS, MS], "yy"), says("b", [MS, 1.1 * MS], "yy")]
    found = partition(relus(2, 10), offers, FAST, Measured())
    assert where(found) in ("aa", "bb")
    assert any("would cost more than it saves" in choice.reason for choice in found.choices)


def test_a_split_that_was_measured_needs_no_margin() -> None:
    offers = [says("a", [1.1 * MS, MS], "yy"), says("b", [MS, 1.1 * MS], "yy")]
    split = (StepPlan("b", (0,)), StepPlan("a", (1,)))
    whole = (StepPlan("a", (0, 1)),)
    assert where(partition(relus(2, 10), offers, FAST, Measured(tuned={split: 2.0 * MS, whole: 2.1 * MS}))) == "ba"
    assert where(partition(relus(2, 10), offers, FAST, Measured(tuned={split: 2.1 * MS, whole: 2.0 * MS}))) == "aa"
    assert where(partition(relus(2, 10), offers, FAST, Measured(tuned={split: 2.0 * MS, whole: 2.01 * MS}))) == "aa"


def test_what_crosses_counts_as_it_was_measured() -> None:
    offers = [says("a", [9 * MS, MS], "yy"), says("b", [MS, 9 * MS], "yy")]
    dear = Measured(crossings={("b", "a"): (20 * MS, 0.0), ("a", "b"): (20 * MS, 0.0)})
    assert where(partition(relus(2, 10), offers, FAST, dear)) in ("aa", "bb")
    bytes = Measured(crossings={("b", "a"): (0.0, 3 * MS), ("a", "b"): (0.0, 3 * MS)})
    assert where(partition(relus(2, 1), offers, FAST, bytes)) in ("aa", "bb")  # of 4 bytes


def test_what_tuning_measured_counts_before_what_is_predicted() -> None:
    offers = [says("a", [MS, MS], "yy"), says("b", [2 * MS, 2 * MS], "yy")]
    model = relus(2, 10)
    took = {(StepPlan("a", (0, 1)),): 9 * MS}
    found = partition(model, offers, FAST, Measured(tuned=took))
    assert where(found) == "aa" and found.forecasts == ((9 * MS, True),)
    took[StepPlan("b", (0, 1)),] = 8 * MS
    assert where(partition(model, offers, FAST, Measured(tuned=took))) == "bb"
    refused = [says("a", [MS, MS], "yy"), says("b", [2 * MS, 2 * MS], "yn")]
    found = partition(model, refused, FAST, Measured(tuned=took))
    assert where(found) == "aa" and found.forecasts == ((9 * MS, True),)
    partial = {(StepPlan("b", (0,)),): MS, (StepPlan("b", (0, 1, 2)),): MS}  # of another model
    assert where(partition(model, offers, FAST, Measured(tuned=partial))) == "aa"


@pytest.mark.parametrize(
    "steps",
    [
        [("b", (0, 1)), ("a", ())],
        [("b", (0,)), ("b", (1,))],
        [("b", (1,)), ("b", (0,))],
        [("a", (1,)), ("b", (0,))],
        [("b", (0,)), ("a", (0, 1))],
        [("b", (0, 0, 1))],
    ],
)
def test_a_time_of_partitions_that_are_not_made_now_is_no_measurement(steps: list[tuple[str, tuple[int, ...]]]) -> None:
    offers = [says("a", [MS, MS], "yy"), says("b", [2 * MS, 2 * MS], "yy")]
    found = partition(relus(2, 10), offers, FAST, Measured(tuned={tuple(StepPlan(*each) for each in steps): US}))
    assert where(found) == "aa" and not any(each.known for each in found.expected)
    assert len(found.forecasts) == len(found.steps) == 1


def test_a_device_that_was_not_measured_has_what_it_states_of_the_cpus_time_where_that_was_measured() -> None:
    offers = [says("a", [3 * MS], "y"), says("b", None, "y", stated=0.5)]
    assert where(partition(relus(1, 10), offers, FAST, Measured(cpu=[5 * MS]))) == "b"
    assert where(partition(relus(1, 10), offers, FAST, Measured(cpu=[7 * MS]))) == "a"


def test_a_device_that_was_not_measured_has_what_it_states_of_the_cpus_guessed_time() -> None:
    offers = [says("a", [3 * MS], "y"), says("b", None, "y", stated=0.5)]  # of some 50 µs
    assert where(partition(relus(1, 10), offers, FAST, Measured())) == "b"
    offers[1] = says("b", None, "y", stated=100.0)
    assert where(partition(relus(1, 10), offers, FAST, Measured())) == "a"


def test_what_a_device_refuses_it_does_not_get_however_fast_it_would_be() -> None:
    offers = [says("a", [MS, MS], "yy"), says("b", [1e-9, 1e-9], "nn")]
    assert where(partition(relus(2, 10), offers, FAST, Measured())) == "aa"


def test_a_fallback_device_is_chosen_only_if_its_prediction_is_half_of_the_others() -> None:
    """It counts once where no other device supports the operation."""
    other = says("a", [3 * MS, 3 * MS], "yy")

    def placed(seconds: float, takes: str = "yy") -> Partition:
        fallback = replace(says("b", [seconds, seconds], "yy"), fallback=True)
        return partition(
            relus(2, 10), [replace(other, verdicts=says("a", None, takes).verdicts), fallback], FAST, Measured()
        )

    assert where(placed(2 * MS)) == "aa" and placed(2 * MS).choices[0].costs == {"a": 3 * MS, "b": 4 * MS}
    assert placed(2 * MS).choices[0].others == {"b": "predicted 4 ms (2 times its prediction, as the fallback)"}
    assert where(placed(1 * MS)) == "bb"
    alone = placed(2 * MS, "nn")
    assert where(alone) == "bb" and alone.choices[0].costs == {"b": 2 * MS}


def test_expectations_hold_all_on_each_device_and_the_best_comes_first() -> None:
    offers = [says("a", [9 * MS, MS], "yy"), says("b", [MS, 9 * MS], "yy"), says("c", [1.0, 1.0], "yy")]
    found = expectations(relus(2, 10), offers, FAST, Measured())
    assert found == sorted(found, key=lambda each: each.seconds)
    devices = ["".join(each.devices) for each in found]
    assert devices[0] == "ba" and {"aa", "bb", "cc"} <= set(devices) and len(devices) == len(set(devices))


# ------------------------------------------------------------------------------------------------- chains of cuts, exactly


def blocks(seed: int) -> Model:
    """Blocks behind each other, each of which may have a branch within."""
    r, b = random.Random(seed), Builder()
    x = y = b.input((r.choice([10, 1000]),))
    for _ in range(r.randint(2, 4)):
        y = b.add(b.relu(y), b.neg(y)) if r.random() < 0.5 else b.relu(y)
    return b.finish([x], [y])


@pytest.mark.parametrize("seed", range(60))
def test_where_one_operand_is_all_that_crosses_no_assignment_by_blocks_is_cheaper(seed: int) -> None:
    r, model = random.Random(seed), blocks(seed)
    count, names = len(model.main.operations), "abc"
    alone = [{d: r.uniform(1, 300) * US for d in names} for _ in range(count)]
    starting = {d: r.uniform(5, 200) * US for d in names}
    crossings = {pair: (r.uniform(0, 50) * US, r.uniform(0, 0.05) * US) for pair in itertools.permutations(names, 2)}
    schedule = Schedule(model, {})
    prices = Prices(model, (), alone, starting, schedule, None, None, crossings)
    found = prices.cheapest_chain()
    inside = [[n] for n in range(count)]
    members: dict[int, int] = {}
    for k, operation in enumerate(model.main.operations):  # an ADD ends a block of three
        if len(operation.inputs) > 2:
            members |= dict.fromkeys((k - 2, k - 1, k), k)
    inside = [list(group) for _, group in itertools.groupby(range(count), key=lambda n: members.get(n, -1 - n))]
    least = min(
        prices.of(devices, schedule.steps(devices))
        for chosen in itertools.product(names, repeat=len(inside))
        for devices in [[d for d, group in zip(chosen, inside, strict=True) for _ in group]]
    )
    if found is None:
        assert len(inside) < 2
    else:
        assert prices.of(found, schedule.steps(found)) <= least * (1 + 1e-9)


def test_a_block_that_no_device_takes_whole_has_no_chain() -> None:
    model = relus(3, 10)
    prices = Prices(model, (), [{"a": US}, {}, {"a": US}], {"a": US}, Schedule(model, {}))
    assert prices.cheapest_chain() is None


def wide(count: int) -> Model:
    """Half of the operations give what the other half reads much later."""
    b = Builder()
    x = b.input((64,))
    early = [b.relu(x) for _ in range(count // 2)]
    late = x
    for each in early:
        late = b.add(late, each)
    return b.finish([x], [late])


def test_where_much_is_read_late_the_places_for_a_change_are_found_by_work_that_goes_with_the_number() -> None:
    def took(length: int) -> int:
        model = wide(length)
        prices = Prices(model, (), [{"a": US, "b": US}] * length, {"a": US, "b": US}, Schedule(model, {}))
        return lines(prices.cheapest_chain)

    assert took(2000) < 5 * took(500)  # 4 where it is proportional


def test_many_operations_over_five_devices_are_placed_by_work_that_goes_with_their_number() -> None:
    def took(length: int) -> int:
        r, model = random.Random(3), relus(length, 64)
        offers = []
        for name, speed in zip("abcde", (1, 0.5, 0.4, 0.3, 0.2), strict=True):
            takes = "".join("y" if name == "a" or r.random() < 0.9 else "n" for _ in range(length))
            offers.append(says(name, [speed * r.random() * 100 * US for _ in range(length)], takes))
        return lines(lambda: partition(model, offers, FAST, Measured()))

    assert took(800) < 5 * took(200)  # 4 where it is proportional


def test_a_tuned_placement_says_that_it_was_measured() -> None:
    offers = [says("a", [MS, MS], "yy"), says("b", [1.1 * MS, 1.1 * MS], "yy")]
    took = {(StepPlan("a", (0, 1)),): 3 * MS, (StepPlan("b", (0, 1)),): 2 * MS}
    placement = Placement(partition(relus(2, 10), offers, FAST, Measured(tuned=took)))
    assert {c.device for c in placement.choices} == {"b"}
    assert placement.choices[0].reason.endswith("the fastest of 2 measured placements has it on b")
    assert words.basis(placement) == " (tuned)" and words.headline(placement).endswith("measured 2 ms (tuned)")
    (other,) = placement.alternatives
    assert other[:3] == ("all on a", 3 * MS, True) and other.why == "slower"
    assert placement.source == placement.to_dict()["source"] == "tuned"
    facts = {"name": "all on a", "predicted": 3 * MS, "took": 3 * MS, "supported": 2, "why": "slower"}
    assert placement.to_dict()["alternatives"] == [facts]
    assert re.search(r"^Alternatives +measured .*\n  all on a +3 ms ", str(placement), re.MULTILINE)


def test_measured_and_predicted_alternatives_of_a_tuned_placement_are_told_apart() -> None:
    offers = [says(name, [each, each], "yy") for name, each in (("a", MS), ("b", 1.1 * MS), ("c", 1.2 * MS))]
    took = {(StepPlan("a", (0, 1)),): 3 * MS, (StepPlan("b", (0, 1)),): 2 * MS}
    lines = str(Placement(partition(relus(2, 10), offers, FAST, Measured(tuned=took)))).splitlines()
    assert [re.split("  +", line.strip())[1] for line in lines[lines.index("") + 1 :][:3]] == [
        *("latency", "3 ms", "2.42 ms predicted"),
    ]


def test_alternatives_are_those_that_were_compared_with_why_they_were_not_chosen() -> None:
    offers = [
        says("a", [MS, MS, MS], "yyy"),
        says("b", [0.9 * MS, 2 * MS, 0.9 * MS], "yyy"),
        says("c", [MS] * 3, "yny"),
    ]
    placement = Placement(partition(relus(3, 10), offers, FAST, Measured()))
    found = {each.name: each for each in placement.alternatives}
    assert set(found) == {"all on b", "all on c", "split a + b"} and placement.devices() == {"a": 3}
    assert (found["all on b"].supported, found["all on b"].why) == (3, "slower")
    assert (found["all on c"].supported, found["all on c"].latency) == (2, None)
    assert found["all on c"].why.startswith("rejects ") and found["all on c"].why.endswith(": no")
    told = {each["name"]: (each["predicted"], each["took"]) for each in placement.to_dict()["alternatives"]}
    assert told == {name: (each.latency, None) for name, each in found.items()}
    assert found["split a + b"].why == "gain too small for a split that was not measured"
    assert words.headline(placement).endswith("predicted 3.02 ms (measured profile)")
    assert placement.source == "calibrated"
