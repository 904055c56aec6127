"""Shrinks a failing model: to the fewest operations, outputs and inputs, then to the smallest sizes.

Each candidate is a valid model. Operations are removed in halves, quarters and so on (delta debugging); operands that
removed operations wrote become inputs. An operation in a subgraph is removed if one of its inputs can stand for its
result, else it becomes a copy of that input. A subgraph that fails alone replaces the model: then the operation that
called it is right. Sizes shrink wherever the same size appears, then one dimension at a time.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from nnhal.base.codes import Lifetime, OperationType, operation_name, type_name
from nnhal.base.errors import InvalidModel, NnhalError
from nnhal.base.operands import Array, ChannelQuant, UnknownValue, Value
from nnhal.base.records import Record, replace
from nnhal.conformance.verdict import data_types
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import CONSTANTS, Location, Model, Operand, Operation, Subgraph
from nnhal.model.parts import extract_part
from nnhal.model.validate import shape_of, validate
from nnhal.ops.schema import bind

Axis = tuple[int, int]  # an operand and one of its dimensions


class ReductionCandidate(Record, frozen=True):
    """A model, and its inputs if the failure depends on them."""

    model: Model
    inputs: tuple[Array, ...] | None = None


Fails = Callable[[ReductionCandidate], bool]
Values = Callable[[ReductionCandidate], Mapping[int, Array]]  # the values of the main subgraph's operands


class Reduction:
    """One reduction.

    Args:
        fails: Whether a candidate still fails.
        values: Computes the values of operands that become inputs; None if candidates have no inputs.
        limit: The most candidates to try; None for any number.
        seconds: The time after which no further candidate is tried; None for any time.
        progress: Called after each candidate with the best one and the number of candidates.
    """

    def __init__(
        self,
        fails: Fails,
        values: Values | None = None,
        limit: int | None = None,
        seconds: float | None = None,
        progress: Callable[[ReductionCandidate, int], object] | None = None,
    ) -> None:
        self._fails, self._values, self._limit, self._progress = fails, values, limit, progress
        self._end = None if seconds is None else time.monotonic() + seconds
        self.tried = 0

    def reduce(self, failing: ReductionCandidate) -> ReductionCandidate:
        """Return the smallest failing candidate that was found; `failing` itself if no smaller one fails."""
        best = failing
        while not self._spent:
            before = best
            best = self._fewer_operations(best)
            best = self._called_alone(best)
            best = self._fewer_outputs(best)
            best = self._simpler_subgraphs(best)
            best = self._smaller(best)
            if best is before:
                break
        return best

    @property
    def _spent(self) -> bool:
        late = self._end is not None and time.monotonic() >= self._end
        return late or (self._limit is not None and self.tried >= self._limit)

    def _try(self, best: ReductionCandidate, made: ReductionCandidate | None) -> ReductionCandidate | None:
        """Return a candidate that is valid and fails; None for another one."""
        if made is None or self._spent:
            return None
        try:
            validate(made.model)
        except NnhalError:
            return None
        self.tried += 1
        found = made if self._fails(made) else None
        if self._progress is not None:
            self._progress(found or best, self.tried)
        return found

    def _fewer_operations(self, best: ReductionCandidate) -> ReductionCandidate:
        size = len(best.model.main.operations)
        step = max(1, size // 2)
        while step and not self._spent:
            start, removed = 0, False
            while start < len(best.model.main.operations) and not self._spent:
                count = len(best.model.main.operations)
                left = [n for n in range(count) if not start <= n < start + step]
                found = self._try(best, self._only(best, left)) if left else None
                if found is not None:
                    best, removed = found, True
                else:
                    start += step
            step = step if removed and step == 1 and len(best.model.main.operations) > 1 else step // 2
        return best

    def _only(self, best: ReductionCandidate, operations: list[int]) -> ReductionCandidate | None:
        """Return the candidate with these operations."""
        part = extract_part(best.model, operations)
        if best.inputs is None or self._values is None:
            return ReductionCandidate(without_unused(part.model), best.inputs)
        given = dict(zip(best.model.main.inputs, best.inputs, strict=True))
        missing = [i for i in part.inputs if i not in given]
        if missing:
            values = self._values(best)
            if any(i not in values for i in missing):
                return None
            given.update({i: values[i] for i in missing})
        return ReductionCandidate(without_unused(part.model), tuple(given[i] for i in part.inputs))

    def _fewer_outputs(self, best: ReductionCandidate) -> ReductionCandidate:
        for operand in reversed(best.model.main.outputs):
            main = best.model.main
            if len(main.outputs) == 1 or self._spent:
                break
            operands = list(main.operands)
            operands[operand] = replace(operands[operand], lifetime=Lifetime.TEMPORARY_VARIABLE)
            outputs = tuple(i for i in main.outputs if i != operand)
            graph = replace(main, operands=tuple(operands), outputs=outputs)
            found = self._try(best, ReductionCandidate(_fresh(best.model, graph), best.inputs))
            best = found or best
        return best

    def _called_alone(self, best: ReductionCandidate) -> ReductionCandidate:
        """Return a called subgraph as the model if it fails alone: one of a loop with the variables that it begins with."""
        main, values = best.model.main, None
        for operation in main.operations:
            operands = [main.operands[i] for i in operation.inputs]
            called = [o.location.offset for o in operands if o.lifetime == Lifetime.SUBGRAPH]
            for number in called if not self._spent else ():
                graph = best.model.referenced[number]
                inputs = None
                if best.inputs is not None and self._values is not None:
                    values = values or self._values(best)
                    given = operation.inputs[len(operation.inputs) - len(graph.inputs) :]
                    if any(i not in values for i in given):
                        continue
                    inputs = tuple(values[i] for i in given)
                alone = ReductionCandidate(without_unused(_fresh(best.model, graph)), inputs)
                found = self._try(best, alone)
                if found is not None:
                    return self._called_alone(found)
        return best

    def _simpler_subgraphs(self, best: ReductionCandidate) -> ReductionCandidate:
        for number in reversed(range(len(best.model.referenced))):
            if number >= len(best.model.referenced):
                continue  # nothing calls it any more
            for place in reversed(range(len(best.model.referenced[number].operations))):
                for graph in _bypassed(best.model.referenced[number], place):
                    graphs = list(best.model.referenced)
                    graphs[number] = graph
                    made = _without_uncalled(replace(best.model, referenced=tuple(graphs)))
                    found = self._try(best, ReductionCandidate(made, best.inputs))
                    if found is not None:
                        best = found
                        break
                if number >= len(best.model.referenced):
                    break
        return best

    def _smaller(self, best: ReductionCandidate) -> ReductionCandidate:
        for size in sorted({s for _, s in sizes_of(best.model)}, reverse=True):
            for smaller in _below(size):
                found = None
                for inside in (False, True):
                    axes = {axis: smaller for axis, s in sizes_of(best.model) if s == size}
                    if axes and found is None and best.model.referenced:
                        found = self._try(best, _resized_everywhere(best, {size: smaller}, inside=inside))
                    elif axes and found is None:
                        found = self._try(best, resized(best, axes, {size: smaller} if inside else {}))
                if found is not None:
                    best = found
                    break
        for axis, _ in list(sizes_of(best.model)):
            now = dict(sizes_of(best.model)).get(axis, 1)
            for smaller in _below(now):
                if self._spent:
                    break
                found = self._try(best, resized(best, {axis: smaller}, {}))
                if found is not None:
                    best = found
                    break
        return best


def _below(size: int) -> list[int]:
    return [n for n in dict.fromkeys((1, 2, size // 4, size // 2, size * 3 // 4, size - 1)) if 0 < n < size]


def _fresh(model: Model, graph: Subgraph) -> Model:
    """Return the model with another main subgraph, without states and names of what is gone."""
    return Model(graph, model.referenced, model.values, model.pools, model.relaxed, model.extensions, (), model.name)


def sizes_of(model: Model) -> list[tuple[Axis, int]]:
    """Return the dimensions above 1 of inputs and of constant tensors, with their sizes."""
    found = []
    for index, operand in enumerate(model.main.operands):
        if operand.lifetime in CONSTANTS or operand.lifetime == Lifetime.SUBGRAPH_INPUT:
            found += [((index, axis), size) for axis, size in enumerate(operand.dimensions) if size > 1]
    return found


def resized(best: ReductionCandidate, axes: Mapping[Axis, int], inside: Mapping[int, int]) -> ReductionCandidate | None:
    """Return the candidate with other sizes; None if the operations cannot have them.

    axes: the new sizes of dimensions of inputs and constants; elements at the end are cut off. inside: replacements of
    32-bit integer constants, scalars too, which may hold sizes.
    """
    model, main = best.model, best.model.main
    if model.referenced:
        return None
    shapes = [
        tuple(axes.get((index, axis), size) for axis, size in enumerate(operand.dimensions))
        for index, operand in enumerate(main.operands)
    ]
    written = {i for operation in main.operations for i in operation.outputs}
    operands = [_resized_operand(model, o, shape, inside) for o, shape in zip(main.operands, shapes, strict=True)]
    values = [
        replace(v, shape=None) if v is not None and index in written else v for index, (_, v) in enumerate(operands)
    ]
    try:
        _infer(model, values)
    except (NnhalError, UnknownValue, ValueError):
        return None
    b = ModelBuilder(model.name)
    for index, (operand, value) in enumerate(operands):
        now = values[index]
        _add_operand(b, operand, value, tuple(d or 0 for d in now.shape or ()) if now is not None else ())
    for operation in main.operations:
        b.operation(operation.type, operation.inputs, operation.outputs, operation.name)
    made = b.finish(main.inputs, main.outputs, relaxed=model.relaxed, extensions=model.extensions)
    if best.inputs is None:
        return ReductionCandidate(made)
    arrays = zip(main.inputs, best.inputs, strict=True)
    return ReductionCandidate(made, tuple(_part(x, shapes[i]) for i, x in arrays))


def _resized_everywhere(
    best: ReductionCandidate, sizes: Mapping[int, int], *, inside: bool
) -> ReductionCandidate | None:
    """Return the candidate with other sizes in all graphs, wherever they appear. inside: in integer constants too."""
    model = best.model
    b = ModelBuilder(model.name)
    for graph in model.referenced:
        sub = b.subgraph()
        _copy_resized(sub, model, graph, sizes, sizes if inside else {})
        sub.finish_subgraph(graph.inputs, graph.outputs)
    _copy_resized(b, model, model.main, sizes, sizes if inside else {})
    made = b.finish(model.main.inputs, model.main.outputs, relaxed=model.relaxed, extensions=model.extensions)
    if best.inputs is None:
        return ReductionCandidate(made)
    arrays = zip(made.main.inputs, best.inputs, strict=True)
    return ReductionCandidate(made, tuple(_part(x, made.main.operands[i].dimensions) for i, x in arrays))


def _copy_resized(
    b: ModelBuilder, model: Model, graph: Subgraph, sizes: Mapping[int, int], inside: Mapping[int, int]
) -> None:
    for operand in graph.operands:
        if operand.lifetime == Lifetime.SUBGRAPH:
            b.subgraph_operand(operand.type, operand.location.offset)
            continue
        shape = tuple(sizes.get(size, size) for size in operand.dimensions)
        _, value = _resized_operand(model, operand, shape, inside)
        _add_operand(b, operand, value, shape)
    for operation in graph.operations:
        b.operation(operation.type, operation.inputs, operation.outputs, operation.name)


def _add_operand(b: ModelBuilder, operand: Operand, value: Value | None, dims: tuple[int, ...]) -> None:
    if value is None:
        b.no_value(operand.type)
    elif value.data is not None:
        b.constant(value.type, value.data, value.scale, value.zero_point, channel=value.channel, name=operand.name)
    else:
        b.operand(value.type, dims, value.scale, value.zero_point, channel=value.channel, name=operand.name)


def _bypassed(graph: Subgraph, place: int) -> Iterator[Subgraph]:
    """Yield the subgraph with an input of an operation in place of its results, or a copy of it where that must be."""
    operation = graph.operations[place]
    before, after = graph.operations[:place], graph.operations[place + 1 :]
    ends = graph.inputs, graph.outputs
    for source in dict.fromkeys(operation.inputs):
        alike = [i for i in operation.outputs if _facts(graph.operands[i]) == _facts(graph.operands[source])]
        if len(alike) < len(operation.outputs) or graph.operands[source].lifetime in CONSTANTS:
            continue
        kept = [i for i in alike if i in graph.outputs]
        place_of = {i: source for i in alike if i not in kept}
        copies = [Operation(OperationType.MAXIMUM, (source, source), (i,)) for i in kept]
        if copies == [operation]:
            continue
        rest = [replace(o, inputs=tuple(place_of.get(i, i) for i in o.inputs)) for o in after]
        yield _tidy(Subgraph(graph.operands, (*before, *copies, *rest), *ends))


def _facts(operand: Operand) -> tuple[object, ...]:
    return operand.type, operand.dimensions, operand.scale, operand.zero_point, operand.channel


def _tidy(graph: Subgraph) -> Subgraph:
    """Remove operands that are no input and no output, and that no operation has."""
    used = {i for o in graph.operations for i in (*o.inputs, *o.outputs)} | {*graph.inputs, *graph.outputs}
    left = [i for i in range(len(graph.operands)) if i in used]
    place = {old: new for new, old in enumerate(left)}

    def there(indices: Collection[int]) -> tuple[int, ...]:
        return tuple(place[i] for i in indices)

    operations = tuple(replace(o, inputs=there(o.inputs), outputs=there(o.outputs)) for o in graph.operations)
    return Subgraph(tuple(graph.operands[i] for i in left), operations, there(graph.inputs), there(graph.outputs))


def _without_uncalled(model: Model) -> Model:
    """Remove subgraphs that nothing calls, and renumber the others."""
    called, found = list[int](), [model.main]
    for graph in found:
        for operand in graph.operands:
            number = operand.location.offset
            if operand.lifetime == Lifetime.SUBGRAPH and number not in called:
                called.append(number)
                found.append(model.referenced[number])
    left = sorted(called)
    if len(left) == len(model.referenced):
        return model

    def renumbered(graph: Subgraph) -> Subgraph:
        operands = [
            replace(o, location=Location(offset=left.index(o.location.offset)))
            if o.lifetime == Lifetime.SUBGRAPH
            else o
            for o in graph.operands
        ]
        return replace(graph, operands=tuple(operands))

    graphs = tuple(renumbered(model.referenced[number]) for number in left)
    return replace(model, main=renumbered(model.main), referenced=graphs)


def _part(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the elements of an array within a shape."""
    return np.ascontiguousarray(array[tuple(slice(0, size or None) for size in shape)]) if shape else array


