"""The `xla` device: a driver in one file over a graph engine, and what JAX needs that other engines do not."""

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import DeviceUnavailable, InvalidArgument, OperationFailed
from nnhal.drivers import xla
from nnhal.drivers.kit.native import interrupted_later
from nnhal.drivers.kit.real import RealGraph, RealTask
from nnhal.drivers.reference import Reference
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints
from nnhal.model.graph import Model
from tests import requests
from tests.execution import run_python
from tests.models import make_model

jax = pytest.importorskip("jax")
RNG = np.random.default_rng(0)
FORKED = """
import os, sys, warnings
import numpy as np
import nnhal
from nnhal.drivers.xla import Xla

def doubled(**how):
    b = nnhal.Builder()
    x = b.input((4,))
    with nnhal.compile(b.finish([x], [b.add(x, x)]), fallback="forbid", **how) as compiled:
        return compiled(np.ones(4, np.float32))

print(doubled(devices=[Xla()]), flush=True)
warnings.simplefilter("ignore")  # of JAX and Python, about os.fork
child = os.fork()
if not child:
    try:
        doubled(devices=[Xla()])
    except nnhal.OperationFailed as error:
        print(error)
    print(doubled(devices=[sys.argv[1]], isolation="process"), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
NO_DEVICE = """
import nnhal
from nnhal.drivers.xla import Xla
b = nnhal.Builder()
x = b.input((4,))
try:
    nnhal.compile(b.finish([x], [b.add(x, x)]), devices=[Xla()])
except nnhal.NnhalError as error:
    print(type(error).__name__, error, sep=": ")
