"""The importer: what files say is kept, what NNAPI lacks is listed at once, what lies is named with its place."""

import contextlib
import struct
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnhal
from nnhal.base.codes import Lifetime
from nnhal.base.codes import OperandType as Type
from nnhal.bench import maker, zoo
from nnhal.bench.peers import LiteRT
from nnhal.frontends.tflite import load, signatures
from tests.frontends.flat import Writer


def added(**options) -> bytes:
    w = Writer()
    x, y, z = (w.tensor([1, 4]) for _ in range(3))
    w.operator("ADD", [x, y], [z], "Add", **options)
    return w.bytes([x, y], [z])


def names(model: nnhal.Model) -> list[str]:
    return [bound.op.name for bound in nnhal.validate(model).subgraphs[0].operations]


def agrees(content: bytes, *inputs: np.ndarray, device: str = "reference", tolerance: float = 1e-5) -> nnhal.Model:
    """The imported model gives what LiteRT gives on the file."""
    model = load(content)
    results = nnhal.compile(model, devices=device)(*inputs)
    for actual, expected in zip(
        results if isinstance(results, tuple) else (results,), LiteRT(content, 1)(inputs), strict=True
    ):
        assert actual.size == expected.size
        assert np.abs(actual.reshape(-1).astype("f8") - expected.reshape(-1).astype("f8")).max() <= tolerance
    return model


def test_an_activation_stays_fused():
    model = load(added(fusedActivationFunction=1))
    assert names(model) == ["ADD"] and nnhal.validate(model).subgraphs[0].operations[0].activation.name == "RELU"


def test_weights_stay_in_the_mapped_file():
    model = load(maker.path("mobilenet_v1"))
    weights = [o for o in model.main.operands if o.lifetime == Lifetime.CONSTANT_REFERENCE]
    assert len(model.pools) == 1 and model.pools[0].kind == "mmap_fd"
    assert sum(o.location.length for o in weights) > 16e6


def test_names_of_inputs_and_outputs_are_the_signatures():
    w = Writer()
    x, y, z = (w.tensor([1, 4]) for _ in range(3))
    w.operator("ADD", [x, y], [z], "Add")
    w.signature("serve", {"left": x, "right": y}, {"sum": z})
    content = w.bytes([x, y], [z])
    assert signatures(content) == ["serve"]
    compiled = nnhal.compile(load(content, signature="serve"), devices="reference")
    assert [s.name for s in (*compiled.inputs, *compiled.outputs)] == ["left", "right", "sum"]


def test_an_unknown_signature_lists_the_others():
    with pytest.raises(
        nnhal.InvalidArgument, match="signature is 'x', must be one of none: the file has no signatures"
    ):
        load(added(), signature="x")


def test_a_dimension_can_be_left_open_and_known_with_each_call():
    model = load(maker.path("tiny_dynamic"), shapes=[(0, 8, 8, 3)])
    compiled = nnhal.compile(model, devices="litert")
    for batch in (1, 3):
        x = np.random.default_rng(batch).normal(size=(batch, 8, 8, 3)).astype("f4")
        engine = LiteRT(maker.path("tiny_dynamic"), 1)
        engine.resize([x.shape])
        assert np.abs(compiled(x) - engine([x])[0]).max() < 1e-6


def test_shapes_are_checked_by_name_and_rank():
    with pytest.raises(nnhal.InvalidArgument, match="'nope' is no input, must be one of t0, t1"):
        load(added(), shapes={"nope": (1, 4)})
    with pytest.raises(nnhal.InvalidArgument, match="t0 has rank 1, must be 2"):
        load(added(), shapes={"t0": (4,)})


def test_float16_constants_behind_dequantize_become_a_cast():
    w = Writer()
    half, x = w.tensor([4], "f2", [0.1, 0.2, 0.3, 0.4]), w.tensor([1, 4])
    full, z = w.tensor([4]), w.tensor([1, 4])
    w.operator("DEQUANTIZE", [half], [full])
    w.operator("ADD", [x, full], [z], "Add")
    model = agrees(w.bytes([x], [z]), np.ones((1, 4), "f4"))
    assert names(model) == ["CAST", "ADD"]


