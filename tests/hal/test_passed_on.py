"""What wrappers pass on: every call of a device and of what it prepared, with its arguments, and what comes back."""

from typing import Any

import pytest

import nnhal
from nnhal.base.codes import DeviceStatus, DeviceType
from nnhal.base.errors import OperationFailed
from nnhal.base.levels import FL8, V1_0, V1_1, V1_2, V1_3
from nnhal.hal.device import Capabilities, Considered, Device, Hints, OperationGroup, Performance, Prepared, Verdict
from nnhal.hal.host import HostBuffer
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.prepared import PreparedWrapper
from nnhal.hal.request import Control
from nnhal.hal.wrappers import Limited, Recorded, WithHalLevel, WithOptions, Wrapper
from tests.hal.devices import adding
from tests.models import make_model

YES, NO = Verdict(True, "as it says"), Verdict(False, "not this")
GROUP = OperationGroup((0, 1), Performance(0.5), 1)


class Heard:
    """Notes calls with their arguments; gives back another object for each."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.gave: list[object] = []

    def __call__(self, *call: Any) -> Any:
        self.calls.append(call)
        self.gave.append(object())
        return self.gave[-1]

    def last(self, found: object, *call: Any) -> bool:
        """Whether this was the one call, and that what it gave."""
        said = self.calls == [call] and found is self.gave[-1]
        self.calls.clear()
        return said


class Inner(Prepared):
    """Each method is told of, and gives what nothing else gives."""

    timely = one_at_a_time = weights_consumed = True
    changeable = ("speed",)

    def __init__(self, heard: Heard) -> None:
        self.heard = heard

    def __getattribute__(self, name: str) -> Any:
        if name in CALLS:
            return lambda *arguments: self.heard(name, *arguments)
        return super().__getattribute__(name)

    def run(self, request: Any, control: Any) -> Any:
        raise AssertionError("is told of instead")


CALLS: dict[str, tuple[Any, ...]] = {
    "run": ("request", Control()),
    "execute": ("request", Control(), "notify"),
    "execute_fenced": ("request", Control(), ["fence"], 7),
    "burst": (),
    "burst_executor": (),
    "burst_opened": (),
    "burst_closed": (),
    "memory": (),
    "reconfigure": ({"speed": 1},),
    "close": (),
}
SILENT = "execute", "burst_opened", "burst_closed", "reconfigure", "close"  # give nothing


class Sounding(Device):
    """Says something of its own for everything that it can be asked."""

    name, version, type, level, extensions = "sounding", "7.1", DeviceType.GPU, V1_3, ("com.example.one",)
    relaxations, one_at_a_time, preferred_layout = ("float16",), True, "nchw"

    def __init__(self) -> None:
        self.heard = Heard()
        self.stated, self.said = Capabilities.uniform(0.25), [YES, NO]
        self.hints: list[Hints] = []

    def capabilities(self) -> Capabilities:
        return self.stated

    def supports(self, model: nnhal.Model) -> Any:
        self.heard("supports", model)
        return self.said

    def consider(self, model: nnhal.Model, hints: Hints) -> Considered:
        self.hints.append(hints)
        return Considered(self.said, [GROUP], "worked out")

    def prepare(self, model: nnhal.Model, hints: Hints) -> Prepared:
        self.hints.append(hints)
        return Inner(self.heard)

    def status(self) -> DeviceStatus:
        return DeviceStatus.BUSY

    def close(self) -> None:
        self.heard("close")


def two() -> nnhal.Model:
    return make_model(lambda b, x: b.relu(b.relu(x)), (3, 4))


WRAPPERS = {
    "plain": Wrapper,
    "limited": lambda inner: Limited(inner, lambda model, n: True),
    "with options": lambda inner: WithOptions(inner, {}),
    "at its level": lambda inner: WithHalLevel(inner, FL8),
    "recorded": lambda inner: Recorded(inner, []),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_device_is_what_it_is(name: str) -> None:
    inner = Sounding()
    device = WRAPPERS[name](inner)
    for what in ("name", "version", "type", "level", "extensions", "relaxations", "one_at_a_time", "preferred_layout"):
        assert getattr(device, what) == getattr(inner, what), what
    assert device.capabilities() == inner.stated and device.status() == DeviceStatus.BUSY
    assert list(device.supports(two())) == [YES, NO]
    said = device.consider(two(), Hints())
    assert (list(said.verdicts), list(said.groups)) == ([YES, NO], [GROUP])
    assert said.worked_out == (None if name == "at its level" else "worked out")
    inner.heard.calls.clear()
    device.close()
    assert inner.heard.calls == [("close",)]


@pytest.mark.parametrize("name", ["plain", "with options", "recorded", "at its level"])
@pytest.mark.parametrize("method", CALLS)
def test_a_wrapped_prepared_model_is_called_with_the_same_and_gives_the_same(name: str, method: str) -> None:
    model, heard, calls = adding(), Heard(), list[str]()
    prepared = {
        "plain": lambda: PreparedWrapper(Inner(heard), model),
        "with options": lambda: WithOptions(Sounding(), {}).prepare(model, Hints()),
        "recorded": lambda: Recorded(Sounding(), calls).prepare(model, Hints()),
        "at its level": lambda: WithHalLevel(Sounding(), V1_3).prepare(model, Hints()),
    }[name]()
    heard = prepared.inner.heard
    assert prepared.model == prepared.inner.model == model
    assert prepared.timely and prepared.one_at_a_time and prepared.weights_consumed
    assert prepared.changeable == ("speed",)
    if (name, method) == ("at its level", "execute"):
        return  # goes by `run`
    calls.clear()
    found = getattr(prepared, method)(*CALLS[method])
    if method in SILENT:
        assert heard.calls == [(method, *CALLS[method])] and found is None
    else:
        assert heard.last(found, method, *CALLS[method])
    noted = name == "recorded" and not method.startswith("burst_")
    assert calls == ([method] if noted else [])


def test_options_of_the_wrappers_own_come_with_each_call_and_win() -> None:
    inner = Sounding()
    device = WithOptions(inner, {"speed": 3, "own": 1})
    device.consider(two(), Hints(options={"speed": 1, "given": 2}))
    prepared = device.prepare(two(), Hints(threads=2, options={"speed": 1}))
    assert [h.options for h in inner.hints] == [{"speed": 3, "own": 1, "given": 2}, {"speed": 3, "own": 1}]
    assert inner.hints[1].threads == 2
    prepared.reconfigure({"speed": 9, "more": 4})
    assert inner.heard.calls == [("reconfigure", {"speed": 3, "own": 1, "more": 4})]


def test_what_cannot_be_reconfigured_needs_no_wrapper(monkeypatch) -> None:
    monkeypatch.setattr(Inner, "changeable", ())
    assert type(WithOptions(Sounding(), {"own": 1}).prepare(two(), Hints())) is Inner


def test_what_is_left_out_is_refused_with_the_reason_and_takes_its_groups_along() -> None:
    said = Limited(Sounding(), lambda model, n: n == 0, "for a test").consider(two(), Hints())
    assert list(said.verdicts) == [YES, Verdict(False, "for a test")] and list(said.groups) == []
    assert (
        Limited(Sounding(), lambda model, n: False).consider(two(), Hints()).verdicts[0].reason == "left out on purpose"
    )


# ---------------------------------------------------------------------------------------------------- at a level


def test_extensions_exist_since_1_2() -> None:
    assert [WithHalLevel(Sounding(), level).extensions for level in (V1_0, V1_1)] == [(), ()]
    assert [WithHalLevel(Sounding(), level).extensions for level in (V1_2, V1_3)] == [("com.example.one",)] * 2


def test_groups_are_passed_on_since_1_3_where_the_level_has_all_their_operations() -> None:
    assert list(WithHalLevel(Sounding(), V1_2).consider(two(), Hints()).groups) == []
    assert list(WithHalLevel(Sounding(), V1_3).consider(two(), Hints()).groups) == [GROUP]
    late = make_model(lambda b, x: b.mirror_pad(b.relu(x), [[1, 1], [1, 1]], "reflect"), (3, 4))
    found = WithHalLevel(Sounding(), V1_3).consider(late, Hints())
    assert list(found.groups) == [] and [v.ok for v in found.verdicts] == [True, False]


def test_a_device_is_not_asked_about_a_model_of_which_its_level_has_nothing() -> None:
    inner = Sounding()
    model = make_model(lambda b, x: b.abs(b.abs(x)), (3, 4))
    found = WithHalLevel(inner, V1_1).consider(model, Hints())
    assert [v.ok for v in found.verdicts] == [False, False] and not inner.hints
    assert all("needs level 1.2" in v.reason for v in found.verdicts)


def test_verdicts_of_the_devices_own_keep_their_reason_and_one_without_gets_one() -> None:
    inner = Sounding()
    inner.said = [YES, NO]
    assert list(WithHalLevel(inner, V1_3).consider(two(), Hints()).verdicts) == [YES, NO]
    inner.said = [YES, Verdict(False)]
    assert list(WithHalLevel(inner, V1_1).consider(two(), Hints()).verdicts) == [
        YES,
        Verdict(False, "the device rejects it"),
    ]


def test_a_wrong_number_of_verdicts_is_passed_on_to_be_refused() -> None:
    inner = Sounding()
    inner.said = [YES]
    assert list(WithHalLevel(inner, V1_1).consider(two(), Hints()).verdicts) == [YES]


def test_buffers_of_a_device_at_1_3_play_the_roles_of_both() -> None:
    device = WithHalLevel(Sounding(), V1_3)
    prepared = device.prepare(adding(), Hints())
    buffer = device.allocate(BufferDesc(), [BufferRole(prepared, 0)])
    assert isinstance(buffer, HostBuffer)
    for each in (prepared, prepared.inner):
        buffer.check_role(each, 0, False)
    with pytest.raises(OperationFailed, match=r"allocate needs level 1.3, device sounding is at 1.2"):
        WithHalLevel(Sounding(), V1_2).allocate(BufferDesc(), [BufferRole(prepared, 0)])
