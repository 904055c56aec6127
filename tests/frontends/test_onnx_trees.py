"""Ensembles of decision trees, as ONNX Runtime computes them, or refused by name."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontends.cases import malformed, refused
from tests.frontends.onnx_models import check
from tests.frontends.onnx_models import value as onnx_value

FEATURES = 5


def grown(rng: Any, trees: int, levels: int, mode: str) -> tuple[dict[str, list[Any]], list[tuple[int, int]]]:
    """Random trees: the attributes of their nodes, and their leaves. mode: words, for the nodes in turns."""
    modes = mode.split()
    nodes: dict[str, list[Any]] = {
        name: []
        for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing")
    }
    leaves = []

    def grow(tree: int, level: int) -> int:
        number = nodes["treeids"].count(tree)
        place = len(nodes["treeids"])
        is_leaf = level == levels or (level > 0 and rng.random() < 0.3)
        values = (
            tree,
            number,
            int(rng.integers(FEATURES)),
            float(rng.integers(-2, 3)),
            "LEAF" if is_leaf else modes[number % len(modes)],
            0,
            0,
        )
        for name, each in zip(nodes, (*values, int(rng.integers(2))), strict=True):
            nodes[name].append(each)
        if is_leaf:
            leaves.append((tree, number))
        else:
            nodes["truenodeids"][place] = grow(tree, level + 1)
            nodes["falsenodeids"][place] = grow(tree, level + 1)
        return number

    for tree in range(trees):
        grow(tree, 0)
    return nodes, leaves


def ensemble(
    kind: str, how: dict[str, Any], mode: str = "BRANCH_LEQ", *, ids: Any, levels: int = 4, low: int = -3
) -> Any:
    """A model of one ensemble. ids: the outputs that a leaf may have a weight for."""
    rng = np.random.default_rng(len(str(how)) + levels)
    nodes, leaves = grown(rng, 3, levels, mode)
    prefix = "target" if kind == "Regressor" else "class"
    weights = {"treeids": [], "nodeids": [], "ids": [], "weights": []}
    for leaf in leaves:
        for n in rng.permutation(ids)[: 1 + int(rng.integers(len(ids)))]:
            for name, each in zip(weights, (*leaf, int(n), float(rng.uniform(low, 4) / 8)), strict=True):
                weights[name].append(each)
    missing = nodes.pop("missing")
    attributes = {f"nodes_{name}": each for name, each in nodes.items()} | {"nodes_missing_value_tracks_true": missing}
    attributes |= {f"{prefix}_{name}": each for name, each in weights.items()} | how
    outputs = ["y"] if kind == "Regressor" else ["label", "y"]
    node = helper.make_node(f"TreeEnsemble{kind}", ["x"], outputs, domain="ai.onnx.ml", **attributes)
    edges = [helper.make_tensor_value_info(name, 7 if name == "label" else 1, None) for name in outputs]
    graph = helper.make_graph([node], "g", [onnx_value("x", np.zeros((6, FEATURES), "f4"))], edges)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def rows(*, unknown: bool = False) -> dict[str, Any]:
    """Features that lie on thresholds as well; unknown: some are NaN."""
    rng = np.random.default_rng(4)
    x = rng.integers(-3, 4, (6, FEATURES)).astype(np.float32)
    x[::2] += 0.25
    if unknown:
        x[rng.random(x.shape) < 0.3] = np.nan
    return {"x": x}


@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
@pytest.mark.parametrize("unknown", [False, True])
def test_a_row_goes_to_the_leaf_that_its_features_lead_to(mode, unknown):
    check(ensemble("Regressor", {"n_targets": 1}, f"BRANCH_{mode}", ids=[0]), rows(unknown=unknown))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("modes", ["LEQ EQ", "LT GTE NEQ", "GT LT LEQ EQ NEQ GTE"])
@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
def test_each_node_may_have_another_test(modes, unknown, device):
    """As LightGBM's exporter writes categories."""
    mode = " ".join(f"BRANCH_{each}" for each in modes.split())
    check(ensemble("Regressor", {"n_targets": 1}, mode, ids=[0], levels=6), rows(unknown=unknown), device=device)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "how",
    [
        {"n_targets": 1, "base_values": [0.5]},
        {"n_targets": 1, "aggregate_function": "AVERAGE", "base_values": [-2.0]},
        {"n_targets": 2, "post_transform": "LOGISTIC"},
        {"n_targets": 3},
        {"n_targets": 3, "post_transform": "SOFTMAX", "base_values": [0.5, 1.0, -1.0]},
    ],
)
@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
def test_weights_of_leaves_are_summed_for_each_output(how, device):
    check(ensemble("Regressor", how, ids=range(how["n_targets"])), rows(), device=device)


