"""Entries of ai.onnx.ml that predict from features: linear models and support vectors; and what all classifiers share."""

from itertools import combinations

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import INT32_RANGE, check_count, either
from nnhal.frontends.onnx.features import distances, features_of
from nnhal.frontends.onnx.products import rows_times
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import B8, F32, I32

SEQUENCE = "a sequence"  # the type of a list of maps in a file
POST_TRANSFORMS = "NONE", "LOGISTIC", "SOFTMAX"


def transformed(t: NodeTask, scores: Term) -> Term:
    """Apply the node's function of the scores."""
    how = t.attr("post_transform", "NONE")
    t.require(how in POST_TRANSFORMS, f"post_transform is {how}, must be NONE, LOGISTIC or SOFTMAX")
    if how == "LOGISTIC":
        return t.make("LOGISTIC", scores)
    return t.make("SOFTMAX", scores, 1.0) if how == "SOFTMAX" else scores


def of_targets(t: NodeTask, scores: Term, targets: int) -> Term:
    """Apply the node's function of the values of a regression."""
    plain = t.attr("post_transform", "NONE") == "NONE"
    t.require(plain or targets > 1, "has a post_transform of one target, which ONNX Runtime does not apply")
    return transformed(t, scores)


class ClassLabels:
    """The labels of a classifier: integers, or texts, which are represented by their places."""

    def __init__(self, t: NodeTask, integers: str) -> None:
        self.t, self.numbers, self.texts = t, t.attr.ints(integers), t.attr("classlabels_strings", ())
        whole = all(INT32_RANGE.min <= n <= INT32_RANGE.max for n in self.numbers)
        t.require(whole, "has labels of more than the 32 bits that NNAPI's integers have")
        self.count = len(self.numbers) or len(self.texts)

    def of_greatest(self, scores: Term) -> None:
        """Set the first output to the label of the greatest score of each row, the first of equal ones."""
        self._chosen(self.t.make("ARGMAX", scores, 1, like=Value(I32)))

    def of_two(self, score: Term, limit: float) -> None:
        """Set the first output to the second label where a row's score is above a limit, else to the first."""
        t = self.t
        above = t.make("GREATER", score, t.scalar(limit, score), like=Value(B8))
        rows = t.known(score)[0]
        one, none = (constant(Value(I32), np.full((rows, 1), n, np.int32)) for n in (1, 0))
        self._chosen(t.reshaped(t.make("SELECT", above, one, none, like=one), (rows,)))

    def _chosen(self, places: Term) -> None:
        t = self.t
        if not t.is_output_used(0):
            return
        if self.numbers:
            table = constant(Value(I32), np.array(self.numbers, np.int32))
            t.result(0, t.make("GATHER", table, 0, places), "INT64", scalar=False)
        else:
            t.result(0, places, "STRING", scalar=False)
            t.graph.context.note_labels(t.results[0], "value labels", self.texts)

    def scores(self, scores: Term) -> None:
        """Set the second output."""
        if self.t.is_output_used(1):
            self.t.result(1, scores, "FLOAT", scalar=False)
            self.t.graph.context.note_labels(self.t.results[1], "axis labels", self.numbers or self.texts)


# --------------------------------------------------------------------------------------------------------- linear models


def weighted(t: NodeTask, x: Term, units: int) -> Term:
    """Multiply rows by the node's coefficients, and add its intercepts: [rows, units]."""
    coefficients, intercepts = t.attr.floats("coefficients"), t.attr.floats("intercepts")
    t.require(
        units > 0 and coefficients.size and not coefficients.size % units,
        f"has {coefficients.size} coefficients, must have as many for each of {units} outputs",
    )
    t.require(intercepts.size in (0, units), f"has {intercepts.size} intercepts, must have {units}")
    weights = constant(Value(F32), coefficients.reshape(units, -1))
    return rows_times(t, x, weights, intercepts if intercepts.size else None)


@operator("ai.onnx.ml.LinearRegressor", becomes="FULLY_CONNECTED")
def linear_regressor(t: NodeTask) -> None:
    """Write the values of all targets."""
    targets = t.attr("targets", 1)
    t.result(0, of_targets(t, weighted(t, features_of(t), targets), targets), scalar=False)


