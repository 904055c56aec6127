"""Features, linear models, support vectors and distances, as ONNX Runtime computes them, or refused by name."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from nnhal import load
from tests.frontends.cases import malformed, refused
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, check, check_nodes, model, node, operations

ML = "ai.onnx.ml"
DEVICES = "reference", "litert", "onnxruntime", "openvino"
ROWS = np.float32([[1, 2, -3], [-1, 0.5, 4], [0, 0, 0], [-2, -3, -4], [0, -1.5, 0], [3, -3, 0]])


def one(op: str, x: Any = ROWS, outputs: str = "y", **attributes: Any) -> tuple[Any, dict[str, Any]]:
    """A model of one node, and its inputs."""
    made = model([node(op, "x", outputs, domain=ML, **attributes)], {"x": x}, outputs=outputs)
    if outputs == "label y" or (op == "Imputer" and x.dtype == np.int64):
        made.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return made, {"x": x}


# ---------------------------------------------------------------------------------------------------------------- features


@pytest.mark.parametrize("x", [ROWS, ROWS.astype(np.int64)], ids=["reals", "integers"])
@pytest.mark.parametrize(("offset", "scale"), [([1.5], [0.25]), ([1.0, -2.0, 0.5], [2.0, 0.1, 3.0])])
def test_features_are_scaled(x: Any, offset: list[float], scale: list[float]) -> None:
    check(*one("Scaler", x, offset=offset, scale=scale))


@pytest.mark.parametrize("x", [ROWS, ROWS[0], ROWS.astype(np.int64)], ids=["rows", "a vector", "integers"])
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_are_divided_by_their_norm_except_for_0(norm: str, x: Any) -> None:
    check(*one("Normalizer", x, norm=norm))


def test_what_is_above_a_threshold_is_1() -> None:
    check(*one("Binarizer", threshold=0.5))


def test_features_of_double_give_doubles() -> None:
    """By ONNX's reference: ONNX Runtime has no such kernel."""
    made, inputs = one("Binarizer", ROWS.astype(np.float64), threshold=0.5)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    (found,) = by_nnhal(made, inputs)
    (expected,) = ReferenceEvaluator(made).run(None, inputs)
    assert found.dtype == expected.dtype == np.float64 and found.tolist() == expected.tolist()


@pytest.mark.parametrize("replaced", [0.0, -3.0, float("nan")])
@pytest.mark.parametrize("new", [[7.0], [7.0, 8.0, -9.0]])
def test_missing_values_are_replaced_for_each_feature(replaced: float, new: list[float]) -> None:
    x = np.where(ROWS == 2, np.float32(np.nan), ROWS)
    check(*one("Imputer", x, replaced_value_float=replaced, imputed_value_floats=new))


def test_missing_integers_are_replaced() -> None:
    check(*one("Imputer", ROWS.astype(np.int64), replaced_value_int64=-3, imputed_value_int64s=[5, 6, 7]))


@pytest.mark.parametrize(
    "x", [ROWS, ROWS[0], ROWS.reshape(2, 3, 3), ROWS.astype(np.int64), ROWS.astype(np.float64), ROWS[0].astype("f8")]
)
@pytest.mark.parametrize("computed", [False, True])
def test_features_are_extracted_by_number(x: Any, computed: bool) -> None:
    numbers = {"n": np.int64([[2], [0], [0]])}
    inputs = {"x": x} | (numbers if computed else {})
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    made = model([node("ArrayFeatureExtractor", "x n", domain=ML)], inputs, {} if computed else numbers, otherwise=kind)
    check(made, inputs)


@pytest.mark.parametrize("x", [ROWS, ROWS[0].astype(np.float64)], ids=["rows", "a vector of doubles"])
def test_features_of_constants_are_extracted_at_import(x: Any) -> None:
    nodes = [node("ArrayFeatureExtractor", "c n", "some", domain=ML), node("Cast", "some", "real", to=1)]
    made = model([*nodes, node("Add", "z real")], {"z": x[..., :2].astype(np.float32)}, {"c": x, "n": np.int64([2, 0])})
    check(made, {"z": x[..., :2].astype(np.float32)}, becomes=["ADD"])
    made.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.int64([-1, 0]), "n"))
    refused(made, "has an index outside of the 3 features")


