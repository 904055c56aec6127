"""An isolated driver, started on demand and again after a death.

The process belongs to one client and ends with it. When it dies, every waiting call gets DEAD_OBJECT. The next use
starts it again, after a pause that doubles with every recent death, and prepares compiled models again, once. If the
process caused its own death three times within a minute, the device is quarantined until a quiet minute has passed. A
process that comes back as another device is not used.
"""

import os
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import raise_application_error
from nnhal.base.codes import DeviceStatus
from nnhal.base.descriptors import Owner
from nnhal.base.errors import (
    Closed,
    DeviceUnavailable,
    NnhalError,
    ResourceExhausted,
    copy_of_error,
    is_out_of_resources,
)
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.names import name_of
from nnhal.base.records import Struct, field, replace
from nnhal.base.time import run_with_deadline
from nnhal.hal.background import FencedExecution, Notify
from nnhal.hal.burst import Burst
from nnhal.hal.cache.files import CacheFiles
from nnhal.hal.code import CodeIdentity
from nnhal.hal.device import Capabilities, Considered, Device, Hints, Prepared, Verdict
from nnhal.hal.fence import Fence
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, MemoryUse
from nnhal.hal.request import Control, Request, Timing
from nnhal.ipc import transport
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.output import DriverProcess
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.client.session import Session
from nnhal.ipc.environment import allowed
from nnhal.model.graph import Model

DEATHS, WINDOW_NS = 3, 60_000_000_000  # this many deaths that a process caused within this time are a crash loop
FIRST_PAUSE_NS, LONGEST_PAUSE_NS = 20_000_000, 1_000_000_000
FIRST_PASSED = 3  # the lowest descriptor after input, output and errors
_log = logger("driver")


class ProcessHealth(Struct):
    """Deaths of a driver's process and their consequences. clock: monotonic nanoseconds.

    deaths: the last ones, which delay the next start. faults: those that the process caused, which lead to quarantine.
    """

    name: str
    clock: Callable[[], int] = time.monotonic_ns
    deaths: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=8))
    faults: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=DEATHS))
    total: int = 0

    def died(self, why: str, *, fault: bool = True) -> None:
        """Record a death. fault: whether the process caused it, see `NnhalError.driver_fault`."""
        self.deaths.append((self.clock(), why))
        if fault:
            self.faults.append(self.deaths[-1])
        self.total += 1
        trace.counter(f"deaths of {self.name}", self.total)
        trace.instant("ipc", "termination", f"the process of {self.name} died", why)

    @property
    def quarantined_ns(self) -> int:
        """How long the device stays in quarantine; 0 if it is not."""
        if len(self.faults) < DEATHS or self.faults[-1][0] - self.faults[0][0] > WINDOW_NS:
            return 0
        return max(0, self.faults[-1][0] + WINDOW_NS - self.clock())

    def check(self) -> None:
        """Raise DeviceUnavailable, with the reason, if the device is quarantined."""
        left = self.quarantined_ns
        if left:
            span = (self.faults[-1][0] - self.faults[0][0]) / 1e9
            raise DeviceUnavailable(
                f"device {self.name}: is quarantined for {left / 1e9:.0f} s more: its process died {DEATHS} times within "
                f"{span:.1f} s, the last time: {self.faults[-1][1]}"
            )

    def pause_ns(self) -> int:
        """Return how long to wait before the next start; 0 after a quiet interval."""
        now = self.clock()
        recent = [at for at, _ in self.deaths if now - at < WINDOW_NS]
        if not recent:
            self.deaths.clear()
            self.faults.clear()
            return 0
        pause = min(LONGEST_PAUSE_NS, FIRST_PAUSE_NS << (len(recent) - 1))
        return int(max(0, recent[-1] + pause - now))

    def __str__(self) -> str:
        if not self.total:
            return "never died"
        state = f"quarantined for {self.quarantined_ns / 1e9:.0f} s" if self.quarantined_ns else "in use"
        return f"died {self.total} times, {state}; last: {self.deaths[-1][1] if self.deaths else 'some time ago'}"


@trace.traced_function("ipc", "initialisation", "start driver process", lambda driver: f"device {name_of(driver)}")
def start(driver: str, *, level: str = "", options: Sequence[str] = ()) -> Session:
    """Start a driver's process for this client alone, and connect. driver: a name, or the path of a file or package."""
    transport.require()
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise _not_started(driver, error) from None
    passed = Owner()
    with theirs:
        try:
            # If this program closed its input, output or errors, the process opens other files under these numbers.
            passed.fds.extend(map(fcntl, (theirs.fileno(),), (F_DUPFD_CLOEXEC,), (FIRST_PASSED,)))
            command = [sys.executable, "-P", "-m", "nnhal.serve", driver, "--fd", str(passed.fds[0]), *options]
            if level:
                command += ["--level", level]
            given = None if "--unconfined" in options else allowed(os.environ)
            process = DriverProcess(driver, command, tuple(passed.fds), given)
        except OSError as error:
            ours.close()
            raise _not_started(driver, error) from None
        finally:
            passed.close()
    return Session(ours, f"device {driver}", process)


