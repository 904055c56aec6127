"""Quantised `.onnx` files: nodes with scales, and plain nodes between DequantizeLinear and QuantizeLinear."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nnhal import UnsupportedModel, load
from nnhal.base.codes import OperandType
from tests.frontends.cases import refused
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, check, check_nodes, model, node, operations

RNG = np.random.default_rng(5)
DEVICES = ["reference", "litert", "onnxruntime", "openvino"]
X, W, Y = 0.05, 0.02, 0.1  # scales


def bytes_of(kind, *shape):
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(kind)


def weights_of(kind, *shape):
    """Two products with bytes are 16 bits at most: ONNX Runtime, which tells what is right, holds no more without VNNI."""
    return (RNG.integers(-64, 64, shape) + 128 * (kind is np.uint8)).astype(kind)


def steps(scale, zero, kind):
    return np.array(scale, np.float32), np.array(zero, kind)


def named(names, *arrays):
    return dict(zip(names.split(), arrays, strict=True))


def layer_between(op, kind, of_weights, weights_shape, x_shape, *, channels=0, bias=True, relu=False, **attributes):
    """DequantizeLinear, a layer, QuantizeLinear; scales of the weights one, or one each."""
    units = channels or 1
    scales = np.array([W * (1 + n / 4) for n in range(units)], np.float32) if channels else np.array(W, np.float32)
    zero = 128 if of_weights is np.uint8 else 0
    constants = {
        "sx": np.array(X, np.float32), "zx": np.array(3, kind), "sw": scales,
        "zw": np.full(scales.shape, zero, of_weights), "sy": np.array(Y, np.float32), "zy": np.array(7, kind),
        "w": bytes_of(of_weights, *weights_shape),
    }  # fmt: skip
    nodes = [
        node("DequantizeLinear", "x sx zx", "xr"),
        node("DequantizeLinear", "w sw zw", "wr", axis=0),
    ]
    if bias:
        count = weights_shape[0]
        constants |= {"b": RNG.integers(-2000, 2000, count).astype(np.int32), "sb": (scales * np.float32(X))}
        constants["zb"] = np.zeros(scales.shape, np.int32)
        nodes.append(node("DequantizeLinear", "b sb zb", "br", axis=0))
    nodes.append(node(op, "xr wr br" if bias else "xr wr", "t", **attributes))
    last = "t"
    if relu:
        nodes.append(node("Relu", "t", "u"))
        last = "u"
    nodes.append(node("QuantizeLinear", f"{last} sy zy"))
    x = bytes_of(kind, *x_shape)
    return model(nodes, {"x": x}, constants), {"x": x}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("of_weights", [np.uint8, np.int8])
@pytest.mark.parametrize("channels", [0, 4])
@pytest.mark.parametrize("relu", [False, True])
def test_a_convolution_between_quantisers_is_one_quantised_convolution(kind, of_weights, channels, relu):
    made, inputs = layer_between("Conv", kind, of_weights, (4, 3, 3, 3), (1, 3, 6, 5), channels=channels, relu=relu)
    check(made, inputs, steps=1, becomes=["CONV_2D"])


def test_scales_and_zero_points_of_the_file_are_those_of_the_operands():
    made, _ = layer_between("Conv", np.uint8, np.int8, (4, 3, 3, 3), (1, 3, 6, 5), channels=4)
    imported = load(made.SerializeToString())
    main = imported.main
    x, y, w = (main.operands[i] for i in (main.inputs[0], main.outputs[0], main.operations[0].inputs[1]))
    assert (x.type, x.scale, x.zero_point) == (OperandType.TENSOR_QUANT8_ASYMM, float(np.float32(X)), 3)
    assert (y.type, y.scale, y.zero_point) == (OperandType.TENSOR_QUANT8_ASYMM, float(np.float32(Y)), 7)
    assert w.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    assert w.channel.scales == tuple(float(np.float32(W * (1 + n / 4))) for n in range(4))


@pytest.mark.parametrize("group", [3, 6])
def test_a_convolution_in_groups_is_quantised_too(group):
    made, inputs = layer_between("Conv", np.int8, np.int8, (6, 6 // group, 3, 3), (1, 6, 6, 5), group=group)
    check(made, inputs, steps=1, becomes=["DEPTHWISE_CONV_2D" if group == 6 else "GROUPED_CONV_2D"])


def test_padding_as_wide_as_the_filter_is_of_the_zero_point():
    made, inputs = layer_between("Conv", np.uint8, np.int8, (4, 3, 2, 2), (1, 3, 6, 5), pads=[2, 2, 2, 2])
    assert operations(made)[-1] == "CONV_2D"
    check(made, inputs, steps=1)


@pytest.mark.parametrize("of_weights", [np.uint8, np.int8])
def test_a_product_between_quantisers_is_one_quantised_layer(of_weights):
    check(*layer_between("Gemm", np.uint8, of_weights, (5, 8), (3, 8), transB=1), steps=1, becomes=["FULLY_CONNECTED"])


def three_steps():
    found = *steps(X, 3, np.uint8), *steps(W, 120, np.uint8), *steps(Y, 7, np.uint8)
    return named("sa za sb zb sy zy", *found)


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub"])
def test_arithmetic_between_quantisers_is_quantised(op):
    constants = three_steps()
    nodes = [
        node("DequantizeLinear", "a sa za", "ar"),
        node("DequantizeLinear", "b sb zb", "br"),
        node(op, "ar br", "t"),
        node("QuantizeLinear", "t sy zy"),
    ]
    inputs = {"a": bytes_of(np.uint8, 3, 4), "b": bytes_of(np.uint8, 3, 4)}
    check_nodes(nodes, inputs, constants, steps=1, becomes=[op.upper()])


@pytest.mark.parametrize(
    ("op", "extra", "expected"),
    [
        ("MaxPool", {"kernel_shape": [2, 2]}, "MAX_POOL_2D"),
        ("Transpose", {"perm": [0, 2, 3, 1]}, "TRANSPOSE"),
        ("Flatten", {}, "RESHAPE"),
        ("Relu", {}, "RELU"),
    ],
)
def test_what_only_moves_elements_moves_stored_ones(op, extra, expected):
    constants = named("s z", *steps(X, 3, np.uint8))
    nodes = [node("DequantizeLinear", "x s z", "r"), node(op, "r", "t", **extra), node("QuantizeLinear", "t s z")]
    check_nodes(nodes, {"x": bytes_of(np.uint8, 1, 2, 4, 4)}, constants, becomes=[expected])


def test_a_relu_behind_several_readers_leaves_the_layer_real():
    made, inputs = layer_between("Conv", np.uint8, np.int8, (4, 3, 3, 3), (1, 3, 6, 5))
    made.graph.node.append(node("Relu", "t", "z"))
    made.graph.output.append(made.graph.output[0])
    made.graph.output[1].CopyFrom(made.graph.output[0])
    made.graph.output[1].name, made.graph.output[1].type.tensor_type.elem_type = "z", 1
    assert "DEQUANTIZE" in operations(made)
    check(made, inputs, steps=1)


def test_other_steps_behind_a_pool_are_by_way_of_real_values():
    constants = {"s": np.array(X, np.float32), "z": np.array(3, np.uint8), "sy": np.array(Y, np.float32)}
    nodes = [
        node("DequantizeLinear", "x s z", "r"),
        node("GlobalAveragePool", "r", "t"),
        node("QuantizeLinear", "t sy z"),
    ]
    inputs = {"x": bytes_of(np.uint8, 1, 2, 4, 4)}
    check_nodes(nodes, inputs, constants, steps=1, becomes=["DEQUANTIZE", "MEAN", "QUANTIZE"])


def linear(op, inputs, constants, names, *, domain="", **attributes):
    return model([node(op, names, "y", domain, **attributes)], inputs, constants, otherwise=TensorProto.UINT8), inputs


def test_a_linear_convolution_is_one_quantised_convolution():
    x = bytes_of(np.uint8, 1, 3, 6, 6)
    constants = {
        "sx": np.array(X, np.float32), "zx": np.array(120, np.uint8), "w": weights_of(np.int8, 4, 3, 3, 3),
        "sw": np.full(4, W, np.float32), "zw": np.zeros(4, np.int8), "sy": np.array(Y, np.float32),
        "zy": np.array(100, np.uint8), "b": RNG.integers(-999, 999, 4).astype(np.int32),
    }  # fmt: skip
    made, inputs = linear("QLinearConv", {"x": x}, constants, "x sx zx w sw zw sy zy b", pads=[1, 1, 1, 1])
    check(made, inputs, steps=1, becomes=["CONV_2D"])


def test_a_linear_product_is_one_quantised_layer():
    x = bytes_of(np.uint8, 3, 8)
    constants = {
        "sx": np.array(X, np.float32), "zx": np.array(120, np.uint8), "w": bytes_of(np.uint8, 8, 5),
        "sw": np.array(W, np.float32), "zw": np.array(99, np.uint8), "sy": np.array(Y, np.float32),
        "zy": np.array(100, np.uint8),
    }  # fmt: skip
    check(*linear("QLinearMatMul", {"x": x}, constants, "x sx zx w sw zw sy zy"), steps=1, becomes=["FULLY_CONNECTED"])


def column_weights(kind, *shape, axis):
    """Weights with a scale and a zero point for each index along an axis."""
    units, zero = shape[axis], 128 * (kind is np.uint8)
    scales = (W * RNG.uniform(0.5, 1.5, units)).astype(np.float32)
    return {"w": weights_of(kind, *shape), "sw": scales, "zw": np.full(units, zero, kind)}


def gemm_of(kind, of_weights, constants, **attributes):
    """A QGemm of three rows of eight bytes, and its input."""
    found = *steps(X, 7, kind), *steps(Y, 9, kind)
    constants |= dict(zip(("sx", "zx", "sy", "zy"), found, strict=True))
    x = bytes_of(kind, *((8, 3) if attributes.get("transA") else (3, 8)))
    names = "x sx zx w sw zw b sy zy"
    gemm = node("QGemm", names, domain="com.microsoft", **attributes)
    of_result = TensorProto.INT8 if kind is np.int8 else TensorProto.UINT8
    return model([gemm], {"x": x}, constants, otherwise=of_result), {"x": x}


BIAS = {"a row": (5,), "a column": (3, 1), "a matrix": (3, 5)}


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])
def test_a_linear_gemm_has_a_scale_for_each_column(kinds, turned):
    shape = (5, 8) if turned else (8, 5)
    constants = column_weights(kinds[1], *shape, axis=1 - turned) | {"b": np.arange(-900, 900, 360, dtype=np.int32)}
    check(*gemm_of(*kinds, constants, transB=turned), steps=1)
    one = constants | {"sw": np.array(W, np.float32), "zw": constants["zw"][0]}
    made, inputs = gemm_of(*kinds, one, transB=turned)
    assert operations(made) == ["FULLY_CONNECTED"]
    check(made, inputs, steps=1)


@pytest.mark.parametrize("bias", BIAS)
@pytest.mark.parametrize("how", [{"alpha": 0.25}, {"transA": 1}], ids=lambda how: next(iter(how)))
def test_a_linear_gemm_scales_its_product_and_bias_and_turns_its_rows(how, bias):
    constants = column_weights(np.int8, 8, 5, axis=1) | {"b": RNG.integers(-2000, 2000, BIAS[bias]).astype(np.int32)}
    check(*gemm_of(np.uint8, np.int8, constants, **how), steps=1)


def test_a_linear_gemm_without_a_scale_of_its_output_gives_reals():
    constants = column_weights(np.int8, 8, 5, axis=1) | {"b": np.arange(5, dtype=np.int32) * 300}
    made, inputs = gemm_of(np.uint8, np.int8, constants)
    del made.graph.node[0].input[7:]
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    check(made, inputs)


def product_of(inputs, constants):
    found = *steps(X, 7, np.uint8), *steps(Y, 99, np.uint8)
    constants |= dict(zip(("sx", "zx", "sy", "zy"), found, strict=True))
    return linear("QLinearMatMul", inputs, constants, "x sx zx w sw zw sy zy")


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_linear_product_of_three_dimensions_has_a_scale_for_each_column(kind):
    check(*product_of({"x": bytes_of(np.uint8, 2, 3, 8)}, column_weights(kind, 8, 5, axis=1)), steps=1)


def test_a_linear_product_with_a_computed_matrix_of_fewer_dimensions():
    inputs = {"x": bytes_of(np.uint8, 2, 3, 8), "w": weights_of(np.uint8, 8, 5)}
    constants = dict(zip(("sw", "zw"), steps(W, 120, np.uint8), strict=True))
    check(*product_of(inputs, constants), steps=1)


MOVED = {
    "a constant": ("Gather", "k i", "i"),
    "an input by another": ("Gather", "x i", "x i"),
    "an input": ("Reshape", "x d", "x"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MOVED)
def test_stored_numbers_that_are_moved_first_have_the_scale_of_their_reader(name, device):
    """As the quantiser writes an embedding. CAST ignores scales: the stored numbers remain."""
    op, names, given = MOVED[name]
    arrays = {"k": bytes_of(np.uint8, 9, 4), "x": bytes_of(np.uint8, 9, 4), "i": np.array([3, 0, 8])}
    constants = arrays | {"d": np.array([6, 6]), "w": weights_of(np.int8, 6 if op == "Reshape" else 4, 5)}
    for number, scale, kind in (("x", X, np.uint8), ("w", W, np.int8), ("y", Y, np.uint8)):
        constants |= {f"s{number}": np.array(scale, np.float32), f"z{number}": np.array(7 * (kind is np.uint8), kind)}
    inputs = {key: constants.pop(key) for key in given.split()}
    nodes = [node(op, names, "g"), node("QLinearMatMul", "g sx zx w sw zw sy zy")]
    made = model(nodes, inputs, constants, otherwise=TensorProto.UINT8)
    assert operations(made)[-2:] == ["CAST", "FULLY_CONNECTED"]
    check(made, inputs, steps=1, device=device)
    made = model([node(op, names, "g"), node("DequantizeLinear", "g sx zx")], inputs, constants)
    assert operations(made)[-2:] == ["CAST", "DEQUANTIZE"]
    check(made, inputs, tolerance=0, device=device)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_linear_arithmetic_is_quantised(op):
    inputs = {"a": bytes_of(np.uint8, 3, 4), "b": bytes_of(np.uint8, 3, 4)}
    constants = three_steps()
    made, inputs = linear(op, inputs, constants, "a sa za b sb zb sy zy", domain="com.microsoft")
    check(made, inputs, steps=1, becomes=[op.removeprefix("QLinear").upper()])


@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_linear_functions_round_once(op):
    inputs = {"x": bytes_of(np.uint8, 3, 40)}
    constants = named("sx zx sy zy", *steps(X, 100, np.uint8), *steps(1 / 256, 0, np.uint8))
    check(*linear(op, inputs, constants, "x sx zx sy zy", domain="com.microsoft"), steps=1)


def test_plain_bytes_that_are_dequantised_twice_in_two_ways_keep_both_meanings():
    constants = {"s": np.array(X, np.float32), "z": np.array(3, np.uint8), "s2": np.array(W, np.float32)}
    nodes = [node("DequantizeLinear", "x s z", "a"), node("DequantizeLinear", "x s2 z", "b"), node("Add", "a b")]
    check_nodes(nodes, {"x": bytes_of(np.uint8, 3, 4)}, constants)


NUMBERS = [  # nodes that read the stored numbers of `a` as they are, beside a constant
    ("Max", "a k", {"k": np.array([20], np.uint8)}),
    ("Equal", "a k", {"k": np.array([5], np.uint8)}),
    ("Concat", "a k", {"k": np.array([20], np.uint8)}),
    ("Where", "c a k", {"k": np.array([20], np.uint8), "c": np.arange(9) < 4}),
    ("Clip", "a k l", {"k": np.array(4, np.uint8), "l": np.array(8, np.uint8)}),
    ("ScatterND", "a i k", {"k": np.array([77], np.uint8), "i": np.array([[3]])}),
    ("Pad", "a p", {"p": np.array([1, 2])}),
    ("Pad", "a p k", {"p": np.array([1, 2]), "k": np.array(9, np.uint8)}),
]


@pytest.mark.parametrize(("op", "names", "constants"), NUMBERS, ids=lambda value: value if type(value) is str else "")
def test_a_node_that_reads_stored_numbers_takes_a_constant_beside_them_as_numbers_too(op, names, constants):
    given = named("s z", *steps(0.5, 5, np.uint8))
    how = {"axis": 0} if op == "Concat" else {}
    inputs = {"x": (RNG.standard_normal(9) * 2).astype(np.float32)}
    check_nodes([node("QuantizeLinear", "x s z", "a"), node(op, names, **how)], inputs, {**given, **constants})


@pytest.mark.parametrize("op", ["Max", "Less", "Concat"])
def test_numbers_that_are_stored_in_two_ways_are_not_compared_or_joined(op):
    constants = named("s z s2 z2", *steps(X, 3, np.uint8), *steps(Y, 9, np.uint8))
    nodes = [node("QuantizeLinear", "x s z", "a"), node("QuantizeLinear", "x s2 z2", "b")]
    nodes.append(node(op, "a b", **({"axis": 0} if op == "Concat" else {})))
    refused(model(nodes, {"x": np.zeros(4, np.float32)}, constants), "quantised inputs with different scales")


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("how", [{"pads": [1, 1, 1, 1]}, {"pads": [2, 2, 2, 2]}, {"strides": [2, 2], "ceil_mode": 1}])
def test_a_pool_of_stored_numbers_takes_the_greatest(kind, how):
    inputs = {"x": bytes_of(kind, 1, 2, 5, 5)}
    size = 3 if how.get("pads") == [2, 2, 2, 2] else 2
    check(model([node("MaxPool", "x", kernel_shape=[size, size], **how)], inputs), inputs)


def test_a_pool_between_linear_convolutions_keeps_their_steps():
    constants = {"w": bytes_of(np.int8, 4, 4, 1, 1)}
    constants |= named("sx zx sw zw", *steps(X, 3, np.uint8), *steps(W, 0, np.int8))
    nodes = [
        node("QLinearConv", "x sx zx w sw zw sx zx", "a"),
        node("MaxPool", "a", "b", kernel_shape=[2, 2], strides=[2, 2]),
        node("QLinearConv", "b sx zx w sw zw sx zx"),
    ]
    inputs = {"x": bytes_of(np.uint8, 1, 4, 6, 6)}
    made = model(nodes, inputs, constants)
    assert operations(made) == ["CONV_2D", "MAX_POOL_2D", "CONV_2D"]


@pytest.mark.parametrize("columns", [6, 7])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_linear_product_takes_a_scale_for_each_column(columns, kind):
    x, scales = bytes_of(np.uint8, 3, 6), RNG.uniform(0.001, 0.01, columns).astype(np.float32)
    constants = {
        "w": weights_of(kind, 6, columns),
        "sw": scales,
        "zw": np.full(columns, 128 * (kind is np.uint8), kind),
    }
    constants |= named("sx zx sy zy", *steps(X, 3, np.uint8), *steps(0.03, 9, np.uint8))
    check(*linear("QLinearMatMul", {"x": x}, constants, "x sx zx w sw zw sy zy"), steps=1)


def test_the_type_that_a_quantiser_without_zero_point_names_is_the_one_it_stores():
    nodes = [node("QuantizeLinear", "x s", "a", output_dtype=TensorProto.INT8), node("DequantizeLinear", "a s")]
    inputs = {"x": np.array([-30.2, -1.1, 0.3, 20.4], np.float32)}
    check(model(nodes, inputs, {"s": np.array(0.5, np.float32)}, opset=21), inputs)


def test_weights_that_the_file_quantises_itself_are_quantised_at_import():
    w = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
    constants = {"w": w, "sw": np.array([0.02, 0.03, 0.04, 0.05], np.float32), "zw": np.zeros(4, np.int8)}
    constants |= named("sx zx sy zy", *steps(X, 3, np.uint8), *steps(Y, 7, np.uint8))
    nodes = [
        node("DequantizeLinear", "x sx zx", "xr"),
        node("QuantizeLinear", "w sw zw", "wq", axis=0),
        node("DequantizeLinear", "wq sw zw", "wr", axis=0),
        node("Conv", "xr wr", "t"),
        node("QuantizeLinear", "t sy zy"),
    ]
    check_nodes(nodes, {"x": bytes_of(np.uint8, 1, 3, 6, 5)}, constants, steps=1, becomes=["CONV_2D"])


def test_a_function_of_the_files_own_that_is_called_relu_is_no_relu():
    function = onnx.helper.make_function(
        "mine", "Relu", ["a"], ["b"], [node("Neg", "a", "b")], [onnx.helper.make_opsetid("", 17)]
    )
    nodes = [node("DequantizeLinear", "x s z", "r"), node("Add", "r r", "a"), node("Relu", "a", "b", "mine")]
    nodes.append(node("QuantizeLinear", "b s z"))
    inputs = {"x": bytes_of(np.uint8, 3, 4)}
    constants = named("s z", *steps(X, 128, np.uint8))
    made = model(nodes, inputs, constants, functions=[function], otherwise=TensorProto.UINT8)
    check(made, inputs, steps=1)


def test_bytes_that_another_node_reads_under_another_name_are_not_taken_as_stored_in_steps():
    constants = named("s z", *steps(X, 3, np.uint8))
    constants |= {"shape": np.array([3, 4]), "k": np.array([99], np.uint8)}
    nodes = [node("Reshape", "x shape", "t"), node("Less", "t k", "l"), node("DequantizeLinear", "t s z", "r")]
    check_nodes(nodes, {"x": bytes_of(np.uint8, 3, 4)}, constants, "l r")


@pytest.mark.parametrize("shared", [False, True])
def test_values_of_many_dimensions_are_quantised_and_back(shared):
    constants = named("s z s2", *steps(X, 3, np.uint8), np.array(Y, np.float32))
    nodes = [node("DequantizeLinear", "x s z", "r"), node("Abs", "r", "t"), node("QuantizeLinear", "t s2 z")]
    if shared:
        nodes += [node("DequantizeLinear", "x s2 z", "q"), node("Neg", "q", "u")]
    check_nodes(nodes, {"x": bytes_of(np.uint8, 2, 1, 3, 2, 4)}, constants, "y u" if shared else "y", steps=1)


def test_the_sum_of_two_stored_numbers_is_a_number():
    constants = named("s z", *steps(X, 3, np.uint8))
    nodes = [node("DequantizeLinear", "x s z", "r"), node("Add", "r r", "t"), node("QuantizeLinear", "t s z")]
    inputs = {"x": np.array(40, np.uint8)}
    check(model(nodes, inputs, constants, otherwise=TensorProto.UINT8), inputs, steps=1)


def test_the_linear_sum_of_two_numbers_is_a_number():
    inputs = {"a": np.array(40, np.uint8), "b": np.array(50, np.uint8)}
    check(*linear("QLinearAdd", inputs, three_steps(), "a sa za b sb zb sy zy", domain="com.microsoft"), steps=1)


def test_an_input_is_added_to_itself_as_it_is_stored():
    inputs = {"a": bytes_of(np.uint8, 3, 4)}
    constants = {name: value for name, value in three_steps().items() if "b" not in name}
    made, inputs = linear("QLinearAdd", inputs, constants, "a sa za a sa za sy zy", domain="com.microsoft")
    check(made, inputs, steps=1, becomes=["ADD"])


@pytest.mark.parametrize("kept", ["input", "output"])
def test_a_stored_number_that_is_seen_as_a_row_of_one_stays_a_number(kept):
    constants = named("s z", *steps(X, 3, np.uint8)) | {"one": np.array([1])}
    nodes = [node("DequantizeLinear", "q s z", "r"), node("Reshape", "r one"), node("Neg", "r", "n")]
    inputs = {"q": np.array(40, np.uint8)}
    if kept == "output":
        nodes.insert(0, node("QuantizeLinear", "x s z", "q"))
        inputs = {"x": np.array(1.5, np.float32)}
    check_nodes(nodes, inputs, constants, "y q" if kept == "output" else "y n", steps=1)


# ------------------------------------------------------------------------------------- scales that are found at execution


def dynamic(integer, x, w, *, w_zero, w_scale, **attributes):
    """What onnxruntime.quantization.quantize_dynamic makes of a layer."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "q sx zx"), node(integer, "q w zx zw", "sums", **attributes),
        node("Cast", "sums", "real", to=TensorProto.FLOAT), node("Mul", "sx sw", "s"), node("Mul", "real s"),
    ]  # fmt: skip
    return model(nodes, {"x": x}, {"w": w, "zw": np.array(w_zero, w.dtype), "sw": np.array(w_scale, np.float32)})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("shape", [(7, 30), (2, 5, 30), (2, 3, 4, 30)])
