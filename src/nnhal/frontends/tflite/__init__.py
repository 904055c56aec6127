"""The TFLite importer: loads `.tflite` files as models whose weights stay in one sealed copy of the file.

    load("model.tflite")                                  the file's own shapes
    load("model.tflite", shapes={"input": (4, 224, 224, 3)})
    load("model.tflite", signature="encode")

`reader` parses the file into records (`file`) without trusting it. `lowering` computes what is known at import, and
converts the remaining operators to NNAPI operations. The facts about an operator stand on its function in
`elementwise`, `layers`, `movement` and the other families. `common.write` writes the result into a model. One
UnsupportedModel lists everything that NNAPI cannot express exactly.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from nnhal.base.errors import BadFile, InvalidArgument, bounded_text
from nnhal.base.memory import Memory
from nnhal.base.names import short
from nnhal.base.operands import Array, Value
from nnhal.base.records import replace
from nnhal.base.values import dimensions, shapes_by_name
from nnhal.frontends.by_shape import OpenInputs
from nnhal.frontends.common.inputs import (
    OPEN,
    Left,
    Shapes,
    Values,
    arrays,
    fitted,
    is_all_fixed,
    lasting,
    open_notes,
    unsupported,
    validated,
)
from nnhal.frontends.common.integer_ranges import NO_SPANS, Span, import_in_32_bits
from nnhal.frontends.common.terms import UNTYPED, Term, UnsupportedOperator
from nnhal.frontends.common.write import ModelWriter
from nnhal.frontends.source import Source, is_onnx, open_source
from nnhal.frontends.tflite.file import DTYPES, File, FileSubgraph, SignatureDef
from nnhal.frontends.tflite.graph import ImportContext, ImportGraph, typed
from nnhal.frontends.tflite.lowering import lower
from nnhal.frontends.tflite.metadata import metadata_of
from nnhal.frontends.tflite.reader import read
from nnhal.frontends.tflite.sixteen import with_real_values
from nnhal.frontends.tflite.state import settle
from nnhal.model.graph import Model

SIXTEEN = "numbers of INT16 are computed in float32: NNAPI has no layers for them"


def load(
    source: Source, *, signature: str | None = None, shapes: Shapes | None = None, values: Values | None = None
) -> Model:
    """Load a model from a path, an open file, or bytes. The source is copied once; later changes have no effect.

    Args:
        source: The path of a file, an open binary file, or the file's bytes.
        signature: The entry point, if there are several; by default the first, or subgraph 0 of a file without any.
        shapes: Shapes of inputs by name or in order, instead of the file's; 0 or -1 leaves a dimension open until
            execution.
        values: Inputs by name that become constants.

    Raises:
        BadFile: The file is malformed; the message names the place.
        UnsupportedModel: NNAPI cannot express some operations; the message lists all of them.
        InvalidArgument: The file does not have the signature or an input.
        ShapeNeeded: The file leaves shapes open that must be given.
    """
    return load_opened(*open_source(source), signature=signature, shapes=shapes, values=values)


def load_opened(
    label: str,
    memory: Memory,
    *,
    signature: str | None = None,
    shapes: Shapes | None = None,
    values: Values | None = None,
) -> Model:
    """Like `load`, for an `opened` file."""
    if is_onnx(memory.bytes()):
        raise BadFile(f"{label}: is an ONNX model, must be a .tflite file")
    file, subgraph, names, results = _entry(label, memory, signature, values)
    wanted = _shapes(subgraph, names, shapes)
    left = _left_open(subgraph, names, shapes)
    wide = [name for index, name in zip(subgraph.inputs, names, strict=True) if subgraph.tensors[index].type == "INT64"]
    context, (graph, states), limits = import_in_32_bits(
        wide, file.budget, lambda spans: _imported(file, subgraph, names, wanted, spans)
    )
    if context.problems and left:
        _look_for_the_cause(context, subgraph, names, wanted, left)
    if context.problems:
        raise unsupported(context.file.label, context.problems)
    for term, name in zip(graph.outputs, results, strict=True):
        term.value = replace(term.value, name=name)
    notes = open_notes(left)
    if signature is None:
        notes = _signature_note(file) + notes
    notes = [*notes, *[SIXTEEN] * context.sixteen, *limits]
    writer = ModelWriter([memory], file.budget, bounded_text(os.path.splitext(os.path.basename(label))[0]))
    return validated(writer.model(graph, states, metadata_of(file, subgraph.index), notes), label, left)


def open_inputs(
    label: str,
    memory: Memory,
    *,
    signature: str | None = None,
    shapes: Shapes | None = None,
    values: Values | None = None,
) -> OpenInputs:
    """Return the inputs of an `opened` file for these shapes. For the parameters, see `load`."""
    _, subgraph, names, _ = _entry(label, memory, signature, values)
    wanted = _shapes(subgraph, names, shapes)
    return OpenInputs(
        {name: tuple(None if d in OPEN else d for d in shape) for name, shape in zip(names, wanted, strict=True)}
    )


def _entry(
    label: str, memory: Memory, signature: str | None, values: Values | None
) -> tuple[File, FileSubgraph, list[str], list[str]]:
    """Return a file, the subgraph of an entry point, and the names of its inputs and outputs."""
    file = read(memory.bytes(), label)
    chosen = _signature(file, signature)
    entries = (chosen.inputs, chosen.outputs) if chosen else ((), ())
    file, subgraph = _all_outputs(file, chosen.subgraph if chosen else 0, entries[1])
    if not subgraph.outputs:
        raise BadFile(f"{label}: subgraph {subgraph.index}: has no outputs, must have at least one")
    names = _names(subgraph, subgraph.inputs, entries[0])
    results = _names(subgraph, subgraph.outputs, entries[1])
    if values is not None:
        file, subgraph, names = _with_constants(file, subgraph, names, arrays(values))
    file = file._replace(subgraphs=tuple(map(with_real_values, file.subgraphs)))
    return file, file.subgraphs[subgraph.index], names, results


def _imported(
    file: File,
    subgraph: FileSubgraph,
    names: Sequence[str],
    wanted: Sequence[tuple[int, ...]],
    spans: Mapping[str, Span] = NO_SPANS,
) -> tuple[ImportContext, tuple[ImportGraph, list[tuple[Term, Term, Array]]]]:
    """Return a subgraph for inputs of these shapes, and its states. spans: the ranges of some inputs of INT64."""
    context = ImportContext(file, lower, reshaped=list(wanted) != [subgraph.tensors[i].shape for i in subgraph.inputs])
    graph = context.import_subgraph(subgraph.index, _values(context, subgraph, names, wanted), "", spans=spans)
    return context, (graph, [] if context.problems else settle(graph))


def _left_open(subgraph: FileSubgraph, names: Sequence[str], shapes: Shapes | None) -> Left:
    """Return the inputs with dimensions that neither the file nor the caller specifies."""
    given = names if isinstance(shapes, Sequence) else shapes or ()
    left = []
    for index, name in zip(subgraph.inputs, names, strict=True):
        tensor = subgraph.tensors[index]
        if tensor.open and name not in given:
            dims = ", ".join("?" if i in tensor.open else str(d) for i, d in enumerate(tensor.shape))
            left.append((name, tensor.shape, f"input {name!r} [{dims}]"))
    return left


def _look_for_the_cause(
    context: ImportContext, subgraph: FileSubgraph, names: Sequence[str], wanted: Sequence[tuple[int, ...]], left: Left
) -> None:
    """Keep the problems that occur with any sizes of open dimensions; if there are none, ask for sizes."""
    open_names = {name for name, _, _ in left}
    shapes = [
        tuple(0 if name in open_names and n in subgraph.tensors[index].open else d for n, d in enumerate(shape))
        for index, name, shape in zip(subgraph.inputs, names, wanted, strict=True)
    ]
    always = _imported(context.file, subgraph, names, shapes)[0].problems
    context.problems = lasting(context.file.label, context.problems, always, left)


def signatures(source: Source) -> list[str]:
    """Return the names of a file's entry points."""
    label, memory = open_source(source)
    return [s.key for s in read(memory.bytes(), label).signatures]


