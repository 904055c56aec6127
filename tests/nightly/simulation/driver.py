"""A driver for simulations: it computes f(x) = 2 x + tag, and misbehaves as the world has it."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.errors import NnhalError, OperationFailed
from nnhal.base.levels import Level
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.hal.burst import BurstExecutor
from nnhal.hal.device import Capabilities, Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model
from tests.nightly.simulation import threads
from tests.nightly.simulation.world import SECOND, World

LONGEST_HANG = SECOND // 2 * 3  # of a driver that looks at nothing: less than a client waits after an interrupt


def f(x: Array, tag: float) -> Array:
    """What every model computes."""
    return (2 * x + np.float32(tag)).astype(np.float32)


class SimulatedDevice(Device):
    """One in each service. live: what it prepared and was not told to close yet."""

    def __init__(self, world: World, level: Level) -> None:
        self.name, self.level, self.version = "simulated", level, "1"
        self.world = world
        self.live: list[SimulatedPrepared] = []

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(0.5)

    def supports(self, model: Model) -> Sequence[Verdict]:
        self.world.step("supports()")
        return [Verdict(True, "")] * len(model.main.operations)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        world = self.world
        world.step("prepare()")
        if world.chance("slow preparation"):
            world.sleep(world.random.randrange(SECOND))
        misbehave(world, None)
        return SimulatedPrepared(self, hints.options)


def misbehave(world: World, control: Control | None, bounded: bool = False) -> None:
    """Raise, hang or take its time, now and then. bounded: the caller does not wait without limit."""
    if world.chance("driver raises"):
        kinds: list[BaseException] = [OperationFailed("driver: failed"), ValueError("driver: bad"), MemoryError()]
        raise world.random.choice(kinds)
    if world.chance("driver hangs"):
        end = world.now + world.random.randrange(LONGEST_HANG)
        looks = control is not None and world.random.random() < 0.7
        while world.now < end:
            world.sleep(world.random.randrange(1, 50_000_000))
            if looks and control is not None:
                control.check()
    if world.chance("driver is slow"):
        world.sleep(world.random.randrange(30_000_000))
    if control is not None and bounded and world.chance("driver waits for the end"):
        end = world.now + (3 if world.rates.get("no thread") else 100) * SECOND  # without a thread nobody tells it
        while world.now < end:
            world.sleep(5_000_000)
            control.check()


class SimulatedPrepared(Prepared):
    """Computes. Whatever it is told must be in order: nothing after its close, each burst that opens closes once."""

    def __init__(self, device: SimulatedDevice, options: Any) -> None:
        self.device, self.world = device, device.world
        self.tag = float(options["tag"])
        self.slots = bool(options.get("slots"))
        self.inside = self.bursts = 0
        self.closed = False
        device.live.append(self)
        self.world.note(f"driver prepared model {self.tag}")

    def run(self, request: Request, control: Control) -> Timing | None:
        world = self.world
        self._alive("run")
        self.inside += 1
        try:
            world.step("run()")
            given = request.inputs[0]
            assert given is not None
            x = np.array(given)
            misbehave(world, control, bool(x[-1]))
            if world.random.random() < 0.5:
                control.check()
            y = f(x, self.tag)
            late = world.chance("driver writes late")
            request.write(0, y)
            if late:
                self._write_late(request, y)
            if world.chance("driver answers late"):
                world.sleep(world.random.randrange(10_000_000))
            return Timing(1000, 2000) if control.measure else None
        finally:
            self.inside -= 1

    def _write_late(self, request: Request, y: Array) -> None:
        """From a thread of its own, which must be refused; what it would write is wrong, so that it is seen."""
        world = self.world
        wait = world.random.randrange(20_000_000)

        def work() -> None:
            world.sleep(wait)
            try:
                request.write(0, y + 1000)
            except NnhalError:
                return
            world.fail("a write after the end of an execution, or a second one, was taken")

        with contextlib.suppress(RuntimeError):
            threads.Thread(target=work, name="late").start()

    def _alive(self, what: str) -> None:
        if self.closed:
            self.world.fail(f"driver: {what} after close()")

    def burst_executor(self) -> BurstExecutor | None:
        return SimulatedExecutor(self) if self.slots else None

    def burst_opened(self) -> None:
        self._alive("burst_opened()")
        self.bursts += 1

    def burst_closed(self) -> None:
        self._alive("burst_closed()")
        self.bursts -= 1
        if self.bursts < 0:
            self.world.fail("driver: burst_closed() comes twice")

    def close(self) -> None:
        if self.closed:
            self.world.fail("driver: close() comes twice")
        if self.inside or self.bursts:
            self.world.fail(f"driver: close() while {self.inside} executions and {self.bursts} bursts are open")
        self.closed = True
        self.world.note(f"driver closed model {self.tag}")
        self.device.live.remove(self)
        if self.world.chance("slow close"):
            self.world.sleep(self.world.random.randrange(100_000_000))


class SimulatedExecutor(BurstExecutor):
    """Knows memories by slots, and that each is added before its use and removed once."""

    def __init__(self, prepared: SimulatedPrepared) -> None:
        self._prepared = prepared
        self._known: dict[int, Memory] = {}

    def add(self, slot: int, memory: Memory) -> None:
        if slot in self._known:
            self._prepared.world.fail(f"driver: slot {slot} is added twice")
        self._known[slot] = memory

    def remove(self, slot: int) -> None:
        if self._known.pop(slot, None) is None:
            self._prepared.world.fail(f"driver: slot {slot} is removed and was not there")

    def execute(self, request: Request, slots: Sequence[int], control: Control) -> Timing | None:
        if any(slot not in self._known for slot in slots):
            self._prepared.world.fail(f"driver: of slots {list(slots)} some are not known")
        return self._prepared.run(request, control)
