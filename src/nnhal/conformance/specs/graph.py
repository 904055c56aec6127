"""Operands and models of a test specification."""

from collections.abc import Iterable, Sequence
from enum import Enum
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from nnhal.base.codes import OperandType, OperationType
from nnhal.base.errors import InvalidArgument
from nnhal.base.levels import VERSIONS
from nnhal.base.operands import Array


def known_version(version: str | None) -> str | None:
    """The version itself, None for that of no HAL. InvalidArgument for a version that NNAPI lacks."""
    if version is not None and version not in VERSIONS:
        raise InvalidArgument(f"version is {version!r}, must be None or one of {', '.join(VERSIONS)}")
    return version


class Visible:
    """An object whose attributes a specification may use, except those that begin with an underscore."""


class UniqueNames:
    """The names of one namespace: a name that is taken gets a number."""

    def __init__(self, separator: str = "", first: int = 1) -> None:
        self._taken: set[str] = set()
        self._separator, self._first = separator, first

    def unique(self, base: object) -> str:
        """The name itself, or the name with the first free number."""
        base = name = str(base)  # a specification may number its operands
        number = self._first
        while name in self._taken:
            name, number = f"{base}{self._separator}{number}", number + 1
        self._taken.add(name)
        return name


class SpecConfiguration(Visible):
    """Settings that a specification may change. use_shm_for_weights: constants lie in shared memory."""

    use_shm_for_weights = False


class SymmPerChannelQuantParams(Visible):
    """Scales along one dimension. hide: they take part in conversions and are not written."""

    def __init__(self, channelDim: int, scales: Sequence[float], hide: bool = False) -> None:
        self.channelDim, self.scales, self.hide = channelDim, scales, hide

    def along(self, dimensions: Sequence[int]) -> Array:
        """The scales in a shape that broadcasts to `dimensions`."""
        shape = [1] * len(dimensions)
        shape[self.channelDim] = -1
        return np.array(self.scales).reshape(shape)


class SpecType(NamedTuple):
    """The type of an operand; real value = (element - zeroPoint) * scale."""

    type: str
    dimensions: tuple[int, ...] = ()
    scale: float = 0.0
    zeroPoint: int = 0
    extraParams: SymmPerChannelQuantParams | None = None

    def GetNumberOfElements(self) -> int:
        """Return how many elements a value has."""
        return prod(self.dimensions)

    def IsFloat(self) -> bool:
        """Return whether elements are floating-point numbers."""
        return self.type.endswith(("FLOAT32", "FLOAT16"))

    def IsBool(self) -> bool:
        """Return whether elements are booleans."""
        return self.type in {"BOOL", "TENSOR_BOOL8"}

    def IsScalar(self) -> bool:
        """Return whether it is the type of a scalar."""
        return not self.type.startswith("TENSOR_")


def type_of(kind: Any, dimensions: Any = (), scale: Any = 0, zero: Any = 0, extra: Any = None) -> SpecType:
    """A type as a specification writes it. InvalidArgument for a type that NNAPI lacks and for wrong dimensions."""
    if kind not in OperandType.__members__:
        raise InvalidArgument(f"operand type is {kind!r}, must be one of {', '.join(OperandType.__members__)}")
    numbers = (int, float, np.number)
    if not isinstance(dimensions, (list, tuple)) or any(
        not isinstance(d, numbers) or int(d) != d or d < 0 for d in dimensions
    ):
        raise InvalidArgument(f"dimensions are {dimensions!r}, must be a list of integers that are at least 0")
    if not isinstance(extra, SymmPerChannelQuantParams | None):
        raise InvalidArgument(f"extraParams is {extra!r}, must be SymmPerChannelQuantParams(channelDim, scales)")
    return SpecType(kind, tuple(map(int, dimensions)), float(scale), int(zero), extra)


def type_of_text(kind: str, shape: str, extra: Any = None) -> SpecType:
    """Parses a type in the older notation, whose shape is text such as "{2, 3}, 0.5f, 127"."""
    dimensions, _, quantisation = shape.strip().removeprefix("{").partition("}")
    numbers = [text.strip().removesuffix("f") for text in quantisation.split(",") if text.strip()]
    try:
        scale, zero = [*map(float, numbers), 0.0, 0.0][:2]
        return type_of(kind, [int(d) for d in dimensions.split(",") if d.strip()], scale, zero, extra)
    except ValueError:
        raise InvalidArgument(f"shape is {shape!r}, must be such as '{{2, 3}}' or '{{2, 3}}, 0.5f, 127'") from None


class OperandKind(Enum):
    """The part of an operand in its model."""

    INPUT = "SUBGRAPH_INPUT"
    OUTPUT = "SUBGRAPH_OUTPUT"
    IGNORED = "SUBGRAPH_OUTPUT of which values are not compared"
    PARAMETER = "constant"
    SHORTHAND = "constant that never becomes an input"
    INTERNAL = "TEMPORARY_VARIABLE"
    SUBGRAPH = "SUBGRAPH"


