"""How slow the reference is: MobileNet v1 float on it, against LiteRT's builtin kernels without XNNPACK. Last line JSON.

python benchmarks/reference_speed.py [--pairs N]
"""

import argparse
import json

import numpy as np

import nnhal
from nnhal.base.cores import usable_cores
from nnhal.measure.latency import ratio, timed_pairs
from nnhal.measure.peers import LiteRT
from nnhal.zoo import maker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    pairs = parser.parse_args().pairs
    threads = usable_cores()
    found = {}
    for name in ("mobilenet_v1", "mobilenet_v1_int8", "mobilenet_v1_uint8"):
        path = maker.path(name)
        compiled = nnhal.compile(nnhal.load(path), devices="reference")
        engine = LiteRT(path, threads, xnnpack=False)
        spec = compiled.inputs[0]
        generator = np.random.default_rng(0)
        x = generator.uniform(-1, 1, spec.shape).astype("f4")
        if spec.dtype != x.dtype:
            limits = np.iinfo(spec.dtype)
            x = generator.integers(limits.min, limits.max, spec.shape, spec.dtype)
        compiled(x), engine([x])
        times = timed_pairs(lambda c=compiled, x=x: c(x), lambda e=engine, x=x: e([x]), pairs)
        found[f"{name}_ratio"] = round(ratio(times).median, 2)
        print(f"{name}: reference {np.median([a for a, _ in times]) / 1e6:.1f} ms,", end=" ")
        print(f"LiteRT builtin {np.median([b for _, b in times]) / 1e6:.1f} ms, ratio {ratio(times)}")
    print(json.dumps({**found, "threads": threads, "pairs": pairs}))


if __name__ == "__main__":
    main()
