"""What clients do in a simulation, and what is looked at: every result, and all that is left at the end."""

import contextlib
import gc
import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from nnhal.base.errors import DeadObject, DeviceUnavailable, MissedDeadline, NnhalError
from nnhal.base.levels import V1_0, V1_2, V1_3, Level
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Hints
from nnhal.hal.fence import fence_pair
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.session import Session
from nnhal.ipc.service import connection as service_connection
from nnhal.ipc.service.connection import serve_clients, serve_one
from nnhal.model.graph import Model
from tests.ipc.support import a_table
from tests.models import make_model
from tests.nightly.simulation import kernel, threads
from tests.nightly.simulation.driver import SimulatedDevice, f
from tests.nightly.simulation.world import SECOND, Interrupt, Process, Violation, World

SIZE = 4
LONGEST = 60 * SECOND  # that any call of a client may take, whatever happens
IDLE = 15 * SECOND  # until what was given up has ended
QUIET = 40 * SECOND  # after the last call, for all to come to its end
RATES = {
    "driver raises": 0.05,
    "driver hangs": 0.03,
    "driver is slow": 0.2,
    "driver waits for the end": 0.2,
    "driver writes late": 0.05,
    "driver answers late": 0.1,
    "slow preparation": 0.05,
    "slow close": 0.1,
}
RARE = {  # of a run; then at this rate
    "no thread": (0.15, 0.01),
    "descriptors exhausted": (0.15, 0.02),
    "interrupt": (0.5, 0.05),
    "service killed": (0.15, 0.003),
    "client killed": (0.2, 0.004),
}


def _model(name: str) -> Model:
    """y = x + x."""
    return make_model(lambda b, x: b.add(x, x), (SIZE,), name=name)


_SMALL, _LARGE = _model(""), _model("")  # as messages
_LARGE = replace(_LARGE, values=bytes(_LARGE.values) + bytes(70_000))


