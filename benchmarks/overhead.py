"""What nnhal adds to LiteRT: MobileNet v1 float through `litert`, and one ADD on four floats, against LiteRT itself.

Pairs of calls are interleaved in one process, the first of each pair drawn by chance; ratios are medians of pairs with a
95 % bootstrap interval, beside an A/A control (LiteRT against a second LiteRT). The last line is JSON.

    python benchmarks/overhead.py [--pairs N] [--threads N] [--json]
"""

import argparse
import json

import numpy as np

import nnhal
from nnhal.base.cores import usable_cores
from nnhal.measure.latency import ratio, timed_pairs
from nnhal.measure.peers import LiteRT
from nnhal.zoo import maker

WARM_UP = 10
ADD4_INNER = 200  # calls that make one duration: one is too short for the clock


def compare(name: str, threads: int, pairs: int, inner: int) -> dict:
    """Ratios and durations of one model: nnhal against LiteRT, and LiteRT against itself."""
    path = maker.path(name)
    compiled = nnhal.compile(nnhal.load(path), devices="litert", threads=threads)
    engines = LiteRT(path, threads), LiteRT(path, threads)
    generator = np.random.default_rng(0)
    inputs = [generator.uniform(-1, 1, d["shape"]).astype(d["dtype"]) for d in engines[0].inputs]

    def ours():
        return compiled(*inputs)

    def theirs():
        return engines[0](inputs)

    def control():
        return engines[1](inputs)

    assert np.array_equal(ours(), theirs()[0]), f"{name}: nnhal and LiteRT disagree"
    for _ in range(WARM_UP):
        ours(), theirs(), control()
    found = timed_pairs(ours, theirs, pairs, inner)
    check = timed_pairs(control, theirs, pairs, inner, seed=1)
    own, peer = np.median([a for a, _ in found]), np.median([b for _, b in found])
    return {"ratio": ratio(found), "control": ratio(check), "ours_us": own / 1e3, "litert_us": peer / 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--json", action="store_true", help="print the last line only")
    arguments = parser.parse_args()
    net = compare("mobilenet_v1", arguments.threads, max(arguments.pairs, 200), 1)
    add = compare("add4", 1, arguments.pairs, ADD4_INNER)
    if not arguments.json:
        for name, found in (("mobilenet_v1", net), ("add4", add)):
            print(f"{name}: nnhal {found['ours_us']:.2f} us, LiteRT {found['litert_us']:.2f} us (medians)")
            print(f"  nnhal / LiteRT {found['ratio']}, LiteRT / LiteRT {found['control']}")
    print(
        json.dumps(
            {
                "mobilenet_v1_ratio": round(net["ratio"].median, 4),
                "mobilenet_v1_ratio_low": round(net["ratio"].low, 4),
                "mobilenet_v1_ratio_high": round(net["ratio"].high, 4),
                "mobilenet_v1_control": round(net["control"].median, 4),
                "add4_ratio": round(add["ratio"].median, 3),
                "add4_extra_us": round(add["ours_us"] - add["litert_us"], 2),
                "threads": arguments.threads,
                "pairs": arguments.pairs,
            }
        )
    )


if __name__ == "__main__":
    main()
