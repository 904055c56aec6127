"""TFLite models as the litert device writes them, read with the published schema; where numbers have no more room."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import DeviceType, OperandType
from nnhal.base.operands import ChannelQuant, Value
from nnhal.drivers.kit import Refused
from tests.models import make_model

litert = pytest.importorskip("nnhal.drivers.litert")
pytest.importorskip("ai_edge_litert")

from ai_edge_litert import schema_py_generated as tfl  # noqa: E402, TID251

from nnhal.drivers.litert import blocks, sums  # noqa: E402
from nnhal.drivers.litert.flatbuffer import FlatbufferWriter  # noqa: E402
from nnhal.drivers.litert.graph import Graph, require_scales  # noqa: E402
from nnhal.drivers.litert.limits import require_32_bits  # noqa: E402
from nnhal.drivers.litert.lowering import lower  # noqa: E402

Q8, Q8S = "TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED"


def read(content: bytes) -> Any:
    """A file as the schema's own classes have it."""
    assert tfl.Model.ModelBufferHasIdentifier(content, 0)
    return tfl.ModelT.InitFromObj(tfl.Model.GetRootAs(content, 0))


def written() -> tuple[Any, bytes]:
    """A model of four tensors and two operators."""
    w = FlatbufferWriter()
    x = w.tensor("INT8", (2, None, 3), (0.5,), -7, name="in")
    weights = w.tensor("INT8", (2, 3), (0.25, 0.5, 1.0), axis=1, data=np.arange(6, dtype=np.int8))
    state, y = w.tensor("FLOAT32", (3,), variable=True), w.tensor("INT16", None)
    w.operator("CONV_2D", [x, weights, -1], [y], "Conv2D", strideW=3, padding=1)
    w.operator("CUMSUM", [y], [state])
    w.operator("CONV_2D", [x, weights, -1], [y])
    content = bytes(w.finish([x], [y, state]))
    return read(content), content


def test_a_model_is_of_the_published_schema_and_version():
    model, _ = written()
    (graph,) = model.subgraphs
    assert model.version == 3
    assert (graph.inputs.tolist(), graph.outputs.tolist()) == ([0], [3, 2])


def test_an_operators_code_is_written_once_and_old_readers_see_that_it_is_new():
    """Codes from 127 on stand in a field of their own, where the old one says 127."""
    model, _ = written()
    codes = [(c.builtinCode, c.deprecatedBuiltinCode, c.version) for c in model.operatorCodes]
    assert codes == [(tfl.BuiltinOperator.CONV_2D, 3, 1), (tfl.BuiltinOperator.CUMSUM, 127, 1)]
    assert [o.opcodeIndex for o in model.subgraphs[0].operators] == [0, 1, 0]


def test_operators_have_their_tensors_and_options():
    first, second, third = written()[0].subgraphs[0].operators
    assert (first.inputs.tolist(), first.outputs.tolist()) == ([0, 1, -1], [3])
    assert first.builtinOptionsType == tfl.BuiltinOptions.Conv2DOptions
    assert (first.builtinOptions.strideW, first.builtinOptions.strideH, first.builtinOptions.padding) == (3, 0, 1)
    assert (second.inputs.tolist(), second.outputs.tolist(), second.builtinOptions) == ([3], [2], None)
    assert third.builtinOptions is None


def test_tensors_have_their_shape_type_name_and_quantisation():
    model, _ = written()
    x, weights, state, y = model.subgraphs[0].tensors
    assert [t.shape.tolist() for t in (x, weights, state)] == [[2, 0, 3], [2, 3], [3]]
    assert len(y.shape) == 0
    assert [t.type for t in (x, weights, state, y)] == [9, 9, 0, 7]  # INT8, INT8, FLOAT32, INT16
    assert [t.name for t in (x, weights, state, y)] == [b"in", None, None, None]
    assert [t.isVariable for t in (x, weights, state, y)] == [False, False, True, False]
    quant = x.quantization
    assert (quant.scale.tolist(), quant.zeroPoint.tolist(), quant.quantizedDimension) == ([0.5], [-7], 0)
    quant = weights.quantization
    assert (quant.scale.tolist(), quant.zeroPoint.tolist()) == ([0.25, 0.5, 1], [0, 0, 0])
    assert quant.quantizedDimension == 1 and state.quantization is None and y.quantization is None


