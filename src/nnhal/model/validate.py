"""Whole-graph validation: the structure, the operands, and every operation against its record. Infers shapes and level.

Source of the rules: the NN HAL `types.hal` and the definition of `ANeuralNetworksModel_finish`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import force_setattr

from nnhal.base.answers import safe_repr
from nnhal.base.codes import (
    EXTENSION_SHIFT,
    LIMIT_RANK,
    MAX_COPIED_CONSTANT,
    MAX_OPERAND_BYTES,
    MAX_RANK,
    TYPE_FACTS,
    Lifetime,
    OperandType,
    OperationType,
    operation_name,
    type_name,
)
from nnhal.base.errors import InvalidArgument, InvalidModel
from nnhal.base.extensions import canonical, extension_name
from nnhal.base.lazy import cached_property
from nnhal.base.levels import FL7, V1_0, V1_1, V1_2, V1_3, Level
from nnhal.base.log import logger
from nnhal.base.memory import address
from nnhal.base.operands import Shape, SubgraphFacts, Value, fixed
from nnhal.base.records import Record, replace
from nnhal.model.graph import CONSTANTS, Model, Operand, Operation, Subgraph, describe, operation_label, released_part
from nnhal.ops import OPS
from nnhal.ops.schema import Bound, Op, bind

LIFETIMES = frozenset(Lifetime)
# Memos of a model: in other layouts, the subgraphs of its control flow, and the operations that may count iterations
LAID_OUT, PARTS, COMPUTED = "laid out", "parts", "computed"
_log = logger("model")
MAX_DEPTH = 64  # of nested subgraphs


class SubgraphBinding(Record, frozen=True):
    """A bound subgraph: an entry for each operation (None without a record) and each operand."""

    operations: Sequence[Bound | None]
    values: tuple[Value | None, ...]  # None: no value


class ValidationFacts(Record, frozen=True):
    """The results of validation.

    Attributes:
        level: The HAL version or feature level that the model needs.
        reasons: Why it needs this level.
    """

    subgraphs: tuple[SubgraphBinding, ...]
    level: Level
    reasons: tuple[str, ...]


def validate(model: Model) -> ValidationFacts:
    """Check everything about a model that can be known before execution.

    The results are stored with the model: a second call costs nothing.

    Args:
        model: The model.

    Returns:
        The bound operations, shapes and level.

    Raises:
        InvalidModel: The model breaks a rule; the message names the operand or operation, and the rule.
        ShapeNeeded: The operations of the model depend on unknown sizes.
    """
    try:
        memo = model._memo
    except AttributeError:
        raise InvalidArgument(f"model is {safe_repr(model)}, must be a nnhal.Model") from None
    if "facts" not in memo:
        model.require_sizes()
        memo["facts"] = _validate(model)
    facts: ValidationFacts = memo["facts"]
    return facts


def values_of(model: Model, indices: Iterable[int]) -> list[Value | None]:
    """Return what is known of these operands of a valid model's main subgraph.

    Operations are bound only if the operands' declarations are incomplete.

    Args:
        model: A valid model.
        indices: Operands of its main subgraph.
    """
    operands = [model.main.operands[i] for i in indices]
    if "facts" not in model._memo and all(fixed(shape_of(operand)) is not None for operand in operands):
        return [_value(model, operand, {}) for operand in operands]
    values = validate(model).subgraphs[0].values
    return [values[i] for i in indices]


def validate_outline(model: Model) -> Model:
    """Validate a model that has inputs and outputs only; later calls of `validate` accept it.

    It represents a restored model, which no driver can prepare.

    Args:
        model: The model.

    Raises:
        InvalidModel: It breaks a rule.
    """
    main = model.main
    if main.operations or model.referenced:
        raise InvalidModel("outline: has operations, must have none")
    _check_operands(model, main, "outline")
    ends = ("input", main.inputs, Lifetime.SUBGRAPH_INPUT), ("output", main.outputs, Lifetime.SUBGRAPH_OUTPUT)
    for kind, indices, lifetime in ends:
        _check_interface(model, main, "outline", kind, indices, lifetime)
    bound = SubgraphBinding((), tuple(_value(model, operand, {}) for operand in main.operands))
    model._memo["facts"] = ValidationFacts((bound,), V1_0, ())
    return model


class StoredValidation(Record, frozen=True):
    """Results of validation that are stored for a later process.

    Attributes:
        shapes: The inferred shapes of each subgraph, by operand.
        needed: The level of each operation of the main subgraph, as in `level_needed`.
        optional: As in `optional_inputs`.
    """

    shapes: tuple[tuple[tuple[int, tuple[int | None, ...]], ...], ...]
    level: int
    reasons: tuple[str, ...]
    needed: tuple[int | None, ...]
    optional: frozenset[int]


class _Later:
    """The binding of a model's operations, on demand. It holds the model as it is now."""

    def __init__(self, model: Model) -> None:
        self._model = replace(model)  # a copy without memo: with it, the model would refer to itself

    @cached_property
    def bound(self) -> ValidationFacts:
        """Validate the model."""
        return _validate(self._model)


