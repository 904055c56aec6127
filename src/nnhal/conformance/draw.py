"""Draws calls of an operation from its record: every signature, type, argument and class of values.

The record names the ranges (`Arg.drawn`, `Op.sized`, `Op.scaled`, `Op.counted`); for anything else the draw uses
whatever its rules allow. A call that the record refuses is drawn again, so rules between arguments (padding and filter)
are met by chance.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import EXTENSION_SHIFT, TYPE_FACTS, OperandType, type_name
from nnhal.base.errors import InvalidModel
from nnhal.base.operands import Array, ChannelQuant, Value, dtype_of, quantised
from nnhal.base.records import Record, replace
from nnhal.ops import OPS
from nnhal.ops.common import broadcast_shape
from nnhal.ops.schema import (
    B8,
    F16,
    F32,
    I32,
    Q8PC,
    Q8SYMM,
    REQUIRED,
    SUBGRAPH,
    Arg,
    Bound,
    Form,
    Op,
    T,
    bind,
    output_at,
    types_for,
)

FLOATS = ("ordinary", "zeros", "ties", "large", "largest", "smallest", "subnormal", "infinite", "nan")
STEPS = ("ordinary", "ends", "ties", "fine", "coarse", "far")
INTEGERS = ("ordinary", "zeros", "largest")
TRIES = 400
LATE = 0.5  # the probability that some parameters, if there are any, are inputs of the model
WIDE = 8, 16, 17, 31, 33, 65  # sizes about those of vectors and tiles
SHARE = 0.3  # the share of elements of a class that are not ordinary
AT_BOUNDS = "bounds"  # a class that is not drawn: each result lies at a bound of the activation, or is 0, and is exact


def classes(kind: int) -> tuple[str, ...]:
    """Return the classes of values of a tensor type.

    Floats: ordinary ones about 10; zeros of both signs; halves between integers; large ones, whose squares overflow;
    those next to the greatest; the least normal ones; subnormal ones; infinite ones; NaN. Quantised ones: of the whole
    type; its ends; halves between quantisation steps of the output; outputs of a finer and of a coarser scale; scales
    far from 1. Integers of any size, zeros, the greatest.
    """
    if kind in (F32, F16):
        return FLOATS
    if quantised(kind):
        return STEPS
    return INTEGERS if kind == I32 else ("ordinary",)


class Cell(Record, frozen=True):
    """The choices of a draw: an operation, one of its signatures, its type `T`, and a class of values."""

    op: Op
    form: int
    kind: int
    values: str

    def __str__(self) -> str:
        return f"{self.op.name}/{self.form}/{type_name(self.kind).removeprefix('TENSOR_')}/{self.values}"


def cells(names: Sequence[str] = ()) -> Iterator[Cell]:
    """Yield all cells, except control flow, which has no values, and operations of extensions that are not named."""
    for name, record in OPS.items():
        if (names and name not in names) or any(SUBGRAPH in _allowed(a) for a in record.forms[0]):
            continue
        if record.code >> EXTENSION_SHIFT and not names:
            continue
        for number, form in enumerate(record.forms):
            for kind in record.types or _own(form):
                for values in classes(kind):
                    yield Cell(record, number, kind, values)


def _allowed(argument: Arg) -> Any:
    return argument.spec if isinstance(argument.spec, dict) else ()


def _own(form: Form) -> list[int]:
    """Return the type that represents an operation without a type `T`: that of its value."""
    kinds = [next(iter(_allowed(a))) for a in form if a.name == "value"]
    return [{OperandType.FLOAT32: F32, OperandType.FLOAT16: F16}.get(kinds[0], I32)]


class Call(Record, frozen=True):
    """One call: inputs in the signature's order, outputs as declared, and the bound operation.

    given: the positions of inputs that the application gives at execution; the others are constants. open: whether the
    model leaves the dimensions of given inputs and of outputs open.
    """

    cell: Cell
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    given: tuple[int, ...]
    bound: Bound
    open: bool = False

    @property
    def arguments(self) -> list[Arg]:
        """The argument of each input."""
        return self.bound.form.each(len(self.inputs))

    @property
    def late(self) -> bool:
        """Whether parameters are also given at execution."""
        arguments = self.arguments
        return any(arguments[place].scalar for place in self.given)

    @property
    def variety(self) -> Any:
        """The facts in which a few calls of one operation should differ."""
        return self.cell.kind

    @property
    def constants(self) -> int:
        """The number of constant elements of real numbers."""
        return sum(
            value.array.size
            for place, (argument, value) in enumerate(zip(self.arguments, self.inputs, strict=True))
            if value is not None and place not in self.given and not argument.scalar and value.type != I32
        )

    def returns_to(self) -> int | None:
        """The position of an input to which the only result can be passed; None if there is none."""
        if len(self.outputs) != 1:
            return None
        out, given = self.outputs[0], [(place, self.inputs[place]) for place in self.given]
        form = out.type, out.shape, out.scale, out.zero_point
        return next((p for p, v in given if v and (v.type, v.shape, v.scale, v.zero_point) == form), None)


def draw(cell: Cell, rng: np.random.Generator, *, open: bool = False, late: bool = False) -> Call:
    """Draw a call that the record accepts; AssertionError if many tries fail.

    open: with open dimensions; some of them are 0 then. late: with some parameters, if there are any, that are given at
    execution.
    """
    problem = ""
    for _ in range(TRIES):
        try:
            return Drawn(cell, rng, open, late).call()
        except InvalidModel as error:
            problem = str(error)
    raise AssertionError(f"{cell}: none of {TRIES} calls was valid; the last: {problem}")


class Drawn:
    """One call under construction: the `Draw` that ranges see."""

    def __init__(self, cell: Cell, rng: np.random.Generator, open: bool = False, late: bool = False) -> None:
        self.cell, self.record, self.kind, self.rng, self.open = cell, cell.op, cell.kind, rng, open
        self.late = late
        counts, _ = cell.op.forms[cell.form].counts
        whole = cell.op.forms[cell.form]
        length = len(whole) if any(a.many is not None for a in whole) else int(self.pick(*counts))
        self.form = whole[:length]
        self._arguments = {a.name: a for a in self.form}
        self._values: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._once: dict[str, Any] = {}
        self._wide = False
        self._types: dict[str, int] = {}
        self.near = 0 if cell.values != "far" else int(rng.choice((-140, -60, -30, 30, 60, 100)))

    # --------------------------------------------------------------------------------------------- queries of ranges

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            if name not in self._arguments:  # an omitted trailing argument
                return self._default(name)
            argument = self._arguments[name]
            found = argument.drawn(self) if argument.drawn is not None else self._plain(argument)
            self._values[name] = self._as_value(argument, found)
        value = self._values[name]
        if isinstance(value, Value) and self._arguments[name].scalar:
            argument, number = self._arguments[name], value.array.item()
            return argument.enum(number) if argument.enum is not None else number
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._arguments

    def _default(self, name: str) -> Any:
        return next(a.default for a in self.record.forms[self.cell.form] if a.name == name)

    def size(self, name: str) -> int:
        if name not in self._sizes:
            ranged = self.record.sized.get(name)
            size = int(ranged(self)) if ranged is not None else self._size()
            self._sizes.setdefault(name, size)
        return self._sizes[name]

    def _size(self) -> int:
        """Return a size, mostly small.

        One of a call may be large enough for the main loop and the remainder of a SIMD kernel.
        """
        if self.open and self.rng.random() < 0.1:
            return 0
        if not self._wide and self.rng.random() < 0.05:
            self._wide = True
            return int(self.pick(*WIDE))
        return int(self.whole(1, 5))

    def type_of(self, name: str) -> int:
        if name not in self._types:
            argument = self._arguments[name]
            choices = [self.kind] if argument.spec is T else list(types_for(self.record, argument, self.kind))
            self._types[name] = int(self.pick(*choices))
        return self._types[name]

    def shape_of(self, name: str) -> tuple[int, ...]:
        argument = self._arguments[name]
        names = list(argument.dims or ())
        if argument.layout and self["nchw"]:
            names.insert(1, names.pop())
        return tuple(int(n) if n.isdigit() else int(self.whole(1, 5)) if n == "_" else self.size(n) for n in names)

    def once(self, key: str, *choices: Any) -> Any:
        return self._once.setdefault(key, self.pick(*choices))

    def whole(self, low: int, high: int, shape: Any = None) -> Any:
        if high < low:
            raise InvalidModel(f"no value is between {low} and {high}")
        return self.rng.integers(low, high, shape, endpoint=True)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def plain(self, name: str) -> Value:
        return self._as_value(self._arguments[name], self._plain(self._arguments[name]))

    def tensor(self, kind: int, shape: Sequence[int], quant: tuple[float, int] | None = None) -> Value:
        shape = tuple(int(n) for n in shape)
        if kind == Q8PC:
            axes = [axis for axis, size in enumerate(shape) if size]
            if not axes:
                raise InvalidModel(f"a tensor of shape {list(shape)} has no channels, must have at least one")
            axis = self.pick(*axes)
            scales = tuple(self.quantisation(Q8SYMM)[0] for _ in range(shape[axis]))
            return Value(
                kind, shape, channel=ChannelQuant(scales, axis), data=self.whole(-127, 127, shape).astype(np.int8)
            )
        scale, zero = quant if quant is not None else self.quantisation(kind)
        return Value(kind, shape, scale, zero, data=contents(self.rng, kind, shape, self.cell.values))

    def quantisation(self, kind: int, coarser: float = 0) -> tuple[float, int]:
        """Draw a scale of about 1, finer or coarser by a power of two, and a zero point."""
        zero_points = TYPE_FACTS[kind].zero_points
        if zero_points is None:
            return 0.0, 0
        least, most = zero_points
        zero = self.pick(least, most, (least + most + 1) // 2, self.whole(least, most))
        if self.cell.values == "ties":  # sums of values are halves of the output's quantisation step
            return float(np.ldexp(1.0, int(self.whole(-2, 2)) + int(coarser))), int(zero)
        exponent = self.near + coarser + float(self.rng.uniform(-3, 3))
        return float(np.clip(np.float32(2.0 ** min(exponent, 126)), 1e-45, None)), int(zero)

    # --------------------------------------------------------------------------------------------------- putting together

    def call(self) -> Call:
        for argument in self.form:
            self[argument.name]
        inputs: list[Value | None] = []
        given, scalars = [], []
        for argument in self.form:
            value = self._values[argument.name]
            for each in value if argument.many is not None else [value]:
                if each is not None and argument.scalar:
                    scalars.append(len(inputs))
                elif each is not None and self.rng.random() < self._share(argument, each):
                    given.append(len(inputs))
                inputs.append(each)
        while inputs and inputs[-1] is None and self.form[len(inputs) - 1].default is not REQUIRED:
            inputs.pop()
        if self.late and scalars:
            one = self.pick(*scalars)
            given = sorted([*given, *(place for place in scalars if place == one or self.rng.random() < LATE)])
        outputs = self._outputs()
        bound = bind(self.record, inputs, outputs)
        made = tuple(replace(v, shape=s) for v, s in zip(outputs, bound.shapes, strict=True))
        return Call(self.cell, tuple(inputs), made, tuple(given), bound, self.open)

    def _share(self, argument: Arg, value: Value) -> float:
        """Return the probability that a tensor is an input of the model.

        Sizes and positions mostly are constants, the first tensor seldom is, and a tensor without elements cannot be
        one.
        """
        if not value.array.size:
            return 1.0
        if argument is self.form[0] or argument.many is not None:
            return 0.95
        return 0.5 if isinstance(argument.spec, type(T)) else 0.25

    def _as_value(self, argument: Arg, found: Any) -> Any:
        several = isinstance(found, list) and bool(found) and isinstance(found[0], Value)
        if found is None or isinstance(found, Value) or several:
            return found
        kind = self.type_of(argument.name)
        data = np.asarray(found, dtype_of(kind))
        return Value(kind, data.shape, data=data) if not argument.scalar else Value(kind, data=data)

    def _plain(self, argument: Arg) -> Any:
        if argument.scalar:
            return self._scalar(argument)
        kind, name = self.type_of(argument.name), argument.name
        scaled = self.record.scaled.get(name)
        return self.tensor(kind, self._shape(argument), scaled(self) if scaled is not None else None)

    def _scalar(self, argument: Arg) -> Any:
        kind, low = self.type_of(argument.name), argument.at_least
        if argument.enum is not None:
            return self.pick(*argument.enum)
        if kind == OperandType.BOOL:
            return bool(self.whole(0, 1))
        if dtype_of(kind).kind == "f":
            return self.rng.uniform(0.05 if low is None else low, 2)
        return self.whole(-2 if low is None else int(low), 3 if argument.at_most is None else int(argument.at_most))

    def _shape(self, argument: Arg) -> tuple[int, ...]:
        """Return the shape by the pattern; else that of the call.

        A broadcasting operation drops some dimensions of the latter or sets them to 1.
        """
        if argument.dims is not None:
            return self.shape_of(argument.name)
        least, most = argument.rank or (1, 6)
        rank = int(self.once("rank of all", *range(max(1, least), min(most, 8) + 1)))
        whole = tuple(self.size(f"axis {n}") if n < 4 else int(self.once(f"axis {n}", 1, 2, 3)) for n in range(rank))
        if self.record.infer is not broadcast_shape:
            return whole
        lacking = int(self.whole(0, rank - 1)) if self.rng.random() < 0.3 else 0
        return tuple(n if self.rng.random() < 0.7 else 1 for n in whole)[lacking:]

    def _outputs(self) -> list[Value]:
        if self.record.counted is not None:
            count = int(self.record.counted(self))
        else:
            least = sum(1 for o in self.record.outputs if o.default is REQUIRED)
            count = int(self.whole(least, len(self.record.outputs)))
        return [self._output(output_at(self.record, n)) for n in range(count)]

    def _output(self, output: Arg) -> Value:
        kind = self.kind if output.spec is T else int(self.pick(*types_for(self.record, output, self.kind)))
        if not quantised(kind):
            return Value(kind, None)
        scaled = self.record.scaled.get(output.name)
        if scaled is not None:
            return Value(kind, None, *scaled(self))
        if output.quant is not None and kind in output.quant.fixed:
            return Value(kind, None, *output.quant.fixed[kind])
        first = self._first()
        if output.quant is not None and output.quant.same and first is not None:
            return Value(kind, None, first.scale, first.zero_point)
        return Value(kind, None, *self._fitting(kind, first))

    def _first(self) -> Value | None:
        """Return the first tensor of the cell's type."""
        for argument in self.form:
            value = self._values[argument.name]
            if argument.spec is T and value is not None:
                return value[0] if isinstance(value, list) else value
        return None

    def _fitting(self, kind: int, first: Value | None) -> tuple[float, int]:
        """Draw a scale for results: about that of the inputs, or far finer or coarser."""
        off = {"fine": -self.whole(4, 18), "coarse": self.whole(4, 18)}.get(self.cell.values, self.whole(-1, 4))
        scale, zero = self.quantisation(kind, int(off))
        if first is not None and first.scale and self.cell.values != "ties":
            scale = float(np.float32(np.clip(first.scale * scale / 2.0**self.near, 1e-45, 1e38)))
        return scale, zero


