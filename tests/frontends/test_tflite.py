"""The importer: what files say is kept, what is known of shapes is computed, what NNAPI lacks is listed at once."""

import os

import numpy as np
import pytest

import nnhal
from nnhal import zoo
from nnhal.base.codes import Lifetime
from nnhal.base.codes import OperandType as Type
from nnhal.frontends.tflite import load, signatures
from nnhal.measure.peers import LiteRT
from nnhal.model.validate import validate
from nnhal.zoo import maker
from tests.frontends.cases import begin, malformed, refused, run
from tests.frontends.flat import Writer, litert, one_operator, schema, tensor

begin(__name__)


def added(**options) -> bytes:
    return one_operator("ADD", [tensor([1, 4]), tensor([1, 4])], [tensor([1, 4])], "Add", **options)


def names(model: nnhal.Model) -> list[str]:
    return [bound.op.name for bound in nnhal.validate(model).subgraphs[0].operations]


# --------------------------------------------------------------------------------------------------------- what is kept


def test_an_activation_stays_fused():
    model = load(added(fusedActivationFunction=1))
    assert names(model) == ["ADD"] and nnhal.validate(model).subgraphs[0].operations[0].activation.name == "RELU"


def test_an_activation_that_nnapi_does_not_fuse_follows():
    assert names(load(added(fusedActivationFunction=4))) == ["ADD", "TANH"]


def test_weights_stay_in_one_sealed_copy_of_the_file():
    path = maker.path("mobilenet_v1")
    model = load(path)
    weights = [o for o in model.main.operands if o.lifetime == Lifetime.CONSTANT_REFERENCE]
    assert len(model.pools) == 1 and model.pools[0].sealed
    assert model.pools[0].size == os.path.getsize(path)
    assert sum(o.location.length for o in weights) > 16e6


def test_weights_of_bytes_are_not_copied():
    content = one_operator("ADD", [tensor([100]), tensor([100], "f4", np.arange(100))], [tensor([100])], "Add")
    model = load(content)
    (pool,) = model.pools
    assert pool.kind == "host" and np.shares_memory(pool.bytes(), np.frombuffer(content, np.uint8))


def test_small_constants_are_copied():
    model = load(one_operator("ADD", [tensor([32]), tensor([32], "f4", np.arange(32))], [tensor([32])], "Add"))
    assert not model.pools and len(model.values) >= 128


def test_quantisation_is_kept_exactly():
    w = Writer()
    x, y = w.tensor([1, 4], "i1", scale=0.1, zero=-3), w.tensor([1, 4], "i1", scale=1 / 256, zero=-128)
    w.operator("LOGISTIC", [x], [y])
    model = load(w.file([x], [y]))
    (given,), (result,) = ([model.main.operands[i] for i in ends] for ends in (model.main.inputs, model.main.outputs))
    assert (given.type, given.scale, given.zero_point) == (Type.TENSOR_QUANT8_ASYMM_SIGNED, float(np.float32(0.1)), -3)
    assert (result.scale, result.zero_point) == (1 / 256, -128)


def test_scales_per_channel_are_kept_and_the_bias_then_has_none():
    w = Writer()
    x = w.tensor([1, 3, 3, 2], "i1", scale=0.5)
    weights = w.tensor([2, 1, 1, 2], "i1", [[[[1, 2]]], [[[3, 4]]]], scale=[0.25, 0.125])
    bias, y = w.tensor([2], "i4", [5, 6], scale=[0.125, 0.0625]), w.tensor([1, 3, 3, 2], "i1", scale=1.0)
    w.operator("CONV_2D", [x, weights, bias], [y], "Conv2D", strideW=1, strideH=1)
    model = load(w.file([x], [y]))
    (operation,) = model.main.operations
    filter, offset = (model.main.operands[operation.inputs[place]] for place in (1, 2))
    assert filter.type == Type.TENSOR_QUANT8_SYMM_PER_CHANNEL
    assert filter.channel is not None and filter.channel.scales == (0.25, 0.125) and offset.scale == 0


