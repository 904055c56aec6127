"""Entries of nodes that call graphs."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.base.records import replace
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.element_moves import axis_moved, joined, moved, part_of
from nnhal.frontends.common.integer_ranges import ANY, hull
from nnhal.frontends.common.lowering import common_shape, reference
from nnhal.frontends.common.terms import OpenDimension, Term, UnsupportedOperator, bare, constant
from nnhal.frontends.common.writing import ASYMMETRIC, FLOATS, INT32_RANGE, check_count, copied
from nnhal.frontends.onnx.features import distances
from nnhal.frontends.onnx.file import OnnxFileGraph
from nnhal.frontends.onnx.graph import NodeGraph, OperationList
from nnhal.frontends.onnx.node_order import inner_graphs
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import B8, I32

MOST_UNROLLED = 256  # iterations of a loop that are written one after the other
UNLIMITED = (1 << 63) - 1  # iterations: the condition alone ends the loop
SHARE = 1 / 16  # of the operations that the file may still have; each node has at least two
MOST_NESTED = 64


def inner_graph(t: NodeTask, source: OnnxFileGraph, given: Sequence[tuple[str, Value, str, bool]]) -> NodeGraph:
    """Lower a graph for inputs (name, value, kind, scalar); UnsupportedOperator without a reason if that fails."""
    t.require(t.graph.depth < MOST_NESTED, f"graphs are nested deeper than {MOST_NESTED}")
    t.budget.spend(Cost.ELEMENTS, len(source.nodes) + 1, t.label)
    graph = NodeGraph(t.graph.context, source, t.graph)
    for name, value, kind, scalar in given:
        graph.give(name, value, kind, scalar=scalar)
    t.graph.context.lower(graph)
    if graph.failed:
        raise UnsupportedOperator
    return graph


def inline(t: NodeTask, source: OnnxFileGraph, given: Sequence[tuple[str, Term]]) -> list[Term]:
    """Return the outputs of a graph that is written inline."""
    graph = NodeGraph(t.graph.context, source, t.graph)
    graph.open_to_outer = True
    graph.terms.update(given)
    graph.operations = t.graph.operations
    t.graph.context.lower_open(graph)
    if graph.failed:
        raise UnsupportedOperator
    return [graph.term(edge.name) for edge in source.outputs]


def shared_captures(graphs: Sequence[NodeGraph]) -> list[Term]:
    """Make the values that graphs capture inputs of all of them, in one order."""
    names = dict.fromkeys(name for graph in graphs for name in graph.captures)
    outers = []
    for name in names:
        outer = next(graph.captures[name][0] for graph in graphs if name in graph.captures)
        outers.append(outer)
        for graph in graphs:
            found = graph.captures.get(name)
            graph.inputs.append(
                found[1] if found else Term(replace(outer.value, data=None), outer.kind, scalar=outer.scalar)
            )
    return outers


@operator("If", apart=True, outputs=(1, None), becomes="IF; of a condition that is known, the branch")
def branch(t: NodeTask) -> None:
    """Replace the node by its branch if the condition is known."""
    known = t.raw(0).data
    if known is not None and known.size == 1 and known.dtype != object:
        taken = t.attr.graph("then_branch" if bool(known.reshape(-1)[0]) else "else_branch")
        for number, term in enumerate(inline(t, taken, [])):
            t.same(term, number)
        return
    condition = t.x(0)
    sizes = t.known(condition)
    t.require(math.prod(sizes) == 1, f"the condition has shape {list(sizes)}, must be one element")
    condition = t.reshaped(condition, (1,))
    graphs = [inner_graph(t, t.attr.graph(name), []) for name in ("then_branch", "else_branch")]
    counts = {len(graph.outputs) for graph in graphs}
    t.require(
        counts == {len(t.node.outputs)}, f"branches have {sorted(counts)} outputs, must have {len(t.node.outputs)}"
    )
    given = shared_captures(graphs)
    if not given:  # IF has at least one
        given = [condition]
        for graph in graphs:
            graph.give("", condition.value, condition.kind, scalar=condition.scalar)
    kinds = [[term.kind for term in graph.outputs] for graph in graphs]
    t.require(kinds[0] == kinds[1], f"branches give {kinds[0]} and {kinds[1]}, must give the same types")
    outs = [bare(term.value) for term in graphs[0].outputs]
    results = t.run("IF", condition, *map(reference, graphs), *given, outs=outs)
    for number, (term, same, other) in enumerate(zip(results, *(graph.outputs for graph in graphs), strict=True)):
        if same.kind == "INT64":
            term.span = hull([each.span or ANY for each in (same, other)])
        t.result(number, term, same.kind, scalar=same.scalar)


# ------------------------------------------------------------------------------------------------------------------ loops


@operator("Loop", apart=True, inputs=(2, None), outputs=(1, None),
          becomes="its iterations one after the other if they are few and known; else WHILE")  # fmt: skip
def loop(t: NodeTask) -> None:
    """Lower a loop: a number of iterations, a condition, and values carried from one iteration to the next."""
    body = t.attr.graph("body")
    carried = len(t.node.inputs) - 2
    t.require(len(body.inputs) == 2 + carried, f"the body has {len(body.inputs)} inputs, must have {2 + carried}")
    scanned = len(body.outputs) - 1 - carried
    t.require(scanned >= 0 and len(t.node.outputs) <= carried + scanned, "the body has too few outputs")
    steps = trip_count(t)
    if steps is not None and steps >= 0:
        share = t.budget.left[Cost.OPERATIONS] * SHARE
        few = steps <= MOST_UNROLLED and steps * nodes_in(body) <= share
        if (few or scanned) and unrolled(t, body, steps, carried, scanned):
            return
    t.require(
        not scanned,
        f"collects outputs of all iterations, whose number must be known and at most {MOST_UNROLLED}: NNAPI's WHILE "
        "cannot collect them",
    )
    looped(t, body, carried)


def trip_count(t: NodeTask) -> int | None:
    """Return the most iterations: those in the file, UNLIMITED without any, None if known only at execution."""
    if not t.given(0):
        return UNLIMITED
    count = t.raw(0).data
    if count is None or count.size != 1 or isinstance(count.reshape(-1)[0], OpenDimension):
        return None
    return int(count.reshape(-1)[0])


def nodes_in(graph: OnnxFileGraph) -> int:
    """Count the nodes of a graph and its inner graphs."""
    return sum(1 + sum(map(nodes_in, inner_graphs(node))) for node in graph.nodes)


def unrolled(t: NodeTask, body: OnnxFileGraph, steps: int, carried: int, scanned: int) -> bool:
    """Write at most `steps` iterations one after the other.

    Returns:
        False if the condition of an iteration is known only at execution, or if it holds too often.
    """
    condition = t.raw(1).data if t.given(1) else np.array(True)
    if condition is None or (steps == 0 and scanned):
        return False
    before = len(t.graph.operations)
    values = [t.raw(2 + n) for n in range(carried)]
    lists: list[list[Term]] = [[] for _ in range(scanned)]
    names = [edge.name for edge in body.inputs]
    for step in range(min(steps, MOST_UNROLLED + 1)):
        if not bool(condition.reshape(-1)[0]):
            break
        if step == MOST_UNROLLED:
            t.graph.operations.cut(before)
            return False
        number = constant(Value(I32), np.array(step, np.int64), "INT64")
        truth = constant(Value(B8), np.array(True), "BOOL")
        goes_on, *made = inline(t, body, list(zip(names, [number, truth, *values], strict=True)))
        if goes_on.data is None:
            t.graph.operations.cut(before)
            return False
        condition, values = goes_on.data, made[:carried]
        for list_, term in zip(lists, made[carried:], strict=True):
            list_.append(term)
    for place, term in enumerate(values):
        t.same(term, place)
    for place, parts in enumerate(lists, carried):
        if t.is_output_used(place):
            t.result(place, collected(t, parts), parts[0].kind)
    return True


def collected(t: NodeTask, parts: Sequence[Term]) -> Term:
    """Return the outputs of the iterations along a new first dimension."""
    t.require(parts, "collects outputs of 0 iterations, which NNAPI has no tensor for")
    return listed(t, [t.reshaped(t.usable(p, "a step's result"), (1, *t.known(p)[: t.rank(p)])) for p in parts])


def listed(t: NodeTask, rows: Sequence[Term]) -> Term:
    """Concatenate the outputs of the iterations."""
    if len(rows) == 1:
        return rows[0]
    if rows[0].value.type in (*FLOATS, *ASYMMETRIC):
        return joined(t, rows, 0)
    shape = t.known(rows[0])[1:]
    check_count(len(rows) * math.prod(shape))
    return moved(t, rows, np.arange(len(rows) * math.prod(shape)).reshape(len(rows), *shape))


@operator("Scan", apart=True, inputs=(1, None), outputs=(1, None),
          becomes="its iterations one after the other; of distances of rows SUB, MUL or ABS, REDUCE_SUM")  # fmt: skip
def scan(t: NodeTask) -> None:
    """Write an iteration for each part of the scanned inputs, whose number must be known."""
    t.require(t.opset >= 9, f"of operator set {t.opset} scans batches, must be of 9 or later")
    body, count = t.attr.graph("body"), t.attr("num_scan_inputs", 0)
    carried = len(t.node.inputs) - count
    t.require(
        0 < count <= len(t.node.inputs) == len(body.inputs) and carried <= len(body.outputs) == len(t.node.outputs),
        f"has {len(t.node.inputs)} inputs, {count} of them scanned, and {len(t.node.outputs)} outputs, must fit the body",
    )
    collects = len(body.outputs) - carried
    scanned = [t.usable(t.raw(place), f"input {place}") for place in range(carried, len(t.node.inputs))]
    axes = [t.axis(n, t.rank(x)) for n, x in zip(scan_integers(t, "scan_input_axes", count), scanned, strict=True)]
    lengths = {t.known(x)[axis] for x, axis in zip(scanned, axes, strict=True)}
    steps = min(lengths)
    t.require(len(lengths) == 1, f"scans inputs of {sorted(lengths)} parts, must have the same number")
    power = distance_power(t, body) if (carried, count) == (1, 1) and set(t.node.attributes) <= PLAIN_SCAN else None
    if power is not None and t.rank(t.x(0)) == t.rank(scanned[0]) == 2:
        t.same(t.x(0))
        t.result(1, distances(t, scanned[0], t.x(0), power), scanned[0].kind)
        return
    t.require(
        0 < steps <= MOST_UNROLLED,
        f"collects outputs of {steps} iterations, must be 1 to {MOST_UNROLLED}: NNAPI's WHILE cannot collect them",
    )
    backwards = scan_integers(t, "scan_input_directions", count)
    values, parts = [t.raw(place) for place in range(carried)], []
    each = [
        [part_at(t, x, axis, steps - 1 - step if way else step) for step in range(steps)]
        for x, axis, way in zip(scanned, axes, backwards, strict=True)
    ]
    t.flush()
    for given in zip(*each, strict=True):
        made = inline(t, body, [(edge.name, x) for edge, x in zip(body.inputs, [*values, *given], strict=True)])
        values = made[:carried]
        parts.append(made[carried:])
    for place, term in enumerate(values):
        t.same(term, place)
    forms = zip(
        scan_integers(t, "scan_output_axes", collects),
        scan_integers(t, "scan_output_directions", collects),
        strict=True,
    )
    for place, (axis, way) in enumerate(forms):
        if t.is_output_used(carried + place):
            several = [made[place] for made in (reversed(parts) if way else parts)]
            found = collected(t, several)
            rank = 1 + t.rank(several[0])
            order = list(range(1, rank))
            order.insert(t.axis(axis, rank), 0)
            t.result(carried + place, axis_moved(t, found, order), several[0].kind)


PLAIN_SCAN = {"body", "num_scan_inputs"}  # attributes of a scan of first dimensions


def distance_power(t: NodeTask, body: OnnxFileGraph) -> float | None:
    """Return p if the body sums |a - b|^p over the features of the rows a of its state and of a part b; else None.

    Nearest neighbours and Gaussian processes have such a body, with an iteration for each row of training data.
    """
    made = {output: node for node in body.nodes for output in node.outputs}

    def source(name: str) -> str:
        while name in made and made[name].op == "Identity":
            name = made[name].inputs[0]
        return name

    def inputs(name: str, op: str) -> list[str]:
        node = made.get(name)
        return list(map(source, node.inputs)) if node is not None and node.op == op and not node.domain else []

    def known(name: str) -> Array | None:
        return t.graph.constant(body.constants[name]).data if name in body.constants else None

    state, part = (edge.name for edge in body.inputs)
    if len(body.outputs) != 2 or source(body.outputs[0].name) != state:
        return None
    last, power = source(body.outputs[1].name), 1.0
    reduced = inputs(last, "ReduceSumSquare") or inputs(last, "ReduceSum")
    if not reduced or made[last].attributes.get("keepdims", 1):
        return None
    axes = made[last].attributes.get("axes") or (known(reduced[1]) if len(reduced) > 1 else None)
    if axes is None or list(axes) not in ([1], [-1]):
        return None
    name = reduced[0]
    if made[last].op == "ReduceSumSquare":
        power = 2.0
    else:
        raised = inputs(name, "Pow")
        exponent = known(raised[1]) if raised else np.ones(1)
        if exponent is None or exponent.size != 1:
            return None
        power, name = float(exponent.reshape(-1)[0]), raised[0] if raised else name
        name = next(iter(inputs(name, "Abs")), "")
    return power if inputs(name, "Sub") in ([state, part], [part, state]) else None


def scan_integers(t: NodeTask, name: str, count: int) -> list[int]:
    """Return an attribute of one integer for each input or output, 0 without it."""
    found = t.attr.ints(name) or [0] * count
    t.require(len(found) == count, f"{name} has {len(found)} entries, must have {count}")
    return found


def part_at(t: NodeTask, x: Term, axis: int, place: int) -> Term:
    """Return one part along a dimension, without that dimension."""
    if x.data is not None:
        return constant(bare(x.value), x.data.take(place, axis), x.kind)
    shape = [size for n, size in enumerate(t.known(x)[: t.rank(x)]) if n != axis]
    found = t.reshaped(part_of(t, x, axis, place, 1), shape or (1,))
    if found is x:  # the only element of a vector
        found = copied(t, x)
    found.kind, found.scalar = x.kind, not shape
    return found


def looped(t: NodeTask, body: OnnxFileGraph, carried: int) -> None:
    """Write a WHILE over the iteration number, the condition, and the carried values."""
    limit = None
    known = trip_count(t)
    if known is None or known <= INT32_RANGE.max:  # a loop with more iterations never ends in practice
        limit = t.index(0, "the trip count")
    number = constant(Value(I32), np.zeros(1, np.int32), "INT64")
    goes_on = t.x(1) if t.given(1) else constant(Value(B8), np.ones(1, bool), "BOOL")
    operands = [number, goes_on, *(t.x(2 + n) for n in range(carried))]
    kinds = ["INT64", "BOOL", *(t.raw(2 + n).kind for n in range(carried))]
    scalars = [True, True, *(t.raw(2 + n).scalar for n in range(carried))]
    values = [replace(term.value, data=None) for term in operands]
    names = [edge.name for edge in body.inputs]
    while True:
        graph = inner_graph(t, body, list(zip(names, values, kinds, scalars, strict=True)))
        made = graph.outputs
        shapes = [common_shape(v.shape, r.value.shape) for v, r in zip(values[1:], made, strict=True)]
        if shapes == [v.shape for v in values[1:]]:
            break
        values = [values[0], *(replace(v, shape=shape) for v, shape in zip(values[1:], shapes, strict=True))]
    condition = NodeGraph(t.graph.context, OnnxFileGraph("", (), {}, (), (), {}), t.graph)
    for name, value, kind, scalar in zip(names, values, kinds, scalars, strict=True):
        condition.give(name, value, kind, scalar=scalar)
    step, going = condition.inputs[0], condition.inputs[1]
    writer = NodeTask(condition, t.node, t.opset)
    if limit is not None:
        inner = limit
        if limit.value.data is None:
            outer = limit
            inner = Term(replace(outer.value, data=None), outer.kind, scalar=outer.scalar)
            condition.captures["the trip count"] = (outer, inner)
        less = writer.make("LESS", step, inner, like=Value(B8))
        going = writer.make("LOGICAL_AND", less, going)
    else:
        going = writer.make("LOGICAL_AND", going, going)
    condition.operations = OperationList(writer.emitted)
    condition.outputs = [going]
    advance = NodeTask(graph, t.node, t.opset)
    after = advance.make("ADD", graph.inputs[0], advance.scalar(1, graph.inputs[0]), activation=0)
    graph.operations += advance.emitted
    graph.outputs = [after, *graph.outputs]
    given = shared_captures([condition, graph])
    graph.outputs += [graph.emit_copy(each) for each in graph.inputs[len(values) :]]
    outs = [bare(term.value) for term in [*operands, *given]]
    results = t.run("WHILE", reference(condition), reference(graph), *operands, *given, outs=outs)
    for n in range(carried):
        t.result(n, results[2 + n], kinds[2 + n], scalar=scalars[2 + n])
