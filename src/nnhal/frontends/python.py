"""The Python builder: one method for each operation, generated from its record.

Example:
    b = Builder()
    x = b.input((1, 224, 224, 3))
    y = b.conv_2d(x, filter, bias, padding="same", stride=2, activation="relu6")
    model = b.finish([x], [y])
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.codes import MAX_COPIED_CONSTANT, TYPE_FACTS, OperandType, type_name
from nnhal.base.errors import InvalidModel
from nnhal.base.names import suggestion
from nnhal.base.operands import Array, ChannelQuant, SubgraphFacts, Value, dtype_of, is_tensor
from nnhal.base.records import replace
from nnhal.base.uncopied import NotCopyable
from nnhal.base.values import convert_integer, convert_value
from nnhal.frontends.operations import Operations
from nnhal.frontends.signatures import FLAGS, HABITS, OPTIONS, chosen
from nnhal.frontends.tensor import ElementType, Tensor, Tensors
from nnhal.model.builder import ModelBuilder, rounded_scales
from nnhal.model.graph import Model
from nnhal.model.validate import validate
from nnhal.ops import OPS
from nnhal.ops.common import single
from nnhal.ops.schema import REQUIRED, Arg, Form, Op, bind, output_at, types_for

PLAIN = {
    np.dtype("f4"): OperandType.TENSOR_FLOAT32,
    np.dtype("f2"): OperandType.TENSOR_FLOAT16,
    np.dtype("i4"): OperandType.TENSOR_INT32,
    np.dtype("?"): OperandType.TENSOR_BOOL8,
}


MOST_OUTPUTS = 1 << 16  # of one operation


class Builder(Operations, NotCopyable, instead="another process gets the model that `finish` gives"):
    """Builds a model operation by operation. Each call checks the operation and infers the shape of its output.

    Every operation is a method with its name in lower case. It takes the arguments of the NNAPI definition, in their
    order or by name. Arrays and numbers become constants.

    Every operation also accepts:

    - `padding`: "same", "valid" or ((top, bottom), (left, right)); `stride`, `filter_size` and `dilation`: one number
      or
      (height, width). They replace the single arguments.
    - `scale`, `zero_point`: The quantisation of the output, if no rule determines it.
    - `out_type`: The output type, if several are possible.
    - `outputs`: The number of outputs, if it varies. By default, `if_` and `while_` have the outputs of their subgraphs.
    - `name`: A label.

    A list as `scale`, `zero_point` or `out_type` has an entry for each output; None leaves it to the record. Scales are
    rounded to float32, as models store them.
    """

    def __init__(self, name: str = "", *, _under: ModelBuilder | None = None) -> None:
        self._model = _under or ModelBuilder(_named(name))

    def input(
        self,
        shape: Sequence[int | None],
        type: ElementType = OperandType.TENSOR_FLOAT32,
        scale: float = 0.0,
        zero_point: int = 0,
        name: str = "",
    ) -> Tensor:
        """Add an input of the model.

        Args:
            shape: The dimensions; None or 0 for one that is known only at run time. () for a tensor means that even the
                rank is not known before.
            type: A member of OperandType, its name, or numpy's type for float32, float16, int32 or bool.
            scale: The scale of a quantised type.
            zero_point: The zero point of a quantised type.
            name: The name by which applications pass the input.

        Returns:
            The tensor, to pass to operations.

        Raises:
            InvalidModel: An argument breaks its rule.
        """
        where = f"input {name!r}"
        kind, scale = _type(type), _scale(scale, f"{where}: scale")
        dims = [0 if d is None else d for d in shape] if _listed(shape) else None
        known = None if dims is None else convert_value(dims, np.uint32, f"{where}: shape", InvalidModel)
        if known is None or known.ndim != 1:
            raise InvalidModel(f"{where}: shape is {safe_repr(shape)}, must be a sequence of integers")
        dims = known.tolist()
        index = self._model.operand(kind, dims, scale, zero_point, name=_named(name))
        sizes = tuple(d or None for d in dims) or (None if is_tensor(kind) else ())
        return Tensor(index, Value(kind, sizes, scale, zero_point, name=name), self)

    def constant(
        self,
        value: Any,
        type: ElementType | None = None,
        scale: float = 0.0,
        zero_point: int = 0,
        *,
        channel: ChannelQuant | None = None,
        name: str = "",
    ) -> Tensor:
        """Add a constant, a copy of the value. No element changes its value: see `base.values.exact`.

        Args:
            value: A number, nested list or array. For a quantised type, the stored integers.
            type: As in `input`. By default, the type of the array.
            scale: The scale of a quantised type.
            zero_point: The zero point of a quantised type.
            channel: The scales of a TENSOR_QUANT8_SYMM_PER_CHANNEL.
            name: A label.

        Returns:
            The tensor, to pass to operations.

        Raises:
            InvalidModel: An argument breaks its rule.
        """
        where = f"constant {name!r}"
        kind = _plain(value, where) if type is None else _type(type)
        scale, channel = _scale(scale, f"{where}: scale"), rounded_scales(channel)
        array = convert_value(value, dtype_of(kind), where, InvalidModel)
        if is_tensor(kind) and not array.shape:
            array = array.reshape(1)  # a tensor without dimensions has unknown rank
        if array.nbytes <= MAX_COPIED_CONSTANT or kind == OperandType.TENSOR_INT32:
            array = array.copy()  # shapes and rules read it later, when the caller may have changed it
        index = self._model.constant(kind, array, scale, zero_point, channel=channel, name=_named(name))
        return Tensor(index, Value(kind, array.shape, scale, zero_point, channel, array, name), self)

    def __repr__(self) -> str:
        return repr(self._model).replace("ModelBuilder", "Builder", 1)

    def subgraph(self) -> "Builder":
        """Return a builder for a subgraph of `if_` or `while_`. Finish it with `finish_subgraph`."""
        return Builder(_under=self._model.subgraph())

    def finish_subgraph(self, inputs: Tensors, outputs: Tensors) -> SubgraphFacts:
        """Finish a referenced subgraph.

        Args:
            inputs: The tensors that the subgraph receives, in order; or one.
            outputs: The tensors that it returns, in order; or one.
        """
        given, made = self._ends(inputs, "inputs"), self._ends(outputs, "outputs")
        index = self._model.finish_subgraph([t.index for t in given], [t.index for t in made])
        return SubgraphFacts(index, tuple(t.value for t in given), tuple(t.value for t in made))

    def finish(self, inputs: Tensors, outputs: Tensors, *, relaxed: bool = False) -> Model:
        """Finish and validate the model.

        Args:
            inputs: The input tensors, in order; or one.
            outputs: The output tensors, in order; or one.
            relaxed: Whether float32 may be computed as float16.

        Returns:
            The model.

        Raises:
            InvalidModel: The model breaks a rule; the message names it.
        """
        given, made = self._ends(inputs, "inputs"), self._ends(outputs, "outputs")
        indices = [t.index for t in given], [t.index for t in made]
        model = self._model.finish(*indices, relaxed=relaxed, extensions=self._model.extensions())
        validate(model)
        return model

    def _ends(self, tensors: Any, what: str) -> Sequence[Tensor]:
        """Check and return the tensors that a graph begins or ends with."""
        if isinstance(tensors, Tensor):
            tensors = [tensors]
        if not _listed(tensors):
            raise InvalidModel(f"finish: {what} are {safe_repr(tensors)}, must be a list of tensors")
        for n, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor):
                raise InvalidModel(f"finish: {what}[{n}] is {safe_repr(tensor)}, must be a tensor")
            if tensor.owner is not self:
                raise InvalidModel(f"finish: {what}[{n}] belongs to another builder, must be of this one")
        return tensors

    if not TYPE_CHECKING:  # type checkers know the generated methods

        def __getattr__(self, name: str) -> Callable[..., Any]:
            record = OPS.get(name.rstrip("_").upper())  # an operation that was registered later, or that does not exist
            if record is None:
                raise AttributeError(f"Builder has no operation {name!r}{_known(name, str.lower)}")
            return partial(self.operation, record.name)

    def operation(self, type: str, *arguments: Any, **named: Any) -> Any:
        """Add an operation by name.

        Args:
            type: The name of the operation, such as "CONV_2D".
            arguments: The arguments in the order of the definition.
            named: Arguments by name.

        Returns:
            The output tensor, or a tuple of several.

        Raises:
            InvalidModel: An argument breaks its rule.
        """
        if not isinstance(type, str) or type not in OPS:
            raise InvalidModel(f"operation is {safe_repr(type)}{_known(type, str.upper)}")
        record = OPS[type]
        options = {key: named.pop(key, None) for key in OPTIONS}
        name = "" if options["name"] is None else _named(options["name"])
        wish = options["out_type"]
        first = wish[0] if isinstance(wish, list | tuple) and wish else wish
        facts = None if first is None else TYPE_FACTS.get(_type(first))
        form, given = chosen(record, arguments, named, facts and facts.dtype)
        tensors = self._operands(record, form, given)
        outs = _outputs(record, form, tensors, options)
        values = [t.value if t is not None else None for t in tensors]
        bound = bind(record, values, outs)
        results = []
        for value, shape in zip(outs, bound.shapes, strict=True):
            index = self._model.operand(
                value.type, [d or 0 for d in shape or ()], value.scale, value.zero_point, name=name
            )
            results.append(Tensor(index, replace(value, shape=shape), self))
        kinds = _omitted_types(record, form, bound.T, len(tensors))
        indices = [self._model.no_value(k) if t is None else t.index for t, k in zip(tensors, kinds, strict=True)]
        self._model.operation(record.code, indices, [r.index for r in results], name, bound=bound)
        return results[0] if len(results) == 1 else tuple(results)

    def _operands(self, record: Op, form: Form, given: Mapping[str, Any]) -> list[Tensor | None]:
        """Return the input operands in the order of the signature; None for an omitted one."""
        own: int | None = None
        tensors: list[Tensor | None] = []
        last = max((n for n, a in enumerate(form) if a.name in given or a.default is REQUIRED), default=-1)
        for argument in form[: last + 1]:
            value = given.get(argument.name, HABITS.get(argument.name, _default(argument)))
            for each in [value] if argument.many is None else _several(record, argument, value):
                tensor = self._operand(record, argument, each, own)
                tensors.append(tensor)
                if own is None and tensor is not None and repr(argument.spec) == "T":
                    own = _own(record, f"input {len(tensors) - 1} ({argument.name})", tensor.value.type)
        return tensors

    def _operand(self, record: Op, argument: Arg, value: Any, own: int | None) -> Tensor | None:
        if isinstance(value, Tensor):
            if value.owner is not self:
                raise InvalidModel(f"{record.name}: {argument.name} belongs to another builder, must be of this one")
            return value
        if value is None:
            return None
        kinds = types_for(record, argument, own)
        if isinstance(value, SubgraphFacts):
            index = self._model.subgraph_operand(OperandType.SUBGRAPH, value.index)
            return Tensor(index, Value(OperandType.SUBGRAPH, data=value), self)
        if argument.scalar:
            kind = next(iter(kinds))
            array = _number(record, argument, value, dtype_of(kind))
            return Tensor(self._model.constant(kind, array), Value(kind, data=array), self)
        fitting = [k for k in kinds if k in PLAIN.values()]
        if not isinstance(value, np.ndarray | np.generic) and fitting:
            kind = own if own is not None and own in fitting else _likeliest(value, fitting)
            value = convert_value(value, dtype_of(kind), f"{record.name}: {argument.name}", InvalidModel)
        return self.constant(value, name=argument.name)


def _named(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidModel(f"name is {safe_repr(name)}, must be text")
    return name


def _listed(value: Any) -> bool:
    """Whether it is a list, tuple or one-dimensional array."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _known(name: Any, spelled: Callable[[str], str]) -> str:
    """Return the end of the error for an unknown operation."""
    names = [spelled(known) for known in sorted(OPS)]
    return (isinstance(name, str) and suggestion(spelled(name), names)) or f", must be one of {', '.join(names)}"


