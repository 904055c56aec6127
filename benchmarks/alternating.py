"""Two engines in one process, one execution of each in turn, against as many of the one and then of the other.

Their threads are those of one budget of cores: an engine whose threads still spin when its execution is over takes time from
the other. Blocks of both kinds are interleaved, the first of each pair drawn by chance; ratios are medians of pairs with a
95 % bootstrap interval, beside an A/A control (the first device with itself). The last line is JSON.

    python benchmarks/alternating.py [DEVICE DEVICE] [--driver FILE ...] [--model NAME ...] [--threads N] [--json]
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import nnhal
from nnhal.base.cores import usable_cores
from nnhal.measure.latency import ratio, timed_pairs
from nnhal.runtime import discovery
from nnhal.zoo.by_name import path

WARM_UP, SETTLED = 20, 0.03  # calls, seconds
CALLS = 10  # of each in a block


def runner(model: Any, device: str, threads: int) -> Callable[[], object]:
    """An execution on random inputs."""
    compiled = nnhal.compile(model, devices=[device, "reference"], threads=threads)
    generator = np.random.default_rng(0)
    inputs = [
        generator.uniform(0, 1, [n or 1 for n in i.shape]).astype(i.dtype)
        if np.dtype(i.dtype).kind == "f"
        else generator.integers(0, 100, [n or 1 for n in i.shape]).astype(i.dtype)
        for i in compiled.inputs
    ]
    return lambda: compiled(*inputs)


def compare(name: str, devices: list[str], threads: int, pairs: int) -> Any:
    """What executions in turn cost of those in a row."""
    model = nnhal.load(path(name))
    one, other = (runner(model, device, threads) for device in devices)

    def in_turn() -> None:
        for _ in range(CALLS):
            one()
            other()

    def in_a_row() -> None:
        for run in (one, other):
            for _ in range(CALLS):
                run()

    def settled(run: Callable[[], None]) -> Callable[[], None]:
        def go() -> None:
            time.sleep(SETTLED)  # threads of before have ended to spin; the same for both
            run()

        return go

    for _ in range(WARM_UP):
        one(), other()
    found = timed_pairs(settled(in_turn), settled(in_a_row), pairs)
    pause = SETTLED * 1e9
    return ratio([(a - pause, b - pause) for a, b in found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devices", nargs="*", default=["openvino", "onnxruntime"])
    parser.add_argument("--driver", action="append", default=[], help="of a device that is not installed")
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--threads", type=int, default=0, help="of each engine; its own choice by default")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print the last line only")
    given = parser.parse_args()
    if len(given.devices) != 2:
        parser.error(f"DEVICE DEVICE: {len(given.devices)} are named, must be two")
    for driver in given.driver:
        discovery.load_driver(driver)
    result: dict[str, Any] = {"devices": given.devices, "cores": usable_cores(), "models": []}
    for name in given.model or ["mobilenet_v1", "face_landmark"]:
        cost = compare(name, given.devices, given.threads, given.pairs)
        control = compare(name, given.devices[:1] * 2, given.threads, given.pairs)
        if not given.json:
            print(f"{name}: in turn / in a row {cost}; {given.devices[0]} with itself {control}")
        result["models"].append({"name": name, "ratio": round(cost.median, 3), "control": round(control.median, 3)})
    result["most"] = max(m["ratio"] for m in result["models"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
