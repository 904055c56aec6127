"""Models for drivers of a lower HAL version: which operations they receive, in what representation, and why not others."""

import warnings
from collections import deque
from collections.abc import Callable, Sequence

from nnhal.base.codes import TYPE_FACTS, Lifetime, operation_name, type_name
from nnhal.base.errors import InvalidModel, OperationFailed
from nnhal.base.levels import V1_1, V1_2, V1_3, Level
from nnhal.base.log import logger
from nnhal.base.operands import Shape
from nnhal.base.records import replace
from nnhal.hal.device import Capabilities, Verdict
from nnhal.hal.utilities import LossWarning, OldCapabilities, convert_capabilities, convert_to, is_extension, upgrade
from nnhal.model.graph import Model, Operand
from nnhal.model.parts import INSIDE, extract_part
from nnhal.model.validate import validate
from nnhal.ops.schema import may_be_omitted, show

_log = logger("driver")


def refusals(model: Model, level: Level) -> list[str]:
    """Return for each operation of the main subgraph why a driver of this level cannot receive it; "" if it can."""
    return with_neighbours(model, _refusals(model, 0, level, {}), level)


def _refusals(model: Model, graph: int, level: Level, known: dict[int, str]) -> list[str]:
    """Return what the level lacks for each operation of a subgraph (0: the main one), including its subgraphs."""
    subgraph = model.referenced[graph - 1] if graph else model.main
    reasons = []
    for operation, a in zip(subgraph.operations, validate(model).subgraphs[graph].operations, strict=True):
        operands = [subgraph.operands[i] for i in operation.inputs]
        if a is None:
            late = is_extension(operation.type) and level < V1_2
            reasons.append(f"extensions exist since {V1_2}, the device is at {level}" if late else "")
        elif a.level > level:
            reasons.append(f"needs level {a.level}: {a.reasons[-1]}; the device is at {level}")
        else:
            of_types = _late_types((*operands[: a.needed], *(subgraph.operands[i] for i in operation.outputs)), level)
            referred = (o.location.offset + 1 for o in operands if o.lifetime == Lifetime.SUBGRAPH)
            reasons.append(of_types or next(filter(None, (_inside(model, n, level, known) for n in referred)), ""))
    return reasons


def _inside(model: Model, graph: int, level: Level, known: dict[int, str]) -> str:
    """Return what the level lacks for a referenced subgraph; "" for nothing."""
    if graph not in known:
        refused = ((n, why) for n, why in enumerate(_refusals(model, graph, level, known)) if why)
        n, why = next(refused, (0, ""))
        name = operation_name(model.referenced[graph - 1].operations[n].type) if why else ""
        known[graph] = why and f"{name} #{n} of subgraph {graph - 1} {why}"
    return known[graph]


def _late_types(operands: Sequence[Operand], level: Level) -> str:
    for operand in operands:
        facts = TYPE_FACTS.get(operand.type)
        if facts is not None and facts.since > level:
            return f"{type_name(operand.type)} exists since {facts.since}, the device is at {level}"
    return ""


def with_neighbours(model: Model, reasons: Sequence[str], level: Level) -> list[str]:
    """Below 1.2, also reject operations with inputs or outputs of unknown shape, which those drivers cannot handle.

    An operand of unknown shape becomes an input or output as soon as an operation that shares it runs elsewhere.
    """
    found = list(reasons)
    if level >= V1_2:
        return found
    main, values = model.main, validate(model).subgraphs[0].values
    left_out = _may_be_left_out(model)
    shapes = {i: value.shape for i, value in enumerate(values) if value is not None and i not in left_out}
    opened = {i: shape for i, shape in shapes.items() if shape is None or None in shape}
    touched = [[i for i in (*o.inputs, *o.outputs) if i in opened] for o in main.operations]
    around: dict[int, list[int]] = {i: [] for i in opened}
    for n, operands in enumerate(touched):
        for i in operands:
            around[i].append(n)
    crossing = {i for i in (*main.inputs, *main.outputs) if i in opened} | {i for i in opened if opened[i] is None}
    crossing |= {i for n, operands in enumerate(touched) if found[n] for i in operands}
    pending = deque(sorted(crossing))
    while pending:
        index = pending.popleft()
        for n in around.pop(index, ()):
            if not found[n]:
                found[n] = _why(index, opened[index], level)
                pending += touched[n]
    return found


def _may_be_left_out(model: Model) -> set[int]:
    """Return inputs declared as [0] that are only read as optional arguments: the request marks them as omitted."""
    binding, main = validate(model).subgraphs[0], model.main
    optional: set[int] = set()
    needed = set(main.outputs)
    for operation, a in zip(main.operations, binding.operations, strict=True):
        if a is None:
            needed.update(operation.inputs)
            continue
        for argument, start, end in a.form.slots(len(operation.inputs)):
            (optional if argument.optional else needed).update(operation.inputs[start:end])
    values = binding.values
    return {
        i for i in set(main.inputs) & optional - needed if (value := values[i]) is not None and may_be_omitted(value)
    }


def _why(index: int, shape: Shape | None, level: Level) -> str:
    if shape is None:
        return f"operand %{index} has unknown rank; must be known at level {level}"
    return f"operand %{index} has shape {show(shape)}; inputs and outputs at level {level} must be fully specified"


def lowered(model: Model, level: Level) -> Model:
    """Return the model for a driver of this level: late defaults are left out, and known shapes are filled in.

    InvalidModel if the level lacks something, or needs a shape that is unknown.
    """
    if level >= V1_3:
        return convert_to(model, level)
    if model.relaxed and level < V1_1:
        _log.debug("relaxed float32 is computed in full: the device is at level %s", level)
        model = replace(model, relaxed=False)
    model = _filled(convert_to(model, level))
    for operation, reason in zip(model.main.operations, refusals(model, level), strict=True):
        if reason:
            raise InvalidModel(f"{operation_name(operation.type)}: {reason}")
    return model


def ask_about(model: Model, level: Level, ask: Callable[[Model], Sequence[Verdict]]) -> list[Verdict]:
    """Ask a driver of a level for verdicts: `ask` receives the part of the model that the level can express.

    OperationFailed if the number of verdicts is wrong.
    """
    reasons = refusals(model, level)
    asked = [n for n, reason in enumerate(reasons) if not reason]
    verdicts = [Verdict(False, reason) for reason in reasons]
    if asked:
        answers = list(ask(lowered(extract_part(model, asked).model, level)))
        if len(answers) != len(asked):
            raise OperationFailed(f"gave {len(answers)} verdicts, must be {len(asked)}, one an operation")
        for n, answer in zip(asked, answers, strict=True):
            verdicts[n] = answer
    return verdicts


def _filled(model: Model) -> Model:
    values = validate(model).subgraphs[0].values
    operands = []
    for operand, value in zip(model.main.operands, values, strict=True):
        known = None if value is None or value.shape is None else tuple(d or 0 for d in value.shape)
        changed = known is not None and operand.lifetime in INSIDE and known != operand.dimensions
        operands.append(replace(operand, dimensions=known or ()) if changed else operand)
    if all(one is other for one, other in zip(operands, model.main.operands, strict=True)):
        return model
    return replace(model, main=replace(model.main, operands=tuple(operands)))


def performance_at(capabilities: Capabilities, level: Level) -> Capabilities:
    """Return the capabilities that a driver of this level can report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossWarning)
        form = convert_capabilities(capabilities, level)
    return upgrade(form) if isinstance(form, OldCapabilities) else form