def _several(record: Op, argument: Arg, value: Any) -> Sequence[Any]:
    """Return the operands of a variadic argument; a single operand counts as a list of one."""
    if isinstance(value, Tensor | np.ndarray):
        return [value]
    if not _listed(value):
        raise InvalidModel(f"{record.name}: {argument.name} is {safe_repr(value)}, must be a list of tensors")
    return value


def _type(type: Any) -> OperandType:
    if isinstance(type, str) and type in OperandType.__members__:
        return OperandType[type]
    if isinstance(type, int) and not isinstance(type, bool):
        return type  # type: ignore[return-value]  # a member, or a type of an extension
    if type is not None:
        with suppress(TypeError, ValueError, KeyError):  # numpy's type
            return PLAIN[np.dtype(type)]
    choices = f"{', '.join(OperandType.__members__)}, or of numpy's {', '.join(map(str, PLAIN))}"
    raise InvalidModel(f"type is {safe_repr(type)}, must be one of {choices}")


def _own(record: Op, where: str, kind: int) -> int:
    """Check the operation's main type, from which the types of other operands follow."""
    if kind not in record.types:
        choices = ", ".join(f"{type_name(t)} since {level}" for t, level in record.types.items())
        raise InvalidModel(f"{record.name}: {where} is {type_name(kind)}; allowed: {choices}")
    return kind


