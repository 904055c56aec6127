"""Steps and crossings count: an operation goes to the best device only where that is worth a step of its own."""

import itertools
import random

import pytest

from nnhal.frontends.python import Builder
from nnhal.hal.device import Capabilities, Verdict
from nnhal.model.graph import Model
from nnhal.runtime.partition import Offer, Partition, partition
from tests.models import make_model, relus


def offer(name: str, time: float, takes, **more) -> Offer:
    return Offer(name, 9, Capabilities.uniform(time), [Verdict(bool(t), "" if t else "no") for t in takes], **more)


def of(found: Partition) -> str:
    return "".join(choice.device for choice in found.choices)


def test_small_operations_between_others_stay_with_them():
    found = partition(relus(9, 100), [offer("a", 0.05, [1] * 9), offer("b", 0.01, [0, 0, 1] * 3)])
    assert of(found) == "a" * 9
    choice = found.choices[2]
    assert choice.reason == (
        "declared 0.05x reference time; a separate partition on b (declared 0.01x reference time) would cost more than it "
        "saves"
    )
    assert choice.others == {
        "b": "declared 0.01x reference time: faster alone, but a separate partition would cost more than it saves"
    }
    assert found.choices[0].others == {"b": "no"}


def test_large_operations_are_worth_a_step():
    found = partition(relus(3, 10_000_000), [offer("a", 1.0, [1, 1, 1]), offer("b", 0.01, [0, 1, 0])])
    assert of(found) == "aba"


def test_several_together_are_worth_what_one_is_not():
    assert of(partition(relus(22, 100), [offer("a", 0.5, [1] * 22), offer("b", 0.05, [0, 1, *[0] * 20])])) == "a" * 22
    many = [0, *[1] * 20, 0]
    assert of(partition(relus(22, 100), [offer("a", 0.5, [1] * 22), offer("b", 0.05, many)])) == "a" + "b" * 20 + "a"


def test_what_a_step_costs_is_the_devices():
    takes = [0, *[1] * 4, 0]
    near = partition(relus(6, 100), [offer("a", 1.0, [1] * 6), offer("b", 0.2, takes, step=20e-6)])
    far = partition(relus(6, 100), [offer("a", 1.0, [1] * 6), offer("b", 0.2, takes, step=500e-6)])
    assert (of(near), of(far)) == ("abbbba", "aaaaaa")


def test_what_no_other_device_takes_stays_where_it_is():
    found = partition(relus(3, 10), [offer("a", 0.05, [1, 0, 1]), offer("b", 0.01, [0, 1, 0])])
    assert of(found) == "aba"


def price(model: Model, offers, devices) -> float:
    """As the module says, of RELU: 50 us and 1 ns an element on the reference, 2 us and 0.2 ns a byte to another device."""
    (size,) = model.main.operands[model.main.inputs[0]].dimensions
    stated = {o.device: o.capabilities.operands[3].exec_time for o in offers}
    steps = {o.device: o.step for o in offers}
    runs = [device for device, _ in itertools.groupby(devices)]
    work = 50e-6 + 2 * size * 1e-9
    crossing = 2e-6 + 4 * size * 0.2e-9
    return sum(stated[d] * work for d in devices) + sum(steps[d] for d in runs) + (len(runs) - 1) * crossing


@pytest.mark.parametrize("seed", range(40))
def test_the_price_is_near_the_least_that_there_is(seed):
    rng = random.Random(seed)
    length = 7
    model = relus(length, 10 ** rng.randint(1, 6))
    offers = [
        offer("a", 1.0, [1] * length),
        offer("b", rng.choice([0.1, 0.5]), [rng.random() < 0.7 for _ in range(length)]),
        offer(
            "c", rng.choice([0.02, 0.3]), [rng.random() < 0.5 for _ in range(length)], step=rng.choice([20e-6, 80e-6])
        ),
    ]
    found = partition(model, offers)
    takes = [[o.device for o in offers if o.verdicts[n].ok] for n in range(length)]
    assert all(device in takes[n] for n, device in enumerate(of(found)))
    prices = {"".join(devices): price(model, offers, devices) for devices in itertools.product(*takes)}
    assert prices[of(found)] <= 1.1 * min(prices.values())
    stated = {o.device: o.capabilities.operands[3].exec_time for o in offers}
    first = "".join(min(there, key=stated.__getitem__) for there in takes)
    assert prices[of(found)] <= prices[first]


def test_branches_and_several_readers():
    """A diamond whose middle is better elsewhere by little: all on one device."""
    b = Builder()
    x = b.input((64,))
    left, right = b.relu(x), b.tanh(x)
    y = b.add(b.relu(left), b.relu(right))
    model = b.finish([x], [y, left])
    found = partition(model, [offer("a", 0.1, [1] * 5), offer("b", 0.05, [0, 1, 1, 0, 0])])
    assert of(found) == "aaaaa"
    assert found.transfers == 0


def test_unknown_shapes_and_types_without_elements_have_a_price():
    model = make_model(lambda b, x: b.relu(b.relu(b.relu(x))), (None, 4))
    assert of(partition(model, [offer("a", 0.5, [1, 1, 1]), offer("b", 0.4, [0, 1, 0])])) == "aaa"