def test_arithmetic_on_constant_shapes_is_done_at_import():
    w = Writer()
    x, shape, last = w.tensor([2, 3, 4]), w.tensor([3], "i4"), w.tensor([], "i4", 12)
    first, packed, y = w.tensor([], "i4"), w.tensor([2], "i4"), w.tensor([2, 12])
    begin, end, step = (w.tensor([1], "i4", [v]) for v in (0, 1, 1))
    w.operator("SHAPE", [x], [shape], "Shape")
    w.operator("STRIDED_SLICE", [shape, begin, end, step], [first], "StridedSlice", shrinkAxisMask=1)
    w.operator("PACK", [first, last], [packed], "Pack", valuesCount=2, axis=0)
    w.operator("RESHAPE", [x, packed], [y])
    content = w.bytes([x], [y])
    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    assert (nnhal.compile(load(content), devices="reference")(x) == x.reshape(2, 12)).all()


def test_everything_that_nnapi_lacks_is_listed_at_once():
    w = Writer()
    a, b, c, d = (w.tensor([1, 4]) for _ in range(4))
    w.operator("MyOwnThing", [a], [b])
    w.operator("GELU", [b], [c], "Gelu")
    w.operator("MyOwnThing", [c], [d])
    with pytest.raises(nnhal.UnsupportedModel) as caught:
        load(w.bytes([a], [d]))
    text = str(caught.value)
    assert (
        "custom operation MyOwnThing (operator 0, 2)" in text
        and "GELU: NNAPI has no operation for it (operator 1)" in text
    )


def test_an_activation_that_nnapi_lacks_is_refused_not_dropped():
    with pytest.raises(nnhal.UnsupportedModel, match="fused activation 4"):
        load(added(fusedActivationFunction=4))


def test_quantisation_is_kept_exactly():
    w = Writer()
    x, y = w.tensor([1, 4], "i1", scale=0.1, zero=-3), w.tensor([1, 4], "i1", scale=1 / 256, zero=-128)
    w.operator("LOGISTIC", [x], [y])
    model = load(w.bytes([x], [y]))
    (given,), (result,) = (
        [model.main.operands[i] for i in indices] for indices in (model.main.inputs, model.main.outputs)
    )
    assert (given.type, given.scale, given.zero_point) == (Type.TENSOR_QUANT8_ASYMM_SIGNED, float(np.float32(0.1)), -3)
    assert (result.scale, result.zero_point) == (1 / 256, -128)


def test_one_quantisation_to_another_goes_through_the_real_values():
    w = Writer()
    x, y = w.tensor([1, 256], "i1", scale=1 / 256, zero=-128), w.tensor([1, 256], "u1", scale=1 / 256, zero=0)
    w.operator("QUANTIZE", [x], [y])
    agrees(w.bytes([x], [y]), np.arange(-128, 128, dtype=np.int8)[None], tolerance=0)


def test_an_output_that_is_an_input_or_named_twice_is_copied():
    w = Writer()
    x, y, z = (w.tensor([1, 4]) for _ in range(3))
    w.operator("ADD", [x, y], [z], "Add")
    model = load(w.bytes([x, y], [z, x, z]))
    a, b = np.ones((1, 4), "f4"), np.full((1, 4), 2, "f4")
    assert [r.max() for r in nnhal.compile(model, devices="reference")(a, b)] == [3, 1, 3]


def test_broadcast_of_a_choice_is_expressed():
    w = Writer()
    x, y, bound, flag = (
        w.tensor([2, 3]),
        w.tensor([2, 3]),
        w.tensor([1, 1], "f4", [[0.0]]),
        w.tensor([2, 1], "b1", [[1], [0]]),
    )
    w.operator("SELECT_V2", [flag, x, bound], [y])
    x_value = np.arange(6, dtype="f4").reshape(2, 3)
    agrees(w.bytes([x], [y]), x_value)