def _default(argument: Arg) -> Any:
    return None if argument.default is REQUIRED else argument.default


def _seen(value: Any) -> np.dtype[Any]:
    """Return the element type that numpy gives a value; object if it is not an array of one type."""
    try:
        return np.asarray(value).dtype
    except Exception:  # ragged lists, and objects that only pretend to be arrays
        return np.dtype(object)


def _plain(value: Any, where: str) -> OperandType:
    """Return the type of a constant that has no other information."""
    dtype = _seen(value)
    if dtype not in PLAIN:
        raise InvalidModel(f"{where} is {dtype}, must be one of {', '.join(map(str, PLAIN))}, or be given a type")
    return PLAIN[dtype]


def _likeliest(value: Any, fitting: Sequence[int]) -> int:
    """Return the type of a list among several; BOOL8 for booleans if possible."""
    kind = PLAIN.get(_seen(value))
    return kind if kind == OperandType.TENSOR_BOOL8 and kind in fitting else fitting[0]


def _scale(scale: Any, where: str) -> float:
    """Round a scale to float32."""
    return float(_single(convert_value(scale, np.float32, where, InvalidModel), where))


def _number(record: Op, argument: Arg, value: Any, dtype: np.dtype[Any]) -> Array:
    """Return a scalar argument: a number, or the value of an enum member's name."""
    where = f"{record.name}: {argument.name}"
    if isinstance(value, str):
        members: Mapping[str, IntEnum] = argument.enum.__members__ if argument.enum else {}
        if value.upper() not in members:
            choices = ", ".join(m.lower() for m in members) or "a number"
            raise InvalidModel(f"{where} is {value!r}, must be one of {choices}")
        value = members[value.upper()]
    if argument.name in FLAGS and isinstance(value, bool | np.bool_) and dtype.kind == "i":
        value = int(value)
    return _single(convert_value(value, dtype, where, InvalidModel), where)