def _resized_operand(
    model: Model, operand: Operand, shape: tuple[int, ...], inside: Mapping[int, int]
) -> tuple[Operand, Value | None]:
    """Return an operand with its value of another shape; None for an omitted one."""
    if operand.lifetime == Lifetime.NO_VALUE:
        return operand, None
    channel, data = operand.channel, None
    if channel is not None and channel.axis < len(shape):
        channel = ChannelQuant(channel.scales[: shape[channel.axis]], channel.axis)
    if operand.lifetime in CONSTANTS:
        data = _part(model.constant(operand), shape)
        for old, new in inside.items() if data.dtype == np.int32 else ():
            data = np.where(data == old, np.int32(new), data).astype(np.int32)
    known = shape_of(replace(operand, dimensions=shape))
    return operand, Value(operand.type, known, operand.scale, operand.zero_point, channel, data)


def _infer(model: Model, values: list[Value | None]) -> None:
    """Set the shapes of all results; raise InvalidModel if an operation cannot have those of its inputs."""
    bounds = validate(model).subgraphs[0].operations
    for operation, bound in zip(model.main.operations, bounds, strict=True):
        if bound is None:
            raise InvalidModel("an operation has no record")
        outs = [values[i] for i in operation.outputs]
        a = bind(bound.op, [values[i] for i in operation.inputs], outs, bound.name)
        for i, value, shape in zip(operation.outputs, outs, a.shapes, strict=True):
            values[i] = None if value is None else replace(value, shape=shape)


