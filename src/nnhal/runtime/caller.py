"""What can be called with arrays: a compiled model, and a burst of one; and what they share with all other ways to run."""

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NoReturn, cast

from numpy import ndarray

from nnhal.base import trace
from nnhal.base.brief import brief, named, tensor
from nnhal.base.errors import Closed, InvalidRequest
from nnhal.runtime.allocation import Allocation
from nnhal.runtime.arguments import Edge, make_control
from nnhal.runtime.compilation import Plan
from nnhal.runtime.execute import Runner, Whole
from nnhal.runtime.job import Job, Report, resolve

NOTHING: Mapping[int, Allocation] = MappingProxyType({})


class InUse:
    """What is given back when its owner has let go of it and the last execution has left. give_back: may be called again.

    calls: jobs that somebody waits for. behind: what stands for those that run behind fences. They are put in within the
    `try` whose end takes them out: an interrupt may come after any call.
    """

    def __init__(self, give_back: Callable[[], None]) -> None:
        self.calls: set[object] = set()
        self.behind: weakref.WeakSet[Any] = weakref.WeakSet()  # what was interrupted before it began just goes
        self._give_back: Callable[[], None] | None = give_back
        self._lock, self._quiet = threading.Lock(), threading.Event()
        self._ending = False

    def leave(self, who: object) -> None:
        """An execution has ended, or will never begin."""
        self.calls.discard(who)
        self.behind.discard(who)
        self.left()

    def end(self) -> None:
        """The owner lets go."""
        self._ending = True
        self.left()

    def left(self) -> None:
        """An execution has left: the last one gives back."""
        if not self._ending or self.calls:
            return
        self._quiet.set()
        with self._lock:
            if self.behind:
                return
            give_back = self._give_back
        if give_back is not None:
            give_back()
            self._give_back = None  # after an interrupt it is asked again

    def wait(self) -> None:
        """After `end`: until no call is in flight."""
        self._quiet.wait()


class Caller:
    """Executions of a plan, however they are asked for. advice: what to do once it is closed. under: what it ends with."""

    def __init__(
        self,
        plan: Plan,
        edge: Edge,
        runner: Runner,
        whole: Whole,
        use: InUse,
        advice: str = "compile it again",
        under: "Caller | None" = None,
    ) -> None:
        self.plan, self.edge, self.whole = plan, edge, whole
        self.use, self.lines, self.spares, self.kept = use, runner.lines, runner.spares, runner.kept
        self.closed = ""  # why
        self._runner, self._calls, self._advice, self._under = runner, use.calls, advice, under
        self._plain, self._room = edge.plain, edge.room

    @trace.seam("application", "input/output", "check arguments")
    def job(self, inputs: tuple[Any, ...], out: Any) -> Job:
        """What an application gave, checked; at once where that is nothing but arrays that fit."""
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

    @trace.seam("runtime", "execution", "execute")
    def execute(self, job: Job) -> Any:
        """Run a job that was checked; returns what the application gets."""
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
        """Run a job that may hold allocations, or has them in their places already; who is in flight is the caller's."""
        if job.buffers:
            self.carry_out(job)
        else:
            self.carry_out(job, *self.allocations(job))
        return self.edge.results(job)

    def carry_out(
        self, job: Job, read: Mapping[int, Allocation] = NOTHING, written: Mapping[int, Allocation] = NOTHING
    ) -> None:
        """Run a job whose allocations were checked, and tell those what became of it. read, written: to be put in place."""
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
        """The allocations among all inputs and outputs; InvalidRequest where one may not be used so."""
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
        if read and self.edge.alike:  # their contents may be others than when they were given
            self.edge.require_alike(given)
        return read, written

    @contextmanager
    def inside(self) -> Iterator[None]:
        """As an execution is: what it uses is not given back meanwhile. Closed where nothing can be used any more."""
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
        """The model's name for people."""
        return named(self.plan.model.name or "model")

    def check_open(self) -> None:
        """Closed where nothing can be run any more."""
        if self.closed:
            self._refuse()
        if self._under is not None:
            self._under.check_open()

    def _refuse(self) -> NoReturn:
        raise Closed(f"{self.plan.model.name or 'model'}: {self.closed}; {self._advice}")


class ModelCallable:
    """A model that is called with arrays."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @trace.seam("application", "execution", "call", detail=lambda self: self._caller.plan.model.name)
    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Run once and wait.

        inputs: arrays in order, or one mapping from input names to arrays; what `nnhal.allocate` gave may stand for any, and
        None for one that may be left out. Returns the output array, a tuple of them where the model has several, or, for a
        mapping, a dict. out: an array or allocation (or a sequence of them, None for a fresh one) that results are written
        to; what is returned then lies in it, with its true shape. Raises InvalidRequest, OutputInsufficientSize, or what the
        execution raised.
        """
        caller = self._caller
        return caller.execute(caller.job(inputs, out))

    @trace.seam("application", "execution", "run", detail=lambda self: self._caller.plan.model.name)
    def run(
        self,
        *inputs: Any,
        out: Any = None,
        deadline: float | None = None,
        loop_timeout: float | None = None,
        measure: bool = False,
    ) -> tuple[Any, Report | None]:
        """Run once and wait, with everything that can be asked for.

        deadline: seconds from now. loop_timeout: seconds for each WHILE, 15 at most. measure: return a Report as well.
        Returns the outputs as `__call__` does, and the report or None. Raises what `__call__` does, and MissedDeadline.
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
        return brief(", ".join([*words, caller.plan.placement.summary()]), specs)
