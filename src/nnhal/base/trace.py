"""Tracing: spans by layer and phase, marks and counters, in a log of fixed size that any thread can write to.

Without a trace, none of this runs: a method marked with `traced_method` is then the original function, which a traced one
replaces when a trace begins. A log is a memory of slots, in this process or shared by two: a driver's process writes to
its client's, which can read the last events after a crash. A full log drops and counts new events; no thread waits.
"""

import itertools
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from nnhal.base.descriptors import Owner
from nnhal.base.errors import error_text
from nnhal.base.records import Record, Struct, field
from nnhal.base.threads import members

LAYERS = ("application", "runtime", "ipc", "driver")
PHASES = (
    "initialisation",
    "preparation",
    "compilation",
    "execution",
    "transfers",
    "input/output",
    "results",
    "termination",
)
SLOTS = 1 << 18  # of an application's log
SLOTS_OF_DRIVERS = 1 << 15  # of the log of a driver's process
TAKEN_UP_SECONDS = 1.0  # seconds in which drivers' processes have to join a trace
SPAN, INSTANT, COUNTER, THREAD, MARK = range(1, 6)
OUT, IN = 1, 2  # the direction of a span with a number: it requests work elsewhere, or is that work
LOCAL = 0  # the group of this process's numbers
SESSION = 1  # in a driver's process: the numbers of its client's session, which has another group in the client
AROUND = len(PHASES)  # the phase of the enclosing span
LAYER = {name: number for number, name in enumerate(LAYERS)}
PHASE = {name: number for number, name in enumerate(PHASES)} | {"": AROUND}

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Key = tuple[int, int]  # group, number

# Begin, end, number or value, amount, thread, name, detail, error, group, kind, layer, phase, direction.
_SLOT = struct.Struct("<QQqqIIIIIBBBB8x")
_HEAD = struct.Struct("<QQ")  # dropped, whether the log is in use
_END, _WORD, _LENGTH = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<H")
_TEXTS, _CELL = 1 << 12, 256  # the most names in a log, and bytes for each
_FIRST = _HEAD.size + _TEXTS * _CELL
_END_AT, _NUMBER_AT, _NAME_AT, _ERROR_AT, _PHASE_AT = 8, 16, 36, 44, 54
_now = time.monotonic_ns


