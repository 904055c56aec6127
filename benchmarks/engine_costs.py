"""What an engine costs beside its speed, as a device of nnhal and called directly: memory, preparation, start, isolation.

    python benchmarks/engine_costs.py [--only KIND ...] [--rounds 5] [--models NAME ...] [--devices NAME ...] [--json]

- memory: the most that a fresh process held on the way, beyond what it held with everything imported and a small model run,
  and what it holds once the model was run ten times, against the engine called directly (`nnhal.measure.peers`)
- restore: what `nnhal.compile` takes in fresh processes, all imported, without a cache and from one
- start: from exec to the first result, warm, nnhal with its cache folder and OpenVINO with its own
- isolation: a burst of an isolated driver in pairs with one in process

Processes of a round run in turns; ratios are of medians. The last line is JSON, of what was measured:
{"memory_over_engine_max": {device: ratio}, "held_over_engine_max": {device: ratio},
"restored_faster_min": {device: ratio, of preparations above 100 ms},
"start_over_openvino_max": ratio, "isolated_over_in_process_max": {device: ratio, of executions above 8 ms}}.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from endurance_parts.usage import process_memory

import nnhal
from nnhal import zoo
from nnhal.base.errors import bounded_text
from nnhal.base.operands import dtype_of
from nnhal.cli.common import progress
from nnhal.measure.latency import ratio, timed, timed_pairs
from nnhal.measure.peers import peer
from nnhal.zoo import maker

DEVICES = ("litert", "openvino", "onnxruntime")
MODELS = (
    "mobilenet_v1", "hand_landmark_full", "pose_landmark_full", "face_landmark_with_attention", "basic_pitch", "magika",
    "ocr_recognise", "dnsmos_p808", "captcha_read",
)  # fmt: skip
CALLS = 10
LONG_S = 0.1  # of a preparation that is worth keeping
SLOW_MS = 8.0  # of an execution in which messages between processes should not be felt
PAIRS = 40
SMALL = {".tflite": "face_detection_short_range", ".onnx": "dnsmos_signal"}

Found = dict[str, float]
DIRECT = """import sys
import numpy as np, openvino
core = openvino.Core()
core.set_property({"CACHE_DIR": sys.argv[2]})
compiled = core.compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})
request = compiled.create_infer_request()
request.infer([np.zeros([d.get_length() if d.is_static else 1 for d in i.partial_shape], i.get_element_type().to_dtype())
               for i in compiled.inputs])
print(float(np.asarray(request.get_output_tensor(0).data).flat[0]), flush=True)
"""
NNHAL = """import sys
import numpy as np, nnhal
compiled = nnhal.compile(sys.argv[1], devices="openvino", threads=1, cache_dir=sys.argv[2])
found = compiled(*(np.zeros([d or 1 for d in each.shape], each.dtype) for each in compiled.inputs))
print(float(np.asarray(found[0] if isinstance(found, tuple) else found).flat[0]), flush=True)
"""


def where(name: str) -> Path:
    return Path(maker.path(name) if name in maker.names() else zoo.path(name))


@cache
def ends(name: str) -> str:
    """Shapes and types of a model's inputs, as JSON: a process that calls an engine does not read them itself."""
    main = nnhal.load(where(name), shapes=shapes_of(name), cache_dir=False).main
    operands = [main.operands[i] for i in main.inputs]
    return json.dumps([([n or 1 for n in x.dimensions or ()], dtype_of(x.type).str) for x in operands])


def shapes_of(name: str) -> dict[str, tuple[int, ...]] | None:
    return None if name in maker.names() else dict(zoo.entry(name).shapes) or None


def ready(
    who: str, name: str, inputs: str, *, cache_dir: str | bool = False, isolation: str = "none"
) -> Callable[[], object]:
    """A model on zeros, ready to run, on a device of that name or, `DEVICE directly`, on its engine."""
    device, _, directly = who.partition(" ")
    arrays = [np.zeros(shape, dtype) for shape, dtype in json.loads(inputs)]
    if directly:
        engine = peer(device, where(name), 1)
        if engine.shapes != [list(x.shape) for x in arrays]:
            engine.resize([list(x.shape) for x in arrays])
        return partial(engine, arrays)
    model = nnhal.load(where(name), shapes=shapes_of(name), cache_dir=False)
    compiled = nnhal.compile(model, devices=device, fallback="forbid", threads=1, isolation=isolation)
    return partial(compiled.burst(), *arrays)


def memory(who: str, name: str, inputs: str, small: str) -> Found:
    """Of this process: MiB more than before, at most and at the end. inputs, small: `ends` of it and of a small one."""
    ready(who, SMALL[where(name).suffix], small)()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = process_memory()
    run = ready(who, name, inputs)
    for _ in range(CALLS):
        run()
    after = process_memory()
    return {"peak": after["peak"] - before["resident"], "held": after["all"] - before["all"]}


