"""What a device says of a model: looked at, whatever it is; what it worked out comes back, and goes with the compilation."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.base.errors import ContractBroken, InvalidArgument, MissedDeadline, OperationFailed, UnsupportedModel
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.drivers.reference import Reference
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support, query_verdicts
from nnhal.hal.device import (
    YES,
    Capabilities,
    Considered,
    Device,
    Hints,
    OperationGroup,
    Performance,
    Prepared,
    ReusableWork,
    Verdict,
)
from nnhal.hal.wrappers import Limited, WithHalLevel, WithOptions, Wrapper
from nnhal.model.graph import Model
from nnhal.runtime import discovery
from tests import models
from tests.models import make_model, relus
from tests.runtime.devices import for_nothing

NO = Verdict(False, "not by itself")
HALF = Performance(0.5, 0.5)


class Saying(Reference):
    """Says what it was made to say, and notes the hints that it is told."""

    name = "saying"

    def __init__(self, say: Callable[[Model], Any], prepare: Callable[[], None] = lambda: None) -> None:
        self.say, self.on_prepare = say, prepare
        self.considered: list[Hints] = []
        self.prepared: list[tuple[Model, ReusableWork | None]] = []
        self.given: list[Any] = []

    def consider(self, model: Model, hints: Hints) -> Any:
        self.considered.append(hints)
        return self.say(model)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self.prepared.append((model, hints.worked_out))
        self.given.append(None if hints.worked_out is None else type(hints.worked_out.given).__name__)
        self.on_prepare()
        return super().prepare(model, hints)


def yes(model: Model, *groups: OperationGroup, worked_out: Any = None) -> Considered:
    return Considered([YES] * len(model.main.operations), groups, worked_out)


# ------------------------------------------------------------------------------------------------------ answers


def group(*places: Any, performance: Any = HALF, at_least: Any = 0) -> OperationGroup:
    return OperationGroup(places, performance, at_least)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "consider() gave None, must be Considered"),
        ([YES] * 3, "must be Considered"),
        (Considered(None), "consider() gave None, must be 3 verdicts, one an operation"),
        (Considered([YES]), "consider() gave 1 verdicts, must be 3, one an operation"),
        (Considered([YES, "yes", YES]), "consider() gave 'yes' for operation 1, must be a Verdict or a bool"),
        (Considered([YES] * 3, None), "consider() gave groups None, must be several of OperationGroup"),
        (Considered([YES] * 3, [(0, 1)]), "consider() gave group 0 as (0, 1), must be an OperationGroup"),
        (Considered([YES] * 3, [group(0, 3)]), "gave group 0 with operation 3, must be 0 to 2"),
        (Considered([YES] * 3, [group(-1)]), "gave group 0 with operation -1, must be 0 to 2"),
        (Considered([YES] * 3, [group(0.0)]), "gave group 0 with operation 0.0, must be 0 to 2"),
        (Considered([YES] * 3, [group(True)]), "gave group 0 with operation True, must be 0 to 2"),
        (Considered([YES] * 3, [OperationGroup(7, HALF)]), "with operations 7, must be places of operations"),
        (Considered([YES] * 3, [group()]), "gave group 0 with no operation, must be at least one, each once"),
        (Considered([YES] * 3, [group(1, 1)]), "gave group 0 with an operation twice, must be at least one"),
        (Considered([YES] * 3, [group(0, 1), group(2, 1)]), "gave group 1 with operation 1, which is in group 0 too"),
        (Considered([YES] * 3, [group(0, performance=None)]), "group 0: performance of its operations is None"),
        (Considered([YES] * 3, [group(0, performance=Performance(float("nan")))]), "is nan, must be a number above 0"),
        (Considered([YES] * 3, [group(0, performance=Performance(1.0, 0.0))]), "is 0.0, must be a number above 0"),
        (Considered([YES] * 3, [group(0, at_least=2)]), "gave group 0 at_least 2, must be 0 to its 1 operations"),
        (Considered([YES] * 3, [group(0, at_least=-1)]), "gave group 0 at_least -1, must be 0 to its 1 operations"),
        (Considered([YES] * 3, [group(0, at_least=1.0)]), "gave group 0 at_least 1.0, must be 0 to its 1 operations"),
    ],
)
def test_an_answer_that_cannot_be_is_the_devices_broken_contract(answer, reason):
    device = Saying(lambda model: answer)
    with pytest.raises(ContractBroken, match="device saying: ") as found:
        consider_support(device, relus(3), Hints())
    assert reason in str(found.value)
    compiled = nnhal.compile(relus(3), devices=device, fallback="allow")
    assert compiled.placement.devices() == {"reference": 1 * 3}
    assert reason in compiled.placement.choices[0].others["saying"]


def test_a_reason_is_one_line_that_commands_no_terminal() -> None:
    class Commanding(Reference):
        def supports(self, model: Model) -> Sequence[Verdict]:
            return [Verdict(False, "no\x1b[2J\nADD #0: is fine")] * len(model.main.operations)

    assert query_verdicts(Commanding(), relus(1))[0].reason == r"no\x1b[2J\nADD #0: is fine"


def test_a_bool_is_a_verdict_and_a_reason_is_a_plain_text_of_bounded_length():
    class Text(str):
        pass

    found = consider_support(
        Saying(lambda m: Considered([True, False, Verdict(False, Text("x" * 10**6))])), relus(3), Hints()
    )
    assert found.verdicts[:2] == [YES, Verdict(False)] and type(found.verdicts[2].reason) is str
    assert found.verdicts[2].reason.startswith("xxx") and len(found.verdicts[2].reason) < 10**5
    for wrong in (Verdict(1, ""), Verdict(True, None), 1, None, ""):  # type: ignore[arg-type]
        with pytest.raises(ContractBroken, match="for operation 1, must be a Verdict or a bool"):
            consider_support(Saying(lambda m, wrong=wrong: Considered([YES, wrong, YES])), relus(3), Hints())


@pytest.mark.parametrize("kind", [list, tuple, iter])
@pytest.mark.parametrize("count", [0, 2, 4, 9])
def test_so_many_verdicts_as_were_given_are_told(kind, count):
    told = min(count, 4) if kind is iter else count  # who gives them one by one is asked for one too many only
    with pytest.raises(ContractBroken, match=rf"gave {told} verdicts, must be 3, one an operation"):
        consider_support(Saying(lambda m: Considered(kind([YES] * count))), relus(3), Hints())


def test_each_operation_may_be_a_group_of_its_own_and_enough_of_a_group_may_be_all_of_it():
    groups = [group(n, at_least=1) for n in range(3)]
    assert list(consider_support(Saying(lambda m: yes(m, *groups)), relus(3), Hints()).groups) == groups
    whole = group(0, 1, 2, at_least=3)
    assert list(consider_support(Saying(lambda m: yes(m, whole)), relus(3), Hints()).groups) == [whole]
    with pytest.raises(ContractBroken, match="with operation 0, which is in group 0 too"):
        consider_support(Saying(lambda m: yes(m, *groups, group(0))), relus(3), Hints())


def test_hints_for_a_part_name_its_operations_until_what_was_worked_out_is_let_go():
    found = consider_support(Saying(lambda m: yes(m, worked_out="much")), relus(3), Hints())
    whole, part = found.hints(Hints(threads=1)), found.hints(Hints(threads=1), [2])
    assert whole.threads == part.threads == 1 and whole.worked_out is not None and part.worked_out is not None
    assert (whole.worked_out.operations, whole.worked_out.whole) == ((0, 1, 2), True)
    assert (part.worked_out.operations, part.worked_out.whole) == ((2,), False)
    assert whole.worked_out.given == part.worked_out.given == "much"
    found.release_work()
    assert whole.worked_out.given is None and found.hints(Hints()).worked_out is None


def test_of_a_model_that_was_laid_out_there_are_hints_for_the_whole_alone():
    found = consider_support(Nchw(lambda m: yes(m, worked_out="much")), pools(2), Hints())
    for operations in (None, [0, 1]):
        given = found.hints(Hints(), operations).worked_out
        assert given is not None and given.whole and given.operations == (0, 1, 2, 3)
    assert found.hints(Hints(), [0]).worked_out is None


def test_endless_answers_end():
    def endless(item: Any) -> Any:
        while True:
            yield item

    for answer in (Considered(endless(YES)), Considered([YES] * 3, endless(group(0)))):
        with pytest.raises(ContractBroken):
            consider_support(Saying(lambda model, answer=answer: answer), relus(3), Hints())


def test_answers_are_taken_over_in_plain_types():
    class Places(list):
        pass

    found = consider_support(Saying(lambda m: yes(m, OperationGroup(Places([2, 0]), HALF, 1))), relus(3), Hints())
    (only,) = found.groups
    assert only == OperationGroup((0, 2), HALF, 1) and type(only.operations) is tuple


@pytest.mark.parametrize("level", [V1_0, V1_2, V1_3])
def test_a_driver_may_answer_with_bools_behind_each_wrapper(level):
    class Bools(Reference):
        def supports(self, model):
            return [operation.type == OperationType.FLOOR for operation in model.main.operations]

    model = make_model(lambda b, x: b.floor(b.relu(x)), (2,))
    taken = Limited(WithHalLevel(Bools(), level), lambda model, n: True)
    assert [verdict.ok for verdict in query_verdicts(taken, model)] == [False, True]


def test_what_a_group_takes_is_not_refused_for_the_whole_model():
    found = consider_support(Saying(lambda m: Considered([NO, NO, NO], [group(0, 1)])), relus(3), Hints())
    assert found.refused() == {2: "not by itself"}


# -------------------------------------------------------------------------------------------------------- hints


class Choosy(Reference):
    """An option switches operations off."""

    name = "choosy"

    def consider(self, model: Model, hints: Hints) -> Considered:
        unknown = set(hints.options) - {"relu"}
        if unknown:
            raise InvalidArgument(f"choosy: options {sorted(unknown)} are unknown, must be relu")
        ok = Verdict(hints.options.get("relu", True), "the option relu is off")
        return Considered([ok] * len(model.main.operations))


def test_an_option_that_switches_operations_off_is_a_verdict():
    model, device = relus(2), Choosy()
    assert nnhal.compile(model, devices=device).placement.devices() == {"choosy": 2}
    off = {"choosy": {"relu": False}}
    compiled = nnhal.compile(model, devices=[device, "reference"], driver_options=off)
    assert compiled.placement.devices() == {"reference": 2}
    assert compiled.placement.choices[0].others == {"choosy": "the option relu is off"}
    with pytest.raises(UnsupportedModel, match="choosy: the option relu is off"):
        nnhal.compile(model, devices=device, driver_options=off)


def test_an_option_that_a_device_does_not_know_reaches_the_application_whatever_falls_back():
    for fallback in ("allow", "forbid"):
        with pytest.raises(InvalidArgument, match=r"options \['rely'\] are unknown, must be relu"):
            nnhal.compile(relus(1), devices=Choosy(), driver_options={"choosy": {"rely": 1}}, fallback=fallback)


def test_a_device_that_is_told_of_nothing_but_the_model_has_no_arguments_to_complain_of():
    class Complaining(Reference):
        name = "complaining"

        def supports(self, model):
            raise InvalidArgument("is bad")

    compiled = nnhal.compile(relus(1), devices=Complaining(), fallback="allow")
    assert compiled.placement.choices[0].others["complaining"] == "the driver failed to answer: is bad"


def test_a_device_is_told_the_same_hints_when_it_is_asked_and_when_it_prepares():
    told: list[Hints] = []

    class Noting(Saying):
        def prepare(self, model, hints):
            told.append(hints)
            return super().prepare(model, hints)

    device = Noting(yes)
    nnhal.compile(
        relus(1), devices=device, preference="low_power", threads=1000, driver_options={"saying": {"a": 1}}
    ).close()
    assert device.considered == told and told[0].options == {"a": 1} and told[0].threads < 1000


def test_wrappers_hand_hints_and_groups_on():
    device = Saying(lambda m: yes(m, group(0, 1), group(2)))
    said = consider_support(WithOptions(device, {"a": 1}), relus(3), Hints(options={"b": 2}))
    assert device.considered[-1].options == {"a": 1, "b": 2} and len(said.groups) == 2
    limited = consider_support(Limited(device, lambda _, n: n != 1, "left out"), relus(3), Hints())
    assert [g.operations for g in limited.groups] == [(2,)] and limited.verdicts[1].reason == "left out"
    assert [v.ok for v in Limited(device, lambda _, n: n != 1).supports(relus(3))] == [True, False, True]


def test_devices_of_old_levels_have_no_groups_and_work_nothing_out():
    device = Saying(lambda m: yes(m, group(0, 1), worked_out="much"))
    old, new = (consider_support(WithHalLevel(device, level), relus(2), Hints()) for level in (V1_2, V1_3))
    assert not old.groups and len(new.groups) == 1
    assert all(c.hints(Hints()).worked_out is None for c in (old, new))


def test_a_wrapper_that_has_another_supports_is_asked_by_it():
    class Refusing(Wrapper):
        def supports(self, model: Model) -> Sequence[Verdict]:
            return [NO for _ in super().supports(model)]

    assert query_verdicts(Refusing(Saying(yes)), relus(2)) == [NO, NO]


# --------------------------------------------------------------------------------------------------- worked out


class Made:
    """Something that a driver works out."""


def noting(living: "weakref.WeakSet[Made]") -> Callable[[Model], Considered]:
    def say(model: Model) -> Considered:
        made = Made()
        living.add(made)
        return yes(model, worked_out=made)

    return say


def test_what_was_worked_out_of_the_whole_model_comes_with_the_very_model():
    device, model, living = Saying(noting(weakref.WeakSet())), relus(3), weakref.WeakSet()
    device.say = noting(living)
    compiled = nnhal.compile(model, devices=device)
    ((prepared, worked_out),) = device.prepared
    assert device.given == ["Made"] and worked_out is not None
    assert worked_out.whole and worked_out.model is model and worked_out.operations == (0, 1, 2)
    assert prepared.main is model.main
    assert worked_out.given is None and not living
    assert np.array_equal(compiled(np.ones(4, np.float32)), np.ones(4, np.float32))


def test_what_was_worked_out_comes_with_each_part_of_the_model(monkeypatch):
    for_nothing(monkeypatch)
    device, model = Saying(noting(weakref.WeakSet())), relus(5)
    limited = Limited(device, lambda _, n: n != 2)
    nnhal.compile(model, devices=[limited, "reference"])
    found = [w for _, w in device.prepared if w is not None]
    assert [(w.operations, w.whole, w.model is model) for w in found] == [
        ((0, 1), False, True),
        ((3, 4), False, True),
    ]
    assert device.given == ["Made", "Made"] and all(w.given is None for w in found)


def test_who_works_nothing_out_gets_nothing():
    device = Saying(yes)
    nnhal.compile(relus(1), devices=device)
    assert device.given == [None]
    checked_prepared(device, relus(1), Hints()).close()
    assert device.given == [None, None]


@pytest.mark.parametrize("fallback", ["allow", "forbid"])
def test_what_was_worked_out_goes_also_where_the_compilation_fails(fallback):
    def fail() -> None:
        raise OperationFailed("no")

    living: weakref.WeakSet[Made] = weakref.WeakSet()
    device, kept = Saying(noting(living), fail), None
    try:
        nnhal.compile(relus(2), devices=device, fallback=fallback)
    except OperationFailed as error:
        kept = error  # with the frames of the driver, and its hints in them
    assert (kept is None) == (fallback == "allow") and device.given == ["Made"]
    gc.collect()
    assert not living


def test_what_was_worked_out_goes_where_another_device_fails_to_answer_the_application():
    living: weakref.WeakSet[Made] = weakref.WeakSet()
    with pytest.raises(InvalidArgument) as kept:
        nnhal.compile(relus(1), devices=[Saying(noting(living)), Choosy()], driver_options={"choosy": {"rely": 1}})
    gc.collect()
    assert kept.value and not living


def test_what_is_worked_out_after_the_deadline_goes():
    living: weakref.WeakSet[Made] = weakref.WeakSet()
    go, went = threading.Event(), threading.Event()

    def slowly(model: Model) -> Considered:
        go.wait(30)
        try:
            return noting(living)(model)
        finally:
            went.set()

    with pytest.raises(MissedDeadline) as kept:
        nnhal.compile(relus(1), devices=Saying(slowly), deadline=0.05)
    go.set()
    assert went.wait(30)
    for _ in range(1000):
        gc.collect()
        if not living:
            break
        threading.Event().wait(0.01)
    assert kept.value and not living


def test_the_default_asks_supports():
    class Plain(Device):
        name = "plain"

        def supports(self, model):
            return [YES, False]

        def prepare(self, model, hints):
            return discovery.cpu().prepare(model, hints)

    assert query_verdicts(Plain(), relus(2)) == [YES, Verdict(False)]


# ------------------------------------------------------------------------------------------------ another layout


class Nchw(Saying):
    """Prefers another layout than the model's."""

    preferred_layout = "nchw"

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(0.01)


