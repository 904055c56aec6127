"""What an `.onnx` file holds, as plain records; `reader` makes them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.base.records import Record
from nnhal.frontends.common.budget import Budget
from nnhal.frontends.common.terms import Blob

KINDS = {
    1: "FLOAT", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "STRING", 9: "BOOL",
    10: "FLOAT16", 11: "DOUBLE", 12: "UINT32", 13: "UINT64", 14: "COMPLEX64", 15: "COMPLEX128", 16: "BFLOAT16",
    17: "FLOAT8E4M3FN", 18: "FLOAT8E4M3FNUZ", 19: "FLOAT8E5M2", 20: "FLOAT8E5M2FNUZ", 21: "UINT4", 22: "INT4",
    23: "FLOAT4E2M1", 24: "FLOAT8E8M0", 25: "UINT2", 26: "INT2",
}  # fmt: skip
DTYPES = {
    "FLOAT": "<f4", "FLOAT16": "<f2", "DOUBLE": "<f8", "BOOL": "?", "INT8": "i1", "UINT8": "u1", "INT16": "<i2",
    "UINT16": "<u2", "INT32": "<i4", "UINT32": "<u4", "INT64": "<i8", "UINT64": "<u8",
}  # fmt: skip
OWN_DOMAINS = ("", "ai.onnx")

Dim = int | str | None  # a size, a name that several share, or nothing said


class OnnxTensor(NamedTuple):
    """A tensor whose value the file has. blob: where its bytes lie; values: what was no run of bytes; neither: of texts."""

    name: str
    kind: str
    shape: tuple[int, ...]
    blob: Blob | None = None
    values: Array | None = None


class OnnxEdge(NamedTuple):
    """An input, output or other value that the file says the type of. shape: None where even the rank is not said."""

    name: str
    kind: str
    shape: tuple[Dim, ...] | None


class OnnxNode(Record, frozen=True):
    """A node. place: its number in its graph, for messages. overload: which of the functions of that name. Attributes are
    numbers, texts, tensors, graphs, or tuples of one of these; a AttributeReference stands for an attribute of the function
    that the node is in.
    """

    place: str
    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    overload: str = ""

    @property
    def label(self) -> str:
        """What messages call it."""
        called = f"{self.domain}.{self.op}" if self.domain not in OWN_DOMAINS else self.op
        return f"{called} {self.place}" + (f" ({self.name})" if self.name else "")


class AttributeReference(Record, frozen=True):
    """An attribute whose value is that of an attribute of the function around it."""

    name: str


class OnnxFileGraph(Record, frozen=True):
    """A graph. Its nodes stand in an order in which each can be computed."""

    name: str
    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, OnnxTensor]
    inputs: tuple[OnnxEdge, ...]
    outputs: tuple[OnnxEdge, ...]
    known: Mapping[str, OnnxEdge]


class OnnxFunction(Record, frozen=True):
    """A function of the file's own, which stands for its nodes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    defaults: Mapping[str, Any]
    opsets: Mapping[str, int]


class OnnxFile(Record, frozen=True):
    """The whole file. memories: its own bytes, then those of the files that lie beside it, whose names are in `beside`."""

    label: str
    graph: OnnxFileGraph
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], OnnxFunction]
    producer: str
    properties: Mapping[str, str]
    memories: tuple[Memory, ...]
    beside: tuple[str, ...]
    budget: Budget

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return max((self.opsets.get(domain, 0) for domain in OWN_DOMAINS), default=0)

    def bytes_of(self, blob: Blob) -> Array:
        """Bytes of one of the memories."""
        return self.memories[blob.file].bytes()[blob.offset : blob.offset + blob.length]
