"""Operations that a device runs as one: priced so where they stand in one step, and never left there without the others."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.codes import Preference, operation_name
from nnhal.base.errors import UnsupportedModel
from nnhal.base.levels import FL8
from nnhal.frontends.python import Builder
from nnhal.hal.device import YES, Capabilities, OperationGroup, Performance, Verdict
from nnhal.model.graph import Model
from nnhal.model.parts import live_operands
from nnhal.runtime import costs
from nnhal.runtime.partition import Offer, Partition, partition
from nnhal.runtime.placement import Placement
from tests.models import make_model, relus

NO = Verdict(False, "not by itself")
SPEEDS = [0.02, 0.2, 0.5, 1.0, 3.0]

LARGE = 1_000_000  # elements


def offer(name: str, time: float, takes: str, *groups: OperationGroup, power: float = 1.0, **more) -> Offer:
    verdicts = [YES if c == "y" else NO for c in takes]
    return Offer(name, FL8, Capabilities.uniform(time, power), verdicts, groups=groups, **more)


def group(cost: float, *operations: int, at_least: int = 0, power: float = 1.0) -> OperationGroup:
    return OperationGroup(operations, Performance(cost, power), at_least)


def steps(found: Partition) -> list[tuple[str, tuple[int, ...]]]:
    return [(s.device, s.operations) for s in found.steps]


# ---------------------------------------------------------------------------------------------------- by example


def test_what_is_taken_in_a_group_only_goes_there_with_the_others():
    found = partition(relus(4, LARGE), [offer("cpu", 1.0, "yyyy"), offer("npu", 1.0, "nnnn", group(0.01, 1, 2))])
    assert steps(found) == [("cpu", (0,)), ("npu", (1, 2)), ("cpu", (3,))]
    choice = found.choices[1]
    assert choice.reason == "fused: npu runs 2 operations as one, declared 0.01x reference time"
    assert choice.others == {"cpu": "declared 1x reference time"} and choice.together == (1, 2)
    assert found.choices[0].others == {"npu": "not by itself"} and found.choices[0].together == ()
    assert Placement(found).to_dict()["groups"] == [{"device": "npu", "operations": [1, 2], "stated": 0.01}]


def test_a_placement_lists_each_group_that_stands_with_what_is_stated_for_it():
    groups = group(0.01, 1, 2, power=0.5), group(0.02, 4, 5, 6, at_least=2, power=0.25)
    found = partition(relus(8, LARGE), [offer("cpu", 1.0, "yyyyyyyy"), offer("npu", 1.0, "n" * 8, *groups, power=9.0)])
    assert [(g.device, g.operations, g.stated) for g in Placement(found).groups] == [
        ("npu", (1, 2), 0.01),
        ("npu", (4, 5, 6), 0.02),
    ]
    alone = partition(relus(8, LARGE), [offer("cpu", 1.0, "yyyyyyyy")])
    assert Placement(alone).groups == () and Placement(alone).to_dict()["groups"] == []


def test_a_group_that_is_not_worth_a_step_stays_with_its_neighbours():
    found = partition(relus(4, 100), [offer("cpu", 0.05, "yyyy"), offer("npu", 1.0, "nnnn", group(0.01, 1, 2))])
    assert steps(found) == [("cpu", (0, 1, 2, 3))]
    assert found.choices[1].others == {"npu": "supports it only fused in a group of 2 or more"}


def test_a_group_with_an_operation_that_is_elsewhere_is_no_group():
    held = offer("npu", 1.0, "nnn", group(0.01, 0, 1, 2), excluded=frozenset((1,)), excluded_why="failed")
    found = partition(relus(3, LARGE), [offer("cpu", 1.0, "yyy"), held])
    assert steps(found) == [("cpu", (0, 1, 2))] and found.choices[1].others == {"npu": "failed"}


def test_enough_of_a_group_are_enough():
    held = offer("npu", 1.0, "nnnnn", group(0.01, 0, 1, 2, 3, 4, at_least=2), excluded=frozenset((2,)))
    found = partition(relus(5, LARGE), [offer("cpu", 1.0, "yyyyy"), held])
    assert steps(found) == [("npu", (0, 1)), ("cpu", (2,)), ("npu", (3, 4))]
    assert found.choices[0].reason == "fused: npu runs 2 operations as one, declared 0.01x reference time"


def test_too_few_of_a_group_are_not():
    held = offer("npu", 1.0, "nnnnn", group(0.01, 0, 1, 2, 3, 4, at_least=3), excluded=frozenset((2,)))
    assert steps(partition(relus(5, LARGE), [offer("cpu", 1.0, "yyyyy"), held])) == [("cpu", (0, 1, 2, 3, 4))]


def test_what_is_taken_alone_too_has_its_own_price_without_the_others():
    ours = offer("npu", 0.5, "yyy", group(0.01, 0, 1))
    assert partition(relus(3, LARGE), [ours]).choices[2].reason == "the only device asked"
    lost = offer("npu", 0.5, "yyy", group(0.01, 0, 1), excluded=frozenset((1,)))
    found = partition(relus(3, LARGE), [offer("cpu", 1.0, "yyy"), lost])
    assert [c.device for c in found.choices] == ["npu", "cpu", "npu"]
    assert found.choices[0].reason == "declared 0.5x reference time, the fastest" and not found.choices[0].together


def test_what_only_a_group_takes_brings_the_others_along():
    """Nobody else has a RELU; the operations before it would be faster elsewhere."""
    model = relus(3, LARGE)
    found = partition(model, [offer("cpu", 0.1, "yyn"), offer("npu", 1.0, "nnn", group(2.0, 1, 2))])
    assert steps(found) == [("cpu", (0,)), ("npu", (1, 2))]


def test_a_group_waits_for_what_one_of_it_needs():
    """Whatever is ready first: `left` of the group could run at once, `right` only after the CPU's."""
    model = make_model(lambda b, x: b.add(b.relu(x), b.tanh(b.floor(x))), (1_000_000,))
    (tanh,) = (n for n, o in enumerate(model.main.operations) if o.inputs[0] == model.main.operations[n - 1].outputs[0])
    takes = ["y"] * 4
    takes[0] = takes[tanh] = "n"
    npu = offer("npu", 1.0, "nnnn", group(0.01, 0, tanh))
    assert steps(partition(model, [offer("cpu", 1.0, "".join(takes)), npu])) == [
        ("cpu", (1,)), ("npu", (0, 2)), ("cpu", (3,)),
    ]  # fmt: skip


