"""A bounded team of instances of an engine that runs one execution at a time.

A prepared model makes another instance when all are busy, and drops those that are not needed any more.
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from nnhal.base.cores import usable_cores
from nnhal.base.errors import Closed
from nnhal.base.log import logger
from nnhal.hal.request import Control

_log = logger("driver")
MOST_MEMBERS = max(2, min(8, usable_cores()))  # executions beyond them wait
KEPT_SECONDS = 10.0  # how long a member is kept that no execution needs
POLL_SECONDS = 0.02  # how often a waiting execution looks whether it is still wanted
ENDING_SECONDS = 5.0  # that the end of the program waits for executions that are inside
_teams: "weakref.WeakSet[Team[Any]]" = weakref.WeakSet()
_ending: list[None] = []  # not empty once the program ends


class Member:
    """An instance of an engine in a team, as a base class."""

    used = 0.0  # when it was given back last, by a team of several
    place: Any = None  # in the team; what was dropped has none, whoever still holds it


T = TypeVar("T", bound=Member)


class Team(Generic[T]):
    """What `make` makes, one to an execution: made on demand, dropped when not needed. The first is made at once.

    what: names the instances in the log. An interrupt may come after any call: an instance that nobody holds any more does
    not count.
    """

    def __init__(self, make: Callable[[], T], what: str) -> None:
        self._make, self._what = make, what
        self._places: weakref.WeakSet[_Place] = weakref.WeakSet()  # of those that there are, or that are being made
        self._idle = [self._new(self._place())]  # the last given back is taken first; appends and pops are atomic
        self._several = False
        self._waiting: list[None] = []  # as long as there are who wait, or longer
        self._given_back: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        _teams.add(self)

    def take(self, control: Control) -> T:
        """An idle member; where there is none a new one, or the next that is given back.

        Closed while the program ends, for all but its main thread.
        """
        self._check_end()
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait(control)

    def give(self, member: T) -> None:
        """Give a member back."""
        if self._several:
            member.used = time.monotonic()
            self._drop(member.used - KEPT_SECONDS)
        self._idle.append(member)
        if len(self._waiting) > self._given_back.qsize():
            self._given_back.put(None)

    def trim(self, keep: int) -> None:
        """Drop idle members until there are so many; they have ended when this has. Executions make what they need."""
        with suppress(IndexError):  # somebody took the last
            while len(self._idle) > keep:
                self._places.discard(self._idle.pop(0).place)
        self._several = len(self._places) > 1

    @property
    def busy(self) -> bool:
        """Whether a member is in use, or being made."""
        return len(self._idle) < len(self._places)

    def _check_end(self) -> None:
        if _ending and threading.current_thread() is not threading.main_thread():
            raise Closed(f"{self._what}: the program ends")

    def _place(self) -> "_Place":
        place = _Place()
        self._places.add(place)
        return place

    def _new(self, place: "_Place") -> T:
        member = self._make()
        member.place = place
        return member

    def _drop(self, since: float) -> None:
        """Drop the idle members not used since then: those in front, as the last in the list is taken first."""
        dropped = []  # they end when this does, not under the lock
        with suppress(IndexError):  # none is left idle
            if self._idle[0].used <= since:
                with self._lock:
                    while self._idle[0].used <= since:
                        dropped.append(self._idle.pop(0))
                        self._places.discard(dropped[-1].place)
        if dropped:
            _log.debug("%s: %d not used for %g s dropped", self._what, len(dropped), KEPT_SECONDS)

    def _wait(self, control: Control) -> T:
        with self._lock:
            there = len(self._places)
            place = self._place() if there < MOST_MEMBERS else None
        if place is not None:
            self._several |= there > 0
            return self._new(place)
        try:
            self._waiting.append(None)
            while True:
                control.check()
                self._check_end()
                try:
                    return self._idle.pop()
                except IndexError:
                    with suppress(Empty):
                        self._given_back.get(timeout=POLL_SECONDS)
        finally:
            with suppress(IndexError):  # an interrupt came before
                self._waiting.pop()


@atexit.register
def wait_for_all(seconds: float = ENDING_SECONDS) -> None:
    """At the end of the program, let no other thread into an engine any more, and wait for who is inside: a thread that
    comes back from one while the interpreter is taken down ends the process by SIGABRT.
    """
    _ending.append(None)
    until = time.monotonic() + seconds
    with suppress(KeyboardInterrupt):
        while time.monotonic() < until and _any_busy():
            time.sleep(0.001)  # looked at here, so that no execution has to tell that it came back


def _any_busy() -> bool:
    try:
        return any(team.busy for team in _teams)
    except RuntimeError:  # a thread that is still there has made another
        return True


os.register_at_fork(after_in_child=_teams.clear)  # what is inside there comes back in the parent


class _Place:
    """One of the places in a team, for as long as its member holds it, or who makes that."""

    __slots__ = ("__weakref__",)
