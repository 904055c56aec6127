"""What drivers that compile have in common: entries that are verdict and preparation, shapes that open later."""

import gc
import runpy
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base import cores
from nnhal.base.errors import Cancelled, Closed, InvalidRequest, OperationFailed, UnsupportedModel
from nnhal.base.operands import ChannelQuant, Value
from nnhal.drivers.kit import (
    Forms,
    LoweringTable,
    LoweringTask,
    Proved,
    Refused,
    Window,
    bounds,
    for_each_shape,
    instance_pool,
    kept_graph,
    product_scales,
    shapes,
    stored_bounds,
    window,
)
from nnhal.frontends.python import Builder
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Considered, Device, Hints, Prepared, Verdict
from nnhal.hal.memory import MemoryUse
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.model.graph import Model, Operation
from nnhal.model.validate import validate
from nnhal.ops.schema import F16, F32, Q8, Q8PC, Bound
from tests.models import doubling, make_model
from tests.requests import output
from tests.runtime.devices import for_nothing
from tests.waiting import LIMIT, together


class Doubled(Prepared):
    """Twice its first input, for the shapes that it was made for; `made` and `closed` count."""

    made: list["Doubled"] = []

    def __init__(self, model: Model) -> None:
        self.shapes = [model.main.operands[i].dimensions for i in model.main.inputs]
        if (13,) in self.shapes:
            raise UnsupportedModel("thirteen")
        self.closed = 0
        self.hold: threading.Event | None = None
        Doubled.made.append(self)

    def run(self, request: Request, control: Control) -> Timing | None:
        if self.hold is not None:
            self.hold.wait(LIMIT)
        assert not self.closed
        (x,) = request.inputs
        assert x is not None and x.shape == self.shapes[0]
        out = request.outputs[0]
        assert out is not None, "the shape of the output is known to it"
        np.multiply(x, 2, out=out)
        return None

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _none_made():
    Doubled.made = []


def prepared(model: Model, otherwise=None) -> Prepared:
    found = for_each_shape(model, Doubled, otherwise)
    found.model = model
    return found


def test_a_model_of_known_shapes_is_prepared_at_once_and_as_it_is():
    found = prepared(doubling(3))
    assert found is Doubled.made[0] and len(Doubled.made) == 1


def test_an_open_model_is_prepared_once_for_each_shape():
    found = prepared(doubling(None))
    assert Doubled.made == []
    for size in (3, 5, 3, 5):
        assert output(found, np.ones(size, np.float32)).tolist() == [2.0] * size
    assert [d.shapes for d in Doubled.made] == [[(3,)], [(5,)]]


def test_the_shape_asked_for_longest_ago_goes_and_is_closed_once_nobody_runs_it():
    found = prepared(doubling(None))
    output(found, np.ones(1, np.float32))
    first, go = Doubled.made[0], threading.Event()
    first.hold = go
    results = []
    thread = threading.Thread(target=lambda: results.append(output(found, np.ones(1, np.float32))))
    thread.start()
    for size in range(2, 3 + shapes.MOST_SHAPES):
        output(found, np.ones(size, np.float32))
    assert first.closed == 0, "it is running"
    go.set()
    thread.join()
    gc.collect()
    assert results[0].tolist() == [2.0]
    assert first.closed == 1
    assert [d.closed for d in Doubled.made[-shapes.MOST_SHAPES :]] == [0] * shapes.MOST_SHAPES


@pytest.mark.parametrize("when", ["before it is prepared", "inside"])
def test_what_was_given_up_writes_nothing_whatever_prepared_model_is_at_it(when):
    found, room = prepared(doubling(None)), np.full(3, -9, np.float32)
    made = found.request([np.ones(3, np.float32)], [room])

    class Late(Doubled):
        def run(self, request: Request, control: Control) -> Timing | None:
            made.abandon()
            return super().run(request, control)

    found._make = Late
    if when == "before it is prepared":
        made.abandon()
    with pytest.raises(Closed):
        made.execute(found.run, UNLIMITED)
    assert (room == -9).all()


