"""Entries of ensembles of decision trees, of ai.onnx.ml: all trees are walked at once, from the roots to the leaves."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.names import short
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.terms import Term, constant, in_float32
from nnhal.frontends.common.writing import MOST_PLACES, check_count
from nnhal.frontends.onnx.estimators import ClassLabels, of_targets, transformed
from nnhal.frontends.onnx.features import features_of
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import B8, F32, I32

MOST_LEVELS = 256
EXACT_KINDS = frozenset(("FLOAT", "FLOAT16", "INT32", "INT64"))  # a Cast to DOUBLE of these keeps them
TESTS = {
    "BRANCH_LEQ": "LESS_EQUAL",
    "BRANCH_LT": "LESS",
    "BRANCH_GTE": "GREATER_EQUAL",
    "BRANCH_GT": "GREATER",
    "BRANCH_EQ": "EQUAL",
    "BRANCH_NEQ": "NOT_EQUAL",
}


class TreeNodes(NamedTuple):
    """The nodes of all trees, numbered through. A leaf leads to itself.

    Attributes:
        modes: The test of each node, LEAF for a leaf.
        features: The place of the feature that each node tests.
        limits: The number with which each node compares its feature, in the file's precision.
        missing: 1 where the test holds for NaN.
        ways: The nodes that follow each where its test holds, and where it does not.
        roots: The first node of each tree.
    """

    modes: Sequence[str]
    features: Array
    limits: Array
    missing: Array
    ways: tuple[Array, Array]
    roots: Array


class Ensemble:
    """Trees, as operations on all of them at once."""

    def __init__(self, t: NodeTask, nodes: TreeNodes) -> None:
        self.t, self.ways, self.roots = t, nodes.ways, nodes.roots.astype(np.int32)
        modes = np.array(nodes.modes)
        leaf = modes == "LEAF"
        self.modes = sorted({*nodes.modes} - {"LEAF"})
        known = all(mode in TESTS for mode in self.modes)
        t.require(known, f"has modes {', '.join(map(str, self.modes))}, must be {', '.join(TESTS)}")
        self.mode_numbers = np.array(
            [0 if mode == "LEAF" else self.modes.index(mode) for mode in nodes.modes], np.int32
        )
        self.features = np.where(leaf, 0, nodes.features)
        self.missing = np.where(leaf, 0, nodes.missing).astype(np.int32)
        limits = in_float32(nodes.limits) if has_rounded_features(t) else limits_of_float32(modes, nodes.limits)
        self.limits = np.where(leaf, 0, limits).astype(np.float32)
        self.levels = self.depth(leaf)

    def depth(self, leaf: Array) -> int:
        """Return the most nodes with a test on a way from a root to a leaf."""
        there, levels = self.roots[~leaf[self.roots]], 0
        while there.size:
            levels += 1
            self.t.require(levels <= MOST_LEVELS, f"has trees of {levels} levels, must have at most {MOST_LEVELS}")
            there = np.unique(np.concatenate([way[there] for way in self.ways]))
            there = there[~leaf[there]]
        return levels

    def leaves(self, x: Term) -> Term:
        """Return the number of the leaf that each row reaches in each tree: [rows * trees]."""
        t, (rows, width) = self.t, self.t.known(x)
        least, most = int(self.features.min()), int(self.features.max())
        t.require(least >= 0 and most < width, f"tests features {least} to {most}, must be 0 to {width - 1}")
        limit = MOST_PLACES // self.roots.size
        t.require(rows <= limit, f"has {rows} rows for {self.roots.size} trees, must have at most {limit} rows")
        start = constant(Value(I32), np.repeat(np.arange(rows, dtype=np.int32) * width, self.roots.size))
        flat = t.reshaped(x, (rows * width,))
        at = constant(Value(I32), np.tile(self.roots, rows))
        tables = [constant(Value(I32), each) for each in (self.features.astype(np.int32), *self.ways, self.missing)]
        features, then, other, missing = tables
        limits = constant(Value(F32), self.limits)
        for _ in range(self.levels):
            value = t.make("GATHER", flat, 0, t.make("ADD", t.make("GATHER", features, 0, at), start, activation=0))
            holds = self.holds(at, value, t.make("GATHER", limits, 0, at))
            if self.missing.any():
                tracks = t.make("GATHER", missing, 0, at)
                tracks = t.make("NOT_EQUAL", tracks, t.scalar(0, tracks), like=Value(B8))
                unknown = t.make("NOT_EQUAL", value, value, like=Value(B8))
                holds = t.make("LOGICAL_OR", holds, t.make("LOGICAL_AND", unknown, tracks))
            ways = [t.make("GATHER", way, 0, at) for way in (then, other)]
            at = t.make("SELECT", holds, *ways, like=ways[0])
        return at

    def holds(self, at: Term, value: Term, limit: Term) -> Term:
        """Return whether the tests of nodes hold."""
        t = self.t
        found = [t.make(TESTS[mode], value, limit, like=Value(B8)) for mode in self.modes]
        if len(found) > 1:
            mode = t.make("GATHER", constant(Value(I32), self.mode_numbers), 0, at)
            own = [t.make("EQUAL", mode, t.scalar(n, mode), like=Value(B8)) for n in range(len(found))]
            found = [t.make("LOGICAL_AND", *pair) for pair in zip(found, own, strict=True)]
        return reduce(partial(t.make, "LOGICAL_OR"), found)

    def sums(self, x: Term, weights: Array, how: str = "SUM") -> Term:
        """Return the sum of the weights of the leaves that each row reaches, or their average: [rows, outputs].

        weights: of each node for each output.
        """
        t = self.t
        t.require(how in ("SUM", "AVERAGE"), f"aggregate_function is {how}, must be SUM or AVERAGE")
        rows, trees, count = t.known(x)[0], self.roots.size, weights.shape[1]
        found = t.make("GATHER", constant(Value(F32), weights), 0, self.leaves(x))
        total = t.make("REDUCE_SUM", t.reshaped(found, (rows, trees, count)), t.integers([1]), False)
        return t.make("MUL", total, t.scalar(1 / trees, total), activation=0) if how == "AVERAGE" else total


def has_rounded_features(t: NodeTask) -> bool:
    """Whether features of DOUBLE were rounded to float32. Limits are rounded alike then, so that equal ones stay equal."""
    producer = t.graph.producer(t.raw(0))
    source = producer.inputs[0] if producer is not None else None
    is_cast = isinstance(source, Term) and source.kind in EXACT_KINDS
    return t.raw(0).kind == "DOUBLE" and not is_cast


def limits_of_float32(modes: Array, limits: Array) -> Array:
    """Return what features of float32 are compared with, so that each test is that with the limits of float64."""
    near = in_float32(limits)
    wide = limits.astype(np.float64)
    below = np.where(near > wide, np.nextafter(near, np.float32(-np.inf)), near)
    above = np.where(near < wide, np.nextafter(near, np.float32(np.inf)), near)
    equal = np.where(near == wide, near, np.nan)
    found = np.where(np.isin(modes, ("BRANCH_LEQ", "BRANCH_GT")), below, above)
    return np.asarray(np.where(np.isin(modes, ("BRANCH_EQ", "BRANCH_NEQ")), equal, found))


# ------------------------------------------------------------------- nodes with a key of tree and number (versions 1 to 3)


class KeyedNodes:
    """The nodes of a TreeEnsembleRegressor or TreeEnsembleClassifier. number: of each key, a tree and a number in it."""

    def __init__(self, t: NodeTask) -> None:
        self.t = t
        keys = list(zip(t.attr.ints("nodes_treeids"), t.attr.ints("nodes_nodeids"), strict=False))
        self.number = {key: n for n, key in enumerate(keys)}
        count = len(keys)
        t.require(count and len(self.number) == count, "has no nodes, or two of one number, must have different ones")
        modes = self.each("nodes_modes", count)
        leaf = np.array([mode == "LEAF" for mode in modes])
        missing = np.asarray(self.each("nodes_missing_value_tracks_true", count) or [0] * count)
        then, other = (self.followers(keys, leaf, self.each(f"nodes_{way}nodeids", count)) for way in ("true", "false"))
        children = np.concatenate([way[~leaf] for way in (then, other)])
        roots, trees = np.setdiff1d(np.arange(count), children), len({tree for tree, _ in keys})
        t.require(roots.size == trees, f"has {roots.size} roots of {trees} trees, must have one of each")
        features, limits = np.asarray(self.each("nodes_featureids", count)), reals_of(t, "nodes_values")
        t.require(limits.size == count, f"nodes_values has {limits.size} entries, must have {count}")
        self.trees = Ensemble(t, TreeNodes(modes, features, limits, missing, (then, other), roots))

    def each(self, name: str, count: int) -> Sequence[Any]:
        """Return an attribute that has an entry for each node; empty if it is not set."""
        found: Sequence[Any] = self.t.attr(name, ())
        optional = name == "nodes_missing_value_tracks_true" and not found
        self.t.require(optional or len(found) == count, f"{name} has {len(found)} entries, must have {count}")
        return found

    def followers(self, keys: Sequence[tuple[int, int]], leaf: Array, ids: Sequence[int]) -> Array:
        """Return the numbers of the nodes that follow each."""
        found = [
            n if leaf[n] else self.number.get((tree, node), -1)
            for n, ((tree, _), node) in enumerate(zip(keys, ids, strict=True))
        ]
        self.t.require(min(found) >= 0, "has a node that follows another and does not exist")
        return np.array(found, np.int32)

    def scores(self, x: Term, kind: str, count: int, how: str = "SUM") -> Term:
        """Return the sum of the weights of the leaves that each row reaches: [rows, count]. kind: target or class."""
        t = self.t
        keys = list(zip(t.attr.ints(f"{kind}_treeids"), t.attr.ints(f"{kind}_nodeids"), strict=False))
        ids, weights = t.attr.ints(f"{kind}_ids"), reals_of(t, f"{kind}_weights")
        fits = len(keys) == len(ids) == weights.size and all(key in self.number for key in keys)
        t.require(
            fits and all(0 <= n < count for n in ids), f"has weights that fit neither its nodes nor {count} outputs"
        )
        check_count(len(self.number) * count)
        table = np.zeros((len(self.number), count), weights.dtype)
        np.add.at(table, ([self.number[key] for key in keys], ids), weights)
        return self.trees.sums(x, table, how)


def reals_of(t: NodeTask, name: str) -> Array:
    """Return an attribute of floats, or the attribute that has them as a tensor; empty if neither is set."""
    tensor = f"{name}_as_tensor"
    return tensor_of(t, tensor, "f") if tensor in t.node.attributes else t.attr.floats(name)


def tensor_of(t: NodeTask, name: str, kinds: str) -> Array:
    """Return an attribute that is a tensor as a vector. kinds: NumPy's kinds of its type."""
    found = t.graph.array(t.attr.tensor(name))
    t.require(found is not None and found.dtype.kind in kinds, f"{name} is {t.attr.tensor(name).kind}, must be numbers")
    return np.asarray(found).reshape(-1)


