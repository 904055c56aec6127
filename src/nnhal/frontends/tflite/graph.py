"""A subgraph during import: the known facts of each of its tensors, and the NNAPI operations made so far."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.errors import BadFile
from nnhal.base.operands import Array, ChannelQuant, Value
from nnhal.base.records import Struct, field, replace
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.integer_ranges import NO_SPANS, Span
from nnhal.frontends.common.packed import unpack
from nnhal.frontends.common.terms import (
    PLAIN_SCALE,
    UNTYPED,
    Blob,
    EmittedOperation,
    Term,
    UnsupportedOperator,
    Variable,
    constant,
)
from nnhal.frontends.common.writing import ImportedGraph
from nnhal.frontends.tflite.file import DTYPES, OMITTED, File, FileSubgraph, FileTensor
from nnhal.frontends.tflite.lists import with_updates
from nnhal.frontends.tflite.packed import BITS
from nnhal.frontends.tflite.sparse import densify
from nnhal.model.graph import EdgeForm
from nnhal.model.validate import MAX_DEPTH
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8PC, Q8S, Q16S

PLAIN = {"FLOAT32": F32, "FLOAT16": F16, "INT32": I32, "INT64": I32, "BOOL": B8}  # INT64: see `wide`
QUANTISED = {"INT8": Q8S, "UINT8": Q8, "INT16": Q16S}


class ImportContext(Struct, eq=False):
    """The shared state of the subgraphs of an import. reshaped: whether the caller changed input shapes.

    sixteen: whether it has numbers of INT16 that are computed in float32.
    """

    file: File
    lower: "Callable[[ImportGraph], None]"
    reshaped: bool = False
    sixteen: bool = False
    problems: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    variables: dict[Any, Variable] = field(default_factory=dict)
    _open: list[int] = field(default_factory=list)
    _done: dict[Any, "ImportGraph"] = field(default_factory=dict)

    def import_subgraph(
        self,
        number: int,
        given: Sequence[Value],
        where: str,
        *,
        starts: bool = False,
        spans: Mapping[str, Span] = NO_SPANS,
    ) -> "ImportGraph":
        """Import a subgraph for these inputs, once for each kind of call.

        starts: whether it initialises variables. spans: the ranges of some inputs of INT64, by name.
        """
        source = self._source(number, len(given), where)
        key = number, starts, tuple((v.type, v.shape, v.scale, v.zero_point, v.channel) for v in given)
        lists = sum(len(operator.inputs) for operator in source.operators) + len(source.outputs)
        channels = sum(len(value.channel.scales) for value in given if value.channel)
        self.file.budget.spend(Cost.ELEMENTS, len(given) + channels, where)
        if key not in self._done:
            self.file.budget.spend(Cost.ELEMENTS, lists, where)
            self._open.append(number)
            inner = len(self._open) > 1 and not starts
            graph = ImportGraph(self, source, given, inner=inner, starts=starts)
            for term in graph.inputs:
                term.span = spans.get(term.value.name)
            self.lower(graph)
            self._done[key] = graph
            self._open.pop()
        return self._done[key]

    def expand(self, number: int, given: "Sequence[Term]", outer: "ImportGraph", where: str) -> "ImportGraph":
        """Import a subgraph for these exact terms, to be written inline into another one."""
        source = self._source(number, len(given), where)
        self.file.budget.spend(Cost.ELEMENTS, sum(len(operator.inputs) for operator in source.operators), where)
        self._open.append(number)
        graph = ImportGraph(self, source, [term.value for term in given], inner=outer.inner)
        graph.inputs, graph.terms = list(given), dict(zip(source.inputs, given, strict=True))
        self.lower(graph)
        self._open.pop()
        return graph

    def _source(self, number: int, count: int, where: str) -> FileSubgraph:
        """Return a subgraph that may be called with that many inputs."""
        limit = len(self.file.subgraphs)
        if not 0 <= number < limit:
            raise BadFile(f"{self.file.label}: {where}: refers to subgraph {number}, must be 0 to {limit - 1}")
        if number in self._open:
            raise BadFile(f"{self.file.label}: {where}: subgraph {number} refers to itself, directly or through others")
        if len(self._open) >= MAX_DEPTH:  # this one would be deeper
            raise BadFile(f"{self.file.label}: {where}: subgraphs are nested deeper than {MAX_DEPTH}")
        source = self.file.subgraphs[number]
        self.sixteen |= any(tensor.step for tensor in source.tensors)
        if not self.reshaped:  # the file's shapes are those of its tensors
            source = with_updates(source, self.file)
        if len(source.inputs) != count:
            must = f"must be {len(source.inputs)}"
            raise BadFile(f"{self.file.label}: {where}: gives subgraph {number} {count} inputs, {must}")
        return source


class ImportGraph(ImportedGraph):
    """One subgraph: terms by tensor, and the operations in order."""

    omitted, dtypes = OMITTED, DTYPES

    def __init__(
        self,
        context: ImportContext,
        source: FileSubgraph,
        given: Sequence[Value],
        *,
        inner: bool = False,
        starts: bool = False,
    ) -> None:
        super().__init__(context.file.budget, context.problems)
        self.context, self.source, self.inner, self.starts = context, source, inner, starts
        self.file = context.file
        self.operations: list[EmittedOperation] = []
        self._declared: dict[int, Value] = {}
        self.read = {*source.outputs, *(i for operator in source.operators for i in operator.inputs)}
        for index, value in zip(source.inputs, given, strict=True):
            tensor = source.tensors[index]
            scalar = not tensor.shape
            self.terms[index] = Term(replace(value, data=None), tensor.type, scalar=scalar, step=tensor.step)
            self.inputs.append(self.terms[index])

    def place(self, index: int) -> str:
        """Return an operator's number for people."""
        return f"#{index}" + (f" of subgraph {self.source.index}" if self.source.index else "")

    def declared(self, index: int) -> Value:
        """Return a tensor's type and quantisation in the file, with an open shape; refuse types that NNAPI lacks."""
        value = self._declared.get(index)
        if value is None:
            value = self._declared[index] = typed(self.source.tensors[index])
        return value

    def _read(self, key: int) -> Term:
        tensor = self.source.tensors[key]
        place = f"subgraph {self.source.index} tensor {key}"
        data, blob = None, tensor.blob
        if tensor.stored in BITS and blob is not None:
            data, blob = self._unpacked(tensor, blob, place), None
        elif tensor.type in DTYPES:
            dtype = np.dtype(DTYPES[tensor.stored or tensor.type])
            if tensor.sparsity is not None and blob is not None:
                whole = blob.length % dtype.itemsize == 0
                if not whole:
                    raise BadFile(
                        f"{self.file.label}: {place}: has {blob.length} bytes, must be a multiple of {dtype.itemsize}"
                    )
                values = self.file.bytes_of(blob).view(dtype)
                data, blob = densify(tensor.sparsity, tensor.shape, values, self.file.budget, place), None
            elif tensor.values is not None:
                self.file.budget.spend(Cost.MEMORY, tensor.values.nbytes, place)
                data = tensor.values
            elif blob is not None:
                data = self.file.bytes_of(blob).view(dtype).reshape(tensor.shape)
            elif not tensor.variable:
                if 0 not in tensor.shape:
                    must = "must be written by an operator before it is read"
                    raise BadFile(f"{self.file.label}: {place}: has no value, {must}")
                data = np.zeros(tensor.shape, dtype)
        if tensor.stored and tensor.type == "FLOAT32" and tensor.quant and data is not None:
            self.file.budget.spend(Cost.MEMORY, data.size * np.dtype(np.float32).itemsize, place)
            data, blob = tensor.quant.real(data), None
        try:
            value = self.declared(key)
        except UnsupportedOperator:
            return Term(Value(UNTYPED, tensor.shape), tensor.type, data)
        return constant(value, data, tensor.type, blob)

    def _unpacked(self, tensor: FileTensor, blob: Blob, place: str) -> Array:
        """Return weights of less than eight bits as those of INT8, or their real values."""
        self.file.budget.spend(Cost.MEMORY, math.prod(tensor.shape) * np.dtype(DTYPES[tensor.type]).itemsize, place)
        stored = unpack(self.file.bytes_of(blob), BITS[tensor.stored], tensor.shape, signed=True)
        if tensor.blocks is None:
            return stored
        number, count = tensor.blocks.scales, stored.size // tensor.blocks.size
        of = self.source.tensors[number] if 0 <= number < len(self.source.tensors) else None
        known = of is not None and of.type in ("FLOAT16", "FLOAT32") and of.blob and not of.blocks
        scales = self.term(number).value.data if known else None
        if scales is None or scales.size != count or not (np.isfinite(scales) & (scales >= 0)).all():
            must = f"must be a constant of {count} floats from 0"
            raise BadFile(f"{self.file.label}: {place}: scales of its blocks are tensor {number}, {must}")
        return tensor.blocks.real(stored, np.asarray(scales))

    def variable(self, key: Any, name: str) -> Variable:
        """Return a variable of the model, by its key."""
        if self.inner:
            raise UnsupportedOperator("states within IF and WHILE do not persist between executions in NNAPI")
        return self.context.variables.setdefault(key, Variable(name))

    def finish(self) -> None:
        """Set the outputs: inputs, initial variable values, constants and repeated terms become copies."""
        taken = {id(term) for term in (*self.inputs, *(each.input for each in self.context.variables.values()))}
        for index in self.source.outputs:
            term, tensor = self.term(index), self.source.tensors[index]
            if term.doubtful:
                continue
            if tensor.variable and term.value.data is None and not self._has(term):
                self.problem(f"output {tensor.name!r}", "is a variable tensor that no operator writes, must be written")
                continue
            if not self.is_unusable(term, tensor.type, tensor.name):
                self.forms.append(EdgeForm(term.scalar and not tensor.shape, tensor.type == "INT64", tensor.step))
                self.outputs.append(self.own(term, taken, term.value.name))

    def _has(self, term: Term) -> bool:
        """Whether a term is an input, or the output of an operation."""
        return any(term is each for each in self.inputs) or any(
            term is out for o in self.operations for out in o.outputs
        )


