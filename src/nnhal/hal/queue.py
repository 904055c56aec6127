"""Schedules the executions of a device, of all kinds, and its compilations in one queue.

Within a client, higher priority runs first, then earlier arrival. Clients share a device by start-time fair queueing:
each has a clock that advances by its time on places of the device, and the client that is furthest behind runs next. So
long executions, or many threads, gain nothing. An execution is refused if, by the model's earlier times, it cannot meet
its deadline.

Waiting executions are held weakly, as places are, because an interrupt may come after any call: the queue skips what it
leaves behind. Every check counts again from the current state.
"""

import os
import threading
import time
import weakref
from threading import get_ident
from typing import Any, TypeVar

from nnhal.base import trace
from nnhal.base.codes import Priority
from nnhal.base.cores import usable_cores
from nnhal.base.errors import BadState, MissedDeadline, ResourceExhausted
from nnhal.hal.request import UNLIMITED, Act, Control
from nnhal.hal.waiting import (
    LEVELS,
    ClientLine,
    LatencyByShape,
    LatencyEstimator,
    QueueClient,
    QueueSlots,
    QueueTicket,
    Slot,
)

T = TypeVar("T")
MOST_WAITING = 1024  # the most executions of one client in the queue of one device
# the most that a place is kept free for a client that is behind and recently came back quickly
HOLD_NS = 2_000_000
NOT_BEGUN = "the execution was not begun"  # if it is one of several partitions, the runtime corrects this
_LOOK = 0.25  # seconds between checks whether blocking executions still exist
_RELIEF_NS = 5_000_000  # between checks by arriving executions
_now = time.monotonic_ns


def _counted(dispatch: Any) -> Any:
    """Wrap a function that changes the queue: during a trace, it updates the counter."""

    def traced(queue: "RunQueue", now: int) -> bool:
        granted: bool = dispatch(queue, now)
        trace.counter("waiting", queue._waiting)
        return granted

    return traced