@pytest.mark.parametrize("x", [ROWS, ROWS.astype(np.int64), ROWS[:, 0]], ids=["reals", "integers", "a vector"])
def test_categories_have_a_place_each(x: Any) -> None:
    check(*one("OneHotEncoder", x + x.dtype.type(0.75), cats_int64s=[1, 2, -3, 0]))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_no_integer_of_32_bits_has_no_category(device: str) -> None:
    x = np.float32([[np.nan, 3e9], [np.inf, -3e9], [-np.inf, 2**31], [2.0**32 + 512, -(2.0**31)], [-0.5, 1.5]])
    made, inputs = one("OneHotEncoder", x, cats_int64s=[0, 1, 2, 2**31 - 1, -(2**31)])
    assert check(made, inputs, device=device)[0].sum() == 3


VALUES = {"values_int64s": [10, 20, 30, 40], "default_int64": -7}, {"values_floats": [0.5, 1.5, 2.5, 3.5]}


@pytest.mark.parametrize("values", VALUES, ids=["integers", "reals"])
@pytest.mark.parametrize("x", [ROWS, ROWS.astype(np.int64), ROWS[0]], ids=["of reals", "of integers", "of a vector"])
def test_labels_are_encoded(x: Any, values: dict[str, Any]) -> None:
    whole = x.dtype == np.int64
    keys = {"keys_int64s": [1, 2, -3, 4]} if whole else {"keys_floats": [1.0, 2.0, -3.0, 4.0]}
    made, inputs = one("LabelEncoder", x, **keys, **values)
    if "values_int64s" in values:
        made.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    check(made, inputs)


@pytest.mark.parametrize(
    ("keys", "values", "default"),
    [
        (np.float32([1, 2, -3, 4]), np.int64([10, 20, 30, 40]), np.int64([-7])),
        (np.int64([1, 2, -3, 4]), np.float32([0.5, np.nan, 2.5, 3.5]), np.float32([np.inf])),
        (np.int64([1, 2, -3, 4]), np.float64([0.1, np.nan, 2.5, 3.5]), np.float64([np.inf])),
        (np.float64([1, 0.5, -3, 4]), np.float64([0.5, np.nan, 0.7, 3.5]), np.float64([-0.1])),
        (np.float64([1, 0.5, -3, 4]), np.int64([10, 20, 30, 40]), np.int64([-7])),
    ],
    ids=["integers", "reals", "doubles of integers", "doubles of doubles", "integers of doubles"],
)
def test_labels_may_be_encoded_by_tensors(keys: Any, values: Any, default: Any) -> None:
    how = {"keys": keys, "values": values, "default": default}
    tensors = {f"{name}_tensor": numpy_helper.from_array(each, name) for name, each in how.items()}
    made, inputs = one("LabelEncoder", ROWS.astype(keys.dtype), **tensors)
    made.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(values.dtype)
    next(each for each in made.opset_import if each.domain == ML).version = 4
    check(made, inputs)


def test_features_of_several_inputs_are_joined() -> None:
    check_nodes(node("FeatureVectorizer", "x z", domain=ML, inputdimensions=[3, 1]), {"x": ROWS, "z": ROWS[:, :1]})


@pytest.mark.parametrize(
    ("op", "how", "match"),
    [
        ("OneHotEncoder", {"cats_int64s": [1, 2], "zeros": 0}, "fails for a value of no category"),
        ("OneHotEncoder", {"cats_int64s": [1, 1]}, "has a category twice"),
        ("OneHotEncoder", {"cats_int64s": [1, 2**31]}, "has cats of more than the 32 bits"),
        ("OneHotEncoder", {"cats_strings": ["a"]}, "has no cats that are numbers"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, "has no keys that are numbers"),
        ("LabelEncoder", {"keys_floats": [1.0], "values_int64s": [1, 2]}, "has 1 keys and 2 values"),
        ("LabelEncoder", {"keys_int64s": [1], "values_int64s": [1]}, "of FLOAT has keys of another type"),
        ("LabelEncoder", {"keys_floats": [1.0, 1.0], "values_int64s": [1, 2]}, "has a key twice"),
        ("LabelEncoder", {"keys_floats": [float("nan")], "values_int64s": [1]}, "has NaN among its keys"),
        (
            "LabelEncoder",
            {"keys_floats": [1.0], "values_int64s": [1], "default_int64": 2**31},
            "default_int64 is 2147483648, must fit the 32 bits",
        ),
        (
            "LabelEncoder",
            {"keys_floats": [1.0], "values_int64s": [1], "default_tensor": numpy_helper.from_array(np.float32([1]))},
            "default_tensor must be one number of the values' type",
        ),
        ("FeatureVectorizer", {"inputdimensions": [2]}, r"has inputs of \[3\] features, must have \[2\]"),
    ],
)
def test_other_encoders_are_refused_by_name(op: str, how: dict[str, Any], match: str) -> None:
    refused(one(op, **how)[0], match)


