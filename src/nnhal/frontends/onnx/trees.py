"""Entries of ensembles of decision trees, of ai.onnx.ml: all trees are walked at once, from the roots to the leaves."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import MOST_PLACES, check_count
from nnhal.frontends.onnx.estimators import ClassLabels, of_targets, transformed
from nnhal.frontends.onnx.features import features_of
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import B8, F32, I32

MOST_LEVELS = 256
TESTS = {
    "BRANCH_LEQ": "LESS_EQUAL",
    "BRANCH_LT": "LESS",
    "BRANCH_GTE": "GREATER_EQUAL",
    "BRANCH_GT": "GREATER",
    "BRANCH_EQ": "EQUAL",
    "BRANCH_NEQ": "NOT_EQUAL",
}


class Ensemble:
    """The nodes of all trees, numbered through. A leaf leads to itself."""

    def __init__(self, t: NodeTask) -> None:
        self.t = t
        for name in ("nodes_values_as_tensor", "nodes_hitrates_as_tensor", "base_values_as_tensor"):
            t.require(name not in t.node.attributes, f"has {name}, of DOUBLE, which NNAPI has no type for")
        keys = list(zip(t.attr.ints("nodes_treeids"), t.attr.ints("nodes_nodeids"), strict=False))
        self.number = {key: n for n, key in enumerate(keys)}
        count = len(keys)
        t.require(count and len(self.number) == count, "has no nodes, or two of one number, must have different ones")
        modes = self.each("nodes_modes", count)
        leaf = np.array([mode == "LEAF" for mode in modes])
        self.modes = sorted({mode for mode in modes if mode != "LEAF"})
        known = all(mode in TESTS for mode in self.modes)
        t.require(known, f"has modes {', '.join(map(str, self.modes))}, must be {', '.join(TESTS)}")
        self.mode_numbers = np.array([0 if mode == "LEAF" else self.modes.index(mode) for mode in modes], np.int32)
        self.features = np.where(leaf, 0, self.each("nodes_featureids", count))
        self.values = np.where(leaf, 0, self.each("nodes_values", count)).astype(np.float32)
        missing = self.each("nodes_missing_value_tracks_true", count) or [0] * count
        self.missing = np.where(leaf, 0, missing).astype(np.int32)
        ends = [self.each(f"nodes_{way}nodeids", count) for way in ("true", "false")]
        self.ways = [self.followers(keys, leaf, each) for each in ends]
        children = np.concatenate([way[~leaf] for way in self.ways])
        self.roots = np.setdiff1d(np.arange(count), children).astype(np.int32)
        trees = len({tree for tree, _ in keys})
        t.require(self.roots.size == trees, f"has {self.roots.size} roots of {trees} trees, must have one of each")
        self.levels = self.depth(leaf)

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
        values = constant(Value(F32), self.values)
        for _ in range(self.levels):
            value = t.make("GATHER", flat, 0, t.make("ADD", t.make("GATHER", features, 0, at), start, activation=0))
            holds = self.holds(at, value, t.make("GATHER", values, 0, at))
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

    def scores(self, x: Term, kind: str, count: int) -> Term:
        """Return the sum of the weights of the leaves that each row reaches: [rows, count]. kind: target or class."""
        t = self.t
        keys = list(zip(t.attr.ints(f"{kind}_treeids"), t.attr.ints(f"{kind}_nodeids"), strict=False))
        ids, weights = t.attr.ints(f"{kind}_ids"), t.attr(f"{kind}_weights", ())
        fits = len(keys) == len(ids) == len(weights) and all(key in self.number for key in keys)
        t.require(
            fits and all(0 <= n < count for n in ids), f"has weights that fit neither its nodes nor {count} outputs"
        )
        check_count(len(self.number) * count)
        table = np.zeros((len(self.number), count), np.float32)
        for key, n, weight in zip(keys, ids, weights, strict=True):
            table[self.number[key], n] += weight
        rows, trees = t.known(x)[0], self.roots.size
        found = t.make("GATHER", constant(Value(F32), table), 0, self.leaves(x))
        return t.make("REDUCE_SUM", t.reshaped(found, (rows, trees, count)), t.integers([1]), False)


def with_base(t: NodeTask, scores: Term, count: int) -> Term:
    """Add the base values, one for each output."""
    base = t.attr("base_values", ())
    if not base:
        return scores
    t.require(len(base) == count, f"has {len(base)} base_values, must have {count}")
    return t.make("ADD", scores, constant(Value(F32), np.array([base], np.float32)), activation=0)


@operator("ai.onnx.ml.TreeEnsembleRegressor",
          becomes="GATHER and SELECT from the roots to the leaves, REDUCE_SUM")  # fmt: skip
def regressor(t: NodeTask) -> None:
    """Sum, or average, the weights of the leaves."""
    x, how, count = features_of(t), t.attr("aggregate_function", "SUM"), t.attr("n_targets", 1)
    t.require(how in ("SUM", "AVERAGE"), f"aggregate_function is {how}, must be SUM or AVERAGE")
    trees = Ensemble(t)
    total = trees.scores(x, "target", count)
    if how == "AVERAGE":
        total = t.make("MUL", total, t.scalar(1 / trees.roots.size, total), activation=0)
    t.result(0, of_targets(t, with_base(t, total, count), count))


def are_opposite(t: NodeTask) -> bool:
    """Whether each leaf has opposite weights of two classes, as CatBoost writes them, and there are no base values."""
    sums: dict[tuple[int, int, int], float] = defaultdict(float)
    ids, weights = t.attr.ints("class_ids"), t.attr("class_weights", ())
    keys = zip(t.attr.ints("class_treeids"), t.attr.ints("class_nodeids"), ids, strict=False)
    for key, weight in zip(keys, weights, strict=False):
        sums[key] += weight
    opposite = all(sums[tree, node, 0] == -sums[tree, node, 1] for tree, node, _ in list(sums))
    return opposite and set(ids) == {0, 1} and not t.attr("base_values", ())


def two_scores(t: NodeTask, x: Term, given: int, *, positive: bool) -> tuple[Term, Term]:
    """Return the scores of the second and of the first of two classes, as ONNX Runtime defines them.

    given: the class that the file has weights of. positive: whether no weight is negative.
    """
    how = t.attr("post_transform", "NONE")
    known = ("NONE",) if positive and not given else ("NONE", "LOGISTIC")
    t.require(how in known, f"post_transform is {how} for two classes, must be {' or '.join(known)}")
    score = t.make("REDUCE_SUM", Ensemble(t).scores(x, "class", 2), t.integers([1]), True)
    if t.attr("base_values", ()):
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
    classes, ids, weights = labels.count, t.attr.ints("class_ids"), t.attr("class_weights", ())
    if classes > 2 or (classes == 2 and are_opposite(t)):
        scores = with_base(t, Ensemble(t).scores(x, "class", classes), classes)
        labels.of_greatest(scores)
        labels.scores(transformed(t, scores))
        return
    t.require(classes == 2, f"has {classes} class labels, must have at least 2")
    one = len(set(ids)) == 1
    t.require(one, "has two classes and not the weights of one of them, must have those of one, or opposite ones")
    positive = min(weights, default=0) >= 0
    score, other = two_scores(t, x, ids[0], positive=positive)
    labels.of_two(score, 0.5 if positive else 0)
    labels.scores(transformed(t, t.make("CONCATENATION", other, score, 1, like=score)))
