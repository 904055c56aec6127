"""What traces cost: nothing where there is none, against the same of another checkout; and a span where there is one.

One ADD of four floats on the reference, in processes that take turns in blocks of calls, the order of each round drawn by
chance: this checkout, the other one twice (the second is the A/A control). Then, in this process, calls that are traced, and
spans alone. The last line is JSON.

    python benchmarks/trace_cost.py [--against SRC] [--burst] [--rounds N] [--json]
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

BLOCKS = {"call": 200, "burst": 40}  # calls that make one duration
SERVER = """
import sys, time
import numpy as np, nnhal
b = nnhal.Builder()
x = b.input((4,))
apart = sys.argv[1] == "burst"
compiled = nnhal.compile(b.finish([x], [b.add(x, x)]), devices="reference", isolation="process" if apart else "none")
call = compiled.burst() if apart else compiled
a = np.ones(4, np.float32)
for _ in range(5000): call(a)
print("ready", flush=True)
for line in sys.stdin:
    count = int(line)
    begin = time.perf_counter_ns()
    for _ in range(count): call(a)
    print(time.perf_counter_ns() - begin, flush=True)
"""


class Side:
    """A process that times blocks of calls with the package that lies in a folder."""

    def __init__(self, source: Path, way: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        self._block = BLOCKS[way]
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"

    def block(self) -> float:
        """Nanoseconds of a call."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{self._block}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()) / self._block

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(ours: Path, other: Path, rounds: int, way: str) -> dict:
    """Medians of ratios by rounds, with 95 % intervals by bootstrap."""
    from nnhal.measure.latency import ratio

    sides = {"ours": Side(ours, way), "other": Side(other, way), "control": Side(other, way)}
    draw, found = random.Random(0), {name: [] for name in sides}
    for _ in range(rounds):
        for name in draw.sample(list(sides), len(sides)):
            found[name].append(sides[name].block())
    for side in sides.values():
        side.close()
    return {
        "ours_us": float(np.median(found["ours"])) / 1e3,
        "other_us": float(np.median(found["other"])) / 1e3,
        "ratio": ratio(list(zip(found["ours"], found["other"], strict=True))),
        "control": ratio(list(zip(found["control"], found["other"], strict=True))),
    }


def traced() -> dict:
    """Microseconds of a call without and with a trace, of a span alone, and of the end of a full trace."""
    import nnhal
    from nnhal.base import trace

    b = nnhal.Builder()
    x = b.input((4,))
    a = np.ones(4, np.float32)

    def timed(call, count) -> float:
        begin = time.perf_counter_ns()
        for _ in range(count):
            call()
        return (time.perf_counter_ns() - begin) / count / 1e3

    class One:
        @trace.traced_method("runtime", "execution", "one", detail=lambda _: "device a")
        def call(self) -> None:
            pass

    one = One()
    with tempfile.TemporaryDirectory() as folder, nnhal.compile(b.finish([x], [b.add(x, x)]), devices="reference") as c:
        timed(lambda: c(a), 5000)
        off, on, bare, span = [], [], [], []
        for n in range(7):
            off.append(timed(lambda: c(a), 3000))
            bare.append(timed(one.call, 20000))
            running = nnhal.trace(Path(folder, str(n))).start()
            on.append(timed(lambda: c(a), 3000))
            span.append(timed(one.call, 20000))
            recording = running._recording
            begin = time.perf_counter()
            running.stop()
            end = time.perf_counter() - begin
        spans = (
            sum(
                1
                for e in trace.contents(
                    recording.log.memory, recording.log.slots, recording.since, time.monotonic_ns()
                ).entries
                if e.kind == trace.SPAN and e.name != "one"
            )
            / 3000
        )
    return {
        "off_us": float(np.median(off)),
        "on_us": float(np.median(on)),
        "spans_a_call": spans,
        "span_us": float(np.median(span) - np.median(bare)),
        "end_ms": end * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="the src folder of another checkout, with its extensions built")
    parser.add_argument("--burst", action="store_true", help="compare executions of a burst between processes instead")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="print the last line only")
    given = parser.parse_args()
    found: dict = traced()
    if given.against is not None:
        found |= compare(
            Path(__file__).parents[1] / "src", given.against, given.rounds, "burst" if given.burst else "call"
        )
    if not given.json:
        print(f"a call {found['off_us']:.2f} us, traced {found['on_us']:.2f} us with {found['spans_a_call']:.0f} spans")
        print(f"a span alone {found['span_us']:.2f} us; the end of a trace {found['end_ms']:.0f} ms")
        if "ratio" in found:
            print(f"not traced {found['ours_us']:.3f} us, the other {found['other_us']:.3f} us")
            print(f"  ours / other {found['ratio']}, other / other {found['control']}")
    plain = {k: v._asdict() if hasattr(v, "_asdict") else v for k, v in found.items()}
    print(json.dumps(plain, default=str))


if __name__ == "__main__":
    main()
