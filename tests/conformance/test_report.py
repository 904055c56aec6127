"""Kinds of reasons, and the folder of a failing vector alone."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from nnhal.conformance.verdict import kind_of
from tests.cli.test_cli import nnhal

DRIVER = """
import numpy as np
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Prepared

class HighPrepared(Prepared):
    def __init__(self, inner):
        self.inner = inner
    def run(self, request, control):
        inner = self.inner.request(request.given)
        inner.execute(self.inner.run, control)
        for index, result in enumerate(inner.results):
            request.write(index, result + result.dtype.type(3))

class High(Reference):
    name = "high"
    def prepare(self, model, hints):
        return HighPrepared(super().prepare(model, hints))

def device():
    return High()
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("output 0: 1 of 2 elements differ, the first at [0, 1]: 4, must be 5",
         "output 0: 7 of 9 elements differ, the first at [3]: -4e+16, must be nan"),
        ("has shape [1, 2], must be [3]", "has shape [1], must be [3, 4, 4]"),
        ("was killed by SIGSEGV; its last words: File a.py, line 3", "was killed by SIGSEGV; its last words: other"),
    ],
)  # fmt: skip
def test_reasons_that_differ_in_numbers_are_of_one_kind(one: str, other: str) -> None:
    assert kind_of(one) == kind_of(other)


@pytest.mark.parametrize(("one", "other"), [
    ("output 0: has no value", "output 1: has no value"), ("has no value", "has shape [1], must be [2]"),
    ("float16 is refused", "float32 is refused"), ("was killed by SIGSEGV", "was killed by SIGABRT"),
])  # fmt: skip
def test_reasons_that_differ_in_more_are_of_two(one: str, other: str) -> None:
    assert kind_of(one) != kind_of(other)


def test_a_report_has_a_vector_of_each_kind_of_failure_which_fails_again_alone(vectors: Path, tmp_path: Path) -> None:
    driver, report = tmp_path / "high.py", tmp_path / "report"
    driver.write_text(DRIVER)
    words = "test", "vectors", "--driver", str(driver), "--json", "--vectors"
    found = json.loads(nnhal(*words, str(vectors), "--operation", "add", "--report", str(report), code=1))
    cases = {case["name"]: case for case in found["suites"][0]["cases"]}
    assert found["totals"]["passed"] == 0 < found["totals"]["failed"] == len(cases)
    assert sum(group["count"] for group in found["groups"]) == len(cases) > len(found["groups"])
    hints = {case.get("hint", "") for case in cases.values()}  # most cases have none, so the group has none
    assert {"all 3 too high: bias?", "all 3 steps high: zero point?", ""} == hints
    assert [group["hint"] for group in found["groups"]] == [""]

    group = found["groups"][0]
    again = json.loads(nnhal(*shlex.split(group["repeat"])[1:], "--json", code=1))
    assert [each["reason"] for each in again["groups"]] == [group["reason"]]

    folder = Path(cases[group["cases"][0]["name"]]["found"]["vector"])
    assert folder.parent == report / "vectors"
    assert len(list(folder.parent.iterdir())) == sum("found" in case for case in cases.values()) < len(cases)
    alone = json.loads(nnhal(*words, str(folder), code=1))
    assert group["reason"] in [each["reason"] for each in alone["groups"]]
    assert json.loads(nnhal("test", "vectors", "--json", "--vectors", str(folder)))["totals"]["failed"] == 0
    arrays = np.load(folder / "arrays.npz")
    difference = arrays["output_0"].astype(float) - arrays["expected_0"].astype(float)
    assert np.allclose(difference, 3) and "input_0" in arrays
    assert "ADD" in (folder / "model.txt").read_text()