def test_constants_lie_behind_the_flatbuffer_at_offsets_from_its_start():
    model, content = written()
    tensors = model.subgraphs[0].tensors
    assert [t.buffer for t in tensors] == [0, 1, 0, 0]
    empty, weights = model.buffers
    assert (empty.offset, empty.size) == (0, 0) and empty.data is None
    assert weights.size == 6 and content[weights.offset : weights.offset + 6] == bytes(range(6))
    assert weights.offset % 16 == 0 and len(model.buffers) == 2


def test_an_option_that_the_schema_lacks_is_an_error_that_names_it():
    with pytest.raises(AttributeError, match="Conv2DOptions has no field stride"):
        FlatbufferWriter().operator("CONV_2D", [0], [0], "Conv2D", stride=1)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("LSTM", {"fusedActivationFunction": 4, "cellClip": 0.5, "projClip": -2.0, "kernelType": 1}),
        ("BidirectionalSequenceLSTM", {"timeMajor": False, "mergeOutputs": True, "projClip": 0.25}),
        ("BidirectionalSequenceLSTM", {"timeMajor": True}),  # the default
        ("Reshape", {"newShape": [3, -1, 2]}),
        ("ResizeBilinear", {"halfPixelCenters": True}),
        ("Random", {"seed": -(1 << 40), "seed2": 5}),
        ("Bucketize", {"boundaries": [-0.5, 0.25, 8.0]}),
        ("Conv2D", {"dilationWFactor": 1, "dilationHFactor": 3, "strideW": np.int64(2)}),
        ("BatchMatMul", {"adjX": np.True_, "adjY": np.False_}),
    ],
)
def test_options_read_as_they_were_given_and_the_others_have_their_defaults(kind, given):
    w = FlatbufferWriter()
    x = w.tensor("FLOAT32", (1,))
    w.operator("CUSTOM", [x], [x], kind, **given)
    (operator,) = read(bytes(w.finish([x], [x]))).subgraphs[0].operators
    assert operator.builtinOptionsType == getattr(tfl.BuiltinOptions, f"{kind}Options")
    wanted = getattr(tfl, f"{kind}OptionsT")()
    for name, value in given.items():
        setattr(wanted, name, value)
    found = {
        name: value if np.ndim(value) == 0 else list(value) for name, value in vars(operator.builtinOptions).items()
    }
    assert found == vars(wanted)


def test_options_that_are_all_defaults_are_a_table_without_fields():
    w = FlatbufferWriter()
    x = w.tensor("FLOAT32", (1,))
    w.operator("CONV_2D", [x], [x], "Conv2D", dilationWFactor=1, strideW=0)
    table = tfl.Model.GetRootAs(bytes(w.finish([x], [x]))).Subgraphs(0).Operators(0).BuiltinOptions()
    assert [table.Offset(4 + 2 * n) for n in range(7)] == [0] * 7


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_blocks_of_any_length_lie_one_behind_the_other(count):
    """Read by the definition: an offset is counted from where it stands; a vector begins with its length."""
    names = ["x" * n for n in range(count)]
    content = blocks.file(blocks.table("1*", blocks.tables([named(name) for name in names])), b"TEST")
    assert content[4:8] == b"TEST"
    at = field(content, to(content, 0), 1)
    vector = to(content, at)
    assert whole(content, vector) == count
    for n, name in enumerate(names):
        table = to(content, vector + 4 + 4 * n)
        text = to(content, field(content, table, 0))
        assert content[text + 4 : text + 4 + whole(content, text) + 1] == name.encode() + b"\0"
        place = field(content, table, 2)
        assert int.from_bytes(content[place : place + 8], "little") == 7 << 40 and place % 8 == 0
        numbers = to(content, field(content, table, 3))
        assert (numbers + 4) % 8 == 0 and np.frombuffer(content, "<i8", 2, numbers + 4).tolist() == [-1, n]