class Log:
    """A log of spans, marks and counters. memory: of `size_of(slots)` bytes; by default, private to this process.

    It has no lock: a finalizer may write to it at any point, also during a write.
    """

    def __init__(self, slots: int, memory: Any = None) -> None:
        if memory is None:
            memory = mmap.mmap(-1, size_of(slots), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.slots, self.memory = slots, memoryview(memory).cast("B")
        self._next, self._next_text = itertools.count(), itertools.count(1)
        self._mark = object()  # threads remember this object, not the log: their last log can be released
        self._texts: dict[str, int] = {"": 0}

    def take(self) -> None:
        """Mark the log as in use, for other processes that map it."""
        _END.pack_into(self.memory, _END.size, 1)

    def begin(
        self,
        layer: int,
        phase: int,
        name: str,
        detail: str = "",
        key: Key = (0, 0),
        direction: int = 0,
    ) -> int:
        """Begin a span; return the place for its `end`, 0 if it is dropped."""
        place = next(self._next)
        if place >= self.slots:
            return self._drop(place)
        if _here.known is not self._mark:
            self._enter()
        at = _FIRST + place * _SLOT.size
        texts = self._texts
        what = texts[name] if name in texts else self._text(name)
        of = texts[detail] if detail in texts else self._text(detail)
        group, number = key
        _SLOT.pack_into(
            self.memory, at, _now(), 0, number, 0, _here.tid, what, of, 0, group, SPAN, layer, phase, direction
        )
        return at

    def end(self, at: int) -> None:
        """End a span."""
        if at:
            _END.pack_into(self.memory, at + _END_AT, _now())

    def fail(self, at: int, error: BaseException) -> None:
        """Note the error that ended a span early; `end` follows."""
        if at:
            kind = "" if type(error).__module__ == "builtins" else f"{type(error).__name__}: "
            _WORD.pack_into(self.memory, at + _ERROR_AT, self._text(kind + error_text(error)))

    def renamed(self, at: int, name: str, phase: int) -> None:
        """Set the name and phase of a span, if they are known only after its begin."""
        if at:
            _WORD.pack_into(self.memory, at + _NAME_AT, self._text(name))
            self.memory[at + _PHASE_AT] = phase

    def numbered(self, at: int, number: int) -> None:
        """Set the number of a span, if it is known only after its begin."""
        if at:
            struct.pack_into("<q", self.memory, at + _NUMBER_AT, number)

    def write(
        self,
        kind: int,
        name: str,
        number: int = 0,
        *,
        begin: int = 0,
        end: int = 0,
        layer: int = 0,
        phase: int = 0,
        detail: str = "",
        amount: int = 0,
        direction: int = 0,
        group: int = LOCAL,
    ) -> None:
        """Write a complete entry. begin: now by default."""
        place = next(self._next)
        if place >= self.slots:
            self._drop(place)
            return
        if _here.known is not self._mark and kind != THREAD:
            self._enter()
        at = _FIRST + place * _SLOT.size
        begin = begin or _now()
        ids = self._text(name), self._text(detail)
        _SLOT.pack_into(
            *(self.memory, at, begin, end or begin, number, amount, _here.tid, *ids, 0, group, kind, layer, phase),
            direction,
        )

    def add(self, layer: int, phase: int, name: str, begin: int, end: int, operation: int) -> None:
        """Add the finished span of an operation, by two points on the monotonic clock, below the current span."""
        place = next(self._next)
        if place >= self.slots:
            self._drop(place)
            return
        if _here.known is not self._mark:
            self._enter()
        texts = self._texts
        what = texts[name] if name in texts else self._text(name)
        at = _FIRST + place * _SLOT.size
        kind = LOCAL, SPAN, layer, phase, 0
        _SLOT.pack_into(self.memory, at, begin, end, 0, operation + 1, _here.tid, what, 0, 0, *kind)

    def _enter(self) -> None:
        """Write the name of this thread, before its first event."""
        _here.known = self._mark
        _here.tid = threading.get_native_id()
        self.write(THREAD, threading.current_thread().name)

    def _drop(self, place: int) -> int:
        _END.pack_into(self.memory, 0, place - self.slots + 1)
        return 0

    def _text(self, text: str) -> int:
        """Return the number of a text; 0 if there is no space for another one."""
        found = self._texts.get(text)
        if found is not None:
            return found
        number = next(self._next_text)
        if number >= _TEXTS:
            return 0
        data = text.encode(errors="replace")[: _CELL - _LENGTH.size]
        at = _HEAD.size + number * _CELL
        self.memory[at + _LENGTH.size :][: len(data)] = data
        _LENGTH.pack_into(self.memory, at, len(data))
        return self._texts.setdefault(text, number)


class LogEntry(Record, frozen=True):
    """The contents of one slot. begin, end: monotonic nanoseconds; an end of 0 means that it has not ended.

    number: of a call between threads or processes, or the value of a counter. amount: the process of a counter; of an
    operation, its number and one. thread: its number in the system.
    """

    kind: int
    layer: int
    phase: int
    begin: int
    end: int
    number: int
    amount: int
    thread: int
    name: str
    detail: str
    error: str
    group: int
    direction: int


class Contents(Record, frozen=True):
    """The contents of a log. wrong: how many invalid slots were left out."""

    entries: Sequence[LogEntry]
    dropped: int
    wrong: int


def size_of(slots: int) -> int:
    """Return the bytes of a log."""
    return _FIRST + slots * _SLOT.size


def slot_count(size: int) -> int:
    """Return the number of slots of a log of this size."""
    return (size - _FIRST) // _SLOT.size


def has_writer(memory: Any) -> bool:
    """Whether a process writes to the log in this memory."""
    return bool(_HEAD.unpack_from(memoryview(memory).cast("B"))[1])


def contents(memory: Any, slots: int, since: int, until: int) -> Contents:
    """Read a log while an untrusted process may write to it; invalid entries are left out.

    since, until: monotonic nanoseconds. Entries that begin later are left out; those that end later have not ended.
    """
    data = bytes(memoryview(memory).cast("B"))
    entries, wrong, now = [], 0, _now()
    for slot in _SLOT.iter_unpack(data[_FIRST : size_of(slots)]):
        begin, end, number, amount, thread, name, detail, error, group, kind, layer, phase, direction = slot
        if not (begin or kind) or until < begin <= now:  # unused, or incomplete, or later
            continue
        true = since <= begin <= now and (end == 0 or begin <= end) and SPAN <= kind <= MARK
        if not true or layer >= len(LAYERS) or phase > AROUND or direction > IN or thread >= 1 << 31:
            wrong += 1
            continue
        entries.append(
            LogEntry(
                *(kind, layer, phase, begin, end if end <= until else 0, number, amount, thread),
                *(_text_in(data, name), _text_in(data, detail), _text_in(data, error)),
                *(group, direction),
            )
        )
    return Contents(entries, _HEAD.unpack_from(data)[0], wrong)


def _text_in(data: bytes, number: int) -> str:
    if not 0 < number < _TEXTS:
        return ""
    at = _HEAD.size + number * _CELL
    return data[at + _LENGTH.size : at + _CELL][: _LENGTH.unpack_from(data, at)[0]].decode(errors="replace")


# ------------------------------------------------------------------------------------------------ what is being traced


class Remote(Record, frozen=True):
    """The log of a driver's process. group: of its calls' numbers here. memory: mapped by both."""

    name: str
    pid: int
    group: int
    memory: Any
    slots: int


class Recording(Struct):
    """A running trace. notes: which parts are missing, and why."""

    log: Log
    since: int
    remotes: list[Remote] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)  # by process, as last seen

    def look(self) -> None:
        """Record the memory of each process, if it has changed."""
        for pid in (os.getpid(), *(remote.pid for remote in list(self.remotes))):
            held = _resident(pid)
            if held is not None and held != self.memory.get(pid):
                self.memory[pid] = held
                self.log.write(COUNTER, "memory", held, amount=pid)


