"""Runs are counted and timed as asked."""

import threading
import time

import pytest

from nnhal.bench.latency import Latency, steady


def test_as_many_runs_as_asked_however_long_they_take():
    runs, wall = steady(lambda: time.sleep(0.002), 0, iterations=12)
    assert len(runs) == 12 and min(runs) >= 2_000_000 and wall >= sum(runs)


def test_as_many_as_the_duration_lasts_and_ten_at_least():
    assert len(steady(lambda: None, 0)[0]) == 10
    _, wall = steady(lambda: time.sleep(0.001), 0.2)
    assert 200_000_000 <= wall < 2_000_000_000


def test_streams_run_at_once():
    meet = threading.Barrier(3, timeout=20)  # nobody passes before three are in it
    runs, _ = steady(meet.wait, 0, iterations=9, streams=3)
    assert len(runs) == 9


def test_what_a_stream_raises_is_raised():
    def fails():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        steady(fails, 0.1, streams=2)


def test_throughput_is_runs_by_the_time_of_all():
    assert Latency(1, 1, 1, (10, 10, 10, 10), 2_000_000_000).throughput == 2