def test_float16_constants_behind_dequantize_become_a_cast():
    w = Writer()
    half, x = w.tensor([4], "f2", [0.1, 0.2, 0.3, 0.4]), w.tensor([1, 4])
    full, z = w.tensor([4]), w.tensor([1, 4])
    w.operator("DEQUANTIZE", [half], [full])
    w.operator("ADD", [x, full], [z], "Add")
    w.ends([x], [z])
    ones = np.ones((1, 4), "f4")
    assert names(load(w.bytes())) == ["CAST", "ADD"]
    assert np.array_equal(run(w.bytes(), [ones])[0], litert(w.bytes(), ones)[0])


def test_integer_weights_beside_a_real_input_are_made_real():
    w = Writer()
    x, y = w.tensor([1, 2]), w.tensor([1, 3])
    weights = w.tensor([3, 2], "i1", [[1, 2], [3, 4], [5, 6]], scale=[0.5, 0.25, 1.0])
    w.operator("FULLY_CONNECTED", [x, weights, -1], [y], "FullyConnected")
    assert run(w.file([x], [y]), [np.array([[1, 10]], "f4")])[0].tolist() == [[10.5, 10.75, 65]]


def test_a_scale_that_nnapi_fixes_otherwise_is_reached_through_real_values():
    content = one_operator("LOGISTIC", [tensor([256], "i1", scale=0.05)], [tensor([256], "i1", scale=0.005, zero=-100)])
    stored = np.arange(-128, 128).astype("i1")
    assert names(load(content)) == ["DEQUANTIZE", "LOGISTIC", "QUANTIZE"]
    real = 1 / (1 + np.exp(-0.05 * stored.astype("f8")))
    assert np.array_equal(run(content, [stored])[0], np.clip(np.round(real / np.float32(0.005)) - 100, -128, 127))


# ----------------------------------------------------------------------------------------- names, shapes, entry points


def two_signatures() -> bytes:
    w = Writer()
    x, y, z = (w.tensor([1, 4]) for _ in range(3))
    w.operator("ADD", [x, y], [z], "Add")
    w.ends([x, y], [z])
    w.signature("add", {"left": x, "right": y}, {"sum": z})
    w.subgraph()
    x, y = w.tensor([3]), w.tensor([3])
    w.operator("NEG", [x], [y])
    w.ends([x], [y])
    w.signature("negate", {"given": x}, {"negative": y, "twin": y}, graph=1)
    return w.bytes()


@pytest.mark.parametrize(
    ("key", "expected"), [(None, ["left", "right", "sum"]), ("negate", ["given", "negative", "twin"])]
)
def test_names_are_those_of_the_signature(key, expected):
    assert signatures(two_signatures()) == ["add", "negate"]
    compiled = nnhal.compile(load(two_signatures(), signature=key), devices="reference")
    assert [s.name for s in (*compiled.inputs, *compiled.outputs)] == expected


def test_an_output_of_the_signature_may_be_another_than_those_of_the_subgraph():
    """As ai-edge-quantizer writes it when it adds an operator behind an output."""
    w = Writer()
    x, y, z = w.tensor([2]), w.tensor([2]), w.tensor([2])
    w.operator("NEG", [x], [y])
    w.operator("ABS", [y], [z])
    w.ends([x], [z])
    w.signature("main", {"given": x}, {"negative": y})
    compiled = nnhal.compile(load(w.bytes()), devices="reference")
    assert [each.name for each in compiled.outputs][-1] == "negative"
    assert compiled(np.array([1, -2], "f4"))[-1].tolist() == [-1, 2]
    w.signature("other", {"given": x}, {"nothing": w.tensor([2])})
    malformed(w.bytes(), "'nothing' is tensor 3, must be an output of subgraph 0: 2")


def test_a_signature_that_nobody_named_is_noted():
    (note,) = load(two_signatures()).notes
    assert note == (
        "the first of the signatures 'add', 'negate' is used; --signature NAME, or signature=NAME, selects another"
    )
    assert load(two_signatures(), signature="negate").notes == ()


