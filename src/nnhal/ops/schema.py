"""The schema language: one `Op` record defines everything about an operation.

A record lists the *signatures* (`Form`) of the operation; each is a list of `arg`s. `bind` matches the operands of one
operation against the record: it chooses the signature and checks types, ranks, dimensions, ranges and the record's
rules. It returns a `Bound` whose attributes are the *decoded* arguments, and determines the lowest HAL version. A check
of a value that is known only at execution is deferred: the executor calls `bind` again when it has the value.
Documentation, validation, shape inference and random graphs are all derived from the same record.
"""

import math
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from enum import IntEnum
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from nnhal.base.codes import (
    FOREIGN_OPERATIONS,
    LIMIT_RANK,
    MAX_OPERAND_BYTES,
    TYPE_FACTS,
    OperandType,
    OperationType,
    type_name,
)
from nnhal.base.errors import InvalidModel
from nnhal.base.lazy import cached_property
from nnhal.base.levels import V1_0, V1_2, Level
from nnhal.base.operands import Shape, SubgraphFacts, UnknownValue, Value
from nnhal.base.records import PartlyCompared, Record, field
from nnhal.ops.families import FAMILIES

FLOAT32, FLOAT16, INT32 = OperandType.FLOAT32, OperandType.FLOAT16, OperandType.INT32
UINT32, BOOL, SUBGRAPH = OperandType.UINT32, OperandType.BOOL, OperandType.SUBGRAPH
F32, F16, I32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16, OperandType.TENSOR_INT32
B8, Q8, Q8S = OperandType.TENSOR_BOOL8, OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYMM, Q8PC = OperandType.TENSOR_QUANT8_SYMM, OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
Q16S, Q16A = OperandType.TENSOR_QUANT16_SYMM, OperandType.TENSOR_QUANT16_ASYMM

Allowed: TypeAlias = Mapping[Any, Level]  # an OperandType, or the code of an extension's type
Kernel = Callable[..., Any]
Check = Callable[["Bound"], None]
Permutation: TypeAlias = tuple[int, ...]  # dimension k of the reordered tensor is dimension `order[k]` of the tensor
Reorder = Callable[["Bound", Permutation], "OperationOrders"]
Slot: TypeAlias = tuple["Arg", int, int]  # an argument, and the half-open range of its inputs


class _Var:
    """The operation's type `T`: the type, out of `Op.types`, that all operands marked `T` share."""

    def __repr__(self) -> str:
        return "T"


T = _Var()


class TypeTable(Record, frozen=True):
    """Types derived from the operation's type `T`, for example: the bias of a quantised convolution is TENSOR_INT32."""

    table: Mapping[Any, Allowed]


Spec: TypeAlias = _Var | TypeTable | Allowed
Loose: TypeAlias = int | Allowed | Sequence[int]


def _allowed(types: Loose) -> Allowed:
    if isinstance(types, int):
        return {types: TYPE_FACTS[types].since}
    if isinstance(types, Mapping):
        return types
    return {t: TYPE_FACTS[t].since for t in types}


def per(table: Mapping[Any, Loose]) -> TypeTable:
    """Map the operation's type `T` to other types: `per({F32: F32, Q8: I32})`."""
    return TypeTable({own: _allowed(types) for own, types in table.items()})


class _Missing:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Missing()