class UnboundOperations(Sequence[Bound | None]):
    """The operations of one subgraph of a model that was validated before."""

    def __init__(self, later: _Later, number: int) -> None:
        self._later, self._number = later, number

    def __getitem__(self, index: Any) -> Any:
        return self._later.bound.subgraphs[self._number].operations[index]

    def __len__(self) -> int:
        return len(self._later.bound.subgraphs[self._number].operations)


def validated_before(model: Model, known: StoredValidation) -> Model:
    """Attach stored validation results to a model. Its operations are bound on demand.

    Args:
        model: The model.
        known: The results of `stored_validation`.
    """
    later, done = _Later(model), dict[int, SubgraphBinding]()
    for number in _innermost_first(model):
        values = [_value(model, operand, done) for operand in model.subgraphs[number].operands]
        for place, shape in known.shapes[number]:
            value = values[place]
            if value is not None:
                values[place] = replace(value, shape=tuple(shape))
        done[number] = SubgraphBinding(UnboundOperations(later, number), tuple(values))
    model._memo["facts"] = ValidationFacts(
        tuple(done[n] for n in range(len(model.subgraphs))), Level(known.level), known.reasons
    )
    model._memo["needed"] = [None if level is None else Level(level) for level in known.needed]
    model._memo["optional"] = known.optional
    return model


def stored_validation(model: Model) -> StoredValidation:
    """Return the validation results for `validated_before`.

    Args:
        model: A valid model.
    """
    facts = validate(model)
    shapes = tuple(
        tuple(
            (n, v.shape)
            for n, (v, operand) in enumerate(zip(each.values, subgraph.operands, strict=True))
            if v is not None and v.shape is not None and v.shape != shape_of(operand)
        )
        for each, subgraph in zip(facts.subgraphs, model.subgraphs, strict=True)
    )
    needed = tuple(level_needed(model, n) for n in range(len(model.main.operations)))
    levels = tuple(None if n is None else int(n) for n in needed)
    return StoredValidation(shapes, int(facts.level), facts.reasons, levels, optional_inputs(model))


def level_of(model: Model) -> Level:
    """Return the lowest HAL version or feature level whose drivers can receive this model.

    Args:
        model: The model.

    Raises:
        InvalidModel: The model breaks a rule.
    """
    return validate(model).level


def release_constants(model: Model, why: str) -> None:
    """Release a model's constants, in place. Reading one, or a bound operation, then raises ContractBroken.

    Shapes, types and level remain. An array over a constant stays valid, and keeps its memory alive.

    Args:
        model: A model that only the caller uses.
        why: The message of the error.
    """
    facts, nothing = validate(model), released_part(why)
    bindings = [
        SubgraphBinding(nothing, tuple(None if v is None else replace(v, data=None) for v in each.values))
        for each in facts.subgraphs
    ]
    for memo in ("bounds", LAID_OUT, PARTS):
        model._memo.pop(memo, None)
    model._memo["facts"] = ValidationFacts(tuple(bindings), facts.level, facts.reasons)
    for what in ("values", "pools"):
        force_setattr(model, what, nothing)  # only the caller uses this object: see `Model.again`


