"""Entries of quantisation with a scale that is computed at execution, and of integer layers.

NNAPI's quantised types have a fixed scale, and its layers round their sums. So the importer holds the 8-bit integers,
and the sums of their products, as reals (`Term.reals`): float32 represents every integer up to 2**24 exactly, and
rounds greater sums. Other nodes and outputs of the model get integers again, if none is rounded.
"""

import math

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.functions import RealArithmetic, rounded
from nnhal.frontends.common.integer_ranges import Span, Spans
from nnhal.frontends.common.terms import PLAIN_SCALE, UNTYPED, Term, constant
from nnhal.frontends.common.writing import ASYMMETRIC, filled
from nnhal.frontends.onnx.file import OnnxNode
from nnhal.frontends.onnx.graph import NodeGraph
from nnhal.frontends.onnx.layers import convolution
from nnhal.frontends.onnx.products import matmul
from nnhal.frontends.onnx.task import NodeTask, integer_range, operator
from nnhal.ops.schema import F32, I32

MOST = 255.0  # the range of 8-bit integers, and the greatest magnitude of one minus its zero point
BEYOND = 1 << 31  # the size of a dimension that is known only at execution


@operator("DynamicQuantizeLinear", outputs=3,
          becomes="REDUCE_MIN, REDUCE_MAX, DIV, ADD, rounded; the integers as reals")  # fmt: skip
def dynamically_quantised(t: NodeTask) -> None:
    """Return scale and zero point of the range from the least element, or 0, to the greatest, or 0."""
    x, r = t.x(0), RealArithmetic(t)
    t.require(x.value.type == F32, f"of {x.kind}, must be FLOAT")
    shape = t.known(x)
    steps, scale, zero = in_steps(t, t.reshaped(x, (math.prod(shape),)))
    hold(t, 0, "UINT8", t.reshaped(r("ADD", steps, zero), shape), scalar=x.scalar)
    t.result(1, scale, "FLOAT", scalar=True)
    hold(t, 2, "UINT8", zero, scalar=True)


def in_steps(t: NodeTask, x: Term) -> tuple[Term, Term, Term]:
    """Quantise a tensor over its actual range.

    Returns:
        The integers above their zero point, with the shape of x; scale and zero point, [1]. All are reals.
    """
    r, every = RealArithmetic(t), t.integers(list(range(len(t.known(x)))))
    low = r("MINIMUM", t.reshaped(t.make("REDUCE_MIN", x, every, True), (1,)), 0.0)
    high = r("MAXIMUM", t.reshaped(t.make("REDUCE_MAX", x, every, True), (1,)), 0.0)
    extent = r("SUB", high, low)
    one = filled(t, (1,), 1, F32)
    scale = r.choose(r.test("EQUAL", extent, 0.0), one, r("DIV", extent, MOST))  # 1 if all are 0, as in ONNX Runtime
    zero = rounded(t, r("MINIMUM", t.make("NEG", r("DIV", low, scale)), MOST))
    steps = r("MAXIMUM", r("DIV", x, scale), t.make("NEG", zero))
    return rounded(t, r("MINIMUM", steps, r.less(MOST, zero))), scale, zero


def hold(t: NodeTask, number: int, kind: str, reals: Term, *, scalar: bool, span: Span | None = None) -> None:
    """Set output `number` to numbers of a type that NNAPI lacks, held as reals. span: their range."""
    t.results[number] = Term(Value(UNTYPED, reals.value.shape), kind, scalar=scalar, span=span, reals=reals)


class NodeOnReals(NodeTask):
    """A node on integers that are held as reals; its outputs are held as reals too."""

    def __init__(self, graph: NodeGraph, node: OnnxNode, opset: int) -> None:
        super().__init__(graph, node, opset)
        self._kind = next(term.kind for term in map(graph.term, filter(None, node.inputs)) if term.reals is not None)
        calculates = self.facts.moves is None
        self.require(not calculates or self._kind == "INT32", f"of {self._kind} has no operation in NNAPI")
        self._seen = {
            place: reals_of(self, graph.term(name))
            for place, name in enumerate(node.inputs)
            if name and (calculates or graph.term(name).reals is not None)
        }

    def raw(self, place: int) -> Term:
        """Return input `place`, as reals if it is held so."""
        return self._seen.get(place) or super().raw(place)

    def result(self, number: int, term: Term, kind: str = "", *, scalar: bool | None = None) -> None:
        """Set output `number`, with the type of the input."""
        hold(self, number, self._kind, term, scalar=self.is_scalar(scalar), span=self._range(number))

    def same(self, term: Term, number: int = 0) -> None:
        """Set output `number` to an existing term."""
        hold(self, number, self._kind, term, scalar=term.scalar, span=self._range(number))

    def _range(self, number: int) -> Span | None:
        """Return the range of output `number`."""
        terms = [self.graph.term(name) for name in self.node.inputs if name]
        spans = [integer_range(term) for term in terms if term.kind == self._kind]
        return self.facts.span(Spans(spans, terms[0].value.shape, number)) if self.facts.span else None