class Arg(PartlyCompared, frozen=True, dict=True):
    """One argument of a signature, or one output. Made by `arg`, `args` and `out`."""

    name: str
    spec: Spec  # the allowed operand types
    dims: tuple[str, ...] | None = None  # one name for each dimension; equal names have equal sizes; "_" is any size
    rank: tuple[int, int] | None = None  # least and most
    layout: bool = False  # `dims` is in the order of NHWC and is permuted if the argument `nchw` is true
    by_layout: bool = False  # it holds a number for each dimension, in the order of the layout
    optional: bool = False  # may be omitted (lifetime NO_VALUE, or an input without a value)
    since: Level = V1_0  # a trailing argument that earlier HAL versions do not have
    default: Any = REQUIRED  # value of an omitted trailing argument
    paired: bool = False  # a trailing argument that is there exactly if the previous one is
    at_least: float | None = None
    at_most: float | None = None
    enum: type[IntEnum] | None = None
    many: int | None = None  # variadic: the least number of operands
    quant: "Quant | None" = None
    undefined: bool = False  # an output whose contents are undefined
    drawn: Callable[[Any], Any] | None = None  # draws its value in generated calls: `ops.ranges`
    doc: str = ""

    _not_compared = frozenset({"drawn"})

    @cached_property
    def scalar(self) -> bool:
        """Whether the argument is decoded to a Python value instead of being passed to the kernel as an array."""
        if isinstance(self.spec, _Var):
            return False
        tables = self.spec.table.values() if isinstance(self.spec, TypeTable) else (self.spec,)
        return not any(TYPE_FACTS[t].tensor for table in tables for t in table)


class Quant(Record, frozen=True):
    """The rule for an output's quantisation: that of the first `T` argument, or fixed values by type."""

    same: bool = False
    fixed: Mapping[Any, tuple[float, int]] = field(default_factory=dict)


SAME = Quant(same=True)


def fixed(table: Mapping[Any, tuple[float, int]]) -> Quant:
    """Return a rule with the scale and zero point that the definition prescribes for each type."""
    return Quant(fixed=table)


def arg(
    name: str, spec: Spec | Loose | type[IntEnum], dims: str | None = None, *, rank: Any = None, **more: Any
) -> Arg:
    """Make an argument, such as `arg("axis", INT32)` or `arg("input", T, "batch height width depth")`.

    Args:
        name: The name, an attribute of `Bound`.
        spec: The types, or an enum class: a scalar INT32 is decoded to its member.
        dims: The names of the dimensions, separated by spaces.
        rank: An int or (least, most), if there are no `dims`.
        more: Further fields of `Arg`.
    """
    if isinstance(spec, type):
        more["enum"], spec = spec, INT32
    kind: Spec = spec if isinstance(spec, _Var | TypeTable) else _allowed(spec)
    ranks = (rank, rank) if isinstance(rank, int) else rank
    return Arg(name, kind, tuple(dims.split()) if dims is not None else None, ranks, **more)


def args(names: str, spec: Spec | Loose | type[IntEnum], dims: str | None = None, **more: Any) -> tuple[Arg, ...]:
    """Make several arguments of one kind: `args("stride_w stride_h", INT32, at_least=1)`."""
    return tuple(arg(name, spec, dims, **more) for name in names.split())


out = arg  # outputs have the same description


