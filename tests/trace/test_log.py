"""Logs: what is written can be read, a full one counts what it drops, nothing that a hostile process writes does harm."""

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
from nnhal.runtime.tracing.perfetto import clocks, read, written
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
    assert read(b"".join(written(timeline, clocks())), "it").notes == timeline.notes


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
    again = read(b"".join(written(timeline, clocks())), "it")
    assert [(s.name, s.begin, s.end) for s in again.spans] == [(s.name, s.begin, s.end) for s in timeline.spans]


@settings(max_examples=200, deadline=None)
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
    again = read(b"".join(written(timeline, clocks())), "it")
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
    return b"".join(written(merged([ProcessLog(1, "application", held(log, since))], since, until), clocks()))


def test_a_file_that_is_cut_short_or_changed_is_refused_or_read_and_nothing_else_comes_of_it() -> None:
    whole, draw = a_file(), random.Random(0)
    damaged = [whole[:n] for n in range(len(whole))]
    for _ in range(2000):
        place = draw.randrange(len(whole))
        damaged.append(whole[:place] + bytes([draw.randrange(256)]) + whole[place + 1 :])
    refused = 0
    for data in damaged:
        try:
            read(data, "trace a")
        except BadFile as error:
            refused += 1
            assert str(error).startswith("trace a: is no trace of nnhal's, or damaged: ")
    assert refused > len(damaged) // 2
