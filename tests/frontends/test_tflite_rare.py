"""Forms of operators that files seldom have: computed arguments, numbers of 64 bits as arguments, results nobody reads."""

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.frontends.common.budget import Budget, Cost
from nnhal.frontends.tflite import load
from nnhal.frontends.tflite.reader import read
from tests.frontends.cases import (
    RANDOM,
    Case,
    X,
    agrees,
    b,
    begin,
    bias,
    c,
    channels,
    check,
    f,
    file_of,
    i,
    malformed,
    out,
    q,
    refused,
    run,
)
from tests.frontends.flat import Writer, one_operator, tensor

begin(__name__)

WIDE = np.linspace(-4, 9, 300, dtype="f4")
CASES: list[Case] = [
    *[
        ("FAKE_QUANT", [X(WIDE)], [out(300)], "FakeQuant", {"min": low, "max": high, "numBits": bits, "narrowRange": False})
        for low, high, bits in (
            (-1.0, 6.0, 8),
                        (0.0, 6.0, 4),
            (-3.0, 0.0, 8),
            (-2.5, 7.3, 16),
            (-1.0, 1.0, 2),
        )
    ],
    ("GELU", [X(WIDE)], [out(300)], "Gelu", {"approximate": True}),
    ("GELU", [X(WIDE)], [out(300)], "Gelu", {"approximate": False}),
    ("RESHAPE", [f(2, 6), X(np.array([3, 4], "i4"), "i4")], [out(3, 4)]),
    ("SLICE", [f(3, 4), c([1, 0]), X(np.array([2, 3], "i4"), "i4")], [out(2, 3)]),
    ("SELECT_V2", [b(2, 3), b(3), b(1, 1)], [out(2, 3, kind="b1")]),
    ("TILE", [f(2, 3), c([2, 1], "i8")], [out(4, 3)]),
    ("TRANSPOSE", [f(2, 3, 4), X(np.array([2, 0, 1], "i4"), "i4")], [out(4, 2, 3)]),
    ("PAD", [f(2, 3), X(np.array([[1, 0], [0, 2]], "i4"), "i4")], [out(3, 5)]),
    ("SUM", [f(2, 3), X(np.array([1], "i4"), "i4")], [out(2)], "Reducer"),
    ("DEPTHWISE_CONV_2D", [q(1, 4, 5, 3), q(1, 2, 2, 3, scale=0.01, zero=0, constant=True), bias(3, 0.0005)],
     [out(1, 4, 5, 3, kind="i1", scale=0.1)], "DepthwiseConv2D",
     {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1, "depthMultiplier": 1}),
    ("SQUEEZE", [i(1, 1)], [out(kind="i4")], "Squeeze"),
    ("SCATTER_ND", [c([[[0], [2]], [[4], [1]]]), f(2, 2, 3), c([5, 3])], [out(5, 3)]),
    ("PACK", [f(2, 3), f(2, 3)], [out(2, 3, 2)], "Pack", {"axis": -1, "valuesCount": 2}),
    ("PACK", [f(2, 3), f(2, 3)], [out(2, 2, 3)], "Pack", {"axis": -2, "valuesCount": 2}),
    ("GATHER", [b(5, 3), X(np.array([4, 0, 2], "i4"), "i4")], [out(3, 3, kind="b1")], "Gather"),
    ("SLICE", [b(3, 4), X(np.array([1, 0], "i4"), "i4"), X(np.array([2, 3], "i4"), "i4")], [out(2, 3, kind="b1")]),
    ("FULLY_CONNECTED", [q(4, 1), channels((3, 1), 0), bias(3, [0.001, 0.002, 0.003])], [out(4, 3, kind="i1", scale=0.05)],
     "FullyConnected"),
    ("MAXIMUM", [f(2, 1, 3, 1, 5, 2), f(1, 4, 1, 2, 1, 2)], [out(2, 4, 3, 2, 5, 2)]),
    ("ABS", [f(1, 2, 1, 3, 1, 2)], [out(1, 2, 1, 3, 1, 2)], "Abs"),
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case[0]}-{n}") for n, case in enumerate(CASES)])
def test_an_operator_gives_what_litert_gives(case):
    check(case)


