"""Compares outputs with the expected ones within the test vectors' tolerances, and explains patterns of differences."""

from collections.abc import Iterator, Sequence

import numpy as np

from nnhal.base.codes import EXTENSION_SHIFT, OperandType
from nnhal.base.operands import Array, quantised
from nnhal.conformance.vectors import Expected, Vector
from nnhal.ops.common import FLOAT, HALF

LEAST = 4  # elements from which a pattern is not accidental
NO_DIFFERENCE = "", ""
EXACT = 0.0, 0.0
INTEGERS = OperandType.TENSOR_INT32, OperandType.INT32


def compare_all(vector: Vector, outputs: Sequence[Array | None], expected: Sequence[Expected]) -> tuple[str, str]:
    """Return the difference of the first output that counts and differs, and its hint; two empty texts if all agree.

    AOSP's harness accepts 32-bit integers that are off by 1, and moved elements that are off by an LSB. Here they must be
    exact.
    """
    for index, (actual, wanted) in enumerate(zip(outputs, expected, strict=True)):
        if wanted.ignored:
            continue
        exact = wanted.type in INTEGERS or (quantised(wanted.type) and vector.moves)
        limits = EXACT if exact else tolerance(wanted.type, vector.half_precision, "mobilenet" in vector.id)
        problem = compare(actual, wanted, limits)
        if problem:
            return f"output {index}: {problem}", hint(actual, wanted, limits)
    return NO_DIFFERENCE


def compare(actual: Array | None, wanted: Expected, limits: tuple[float, float]) -> str:
    """Return the difference between an output and the expected one, "" if it is within the tolerance."""
    if actual is None:
        return "has no value"
    if actual.shape != wanted.shape:
        return f"has shape {list(actual.shape)}, must be {list(wanted.shape)}"
    if wanted.data is None or not actual.size:
        return ""
    a, e = actual.astype(np.float64), wanted.data.astype(np.float64)
    bad = ~_near(a, e, limits)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} elements differ, the first at {list(at)}: {a[at]:g}, must be {e[at]:g}"


def _near(a: Array, e: Array, limits: tuple[float, float]) -> Array:
    atol, rtol = limits
    with np.errstate(invalid="ignore"):
        # everything is near infinity
        near: Array = (np.abs(a - e) <= atol + rtol * np.abs(e)) & np.isfinite(e) | (a == e)
    return near


def tolerance(kind: int, half: bool, mobilenet: bool = False) -> tuple[float, float]:
    """Return an output's absolute and relative tolerance, by AOSP's test harness; types of extensions count as float32."""
    if kind == OperandType.TENSOR_FLOAT16 or (half and kind == OperandType.TENSOR_FLOAT32):
        return HALF, HALF
    if kind in (OperandType.TENSOR_FLOAT32, OperandType.FLOAT32) or kind >> EXTENSION_SHIFT:
        return FLOAT
    if kind == OperandType.TENSOR_BOOL8:
        return 0.0, 0.0
    return (3.0 if mobilenet else 1.0), 0.0


def compare_frequencies(
    vector: Vector, inputs: Sequence[Array | None], outputs: Sequence[Array | None]
) -> tuple[str, str]:
    """Compare random outputs: the share of samples of each class with the softmax of the input.

    Returns as `compare_all`.
    """
    logits, samples = inputs[0], outputs[0]
    if logits is None or samples is None:
        return "has no value", ""
    classes = logits.shape[-1]
    if samples.ndim != 2 or len(samples) != len(logits):
        return f"has shape {list(samples.shape)}, must have {len(logits)} rows", ""
    if not ((samples >= 0) & (samples < classes)).all():
        return f"has classes from {samples.min()} to {samples.max()}, must be from 0 to {classes - 1}", ""
    x = logits.astype(np.float64)
    p = np.exp(x - x.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    share = np.stack([np.bincount(row, minlength=classes) / len(row) for row in samples])
    worst = float(np.abs(share - p).max())
    if worst <= vector.multinomial:
        return NO_DIFFERENCE
    return f"class frequencies are off by {worst:.3f}, must be within {vector.multinomial}", ""


# ---------------------------------------------------------------------------------------------------------------- hints


def hint(actual: Array | None, wanted: Expected, limits: tuple[float, float]) -> str:
    """Suggest a cause if the differences have a pattern; "" if they have none."""
    if actual is None or wanted.data is None or actual.shape != wanted.shape:
        return ""
    a, e = actual.astype(np.float64), wanted.data.astype(np.float64)
    return next(_hints(a, e, wanted, limits), "") if a.size >= LEAST else ""


def _hints(a: Array, e: Array, wanted: Expected, limits: tuple[float, float]) -> Iterator[str]:
    if np.isnan(a).all() and not np.isnan(e).any():
        yield "every element is NaN"
    if not (np.isfinite(a).all() and np.isfinite(e).all()):
        return
    if (a == a.flat[0]).all() and not (e == e.flat[0]).all():
        yield f"every element is {a.flat[0] + 0.0:g}: is the output written?"
    yield from _activations(a, e, wanted, limits)
    quantised = wanted.scale != 0
    steps = a - e
    if _near(steps, np.full_like(steps, steps.flat[0]), (abs(steps.flat[0]) * 1e-3, 0)).all():
        by = f"{abs(steps.flat[0]):g} {'step' if abs(steps.flat[0]) == 1 else 'steps'}"
        side = "high" if steps.flat[0] > 0 else "low"
        yield f"all {by} {side}: zero point?" if quantised else f"all {abs(steps.flat[0]):g} too {side}: bias?"
    real_a, real_e = a - wanted.zero_point * quantised, e - wanted.zero_point * quantised
    factor = float(np.sum(real_a * real_e) / max(np.sum(real_e * real_e), 1e-300))
    scaled = _near(real_a, real_e * factor, (limits[0] * abs(factor), max(limits[1], 1e-3))).all()
    most = np.mean(_near(a, e, limits)) <= 0.5  # a few small elements fit many factors
    if scaled and most and factor and abs(factor - 1) > 1e-3:
        yield f"all {factor:.4g} times what they must be: scale?"
    if _near(np.sort(a, None), np.sort(e, None), limits).all():
        yield "the right elements in another order: layout or axis?"
    if a.ndim == 4 and _only_border(~_near(a, e, limits)):
        yield "only at the edges: padding?"


def _activations(a: Array, e: Array, wanted: Expected, limits: tuple[float, float]) -> Iterator[str]:
    for low, high in ((0.0, 6.0), (-1.0, 1.0), (0.0, np.inf)):
        name = f"[{low:g}, {high:g}]"
        bounds = (low, high)
        if wanted.scale:
            bounds = tuple(wanted.zero_point + np.round(bound / wanted.scale) for bound in bounds)
        if _near(np.clip(a, *bounds), e, limits).all():
            yield f"all outside {name}: activation?"
        if _near(np.clip(e, *bounds), a, limits).all():
            yield f"cut to {name}, must not be: activation?"


def _only_border(bad: Array) -> bool:
    """Whether all differences lie at the edge of height and width in one of the layouts, and not in the middle."""
    for height in (1, 2):
        inner: list[slice] = [slice(None)] * 4
        inner[height] = inner[height + 1] = slice(1, -1)
        middle = bad[tuple(inner)]
        if middle.size and not middle.any():
            return True
    return False