def test_closing_closes_all_of_them_once():
    found = prepared(doubling(None))
    for size in (1, 2, 3):
        output(found, np.ones(size, np.float32))
    found.close()
    assert [d.closed for d in Doubled.made] == [1, 1, 1]
    with pytest.raises(Closed):
        output(found, np.ones(1, np.float32))


def test_many_threads_that_ask_for_a_new_shape_wait_for_one_preparation():
    found = prepared(doubling(None))
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        output(found, np.ones(7, np.float32))

    together([ask] * 8)
    assert len(Doubled.made) == 1


def test_a_shape_that_the_engine_refuses_is_an_error_or_goes_elsewhere():
    with pytest.raises(OperationFailed, match="thirteen"):
        output(prepared(doubling(None)), np.ones(13, np.float32))
    from nnhal.drivers import reference

    found = prepared(doubling(None), reference.Interpreter)
    assert output(found, np.ones(13, np.float32)).tolist() == [2.0] * 13
    assert output(found, np.ones(2, np.float32)).tolist() == [2.0] * 2
    assert len(Doubled.made) == 1


def test_a_shape_that_a_model_cannot_say_is_known_is_never_given_to_the_engine():
    from nnhal.drivers import reference

    with pytest.raises(OperationFailed, match="has 0 elements"):
        output(prepared(doubling(None)), np.ones(0, np.float32))
    found = prepared(doubling(None), reference.Interpreter)
    assert output(found, np.ones(0, np.float32)).shape == (0,)
    assert Doubled.made == []


def test_a_shape_that_the_model_does_not_allow_is_an_error_of_the_request():
    found = prepared(doubling(None, 3))
    with pytest.raises(InvalidRequest):
        output(found, np.ones((2, 4), np.float32))
    assert Doubled.made == []


def test_an_input_that_may_be_left_out_is_left_out_of_the_model():
    from nnhal.drivers import reference

    made = []

    def make(model: Model) -> Prepared:
        made.append(len(model.main.inputs))
        return reference.Interpreter(model)

    b = nnhal.Builder()
    x, bias = b.input((1, 3)), b.input((0,))
    weights, state = b.constant(np.ones((2, 3), np.float32)), b.constant(np.zeros((1, 8), np.float32))
    time = b.constant(np.ones((2, 4), np.float32))
    _, y = b.svdf(x, weights, time, bias, state, rank=1, activation_kind=0)
    model = b.finish([x, bias], [y])
    found = for_each_shape(model, make)
    found.model = model
    x = np.ones((1, 3), np.float32)
    assert output(found, x, None).tolist() == [[3.0, 3.0]]
    assert output(found, x, np.ones(2, np.float32)).tolist() == [[4.0, 4.0]]
    assert sorted(made[-2:]) == [1, 2]


def smoothed(bias_shape) -> Model:
    """SVDF of an input of known shape, and a bias that may be left out, of a shape that may be known."""
    b = nnhal.Builder()
    x, bias = b.input((1, 3)), b.input(bias_shape)
    weights, state = b.constant(np.ones((2, 3), np.float32)), b.constant(np.zeros((1, 8), np.float32))
    _, y = b.svdf(x, weights, b.constant(np.ones((2, 4), np.float32)), bias, state, rank=1, activation_kind=0)
    return b.finish([x, bias], [y])


def test_a_model_of_known_shapes_is_made_at_once_and_again_without_what_is_left_out():
    from nnhal.drivers import reference

    made: list[Model] = []

    def make(model: Model) -> Prepared:
        made.append(model)
        return reference.Interpreter(model)

    model = smoothed((2,))
    found = for_each_shape(model, make)
    found.model = model
    assert made == [model]
    x = np.ones((1, 3), np.float32)
    assert output(found, x, np.ones(2, np.float32)).tolist() == [[4, 4]] and len(made) == 1
    assert output(found, x, None).tolist() == [[3, 3]]
    assert [len(each.main.inputs) for each in made] == [2, 1] and made[1].states == ()


def test_what_is_made_for_shapes_knows_the_model_of_those_shapes():
    model = doubling(None)
    found = prepared(model)
    output(found, np.ones(3, np.float32))
    (made,) = Doubled.made
    assert made.model is not model
    assert [made.model.main.operands[i].dimensions for i in made.model.main.inputs] == [(3,)]