# ---------------------------------------------------------------------------------------------------------- linear models


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", [{"targets": 1}, {"targets": 2}, {"targets": 2, "post_transform": "SOFTMAX"}])
def test_a_linear_model_weights_features_for_each_target(how: dict[str, Any], device: str) -> None:
    weights = [0.5, -0.25, 1.0, 2.0, 0.0, -1.0][: 3 * how["targets"]]
    check(*one("LinearRegressor", coefficients=weights, intercepts=[0.5, -1.0][: how["targets"]], **how), device=device)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize(("units", "classes"), [(1, 2), (2, 2), (3, 3)])
def test_a_linear_classifier_has_labels_and_scores(units: int, classes: int, transform: str) -> None:
    weights = [0.5, -0.25, 1.0, 2.0, 0.0, -1.0, 0.25, 0.25, 0.5][: 3 * units]
    how = {"intercepts": [0.0, -1.0, 0.5][:units], "classlabels_ints": [7, -3, 12][:classes]}
    made, inputs = one("LinearClassifier", ROWS, "label y", coefficients=weights, post_transform=transform, **how)
    labels = check(made, inputs)[0]
    assert len(set(labels.tolist())) > 1


def test_a_map_of_scores_is_the_scores_in_the_order_of_the_labels() -> None:
    made = model([node("ZipMap", "x", domain=ML, classlabels_int64s=[4, 2, 9])], {"x": ROWS})
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    made.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(maps))
    (rows,) = by_onnxruntime(made, {"x": ROWS})
    (found,) = by_nnhal(made, {"x": ROWS})
    np.testing.assert_array_equal(found, np.float32([[row[label] for label in (4, 2, 9)] for row in rows]))
    metadata = load(made.SerializeToString()).metadata
    assert metadata is not None and metadata.labels(metadata.outputs[0]) == ("4", "2", "9")


@pytest.mark.parametrize(
    ("op", "how", "match"),
    [
        ("Normalizer", {"norm": "L3"}, "norm is L3"),
        ("Imputer", {"imputed_value_floats": [1.0, 2.0]}, "has 2 numbers, must have 1 or 3"),
        ("Imputer", {"replaced_value_float": 1.0}, "has 0 numbers, must have 1 or 3"),
        ("LinearRegressor", {"coefficients": [1.0] * 4}, "must have rows of"),
        ("LinearRegressor", {"coefficients": ["a"]}, "attribute coefficients is .*, must be floats"),
        ("LinearRegressor", {"coefficients": [1.0] * 3, "post_transform": "PROBIT"}, "a post_transform of one target"),
        ("LinearRegressor", {"coefficients": [1.0] * 6, "intercepts": [1.0], "targets": 2}, "has 1 intercepts"),
        ("LinearRegressor", {"coefficients": [1.0] * 3, "targets": -1}, "must have as many for each of -1 outputs"),
        ("SVMClassifier", {"classlabels_ints": [1]}, "has 1 class labels, must have at least 2"),
        ("SVMRegressor", {"coefficients": [1.0] * 3}, "has 0 rho"),
        ("SVMRegressor", {"coefficients": [1.0] * 2, "rho": [0.0], "n_supports": 2}, "numbers in support_vectors"),
        (
            "SVMRegressor",
            {"coefficients": [1.0], "rho": [0.0], "n_supports": 1, "support_vectors": [1.0] * 3, "kernel_type": "X"},
            "kernel_type is X",
        ),
    ],
)
def test_other_estimators_are_refused_by_name(op: str, how: dict[str, Any], match: str) -> None:
    refused(one(op, **how)[0], match)


