"""Values made once for each key: no lock is held while one is made, and nobody waits for himself."""

import gc
import os
import signal
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nnhal.base.errors import BadState
from nnhal.base.once import OnceTable

LIMIT = 60.0  # seconds after which something that has to happen counts as hanging


@pytest.fixture
def table() -> OnceTable[str, object]:
    return OnceTable(lambda key: f"thing {key!r}")


def waiting(table: OnceTable[str, object], count: int) -> None:
    """Return when so many threads wait for values of the table."""
    gate = threading.Event()
    while len(table._waits) < count:
        gate.wait(0.001)


def test_who_asks_at_the_same_time_gets_the_one_value(table):
    gate, made = threading.Event(), []

    def make() -> object:
        gate.wait(LIMIT)
        made.append(object())
        return made[-1]

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(table.get, "a", make) for _ in range(4)]
        waiting(table, 3)
        assert table.values() == {} and table.forget() == []
        gate.set()
        assert len({id(each.result(LIMIT)) for each in asked}) == len(made) == 1
    assert table.get("a", make) is made[0]


def test_values_of_different_keys_are_made_at_the_same_time(table):
    meeting = threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        places = pool.map(lambda key: table.get(key, lambda: meeting.wait(LIMIT)), "abc")
    assert sorted(places) == [0, 1, 2]


def test_making_a_value_may_ask_for_another(table):
    assert table.get("a", lambda: ("made of", table.get("b", lambda: "b"))) == ("made of", "b")


def test_asking_for_what_is_being_made_of_the_asker_is_an_error(table):
    def ask() -> object:
        return table.get("a", lambda: "never")

    with pytest.raises(BadState, match="thing 'a': is asked for by what it waits for itself"):
        table.get("a", ask)
    with pytest.raises(BadState, match="thing 'a'"):
        table.get("a", lambda: table.get("b", ask))
    assert table.get("a", lambda: "now") == "now"


def test_two_threads_that_wait_for_one_another_are_an_error_of_one(table):
    meeting = threading.Barrier(2)

    def make(other: str) -> object:
        meeting.wait(LIMIT)
        return table.get(other, lambda: "never")

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(table.get, key, lambda other=other: make(other)) for key, other in ("ab", "ba")]
        errors = [each.exception(LIMIT) for each in asked]
    assert all(isinstance(error, BadState) for error in errors)


def test_an_error_reaches_all_who_waited_and_the_next_tries_again(table):
    gate = threading.Event()

    def fail() -> object:
        gate.wait(LIMIT)
        raise OSError("not today")

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(table.get, "a", fail) for _ in range(2)]
        waiting(table, 1)
        gate.set()
        assert [str(each.exception(LIMIT)) for each in asked] == ["not today"] * 2
    assert table.get("a", lambda: "today") == "today"


def test_an_interrupt_of_the_one_who_makes_it_is_not_of_those_who_wait(table):
    gate = threading.Event()

    def interrupted() -> object:
        gate.wait(LIMIT)
        raise KeyboardInterrupt

    def first() -> type[BaseException]:
        with pytest.raises(KeyboardInterrupt) as found:
            table.get("a", interrupted)
        return found.type

    with ThreadPoolExecutor(4) as pool:
        maker = pool.submit(first)
        while not table._entries:
            gate.wait(0.001)
        asked = [pool.submit(table.get, "a", object) for _ in range(3)]
        waiting(table, 3)
        gate.set()
        assert maker.result(LIMIT) is KeyboardInterrupt
        assert len({id(each.result(LIMIT)) for each in asked}) == 1


def test_what_a_signal_handler_raises_in_the_one_who_makes_it_is_not_of_those_who_wait(table):
    def handler(*_: object) -> None:
        raise TimeoutError("the application's own")

    def struck() -> object:
        asked.append(pool.submit(table.get, "a", object))
        waiting(table, 1)
        signal.raise_signal(signal.SIGUSR2)
        return threading.Event().wait(LIMIT)  # until the handler has run

    asked: list[Any] = []
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(TimeoutError, match="the application's own"):
                table.get("a", struck)
            assert asked[0].result(LIMIT) is table.get("a", object)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_stale_value_is_made_anew(table):
    table.get("a", lambda: "old")
    assert table.get("a", lambda: "new", stale=lambda value: value == "old") == "new"
    assert table.get("a", lambda: "newer", stale=lambda value: value == "old") == "new"


def test_what_is_forgotten_is_given_back_and_made_anew(table):
    table.get("a", lambda: "old")
    assert table.values() == {"a": "old"}
    assert table.forget() == ["old"]
    assert table.values() == {} and table.get("a", lambda: "new") == "new"


def test_a_forked_child_makes_for_itself_what_was_being_made(table):
    started, gate = threading.Event(), threading.Event()

    def make() -> object:
        started.set()
        gate.wait(LIMIT)
        return "parent's"

    table.get("done", lambda: "kept")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(table.get, "a", make)
        assert started.wait(LIMIT)
        read, write = os.pipe()
        with table._lock, warnings.catch_warnings():  # as another thread may hold it
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
            if not child:
                signal.alarm(int(LIMIT))
                try:
                    found = table.get("a", lambda: "child's"), table.get("done", lambda: "lost")
                    os.write(write, repr(found).encode())
                finally:
                    os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        gate.set()
        assert os.read(read, 100) == b"(\"child's\", 'kept')"
        assert asked.result(LIMIT) == "parent's"
    os.close(read)


def test_of_more_than_the_most_the_one_not_asked_for_longest_is_dropped():
    table: OnceTable[str, object] = OnceTable(str, most=2)
    for key in "abac":
        table.get(key, lambda key=key: key.upper())
    assert table.values() == {"a": "A", "c": "C"}


def test_what_is_dropped_while_it_is_made_is_still_what_those_who_waited_get():
    table, gate = OnceTable(str, most=1), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(table.get, "a", lambda: gate.wait(LIMIT)) for _ in range(2)]
        waiting(table, 1)
        assert table.get("b", lambda: "B") == "B"
        gate.set()
        assert [each.result(LIMIT) for each in asked] == [True, True]
    assert table.values() == {"b": "B"}


def test_a_table_that_nobody_needs_goes_with_what_it_holds():
    class Thing:
        pass

    table: OnceTable[str, Thing] = OnceTable(str)
    held = weakref.ref(table.get("a", Thing))
    del table
    gc.collect()
    assert held() is None
