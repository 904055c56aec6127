"""The suites stress and crash: the reference passes a sample, and faults are found where they must be."""

import ctypes
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from nnhal.base.codes import OperandType
from nnhal.conformance.suites import crash, stress
from nnhal.conformance.suites.crash import processes
from nnhal.conformance.suites.run import run_suite
from nnhal.conformance.suites.stress import SUITE, drift
from nnhal.conformance.suites.stress.graphs import FLOAT, TRIES, supported
from nnhal.conformance.suites.stress.growth import BLOCKS, grows
from nnhal.conformance.suites.suite import (
    Case,
    CaseFailed,
    CaseOutcome,
    Context,
    NotApplicable,
    NotSupported,
    Suite,
    SuiteRun,
)
from nnhal.hal.device import Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model
from nnhal.ops.schema import Bound
from nnhal.runtime import discovery
from tests.suites.faulty.application import DRIVER
from tests.suites.faulty.driver import VARIABLE, graphs
from tests.suites.faulty.driver.faults import made
from tests.suites.faulty.driver.healthy import Engine, Healthy
from tests.waiting import Clock

SMALL = SuiteRun(scale=0.05)
_libc = ctypes.CDLL(None)


def outcomes(
    suite: str, fault: str, pattern: str, monkeypatch: pytest.MonkeyPatch, **more: object
) -> list[CaseOutcome]:
    """Run cases on a driver with a fault, in processes of the suite."""
    monkeypatch.setenv(VARIABLE, fault)
    run = SuiteRun(drivers=(str(DRIVER),), scale=0.05, pattern=pattern, **more)  # type: ignore[arg-type]
    return [outcome for progress in run_suite(suite, run, 1) for outcome in progress.outcomes]


def ran(device: Device, name: str, suite: Suite = SUITE) -> object:
    """Run one case in this process."""
    (case,) = (each for each in suite.cases(SMALL) if each.name == name)
    return suite.run(case, Context(device, SMALL, lambda _: None))


# --------------------------------------------------------------------------------------------------------------- stress


def test_the_reference_passes_a_sample() -> None:
    pattern = "threads/(execute|mixed)/float32|mapped/quant8|threads/compile/single|growth/deadline|slow-down"
    run = SuiteRun(device="reference", scale=0.05, pattern=pattern)
    found = [outcome for progress in run_suite("stress", run, 1) for outcome in progress.outcomes]
    assert len(found) == 6 and {outcome.verdict for outcome in found} == {"passed"}, found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolate", [False, True])
def test_4_kib_that_an_execution_keeps_are_found(isolate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = outcomes("stress", "leaks-little", "growth/run/float32", monkeypatch, isolate=isolate)
    assert found.verdict == "failed" and "KiB of resident memory" in found.reason, found
    assert "each execution (" in found.reason


def test_a_descriptor_that_an_execution_keeps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = outcomes("stress", "leaks-descriptors", "growth/run/float32", monkeypatch)
    assert found.verdict == "failed" and "1 descriptors" in found.reason, found


def test_a_descriptor_that_each_thread_keeps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = outcomes("stress", "leaks-per-thread", "growth/thread/float32", monkeypatch)
    assert found.verdict == "failed" and "each thread that executes" in found.reason, found
    assert "1 descriptors" in found.reason


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["leaks-queries", "leaks-buffers"])
def test_memory_that_a_query_or_an_allocation_keeps_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = outcomes("stress", fault, "growth/prepare/float32", monkeypatch)
    assert found.verdict == "failed" and "KiB of resident memory" in found.reason, found


def test_the_healthy_driver_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcomes("stress", "", "growth/(run|burst|prepare|thread)/float32|endurance", monkeypatch)
    assert [outcome.verdict for outcome in found] == ["passed"] * 5, found


def test_a_device_without_quantised_operations_does_not_support_their_cases() -> None:
    class OnlyFloat(Healthy):
        def judged(self, a: Bound | None) -> Verdict:
            return super().judged(a) if a is not None and a.T == OperandType.TENSOR_FLOAT32 else Verdict(False)

    with pytest.raises(NotSupported):
        ran(OnlyFloat(), "drift/quant8")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("most", [2, TRIES])
