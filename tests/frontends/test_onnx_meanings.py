"""What nodes mean where that is easily missed: as ONNX Runtime computes it, or refused by name."""

from itertools import pairwise

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from nnhal import (
    InvalidArgument,
    InvalidRequest,
    NnhalError,
    OpenModel,
    OperationFailed,
    allocate,
    compile,
    load,
)
from nnhal.base.records import replace
from nnhal.model.stored import pack_model as known
from nnhal.model.stored import unpack_model
from nnhal.ops import OPS
from tests.frontends.cases import refused
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, check, check_nodes, model, node, operations

RNG = np.random.default_rng(11)


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*numbers):
    return np.array(numbers, np.int64)


# --------------------------------------------------------------------------------------------------- the greatest, indices


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", [np.float32, np.int32, np.int64])
def test_of_equal_elements_the_one_with_the_lower_index_is_first(largest, axis, kind):
    inputs = {"x": RNG.integers(-2, 3, (4, 6, 5)).astype(kind)}
    check(model([node("TopK", "x k", "y i", axis=axis, largest=largest)], inputs, {"k": ints(3)}, "y i"), inputs)


def test_where_no_index_is_read_the_greatest_need_no_other_order():
    check_nodes(node("TopK", "x k", "y i"), {"x": real(3, 6)}, {"k": ints(3)}, becomes=["TOPK_V2"])


def test_the_least_integer_is_among_the_least():
    inputs = {"x": np.array([5, -(2**31), 3, 2**31 - 1], np.int32)}
    check(model([node("TopK", "x k", "y i", largest=0)], inputs, {"k": ints(2)}, "y i"), inputs)


def test_an_index_beyond_the_depth_hits_nothing_also_where_all_is_known():
    constants = {"i": np.array([0, 2, -1, 4, 7, -4, -5]), "d": np.array(4), "v": np.array([3, 8], np.float32)}
    check_nodes([node("OneHot", "i d v", "h"), node("Add", "x h")], {"x": real(7, 4)}, constants)


# ------------------------------------------------------------------------------------------------------------ functions

FAR = [-80.0, -30.0, -20.0, -17.0, -16.0, -1.0, -1e-6, 1e-6, 0.3, 1.0, 17.0, 80.0, 88.9, 89.3, 90.0]
INSIDE = [-0.9999, -0.7072, -0.334, -0.333, -1e-6, 1e-30, 0.2, 0.5, 0.7071, 0.99]  # -1 and 1
FUNCTIONS = {
    "Softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), FAR),
    "Mish": (lambda x: x * np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))), FAR),
    "Sinh": (np.sinh, FAR),
    "Cosh": (np.cosh, FAR),
    "Atan": (np.arctan, [*FAR, -3e38, 3e38, 1e-30, 0.4999]),
    "Asin": (np.arcsin, INSIDE),
    "Acos": (np.arccos, INSIDE),
    "Asinh": (np.arcsinh, [*FAR, -3e38, 3e38, 1e-30, 0.4999, 0.5001, 1e4]),
    "Acosh": (np.arccosh, [1.0, 1.0000001, 1.0001, 1.2499, 1.2501, 3.0, 1e4, 1e19, 3e38]),
    "Atanh": (np.arctanh, INSIDE),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_keeps_its_digits_where_its_parts_are_tiny_or_huge(name, device):
    function, values = FUNCTIONS[name]
    inputs = {"x": np.float32(values)}
    found = by_nnhal(model([node(name, "x")], inputs, opset=18), inputs, device)[0]
    exact = function(inputs["x"].astype(np.float64))
    fits = np.abs(exact) <= np.finfo(np.float32).max
    np.testing.assert_allclose(found[fits], exact[fits], 1e-6)
    np.testing.assert_array_equal(found[~fits], np.copysign(np.inf, exact[~fits]))


@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
def test_to_the_power_of_a_half_is_no_root(device):
    inputs, constants = {"x": np.float32([4, -np.inf, -1])}, {"e": np.float32(0.5)}
    found = by_nnhal(model([node("Pow", "x e")], inputs, constants), inputs, device)[0]
    np.testing.assert_array_equal(found, np.float32([2, np.inf, np.nan]))


# ------------------------------------------------------------------------------------------------------------ resizing


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [[1, 1, 1.1, 1], [1, 1, 1.1, 1.1], [1, 1, 1.1, 2]])
def test_a_picture_whose_size_stays_stays_whatever_its_scales_say(mode, scales):
    inputs = {"x": real(1, 2, 5, 6)}
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    check(model([node("Resize", "x - s", **how)], inputs, {"s": np.float32(scales)}, opset=13), inputs)
    if mode != "cubic":
        check(model([node("Upsample", "x s", mode=mode)], inputs, {"s": np.float32(scales)}, opset=9), inputs)


@pytest.mark.parametrize(("size", "scale", "new"), [(5, 1.4, 7), (10, 1.3, 13), (10, 2.3, 23), (8, 0.7, 5)])
def test_a_size_by_scale_is_a_product_in_float32(size, scale, new):
    """As ONNX Runtime executes it; its shape inference says 6 for 5 times 1.4, which is 6.9999999 in float64."""
    inputs, constants = {"x": real(1, 1, size, 2)}, {"s": np.float32([1, 1, scale, 1])}
    assert check(model([node("Resize", "x - s", mode="linear")], inputs, constants), inputs)[0].shape[2] == new


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.6, 1.7), (1, 1, 3, 0.5)])
def test_tf_half_pixel_for_nn_takes_half_an_element_off_no_position(rounding, scales):
    how = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": rounding}
    inputs, constants = {"x": real(1, 2, 4, 5)}, {"s": np.array(scales, np.float32), "roi": np.zeros(0, np.float32)}
    check(model([node("Resize", "x roi s", mode="nearest", **how)], inputs, constants, opset=11), inputs)


def test_scales_count_from_the_whole_picture_whatever_part_of_it_is_taken():
    constants = {"roi": np.array((0, 0, 0.2, 0.1, 1, 1, 0.8, 0.9), np.float32), "s": np.array((1, 1, 2, 2), np.float32)}
    inputs, how = {"x": real(1, 2, 4, 5)}, {"coordinate_transformation_mode": "tf_crop_and_resize"}
    check(model([node("Resize", "x roi s", mode="linear", **how)], inputs, constants), inputs)


