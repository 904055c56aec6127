"""Devices that prefer a layout: what they are asked, where things go then, what is told of it."""

import gc
import json
import weakref
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.base.levels import FL8, V1_1, V1_2
from nnhal.drivers.reference import Reference
from nnhal.frontends.python import Builder
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.device import Capabilities, Hints, Prepared, Verdict, identity_of, layout_of
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.wrappers import Limited, WithHalLevel
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.model.graph import Model
from nnhal.model.layouts import with_layout
from nnhal.runtime import discovery
from nnhal.runtime.cache.folder import CacheFolder
from nnhal.runtime.placement import WHOLE
from tests.cli.test_cli import nnhal as command
from tests.ipc.drivers.only_nchw import OnlyNchw
from tests.ipc.support import own_process
from tests.runtime.devices import for_nothing

DRIVER = Path(__file__).parents[1] / "ipc" / "drivers" / "only_nchw.py"


def convolutions(count: int = 2, between: str = "relu", name: str = "") -> Model:
    """Convolutions on NHWC pictures with an operation between each two."""
    rng = np.random.default_rng(3)
    b = Builder(name)
    first = x = b.input((1, 6, 5, 4), name="x")
    for n in range(count):
        weights = rng.standard_normal((4, 3, 3, 4)).astype(np.float32)
        x = b.conv_2d(x, weights, np.zeros(4, np.float32), padding="same")
        if n + 1 < count:
            x = getattr(b, between)(x)
    return b.finish([first], [x])


def picture(model: Model) -> np.ndarray:
    shape = model.main.operands[model.main.inputs[0]].dimensions
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


def reference(model: Model) -> np.ndarray:
    with nnhal.compile(model, devices="reference") as compiled:
        return compiled(picture(model))


# ------------------------------------------------------------------------------------------------------- real models


@pytest.mark.parametrize("name", [pytest.param("mobilenet_v1", marks=pytest.mark.nightly), "mobilenet_v2"])
def test_a_device_of_nchw_only_runs_a_mobilenet_whole_with_one_transpose(name: str) -> None:
    model = nnhal.load(name)
    with nnhal.compile(model, devices=OnlyNchw(), fallback="forbid") as compiled:
        assert len(compiled.placement.steps) == 1
        assert compiled.placement.transposes == 1
        np.testing.assert_array_equal(compiled(picture(model)), reference(model))


class Kept(Prepared):
    """Keeps something of a compilation."""

    def __init__(self, inner: Prepared) -> None:
        self.inner = inner

    def run(self, request: Request, control: Control) -> Timing | None:
        return self.inner.run(request, control)

    def save(self, files: CacheContent) -> bool:
        files.model[0]["code"] = b"x"
        return True


class Keeping(OnlyNchw):
    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(1)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Kept(super().prepare(model, hints))


def test_an_entry_has_the_operations_of_the_model_and_not_those_of_its_layout(tmp_path: Path) -> None:
    with nnhal.compile(convolutions(), devices=Keeping(), cache_dir=tmp_path / "cache") as compiled:
        assert compiled.placement.transposes == 2
    (entry,) = CacheFolder(tmp_path / "cache", 1 << 20).entries()
    assert entry.manifest is not None
    assert (entry.manifest.facts["operations"], entry.manifest.facts["of"]) == (3, 3)


def test_so_it_does_in_a_process_of_its_own() -> None:
    model = nnhal.load("mobilenet_v1")
    device = ReconnectingDevice("only-nchw", lambda: start(str(DRIVER)))
    try:
        with nnhal.compile(model, devices=device, fallback="forbid") as compiled:
            assert compiled.placement.transposes == 1
            np.testing.assert_array_equal(compiled(picture(model)), reference(model))
            with compiled.burst() as run:
                np.testing.assert_array_equal(run(picture(model)), reference(model))
    finally:
        device.close()


# ---------------------------------------------------------------------------------------------------------- who says what


def test_what_a_device_prefers_is_known_outside_of_its_process() -> None:
    with own_process(str(DRIVER)) as remote:
        assert identity_of(remote).preferred_layout == "nchw"
    with own_process("reference") as remote:
        assert identity_of(remote).preferred_layout is None