def without_unused(model: Model) -> Model:
    """Remove operands of the main subgraph that nothing reads or writes, and subgraphs that nothing calls."""
    graph = _tidy(model.main)
    if graph != model.main:
        model = replace(_fresh(model, graph), states=model.states)
    return _without_uncalled(model)


def python_of(model: Model, path: str, inputs: str, device: str, interpreted: int | None = None) -> str:
    """Return a Python program that runs a model file on a device and on the reference.

    path: the model file. inputs: an .npz file with `input_0` and so on. device: a name, or the path of a driver.
    interpreted: if the runtime executes control flow, the seed of what the device gets inside.
    """
    count = len(model.main.inputs)
    imports, shares, compiled = "", "[None]", "nnhal.compile(model, devices=[device])"
    if interpreted is not None:
        imports = (
            "from nnhal.conformance.suites.random.trials import SHARES, interpreted_model\n"
            "from nnhal.runtime import discovery\n"
        )
        shares, compiled = "SHARES", f"interpreted_model(model, discovery.load_one(device), share, {interpreted})"
    return (
        f'"""Runs {len(model.main.operations)} operations on {device} and on the reference, and compares."""\n\n'
        f"from pathlib import Path\n\nimport numpy as np\n\nimport nnhal\n{imports}\n"
        "here = Path(__file__).parent\n"
        f"model = nnhal.load(here / {path!r})\n"
        f"arrays = np.load(here / {inputs!r})\n"
        f'inputs = [arrays[f"input_{{n}}"] for n in range({count})]\n\n\n'
        "def run(compiled):\n"
        "    made = compiled(*inputs)\n"
        "    return made if isinstance(made, tuple) else (made,)\n\n\n"
        f"device = {device!r}\n"
        'right = run(nnhal.compile(model, devices=["reference"]))\n'
        f"for share in {shares}:\n"
        f"    for number, (actual, wanted) in enumerate(zip(run({compiled}), right)):\n"
        '        off = np.abs(actual.astype("f8") - wanted.astype("f8")).max(initial=0)\n'
        '        print(f"output {number}: off by at most {off:g}")\n'
    )


def names_of(model: Model) -> Iterator[str]:
    """Yield the operations' names, in order."""
    return (operation_name(operation.type) for operation in model.main.operations)


def types_of(model: Model) -> list[str]:
    """Return the types of the operations' data, each once: of their first inputs that are no indices or masks."""
    operands = model.main.operands
    several = (data_types(type_name(operands[i].type) for i in each.inputs) for each in model.main.operations)
    return list(dict.fromkeys(found[0] for found in several if found))
