"""What stands in for `threading`, `time`, `queue`, executors and gates. Semantics are those of Python's own."""

import threading as real
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from types import SimpleNamespace
from typing import Any

from tests.nightly.simulation.world import SECOND, Source, Task, World

_world: World | None = None


def world() -> World:
    """The one that runs."""
    assert _world is not None, "no simulation runs"
    return _world


def running() -> bool:
    """Whether one runs."""
    return _world is not None


@contextmanager
def inside(new: World) -> Iterator[None]:
    """For the block, that world runs."""
    global _world  # noqa: PLW0603
    before, _world = _world, new
    try:
        yield
    finally:
        _world = before


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None or seconds < 0 else int(seconds * SECOND)


class Lock(Source):
    """threading.Lock"""

    __slots__ = ("owner", "world")

    def __init__(self) -> None:
        super().__init__()
        self.world = world()
        self.owner: Any = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = self.world
        if here.over:
            return True
        if not blocking:
            here.step("try a lock")
            if self.owner is not None:
                return False
        elif not here.block("lock", lambda: self.owner is None, (self,), _ns(timeout)):
            return False
        self.owner = here.current or here
        if here.current is not None:
            here.current.locks.append(self)
        return True

    def release(self) -> None:
        if self.world.over:
            return
        if self.owner is None:
            raise RuntimeError("release unlocked lock")
        if isinstance(self.owner, Task) and self in self.owner.locks:
            self.owner.locks.remove(self)
        self.owner = None
        self.changed()
        self.world.step("unlock")

    def locked(self) -> bool:
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event(Source):
    """threading.Event"""

    __slots__ = ("_set", "world")

    def __init__(self) -> None:
        super().__init__()
        self.world = world()
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        if not self.world.over:
            self.world.step("set an event")
        self._set = True
        self.changed()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self.world.block("event", lambda: self._set, (self,), None if timeout is None else _ns(max(0, timeout)))


class Semaphore(Source):
    """threading.Semaphore"""

    def __init__(self, value: int = 1) -> None:
        super().__init__()
        self.world = world()
        self.value = self.most = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if self.world.over:
            return True
        if not blocking:
            self.world.step("try a semaphore")
            if not self.value:
                return False
        elif not self.world.block("semaphore", lambda: self.value > 0, (self,), _ns(timeout)):
            return False
        self.value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self.value += n
        self.changed()
        if not self.world.over:
            self.world.step("release a semaphore")


class BoundedSemaphore(Semaphore):
    """threading.BoundedSemaphore"""

    def release(self, n: int = 1) -> None:
        if self.value + n > self.most and not self.world.over:
            raise ValueError("Semaphore released too many times")
        super().release(n)


class Thread:
    """threading.Thread"""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool = False,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self._task: Task | None = None

    def start(self) -> None:
        here = world()
        here.step(f"start {self.name}")
        if here.chance("no thread"):
            raise RuntimeError("can't start new thread")
        assert here.current is not None
        self._task = here.current.process.spawn(self.name, self.run)
        self._task.thread = self
        here.step("started")

    def run(self) -> None:
        if self._target is not None:
            target, args, kwargs = self._target, self._args, self._kwargs
            del self._target, self._args, self._kwargs
            target(*args, **kwargs)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.ended and not self._task.killed

    def join(self, timeout: float | None = None) -> None:
        assert self._task is not None, "cannot join thread before it is started"
        task = self._task
        world().block(f"end of {self.name}", lambda: task.ended or task.killed, (task.done,), _ns(timeout))

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)


class _Current(Thread):
    """A thread that was not made by `Thread`."""

    def __init__(self, task: Task | None) -> None:
        super().__init__(name=task.name if task is not None else "hub")
        self._task = task


def current_thread() -> Thread:
    task = world().current
    if task is None:
        return _Current(None)
    if task.thread is None:
        task.thread = _Current(task)
    thread: Thread = task.thread
    return thread


def main_thread() -> Thread:
    """Those that interrupts may reach are their processes' main threads."""
    task = world().current
    return current_thread() if task is not None and task.strikes else _Current(None)


threading = SimpleNamespace(
    Lock=Lock,
    Event=Event,
    Semaphore=Semaphore,
    BoundedSemaphore=BoundedSemaphore,
    Thread=Thread,
    current_thread=current_thread,
    main_thread=main_thread,
    get_ident=lambda: id(world().current),
    excepthook=real.excepthook,
)

time = SimpleNamespace(
    monotonic_ns=lambda: world().now,
    monotonic=lambda: world().now / SECOND,
    sleep=lambda seconds: world().sleep(int(seconds * SECOND)),
)


class SimpleQueue(Source):
    """queue.SimpleQueue"""

    def __init__(self) -> None:
        super().__init__()
        self.world = world()
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self.changed()
        if not self.world.over:
            self.world.step("put")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            got = self.world.block("queue", lambda: bool(self._items), (self,), _ns(timeout))
        else:
            self.world.step("try a queue")
            got = bool(self._items)
        if not got:
            raise Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(False)


class PriorityQueue(SimpleQueue):
    """queue.PriorityQueue"""

    def put(self, item: Any) -> None:
        insort(self._items, item)
        self.changed()
        if not self.world.over:
            self.world.step("put")


class Gate(Source):
    """nnhal.base.native.Gate"""

    def __init__(self) -> None:
        super().__init__()
        self.world = world()
        self._open = False

    def open(self) -> None:
        self._open = True
        self.changed()
        self.world.step("open a gate")

    def wait(self, seconds: float = -1, first: "Gate | None" = None) -> bool:
        if first is not None:
            first.open()
        passed = self.world.block("gate", lambda: self._open, (self,), _ns(seconds))
        self._open = False
        return passed
