"""Changes of `.onnx` files by their structure: the result is a file again, whose messages have other values."""

import random
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

NUMBERS = (0, 1, -1, 2, 3, 7, 127, 128, 65536, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63))


def available() -> bool:
    """Whether files can be changed by their structure: with the package onnx."""
    return find_spec("onnx") is not None


def changed_file(rng: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Return a changed file, of `others` if this one cannot be read. others: readable files."""
    import onnx

    try:
        made = onnx.load_from_string(content)
    except Exception:
        made = onnx.load_from_string(rng.choice(others))
    for _ in range(rng.randint(1, 3)):
        try:
            _change(made.graph, rng, others)
        except (ValueError, TypeError, IndexError):
            continue
    return bytes(made.SerializeToString())


def _change(graph: Any, rng: random.Random, others: Sequence[bytes]) -> None:  # noqa: PLR0912 (one branch a change)
    """Change one thing in a graph, or in one within it."""
    import onnx

    node = rng.choice(graph.node)
    inner = [a.g for a in node.attribute if a.HasField("g")]
    if inner and rng.random() < 0.5:
        _change(rng.choice(inner), rng, others)
        return
    names = [name for each in graph.node for name in (*each.input, *each.output)] + ["", "nothing"]
    number = rng.choice(NUMBERS)
    how = rng.randrange(12)
    if how == 0:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif how == 1:
        node.output[rng.randrange(len(node.output))] = rng.choice(names)
    elif how == 2:
        attribute = rng.choice(node.attribute)
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = number
        else:
            attribute.i = number
    elif how == 3:
        rng.choice(node.attribute).type = int(rng.randrange(15))
    elif how == 4:
        tensor = rng.choice(graph.initializer)
        tensor.dims[rng.randrange(len(tensor.dims))] = number
    elif how == 5:
        rng.choice(graph.initializer).data_type = int(rng.randrange(24))
    elif how == 6:
        tensor = rng.choice(graph.initializer)
        raw = np.frombuffer(tensor.raw_data, np.uint8).copy()
        if tensor.data_type == onnx.TensorProto.INT64:
            raw.view(np.int64)[rng.randrange(raw.size // 8)] = number
        else:
            raw[rng.randrange(raw.size)] = rng.randrange(256)
        tensor.raw_data = raw.tobytes()
    elif how == 7:
        dims = rng.choice(graph.input).type.tensor_type.shape.dim
        rng.choice(dims).dim_value = abs(number) if rng.random() < 0.8 else number
    elif how == 8:
        rng.choice(graph.input).type.tensor_type.elem_type = int(rng.randrange(24))
    elif how == 9:
        node.op_type = rng.choice(onnx.load_from_string(rng.choice(others)).graph.node).op_type
    elif how == 10:
        graph.node.append(node)
    else:
        node.attribute.append(rng.choice(rng.choice(graph.node).attribute))
