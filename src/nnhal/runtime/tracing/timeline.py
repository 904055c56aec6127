"""A trace for analysis: the spans of all processes on one clock, nested by thread, and the flows between them."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count

from nnhal.base.records import Record, Struct, field
from nnhal.base.trace import (
    AROUND,
    COUNTER,
    IN,
    INSTANT,
    LAYERS,
    LOCAL,
    MARK,
    OUT,
    PHASES,
    SESSION,
    SPAN,
    THREAD,
    Contents,
    LogEntry,
)

RESULTS, EXECUTION = PHASES.index("results"), PHASES.index("execution")


class Span(Struct, eq=False):
    """The activity of a thread. begin, end: nanoseconds on the monotonic clock, which all processes share.

    detail: its device or model. error: the error that ended it. ended: whether it ended before the trace did. parent:
    the enclosing span of its thread. flows: the numbers that it shares with work that it requested, or that requested
    it; last: those that end with it. caller: the span that requested it, from another thread or process. answers: the
    flow between them. operation: its number in the prepared model, else -1; not in files.
    """

    pid: int
    thread: int
    begin: int
    end: int
    layer: str
    phase: str
    name: str
    detail: str = ""
    error: str = ""
    ended: bool = True
    parent: "Span | None" = None
    caller: "Span | None" = None
    flows: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    answers: int = 0
    operation: int = -1

    @property
    def root(self) -> "Span":
        """The outermost span around it on its thread."""
        found = self
        while found.parent is not None:
            found = found.parent
        return found

    @property
    def origin(self) -> "Span":
        """The outermost span that it works for, on any thread: the application's call."""
        found = self.root
        while found.caller is not None:
            found = found.caller.root
        return found


class _Call(Record, frozen=True):
    """A span that requests work elsewhere at some moment. waits: it does not end before the work has begun."""

    span: Span
    at: int
    waits: bool = True


def called(span: Span, caller: Span) -> bool:
    """Note the caller of a span, unless that would be a cycle: logs are untrusted."""
    around: Span | None = caller.root
    while around is not None:
        if around is span.root:
            return False
        around = None if around.caller is None else around.caller.root
    span.caller = caller
    return True


class Instant(Record, frozen=True):
    """An event without duration."""

    pid: int
    thread: int
    at: int
    layer: str
    phase: str
    name: str
    detail: str = ""