@pytest.mark.parametrize(
    ("classes", "ids", "low", "how"),
    [
        (3, [0, 1, 2], -3, {}),
        (3, [0, 1, 2], 0, {"post_transform": "SOFTMAX", "base_values": [0.5, 0.25, -1.0]}),
        (4, [0, 1, 2, 3], -3, {"post_transform": "LOGISTIC"}),
        (2, [1], 0, {}),
        (2, [0], 0, {}),
        (2, [1], -3, {}),
        (2, [1], -3, {"post_transform": "LOGISTIC"}),
        (2, [0], -3, {"post_transform": "LOGISTIC"}),
        (2, [1], 0, {"post_transform": "LOGISTIC"}),
        (2, [0], -3, {}),
        (2, [0], -3, {"base_values": [0.5]}),
        (2, [0], -3, {"base_values": [-0.25], "post_transform": "LOGISTIC"}),
        (2, [0], 0, {"base_values": [0.25]}),
    ],
)
def test_a_class_is_that_of_the_greatest_score(classes, ids, low, how):
    labels = [7, 3, 12, -5][:classes]
    made = ensemble("Classifier", how | {"classlabels_int64s": labels}, ids=ids, low=low)
    check(made, rows())


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_two_classes_may_have_opposite_weights_in_each_leaf(transform):
    made = ensemble("Classifier", {"classlabels_int64s": [0, 1], "post_transform": transform}, ids=[1])
    for each in made.graph.node[0].attribute:
        if each.name in ("class_treeids", "class_nodeids"):
            each.ints.extend(list(each.ints))
        elif each.name == "class_ids":
            each.ints.extend([0] * len(each.ints))
        elif each.name == "class_weights":
            each.floats.extend([-w for w in each.floats])
    check(made, rows())


def test_a_file_of_trees_alone_needs_no_version_of_onnx():
    """As of XGBoost's and CatBoost's exporters."""
    made = ensemble("Regressor", {"n_targets": 1}, ids=[0])
    del made.opset_import[0]
    assert [each.domain for each in made.opset_import] == ["ai.onnx.ml"]
    check(made, rows())
    made.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    malformed(made, "has no version of its operators")


def test_trees_of_leaves_alone_have_one_result():
    check(ensemble("Regressor", {"n_targets": 1}, ids=[0], levels=0), rows())


@pytest.mark.parametrize(
    ("kind", "ids", "how", "match"),
    [
        ("Regressor", [0], {"aggregate_function": "MAX"}, "aggregate_function is MAX"),
        ("Regressor", [0, 1], {"n_targets": 2, "post_transform": "PROBIT"}, "post_transform is PROBIT"),
        ("Regressor", [0], {"post_transform": "LOGISTIC"}, "a post_transform of one target"),
        ("Classifier", [0, 1, 2], {"classlabels_int64s": [0, 1, 2**31]}, "labels of more than the 32 bits"),
        ("Classifier", [0, 1], {"classlabels_int64s": [0, 1]}, "two classes and not the weights of one of them"),
        ("Classifier", [0], {"classlabels_int64s": [7]}, "has 1 class labels, must have at least 2"),
        (
            "Classifier",
            [1],
            {"classlabels_int64s": [0, 1], "base_values": [0.5]},
            "base_values and weights of the second",
        ),
        (
            "Classifier",
            [0],
            {"classlabels_int64s": [0, 1], "base_values": [0.5, 0.5]},
            "has 2 base_values, must have 1",
        ),
    ],
)
def test_other_ensembles_are_refused_by_name(kind, ids, how, match):
    refused(ensemble(kind, how, ids=ids), match)