def test_a_function_of_one_score_must_be_known() -> None:
    how = {"coefficients": [1.0] * 3, "intercepts": [0.0], "classlabels_ints": [1, 2]}
    made, inputs = one("LinearClassifier", ROWS, "label y", post_transform="SOFTMAX_ZERO", **how)
    check(made, inputs)
    made, _ = one("LinearClassifier", ROWS, "label y", post_transform="PROBIT", **how)
    refused(made, "post_transform is PROBIT of one score, must be one of NONE")


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"classlabels_ints": [1, 2, 3]}, "2 intercepts, must have one for each of 3 classes"),
        ({"classlabels_ints": [1, 2**31]}, "labels of more than the 32 bits"),
    ],
)
def test_classifiers_without_usable_labels_are_refused(how: dict[str, Any], match: str) -> None:
    refused(one("LinearClassifier", ROWS, "label y", coefficients=[1.0] * 6, intercepts=[0.0, 1.0], **how)[0], match)


def labelled(*more: Any, kind: int = TensorProto.STRING) -> Any:
    """A classifier whose labels are texts, and nodes behind it; the first output is `y`."""
    how = {"coefficients": [0.5, -0.25, 1.0, -0.5, 0.25, 0.0], "intercepts": [0.0, 0.125]}
    first = node("LinearClassifier", "x", "label scores", domain=ML, classlabels_strings=["cat", "a\ndog"], **how)
    made = model([first, *more], {"x": ROWS}, outputs="y scores")
    made.graph.output[0].type.tensor_type.elem_type = kind
    return made


def test_labels_that_are_texts_are_their_places_and_stand_in_the_metadata() -> None:
    made = labelled(node("Identity", "label"))
    texts, scores = by_onnxruntime(made, {"x": ROWS})
    places, found = by_nnhal(made, {"x": ROWS})
    assert [["cat", "a\ndog"][n] for n in places] == texts.tolist() and set(places.tolist()) == {0, 1}
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-6)
    metadata = load(made.SerializeToString()).metadata
    assert metadata is not None
    assert [metadata.labels(each) for each in metadata.outputs] == [("cat", "a dog")] * 2


def texts_of(made: Any, inputs: dict[str, Any]) -> list[Any]:
    """What nnhal computes, with texts in place of their numbers."""
    metadata = load(made.SerializeToString()).metadata
    assert metadata is not None
    labels = [metadata.labels(each) for each in metadata.outputs]
    kinds = [each.type.tensor_type.elem_type for each in made.graph.output]
    found = zip(by_nnhal(made, inputs), labels, kinds, strict=True)
    return [np.array(names, object)[each] if kind == TensorProto.STRING else each for each, names, kind in found]


def with_three(nodes: list[Any], outputs: str, kind: int = TensorProto.STRING) -> Any:
    """Two classifiers with the same labels in another order, a constant of texts, numbers, and nodes behind them."""
    how = {"coefficients": [0.5, -0.25, 1.0, -0.5, 0.25, 0.0], "intercepts": [0.0, 0.125]}
    first = node("LinearClassifier", "x", "label scores", domain=ML, classlabels_strings=["cat", "dog"], **how)
    other = node("LinearClassifier", "x", "other more", domain=ML, classlabels_strings=["dog", "cat"], **how)
    constants = {
        "names": np.array(["bird", "cat", "dog"], object),
        "ends": np.int64([0, 5]),
        "axis": np.int64([1]),
        "row": np.int64([-1, 1]),
        "true": np.array(True),
    }
    made = model([first, other, *nodes], {"x": ROWS}, constants, outputs, opset=19)
    for each in made.graph.output:
        each.type.tensor_type.elem_type = TensorProto.FLOAT if each.name == "scores" else kind
    return made


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([node("Unsqueeze", "label axis", "y")], "y"),
        ([node("Reshape", "label row", "rows"), node("Transpose", "rows")], "y"),
        ([node("Gather", "other ends", "y")], "y"),
        ([node("Identity", "label", "y"), node("Identity", "label", "z")], "y label z"),
        ([node("ArgMax", "scores", "n", axis=1), node("ArrayFeatureExtractor", "names n", "y", domain=ML)], "y label"),
        (
            [
                node("ArgMax", "more", "n", axis=1, keepdims=0),
                node("ArrayFeatureExtractor", "names n", "taken", domain=ML),
                node("Reshape", "taken row", "y"),
            ],
            "y other",
        ),
        ([node("Identity", "names")], "y"),
    ],
)
def test_texts_that_move_keep_their_meaning(nodes: list[Any], outputs: str) -> None:
    made = with_three(nodes, outputs)
    expected = by_onnxruntime(made, {"x": ROWS})
    for mine, theirs in zip(texts_of(made, {"x": ROWS}), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("default", [{}, {"default_string": "none"}])
def test_numbers_may_be_encoded_as_texts(default: dict[str, str]) -> None:
    names = {"keys_int64s": [2, 1, -3], "values_strings": ["two", "one", "two"]}
    made, inputs = one("LabelEncoder", ROWS.astype(np.int64), **names, **default)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    (expected,) = by_onnxruntime(made, inputs)
    np.testing.assert_array_equal(texts_of(made, inputs)[0], expected)


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        ([node("Concat", "label other", axis=0)], TensorProto.STRING),
        ([node("Where", "true label other")], TensorProto.STRING),
        ([node("Equal", "label other")], TensorProto.BOOL),
        ([node("Equal", "label names")], TensorProto.BOOL),
        ([node("Cast", "label", to=TensorProto.INT64)], TensorProto.INT64),
        ([node("LabelEncoder", "label", domain=ML, keys_int64s=[0, 1], values_int64s=[5, 6])], TensorProto.INT64),
        ([node("Gather", "x label", axis=1)], TensorProto.FLOAT),
    ],
    ids=lambda each: each[-1].op_type if isinstance(each, list) else "",
)
def test_texts_are_not_compared_joined_or_converted(nodes: list[Any], kind: int) -> None:
    refused(with_three(nodes, "y", kind), r"STRING, (which NNAPI has no type for|must be INT32 or INT64)")