@operator("ai.onnx.ml.LinearClassifier", outputs=(1, 2), becomes="FULLY_CONNECTED; ARGMAX, or GREATER of two classes")
def linear_classifier(t: NodeTask) -> None:
    """Choose the class with the greatest score. Of two classes, the file may have the score of the second only."""
    x, labels = features_of(t), ClassLabels(t, "classlabels_ints")
    units = len(t.attr.floats("intercepts"))
    t.require(
        units == labels.count or (units == 1 and labels.count == 2),
        f"has {units} intercepts, must have one for each of {labels.count} classes",
    )
    scores = weighted(t, x, units)
    if units > 1:
        labels.of_greatest(scores)
        labels.scores(transformed(t, scores))
        return
    labels.of_two(scores, 0)
    how, known = t.attr("post_transform", "NONE"), (*POST_TRANSFORMS, "SOFTMAX_ZERO")
    t.require(how in known, f"post_transform is {how} of one score, must be one of {', '.join(known)}")
    second = transformed(t, scores) if how == "LOGISTIC" else scores  # the others have no effect in ONNX Runtime
    first = t.make("SUB", t.scalar(1, second), second, activation=0)
    labels.scores(t.make("CONCATENATION", first, second, 1, like=second))


@operator("ai.onnx.ml.ZipMap", becomes="its input: the scores, in the order of the labels")
def zip_map(t: NodeTask) -> None:
    """Write the scores, because NNAPI has no type for lists of maps."""
    t.result(0, t.x(0), SEQUENCE, scalar=False)
    labels = t.attr.ints("classlabels_int64s") or t.attr("classlabels_strings", ())
    t.graph.context.note_labels(t.results[0], "axis labels", labels)


# ------------------------------------------------------------------------------------------------------- support vectors


def weighted_kernels(t: NodeTask, x: Term, count: int, weights: Array, rho: Array) -> Term:
    """Multiply the node's kernel of each row and each of its `count` support vectors by weights: [rows, outputs].

    weights: [outputs, count]; rho: [outputs], which are added.
    """
    vectors, name = t.attr.floats("support_vectors"), t.attr("kernel_type", "LINEAR")
    width = t.known(x)[1]
    t.require(
        count > 0 and vectors.size == count * width,
        f"has {vectors.size} numbers in support_vectors, must have {count} x {width}",
    )
    vectors = vectors.reshape(count, width)
    if name == "LINEAR":
        return rows_times(t, x, constant(Value(F32), (weights.astype(np.float64) @ vectors).astype(np.float32)), rho)
    gamma, offset, degree = (*t.attr.floats("kernel_params").tolist(), 0.0, 0.0, 0.0)[:3]
    if name == "RBF":
        squares = distances(t, x, constant(Value(F32), vectors), 2)
        found = t.make("EXP", t.make("MUL", squares, t.scalar(-gamma, squares), activation=0))
    else:
        t.require(name in ("POLY", "SIGMOID"), f"kernel_type is {name}, must be LINEAR, POLY, RBF or SIGMOID")
        product = rows_times(t, x, constant(Value(F32), vectors), None)
        scaled = t.make("MUL", product, t.scalar(gamma, product), activation=0)
        scaled = t.make("ADD", scaled, t.scalar(offset, product), activation=0)
        found = t.make("TANH", scaled) if name == "SIGMOID" else t.make("POW", scaled, t.scalar(degree, product))
    return rows_times(t, found, constant(Value(F32), weights), rho)


@operator("ai.onnx.ml.SVMRegressor", becomes="FULLY_CONNECTED of the kernels of all support vectors")
def svm_regressor(t: NodeTask) -> None:
    """Sum the weighted kernels. one_class: 1 where the sum is above 0, else -1."""
    x, count, rho = features_of(t), t.attr("n_supports", 0), t.attr.floats("rho")
    weights = t.attr.floats("coefficients").reshape(1, -1)
    t.require(len(rho) == 1, f"has {len(rho)} rho, must have 1")
    t.require(
        not count or weights.size == count,
        f"has {weights.size} coefficients, must have one for each of {count} vectors",
    )
    total = (
        weighted_kernels(t, x, count, weights, rho) if count else rows_times(t, x, constant(Value(F32), weights), rho)
    )
    found = of_targets(t, total, 1)
    if t.attr("one_class", 0):
        above = t.make("GREATER", found, t.scalar(0, found), like=Value(B8))
        found = either(t, above, 1, -1, F32)
    t.result(0, found, scalar=False)


