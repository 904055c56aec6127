"""Quotas of a service's clients: one table, whose limits add up to those of the process.

A *resource* belongs to the process: descriptors, threads, mappings, addresses, memory. Three quarters of each are
divided evenly among the most clients that may connect at once: a client's own part, reserved for it. The rest is
common, first come first served. So all clients together can hold clients x own + common = total, and a single client
has much.

A *thing* is made by a client: a channel, a burst, a binding. Each client may have a limited number of it. Each costs
resources, which are taken and released with it, all or nothing.

A `Claim` owns what was taken, and releases it at its end. A client whose connection has ended keeps its place until
everything is released: an object whose `close` hangs counts until it returns.

This module is imported before the process enters the sandbox: it imports modules that import numpy only where it is
about to raise an error.
"""

import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nnhal.base.records import Record
from nnhal.ipc.protocol.wire import INLINE, MAX_DESCRIPTORS

if TYPE_CHECKING:
    from nnhal.base.errors import ResourceExhausted

CLIENTS = 64  # at once, if the process has enough resources
DESCRIPTORS = {True: 32_768, False: 8192}  # that a process requests, by whether it is shared
WORKERS = 8  # threads of one client for background work
ENDS = {"threads": 1}  # the thread that ends a client's objects
DECODED = (
    40  # bytes of memory for a byte of a message, measured: 37 in the densest models, as structs, graphs and facts
)
LONG_AT_ONCE = 8 << 20  # bytes of long messages that a process may send at any moment
LONG_A_SECOND = 512 << 10  # and continuously per second: a byte takes 0.3 us of the interpreter to decode and check
LONGEST = 4 << 20  # bytes of one message to a shared service: some 50,000 operations, decoded in a quarter of a second
_RESERVE = 128  # descriptors for the process, its driver, and refused clients
_ANSWER = 3  # temporary descriptors of an answer: a memory, its copy, a long message
_THREADS = 1024
_ADDRESSES = 1 << 46  # of the 1 << 47 of a process
_MAP_COUNT = 65_530  # mappings of a process, if the kernel does not report the limit
_STACK = 8 << 20  # bytes, if the system has no limit


