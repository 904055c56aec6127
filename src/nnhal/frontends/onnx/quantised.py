"""Entries of quantised nodes: those with scales as inputs, and plain nodes between DequantizeLinear and QuantizeLinear.

They become NNAPI's quantised operations with the exact scales and zero points of the file.

The output of a DequantizeLinear is known as the real values of a stored tensor (`FileContext.stored`). If a node's
inputs are such outputs, and its only reader is a QuantizeLinear, the operation uses the stored tensors. Other nodes
read real values, which is exact too.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Array, ChannelQuant, Value
from nnhal.base.records import replace
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.folding import require_foldable
from nnhal.frontends.common.functions import RealArithmetic, rounded
from nnhal.frontends.common.terms import PLAIN_SCALE, Term, UnsupportedOperator, constant
from nnhal.frontends.common.writing import ASYMMETRIC, MOST_DIMENSIONS
from nnhal.frontends.onnx.dynamic import hold
from nnhal.frontends.onnx.expanded import ExpandedNode, expanded
from nnhal.frontends.onnx.file import DTYPES, OnnxNode
from nnhal.frontends.onnx.file import KINDS as FILE_KINDS
from nnhal.frontends.onnx.graph import NodeGraph
from nnhal.frontends.onnx.layers import dilated_filter, narrowed, ordered
from nnhal.frontends.onnx.products import is_row
from nnhal.frontends.onnx.task import OPERATORS, NodeTask, operator
from nnhal.frontends.onnx.windows import window
from nnhal.ops.schema import F32, I32, Q8, Q8PC, Q8S

KINDS = {"UINT8": Q8, "INT8": Q8S}
SIXTEEN = "UINT16", "INT16"
SHIFT = 128  # between the stored values of the two types


class QuantParams(NamedTuple):
    """Quantisation parameters: type, scale and zero point."""

    type: int
    scale: float
    zero_point: int

    def value(self) -> Value:
        """Return the type of such a tensor."""
        return Value(self.type, None, self.scale, self.zero_point)


def quant_params_of(value: Value) -> QuantParams:
    """Return the parameters of a tensor."""
    return QuantParams(value.type, value.scale, value.zero_point)


def quant_params_at(t: NodeTask, scale: int, zero: int, kind: str = "") -> QuantParams:
    """Return the scale and zero point of inputs, one number each. kind: for a node without a zero point."""
    of, step, first = numbers_at(t, scale, zero, kind)
    t.require(of in KINDS, f"stores values as {of}, must be UINT8 or INT8")
    return QuantParams(KINDS[of], step, first)


def numbers_at(t: NodeTask, scale: int, zero: int, kind: str) -> tuple[str, float, int]:
    """Return the type of stored numbers, and the scale and zero point of inputs."""
    found = np.asarray(t.data(scale, "the scale"))
    t.require(
        found.size == 1 and found.dtype == np.float32, "has several scales, or not of FLOAT, must have one of FLOAT"
    )
    number = float(found.reshape(-1)[0])
    t.require(math.isfinite(number) and number > 0, f"has scale {number:g}, must be above 0")
    if not t.given(zero):
        return kind or "UINT8", number, 0
    return kind_in_file(t, zero), number, int(np.asarray(t.data(zero, "the zero point")).reshape(-1)[0])


def kind_in_file(t: NodeTask, place: int) -> str:
    """Return the type of an input in the file, which may have less than eight bits."""
    return t.graph.context.packed.get(id(t.raw(place)), t.raw(place).kind)


# ---------------------------------------------------------------------------------------------------- QuantizeLinear & co.


def quant_params_behind(t: NodeTask) -> QuantParams:
    """Return the parameters of a QuantizeLinear. Without a zero point, `output_dtype` determines the type."""
    return quant_params_at(t, 1, 2, named_kind(t))


def named_kind(t: NodeTask) -> str:
    """Return the type that a QuantizeLinear without a zero point stores."""
    number = t.attr("output_dtype", 0)
    return FILE_KINDS.get(number, f"type {number}") if number else "UINT8"


def folded_quantise(t: NodeTask, x: Array, scale: Array, *zero: Array) -> Any:
    kind = kind_in_file(t, 2) if zero else named_kind(t)
    require_foldable(x.dtype == scale.dtype == np.float32 and kind in DTYPES and not t.attr("block_size", 0))
    limits = np.iinfo(DTYPES[kind])
    sizes = [1] * x.ndim
    if scale.size > 1:
        sizes[t.attr("axis", 1)] = scale.size
    steps, first = (each.reshape(sizes) for each in (scale, zero[0] if zero else np.zeros(scale.shape, DTYPES[kind])))
    return np.clip(np.rint(x / steps).astype(np.float64) + first, limits.min, limits.max), kind


@operator("QuantizeLinear", "com.microsoft.QuantizeLinear", inputs=(2, 3), apart=True, fold=folded_quantise,
          becomes="QUANTIZE; nothing where the operation before stores its result so; of 16 bits rounded reals")  # fmt: skip
def quantise(t: NodeTask) -> None:
    """Quantise real values. Numbers of 16 bits, which no operation of NNAPI reads, are held as reals."""
    kind, step, zero = numbers_at(t, 1, 2, named_kind(t))
    if kind in SIXTEEN:
        quantise_to_16_bits(t, kind, step, zero)
        return
    steps, x = quant_params_behind(t), t.x(0)
    stored = t.graph.context.stored.get(id(x))
    if stored is not None and quant_params_of(stored.value) == steps and stored.value.data is None:
        t.same(stored)
        return
    t.require(x.value.type == F32, f"has {x.kind}, must have FLOAT")
    t.result(0, converted(t, x, steps.value()), scalar=x.scalar)


def quantise_to_16_bits(t: NodeTask, kind: str, step: float, zero: int) -> None:
    """Round real values to numbers of 16 bits, and hold these as reals."""
    x, r, limits = t.x(0), RealArithmetic(t), np.iinfo(DTYPES[kind])
    t.require(x.value.type == F32, f"has {x.kind}, must have FLOAT")
    low, high = float(limits.min - zero), float(limits.max - zero)
    made = rounded(t, r("MINIMUM", r("MAXIMUM", r("DIV", in_few_dimensions(t, x), step), low), high))
    made = r("ADD", made, float(zero)) if zero else made
    hold(t, 0, kind, t.reshaped(made, t.known(x)), scalar=x.scalar)


def dequantise_16_bits(t: NodeTask, reals: Term, kind: str, *, scalar: bool) -> None:
    """Return the real values of numbers that are held as reals."""
    of, step, zero = numbers_at(t, 1, 2, kind)
    t.require(of == kind, f"is {kind} and has a zero point of {of}, must be of the same type")
    r, flat = RealArithmetic(t), in_few_dimensions(t, reals)
    made = r("MUL", r("SUB", flat, float(zero)) if zero else flat, step)
    t.result(0, t.reshaped(made, t.known(reals)), "FLOAT", scalar=scalar)


def in_few_dimensions(t: NodeTask, x: Term) -> Term:
    """Return a term, as a row if it has more dimensions than many operations take."""
    shape = t.shape(x)
    return x if len(shape) <= MOST_DIMENSIONS else t.reshaped(x, (math.prod(t.known(x)),))


def converted(t: NodeTask, x: Term, value: Value) -> Term:
    """Quantise or dequantise a term of any rank."""
    name = "DEQUANTIZE" if value.type == F32 else "QUANTIZE"
    return t.reshaped(t.make(name, in_few_dimensions(t, x), like=value), t.shape(x))


@operator("DequantizeLinear", "com.microsoft.DequantizeLinear", apart=True, inputs=(2, 3),
          becomes="DEQUANTIZE, unless the next operation reads the stored values; CAST; of 16 bits SUB, MUL")  # fmt: skip
def dequantise(t: NodeTask) -> None:
    """Dequantise stored values."""
    raw = t.raw(0)
    t.follows(raw)
    if raw.reals is not None and raw.kind in SIXTEEN:
        dequantise_16_bits(t, raw.reals, raw.kind, scalar=raw.scalar)
        return
    if raw.data is not None:
        real, stored = dequantised(t, raw)
        t.result(0, real, "FLOAT", scalar=raw.scalar)
        if stored is not None:
            t.later.append(lambda: t.graph.context.note_real_term(t.results[0], stored))
        return
    t.require(not t.attr("block_size", 0), "has scales for blocks of computed values, which NNAPI does not have")
    steps = quant_params_at(t, 1, 2, raw.kind if raw.kind in KINDS else "")
    found = seen_as(t, raw, steps)
    t.result(0, converted(t, found, Value(F32)), "FLOAT", scalar=raw.scalar)
    t.later.append(lambda: t.graph.context.note_real_term(t.results[0], found))


def seen_as(t: NodeTask, raw: Term, steps: QuantParams) -> Term:
    """Return an 8-bit tensor of the same stored values with these parameters.

    An input of the model that nothing has read yet gets them; a CAST, which ignores scales, gives them to others.
    """
    t.require(raw.value.type in ASYMMETRIC, f"of {raw.kind} that is computed, must be UINT8 or INT8")
    t.require(raw.value.type == steps.type, f"is {raw.kind} and has a zero point of another type")
    if quant_params_of(raw.value) == steps:
        return raw
    plain = (raw.value.scale, raw.value.zero_point) == (PLAIN_SCALE, 0)
    if (
        plain
        and t.graph.uses[raw.value.name] == t.node.inputs.count(raw.value.name)
        and id(raw) not in t.graph.context.aliased
        and any(raw is each for each in t.graph.inputs)
        and not t.graph.outer
    ):
        raw.value = replace(raw.value, scale=steps.scale, zero_point=steps.zero_point)
        return raw
    made = t.make("CAST", t.usable(raw, "an input"), like=steps.value())
    made.kind, made.scalar = raw.kind, raw.scalar
    return made


def dequantised(t: NodeTask, raw: Term) -> tuple[Term, Term | None]:
    """Return the real values of constants, and the constants in NNAPI's types if possible."""
    data, scale = np.asarray(raw.data), np.asarray(t.data(1, "the scale"))
    zero = np.asarray(t.data(2, "the zero point")) if t.given(2) else np.zeros(scale.shape, data.dtype)
    t.require(data.dtype.kind in "iu" and scale.dtype == np.float32, f"of {raw.kind} is not in NNAPI")
    t.require(scale.size == zero.size, f"has {scale.size} scales and {zero.size} zero points, must have equal numbers")
    if size := t.attr("block_size", 0):
        return constant(Value(F32), of_blocks(t, data, scale, zero, size)), None
    axis = 0
    sizes = [1] * data.ndim
    if scale.size > 1:
        axis = t.axis(t.attr("axis", 1), data.ndim)
        t.require(scale.size == data.shape[axis], f"has {scale.size} scales, must have {data.shape[axis]}")
        sizes[axis] = -1
    t.budget.spend(Cost.MEMORY, 4 * data.size, t.label)
    centred = data.astype(np.int64) - zero.astype(np.int64).reshape(sizes if scale.size > 1 else ())
    factor = scale.reshape(sizes) if scale.size > 1 else scale.reshape(())
    real = constant(Value(F32), (centred.astype(np.float32) * factor).astype(np.float32))
    return real, stored_as(data, scale.reshape(-1), zero.reshape(-1), axis, raw)