def pools(count: int) -> Model:
    return models.chain("max_pool_2d", count, (1, 8, 8, 3), padding="same", filter_size=2)


def test_groups_and_what_was_worked_out_of_a_model_that_was_laid_out_are_about_the_original():
    asked: list[Model] = []

    def say(model: Model) -> Considered:
        asked.append(model)
        return yes(model, group(*range(len(model.main.operations)), at_least=2), worked_out=Made())

    device, model = Nchw(say), pools(2)
    compiled = nnhal.compile(model, devices=device)
    (laid,) = asked
    assert len(laid.main.operations) == 4  # with a TRANSPOSE before and behind
    assert [c.together for c in compiled.placement] == [(0, 1), (0, 1)]
    ((prepared, worked_out),) = device.prepared
    assert worked_out is not None and worked_out.whole and worked_out.model is laid and prepared.main is laid.main
    x = np.random.default_rng(1).standard_normal((1, 8, 8, 3), np.float32)
    assert np.array_equal(compiled(x), nnhal.compile(model, devices="reference")(x))


@pytest.mark.parametrize(("least", "left"), [(0, False), (3, False), (1, True)])
def test_a_group_has_nothing_that_needs_a_transpose_which_the_device_refuses(least, left):
    """Of three pools in a chain the first and the last need one."""

    def say(model: Model) -> Considered:
        kinds = [o.type for o in model.main.operations]
        pooled = [n for n, kind in enumerate(kinds) if kind == OperationType.MAX_POOL_2D]
        groups = [group(*pooled, at_least=least)] if least <= len(pooled) else []
        return Considered([Verdict(kind == OperationType.MAX_POOL_2D, "no transposes") for kind in kinds], groups)

    model = pools(3)
    found = consider_support(Nchw(say), model, Hints())
    why = "its layout needs a TRANSPOSE, which the device refuses: no transposes"
    assert [(v.ok, v.reason == why) for v in found.verdicts] == [(False, True), (True, False), (False, True)]
    assert [g.operations for g in found.groups] == ([(1,)] if left else [])
    with pytest.raises(nnhal.UnsupportedModel, match=why):
        nnhal.compile(model, devices=Nchw(say), fallback="forbid")
    compiled = nnhal.compile(model, devices=Nchw(say), fallback="allow")
    assert {c.device for c in compiled.placement} == {"reference"} and not compiled.placement.events


