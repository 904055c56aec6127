"""Interpreters and executions: a team of LiteRT interpreters for each set of input shapes.

Each interpreter holds its packed weights, while all share one TFLite model. Their tensors are read and written through
arrays over the interpreter's memory, made once after allocation. Such arrays never leave this module. After the first
execution the module checks once that the memory has not moved.
"""

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from nnhal.base.errors import Closed, DeviceUnavailable, InvalidRequest, OperationFailed
from nnhal.base.installed import version_of
from nnhal.base.log import logger
from nnhal.base.operands import Array
from nnhal.drivers.kit.engine_log import filter_stderr
from nnhal.drivers.kit.instance_pool import Member, Team
from nnhal.drivers.kit.native import borrowed_array, keep_alive_in_forks
from nnhal.drivers.litert.flatbuffer import FlatbufferWriter
from nnhal.drivers.litert.recipe import Recipe, save
from nnhal.hal.cache.files import CacheContent
from nnhal.hal.device import Prepared
from nnhal.hal.memory import MemoryUse
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ops.schema import show

_log = logger("driver")
GREETING = b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU."
Interpreters = Team["EngineInstance"]


def version() -> str:
    """Return the engine's version without an import; DeviceUnavailable if it is not installed."""
    found = version_of("ai_edge_litert")
    if found is None:
        engine()
        import ai_edge_litert  # noqa: TID251

        found = str(ai_edge_litert.__version__)
    return found


def drop_greeting(call: Callable[[], object]) -> None:
    """Call a function, and drop the greeting from what is written to stderr meanwhile.

    The first interpreter with XNNPACK in a process writes a line that no setting silences. So the driver makes that one
    itself, from a model that does nothing else.
    """
    filter_stderr(call, lambda line, whole: line == GREETING if whole else GREETING.startswith(line))


@cache
def engine() -> Any:
    """Return LiteRT's interpreter module, after its greeting; DeviceUnavailable if it is not installed."""
    try:
        from ai_edge_litert import interpreter  # noqa: TID251
    except ImportError as error:
        # an extension raises this for an interrupt during its initialisation
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        what = f"litert: ai_edge_litert cannot be imported ({error})"
        raise DeviceUnavailable(f"{what}, install it with: pip install 'nnhal[litert]'") from error
    writer = FlatbufferWriter()
    x, y = (writer.tensor("FLOAT32", (1,)) for _ in "xy")
    writer.operator("FLOOR", [x], [y])
    least = writer.finish([x], [y])
    drop_greeting(lambda: least.pass_to(interpreter.Interpreter).allocate_tensors())
    return interpreter


class EngineInstance(Member):
    """One LiteRT interpreter with arrays over the memory of its inputs, outputs and states. For one thread at a time."""

    def __init__(self, recipe: Recipe) -> None:
        litert = engine()
        kinds = litert.OpResolverType
        try:
            self._litert = recipe.lowered.packed.pass_to(
                litert.Interpreter,
                num_threads=recipe.settings.threads,
                experimental_op_resolver_type=kinds.AUTO
                if recipe.settings.xnnpack
                else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            )
            self._litert.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise OperationFailed(f"litert: cannot prepare the model: {error}") from error
        _log.debug("litert: made an interpreter with %d threads", recipe.settings.threads)
        # The public `invoke` takes 1.5 times as long as this call. It checks that no array over the interpreter's
        # memory exists,
        # which this module ensures itself.
        self._call: Callable[[], object] = self._litert._interpreter.Invoke
        self._settled = False
        self._reported = ""  # LiteRT's errors so far
        keep_alive_in_forks(self, lambda own: own._litert)
        self._recipe = recipe  # after `_call`, so that the model's bytes are freed after their reader
        self._look()
        self._as_they_are = all(view.dtype == dtype for view, _, dtype in self._outputs)
        self._shapes = [shape for _, shape, _ in self._outputs]

    def _look(self) -> None:
        """Make the arrays over tensor memory, and drop the earlier ones."""
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
        self._outputs, self._results = outputs, [view for view, _, _ in outputs]

    def _view(self, tensor: int) -> Array:
        """Return an array over a tensor's memory that LiteRT does not know of."""
        try:
            known = self._litert.tensor(tensor)()
        except (RuntimeError, ValueError) as error:
            raise OperationFailed(f"litert: tensor {tensor} has no memory: {error}") from error
        return borrowed_array(known)

    def _first(self) -> None:
        """Invoke, and check whether all memory has stayed in place; then it is never checked again."""
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
        """Execute; return nanoseconds spent in LiteRT if they are to be measured.

        InvalidRequest if an input does not have the shape that the interpreter was made for.
        """
        given = request.given  # it is copied, never written
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
            raise OperationFailed(f"litert: {self._new(str(error))}") from error
        spent = time.monotonic_ns() - start if measure else 0
        if self._as_they_are:
            request.write_all(self._results, self._shapes)
            return spent
        with np.errstate(over="ignore"):  # float16 overflows to infinity
            for number, (view, _, dtype) in enumerate(self._outputs):
                request.write(number, view.astype(dtype))
        return spent

    def _new(self, reported: str) -> str:
        """Return the errors of the last call: an interpreter reports all of its errors each time, one behind another."""
        new, self._reported = reported.removeprefix(self._reported), reported
        return new.replace("Node number", "; node number").removeprefix("; ")


def _team(recipe: Recipe) -> Interpreters:
    return Team(partial(EngineInstance, recipe), "litert: interpreters")


class LitertModel(Prepared):
    """A model whose input shapes are known, prepared with LiteRT."""

    trimmable = True

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._in_place = recipe.lowered.packed.in_place
        self._team: Interpreters | None = _team(recipe)

    def run(self, request: Request, control: Control) -> Timing | None:
        measure = control.measure
        start = time.monotonic_ns() if measure else 0
        if control is not UNLIMITED:
            control.check()
        team = self._team
        if team is None:
            raise Closed("litert: the prepared model was closed")
        interpreter = team.take(control)
        try:
            spent = interpreter.run(request, measure)
        finally:
            team.give(interpreter)
        return Timing(spent, time.monotonic_ns() - start) if measure else None

    def memory(self) -> MemoryUse:
        """Report the memory mapped for LiteRT; it does not report its packed weights and arenas."""
        return MemoryUse(weights_in_place=self._in_place)

    def trim(self, *, pressed: bool) -> None:
        """Drop interpreters, all but one or all: LiteRT cannot release parts of one's packed weights and arenas."""
        team = self._team
        if team is not None:
            team.trim(0 if pressed else 1)

    def save(self, files: CacheContent) -> bool:
        return save(self.recipe, files)

    def close(self) -> None:
        self._team = None
