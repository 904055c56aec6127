"""What a trace is made of: spans by layer and phase, marks, counters, in a log of fixed size that any thread writes to.

Where nothing is traced nothing of this runs: a method that is a `seam` is then the very function that was written, and the
one with a span takes its place when a trace begins. A log is a piece of memory with slots, in this process or mapped by two:
a driver's process writes to one that its client has, so that what it did last can be read after its death. A log that is
full drops what comes, and counts it; nobody ever waits.
"""

import itertools
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from nnhal.base.descriptors import Owner
from nnhal.base.errors import told
from nnhal.base.records import Record, Struct, field

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
SLOTS_OF_DRIVERS = 1 << 15  # of that of a driver's process
TAKEN_UP_SECONDS = 1.0  # that drivers' processes may take to begin with a trace
SPAN, INSTANT, COUNTER, THREAD, MARK = range(1, 6)
OUT, IN = 1, 2  # what a span does with its number: it has something done elsewhere, or is what was done
LOCAL = 0  # the group of numbers of this process
SESSION = 1  # in a driver's process: those of its client's session, which has a group of its own in the client
AROUND = len(PHASES)  # the phase of the span around it
LAYER = {name: number for number, name in enumerate(LAYERS)}
PHASE = {name: number for number, name in enumerate(PHASES)} | {"": AROUND}

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Key = tuple[int, int]  # group, number

# Begin, end, number or value, amount, thread, name, detail, error, group, kind, layer, phase, direction.
_SLOT = struct.Struct("<QQqqIIIIIBBBB8x")
_HEAD = struct.Struct("<QQ")  # dropped, whether it was taken
_END, _WORD, _LENGTH = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<H")
_TEXTS, _CELL = 1 << 12, 256  # names that a log has room for, and bytes for each
_FIRST = _HEAD.size + _TEXTS * _CELL
_END_AT, _NUMBER_AT, _NAME_AT, _ERROR_AT, _PHASE_AT = 8, 16, 36, 44, 54
_now = time.monotonic_ns


class Log:
    """Slots for so many spans, marks and counters. memory: of `size_of(slots)` bytes; by default of this process alone.

    It has no lock: a finalizer may write to it in the middle of anything, also of a write.
    """

    def __init__(self, slots: int, memory: Any = None) -> None:
        if memory is None:
            memory = mmap.mmap(-1, size_of(slots), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.slots, self.memory = slots, memoryview(memory).cast("B")
        self._next, self._next_text = itertools.count(), itertools.count(1)
        self._mark = object()  # threads remember this one: what one of them knew last is not kept in memory for it
        self._texts: dict[str, int] = {"": 0}

    def take(self) -> None:
        """Whoever has the same memory may see that it is written to."""
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
        """A span begins; the place for its `end`, 0 where it is dropped."""
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
        """A span ends."""
        if at:
            _END.pack_into(self.memory, at + _END_AT, _now())

    def fail(self, at: int, error: BaseException) -> None:
        """What ended a span before its time; `end` is to follow."""
        if at:
            kind = "" if type(error).__module__ == "builtins" else f"{type(error).__name__}: "
            _WORD.pack_into(self.memory, at + _ERROR_AT, self._text(kind + told(error)))

    def renamed(self, at: int, name: str, phase: int) -> None:
        """What a span is about turned out after it began."""
        if at:
            _WORD.pack_into(self.memory, at + _NAME_AT, self._text(name))
            self.memory[at + _PHASE_AT] = phase

    def numbered(self, at: int, number: int) -> None:
        """The number of a span turned out after it began."""
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
        """A whole entry at once. begin: now by default."""
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
        """A span of an operation that has ended, by two points on the monotonic clock, within what this thread does."""
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
        """The name of this thread, ahead of what it does first."""
        _here.known = self._mark
        _here.tid = threading.get_native_id()
        self.write(THREAD, threading.current_thread().name)

    def _drop(self, place: int) -> int:
        _END.pack_into(self.memory, 0, place - self.slots + 1)
        return 0

    def _text(self, text: str) -> int:
        """The number of a text; 0 where there is no room for one more."""
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
    """What stands in one slot of a log, looked at. begin, end: monotonic nanoseconds; end 0: it has not ended.

    number: of what passes between threads or processes, or the value of a counter. amount: the process that a counter is
    about; of an operation its number and one. thread: its number in the system.
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
    """What a log holds. wrong: slots that cannot be true, which are left out."""

    entries: Sequence[LogEntry]
    dropped: int
    wrong: int


def size_of(slots: int) -> int:
    """Bytes of a log."""
    return _FIRST + slots * _SLOT.size


def slots_in(size: int) -> int:
    """How many slots a log of so many bytes has."""
    return (size - _FIRST) // _SLOT.size


def taken(memory: Any) -> bool:
    """Whether a process writes to the log in this memory."""
    return bool(_HEAD.unpack_from(memoryview(memory).cast("B"))[1])


def contents(memory: Any, slots: int, since: int, until: int) -> Contents:
    """Read a log that may be written to meanwhile, by a process that nobody trusts: what cannot be true is left out.

    since, until: monotonic nanoseconds; what began later is left out, and what ended later has not ended.
    """
    data = bytes(memoryview(memory).cast("B"))
    entries, wrong, now = [], 0, _now()
    for slot in _SLOT.iter_unpack(data[_FIRST : size_of(slots)]):
        begin, end, number, amount, thread, name, detail, error, group, kind, layer, phase, direction = slot
        if not (begin or kind) or until < begin <= now:  # never used, or not yet; or later
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
    """The log of a driver's process. group: of the numbers that its calls have here. memory: what both map."""

    name: str
    pid: int
    group: int
    memory: Any
    slots: int


class Recording(Struct):
    """A trace that is being made. notes: what is missing of it, and why."""

    log: Log
    since: int
    remotes: list[Remote] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)  # by process, as it was seen last

    def look(self) -> None:
        """Count the memory that each process has, where that has changed."""
        for pid in (os.getpid(), *(remote.pid for remote in list(self.remotes))):
            held = _resident(pid)
            if held is not None and held != self.memory.get(pid):
                self.memory[pid] = held
                self.log.write(COUNTER, "memory", held, amount=pid)