class Form(tuple[Arg, ...]):
    """A signature: one way to call an operation, its arguments in order. Results for a number of inputs are cached."""

    _slots: dict[int, tuple[Slot, ...]]
    _tensors: dict[int, tuple[int | slice | None, ...]]

    def __new__(cls, *arguments: Arg) -> "Form":
        form = super().__new__(cls, arguments)
        form._slots, form._tensors = {}, {}
        return form

    @cached_property
    def counts(self) -> tuple[list[int], int | None]:
        """The allowed numbers of inputs, and the least number if the signature is variadic."""
        least = sum(1 for a in self if a.default is REQUIRED and a.many is None) + sum(a.many or 0 for a in self)
        trailing = sum(1 for a in self if a.default is not REQUIRED)
        whole = [n for n in range(least, least + trailing + 1) if n >= len(self) or not self[n].paired]
        return whole, (least if any(a.many is not None for a in self) else None)

    @cached_property
    def places(self) -> dict[str, int]:
        """The position of each argument."""
        return {a.name: n for n, a in enumerate(self)}

    @cached_property
    def defaults(self) -> tuple[Any, ...]:
        """The default of each argument; None for a required one."""
        return tuple(None if a.default is REQUIRED else a.default for a in self)

    @cached_property
    def required(self) -> int:
        """The position of the last required argument, -1 for none."""
        return max((n for n, a in enumerate(self) if a.default is REQUIRED), default=-1)

    def takes(self, count: int) -> bool:
        """Whether this signature can have `count` inputs."""
        counts, least = self.counts
        return count in counts or (least is not None and count >= least)

    def slots(self, count: int) -> tuple[Slot, ...]:
        """Return each argument with the half-open range of its inputs, out of `count`."""
        if count not in self._slots:
            self._slots[count] = tuple(self._divided(count))
        return self._slots[count]

    def _divided(self, count: int) -> Iterator[Slot]:
        singles = sum(1 for a in self if a.many is None)
        variadic = any(a.many is not None for a in self)
        at = 0
        for a in self:
            size = count - singles if a.many is not None else 1
            end = min(at + size, count)
            yield a, at, end
            at = end
        if variadic and at != count:
            raise AssertionError("a variadic signature has any number of inputs")

    def each(self, count: int) -> list[Arg]:
        """Return the argument of each of `count` inputs."""
        return [a for a, start, end in self.slots(count) for _ in range(start, end)]

    def tensors(self, given: Sequence[Any]) -> list[Any]:
        """Return the tensor arguments of a kernel, out of the arrays of the inputs: variadic ones as lists."""
        count = len(given)
        if count not in self._tensors:
            self._tensors[count] = tuple(
                slice(start, end) if a.many is not None else start if end > start else None
                for a, start, end in self.slots(count)
                if a.many is not None or not a.scalar
            )
        return [
            None if at is None else list(given[at]) if isinstance(at, slice) else given[at]
            for at in self._tensors[count]
        ]


class Tolerance(Record, frozen=True):
    """|actual - expected| <= atol + rtol * |expected|."""

    atol: float
    rtol: float


class Stored(Record, frozen=True):
    """A constant of an example with an explicit type: quantised elements as they are stored."""

    values: Any
    type: OperandType
    scale: float = 0.0
    zero_point: int = 0


class Example(Record, frozen=True):
    """A small worked example for the documentation, which a test runs. Made by `example`.

    Attributes:
        outputs: Computed by hand from the definition, quantised ones as stored; a tuple if there are several, None for
            one with undefined contents.
        arguments: Plain values, members of enums by name, and the builder's options.
        code: If a call is not enough, the statements that make `y` with the builder `b`.
    """

    arguments: Mapping[str, Any]
    outputs: Any
    code: str = ""


def example(outputs: Any, /, **arguments: Any) -> Example:
    """Make an example of a call of the builder: `example([4, 6], input1=[1, 2], input2=[3, 4])`."""
    return Example(arguments, outputs)


class OperationOrders(NamedTuple):
    """An operation whose tensors have another order of dimensions.

    Attributes:
        inputs: The orders of tensor arguments, by name; others are unchanged. A constant may have fewer dimensions: it
            counts as having leading dimensions of 1.
        outputs: The orders of the outputs, () for unchanged.
        arguments: The arguments with another value, by name.
    """

    inputs: Mapping[str, Permutation]
    outputs: Sequence[Permutation]
    arguments: Mapping[str, Any]


class Weights(NamedTuple):
    """The weights of a layer.

    Attributes:
        name: The argument.
        axis: Its dimension that holds the channels of the output.
    """

    name: str
    axis: int