def test_before_version_11_a_smaller_picture_takes_the_next_element():
    inputs, constants = {"x": real(1, 2, 8, 9)}, {"s": np.array((1, 1, 0.5, 0.7), np.float32)}
    check(model([node("Resize", "x s", mode="nearest")], inputs, constants, opset=10), inputs)


@pytest.mark.parametrize("scale", [0.6, 1.7])
def test_cubic_weights_of_the_elements_inside_the_picture_sum_to_one_where_the_others_are_excluded(scale):
    how = {"mode": "cubic", "exclude_outside": 1}
    inputs, constants = {"x": real(1, 1, 5, 6)}, {"s": np.array((1, 1, scale, scale), np.float32)}
    check(model([node("Resize", "x - s", **how)], inputs, constants), inputs)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_pytorch_half_pixel_takes_the_first_element_where_the_new_size_is_one(mode):
    how = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel"}
    check_nodes(node("Resize", "x - - n", **how), {"x": real(1, 1, 5, 4)}, {"n": ints(1, 1, 1, 3)})


def test_integers_are_resized_to_the_nearest():
    inputs, constants = {"x": RNG.integers(-99, 99, (1, 2, 4, 5)).astype(np.int32)}, {"s": np.array((1, 1, 2, 3), "f4")}
    check(model([node("Resize", "x - s", mode="nearest")], inputs, constants), inputs)


def test_volumes_are_interpolated_along_each_dimension():
    inputs, constants = {"x": real(1, 2, 3, 4, 2)}, {"s": np.array((1, 1, 2, 1.5, 2), np.float32)}
    check(model([node("Resize", "x - s", mode="linear")], inputs, constants), inputs)


# --------------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", [2, 3])
def test_sizes_of_a_pool_are_rounded_up_also_without_padding(op, size):
    how = {"kernel_shape": [size, size], "strides": [2, 3], "auto_pad": "VALID", "ceil_mode": 1}
    check_nodes(node(op, "x", **how), {"x": real(1, 2, 9, 8)})


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_a_transposed_convolution_with_strides_beyond_its_filter_has_no_padding(mode):
    inputs, constants = {"x": real(1, 3, 4, 5)}, {"w": real(3, 2, 1, 4)}
    check(model([node("ConvTranspose", "x w", auto_pad=mode, strides=[3, 2])], inputs, constants), inputs)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_an_output_one_element_larger_than_the_products_reach_has_that_element_at_the_end(mode):
    inputs, constants = {"x": real(1, 1, 3, 4)}, {"w": real(1, 1, 2, 3)}
    how = {"auto_pad": mode, "strides": [2, 2], "output_shape": [7, 10]}  # the products reach 6 and 9
    check(model([node("ConvTranspose", "x w", **how)], inputs, constants), inputs)


def test_a_normalisation_with_the_statistics_of_the_batch_is_refused():
    constants = {n: real(4) for n in "sbm"} | {"v": np.abs(real(4))}
    old = model([node("BatchNormalization", "x s b m v", "y m2 v2 m3 v3")], {"x": real(2, 4, 3)}, constants, opset=9)
    refused(old, "training mode")


OLD = [
    ([node("BatchNormalization", "x s b m v")], {"s": real(6), "b": real(6), "m": real(6), "v": real(6) ** 2 + 1}),
    ([node("Upsample", "x", mode="nearest", scales=[1.0, 1.0, 2.0, 1.5])], {}),
    ([node("Upsample", "x", mode="linear", scales=[1.0, 1.0, 2.0, 3.0])], {}),
    ([node("MaxPool", "x", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])], {}),
    ([node("AveragePool", "x", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])], {}),
    ([node("PRelu", "x s")], {"s": real(6, 1, 1)}),
    ([node("Flatten", "x", "f"), node("Gemm", "f w c", "g"), node("Softmax", "g")], {"w": real(432, 5), "c": real(5)}),
    ([node("Sum", "x x s", "t"), node("Dropout", "t", "u"), node("Max", "u x")], {"s": real(2, 6, 9, 8)}),
    ([node("Greater", "x s", "g"), node("Cast", "g", to=1)], {"s": real(8)}),
]


@pytest.mark.parametrize("opset", [7, 8])
@pytest.mark.parametrize(("nodes", "constants"), OLD, ids=[each[0][-1].op_type for each in OLD])
def test_operators_of_version_7_and_8_mean_what_onnx_runtime_computes(nodes, constants, opset):
    check_nodes(nodes, {"x": real(2, 6, 9, 8)}, constants, opset=opset)


def test_a_normalisation_of_each_element_by_its_own_statistics_is_refused():
    """Version 7 has the attribute, version 9 does not."""
    constants = {name: np.abs(real(3, 4, 4)) for name in "sbmv"}
    made = model([node("BatchNormalization", "x s b m v", spatial=0)], {"x": real(1, 3, 4, 4)}, constants, opset=7)
    refused(made, "spatial is 0")


@pytest.mark.parametrize("known", [False, True])
def test_a_dropout_that_drops_is_refused(known):
    ratio, training = {"r": np.array(0.5, np.float32)}, {"t": np.array(True)}
    given = {"x": real(2, 3)} if known else {"x": real(2, 3), **training}
    refused(model([node("Dropout", "x r t")], given, {**ratio, **(training if known else {})}), "training")


@pytest.mark.parametrize(("ratio", "training"), [(0.5, False), (0.0, True)])
def test_a_dropout_that_drops_nothing_is_nothing(ratio, training):
    check_nodes(node("Dropout", "x r t"), {"x": real(2, 3)}, {"r": np.array(ratio, "f4"), "t": np.array(training)})


HALF = [
    ("LayerNormalization", "x s b", {"axis": -1}),
    ("LpNormalization", "x", {"axis": -1}),
    ("MeanVarianceNormalization", "x", {"axes": [1, 2]}),
    ("ReduceL2", "x", {"axes": [1]}),
    ("ReduceLogSum", "x", {"axes": [1, 2]}),
]


@pytest.mark.parametrize(("op", "names", "how"), HALF, ids=[each[0] for each in HALF])
def test_squares_and_sums_of_float16_have_room(op, names, how):
    inputs = {"x": (np.abs(real(2, 8, 40)) * 300).astype(np.float16)}
    constants = {"s": real(40).astype(np.float16), "b": real(40).astype(np.float16)} if "s" in names else {}
    (found,) = check(model([node(op, names, **how)], inputs, constants), inputs)
    assert np.isfinite(found).all()
    assert found.any()