def of_blocks(t: NodeTask, data: Array, scale: Array, zero: Array, size: int) -> Array:
    """Return the real values of constants with a scale and zero point for each block of elements along an axis."""
    axis = t.axis(t.attr("axis", 1), data.ndim)
    wanted = tuple(-(-d // size) if n == axis else d for n, d in enumerate(data.shape)) if size > 0 else ()
    must = f"block_size is {size} and the scales have shape {list(scale.shape)}, must fit {list(data.shape)}"
    t.require(size > 0 and scale.shape == wanted == zero.shape, must)
    t.budget.spend(Cost.MEMORY, 16 * data.size, t.label)
    size = min(size, max(1, data.shape[axis]))
    steps, first = (each.repeat(size, axis).take(range(data.shape[axis]), axis) for each in (scale, zero))
    return ((data.astype(np.int64) - first.astype(np.int64)).astype(np.float32) * steps).astype(np.float32)


def stored_as(data: Array, scales: Array, zeros: Array, axis: int, raw: Term) -> Term | None:
    """Return stored constants in an NNAPI type, None if there is no such type."""
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        return None
    first = float(scales[0])
    if data.dtype == np.int32:
        return constant(Value(I32, None, first if scales.size == 1 else 0.0), data, "INT32", raw.blob)
    if scales.size == 1:
        kind = {np.dtype("u1"): Q8, np.dtype("i1"): Q8S}.get(data.dtype)
        return None if kind is None else constant(Value(kind, None, first, int(zeros[0])), data, raw.kind, raw.blob)
    channel = ChannelQuant(tuple(map(float, scales)), axis)
    if data.dtype == np.int8 and not zeros.any():
        return constant(Value(Q8PC, None, channel=channel), data, raw.kind, raw.blob)
    if data.dtype == np.uint8 and (zeros == SHIFT).all():
        return constant(Value(Q8PC, None, channel=channel), (data.astype(np.int16) - SHIFT).astype(np.int8), raw.kind)
    return None


# --------------------------------------------------------------------------------------- plain nodes, on stored values


class StoredNode(NodeTask):
    """A node that moves elements, applied to the stored values; its result has the same parameters."""

    eight = True

    def __init__(self, graph: NodeGraph, node: OnnxNode, opset: int) -> None:
        super().__init__(graph, node, opset)
        self._stored: dict[int, Term] = {}
        for place in range(len(node.inputs) if self.facts.joins else 1):
            term = super().raw(place)
            stored = graph.context.stored.get(id(term))
            usual = stored is not None and stored.value.type in ASYMMETRIC and stored.value.data is None
            if stored is None or not usual or id(term) in graph.context.rectified:
                raise UnsupportedOperator
            self._stored[place] = stored
        if len({quant_params_of(term.value) for term in self._stored.values()}) > 1:
            raise UnsupportedOperator

    def raw(self, place: int) -> Term:
        """Return input `place` as stored."""
        return self._stored.get(place) or super().raw(place)

    def result(self, number: int, term: Term, kind: str = "", *, scalar: bool | None = None) -> None:
        """Set output `number` to the real values of a term with the input's parameters."""
        if quant_params_of(term.value) != quant_params_of(self._stored[0].value):
            raise UnsupportedOperator
        one = self.is_scalar(scalar) and term.value.shape == (1,)
        if term.scalar != one and not self.wrote(term):
            term = self._view(term)
        term.kind, term.scalar = self._stored[0].kind, one
        super().result(number, converted(self, term, Value(F32)), "FLOAT", scalar=scalar)
        self.later.append(lambda: self.graph.context.note_real_term(self.results[number], term))

    def same(self, term: Term, number: int = 0) -> None:
        """Set output `number` to an existing term."""
        raise UnsupportedOperator


class WantedQuantParams(NamedTuple):
    """The parameters of the QuantizeLinear behind a node, and the activation before it."""

    steps: QuantParams
    activation: Activation


def wanted(t: NodeTask) -> WantedQuantParams | None:
    """Return them for a node that only a QuantizeLinear reads, maybe through a Relu."""
    graph, name, activation = t.graph, t.node.outputs[0], Activation.NONE
    for _ in range(2):
        reader = graph.only_reader(name)
        if reader is None:
            return None
        if reader.op == "QuantizeLinear" and reader.inputs[0] == name and not reader.domain:
            try:
                return WantedQuantParams(quant_params_behind(NodeTask(graph, reader, t.opset)), activation)
            except UnsupportedOperator:
                return None
        if reader.op != "Relu" or reader.domain or activation:
            return None
        activation, name = Activation.RELU, reader.outputs[0]
    return None


def give(t: NodeTask, made: Term, out: WantedQuantParams) -> None:
    """Set the node's output to the real values of a stored term."""
    made.kind, made.scalar = kind_of(out.steps), t.is_scalar()
    t.result(0, converted(t, made, Value(F32)), "FLOAT", scalar=made.scalar)
    if out.activation:
        t.graph.context.rectified.add(id(t.results[0]))
    t.later.append(lambda: t.graph.context.note_real_term(t.results[0], made))


def on_stored_values(*names: str, inputs: int | None = 1) -> Callable[[Callable[..., Term]], Callable[..., Term]]:
    """Register a function that lowers plain nodes on stored values.

    It gets the task, the wanted parameters and the first inputs as stored, and returns the stored result. inputs: their
    number; None for all.
    """

    def add(function: Callable[..., Term]) -> Callable[..., Term]:
        def lower(t: NodeTask) -> None:
            out, count = wanted(t), len(t.node.inputs) if inputs is None else inputs
            terms = [t.graph.context.stored.get(id(t.raw(place))) for place in range(count)]
            if out is None or None in terms:
                raise UnsupportedOperator
            give(t, function(t, out, *terms), out)

        OPERATORS.update({name: replace(OPERATORS[name], quantised=lower) for name in names})
        return function

    return add


def alike(x: Term, out: QuantParams) -> None:
    """Check the types: NNAPI's operations return the type of their input."""
    if x.value.type != out.type:
        raise UnsupportedOperator


def kind_of(steps: QuantParams) -> str:
    """Return ONNX's name of the type."""
    return "UINT8" if steps.type == Q8 else "INT8"


@on_stored_values("Add", "Sub", "Mul", inputs=2)
def arithmetic(t: NodeTask, out: WantedQuantParams, x: Term, y: Term) -> Term:
    """Combine two stored tensors."""
    alike(x, out.steps)
    alike(y, out.steps)
    return t.run(t.facts.to, x, y, activation=int(out.activation), outs=[out.steps.value()])[0]


@on_stored_values("Sigmoid", "Tanh", "Softmax")
def fixed(t: NodeTask, out: WantedQuantParams, x: Term) -> Term:
    """Lower nodes whose results have fixed parameters in NNAPI."""
    alike(x, out.steps)
    if out.activation:
        raise UnsupportedOperator
    if t.name != "Softmax":
        return t.run(t.facts.to, x, outs=[out.steps.value()])[0]
    rank = t.rank(x)
    axis = t.axis(t.attr("axis", 1 if t.opset < 13 else -1), rank)
    if t.opset < 13 and axis != rank - 1:
        raise UnsupportedOperator
    return t.run(t.facts.to, x, 1.0, axis, outs=[out.steps.value()])[0]


@on_stored_values("Concat", inputs=None)
def concatenated(t: NodeTask, out: WantedQuantParams, *terms: Term) -> Term:
    """Concatenate; each input may have different parameters."""
    for term in terms:
        alike(term, out.steps)
    if out.activation:
        raise UnsupportedOperator
    axis = t.axis(t.attr("axis", 0), t.rank(terms[0]))
    return t.run("CONCATENATION", *terms, axis, outs=[out.steps.value()])[0]


@on_stored_values("GlobalAveragePool", "AveragePool")
def averaged(t: NodeTask, out: WantedQuantParams, x: Term) -> Term:
    """Write a mean of pictures, whose result has the same parameters in NNAPI."""
    if quant_params_of(x.value) != out.steps or t.rank(x) != 4:
        raise UnsupportedOperator
    kernel = list(t.known(x)[2:]) if t.name == "GlobalAveragePool" else t.attr.ints("kernel_shape")
    w = window(t, kernel, t.shape(x)[2:])
    plain = (
        w.dilation == [1, 1]
        and not t.attr("ceil_mode", 0)
        and not (t.attr("count_include_pad", 0) and any(map(sum, w.pads)))
    )
    if not plain or len(kernel) != 2:
        raise UnsupportedOperator
    size = {"filter_w": w.size[1], "filter_h": w.size[0]}
    how = {**w.padding(), **w.strides(), **size}
    return t.run("AVERAGE_POOL_2D", x, **how, activation=int(out.activation), nchw=True, outs=[out.steps.value()])[0]


# ----------------------------------------------------------------------------------------------------------------- layers


def filter_for(x: Term, w: Term) -> Term:
    """Convert stored weights to an input's type: shifting the other 8-bit type by 128 changes no real value."""
    if w.value.type in (Q8PC, x.value.type):
        return w
    data = np.asarray(w.value.data).astype(np.int16) + (SHIFT if x.value.type == Q8 else -SHIFT)
    zero = w.value.zero_point + (SHIFT if x.value.type == Q8 else -SHIFT)
    return constant(
        replace(w.value, type=x.value.type, zero_point=zero, data=None),
        data.astype(np.uint8 if x.value.type == Q8 else np.int8),
    )


def bias_for(t: NodeTask, x: Term, w: Term, units: int, given: Array | None, scales: Array | None) -> Term:
    """Return the bias at the scale of the products. given: real values, or the stored ones if `scales` is None."""
    channel = w.value.channel
    factor = np.asarray(channel.scales if channel else [w.value.scale], np.float64) * x.value.scale
    value = Value(I32, None, 0.0 if channel else float(np.float32(x.value.scale) * np.float32(w.value.scale)))
    if given is None:
        return constant(value, np.zeros(units, np.int32))
    if scales is None:
        return constant(value, given.astype(np.int32).reshape(-1))
    whole = np.rint(given.astype(np.float64).reshape(-1) / factor)
    t.require(bool((np.abs(whole) < 2**31).all()) and whole.size == units, "has a bias that does not fit 32 bits")
    return constant(value, whole.astype(np.int32))


def real_bias(t: NodeTask, place: int) -> Array | None:
    """Return the real values of a constant bias."""
    if not t.given(place):
        return None
    data = t.raw(place).data
    if data is None or data.dtype != np.float32 or not is_row(data):
        raise UnsupportedOperator
    return data


class StoredLayer(NamedTuple):
    """A layer on stored values. bias, real: its stored or real values."""

    x: Term
    weights: Term
    bias: Array | None
    real: bool
    out: QuantParams
    activation: Activation


def with_matching_weights(layer: StoredLayer) -> StoredLayer:
    """Return the layer with weights of the input's type; UnsupportedOperator if NNAPI has no such type."""
    if layer.x.value.type not in ASYMMETRIC or layer.weights.value.type not in (Q8, Q8S, Q8PC):
        raise UnsupportedOperator
    if layer.weights.value.data is None:
        raise UnsupportedOperator
    alike(layer.x, layer.out)
    return layer._replace(weights=filter_for(layer.x, layer.weights))


def convolved(t: NodeTask, layer: StoredLayer) -> Term:
    """Convolve stored values."""
    x, weights = layer.x, layer.weights
    channel = weights.value.channel
    if channel is not None and channel.axis != 0:
        raise UnsupportedOperator
    shape, sizes = list(t.known(weights)), t.shape(x)
    if len(shape) != 4 or len(sizes) != 4:
        raise UnsupportedOperator
    units, inner, *kernel = shape
    groups, w = t.attr("group", 1), window(t, kernel, sizes[2:])
    t.require(groups >= 1 and inner * groups == sizes[1] and units % groups == 0, f"{groups} groups do not fit")
    more: dict[str, Any]
    if inner == 1 and groups > 1:
        name, order, axis = "DEPTHWISE_CONV_2D", (1, 2, 3, 0), 3
        more = {"depth_multiplier": units // groups, **w.dilations()}
    else:
        name, order, axis = ("CONV_2D" if groups == 1 else "GROUPED_CONV_2D"), (0, 2, 3, 1), 0
        more = w.dilations() if groups == 1 else {"groups": groups}
    filter_ = ordered(t, weights, order, shape)
    filter_.value = replace(filter_.value, channel=channel and ChannelQuant(channel.scales, axis))
    if groups > 1 and inner > 1 and w.dilation != [1, 1]:
        if weights.value.zero_point:
            raise UnsupportedOperator
        filter_ = constant(replace(filter_.value, data=None), dilated_filter(t, np.asarray(filter_.value.data), w))
    x, w = narrowed(t, x, w, x.value.zero_point)
    bias = bias_for(t, x, filter_, units, layer.bias, np.zeros(0) if layer.real else None)
    how = {**w.padding(), **w.strides(), **more}
    return t.run(name, x, filter_, bias, **how, activation=int(layer.activation), nchw=True, outs=[layer.out.value()])[
        0
    ]


def multiplied(t: NodeTask, layer: StoredLayer, *, turned: bool) -> Term:
    """Multiply rows by constant weights, on stored values. turned: whether those are [units, size]."""
    x, weights = layer.x, layer.weights
    if weights.value.channel is not None or t.rank(weights) != 2:
        raise UnsupportedOperator
    data = np.asarray(weights.value.data)
    w = weights if turned else constant(replace(weights.value, data=None), np.ascontiguousarray(data.T))
    units, size = t.known(w)
    sizes = t.shape(x)
    lead = sizes[:-1]
    rows = None if None in lead else math.prod(d or 0 for d in lead)
    flat = x if len(sizes) == 2 else t.reshaped(x, (rows, size))
    bias = bias_for(t, x, w, units, layer.bias, np.zeros(0) if layer.real else None)
    (made,) = t.run("FULLY_CONNECTED", flat, w, bias, activation=int(layer.activation), outs=[layer.out.value()])
    return made if len(sizes) == 2 else t.reshaped(made, (*lead, units))


@on_stored_values("Conv", inputs=2)
def convolution(t: NodeTask, out: WantedQuantParams, x: Term, w: Term) -> Term:
    """Lower a Conv between DequantizeLinear and QuantizeLinear."""
    return convolved(t, with_matching_weights(StoredLayer(x, w, real_bias(t, 2), True, out.steps, out.activation)))


@on_stored_values("MatMul", "Gemm", inputs=2)
def product(t: NodeTask, out: WantedQuantParams, x: Term, w: Term) -> Term:
    """Lower a product between DequantizeLinear and QuantizeLinear."""
    gemm = t.name == "Gemm"
    if gemm and not (t.attr("alpha", 1.0) == t.attr("beta", 1.0) == 1 and not t.attr("transA", 0)):
        raise UnsupportedOperator
    bias = real_bias(t, 2) if gemm else None
    layer = with_matching_weights(StoredLayer(x, w, bias, True, out.steps, out.activation))
    return multiplied(t, layer, turned=gemm and bool(t.attr("transB", 0)))


# -------------------------------------------------------------------------------- nodes with scales among their inputs


def stored_input(t: NodeTask, place: int, scale: int, zero: int, axis: int = 0) -> Term:
    """Return an 8-bit input with the parameters of other inputs. axis: the dimension of several parameters."""
    raw = t.raw(place)
    if raw.data is not None:
        data, scales = np.asarray(raw.data), np.asarray(t.data(scale, "the scale")).reshape(-1)
        zeros = (
            np.asarray(t.data(zero, "the zero point")).reshape(-1)
            if t.given(zero)
            else np.zeros(scales.size, data.dtype)
        )
        found = stored_as(data, scales, np.broadcast_to(zeros, scales.shape), axis % max(1, data.ndim), raw)
        if found is None:
            t.refuse(f"input {place} is {raw.kind} with scales and zero points that NNAPI has no type for")
        return found
    return seen_as(t, t.usable(raw, f"input {place}"), quant_params_at(t, scale, zero, raw.kind))


def finish(t: NodeTask, made: Term, steps: QuantParams, *, scalar: bool = False) -> None:
    """Set the node's output to a stored term."""
    t.result(0, made, kind_of(steps), scalar=scalar)


def of_reals(t: ExpandedNode, op: str, axes: tuple[int, int], out: int, bias: Sequence[str], **how: Any) -> None:
    """Write an operator between DequantizeLinear and QuantizeLinear, whose nodes use stored values where they can.

    axes: those of several scales of its two inputs. out: the input with the scale of the output.
    """
    x, w = (
        t.write("DequantizeLinear", *map(t.input, range(3 * n, 3 * n + 3)), axis=axis) for n, axis in enumerate(axes)
    )
    made = t.write(op, x, w, *bias, gives=None if t.given(out) else 0, **how)
    if t.given(out):
        t.write("QuantizeLinear", made, t.input(out), t.input(out + 1), gives=0)


def bias_of_reals(t: ExpandedNode, place: int, alpha: float = 1.0) -> list[str]:
    """Write the real values of a bias, whose scale is the product of those of the first two inputs, and a factor."""
    if not t.given(place):
        return []
    steps = t.write("Mul", t.input(1), t.input(4))
    steps = steps if alpha == 1 else t.write("Mul", steps, t.constant(alpha))
    return [t.write("Mul", t.write("CastLike", t.input(place), t.input(1)), steps)]


def convolution_of_reals(t: ExpandedNode) -> None:
    """Convolve pictures of other dimensions than NNAPI's."""
    how = {name: t.attr(name) for name in ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")}
    of_reals(t, "Conv", (0, 0), 6, bias_of_reals(t, 8), **how)


@operator("QLinearConv", apart=True, inputs=(8, 9), by_rank=dict.fromkeys((3, 5), convolution_of_reals),
          becomes="CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D, quantised, in NCHW")  # fmt: skip
def linear_convolution(t: NodeTask) -> None:
    """Convolve with the parameters of input, weights and output."""
    x, w, out = stored_input(t, 0, 1, 2), stored_input(t, 3, 4, 5), quant_params_at(t, 6, 7)
    bias = np.asarray(t.data(8, "the bias")) if t.given(8) else None
    try:
        layer = with_matching_weights(StoredLayer(x, w, bias, False, out, Activation.NONE))
        finish(t, convolved(t, layer), out)
    except UnsupportedOperator as error:
        t.refuse(str(error) or "has types or a rank that NNAPI's quantised layers reject")


@expanded("QLinearMatMul", apart=True, inputs=8,
          becomes="FULLY_CONNECTED, quantised; with scales of columns, or computed weights, MatMul of reals")  # fmt: skip
def linear_product(t: ExpandedNode) -> None:
    """Multiply with the parameters of both inputs (maybe for each row or column) and of the output."""
    of_reals(t, "MatMul", (-2, -1), 6, ())


@expanded("com.microsoft.QGemm", inputs=(6, 9),
          becomes="FULLY_CONNECTED, quantised; with scales of columns, or computed weights, Gemm of reals")  # fmt: skip
def linear_gemm(t: ExpandedNode) -> None:
    """Multiply; the output has real values if its scale is left out."""
    how = {name: t.attr(name) for name in ("alpha", "transA", "transB")}
    bias = bias_of_reals(t, 6, t.attr("alpha", 1.0))
    of_reals(t, "Gemm", (0, 0 if t.attr("transB", 0) else 1), 7, bias, **how)


@operator("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul", inputs=8, becomes="ADD, MUL, quantised")
def linear_arithmetic(t: NodeTask) -> None:
    """Combine with the parameters of both inputs and of the output."""
    x, y, out = stored_input(t, 0, 1, 2), stored_input(t, 3, 4, 5), quant_params_at(t, 6, 7)
    t.require(x.value.type == y.value.type == out.type, "has inputs and output of several types, must have one")
    name = t.name.removeprefix("com.microsoft.QLinear").upper()
    finish(t, t.run(name, x, y, activation=0, outs=[out.value()])[0], out, scalar=x.scalar and y.scalar)


@operator("com.microsoft.QLinearSigmoid", "com.microsoft.QLinearLeakyRelu", inputs=5,
          becomes="LOGISTIC, PRELU of real values")  # fmt: skip
def linear_function(t: NodeTask) -> None:
    """Compute through real values, which rounds once."""
    x, out = stored_input(t, 0, 1, 2), quant_params_at(t, 3, 4, t.raw(0).kind)
    real = t.make("DEQUANTIZE", x, like=Value(F32))
    if t.name.endswith("Sigmoid"):
        made = t.make("LOGISTIC", real)
    else:
        made = t.make("PRELU", real, t.scalar(t.attr("alpha", 0.01), real))
    finish(t, t.run("QUANTIZE", made, outs=[out.value()])[0], out, scalar=x.scalar)


@operator("com.microsoft.QLinearGlobalAveragePool", inputs=5, becomes="MEAN of real values")
def linear_mean(t: NodeTask) -> None:
    """Compute through real values, which rounds once."""
    x, out = stored_input(t, 0, 1, 2), quant_params_at(t, 3, 4)
    rank = t.rank(x)
    axes = list(range(1, rank - 1)) if t.attr("channels_last", 0) else list(range(2, rank))
    made = t.make("MEAN", t.make("DEQUANTIZE", x, like=Value(F32)), t.integers(axes), True)
    finish(t, t.run("QUANTIZE", made, outs=[out.value()])[0], out)


@operator("com.microsoft.QLinearConcat", inputs=(5, None), becomes="CONCATENATION, quantised")
def linear_concat(t: NodeTask) -> None:
    """Concatenate inputs with different parameters."""
    out = quant_params_at(t, 0, 1)
    terms = [stored_input(t, n, n + 1, n + 2) for n in range(2, len(t.node.inputs), 3)]
    t.require(all(term.value.type == out.type for term in terms), "has inputs of several types, must have one")
    axis = t.axis(t.attr("axis", 0), t.rank(terms[0]))
    finish(t, t.run("CONCATENATION", *terms, axis, outs=[out.value()])[0], out)