class RunQueue:
    """A queue with a number of places to run.

    where: in messages. strict: whether the number is a hard limit. Otherwise, an execution that does not end in time
    does not block others for ever, and an execution started by another one runs beside it.
    """

    def __init__(self, where: str, width: int, *, strict: bool) -> None:
        self.where, self.width, self.strict = where, width, strict
        self.slots = QueueSlots(width, strict=strict)
        self._lines: weakref.WeakValueDictionary[QueueClient, ClientLine] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._clock = 0
        self._waiting = 0  # as of the last check; waiting executions check regularly
        # The same, plus one if there has been more than one client: then no execution bypasses the queue
        self._contended = 0
        self._shared = False  # whether there has been more than one client
        _queues.add(self)

    def _forked(self) -> None:
        """Reset a forked child: the executions of its parent do not exist here."""
        self._lock, self._waiting, self._contended = threading.Lock(), 0, int(self._shared)
        self.slots.reset()
        for line in self._lines.values():
            for level in line.waiting:
                level.clear()

    def line(self, client: QueueClient) -> ClientLine:
        """Return the line of a client. It lives as long as it is referenced."""
        with self._lock:
            line = self._lines.get(client)
            if line is None:
                line = self._lines[client] = ClientLine(client)
                if len(self._lines) > 1:
                    self._shared, self._contended = True, 1
            return line

    def waiting(self) -> int:
        """Count the executions that wait now."""
        with self._lock:
            return sum(1 for line in self._lines.values() for _ in line.ahead(len(LEVELS)))

    # ------------------------------------------------------------------------------------------------------- to run in it

    def queued(  # noqa: PLR0915 (closures, for speed)
        self,
        run: Act[T],
        client: QueueClient,
        priority: Priority,
        units: int = 1,
        pace: LatencyEstimator | LatencyByShape | None = None,
    ) -> Act[T]:
        """Wrap a function, so that its calls wait in the queue.

        units: the places that it takes. pace: the predicted times of the model, if other functions run it too. If the
        argument is a `Request`, or a tuple that begins with one, there is one for each set of shapes.
        """
        line, level, pace = self.line(client), LEVELS.index(priority), pace or LatencyEstimator()
        only, shaped = (pace, None) if isinstance(pace, LatencyEstimator) else (None, pace)
        free, units = self.slots.free, min(units, self.width)
        single = units == 1
        if self.strict:
            pace.limit = 0

        def queued(what: Any, control: Control) -> T:  # noqa: PLR0912 (in one frame: see its end)
            pace = only or shaped.of(what[0] if isinstance(what, tuple) else what)  # type: ignore[union-attr]
            free_for_all = not self._contended and (control is UNLIMITED or control.deadline is None)
            if free_for_all:
                if pace.left:
                    pace.left -= 1
                    return run(what, control)
                if pace.short:
                    begun = _now()
                    result = run(what, control)
                    pace.add_time(_now() - begun)
                    return result
            slot = ticket = None
            begun = 0
            try:
                if single and free_for_all:
                    try:
                        slot = free.pop()
                    except IndexError:
                        pass
                    else:
                        if not slot.there:  # another place has replaced it
                            slot = None
                if slot is None:
                    ticket = QueueTicket(line, pace, units, control)
                    slot = self._enter(ticket, level)
                slot.thread, slot.pace = get_ident(), pace
                slot.begun = begun = _now()
                slot.control = control  # it is busy from here on
                result = run(what, control)
                pace.add_time(_now() - begun)
                return result
            finally:
                # No interrupt comes before the end of the first call: a traceback keeps the contents of a frame alive.
                if ticket is not None:
                    slot = slot or ticket.slot
                if slot is not None and slot.there:
                    slot.control = slot.line = None
                    if slot.others:
                        others, slot.others = slot.others, ()
                        free.extend((slot, *others))
                    else:
                        free.append(slot)
                if ticket is not None:
                    self._leave(ticket, begun, slot is not None)
                elif self._contended:
                    self._pass_on()

        return queued

    def _enter(self, ticket: QueueTicket, level: int) -> Slot:
        """Wait for a place.

        Raises the error of `control.check`, MissedDeadline if it cannot be in time, ResourceExhausted if too many wait.
        """
        control, line = ticket.control, ticket.line
        control.check()
        with self._lock:
            now = _now()
            inner = None
            if len(self.slots.free) < ticket.units:
                self.slots.settle()
                inner = self.slots.held_by(get_ident())
            if inner is None:
                if len(self.slots.free) < ticket.units and now - self.slots.relieved > _RELIEF_NS:
                    self.slots.relieve(now)
                count = sum(map(len, line.waiting))
                if count >= MOST_WAITING:
                    raise ResourceExhausted(
                        f"{self.where}: {count} executions of {line.client.name} wait already, must be fewer than "
                        f"{MOST_WAITING}; wait for some to end"
                    )
                if control.deadline is not None and ticket.pace.known:
                    self._admit(ticket, level, control, control.deadline, now)
                ticket.predicted = ticket.takes if self._shared or self._waiting else 0
                if self._shared and not self._waiting and (line.left is None or now - line.left > HOLD_NS):
                    self._rest()
                if line.left is not None:
                    line.gap, line.left = now - line.left, None
                line.clock = max(line.clock, self._clock)
                line.waiting[level].append(weakref.ref(ticket))
                self._dispatch(now)
        if inner is not None:
            return self._nested(inner)
        slot = ticket.slot or self._await(ticket, control)
        control.check()
        if not ticket.probe and control.deadline is not None and ticket.pace.known:
            left = control.deadline - _now()
            if ticket.pace.best > left and not ticket.pace.should_probe():
                raise self._late(ticket.pace.best, 0, left, persistent=False)
        return slot

    @trace.traced_method("runtime", "execution", "wait for its turn")
    def _await(self, ticket: QueueTicket, control: Control) -> Slot:
        while (slot := ticket.slot) is None:
            self._wait(ticket, control)
        return slot

    def _nested(self, outer: Slot) -> Slot:
        """Return a place for an execution that a running one starts, in the same thread."""
        if self.strict:
            raise BadState(
                f"{self.where}: an execution asks for another of the same device, must not where one runs at a time"
            )
        slot = Slot()
        slot.there = False
        return slot

    def _wait(self, ticket: QueueTicket, control: Control) -> None:
        patience = control.patience()
        left, now = _LOOK if patience is None else min(patience, _LOOK), _now()
        if not self.strict:
            for slot in self.slots.busy():
                left = min(left, max(0, self.slots.counts_until(slot, now) - now) / 1e9)
        if ticket.look:
            until = ticket.look - now
            if until > 0:
                left = min(left, until / 1e9)
            else:
                ticket.look = 0
        if ticket.gate.acquire(timeout=left) and ticket.slot is not None:
            return
        control.check()
        with self._lock:
            self._look(_now())

    def _leave(self, ticket: QueueTicket, begun: int, returned: bool) -> None:
        """Account for an execution that ran, or remove it from the queue, and let the next one in.

        begun: when it began to run, 0 if it did not. returned: whether it had a place, and returned it. An execution may
        get its place just after it stopped waiting; its error would keep that place for as long as the error lives.
        """
        with self._lock:
            now, line = _now(), ticket.line
            if ticket.slot is None:
                for level in line.waiting:
                    for place in level:
                        if place() is ticket:
                            level.remove(place)
                            break
            else:
                if not returned:
                    self.slots.give_back(ticket.slot)
                line.clock += (now - begun if begun else 0) * ticket.units - ticket.predicted
                line.left = now
        self._pass_on()

    def _pass_on(self) -> None:
        """Yield the interpreter to the execution that waits for a freed place."""
        with self._lock:
            granted = self._dispatch(_now())
        if granted:
            time.sleep(0)

    # ------------------------------------------------------------------------------------------------ under the lock

    def _rest(self) -> None:
        """If nothing runs, set the clock to that of the most advanced client: idle time earns no credit."""
        if not list(self.slots.busy()):
            self._clock = max(self._clock, *(line.clock for line in self._lines.values()))

    def _look(self, now: int) -> None:
        """Dispatch if no other thread does, or if running executions do not end."""
        self.slots.relieve(now)
        self._dispatch(now)

    @trace.replaced_while_tracing(_counted)
    def _dispatch(self, now: int) -> bool:
        """Give free places to the next executions; return whether there were any."""
        free, granted = self.slots.free, False
        try:
            while True:
                found = self._next()
                if found is None:
                    return granted
                line, ticket = found
                self.slots.drop_replaced()
                enough = len(free) >= ticket.units
                until = self._kept_for_another(line, ticket, now) if enough and self._shared else 0
                if until:
                    if ticket.look != until:
                        ticket.look = until
                        ticket.wake()
                    return granted
                if enough and self._grant(line, ticket, now):
                    granted = True
                elif self._contended:
                    return granted
                else:  # threads that free a place look for waiting ones from now on; the last one may not have
                    self._contended = 1
        finally:
            self._waiting = sum(len(level) for line in self._lines.values() for level in line.waiting)
            self._contended = self._waiting + self._shared

    def _next(self) -> tuple[ClientLine, QueueTicket] | None:
        """Return the next execution: the first one of the client that is furthest behind."""
        best: tuple[ClientLine, QueueTicket] | None = None
        for line in self._lines.values():
            if best is None or line.clock < best[0].clock:
                ticket = line.first()
                if ticket is not None:
                    best = line, ticket
        return best

    def _kept_for_another(self, line: ClientLine, ticket: QueueTicket, now: int) -> int:
        """Return until when to keep a place free for a client that is behind this one and about to return; 0 for not.

        Without it, a client with one execution at a time would never be present when the next one is chosen.
        """
        most = min(HOLD_NS, ticket.predicted // ticket.units // 4)
        running = [slot.line for slot in self.slots.busy()]
        for other in self._lines.values():
            if other.left is None or other.clock >= line.clock or other.gap > most or now - other.left >= most:
                continue
            if not any(other.waiting) and other not in running:
                return other.left + most
        return 0

    def _grant(self, line: ClientLine, ticket: QueueTicket, now: int) -> bool:
        """Whether an execution gets its places; if it need not wait, it takes some without the lock."""
        # The place first, then the removal from the line: an execution that has a place is skipped there.
        try:
            if ticket.units == 1:
                ticket.slot = slot = self.slots.free.pop()
            else:
                ticket.slot = slot = self.slots.several(ticket.units)
        except IndexError:
            return False
        for level in line.waiting:
            if level and level[0]() is ticket:
                level.popleft()
                break
        self._clock = max(self._clock, line.clock)
        line.clock += ticket.predicted
        slot.line, slot.pace, slot.begun, slot.thread = line, ticket.pace, now, 0
        slot.control = ticket.control
        ticket.wake()
        return True

    # ----------------------------------------------------------------------------------------------------- deadlines

    def _admit(self, ticket: QueueTicket, level: int, control: Control, deadline: int, now: int) -> None:
        """Refuse an execution that cannot be in time."""
        pace, left = ticket.pace, deadline - now
        asked = now if control.asked is None else min(now, control.asked)
        hopeless = pace.best > deadline - asked
        wait = self._predicted_wait(ticket, level, now)
        if not hopeless and (wait == 0 or wait + pace.typical <= left):
            return
        ticket.probe = pace.should_probe()
        if not ticket.probe:
            raise self._late(pace.best if hopeless else pace.typical, 0 if hopeless else wait, left, hopeless)

    def _predicted_wait(self, ticket: QueueTicket, level: int, now: int) -> int:
        """Return the predicted nanoseconds until it may run; unknown executions count as 0."""
        line = ticket.line
        own = sum(each.expected for each in line.ahead(level))
        if not own and not self._waiting and len(self.slots.free) >= ticket.units:
            return 0
        others = 0
        for other in self._lines.values():
            if other is not line:
                theirs = sum(each.expected for each in other.ahead(len(LEVELS)))
                others += min(theirs, own + ticket.expected)
        running = 0
        for slot in self.slots.busy():
            if slot.pace is not None:
                running += max(0, slot.pace.expected - (now - slot.begun)) * (1 + len(slot.others))
        return (running + own + others) // self.width

    def _late(self, takes: int, wait: int, left: int, persistent: bool) -> MissedDeadline:
        what = f"needs {takes / 1e6:.3f} ms at best" if persistent else f"would need {takes / 1e6:.3f} ms"
        after = f", after a wait of {wait / 1e6:.3f} ms" if wait else ""
        return MissedDeadline(
            f"{self.where}: {what}{after}, and has {max(0, left) / 1e6:.3f} ms until the deadline; {NOT_BEGUN}",
            persistent=persistent,
        )


def places(device_width: int) -> int:
    """Return the number of places of a device.

    0 means unknown: the number of cores, at least two, because one execution can prepare and copy results beside
    another.
    """
    return device_width or max(2, usable_cores())


def units_of(threads: int, width: int) -> int:
    """Return the places that an execution with so many threads takes: two of any model fit. 0 threads count as one."""
    return max(1, min(threads, width // 2))


_sustained: dict[str, RunQueue] = {}


def sustained() -> RunQueue:
    """Return the queue for this process's executions with SUSTAINED_SPEED. Its places are the usable cores."""
    found = _sustained.get("")
    return found or _sustained.setdefault("", RunQueue("sustained speed", usable_cores(), strict=False))


_queues: "weakref.WeakSet[RunQueue]" = weakref.WeakSet()


def _after_fork() -> None:
    for queue in list(_queues):
        queue._forked()


os.register_at_fork(after_in_child=_after_fork)
