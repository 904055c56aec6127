"""Tests as the format of test vectors has them: JSON that points into one blob of bytes, and the entries of the index."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.errors import InvalidArgument
from nnhal.base.levels import VERSIONS
from nnhal.base.operands import Array, dtype_of
from nnhal.conformance.specs.expansion import GeneratedTest, at_line
from nnhal.conformance.specs.graph import OperandKind, SpecModel, SpecOperand

FORMAT = "nnapi-test-corpus/1"
_CONSTANT = {"CONSTANT_COPY", "CONSTANT_REFERENCE"}
_CONTROL_FLOW = {"IF", "WHILE"}
_UNCOUPLED = {"HASHTABLE_LOOKUP", "LSH_PROJECTION", "PAD_V2", "CAST", "QUANTIZED_16BIT_LSTM"}


class DataBlob:
    """Bytes of many tensors; equal contents lie in one place, places are multiples of 8."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._places: dict[bytes, int] = {}

    def place(self, content: bytes) -> list[int]:
        """Offset and length of the content, which is added where it is new."""
        if content not in self._places:
            self._bytes += bytes(-len(self._bytes) % 8)
            self._places[content] = len(self._bytes)
            self._bytes += content
        return [self._places[content], len(content)]

    def content(self) -> bytes:
        """All bytes."""
        return bytes(self._bytes)


def document(version: str, specification: str, tests: Iterable[GeneratedTest]) -> tuple[dict[str, Any], bytes]:
    """The tests of one specification, and the blob that they point into."""
    blob = DataBlob()
    described = []
    for test in tests:
        try:
            described.append(_test(test, blob))
        except Exception as error:  # elements may be anything
            raise at_line(test.example.line, error) from None
    name = f"{specification}.bin"
    return {
        "format": FORMAT,
        "version": version,
        "spec": specification,
        "blob": name,
        "tests": described,
    }, blob.content()


def _test(test: GeneratedTest, blob: DataBlob) -> dict[str, Any]:
    model, example = test.model, test.example
    referenced = model.referenced()
    optional = {
        "minSupportedVersion": model.version,
        "isRelaxed": model.isRelaxed,
        "expectFailure": example.expectFailure,
        "expectedMultinomialDistributionTolerance": example.expectedMultinomialDistributionTolerance,
        "variations": [[variation.kind, variation.name] for variation in test.variations],
    }
    graphs = [_graph(each, referenced, blob) for each in (model, *referenced)]
    return {
        "name": test.name,
        **{key: value for key, value in optional.items() if value},
        "main": graphs[0],
        **({"referenced": graphs[1:]} if referenced else {}),
    }


def _graph(model: SpecModel, referenced: Sequence[SpecModel], blob: DataBlob) -> dict[str, Any]:
    index = {name: n for n, name in enumerate(model.named)}
    return {
        "operands": [_operand(operand, referenced, blob) for operand in model.operands],
        "operations": [
            {
                "type": operation.type,
                "inputs": [index[name] for name in operation.inputs],
                "outputs": [index[name] for name in operation.outputs],
            }
            for operation in model.sorted_operations()
        ],
        "inputIndexes": [index[operand.name] for operand in model.GetInputs()],
        "outputIndexes": [index[operand.name] for operand in model.GetOutputs()],
    }


def _operand(operand: SpecOperand, referenced: Sequence[SpecModel], blob: DataBlob) -> dict[str, Any]:
    type, channels = operand.type, operand.type.extraParams
    stated: dict[str, Any] = {
        "name": operand.name,
        "type": type.type,
        "dimensions": list(type.dimensions),
        "lifetime": operand.lifetime,
    }
    if type.scale:
        stated["scale"] = type.scale
    if type.zeroPoint:
        stated["zeroPoint"] = type.zeroPoint
    if channels and not channels.hide:
        stated["channelQuant"] = {"channelDim": channels.channelDim, "scales": [float(s) for s in channels.scales]}
    if operand.kind is OperandKind.IGNORED:
        stated["isIgnored"] = True
    if operand.kind is OperandKind.SUBGRAPH:
        model = (operand.value or [None])[0]
        stated["subgraph"] = next(n for n, each in enumerate(referenced) if each is model)
    elif operand.value and (type.GetNumberOfElements() or not operand.is_output):  # Android 10 writes one for none
        stated["data"] = blob.place(elements(operand).tobytes())
    return stated


