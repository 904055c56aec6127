"""Entries of persistent values: resource variables, and variable tensors of recurrent operators."""

import math

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.base.records import replace
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.integer_ranges import of_all
from nnhal.frontends.common.terms import UNTYPED, Term, UnsupportedOperator, Variable
from nnhal.frontends.tflite.graph import ImportGraph
from nnhal.frontends.tflite.task import OperatorTask, operator
from nnhal.ops.schema import Q8S

MOST_STATE = 1 << 30  # bytes of a state, which is stored as an array

# ---------------------------------------------------------------------------------------------------- variable tensors


def variable_of(t: OperatorTask, place: int) -> Variable:
    """Return the variable of a variable tensor."""
    t.require(t.given(place), f"input {place} is omitted, must be a state")
    index = t.operator.inputs[place]
    tensor = t.graph.source.tensors[index]
    t.require(tensor.variable, f"input {place}, {tensor.name!r}, must be a variable tensor, which holds a state")
    variable = t.graph.variable(("tensor", t.graph.source.index, index), tensor.name)
    if variable.value is None:
        variable.value = replace(t.graph.declared(index), shape=tensor.shape)
    return variable


def read_tensor(t: OperatorTask, place: int) -> Term:
    """Return the current value of a variable tensor."""
    return read(variable_of(t, place))


def write_tensor(t: OperatorTask, place: int, term: Term) -> None:
    """Set the value of a variable tensor from now on."""
    variable = variable_of(t, place)
    t.later.append(lambda: setattr(variable, "current", term))


def read(variable: Variable) -> Term:
    """Return a variable's current term: before its first assignment, a state input."""
    if variable.current is None:
        if variable.value is None:
            raise UnsupportedOperator(f"variable {variable.name!r} has no type")
        variable.input = variable.current = Term(replace(variable.value, name=variable.name))
    return variable.current


# -------------------------------------------------------------------------------------------------- resource variables


@operator("CALL_ONCE", inputs=(0, None), outputs=0)
def call_once(t: OperatorTask) -> None:
    """Run a subgraph that initialises variables."""
    number = t.options("CallOnceOptions")("InitSubgraphIndex")
    t.require(not t.graph.inner, "is inside a subgraph, which may run several times")
    t.graph.context.import_subgraph(number, (), t.label, starts=True)


@operator("VAR_HANDLE", inputs=(0, None))
def handle(t: OperatorTask) -> None:
    """Name a variable."""
    o = t.options("VarHandleOptions")
    key = o.text("Container"), o.text("SharedName")
    variable = t.graph.variable(key, "/".join(part for part in key if part))
    t.same(Term(Value(UNTYPED, ()), "RESOURCE", variable=variable))


def named(t: OperatorTask) -> Variable:
    """Return the variable that input 0 names."""
    variable = t.raw(0).variable
    if variable is None:
        t.refuse("input 0 is not a handle of a variable")
    return variable


@operator("READ_VARIABLE", span=of_all)
def read_variable(t: OperatorTask) -> None:
    """Return the current value."""
    variable, value = named(t), t.declared()
    if variable.value is None:
        tensor = t.graph.source.tensors[t.operator.outputs[0]]
        t.require(not tensor.open, "its shape is known only at execution")
        variable.value = replace(value, shape=tensor.shape or (1,), name=variable.name)
    kept = variable.value
    same = (kept.type, kept.scale, kept.zero_point) == (value.type, value.scale, value.zero_point)
    t.require(same, f"reads variable {variable.name!r} with another type or scale than it was assigned")
    t.same(read(variable))


@operator("ASSIGN_VARIABLE", inputs=2, outputs=0, span=of_all)
def assign_variable(t: OperatorTask) -> None:
    """Assign a value; in an initialising subgraph the initial one, which must be constant."""
    variable, term = named(t), t.x(1)
    if t.graph.starts:
        variable.initial = t.data(1, f"the first value of {variable.name!r}")
        variable.value = replace(term.value, data=None, name=variable.name)
        return
    kept = variable.value
    if kept is None:
        variable.value = replace(term.value, data=None, name=variable.name)
    else:
        pairs = ((getattr(kept, n), getattr(term.value, n)) for n in ("type", "shape", "scale", "zero_point"))
        t.require(
            all(mine == theirs for mine, theirs in pairs),
            f"assigns {term.kind}{list(term.value.shape or ())}, must have type, shape and scale of {variable.name!r}",
        )
    t.later.append(lambda: setattr(variable, "current", term))


# ------------------------------------------------------------------------------------------------------------------ states


def settle(graph: ImportGraph) -> list[tuple[Term, Term, Array]]:
    """Return the first and last terms and initial values of variables that are read before they are written.

    A variable that is never written is constant; one that is written before it is read needs no state.
    """
    states = []
    variables = graph.context.variables.values()
    taken = {id(term) for term in (*graph.inputs, *graph.outputs, *(variable.input for variable in variables))}
    for variable in variables:
        source, last, value = variable.input, variable.current, variable.value
        if source is None or last is None or value is None:
            continue
        shape = tuple(d for d in value.shape or (None,) if d is not None)
        if len(shape) != len(value.shape or ()):
            graph.problem(f"variable {variable.name!r}", "must have a shape that is known at import")
            continue
        if math.prod(shape) * value.dtype.itemsize > MOST_STATE:
            graph.problem(
                f"variable {variable.name!r}", f"has shape {list(shape)}, must have at most {MOST_STATE} bytes"
            )
            continue
        first = variable.initial
        if first is None:
            graph.file.budget.spend(Cost.MEMORY, math.prod(shape) * value.dtype.itemsize, f"variable {variable.name!r}")
            empty = value.zero_point if value.type == Q8S else 0  # as in LiteRT: for UINT8, this is not real 0
            first = np.full(shape, empty, value.dtype) if empty else np.zeros(shape, value.dtype)
        first = np.ascontiguousarray(first, value.dtype).reshape(shape)
        if last is source:
            source.data = first
            source.value = replace(source.value, data=first)
        else:
            states.append((source, graph.own(last, taken, last.value.name), first))
    return states
