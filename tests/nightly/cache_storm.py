"""Processes that compile the same models through one cache folder while another spoils and prunes it.

    python -m tests.nightly.cache_storm [--processes 8] [--rounds 10000] [--isolate] [--seed 1]

Each process compiles, in turns, models that differ in their weights alone, out of a file and as a Model, and compares what
they compute with numpy. The ninth flips bits, cuts files, swaps the files of two entries, removes some, and prunes. The last
line says how many were right, wrong, failed, how many hits there were, and the most that the folder held. Nothing may be
wrong or fail, and the folder may hold no more than its quota and what was being written.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import nnhal
from nnhal.drivers.litert.lowering import lower
from nnhal.runtime.cache.folder import CacheFolder

MODELS, QUOTA = 4, 1  # MiB
X = np.linspace(-2, 2, 64, dtype=np.float32).reshape(1, 64)


def weights(number: int) -> Any:
    return np.full((64, 64), number + 1, np.float32) * np.eye(64, dtype=np.float32)


def model(number: int) -> nnhal.Model:
    """A layer that multiplies by number + 1, and as much beside it that its files are of some size."""
    b = nnhal.Builder(f"m{number}")
    x = b.input((1, 64))
    return b.finish([x], [b.fully_connected(x, b.constant(weights(number)), np.zeros(64, np.float32))])


def compiling(folder: Path, rounds: int, seed: int, isolate: bool, told: int) -> None:
    """Compile and compare, and print what came of it. told: gets a byte in each round."""
    rng, found = random.Random(seed), Counter[str]()
    models = [model(n) for n in range(MODELS)]
    settings: dict[str, Any] = {"isolation": "process" if isolate else "none", "cache_dir": folder / "cache"}
    for _ in range(rounds):
        os.write(told, b".")
        n = rng.randrange(MODELS)
        what = models[n] if rng.random() < 0.5 else folder / f"m{n}.tflite"
        try:
            with nnhal.compile(what, devices=rng.choice(("litert", "sample-full-1.3")), **settings) as compiled:
                found["right" if np.allclose(compiled(X), X * (n + 1), atol=1e-3) else "wrong"] += 1
                found["hits" if compiled.cache[-1].state == "hit" else "misses"] += 1
        except nnhal.NnhalError as error:
            found["failed"] += 1
            print(error, file=sys.stderr)
    print(json.dumps(found))


def spoil(folder: Path, rng: random.Random) -> None:
    """Do one thing that may happen to a cache."""
    files = [f for f in folder.iterdir() if f.suffix[1:2] in ("m", "d") and f.suffix != ".making"]
    if not files:
        return
    one, other = rng.choice(files), rng.choice(files)
    what = rng.randrange(6)
    if what == 0:
        data = bytearray(one.read_bytes())
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            one.write_bytes(data)
    elif what == 1:
        os.truncate(one, rng.randrange(one.stat().st_size + 1))
    elif what == 2:
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
    elif what == 3:
        one.unlink()
    else:
        CacheFolder(folder, QUOTA << 20 if what == 4 else 1 << 16).prune()


def storm(processes: int, rounds: int, seed: int = 1, *, isolate: bool = False) -> dict[str, int]:
    """Sums over all processes, and the most bytes that the folder held."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for n in range(MODELS):
            with (folder / f"m{n}.tflite").open("wb") as file:
                file.write(lower(model(n)).content)
        environment = {
            **os.environ, "NNHAL_STATE_DIR": str(folder / "state"), "NNHAL_CACHE_SIZE": str(QUOTA), "OMP_NUM_THREADS": "1"
        }  # fmt: skip
        heard, told = os.pipe()
        own = [sys.executable, "-m", "tests.nightly.cache_storm", "--folder", place, "--rounds", str(rounds)]
        own += ["--told", str(told)]
        running = [
            subprocess.Popen(
                [*own, "--seed", str(seed * 1000 + n), *(["--isolate"] if isolate else [])],
                env=environment, stdout=subprocess.PIPE, text=True, pass_fds=[told],
            )
            for n in range(processes)
        ]  # fmt: skip
        rng, sums, most = random.Random(seed), Counter[str](), 0
        os.close(told)
        while os.read(heard, 1):  # as fast as they compile, and in the midst of it
            if rng.random() < 0.5:
                continue
            try:
                spoil(folder / "cache", rng)
                most = max(most, sum(f.stat().st_size for f in (folder / "cache").iterdir()))
            except OSError:  # it went meanwhile
                continue
        os.close(heard)
        for each in running:
            out, _ = each.communicate()
            sums.update(json.loads(out) if each.returncode == 0 else {"failed": rounds})
    return {"right": 0, "wrong": 0, "failed": 0, "hits": 0, "misses": 0, **sums, "most_bytes": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--isolate", action="store_true", help="the drivers in processes of their own")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--told", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder is not None:
        compiling(given.folder, given.rounds, given.seed, given.isolate, given.told)
        return
    found = storm(given.processes, given.rounds, given.seed, isolate=given.isolate)
    print(json.dumps(found))
    if found["wrong"] or found["failed"] or found["right"] != given.processes * given.rounds:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
