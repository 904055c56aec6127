"""Converts models, capabilities, errors and timing to wire structs and back. Incoming messages are not trusted."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from nnhal.base import errors
from nnhal.base.codes import ErrorStatus, Lifetime, OperandType
from nnhal.base.errors import (
    InvalidArgument,
    InvalidModel,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    OutputInsufficientSize,
    as_error,
    bounded_text,
    error_text,
    is_out_of_resources,
)
from nnhal.base.levels import V1_2, Level
from nnhal.base.memory import Memory
from nnhal.base.names import printable
from nnhal.base.operands import ChannelQuant
from nnhal.base.stacks import stack_of, with_note
from nnhal.hal.device import Capabilities, Considered, OperationGroup, Verdict
from nnhal.hal.device import Performance as Stated
from nnhal.hal.request import Timing
from nnhal.hal.utilities import LossWarning, OldCapabilities, convert_capabilities, upgrade
from nnhal.ipc.protocol import wire
from nnhal.model.graph import Location, Model, Operand, Operation, Subgraph, with_codes_of_here

# -------------------------------------------------------------------------------------------------------------- models


def model_to_wire(model: Model, pool: Callable[[Memory], wire.Pool]) -> wire.WireModel:
    """Convert a model for the service's HAL version; `pool` converts a memory.

    Raises InvalidModel for a `ChannelQuant` without scales.
    """
    graphs = tuple(
        wire.WireSubgraph(
            tuple(_operand_to_wire(o, number, n) for n, o in enumerate(graph.operands)),
            tuple(wire.WireOperation(o.type, o.inputs, o.outputs, o.name) for o in graph.operations),
            graph.inputs,
            graph.outputs,
        )
        for number, graph in enumerate(model.subgraphs)
    )
    pools = tuple(pool(memory) for memory in model.pools)
    return wire.WireModel(graphs, model.values, pools, model.relaxed, model.extensions, model.name)


def _operand_to_wire(o: Operand, graph: int, number: int) -> wire.WireOperand:
    at = o.location
    if o.channel is not None and not o.channel.scales:  # in a message it would be an operand without ChannelQuant
        raise InvalidModel(f"subgraph {graph} operand {number}: has no per-channel scales, must have one for a channel")
    scales, axis = ((), 0) if o.channel is None else (o.channel.scales, o.channel.axis)
    location = (at.pool, at.offset, at.length)
    return wire.WireOperand(
        o.type, o.dimensions, o.scale, o.zero_point, int(o.lifetime), location, scales, axis, o.extension, o.name
    )


def model_from_wire(model: wire.WireModel, pool: Callable[[wire.Pool], Memory]) -> Model:
    """Convert a model from a client. Raises InvalidModel for an impossible model; validation finds other faults."""
    pools = tuple(pool(p) for p in model.pools)
    graphs = [_graph_from_wire(g, n, model, pools) for n, g in enumerate(model.subgraphs)]
    made = Model(
        graphs[0],
        tuple(graphs[1:]),
        bytes(model.values),
        pools,
        model.relaxed,
        tuple(model.extensions),
        name=model.name,
    )
    return with_codes_of_here(made)


def _graph_from_wire(
    graph: wire.WireSubgraph, number: int, model: wire.WireModel, pools: tuple[Memory, ...]
) -> Subgraph:
    operands = []
    for n, o in enumerate(graph.operands):
        where = f"subgraph {number} operand {n}"
        if o.lifetime not in Lifetime.__members__.values():
            raise InvalidModel(f"{where}: lifetime is {o.lifetime}, must be one of {', '.join(Lifetime.__members__)}")
        pool, offset, length = o.location
        if o.lifetime == Lifetime.CONSTANT_COPY and offset + length > len(model.values):
            raise InvalidModel(
                f"{where}: bytes {offset} to {offset + length} must lie inside the {len(model.values)} values"
            )
        if o.lifetime == Lifetime.CONSTANT_REFERENCE:
            if pool >= len(pools):
                raise InvalidModel(f"{where}: pool is {pool}, must be below {len(pools)}")
            if offset + length > pools[pool].size:
                raise InvalidModel(
                    f"{where}: bytes {offset} to {offset + length} must lie inside the pool's {pools[pool].size}"
                )
        channel = ChannelQuant(tuple(o.scales), o.axis) if o.scales else None
        location = Location(pool, offset, length)
        operands.append(
            Operand(
                o.type,
                o.dimensions,
                o.scale,
                o.zero_point,
                Lifetime(o.lifetime),
                location,
                channel,
                o.extension,
                o.name,
            )
        )
    operations = tuple(Operation(o.type, o.inputs, o.outputs, o.name) for o in graph.operations)
    return Subgraph(tuple(operands), operations, graph.inputs, graph.outputs)


# -------------------------------------------------------------------------------------------------------- capabilities


def capabilities_to_wire(capabilities: Capabilities, form: Level) -> wire.CapabilitiesReply:
    """Convert capabilities for a HAL version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossWarning)  # this client cannot use what that HAL version lacks
        old = convert_capabilities(capabilities, form)
    if isinstance(old, OldCapabilities):
        table: dict[int, Stated] = {
            OperandType.TENSOR_FLOAT32: old.float32,
            OperandType.TENSOR_QUANT8_ASYMM: old.quantised8,
        }
        others: tuple[Stated, ...] = () if old.relaxed is None else (old.relaxed,)
    else:
        table = dict(old.operands)
        others = (old.relaxed_scalar, old.relaxed_tensor, old.if_performance, old.while_performance)
    entries = {int(code): wire.WirePerformance(*stated) for code, stated in table.items()}
    return wire.CapabilitiesReply(entries, tuple(wire.WirePerformance(*stated) for stated in others))