def test_a_cancelled_execution_makes_nothing_for_its_shapes():
    found, cancelled = prepared(doubling(None)), threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        found.request([np.ones(3, np.float32)]).execute(found.run, Control(cancelled=cancelled))
    assert Doubled.made == []


class Holding(Doubled):
    """States what it holds: `used` of its one dimension."""

    used: Any = staticmethod(lambda size: MemoryUse(size, 100 + size, 10 * size, 1000 * size))

    def memory(self) -> MemoryUse:
        found: MemoryUse = self.used(self.shapes[0][0])
        return found


def test_memory_of_several_shapes_adds_up_but_for_the_constants_they_share(monkeypatch):
    model = doubling(None)
    found = for_each_shape(model, Holding)
    found.model = model
    assert found.memory() == MemoryUse(0, 0, 0, 0)
    for size in (2, 5, 3):
        output(found, np.ones(size, np.float32))
    assert found.memory() == MemoryUse(2 + 5 + 3, 105, 100, 5000)
    monkeypatch.setattr(Holding, "used", staticmethod(lambda size: MemoryUse(None if size == 3 else 1, None, 1, 1)))
    assert found.memory() == MemoryUse(None, None, 3, 1)


# ----------------------------------------------------------------------------------------------------------- the table

table: LoweringTable[LoweringTask] = LoweringTable("this", frozenset((F32,)), {"FLOOR": "not on Sundays"})


@table.entry("RELU", "TANH")
def unary(t: LoweringTask) -> None:
    t.require(t.name != "TANH" or t.a.input.known[0] < 10, "too long for a TANH")


@table.entry("TRANSPOSE", types=frozenset((F32, F16)))
def moved(t: LoweringTask) -> None:
    t.array("permutation")


class Kit(Device):
    name = "kit"

    def supports(self, model: Model) -> list[Verdict]:
        return table.verdicts(model, LoweringTask)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        table.lower(model, LoweringTask)
        return Doubled(model)


def verdicts(build) -> list[str]:
    b = nnhal.Builder()
    inputs, outputs = build(b)
    return [v.reason if not v.ok else "yes" for v in Kit().supports(b.finish(inputs, outputs))]


def test_a_verdict_is_what_the_entry_says():
    def build(b):
        x, half, order = b.input((20,)), b.input((2,), "TENSOR_FLOAT16"), b.input((1,), "TENSOR_INT32")
        return [x, half, order], [
            *(b.relu(x), b.tanh(x), b.floor(x), b.logistic(x), b.relu(half), b.transpose(half)),
            *(b.transpose(x, order), b.transpose(x, np.zeros(1, np.int32))),
        ]

    assert verdicts(build) == [
        "yes",
        "too long for a TANH",
        "not on Sundays",
        "this driver does not lower LOGISTIC",
        "this's RELU does not support TENSOR_FLOAT16",
        "permutation is omitted, must be given",
        "permutation is computed at execution, must be constant",
        "yes",
    ]


def test_what_is_known_only_at_execution_is_a_reason():
    def build(b):
        x = b.input((None,))
        return [x], [b.tanh(x)]

    assert verdicts(build) == ["needs a shape when the model is prepared, but it is known only at execution"]


def test_the_first_operation_that_cannot_be_lowered_ends_a_preparation():
    with pytest.raises(Refused, match=r"TANH #1: too long"):
        table.lower(make_model(lambda b, x: b.tanh(b.relu(x)), (20,)), LoweringTask)


def test_a_task_knows_where_its_arguments_lie():
    model = make_model(lambda b, x, y: [b.add(x, y), b.concatenation([x, y, x], axis=0)], (2, 2), (2, 2))
    add, joined = (
        LoweringTask(a, operation)
        for a, operation in zip(validate(model).subgraphs[0].operations, model.main.operations, strict=True)
    )
    assert (add.place("input1"), add.place("input2")) == (0, 1)
    assert joined.places("parts") == (0, 1, 0)
    with pytest.raises(Refused, match="nothing is omitted"):
        add.place("nothing")


