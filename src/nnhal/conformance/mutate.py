"""Mutations of models: 21 faults, after those of the NN HAL's test suite.

Each mutant differs from a valid model in one place. A validator must refuse it, or there is a known reason why it stays
valid.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nnhal.base.codes import TYPE_FACTS, Lifetime, OperandType, OperationType
from nnhal.base.operands import ChannelQuant
from nnhal.base.records import Record, replace
from nnhal.model.graph import CONSTANTS, Location, Model, Operand, Operation, Subgraph

INVALID_CODES = (16, 9999, 10002, 65535, -1)
INVALID_OPERATIONS = (106, 9999, 10001, 65535, -1)


class Mutant(Record, frozen=True):
    """A model with a fault. kind: the mutation; operation: the type of the changed operation; detail: the place."""

    kind: str
    operation: str
    detail: str
    model: Model


def mutants(model: Model) -> Iterator[Mutant]:
    """Yield every mutant of the main subgraph, for each mutation."""
    for kind, mutation in MUTATIONS.items():
        for operation, detail, main in mutation(model.main):
            name = OperationType(operation.type).name if operation else ""
            yield Mutant(kind, name, detail, replace(model, main=main))


Found = Iterator[tuple[Operation | None, str, Subgraph]]


def _users(main: Subgraph, index: int) -> Operation | None:
    """Return an operation that reads or writes an operand."""
    return next((o for o in main.operations if index in (*o.inputs, *o.outputs)), None)


def _with_operand(main: Subgraph, index: int, **fields: Any) -> Subgraph:
    operands = list(main.operands)
    operands[index] = replace(operands[index], **fields)
    return replace(main, operands=tuple(operands))


def _with_operation(main: Subgraph, at: int, **fields: Any) -> Subgraph:
    operations = list(main.operations)
    operations[at] = replace(operations[at], **fields)
    return replace(main, operations=tuple(operations))


def execution_order(main: Subgraph) -> Found:
    """Move an operation before one whose result it reads."""
    writer = {i: n for n, o in enumerate(main.operations) for i in o.outputs}
    for n, operation in enumerate(main.operations):
        for source in {writer[i] for i in operation.inputs if i in writer}:
            order = [*main.operations[:n], *main.operations[n + 1 :]]
            order.insert(source, operation)
            yield operation, f"#{n} before #{source}", replace(main, operations=tuple(order))


def operand_type(main: Subgraph) -> Found:
    """Give an operand an unknown type code."""
    for index in range(len(main.operands)):
        for code in INVALID_CODES:
            yield _users(main, index), f"%{index} is {code}", _with_operand(main, index, type=code)


def operand_rank(main: Subgraph) -> Found:
    """Give a scalar dimensions."""
    for index, operand in enumerate(main.operands):
        if not TYPE_FACTS[operand.type].tensor and operand.type != OperandType.OEM:
            for dims in ((1,), (0,), (1, 1)):
                yield _users(main, index), f"%{index} is {dims}", _with_operand(main, index, dimensions=dims)


def operand_scale(main: Subgraph) -> Found:
    """Give an operand a scale that its type forbids."""
    for index, operand in enumerate(main.operands):
        if operand.lifetime == Lifetime.NO_VALUE:
            continue
        facts = TYPE_FACTS[operand.type]
        bad = [1.0] if facts.zero_points is None else [0.0]
        if operand.type == OperandType.TENSOR_INT32:
            bad = []
        if operand.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            bad = [1.0]
        for scale in [*bad, -1.0, float("nan"), float("inf")]:
            yield _users(main, index), f"%{index} has scale {scale}", _with_operand(main, index, scale=scale)


def operand_zero_point(main: Subgraph) -> Found:
    """Give an operand a zero point outside its type's range."""
    for index, operand in enumerate(main.operands):
        if operand.lifetime == Lifetime.NO_VALUE:
            continue
        low, high = TYPE_FACTS[operand.type].zero_points or (0, 0)
        for zero in (low - 1, high + 1):
            yield _users(main, index), f"%{index} has zero point {zero}", _with_operand(main, index, zero_point=zero)


