"""`numerics="exact"`: who takes operations under it, and what tells apart what was compiled with it."""

from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.api import Numerics
from nnhal.base.errors import InvalidArgument
from nnhal.drivers.litert import own_kernels
from nnhal.drivers.reference import Interpreter, Reference
from nnhal.hal.answers import can_be_exact
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Hints, Prepared
from nnhal.model.graph import Model
from nnhal.runtime import discovery
from tests.cli.test_cli import nnhal as command
from tests.ipc.support import own_process

DRIVER = """
from nnhal.drivers.litert import own_kernels
from nnhal.drivers.reference import Interpreter, Reference
from nnhal.hal.claims import consider_support

class Device(Reference):
    name, version = "told", "1"
    {declared}

    def prepare(self, model, hints):
        if hints.options != {{"numerics": "exact"}}:
            raise ValueError(f"options are {{hints.options}}")
        return super().prepare(model, hints)

device = Device
"""


class Silent(Reference):
    """A device that declares nothing."""

    name = "silent"

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return super().prepare(model, hints)


def fully_connected() -> Model:
    """Sums that the two arithmetics round otherwise: -1.5 steps."""
    b = nnhal.Builder()
    x = b.input((1, 1), "TENSOR_QUANT8_ASYMM_SIGNED", 0.5, 0)
    w = b.constant(np.array([[3]], np.int8), "TENSOR_QUANT8_ASYMM_SIGNED", 0.5, 0)
    y = b.fully_connected(
        x,
        w,
        b.constant(np.array([0], np.int32), "TENSOR_INT32", 0.25, 0),
        "none",
        out_type="TENSOR_QUANT8_ASYMM_SIGNED",
        scale=0.5,
        zero_point=0,
    )
    return b.finish([x], [y])


X = np.array([[-1]], np.int8)
FAST, EXACT = [[-2]], [[-1]]
NUMERICS: list[Numerics] = ["fast", "exact"]


def test_the_reference_has_both_arithmetics() -> None:
    for numerics, wanted in zip(NUMERICS, (FAST, EXACT), strict=True):
        with nnhal.compile(fully_connected(), devices=["reference"], numerics=numerics) as compiled:
            assert np.asarray(compiled(X)).tolist() == wanted


def test_a_device_that_does_not_declare_it_takes_nothing_and_the_placement_says_so() -> None:
    devices = [Silent(), discovery.cpu()]
    with nnhal.compile(fully_connected(), devices=devices, numerics="exact") as compiled:
        assert np.asarray(compiled(X)).tolist() == EXACT
        (choice,) = compiled.placement.choices
        assert choice.device == "reference"
        assert choice.others["silent"] == "numerics are exact, which the device does not declare"


def test_naming_only_devices_that_do_not_declare_it_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match=r"numerics is 'exact', which none of the devices declares \(silent\)"):
        nnhal.compile(fully_connected(), devices=[Silent()], fallback="allow", numerics="exact")
    with pytest.raises(InvalidArgument, match="numerics is 'precise', must be one of fast, exact"):
        nnhal.compile(fully_connected(), numerics="precise")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="numerics is 'exact' and relaxed is true"):
        nnhal.compile(fully_connected(), numerics="exact", relaxed=True)


def test_a_driver_in_a_process_of_its_own_declares_it_and_gets_it_as_an_option(tmp_path: Path) -> None:
    file = tmp_path / "told.py"
    file.write_text(DRIVER.format(declared='numerics = ("fast", "exact")'))
    with own_process(str(file)) as remote:
        assert tuple(remote.relaxations) == ()
        with nnhal.compile(fully_connected(), devices=[remote], numerics="exact") as compiled:
            assert np.asarray(compiled(X)).tolist() == EXACT
    file.write_text(DRIVER.format(declared=""))
    with own_process(str(file)) as remote, pytest.raises(InvalidArgument, match="none of the devices declares"):
        nnhal.compile(fully_connected(), devices=[remote], numerics="exact")


def test_isolated_engines_are_exact() -> None:
    with nnhal.compile(fully_connected(), devices=["litert"], isolation="process", numerics="exact") as compiled:
        assert np.asarray(compiled(X)).tolist() == EXACT


def test_the_cpu_that_takes_over_is_exact_too() -> None:
    """openvino refuses the layer."""
    with nnhal.compile(fully_connected(), devices=["openvino"], fallback="allow", numerics="exact") as compiled:
        assert [step.device for step in compiled.placement.steps] == ["reference"]
        assert np.asarray(compiled(X)).tolist() == EXACT


def test_a_cache_tells_exact_and_fast_compilations_apart(tmp_path: Path) -> None:
    found = []
    for numerics in NUMERICS * 2:
        with nnhal.compile(fully_connected(), devices=["litert"], cache_dir=tmp_path, numerics=numerics) as compiled:
            found.append([outcome.state for outcome in compiled.cache if outcome.device == "litert"])
            if numerics == "exact":
                assert np.asarray(compiled(X)).tolist() == EXACT
    assert found == [["miss"], ["miss"], ["hit"], ["hit"]]


def test_measurements_tell_them_apart() -> None:
    """What was learnt of one says nothing of the other."""
    plans = [nnhal.compile(fully_connected(), devices=["litert"], cache_dir=False, numerics=n) for n in NUMERICS]
    identities = {plan._caller.plan.placer.identity("litert") for plan in plans}
    assert len(identities) == len(plans)
    for plan in plans:
        plan.close()


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_the_command_line_has_it(verb: str, tmp_path: Path) -> None:
    refused = command(verb, "add4", "--device", "null", "--numerics", "exact", code=3)
    assert "none of the devices declares" in refused


def test_devices_that_come_with_nnhal_declare_it() -> None:
    for name in ("reference", "litert", "onnxruntime", "openvino"):
        assert can_be_exact(discovery.select([name])[0])
    assert not can_be_exact(discovery.select(["null"])[0])


def test_litert_looks_at_its_own_kernels_before_it_takes_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor where they round otherwise, it refuses operations on 8 bits."""
    (litert,), hints = discovery.select(["litert"]), Hints(options={"numerics": "exact"})
    own_kernels.kernel_difference.cache_clear()
    assert all(verdict.ok for verdict in consider_support(litert, fully_connected(), hints).verdicts)
    monkeypatch.setattr(own_kernels, "Interpreter", lambda model, exact: Interpreter(model))
    own_kernels.kernel_difference.cache_clear()
    verdicts = consider_support(litert, fully_connected(), hints).verdicts
    own_kernels.kernel_difference.cache_clear()
    why = "LiteRT's own kernels of layers round differently on this processor, must equal the reference for exact numerics"
    assert verdicts == [(False, why)]