# -------------------------------------------------------------------------------------------------------- single elements


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 2.5])
@pytest.mark.parametrize("op", ["Elu", "Selu"])
def test_what_is_above_0_is_left_as_it_is_whatever_the_slope_below(op, alpha):
    check_nodes(node(op, "x", alpha=alpha), {"x": real(3, 5) * 3})


def test_an_exponent_of_more_dimensions_than_the_base_gives_the_result_those():
    check_nodes(node("Pow", "x k"), {"x": real(3, 4)}, {"k": np.full((1, 1, 1), 2, np.float32)})


@pytest.mark.parametrize("known", [False, True])
def test_an_exponent_below_0_leaves_whole_numbers_of_1_only(known):
    x, y = np.array([2, 1, -1, -1, 7, 3], np.int32), np.array([-1, -5, -3, -2, -31, 3], np.int32)
    check_nodes(node("Pow", "x k"), {"x": x} if known else {"x": x, "k": y}, {"k": y} if known else {})


@pytest.mark.parametrize(("op", "names"), [("Pow", "x k"), ("ReduceProd", "x")])
def test_powers_and_products_that_may_need_64_bits_are_refused_by_name(op, names):
    read = {"k": np.array(5)} if "k" in names else {}
    refused(model([node(op, names)], {"x": np.ones(5, np.int64)}, read), f"{op} #0: .*32 bits")


def test_a_power_of_what_is_known_to_be_small_is_taken():
    inputs = {"x": RNG.integers(-(2**31), 2**31, (3, 7)).astype(np.int32)}
    nodes = [node("ArgMax", "x", "i", axis=1), node("Pow", "i k")]
    check(model(nodes, inputs, {"k": np.array(3)}), inputs)


@pytest.mark.parametrize("known", ["quotients", "nothing"])
def test_quotients_of_integers_are_rounded_towards_zero_also_where_they_are_constants(known):
    x, y = (np.array(each, np.int32) for each in ([7, -7, 7, -7, 6, 0], [2, 2, -2, -2, -3, -5]))
    nodes, both = [node("Div", "a b", "q"), node("Add", "x q")], {"a": x, "b": y}
    inputs, constants = ({"x": x}, both) if known == "quotients" else ({"x": x, **both}, {})
    made = model(nodes, inputs, constants)
    assert ("DIV" in operations(made)) == (known == "nothing")
    assert check(made, inputs)[0].tolist() == [10, -10, 4, -4, 4, 0]


# ----------------------------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "ReduceSum", "ReduceMax"])
def test_a_reduction_of_a_number_is_a_number(op):
    check_nodes(node(op, "x"), {"x": np.array(2.5, np.float32)}, opset=18)


def test_the_sum_of_no_axes_of_exponentials_is_what_it_was():
    check_nodes(node("ReduceLogSumExp", "x", noop_with_empty_axes=1), {"x": real(2, 3)}, opset=18)


def test_the_sum_of_exponentials_of_masked_elements_is_none():
    inputs = {"x": np.array([[np.inf, 1], [-np.inf, 2], [-np.inf, -np.inf]], np.float32)}
    check(model([node("ReduceLogSumExp", "x", axes=[1])], inputs), inputs)


@pytest.mark.parametrize("axes", [[0, 2, 4], [1], [3, 4]])
def test_exponentials_of_many_dimensions_are_summed(axes):
    check_nodes(node("ReduceLogSumExp", "x", axes=axes), {"x": real(2, 2, 3, 2, 2)})


def test_no_axes_to_squeeze_are_all_of_1():
    check_nodes(node("Squeeze", "x a"), {"x": real(1, 3, 1)}, {"a": ints()})


@pytest.mark.parametrize("how", [{}, {"reverse": 1}, {"exclusive": 1}, {"exclusive": 1, "reverse": 1}])
@pytest.mark.parametrize("axis", [0, 1])
def test_integers_are_summed_up_along_an_axis(how, axis):
    inputs = {"x": RNG.integers(-9, 9, (3, 7)).astype(np.int32)}
    check(model([node("CumSum", "x a", **how)], inputs, {"a": np.array(axis)}), inputs)


def test_positions_counted_from_a_mask_fit_into_32_bits():
    nodes = [node("Cast", "m", "n", to=TensorProto.INT64), node("CumSum", "n a", "c"), node("Sub", "c k")]
    check_nodes(nodes, {"m": RNG.integers(0, 2, (2, 6)) > 0}, {"a": np.array(1), "k": np.array(1)})


# ---------------------------------------------------------------------------------------------------------------- types


WHOLE = np.array([-1, -128, -129, 127, 128, 255, 256, 300, -300, 2**31 - 1, -(2**31), 0, 5])
OF_TYPES = [WHOLE.astype(kind) for kind in (np.int32, np.int64)]
OF_TYPES += [np.array([0, 127, 128, 255], np.uint8), np.array([0, 127, -128, -1], np.int8), np.array([True, False])]


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.INT8])
@pytest.mark.parametrize("values", OF_TYPES, ids=lambda values: str(values.dtype))
def test_a_cast_to_8_bits_keeps_the_last_bits(kind, values):
    check(model([node("Cast", "x", to=kind)], {"x": values}), {"x": values})


def test_the_distance_0_whose_logarithm_is_no_integer_is_left_out_where_all_is_known():
    """The buckets of distances in T5 decoders: small distances count themselves, the rest by their logarithm."""
    constants = {"d": np.arange(12), "few": np.array(4), "scale": np.float32(3), "last": np.array(7)}
    nodes = [
        node("Less", "d few", "small"),
        node("Cast", "d", "real", to=TensorProto.FLOAT),
        node("Log", "real", "log"),
        node("Mul", "log scale", "scaled"),
        node("Cast", "scaled", "whole", to=TensorProto.INT64),
        node("Add", "whole few", "more"),
        node("Min", "more last", "far"),
        node("Where", "small d far", "bucket"),
        node("Gather", "x bucket"),
    ]
    check_nodes(nodes, {"x": real(8, 2)}, constants)


def test_a_cast_to_the_same_type_keeps_all_dimensions():
    check_nodes([node("Cast", "x", "t", to=TensorProto.FLOAT), node("Relu", "t")], {"x": real(1, 2, 1, 3, 2)})


# ------------------------------------------------------------------------------------------------------------- products


