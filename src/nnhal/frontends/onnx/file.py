"""The contents of an `.onnx` file as plain records; `reader` makes them."""

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
SMALL = {"INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2}  # types with several values to a byte: their bits
OWN_DOMAINS = ("", "ai.onnx")

Dim = int | str | None  # a size, a name that several share, or unspecified


class OnnxTensor(NamedTuple):
    """A tensor with a value in the file. blob: its bytes; values: if they are not contiguous; texts: if it has those.

    packed: the type in the file of numbers of INT8 or UINT8 that share bytes, or "".
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    blob: Blob | None = None
    values: Array | None = None
    texts: tuple[str, ...] = ()
    packed: str = ""


class OnnxEdge(NamedTuple):
    """An input, output or other value with a type in the file. shape: None if even the rank is unspecified."""

    name: str
    kind: str
    shape: tuple[Dim, ...] | None


class OnnxNode(Record, frozen=True):
    """A node. place: its number in its graph, for messages. overload: selects one of the functions with that name.

    Attributes are numbers, strings, tensors, graphs, or tuples of one of these. An AttributeReference represents an
    attribute of the function that contains the node.
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
        """The node's name in messages."""
        called = f"{self.domain}.{self.op}" if self.domain not in OWN_DOMAINS else self.op
        return f"{called} {self.place}" + (f" ({self.name})" if self.name else "")


class AttributeReference(Record, frozen=True):
    """An attribute whose value is that of an attribute of the enclosing function."""

    name: str


class OnnxFileGraph(Record, frozen=True):
    """A graph. Its nodes are in an order in which each can be computed."""

    name: str
    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, OnnxTensor]
    inputs: tuple[OnnxEdge, ...]
    outputs: tuple[OnnxEdge, ...]
    known: Mapping[str, OnnxEdge]


class OnnxFunction(Record, frozen=True):
    """A function that the file defines, which represents its nodes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    defaults: Mapping[str, Any]
    opsets: Mapping[str, int]


class OnnxFile(Record, frozen=True):
    """The complete file. memories: the file's bytes, then those of the external files in `beside`."""

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
        """The version of ONNX's standard operators."""
        return max((self.opsets.get(domain, 0) for domain in OWN_DOMAINS), default=0)

    def bytes_of(self, blob: Blob) -> Array:
        """Return bytes of one of the memories."""
        return self.memories[blob.file].bytes()[blob.offset : blob.offset + blob.length]
