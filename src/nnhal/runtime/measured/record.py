"""The user's record of measurements: profile, times that tuning measured, and failures, in one SQLite file.

It is a private file in the user's state folder (`hal.cache.tokens.state_folder`). It has no effect on results, only on
where they are computed: if it is damaged or cannot be written, the log reports that, and it counts as empty.
"""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from typing import NamedTuple, TypeVar

import msgspec

from nnhal.base.descriptors import Owner
from nnhal.base.digests import blake2b
from nnhal.base.errors import BadFile, OperationFailed
from nnhal.base.log import logger, warn_once
from nnhal.base.private import private_file, private_folder, require_private_file
from nnhal.hal.cache.keeper import features
from nnhal.hal.cache.tokens import state_folder
from nnhal.runtime.measured import FILE, is_measured, path
from nnhal.runtime.measured.profile import MachineProfile, decoded, encoded

MOST, MOST_FAILURES = 20_000, 2_000  # recorded assignments of all models, and failures of all devices
# seconds to wait for a lock: readers continue without the record, writers run in the background
_WAIT, _WAIT_TO_WRITE = 0.1, 20.0
# Versions of the file: the first has the profile and the failures in the same tables, the second another key of tuned times
_FORM, _TUNED_FORM, _FIRST_FORM = 3, 2, 1
_TABLES = (
    "create table if not exists profile (only_one integer primary key check (only_one = 1), content blob not null)",
    "create table if not exists tuned (question text, devices text not null, assignment text, seconds real not null,"
    " at integer not null, primary key (question, devices, assignment)) without rowid",
    "drop table if exists learnt",
    "create table if not exists failures (device text, model text, operations text, phase text not null,"
    " why text not null, name text not null, at integer not null, primary key (device, model, operations)) without rowid",
)
_FROM_SECOND = (
    "alter table tuned rename to before",
    *_TABLES,
    "insert into tuned select * from before",
    "drop table before",
)
_log = logger("compilation")
T = TypeVar("T")


class StoredFailure(NamedTuple):
    """A failure of a device at operations that it supports. device: its identity; name, for people."""

    device: str
    model: str
    operations: tuple[int, ...]
    phase: str
    why: str
    name: str
    at: int = 0


@cache
def processor() -> str:
    """Return 16 characters that identify this type of CPU."""
    return blake2b(features().encode(), digest_size=8).hexdigest()


@contextmanager
def _opened(*, make: bool) -> Iterator[sqlite3.Connection]:
    """Open the record for one transaction. OSError or sqlite3.Error without one."""
    owner = Owner()
    try:
        folder = private_folder(state_folder(), owner)
        try:  # not opened: closing it would release the locks of other threads' connections
            require_private_file(FILE, os.stat(FILE, dir_fd=folder, follow_symlinks=False))
        except FileNotFoundError:
            if not make:
                raise
            private_file(folder, FILE, os.O_RDWR | os.O_CREAT, owner)
    finally:
        owner.close()
    wait = _WAIT_TO_WRITE if make else _WAIT
    with closing(sqlite3.connect(path(), timeout=wait, isolation_level=None)) as connection:
        if not make:
            yield connection
            return
        connection.execute("begin immediate")  # the writer waits here, not while others wait for it
        with connection:
            (form,) = connection.execute("pragma user_version").fetchone()
            if not 0 <= form <= _FORM:
                raise sqlite3.DatabaseError(f"has format {form}, must be {_FORM}")
            if form < _FORM:
                for statement in _FROM_SECOND if form == _TUNED_FORM else _TABLES:
                    connection.execute(statement)
                connection.execute(f"pragma user_version = {_FORM}")
            yield connection


def _looked(what: str, ask: Callable[[sqlite3.Connection], T], nothing: T, since: int = _FIRST_FORM) -> T:
    if not is_measured():
        return nothing
    try:
        with _opened(make=False) as connection:
            (form,) = connection.execute("pragma user_version").fetchone()
            return ask(connection) if form >= since else nothing  # 0: another process is creating it
    except (OSError, sqlite3.Error, ValueError, BadFile) as error:
        # not at each compilation
        warn_once(_log, f"{what}: nothing is known: {_reason(error)}", str(path()))
        return nothing


def _noted(what: str, write: Callable[[sqlite3.Connection], object]) -> str:
    """Write; return why that failed, or ""."""
    try:
        with _opened(make=True) as connection:
            write(connection)
    except (OSError, sqlite3.Error) as error:
        why = _reason(error)
        _log.warning("%s: not recorded: %s", what, why)
        return why
    return ""


def _reason(error: Exception) -> str:
    damaged = isinstance(error, sqlite3.DatabaseError | ValueError | BadFile)
    hint = (
        "; `nnhal calibrate --forget` deletes it" if damaged and not isinstance(error, sqlite3.OperationalError) else ""
    )
    return f"{FILE}: {getattr(error, 'strerror', None) or error}{hint}"


def require_writable() -> None:
    """Raise OperationFailed if nothing can be recorded."""
    try:
        with _opened(make=True) as connection:
            connection.execute(f"pragma user_version = {_FORM}")  # a transaction that writes nothing needs no disk
    except (OSError, sqlite3.Error) as error:
        raise OperationFailed(f"no measured time can be recorded: {_reason(error)}") from None


