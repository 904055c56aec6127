"""Operations that move data: facts of their definitions, edges, levels, and what errors say."""

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel, OperationFailed
from nnhal.base.levels import FL6, FL7, FL8, V1_0, V1_1, V1_2, V1_3, Level
from nnhal.base.operands import Array, Value
from tests.ops.run import F16, F32, I32, Q8, Q8S, Operand, Type, bound, result, run, value

LEAST, GREATEST = -(2**31), 2**31 - 1


def ints(*numbers: int) -> Value:
    return value(I32, numbers)


def quant(data: object, scale: float = 0.5, zero: int = 3, type: int = Q8) -> Value:
    return value(type, data, scale, zero)


def count(*shape: int) -> Array:
    """0, 1, 2, ... in this shape."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def strided(x: Operand, begin: int, end: int, stride: int, *masks: int) -> list[float]:
    operands = [x, ints(begin), ints(end), ints(stride), *(masks or (0, 0, 0))]
    result: list[float] = run("STRIDED_SLICE", operands)[0].tolist()
    return result


# ---------------------------------------------------------------------------------------------------------------- shapes


def test_minus_one_takes_what_is_left() -> None:
    assert run("RESHAPE", [count(2, 6), ints(3, -1)])[0].shape == (3, 4)


@pytest.mark.parametrize("before", [(None, 2, 2), (None, None), None])
def test_a_constant_shape_says_what_it_can_of_an_open_input(before):
    assert bound("RESHAPE", [Value(F32, before), ints(-1, 4)]).shapes == [(None, 4)]
    assert bound("RESHAPE", [Value(F32, before), ints(2, 4)]).shapes == [(2, 4)]


@pytest.mark.parametrize("shape", [(-1, -1), (5,), (-1, 5), (-2, -3), (0, -1)])
def test_a_shape_of_another_size_is_rejected(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidModel, match=r"RESHAPE: shape = \["):
        bound("RESHAPE", [count(6), ints(*shape)])


@pytest.mark.parametrize(("before", "after"), [((1, 2, 3, 1, 1), (6,)), ((6,), (1, 2, 3, 1, 1))])
def test_more_dimensions_than_the_definition_has_are_kept_from_drivers_of_earlier_levels(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    a = bound("RESHAPE", [count(*before), ints(*after)])
    assert a.level == FL8
    assert "more than 4 dimensions need a driver of feature level 8" in a.reasons
    assert bound("RESHAPE", [count(1, 2, 3, 1), ints(6, 1, 1, 1)]).level == V1_0
    assert bound("RESHAPE", [Value(F32, None), ints(6, 1, 1, 1)]).level == V1_0


def test_squeezing_every_dimension_leaves_one() -> None:
    assert run("SQUEEZE", [count(1, 1), None])[0].shape == (1,)
    assert run("SQUEEZE", [count(1, 3, 1), ints(-1)])[0].shape == (1, 3)


def test_squeezing_a_dimension_that_is_not_one_is_rejected() -> None:
    with pytest.raises(InvalidModel, match="axes has 1 of size 3, must be of size 1"):
        bound("SQUEEZE", [count(1, 3), ints(1)])


@pytest.mark.parametrize(("axis", "shape"), [(0, (1, 2, 3)), (2, (2, 3, 1)), (-1, (2, 3, 1)), (-3, (1, 2, 3))])
def test_a_dimension_is_put_in_from_either_end(axis: int, shape: tuple[int, ...]) -> None:
    assert run("EXPAND_DIMS", [count(2, 3), axis])[0].shape == shape


@pytest.mark.parametrize("axis", [3, -4, LEAST, GREATEST])
def test_an_axis_outside_is_rejected(axis: int) -> None:
    with pytest.raises(InvalidModel, match=f"axis = {axis}, must be from -3 to 2"):
        bound("EXPAND_DIMS", [count(2, 3), axis])


def test_an_omitted_permutation_reverses_all_dimensions() -> None:
    assert run("TRANSPOSE", [count(2, 3, 4), None])[0].tolist() == np.einsum("abc->cba", count(2, 3, 4)).tolist()


@pytest.mark.parametrize("order", [(0, 0), (0, 2), (-1, 0), (0,)])
def test_what_is_no_permutation_is_rejected(order: tuple[int, ...]) -> None:
    with pytest.raises(InvalidModel, match="must hold each of 0 to 1 once"):
        bound("TRANSPOSE", [count(2, 3), ints(*order)])


def test_rank_is_a_scalar_and_needs_no_sizes() -> None:
    assert run("RANK", [count(1, 2, 3)], result(Type.INT32))[0] == np.int32(3)
    assert bound("RANK", [Value(F32, (None, None))], result(Type.INT32)).shapes == [()]


# ------------------------------------------------------------------------------------------------------------------ join


def test_inputs_of_other_scales_are_brought_to_the_outputs() -> None:
    parts = [quant([0, 255], 1.0, 0), quant([0, 255], 2.0, 128)]  # 0, 255 and -256, 254
    assert run("CONCATENATION", [*parts, 0], result(Q8, None, 1.0, 128))[0].tolist() == [128, 255, 0, 255]


@pytest.mark.parametrize(
    ("scale", "zero", "level"), [(0.5, 3, V1_0), (0.25, 3, V1_2), (0.5, 4, V1_2)], ids=["same", "scale", "zero point"]
)
def test_other_scales_than_the_outputs_may_be_joined_since_1_2(scale: float, zero: int, level: Level) -> None:
    assert bound("CONCATENATION", [quant([1]), quant([2], scale, zero), 0], result(Q8, None, 0.5, 3)).level == level


def test_joining_knows_what_any_part_knows() -> None:
    a = bound("CONCATENATION", [Value(F32, (2, None)), Value(F32, (3, 4)), 0])
    assert a.shapes == [(5, 4)] and a.deferred


def test_joining_takes_empty_parts_and_no_negative_axis() -> None:
    assert run("CONCATENATION", [np.zeros((0, 2), np.float32), count(1, 2), 0])[0].tolist() == [[0, 1]]
    with pytest.raises(InvalidModel, match=r"input 1 \(axis\) = -1, must be at least 0"):
        bound("CONCATENATION", [count(1), -1])


def test_packing_puts_the_parts_number_at_the_axis() -> None:
    a = bound("PACK", [1, Value(F32, (None, 3)), Value(F32, (2, None))])
    assert a.shapes == [(2, 2, 3)] and a.level == FL6


@pytest.mark.parametrize(
    ("operands", "out", "message"),
    [
        ([-1, count(2)], result(), r"input 0 \(axis\) = -1, must be at least 0"),
        ([2, count(2)], result(), "axis = 2, must be from -2 to 1"),
        ([0, count(2), count(3)], result(), r"part 1 has shape \[3\], must be \[2\]"),
        ([0, Value(F32, (None,)), count(3), count(4)], result(), r"part 2 has shape \[4\], must be \[3\]"),
        ([0, quant([1]), quant([1], 0.25)], result(Q8, None, 0.5, 3), "part 1 has scale 0.25 and zero point 3"),
        ([0, quant([1])], result(Q8, None, 0.5, 4), "part 0 .* must be those of the output, 0.5 and 4"),
    ],
)
def test_parts_are_packed_with_the_outputs_shape_and_scale(operands: list[Operand], out: Value, message: str) -> None:
    with pytest.raises(InvalidModel, match=f"PACK: .*{message}"):
        bound("PACK", operands, out)


def test_pieces_must_be_equal_and_as_many_as_outputs() -> None:
    assert [y.tolist() for y in run("SPLIT", [count(2, 2), -1, 2], result(), result())] == [[[0], [2]], [[1], [3]]]
    with pytest.raises(InvalidModel, match="dimension 0 = 3, must be a multiple of pieces = 2"):
        bound("SPLIT", [count(3), 0, 2], result(), result())
    with pytest.raises(InvalidModel, match=f"has 1 outputs, must have pieces = {GREATEST}"):
        bound("SPLIT", [count(3), 0, GREATEST], result())


# ------------------------------------------------------------------------------------------------------------------- pad


def test_quantised_padding_is_a_real_zero() -> None:
    y = run("PAD", [quant([7], zero=128), value(I32, [[1, 1]])], result(Q8, None, 0.5, 128))[0]
    assert y.tolist() == [128, 7, 128]


@pytest.mark.parametrize(("zero", "level"), [(0, V1_1), (3, V1_2)])
def test_padding_with_a_zero_point_exists_since_1_2(zero: int, level: Level) -> None:
    pads, out = value(I32, [[0, 1]]), result(Q8, None, 0.5, zero)
    assert bound("PAD", [quant([1], zero=zero), pads], out).level == level
    picture, none = quant([[[[1]]]], zero=zero), value(I32, [[0, 0], [0, 0]])
    assert bound("SPACE_TO_BATCH_ND", [picture, ints(1, 1), none], out).level == level


@pytest.mark.parametrize(("kind", "number"), [(Q8, 0), (Q8, 255), (Q8S, -128), (Q8S, 127)])
def test_a_quantised_value_is_taken_as_stored(kind: int, number: int) -> None:
    pads, out = value(I32, [[1, 0]]), result(kind, None, 0.5, 3)
    assert run("PAD_V2", [quant([5], type=kind), pads, number], out)[0].tolist() == [number, 5]


@pytest.mark.parametrize(("kind", "number"), [(Q8, -1), (Q8, 256), (Q8S, 128), (Q8S, LEAST)])
def test_a_value_that_the_type_cannot_store_is_rejected(kind: int, number: int) -> None:
    with pytest.raises(InvalidModel, match=f"PAD_V2: value = {number}, must be"):
        bound("PAD_V2", [quant([5], type=kind), value(I32, [[1, 0]]), number], result(kind, None, 0.5, 3))


@pytest.mark.parametrize(("mode", "expected"), [(0, [1, 2, 3, 2, 1]), (1, [1, 2, 3, 3, 2])])
def test_only_symmetric_repeats_the_border(mode: int, expected: list[int]) -> None:
    a = [[1.0, 2.0, 3.0], value(I32, [[0, 2]]), mode]
    assert run("MIRROR_PAD", a)[0].tolist() == expected and bound("MIRROR_PAD", a).level == FL7


@pytest.mark.parametrize(("mode", "most"), [(0, 2), (1, 3)])
def test_no_more_is_mirrored_than_there_is(mode: int, most: int) -> None:
    x = Value(F32, (3, None))  # the unknown dimension does not hide the known one
    bound("MIRROR_PAD", [x, value(I32, [[most, most], [9, 9]]), mode])
    with pytest.raises(InvalidModel, match=f"for a dimension of 3, must be at most {most}"):
        bound("MIRROR_PAD", [x, value(I32, [[0, most + 1], [0, 0]]), mode])


@pytest.mark.parametrize("name", ["PAD", "PAD_V2", "MIRROR_PAD"])
def test_a_table_of_another_size_is_rejected_before_its_values_are_known(name: str) -> None:
    more = {"PAD": [], "PAD_V2": [1.0], "MIRROR_PAD": [0]}[name]
    with pytest.raises(InvalidModel, match="paddings has 2 rows, must have 1, one per dimension"):
        bound(name, [count(4), Value(I32, (2, 2)), *more])


def test_negative_and_endless_paddings_are_rejected() -> None:
    with pytest.raises(InvalidModel, match=r"paddings = \[\[-1, 1\]\], must be at least 0"):
        bound("PAD", [count(4), value(I32, [[-1, 1]])])
    with pytest.raises(InvalidModel, match="must have at most 4294967295 bytes"):
        bound("PAD", [count(4), value(I32, [[GREATEST, GREATEST]])])


# ---------------------------------------------------------------------------------------------------------------- slices


def test_a_slice_may_be_empty_or_all_that_is_left() -> None:
    assert run("SLICE", [count(3), ints(3), ints(-1)])[0].shape == (0,)
    assert run("SLICE", [np.zeros((0, 2), np.float32), ints(0, 1), ints(-1, 1)])[0].shape == (0, 1)
    assert bound("SLICE", [Value(F32, (None, 4)), ints(1, 1), ints(2, -1)]).shapes == [(2, 3)]


@pytest.mark.parametrize(
    ("begin", "size"), [(-1, 1), (4, 0), (1, 3), (3, 1), (0, -2), (GREATEST, GREATEST), (LEAST, -1)]
)
def test_a_slice_outside_is_rejected(begin: int, size: int) -> None:
    with pytest.raises(InvalidModel, match=r"SLICE: (begin|size)\[0\]"):
        bound("SLICE", [count(3), ints(begin), ints(size)])


@pytest.mark.parametrize(
    ("begin", "end", "stride", "masks", "expected"),
    [
        (1, 3, 1, (0, 0, 0), [1, 2]),
        (-3, -1, 1, (0, 0, 0), [1, 2]),
        (-1, -4, -2, (0, 0, 0), [3, 1]),
        (2, 2, -1, (1, 1, 0), [3, 2, 1, 0]),
        (3, 1, 1, (0, 0, 0), []),
        (-99, 99, 3, (0, 0, 0), [0, 3]),
        (3, 0, LEAST, (0, 0, 0), [3]),
        (LEAST, GREATEST, GREATEST, (0, 0, 0), [0]),
        (-1, 4, 1, (0, 0, 1), [3]),
        (9, 1, 5, (1, 0, 1), [0]),
    ],
)
def test_steps_go_from_begin_until_end(
    begin: int, end: int, stride: int, masks: tuple[int, ...], expected: list[int]
) -> None:
    assert strided(count(4), begin, end, stride, *masks) == expected


@pytest.mark.parametrize(
    ("begin", "end", "stride", "message"),
    [
        (0, 1, 0, r"strides\[0\] = 0, must not be 0"),
        (1, 3, 1, "dimension 0 shrinks and has a slice of 2, must have one of 1"),
        (-1, 0, 1, "dimension 0 shrinks and has a slice of 0, must have one of 1"),
        (4, 5, 1, "dimension 0 shrinks and has a slice of 0, must have one of 1"),
        (1, 0, -1, r"strides\[0\] = -1, must be above 0 if the dimension shrinks"),
    ],
)
def test_a_dimension_that_shrinks_is_a_slice_of_one(begin: int, end: int, stride: int, message: str) -> None:
    with pytest.raises(InvalidModel, match=f"STRIDED_SLICE: {message}"):
        strided(count(4), begin, end, stride, 0, 0, 1)


def test_an_unknown_dimension_stays_unknown_alone_and_is_checked_later() -> None:
    x = Value(F32, (None, 4, None))
    a = bound("STRIDED_SLICE", [x, ints(0, 1, 5), ints(9, 3, 6), ints(1, 1, 1), 0, 0, 4])
    assert a.shapes == [(None, 2)] and a.deferred


def test_gathering_puts_the_indices_in_the_place_of_the_axis() -> None:
    y = run("GATHER", [count(2, 3), -1, value(I32, [[2, 0], [1, 1]])])[0]
    assert y.tolist() == [[[2, 0], [1, 1]], [[5, 3], [4, 4]]]


@pytest.mark.parametrize("index", [3, -1, LEAST, GREATEST])
def test_an_index_outside_is_rejected(index: int) -> None:
    with pytest.raises(InvalidModel, match=f"indices has {index}, must be from 0 to 2"):
        bound("GATHER", [count(3), 0, ints(index)])
    with pytest.raises(InvalidModel, match=f"lookups has {index}, must be from 0 to 2"):
        bound("EMBEDDING_LOOKUP", [ints(index), count(3, 1)])


def test_unknown_indices_wait_for_the_run() -> None:
    assert bound("GATHER", [count(3), 0, Value(I32, (2,))]).deferred


def test_tiling_repeats_and_bounds_what_it_makes() -> None:
    assert run("TILE", [count(1, 2), ints(2, 2)])[0].tolist() == [[0, 1, 0, 1]] * 2
    assert run("TILE", [count(1, 2), ints(1, 1)])[0].tolist() == [[0, 1]]
    with pytest.raises(InvalidModel, match="must have at most 4294967295 bytes"):
        bound("TILE", [count(2), ints(GREATEST)])


@pytest.mark.parametrize("times", [(0, 1), (1, -1)])
def test_a_multiple_below_1_is_rejected(times: tuple[int, ...]) -> None:
    with pytest.raises(InvalidModel, match=r"TILE: multiples = .*, must be at least 1"):
        bound("TILE", [count(2, 2), ints(*times)])
    with pytest.raises(InvalidModel, match="TILE: multiples has 1 elements, must have 2"):
        bound("TILE", [count(2, 2), ints(1)])


def test_tiling_keeps_the_rank_whatever_the_multiples_are() -> None:
    assert bound("TILE", [Value(F32, (3, None, 2)), Value(I32, (3,))]).shapes == [(None, None, None)]


@pytest.mark.parametrize("kind", [F32, F16, I32, Q8, Q8S])
def test_of_equal_elements_the_later_comes_first(kind: int) -> None:
    scale = 0.5 if kind in (Q8, Q8S) else 0.0
    values, places = run("TOPK_V2", [value(kind, [[1, 3, 3, 2]], scale), 3], result(kind, None, scale), result(I32))
    assert values.tolist() == [[3, 3, 2]] and places.tolist() == [[2, 1, 3]]


def test_the_extremes_of_integers_are_ordered() -> None:
    values, places = run("TOPK_V2", [ints(LEAST, GREATEST, 0), 3], result(I32), result(I32))
    assert values.tolist() == [GREATEST, 0, LEAST] and places.tolist() == [1, 2, 0]


@pytest.mark.parametrize("k", [0, -1, 4, LEAST, GREATEST])
def test_k_outside_is_rejected(k: int) -> None:
    with pytest.raises(InvalidModel, match=f"TOPK_V2: .*k\\)? = {k}, must be at (least|most)"):
        bound("TOPK_V2", [count(2, 3), k], result(), result(I32))


@pytest.mark.parametrize("kind", [F32, F16, I32, Q8, Q8S])
def test_one_axis_is_reversed(kind: int) -> None:
    scale = 0.5 if kind in (Q8, Q8S) else 0.0
    x, out = value(kind, [[1, 2, 3], [4, 5, 6]], scale), result(kind, None, scale)
    assert run("REVERSE", [x, ints(1)], out)[0].tolist() == [[3, 2, 1], [6, 5, 4]]
    assert run("REVERSE", [x, ints(0)], out)[0].tolist() == [[4, 5, 6], [1, 2, 3]]
    assert bound("REVERSE", [x, ints(0)], out).level == FL7


@pytest.mark.parametrize(
    ("x", "axis", "message"),
    [
        (count(3), ints(-1), "axis = -1, must be from 0 to 0"),
        (count(3), ints(1), "axis = 1, must be from 0 to 0"),
        (count(3), ints(0, 0), r"input 1 \(axis\) has dimension 0 = 2, must be 1"),
        (np.zeros((1,) * 9, np.float32), ints(0), "must have rank 1 to 8"),
    ],
)
def test_one_axis_of_at_most_eight_is_counted_from_the_front(x: Array, axis: Value, message: str) -> None:
    with pytest.raises(InvalidModel, match=f"REVERSE: .*{message}"):
        bound("REVERSE", [x, axis])


# ---------------------------------------------------------------------------------------------------------------- blocks


def test_batches_of_blocks_are_put_in_the_order_of_their_cells() -> None:
    x = count(1, 2, 4, 1)  # cell (i, j) of each 2 x 2 block becomes batch 2 i + j
    y = run("SPACE_TO_BATCH_ND", [x, ints(2, 2), value(I32, [[0, 0], [0, 0]])])[0]
    assert y.reshape(4, 2).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert run("BATCH_TO_SPACE_ND", [y, ints(2, 2)])[0].tolist() == x.tolist()


def test_blocks_of_a_padded_picture_have_its_zero_point() -> None:
    x, out = quant([[[[7]]]], zero=9), result(Q8, None, 0.5, 9)
    y = run("SPACE_TO_BATCH_ND", [x, ints(2, 1), value(I32, [[1, 0], [0, 0]])], out)[0]
    assert y.reshape(-1).tolist() == [9, 7]


def test_nchw_moves_the_same_elements() -> None:
    x = count(2, 4, 2, 3)
    y = run("DEPTH_TO_SPACE", [np.moveaxis(x, 1, -1), 2])[0]
    assert run("DEPTH_TO_SPACE", [x, 2, True])[0].tolist() == np.moveaxis(y, -1, 1).tolist()


@pytest.mark.parametrize(
    ("name", "operands", "message"),
    [
        ("DEPTH_TO_SPACE", [count(1, 1, 1, 6), 2], "depth = 6, must be a multiple of 4"),
        ("DEPTH_TO_SPACE", [count(1, 1, 1, 4), 0], r"input 1 \(block\) = 0, must be at least 1"),
        ("DEPTH_TO_SPACE", [count(1, 1, 1, 4), GREATEST], "depth = 4, must be a multiple of"),
        ("SPACE_TO_DEPTH", [count(1, 3, 2, 1), 2], "height = 3, must be a multiple of 2"),
        ("BATCH_TO_SPACE_ND", [count(3, 1, 1, 1), ints(2, 1)], "batch = 3, must be a multiple of 2"),
        ("BATCH_TO_SPACE_ND", [count(4, 1, 1, 1), ints(0, 2)], r"blocks = \[0, 2\], must be at least 1"),
        ("CHANNEL_SHUFFLE", [count(4), 3, 0], "axis 0 has size 4, must be a multiple of 3"),
        ("CHANNEL_SHUFFLE", [count(4), 2, 1], "axis = 1, must be from -1 to 0"),
    ],
)
def test_what_does_not_fall_into_blocks_is_rejected(name: str, operands: list[Operand], message: str) -> None:
    with pytest.raises(InvalidModel, match=f"{name}: .*{message}"):
        bound(name, operands)


def test_channels_are_shuffled_by_their_formula() -> None:
    groups, size = 2, 3
    expected = np.empty((2, 6))
    for k in range(size):
        for g in range(groups):
            expected[:, k * groups + g] = count(2, 6)[:, g * size + k]
    assert run("CHANNEL_SHUFFLE", [count(2, 6), groups, -1])[0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("name", "operands", "shape"),
    [
        ("CHANNEL_SHUFFLE", [np.zeros((0, 4), np.float32), 2, 1], (0, 4)),
        ("DEPTH_TO_SPACE", [np.zeros((0, 1, 1, 4), np.float32), 2], (0, 2, 2, 1)),
        ("SPACE_TO_DEPTH", [np.zeros((0, 2, 2, 1), np.float32), 2], (0, 1, 1, 4)),
        ("BATCH_TO_SPACE_ND", [np.zeros((0, 1, 1, 1), np.float32), ints(2, 2)], (0, 2, 2, 1)),
        ("TRANSPOSE", [np.zeros((0, 3), np.float32), None], (3, 0)),
        ("EXPAND_DIMS", [np.zeros((0, 3), np.float32), 0], (1, 0, 3)),
        ("GATHER", [count(2, 3), 1, np.zeros(0, np.int32)], (2, 0)),
        ("REVERSE", [np.zeros((0, 3), np.float32), ints(0)], (0, 3)),
    ],
)
def test_nothing_is_moved_where_there_is_nothing(name: str, operands: list[Operand], shape: tuple[int, ...]) -> None:
    assert run(name, operands)[0].shape == shape


# ------------------------------------------------------------------------------------------------------------------ fill


@pytest.mark.parametrize(("scalar", "tensor"), [(Type.FLOAT32, F32), (Type.FLOAT16, F16), (Type.INT32, I32)])
def test_a_tensor_is_filled_with_a_scalar_of_its_type(scalar: int, tensor: int) -> None:
    operands = [ints(2, 1), value(scalar, 7)]
    (y,) = run("FILL", operands, result(tensor))
    assert y.tolist() == [[7], [7]] and y.dtype == value(tensor, 0).dtype
    assert bound("FILL", operands, result(tensor)).level == V1_3
    with pytest.raises(InvalidModel, match="FILL: output 0 is"):
        bound("FILL", operands, result(F32 if tensor == I32 else I32))


def test_a_tensor_without_elements_is_filled_too() -> None:
    assert run("FILL", [ints(0, 2), 7.0])[0].shape == (0, 2)


@pytest.mark.parametrize("shape", [(-1,), (2, LEAST), ()])
def test_a_shape_that_is_none_is_rejected(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidModel, match="must hold a size for each dimension, none below 0"):
        bound("FILL", [ints(*shape), 1.0])


def test_a_kernel_that_cannot_know_its_shape_says_so() -> None:
    with pytest.raises(OperationFailed, match="is omitted, must have a value"):
        run("FILL", [Value(I32, (1,)), 1.0])
