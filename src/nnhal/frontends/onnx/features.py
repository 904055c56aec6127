"""Entries of ai.onnx.ml that prepare features: rows of numbers, the last dimension has one place for each feature."""

import math
from itertools import count

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import broadcast
from nnhal.frontends.common.folding import require_foldable
from nnhal.frontends.common.integer_ranges import of_all, of_first
from nnhal.frontends.common.terms import Term, constant, in_float32
from nnhal.frontends.common.writing import INT32_RANGE, MOST_DIMENSIONS, check_count, either, filled
from nnhal.frontends.onnx.graph import fit_int32
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import B8, F32, I32


def reals(t: NodeTask, place: int = 0) -> Term:
    """Return an input of FLOAT or integers as FLOAT."""
    x = t.x(place)
    if x.value.type == I32:
        x = t.make("CAST", x, like=Value(F32))
    t.require(x.value.type == F32, f"of {x.kind}, must be FLOAT or integers")
    return x


def features_of(t: NodeTask, place: int = 0) -> Term:
    """Return an input as real rows; a vector is one row."""
    x = reals(t, place)
    if t.rank(x) == 1:
        x = t.reshaped(x, (1, *t.shape(x)))
    t.require(t.rank(x) == 2, f"has shape {list(t.shape(x))}, must have rows of features")
    return x


def for_features(t: NodeTask, x: Term, attribute: str) -> Term:
    """Return an attribute with one number, or one for each feature."""
    numbers = t.attr.floats(attribute)
    features = t.shape(x)[-1]
    t.require(len(numbers) in (1, features), f"{attribute} has {len(numbers)} numbers, must have 1 or {features}")
    return constant(Value(F32), numbers)


def distances(t: NodeTask, x: Term, y: Term, power: float) -> Term:
    """Return the sum of |a - b|^power over the features of each row a of x and b of y: [rows of x, rows of y]."""
    (rows, width), (others, _) = t.known(x), t.known(y)
    t.require(width == t.known(y)[1], f"has rows of {width} and of {t.known(y)[1]} features, must have the same number")
    apart = t.make("SUB", t.reshaped(x, (rows, 1, width)), t.reshaped(y, (1, others, width)), activation=0)
    if power == 2:
        apart = t.make("MUL", apart, apart, activation=0)
    else:
        apart = t.make("ABS", apart)
        apart = apart if power == 1 else t.make("POW", apart, t.scalar(power, apart))
    return t.make("REDUCE_SUM", apart, t.integers([2]), False)


@operator("ai.onnx.ml.Scaler", becomes="SUB, MUL")
def scaler(t: NodeTask) -> None:
    """Write (x - offset) scale."""
    x = reals(t)
    for name, attribute in (("SUB", "offset"), ("MUL", "scale")):
        x = t.make(name, x, for_features(t, x, attribute), activation=0)
    t.result(0, x)


@operator("ai.onnx.ml.Normalizer", becomes="REDUCE_MAX, or REDUCE_SUM of ABS or of squares; SELECT, DIV")
def normalizer(t: NodeTask) -> None:
    """Divide each row by its maximum, its sum of absolutes or its length, except for 0."""
    x, norm = reals(t), t.attr("norm", "MAX")
    last = t.integers([t.rank(x) - 1])
    if norm == "MAX":
        size = t.make("REDUCE_MAX", x, last, True)
    elif norm == "L1":
        size = t.make("REDUCE_SUM", t.make("ABS", x), last, True)
    else:
        t.require(norm == "L2", f"norm is {norm}, must be MAX, L1 or L2")
        size = t.make("SQRT", t.make("REDUCE_SUM", t.make("MUL", x, x, activation=0), last, True))
    one = filled(t, t.known(size), 1, F32)
    is_zero = t.make("EQUAL", size, t.scalar(0, size), like=Value(B8))
    t.result(0, t.make("DIV", x, t.make("SELECT", is_zero, one, size, like=size), activation=0))


@operator("ai.onnx.ml.Binarizer", becomes="GREATER, SELECT")
def binarizer(t: NodeTask) -> None:
    """Write x > threshold, as 1 and 0."""
    x = t.x(0)
    t.require(x.value.type == F32, f"of {x.kind}, must be FLOAT")
    above = t.make("GREATER", x, t.scalar(t.attr("threshold", 0.0), x), like=Value(B8))
    t.result(0, either(t, above, 1, 0, F32), x.kind)


