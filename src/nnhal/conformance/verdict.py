"""Verdicts: of an exception that a driver's call raised, of each operand type of a case; and the kinds of reasons."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from nnhal.base.answers import may_be_application_error
from nnhal.base.errors import DeadObject, NnhalError, error_text
from nnhal.base.stacks import dumped_frames, stack_of
from nnhal.conformance.place import place_first, place_in

_NUMBER = re.compile(r"(?<![\w.])(?<!output )-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)(?![\w.])")
_SEVERAL = re.compile(r"([\[(])#(?:, #)*,?([\])])")
BAD = "failed", "crashed", "hung"
_WORST_FIRST = "crashed", "hung", "failed", "passed", "skipped", "unsupported"
LAST_WORDS = "; its last words:"  # before a process's last output, in a reason
REDUCED_TO = "; still fails with "  # before the smallest graph that fails, in a reason


class DriverFault(NamedTuple):
    """A driver's fault: "failed" or "crashed", why, and FILE:LINE of the driver, "" if unknown."""

    verdict: str
    reason: str
    place: str


class TypeVerdicts:
    """The operand types that a case tries, and the verdict of each.

    announce: is called with each type that is tried from now on. now: that type, "" if there is none or several.
    """

    def __init__(self, announce: Callable[[str], object] = lambda type: None) -> None:
        self._announce, self.now = announce, ""
        self._tried: dict[str, None] = {}  # types whose verdict is that of the case
        self._found: dict[str, str] = {}

    @property
    def tries_any(self) -> bool:
        """Whether the case tries a type."""
        return bool(self._tried)

    def at(self, type: str) -> None:
        """Announce the type of the next calls of the driver, "" for none: if they fail, it is bad."""
        self.now = type
        self._announce(type)

    def begin(self, *types: str) -> None:
        """Try a type from now on, or several at once. Without another verdict, they have that of the case."""
        self._tried |= dict.fromkeys(types)
        self.at(types[0] if len(types) == 1 else "")

    def begin_more(self, *types: str) -> None:
        """Try types at once with those that were begun before: a failure is not of one of several."""
        self.begin(*dict.fromkeys((*self._tried, *types)))

    def end(self, verdict: str) -> None:
        """End the current type with its verdict."""
        self._tried.pop(self.now, None)
        if self.now:
            self._note(self.now, verdict)
        self.at("")

    def drop(self) -> None:
        """Forget the types without a verdict: nothing was tried after all."""
        self._tried.clear()
        self.at("")

    def of_case(self, verdict: str) -> Mapping[str, str]:
        """Return the verdict of each type, by that of the case. It is bad because of the current type alone."""
        for each in [self.now] * bool(self.now) if verdict in BAD else self._tried:
            self._note(each, verdict)
        return self._found

    def _note(self, kind: str, verdict: str) -> None:
        self._found[kind] = min(verdict, self._found.get(kind, verdict), key=_WORST_FIRST.index)


def type_of_case(types: Mapping[str, str]) -> str:
    """Return the type for which a case is bad, the first of several, else its only type; "" if it has several."""
    bad = [each for each, verdict in types.items() if verdict in BAD]
    return next(iter(bad or types), "") if bad or len(types) == 1 else ""


def data_types(types: Iterable[str]) -> list[str]:
    """Return the types of a model's data, of those of its operands: of tensors that are no indices or masks, if any."""
    tensors = [each for each in dict.fromkeys(types) if each.startswith("TENSOR_")]
    return [each for each in tensors if each not in ("TENSOR_INT32", "TENSOR_BOOL8")] or tensors


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