def test_an_unknown_signature_lists_the_others():
    refused(two_signatures(), "signature is 'x', must be one of add, negate", nnhal.InvalidArgument, signature="x")
    refused(added(), "'x', must be one of none: the file has no signatures", nnhal.InvalidArgument, signature="x")


def test_an_output_that_is_an_input_constant_or_named_twice_is_copied():
    w = Writer()
    x, y, z, c = (*(w.tensor([1, 4]) for _ in range(3)), w.tensor([2], "i4", [8, 9]))
    w.operator("ADD", [x, y], [z], "Add")
    w.ends([x, y], [z, x, z, c])
    a, b = np.ones((1, 4), "f4"), np.full((1, 4), 2, "f4")
    assert [r.max() for r in run(w.bytes(), [a, b])] == [3, 1, 3, 9]


def test_a_model_without_operators_copies_its_input():
    w = Writer()
    x = w.tensor([2], "b1")
    assert run(w.file([x], [x]), [np.array([True, False])])[0].tolist() == [True, False]


def test_a_dimension_can_be_left_open_and_known_with_each_call():
    model = load(maker.path("tiny_dynamic"), shapes=[(0, 8, 8, 3)])
    compiled = nnhal.compile(model, devices="reference")
    content = maker.path("tiny_dynamic").read_bytes()
    for batch in (1, 3):
        x = np.random.default_rng(batch).normal(size=(batch, 8, 8, 3)).astype("f4")
        assert np.abs(compiled(x) - litert(content, x)[0]).max() < 1e-6


def test_shapes_are_checked_by_name_rank_and_number():
    for shapes, message in [
        ({"nope": (1, 4)}, "is 'nope', must be an input: one of t0, t1"),
        ({"t0": (4,)}, "t0 has rank 1, must be 2"),
        ({"t0": (1, -4)}, r"t0 is \[1, -4\], must be of integers from -1 to"),
        ([(1, 4)], "got 1, must be 2: t0, t1"),
    ]:
        refused(added(), message, nnhal.InvalidArgument, shapes=shapes)


def test_a_shape_baked_into_the_file_is_an_error_that_names_the_operator():
    content = one_operator("RESHAPE", [tensor([2, 3]), tensor([1], "i4", [6])], [tensor([6])])
    load(content)
    refused(content, r"RESHAPE #0: shape = \[6\] holds 6 elements, must hold 12", nnhal.InvalidModel, shapes=[(4, 3)])


# --------------------------------------------------------------------------------------------------- arithmetic on shapes


def flattens() -> bytes:
    """[b, 3, 4] to [b, 12], by way of SHAPE, STRIDED_SLICE and PACK."""
    w = Writer()
    x, shape, last = w.tensor([2, 3, 4]), w.tensor([3], "i4"), w.tensor([], "i4", 12)
    first, packed, y = w.tensor([], "i4"), w.tensor([2], "i4"), w.tensor([2, 12])
    begin, end, step = (w.tensor([1], "i4", [v]) for v in (0, 1, 1))
    w.operator("SHAPE", [x], [shape], "Shape")
    w.operator("STRIDED_SLICE", [shape, begin, end, step], [first], "StridedSlice", shrinkAxisMask=1)
    w.operator("PACK", [first, last], [packed], "Pack", valuesCount=2, axis=0)
    w.operator("RESHAPE", [x, packed], [y])
    return w.file([x], [y])


@pytest.mark.parametrize("batch", [2, 5])
def test_arithmetic_on_shapes_is_done_at_import(batch):
    model = load(flattens(), shapes=[(batch, 3, 4)])
    assert names(model) == ["RESHAPE"]
    x = np.arange(12 * batch, dtype="f4").reshape(batch, 3, 4)
    assert np.array_equal(nnhal.compile(model, devices="reference")(x), x.reshape(batch, 12))


