"""Fuses a node into the operation that produces its input: an activation, or a factor and a shift of each channel."""

from collections.abc import Sequence

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.terms import EmittedOperation, Term, constant
from nnhal.frontends.onnx.task import NodeTask
from nnhal.ops import OPS
from nnhal.ops.schema import F32, bind

NEAR = 9  # operations that are searched for the source of an input


def alone(t: NodeTask, place: int) -> bool:
    """Whether only this node reads input `place`, which a node of this graph produces."""
    name, graph = t.node.inputs[place], t.graph
    aliased = id(graph.terms.get(name)) in graph.context.aliased
    return graph.uses[name] == 1 and name in graph.written and not aliased


def before(t: NodeTask, place: int) -> int | None:
    """Return the number of a nearby operation that produces input `place` for this node only; otherwise None."""
    term, operations = t.raw(place), t.graph.operations
    if not alone(t, place):
        return None
    for n in range(len(operations) - 1, max(-1, len(operations) - NEAR), -1):
        if operations[n].outputs == (term,):
            return n
    return None


def fuse_activation(t: NodeTask, place: int, code: Activation) -> Term | None:
    """Return input `place` with an activation fused into its operation, None if that is impossible."""
    n = before(t, place)
    made = None if n is None else t.graph.operations[n]
    if n is None or made is None or t.raw(place).value.type != F32:
        return None
    again = with_argument(made, "activation", code)
    if again is None:
        return None
    t.graph.operations.change(n, again)
    return again.outputs[0]


def fuse_into_weights(t: NodeTask, place: int, factor: Array | None, shift: Array | None) -> Term | None:
    """Fuse a factor and a shift for each channel of input `place` into the weights of its layer.

    Returns None if it is not produced by a layer with constant weights and without activation.
    """
    n, operations = before(t, place), t.graph.operations
    last = n
    if n and operations[n].type == "RESHAPE" and operations[n - 1].outputs == (operations[n].inputs[0],):
        n -= 1
        if operations[n].type != "FULLY_CONNECTED":
            return None
    made = None if n is None else operations[n]
    if n is None or last is None or made is None or t.raw(place).value.type != F32:
        return None
    layer = OPS[made.type].weights
    if layer is None or made.type == "TRANSPOSE_CONV_2D":
        return None
    weights, bias = made.inputs[1], made.inputs[2]
    if not (isinstance(weights, Term) and isinstance(bias, Term)) or weights.data is None or bias.data is None:
        return None
    if int(made.bound.activation) != Activation.NONE:
        return None
    rank, units = len(t.shape(t.raw(place))), bias.data.size
    sides = (1,) * (rank - 1) + (units,) if layer.name == "weights" else (1, units, 1, 1)
    inputs, values = list(made.inputs), np.asarray(bias.value.data, np.float64)
    for value in (factor, shift):
        if value is not None and (1,) * (rank - value.ndim) + value.shape != sides:
            return None
    if factor is not None:
        flat = factor.reshape(-1).astype(np.float64)
        shape = [1] * np.asarray(weights.value.data).ndim
        shape[layer.axis] = -1
        values = values * flat
        scaled = (np.asarray(weights.value.data) * flat.reshape(shape)).astype(np.float32)
        t.budget.spend(Cost.MEMORY, scaled.nbytes, t.label)
        inputs[1] = constant(weights.value, scaled)
    if shift is not None:
        values = values + shift.reshape(-1)
    inputs[2] = constant(bias.value, values.astype(np.float32))
    operations.change(n, with_inputs(made, inputs))
    if last != n:
        reshaped = operations[last]
        operations.change(last, with_inputs(reshaped, [operations[n].outputs[0], *reshaped.inputs[1:]]))
    return operations[last].outputs[0]


def with_argument(made: EmittedOperation, name: str, value: int) -> EmittedOperation | None:
    """Return an operation with another value of an argument, if that is 0 so far."""
    places = [start for argument, start, _ in made.bound.form.slots(len(made.inputs)) if argument.name == name]
    given = made.inputs[places[0]] if places else None
    if not isinstance(given, Term) or given.value.data is None or int(given.value.data) != 0:
        return None
    inputs = list(made.inputs)
    inputs[places[0]] = Term(replace(given.value, data=np.asarray(int(value), np.int32)))
    return with_inputs(made, inputs)


def with_inputs(made: EmittedOperation, inputs: Sequence[Term | int]) -> EmittedOperation:
    """Return an operation with other inputs and new outputs."""
    values = [each.value if isinstance(each, Term) else None for each in inputs]
    bound = bind(OPS[made.type], values, [replace(out.value, shape=None) for out in made.outputs], made.type)
    outputs = tuple(Term(out.value, out.kind, scalar=out.scalar) for out in made.outputs)
    return made._replace(inputs=tuple(inputs), outputs=outputs, bound=bound)
