"""The Python builder: scales as models hold them, quantisation of several outputs, and what it says of wrong types."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import TYPE_FACTS, OperandType, OperationType
from nnhal.base.errors import InvalidModel
from nnhal.base.operands import ChannelQuant
from nnhal.frontends.python import Builder, Tensor
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
    filters = b.constant(np.ones((2, 1, 1, 1)), Type.TENSOR_QUANT8_SYMM_PER_CHANNEL, channel=channel)
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


def given(b: Builder, record: Op, form: Form, own: int, wrong: Arg | None = None, kind: int = 0) -> list[Any]:
    """Operands for a form, all of fitting types but `wrong`, which has the type `kind`."""
    tensors = [
        operand(b, kind if a is wrong else own if repr(a.spec) == "T" else next(iter(types_for(record, a, own))), a)
        for a in form
    ]
    return [[t] * a.many if a.many is not None else t for a, t in zip(form, tensors, strict=True)]


def attempt(record: Op, form: Form, own: int, *change: Any) -> str:
    """What the builder says of a call; "" where it takes it."""
    b = Builder()
    named = dict(zip((a.name for a in form), given(b, record, form, own, *change), strict=True))
    try:
        b.operation(record.name, **named, scale=0.5, outputs=len(record.outputs))
    except InvalidModel as error:
        return str(error)
    return ""


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_wrong_type_is_an_invalid_model_that_names_it(record: Op) -> None:
    for form in record.forms:
        for own in record.types or [0]:
            for argument in form:
                fitting = record.types if repr(argument.spec) == "T" else types_for(record, argument, own)
                for kind in set(OperandType) - set(fitting):
                    message = attempt(record, form, own, argument, kind)
                    if len(record.forms) == 1:  # another form may take it, or say what else it lacks
                        assert message.startswith(f"{record.name}: "), (own, argument.name, kind)
                        assert kind.name in message, (own, argument.name, kind, message)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_wrong_output_type_is_an_invalid_model(record: Op) -> None:
    own = next(iter(record.types), 0)
    for kind in OperandType:
        b = Builder()
        form = record.forms[0]
        named = dict(zip((a.name for a in form), given(b, record, form, own), strict=True))
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
