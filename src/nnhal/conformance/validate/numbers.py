"""Checks of results against the reference, which is independent of the driver."""

import math

import numpy as np

from nnhal.base.codes import ErrorStatus, type_name
from nnhal.base.errors import ContractBroken, DriverFailed, NnhalError
from nnhal.base.operands import Array, Value, quantised
from nnhal.base.records import Record, replace
from nnhal.conformance.differential import Outputs, arrays_of, compare_outputs, model_of, open_masks
from nnhal.conformance.draw import Call
from nnhal.conformance.validate.check import check
from nnhal.conformance.validate.trial import Trial
from nnhal.model.graph import Model
from nnhal.ops.common import ACTIVATION_RANGE, encode, fused
from nnhal.ops.schema import bind

ENOUGH = 24  # the least elements of one output and type for a verdict
HALVES = 0.25  # the greatest share of an output's elements at a half that a driver rounds to the other side
LEAST_CHANCE = 1e-6  # the greatest probability of failing a driver that rounds
# Scales of an output that are tried, relative to its scale: near ones, then others, since results may be a million times it.
SCALES = 5.3, 53.0, 530.0, 0.53, 0.053, *(5.3 * 10.0**power for power in (3, -3, 4, -4, 5, -5, 6, -6, 7, -7))
TIE = 1e-3  # of a quantisation step: a value this close to a half may be rounded to either side


@check("values", "Results follow the definition, within its tolerance, for values of every class.")
def values(trial: Trial) -> int:
    trial.calls.fixed()
    wrong: list[tuple[int, Call, str]] = []
    ran = 0
    for call, model in trial.calls.many():
        ran += 1
        problem = _problem(trial, call, model)
        if problem:
            wrong.append((sum(x.size for x in arrays_of(call)), call, problem))
    if wrong:
        _, call, problem = min(wrong, key=lambda found: found[0])
        trial.unmet(f"{len(wrong)} of {ran} calls: {problem} ({call.cell})")
    return ran


def _problem(trial: Trial, call: Call, model: Model) -> str:
    """Return the fault of a call, by the reference; each call runs on a new prepared model."""
    try:
        wanted, expected, status = trial.calls.wanted(model_of(call), arrays_of(call)), "", ErrorStatus.NONE
    except (DriverFailed, ContractBroken):
        raise
    except NnhalError as error:
        wanted, expected, status = [], str(error), error.status
    try:
        actual = trial.alone(model, arrays_of(call))
    except NnhalError as error:
        alike = expected and error.status == status and not isinstance(error, ContractBroken)
        return "" if alike else f"{type(error).__name__}: {error}"
    if expected:
        return f"runs, must fail: {expected}"
    return compare_outputs(call, wanted, actual, trial.device.relaxations)


@check(
    "steps",
    "Quantised results are not shifted to one side, and those of QUANTIZE are exact except at halves.",
    unseen=f"the supported calls have fewer than {ENOUGH} quantised results of one type",
)
def steps(trial: Trial) -> int:
    trial.calls.fixed()
    seen = 0
    found: dict[tuple[int, int], OneSidedError] = {}
    for drawn, _ in trial.calls.many():
        if drawn.cell.values == "far" or not any(quantised(v.type) for v in drawn.outputs):
            continue
        try:
            call, wanted = _spread(trial, drawn)
            actual = trial.alone(model_of(call), arrays_of(call))
        except NnhalError:
            continue
        if trial.operation == "QUANTIZE":
            seen += _exact(trial, call, wanted[0], actual[0])
        for number, value in enumerate(call.outputs):
            key = number, value.type
            found[key] = found.get(key, OneSidedError()) + _sides(call, number, wanted[number], actual[number])
    for (number, kind), sides in found.items():
        seen += sides.inside >= ENOUGH
        problem = sides.shifted()
        if problem:
            trial.unmet(f"output {number} ({type_name(kind)}): {problem}")
    return seen


class OneSidedError(Record, frozen=True):
    """The quantised elements that are off, by side.

    inside: the number of compared elements, whose right value is at no end of their type or activation. high, low:
    those that are too high, too low. outwards, inwards: those that are too far from the zero point, too near to it.
    """

    inside: int = 0
    high: int = 0
    low: int = 0
    outwards: int = 0
    inwards: int = 0

    def __add__(self, other: "OneSidedError") -> "OneSidedError":
        return OneSidedError(*(getattr(self, name) + getattr(other, name) for name in _COUNTS))

    def shifted(self) -> str:
        """Return the side that the elements are shifted to; "" if rounding explains all differences."""
        sides = (
            ("high", self.high, self.low, "zero point?"),
            ("low", self.low, self.high, "zero point, or rounded down?"),
            ("near to the zero point", self.inwards, self.outwards, "cut off instead of rounded?"),
            ("far from the zero point", self.outwards, self.inwards, "rounded up?"),
        )
        side, on, off, why = max(sides, key=lambda each: each[1] - each[2])
        if chance(on - off, self.inside) >= LEAST_CHANCE:
            return ""
        return f"{on} of {self.inside} elements are too {side}, {off} too {_OTHER[side]}: {why}"


