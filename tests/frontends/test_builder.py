"""The Python builder: scales as models hold them, quantisation of several outputs, and what it says of wrong types."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import TYPE_FACTS, OperandType, OperationType
from nnhal.base.errors import InvalidModel
from nnhal.base.memory import Memory
from nnhal.base.operands import ChannelQuant
from nnhal.frontends.python import Builder
from nnhal.frontends.tensor import Tensor
from nnhal.model.builder import ModelBuilder
from nnhal.ops import OPS
from nnhal.ops.schema import Arg, Form, Op, types_for

Type = OperandType
Q8, Q8S, Q16A = Type.TENSOR_QUANT8_ASYMM, Type.TENSOR_QUANT8_ASYMM_SIGNED, Type.TENSOR_QUANT16_ASYMM
TENTH = float(np.float32(0.1))
RECORDS = [record for name, record in sorted(OPS.items()) if name in OperationType.__members__]


# ---------------------------------------------------------------------------------------------------------------- scales


def test_a_scale_that_float32_cannot_hold_is_one_number_everywhere() -> None:
    b = Builder()
    x = b.input((2,), Q8, 0.1, 3)
    y = b.relu(x, scale=0.1, zero_point=3)
    z = b.reshape(b.constant([1, 2], Q8, 0.1, 3), [2, 1], scale=0.1, zero_point=3)
    assert [t.value.scale for t in (x, y, z)] == [TENTH] * 3
    model = b.finish([x], [y, z])
    assert {o.scale for o in model.main.operands if o.type == Q8} == {TENTH}


def test_scales_of_channels_are_rounded_too() -> None:
    b = Builder()
    channel = ChannelQuant((0.1, 0.3), 0)
    filters = b.constant(np.ones((2, 1, 1, 1), np.int8), Type.TENSOR_QUANT8_SYMM_PER_CHANNEL, channel=channel)
    wanted = ChannelQuant((TENTH, float(np.float32(0.3))), 0)
    assert filters.value.channel == wanted
    x = b.input((1, 1, 1, 1), Q8, 0.1)
    y = b.conv_2d(x, filters, b.constant([0, 0], "TENSOR_INT32"), padding="same", scale=0.1)
    operands = b.finish([x], [y]).main.operands
    assert [o.channel for o in operands if o.channel] == [wanted]


def test_another_scale_than_the_inputs_is_still_rejected() -> None:
    b = Builder()
    x = b.input((2,), Q8, 0.1, 3)
    with pytest.raises(InvalidModel, match=r"RELU: output 0 \(output\) has scale 0.2 .* must be those of the input"):
        b.relu(x, scale=0.2, zero_point=3)


# ------------------------------------------------------------------------------------------------------- several outputs


def heatmap(b: Builder, **more: Any) -> Any:
    maps = b.constant([[[[100], [100]], [[110], [100]]]], Q8, 0.1, 100)  # 0 and 1: the greatest is the lower left one
    boxes = b.constant([[0, 0, 32, 32]], Q16A, 0.125)  # 4 pixels wide and high
    return b.heatmap_max_keypoint(maps, boxes, False, **more)


@pytest.mark.parametrize("more", [{"scale": 0.05}, {"scale": [0.05, None]}, {"scale": (0.05, 0.125)}])
def test_a_quantised_heatmap_has_a_scale_for_its_scores_and_eighths_for_its_places(more: dict[str, Any]) -> None:
    b = Builder()
    scores, places = heatmap(b, zero_point=[10, 0], **more)
    assert (scores.value.type, scores.value.scale, scores.value.zero_point) == (Q8, float(np.float32(0.05)), 10)
    assert (places.value.type, places.value.scale, places.value.zero_point) == (Q16A, 0.125, 0)
    made = nnhal.compile(b.finish([], [scores, places]), devices=["reference"])()
    assert [part.tolist() for part in made] == [[[30]], [[[8, 24]]]]  # 1 is 20 steps; [1, 3] pixels


def test_a_list_of_scales_must_have_one_for_each_output() -> None:
    with pytest.raises(
        InvalidModel, match="HEATMAP_MAX_KEYPOINT: scale has 3 entries, must have 2, one for each output"
    ):
        heatmap(Builder(), scale=[1, 1, 1])


def test_the_output_without_a_scale_is_named() -> None:
    with pytest.raises(InvalidModel, match=r"the scale of output 0 \(scores\) is not given, must be: scale=..."):
        heatmap(Builder())


# ----------------------------------------------------------------------------------------------------------- wrong types


def operand(b: Builder, kind: int, argument: Arg) -> Tensor:
    """An operand of a type, of as many dimensions as an argument may have."""
    facts = TYPE_FACTS[kind]
    rank = 0 if not facts.tensor else len(argument.dims) if argument.dims is not None else (argument.rank or (2,))[0]
    return b.input((2,) * rank, OperandType(kind), 0.5 if facts.zero_points is not None else 0.0)


def given(b: Builder, record: Op, form: Form, own: int) -> dict[str, Any]:
    """Operands for a form by the names of their arguments, all of fitting types."""
    tensors = [operand(b, own if repr(a.spec) == "T" else next(iter(types_for(record, a, own))), a) for a in form]
    return {a.name: several(a, t) for a, t in zip(form, tensors, strict=True)}


def several(argument: Arg, tensor: Tensor) -> Any:
    """An operand, as often as an argument has it."""
    return tensor if argument.many is None else [tensor] * argument.many


def attempt(b: Builder, record: Op, named: dict[str, Any]) -> str:
    """What the builder says of a call; "" where it takes it."""
    try:
        b.operation(record.name, **named, scale=0.5, outputs=len(record.outputs))
    except InvalidModel as error:
        return str(error)
    return ""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_wrong_type_is_an_invalid_model_that_names_it(record: Op) -> None:
    for form in record.forms:
        for own in record.types or [0]:
            b = Builder()
            right = given(b, record, form, own)
            for argument in form:
                fitting = record.types if repr(argument.spec) == "T" else types_for(record, argument, own)
                for kind in set(OperandType) - set(fitting):
                    wrong = several(argument, operand(b, kind, argument))
                    message = attempt(b, record, right | {argument.name: wrong})
                    if len(record.forms) == 1:  # another form may take it, or say what else it lacks
                        assert message.startswith(f"{record.name}: "), (own, argument.name, kind)
                        assert kind.name in message, (own, argument.name, kind, message)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_wrong_output_type_is_an_invalid_model(record: Op) -> None:
    own = next(iter(record.types), 0)
    for kind in OperandType:
        b = Builder()
        form = record.forms[0]
        named = given(b, record, form, own)
        try:
            b.operation(record.name, **named, scale=0.5, out_type=kind)
        except InvalidModel as error:
            assert str(error).startswith(f"{record.name}: ")


def test_a_type_that_does_not_exist_is_rejected() -> None:
    b = Builder()
    message = "type is 'TENSOR_FLOAT64', must be one of FLOAT32, "
    with pytest.raises(InvalidModel, match=message):
        b.input((2,), "TENSOR_FLOAT64")
    with pytest.raises(InvalidModel, match=message):
        b.constant([1], "TENSOR_FLOAT64")
    with pytest.raises(InvalidModel, match=message):
        b.cast([1], out_type="TENSOR_FLOAT64")


@pytest.mark.parametrize(
    ("type", "value"), [("TENSOR_INT32", 2**24 + 1), ("TENSOR_FLOAT16", 1.5), ("TENSOR_FLOAT32", 7.0)]
)
def test_fill_takes_the_form_of_the_type_that_is_asked_for(type, value):
    b = Builder()
    y = b.fill(shape=[2], value=value, out_type=type)
    assert nnhal.compile(b.finish([], [y]), devices="reference")().tolist() == [value, value]


def test_a_scale_in_a_list_counts_for_its_output_though_the_record_says_another() -> None:
    scores, places = heatmap(Builder(), scale=[0.5, None], zero_point=[3, None])
    assert (scores.value.scale, scores.value.zero_point, places.value.scale) == (0.5, 3, 0.125)
    with pytest.raises(InvalidModel, match=r"output 1 \(keypoints\) has scale 0.25"):
        heatmap(Builder(), scale=[0.5, 0.25], zero_point=[3, 0])


# ------------------------------------------------------------------------------------------------------- values are kept


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b, x, i: b.add(i, [1.7, -1.7]), r"ADD: .*: element \[0\] is 1.7, must be an integer from -2147483648"),
        (lambda b, x, i: b.add(i, [1, 2**40 + 5]), r"ADD: .*: element \[1\] is 1099511627781, must be an integer"),
        (
            lambda b, x, i: b.add(x, [[[[1], [None]]]]),
            r"ADD: .*: element \[0, 0, 1, 0\] is None, must be a real number",
        ),
        (lambda b, x, i: b.add(x, ["1"]), r"ADD: .*: element \[0\] is '1', must be a real number"),
        (lambda b, x, i: b.add(x, [True]), r"ADD: .*: element \[0\] is True, must be a real number"),
        (lambda b, x, i: b.add(x, [[1.0, 2.0], [3.0]]), r"ADD: .* has lists of different lengths or depths, must"),
        (lambda b, x, i: b.reshape(x, [2, 8.0]), r"RESHAPE: shape: element \[1\] is 8.0, must be an integer"),
        (lambda b, x, i: b.softmax(x, 1.0, 2**40), "SOFTMAX: axis is 1099511627776, must be an integer from"),
        (lambda b, x, i: b.softmax(x, 1e39), r"SOFTMAX: beta is 1e\+39, must be a real number of at most 3.40282e\+38"),
        (lambda b, x, i: b.softmax(x, [1.0]), r"SOFTMAX: beta has shape \[1\], must be one number"),
        (lambda b, x, i: b.softmax(x, True), "SOFTMAX: beta is True, must be a real number"),
        (
            lambda b, x, i: b.max_pool_2d(x, padding="same", filter_size=2, stride=1.9),
            "MAX_POOL_2D: stride_w is 1.9, must be an integer",
        ),
        (
            lambda b, x, i: b.max_pool_2d(x, padding="same", filter_size=2, nchw=1),
            "MAX_POOL_2D: .* is 1, must be True or False",
        ),
        (
            lambda b, x, i: b.constant([300], Q8, 1.0),
            r"constant '': element \[0\] is 300, must be an integer from 0 to",
        ),
        (
            lambda b, x, i: b.constant(np.array([300]), Q8, 1.0),
            r"constant '': element \[0\] is 300, must be an integer",
        ),
        (
            lambda b, x, i: b.constant([1.0], Q8, 1.0, name="w"),
            r"constant 'w': element \[0\] is 1.0, must be an integer",
        ),
        (lambda b, x, i: b.constant([[1], [2, 3]]), "constant '' is object, must be one of float32"),
        (lambda b, x, i: b.constant([1], Q8, "1"), "constant '': scale is '1', must be a real number"),
        (lambda b, x, i: b.constant([1], Q8, 1.0, 0.5), "operand 2: the zero point is 0.5, must be an integer"),
        (
            lambda b, x, i: b.input((2, -1), name="x"),
            r"input 'x': shape: element \[1\] is -1, must be an integer from 0",
        ),
        (lambda b, x, i: b.input((2.5,)), r"input '': shape: element \[0\] is 2.5, must be an integer from 0"),
        (lambda b, x, i: b.input((True,)), r"input '': shape: element \[0\] is True, must be an integer from 0"),
        (lambda b, x, i: b.input((2,), Q8, 1e39), r"input '': scale is 1e\+39, must be a real number of at most"),
        (
            lambda b, x, i: b.relu(b.input((2,), Q8, 1.0), scale="1"),
            "RELU: the scale of output 0 is '1', must be a real",
        ),
    ],
)
def test_a_number_that_would_change_is_named_with_its_place(call, message):
    b = Builder()
    x, i = b.input((1, 4, 4, 1)), b.input((2,), "TENSOR_INT32")
    with pytest.raises(InvalidModel, match=message):
        call(b, x, i)


def test_a_dimension_that_is_no_integer_is_refused_under_the_builder_too() -> None:
    with pytest.raises(InvalidModel, match=r"operand 0: a dimension is 2.5, must be an integer"):
        ModelBuilder().operand(Type.TENSOR_FLOAT32, (2.5,))  # type: ignore[arg-type]


def test_numbers_that_fit_are_taken_as_lists_scalars_and_arrays() -> None:
    b = Builder()
    i = b.input((2,), "TENSOR_INT32")
    y = b.add(b.add(i, [1, np.int64(-2)]), b.constant(np.array([3, 4], np.uint8), "TENSOR_INT32"))
    model = b.finish([i], [y])
    assert nnhal.compile(model, devices="reference")(np.array([10, 20], np.int32)).tolist() == [14, 22]


def test_a_list_of_booleans_is_a_tensor_of_booleans_where_there_may_be_one() -> None:
    b = Builder()
    x = b.input((2,), "TENSOR_BOOL8")
    model = b.finish([x], [b.equal([True, False], x)])
    assert nnhal.compile(model, devices="reference")(np.array([True, True])).tolist() == [True, False]


# ------------------------------------------------------------------------------------------------- constants do not change


@pytest.mark.parametrize("count", [4, 4000])
def test_an_array_that_changes_after_it_became_a_constant_changes_no_model(count: int) -> None:
    b, given = Builder(), np.ones(count, np.float32)
    x = b.input((count,))
    y = b.add(x, given)
    given[:] = 2
    model = b.finish([x], [y])
    given[:] = 3
    assert nnhal.compile(model, devices="reference")(np.zeros(count, np.float32)).tolist() == [1] * count


def test_a_shape_is_the_one_that_was_given_though_its_array_changes() -> None:
    b, shape = Builder(), np.array([2, 3], np.int32)
    target = b.constant(shape)
    shape[:] = 3, 2
    assert b.reshape(b.input((6,)), target).shape == (2, 3)


@pytest.mark.parametrize("count", [4, 4000])
@pytest.mark.parametrize("pool", ["own", "ashmem", "host"])
def test_nobody_can_make_the_array_of_a_constant_writable(count: int, pool: str) -> None:
    b, weights = ModelBuilder(), np.ones(count, np.float32)
    if pool == "own":
        index = b.constant(Type.TENSOR_FLOAT32, weights)
    else:
        memory = Memory.from_array(weights) if pool == "ashmem" else Memory.wrap(weights)
        index = b.reference(Type.TENSOR_FLOAT32, (count,), b.add_pool(memory), 0, weights.nbytes)
    model = b.finish([], [])
    array = model.constant(model.main.operands[index])
    assert array.tolist() == [1] * count
    while isinstance(array, np.ndarray):
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True"):
            array.flags.writeable = True
        array = array.base


def test_constants_that_come_after_a_finish_lie_in_a_pool_of_their_own() -> None:
    b = ModelBuilder()
    first = b.constant(Type.TENSOR_FLOAT32, np.full(100, 1, np.float32))
    one = b.finish([], [])
    second = b.constant(Type.TENSOR_FLOAT32, np.full(100, 2, np.float32))
    two = b.finish([], [])
    values = [two.constant(two.main.operands[index])[0] for index in (first, second)]
    assert values == [1, 2] and len(one.pools) == 1 and two.pools[0] is one.pools[0]
