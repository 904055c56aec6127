"""Cuts a part out of a model: some operations of the main subgraph as a model of their own. Constants are not copied."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from nnhal.base.codes import Lifetime
from nnhal.base.operands import Value
from nnhal.model.graph import Location, Model, Operand, Operation, Subgraph
from nnhal.model.validate import validate

INSIDE = frozenset((Lifetime.TEMPORARY_VARIABLE, Lifetime.SUBGRAPH_INPUT, Lifetime.SUBGRAPH_OUTPUT))


@dataclass(frozen=True)
class Part:
    """A model cut from another; `inputs` and `outputs` are the operands of the whole that its own stand for."""

    model: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def cut(model: Model, operations: Sequence[int], also: Collection[int] = ()) -> Part:
    """The given operations as a model. Its outputs are what others read, the model's outputs, and the operands `also`."""
    main = model.main
    if len(operations) == len(main.operations) and not set(also) - set(main.outputs):
        return Part(model, main.inputs, main.outputs)
    chosen = [main.operations[n] for n in operations]
    inside = set(operations)
    written = {i for operation in chosen for i in operation.outputs}
    wanted = set(main.outputs) | set(also)
    wanted |= {i for n, operation in enumerate(main.operations) if n not in inside for i in operation.inputs}
    used = list(dict.fromkeys(i for operation in chosen for i in (*operation.inputs, *operation.outputs)))
    inputs = tuple(i for i in used if i not in written and main.operands[i].lifetime in INSIDE)
    outputs = tuple(i for i in used if i in written and i in wanted)
    place = {old: new for new, old in enumerate(used)}
    values = validate(model).subgraphs[0].values
    operands = tuple(_operand(main.operands[i], values[i], _role(i, inputs, outputs, main.operands[i])) for i in used)
    renumbered = tuple(
        Operation(o.type, tuple(place[i] for i in o.inputs), tuple(place[i] for i in o.outputs), o.name) for o in chosen
    )
    graph = Subgraph(operands, renumbered, tuple(place[i] for i in inputs), tuple(place[i] for i in outputs))
    referenced = model.referenced if any(o.lifetime == Lifetime.SUBGRAPH for o in operands) else ()
    part = Model(graph, referenced, model.values, model.pools, model.relaxed, model.extensions, (), model.name)
    return Part(part, inputs, outputs)


def without_defaults(model: Model) -> Model:
    """The model without trailing arguments of the main subgraph that hold their defaults, and without their operands."""
    bounds = validate(model).subgraphs[0].operations
    shorter = [
        o if a is None else replace(o, inputs=o.inputs[: a.needed])
        for o, a in zip(model.main.operations, bounds, strict=True)
    ]
    used = {*model.main.inputs, *model.main.outputs, *(i for o in shorter for i in (*o.inputs, *o.outputs))}
    place = {old: new for new, old in enumerate(sorted(used))}

    def moved(indices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(place[i] for i in indices)

    operations = tuple(replace(o, inputs=moved(o.inputs), outputs=moved(o.outputs)) for o in shorter)
    operands = tuple(model.main.operands[i] for i in sorted(used))
    return replace(model, main=Subgraph(operands, operations, moved(model.main.inputs), moved(model.main.outputs)))


def _role(index: int, inputs: Collection[int], outputs: Collection[int], operand: Operand) -> Lifetime:
    if index in inputs:
        return Lifetime.SUBGRAPH_INPUT
    if index in outputs:
        return Lifetime.SUBGRAPH_OUTPUT
    return Lifetime.TEMPORARY_VARIABLE if operand.lifetime in INSIDE else operand.lifetime


def _operand(operand: Operand, value: Value | None, role: Lifetime) -> Operand:
    """The operand in its new role, with every dimension that validation inferred."""
    dims = operand.dimensions
    if value is not None and value.shape is not None and role in INSIDE:
        dims = tuple(d or 0 for d in value.shape)
    return replace(
        operand, lifetime=role, dimensions=dims, location=operand.location if role not in INSIDE else Location()
    )
