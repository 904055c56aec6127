"""Interpreters and executions: a team of LiteRT interpreters for each set of input shapes.

An interpreter runs one execution at a time, so a prepared model makes another when all are busy, and drops those that are
not needed any more: each holds packed weights of its own, while the TFLite model is one for all. Their tensors are read and
written through arrays over the interpreter's own memory, made once after allocation. Such arrays never leave this module.
That the memory stays where it is, is looked at once, after the first execution.
"""

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from nnhal.base.codes import Lifetime
from nnhal.base.errors import Closed, InvalidModel, InvalidRequest, OperationFailed, UnsupportedModel
from nnhal.base.log import logger
from nnhal.base.once import Once
from nnhal.base.operands import Array, dtype_of, fixed
from nnhal.drivers import reference
from nnhal.drivers.litert.flatbuffer import FlatbufferWriter, unavailable
from nnhal.drivers.litert.graph import Lowered, Refused
from nnhal.drivers.litert.greeting import without_greeting
from nnhal.drivers.litert.lowering import lower
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.model.graph import Model, describe
from nnhal.model.validate import shape_of, validate
from nnhal.ops.schema import agree, show

_log = logger("driver")
MOST_SHAPES = 4  # sets of input shapes kept ready
MOST_INTERPRETERS = max(2, min(8, os.cpu_count() or 1))  # for each set of shapes; executions beyond them wait
KEPT_SECONDS = 10.0  # how long an interpreter is kept that no execution needs
POLL_SECONDS = 0.02  # how often a waiting execution looks whether it is still wanted

Shapes = tuple[tuple[int, ...] | None, ...]  # of each input; None for an omitted one


@cache
def engine() -> Any:
    """LiteRT's interpreter module, which has greeted; DeviceUnavailable where it is not installed."""
    try:
        from ai_edge_litert import interpreter  # noqa: TID251
    except ImportError as error:
        raise unavailable(error) from error
    writer = FlatbufferWriter()
    x, y = (writer.tensor("FLOAT32", (1,)) for _ in "xy")
    writer.operator("FLOOR", [x], [y])
    least = writer.finish([x], [y])
    without_greeting(lambda: least.given_to(interpreter.Interpreter).allocate_tensors())
    return interpreter


@dataclass(frozen=True)
class Settings:
    """How interpreters are made. threads: at least 1. xnnpack: whether LiteRT's default delegate takes what it can."""

    threads: int = 1
    xnnpack: bool = True


@dataclass(frozen=True)
class Recipe:
    """What an interpreter is made of: the TFLite model, and element type and shape of each output of the NNAPI model."""

    lowered: Lowered
    outputs: tuple[tuple[Any, tuple[int, ...]], ...]
    settings: Settings