def _not_started(driver: str, error: OSError) -> NnhalError:
    """Return the error for a process that did not start. The device is not at fault for a shortage in the client."""
    raise_application_error(error)
    kind = ResourceExhausted if is_out_of_resources(error) else DeviceUnavailable
    return kind(f"device {driver}: cannot start its process: {error.strerror or error}")


class ReconnectingDevice(Device):
    """A remote device that connects again after a death. connect: returns a new session."""

    timely = True

    def __init__(self, name: str, connect: Callable[[], Session]) -> None:
        self.name, self._connect = name, connect
        self.health = ProcessHealth(name)
        self._lock = threading.Lock()
        self._closed = False
        self._forked = False
        self._replaced: DeviceUnavailable | None = None  # why it is unusable: another device took its place
        self._cache_files: CacheFiles | None = None
        self._remote = self._fresh()
        self.restarts = 0
        remote = self._remote
        self.version, self.type, self.level = remote.version, remote.type, remote.level
        self.extensions, self.relaxations, self.numerics = remote.extensions, remote.relaxations, remote.numerics
        self.preferred_layout = remote.preferred_layout
        self.confinement = remote.confinement
        _resilient.add(self)

    @property
    def is_unusable(self) -> bool:
        """Whether it was closed, was replaced by another device, or belongs to the process that forked this one."""
        return self._closed or self._forked or self._replaced is not None

    @property
    def calls(self) -> dict[str, int]:
        """How often each HAL method was called since the process started."""
        return self._remote.session.calls

    @property
    def isolated(self) -> bool:
        """Whether the process belongs to this client alone."""
        return self._remote.session.peer.process is not None

    @property
    def pid(self) -> int:
        """The process id of the driver."""
        return self._remote.session.welcome.pid

    def _fresh(self) -> RemoteDevice:
        try:
            session = self._connect()
        except NnhalError as error:  # a process that ends before it serves counts as a death
            if hasattr(self, "_remote") and error.driver_fault:
                self.health.died(str(error))
            raise
        health = self.health

        def died(error: NnhalError) -> None:
            if not isinstance(error, Closed):
                health.died(str(error), fault=bool(error.driver_fault))

        session.peer.on_death(died)
        try:
            remote = RemoteDevice(session)
        except BaseException:
            session.close()
            raise
        previous, self._end = getattr(self, "_end", None), weakref.finalize(self, session.end)
        self._end.atexit = False
        if previous is not None:
            previous.detach()
        return remote

    def remote(self) -> RemoteDevice:
        """Return the live remote device; connect again if the last one died.

        Raises DeviceUnavailable in quarantine, and permanently once another device has come back in its place.
        """
        remote = self._remote
        if remote.session.peer.dead is None:
            return remote
        with self._lock:
            if self._closed:
                raise Closed(f"device {self.name}: was closed")
            if self._forked:
                raise copy_of_error(remote.session.peer.dead)
            if self._replaced is not None:
                raise copy_of_error(self._replaced)
            if self._remote.session.peer.dead is None:
                return self._remote
            self.health.check()
            time.sleep(self.health.pause_ns() / 1e9)
            fresh = self._fresh()
            try:
                self._require_the_same(fresh)
            except BaseException:
                fresh.close()
                raise
            self._remote = fresh
            if self.is_unusable:  # closed during the start: `close` may have met the previous one
                fresh.close()
                raise Closed(f"device {self.name}: was closed")
            self.restarts += 1
            _log.info("device %s: started again, %s", self.name, self.health)
            return fresh

    def _require_the_same(self, fresh: RemoteDevice) -> None:
        """Raise DeviceUnavailable if the new process reports anything that differs from before."""
        changed = fresh.statement.difference(self._remote.statement)
        if not changed and self._cache_files is not None:
            files = fresh.number_of_cache_files()
            if files != self._cache_files:
                changed = f"its cache files are {tuple(files)}, were {tuple(self._cache_files)}"
        if changed:
            self._replaced = DeviceUnavailable(
                f"device {self.name}: another device came back in its place: {changed}; compile again"
            )
            raise copy_of_error(self._replaced)

    def capabilities(self) -> Capabilities:
        """Return what was declared at the first start: it may not change while the device lives."""
        return self._remote.capabilities()

    def status(self) -> DeviceStatus:
        """Ask the driver; OFFLINE in quarantine."""
        return DeviceStatus.OFFLINE if self.health.quarantined_ns else self.remote().status()

    def supports(self, model: Model) -> Sequence[Verdict]:
        return self.remote().supports(model)

    def consider(self, model: Model, hints: Hints) -> Considered:
        return self.remote().consider(model, hints)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return ReconnectingModel(self, model, hints)

    def number_of_cache_files(self) -> CacheFiles:
        """Ask the driver each time, because its code may have changed. The numbers must be the same after a restart."""
        files = self.remote().number_of_cache_files()
        if self._cache_files is None:
            self._cache_files = files
        return files

    @property
    def code_identity(self) -> CodeIdentity:
        """The identity of the driver's code in the current process."""
        return self.remote().code_identity

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        return ReconnectingModel(self, outline, hints, restored=True)

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """Allocate a buffer in the driver's process; its contents do not survive a death."""
        return self.remote().allocate(desc, roles)

    def close(self) -> None:
        """End the session, and the process if it belongs to this client alone."""
        self._closed = True
        self._remote.close()