class Op(Record, frozen=True, dict=True):
    """The record of one operation.

    Attributes:
        types: The operation's types `T`, each with the HAL version that introduced it.
        where: Computes names in an output's `dims` that no input binds, from the bound arguments.
        infer: Computes all output shapes at once, if `dims` cannot; returns one shape for each output.
        checks: The rules; each calls `a.require`, and may raise the required HAL version with `a.since`.
        sums: "terms" if outputs are, or are divided by, sums in any order; "products" if they are sums of products of
            tensors, which are defined if all inputs are finite and the sum of the products' magnitudes is within the
            type's range.
        moves: Whether results are elements of the inputs, or those with another sign: exact unless the scale changes.
        jumps: Whether a small error of an input may change real results by any amount.
        nonnegative: Whether no real result is below 0.
        leaves_open: The results that the definition leaves to the driver: `leaves_open(a, *tensors)`, with the kernel's
            arguments, returns a mask for the first output, or one for each. Its docstring describes it.
        sized: Draws a named dimension for generated calls (see `ops.ranges`).
        counted: Draws the number of outputs.
        scaled: Draws the scale and zero point of a tensor.
        reorder: The operation on tensors in another order of dimensions, by a rule of `ops.order`; Unknown if there is
            none. Layouts need none: the arguments are marked.
        flat: Whether the first input counts only by its elements in row-major order; `reorder` then has the order of
            the output.
        random: Whether results are samples, which another generator draws differently from the same seeds.
        kernel: `kernel(a, *tensors)`: its arguments are the arrays of the tensor arguments in order (None: omitted, a
            list: variadic), its result is the output array or a tuple of them. A control-flow kernel (`context=True`)
            also gets the execution context.
        cost: The family of operations with similar costs, by whose measured times the runtime predicts those of the
            operation; "" where it predicts none.
        integer: The kernel for quantised tensors under exact numerics, in the integer arithmetic of TensorFlow Lite;
            None if `kernel` has the same results.
    """

    name: str
    types: Allowed
    forms: tuple[Form, ...]
    outputs: tuple[Arg, ...]
    kernel: Kernel
    checks: tuple[Check, ...] = ()
    infer: Callable[["Bound"], Sequence[Shape | None]] | None = None
    where: Mapping[str, Callable[["Bound"], int]] = field(default_factory=dict)
    context: bool = False
    tolerance: Tolerance | None = None
    sums: str = ""
    moves: bool = False
    jumps: bool = False
    nonnegative: bool = False
    leaves_open: Callable[..., Any] | None = None
    sized: Mapping[str, Callable[[Any], int]] = field(default_factory=dict)
    counted: Callable[[Any], int] | None = None
    scaled: Mapping[str, Callable[[Any], tuple[float, int]]] = field(default_factory=dict)
    reorder: Reorder | None = None
    flat: bool = False
    random: bool = False
    cost: str = ""
    integer: Kernel | None = None
    doc: str = ""
    example: Example | None = None

    @property
    def code(self) -> int:
        """The numeric code: NNAPI's, or the registered extension's."""
        if self.name in OperationType.__members__:
            return OperationType[self.name]
        return next(code for code, name in FOREIGN_OPERATIONS.items() if name == self.name)

    @cached_property
    def since(self) -> Level:
        """The first HAL version that has the operation."""
        return OperationType[self.name].since if self.name in OperationType.__members__ else V1_2

    @cached_property
    def weights(self) -> Weights | None:
        """The weights of a layer, which adds a bias for each channel to sums of products; None for other operations."""
        form = self.forms[0]
        channels = next((a.dims for a in form if a.name == "bias"), None)
        if self.sums != "products" or not channels:
            return None
        (channel,) = channels
        found = ((a.name, a.dims or ()) for a in form[1:] if a.name != "bias")
        return next((Weights(name, dims.index(channel)) for name, dims in found if channel in dims), None)

    @cached_property
    def existence(self) -> str:
        """The reason for the HAL version of a call that needs no later one."""
        return f"{self.name} exists since {self.since}"


_RESERVED = frozenset(
    ("op", "form", "name", "level", "reasons", "given", "inputs", "out", "outs", "shapes", "deferred", "needed", "T")
)


