"""What the how-to guides for drivers say of bound operations and the kit, and their commands."""

import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import Activation, OperandType
from nnhal.base.errors import UnsupportedModel
from nnhal.base.operands import UnknownValue
from nnhal.drivers import kit
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import CONSTANTS
from nnhal.model.validate import validate
from nnhal.ops.common import ACTIVATION_RANGE, out_size, padding

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "how-to" / "drivers"
READ, KIT = ((GUIDES / name).read_text() for name in ("read-a-model.md", "compile-engine.md"))
COMMANDS = re.search(r"```sh\n(.*?)```", (GUIDES / "write.md").read_text(), re.S)[1].splitlines()


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_runs_as_it_stands(line, vectors):
    words = shlex.split(line.replace("VECTORS", str(vectors)), comments=True)
    if "vectors" in words:
        words += ["--operation", "ADD", "--jobs", "2"]
    assert words.pop(0) == "nnhal"
    done = subprocess.run(
        [sys.executable, "-m", "nnhal.cli.main", *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0 and "mine" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def found() -> dict:
    """The names of the page's Python, once it has run."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", READ, re.S) if "form.slots" in block)
    names = {"nnhal": nnhal, "validate": validate, "padding": padding, "out_size": out_size}
    names |= {"weights": np.ones((16, 3, 3, 3), np.float32), "bias": np.zeros(16, np.float32)}
    exec(code, names := names | {"ACTIVATION_RANGE": ACTIVATION_RANGE})
    return names


def test_a_bound_operation_reads_as_the_page_says(found):
    a = found["a"]
    assert (a.op.name, a.T) == ("CONV_2D", OperandType.TENSOR_FLOAT32)
    assert (a.stride_w, a.activation) == (2, Activation.RELU)
    assert (a.height, a.filter_h) == (8, 3)
    assert len(a.given) == len(found["operation"].inputs) and a.given[0] is a.input
    assert [argument.name for argument, _ in a.inputs] == ["input", "filter", "bias"] and a.inputs[0][1] is a.input
    assert a.input.dtype == np.float32 and not a.filter.quantised
    assert a.shapes == [(1, 4, 4, 16)] and a.outs[0].shape == (1, 4, 4, 16)
    assert found["places"]["filter"] == (1,) and found["places"]["nchw"] == () and a.nchw is False
    assert (a.input.type, a.input.shape, a.input.name) == (OperandType.TENSOR_FLOAT32, (1, 8, 8, 3), "x")
    assert (a.input.scale, a.input.zero_point, a.input.channel, a.input.data) == (0, 0, None, None)
    with pytest.raises(ValueError, match="read-only"):
        a.filter.data[0] = 1
    assert padding(a, "h") == (0, 1) and out_size("h")(a) == 4 and ACTIVATION_RANGE[a.activation] == (0, np.inf)
    assert a.form_has("scheme") and not a.form_has("pad_left")


@pytest.fixture(scope="module")
def toy():
    """The device of the page's section on the kit."""
    section = KIT.partition("## The kit")[2].partition("\n## ")[0]
    names = {name: getattr(kit, name) for name in kit.__all__} | {"Activation": Activation, "CONSTANTS": CONSTANTS}
    names |= {
        "F32": OperandType.TENSOR_FLOAT32,
        "partial": partial,
        "__name__": "page",
        "Device": Device,
        "Prepared": Prepared,
    }
    for block in re.findall(r"```python\n(.*?)```", section, re.S):
        if "class " in block:
            exec(block, names)
    assert all(f"`{name}`" in section for name in kit.__all__)
    return names["Toy"]()


def test_the_kits_numbers_are_as_the_page_says(found):
    b, scales = nnhal.Builder(), nnhal.ChannelQuant((0.25, 0.125), 0)
    x = b.input((1, 8, 8, 3), "TENSOR_QUANT8_ASYMM", 0.5, 128)
    weights = b.constant(np.ones((2, 3, 3, 3), np.int8), "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=scales)
    bias = b.constant(np.zeros(2, np.int32), "TENSOR_INT32")
    y = b.conv_2d(x, weights, bias, padding="same", stride=2, activation="relu", scale=0.5, zero_point=3)
    q = validate(b.finish([x], [y])).subgraphs[0].operations[0]
    block = next(block for block in re.findall(r"```python\n(.*?)```", KIT, re.S) if "stored_bounds(q)" in block)
    names = {name: getattr(kit, name) for name in kit.__all__} | {"a": found["a"], "q": q}
    for line in block.splitlines():
        code, said = line.split("  # ")
        assert said.partition(": ")[0] == repr(eval(code, names)), line


def test_the_kits_engine_runs_a_model_of_open_shape(toy):
    b = nnhal.Builder()
    x = b.input((None, 2))
    y = b.concatenation([b.mul(x, x), b.add(x, np.float32([[10, 20]]))], axis=0)
    with nnhal.compile(b.finish([x], [b.reshape(y, np.int32([-1]))]), devices=toy) as compiled:
        for rows in (1, 3, 1):
            given = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
            assert compiled(given).tolist() == [*(given**2).ravel(), *(given + np.float32([10, 20])).ravel()]


def test_the_kits_engine_says_why_not(toy):
    b = nnhal.Builder()
    x, shape, half = b.input((2,)), b.input((1,), "TENSOR_INT32"), b.input((2,), "TENSOR_FLOAT16")
    outputs = [
        *(b.add(x, x, activation="relu"), b.concatenation([x, x, x], axis=0), b.reshape(x, shape)),
        *(b.add(half, half), b.softmax(x, 1.0), b.tanh(x)),
    ]
    model = b.finish([x, shape, half], outputs)
    reasons = [verdict.reason for verdict in toy.supports(model)]
    assert reasons == [
        "Toy has no activations",
        "Toy puts two tensors behind each other",
        "shape is computed at execution, must be constant",
        "Toy's ADD does not support TENSOR_FLOAT16",
        "Toy has no exponential function",
        "this driver does not lower TANH",
    ]
    with pytest.raises(UnsupportedModel, match="Toy: ADD #0: Toy has no activations"):
        toy.prepare(model, Hints())


def test_an_operation_without_a_record_is_not_bound():
    b = ModelBuilder()
    x, y = (b.operand(OperandType.TENSOR_OEM_BYTE, (1,)) for _ in "xy")
    b.operation("OEM_OPERATION", [x], [y])
    assert validate(b.finish([x], [y])).subgraphs[0].operations == (None,)


def test_what_is_not_known_before_the_execution_says_so():
    b = nnhal.Builder()
    x = b.input((1, None, None, 3))
    model = b.finish([x], [b.conv_2d(x, np.ones((16, 3, 3, 3), np.float32), np.zeros(16, np.float32), padding="same")])
    a = validate(model).subgraphs[0].operations[0]
    assert a.deferred and a.shapes == [(1, None, None, 16)]
    with pytest.raises(UnknownValue):
        _ = a.height
    assert a.input.dims == (1, None, None, 3) and a.filter.known == (16, 3, 3, 3) and a.filter.rank == 4
    for name in ("known", "array"):
        with pytest.raises(UnknownValue):
            getattr(a.input, name)