def elements(operand: SpecOperand) -> Array:
    """The elements as NNAPI has them. InvalidArgument where there are too many, too few, or one does not fit the type."""
    type, value = operand.type, operand.value or ()
    if len(value) != type.GetNumberOfElements():
        raise InvalidArgument(
            f"{operand.name} has {len(value)} elements, must have {type.GetNumberOfElements()} "
            f"for dimensions {list(type.dimensions)}"
        )
    dtype = dtype_of(OperandType[type.type])
    if type.IsFloat():
        with np.errstate(over="ignore"):
            return np.array([float(each) for each in value], np.float32).astype(dtype)
    if type.IsBool():
        return np.array([bool(each) for each in value]).astype(np.uint8)
    numbers, limits = [int(each) for each in value], np.iinfo(dtype)
    if wrong := [each for each in numbers if not limits.min <= each <= limits.max]:
        raise InvalidArgument(f"{operand.name} has {wrong[0]}, must be from {limits.min} to {limits.max}: {type.type}")
    return np.array(numbers, dtype)


def entry(version: str, specification: str, test: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of one test in the index."""
    main, referenced = test["main"], test.get("referenced", ())
    operations = {operation["type"] for operation in main["operations"]}
    inner = {operation["type"] for graph in referenced for operation in graph["operations"]}
    types = {operand["type"] for graph in (main, *referenced) for operand in graph["operands"]}
    level = test.get("minSupportedVersion")
    under_test = [o for o in main["operations"] if not _is_placeholder(o, main)]
    stated = {
        "id": f"{version}/{specification}/{test['name']}",
        "operations": sorted(operations),
        "nOperations": len(main["operations"]),
        "operandTypes": sorted(types),
        "minSupportedVersion": level,
        "featureLevel": VERSIONS.get(level or ""),
        "flags": [flag for flag, holds in _flags(test, operations | inner).items() if holds],
    }
    if inner:
        stated["referencedOperations"] = sorted(inner)
    if len(under_test) == 1:
        stated["primary"] = under_test[0]["type"]
    return stated


def _flags(test: Mapping[str, Any], operations: set[str]) -> dict[str, bool]:
    main = test["main"]
    graphs = [main, *test.get("referenced", ())]
    operands = [operand for graph in graphs for operand in graph["operands"]]
    inputs = [main["operands"][i] for i in main["inputIndexes"]]
    outputs = [main["operands"][i] for i in main["outputIndexes"]]
    runs = not test.get("expectFailure")
    return {
        "relaxed": bool(test.get("isRelaxed")),
        "expectFailure": not runs,
        "multinomial": bool(test.get("expectedMultinomialDistributionTolerance")),
        "controlFlow": bool(operations & _CONTROL_FLOW),
        "float16": any(operand["type"] == "TENSOR_FLOAT16" for operand in operands),
        "perChannel": any("channelQuant" in operand for operand in operands),
        "ignoredOutput": any(operand.get("isIgnored") for operand in outputs),
        "zeroSizedOutput": any("data" not in operand for operand in outputs) and runs,
        "omittedInput": any("data" not in operand for operand in inputs),
        "noValue": any(operand["lifetime"] == "NO_VALUE" for operand in operands),
        "unspecifiedDims": any(
            _is_unspecified(operand, graph is main) for graph in graphs for operand in graph["operands"]
        ),
        "dynamicOutputShape": runs and not operations & {"RANK", *_CONTROL_FLOW},
        "quantCoupling": runs and len(main["operations"]) == 1 and len(graphs) == 1 and _is_coupled(main),
        "deviceMemory": runs and all("data" in operand for operand in outputs),
    }


def _is_unspecified(operand: Mapping[str, Any], of_main: bool) -> bool:
    """Whether the operand's shape is known only after an execution."""
    known = operand["lifetime"] in {"NO_VALUE", "SUBGRAPH", *_CONSTANT} or (
        of_main and operand["lifetime"] == "SUBGRAPH_INPUT"
    )
    tensor = operand["type"].startswith("TENSOR_")
    return tensor and not known and (not operand["dimensions"] or 0 in operand["dimensions"])


def _is_placeholder(operation: Mapping[str, Any], graph: Mapping[str, Any]) -> bool:
    return operation["type"] == "ADD" and graph["operands"][operation["inputs"][1]]["name"].startswith("placeholder")


def _is_coupled(graph: Mapping[str, Any]) -> bool:
    return any(
        graph["operands"][i]["type"] == "TENSOR_QUANT8_ASYMM"
        for operation in graph["operations"]
        if operation["type"] not in _UNCOUPLED
        for i in (*operation["inputs"], *operation["outputs"])
    )