def test_a_wrapped_device_prefers_what_the_one_inside_does_from_1_2_on() -> None:
    assert layout_of(Limited(OnlyNchw(), lambda model, n: True)) == "nchw"
    assert layout_of(WithHalLevel(OnlyNchw(), V1_2)) == "nchw"
    assert layout_of(WithHalLevel(OnlyNchw(), V1_1)) is None
    assert layout_of(WithHalLevel(discovery.cpu(), FL8)) is None


def test_a_device_of_1_1_is_asked_about_the_model_as_it_is() -> None:
    with pytest.raises(nnhal.UnsupportedModel, match="NCHW only"):
        nnhal.compile(convolutions(), devices=WithHalLevel(OnlyNchw(), V1_1), fallback="forbid")


def test_devices_say_what_they_prefer() -> None:
    driver = ("--driver", str(DRIVER))
    names = {entry["name"]: entry for entry in json.loads(command("devices", "--no-isolation", "--json", *driver))}
    assert names["only-nchw"]["preferred_layout"] == "nchw"
    assert names["reference"]["preferred_layout"] is None
    assert "preferred layout NCHW" in command("devices", "only-nchw", "--no-isolation", *driver)


# -------------------------------------------------------------------------------------------------------------- placement


def test_a_device_that_refuses_a_transpose_refuses_what_it_is_for() -> None:
    device = OnlyNchw()
    device.refused = ("TRANSPOSE",)
    why = "its layout needs a TRANSPOSE, which the device refuses: not this one"
    with pytest.raises(nnhal.UnsupportedModel, match=f"CONV_2D #0, CONV_2D #2: only-nchw: {why}$"):
        nnhal.compile(convolutions(), devices=device, fallback="forbid")
    with nnhal.compile(convolutions(), devices=device, fallback="allow") as compiled:
        assert compiled.placement.devices() == {"reference": 3}


