"""What a start takes, from exec to the first result, in fresh processes: nnhal cold, nnhal warm, and LiteRT's interpreter.

    python benchmarks/start.py [--rounds 15] [--models NAME ...] [--json]

Each round starts one process of each kind for each model, in turns, so that what else the machine does reaches all alike.
Cold: no cache folder. Warm: a folder in which the model was compiled before. Medians, and ratios of the medians to LiteRT's;
memory is what is private to the process when it has its result. `load_ms_per_operation` is what loading and validating a
model of 16,000 operations takes an operation, `doubling_max` the greatest factor for twice as many. The last line is JSON:
{"warm_over_litert_max", "cold_over_litert_max", "memory_over_litert_max", "load_ms_per_operation", "doubling_max"}.
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
SIZES = 2000, 4000, 8000, 16000


def started(program: str, model: Path, folder: str) -> tuple[float, int]:
    """Seconds from exec to the result, and KiB of private memory then."""
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
    if process.returncode:
        raise SystemExit(f"start.py: a process for {model} ended with {process.returncode}")
    return taken, int(line)


def measured(model: Path, rounds: int) -> Mapping[str, tuple[float, float]]:
    """Median seconds and KiB by kind of start."""
    found: dict[str, list[tuple[float, int]]] = {"litert": [], "cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"litert": (LITERT, ""), "cold": (NNHAL, ""), "warm": (NNHAL, folder)}
        for program, where in kinds.values():
            started(program, model, where)  # makes byte code, the entries, and reads files into memory
        for _ in range(rounds):
            for kind, (program, where) in kinds.items():
                found[kind].append(started(program, model, where))
    return {
        kind: (statistics.median(t for t, _ in runs), statistics.median(m for _, m in runs))
        for kind, runs in found.items()
    }


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
        print(f"{'model':28} {'litert':>8} {'cold':>8} {'warm':>8} ms {'cold':>6} {'warm':>6} x {'memory':>6} x")
        for name, row in rows.items():
            times = "".join(f" {row[kind][0] * 1e3:8.1f}" for kind in ("litert", "cold", "warm"))
            ratios = "".join(f" {row[kind][0] / row['litert'][0]:6.2f}" for kind in ("cold", "warm"))
            print(f"{name:28}{times}   {ratios}   {row['warm'][1] / row['litert'][1]:6.2f}")
    times = loading()
    if not given.json:
        print(", ".join(f"{n} operations {t * 1e3:.0f} ms" for n, t in zip(SIZES, times, strict=True)))

    def most(kind: str, place: int) -> float:
        return round(max(row[kind][place] / row["litert"][place] for row in rows.values()), 3)

    doubling = max(b / a for a, b in pairwise(times))
    print(
        json.dumps(
            {
                "warm_over_litert_max": most("warm", 0),
                "cold_over_litert_max": most("cold", 0),
                "memory_over_litert_max": most("warm", 1),
                "load_ms_per_operation": round(times[-1] * 1e3 / SIZES[-1], 4),
                "doubling_max": round(doubling, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