def named(name: str) -> blocks.Block:
    return blocks.table("0* 2Q 3*", blocks.text(name), 7 << 40, blocks.vector("q", [-1, len(name)]))


def whole(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "little")


def to(content: bytes, at: int) -> int:
    assert at % 4 == 0
    return at + whole(content, at)


def field(content: bytes, table: int, number: int) -> int:
    """Where a field of a table stands: the table begins with the way back to the list of its fields."""
    listed = table - int.from_bytes(content[table : table + 4], "little", signed=True)
    size, length = (int.from_bytes(content[listed + n : listed + n + 2], "little") for n in (0, 2))
    assert 4 + 2 * number < size
    offset = int.from_bytes(content[listed + 4 + 2 * number : listed + 6 + 2 * number], "little")
    assert 0 < offset < length
    return table + offset


# ----------------------------------------------------------------------------------------------------- what it is and has


def test_it_is_a_cpu_that_states_its_time_for_each_type_that_it_has_tensors_of():
    device = litert.device()
    stated = device.capabilities()
    assert device.type == DeviceType.CPU and device.relaxations == ("float16", "infinities", "long_sums", "subnormals")
    taken = (
        "FLOAT32 FLOAT16 INT32 BOOL UINT32 TENSOR_FLOAT32 TENSOR_FLOAT16 TENSOR_INT32 TENSOR_BOOL8 TENSOR_QUANT8_ASYMM"
    )
    taken += " TENSOR_QUANT8_ASYMM_SIGNED TENSOR_QUANT8_SYMM TENSOR_QUANT8_SYMM_PER_CHANNEL TENSOR_QUANT16_SYMM"
    assert set(stated.operands) == {OperandType[name] for name in taken.split()}
    figures = [stated.of(kind, relaxed=relaxed) for kind in stated.operands for relaxed in (False, True)]
    assert all(f is not None and 0 < f.exec_time == f.power_usage < 0.1 for f in figures)
    assert stated.relaxed_scalar == stated.relaxed_tensor


def test_an_output_that_has_the_values_of_an_input_is_a_tensor_of_its_own():
    """LiteRT need not keep what it was given; a copy of what is computed costs nothing."""
    b = nnhal.Builder()
    x = b.input((3,))
    kind = {"out_type": "TENSOR_FLOAT32"}
    found = lower(b.finish([x], [b.cast(x, **kind), b.cast(b.floor(x), **kind)]))
    ((_, given),) = found.inputs
    copied, same = found.outputs
    assert copied != given and same is not None
    graph = read(found.content).subgraphs[0]
    assert len(graph.operators) == 2, "FLOOR, and what copies the input"
    assert graph.operators[1 - [tuple(o.outputs) for o in graph.operators].index((copied,))].outputs.tolist() == [same]


def test_an_output_of_no_value_has_no_tensor_and_an_input_that_nobody_reads_is_not_fed():
    b = nnhal.Builder()
    x, unread = b.input((3,)), b.input((2,))
    found = lower(b.finish([unread, x], [b.floor(x)]))
    assert [number for number, _ in found.inputs] == [1] and found.resets == ()


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (2.0**-126, 2.0**100, None),
        (2.0**-127, 1.0, "scale is 5.87747e-39, must be"),
        (1.0, 2.0**101, "scale is 2.5353e+30, must be"),
        (2.0**-127, 2.0**101, "scale is 5.87747e-39, must be"),
    ],
)
def test_scales_are_normal_numbers_up_to_2_to_the_100(low, high, told):
    if told is None:
        require_scales(low, high)
    else:
        with pytest.raises(Refused, match=told.replace("+", r"\+")):
            require_scales(low, high)


def least() -> nnhal.Model:
    return make_model(lambda b, x: b.floor(x), (1,))


