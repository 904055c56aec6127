"""Steps: what runs together and in which order, once it is known where each operation goes."""

import pytest

from nnhal.base.codes import OperandType
from nnhal.frontends.python import Builder
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.runtime.schedule import FusionGroup, Schedule, ScheduledGroup, StepPlan


def graph(reads: str) -> Model:
    """Operations that read others by place, "-" for the input: "- 0 01" is an ADD of both at the end. All are outputs."""
    b = Builder()
    x = b.input((4,))
    made = []
    for sides in reads.split():
        values = [x if place == "-" else made[int(place)] for place in sides]
        made.append(b.relu(*values) if len(values) == 1 else b.add(*values))
    return b.finish([x], made)


def steps(reads: str, devices: str, *groups: FusionGroup) -> list[tuple[str, tuple[int, ...]]]:
    claimed: dict[str, dict[int, FusionGroup]] = {}
    for group in groups:
        claimed.setdefault(group.device, {}).update(dict.fromkeys(group.operations, group))
    return [tuple(step) for step in Schedule(graph(reads), claimed).steps(["" if d == "." else d for d in devices])]


@pytest.mark.parametrize(
    ("reads", "devices", "expected"),
    [
        ("- 0 1 2", "aaaa", [("a", (0, 1, 2, 3))]),
        ("- 0 1 2", "aabb", [("a", (0, 1)), ("b", (2, 3))]),
        ("- 0 1 2", "abab", [("a", (0,)), ("b", (1,)), ("a", (2,)), ("b", (3,))]),
        ("- - 0 1", "aabb", [("a", (0, 1)), ("b", (2, 3))]),
        ("- - 0 1", "abab", [("a", (0, 2)), ("b", (1, 3))]),
        ("- - 0 1", "abba", [("a", (0,)), ("b", (1, 2)), ("a", (3,))]),
        ("- - 01 2", "baaa", [("b", (0,)), ("a", (1, 2, 3))]),  # what is ready first begins, on all its device
        ("- - 01 2", "abaa", [("a", (0,)), ("b", (1,)), ("a", (2, 3))]),
        ("- 0 0 12", "abab", [("a", (0, 2)), ("b", (1, 3))]),
        ("- 00 1", "aba", [("a", (0,)), ("b", (1,)), ("a", (2,))]),  # one that reads another twice waits for it once
        ("- 0 0 0 12 34", "abbaab", [("a", (0, 3)), ("b", (1, 2)), ("a", (4,)), ("b", (5,))]),
    ],
)
def test_all_that_is_ready_on_a_device_runs_before_the_next_gets_its_turn(reads, devices, expected):
    assert steps(reads, devices) == expected


def pair(device: str, *operations: int, at_least: int = 2) -> FusionGroup:
    return FusionGroup(device, operations, at_least, 0.5)


@pytest.mark.parametrize(
    ("reads", "devices", "groups", "expected"),
    [
        # 0 could run at once, and waits for 2, which waits for another device
        ("- - 1", "aba", [pair("a", 0, 2)], [("b", (1,)), ("a", (0, 2))]),
        ("- - 1", "aba", [], [("a", (0,)), ("b", (1,)), ("a", (2,))]),
        # those that are elsewhere are not waited for
        ("- - 1", "abb", [pair("a", 0, 2)], [("a", (0,)), ("b", (1, 2))]),
        ("- - 1", "aba", [pair("c", 0, 2)], [("a", (0,)), ("b", (1,)), ("a", (2,))]),
        # too few on the device do not wait, enough do
        ("- - 1 0", "abab", [pair("a", 0, 2, 3, at_least=3)], [("a", (0,)), ("b", (1, 3)), ("a", (2,))]),
        ("- - 1 0", "abab", [pair("a", 0, 2, 3, at_least=2)], [("b", (1,)), ("a", (0, 2)), ("b", (3,))]),
        # alone it waits for nobody
        ("- - 1", "abb", [pair("a", 0, 2, at_least=1)], [("a", (0,)), ("b", (1, 2))]),
        # what needs one and is needed by the other keeps them apart
        ("- 0 1", "aba", [pair("a", 0, 2)], [("a", (0,)), ("b", (1,)), ("a", (2,))]),
        # of two that wait for each other the larger waits no more, or the first of those as large
        (
            "- - 0 1",
            "abba",
            [pair("a", 0, 3), pair("b", 1, 2)],
            [("a", (0,)), ("b", (1, 2)), ("a", (3,))],
        ),
        (
            "- - 0 1 1",
            "abbaa",
            [pair("a", 0, 3, 4), pair("b", 1, 2)],
            [("a", (0,)), ("b", (1, 2)), ("a", (3, 4))],
        ),
        (
            "- - 0 1 0",
            "abbab",
            [pair("a", 0, 3), pair("b", 1, 2, 4)],
            [("b", (1,)), ("a", (0, 3)), ("b", (2, 4))],
        ),
        # a chain within a group is one piece, and what reads it comes after all of it
        ("- 0 1 0", "aabb", [pair("a", 0, 1)], [("a", (0, 1)), ("b", (2, 3))]),
        # two rings, each of which is opened at its first
        (
            "- - 0 1 - - 4 5",
            "abbaabba",
            [pair("a", 0, 3), pair("b", 1, 2), pair("a", 4, 7), pair("b", 5, 6)],
            [("a", (0, 4)), ("b", (1, 2, 5, 6)), ("a", (3, 7))],
        ),
        # of a ring of three one waits no more
        (
            "- 0 - 2 - 4",
            "abbcca",
            [pair("a", 0, 5), pair("b", 1, 2), pair("c", 3, 4)],
            [("a", (0,)), ("b", (1, 2)), ("c", (3, 4)), ("a", (5,))],
        ),
    ],
)
def test_what_runs_as_one_waits_for_each_other_where_that_can_be(reads, devices, groups, expected):
    assert steps(reads, devices, *groups) == expected