def _single(array: Array, where: str) -> Array:
    if array.shape:
        raise InvalidModel(f"{where} has shape {list(array.shape)}, must be one number")
    return array


def _outputs(record: Op, form: Form, tensors: Sequence[Tensor | None], options: Mapping[str, Any]) -> list[Value]:
    """Return the outputs as known before binding: type and quantisation."""
    called = [t.value.data for t in tensors if t is not None and isinstance(t.value.data, SubgraphFacts)]
    if called and all(options[key] is None for key in ("out_type", "scale", "zero_point", "outputs")):
        return [replace(value, shape=None, data=None, name="") for value in called[-1].outputs]
    count = options["outputs"]
    if count is None:
        count = sum(1 for o in record.outputs if o.default is REQUIRED)
    elif not isinstance(count, int | np.integer) or isinstance(count, bool) or not 1 <= count <= MOST_OUTPUTS:
        raise InvalidModel(f"{record.name}: outputs is {safe_repr(count)}, must be a number from 1 to {MOST_OUTPUTS}")
    slots = form.slots(len(tensors))
    owned = (t for a, start, end in slots if repr(a.spec) == "T" for t in tensors[start:end] if t is not None)
    first = next((t.value for t in owned), None)
    own = first.type if first is not None else None
    wishes, scales, zeros = (_for_outputs(record, options, key, count) for key in ("out_type", "scale", "zero_point"))
    values = []
    for index, wish in enumerate(wishes):
        kinds = types_for(record, output_at(record, index), own)
        kind: int = own if own is not None and own in kinds else next(iter(kinds))
        values.append(Value(kind if wish is None else _type(wish), None))
    ruled = [_ruled(output_at(record, index), value, first) for index, value in enumerate(values)]
    if None in ruled and not isinstance(options["scale"], list | tuple):
        scales = [None if rule else scale for rule, scale in zip(ruled, scales, strict=True)]
    return [
        _quantised(record, index, value, rule, scales[index], zeros[index])
        for index, (value, rule) in enumerate(zip(values, ruled, strict=True))
    ]


