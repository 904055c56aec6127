"""A burst of a compiled model: each partition runs in a burst of its driver."""

from nnhal.base.answers import close_quietly
from nnhal.base.errors import BadState, ContractBroken, DriverFailed, OperationFailed
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.uncopied import NotCopyable
from nnhal.hal.burst import Burst
from nnhal.hal.chain import checked_burst
from nnhal.hal.host import ExclusiveUse
from nnhal.runtime.caller import Caller, InFlightTracker, ModelCallable
from nnhal.runtime.execute import PartitionRunner, Runner
from nnhal.runtime.job import Job

_log = logger("execution")


class CompiledBurst(ModelCallable, NotCopyable, instead="another process gets the model and compiles it there"):
    """A burst of a compiled model: drivers keep their resources between its executions. A context manager.

    Call it like the model, once at a time: a second call at the same time raises `BadState`.

    Attributes:
        ways: How each partition runs, and why if it uses plain calls.
    """

    def __init__(self, owner: object, compiled: Caller) -> None:
        """owner: kept alive as long as this object."""
        self._owner = owner
        self._bursts: list[Burst] = []
        lines, ways = [], []
        for number, line in enumerate(compiled.lines):
            other, way = self._open(line)
            lines.append(other)
            ways.append(f"partition {number} on {line.label}: {way}")
        self.ways = tuple(ways)
        runner = _OneByOne(compiled, lines, self._bursts)
        use = InFlightTracker(lambda: None)  # `_end` releases the bursts, so that they end before the model does
        inner = Caller(compiled.plan, compiled.edge, runner, compiled.whole, use, "open another", compiled)
        super().__init__(inner)

    def _open(self, line: PartitionRunner) -> tuple[PartitionRunner, str]:
        try:
            return open_bursts(line, self._bursts)
        except BaseException:
            self._release()
            raise

    def free_memory(self, memory: Memory) -> None:
        """Release what drivers cached of a memory that the burst will not use again.

        Args:
            memory: The memory.
        """
        for burst in self._bursts:
            burst.free_memory(memory)

    def close(self) -> None:
        """Wait for a running execution, then end the burst. Later calls raise `Closed`; the compiled model stays open."""
        self._end("the burst was closed")

    def _end(self, why: str) -> None:
        """As `close`; later calls raise Closed with this reason."""
        caller = self._caller
        caller.closed = caller.closed or why
        caller.use.end()
        caller.use.wait()
        self._release()

    def _release(self) -> None:
        for burst in self._bursts:
            close_quietly("driver", "close() of a burst", burst.close)

    def _forked(self) -> None:
        """Forget executions in flight in a forked child: their threads do not exist here."""
        self._caller.use.calls.clear()

    def __enter__(self) -> "CompiledBurst":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_bursts(line: PartitionRunner, bursts: list[Burst]) -> tuple[PartitionRunner, str]:
    """Return a partition that runs in a driver's burst, or by plain calls if there is none, and how and why.

    It adds the burst to `bursts`.
    """
    try:
        burst = checked_burst(line.prepared, line.signature.where)
    except OperationFailed as error:
        if isinstance(error, DriverFailed | ContractBroken):
            raise
        _log.info("%s: no burst, plain calls instead: %s", line.signature.where, error)  # the HAL version has none
        return PartitionRunner(line.step, line.label, line.prepared.run), f"plain calls: {error}"
    bursts.append(burst)
    return PartitionRunner(line.step, line.label, burst.run), burst.way


class _OneByOne(Runner):
    """Runs a plan through the bursts of its partitions."""

    def __init__(self, compiled: Caller, lines: list[PartitionRunner], bursts: list[Burst]) -> None:
        super().__init__(compiled.plan, compiled.whole, lines, compiled.fallbacks)
        self._compiled, self._bursts, self._turn = compiled, bursts, ExclusiveUse()

    def run(self, job: Job) -> None:
        """Run a job; the report has the reason for each plain call."""
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
