"""Hostile `.onnx` files: those of the node tests, with bytes changed, cut, or messages that lie. File N of seed S is one."""

from functools import cache
from typing import Any

import numpy as np
import onnx

from tests.frontends import test_onnx_control, test_onnx_nodes, test_onnx_quantised
from tests.frontends.onnx_models import model

NUMBERS = (0, 1, -1, 2, 3, 7, 127, 128, 65536, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63))
STRUCTURAL = 0.7  # of the files have messages that lie; the others have bytes that do


@cache
def bases() -> tuple[bytes, ...]:
    """Sound files."""
    made = []
    for case in test_onnx_nodes.CASES[::3]:
        nodes, inputs, constants, outputs, opset = case.values
        made.append(model(nodes, inputs, constants, outputs, opset))
    made.append(test_onnx_quantised.layer_between("Conv", np.uint8, np.int8, (4, 3, 3, 3), (1, 3, 6, 5), channels=4)[0])
    made.append(test_onnx_control.pictures(2)[0])
    real = np.ones(3, np.float32)
    loop = test_onnx_control.node("Loop", "n go x", body=test_onnx_control.loop_body())
    constants = {"n": np.array(3, np.int64), "go": np.array(True)}
    made.append(model([loop], {"x": real, "k": real}, constants))
    branch = test_onnx_control.node("If", "c", **test_onnx_control.BRANCHES)
    made.append(model([branch], {"c": np.array(True), "x": real, "z": real}))
    return tuple(each.SerializeToString() for each in made)


def mutated(seed: int, number: int) -> bytes:
    """One hostile file."""
    rng = np.random.default_rng((seed, number))
    data = bases()[rng.integers(len(bases()))]
    if rng.random() < STRUCTURAL:
        made = onnx.load_from_string(data)
        for _ in range(rng.integers(1, 4)):
            try:
                _lie(made.graph, rng)
            except (ValueError, TypeError, IndexError):
                continue
        return made.SerializeToString()
    changed = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        place = rng.integers(len(changed))
        how = rng.integers(4)
        if how == 0:
            changed[place] = rng.integers(256)
        elif how == 1:
            changed[place] ^= 1 << rng.integers(8)
        elif how == 2:
            del changed[place : place + rng.integers(1, 9)]
        else:
            changed[place:place] = bytes(rng.integers(0, 256, rng.integers(1, 9)).tolist())
        if not changed:
            break
    return bytes(changed)


def _one(rng: np.random.Generator, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def _lie(graph: Any, rng: np.random.Generator) -> None:  # noqa: PLR0912 (one branch a lie)
    """One lie in a graph, or in one within it."""
    node = _one(rng, graph.node)
    inner = [a.g for a in node.attribute if a.HasField("g")]
    if inner and rng.random() < 0.5:
        _lie(_one(rng, inner), rng)
        return
    names = [name for each in graph.node for name in (*each.input, *each.output)] + ["", "nothing"]
    number = _one(rng, NUMBERS)
    how = rng.integers(12)
    if how == 0:
        node.input[rng.integers(len(node.input))] = _one(rng, names)
    elif how == 1:
        node.output[rng.integers(len(node.output))] = _one(rng, names)
    elif how == 2:
        attribute = _one(rng, node.attribute)
        if attribute.ints:
            attribute.ints[rng.integers(len(attribute.ints))] = number
        else:
            attribute.i = number
    elif how == 3:
        _one(rng, node.attribute).type = int(rng.integers(0, 15))
    elif how == 4:
        tensor = _one(rng, graph.initializer)
        tensor.dims[rng.integers(len(tensor.dims))] = number
    elif how == 5:
        _one(rng, graph.initializer).data_type = int(rng.integers(0, 24))
    elif how == 6:
        tensor = _one(rng, graph.initializer)
        raw = np.frombuffer(tensor.raw_data, np.uint8).copy()
        if tensor.data_type == onnx.TensorProto.INT64:
            raw.view(np.int64)[rng.integers(raw.size // 8)] = number
        else:
            raw[rng.integers(raw.size)] = rng.integers(256)
        tensor.raw_data = raw.tobytes()
    elif how == 7:
        dims = _one(rng, graph.input).type.tensor_type.shape.dim
        _one(rng, dims).dim_value = abs(number) if rng.random() < 0.8 else number
    elif how == 8:
        _one(rng, graph.input).type.tensor_type.elem_type = int(rng.integers(0, 24))
    elif how == 9:
        node.op_type = _one(rng, [case.values[0][0].op_type for case in test_onnx_nodes.CASES])
    elif how == 10:
        graph.node.append(node)
    else:
        node.attribute.append(_one(rng, _one(rng, graph.node).attribute))