class Bound:
    """One operation with its arguments decoded: each argument is an attribute, and so is each named dimension.

    Scalars are Python values or enum members. A tensor is a `Value`, a variadic argument a tuple of them, an omitted one
    None. Reading a value that is not known yet raises UnknownValue, which defers the rule that reads it.
    """

    def __init__(self, op: Op, form: Form, name: str, outs: Sequence[Value | None]) -> None:
        self.op, self.form, self.name = op, form, name
        self.T: int | None = None
        self.inputs: list[tuple[Arg, Value | tuple[Value, ...] | None]] = []  # the tensor arguments, for the kernel
        if missing := [i for i, value in enumerate(outs) if value is None]:
            self.fail(f"output {missing[0]} is omitted, must be given")
        self.outs = tuple(value for value in outs if value is not None)
        self.given: tuple[Value | None, ...] = ()  # the operands of the operation
        self.shapes: list[Shape | None] = []
        self.level: Level = op.since
        self.reasons: list[str] = [op.existence]
        self.needed: int  # the inputs without trailing ones that hold their defaults
        self.deferred = False  # whether something has to be checked or computed at execution

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else UnknownValue(name)

    @property
    def out(self) -> Value:
        """The first output."""
        return self.outs[0]

    @property
    def shape_of_output(self) -> tuple[int, ...]:
        """The inferred shape of the first output for kernels, with all dimensions known."""
        shape = self.shapes[0]
        if shape is None or None in shape:
            raise UnknownValue("the output's shape")
        return shape  # type: ignore[return-value]

    def form_has(self, name: str) -> bool:
        """Whether the chosen signature has an argument or dimension of this name."""
        return name in self.form.places or name in self.__dict__

    def fail(self, message: str) -> NoReturn:
        """Raise InvalidModel for this operation."""
        raise InvalidModel(f"{self.name}: {message}")

    def require(self, condition: Any, message: str) -> None:
        """Raise InvalidModel with `message` unless the condition holds."""
        if not condition:
            self.fail(message)

    def since(self, level: Level, reason: str) -> None:
        """Require at least the HAL version `level`, because of `reason`."""
        if level > self.level:
            self.level = level
            self.reasons.append(reason)


