"""The schema language: forms, types, dimensions, levels, deferral, and what errors say."""

from dataclasses import replace

import numpy as np
import pytest

from nnhal.base.codes import OperandType as Type
from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import UnknownValue, Value
from nnhal.ops import OPS
from nnhal.ops.schema import (
    F32,
    INT32,
    Form,
    Op,
    T,
    agree,
    arg,
    args,
    bind,
    may_be_omitted,
    out,
    per,
    register,
    show,
)
from tests.execution import run_python

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
        (lambda: bind(OPS["AVERAGE_POOL_2D"], [PICTURE], [RESULT]), "has 1 inputs, must have 7 or 8 or 10 or 11"),
        (lambda: pool(scheme=7), r"input 1 \(scheme\) = 7, must be one of 1 \(SAME\), 2 \(VALID\)"),
        (lambda: pool(act=9), r"input 6 \(activation\) = 9, must be one of 0 \(NONE\), 1 \(RELU\)"),
        (
            lambda: pool(picture=Value(Type.TENSOR_INT32, (1, 8, 8, 3))),
            r"input 0 \(input\) is TENSOR_INT32, must be one of: TENSOR_FLOAT32 since 1.0, TENSOR_FLOAT16 since 1.2",
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


# ------------------------------------------------------------------------------------------------------ forms and counts


def test_numbers_of_inputs_follow_from_what_may_be_left_out_and_what_goes_together():
    x, n = arg("x", T), {"since": V1_2, "default": 0}
    form = Form(x, arg("one", INT32, **n), arg("two", INT32, **n, paired=True), arg("three", INT32, **n))
    assert form.counts == ([1, 3, 4], None) and [form.takes(k) for k in range(6)] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]
    several = Form(arg("parts", T, many=2), arg("axis", INT32))
    assert several.counts[1] == 3 and [several.takes(k) for k in (2, 3, 4, 9)] == [False, True, True, True]
    assert [(a.name, start, end) for a, start, end in several.slots(5)] == [("parts", 0, 4), ("axis", 4, 5)]
    assert [a.name for a in several.each(4)] == ["parts", "parts", "parts", "axis"]
    assert [(a.name, start, end) for a, start, end in form.slots(3)] == [
        ("x", 0, 1), ("one", 1, 2), ("two", 2, 3), ("three", 3, 3)
    ]  # fmt: skip


def test_types_of_an_argument_are_said_as_one_several_or_with_their_levels():
    assert arg("a", Type.TENSOR_FLOAT16).spec == {Type.TENSOR_FLOAT16: V1_2}
    assert arg("a", (F32, Type.TENSOR_INT32)).spec == {F32: V1_0, Type.TENSOR_INT32: V1_0}
    assert arg("a", {F32: V1_3}).spec == {F32: V1_3}
    table = per({F32: Type.FLOAT32, Type.TENSOR_FLOAT16: (Type.FLOAT16, Type.FLOAT32)}).table
    assert table == {F32: {Type.FLOAT32: V1_0}, Type.TENSOR_FLOAT16: {Type.FLOAT16: V1_2, Type.FLOAT32: V1_0}}
    assert arg("a", T, rank=3).rank == (3, 3) and arg("a", T, rank=(1, 4)).rank == (1, 4) and arg("a", T).rank is None
    assert arg("a", T, "b c").dims == ("b", "c") and arg("a", T, "").dims == () and arg("a", T).dims is None
    assert [a.name for a in args("x y", INT32, at_least=1)] == ["x", "y"]
    assert [arg("a", kind).scalar for kind in (T, INT32, F32, (INT32, F32), per({F32: INT32}))] == [
        False, True, False, False, True
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["input", "level", "T", "require", "given"])
def test_a_name_is_used_once_and_none_of_a_bounds_own(name):
    clashing = Op("com.example.CLASH", {F32: V1_0}, (Form(arg(name, T, "input")),), (out("output", T),), None)
    with pytest.raises(ValueError, match=rf"CLASH: names \['{name}'\] are used twice or reserved"):
        register(clashing)
    twice = Op("com.example.CLASH", {F32: V1_0}, (Form(arg("x", T), arg("x", T)),), (out("output", T),), None)
    with pytest.raises(ValueError, match=r"names \['x', 'x'\] are used twice"):
        register(twice)
    assert "com.example.CLASH" not in OPS


