"""Control flow that the runtime runs itself: when it does, what it computes, how it ends, what falls back."""

import pickle  # noqa: TID251 (as applications do)
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import operation_name
from nnhal.base.errors import (
    OperationFailed,
    OutputInsufficientSize,
    UnsupportedModel,
)
from nnhal.base.operands import SubgraphFacts
from nnhal.base.records import replace
from nnhal.hal.device import Capabilities, Device, Verdict, each_operation
from nnhal.hal.wrappers import Limited
from nnhal.model.graph import Model
from nnhal.runtime import costs, execute, interpreter
from nnhal.runtime.isolation import isolated
from nnhal.runtime.measured.families import work_of_operations
from tests.models import counted_loop, make_model, make_subgraph
from tests.runtime.devices import Fake, failing, for_nothing, to_be_killed
from tests.waiting import together

I32, F32 = "TENSOR_INT32", "TENSOR_FLOAT32"
X = np.arange(4, dtype=np.float32)
LONG = 20.0  # seconds after which something counts as hanging


@pytest.fixture(autouse=True)
def _crossings_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for_nothing(monkeypatch)


class Some(Fake):
    """Takes operations by their names. cost: stated. on_run may raise, and is told of nothing."""

    def __init__(self, name: str, kinds: str, cost: float = 0.1, **on: Callable[[], None]) -> None:
        super().__init__(**on)
        self.name, self.kinds, self.cost = name, kinds.split(), cost
        self.models: list[Model] = []

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(self.cost)

    def supports(self, model: Model) -> Sequence[Verdict]:
        self.models.append(model)
        return each_operation(model, lambda _, o: "" if operation_name(o.type) in self.kinds else "not this kind")


def two() -> list[str | Device]:
    """Devices that together take what these models have inside, and none of it whole."""
    return [Some("adder", "ADD LESS"), Some("multiplier", "MUL CONCATENATION NEG")]


TIMES, FLAG = ((1,), I32), ((1,), "TENSOR_BOOL8")


def times_of(count: int) -> Any:
    return np.array([count], np.int32)


def doubling(
    shape: Sequence[int] = (4,),
    more: Callable[[Any, Any], Any] = lambda b, x: b.add(x, x),
    stated: Sequence[int | None] | None = None,
) -> Model:
    """x is doubled so many times: while n < times: n = n + 1, x = x + x. stated: its shape, as the subgraphs have it."""
    stated = shape if stated is None else stated
    return make_model(
        lambda b, x, times: counted_loop(b, x, times, lambda s, y, *_: more(s, y), stated),
        name="doubling",
        x=shape,
        times=TIMES,
    )


def branching() -> Model:
    """x + x, or x · x where the condition does not hold."""
    return make_model(
        lambda b, condition, x: b.if_(condition, *added_or_squared(b), [x], out_type=F32), FLAG, (4,), name="branching"
    )


def added_or_squared(b: nnhal.Builder) -> list[SubgraphFacts]:
    """The branches x + x and x · x."""
    return [make_subgraph(b, lambda s, x: s.add(x, x), (4,)), make_subgraph(b, lambda s, x: s.mul(x, x), (4,))]


def growing() -> Model:
    """x gets as many zeros behind it: while n < times: n = n + 1, x = x, 0."""

    def longer(s: nnhal.Builder, y: Any, *_: Any) -> Any:
        return s.concatenation([y, s.constant(np.zeros(1, np.float32))], 0)

    return make_model(
        lambda b, x, times: b.mul(counted_loop(b, x, times, longer, (None,)), [2.0]), (2,), TIMES, name="growing"
    )


def nested() -> Model:
    """A loop in a branch of a loop: while n < 3: if n < times: x = x · 2 twice, else x = x + 1."""

    def body(s: nnhal.Builder, y: Any, n: Any, times: Any) -> Any:
        one = make_subgraph(s, lambda t, v: counted_loop(t, v, 2, lambda u, w, _: u.mul(w, [2.0])), (4,))
        two = make_subgraph(s, lambda t, v: t.add(v, [1.0]), (4,))
        return s.if_(s.less(n, times), one, two, [y], out_type=F32)

    return make_model(lambda b, x, times: counted_loop(b, x, times, body, most=3), (4,), TIMES, name="nested")


