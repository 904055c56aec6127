"""Numbers at the edges of their range on the litert device: what XNNPACK or LiteRT alone would get wrong.

Expected values are the operations' definitions, in float64 or written out by hand.
"""

import numpy as np
import pytest

import nnhal
from nnhal import Builder
from nnhal.runtime import discovery
from tests.models import make_model

F32, F16, I32, Q8 = "TENSOR_FLOAT32", "TENSOR_FLOAT16", "TENSOR_INT32", "TENSOR_QUANT8_ASYMM"
NAN, INF = float("nan"), float("inf")
MOST = float(np.finfo(np.float32).max)


def on_litert(name, *inputs, type=F32, **arguments):
    """The outputs of one operation whose first inputs are given at run time."""
    b = Builder()
    arrays = [np.asarray(x, {F32: np.float32, F16: np.float16, I32: np.int32}[type]) for x in inputs]
    tensors = [b.input(x.shape, type) for x in arrays]
    y = b.operation(name, *tensors, **arguments)
    outputs = list(y) if isinstance(y, tuple) else [y]
    compiled = nnhal.compile(b.finish(tensors, outputs), devices="litert", threads=1)
    assert set(compiled.placement.devices()) == {"litert"}
    return compiled(*arrays)


def close(actual, wanted):
    np.testing.assert_allclose(actual, np.asarray(wanted, np.float64), rtol=2e-6, atol=1e-5)


BIG = [8.6e37, 1e38, 2.4e38, MOST]


@pytest.mark.parametrize(
    ("name", "function", "numbers"),
    [
        ("SQRT", np.sqrt, [*BIG, 4.0, 1e-30, INF]),
        ("LOG", np.log, [*BIG, 1.0, 1e-30, INF]),
        ("SIN", np.sin, [6e6, 1e8, 1e20, 3e38, 0.5]),
        ("RSQRT", lambda x: 1 / np.sqrt(x), [0.0, -0.0, 4.0, 1e38, INF]),
        (
            "LOGISTIC",
            lambda x: np.where(x > 0, 1.0, np.where(x < 0, 0.0, 0.5)),
            [4e26, 1e30, MOST, INF, -5e26, -MOST, 0],
        ),
        ("EXP", np.exp, [88.0, 60.0, -100.0, INF, -INF]),
    ],
)
def test_functions_of_great_numbers(name, function, numbers):
    with np.errstate(divide="ignore", invalid="ignore"):
        close(on_litert(name, numbers), function(np.float32(numbers).astype(np.float64)))


@pytest.mark.parametrize("name", ["SQRT", "LOG", "SIN", "RSQRT", "LOGISTIC", "EXP", "TANH", "FLOOR", "ABS"])
def test_functions_of_nan_are_nan(name):
    assert np.isnan(on_litert(name, [NAN, 1.0])).tolist() == [True, False]


@pytest.mark.parametrize("scale", [1e-20, 1e-30, 1.0, 1e18, 1e19, 1e37])
def test_vectors_of_any_length_are_normalised(scale):
    close(on_litert("L2_NORMALIZATION", [[3 * scale, 4 * scale]], axis=-1), [[0.6, 0.8]])


def test_a_vector_of_zeros_stays_one():
    assert on_litert("L2_NORMALIZATION", [[0.0, 0.0]], axis=-1).tolist() == [[0, 0]]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e15, 1e19, 1e30])
def test_instances_of_any_size_are_normalised(scale):
    x = np.array([1.0, 2.0, 3.0]) * scale
    wanted = (x - x.mean()) / np.sqrt(x.var() + 1e-3)
    found = on_litert("INSTANCE_NORMALIZATION", [[[[n] for n in x]]], gamma=1.0, beta=0.0, epsilon=1e-3, nchw=False)
    close(found.ravel(), wanted)


def test_instances_are_left_to_others_where_epsilon_cannot_be_told_from_lost_squares():
    b = Builder()
    x = b.input((1, 1, 3, 1))
    model = b.finish([x], [b.instance_normalization(x, gamma=1.0, beta=0.0, epsilon=0.0, nchw=False)])
    with pytest.raises(nnhal.UnsupportedModel, match="epsilon is 0, must be at least 1e-12 for float32"):
        nnhal.compile(model, devices="litert", fallback="forbid")


