"""Models whose operations depend on the sizes of their inputs: each set of shapes is compiled on demand."""

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from nnhal.base.brief import quoted_name, short_repr, tensor, with_count
from nnhal.base.errors import BadState, Closed, InvalidArgument, InvalidModel, InvalidRequest, MissedDeadline
from nnhal.base.log import logger
from nnhal.base.once import OnceTable
from nnhal.base.threads import held_lock
from nnhal.base.time import point_in_time, seconds_until
from nnhal.hal.fence import Fence
from nnhal.model.graph import Model
from nnhal.model.open import OpenModel, Shapes
from nnhal.model.validate import validate_outline
from nnhal.ops.schema import show
from nnhal.runtime.allocation import Allocation
from nnhal.runtime.arguments import ModelInterface
from nnhal.runtime.binding import Binding
from nnhal.runtime.bursts import CompiledBurst
from nnhal.runtime.cache.wanted import CacheOutcome
from nnhal.runtime.compiled import FORKED, Compiled, alive
from nnhal.runtime.fenced import Fenced
from nnhal.runtime.inflight import Execution
from nnhal.runtime.job import Report
from nnhal.runtime.model_memory import ModelMemory
from nnhal.runtime.placement import Placement
from nnhal.runtime.stream import Stream

Key = tuple[tuple[int, ...], ...]  # the shapes of all inputs
Prepare = Callable[[Model, int | None], Compiled]  # the deadline is a point of the monotonic clock, in nanoseconds
_log = logger("compilation")