@pytest.mark.parametrize(
    ("low", "high", "bits"), [(0.1, 1.0, 8), (-1.0, -0.1, 8), (0.0, 0.0, 8), (-1.0, 1.0, 1), (-1.0, 1.0, 17)]
)
def test_a_range_without_0_or_of_no_or_too_many_bits_is_refused(low, high, bits):
    content, _ = file_of("FAKE_QUANT", [f(4)], [out(4)], "FakeQuant", min=low, max=high, numBits=bits)
    refused(content, f"FAKE_QUANT #0: has range .* in {bits} bits")


def test_a_narrow_range_leaves_out_the_lowest_step():
    """LiteRT does not run it: the definition in double precision, of numbers that lie on no edge between steps."""
    content, fed = file_of(
        "FAKE_QUANT", [X(WIDE)], [out(300)], "FakeQuant", min=-1.0, max=6.0, numBits=8, narrowRange=True
    )
    scale = 7 / 254
    zero = np.round(1 + 1 / scale)
    steps = np.clip(np.round(WIDE.astype("f8") / scale) + zero, 1, 255)
    far = np.abs(WIDE / scale % 1 - 0.5) > 0.01
    np.testing.assert_allclose(run(content, fed)[0][far], ((steps - zero) * scale)[far], atol=1e-5)


def test_a_bias_that_is_computed_has_the_scale_of_the_products():
    w = Writer()
    x, weights = w.tensor([2, 3], "i1", scale=0.02), w.tensor([4, 3], "i1", np.arange(12) - 6, scale=0.01)
    first, second, total = w.tensor([4], "i4"), w.tensor([4], "i4"), w.tensor([4], "i4")
    y = w.tensor([2, 4], "i1", scale=0.05)
    w.operator("ADD", [first, second], [total], "Add")
    w.operator("FULLY_CONNECTED", [x, weights, total], [y], "FullyConnected")
    w.ends([x, first, second], [y])
    given = [RANDOM.integers(-128, 128, (2, 3)).astype("i1"), *(RANDOM.integers(-900, 900, (2, 4)).astype("i4"))]
    agrees(w.bytes(), given)


def test_results_that_nobody_reads_are_left_out():
    w = Writer()
    x, k, values, places = w.tensor([2, 7]), w.tensor([], "i4", 3), w.tensor([2, 3]), w.tensor([2, 3], "i4")
    w.operator("TOPK_V2", [x, k], [values, places])
    w.ends([x], [values])
    given = RANDOM.permutation(14).reshape(2, 7).astype("f4")
    agrees(w.bytes(), [given])
    model = load(w.bytes())
    assert [o.op.name for o in nnhal.validate(model).subgraphs[0].operations] == ["TOPK_V2"]


def test_the_rank_and_the_shape_of_what_is_known_are_numbers():
    w = Writer()
    x, rank, shape, y = w.tensor([2, 3]), w.tensor([], "i4"), w.tensor([2], "i4"), w.tensor([2], "i4")
    w.operator("RANK", [x], [rank])
    w.operator("SHAPE", [x], [shape], "Shape")
    w.operator("ADD", [rank, shape], [y], "Add")
    assert run(w.file([x], [y]), [np.zeros((2, 3), "f4")])[0].tolist() == [4, 5]


@pytest.mark.parametrize("size", [4096, 4097])
def test_zeros_are_a_constant_up_to_4096_of_them(size):
    w = Writer()
    x, zeros, y = w.tensor([size]), w.tensor([size]), w.tensor([size])
    w.operator("ZEROS_LIKE", [x], [zeros])
    w.operator("ADD", [x, zeros], [y], "Add")
    w.ends([x], [y])
    names = [o.op.name for o in nnhal.validate(load(w.bytes())).subgraphs[0].operations]
    assert names == (["ADD"] if size == 4096 else ["FILL", "ADD"])
    given = np.arange(size, dtype="f4")
    assert run(w.bytes(), [given])[0].tolist() == given.tolist()


@pytest.mark.parametrize("size", [10, 5000])
def test_zeros_of_eight_bits_are_the_stored_value_of_0(size):
    y = out(size, kind="i1", scale=0.05, zero=3)
    content, fed = file_of("ZEROS_LIKE", [q(size)], [y])
    assert set(run(content, fed)[0].tolist()) == {3}


