"""Compilation against drivers that fail, lie or hang: what falls back, what is the caller's to hear, what ends in time."""

import inspect
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import nnhal
from nnhal.base import time as base_time
from nnhal.base.codes import Preference, Priority
from nnhal.base.errors import InvalidArgument, InvalidModel, MissedDeadline, OperationFailed, UnsupportedModel
from nnhal.base.once import OnceTable
from nnhal.hal.device import Capabilities, Hints, Performance, Prepared, Verdict
from nnhal.hal.request import Control, Request
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.model.graph import Model
from nnhal.model.parts import extract_part
from nnhal.runtime import compilation, costs, discovery, isolation, placer
from nnhal.runtime.compilation import CompileOptions, Preparation
from nnhal.runtime.partition import Offer
from tests.runtime.devices import Fake, failing, for_nothing
from tests.runtime.graphs import extended, multiples
from tests.waiting import Clock

LIMIT = 60.0  # seconds after which something that has to happen counts as hanging
X = np.float32([1, 2, 3, 4])
BROKEN = failing(RuntimeError("broken"))


def saying(name: str, **answers: Callable[..., object]) -> Fake:
    """A device some of whose methods are these."""
    device = Fake()
    device.name = name
    for method, answer in answers.items():
        setattr(device, method, answer)
    return device


# ------------------------------------------------------------------------------------- mistakes of the caller


@pytest.mark.parametrize("fallback", ["allow", "warn", "forbid"])
def test_an_option_that_the_driver_does_not_know_is_an_error_whatever_may_fall_back(fallback):
    with pytest.raises(InvalidArgument, match="litert: option 'turbo' is unknown, must be one of"):
        nnhal.compile(multiples(), devices="litert", fallback=fallback, driver_options={"litert": {"turbo": True}})


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_options_are_refused_alike_by_a_driver_in_a_process_of_its_own(isolation):
    options = {"faulty": {"prelude": "hang"}}
    with pytest.raises(InvalidArgument, match="stage is 'prelude', must be one of"):
        nnhal.compile(multiples(), devices="faulty", isolation=isolation, fallback="allow", driver_options=options)


def test_options_that_cannot_travel_are_an_error_to_the_caller():
    options = {"faulty": {"run": object()}}
    with pytest.raises(InvalidArgument, match=r"driver_options of faulty: .* must be values that JSON can represent"):
        nnhal.compile(multiples(), devices="faulty", isolation="process", fallback="allow", driver_options=options)


def test_a_mistake_of_the_caller_is_told_where_only_the_second_device_sees_it():
    picky = Fake(on_prepare=failing(InvalidArgument("option 'turbo' is unknown")))
    with pytest.raises(InvalidArgument, match="turbo"):
        nnhal.compile(multiples(), devices=[Fake(on_prepare=BROKEN), picky], fallback="allow")


