"""Bursts of compiled models: the results of plain calls, one execution at a time, the reason where a call is plain."""

import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import ContractBroken, DriverFailed, OperationFailed
from nnhal.hal.burst import Burst
from nnhal.hal.request import Control, Request
from nnhal.hal.wrappers import WithHalLevel
from nnhal.runtime import discovery
from tests.ipc.support import PROBE
from tests.runtime.devices import Fake, failing, for_nothing
from tests.runtime.graphs import counter, sums
from tests.waiting import LIMIT, until

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
WAYS = pytest.mark.parametrize("isolation", ["none", "process"])


@WAYS
@pytest.mark.parametrize("devices", ["reference", "litert", "mixed"])
def test_a_burst_computes_what_calls_compute(isolation, devices):
    several = [Fake(takes=lambda n: n == 1), "reference"]
    compiled = nnhal.compile(sums(3), devices=several if devices == "mixed" else devices, isolation=isolation)
    with compiled.burst() as run:
        assert all(way.endswith(": burst") for way in run.ways) and len(run.ways) == len(compiled._caller.plan.steps)
        for n in range(20):
            assert (run(X + n, B) == compiled(X + n, B)).all()
        assert list(run({"x": X, "b": B})) == ["y2" if "y2" in run({"x": X, "b": B}) else "y"]
        out = np.empty_like(X)
        assert run(X, B, out=out) is out and (out == X + 3).all()
    assert (compiled(X, B) == X + 3).all()


def test_a_closed_burst_and_a_burst_of_a_closed_model_are_refused():
    compiled = nnhal.compile(sums(), devices="reference")
    run, other = compiled.burst(), compiled.burst()
    run.close()
    run.close()
    with pytest.raises(nnhal.Closed, match="the burst was closed; open another"):
        run(X, B)
    assert (other(X, B) == X + 1).all()
    compiled.close()
    with pytest.raises(nnhal.Closed, match="the compiled model was closed"):
        other(X, B)
    with pytest.raises(nnhal.Closed):
        compiled.burst()
    other.close()


@WAYS
@pytest.mark.parametrize("closes", ["burst", "model"])
def test_closing_waits_for_a_call_of_a_burst_that_is_in_flight(isolation, closes):
    compiled = nnhal.compile(sums(), devices=PROBE, isolation=isolation, driver_options={"probe": {"waits": 1}})
    burst, x = compiled.burst(), nnhal.Memory.allocate(16).view(0, 16, np.float32, (4,))
    results: list[list[float]] = []
    x[:] = -1  # the driver waits until this is no longer negative
    call = threading.Thread(target=lambda: results.append(burst(x, B).tolist()), daemon=True)
    call.start()
    until(lambda: burst._caller._runner._turn.taken, "the call is in flight")
    close = threading.Thread(target=burst.close if closes == "burst" else compiled.close, daemon=True)
    close.start()
    until(lambda: burst._caller.closed, "the close has begun")
    close.join(0.05)
    assert close.is_alive() and not results
    x[:] = X
    call.join(LIMIT)
    close.join(LIMIT)
    assert results == [[1, 2, 3, 4]] and not close.is_alive()
    with pytest.raises(nnhal.Closed, match=f"the {'burst' if closes == 'burst' else 'compiled model'} was closed"):
        burst(x, B)
    compiled.close()


def test_a_model_is_closed_completely_while_another_thread_opens_a_burst_of_it():
    compiled = nnhal.compile(sums(), devices=["reference"])
    bursts = [compiled.burst() for _ in range(3)]
    compiled._bursts.discard(bursts[2])
    resumed = 0

    def other_thread(frame, event, _):
        """Open a burst while this thread looks at the bursts."""
        nonlocal resumed
        if event == "call" and frame.f_code is weakref.WeakSet.__iter__.__code__:
            resumed += 1
            if resumed == 2:
                compiled._bursts.add(bursts[2])

    sys.setprofile(other_thread)
    try:
        compiled.close()
    finally:
        sys.setprofile(None)
    for burst in bursts:
        with pytest.raises(nnhal.Closed, match="the compiled model was closed"):
            burst(X, B)
    assert compiled._caller.use._give_back is None


def test_a_driver_of_a_level_without_bursts_gets_plain_calls():
    compiled = nnhal.compile(sums(), devices=[WithHalLevel(discovery.cpu(), nnhal.Level.parse("1.1"))])
    with compiled.burst() as run:
        assert "plain calls: configureExecutionBurst needs level 1.2" in run.ways[0]
        assert (run(X, B) == X + 1).all()