class Timeline(Struct):
    """A whole trace. processes, threads: their names. counters: points by process and name. notes: missing parts."""

    since: int
    until: int
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)
    counters: dict[tuple[int, str], list[tuple[int, int]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class ProcessLog(Record, frozen=True):
    """The log of one process. group: of its client's calls, in a driver's process."""

    pid: int
    name: str
    contents: Contents
    group: int = LOCAL

    def key(self, entry: LogEntry) -> tuple[int, int] | None:
        """Return the unique number of an entry; None if it belongs neither to this process nor to its client."""
        groups = {LOCAL: -self.group, SESSION: self.group} if self.group else {entry.group: entry.group}
        return (groups[entry.group], entry.number) if entry.group in groups else None

    def is_about_process(self, entry: LogEntry) -> bool:
        """Whether an entry is about this process: a driver's process counts nothing for others."""
        about_itself = entry.amount in (0, self.pid) and entry.name not in (MEMORY, DROPPED)
        return not self.group or entry.kind != COUNTER or about_itself


MEMORY, DROPPED = "memory", "dropped spans"
MOST = (1 << 63) - 1


def merged(parts: Sequence[ProcessLog], since: int, until: int, notes: Iterable[str] = ()) -> Timeline:
    """Merge logs into one timeline: the first is the application's, the others are of drivers' processes."""
    found = Timeline(since, until, notes=list(notes))
    out: dict[tuple[int, int], list[_Call]] = defaultdict(list)
    come: list[tuple[tuple[int, int], Span]] = []
    by_thread: dict[tuple[int, int], list[tuple[ProcessLog, LogEntry]]] = defaultdict(list)
    for part in parts:
        found.processes.setdefault(part.pid, part.name)
        entries = [entry for entry in part.contents.entries if part.is_about_process(entry)]
        lost = part.contents.dropped + part.contents.wrong + len(part.contents.entries) - len(entries)
        if lost:
            before = found.counters.get((part.pid, DROPPED), [(until, 0)])[-1][1]  # of another connection to it
            found.counters[part.pid, DROPPED] = [(until, min(before + lost, MOST))]
            found.notes.append(f"{part.name} ({part.pid}): {lost} spans were dropped, its log was full or damaged")
        for entry in entries:  # a service's thread may have worked for several connections
            by_thread[part.pid, entry.thread].append((part, entry))
    for thread, each in by_thread.items():
        found.threads.setdefault(thread, "")
        _nested(found, each, out, come)
    _connected(out, come, found.spans)
    for points in found.counters.values():
        points.sort()
    found.spans.sort(key=lambda span: span.begin)
    return found


def _nested(
    found: Timeline,
    entries: list[tuple[ProcessLog, LogEntry]],
    out: dict[tuple[int, int], list[_Call]],
    come: list[tuple[tuple[int, int], Span]],
) -> None:
    """Nest the entries of one thread into valid spans, whatever the log contains.

    A span without an end ends with the enclosing one.
    """
    around: list[Span] = []
    for part, entry in sorted(entries, key=lambda each: each[1].begin):
        while around and around[-1].end <= entry.begin and (around[-1].end < entry.begin or around[-1].ended):
            around.pop()
        parent = around[-1] if around else None
        key, words = part.key(entry), (entry.name, entry.detail)
        if entry.kind == THREAD:
            found.threads[part.pid, entry.thread] = entry.name
        elif entry.kind == COUNTER:
            found.counters.setdefault((entry.amount or part.pid, entry.name), []).append((entry.begin, entry.number))
        elif entry.kind == INSTANT:
            found.instants.append(
                Instant(part.pid, entry.thread, entry.begin, LAYERS[entry.layer], PHASES[_phase(entry, parent)], *words)
            )
        elif entry.kind == MARK and parent is not None and key is not None:
            out[key].append(_Call(parent, entry.begin, waits=False))
        elif entry.kind == SPAN:
            limit = found.until if parent is None else parent.end
            end = min(entry.end or limit, limit)
            where = LAYERS[entry.layer], PHASES[_phase(entry, parent)]
            span = Span(
                *(part.pid, entry.thread, entry.begin, end),
                *where,
                *words,
                error=entry.error,
                ended=bool(entry.end),
                parent=parent,
                operation=entry.amount - 1,
            )
            found.spans.append(span)
            around.append(span)
            if entry.direction == OUT and key is not None:
                out[key].append(_Call(span, span.begin))
            elif entry.direction == IN and key is not None:
                come.append((key, span))


def _phase(entry: LogEntry, parent: Span | None) -> int:
    if entry.phase != AROUND:
        return entry.phase
    return EXECUTION if parent is None else PHASES.index(parent.phase)


def _connected(
    out: dict[tuple[int, int], list[_Call]], come: list[tuple[tuple[int, int], Span]], spans: list[Span]
) -> None:
    """Connect each span to the one that requested it, and back to the one that uses its result."""
    numbers = count(1)
    for calls in out.values():
        calls.sort(key=lambda call: call.at)
    following: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.begin):
        following[span.pid, span.thread].append(span)
    begins = {track: [span.begin for span in each] for track, each in following.items()}
    for key, span in sorted(come, key=lambda each: each[1].begin):
        calls = out.get(key, [])
        place = bisect_right([call.at for call in calls], span.begin)
        if not place:
            continue
        caller, waits = calls[place - 1].span, calls[place - 1].waits
        if (
            waits and key[0] > LOCAL and caller.end < span.begin
        ):  # of another call on the same connection, which the log has lost
            continue
        if not called(span, caller):
            continue
        flow = span.answers = next(numbers)
        for each in {id(each): each for each in (caller.origin, caller, span)}.values():
            each.flows.append(flow)
        track = caller.pid, caller.thread
        after = bisect_right(begins[track], max(caller.end - 1, caller.begin))
        back = following[track][after] if after < len(following[track]) else None
        if back is not None and back.phase == "results" and back.begin >= span.begin and back.root is caller.root:
            back.last.append(flow)
        else:
            span.flows.remove(flow)
            span.last.append(flow)
