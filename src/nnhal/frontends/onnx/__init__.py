"""The ONNX importer: loads `.onnx` files as models whose weights stay in one sealed copy of the file.

    load("model.onnx")                                    the file's own shapes; open dimensions become 1, or must be set
    load("model.onnx", shapes={"input": (4, 3, 224, 224)})
    load("model.onnx", values={"sample_rate": 16000})     a constant instead of an input

`wire` and `reader` parse the file into records (`file`) without trusting it. `node_order` sorts the nodes, and
`external_data` finds external data files. `lowering` computes what is known at import, and converts the remaining nodes
to NNAPI operations. The facts about an operator stand on its function in `elementwise`, `layers`, `movement` and the
other families. One UnsupportedModel lists everything that NNAPI cannot express exactly. Only this package reads the
file.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np
from msgspec.structs import force_setattr

from nnhal.base.codes import MAX_COPIED_CONSTANT
from nnhal.base.errors import BadFile, InvalidArgument, ShapeNeeded, bounded_text
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
from nnhal.frontends.common.terms import Term, WrittenGraph
from nnhal.frontends.common.write import ModelWriter
from nnhal.frontends.external_data import BESIDE
from nnhal.frontends.onnx.file import DTYPES, OnnxEdge, OnnxFile, OnnxTensor
from nnhal.frontends.onnx.graph import PLAIN, TYPES, FileContext, NodeGraph, TermLabels
from nnhal.frontends.onnx.lowering import lower, lower_open
from nnhal.frontends.onnx.reader import read
from nnhal.model.graph import Model
from nnhal.model.metadata import AssociatedFile, Metadata, TensorMetadata

DOUBLES = "numbers of DOUBLE are computed in float32: NNAPI has no 64-bit floats"
LIKELY = 4  # sizes of constants that are tried for open dimensions: the most frequent
MOST_LIKELY = 4096  # the greatest of them
ONE_BRANCH = "where an input decides the If, --value NAME=N, or values={NAME: N}, leaves one branch"


def load_opened(
    label: str,
    memory: Memory,
    *,
    folder: str | None = None,
    shapes: Shapes | None = None,
    values: Values | None = None,
) -> Model:
    """Return the model of an `opened` file. folder: the place of external files; None if there is none.

    shapes, values: see `nnhal.load`.

    Raises BadFile with the node and field of a malformed file, UnsupportedModel with all nodes that NNAPI cannot
    express, InvalidArgument for an unknown input, ShapeNeeded for shapes that the file leaves open.
    """
    file = read(memory, label, folder)
    if not file.graph.outputs:
        raise BadFile(f"{label}: has no outputs, must have at least one")
    file, sizes = with_constants(file, arrays(values))
    wanted, left = settled(file, shapes, sizes)
    wide = [edge.name for edge in file.graph.inputs if edge.kind == "INT64"]
    context, graph, limits = import_in_32_bits(wide, file.budget, lambda spans: imported(file, wanted, spans))
    if context.problems and left:
        look_for_the_cause(context, file, wanted, left)
    if context.problems:
        branch = any("(If) attribute" in place for places in context.problems.values() for place in places)
        empty = [edge.name for edge in file.graph.inputs if edge.shape and 0 in edge.shape]
        emptied = (
            f"{empty[0]!r} is empty in the file; values={{{empty[0]!r}: array}} makes it a constant" if empty else ""
        )
        raise unsupported(file.label, context.problems, ONE_BRANCH if branch else emptied)
    for term, edge in zip(graph.outputs, file.graph.outputs, strict=True):
        term.value = replace(term.value, name=edge.name)
    notes = [*open_notes(left), *[DOUBLES] * has_doubles(graph), *limits]
    release_file(graph, file)
    writer = ModelWriter(file.memories, file.budget, bounded_text(os.path.splitext(os.path.basename(label))[0]))
    metadata = metadata_of(file, [context.labels.get(id(term)) for term in graph.outputs])
    model = validated(writer.model(graph, (), metadata, notes, alike(file, wanted)), label, left)
    model._memo[BESIDE] = dict(zip(file.beside, file.memories[1:], strict=True))
    return model


def open_inputs(
    label: str, memory: Memory, *, folder: str | None = None, shapes: Shapes | None = None, values: Values | None = None
) -> OpenInputs:
    """Return the inputs of an `opened` file for these shapes. For the parameters, see `load_opened`."""
    file, sizes = with_constants(read(memory, label, folder), arrays(values))
    wanted, _ = settled(file, shapes, sizes)
    dims = {edge.name: shape for edge, shape in zip(file.graph.inputs, wanted, strict=True)}
    sizes_in_file = Counter(d for t in file.graph.constants.values() for d in set(t.shape) if 1 < d <= MOST_LIKELY)
    likely = [size for size, _ in sizes_in_file.most_common(LIKELY)]
    return OpenInputs(dims, alike(file, wanted), likely)


def imported(
    file: OnnxFile, wanted: Sequence[tuple[int | None, ...]], spans: Mapping[str, Span] = NO_SPANS
) -> tuple[FileContext, NodeGraph]:
    """Return the graph for inputs of these shapes. spans: the ranges of some inputs of INT64."""
    context = FileContext(file, lower, lower_open)
    graph = NodeGraph(context, file.graph)
    for edge, shape in zip(file.graph.inputs, wanted, strict=True):
        kind = TYPES.get(edge.kind)
        if kind is None:
            what = f"is {edge.kind or 'of no type'}, which NNAPI has no type for"
            context.problems[f"input {short(edge.name)!r} {what}", ""] = []
            value = Value(-1, shape or (1,), name=edge.name)
        else:
            value = Value(kind, shape or (1,), PLAIN.get(edge.kind, 0.0), name=edge.name)
        term = graph.give(edge.name, value, edge.kind, scalar=shape == ())
        term.span = spans.get(edge.name)
        context.trials.names[id(term)] = edge.shape or ()
        if kind is None:
            graph.terms[edge.name].doubtful = True
    lower(graph)
    return context, graph


def has_doubles(graph: WrittenGraph) -> bool:
    """Whether an input, or a result of an operation, is of DOUBLE, also in graphs inside."""
    results = [term for operation in graph.operations for term in operation.outputs]
    if any(term.kind == "DOUBLE" for term in (*graph.inputs, *results)):
        return True
    read = (term for operation in graph.operations for term in operation.inputs if isinstance(term, Term))
    return any(term.graph is not None and has_doubles(term.graph) for term in read)


def release_file(graph: NodeGraph, file: OnnxFile) -> None:
    """Copy all constants out of a file if less than half of it is needed, so that its memory is released."""
    terms: dict[int, Term] = {}
    left = list(graph.operations)
    while left:
        for term in left.pop().inputs:
            if not isinstance(term, Term) or id(term) in terms:
                continue
            terms[id(term)] = term
            left += term.graph.operations if term.graph is not None else []
    stays = [0] * len(file.memories)
    placed = [term for term in terms.values() if term.blob is not None and term.value.data is not None]
    for term in placed:
        if term.blob is not None and np.asarray(term.value.data).flags.aligned:
            stays[term.blob.file] += term.blob.length
    gone = [memory for memory, stay in zip(file.memories, stays, strict=True) if 2 * stay < memory.size]
    for term in placed:
        if term.blob is not None and file.memories[term.blob.file] in gone:
            term.blob = None
    for term in terms.values():  # operations that are bound by now keep short values, and their memory
        data = term.value.data
        if isinstance(data, np.ndarray) and data.nbytes <= MAX_COPIED_CONSTANT:
            home = Memory.of(data)
            if home is not None and home[0] in gone:
                force_setattr(term.value, "data", data.copy())


def metadata_of(file: OnnxFile, labels: Sequence[TermLabels | None] = ()) -> Metadata | None:
    """Return the file's metadata. labels: of its outputs, if they are known."""
    if not file.properties and not file.producer and not any(labels):
        return None
    about = file.properties
    outputs: list[TensorMetadata] = []
    contents: dict[str, bytes] = {}
    for edge, given in zip_longest(file.graph.outputs, labels):
        files: tuple[AssociatedFile, ...] = ()
        if given:
            name = f"labels of {edge.name}"
            contents[name] = "\n".join(given[1]).encode()
            files = (AssociatedFile(name, kind=given[0]),)
        outputs.append(TensorMetadata(edge.name, files=files))
    return Metadata(
        name=about.get("name", file.graph.name),
        description=about.get("description", ""),
        author=about.get("author", file.producer),
        licence=about.get("license", about.get("licence", "")),
        version=about.get("version", ""),
        inputs=tuple(TensorMetadata(edge.name) for edge in file.graph.inputs),
        outputs=tuple(outputs),
        contents=contents,
    )


