"""A trace of executions in a driver's own process, as Perfetto's own classes read it; and each judge seen to say no."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from tests.models import doubling
from tests.trace.opened import BEGIN, COUNTER, END, ISOLATED, Opened, decoded, opened, wrong

X = np.arange(4, dtype=np.float32)
RUNS = 5


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The trace of a compilation, a plain call, a burst, a submitted and a fenced execution in a driver's own process."""
    path = tmp_path_factory.mktemp("trace") / "isolated.pftrace"
    device = _apart()
    try:
        with nnhal.trace(path), nnhal.compile(doubling(), devices=device()) as compiled:
            assert (compiled(X) == X + X).all()
            with compiled.burst() as burst:
                for _ in range(RUNS):
                    assert (burst(X) == X + X).all()
            assert (compiled.submit(X).result() == X + X).all()
            assert (compiled.execute_fenced(X).result() == X + X).all()
            assert (compiled.run(X, deadline=20.0)[0] == X + X).all()
    finally:
        device.close()
    return decoded(path)


class _apart:  # noqa: N801
    """A process that nothing else has, started within the trace."""

    def __init__(self) -> None:
        self._made: Any = None

    def __call__(self) -> Any:
        from nnhal.ipc.client.process import ReconnectingDevice, start

        self._made = ReconnectingDevice("reference", lambda: start("reference"))
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def test_a_trace_of_isolated_executions_is_right_in_every_way(isolated: Any) -> None:
    assert wrong(opened(isolated), ISOLATED) == {}


@pytest.mark.skipif(
    "NNHAL_TRACE_PROCESSOR" not in os.environ, reason="NNHAL_TRACE_PROCESSOR names no program of Perfetto's"
)
def test_perfettos_trace_processor_finds_the_same(isolated: Any, tmp_path: Path) -> None:
    from tests.trace.processed import processed

    (tmp_path / "isolated.pftrace").write_bytes(isolated.SerializeToString())
    theirs, ours = processed(tmp_path / "isolated.pftrace", os.environ["NNHAL_TRACE_PROCESSOR"]), opened(isolated)
    assert wrong(theirs, ISOLATED) == {}
    assert theirs.processes == ours.processes
    assert _along_time(theirs) == _along_time(ours)


def _along_time(found: Opened) -> list[tuple[str, int, set[int], list[int]]]:
    """Names, lengths, flows and ends of flows; when each began is by another clock there."""
    found.slices.sort(key=lambda each: (each.begin, each.depth, each.tid))
    return [(each.name, each.end - each.begin, set(each.flows), each.last) for each in found.slices]


def test_the_sequence_of_packets_begins_with_the_clocks(isolated: Any) -> None:
    first, *others = isolated.packet
    assert first.sequence_flags == first.SEQ_INCREMENTAL_STATE_CLEARED and first.HasField("clock_snapshot")
    assert {each.clock_id for each in first.clock_snapshot.clocks} == {1, 3, 6}
    assert not any(packet.sequence_flags for packet in others)


def test_every_execution_of_a_burst_has_its_span_on_both_sides(isolated: Any) -> None:
    names = [each.name for each in opened(isolated).slices]
    assert names.count("exchange packets") == names.count("execute in a burst") == RUNS


def test_operations_of_a_driver_that_tells_have_spans_in_its_run(isolated: Any) -> None:
    found = opened(isolated)
    runs = [each for each in found.slices if (each.name, each.layer) == ("run", "driver")]
    adds = [each for each in found.slices if each.name == "ADD"]
    assert len(runs) == len(adds) == RUNS + 4
    for add in adds:
        assert any(
            (run.pid, run.tid) == (add.pid, add.tid) and run.begin <= add.begin <= add.end <= run.end for run in runs
        )


def test_spans_say_which_device_and_model_they_are_about(isolated: Any) -> None:
    found = opened(isolated)
    assert {each.notes["detail"] for each in found.slices if each.name == "step"} == {"device reference"}
    assert "reference" in found.processes.values() and "application" in found.processes.values()


# ------------------------------------------------------------------------------------------------------ the judges judge


def events(trace: Any, kind: int) -> list[Any]:
    """Packets with events of a kind."""
    return [packet for packet in trace.packet if packet.HasField("track_event") and packet.track_event.type == kind]


def spans_called(trace: Any, name: str) -> list[Any]:
    return [packet for packet in events(trace, BEGIN) if packet.track_event.name == name]


def _an_end_is_missing(trace: Any) -> None:
    trace.packet.remove(events(trace, END)[0])


def _an_end_comes_too_early(trace: Any) -> None:
    packet = spans_called(trace, "exchange packets")[0]
    own = [p for p in events(trace, END) if p.track_event.track_uuid == packet.track_event.track_uuid]
    next(p for p in own if p.timestamp > packet.timestamp).timestamp = packet.timestamp - 1