class EngineInstance:
    """One LiteRT interpreter with arrays over the memory of its inputs, outputs and states. For one thread at a time."""

    def __init__(self, recipe: Recipe) -> None:
        litert = engine()
        kinds = litert.OpResolverType
        try:
            self._litert = recipe.lowered.packed.given_to(
                litert.Interpreter,
                num_threads=recipe.settings.threads,
                experimental_op_resolver_type=kinds.AUTO
                if recipe.settings.xnnpack
                else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            )
            self._litert.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise OperationFailed(f"litert: the model cannot be prepared: {error}") from error
        _log.debug("litert: an interpreter with %d threads made", recipe.settings.threads)
        # The public `invoke` costs half as much again as the call itself; what it checks, that nobody else holds an array
        # over the interpreter's memory, is this module's business.
        self._call: Callable[[], object] = self._litert._interpreter.Invoke
        self._settled = False
        _alive.add(self)
        self._recipe = recipe  # after `_call`, so that the model's bytes are given back after what reads them
        self.used = 0.0  # when it was given back last, by a team of several
        self.place: object = None  # in the team
        self._look()
        self._narrows = any(dtype == np.float16 for _, _, dtype in self._outputs)

    def _look(self) -> None:
        """Make the arrays over tensor memory, and forget the ones before."""
        lowered = self._recipe.lowered
        views = [self._view(tensor) for _, tensor in lowered.inputs]
        self._inputs = [(n, view, view.shape) for (n, _), view in zip(lowered.inputs, views, strict=True)]
        self._resets = [(self._view(tensor), value) for tensor, value in lowered.resets]
        outputs = []
        for place, (tensor, (dtype, shape)) in enumerate(zip(lowered.outputs, self._recipe.outputs, strict=True)):
            view = np.zeros(shape, dtype) if tensor is None else self._view(tensor)
            if shape == ():
                view = view.reshape(())
            if view.shape != shape:
                raise OperationFailed(f"litert: output {place} has shape {show(view.shape)}, must be {show(shape)}")
            outputs.append((view, shape, dtype))
        self._outputs = outputs

    def _view(self, tensor: int) -> Array:
        """An array over a tensor's memory that LiteRT does not know of."""
        try:
            known = self._litert.tensor(tensor)()
        except (RuntimeError, ValueError) as error:
            raise OperationFailed(f"litert: tensor {tensor} has no memory: {error}") from error
        memory = (ctypes.c_char * known.nbytes).from_address(known.ctypes.data)
        return np.frombuffer(memory, known.dtype).reshape(known.shape)

    def _first(self) -> None:
        """Invoke, and look whether all memory stayed where it was: then never look again."""
        before = self._addresses()
        self._call()
        self._look()
        self._settled = self._addresses() == before

    def _addresses(self) -> list[int]:
        views = [view for _, view, _ in self._inputs] + [view for view, _ in self._resets]
        views += [
            x[0] for x, tensor in zip(self._outputs, self._recipe.lowered.outputs, strict=True) if tensor is not None
        ]
        return [view.ctypes.data for view in views]

    def run(self, request: Request, measure: bool = False) -> int:
        """Execute; returns nanoseconds spent in LiteRT where they are to be measured.

        InvalidRequest where an input does not have the shape that the interpreter was made for.
        """
        given = request.inputs
        for number, view, shape in self._inputs:
            x = given[number]
            if x is None or x.shape != shape:
                state = "omitted" if x is None else f"of shape {show(x.shape)}"
                raise InvalidRequest(f"input {number} is {state}, must be of shape {show(shape)}")
            view[...] = x
        for view, value in self._resets:
            view[...] = value
        start = time.monotonic_ns() if measure else 0
        try:
            if self._settled:
                self._call()
            else:
                self._first()
        except (RuntimeError, ValueError) as error:
            raise OperationFailed(f"litert: {error}") from error
        spent = time.monotonic_ns() - start if measure else 0
        if self._narrows:
            with np.errstate(over="ignore"):  # what float16 cannot hold is infinite
                for number, (view, _, dtype) in enumerate(self._outputs):
                    request.write(number, view.astype(dtype))
        else:
            for number, (view, _, dtype) in enumerate(self._outputs):
                request.write(number, view if view.dtype == dtype else view.astype(dtype))
        return spent


_alive: "weakref.WeakSet[EngineInstance]" = weakref.WeakSet()


def _keep_for_ever() -> None:
    """In a forked child: LiteRT waits for threads that are not there when it destroys an interpreter."""
    for interpreter in list(_alive):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(interpreter._litert))


os.register_at_fork(after_in_child=_keep_for_ever)


class Team:
    """The interpreters for one set of input shapes, one to an execution: made on demand, dropped when not needed.

    An interrupt may come after any call: an interpreter that nobody holds any more does not count.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._places: weakref.WeakSet[_Place] = weakref.WeakSet()  # of those that there are, or that are being made
        self._idle = [self._new(self._place())]  # the last given back is taken first; appends and pops are atomic
        self._several = False
        self._waiting: list[None] = []  # as long as there are who wait, or longer
        self._given_back: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()

    def take(self, control: Control) -> EngineInstance:
        """An idle interpreter; where there is none a new one, or the next that is given back."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait(control)

    def give(self, interpreter: EngineInstance) -> None:
        """Give an interpreter back."""
        if self._several:
            interpreter.used = time.monotonic()
            self._drop(interpreter.used - KEPT_SECONDS)
        self._idle.append(interpreter)
        if len(self._waiting) > self._given_back.qsize():
            self._given_back.put(None)

    def _place(self) -> "_Place":
        place = _Place()
        self._places.add(place)
        return place

    def _new(self, place: "_Place") -> EngineInstance:
        interpreter = EngineInstance(self._recipe)
        interpreter.place = place
        return interpreter

    def _drop(self, since: float) -> None:
        """Drop the idle interpreters not used since then: those in front, as the last in the list is taken first."""
        dropped = []  # they end when this does, not under the lock
        with suppress(IndexError):  # none is left idle
            if self._idle[0].used <= since:
                with self._lock:
                    while self._idle[0].used <= since:
                        dropped.append(self._idle.pop(0))
        if dropped:
            _log.debug("litert: %d interpreters not used for %g s dropped", len(dropped), KEPT_SECONDS)

    def _wait(self, control: Control) -> EngineInstance:
        with self._lock:
            place = self._place() if len(self._places) < MOST_INTERPRETERS else None
        if place is not None:
            self._several = True
            return self._new(place)
        try:
            self._waiting.append(None)
            while True:
                control.check()
                try:
                    return self._idle.pop()
                except IndexError:
                    with suppress(Empty):
                        self._given_back.get(timeout=POLL_SECONDS)
        finally:
            with suppress(IndexError):  # an interrupt came before
                self._waiting.pop()