def _validate(model: Model) -> ValidationFacts:
    for index, subgraph in enumerate(model.subgraphs):
        where = "main" if index == 0 else f"subgraph {index - 1}"
        _check_operands(model, subgraph, where)
        _check_structure(model, subgraph, where)
    bindings: dict[int, SubgraphBinding] = {}
    for index in _innermost_first(model):
        bindings[index] = _bind(model, index, bindings)
    model._memo.pop("bounds", None)
    ordered = tuple(bindings[i] for i in range(len(model.subgraphs)))
    level, reasons = _level(model, ordered)
    _log.debug("%s: %d operations, level %s", model.name or "model", len(model.main.operations), level)
    return ValidationFacts(ordered, level, reasons)


# ------------------------------------------------------------------------------------------------------------ operands


def _check_operands(model: Model, subgraph: Subgraph, where: str) -> None:
    for index, operand in enumerate(subgraph.operands):
        try:
            _check_operand(model, operand)
        except InvalidArgument as error:
            raise InvalidModel(f"{where}: operand {describe(model, subgraph, index)}: {error}") from error


def _check_operand(model: Model, operand: Operand) -> None:
    if operand.type >> EXTENSION_SHIFT:
        if not extension_name(operand.type, model.extensions):
            raise InvalidModel(f"type is {type_name(operand.type)}, must be of an extension that the model names")
    else:
        if operand.type not in TYPE_FACTS:
            raise InvalidModel(f"type is {operand.type}, must be one of {', '.join(t.name for t in OperandType)}")
        _check_type(operand)
    if operand.lifetime not in LIFETIMES:
        raise InvalidModel(f"lifetime is {operand.lifetime}, must be 0 to 6")
    _check_location(model, operand)


def _check_type(operand: Operand) -> None:
    facts = TYPE_FACTS[operand.type]
    dims = operand.dimensions
    if dims and not facts.tensor:
        raise InvalidModel(f"has dimensions {list(dims)}, must have none: it is a scalar")
    if len(dims) > LIMIT_RANK:
        raise InvalidModel(f"has rank {len(dims)}, must be at most {LIMIT_RANK}")
    if dims and not 0 <= min(dims) <= max(dims) < 2**32:
        raise InvalidModel(f"has dimensions {list(dims)}, must be 0 (unknown) to 2**32 - 1")
    if facts.dtype is not None:
        size = math.prod(d for d in dims if d) * facts.dtype.itemsize
        if size > MAX_OPERAND_BYTES:
            raise InvalidModel(f"has {size} bytes, must be at most {MAX_OPERAND_BYTES}")
    if operand.type in (OperandType.OEM, OperandType.TENSOR_OEM_BYTE) or operand.lifetime == Lifetime.NO_VALUE:
        return
    _check_quantisation(operand)


def _check_quantisation(operand: Operand) -> None:
    zero_points = TYPE_FACTS[operand.type].zero_points
    scale, zero = operand.scale, operand.zero_point
    if not (math.isfinite(scale) and scale >= 0):
        raise InvalidModel(f"scale is {scale}, must be a finite number, at least 0")
    if operand.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        if scale != 0:
            raise InvalidModel(f"scale is {scale}, must be 0: the scales are per channel")
        _check_channels(operand)
        return
    if operand.channel is not None:
        raise InvalidModel(f"has per-channel scales, only {OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL.name} may")
    if zero_points is not None:
        if scale == 0:
            raise InvalidModel(f"scale is {scale}, must be greater than 0")
        low, high = zero_points
        if not low <= zero <= high:
            raise InvalidModel(f"zero point is {zero}, must be {low} to {high}")
    elif operand.type == OperandType.TENSOR_INT32:
        if zero != 0:
            raise InvalidModel(f"zero point is {zero}, must be 0")
    elif scale != 0 or zero != 0:
        raise InvalidModel(f"scale is {scale:g} and zero point {zero}, must be 0: the type is not quantised")