def with_base(t: NodeTask, scores: Term, count: int) -> Term:
    """Add the base values, one for each output."""
    base = reals_of(t, "base_values")
    if not base.size:
        return scores
    t.require(base.size == count, f"has {base.size} base_values, must have {count}")
    return t.make("ADD", scores, constant(Value(F32), base[None]), activation=0)


@operator("ai.onnx.ml.TreeEnsembleRegressor",
          becomes="GATHER and SELECT from the roots to the leaves, REDUCE_SUM")  # fmt: skip
def regressor(t: NodeTask) -> None:
    """Sum, or average, the weights of the leaves."""
    x, count = features_of(t), t.attr("n_targets", 1)
    total = KeyedNodes(t).scores(x, "target", count, t.attr("aggregate_function", "SUM"))
    t.result(0, of_targets(t, with_base(t, total, count), count))


def are_opposite(t: NodeTask) -> bool:
    """Whether each leaf has opposite weights of two classes, as CatBoost writes them, and there are no base values."""
    sums: dict[tuple[int, int, int], float] = defaultdict(float)
    ids, weights = t.attr.ints("class_ids"), reals_of(t, "class_weights").tolist()
    keys = zip(t.attr.ints("class_treeids"), t.attr.ints("class_nodeids"), ids, strict=False)
    for key, weight in zip(keys, weights, strict=False):
        sums[key] += weight
    opposite = all(sums[tree, node, 0] == -sums[tree, node, 1] for tree, node, _ in list(sums))
    return opposite and set(ids) == {0, 1} and not reals_of(t, "base_values").size