@pytest.mark.parametrize("scale", [1.0, 1e18, 1e19, 1e38])
@pytest.mark.parametrize("padding", ["valid", ((0, 0), (1, 1))])
def test_roots_of_mean_squares_of_any_size(scale, padding):
    x = np.array([1.0, 2.0, 1.5]) * scale
    wanted = [np.sqrt((x[:2] ** 2).mean()), np.sqrt((x[1:] ** 2).mean())]
    if padding != "valid":  # windows at the edge hold one element
        wanted = [x[0], *wanted, x[2]]
    found = on_litert("L2_POOL_2D", [[[[n] for n in x]]], filter_size=(1, 2), padding=padding)
    np.testing.assert_allclose(found.ravel(), wanted, rtol=2e-6)


def local(x, radius, bias, alpha, beta):
    sums = [sum(v * v for v in x[max(0, i - radius) : i + radius + 1]) for i in range(len(x))]
    return [v / (bias + alpha * s) ** beta for v, s in zip(x, sums, strict=True)]


@pytest.mark.parametrize(
    "x", [[1e18, 2e18], [1e20, 2e20], [3e38, 1.0, 2.0, 5.0], [45536.0, 2.0, 18432.0, 7.0, 1.0], [1e4, 1.0, 1.0, 1.0]]
)
def test_local_responses_of_small_numbers_beside_great_ones(x):
    wanted = local([float(np.float32(v)) for v in x], 1, 1.0, 1.0, 0.5)
    close(on_litert("LOCAL_RESPONSE_NORMALIZATION", [x], radius=1, bias=1.0, alpha=1.0, beta=0.5, axis=-1), [wanted])


@pytest.mark.parametrize("beta", [0.25, 0.999, 2.0])
def test_log_softmax_of_great_numbers(beta):
    x = np.float32([-2.5e38, 2e38, 1.0]).astype(np.float64)
    wanted = np.maximum(beta * (x - x.max()), -np.inf)
    found = on_litert("LOG_SOFTMAX", x, beta=beta, axis=0)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=2e-6)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("many", [1, 33])
def test_zeros_of_either_sign_are_not_below_zero_for_an_infinite_alpha(constant, many):
    x, alpha = np.float32([0.0, -0.0, 2.0, -3.0, INF] * many), np.full(5 * many, INF, np.float32)
    found = on_litert("PRELU", x, alpha=alpha) if constant else on_litert("PRELU", x, alpha)
    np.testing.assert_array_equal(found, [0.0, 0.0, 2.0, -INF, INF] * many)


