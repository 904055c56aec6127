"""The suite `random`: the reference passes a sample, faults of running graphs are caught and reduced."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.conformance.evaluation import evaluate
from nnhal.conformance.reduction import Candidate, Reduction, names_of, sizes_of
from nnhal.conformance.subject import ANY
from nnhal.conformance.suites.random.drawing import Drawing
from nnhal.conformance.suites.run import run_suite, suite_of
from nnhal.conformance.suites.suite import CaseOutcome, SuiteRun
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.ops.schema import F32, INT32, Q8

DRIVER = str(Path(__file__).parent / "planted" / "driver.py")
# Cases that have what the fault needs; the whole suite has more.
CASES = {
    "shared-arena": "graph/8/0",
    "first-reader": "graph/8/0",
    "repeated-operand": "single/ADD/FLOAT32/.",
    "wide": "single/(TANH|ADD)/FLOAT32/.",
    "broadcast": "single/(ADD|MUL|SUB)/FLOAT32/.",
    "unaligned": "single/TANH/FLOAT32/.",
}


def outcomes(pattern: str, fault: str = "", **how: object) -> Sequence[CaseOutcome]:
    options = {ANY: {"fault": fault}} if fault else {}
    drivers = (DRIVER,) if fault else ()
    run = SuiteRun(drivers=drivers, options=options, pattern=f"^({pattern})$", timeout=60.0, **how)  # type: ignore[arg-type]
    return [outcome for some in run_suite("random", run, 1) for outcome in some.outcomes]


def test_the_reference_passes_a_sample() -> None:
    found = outcomes("graph/(2|5|13)/0|single/(CONV_2D|ADD|LSTM|IF|WHILE|RANDOM_MULTINOMIAL)/FLOAT32/0")
    assert len(found) == 9 and {o.verdict: o.reason for o in found} == {"passed": ""}


@pytest.mark.parametrize("fault", CASES)
def test_a_fault_of_running_graphs_is_caught(fault: str) -> None:
    found = outcomes(CASES[fault], fault, scale=3.0 if "single" in CASES[fault] else 1.0)
    failed = [o for o in found if o.verdict == "failed"]
    assert failed, [(o.name, o.verdict, o.reason) for o in found]