class CompiledByShape(Compiled):
    """A compiled model that compiles each set of input shapes on first use, and keeps the most recently used sets.

    You call it like any compiled model. `at` returns the compiled model for one set of shapes, for a burst, a stream or
    allocations, or to compile before the first call. The deadline of an execution also bounds its compilation.
    """

    def __init__(self, model: OpenModel, prepare: Prepare, most: int) -> None:
        """prepare: compiles a model with fixed shapes. most: how many sets of shapes stay compiled."""
        self._model, self._prepare, self._most = model, prepare, most
        self._edge = ModelInterface(validate_outline(model.outline()))
        self.inputs, self.outputs = self._edge.inputs, self._edge.outputs
        self._names = [spec.name for spec in self.inputs]
        self._label = model.name or "model"
        self._made: OnceTable[Key, Compiled] = OnceTable(lambda key: f"inputs of shapes {_listed(key)}", most)
        self._options = OptionsOfAllShapes(self._label)
        self._closed = ""  # the reason, or ""
        alive.add(self)

    def at(self, shapes: Shapes) -> Compiled:
        """Return the compiled model for one set of input shapes; compile it if necessary.

        It lives until neither this object nor you hold it any more. If you close it, the next use of these shapes
        compiles them again.

        Args:
            shapes: By name or in order. A mapping may leave out inputs without open dimensions.

        Raises:
            InvalidArgument: The shapes do not fit the model.
            NnhalError: As from `nnhal.compile`.
        """
        return self._compiled(tuple(self._model.sized(shapes).values()))

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Run once and wait, as `Compiled` does. New shapes are compiled first."""
        return self._for(inputs)(*inputs, out=out)

    def run(
        self,
        *inputs: Any,
        out: Any = None,
        deadline: float | None = None,
        loop_timeout: float | None = None,
        measure: bool = False,
    ) -> tuple[Any, Report | None]:
        """Run once and wait, as `Compiled.run` does.

        Args:
            inputs: As in `Compiled.run`.
            out: As in `Compiled.run`.
            deadline: Seconds from now, for the compilation of new shapes and the execution together.
            loop_timeout: As in `Compiled.run`.
            measure: As in `Compiled.run`.
        """
        compiled, deadline = self._by(inputs, deadline)
        return compiled.run(*inputs, out=out, deadline=deadline, loop_timeout=loop_timeout, measure=measure)

    def submit(
        self, *inputs: Any, out: Any = None, deadline: float | None = None, loop_timeout: float | None = None
    ) -> Execution:
        """Run in the background, as `Compiled.submit` does. New shapes are compiled before it returns."""
        compiled, deadline = self._by(inputs, deadline)
        return compiled.submit(*inputs, out=out, deadline=deadline, loop_timeout=loop_timeout)

    def execute_fenced(
        self,
        *inputs: Any,
        wait_for: Sequence[Fence] = (),
        out: Any = None,
        deadline: float | None = None,
        after: float | None = None,
        loop_timeout: float | None = None,
        measure: bool = False,
    ) -> Fenced:
        """Launch an execution behind fences, as `Compiled.execute_fenced` does. New shapes are compiled first."""
        compiled, deadline = self._by(inputs, deadline)
        return compiled.execute_fenced(
            *inputs,
            wait_for=wait_for,
            out=out,
            deadline=deadline,
            after=after,
            loop_timeout=loop_timeout,
            measure=measure,
        )

    def bind(self, *inputs: Any, out: Any = None) -> Binding:
        """Bind arguments of these shapes once, as `Compiled.bind` does."""
        return self._for(inputs).bind(*inputs, out=out)

    def burst(self) -> CompiledBurst:
        """Raise `InvalidArgument`: a burst needs one set of shapes. Use `at(shapes).burst()`."""
        self._refuse("a burst", "burst()")

    def stream(self) -> Stream:
        """Raise `InvalidArgument`: a stream needs one set of shapes. Use `at(shapes).stream()`."""
        self._refuse("a stream", "stream()")

    def configure(self, device: str, options: Mapping[str, Any], *, deadline: float | None = None) -> None:
        """Change options of a device for all shapes, compiled now or later. At least one set must be compiled.

        Args:
            device: As in `Compiled.configure`.
            options: As in `Compiled.configure`.
            deadline: As in `Compiled.configure`.
        """
        self._options.change(device, options, self._ready, point_in_time(deadline))

    @property
    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """The compiled sets of input shapes, by input name; the last used at the end."""
        return [dict(zip(self._names, key, strict=True)) for key in self._kept()]

    @property
    def memory(self) -> ModelMemory:
        """The memory of all compiled sets of shapes, in bytes. They share the weights that devices read in place."""
        held = [compiled.memory for compiled in self._kept().values()]
        return ModelMemory(tuple(step for each in held for step in each.steps), sum(each.between for each in held))

    @property
    def cache(self) -> tuple[CacheOutcome, ...]:
        """The cache outcomes of the partitions of all compiled sets of shapes."""
        return tuple(each for compiled in self._kept().values() for each in compiled.cache)

    @property
    def placement(self) -> Placement:
        """Where each operation runs, for the last used shapes.

        Raises:
            BadState: No shapes are compiled yet.
        """
        return self._ready()[-1].placement

    def close(self) -> None:
        """Close the compiled models of all shapes. Later uses raise `Closed`; a second `close` has no effect."""
        self._closed = self._closed or "the compiled model was closed"
        for compiled in self._made.forget():
            compiled.close()

    def __repr__(self) -> str:
        words = [f"{type(self).__name__} {quoted_name(self._label)}", *([self._closed] if self._closed else [])]
        groups = ("", self.inputs), ("-> ", self.outputs)
        specs = [f"{mark}{tensor(s.name, s.type, s.shape)}" for mark, group in groups for s in group]
        return short_repr(", ".join([*words, f"{with_count(len(self._kept()), 'set')} of shapes compiled"]), specs)

    # --------------------------------------------------------------------------------------------------------- shapes

    def _for(self, inputs: Sequence[Any], until: int | None = None) -> Compiled:
        """Return the compiled model for the shapes of these inputs."""
        named = len(inputs) == 1 and isinstance(inputs[0], Mapping)
        given = [inputs[0].get(name) for name in self._names] if named else inputs
        shapes = [getattr(x, "shape", None) for x in given]
        key: Any = tuple([shape if isinstance(shape, tuple) else None for shape in shapes])

        def accept() -> list[Any]:
            return self._edge.accept(inputs[0] if named else inputs)

        if None in key:  # a list or a number has no shape attribute
            self._check_open()
            arrays = accept()
            taken = [arrays[at] for at in self._edge.given]
            for array in taken:
                if isinstance(array, Allocation) and array.shape is None:
                    array.read()  # raises the reason why it has no contents
            key = tuple([array.shape for array in taken])
        return self._compiled(key, until, accept)

    def _by(self, inputs: Sequence[Any], deadline: float | None) -> tuple[Compiled, float | None]:
        """Return the compiled model, and the seconds left of the deadline."""
        until = point_in_time(deadline)
        return self._for(inputs, until), _left(self._label, until)

    def _compiled(self, key: Key, until: int | None = None, check: Callable[[], object] | None = None) -> Compiled:
        """Return the compiled model for these shapes. `check` verifies the inputs if the shapes are new."""
        tried = False

        def make() -> Compiled:
            nonlocal tried
            tried = True
            if check is not None:
                check()
            return self._prepared(key, until)

        self._check_open()
        while True:
            try:
                compiled = self._made.get(key, make, _is_closed, until)
                break
            except MissedDeadline:  # of this execution, or of the one whose compilation it waited for
                if tried or (until is not None and not seconds_until(until)):
                    raise
        if self._closed:  # it was closed meanwhile, and `close` may not have seen this one
            compiled.close()
            self._check_open()
        if self._made.thrashes():
            _log.warning(
                "%s: input shapes are compiled again and again, %d sets are kept: pad inputs, or compile(..., variants=N)",
                self._label,
                self._most,
            )
        return compiled

    def _prepared(self, key: Key, until: int | None) -> Compiled:
        try:
            model = self._model.at(dict(zip(self._names, key, strict=True)))
        except InvalidModel as error:
            raise InvalidRequest(f"inputs of shapes {_listed(key)} do not fit the model: {error}") from error
        compiled = self._prepare(model, until)
        self._options.apply(compiled, until)
        return compiled

    def _kept(self) -> dict[Key, Compiled]:
        """Return the open compiled models, the last used at the end. A caller may have closed one."""
        return {key: compiled for key, compiled in self._made.values().items() if not _is_closed(compiled)}

    def _ready(self) -> list[Compiled]:
        """Return the open compiled models, the last used at the end; BadState if there are none."""
        self._check_open()
        ready = list(self._kept().values())
        if not ready:
            raise BadState(f"{self._label}: no input shapes are compiled yet, must be: call it, or use at(shapes)")
        return ready

    def _refuse(self, what: str, call: str) -> NoReturn:
        self._check_open()
        raise InvalidArgument(f"{self._label}: {what} is of one set of input shapes, must be at(shapes).{call}")

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._label}: {self._closed}; compile it again")

    def _forked(self) -> None:
        self._closed = FORKED


class OptionsOfAllShapes:
    """The options that were changed for all shapes: each compiled model has all changes, in order."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._changes: list[tuple[str, dict[str, Any]]] = []
        # All that have these changes, also those that `at` gave and nobody uses here any more
        self._having: weakref.WeakSet[Compiled] = weakref.WeakSet()
        self._changing = threading.Lock()

    def change(
        self, device: str, options: Mapping[str, Any], ready: Callable[[], list[Compiled]], until: int | None
    ) -> None:
        """Change options of a device. ready: returns the compiled models; one is asked if none uses the device."""
        with self._alone(until):
            first = ready()[:1]
            held = [each for each in self._having if not _is_closed(each)]
            for compiled in [each for each in held if device in each.placement.devices()] or first:
                compiled.configure(device, options, deadline=_left(self._label, until))
            self._changes.append((device, dict(options)))

    def apply(self, compiled: Compiled, until: int | None) -> None:
        """Make all changes to a new compiled model, which also gets all later ones."""
        with self._alone(until):
            for device, options in self._changes:
                if device in compiled.placement.devices():
                    compiled.configure(device, options, deadline=_left(self._label, until))
            self._having.add(compiled)

    @contextmanager
    def _alone(self, until: int | None) -> Iterator[None]:
        """Hold off other option changes; MissedDeadline if another thread makes some until the deadline."""
        with held_lock(self._changing, -1 if until is None else seconds_until(until)) as mine:
            if not mine:
                raise MissedDeadline(f"{self._label}: another thread has not changed its options by the deadline")
            yield


def _left(label: str, until: int | None) -> float | None:
    """Return the seconds left of a deadline, or raise MissedDeadline."""
    if until is None:
        return None
    left = seconds_until(until)
    if not left:
        raise MissedDeadline(f"{label}: the deadline passed while new input shapes were compiled")
    return left


def _is_closed(compiled: Compiled) -> bool:
    return bool(compiled._caller.closed)


def _listed(key: Key) -> str:
    return ", ".join(show(shape) for shape in key)
