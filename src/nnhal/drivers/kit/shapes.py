"""Prepares a model with open shapes again for each set of input shapes, for drivers that compile for known shapes."""

import weakref
from collections.abc import Callable

from nnhal.base.codes import Lifetime
from nnhal.base.errors import Closed, InvalidModel, InvalidRequest, OperationFailed, UnsupportedModel
from nnhal.base.log import logger
from nnhal.base.once import OnceTable
from nnhal.base.operands import fixed
from nnhal.base.records import replace
from nnhal.hal.device import Prepared
from nnhal.hal.memory import MemoryUse, combined_use
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.model.graph import Model, Operand
from nnhal.model.validate import shape_of, validate
from nnhal.ops.schema import agree, show

MOST_SHAPES = 4  # sets of input shapes that stay prepared
Shapes = tuple[tuple[int, ...] | None, ...]  # one for each input; None for an omitted one
Make = Callable[[Model], Prepared]
_log = logger("driver")


def for_each_shape(model: Model, make: Make, otherwise: Make | None = None) -> Prepared:
    """Prepare a model for each set of input shapes.

    If all input shapes are known and no input is optional, `make` prepares the model at once. Otherwise `make` is
    called when an execution first has such shapes. The last `MOST_SHAPES` sets stay prepared.

    Args:
        model: The model.
        make: Prepares a model whose input shapes are all known and whose inputs are all there.
        otherwise: Prepares a model that `make` refuses as UnsupportedModel, or whose input has a dimension of 0 or no
            dimensions. By default these are errors of the execution.

    Returns:
        The prepared model.
    """
    if _known(model) and not _optional(model):
        return make(model)
    return _ForEachShape(model, make, otherwise)


class _Kept:
    """A prepared model, closed when it was dropped and its last execution has ended."""

    __slots__ = ("__weakref__", "prepared")

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        weakref.finalize(self, prepared.close).atexit = False


class _ForEachShape(Prepared):
    """Prepared models by the shapes of their inputs."""

    trimmable = True

    def __init__(self, model: Model, make: Make, otherwise: Make | None) -> None:
        self._model, self._make, self._otherwise = model, make, otherwise
        self._declared = [shape_of(operand) for operand in _inputs(model)]
        self._made: OnceTable[Shapes, _Kept] = OnceTable(lambda shapes: f"inputs of shapes {shapes}", MOST_SHAPES)
        self._closed = False
        if _known(model):
            self._made.get(tuple(map(fixed, self._declared)), lambda: _Kept(self._prepared(model)))

    def run(self, request: Request, control: Control) -> Timing | None:
        if control is not UNLIMITED:
            control.check()
        given, buffers = request.given, request.input_buffers
        shapes: Shapes = tuple([None if x is None else x.shape for x in given])
        if buffers:
            shapes = tuple([buffers[n].shape if n in buffers else shape for n, shape in enumerate(shapes)])
        if self._closed:
            raise Closed("the prepared model was closed")
        kept = self._made.get(shapes, lambda: self._made_for(shapes))
        if self._made.thrashes():
            _log.warning("more than %d sets of input shapes alternate: pad inputs to fewer shapes", MOST_SHAPES)
        prepared, there = kept.prepared, [n for n, shape in enumerate(shapes) if shape is not None]
        inner = request.contain(
            prepared.request(
                [given[n] for n in there],
                request.rooms,
                input_buffers={place: buffers[n] for place, n in enumerate(there) if n in buffers},
                output_buffers=request.output_buffers,
            )
        )
        timing = inner.execute(prepared.run, control)
        request.adopt(inner)
        return timing

    def memory(self) -> MemoryUse:
        """Add up all prepared models. They read the same constants in place."""
        uses = [kept.prepared.memory() for kept in self._made.values().values()]
        in_place = [use.weights_in_place for use in uses]
        most = None if None in in_place else max((n for n in in_place if n is not None), default=0)
        return combined_use(uses)._replace(weights_in_place=most)

    def trim(self, *, pressed: bool) -> None:
        for kept in self._made.values().values():
            kept.prepared.trim(pressed=pressed)

    def close(self) -> None:
        self._closed = True
        self._made.forget()

    def _made_for(self, shapes: Shapes) -> _Kept:
        for number, (shape, declared) in enumerate(zip(shapes, self._declared, strict=True)):
            if shape is not None and declared is not None and not agree(declared, shape):
                raise InvalidRequest(f"input {number} is of shape {show(shape)}, must be of shape {show(declared)}")
        try:
            return _Kept(self._prepared(_specialised(self._model, shapes)))
        except InvalidModel as error:  # it is an error of the execution, because the model was valid
            raise OperationFailed(str(error)) from error

    def _prepared(self, model: Model) -> Prepared:
        try:
            if not _known(model):
                raise UnsupportedModel("an input has 0 elements or 0 dimensions, must have at least 1 of each")
            prepared = self._make(model)
        except UnsupportedModel as error:
            if self._otherwise is None:
                raise OperationFailed(str(error)) from error
            prepared = self._otherwise(model)
        prepared.model = model
        return prepared


def _inputs(model: Model) -> list[Operand]:
    return [model.main.operands[index] for index in model.main.inputs]


def _known(model: Model) -> bool:
    """Whether the model has a known shape for every input."""
    return all(fixed(shape_of(operand)) is not None for operand in _inputs(model))


def _optional(model: Model) -> bool:
    """Whether any input of the model is optional."""
    main, bounds = model.main, validate(model).subgraphs[0].operations
    return any(
        argument.optional and main.operands[index].lifetime == Lifetime.SUBGRAPH_INPUT
        for operation, a in zip(main.operations, bounds, strict=True)
        if a is not None
        for argument, start, end in a.form.slots(len(operation.inputs))
        for index in operation.inputs[start:end]
    )


def _specialised(model: Model, shapes: Shapes) -> Model:
    """Return the model with these input shapes; omitted inputs become operands without a value."""
    main = model.main
    operands = list(main.operands)
    for index, shape in zip(main.inputs, shapes, strict=True):
        if shape is None:
            operands[index] = replace(operands[index], lifetime=Lifetime.NO_VALUE)
        else:
            operands[index] = replace(operands[index], dimensions=shape)
    inputs = tuple(index for index, shape in zip(main.inputs, shapes, strict=True) if shape is not None)
    return replace(model, main=replace(main, operands=tuple(operands), inputs=inputs), states=())