def test_an_argument_of_64_bits_must_be_known_and_fit():
    for x, says in (
        (c([2**31, 1], "i8"), "multiples holds numbers that do not fit into 32 bits"),
        (c([-(2**31) - 1, 1], "i8"), "multiples holds numbers that do not fit into 32 bits"),
        (X(np.zeros(2, "f4"), "f4"), "multiples is FLOAT32, must be INT32"),
    ):
        refused(file_of("TILE", [f(2, 3), x], [out(4, 3)])[0], f"TILE #0: {says}")


def test_shapes_that_do_not_broadcast_are_refused_by_their_shapes():
    content, _ = file_of("SELECT_V2", [b(2, 3), f(4), f(4)], [out(2, 3)])
    refused(content, r"SELECT_V2 #0: shapes \[2, 3\], \[4\], \[4\] do not broadcast")


@pytest.mark.parametrize("kind", ["f8", "string"])
def test_a_type_that_nnapi_lacks_is_named_with_its_tensor(kind):
    x = X(np.zeros(2, "f8" if kind == "f8" else "f4"), kind)
    content, _ = file_of("ABS", [x], [out(2, kind=kind)], "Abs")
    refused(content, r"'t0' is (FLOAT64|STRING), which NNAPI has no type for")
    content, _ = file_of("ABS", [f(2)], [out(2, kind=kind)], "Abs")
    refused(content, r"ABS #0: output 0, 't1' is (FLOAT64|STRING), which NNAPI has no")


@pytest.mark.parametrize(
    ("scale", "zero", "kind", "says"),
    [
        ([0.1, 0.2], 3, "i1", "has zero points other than 0 per channel"),
        ([0.1, 0.2], 0, "u1", "is UINT8 per channel, must be INT8 for NNAPI"),
        (0.1, 5, "i2", "is INT16 with zero point 5, must be 0"),
    ],
)
def test_quantisation_that_nnapi_lacks_is_named_with_its_tensor(scale, zero, kind, says):
    table = X(np.ones((2, 3), kind), kind, scale, zero, True)
    content, _ = file_of("FULLY_CONNECTED", [q(2, 3), table, None], [out(2, 2, kind="i1", scale=1.0)], "FullyConnected")
    refused(content, f"FULLY_CONNECTED #0: input 1, 't1' {says}")


def test_a_boolean_that_is_given_back_as_it_is_or_as_a_scalar_is_copied():
    for shape, kind in (([1], "b1"), ([], "b1"), ([1], "f4"), ([], "i4")):
        w = Writer()
        x, wanted = w.tensor([1], kind), w.tensor([len(shape)], "i4", shape)
        y = w.tensor(shape, kind)
        w.operator("RESHAPE", [x, wanted], [y])
        w.ends([x], [x, y])
        given = np.array([1], {"b1": bool}.get(kind, kind))
        same, other = run(w.bytes(), [given])
        assert (same.shape, other.shape) == ((1,), tuple(shape))
        assert same.item() == other.item() == given.item()


def test_an_operator_that_is_given_too_many_or_too_few_tensors_is_a_bad_file():
    for name, count, says in (
        ("ABS", 2, "has 2 inputs, must have 1"),
        ("RESHAPE", 3, "has 3 inputs, must have 1 to 2"),
        ("ADD_N", 0, "has 0 inputs, must have 1 or more"),
    ):
        content, _ = file_of(name, [f(2)] * count, [out(2)])
        malformed(content, rf"subgraph 0 operator 0 \({name}\): {says}")
    content, _ = file_of("ABS", [f(2)], [out(2), out(2)], "Abs")
    malformed(content, "has 2 outputs, must have 1")


def test_an_input_that_is_left_out_is_named():
    content, _ = file_of("FULLY_CONNECTED", [f(2, 3), None, None], [out(2, 4)], "FullyConnected")
    refused(content, "FULLY_CONNECTED #0: input 1 is omitted, must be given")


def test_an_update_of_a_mebi_of_elements_is_moved_one_by_one():
    whole = X(np.broadcast_to(np.zeros((), "f4"), (1 << 20,)))
    content, _ = file_of("DYNAMIC_UPDATE_SLICE", [whole, f(2), c([0])], [out(1 << 20)], "DynamicUpdateSlice")
    assert load(content).main.operations


