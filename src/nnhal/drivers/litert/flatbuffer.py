"""A TFLite model written in memory: tensors, operators, and constants after the flatbuffer proper.

A buffer's table holds the offset of its bytes from the start of the model (`Buffer.offset` and `size` of the TFLite
schema). If many constants lie in one pool they are not copied at all, see `content`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.memory import aligned
from nnhal.base.operands import Array, Shape
from nnhal.base.tflite_schema import OPERATORS, OPTIONS, TYPES, fields_of
from nnhal.drivers.litert.blocks import TO, Block, file, table, tables, text, vector
from nnhal.drivers.litert.content import Content, joined
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8PC, Q8S, Q8SYMM, Q16S

TENSOR_TYPES: dict[int, str] = {  # of operands
    F32: "FLOAT32",
    F16: "FLOAT32",
    I32: "INT32",
    B8: "BOOL",
    Q8: "UINT8",
    Q8S: "INT8",
    Q8SYMM: "INT8",
    Q8PC: "INT8",
    Q16S: "INT16",
    OperandType.FLOAT32: "FLOAT32",
    OperandType.FLOAT16: "FLOAT32",
    OperandType.INT32: "INT32",
    OperandType.BOOL: "BOOL",
}
IDENTIFIER = b"TFL3"
VERSION = 3
_BUFFER = "1Q 2Q"  # the offset of a constant from the start of the model, and its length
_ONE = table(_BUFFER, 1 << 63, 0)
_OFFSET = _ONE.data.index((1 << 63).to_bytes(8, "little"))  # in a buffer's table
_TYPES, _OPERATORS = ({name: number for number, name in enumerate(names)} for names in (TYPES, OPERATORS))
_OPTIONS = {name.removesuffix("Options"): number for number, name in enumerate(OPTIONS)}


class FlatbufferWriter:
    """One model with one subgraph, written tensor by tensor and operator by operator."""

    def __init__(self) -> None:
        self._tensors: list[Block] = []
        self._operators: list[Block] = []
        self._codes: dict[str, int] = {}
        self._data: list[Array] = []

    def tensor(
        self,
        kind: str,
        shape: Shape | None,
        scales: Sequence[float] = (),
        zero_point: int = 0,
        axis: int = 0,
        *,
        data: Array | None = None,
        variable: bool = False,
        name: str = "",
    ) -> int:
        """Add a tensor; return its index.

        kind: a name of TensorType. scales: one, or one for each entry of dimension `axis`; empty if not quantised.
        data: its bytes if it is constant; they are read when the model is finished, and not kept.
        """
        fields, values = "0* 1b 5?", [vector("i", [d or 0 for d in shape or ()]), _TYPES[kind], variable]
        if data is not None:
            self._data.append(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
            fields += " 2i"
            values.append(len(self._data))  # buffer 0 is the empty one
        if name:
            fields += " 3*"
            values.append(text(name))
        if len(scales):
            fields += " 4*"
            zeros = [zero_point] * len(scales)
            values.append(table("2* 3* 6i", vector("f", scales), vector("q", zeros), axis))
        self._tensors.append(table(fields, *values))
        return len(self._tensors) - 1

    def operator(
        self, kind: str, inputs: Sequence[int], outputs: Sequence[int], options: str = "", **fields: Any
    ) -> None:
        """Add an operator. kind: a name of BuiltinOperator; an input of -1 is omitted.

        options: the name of its options table without `Options`; fields: the values in it, by the schema's names.
        """
        code = self._codes.setdefault(kind, len(self._codes))
        written = code, vector("i", inputs), vector("i", outputs)
        if options:
            given = tuple([(name, _hashable(value)) for name, value in fields.items()])
            made = table("0i 1* 2* 3B 4*", *written, _OPTIONS[options], _options(options, given))
        else:
            made = table("0i 1* 2*", *written)
        self._operators.append(made)

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> Content:
        """Return the whole model. Constants follow the flatbuffer; their offsets are filled in when it is written."""
        ends = vector("i", inputs), vector("i", outputs)
        graph = table("0* 1* 2* 3*", tables(self._tensors), *ends, tables(self._operators))
        codes = tables([self._code(kind) for kind in self._codes])
        buffers = tables([table(""), *[table(_BUFFER, 0, data.nbytes) for data in self._data]])
        head = bytearray(file(table("0i 1* 2* 4*", VERSION, codes, tables([graph]), buffers), IDENTIFIER))
        size, count = len(_ONE.data), len(self._data)
        first = len(head) - size * count + _OFFSET  # a vector's tables follow it, and this vector is the last
        places = [first + size * number for number in range(count)]
        content, offsets = joined(aligned(len(head)), self._data, places)
        for place, offset in zip(places, offsets, strict=True):
            head[place : place + 8] = offset.to_bytes(8, "little")
        content.write(0, bytes(head))
        return content

    def _code(self, kind: str) -> Block:
        number = _OPERATORS[kind]
        return table("0b 2i 3i", min(number, 127), 1, number)


@lru_cache(maxsize=1024)
def _options(name: str, given: tuple[tuple[str, Any], ...]) -> Block:
    """Make a table of options, by the schema's names of its fields."""
    known, fields, values = fields_of(name), list[str](), list[Any]()
    for field, value in given:
        place = known.get(field[:1].upper() + field[1:])
        if place is None:
            raise AttributeError(f"{name}Options has no field {field}")
        number, form, default = place
        if value != default:
            fields.append(f"{number}{TO if form.startswith('[') else form}")
            values.append(vector(form[1:], value) if form.startswith("[") else value)
    return table(" ".join(fields), *values)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple | np.ndarray) else value
