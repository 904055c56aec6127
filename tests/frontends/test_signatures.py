"""Signatures of the builder's methods: true at run time, and what type checkers are told."""

import inspect
import subprocess
import sys
from keyword import iskeyword
from pathlib import Path
from typing import Any

import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.frontends.python import Builder
from nnhal.ops import OPS
from nnhal.ops.schema import Op

ROOT = Path(__file__).parents[2]
RECORDS = [record for name, record in sorted(OPS.items()) if name in OperationType.__members__]

RIGHT = """
from collections.abc import Sequence

import numpy as np
import nnhal
from nnhal.drivers import kit
from nnhal.hal.device import Device, Hints, Prepared


class Bools(Device):
    def supports(self, model: nnhal.Model) -> Sequence[bool]:
        return [True] * len(model.main.operations)

    def prepare(self, model: nnhal.Model, hints: Hints) -> Prepared:
        raise kit.Refused("nothing")


b = nnhal.Builder("sample")
x = b.input((1, 8, 8, 3))
weights, bias = np.ones((4, 3, 3, 3), np.float32), np.zeros(4, np.float32)
y: nnhal.Tensor = b.conv_2d(x, weights, bias, padding="same", stride=(2, 1), activation="relu6", name="conv")
y = b.max_pool_2d(y, padding=((0, 0), (0, 0)), filter_size=2)
y = b.add(b.reshape(y, [1, -1]), 1.0)
values, indices = b.topk_v2(y, 3)
halves = b.split(values, 1, 3, outputs=3)
y = b.pow(b.input((1, 3), np.float32), 2.0)
y = b.concatenation(b.mean(y, [1], keep_dims=True), 0)
b.finish(x, y)
model: nnhal.Model = b.finish([x], [values, indices])
"""
WRONG = {
    'nnhal.lode("model.tflite")': 'Module has no attribute "lode"',
    'kit.Refusd("nothing")': 'Module has no attribute "Refusd"',
    'b.conv_2d(x, weights, padding="same")': 'Missing positional argument "bias"',
    'b.conv_2d(x, weights, bias, padding="same", activation="gelu")': 'Argument "activation" to "conv_2d"',
    'b.conv_2d(x, weights, bias, padding="same", stride="2")': 'Argument "stride" to "conv_2d"',
    'b.conv_2d(x, weights, bias, padding="wide")': 'Argument "padding" to "conv_2d"',
    "b.conv_2d(x, weights, bias, pading='same')": 'Unexpected keyword argument "pading"',
    "b.conv2d(x)": '"Builder" has no attribute "conv2d"',
    "b.topk_v2(y, 3).shape": '"tuple[Tensor, Tensor]" has no attribute "shape"',
}


def method_of(record: Op) -> Any:
    """As Python's own words have an underscore."""
    name = record.name.lower()
    return getattr(Builder, f"{name}_" if iskeyword(name) else name)


def checked(program: str, folder: Path) -> list[str]:
    """What mypy says of a program."""
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(file)]
    command += [
        "--config-file",
        "",
        "--follow-imports",
        "silent",
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "programs"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "src", check=False)
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if "program.py" in line]


def test_the_stub_is_what_the_records_say() -> None:
    command = [sys.executable, str(ROOT / "docs/generate_stubs.py"), "--check"]
    assert subprocess.run(command, check=False, capture_output=True, text=True).stderr == ""


def test_a_type_checker_accepts_a_right_program_and_says_what_is_wrong_in_others(tmp_path: Path) -> None:
    assert checked(RIGHT, tmp_path) == []
    said = checked(RIGHT + "\n".join(WRONG) + "\n", tmp_path)
    first = RIGHT.count("\n") + 1
    for number, (line, message) in enumerate(WRONG.items(), first):
        found = [text for text in said if f"program.py:{number}: error" in text]
        assert found and any(message in text for text in found), (line, said)


def test_the_signature_of_a_convolution_is_the_one_of_the_issue() -> None:
    parameters = inspect.signature(Builder().conv_2d).parameters
    by_place = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_name = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert by_place == ["input", "filter", "bias"]
    assert by_name == ["padding", "stride", "activation", "nchw", "dilation", "scale", "zero_point", "name"]
    assert parameters["stride"].default == 1
    assert parameters["activation"].default == "none"
    assert parameters["padding"].default is inspect.Parameter.empty


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_the_signature_takes_the_documented_example(record: Op) -> None:
    assert record.example is not None
    method = method_of(record)
    if not record.example.code:  # examples with statements of their own are run by tests/ops/test_examples.py
        inspect.signature(method).bind(None, **record.example.arguments)
    assert method.__doc__.startswith(record.doc.split()[0])
    with pytest.raises(TypeError):
        inspect.signature(method).bind(None, nothing_of_this_name=1)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_what_a_signature_calls_optional_no_form_needs_and_what_it_needs_every_form_has(record: Op) -> None:
    pairs = {"padding", "stride", "filter_size", "dilation", "scale", "zero_point", "out_type", "outputs", "name"}
    method = method_of(record)
    parameters = [p for p in list(inspect.signature(method).parameters.values())[1:] if p.name not in pairs]
    needed = {p.name for p in parameters if p.default is p.empty}
    for form in record.forms:
        assert needed <= {a.name for a in form}


def test_methods_stand_in_dir_and_in_help() -> None:
    assert {"conv_2d", "if_", "while_", "add", "lstm"} <= set(dir(Builder))
    text = inspect.getdoc(nnhal.Builder.conv_2d)
    assert text is not None and "filter [depth_out, filter_h, filter_w, depth_in]" in text
    assert str(inspect.signature(nnhal.Builder.floor)) == "(self, input: Operand, *, name: str = '') -> Tensor"