EQUATIONS = [
    ("ij,jk", (2, 3), (3, 4)),
    ("ba,bc", (2, 3), (2, 4)),
    ("ji", (2, 3)),
    ("Ab,bA", (2, 3), (3, 2)),
    ("...ij,...jk->...ik", (2, 2, 3), (2, 3, 4)),
    ("...ij,jk", (5, 2, 2, 3), (3, 4)),
    ("b...i,b...j->b...ij", (2, 3, 4), (2, 3, 5)),
    ("a...->...a", (2, 3, 4)),
    ("bij,bjk->bik", (1, 2, 3), (4, 3, 4)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ijk,ilm,kln->jm", (2, 3, 4), (2, 5, 6), (4, 5, 7)),
    ("a,b,c->cab", (2,), (3,), (4,)),
]


@pytest.mark.parametrize(("equation", "shapes"), [(each[0], each[1:]) for each in EQUATIONS], ids=str)
def test_an_equation_may_leave_letters_out(equation, shapes):
    inputs = {name: real(*shape) for name, shape in zip("xyz", shapes, strict=False)}
    check(model([node("Einsum", " ".join(inputs), "out", equation=equation)], inputs, outputs="out"), inputs)


def test_a_letter_that_is_twice_in_one_tensor_is_refused_by_name():
    refused(model([node("Einsum", "x", equation="ii->i")], {"x": real(3, 3)}), "Einsum #0: equation 'ii->i'")


# ------------------------------------------------------------------------------------------------- rows, many dimensions


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("pads", [[0, 0], [1, 1]])
def test_sizes_of_a_pool_of_rows_are_rounded_up(op, pads):
    check_nodes(node(op, "x", kernel_shape=[3], strides=[2], pads=pads, ceil_mode=1), {"x": real(2, 3, 8)})


def test_rows_of_a_layer_become_integers_of_the_type_that_a_cast_names():
    inputs, constants = {"x": real(1, 2, 5) * 9}, {"w": real(3, 2, 2)}
    nodes = [node("Conv", "x w", "c"), node("Cast", "c", to=TensorProto.INT64)]
    check(model(nodes, inputs, constants), inputs)


DEEP = (2, 1, 3, 2, 4)
MANY = [
    (node("TopK", "x two", "y i"), "y i"),
    (node("TopK", "x two", "y i", axis=2, largest=0), "y i"),
    (node("LayerNormalization", "x four four"), "y"),
    (node("LayerNormalization", "x eight eight", axis=-2), "y"),
]


@pytest.mark.parametrize(("nodes", "outputs"), MANY)
def test_more_than_four_dimensions_are_seen_as_fewer(nodes, outputs):
    constants = {"two": ints(2), "four": real(4), "eight": real(2, 4)}
    read = {name: value for name, value in constants.items() if name in nodes.input}
    check_nodes(nodes, {"x": np.round(real(*DEEP))}, read, outputs)


@pytest.mark.parametrize(("pads", "opset"), [([1, 1, 1, 1], 17), ([0, 1, 1, 0], 19), ([1, 0, 0, 1], 22)])
@pytest.mark.parametrize("strides", [[2, 2], [3, 2], [2, 3]])
def test_a_mean_that_counts_padding_counts_that_of_the_file_alone(pads, opset, strides):
    how = {"kernel_shape": [3, 2], "strides": strides, "pads": pads, "ceil_mode": 1, "count_include_pad": 1}
    check_nodes(node("AveragePool", "x", **how), {"x": real(2, 3, 9, 8)}, opset=opset)


def test_indices_of_many_dimensions_count_from_the_end_too():
    check_nodes(node("Gather", "x i"), {"x": real(5, 2), "i": RNG.integers(-5, 5, (1, 2, 1, 2, 2))})


def test_of_many_dimensions_the_last_of_the_greatest_is_found():
    check_nodes(node("ArgMax", "x", axis=2, select_last_index=1), {"x": np.round(real(*DEEP))})


@pytest.mark.parametrize("index", [4, -5])
@pytest.mark.parametrize("axis", [0, 1])
def test_an_index_out_of_its_row_is_an_error_and_no_element_of_another(index, axis):
    inputs = {"x": real(4, 4), "i": np.array([[0, index], [1, 2]])}
    made = model([node("GatherElements", "x i", axis=axis)], inputs)
    with pytest.raises(OperationFailed, match="must be"):
        by_nnhal(made, inputs)
    inputs["i"] = np.array([[0, -4], [3, 2]])
    check(made, inputs)


@pytest.mark.parametrize("op", ["Gather", "GatherElements"])
@pytest.mark.parametrize("axis", [0, 1])
def test_booleans_are_gathered_by_indices_that_are_computed(op, axis):
    check_nodes(node(op, "x i", axis=axis), {"x": RNG.integers(0, 2, (4, 5)) > 0, "i": RNG.integers(-4, 4, (2, 3))})


# --------------------------------------------------------------------------------- what of a shape only an execution knows

BATCH = [node("Shape", "x", "s"), node("Slice", "s zero one", "n")]
BACK = {"rows": ints(-1, 4), "zero": ints(0), "one": ints(1), "w": real(4, 6)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([node("Reshape", "x rows", "f"), node("MatMul", "f w", "g")], (-1, 6)),
        ([node("Reshape", "x rows", "g")], (-1, 2, 2)),
        ([node("Concat", "x x", "g", axis=0)], (-1,)),
        ([node("Concat", "x x", "g", axis=0)], (2, 3, 4)),
        ([node("Transpose", "x", "g", perm=[1, 0, 2])], (-1,)),
        ([node("Relu", "x", "g")], (4, -1)),
    ],
)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_an_open_batch_that_was_joined_with_others_comes_back_as_it_was(before, after, batch):
    nodes = [*before, *BATCH, node("Concat", "n left", "shape", axis=0), node("Reshape", "g shape")]
    inputs = {"x": real(batch, 3, 4)}
    made = model(nodes, inputs, {**BACK, "left": ints(*after)}, opset=13, shapes={"x": ["N", 3, 4]})
    check(made, inputs, shapes={"x": (0, 3, 4)})


def test_a_filled_constant_may_have_many_elements():
    check_nodes(
        [node("ConstantOfShape", "size", "filled"), node("Add", "x filled")],
        {"x": real(257, 256)},
        {"size": ints(257, 256)},
    )