class SpecOperand(Visible):
    """One operand. Operands of the same name are the same operand, in a model and in its variations."""

    def __init__(self, name: str, type: SpecType, kind: OperandKind, value: Any = None, lifetime: str = "") -> None:
        self.name, self.type, self.kind = name, type, kind
        self.lifetime = lifetime or (OperandKind.OUTPUT if kind is OperandKind.IGNORED else kind).value
        self.may_be_internal = True
        self.value: Sequence[Any] | None = None
        self.SetValue(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecOperand) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    @property
    def is_output(self) -> bool:
        """Whether it is an output of its model, compared or not."""
        return self.kind in {OperandKind.OUTPUT, OperandKind.IGNORED}

    def SetValue(self, value: Any) -> Self:
        """Set the elements: a list, or one element."""
        self.value = value if value is None or type(value) in {list, tuple} else [value]
        return self

    def SetValueFromNumpy(self, value: Array) -> Self:
        """Set the elements of an array."""
        self.value = value.flatten().tolist()
        return self

    def GetValueAsNumpy(self) -> Array:
        """The elements in the operand's shape."""
        return np.array(self.value).reshape(self.type.dimensions)

    def ShouldNeverBeInternal(self) -> Self:
        """Excludes it from the variations that convert inputs into internal operands."""
        self.may_be_internal = False
        return self

    def feed(self, values: Any) -> None:
        """Set the elements that an example gives."""
        if self.kind is OperandKind.IGNORED:
            self.value = [0] * self.type.GetNumberOfElements()
        elif not isinstance(values, dict):
            self.SetValue(values)
        elif self in values:
            self.SetValue(values[self])
        else:
            raise InvalidArgument(f"example has no values of {self.name}, must have those of every input and output")

    def converted(self, kind: OperandKind, name: str = "") -> "SpecOperand":
        """The operand as another kind; an internal one has no value."""
        value = None if kind is OperandKind.INTERNAL else self.value
        made = SpecOperand(name or self.name, self.type, kind, value)
        made.may_be_internal = self.may_be_internal
        return made

    def copy(self, copied: "dict[int, SpecModel]") -> "SpecOperand":
        """A copy; subgraphs are copied once each."""
        value: Any = self.value
        if self.kind is OperandKind.SUBGRAPH and value:
            value = [model.copy(copied) for model in value]
        made = SpecOperand(self.name, self.type, self.kind, value, self.lifetime)
        made.may_be_internal = self.may_be_internal
        return made


class SpecOperation(NamedTuple):
    """One operation, with the names of its operands."""

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OperandMaker:
    """Makes operands in the namespace of one specification."""

    def __init__(self, configuration: SpecConfiguration) -> None:
        self._names = UniqueNames()
        self._configuration = configuration

    def variable(self, name: str, type: SpecType, kind: OperandKind, value: Any = None) -> SpecOperand:
        """Makes an operand that is not a constant."""
        return SpecOperand(self._names.unique(name), type, kind, value)

    def constant(self, name: str, type: SpecType, value: Any, kind: OperandKind = OperandKind.SHORTHAND) -> SpecOperand:
        """A constant; an omitted one where the value is None. The name of its initializer is taken, too."""
        unique = self._names.unique(name)
        self._names.unique(f"{unique}_init")
        shared = self._configuration.use_shm_for_weights
        lifetime = "NO_VALUE" if value is None else "CONSTANT_REFERENCE" if shared else "CONSTANT_COPY"
        return SpecOperand(unique, type, kind, value, "SUBGRAPH" if kind is OperandKind.SUBGRAPH else lifetime)

    def subgraph(self, name: str, model: "SpecModel") -> SpecOperand:
        """An operand that refers to a model. A model without a name gets that of the operand."""
        if not isinstance(model, SpecModel):
            raise InvalidArgument(f"subgraph of {name} is {model!r}, must be a Model")
        operand = self.constant(name, type_of("SUBGRAPH"), [model], OperandKind.SUBGRAPH)
        model.name = model.name or operand.name
        return operand

    def implicit(self, value: Any) -> SpecOperand:
        """An operand, or the constant that a plain value in its place means."""
        if isinstance(value, SpecOperand):
            return value
        if isinstance(value, SpecModel):
            return self.subgraph("param", value)
        scalars = {int: "INT32", float: "FLOAT32", bool: "BOOL"}
        if type(value) in scalars:
            return self.constant("param", type_of(scalars[type(value)]), value)
        for element, kind in (int, "TENSOR_INT32"), (float, "TENSOR_FLOAT32"):
            if type(value) in {list, tuple} and all(type(each) is element for each in value):
                return self.constant("param", type_of(kind, [len(value)]), value)
        raise InvalidArgument(f"operand is {value!r}, must be an operand, a number, a list of numbers or a model")