@pytest.mark.parametrize("order", [(0, 2, 1, 3, 4), (0, 1, 3, 2, 4), (4, 0, 1, 2, 3)])
def test_a_transposition_of_five_dimensions_is_expressed(order):
    w = Writer()
    shape = [1, 2, 3, 4, 5]
    x, y, p = w.tensor(shape), w.tensor([shape[i] for i in order]), w.tensor([5], "i4", order)
    w.operator("TRANSPOSE", [x, p], [y])
    model = load(w.bytes([x], [y]))
    x = np.random.default_rng(0).normal(size=shape).astype("f4")
    assert (nnhal.compile(model, devices="reference")(x) == x.transpose(order)).all()


@pytest.mark.parametrize(("begin", "end"), [(-1, 0), (1, 2), (-2, 5), (0, 1)])
@pytest.mark.parametrize("device", ["reference", "litert"])
def test_an_axis_that_shrinks_needs_no_sensible_end(begin, end, device):
    w = Writer()
    x, y = w.tensor([2, 3]), w.tensor([2])
    rows = [w.tensor([2], "i4", v) for v in ([0, begin], [2, end], [1, 1])]
    w.operator("STRIDED_SLICE", [x, *rows], [y], "StridedSlice", shrinkAxisMask=2)
    agrees(w.bytes([x], [y]), np.arange(6, dtype="f4").reshape(2, 3), device=device, tolerance=0)


def branches(w: Writer) -> tuple[int, int]:
    numbers = []
    for name in ("ADD", "MUL"):
        part = w.subgraph()
        x, y = part.tensor([1, 4]), part.tensor([1, 4])
        part.operator(name, [x, x], [y], name.capitalize())
        numbers.append(part.close([x], [y]))
    return numbers[0], numbers[1]


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_becomes_if(condition):
    w = Writer()
    then, other = branches(w)
    c, x, y = w.tensor([1], "b1"), w.tensor([1, 4]), w.tensor([1, 4])
    w.operator("IF", [c, x], [y], "If", thenSubgraphIndex=then, elseSubgraphIndex=other)
    model = agrees(w.bytes([c, x], [y]), np.array([condition]), np.full((1, 4), 3, "f4"))
    assert names(model) == ["IF"] and len(model.referenced) == 2


def test_a_loop_becomes_while():
    w = Writer()
    test, body = w.subgraph(), w.subgraph()
    i, x, limit, more = test.tensor([1]), test.tensor([1, 4]), test.tensor([1], "f4", [3]), test.tensor([1], "b1")
    test.operator("LESS", [i, limit], [more], "Less")
    condition = test.close([i, x], [more])
    i, x, one = body.tensor([1]), body.tensor([1, 4]), body.tensor([1], "f4", [1])
    j, y = body.tensor([1]), body.tensor([1, 4])
    body.operator("ADD", [i, one], [j], "Add")
    body.operator("ADD", [x, x], [y], "Add")
    loop = body.close([i, x], [j, y])
    i, x, j, y = w.tensor([1]), w.tensor([1, 4]), w.tensor([1]), w.tensor([1, 4])
    w.operator("WHILE", [i, x], [j, y], "While", condSubgraphIndex=condition, bodySubgraphIndex=loop)
    agrees(w.bytes([i, x], [j, y]), np.zeros(1, "f4"), np.ones((1, 4), "f4"))


def test_a_subgraph_that_calls_itself_ends_in_an_error():
    w = Writer()
    part = w.subgraph()
    c, x, y = part.tensor([1], "b1"), part.tensor([1, 4]), part.tensor([1, 4])
    part.operator("IF", [c, x], [y], "If", thenSubgraphIndex=1, elseSubgraphIndex=1)
    part.close([c, x], [y])
    c, x, y = w.tensor([1], "b1"), w.tensor([1, 4]), w.tensor([1, 4])
    w.operator("IF", [c, x], [y], "If", thenSubgraphIndex=1, elseSubgraphIndex=1)
    lies(w.bytes([c, x], [y]), "nested deeper than 32, or call themselves")