@pytest.mark.parametrize("name", ["REDUCE_MAX", "REDUCE_MIN"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_anywhere_makes_an_extreme_of_many_nan(name, place):
    x = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    x[1][place] = NAN
    found = on_litert(name, x, axes=np.int32([1]), keep_dims=False)
    assert np.isnan(found).tolist() == [False, True]


@pytest.mark.parametrize(("name", "wanted"), [("ARGMAX", [2, 1, 0]), ("ARGMIN", [0, 2, 0])])
def test_nan_is_no_extreme_element(name, wanted):
    x = [[1.0, NAN, 3.0], [NAN, 5.0, 2.0], [NAN, NAN, NAN]]
    assert on_litert(name, x, axis=1).tolist() == wanted


def test_nan_comes_last_among_the_greatest():
    values, places = on_litert("TOPK_V2", [NAN, 1.0, 5.0, NAN, 3.0], k=4)
    np.testing.assert_array_equal(values, [5, 3, 1, NAN])
    assert places.tolist() == [2, 4, 1, 3]


def test_nan_becomes_0_in_an_integer():
    assert on_litert("CAST", [NAN, -1.7, 3e9, 300.0], out_type=I32).tolist() == [0, -1, 2**31 - 1, 300]
    assert on_litert("CAST", [NAN, -1.7, 3e9, 255.9], out_type=Q8, scale=1.0).tolist() == [0, 0, 255, 255]


def test_integers_are_rounded_to_float16_within_a_model():
    model = make_model(lambda b, x: b.cast(b.cast(x, out_type=F16), out_type=I32), ((4,), I32))
    found = nnhal.compile(model, devices="litert")(np.int32([2049, 4099, 70000, -65535]))
    assert found.tolist() == [2048, 4100, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("source", ["TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_SYMM_PER_CHANNEL"])
def test_what_float16_cannot_hold_is_infinite_within_a_model(source):
    b = Builder()
    if source == "TENSOR_QUANT8_ASYMM":
        x = b.input((3,), source, 300.0, 0)
        given, inputs = [np.uint8([1, 255, 7])], [x]
    else:
        channel = nnhal.ChannelQuant((300.0, 1000.0, 300.0), 0)
        x, given, inputs = b.constant(np.int8([1, 127, 7]), source, channel=channel), [], []
    one = b.input((3,))
    y = b.add(b.cast(b.dequantize(x, out_type=F16), out_type=F32), one)
    found = nnhal.compile(b.finish([*inputs, one], [y]), devices="litert")(*given, np.zeros(3, np.float32))
    assert found.tolist() == [300, INF, 2100]


@pytest.mark.parametrize(
    ("begin", "end", "stride"), [(-9, 9, 1), (9, -9, -1), (3, -5, -1), (-1, -9, -2), (0, 9, 3), (-4, -1, 1)]
)
def test_parts_in_steps_whose_bounds_lie_outside(begin, end, stride):
    """As a slice of a Python list: the definition counts bounds as it does."""
    x = np.arange(4, dtype=np.float32)
    at = {name: np.int32([n]) for name, n in (("begin", begin), ("end", end), ("strides", stride))}
    found = on_litert("STRIDED_SLICE", x, **at, begin_mask=0, end_mask=0, shrink_mask=0)
    assert found.tolist() == x[begin:end:stride].tolist()


def test_one_element_of_more_dimensions_gives_its_rank():
    assert on_litert("MUL", [2.0, 3.0], [[4.0]]).tolist() == [[8, 12]]


def test_subnormal_numbers_are_as_they_are_or_zero():
    (device,) = discovery.select(["litert"])
    assert "subnormals" in device.relaxations
    assert float(on_litert("FLOOR", [-1e-40])[0]) in (-1.0, 0.0)


@pytest.mark.parametrize("scale", [1e14, 1e15, 9e17, 9e18, 1e19, 1e30, 3e38])
def test_instances_of_several_great_elements_are_normalised(scale):
    """Half of 64 elements are `scale`, half -scale: the mean is 0, the deviation `scale`."""
    x = np.where(np.arange(64) % 2, scale, -scale).reshape(1, 8, 8, 1)
    found = on_litert("INSTANCE_NORMALIZATION", x, gamma=1.0, beta=0.0, epsilon=1e-3, nchw=False)
    np.testing.assert_allclose(found, np.sign(x), rtol=1e-5)


def test_real_numbers_cast_to_float16_are_rounded_within_a_model():
    model = make_model(lambda b, x, one: b.add(b.cast(b.cast(x, out_type=F16), out_type=F32), one), (4,), (4,))
    compiled = nnhal.compile(model, devices="litert")
    assert set(compiled.placement.devices()) == {"litert"}
    found = compiled(np.float32([2049, 4099, 1e5, -0.1]), np.zeros(4, np.float32))
    assert found.tolist() == [2048, 4100, np.inf, float(np.float16(-0.1))]


@pytest.mark.parametrize("axes", [[0], [0, 0], [0, -1], [-1, 0, -1]])
@pytest.mark.parametrize("name", ["REDUCE_SUM", "REDUCE_MAX", "MEAN"])
def test_an_axis_named_twice_counts_once(name, axes):
    wanted = {"REDUCE_SUM": 6, "REDUCE_MAX": 3, "MEAN": 2}[name]
    found = on_litert(name, [1.0, 2.0, 3.0], axes=np.int32(axes), keep_dims=0 if name == "MEAN" else False)
    assert found.tolist() == [wanted]
    twice = np.int32([a if a >= 0 else 0 for a in axes])  # the first of two dimensions
    found = on_litert(name, [[1.0, 2.0], [3.0, 5.0]], axes=twice, keep_dims=0 if name == "MEAN" else False)
    assert found.tolist() == {"REDUCE_SUM": [4, 7], "REDUCE_MAX": [3, 5], "MEAN": [2, 3.5]}[name]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bias", ["given", "computed", "constant"])
@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("explicit", [False, True])
def test_a_filter_as_large_as_the_picture_has_every_place(shape, bias, threads, explicit):
    rng, (height, width) = np.random.default_rng(0), shape
    x, weights, added = (
        rng.integers(-3, 4, dims).astype(np.float32) for dims in ((2, *shape, 3), (2, *shape, 3), (2,))
    )
    b = Builder()
    given = [b.input(x.shape)]
    if bias != "constant":
        given.append(b.input(added.shape))
    z = {"given": lambda: given[1], "computed": lambda: b.neg(given[1]), "constant": lambda: added}[bias]()
    padding = ((0, height - 1), (0, width - 1)) if explicit else "same"
    model = b.finish(given, [b.conv_2d(given[0], weights, z, padding=padding)])
    for xnnpack in (True, False):
        options = {"litert": {"xnnpack": xnnpack}}
        with nnhal.compile(model, devices="litert", threads=threads, driver_options=options) as compiled:
            found = compiled(x, -added if bias == "computed" else added) if bias != "constant" else compiled(x)
        whole = np.pad(x, ((0, 0), (0, height - 1), (0, width - 1), (0, 0)))
        for row, column in np.ndindex(shape):
            part = whole[:, row : row + height, column : column + width]
            np.testing.assert_array_equal(found[:, row, column], np.einsum("bhwc,ohwc->bo", part, weights) + added)


@pytest.mark.parametrize("kind", ["TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED", "TENSOR_FLOAT32"])
@pytest.mark.parametrize(("size", "new"), [(65, 55), (13, 11), (96, 41), (7, 21), (100, 30), (5, 4)])
def test_the_nearest_element_is_that_of_a_position_in_float32(kind, size, new):
    """LiteRT's kernel of 8 bits computes positions in fixed point: the twelfth of 55 from 65 is its fourteenth."""
    b = Builder()
    steps = {"scale": 1.0, "zero_point": 0} if "QUANT" in kind else {}
    x = b.input((1, size, 3, 2), kind, **steps)
    model = b.finish([x], [b.resize_nearest_neighbor(x, out_w=6, out_h=new, nchw=False)])
    compiled = nnhal.compile(model, devices=["litert"], fallback="forbid")
    rows = np.arange(size, dtype=compiled.inputs[0].dtype).reshape(1, size, 1, 1) * np.ones(
        (1, 1, 3, 2), compiled.inputs[0].dtype
    )
    step = np.float32(size) / np.float32(new)
    wanted = np.floor(np.arange(new, dtype=np.float32) * step)
    np.testing.assert_array_equal(np.asarray(compiled(rows))[0, :, 5, 1], wanted)


@pytest.mark.parametrize(("size", "new"), [(65, 55), (4, 8)])
def test_the_nearest_elements_of_any_number_of_pictures(size, new):
    b = Builder()
    x = b.input((None, size, 3, 2), Q8, scale=1.0, zero_point=0)
    model = b.finish([x], [b.resize_nearest_neighbor(x, out_w=6, out_h=new, nchw=False)])
    compiled = nnhal.compile(model, devices=["litert"], fallback="forbid")
    taken = np.floor(np.arange(new, dtype=np.float32) * (np.float32(size) / np.float32(new))).astype(int)
    for count in (1, 3):
        pictures = np.random.default_rng(count).integers(0, 256, (count, size, 3, 2), np.uint8)
        wanted = pictures[:, taken].repeat(2, axis=2)
        np.testing.assert_array_equal(compiled(pictures), wanted)
