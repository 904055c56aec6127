"""Quality of service, measured: `python -m tests.faults.deadlines [PART ...] [--quick]`; the last line is JSON.

On a device that is slowed on purpose and runs one execution at a time, in this process, in a process of its own and in a
service:

deadlines: 1,000 executions with deadlines of 1 to 50 ms, of four threads. Each gives its result in time or MISSED_DEADLINE;
           how late after the deadline, and how many were refused at once.
priority:  executions of HIGH beside a flood of LOW: durations in executions of an idle device.
shares:    what two client processes get of a service, where one's executions are ten times as long.
greedy:    what one thread gets beside 64 of another process.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import nnhal
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import MissedDeadline
from nnhal.runtime import discovery, isolation
from tests.faults.support import service
from tests.models import doubling
from tests.waiting import together

DRIVER = Path(__file__).parent / "drivers" / "slowed.py"
SERVICE = "slowed-service"
WAYS = "none", "process", "service"
X = np.arange(4, dtype=np.float32)


@contextmanager
def device(way: str) -> Iterator[dict[str, Any]]:
    """What to compile with for the slowed device, in this process, in one of its own, or in a service."""
    if way == "service":
        with service(str(DRIVER), SERVICE):
            yield {"devices": [SERVICE]}
            isolation.close_all()
        return
    nnhal.load_driver(DRIVER)
    try:
        yield {"devices": ["slowed"], "isolation": way}
    finally:
        isolation.close_all()
        discovery._registered.pop("slowed", None)


def compiled(how: dict[str, Any], ms: float, priority: str = "medium", **options: Any) -> nnhal.Compiled:
    """The doubling model on it, whose executions take so long."""
    options = {"ms": ms, **options}
    return nnhal.compile(doubling(), **how, priority=priority, driver_options={how["devices"][0]: options})


def deadlines(how: dict[str, Any], count: int, ms: float = 5, threads: int = 4, seed: int = 0) -> dict[str, Any]:
    """What became of executions with deadlines of 1 to 50 ms, and the most that one ended after its deadline."""
    model, lock = compiled(how, ms), threading.Lock()
    found = {"results": 0, "transient": 0, "persistent": 0, "refused_at_once": 0, "wrong": 0}
    late = [0.0]

    def some(number: int) -> None:
        chosen = random.Random(f"{seed} {number}")
        for _ in range(count // threads):
            wanted = chosen.uniform(0.001, 0.05)
            began, kind, right = time.monotonic(), "results", True
            try:
                right = np.array_equal(model.run(X, deadline=wanted)[0], X + X)
            except MissedDeadline as error:
                kind = "persistent" if error.status == ErrorStatus.MISSED_DEADLINE_PERSISTENT else "transient"
            spent = time.monotonic() - began
            with lock:
                found[kind] += 1
                found["wrong"] += not right
                found["refused_at_once"] += kind != "results" and spent < wanted / 2
                late.append(spent - wanted)

    for _ in range(4):
        model(X)
    together([lambda n=n: some(n) for n in range(threads)], limit=None)  # type: ignore[misc]
    model.close()
    late.sort()
    past = [max(0.0, 1e3 * each) for each in late]
    return {
        **found,
        "latest_ms": round(past[-1], 2),
        "p99_late_ms": round(past[int(0.99 * len(past))], 2),
        "over_5_ms": sum(each > 5 for each in past),
    }


def priority(
    how: dict[str, Any], count: int, ms: float = 5, flood: int = 16, high: str = "high", spin: bool = False
) -> dict[str, Any]:
    """How long executions of HIGH take beside a flood of LOW, in executions of an idle device."""
    urgent, others = compiled(how, ms, high, spin=spin), compiled(how, ms, "low", spin=spin)
    alone, beside, over = list[float](), list[float](), threading.Event()

    def timed(into: list[float]) -> None:
        began = time.monotonic()
        urgent(X)
        into.append(time.monotonic() - began)

    def low() -> None:
        while not over.is_set():
            others(X)

    for _ in range(10):
        timed(alone)
    threads = [threading.Thread(target=low) for _ in range(flood)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    try:
        for _ in range(count):
            timed(beside)
            time.sleep(random.uniform(0, ms / 1e3))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    one = sorted(alone)[len(alone) // 2]
    beside.sort()
    return {
        "idle_ms": round(1e3 * one, 2),
        "median": round(beside[count // 2] / one, 2),
        "p99": round(beside[int(0.99 * count)] / one, 2),
        "most": round(beside[-1] / one, 2),
    }


def client(name: str, ms: float, threads: int, seconds: float) -> None:
    """A client process: executes for some time after a line on stdin, and tells how often."""
    model = compiled({"devices": [name]}, ms)
    for _ in range(3):
        model(X)
    print("ready", flush=True)
    sys.stdin.readline()
    end, counts = time.monotonic() + seconds, [0] * threads

    def loop(number: int) -> None:
        while time.monotonic() < end:
            model(X)
            counts[number] += time.monotonic() < end

    together([lambda n=n: loop(n) for n in range(threads)], limit=None)  # type: ignore[misc]
    print(json.dumps(sum(counts)), flush=True)


def shares(clients: list[tuple[float, int]], seconds: float) -> list[float]:
    """What each client process, of so many milliseconds and threads, gets of a service's device, of what both get."""
    command = [sys.executable, "-m", "tests.faults.deadlines", "--client", SERVICE]
    with service(str(DRIVER), SERVICE):
        running = [
            subprocess.Popen(
                [*command, str(ms), str(threads), str(seconds)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for ms, threads in clients
        ]  # fmt: skip
        try:
            for process in running:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            for process in running:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            outputs = [process.communicate(timeout=seconds + 60)[0] for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()
    had = [json.loads(output) * ms for output, (ms, _) in zip(outputs, clients, strict=True)]
    return [round(each / sum(had), 3) for each in had]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="deadlines, priority, shares, greedy; all by default")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        name, ms, threads, seconds = given.client
        client(name, float(ms), int(threads), float(seconds))
        return
    parts = given.parts or ["deadlines", "priority", "shares", "greedy"]
    count, seconds = (100, 1.0) if given.quick else (1000, 5.0)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        for way in WAYS:
            if "deadlines" in parts:
                with device(way) as how:
                    found[f"deadlines {way}"] = deadlines(how, count)
                    print(f"deadlines, {way}: {found[f'deadlines {way}']}", flush=True)
            if "priority" in parts:
                with device(way) as how:
                    found[f"priority {way}"] = priority(how, count // 5, flood=64)
                    print(f"priority, {way}: {found[f'priority {way}']}", flush=True)
        if "shares" in parts:
            for threads in (1, 4):
                key = f"shares of 10 ms and 1 ms, {threads} threads each"
                found[key] = shares([(10, threads), (1, threads)], seconds)
                print(f"{key}: {found[key]}", flush=True)
        if "greedy" in parts:
            found["share of one thread beside 64"] = shares([(5, 1), (5, 64)], seconds)
            print(f"share of one thread beside 64: {found['share of one thread beside 64']}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