@operator("ai.onnx.ml.Imputer", becomes="EQUAL, or NOT_EQUAL to itself for NaN; SELECT", span=of_all)
def imputer(t: NodeTask) -> None:
    """Replace elements of one value, which may be NaN, by a number for each feature."""
    x = t.x(0)
    whole = x.value.type == I32
    t.require(whole or x.value.type == F32, f"of {x.kind}, must be FLOAT or integers")
    if whole:
        missing, new = t.attr("replaced_value_int64", 0), t.attr.ints("imputed_value_int64s")
        small = all(INT32_RANGE.min <= n <= INT32_RANGE.max for n in (missing, *new))
        t.require(small, "has values of more than the 32 bits that NNAPI's integers have")
        features = t.shape(x)[-1]
        t.require(len(new) in (1, features), f"has {len(new)} values to impute, must have 1 or {features}")
        fill = constant(Value(I32), np.array(new, np.int32))
    else:
        missing, fill = t.attr("replaced_value_float", 0.0), for_features(t, x, "imputed_value_floats")
    if math.isnan(missing):
        hit = t.make("NOT_EQUAL", x, x, like=Value(B8))
    else:
        hit = t.make("EQUAL", x, t.scalar(missing, x), like=Value(B8))
    t.result(0, t.make("SELECT", hit, broadcast(t, fill, t.known(x)), x, like=x), x.kind)


def extracted(t: NodeTask, x: Array) -> Array:
    numbers = np.array(t.ints(1, "indices"))
    require_foldable((numbers >= 0).all())
    return np.atleast_2d(x).take(numbers, -1)


@operator("ai.onnx.ml.ArrayFeatureExtractor", inputs=2, becomes="GATHER along the last dimension", moves=extracted,
          span=of_first)  # fmt: skip
def array_feature_extractor(t: NodeTask) -> None:
    """Gather features of each row; a vector is one row."""
    x, indices = t.x(0), t.index(1, "indices")
    kind = x.kind
    if t.rank(x) == 1:
        x = t.reshaped(x, (1, *t.shape(x)))
    size = t.known(x)[-1]
    if indices.data is not None:
        numbers = np.asarray(indices.data).reshape(-1)
        t.require(((numbers >= 0) & (numbers < size)).all(), f"has an index outside of the {size} features")
        flat = constant(Value(I32), numbers.astype(np.int32))
    else:
        flat = t.reshaped(indices, (math.prod(t.known(indices)),))
    t.result(0, t.make("GATHER", x, t.rank(x) - 1, flat), kind, scalar=False)


# ------------------------------------------------------------------------------------------------------------- categories


def hits(t: NodeTask, x: Term, keys: Array) -> Term:
    """Return, along a new last dimension, 1 where x equals a key and else 0, as FLOAT. keys: all different."""
    t.require(t.rank(x) < MOST_DIMENSIONS, f"has {t.rank(x)} dimensions, must have at most {MOST_DIMENSIONS - 1}")
    sizes = (*t.known(x)[: t.rank(x)], len(keys))
    check_count(math.prod(sizes))
    equal = t.make("EQUAL", t.reshaped(x, (*sizes[:-1], 1)), constant(Value(x.value.type), keys), like=Value(B8))
    return either(t, equal, 1, 0, F32)


def numbers_of(t: NodeTask, name: str) -> Array:
    """Return numbers, as int32 or float32, from the attribute that the file has of `name_int64s` and others."""
    found = np.array(t.attr.ints(f"{name}_int64s"), np.int64)
    if f"{name}_floats" in t.node.attributes:
        found = t.attr.floats(f"{name}_floats")
    elif f"{name}_tensor" in t.node.attributes:
        data = t.graph.array(t.attr.tensor(f"{name}_tensor"))
        known = data is not None and data.dtype in (np.int64, np.float32, np.float64)
        t.require(known, f"has other {name} than numbers")
        found = np.asarray(data).reshape(-1)
    t.require(found.size, f"has no {name} that are numbers, and NNAPI has no type for texts")
    if found.dtype == np.int64:
        small = INT32_RANGE.min <= found.min() and found.max() <= INT32_RANGE.max
        t.require(small, f"has {name} of more than the 32 bits that NNAPI's integers have")
    return found.astype(np.int32) if found.dtype == np.int64 else in_float32(found)


