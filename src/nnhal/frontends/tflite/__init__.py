"""The TFLite importer: `.tflite` files as models whose weights stay where they are in one sealed copy of the file.

    load("model.tflite")                                  the file's own shapes
    load("model.tflite", shapes={"input": (4, 224, 224, 3)})
    load("model.tflite", signature="encode")

The way of a file: `reader` makes records of it (`file`) and trusts nothing; `lowering` turns operators into NNAPI
operations by the entries of its families (`elementwise`, `layers`, `movement` and the others), after `fold` computed
what is known of shapes; `write` puts the result into a model. What NNAPI cannot express exactly is one UnsupportedModel
that lists all of it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nnhal.base.answers import shown
from nnhal.base.errors import BadFile, InvalidArgument
from nnhal.base.memory import Memory
from nnhal.base.operands import Value
from nnhal.base.sealed import Store
from nnhal.base.values import dimensions
from nnhal.frontends.tflite.file import File, FileSubgraph, SignatureDef
from nnhal.frontends.tflite.graph import UNTYPED, ImportContext, Inexpressible, typed
from nnhal.frontends.tflite.lowering import lower, unsupported
from nnhal.frontends.tflite.reader import read
from nnhal.frontends.tflite.state import settle
from nnhal.frontends.tflite.write import ModelWriter
from nnhal.model.graph import Model
from nnhal.model.validate import validate

Source = str | os.PathLike[str] | bytes
Shapes = Mapping[str, Sequence[int]] | Sequence[Sequence[int]]
OPEN = (0, -1)  # how a dimension is said to be unknown until execution


def load(source: Source, *, signature: str | None = None, shapes: Shapes | None = None) -> Model:
    """Read a file, or its bytes, as a model. The file is copied once: what becomes of it later does not matter.

    signature: which entry point of several; by default the first, or subgraph 0 of a file without any.
    shapes: shapes of inputs by name or in order, instead of the file's; 0 or -1 leaves a dimension open until execution.
    Raises BadFile naming the place where the file lies, UnsupportedModel listing all operations that NNAPI cannot express,
    InvalidArgument for a signature or input that the file does not have.
    """
    label, memory = _open(source)
    file = read(memory.bytes(), label)
    chosen = _signature(file, signature)
    entries = (chosen.inputs, chosen.outputs) if chosen else ((), ())
    file, subgraph = _all_outputs(file, chosen.subgraph if chosen else 0, entries[1])
    if not subgraph.outputs:
        raise BadFile(f"{label}: subgraph {subgraph.index}: has no outputs, must have at least one")
    names = _names(subgraph, subgraph.inputs, entries[0])
    wanted = _shapes(subgraph, names, shapes)
    context = ImportContext(file, lower, reshaped=wanted != [subgraph.tensors[i].shape for i in subgraph.inputs])
    graph = context.import_subgraph(subgraph.index, _values(context, subgraph, names, wanted), "")
    states = [] if context.problems else settle(graph)
    if context.problems:
        raise unsupported(context)
    for term, name in zip(graph.outputs, _names(subgraph, subgraph.outputs, entries[1]), strict=True):
        term.value = replace(term.value, name=name)
    model = ModelWriter(memory, os.path.splitext(os.path.basename(label))[0]).model(graph, states)
    validate(model)
    return model


def signatures(source: Source) -> list[str]:
    """The names of a file's entry points."""
    label, memory = _open(source)
    return [s.key for s in read(memory.bytes(), label).signatures]


def _open(source: Source) -> tuple[str, Memory]:
    """A label for messages, and the bytes as a memory."""
    if isinstance(source, bytes):
        return "model", Memory.wrap(np.frombuffer(source, np.uint8))
    label = os.fspath(source)
    if not os.path.isfile(label):
        raise BadFile(f"{label}: is no file, must be a .tflite file")
    store = Store("nnhal-model")
    try:
        store.add_file(label)
    except OSError as error:
        raise BadFile(f"{label}: cannot be read: {error.strerror}; must be a .tflite file") from error
    return label, store.seal()


def _signature(file: File, key: str | None) -> SignatureDef | None:
    if key is None:
        return next((s for s in file.signatures), None)
    for signature in file.signatures:
        if signature.key == key:
            return signature
    there = ", ".join(s.key for s in file.signatures) or "none: the file has no signatures"
    raise InvalidArgument(f"{file.label}: signature is {key!r}, must be one of {there}")


def _all_outputs(file: File, number: int, entries: Sequence[tuple[str, int]]) -> tuple[File, FileSubgraph]:
    """The file and a subgraph of it, which gives a tensor once for each name that the signature has for it."""
    subgraph, left = file.subgraphs[number], [index for _, index in entries]
    for index in subgraph.outputs:
        if index in left:
            left.remove(index)
    subgraph = replace(subgraph, outputs=(*subgraph.outputs, *left))
    graphs = (*file.subgraphs[:number], subgraph, *file.subgraphs[number + 1 :])
    return replace(file, subgraphs=graphs), subgraph


def _names(subgraph: FileSubgraph, tensors: Sequence[int], entries: Sequence[tuple[str, int]]) -> list[str]:
    """The name of each input or output: the signature's, else the tensor's. One that is listed twice has two."""
    left = list(entries)
    names = []
    for index in tensors:
        entry = next((e for e in left if e[1] == index), None)
        names.append(entry[0] if entry else subgraph.tensors[index].name)
        if entry:
            left.remove(entry)
    return names


def _shapes(subgraph: FileSubgraph, names: Sequence[str], shapes: Shapes | None) -> list[tuple[int, ...]]:
    """The shape of each input, the caller's where given."""
    found = [subgraph.tensors[index].shape for index in subgraph.inputs]
    if shapes is None:
        return found
    if not isinstance(shapes, Mapping):
        if not isinstance(shapes, Sequence):
            raise InvalidArgument(f"shapes is {shown(shapes)}, must be a mapping by name, or a list in order")
        if len(shapes) != len(found):
            raise InvalidArgument(f"shapes: got {len(shapes)}, must be {len(found)}: {', '.join(names)}")
        shapes = dict(zip(names, shapes, strict=True))
    for name, shape in shapes.items():
        if name not in names:
            raise InvalidArgument(f"shapes: {name!r} is no input, must be one of {', '.join(names)}")
        wanted = dimensions(shape, f"shapes: {name}", -1)  # which leaves it open, as 0 does
        rank = len(found[names.index(name)])
        if len(wanted) != rank:
            raise InvalidArgument(f"shapes: {name} has rank {len(wanted)}, must be {rank}")
        found[names.index(name)] = wanted
    return found


def _values(
    context: ImportContext, subgraph: FileSubgraph, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[Value]:
    """What is known of the inputs."""
    values = []
    for index, name, shape in zip(subgraph.inputs, names, shapes, strict=True):
        try:
            value = typed(subgraph.tensors[index])
        except Inexpressible as error:
            context.problems[f"input {error}", ""] = []
            value = Value(UNTYPED)
        dims = tuple(None if d in OPEN else d for d in shape) or (1,)
        values.append(replace(value, shape=dims, name=name))
    return values