@pytest.mark.parametrize("kind", [InvalidModel, UnsupportedModel])
def test_a_model_that_the_driver_had_said_yes_to_falls_back(kind):
    compiled = nnhal.compile(multiples(), devices=Fake(on_prepare=failing(kind("too odd"))), fallback="allow")
    assert compiled.placement.devices() == {"reference": 1}
    assert "too odd" in compiled.placement.events[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 5}, "devices: is 5, must be a name or a Device"),
        ({"devices": ["reference", None]}, "devices: is None, must be a name or a Device"),
        ({"devices": []}, "devices: none is named, must be at least one"),
        ({"driver_options": 5}, "driver_options is 5, must be a mapping for each device name"),
        ({"driver_options": {"reference": 5}}, "driver_options of reference is 5, must be a mapping with str keys"),
        ({"driver_options": {"reference": {1: 2}}}, "driver_options of reference is {1: 2}, must be a mapping with"),
        ({"threads": True}, "threads is True, must be an integer of at least 0"),
        ({"threads": "2"}, "threads is '2', must be an integer of at least 0"),
        ({"deadline": float("nan")}, "deadline is nan s, must be at least 0"),
        ({"deadline": -1}, "deadline is -1 s, must be at least 0"),
        ({"deadline": True}, "deadline is True, must be a number of seconds"),
        ({"deadline": "1"}, "deadline is '1', must be a number of seconds"),
        ({"fallback": ""}, "fallback is '', must be one of allow, warn, forbid"),
        ({"relaxed": "yes"}, "relaxed is 'yes', must be true, false, or None"),
        ({"isolation": "vm"}, "isolation is 'vm', must be one of none, process"),
    ],
)
def test_arguments_that_cannot_be_are_refused_and_nothing_falls_back(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        nnhal.compile(multiples(), **{"devices": "reference", "fallback": "allow", **arguments})


def test_an_endless_deadline_is_none():
    compiled = nnhal.compile(multiples(), devices="reference", deadline=float("inf"))
    assert compiled._caller.plan.settings.deadline is None


# ----------------------------------------------------------------------------------------------------- warnings


def test_where_no_device_is_named_fallback_warns_at_the_line_of_the_caller(monkeypatch):
    monkeypatch.setattr(discovery, "devices", lambda: [Fake(on_prepare=BROKEN), discovery.cpu()])
    with pytest.warns(nnhal.FallbackWarning, match="fake failed to prepare operations #0: .*broken") as warned:
        line = inspect.currentframe().f_lineno + 1
        compiled = nnhal.compile(multiples())
    assert (warned[0].filename, warned[0].lineno) == (__file__, line)
    assert (compiled(X) == 2 * X).all()


def test_a_device_that_cannot_say_what_it_takes_is_warned_of():
    device = saying("mute", supports=failing(RuntimeError("no answer")))
    with pytest.warns(nnhal.FallbackWarning, match="mute takes nothing: .*RuntimeError: no answer"):
        nnhal.compile(multiples(), devices=device, fallback="warn")


def test_what_nobody_failed_at_is_not_warned_of():
    compiled = nnhal.compile(multiples(2), devices=Fake(takes=lambda n: n == 0), fallback="warn")
    assert compiled.placement.devices() == {"fake": 1, "reference": 1} and not compiled.placement.events


# ----------------------------------------------------------------------------------------- answers that are none


def test_bools_are_verdicts():
    compiled = nnhal.compile(multiples(2), devices=[saying("bools", supports=lambda model: [True, False]), "reference"])
    assert compiled.placement.devices() == {"bools": 1, "reference": 1}
    assert (compiled(X) == 3 * X).all()


@pytest.mark.parametrize(
    ("method", "answer", "reason"),
    [
        ("supports", [None], "supports() gave None for operation 0, must be a Verdict or a bool"),
        ("supports", ["yes"], "supports() gave 'yes' for operation 0, must be a Verdict or a bool"),
        ("supports", [(True, "")], "supports() gave (True, '') for operation 0, must be a Verdict or a bool"),
        ("supports", [np.True_], "for operation 0, must be a Verdict or a bool"),
        ("supports", [Verdict(None)], "supports() gave Verdict(ok=None, reason='') for operation 0, must be"),
        ("supports", [Verdict(True, None)], "supports() gave Verdict(ok=True, reason=None) for operation 0, must be"),
        ("supports", None, "supports() gave None, must be 1 verdicts, one an operation"),
        ("supports", [True, True], "supports() gave 2 verdicts, must be 1, one an operation"),
        ("capabilities", None, "capabilities() gave None, must be Capabilities"),
        ("capabilities", Capabilities({}, Performance(-1.0)), "performance of relaxed scalars is -1.0, must be a num"),
    ],
)
def test_an_answer_that_is_none_keeps_the_device_out_with_the_reason(method, answer, reason):
    device = saying("odd", **{method: lambda *_: answer})
    compiled = nnhal.compile(multiples(), devices=device, fallback="allow")
    assert compiled.placement.devices() == {"reference": 1}
    why = compiled.placement.choices[0].others["odd"]
    assert why.startswith("the driver failed to answer: ") and reason in why
    with pytest.raises(UnsupportedModel, match="odd: the driver failed to answer"):
        nnhal.compile(multiples(), devices=device)


@pytest.mark.parametrize("method", ["supports", "capabilities"])
def test_a_question_that_raises_keeps_the_device_out_with_the_reason(method):
    device = saying("shy", **{method: failing(RuntimeError("no answer"))})
    compiled = nnhal.compile(multiples(), devices=device, fallback="allow")
    why = f"the driver failed to answer: {method}() raised RuntimeError: no answer"
    assert compiled.placement.choices[0].others["shy"] == why


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [("True", ""), ("Verdict(True)", ""), ("None", "gave None for operation 0, must be a Verdict")],
)
def test_a_driver_in_another_process_is_held_to_the_same_answers(answer, outcome, tmp_path, monkeypatch):
    file = tmp_path / "answering.py"
    file.write_text(
        "from nnhal.drivers.reference import Reference\nfrom nnhal.hal.device import Verdict\n"
        f"class Answering(Reference):\n name = 'answering'\n def supports(self, model): return [{answer}]\n"
        "def device(): return Answering()\n"
    )
    monkeypatch.setattr(discovery, "_registered", {})
    nnhal.load_driver(file)
    with nnhal.compile(multiples(), devices="answering", isolation="process", fallback="allow") as compiled:
        (choice,) = compiled.placement.choices
        assert choice.device == ("reference" if outcome else "answering")
        assert outcome in choice.others.get("answering", "")


