"""A TFLite model made in memory: tensors, operators, and constants that lie behind the flatbuffer proper.

Constants lie outside: a buffer states where its bytes lie from the start of the model
(`Buffer.offset` and `size` of the TFLite schema). Where many lie in one pool they are not copied at all, see `content`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from nnhal.base.memory import aligned
from nnhal.base.operands import Array, Shape
from nnhal.base.tflite_schema import OPERATORS, OPTIONS, TYPES, fields_of
from nnhal.drivers.litert.blocks import TO, Block, Field, file, integers, numbers, table, tables, text
from nnhal.drivers.litert.content import Content, joined

IDENTIFIER = b"TFL3"
VERSION = 3
MARK = 0x5A96_C33C_A500_0000  # what nothing in a flatbuffer is but what is put there to be found
_TYPES, _OPERATORS = ({name: number for number, name in enumerate(names)} for names in (TYPES, OPERATORS))
_OPTIONS = {name.removesuffix("Options"): number for number, name in enumerate(OPTIONS)}


class FlatbufferWriter:
    """One model with one subgraph, written tensor by tensor and operator by operator."""

    def __init__(self) -> None:
        self._tensors: list[list[Field]] = []
        self._operators: list[list[Field]] = []
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
        """Add a tensor; returns its index.

        kind: a name of TensorType. scales: one, or one for each entry of dimension `axis`; none where not quantised.
        data: its bytes where it is constant; they are read when the model is finished, and not kept.
        """
        fields: list[Field] = [
            (0, TO, integers([d or 0 for d in shape or ()])),
            (1, "b", _TYPES[kind]),
            (5, "?", variable),
        ]
        if data is not None:
            self._data.append(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
            fields.append((2, "i", len(self._data)))  # buffer 0 is the empty one
        if name:
            fields.append((3, TO, text(name)))
        if len(scales):
            quant = numbers(np.asarray(scales, np.float32)), numbers(np.full(len(scales), zero_point, np.int64))
            fields.append((4, TO, table((2, TO, quant[0]), (3, TO, quant[1]), (6, "i", axis))))
        self._tensors.append(fields)
        return len(self._tensors) - 1

    def operator(
        self, kind: str, inputs: Sequence[int], outputs: Sequence[int], options: str = "", **fields: Any
    ) -> None:
        """Add an operator. kind: a name of BuiltinOperator; an input of -1 is omitted.

        options: the name of its options table without `Options`; fields: what is set in it, by the schema's names.
        """
        written: list[Field] = [
            (0, "i", self._codes.setdefault(kind, len(self._codes))),
            (1, TO, integers(inputs)),
            (2, TO, integers(outputs)),
        ]
        if options:
            written.append((3, "B", _OPTIONS[options]))
            written.append((4, TO, _options(options, tuple((k, _hashable(v)) for k, v in fields.items()))))
        self._operators.append(written)

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> Content:
        """The whole model. Constants lie behind the flatbuffer; where they begin has to be known to write it."""
        tensors, operators = (tables([table(*fields) for fields in made]) for made in (self._tensors, self._operators))
        ends = map(integers, (inputs, outputs))
        graph = table((0, TO, tensors), (1, TO, next(ends)), (2, TO, next(ends)), (3, TO, operators))
        codes = tables([self._code(kind) for kind in self._codes])

        def head(offsets: Sequence[int]) -> bytes:
            sizes = [data.nbytes for data in self._data]
            places = [table((1, "Q", at), (2, "Q", size)) for at, size in zip(offsets, sizes, strict=True)]
            buffers = tables([table(), *places])
            return file(
                table((0, "i", VERSION), (1, TO, codes), (2, TO, tables([graph])), (4, TO, buffers)), IDENTIFIER
            )

        marks = [MARK + number for number in range(len(self._data))]
        marked = head(marks)
        places = [marked.index(mark.to_bytes(8, "little")) for mark in marks]
        content, offsets = joined(aligned(len(marked)), self._data, places)
        content.write(0, head(offsets))
        return content

    def _code(self, kind: str) -> Block:
        number = _OPERATORS[kind]
        return table((0, "b", min(number, 127)), (2, "i", 1), (3, "i", number))


@lru_cache(maxsize=1024)
def _options(name: str, given: tuple[tuple[str, Any], ...]) -> Block:
    """A table of options, by the schema's names of its fields."""
    known, written = fields_of(name), list[Field]()
    for field, value in given:
        place = known.get(field[:1].upper() + field[1:])
        if place is None:
            raise AttributeError(f"{name}Options has no field {field}")
        number, form, default = place
        if form.startswith("["):
            written.append((number, TO, numbers(np.array(value, form[1:]))))
        elif value != default:
            written.append((number, form, value))
    return table(*written)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence | np.ndarray) else value
