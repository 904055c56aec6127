"""Logs: what is written can be read, a full one counts what it drops, nothing that a hostile process writes does harm."""

import contextlib
import random
import threading
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base import trace
from nnhal.base.errors import BadFile
from nnhal.runtime.tracing import perfetto
from nnhal.runtime.tracing.perfetto import clocks, encode_packets, read
from nnhal.runtime.tracing.summary import summary
from nnhal.runtime.tracing.timeline import ProcessLog, Timeline, merged

RUNTIME, EXECUTION = trace.LAYERS.index("runtime"), trace.PHASES.index("execution")


def held(log: trace.Log, since: int, until: int | None = None) -> trace.Contents:
    return trace.contents(log.memory, log.slots, since, until or time.monotonic_ns())


def test_what_is_written_can_be_read() -> None:
    since, log = time.monotonic_ns(), trace.Log(10)
    outer = log.begin(RUNTIME, EXECUTION, "outer", "device a", (2, 7), trace.OUT)
    inner = log.begin(RUNTIME, EXECUTION, "inner")
    log.fail(inner, ValueError("no"))
    log.end(inner)
    log.end(outer)
    log.write(trace.COUNTER, "memory", 1 << 40, amount=99)
    found = held(log, since)
    assert found.dropped == found.wrong == 0
    one, me, two, counted = sorted(found.entries, key=lambda entry: (entry.kind == trace.COUNTER, entry.begin))[:4]
    one, me = (one, me) if one.kind == trace.SPAN else (me, one)
    assert (me.kind, me.name, me.thread) == (trace.THREAD, threading.current_thread().name, threading.get_native_id())
    assert (one.name, one.detail, one.group, one.number, one.direction) == ("outer", "device a", 2, 7, trace.OUT)
    assert (two.name, two.error) == ("inner", "ValueError: no")
    assert since <= one.begin <= two.begin <= two.end <= one.end
    assert (counted.name, counted.number, counted.amount) == ("memory", 1 << 40, 99)


def test_a_full_log_drops_what_comes_and_counts_it() -> None:
    since, log = time.monotonic_ns(), trace.Log(8)
    for n in range(20):
        log.end(log.begin(RUNTIME, EXECUTION, f"span {n}"))
    found = held(log, since)
    spans = [entry.name for entry in found.entries if entry.kind == trace.SPAN]
    assert len(found.entries) == 8 and found.dropped == 21 - 8  # the thread's name takes one
    assert spans == [f"span {n}" for n in range(len(spans))]
    timeline = merged([ProcessLog(1, "application", found)], since, time.monotonic_ns())
    assert any("13 spans were dropped" in note for note in timeline.notes)
    assert read(b"".join(encode_packets(timeline, clocks())), "it").notes == timeline.notes


def test_more_names_than_there_is_room_for_leave_spans_without_one() -> None:
    since, log = time.monotonic_ns(), trace.Log(6000)
    for n in range(5000):
        log.end(log.begin(RUNTIME, EXECUTION, f"name {n}"))
    names = [entry.name for entry in held(log, since).entries if entry.kind == trace.SPAN]
    assert len(names) == 5000 and names[:4000] == [f"name {n}" for n in range(4000)] and names[-1] == ""


@pytest.mark.parametrize("text", ["é" * 400, "\ud800", "a\0b", "x" * 10_000])
def test_any_text_is_a_name(text: str) -> None:
    since, log = time.monotonic_ns(), trace.Log(4)
    log.end(log.begin(RUNTIME, EXECUTION, text))
    (name,) = [entry.name for entry in held(log, since).entries if entry.kind == trace.SPAN]
    assert name and len(name.encode()) <= 256