class _Errors(logging.Handler):
    """What is logged as an error."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if not self._world.over:
            text = self.format(record)
            if "failed to end" in text or "listener failed" in text or "callback of an execution failed" in text:
                self._world.fail(text)


class Service:
    """A process that serves the simulated driver."""

    def __init__(self, run: "Run", shared: bool, level: Level) -> None:
        self.run, self.shared = run, shared
        self.process = Process(run.world, f"service{len(run.services)}")
        self.device = SimulatedDevice(run.world, level)
        self.listener: kernel.Listener | None = None
        self.fds = 0
        run.services.append(self)

    def listen(self) -> None:
        """Serve whoever connects."""
        self.listener = listener = kernel.Listener(self.process)
        self.process.spawn("main", lambda: serve_clients(self.device, listener, {}, a_table(shared=True)))  # type: ignore[arg-type]

    def serve(self, end: kernel.SocketFile) -> None:
        """Serve one client, and end."""
        sock = kernel.Socket(fileno=kernel.given(self.process, end))

        def main() -> None:
            with contextlib.suppress(OSError):
                serve_one(self.device, sock, {}, a_table())  # type: ignore[arg-type]
            self.process.kill()

        self.process.spawn("main", main)


class Client:
    """A process with some threads that share what they have."""

    def __init__(self, run: "Run", name: str, service: Service | None, level: Level, threads_: int, calls: int) -> None:
        self.run, self.world, self.service, self.level = run, run.world, service, level
        self.process = Process(run.world, name)
        self.calls = calls
        self.device: RemoteDevice | None = None
        self.opening = False
        self.own_end: set[int] = set()  # ids of sessions that were closed here
        self.kept: deque[tuple[Any, float, RemoteDevice, bool]] = deque(maxlen=6)
        self.left = threads_
        self.watched: deque[tuple[Array, bytes, str]] = deque(maxlen=8)
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        for n in range(threads_):
            task = self.process.spawn(f"thread{n}", self._work)
            task.strikes = True

    # ------------------------------------------------------------------------------------------------------ connections

    def connected(self) -> RemoteDevice:
        """A device whose session lives."""
        while self.opening:
            self.world.sleep(1_000_000)
        device = self.device
        if device is not None and device.session.peer.dead is None:
            return device
        self.opening = True
        try:
            self.device = None
            del device
            self.device = device = self._open()
            return device
        finally:
            self.opening = False

    def _open(self) -> RemoteDevice:
        world = self.world
        if self.service is not None:
            service = self.service
            if not service.process.alive:
                service = self.run.replacement(self)
                self.service = service
            assert service.listener is not None
            try:
                sock = service.listener.connect()
            except OSError as error:
                raise DeviceUnavailable(str(error)) from None
            session = Session(sock, "service simulated")  # type: ignore[arg-type]
        else:
            own = Service(self.run, False, self.level)
            ours, theirs = kernel.pair(self.process, own.process)
            own.serve(theirs)
            kernel.when_dead(self.process, lambda: world.sleep(10 * SECOND) or own.process.kill())
            try:
                sock = kernel.Socket(fileno=kernel.given(self.process, ours))
            except OSError as error:
                own.process.kill()
                raise DeviceUnavailable(str(error)) from None
            process: Any = kernel.DriverProcess(own.process)
            session = Session(sock, "device simulated", process)  # type: ignore[arg-type]
        self.sessions.add(session)
        self.run.count("sessions")
        try:
            return RemoteDevice(session)
        except BaseException:
            session.close()
            raise

    # ------------------------------------------------------------------------------------------------------------ calls

    def _work(self) -> None:
        world, rng = self.world, self.world.random
        try:
            for _ in range(self.calls):
                act = rng.choices(_ACTS, _WEIGHTS)[0]
                began, before = world.now, world.current
                try:
                    self.run.count("calls")
                    act(self)
                except NnhalError as error:
                    world.counts[f"raised {type(error).__name__}"] += 1
                    self.run.judge(self, error)
                    error.__traceback__ = None
                except Interrupt as error:
                    world.counts["raised Interrupt"] += 1
                    error.__traceback__ = None
                assert before is world.current
                if world.now - began > LONGEST:
                    world.fail(f"{act.__name__} took {(world.now - began) / SECOND:.1f} s of the simulation's time")
                self.look()
            self.left -= 1
            if not self.left:
                self._end()
        except Interrupt:
            world.fail("an interrupt came where none was sent")

    def _end(self) -> None:
        """The last thread lets go of everything."""
        task = self.world.current
        assert task is not None
        task.strikes = False
        self.kept.clear()
        device, self.device = self.device, None
        if device is not None:
            self.watched.clear()
            self.collect()
            self.world.sleep(IDLE)
            self.collect()
            self.world.sleep(SECOND)
            self._held_nowhere(device.session)
            device.close()
        del device
        self.collect()

    def _held_nowhere(self, session: Session) -> None:
        """A client that let go of everything has nothing in the service, and waits for nothing."""
        if session.peer.dead is not None:
            return
        awaited = [pending for pending in session.notifications.pending.values() if not pending.given_up]
        if awaited:
            self.world.fail(f"{self.process.name} still waits for {len(awaited)} notifications")
        opened, abandoned = len(session.channels.opened), len(session.channels.abandoned)
        if abandoned or len(session.channels.free) != opened:
            self.world.fail(f"{self.process.name} has {opened} lanes, {abandoned} abandoned")
        for connection in self.run.connections():
            if not getattr(connection, "_ending", True) and kernel.watched(connection.watch) is self.process:
                left = [type(item).__name__ for item, _ in connection._calls._exports._objects.values()]
                running = sum(
                    prepared.inside for prepared in connection._device.live
                )  # fenced ones that were let go of
                if len(connection.wanted._events) > len(connection._lanes) + running:
                    self.world.fail(f"{self.process.name} has ended calls that may still be cancelled")
                if left:
                    self.world.fail(f"{self.process.name} let go of everything, and the service still holds: {left}")

    def collect(self) -> None:
        """Garbage."""
        self.run.collect()

    def look(self) -> None:
        """Nothing was written to what belongs to the caller again."""
        for array, then, what in self.watched:
            if array.tobytes() != then:
                self.world.fail(f"memory of the caller's was written to after the end of its execution: {what}")

    def watch(self, array: Array, what: str) -> None:
        """From now on nobody may write to it."""
        task = self.world.current
        assert task is not None
        how = "a pool" if array.base is not None else "an array"
        self.watched.append((array, array.tobytes(), f"{what} into {how} of {task.name} at step {self.world.steps}"))

    def x(self, bounded: bool = False) -> Array:
        """An input that no other execution has."""
        self.run.value += 1
        return np.array([self.run.value, -self.run.value, 0.5, 1.0 if bounded else 0.0], np.float32)

    def any(self, least: Level = V1_0) -> tuple[Any, float]:
        """A prepared model, made now where none is left, and its tag."""
        rng = self.world.random
        living = [each for each in self.kept if each[2].session.peer.dead is None]
        if living and rng.random() < 0.8:
            prepared, tag, _, _ = rng.choice(living)
            return prepared, tag
        return self.prepare()

    def prepare(self) -> tuple[Any, float]:
        """Prepare a model."""
        world, rng = self.world, self.world.random
        device = self.connected()
        self.run.value += 1
        tag, slots = float(self.run.value % 1000), rng.random() < 0.5
        deadline = world.now + rng.randrange(200_000_000) if rng.random() < 0.2 else None
        model = _SMALL if rng.random() < 0.9 else _LARGE
        hints = Hints(deadline=deadline, options={"tag": tag, "slots": slots})
        if rng.random() < 0.5:
            claims = consider_support(device, model, hints)
            if rng.random() < 0.8:
                hints = claims.hints(hints)
            prepared = device.prepare(model, hints)
            claims.release_work()
        else:
            prepared = device.prepare(model, hints)
        self.kept.append((prepared, tag, device, slots))
        return prepared, tag

    def control(self) -> Control:
        """How long an execution may take."""
        world, rng = self.world, self.world.random
        kind = rng.randrange(8)
        if kind == 0:
            return Control(deadline=world.now + rng.randrange(100_000_000))
        if kind == 1:
            cancelled: Any = threads.Event()
            wait = rng.randrange(60_000_000)

            def cancel() -> None:
                world.sleep(wait)
                world.counts["cancel"] += 1
                cancelled.set()

            self.process.spawn("cancels", cancel)
            return Control(cancelled=cancelled)
        return Control(measure=True) if kind == 2 else UNLIMITED

    def rooms(self) -> tuple[list[Array | None] | None, Array | None, Any]:
        """Where the output is wanted: nowhere, in an array, or in a pool of the caller's."""
        kind = self.world.random.randrange(4)
        if kind == 0:
            return None, None, None
        if kind == 1:
            memory = Memory.allocate(64)
            array = memory.view(16, 4 * SIZE, np.float32, (SIZE,))
            array[:] = np.nan
            return [array], array, memory
        array = np.full(SIZE, np.nan, np.float32)
        return [array], array, None

    def expect(self, request: Any, x: Array, tag: float, what: str) -> None:
        """The answer belongs to the question."""
        result = request.results[0]
        if result is None or not np.array_equal(result, f(x, tag)):
            self.world.fail(
                f"{what}: f({x.tolist()}) with tag {tag} gave {None if result is None else result.tolist()}"
            )

    def executed(
        self, what: str, run: Callable[[Any, Control], Any], prepared: Any, tag: float, control: Control
    ) -> None:
        """Execute, and look at the result and at the memory afterwards."""
        world = self.world
        x = self.x(control.bounded)
        rooms, array, memory = self.rooms()
        request = prepared.request([x], rooms)
        task = world.current
        assert task is not None
        began, before = world.now, task.interrupts
        try:
            request.execute(run, control)
            self.expect(request, x, tag, what)
        except Interrupt:
            # "not defended against": a driver that looks at nothing for longer than 2 s, and a wait that is interrupted too
            if memory is not None and (world.now - began > 19 * SECOND // 10 or task.interrupts > before + 1):
                array = None
            raise
        except NnhalError:
            if memory is not None and prepared.session.peer.dead is not None and prepared.session.peer.process is None:
                array = None  # "not defended against": the session ended, and the service goes on
            raise
        finally:
            if array is not None:
                self.watch(array, what)
        if control.deadline is not None and world.now > control.deadline + 5 * SECOND:
            world.fail(f"{what}: gave a result {(world.now - control.deadline) / SECOND:.1f} s after its deadline")

    def query(self) -> None:
        device = self.connected()
        if not all(verdict.ok for verdict in device.supports(_SMALL)):
            self.world.fail("supports() gave another's answer")

    def execute(self) -> None:
        prepared, tag = self.any()
        self.executed("run", prepared.run, prepared, tag, self.control())

    def in_background(self) -> None:
        world = self.world
        prepared, tag = self.any()
        control = self.control()
        x = self.x(control.bounded)
        rooms, array, _ = self.rooms()
        request = prepared.request([x], rooms)
        told: Any = threads.Event()
        outcome: list[Any] = []

        def notify(error: NnhalError | None, timing: Any) -> None:
            if outcome:
                world.fail("a notification comes twice")
            outcome.append(error)
            if error is None:
                self.expect(request, x, tag, "execute in the background")
            if array is not None:
                self.watch(array, "background")
            told.set()

        prepared.execute(request, control, notify)
        if not told.wait(LONGEST / SECOND):
            world.fail("a notification never comes")
        if outcome[0] is not None:
            raise outcome[0]

    def fenced(self) -> None:
        world, rng = self.world, self.world.random
        prepared, tag = self.any()
        control = self.control()
        x = self.x(control.bounded)
        array = np.full(SIZE, np.nan, np.float32)
        request = prepared.request([x], [array])
        pairs = [fence_pair() for _ in range(rng.choice((0, 0, 1, 2)))]
        wait = rng.randrange(20_000_000)

        def signal() -> None:
            for _, signal in pairs:
                world.sleep(wait)
                signal.set()

        self.process.spawn("signals", signal)
        after = rng.choice((None, None, 50_000_000))
        execution = prepared.execute_fenced(request, control, [fence for fence, _ in pairs], after)
        try:
            if execution.fence is not None:
                execution.fence.wait(LONGEST / SECOND / 2)
        except MissedDeadline:
            if execution.fence is not None and execution.fence.status() is None and not world.rates.get("no thread"):
                world.fail("a fenced execution goes on, long after nobody wants it")
            raise
        try:
            execution.get_execution_info()
            self.expect(request, x, tag, "fenced execution")
        finally:
            if execution.fence is None or execution.fence.status() is not None:
                self.watch(array, "fenced")

    def in_burst(self) -> None:
        world, rng = self.world, self.world.random
        prepared, tag = self.any()
        burst = prepared.burst()
        memory = Memory.allocate(64) if rng.random() < 0.3 else None
        try:
            for _ in range(rng.randrange(1, 5)):
                x = self.x()
                array = np.full(SIZE, np.nan, np.float32)
                if memory is not None:
                    array = memory.view(16, 4 * SIZE, np.float32, (SIZE,))
                request = prepared.request([x], [array])
                try:
                    request.execute(burst.run, UNLIMITED if rng.random() < 0.9 else self.control())
                    self.expect(request, x, tag, "burst")
                except NnhalError as error:
                    self.run.judge(self, error)
                    error.__traceback__ = None
                    if burst.ended:
                        return
                except Interrupt as error:  # the next one is to be told that it has ended
                    error.__traceback__ = None
            if memory is None:
                self.watch(array, "burst")
        finally:
            if rng.random() < 0.7:
                burst.close()
            world.step("a burst goes")

    def in_memory(self) -> None:
        """A buffer of the driver's."""
        device = self.connected()
        if device.level < V1_3:
            return
        prepared, tag = self.prepare()
        with_ = getattr(prepared, "session", None)
        if with_ is not None and with_.peer.dead is not None:
            return
        device = self.kept[-1][2] if self.kept else device
        roles = [BufferRole(prepared, 0), BufferRole(prepared, 0, True)]
        source = device.allocate(BufferDesc(), roles[:1])
        x = self.x()
        source.copy_from(Memory.from_array(x))
        array = np.full(SIZE, np.nan, np.float32)
        request = prepared.request([None], [array], input_buffers={0: source})
        request.execute(prepared.run, UNLIMITED)
        self.expect(request, x, tag, "run on a buffer")
        copy = Memory.allocate(x.nbytes)
        source.copy_to(copy)
        if copy.bytes().tobytes() != x.tobytes():
            self.world.fail("a buffer holds other contents than it was given")
        source.close()

    def forget(self) -> None:
        """Let go of a prepared model."""
        if self.kept:
            prepared, *_ = self.kept.popleft()
            if self.world.random.random() < 0.5:
                prepared.close()

    def reconnect(self) -> None:
        """End the session, or let go of it."""
        device = self.device
        if device is not None and not self.opening:
            self.device = None
            self.own_end.add(id(device.session))
            self.run.closed.add(device.session)
            device.close()


_ACTS: list[Callable[[Client], None]] = [
    Client.query,
    Client.prepare,  # type: ignore[list-item]
    Client.execute,
    Client.in_background,
    Client.fenced,
    Client.in_burst,
    Client.in_memory,
    Client.forget,
    Client.collect,
    Client.reconnect,
]
_WEIGHTS = [3, 4, 20, 6, 6, 8, 3, 5, 2, 1]


class Run:
    """One simulation from its begin to its end."""

    def __init__(self, seed: int, number: int = 0, fine: float | None = None) -> None:
        rng_world = World(seed, first=1_000_000 * (1 + number % 2000))
        self.world = rng_world
        rng = self.world.random
        self.world.fine = rng.choice((0.0, 0.0, 0.03, 0.3)) if fine is None else fine
        self.world.lag = rng.choice((0.0, 0.001, 0.01))
        self.seed, self.value = seed, 0
        self.services: list[Service] = []
        self.clients: list[Client] = []
        self.closed: weakref.WeakSet[Session] = weakref.WeakSet()
        self.world.rates = {what: rate * rng.choice((0, 1, 1, 3)) for what, rate in RATES.items()}
        self.rare = {what: rate for what, (share, rate) in RARE.items() if rng.random() < share}

    @property
    def disturbed(self) -> bool:
        """Whether something is injected that may end a session by itself."""
        return bool(self.rare.keys() & {"no thread", "descriptors exhausted", "service killed"})

    @staticmethod
    def connections() -> list[Any]:
        """All that services have."""
        return [item for item in gc.get_objects() if type(item) is service_connection.Connection]  # others lie about it

    def count(self, what: str) -> None:
        self.world.counts[what] += 1

    def collect(self) -> None:
        """Garbage; what finalizers do is no step."""
        with self.world.quietly():
            gc.collect()

    def replacement(self, client: Client) -> Service:
        """A service in place of one that died."""
        for service in self.services:
            if service.shared and service.process.alive:
                return service
        service = Service(self, True, client.level)
        service.listen()
        return service

    def judge(self, client: Client, error: NnhalError) -> None:
        """An error that a client of a shared service may not see."""
        if not isinstance(error, NnhalError):
            self.world.fail(f"a client was given {error!r}, which has no name")
        if client.service is None or self.disturbed:
            return
        if isinstance(error, DeadObject) and "an interrupted " not in str(error):
            if "ended the burst" in str(error):
                return
            self.world.fail(f"nothing died, and a client was told {type(error).__name__}: {error}")

    # -------------------------------------------------------------------------------------------------------------- run

    def go(self) -> str:
        """Run it; why it is a violation, "" where it is none."""
        world = self.world
        with threads.inside(world):
            hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
            handler = _Errors(world)
            logging.getLogger("nnhal").addHandler(handler)
            try:
                self._begin()
                self._check(world.run(self._finished, 2000 * SECOND), "clients")
                if not world.failure:
                    world.rates = {}
                    world.lag = 0.0
                    self.rare = {}
                    self._settle()
            finally:
                logging.getLogger("nnhal").removeHandler(handler)
                level = logging.getLogger("nnhal").level
                logging.getLogger("nnhal").setLevel(logging.CRITICAL + 1)
                sys.unraisablehook = lambda _: None
                self._waiting = world.waiting() if world.failure else ""
                world.bury()
                self.services, self.clients = [], []
                gc.collect()
                logging.getLogger("nnhal").setLevel(level)
                sys.unraisablehook = hook
        return world.failure

    def _unraisable(self, what: Any) -> None:
        if not self.world.over and not isinstance(what.exc_value, Violation):
            self.world.fail(f"an exception in a finalizer: {what.exc_value!r} in {what.object!r}")

    def _begin(self) -> None:
        world, rng = self.world, self.world.random
        level = rng.choice((V1_3, V1_3, V1_3, V1_2, V1_0))
        shared = None
        if rng.random() < 0.7:
            shared = Service(self, True, level)
            shared.listen()
        for n in range(rng.choice((1, 1, 2, 3))):
            mine = shared if rng.random() < 0.7 else None
            self.clients.append(Client(self, f"client{n}", mine, level, rng.choice((1, 2, 4)), rng.randrange(5, 25)))
        world.kernel.spawn("chaos", self._chaos)

    def _finished(self) -> bool:
        return all(
            not client.process.alive or (not client.left and not self._threads(client)) for client in self.clients
        )

    @staticmethod
    def _threads(client: Client) -> list[Any]:
        return [task for task in client.process.tasks if task.strikes or "thread" in task.name.split("/")[1][:6]]

    def _chaos(self) -> None:
        """What comes from outside."""
        world, rng = self.world, self.world.random
        while not self._finished():
            busy = any(client.process.alive and client.left for client in self.clients)
            world.sleep(rng.randrange(1, 2_000_000) if busy else SECOND)
            if self._happens("interrupt"):
                tasks = [
                    task for client in self.clients for task in client.process.tasks if task.parked and task.strikes
                ]
                if tasks and world.strike(rng.choice(tasks)):
                    world.counts["interrupt"] += 1
            living = [client for client in self.clients if client.process.alive]
            if len(living) > 1 and self._happens("client killed"):
                world.counts["client killed"] += 1
                rng.choice(living).process.kill()
            if self._happens("service killed"):
                services = [service for service in self.services if service.process.alive]
                if services:
                    world.counts["service killed"] += 1
                    rng.choice(services).process.kill()
            if self._happens("descriptors exhausted"):
                process = rng.choice([p for p in world.processes if p is not world.kernel])
                world.counts["descriptors exhausted"] += 1
                process.exhausted = True
                world.sleep(rng.randrange(1, 3_000_000))
                process.exhausted = False
            world.rates["no thread"] = self.rare.get("no thread", 0.0)

    def _happens(self, what: str) -> bool:
        rate = self.rare.get(what, 0.0)
        return bool(rate) and self.world.random.random() < rate

    def _check(self, ended: bool, what: str) -> None:
        if not ended and not self.world.failure:
            self.world.fail(f"{what} wait for ever")

    # -------------------------------------------------------------------------------------------------------------- end

    def _settle(self) -> None:
        """After the last call: both sides come to their end, and nothing is left."""
        world = self.world
        for client in self.clients:
            client.look()
        ended = False

        def end() -> None:
            nonlocal ended
            world.sleep(QUIET)
            ended = True

        world.kernel.spawn("waits for the end", end)
        self._check(world.run(lambda: ended, 2 * QUIET), "the end")
        if world.failure:
            return
        for client in self.clients:
            client.watched.clear()
            client.device = None
        with world.quietly():
            gc.collect()
        ended = False
        world.kernel.spawn("waits again", end)
        self._check(world.run(lambda: ended, 2 * QUIET), "the end")
        with world.quietly():
            gc.collect()
        if not world.failure:
            self._left()

    def _left(self) -> None:
        """What is there though both sides have come to their end."""
        world = self.world
        for client in self.clients:
            if client.process.alive:
                self._nothing_of(client.process, [])
                for session in list(client.sessions):
                    world.fail(f"{client.process.name} has a session left: {gc.get_referrers(session)!r:.2000}")
        for service in self.services:
            name = service.process.name
            if service.process.alive and not service.shared:
                world.fail(f"{name} goes on after the end of its client")
            elif service.process.alive:
                self._nothing_of(service.process, [f"{name}/main"])
                if service.device.live:
                    world.fail(f"{name}: the driver still has {len(service.device.live)} models that nobody closed")
        if world.queues and not world.buried:
            world.fail(f"{len(world.queues)} sides of bursts are left")

    def _nothing_of(self, process: Process, threads: list[str]) -> None:
        """A process has no descriptors, and these threads alone."""
        left = {fd - process.base: file.kind for fd, file in process.files.items()}
        if left:
            self.world.fail(f"{process.name} has descriptors left: {left}")
        names = [task.name for task in process.tasks]
        if names != threads:
            self.world.fail(f"{process.name} has threads {names}, must have {threads}")

    def report(self, steps: int = 60) -> str:
        """What to print of a violation."""
        world = self.world
        waiting = f"\n\nWho waited where:\n{self._waiting}" if "for ever" in world.failure else ""
        seen = f"\nSeen at:\n{world.where}"
        return f"seed {self.seed}, policy {world.policy}: {world.failure}\n\n{world.history(steps)}{waiting}{seen}"
