"""Time: durations in seconds, points on the monotonic clock in nanoseconds, and calls with a deadline."""

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
SLICE = 0.02  # seconds between checks whether a waiting caller was cancelled
# How long a driver's process may leave a call without deadline unanswered: a query, and a preparation or execution.
QUERY_NS, WORK_NS = 30_000_000_000, 600_000_000_000
_FOR_EVER = 2**32  # seconds, 136 years: longer means no limit


def nanoseconds(seconds: Any, what: str) -> int | None:
    """Convert a duration; None and infinity mean no limit. InvalidArgument for anything but a number from 0 on."""
    if seconds is None:
        return None
    if not is_number(seconds):
        raise InvalidArgument(f"{what} is {seconds!r}, must be a number of seconds, or None for no limit")
    if not seconds >= 0:
        raise InvalidArgument(f"{what} is {seconds} s, must be at least 0")
    return None if seconds >= _FOR_EVER else int(float(seconds) * NS)


def limit(seconds: Any, what: str) -> float | None:
    """Return the seconds that a wait may last; None for no limit; a negative number counts as 0."""
    length = nanoseconds(max(seconds, 0) if is_number(seconds) else seconds, what)
    return None if length is None else length / NS


def is_number(value: object) -> bool:
    """Whether it is a real number; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def point_in_time(seconds: Any, what: str = "deadline") -> int | None:
    """Return the point so many seconds from now; None for no limit. Raises as `nanoseconds` does."""
    length = nanoseconds(seconds, what)
    return None if length is None else time.monotonic_ns() + length


def seconds_until(point: int) -> float:
    """Return the seconds until a point; 0 if it has passed."""
    return max(0, point - time.monotonic_ns()) / NS


def wait_seconds(deadline: int | None, cancellable: bool = False) -> float | None:
    """Return the seconds that a wait may last: until the point, shorter if cancellable; None for no limit."""
    left = None if deadline is None else seconds_until(deadline)
    if not cancellable:
        return left
    return SLICE if left is None else min(SLICE, left)


def run_with_deadline(
    deadline: int | None,
    what: str,
    work: Callable[[], T],
    late: Callable[[T], object] = lambda _: None,
    wanted: Callable[[], object] | None = None,
) -> T:
    """Return the result of `work`; MissedDeadline if it has none by `deadline`.

    With a deadline, it runs in another thread, which continues after the deadline; `late` then receives its result.
    wanted: called now and then, and raises if the caller no longer waits.
    """
    if deadline is None and wanted is None:
        return work()
    outcome: Future[T] = Future()
    try:
        _start(work, what, outcome)
        while not wait((outcome,), wait_seconds(deadline, wanted is not None)).done:
            if wanted is not None:
                wanted()
            if deadline is not None and time.monotonic_ns() >= deadline:
                raise MissedDeadline(f"{what}: has not ended by the deadline")
        return outcome.result()
    except BaseException:  # also after an interrupt
        outcome.add_done_callback(lambda done: None if done.exception() else late(done.result()))
        raise


def map_in_threads(what: str, call: Callable[[K], T], items: Sequence[K]) -> list[T]:
    """Call a function for each item, all at once, and return the results; the first error in their order is raised.

    An interrupt does not wait for the calls: they continue in their threads.
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