def endless() -> Model:
    """while 0 < 1: n = n + x."""
    b = nnhal.Builder("endless")
    x = b.input((1,), I32)
    first = make_subgraph(b, lambda s, n: s.less(s.constant(times_of(0)), [1]), TIMES)
    second = make_subgraph(b, lambda s, n: s.add(n, n), TIMES)
    return b.finish([x], [b.while_(first, second, [x], out_type=I32)])


# ----------------------------------------------------------------------------------------------------------- who has it


def where(compiled: nnhal.Compiled, operation: int = 0) -> str:
    return compiled.placement.choices[operation].device


def test_a_device_that_takes_it_whole_has_it_whatever_others_state_for_what_is_inside():
    whole, fast = Some("whole", "ADD LESS WHILE IF MUL", 0.9), Some("fast", "ADD LESS MUL", 0.01)
    for model in (doubling(), branching()):
        compiled = nnhal.compile(model, devices=[whole, fast], fallback="allow")
        assert where(compiled) == "whole" and compiled.placement.inside == ()
        assert all(device != "runtime" for device in compiled.placement.keys)


def test_where_only_the_cpu_takes_it_whole_what_is_inside_goes_where_that_is_stated_to_be_better():
    compiled = nnhal.compile(doubling(), devices=[Some("adder", "ADD")], fallback="allow")
    assert where(compiled) == "runtime"
    condition, body = compiled.placement.inside
    assert (condition.name, condition.placement.devices()) == ("condition", {"reference": 1})
    assert (body.name, body.placement.devices()) == ("body", {"adder": 2})
    assert compiled.placement.devices() == {"runtime": 1, "reference": 1, "adder": 2}
    assert compiled(X, times_of(3)).tolist() == [0, 8, 16, 24]


def test_the_reference_in_a_process_of_its_own_is_the_same_cpu():
    compiled = nnhal.compile(doubling(), devices=[Some("adder", "ADD"), isolated("reference")], fallback="forbid")
    assert where(compiled) == "runtime" and compiled.placement.devices() == {"runtime": 1, "reference": 1, "adder": 2}
    assert compiled(X, times_of(3)).tolist() == [0, 8, 16, 24]


def test_where_nothing_inside_is_better_elsewhere_the_cpu_has_it_whole():
    compiled = nnhal.compile(doubling(), devices=[Some("slow", "ADD LESS", 3)], fallback="allow")
    assert where(compiled) == "reference" and "best price" in compiled.placement.choices[0].others["runtime"]


def test_a_part_inside_is_not_worth_a_step_of_its_own_where_it_costs_more_than_it_saves(monkeypatch):
    monkeypatch.undo()
    for cost, size, expected in ((0.9, 4, "reference"), (0.1, 4, "runtime"), (0.9, 1 << 18, "runtime")):
        compiled = nnhal.compile(doubling((size,)), devices=[Some("adder", "ADD", cost)], fallback="allow")
        assert where(compiled) == expected


def test_what_is_saved_within_control_flow_within_control_flow_counts():
    found = nnhal.compile(nested(), devices=[Some("multiplier", "MUL"), "reference"])
    assert found.placement.devices() == {"runtime": 3, "multiplier": 1, "reference": 6}
    assert found(X, times_of(2)).tolist() == (X * 16 + 1).tolist()
    assert where(nnhal.compile(nested(), devices=[Some("multiplier", "MUL", 2.0), "reference"])) == "reference"


@pytest.mark.parametrize("placement", ["stated", "measured"])
def test_what_is_saved_within_has_to_be_worth_the_steps_around_it(placement, monkeypatch):
    def body(s: nnhal.Builder, y: Any, n: Any, times: Any) -> Any:
        graphs = [make_subgraph(s, lambda t, v: t.mul(v, v), (4,)) for _ in range(2)]
        return s.neg(s.if_(s.less(n, times), *graphs, [s.neg(y)], out_type=F32))

    model = make_model(lambda b, x, times: counted_loop(b, x, times, body), (4,), TIMES, name="an IF between others")
    devices = [Some("multiplier", "MUL"), "reference"]
    assert where(nnhal.compile(model, devices=devices, placement=placement)) == "runtime"
    monkeypatch.setattr(costs, "STEP", 30e-6)
    assert where(nnhal.compile(model, devices=devices, placement=placement)) == "reference"


