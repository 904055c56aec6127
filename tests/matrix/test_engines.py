"""Devices x in process and isolated: what every driver promises of executions; and what one with an engine does for that."""

import importlib
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from nnhal.base.errors import Cancelled, Closed, DeviceUnavailable, InvalidArgument, InvalidRequest, MissedDeadline
from nnhal.bench import workloads
from nnhal.bench.calibrate import LINKS
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import Control, sufficient
from nnhal.model.graph import Model
from tests import requests
from tests.execution import run_python
from tests.hal.devices import device_of
from tests.matrix.devices import DEVICES
from tests.models import chain, doubling
from tests.waiting import together


class Engine(NamedTuple):
    """An engine. packages: what the driver imports. cached: the function that keeps the engine, by module and name."""

    packages: tuple[str, ...]
    cached: tuple[str, str]


ENGINES = {
    "litert": Engine(("ai_edge_litert",), ("nnhal.drivers.litert.engine", "engine")),
    "onnxruntime": Engine(("onnxruntime", "onnx"), ("nnhal.drivers.onnxruntime.session", "engine")),
    "openvino": Engine(("openvino",), ("nnhal.drivers.openvino.engine", "ov")),
}
X = np.arange(4, dtype=np.float32)


@pytest.fixture(params=ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    for package in ENGINES[request.param].packages:
        pytest.importorskip(package)
    return str(request.param)


@pytest.fixture
def device(name: str) -> Device:
    made: Device = importlib.import_module(f"nnhal.drivers.{name}").device()
    return made


@pytest.fixture(params=[*DEVICES, *(f"isolated {name}" for name in DEVICES)])
def everywhere(request: pytest.FixtureRequest) -> Device:
    """Each device, in this process and in one of its own."""
    return device_of(request.param)


def prepared(device: Device, model: Model | None = None, **hints: Any) -> Prepared:
    return checked_prepared(device, model or doubling(), Hints(**hints))


def run(model: Prepared, x: Any, control: Control | None = None, room: Any = None) -> Any:
    return requests.run(model, [x], control or Control(), None if room is None else [room]).results[0]


# ----------------------------------------------------------------------------------------------------------- the engine


def test_importing_the_driver_imports_no_engine(name: str) -> None:
    found = f"[m for m in sys.modules if m.partition('.')[0] in {ENGINES[name].packages}]"
    assert run_python(f"import sys, nnhal.drivers.{name}; print({found})").stdout == "[]\n"


@pytest.fixture
def no_engine(name: str) -> Iterator[None]:
    """The engine is imported again, in the test and after it."""
    module, function = ENGINES[name].cached
    cached = getattr(importlib.import_module(module), function)
    cached.cache_clear()
    yield
    cached.cache_clear()


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("place", [0, 1])
def test_a_missing_engine_is_an_unavailable_device_that_says_how_to_install_it(
    name: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = ENGINES[name].packages
    package = packages[place % len(packages)]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DeviceUnavailable, match=rf"{package}.* pip install 'nnhal\[{name}\]'"):
        importlib.import_module(f"nnhal.drivers.{name}").device()


def test_an_unknown_option_is_an_error_of_the_caller(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="option 'fast' is unknown"):
        device.consider(doubling(), Hints(options={"fast": True}))


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.nightly] * (each == "openvino")) for each in ENGINES],
    indirect=True,
)
def test_a_forked_child_ends_and_compiles_again(name: str) -> None:
    """Threads of the engine are not there in it, and closing what they belong to would wait for them."""
    program = f"""
import os, signal, sys, numpy as np, nnhal
from tests.models import chain, doubling
model, given = doubling(64, 64), np.ones((64, 64), np.float32)
compiled = nnhal.compile(model, devices={name!r}, threads=2, cache_dir=False)
compiled(given)
child = os.fork()
if not child:
    signal.alarm(30)
    del compiled
    with nnhal.compile(model, devices={name!r}, threads=2, cache_dir=False) as again:
        assert (again(given) == 2).all()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(program).stdout == "7\n"


# ------------------------------------------------------------------------------------------------------------ executions


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [4, 1 << 16])
def test_inputs_are_read_at_each_execution(everywhere: Device, size: int) -> None:
    model = prepared(everywhere, doubling(size))
    for number in (1, 2):
        assert (run(model, np.full(size, number, np.float32)) == 2 * number).all()
    every_other = np.arange(2 * size, dtype=np.float32)[::2]
    assert (run(model, every_other) == 2 * every_other).all()


def test_outputs_are_never_the_engines_own_memory(everywhere: Device) -> None:
    model = prepared(everywhere)
    first = run(model, X)
    run(model, X + 9)
    assert (first == 2 * X).all()


def test_outputs_are_written_in_place_and_room_that_is_too_small_is_told(everywhere: Device) -> None:
    model, room, small = prepared(everywhere), np.zeros(4, np.float32), np.zeros(8, np.uint8)
    request = requests.run(model, [X], rooms=[room])
    assert request.results[0] is room and (room == 2 * X).all()
    assert request.shapes == [(4,)] and sufficient(request) == [True]
    request = requests.run(model, [X], rooms=[small])
    assert request.shapes == [(4,)] and sufficient(request) == [False] and not small.any()


def test_the_wrong_input_shape_is_an_invalid_request(device: Device) -> None:
    with pytest.raises(InvalidRequest, match=r"input 0 is of shape \[3\], must be of shape \[4\]"):
        run(prepared(device), X[:3])


def test_a_dimension_left_open_takes_any_size_and_forgotten_sizes_come_back(device: Device) -> None:
    model = prepared(device, doubling(0, 4))
    for batch in (1, 2, 3, 4, 5, 6, 1):
        assert run(model, np.ones((batch, 4), np.float32)).tolist() == [[2] * 4] * batch
    with pytest.raises(InvalidRequest, match=r"must be of shape \[\?, 4\]"):
        run(model, np.zeros((2, 3), np.float32))
    assert run(model, np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_threads_run_one_prepared_model_at_once_and_get_their_own_results(everywhere: Device) -> None:
    model, wrong = prepared(everywhere, doubling(2000), threads=1), []

    def work(number: int) -> None:
        x = np.full(2000, number, np.float32)
        wrong.extend(n for n in range(50) if (run(model, x) != 2 * number).any())

    together([partial(work, n) for n in range(12)])
    assert wrong == []


def test_deadline_and_cancellation_are_looked_at_before_the_run(device: Device) -> None:
    model, cancelled = prepared(device), threading.Event()
    with pytest.raises(MissedDeadline):
        run(model, X, Control(deadline=1))
    cancelled.set()
    with pytest.raises(Cancelled):
        run(model, X, Control(cancelled=cancelled))


def test_a_closed_model_does_not_run(device: Device) -> None:
    model = prepared(device)
    model.close()
    with pytest.raises(Closed):
        run(model, X)


# -------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("count", [2, 10_000])
def test_a_finite_logarithm_of_a_distance_beyond_the_range_of_float32_is_exact(device: Device, count: int) -> None:
    """LOG_SOFTMAX multiplies by a beta below 1: inputs may be further apart than float32's greatest number."""
    x = np.full((2, count), -3e38, np.float32)
    x[:, 0], x[1, 1] = 3e38, 2e38
    model = chain("log_softmax", 1, x.shape, beta=0.25, axis=1)
    wanted = np.where(np.arange(count) == 0, 0.0, 0.25 * (x.astype(np.float64) - x[:, :1]))
    np.testing.assert_allclose(run(prepared(device, model), x), wanted, 1e-6)


# ------------------------------------------------------------------------------------------------------ a long sequence

CHAINS = [(family, kind) for kind in workloads.VALUES for family in workloads.families(kind)]


@pytest.mark.sampled(6)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("family, kind", CHAINS, ids=[f"{family.name}-{kind}" for family, kind in CHAINS])
def test_a_long_sequence_of_one_operation_is_prepared_in_its_fast_variant(
    device: Device, family: workloads.Family, kind: str
) -> None:
    """An engine may search its graph for a time that doubles with each operation; `nnhal calibrate` measures these."""
    model = workloads.chain(family, kind, 0, max(links for pair in LINKS for links in pair))
    if all(each.ok for each in device.supports(model)):
        prepared(device, model, options={"forms": "fast"}).close()