def _check_channels(operand: Operand) -> None:
    channel, dims = operand.channel, operand.dimensions
    if channel is None:
        raise InvalidModel("has no per-channel scales, must have one for each channel")
    if not 0 <= channel.axis < len(dims):
        raise InvalidModel(f"channel dimension is {channel.axis}, must be 0 to {len(dims) - 1}")
    count = dims[channel.axis]
    if not count:
        raise InvalidModel(f"channel dimension {channel.axis} is 0, must be known: it has a scale for each channel")
    if count != len(channel.scales):
        raise InvalidModel(f"has {len(channel.scales)} scales, must be {count}, one for each channel")
    bad = next((s for s in channel.scales if not (math.isfinite(s) and s > 0)), None)
    if bad is not None:
        raise InvalidModel(f"has the channel scale {bad}, must be finite and greater than 0")
    if operand.zero_point != 0:
        raise InvalidModel(f"zero point is {operand.zero_point}, must be 0")


def _check_location(model: Model, operand: Operand) -> None:
    at, lifetime = operand.location, operand.lifetime
    if lifetime == Lifetime.SUBGRAPH or operand.type == OperandType.SUBGRAPH:
        if lifetime != Lifetime.SUBGRAPH or operand.type != OperandType.SUBGRAPH:
            raise InvalidModel(f"lifetime is {lifetime.name}; type SUBGRAPH and lifetime SUBGRAPH must go together")
        count = len(model.referenced)
        if not 0 <= at.offset < count:
            raise InvalidModel(f"refers to subgraph {at.offset}, must be less than {count}")
    elif lifetime in CONSTANTS:
        if lifetime == Lifetime.CONSTANT_COPY:
            limit = len(model.values)
        else:
            if not 0 <= at.pool < len(model.pools):
                raise InvalidModel(f"refers to pool {at.pool}, must be less than {len(model.pools)}")
            limit = model.pools[at.pool].size
        if at.offset < 0 or at.length <= 0 or at.offset + at.length > limit:
            raise InvalidModel(f"value lies at bytes {at.offset} to {at.offset + at.length}, must lie within {limit}")
        _check_constant_size(model, operand)


def _check_constant_size(model: Model, operand: Operand) -> None:
    facts = TYPE_FACTS.get(canonical(operand.type, model.extensions))
    if facts is None or facts.dtype is None:
        return
    if facts.tensor and (not operand.dimensions or 0 in operand.dimensions):
        raise InvalidModel(f"is constant with dimensions {list(operand.dimensions)}, must have every dimension known")
    size = math.prod(operand.dimensions) * facts.dtype.itemsize
    if operand.location.length != size:
        raise InvalidModel(f"value has {operand.location.length} bytes, must have {size}")


# ----------------------------------------------------------------------------------------------------------- structure


def _check_structure(model: Model, subgraph: Subgraph, where: str) -> None:
    if not subgraph.operations:
        raise InvalidModel(f"{where}: has no operations, must have at least one")
    for kind, indices, lifetime in (
        ("input", subgraph.inputs, Lifetime.SUBGRAPH_INPUT),
        ("output", subgraph.outputs, Lifetime.SUBGRAPH_OUTPUT),
    ):
        _check_interface(model, subgraph, where, kind, indices, lifetime)
    ready = [o.lifetime not in (Lifetime.TEMPORARY_VARIABLE, Lifetime.SUBGRAPH_OUTPUT) for o in subgraph.operands]
    for number, operation in enumerate(subgraph.operations):
        try:
            _check_operation(model, subgraph, operation, ready)
        except InvalidArgument as error:
            raise InvalidModel(f"{where}: {operation_label(operation.type, number)}: {error}") from error
    if not all(ready):
        name = describe(model, subgraph, ready.index(False))
        raise InvalidModel(f"{where}: operand {name} is never written, must be by one operation")