def test_constants_of_doubles_are_moved_before_they_become_floats() -> None:
    doubles = {"d": np.array([0.1, -1e30, 1 / 3, 2**24 + 1.0]), "two": np.int64([3, 2])}
    nodes = [
        node("ArrayFeatureExtractor", "d n", "taken", domain=ML),
        node("Reshape", "taken two", "rows"),
        node("Cast", "rows", to=TensorProto.FLOAT),
    ]
    inputs = {"n": np.int64([3, 0, 1, 2, 2, 0])}
    check(model(nodes, inputs, doubles, infer=False), inputs, tolerance=0)
    for last in (nodes[:2], [*nodes[:2], node("Neg", "rows")]):
        made = model(last, inputs, doubles, outputs=last[-1].output[0], infer=False, otherwise=TensorProto.DOUBLE)
        check(made, inputs)


def test_a_tensor_of_texts_with_another_number_of_them_is_malformed() -> None:
    made = with_three([node("Identity", "names")], "y")
    made.graph.initializer[0].dims[0] = 4
    malformed(made, r"initializer 0 \(names\): has 3 values, must have 4")


# -------------------------------------------------------------------------------------------------------- support vectors

KERNELS = [
    {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]},
    {"kernel_type": "POLY", "kernel_params": [0.5, 1.0, 2.0]},
    {"kernel_type": "RBF", "kernel_params": [0.25, 0.0, 0.0]},
    {"kernel_type": "SIGMOID", "kernel_params": [0.1, 0.5, 0.0]},
]
VECTORS = np.random.default_rng(6).uniform(-2, 2, (9, 3)).astype(np.float32)
WEIGHTS = np.random.default_rng(7).uniform(-1, 1, (2, 9)).astype(np.float32)


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["kernel_type"])
def test_kernels_of_support_vectors_are_weighted(kernel: dict[str, Any], one_class: int) -> None:
    how = {"support_vectors": VECTORS.ravel().tolist(), "coefficients": WEIGHTS[0].tolist(), "n_supports": 9}
    check(*one("SVMRegressor", rho=[0.125], one_class=one_class, **how, **kernel))


def test_a_regression_without_support_vectors_is_linear() -> None:
    check(*one("SVMRegressor", coefficients=[1.0, -2.0, 0.5], rho=[0.125], **KERNELS[0]))


