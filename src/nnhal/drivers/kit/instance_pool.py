"""A bounded team of instances of an engine that runs one execution at a time.

A prepared model makes another instance when all are busy, and drops idle ones later.
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
KEPT_SECONDS = 10.0  # how long a member stays idle before it is dropped
POLL_SECONDS = 0.02  # how often a waiting execution checks whether it was cancelled
ENDING_SECONDS = 5.0  # how long the end of the program waits for running executions
_teams: "weakref.WeakSet[Team[Any]]" = weakref.WeakSet()
_ending: list[None] = []  # not empty after the program has begun to end


class Member:
    """The base class of an engine's instance in a `Team`."""

    used = 0.0  # when it was last given back, if the team has several
    place: Any = None  # its place in the team; the team forgets a dropped member by its place


T = TypeVar("T", bound=Member)


class Team(Generic[T]):
    """Instances of an engine, one for each execution at a time: made on demand, dropped when idle.

    An interrupt may come after any call: an instance without a reference does not count.

    Args:
        make: Makes an instance. The first one is made at once.
        what: The name of the instances in the log.
    """

    def __init__(self, make: Callable[[], T], what: str) -> None:
        self._make, self._what = make, what
        self._places: weakref.WeakSet[_Place] = weakref.WeakSet()  # of members that exist or are being made
        # the last one returned is the first one taken; append and pop are atomic
        self._idle = [self._new(self._place())]
        self._several = False
        self._waiting: list[None] = []  # an entry for each waiting execution, or for one that just stopped waiting
        self._given_back: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        _teams.add(self)

    def take(self, control: Control) -> T:
        """Return an idle member, a new one, or, if the team is full, the next one that is given back.

        Args:
            control: The execution's control.

        Returns:
            The member; the caller must pass it to `give`.

        Raises:
            Closed: The program ends, and this is not its main thread.
            NnhalError: The execution was cancelled or missed its deadline, see `Control.check`.
        """
        if _ending:
            self._check_end()
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait(control)

    def give(self, member: T) -> None:
        """Give a member back.

        Args:
            member: A member that `take` returned.
        """
        if self._several:
            member.used = time.monotonic()
            self._drop(member.used - KEPT_SECONDS)
        self._idle.append(member)
        if self._waiting and len(self._waiting) > self._given_back.qsize():
            self._given_back.put(None)

    def trim(self, keep: int) -> None:
        """Drop idle members. They have ended when this returns; later executions make new ones.

        Args:
            keep: How many idle members stay.
        """
        with suppress(IndexError):  # another thread took the last one
            while len(self._idle) > keep:
                self._places.discard(self._idle.pop(0).place)
        self._several = len(self._places) > 1

    @property
    def busy(self) -> bool:
        """Whether a member is in use or being made."""
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
        """Drop the idle members that were not used since then: those in front, because the last one is taken first."""
        dropped = []  # they are destroyed when this returns, outside the lock
        with suppress(IndexError):  # no idle member is left
            if self._idle[0].used <= since:
                with self._lock:
                    while self._idle[0].used <= since:
                        dropped.append(self._idle.pop(0))
                        self._places.discard(dropped[-1].place)
        if dropped:
            _log.debug("%s: dropped %d that were idle for %g s", self._what, len(dropped), KEPT_SECONDS)

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
    """At the end of the program, let no other thread enter an engine, and wait for running executions.

    If a thread returns from an engine while the interpreter shuts down, the process ends by SIGABRT.
    """
    _ending.append(None)
    until = time.monotonic() + seconds
    with suppress(KeyboardInterrupt):
        while time.monotonic() < until and _any_busy():
            time.sleep(0.001)  # polled here, so that executions do not have to report their end


def _any_busy() -> bool:
    try:
        return any(team.busy for team in _teams)
    except RuntimeError:  # a running thread has just made another one
        return True


os.register_at_fork(after_in_child=_teams.clear)  # running executions return in the parent


class _Place:
    """A place in a team. It lives as long as its member, or the thread that makes the member, holds it."""

    __slots__ = ("__weakref__",)
