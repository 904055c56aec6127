"""What it gives to place the inside of a loop on its own, and what a turn costs that the runtime runs.

Two loops, each whole on the reference against its condition and body compiled on their own: twenty convolutions on `litert`,
and sums of four floats on the reference itself, which shows what the runtime adds. Pairs are interleaved; ratios are medians
of pairs with a 95 % bootstrap interval. With a profile (`nnhal calibrate`), also the predicted over the measured time of six
models on each device. The last line is JSON.

    python benchmarks/control_flow.py [--pairs N] [--devices ...] [--json]
"""

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nnhal
from nnhal.base.codes import operation_name
from nnhal.base.records import as_dict
from nnhal.bench.calibrate import best_seconds
from nnhal.hal.wrappers import Limited
from nnhal.measure.latency import ratio, timed_pairs
from nnhal.runtime import discovery
from nnhal.runtime.measured import record


def loop(shape: Sequence[int], turns: int, body_of: Callable[[Any, Any], Any]) -> nnhal.Model:
    """x goes through the body so many times."""
    b = nnhal.Builder("loop")
    x = b.input(shape)
    return b.finish([x], [counted(b, x, shape, turns, body_of)])


def compare(model: nnhal.Model, devices: list[Any], turns: int, pairs: int) -> dict:
    """Durations of a turn in microseconds, inside on these devices and whole on the reference, and their ratio."""
    inside, whole = nnhal.compile(model, devices=devices), nnhal.compile(model, devices="reference")
    assert inside.placement.inside and not whole.placement.inside
    x = np.random.default_rng(0).uniform(0, 1, inside.inputs[0].shape).astype(np.float32)
    np.testing.assert_allclose(inside(x), whole(x), rtol=1e-4, atol=1e-6)
    found = timed_pairs(lambda: inside(x), lambda: whole(x), pairs, 1)
    medians = [float(np.median(each)) / turns / 1e3 for each in zip(*found, strict=True)]
    return {"ratio": as_dict(ratio(found)), "inside_us": medians[0], "whole_us": medians[1]}


def convolved(b: Any, x: Any) -> Any:
    """A convolution of 16 channels."""
    filters = np.random.default_rng(1).normal(0, 0.1, (16, 3, 3, 16)).astype(np.float32)
    return b.conv_2d(x, filters, np.zeros(16, np.float32), padding="same", stride=1, activation="relu6")


def dense(b: Any, x: Any, width: int = 128) -> Any:
    """A step of a small recurrent cell."""
    weights = np.random.default_rng(2).normal(0, 0.1, (width, width)).astype(np.float32)
    return b.tanh(b.fully_connected(x, weights, np.zeros(width, np.float32)))


def gated(b: Any, x: Any) -> Any:
    """What an LSTM's iteration computes."""
    open_, new = b.logistic(dense(b, x)), dense(b, x)
    return b.add(b.mul(open_, x), b.mul(b.logistic(dense(b, x)), new))


def counted(b: Any, x: Any, shape: Sequence[int], turns: int, body_of: Callable[[Any, Any], Any]) -> Any:
    """A loop of so many iterations, within a model or a subgraph."""
    condition, body = b.subgraph(), b.subgraph()
    n = condition.input((1,), "TENSOR_INT32")
    first = condition.finish_subgraph([n, condition.input(shape)], [condition.less(n, [turns])])
    n, y = body.input((1,), "TENSOR_INT32"), body.input(shape)
    second = body.finish_subgraph([n, y], [body.add(n, [1]), body_of(body, y)])
    types = ["TENSOR_INT32", "TENSOR_FLOAT32"]
    return b.while_(first, second, [b.constant(np.zeros(1, np.int32)), x], out_type=types, outputs=2)[1]


def branches() -> nnhal.Model:
    """An IF of two branches that take as long."""
    b, shape = nnhal.Builder("branches"), (1, 128)
    condition, x = b.input((1,), "TENSOR_BOOL8"), b.input(shape)
    graphs = []
    for _ in range(2):
        sub = b.subgraph()
        y = sub.input(shape)
        graphs.append(sub.finish_subgraph([y], [gated(sub, y)]))
    return b.finish([condition, x], [b.if_(condition, *graphs, [x], out_type="TENSOR_FLOAT32")])


def predictions(devices: Sequence[str]) -> dict[str, dict[str, float]]:
    """Predicted over measured time of models with control flow, by model and device."""
    models = {
        "convolutions x 20": loop((1, 32, 32, 16), 20, convolved),
        "counter x 100": loop((4,), 100, lambda b, x: b.add(x, x)),
        "gates x 10": loop((1, 128), 10, gated),
        "gates x 200": loop((1, 128), 200, gated),
        "nested 5 x 8": loop((1, 128), 5, lambda b, x: counted(b, dense(b, x), (1, 128), 8, dense)),
        "if": branches(),
    }
    found: dict[str, dict[str, float]] = {}
    for name, model in models.items():
        for device in devices:
            with nnhal.compile(model, devices=[device], threads=1, cache_dir=False) as compiled:
                predicted = compiled.placement.expected[0].latency
                found.setdefault(name, {})[device] = round(predicted / best_seconds(compiled), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--devices", nargs="+", default=["reference", "litert", "onnxruntime", "openvino"])
    parser.add_argument("--json", action="store_true", help="print the last line only")
    arguments = parser.parse_args()
    taken = Limited(discovery.cpu(), lambda model, n: operation_name(model.main.operations[n].type) != "WHILE")
    results = {
        "convolutions": compare(loop((1, 32, 32, 16), 20, convolved), ["litert"], 20, arguments.pairs),
        "sums": compare(loop((4,), 100, lambda b, x: b.add(x, x)), [taken], 100, arguments.pairs),
    }
    if not arguments.json:
        for name, found in results.items():
            print(f"{name}: {found['inside_us']:.0f} us a turn inside, {found['whole_us']:.0f} us whole (medians)")
    if record.profile() is not None:
        results["predicted_over_measured"] = found = predictions(arguments.devices)
        if not arguments.json:
            for name, ratios in found.items():
                print(f"{name}: {', '.join(f'{device} {ratio:.2f}' for device, ratio in ratios.items())} of its time")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