@pytest.mark.parametrize("scales", [(1.0, 2.0**101), (2.0**101, 1.0), (1.0, 2.0**-127), (2.0**-127, 1.0)])
def test_each_channel_has_such_a_scale(scales):
    graph = Graph(least())
    kind = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    with pytest.raises(Refused, match=r"scale is (2.5353e\+30|5.87747e-39), must be"):
        graph.add(Value(kind, (2, 1), channel=ChannelQuant(scales, 0)))


def test_dimensions_have_31_bits():
    graph = Graph(least())
    kind = OperandType.TENSOR_FLOAT32
    graph.add(Value(kind, (None, 2**31 - 1)))
    with pytest.raises(Refused, match=r"shape \[2, 2147483648\] exceeds LiteRT's 32 bits"):
        graph.add(Value(kind, (2, 2**31)))


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([-(2**31), 2**31 - 1], None),
        ([], None),
        ([5], None),
        ([-(2**31) - 1, 0], "-2147483649 exceeds"),
        ([2**31, 0], "2147483648 exceeds"),
        ([-(2**40), 2**31], "2147483648 exceeds"),
    ],
)
def test_integers_have_32_bits(numbers, told):
    array = np.array(numbers, np.int64)
    if told is None:
        require_32_bits(array)
    else:
        with pytest.raises(Refused, match=told):
            require_32_bits(array)


# ---------------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("kind", "zero", "wanted"),
    [(Q8, 0, 255), (Q8, 255, 255), (Q8, 128, 128), (Q8, 100, 155), (Q8S, 0, 128), (Q8S, -128, 255), (Q8S, 127, 255)],
)
def test_the_reach_of_a_type_is_from_its_zero_point_to_the_farther_end(kind, zero, wanted):
    assert sums.reach(Value(OperandType[kind], (1,), 1.0, zero)) == wanted


def test_weights_add_up_by_channel_from_their_zero_point():
    weights = np.uint8([[1, 2, 3], [250, 5, 0]])
    value = Value(OperandType.TENSOR_QUANT8_ASYMM, (2, 3), 1.0, 5, data=weights)
    assert sums.greatest_weight_sums(value, 0).tolist() == [4 + 3 + 2, 245 + 0 + 5]
    assert sums.greatest_weight_sums(value, 1).tolist() == [4 + 245, 3 + 0, 2 + 5]
    unknown = Value(OperandType.TENSOR_QUANT8_ASYMM, (2, 3), 1.0, 5)
    assert (
        sums.greatest_weight_sums(unknown, 0).tolist() == [3 * 250] * 2
        and sums.greatest_weight_sums(unknown, 1).tolist() == [2 * 250] * 3
    )


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [([3, -5], 5), ([5, -3], 5), ([], 0), ([0], 0), ([-(2**31)], 2**31), ([2**31 - 1], 2**31 - 1)],
)
def test_the_greatest_integer_is_so_by_its_size(numbers, wanted):
    assert sums.greatest(np.array(numbers, np.int32)) == wanted


def pooled_squares(side: int) -> str:
    b = nnhal.Builder()
    x = b.input((1, side, side, 1), Q8, 0.5, 0)
    y = b.average_pool_2d(x, padding="valid", filter_size=side, stride=1)
    return str(litert.device().supports(b.finish([x], [y]))[0].reason)


def test_a_mean_of_a_window_is_refused_from_the_first_that_may_not_fit_32_bits():
    """255 times the square of 2901 is 2146064255, and of 2902 is 2147544020: beyond 2**31 - 1."""
    assert pooled_squares(2901) == ""
    assert pooled_squares(2902) == f"a sum has {2902**2} integers of up to 255, must fit in LiteRT's 32 bits"