def test_an_open_dimension_goes_through_the_arithmetic():
    compiled = nnhal.compile(load(flattens(), shapes=[(0, 3, 4)]), devices="reference")
    assert compiled(np.zeros((7, 3, 4), "f4")).shape == (7, 12)


@pytest.mark.parametrize("device", ["reference", "litert"])
def test_rows_of_an_open_batch_are_as_long_as_the_file_says(device):
    """[b, 3, 4] to [-1, 12] to a dense layer: one model for every batch."""
    w, rng = Writer(), np.random.default_rng(3)
    x, shape, flat = w.tensor([1, 3, 4]), w.tensor([2], "i4", [-1, 12]), w.tensor([1, 12])
    weights, y = w.tensor([5, 12], "f4", rng.normal(size=(5, 12))), w.tensor([1, 5])
    w.operator("RESHAPE", [x, shape], [flat], "Reshape")
    w.operator("FULLY_CONNECTED", [flat, weights, -1], [y], "FullyConnected")
    w.ends([x], [y])
    model = load(w.bytes(), shapes=[(0, 3, 4)])
    assert [value.shape for value in validate(model).subgraphs[0].values if value][-1] == (None, 5)
    compiled = nnhal.compile(model, devices=device, fallback="forbid")
    for batch in (1, 6):
        given = rng.normal(size=(batch, 3, 4)).astype("f4")
        (expected,) = litert(for_batch(w, x, batch), given)
        np.testing.assert_allclose(compiled(given), expected, rtol=1e-5, atol=1e-5)


def for_batch(w: Writer, x: int, batch: int) -> bytes:
    """The same file for a batch."""
    w.graph.tensors[x].shape = [batch, 3, 4]
    return w.bytes()


def test_an_open_dimension_that_is_computed_with_is_refused():
    w = Writer()
    x, shape, sizes = w.tensor([2, 3]), w.tensor([2], "i4"), w.tensor([2], "i4", [2, 2])
    doubled, y = w.tensor([2], "i4"), w.tensor([4, 6])
    w.operator("SHAPE", [x], [shape], "Shape")
    w.operator("MUL", [shape, sizes], [doubled], "Mul")
    w.operator("BROADCAST_TO", [x, doubled], [y], "BroadcastTo")
    refused(w.file([x], [y]), "MUL #1: input 0 is a shape known only at execution", shapes=[(0, 3)])


def test_a_constant_that_is_cast_to_the_type_it_has_keeps_its_fraction():
    w = Writer()
    number, same, whole, x, y = (
        w.tensor([1], "f4", [-0.75]),
        w.tensor([1]),
        w.tensor([1], "i4"),
        w.tensor([1]),
        w.tensor([1]),
    )
    w.operator("CAST", [number], [same], "Cast")
    w.operator("CAST", [number], [whole], "Cast")
    w.operator("ADD", [x, same], [y], "Add")
    w.ends([x], [y, same, whole])
    for mine, theirs in zip(run(w.bytes(), [np.ones(1, "f4")]), litert(w.bytes(), np.ones(1, "f4")), strict=True):
        assert mine.dtype == theirs.dtype and mine == theirs


@pytest.mark.parametrize("stated", [[], [1]], ids=["no shape in the file", "shape in the file"])
def test_one_element_filled_with_a_scalar_has_the_dimension_that_is_asked_for(stated):
    w = Writer()
    x, y, negated, pair = w.tensor([], "i4"), w.tensor(stated, "b1"), w.tensor(stated, "b1"), w.tensor([1, 1], "b1")
    truth, two, dims = w.tensor([], "b1"), w.tensor([], "i4", 2), w.tensor([1], "i4", [1])
    w.operator("LESS", [x, two], [truth])
    w.operator("FILL", [dims, truth], [y])
    w.operator("LOGICAL_NOT", [y], [negated], "LogicalNot")
    w.operator("EXPAND_DIMS", [y, w.tensor([1], "i4", [1])], [pair], "ExpandDims")
    w.ends([x], [truth, y, negated, pair])
    given = np.array(1, "i4")
    for mine, theirs in zip(run(w.bytes(), [given]), litert(w.bytes(), given), strict=True):
        assert mine.shape == theirs.shape
        assert (mine == theirs).all()