# ----------------------------------------------------------------------------------------------------------- the profile


def profile() -> MachineProfile | None:
    """Return the profile of this machine; None if nothing was measured, or for another type of CPU."""

    def ask(connection: sqlite3.Connection) -> MachineProfile | None:
        row = connection.execute("select content from profile").fetchone()
        return None if row is None else decoded(_bytes(row[0]), FILE)

    found = _looked("the profile", ask, None)
    if found is not None and found.processor != processor() and not found.pinned:
        _log.info("the profile is of another processor: nnhal calibrate")
        return None
    return found


def _bytes(content: object) -> bytes:
    if not isinstance(content, bytes):
        raise BadFile(f"{FILE}: the profile is {type(content).__name__}, must be bytes")
    return content


def keep_profile(new: MachineProfile) -> None:
    """Replace the profile, also in a damaged record. OperationFailed if that fails."""
    why = _noted("the profile", lambda c: c.execute("insert or replace into profile values (1, ?)", (encoded(new),)))
    if why and _is_damaged():
        path().unlink(missing_ok=True)
        why = _noted(
            "the profile", lambda c: c.execute("insert or replace into profile values (1, ?)", (encoded(new),))
        )
    if why:
        raise OperationFailed(f"the profile is not kept in {path().parent}: {why}")


def _is_damaged() -> bool:
    try:
        with _opened(make=False) as connection:
            return connection.execute("pragma quick_check").fetchone() != ("ok",)
    except sqlite3.OperationalError:
        return False  # locked, or the disk is full
    except sqlite3.DatabaseError:
        return True
    except OSError:
        return False


def forget() -> None:
    """Delete all measurements and failures. OperationFailed if that fails."""
    try:
        path().unlink(missing_ok=True)
    except OSError as error:
        raise OperationFailed(f"{path()}: {error.strerror or error}") from None


# ------------------------------------------------------------------------------------------------------------ tuned times


def tuned_times(question: str) -> list[tuple[str, str, float]]:
    """Return the texts of devices and assignment, and the seconds, of what tuning measured; the latest tuning first."""

    def ask(connection: sqlite3.Connection) -> list[tuple[str, str, float]]:
        texts = "typeof(devices) = 'text' and typeof(assignment) = 'text'"
        sound = f"{texts} and typeof(seconds) = 'real' and seconds > 0 and seconds <= 1e9"
        rows = connection.execute(
            f"select devices, assignment, seconds from tuned where question = ? and {sound} order by at desc, devices",
            (question,),
        )
        return rows.fetchall()

    return _looked("tuned times", ask, [], _TUNED_FORM)


def record_tuned(question: str, devices: str, rows: Mapping[str, float]) -> None:
    """Replace the times of a question for devices, the text of all candidates. rows: seconds by assignment."""
    now = int(time.time())

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("delete from tuned where question = ? and devices = ?", (question, devices))
        connection.executemany(
            "insert into tuned values (?, ?, ?, ?, ?)", [(question, devices, *row, now) for row in rows.items()]
        )
        connection.execute(
            "delete from tuned where at < (select at from tuned order by at desc limit 1 offset ?)", (MOST,)
        )

    _noted("tuned times", write)


# ----------------------------------------------------------------------------------------------------------- what failed


def record_failure(failure: StoredFailure) -> None:
    """Record a failure of a device in its current version."""
    row = (*failure[:2], json.dumps(failure.operations), *failure[3:6], int(time.time()))

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("insert or replace into failures values (?, ?, ?, ?, ?, ?, ?)", row)
        connection.execute(
            "delete from failures where at < (select at from failures order by at desc limit 1 offset ?)",
            (MOST_FAILURES,),
        )

    _noted("a failure", write)


def failures(devices: Iterable[str], model: str | None = None, *, name: str | None = None) -> list[StoredFailure]:
    """Return the failures of devices, for one model or all, oldest first. devices: identities; name: or by name."""
    asked, which = list(devices), "" if model is None else " and model = ?"

    def ask(connection: sqlite3.Connection) -> list[StoredFailure]:
        marks = ", ".join("?" * len(asked))
        texts = " and ".join(f"typeof({each}) = 'text'" for each in ("device", "model", "phase", "why", "name"))
        sound = f"{texts} and typeof(at) = 'integer'"
        rows = connection.execute(
            f"select * from failures where (device in ({marks}) or name = ?){which} and {sound} order by at",
            (*asked, name, *([model] if which else [])),
        )
        return [StoredFailure(d, m, _places(o), p, w, n, at) for d, m, o, p, w, n, at in rows.fetchall()]

    return _looked("what failed", ask, [])


def _places(text: object) -> tuple[int, ...]:
    """Parse operations of a row; ValueError for anything else."""
    try:
        return tuple(_numbers(text if isinstance(text, str) else ""))
    except msgspec.DecodeError:
        raise ValueError(f"operations are {text!r:.50}, must be a list of numbers") from None


_numbers = msgspec.json.Decoder(list[int]).decode