def _check_operation(model: Model, subgraph: Subgraph, operation: Operation, ready: list[bool]) -> None:
    """Check the structure of one operation. `ready` has the operands with a value; its outputs are added."""
    _check_type_of(model, operation.type)
    count = len(subgraph.operands)
    for kind, indices in (("input", operation.inputs), ("output", operation.outputs)):
        for place, index in enumerate(indices):
            if not 0 <= index < count:
                raise InvalidModel(f"{kind} {place} is operand {index}, must be 0 to {count - 1}")
    if not operation.outputs:
        raise InvalidModel("has no outputs, must have at least one")
    for index in operation.inputs:
        if not ready[index]:
            what = f"reads operand {describe(model, subgraph, index)}"
            if any(index in other.outputs for other in subgraph.operations):
                raise InvalidModel(f"{what} before it is written")
            raise InvalidModel(f"{what}, which no operation writes, must be one of the inputs")
    for index in operation.outputs:
        written = subgraph.operands[index].lifetime
        if written not in (Lifetime.TEMPORARY_VARIABLE, Lifetime.SUBGRAPH_OUTPUT):
            name = describe(model, subgraph, index)
            raise InvalidModel(f"writes operand {name} of lifetime {written.name}, must be a temporary or an output")
        if ready[index]:
            name = describe(model, subgraph, index)
            raise InvalidModel(f"writes operand {name}, which is already written, must have one writer")
        ready[index] = True


def _check_interface(
    model: Model, subgraph: Subgraph, where: str, kind: str, indices: Sequence[int], lifetime: Lifetime
) -> None:
    count = len(subgraph.operands)
    for place, index in enumerate(indices):
        if not 0 <= index < count:
            raise InvalidModel(f"{where}: {kind} {place} is operand {index}, must be 0 to {count - 1}")
        actual = subgraph.operands[index].lifetime
        if actual != lifetime:
            name = describe(model, subgraph, index)
            raise InvalidModel(
                f"{where}: {kind} {place} is operand {name} of lifetime {actual.name}, must be {lifetime.name}"
            )
    listed = set(indices)
    if len(listed) != len(indices):
        raise InvalidModel(f"{where}: the {kind}s {list(indices)} name an operand twice")
    for index, operand in enumerate(subgraph.operands):
        if operand.lifetime == lifetime and index not in listed:
            name = describe(model, subgraph, index)
            raise InvalidModel(f"{where}: operand {name} is {lifetime.name}, must be listed among the {kind}s")
    if kind == "output" and not indices:
        raise InvalidModel(f"{where}: has no outputs, must have at least one")


def _check_type_of(model: Model, code: int) -> None:
    if code >> EXTENSION_SHIFT:
        if not extension_name(code, model.extensions):
            named = ", ".join(sorted(name for name, _ in model.extensions)) or "it names none"
            raise InvalidModel(f"must be of an extension that the model names: {named}")
    elif code != OperationType.OEM_OPERATION and operation_name(code) not in OPS:
        raise InvalidModel(f"must be one of the {len(OPS)} operations known, or of an extension")


def _innermost_first(model: Model) -> list[int]:
    """Order subgraph numbers so that each follows those it refers to; cycles and too deep nesting are errors."""
    refers = [
        sorted({o.location.offset + 1 for o in subgraph.operands if o.lifetime == Lifetime.SUBGRAPH})
        for subgraph in model.subgraphs
    ]
    depth: dict[int, int] = {}
    pending: list[tuple[int, bool]] = [(i, False) for i in reversed(range(len(refers)))]
    open_now: set[int] = set()
    order = []
    while pending:
        at, done = pending.pop()
        if done:
            open_now.discard(at)
            depth[at] = 1 + max((depth[r] for r in refers[at]), default=0)
            if depth[at] > MAX_DEPTH:
                raise InvalidModel(f"subgraphs are nested deeper than {MAX_DEPTH}")
            order.append(at)
        elif at not in depth:
            if at in open_now:
                raise InvalidModel(f"subgraph {at - 1} refers to itself, directly or through others")
            open_now.add(at)
            pending.append((at, True))
            for other in refers[at]:
                if other in open_now:
                    raise InvalidModel(f"subgraph {other - 1} refers to itself, directly or through others")
                pending.append((other, False))
    return order


# ------------------------------------------------------------------------------------------------------------- binding


