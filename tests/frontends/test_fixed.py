"""`load(values=...)`: inputs of a file that become constants."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import nnhal
from nnhal.base.errors import InvalidArgument
from nnhal.cli.common import parse_values
from nnhal.zoo import maker
from tests.frontends.cases import refused
from tests.frontends.onnx_models import by_onnxruntime, model, node

X = np.arange(6, dtype=np.float32).reshape(2, 3)
RATE = np.array(16000, np.int64)


def by_rate():
    """Twice x at a rate of 16,000; else x one row less, so that the branches have shapes of their own."""
    twice = helper.make_graph(
        [node("Add", "x x", "a")], "then", [], [helper.make_tensor_value_info("a", TensorProto.FLOAT, None)]
    )
    less = helper.make_graph(
        [node("Slice", "x one two", "b")], "else", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)]
    )
    nodes = [node("Equal", "sr k", "c"), node("If", "c", "y", then_branch=twice, else_branch=less)]
    constants = {"k": RATE, "one": np.int64([1]), "two": np.int64([2])}
    return model(nodes, {"x": X, "sr": RATE}, constants)


@pytest.mark.parametrize("rate", [16000, 8000])
@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
def test_a_branch_that_a_value_decides_is_the_only_one(rate, device):
    made = by_rate()
    loaded = nnhal.load(made.SerializeToString(), values={"sr": rate})
    compiled = nnhal.compile(loaded, devices=[device], fallback="forbid")
    assert [spec.name for spec in compiled.inputs] == ["x"]
    expected = by_onnxruntime(made, {"x": X, "sr": np.array(rate, np.int64)})[0]
    np.testing.assert_array_equal(compiled(X), expected)


def test_the_sizes_of_a_value_are_those_of_the_dimensions_of_the_same_name():
    made = model(
        [node("Add", "x p")], {"x": X, "p": X}, shapes={"x": ["rows", 3], "p": ["rows", 3]}
    ).SerializeToString()
    compiled = nnhal.compile(nnhal.load(made, values={"p": X.tolist()}), devices=["reference"])
    assert compiled.inputs[0].shape == (2, 3)
    np.testing.assert_array_equal(compiled(X), 2 * X)


def test_inputs_of_a_tflite_file_become_constants(tmp_path):
    path = tmp_path / "two.tflite"
    path.write_bytes(two_inputs())
    whole = nnhal.compile(nnhal.load(path), devices=["reference"], fallback="forbid")
    first, second = (np.full(spec.shape, n, np.float32) for n, spec in enumerate(whole.inputs, 2))
    fixed = nnhal.load(path, values={whole.inputs[1].name: second})
    compiled = nnhal.compile(fixed, devices=["reference"], fallback="forbid")
    assert [spec.name for spec in compiled.inputs] == [whole.inputs[0].name]
    np.testing.assert_array_equal(compiled(first), whole(first, second))


def two_inputs():
    """The sum of two inputs."""
    return maker.make("add4")


def test_a_file_is_kept_for_each_value_apart(tmp_path):
    path = tmp_path / "by_rate.onnx"
    onnx.save(by_rate(), str(path))
    for _ in range(2):
        for rate, rows in ((16000, 2), (8000, 1)):
            loaded = nnhal.load(path, values={"sr": np.array(rate)}, cache_dir=tmp_path / "cache")
            assert nnhal.compile(loaded, devices=["reference"])(X).shape == (rows, 3)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1], r"values is \[1\], must be a mapping of input names to numbers or arrays"),
        ({"sr": "16000"}, r"values: sr is '16000', must be numbers or booleans"),
        ({"sr": [[1], [2, 3]]}, r"values: sr is \[\[1\], \[2, 3\]\], must be numbers or booleans"),
        ({"sr": 0.5}, r"values: sr is 0.5, must fit int64 as in the file"),
        ({"sr": [1, 2]}, r"values: sr has shape \[2\], must be \[\] as in the file"),
        ({"x": np.zeros((3, 2))}, r"values: x has shape \[3, 2\], must be \[2, 3\] as in the file"),
        ({"x": np.full((2, 3), 1e300)}, r"values: x is .*, must fit float32 as in the file"),
        ({"rate": 1}, r"values: 'rate' is not an input, must be one of x, sr"),
    ],
)
def test_a_value_fits_the_input(values, why):
    refused(by_rate(), why, InvalidArgument, values=values)


def test_values_on_the_command_line():
    assert parse_values(["sr=16000", "s=1,2.5", "flag=true", "low=-1e-3"]) == {
        "sr": 16000, "s": [1, 2.5], "flag": True, "low": -1e-3,
    }  # fmt: skip
    assert isinstance(parse_values(["sr=16000"])["sr"], int) and parse_values([]) is None
