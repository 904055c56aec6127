"""How an application wants operations placed: names, rules, a function; and what is none of these."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType, Preference
from nnhal.base.records import replace
from nnhal.frontends.python import Builder
from nnhal.hal.device import Capabilities, OperationGroup, Performance, Verdict
from nnhal.model.graph import Model
from nnhal.runtime import strategies
from nnhal.runtime.partition import Offer
from tests.models import relus
from tests.runtime.devices import Fake

FAST = Preference.FAST_SINGLE_ANSWER

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(1, 2, 2, 3)


def mixed() -> Model:
    b = Builder()
    x = b.input((1, 2, 2, 3), name="x")
    y = b.relu(b.add(x, x, name="sum"), name="clipped")
    q = b.quantize(y, out_type="TENSOR_QUANT8_ASYMM", scale=0.1, zero_point=0)
    return b.finish([x], [b.dequantize(q)])


class Other(Fake):
    name = "other"


def placed(placement: Any, *devices: Any, **more: Any) -> list[str]:
    compiled = nnhal.compile(mixed(), devices=[*devices, "reference"], placement=placement, **more)
    expected = nnhal.compile(mixed(), devices="reference")(X)
    np.testing.assert_array_equal(compiled(X), expected)
    return [choice.device for choice in compiled.placement]


def test_by_default_it_is_as_devices_state() -> None:
    assert placed(None, Fake()) == placed("stated", Fake()) == ["fake"] * 4


def test_rules_place_by_operation_number_name_and_type_and_the_first_that_fits_counts() -> None:
    rule = nnhal.Rule
    assert placed([rule("reference", "ADD")], Fake()) == ["reference", "fake", "fake", "fake"]
    assert placed([rule("reference", "#2")], Fake()) == ["fake", "fake", "reference", "fake"]
    assert placed([rule("reference", "*QUANTIZE")], Fake()) == ["fake", "fake", "reference", "reference"]
    assert placed([rule("reference", name="sum")], Fake()) == ["reference", "fake", "fake", "fake"]
    assert placed([rule("reference", type="TENSOR_QUANT8_*")], Fake()) == ["fake", "fake", "reference", "reference"]
    assert placed([rule("fake", "RELU"), rule("reference")], Fake()) == ["reference", "fake", "reference", "reference"]
    assert placed(rule("reference"), Fake()) == ["reference"] * 4


def test_a_partition_says_how_many_of_its_operations_a_rule_placed() -> None:
    compiled = nnhal.compile(mixed(), devices=[Fake(), "reference"], placement=[nnhal.Rule("fake", "ADD")])
    assert "(1 of 4 ops)" in str(compiled.placement) and compiled.placement.source == "declared"
    every = nnhal.compile(mixed(), devices=[Fake(), "reference"], placement=[nnhal.Rule("fake")])
    assert " ops)" not in str(every.placement) and every.placement.source == "by hand"


def test_the_type_of_a_rule_is_one_of_tensors_and_not_of_arguments() -> None:
    with_argument = nnhal.Rule("reference", type="*INT32")  # the activation of ADD is one
    assert placed(with_argument, Fake()) == ["fake"] * 4


def test_a_rule_that_fits_but_what_nobody_reads_is_told(caplog: pytest.LogCaptureFixture) -> None:
    b = nnhal.Builder()
    x = b.input((4,))
    b.neg(x)
    model = b.finish([x], [b.add(x, x)])
    nnhal.compile(model, devices=["reference"], placement=nnhal.Rule("reference", "NEG")).close()
    assert "no operation of the model that runs is what a rule is about" in caplog.text


def offer(name: str, takes: str) -> Offer:
    return Offer(name, 9, Capabilities.uniform(1.0), [Verdict(t == "y", "" if t == "y" else "no") for t in takes])


def test_a_group_without_what_a_rule_takes_away_is_one_still_where_enough_is_left() -> None:
    model, rule = relus(3, 10), nnhal.Rule("r", "#0")
    group = OperationGroup((0, 1, 2), Performance(0.1, 0.1), at_least=2)
    refused = [Verdict(False, "only together")] * 3
    a = Offer("a", 9, Capabilities.uniform(1.0), refused, groups=[group])
    for taken in ("ynn", "yyy"):
        found = strategies.placed(model, [a, offer("r", taken)], FAST, strategies.Strategy.asked(rule))
        assert [choice.device for choice in found.choices] == ["r", "a", "a"]
    whole = replace(a, groups=[replace(group, at_least=0)])
    with pytest.raises(nnhal.UnsupportedModel):
        strategies.placed(model, [whole, offer("r", "ynn")], FAST, strategies.Strategy.asked(rule))


def test_single_weighs_what_is_stated_by_the_work() -> None:
    b = nnhal.Builder()
    big, small = b.input((64, 512, 512)), b.input((1, 2), "TENSOR_QUANT8_ASYMM", 0.5, 0)
    model = b.finish([big, small], [b.relu(b.relu(big)), b.relu(b.relu(b.relu(small)))])
    floats, bytes_ = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM
    unlike = Capabilities({floats: Performance(0.1, 0.1), bytes_: Performance(2, 2)})
    a = Offer("a", 9, unlike, [Verdict(True)] * 5)
    found = strategies.placed(model, [a, offer("b", "yyyyy")], FAST, strategies.Strategy.asked("single"))
    assert {choice.device for choice in found.choices} == {"a"}


def test_what_a_rule_says_is_the_reason() -> None:
    compiled = nnhal.compile(mixed(), devices=[Fake(), "reference"], placement=nnhal.Rule("reference", "ADD"))
    first, second, *_ = compiled.placement
    assert first.reason == "a rule places it on reference" and first.others == {"fake": first.reason}
    assert "a rule" not in f"{second.reason} {second.others}"
    (_, *_, last) = nnhal.compile(mixed(), devices=[Fake(), "reference"], placement="single").placement
    assert last.reason == "all of the model is placed on fake"


def test_a_rule_for_a_device_that_is_none_is_the_callers_mistake() -> None:
    with pytest.raises(nnhal.InvalidArgument, match="a rule is of device 'fke', must be one of fake, reference"):
        placed([nnhal.Rule("fke", "ADD")], Fake())


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            {"operation": "LOGSTIC"},
            "of operation 'LOGSTIC', must be .* that fits one; did you mean LOGISTIC",
        ),
        ({"operation": "add"}, "of operation 'add', must be the name of one"),
        ({"operation": "#4"}, "of operation #4, must be #0 to #3"),
        ({"operation": "#*"}, r"of operation #\*, must be #0 to #3"),
        ({"type": "QUANT8_*"}, "of type 'QUANT8_\\*', must be the name of one, or a pattern that fits one"),
    ],
)
def test_a_rule_of_what_no_model_has_is_the_callers_mistake(rule: dict[str, str], told: str) -> None:
    with pytest.raises(nnhal.InvalidArgument, match=f"^placement: a rule is {told}"):
        placed([nnhal.Rule("reference", **rule)], Fake())


@pytest.mark.parametrize("rule", [{"operation": "CONV_2D"}, {"name": "lost"}, {"operation": "#1", "name": "sum"}])
def test_a_rule_that_fits_nothing_of_the_model_is_told(rule: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    there = nnhal.Rule("reference", "ADD")
    assert placed([nnhal.Rule("reference", **rule), there], Fake()) == ["reference", "fake", "fake", "fake"]
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert told == [
        f"placement: no operation of the model that runs is what a rule is about: {nnhal.Rule('reference', **rule)}"
    ]


def test_a_rule_that_the_device_cannot_keep_names_what_it_refuses() -> None:
    with pytest.raises(nnhal.UnsupportedModel, match="ADD #0: fake: not this one, reference: a rule places it on fake"):
        placed([nnhal.Rule("fake", "ADD")], Fake(takes=lambda n: n != 0))


def test_a_function_gives_a_label_for_each_operation() -> None:
    seen = []

    def decide(model: Model, offers: Any) -> list[str]:
        seen.extend([offer.device for offer in offers])
        return ["reference", "", "reference", ""]

    assert placed(decide, Fake()) == ["reference", "fake", "reference", "fake"]
    assert seen == ["fake", "reference"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (["reference"], "must give a label for each of 4 operations"),
        ("abcd", "must give a label for each of 4 operations"),
        (None, "must give a label for each of 4 operations"),
        (["", "", "gpu", ""], "gave 'gpu' for operation 2, must be one of fake, reference, or '' for any"),
        (["", "", 7, ""], "gave 7 for operation 2"),
    ],
)
def test_an_answer_of_a_function_that_cannot_be_is_the_callers_mistake(answer: Any, said: str) -> None:
    with pytest.raises(nnhal.InvalidArgument, match=said):
        placed(lambda *_: answer, Fake(), fallback="allow")


def test_single_takes_the_best_device_that_takes_everything() -> None:
    assert placed("single", Fake()) == ["fake"] * 4
    assert placed("single", Fake(takes=lambda n: n != 1)) == ["reference"] * 4
    with pytest.raises(nnhal.UnsupportedModel, match=r"no device supports the whole model.*fake: .*other: "):
        nnhal.compile(mixed(), devices=[Fake(takes=lambda n: n > 1), Other(takes=lambda n: n < 3)], placement="single")


@pytest.mark.parametrize("placement", ["fastest", 7, [], ["reference"], [nnhal.Rule("a"), 7], nnhal.Rule(7), {"a": 1}])  # type: ignore[arg-type]
def test_what_is_no_placement_is_refused(placement: Any) -> None:
    with pytest.raises(nnhal.InvalidArgument, match=r"placement is .*, must be .*stated, measured, single"):
        placed(placement, Fake())


def test_a_device_that_a_rule_names_and_that_fails_to_prepare_falls_back_to_the_cpu() -> None:
    def fail() -> None:
        raise nnhal.OperationFailed("no room")

    assert placed(nnhal.Rule("fake"), Fake(on_prepare=fail), fallback="allow") == ["reference"] * 4


def test_ordered_places_each_operation_on_the_first_named_device_that_takes_it() -> None:
    first, second = Fake(takes=lambda n: n in (0, 2)), Other(takes=lambda n: n < 3)
    assert placed("ordered", first, second) == ["fake", "other", "fake", "reference"]
    assert placed("ordered", second, first) == ["other", "other", "other", "reference"]
    assert {choice.reason for choice in nnhal.compile(mixed(), devices=[Fake()], placement="ordered").placement} == {
        "the strategy 'ordered' places it on fake"
    }