# ----------------------------------------------------------------------------------------------------------------- shapes


def with_constants(file: OnnxFile, values: Mapping[str, Array]) -> tuple[OnnxFile, dict[str, int]]:
    """Return the file with some inputs as constants, and the sizes of named dimensions that these determine."""
    graph, sizes = file.graph, dict[str, int]()
    is_all_fixed(values, [edge.name for edge in graph.inputs])
    constants, inputs = dict(graph.constants), []
    for edge in graph.inputs:
        if edge.name not in values:
            inputs.append(edge)
            continue
        if edge.kind not in DTYPES:
            raise InvalidArgument(f"values: {edge.name} is {edge.kind or 'of no type'} in the file, must be numbers")
        array = fitted(edge.name, values[edge.name], DTYPES[edge.kind], edge.shape)
        constants[edge.name] = OnnxTensor(edge.name, edge.kind, array.shape, values=array)
        named = zip(edge.shape or (), array.shape, strict=False)
        sizes |= {dim: size for dim, size in named if isinstance(dim, str)}
    return replace(file, graph=replace(graph, constants=constants, inputs=tuple(inputs))), sizes


def settled(file: OnnxFile, shapes: Shapes | None, sizes: dict[str, int]) -> tuple[list[tuple[int | None, ...]], Left]:
    """Return the shape of each input: the caller's, otherwise the file's. Dimensions with the same name have one size.

    A size of 0 in the file is an empty dimension. NNAPI has no fixed one, so it stays open until execution.

    sizes: of known names.
    """
    edges = file.graph.inputs
    given = shapes_by_input(file, shapes)
    for edge in edges:
        for place, (dim, size) in enumerate(zip(edge.shape or (), given.get(edge.name, ()), strict=False)):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                where = f"dimension {place} of {edge.name} is {size}"
                raise InvalidArgument(f"shapes: {where}, must be {sizes[dim]} like all dimensions named {short(dim)!r}")
    wanted: list[tuple[int | None, ...]] = []
    left: Left = []
    for edge in edges:
        if edge.name in given:
            wanted.append(tuple(None if d in OPEN else d for d in given[edge.name]))
            continue
        if edge.shape is None:
            raise ShapeNeeded(f"{file.label}: input {short(edge.name)!r} has no shape in the file, must be given")
        found: list[int | None] = []
        open_dims = False
        for dim in edge.shape:
            taken: int | None = dim if isinstance(dim, int) else sizes.get(dim) if isinstance(dim, str) else None
            if taken is None:
                open_dims, taken = True, 1
            found.append(None if taken in OPEN else taken)
        if open_dims:
            dims = ", ".join("?" if d is None else str(d) for d in edge.shape)
            left.append((edge.name, tuple(d or 0 for d in found), f"input {edge.name!r} [{dims}]"))
        wanted.append(tuple(found))
    return wanted, left


