"""The TFLite model under construction: the tensor of each operand, and how states enter and leave.

Tensors of TENSOR_FLOAT16 are float32 in the TFLite model and converted at its ends. Float16 constants stay float16
before a DEQUANTIZE, as converters write them, and XNNPACK folds these into its kernels.
"""

from collections.abc import Callable, Iterator, Sequence

from nnhal.base.codes import Lifetime, OperandType, type_name
from nnhal.base.operands import Array, Shape, Value, fixed, quantised
from nnhal.base.records import Record, replace
from nnhal.drivers.kit.variants import Refused
from nnhal.drivers.litert.flatbuffer import TENSOR_TYPES, FlatbufferWriter
from nnhal.drivers.litert.recipe import Lowered
from nnhal.model.graph import CONSTANTS, Model, consumers
from nnhal.model.validate import validate
from nnhal.ops.schema import F16, F32, Q8, Q8S, show

GIVEN = CONSTANTS | {Lifetime.SUBGRAPH_INPUT}
HALVES = (F16, OperandType.FLOAT16)
FLOATS = frozenset((F32, F16))
QUANTS = frozenset((Q8, Q8S))
SIGN = 128  # between the zero points of the two asymmetric 8-bit types, and the bit that differs
FINEST = 2.0**-126  # a scale: a smaller one is not a normal float32, and XNNPACK ends the process when it prepares it
COARSEST = 2.0**100  # a scale: LiteRT multiplies by up to 2**20 in float32, and ends the process if that is infinite
MOST = 2**31 - 1  # LiteRT's sizes, options and sums have 32 bits
# XNNPACK removes these if they change nothing
LEFT_OUT = frozenset(("ADD", "SUB", "MUL", "DIV", "MINIMUM", "MAXIMUM", "RESHAPE"))


class EngineTensor(Record, frozen=True):
    """A tensor of the TFLite model, and its description in NNAPI."""

    index: int
    value: Value


def require_scales(low: float, high: float) -> None:
    """Refuse scales, from the least to the greatest, that LiteRT does not compute with."""
    if low < FINEST or high > COARSEST:
        scale = low if low < FINEST else high
        raise Refused(f"scale is {scale:g}, must be from {FINEST:g} to {COARSEST:g}")


def has_eight_bits(model: Model) -> bool:
    """Whether any tensor of the model is quantised."""
    return any(quantised(operand.type) for operand in model.main.operands)