def test_a_loop_is_predicted_by_its_iterations_wherever_it_runs():
    model = make_model(lambda b, x: counted_loop(b, x, 7, lambda s, y, *_: s.add(y, y)), (4,))
    (loop,) = work_of_operations(model)
    assert (loop.iterations, loop.assumed) == (7, False)
    inside = nnhal.compile(model, devices=two(), placement="measured").placement
    whole = nnhal.compile(model, devices="reference", placement="measured").placement
    # 50 µs an operation on the CPU, a tenth of that on these devices: 8 times LESS, 7 times ADD twice
    assert inside.expected[0].latency == pytest.approx((8 + 7 * 2) * 5e-6, rel=0.01)
    assert whole.expected[0].latency == pytest.approx((1 + 8 + 7 * 2) * 50e-6, rel=0.01)
    assert inside.to_dict()["steps"][0]["predicted"] == inside.expected[0].latency


def test_partitions_and_transfers_inside_a_loop_count_in_each_iteration(monkeypatch):
    monkeypatch.setattr(costs, "STEP", 1e-3)
    monkeypatch.setattr(costs, "CROSSING", 0.1)
    monkeypatch.setattr(costs, "RUN", 0.2)
    model = make_model(lambda b, x: counted_loop(b, x, 7, lambda s, y, *_: s.mul(s.add(y, y), [2.0])), (4,))
    found = nnhal.compile(model, devices=two(), placement="measured").placement
    assert [len(each.placement.steps) for each in found.inside] == [1, 2]
    # the loop's partition, then those inside
    expected = 1e-3 + 8 * (0.2 + 1e-3 + 5e-6) + 7 * (0.2 + 2e-3 + 0.1 + 3 * 5e-6)
    assert found.expected[0].latency == pytest.approx(expected, rel=0.01)


def test_the_placement_names_the_iterations_of_each_loop():
    found = nnhal.compile(nested(), devices=two()).placement
    assert found.to_dict()["loops"] == [
        {"operation": 0, "depth": 0, "iterations": 3, "assumed": False},
        {"operation": 0, "depth": 2, "iterations": 2, "assumed": False},
    ]
    lines = [line.strip() for line in str(found).splitlines()]
    assert "#0: predicted for 3 iterations" in lines
    assert "a loop inside #0: predicted for 2 iterations" in lines
    unknown = nnhal.compile(doubling(), devices="reference").placement
    assert "#0: predicted for 10 iterations (assumed: known only at execution, or too many to count)" in str(unknown)


def test_a_model_without_control_flow_knows_nothing_of_the_runtime():
    compiled = nnhal.compile(make_model(lambda b, x: b.add(x, x), (4,)), devices=two())
    assert list(compiled.placement.choices[0].others) == ["multiplier"]
    assert "runtime" not in compiled.placement.keys


def test_of_what_is_no_control_flow_the_runtime_says_nothing():
    compiled = nnhal.compile(nested(), devices=two())
    body = compiled.placement.inside[1].placement
    assert [(c.device, "runtime" in c.others) for c in body] == [("adder", False), ("runtime", False), ("adder", False)]
    assert {c.device: list(c.others) for c in body}["runtime"] == ["adder", "multiplier"]


def test_what_nobody_takes_inside_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r"WHILE #0: .*runtime: condition: no device supports .*LESS #0"):
        nnhal.compile(doubling(), devices=[Some("adder", "ADD")])