def test_an_unknown_test_is_refused_by_name():
    made = ensemble("Regressor", {"n_targets": 1}, "BRANCH_MEMBER", ids=[0])
    refused(made, "has modes BRANCH_MEMBER, must be BRANCH_LEQ, BRANCH_LT")


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("nodes_truenodeids", lambda n: min(1, n), r"has \d+ roots of 3 trees, must have one of each"),
        ("nodes_falsenodeids", lambda _: 0, r"has \d+ roots of 3 trees, must have one of each"),
        ("nodes_featureids", lambda n: 2**32 + n, r"tests features 0 to 429496\d+, must be 0 to 4"),
    ],
)
def test_trees_that_lead_to_themselves_or_test_what_no_row_has_are_refused(name, change, match):
    made = ensemble("Regressor", {"n_targets": 1}, ids=[0])
    (attribute,) = (each for each in made.graph.node[0].attribute if each.name == name)
    attribute.ints[:] = [change(n) for n in attribute.ints]
    refused(made, match)


def test_a_tree_that_never_ends_is_refused():
    made = ensemble("Regressor", {"n_targets": 1}, ids=[0])
    changed = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.0, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"],
        "nodes_truenodeids": [1, 2, 0],
        "nodes_falsenodeids": [1, 1, 0],
        "nodes_missing_value_tracks_true": [0, 0, 0],
    }
    kept = [each for each in made.graph.node[0].attribute if each.name not in changed]
    del made.graph.node[0].attribute[:]
    made.graph.node[0].attribute.extend([*kept, *(helper.make_attribute(*each) for each in changed.items())])
    refused(made, "has trees of 257 levels, must have at most 256")


def test_more_rows_than_the_trees_allow_are_refused():
    made = ensemble("Regressor", {"n_targets": 1}, ids=[0])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 349526
    refused(made, "has 349526 rows for 3 trees, must have at most 349525 rows")


# -------------------------------------------------------------------------------------------------- nodes apart from leaves

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"]
THIRDS = [0.1, 1 / 3, -0.7, 1e-3, 2.0]  # the nearest float32 is greater than some, and less than others


def apart(kind: type[Any], modes: str = "BRANCH_LEQ", *, targets: int = 1, **how: Any) -> Any:
    """A model of version 5, of FLOAT or DOUBLE. how: attributes that are other ones."""
    rng = np.random.default_rng(targets)
    nodes, leaves = grown(rng, 3, 4, modes)
    keys = list(zip(nodes["treeids"], nodes["nodeids"], strict=True))
    inner = {key: n for n, key in enumerate(key for key in keys if key not in leaves)}
    outer = {key: n for n, key in enumerate(leaves)}
    places = [keys.index(key) for key in inner]
    attributes: dict[str, Any] = {
        "nodes_featureids": [nodes["featureids"][place] for place in places],
        "nodes_missing_value_tracks_true": [nodes["missing"][place] for place in places],
        "nodes_splits": numpy_helper.from_array(kind(rng.choice(THIRDS, len(places)))),
        "nodes_modes": numpy_helper.from_array(np.uint8([MODES.index(nodes["modes"][place]) for place in places])),
        "tree_roots": [inner[tree, 0] for tree in range(3)],
        "leaf_weights": numpy_helper.from_array(kind(rng.uniform(-3, 4, len(leaves)) / 8)),
        "leaf_targetids": rng.integers(0, targets, len(leaves)).tolist(),
        "n_targets": targets,
    }
    for way in ("true", "false"):
        there = [(nodes["treeids"][place], nodes[f"{way}nodeids"][place]) for place in places]
        attributes[f"nodes_{way}leafs"] = [int(key in outer) for key in there]
        attributes[f"nodes_{way}nodeids"] = [outer.get(key, inner.get(key, -1)) for key in there]
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **attributes | how)
    edge = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None)
    graph = helper.make_graph([node], "g", [onnx_value("x", np.zeros((6, FEATURES), kind))], [edge])
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def near_thirds(kind: type[Any], *, unknown: bool = False) -> dict[str, Any]:
    """Features on the limits, or as near as a type is."""
    x = np.random.default_rng(2).choice(kind([*THIRDS, 0]), (6, FEATURES))
    if unknown:
        x[::2, 1] = x[1, :] = np.nan
    return {"x": x}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("modes", [*MODES[:6], "BRANCH_LEQ BRANCH_GT BRANCH_EQ"])
