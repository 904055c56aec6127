"""A lock and interrupts: it is free afterwards, wherever they come."""

import sys
import threading
from typing import Any

import pytest

from nnhal.base.threads import held_lock


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("c_call", "extend"),
        ("c_return", "extend"),
        ("c_call", "acquire"),
        ("c_return", "acquire"),
        ("c_return", "release"),
    ],
)
def test_an_interrupt_of_each_call_leaves_the_lock_free(event: str, name: str) -> None:
    lock = threading.Lock()

    def strike(_: Any, now: str, called: Any) -> None:
        if (now, getattr(called, "__name__", "")) == (event, name):
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(strike)
    try:
        with held_lock(lock) as mine:
            assert mine
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    assert not lock.locked()


def test_a_lock_that_others_hold_is_theirs_after_the_wait() -> None:
    lock = threading.Lock()
    with held_lock(lock) as first, held_lock(lock, 0.0) as second:
        assert first and not second and lock.locked()
    assert not lock.locked()