def test_the_placement_shows_what_is_inside_below_what_refers_to_it():
    compiled = nnhal.compile(nested(), devices=two())
    lines = [line.strip() for line in str(compiled.placement).splitlines()]
    (inside,) = [line for line in lines if line.startswith("condition of #0:")]
    assert inside.endswith("adder 1 op") and any(line.startswith("body of #0: ") for line in lines)
    (condition, body) = compiled.placement.to_dict()["inside"]
    assert (condition["operation"], condition["branch"], body["branch"]) == (0, "condition", "body")
    assert [each["branch"] for each in body["inside"]] == ["then", "else"]
    assert body["inside"][0]["inside"][1]["operations"][0]["device"] == "multiplier"


def test_a_placement_with_what_is_inside_can_be_sent():
    placement = nnhal.compile(nested(), devices=two()).placement
    there = pickle.loads(pickle.dumps(placement))
    assert str(there) == str(placement) and there.to_dict() == placement.to_dict()


def test_devices_are_asked_about_a_subgraph_as_a_model_of_its_own_of_the_level_that_it_needs():
    device = Some("adder", "ADD LESS")
    nnhal.compile(doubling(), devices=[device])
    whole, condition, body = device.models
    assert len(whole.referenced) == 2 and condition.referenced == body.referenced == ()
    assert [operation_name(o.type) for o in body.main.operations] == ["ADD", "ADD"]


def shapes_of_body(model: Model) -> list[tuple[int, ...]]:
    """As a device that is asked about it sees them: of its inputs and outputs."""
    device = Some("adder", "ADD LESS CONCATENATION NEG MUL")
    nnhal.compile(model, devices=[device])
    main = device.models[2].main
    return [main.operands[i].dimensions for i in (*main.inputs, *main.outputs)]


@pytest.mark.parametrize("stated", [(None,), (), (4,)])
def test_what_no_turn_changes_of_a_shape_is_known_inside(stated):
    model = doubling((4,), stated=stated)
    assert shapes_of_body(model)[:2] == [(1,), (4,)]
    assert nnhal.compile(model, devices=two())(X, times_of(3)).tolist() == [0, 8, 16, 24]


def test_what_a_turn_may_change_of_a_shape_is_not_known_inside():
    assert shapes_of_body(growing())[1:] == [(0,), (1,), (0,)]


def test_a_subgraph_that_cannot_be_given_what_it_would_be_is_an_error_only_where_it_runs():
    b = nnhal.Builder()
    condition, x = b.input((1,), "TENSOR_BOOL8"), b.input((4,))
    first = make_subgraph(b, lambda s, y: s.add(y, y), (4,))
    second = make_subgraph(b, lambda s, y: s.reshape(y, [3]), (None,))
    model = b.finish([condition, x], [b.if_(condition, first, second, [x], out_type=F32)])
    compiled = nnhal.compile(model, devices=[Some("adder", "ADD RESHAPE")])
    assert compiled(np.array([True]), X).tolist() == [0, 2, 4, 6]
    with pytest.raises(OperationFailed, match="RESHAPE #0"):
        compiled(np.array([False]), X)


def test_subgraphs_that_refer_to_one_another_again_and_again_are_left_to_who_takes_them_whole():
    b = nnhal.Builder()
    condition, x = b.input((1,), "TENSOR_BOOL8"), b.input((4,))
    last = make_subgraph(b, lambda s, _, y: s.add(y, y), FLAG, (4,))
    for _ in range(40):
        last = make_subgraph(b, lambda s, c, y, f=last: s.if_(c, f, f, [c, y], out_type=F32), FLAG, (4,))
    model = b.finish([condition, x], [b.if_(condition, last, last, [condition, x], out_type=F32)])
    device = Some("adder", "ADD")
    compiled = nnhal.compile(model, devices=[device], fallback="allow")
    assert where(compiled) == "reference" and len(device.models) == 1
    assert "subgraphs inside, must be at most 256" in compiled.placement.choices[0].others["runtime"]
    assert compiled(np.array([True]), X).tolist() == [0, 2, 4, 6]
    with pytest.raises(UnsupportedModel, match="subgraphs inside"):
        nnhal.compile(model, devices=[device])


