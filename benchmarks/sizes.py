"""What each step costs as models grow: load, build, validate, partition, cut, compile and run 1,000 to 16,000 operations.

On a chain, a fan and beams (`nnhal.bench.graphs`). Figures are processor seconds, the least of several calls, with Python's
collector of cycles off, as `timeit` has it: it passes over all that lives every so often, which makes growth come in jumps.
What LiteRT takes to prepare the same bytes by itself is measured, taken off "compile litert", and not judged. Neither is
"run litert": most of it is moving four floats in and out of thousands of tensors, which takes longer for each once they are
more than a cache holds. Exits with 1 where four times the operations take more than 4.6 times as long in any other step.

    python benchmarks/sizes.py [--sizes 1000,4000,16000] [--json]
"""

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

import nnhal
from nnhal.base.levels import FL8
from nnhal.bench.graphs import GRAPHS
from nnhal.drivers.litert.lowering import lower
from nnhal.drivers.null import Null
from nnhal.hal.device import Capabilities, Verdict
from nnhal.hal.wrappers import Limited
from nnhal.measure.peers import LiteRT
from nnhal.model.graph import Model
from nnhal.model.parts import extract_part
from nnhal.model.validate import validate
from nnhal.runtime.partition import Offer, partition

MOST = 4.6  # times the cost for four times the operations
ENGINE, COMPILE, RUN = "LiteRT alone", "compile litert", "run litert"
UNJUDGED = ENGINE, RUN
ENOUGH = 0.3  # seconds of one step, after which it is not repeated
LEAST, GREATEST = 3, 50  # calls of a step
ROUNDS = 3


def seconds(call: Callable[[], Any]) -> float:
    """The least processor time of several calls."""
    times: list[float] = []
    gc.collect()
    gc.disable()
    while len(times) < LEAST or (sum(times) < ENOUGH and len(times) < GREATEST):
        start = time.process_time()
        kept = call()
        times.append(time.process_time() - start)
        del kept  # giving it back is not part of the step
    gc.enable()
    return min(times)


def steps(make: Callable[[int], Model], n: int) -> dict[str, Callable[[], Any]]:
    """The steps of one graph of n operations, to be called as often as one likes."""
    model = make(n)
    content = lower(model).content
    offers = [
        Offer(
            name, FL8, Capabilities.uniform(1.0), [Verdict(place // 4 % 2 == odd, "not its turn") for place in range(n)]
        )
        for odd, name in enumerate(("even", "odd"))
    ]
    half = Limited(Null(), lambda _, place: place // 4 % 2 == 0, "every other four")
    inputs = [np.ones(4, np.float32) for _ in model.main.inputs]
    compiled = {device: nnhal.compile(model, devices=device, threads=1) for device in ("reference", "litert")}
    return {
        "build": lambda: make(n),
        "validate": lambda: validate(replace(model)),  # the copy knows nothing yet
        "load": lambda: nnhal.load(content),
        "partition": lambda: partition(model, offers),
        "cut into n/4": lambda: [extract_part(model, range(at, min(at + 4, n))) for at in range(0, n, 4)],
        "compile null, reference": lambda: nnhal.compile(model, devices=[half, "reference"]),
        "compile reference": lambda: nnhal.compile(model, devices="reference"),
        ENGINE: lambda: LiteRT(content, 1),
        COMPILE: lambda: nnhal.compile(model, devices="litert", threads=1),
        "run reference": lambda: compiled["reference"](*inputs),
        RUN: lambda: compiled["litert"](*inputs),
    }


def measured(name: str, sizes: list[int]) -> dict[str, dict[int, float]]:
    """Seconds of each step at each size; a step that seems too steep is measured again, in case the machine was busy."""
    made = {n: steps(GRAPHS[name], n) for n in sizes}
    found: dict[str, dict[int, float]] = {}
    for step in made[sizes[0]]:
        least = dict.fromkeys(sizes, math.inf)
        for _ in range(ROUNDS):
            for n in sizes:
                print(f"\r{name}, {n:,} operations: {step:<24}", end="", file=sys.stderr, flush=True)
                least[n] = min(least[n], seconds(made[n][step]))
            found[step] = {n: t - found[ENGINE][n] for n, t in least.items()} if step == COMPILE else dict(least)
            if step in UNJUDGED or growth(found[step]) <= MOST:
                break
    print(f"\r{'':<60}\r", end="", file=sys.stderr)
    return found


def growth(times: dict[int, float]) -> float:
    """The worst factor between neighbouring sizes, for four times the operations."""
    sizes = sorted(times)
    return max((times[b] / times[a]) ** (math.log(4) / math.log(b / a)) for a, b in pairwise(sizes))


def table(name: str, found: dict[str, dict[int, float]], sizes: list[int]) -> str:
    head = f"{name:<24}" + "".join(f"{n:>12,}" for n in sizes) + "   times per 4 times the operations"
    rows = [
        f"  {step:<22}" + "".join(f"{times[n] * 1e3:>9.2f} ms" for n in sizes) + f"   {growth(times):.2f}"
        for step, times in found.items()
    ]
    return "\n".join([head, *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1000,4000,16000", help="numbers of operations, at least two")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    sizes = sorted({int(n) for n in arguments.sizes.split(",")})
    if len(sizes) < 2 or sizes[0] < 1:
        parser.error(f"--sizes is {arguments.sizes}, must be at least two numbers of operations")
    result: dict[str, dict[str, dict[str, float]]] = {}
    steep = []
    for name in GRAPHS:
        found = measured(name, sizes)
        print(table(name, found, sizes))
        result[name] = {
            step: {**{str(n): t for n, t in times.items()}, "growth": growth(times)} for step, times in found.items()
        }
        steep += [f"{name}, {step}" for step, times in found.items() if step not in UNJUDGED and growth(times) > MOST]
    if steep:
        print(f"more than {MOST} times: {'; '.join(steep)}")
    if arguments.json:
        print(json.dumps(result))
    return 1 if steep else 0


if __name__ == "__main__":
    sys.exit(main())