def alike(file: OnnxFile, wanted: Sequence[tuple[int | None, ...]]) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    """Return the names that several open dimensions share, with their places: input and axis."""
    places: dict[str, list[tuple[int, int]]] = {}
    for number, (edge, shape) in enumerate(zip(file.graph.inputs, wanted, strict=True)):
        for axis, (dim, size) in enumerate(zip(edge.shape or (), shape, strict=False)):
            if isinstance(dim, str) and size is None:
                places.setdefault(dim, []).append((number, axis))
    return [(name, tuple(found)) for name, found in places.items() if len(found) > 1]


def shapes_by_input(file: OnnxFile, shapes: Shapes | None) -> dict[str, tuple[int, ...]]:
    """Return the caller's shapes by name."""
    names = [edge.name for edge in file.graph.inputs]
    if shapes is None:
        return {}
    found = {}
    for name, shape in shapes_by_name(shapes, names).items():
        edge: OnnxEdge = file.graph.inputs[names.index(name)]
        sizes = dimensions(shape, f"shapes: {name}", -1)
        if edge.shape is not None and len(sizes) != len(edge.shape):
            raise InvalidArgument(f"shapes: {name} has rank {len(sizes)}, must be {len(edge.shape)}")
        for place, (size, dim) in enumerate(zip(sizes, edge.shape or sizes, strict=True)):
            if isinstance(dim, int) and dim > 0 and size != dim:
                raise InvalidArgument(f"shapes: dimension {place} of {name} is {size}, must be {dim} as in the file")
        found[name] = sizes
    return found


def look_for_the_cause(
    context: FileContext, file: OnnxFile, wanted: Sequence[tuple[int | None, ...]], left: Left
) -> None:
    """Keep the problems that occur with any sizes of open dimensions; if there are none, ask for sizes."""
    names = {name for name, _, _ in left}
    shapes = [
        tuple(
            None if edge.name in names and not (isinstance(d, int) and d) else n
            for n, d in zip(shape, edge.shape or (), strict=True)
        )
        if edge.name in names
        else shape
        for edge, shape in zip(file.graph.inputs, wanted, strict=True)
    ]
    always = imported(file, shapes)[0].problems
    context.problems = lasting(context.file.label, context.problems, always, left)