class _Place:
    """One of the places in a team, for as long as its interpreter holds it, or who makes that."""

    __slots__ = ("__weakref__",)


class LitertModel(Prepared):
    """A model prepared with LiteRT. Where input shapes are open, interpreters are made when a shape is first seen."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self._model, self._settings = model, settings
        declared = [shape_of(model.main.operands[i]) for i in model.main.inputs]
        self._declared = declared
        self._teams: Once[Shapes, Team | Prepared] = Once(
            lambda shapes: f"litert: inputs of shapes {shapes}", MOST_SHAPES
        )
        self._closed = False
        self._optional = _optional(model)
        known = all(shape is not None and None not in shape for shape in declared)
        self._team = Team(_recipe(model, settings)) if known else None

    def run(self, request: Request, control: Control) -> Timing | None:
        measure = control.measure
        start = time.monotonic_ns() if measure else 0
        if control is not UNLIMITED:
            control.check()
        team = self._team
        if team is None or (self._optional and any(x is None for x in request.given)):
            found = self._team_for(request)
            if isinstance(found, Prepared):
                return found.run(request, control)
            team = found
        interpreter = team.take(control)
        try:
            spent = interpreter.run(request, measure)
        finally:
            team.give(interpreter)
        return Timing(spent, time.monotonic_ns() - start) if measure else None

    def close(self) -> None:
        self._closed = True
        self._team = None
        self._teams.forget()

    def _team_for(self, request: Request) -> Team | Prepared:
        """The team for the shapes of a request, or the reference where LiteRT cannot take them."""
        shapes: Shapes = tuple(None if x is None else x.shape for x in request.given)
        if self._closed:
            raise Closed("litert: the prepared model was closed")
        return self._teams.get(shapes, lambda: self._made_for(shapes))

    def _made_for(self, shapes: Shapes) -> Team | Prepared:
        recipe = self._recipe_for(shapes)
        return reference.Interpreter(self._model) if recipe is None else Team(recipe)

    def _recipe_for(self, shapes: Shapes) -> Recipe | None:
        """The recipe for these shapes of the inputs; None where LiteRT cannot compute what the verdict could not yet see.

        It needs elements and a rank, and room for what lies between its operators.
        """
        possible = True
        for number, (shape, declared) in enumerate(zip(shapes, self._declared, strict=True)):
            if shape is not None and declared is not None and not agree(declared, shape):
                raise InvalidRequest(f"input {number} is of shape {show(shape)}, must be of shape {show(declared)}")
            possible &= shape is None or (0 not in shape and (shape != () or declared == ()))
        if not possible:
            return None
        try:
            recipe = _recipe(_specialised(self._model, shapes), self._settings)
        except UnsupportedModel:
            return None
        except InvalidModel as error:  # what is wrong now is an error of the execution
            raise OperationFailed(f"litert: {error}") from error
        given = [number for number, shape in enumerate(shapes) if shape is not None]
        lowered = recipe.lowered
        return replace(recipe, lowered=replace(lowered, inputs=tuple((given[n], t) for n, t in lowered.inputs)))


def _optional(model: Model) -> bool:
    """Whether some input of the model may be left out."""
    main, bounds = model.main, validate(model).subgraphs[0].operations
    return any(
        argument.optional and main.operands[index].lifetime == Lifetime.SUBGRAPH_INPUT
        for operation, a in zip(main.operations, bounds, strict=True)
        if a is not None
        for argument, start, end in a.form.slots(len(operation.inputs))
        for index in operation.inputs[start:end]
    )


def _specialised(model: Model, shapes: Shapes) -> Model:
    """The model with input shapes as given; omitted inputs are operands without a value."""
    main = model.main
    operands = list(main.operands)
    for index, shape in zip(main.inputs, shapes, strict=True):
        if shape is None:
            operands[index] = replace(operands[index], lifetime=Lifetime.NO_VALUE)
        else:
            operands[index] = replace(operands[index], dimensions=shape)
    inputs = tuple(index for index, shape in zip(main.inputs, shapes, strict=True) if shape is not None)
    return replace(model, main=replace(main, operands=tuple(operands), inputs=inputs), states=())


def _recipe(model: Model, settings: Settings) -> Recipe:
    """Lower a model whose input shapes are all known."""
    try:
        lowered = lower(model)
    except Refused as error:
        raise UnsupportedModel(f"litert: {error}") from error
    outputs = []
    for index, value in zip(model.main.outputs, lowered.values, strict=True):
        shape = None if value is None else fixed(value.shape)
        if value is None or shape is None:
            name = describe(model, model.main, index)
            raise UnsupportedModel(f"litert: the shape of output {name} is known only at execution, must be before")
        outputs.append((dtype_of(value.type), shape))
    return Recipe(lowered, tuple(outputs), settings)