class ReconnectingModel(Prepared):
    """A prepared model that keeps its model, so that it is prepared again, once, after its process has died."""

    timely = True

    def __init__(self, device: ReconnectingDevice, model: Model, hints: Hints, *, restored: bool = False) -> None:
        """Prepare. restored: from the hints' cache; `model` is an outline until the caller sets the complete one."""
        self._device, self.model = device, model
        self._hints = replace(hints, deadline=None, worked_out=None, cache=None)
        self._lock, self._closed = threading.Lock(), False
        self._inner = self._prepare(hints, restored=restored)
        self.prepared_again = 0

    def _prepare(self, hints: Hints, *, restored: bool = False) -> RemotePrepared:
        remote = self._device.remote()
        prepared = (remote.prepare_from_cache if restored else remote.prepare)(self.model, hints)
        assert isinstance(prepared, RemotePrepared)
        return prepared

    @property
    def remote(self) -> RemotePrepared:
        """The model in the live process."""
        inner = self._inner
        if inner.session.peer.dead is None:
            return inner
        with self._lock:
            if self._inner.session.peer.dead is not None:
                if self._closed:
                    raise Closed(f"device {self._device.name}: its prepared model was closed")
                self._inner = self._prepare(self._hints)
                self.prepared_again += 1
                _log.info("device %s: model %s was prepared again", self._device.name, self.model.name or "unnamed")
            return self._inner

    def within(self, control: Control) -> RemotePrepared:
        """Like `remote`, within the budget of an execution. A later restart continues for the next execution."""
        if self.alive or not control.bounded:
            return self.remote
        what = f"device {self._device.name}: its process, which died, is started again"
        return run_with_deadline(control.deadline, what, lambda: self.remote, wanted=control.check)

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute. Raises DeadObject if the process dies meanwhile; the next execution starts a new one."""
        inner = self._inner
        if inner.session.peer.dead is not None:
            inner = self.within(control)
        return inner.run(request, control)

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        self.within(control).execute(request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        return self.within(control).execute_fenced(request, control, wait_for, after)

    def burst(self) -> Burst:
        """Return a burst that opens again after a death."""
        return ReconnectingBurst(self)

    @property
    def changeable(self) -> Collection[str]:  # type: ignore[override]
        return self._inner.changeable

    @property
    def writes_later(self) -> bool:  # type: ignore[override]
        return self._inner.writes_later

    def memory(self) -> MemoryUse:
        return self.remote.memory()

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """Change options in the live process, and in the one that replaces it."""
        self.remote.reconfigure(options)
        self._hints = replace(self._hints, options=dict(options))

    def close(self) -> None:
        self._closed = True
        self._inner.close()

    @property
    def alive(self) -> bool:
        """Whether its process lives, as far as is known."""
        return self._inner.session.peer.dead is None

    def end(self) -> None:
        """Like `RemotePrepared.end`."""
        self._closed = True
        self._inner.end()


class ReconnectingBurst(Burst):
    """A burst that opens again after its process has died or its queues have ended."""

    def __init__(self, prepared: ReconnectingModel) -> None:
        self._prepared = prepared
        self._target = prepared.remote
        self._inner = self._target.burst()
        self._closed = False

    @property
    def plain(self) -> Mapping[str, int]:  # type: ignore[override]
        """The counters of the burst in the live process."""
        return self._inner.plain

    def run(self, request: Request, control: Control) -> Timing | None:
        if (self._target.session.peer.dead is not None or self._inner.ended) and not self._closed:
            self._inner.close()
            self._target = self._prepared.within(control)
            self._inner = self._target.open_burst(control)
        return self._inner.run(request, control)

    def free_memory(self, memory: Memory) -> None:
        self._inner.free_memory(memory)

    def stats(self) -> dict[str, int]:
        """Return the counters of the queues."""
        counters: Any = getattr(self._inner, "stats", dict)
        return dict(counters())

    def close(self) -> None:
        self._closed = True
        self._inner.close()


_resilient: "weakref.WeakSet[ReconnectingDevice]" = weakref.WeakSet()


def _after_fork() -> None:
    for device in list(_resilient):
        device._forked = True
        device._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