@pytest.mark.parametrize("open_", [0, -1])
def test_0_and_minus_1_leave_a_dimension_of_an_input_open(open_):
    content = one_operator("ABS", [tensor([2, 3])], [tensor([2, 3])], "Abs")
    for shapes in ({"t0": (open_, 3)}, [(open_, 3)]):
        compiled = nnhal.compile(load(content, shapes=shapes), devices="reference")
        assert compiled.inputs[0].shape == (None, 3)
        assert compiled(-np.ones((5, 3), "f4")).tolist() == [[1] * 3] * 5
    refused(content, "shapes", nnhal.InvalidArgument, shapes=[(-2, 3)])


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1, 2, 2)])
def test_eight_bits_that_nnapi_takes_are_not_made_real(shape):
    y = out(*shape, kind="i1", scale=0.13, zero=-7)
    content, fed = file_of("ADD", [q(*shape), q(*shape, scale=0.1)], [y], "Add")
    names = [o.op.name for o in nnhal.validate(load(content)).subgraphs[0].operations]
    assert "ADD" in names and "DEQUANTIZE" not in names
    agrees(content, fed)


@pytest.mark.parametrize(("zeros", "wrong"), [([0, 300], 300), ([-1, 0], -1), ([256, 0], 256), ([0, -5], -5)])
def test_any_zero_point_out_of_range_is_named(zeros, wrong):
    w = Writer()
    x, y = w.tensor([2, 2], "u1", scale=[0.5, 0.5], zero=zeros), w.tensor([2, 2], "u1", scale=1.0)
    w.operator("RELU", [x], [y])
    malformed(w.file([x], [y]), f"tensor 0: has zero point {wrong}, must be 0 to 255")


def test_zero_points_are_one_for_all_scales_or_one_each():
    def spoil(model):
        model.subgraphs[0].tensors[0].quantization.zeroPoint = [0, 0, 0]

    w = Writer()
    x, y = w.tensor([2, 2], "u1", scale=[0.5, 0.5]), w.tensor([2, 2], "u1", scale=1.0)
    w.operator("RELU", [x], [y])
    w.ends([x], [y])
    malformed(w.bytes(spoil), "tensor 0: has 3 zero points, must be 2, one for each scale")


def paid(**changes: object) -> dict[Cost, int]:
    """What reading a file of one tensor takes from its allowances."""

    def change(model):
        for name, value in changes.items():
            setattr(model.subgraphs[0].tensors[0], name, value)

    w = Writer()
    x, y = w.tensor([2, 2], "u1", scale=[0.5, 0.5]), w.tensor([2, 2], "u1", scale=1.0)
    w.operator("RELU", [x], [y])
    w.ends([x], [y])
    content = w.bytes(change)
    file = read(np.frombuffer(content, np.uint8), "x")
    return {cost: Budget("x", len(content)).left[cost] - left for cost, left in file.budget.left.items()}


def test_every_record_is_paid_by_its_bytes():
    before = paid()
    for changes, more in (
        ({"name": "t" * 102}, 100),
        ({"shape": [2, 2, 1]}, 4),
        ({"shapeSignature": [-1, 2]}, 8),
    ):
        after = paid(**changes)
        assert after[Cost.RECORDS] - before[Cost.RECORDS] == more
        assert after[Cost.TABLES] == before[Cost.TABLES]
    w = Writer()
    x = w.tensor([1], name="")
    content = w.file([x], [x])
    left = read(np.frombuffer(content, np.uint8), "x").budget.left
    whole = Budget("x", len(content)).left
    assert whole[Cost.TABLES] - left[Cost.TABLES] == 3  # a subgraph, a tensor, a buffer
    assert whole[Cost.RECORDS] - left[Cost.RECORDS] == 3 * 4 + 4 + 2 * 4  # references, a shape, the ends


def shaped(*shape: int, kind: str = "f4") -> X:
    """An input of which only the shape counts: it takes no room."""
    return X(np.broadcast_to(np.zeros((), kind), shape), kind)