def test_control_flow_of_which_nobody_reads_anything_is_not_asked_about():
    b = nnhal.Builder()
    x, condition = b.input((4,)), b.input((1,), "TENSOR_BOOL8")
    b.if_(condition, *added_or_squared(b), [x], out_type=F32)
    model = b.finish([x, condition], [b.add(x, x)])
    device = Some("adder", "ADD")
    compiled = nnhal.compile(model, devices=[device])
    assert len(device.models) == 1 and compiled.placement.devices() == {"adder": 1}


def placed(model: Model, *rules: nnhal.Rule, **more: Any) -> nnhal.Placement:
    devices = more.pop("devices", [*two(), Some("both", "ADD LESS MUL CONCATENATION", 0.3)])
    return nnhal.compile(model, devices=devices, placement=list(rules), **more).placement


def test_a_rule_holds_inside_but_one_for_a_number_is_about_the_models_own_operation():
    body = placed(growing(), nnhal.Rule("both", "ADD")).inside[1].placement
    assert [choice.device for choice in body.choices] == ["multiplier", "both"]
    found = placed(growing(), nnhal.Rule("both", "#1"))
    assert [choice.device for choice in found.choices] == ["runtime", "both"]
    assert [choice.device for choice in found.inside[1].placement.choices] == ["multiplier", "adder"]
    placed(nested(), nnhal.Rule("runtime", "#0"))  # an operation inside has that number too
    with pytest.raises(nnhal.InvalidArgument, match=r"of operation #1, must be #0$"):
        placed(nested(), nnhal.Rule("both", "#1"))


def test_a_rule_about_what_is_inside_of_what_a_device_runs_whole_is_told(caplog: pytest.LogCaptureFixture) -> None:
    rule = nnhal.Rule("slow", "ADD")
    devices = [Some("slow", "ADD MUL", 5.0), "reference"]
    assert placed(branching(), rule, devices=devices).choices[0].device == "reference"
    told = f"placement: IF #0 runs whole on reference, though a rule is about what is inside: {rule}"
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [told]
    caplog.clear()
    found = placed(branching(), rule, devices=[Some("slow", "ADD", 0.1), Some("other", "MUL")])
    assert found.choices[0].device == "runtime" and found.inside[0].placement.choices[0].device == "slow"
    assert not caplog.records


def test_a_rule_may_be_for_the_runtime_or_for_a_device_that_failed_to_say_what_it_takes():
    assert placed(growing(), nnhal.Rule("runtime", "WHILE")).choices[0].device == "runtime"
    mute = Some("mute", "ADD")
    mute.supports = lambda model: failing(OperationFailed("out of order"))()  # type: ignore[method-assign]
    devices = [*two(), mute]
    assert "mute" not in placed(nested(), nnhal.Rule("mute", "CONV_2D"), devices=devices).devices()
    with pytest.raises(nnhal.InvalidArgument, match="of device 'any', must be one of adder, multiplier, both, runtime"):
        placed(nested(), nnhal.Rule("any", "ADD"))


def test_what_is_placed_by_hand_on_the_cpu_it_has_whole_whatever_is_inside():
    devices = [Some("both", "ADD LESS MUL CONCATENATION", 0.3), "reference"]
    found = placed(growing(), nnhal.Rule("reference", "WHILE"), devices=devices)
    assert [choice.device for choice in found.choices] == ["reference", "both"]
    found = placed(nested(), nnhal.Rule("reference", "IF"), devices=devices)
    assert [choice.device for choice in found.inside[1].placement.choices] == ["both", "reference", "both"]

    def decide(model: Model, offers: Any) -> list[str]:
        return ["reference" if operation_name(o.type) == "WHILE" else "" for o in model.main.operations]

    compiled = nnhal.compile(growing(), devices=devices, placement=decide)
    assert [choice.device for choice in compiled.placement.choices] == ["reference", "both"]
    assert compiled(X[:2], times_of(2)).tolist() == [0, 2, 0, 0]


def test_all_on_one_device_is_on_one_that_takes_control_flow_whole_or_on_one_that_takes_all_inside():
    devices = [Some("both", "ADD LESS MUL CONCATENATION", 0.3), "reference"]
    for model in (growing(), nested()):
        assert nnhal.compile(model, devices=devices, placement="single").placement.devices().keys() == {"reference"}
    found = nnhal.compile(doubling(), devices=devices, placement="single").placement
    assert found.devices() == {"runtime": 1, "both": 3}
    with pytest.raises(UnsupportedModel, match="no device supports the whole model"):
        nnhal.compile(growing(), devices=devices[:1], placement="single")


