"""Traces as Perfetto files: a sequence of TracePackets, in Google's Protocol Buffers, written and read here.

The messages are those of https://perfetto.dev/docs/reference/trace-packet-proto, with the field numbers below.
"""

import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count, pairwise
from typing import Any

from nnhal.base.errors import BadFile
from nnhal.base.trace import LAYERS, PHASES
from nnhal.runtime.tracing.timeline import Instant, Span, Timeline, called

PACKET = 1
CLOCKS, TIMESTAMP, SEQUENCE, EVENT, CLOCK, DESCRIPTOR = 6, 8, 10, 11, 58, 60  # of a TracePacket
CLOCK_ID, CLOCK_TIME = 1, 2
UUID, NAME, PROCESS, THREAD, PARENT, COUNTER = 1, 2, 3, 4, 5, 8  # of a TrackDescriptor
PID, PROCESS_NAME, THREAD_PID, THREAD_ID, THREAD_NAME, UNIT = 1, 6, 1, 2, 5, 3
ANNOTATION, TYPE, TRACK, CATEGORY, EVENT_NAME, VALUE, FLOW, LAST_FLOW = 4, 9, 11, 22, 23, 30, 47, 48  # of a TrackEvent
ANNOTATION_NAME, ANNOTATION_TEXT, ANNOTATION_INT = 10, 6, 4
BEGIN, END, INSTANT, COUNT = 1, 2, 3, 4
FLAGS, BEGINS = 13, 1  # nothing of the sequence comes before this packet
MONOTONIC, BOOTTIME, REALTIME = 3, 6, 1
UNITS = {"memory": 3}  # bytes; everything else is a count
_VARINT, _FIXED, _BYTES, _FIXED32 = 0, 1, 2, 5
_REMEMBERED = 4096  # equal parts of messages
OF_TRACE = "trace"  # the category of events about the trace itself


# --------------------------------------------------------------------------------------------------------------- writing


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(_REMEMBERED)
def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value)


def _fixed(number: int, value: int) -> bytes:
    return _key(number, _FIXED) + value.to_bytes(8, "little")


def _data(number: int, value: bytes | str) -> bytes:
    data = value.encode(errors="replace") if isinstance(value, str) else value
    return _key(number, _BYTES) + _varint(len(data)) + data


_MONOTONIC, _IN_SEQUENCE = _number(CLOCK, MONOTONIC), _number(SEQUENCE, 1)


def _packet(*fields: bytes) -> bytes:
    return _data(PACKET, b"".join(fields) + _IN_SEQUENCE)


def clocks() -> dict[int, int]:
    """Return the current values of the clocks, by their numbers in Perfetto."""
    return {
        BOOTTIME: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        MONOTONIC: time.monotonic_ns(),
        REALTIME: time.time_ns(),
    }


def encode_packets(timeline: Timeline, now: dict[int, int]) -> Iterator[bytes]:
    """Yield the parts of the file, in order. now: the values of `clocks` at some moment of the trace."""
    snapshot = b"".join(_data(1, _number(CLOCK_ID, n) + _number(CLOCK_TIME, value)) for n, value in now.items())
    yield _packet(_data(CLOCKS, snapshot), _number(FLAGS, BEGINS))
    uuids = count(1)
    processes = {pid: next(uuids) for pid in timeline.processes}
    threads = {thread: next(uuids) for thread in timeline.threads}
    for pid, name in timeline.processes.items():
        process = _number(PID, pid) + _data(PROCESS_NAME, name)
        yield _packet(_data(DESCRIPTOR, _number(UUID, processes[pid]) + _data(PROCESS, process)))
    for (pid, number), name in timeline.threads.items():
        thread = _number(THREAD_PID, pid) + _number(THREAD_ID, number) + _data(THREAD_NAME, name)
        own = _number(UUID, threads[pid, number]) + _number(PARENT, processes[pid]) + _data(THREAD, thread)
        yield _packet(_data(DESCRIPTOR, own))
    for note in timeline.notes:
        about = _event(INSTANT, next(iter(processes.values())), note, (OF_TRACE,))
        yield _packet(*_at(timeline.until), _data(EVENT, about))
    for (pid, name), points in timeline.counters.items():
        uuid = next(uuids)
        unit = _data(COUNTER, _number(UNIT, UNITS.get(name, 2)))
        parent = _number(PARENT, processes[pid]) if pid in processes else b""
        yield _packet(_data(DESCRIPTOR, _number(UUID, uuid) + _data(NAME, name) + parent + unit))
        for at, value in points:
            point = _number(TYPE, COUNT) + _number(TRACK, uuid) + _number(VALUE, value)
            yield _packet(*_at(at), _data(EVENT, point))
    by_thread: dict[tuple[int, int], list[Span | Instant]] = {thread: [] for thread in threads}
    for span in timeline.spans:
        by_thread[span.pid, span.thread].append(span)
    for instant in timeline.instants:
        by_thread[instant.pid, instant.thread].append(instant)
    for thread_key, events in by_thread.items():
        yield from _track(events, threads[thread_key])