def two_scores(t: NodeTask, x: Term, given: int, *, positive: bool) -> tuple[Term, Term]:
    """Return the scores of the second and of the first of two classes, as ONNX Runtime defines them.

    given: the class that the file has weights of. positive: whether no weight is negative.
    """
    how = t.attr("post_transform", "NONE")
    known = ("NONE",) if positive and not given else ("NONE", "LOGISTIC")
    t.require(how in known, f"post_transform is {how} for two classes, must be {' or '.join(known)}")
    score = t.make("REDUCE_SUM", KeyedNodes(t).scores(x, "class", 2), t.integers([1]), True)
    if reals_of(t, "base_values").size:
        t.require(not given, "has base_values and weights of the second of two classes, must have those of the first")
        score = with_base(t, score, 1)
    if given:
        other = constant(Value(F32), np.zeros((t.known(x)[0], 1), np.float32))
    else:
        other = t.make("SUB", t.scalar(1, score), score, activation=0) if positive else t.make("NEG", score)
    return score, other


@operator("ai.onnx.ml.TreeEnsembleClassifier", outputs=(1, 2),
          becomes="as TreeEnsembleRegressor; ARGMAX, or GREATER of two classes")  # fmt: skip
def classifier(t: NodeTask) -> None:
    """Sum the weights of the leaves for each class. Of two classes, the file has the weights of one."""
    x, labels = features_of(t), ClassLabels(t, "classlabels_int64s")
    classes, ids, weights = labels.count, t.attr.ints("class_ids"), reals_of(t, "class_weights")
    if classes > 2 or (classes == 2 and are_opposite(t)):
        scores = with_base(t, KeyedNodes(t).scores(x, "class", classes), classes)
        labels.of_greatest(scores)
        labels.scores(transformed(t, scores))
        return
    t.require(classes == 2, f"has {classes} class labels, must have at least 2")
    one = len(set(ids)) == 1
    t.require(one, "has two classes and not the weights of one of them, must have those of one, or opposite ones")
    positive = weights.min(initial=0) >= 0
    score, other = two_scores(t, x, ids[0], positive=positive)
    labels.of_two(score, 0.5 if positive else 0)
    labels.scores(transformed(t, t.make("CONCATENATION", other, score, 1, like=score)))