def test_states_are_refused_where_the_model_computes_or_reads_them():
    weights = {"weights": np.eye(2, dtype=np.float32), "recurrent_weights": np.eye(2, dtype=np.float32)}
    rest = {"bias": np.zeros(2, np.float32), "activation_kind": "tanh", "time_major": 1}

    def made(state: Any, read_too: bool = False) -> str:
        b = nnhal.Builder()
        x, given = b.input((1, 1, 2)), b.input((1, 2))
        y, out = b.operation(
            "UNIDIRECTIONAL_SEQUENCE_RNN", x, **weights, hidden_state=state(b, given), **rest, outputs=2
        )
        outputs = [y, b.abs(out)] if read_too else [y, out]
        return str(litert.device().supports(b.finish([x, given], outputs))[0 if state is KEPT else 1].reason)

    assert made(KEPT) == ""
    assert made(KEPT, read_too=True) == (
        "a state is used within the model, must be an output: LiteRT keeps states in variable tensors"
    )
    assert made(lambda b, given: b.abs(given)) == (
        "a state is computed within the model, must be an input: LiteRT keeps states in variable tensors"
    )


def KEPT(_: Any, given: Any) -> Any:  # noqa: N802 - a constant of this file
    """The state as it is given."""
    return given


def test_what_is_made_of_the_bytes_keeps_them():
    from nnhal.drivers.litert.content import Content

    content = Content(8)
    made = content.pass_to(SimpleNamespace, num_threads=3)
    assert (made.num_threads, made.nnhal_content, len(made.model_content)) == (3, content, 8)


# ------------------------------------------------------------------------------------------------------ what is written

NAMES = {number: name for name, number in vars(tfl.BuiltinOperator).items() if not name.startswith("_")}


def operators(model: Any) -> list[str]:
    """The operators that a model becomes, in order."""
    found = read(lower(model).content)
    codes = [NAMES[code.builtinCode] for code in found.operatorCodes]
    return [codes[each.opcodeIndex] for each in found.subgraphs[0].operators]


def windowed(how: Any, size: int | None = 5, op: str = "conv_2d") -> Any:
    b = nnhal.Builder()
    x = b.input((1, size, size, 2))
    if op == "conv_2d":
        y = b.conv_2d(x, np.ones((3, 3, 3, 2), np.float32), np.zeros(3, np.float32), padding=how)
    else:
        y = getattr(b, op)(x, padding=how, filter_size=3, stride=1)
    return b.finish([x], [y])


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("same", ["CONV_2D"]),
        ("valid", ["CONV_2D"]),
        (((1, 1), (1, 1)), ["CONV_2D"]),
        (((0, 0), (0, 0)), ["CONV_2D"]),
        (((0, 2), (1, 1)), ["PAD", "CONV_2D"]),
        (((2, 2), (2, 2)), ["PAD", "CONV_2D"]),
    ],
)
def test_padding_that_is_a_schemes_is_said_as_one_and_other_padding_is_put_around(how, wanted):
    assert operators(windowed(how)) == wanted
    pooled = ["PADV2" if name == "PAD" else "MAX_POOL_2D" for name in wanted]
    assert operators(windowed(how, op="max_pool_2d")) == pooled
    mean = operators(windowed(how, op="average_pool_2d"))
    assert mean == (["AVERAGE_POOL_2D"] if len(wanted) == 1 else ["PAD", "AVERAGE_POOL_2D", "MUL"])


@pytest.mark.parametrize(
    ("stride", "how", "wanted"),
    [
        (2, ((0, 1), (0, 1)), "SAME"),  # of 9 products 8 are left, the last is cut off
        (1, ((1, 1), (1, 1)), "SAME"),
        (2, ((0, 0), (0, 0)), "VALID"),
        (4, ((0, 0), (0, 0)), "SAME"),  # filters do not meet: nothing is cut off either way
        (1, ((1, 0), (1, 1)), ""),
        (1, ((1, 1), (1, 0)), ""),
        (1, ((2, 0), (2, 0)), ""),
        (2, ((1, 0), (1, 0)), ""),
        (2, ((2, 2), (2, 2)), ""),
    ],
)
def test_products_that_a_scheme_cuts_off_are_not_cut_off_again(stride, how, wanted):
    """4 x 4 pixels, each multiplied with a filter of 3 x 3."""
    b = nnhal.Builder()
    x = b.input((1, 4, 4, 1))
    weights, bias = np.ones((1, 3, 3, 1), np.float32), np.zeros(1, np.float32)
    y = b.transpose_conv_2d(x, weights, bias, padding=how, stride=stride, nchw=False)
    model = b.finish([x], [y])
    assert operators(model) == ["TRANSPOSE_CONV"] + ["SLICE"] * (not wanted)
    (convolution, *_) = read(lower(model).content).subgraphs[0].operators
    assert convolution.builtinOptions.padding == getattr(tfl.Padding, wanted or "VALID")