@pytest.mark.parametrize("counts", [[4, 5], [2, 3, 4]], ids=["two classes", "three classes"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["kernel_type"])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_pairs_of_classes_vote(counts: list[int], kernel: dict[str, Any], transform: str) -> None:
    classes = len(counts)
    how = {
        "support_vectors": VECTORS.ravel().tolist(),
        "coefficients": WEIGHTS[: classes - 1].ravel().tolist(),
        "rho": [0.125, -0.25, 0.0625][: len(list(combinations(counts, 2)))],
        "vectors_per_class": counts,
        "classlabels_ints": [7, -3, 12][:classes],
        "post_transform": transform,
    }
    made, inputs = one("SVMClassifier", ROWS, "label y", **how, **kernel)
    if classes > 2 and transform != "NONE":
        refused(made, "post_transform is LOGISTIC of 3 classes, must be NONE")
        return
    check(made, inputs)


def with_probabilities(counts: list[int], transform: str = "NONE") -> tuple[Any, dict[str, Any]]:
    """A classifier by support vectors whose scores of pairs become probabilities."""
    pairs = len(list(combinations(counts, 2)))
    how = {
        "support_vectors": VECTORS.ravel().tolist(),
        "coefficients": WEIGHTS[: len(counts) - 1].ravel().tolist(),
        "rho": [0.125] * pairs,
        "vectors_per_class": counts,
        "classlabels_ints": [7, -3, 12][: len(counts)],
        "prob_a": [-2.0] * pairs,
        "prob_b": [0.25] * pairs,
        "post_transform": transform,
    }
    return one("SVMClassifier", ROWS, "label y", **how, **KERNELS[2])


def test_scores_of_two_classes_become_probabilities() -> None:
    made, inputs = with_probabilities([4, 5])
    (labels, found), (theirs, expected) = by_nnhal(made, inputs), by_onnxruntime(made, inputs)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.005)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(labels, theirs)


def test_probabilities_are_transformed() -> None:
    made, inputs = with_probabilities([4, 5], "LOGISTIC")
    (_, found), (_, expected) = by_nnhal(made, inputs), by_onnxruntime(made, inputs)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.005)


def test_probabilities_of_more_classes_are_refused() -> None:
    made, _ = with_probabilities([2, 3, 4])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    refused(made, "has probabilities of 3 classes, which an iteration computes, must be of 2")


def test_classes_without_scores_of_their_pairs_are_refused_before_they_are_counted() -> None:
    classes = 100_000
    how = {"classlabels_ints": range(classes), "vectors_per_class": [1] * classes, "rho": [0.0], "coefficients": [1.0]}
    made, _ = one("SVMClassifier", ROWS, "label y", **how)
    refused(made, "has 1 coefficients and 1 rho, must have 9999900000 and 4999950000")


def a_file_of_each() -> list[Any]:
    """A model of each kind, for other tests."""
    svm = {"support_vectors": VECTORS.ravel().tolist(), "rho": [0.125], **KERNELS[2]}
    linear = {"coefficients": [0.5] * 6, "intercepts": [0.0, 1.0], "classlabels_ints": [1, 2]}
    classes = {"vectors_per_class": [4, 5], "classlabels_ints": [1, 2], "coefficients": WEIGHTS[0].tolist()}
    made = [
        one("Normalizer", norm="L2"),
        one("OneHotEncoder", cats_int64s=[1, 2]),
        one("LabelEncoder", keys_floats=[1.0, 2.0], values_int64s=[3, 4]),
        one("Imputer", replaced_value_float=0.0, imputed_value_floats=[1.0]),
        one("LinearClassifier", ROWS, "label y", **linear),
        one("SVMRegressor", coefficients=WEIGHTS[0].tolist(), n_supports=9, **svm),
        one("SVMClassifier", ROWS, "label y", prob_a=[1.0], prob_b=[0.0], **classes, **svm),
    ]
    numbers = {"n": np.int64([2, 0])}
    extractor = model([node("ArrayFeatureExtractor", "x n", domain=ML)], {"x": ROWS}, numbers)
    scans = [scan(SUMS, ["next", "step"], scan_output_directions=[1]), distances(NORMS["powers"])]
    inputs = {"s": np.ones((1, 3), np.float32), "x": ROWS}
    return [each for each, _ in made] + [extractor, *(model([each], inputs, outputs="after y") for each in scans)]


# ------------------------------------------------------------------------------------------------------------------- scans


