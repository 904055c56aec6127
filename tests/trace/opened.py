"""A trace as somebody else opens it: decoded by the classes that Perfetto generates of its own schema, and judged.

Nothing here is nnhal's. Perfetto's trace processor is asked as well where it is there (`processed`): its package downloads
the program from a server of its own, and no package of the index has it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

LAYERS = {"application", "runtime", "ipc", "driver"}
BEGIN, END = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
INSTANT, COUNTER = TrackEvent.TYPE_INSTANT, TrackEvent.TYPE_COUNTER
MONOTONIC = 3  # of Perfetto's built-in clocks


@dataclass
class Slice:
    """A slice as trace processor has them. end: -1 where it has none."""

    pid: int
    tid: int
    begin: int
    name: str
    layer: str
    phase: str
    depth: int
    end: int = -1
    flows: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass
class Opened:
    """processes: names by number. problems: what the file itself has wrong."""

    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    instants: list[tuple[int, str]] = field(default_factory=list)
    counters: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def decoded(path: Path) -> Any:
    """The message in a file."""
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    return trace


class _Tracks:
    """Packets taken one by one."""

    def __init__(self) -> None:
        self.found = Opened()
        self._processes: dict[int, int] = {}
        self._threads: dict[int, tuple[int, int]] = {}
        self._counters: dict[int, tuple[int, str]] = {}
        self._clocks: set[int] = set()
        self._stacks: dict[int, list[Slice]] = defaultdict(list)
        self._latest: dict[int, int] = {}

    def take(self, packet: Any) -> None:
        if packet.HasField("clock_snapshot"):
            self._clocks |= {clock.clock_id for clock in packet.clock_snapshot.clocks}
        elif packet.HasField("track_descriptor"):
            self._describe(packet.track_descriptor)
        elif packet.HasField("track_event"):
            event = packet.track_event
            if packet.timestamp_clock_id not in self._clocks or packet.timestamp_clock_id != MONOTONIC:
                self.found.problems.append(
                    f"{event.name}: no snapshot before has its clock {packet.timestamp_clock_id}"
                )
            if not packet.trusted_packet_sequence_id:
                self.found.problems.append(f"{event.name}: is in no sequence")
            self._event(event, packet.timestamp)

    def _describe(self, about: Any) -> None:
        found = self.found
        if about.HasField("process"):
            self._processes[about.uuid] = about.process.pid
            found.processes[about.process.pid] = about.process.process_name
        elif about.HasField("thread"):
            self._threads[about.uuid] = about.thread.pid, about.thread.tid
            found.threads[self._threads[about.uuid]] = about.thread.thread_name
            if self._processes.get(about.parent_uuid) != about.thread.pid:
                found.problems.append(f"thread {about.thread.tid} is of no process that is there")
        elif about.HasField("counter"):
            self._counters[about.uuid] = self._processes.get(about.parent_uuid, 0), about.name
            found.counters[self._counters[about.uuid]] = []

    def _event(self, event: Any, at: int) -> None:
        if event.type == COUNTER:
            self.found.counters[self._counters[event.track_uuid]].append(event.counter_value)
        elif event.track_uuid in self._processes and event.type == INSTANT:
            self.found.instants.append((self._processes[event.track_uuid], event.name))
        else:
            if at < self._latest.get(event.track_uuid, 0):
                self.found.problems.append(f"{event.name}: at {at}, before the event before it on its track")
            self._latest[event.track_uuid] = at
            _happens(self.found, event, at, self._threads[event.track_uuid], self._stacks[event.track_uuid])


def opened(trace: Any) -> Opened:
    """What a reader of Perfetto's schema finds, packet by packet."""
    tracks = _Tracks()
    for packet in trace.packet:
        tracks.take(packet)
    return tracks.found


def _happens(found: Opened, event: Any, at: int, thread: tuple[int, int], stack: list[Slice]) -> None:
    if event.type == BEGIN:
        notes = {note.name: note.string_value for note in event.debug_annotations}
        layer, phase = event.categories
        slice_ = Slice(*thread, at, event.name, layer, phase, len(stack), notes=notes)
        slice_.flows, slice_.last = list(event.flow_ids), list(event.terminating_flow_ids)
        stack.append(slice_)
        found.slices.append(slice_)
    elif event.type == END:
        if not stack:
            found.problems.append(f"an end at {at} of no slice")
            return
        stack.pop().end = at
    elif event.type == INSTANT:
        found.instants.append((thread[0], event.name))


# ------------------------------------------------------------------------------------------- what holds of every trace