@pytest.mark.parametrize("rings", [2, 6, 9])
def test_any_number_of_rings_is_taken_apart(rings):
    """Each pair of pairs waits for the one before."""
    reads, groups, devices = [], [], ""
    for n in range(rings):
        at = 4 * n
        before = "-" if n == 0 else None
        reads += [before or at - 2, before or at - 1, at, at + 1]
        devices += "abba"
        groups += [pair("a", at, at + 3), pair("b", at + 1, at + 2)]
    b = Builder()
    x = b.input((4,))
    made = []
    for place in reads:
        made.append(b.relu(x if place == "-" else made[place]))
    model = b.finish([x], made)
    claimed: dict[str, dict[int, FusionGroup]] = {"a": {}, "b": {}}
    for group in groups:
        claimed[group.device].update(dict.fromkeys(group.operations, group))
    found = Schedule(model, claimed).steps(list(devices))
    assert sorted(n for step in found for n in step.operations) == list(range(4 * rings))
    step_of = {n: number for number, step in enumerate(found) for n in step.operations}
    for n, place in enumerate(reads):
        assert place == "-" or step_of[place] <= step_of[n]


def test_units_that_all_wait_for_all_others_are_taken_apart_in_the_end():
    """To open one after the other would take longer than is tried."""
    count = 9
    b = ModelBuilder()
    x = b.operand(OperandType.TENSOR_FLOAT32, (4,))
    first = [b.operand(OperandType.TENSOR_FLOAT32, (4,)) for _ in range(count)]
    for each in first:
        b.operation("RELU", [x], [each])
    last = []
    axis = b.constant(OperandType.INT32, 0)
    for n in range(count):
        last.append(b.operand(OperandType.TENSOR_FLOAT32, (4 * (count - 1),)))
        b.operation("CONCATENATION", [*(each for m, each in enumerate(first) if m != n), axis], [last[-1]])
    model = b.finish([x], last)
    devices = [f"d{n}" for n in range(count)] * 2
    claimed = {f"d{n}": dict.fromkeys((n, count + n), pair(f"d{n}", n, count + n)) for n in range(count)}
    found = Schedule(model, claimed).steps(devices)
    assert sorted(n for step in found for n in step.operations) == list(range(2 * count))


def test_what_stands_in_one_step_with_enough_of_its_group_runs_as_one():
    held, few = FusionGroup("a", (0, 1, 4), 2, 0.5), FusionGroup("a", (2, 3), 2, 0.5)
    claimed = {"a": {**dict.fromkeys((0, 1, 4), held), **dict.fromkeys((2, 3), few)}}
    schedule = Schedule(graph("- - - - -"), claimed)
    found = schedule.scheduled([StepPlan("a", (0, 1, 2)), StepPlan("b", (3,)), StepPlan("a", (4,))])
    assert found == {n: ScheduledGroup(held, (0, 1)) for n in (0, 1)}
    assert schedule.scheduled([StepPlan("b", (0, 1, 2, 3, 4))]) == {}
    one = FusionGroup("a", (0,), 1, 0.5)
    assert Schedule(graph("- -"), {"a": {0: one}}).scheduled([StepPlan("a", (0, 1))]) == {0: ScheduledGroup(one, (0,))}


def test_what_does_not_run_is_in_no_step():
    b = Builder()
    x = b.input((4,))
    y = b.relu(x)
    b.relu6(y)
    schedule = Schedule(b.finish([x], [y]), {})
    assert schedule.steps(["a", ""]) == (StepPlan("a", (0,)),)
