"""What loading and compiling take in a process that did it before, and what the sealed copy of a file takes. The last line
is JSON.

python benchmarks/loading.py [--mebibytes N] [--pairs N]

Warm: `load` and `compile` of real models for `litert`, in turns with LiteRT's interpreter made and allocated; ms.
Sealed copy: the peer is the file mapped and read page by page, in paired fresh processes, with the file in the page cache
and without; ms of processor time. Memory: what client and driver's process share of the model, after a first execution.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from endurance_parts.usage import usage

import nnhal
from nnhal.drivers.litert.lowering import lower
from nnhal.measure.peers import peer
from nnhal.zoo.by_name import path as zoo_path

MODELS = ("tiny_conv", "face_landmark", "mobilenet_v1", "basic_pitch")
TIMED = """import numpy, sys
from nnhal.base.sealed import Store
from time import process_time as now
path, start = sys.argv[1], now()
{}
bytes[::4096].sum(); print(now() - start)"""
STATEMENTS = {
    "sealed_ms": "store = Store('model'); store.add_file(path); bytes = store.seal().bytes()",
    "mapped_ms": "bytes = numpy.memmap(path, mode='r')",
}


def write(path: Path, mebibytes: int) -> None:
    """A file of one FULLY_CONNECTED with weights of that size."""
    b = nnhal.Builder()
    x = b.input((1, 1024))
    y = b.fully_connected(x, np.ones((mebibytes << 8, 1024), np.float32), np.zeros(mebibytes << 8, np.float32))
    with open(path, "wb") as file:
        file.write(lower(b.finish([x], [y])).content)
        os.fsync(file.fileno())


def timed(statement: str, path: Path, cold: bool) -> float:
    """Seconds of processor time in a fresh process, which has imported what it needs."""
    with open(path, "rb") as file:
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            file.read()
    return float(subprocess.check_output([sys.executable, "-c", TIMED.format(statement), path], text=True))


def times(path: Path, pairs: int, cold: bool) -> dict[str, float]:
    """The best of each in ms: what else runs on the machine can only add."""
    rows = [[timed(statement, path, cold) for statement in STATEMENTS.values()] for _ in range(pairs)]
    return dict(zip(STATEMENTS, np.round(np.min(rows, 0) * 1e3, 1).tolist(), strict=True))


def shared(path: Path) -> float:
    """Memory that client and driver's process have more, over the size of the file."""
    small = nnhal.Builder()
    x = small.input((4,))
    compiled = nnhal.compile(small.finish([x], [small.relu(x)]), devices="reference", isolation="process")
    compiled(np.ones(4, np.float32))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    pids = [os.getpid(), *map(int, children)]
    before = sum(usage(pid).share for pid in pids)
    big = nnhal.compile(nnhal.load(path), devices="reference", isolation="process")
    big(np.ones((1, 1024), np.float32))
    return (sum(usage(pid).share for pid in pids) - before) / path.stat().st_size


def warm(name: str, rounds: int) -> dict[str, float]:
    """The best of each in ms, of contenders that take turns: `load`, `compile`, and the engine alone."""
    path, rows = str(zoo_path(name)), []
    for _ in range(rounds):
        marks = [time.perf_counter()]
        model = nnhal.load(path)
        marks.append(time.perf_counter())
        nnhal.compile(model, devices="litert")
        marks.append(time.perf_counter())
        peer("litert", Path(path), 2)
        marks.append(time.perf_counter())
        rows.append(np.diff(marks))
    return dict(zip(("load", "compile", "engine"), np.round(np.min(rows[1:], 0) * 1e3, 2).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.tflite"
        write(path, given.mebibytes)
        found = {name: times(path, given.pairs, name == "cold") for name in ("warm", "cold")}
        starts = {name: warm(name, given.pairs) for name in MODELS}
        print(
            json.dumps(
                {"starts_ms": starts, **found, "held_times": round(shared(path), 2), "mebibytes": given.mebibytes}
            )
        )


if __name__ == "__main__":
    main()