def capabilities_from_wire(stated: wire.CapabilitiesReply, form: Level) -> Capabilities:
    """Convert a service's capabilities. Raises OperationFailed if the HAL version requires a missing entry."""
    table = {code: Stated(p.exec_time, p.power_usage) for code, p in stated.operands.items()}
    others = [Stated(p.exec_time, p.power_usage) for p in stated.others]
    try:
        if form >= V1_2:
            return Capabilities(table, *others)
        float32, quant8 = table[OperandType.TENSOR_FLOAT32], table[OperandType.TENSOR_QUANT8_ASYMM]
        return upgrade(OldCapabilities(float32, quant8, others[0] if others else None))
    except (KeyError, TypeError) as error:
        raise OperationFailed(f"capabilities: {error} is missing, must be declared at HAL version {form}") from None


# -------------------------------------------------------------------------------------------------------------- claims


def claims_to_wire(verdicts: Sequence[Verdict], groups: Sequence[OperationGroup], *, kept: bool) -> wire.SupportReply:
    """Convert the device's answers about a model. kept: whether the service keeps the model."""
    shown = (wire.WireGroup(tuple(g.operations), wire.WirePerformance(*g.performance), g.at_least) for g in groups)
    return wire.SupportReply(tuple((v.ok, v.reason) for v in verdicts), tuple(shown), kept)


def claims_from_wire(claimed: wire.SupportReply, kept: object) -> Considered:
    """Convert a service's answers; figures and indices are not checked. kept: represents what the service keeps."""
    groups = [
        OperationGroup(g.operations, Stated(g.performance.exec_time, g.performance.power_usage), g.at_least)
        for g in claimed.groups
    ]
    return Considered([Verdict(ok, why) for ok, why in claimed.verdicts], groups, kept if claimed.kept else None)


# -------------------------------------------------------------------------------------------------------------- errors


def error_to_wire(error: BaseException) -> wire.Failed:
    """Convert any error to a reply; a lack of memory, descriptors or threads requests a new process."""
    stack = (error.stack if isinstance(error, NnhalError) else "") or stack_of(error)
    if is_out_of_resources(error) and not isinstance(error, errors.ResourceExhausted):
        status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        return wire.Failed(
            status,
            "ResourceExhausted",
            bounded_text(f"driver ran out of memory, descriptors or threads: {error_text(error)}"),
            (),
            True,
            stack,
        )
    if isinstance(error, msgspec.DecodeError):
        return wire.Failed(ErrorStatus.INVALID_ARGUMENT, "InvalidArgument", bounded_text(f"message: {error}"))
    if not isinstance(error, NnhalError):
        error = as_error(error, "driver")
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    if isinstance(error, OutputInsufficientSize):
        shapes = error.shapes
    kind = next(c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c)
    return wire.Failed(error.status, kind, bounded_text(error_text(error)), shapes, stack=stack)


def error_from_wire(failed: wire.Failed) -> NnhalError:
    """Convert the error that a service reported, to the same class if known here, with the driver's stack as a note."""
    error = _error_from_wire(failed, printable(failed.message))
    return with_note(error, failed.stack)


def _error_from_wire(failed: wire.Failed, message: str) -> NnhalError:
    kind = getattr(errors, failed.kind, None)
    status = failed.status if failed.status in ErrorStatus.__members__.values() else ErrorStatus.GENERAL_FAILURE
    if kind is OutputInsufficientSize:
        return OutputInsufficientSize(message, failed.shapes)
    if kind is errors.LoopTimeout:
        return errors.LoopTimeout(message)
    if not (isinstance(kind, type) and issubclass(kind, NnhalError)) or issubclass(
        kind, MissedDeadline | errors.ResourceExhausted
    ):
        return errors.error_of(ErrorStatus(status), message)
    error: NnhalError = kind(message)
    return error


# -------------------------------------------------------------------------------------------------------------- timing


def timing_to_wire(timing: Timing | None) -> wire.WireTiming:
    """Convert timing; unmeasured times become NOT_MEASURED."""
    if timing is None:
        return wire.WireTiming()
    device, driver = (wire.NOT_MEASURED if t is None else int(t) for t in timing)
    return wire.WireTiming(device, driver)


def timing_from_wire(timing: wire.WireTiming) -> Timing | None:
    """Convert timing; None if nothing was measured. Drops time on the device if it exceeds the time in the driver."""
    device, driver = (None if t == wire.NOT_MEASURED else t for t in (timing.on_device, timing.in_driver))
    if device is None and driver is None:
        return None
    return Timing(None if device is not None and driver is not None and device > driver else device, driver)


# ------------------------------------------------------------------------------------------------------------- options


def options_to_wire(options: Mapping[str, Any], what: str) -> bytes:
    """Convert a driver's options to JSON, empty if there are none.

    Raises InvalidArgument if JSON cannot represent them.
    """
    try:
        return json.dumps(dict(options)).encode() if options else b""
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{what}: {error}; must be values that JSON can represent") from None


def options_from_wire(data: bytes) -> dict[str, Any]:
    """Return a client's options. Raises InvalidArgument if they are not a JSON object."""
    try:
        options = json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"options: {error}; must be a JSON object") from None
    if not isinstance(options, dict):
        raise InvalidArgument("options: must be a JSON object")
    return options
