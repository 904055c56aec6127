"""What can be called with arrays: a compiled model, and a burst of one."""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, cast

from numpy import ndarray

from nnhal.base.brief import brief, named, tensor
from nnhal.base.errors import Closed, InvalidRequest
from nnhal.runtime.allocation import Allocation
from nnhal.runtime.arguments import Edge, Spec, make_control
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
    """Executions of a plan."""

    def __init__(self, plan: Plan, edge: Edge, runner: Runner, whole: Whole, use: InUse) -> None:
        self.plan, self.edge, self.whole = plan, edge, whole
        self.use, self.lines, self.spares = use, runner.lines, runner.spares
        self._runner, self._calls = runner, use.calls
        self._plain, self._room = edge.plain, edge.room
        self._closed = ""

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Run once and wait.

        inputs: arrays in order, or one mapping from input names to arrays; what `nnhal.allocate` gave may stand for any, and
        None for one that may be left out. Returns the output array, a tuple of them where the model has several, or, for a
        mapping, a dict. out: an array or allocation (or a sequence of them, None for a fresh one) that results are written
        to; what is returned then lies in it, with its true shape. Raises InvalidRequest, OutputInsufficientSize, or what the
        execution raised.
        """
        return self.execute(self._quick(inputs, out) or self.edge.job(inputs, out))

    def _quick(self, inputs: tuple[Any, ...], out: Any) -> Job | None:
        """The job of a call that is nothing but arrays that fit; None for any other."""
        plain = self._plain
        if plain is None or len(inputs) != len(plain):
            return None
        for x, (dtype, shape) in zip(inputs, plain):  # noqa: B905 (as many, see above)
            if type(x) is not ndarray or x.dtype is not dtype or x.shape != shape or not x.flags.c_contiguous:
                return None
        if out is None:
            return Job(inputs, None, True)
        room = self._room
        if room is None or type(out) is not ndarray or out.dtype is not room[0] or out.shape != room[1]:
            return None
        flags = out.flags
        if not (flags.owndata and flags.c_contiguous and flags.writeable):
            return None
        for x in inputs:
            if x is out or x.base is not None:
                return None
        return Job(inputs, (out,), True)

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
        Returns the outputs as `__call__` does, and the report or None.
        """
        job = self._quick(inputs, out) or self.edge.job(inputs, out)
        if deadline is not None or loop_timeout is not None or measure:
            job.control = make_control(deadline, loop_timeout, measure)
            job.report = Report() if measure else None
        return self.execute(job), job.report

    def execute(self, job: Job) -> Any:
        """Run a job that was checked; returns what the application gets."""
        calls = self._calls
        try:
            calls.add(job)
            if self._closed:
                self._refuse()
            if job.plain:
                self._runner.run(job)
                results = job.results
                return results[0] if len(results) == 1 else tuple(results)
            return self._perform(job)
        finally:
            calls.discard(job)
            if self._closed:
                self.use.left()

    def _perform(self, job: Job) -> Any:
        """Run a job that may hold allocations, or has them in their places already."""
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
                x.check_use(self.whole, False, n)
                read[n] = x
        for n, x in enumerate(rooms):
            if isinstance(x, Allocation):
                x.check_use(self.whole, True, n)
                for other in (*read.values(), *written.values()):
                    if x is other:
                        raise InvalidRequest(f"output {n}: {x} is also another output or an input, must be one of them")
                written[n] = x
        return read, written

    @property
    def label(self) -> str:
        """The model's name for people."""
        return named(self.plan.model.name or "model")

    def __repr__(self) -> str:
        words = [f"{type(self).__name__} {self.label}", *([self._closed] if self._closed else [])]
        specs = [f"{mark}{tensor(s.name, s.type, s.shape)}" for mark, group in self._groups() for s in group]
        return brief(", ".join([*words, self.plan.placement.summary()]), specs)

    def _groups(self) -> "tuple[tuple[str, tuple[Spec, ...]], ...]":
        return ("", self.edge.inputs), ("-> ", self.edge.outputs)

    def check_open(self) -> None:
        """Closed where nothing can be run any more."""
        if self._closed:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise Closed(f"{self.plan.model.name or 'model'}: {self._closed}; compile it again")