def _bind(model: Model, number: int, done: dict[int, SubgraphBinding]) -> SubgraphBinding:
    subgraph = model.subgraphs[number]
    values = [_value(model, operand, done) for operand in subgraph.operands]
    before = model._memo.get("bounds")
    made = before[number] if before else [None] * len(subgraph.operations)
    bounds: list[Bound | None] = []
    for index, operation in enumerate(subgraph.operations):
        record = OPS.get(operation_name(canonical(operation.type, model.extensions)))
        if record is None:
            bounds.append(None)
            continue
        label = _label(operation.type, index, number, operation.name)
        given, outs = [values[i] for i in operation.inputs], [values[i] for i in operation.outputs]
        a = _again(made[index], record, given, outs, label) or bind(record, given, outs, label)
        _check_ranks(a, (*operation.inputs, *operation.outputs), values)
        bounds.append(a)
        for place, shape in zip(operation.outputs, a.shapes, strict=True):
            value = values[place]
            if shape is not None and value is not None and shape != value.shape:
                values[place] = replace(value, shape=_merge(shape, value.shape))
    return SubgraphBinding(tuple(bounds), tuple(values))


def _label(type: int, index: int, number: int, name: str = "") -> str:
    """Describe an operation of subgraph `number`, 0 for the main one."""
    return operation_label(type, index, name) + (f" of subgraph {number - 1}" if number else "")


def _again(
    a: Bound | None, record: Op, inputs: Sequence[Value | None], outs: Sequence[Value | None], label: str
) -> Bound | None:
    """Return the binding that the model's builder had made, if the operands are identical; else None."""
    if a is None or a.op is not record or len(a.given) != len(inputs) or len(a.outs) != len(outs):
        return None
    for before, value in zip(a.given, inputs, strict=True):
        if before is None or value is None:
            if before is not value:
                return None
        elif before.shape != value.shape or not _alike(before, value):
            return None
    for before, value, shape in zip(a.outs, outs, a.shapes, strict=True):
        if value is None or value.shape != shape or not _alike(before, value):
            return None
    a.name, a.outs = label, tuple(value for value in outs if value is not None)
    return a


def _alike(one: Value, other: Value) -> bool:
    """Whether two operands of one shape have the same value: the same bytes, or few elements that are equal."""
    if (one.type, one.scale, one.zero_point, one.channel) != (
        other.type, other.scale, other.zero_point, other.channel,
    ):  # fmt: skip
        return False
    x, y = one.data, other.data
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return x is y
    if x.nbytes != y.nbytes:
        return False
    if x.nbytes <= MAX_COPIED_CONSTANT:
        return x.tobytes() == y.tobytes()
    return address(x) == address(y) and x.flags.c_contiguous


def _check_ranks(a: Bound, indices: Sequence[int], values: Sequence[Value | None]) -> None:
    for index in indices:
        value = values[index]
        if value is not None and value.shape is not None and len(value.shape) > MAX_RANK:
            a.require(a.level >= FL7, f"operand %{index} has rank {len(value.shape)}, must be at most {MAX_RANK}")


def _merge(inferred: Shape, declared: Shape | None) -> Shape:
    if declared is None:
        return inferred
    return tuple(d if i is None else i for i, d in zip(inferred, declared, strict=True))


def _value(model: Model, operand: Operand, done: dict[int, SubgraphBinding]) -> Value | None:
    if operand.lifetime == Lifetime.NO_VALUE:
        return None
    data: Any = None
    if operand.lifetime == Lifetime.SUBGRAPH:
        data = _subgraph_facts(model, operand.location.offset, done)
    elif operand.lifetime in CONSTANTS and _element_type_known(model, operand) and model.readable(operand):
        data = model.constant(operand)
    kind = canonical(operand.type, model.extensions)
    return Value(kind, shape_of(operand), operand.scale, operand.zero_point, operand.channel, data, operand.name)


def _element_type_known(model: Model, operand: Operand) -> bool:
    facts = TYPE_FACTS.get(canonical(operand.type, model.extensions))
    return facts is not None and facts.dtype is not None and operand.type != OperandType.TENSOR_OEM_BYTE


def shape_of(operand: Operand) -> Shape | None:
    """Return the declared shape: None for an unknown rank, None within it for an unknown dimension.

    Args:
        operand: The operand.
    """
    facts = TYPE_FACTS.get(operand.type)
    if facts is not None and not facts.tensor:
        return ()
    return tuple(d or None for d in operand.dimensions) or None


