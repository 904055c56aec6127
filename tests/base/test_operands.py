"""What is known of an operand, and what asking for more raises."""

import copy

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.errors import InvalidModel
from nnhal.base.operands import (
    TENSOR_TYPES,
    ChannelQuant,
    UnknownValue,
    Value,
    dtype_of,
    fixed,
    is_tensor,
    quantised,
    typed,
)
from nnhal.base.uncopied import NotCopyable

T = OperandType
QUANTISED = {t for t in T if "QUANT" in t.name}
SCALARS = {T.FLOAT32, T.INT32, T.UINT32, T.BOOL, T.FLOAT16, T.SUBGRAPH, T.OEM}


@pytest.mark.parametrize(
    ("shape", "whole"), [((2, 3), (2, 3)), ((), ()), ((0,), (0,)), ((2, None), None), ((None,), None), (None, None)]
)
def test_a_shape_is_fixed_where_all_of_it_is_known(shape, whole) -> None:
    value = Value(T.TENSOR_FLOAT32, shape)
    assert fixed(shape) == whole
    if whole is None:
        with pytest.raises(UnknownValue):
            _ = value.known
    else:
        assert value.known == whole


def test_of_an_unknown_rank_nothing_can_be_asked_and_of_a_known_one_its_number() -> None:
    assert (Value(T.TENSOR_FLOAT32, (2, None)).dims, Value(T.TENSOR_FLOAT32, (2, None)).rank) == ((2, None), 2)
    for what in ("dims", "rank", "known", "array"):
        with pytest.raises(UnknownValue):
            getattr(Value(T.TENSOR_FLOAT32, None), what)


def test_a_value_is_there_or_unknown() -> None:
    data = np.arange(3, dtype=np.int32)
    assert Value(T.TENSOR_INT32, (3,), data=data).array is data
    with pytest.raises(UnknownValue):
        _ = Value(T.TENSOR_INT32, (3,)).array
    plain = Value(T.FLOAT32)
    assert (plain.shape, plain.scale, plain.zero_point, plain.channel, plain.data, plain.name) == (
        (),
        0,
        0,
        None,
        None,
        "",
    )


def test_types_are_tensors_or_scalars_quantised_or_not() -> None:
    assert {t for t in T if not is_tensor(t)} == SCALARS and set(TENSOR_TYPES) == set(T) - SCALARS
    assert {t for t in T if quantised(t)} == {t for t in T if Value(t).quantised} == QUANTISED
    assert is_tensor(5 << 16) and not quantised(5 << 16) and not Value(5 << 16).quantised  # of an extension
    assert Value(T.TENSOR_QUANT16_ASYMM).dtype == np.uint16


@pytest.mark.parametrize("code", [T.OEM, T.SUBGRAPH, 5 << 16])
def test_what_has_no_element_type_says_so(code: int) -> None:
    with pytest.raises(InvalidModel, match="has no element type"):
        dtype_of(code)


def test_scales_by_channel_show_their_axis_and_how_many() -> None:
    assert repr(ChannelQuant((0.5, 0.25), 3)) == "<ChannelQuant along axis 3, 2 scales: 0.5, 0.25>"


def test_room_is_taken_as_an_array_of_the_type_and_shape_over_its_first_bytes() -> None:
    room = np.zeros(10, np.float32)
    made = typed(room, np.dtype(np.int16), (2, 3))
    made[...] = -1
    assert made.shape == (2, 3) and made.dtype == np.int16 and np.shares_memory(made, room)
    assert room.view(np.int16).tolist() == [-1] * 6 + [0] * 14
    assert typed(room, np.dtype(np.float32), (10,)) is room
    assert typed(room, np.dtype(np.int32), (10,)).dtype == np.int32
    assert typed(room, np.dtype(np.float32), (2, 5)).shape == (2, 5)


def test_what_cannot_be_copied_says_what_to_do_instead() -> None:
    class Held(NotCopyable, instead="open another"):
        pass

    for take in (copy.copy, copy.deepcopy):
        with pytest.raises(RuntimeError, match="Held: cannot be pickled or copied; open another"):
            take(Held())