def test_an_order_of_devices_holds_inside_of_control_flow() -> None:
    devices = [Some("both", "ADD LESS MUL CONCATENATION", 0.3), "reference"]
    for model in (growing(), nested()):
        found = nnhal.compile(model, devices=devices, placement="ordered").placement
        assert "both" in {device for each in found.inside for device in each.placement.devices()}


@pytest.mark.parametrize("works", [True, False])
def test_tuning_measures_who_takes_control_flow_whole_too(works):
    ran = Counter[str]()

    def of(name: str) -> Callable[[], None]:
        return lambda: ran.update([name]) if works else failing(OperationFailed("worn out"))()

    devices = [Some("both", "ADD LESS MUL CONCATENATION", 0.3, on_run=of("both"))]
    compiled = nnhal.compile(doubling(), devices=[*devices, "reference"], tune=0.2, fallback="allow", cache_dir=False)
    assert (ran["both"] > 0) == works
    assert compiled.placement.expected[0].known
    if not works:
        assert where(compiled) == "reference"


def test_who_takes_control_flow_is_tuned_and_remembered():
    devices = ["litert", "reference"]  # and the runtime, which no entry point names
    with nnhal.compile(doubling(), devices=devices, tune=LONG, cache_dir=False) as compiled:
        measured = {each.devices: each.latency for each in compiled.placement.expected if each.known}
    assert {*measured} == {("runtime",), ("reference",)}
    with nnhal.compile(doubling(), devices=devices, cache_dir=False) as compiled:
        assert {each.devices: each.latency for each in compiled.placement.expected if each.known} == measured


def test_a_device_that_failed_to_say_what_it_takes_is_asked_once():
    class Silent(Some):
        def supports(self, model: Model) -> Sequence[Verdict]:
            super().supports(model)
            raise RuntimeError("no answer")

    silent = Silent("silent", "")
    compiled = nnhal.compile(doubling(), devices=[silent, Some("adder", "ADD")], fallback="allow")
    assert len(silent.models) == 1 and len(compiled.placement.events) == 1 and where(compiled) == "runtime"


# ------------------------------------------------------------------------------------------------------ what it computes


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_loop_goes_round_as_often_as_its_condition_holds(count, isolation):
    devices = (
        two()
        if isolation == "none"
        else [Limited(to_be_killed(), lambda m, n: operation_name(m.main.operations[n].type) != "WHILE")]
    )
    compiled = nnhal.compile(doubling(), devices=devices)
    assert where(compiled) == "runtime"
    out = np.full(4, -1, np.float32)
    assert compiled(X, times_of(count)).tolist() == (X * 2**count).tolist()
    assert compiled(X, times_of(count), out=out) is out and out.tolist() == (X * 2**count).tolist()


def test_a_condition_chooses_one_of_two_branches_and_the_other_does_not_run():
    adds, multiplies = list[None](), list[None]()
    devices = [
        Some("adder", "ADD", on_run=lambda: adds.append(None)),
        Some("multiplier", "MUL", on_run=lambda: multiplies.append(None)),
    ]
    compiled = nnhal.compile(branching(), devices=devices)
    assert compiled(np.array([True]), X).tolist() == [0, 2, 4, 6] and (len(adds), len(multiplies)) == (1, 0)
    assert compiled(np.array([False]), X).tolist() == [0, 1, 4, 9] and (len(adds), len(multiplies)) == (1, 1)


@pytest.mark.parametrize(("count", "expected"), [(0, X + 3), (1, X * 4 + 2), (3, X * 64)])
def test_control_flow_stands_within_control_flow(count, expected):
    compiled = nnhal.compile(nested(), devices=two())
    assert compiled(X, times_of(count)).tolist() == expected.tolist()
    with compiled.burst() as burst:
        assert burst(X, times_of(count)).tolist() == expected.tolist()