class OperationTable(dict[str, Op]):
    """The records by name: first nnhal's, in a fixed order whichever is loaded first, then those of extensions."""

    def __init__(self) -> None:
        super().__init__()
        self._families = {name: family for family, names in FAMILIES.items() for name in names.split()}

    def __missing__(self, name: str) -> Op:
        if name not in self._families:
            raise KeyError(name)
        import_module(f"nnhal.ops.{self._families[name]}")
        return dict.__getitem__(self, name)

    def loaded(self, name: str) -> bool:
        """Whether a record of that name exists, or its family has begun to load."""
        if name in self._families:
            import_module(f"nnhal.ops.{self._families[name]}")
        return dict.__contains__(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the record of that name, or the default."""
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return name in self._families or dict.__contains__(self, name)

    def __iter__(self) -> Iterator[str]:
        yield from self._families
        yield from [name for name in dict.__iter__(self) if name not in self._families]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return KeysView(self)

    def values(self) -> ValuesView[Op]:  # type: ignore[override]
        """Return all records; loads those that are not loaded yet."""
        return ValuesView(self)

    def items(self) -> ItemsView[str, Op]:  # type: ignore[override]
        return ItemsView(self)


OPS = OperationTable()


@cache
def _taken() -> frozenset[str]:
    """Return the names that no argument can have."""
    return _RESERVED | frozenset(dir(Bound))


def register(*records: Op) -> None:
    """Add records to the table of operations.

    Raises:
        ValueError: A record contradicts itself, or is registered twice.
    """
    for record in records:
        known = OPS.loaded(record.name)  # a family may be loading while it registers its records
        if known and record.name in OperationType.__members__:  # the record of an extension may be loaded again
            raise ValueError(f"{record.name} is registered twice")
        for form in record.forms:
            names = [a.name for a in form]
            dims = {d for a in form for d in a.dims or ()}
            clash = (set(names) & dims) | ((set(names) | dims) & _taken())
            if clash or len(set(names)) != len(names):
                raise ValueError(f"{record.name}: names {sorted(clash) or names} are used twice or reserved")
        OPS[record.name] = record


# ---------------------------------------------------------------------------------------------------------------- binding


def bind(op: Op, inputs: Sequence[Value | None], outputs: Sequence[Value | None], name: str = "") -> Bound:
    """Match operands against the record of an operation.

    Args:
        op: The record.
        inputs: The known facts of each operand; None for an omitted one.
        outputs: The same of the outputs.
        name: The operation's name for messages, such as `ADD #3`.

    Returns:
        The decoded arguments; `shapes` has the inferred output shapes.

    Raises:
        InvalidModel: An operand breaks a rule.
    """
    name = name or op.name
    a = _choose(op, inputs, outputs, name)
    a.given = tuple(inputs)
    slots = a.form.slots(len(inputs))
    for argument, start, end in slots:
        _decode(a, argument, start, inputs[start:end])
    for argument, start, end in slots:
        for index in range(start, end):
            value = inputs[index]
            if value is not None and not argument.scalar:
                _unify(a, argument, index, value)
    for check in op.checks:
        _attempt(a, check)
    _finish(a)
    return a


def _attempt(a: Bound, rule: Callable[[Bound], Any]) -> Any:
    try:
        return rule(a)
    except UnknownValue:
        a.deferred = True
        return None


def _choose(op: Op, inputs: Sequence[Value | None], outputs: Sequence[Value | None], name: str) -> Bound:
    """Return the first signature whose count and types match; else raise the error of the one that matched furthest."""
    problems: list[tuple[int, str]] = []
    for form in op.forms:
        if not form.takes(len(inputs)):
            continue
        a = Bound(op, form, name, outputs)
        matched, problem = _match_types(a, inputs)
        if not problem:
            _match_outputs(a)
            return a
        problems.append((matched, problem))
    if problems:
        _, furthest = max(problems, key=lambda entry: entry[0])
        raise InvalidModel(f"{name}: {furthest}")
    counts = sorted({c for form in op.forms for c in form.counts[0]})
    variadic = [least for form in op.forms if (least := form.counts[1]) is not None]
    takes = f"{min(variadic)} or more" if variadic else " or ".join(map(str, counts))
    raise InvalidModel(f"{name}: has {len(inputs)} inputs, must have {takes}")


def _match_types(a: Bound, inputs: Sequence[Value | None]) -> tuple[int, str]:
    """Return how many inputs match the signature, and the fault of the next one, "" for none."""
    a.needed = needed(a.form, inputs)
    for argument, start, end in a.form.slots(len(inputs)):
        for index in range(start, end):
            value = inputs[index]
            if value is None:
                if not argument.optional:
                    return index, f"input {index} ({argument.name}) is omitted, must be given"
            elif problem := _match_type(a, argument, "input", index, value, index < a.needed):
                return index, problem
            if argument.since > a.level and index < a.needed:
                a.since(argument.since, f"input {index} ({argument.name}) exists since {argument.since}")
    return len(inputs), ""


def needed(form: Form, inputs: Sequence[Value | None]) -> int:
    """Return how many inputs are needed: trailing ones that hold their defaults do not raise the HAL version."""
    for argument, start, end in reversed(form.slots(len(inputs))):
        value = inputs[start] if end > start else None
        if argument.default is REQUIRED or (end > start and (value is None or not _is_default(argument, value))):
            return end if form.takes(end) else end + 1  # paired arguments stay together
    return 0


def _is_default(argument: Arg, value: Value) -> bool:
    return argument.scalar and value.data is not None and np.asarray(value.data).item(0) == argument.default


def _match_type(a: Bound, argument: Arg, side: str, index: int, value: Value, counts: bool = True) -> str:
    """Return the fault in the type of an operand, "" for none. side: "input" or "output", for messages."""
    allowed, kind = types_for(a.op, argument, a.T), value.type
    if isinstance(argument.spec, _Var) and a.T is not None and kind != a.T:
        like = f"must be {type_name(a.T)} like the operands before it"
        return f"{side} {index} ({argument.name}) is {type_name(kind)}, {like}"
    if kind not in allowed:
        choices = ", ".join(f"{type_name(t)} since {level}" for t, level in allowed.items())
        return f"{side} {index} ({argument.name}) is {type_name(kind)}, must be one of: {choices}"
    if isinstance(argument.spec, _Var):
        a.T = kind
    if counts and allowed[kind] > a.level:
        a.since(allowed[kind], f"{side} {index} ({argument.name}) may be {type_name(kind)} since {allowed[kind]}")
    return ""


def types_for(op: Op, argument: Arg, own: int | None) -> Allowed:
    """Return the types that an argument may have, by the operation's type `T` if it is known."""
    if isinstance(argument.spec, _Var):
        return op.types
    if isinstance(argument.spec, TypeTable):
        if own is not None:
            return argument.spec.table[own]
        return {t: level for allowed in argument.spec.table.values() for t, level in allowed.items()}
    return argument.spec


def _match_outputs(a: Bound) -> None:
    variadic = any(o.many is not None for o in a.op.outputs)
    least = sum(1 for o in a.op.outputs if o.default is REQUIRED and o.many is None)
    count = len(a.outs)
    if not variadic and not least <= count <= len(a.op.outputs):
        numbers = sorted({least, len(a.op.outputs)})
        a.fail(f"has {count} outputs, must have {' or '.join(map(str, numbers))}")
    for index, value in enumerate(a.outs):
        output = output_at(a.op, index)
        if problem := _match_type(a, output, "output", index, value):
            a.fail(problem)
        if output.since > a.level:
            a.since(output.since, f"output {index} ({output.name}) exists since {output.since}")


def output_at(op: Op, index: int) -> Arg:
    """Return the record of output `index`; a variadic output includes all later ones."""
    return op.outputs[min(index, len(op.outputs) - 1)]


def _decode(a: Bound, argument: Arg, start: int, values: Sequence[Value | None]) -> None:
    if argument.many is not None:
        setattr(a, argument.name, tuple(values))
        a.inputs.append((argument, tuple(v for v in values if v is not None)))
    elif not values:
        setattr(a, argument.name, argument.default)
        if not argument.scalar:
            a.inputs.append((argument, None))
    elif not argument.scalar:
        setattr(a, argument.name, values[0])
        a.inputs.append((argument, values[0]))
    elif values[0] is None:
        setattr(a, argument.name, None)
    elif values[0].data is None:
        a.deferred = True
    else:
        setattr(a, argument.name, _scalar(a, argument, start, values[0]))


def _scalar(a: Bound, argument: Arg, index: int, value: Value) -> Any:
    if isinstance(value.data, SubgraphFacts):
        return value.data
    number = np.asarray(value.data).item(0)
    if argument.enum is not None:
        if number in argument.enum.__members__.values():
            return argument.enum(number)
        rule = "one of " + ", ".join(f"{int(m)} ({m.name})" for m in argument.enum)
    elif argument.at_least is not None and not number >= argument.at_least:
        rule = f"at least {argument.at_least}"
    elif argument.at_most is not None and not number <= argument.at_most:
        rule = f"at most {argument.at_most}"
    else:
        return number
    a.fail(f"input {index} ({argument.name}) = {number}, must be {rule}")


def _unify(a: Bound, argument: Arg, index: int, value: Value) -> None:
    """Check rank and dimensions of a tensor against its pattern, and bind the names."""
    if value.shape is None or (argument.optional and may_be_omitted(value)):
        a.deferred = True
        return
    rank = len(value.shape)
    if argument.dims is None:
        low, high = argument.rank or (0, rank)
        if not low <= rank <= high:
            must = str(low) if low == high else f"{low} to {high}"
            a.fail(f"input {index} ({argument.name}) has shape {show(value.shape)}, must have rank {must}")
        a.deferred |= None in value.shape
        return
    if rank != len(argument.dims):
        must = f"[{', '.join(argument.dims)}]"
        a.fail(f"input {index} ({argument.name}) has shape {show(value.shape)}, must be {must}")
    try:
        names = pattern(a, argument)
    except UnknownValue:
        a.deferred = True
        return
    known: dict[str, Any] = a.__dict__
    for axis, (name, size) in enumerate(zip(names, value.shape, strict=True)):
        if size is None:
            a.deferred = True
        elif name != "_":
            wanted = int(name) if name.isdigit() else known.setdefault(name, size)
            if size != wanted:
                rule = "" if name.isdigit() else f"{name} = "
                a.fail(f"input {index} ({argument.name}) has dimension {axis} = {size}, must be {rule}{wanted}")


def may_be_omitted(value: Value) -> bool:
    """Whether an operand is declared as [0], of any rank: such an input may be omitted at execution."""
    return value.data is None and value.shape is not None and not any(value.shape)


def pattern(a: Bound, argument: Arg) -> tuple[str, ...]:
    """Return the dimension names of an argument in the order of its layout."""
    names = argument.dims or ()
    if argument.layout and a.nchw:
        return (names[0], names[-1], *names[1:-1])
    return names


def _finish(a: Bound) -> None:
    """Infer the output shapes; compare them and the quantisation with the declared ones."""
    a.shapes = _infer(a)
    first = next((v for argument, v in a.inputs if isinstance(argument.spec, _Var) and isinstance(v, Value)), None)
    for index, (value, shape) in enumerate(zip(a.outs, a.shapes, strict=True)):
        output = output_at(a.op, index)
        if shape is None or None in shape:
            a.deferred = True
        rank = 0 if shape is None else len(shape)
        if rank > LIMIT_RANK:
            a.fail(f"output {index} ({output.name}) would have rank {rank}, must be at most {LIMIT_RANK}")
        if shape is not None and value.shape is not None and not agree(shape, value.shape):
            a.fail(f"output {index} ({output.name}) has shape {show(value.shape)}, must be {show(shape)}")
        size, facts = math.prod(d or 1 for d in shape or ()), TYPE_FACTS.get(value.type)
        if facts is not None and facts.dtype is not None and size * facts.dtype.itemsize > MAX_OPERAND_BYTES:
            must = f"must have at most {MAX_OPERAND_BYTES} bytes"
            a.fail(f"output {index} ({output.name}) would have shape {show(shape)}, {must}")
        rule = output.quant
        if rule is None or not value.quantised:
            continue
        found = np.float32(value.scale), value.zero_point
        label = f"output {index} ({output.name})"
        if rule.same and first is not None and found != (np.float32(first.scale), first.zero_point):
            a.fail(
                f"{label} has scale {value.scale:g} and zero point {value.zero_point}, "
                f"must be those of the input, {first.scale:g} and {first.zero_point}"
            )
        wanted = rule.fixed.get(value.type)
        if wanted is not None and found != (np.float32(wanted[0]), wanted[1]):
            a.fail(
                f"{label} has scale {value.scale:g} and zero point {value.zero_point}, "
                f"must be {wanted[0]:g} and {wanted[1]}"
            )


def _infer(a: Bound) -> list[Shape | None]:
    if a.op.infer is not None:
        shapes = _attempt(a, a.op.infer)
        return [None] * len(a.outs) if shapes is None else list(shapes)[: len(a.outs)]
    shapes = []
    for index in range(len(a.outs)):
        output = output_at(a.op, index)
        if output.dims is not None:
            shapes.append(_attempt(a, partial(_sizes, output=output)))
        else:
            first = a.inputs[0][1]
            shapes.append(first.shape if isinstance(first, Value) else None)
    return shapes


def _sizes(a: Bound, output: Arg) -> Shape:
    sizes: list[int | None] = []
    for name in pattern(a, output):
        if name.isdigit():
            sizes.append(int(name))
        else:
            sizes.append(a.__dict__[name] if name in a.__dict__ else _attempt(a, a.op.where.get(name, _not_known)))
    return tuple(sizes)


def _not_known(a: Bound) -> int:
    raise UnknownValue


def agree(one: Shape, other: Shape) -> bool:
    """Whether two shapes can be equal; an unknown dimension matches any size."""
    return len(one) == len(other) and all(m is None or n is None or m == n for m, n in zip(one, other, strict=True))


def show(shape: Sequence[int | None] | None) -> str:
    """Format a shape: `[1, ?, 3]`, `[?...]` if the rank is unknown."""
    return "[?...]" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"
