"""The partitioner: best stated performance, few steps, reasons for everything."""

import pytest

from nnhal.base.codes import Preference
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.levels import FL8, V1_0, V1_2, V1_3
from nnhal.frontends.python import Builder
from nnhal.hal.device import Capabilities, Verdict
from nnhal.model.graph import Model
from nnhal.runtime.partition import Offer, partition


def chain(length: int) -> Model:
    b = Builder()
    x = y = b.input((1, 8, 8, 3))
    for _ in range(length):
        y = b.average_pool_2d(y, padding="same", filter_size=2)
    return b.finish([x], [y])


def offer(name: str, time: float, takes: str, power: float = 1.0, level=FL8) -> Offer:
    verdicts = [Verdict(c == "y", "" if c == "y" else "too small") for c in takes]
    return Offer(name, level, Capabilities.uniform(time, power), verdicts)


def test_the_faster_device_gets_everything():
    found = partition(chain(3), [offer("slow", 1.0, "yyy"), offer("fast", 0.1, "yyy")])
    assert [(s.device, s.operations) for s in found.steps] == [("fast", (0, 1, 2))]
    assert found.transfers == 0


def test_every_choice_says_why_and_why_not():
    found = partition(chain(1), [offer("slow", 1.0, "y"), offer("fast", 0.1, "y"), offer("picky", 0.01, "n")])
    choice = found.choices[0]
    assert choice.reason == "states 0.1 of the CPU's time, the best"
    assert choice.others == {"slow": "states 1 of the CPU's time", "picky": "too small"}


def test_what_one_device_refuses_goes_to_the_other_and_transfers_are_counted():
    found = partition(chain(3), [offer("fast", 0.1, "yny"), offer("cpu", 1.0, "yyy")])
    assert [s.device for s in found.steps] == ["fast", "cpu", "fast"]
    assert found.transfers == 2


def test_low_power_asks_for_power():
    offers = [offer("fast", 0.1, "y", power=5.0), offer("frugal", 1.0, "y", power=0.5)]
    assert partition(chain(1), offers, Preference.LOW_POWER).steps[0].device == "frugal"


def test_a_device_below_the_level_of_an_operation_does_not_get_it():
    b = Builder()
    x = b.input((1, 8, 8, 3), "TENSOR_FLOAT16")
    model = b.finish([x], [b.max_pool_2d(x, padding="same", filter_size=2)])
    found = partition(model, [offer("old", 0.1, "y", level=V1_0), offer("new", 1.0, "y", level=V1_2)])
    assert found.steps[0].device == "new"
    assert found.choices[0].others["old"] == "needs level 1.2, the device is at 1.0"


def test_a_device_below_the_level_of_what_a_branch_does_does_not_get_the_branch():
    b = Builder()
    x = b.input((2,), "TENSOR_INT32")
    branches = []
    for _ in range(2):
        sub, deep = b.subgraph(), b.subgraph()
        z = deep.input((2,), "TENSOR_INT32")
        late = deep.finish_subgraph([z], [deep.reshape(z, [2])])
        y = sub.input((2,), "TENSOR_INT32")
        branches.append(sub.finish_subgraph([y], [sub.if_([True], late, late, [y], out_type="TENSOR_INT32")]))
    model = b.finish([x], [b.if_([True], *branches, [x], out_type="TENSOR_INT32")])
    found = partition(model, [offer("old", 0.1, "y", level=V1_3), offer("new", 1.0, "y")])
    assert [step.device for step in found.steps] == ["new"]
    assert found.choices[0].others["old"] == "needs level feature level 6, the device is at 1.3"


def test_operations_that_nobody_takes_are_all_listed():
    with pytest.raises(
        UnsupportedModel, match=r"no device takes 2 of 3 operations: .*#0: d: too small; .*#2: d: too small"
    ):
        partition(chain(3), [offer("d", 1.0, "nyn")])


def test_independent_operations_share_a_step():
    b = Builder()
    x = b.input((1, 8, 8, 3))
    left = b.average_pool_2d(b.average_pool_2d(x, padding="same", filter_size=2), padding="same", filter_size=2)
    right = b.average_pool_2d(b.average_pool_2d(x, padding="same", filter_size=2), padding="same", filter_size=2)
    model = b.finish([x], [left, right])
    found = partition(model, [offer("a", 0.1, "ynyn"), offer("b", 1.0, "yyyy")])
    assert [(s.device, s.operations) for s in found.steps] == [("a", (0, 2)), ("b", (1, 3))]


def test_the_same_facts_give_the_same_partition():
    offers = [offer("a", 0.5, "yny"), offer("b", 0.5, "yyy")]
    assert partition(chain(3), offers) == partition(chain(3), offers)


def test_offers_that_cannot_be_told_apart_are_refused():
    with pytest.raises(InvalidArgument, match="offers: devices are a, a, must have labels that differ"):
        partition(chain(1), [offer("a", 0.5, "y"), offer("a", 0.1, "y")])


# ------------------------------------------------------------------------------------------------ results nobody reads


def test_an_operation_whose_result_nobody_reads_runs_nowhere_and_asks_for_no_device():
    b = Builder()
    x = b.input((1, 8, 8, 3))
    b.relu6(b.relu(x))
    y = b.average_pool_2d(x, padding="same", filter_size=2)
    b.relu(y)
    found = partition(b.finish([x], [y]), [offer("a", 0.1, "nnyn"), offer("b", 1.0, "nnnn")])
    assert [(s.device, s.operations) for s in found.steps] == [("a", (2,))]
    assert [(c.device, c.reason) for c in found.choices if c.operation != 2] == [
        ("", "nobody reads what it gives, so it does not run")
    ] * 3


def test_what_crosses_only_to_be_forgotten_is_no_transfer():
    b = Builder()
    x = b.input((1, 8, 8, 3))
    y = b.relu(x)
    z = b.relu6(y)
    b.tanh(y)
    found = partition(b.finish([x], [z]), [offer("a", 0.1, "ynn"), offer("b", 1.0, "nyy")])
    assert found.transfers == 1 and [s.operations for s in found.steps] == [(0,), (1,)]
