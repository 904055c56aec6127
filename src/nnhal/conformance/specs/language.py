"""The names that a test specification is written in."""

import sys
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from nnhal.base.errors import InvalidArgument
from nnhal.conformance.specs import variations
from nnhal.conformance.specs.expansion import SpecExample
from nnhal.conformance.specs.graph import (
    OperandKind,
    OperandMaker,
    SpecConfiguration,
    SpecModel,
    SpecOperand,
    SpecType,
    SymmPerChannelQuantParams,
    Visible,
    known_version,
    type_of,
    type_of_text,
)

_CONVERTERS = (
    variations.ActivationConverter,
    variations.AllInputsAsInternalCoverter,
    variations.AllOutputsAsInternalCoverter,
    variations.AllTensorsAsInputsConverter,
    variations.AxisConverter,
    variations.DataLayoutConverter,
    variations.DataTypeConverter,
    variations.ParameterAsInputConverter,
    variations.RelaxedModeConverter,
)
_VARIABLES = {  # the kind that each makes, then others that are instances of it too
    "Input": [OperandKind.INPUT],
    "Output": [OperandKind.OUTPUT, OperandKind.IGNORED],
    "IgnoredOutput": [OperandKind.IGNORED],
    "Internal": [OperandKind.INTERNAL],
}
_CONSTANTS = OperandKind.PARAMETER, OperandKind.SHORTHAND, OperandKind.SUBGRAPH
_SCALARS = {
    "Int32Scalar": ("INT32", int),
    "Float16Scalar": ("FLOAT16", float),
    "Float32Scalar": ("FLOAT32", float),
    "BoolScalar": ("BOOL", bool),
}
_VECTORS = {"Int32Vector": ("TENSOR_INT32", int), "Float32Vector": ("TENSOR_FLOAT32", float)}


class Specification:
    """The models and examples of one specification, in the order of the file."""

    def __init__(self, file: str, version: str | None) -> None:
        """Begins an empty specification.

        Args:
            file: The name of the compiled code, to find the lines of examples.
            version: The version of models that declare none.
        """
        self._file, self._version = file, version
        self._configuration = SpecConfiguration()
        self._maker = OperandMaker(self._configuration)
        self._models: list[SpecModel] = []
        self.examples: list[SpecExample] = []
        self.versions: dict[str, str | None] = {}

    def names(self) -> dict[str, Any]:
        """Returns the names of the language with their values."""
        return {
            **{name: self._variables(kind, *more) for name, (kind, *more) in _VARIABLES.items()},
            "Parameter": _Operands(self._parameter, _CONSTANTS),
            **{name: self._constants(self._scalar, type, element) for name, (type, element) in _SCALARS.items()},
            **{name: self._constants(self._vector, type, element) for name, (type, element) in _VECTORS.items()},
            "SubgraphReference": _Operands(self._maker.subgraph, {OperandKind.SUBGRAPH}),
            "SymmPerChannelQuantParams": SymmPerChannelQuantParams,
            "Operand": SpecOperand,
            "Model": self._model,
            "Example": _Examples(self),
            "Configuration": self._configuration,
            **{converter.__name__: converter for converter in _CONVERTERS},
        }

    def _variables(self, *kinds: OperandKind) -> "_Operands":
        return _Operands(partial(self._variable, kinds[0]), kinds)

    def _constants(self, make: Callable[..., SpecOperand], type: str, element: type[Any]) -> "_Operands":
        return _Operands(partial(make, type, element), {OperandKind.SHORTHAND}, type)

    def _variable(
        self, kind: OperandKind, name: str, opType: Any, shape: str | None = None, extraParams: Any = None
    ) -> SpecOperand:
        return self._maker.variable(name, _type(opType, shape, extraParams), kind)

    def _parameter(
        self, name: str, opType: Any, value: Any = None, initializer: Any = None, extraParams: Any = None
    ) -> SpecOperand:
        type = _type(opType, value, extraParams)
        return self._maker.constant(
            name, type, initializer if isinstance(opType, str) else value, OperandKind.PARAMETER
        )

    def _scalar(self, type: str, element: type[Any], name: str, value: Any) -> SpecOperand:
        return self._maker.constant(name, type_of(type), element(value))

    def _vector(self, type: str, element: type[Any], name: str, value: Any) -> SpecOperand:
        return self._maker.constant(name, type_of(type, [len(value)]), [element(each) for each in value])

    def _model(self, name: str | None = None) -> SpecModel:
        self._models.append(SpecModel(self._maker, name, self._version))
        return self._models[-1]

    def example(self, values: tuple[Any, ...], model: SpecModel | None, name: str | None) -> SpecExample:
        """Add an example, of the model that was made last unless one is named."""
        model = model or next(reversed(self._models), None)
        if not isinstance(model, SpecModel):
            raise InvalidArgument(f"model of an example is {model!r}, must be a Model above it")
        made = SpecExample(model, values, name, self._line())
        self.examples.append(made)
        return made

    def _line(self) -> int:
        frame = sys._getframe()
        while frame.f_back and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return frame.f_lineno


class _Operands(Visible):
    """A name of the language that makes operands. `isinstance` is true of those of its kinds and type."""

    def __init__(self, make: Callable[..., SpecOperand], kinds: Collection[OperandKind], type: str = "") -> None:
        self._make, self._kinds, self._type = make, kinds, type

    def __call__(self, *arguments: Any, **named: Any) -> SpecOperand:
        return self._make(*arguments, **named)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, SpecOperand) and value.kind in self._kinds and self._type in {"", value.type.type}


class _Examples(Visible):
    """`Example(...)` and `Example.SetVersion(...)`."""

    def __init__(self, specification: Specification) -> None:
        self._specification = specification

    def __call__(self, *values: Any, model: SpecModel | None = None, name: str | None = None) -> SpecExample:
        return self._specification.example(values, model, name)

    def SetVersion(self, version: str | None, *tests: str) -> None:
        """State the version of tests by name."""
        self._specification.versions.update(dict.fromkeys(tests, known_version(version)))


def _type(stated: Any, shape: Any, extra: Any) -> SpecType:
    """Parses a type: (type, dimensions, scale, zero point), or in the older notation with the shape as text."""
    if isinstance(stated, str) and isinstance(shape, str):
        return type_of_text(stated, shape, extra)
    if not isinstance(stated, (tuple, list)) or len(stated) < 2:
        raise InvalidArgument(f"type is {stated!r}, must be such as ('TENSOR_FLOAT32', [2, 3])")
    return type_of(*stated, **({} if extra is None else {"extra": extra}))
