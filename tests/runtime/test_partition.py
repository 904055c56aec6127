"""The partitioner: best stated performance, few steps, reasons for everything."""

from dataclasses import replace

import pytest

from nnhal.base.codes import OperandType, OperationType, Preference
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.extensions import register_extension
from nnhal.base.levels import FL8, V1_0, V1_2, V1_3
from nnhal.frontends.python import Builder
from nnhal.hal.device import Capabilities, Performance, Verdict
from nnhal.model.graph import Model
from nnhal.runtime.partition import Offer, Partition, partition
from nnhal.runtime.partition import _stated as stated_for
from tests import models
from tests.models import make_model, make_subgraph, operation_chain, relus


def chain(length: int) -> Model:
    return models.chain("average_pool_2d", length, (1, 8, 8, 3), padding="same", filter_size=2)


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
    assert choice.reason == "declared 0.1x reference time, the fastest"
    assert choice.others == {"slow": "declared 1x reference time", "picky": "too small"}


def test_a_choice_tells_what_the_chosen_device_says_of_an_operation_that_it_takes():
    slow, fast = offer("slow", 1.0, "yy"), offer("fast", 0.1, "yy")
    told = replace(fast, verdicts=[Verdict(True, "run in float32"), Verdict(True)])
    other = replace(slow, verdicts=[Verdict(True, "as ever"), Verdict(True)])
    first, second = partition(chain(2), [other, told]).choices
    assert first.reason == "declared 0.1x reference time, the fastest; run in float32"
    assert second.reason == "declared 0.1x reference time, the fastest"


def test_what_one_device_refuses_goes_to_the_other_and_transfers_are_counted():
    found = partition(chain(3), [offer("fast", 0.1, "yny"), offer("cpu", 1.0, "yyy")])
    assert [s.device for s in found.steps] == ["fast", "cpu", "fast"]
    assert found.transfers == 2


def test_low_power_asks_for_power():
    offers = [offer("fast", 0.1, "y", power=5.0), offer("frugal", 1.0, "y", power=0.5)]
    assert partition(chain(1), offers, Preference.LOW_POWER).steps[0].device == "frugal"


def test_a_device_below_the_level_of_an_operation_does_not_get_it():
    model = make_model(lambda b, x: b.max_pool_2d(x, padding="same", filter_size=2), ((1, 8, 8, 3), "TENSOR_FLOAT16"))
    found = partition(model, [offer("old", 0.1, "y", level=V1_0), offer("new", 1.0, "y", level=V1_2)])
    assert found.steps[0].device == "new"
    assert found.choices[0].others["old"] == "needs level 1.2, the device is at 1.0"


def test_a_device_below_the_level_of_what_a_branch_does_does_not_get_the_branch():
    b = Builder()
    x = b.input((2,), "TENSOR_INT32")
    kind = (2,), "TENSOR_INT32"
    late = make_subgraph(b, lambda s, y: s.reshape(y, [2]), kind)
    branches = [
        make_subgraph(b, lambda s, y: s.if_([True], late, late, [y], out_type="TENSOR_INT32"), kind) for _ in range(2)
    ]
    model = b.finish([x], [b.if_([True], *branches, [x], out_type="TENSOR_INT32")])
    found = partition(model, [offer("old", 0.1, "y", level=V1_3), offer("new", 1.0, "y")])
    assert [step.device for step in found.steps] == ["new"]
    assert found.choices[0].others["old"] == "needs level feature level 6, the device is at 1.3"


def test_operations_that_nobody_takes_are_listed_by_reason():
    with pytest.raises(
        UnsupportedModel,
        match=r"no device supports 2 of 3 operations: AVERAGE_POOL_2D #0, AVERAGE_POOL_2D #2: d: too small$",
    ):
        partition(chain(3), [offer("d", 1.0, "nyn")])


def test_of_many_operations_that_nobody_takes_the_first_of_each_reason_are_listed():
    verdicts = [Verdict(False, "too small" if n % 2 else f"too large by {n}") for n in range(40)]
    with pytest.raises(UnsupportedModel) as caught:
        partition(chain(40), [Offer("d", FL8, Capabilities.uniform(1.0), verdicts)])
    head, *reasons = str(caught.value).split("; ")
    assert head == "no device supports 40 of 40 operations: AVERAGE_POOL_2D #0: d: too large by 0"
    firsts = ", ".join(f"AVERAGE_POOL_2D #{n}" for n in (1, 3, 5, 7))
    assert reasons[0] == f"{firsts} and 16 more: d: too small"
    assert len(reasons) == 8 and reasons[-1] == "13 other reasons for other operations"


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
        ("", "does not run: its results are not used")
    ] * 3


