"""A trace as Perfetto's own trace processor has it: what the judges of `opened` look at, by its tables.

No package of the index has the program: NNHAL_TRACE_PROCESSOR names one (`trace_processor_shell`).
"""

from collections import defaultdict
from pathlib import Path

from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

from tests.trace.opened import Opened, Slice

_SLICES = """
select slice.id, ts, dur, slice.name, category, depth, pid, tid, slice.arg_set_id
from slice join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)
order by ts, depth
"""
_COUNTERS = """
select pid, track.name, value from counter join process_counter_track track on track_id = track.id
join process using (upid) order by ts
"""


def processed(path: Path, program: str) -> Opened:
    """What queries of trace processor find in a file."""
    found = Opened()
    with TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=program)) as tables:
        for row in tables.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0"):
            found.problems.append(f"{row.name}: {row.value}")
        for row in tables.query("select pid, name from process where pid > 0"):
            found.processes[row.pid] = row.name
        notes: dict[int, dict[str, str]] = defaultdict(dict)
        for row in tables.query("select arg_set_id, key, string_value from args where string_value is not null"):
            notes[row.arg_set_id][row.key.removeprefix("debug.")] = row.string_value
        slices = {}
        for row in tables.query(_SLICES):
            layer, _, phase = row.category.partition(",")
            end = row.ts + row.dur if row.dur >= 0 else -1
            slices[row.id] = Slice(row.pid, row.tid, row.ts, row.name, layer, phase, row.depth, end)
            slices[row.id].notes = notes[row.arg_set_id]
        found.slices = list(slices.values())
        along: dict[int, list[int]] = defaultdict(list)
        for row in tables.query("select slice_out, slice_in, trace_id from flow order by id"):
            along[row.trace_id] += [row.slice_out, row.slice_in]
        for flow, ids in along.items():
            *earlier, last = sorted(set(ids), key=lambda each: slices[each].begin)
            slices[last].last.append(flow)
            for each in earlier:
                slices[each].flows.append(flow)
        for row in tables.query(_COUNTERS):
            found.counters.setdefault((row.pid, row.name), []).append(int(row.value))
    return found