LARGEST: dict[str, Case] = {
    "a mebi of units": ("FULLY_CONNECTED", [f(1, 1), shaped(1 << 20, 1), None], [out(1, 1 << 20)], "FullyConnected"),
    "a mean of 46,340 integers": ("MEAN", [shaped(46340, kind="i4"), c([0])], [out(kind="i4")], "Reducer"),
    "a mebi of classes": (
        "ONE_HOT",
        [shaped(1, kind="i4"), c(1 << 20), c(1.0, "f4"), c(0.0, "f4")],
        [out(1, 1 << 20)],
        "OneHot",
        {"axis": -1},
    ),
    "one class": ("ONE_HOT", [shaped(2, kind="i4"), c(1), c(1.0, "f4"), c(0.0, "f4")], [out(2, 1)], "OneHot", {"axis": -1}),
    "the least threshold": (
        "NON_MAX_SUPPRESSION_V4",
        [f(3, 4), f(3), c(1), c(0.5, "f4"), c(-3.4028232635611926e38, "f4")],
        [out(1, kind="i4"), out(kind="i4")],
    ),
    "boundaries of 31 bits": ("BUCKETIZE", [shaped(3, kind="i4")], [out(3, kind="i4")], "Bucketize",
                              {"boundaries": [-2147483520.0, 2147483520.0]}),
    "embeddings of eight dimensions": (
        "EMBEDDING_LOOKUP_SPARSE",
        [c([1]), c([[0] * 8]), c([1] * 8), f(1), f(3, 4)],
        [out(*[1] * 7, 4)],
        "EmbeddingLookupSparse",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LARGEST)
def test_the_largest_that_may_be_is_taken(what):
    assert load(file_of(*LARGEST[what])[0]).main.operations


@pytest.mark.parametrize("name", ["RIGHT_SHIFT", "STABLEHLO_SHIFT_LEFT"])
def test_bits_that_are_moved_by_more_than_there_are_leave_the_sign_or_nothing(name):
    """LiteRT's result is what the processor makes it."""
    numbers, steps = np.array([-7, 7, -7, 7, -7, 7], "i4"), np.array([31, 31, 32, 33, 100, 2**31 - 1], "i4")
    (found,) = run(*file_of(name, [X(numbers, "i4"), X(steps, "i4")], [out(6, kind="i4")]))
    left = [(n << min(k, 32)) & 0xFFFFFFFF for n, k in zip(numbers.tolist(), steps.tolist(), strict=True)]
    right = [-1, 0] * 3
    assert found.tolist() == (right if name == "RIGHT_SHIFT" else [n - (n >> 31 << 32) for n in left])


def test_an_update_of_a_scalar_takes_its_place():
    """LiteRT's kernel wants dimensions."""
    (found,) = run(*file_of("DYNAMIC_UPDATE_SLICE", [f(), X(np.float32(7)), c([])], [out()], "DynamicUpdateSlice"))
    assert found.shape == () and found == 7


def test_bytes_without_a_scale_are_made_real_in_one_step():
    content, _ = file_of("CAST", [X(np.zeros(3, "i1"), "i1")], [out(3)], "Cast")
    assert [OperationType(o.type).name for o in load(content).main.operations] == ["DEQUANTIZE"]


def test_integers_are_squeezed_by_giving_them_the_shape():
    """NNAPI's SQUEEZE takes none."""
    for shape, left in (((1, 1), ()), ((2, 1, 3), (2, 3))):
        model = load(file_of("SQUEEZE", [i(*shape)], [out(*left, kind="i4")], "Squeeze")[0])
        assert [OperationType(o.type).name for o in model.main.operations] == ["RESHAPE"]


def test_zero_points_that_are_not_there_are_0():
    w = Writer()
    x, y = w.tensor([3], "u1", scale=0.5, zero=9), w.tensor([3])
    w.graph.tensors[x].quantization.zeroPoint = None
    w.operator("DEQUANTIZE", [x], [y])
    (found,) = run(w.file([x], [y]), [np.uint8([0, 1, 200])])
    assert found.tolist() == [0, 0.5, 100]


@pytest.mark.parametrize(("shape", "taken"), [((2, -1, 4), True), ((-1, -1, 4), False)])
def test_a_result_may_have_one_dimension_that_is_known_only_at_execution(shape, taken):
    w = Writer()
    x, weights, y = w.tensor([2, 3, 4]), w.tensor([5, 4], "f4", np.ones((5, 4))), w.tensor([2, 3, 5])
    w.operator("FULLY_CONNECTED", [x, weights, -1], [y], "FullyConnected", keepNumDims=True)
    content = w.file([x], [y])
    if taken:
        assert load(content, shapes=[shape]).main.operations
    else:
        with pytest.raises(nnhal.UnsupportedModel, match="more than one dimension is known only at execution"):
            load(content, shapes=[shape])