def _track(events: Iterable[Span | Instant], uuid: int) -> Iterator[bytes]:
    """Yield the events of one thread: a span ends before its next sibling begins, also at the same time."""
    stack: list[Span] = []
    for event in sorted(events, key=lambda each: each.at if isinstance(each, Instant) else each.begin):
        parent = event.parent if isinstance(event, Span) else None
        begin = event.at if isinstance(event, Instant) else event.begin
        while stack and stack[-1] is not parent and (isinstance(event, Span) or stack[-1].end < begin):
            yield _ended(stack.pop(), uuid)
        if isinstance(event, Instant):
            about = _event(INSTANT, uuid, event.name, (event.layer, event.phase), (("detail", event.detail),))
        else:
            notes = ("detail", event.detail), ("error", event.error), ("unfinished", "" if event.ended else "yes")
            about = _event(BEGIN, uuid, event.name, (event.layer, event.phase), notes)
            if event.answers:
                about += _note("done for flow", str(event.answers))
            about += b"".join(_fixed(FLOW, flow) for flow in event.flows)
            about += b"".join(_fixed(LAST_FLOW, flow) for flow in event.last)
            stack.append(event)
        yield _packet(*_at(begin), _data(EVENT, about))
    while stack:
        yield _ended(stack.pop(), uuid)


def _ended(span: Span, uuid: int) -> bytes:
    return _packet(*_at(span.end), _end(uuid))


@lru_cache(_REMEMBERED)
def _end(uuid: int) -> bytes:
    return _data(EVENT, _number(TYPE, END) + _number(TRACK, uuid))


def _at(point: int) -> tuple[bytes, bytes]:
    return _number(TIMESTAMP, point), _MONOTONIC


