"""A burst of a compiled model: each step runs in a burst of its driver."""

from nnhal.base.answers import let_go
from nnhal.base.errors import BadState, ContractBroken, DriverFailed, OperationFailed
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.uncopied import Uncopied
from nnhal.hal.burst import Burst
from nnhal.hal.device import burst_by
from nnhal.hal.host import Turn
from nnhal.runtime.caller import Caller, ModelCallable
from nnhal.runtime.execute import Line, Runner
from nnhal.runtime.job import Job

_log = logger("execution")


class CompiledBurst(ModelCallable, Uncopied, instead="another process gets the model and compiles it there"):
    """A burst of a compiled model, called like the model: each step runs in a burst of its driver. A context manager.

    One execution at a time: BadState otherwise. ways: how each step is run, and why where that is by plain calls.
    """

    def __init__(self, owner: object, compiled: Caller) -> None:
        """owner: what is not to go before it."""
        self._owner = owner
        self._bursts: list[Burst] = []
        lines, ways = [], []
        for number, line in enumerate(compiled.lines):
            other, way = self._open(line)
            lines.append(other)
            ways.append(f"step {number} on {line.label}: {way}")
        self.ways = tuple(ways)
        runner = _OneByOne(compiled, lines, self._bursts)
        inner = Caller(compiled.plan, compiled.edge, runner, compiled.whole, compiled.use, "open another", compiled)
        super().__init__(inner)

    def _open(self, line: Line) -> tuple[Line, str]:
        try:
            return opened(line, self._bursts)
        except BaseException:
            self._let_go()
            raise

    def free_memory(self, memory: Memory) -> None:
        """This memory will not be used in the burst again: what drivers cache of it can go."""
        for burst in self._bursts:
            burst.free_memory(memory)

    def close(self) -> None:
        """End the burst; later calls raise Closed. The compiled model goes on."""
        self._end("the burst was closed")

    def _end(self, why: str) -> None:
        """End it for a reason that later calls are told."""
        self._caller.closed = self._caller.closed or why
        self._let_go()

    def _let_go(self) -> None:
        for burst in self._bursts:
            let_go("driver", "close() of a burst", burst.close)

    def __enter__(self) -> "CompiledBurst":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opened(line: Line, bursts: list[Burst]) -> tuple[Line, str]:
    """A step that runs in a burst of its driver, which is put among the others; or, where there are none, by plain calls.

    With the way that it is, and why.
    """
    try:
        burst = burst_by(line.prepared, line.signature.where)
    except OperationFailed as error:
        if isinstance(error, DriverFailed | ContractBroken):
            raise
        _log.info("%s: no burst, plain calls instead: %s", line.signature.where, error)  # its level has none
        return Line(line.step, line.label, line.prepared.run), f"plain calls: {error}"
    bursts.append(burst)
    return Line(line.step, line.label, burst.run), burst.way


class _OneByOne(Runner):
    """Runs a plan by the bursts of its steps."""

    def __init__(self, compiled: Caller, lines: list[Line], bursts: list[Burst]) -> None:
        super().__init__(compiled.plan, compiled.whole, lines, compiled.spares)
        self._compiled, self._bursts, self._turn = compiled, bursts, Turn()

    def run(self, job: Job) -> None:
        """As `Runner.run`; the report notes why executions took plain calls."""
        try:
            if not self._turn.take(job):
                raise BadState("burst: an execution is in flight, must be one at a time; open one burst a thread")
            self._compiled.check_open()
            report = job.report
            before = [] if report is None else [dict(burst.plain) for burst in self._bursts]
            super().run(job)
            if report is not None:
                for burst, counts in zip(self._bursts, before, strict=True):
                    found = [why for why, n in burst.plain.items() if n != counts.get(why, 0)]
                    report.notes += [f"plain call: {why}" for why in found]
        finally:
            self._turn.give_back(job)
