"""The schema language: forms, types, dimensions, levels, deferral, and what errors say."""

from dataclasses import replace

import numpy as np
import pytest

from nnhal.base.codes import OperandType as Type
from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Value
from nnhal.ops import OPS
from nnhal.ops.schema import F32, INT32, Form, Op, T, arg, bind, out, register

PICTURE = Value(Type.TENSOR_FLOAT32, (1, 8, 8, 3))
RESULT = Value(Type.TENSOR_FLOAT32, None)


def number(value: int | bool, type: Type = Type.INT32) -> Value:
    return Value(type, data=np.array(value))


def pool(*more: Value, scheme: int = 2, picture: Value | None = PICTURE, result: Value | None = RESULT, act: int = 0):
    window = [number(n) for n in (scheme, 2, 2, 2, 2, act)]
    return bind(OPS["AVERAGE_POOL_2D"], [picture, *window, *more], [result])


def test_arguments_are_decoded_by_name():
    a = pool(scheme=1)
    assert (a.scheme.name, a.stride_w, a.activation.name, a.nchw, a.depth) == ("SAME", 2, "NONE", False, 3)


def test_shape_is_inferred():
    assert pool().shapes == [(1, 4, 4, 3)]


def test_unknown_batch_stays_unknown_alone():
    assert pool(picture=replace(PICTURE, shape=(None, 8, 8, 3))).shapes == [(None, 4, 4, 3)]


def test_unknown_rank_defers():
    a = pool(picture=replace(PICTURE, shape=None))
    assert a.deferred and a.shapes == [(None, None, None, None)]


def test_unknown_scalar_defers_what_needs_it():
    a = bind(OPS["AVERAGE_POOL_2D"], [PICTURE, *[Value(Type.INT32)] * 6], [RESULT])
    assert a.deferred and a.shapes == [(1, None, None, 3)]


def test_known_arguments_of_a_fixed_shape_defer_nothing():
    assert not pool().deferred


@pytest.mark.parametrize(
    ("more", "level"), [((), V1_0), ((number(True, Type.BOOL),), V1_2), ((number(False, Type.BOOL),), V1_0)]
)
def test_a_trailing_argument_raises_the_level_unless_it_holds_its_default(more, level):
    picture = replace(PICTURE, shape=(1, 8, 8, 8))
    assert pool(*more, picture=picture).level == level


def test_type_raises_the_level():
    picture = Value(Type.TENSOR_QUANT8_ASYMM_SIGNED, (1, 8, 8, 3), 0.5, 3)
    assert pool(picture=picture, result=replace(picture, shape=None)).level == V1_3


def test_nchw_permutes_the_dimensions():
    a = pool(number(True, Type.BOOL), picture=replace(PICTURE, shape=(1, 3, 8, 8)))
    assert a.depth == 3 and a.shapes == [(1, 3, 4, 4)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bind(OPS["AVERAGE_POOL_2D"], [PICTURE], [RESULT]), "got 1 inputs, takes 7 or 8 or 10 or 11"),
        (lambda: pool(scheme=7), r"input 1 \(scheme\) = 7, must be one of 1 \(SAME\), 2 \(VALID\)"),
        (lambda: pool(act=9), r"input 6 \(activation\) = 9, must be one of 0 \(NONE\), 1 \(RELU\)"),
        (
            lambda: pool(picture=Value(Type.TENSOR_INT32, (1, 8, 8, 3))),
            r"input 0 \(input\) is TENSOR_INT32; allowed: TENSOR_FLOAT32 since 1.0, TENSOR_FLOAT16 since 1.2",
        ),
        (lambda: pool(picture=None), r"input 0 \(input\) is omitted, must be given"),
        (
            lambda: pool(picture=replace(PICTURE, shape=(8, 8, 3))),
            r"has shape \[8, 8, 3\], must be \[batch, height, width, depth\]",
        ),
        (
            lambda: pool(result=Value(Type.TENSOR_FLOAT32, (1, 4, 5, 3))),
            r"output 0 \(output\) has shape \[1, 4, 5, 3\], must be \[1, 4, 4, 3\]",
        ),
        (
            lambda: pool(result=Value(Type.TENSOR_FLOAT16, None)),
            r"output 0 \(output\) is TENSOR_FLOAT16, must be TENSOR_FLOAT32",
        ),
    ],
)
def test_errors_say_where_what_and_which_rule(call, message):
    with pytest.raises(InvalidModel, match=f"AVERAGE_POOL_2D: .*{message}"):
        call()


