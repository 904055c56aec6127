"""Calls of the builder as people write them: what is meant is taken, anything else is one clear error of nnhal's."""
# ruff: noqa: E501 (a call and what is said of it stand in one line)

import math
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import InvalidModel
from nnhal.frontends.python import Builder
from nnhal.frontends.signatures import method_name, records
from nnhal.frontends.tensor import Tensor
from nnhal.model.builder import ModelBuilder
from tests.requests import compute

WEIGHTS, BIAS = np.ones((2, 3, 3, 3), "f4"), np.zeros(2, "f4")
PICTURE = (1, 8, 8, 3)
PADS = r'"same", "valid" or \(\(top, bottom\), \(left, right\)\)'


def conv(b: Builder, x: Tensor, **more: Any) -> Any:
    return b.conv_2d(x, WEIGHTS, BIAS, **({"padding": "same"} | more))


WRONG: dict[str, tuple[Any, str]] = {
    "padding=1": (lambda b, x: conv(b, x, padding=1), f"^CONV_2D: padding is 1, must be {PADS}$"),
    "padding=(1, 1)": (lambda b, x: conv(b, x, padding=(1, 1)), rf"^CONV_2D: padding is \(1, 1\), must be {PADS}$"),
    "padding of four": (lambda b, x: conv(b, x, padding=(1, 1, 1, 1)), f"padding is .*, must be {PADS}$"),
    "padding=None": (lambda b, x: conv(b, x, padding=None), f"padding is None, must be {PADS}$"),
    "stride=None": (lambda b, x: conv(b, x, stride=None), r"stride is None, must be a number or \(height, width\)$"),
    "stride of four": (lambda b, x: conv(b, x, stride=(1, 2, 2, 1)), r"^CONV_2D: stride is \(1, 2, 2, 1\), must be a"),
    "stride as text": (lambda b, x: conv(b, x, stride="2"), r"stride is '2', must be a number or \(height, width\)$"),
    "dilation of one": (lambda b, x: conv(b, x, dilation=(1,)), r"^CONV_2D: dilation is \(1,\), must be a number or"),
    "stride twice": (lambda b, x: conv(b, x, stride=2, stride_w=1), "stride sets stride_w, which is given too"),
    "another name": (
        lambda b, x: b.max_pool_2d(x, padding="same", kernel_size=2),
        "^MAX_POOL_2D: no argument kernel_size, must be of input, padding, stride, filter_size, .*; did you mean filter_size",
    ),
    "a pair that it does not have": (lambda b, x: b.relu(x, stride=2), "^RELU: no argument stride, must be of input$"),
    "shape as a number": (lambda b, x: b.input(3), "^input '': shape is 3, must be a sequence of integers$"),
    "shape as text": (lambda b, x: b.input("1,3"), "^input '': shape is '1,3', must be a sequence of integers$"),
    "shape of lists": (lambda b, x: b.input([[1]]), r"^input '': shape is \[\[1\]\], must be a sequence of integers$"),
    "float64": (lambda b, x: b.input((1,), np.float64), "^type is .*float64.*, must be one of FLOAT32, .*or of numpy's float32"),
    "a type that is none": (lambda b, x: b.input((1,), [1]), r"^type is \[1\], must be one of FLOAT32"),
    "a name that is none": (lambda b, x: b.input((1,), name=3), "^name is 3, must be text$"),
    "a number as a list": (lambda b, x: b.concatenation(3, 0), "^CONCATENATION: parts is 3, must be a list of tensors$"),
    "nothing as a list": (lambda b, x: b.concatenation(None, 0), "^CONCATENATION: parts is None, must be a list of tensors$"),
    "outputs as text": (lambda b, x: b.split(x, 3, 3, outputs="3"), "^SPLIT: outputs is '3', must be a number from 1 to"),
    "very many outputs": (lambda b, x: b.split(x, 3, 3, outputs=10**30), "^SPLIT: outputs is 1000.*, must be a number from 1"),
    "a zero point as text": (lambda b, x: b.quantize(x, scale=1.0, zero_point="a"), "^QUANTIZE: the zero point of output 0 is"),
    "an operation that is none": (lambda b, x: b.operation(["ADD"], x), r"^operation is \['ADD'\], must be one of ABS, ADD"),
    "an operation of another name": (lambda b, x: b.operation("RELLU", x), "^operation is 'RELLU'; did you mean RELU or RELU6"),
    "ends as a mapping": (lambda b, x: b.finish({"x": x}, {"y": b.relu(x)}), "^finish: inputs are {.*}, must be a list of tensors$"),
    "ends as nothing": (lambda b, x: b.finish(x, None), "^finish: outputs are None, must be a list of tensors$"),
    "an array among the ends": (lambda b, x: b.finish([x], [BIAS]), r"^finish: outputs\[0\] is array.*, must be a tensor$"),
    "a stranger among the ends": (lambda b, x: b.finish([x], Builder().input((1,))), r"^finish: outputs\[0\] belongs to another"),
    "ends of a subgraph": (lambda b, x: b.subgraph().finish_subgraph(3, 4), "^finish: inputs are 3, must be a list of tensors$"),
    "no input": (
        lambda b, x: b.finish([], b.relu(x)),
        r'^main: RELU #0: reads operand %0 "picture" TENSOR_FLOAT32\[1,8,8,3\], which no operation writes, must be one of the inputs$',
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG)
def test_what_is_wrong_with_a_call_is_said(call: str) -> None:
    make, message = WRONG[call]
    b = Builder()
    with pytest.raises(InvalidModel, match=message):
        make(b, b.input(PICTURE, name="picture"))


def test_an_attribute_that_is_no_operation_says_which_was_meant() -> None:
    with pytest.raises(AttributeError, match=r"Builder has no operation 'conv2d'; did you mean conv_2d"):
        Builder().conv2d  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no operation 'zzz', must be one of abs, add, "):
        Builder().zzz  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("type", "expected"),
    [(np.float32, 3), (np.dtype("f2"), 8), (np.int32, 4), (bool, 9), ("float32", 3), ("TENSOR_INT32", 4), (4, 4)],
)
def test_numpys_types_stand_for_the_plain_ones(type: Any, expected: int) -> None:
    assert Builder().input((1, 3), type).value.type == expected
    assert Builder().constant(True if type is bool else 1, type).value.type == expected


