"""`steps` finds drivers that shift 8-bit results by a part of a step, and none that rounds halves in its own way."""

import re

import numpy as np
import pytest

from nnhal.base.operands import Array
from nnhal.conformance.validate.check import CHECKS
from nnhal.conformance.validate.drawing import Drawing
from nnhal.conformance.validate.run import DRAWS
from nnhal.conformance.validate.trial import Trial, open_trial
from nnhal.conformance.validate.worker import outcome_of
from tests.suites.faulty.driver.healthy import Arithmetic, Healthy
from tests.suites.faulty.driver.numbers import OneStepHigh, Requantised, RequantisedDown, RequantisedToZero


def steps(arithmetic: Arithmetic, operation: str) -> tuple[str, str]:
    """The verdict and the reason of the check `steps/OPERATION`."""
    device = type("Rounding", (Healthy,), {"arithmetic": arithmetic})()
    with open_trial(Trial(device, Drawing(operation, 0, DRAWS), [].append, isolated=False)) as trial:
        return outcome_of(CHECKS["steps"], trial)[:2]


class ToEven(Requantised):
    def rounded(self, steps: Array) -> Array:
        return np.rint(steps)


class HalvesUp(Requantised):
    def rounded(self, steps: Array) -> Array:
        return np.floor(steps + 0.5)


class HalvesDown(Requantised):
    def rounded(self, steps: Array) -> Array:
        return np.ceil(steps - 0.5)


SHIFTED = [
    (OneStepHigh, "elements are too high, 0 too low: zero point"),
    (RequantisedDown, "elements are too low, 0 too high: zero point, or rounded down"),
    (RequantisedToZero, "elements are too (near to the zero point, 0 too far from it: cut off|low, 0 too high)"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operation", ["ADD", "MUL", "CONV_2D"])
@pytest.mark.parametrize(("arithmetic", "said"), SHIFTED)
def test_a_driver_that_shifts_its_results_within_one_step_fails(
    arithmetic: type[Arithmetic], said: str, operation: str
) -> None:
    verdict, reason = steps(arithmetic(), operation)
    assert verdict == "failed" and re.search(said, reason)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operation", ["ADD", "MUL", "CONV_2D"])
@pytest.mark.parametrize("arithmetic", [ToEven, HalvesUp, HalvesDown])
def test_a_driver_that_rounds_to_the_nearest_step_passes_however_it_rounds_halves(
    arithmetic: type[Arithmetic], operation: str
) -> None:
    assert steps(arithmetic(), operation) == ("passed", "")