def test_an_operation_of_nnapi_is_not_registered_by_others_before_its_family_is_loaded():
    program = (
        "from dataclasses import replace\n"
        "from nnhal.ops.schema import OPS, register\n"
        "try:\n    register(replace(OPS['ABS'], name='MUL'))\n"
        "except ValueError as error:\n    print(error)\n"
        "print(OPS['MUL'].name, OPS['SUB'].name)"
    )
    said = run_python(program).stdout
    assert said == "MUL is registered twice\nMUL SUB\n"


def test_an_operation_of_nnapi_is_registered_once_one_of_a_drivers_file_again():
    with pytest.raises(ValueError, match="ADD is registered twice"):
        register(OPS["ADD"])
    foreign = replace(OPS["ADD"], name="com.example.ADD")
    try:
        register(foreign)
        register(foreign)
        assert foreign.since == V1_2 and foreign.existence == "com.example.ADD exists since 1.2"
    finally:
        del OPS["com.example.ADD"]


# ------------------------------------------------------------------------------------------------------- what is matched


def test_outputs_are_there_and_as_many_as_the_record_gives():
    x = Value(F32, (2,))
    for outputs in ([], [RESULT] * 2):
        with pytest.raises(InvalidModel, match=f"ABS: has {len(outputs)} outputs, must have 1$"):
            bind(OPS["ABS"], [x], outputs)
    with pytest.raises(InvalidModel, match="TOPK_V2: output 1 is omitted, must be given"):
        bind(OPS["TOPK_V2"], [x, number(1)], [RESULT, None])
    state = [Value(F32, (2, 4))]
    inputs = [
        Value(F32, (2, 5, 3)),
        Value(F32, (4, 3)),
        Value(F32, (4, 4)),
        Value(F32, (4,)),
        *state,
        number(1),
        number(0),
    ]
    for outputs in (0, 3):
        with pytest.raises(InvalidModel, match=f"has {outputs} outputs, must have 1 or 2"):
            bind(OPS["UNIDIRECTIONAL_SEQUENCE_RNN"], inputs, [RESULT] * outputs)
    a = bind(OPS["UNIDIRECTIONAL_SEQUENCE_RNN"], inputs, [RESULT] * 2)
    assert a.reasons[-1] == "output 1 (hidden_state_out) exists since 1.3"


def test_the_error_is_that_of_the_form_that_fitted_furthest():
    x, w, b = Value(F32, (1, 8, 8, 3)), Value(F32, (4, 3, 3, 3)), Value(F32, (4,))
    one, yes = number(1), number(True, Type.BOOL)
    with pytest.raises(InvalidModel, match=r"input 8 \(dilation_w\) is TENSOR_FLOAT32"):  # by scheme; explicit: input 7
        bind(OPS["CONV_2D"], [x, w, b, one, one, one, number(0), yes, x, one], [RESULT])
    with pytest.raises(InvalidModel, match=r"input 9 \(activation\) is BOOL"):
        bind(OPS["CONV_2D"], [x, w, b, one, one, one, one, one, one, yes], [RESULT])