def operand_lifetime(main: Subgraph) -> Found:
    """Give an operand another lifetime than its place in the graph requires."""
    for index, operand in enumerate(main.operands):
        for lifetime in Lifetime:
            if lifetime != operand.lifetime and not {lifetime, operand.lifetime} <= CONSTANTS:
                yield _users(main, index), f"%{index} is {lifetime.name}", _with_operand(main, index, lifetime=lifetime)


def operand_role(main: Subgraph) -> Found:
    """List an operand among inputs or outputs that must not be there."""
    for index in range(len(main.operands)):
        user = _users(main, index)
        if index not in main.inputs:
            yield user, f"%{index} is an input", replace(main, inputs=(*main.inputs, index))
        if index not in main.outputs:
            yield user, f"%{index} is an output", replace(main, outputs=(*main.outputs, index))


def second_writer(main: Subgraph) -> Found:
    """Let an operation write an operand that another operation writes, or that no operation may write."""
    for index in range(len(main.operands)):
        for n, operation in enumerate(main.operations):
            for place, output in enumerate(operation.outputs):
                if output != index:
                    outputs = (*operation.outputs[:place], index, *operation.outputs[place + 1 :])
                    # Another operation now writes its former output, so that the second writer is the only fault.
                    extra = replace(operation, outputs=outputs)
                    operations = (*main.operations[: n + 1], extra, *main.operations[n + 1 :])
                    yield operation, f"#{n} writes %{index} too", replace(main, operations=operations)


def operation_operand_type(main: Subgraph) -> Found:
    """Give an operand of an operation another type, otherwise well formed."""
    for index, operand in enumerate(main.operands):
        user = _users(main, index)
        if user is None or operand.type == OperandType.SUBGRAPH or operand.lifetime == Lifetime.NO_VALUE:
            continue
        for kind in OperandType:
            if kind in (operand.type, OperandType.SUBGRAPH) or kind >= OperandType.OEM:
                continue
            changed = _well_formed(operand, kind)
            if changed is not None:
                operands = (*main.operands[:index], changed, *main.operands[index + 1 :])
                yield user, f"%{index} is {kind.name}", replace(main, operands=operands)


def _well_formed(operand: Operand, kind: OperandType) -> Operand | None:
    """Return the operand as another type that its dimensions and bytes allow; None if there is none."""
    facts, before = TYPE_FACTS[kind], TYPE_FACTS[operand.type]
    assert facts.dtype is not None and before.dtype is not None
    dims = operand.dimensions if facts.tensor and before.tensor else ((1,) if facts.tensor else ())
    length = int(np.prod(dims)) * facts.dtype.itemsize if operand.lifetime in CONSTANTS else 0
    if length > operand.location.length:
        return None
    location = replace(operand.location, length=length)
    channel = None
    if kind == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        if not dims or not dims[0]:
            return None
        channel = ChannelQuant((1.0,) * dims[0], 0)
    scale = 0.0 if facts.zero_points is None or channel is not None else operand.scale or 1.0
    low, high = facts.zero_points or (0, 0)
    zero = min(max(operand.zero_point, low), high)
    return replace(
        operand, type=kind, dimensions=dims, scale=scale, zero_point=zero, channel=channel, location=location
    )


def operation_type(main: Subgraph) -> Found:
    """Give an operation an unknown type code."""
    for n, operation in enumerate(main.operations):
        for code in INVALID_OPERATIONS:
            yield operation, f"#{n} is {code}", _with_operation(main, n, type=code)


def _indices(field: str) -> Callable[[Subgraph], Found]:
    def mutation(main: Subgraph) -> Found:
        """Set an index beyond the operands, or a negative one."""
        for n, operation in enumerate(main.operations):
            indices = getattr(operation, field)
            for place in range(len(indices)):
                for bad in (len(main.operands), 2**31 - 1, -1):
                    wrong = (*indices[:place], bad, *indices[place + 1 :])
                    yield operation, f"#{n} {field}[{place}] is {bad}", _with_operation(main, n, **{field: wrong})

    return mutation


