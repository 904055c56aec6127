"""Where the time went: by hand, and as sums that have to hold of any trace."""

import json
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.runtime.tracing.perfetto import read
from nnhal.runtime.tracing.summary import summary
from nnhal.runtime.tracing.timeline import Span, Timeline
from tests.cli.test_cli import nnhal as command
from tests.models import doubling

X = np.arange(4, dtype=np.float32)


def test_a_model_is_no_device_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with nnhal.trace(path), nnhal.compile(doubling(name="device odd"), devices="reference") as compiled:
        compiled(X)
    rows = summary(read(path.read_bytes(), "a")).rows
    assert {row.device for row in rows} == {"", "reference"}


def by_hand() -> Timeline:
    """A call of 100 that waits 60 for another process, which works 40 of them, and two threads that overlap by 5."""
    call = Span(1, 1, 0, 100, "application", "execution", "call")
    step = Span(1, 1, 10, 90, "runtime", "execution", "step", "device d", parent=call)
    wait = Span(1, 1, 20, 80, "ipc", "execution", "wait", parent=step)
    work = Span(2, 7, 30, 70, "driver", "execution", "run", caller=wait)
    first = Span(1, 2, 200, 210, "runtime", "preparation", "a", error="ValueError: no")
    second = Span(1, 3, 205, 215, "runtime", "preparation", "b", ended=False)
    return Timeline(0, 300, {1: "application", 2: "d"}, spans=[call, step, wait, work, first, second])


def test_the_time_of_a_span_is_without_what_others_did_for_it() -> None:
    rows = {(row.layer, row.phase): row for row in summary(by_hand()).rows}
    times = {key: (row.self_ns, row.wall_ns, row.threads, row.device) for key, row in rows.items()}
    assert times == {
        ("application", "execution"): (20, 20, 1, ""),
        ("runtime", "execution"): (20, 20, 1, "d"),
        ("ipc", "execution"): (20, 20, 1, "d"),
        ("driver", "execution"): (40, 40, 1, "d"),
        ("runtime", "preparation"): (20, 15, 2, ""),
    }


def row_of(*spans: tuple[int, int]) -> tuple[int, int]:
    """The self and wall-clock time of spans of one layer and phase, each on a thread by itself."""
    made = [Span(1, n, begin, end, "driver", "execution", "run") for n, (begin, end) in enumerate(spans)]
    (row,) = summary(Timeline(0, 1000, {1: "application"}, spans=made)).rows
    return row.self_ns, row.wall_ns


@pytest.mark.parametrize(
    ("spans", "wall"),
    [
        ([(0, 100), (10, 20), (30, 40)], 100),  # one contains the others
        ([(10, 20), (0, 100), (50, 120)], 120),
        ([(0, 10), (20, 30)], 20),  # apart
        ([(0, 10), (10, 30)], 30),
        ([(5, 15), (5, 15), (5, 10)], 10),
    ],
)
def test_time_in_which_several_threads_work_counts_once_however_their_spans_lie(
    spans: list[tuple[int, int]], wall: int
) -> None:
    assert row_of(*spans) == (sum(end - begin for begin, end in spans), wall)


def test_the_self_time_of_a_span_is_without_calls_that_contain_others() -> None:
    call = Span(1, 1, 0, 100, "application", "execution", "call")
    inner = [Span(1, 1, *ends, "runtime", "execution", "step", parent=call) for ends in ((10, 60), (20, 30), (55, 70))]
    rows = {row.layer: row.self_ns for row in summary(Timeline(0, 100, {1: "a"}, spans=[call, *inner])).rows}
    assert rows["application"] == 10 + 30  # before 10 and from 70 on


def test_dropped_spans_are_the_last_count_of_each_process_together() -> None:
    counters = {
        (1, "dropped spans"): [(10, 2), (20, 5)],
        (2, "dropped spans"): [(15, 3)],
        (3, "dropped spans"): [],
        (1, "memory"): [(10, 100), (20, 70)],
        (2, "waiting"): [(5, 4)],
    }
    found = summary(Timeline(0, 100, {1: "application", 2: "d", 3: "e"}, counters=counters))
    assert found.dropped == 5 + 3
    assert [process.memory for process in found.processes] == [100, None, None]


def test_what_failed_and_what_had_not_ended_is_told() -> None:
    found = summary(by_hand())
    assert (found.errors, found.unfinished, found.duration_ns) == ([("ValueError: no", 1)], 1, 300)
    assert [row.errors for row in found.rows if row.phase == "preparation"] == [1]


def test_self_times_of_a_real_trace_add_up_to_what_the_application_waited(tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    with nnhal.compile(doubling(), devices="reference", isolation="process") as compiled:
        compiled(X)
        with nnhal.trace(path), compiled.burst() as burst:
            for _ in range(20):
                burst(X)
    timeline = read(path.read_bytes(), "it")
    calls = [span for span in timeline.spans if span.name == "call"]
    within = [span for span in timeline.spans if span.origin in calls]
    assert len(calls) == 20 and {span.layer for span in within} == {"application", "runtime", "ipc", "driver"}
    rows = summary(Timeline(timeline.since, timeline.until, timeline.processes, spans=within)).rows
    waited = sum(span.end - span.begin for span in calls)
    assert abs(sum(row.self_ns for row in rows) - waited) <= waited // 100  # what ends after its caller has its answer


def test_the_command_shows_a_table_and_json(tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    command("run", "add4", "--device", "reference", "--trace", str(path), "--no-cache")
    table = command("trace", "summary", str(path))
    assert "self time" in table and "driver       execution       reference" in table
    document = json.loads(command("trace", "summary", str(path), "--json"))
    rows = {(row["layer"], row["phase"]) for row in document["rows"]}
    assert {("application", "preparation"), ("driver", "execution"), ("runtime", "compilation")} <= rows


def test_a_command_that_fails_leaves_its_trace_and_a_file_that_cannot_be_written_is_said_before_the_work(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.pftrace"
    command("run", "nosuch", "--trace", str(path), "--json", code=3)
    (load,) = [span for span in read(path.read_bytes(), "it").spans if span.name == "load"]
    assert "nosuch" in load.error
    said = command("run", "nosuch", "--trace", str(tmp_path / "none" / "a"), code=3)
    assert "cannot be written" in said and "nosuch" not in said


def test_a_file_that_is_no_trace_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    path.write_bytes(b"\x0a\x03abc")
    assert "is not a trace of nnhal" in command("trace", "summary", str(path), "--json", code=3)
    assert "cannot be read" in command("trace", "summary", str(tmp_path / "none"), "--json", code=3)