_COUNTS = "inside", "high", "low", "outwards", "inwards"
_OTHER = {
    "high": "low",
    "low": "high",
    "near to the zero point": "far from it",
    "far from the zero point": "near to it",
}


def chance(more: int, count: int) -> float:
    """Bound the probability that a driver which rounds has so many more elements off to one side, of so many.

    Drivers may round halves either way. Halves that a driver rounds in another way than the reference are at most
    `HALVES` of the elements, so each element is off to that side with at most this probability. The result is the
    Chernoff bound of the binomial distribution.
    """
    share = more / count if count else 0.0
    if share <= HALVES:
        return 1.0
    rest = (1 - share) * math.log((1 - share) / (1 - HALVES)) if share < 1 else 0.0
    return math.exp(-count * (share * math.log(share / HALVES) + rest))


def _spread(trial: Trial, call: Call) -> tuple[Call, Outputs]:
    """Return the call with the output scale that keeps the most results inside their bounds, and the wanted results.

    A result at an end of its type does not show how a driver rounds. If the record allows no other scale, the call is
    unchanged.
    """
    best = call, trial.calls.wanted(model_of(call), arrays_of(call))
    if type(call) is not Call or len(call.outputs) != 1:
        return best
    (value,) = call.outputs
    size = 0 if best[1][0] is None else best[1][0].size
    most = _count(call, best[1][0])
    for factor in SCALES:
        if 2 * most >= size:
            break
        outputs = (replace(value, scale=value.scale * factor),)
        try:
            other = replace(call, outputs=outputs, bound=bind(call.cell.op, call.inputs, outputs))
            wanted = trial.calls.wanted(model_of(other), arrays_of(other))
        except NnhalError:
            break
        inside = _count(other, wanted[0])
        if inside > most and trial.calls.verdict(model_of(other)).ok:
            best, most = (other, wanted), inside
    return best


def _sides(call: Call, number: int, wanted: Array | None, actual: Array | None) -> OneSidedError:
    """Return how the elements of an output are off."""
    value = call.outputs[number]
    if wanted is None or actual is None or not quantised(value.type):
        return OneSidedError()
    if wanted.shape != actual.shape or wanted.dtype != actual.dtype:
        return OneSidedError()
    inside = _within(call, value, wanted)
    off = np.sign(actual.astype(np.int64) - wanted.astype(np.int64))[inside]
    outwards = off * np.sign(wanted.astype(np.int64) - value.zero_point)[inside]
    counted = (np.count_nonzero(each == side) for each in (off, outwards) for side in (1, -1))
    return OneSidedError(int(np.count_nonzero(inside)), *map(int, counted))


def _count(call: Call, wanted: Array | None) -> int:
    return 0 if wanted is None else int(np.count_nonzero(_within(call, call.outputs[0], wanted)))


def _within(call: Call, value: Value, wanted: Array) -> Array:
    """Return which elements of an output are at no end of its type or of the fused activation."""
    with np.errstate(over="ignore"):  # an end beyond float32 at the scale
        low, high = encode(value, np.array(ACTIVATION_RANGE[fused(call.bound)], np.float32)).tolist()
    return np.asarray((wanted > low) & (wanted < high))


def _exact(trial: Trial, call: Call, wanted: Array | None, actual: Array | None) -> int:
    """Count the elements of QUANTIZE that are clearly between two halves; RequirementNotMet if one of them is not exact."""
    source, target = call.inputs[0], call.outputs[0]
    if source is None or wanted is None or actual is None or wanted.shape != actual.shape:
        return 0
    with np.errstate(all="ignore"):
        steps = source.array.astype(np.float64) / target.scale
        clear = np.isfinite(steps) & (
            np.abs(np.abs(steps - np.floor(steps)) - 0.5) > TIE * np.maximum(1, np.abs(steps))
        )
    clear &= ~np.asarray(open_masks(call, 1)[0], bool)
    bad = clear & (wanted != actual)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        text = f"output 0 is off in {int(bad.sum())} of {bad.size} elements that are not at a half"
        trial.unmet(f"{text}, the first at {list(at)}: {actual[at]}, must be {wanted[at]} ({call.cell})")
    return int(np.count_nonzero(clear))