def scan(nodes: list[Any], outputs: list[str], states: int = 1, count: int = 1, **how: Any) -> Any:
    """A Scan over `x`, with the state `s`; its body has the inputs state and part."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("state", "part", "other")]
    inputs = inputs[1 - states : 1 + count]
    edges = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    body = helper.make_graph(nodes, "body", inputs, edges)
    names = " ".join(["s"] * states + ["x", "z"][:count])
    return node("Scan", names, "after y" if states else "y", body=body, num_scan_inputs=count, **how)


SUMS = [node("Add", "state part", "next"), node("Mul", "next part", "step")]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"scan_input_directions": [1]},
        {"scan_output_directions": [1]},
        {"scan_input_axes": [1], "scan_output_axes": [-1]},
    ],
    ids=lambda how: "-".join(how) or "plain",
)
@pytest.mark.parametrize("constant", [False, True])
def test_a_scan_carries_its_state_and_collects_its_outputs(how: dict[str, Any], constant: bool) -> None:
    size = 6 if "scan_input_axes" in how else 3
    given, x = {"s": np.float32(np.arange(size))}, {"x": ROWS}
    inputs = given if constant else given | x
    check_nodes(scan(SUMS, ["next", "step"], **how), inputs, x if constant else {}, outputs="after y")


def test_a_scan_without_a_state_scans_several_inputs() -> None:
    check_nodes(scan([node("Sub", "part other", "step")], ["step"], 0, 2), {"x": ROWS[:, 0], "z": ROWS[:, 1]})


NORMS = {
    "squares": [node("ReduceSumSquare", "apart", "far", axes=[1], keepdims=0)],
    "absolutes": [node("Abs", "apart", "size"), node("ReduceSum", "size one", "far", keepdims=0)],
    "powers": [
        node("Abs", "apart", "size"),
        node("Pow", "size three", "cubes"),
        node("ReduceSum", "cubes one", "far", keepdims=0),
    ],
}
CONSTANTS = {"one": np.int64([1]), "three": np.float32(3)}


def distances(nodes: list[Any], order: str = "state part") -> Any:
    """A scan as exporters of nearest neighbours write it: a distance of each row of the state from each part."""
    ends = [node("Identity", "state", "same"), node("Sub", order, "apart"), *nodes, node("Identity", "far", "step")]
    made = scan(ends, ["same", "step"])
    body = next(each.g for each in made.attribute if each.name == "body")
    body.initializer.extend(numpy_helper.from_array(array, name) for name, array in CONSTANTS.items())
    return made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("norm", NORMS)
def test_distances_of_many_rows_are_computed_at_once(norm: str, device: str) -> None:
    many = np.random.default_rng(2).uniform(-1, 1, (300, 3)).astype(np.float32)
    made = model([distances(NORMS[norm])], {"s": ROWS}, {"x": many}, outputs="after y")
    assert operations(made).count("SUB") == 1
    check(made, {"s": ROWS}, device=device)


def test_distances_of_more_rows_than_are_moved_individually_are_computed() -> None:
    s, x = (np.random.default_rng(n).uniform(-1, 1, (600 * n, 3)).astype(np.float32) for n in (1, 2))
    check_nodes(distances(NORMS["squares"]), {"s": s}, {"x": x}, outputs="after y")


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ReduceSumSquare", "apart", "far", axes=[0], keepdims=0)],
        [node("ReduceSum", "apart one", "far", keepdims=0)],
        [node("Abs", "apart", "size"), node("ReduceMax", "size", "far", axes=[1], keepdims=0)],
    ],
    ids=["other axis", "without absolutes", "greatest"],
)
def test_scans_that_are_no_distances_are_written_step_by_step(nodes: list[Any]) -> None:
    inputs = {"s": ROWS, "x": ROWS[:4]}
    made = model([distances(nodes)], inputs, outputs="after y")
    assert operations(made).count("SUB") == 4
    check(made, inputs)


def test_a_long_scan_of_another_kind_is_refused() -> None:
    x = np.zeros((257, 3), np.float32)
    made = model([scan(SUMS, ["next", "step"])], {"s": ROWS[0], "x": x}, outputs="after y")
    refused(made, "outputs of 257 iterations, must be 1 to 256")


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("way", [0, 1])
def test_a_scan_of_a_vector_has_parts_without_dimensions(size: int, way: int) -> None:
    inputs = {"s": np.array(5, np.float32), "x": np.arange(1, 1 + size, dtype=np.float32)}
    check_nodes(scan(SUMS, ["next", "step"], scan_input_directions=[way]), inputs, outputs="after y")