def test_many_threads_write_to_one_log() -> None:
    since, log, count = time.monotonic_ns(), trace.Log(4 * 501 + 10), 500

    def write() -> None:
        for _ in range(count // 2):
            outer = log.begin(RUNTIME, EXECUTION, "outer")
            log.end(log.begin(RUNTIME, EXECUTION, "inner"))
            log.end(outer)

    threads = [threading.Thread(target=write, name=f"writer {n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = merged([ProcessLog(1, "application", held(log, since))], since, time.monotonic_ns())
    assert len(found.spans) == 4 * count and all(span.ended for span in found.spans)
    assert sorted(found.threads.values()) == [f"writer {n}" for n in range(4)]
    for span in found.spans:
        assert (span.parent is None) == (span.name == "outer")


# ------------------------------------------------------------------------------------------------------- hostile contents


def nests(timeline: Timeline) -> bool:
    """Whatever was in the logs: spans lie in one another on each thread, and none ends before it begins."""
    by_thread: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for span in timeline.spans:
        by_thread[span.pid, span.thread].append(span)
        if span.parent is not None and not span.parent.begin <= span.begin <= span.end <= span.parent.end:
            return False
    for spans in by_thread.values():
        tops = [span for span in spans if span.parent is None]
        if any(a.end > b.begin for a, b in pairwise(tops)):
            return False
    return all(span.begin <= span.end <= timeline.until for span in timeline.spans)


@pytest.mark.parametrize("seed", range(20))
def test_a_log_of_random_bytes_gives_a_trace_that_is_right(seed: int) -> None:
    draw = random.Random(seed)
    since = time.monotonic_ns()
    own, log = trace.Log(50), trace.Log(200)
    for _ in range(10):
        own.end(own.begin(RUNTIME, EXECUTION, "own", "", (5, draw.randrange(3)), trace.OUT))
    for n in range(150):
        log.end(log.begin(n % 4, n % 8, f"{n}", "", (trace.SESSION, draw.randrange(3)), n % 3))
    for _ in range(400):
        place = draw.randrange(len(log.memory)) if draw.random() < 0.3 else -draw.randrange(1, 200 * 64)
        log.memory[place] = draw.randrange(256)
    until = time.monotonic_ns()
    parts = [ProcessLog(1, "application", held(own, since, until)), ProcessLog(2, "x", held(log, since, until), 5)]
    timeline = merged(parts, since, until)
    assert nests(timeline)
    again = read(b"".join(encode_packets(timeline, clocks())), "it")
    assert [(s.name, s.begin, s.end) for s in again.spans] == [(s.name, s.begin, s.end) for s in timeline.spans]


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 60), st.integers(0, 60), st.integers(0, 2), st.integers(0, 2)),
        max_size=25,
    )
)
def test_whatever_times_a_log_says_its_spans_nest(entries: list[tuple[int, int, int, int, int]]) -> None:
    log = trace.Log(40)
    for kind, begin, length, number, direction in entries:
        log.write(kind, "a", number, begin=1000 + begin, end=1000 + begin + length, direction=direction)
    timeline = merged([ProcessLog(1, "application", trace.contents(log.memory, 40, 1000, 1050))], 1000, 1050)
    assert nests(timeline)
    again = read(b"".join(encode_packets(timeline, clocks())), "it")
    assert len(again.spans) == len(timeline.spans)


def test_what_was_done_for_a_call_that_the_log_has_lost_is_not_taken_for_another() -> None:
    log, other = trace.Log(10), trace.Log(10)
    wait, answer = trace.LAYER["ipc"], (trace.SESSION, 3)
    log.end(log.begin(wait, EXECUTION, "wait", "", (5, 3), trace.OUT))
    other.end(other.begin(wait, EXECUTION, "late", "", answer, trace.IN))
    early = log.begin(wait, EXECUTION, "wait", "", (5, 3), trace.OUT)
    other.end(other.begin(wait, EXECUTION, "right", "", answer, trace.IN))
    other.end(other.begin(wait, EXECUTION, "of another", "", (trace.SESSION, 4), trace.IN))
    log.end(early)
    until = time.monotonic_ns()
    parts = [ProcessLog(1, "application", held(log, 0, until)), ProcessLog(2, "x", held(other, 0, until), 5)]
    callers = {span.name: span.caller for span in merged(parts, 0, until).spans if span.pid == 2}
    assert callers["late"] is None and callers["of another"] is None
    assert callers["right"] is not None and callers["right"].name == "wait"


