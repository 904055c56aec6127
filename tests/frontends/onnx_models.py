"""Small `.onnx` files made with the onnx package, and what ONNX Runtime computes of them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import nnhal
from nnhal.base.operands import Array

OPSET = 17
ELEMENTS = {
    "f4": TensorProto.FLOAT, "f2": TensorProto.FLOAT16, "f8": TensorProto.DOUBLE, "i4": TensorProto.INT32,
    "i8": TensorProto.INT64, "u1": TensorProto.UINT8, "i1": TensorProto.INT8, "b1": TensorProto.BOOL,
}  # fmt: skip


def element(array: Array) -> int:
    """The number of an array's type in a file."""
    return int(ELEMENTS[array.dtype.str[1:]])


def value(name: str, array: Array, shape: Sequence[Any] | None = None) -> Any:
    """An input of an array's type and shape, or of another."""
    return helper.make_tensor_value_info(name, element(array), list(array.shape) if shape is None else shape)


def node(op: str, inputs: str, outputs: str = "y", domain: str = "", **attributes: Any) -> Any:
    """A node; names are words, `-` stands for one that is left out."""
    names = [["" if n == "-" else n for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, domain=domain, **attributes)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    outputs: str = "y",
    opset: int = OPSET,
    *,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    functions: Sequence[Any] = (),
    otherwise: int = TensorProto.FLOAT,
    infer: bool = True,
) -> Any:
    """A model of nodes. The types of outputs are inferred; otherwise: of those that cannot be."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [value(name, array, (shapes or {}).get(name)) for name, array in inputs.items()],
        [helper.make_tensor_value_info(name, 0, None) for name in outputs.split()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    sets = [helper.make_opsetid(*each) for each in (("", opset), ("com.microsoft", 1), ("ai.onnx.ml", 3))]
    sets += [helper.make_opsetid(f.domain, 1) for f in functions]
    made = helper.make_model(graph, opset_imports=sets, ir_version=9, functions=list(functions))
    with suppress(Exception):  # of operators that onnx does not know
        made = made if not infer else onnx.shape_inference.infer_shapes(made)
    for output in made.graph.output:
        if not output.type.tensor_type.elem_type:
            output.type.tensor_type.elem_type = otherwise
    return made


def by_onnxruntime(made: Any, inputs: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime computes, one operator at a time as it stands in the file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def optimised(made: Any, path: Path) -> Any:
    """The model that ONNX Runtime's optimiser writes to a file."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def quantised(made: Any, folder: Path, **how: Any) -> Any:
    """The model that ONNX Runtime's quantiser writes, with scales that are computed at execution."""
    onnx.save(made, folder / "plain.onnx")
    quantize_dynamic(folder / "plain.onnx", folder / "quantised.onnx", **how)
    return onnx.load(folder / "quantised.onnx")


def by_nnhal(made: Any, inputs: Mapping[str, Array], device: str = "reference", **how: Any) -> list[Array]:
    """What a device computes of the imported model."""
    imported = nnhal.load(made.SerializeToString(), **how)
    compiled = nnhal.compile(imported, devices=[device], fallback="forbid")
    results, _ = compiled.run(*inputs.values(), loop_timeout=15)  # the longest: the machine may be busy
    return [np.asarray(each) for each in (results if isinstance(results, tuple) else (results,))]


def check(
    made: Any,
    inputs: Mapping[str, Array],
    *,
    steps: int = 0,
    tolerance: float = 2e-5,
    becomes: Sequence[str] | None = None,
    **how: Any,
) -> list[Array]:
    """Both agree: types and shapes alike, floats within a tolerance of the greatest, integers within so many steps.

    becomes: the operations that the file becomes.
    """
    if becomes is not None:
        assert operations(made) == becomes
    expected, found = by_onnxruntime(made, inputs), by_nnhal(made, inputs, **how)
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    assert [each.shape for each in found] == [each.shape for each in expected]
    for mine, theirs in zip(found, expected, strict=True):
        if theirs.dtype.kind == "f":
            finite = np.isfinite(theirs)
            assert np.array_equal(np.isnan(mine), np.isnan(theirs))
            assert np.array_equal(mine[~finite], theirs[~finite], equal_nan=True)
            most = np.abs(theirs[finite]).max(initial=0)
            limit = tolerance * max(most, 1e-3) * (50 if theirs.dtype == np.float16 else 1)
            assert np.abs(mine[finite] - theirs[finite]).max(initial=0) <= limit
        elif theirs.dtype == np.bool_:
            assert np.array_equal(mine, theirs)
        else:
            assert np.abs(mine.astype(np.int64) - theirs.astype(np.int64)).max(initial=0) <= steps
    return found


def check_nodes(
    nodes: Any,
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    outputs: str = "y",
    opset: int = OPSET,
    **how: Any,
) -> list[Array]:
    """Both agree on a model of nodes, or of one: see `model` and `check`."""
    nodes = nodes if isinstance(nodes, Sequence) else [nodes]
    return check(model(nodes, inputs, constants, outputs, opset), inputs, **how)


def operations(made: Any, **how: Any) -> list[str]:
    """The operations that a file becomes."""
    from nnhal.base.codes import operation_name

    return [operation_name(o.type) for o in nnhal.load(made.SerializeToString(), **how).main.operations]


def saved(made: Any, folder: Path, name: str = "model.onnx", **how: Any) -> Path:
    """A file of the model."""
    path = folder / name
    onnx.save(made, str(path), **how)
    return path
