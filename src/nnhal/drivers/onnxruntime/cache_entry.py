"""The cache entry of a compilation: the ONNX model, its relation to the NNAPI model, and other constants.

The other constants are those outside the model's pools. The entry holds the graph as it was written, not as the
engine's optimiser left it. The engine writes the latter only to a path, which a sandboxed process may not open.
"""

import json
from typing import Any

import numpy as np

from nnhal.base.errors import OperationFailed
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.drivers.kit.onnx import BuiltGraph
from nnhal.hal.cache.files import CacheContent


def save(built: BuiltGraph, files: CacheContent) -> None:
    """Save a built model; constants in the model's pools stay there."""
    (model,), (data,) = files.model, files.data
    numbers = {id(pool): n for n, pool in enumerate(files.pools)}
    arrays: dict[str, Any] = {}
    for name, array in built.arrays.items():
        home = Memory.of(array) if array.flags.c_contiguous else None
        number = numbers.get(id(home[0])) if home else None
        arrays[name] = array.dtype.str, array.shape, number, home[1] if home else 0
        if number is None:
            data[name] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    inputs = [(number, name, np.dtype(dtype).str, shape) for number, name, dtype, shape in built.inputs]
    outputs = [(name, np.dtype(dtype).str, shape) for name, dtype, shape in built.outputs]
    model["graph"] = built.model
    model["facts"] = json.dumps({"inputs": inputs, "outputs": outputs, "arrays": arrays}).encode()


def restore(files: CacheContent) -> BuiltGraph:
    """Return the saved model. OperationFailed if the model's pools have changed since."""
    (model,), (data,) = files.model, files.data
    facts: dict[str, Any] = json.loads(bytes(model["facts"]))
    arrays: dict[str, Array] = {}
    for name, (dtype, shape, number, offset) in facts["arrays"].items():
        if number is None:
            arrays[name] = np.frombuffer(bytes(data[name]), dtype).reshape(shape)
        elif number >= len(files.pools):
            raise OperationFailed(
                "onnxruntime: the model's memory has changed since the cache entry was written; delete the entry"
            )
        else:
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            arrays[name] = files.pools[number].view(offset, size, dtype, tuple(shape))
    inputs = tuple((number, name, np.dtype(dtype), tuple(shape)) for number, name, dtype, shape in facts["inputs"])
    outputs = tuple((name, np.dtype(dtype), tuple(shape)) for name, dtype, shape in facts["outputs"])
    return BuiltGraph(bytes(model["graph"]), inputs, outputs, arrays)