"""
PLUGIN = "from nnhal.drivers.xla import Xla; print(Xla.type.name, Xla().version)"


def both(model: Model, *inputs: Any, device: Device | None = None) -> tuple[list[Any], list[Any]]:
    """The results of the device, and of the definition."""
    made = checked_prepared(device or xla.device(), model, Hints()), checked_prepared(Reference(), model, Hints())
    found, expected = (requests.outputs(prepared, *inputs) for prepared in made)
    return found, expected


def lower(model: Model, graph: RealGraph[Any]) -> bool:
    xla.TABLE.lower(model, partial(RealTask, graph))
    return True


def depthwise(stride: int, dilation: int, multiplier: int) -> Model:
    weights = RNG.normal(size=(1, 3, 2, 3 * multiplier)).astype(np.float32)
    bias = RNG.normal(size=3 * multiplier).astype(np.float32)
    return make_model(
        lambda b, x: b.depthwise_conv_2d(
            x,
            b.constant(weights),
            b.constant(bias),
            padding="same",
            stride=stride,
            dilation=dilation,
            depth_multiplier=multiplier,
        ),
        (2, 9, 8, 3),
    )


@pytest.mark.models
@pytest.mark.parametrize("name", ["face_detection_short_range", "silero_vad_16k"])
def test_a_real_model_gives_what_the_reference_gives(name: str) -> None:
    model = nnhal.load(name)
    inputs = [RNG.uniform(-1, 1, spec.shape).astype(spec.dtype) for spec in nnhal.compile(model).inputs]
    found, expected = (requests.compute(model, *inputs, devices=[device]) for device in (xla.device(), "reference"))
    for y, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(y, wanted, atol=1e-4 * max(1.0, float(np.abs(wanted).max())))


@pytest.mark.parametrize("way", ["moved pictures", "grouped"])
@pytest.mark.parametrize(("stride", "dilation", "multiplier"), [(1, 1, 1), (2, 1, 2), (1, 2, 1)])
def test_a_depthwise_convolution_is_the_same_in_both_ways(
    way: str, stride: int, dilation: int, multiplier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*arguments: Any, cpu: Any, default: Any) -> Any:
        return default(*arguments)

    if way == "grouped":  # as on another platform than the CPU
        monkeypatch.setattr(jax.lax, "platform_dependent", elsewhere)
    found, expected = both(depthwise(stride, dilation, multiplier), RNG.normal(size=(2, 9, 8, 3)).astype(np.float32))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)


def test_a_quotient_by_one_number_is_rounded_once() -> None:
    x = RNG.uniform(size=1000).astype(np.float32)
    model = make_model(lambda b, x: b.div(x, b.constant(np.array([3], np.float32))), (1000,))
    assert both(model, x)[0][0].tolist() == (x / np.float32(3)).tolist()


def test_an_index_outside_fails_the_execution() -> None:
    model = make_model(lambda b, x, i: b.gather(x, 0, i), (4, 2), ((3,), "TENSOR_INT32"))
    prepared = checked_prepared(xla.device(), model, Hints())
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert requests.output(prepared, x, np.array([3, 0, 1], np.int32)).tolist() == x[[3, 0, 1]].tolist()
    with pytest.raises(OperationFailed, match="an index is outside its dimension"):
        requests.output(prepared, x, np.array([4, 0, 1], np.int32))


def test_the_types_of_an_application_that_uses_jax_change_nothing() -> None:
    model = make_model(lambda b, x: [b.argmax(x, 0), b.reduce_sum(x, [0], True), b.topk_v2(x, 2)[1]], (5,))
    written = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            written.append(str(xla.traced(model, partial(lower, model)).closed))
    assert written[0] == written[1]


def test_a_platform_that_jax_does_not_have_is_refused() -> None:
    model = make_model(lambda b, x: b.add(x, x), (4,))
    prepared = checked_prepared(xla.device(), model, Hints(options={"platform": "cpu"}))
    assert requests.output(prepared, np.ones(4, np.float32)).tolist() == [2] * 4
    for platform in ("abacus", 1):
        with pytest.raises(InvalidArgument, match=r"xla: option platform is .*, must be one that JAX has"):
            checked_prepared(xla.device(), model, Hints(options={"platform": platform}))
    with pytest.raises(InvalidArgument, match="xla: option 'speed' is unknown, must be 'platform'"):
        checked_prepared(xla.device(), model, Hints(options={"speed": 1}))


def test_a_forked_process_gets_an_error_and_does_not_hang() -> None:
    assert run_python(FORKED, str(xla.__file__)).stdout.splitlines() == [
        "[2. 2. 2. 2.]",
        "device xla: xla: JAX does not run in a forked process; compile with isolation='process'",
        "[2. 2. 2. 2.]",
    ]


def test_without_jax_the_device_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setattr(xla, "version_of", lambda name: None)
    xla.jax.cache_clear()
    with pytest.raises(DeviceUnavailable, match=r"install it with: pip install 'nnhal\[xla\]'"):
        xla.device()


def test_it_is_a_gpu_where_jax_has_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "jax_plugins").mkdir()
    ran = run_python(PLUGIN, env={"PYTHONPATH": str(tmp_path)})
    assert ran.stdout.split(maxsplit=1) == ["GPU", f"{jax.__version__} with plugins\n"]


def test_an_interrupt_during_the_import_of_the_extension_comes_after_it() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupted_later():
        signal.raise_signal(signal.SIGINT)
        done.append(True)
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("x", [1e-40, -1e-40])
def test_a_subnormal_number_is_0_in_all_of_a_function(x: float) -> None:
    """POW of one was 4.3 in place of 3.7 or infinity: some steps took it for 0."""
    model = make_model(lambda b, x: [b.pow(x, b.constant(np.array([-0.0141], np.float32))), b.log(b.abs(x))], (1,))
    power, logarithm = both(model, np.array([x], np.float32))[0]
    assert [power.tolist(), logarithm.tolist()] == [[np.inf], [-np.inf]]


def test_quotients_of_quotients_are_not_joined() -> None:
    """The product of two divisors may be 0: then 0 / 0 was NaN in place of 0."""
    tiny = np.array([np.finfo(np.float32).tiny], np.float32)
    model = make_model(lambda b, x, y: b.div(b.div(x, y), y), (1,), (1,))
    assert both(model, np.zeros(1, np.float32), tiny)[0][0].tolist() == [0.0]


SETTINGS = {
    "numpy_rank_promotion": "raise",
    "disable_jit": True,
    "debug_nans": True,
    "debug_infs": True,
    "transfer_guard": "disallow",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_an_application_that_uses_jax_changes_nothing(name: str) -> None:
    bias = np.zeros(2, np.float32)
    model = make_model(
        lambda b, x: b.log(b.add(b.mul(x, b.constant(np.float32([[2, 2], [2, 2]]))), b.constant(bias))), (2, 2)
    )
    with getattr(jax, name)(SETTINGS[name]):
        found = requests.output(checked_prepared(xla.device(), model, Hints()), np.array([[1, -1], [0, 2]], np.float32))
    assert np.isnan(found[0, 1]) and found[1, 0] == -np.inf


def test_jax_without_a_device_is_unavailable() -> None:
    ran = run_python(NO_DEVICE, env={"JAX_PLATFORMS": "nosuch"})
    assert ran.stdout.startswith("DeviceUnavailable: device xla: xla: JAX finds no device: ")