@operator("ai.onnx.ml.OneHotEncoder", becomes="EQUAL, SELECT")
def one_hot_encoder(t: NodeTask) -> None:
    """Write a place for each category: 1 in that of the value, which is truncated to an integer."""
    x, categories = t.x(0), numbers_of(t, "cats")
    t.require(t.attr("zeros", 1), "fails for a value of no category (zeros = 0), which NNAPI cannot")
    t.require(x.value.type in (F32, I32), f"of {x.kind}, must be FLOAT or integers")
    t.require(len(set(categories.tolist())) == len(categories), "has a category twice")
    t.result(0, hits(t, x if x.value.type == I32 else truncated(t, x, categories), categories), scalar=False)


def truncated(t: NodeTask, x: Term, categories: Array) -> Term:
    """Return reals as integers. NaN and reals of more than 32 bits become an integer of no category."""
    low, high = (
        t.make(test, x, t.scalar(limit, x), like=Value(B8))
        for test, limit in (("GREATER_EQUAL", -(2.0**31)), ("LESS", 2.0**31))
    )
    other = next(n for n in count() if n not in categories)
    whole = t.make("CAST", x, like=Value(I32))
    inside = t.make("LOGICAL_AND", low, high)
    return t.make("SELECT", inside, whole, filled(t, t.known(x), other, I32), like=whole)


@operator("ai.onnx.ml.LabelEncoder", becomes="EQUAL, SELECT, ARGMAX, GATHER")
def label_encoder(t: NodeTask) -> None:
    """Map each key to a value, and others to the default. Texts are represented by their places, the default by 0."""
    x, keys, texts = t.x(0), numbers_of(t, "keys"), t.attr("values_strings", ())
    values = np.arange(1, 1 + len(texts), dtype=np.int32) if texts else numbers_of(t, "values")
    t.require(len(keys) == len(values), f"has {len(keys)} keys and {len(values)} values, must have as many")
    whole = values.dtype == np.int32
    kinds = {np.dtype(np.int32): I32, np.dtype(np.float32): F32}
    t.require(x.value.type == kinds[keys.dtype], f"of {x.kind} has keys of another type")
    t.require(not np.isnan(keys).any(), "has NaN among its keys, which only some versions compare as equal to NaN")
    t.require(len(set(keys.tolist())) == len(keys), "has a key twice")
    default = 0 if texts else default_of(t, values)
    found = hits(t, x, keys)
    sizes = t.known(found)[:-1]
    at_least = filled(t, (*sizes, 1), 0.5, F32)  # the default's place, the first, wins where nothing is 1
    place = t.make(
        "ARGMAX", t.make("CONCATENATION", at_least, found, len(sizes), like=found), len(sizes), like=Value(I32)
    )
    table = constant(Value(kinds[values.dtype]), np.array([default, *values], values.dtype))
    real = t.attr.tensor("values_tensor").kind if "values_tensor" in t.node.attributes else "FLOAT"
    t.result(0, t.make("GATHER", table, 0, place), "STRING" if texts else "INT64" if whole else real)
    if texts:
        t.graph.context.note_labels(t.results[0], "value labels", [t.attr("default_string", "_Unused"), *texts])


def default_of(t: NodeTask, values: Array) -> float:
    """Return the value of keys that the node does not have."""
    if "default_tensor" in t.node.attributes:
        found = numbers_of(t, "default")
        t.require(
            found.size == 1 and found.dtype == values.dtype, "default_tensor must be one number of the values' type"
        )
        return float(found[0]) if values.dtype == np.float32 else int(found[0])
    if values.dtype == np.float32:
        return float(t.attr("default_float", -0.0))
    default = t.attr("default_int64", -1)
    t.require(fit_int32([default]), f"default_int64 is {default}, must fit the 32 bits that NNAPI's integers have")
    return int(default)


@operator("ai.onnx.ml.FeatureVectorizer", inputs=(1, None), becomes="CONCATENATION")
def feature_vectorizer(t: NodeTask) -> None:
    """Join the features of all inputs."""
    rows = [features_of(t, place) for place in range(len(t.node.inputs))]
    widths = [t.known(x)[1] for x in rows]
    wanted = t.attr.ints("inputdimensions")
    t.require(wanted == widths, f"has inputs of {widths} features, must have {wanted}")
    t.result(0, rows[0] if len(rows) == 1 else t.make("CONCATENATION", *rows, 1, like=rows[0]), scalar=False)
