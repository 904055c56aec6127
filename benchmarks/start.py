"""What a start takes, from exec to the first result, in fresh processes: nnhal cold, missing, warm; LiteRT's interpreter.

    python benchmarks/start.py [--rounds 15] [--models NAME ...] [--json]

Each round starts one process of each kind for each model, in turns, so that what else the machine does reaches all alike.
Cold: no cache folder. Miss: an empty cache folder, which the first compilation fills. Warm: a folder in which the model was
compiled before. Medians of the elapsed time and of the CPU time (user and system), which other processes disturb less, and
ratios of the medians to LiteRT's and to those of cold; memory is what is private to the process when it has its result.
`load_ms_per_operation` is what loading and validating a model of 16,000 operations takes an operation, `doubling_max` the
greatest factor for twice as many. The last line is JSON: {"warm_over_litert_max", "cold_over_litert_max",
"miss_over_cold_max", "warm_over_cold_max", "miss_over_cold_cpu_max", "warm_over_cold_cpu_max", "memory_over_litert_max",
"load_ms_per_operation", "doubling_max"}. Those with `cpu` are of CPU time, the others before them of elapsed time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import nnhal
from nnhal.cli.common import progress
from nnhal.drivers.litert.lowering import lower
from nnhal.model.validate import validate
from nnhal.zoo.by_name import path

MODELS = (  # 3 to 350 operations
    "tiny_conv", "wake_alexa", "mobilenet_v2_int8", "face_detection_short_range", "hand_landmark_full", "basic_pitch",
    "selfie_segmentation", "pose_landmark_full",
)  # fmt: skip
PRIVATE = "int(next(l for l in open('/proc/self/smaps_rollup') if l.startswith('Private_Dirty')).split()[1])"
LITERT = f"""import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
engine = Interpreter(sys.argv[1], num_threads=1)
engine.allocate_tensors()
for each in engine.get_input_details():
    engine.set_tensor(each["index"], np.zeros(each["shape"], each["dtype"]))
engine.invoke()
for each in engine.get_output_details():
    engine.get_tensor(each["index"])
print({PRIVATE}, flush=True)
"""
NNHAL = f"""import sys
import numpy as np
import nnhal
compiled = nnhal.compile(sys.argv[1], devices="litert", threads=1)
compiled(*(np.zeros([d or 1 for d in each.shape], each.dtype) for each in compiled.inputs))
print({PRIVATE}, flush=True)
"""
KINDS = "litert", "cold", "miss", "warm"
RATIOS = ("cold", "litert"), ("warm", "litert"), ("miss", "cold"), ("warm", "cold")
SIZES = 2000, 4000, 8000, 16000


class Start(NamedTuple):
    """One start: seconds from exec to the result, CPU seconds of the whole process, KiB of private memory at the result."""

    elapsed: float
    cpu: float
    memory: float


def started(program: str, model: Path, folder: str) -> Start:
    """Start a process with a cache folder; "" for none."""
    environment = {**os.environ, "NNHAL_CACHE_DIR": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as where software is installed: its byte code is there
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        taken = time.perf_counter() - start
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"start.py: a process for {model} ended with {process.returncode}")
    return Start(taken, usage.ru_utime + usage.ru_stime, int(line))


def measured(model: Path, rounds: int) -> Mapping[str, Start]:
    """Medians by kind of start."""
    found: dict[str, list[Start]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for n in range(-1, rounds):
            for kind in KINDS:
                where = {"miss": f"{folder}/miss {n}", "warm": f"{folder}/warm"}.get(kind, "")
                start = started(LITERT if kind == "litert" else NNHAL, model, where)
                if n >= 0:  # the first round makes byte code and the entries of warm, and reads files into memory
                    found[kind].append(start)
    return {kind: Start(*map(statistics.median, zip(*runs, strict=True))) for kind, runs in found.items()}


def loading() -> list[float]:
    """Seconds that loading and validating takes, by size."""
    times = []
    for count in SIZES:
        b = nnhal.Builder()
        x = y = b.input((1, 4))
        for n in range(count):
            y = b.add(y, x) if n % 2 else b.relu(y)
        with tempfile.TemporaryFile() as file:
            file.write(lower(b.finish([x], [y])).content)
            file.seek(0)
            data = file.read()
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            validate(nnhal.load(data))
            best = min(best, time.perf_counter() - start)
        times.append(best)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    given = parser.parse_args()
    rows = {}
    with progress(given.json or not sys.stderr.isatty()) as bar:
        task = bar.add_task("starts", total=len(given.models))
        for name in given.models:
            rows[name] = measured(path(name, lambda _: None), given.rounds)
            bar.advance(task)
    if not given.json:
        heads = "".join(f" {kind:>7}" for kind in KINDS) + "".join(f" {' / '.join(pair):>13}" for pair in RATIOS)
        print(f"{'model':28} {'ms of':7}{heads} {'memory':>7}")
        for name, row in rows.items():
            for place, what in enumerate(("elapsed", "CPU")):
                values = {kind: row[kind][place] for kind in KINDS}
                cells = "".join(f" {values[kind] * 1e3:7.1f}" for kind in KINDS)
                cells += "".join(f" {values[kind] / values[peer]:13.2f}" for kind, peer in RATIOS)
                memory = f" {row['warm'].memory / row['litert'].memory:7.2f}" if not place else ""
                print(f"{name if not place else '':28} {what:7}{cells}{memory}")
    times = loading()
    if not given.json:
        print(", ".join(f"{n} operations {t * 1e3:.0f} ms" for n, t in zip(SIZES, times, strict=True)))

    def most(kind: str, peer: str, what: str = "elapsed") -> float:
        return round(max(getattr(row[kind], what) / getattr(row[peer], what) for row in rows.values()), 3)

    doubling = max(b / a for a, b in pairwise(times))
    print(
        json.dumps(
            {
                "warm_over_litert_max": most("warm", "litert"),
                "cold_over_litert_max": most("cold", "litert"),
                "miss_over_cold_max": most("miss", "cold"),
                "warm_over_cold_max": most("warm", "cold"),
                "miss_over_cold_cpu_max": most("miss", "cold", "cpu"),
                "warm_over_cold_cpu_max": most("warm", "cold", "cpu"),
                "memory_over_litert_max": most("warm", "litert", "memory"),
                "load_ms_per_operation": round(times[-1] * 1e3 / SIZES[-1], 4),
                "doubling_max": round(doubling, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
