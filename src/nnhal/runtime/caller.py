"""A callable model: the code that compiled models, bursts, bindings and streams share."""

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NoReturn, cast

from numpy import ndarray

from nnhal.base import trace
from nnhal.base.brief import quoted_name, short_repr, tensor
from nnhal.base.errors import Closed, InvalidRequest
from nnhal.runtime.allocation import Allocation
from nnhal.runtime.arguments import ModelInterface, make_control
from nnhal.runtime.compilation import Plan
from nnhal.runtime.execute import ModelSignature, Runner
from nnhal.runtime.job import Job, Report, resolve

NOTHING: Mapping[int, Allocation] = MappingProxyType({})


class InFlightTracker:
    """Releases a resource once its owner has closed it and the last execution has left.

    calls: jobs with a waiting caller. behind: jobs behind fences. Both are added inside the `try` whose end removes
    them, because an interrupt may come after any call. give_back: releases the resource; may be called again.
    """

    def __init__(self, give_back: Callable[[], None]) -> None:
        self.calls: set[object] = set()
        # Weak: a job that was interrupted before it began disappears by itself
        self.behind: weakref.WeakSet[Any] = weakref.WeakSet()
        self._give_back: Callable[[], None] | None = give_back
        self._lock, self._quiet = threading.Lock(), threading.Event()
        self._ending = False

    def leave(self, who: object) -> None:
        """Note that an execution has ended, or will never begin."""
        self.calls.discard(who)
        self.behind.discard(who)
        self.left()

    def end(self) -> None:
        """Note that the owner has closed the resource."""
        self._ending = True
        self.left()

    def left(self) -> None:
        """Release the resource if no execution is left."""
        if not self._ending or self.calls:
            return
        self._quiet.set()
        with self._lock:
            if self.behind:
                return
            give_back = self._give_back
        if give_back is not None:
            give_back()
            self._give_back = None  # kept until here: after an interrupt it is called again

    def wait(self) -> None:
        """Wait until no call is in flight; for use after `end`."""
        self._quiet.wait()


class Caller:
    """Executes a plan. advice: what to do once it is closed. under: describes what it ends with."""

    def __init__(
        self,
        plan: Plan,
        edge: ModelInterface,
        runner: Runner,
        whole: ModelSignature,
        use: InFlightTracker,
        advice: str = "compile it again",
        under: "Caller | None" = None,
    ) -> None:
        self.plan, self.edge, self.whole = plan, edge, whole
        self.use, self.lines, self.fallbacks, self.kept = use, runner.lines, runner.fallbacks, runner.kept
        self.closed = ""  # the reason, or ""
        self._runner, self._calls, self._advice, self._under = runner, use.calls, advice, under
        self._plain, self._room = edge.plain, edge.room

    @trace.traced_method("application", "input/output", "check arguments")
    def job(self, inputs: tuple[Any, ...], out: Any) -> Job:
        """Check arguments and make a job of them. Arrays that fit in order take a short path."""
        plain = self._plain
        if plain is None or len(inputs) != len(plain):
            return self.edge.job(inputs, out)
        for x, (dtype, shape) in zip(inputs, plain):  # noqa: B905 (as many, see above)
            if type(x) is not ndarray or x.dtype is not dtype or x.shape != shape or not x.flags.c_contiguous:
                return self.edge.job(inputs, out)
        if out is None:
            return Job(inputs, None, True)
        room = self._room
        if room is None or type(out) is not ndarray or out.dtype is not room[0] or out.shape != room[1]:
            return self.edge.job(inputs, out)
        flags = out.flags
        if not (flags.owndata and flags.c_contiguous and flags.writeable):
            return self.edge.job(inputs, out)
        for x in inputs:
            if x is out or x.base is not None:
                return self.edge.job(inputs, out)
        return Job(inputs, (out,), True)

    @trace.traced_method("runtime", "execution", "execute")
    def execute(self, job: Job) -> Any:
        """Run a checked job, and return the application's result."""
        calls = self._calls
        try:
            calls.add(job)
            if self.closed:
                self._refuse()
            if job.plain:
                self._runner.run(job)
                results = job.results
                return results[0] if len(results) == 1 else tuple(results)
            return self.perform(job)
        finally:
            calls.discard(job)
            if self.closed:
                self.use.left()

    def perform(self, job: Job) -> Any:
        """Run a job whose arguments may be allocations. The caller keeps it in flight."""
        if job.buffers:
            self.carry_out(job)
        else:
            self.carry_out(job, *self.allocations(job))
        return self.edge.results(job)

    def carry_out(
        self, job: Job, read: Mapping[int, Allocation] = NOTHING, written: Mapping[int, Allocation] = NOTHING
    ) -> None:
        """Run a job, and inform its allocations of the outcome. read, written: allocations to insert as arguments."""
        if read or written:
            resolve(job, read, written, self.plan.model.main)
        try:
            job.begin(job.written)
            for crossing in job.taken.values():
                crossing.enter()
            self._runner.run(job)
            job.check()
            for place, crossing in job.left.items():
                crossing.leave(job.results[place])
        except BaseException:
            job.settle(False)
            raise
        job.settle(True)

    def allocations(self, job: Job) -> tuple[dict[int, Allocation], dict[int, Allocation]]:
        """Return the input and output allocations; InvalidRequest if one may not be used there."""
        given, rooms = cast("Sequence[Any]", job.given), cast("Sequence[Any]", job.rooms or ())
        read: dict[int, Allocation] = {}
        written: dict[int, Allocation] = {}
        for n, x in enumerate(given):
            if isinstance(x, Allocation):
                x._check_use(self.whole, False, n)
                read[n] = x
        for n, x in enumerate(rooms):
            if isinstance(x, Allocation):
                x._check_use(self.whole, True, n)
                for other in (*read.values(), *written.values()):
                    if x is other:
                        raise InvalidRequest(f"output {n}: {x} is also another output or an input, must be one of them")
                written[n] = x
        if read and self.edge.alike:  # their contents may have changed since they were given
            self.edge.require_alike(given)
        self.edge.require_magnitudes(read)
        return read, written

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Keep the resources alive, as an execution does; Closed if they were released."""
        who = object()
        try:
            self._calls.add(who)
            self.check_open()
            yield
        finally:
            self._calls.discard(who)
            self.use.left()

    @property
    def label(self) -> str:
        """The model's name in messages."""
        return quoted_name(self.plan.model.name or "model")

    def check_open(self) -> None:
        """Raise Closed if nothing can run any more."""
        if self.closed:
            self._refuse()
        if self._under is not None:
            self._under.check_open()

    def _refuse(self) -> NoReturn:
        raise Closed(f"{self.plan.model.name or 'model'}: {self.closed}; {self._advice}")


