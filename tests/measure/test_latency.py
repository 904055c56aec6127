"""Runs are counted and timed as asked, and what is told of them is arithmetic."""

import threading

import pytest

from nnhal.measure import latency
from nnhal.measure.latency import Latency, Ratio, histogram, measure_calls, ratio, timed, timed_pairs

SECOND = 1_000_000_000


class Clock:
    """Stands still but for what a run takes."""

    def __init__(self) -> None:
        self.now = 12_345

    def perf_counter_ns(self) -> int:
        return self.now

    def taking(self, ns: int):
        def run() -> None:
            self.now += ns

        return run


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(latency, "time", clock)
    return clock


# ----------------------------------------------------------------------------------------------------------- steady


def test_a_call_takes_from_its_begin_to_its_end(clock):
    assert timed(clock.taking(7)) == 7


def test_as_many_runs_as_asked_however_long_they_take(clock):
    assert measure_calls(clock.taking(3 * SECOND), 0, iterations=12) == ((3 * SECOND,) * 12, 36 * SECOND)
    assert len(measure_calls(clock.taking(SECOND), 1000, iterations=1)[0]) == 1


def test_as_many_as_the_duration_lasts(clock):
    runs, wall = measure_calls(clock.taking(SECOND // 2), 10)
    assert runs == (SECOND // 2,) * 20 and wall == 10 * SECOND  # what begins at its end is too late


def test_ten_at_least_however_short_the_duration(clock):
    assert len(measure_calls(clock.taking(SECOND), 0)[0]) == len(measure_calls(clock.taking(SECOND), 9.5)[0]) == 10
    assert len(measure_calls(clock.taking(SECOND), 10.5)[0]) == 11


def test_without_streams_the_caller_runs_one_at_a_time():
    threads = set()
    measure_calls(lambda: threads.add(threading.get_ident()), 0)
    assert threads == {threading.get_ident()}


def test_streams_run_at_once():
    meet = threading.Barrier(3, timeout=20)  # nobody passes before three are in it
    runs, wall = measure_calls(meet.wait, 0, iterations=9, streams=3)
    assert len(runs) == 9 and 0 < max(runs) <= wall


def test_two_streams_are_two_threads_beside_the_caller():
    meet, threads = threading.Barrier(2, timeout=20), set()
    measure_calls(lambda: (meet.wait(), threads.add(threading.get_ident())), 0, iterations=4, streams=2)
    assert len(threads) == 2 and threading.get_ident() not in threads


def test_what_a_stream_raises_is_raised():
    def fails():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        measure_calls(fails, 0.1, streams=2)


def test_throughput_is_runs_by_the_time_of_all():
    assert Latency(1, 1, 1, (10, 10, 10, 10), 2_000_000_000).throughput == 2


def test_a_quantile_is_of_the_steady_runs():
    found = Latency(1, 2, 10**9, tuple(range(101)), 1)
    assert [found.quantile(q) for q in (0, 0.25, 0.5, 0.99, 1)] == [0, 25, 50, 99, 100]


# ------------------------------------------------------------------------------------------------------------ ratios


def test_pairs_are_of_one_call_each_and_belong_to_their_runners(clock):
    assert timed_pairs(clock.taking(30), clock.taking(8), 5) == [(30, 8)] * 5
    assert timed_pairs(clock.taking(30), clock.taking(8), 2, inner=10) == [(30, 8)] * 2


def test_a_duration_of_several_calls_is_that_of_one():
    calls = []
    timed_pairs(lambda: calls.append(1), lambda: calls.append(2), 3)
    assert sorted(calls) == [1, 1, 1, 2, 2, 2]
    timed_pairs(lambda: calls.append(3), lambda: calls.append(4), 2, inner=4)
    assert [calls.count(n) for n in (3, 4)] == [8, 8]


def test_who_is_first_is_drawn_by_chance_the_same_for_the_same_seed():
    def firsts(seed: int) -> list[str]:
        order: list[str] = []
        timed_pairs(lambda: order.append("one"), lambda: order.append("other"), 40, seed=seed)
        return order[::2]

    assert set(firsts(1)) == {"one", "other"} and 10 < firsts(1).count("one") < 30
    assert firsts(1) == firsts(1) != firsts(2)


def test_runs_twice_as_slow_give_two():
    found = ratio([(6.0, 3.0)] * 9)
    assert (found.median, found.low, found.high) == (2, 2, 2)
    assert str(Ratio(2, 1.98765, 2.00049)) == "2.000 [1.988, 2.000]"


def test_the_interval_holds_the_median_of_19_samples_of_20():
    """By the binomial distribution it lies between the 40th and the 61st of a hundred, give or take few."""
    found = ratio([(float(n), 1.0) for n in range(1, 101)])
    assert found.median == 50.5
    assert 37 <= found.low <= 43 and 58 <= found.high <= 64


# --------------------------------------------------------------------------------------------------------- histogram


def test_the_highest_bar_is_that_of_the_most_and_one_is_seen():
    assert histogram([0] * 8 + [24] * 4 + [12]) == "█" + " " * 11 + "▁" + " " * 10 + "▄"
    assert histogram([0] * 1000 + [24] * 11)[-1] == "▁"


def test_what_is_rare_and_slow_does_not_squeeze_the_rest():
    assert set(histogram([*range(1000), 10**9])) <= {"▇", "█"}


def test_runs_that_took_the_same_are_one_bar():
    assert histogram([5] * 20) == "█" + " " * 23
