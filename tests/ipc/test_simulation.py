"""The simulated IPC boundary (`tests.nightly.simulate`): short runs, faults that it must find, models held to the real."""

import os
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.ipc.transport import _native
from tests.nightly.simulation import kernel, threads
from tests.nightly.simulation.mutants import MUTANTS
from tests.nightly.simulation.native import native
from tests.nightly.simulation.world import Process, World

SEEDS = 1, 1000, 2000


def alone_in_a_process(program: str, seconds: float = 200) -> str:
    """What a program prints: threads and garbage of other tests would get into a world that is not theirs."""
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def simulated(seed: int) -> None:
    """A short run breaks no invariant, and something happens in it."""
    print_all = "print(repr(report)); print(counts['sessions'], counts['calls'])"
    run = f"from tests.nightly.simulate import simulate; counts, report = simulate(10_000, {seed})"
    report, happened = alone_in_a_process(f"{run}; {print_all}").splitlines()
    assert report == "''", report
    assert all(map(int, happened.split()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_runs_break_no_invariant(seed: int) -> None:
    simulated(seed)


@pytest.mark.nightly
def test_runs_of_a_new_seed_break_no_invariant() -> None:
    simulated(random.SystemRandom().randrange(10**9))


AGAIN = """
from tests.nightly.simulation.stage import staged, stepped
from tests.nightly.simulation.workload import Run
with staged(), stepped():
    for number in range(3):
        run = Run(7, number)
        assert not run.go()
        print(run.world.steps, run.world.digest)
"""


def test_a_seed_is_one_run_however_often_it_is_made() -> None:
    digests = alone_in_a_process(AGAIN).splitlines()
    assert len(digests) == 3 and len(set(digests)) == 1


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_the_border_is_found(name: str) -> None:
    imports = "from tests.nightly.simulate import simulate; from tests.nightly.simulation.mutants import MUTANTS"
    found = f"print(bool(simulate(10_000_000, 1, changes=MUTANTS[{name!r}])[1]))"
    assert alone_in_a_process(f"{imports}; {found}", 1200) == "True\n"


# ------------------------------------------------------------------------------------------- the models and the C


@contextmanager
def alone() -> Iterator[Process]:
    """A process of a world in which nothing else runs."""
    world = World(0)
    with threads.inside(world):
        process = Process(world, "alone")
        try:
            yield process
        finally:
            world.over = True


class Real:
    """Both ends of a lane, and of a burst."""

    native: Any = _native

    def __init__(self) -> None:
        self.sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lanes = [_native.Lane(sock.fileno()) for sock in self.sockets]
        fd = _native.create_queues(16, 16)
        self.queues = [_native.Queues(fd, side) for side in (_native.CLIENT, _native.SERVICE)]
        os.close(fd)
        for waiter in (*self.lanes, *self.queues):
            waiter.spin = False

    def descriptor(self) -> int:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def end(self) -> None:
        for sock in self.sockets:
            sock.close()


class Simulated:
    """The same of the models'."""

    native: Any = native

    def __init__(self, process: Process) -> None:
        world = process.world
        one, other = kernel.pair(process, process)
        self.sockets = [kernel.Socket(fileno=kernel.given(process, end)) for end in (one, other)]
        self.lanes = [native.Lane(sock.fileno()) for sock in self.sockets]
        fd = native.create_queues(16, 16)
        self.queues = [native.Queues(fd, side) for side in (_native.CLIENT, _native.SERVICE)]
        kernel.close(fd)
        assert not world.failure

    def descriptor(self) -> int:
        return kernel.eventfd()

    def close(self, fd: int) -> None:
        kernel.close(fd)

    def end(self) -> None:
        for sock in self.sockets:
            sock.close()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gave, in a form that can be compared."""
    try:
        got = call()
    except (RuntimeError, ValueError) as error:
        return type(error)
    return (got[0], len(got[1])) if isinstance(got, tuple) else got


def packet(elements: int, tag: int) -> bytes:
    return struct.pack("<6I", 0, elements, *[tag] * 4) + bytes([tag]) * 24 * (elements - 1)


def on_a_lane(both: Any, side: int, what: str, size: int, fds: int) -> Any:
    """One operation."""
    lane, sock = both.lanes[side], both.sockets[side]
    data = b"x" * size
    if what == "shut":
        with_ = outcome(lambda: sock.shutdown(socket.SHUT_WR) if sock.fileno() >= 0 else None)
        return with_
    if what == "receive":
        got = lane.receive(0)
        seen = outcome(lambda: got)
        return seen, lane.asked, lane.awaited
    own = [both.descriptor() for _ in range(min(fds, 3))]
    given_ = (own * 65)[:fds] if own else []
    try:
        if what == "call":
            seen = outcome(lambda: lane.call(data, given_, 0))
        else:
            seen = outcome(lambda: getattr(lane, what)(data, given_, 0))
    finally:
        for fd in own:
            both.close(fd)
    return seen, lane.asked, lane.awaited


LANE = st.tuples(
    st.integers(0, 1),
    st.sampled_from(["send", "ask", "ask", "answer", "answer", "receive", "receive", "receive", "call", "shut"]),
    st.sampled_from([0, 1, 8, 69_632, 69_633]),
    st.sampled_from([0, 0, 1, 3, 64, 65]),
)


@settings(max_examples=150)
@given(st.lists(LANE, max_size=12))
def test_a_simulated_lane_does_what_the_native_one_does(operations: list[tuple[int, str, int, int]]) -> None:
    real = Real()
    with alone() as process:
        model = Simulated(process)
        for operation in operations:
            assert on_a_lane(model, *operation) == on_a_lane(real, *operation), operation
        model.end()
        assert not process.files and not process.world.failure
    real.end()


QUEUE = st.tuples(
    st.integers(0, 1),
    st.sampled_from(["send", "send", "receive", "receive", "exchange", "close", "hold", "drop"]),
    st.integers(0, 17),
    st.integers(0, 2),
)


def on_queues(both: Any, side: int, what: str, elements: int, tag: int) -> Any:
    queues = both.queues[side]
    if what in ("send", "exchange"):
        data = packet(elements, tag) if elements else b"short"
        return outcome(lambda: queues.send(data) if what == "send" else queues.exchange(data, 0))
    return outcome(lambda: queues.receive(0) if what == "receive" else getattr(queues, what)())


@settings(max_examples=150)
@given(st.lists(QUEUE, max_size=20))
def test_simulated_queues_do_what_the_native_ones_do(operations: list[tuple[int, str, int, int]]) -> None:
    real = Real()
    with alone() as process:
        model = Simulated(process)
        task = process.spawn("holder", lambda: None)
        process.world.quiet, process.world.current = True, task
        for operation in operations:
            assert on_queues(model, *operation) == on_queues(real, *operation), operation
        process.world.current = None
        model.end()
    for queues in real.queues:
        queues.drop()
    real.end()
