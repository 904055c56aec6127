"""The stack of a driver's error: the frames of the driver's code, for its author, as text of bounded length.

It is created where the driver was called, and stored in the error. From an isolated driver it arrives as text, and
becomes a note of the error.
"""

import linecache
import os
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from traceback import clear_frames
from types import TracebackType
from typing import Any, TypeVar

from nnhal.base.errors import Cancelled, MissedDeadline, NnhalError, bounded_text, error_text
from nnhal.base.log import logger
from nnhal.base.names import printable

LONGEST = 8000  # characters in total
_LINE, _FIRST, _LAST, _WALKED, _CAUSES = 300, 5, 15, 10_000, 4
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
# Files of nnhal between a driver and its own callbacks
_PASSED = "runtime/sources.py", "hal/queue.py", "hal/options_lock.py", "hal/idle.py"
_BETWEEN = *(_PACKAGE + each.replace("/", os.sep) for each in _PASSED), "<frozen importlib._bootstrap"
_log = logger("driver")


@cache
def _library() -> tuple[str, ...]:
    """Return the folders of Python's modules and of installed ones."""
    import sysconfig

    return tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def store_stack(error: NnhalError) -> None:
    """Store the stack of the driver's frames in an error that a driver raised or caused.

    Errors for a passed deadline get none: drivers poll for that.
    """
    stack = "" if isinstance(error, Cancelled | MissedDeadline) else stack_of(error)
    if stack:
        error.stack = stack
        _log.debug("%s\n%s", str(error), stack)  # a stored log record holds no frames


def stack_of(error: BaseException) -> str:
    """Return the frames of an error outside of nnhal, after those of its causes; "" if there are none."""
    parts: list[str] = []
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen and len(parts) < _CAUSES:
        seen.add(id(each))
        lines = list(_frames(attribute_of(each, "__traceback__")))
        if lines:
            parts.append("\n".join([*lines, _line(error_text(each))]))
        each = attribute_of(each, "__cause__")
    return _shown("\n".join(reversed(parts)))


E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """Prepare an error for storage: it no longer refers to local variables; its traceback keeps the lines."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        clear_frames(attribute_of(each, "__traceback__"))
        each = attribute_of(each, "__cause__") or attribute_of(each, "__context__")
    return error


def with_note(error: NnhalError, stack: str) -> NnhalError:
    """Return an error with the stack from another process, printable, also as a note."""
    if stack:
        error.stack = _shown(stack)
        error.add_note(f"In the driver's process:\n{error.stack}")
    return error


def _shown(text: str) -> str:
    return bounded_text(printable(text[:LONGEST], keep="\n"), LONGEST)


def attribute_of(error: BaseException, what: str) -> Any:
    """Return an attribute of an exception, bypassing overrides in its class."""
    return getattr(BaseException, what).__get__(error)


def _frames(traceback: object) -> Iterator[str]:
    frames: list[tuple[str, int, str]] = []
    for _ in range(_WALKED):
        if not isinstance(traceback, TracebackType):
            break
        code = traceback.tb_frame.f_code
        if (frames or is_driver_code(code.co_filename)) and not code.co_filename.startswith(_BETWEEN):
            frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    left_out = len(frames) - _FIRST - _LAST
    for number, (file, line, name) in enumerate(frames):
        if left_out > 0 and _FIRST <= number < _FIRST + left_out:
            if number == _FIRST:
                yield f"  ... {left_out} frames left out"
            continue
        yield _line(f'  File "{file}", line {line}, in {name}')
        text = linecache.getline(file, line).strip()
        if text:
            yield _line(f"    {text}")


def is_driver_code(file: str) -> bool:
    """Whether a file is driver code: not part of nnhal."""
    return not file.startswith(_PACKAGE) or file.startswith(_PACKAGE + "drivers" + os.sep)


def _line(text: str) -> str:
    return printable(bounded_text(text, _LINE))


# ----------------------------------------------------------------------------------------- diagnostics of a process

TELL = signal.SIGUSR2  # a process that runs drivers writes the stacks of its threads on this signal
DUMPED = "most recent call first"  # written by faulthandler before the frames of a thread
_MOST_DUMPED = 6
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in ([^ |\n]+)')


def dumped_frames(words: str) -> str:
    """Return the driver's frames in `faulthandler`'s output, in one line, the innermost first.

    They come from the first thread that has any; "" if none has. words: the lines as written, or separated by `|`.
    """
    return printable(" < ".join(_frame_text(*frame) for frame in _dumped_frames(words)[:_MOST_DUMPED]))


def _frame_text(file: str, line: str, name: str) -> str:
    return f'File "{file}", line {line}, in {name}'


def _dumped_frames(words: str) -> list[tuple[str, str, str]]:
    """Returns file, line and function of the driver's frames, the innermost first."""
    for thread in re.split(DUMPED, words)[1:]:
        frames = [
            (file, line, name.strip())
            for file, line, name in _FRAME.findall(thread)
            if is_driver_code(file) and not file.startswith((*_library(), "<"))
        ]
        if frames:
            return frames
    return []


# ------------------------------------------------------------------------------------------------ for people, in short

LAST_WORDS = "; its last words: "  # before what a process wrote before its end, in the message of an error
_FEW, _SAID = 5, 300  # frames; characters of last words that are no stack


def without_process_log(message: str) -> tuple[str, list[str]]:
    """A message without the log of a driver's process; the innermost frames of the driver where that log has some."""
    what, mark, words = message.partition(LAST_WORDS)
    if not mark:
        return message, []
    frames = _dumped_frames(words)
    if not frames:
        left = re.split(r"Fatal Python error|Current thread|Thread 0x", words)[0].strip(" |")
        return (f"{what}{mark}{bounded_text(left, _SAID)}" if left else what), []
    file, line, name = frames[0]
    where = f"{what} in {name}() at {os.path.basename(file)}:{line}"
    return printable(where), [printable(f"  {_frame_text(*frame)}") for frame in reversed(frames[:_FEW])]


def innermost(stack: str) -> list[str]:
    """The lines of the innermost frames of a stack, and of what was raised there."""
    lines = stack.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("  File ")]
    left = len(starts) - _FEW
    return lines if left <= 0 else [f"  ... {left} frames: --verbose", *lines[starts[left] :]]
