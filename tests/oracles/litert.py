"""One LiteRT builtin kernel as an oracle: a flatbuffer model of one operation, run without delegates.

Written against the schema alone, apart from nnhal's LiteRT driver, which is itself checked against the reference device.
"""

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema  # noqa: TID251 - an oracle, not a driver
from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: TID251

from nnhal.base.operands import Array, Value, dtype_of
from tests.ops.run import B8, F16, F32, I32, Q8, Q8PC, Q8S, Q8SYMM

TYPES = {
    F32: schema.TensorType.FLOAT32,
    F16: schema.TensorType.FLOAT32,  # few kernels know float16: asked in float32
    I32: schema.TensorType.INT32,
    B8: schema.TensorType.BOOL,
    Q8: schema.TensorType.UINT8,
    Q8S: schema.TensorType.INT8,
    Q8SYMM: schema.TensorType.INT8,
    Q8PC: schema.TensorType.INT8,
}
STORED = {schema.TensorType.FLOAT32: np.float32, schema.TensorType.BOOL: np.bool_}


def ask(
    name: str, inputs: Sequence[Value | None], output: Value, *, const: Sequence[int] = (), **options: Any
) -> Array:
    """What LiteRT makes of `inputs`.

    name: of the builtin operator. output: its type and quantisation, the shape is the kernel's own. const: inputs that are
    constants of the model. options: fields of the operator's options, `table=...` names the options' class.
    """
    model = schema.ModelT()
    model.version, model.description = 3, b""
    model.buffers = [schema.BufferT()]
    graph = schema.SubGraphT()
    graph.tensors = []
    operator = schema.OperatorT()
    operator.inputs = [-1 if v is None else _tensor(model, graph, v, n in const) for n, v in enumerate(inputs)]
    operator.outputs = [_tensor(model, graph, output, False)]
    if table := options.pop("table", None):
        operator.builtinOptions = getattr(schema, f"{table}OptionsT")()
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, f"{table}Options")
        for key, setting in options.items():
            assert hasattr(operator.builtinOptions, key), key
            setattr(operator.builtinOptions, key, setting)
    fed = [n for n, v in enumerate(inputs) if v is not None and n not in const]
    graph.inputs, graph.outputs = [operator.inputs[n] for n in fed], operator.outputs
    graph.operators = [operator]
    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, name)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
    model.operatorCodes, model.subgraphs = [code], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    interpreter = Interpreter(
        model_content=bytes(builder.Output()),
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        num_threads=1,
    )
    interpreter.allocate_tensors()
    for n in fed:
        interpreter.set_tensor(operator.inputs[n], stored(inputs[n]))
    interpreter.invoke()
    return interpreter.get_tensor(operator.outputs[0]).astype(dtype_of(output.type), copy=False)


def stored(v: Value) -> Array:
    """The elements as LiteRT's tensor type holds them."""
    return np.ascontiguousarray(v.array, STORED.get(TYPES[v.type], v.array.dtype)).reshape(v.array.shape)


def _tensor(model: Any, graph: Any, v: Value, const: bool) -> int:
    tensor = schema.TensorT()
    tensor.shape, tensor.type, tensor.buffer = list(v.shape or ()), TYPES[v.type], 0
    tensor.name = f"t{len(graph.tensors)}".encode()
    if const:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(stored(v).tobytes(), np.uint8)
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
    if v.channel is not None or v.scale:
        q = schema.QuantizationParametersT()
        q.scale = list(v.channel.scales) if v.channel else [v.scale]
        q.zeroPoint = [0] * len(q.scale) if v.channel else [v.zero_point]
        q.quantizedDimension = v.channel.axis if v.channel else 0
        tensor.quantization = q
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1