def test_a_group_around_something_else_cannot_stand_and_says_so():
    with pytest.raises(
        UnsupportedModel, match=r"no device supports 2 of 3 operations: RELU #0, RELU #2: cpu: not by itself, npu: s"
    ):
        partition(relus(3, LARGE), [offer("cpu", 1.0, "nyn"), offer("npu", 1.0, "nnn", group(0.01, 0, 2))])
    found = partition(relus(3, LARGE), [offer("cpu", 1.0, "yyy"), offer("npu", 1.0, "nnn", group(0.01, 0, 2))])
    assert steps(found) == [("cpu", (0, 1, 2))]


def test_of_two_groups_that_wait_for_each_other_one_stands():
    b = Builder()
    x = b.input((1_000_000,))
    one, two = b.relu(x), b.tanh(x)
    model = b.finish([x], [b.floor(b.relu1(one)), b.logistic(b.relu6(two))])
    place = {operation_name(o.type): n for n, o in enumerate(model.main.operations)}
    npu = offer("npu", 1.0, "n" * 6, group(0.01, place["RELU"], place["LOGISTIC"]))
    dsp = offer("dsp", 1.0, "n" * 6, group(0.01, place["TANH"], place["FLOOR"]))
    found = partition(model, [offer("cpu", 1.0, "y" * 6), npu, dsp])
    scheduled = [c for c in found.choices if c.together]
    assert len(scheduled) == 2 and len({c.device for c in scheduled}) == 1


def test_devices_that_each_need_of_what_others_want_share_it():
    """Only npu takes 0, only dsp takes 2, only gpu takes 4; both need one more, and npu has enough without those."""
    model = make_model(lambda b, x: [b.relu(x) for _ in range(6)], (1000,))
    npu = offer("npu", 1.0, "nnnnnn", group(0.01, 0, 1, 3, 5, at_least=2))
    dsp, gpu = (offer(name, 1.0, "nnnnnn", group(0.02, *g)) for name, g in (("dsp", (1, 2)), ("gpu", (3, 4))))
    assert steps(partition(model, [npu, dsp, gpu])) == [("npu", (0, 5)), ("dsp", (1, 2)), ("gpu", (3, 4))]


def test_low_power_asks_for_the_power_of_the_group():
    frugal = offer("npu", 1.0, "nn", group(5.0, 0, 1, power=0.1))
    found = partition(relus(2, LARGE), [offer("cpu", 1.0, "yy"), frugal], Preference.LOW_POWER)
    assert found.choices[0].reason == "fused: npu runs 2 operations as one, declared 0.1x reference power"
    assert steps(partition(relus(2, LARGE), [offer("cpu", 1.0, "yy"), frugal])) == [("cpu", (0, 1))]


def test_one_operation_is_explained_with_its_group():
    groups = group(0.01, 0, 1), group(0.01, 2, 3)
    found = Placement(partition(relus(4, LARGE), [offer("npu", 1.0, "nnnn", *groups)]))
    assert (
        found.why(2)
        == "RELU #2 -> npu (partition 0): fused: npu runs 2 operations as one, declared 0.01x reference time"
    )


# -------------------------------------------------------------------------------------------------- whatever comes


