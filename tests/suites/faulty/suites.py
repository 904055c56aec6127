"""The suites over a fault: `nnhal conformance` and `nnhal validate`, in process and isolated, as an author runs them."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.suites.faulty.application import DRIVER
from tests.suites.faulty.driver import VARIABLE
from tests.suites.faulty.driver.faults import CONFORMANCE, VALIDATE, Fault

FEW = "^V1_0/add_quant8/add_quant8$"
VECTORS = {  # by operation: those of its first specifications
    "ADD": "^V1_./add_",
    "MUL": "^V1_./mul_",
    "SUB": "^V1_2/sub_v1_2",
    "CONV_2D": "^V1_0/conv_",
    "QUANTIZE": "^V1_2/quantize",
}
HUNG = 4  # seconds after which a suite takes it for hung, where it will be
MOST = 240  # seconds that a suite may take
ENVIRONMENT = dict(os.environ)  # before an application over a fault, which may run beside, changes it
INSIDE = "needs the driver in this process"


@dataclass(frozen=True)
class Seen:
    """What a suite said of a fault: its exit code, and what it named, by how often.

    named: verdicts (conformance) or checks (validate) that were bad. text: what it said where that was no report.
    """

    code: int
    named: Counter[str]
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


def conformance(fault: Fault, vectors: Path, isolate: bool) -> Seen:
    """The vectors of its operation, each in the way that the fault needs."""
    words = ["conformance", str(vectors), "--driver", str(DRIVER), "--execution-path", fault.way]
    words += ["--filter", FEW if fault.hangs or not fault.operation else VECTORS[fault.operation]]
    report = _run(fault, words, isolate)
    named = Counter({k: v for k, v in report.get("totals", {}).items() if k in ("failed", "crashed", "hung") and v})
    return Seen(report["code"], named, report["text"])


def validate(fault: Fault, vectors: Path, isolate: bool, alone: bool = False) -> Seen:
    """The checks of its operation in process; isolated, and of what is no operation's, the check that has to name it.

    alone: that check only.
    """
    check = fault.check if alone or isolate else ""
    only = f"{check}/{fault.operation}" if fault.operation else fault.check
    report = _run(fault, ["validate", str(DRIVER), "--samples", "1", "--only", only], isolate)
    return Seen(report["code"], Counter(each["check"] for each in report.get("failures", ())), report["text"])


SUITES = {CONFORMANCE: conformance, VALIDATE: validate}


def _run(fault: Fault, words: list[str], isolate: bool) -> dict[str, Any]:
    """The report of a verb, with its exit code and, where there is none, what it said."""
    words += ["--jobs", "1", "--json", *["--isolate"] * isolate, *["--timeout", str(HUNG)] * fault.hangs]
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
    return {**report, "code": ran.returncode, "text": text}
