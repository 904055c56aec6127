"""Accuracy: how far results are from the reference's, whether classes changed, and the bounds of that."""

from collections.abc import Iterator, Sequence

import numpy as np

from nnhal.base.brief import with_count
from nnhal.base.operands import Array, quantised
from nnhal.base.records import Record, as_dict
from nnhal.conformance.suites.mlts.data import value_of
from nnhal.ops.common import decode
from nnhal.runtime.arguments import Spec

# The bounds of the suite. A correct kernel may differ in the order of its sums and in how it rounds, and a model adds up
# what its operations differ by.
FLOAT, RELAXED = 5e-4, 1e-2  # greatest error of an output, as a share of its greatest magnitude; RELAXED: of float16
STEPS, STEPS_RMS = 8.0, 1.0  # of a quantised output in LSB: greatest error, and root of the mean squared error
DROP = 0.01  # share of the inputs or rows that may lose their class; at least one may
TOP = 5


class Accuracy(Record, frozen=True):
    """How far a device is from the reference over all inputs.

    rows: of scores in the first output, 0 if its last dimension is 1. top1, top5: the share of the rows whose class is
    the label, or without labels the reference's class; None without rows. right1, right5: the number of these rows.
    changed: rows with another class than the reference's, beyond a tie. moved: those of them that the bounds of errors
    do not explain. mse, greatest: mean squared and greatest error of the worst output, as real values. relative: greatest
    error by greatest magnitude, of the worst output of floats; None without one. lsb, lsb_rms: greatest and root of
    the mean squared error of the worst quantised output, in LSB; None without one. place: numbers of the output and the
    input with the error that is greatest relative to its bound.
    """

    inputs: int
    rows: int
    labels: bool
    top1: float | None
    top5: float | None
    right1: int
    right5: int
    changed: int
    moved: int
    mse: float
    greatest: float
    relative: float | None
    lsb: float | None
    lsb_rms: float | None
    place: tuple[int, int]

    def to_dict(self) -> dict[str, object]:
        """Return all of it by name, with the share of classes that changed."""
        return {**as_dict(self), "changed_share": self.changed / self.rows if self.rows else None}


Results = Sequence[Sequence[Array]]  # the outputs for each input


def measure(specs: Sequence[Spec], found: Results, expected: Results, labels: Sequence[int], relaxed: bool) -> Accuracy:
    """Compare results with the reference's. specs: of the outputs. labels: the class of each input; empty if unknown."""
    mse = greatest = 0.0
    relative: float | None = None
    lsb: float | None = None
    lsb_rms: float | None = None
    most, at = 0.0, (0, 0)
    for place in range(min(len(specs), *(len(each) for each in found))):
        spec = specs[place]
        value = value_of(spec)
        off, size = [], 1e-30
        for a, e in zip(found, expected, strict=True):
            actual, wanted = (np.asarray(decode(value, x[place]), np.float64) for x in (a, e))
            size = max(size, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)))
            off.append(differences(actual, wanted).ravel())
        every = np.concatenate(off)
        worst, squared = float(every.max(initial=0.0)), float(np.square(every).mean()) if every.size else 0.0
        mse, greatest = max(mse, squared), max(greatest, worst)
        bound = STEPS * spec.scale if quantised(spec.type) else size * (RELAXED if relaxed else FLOAT)
        if worst / bound > most:
            most, at = worst / bound, (place, int(np.argmax([each.max(initial=0.0) for each in off])))
        if quantised(spec.type):
            lsb = max(lsb or 0.0, worst / spec.scale)
            lsb_rms = max(lsb_rms or 0.0, squared**0.5 / spec.scale)
        else:
            relative = max(relative or 0.0, worst / size)
    classes = _classes(specs[0], found, expected, labels, relaxed)
    return Accuracy(len(found), *classes, mse, greatest, relative, lsb, lsb_rms, at)