def test_a_part_is_asked_about_again_as_it_would_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device does not take breaks the chain: both ends then need transposes, which it refuses within."""
    for_nothing(monkeypatch)

    class OnlyAtTheEnds(OnlyNchw):
        """Takes no transposes of pictures of four channels with a height of 6, unless there are many operations."""

        def supports(self, model: Model) -> list[Verdict]:
            found = super().supports(model)
            few = len(model.main.operations) < 7
            kinds = [o.type for o in model.main.operations]
            return [
                Verdict(False, "few") if few and kind == OperationType.TRANSPOSE else verdict
                for kind, verdict in zip(kinds, found, strict=True)
            ]

    model = convolutions(3, "logistic")
    device = OnlyAtTheEnds()
    device.refused = ("LOGISTIC",)
    with nnhal.compile(model, devices=[device], fallback="allow") as compiled:
        assert compiled.placement.devices() == {"reference": 5}
        reasons = [choice.others["only-nchw"] for choice in compiled.placement.choices]
        assert all(why.endswith("few") or why == "not this one" for why in reasons)
        np.testing.assert_array_equal(compiled(picture(model)), reference(model))


def test_parts_on_two_devices_keep_the_order_of_the_model_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for_nothing(monkeypatch)
    model = convolutions(3, "logistic")
    device = OnlyNchw()
    device.refused = ("LOGISTIC",)
    with nnhal.compile(model, devices=[device], fallback="allow") as compiled:
        assert [(step.device, len(step.operations)) for step in compiled.placement.steps] == [
            ("only-nchw", 1),
            ("reference", 1),
            ("only-nchw", 1),
            ("reference", 1),
            ("only-nchw", 1),
        ]
        assert [each.transposes for each in compiled.placement.layouts] == [2, 2, 2]
        np.testing.assert_array_equal(compiled(picture(model)), reference(model))


def test_transposes_count_where_it_is_decided_who_takes_a_part() -> None:
    """Without a layout the fast device takes both ends: with one it would transpose four times for so little."""
    rng = np.random.default_rng(5)
    b = Builder()
    x = first = b.input((1, 64, 64, 4))
    x = b.max_pool_2d(x, padding="same", filter_size=1, stride=1)
    for _ in range(3):
        x = b.reshape(x, np.array([1, 64 * 64, 2, 2], np.int32))
        x = b.reshape(x, np.array([1, 64, 64, 4], np.int32))
    x = b.max_pool_2d(x, padding="same", filter_size=1, stride=1)
    model = b.finish([first], [x])

    class Fast(Reference):
        name = "fast"
        stated = 0.8

        def capabilities(self) -> Capabilities:
            return Capabilities.uniform(self.stated)

    indifferent, picky = Fast(), Fast()
    picky.preferred_layout = "nchw"
    with nnhal.compile(model, devices=[indifferent, discovery.cpu()]) as compiled:
        assert compiled.placement.devices() == {"fast": 8}
    with nnhal.compile(model, devices=[picky, discovery.cpu()]) as compiled:
        assert compiled.placement.devices() == {"reference": 8}
        given = rng.standard_normal((1, 64, 64, 4)).astype(np.float32)
        np.testing.assert_array_equal(compiled(given), given)


def test_a_step_that_fails_runs_as_the_model_has_it() -> None:
    class Failing(OnlyNchw):
        def prepare(self, model: Model, hints: Hints) -> Prepared:
            prepared = super().prepare(model, hints)
            prepared.run = lambda request, control: 1 / 0  # type: ignore[method-assign]
            return prepared

    model = convolutions()
    with nnhal.compile(model, devices=Failing(), fallback="allow") as compiled:
        np.testing.assert_array_equal(compiled(picture(model)), reference(model))
        assert [fell.step for fell in compiled.placement.live] == [WHOLE]


def test_what_stays_in_the_other_layout_is_told_with_the_reason() -> None:
    b = Builder()
    x, nchw = b.input((1, 4, 4, 2)), b.input((), "BOOL")
    model = b.finish([x, nchw], [b.max_pool_2d(x, padding="same", filter_size=2, stride=1, nchw=nchw)])
    device = Reference()
    device.name, device.preferred_layout = "picky", "nchw"
    with nnhal.compile(model, devices=device, fallback="forbid") as compiled:
        (layout,) = compiled.placement.layouts
        why = "nchw is only known at execution"
        assert layout.left == {0: why}
        assert f"partition 0 on picky: layout NCHW, 0 transposes inserted; #0 keeps its layout: {why}" in str(layout)
        assert compiled.placement.to_dict()["layouts"] == [
            {"step": 0, "device": "picky", "layout": "nchw", "transposes": 0, "left": {"0": why}}
        ]


def test_show_tells_how_many_transposes_were_inserted() -> None:
    text = command("show", "tiny_conv", "--placement", "--driver", str(DRIVER), "--device", "only-nchw")
    assert "partition 0 on only-nchw: layout NCHW, 2 transposes inserted" in text


def test_times_of_operations_count_for_those_of_the_model() -> None:
    model = convolutions()
    with nnhal.compile(model, devices=OnlyNchw(), fallback="forbid") as compiled:
        _, report = compiled.run(picture(model), measure=True)
        assert report is not None and set(report.steps[0].each) == {0, 1, 2}


def test_a_driver_that_has_consumed_the_weights_leaves_none_in_either_layout_and_the_model_as_it_is() -> None:
    class Consuming(OnlyNchw):
        def prepare(self, model: Model, hints: Hints) -> Prepared:
            prepared = super().prepare(model, hints)
            prepared.weights_consumed = True
            return prepared

    model = convolutions()
    for _ in range(2):
        with nnhal.compile(model, devices=Consuming(), fallback="forbid") as compiled:
            np.testing.assert_array_equal(compiled(picture(model)), reference(model))
            (step,) = compiled._caller.plan.steps
            for emptied in (step.part.model, step.laid.model, step.prepared.model):
                with pytest.raises(nnhal.NnhalError, match="weights_consumed"):
                    emptied.pools[0]


def test_a_model_that_was_laid_out_goes_with_its_last_reference() -> None:
    for layout in ("nchw", "nhwc"):
        model = convolutions()
        with_layout(model, layout)
        gone = weakref.ref(model.pools[0])
        gc.disable()
        try:
            del model
            assert gone() is None
        finally:
            gc.enable()