# ------------------------------------------------------------------------------------------------------------- contents


def contents(rng: np.random.Generator, kind: int, shape: Sequence[int], values: str) -> Array:
    """Draw elements of a type and a class of values; some of them are ordinary."""
    dtype = dtype_of(kind)
    if kind == B8:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "c":
        parts = np.dtype(f"f{dtype.itemsize // 2}")
        return (_near(rng, shape).astype(parts) + 1j * _near(rng, shape).astype(parts)).astype(dtype)
    if dtype.kind == "f":
        return np.where(rng.random(shape) < SHARE, _special(rng, dtype, shape, values), _near(rng, shape)).astype(dtype)
    limits = np.iinfo(dtype)
    if dtype.itemsize < 4:
        whole = rng.integers(limits.min, limits.max, shape, np.int64, endpoint=True)
        ends = rng.choice([limits.min, limits.max], shape)
        share = SHARE if values == "ends" else SHARE / 3
        return np.where(rng.random(shape) < share, ends, whole).astype(dtype)
    small = rng.integers(-99, 100, shape)
    if values == "ordinary":
        return small.astype(dtype)
    odd = np.zeros(shape, np.int64)
    if values == "largest":
        odd = rng.choice([limits.min, limits.max, limits.min + 1, limits.max - 1, 2**16, 2**30, -1], shape)
    return np.where(rng.random(shape) < SHARE, odd, small).astype(dtype)


def _near(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Draw ordinary elements: about 10, some of them small, some whole."""
    wide, tiny = rng.uniform(-10, 10, shape), rng.normal(size=shape) * 10.0 ** rng.integers(-4, 1, shape)
    return np.choose(rng.integers(0, 4, shape), [wide, wide, tiny, np.rint(wide)])


def _special(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int], values: str) -> Array:
    """Draw elements of another class than ordinary, of both signs."""
    facts = np.finfo(dtype)
    most, least, unit = float(facts.max), float(facts.tiny), float(facts.smallest_subnormal)
    signs = rng.choice([-1.0, 1.0], shape)
    low, high = {
        "large": (math.log2(most) / 3, math.log2(most) - 2),
        "largest": (math.log2(most) - 2, math.log2(most)),
        "smallest": (math.log2(least), math.log2(least) + 4),
        "subnormal": (math.log2(unit), math.log2(least)),
    }.get(values, (0.0, 0.0))
    if high > low or low < 0:
        return signs * np.minimum(2.0 ** rng.uniform(low, high, shape), most)
    if values == "ties":
        return np.floor(rng.uniform(-20, 20, shape)) + 0.5
    return signs * {"zeros": 0.0, "infinite": np.inf, "nan": np.nan}.get(values, 1.0)
