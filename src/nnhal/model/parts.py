"""Cuts a model: some operations of the main subgraph, or another subgraph, become a model. Constants are not copied."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nnhal.base.codes import Lifetime
from nnhal.base.operands import Shape, Value
from nnhal.base.records import Record, replace
from nnhal.model.graph import Location, Model, Operand, Operation, Subgraph, consumers
from nnhal.model.validate import validate, validate_outline, values_of
from nnhal.ops.schema import agree

INSIDE = frozenset((Lifetime.TEMPORARY_VARIABLE, Lifetime.SUBGRAPH_INPUT, Lifetime.SUBGRAPH_OUTPUT))


class Part(Record, frozen=True):
    """A model cut from another. `inputs` and `outputs` are the corresponding operands of the original."""

    model: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def extract_part(model: Model, operations: Sequence[int], also: Collection[int] = ()) -> Part:
    """Return a model of the given operations.

    Its outputs are the operands that other operations read, the model's outputs, and the operands `also`. If nothing
    reads an operation's outputs, all of them become outputs: a model needs one.
    """
    main = model.main
    if len(operations) == len(main.operations) and not set(also) - set(main.outputs):
        return Part(model, main.inputs, main.outputs)
    chosen = [main.operations[n] for n in operations]
    written = {i for operation in chosen for i in operation.outputs}
    reads = Counter(i for operation in chosen for i in operation.inputs)
    everywhere, also = _reads(model), set(also)
    used = list(dict.fromkeys(i for operation in chosen for i in (*operation.inputs, *operation.outputs)))
    inputs = tuple(i for i in used if i not in written and main.operands[i].lifetime in INSIDE)

    def given(i: int) -> bool:
        return reads[i] < everywhere[i] or i in also or main.operands[i].lifetime == Lifetime.SUBGRAPH_OUTPUT

    unread = (o.outputs for o in chosen if not any(everywhere[i] or given(i) for i in o.outputs))
    also.update(i for outputs in unread for i in outputs)
    outputs = tuple(i for i in used if i in written and given(i))
    place = {old: new for new, old in enumerate(used)}
    values = validate(model).subgraphs[0].values
    roles = dict.fromkeys(inputs, Lifetime.SUBGRAPH_INPUT) | dict.fromkeys(outputs, Lifetime.SUBGRAPH_OUTPUT)
    operands = tuple(_operand(main.operands[i], values[i], roles.get(i)) for i in used)
    renumbered = tuple(
        Operation(o.type, tuple(place[i] for i in o.inputs), tuple(place[i] for i in o.outputs), o.name) for o in chosen
    )
    graph = Subgraph(operands, renumbered, tuple(place[i] for i in inputs), tuple(place[i] for i in outputs))
    referenced = model.referenced if any(o.lifetime == Lifetime.SUBGRAPH for o in operands) else ()
    part = Model(graph, referenced, model.values, model.pools, model.relaxed, model.extensions, name=model.name)
    return Part(part, inputs, outputs)


def outline(model: Model) -> Model:
    """Return a model's interface: inputs and outputs with known shapes, and pools, without operations."""
    main = model.main
    roles = dict.fromkeys(main.inputs, Lifetime.SUBGRAPH_INPUT) | dict.fromkeys(main.outputs, Lifetime.SUBGRAPH_OUTPUT)
    place = {old: new for new, old in enumerate(roles)}
    known = zip(roles.items(), values_of(model, roles), strict=True)
    operands = tuple(_operand(main.operands[i], value, role) for (i, role), value in known)
    graph = Subgraph(operands, (), tuple(place[i] for i in main.inputs), tuple(place[i] for i in main.outputs))
    return validate_outline(Model(graph, (), b"", model.pools, model.relaxed, model.extensions, name=model.name))


def branch(model: Model, number: int, known: Sequence[Shape | None] = ()) -> Part:
    """Return referenced subgraph `number` as a model, with the subgraphs that it refers to.

    Inputs that it does not read are removed. The inputs and outputs of the part are operands of the subgraph. known:
    known shapes of its inputs, in addition to the declared ones.
    """
    found = [number]
    for at in found:
        inner = (o.location.offset for o in model.referenced[at].operands if o.lifetime == Lifetime.SUBGRAPH)
        found += [n for n in dict.fromkeys(inner) if n not in found]
    place = {old: new for new, old in enumerate(found[1:])}
    main, *graphs = [_renumbered(model.referenced[at], place) for at in found]
    main, inputs = _without_unread(_narrowed(main, known))
    name = f"subgraph {number} of {model.name or 'model'}"
    part = Model(main, tuple(graphs), model.values, model.pools, model.relaxed, model.extensions, name=name)
    return Part(part, inputs, model.referenced[number].outputs)