class ModelCallable:
    """A model that you call with arrays."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @trace.traced_method("application", "execution", "call", detail=lambda self: self._caller.plan.model.name)
    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Run once and wait.

        Args:
            inputs: Arrays in order, or one mapping from input names to arrays. An `nnhal.Allocation` may replace an
                array, and None an optional input.
            out: An array or allocation that receives the output, or a sequence with one for each output, in which None
                means a new array. The results lie in it, with their true shapes.

        Returns:
            The output array; a tuple if the model has several outputs; a dict by name if you passed a mapping.

        Raises:
            InvalidRequest: An argument does not fit the model.
            OutputInsufficientSize: `out` is too small; the error has the true shapes.
            NnhalError: The execution failed.
        """
        caller = self._caller
        return caller.execute(caller.job(inputs, out))

    @trace.traced_method("application", "execution", "run", detail=lambda self: self._caller.plan.model.name)
    def run(
        self,
        *inputs: Any,
        out: Any = None,
        deadline: float | None = None,
        loop_timeout: float | None = None,
        measure: bool = False,
    ) -> tuple[Any, Report | None]:
        """Run once and wait, with a deadline and a report.

        Args:
            inputs: As in a call.
            out: As in a call.
            deadline: Seconds from now.
            loop_timeout: Seconds for each `WHILE`, at most 15.
            measure: Whether to return a report.

        Returns:
            The outputs as a call returns them, and the report, or None without `measure`.

        Raises:
            InvalidRequest: An argument does not fit the model.
            OutputInsufficientSize: `out` is too small; the error has the true shapes.
            MissedDeadline: The deadline passed.
            NnhalError: The execution failed.
        """
        job = self._caller.job(inputs, out)
        if deadline is not None or loop_timeout is not None or measure:
            job.control = make_control(deadline, loop_timeout, measure)
            job.report = Report() if measure else None
        return self._caller.execute(job), job.report

    def __repr__(self) -> str:
        caller = self._caller
        words = [f"{type(self).__name__} {caller.label}", *([caller.closed] if caller.closed else [])]
        groups = ("", caller.edge.inputs), ("-> ", caller.edge.outputs)
        specs = [f"{mark}{tensor(s.name, s.type, s.shape)}" for mark, group in groups for s in group]
        return short_repr(", ".join([*words, caller.plan.placement.summary()]), specs)
