"""The documentation's driver on the kit, by the suites that any driver has."""

import ast
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import Cancelled, InvalidArgument
from nnhal.conformance.draw import cells
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints
from nnhal.hal.request import Control
from nnhal.runtime import discovery
from nnhal.zoo import maker
from tests.comparing import as_code, compare_device
from tests.differential.drawing import seeds
from tests.execution import run_nnhal
from tests.models import make_model

DRIVER = Path(__file__).parents[2] / "examples" / "onnx_driver.py"
LINES = 160  # of code
OPERATIONS = (
    *("ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEQUANTIZE", "FULLY_CONNECTED"),
    *("LOGISTIC", "MAX_POOL_2D", "MEAN", "MUL", "PAD", "QUANTIZE", "RELU", "RELU1", "RELU6", "RESHAPE", "SOFTMAX"),
    *("SUB", "TANH", "TRANSPOSE"),
)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    yield nnhal.load_driver(DRIVER)
    discovery._registered.pop("onnx", None)


def test_it_is_short():
    code = DRIVER.read_text()
    imports = [node for node in ast.parse(code).body if isinstance(node, ast.Import | ast.ImportFrom)]
    skipped = {number for node in imports for number in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = [line.strip() for number, line in enumerate(code.splitlines(), 1) if number not in skipped]
    counted = [
        line
        for line in "\n".join(lines).split('"""', 2)[2].splitlines()
        if line and not line.startswith(("#", "@", '"""'))
    ]
    assert len(counted) <= LINES


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("way", "isolate"), [("memory", False), ("burst", True)])
def test_no_published_vector_of_what_it_takes_fails(vectors, way, isolate):
    command = [
        *("test", "vectors", "--vectors", str(vectors)),
        "--driver",
        str(DRIVER),
        "--execution-path",
        way,
        "--sample",
        "0.02",
        "--json",
    ]
    done = run_nnhal(*command, *["--isolate"] * isolate)
    said = json.loads(done.stdout)
    assert done.returncode == 0, said["groups"][:3]
    assert said["totals"]["passed"] > 50


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPERATIONS)
def test_it_agrees_with_the_reference(device, name):
    agreed = 0
    for cell in cells([name]):
        rng = np.random.default_rng(seeds(cell))
        for found in compare_device(device, discovery.cpu(), cell, rng, 3):
            assert found.outcome != "differs", f"{found.reason}\n{as_code(found.call)}"
            agreed += found.outcome == "agrees"
    assert agreed


@pytest.mark.parametrize(("name", "tolerance"), [("mobilenet_v1", 1e-4), ("mobilenet_v1_int8", 3)])
def test_a_mobilenet_runs_whole_in_process_and_isolated_as_on_the_reference(device, name, tolerance):
    model, rng = nnhal.load(maker.path(name)), np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1, 224, 224, 3)).astype("f4")
    if name.endswith("int8"):
        x = rng.integers(-128, 128, x.shape, np.int8)
    wanted = nnhal.compile(model, devices="reference")(x).astype("f8")
    with nnhal.compile(model, devices=device) as compiled:
        found = compiled(x)
    with nnhal.compile(model, devices=device, isolation="process") as compiled:
        assert np.array_equal(compiled(x), found)
    assert np.abs(found.astype("f8") - wanted).max() <= tolerance * (1 if found.dtype == np.int8 else wanted.max())


def test_open_shapes_are_compiled_when_they_are_seen(device):
    b = nnhal.Builder()
    x = b.input((None, None, None, 2))
    weights = np.float32([[[[1, 10]]]])
    y = b.conv_2d(b.max_pool_2d(x, filter_size=2, padding="same"), weights, np.float32([3]), padding="same")
    model = b.finish([x], [y])
    with nnhal.compile(model, devices=device) as compiled, nnhal.compile(model, devices="reference") as wanted:
        for shape in ((1, 3, 2, 2), (2, 1, 5, 2), (1, 3, 2, 2), (0, 1, 1, 2)):
            given = np.random.default_rng(0).uniform(size=shape).astype("f4")
            np.testing.assert_allclose(compiled(given), wanted(given), rtol=1e-6)


def test_an_execution_that_nobody_wants_any_more_is_stopped_in_the_engine(device):
    b = nnhal.Builder()
    x = b.input((1, 512, 512, 32))
    weights, bias, y = np.ones((32, 5, 5, 32), np.float32), np.zeros(32, np.float32), x
    for _ in range(8):
        y = b.conv_2d(y, weights, bias, padding="same")
    prepared = checked_prepared(device, b.finish([x], [y]), Hints(threads=1))
    request, cancelled = prepared.request([np.ones((1, 512, 512, 32), np.float32)]), threading.Event()
    threading.Timer(0.1, cancelled.set).start()
    with pytest.raises(Cancelled) as error:
        request.execute(prepared.run, Control(cancelled=cancelled))
    assert "terminate flag" in str(error.value.__context__), "what the engine raised"


def test_what_authors_are_promised_holds(device):
    command = ["test", "contract", "--driver", str(DRIVER), "--operation", "CONV_2D", "--scale", "0.5", "--json"]
    done = run_nnhal(*command)
    assert done.returncode == 0, done.stdout[-2000:]


def test_scales_that_the_engine_does_not_compute_with_are_refused(device):
    verdict = device.supports(make_model(lambda b, x: b.relu(x), ((2,), "TENSOR_QUANT8_ASYMM", 1e-10, 0)))[0]
    assert not verdict.ok and verdict.reason == "has scales of 1e-10 to 1e-10, must be from 5.96046e-08 to 1.67772e+07"


def test_it_has_no_options(device):
    with pytest.raises(InvalidArgument, match="option 'turbo' is unknown"):
        nnhal.compile("add4", devices=device, driver_options={"onnx": {"turbo": True}})


@pytest.mark.parametrize("which", ["activation", "pad_left", "scheme", "stride_w"])
def test_a_number_that_the_execution_gives_is_refused(device, which):
    b = nnhal.Builder()
    x, given = b.input((1, 4, 4, 1)), b.input((), "INT32")
    pads = {"scheme": 1} if which == "scheme" else dict.fromkeys(("pad_left", "pad_right", "pad_top", "pad_bottom"), 0)
    numbers = {**pads, "stride_w": 1, "stride_h": 1, "filter_w": 2, "filter_h": 2, "activation": 0, which: given}
    (verdict,) = device.supports(b.finish([x, given], [b.max_pool_2d(x, **numbers)]))
    assert not verdict.ok and which in verdict.reason