def test_open_dimensions_of_one_name_are_one_and_of_two_names_are_two():
    nodes = [node("Shape", "z", "s"), *BATCH[1:], node("Concat", "n left", "shape", axis=0)]
    nodes += [node("Add", "x y", "g"), node("Reshape", "g shape", "out")]
    inputs = {"x": real(2, 12), "y": real(2, 12), "z": real(2, 3)}
    constants = {**BACK, "left": ints(-1, 4)}
    shapes = {"x": ["N", 12], "y": ["N", 12], "z": ["N", 3]}
    open_ = {"x": (0, 12), "y": (0, 12), "z": (0, 3)}
    made = model(nodes, inputs, constants, "out", 13, shapes=shapes)
    assert not isinstance(load(made.SerializeToString(), shapes=open_), OpenModel)
    check(made, inputs, shapes=open_)
    made = model(nodes, inputs, constants, "out", 13, shapes={**shapes, "z": ["M", 3]})
    assert isinstance(load(made.SerializeToString(), shapes=open_), OpenModel)  # two sizes are known only at execution
    check(made, inputs, shapes=open_)


def test_an_open_batch_of_pictures_stays_open_behind_a_layer_as_large_as_its_elements_may_be():
    nodes = [node("Conv", "x w", "g"), *BATCH, node("Concat", "n left", "shape", axis=0), node("Reshape", "g shape")]
    constants = {**BACK, "left": ints(-1), "w": np.zeros((64, 3, 1, 1), np.float32)}
    made = model(nodes, {"x": real(1, 3, 512, 512)}, constants, opset=13, shapes={"x": ["N", 3, 512, 512]})
    imported = load(made.SerializeToString(), shapes={"x": (0, 3, 512, 512)})
    assert [imported.main.operands[i].dimensions for i in imported.main.outputs] == [(0, 64 * 512 * 512)]


def test_an_open_height_is_as_a_filter_leaves_it():
    nodes = [node("Conv", "x w", "g"), node("Shape", "g", "s"), node("Slice", "s two three", "n")]
    nodes += [node("Concat", "n left", "shape", axis=0), node("Reshape", "g shape")]
    constants = {"w": real(4, 3, 13, 1), "left": ints(-1, 2), "two": ints(2), "three": ints(3)}
    inputs = {"x": real(1, 3, 20, 12)}
    made = model(nodes, inputs, constants, opset=13, shapes={"x": [1, 3, "H", 12]})
    check(made, inputs, shapes={"x": (1, 3, 0, 12)})


def strided(count, *last):
    """Convolutions of stride 2, whose results round down."""
    names = ["x", *(f"c{n}" for n in range(1, count)), "g"]
    layers = [
        node("Conv", f"{x} w{n}", y, strides=[2, 2], pads=[1, 1, 1, 1]) for n, (x, y) in enumerate(pairwise(names))
    ]
    weights = {f"w{n}": real(4, 3 if n == 0 else 4, 3, 3) for n in range(count)}
    return [*layers, node("Reshape", "g shape")], {**weights, "shape": ints(*last)}


@pytest.mark.parametrize("size", [64, 320])
def test_what_strides_leave_of_an_open_height_is_no_number_for_small_ones_being_alike(size):
    nodes, constants = strided(5, 1, 4, -1)
    inputs = {"x": real(1, 3, size, 64)}
    check(model(nodes, inputs, constants, shapes={"x": [1, 3, "H", 64]}), inputs, shapes={"x": (1, 3, 0, 64)})
    nodes, constants = strided(5, 0, 4, -1)
    made = model(nodes, inputs, constants, shapes={"x": ["N", 3, "H", 64]})
    assert isinstance(load(made.SerializeToString(), shapes={"x": (0, 3, 0, 64)}), OpenModel)
    check(made, inputs, shapes={"x": (0, 3, 0, 64)})


def test_a_window_longer_than_small_lengths_leaves_no_number_either():
    nodes = [node("Conv", "x w", "g", strides=[1600]), node("Reshape", "g shape")]
    inputs, constants = {"x": real(1, 1, 5000)}, {"w": real(4, 1, 400), "shape": ints(1, -1)}
    check(model(nodes, inputs, constants, shapes={"x": [1, 1, "T"]}), inputs, shapes={"x": (1, 1, 0)})


def test_a_tensors_own_open_dimension_is_itself_whatever_it_is_beside_others():
    inputs = {"x": real(2, 3, 4), "z": real(2, 3, 4)}
    nodes = [node("Add", "x z", "g"), node("Reshape", "g flat")]
    made = model(nodes, inputs, {"flat": ints(0, -1)}, shapes={"x": ["N", 3, 4], "z": ["M", 3, 4]})
    check(made, inputs, shapes={"x": (0, 3, 4), "z": (0, 3, 4)})
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "bc"]
    graphs = [
        helper.make_graph([node(op, "x", out.name)], op, [], [out])
        for op, out in zip(("Relu", "Abs"), outs, strict=True)
    ]
    inputs = {"x": real(2, 3, 4), "go": np.array([True])}
    nodes = [node("If", "go", "g", then_branch=graphs[0], else_branch=graphs[1]), node("Reshape", "g flat")]
    made = model(nodes, inputs, {"flat": ints(0, -1)}, shapes={"x": ["N", 3, 4]})
    check(made, inputs, shapes={"x": (0, 3, 4), "go": (1,)})


