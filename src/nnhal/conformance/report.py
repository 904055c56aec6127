"""Groups failures for people: similar ones together, with a command that repeats one."""

import re
import shlex
from collections.abc import Sequence

from nnhal.base.records import Record
from nnhal.conformance.selection import Selection
from nnhal.conformance.specs.archive import SUFFIX, specifications
from nnhal.conformance.suite import BAD, Outcome

_NUMBER = re.compile(r"(?<![\w.])(?<!output )-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)(?![\w.])")
_SEVERAL = re.compile(r"([\[(])#(?:, #)*,?([\])])")
BEFORE = 20  # earlier vectors that are run again before one that does not fail alone
_WORDS = "; its last words:"


class Group(Record, frozen=True):
    """Failures of one operation for one reason; the first represents all."""

    operation: str
    verdict: str
    hint: str
    outcomes: Sequence[Outcome]

    @property
    def first(self) -> Outcome:
        """The outcome that is shown."""
        return self.outcomes[0]


def grouped(outcomes: Sequence[Outcome]) -> list[Group]:
    """Group failed outcomes by operation and reason, the largest group of each operation first."""
    found: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: (o.id, o.variant)):
        if outcome.verdict in BAD:
            key = outcome.primary, outcome.verdict, kind_of(outcome.reason), outcome.hint
            found.setdefault(key, []).append(outcome)
    groups = [Group(operation, verdict, hint, several) for (operation, verdict, _, hint), several in found.items()]
    return sorted(groups, key=lambda group: (group.operation, -len(group.outcomes)))


def kind_of(reason: str) -> str:
    """Return a reason without its variable parts: numbers, shapes, last output."""
    return _SEVERAL.sub(r"\1#\2", _NUMBER.sub("#", reason.split(_WORDS, maxsplit=1)[0]))


def repeats(selection: Selection, outcome: Outcome) -> str:
    """Return the command that runs a vector again as it ran: after the vectors before it, if it does not fail alone."""
    ids = [*outcome.before[-BEFORE:], outcome.id]
    words = ["nnhal", "conformance", *_source(selection, outcome)]
    for driver in selection.drivers:
        words += ["--driver", driver]
    given = {"--device": selection.device, "--execution-path": selection.way}
    defaults = {"--device": "", "--execution-path": "plain"}
    words += [word for name, value in given.items() if value != defaults[name] for word in (name, value)]
    words += selection.asked_for() + ["--published-only"] * (not outcome.variant and not outcome.alone)
    words += ["--jobs", "1"] * bool(outcome.alone)
    wanted = "|".join(map(re.escape, ids))
    return shlex.join([*words, "--filter", f"^({wanted})$" if outcome.alone else f"^{wanted}$"])


def _source(selection: Selection, outcome: Outcome) -> list[str]:
    """The folder of the vectors; if they were built from specifications, those: of one vector alone, its own."""
    if selection.specs is None:
        return [str(selection.path)]
    version, specification, _ = outcome.id.split("/", 2)
    own = f"{specification}{SUFFIX}"
    found = [f for f in specifications(selection.specs) if f.name == own and f.resolve().parent.name == version]
    return ["--specs", str(selection.specs if outcome.alone else found[0])]
