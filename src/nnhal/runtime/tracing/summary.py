"""The time of a trace by layer, phase and device; each moment of a thread counts once."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from nnhal.base.records import Record
from nnhal.base.trace import LAYERS, PHASES
from nnhal.runtime.tracing.timeline import DROPPED, Span, Timeline

DEVICE = "device "
COMPILE = "compile"  # its detail is a model, which may have any name
Interval = tuple[int, int]


class TimeOf(Record, frozen=True):
    """The time of one layer and phase on one device, in nanoseconds.

    self_ns: without other spans inside, summed over all threads. wall_ns: the same, but overlapping threads count once.
    device: "" without one. errors: spans that ended with an error.
    """

    layer: str
    phase: str
    device: str
    spans: int
    threads: int
    self_ns: int
    wall_ns: int
    errors: int


class ProcessFacts(Record, frozen=True):
    """A process of a trace. memory: its largest sampled resident memory, in bytes; None without samples."""

    pid: int
    name: str
    threads: int
    spans: int
    memory: int | None


class TraceSummary(Record, frozen=True):
    """A whole trace. errors: those that ended spans, with counts. unfinished: spans without an end."""

    duration_ns: int
    processes: Sequence[ProcessFacts]
    rows: Sequence[TimeOf]
    errors: Sequence[tuple[str, int]]
    deaths: int
    unfinished: int
    dropped: int
    notes: Sequence[str]


def summary(timeline: Timeline) -> TraceSummary:
    """Summarise a trace: layers and phases in order, devices by time."""
    done: dict[int, list[Interval]] = defaultdict(list)  # by span, its time in other spans
    for span in timeline.spans:
        for by in (span.parent, span.caller):
            if by is not None:
                done[id(by)].append((span.begin, span.end))
    devices: dict[int, str] = {}
    own: dict[tuple[str, str, str], list[tuple[Span, list[Interval]]]] = defaultdict(list)
    for span in timeline.spans:
        key = span.layer, span.phase, _device(span, devices)
        own[key].append((span, _without((span.begin, span.end), done[id(span)])))
    rows = [_row(key, found) for key, found in own.items()]
    rows.sort(key=lambda row: (LAYERS.index(row.layer), PHASES.index(row.phase), -row.self_ns, row.device))
    errors = Counter(span.error for span in timeline.spans if span.error)
    return TraceSummary(
        timeline.until - timeline.since,
        [_process(timeline, pid) for pid in timeline.processes],
        rows,
        errors.most_common(),
        sum(instant.name.endswith(" died") for instant in timeline.instants),
        sum(not span.ended for span in timeline.spans),
        sum(points[-1][1] for (_, name), points in timeline.counters.items() if name == DROPPED and points),
        timeline.notes,
    )


def _device(span: Span, known: dict[int, str]) -> str:
    """Return the device of a span, or of the span that requested it."""
    passed: list[Span] = []
    around: Span | None = span
    found = ""
    while around is not None:
        about = around.detail.startswith(DEVICE) and not (around.layer == "application" or around.name == COMPILE)
        if about or id(around) in known:
            found = known.get(id(around), around.detail.removeprefix(DEVICE))
            break
        passed.append(around)
        around = around.parent or around.caller
    known.update((id(each), found) for each in passed)
    return found


def _row(key: tuple[str, str, str], found: Sequence[tuple[Span, list[Interval]]]) -> TimeOf:
    intervals = [interval for _, each in found for interval in each]
    threads = {(span.pid, span.thread) for span, _ in found}
    errors = sum(bool(span.error) for span, _ in found)
    return TimeOf(*key, len(found), len(threads), _length(intervals), _length(_union(intervals)), errors)


def _process(timeline: Timeline, pid: int) -> ProcessFacts:
    points = timeline.counters.get((pid, "memory"), [])
    threads = sum(of == pid for of, _ in timeline.threads)
    spans = sum(span.pid == pid for span in timeline.spans)
    most = max((value for _, value in points), default=None)
    return ProcessFacts(pid, timeline.processes[pid], threads, spans, most)


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _without(whole: Interval, parts: Iterable[Interval]) -> list[Interval]:
    """Return an interval without others."""
    left, at = [], whole[0]
    for begin, end in _union(parts):
        if begin >= whole[1]:
            break
        if begin > at:
            left.append((at, begin))
        at = max(at, end)
    if at < whole[1]:
        left.append((at, whole[1]))
    return left