def test_dimensions_of_one_name_are_of_one_size_when_it_is_said_and_when_it_runs():
    nodes, inputs = [node("Neg", "x", "a"), node("Concat", "a z", axis=1)], {"x": real(2, 3), "z": real(2, 3)}
    made = model(nodes, inputs, shapes={"x": ["N", 3], "z": ["N", 3]})
    for shapes in ({"x": (2, 3), "z": (4, 3)}, {"x": (2, 3), "z": (0, 3)}):
        refused(made, "must be 2 like all dimensions named 'N'", InvalidArgument, shapes=shapes)
    kept = load(made.SerializeToString(), shapes={"x": (0, 3), "z": (0, 3)})
    for loaded in (kept, unpack_model(known(kept), kept.pools, {})):
        with compile(loaded, devices="reference", cache_dir=False) as compiled:
            x, z = real(4, 3), real(4, 3)
            np.testing.assert_array_equal(compiled(x, z), np.concatenate([-x, z], 1))
            for use in (compiled, compiled.submit, compiled.bind):
                with pytest.raises(
                    InvalidRequest, match="'N' is 4 in dimension 0 of input 0 and 2 in dimension 0 of input 1"
                ):
                    use(x, z[:2])
    with compile(kept, devices="reference", cache_dir=False) as compiled:
        allocation = allocate([(compiled, "input", 1)], shape=(0, 3))
        allocation.write(real(2, 3))
        binding = compiled.bind(real(2, 3), allocation)
        assert binding().shape == (2, 6)
        allocation.write(real(4, 3))
        with pytest.raises(InvalidRequest, match="must be one size"):
            binding()
    for unsaid in ("?", "-1"):
        made = model(nodes, inputs, shapes={"x": [unsaid, 3], "z": [unsaid, 3]})
        compiled = compile(load(made.SerializeToString(), shapes={"x": (0, 3), "z": (0, 3)}), devices="reference")
        with pytest.raises(OperationFailed):  # and not one of an input, as nobody said so
            compiled(real(2, 3), real(4, 3))
    square = model([node("Neg", "x")], {"x": real(3, 3)}, shapes={"x": ["N", "N"]})
    compiled = compile(load(square.SerializeToString(), shapes={"x": (0, 0)}), devices="reference")
    with pytest.raises(InvalidRequest, match="must be one size"):
        compiled(real(2, 3))


def test_a_branch_sees_the_open_batch_of_what_is_around_it():
    nodes = [*BATCH, node("Concat", "n left", "shape", axis=0), node("Relu", "x", "g"), node("Reshape", "g shape", "b")]
    other = [node("Reshape", "x flat", "c")]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "bc"]
    graphs = [helper.make_graph(each, "branch", [], [out]) for each, out in zip((nodes, other), outs, strict=True)]
    inputs = {"x": real(2, 3, 4), "go": np.array([True])}
    constants = {**BACK, "left": ints(-1), "flat": ints(0, 12)}
    made = model(
        [node("If", "go", then_branch=graphs[0], else_branch=graphs[1])],
        inputs, constants, opset=13, shapes={"x": ["N", 3, 4]},
    )  # fmt: skip
    check(made, inputs, shapes={"x": (0, 3, 4), "go": (1,)})


def test_branches_that_read_nothing_have_the_condition():
    def given(name, numbers):
        constant = numpy_helper.from_array(np.array(numbers, np.float32))
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
        return helper.make_graph([helper.make_node("Constant", [], [name], value=constant)], name, [], [value])

    nodes = [
        node("Greater", "x zero", "go"),
        node("If", "go", then_branch=given("a", [1, 2]), else_branch=given("b", [3, 4])),
    ]
    for x in (1.0, -1.0):
        check_nodes(nodes, {"x": np.float32([x])}, {"zero": np.float32(0)})


# ------------------------------------------------------------------------------------------------ numbers, shapes, bounds


@pytest.mark.parametrize("of", ["an input", "constants"])
@pytest.mark.parametrize("fmod", [0, 1])
def test_the_remainder_of_reals_has_the_sign_of_the_divisor_unless_it_is_fmod(fmod, of):
    """As numpy has both; ONNX takes the first of reals since opset 28."""
    x, z = 6 * real(5, 7), np.float32([2.1, -2.1, 3, -3, 0.7, 2, -2])
    x[0] = 0, -0.0, 6, 6, -0.7, -4, 4
    inputs, constants = ({"x": x, "z": z}, {}) if of == "an input" else ({"u": x}, {"x": x, "z": z})
    nodes = [node("Mod", "x z", "y" if of == "an input" else "m", fmod=fmod)]
    nodes += [] if of == "an input" else [node("Mul", "u zero", "none"), node("Add", "none m")]
    made = model(nodes, inputs, constants if of == "an input" else {**constants, "zero": np.float32(0)}, opset=21)
    (found,) = by_nnhal(made, inputs)
    np.testing.assert_allclose(found, (np.fmod if fmod else np.mod)(x, z), atol=1e-6)


@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
@pytest.mark.parametrize("how", [{}, {"detect_negative": 0}, {"detect_positive": 0}])
def test_infinities_are_found_by_their_sign(how, device):
    inputs = {"x": np.array([1, np.inf, -np.inf, np.nan, 3e38], np.float32)}
    check(model([node("IsInf", "x", **how)], inputs, opset=20), inputs, device=device)


@pytest.mark.parametrize("last", [-np.inf, np.inf])
def test_a_remainder_is_right_whatever_the_last_digit_of_a_quotient(monkeypatch, last):
    """A device may round a quotient to either neighbour: 41 / 41 is 0.99999994 where it multiplies with the reciprocal."""

    def near(a, x, y):
        return np.nextafter(x / y, np.float32(last))

    monkeypatch.setitem(OPS, "DIV", replace(OPS["DIV"], kernel=near))
    x, z = (np.ravel(each).astype(np.float32) for each in np.meshgrid(np.arange(-60, 60), [41, 7, 3, -7, 0.75]))
    (found,) = by_nnhal(model([node("Mod", "x z", "y", fmod=1)], {"x": x, "z": z}, opset=21), {"x": x, "z": z})
    np.testing.assert_array_equal(found, np.fmod(x, z))


@pytest.mark.parametrize("of", ["an input", "constants"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_become_channels_in_either_order(mode, of):
    """ONNX has the second since opset 28."""
    x = real(2, 3, 4, 6)
    blocks = x.reshape(2, 3, 2, 2, 3, 2)
    wanted = blocks.transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)).reshape(2, 12, 2, 3)
    made = node("SpaceToDepth", "x", "y" if of == "an input" else "m", blocksize=2, mode=mode)
    if of == "an input":
        (found,) = by_nnhal(model([made], {"x": x}, opset=21), {"x": x})
    else:
        (found,) = by_nnhal(model([made, node("Add", "u m")], {"u": 0 * wanted}, {"x": x}, opset=21), {"u": 0 * wanted})
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("turned", [0, 1])
def test_a_column_is_added_to_the_rows_of_a_product_also_where_it_is_as_long_as_they_are(turned):
    inputs, column = {"x": real(3, 4)}, np.float32([[1], [2], [3]])
    check_nodes(node("Gemm", "x w c", transB=turned), inputs, {"w": real(3, 4) if turned else real(4, 3), "c": column})
    between = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("DequantizeLinear", "w s z", "v"),
    ]
    between += [node("Gemm", "d v c", "g"), node("QuantizeLinear", "g s z", "h"), node("DequantizeLinear", "h s z")]
    constants = {"s": np.float32(0.05), "z": np.int8(0), "w": RNG.integers(-9, 9, (4, 3)).astype(np.int8), "c": column}
    check(model(between, inputs, constants), inputs, tolerance=0.02)