class Graph:
    """A main subgraph under conversion to a TFLite model: the tensor of each operand."""

    def __init__(self, model: Model, *, dynamic_range: bool = False, exact: bool = False) -> None:
        self.model, self.dynamic_range, self.exact = model, dynamic_range, exact
        self.integers: dict[int, EngineTensor] = {}  # constant weights, by the operand that has their real values
        self._put_off: dict[int, Callable[[], None]] = {}
        self.writer = FlatbufferWriter()
        self.values = list(validate(model).subgraphs[0].values)
        self.readers = consumers(model.main)
        self.feeds: list[tuple[int, int]] = []
        self.resets: list[tuple[int, Array]] = []
        self._tensors: dict[int, EngineTensor | None] = {}
        self._given: set[int] = set()  # tensors whose values the model does not compute
        self._places = {operand: number for number, operand in enumerate(model.main.inputs)}
        self._inputs: list[int] = []
        self.folded: set[int] = set()  # tensors that a DEQUANTIZE of a constant fills
        self._outputs: list[int] = []
        # of a tensor: the operator that writes it, and that operator's input
        self._sources: dict[int, tuple[str, int]] = {}
        self.numbers: set[int] = set()  # tensors of real values without NaN
        self._kept: list[int] = []  # tensors that the optimiser does not change, because they are outputs

    def finish(self) -> Lowered:
        """Write the model; every tensor that is still unknown is omitted."""
        main = self.model.main
        for number, operand in enumerate(main.inputs):
            tensor = self._tensors.get(operand)
            if tensor is not None:
                self._inputs.append(tensor.index)
                self.feeds.append((number, tensor.index))
        outputs: list[int | None] = []
        for operand in main.outputs:
            tensor = self._tensors.get(operand)
            if tensor is not None and tensor.value.shape == ():  # LiteRT gives no access to the memory of a scalar
                scalar, tensor = tensor, self.add(replace(tensor.value, shape=(1,)))
                self.writer.operator("RESHAPE", [scalar.index], [tensor.index], "Reshape", newShape=[1])
            if tensor is not None and tensor.index in self.folded:  # XNNPACK folds it away, and nothing writes it then
                source, tensor = tensor, self.add(replace(tensor.value, data=None))
                shape = list(source.value.known)
                self.writer.operator("RESHAPE", [source.index], [tensor.index], "Reshape", newShape=shape)
            outputs.append(None if tensor is None else tensor.index)
        states = {index for _, index in self.feeds} - set(self._inputs) | {index for index, _ in self.resets}
        listed = [index for index in outputs if index is not None and index not in states]
        content = self.writer.finish(self._inputs, list(dict.fromkeys([*listed, *self._kept])))
        values = tuple(self.values[operand] for operand in main.outputs)
        return Lowered(content, tuple(self.feeds), tuple(outputs), values, tuple(self.resets))

    def operand(self, index: int) -> EngineTensor | None:
        """Return the tensor of an operand; None if it has no value."""
        if index in self._put_off:
            self._put_off.pop(index)()
        if index not in self._tensors:
            tensor = self._tensors[index] = self._make(index)
            if tensor is not None and self.model.main.operands[index].lifetime in GIVEN:
                self._given.add(tensor.index)
        return self._tensors[index]

    def defer_constant(self, index: int, integers: EngineTensor, write: Callable[[], None]) -> None:
        """Register `write`, which writes the real values of constant integers when operand `index` is first requested."""
        self.integers[index] = integers
        self._put_off[index] = write

    def _make(self, index: int) -> EngineTensor | None:
        value, operand = self.values[index], self.model.main.operands[index]
        if value is None:
            return None
        data = self.model.constant(operand) if operand.lifetime in CONSTANTS else None
        if data is None and 0 in (value.shape or ()):
            raise Refused(f"LiteRT needs elements, but a tensor of shape {show(value.dims)} has none")
        return self.add(value, data)

    def add(self, value: Value, data: Array | None = None, *, variable: bool = False) -> EngineTensor:
        """Add a tensor of the given type, shape and quantisation; constant if `data` is given."""
        kind = TENSOR_TYPES.get(value.type)
        if kind is None:
            raise Refused(f"LiteRT has no tensors of {type_name(value.type)}")
        scales: Sequence[float] = (value.scale,) if value.scale else ()
        axis = 0
        if value.channel is not None:
            scales, axis = value.channel.scales, value.channel.axis
        if len(scales):
            require_scales(min(scales), max(scales))
        if max([size or 0 for size in value.shape or ()], default=0) > MOST:
            raise Refused(f"shape {show(value.dims)} exceeds LiteRT's 32 bits")
        quant = scales, value.zero_point, axis
        if data is not None and value.type in HALVES:
            half = self.writer.tensor("FLOAT16", value.shape, data=data, name=value.name and f"{value.name}/half")
            index = self.writer.tensor(kind, value.shape, name=value.name)
            self.writer.operator("DEQUANTIZE", [half], [index])
            self.folded.add(index)
            return EngineTensor(index, value)
        return EngineTensor(
            self.writer.tensor(kind, value.shape, *quant, data=data, variable=variable, name=value.name), value
        )

    def holds_state(self, index: int) -> bool:
        """Whether a state operand has a value before the run, as a variable tensor must."""
        return self.model.main.operands[index].lifetime in (*CONSTANTS, Lifetime.SUBGRAPH_INPUT)

    def state(self, index: int) -> EngineTensor:
        """Return a variable tensor that holds the value of state operand `index` before every run."""
        value, operand = self.values[index], self.model.main.operands[index]
        if value is None:
            raise Refused("a state is omitted, must be given")
        tensor = self.add(value, variable=True)
        if operand.lifetime in CONSTANTS:
            self.resets.append((tensor.index, self.model.constant(operand)))
        elif operand.lifetime == Lifetime.SUBGRAPH_INPUT:
            self.feeds.append((self._places[index], tensor.index))
        else:
            raise Refused(
                "a state is computed within the model, must be an input: LiteRT keeps states in variable tensors"
            )
        return tensor

    def read_state(self, index: int, tensor: EngineTensor) -> None:
        """Read output operand `index` from variable tensor `tensor` after every run."""
        if self.readers[index]:
            raise Refused(
                "a state is used within the model, must be an output: LiteRT keeps states in variable tensors"
            )
        self.alias(index, tensor)

    def undefined(self, index: int, shape: Shape) -> None:
        """Give output operand `index` this shape unless it is known, and undefined contents: it has no tensor."""
        value = self.values[index]
        if value is not None and fixed(value.shape) is None:
            self.values[index] = replace(value, shape=shape)

    def given(self, tensor: EngineTensor) -> bool:
        """Whether a tensor's value is not computed by the model; its DEQUANTIZE gives a float16 constant."""
        return tensor.index in self._given and tensor.index not in self.folded

    def derived(self, kind: str, inputs: Sequence[EngineTensor | None], result: EngineTensor) -> None:
        """Record the source of a tensor, if XNNPACK's optimiser may read the source instead."""
        computed = [x.index for x in inputs if x is not None and x.value.data is None]
        if kind == "TRANSPOSE" and inputs[0] is not None:
            self._sources[result.index] = kind, inputs[0].index
        elif kind in LEFT_OUT and len(computed) == 1:
            self._sources[result.index] = kind, computed[0]

    def keep_transposed(self, x: EngineTensor, y: EngineTensor) -> None:
        """Keep the transposed tensors that are the sources of both factors of a product.

        XNNPACK merges a TRANSPOSE of the second factor into the product by changing that TRANSPOSE in place. It also
        does so if the first factor is the same tensor, which is then transposed too. Outputs are safe from it.
        """
        both = set(self._line(x.index)).intersection(self._line(y.index))
        self._kept += [index for index in both if self._sources.get(index, ("",))[0] == "TRANSPOSE"]

    def _line(self, index: int) -> Iterator[int]:
        """Yield a tensor and its sources."""
        yield index
        while index in self._sources:
            _, index = self._sources[index]
            yield index

    def alias(self, index: int, tensor: EngineTensor) -> None:
        """Let operand `index`, which is new, be exactly this tensor."""
        self._tensors[index] = tensor
