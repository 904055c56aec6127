"""Models as text: a stable text format, and Graphviz DOT."""

from collections.abc import Iterator, Mapping

from nnhal.base.codes import Lifetime, operation_name, type_name
from nnhal.base.names import printable
from nnhal.model.graph import CONSTANTS, Model, Operand, Subgraph
from nnhal.model.outline import Outline, shape_text
from nnhal.model.validate import ValidationFacts, validate
from nnhal.ops.schema import show

SHORT = {"TENSOR_FLOAT32": "f32", "TENSOR_FLOAT16": "f16", "TENSOR_INT32": "i32", "TENSOR_BOOL8": "bool8"}
VALUES_SHOWN = 8  # elements of a small constant


def text(model: Model, notes: Mapping[int, str] | None = None) -> str:
    """Return the model as text, one operation a line; equal models give equal texts.

    notes: a remark for the lines of operations of the main subgraph (where it runs, and why).
    """
    facts = validate(model)
    lines = [
        f"model {printable(model.name) or '(unnamed)'}: level {facts.level}, {len(model.main.operations)} operations"
    ]
    lines += [f"  level {facts.level} because {reason}" for reason in facts.reasons[:3]]
    if model.relaxed:
        lines.append("  relaxed: float32 may be computed as float16")
    for number, subgraph in enumerate(model.subgraphs):
        lines.append("main" if number == 0 else f"subgraph {number - 1}")
        lines += (f"  {line}" for line in _subgraph(model, subgraph, facts, number, notes or {}))
    for state in model.states:
        lines.append(f"state: input {state.input} from output {state.output}, {state.initial.nbytes} bytes at first")
    return "\n".join(lines) + "\n"


def _subgraph(
    model: Model, subgraph: Subgraph, facts: ValidationFacts, number: int, notes: Mapping[int, str]
) -> Iterator[str]:
    values = facts.subgraphs[number].values

    def label(index: int) -> str:
        value, operand = values[index], subgraph.operands[index]
        return f"%{index}: {_type(operand)}{show(value.shape if value else ())}{_quant(operand)}"

    for kind, indices in (("input", subgraph.inputs), ("output", subgraph.outputs)):
        for index in indices:
            yield f"{kind} {label(index)}{_name(subgraph.operands[index])}"
    for index, operand in enumerate(subgraph.operands):
        if operand.lifetime in CONSTANTS:
            yield f"constant {label(index)} = {_constant(model, operand)}{_name(operand)}"
        elif operand.lifetime == Lifetime.SUBGRAPH:
            yield f"constant %{index}: subgraph {operand.location.offset}"
    for at, operation in enumerate(subgraph.operations):
        inputs = ", ".join(f"%{i}" if values[i] is not None else "none" for i in operation.inputs)
        note = f"  # {notes[at]}" if number == 0 and at in notes else ""
        yield f"#{at} {', '.join(map(label, operation.outputs))} = {operation_name(operation.type)}({inputs}){note}"


def _type(operand: Operand) -> str:
    name = type_name(operand.type)
    return SHORT.get(name, name.removeprefix("TENSOR_").lower())


def _quant(operand: Operand) -> str:
    if operand.channel is not None:
        return f" scales*{len(operand.channel.scales)} axis {operand.channel.axis}"
    return f" scale {operand.scale:.9g} zero {operand.zero_point}" if operand.scale else ""


def _name(operand: Operand) -> str:
    return f'  "{printable(operand.name)}"' if operand.name else ""


def _constant(model: Model, operand: Operand) -> str:
    at = operand.location
    if operand.lifetime == Lifetime.CONSTANT_COPY and operand.type < 10000:
        array = model.constant(operand).reshape(-1)
        more = ", ..." if array.size > VALUES_SHOWN else ""
        return f"[{', '.join(f'{x:g}' for x in array[:VALUES_SHOWN].tolist())}{more}]"
    return f"{at.length} bytes at pool {at.pool}+{at.offset}"


def listing(outline: Outline) -> str:
    """Return an outline as text, one operation a line; a rejected operation has its reason."""
    lines = []
    for n, node in enumerate(outline.nodes):
        results = ", ".join(f"%{i}: {shape_text(outline.tensors[i].shape)}" for i in node.outputs)
        operands = ", ".join(f"%{i}" for i in node.inputs)
        words = [f"#{n}", results, "=", f"{node.name}({operands})", node.attributes]
        words += [f"  # cannot be taken: {node.refused}"] if node.refused else []
        lines.append(printable(" ".join(filter(None, words))))
    return "\n".join(lines) + "\n"


def dot(outline: Outline, colours: Mapping[int, str]) -> str:
    """Return the main subgraph as Graphviz DOT. colours: fill colours of operations, by number."""
    tensors = outline.tensors
    writer = {i: f"op{n}" for n, node in enumerate(outline.nodes) for i in node.outputs}
    lines = ["digraph model {", '  node [shape=box style="rounded,filled" fillcolor=white fontname=sans fontsize=10];']
    lines.append("  edge [fontname=sans fontsize=8];")
    for index in outline.inputs:
        writer[index] = f"in{index}"
        title = _escape(tensors[index].name or f"input %{index}")
        lines.append(f'  in{index} [label="{title}\\n{shape_text(tensors[index].shape)}" shape=ellipse];')
    for n, node in enumerate(outline.nodes):
        weights = [shape_text(t.shape) for t in outline.weights(node)]
        words = [f"#{n} {_escape(node.name)}", _escape(node.attributes), " ".join(weights)]
        colour = f' fillcolor="{colours[n]}"' if n in colours else ""
        label = "\\n".join(filter(None, words))
        lines.append(f'  op{n} [label="{label}"{colour}];')
        sources = dict.fromkeys(i for i in node.inputs if i in writer)
        lines += [f'  {writer[i]} -> op{n} [label="{shape_text(tensors[i].shape)}"];' for i in sources]
    for index in outline.outputs:
        title = _escape(tensors[index].name or f"output %{index}")
        lines.append(f'  out{index} [label="{title}" shape=ellipse];')
        if index in writer:
            lines.append(f'  {writer[index]} -> out{index} [label="{shape_text(tensors[index].shape)}"];')
    return "\n".join([*lines, "}"]) + "\n"


def _escape(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