@pytest.mark.parametrize("bounds", ["lo", "- hi", "lo hi", "zero hi"])
def test_the_greatest_finite_number_is_a_bound_and_no_way_to_say_that_there_is_none(bounds):
    """ONNX Runtime has one where none is given, too."""
    most = np.finfo(np.float32).max
    ends = [-np.inf] * ("lo" in bounds) + [np.inf] * ("hi" in bounds)
    inputs = {"x": np.float32([-1, 0, 1, np.nan, *ends])}
    names = {"lo": -most, "hi": most, "zero": np.float32(0)}
    constants = {name: names[name] for name in bounds.split() if name != "-"}
    check(model([node("Clip", f"x {bounds}")], inputs, constants), inputs)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_gathered_of_constants_are_as_many_as_indices(axis):
    inputs = {"x": real(2, 1)}
    constants = {"d": real(3, 4), "i": np.array([[2], [-1]])}
    nodes = [node("GatherElements", "d i", "g", axis=axis), node("Add", "x g")]
    check(model(nodes, inputs, constants), inputs)


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (1, 1, 1, 1)])
def test_a_number_of_more_dimensions_than_rows_makes_more_of_them(op, shape):
    inputs = {"x": real(1, 3, 6)}
    constants = {"w": real(2, 3, 2), "k": np.full(shape, 0.5, np.float32)}
    check(model([node("Conv", "x w", "c"), node(op, "c k")], inputs, constants), inputs)


# ------------------------------------------------------------------------------------------ shared and empty constants


def shared(layer, weights):
    """Four layers that read one constant, by an Identity or a Transpose of each reader's own."""
    nodes, before = [], "x"
    for n in range(4):
        name = "w"
        if layer == "Transpose":
            nodes.append(node("Transpose", "w", f"w{n}", perm=[1, 0]))
            name = f"w{n}"
        elif n:
            nodes.append(node("Identity", "w", f"w{n}"))
            name = f"w{n}"
        op, attributes = {"Gemm": ("Gemm", {"alpha": 0.5}), "Conv": ("Conv", {"pads": [1, 1, 1, 1]})}.get(
            layer, ("MatMul", {})
        )
        after = "y" if n == 3 else f"t{n}"
        nodes.append(node(op, f"{before} {name}", after, **attributes))
        before = after
    shape = (1, 8, 5, 5) if layer == "Conv" else (2, 8)
    inputs = {"x": real(*shape)}
    return model(nodes, inputs, {"w": weights}), inputs


@pytest.mark.parametrize("layer", ["MatMul", "Transpose", "Gemm", "Conv"])
def test_what_layers_share_is_in_the_model_once(layer):
    weights = real(8, 8, 3, 3) / 9 if layer == "Conv" else real(8, 8) / 3
    made, inputs = shared(layer, weights)
    loaded = load(made.SerializeToString())
    large = {n for o in loaded.main.operations for n in o.inputs if loaded.main.operands[n].dimensions in (
        (8, 8), (8, 3, 3, 8))} - set(range(len(loaded.main.inputs)))  # fmt: skip
    constants = [n for n in large if n not in {out for o in loaded.main.operations for out in o.outputs}]
    assert len(constants) == 1
    check(made, inputs)


def test_a_file_may_share_more_than_import_may_copy():
    """Forty readers of 4 MiB: each its own copy would be more than a file of 4 MiB may cost."""
    weights, inputs = np.eye(1024, dtype=np.float32) * 2, {"x": real(1, 1024)}
    nodes = [node("Identity", "w", f"w{n}") for n in range(40)]
    nodes += [node("MatMul", f"{f't{n - 1}' if n else 'x'} w{n}", f"t{n}" if n < 39 else "y") for n in range(40)]
    found = by_nnhal(model(nodes, inputs, {"w": weights}), inputs)[0]
    np.testing.assert_array_equal(found, inputs["x"] * np.float32(2.0**40))


@pytest.mark.parametrize("kind", ["constant", "filled", "times", "sliced", "value"])
@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
def test_an_empty_part_adds_nothing(kind, device):
    inputs, constants, before = {"x": real(1, 4, 2)}, {}, []
    if kind == "constant":
        constants = {"e": np.zeros((1, 0, 2), np.float32)}
    elif kind == "sliced":
        constants, before = {"a": ints(4), "b": ints(9), "ax": ints(1)}, [node("Slice", "x a b ax", "e")]
    elif kind in ("filled", "times"):
        constants = {"s": ints(1, 0, 2), "k": np.float32(-1e9)}
        before = [
            node("ConstantOfShape", "s", "f"),
            node("Mul", "f k", "e") if kind == "times" else node("Identity", "f", "e"),
        ]
    whole, values = dict(inputs), None
    if kind == "value":
        values = {"e": np.zeros((1, 0, 2))}
        whole["e"] = np.zeros((1, 0, 2), np.float32)
    made = model([*before, node("Concat", "e x", axis=1)], whole, constants, shapes={"e": [1, "past", 2]})
    found = by_nnhal(made, inputs, device, values=values)[0]
    np.testing.assert_array_equal(found, inputs["x"])


# ------------------------------------------------------------------------------------------------- scattering, scaling


