"""Time: durations given in seconds, points on the monotonic clock in nanoseconds, calls that end in time."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from numbers import Real
from typing import Any, TypeVar

from nnhal.base.errors import InvalidArgument, MissedDeadline, ResourceExhausted

K = TypeVar("K")
T = TypeVar("T")
NS = 1_000_000_000
SLICE = 0.02  # seconds between looks at whether what is waited for is still wanted
# How long a driver's process may leave a call unanswered that has no deadline: a question, and what the driver works for.
QUERY_NS, WORK_NS = 30_000_000_000, 600_000_000_000
_FOR_EVER = 2**32  # seconds, 136 years: what is longer is no limit


def nanoseconds(seconds: Any, what: str) -> int | None:
    """A duration; None for no limit, which infinity is too. InvalidArgument for what is no number, NaN, or below 0."""
    if seconds is None:
        return None
    if not is_number(seconds):
        raise InvalidArgument(f"{what} is {seconds!r}, must be a number of seconds, or None for no limit")
    if not seconds >= 0:
        raise InvalidArgument(f"{what} is {seconds} s, must be at least 0")
    return None if seconds >= _FOR_EVER else int(float(seconds) * NS)


def limit(seconds: Any, what: str) -> float | None:
    """How long a wait may last, in seconds; None for no limit, and what is below 0 is none at all. As `nanoseconds`."""
    length = nanoseconds(max(seconds, 0) if is_number(seconds) else seconds, what)
    return None if length is None else length / NS


def is_number(value: object) -> bool:
    """Whether it is a real number; a boolean is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def point_in_time(seconds: Any, what: str = "deadline") -> int | None:
    """The point so many seconds from now; None for no limit. Raises as `nanoseconds` does."""
    length = nanoseconds(seconds, what)
    return None if length is None else time.monotonic_ns() + length


def seconds_until(point: int) -> float:
    """How long a wait may last; 0 where the point has passed."""
    return max(0, point - time.monotonic_ns()) / NS


def patience(deadline: int | None, cancellable: bool = False) -> float | None:
    """Seconds that a wait may last: until the point, and shorter where it may be cancelled meanwhile; None for no limit."""
    left = None if deadline is None else seconds_until(deadline)
    if not cancellable:
        return left
    return SLICE if left is None else min(SLICE, left)


def by(
    deadline: int | None,
    what: str,
    work: Callable[[], T],
    late: Callable[[T], object] = lambda _: None,
    wanted: Callable[[], object] | None = None,
) -> T:
    """What `work` returns or raises; MissedDeadline where it has not by `deadline`. Called plainly where nothing ends it.

    With a deadline it runs on a thread of its own, which goes on where nobody waits any more; `late` is given what it
    returns then. wanted: asked now and then, raises where it is not waited for any more.
    """
    if deadline is None and wanted is None:
        return work()
    outcome: Future[T] = Future()
    try:
        _start(work, what, outcome)
        while not wait((outcome,), patience(deadline, wanted is not None)).done:
            if wanted is not None:
                wanted()
            if deadline is not None and time.monotonic_ns() >= deadline:
                raise MissedDeadline(f"{what}: has not ended by the deadline")
        return outcome.result()
    except BaseException:  # an interrupt too
        outcome.add_done_callback(lambda done: None if done.exception() else late(done.result()))
        raise


def at_once(what: str, call: Callable[[K], T], items: Sequence[K]) -> list[T]:
    """What the call returns for each, all at once; the first error in their order is raised.

    An interrupt waits for none of them: they go on, on threads of their own.
    """
    if len(items) == 1:
        return [call(items[0])]
    outcomes: list[Future[T]] = [Future() for _ in items]
    for item, outcome in zip(items, outcomes, strict=True):
        _start(partial(call, item), what, outcome)
    wait(outcomes)
    return [outcome.result() for outcome in outcomes]


def _start(work: Callable[[], T], what: str, outcome: Future[T]) -> None:
    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    try:
        threading.Thread(target=run, name="nnhal-by", daemon=True).start()
    except RuntimeError as error:
        raise ResourceExhausted(f"{what}: no thread for it: {error}") from None
