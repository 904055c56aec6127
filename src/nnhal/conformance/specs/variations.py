"""Variations: how one example of a specification becomes several tests."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from nnhal.base.errors import InvalidArgument
from nnhal.conformance.specs.graph import OperandKind, SpecModel, SpecOperand, SpecType, Visible, type_of

_CLIPPED = {
    "TENSOR_QUANT8_ASYMM": (0, 255),
    "TENSOR_QUANT16_ASYMM": (0, 65535),
    "TENSOR_QUANT8_SYMM_PER_CHANNEL": (-127, 127),
    "TENSOR_QUANT8_ASYMM_SIGNED": (-128, 127),
    "UINT32": (0, None),
}


class SkipVariation(Exception):
    """The variation does not apply to the model: there is no such test."""


def real(value: Any, type: SpecType) -> Any:
    """The real values of a float32 array of elements, computed in place."""
    value -= type.zeroPoint
    if type.scale:
        value *= type.scale
    if type.extraParams:
        value *= type.extraParams.along(type.dimensions)
    return value


def quantised(value: Any, type: SpecType) -> Any:
    """The elements of real values, rounded half to even and clipped to the range of the type."""
    if type.scale:
        value = value / type.scale
    if type.extraParams:
        value = value / type.extraParams.along(type.dimensions)
    value = value + type.zeroPoint
    if not type.IsFloat():
        value = np.round(value).astype(int)
    low, high = _CLIPPED.get(type.type, (None, None))
    if low is not None:
        value = np.maximum(value, low)
    return value if high is None else np.minimum(value, high)


class Variation(Visible):
    """A change of a model. A specification may define its own as a subclass of one of those below.

    kind: as test vectors name it, "" for no change. label: its name where the specification gives none. subgraphs: whether
    it applies to models with control flow.
    """

    kind: ClassVar[str] = ""
    label: str = ""
    subgraphs: ClassVar[bool] = True

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.targets: dict[str, Any] = {}

    def Identify(self, operands: Any = None, parameters: Any = None) -> Self:
        """Name the operands that it changes: a list, or a dictionary with what each becomes."""
        if operands is not None:
            each = operands if isinstance(operands, dict) else dict.fromkeys(operands)
            if wrong := [operand for operand in each if not isinstance(operand, SpecOperand)]:
                raise InvalidArgument(f"{type(self).__name__} names {wrong[0]!r}, must name operands of the model")
            self.targets = {operand.name: becomes for operand, becomes in each.items()}
        return self

    def ApplyTo(self, model: SpecModel) -> SpecModel:
        """Change a model in place. Raises SkipVariation where it does not apply."""
        if not self.subgraphs and any(operand.kind is OperandKind.SUBGRAPH for operand in model.operands):
            raise InvalidArgument(f"{type(self).__name__} is applied to control flow, must be applied to other models")
        if not self.targets:
            self.AutoIdentify(model)
        for name in self.targets:
            if name not in model.named:
                raise InvalidArgument(f"{type(self).__name__} names {name}, must name operands of the model")
        model.replace([self.TransformOperand(model.named[name], arg) for name, arg in self.targets.items()])
        return self.TransformModel(model)

    def SetToDefaultName(self) -> Self:
        """Set the name to that of a variation that the specification does not name."""
        self.name = self.label
        return self

    def AutoIdentify(self, model: SpecModel) -> Self:
        """Choose the operands where the specification names none."""
        return self

    def TransformOperand(self, op: SpecOperand, arg: Any = None) -> SpecOperand:
        """Change one of the operands that are named."""
        return op

    def TransformModel(self, model: SpecModel) -> SpecModel:
        """Change the model, when its operands are changed."""
        return model


class DataTypeConverter(Variation):
    """Other data types: (type, scale, zero point) or the type alone for each operand, or one for all of float32."""

    kind = "dataType"
    known = ("float16", "int32", "quant8", "quant8_signed")
    _SIGNED = {"quant8": "TENSOR_QUANT8_ASYMM", "quant8_signed": "TENSOR_QUANT8_ASYMM_SIGNED"}
    _NAMES = {
        "TENSOR_QUANT8_SYMM_PER_CHANNEL": "channelQuant8",
        "TENSOR_QUANT8_ASYMM": "quant8",
        "TENSOR_QUANT8_ASYMM_SIGNED": "quant8_signed",
        "TENSOR_INT32": "int32",
        "TENSOR_FLOAT16": "float16",
    }

    def __init__(
        self, targetType: str | None = None, name: str | None = None, scale: Any = None, zeroPoint: Any = None
    ) -> None:
        super().__init__(name)
        if targetType is not None:
            _one_of("data type", targetType, self.known)
        self.targetType, self.scale, self.zeroPoint = targetType, scale, zeroPoint

    def SetToDefaultName(self) -> Self:
        if self.targetType is not None:
            self.name = self.targetType.lower()
            return self
        types = [_stated_type(name, arg)[0] for name, arg in self.targets.items() if not isinstance(arg, Variation)]
        self.name = next((name for type, name in self._NAMES.items() if type in types), "float32")
        return self

    def AutoIdentify(self, model: SpecModel) -> Self:
        target = self.targetType
        if target is None:
            return self
        becomes: dict[str, Any]
        if target in self._SIGNED:
            if self.scale is None or self.zeroPoint is None:
                raise InvalidArgument(f"{target} has no scale and zeroPoint, must have both")
            becomes = {"TENSOR_FLOAT32": [self._SIGNED[target], self.scale, self.zeroPoint]}
        else:
            becomes = {"TENSOR_FLOAT32": [f"TENSOR_{target.upper()}"], "FLOAT32": [target.upper()]}
        for operand in model.operands:
            if operand.kind is OperandKind.SUBGRAPH:
                self.targets[operand.name] = DataTypeConverter(target, self.name, self.scale, self.zeroPoint)
            elif operand.type.type in becomes:
                self.targets[operand.name] = becomes[operand.type.type]
        return self

    def TransformOperand(self, op: SpecOperand, arg: Any = None) -> SpecOperand:
        if isinstance(arg, DataTypeConverter):
            op.value = [arg.ApplyTo(model) for model in op.value or ()]
            return op
        kind, *rest = _stated_type(op.name, arg)
        old, op.type = op.type, type_of(kind, op.type.dimensions, *rest)
        if op.value is not None and old.GetNumberOfElements():
            values = np.array(op.value).reshape(old.dimensions).astype(np.float32)
            op.SetValueFromNumpy(quantised(real(values, old), op.type))
        return op


class RelaxedModeConverter(Variation):
    """Float32 may be computed with the precision of float16, or must not be."""

    kind = "relaxed"
    known = ("relaxed",)

    def __init__(self, isRelaxed: bool | str = True, name: str | None = None) -> None:
        super().__init__(name)
        if isinstance(isRelaxed, str):
            _one_of("mode", isRelaxed, self.known)
        self.isRelaxed = bool(isRelaxed)
        self.label = "relaxed" if isRelaxed else "float"

    def TransformModel(self, model: SpecModel) -> SpecModel:
        return model.RelaxedExecution(self.isRelaxed)


class DataLayoutConverter(Variation):
    """The other order of dimensions, of all operands that are named: tensors, shapes and the layout parameter."""

    kind = "layout"
    subgraphs = False
    known = ("nhwc", "nchw")

    def __init__(self, targetLayout: str = "nchw", name: str | None = None) -> None:
        super().__init__(name)
        self.targetLayout = self.label = _one_of("layout", targetLayout, self.known)
        self.perm = (0, 3, 1, 2) if self.targetLayout == "nchw" else (0, 2, 3, 1)

    def TransformOperand(self, op: SpecOperand, arg: Any = None) -> SpecOperand:
        rank = len(op.type.dimensions)
        if rank == 4:
            return _transposed(op, self.perm)
        if rank == 1 and len(op.value or ()) == 4:
            return op.SetValueFromNumpy(op.GetValueAsNumpy()[list(self.perm)])
        if op.type.type == "BOOL":
            return op.SetValue(self.targetLayout == "nchw")
        raise InvalidArgument(f"{op.name} is {op.type.type} of rank {rank}, must be of rank 4, a shape or a layout")


class AxisConverter(Variation):
    """Another axis: dimension `origin` moves to `target`, then the dimensions in `drop` go, of which element 0 stays."""

    kind = "axis"
    subgraphs = False

    def __init__(self, origin: int, target: int, dim: int, drop: Any = (), name: str | None = None) -> None:
        super().__init__(name)
        self.origin, self.target, self.dim = origin, target, dim
        dropped = [drop] if isinstance(drop, int) else list(drop)
        if any(not -dim <= d < dim for d in (origin, target, *dropped)):
            raise InvalidArgument(f"axes are {[origin, target, *dropped]}, must be from {-dim} to {dim - 1}")
        self.drop = [d % dim for d in dropped]
        self.axis = target % dim
        if self.axis in self.drop:
            raise InvalidArgument(f"axis {target} is dropped, must be kept")
        self.perm = list(range(dim))
        self.perm.insert(self.axis, self.perm.pop(origin))
        left = self.axis - sum(d < self.axis for d in self.drop)
        self.label = f"dim{dim - len(self.drop)}_axis{left}{'_neg' if target < 0 else ''}"

    def TransformOperand(self, op: SpecOperand, arg: Any = None) -> SpecOperand:
        if op.type.type == "INT32":
            behind = sum(d > self.axis for d in self.drop)
            before = sum(d < self.axis for d in self.drop)
            return op.SetValue(self.target + behind if self.target < 0 else self.target - before)
        rank = len(op.type.dimensions)
        if rank != self.dim:
            raise InvalidArgument(f"{op.name} is {op.type.type} of rank {rank}, must be of rank {self.dim} or an axis")
        return _transposed(op, self.perm, self.drop)


class ActivationConverter(Variation):
    """An activation behind the operation, on the outputs and the activation parameter that are named."""

    kind = "activation"
    subgraphs = False
    known: ClassVar[dict[str, tuple[int, float | None, float | None]]] = {
        "none": (0, None, None),
        "relu": (1, 0.0, None),
        "relu1": (2, -1.0, 1.0),
        "relu6": (3, 0.0, 6.0),
    }

    def __init__(self, act: str = "relu", name: str | None = None) -> None:
        super().__init__(name)
        self.act = self.label = _one_of("activation", act, self.known)

    def TransformOperand(self, op: SpecOperand, arg: Any = None) -> SpecOperand:
        code, low, high = self.known[self.act]
        if op.type.type == "INT32":
            return op.SetValue(code)
        if not op.is_output:
            raise InvalidArgument(f"{op.name} is not an output, must be an output or the activation")
        value = op.GetValueAsNumpy()
        if low is not None:
            value = np.maximum(value, quantised(low, op.type))
        if high is not None:
            value = np.minimum(value, quantised(high, op.type))
        return op.SetValueFromNumpy(value)


class ParameterAsInputConverter(Variation):
    """The constants that are named become inputs."""

    kind = "parameterAsInput"
    known = ("as_input",)

    def __init__(self, arg: str = "as_input", prefix: str = "weight", name: str | None = None) -> None:
        super().__init__(name)
        self.label = f"{prefix}_as_input"

    def TransformOperand(self, op: SpecOperand, arg: Any = None) -> SpecOperand:
        if op.kind not in {OperandKind.PARAMETER, OperandKind.SHORTHAND}:
            raise InvalidArgument(f"{op.name} is not a constant, must be a constant to become an input")
        return op.converted(OperandKind.INPUT)


class AllTensorsAsInputsConverter(Variation):
    """Constant tensors of a model of one operation become inputs."""

    kind = "allTensorsAsInputs"
    label = "all_tensors_as_inputs"

    def TransformModel(self, model: SpecModel) -> SpecModel:
        constants = [
            op
            for op in model.operands
            if op.kind is OperandKind.PARAMETER and not op.type.IsScalar() and op.value is not None
        ]
        _require_one_operation(model, constants)
        model.replace([op.converted(OperandKind.INPUT) for op in constants])
        return model


class AllInputsAsInternalCoverter(Variation):
    """An ADD of zero before each input makes it an internal operand, in a model of one operation."""

    kind = "allInputsAsInternal"
    label = "all_inputs_as_internal"

    def TransformModel(self, model: SpecModel) -> SpecModel:
        inputs = [op for op in model.GetInputs() if _fits_add(op) and op.may_be_internal]
        _require_one_operation(model, inputs)
        for op in inputs:
            new = op.converted(OperandKind.INPUT, f"{op.name}_new")
            model.Operation("ADD", new, *model.placeholder(op)).To(op)
        model.replace([op.converted(OperandKind.INTERNAL) for op in inputs])
        return model


class AllOutputsAsInternalCoverter(Variation):
    """An ADD of zero behind each output makes it an internal operand, in a model of one operation."""

    kind = "allOutputsAsInternal"
    label = "all_outputs_as_internal"

    def TransformModel(self, model: SpecModel) -> SpecModel:
        outputs = [op for op in model.GetOutputs() if _fits_add(op)]
        _require_one_operation(model, outputs)
        for op in outputs:
            new = op.converted(OperandKind.OUTPUT, f"{op.name}_new")
            model.Operation("ADD", op, *model.placeholder(op)).To(new)
        model.replace([op.converted(OperandKind.INTERNAL) for op in outputs])
        return model


def implicit(value: Any) -> Variation:
    """A variation, or the one that "relaxed", "float16", ("nchw", operands) and the like mean."""
    if isinstance(value, Variation):
        return value
    word, *operands = value if isinstance(value, (tuple, list)) else (value,)
    by_word = (
        DataTypeConverter,
        RelaxedModeConverter,
        DataLayoutConverter,
        ParameterAsInputConverter,
        ActivationConverter,
    )
    for kind in by_word:
        if isinstance(word, str) and word.lower() in kind.known:
            return kind(word).Identify(*operands)
    raise InvalidArgument(f"variation is {word!r}, must be a converter or a word such as 'relaxed', 'float16', 'nchw'")


def _stated_type(operand: str, becomes: Any) -> Sequence[Any]:
    if isinstance(becomes, str):
        return [becomes]
    if not isinstance(becomes, (list, tuple)) or not becomes:
        raise InvalidArgument(f"{operand} becomes {becomes!r}, must become such as ('TENSOR_QUANT8_ASYMM', 0.5, 128)")
    return becomes


def _one_of(what: str, word: str, known: Iterable[str]) -> str:
    if word.lower() not in known:
        raise InvalidArgument(f"{what} is {word!r}, must be one of {', '.join(known)}")
    return word.lower()


def _require_one_operation(model: SpecModel, operands: Sequence[SpecOperand]) -> None:
    if len(model.operations) != 1 or not operands:
        raise SkipVariation


def _fits_add(op: SpecOperand) -> bool:
    types = {"TENSOR_FLOAT32", "TENSOR_FLOAT16", "TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED"}
    return len(op.type.dimensions) <= 4 and bool(op.value) and op.type.type in types


def _transposed(op: SpecOperand, perm: Sequence[int], drop: Sequence[int] = ()) -> SpecOperand:
    if op.value is not None and op.type.GetNumberOfElements():
        value = op.GetValueAsNumpy().transpose(perm)
        op.SetValueFromNumpy(value[tuple(0 if d in drop else slice(None) for d in range(len(perm)))])
    dimensions = tuple(op.type.dimensions[d] for n, d in enumerate(perm) if n not in drop)
    op.type = SpecType(op.type.type, dimensions, op.type.scale, op.type.zeroPoint)
    return op
