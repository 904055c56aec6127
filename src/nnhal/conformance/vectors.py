"""Reads test vectors (`nnapi-test-corpus`, format 1): a model, its inputs, the expected outputs."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.codes import Lifetime, OperandType, OperationType
from nnhal.base.errors import InvalidArgument
from nnhal.base.levels import VERSIONS, Level
from nnhal.base.operands import Array, ChannelQuant, dtype_of, is_tensor
from nnhal.base.records import Record
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.ops import OPS


class Expected(Record, frozen=True):
    """One expected output: values (None: zero elements of `shape`), whether it counts, and its scale and zero point."""

    data: Array | None
    shape: tuple[int, ...]
    type: OperandType
    ignored: bool
    scale: float = 0.0
    zero_point: int = 0


class Vector(Record, frozen=True):
    """One test vector: id, the raw description, and the data derived from it."""

    id: str
    test: dict[str, Any]
    blob: bytes

    @property
    def level(self) -> Level | None:
        """The lowest HAL version that the publisher declares, None if there is none."""
        text = self.test.get("minSupportedVersion")
        return None if text is None else VERSIONS.get(text) or Level.parse(text)

    @property
    def expect_failure(self) -> bool:
        """Whether building, compiling or executing must end in an error."""
        return bool(self.test.get("expectFailure"))

    @property
    def multinomial(self) -> float:
        """The tolerance of class frequencies if the output is random, else 0."""
        return float(self.test.get("expectedMultinomialDistributionTolerance") or 0)

    @property
    def half_precision(self) -> bool:
        """Whether float32 results are compared with float16's tolerance."""
        graphs = [self.test["main"], *self.test.get("referenced", ())]
        return bool(self.test.get("isRelaxed")) or any(
            o["type"] == "TENSOR_FLOAT16" for g in graphs for o in g["operands"]
        )

    @property
    def operations(self) -> set[str]:
        """The operation types of all subgraphs."""
        graphs = [self.test["main"], *self.test.get("referenced", ())]
        return {operation["type"] for g in graphs for operation in g["operations"]}

    @property
    def moves(self) -> bool:
        """Whether its operations only move elements, between quantised tensors of one scale and zero point."""
        graphs = [self.test["main"], *self.test.get("referenced", ())]
        kinds = {
            (o["scale"], o.get("zeroPoint", 0))
            for g in graphs
            for o in g["operands"]
            if is_tensor(_type(o, False)) and o.get("scale")
        }
        return len(kinds) <= 1 and all(name in OPS and OPS[name].moves for name in self.operations)

    def model(self, *, dynamic: bool = False, signed: bool = False) -> Model:
        """Return the model. dynamic: with unknown output dimensions; signed: with unsigned 8-bit tensors made signed."""
        builder = ModelBuilder(self.id)
        for graph in self.test.get("referenced", ()):
            sub = builder.subgraph()
            self._fill(sub, graph, False, signed)
            sub.finish_subgraph(graph["inputIndexes"], graph["outputIndexes"])
        main = self.test["main"]
        self._fill(builder, main, dynamic, signed)
        return builder.finish(main["inputIndexes"], main["outputIndexes"], relaxed=bool(self.test.get("isRelaxed")))

    def inputs(self, *, signed: bool = False) -> list[Array | None]:
        """Return the values of the main inputs in order; None for an omitted one."""
        main = self.test["main"]
        return [self._value(main["operands"][i], signed) for i in main["inputIndexes"]]

    def expected(self, *, signed: bool = False) -> list[Expected]:
        """Return the expected main outputs in order."""
        main = self.test["main"]
        result = []
        for i in main["outputIndexes"]:
            operand = main["operands"][i]
            data = self._value(operand, signed)
            kind = _type(operand, signed)
            shape, ignored = tuple(operand.get("dimensions", ())), bool(operand.get("isIgnored"))
            result.append(Expected(data, shape, kind, ignored, operand.get("scale", 0.0), _zero_point(operand, signed)))
        return result

    def _value(self, operand: dict[str, Any], signed: bool) -> Array | None:
        if "data" not in operand:
            return None
        offset, length = operand["data"]
        original = _type(operand, False)
        dtype = dtype_of(original)
        data = np.frombuffer(self.blob, dtype, length // dtype.itemsize, offset)
        if signed and original == OperandType.TENSOR_QUANT8_ASYMM:
            data = (data.astype(np.int16) - 128).astype(np.int8)
        return data.reshape(operand.get("dimensions", ()))

    def _fill(self, builder: ModelBuilder, graph: dict[str, Any], dynamic: bool, signed: bool) -> None:
        for operand in graph["operands"]:
            self._operand(builder, operand, dynamic, signed)
        for operation in graph["operations"]:
            code = OperationType[operation["type"]]
            builder.operation(code, operation.get("inputs", ()), operation["outputs"])

    def _operand(self, builder: ModelBuilder, operand: dict[str, Any], dynamic: bool, signed: bool) -> None:
        kind, lifetime = _type(operand, signed), operand["lifetime"]
        if lifetime == "NO_VALUE":
            builder.no_value(kind)
            return
        if lifetime == "SUBGRAPH":
            builder.subgraph_operand(kind, operand.get("subgraph", 0))
            return
        dims = operand.get("dimensions", ())
        scale, zero = operand.get("scale", 0.0), _zero_point(operand, signed)
        channel = None
        if quant := operand.get("channelQuant"):
            channel = ChannelQuant(tuple(float(np.float32(s)) for s in quant["scales"]), quant.get("channelDim", 0))
        name = operand.get("name", "")
        if lifetime in ("CONSTANT_COPY", "CONSTANT_REFERENCE"):
            value = self._value(operand, signed)
            if value is None:
                raise InvalidArgument(f"{self.id}: constant {name!r} has no data")
            builder.constant(kind, value, scale, zero, channel=channel, name=name)
        else:
            if dynamic and lifetime == "SUBGRAPH_OUTPUT" and is_tensor(kind):
                dims = [0] * len(dims)
            builder.operand(kind, dims, scale, zero, channel=channel, lifetime=Lifetime.TEMPORARY_VARIABLE, name=name)


def _type(operand: dict[str, Any], signed: bool) -> OperandType:
    kind = OperandType[operand["type"]]
    if signed and kind == OperandType.TENSOR_QUANT8_ASYMM:
        return OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    return kind


def _zero_point(operand: dict[str, Any], signed: bool) -> int:
    zero = int(operand.get("zeroPoint", 0))
    return zero - 128 if signed and _type(operand, False) == OperandType.TENSOR_QUANT8_ASYMM else zero


def index(path: Path) -> dict[str, dict[str, Any]]:
    """Return the corpus's index by test id: the primary operation, and flags for the further variants."""
    file = path / "index.json"
    if not file.is_file():
        raise InvalidArgument(f"vectors: {file} does not exist, must be in a folder of test vectors")
    return {entry["id"]: entry for entry in json.loads(file.read_text())["tests"]}


def members(path: Path) -> list[tuple[Path, str]]:
    """Return every (archive, specification) of a folder of zips, in the order of the zips."""
    archives = sorted(path.glob("*.zip"))
    if not archives:
        raise InvalidArgument(f"vectors: {path} holds no .zip files, must be a folder of test vectors")
    found = []
    for archive in archives:
        with zipfile.ZipFile(archive) as z:
            found += [(archive, name) for name in z.namelist() if name.endswith(".json")]
    return found


def read_member(archive: Path, name: str) -> Iterator[Vector]:
    """Yield the vectors of one specification."""
    with zipfile.ZipFile(archive) as z:
        document = json.loads(z.read(name))
        blob = z.read(document["blob"])
    for test in document["tests"]:
        yield Vector(f"{document['version']}/{document['spec']}/{test['name']}", test, blob)


def read(path: Path) -> Iterator[Vector]:
    """Yield all vectors of a folder."""
    for archive, name in members(path):
        yield from read_member(archive, name)
