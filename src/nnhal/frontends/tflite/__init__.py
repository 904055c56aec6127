"""The TFLite importer: a `.tflite` file as a model whose weights stay in the mapped file."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from nnhal.base.errors import BadFile, InvalidArgument
from nnhal.base.memory import Memory
from nnhal.frontends.tflite import arithmetic, control, layers, movement, recurrent, state
from nnhal.frontends.tflite.build import Importer
from nnhal.frontends.tflite.file import File, Graph, Reader
from nnhal.frontends.tflite.table import TABLE
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model

ENTRIES = arithmetic, control, layers, movement, recurrent, state  # importing them fills the table
Source = str | os.PathLike[str] | bytes
Shapes = Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | None


def load(source: Source, *, signature: str | None = None, shapes: Shapes = None) -> Model:
    """Read a file, or its bytes, as a model.

    signature: which of several entry points; the first by default. shapes: input shapes by name or in order, 0 or -1 for a
    dimension left open; the file's own by default. Raises BadFile naming the place of the damage, or UnsupportedModel
    listing everything that NNAPI cannot express.
    """
    file = _read(source)
    number, names = _entry_point(file, signature)
    graph = file.graphs[number]
    builder = ModelBuilder(os.path.splitext(os.path.basename(file.label))[0])
    importer = Importer(file, graph, builder, builder.add_pool(file.memory), number)
    wanted = _shapes(graph, names, shapes)
    importer.reshaped = any(wanted[i] != graph.tensors[i].shape for i in wanted)
    inputs = [importer.declare(i, wanted[i] or (1,), names.get(i, "")) for i in graph.inputs]
    importer.convert(TABLE)
    outputs = _outputs(importer, graph, inputs)
    ins, outs, states = importer.states(len(inputs), outputs)
    for operand, index in zip(outputs, graph.outputs, strict=True):
        builder.rename(operand, names.get(index) or graph.tensors[index].name)
    return builder.finish([*inputs, *ins], [*outputs, *outs], states=states)


def signatures(source: Source) -> list[str]:
    """The keys of a file's entry points."""
    return [s.key for s in _read(source).signatures]


def _read(source: Source) -> File:
    if isinstance(source, bytes):
        if not source:
            raise BadFile("model: has 0 bytes, must be a .tflite file")
        return Reader("model", Memory.wrap(np.frombuffer(source, np.uint8))).read()
    label = os.fspath(source)
    try:
        if not os.path.getsize(label):
            raise BadFile(f"{label}: has 0 bytes, must be a .tflite file")
        memory = Memory.from_file(label)
    except OSError as error:
        raise BadFile(f"{label}: {error.strerror}") from error
    return Reader(label, memory).read()


def _entry_point(file: File, key: str | None) -> tuple[int, dict[int, str]]:
    """The subgraph of a signature, and the names it gives to tensors."""
    if key is None and not file.signatures:
        return 0, {}
    for found in file.signatures:
        if key is None or found.key == key:
            return found.graph, {index: name for name, index in (*found.inputs, *found.outputs)}
    keys = ", ".join(s.key for s in file.signatures) or "none: the file has no signatures"
    raise InvalidArgument(f"{file.label}: signature is {key!r}, must be one of {keys}")


def _shapes(graph: Graph, names: Mapping[int, str], shapes: Shapes) -> dict[int, tuple[int, ...]]:
    """The shape of each input tensor."""
    found = {i: graph.tensors[i].shape for i in graph.inputs}
    if shapes is None:
        return found
    if not isinstance(shapes, Mapping):
        if len(shapes) > len(graph.inputs):
            raise InvalidArgument(f"shapes: got {len(shapes)}, must be at most {len(graph.inputs)}, one an input")
        shapes = {names.get(i) or graph.tensors[i].name: s for i, s in zip(graph.inputs, shapes, strict=False)}
    table = {names.get(i) or graph.tensors[i].name: i for i in graph.inputs}
    for name, shape in shapes.items():
        if name not in table:
            raise InvalidArgument(f"shapes: {name!r} is no input, must be one of {', '.join(table)}")
        index = table[name]
        if len(shape) != len(found[index]):
            raise InvalidArgument(f"shapes: {name} has rank {len(shape)}, must be {len(found[index])}")
        found[index] = tuple(max(0, int(d)) for d in shape)
    return found


def _outputs(importer: Importer, graph: Graph, inputs: Sequence[int]) -> list[int]:
    """The operands of the outputs; a copy where one is an input, a constant, or named twice."""
    outputs: list[int] = []
    for index in graph.outputs:
        operand = importer.x(index)
        if operand in outputs or operand not in importer.written:
            operand = importer.identity(operand)
        outputs.append(operand)
    return outputs
