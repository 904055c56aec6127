"""What code of somebody else's gives and raises: it can always be told, and is always one of nnhal's errors."""

import threading
from collections.abc import Callable
from types import TracebackType

from nnhal.base.errors import DriverFailed, NnhalError, OutOfMemory, clipped, told
from nnhal.base.log import logger
from nnhal.base.names import printable
from nnhal.base.stacks import note_stack

_log = logger("driver")


def shown(value: object) -> str:
    """`repr`, of bounded length, and of what has none too."""
    try:
        return clipped(repr(value), 200)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def may_be_own(error: BaseException) -> bool:
    """Whether it may be the application's own interrupt or exit: those reach the main thread alone."""
    return isinstance(error, KeyboardInterrupt | SystemExit) and threading.current_thread() is threading.main_thread()


class answering:  # noqa: N801 (used as a function)
    """What is asked inside is asked of a driver: whatever is raised there becomes an NnhalError that names it.

    where: as in "device litert". query: what it is asked, for what is none of nnhal's errors. An interrupt that may be the
    application's own stays what it is.
    """

    def __init__(self, where: str, query: str) -> None:
        self._where, self._query = where, query

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if error is None or may_be_own(error):
            return
        told_as = self._error(error)
        if told_as is error:
            note_stack(error)
            return
        told_as.__cause__ = error
        note_stack(told_as)
        try:
            raise told_as
        finally:
            del told_as, error  # its traceback holds this frame

    def _error(self, error: BaseException) -> NnhalError:
        """What it is to the one who asked."""
        if isinstance(error, MemoryError) and not isinstance(error, NnhalError):
            return OutOfMemory(f"{self._where}: {self._query} ran out of memory")
        if not isinstance(error, NnhalError):
            return DriverFailed(f"{self._where}: {self._query} raised {printable(clipped(told(error)))}")
        return named(error, self._where, self._query)


def named(error: NnhalError, where: str, query: str) -> NnhalError:
    """An error of nnhal's that a driver raised, with the driver in its message."""
    said = told(error)
    text = printable(clipped(said))  # on one line: the others are for nnhal to write
    if where not in text or text != said:
        error.args = (text if where in text else f"{where}: {text}",)
        if where not in told(error):  # of a class with a text of its own
            return DriverFailed(f"{where}: {query} raised {type(error).__name__}: {text}")
    return error


def let_go(where: str, query: str, call: Callable[[], object]) -> None:
    """Tell a driver that something has ended. What it raises is logged: whoever ends it has more to give back."""
    try:
        with answering(where, query):
            call()
    except NnhalError as error:
        _log.error("%s", error, exc_info=error.__cause__)