def _for_outputs(record: Op, options: Mapping[str, Any], key: str, count: int) -> list[Any]:
    """Return an option for each output, from one value or a list."""
    option = options[key]
    if not isinstance(option, list | tuple):
        return [option] * count
    if len(option) != count:
        raise InvalidModel(f"{record.name}: {key} has {len(option)} entries, must have {count}, one for each output")
    return list(option)


def _ruled(output: Arg, value: Value, first: Value | None) -> tuple[float, int] | None:
    """Return the scale and zero point that the record gives an output; (0, 0) for a type without."""
    if not value.quantised:
        return 0.0, 0
    if output.quant is not None and value.type in output.quant.fixed:
        return output.quant.fixed[value.type]
    if output.quant is not None and first is not None:
        return first.scale, first.zero_point
    return None


def _quantised(
    record: Op, index: int, value: Value, rule: tuple[float, int] | None, scale: float | None, zero_point: int | None
) -> Value:
    if not value.quantised:
        return value
    if scale is not None:
        where = f"{record.name}: the scale of output {index}"
        zero = (
            0 if zero_point is None else convert_integer(zero_point, where.replace("scale", "zero point"), InvalidModel)
        )
        return replace(value, scale=_scale(scale, where), zero_point=zero)
    if rule is None:
        where = f"output {index} ({output_at(record, index).name})"
        raise InvalidModel(f"{record.name}: the scale of {where} is not given, must be: scale=..., zero_point=...")
    return replace(value, scale=single(rule[0]), zero_point=rule[1])


def _omitted_types(record: Op, form: Form, own: int | None, count: int) -> list[int]:
    """Return the type that each input has if it is omitted."""
    slots = ((next(iter(types_for(record, a, own))), end - start) for a, start, end in form.slots(count))
    return [int(kind) for kind, size in slots for _ in range(size)]