class Capacity(NamedTuple):
    """The resources that a process has for its clients."""

    descriptors: int
    threads: int
    mappings: int
    addresses: int
    memory: int

    @classmethod
    def of_process(cls, descriptors: int, memory: int) -> "Capacity":
        """Return what is left for clients under the limits of this process.

        descriptors, memory: the most that it will be allowed, if its own limits allow that. Half of the memory is for
        stacks, a quarter for what the service holds for clients, a quarter for the process and its driver.
        """
        descriptors = _under(resource.RLIMIT_NOFILE, descriptors, hard=True)
        memory = min(_under(resource.RLIMIT_DATA, memory), _under(resource.RLIMIT_AS, memory))
        stack = _under(resource.RLIMIT_STACK, 1 << 62)
        stack = _STACK if stack == 1 << 62 else max(stack, 1 << 16)
        return cls(
            descriptors - min(_RESERVE, descriptors // 2),
            min(_THREADS, memory // 2 // stack, _under(resource.RLIMIT_NPROC, 1 << 62) // 2),
            _map_count() // 2,
            min(_ADDRESSES, _under(resource.RLIMIT_AS, 1 << 62) // 2),
            memory // 4,
        )


def _under(which: int, value: int, *, hard: bool = False) -> int:
    limit = resource.getrlimit(which)[hard]
    return value if limit == resource.RLIM_INFINITY else min(value, limit)


def _map_count() -> int:
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    return _MAP_COUNT


class Row(Record, frozen=True):
    """One resource or thing. most: the limit of one client. let_go: how the client can release some.

    own: of a resource, the part reserved for each client. common: the shared part. costs: all other rows that one unit
    takes.
    """

    name: str
    let_go: str
    most: int
    costs: Mapping[str, int]
    own: int = 0
    common: int = 0


_LET_GO = {  # resources
    "descriptors": "close channels, fences and hardware buffers, release models",
    "threads": "close channels and bursts, or wait for executions",
    "mappings": "release bindings and models that use memories, or close bursts",
    "addresses": "release bindings and models that use memories",
    "memory": "close buffers, release models and bindings",
}


class _Thing(NamedTuple):
    let_go: str
    most: int
    costs: Mapping[str, int]


def _things(message: int, answer: int) -> dict[str, _Thing]:
    """Return the things that clients make. message, answer: the temporary descriptors of each."""
    lane = {"descriptors": 1 + message + answer, "memory": DECODED * INLINE}
    connection = {"descriptors": lane["descriptors"] + 4, "threads": 2, "memory": lane["memory"]}
    return {
        "connections": _Thing("close some of this process", CLIENTS // 2, connection),
        "lanes": _Thing("close some", 64, {"threads": 1, **lane}),
        "background": _Thing("wait for notifications", 256, {"memory": 4096}),
        "considered": _Thing("end compilations", 8, {"memory": 16 << 10}),
        "prepared": _Thing("release some", 1024, {"memory": 16 << 10}),
        "bindings": _Thing("release some", 8192, {"memory": 2048}),
        "bursts": _Thing("close some", 64, {"threads": 1, "mappings": 1, "descriptors": answer}),
        "fenced": _Thing("wait for some to end", 64, {"threads": 1, "descriptors": 4}),
        "fences": _Thing("wait for executions that wait for them", 256, {"descriptors": 1}),
        "buffers": _Thing("close some", 1024, {"memory": 1024}),
        "memories": _Thing("release what uses them", 8192, {"mappings": 1, "memory": 2048}),
        "objects": _Thing("release some", 16_384, {"memory": 1024}),
    }


_THREAD = {"mappings": 4}  # stack, guard, two of an arena of the allocator
_LANES = 2  # that a client's own part must be sufficient for, with one worker


class QuotaTable:
    """The limits of each client. rows: by name. clients: how many may connect at once; `connections`: of one process.

    worker: the cost of a background thread.
    """

    def __init__(self, capacity: Capacity, *, shared: bool) -> None:
        """Allow as many clients as the capacity is sufficient for; one if the process is not shared."""
        self.capacity = capacity
        self.clients = CLIENTS if shared else 1
        while not self._divide() and self.clients > 1:
            self.clients -= 1
        self._check()

    def _divide(self) -> bool:
        """Make the rows; return whether each client's own part covers the minimum that it needs.

        Temporary descriptors of messages count only if another client might lack them.
        """
        message, answer = (MAX_DESCRIPTORS, _ANSWER) if self.clients > 1 else (0, 0)
        things = _things(message, answer)
        self.worker = {"threads": 1, "descriptors": answer}
        costs = {name: _whole(thing.costs) for name, thing in things.items()}
        connection = [costs["connections"], *[costs["lanes"]] * _LANES, _whole(self.worker), _whole(ENDS)]
        least = {name: sum(part.get(name, 0) for part in connection) for name in self.capacity._fields}
        self.rows: dict[str, Row] = {}
        enough, room = True, {}
        if self.clients == 1:  # no other clients exist: below the minimum, the kernel refuses
            self.capacity = Capacity(*map(max, self.capacity, least.values()))
        for name, total in self.capacity._asdict().items():
            own = total if self.clients == 1 else total * 3 // 4 // self.clients
            common = total - self.clients * own
            enough &= own >= least[name]
            room[name] = own + common - least[name]
            extra = _THREAD if name == "threads" else {}
            self.rows[name] = Row(name, _LET_GO[name], own + common, extra, own, common)
        for name, thing in things.items():
            most = min(thing.most, *(room[r] // cost for r, cost in costs[name].items() if cost))
            if name == "lanes":
                most = min(thing.most, most + _LANES)
            if name == "connections":
                most = (self.clients + 1) // 2
            self.rows[name] = Row(name, thing.let_go, max(1, most), costs[name])
        return enough

    def _check(self) -> None:
        """Raise ValueError if the limits exceed the capacity."""
        for name, total in self.capacity._asdict().items():
            row = self.rows[name]
            if row.own < 0 or self.clients * row.own + row.common > total or row.most > total:
                raise ValueError(f"quotas: {self.clients} clients may have {name} of {row}, must add up to {total}")

    def cost(self, units: Mapping[str, int]) -> dict[str, int]:
        """Return the total cost, by row, of units of some rows."""
        whole: dict[str, int] = {}
        for name, count in units.items():
            if count:
                whole[name] = whole.get(name, 0) + count
                for other, cost in self.rows[name].costs.items():
                    whole[other] = whole.get(other, 0) + count * cost
        return whole


def _whole(costs: Mapping[str, int]) -> dict[str, int]:
    """Return the costs, including those of the threads."""
    whole = dict(costs)
    for name, cost in _THREAD.items():
        if "threads" in costs:
            whole[name] = whole.get(name, 0) + costs["threads"] * cost
    return whole


def _seconds() -> float:
    """Return the default clock. `time` is looked up at each call, so that a simulated clock counts."""
    return time.monotonic()


class LongMessages:
    """A rate limit of a client process's long messages: decoding one takes the interpreter from all other clients."""

    def __init__(self, clock: Callable[[], float] = _seconds) -> None:
        """clock: seconds, monotonic."""
        self._clock, self._lock = clock, threading.Lock()
        self._left, self._since = float(LONG_AT_ONCE), clock()

    def pause(self, length: int) -> float:
        """Count a message of `length` bytes; return the seconds to wait before it is decoded."""
        with self._lock:
            left = self._now()
            self._left = left - length
        return max(0.0, min(length, LONG_AT_ONCE) - left) / LONG_A_SECOND

    def _now(self) -> float:
        now = self._clock()
        self._left = min(LONG_AT_ONCE, self._left + (now - self._since) * LONG_A_SECOND)
        self._since = now
        return self._left

    @property
    def has_recovered(self) -> bool:
        """Whether it may send as much as a new client."""
        with self._lock:
            return self._now() == LONG_AT_ONCE


class Quotas:
    """The holdings of all clients of one service."""

    def __init__(self, table: QuotaTable, clock: Callable[[], float] = _seconds) -> None:
        """clock: see `LongMessages`."""
        self.table, self._clock = table, clock
        self._long: dict[int, LongMessages] = {}  # by process, including those that just closed their connections
        self._shares: list[ClientShare] = []
        self._refusals: dict[str, int] = {}
        self._common = dict.fromkeys(table.capacity._fields, 0)
        self._lock = threading.Lock()
        # Releases that are not counted yet: finalizers may run at any time, also under the lock.
        self._given: deque[tuple[ClientShare, Mapping[str, int]]] = deque()

    def connect(self, pid: int) -> "ClientShare":
        """Return the share of a process that connects; ResourceExhausted if there is no place left."""
        with self._lock:
            self._settle()
            there = len(self._shares)
            if there >= self.table.clients:
                self._refuse("clients")
                raise _exhausted(f"service: has {there} clients, must be at most {self.table.clients}; end some")
            row, of_process = self.table.rows["connections"], sum(share.pid == pid for share in self._shares)
            if of_process >= row.most:
                self._refuse(row.name)
                raise _exhausted(
                    f"connections: process {pid} has {of_process}, must be at most {row.most}; {row.let_go}"
                )
            self._forget_rested()
            share = ClientShare(self, pid)
            share.long = self._long.setdefault(pid, LongMessages(self._clock))
            self._shares.append(share)
        try:
            share.base = share.take(connections=1)
        except BaseException:
            share.end()
            raise
        return share

    def usage(self) -> list[tuple[int, dict[str, int]]]:
        """Return the process of each client, and its holdings in each row."""
        with self._lock:
            self._settle()
            return [(share.pid, dict(share.used)) for share in self._shares]

    def refusals(self) -> dict[str, int]:
        """Return how often requests were refused, by the exceeded row, or `clients`."""
        with self._lock:
            return dict(self._refusals)

    def _refuse(self, name: str) -> None:
        self._refusals[name] = self._refusals.get(name, 0) + 1

    def take(self, share: "ClientShare", wanted: Mapping[str, int]) -> None:
        """Count a client's request, all or nothing. ResourceExhausted names the exceeded row."""
        with self._lock:
            self._settle()
            borrowed = {}
            for name, amount in wanted.items():
                row, used = self.table.rows[name], share.used[name]
                if used + amount > row.most:
                    self._refuse(name)
                    raise _refusal(row, used, amount, f"must be at most {row.most}")
                if name in self._common:
                    borrowed[name] = max(0, used + amount - row.own) - max(0, used - row.own)
                    left = row.common - self._common[name]
                    if borrowed[name] > left:
                        self._refuse(name)
                        limit = (
                            f"must be at most its own {row.own} and what is left of {row.common} in common, now {left}"
                        )
                        raise _refusal(row, used, amount, limit)
            for name, amount in wanted.items():
                share.used[name] += amount
            for name, amount in borrowed.items():
                self._common[name] += amount

    def give(self, share: "ClientShare", units: Mapping[str, int]) -> None:
        """Record a release; never waits."""
        self._given.append((share, units))

    def _settle(self) -> None:
        """Count the recorded releases; under the lock."""
        while self._given:
            share, units = self._given.popleft()
            for name, amount in units.items():
                used = share.used[name]
                share.used[name] = used - amount
                if name in self._common:
                    own = self.table.rows[name].own
                    self._common[name] -= max(0, used - own) - max(0, used - amount - own)
        left = [share for share in self._shares if not share.ended or any(share.used.values())]
        if len(left) < len(self._shares):
            self._shares = left
            self._forget_rested()

    def _forget_rested(self) -> None:
        """Forget processes without a connection; under the lock."""
        there = {share.pid for share in self._shares}
        self._long = {pid: long for pid, long in self._long.items() if pid in there or not long.has_recovered}


class ClientShare:
    """The holdings of one client."""

    def __init__(self, quotas: Quotas, pid: int) -> None:
        self.quotas, self.pid = quotas, pid
        self.long = LongMessages()
        self.used = dict.fromkeys(quotas.table.rows, 0)
        self.base: Claim | None = None  # of the connection itself
        self.ended = False

    def take(self, **units: int) -> "Claim":
        """Take units of some rows, by name, with their costs; ResourceExhausted if a quota is exceeded."""
        wanted = self.quotas.table.cost(units)
        self.quotas.take(self, wanted)
        return Claim(self, wanted)

    def end(self) -> None:
        """Mark the connection as ended; the client's place is free once everything else is released."""
        self.ended = True
        self.base = None  # released with its owner


class Claim:
    """Units taken at once: released once, at the end of a `with`, by `give`, or with the owner."""

    __slots__ = ("_share", "_units")

    def __init__(self, share: ClientShare, units: Mapping[str, int]) -> None:
        self._share, self._units = share, [units]  # a list, because removing an element is atomic

    def give(self) -> None:
        """Release it; ignored if it was released or passed on."""
        with suppress(IndexError):
            self._share.quotas.give(self._share, self._units.pop())

    def moved_to(self) -> "Claim":
        """Move it to another owner; this one becomes empty."""
        return Claim(self._share, self._units.pop())

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *_: object) -> None:
        self.give()

    def __del__(self) -> None:
        if hasattr(self, "_units"):
            self.give()


def _refusal(row: Row, used: int, amount: int, limit: str) -> "ResourceExhausted":
    wants = f" and wants {amount} more" if amount > 1 else ""
    return _exhausted(f"{row.name}: this client has {used}{wants}, {limit}; {row.let_go}")


def _exhausted(text: str) -> "ResourceExhausted":
    from nnhal.base.errors import ResourceExhausted

    return ResourceExhausted(text)
