"""The endurance benchmark itself, with small counts: nothing grows, nobody hangs. How long it takes is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "endurance.py"


@pytest.mark.nightly
def test_nothing_grows_and_every_waiter_of_a_killed_driver_gets_dead_object() -> None:
    words = [sys.executable, str(PROGRAM), "--quick", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {(g["work"], g["process"]) for g in found["growth"] if g["ok"]} == {
        *(("burst executions", "client"), ("burst executions", "service")),
        *(("connections", "client"), ("connections", "service")),
        *(("200 shapes", "client"), ("200 shapes", "service")),
    }
    assert found["weights"]["ok"], found["weights"]
    assert [d["wrong"] for d in found["deaths"] if d["wrong"]] == []
    waiters = {"plain call", "burst", "fence", "prepare", "callback", "next call"}
    for client in ("idle", "busy", "idle, forked child"):
        assert {d["waiter"] for d in found["deaths"] if d["client"] == client and d["kills"]} >= waiters