def test_a_graph_that_a_device_rejects_whole_is_drawn_again(most: int) -> None:
    """Although it supports each of its operations alone."""

    class Picky(Healthy):
        def __init__(self) -> None:
            super().__init__()
            self.rejected: list[object] = []

        def supports(self, model: Model) -> Any:
            operations = model.main.operations
            if len(operations) > 1 and operations not in self.rejected and len(self.rejected) < most:
                self.rejected.append(operations)
            return [Verdict(False)] * len(operations) if operations in self.rejected else super().supports(model)

    device = Picky()
    if most == TRIES:
        with pytest.raises(NotSupported, match="no graph of type float32 is supported whole, of 16"):
            supported(device, FLOAT, [3], 8, lambda _: None)
    else:
        model = supported(device, FLOAT, [3], 8, lambda _: None).model
        assert len(model.main.operations) > 1 and model.main.operations not in device.rejected
    assert len(device.rejected) == most


@pytest.mark.parametrize("name", ["threads/execute/float32", "threads/mixed/float32"])
def test_an_arena_that_threads_share_is_found(name: str) -> None:
    with pytest.raises(CaseFailed, match=r"results with 8 threads are wrong.*as when it ran alone"):
        ran(made("arena-shared"), name)


def test_constants_that_models_share_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "GROUP", 9)
    monkeypatch.setattr(stress, "KINDS", (FLOAT,))
    with pytest.raises(CaseFailed, match="open models"):
        ran(made("shared-weights"), "models/000")


def test_constants_known_by_their_first_bytes_are_found() -> None:
    with pytest.raises(CaseFailed, match="of models whose constants differ in one element are wrong"):
        ran(made("constants-by-head"), "constants/float32")


def test_constants_read_at_a_boundary_of_the_mapped_file_are_found() -> None:
    with pytest.raises(CaseFailed, match="models in mapped memory"):
        ran(made("constants-aligned"), "mapped/float32")


def drifting(clock: Clock, growth: int) -> Healthy:
    """A driver that works a nanosecond longer in each execution, or `growth` of them."""

    class Drift(Engine):
        runs = 0

        def run(self, request: Request, control: Control) -> Timing | None:
            self.runs += 1
            clock.advance((1000 + growth * self.runs) / 1e9)
            return super().run(request, control)

    device = Healthy()
    device.engine = Drift
    return device


