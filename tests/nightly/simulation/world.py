"""One thread at a time, under a scheduler with a clock of its own: what runs when follows from a seed alone.

A `Task` stands for a thread, a `Process` for what dies as a whole. Whatever would be a system call, or the use of a lock,
is a step: the scheduler picks who goes on. `fine` makes statements of the code under test steps as well.
"""

import heapq
import random
import traceback
import weakref
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

SECOND = 1_000_000_000
POLICIES = "fair", "stay", "latest", "starve", "ranks"
_REMEMBERED = 400  # steps


class Interrupt(KeyboardInterrupt):
    """Ctrl-C, in a thread of a client's."""


class Violation(BaseException):
    """An invariant is broken; `str` says which one and how."""


class Source:
    """What tasks wait for a change of."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[Task] = []

    def changed(self) -> None:
        """Whoever waits looks again."""
        for task in self.waiters:
            task.wake()


class Task:
    """A thread. strikes: whether an interrupt may reach it. holding: the side of a burst whose liveness is its own."""

    def __init__(self, world: "World", process: "Process", name: str, run: Callable[[], object]) -> None:
        self.world, self.process, self.name, self._run = world, process, name, run
        self.greenlet = greenlet(self._main, world.hub)
        self.parked = self.ended = self.strikes = self.struck = self.killed = False
        self.waits = ""
        self.token = self.interrupts = 0  # token: of the wait at hand
        self.rank = world.random.random()
        self.locks: list[Any] = []
        self.holding: Any = None
        self.thread: Any = None
        self.done = Source()
        process.tasks.append(self)
        world.runnable.append(self)

    def _main(self) -> None:
        run = self._run
        del self._run  # it holds what the thread holds
        try:
            run()
        except GreenletExit:
            pass
        except Violation as error:
            self.world.fail(str(error))
        except BaseException as error:
            if not self.killed:
                text = "".join(traceback.format_exception(error))
                self.world.fail(f"thread {self.name} ended with {type(error).__name__}\n{text}")
        finally:
            del run
            self._end()

    def _end(self) -> None:
        if self.killed:
            return
        self.ended = True
        if self.locks:
            self.world.fail(f"thread {self.name} ended and left a lock taken: {self.locks}")
        if self.holding is not None:
            self.holding.holder_died()
        self.process.tasks.remove(self)
        self.done.changed()

    def wake(self) -> None:
        """It looks again at what it waits for."""
        if self.parked and not self.killed:
            self.parked = False
            self.world.runnable.append(self)

    def stack(self, depth: int = 12) -> str:
        """Where it is."""
        frame = self.greenlet.gr_frame
        return "".join(traceback.format_stack(frame, depth)) if frame is not None else ""


class Process(Source):
    """What has descriptors and dies as a whole. base: its descriptors' numbers begin there, so that each tells its owner."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__()
        self.world, self.name = world, name
        self.pid = world.first + 10_000 * (len(world.processes) + 1)
        self.tasks: list[Task] = []
        self.files: dict[int, Any] = {}
        self.locals: dict[str, Any] = {}  # what modules hold, once for each process
        self.next = 0
        self.alive = True  # its threads run
        self.dead = False  # its end can be seen
        self.exhausted = False  # it may open nothing more
        world.processes.append(self)

    @property
    def base(self) -> int:
        """The first descriptor."""
        return self.pid

    def spawn(self, name: str, run: Callable[[], object]) -> Task:
        """A thread."""
        return Task(self.world, self, f"{self.name}/{name}", run)

    def kill(self) -> None:
        """End it; its descriptors are closed, then its end is seen, both in a moment."""
        if not self.alive:
            return
        world, self.alive = self.world, False
        me = world.current
        world.note(f"{self.name} dies")
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.killed = True
            task.locks.clear()
            world.buried.append(task)
        world.runnable[:] = [task for task in world.runnable if not task.killed]
        for task in tasks:
            if task.holding is not None:
                task.holding.holder_died()
        world.kernel.spawn(f"reaper of {self.name}", self._reap)
        for task in tasks:
            task.done.changed()
        if me is not None and me.killed:
            world.hub.switch()

    def _reap(self) -> None:
        for fd in list(self.files):
            self.world.step("kernel closes")
            self.files.pop(fd).drop()
        self.world.sleep(self.world.random.randrange(5_000_000))
        self.dead = True
        self.changed()


