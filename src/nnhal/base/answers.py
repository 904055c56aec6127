"""Handles results and errors of untrusted code: every value can be shown, and every error is an NnhalError."""

import sys
import threading
from collections.abc import Callable
from inspect import CO_VARARGS
from itertools import pairwise
from types import FrameType, TracebackType

from nnhal.base.errors import DriverFailed, NnhalError, OutOfMemory, bounded_text, error_text
from nnhal.base.log import logger
from nnhal.base.names import printable
from nnhal.base.stacks import attribute_of, store_stack

_log = logger("driver")


def safe_repr(value: object) -> str:
    """Return `repr` of bounded length, also for an object whose `repr` fails."""
    try:
        return bounded_text(repr(value), 200)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def may_be_application_error(error: BaseException) -> bool:
    """Whether the error may be the application's, as in `application_error`."""
    return application_error(error) is not None


def raise_application_error(error: BaseException) -> None:
    """Raise the application's exception instead of this error, if there is one, as in `application_error`."""
    own = application_error(error)
    if own is not None:
        context = own.__context__
        try:
            raise own
        finally:
            own.__context__ = context
            del error, own, context  # the traceback holds this frame


def application_error(error: BaseException) -> BaseException | None:
    """Return the application's exception if one ended a call: an interrupt, or one of its signal handler.

    Python runs signal handlers in the main thread at any point, also inside a driver, which may then raise another
    error. The driver is not at fault in either case. It is at fault for an exit that no signal handler raised.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    if isinstance(error, KeyboardInterrupt):
        return error
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        trace: TracebackType | None = attribute_of(each, "__traceback__")
        before_this_call = each is not error and trace is not None and _runs(trace.tb_frame)
        if before_this_call:  # the application was handling it before this call
            return None
        if _raised_by_a_handler(trace):
            return each
        each = attribute_of(each, "__cause__") or attribute_of(each, "__context__")
    return None


def _runs(frame: FrameType) -> bool:
    """Whether this thread is executing a frame."""
    each: FrameType | None = sys._getframe()
    while each is not None and each is not frame:
        each = each.f_back
    return each is not None


def _raised_by_a_handler(trace: TracebackType | None) -> bool:
    """Whether a signal handler is among the frames: its arguments are a signal number and the previous frame."""
    interrupted: FrameType | None = None
    while trace is not None:
        frame = trace.tb_frame
        if interrupted is not None and any(
            then is interrupted and type(number) is int for number, then in pairwise(_arguments(frame))
        ):
            return True
        interrupted, trace = frame, trace.tb_next
    return False


def _arguments(frame: FrameType) -> list[object]:
    """Return a function's positional arguments."""
    code, names = frame.f_code, frame.f_locals
    given: list[object] = [names.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & CO_VARARGS:
        more = names.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += more if type(more) is tuple else ()  # not `isinstance`, which would call code of the driver
    return given


class driver_call:  # noqa: N801 (used as a function)
    """Converts errors of a driver's method: every exception becomes an NnhalError that names the driver.

    where: such as "device litert". query: the method, for an exception that is not an NnhalError. An interrupt that may
    be the application's is not converted.
    """

    def __init__(self, where: str, query: str) -> None:
        self._where, self._query = where, query

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        own = None if error is None else application_error(error)
        if error is None or own is error:
            return
        if own is not None:
            raise_application_error(error)
        told_as = self._error(error)
        if told_as is error:
            store_stack(error)
            return
        told_as.__cause__ = error
        store_stack(told_as)
        try:
            raise told_as
        finally:
            del told_as, error  # its traceback holds this frame

    def _error(self, error: BaseException) -> NnhalError:
        """Return the error for the caller."""
        if isinstance(error, MemoryError) and not isinstance(error, NnhalError):
            return OutOfMemory(f"{self._where}: {self._query} ran out of memory")
        if not isinstance(error, NnhalError):
            return DriverFailed(f"{self._where}: {self._query} raised {printable(bounded_text(error_text(error)))}")
        return with_driver_name(error, self._where, self._query)


def with_driver_name(error: NnhalError, where: str, query: str) -> NnhalError:
    """Return a driver's NnhalError, with the driver in its message."""
    said = error_text(error)
    text = printable(bounded_text(said))  # on one line: only nnhal writes further lines
    if where not in text or text != said:
        error.args = (text if where in text else f"{where}: {text}",)
        if where not in error_text(error):  # a class that overrides `__str__`
            return DriverFailed(f"{where}: {query} raised {type(error).__name__}: {text}")
    return error


def close_quietly(where: str, query: str, call: Callable[[], object]) -> None:
    """Close a driver's object. An error is only logged, because the caller has more to close."""
    try:
        with driver_call(where, query):
            call()
    except NnhalError as error:
        _log.error("%s", error, exc_info=error.__cause__)