def test_a_graph_is_kept_of_models_that_are_taken_whole_and_given_to_its_own_kind_alone():
    some, whole = relus(1, also=True), relus(2)
    assert Graphed().consider(some, Hints()).worked_out is None
    for kind, there in ((list, True), (dict, False)):
        claims = consider_support(Graphed(), whole, Hints())
        assert (kept_graph(claims.hints(Hints()), kind) == ["RELU"] * 2) == there
        claims.release_work()
    assert kept_graph(Hints(), list) is None


def test_a_later_entry_of_one_name_takes_its_place_and_an_empty_set_of_types_takes_none():
    mine: LoweringTable[LoweringTask] = LoweringTable("mine", frozenset((F32,)))
    mine.entry("RELU", types=frozenset())(unary)
    assert set(mine.entries) == {"RELU"} and mine.entries["RELU"].types == frozenset()
    (verdict,) = mine.verdicts(twice_relu(), LoweringTask)
    assert verdict.reason == "mine's RELU does not support TENSOR_FLOAT32"
    assert mine.entry("RELU")(unary) is unary and mine.entries["RELU"].types == {F32}
    assert LoweringTable("any").entry("RELU")(unary) is unary
    everything: LoweringTable[LoweringTask] = LoweringTable("any")
    everything.entry("RELU")(unary)
    assert everything.verdicts(twice_relu(), LoweringTask)[0].ok


def test_a_task_is_finished_once_its_entry_has_returned_and_not_where_it_refused():
    ended: list[str] = []

    class Ending(LoweringTask):
        def finish(self) -> None:
            ended.append(self.name)

    model = make_model(lambda b, x: [b.relu(x), b.tanh(x)], (20,))
    assert [v.ok for v in table.verdicts(model, Ending)] == [True, False]
    assert ended == ["RELU"]


def test_an_argument_that_is_or_may_be_omitted_has_no_operands():
    b = nnhal.Builder()
    x, perhaps = b.input((1, 3)), b.input((0,))
    weights, state = b.constant(np.ones((2, 3), np.float32)), b.constant(np.zeros((1, 8), np.float32))
    time = b.constant(np.ones((2, 4), np.float32))
    outputs = [b.svdf(x, weights, time, bias, state, rank=1, activation_kind=0)[1] for bias in (perhaps, None)]
    outputs += [b.transpose(x), b.svdf(x, weights, time, np.ones(2, np.float32), state, rank=1, activation_kind=0)[1]]
    model = b.finish([x, perhaps], outputs)
    bounds = validate(model).subgraphs[0].operations
    tasks = [LoweringTask(a, o) for a, o in zip(bounds, model.main.operations, strict=True) if a is not None]
    assert [task.places("bias") for task in tasks[:2]] == [(), ()] and tasks[2].places("permutation") == ()
    assert len(tasks[3].places("bias")) == 1 and tasks[3].array("bias").tolist() == [1, 1]
    for task in tasks[:2]:
        with pytest.raises(Refused, match=r"^bias is omitted, must be given$"):
            task.array("bias")


def test_a_device_made_of_it_is_a_device():
    found = checked_prepared(Kit(), twice_relu(), Hints())
    assert isinstance(found.inner, Doubled)


def twice_relu() -> Model:
    return make_model(lambda b, x: b.relu(x), (3,))


# ---------------------------------------------------------------------------------------------------- once for both


class Graphed(Device):
    """Lowers to a list of names, once where that is possible."""

    name = "graphed"

    def __init__(self) -> None:
        self.lowered: list[list[str]] = []
        self.kept: list[bool] = []

    def supports(self, model: Model) -> list[Verdict]:
        return list(self.consider(model, Hints()).verdicts)

    def consider(self, model: Model, hints: Hints) -> Considered:
        self.lowered.append([])
        return names.consider(model, self.lowered[-1], Naming)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        graph = kept_graph(hints, list)
        self.kept.append(graph is not None)
        if graph is None:
            self.lowered.append(graph := [])
            names.lower(model, partial(Naming, graph))
        assert graph == ["RELU"] * len(model.main.operations)
        return Doubled(model)


class Naming(LoweringTask):
    def __init__(self, graph: list[str], a: Bound, operation: Operation) -> None:
        super().__init__(a, operation)
        self.graph = graph