def chosen(source: Source, signature: str | None = None) -> tuple[File, FileSubgraph]:
    """Return the contents of a file, and the subgraph of an entry point, even if NNAPI cannot express it."""
    label, memory = open_source(source)
    file = read(memory.bytes(), label)
    entry = _signature(file, signature)
    return file, file.subgraphs[entry.subgraph if entry else 0]


def _signature(file: File, key: str | None) -> SignatureDef | None:
    if key is None:
        return next((s for s in file.signatures), None)
    for signature in file.signatures:
        if signature.key == key:
            return signature
    there = ", ".join(s.key for s in file.signatures) or "none: the file has no signatures"
    raise InvalidArgument(f"{file.label}: signature is {key!r}, must be one of {there}")


def _signature_note(file: File) -> list[str]:
    """Return a note if the file has other entry points than the selected one."""
    if len(file.signatures) < 2:
        return []
    keys = ", ".join(repr(short(s.key)) for s in file.signatures)
    return [f"the first of the signatures {keys} is used; --signature NAME, or signature=NAME, selects another"]


def _all_outputs(file: File, number: int, entries: Sequence[tuple[str, int]]) -> tuple[File, FileSubgraph]:
    """Return the file, and a subgraph that returns a tensor once for each name in the signature."""
    subgraph, left = file.subgraphs[number], Counter(index for _, index in entries)
    left.subtract(subgraph.outputs)
    subgraph = replace(subgraph, outputs=(*subgraph.outputs, *left.elements()))
    graphs = (*file.subgraphs[:number], subgraph, *file.subgraphs[number + 1 :])
    return file._replace(subgraphs=graphs), subgraph


