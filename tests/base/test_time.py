"""Durations, points in time, and calls that end in time."""

import signal
import threading
import time
from fractions import Fraction

import numpy as np
import pytest

from nnhal.base.errors import InvalidArgument, MissedDeadline, ResourceExhausted
from nnhal.base.time import (
    SLICE,
    limit,
    map_in_threads,
    nanoseconds,
    point_in_time,
    run_with_deadline,
    seconds_until,
    wait_seconds,
)
from tests.waiting import Started

LIMIT = 60.0  # seconds after which something that has to happen counts as hanging


def soon() -> int:
    return time.monotonic_ns() + 20_000_000


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, 0), (0.25, 250_000_000), (3, 3 * 10**9), (np.float32(0.5), 500_000_000), (Fraction(1, 8), 125_000_000)],
)
def test_seconds_become_whole_nanoseconds(seconds, expected):
    assert nanoseconds(seconds, "deadline") == expected


@pytest.mark.parametrize("seconds", [None, float("inf"), 1e30, 10**400, np.float32("inf")])
def test_nothing_infinity_and_centuries_are_no_limit(seconds):
    assert nanoseconds(seconds, "deadline") is None
    assert point_in_time(seconds) is None


@pytest.mark.parametrize("seconds", [float("nan"), -1, -0.001, float("-inf")])
def test_a_duration_below_zero_or_nan_is_refused(seconds):
    with pytest.raises(InvalidArgument, match=r"loop_timeout is .* s, must be at least 0"):
        nanoseconds(seconds, "loop_timeout")


@pytest.mark.parametrize("seconds", [True, "1", np.True_, 1j, [1]])
def test_a_duration_that_is_no_number_is_refused(seconds):
    with pytest.raises(InvalidArgument, match=r"deadline is .*, must be a number of seconds, or None for no limit"):
        point_in_time(seconds)


def test_136_years_are_no_limit_and_less_is_one() -> None:
    assert nanoseconds(2**32, "deadline") is None
    assert nanoseconds(2**32 - 1, "deadline") == (2**32 - 1) * 10**9


def test_a_wait_of_less_than_nothing_is_none_at_all() -> None:
    assert [limit(s, "timeout") for s in (None, -1, 0, 0.5, 2**32)] == [None, 0, 0, 0.5, None]
    for wrong in (float("nan"), "1", True):
        with pytest.raises(InvalidArgument, match="timeout is "):
            limit(wrong, "timeout")


def test_patience_ends_at_the_deadline_and_sooner_where_it_may_be_cancelled() -> None:
    far, near = point_in_time(LIMIT), point_in_time(SLICE / 4)
    assert wait_seconds(None) is None and wait_seconds(None, cancellable=True) == SLICE
    assert LIMIT - 1 < wait_seconds(far) <= LIMIT and wait_seconds(far, cancellable=True) == SLICE
    assert 0 <= wait_seconds(near) <= SLICE / 4 and 0 <= wait_seconds(near, cancellable=True) <= SLICE / 4
    assert wait_seconds(1) == wait_seconds(1, cancellable=True) == 0


def test_where_no_thread_can_be_had_it_says_for_what(monkeypatch) -> None:
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for call in (
        lambda: run_with_deadline(point_in_time(LIMIT), "work", int),
        lambda: map_in_threads("work", int, [1, 2]),
    ):
        with pytest.raises(ResourceExhausted, match="work: no thread for it: can't start new thread"):
            call()


def test_a_point_in_time_is_so_far_from_now():
    before = time.monotonic_ns()
    point = point_in_time(5)
    assert before + 5 * 10**9 <= point <= time.monotonic_ns() + 5 * 10**9
    assert 0 < seconds_until(point) <= 5
    assert seconds_until(before) == 0


def test_without_a_deadline_work_is_done_by_the_caller():
    assert run_with_deadline(None, "work", threading.get_ident) == threading.get_ident()


def test_with_a_deadline_work_that_ends_gives_its_result_or_its_error():
    def fail():
        raise TimeoutError("its own")

    far = point_in_time(LIMIT)
    assert run_with_deadline(far, "work", lambda: 7) == 7
    with pytest.raises(TimeoutError, match="its own"):
        run_with_deadline(far, "work", fail)


def test_work_that_does_not_end_in_time_is_left_behind_and_its_late_result_handed_over():
    gate, came, late = threading.Event(), threading.Event(), []

    def work():
        gate.wait(LIMIT)
        return "late"

    with pytest.raises(MissedDeadline, match="work: has not ended by the deadline"):
        run_with_deadline(soon(), "work", work, late=lambda value: (late.append(value), came.set()))
    assert not late
    gate.set()
    assert came.wait(LIMIT) and late == ["late"]


def test_an_error_that_comes_late_is_nobodys(caplog):
    gate, late, started = threading.Event(), [], Started()

    def work():
        gate.wait(LIMIT)
        raise RuntimeError("late")

    with pytest.raises(MissedDeadline):
        run_with_deadline(soon(), "work", work, late=late.append)
    gate.set()
    started.ended()
    assert not late and not caplog.records


def test_an_interrupt_ends_the_wait_and_the_result_is_handed_over():
    gate, came, late = threading.Event(), threading.Event(), []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background of a shell

    def work():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        gate.wait(LIMIT)
        return "late"

    try:
        with pytest.raises(KeyboardInterrupt):
            run_with_deadline(point_in_time(LIMIT), "work", work, late=lambda value: (late.append(value), came.set()))
    finally:
        signal.signal(signal.SIGINT, before)
    gate.set()
    assert came.wait(LIMIT) and late == ["late"]


def test_what_is_called_at_once_runs_at_once_and_comes_in_order():
    meet = threading.Barrier(3, timeout=20)

    def doubled(n):
        meet.wait()
        return 2 * n

    assert map_in_threads("doubling", doubled, [3, 1, 2]) == [6, 2, 4]


def test_the_first_error_of_those_called_at_once_is_raised():
    def fails(n):
        raise ValueError(n)

    with pytest.raises(ValueError, match="7"):
        map_in_threads("failing", fails, [7, 8])
    with pytest.raises(ValueError, match="9"):
        map_in_threads("failing", fails, [9])
    assert map_in_threads("nothing", fails, []) == []


def test_an_interrupt_waits_for_nothing_that_was_called_at_once(interrupts):
    go_on = threading.Event()
    try:
        with interrupts.expected(0.05):
            map_in_threads("waiting", lambda _: go_on.wait(LIMIT), [1, 2])
    finally:
        go_on.set()


def test_what_is_called_at_once_keeps_no_process_alive():
    assert map_in_threads("work", lambda _: threading.current_thread().daemon, [1, 2]) == [True, True]