@pytest.mark.parametrize("dearer", [0, 1])
def test_an_operation_that_is_there_in_two_orders_is_in_one_group_of_the_original(dearer):
    """What it makes of a constant is read as it is, and transposed: the device has a group for each.

    They cost what the dearer of them costs, by time and by power.
    """

    def say(model: Model) -> Considered:
        kinds = [o.type for o in model.main.operations]
        negs, adds = ([n for n, k in enumerate(kinds) if k == kind] for kind in (OperationType.NEG, OperationType.ADD))
        prices = [Performance(0.25, 0.75), Performance(0.5, 0.125)]
        pairs = zip(negs, adds, prices if dearer else prices[::-1], strict=True)
        groups = [group(neg, add, performance=price, at_least=0) for neg, add, price in pairs]
        pool = [n for n, kind in enumerate(kinds) if kind == OperationType.MAX_POOL_2D]
        groups.insert(1, group(pool[1], performance=HALF))
        return Considered([Verdict(n not in {*negs, *adds}, "in a group only") for n in range(len(kinds))], groups)

    b = nnhal.Builder()
    x = b.input((1, 4, 4, 3))
    k = b.neg(np.arange(48, dtype=np.float32).reshape(1, 4, 4, 3))
    y = b.max_pool_2d(x, padding="same", filter_size=2, stride=1)
    y = b.max_pool_2d(b.add(y, k), padding="same", filter_size=2, stride=1)
    model = b.finish([x], [y, b.add(x, k)])
    found = consider_support(Nchw(say), model, Hints()).groups
    assert list(found) == [group(3), group(0, 2, 4, performance=Performance(0.5, 0.75))]
    compiled = nnhal.compile(model, devices=Nchw(say), fallback="forbid")
    assert {c.device for c in compiled.placement} == {"saying"}