def test_a_dense_layer_says_what_converters_write():
    model = make_model(lambda b, x: b.fully_connected(x, np.ones((2, 3), np.float32), np.zeros(2, np.float32)), (1, 3))
    (layer,) = read(lower(model).content).subgraphs[0].operators
    assert layer.builtinOptions.asymmetricQuantizeInputs is True


@pytest.mark.parametrize("how", ["same", "valid", ((0, 0), (0, 0))])
def test_a_scheme_needs_no_sizes(how):
    assert litert.device().supports(windowed(how, None))[0] == (True, "")


def cut(b: Any, x: Any, shrunk: int) -> Any:
    """The first element of both dimensions, of which those of the mask are taken away."""
    at = {name: np.int32([n, n]) for name, n in (("begin", 0), ("end", 1), ("strides", 1))}
    return b.strided_slice(x, **at, begin_mask=0, end_mask=0, shrink_mask=shrunk)


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda b, x: b.add(x, x), ["ADD"]),
        (lambda b, x: b.relu6(x), ["RELU6"]),
        (lambda b, x: b.relu1(x), ["RELU_N1_TO_1"]),
        (lambda b, x: b.cast(x, out_type="TENSOR_FLOAT32"), ["RESHAPE"]),  # an input that is given out
        (lambda b, x: b.softmax(x, 1.0), ["SOFTMAX"]),
        (lambda b, x: b.softmax(x, 1.0, axis=0), ["TRANSPOSE", "SOFTMAX", "TRANSPOSE"]),
        (lambda b, x: b.log_softmax(x, 1.0, -1), ["LOG_SOFTMAX"]),
        (lambda b, x: b.mean(x, np.int32([0, 1]), 0), ["MEAN", "RESHAPE"]),  # a scalar
        (lambda b, x: b.mean(x, np.int32([0, 1]), 1), ["MEAN"]),
        (lambda b, x: b.transpose(x, np.int32([1, 0])), ["TRANSPOSE"]),
        (lambda b, x: b.abs(b.floor(x)), ["FLOOR", "ABS"]),
        (lambda b, x: b.maximum(x, x), ["GREATER", "SELECT_V2", "NOT_EQUAL", "SELECT_V2"]),
        (lambda b, x: b.mul(x, np.ones((1, 1, 1), np.float32)), ["RESHAPE", "MUL"]),
        (lambda b, x: b.mul(x, np.ones((1, 1), np.float32)), ["MUL"]),
        (lambda b, x: b.mul(x, np.ones(3, np.float32)), ["MUL"]),
        (lambda b, x: cut(b, x, 0), ["STRIDED_SLICE"]),
        (lambda b, x: cut(b, x, 1), ["STRIDED_SLICE"]),
        (lambda b, x: cut(b, x, 3), ["STRIDED_SLICE", "RESHAPE"]),  # a scalar
        (lambda b, x: cut(b, x, 4), ["STRIDED_SLICE"]),  # of a dimension that there is not
        (lambda b, x: b.exp(x), ["RESHAPE", "EXP", "RESHAPE"]),
        (lambda b, x: b.logistic(x), ["MUL", "MUL", "LOGISTIC"]),
        (lambda b, x: b.div(x, x), ["DIV"]),
        (lambda b, x: b.argmax(x, 1), ["NOT_EQUAL", "SELECT_V2", "ARG_MAX"]),
    ],
)
def test_an_operation_becomes_no_more_operators_than_it_needs(build, wanted):
    assert operators(make_model(build, (2, 3))) == wanted