X = np.array([[-2, 1, 3]], "f4")


def test_a_number_is_a_tensor_of_one_element_where_a_tensor_is_asked_for() -> None:
    b = Builder()
    x = b.input((1, 3))
    y = b.add(b.pow(x, 2.0), b.constant(0.5, "float32"))
    assert b.constant(3, np.int32).shape == (1,)
    assert compute(b.finish(x, y), X, devices="reference")[0].tolist() == [[4.5, 1.5, 9.5]]


def test_one_tensor_stands_for_a_list_of_one() -> None:
    b = Builder()
    x = b.input((1, 3))
    y = b.concatenation(x, axis=0)
    assert compute(b.finish(x, y), X, devices="reference")[0].tolist() == X.tolist()


def test_keep_dims_is_a_boolean_whatever_type_the_operation_has_for_it() -> None:
    for keep, shape in ((True, (1, 1)), (False, (1,)), (np.True_, (1, 1)), (1, (1, 1))):
        b = Builder()
        assert b.mean(b.input((1, 3)), [1], keep_dims=keep).shape == shape
    with pytest.raises(InvalidModel, match="ARGMAX: axis is True, must be an integer"):
        b.argmax(b.input((1, 3)), axis=True)


def test_pairs_are_lists_and_arrays_as_well() -> None:
    for stride in ((2, 1), [2, 1], np.array([2, 1])):
        b = Builder()
        y = conv(b, b.input(PICTURE), stride=stride, padding=np.array([[1, 1], [1, 1]]))
        assert y.shape == (1, 4, 8, 2)


@pytest.mark.parametrize("builder", [Builder, ModelBuilder])
def test_a_builder_can_be_finished_again_with_more_in_it(builder: type[Any]) -> None:
    b = builder()
    if builder is Builder:
        x = b.input((1, 3))
        y = b.relu(x)
        first = b.finish([x], [y])
        second = b.finish([x], [y, b.tanh(y)])
    else:
        x, y = (b.operand(3, (1, 3)) for _ in range(2))
        b.operation("RELU", [x], [y])
        first = b.finish([x], [y])
        z = b.operand(3, (1, 3))
        b.operation("TANH", [y], [z])
        second = b.finish([x], [y, z])
    relu, tanh = nnhal.compile(second, devices="reference")(X)
    assert relu.tolist() == nnhal.compile(first, devices="reference")(X).tolist() == [[0, 1, 3]]
    assert np.allclose(tanh, [[0, math.tanh(1), math.tanh(3)]])


# ------------------------------------------------------------------------------------------------------- whatever is given


class Liar:
    """Says that it is an array."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    def __len__(self) -> int:
        return 2


ANYTHING: list[Any] = [
    None, "x", "same", "relu", 3.5, -1, 0, True, [], (), {}, {"a": 1}, object(), np.array(3), np.zeros((2, 3)), np.array(["a"]),
    np.array([None]), math.nan, math.inf, set(), (1, 2, 3), (1, 2, 2, 1), (1,), b"x", print, np.float64(2), np.complex64(1j), 1j,
    range(3), Liar(), 10**30, [[1], [2, 3]], [None], [object()], type, np.float32, ..., NotImplemented, np.ma.masked, "\x1b",
    Tensor,  # one of them
]  # fmt: skip
TRIED = [record for record in records() if record.example is not None and not record.example.code][::5]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("record", TRIED, ids=lambda record: record.name)
def test_whatever_is_given_is_taken_or_refused_by_one_of_nnhals_errors(record: Any) -> None:
    arguments = dict(record.example.arguments)
    for name in (*arguments, "scale", "zero_point", "out_type", "outputs", "name"):
        for each in ANYTHING:
            b = Builder()
            given = b.input((2, 3)) if each is Tensor else each
            try:
                b.finish([], getattr(b, method_name(record.name))(**(arguments | {name: given})))
            except nnhal.NnhalError as error:
                assert str(error)