@pytest.mark.timeout(20)
def test_spans_that_say_that_they_were_done_for_themselves_are_done_for_nobody() -> None:
    log = trace.Log(20)
    for begin in (1000, 1000, 1000):
        for number in (1, 2):
            log.write(trace.SPAN, "a", number, begin=begin, end=begin + 5, direction=trace.IN)
            log.write(trace.MARK, "", number, begin=begin, end=begin, direction=trace.OUT)
            log.write(trace.MARK, "", 3 - number, begin=begin, end=begin, direction=trace.OUT)
    timeline = merged([ProcessLog(1, "application", trace.contents(log.memory, 20, 900, 2000))], 900, 2000)
    assert timeline.spans and all(span.origin.caller is None for span in timeline.spans)
    assert all(span.caller is None or span.caller.root is not span.root for span in timeline.spans)


def nested(*spans: tuple[str, int, int]) -> dict[str, str]:
    """The parent of each span that one thread wrote, by name; end 0: it has not ended."""
    entries = [trace.LogEntry(trace.SPAN, 0, 0, begin, end, 0, 0, 7, name, "", "", 0, 0) for name, begin, end in spans]
    timeline = merged([ProcessLog(1, "application", trace.Contents(entries, 0, 0))], 0, 100)
    return {span.name: "" if span.parent is None else span.parent.name for span in timeline.spans}


def test_a_span_that_begins_when_another_has_ended_is_not_inside_it() -> None:
    assert nested(("a", 0, 10), ("b", 10, 20), ("c", 12, 20), ("d", 20, 30)) == {"a": "", "b": "", "c": "b", "d": ""}


def test_a_span_that_has_not_ended_contains_what_begins_up_to_the_end_of_the_trace() -> None:
    assert nested(("open", 0, 0), ("a", 10, 20), ("b", 100, 100)) == {"open": "", "a": "open", "b": "open"}
    assert nested(("ended", 0, 100), ("b", 100, 100)) == {"ended": "", "b": ""}


def of_two(own: trace.Log, *others: trace.Log) -> Timeline:
    """The application's log, and those of connections to one other process."""
    until = time.monotonic_ns()
    parts = [ProcessLog(1, "application", held(own, 0, until))]
    parts += [ProcessLog(2, "x", held(log, 0, until), 5 + n) for n, log in enumerate(others)]
    return merged(parts, 0, until)


def test_a_drivers_process_counts_nothing_of_others_nor_what_its_client_counts_of_it() -> None:
    own, log = trace.Log(9), trace.Log(9)
    own.write(trace.COUNTER, "memory", 7, amount=2)
    for pid in (0, 1, 2, 9):
        log.write(trace.COUNTER, "memory", 10**18, amount=pid)
        log.write(trace.COUNTER, "waiting", 3, amount=pid)
    log.write(trace.COUNTER, "dropped spans", 10**6)
    found = of_two(own, log)
    assert {key: [value for _, value in points] for key, points in found.counters.items()} == {
        (2, "memory"): [7],
        (2, "waiting"): [3, 3],
        (2, "dropped spans"): [7],
    }


def test_a_drivers_process_takes_part_in_no_calls_of_others() -> None:
    own, log, liar = trace.Log(9), trace.Log(9), trace.Log(9)
    at = own.begin(RUNTIME, EXECUTION, "wait", "", (5, 3), trace.OUT)
    log.end(log.begin(RUNTIME, EXECUTION, "right", "", (trace.SESSION, 3), trace.IN))
    liar.end(liar.begin(RUNTIME, EXECUTION, "wrong", "", (5, 3), trace.IN))
    own.end(at)
    callers = {span.name: span.caller is not None for span in of_two(own, log, liar).spans}
    assert callers == {"wait": False, "right": True, "wrong": False}


