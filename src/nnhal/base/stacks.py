"""The stack under what a driver raised: the frames of its own code, for its author, as text of bounded length.

It is made where the driver was asked, and kept with the error; from a process of the driver's own it travels as text, and
is a note of the error there.
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

from nnhal.base.errors import Cancelled, MissedDeadline, NnhalError, clipped, told
from nnhal.base.log import logger
from nnhal.base.names import printable

LONGEST = 8000  # characters of all
_LINE, _FIRST, _LAST, _WALKED, _CAUSES = 300, 5, 15, 10_000, 4
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_PASSED = "runtime/sources.py", "hal/queue.py", "hal/turns.py", "hal/idle.py"  # between a driver and itself
_BETWEEN = *(_PACKAGE + each.replace("/", os.sep) for each in _PASSED), "<frozen importlib._bootstrap"
_log = logger("driver")


@cache
def _library() -> tuple[str, ...]:
    """Where Python's own modules and those that are installed lie."""
    import sysconfig

    return tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def note_stack(error: NnhalError) -> None:
    """Keep the stack of the driver's frames with an error that a driver raised, or that was made of what it raised.

    Not of what only says that it is time: drivers poll for that.
    """
    stack = "" if isinstance(error, Cancelled | MissedDeadline) else stack_of(error)
    if stack:
        error.stack = stack
        _log.debug("%s\n%s", str(error), stack)  # a record that is kept holds no frames


def stack_of(error: BaseException) -> str:
    """The frames of an error outside of nnhal, with those of its causes before them; "" where there are none."""
    parts: list[str] = []
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen and len(parts) < _CAUSES:
        seen.add(id(each))
        lines = list(_frames(attribute_of(each, "__traceback__")))
        if lines:
            parts.append("\n".join([*lines, _line(told(each))]))
        each = attribute_of(each, "__cause__")
    return _shown("\n".join(reversed(parts)))


E = TypeVar("E", bound=BaseException)


def let_frames_go(error: E) -> E:
    """The error, to be kept: it holds nothing of what was at work where it was raised; its traceback keeps the lines."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        clear_frames(attribute_of(each, "__traceback__"))
        each = attribute_of(each, "__cause__") or attribute_of(each, "__context__")
    return error


def with_note(error: NnhalError, stack: str) -> NnhalError:
    """An error with the stack that another process told of: text, as it may stand on a terminal; also a note."""
    if stack:
        error.stack = _shown(stack)
        error.add_note(f"In the driver's process:\n{error.stack}")
    return error


def _shown(text: str) -> str:
    return clipped(printable(text[:LONGEST], keep="\n"), LONGEST)


def attribute_of(error: BaseException, what: str) -> Any:
    """An attribute of every exception, whatever the class of this one says."""
    return getattr(BaseException, what).__get__(error)


def _frames(traceback: object) -> Iterator[str]:
    frames: list[tuple[str, int, str]] = []
    for _ in range(_WALKED):
        if not isinstance(traceback, TracebackType):
            break
        code = traceback.tb_frame.f_code
        if (frames or is_authors(code.co_filename)) and not code.co_filename.startswith(_BETWEEN):
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


def is_authors(file: str) -> bool:
    """Whether code is a driver's, or whatever is not nnhal's."""
    return not file.startswith(_PACKAGE) or file.startswith(_PACKAGE + "drivers" + os.sep)


def _line(text: str) -> str:
    return printable(clipped(text, _LINE))


# ----------------------------------------------------------------------------------------- what a process says of itself

TELL = signal.SIGUSR2  # a process that runs drivers writes the stacks of its threads when it gets this
DUMPED = "most recent call first"  # faulthandler, before the frames of a thread
_MOST_DUMPED = 6
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in ([^ |\n]+)')


def dumped(words: str) -> str:
    """The driver's own frames in what `faulthandler` wrote before a process ended, in one line, the innermost first.

    Of the thread that has any; "" where none has. words: with lines as they are, or separated by `|`.
    """
    return printable(" < ".join(_frame_text(*frame) for frame in _dumped_frames(words)[:_MOST_DUMPED]))


def _frame_text(file: str, line: str, name: str) -> str:
    return f'File "{file}", line {line}, in {name}'


def _dumped_frames(words: str) -> list[tuple[str, str, str]]:
    """File, line and function of the driver's own frames, the innermost first."""
    for thread in re.split(DUMPED, words)[1:]:
        frames = [
            (file, line, name.strip())
            for file, line, name in _FRAME.findall(thread)
            if is_authors(file) and not file.startswith((*_library(), "<"))
        ]
        if frames:
            return frames
    return []


# ------------------------------------------------------------------------------------------------ for people, in short

LAST_WORDS = "; its last words: "  # before what a process wrote before its end, in the message of an error
_FEW, _SAID = 5, 300  # frames; characters of last words that are no stack


def in_short(message: str) -> tuple[str, list[str]]:
    """A message without the log of a driver's process; the innermost frames of the driver where that log has some."""
    what, mark, words = message.partition(LAST_WORDS)
    if not mark:
        return message, []
    frames = _dumped_frames(words)
    if not frames:
        left = re.split(r"Fatal Python error|Current thread|Thread 0x", words)[0].strip(" |")
        return (f"{what}{mark}{clipped(left, _SAID)}" if left else what), []
    file, line, name = frames[0]
    where = f"{what} in {name}() at {os.path.basename(file)}:{line}"
    return printable(where), [printable(f"  {_frame_text(*frame)}") for frame in reversed(frames[:_FEW])]


def innermost(stack: str) -> list[str]:
    """The lines of the innermost frames of a stack, and of what was raised there."""
    lines = stack.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("  File ")]
    left = len(starts) - _FEW
    return lines if left <= 0 else [f"  ... {left} frames: --verbose", *lines[starts[left] :]]