class CentredNode(NodeTask):
    """A node on integers, computed on reals: its first two inputs are their values minus their zero points."""

    def __init__(self, graph: NodeGraph, node: OnnxNode, opset: int) -> None:
        super().__init__(graph, node, opset)
        self._inputs = [self._centred(place) for place in (0, 1)]
        self._most = self._greatest()

    def given(self, place: int) -> bool:
        """Hide the zero points, which are subtracted already."""
        return place < 2

    def raw(self, place: int) -> Term:
        """Return input `place`, minus its zero point."""
        return self._inputs[place]

    def result(self, number: int, term: Term, kind: str = "", *, scalar: bool | None = None) -> None:
        """Set output `number` to sums of 32 bits."""
        hold(self, number, "INT32", term, scalar=self.is_scalar(scalar), span=(-self._most, self._most))

    def _greatest(self) -> int:
        """Return the greatest magnitude that a sum may have."""
        (x, y), convolves = self._inputs, self.node.op == "ConvInteger"
        if y.data is not None:  # weights, which limit the sums
            weights = np.abs(np.asarray(y.data))
            self.budget.spend(Cost.MEMORY, weights.nbytes, self.label)
            axes = tuple(range(1, weights.ndim)) if convolves else max(0, weights.ndim - 2)
            return int(MOST * np.max(weights.sum(axes, np.float64), initial=0))
        counted = self.shape(y)[1:] if convolves else self.shape(x)[-1:]
        return int(MOST * MOST * math.prod(BEYOND if size is None else size for size in counted))

    def _centred(self, place: int) -> Term:
        names = self.node.inputs
        self.require(names[place], f"input {place} is left out, must be given")
        term, zero = self.graph.term(names[place]), None
        if place + 2 < len(names) and names[place + 2]:
            zero = self.graph.term(names[place + 2])
            one = zero.data is None or zero.data.size == 1
            self.require(one or term.data is not None, "has a zero point for each row of a computed input")
        if term.data is not None and (zero is None or zero.data is not None):
            self.budget.spend(Cost.MEMORY, 4 * term.data.size, self.label)
            integers = np.asarray(term.data).astype(np.int16)
            centre = np.zeros((), np.int16) if zero is None else self._spread(np.asarray(zero.data), place, integers)
            return constant(Value(F32), (integers - centre).astype(np.float32))
        reals = reals_of(self, term)
        if zero is None or (zero.data is not None and not zero.data.any()):
            return reals
        if zero.data is not None:
            return self.make("SUB", reals, self.scalar(float(zero.data.reshape(-1)[0]), reals), activation=0)
        return self.make("SUB", reals, reals_of(self, zero), activation=0)

    def _spread(self, zero: Array, place: int, integers: Array) -> Array:
        """Shape zero points for constants: one, or one for each column of a matrix or filter of a convolution."""
        if zero.size == 1:
            return zero.reshape(()).astype(np.int16)
        axis = 0 if self.node.op == "ConvInteger" else integers.ndim - 1 if place else integers.ndim - 2
        self.require(zero.ndim == 1 and zero.size == integers.shape[axis], f"has {zero.size} zero points")
        return zero.astype(np.int16).reshape([-1 if n == axis else 1 for n in range(integers.ndim)])


def reals_of(t: NodeTask, term: Term) -> Term:
    """Convert integers to reals."""
    if term.reals is not None:
        return term.reals
    if term.data is not None and term.data.dtype.kind in "iu":
        return constant(Value(F32), np.asarray(term.data).astype(np.float32))
    t.follows(term)
    if term.value.type == I32:
        return t.make("CAST", t.usable(term, "an input"), like=Value(F32))
    plain = term.value.type in ASYMMETRIC and (term.value.scale, term.value.zero_point) == (PLAIN_SCALE, 0)
    t.require(plain, f"is quantised {term.kind}, which the node reads as integers")
    return t.make("DEQUANTIZE", t.usable(term, "an input"), like=Value(F32))


@operator("MatMulInteger", inputs=(2, 4), task=CentredNode, apart=True, becomes="as MatMul, of the integers as reals")
def integer_product(t: NodeTask) -> None:
    """Write a MatMul of the inputs minus their zero points."""
    matmul(t)


@operator("ConvInteger", inputs=(2, 4), task=CentredNode, apart=True, becomes="as Conv, of the integers as reals")
def integer_convolution(t: NodeTask) -> None:
    """Write a Conv of the inputs minus their zero points; padding has the zero point's value."""
    convolution(t)
