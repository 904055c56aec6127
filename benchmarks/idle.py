"""What models hold after executions and once nobody executes them, and what the next one costs: `python benchmarks/idle.py`.

Each case in a fresh process: executions by four threads at once and by one, two quiet seconds, then memory that is short.
Medians of ROUNDS.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time

DEVICES = "litert", "onnxruntime", "openvino"
MODELS = "face_landmark", "pose_landmark_full"
ROUNDS = 3
QUIET = 0.5  # seconds, to be waited for four times


def one(device: str, name: str) -> dict[str, float]:
    """MiB of private memory, and milliseconds of executions, of one process."""
    import numpy as np

    import nnhal
    from nnhal.bench.process_memory import private_bytes
    from nnhal.hal import idle

    def private() -> float:
        return (private_bytes() or 0) / 2**20

    def timed() -> float:
        begin = time.perf_counter()
        compiled(*inputs)
        return 1e3 * (time.perf_counter() - begin)

    begin = private()
    compiled = nnhal.compile(nnhal.load(name), devices=[device])
    rng = np.random.default_rng(0)
    inputs = [rng.random([d or 1 for d in spec.shape], np.float32) for spec in compiled.inputs]
    wanted = compiled(*inputs)
    threads = [threading.Thread(target=lambda: [compiled(*inputs) for _ in range(8)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {"usual ms": statistics.median(timed() for _ in range(15)), "run": private() - begin}
    time.sleep(4 * QUIET)
    found |= {"quiet": private() - begin, "first after quiet ms": timed(), "again": private() - begin}
    (line,) = compiled._caller.lines
    line.prepared.trim_now(pressed=True)
    idle._give_back()
    found |= {"short": private() - begin, "first after short ms": timed()}
    now = compiled(*inputs)
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (wanted, now)), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    return found


def main() -> None:
    """The table."""
    environment = {**os.environ, "NNHAL_IDLE_SECONDS": str(QUIET)}
    for name in MODELS:
        for device in DEVICES:
            words = [sys.executable, __file__, device, name]
            rounds = [
                json.loads(subprocess.run(words, capture_output=True, env=environment, check=True).stdout)
                for _ in range(ROUNDS)
            ]
            medians = {what: statistics.median(each[what] for each in rounds) for what in rounds[0]}
            print(f"{name:20} {device:12}", *(f"{what} {value:.1f}" for what, value in medians.items()), sep="  ")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(one(*sys.argv[1:])))
    else:
        main()
