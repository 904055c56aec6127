"""The places of a device's queue: free ones, those of executions, and the replacement of lost ones."""

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from nnhal.base.codes import LOOP_TIMEOUT_MAXIMUM_NS
from nnhal.hal.waiting import Slot

GRACE_NS = 100_000_000  # an abandoned execution that runs longer than this no longer blocks others
LONG_NS, LONG_FACTOR = 2_000_000_000, 8  # nor does one that takes longer than this, and so many times its usual time
# Nor one that takes longer than this: a client determines how long its executions are
LONGEST_NS = LOOP_TIMEOUT_MAXIMUM_NS


class QueueSlots:
    """A number of places to run. Executions take and return free ones without a lock; the rest needs the queue's lock.

    A place is held weakly, because an interrupt may come after any call: one that was lost is replaced, and one that was
    replaced is dropped when it returns. strict: whether the number is a hard limit; otherwise a place is also replaced
    if its execution should have ended. relieved: when that was checked last.
    """

    def __init__(self, width: int, *, strict: bool) -> None:
        self.width, self.strict = width, strict
        self.free: deque[Slot] = deque()
        self.relieved = 0
        self._all: list[weakref.ref[Slot]] = []
        self.settle()

    def reset(self) -> None:
        """Replace all places in a forked child: the execution that forked returns to none either."""
        for ref in self._all:
            slot = ref()
            if slot is not None:
                slot.there = False
        self.free.clear()
        self.settle()

    def add(self) -> None:
        """Add a free place."""
        slot = Slot()
        self._all.append(weakref.ref(slot))
        self.free.append(slot)

    def settle(self) -> None:
        """Replace lost places."""
        self._all = [ref for ref in self._all if (slot := ref()) is not None and slot.there]
        while len(self._all) < self.width:
            self.add()

    def busy(self) -> Iterator[Slot]:
        """Yield the places that executions have."""
        for ref in self._all:
            slot = ref()
            if slot is not None and slot.control is not None and slot.there:
                yield slot

    def held_by(self, thread: int) -> Slot | None:
        """Return the place of the execution that a thread runs, if any."""
        return next((slot for slot in self.busy() if slot.thread == thread), None)

    def relieve(self, now: int) -> None:
        """Replace places that were lost, or whose execution should have ended."""
        self.relieved = now
        if not self.strict:
            for slot in list(self.busy()):
                if self.counts_until(slot, now) <= now:
                    for each in (slot, *slot.others):
                        each.there = False
        self.settle()

    def counts_until(self, slot: Slot, now: int) -> int:
        """Return when an execution that keeps running no longer blocks others."""
        control, pace = slot.control, slot.pace
        if control is None:  # it has ended meanwhile, which needs no lock
            return now + LONG_NS
        usual = 0 if pace is None else pace.typical
        until = slot.begun + max(LONG_NS, min(LONG_FACTOR * usual, LONGEST_NS))
        if control.cancelled is not None and control.cancelled.is_set():
            if slot.overdue < slot.begun:  # of another execution
                slot.overdue = now
            until = min(until, slot.overdue + GRACE_NS)
        if control.deadline is not None:
            until = min(until, control.deadline + GRACE_NS)
        return until

    def several(self, units: int) -> Slot:
        """Take free places as one; IndexError if there are too few."""
        taken: list[Slot] = []
        try:
            while len(taken) < units:
                taken.append(self.free.pop())
        except IndexError:
            self.free.extend(taken)
            raise
        taken[0].others = tuple(taken[1:])
        return taken[0]

    def give_back(self, slot: Slot) -> None:
        """Return the place of an execution, and those that it took with it."""
        slot.control = slot.line = None
        others, slot.others = slot.others, ()
        if slot.there:
            self.free.extend((slot, *others))

    def drop_replaced(self) -> None:
        """Drop returned places that were already replaced."""
        for slot in list(self.free):
            if not slot.there:
                with suppress(ValueError):  # taken meanwhile, and dropped there
                    self.free.remove(slot)