@pytest.mark.parametrize("name", ["CEIL", "ZEROS_LIKE"])
def test_what_has_no_operation_is_composed(name):
    w = Writer()
    x, y = w.tensor([1, 4]), w.tensor([1, 4])
    w.operator(name, [x], [y])
    agrees(w.bytes([x], [y]), np.array([[-1.5, 0, 0.2, 3]], "f4"), tolerance=0)


def test_a_sum_of_many_is_a_chain_of_sums():
    w = Writer()
    xs, y = [w.tensor([1, 4]) for _ in range(3)], w.tensor([1, 4])
    w.operator("ADD_N", xs, [y])
    model = agrees(w.bytes(xs, [y]), *(np.full((1, 4), n, "f4") for n in (1, 2, 3)))
    assert names(model) == ["ADD", "ADD"]


def weights(w: Writer, *shapes: list[int]) -> list[int]:
    generator = np.random.default_rng(5)
    return [w.tensor(shape, "f4", generator.normal(size=shape) * 0.5) for shape in shapes]


def layer(kind: str) -> bytes:
    """A recurrent layer of two steps, a batch of one, three inputs and two units."""
    w = Writer()
    both, steps = kind.startswith("BIDIRECTIONAL"), [] if kind in ("RNN", "LSTM") else [2]
    x, outs = w.tensor([*steps, 1, 3]), [w.tensor([*steps, 1, 2]) for _ in range(1 + both)]

    def kept(size: int = 2) -> int:
        return w.tensor([1, size], isVariable=True)

    if kind.endswith("RNN"):
        ways = [[*weights(w, [2, 3], [2, 2], [2]), kept()] for _ in range(1 + both)]
        inputs, options = [x, *chain(*ways)], {"RNN": "RNN", "BIDIRECTIONAL_SEQUENCE_RNN": "BidirectionalSequenceRNN"}
        fields = {"fusedActivationFunction": 4} | ({"timeMajor": True} if steps else {})
        inputs += [-1] * 3 * both
        w.operator(kind, inputs, outs, options.get(kind, "SequenceRNN"), **fields)
    else:
        ways = [
            [*weights(w, *[[2, 3]] * 4, *[[2, 2]] * 4), -1, -1, -1, *weights(w, *[[2]] * 4), -1, -1]
            for _ in range(1 + both)
        ]
        inputs = [x, *chain(*ways), *(kept() for _ in range(2 + 2 * both)), *[-1] * 9 * both]
        options = "BidirectionalSequenceLSTM" if both else "LSTM"
        w.operator(kind, inputs, outs, options, fusedActivationFunction=4, **({"timeMajor": True} if both else {}))
    return w.bytes([x], outs)


@pytest.mark.parametrize(
    "kind",
    ["RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN", "LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM"],
)
def test_a_recurrent_layer_keeps_its_state_in_a_stream(kind):
    content = layer(kind)
    stream, engine = nnhal.compile(load(content), devices="reference").stream(), LiteRT(content, 1)
    generator = np.random.default_rng(0)
    for _ in range(3):
        x = generator.normal(size=engine.inputs[0]["shape"]).astype("f4")
        results = stream(x)
        for actual, expected in zip(results if isinstance(results, tuple) else (results,), engine([x]), strict=True):
            assert np.abs(actual - expected).max() < 1e-5


def test_a_dense_layer_with_a_scale_for_each_unit_is_a_convolution():
    w = Writer()
    generator = np.random.default_rng(0)
    x, y = w.tensor([2, 6], "i1", scale=0.05, zero=3), w.tensor([2, 4], "i1", scale=0.2, zero=-5)
    k = w.tensor([4, 6], "i1", generator.integers(-127, 128, (4, 6)), scale=[0.01, 0.02, 0.03, 0.005])
    b = w.tensor([4], "i4", [100, -50, 0, 7], scale=[0.0005, 0.001, 0.0015, 0.00025])
    w.operator("FULLY_CONNECTED", [x, k, b], [y], "FullyConnected")
    model = agrees(w.bytes([x], [y]), generator.integers(-128, 128, (2, 6), np.int8), tolerance=1)
    assert names(model) == ["RESHAPE", "CONV_2D", "RESHAPE"]