@pytest.mark.parametrize("growth", [0, 1, 10])  # 1: the first of the series alone shows a rise that is too small
def test_latency_that_drifts_is_found_by_a_clock_that_counts_work(growth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(drift, "_now", clock.monotonic_ns)
    monkeypatch.setattr(drift, "waited", lambda: None)  # the clock does not depend on the machine's load
    with pytest.raises(CaseFailed, match="the least latency rose by") if growth else nullcontext():
        ran(drifting(clock, growth), "drift/float32")


def test_latency_on_a_busy_machine_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(drift, "waited", lambda: (clock.monotonic_ns(), 2 * clock.monotonic_ns()))
    with pytest.raises(NotApplicable, match="the machine is busy: threads waited for a core 67% of the time"):
        ran(drifting(clock, 0), "drift/float32")


class Tail(Engine):
    """Every 40th execution takes 50 ms, others 0.1 ms, by a clock."""

    clock: Clock
    runs = 0

    def run(self, request: Request, control: Control) -> Timing | None:
        self.runs += 1
        self.clock.advance(0.05 if self.runs % 40 == 0 else 0.0001)
        return super().run(request, control)


def test_a_long_tail_of_latency_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, device = Clock(), Healthy()
    monkeypatch.setattr(drift, "_now", clock.monotonic_ns)
    monkeypatch.setattr(drift, "waited", lambda: None)
    device.engine = type("Tailing", (Tail,), {"clock": clock})
    with pytest.raises(CaseFailed, match=r"2\.\d% of \d+ executions take more than 10 times the median"):
        ran(device, "drift/float32")


def test_slow_executions_that_pauses_of_the_machine_explain_are_no_tail() -> None:
    usual, paused = 100_000, 50_000_000
    several = [[paused if n % 40 == 0 else usual for n in range(400)] for _ in range(3)]
    assert drift.tail(several, [20_000] * 1200) == 0.025
    assert drift.tail(several, [paused if n % 100 == 0 else 20_000 for n in range(1200)]) == 0.0
    assert drift.tail([*several[:2], [usual] * 400], [20_000] * 1200) == 0.0
    assert drift.tail([each[:100] for each in several], [20_000] * 300) == 0.0  # three of each hundred


@pytest.mark.parametrize("growth", [0, 20])
def test_compilations_that_become_slower_are_found(growth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(drift, "_now", clock.monotonic_ns)
    monkeypatch.setattr(drift, "waited", lambda: None)

    class Slower(Healthy):
        times = 0

        def prepare(self, model: Model, hints: Hints) -> Prepared:
            self.times += 1
            clock.advance((1000 + growth * self.times) / 1e9)
            return super().prepare(model, hints)

    with pytest.raises(CaseFailed, match="compilations, must not rise") if growth else nullcontext():
        ran(Slower(), "drift/compile")


def test_a_result_that_is_wrong_from_a_number_of_executions_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "COUNTER", 100)
    monkeypatch.setattr(stress, "BEYOND", 120)
    monkeypatch.setattr(stress, "COUNTED", 1000.0)
    assert ran(Healthy(), "count") == {"executions": 120}
    with pytest.raises(CaseFailed, match=r"execution 100 of a model: .*must be"):
        ran(made("counts-16-bits"), "count")


def test_latencies_with_noise_or_a_new_level_do_not_drift() -> None:
    dice = random.Random(1)
    noise = [1 + dice.random() / 2 for _ in range(3 * drift.WINDOWS)]
    level = [1.0] * drift.WINDOWS + [2.0] * (2 * drift.WINDOWS)
    assert not drift.drifts(noise) and not drift.drifts(level)
    assert drift.drifts([1 + n / 20 + dice.random() / 20 for n in range(3 * drift.WINDOWS)])


@pytest.mark.parametrize(
    ("values", "leaks"),
    [
        ([n * 4096 * 100 for n in range(BLOCKS + 1)], True),
        ([n * 4096 * 100 // (132 << 10) * (132 << 10) for n in range(BLOCKS + 1)], True),
        ([0, *[4 << 20] * BLOCKS], False),
        ([min(n, 4) * 4096 * 100 for n in range(BLOCKS + 1)], False),
        ([(n % 2) * (4 << 20) for n in range(BLOCKS + 1)], False),
        ([n * 4096 for n in range(BLOCKS + 1)], False),
    ],
    ids=["each block", "in steps of the allocator", "once", "a cache that fills", "to and fro", "too little"],
)
def test_growth_is_a_leak_only_if_it_goes_on(values: list[int], leaks: bool) -> None:
    assert bool(grows(values, 100, memory=True)) == leaks


@pytest.fixture
def as_before() -> Iterator[None]:
    """Restore what faults change in this process."""
    folder, mask, handler = os.getcwd(), os.umask(0o022), signal.getsignal(signal.SIGTERM)
    os.umask(mask)
    yield
    os.chdir(folder)
    os.umask(mask)
    signal.signal(signal.SIGTERM, handler)
    _libc.fesetround(0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("leaves-folder", "working directory"),
        ("leaves-umask", "umask"),
        ("leaves-handler", "handled signals"),
        ("leaves-rounding", "rounding mode"),
    ],
)
@pytest.mark.usefixtures("as_before")
def test_a_process_that_is_left_changed_is_found(fault: str, what: str) -> None:
    with pytest.raises(CaseFailed, match=rf"the process is left changed: .*{what}"):
        ran(made(fault), "growth/run/float32")


# ---------------------------------------------------------------------------------------------------------------- crash


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Run the case that kills clients, on a driver with a fault."""
    monkeypatch.setattr(crash, "SETTLING", 0.2)

    def run(fault: str) -> Any:
        monkeypatch.setenv(VARIABLE, fault)
        return ran(discovery.load_driver(str(DRIVER)), "killed/execute", crash.SUITE)

    return run


def test_the_healthy_driver_goes_on_when_clients_die(killed: Callable[[str], Any]) -> None:
    found = killed("")
    assert isinstance(found, dict) and found["killed clients"] == 4 and found["executions"] >= 8


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("dies-with-client", "the driver's service has ended after a client died"),
        ("keeps-clients", r"each killed client leaves .* descriptors"),
        pytest.param("keeps-cancelled", r"each killed client leaves .* MiB of memory", marks=pytest.mark.nightly),
    ],
)
def test_what_a_dead_client_leaves_is_found(fault: str, found: str, killed: Callable[[str], Any]) -> None:
    with pytest.raises(CaseFailed, match=found):
        killed(fault)


def test_a_lock_that_a_dead_client_leaves_hangs_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = outcomes("crash", "locks-for-ever", "killed/execute", monkeypatch, timeout=1.0)
    assert found.verdict == "hung", found


def test_a_process_that_does_not_end_is_killed_and_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        assert not processes.ended(process.pid, 0.01)
    assert process.returncode == -signal.SIGKILL and processes.ended(process.pid, 0)


def test_cases_are_the_same_for_the_same_run() -> None:
    for suite in (SUITE, crash.SUITE):
        cases: list[Case] = list(suite.cases(SuiteRun()))
        assert cases == list(suite.cases(SuiteRun())) and len({case.name for case in cases}) == len(cases)
