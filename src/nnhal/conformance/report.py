"""What went wrong, for people: like failures as one group, with the command that repeats one."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nnhal.conformance.selection import ANY, Selection
from nnhal.conformance.suite import BAD, Outcome

_NUMBER = re.compile(r"(?<![\w.])(?<!output )-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)(?![\w.])")
_SEVERAL = re.compile(r"([\[(])#(?:, #)*,?([\])])")
_WORDS = "; its last words:"


@dataclass(frozen=True)
class Group:
    """Failures of one operation for one reason; the first stands for all."""

    operation: str
    verdict: str
    hint: str
    outcomes: Sequence[Outcome]

    @property
    def first(self) -> Outcome:
        """The one that is shown."""
        return self.outcomes[0]


def grouped(outcomes: Sequence[Outcome]) -> list[Group]:
    """What did not go well by operation and reason, the largest group of each operation first."""
    found: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: (o.id, o.variant)):
        if outcome.verdict in BAD:
            key = outcome.primary, outcome.verdict, kind_of(outcome.reason), outcome.hint
            found.setdefault(key, []).append(outcome)
    groups = [Group(operation, verdict, hint, several) for (operation, verdict, _, hint), several in found.items()]
    return sorted(groups, key=lambda group: (group.operation, -len(group.outcomes)))


def kind_of(reason: str) -> str:
    """A reason without what differs from vector to vector: numbers, shapes, last words."""
    return _SEVERAL.sub(r"\1#\2", _NUMBER.sub("#", reason.split(_WORDS, maxsplit=1)[0]))


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def repeats(selection: Selection, outcome: Outcome) -> str:
    """The command that runs a vector again as it ran."""
    words = ["nnhal", "conformance", str(selection.path)]
    for driver in selection.drivers:
        words += ["--driver", driver]
    given = {"--device": selection.device, "--level": selection.level, "--way": selection.way}
    defaults = {"--device": "", "--level": "", "--way": "plain"}
    words += [word for name, value in given.items() if value != defaults[name] for word in (name, value)]
    for device, options in selection.options.items():
        where = "" if device == ANY else f"{device}:"
        words += [word for key, value in options.items() for word in ("--option", f"{where}{key}={_written(value)}")]
    words += ["--isolate"] * selection.isolate + ["--published-only"] * (not outcome.variant)
    return shlex.join([*words, "--filter", f"^{re.escape(outcome.id)}$"])
