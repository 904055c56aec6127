"""The contents of a `.tflite` file as plain records; `reader` makes them."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from nnhal.base.operands import Array
from nnhal.base.records import Record
from nnhal.frontends.common.budget import Budget
from nnhal.frontends.common.terms import Blob, in_float32
from nnhal.frontends.tflite.packed import BlockQuant
from nnhal.frontends.tflite.sparse import Sparsity

OMITTED = -1  # the index of an omitted input
DTYPES = {
    "FLOAT32": "<f4", "FLOAT16": "<f2", "FLOAT64": "<f8", "BOOL": "?", "INT8": "i1", "UINT8": "u1", "INT16": "<i2",
    "UINT16": "<u2", "INT32": "<i4", "UINT32": "<u4", "INT64": "<i8", "UINT64": "<u8",
}  # fmt: skip


class TensorQuant(NamedTuple):
    """The quantisation of a tensor: one scale and zero point, or one for each index along dimension `axis`."""

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int

    def real(self, stored: Array) -> Array:
        """Return the real values of stored ones, as float32."""
        sizes = [1] * stored.ndim
        if len(self.scales) > 1:  # otherwise the axis has no meaning
            sizes[self.axis] = -1
        scales, zeros = (np.reshape(n, sizes) for n in (self.scales, self.zero_points))
        return in_float32(scales * (stored.astype(np.float64) - zeros))


class FileTensor(NamedTuple):
    """A tensor of the file. open: the dimensions that the file leaves to the caller (-1 in its signature).

    values: of an input that the caller made a constant. stored: its type in the file, if `sixteen` or `packed` changed
    it. blocks: the scales of a constant with several for each channel.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    open: frozenset[int] = frozenset()
    quant: TensorQuant | None = None
    variable: bool = False
    blob: Blob | None = None
    sparsity: Sparsity | None = None
    values: Array | None = None
    stored: str = ""
    blocks: BlockQuant | None = None

    @property
    def step(self) -> float:
        """The scale of 16-bit integers whose real values replace them; 0 for other tensors."""
        return self.quant.scales[0] if self.stored == "INT16" and self.quant else 0.0


class Options(Protocol):
    """The options of one operator, read on demand. kind: their table, such as Conv2DOptions, or "NONE"."""

    kind: str

    def read(self, kind: str) -> Any:
        """Return the fields of `kind`, such as Conv2DOptions, by their names: `options.read("PackOptions")("Axis")`."""


class Operator(Record, frozen=True):
    """An operator of the file. name: from the schema, or `custom operation X`; builtin: whether it is in the schema.

    custom: the options of a custom operation. intermediates: tensors that only hold quantisations of its internal
    values.
    """

    index: int
    name: str
    builtin: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Options
    custom: bytes = b""
    intermediates: tuple[int, ...] = ()


class FileSubgraph(Record, frozen=True):
    """A subgraph of the file."""

    index: int
    tensors: tuple[FileTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class SignatureDef(NamedTuple):
    """An entry point: a subgraph, and names for its inputs and outputs by tensor."""

    key: str
    subgraph: int
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


class File(NamedTuple):
    """The complete file. label: for messages. data: its bytes. budget: the remaining cost of its import.

    metadata: the file's description of itself, a flatbuffer.
    """

    label: str
    data: Array
    subgraphs: tuple[FileSubgraph, ...]
    signatures: tuple[SignatureDef, ...]
    budget: Budget
    metadata: Blob | None = None

    def bytes_of(self, blob: Blob) -> Array:
        """Return bytes of the file, in place."""
        return self.data[blob.offset : blob.offset + blob.length]