def _narrowed(subgraph: Subgraph, known: Sequence[Shape | None]) -> Subgraph:
    """Declare the known shapes of a subgraph's inputs, if they agree with its declarations."""
    operands = list(subgraph.operands)
    for i, shape in zip(subgraph.inputs, known, strict=False):
        stated = operands[i].dimensions
        if shape and (not stated or agree(tuple(d or None for d in stated), shape)):
            sizes = zip(stated or [0] * len(shape), shape, strict=True)
            operands[i] = replace(operands[i], dimensions=tuple(d or size or 0 for d, size in sizes))
    return replace(subgraph, operands=tuple(operands))


def _without_unread(subgraph: Subgraph) -> tuple[Subgraph, tuple[int, ...]]:
    """Remove inputs that nothing reads; return the subgraph and its remaining inputs, by their old operands."""
    read = {i for operation in subgraph.operations for i in operation.inputs}
    inputs = tuple(i for i in subgraph.inputs if i in read)
    left = [i for i in range(len(subgraph.operands)) if i in read or i not in subgraph.inputs]
    place = {old: new for new, old in enumerate(left)}

    def moved(indices: Iterable[int]) -> tuple[int, ...]:
        return tuple(place[i] for i in indices)

    operations = [replace(o, inputs=moved(o.inputs), outputs=moved(o.outputs)) for o in subgraph.operations]
    operands = tuple(subgraph.operands[i] for i in left)
    return Subgraph(operands, tuple(operations), moved(inputs), moved(subgraph.outputs)), inputs


def _renumbered(subgraph: Subgraph, place: Mapping[int, int]) -> Subgraph:
    """Renumber the subgraphs that a subgraph refers to."""
    operands = [
        replace(o, location=Location(offset=place[o.location.offset])) if o.lifetime == Lifetime.SUBGRAPH else o
        for o in subgraph.operands
    ]
    return replace(subgraph, operands=tuple(operands))


def subgraphs_within(model: Model, operation: Operation) -> Iterator[Subgraph]:
    """Yield the subgraphs that an operation of the main subgraph refers to, directly or through other subgraphs."""
    numbers: dict[int, None] = {}
    pending = [(model.main, operation)]
    while pending:
        subgraph, each = pending.pop()
        for i in each.inputs:
            operand = subgraph.operands[i]
            if operand.lifetime == Lifetime.SUBGRAPH and operand.location.offset not in numbers:
                numbers[operand.location.offset] = None
                inner = model.referenced[operand.location.offset]
                yield inner
                pending += [(inner, other) for other in inner.operations]


def operations_reached(model: Model, operation: Operation) -> Iterator[Operation]:
    """Yield an operation of the main subgraph, and the operations of all subgraphs that it refers to."""
    yield operation
    for subgraph in subgraphs_within(model, operation):
        yield from subgraph.operations


def live_operands(model: Model) -> tuple[int, ...]:
    """Return the operations of the main subgraph that some output depends on."""
    if "live" not in model._memo:
        needed, found = set(model.main.outputs), list[int]()
        for n, operation in reversed(list(enumerate(model.main.operations))):
            if not needed.isdisjoint(operation.outputs):
                needed.update(operation.inputs)
                found.append(n)
        model._memo["live"] = tuple(reversed(found))
    operations: tuple[int, ...] = model._memo["live"]
    return operations


def without_defaults(model: Model) -> Model:
    """Remove trailing arguments of the main subgraph that hold their defaults, and their operands."""
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


def _reads(model: Model) -> list[int]:
    """Count how often each operand of the main subgraph is read; once for all parts of a model."""
    if "reads" not in model._memo:
        model._memo["reads"] = consumers(model.main)
    reads: list[int] = model._memo["reads"]
    return reads


def _operand(operand: Operand, value: Value | None, role: Lifetime | None) -> Operand:
    """Return the operand in its new role, None inside the part, with all inferred dimensions."""
    if operand.lifetime not in INSIDE:
        return operand
    dims = operand.dimensions
    if value is not None and value.shape is not None:
        dims = tuple(d or 0 for d in value.shape)
    return replace(operand, lifetime=role or Lifetime.TEMPORARY_VARIABLE, dimensions=dims, location=Location())
