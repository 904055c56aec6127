"""What each way to execute adds to the driver's own call: call, out=, run(), deadline, steps, fences, allocations, compile.

    python benchmarks/paths.py [--rounds 40] [--json]

The null driver computes nothing, so what is left is nnhal. Everything is measured in turns, in one process; of each the
least of all rounds counts. `over_call` is the ratio to a plain call. The last line with --json:
{path: {"us": ..., "over_call": ...}}.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import nnhal
from nnhal.drivers.null import Null
from nnhal.hal.request import UNLIMITED
from nnhal.hal.wrappers import Limited

# Microseconds: of what, beyond what, at most.
LIMITS: dict[str, tuple[str, float]] = {
    "call": ("driver", 1.3),
    "out=": ("call", 0.3),
    "run()": ("", 3.0),
    "deadline": ("", 12.0),
    "ten steps": ("ten drivers", 10.0),
    "fenced": ("", 70.0),
    "allocation as input": ("", 5.0),
    "compile by name": ("", 400.0),
}


def added() -> nnhal.Model:
    """One ADD."""
    b = nnhal.Builder("one")
    x = b.input((4,))
    return b.finish([x], [b.add(x, x)])


def chain(count: int) -> nnhal.Model:
    """RELUs one after the other."""
    b = nnhal.Builder("chain")
    x = y = b.input((4,))
    for _ in range(count):
        y = b.relu(y)
    return b.finish([x], [y])


def stepped() -> nnhal.Compiled:
    """Ten steps: every other operation is on another null device."""
    null, other = Null(), Null()
    every = Limited(null, lambda _, place: place % 2 == 0, "every other operation")
    every.name, other.name = "half", "other"
    return nnhal.compile(chain(10), devices=[every, other])


def driver(compiled: nnhal.Compiled, x: Any) -> Callable[[int], float]:
    """Seconds of the drivers' own calls, one after the other, with requests made before."""
    steps = [step.prepared for step in compiled._caller.plan.steps]

    def timed(times: int) -> float:
        requests = [(prepared.run, prepared.request((x,))) for _ in range(times) for prepared in steps]
        began = time.perf_counter()
        for run, request in requests:
            run(request, UNLIMITED)
        return time.perf_counter() - began

    return timed


def each(call: Callable[[], object]) -> Callable[[int], float]:
    """Seconds of as many calls."""

    def timed(times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            call()
        return time.perf_counter() - began

    return timed


def paths() -> dict[str, tuple[Callable[[int], float], int]]:
    """Every path, and how often it is taken in one round."""
    one, ten, x, out = (
        nnhal.compile(added(), devices=[Null()]),
        stepped(),
        np.ones(4, np.float32),
        np.empty(4, np.float32),
    )
    allocation = nnhal.allocate([(one, "input", 0)])
    allocation.write(x)
    bound, burst, model = one.bind(x, out=out), one.burst(), added()
    nnhal.compile(model, devices="null")  # loads it
    return {
        "driver": (driver(one, x), 300),
        "call": (each(lambda: one(x)), 300),
        "out=": (each(lambda: one(x, out=out)), 300),
        "run()": (each(lambda: one.run(x)), 300),
        "bind": (each(bound), 300),
        "burst": (each(lambda: burst(x)), 300),
        "deadline": (each(lambda: one.run(x, deadline=60.0)), 50),
        "measure": (each(lambda: one.run(x, measure=True)), 50),
        "submit": (each(lambda: one.submit(x).result()), 30),
        "ten drivers": (driver(ten, x), 50),
        "ten steps": (each(lambda: ten(x)), 50),
        "fenced": (each(lambda: one.execute_fenced(x).result()), 20),
        "fenced, ten steps": (each(lambda: ten.execute_fenced(x).result()), 20),
        "allocation as input": (each(lambda: one(allocation)), 50),
        "allocation's write": (each(lambda: allocation.write(x)), 50),
        "compile by name": (each(lambda: nnhal.compile(model, devices="null").close()), 5),
    }


def measured(rounds: int) -> dict[str, float]:
    """Microseconds of each path."""
    least: dict[str, float] = {}
    there = paths()
    for _ in range(rounds):
        for name, (timed, times) in there.items():
            least[name] = min(least.get(name, 1e9), timed(times) / times * 1e6)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    least = measured(given.rounds)
    print(f"{'path':22}{'µs':>9}{'over call':>11}   limit")
    for name, us in least.items():
        of, limit = LIMITS.get(name, ("", 0.0))
        base = least[of] if of else 0.0
        text = f"{us - base:.2f} of {limit:g} µs{f' beyond {of}' if of else ''}" if limit else ""
        if name == "fenced, ten steps":
            text = f"{(us - least['fenced']) / 9:.2f} of 25 µs a further step"
        print(f"{name:22}{us:9.2f}{us / least['call']:11.2f}   {text}")
    if given.json:
        print(json.dumps({k: {"us": round(v, 3), "over_call": round(v / least["call"], 3)} for k, v in least.items()}))


if __name__ == "__main__":
    main()
