"""Results are those of the reference, which knows the driver as little as the driver knows it."""

from collections.abc import Sequence

import numpy as np

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import ContractBroken, DriverFailed, NnhalError
from nnhal.base.operands import Array, quantised
from nnhal.conformance.differential import arrays_of, judge, model_of, open_masks
from nnhal.conformance.draw import Call
from nnhal.conformance.validate.check import check
from nnhal.conformance.validate.trial import Trial
from nnhal.model.graph import Model

ENOUGH = 24  # elements that are all off to one side by no chance
TIE = 1e-3  # of a step: what lies so near to a half may be rounded to either side


@check("values", "Results are those of the definition, within its tolerance, for values of every class.")
def values(trial: Trial) -> int:
    trial.fixed()
    wrong: list[tuple[int, Call, str]] = []
    ran = 0
    for call, model in trial.many():
        ran += 1
        problem = _problem(trial, call, model)
        if problem:
            wrong.append((sum(x.size for x in arrays_of(call)), call, problem))
    if wrong:
        _, call, problem = min(wrong, key=lambda found: found[0])
        trial.unmet(f"{len(wrong)} of {ran} calls: {problem} ({call.cell})")
    return ran


def _problem(trial: Trial, call: Call, model: Model) -> str:
    """What is wrong with a call, by the reference; each runs on a prepared model of its own."""
    try:
        wanted, expected, status = trial.wanted(model_of(call), arrays_of(call)), "", ErrorStatus.NONE
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
    return judge(call, wanted, actual, trial.device.relaxations)


@check(
    "steps",
    "Quantised results are not all off to one side, and those of QUANTIZE are exact where no half decides.",
    unseen=f"the calls that it takes have fewer than {ENOUGH} quantised results",
)
def steps(trial: Trial) -> int:
    trial.fixed()
    seen = 0
    offs: dict[int, list[Array]] = {}
    for call, model in trial.many():
        if call.cell.values == "far" or not any(quantised(v.type) for v in call.outputs):
            continue
        try:
            wanted = trial.wanted(model_of(call), arrays_of(call))
            actual = trial.alone(model, arrays_of(call))
        except NnhalError:
            continue
        if trial.operation == "QUANTIZE":
            seen += _exact(trial, call, wanted[0], actual[0])
        for number, off in enumerate(_offs(call, wanted, actual)):
            offs.setdefault(number, []).append(off)
    for number, found in offs.items():
        off = np.concatenate(found)
        seen += off.size >= ENOUGH
        lean = np.sign(off).mean() if off.size >= ENOUGH else 0.0
        if abs(lean) > 0.9:
            side = "high" if lean > 0 else "low"
            trial.unmet(f"output {number}: {np.count_nonzero(off)} of {off.size} elements are too {side}, zero point?")
    return seen


def _offs(call: Call, wanted: Sequence[Array | None], actual: Sequence[Array | None]) -> list[Array]:
    """For each output by how many steps its elements are off, where they are not at an end of the type."""
    found = []
    for value, w, a in zip(call.outputs, wanted, actual, strict=True):
        if w is None or a is None or w.shape != a.shape or w.dtype != a.dtype or not quantised(value.type):
            found.append(np.zeros(0, np.int64))
            continue
        ends = np.iinfo(w.dtype)
        inner = (w > ends.min) & (w < ends.max)
        found.append((a.astype(np.int64) - w.astype(np.int64))[inner])
    return found


def _exact(trial: Trial, call: Call, wanted: Array | None, actual: Array | None) -> int:
    """Of how many elements of QUANTIZE the place between two steps is clear; Unmet where one of those is not exact."""
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
        text = f"output 0 is off in {int(bad.sum())} of {bad.size} elements that no half decides"
        trial.unmet(f"{text}, the first at {list(at)}: {actual[at]}, must be {wanted[at]} ({call.cell})")
    return int(np.count_nonzero(clear))
