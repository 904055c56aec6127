"""Owners of descriptors: who goes closes what it owns, and no interrupt gets between."""

import os
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from nnhal.base.descriptors import Owner, store_in_owners
from nnhal.base.memory import Memory
from nnhal.hal.fence import fence_pair
from tests.waiting import Opened

MAKERS: dict[str, Callable[[], object]] = {"memory": lambda: Memory.allocate(4096), "both ends of a fence": fence_pair}


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_what_an_owner_opened_is_closed_when_it_goes_and_when_it_is_told_to() -> None:
    owner = Owner(os.dup(0))
    owner.fds.extend(map(os.dup, (0,)))
    first, second = owner.fds
    owner.close()
    assert owner.fds == [] and not is_open(first) and not is_open(second)
    owner.close()
    owner.fds.append(third := os.dup(0))
    assert is_open(third)
    del owner
    assert not is_open(third)


def test_each_of_several_owners_gets_one() -> None:
    owners = [Owner(), Owner()]
    store_in_owners(owners, map(os.dup, (0, 0)))
    assert [len(owner.fds) for owner in owners] == [1, 1]


def test_what_is_no_descriptor_is_forgotten_and_nothing_else_is_closed() -> None:
    opened = Opened()
    owner = Owner(-1, 2**80, 2**31, "0", None)  # type: ignore[arg-type]
    owner.close()
    assert owner.fds == [] and is_open(0)
    opened.closed()


@pytest.mark.parametrize("what", MAKERS)
def test_an_interrupt_while_the_holder_of_descriptors_goes_leaves_none_open(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every point where Python runs: an exception in a finalizer is lost, and what it was to do with it."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    opened = Opened()
    for place in count():
        held, left = [MAKERS[what]()], [place]

        def tracer(_: Any, event: str, argument: Any, left: list[int] = left) -> None:
            left[0] -= argument is not sys.setprofile
            if left[0] < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

        try:
            sys.setprofile(tracer)
            held.pop()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        held.clear()
        opened.closed()
        if left[0] >= 0:
            break
    assert place  # it was struck at least once