def _an_end_comes_too_late(trace: Any) -> None:
    packet = spans_called(trace, "stage inputs")[0]
    own = [p for p in events(trace, END) if p.track_event.track_uuid == packet.track_event.track_uuid]
    next(p for p in own if p.timestamp > packet.timestamp).timestamp += 10**10


def _the_driver_process_is_lost(trace: Any) -> None:
    names = {p.track_descriptor.process.process_name for p in trace.packet if p.track_descriptor.HasField("process")}
    assert "reference" in names
    gone = next(p for p in trace.packet if p.track_descriptor.process.process_name == "reference")
    threads = {
        p.track_descriptor.uuid: p for p in trace.packet if p.track_descriptor.parent_uuid == gone.track_descriptor.uuid
    }
    for packet in [*trace.packet]:
        if packet is gone or packet.track_descriptor.uuid in threads or packet.track_event.track_uuid in threads:
            trace.packet.remove(packet)


def _a_flow_loses(name: str) -> Callable[[Any], None]:
    def lose(trace: Any) -> None:
        event = spans_called(trace, name)[-1].track_event
        assert event.flow_ids or event.terminating_flow_ids
        del event.flow_ids[:]
        del event.terminating_flow_ids[:]

    return lose


def _the_phase_is_lost(layer: str, phase: str) -> Callable[[Any], None]:
    def lose(trace: Any) -> None:
        for packet in events(trace, BEGIN):
            if list(packet.track_event.categories) == [layer, phase]:
                del packet.track_event.categories[:]
                packet.track_event.categories.extend(["runtime", "execution"])

    return lose


def _another_clock(trace: Any) -> None:
    events(trace, BEGIN)[0].timestamp_clock_id = 6


def _memory_is_lost(trace: Any) -> None:
    for packet in events(trace, COUNTER):
        packet.track_event.counter_value = 0


DAMAGE: dict[str, tuple[Callable[[Any], None], str]] = {
    "an end is missing": (_an_end_is_missing, "spans_last"),
    "an end comes too early": (_an_end_comes_too_early, "the_file_is_whole"),
    "an end comes too late": (_an_end_comes_too_late, "the_file_is_whole"),
    "the driver's process is lost": (_the_driver_process_is_lost, "both_processes_are_there"),
    "the driver's spans are lost": (_the_driver_process_is_lost, "executions_cross_the_border"),
    "a flow does not come from the application": (_a_flow_loses("call"), "executions_cross_the_border"),
    "a flow does not reach the driver": (_a_flow_loses("execute in a burst"), "executions_cross_the_border"),
    "a flow does not come back": (_a_flow_loses("take outputs"), "flows_connect"),
    "a clock that is not told": (_another_clock, "the_file_is_whole"),
    "memory is not counted": (_memory_is_lost, "memory_is_counted"),
    **{
        f"{layer} lacks {phase}": (_the_phase_is_lost(layer, phase), "every_phase_is_there")
        for layer, phase in (("ipc", "transfers"), ("driver", "compilation"), ("application", "termination"))
    },
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_trace_that_is_not_right_is_found_out(isolated: Any, what: str) -> None:
    damage, judge = DAMAGE[what]
    damaged = copy.deepcopy(isolated)
    damage(damaged)
    assert judge in wrong(opened(damaged), ISOLATED)


def test_a_span_outside_the_one_around_it_is_found_out(isolated: Any) -> None:
    found: Opened = opened(isolated)
    inner = next(each for each in found.slices if each.depth == 2)
    inner.end += 10**10
    assert "spans_nest" in wrong(found, ISOLATED)


def test_a_span_of_negative_duration_is_found_out(isolated: Any) -> None:
    found = opened(isolated)
    found.slices[-1].end = found.slices[-1].begin - 1
    assert "spans_last" in wrong(found, ISOLATED)


def test_nnhal_reads_what_perfetto_reads(isolated: Any, tmp_path: Path) -> None:
    from nnhal.runtime.tracing.perfetto import read

    ours, theirs = read(isolated.SerializeToString(), "trace"), opened(isolated)
    assert sorted((s.pid, s.thread, s.begin, s.end, s.name, s.layer, s.phase) for s in ours.spans) == sorted(
        (s.pid, s.tid, s.begin, s.end, s.name, s.layer, s.phase) for s in theirs.slices
    )
    assert ours.processes == theirs.processes and ours.threads == theirs.threads
    assert {key: [value for _, value in points] for key, points in ours.counters.items()} == theirs.counters
    remote = [s for s in ours.spans if s.name == "execute in a burst"]
    assert len(remote) == RUNS and all(s.caller is not None and s.caller.name == "exchange packets" for s in remote)