def _with_constants(
    file: File, subgraph: FileSubgraph, names: list[str], values: Mapping[str, Array]
) -> tuple[File, FileSubgraph, list[str]]:
    """Return the file, and the subgraph and the names of its inputs, with some inputs as constants."""
    is_all_fixed(values, names)
    tensors, left = list(subgraph.tensors), []
    for index, name in zip(subgraph.inputs, names, strict=True):
        if name not in values:
            left.append((index, name))
            continue
        tensor = tensors[index]
        if tensor.type not in DTYPES:
            raise InvalidArgument(f"values: {name} is {tensor.type} in the file, must be numbers")
        dims = [None if n in tensor.open else size for n, size in enumerate(tensor.shape)]
        array = fitted(name, values[name], DTYPES[tensor.type], dims)
        tensors[index] = tensor._replace(shape=array.shape, open=frozenset(), values=array)
    subgraph = replace(subgraph, tensors=tuple(tensors), inputs=tuple(index for index, _ in left))
    graphs = (*file.subgraphs[: subgraph.index], subgraph, *file.subgraphs[subgraph.index + 1 :])
    return file._replace(subgraphs=graphs), subgraph, [name for _, name in left]


def _names(subgraph: FileSubgraph, tensors: Sequence[int], entries: Sequence[tuple[str, int]]) -> list[str]:
    """Return the name of each input or output: the signature's, otherwise the tensor's.

    One that is listed twice has two.
    """
    left: dict[int, list[str]] = {}
    for name, index in reversed(entries):
        left.setdefault(index, []).append(name)
    return [left[i].pop() if left.get(i) else subgraph.tensors[i].name for i in tensors]


def _shapes(subgraph: FileSubgraph, names: Sequence[str], shapes: Shapes | None) -> list[tuple[int, ...]]:
    """Return the shape of each input, the caller's if given."""
    found = [subgraph.tensors[index].shape for index in subgraph.inputs]
    if shapes is None:
        return found
    for name, shape in shapes_by_name(shapes, names).items():
        wanted = dimensions(shape, f"shapes: {name}", -1)  # -1 leaves it open, like 0
        rank = len(found[names.index(name)])
        if len(wanted) != rank:
            raise InvalidArgument(f"shapes: {name} has rank {len(wanted)}, must be {rank}")
        found[names.index(name)] = wanted
    return found


def _values(
    context: ImportContext, subgraph: FileSubgraph, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[Value]:
    """Return the types and shapes of the inputs."""
    values = []
    for index, name, shape in zip(subgraph.inputs, names, shapes, strict=True):
        try:
            value = typed(subgraph.tensors[index])
        except UnsupportedOperator as error:
            context.problems[f"input {error}", ""] = []
            value = Value(UNTYPED)
        dims = tuple(None if d in OPEN else d for d in shape) or (1,)
        values.append(replace(value, shape=dims, name=name))
    return values
