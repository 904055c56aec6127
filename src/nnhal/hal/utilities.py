"""The utilities that NNAPI has for driver authors: queries on types, capabilities, conversion to a HAL version, checks."""

import math
import warnings
from typing import Any

from nnhal.base.codes import EXTENSION_SHIFT, TYPE_FACTS, Lifetime, OperandType, Preference, Priority, type_name
from nnhal.base.errors import InvalidArgument, InvalidModel, InvalidRequest
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3, Level
from nnhal.base.operands import dtype_of
from nnhal.base.records import Record, replace
from nnhal.hal.answers import checked_capabilities
from nnhal.hal.device import Capabilities, Performance
from nnhal.hal.request import Request
from nnhal.model.graph import Model, Operand
from nnhal.model.parts import without_defaults
from nnhal.model.validate import ValidationFacts, validate
from nnhal.ops.schema import agree, show

FLOATS = OperandType.FLOAT32, OperandType.TENSOR_FLOAT32


class LossWarning(UserWarning):
    """A conversion to a lower level dropped something."""


# -------------------------------------------------------------------------------------------------------------- queries


def is_extension(code: int) -> bool:
    """Return whether an operand or operation type belongs to a vendor extension (its high 16 bits are a prefix)."""
    return code >> EXTENSION_SHIFT > 0


def is_scalar(code: int) -> bool:
    """Return whether operands of an NNAPI type have no dimensions; InvalidArgument for other codes."""
    return not _own(code).tensor


def is_tensor(code: int) -> bool:
    """Return whether operands of an NNAPI type have dimensions; InvalidArgument for other codes."""
    return bool(_own(code).tensor)


def _own(code: int) -> Any:
    if code not in TYPE_FACTS:
        raise InvalidArgument(f"operand type is {type_name(code)}, must be a type of NNAPI")
    return TYPE_FACTS[code]


def size_of_data(code: int, dimensions: tuple[int, ...] = ()) -> int:
    """Return the bytes of an operand's value, 0 if a dimension or the rank is unknown. InvalidArgument above 2**32 - 1."""
    facts = _own(code)
    if facts.tensor and (not dimensions or 0 in dimensions):
        return 0
    size = math.prod(dimensions) * dtype_of(code).itemsize
    if size >= 2**32:
        raise InvalidArgument(f"{type_name(code)}{list(dimensions)} has {size} bytes, must be less than 2**32")
    return size


def has_unspecified_dimensions(operand: Operand) -> bool:
    """Return whether a tensor's rank or any dimension is unknown until execution."""
    if operand.type in TYPE_FACTS and not TYPE_FACTS[operand.type].tensor:
        return False
    if operand.lifetime == Lifetime.NO_VALUE:
        return False
    return not operand.dimensions or 0 in operand.dimensions


# --------------------------------------------------------------------------------------------------------- capabilities


def non_extension_performance(performance: Performance) -> dict[int, Performance]:
    """Return the same performance for every NNAPI operand type with a value, as the start of a table."""
    return {t: performance for t in OperandType if t != OperandType.SUBGRAPH}


def lookup(capabilities: Capabilities, code: int) -> Performance:
    """Return the declared performance for an operand type; infinitely slow without one, as defined by the HAL."""
    return capabilities.operands.get(code, Performance(math.inf, math.inf))


def update(capabilities: Capabilities, code: int, performance: Performance) -> Capabilities:
    """Return the capabilities with another performance for one operand type."""
    return replace(capabilities, operands={**capabilities.operands, code: performance})


class OldCapabilities(Record, frozen=True):
    """Capabilities of HAL 1.0 and 1.1. relaxed: None at 1.0."""

    float32: Performance
    quantised8: Performance
    relaxed: Performance | None = None


def upgrade(old: OldCapabilities) -> Capabilities:
    """Convert old capabilities to a table: other types, IF and WHILE are infinitely slow."""
    table: dict[int, Performance] = dict.fromkeys(FLOATS, old.float32)
    table[OperandType.TENSOR_QUANT8_ASYMM] = old.quantised8
    table |= dict.fromkeys((OperandType.INT32, OperandType.UINT32, OperandType.TENSOR_INT32), old.float32)
    relaxed = old.relaxed or old.float32
    never = Performance(math.inf, math.inf)
    return Capabilities(table, relaxed, relaxed, never, never)