def test_reasons_say_what_raised_the_level():
    assert pool().reasons == ["AVERAGE_POOL_2D exists since 1.0"]
    signed = Value(Type.TENSOR_QUANT8_ASYMM_SIGNED, (1, 8, 8, 3), 0.5, 3)
    a = pool(picture=signed, result=replace(signed, shape=None))
    assert a.reasons[1:] == ["input 0 (input) may be TENSOR_QUANT8_ASYMM_SIGNED since 1.3"]
    turned = pool(number(True, Type.BOOL), picture=replace(PICTURE, shape=(1, 8, 8, 8)))
    assert turned.reasons[1:] == ["input 7 (nchw) may be BOOL since 1.2"] and (turned.needed, pool().needed) == (8, 7)
    a.since(V1_2, "this is older")
    assert a.level == V1_3 and len(a.reasons) == 2
    b = bind(OPS["DEQUANTIZE"], [Value(Type.TENSOR_QUANT8_ASYMM, (2,), 0.5)], [Value(Type.TENSOR_FLOAT16, None)])
    assert b.reasons[-1] == "output 0 (output) may be TENSOR_FLOAT16 since 1.2"


def test_the_name_in_messages_is_the_one_that_was_given():
    with pytest.raises(InvalidModel, match=r"^ABS #3: has 0 inputs, must have 1$"):
        bind(OPS["ABS"], [], [RESULT], "ABS #3")
    with pytest.raises(InvalidModel, match=r"^CONCATENATION: has 1 inputs, must have 2 or more$"):
        bind(OPS["CONCATENATION"], [PICTURE], [RESULT])
    assert bind(OPS["ABS"], [PICTURE], [RESULT], "ABS #3").name == "ABS #3"


def test_what_is_not_known_is_unknown_and_what_python_asks_is_not_there():
    a = pool(picture=replace(PICTURE, shape=None))
    with pytest.raises(UnknownValue, match="height"):
        _ = a.height
    assert (
        not hasattr(a, "__array__") and a.form_has("scheme") and not a.form_has("pad_left") and not a.form_has("height")
    )
    assert pool().form_has("height")
    with pytest.raises(UnknownValue, match="the output's shape"):
        _ = a.shape_of_output
    assert pool().shape_of_output == (1, 4, 4, 3) and pool().given[0] is PICTURE


@pytest.mark.parametrize(
    ("operation", "index", "value", "message"),
    [
        ("RNN", 0, (2, 3, 1), r"input 0 \(input\) has shape \[2, 3, 1\], must be \[batch, input_size\]"),
        ("RNN", 3, (5,), r"input 3 \(bias\) has dimension 0 = 5, must be units = 4"),
        ("RNN", 4, (None, 5), r"input 4 \(hidden_state\) has dimension 1 = 5, must be units = 4"),
    ],
)
def test_dimensions_of_one_name_have_one_size(operation, index, value, message):
    inputs = [Value(F32, s) for s in ((2, 3), (4, 3), (4, 4), (4,), (2, 4))]
    inputs[index] = Value(F32, value)
    with pytest.raises(InvalidModel, match=message):
        bind(OPS[operation], [*inputs, number(1)], [RESULT] * 2)


def test_a_dimension_that_is_not_known_takes_the_size_of_its_name():
    inputs = [Value(F32, s) for s in ((None, 3), (None, 3), (4, 4), (4,), (2, None))]
    a = bind(OPS["RNN"], [*inputs, number(1)], [RESULT] * 2)
    assert a.shapes == [(2, 4), (2, 4)] and a.deferred


def test_numbered_dimensions_have_their_size():
    x, sizes = Value(F32, (1, 4, 4, 1)), Value(Type.TENSOR_INT32, (3,))
    with pytest.raises(InvalidModel, match=r"input 1 \(blocks\) has dimension 0 = 3, must be 2$"):
        bind(OPS["BATCH_TO_SPACE_ND"], [x, sizes], [RESULT])


@pytest.mark.parametrize(("rank", "fine"), [(31, True), (32, False)])
def test_an_output_has_at_most_32_dimensions(rank, fine):
    x = Value(F32, (1,) * rank)
    if fine:
        assert bind(OPS["EXPAND_DIMS"], [x, number(0)], [RESULT]).shapes == [(1,) * 32]
    else:
        with pytest.raises(InvalidModel, match=r"output 0 \(output\) would have rank 33, must be at most 32"):
            bind(OPS["EXPAND_DIMS"], [x, number(0)], [RESULT])