@pytest.mark.models
def test_a_streaming_model_carries_its_variables():
    path = zoo.path("wake_okay_nabu")
    model = load(path)
    assert len(model.states) == 6
    stream, engine = nnhal.compile(model, devices="reference").stream(), LiteRT(path, 1)
    generator = np.random.default_rng(0)
    for _ in range(6):
        x = generator.integers(-128, 127, (1, 3, 40), np.int8)
        assert np.abs(stream(x).astype(int) - engine([x])[0].astype(int)).max() <= 1


def test_lstm_states_are_carried_by_a_stream_and_not_by_calls():
    path = maker.path("tiny_lstm")
    compiled = nnhal.compile(load(path), devices="litert")
    x = np.random.default_rng(0).normal(size=compiled.inputs[0].shape).astype("f4")
    engine, stream = LiteRT(path, 1), compiled.stream()
    first, second = engine([x])[0], engine([x])[0]
    assert np.array_equal(stream(x), first) and np.array_equal(stream(x), second)
    assert np.array_equal(compiled(x), first) and np.array_equal(compiled(x), first)
    assert not np.array_equal(first, second)


# -------------------------------------------------------------------------------------------------------- files that lie


def lies(content: bytes, message: str, error: type[Exception] = nnhal.BadFile) -> None:
    with pytest.raises(error, match=message):
        load(content)


def test_a_root_offset_past_the_end_is_named():
    lies(struct.pack("<I4s", 4096, b"TFL3"), "header: root offset is 4096, must lie within the file's 8 bytes")


def test_another_kind_of_file_is_named():
    lies(b"\x89PNG\r\n\x1a\n" + bytes(100), "header: (identifier|root offset)")


def test_an_empty_file_is_named(tmp_path):
    (tmp_path / "empty.tflite").touch()
    with pytest.raises(nnhal.BadFile, match=r"empty.tflite: has 0 bytes"):
        load(tmp_path / "empty.tflite")


@pytest.mark.parametrize("name", ["add4", "tiny_conv_int8"])
def test_a_file_cut_at_any_byte_is_refused(name):
    content = maker.make(name)
    step = max(1, len(content) // 1500)
    for size in range(0, len(content) - 1, step):
        with pytest.raises(nnhal.InvalidArgument):
            nnhal.validate(load(content[:size]))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes_give_an_error_or_a_valid_model(flips):
    content = bytearray(added())
    for place, value in flips:
        content[place % len(content)] = value
    with contextlib.suppress(nnhal.InvalidArgument):
        nnhal.validate(load(bytes(content)))


def spoilt(change, message: str, error: type[Exception] = nnhal.BadFile) -> None:
    w = Writer()
    x, y = w.tensor([1, 4]), w.tensor([1, 4])
    c = w.tensor([4], "f4", [1, 2, 3, 4])
    w.operator("ADD", [x, c], [y], "Add")
    lies(w.bytes([x], [y], change), message, error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m.subgraphs[0].operators[0].inputs.__setitem__(0, 99),
            "operator 0: input 0 is tensor 99, must be -1 to 2",
        ),
        (lambda m: m.subgraphs[0].operators[0].inputs.__setitem__(0, -2), "input 0 is tensor -2, must be -1 to 2"),
        (lambda m: m.subgraphs[0].operators[0].outputs.__setitem__(0, -1), "output 0 is tensor -1, must be 0 to 2"),
        (lambda m: setattr(m.subgraphs[0].operators[0], "opcodeIndex", 7), "operator code is 7, must be 0 to 0"),
        (lambda m: m.subgraphs[0].inputs.__setitem__(0, 44), "input 0 is tensor 44, must be 0 to 2"),
        (lambda m: setattr(m.subgraphs[0].tensors[2], "buffer", 9), "tensor 2: buffer is 9, must be 0 to 1"),
        (
            lambda m: setattr(m.subgraphs[0].tensors[2], "shape", [5]),
            "tensor 2: has a buffer of 16 bytes, must have 20",
        ),
        (lambda m: setattr(m.subgraphs[0].tensors[0], "shape", [-1, 4]), "must have no negative dimension"),
        (lambda m: setattr(m.subgraphs[0].tensors[0], "shape", [65536, 65536]), "must be less than 2..32"),
        (lambda m: setattr(m.subgraphs[0].tensors[0], "shape", [2**31 - 1] * 3), "must be less than 2..32"),
        (lambda m: setattr(m.subgraphs[0].tensors[0], "shape", [1] * 9), "has rank 9, must be at most 8"),
        (lambda m: setattr(m.subgraphs[0].tensors[0], "type", 99), "tensor 0: type is 99"),
    ],
)
def test_wrong_indices_and_sizes_are_named_with_their_place(change, message):
    spoilt(change, message)