def _resident(pid: int) -> int | None:
    """Return the resident bytes of a process; None if it has ended."""
    file = Owner()
    try:
        file.fds.extend(map(os.open, (f"/proc/{pid}/statm",), (os.O_RDONLY | os.O_CLOEXEC,)))
        return int(os.pread(file.fds[0], 100, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None
    finally:
        file.close()


class Follower(Protocol):
    """A participant in a trace: the connection to a driver's process."""

    def follow(self, recording: Recording) -> None:
        """Request that the process writes to a log of this recording."""

    def await_follow(self, recording: Recording, until: float) -> None:
        """Wait until it does so, at most until a point on the monotonic clock."""

    def unfollow(self) -> None:
        """End the participation."""


class Scope:
    """The trace of one client's calls in a driver's process. log: None without a trace."""

    log: Log | None = None


class _Here(threading.local):
    log: Log | None = None  # of the client whose call this thread answers
    call = 0  # the place of its span
    known: object = None  # the mark of the log that has the name of this thread
    tid = 0


class _Process:
    """The tracing state of this process. log: None without a trace. scopes: of clients that trace.

    spanning: whether the traced functions are installed; None during a change, also one that an interrupt ended.
    """

    def __init__(self) -> None:
        self.log: Log | None = None
        self.recording: Recording | None = None
        self.scopes: set[Scope] = set()
        self.spanning: bool | None = False
        self.lock = threading.Lock()
        self.early: list[tuple[str, str, int, int]] = []  # before there was a client: name, detail, begin, end

    @property
    def users(self) -> int:
        """Count the users of the traced functions."""
        return len(self.scopes) + (self.log is not None)


_here = _Here()
process = _Process()
followers: "weakref.WeakSet[Follower]" = weakref.WeakSet()
_numbers = itertools.count(1)
groups = itertools.count(2)
_seams: "list[tuple[type, str, Any, Any]]" = []


def current() -> Log | None:
    """Return the log for this thread's events, or None."""
    return _here.log or process.log


def begin(recording: Recording) -> None:
    """Begin to trace this process and the connected drivers' processes."""
    with process.lock:
        process.log, process.recording = recording.log, recording
    _settle()
    all_followers = members(followers)  # a new follower checks itself whether there is a trace
    for follower in all_followers:
        follower.follow(recording)
    until = time.monotonic() + TAKEN_UP_SECONDS  # for all of them together
    for follower in all_followers:
        follower.await_follow(recording, until)


def end(recording: Recording) -> None:
    """End a recording. It may have ended already, or been interrupted."""
    with process.lock:
        if process.recording is recording:
            process.log = process.recording = None
        others = process.recording is not None
    _settle()
    for follower in () if others else members(followers):
        follower.unfollow()


def open_scope(scope: Scope, into: Log, since: int) -> None:
    """Begin to trace a client's calls. since: earlier events of this process are not recorded."""
    driver, initialisation = LAYER["driver"], PHASE["initialisation"]
    for name, detail, begun, ended in process.early:
        if begun >= since:
            into.write(SPAN, name, begin=begun, end=ended, layer=driver, phase=initialisation, detail=detail)
    with process.lock:
        scope.log = into
        process.scopes.add(scope)
    _settle()
    into.take()


def close_scope(scope: Scope, only: Log) -> None:
    """End it, unless another log has replaced this one."""
    with process.lock:
        if scope.log is only:
            scope.log = None
            process.scopes.discard(scope)
    _settle()


def _settle() -> None:
    """Install the traced functions if anything is traced, and the originals otherwise."""
    with process.lock:
        wanted = process.users > 0
        if process.spanning is not wanted:
            process.spanning = None
            for owner, name, plain, traced in _seams:
                setattr(owner, name, traced if wanted else plain)
            process.spanning = wanted


@contextmanager
def writing_to(scope_log: Log | None) -> Iterator[None]:
    """Write this thread's events to a client's log; None for this process's log."""
    before, _here.log = _here.log, scope_log
    try:
        yield
    finally:
        _here.log = before


def _after_fork() -> None:
    """A child is not traced: the file belongs to its parent."""
    used = process.spanning is not False
    process.__init__()  # type: ignore[misc]
    _here.log = _here.known = None
    for owner, name, plain, _ in _seams if used else ():
        setattr(owner, name, plain)


os.register_at_fork(after_in_child=_after_fork)


# ---------------------------------------------------------------------------------------------------------------- spans


class _Span:
    """A span as a context manager."""

    __slots__ = ("_at", "_given", "_log")

    def __init__(self, into: Log, given: tuple[Any, ...]) -> None:
        self._log, self._given, self._at = into, given, 0

    def __enter__(self) -> None:
        self._at = self._log.begin(*self._given)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self._log.fail(self._at, error)
        self._log.end(self._at)


_NOTHING = nullcontext()


def span(
    layer: str, phase: str, name: str, detail: str = "", key: Key = (0, 0), direction: int = 0
) -> AbstractContextManager[None]:
    """Return a context manager that is a span during a trace. detail: the device or model."""
    into = _here.log or process.log
    if into is None:
        return _NOTHING
    return _Span(into, (LAYER[layer], PHASE[phase], name, detail, key, direction))


def traced_function(
    layer: str, phase: str, name: str, detail: Callable[..., str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make each call of a function a span; for functions of more than microseconds. detail: from its arguments."""

    def around(function: Callable[P, R]) -> Callable[P, R]:
        return cast("Callable[P, R]", _traced(function, layer, phase, name, detail, None, 0))

    return around


def traced_method(
    layer: str,
    phase: str,
    name: str,
    detail: Callable[..., str] | None = None,
    key: Callable[..., Key] | None = None,
    direction: int = 0,
) -> Callable[[F], F]:
    """Make each call of a method a span, without cost outside of a trace: the class then has the original method.

    detail: from the object. key: from the arguments.
    """
    return replaced_while_tracing(lambda function: _traced(function, layer, phase, name, detail, key, direction))


def replaced_while_tracing(make: Callable[[F], Any]) -> Callable[[F], F]:
    """Like `traced_method`, with `make(method)` as the replacement during a trace."""

    def decorate(function: F) -> F:
        return cast("F", _Seam(function, make(function)))

    return decorate


class _Seam:
    """Represents a method until its class is created, which then gets the original method."""

    def __init__(self, plain: Any, traced: Any) -> None:
        self._plain, self._traced = plain, traced

    def __set_name__(self, owner: type, name: str) -> None:
        with process.lock:
            _seams.append((owner, name, self._plain, self._traced))
            setattr(owner, name, self._plain if process.spanning is False else self._traced)


def _traced(
    function: Any,
    layer: str,
    phase: str,
    name: str,
    detail: Callable[..., str] | None,
    key: Callable[..., Key] | None,
    direction: int,
) -> Any:
    of_layer, of_phase = LAYER[layer], PHASE[phase]

    @wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        into = _here.log or process.log
        if into is None:
            return function(*args, **kwargs)
        at = into.begin(
            of_layer,
            of_phase,
            name,
            detail(args[0]) if detail is not None else "",
            key(*args, **kwargs) if key is not None else (0, 0),
            direction,
        )
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            into.fail(at, error)
            raise
        finally:
            into.end(at)

    return traced


@contextmanager
def trace_answer(into: Log, number: int) -> Iterator[None]:
    """In a driver's process, trace the answer to one call of a client, by its number in the session."""
    at = into.begin(LAYER["ipc"], AROUND, "call", "", (SESSION, number), IN)
    before, _here.call = _here.call, at
    try:
        with writing_to(into):
            yield
    finally:
        _here.call = before
        into.end(at)


def called(name: str, phase: str) -> None:
    """Set the name of the call that this thread answers."""
    if _here.log is not None:
        _here.log.renamed(_here.call, name, PHASE[phase])


def notified(number: int) -> None:
    """Set the number of this thread's work for a client, once it is known."""
    if _here.log is not None:
        _here.log.numbered(_here.call, number)


def handover_number() -> int:
    """Return a number for work that another thread will do in a span; 0 without a trace."""
    into = _here.log or process.log
    if into is None:
        return 0
    number = next(_numbers)
    into.write(MARK, "", number, direction=OUT)
    return number


def hand_over(key: Key) -> None:
    """Mark the current span's work elsewhere as one that may begin after its end. key: as of that work's span."""
    into = _here.log or process.log
    if into is not None:
        into.write(MARK, "", key[1], direction=OUT, group=key[0])


def with_span(work: Callable[[], R], name: str, phase: str = "execution") -> Callable[[], R]:
    """Return work for another thread, with a span during a trace."""
    into = _here.log or process.log
    if into is None:
        return work
    number, client = handover_number(), _here.log

    def there() -> R:
        with writing_to(client), span("runtime", phase, name, "", (LOCAL, number), IN):
            return work()

    return there


def is_serving() -> bool:
    """Whether this thread answers a client's call, in a driver's process."""
    return _here.log is not None


def counter(name: str, value: int, pid: int = 0) -> None:
    """Record a value that changes over time. pid: its process, this one by default."""
    into = _here.log or process.log
    if into is not None:
        into.write(COUNTER, name, value, amount=pid)


def instant(layer: str, phase: str, name: str, detail: str = "") -> None:
    """Record an event without duration."""
    into = _here.log or process.log
    if into is not None:
        into.write(INSTANT, name, layer=LAYER[layer], phase=PHASE[phase], detail=detail)