@pytest.mark.parametrize(
    ("kind", "dims", "times", "fine"),
    [
        (Type.TENSOR_QUANT8_ASYMM, (65535,), 65537, True),  # 4294967295 bytes
        (Type.TENSOR_QUANT8_ASYMM, (65536,), 65536, False),
        (F32, (2**15,), 2**15 - 1, True),
        (F32, (2**15,), 2**15, False),
        (F32, (None,), 2**30, True),
    ],
)
def test_an_output_has_at_most_4294967295_bytes(kind, dims, times, fine):
    quant = (0.5, 3) if kind != F32 else (0.0, 0)
    arguments = [Value(kind, dims, *quant), Value(Type.TENSOR_INT32, (1,), data=np.array([times], np.int32))]
    if fine:
        bind(OPS["TILE"], arguments, [Value(kind, None, *quant)])
    else:
        with pytest.raises(InvalidModel, match=r"would have shape \[\d+\], must have at most 4294967295 bytes"):
            bind(OPS["TILE"], arguments, [Value(kind, None, *quant)])


def test_an_input_declared_as_0_may_be_left_out_and_one_of_other_sizes_not():
    assert [may_be_omitted(Value(F32, shape)) for shape in ((None,), (None, None), (2, None), None, ())] == [
        True, True, False, False, True
    ]  # fmt: skip
    assert not may_be_omitted(Value(F32, (0,), data=np.zeros(0, np.float32)))


def test_shapes_agree_where_what_is_known_does():
    assert agree((1, None), (1, 5)) and agree((None,), (None,)) and not agree((1,), (2,)) and not agree((1,), (1, 1))
    assert [show(s) for s in (None, (), (1, None))] == ["[?...]", "[]", "[1, ?]"]


def test_a_fixed_scale_is_compared_as_float32_holds_it():
    x = Value(Type.TENSOR_QUANT8_ASYMM, (2,), 0.1, 3)
    outputs = [
        Value(Type.TENSOR_QUANT8_ASYMM, None, scale, zero) for scale, zero in ((1 / 256 + 1e-12, 0), (1 / 256, 1))
    ]
    assert bind(OPS["LOGISTIC"], [x], outputs[:1]).shapes == [(2,)]
    with pytest.raises(InvalidModel, match=r"has scale 0.00390625 and zero point 1, must be 0.00390625 and 0"):
        bind(OPS["LOGISTIC"], [x], outputs[1:])


def test_a_record_infers_a_shape_for_every_output():
    wrong = replace(OPS["TOPK_V2"], infer=lambda a: [(1,)])
    with pytest.raises(ValueError, match="shorter"):
        bind(wrong, [Value(F32, (2,)), number(1)], [RESULT, Value(Type.TENSOR_INT32, None)])


@pytest.mark.parametrize(("shape", "deferred"), [((2, 3), False), ((None, 3), True), (None, True)])
def test_a_rule_is_looked_at_again_where_a_shape_is_open(shape, deferred):
    assert bind(OPS["ABS"], [Value(F32, shape)], [RESULT], "ABS").deferred == deferred


def test_the_weights_of_a_layer_and_the_dimension_of_its_output_channels_follow_from_the_signature() -> None:
    layers = {name: tuple(op.weights) for name, op in OPS.items() if op.weights is not None and not op.code >> 16}
    first = dict.fromkeys(("CONV_2D", "GROUPED_CONV_2D", "TRANSPOSE_CONV_2D"), ("filter", 0))
    assert layers == first | {"DEPTHWISE_CONV_2D": ("filter", 3), "FULLY_CONNECTED": ("weights", 0)}