names: LoweringTable[Naming] = LoweringTable("naming")


@names.entry("RELU")
def named(t: Naming) -> None:
    t.graph.append(t.name)


def relus(count: int, also: bool = False) -> Model:
    b = nnhal.Builder()
    x = y = b.input((2,))
    for _ in range(count):
        y = b.relu(y)
    return b.finish([x], [b.tanh(y) if also else y])


def test_a_whole_model_is_lowered_once():
    device = Graphed()
    nnhal.compile(relus(3), devices=device)
    assert device.kept == [True] and len(device.lowered) == 1


def test_a_part_of_a_model_is_lowered_anew(monkeypatch):
    for_nothing(monkeypatch)
    device = Graphed()
    nnhal.compile(relus(3, also=True), devices=[device, "reference"])
    assert device.kept == [False] and len(device.lowered) == 2


def test_a_graph_is_for_who_comes_first():
    device, model = Graphed(), relus(2)
    claims = consider_support(device, model, Hints())
    hints = claims.hints(Hints())
    for _ in range(2):
        device.prepare(model, hints)
    assert device.kept == [True, False]


# ---------------------------------------------------------------------------------------------------------------- numbers


def pooled(**how: Any) -> Bound:
    b = Builder()
    x = b.input((1, 7, 6, 2), "TENSOR_QUANT8_ASYMM", 0.05, 20)
    model = b.finish([x], [b.max_pool_2d(x, filter_size=(3, 2), stride=(2, 1), **how)])
    (a,) = validate(model).subgraphs[0].operations
    assert a is not None
    return a


def test_a_window_is_the_same_by_a_scheme_and_by_explicit_padding():
    by_scheme, explicit = pooled(padding="same"), pooled(padding=((1, 1), (0, 1)))
    assert window(by_scheme, "h") == window(explicit, "h") == Window(3, 1, 2, 1, 1)
    assert window(by_scheme, "w") == window(explicit, "w") == Window(2, 1, 1, 0, 1)
    assert window(pooled(padding="valid"), "h")[3:] == (0, 0)


@pytest.mark.parametrize(
    ("activation", "real", "stored"),
    [
        ("none", (-np.inf, np.inf), (0, 255)),
        ("relu", (0, np.inf), (20, 255)),
        ("relu1", (-1, 1), (0, 40)),
        ("relu6", (0, 6), (20, 140)),
    ],
)
def test_bounds_of_an_activation_are_real_values_or_stored_ones_within_the_type(activation, real, stored):
    a = pooled(padding="same", activation=activation)
    assert bounds(a) == real
    assert stored_bounds(a) == stored


def test_products_have_the_scale_of_both_factors_by_channel_where_weights_have():
    x, plain = Value(Q8, (1, 2), 0.5, 3), Value(Q8, (3, 2), 0.25)
    by_channel = Value(Q8PC, (3, 2), channel=ChannelQuant((0.5, 2.0, 4.0), 0))
    assert product_scales(x, plain).tolist() == [0.125]
    assert product_scales(x, by_channel).tolist() == [0.25, 1.0, 2.0]


FORMED: LoweringTable[LoweringTask] = LoweringTable("an engine")
TRIED: list[str] = []


@FORMED.entry("ADD", forms={F32: ("bfloat16", "float32")})
def formed(t: LoweringTask) -> None:
    TRIED.append(t.form)


def adding_of(dtype: str = "float32") -> Model:
    return make_model(lambda b, x: b.add(x, x), ((2,), dtype))


def forms_of(forms: Forms, model: Model | None = None) -> tuple[list[str], Verdict]:
    TRIED.clear()
    (verdict,) = FORMED.verdicts(model or adding_of(), LoweringTask, forms)
    return TRIED[:], verdict


def test_a_form_that_nobody_proved_is_the_exact_one() -> None:
    assert forms_of(Forms()) == (["float32"], Verdict(True))