def _subgraph_facts(model: Model, index: int, done: dict[int, SubgraphBinding]) -> SubgraphFacts:
    subgraph, values = model.referenced[index], done[index + 1].values
    inputs, outputs = ([values[i] for i in indices] for indices in (subgraph.inputs, subgraph.outputs))
    return SubgraphFacts(index, tuple(v for v in inputs if v), tuple(v for v in outputs if v))


def _level(model: Model, bindings: Sequence[SubgraphBinding]) -> tuple[Level, tuple[str, ...]]:
    found: list[tuple[Level, str]] = [(V1_0, "")]
    if model.relaxed:
        found.append((V1_1, "relaxed float32 exists since 1.1"))
    if model.extensions:
        found.append((V1_2, "extensions exist since 1.2"))
    if model.referenced:
        found.append((V1_3, "referenced subgraphs exist since 1.3"))
    for subgraph, binding in zip(model.subgraphs, bindings, strict=True):
        for kind in dict.fromkeys(subgraph.operands[index].type for index in _counting(subgraph, binding)):
            if kind in TYPE_FACTS:
                since = TYPE_FACTS[kind].since
                found.append((since, f"{type_name(kind)} exists since {since}"))
    bounds = [
        (a, (operation.type, index, number))
        for number, (subgraph, binding) in enumerate(zip(model.subgraphs, bindings, strict=True))
        for index, (operation, a) in enumerate(zip(subgraph.operations, binding.operations, strict=True))
        if a is not None
    ]
    level = max([since for since, _ in found] + [a.level for a, _ in bounds])
    reasons = [reason for since, reason in found if since == level and reason]
    reasons += [f"{_label(*which)}: {a.reasons[-1]}" for a, which in bounds if a.level == level]
    return level, tuple(dict.fromkeys(reasons))


def level_needed(model: Model, index: int) -> Level | None:
    """Return the level that an operation of the main subgraph needs, including its subgraphs; None without a record.

    Args:
        model: The model.
        index: The number of the operation.
    """
    if (needed := model._memo.get("needed")) is not None:
        known: Level | None = needed[index]
        return known
    bound = validate(model).subgraphs[0].operations[index]
    return None if bound is None else max(bound.level, *_levels_inside(model, model.main, index), V1_0)


def optional_inputs(model: Model) -> frozenset[int]:
    """Return the inputs that may be omitted, by place: every operation that reads them allows it.

    Args:
        model: The model.
    """
    if (known := model._memo.get("optional")) is not None:
        places: frozenset[int] = known
        return places
    main, bounds = model.main, validate(model).subgraphs[0].operations
    may: set[int] = set()
    needed: set[int] = set()
    for operation, a in zip(main.operations, bounds, strict=True):
        if a is None:
            needed.update(operation.inputs)
            continue
        for argument, start, end in a.form.slots(len(operation.inputs)):
            (may if argument.optional else needed).update(operation.inputs[start:end])
    return frozenset(n for n, index in enumerate(main.inputs) if index in may and index not in needed)


def _levels_inside(model: Model, subgraph: Subgraph, index: int) -> Iterator[Level]:
    """Yield the level of each subgraph that an operation refers to. The levels are stored with the model."""
    kept: dict[int, Level] = model._memo.setdefault("levels", {})
    for place in subgraph.operations[index].inputs:
        if subgraph.operands[place].lifetime != Lifetime.SUBGRAPH:
            continue
        number = subgraph.operands[place].location.offset
        if number not in kept:
            inner, bounds = model.referenced[number], validate(model).subgraphs[number + 1].operations
            found = [a.level for a in bounds if a is not None]
            found += [level for n in range(len(inner.operations)) for level in _levels_inside(model, inner, n)]
            kept[number] = max(found, default=V1_0)
        yield kept[number]


def _counting(subgraph: Subgraph, binding: SubgraphBinding) -> set[int]:
    """Return the operands whose types count: all but those that only hold defaults of trailing arguments."""
    used = {*subgraph.inputs, *subgraph.outputs}
    for operation, a in zip(subgraph.operations, binding.operations, strict=True):
        used.update(operation.outputs, operation.inputs if a is None else operation.inputs[: a.needed])
    return used