# ------------------------------------------------------------------------------------- nodes apart from leaves (version 5)

MODES = *TESTS, "BRANCH_MEMBER"  # by number
AGGREGATES = "AVERAGE", "SUM", "MIN", "MAX"


def nodes_and_leaves(t: NodeTask, count: int, leaves: int) -> TreeNodes:
    """Return the nodes of a TreeEnsemble, then its leaves."""
    numbers = tensor_of(t, "nodes_modes", "u")
    limits = tensor_of(t, "nodes_splits", "f")
    missing = t.attr.ints("nodes_missing_value_tracks_true") or [0] * count
    ends = {name: t.attr.ints(f"nodes_{name}") for name in ("truenodeids", "trueleafs", "falsenodeids", "falseleafs")}
    features, roots = t.attr.ints("nodes_featureids"), t.attr.ints("tree_roots")
    sizes = {"nodes_modes": numbers.size, "nodes_splits": limits.size, "nodes_missing_value_tracks_true": len(missing)}
    sizes |= {f"nodes_{name}": len(found) for name, found in ends.items()}
    for name, size in sizes.items():
        t.require(size == count, f"{name} has {size} entries, must have {count}")
    t.require(numbers.max(initial=0) < len(MODES), f"nodes_modes has {numbers.max(initial=0)}, must be 0 to 6")
    inside = all(0 <= n < count for n in roots)
    t.require(roots and inside, f"has tree_roots {short(repr(roots))}, must be numbers of its {count} nodes")
    ways = []
    for name in ("true", "false"):
        there, is_leaf = np.array(ends[f"{name}nodeids"]), np.array(ends[f"{name}leafs"], bool)
        fits = ((there >= 0) & (there < np.where(is_leaf, leaves, count))).all()
        t.require(fits, "has a node that follows another and does not exist")
        ways.append(np.append(there + is_leaf * count, np.arange(count, count + leaves)).astype(np.int32))
    modes = [MODES[n] for n in numbers] + ["LEAF"] * leaves
    beyond = np.zeros(leaves, np.int32)
    return TreeNodes(
        modes,
        np.append(features, beyond),
        np.append(limits, beyond.astype(limits.dtype)),
        np.append(missing, beyond),
        (ways[0], ways[1]),
        np.array(roots),
    )


@operator("ai.onnx.ml.TreeEnsemble", becomes="as TreeEnsembleRegressor")
def tree_ensemble(t: NodeTask) -> None:
    """Sum, or average, the weights of the leaves."""
    x, targets = features_of(t), t.attr("n_targets", 1)
    weights, ids = tensor_of(t, "leaf_weights", "f"), np.array(t.attr.ints("leaf_targetids"))
    count, how = len(t.attr.ints("nodes_featureids")), t.attr("aggregate_function", 1)
    t.require(weights.size and count, "has no leaves or nodes, must have them")
    t.require(
        ids.size == weights.size and ids.min() >= 0 and ids.max() < targets,
        f"has {ids.size} leaf_targetids for {weights.size} leaves, must be one of {targets} targets for each",
    )
    check_count((count + weights.size) * targets)
    table = np.zeros((count + weights.size, targets), weights.dtype)
    table[count + np.arange(weights.size), ids] = weights
    known = 0 <= how < len(AGGREGATES)
    total = Ensemble(t, nodes_and_leaves(t, count, weights.size)).sums(x, table, AGGREGATES[how] if known else str(how))
    transform = t.attr("post_transform", 0)
    t.require(not transform, f"post_transform is {transform}, of which ONNX and ONNX Runtime differ, must be 0")
    t.result(0, total, "DOUBLE" if t.raw(0).kind == "DOUBLE" else "FLOAT")