def spans_nest(found: Opened) -> Iterator[str]:
    """On each thread."""
    by_thread: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    for each in found.slices:
        by_thread[each.pid, each.tid].append(each)
    for each_thread in by_thread.values():
        stack: list[Slice] = []
        for each in each_thread:
            del stack[each.depth :]
            if stack and not (stack[-1].begin <= each.begin and each.end <= stack[-1].end):
                yield f"{each.name} does not lie in {stack[-1].name}"
            stack.append(each)


def spans_last(found: Opened) -> Iterator[str]:
    """None ends before it begins, and all end."""
    for each in found.slices:
        if each.end < each.begin:
            yield f"{each.name} lasts {each.end - each.begin} ns"


def the_file_is_whole(found: Opened) -> Iterator[str]:
    """What can be seen packet by packet."""
    yield from found.problems


def flows_connect(found: Opened) -> Iterator[str]:
    """Each from the application's call over another thread to where it ends, forward in time, once."""
    flows: dict[int, list[Slice]] = defaultdict(list)
    ends: dict[int, int] = defaultdict(int)
    for each in found.slices:
        for flow in (*each.flows, *each.last):
            flows[flow].append(each)
        for flow in each.last:
            ends[flow] += 1
    for flow, slices in flows.items():
        if len({(each.pid, each.tid) for each in slices}) < 2:
            yield f"flow {flow} stays on one thread"
        if ends[flow] != 1:
            yield f"flow {flow} ends {ends[flow]} times"
        if flow not in max(slices, key=lambda each: each.begin).last:
            yield f"flow {flow} does not end with the last of its spans"


def executions_cross_the_border(found: Opened) -> Iterator[str]:
    """Whatever a driver's process ran was run for a call of the application, and the results went back to it."""
    homes = {each.pid for each in found.slices if each.layer == "application"}
    away = [each for each in found.slices if each.pid not in homes and "execute" in each.name and each.depth == 0]
    if not away:
        yield "no execution in another process"
    for each in away:
        for flow in [int(each.notes["done for flow"])] if each.flows or each.last else []:
            along = [other for other in found.slices if flow in (*other.flows, *other.last)]
            there = {other.layer for other in along if other.pid in homes}
            if not {"application", "ipc"} <= there:
                yield f"flow {flow} of {each.name} does not come from the application over the border"
            waited = "enced" not in each.name  # whose results are taken later, by another call
            if waited and not any(other.phase == "results" and flow in other.last for other in along):
                yield f"flow {flow} of {each.name} does not come back to where the results are taken"
        if not (each.flows or each.last):
            yield f"{each.name} in process {each.pid} was run for nobody"


def both_processes_are_there(found: Opened) -> Iterator[str]:
    """The application's and the driver's, each with spans."""
    with_spans = {each.pid for each in found.slices}
    for pid, name in found.processes.items():
        if pid not in with_spans or not name:
            yield f"process {pid} {name} has no spans, or no name"
    if len(found.processes) < 2:
        yield f"{len(found.processes)} processes, must be two"
    for process in with_spans - set(found.processes):
        yield f"process {process} is not named"


PHASES_OF_AN_ISOLATED_RUN = {
    "application": {"compilation", "execution", "input/output", "termination"},
    "runtime": {"preparation", "compilation", "execution", "termination"},
    "ipc": {"initialisation", "preparation", "compilation", "execution", "transfers", "results"},
    "driver": {"initialisation", "preparation", "compilation", "execution"},
}


def every_phase_is_there(found: Opened) -> Iterator[str]:
    """Of each layer, those that a compilation and executions in another process have."""
    there = defaultdict(set)
    for each in found.slices:
        there[each.layer].add(each.phase)
    for layer, phases in PHASES_OF_AN_ISOLATED_RUN.items():
        if missing := phases - there[layer]:
            yield f"{layer} lacks {sorted(missing)}"


def memory_is_counted(found: Opened) -> Iterator[str]:
    """Of both processes, in bytes."""
    for pid in found.processes:
        values = found.counters.get((pid, "memory"), [])
        if not values or not all(1 << 20 < value < 1 << 40 for value in values):
            yield f"memory of process {pid}: {values}"


Judge = Callable[[Opened], Iterator[str]]
ALWAYS: list[Judge] = [the_file_is_whole, spans_nest, spans_last, flows_connect]
ISOLATED: list[Judge] = [
    *ALWAYS,
    executions_cross_the_border,
    both_processes_are_there,
    every_phase_is_there,
    memory_is_counted,
]


def wrong(found: Opened, judges: list[Judge]) -> dict[str, list[str]]:
    """What is wrong with a trace, by who says so."""
    said = {judge.__name__: list(judge(found)) for judge in judges}
    return {name: problems for name, problems in said.items() if problems}
