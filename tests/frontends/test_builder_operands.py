"""What the builder makes of its calls: operands, their names and shapes, what is left out, and subgraphs."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import Lifetime, OperandType
from nnhal.base.errors import InvalidModel
from nnhal.frontends.python import Builder
from nnhal.frontends.signatures import chosen
from nnhal.ops import OPS
from tests.requests import compute

WEIGHTS, BIAS = np.ones((2, 3, 3, 3), "f4"), np.zeros(2, "f4")


def test_an_open_dimension_is_none_or_0_and_0_in_the_model() -> None:
    b = Builder()
    x = b.input((None, 3, 0), name="x")
    assert x.shape == (None, 3, None)
    y = b.relu(x, name="y")
    model = b.finish(x, y)
    given, made = (model.main.operands[t.index] for t in (x, y))
    assert (given.name, given.dimensions) == ("x", (0, 3, 0))
    assert (made.name, made.dimensions) == ("y", (0, 3, 0))
    assert model.main.operations[0].name == "y"


def test_a_tensor_that_is_given_with_no_dimensions_may_have_any_rank() -> None:
    b = Builder()
    x = b.input(())
    assert x.shape is None
    y = b.reshape(x, [-1])
    assert y.shape == (None,)
    assert compute(b.finish(x, y), np.ones((2, 3), "f4"), devices="reference")[0].shape == (6,)
    assert b.input((), "INT32").shape == ()  # one of a scalar has none


def test_a_shape_is_a_list_of_any_kind_or_an_array_of_one_dimension() -> None:
    b = Builder()
    for shape in ([2, 3], (2, 3), np.array([2, 3]), range(2, 4)):
        assert b.input(shape).shape == (2, 3)
    for wrong in (np.array([[2, 3]]), np.array(2), 2, "23", b"23", {2, 3}):
        with pytest.raises(InvalidModel, match="shape"):
            b.input(wrong)


def test_a_model_has_the_builders_name_and_is_relaxed_where_that_is_said() -> None:
    b = Builder("sample")
    x = b.input((1,))
    y = b.relu(x)
    assert [b.finish(x, y, relaxed=each).relaxed for each in (False, True)] == [False, True]
    assert b.finish(x, y).name == "sample" and not b.finish(x, y).relaxed
    assert repr(b).startswith("<Builder 'sample'")


def test_a_constant_without_dimensions_has_one() -> None:
    b = Builder()
    assert b.constant(np.float32(3)).shape == (1,)
    assert b.constant(3, OperandType.INT32).shape == ()
    assert b.constant(np.float32(3), name="three").value.name == "three"


def test_small_constants_lie_in_the_model_and_large_ones_in_a_pool() -> None:
    b = Builder()
    x = b.input((33,))
    y = b.add(x, np.ones(32 + 1, "f4"))
    z = b.add(y, np.ones(1, "f4"))
    model = b.finish(x, z)
    lifetimes = {o.dimensions: o.lifetime for o in model.main.operands if o.lifetime.name.startswith("CONSTANT")}
    assert lifetimes[(33,)] == Lifetime.CONSTANT_REFERENCE
    assert lifetimes[(1,)] == Lifetime.CONSTANT_COPY


@pytest.mark.parametrize("count", [1, 2, np.int64(3)])
def test_an_operation_has_as_many_outputs_as_are_asked_for(count: Any) -> None:
    b = Builder()
    made = b.split(b.input((1, int(count))), 1, int(count), outputs=count)
    many = made if isinstance(made, tuple) else (made,)
    assert len(many) == int(count) and {t.shape for t in many} == {(1, 1)}


@pytest.mark.parametrize("count", [0, -1, 65537, True, 2.0])
def test_another_number_of_outputs_is_refused(count: Any) -> None:
    b = Builder()
    with pytest.raises(InvalidModel, match=r"^SPLIT: outputs is .*, must be a number from 1 to 65536$"):
        b.split(b.input((1, 4)), 1, 1, outputs=count)


def test_65536_outputs_are_not_too_many_by_themselves() -> None:
    b = Builder()
    with pytest.raises(InvalidModel) as caught:
        b.split(b.input((1, 4)), 1, 4, outputs=65536)
    assert "must be a number from" not in str(caught.value)


def test_padding_is_top_and_bottom_then_left_and_right() -> None:
    b = Builder()
    x = b.input((1, 5, 7, 1))
    y = b.max_pool_2d(x, padding=((1, 0), (0, 2)), filter_size=(2, 3))
    assert y.shape == (1, 5, 7, 1)
    given = np.arange(35, dtype="f4").reshape(1, 5, 7, 1)
    padded = np.pad(given[0, :, :, 0], ((1, 0), (0, 2)), constant_values=-1)
    expected = np.lib.stride_tricks.sliding_window_view(padded, (2, 3)).max((-2, -1))
    (found,) = compute(b.finish(x, y), given, devices="reference")
    assert found[0, :, :, 0].tolist() == expected.tolist()


def test_a_pair_is_height_and_width() -> None:
    b = Builder()
    y = b.max_pool_2d(b.input((1, 8, 9, 1)), padding="valid", stride=(4, 3), filter_size=(2, 1))
    assert y.shape == (1, 2, 3, 1)
    wide = b.conv_2d(b.input((1, 9, 9, 3)), WEIGHTS, BIAS, padding="valid", dilation=(1, 2))
    assert wide.shape == (1, 7, 5, 2)


def test_an_argument_of_another_builder_is_refused_where_it_is_given() -> None:
    b, other = Builder(), Builder()
    with pytest.raises(InvalidModel, match=r"^ADD: input2 belongs to another builder, must be of this one$"):
        b.add(b.input((1,)), other.input((1,)))


def test_a_list_is_of_the_operations_own_type_and_a_number_of_the_arguments() -> None:
    b = Builder()
    assert b.add(b.input((2,), np.int32), [1, 2]).value.type == OperandType.TENSOR_INT32
    assert b.add(b.input((2,), np.float16), [1, 2]).value.type == OperandType.TENSOR_FLOAT16
    assert b.add([1, 2], b.input((2,))).value.type == OperandType.TENSOR_FLOAT32
    with pytest.raises(InvalidModel, match=r"^ADD: input2: element \[0\] is 0.5, must be an integer"):
        b.add(b.input((2,), np.int32), [0.5, 2])


def test_an_array_keeps_its_type_whatever_the_operation_wants() -> None:
    b = Builder()
    with pytest.raises(InvalidModel, match=r"^ADD: input 1 \(input2\) is TENSOR_INT32"):
        b.add(b.input((2,)), np.array([1, 2], "i4"))


CALLS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "too many": ((1, 2, 3, 4, 5), {}, "too many arguments"),
    "twice": ((1, 2), {"input1": 3}, "input1 given twice"),
    "missing": ((1,), {}, "input2 missing"),
    "unknown": ((1, 2), {"inputx": 3}, "no argument inputx"),
}


@pytest.mark.parametrize("what", CALLS)
def test_what_keeps_a_call_from_a_form_is_said(what: str) -> None:
    arguments, named, says = CALLS[what]
    with pytest.raises(InvalidModel, match=says):
        chosen(OPS["ADD"], arguments, named, None)


def test_a_call_takes_the_first_form_that_has_its_names() -> None:
    record = OPS["AVERAGE_POOL_2D"]
    form, given = chosen(record, (1,), {"padding": "same", "filter_size": 2, "stride": (3, 4)}, None)
    assert [a.name for a in form][1] == "scheme"
    assert (given["scheme"], given["stride_h"], given["stride_w"]) == ("same", 3, 4)
    assert (given["filter_h"], given["filter_w"], given["input"]) == (2, 2, 1)
    form, given = chosen(record, (1,), {"padding": ((1, 2), (3, 4)), "filter_size": 2}, None)
    assert [given[f"pad_{side}"] for side in ("top", "bottom", "left", "right")] == [1, 2, 3, 4]


def branch(b: Builder, name: str) -> Any:
    inner = b.subgraph()
    x = inner.input((2,))
    return inner.finish_subgraph(x, getattr(inner, name)(x))


def test_results_of_control_flow_have_the_types_of_its_subgraphs() -> None:
    b = Builder()
    n, x = b.input((1,), "TENSOR_INT32"), b.input((2,), "TENSOR_QUANT8_ASYMM", 0.5, 3)
    least, body = b.subgraph(), b.subgraph()
    (i, y), (j, z) = [
        (s.input((1,), "TENSOR_INT32"), s.input((2,), "TENSOR_QUANT8_ASYMM", 0.5, 3)) for s in (least, body)
    ]
    condition = least.finish_subgraph([i, y], [least.greater(i, [0])])
    step = body.finish_subgraph([j, z], [body.sub(j, [1]), body.relu(z)])
    count, last = b.while_(condition, step, [n, x])
    assert [(t.value.type, t.value.scale, t.value.zero_point) for t in (count, last)] == [
        (OperandType.TENSOR_INT32, 0.0, 0),
        (OperandType.TENSOR_QUANT8_ASYMM, 0.5, 3),
    ]
    found = nnhal.compile(b.finish([n, x], [count, last]), devices="reference")(np.int32([2]), np.uint8([1, 5]))
    assert [each.tolist() for each in found] == [[0], [3, 5]]


def test_one_of_two_subgraphs_runs() -> None:
    b = Builder()
    which, x = b.input((1,), bool), b.input((2,))
    y = b.if_(which, branch(b, "neg"), branch(b, "abs"), [x], outputs=1, out_type="TENSOR_FLOAT32")
    model = b.finish([which, x], y)
    for flag, expected in ((True, [2, -3]), (False, [2, 3])):
        found = nnhal.compile(model, devices="reference")(np.array([flag]), np.array([-2, 3], "f4"))
        assert found.tolist() == expected


def test_an_operation_of_an_extension_registered_later_is_a_method_too() -> None:
    b = Builder()
    assert b.relu.__name__ == "relu"
    assert b.__getattr__("relu6")(b.input((1,))).shape == (1,)
    assert b.__getattr__("if_").args == ("IF",)


def test_the_first_of_a_list_of_output_types_chooses_the_form() -> None:
    b = Builder()
    y = b.fill(shape=[2], value=2**24 + 1, out_type=["TENSOR_INT32"])
    assert y.value.type == OperandType.TENSOR_INT32
    assert nnhal.compile(b.finish([], [y]), devices="reference")().tolist() == [2**24 + 1] * 2
