"""Interrupts at random points of every way to execute on a driver in its own process; every result is looked at.

    python -m tests.nightly.interrupted [--count 10000] [--seed 6]

The last line is JSON. Exit status 1, with a traceback, where a lane, a descriptor or an object is lost, or a result wrong.
"""

import argparse
import gc
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nnhal
from nnhal.base.codes import OperandType, OperationType
from nnhal.hal.wrappers import Limited
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import State
from tests.interrupts import Interrupts
from tests.ipc.support import LIMIT, PROBE, inside, wait_until
from tests.models import counted_loop, doubling, make_model

SIZE = 16
LARGE = 1 << 14  # elements that a loop keeps in memory of the driver's
EVERY = 500  # strikes between looks at what is held
LONGEST = 0.003  # seconds until a strike: some executions


def running_sum() -> nnhal.Model:
    """y = s + x, and that is the next s."""
    b = ModelBuilder("sum")
    kind = OperandType.TENSOR_FLOAT32
    x, s, y, t = (b.operand(kind, (SIZE,), name=name) for name in "xsyt")
    none = b.constant(OperandType.INT32, 0)
    b.operation("ADD", [s, x, none], [y])
    b.operation("ADD", [s, x, none], [t])
    return b.finish([x, s], [y, t], states=[State(1, 1, np.zeros(SIZE, np.float32))])


def doubled_by_a_loop() -> nnhal.Model:
    """x doubled three times, by a loop that the driver does not take: the runtime does, with x in the driver's memory."""
    return make_model(lambda b, x: counted_loop(b, x, 3, lambda s, y, _: s.add(y, y), (LARGE,)), (LARGE,))


def _no_loops(model: nnhal.Model, n: int) -> bool:
    return model.main.operations[n].type != OperationType.WHILE


class Summing:
    """A stream whose every step adds; a step that was interrupted either happened or did not."""

    def __init__(self, compiled: nnhal.Compiled) -> None:
        self._stream, self._may_be = compiled.stream(), {0.0}

    def __call__(self, value: float) -> None:
        before = self._may_be
        self._may_be = before | {was + value for was in before}
        y = self._stream(np.full(SIZE, value, np.float32))
        now = float(y[0])
        assert (y == now).all() and now - value in before, f"{now} is not {value} more than one of {before}"
        self._may_be = {now}

    def again(self) -> None:
        """From the start, before numbers are too large to be told apart."""
        self._stream.reset()
        self._may_be = {0.0}


class Ways:
    """Every way to execute: each takes a number and says by an AssertionError that the result is not of it."""

    def __init__(self, device: ReconnectingDevice) -> None:
        self._compiled = nnhal.compile(doubling(SIZE), devices=device, fallback="forbid")
        self._sums = nnhal.compile(running_sum(), devices=device, fallback="forbid")
        self._burst, self._stream = self._compiled.burst(), Summing(self._sums)
        self._loop = nnhal.compile(doubled_by_a_loop(), devices=Limited(device, _no_loops), fallback="forbid")
        self._memory = nnhal.Memory.allocate(8 * SIZE)
        self.all: dict[str, Callable[[int], None]] = {
            "plain": lambda n: self._check(n, self._compiled),
            "into a pool": self._into_pool,
            "deadline": lambda n: self._check(n, lambda x: self._compiled.run(x, deadline=LIMIT)[0]),
            "burst": lambda n: self._check(n, self._burst),
            "fresh burst": self._fresh_burst,
            "fenced": lambda n: self._check(n, lambda x: self._compiled.execute_fenced(x).result()),
            "stream": lambda n: self._stream(n % 5 + 1),
            "loop": self._looped,
        }

    def _check(self, number: int, call: Callable[[np.ndarray], Any]) -> None:
        got = call(np.full(SIZE, number, np.float32))
        assert (got == 2 * number).all(), f"{got} must be {2 * number}"

    def _looped(self, number: int) -> None:
        got = self._loop(np.full(LARGE, number, np.float32))
        assert (got == 8 * number).all(), f"{got} must be {8 * number}"

    def _into_pool(self, number: int) -> None:
        x, y = (self._memory.view(at, 4 * SIZE, np.float32, (SIZE,)) for at in (0, 4 * SIZE))
        x[:] = number
        self._compiled(x, out=[y])
        assert (y == 2 * number).all(), f"{y} must be {2 * number}"

    def _fresh_burst(self, number: int) -> None:
        with self._compiled.burst() as burst:
            self._check(number, burst)

    def again(self) -> None:
        """The stream from its start."""
        self._stream.again()


def held(device: ReconnectingDevice) -> dict[str, int]:
    """What must not grow: descriptors here and there, objects and threads in the driver."""
    gc.collect()
    counts = inside(device)
    return {
        "descriptors here": len(os.listdir("/proc/self/fd")),
        "descriptors there": len(os.listdir(f"/proc/{device.pid}/fd")),
        **{what: counts.get(what, 0) for what in ("inside", "bursts", "buffers", "executions", "memories", "threads")},
    }


SLACK = {"descriptors here": 4, "descriptors there": 4, "memories": 40, "threads": 4}  # a lane more, frames kept


def storm(count: int, seed: int, progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """So many strikes; what was seen. Raises AssertionError where something was wrong."""
    dice, struck = random.Random(seed), Counter[str]()
    device = ReconnectingDevice("probe", lambda: start(PROBE))
    began, executed = time.monotonic(), 0
    try:
        ways = Ways(device)
        for n in range(40):
            for way in ways.all.values():
                way(n)
        base, pid = held(device), device.pid
        session = device.remote().session
        with Interrupts() as interrupts:
            for strike in range(count):
                name, way = dice.choice(list(ways.all.items()))
                done = [0]

                def work(way: Callable[[int], None] = way, strike: int = strike, done: list[int] = done) -> None:
                    while True:
                        way(3 * strike + done[0] % 1000)
                        done[0] += 1

                assert interrupts.during(work, dice.uniform(0, LONGEST))
                way(strike % 1000)
                struck[name] += 1
                executed += done[0] + 1
                progress()
                if strike % EVERY == EVERY - 1 or strike == count - 1:
                    ways.again()
                    _nothing_lost(device, base)
        assert device.restarts == 0 and device.pid == pid and session.peer.dead is None
        return {
            "ok": True,
            "seed": seed,
            "strikes": dict(struck),
            "lost in finalizers": interrupts.lost,
            "executions": executed,
            "seconds": round(time.monotonic() - began, 1),
            "held": {"before": base, "after": held(device)},
        }
    finally:
        device.close()


def _nothing_lost(device: ReconnectingDevice, base: dict[str, int]) -> None:
    session = device.remote().session
    wait_until(
        lambda: not session.channels.abandoned and not session.notifications.late, "the end of all abandoned calls"
    )
    assert not any(channel.in_doubt for channel in session.channels.free) and len(session.channels.opened) <= 4
    for what, before in base.items():
        most = before + SLACK.get(what, 0)
        wait_until(lambda what=what, most=most: held(device)[what] <= most, f"{what}: {held(device)}, must be {base}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=10_000, help="of interrupts")
    parser.add_argument("--seed", type=int, default=6)
    given = parser.parse_args()
    print(json.dumps(storm(given.count, given.seed)))
    return 0


if __name__ == "__main__":
    assert Path("tests").is_dir(), "run it from the root of the project"
    sys.exit(main())