class Caching(Fake):
    """Gives the same prepared model for every model."""

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return self.prepared[0] if self.prepared else super().prepare(model, hints)


def test_a_prepared_model_that_was_given_before_is_refused_and_stays_what_it_was():
    device = Caching()
    first = nnhal.compile(multiples(), devices=device)
    with pytest.raises(
        OperationFailed, match=r"fake: prepare\(\) gave a Prepared that it gave before, must give a new one"
    ):
        nnhal.compile(multiples(2), devices=device)
    (step,) = first._caller.plan.steps
    assert step.prepared.model is step.laid.model
    assert not device.prepared[0].closed and (first(X) == 2 * X).all()


# ------------------------------------------------------------------------------------------------------ deadlines


class Closing(Prepared):
    """Says when it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def run(self, request: Request, control: Control) -> None:
        raise AssertionError("is used")

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("fallback", ["forbid", "allow"])
def test_a_prepare_that_hangs_misses_the_deadline_and_what_it_gives_late_is_closed(fallback, monkeypatch):
    gate, late, clock = threading.Event(), Closing(), Clock().play(monkeypatch, base_time)
    device = saying("slow", prepare=lambda *_: (clock.advance(2), gate.wait(LIMIT)) and late)
    with pytest.raises(MissedDeadline, match="compilation: device slow: preparing its part"):
        nnhal.compile(multiples(), devices=device, fallback=fallback, deadline=1)
    assert not gate.is_set() and not late.closed.is_set()
    gate.set()
    assert late.closed.wait(LIMIT)


@pytest.mark.parametrize("method", ["supports", "capabilities"])
@pytest.mark.parametrize("fallback", ["forbid", "allow"])
def test_a_question_that_is_not_answered_misses_the_deadline(method, fallback, monkeypatch):
    gate, clock = threading.Event(), Clock().play(monkeypatch, base_time)
    device = saying("slow", **{method: lambda *_: (clock.advance(1), gate.wait(LIMIT))})
    with pytest.raises(MissedDeadline, match="device slow: what it supports"):
        nnhal.compile(multiples(), devices=device, fallback=fallback, deadline=0.05)
    assert not gate.is_set()
    gate.set()


def test_a_process_that_does_not_answer_what_it_supports_misses_the_deadline(monkeypatch):
    monkeypatch.setenv("NNHAL_FAULTY", "supports=hang")
    monkeypatch.setattr(isolation, "_devices", OnceTable(str))
    with pytest.raises(MissedDeadline, match="device faulty: what it supports"):
        nnhal.compile(multiples(), devices="faulty", isolation="process", deadline=0.05)
    isolation.close_all()


def test_a_device_is_not_asked_to_prepare_after_the_deadline():
    asked, model = [], multiples()
    device = saying("late", prepare=lambda *_: asked.append(1))
    settings = CompileOptions((device,), "forbid", deadline=time.monotonic_ns() - 1)
    with pytest.raises(MissedDeadline, match="device late: preparing its part: the deadline passed before"):
        Preparation(device, extract_part(model, [0]), settings).step()
    assert not asked


def test_few_frames_lie_between_compile_and_the_driver():
    stacks = []
    device = Fake(on_prepare=lambda: stacks.append(traceback.extract_stack()))
    nnhal.compile(multiples(), devices=[device])
    package = str(Path(nnhal.__file__).parent)
    assert sum(frame.filename.startswith(package) for frame in stacks[0]) <= 9


def test_without_a_deadline_drivers_are_called_by_the_caller():
    threads = []
    device = Fake(takes=lambda n: not threads.append(threading.get_ident()), on_prepare=lambda: device.takes(0))
    nnhal.compile(multiples(), devices=device)
    assert set(threads) == {threading.get_ident()} and len(threads) == 2


def test_a_deadline_that_is_met_changes_nothing():
    compiled = nnhal.compile(multiples(2), devices=[Fake(takes=lambda n: n == 0), "reference"], deadline=LIMIT)
    assert (compiled(X) == 3 * X).all()


# -------------------------------------------------------------------------------------- what was prepared is closed


class Counting(Fake):
    """Counts how often each prepared model is closed; preparing the `at`th raises."""

    def __init__(self, at: int, error: BaseException, in_close: Callable[[], None] = lambda: None) -> None:
        super().__init__(takes=lambda n: n % 2 == 0)
        self.at, self.error, self.closes, self.in_close = at, error, [], in_close

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        if len(self.closes) == self.at:
            raise self.error
        place = len(self.closes)
        self.closes.append(0)
        prepared = super().prepare(model, hints)

        def close() -> None:
            self.closes[place] += 1
            self.in_close()

        prepared.close = close
        return prepared


@pytest.mark.parametrize("error", [RuntimeError("third"), InvalidArgument("third"), MissedDeadline("third")])
def test_when_a_part_fails_what_was_prepared_before_is_closed_once(error):
    device = Counting(2, error)
    with pytest.raises(nnhal.NnhalError, match="third"):
        nnhal.compile(multiples(5), devices=[device, "reference"])
    assert device.closes == [1, 1]


def test_an_interrupt_while_a_part_is_prepared_closes_those_before():
    device = Counting(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        nnhal.compile(multiples(3), devices=[device, "reference"])
    assert device.closes == [1]


def test_a_close_that_fails_does_not_hide_why():
    device = Counting(2, RuntimeError("third"), in_close=failing(OSError("stuck")))
    with pytest.raises(OperationFailed, match=r"device fake: prepare\(\) raised RuntimeError: third"):
        nnhal.compile(multiples(5), devices=[device, "reference"])
    assert device.closes == [1, 1]


def test_what_was_compiled_stays_open():
    device = Counting(9, RuntimeError("never"))
    compiled = nnhal.compile(multiples(3), devices=[device, "reference"])
    assert device.closes == [0, 0] and (compiled(X) == 4 * X).all()


def test_a_driver_that_dies_while_it_is_asked_what_it_supports_is_a_dead_object(monkeypatch):
    monkeypatch.setenv("NNHAL_FAULTY", "supports=exit")
    dying = ReconnectingDevice("faulty", lambda: start(discovery.origin_of("faulty")))
    with pytest.raises(nnhal.DeadObject, match="faulty"):
        nnhal.compile(multiples(), devices=[dying], fallback="forbid")


# --------------------------------------------------------------------------------------- where it goes when it fails


def named(name: str, **more: object) -> Fake:
    device = Fake(**more)  # type: ignore[arg-type]
    device.name = name
    return device


def once(error: Exception) -> Callable[[], None]:
    """Raises the first time."""
    left = [error]

    def fail() -> None:
        if left:
            raise left.pop()

    return fail


def test_what_failed_to_prepare_goes_elsewhere_and_the_rest_stays(monkeypatch):
    for_nothing(monkeypatch)
    device = Fake(takes=lambda n: n != 2, on_prepare=once(RuntimeError("no room")))
    compiled = nnhal.compile(multiples(5), devices=[device, "reference"], fallback="allow")
    assert [(s.device, s.operations) for s in compiled.placement.steps] == [("reference", (0, 1, 2)), ("fake", (3, 4))]
    assert compiled.placement.events == (
        "fake failed to prepare operations #0 to #1: device fake: prepare() raised RuntimeError: no room; "
        "placing them elsewhere",
    )
    why = "failed to prepare: device fake: prepare() raised RuntimeError: no room"
    assert [c.others.get("fake") for c in compiled.placement.choices] == [why, why, "not this one", None, None]
    assert (compiled(X) == 6 * X).all()


def test_what_was_prepared_in_vain_is_closed_before_it_is_tried_anew(monkeypatch):
    for_nothing(monkeypatch)

    class Second(Counting):
        def prepare(self, model: Model, hints: Hints) -> Prepared:
            self.at = 1 if not refused else 99
            try:
                return super().prepare(model, hints)
            except RuntimeError:
                refused.append(list(self.closes))
                raise

    refused: list[list[int]] = []
    device = Second(1, RuntimeError("second"))
    compiled = nnhal.compile(multiples(3), devices=[device, "reference"], fallback="allow")
    assert refused == [[0]] and device.closes == [1, 0]  # that of the first attempt, and that of the second
    assert compiled.placement.devices() == {"fake": 1, "reference": 2}
    compiled.close()
    assert device.closes == [1, 1]


def test_one_operation_that_failed_is_named_alone():
    device = Fake(takes=lambda n: n == 1, on_prepare=BROKEN)
    compiled = nnhal.compile(multiples(2), devices=[device, "reference"], fallback="allow")
    assert compiled.placement.events[0].startswith("fake failed to prepare operations #1: ")


def test_a_second_failure_sends_the_whole_model_to_the_cpu():
    one, other = named("one", on_prepare=BROKEN), named("other", on_prepare=BROKEN)
    compiled = nnhal.compile(multiples(2), devices=[one, other], fallback="allow")
    assert compiled.placement.devices() == {"reference": 2}
    assert [event.split(":")[0] for event in compiled.placement.events] == [
        "one failed to prepare operations #0 to #1", "other failed to prepare as well",
    ]  # fmt: skip
    assert compiled.placement.events[1].endswith("broken; the whole model goes to the CPU")
    assert (compiled(X) == 3 * X).all()


def test_where_the_cpu_fails_too_its_error_is_raised(monkeypatch):
    cpu = discovery.cpu()
    monkeypatch.setattr(type(cpu), "prepare", failing(RuntimeError("of the CPU")))
    with pytest.raises(OperationFailed, match=r"device reference: prepare\(\) raised RuntimeError: of the CPU"):
        nnhal.compile(multiples(), devices=[named("one", on_prepare=BROKEN)], fallback="allow")


def test_operations_of_extensions_never_fall_back_to_the_cpu():
    model = extended("com.example.compiled")
    device = saying("knows", supports=lambda model: [True] * 2, prepare=failing(RuntimeError("no room")))
    device.extensions = ("com.example.compiled",)
    with pytest.raises(UnsupportedModel, match="reference: operations of extensions never fall back"):
        nnhal.compile(model, devices=[device], fallback="allow")
    with pytest.raises(OperationFailed, match="no room"):
        nnhal.compile(model, devices=[device], fallback="forbid")


def test_the_cpu_takes_over_only_where_something_may_fall_back():
    device = Fake(takes=lambda n: n == 0)
    with pytest.raises(UnsupportedModel, match=r"no device supports 1 of 2 operations: ADD #1: fake: not this one$"):
        nnhal.compile(multiples(2), devices=[device])
    for fallback in ("allow", "warn"):
        compiled = nnhal.compile(multiples(2), devices=[device], fallback=fallback)
        assert compiled.placement.devices() == {"fake": 1, "reference": 1}
    compiled = nnhal.compile(multiples(2), devices=[device, "reference"], fallback="allow")
    assert list(compiled.placement.keys) == ["fake", "reference"]  # it is there once


@pytest.mark.parametrize("why", [nnhal.Closed, nnhal.DeviceUnavailable, nnhal.ResourceExhausted])
def test_a_device_that_cannot_be_had_is_the_reason_where_nobody_else_takes_a_model(why):
    gone = saying("gone", supports=failing(why("was unplugged")))
    odd = saying("odd", supports=failing(RuntimeError("no answer")))
    with pytest.raises(why, match="was unplugged"):
        nnhal.compile(multiples(), devices=[odd, gone])
    with pytest.raises(UnsupportedModel, match="odd: the driver failed to answer") as caught:
        nnhal.compile(multiples(), devices=[odd])
    assert isinstance(caught.value.__cause__, OperationFailed) and "no answer" in str(caught.value.__cause__)
    assert "RuntimeError: no answer" in caught.value.stack
    with pytest.raises(UnsupportedModel) as caught:
        nnhal.compile(multiples(), devices=[Fake(takes=lambda n: False)])
    assert caught.value.__cause__ is None
    compiled = nnhal.compile(multiples(), devices=[odd, gone, Fake()])
    assert compiled.placement.choices[0].others["gone"] == "device gone: was unplugged"
    assert compiled.placement.events == (
        "odd takes nothing: the driver failed to answer: supports() raised RuntimeError: no answer",
        "gone takes nothing: device gone: was unplugged",
    )


# ------------------------------------------------------------------------------------------------ what a driver is told


def test_a_driver_is_told_all_that_was_asked_for_and_who_only_takes_over_no_options(monkeypatch):
    told: dict[str, Hints] = {}

    def noting(name: str) -> Fake:
        device = named(name, takes=lambda n: n == 0)
        real = device.prepare
        device.prepare = lambda model, hints: (told.__setitem__(name, hints), real(model, hints))[1]  # type: ignore[method-assign]
        return device

    cpu = discovery.cpu()
    real = type(cpu).prepare
    monkeypatch.setattr(
        type(cpu), "prepare", lambda self, model, hints: (told.__setitem__("cpu", hints), real(self, model, hints))[1]
    )
    before = time.monotonic_ns()
    nnhal.compile(
        multiples(2), devices=[noting("mine")], fallback="allow", preference="low_power", priority="high", threads=1,
        driver_options={"mine": {"turbo": 1}}, deadline=LIMIT,
    )  # fmt: skip
    for name, options in (("mine", {"turbo": 1}), ("cpu", {})):
        hints = told[name]
        assert (hints.preference, hints.priority, hints.threads) == (Preference.LOW_POWER, Priority.HIGH, 1)
        assert hints.options == options
        assert before + LIMIT * 1e9 <= hints.deadline <= time.monotonic_ns() + LIMIT * 1e9


def test_what_was_not_asked_for_is_the_default():
    seen: list[Hints] = []
    device = Fake()
    real = device.prepare
    device.prepare = lambda model, hints: (seen.append(hints), real(model, hints))[1]  # type: ignore[method-assign]
    nnhal.compile(multiples(), devices=[device])
    assert CompileOptions((), "forbid").hints(device) == seen[0]
    assert (seen[0].preference, seen[0].priority) == (Preference.FAST_SINGLE_ANSWER, Priority.MEDIUM)
    assert (seen[0].threads, seen[0].deadline, seen[0].options) == (0, None, {})


def test_what_a_device_offers_is_what_it_says_and_a_step_in_another_process_costs_more(monkeypatch):
    offers: list[Offer] = []
    real = placer.placed
    monkeypatch.setattr(
        placer, "placed", lambda model, given, *more: (offers.extend(given), real(model, given, *more))[1]
    )
    device = Fake(takes=lambda n: n == 0)
    device.extensions, device.level = ("com.example.offered",), nnhal.Level.parse("1.2")  # type: ignore[assignment]
    nnhal.compile(multiples(2), devices=[device, "reference"])
    here, cpu = offers
    assert (here.device, here.level, here.extensions) == ("fake", nnhal.Level.parse("1.2"), ("com.example.offered",))
    assert [v.ok for v in here.verdicts] == [True, False] and [v.ok for v in cpu.verdicts] == [True, True]
    assert here.capabilities == Capabilities.uniform(0.1) and here.laid is None and not here.excluded
    assert here.step == cpu.step == costs.STEP == 20e-6
    offers.clear()
    nnhal.compile(multiples(), devices="reference", isolation="process")
    assert offers[0].step == costs.STEP_ELSEWHERE == 80e-6


def test_how_long_preparing_took_is_told_in_nanoseconds(monkeypatch):
    clock = Clock().play(monkeypatch, compilation)
    compiled = nnhal.compile(multiples(), devices=[Fake(on_prepare=lambda: clock.advance(0.01))])
    (step,) = compiled._caller.plan.steps
    assert step.nanoseconds == 10_000_000


@pytest.mark.parametrize(
    ("error", "callers"),
    [(InvalidArgument("a"), True), (InvalidModel("b"), False), (OperationFailed("c"), False), (ValueError("d"), False)],
)
def test_only_what_is_about_arguments_is_the_callers_mistake(error, callers):
    assert compilation.is_argument_error(error) is callers


def test_the_steps_of_a_closed_model_are_closed_in_whatever_it_was_prepared(monkeypatch):
    for_nothing(monkeypatch)
    devices = [named(name, takes=lambda n, own=own: n % 2 == own) for own, name in enumerate("ab")]
    compiled = nnhal.compile(multiples(4), devices=devices)
    prepared = [each for device in devices for each in device.prepared]
    assert len(prepared) == 4 and not any(each.closed for each in prepared)
    compiled.close()
    assert all(each.closed for each in prepared)


@pytest.mark.parametrize(
    ("seconds", "error", "heard"),
    [
        (None, MissedDeadline("slow"), False),
        (LIMIT, MissedDeadline("slow"), True),
        (LIMIT, OperationFailed("no"), False),
    ],
)
def test_a_device_that_fails_to_say_takes_nothing_and_its_lateness_is_the_callers_to_hear(seconds, error, heard):
    device, model = saying("silent", supports=failing(error)), multiples(2)
    deadline = None if seconds is None else time.monotonic_ns() + int(seconds * 1e9)
    settings = CompileOptions((device,), "allow", deadline=deadline)
    if heard:
        with pytest.raises(MissedDeadline):
            compilation.Compilation(model, settings)._ask_again(device, "silent", SimpleNamespace(model=model))
    else:
        found = compilation.Compilation(model, settings)._ask_again(device, "silent", SimpleNamespace(model=model))
        assert list(found) == [0, 1] and all("failed to answer" in why for why in found.values())