def test_what_several_connections_to_a_process_dropped_is_added_up_however_much_they_say() -> None:
    logs = [trace.Log(4) for _ in range(3)]
    for log, count in zip(logs, (5, 6, 7), strict=True):
        for _ in range(count):
            log.end(log.begin(RUNTIME, EXECUTION, "a"))
    for most, dropped in ((0, 2 + 3 + 4), ((1 << 64) - 1, (1 << 63) - 1)):
        if most:
            logs[1].memory[:8] = most.to_bytes(8, "little")
        again = read(b"".join(encode_packets(of_two(trace.Log(4), *logs), clocks())), "it")
        assert summary(again).dropped == dropped


def test_spans_of_a_thread_nest_whichever_connection_they_were_for() -> None:
    own, one, other = trace.Log(9), trace.Log(9), trace.Log(9)
    one.begin(RUNTIME, EXECUTION, "never ends")
    at = one.begin(RUNTIME, EXECUTION, "ends within")
    late = other.begin(RUNTIME, EXECUTION, "late")
    one.end(at)
    other.end(late)
    found = of_two(own, one, other)
    assert len(found.spans) == 3 and nests(found)
    again = read(b"".join(encode_packets(found, clocks())), "it")
    assert [(s.name, s.begin, s.end) for s in again.spans] == [(s.name, s.begin, s.end) for s in found.spans]


def test_what_ends_after_the_trace_has_not_ended_in_it_and_what_begins_later_is_not_in_it() -> None:
    log = trace.Log(10)
    log.write(trace.SPAN, "in", begin=1000, end=1500)
    log.write(trace.SPAN, "out", begin=1000, end=2500)
    log.write(trace.SPAN, "later", begin=2100, end=2500)
    found = trace.contents(log.memory, 10, 900, 2000)
    spans = {entry.name: entry.end for entry in found.entries if entry.kind == trace.SPAN}
    assert spans == {"in": 1500, "out": 0} and not found.wrong


def a_file() -> bytes:
    since, log = time.monotonic_ns(), trace.Log(10)
    log.end(log.begin(RUNTIME, EXECUTION, "a", "device b"))
    log.write(trace.COUNTER, "memory", 5)
    until = time.monotonic_ns()
    return b"".join(encode_packets(merged([ProcessLog(1, "application", held(log, since))], since, until), clocks()))


Field = list[Any]  # its number, and its value: a number, bytes, or the fields of a message


def fields(data: bytes) -> list[Field]:
    """A message as fields of fields, as far as it can be read so."""
    found: list[Field] = []
    for number, value in perfetto._fields(data):
        inner = value
        if isinstance(value, bytes):
            with contextlib.suppress(ValueError, IndexError):
                inner = fields(value) or value
        found.append([number, inner])
    return found


def put_together(parts: list[Field]) -> bytes:
    def one(number: int, value: Any) -> bytes:
        if isinstance(value, int):
            return perfetto._number(number, value)
        return perfetto._data(number, put_together(value) if isinstance(value, list) else value)

    return b"".join(one(number, value) for number, value in parts)


def tear(parts: list[Field], draw: random.Random) -> None:
    """Change one field somewhere inside, also to one of another kind."""
    at = draw.randrange(len(parts))
    number, value = parts[at]
    if isinstance(value, list) and draw.random() < 0.8:
        tear(value, draw)
        return
    changed = draw.choice([0, 1, (1 << 64) - 1, b"", b"abc", b"\xff", b"\x08\x01", None])
    parts[at : at + 1] = [] if changed is None else [[number, changed]]


def test_a_file_that_is_cut_short_or_changed_is_refused_or_read_and_nothing_else_comes_of_it() -> None:
    whole, draw = a_file(), random.Random(0)
    damaged = [whole[:n] for n in range(len(whole))]
    for _ in range(2000):
        place = draw.randrange(len(whole))
        damaged.append(whole[:place] + bytes([draw.randrange(256)]) + whole[place + 1 :])
    for parts in (fields(whole) for _ in range(4000)):
        tear(parts, draw)
        damaged.append(put_together(parts))
    refused = 0
    for data in damaged:
        try:
            summary(read(data, "trace a"))
        except BadFile as error:
            refused += 1
            assert str(error).startswith("trace a: is not a trace of nnhal, or damaged: ")
    assert refused > len(damaged) // 3