def convert_capabilities(capabilities: Capabilities, level: Level) -> Capabilities | OldCapabilities:
    """Convert capabilities to those of a level; a LossWarning reports what is lost."""
    if level >= V1_3:
        return capabilities
    if level == V1_2:
        if {capabilities.if_performance, capabilities.while_performance} != {Performance()}:
            _lost("performance of IF and WHILE", level)
        kept = {t: p for t, p in capabilities.operands.items() if t in TYPE_FACTS and TYPE_FACTS[t].since <= level}
        if len(kept) < len(capabilities.operands):
            _lost("performance of operand types since 1.3", level)
        return Capabilities(kept, capabilities.relaxed_scalar, capabilities.relaxed_tensor)
    float32, quantised8 = (
        lookup(capabilities, t) for t in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM)
    )
    if set(capabilities.operands.values()) - {float32, quantised8}:
        _lost("performance of other operand types than float32 and quant8", level)
    if level == V1_0 and capabilities.relaxed_tensor != float32:
        _lost("performance of relaxed float32", level)
    return OldCapabilities(float32, quantised8, capabilities.relaxed_tensor if level == V1_1 else None)


def _lost(what: str, level: Level) -> None:
    warnings.warn(f"{what} is lost at level {level}", LossWarning, stacklevel=4)


# --------------------------------------------------------------------------------------------------------------- levels


def compliant_with(model: Model, level: Level) -> bool:
    """Return whether a driver of this level can receive the model."""
    return validate(model).level <= level


def convert_to(model: Model, level: Level) -> Model:
    """Convert a model for a driver of this level: arguments that the level lacks are omitted if they hold their defaults.

    Below 1.1, relaxed precision is dropped with a LossWarning: results are then at least as precise. InvalidModel
    reports what else the level lacks.
    """
    if model.relaxed and level < V1_1:
        _lost("relaxed float32", level)
        model = replace(model, relaxed=False)
    facts = validate(model)
    if facts.level > level:
        raise InvalidModel(f"model needs level {facts.level}, must be at most {level}: {'; '.join(facts.reasons)}")
    return without_defaults(model)


# --------------------------------------------------------------------------------------------------------------- checks


def validate_model(model: Model) -> ValidationFacts:
    """Check a whole model; InvalidModel names the operand or operation, and the rule."""
    return validate(model)


def validate_request(request: Request) -> None:
    """Check a request against the arguments of its model: counts, types, shapes; InvalidRequest names the argument."""
    signature, count = request.signature, len(request.given)
    if count != len(signature.inputs):
        raise InvalidRequest(f"request has {count} inputs, must have {len(signature.inputs)}")
    rooms = [None] * len(signature.outputs) if request.rooms is None else request.rooms
    if len(rooms) != len(signature.outputs):
        raise InvalidRequest(f"request has {len(rooms)} outputs, must have {len(signature.outputs)}")
    given = zip((*signature.inputs, *signature.outputs), (*request.given, *rooms), strict=True)
    for n, (argument, array) in enumerate(given):
        if array is None or (n >= count and array.dtype == "u1"):
            continue
        if array.dtype != argument.dtype:
            raise InvalidRequest(f"{argument.name} is {array.dtype}, must be {argument.dtype}")
        if argument.shape is not None and not agree(array.shape, argument.shape):
            raise InvalidRequest(f"{argument.name} has shape {show(array.shape)}, must be {show(argument.shape)}")


def validate_capabilities(capabilities: Capabilities) -> None:
    """Check that every declared figure is a positive number; InvalidArgument names the one that is not."""
    checked_capabilities(capabilities)


def validate_preference(preference: Any) -> Preference:
    """Return the preference as an enum member; InvalidArgument lists them."""
    return _member(Preference, preference, "preference")


def validate_priority(priority: Any) -> Priority:
    """Return the priority as an enum member; InvalidArgument lists them."""
    return _member(Priority, priority, "priority")


def _member(kind: Any, value: Any, label: str) -> Any:
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    if isinstance(value, int) and value in kind.__members__.values():
        return kind(value)
    raise InvalidArgument(f"{label} is {value!r}, must be one of {', '.join(m.lower() for m in kind.__members__)}")
