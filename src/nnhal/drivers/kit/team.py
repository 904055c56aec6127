"""A bounded team of engine instances, for engines that run one execution at a time.

A prepared model adds an instance when all are busy, and drops unused ones.
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
MOST_MEMBERS = max(2, min(8, usable_cores()))  # more executions wait
KEPT_SECONDS = 10.0  # how long an unused member is kept
POLL_SECONDS = 0.02  # how often a waiting execution checks whether it was cancelled
ENDING_SECONDS = 5.0  # how long the end of the program waits for running executions
_teams: "weakref.WeakSet[Team[Any]]" = weakref.WeakSet()
_ending: list[None] = []  # not empty once the program ends


class Member:
    """The base class of a team's members: an engine instance."""

    used = 0.0  # when a team of several got it back
    place: Any = None  # its place in the team; a dropped member has none, even if it is still referenced


T = TypeVar("T", bound=Member)


class Team(Generic[T]):
    """A team of engine instances, one for each running execution. They are created on demand and dropped when unused.

    An interrupt may come after any call: an instance that nothing references does not count.

    Args:
        make: Creates an instance. The first one is created at once.
        what: Names the instances in the log.
    """

    def __init__(self, make: Callable[[], T], what: str) -> None:
        self._make, self._what = make, what
        self._places: weakref.WeakSet[_Place] = weakref.WeakSet()  # of existing members, and of those in creation
        self._idle = [self._new(self._place())]  # the last returned member is taken first; appends and pops are atomic
        self._several = False
        self._waiting: list[None] = []  # has an entry for each waiting execution, or more
        self._given_back: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        _teams.add(self)

    def take(self, control: Control) -> T:
        """Return an idle member, a new one, or the next one that is given back.

        Args:
            control: Ends the wait.

        Raises:
            Closed: The program is ending, and this is not its main thread.
        """
        self._check_end()
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait(control)

    def give(self, member: T) -> None:
        """Give a member back.

        Args:
            member: A result of `take`.
        """
        if self._several:
            member.used = time.monotonic()
            self._drop(member.used - KEPT_SECONDS)
        self._idle.append(member)
        if len(self._waiting) > self._given_back.qsize():
            self._given_back.put(None)

    def trim(self, keep: int) -> None:
        """Drop idle members, and wait until they have ended. Later executions create new ones.

        Args:
            keep: How many idle members stay.
        """
        with suppress(IndexError):  # another thread took the last one
            while len(self._idle) > keep:
                self._places.discard(self._idle.pop(0).place)
        self._several = len(self._places) > 1

    @property
    def busy(self) -> bool:
        """Whether a member is in use, or in creation."""
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
        """Drop idle members not used since then: those at the front, because the last one is taken first."""
        dropped = []  # they end with this list, not under the lock
        with suppress(IndexError):  # none is idle any more
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
    """At the end of the program, keep other threads out of engines, and wait for those inside.

    A thread that returns from an engine while the interpreter is finalised ends the process by SIGABRT.
    """
    _ending.append(None)
    until = time.monotonic() + seconds
    with suppress(KeyboardInterrupt):
        while time.monotonic() < until and _any_busy():
            time.sleep(0.001)  # polled, so that executions need not signal their end


def _any_busy() -> bool:
    try:
        return any(team.busy for team in _teams)
    except RuntimeError:  # a thread that still runs has created another one
        return True


os.register_at_fork(after_in_child=_teams.clear)  # executions inside return in the parent only


class _Place:
    """A place in a team, alive as long as its member, or as its creation."""

    __slots__ = ("__weakref__",)