def test_values_may_grow_from_turn_to_turn():
    compiled = nnhal.compile(growing(), devices=two())
    x = np.array([1, 2], np.float32)
    for count in (0, 1, 7):
        assert compiled(x, times_of(count)).tolist() == [2, 4] + [0] * count
    room = np.empty(20, np.uint8)
    with pytest.raises(OutputInsufficientSize) as small:
        compiled(x, times_of(7), out=room)
    assert list(small.value.shapes) == [(9,)]


def test_a_result_of_another_shape_than_the_model_says_is_an_error_of_the_execution():
    model = growing()
    whole = model.main
    operands = list(whole.operands)
    for i in whole.operations[0].outputs[1:]:
        operands[i] = replace(operands[i], dimensions=(3,))
    fixed = replace(model, main=replace(whole, operands=tuple(operands)))
    compiled = nnhal.compile(fixed, devices=two())
    x = np.array([1, 2], np.float32)
    assert compiled(x, times_of(1)).tolist() == [2, 4, 0]
    with pytest.raises(OperationFailed, match=r"WHILE #0: made output 1 of \[2\], must be \[3\]"):
        compiled(x, times_of(0))


def test_any_number_of_threads_run_the_same_loop():
    shape = (256, 256)
    compiled = nnhal.compile(doubling(shape), devices=two())
    wrong = list[str]()

    def work(number: int) -> None:
        x = np.full(shape, number + 1, np.float32)
        for count in (1, 4, 2, 5):
            y = compiled(x, times_of(count))
            if not (y == x * 2**count).all():
                wrong.append(f"{number} after {count}")

    together([partial(work, n) for n in range(6)])
    assert not wrong


def test_what_a_loop_made_stays_as_it_is_until_its_execution_has_ended(monkeypatch):
    """Two loops are one step; in the middle of the second one another execution goes through both."""
    monkeypatch.setattr(execute, "LARGE", 1)
    monkeypatch.setattr(interpreter, "LARGE", 1)
    model = make_model(
        lambda b, x, times: [
            counted_loop(b, x, times, lambda s, y, *_: s.add(y, y)),
            counted_loop(b, x, times, lambda s, y, *_: s.mul(y, y)),
        ],
        (4,),
        TIMES,
    )
    begun = list[None]()

    def beside() -> None:
        begun.append(None)
        if len(begun) == 1:
            other = threading.Thread(target=compiled, args=(X + 7, times_of(2)))
            other.start()
            other.join(LONG)

    compiled = nnhal.compile(model, devices=[two()[0], Some("multiplier", "MUL", on_run=beside)])
    assert len(compiled.placement.steps) == 1
    doubled, squared = compiled(X, times_of(2))
    assert (doubled.tolist(), squared.tolist()) == ([0, 4, 8, 12], [0, 1, 16, 81]) and len(begun) == 4


def test_what_a_turn_reads_is_not_written_before_its_end(monkeypatch):
    """Large values lie in two arrays in turn: x and y change places, each by a step that begins when the other has ended."""
    monkeypatch.setattr(execute, "LARGE", 1)
    monkeypatch.setattr(interpreter, "LARGE", 1)
    b = nnhal.Builder()
    x, y = b.input((4,)), b.input((4,))
    condition, body = b.subgraph(), b.subgraph()
    n, *rest = condition.input((1,), I32), condition.input((4,)), condition.input((4,))
    first = condition.finish_subgraph([n, *rest], [condition.less(n, [3])])
    n, p, q = body.input((1,), I32), body.input((4,)), body.input((4,))
    sums = body.add(p, q)
    second = body.finish_subgraph([n, p, q], [body.add(n, [1]), sums, body.mul(sums, p)])
    _, s, _ = b.while_(first, second, [b.constant(times_of(0)), x, y], out_type=[I32, F32, F32], outputs=3)
    model = b.finish([x, y], [s])
    compiled = nnhal.compile(model, devices=two())
    whole = nnhal.compile(model, devices="reference")
    given = X, X + 1
    assert compiled(*given).tobytes() == whole(*given).tobytes()