def test_a_step_that_fails_in_a_burst_falls_back_like_any_other():
    device = Fake()
    compiled = nnhal.compile(sums(), devices=[device], fallback="allow")
    with compiled.burst() as run:
        device.prepared[0].before = failing(OperationFailed("broken"))
        assert (run(X, B) == X + 1).all()


def test_states_start_at_their_initial_value_in_every_execution():
    compiled = nnhal.compile(counter(), devices="reference")
    with compiled.burst() as run:
        assert [run(B)[0] for _ in range(2)] == [2, 2]


class Series(Burst):
    """Runs in process; notes what it is told."""

    def __init__(self, run: Any, log: list[str]) -> None:
        self._run, self.log, self.plain = run, log, {}

    def run(self, request: Request, control: Control) -> Any:
        if control.deadline is not None:
            self.plain = {**self.plain, "deadline": self.plain.get("deadline", 0) + 1}
        return self._run(request, control)

    def free_memory(self, memory: nnhal.Memory) -> None:
        self.log.append(f"freed {memory.size}")

    def close(self) -> None:
        self.log.append("closed")


def in_series(log: list[str], monkeypatch: pytest.MonkeyPatch, second: Any = None) -> nnhal.Compiled:
    """x + 2 b over two devices, each with bursts of its own."""
    for_nothing(monkeypatch)
    compiled = nnhal.compile(sums(2), devices=[Fake(takes=lambda n: n == 0), "reference"])
    for number, line in enumerate(compiled._caller.lines):
        make = second if number and second is not None else lambda run=line.prepared.run: Series(run, log)
        monkeypatch.setattr(line.prepared, "burst", make)
    return compiled


def test_a_burst_has_one_of_each_driver_and_ends_them_all(monkeypatch):
    log: list[str] = []
    with in_series(log, monkeypatch).burst() as run:
        assert run.ways == ("partition 0 on fake: burst", "partition 1 on reference: burst")
        assert (run(X, B) == X + 2).all()
        run.free_memory(nnhal.Memory.allocate(77))
        assert log == ["freed 77", "freed 77"]
    assert log[2:] == ["closed", "closed"]


@pytest.mark.parametrize(
    "error", [DriverFailed("mine"), ContractBroken("mine"), nnhal.DeadObject("mine"), KeyboardInterrupt()]
)
def test_where_one_cannot_be_opened_those_before_are_closed(error, monkeypatch):
    log: list[str] = []
    compiled = in_series(log, monkeypatch, failing(error))
    with pytest.raises(type(error)):
        compiled.burst()
    assert log == ["closed"]
    assert (compiled(X, B) == X + 2).all()


def test_a_driver_that_has_none_gets_plain_calls_beside_one_that_has(monkeypatch):
    log: list[str] = []
    with in_series(log, monkeypatch, failing(OperationFailed("no bursts here"))).burst() as run:
        assert run.ways[0] == "partition 0 on fake: burst"
        assert run.ways[1].startswith("partition 1 on reference: plain calls: ") and "no bursts here" in run.ways[1]
        assert (run(X, B) == X + 2).all()
    assert log == ["closed"]


def test_only_plain_calls_of_this_execution_are_noted(monkeypatch):
    with in_series([], monkeypatch).burst() as run:
        for limit, notes in ((LIMIT, ["plain call: deadline"] * 2), (None, []), (LIMIT, ["plain call: deadline"] * 2)):
            assert run.run(X, B, measure=True, deadline=limit)[1].notes == notes
        assert run.run(X, B, deadline=LIMIT)[1] is None


def test_a_burst_that_refused_a_second_execution_goes_on(monkeypatch):
    device, gate, entered = Fake(), threading.Event(), threading.Event()
    compiled = nnhal.compile(sums(), devices=[device])
    with compiled.burst() as run:
        device.prepared[0].before = lambda: (entered.set(), gate.wait(LIMIT))
        thread = threading.Thread(target=run, args=(X, B))
        thread.start()
        assert entered.wait(LIMIT)
        for _ in range(2):
            with pytest.raises(nnhal.BadState, match=r"^burst: an execution is in flight, must be one at a time"):
                run(X, B)
        gate.set()
        thread.join(LIMIT)
        assert (run(X, B) == X + 1).all()
