"""Options in force, step by step: which steps a change is for, and what is left of one that fails, on steps by hand."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from nnhal.base.errors import Closed, InvalidArgument, MissedDeadline, OperationFailed
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import UNLIMITED, Control, Request
from nnhal.model.graph import Model
from nnhal.runtime.configuration import Configuration, Configured
from tests.models import doubling
from tests.runtime.devices import Fake, failing


class Told(Prepared):
    """Notes the options that it is told. when: called with them before."""

    def __init__(self, *changeable: str) -> None:
        self.changeable = changeable
        self.options: list[Mapping[str, Any]] = []
        self.when: Callable[[Mapping[str, Any]], object] = lambda _: None

    def run(self, request: Request, control: Control) -> None:
        """Nothing runs here."""

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        self.when(options)
        self.options.append(options)


class Giving(Fake):
    """Prepares what it is given."""

    def __init__(self, *prepared: Told) -> None:
        super().__init__()
        self._prepared = list(prepared)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return self._prepared.pop(0)


def step(label: str, prepared: Told, device: Device | None = None, **options: Any) -> Configured:
    device = device or Giving(prepared)
    return Configured(label, device, checked_prepared(device, doubling(), Hints()), options)


def fail(text: str) -> Callable[[Any], object]:
    return failing(OperationFailed(text))


def test_nothing_waits_for_its_turn_where_nothing_can_change() -> None:
    still = Configuration([step("a", Told()), step("b", Told())])
    assert still.turns is None and still.queue() is None
    still.leave(None)
    some = Configuration([step("a", Told()), step("b", Told("gain"))])
    ticket = some.queue()
    assert ticket is not None and not ticket.alone
    with pytest.raises(MissedDeadline):
        some.change("b", {"gain": 1}, Control(deadline=1))
    some.leave(None)
    still.leave(ticket)  # not its own
    some.leave(ticket)
    some.change("b", {"gain": 1}, Control(deadline=2**62))


def test_a_change_is_for_all_steps_of_the_device_and_for_no_other_and_keeps_what_is_not_named() -> None:
    one, two, other = Told("gain"), Told("gain", "slow"), Told("gain")
    device = Giving(one, two)
    steps = [step("a", one, device, gain=1, x=2), step("b", other, gain=3), step("a", two, device, gain=5)]
    made = Configuration(steps)
    made.change("a", {"gain": 7}, UNLIMITED)
    assert one.options == [{"gain": 7, "x": 2}] and two.options == [{"gain": 7}] and other.options == []
    assert [s.options for s in steps] == [{"gain": 7, "x": 2}, {"gain": 3}, {"gain": 7}]
    made.change("b", {}, UNLIMITED)
    assert other.options == []
    made.change("b", {"gain": 0}, UNLIMITED)
    assert other.options == [{"gain": 0}] and len(one.options) == 1


def test_a_device_is_named_by_its_label_or_by_a_name_that_no_other_has() -> None:
    one, two = Told("gain"), Told("gain")
    made = Configuration([step("first", one), step("second", two), step("second", Told("gain"))])
    made.change("first", {"gain": 1}, UNLIMITED)
    assert (len(one.options), len(two.options)) == (1, 0)
    for name, text in (
        ("fake", r"^configure: several devices are named 'fake', must be one of first, second$"),
        ("none", r"^configure: device 'none' runs no partition of this model, must be one of first, second$"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            made.change(name, {"gain": 1}, UNLIMITED)
    both = Configuration([step("first", Told("gain")), step("second", Told("gain"))])
    with pytest.raises(InvalidArgument, match="several devices are named 'fake'"):
        both.change("fake", {"gain": 1}, UNLIMITED)
    three = Told("gain")
    Configuration([step("label", three)]).change("fake", {"gain": 3}, UNLIMITED)
    assert three.options == [{"gain": 3}]


@pytest.mark.parametrize(
    ("changeable", "options", "text"),
    [
        (("gain", "slow"), {"gain": 1, "y": 2}, "option 'y' of a may not change .* must be one of gain, slow$"),
        ((), {"gain": 1}, "option 'gain' of a may not change between executions, it has none that may$"),
        (("gain",), {1: 1}, "options of a are .* must be a mapping with str keys$"),
        (("gain",), [("gain", 1)], "must be a mapping with str keys$"),
    ],
)
def test_what_cannot_change_is_refused_before_anybody_is_told(changeable: Any, options: Any, text: str) -> None:
    prepared = Told(*changeable)
    with pytest.raises(InvalidArgument, match=text):
        Configuration([step("a", prepared)]).change("a", options, UNLIMITED)
    assert prepared.options == []


def test_steps_that_were_told_get_back_what_they_had_where_one_fails() -> None:
    told = [Told("gain") for _ in range(3)]
    device = Giving(*told)
    steps = [step("a", prepared, device, gain=n) for n, prepared in enumerate(told)]
    told[2].when = fail("no")
    made = Configuration(steps)
    with pytest.raises(OperationFailed, match="no"):
        made.change("a", {"gain": 9}, UNLIMITED)
    assert [t.options for t in told] == [[{"gain": 9}, {"gain": 0}], [{"gain": 9}, {"gain": 1}], []]
    assert [s.options for s in steps] == [{"gain": 0}, {"gain": 1}, {"gain": 2}] and not made.unknown
    made.check()
    told[2].when = lambda _: None  # and it may be tried again: nobody stands in the queue
    made.change("a", {"gain": 9}, Control(deadline=2**62))
    assert [s.options for s in steps] == [{"gain": 9}] * 3


def test_what_cannot_be_put_back_is_told_and_the_others_are(caplog: pytest.LogCaptureFixture) -> None:
    told = [Told("gain") for _ in range(3)]
    device = Giving(*told)
    made = Configuration([step("a", prepared, device, gain=n) for n, prepared in enumerate(told)])
    told[0].when = lambda options: fail("stuck")(options) if options["gain"] == 0 else None
    told[2].when = fail("no")
    with pytest.raises(OperationFailed, match="no"):
        made.change("a", {"gain": 9}, UNLIMITED)
    assert told[1].options == [{"gain": 9}, {"gain": 1}]
    assert made.unknown == "options of a could not be put back after device a: no: device a: stuck"
    assert [r.getMessage() for r in caplog.records if r.name == "nnhal.execution"] == ["device a: stuck"]
    for again in (made.check, lambda: made.change("a", {"gain": 1}, UNLIMITED)):
        with pytest.raises(Closed, match="options of a could not be put back"):
            again()
    assert len(told[1].options) == 2


def test_after_an_interrupted_change_nobody_knows_what_is_in_force() -> None:
    one, two = Told("gain"), Told("gain")
    device = Giving(one, two)
    made = Configuration([step("a", one, device, gain=1), step("a", two, device, gain=1)])

    two.when = failing(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        made.change("a", {"gain": 9}, UNLIMITED)
    assert one.options == [{"gain": 9}, {"gain": 1}]
    with pytest.raises(Closed, match=r"^a change of options was interrupted by KeyboardInterrupt$"):
        made.check()