def test_reading_what_nothing_wrote_names_the_operator():
    w = Writer()
    x, y, z = (w.tensor([1, 4]) for _ in range(3))
    w.operator("ADD", [x, z], [y], "Add")
    w.operator("ADD", [x, y], [z], "Add")
    lies(w.bytes([x], [z]), r"operator 0 \(ADD\): reads tensor 2 \(t2\), which nothing has written")


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_scale_that_cannot_be_is_named(scale):
    w = Writer()
    x, y = w.tensor([1, 4], "u1", scale=scale), w.tensor([1, 4], "u1", scale=1.0)
    w.operator("RELU", [x], [y])
    lies(w.bytes([x], [y]), "tensor 0: scale is .*, must be finite and greater than 0")


def test_a_zero_point_outside_its_type_is_named():
    w = Writer()
    x, y = (w.tensor([1, 4], "u1", scale=1.0, zero=300) for _ in range(2))
    w.operator("RELU", [x], [y])
    content = w.bytes([x], [y])
    with pytest.raises(nnhal.InvalidModel, match=r"zero point is 300, must be 0 to 255"):
        nnhal.validate(load(content))


def test_as_many_scales_as_channels():
    w = Writer()
    x, y = w.tensor([1, 4], "i1", scale=[1.0, 2.0], axis=1), w.tensor([1, 4], "i1", scale=1.0)
    w.operator("RELU", [x], [y])
    lies(w.bytes([x], [y]), "has 2 scales along dimension 1")


def test_two_writers_of_a_tensor_are_refused():
    w = Writer()
    x, y = w.tensor([1, 4]), w.tensor([1, 4])
    w.operator("ADD", [x, x], [y], "Add")
    w.operator("MUL", [x, x], [y], "Mul")
    with pytest.raises(nnhal.InvalidArgument, match=r"writes tensor 1 .t1., which is already written"):
        load(w.bytes([x], [y]))


def test_numbers_that_need_64_bits_are_refused_and_others_narrowed():
    w = Writer()
    x, y, p = w.tensor([1, 4]), w.tensor([1, 4]), w.tensor([2], "i8", [1, 2**40])
    w.operator("RESHAPE", [x, p], [y])
    lies(w.bytes([x], [y]), "does not fit 32 bits", nnhal.UnsupportedModel)


@pytest.mark.parametrize("axis", [-100000, 9])
def test_an_axis_out_of_range_is_refused(axis):
    w = Writer()
    x, y, a = w.tensor([1, 4]), w.tensor([1]), w.tensor([1], "i4", [axis])
    w.operator("MEAN", [x, a], [y], "Reducer")
    lies(w.bytes([x], [y]), "must be", nnhal.InvalidModel)


def test_a_stride_of_zero_is_refused():
    w = Writer()
    x, y = w.tensor([1, 4]), w.tensor([1, 4])
    rows = [w.tensor([2], "i4", v) for v in ([0, 0], [1, 4], [1, 0])]
    w.operator("STRIDED_SLICE", [x, *rows], [y], "StridedSlice")
    lies(w.bytes([x], [y]), "= 0, must not be 0", nnhal.InvalidModel)