class SpecModel(Visible):
    """One model: operands in the order in which they were named, operations, and the version that introduced it."""

    def __init__(self, maker: OperandMaker, name: str | None = None, version: str | None = None) -> None:
        self._maker = maker
        self.name, self.version = name, version
        self.named: dict[str, SpecOperand] = {}
        self.operations: list[SpecOperation] = []
        self.isRelaxed = False

    def Operation(self, type: str, *inputs: Any) -> Self:
        """Add an operation. A plain value stands for a constant."""
        if type not in OperationType.__members__:
            raise InvalidArgument(f"operation is {type!r}, must be one of NNAPI's operations, such as ADD")
        made = [self._maker.implicit(value) for value in inputs]
        self.operations.append(SpecOperation(type, self._add(made), ()))
        return self

    def To(self, *outputs: Any) -> Self:
        """Set the outputs of the operation that was added last."""
        if not self.operations:
            raise InvalidArgument("To stands before any operation, must follow Operation")
        given = outputs[0] if outputs and isinstance(outputs[0], (tuple, list)) else outputs
        self.operations[-1] = self.operations[-1]._replace(outputs=self._add(given))
        return self

    def IdentifyInputs(self, *operands: SpecOperand) -> Self:
        """State all inputs in their order."""
        self._add(operands)
        return self._same("inputs", self.GetInputs(), operands)

    def IdentifyOutputs(self, *operands: SpecOperand) -> Self:
        """State all outputs in their order."""
        self._add(operands)
        return self._same("outputs", self.GetOutputs(), operands)

    def RelaxedExecution(self, isRelaxed: bool) -> Self:
        """Whether float32 may be computed with the precision of float16."""
        self.isRelaxed = isRelaxed
        return self

    def IntroducedIn(self, version: str | None) -> Self:
        """State the version, which is that of the folder otherwise."""
        self.version = known_version(version)
        return self

    @property
    def operands(self) -> list[SpecOperand]:
        """Its operands in the order in which they were named."""
        return list(self.named.values())

    def GetInputs(self) -> list[SpecOperand]:
        """Return its inputs in order."""
        return [operand for operand in self.operands if operand.kind is OperandKind.INPUT]

    def GetOutputs(self) -> list[SpecOperand]:
        """Return its outputs in order."""
        return [operand for operand in self.operands if operand.is_output]

    def replace(self, operands: Iterable[SpecOperand]) -> None:
        """Put operands in the place of those of their names."""
        for operand in operands:
            self.named[operand.name] = operand

    def placeholder(self, like: SpecOperand) -> tuple[SpecOperand, int]:
        """The second and third input of an ADD that changes nothing."""
        type = SpecType(like.type.type, (1,), like.type.scale, like.type.zeroPoint)
        return self._maker.constant("placeholder", type, [like.type.zeroPoint], OperandKind.PARAMETER), 0

    def feed(self, inputs: Any, outputs: Any) -> None:
        """Set the values of inputs and outputs."""
        for operand in self.GetInputs():
            operand.feed(inputs)
        for operand in self.GetOutputs():
            operand.feed(outputs)

    def copy(self, copied: "dict[int, SpecModel]") -> "SpecModel":
        """A copy whose operands and subgraphs are copies."""
        if id(self) not in copied:
            made = copied[id(self)] = SpecModel(self._maker, self.name, self.version)
            made.named = {name: operand.copy(copied) for name, operand in self.named.items()}
            made.operations, made.isRelaxed = list(self.operations), self.isRelaxed
        return copied[id(self)]

    def sorted_operations(self) -> list[SpecOperation]:
        """The operations, each behind those whose results it reads, else in the order of the specification."""
        places = {name: n for n, name in enumerate(self.named)}
        makers: dict[str, list[int]] = {}
        for n, operation in enumerate(self.operations):
            for name in operation.outputs:
                makers.setdefault(name, []).append(n)
        found: list[SpecOperation] = []
        state: dict[int, bool] = {}  # whether all that it reads is in `found`

        def visit(n: int) -> None:
            if state.get(n) is False:
                raise InvalidArgument(f"{self.operations[n].type} reads its own result, must not be in a circle")
            if n not in state:
                state[n] = False
                for name in sorted(self.operations[n].inputs, key=places.__getitem__):
                    for maker in makers.get(name, ()):
                        visit(maker)
                state[n] = True
                found.append(self.operations[n])

        for n in range(len(self.operations)):
            visit(n)
        return found

    def referenced(self) -> "list[SpecModel]":
        """The models that its operands refer to, and those that their operands do; each once, a model before its own."""
        found: list[SpecModel] = []

        def visit(model: SpecModel) -> None:
            for operand in model.operands:
                for each in (operand.value or ()) if operand.kind is OperandKind.SUBGRAPH else ():
                    if not any(each is known for known in found):
                        found.append(each)
                        visit(each)

        visit(self)
        return found

    def _add(self, operands: Iterable[Any]) -> tuple[str, ...]:
        names = []
        for operand in operands:
            if not isinstance(operand, SpecOperand):
                raise InvalidArgument(f"operand is {operand!r}, must be an operand of this specification")
            self.named.setdefault(operand.name, operand)
            names.append(operand.name)
        return tuple(names)

    def _same(self, what: str, there: Sequence[SpecOperand], stated: Sequence[SpecOperand]) -> Self:
        if list(there) != list(stated):
            raise InvalidArgument(f"{what} are {list(stated)}, must be all of the model's in order: {list(there)}")
        return self
