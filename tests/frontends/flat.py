"""Writes small `.tflite` files for tests with the published schema's object interface, and runs them on LiteRT."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema  # noqa: TID251
from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: TID251

KINDS = {
    "f4": "FLOAT32",
    "f2": "FLOAT16",
    "f8": "FLOAT64",
    "i1": "INT8",
    "i2": "INT16",
    "i4": "INT32",
    "i8": "INT64",
    "u1": "UINT8",
    "b1": "BOOL",
    "c8": "COMPLEX64",
    "int4": "INT4",
    "int2": "INT2",
    "resource": "RESOURCE",
    "string": "STRING",
}


def packed(kind: str, numbers: Any) -> Any:
    """The bytes of small integers; the first number of a byte is in its lowest bits."""
    bits = int(kind.removeprefix("int"))
    rows = np.asarray(numbers).astype(np.uint8).reshape(-1) & ((1 << bits) - 1)
    rows = np.pad(rows, (0, -len(rows) % (8 // bits))).reshape(-1, 8 // bits)
    return (rows << np.arange(0, 8, bits)).sum(1).astype(np.uint8)


def tensor(*given: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `Writer.tensor`, for a tensor that `Writer.only` makes."""
    return given, named


class Writer:
    """A file; tensors and operators go to its latest subgraph, `bytes` packs it."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version, self.model.subgraphs, self.model.operatorCodes = 3, [], []
        self.model.buffers = [schema.BufferT()]
        self.subgraph()

    def subgraph(self) -> int:
        """Start another subgraph; returns its number."""
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.model.subgraphs.append(self.graph)
        return len(self.model.subgraphs) - 1

    def ends(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """State the inputs and outputs of the latest subgraph."""
        self.graph.inputs, self.graph.outputs = list(inputs), list(outputs)

    def tensor(
        self, shape: Sequence[int], kind: str = "f4", data: Any = None, scale: Any = None, zero: Any = 0, **more: Any
    ) -> int:
        """A tensor; constant where `data` is given. scale: a number, or a list for per-channel along `axis`."""
        tensor = schema.TensorT()
        tensor.name, tensor.shape = f"t{len(self.graph.tensors)}", list(shape)
        tensor.type, tensor.buffer = getattr(schema.TensorType, KINDS[kind]), 0
        if data is not None:
            self.model.buffers.append(schema.BufferT())
            small = kind.startswith("int")
            array = packed(kind, data) if small else np.asarray(data, np.dtype(kind)).reshape(-1).view(np.uint8)
            self.model.buffers[-1].data = array
            tensor.buffer = len(self.model.buffers) - 1
        if scale is not None:
            quant = tensor.quantization = schema.QuantizationParametersT()
            quant.scale = np.atleast_1d(np.asarray(scale, np.float32))
            quant.zeroPoint = np.broadcast_to(np.asarray(zero, np.int64), quant.scale.shape).copy()
            quant.quantizedDimension = more.pop("axis", 0)
        for name, value in more.items():
            setattr(tensor, name, value)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def operator(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], options: str = "", **fields: Any
    ) -> None:
        """An operator; `fields` are those of its options. A name that is no builtin is a custom operation."""
        code, number = schema.OperatorCodeT(), getattr(schema.BuiltinOperator, name, None)
        code.builtinCode = schema.BuiltinOperator.CUSTOM if number is None else number
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.customCode = name if number is None else None
        code.version = fields.pop("version", 1)
        self.model.operatorCodes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        operator.inputs, operator.outputs = list(inputs), list(outputs)
        operator.customOptions = fields.pop("custom", None)
        if options:
            table, second = (
                getattr(schema, f"{options}OptionsT")(),
                hasattr(schema.BuiltinOptions2, f"{options}Options"),
            )
            union = "BuiltinOptions2" if second else "BuiltinOptions"
            setattr(operator, f"b{union[1:]}Type", getattr(getattr(schema, union), f"{options}Options"))
            setattr(operator, f"b{union[1:]}", table)
            for field, value in fields.items():
                assert hasattr(table, field), field
                setattr(table, field, value)
        self.graph.operators.append(operator)

    def only(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], options: str = "", **fields: Any) -> None:
        """Make one operator the latest subgraph: of each `tensor`, or None; constants are no inputs of the subgraph."""
        given = [-1 if each is None else self.tensor(*each[0], **each[1]) for each in inputs]
        results = [self.tensor(*each[0], **each[1]) for each in outputs]
        self.operator(name, given, results, options, **fields)
        self.ends([x for x in given if x >= 0 and not self.graph.tensors[x].buffer], results)

    def variable(self, name: str = "v") -> int:
        """The handle of a variable, with the empty container that converters write."""
        handle = self.tensor([], "resource")
        self.operator("VAR_HANDLE", [], [handle], "VarHandle", container="", sharedName=name)
        return handle

    def read(self, handle: int, *given: Any, **named: Any) -> int:
        """What lies in a variable, in a tensor of these arguments."""
        value = self.tensor(*given, **named)
        self.operator("READ_VARIABLE", [handle], [value], "ReadVariable")
        return value

    def assign(self, handle: int, value: int) -> None:
        """Put a tensor into a variable."""
        self.operator("ASSIGN_VARIABLE", [handle, value], [], "AssignVariable")

    def signature(self, key: str, inputs: Mapping[str, int], outputs: Mapping[str, int], graph: int = 0) -> None:
        """An entry point."""
        found = schema.SignatureDefT()
        found.signatureKey, found.subgraphIndex = key, graph
        found.inputs, found.outputs = ([self._map(n, t) for n, t in names.items()] for names in (inputs, outputs))
        self.model.signatureDefs = [*(self.model.signatureDefs or []), found]

    @staticmethod
    def _map(name: str, tensor: int) -> Any:
        entry = schema.TensorMapT()
        entry.name, entry.tensorIndex = name, tensor
        return entry

    def file(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """The file, whose latest subgraph has these inputs and outputs."""
        self.ends(inputs, outputs)
        return self.bytes()

    def bytes(self, change: Callable[[Any], object] = lambda model: None) -> bytes:
        """The file; `change` may spoil the model before it is packed."""
        change(self.model)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def one_operator(name: str, inputs: Sequence[Any], outputs: Sequence[Any], options: str = "", **fields: Any) -> bytes:
    """A file of one operator: `one_operator("ABS", [tensor([2])], [tensor([2])])`. See `Writer.only`."""
    w = Writer()
    w.only(name, inputs, outputs, options, **fields)
    return w.bytes()


def litert(content: bytes, *inputs: Any, calls: int = 1) -> list[Any]:
    """What LiteRT's own kernels make of a file; with several calls its outputs after the last."""
    engine = Interpreter(
        model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )
    for detail, x in zip(engine.get_input_details(), inputs, strict=True):
        if tuple(detail["shape"]) != np.shape(x):
            engine.resize_tensor_input(detail["index"], np.shape(x))
    engine.allocate_tensors()
    for _ in range(calls):
        for detail, x in zip(engine.get_input_details(), inputs, strict=True):
            engine.set_tensor(detail["index"], x)
        engine.invoke()
    return [engine.get_tensor(detail["index"]).copy() for detail in engine.get_output_details()]