@st.composite
def models(draw) -> Model:
    """Some dozen operations, each of one or two values before it; not all of them are read."""
    b = Builder()
    values = [b.input((draw(st.sampled_from([1, 1000, 100_000])),))]
    for _ in range(draw(st.integers(1, 12))):
        x, y = (draw(st.sampled_from(values)) for _ in "xy")
        values.append(b.relu(x) if draw(st.booleans()) else b.add(x, y))
    outputs = draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=3, unique_by=id))
    return b.finish(values[:1], outputs)


@st.composite
def offers(draw, count: int) -> list[Offer]:
    found = []
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        left, groups = draw(st.permutations(range(count))), []
        for size in draw(st.lists(st.integers(1, 6), max_size=3)):
            members, left = left[:size], left[size:]
            if members:
                cost, power = draw(st.sampled_from(SPEEDS)), draw(st.sampled_from(SPEEDS))
                groups.append(group(cost, *members, at_least=draw(st.integers(0, len(members))), power=power))
        verdicts = "".join(draw(st.sampled_from("yyn")) for _ in range(count))
        lost = frozenset(draw(st.lists(st.integers(0, count - 1), max_size=2)))
        speed = draw(st.sampled_from(SPEEDS))
        found.append(offer(name, speed, verdicts, *groups, excluded=lost, step=draw(st.sampled_from([20e-6, 80e-6]))))
    return found


@st.composite
def questions(draw) -> tuple[Model, list[Offer]]:
    model = draw(models())
    return model, draw(offers(len(model.main.operations)))


def least(each: OperationGroup) -> int:
    return each.at_least or len(each.operations)


def group_of(o: Offer, n: int) -> OperationGroup | None:
    return next((each for each in o.groups if n in each.operations), None)


def stands(o: Offer, n: int, together: Sequence[int]) -> bool:
    """Whether a device runs an operation as one with others of these."""
    mine = group_of(o, n)
    return mine is not None and len(set(together) & set(mine.operations) - o.excluded) >= least(mine)


def price(model: Model, by_name: dict[str, Offer], found: Sequence[tuple[str, Sequence[int]]]) -> float:
    """Of steps, as `costs` says."""
    seconds, total, on = costs.seconds(model), 0.0, {}
    for device, operations in found:
        o = by_name[device]
        total += o.step
        for n in operations:
            on[n], mine = device, group_of(o, n)
            together = mine is not None and stands(o, n, operations)
            total += seconds[n] * (mine.performance if together else o.capabilities.operands[3]).exec_time
    (size,) = model.main.operands[model.main.inputs[0]].dimensions
    writer = {i: n for n, o in enumerate(model.main.operations) for i in o.outputs}
    crossing = {
        (i, on[n])
        for n in on
        for i in model.main.operations[n].inputs
        if i in writer and on[writer[i]] != on[n]
    }  # fmt: skip
    return total + len(crossing) * (costs.CROSSING + costs.BYTE * 4 * size)


def whole(model: Model, o: Offer) -> bool:
    """Whether a device takes all of a model."""
    needed = live_operands(model)
    return all(n not in o.excluded and (o.verdicts[n].ok or stands(o, n, needed)) for n in needed)


@settings(max_examples=200)
@given(questions(), st.sampled_from([Preference.FAST_SINGLE_ANSWER, Preference.LOW_POWER]))
def test_every_operation_runs_once_where_it_is_taken_in_order_and_at_a_price_that_no_single_device_beats(
    asked, preference
):
    model, held = asked
    by_name = {o.device: o for o in held}
    try:
        found = partition(model, held, preference)
    except UnsupportedModel:
        assert not any(whole(model, o) for o in held)
        return
    assert found == partition(model, held, preference)
    placed = [n for _, operations in found.steps for n in operations]
    assert sorted(placed) == sorted(live_operands(model))
    step_of = {n: number for number, step in enumerate(found.steps) for n in step.operations}
    writer = {i: n for n, o in enumerate(model.main.operations) for i in o.outputs}
    for n, number in step_of.items():
        device, operations = found.steps[number]
        o, choice = by_name[device], found.choices[n]
        assert choice.device == device and n not in o.excluded
        assert o.verdicts[n].ok or stands(o, n, operations)
        assert bool(choice.together) == stands(o, n, operations)
        assert not choice.together or f"{device} runs {len(choice.together)} operations as one" in choice.reason
        assert set(choice.others) == set(by_name) - {device}
        assert all(step_of[writer[i]] <= number for i in model.main.operations[n].inputs if i in writer)
    searched = len(found.steps) > 1 or any(
        c.together for c in found.choices
    )  # else all go to the best by what is stated
    if preference == Preference.FAST_SINGLE_ANSWER and searched:
        now = price(model, by_name, found.steps)
        for o in held:
            if whole(model, o):
                assert now <= price(model, by_name, [(o.device, live_operands(model))]) * (1 + 1e-9)