class World:
    """The scheduler. first: descriptors and process numbers begin there, so that no other world's are taken for them."""

    def __init__(self, seed: int, first: int = 1_000_000, policy: str = "", fine: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.hub = getcurrent()
        self.first, self.seed = first, seed
        self.policy = policy or self.random.choice(POLICIES)
        self.fine = fine
        self.now = 1_000 * SECOND
        self.steps = 0
        self.current: Task | None = None
        self.runnable: list[Task] = []
        self.timers: list[tuple[int, int, Task, int]] = []
        self.processes: list[Process] = []
        self.buried: list[Task] = []
        self.trace: deque[tuple[int, int, str, str]] = deque(maxlen=_REMEMBERED)
        self.digest = 0
        self.counts: Counter[str] = Counter()
        self.failure = self.where = ""  # what is broken, and where it was seen
        self.over = self.quiet = False
        self.rates: dict[str, float] = {}  # of what is injected
        self.reuse = (
            self.random.random() < 0.5
        )  # numbers of descriptors, as the kernel does; else each use after close is seen
        self.queues: weakref.WeakSet[Any] = weakref.WeakSet()  # sides of bursts
        self.lag = 0.0  # how often the machine is slow
        self._starved: set[Task] = set()
        self._timed = 0
        self.kernel = Process(self, "kernel")

    # ------------------------------------------------------------------------------------------------------- what happens

    def note(self, what: str) -> None:
        """Something happened."""
        name = self.current.name if self.current is not None else "-"
        self.trace.append((self.steps, self.now, name, what))
        self.digest = zlib.crc32(f"{name} {what}".encode(), self.digest)

    def fail(self, why: str) -> None:
        """An invariant is broken: the run ends."""
        if not self.failure and not self.over:
            self.note("VIOLATION")
            self.failure, self.where = why, "".join(traceback.format_stack(limit=16))

    def chance(self, what: str) -> bool:
        """Whether something is injected now; counted where it is."""
        rate = self.rates.get(what, 0.0)
        if rate and not self.over and self.random.random() < rate:
            self.counts[what] += 1
            self.note(f"injected: {what}")
            return True
        return False

    # ---------------------------------------------------------------------------------------------------------- for tasks

    def step(self, what: str) -> None:
        """The task at hand may be interrupted here by any other."""
        if self.over:
            raise GreenletExit
        task = self.current
        if task is None or self.quiet:
            return
        self.steps += 1
        self.now += 1_000 + self.random.randrange(20_000)
        self.note(what)
        if self.policy == "stay" and self.random.random() < 0.8:
            return
        self.runnable.append(task)
        self.hub.switch()
        if self.over:
            raise GreenletExit

    def statement(self) -> None:
        """Between two statements of the code under test."""
        if self.fine and not self.over and not self.quiet and self.random.random() < self.fine:
            self.step("statement")

    def block(
        self, what: str, ready: Callable[[], bool], sources: Iterable[Source], timeout: int | None = None
    ) -> bool:
        """Wait until it is ready; False where the time-out, nanoseconds, has passed before."""
        self.step(what)
        task = self.current
        if task is None:  # outside of the simulation
            assert ready(), what
            return True
        end = None if timeout is None else self.now + timeout
        sources = tuple(sources)
        while not ready():
            if end is not None and self.now >= end:
                return False
            task.parked, task.waits, task.token = True, what, task.token + 1
            if end is not None:
                self._timed += 1
                heapq.heappush(self.timers, (end, self._timed, task, task.token))
            for source in sources:
                source.waiters.append(task)
            try:
                self.hub.switch()
            finally:
                for source in sources:
                    source.waiters.remove(task)
            if self.over:
                raise GreenletExit
            task.waits = ""
            if task.struck:
                task.struck = False
                task.interrupts += 1
                self.note("interrupted")
                raise Interrupt
        return True

    def sleep(self, ns: int) -> None:
        """Wait so long."""
        if ns <= 0:
            self.step("sleep(0)")
        else:
            self.block("sleep", lambda: False, (), ns)

    def strike(self, task: Task) -> bool:
        """Interrupt a task where it waits; whether it does."""
        if not task.parked or not task.strikes or task.killed:
            return False
        task.struck = True
        task.wake()
        return True

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Without steps."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    # ----------------------------------------------------------------------------------------------------------- the loop

    def run(self, done: Callable[[], bool], limit: int) -> bool:
        """Let tasks run until it is done, or `limit` nanoseconds have passed; whether it is. A failure ends it too."""
        end = self.now + limit
        while not self.failure and not done():
            if self.now > end:
                return False
            task = self._next()
            if task is None:
                return False
            self.current = task
            try:
                task.greenlet.switch()
            finally:
                self.current = None
        return not self.failure

    def _next(self) -> Task | None:
        if self.lag and self.random.random() < self.lag:
            self.counts["delay"] += 1
            self.now += self.random.randrange(30_000_000)
        if not self.runnable and self.timers:
            self.now = max(self.now, self.timers[0][0])
        while self.timers and self.timers[0][0] <= self.now:
            _, _, task, token = heapq.heappop(self.timers)
            if task.token == token:
                task.wake()
            if not self.runnable and self.timers:
                self.now = max(self.now, self.timers[0][0])
        if not self.runnable:
            return None
        place = self._pick()
        self.runnable[place], self.runnable[-1] = self.runnable[-1], self.runnable[place]
        return self.runnable.pop()

    def _pick(self) -> int:
        count, rng = len(self.runnable), self.random
        if count == 1:
            return 0
        if self.policy in ("fair", "stay") or rng.random() < 0.06:
            return rng.randrange(count)
        if self.policy == "latest":
            return count - 1 if rng.random() < 0.8 else rng.randrange(count)
        if self.policy == "starve":
            if rng.random() < 0.005 or not self._starved:
                living = [task for process in self.processes for task in process.tasks]
                self._starved = set(rng.sample(living, len(living) // 3 + 1))
            for _ in range(3):
                place = rng.randrange(count)
                if self.runnable[place] not in self._starved:
                    break
            return place
        if rng.random() < 0.01:
            self.runnable[rng.randrange(count)].rank = rng.random()
        return max(range(count), key=lambda n: self.runnable[n].rank)

    def waiting(self) -> str:
        """Who waits where."""
        tasks = [task for process in self.processes for task in process.tasks]
        return "\n".join(f"{task.name} waits for: {task.waits or 'nothing, may run'}\n{task.stack()}" for task in tasks)

    def history(self, steps: int) -> str:
        """The last steps."""
        lines = list(self.trace)[-steps:]
        return "\n".join(f"{n:>8} {now / 1e9:14.6f} {name:<32} {what}" for n, now, name, what in lines)

    def bury(self) -> None:
        """End what is left, whatever it does; nothing that it does has any effect."""
        self.over = True
        tasks = self.buried + [task for process in self.processes for task in process.tasks]
        for task in tasks:
            task.killed = True
            for _ in range(20):
                if not task.greenlet or task.greenlet.dead:
                    break
                task.greenlet.throw(GreenletExit)
        self.buried, self.runnable, self.timers = [], [], []
        for process in self.processes:
            process.tasks = []
            for file in process.files.values():
                file.drop()
            process.files = {}