def typed(tensor: FileTensor) -> Value:
    """Return a tensor's type, quantisation and name for NNAPI; refuse types that NNAPI lacks."""
    name = tensor.name
    if tensor.type in PLAIN:
        return Value(PLAIN[tensor.type], None, name=name)
    if tensor.type not in QUANTISED:
        raise UnsupportedOperator(f"{tensor.name!r} is {tensor.type}, which NNAPI has no type for")
    quant = tensor.quant
    if quant is None:
        return Value(QUANTISED[tensor.type], None, PLAIN_SCALE, name=name)
    if len(quant.scales) > 1:
        if tensor.type != "INT8" or any(quant.zero_points):
            if tensor.type != "INT8":
                raise UnsupportedOperator(f"{tensor.name!r} is {tensor.type} per channel, must be INT8 for NNAPI")
            raise UnsupportedOperator(
                f"{tensor.name!r} has zero points other than 0 per channel, which NNAPI has no type for"
            )
        return Value(Q8PC, None, channel=ChannelQuant(quant.scales, quant.axis), name=name)
    if tensor.type == "INT16" and quant.zero_points[0]:
        raise UnsupportedOperator(f"{tensor.name!r} is INT16 with zero point {quant.zero_points[0]}, must be 0")
    return Value(QUANTISED[tensor.type], None, quant.scales[0], quant.zero_points[0], name=name)
