"""Files of expected failures: TOML with entries of suite, name and reason."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from nnhal.base.errors import BadFile, InvalidArgument
from nnhal.base.names import suggestion
from nnhal.conformance.suites.report.results import CaseResult, ExpectedFailure
from nnhal.conformance.suites.run import SUITES
from nnhal.conformance.suites.suite import CaseOutcome

_FIELDS = "suite", "name", "reason"


def read(file: Path) -> list[ExpectedFailure]:
    """Read a file of expected failures.

    Raises:
        BadFile: it cannot be read, or it is not TOML.
        InvalidArgument: an entry lacks a field, names an unknown suite, or its name is not a regular expression.
    """
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BadFile(f"expected failures {file}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"expected failures {file}: is not TOML: {error}") from None
    entries = document.pop("expected", [])
    if document or not isinstance(entries, list):
        extra = ", ".join(document) or "expected"
        raise InvalidArgument(f"expected failures {file}: {extra}: must be [[expected]] tables only")
    return [_entry(f"{file} entry {n}", entry) for n, entry in enumerate(entries, 1)]


def _entry(where: str, entry: object) -> ExpectedFailure:
    if not isinstance(entry, dict) or set(entry) != set(_FIELDS):
        given = ", ".join(entry) if isinstance(entry, dict) else repr(entry)
        raise InvalidArgument(f"{where}: has {given or 'no fields'}, must have {', '.join(_FIELDS)}")
    for name in _FIELDS:
        if not isinstance(entry[name], str) or not entry[name].strip():
            raise InvalidArgument(f"{where}: {name} is {entry[name]!r}, must be text and not empty")
    if entry["suite"] not in SUITES:
        like = suggestion(entry["suite"], SUITES) or f", must be one of {', '.join(SUITES)}"
        raise InvalidArgument(f"{where}: suite {entry['suite']!r} is unknown{like}")
    try:
        re.compile(entry["name"])
    except re.error as error:
        raise InvalidArgument(f"{where}: name is {entry['name']!r}, must be a regular expression: {error}") from None
    return ExpectedFailure(entry["suite"], entry["name"], entry["reason"], where)


def held_against(
    suite: str, outcomes: Sequence[CaseOutcome], expectations: Sequence[ExpectedFailure]
) -> tuple[list[CaseResult], list[ExpectedFailure]]:
    """Return the results of a suite's outcomes, and the entries for this suite that matched no case."""
    entries = [(each, re.compile(each.name)) for each in expectations if each.suite == suite]
    results, used = [], set[str]()
    for outcome in outcomes:
        matches = [entry for entry, pattern in entries if pattern.search(outcome.name)]
        used.update(entry.where for entry in matches)
        results.append(CaseResult(outcome, matches[0] if matches else None))
    return results, [entry for entry, _ in entries if entry.where not in used]