def test_a_form_that_was_proved_runs_and_the_verdict_says_why_it_is_not_a_faster_one() -> None:
    assert forms_of(Forms({("ADD", F32): Proved("bfloat16")})) == (["bfloat16"], Verdict(True))
    slower = Proved("float32", "bfloat16 is off by 3 %")
    assert forms_of(Forms({("ADD", F32): slower})) == (["float32"], Verdict(True, "bfloat16 is off by 3 %"))


def test_what_was_found_of_one_type_says_nothing_of_another() -> None:
    assert forms_of(Forms({("ADD", F16): Proved("bfloat16")}))[0] == ["float32"]
    assert forms_of(Forms({("SUB", F32): Proved("bfloat16")}))[0] == ["float32"]


def test_where_no_form_was_right_the_operation_is_refused_with_what_was_found() -> None:
    assert forms_of(Forms({("ADD", F32): Proved(None, "off by 48")})) == ([], Verdict(False, "off by 48"))


def test_a_form_that_the_entry_does_not_know_any_more_is_none() -> None:
    assert forms_of(Forms({("ADD", F32): Proved("int4")}))[0] == ["float32"]


def test_forms_may_be_forced_whatever_was_found() -> None:
    found = {("ADD", F32): Proved(None, "off by 48")}
    assert forms_of(Forms(found, forced="fast"))[0] == ["bfloat16"]
    assert forms_of(Forms(found, forced="exact"))[0] == ["float32"]


def test_an_entry_of_one_form_is_refused_too_where_it_was_found_wrong() -> None:
    half = adding_of("float16")
    assert forms_of(Forms(forced="fast"), half) == ([""], Verdict(True))
    assert forms_of(Forms({("ADD", F16): Proved(None, "no")}, forced="fast"), half) == ([], Verdict(False, "no"))
    assert forms_of(Forms({("ADD", F16): Proved("")}), half) == ([""], Verdict(True))


@pytest.mark.parametrize(("processors", "members"), [(1, 2), (2, 2), (3, 3), (8, 8), (64, 8)])
def test_a_team_has_a_member_for_each_processor_two_at_least_and_eight_at_most(
    monkeypatch: pytest.MonkeyPatch, processors: int, members: int
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: processors)
    assert runpy.run_path(instance_pool.__file__)["MOST_MEMBERS"] == members


def test_members_that_were_dropped_do_not_count_whoever_still_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that an application keeps has them in its traceback; executions waited for them for ever."""
    monkeypatch.setattr(instance_pool, "MOST_MEMBERS", 2)
    made = instance_pool.Team(instance_pool.Member, "members")
    held = [made.take(UNLIMITED), made.take(UNLIMITED)]
    for each in held:
        made.give(each)
    made.trim(0)
    assert {made.take(Control(time.monotonic_ns() + 10**10)) for _ in range(2)}.isdisjoint(held)


def test_members_that_were_not_used_for_long_do_not_count_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_pool, "MOST_MEMBERS", 2)
    made = instance_pool.Team(instance_pool.Member, "members")
    held = [made.take(UNLIMITED), made.take(UNLIMITED)]
    made.give(held[0])
    monkeypatch.setattr(instance_pool, "KEPT_SECONDS", -1.0)
    made.give(held[1])
    assert made.take(UNLIMITED) is held[1] and made.take(Control(time.monotonic_ns() + 10**10)) not in held


def test_a_member_that_is_given_back_wakes_nobody_where_nobody_waits() -> None:
    made = instance_pool.Team(instance_pool.Member, "members")
    for _ in range(3):
        made.give(made.take(UNLIMITED))
    assert made._given_back.empty()  # else it grows for as long as the model runs


def test_who_waits_for_a_member_when_the_program_ends_gets_none(monkeypatch):
    monkeypatch.setattr(instance_pool, "MOST_MEMBERS", 1)
    made, told = instance_pool.Team(instance_pool.Member, "members"), []
    first = made.take(UNLIMITED)

    def wait() -> None:
        with pytest.raises(Closed, match="members: the program ends"):
            made.take(UNLIMITED)
        told.append(None)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not made._waiting:
        pass
    monkeypatch.setattr(instance_pool, "_ending", [None])
    waiting.join(LIMIT)
    assert told and made.busy
    made.give(first)
    assert not made.busy and made.take(UNLIMITED) is first  # the main thread's