def test_output_quantisation_must_follow_the_rule():
    picture = Value(Type.TENSOR_QUANT8_ASYMM, (1, 8, 8, 3), 0.5, 3)
    with pytest.raises(InvalidModel, match=r"scale 0.25 and zero point 3, must be those of the input, 0.5 and 3"):
        pool(picture=picture, result=replace(picture, shape=None, scale=0.25))


def test_scales_are_compared_as_float32_holds_them():
    picture = Value(Type.TENSOR_QUANT8_ASYMM, (1, 8, 8, 3), 0.1, 3)
    assert pool(picture=picture, result=replace(picture, shape=None, scale=float(np.float32(0.1)))).level == V1_0


def test_stride_of_zero_is_rejected():
    with pytest.raises(InvalidModel, match=r"input 2 \(stride_w\) = 0, must be at least 1"):
        bind(OPS["MAX_POOL_2D"], [PICTURE, *[number(n) for n in (2, 0, 2, 2, 2, 0)]], [RESULT])


def test_padding_wider_than_filter_is_rejected():
    numbers = [number(n) for n in (3, 0, 0, 0, 1, 1, 2, 2, 0)]
    with pytest.raises(InvalidModel, match=r"padding \(3, 0\) must be smaller than filter_w = 2"):
        bind(OPS["MAX_POOL_2D"], [PICTURE, *numbers], [RESULT])


def test_filter_larger_than_the_picture_is_rejected():
    with pytest.raises(InvalidModel, match="filter_h reaches over 9, must be at most the padded input's 8"):
        bind(OPS["MAX_POOL_2D"], [PICTURE, *[number(n) for n in (2, 1, 1, 2, 9, 0)]], [RESULT])


def test_a_record_cannot_use_a_name_twice():
    clashing = Op("ADD", {F32: V1_0}, (Form(arg("input", T, "input")),), (out("output", T),), lambda a, x: x)
    with pytest.raises(ValueError, match=r"registered twice|used twice"):
        register(clashing)


def test_a_lstm_without_its_forget_weights_is_rejected():
    record = OPS["LSTM"]
    inputs: list[Value | None] = [Value(Type.TENSOR_FLOAT32, (1, 2)), None, None]
    with pytest.raises(InvalidModel, match=r"input 2 \(input_to_forget\) is omitted, must be given"):
        bind(record, [*inputs, *[None] * 20], [RESULT] * 4)


def test_every_record_names_its_arguments_and_says_what_it_does():
    for name, record in OPS.items():
        assert record.doc, name
        for form in record.forms:
            assert len({a.name for a in form}) == len(form), name


def test_every_scalar_of_every_form_is_known_to_be_one():
    axis = next(a for a in OPS["AVERAGE_POOL_2D"].forms[0] if a.name == "stride_w")
    assert axis.scalar and axis.spec == {INT32: V1_0}


def test_what_a_form_takes_is_worked_out_once_for_a_number_of_inputs():
    (form,) = OPS["ADD"].forms
    assert form.slots(3) is form.slots(3)
    assert form.tensors(["one", "other", "activation"]) == ["one", "other"]
    assert form.tensors(["one", "other"]) == ["one", "other"]


def test_the_tensors_of_a_variadic_form_are_a_list_however_many_there_are():
    (form,) = OPS["CONCATENATION"].forms
    assert [form.tensors([*given, "axis"]) for given in ("a", "abc", "ab")] == [
        [["a"]],
        [["a", "b", "c"]],
        [["a", "b"]],
    ]
