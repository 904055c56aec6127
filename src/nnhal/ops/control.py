"""IF, WHILE: run a referenced subgraph once, or as long as another one returns true."""

import time
from collections.abc import Sequence
from typing import Any

from nnhal.base.codes import TYPE_FACTS, OperandType, type_name
from nnhal.base.errors import LoopTimeout
from nnhal.base.operands import Array, Shape, SubgraphFacts, Value
from nnhal.ops.schema import B8, SUBGRAPH, Bound, Example, Form, Op, agree, arg, out, register, show

ANY = tuple(t for t in OperandType if TYPE_FACTS[t].dtype is not None)


def alike(a: Bound, where: str, inner: Value, outer: Value | None) -> None:
    """Require that an operand of a subgraph and its outer operand have one type, quantisation and, if declared, shape."""
    if outer is None:
        return
    a.require(inner.type == outer.type, f"{where} is {type_name(inner.type)}, must be {type_name(outer.type)}")
    fits = inner.shape is None or outer.shape is None or agree(inner.shape, outer.shape)
    a.require(fits, f"{where} has shape {show(inner.shape)}, must be {show(outer.shape)}")
    same = (inner.scale, inner.zero_point, inner.channel) == (outer.scale, outer.zero_point, outer.channel)
    a.require(
        same,
        f"{where} has scale {inner.scale:g} and zero point {inner.zero_point}, "
        f"must be {outer.scale:g} and {outer.zero_point}, and the same scales per channel",
    )


def require_same_shapes(a: Bound, model: str, kind: str, inner: Sequence[Value], outer: Sequence[Value | None]) -> None:
    a.require(len(inner) == len(outer), f"{model} has {len(inner)} {kind}s, must have {len(outer)}")
    for index, (mine, theirs) in enumerate(zip(inner, outer, strict=True)):
        alike(a, f"{kind} {index} of {model}", mine, theirs)


def common(*shapes: Shape | None) -> Shape | None:
    """Return the known dimensions of a shape that is one of these."""
    first, *others = shapes
    if first is None or any(s is None or len(s) != len(first) for s in others):
        return None
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))


def is_condition(a: Bound, where: str, value: Value) -> None:
    a.require(value.type == B8, f"{where} is {type_name(value.type)}, must be {B8.name}")
    a.require(value.shape == (1,), f"{where} has shape {show(value.shape)}, must be [1]")


def call(a: Bound, context: Any, model: SubgraphFacts, values: Sequence[Array | None]) -> list[Array]:
    """Run a subgraph on values that match its declared shapes."""
    for index, (inner, x) in enumerate(zip(model.inputs, values, strict=True)):
        if x is not None and inner.shape is not None and not agree(inner.shape, x.shape):
            a.fail(f"input {index} of subgraph {model.index} has shape {show(x.shape)}, must be {show(inner.shape)}")
    results: list[Array] = context.call(model.index, values)
    return results


# -------------------------------------------------------------------------------------------------------------------- IF


def condition_is_one(a: Bound) -> None:
    """The condition is one truth value."""
    is_condition(a, "input 0 (condition)", a.condition)


def branches_fit(a: Bound) -> None:
    """Inputs and outputs of both subgraphs match the operation's operands and outputs."""
    for name in ("then_model", "else_model"):
        model = getattr(a, name)
        require_same_shapes(a, name, "input", model.inputs, a.operands)
        require_same_shapes(a, name, "output", model.outputs, a.outs)


def either_shape(a: Bound) -> list[Shape | None]:
    """Shape rule: the dimensions that the outputs of both subgraphs have in common."""
    branches = zip(a.then_model.outputs, a.else_model.outputs, strict=True)
    return [common(one.shape, other.shape) for one, other in branches]


def branch(a: Bound, context: Any, condition: Array, operands: list[Array | None]) -> list[Array]:
    return call(a, context, a.then_model if condition[0] else a.else_model, operands)


# ----------------------------------------------------------------------------------------------------------------- WHILE


def condition_fits(a: Bound) -> None:
    """The condition's inputs match the operands; its one output is one truth value."""
    model: SubgraphFacts = a.condition_model
    require_same_shapes(a, "condition_model", "input", model.inputs, a.operands)
    a.require(len(model.outputs) == 1, f"condition_model has {len(model.outputs)} outputs, must have 1")
    is_condition(a, "output 0 of condition_model", model.outputs[0])


def body_fits(a: Bound) -> None:
    """The first outputs are the operation's; all outputs become the first inputs of the next iteration."""
    model: SubgraphFacts = a.body_model
    require_same_shapes(a, "body_model", "input", model.inputs, a.operands)
    count = len(model.outputs)
    a.require(
        len(a.outs) <= count <= len(model.inputs),
        f"body_model has {count} outputs, must have {len(a.outs)} to {len(model.inputs)}: "
        "at least the operation's outputs, at most the operation's operands",
    )
    for index in range(count):
        a.require(a.operands[index] is not None, f"operand {index} is omitted, must be given: the body changes it")
    require_same_shapes(a, "body_model", "output", model.outputs[: len(a.outs)], a.outs)
    require_same_shapes(a, "body_model", "output", model.outputs, model.inputs[:count])


def loop_shapes(a: Bound) -> list[Shape | None]:
    """Shape rule: the dimensions that the shapes after no iteration and after any other one have in common."""
    ends = zip(a.outs, a.operands, a.body_model.outputs, strict=False)
    return [None if first is None else common(first.shape, last.shape) for _, first, last in ends]


def loop(a: Bound, context: Any, operands: list[Array | None]) -> list[Array | None]:
    values, start = list(operands), time.monotonic_ns()
    while call(a, context, a.condition_model, values)[0][0]:
        context.control.check()
        spent, limit = time.monotonic_ns() - start, context.control.loop_timeout
        if spent > limit:
            raise LoopTimeout(
                f"{a.name}: has run for {spent / 1e6:.1f} ms, must end within its loop time-out of {limit / 1e6:g} ms"
            )
        results = call(a, context, a.body_model, values)
        values[: len(results)] = results
    return values[: len(a.outs)]


IF_CODE = """
then, other = b.subgraph(), b.subgraph()
x, z = then.input((1,)), other.input((1,))
branches = then.finish_subgraph([x], [then.neg(x)]), other.finish_subgraph([z], [other.abs(z)])
y = b.if_([True], *branches, [[3]])
"""
WHILE_CODE = """
condition, body = b.subgraph(), b.subgraph()
x, z = condition.input((1,)), body.input((1,))
parts = condition.finish_subgraph([x], [condition.less(x, [10])]), body.finish_subgraph([z], [body.add(z, z)])
y = b.while_(*parts, [[3]])
"""

OPERANDS = arg("operands", ANY, many=1, optional=True)
RESULTS = (out("results", ANY, many=1),)

register(
    Op(
        "IF",
        {},
        (Form(arg("condition", B8, "1"), *(arg(n, SUBGRAPH) for n in ("then_model", "else_model")), OPERANDS),),
        RESULTS,
        branch,
        (condition_is_one, branches_fit),
        infer=either_shape,
        context=True,
        doc="Runs one of two subgraphs.",
        example=Example({}, [-3], IF_CODE.strip()),
    ),
    Op(
        "WHILE",
        {},
        (Form(*(arg(n, SUBGRAPH) for n in ("condition_model", "body_model")), OPERANDS),),
        RESULTS,
        loop,
        (condition_fits, body_fits),
        infer=loop_shapes,
        context=True,
        doc="Runs the body as long as the condition holds, on values that the body changes in each iteration.",
        example=Example({}, [12], WHILE_CODE.strip()),
    ),
)