COMPUTED = [
    ("ScatterElements", 0, (5, 3), [[3, 0, -1], [3, 1, 0], [0, 0, 3], [1, 4, 3]]),
    ("ScatterElements", 1, (2, 4), [[3, 3, -2], [0, -4, 1]]),
    ("ScatterElements", 1, (2, 3, 2), [[[2, 0], [2, 1]], [[0, 0], [-1, 1]]]),
    ("ScatterElements", 0, (4,), [1, 1, 3]),
    ("ScatterND", 0, (4, 3), [[1], [-1], [1]]),
    ("ScatterND", 0, (2, 3, 2), [[1, 2], [0, -1], [1, 2]]),
    ("ScatterND", 0, (6,), [[5], [0], [-1]]),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("kind", [np.float32, np.int32])
@pytest.mark.parametrize(("name", "axis", "shape", "indices"), COMPUTED)
def test_computed_indices_say_where_updates_go(name, axis, shape, indices, kind, reduction):
    numbers = np.array(indices)
    depth = numbers.shape[-1]
    of = numbers.shape if name == "ScatterElements" else (*numbers.shape[:-1], *shape[depth:])
    x, updates = (RNG.integers(-9, 9, each).astype(kind) for each in (shape, of))
    how = {"axis": axis} if name == "ScatterElements" else {}
    inputs = {"x": x, "i": numbers, "u": updates}
    for device in ("reference", "litert", "onnxruntime", "openvino") if kind == np.float32 else ("reference",):
        check(model([node(name, "x i u", reduction=reduction, **how)], inputs, opset=18), inputs, device=device)


def test_computed_indices_say_where_truths_go():
    inputs = {"x": np.zeros((3, 2), bool), "i": np.array([[2, 0]]), "u": np.array([[True, True]])}
    check(model([node("ScatterElements", "x i u")], inputs), inputs)


@pytest.mark.parametrize("name", ["ScatterElements", "ScatterND"])
def test_a_computed_index_out_of_its_places_is_an_error_and_writes_nowhere(name):
    inputs = {"x": real(3), "i": np.array([1]), "u": real(1)}
    indices = "i" if name == "ScatterElements" else "v"
    nodes = [node("Unsqueeze", "i a", "v"), node(name, f"x {indices} u")]
    compiled = compile(load(model(nodes, inputs, {"a": ints(1)}).SerializeToString()), devices="reference")
    with pytest.raises(OperationFailed):
        compiled(inputs["x"], np.array([3]), inputs["u"])


@pytest.mark.parametrize("constant", [True, False])
def test_sums_of_64_bits_at_indices_are_refused(constant):
    """They may exceed 32 bits."""
    inputs, indices = {"x": np.array([1, 2]), "u": np.array([3])}, {"i": np.array([1])}
    given, known = (inputs, indices) if constant else (inputs | indices, {})
    for reduction in ("add", "mul"):
        made = model([node("ScatterElements", "x i u", reduction=reduction)], given, known, opset=18)
        refused(made, f"of INT64 with reduction '{reduction}'")


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("kind", [np.float32, np.int32])
@pytest.mark.parametrize("name", ["ScatterND", "ScatterElements"])
def test_updates_of_one_element_follow_one_another(name, kind, reduction):
    inputs = {"x": RNG.integers(-9, 9, (4, 3)).astype(kind), "u": RNG.integers(-9, 9, (5, 3)).astype(kind)}
    rows = np.array([1, 3, 1, -3, 0])
    indices = rows[:, None] if name == "ScatterND" else np.array([rows, rows[::-1], rows]).T
    check_nodes(node(name, "x i u", reduction=reduction), inputs, {"i": indices.astype(np.int64)}, opset=18)


def test_scattering_onto_one_element_has_an_end():
    inputs = {"x": real(2), "u": real(65)}
    made = model([node("ScatterElements", "x i u", reduction="add")], inputs, {"i": np.zeros(65, np.int64)}, opset=18)
    refused(made, "updates an element 65 times, must update it at most 64 times")


# ----------------------------------------------------------------------------------------------------- normalisations


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("shape", "axis"), [((3, 8), -1), ((2, 3, 4, 5), 2), ((2, 2, 3, 2, 5), -2), ((4,), 0)])
def test_the_root_of_the_mean_of_squares_is_that_of_the_definition(shape, axis, dtype):
    inputs, constants = {"x": real(*shape).astype(dtype)}, {"s": real(*shape[axis:]).astype(dtype)}
    made = model([node("RMSNormalization", "x s", axis=axis, epsilon=0.01)], inputs, constants, opset=23)
    (expected,) = ReferenceEvaluator(made).run(None, inputs)
    (found,) = by_nnhal(made, inputs)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 if dtype == np.float32 else 6e-3)


def test_a_scale_of_a_part_of_the_elements_is_repeated_in_a_root_mean_square_normalisation():
    inputs, constants = {"x": real(2, 3, 4)}, {"s": real(4)}
    made = model([node("RMSNormalization", "x s", axis=1)], inputs, constants, opset=23)
    (expected,) = ReferenceEvaluator(made).run(None, inputs)
    np.testing.assert_allclose(by_nnhal(made, inputs)[0], expected, rtol=0, atol=3e-6)


def test_the_boxes_that_a_detector_keeps_are_refused_with_the_way_around():
    inputs, limits = {"b": real(1, 6, 4), "s": real(1, 2, 6)}, {"n": np.int64([3]), "t": np.float32([0.5])}
    made = model([node("NonMaxSuppression", "b s n t")], inputs, limits, otherwise=TensorProto.INT64)
    refused(made, "NonMaxSuppression #0: has an output whose size depends on values.*export the detector without it")


def test_a_mask_may_be_as_long_as_a_cache_and_new_words_together():
    """No open model has one size for all open dimensions, so the sum is found by trying it."""
    nodes = [
        node("Concat", "past new", "keys", axis=1),
        node("Transpose", "keys", "turned", perm=[0, 2, 1]),
        node("MatMul", "new turned", "scores"),
        node("Shape", "keys", "count", start=1, end=2),
        node("Squeeze", "count", "all"),
        node("Range", "zero all one", "places"),
        node("Cast", "places", "real", to=1),
        node("Unsqueeze", "mask axes", "seen"),
        node("Add", "scores real", "moved"),
        node("MatMul", "moved seen", "y"),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "axes": np.array([2])}
    rng = np.random.default_rng(3)

    def inputs(past, new):
        shapes = {"past": (1, past, 4), "new": (1, new, 4), "mask": (1, past + new)}
        return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}

    opened = {"past": (1, "p", 4), "new": (1, 1, 4), "mask": (1, "m")}
    made = model(nodes, inputs(3, 1), constants, shapes=opened)
    loaded = load(made.SerializeToString(), shapes={"past": (1, 0, 4), "mask": (1, 0)})
    assert isinstance(loaded, OpenModel)
    with compile(loaded, devices=["reference"]) as compiled:
        for past in (1, 5, 6):
            given = inputs(past, 1)
            (wanted,) = by_onnxruntime(made, given)
            np.testing.assert_allclose(compiled(*given.values()), wanted, rtol=1e-5, atol=1e-6)
        with pytest.raises(NnhalError):
            compiled(*{**inputs(5, 1), "mask": np.zeros((1, 4), np.float32)}.values())