def _resident(pid: int) -> int | None:
    """Bytes that a process has in memory; None where it has ended."""
    file = Owner()
    try:
        file.fds.extend(map(os.open, (f"/proc/{pid}/statm",), (os.O_RDONLY | os.O_CLOEXEC,)))
        return int(os.pread(file.fds[0], 100, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None
    finally:
        file.close()


class Follower(Protocol):
    """What takes part in a trace when one begins: the connection to a driver's process."""

    def follow(self, recording: Recording) -> None:
        """Have the process write to a log of this recording."""

    def await_follow(self, recording: Recording, until: float) -> None:
        """Wait for it to do so, to a point on the monotonic clock at most."""

    def unfollow(self) -> None:
        """It need not any more."""


class Scope:
    """Where the spans of one client's calls go in a driver's process. log: None where it does not trace."""

    log: Log | None = None


class _Here(threading.local):
    log: Log | None = None  # of the client whose call this thread answers
    call = 0  # the place of its span
    known: object = None  # the mark of the log that has the name of this thread
    tid = 0


class _Process:
    """What is traced of this process. log: None where nothing is. scopes: of clients that trace.

    spanning: whether the functions with spans are in their places; None while they are put there, or were when an interrupt
    came.
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
        """Who wants the functions with spans."""
        return len(self.scopes) + (self.log is not None)


_here = _Here()
process = _Process()
followers: "weakref.WeakSet[Follower]" = weakref.WeakSet()
_numbers = itertools.count(1)
groups = itertools.count(2)
_seams: "list[tuple[type, str, Any, Any]]" = []


def current() -> Log | None:
    """Where what this thread does is written, None for nowhere."""
    return _here.log or process.log


def begin(recording: Recording) -> None:
    """From now on this process is traced, and the drivers' processes that it is connected to."""
    with process.lock:
        process.log, process.recording = recording.log, recording
    _settle()
    all_followers = _all_followers()
    for follower in all_followers:
        follower.follow(recording)
    until = time.monotonic() + TAKEN_UP_SECONDS  # for all of them together
    for follower in all_followers:
        follower.await_follow(recording, until)


def end(recording: Recording) -> None:
    """Nothing is traced any more for this recording; the same where it was ended already, or an interrupt came between."""
    with process.lock:
        if process.recording is recording:
            process.log = process.recording = None
        others = process.recording is not None
    _settle()
    for follower in () if others else _all_followers():
        follower.unfollow()


def _all_followers() -> "list[Follower]":
    while True:
        with suppress(RuntimeError):  # one more came meanwhile, which looks itself whether something is traced
            return list(followers)


def open_scope(scope: Scope, into: Log, since: int) -> None:
    """A client's calls are traced from now on. since: what this process did before that is not for it."""
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
    """They are not any more, unless another log has taken the place of this one."""
    with process.lock:
        if scope.log is only:
            scope.log = None
            process.scopes.discard(scope)
    _settle()


def _settle() -> None:
    """Put the functions with spans in their places where anybody traces, and those without where nobody does."""
    with process.lock:
        wanted = process.users > 0
        if process.spanning is not wanted:
            process.spanning = None
            for owner, name, plain, traced in _seams:
                setattr(owner, name, traced if wanted else plain)
            process.spanning = wanted


@contextmanager
def inside(scope_log: Log | None) -> Iterator[None]:
    """What this thread does meanwhile is for the log of a client, None for this process itself."""
    before, _here.log = _here.log, scope_log
    try:
        yield
    finally:
        _here.log = before


def _after_fork() -> None:
    """A child is not traced: the file is its parent's."""
    used = process.spanning is not False
    process.__init__()  # type: ignore[misc]
    _here.log = _here.known = None
    for owner, name, plain, _ in _seams if used else ():
        setattr(owner, name, plain)


os.register_at_fork(after_in_child=_after_fork)


# ---------------------------------------------------------------------------------------------------------------- spans


class _Span:
    """A span as a block."""

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
    """A block that is a span where something is traced. detail: the device or model that it is about."""
    into = _here.log or process.log
    if into is None:
        return _NOTHING
    return _Span(into, (LAYER[layer], PHASE[phase], name, detail, key, direction))


def spanning(
    layer: str, phase: str, name: str, detail: Callable[..., str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function of which each call is a span; for what takes more than microseconds. detail: of its arguments."""

    def around(function: Callable[P, R]) -> Callable[P, R]:
        return cast("Callable[P, R]", _traced(function, layer, phase, name, detail, None, 0))

    return around


def seam(
    layer: str,
    phase: str,
    name: str,
    detail: Callable[..., str] | None = None,
    key: Callable[..., Key] | None = None,
    direction: int = 0,
) -> Callable[[F], F]:
    """A method of which each call is a span, at no cost where nothing is traced: its class has the method itself then.

    detail: of the object. key: of the arguments.
    """
    return instead(lambda function: _traced(function, layer, phase, name, detail, key, direction))


def instead(make: Callable[[F], Any]) -> Callable[[F], F]:
    """As `seam`, with what `make` gives for the method in its place while something is traced."""

    def decorate(function: F) -> F:
        return cast("F", _Seam(function, make(function)))

    return decorate


class _Seam:
    """Stands for a method until its class is made, which gets the method itself."""

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
def answering(into: Log, number: int) -> Iterator[None]:
    """In a driver's process, a block that answers one call of a client, by the number that it has in the session."""
    at = into.begin(LAYER["ipc"], AROUND, "call", "", (SESSION, number), IN)
    before, _here.call = _here.call, at
    try:
        with inside(into):
            yield
    finally:
        _here.call = before
        into.end(at)


def called(name: str, phase: str) -> None:
    """What the call is that this thread answers."""
    if _here.log is not None:
        _here.log.renamed(_here.call, name, PHASE[phase])


def notified(number: int) -> None:
    """The number of what this thread does for a client, which turned out."""
    if _here.log is not None:
        _here.log.numbered(_here.call, number)


def handed_over() -> int:
    """A number for work that this thread gives to another, whose span is to have it; 0 where nothing is traced."""
    into = _here.log or process.log
    if into is None:
        return 0
    number = next(_numbers)
    into.write(MARK, "", number, direction=OUT)
    return number


def hand_over(key: Key) -> None:
    """What the span around has done elsewhere may begin after its end. key: as of the span that is it."""
    into = _here.log or process.log
    if into is not None:
        into.write(MARK, "", key[1], direction=OUT, group=key[0])


def carried(work: Callable[[], R], name: str, phase: str = "execution") -> Callable[[], R]:
    """Work that another thread is to do for this one, with a span where something is traced."""
    into = _here.log or process.log
    if into is None:
        return work
    number, client = handed_over(), _here.log

    def there() -> R:
        with inside(client), span("runtime", phase, name, "", (LOCAL, number), IN):
            return work()

    return there


def serving() -> bool:
    """Whether this thread answers a client's call, in a driver's process."""
    return _here.log is not None


def counter(name: str, value: int, pid: int = 0) -> None:
    """A value that changes over time. pid: of the process that it is about, this one by default."""
    into = _here.log or process.log
    if into is not None:
        into.write(COUNTER, name, value, amount=pid)


def instant(layer: str, phase: str, name: str, detail: str = "") -> None:
    """Something that takes no time."""
    into = _here.log or process.log
    if into is not None:
        into.write(INSTANT, name, layer=LAYER[layer], phase=PHASE[phase], detail=detail)