@operator("ai.onnx.ml.SVMClassifier", outputs=(1, 2),
          becomes="FULLY_CONNECTED of the kernels of all support vectors; votes of pairs of classes, ARGMAX")  # fmt: skip
def svm_classifier(t: NodeTask) -> None:
    """Choose the class with the most votes: each pair of classes votes for one, by the sign of its score.

    The scores are those of the pairs. Of two classes, they are minus and plus their score, or probabilities.
    """
    x, labels = features_of(t), ClassLabels(t, "classlabels_ints")
    has_probabilities = bool(t.attr("prob_a", ()))
    t.require(
        labels.count == 2 or not has_probabilities,
        f"has probabilities of {labels.count} classes, which an iteration computes, must be of 2",
    )
    scores = pair_scores(t, x, labels.count)
    ahead = t.make("GREATER", scores, t.scalar(0, scores), like=Value(B8))
    pairs = t.known(scores)[1]
    check_count(labels.count * pairs)
    votes = np.zeros((labels.count, pairs), np.float32)  # of each class, where the first of a pair is ahead
    for number, (first, second) in enumerate(combinations(range(labels.count), 2)):
        votes[first, number], votes[second, number] = 1, -1
    against = -votes.clip(max=0).sum(axis=1)
    labels.of_greatest(rows_times(t, either(t, ahead, 1, 0, F32), constant(Value(F32), votes), against))
    if has_probabilities:
        likely = probability(t, scores)
        rest = t.make("SUB", t.scalar(1, likely), likely, activation=0)
        labels.scores(transformed(t, t.make("CONCATENATION", likely, rest, 1, like=likely)))
        return
    if labels.count == 2:
        scores = t.make("CONCATENATION", t.make("NEG", scores), scores, 1, like=scores)
    labels.scores(transformed(t, scores))


def probability(t: NodeTask, scores: Term) -> Term:
    """Return the probability of the first of two classes: 1 / (1 + exp(a score + b)), as of LIBSVM.

    ONNX Runtime iterates towards it, and stops at most 0.005 away.
    """
    a, b = t.attr.floats("prob_a"), t.attr.floats("prob_b")
    t.require(a.size == b.size == 1, f"has {a.size} prob_a and {b.size} prob_b, must have 1 each")
    found = t.make("MUL", scores, t.scalar(-float(a[0]), scores), activation=0)
    return t.make("LOGISTIC", t.make("ADD", found, t.scalar(-float(b[0]), scores), activation=0))


def pair_scores(t: NodeTask, x: Term, classes: int) -> Term:
    """Return the score of the first of each pair of classes: [rows, pairs]."""
    counts, rho = t.attr.ints("vectors_per_class"), t.attr.floats("rho")
    t.require(classes > 1, f"has {classes} class labels, must have at least 2")
    t.require(len(counts) == classes, f"has vectors of {len(counts)} classes, must have {classes}")
    known = ("NONE", "LOGISTIC") if classes == 2 else ("NONE",)
    how = t.attr("post_transform", "NONE")
    t.require(how in known, f"post_transform is {how} of {classes} classes, must be {' or '.join(known)}")
    total, pairs = sum(counts), classes * (classes - 1) // 2
    coefficients = t.attr.floats("coefficients")
    t.require(
        min(counts) >= 0 and coefficients.size == (classes - 1) * total and len(rho) == pairs,
        f"has {coefficients.size} coefficients and {len(rho)} rho, must have {(classes - 1) * total} and {pairs}",
    )
    check_count(pairs * total)
    coefficients = coefficients.reshape(classes - 1, total)
    ends = np.cumsum([0, *counts])
    weights = np.zeros((pairs, total), np.float32)
    for row, (first, second) in zip(weights, combinations(range(classes), 2), strict=True):
        for one, other in ((first, second - 1), (second, first)):
            here = slice(ends[one], ends[one + 1])
            row[here] = coefficients[other, here]
    return weighted_kernels(t, x, total, weights, rho)
