"""The verdict of an exception that a driver's call raised, and the kinds of reasons."""

import re
from typing import NamedTuple

from nnhal.base.answers import may_be_application_error
from nnhal.base.errors import DeadObject, NnhalError, error_text
from nnhal.base.stacks import dumped_frames, stack_of
from nnhal.conformance.place import place_first, place_in

_NUMBER = re.compile(r"(?<![\w.])(?<!output )-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)(?![\w.])")
_SEVERAL = re.compile(r"([\[(])#(?:, #)*,?([\])])")
LAST_WORDS = "; its last words:"  # before a process's last output, in a reason
REDUCED_TO = "; still fails with "  # before the smallest graph that fails, in a reason


class DriverFault(NamedTuple):
    """A driver's fault: "failed" or "crashed", why, and FILE:LINE of the driver, "" if unknown."""

    verdict: str
    reason: str
    place: str


def fault_of(error: BaseException, stage: str) -> DriverFault:
    """Return the fault behind an exception; raise it again if it must end this process. stage: the driver's call."""
    if isinstance(error, DeadObject):
        text = str(error)
        return DriverFault("crashed", f"{stage}(): {outcome_of_text(text)}", place_first(dumped_frames(text)))
    if isinstance(error, NnhalError):
        return DriverFault("failed", f"{type(error).__name__}: {error}", place_in(error.stack))
    if may_be_application_error(error):
        raise error
    return DriverFault("failed", f"{error_text(error)} (escaped)", place_in(stack_of(error)))


def kind_of(reason: str) -> str:
    """Return a reason without its variable parts: numbers, shapes, last output."""
    return _SEVERAL.sub(r"\1#\2", _NUMBER.sub("#", reason.split(LAST_WORDS, maxsplit=1)[0]))


def outcome_of_text(text: str) -> str:
    """Return the process's fate from a DeadObject, in the words for a process of the suite."""
    return text[max(0, text.find("the driver process")) :].removesuffix(
        ": driver process: it died or closed the connection"
    )