def test_a_product_of_integers_is_that_of_what_is_above_their_zero_points(device, kind, shape):
    inputs = {"x": RNG.standard_normal(shape).astype(np.float32)}
    zero = 3 + 128 * (kind is np.uint8)
    check(
        dynamic("MatMulInteger", inputs["x"], weights_of(kind, 30, 6), w_zero=zero, w_scale=W),
        inputs, device=device, tolerance=2e-6,
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_each_column_has_a_zero_point_of_its_own(device):
    inputs = {"x": RNG.standard_normal((4, 30)).astype(np.float32)}
    made = dynamic("MatMulInteger", inputs["x"], weights_of(np.int8, 30, 3), w_zero=[0, 2, -3], w_scale=[W, 2 * W, 0.5])
    check(made, inputs, device=device, tolerance=2e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_the_zero_point_pads_a_convolution_of_integers(device):
    """All above 0.5, so that what pads is far from the least integer of the picture."""
    inputs = {"x": (RNG.random((1, 3, 9, 8)) + 0.5).astype(np.float32)}
    weights = weights_of(np.uint8, 4, 3, 3, 3)
    made = dynamic("ConvInteger", inputs["x"], weights, w_zero=120, w_scale=W, pads=[1, 1, 1, 1], strides=[2, 1])
    check(made, inputs, device=device, tolerance=2e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_integers_and_their_sums_are_moved_and_added_to(device):
    """A bias of 32 bits that is computed, as older quantisers write it."""
    inputs = {"x": RNG.standard_normal((2, 3, 8)).astype(np.float32)}
    constants = {
        "w": weights_of(np.int8, 8, 4), "to": np.array([3, 2, 8]), "b": np.float32([1.5, -2.5, 0.5, 0]),
        "k": np.array([[7], [-9], [5]], np.int32),
    }  # fmt: skip
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"), node("Reshape", "q to", "r"), node("MatMulInteger", "r w z", "m"),
        node("Transpose", "m", "t", perm=[1, 0, 2]), node("Div", "b s", "bs"), node("Floor", "bs", "bf"),
        node("Cast", "bf", "bi", to=TensorProto.INT32), node("Add", "t bi", "tb"), node("Add", "tb k", "tk"),
        node("Mul", "tk tb", "p"), node("Cast", "p", to=TensorProto.FLOAT),
    ]  # fmt: skip
    check(model(nodes, inputs, constants), inputs, device=device, tolerance=2e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_two_computed_matrices_of_integers(device):
    inputs = {
        "x": RNG.standard_normal((2, 4, 5)).astype(np.float32),
        "z": RNG.standard_normal((2, 5, 3)).astype(np.float32),
    }
    nodes = [
        node("DynamicQuantizeLinear", "x", "qx sx zx"), node("DynamicQuantizeLinear", "z", "qz sz zz"),
        node("MatMulInteger", "qx qz zx zz", "sums"), node("Cast", "sums", "real", to=TensorProto.FLOAT),
        node("Mul", "sx sz", "s"), node("Mul", "real s"),
    ]  # fmt: skip
    check(model(nodes, inputs), inputs, device=device, tolerance=2e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "values", [[0, 0, 0], [1, 2, 3], [-1, -2, -3], [-1, 0.5, 4], [1e-30, 2e-30, -1e-30], [-3e38, 0, 0]], ids=str
)
@pytest.mark.parametrize("device", DEVICES)
def test_a_scale_is_that_of_the_range_with_0_in_it(values, device):
    """The integers and their zero point as they show when they are multiplied by 1."""
    inputs = {"x": np.float32([values])}
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"), node("MatMulInteger", "q one", "m"),
        node("Cast", "m", "y", to=TensorProto.FLOAT), node("MatMulInteger", "q one z", "c"),
        node("Cast", "c", "v", to=TensorProto.FLOAT),
    ]  # fmt: skip
    check(model(nodes, inputs, {"one": np.eye(3, dtype=np.uint8)}, "y v s"), inputs, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_integers_of_a_computed_scale_are_outputs_and_read_by_other_nodes(device):
    inputs = {"x": RNG.standard_normal((2, 3, 4)).astype(np.float32)}
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"), node("Cast", "q", "i", to=TensorProto.INT32),
        node("Mul", "i i", "y"),
    ]  # fmt: skip
    check(model(nodes, inputs, {}, "y q s z"), inputs, device=device, tolerance=1e-6)


SUMS = {
    "output": [node("Identity", "m", "y")],
    "with a bias": [node("Add", "m b", "y")],
    "product": [node("Mul", "m b", "t"), node("Transpose", "t", "y")],
    "sum": [node("ReduceSum", "m", "y", keepdims=0)],
    "ReLU": [node("Relu", "m", "y")],
    "64 bits": [node("Cast", "m", "t", to=TensorProto.INT64), node("Mul", "t h", "y")],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_products_that_float32_has_exactly_are_integers(name, device):
    inputs = {"x": RNG.integers(0, 256, (2, 30)).astype(np.uint8)}
    constants = {
        "w": weights_of(np.uint8, 30, 4),
        "z": np.uint8(120),
        "b": np.int32([3, -2, 7, 5]),
        "h": np.int64([100]),
    }
    check_nodes([node("MatMulInteger", "x w z", "m"), *SUMS[name]], inputs, constants, "y m", opset=14, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_an_inner_graph_reads_sums_of_the_enclosing_one(device):
    inputs = {"x": RNG.integers(0, 256, (2, 30)).astype(np.uint8), "c": np.array(True)}
    branches = [
        helper.make_graph(made, f"g{n}", [], [helper.make_tensor_value_info(f"y{n}", TensorProto.INT32, [2, 4])])
        for n, made in enumerate(([node("Relu", "m", "y0")], [node("Add", "m m", "y1")]))
    ]
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    made = model([node("MatMulInteger", "x w", "m"), choice], inputs, {"w": weights_of(np.uint8, 30, 4)}, opset=14)
    for chosen in (True, False):
        check(made, inputs | {"c": np.array(chosen)}, device=device)


@pytest.mark.parametrize(
    ("count", "weights", "most"),
    [
        (258, 255, 0),  # 258 * 255 * 255 = 16,776,450; 2**24 = 16,777,216
        (259, 255, 16_841_475),
        (259, None, 16_841_475),
        (400, 1, 0),
    ],
)
def test_sums_of_products_beyond_float32_are_refused_with_their_limit(count, weights, most):
    inputs = {"x": np.ones((1, count), np.uint8)}
    w = {"w": np.full((count, 2), weights or 1, np.uint8)}
    made = model([node("MatMulInteger", "x w")], inputs | ({} if weights else w), w if weights else {})
    if not most:
        check(made, inputs)
        return
    why = f"output 'y': has sums of products in INT32, .*: they may reach {most}, must be at most 16777216, .* cast to FLOAT"
    refused(made, why)
    made.graph.node.append(node("Relu", "y", "z"))
    made.graph.output[0].name = "z"
    refused(made, f"Relu #1: input 0 has sums of products .* may reach {most}, ")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_an_lstm_quantises_its_state_at_each_step(device, direction):
    """Against ONNX Runtime. Scales and zero points for a direction; the tests below have those for each column."""
    check(*quantised_lstm(direction), device=device, tolerance=5e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", DEVICES)
def test_an_lstm_has_scales_for_columns_peepholes_and_states(device):
    check(*quantised_lstm("bidirectional", columns=True, states=True, peepholes=True), device=device, tolerance=5e-6)


def test_an_lstm_that_quantises_its_input_has_no_shorter_sequences():
    """Their rest belongs to the range over which the input is quantised."""
    made, _ = quantised_lstm("forward")
    made.graph.node[0].input[4] = "l"
    made.graph.initializer.append(numpy_helper.from_array(np.int32([2, 2]), "l"))
    with pytest.raises(UnsupportedModel, match="DynamicQuantizeLSTM #0: sequence_lens is 2, must be 3"):
        load(made.SerializeToString())


def quantised_lstm(direction, *, columns=False, states=False, peepholes=False):
    """A model of one DynamicQuantizeLSTM: three steps, two sequences, and its inputs."""
    count, size, units = 1 + (direction == "bidirectional"), 6, 5
    rng = np.random.default_rng(7)
    inputs = {"x": rng.standard_normal((3, 2, size)).astype(np.float32)}
    if states:
        inputs |= {name: rng.uniform(-1, 1, (count, 2, units)).astype(np.float32) for name in ("h", "c")}
    shape = (count, 4 * units) if columns else (count,)
    kind = np.int8 if columns else np.uint8
    # ONNX Runtime adds two products of int8 weights in 16 bits where the processor has no better way: 2 * 255 * 63 fits.
    most = 64 if columns else 100
    constants = {
        "w": rng.integers(0, most, (count, size, 4 * units)).astype(kind),
        "r": rng.integers(0, most, (count, units, 4 * units)).astype(kind),
        "b": rng.standard_normal((count, 8 * units)).astype(np.float32) / 4,
        "ws": rng.uniform(0.005, 0.02, shape).astype(np.float32), "wz": np.full(shape, 0 if columns else 47, kind),
        "rs": rng.uniform(0.005, 0.02, shape).astype(np.float32), "rz": np.full(shape, 0 if columns else 53, kind),
    }  # fmt: skip
    if peepholes:
        constants["p"] = rng.standard_normal((count, 3 * units)).astype(np.float32)
    given = f"x w r b - {'h c' if states else '- -'} {'p' if peepholes else '-'} ws wz rs rz"
    attributes = {"hidden_size": units, "direction": direction}
    lstm = node("DynamicQuantizeLSTM", given, "y yh yc", domain="com.microsoft", **attributes)
    return model([lstm], inputs, constants, "y yh yc", infer=False), inputs


@pytest.mark.parametrize("dims", [(9,), (5, 4, 6)])
@pytest.mark.parametrize("scales", [1, 5])
def test_a_quantised_convolution_of_rows_and_of_volumes(dims, scales):
    rng = np.random.default_rng(4)
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "w": rng.integers(-90, 90, (5, 3, *[2] * len(dims))).astype(np.int8),
        "ws": np.linspace(0.01, 0.02, scales, dtype=np.float32), "wz": np.zeros(scales, np.int8),
        "ys": np.float32(0.05), "yz": np.uint8(128), "b": rng.integers(-900, 900, 5).astype(np.int32),
    }  # fmt: skip
    inputs = {"x": rng.integers(0, 255, (2, 3, *dims)).astype(np.uint8)}
    nodes = [node("QLinearConv", "x xs xz w ws wz ys yz b", strides=[2] * len(dims))]
    check(model(nodes, inputs, constants, otherwise=TensorProto.UINT8), inputs, steps=1)


HALVES = np.float32(
    [0.5, 1.5, 2.5, -0.5, -1.5, 7e4, -7e4, np.inf, -np.inf, 3.2, 0, 32766.5, 32767.5, -32768.5, 12345.5]
)


def of_16_bits(domain, kind, zero, nodes=(), between=()):
    """A model that quantises and dequantises before and behind nodes. between: nodes on the stored numbers."""
    constants = {"s": np.float32(0.25), "z": np.array(zero, kind), "w": RNG.integers(-99, 99, (3, 3)).astype(np.int16)}
    constants |= {"t": np.float32(0.5), "k": np.int16(0), "shape": np.int64([3, 5])}
    made = [
        node("QuantizeLinear", "x s z", "q", domain),
        *(between or [node("Identity", "q", "m")]),
        node("DequantizeLinear", "m s z", "a", domain),
        *nodes,
        node("QuantizeLinear", f"{'b' if nodes else 'a'} s z", "r", domain),
        node("DequantizeLinear", "r s z", "y", domain),
    ]
    return made, constants


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
@pytest.mark.parametrize(
    ("domain", "opset", "kind", "zero"),
    [
        ("", 21, np.int16, 0),
        ("", 21, np.int16, -9),
        ("", 21, np.uint16, 32768),
        ("com.microsoft", 17, np.int16, 0),
        ("com.microsoft", 17, np.uint16, 9),
    ],
)
def test_activations_of_16_bits_are_those_of_onnx_runtime(domain, opset, kind, zero, device):
    inputs = {"x": (HALVES * 0.25).reshape(5, 3)}
    weights = [node("DequantizeLinear", "w t k", "v", domain), node("MatMul", "a v", "b")]
    moved = [node("Reshape", "q shape", "n"), node("Transpose", "n", "m")]
    for nodes, between in (([], []), (weights, []), ([], moved)):
        made, constants = of_16_bits(domain, kind, zero, nodes, between)
        found = by_nnhal(model(made, inputs, constants, opset=opset), inputs, device)[0]
        np.testing.assert_array_equal(found, by_onnxruntime(model(made, inputs, constants, opset=opset), inputs)[0])


def test_activations_of_16_bits_have_the_type_that_the_quantiser_names():
    inputs, constants = {"x": HALVES.reshape(5, 3)}, {"s": np.float32(0.5)}
    nodes = [node("QuantizeLinear", "x s", "q", output_dtype=TensorProto.INT16), node("DequantizeLinear", "q s")]
    made = model(nodes, inputs, constants, opset=21)
    np.testing.assert_array_equal(by_nnhal(made, inputs)[0], by_onnxruntime(made, inputs)[0])


def test_numbers_of_16_bits_are_no_outputs_and_keep_their_type():
    made, constants = of_16_bits("", np.int16, 0)
    refused(model(made[:1], {"x": HALVES}, constants, "q", 21), "output 'q': is INT16, which NNAPI has no type for")
    made[2] = node("DequantizeLinear", "m s u", "a")
    other = model(made, {"x": HALVES}, constants | {"u": np.uint16(0)}, opset=21, infer=False)
    refused(other, "is INT16 and has a zero point of UINT16, must be of the same type")