def restore(who: str, name: str, folder: str) -> Found:
    """Of this process: seconds that `compile` takes of a model that is read. folder: "" for no cache."""
    with tempfile.TemporaryDirectory() as other:
        nnhal.compile(where(SMALL[where(name).suffix]), devices=who, threads=1, cache_dir=other if folder else False)
    model = nnhal.load(where(name), cache_dir=folder or False)
    start = time.perf_counter()
    compiled = nnhal.compile(model, devices=who, fallback="forbid", threads=1, cache_dir=folder or False)
    return {"s": time.perf_counter() - start, "hits": sum(step.state == "hit" for step in compiled.cache)}


def start(program: str, name: str, folder: str) -> Found:
    """Seconds from exec to the first result."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    command = [sys.executable, "-c", program, str(where(name)), folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        taken = time.perf_counter() - began
    if process.returncode:
        raise ChildFailed(f"a process for {name} ended with {process.returncode}")
    return {"s": taken}


class ChildFailed(Exception):
    """A process could not do its part: the device or the engine does not take the model."""


def fresh(kind: str, *arguments: str) -> Found:
    """`memory` or `restore` in a process of its own."""
    command = [sys.executable, __file__, "--measure", kind, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ChildFailed(done.stderr.strip().rpartition("\n")[2])
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turns(rounds: int, contenders: Mapping[str, Callable[[], Found]]) -> dict[str, Found]:
    """Medians of each one's figures, one process of each a round."""
    found: dict[str, list[Found]] = {who: [] for who in contenders}
    for _ in range(rounds):
        for who, run in contenders.items():
            found[who].append(run())
    return {who: {k: median(one[k] for one in runs) for k in runs[0]} for who, runs in found.items()}


def memories(name: str, device: str, rounds: int) -> Iterator[tuple[str, str, float]]:
    given = ends(name), ends(SMALL[where(name).suffix])
    both = in_turns(
        rounds, {who: partial(fresh, "memory", who, name, *given) for who in (device, f"{device} directly")}
    )
    ours, theirs = both.values()
    for kind, key in (("peak", "memory_over_engine_max"), ("held", "held_over_engine_max")):
        yield key, f"{kind} {ours[kind]:.1f} MiB, directly {theirs[kind]:.1f}", ours[kind] / theirs[kind]


def restores(name: str, device: str, rounds: int) -> Iterator[tuple[str, str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        fresh("restore", device, name, folder)
        both = in_turns(rounds, {kind: partial(fresh, "restore", device, name, kind) for kind in ("", folder)})
    cold, warm = both.values()
    told = f"{cold['s'] * 1e3:.0f} ms, from cache {warm['s'] * 1e3:.0f}"
    if not warm["hits"]:
        yield "", f"{told}: not kept", 1.0
    else:
        yield "restored_faster_min" if cold["s"] >= LONG_S else "", told, cold["s"] / warm["s"]


def starts(name: str, device: str, rounds: int) -> Iterator[tuple[str, str, float]]:
    if device != "openvino":
        return
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        contenders = {"ours": partial(start, NNHAL, name, ours), "theirs": partial(start, DIRECT, name, theirs)}
        for run in contenders.values():
            run()  # makes byte code and what is kept
        both = in_turns(rounds, contenders)
    told = f"{both['ours']['s'] * 1e3:.0f} ms, directly {both['theirs']['s'] * 1e3:.0f}"
    yield "start_over_openvino_max", told, both["ours"]["s"] / both["theirs"]["s"]


def isolations(name: str, device: str, rounds: int) -> Iterator[tuple[str, str, float]]:
    here, there = ready(device, name, ends(name)), ready(device, name, ends(name), isolation="process")
    for run in (here, there, here, there):
        taken = timed(run)
    found = ratio(timed_pairs(there, here, PAIRS if rounds > 1 else 5))
    key = "isolated_over_in_process_max" if taken / 1e6 >= SLOW_MS else ""
    yield key, f"{taken / 1e6:.1f} ms, isolated x {found}", found.median


KINDS: dict[str, Callable[[str, str, int], Iterator[tuple[str, str, float]]]] = {
    "memory": memories,
    "restore": restores,
    "start": starts,
    "isolation": isolations,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=DEVICES)
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        kind, *arguments = given.measure
        print(json.dumps({"memory": memory, "restore": restore}[kind](*arguments)))
        return
    worst: dict[str, Any] = {}
    with progress(given.json or not sys.stderr.isatty()) as bar:
        for kind, name, device in bar.track([*product(given.only, given.models, given.devices)], description="costs"):
            try:
                for key, told, found in KINDS[kind](name, device, given.rounds):
                    if not given.json:
                        print(f"{kind:9} {name:28} {device:12} {told}: {found:.2f}", flush=True)
                    pick = min if key.endswith("min") else max
                    if key.startswith("start"):
                        worst[key] = round(max(worst.get(key, 0.0), found), 3)
                    elif key:
                        ofs = worst.setdefault(key, {})
                        ofs[device] = round(pick(ofs.get(device, found), found), 3)
            except (ChildFailed, nnhal.NnhalError) as error:
                if not given.json:
                    print(f"{kind:9} {name:28} {device:12} - {bounded_text(str(error), 90)}", flush=True)
    print(json.dumps(worst))


if __name__ == "__main__":
    main()