def test_what_crosses_only_to_be_forgotten_is_no_transfer():
    b = Builder()
    x = b.input((1, 8, 8, 3))
    y = b.relu(x)
    z = b.relu6(y)
    b.tanh(y)
    found = partition(b.finish([x], [z]), [offer("a", 0.1, "ynn"), offer("b", 1.0, "nyy")])
    assert found.transfers == 1 and [s.operations for s in found.steps] == [(0,), (1,)]


# --------------------------------------------------------------------------------------------------- who may have what


def saying(name: str, capabilities: Capabilities, takes: str = "y", **more) -> Offer:
    return Offer(name, FL8, capabilities, [Verdict(c == "y") for c in takes], **more)


def others(found: Partition, operation: int = 0) -> dict[str, str]:
    return dict(found.choices[operation].others)


def test_a_refusal_without_a_reason_names_the_operation():
    found = partition(
        relus(1, 100), [saying("a", Capabilities.uniform(1.0)), saying("b", Capabilities.uniform(0.1), "n")]
    )
    assert others(found) == {"b": "does not support RELU"}


def test_what_is_excluded_says_why():
    a = offer("a", 1.0, "yy")
    for why, said in (("failed to prepare", "failed to prepare"), ("", "is excluded")):
        b = replace(offer("b", 0.1, "yy"), excluded=frozenset((0, 1)), excluded_why=why)
        found = partition(relus(2, 100), [a, b])
        assert others(found, 0) == others(found, 1) == {"b": said}
        assert [c.device for c in found.choices] == ["a", "a"]
    half = replace(offer("b", 0.0001, "yy"), excluded=frozenset((1,)))
    assert [c.device for c in partition(relus(2, 10_000_000), [a, half]).choices] == ["b", "a"]


def test_an_operation_of_an_extension_goes_to_devices_that_have_it():
    extension = register_extension("com.example.placed", [], ["OP"])
    names = [(extension.name, extension.prefix)]
    model = operation_chain((OperandType.TENSOR_FLOAT32, (4,)), extension.operation("OP"), extensions=names)
    knows, not_ = replace(offer("a", 1.0, "y"), extensions=("com.example.placed",)), offer("b", 0.1, "y")
    found = partition(model, [knows, not_])
    assert found.choices[0].device == "a" and others(found) == {
        "b": "does not support the extension com.example.placed"
    }
    with pytest.raises(UnsupportedModel, match=r"b: does not support the extension com\.example\.placed$"):
        partition(model, [not_])


def test_an_operation_needs_its_level_and_no_more():
    model = relus(1, 100)
    assert partition(model, [offer("a", 1.0, "y", level=V1_0)]).choices[0].reason == "the only device asked"


def test_of_equal_devices_the_first_named_has_it():
    for names in ("ab", "ba"):
        found = partition(relus(1, 100), [offer(name, 0.5, "y") for name in names])
        assert found.choices[0].device == names[0]
        assert found.choices[0].reason == "declared 0.5x reference time, the fastest"
        assert others(found) == {names[1]: "declared 0.5x reference time"}


def test_the_only_one_that_takes_it_is_told_from_the_only_one_asked():
    alone = partition(relus(1, 100), [offer("a", 0.5, "y")])
    only = partition(relus(1, 100), [offer("a", 0.5, "y"), offer("b", 0.1, "n")])
    assert [f.choices[0].reason for f in (alone, only)] == ["the only device asked", "the only device that supports it"]
    assert dict(alone.choices[0].costs) == dict(only.choices[0].costs) == {"a": 0.5}


def test_power_is_told_as_such():
    offers = [offer("fast", 0.1, "y", power=5.0), offer("frugal", 1.0, "y", power=0.5)]
    choice = partition(relus(1, 100), offers, Preference.LOW_POWER).choices[0]
    assert choice.reason == "declared 0.5x reference power, the lowest"
    assert dict(choice.others) == {"fast": "declared 5x reference power"}