def test_numbers_that_need_64_bits_are_refused_and_others_narrowed():
    for number, fits in ((4, True), (2**40, False)):
        content = one_operator("RESHAPE", [tensor([1, 4]), tensor([2], "i8", [1, number])], [tensor([1, 4])])
        if fits:
            assert run(content, [np.ones((1, 4), "f4")])[0].shape == (1, 4)
        else:
            assert "do not fit into 32 bits" in refused(content)


def test_positions_in_64_bits_are_used_as_32_bits():
    w = Writer()
    x, axis, place, y = w.tensor([2, 3]), w.tensor([], "i4", 1), w.tensor([2], "i8"), w.tensor([2])
    w.operator("ARG_MAX", [x, axis], [place], "ArgMax", outputType=schema.TensorType.INT64)
    w.operator("CAST", [place], [y], "Cast")
    w.ends([x], [y])
    assert run(w.bytes(), [np.array([[1, 3, 2], [3, 2, 1]], "f4")])[0].tolist() == [1, 0]
    (positions,) = run(w.file([x], [place]), [np.array([[1, 3, 2], [3, 2, 1]], "f4")])
    assert positions.dtype == np.int64 and positions.tolist() == [1, 0]


def test_an_input_of_64_bits_is_taken_as_far_as_sums_of_it_fit_32_bits():
    """The square of `x`, and more: of 10 bits. The sum of `y`: of 30. `z` is only compared."""
    w = Writer()
    x, y, z = (w.tensor([2], "i8") for _ in range(3))
    square, cube, doubled, same = w.tensor([2], "i8"), w.tensor([2], "i8"), w.tensor([2], "i8"), w.tensor([2], "b1")
    w.operator("MUL", [x, x], [square], "Mul")
    w.operator("MUL", [square, x], [cube], "Mul")
    w.operator("ADD", [y, y], [doubled], "Add")
    w.operator("EQUAL", [z, z], [same])
    w.ends([x, y, z], [cube, doubled, same])
    read = load(w.bytes())
    compiled = nnhal.compile(read, devices="reference")
    names = [each.name for each in compiled.inputs]
    told = ((name, (1 << bits) - 1) for name, bits in zip(names, (10, 30), strict=False))
    assert read.notes == tuple(
        f"values of {name} must be from -{most} to {most}, so that sums and products fit 32 bits" for name, most in told
    )
    given = [np.array(pair) for pair in ((1023, -1023), (2**30 - 1, 1 - 2**30), (2**31 - 1, -(2**31)))]
    for mine, theirs in zip(compiled(*given), litert(w.bytes(), *given), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.tolist() == theirs.tolist()
    for number, beyond in enumerate((1024, -(2**30), 2**31)):
        with pytest.raises(nnhal.InvalidRequest, match=f"{beyond}, must be"):
            compiled(*(np.array([0, beyond]) if n == number else each for n, each in enumerate(given)))


def test_a_file_may_have_many_inputs_of_64_bits():
    """Their ranges take many attempts, which together cost more than one import may."""
    w = Writer()
    given = [w.tensor([1], "i8") for _ in range(50)]
    total = given[0]
    for each in given[1:]:
        total, before = w.tensor([1], "i8"), total
        w.operator("ADD", [before, each], [total], "Add")
    read = load(w.file(given, [total]))
    assert len(read.notes) == len(given)
    compiled = nnhal.compile(read, devices="reference")
    most = [np.array([int(note.split(" to ")[1].split(",")[0])]) for note in read.notes]
    assert compiled(*most) == sum(most) < 2**31


# --------------------------------------------------------------------------------------------------------- what is refused


UNKNOWN = ": is unknown; nnhal.register_custom_operator('MyOwnThing', ...) defines it"


def test_everything_that_nnapi_lacks_is_listed_at_once():
    w = Writer()
    a, b, c, d, e = (w.tensor([1, 4]) for _ in range(5))
    w.operator("MyOwnThing", [a], [b])
    w.operator("BITCAST", [b], [c])
    w.operator("MyOwnThing", [c], [d])
    w.operator("ADD", [d, d], [e], "Add", fusedActivationFunction=5)
    assert refused(w.file([a], [e])) == (
        "model: cannot be expressed in NNAPI: custom operation MyOwnThing #0, #2"
        f"{UNKNOWN}; "
        "BITCAST #1: reads the bits of a number as another type, which no operation of NNAPI does; "
        "ADD #3: activation is SIGN_BIT, which NNAPI does not have"
    )


def test_what_only_follows_from_a_refusal_is_not_listed():
    w = Writer()
    a, text, y = w.tensor([1, 4]), w.tensor([1], "string"), w.tensor([1])
    w.operator("MyOwnThing", [a], [text])
    w.operator("ABS", [text], [y], "Abs")
    assert refused(w.file([a], [y])).endswith("NNAPI: custom operation MyOwnThing #0" + UNKNOWN)


def test_sizes_that_only_stand_in_for_open_ones_are_nobodys_fault():
    """Behind a refused operator nothing but the file says how large a tensor is; what it leaves open it does not say."""
    w = Writer()
    x, y = w.tensor([1, 8, 8, 1]), w.tensor([1, 1, 8, 1], shapeSignature=[1, -1, 8, 1])
    z, flat = w.tensor([1, 1, 7, 1], shapeSignature=[1, -1, 7, 1]), w.tensor([7], shapeSignature=[-1])
    w.operator("MyOwnThing", [x], [y])
    w.operator("AVERAGE_POOL_2D", [y], [z], "Pool2D", padding=1, strideW=1, strideH=1, filterWidth=2, filterHeight=2)
    w.operator("SQUEEZE", [z], [flat], "Squeeze")
    assert refused(w.file([x], [flat])).endswith("NNAPI: custom operation MyOwnThing #0" + UNKNOWN)


def test_a_quotient_of_integers_rounds_towards_zero():
    content = one_operator("DIV", [tensor([6], "i4"), tensor([6], "i4")], [tensor([6], "i4")], "Div")
    model = nnhal.compile(load(content), devices="reference")
    given = np.array([7, -7, 7, -7, -(2**31), 0], np.int32), np.array([2, 2, -2, -2, 3, 5], np.int32)
    assert model(*given).tolist() == [3, -3, -3, 3, -715827882, 0]


# ------------------------------------------------------------------------------------------------------------ real models


@pytest.mark.models
def test_a_streaming_model_carries_its_variables():
    path = zoo.path("wake_okay_nabu")
    model = load(path)
    assert len(model.states) == 6
    stream, generator = nnhal.compile(model, devices="reference").stream(), np.random.default_rng(0)
    engine = LiteRT(path, 1)
    for _ in range(6):
        x = generator.integers(-128, 127, (1, 3, 40), np.int8)
        assert np.array_equal(stream(x), engine([x])[0])


@pytest.mark.models
@pytest.mark.parametrize("batch", [1, 2])
def test_the_widest_model_imports_with_other_batches(batch):
    compiled = nnhal.compile(load(zoo.path("basic_pitch"), shapes=[(batch, 43844, 1)]), devices="reference")
    assert [s.shape for s in compiled.outputs] == [(batch, 172, 88), (batch, 172, 88), (batch, 172, 264)]


@pytest.mark.models
def test_custom_operations_of_a_real_model_are_listed():
    with pytest.raises(nnhal.UnsupportedModel) as caught:
        load(zoo.path("face_landmark_with_attention"))
    for name in ("Landmarks2TransformMatrix #192, #193", "TransformTensorBilinear #195", "TransformLandmarks #701"):
        assert f"custom operation {name}" in str(caught.value)
