"""What a model of 100 MB takes on `litert`, against LiteRT's own interpreter: one caller, and four at once.

Every figure is of a fresh process: how much more it holds after the model was made ready and run than before, the heap
trimmed. `all` is every page once (Pss), `private` what it alone maps and maps once (USS), `anonymous` what no file backs;
`peak` the most it had resident on the way, where pages mapped twice count twice; `later` is `all` after one more call when
nobody else had called for a while. Processes are interleaved in rounds, the order of each drawn by chance; ratios are
medians over the rounds, to LiteRT on the file by its path. The last line is JSON.

    python benchmarks/memory.py [--rounds N] [--threads N] [--json]
"""

import argparse
import gc
import json
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from endurance_parts.usage import process_memory

import nnhal
from nnhal.base.operands import ChannelQuant
from nnhal.drivers.kit import instance_pool
from nnhal.drivers.litert import engine
from nnhal.drivers.litert.lowering import lower
from nnhal.measure.peers import LiteRT
from nnhal.model.graph import Model
from nnhal.zoo import maker

CALLS = 10  # of every caller
CALLERS = (1, 4)
CONTENDERS = ("litert path", "litert content", "nnhal file", "nnhal built")
KINDS = ("all", "private", "anonymous")
Run = Callable[[], object]


def dense(units: int = 2048) -> Model:
    """Six FULLY_CONNECTED of 2048 x 2048 float32, or of fewer."""
    b = nnhal.Builder()
    weights = np.random.default_rng(0).standard_normal((units, units), np.float32)
    x = y = b.input((1, units))
    for number in range(6):
        y = b.fully_connected(y, weights + np.float32(number), np.zeros(units, np.float32))
    return b.finish([x], [y])


def convolutions() -> Model:
    """Eleven CONV_2D of 1024 channels with 3 x 3 windows, int8 with a scale for each channel."""
    b, channels = nnhal.Builder(), 1024
    scales = ChannelQuant(tuple([1 / 1024] * channels), 0)
    weights = np.random.default_rng(0).integers(-127, 128, (channels, 3, 3, channels), np.int8)
    kind = {"type": "TENSOR_QUANT8_ASYMM_SIGNED", "scale": 0.5}
    x = y = b.input((1, 4, 4, channels), **kind)
    for number in range(11):
        kernel = b.constant(np.roll(weights, number), "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=scales)
        bias = b.constant(np.zeros(channels, np.int32), "TENSOR_INT32")
        y = b.conv_2d(y, kernel, bias, padding="same", stride=1, scale=0.5)
    return b.finish([x], [y])


MODELS: dict[str, Callable[[], Model]] = {"dense_float": dense, "conv_int8": convolutions}
REAL = "mobilenet_v1"  # a file of the model maker, 17 MB


def ready(contender: str, name: str, path: Path, threads: int, callers: int) -> list[Run]:
    """The model, ready to run: a function for each caller."""
    if contender.startswith("litert"):
        source = path if contender == "litert path" else path.read_bytes()
        engines = [LiteRT(source, threads) for _ in range(callers)]
        inputs = [np.ones(d["shape"], d["dtype"]) for d in engines[0].inputs]
        return [partial(one, inputs) for one in engines]
    model = nnhal.load(path) if contender == "nnhal file" else MODELS[name]()
    compiled = nnhal.compile(model, devices="litert", threads=threads)
    inputs = [np.ones(x.shape, x.dtype) for x in compiled.inputs]
    return [partial(compiled, *inputs)] * callers


def work(run: Run, together: threading.Barrier) -> None:
    together.wait()
    for _ in range(CALLS):
        run()


def measure(contender: str, name: str, path: Path, threads: int, callers: int) -> dict[str, float]:
    """In this process: what it holds more, and how many of nnhal's interpreters are alive."""
    for kind in ("litert content", "nnhal file"):  # what is imported and started once for all models
        ready(kind, "add4", maker.path("add4"), threads, 1)[0]()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = process_memory()
    runs = ready(contender, name, path, threads, callers)
    together = threading.Barrier(callers)
    workers = [threading.Thread(target=work, args=(run, together)) for run in runs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    after = process_memory()
    found = {kind: after[kind] - before[kind] for kind in KINDS}
    found |= {"peak": after["peak"] - before["resident"], "interpreters": alive()}
    instance_pool.KEPT_SECONDS = 0
    runs[0]()
    return found | {"later": process_memory()["all"] - before["all"], "interpreters_later": alive()}


def alive() -> int:
    return sum(isinstance(thing, engine.EngineInstance) for thing in gc.get_objects())


def fresh(*arguments: str) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--measure", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rounds(name: str, path: Path, threads: int, callers: int, number: int) -> dict[str, dict[str, float]]:
    """By contender: medians of what it holds, and of its ratios to LiteRT in the same round."""
    contenders = [c for c in CONTENDERS if name in MODELS or c != "nnhal built"]
    found: dict[str, list[dict[str, float]]] = {contender: [] for contender in contenders}
    for turn in range(number):
        for contender in random.Random(turn).sample(contenders, len(contenders)):
            found[contender].append(fresh(contender, name, str(path), str(threads), str(callers)))
    return {contender: summary(ours, found["litert path"]) for contender, ours in found.items()}


def summary(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> dict[str, float]:
    medians = {kind: round(median(one[kind] for one in ours), 1) for kind in ours[0]}
    ratios = {
        f"{kind}_ratio": round(median(a[kind] / b[kind] for a, b in zip(ours, theirs, strict=True)), 3)
        for kind in (*KINDS, "peak")
    }
    return medians | ratios


def show(name: str, callers: int, found: dict[str, dict[str, float]]) -> None:
    print(f"{name}, {callers} at once (MiB more, and times LiteRT on the path)")
    for contender, row in found.items():
        cells = [f"{k} {row[k]:6.1f} ({row[k + '_ratio']:.2f})" for k in (*KINDS, "peak")]
        count = f"later {row['later']:.1f}, interpreters {row['interpreters']:g}, later {row['interpreters_later']:g}"
        print(f"  {contender:15} {', '.join(cells)}" + (f", {count}" if contender.startswith("nnhal") else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the last line only")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        contender, name, path, threads, callers = arguments.measure
        print(json.dumps(measure(contender, name, Path(path), int(threads), int(callers))))
        return
    everything = {}
    with tempfile.TemporaryDirectory() as directory:
        paths = {name: Path(directory) / f"{name}.tflite" for name in MODELS}
        for name, path in paths.items():
            path.write_bytes(bytes(lower(MODELS[name]()).content))
        for name, path in (paths | {REAL: maker.path(REAL)}).items():
            for callers in CALLERS:
                found = rounds(name, path, arguments.threads, callers, arguments.rounds)
                everything[f"{name}_{callers}"] = found
                if not arguments.json:
                    show(name, callers, found)
    print(json.dumps(everything))


if __name__ == "__main__":
    main()