def test_for_low_power_steps_are_not_weighed():
    """What crosses costs time; nobody knows the power."""
    offers = [offer("a", 1.0, "yyy", power=1.0), offer("b", 1.0, "nyn", power=0.99)]
    assert [s.device for s in partition(relus(3, 100), offers, Preference.LOW_POWER).steps] == ["a", "b", "a"]
    for preference in (Preference.FAST_SINGLE_ANSWER, Preference.SUSTAINED_SPEED):
        fast = [offer("a", 1.0, "yyy"), offer("b", 0.99, "nyn")]
        assert [s.device for s in partition(relus(3, 100), fast, preference).steps] == ["a"]


def test_who_states_nothing_comes_last_and_is_weighed_as_the_cpu():
    silent, stated = saying("a", Capabilities(), "yyyyyyy"), offer("b", 9.0, "yyyyyyy")
    assert partition(relus(7, 100), [silent, stated]).choices[0].device == "b"
    assert partition(relus(7, 100), [silent]).choices[0].device == "a"
    first = saying("a", Capabilities(), "ynnnnnn")
    better = [offer("b", 0.05, "nyyyyyy"), offer("c", 0.01, "nnnyynn")]
    assert "".join(c.device for c in partition(relus(7, 100), [first, *better]).choices) == "abbbbbb"


def table(**types: float) -> Capabilities:
    return Capabilities({OperandType[name]: Performance(time, 1.0) for name, time in types.items()})


def test_the_type_that_decides_is_that_of_the_first_operand_that_carries_weight():
    b = Builder()
    indices, x = b.input((2,), "TENSOR_INT32"), b.input((5, 4), "TENSOR_FLOAT16")
    model = b.finish([indices, x], [b.embedding_lookup(indices, x)])
    ours = saying("a", table(TENSOR_INT32=9.0, TENSOR_FLOAT16=0.5, TENSOR_FLOAT32=7.0))
    other = saying("b", table(TENSOR_INT32=0.1, TENSOR_FLOAT16=0.6, TENSOR_FLOAT32=0.1))
    choice = partition(model, [ours, other]).choices[0]
    assert (choice.device, dict(choice.costs)) == ("a", {"a": 0.5, "b": 0.6})
    choice = partition(make_model(lambda b, n: b.abs(n), ((2,), "TENSOR_INT32")), [ours, other]).choices[0]
    assert dict(choice.costs) == {"a": 9.0, "b": 0.1}


def test_operations_of_one_kind_and_different_types_are_judged_apart():
    model = make_model(lambda b, x, h: [b.relu(x), b.relu(h)], (4,), ((4,), "TENSOR_FLOAT16"))
    ours = saying("a", table(TENSOR_FLOAT32=0.5, TENSOR_FLOAT16=0.25), "yy")
    assert [dict(c.costs) for c in partition(model, [ours]).choices] == [{"a": 0.5}, {"a": 0.25}]


def test_relaxed_models_have_a_performance_of_their_own():
    stated = replace(table(TENSOR_FLOAT32=0.5), relaxed_tensor=Performance(0.125, 1.0))
    model = relus(1, 100)
    for relaxed, cost in ((False, 0.5), (True, 0.125)):
        found = partition(replace(model, relaxed=relaxed), [saying("a", stated)])
        assert dict(found.choices[0].costs) == {"a": cost}


def test_control_flow_has_a_performance_of_its_own():
    stated = replace(
        table(TENSOR_FLOAT32=9.0, TENSOR_BOOL8=8.0),
        if_performance=Performance(0.25, 1.0),
        while_performance=Performance(0.5, 1.0),
    )
    operation = relus(1, 100).main.operations[0]
    for kind, expected in ((OperationType.IF, 0.25), (OperationType.WHILE, 0.5), (OperationType.RELU, 9.0)):
        found = stated_for(stated, replace(operation, type=kind), OperandType.TENSOR_FLOAT32, False)
        assert found is not None and found.exec_time == expected


def test_a_transfer_is_an_operand_and_who_reads_it():
    b = Builder()
    x = b.input((1, 8, 8, 3))
    y = b.relu(x)
    model = b.finish([x], [b.relu6(y), b.tanh(y), b.add(y, y), b.logistic(y)])
    offers = [offer("a", 1.0, "ynnnn"), offer("b", 1.0, "nyyny"), offer("c", 1.0, "nnnyn")]
    assert partition(model, offers).transfers == 2
