"""What is worked out when it is first asked for, on many threads and in a forked child."""

import os
import threading

from nnhal.base.lazy import cached_property

LIMIT = 20  # seconds


class Worked:
    def __init__(self, go: threading.Event | None = None) -> None:
        self.go, self.begun, self.count = go, threading.Event(), 0

    @cached_property
    def out(self) -> object:
        """What came of it."""
        self.count += 1
        self.begun.set()
        if self.go is not None:
            assert self.go.wait(LIMIT)
        return object()


def test_it_is_worked_out_once_and_is_the_objects_own() -> None:
    one, other = Worked(), Worked()
    assert one.out is one.out and one.out is not other.out and one.count == 1
    assert Worked.out.__doc__ == "What came of it."


def test_all_who_ask_at_once_get_the_same() -> None:
    worked, found = Worked(go := threading.Event()), list[object]()
    threads = [threading.Thread(target=lambda: found.append(worked.out)) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert worked.begun.wait(LIMIT)
    go.set()
    for thread in threads:
        thread.join(LIMIT)
    assert len(found) == 8 and set(found) == {worked.out}


def test_nobody_waits_for_what_is_worked_out_for_another_object_in_a_forked_child_either() -> None:
    worked = Worked(go := threading.Event())
    thread = threading.Thread(target=lambda: worked.out)
    thread.start()
    try:
        assert worked.begun.wait(LIMIT)
        assert Worked().out and thread.is_alive()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if Worked().out and Worked(None).out else 1)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        go.set()
        thread.join(LIMIT)