def removed_write(main: Subgraph) -> Found:
    """Let an operation write a new operand instead of its usual output, which then has no writer."""
    for n, operation in enumerate(main.operations):
        for place, index in enumerate(operation.outputs):
            fresh = replace(main.operands[index], lifetime=Lifetime.TEMPORARY_VARIABLE, location=Location())
            outputs = (*operation.outputs[:place], len(main.operands), *operation.outputs[place + 1 :])
            wrong = _with_operation(replace(main, operands=(*main.operands, fresh)), n, outputs=outputs)
            yield operation, f"#{n} does not write %{index}", wrong


def removed_operand(main: Subgraph) -> Found:
    """Remove an operand from the graph and from every list."""
    for index in range(len(main.operands)):
        user = _users(main, index)

        def kept(indices: tuple[int, ...], gone: int = index) -> tuple[int, ...]:
            return tuple(i - (i > gone) for i in indices if i != gone)

        operations = tuple(replace(o, inputs=kept(o.inputs), outputs=kept(o.outputs)) for o in main.operations)
        operands = (*main.operands[:index], *main.operands[index + 1 :])
        yield user, f"%{index} is removed", Subgraph(operands, operations, kept(main.inputs), kept(main.outputs))


def removed_operation(main: Subgraph) -> Found:
    """Remove an operation, so that its outputs have no writer."""
    for n, operation in enumerate(main.operations):
        yield operation, f"#{n} is removed", replace(main, operations=(*main.operations[:n], *main.operations[n + 1 :]))


def _removed(field: str) -> Callable[[Subgraph], Found]:
    def mutation(main: Subgraph) -> Found:
        """Remove one of an operation's operands."""
        for n, operation in enumerate(main.operations):
            indices = getattr(operation, field)
            for place in range(len(indices)):
                less = (*indices[:place], *indices[place + 1 :])
                yield operation, f"#{n} without {field}[{place}]", _with_operation(main, n, **{field: less})

    return mutation


def added_input(main: Subgraph) -> Found:
    """Add an input to an operation: a model input of the type of its last one."""
    for n, operation in enumerate(main.operations):
        if not operation.inputs:
            continue
        last = main.operands[operation.inputs[-1]]
        fresh = Operand(
            last.type, last.dimensions, last.scale, last.zero_point, Lifetime.SUBGRAPH_INPUT, channel=last.channel
        )
        index = len(main.operands)
        wider = replace(main, operands=(*main.operands, fresh), inputs=(*main.inputs, index))
        yield operation, f"#{n} with one more input", _with_operation(wider, n, inputs=(*operation.inputs, index))


def added_output(main: Subgraph) -> Found:
    """Add an output to an operation: a model output of the type of its last one."""
    for n, operation in enumerate(main.operations):
        fresh = replace(main.operands[operation.outputs[-1]], lifetime=Lifetime.SUBGRAPH_OUTPUT)
        index = len(main.operands)
        wider = replace(main, operands=(*main.operands, fresh), outputs=(*main.outputs, index))
        yield operation, f"#{n} with one more output", _with_operation(wider, n, outputs=(*operation.outputs, index))


MUTATIONS: dict[str, Callable[[Subgraph], Found]] = {
    "execution order": execution_order,
    "operand type": operand_type,
    "operand rank": operand_rank,
    "operand scale": operand_scale,
    "operand zero point": operand_zero_point,
    "operand lifetime": operand_lifetime,
    "operand role": operand_role,
    "second writer": second_writer,
    "operand type of an operation": operation_operand_type,
    "operation type": operation_type,
    "input index": _indices("inputs"),
    "output index": _indices("outputs"),
    "removed write": removed_write,
    "removed operand": removed_operand,
    "removed operation": removed_operation,
    "removed input": _removed("inputs"),
    "removed output": _removed("outputs"),
    "added input": added_input,
    "added output": added_output,
}
BAD_HINTS = {
    "preference": (-1, 3, "fast"),
    "priority": (-1, 3, "urgent"),
}  # the other two mutations are of the arguments of compile