@lru_cache(_REMEMBERED)
def _event(
    kind: int, track: int, name: str, categories: tuple[str, ...], notes: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """Return an event without its individual fields; empty notes are left out."""
    about = _number(TYPE, kind) + _number(TRACK, track) + _data(EVENT_NAME, name)
    about += b"".join(_data(CATEGORY, category) for category in categories)
    for what, text in notes:
        if text:
            about += _note(what, text)
    return about


def _note(what: str, text: str) -> bytes:
    return _data(ANNOTATION, _data(ANNOTATION_NAME, what) + _data(ANNOTATION_TEXT, text))


# --------------------------------------------------------------------------------------------------------------- reading


def read(data: bytes, where: str) -> Timeline:
    """Parse a file from `encode_packets`; BadFile for anything else. where: the file, for messages."""
    try:
        return _read(data)
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise BadFile(f"{where}: is not a trace of nnhal, or damaged: {error}") from None


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: numbers, and bytes."""
    at = 0
    while at < len(data):
        key, at = _varint_at(data, at)
        kind = key & 7
        if kind == _VARINT:
            value: Any
            value, at = _varint_at(data, at)
        elif kind in (_FIXED, _FIXED32):
            size = 8 if kind == _FIXED else 4
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        elif kind == _BYTES:
            size, at = _varint_at(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"byte {at}: wire type {kind}, must be 0, 1, 2 or 5")
        if at > len(data):
            raise ValueError(f"a field ends at byte {at} of {len(data)}")
        yield key >> 3, value


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(f"byte {at}: a number of more than 64 bits")


def _message(data: Any) -> dict[int, list[Any]]:
    if not isinstance(data, bytes):
        raise ValueError("a number stands where a message must be")
    found: dict[int, list[Any]] = {}
    for number, value in _fields(data):
        found.setdefault(number, []).append(value)
    return found


def _text(message: dict[int, list[Any]], number: int) -> str:
    value = message.get(number, [b""])[0]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is a number, must be text")
    return value.decode()


def _whole(message: dict[int, list[Any]], number: int) -> int:
    value = message[number][0]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is text, must be a number")
    return value


def _numbers(message: dict[int, list[Any]], number: int) -> list[int]:
    values = message.get(number, [])
    if not all(isinstance(value, int) for value in values):
        raise ValueError(f"field {number} is text, must be numbers")
    return values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


class _PacketReader:
    """Combines packets, in their order."""

    def __init__(self) -> None:
        self.found = Timeline(0, 0)
        self._tracks: dict[int, tuple[int, int]] = {}
        self._counters: dict[int, tuple[int, str]] = {}
        self._processes: dict[int, int] = {}
        self._stacks: dict[int, list[Span]] = {}
        self._flows: dict[int, list[Span]] = {}
        self._times: list[int] = []

    def take(self, packet: dict[int, list[Any]]) -> None:
        """Add the next packet."""
        if DESCRIPTOR in packet:
            self._describe(_message(packet[DESCRIPTOR][0]))
        elif EVENT in packet:
            at, event = _whole(packet, TIMESTAMP), _message(packet[EVENT][0])
            self._times.append(at)
            self._happen(at, event, _whole(event, TYPE), _whole(event, TRACK))

    def _describe(self, about: dict[int, list[Any]]) -> None:
        uuid, found = _whole(about, UUID), self.found
        if PROCESS in about:
            process = _message(about[PROCESS][0])
            self._processes[uuid] = pid = _whole(process, PID)
            found.processes[pid] = _text(process, PROCESS_NAME)
        elif THREAD in about:
            thread = _message(about[THREAD][0])
            self._tracks[uuid] = _whole(thread, THREAD_PID), _whole(thread, THREAD_ID)
            found.threads[self._tracks[uuid]] = _text(thread, THREAD_NAME)
        elif COUNTER in about:
            self._counters[uuid] = self._processes.get(about.get(PARENT, [0])[0], 0), _text(about, NAME)
            found.counters[self._counters[uuid]] = []

    def _happen(self, at: int, event: dict[int, list[Any]], kind: int, uuid: int) -> None:
        if kind == COUNT:
            self.found.counters[self._counters[uuid]].append((at, _signed(_whole(event, VALUE))))
        elif kind == BEGIN:
            stack = self._stacks.setdefault(uuid, [])
            span = _span(event, at, self._tracks[uuid], stack[-1] if stack else None)
            for flow in (*span.flows, *span.last):
                self._flows.setdefault(flow, []).append(span)
            stack.append(span)
            self.found.spans.append(span)
        elif kind == END:
            span = self._stacks[uuid].pop()
            span.end = at
            if at < span.begin:
                raise ValueError(f"span {span.name!r} ends before it begins")
        elif uuid in self._tracks:
            layer, phase = _categories(event)
            words = _text(event, EVENT_NAME), _annotations(event).get("detail", "")
            self.found.instants.append(Instant(*self._tracks[uuid], at, layer, phase, *words))
        else:
            self.found.notes.append(_text(event, EVENT_NAME))

    def whole(self) -> Timeline:
        """Return the timeline."""
        found = self.found
        if any(self._stacks.values()):
            raise ValueError("a span does not end")
        if not found.processes:
            raise ValueError("it names no process")
        found.since, found.until = min(self._times, default=0), max(self._times, default=0)
        found.spans.sort(key=lambda span: span.begin)
        for flow, connected in self._flows.items():
            _connect(flow, connected)
        return found


def _read(data: bytes) -> Timeline:
    reader = _PacketReader()
    for number, value in _fields(data):
        if number != PACKET:
            raise ValueError(f"field {number} stands where only packets must be")
        reader.take(_message(value))
    return reader.whole()


def _span(event: dict[int, list[Any]], at: int, track: tuple[int, int], parent: Span | None) -> Span:
    layer, phase = _categories(event)
    notes = _annotations(event)
    words = layer, phase, _text(event, EVENT_NAME), notes.get("detail", ""), notes.get("error", "")
    return Span(
        *(*track, at, at, *words, "unfinished" not in notes, parent),
        flows=_numbers(event, FLOW),
        last=_numbers(event, LAST_FLOW),
        answers=int(notes.get("done for flow", "0")),
    )


def _categories(event: dict[int, list[Any]]) -> tuple[str, str]:
    names = [value.decode() if isinstance(value, bytes) else str(value) for value in event.get(CATEGORY, [])]
    if len(names) != 2 or names[0] not in LAYERS or names[1] not in PHASES:
        raise ValueError(f"categories {names}, must be a layer and a phase")
    return names[0], names[1]


def _annotations(event: dict[int, list[Any]]) -> dict[str, str]:
    each = [_message(value) for value in event.get(ANNOTATION, [])]
    return {_text(note, ANNOTATION_NAME): _text(note, ANNOTATION_TEXT) for note in each}


def _connect(flow: int, spans: list[Span]) -> None:
    """Connect a flow: the last span before the work requested it."""
    spans.sort(key=lambda span: span.begin)
    for before, span in pairwise(spans):
        if span.answers == flow:
            called(span, before)
