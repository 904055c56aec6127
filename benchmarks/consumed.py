"""What it saves that a driver needs the model's weights no more: `examples/my_packing_driver.py` with 96 MiB of them.

Beside it the same driver that does not say so. Every figure is of a fresh process, in MiB more than before the model was
made, which is compiled with `fallback="forbid"`, run, and dropped. `resident` counts pages of others too, `share` (Pss) such
pages in part; `all` is the share of both processes. The last line is JSON.

    python benchmarks/consumed.py [--json]
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from endurance_parts.usage import Usage, usage
from memory import dense

import nnhal
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.runtime import discovery

EXAMPLE = Path(__file__).parents[1] / "examples" / "my_packing_driver.py"
KEPT = """\
from my_packing_driver import Packed, device
Packed.weights_consumed = False
"""
WAYS = "in process", "isolated"


def measure(way: str, driver: Path) -> dict[str, float]:
    """In this process: MiB that it and the driver's process have more, weights dropped or not as the driver says."""
    device = discovery.load_driver(driver)
    if way == "isolated":
        device = ReconnectingDevice("packing", lambda: start(str(driver), options=["--unconfined"]))
    run(device, small=True)  # what is imported and started once
    processes = {"client": os.getpid()} | ({"driver": device.pid} if isinstance(device, ReconnectingDevice) else {})
    before = {who: usage(pid) for who, pid in processes.items()}
    compiled = run(device)
    gc.collect()
    after = {who: usage(pid) for who, pid in processes.items()}
    compiled.close()
    found = {
        f"{who} {what}": more(before[who], after[who], what) for who in processes for what in ("resident", "share")
    }
    return found | {"all": round(sum(found[f"{who} share"] for who in processes), 1)}


def run(device: nnhal.hal.device.Device, *, small: bool = False) -> nnhal.Compiled:
    """A model that was compiled and run, and is held by nobody else."""
    model = dense(64) if small else dense()
    compiled = nnhal.compile(model, devices=[device], fallback="forbid")
    compiled(np.ones(compiled.inputs[0].shape, np.float32))
    return compiled


def more(before: Usage, after: Usage, what: str) -> float:
    return round((getattr(after, what) - getattr(before, what)) / (1 << 20), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the last line only")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        way, driver = arguments.measure
        print(json.dumps(measure(way, Path(driver))))
        return
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(EXAMPLE, directory)
        kept = Path(directory) / "kept.py"
        kept.write_text(KEPT)
        for way in WAYS:
            for what, driver in (("kept", kept), ("consumed", EXAMPLE)):
                command = [sys.executable, __file__, "--measure", way, str(driver)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found[f"{way}, {what}"] = row = json.loads(done.stdout)
                if not arguments.json:
                    print(f"{way}, {what}: " + ", ".join(f"{name} {size}" for name, size in row.items()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
