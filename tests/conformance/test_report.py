"""What `nnhal conformance` says of failures: groups, the command that repeats one, a folder with one alone."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from nnhal.conformance.report import grouped, kind_of, repeats

from nnhal.conformance.selection import Selection
from nnhal.conformance.suite import Outcome
from tests.cli.test_cli import nnhal
from tests.cli.test_schemas import fits

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


def test_groups_are_of_one_operation_verdict_reason_and_hint_and_leave_nothing_out() -> None:
    def made(id: str, verdict: str, reason: str = "1 differs", primary: str = "ADD", hint: str = "") -> Outcome:
        return Outcome(id, verdict, reason, primary=primary, hint=hint)

    outcomes = [
        made("b", "failed", "2 differs"), made("a", "failed"), made("c", "crashed"), made("d", "hung"),
        made("e", "failed", primary="MUL"), made("f", "failed", hint="bias?"), made("g", "passed"),
        made("h", "unsupported"), made("i", "failed", "has no value"),
    ]  # fmt: skip
    groups = [(g.operation, g.verdict, g.hint, g.first.reason, [o.id for o in g.outcomes]) for g in grouped(outcomes)]
    assert groups[0] == ("ADD", "failed", "", "1 differs", ["a", "b"])
    assert sorted(groups[1:]) == [
        ("ADD", "crashed", "", "1 differs", ["c"]), ("ADD", "failed", "", "has no value", ["i"]),
        ("ADD", "failed", "bias?", "1 differs", ["f"]),
        ("ADD", "hung", "", "1 differs", ["d"]), ("MUL", "failed", "", "1 differs", ["e"]),
    ]  # fmt: skip


def test_the_command_that_repeats_a_vector_selects_it_as_it_ran() -> None:
    selection = Selection(
        Path("a folder"),
        device="x",
        drivers=("a.py", "b.py"),
        pattern="z",
        way="burst",
        isolate=True,
        level="1.2",
        share=0.1,
    )
    words = shlex.split(repeats(selection, Outcome("V1_0/a/a.b", "failed", variant="dynamic")))
    assert words == [
        *("nnhal", "conformance", "a folder", "--driver", "a.py", "--driver", "b.py", "--device", "x"),
        *("--execution-path", "burst", "--level", "1.2", "--isolate", "--filter", r"^V1_0/a/a\.b$"),
    ]
    assert "--published-only" in repeats(selection, Outcome("V1_0/a/a.b", "failed"))
    many = tuple(f"V1_0/x/{n}" for n in range(30))
    late = shlex.split(repeats(selection, Outcome("V1_0/a/a.b", "crashed", alone="passed", before=many)))
    wanted = "|".join([*many[-20:], r"V1_0/a/a\.b"])
    assert late[-4:] == ["--jobs", "1", "--filter", f"^({wanted})$"] and "--published-only" not in late


def test_failures_are_one_line_a_group_with_a_command_and_a_folder_that_fail_again(
    vectors: Path, tmp_path: Path
) -> None:
    driver = tmp_path / "high.py"
    driver.write_text(DRIVER)
    chosen = "--driver", str(driver), "--operation", "add", "--repro", str(tmp_path / "alone")
    found = json.loads(nnhal("conformance", str(vectors), *chosen, "--json", code=1))
    fits(found, "conformance")
    assert found["totals"]["passed"] == 0 < found["totals"]["failed"] == len(found["failures"])
    assert sum(group["count"] for group in found["groups"]) == len(found["failures"]) > len(found["groups"])
    assert {"all 3 too high: bias?", "all 3 steps high: zero point?"} & {group["hint"] for group in found["groups"]}

    group = found["groups"][0]
    again = json.loads(nnhal(*shlex.split(group["repeat"])[1:], "--json", code=1))
    assert group["reason"] in [failure["reason"] for failure in again["failures"]]

    folder = Path(group["repro"])
    alone = json.loads(nnhal("conformance", str(folder), "--driver", str(driver), "--json", code=1))
    assert group["reason"] in [failure["reason"] for failure in alone["failures"]]
    assert json.loads(nnhal("conformance", str(folder), "--json"))["totals"]["failed"] == 0  # on the reference
    arrays = np.load(folder / "arrays.npz")
    difference = arrays["output_0"].astype(float) - arrays["expected_0"].astype(float)
    assert np.allclose(difference, 3) and "input_0" in arrays
    assert "ADD" in (folder / "model.txt").read_text()

    shown = nnhal("conformance", str(vectors), *chosen[:-2], code=1)
    assert len(re.findall(r"^FAILED \d+ ADD: output 0: ", shown, re.M)) == len(found["groups"])
    assert len(re.findall(r"^    nnhal conformance ", shown, re.M)) == len(found["groups"])
    assert shown.count("differ") == len(found["groups"])