@pytest.mark.parametrize("as_is", [False, True])
def test_a_device_is_asked_about_the_layout_that_it_prefers_unless_that_is_done(as_is):
    asked: list[int] = []

    def say(model: Model) -> Considered:
        asked.append(len(model.main.operations))
        return Considered([Verdict(True, f"as {OperationType(o.type).name}") for o in model.main.operations])

    device, model = Nchw(say), pools(1)
    for found in (
        query_verdicts(device, model, as_is=as_is),
        consider_support(device, model, Hints(), as_is=as_is).verdicts,
    ):
        assert found == [Verdict(True, "as MAX_POOL_2D")]
    assert asked == [1 if as_is else 3] * 2
    if not as_is:
        assert query_verdicts(device, model) == consider_support(device, model, Hints()).verdicts and asked[2:] == [
            3,
            3,
        ]


@pytest.mark.parametrize("refused", [0, 1, None])
def test_an_operation_that_is_there_in_two_orders_is_taken_where_both_are(refused):
    def say(model: Model) -> Considered:
        negs = [n for n, o in enumerate(model.main.operations) if o.type == OperationType.NEG]
        assert len(negs) == 2
        no = None if refused is None else negs[refused]
        return Considered(
            [Verdict(n != no, "" if n != no else "not this one") for n in range(len(model.main.operations))]
        )

    b = nnhal.Builder()
    x = b.input((1, 4, 4, 3))
    k = b.neg(np.arange(48, dtype=np.float32).reshape(1, 4, 4, 3))
    y = b.max_pool_2d(
        b.add(b.max_pool_2d(x, padding="same", filter_size=2, stride=1), k), padding="same", filter_size=2
    )
    found = query_verdicts(Nchw(say), b.finish([x], [y, b.add(x, k)]))
    assert found[0] == (YES if refused is None else Verdict(False, "not this one")) and all(v.ok for v in found[1:])


def test_a_part_that_is_laid_out_by_itself_has_nothing_worked_out(monkeypatch):
    for_nothing(monkeypatch)
    device = Nchw(lambda m: yes(m, worked_out=Made()))
    limited = Limited(device, lambda m, n: m.main.operations[n].type != OperationType.TANH)
    b = nnhal.Builder()
    x = b.input((1, 64, 64, 3))
    y = b.max_pool_2d(b.max_pool_2d(b.tanh(x), padding="same", filter_size=2), padding="same", filter_size=2)
    compiled = nnhal.compile(b.finish([x], [y]), devices=[limited, "reference"])
    assert [c.device for c in compiled.placement] == ["reference", "saying", "saying"]
    assert device.given == [None]