def differences(actual: Array, expected: Array) -> Array:
    """Return the absolute difference of each element: infinite for another shape and for a NaN that is not expected."""
    if actual.shape != expected.shape:
        return np.full(max(expected.size, 1), np.inf)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    off = np.subtract(actual, expected, where=~same, out=np.zeros_like(expected))
    return np.abs(np.where(np.isnan(off), np.inf, off))


def _classes(
    spec: Spec, found: Results, expected: Results, labels: Sequence[int], relaxed: bool
) -> tuple[int, bool, float | None, float | None, int, int, int, int]:
    pairs = [(np.asarray(a[0], np.float64), np.asarray(e[0], np.float64)) for a, e in zip(found, expected, strict=True)]
    wide = [e.ndim > 0 and e.shape[-1] > 1 for _, e in pairs]
    if not all(wide):
        return 0, False, None, None, 0, 0, 0, 0
    count = changed = moved = right1 = right5 = 0
    # a class that only labels can judge needs one row of scores for each input
    labelled = bool(labels) and all(e.size == e.shape[-1] for _, e in pairs)
    for number, (actual, wanted) in enumerate(pairs):
        right = wanted.reshape(-1, wanted.shape[-1])
        scores = actual.reshape(right.shape) if actual.shape == wanted.shape else np.full_like(right, np.nan)
        picked = ranked(scores)
        best = right.max(1)
        truth = np.full(len(right), labels[number]) if labelled else ranked(right)[:, 0]
        margin = best - right[np.arange(len(right)), picked[:, 0]]
        margin = np.where(np.isnan(scores).any(1) & ~np.isnan(right).any(1), np.inf, margin)
        allowed = STEPS if quantised(spec.type) else (RELAXED if relaxed else FLOAT) * float(np.abs(best).max())
        count += len(right)
        changed += int(np.count_nonzero(margin > 0))
        moved += int(np.count_nonzero(margin > 2 * allowed))
        tied = (margin == 0) & (not labelled)  # the reference has several best classes
        right1 += int(np.count_nonzero((picked[:, 0] == truth) | tied))
        right5 += int(np.count_nonzero((picked[:, :TOP] == truth[:, None]).any(1) | tied))
    return count, labelled, right1 / count, right5 / count, right1, right5, changed, moved


def ranked(scores: Array) -> Array:
    """Return the places of the scores of each row, best first; of equal ones the first comes first."""
    return np.argsort(-scores, axis=1, kind="stable")


def problems(device: Accuracy, reference: Accuracy, relaxed: bool) -> Iterator[str]:
    """Yield what is beyond the bounds of the suite."""
    for name, mine, its in (
        ("top-1", device.right1, reference.right1),
        (f"top-{TOP}", device.right5, reference.right5),
    ):
        allowed = _allowed(device.rows)
        if device.labels and its - mine > allowed:
            shares = f"{mine / device.rows:.1%} of {device.rows} inputs, the reference's is {its / device.rows:.1%}"
            yield f"{name} accuracy is {shares}, must be at most {with_count(allowed, 'input')} below"
    if device.moved > _allowed(device.rows):
        what = f"{device.moved} of {device.rows} rows have another class than on the reference"
        yield f"{what}, must be at most {_allowed(device.rows)} (near ties are not counted)"
    bound = RELAXED if relaxed else FLOAT
    output, number = device.place
    where = f"output {output}, input {number} of {device.inputs}"
    if device.relative is not None and not device.relative <= bound:
        share = f"{device.relative:.3g} of the output's greatest magnitude ({where})"
        yield f"greatest error is {share}, must be at most {bound:g}"
    if device.lsb is not None and not device.lsb <= STEPS:
        yield f"greatest error is {device.lsb:.4g} LSB ({where}), must be at most {STEPS:g}"
    if device.lsb_rms is not None and not device.lsb_rms <= STEPS_RMS:
        yield f"root of the mean squared error is {device.lsb_rms:.3g} LSB, must be at most {STEPS_RMS:g}"


def _allowed(rows: int) -> int:
    return max(1, int(DROP * rows))