def test_tests_of_nodes_apart_from_leaves(kind, modes):
    made = apart(kind, modes)
    check(made, near_thirds(kind))
    check(made, near_thirds(kind, unknown=True))


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64])
@pytest.mark.parametrize("modes", [*MODES[:6], "BRANCH_LEQ BRANCH_GT BRANCH_EQ"])
def test_features_that_become_doubles_are_tested_exactly(kind, modes):
    """A float32 close to a limit of float64 is not that limit."""
    made = apart(np.float64, modes)
    made.graph.node[0].input[0] = "wide"
    made.graph.node.insert(0, helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE))
    made.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    check(made, near_thirds(kind))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
@pytest.mark.parametrize(
    "how", [{}, {"aggregate_function": 0}, {"targets": 3}, {"targets": 2, "aggregate_function": 0}]
)
def test_weights_of_leaves_apart_are_summed(how, device):
    check(apart(np.float64, **how), near_thirds(np.float64), device=device)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"aggregate_function": 3}, "aggregate_function is MAX, must be SUM or AVERAGE"),
        ({"aggregate_function": 9}, "aggregate_function is 9, must be SUM or AVERAGE"),
        ({"targets": 2, "post_transform": 1}, "post_transform is 1, of which ONNX and ONNX Runtime differ, must be 0"),
        ({"tree_roots": [0, 99]}, r"tree_roots \[0, 99\], must be numbers of its \d+ nodes"),
        ({"leaf_targetids": [0]}, "has 1 leaf_targetids for"),
        ({"nodes_truenodeids": [0]}, "nodes_truenodeids has 1 entries, must have"),
        ({"nodes_modes": numpy_helper.from_array(np.float32([1]))}, "nodes_modes is FLOAT, must be numbers"),
        ({"modes": "BRANCH_MEMBER"}, "has modes BRANCH_MEMBER, must be BRANCH_LEQ, BRANCH_LT"),
    ],
)
def test_other_ensembles_of_nodes_apart_are_refused_by_name(how, match):
    refused(apart(np.float32, **how), match)


def test_a_node_that_follows_another_and_does_not_exist_is_refused():
    made = apart(np.float32)
    (attribute,) = (each for each in made.graph.node[0].attribute if each.name == "nodes_falsenodeids")
    attribute.ints[:] = [n + 1000 for n in attribute.ints]
    refused(made, "a node that follows another and does not exist")


@pytest.mark.parametrize("kind", ["Regressor", "Classifier"])
def test_numbers_of_double_lie_in_tensors(kind):
    how = {"n_targets": 2} if kind == "Regressor" else {"classlabels_int64s": [4, 5, 6]}
    made = ensemble(kind, how | {"base_values": [0.5] * (2 if kind == "Regressor" else 3)}, ids=[0, 1])
    attributes = made.graph.node[0].attribute
    for each in [*attributes]:
        if each.name in ("nodes_values", "base_values", "target_weights", "class_weights"):
            numbers = np.float64(each.floats) + (0.1 if each.name == "nodes_values" else 0)
            attributes.remove(each)
            attributes.append(helper.make_attribute(f"{each.name}_as_tensor", numpy_helper.from_array(numbers)))
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    x = np.random.default_rng(4).integers(-3, 4, (6, FEATURES)) + 0.1
    check(made, {"x": x})
