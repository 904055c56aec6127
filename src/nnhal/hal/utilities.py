"""Queries on types, capabilities and models of older HAL versions, checks of a preference and a priority."""

import math
import warnings
from typing import Any

from nnhal.base.codes import EXTENSION_SHIFT, TYPE_FACTS, OperandType, Preference, Priority, type_name
from nnhal.base.errors import InvalidArgument, InvalidModel
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3, Level
from nnhal.base.operands import dtype_of
from nnhal.base.records import Record, replace
from nnhal.hal.device import Capabilities, Performance
from nnhal.model.graph import Model
from nnhal.model.parts import without_defaults
from nnhal.model.validate import validate

FLOATS = OperandType.FLOAT32, OperandType.TENSOR_FLOAT32


class LossWarning(UserWarning):
    """A conversion to a lower level dropped something."""


# -------------------------------------------------------------------------------------------------------------- queries


def is_extension(code: int) -> bool:
    """Return whether an operand or operation type belongs to a vendor extension (its high 16 bits are a prefix)."""
    return code >> EXTENSION_SHIFT > 0


def size_of_data(code: int, dimensions: tuple[int, ...] = ()) -> int:
    """Return the bytes of an operand's value, 0 if a dimension or the rank is unknown. InvalidArgument above 2**32 - 1."""
    if code not in TYPE_FACTS:
        raise InvalidArgument(f"operand type is {type_name(code)}, must be a type of NNAPI")
    facts = TYPE_FACTS[code]
    if facts.tensor and (not dimensions or 0 in dimensions):
        return 0
    size = math.prod(dimensions) * dtype_of(code).itemsize
    if size >= 2**32:
        raise InvalidArgument(f"{type_name(code)}{list(dimensions)} has {size} bytes, must be less than 2**32")
    return size


# --------------------------------------------------------------------------------------------------------- capabilities


def lookup(capabilities: Capabilities, code: int) -> Performance:
    """Return the declared performance for an operand type; infinitely slow without one, as defined by the HAL."""
    return capabilities.operands.get(code, Performance(math.inf, math.inf))


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
