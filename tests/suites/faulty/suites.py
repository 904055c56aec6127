"""The suites of `nnhal test` over a fault, with those of their cases that are quick and may show it."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnhal.conformance.suites.run import CONTRACT, VECTORS
from tests.suites.faulty.application import DRIVER
from tests.suites.faulty.driver import VARIABLE
from tests.suites.faulty.driver.faults import CRASH, CTS, MLTS, RANDOM, STRESS, VTS, Fault

MODELS = {"ADD": "add4"}  # for `mlts`, of drivers with few operations
FEW = "^V1_0/add_quant8"
SOME = {  # vectors of each operation: those of its first specifications
    "ADD": "^V1_./add_",
    "MUL": "^V1_./mul_",
    "SUB": "^V1_2/sub_v1_2",
    "CONV_2D": "^V1_0/conv_",
    "QUANTIZE": "^V1_2/quantize",
    "ARGMAX": "^V1_2/argmax",
    "GATHER": "^V1_2/gather/.*quant8",
}
# Cases of the other suites, with the fault's operation in the place of {0}.
CASES = {
    VTS: "^(?!queries/verdicts-restart)[a-z0-9/-]+(/{0})?$",
    CTS: "^(graph/|flow/exchanged$|partition/forced/[0-5]$"
    "|(memory|cache|shapes|deadline|fence|burst|threads|measure)/[a-z/-]+/{0}$)",
    RANDOM: "^(constants/|(single|long|broadcast|hard|wide|fused)/{0}/|graph/(2|3|5|8|13)/[0-4]$|views/"
    "|flow/(if/[A-Z0-9_]+|[a-z]+/FLOAT32)/0$)",
    STRESS: "^(threads/execute/(float32|quant8)|models/00[01]|drift/compile|count"
    "|((constants|mapped)|growth/(run|prepare|thread)|drift)/float32)$",
    CRASH: "^killed/execute$",
    MLTS: "",
}
SUITES = VECTORS, CONTRACT, *CASES
TOGETHER = VECTORS, CONTRACT  # none of the patterns of one matches a case of the other
HUNG = 4  # seconds after which a suite takes it for hung, where it will be
MOST = 400  # seconds that a suite may take
ENVIRONMENT = dict(os.environ)  # before an application over a fault, which may run beside, changes it
INSIDE = "needs the driver in this process"


@dataclass(frozen=True)
class Seen:
    """What a suite said of a fault.

    code: its exit code, 2 where no case could be judged. named: the areas of bad cases, the part of their names before
    the first slash: of `contract`, the checks. operations: those that it names. cause: that of the first bad case that
    names an operation, else of the first. text: what it said where nothing was judged.
    """

    code: int
    named: Counter[str]
    operations: tuple[str, ...]
    cause: str
    text: str

    @property
    def caught(self) -> bool:
        """Whether it says that something is wrong with the driver."""
        return (self.code == 1 and bool(self.named)) or self.code == 4

    @property
    def clean(self) -> bool:
        """Whether it found nothing, or looks at that in process only."""
        return (self.code == 0 and not self.named) or (self.code == 2 and INSIDE in self.text)

    def by(self, check: str) -> bool:
        """Whether it was caught by this check, or, where it does not load, by that."""
        return check in self.named or self.code == 4


def results_of(suites: Sequence[str], fault: Fault, vectors: Path, *, isolate: bool = False) -> dict[str, Seen]:
    """What each of some suites says of a fault."""
    together = [*(each for each in suites if each in TOGETHER)]
    runs = [together] * bool(together) + [[each] for each in suites if each not in TOGETHER]
    return {name: seen for names in runs for name, seen in _run(names, fault, vectors, isolate).items()}


def _run(suites: Sequence[str], fault: Fault, vectors: Path, isolate: bool) -> dict[str, Seen]:
    """What suites say whose patterns match none of the others' cases, in one run."""
    report, code, text = report_of(suites, fault, vectors, "|".join(_pattern(each, fault) for each in suites), isolate)
    return {suite: _seen(suite, report, code, text) for suite in suites}


def report_of(
    suites: Sequence[str], fault: Fault, vectors: Path, pattern: str, isolate: bool = False
) -> tuple[dict[str, Any], int, str]:
    """The report of a run of suites as JSON, its exit code, and what it said where there is no report."""
    words = ["test", *suites, "--driver", str(DRIVER), "--jobs", "1", "--json", "--filter", pattern]
    vectors_too = ["--vectors", str(vectors), "--execution-path", fault.way]
    words += vectors_too * (VECTORS in suites) + ["--isolate"] * isolate
    words += ["--timeout", str(HUNG)] * fault.hangs
    words += ["--model", MODELS.get(fault.operation, "tiny_conv"), "--scale", "0.02"] * (MLTS in suites)
    ran = subprocess.run(
        [sys.executable, "-m", "nnhal.cli.main", *words],
        env=ENVIRONMENT | {VARIABLE: fault.name},
        capture_output=True,
        text=True,
        timeout=MOST,
        check=False,
    )
    try:
        report: dict[str, Any] = json.loads(ran.stdout)
    except ValueError:
        report = {}
    text = report.get("error", {}).get("message", "") or ("" if report else ran.stderr.strip())
    return report, ran.returncode, text


def _seen(suite: str, report: Mapping[str, Any], code: int, text: str) -> Seen:
    (part,) = [each for each in report.get("suites", ()) if each["suite"] == suite] or [None]
    if part is None:
        return Seen(code, Counter(), (), text, text)
    bad = [case for case in part["cases"] if case["verdict"] in ("failed", "crashed", "hung")]
    judged = [case for case in part["cases"] if case["verdict"] not in ("skipped", "unsupported")]
    first = next((case for case in bad if case["operation"]), bad[0] if bad else {})
    return Seen(
        1 if bad else 0 if judged else 2,
        Counter(case["name"].partition("/")[0] for case in bad),
        tuple(dict.fromkeys(case["operation"] for case in bad if case["operation"]))[:2],
        first.get("reason", ""),
        part["error"],
    )


def _pattern(suite: str, fault: Fault) -> str:
    if suite == VECTORS:
        return FEW if fault.hangs or fault.operation not in SOME else SOME[fault.operation]
    if suite == CONTRACT:
        check = fault.check or ".*"
        return f"^{check}/{fault.operation}$" if fault.operation else f"^{check}$"
    return CASES[suite].format(fault.operation or "ADD")
