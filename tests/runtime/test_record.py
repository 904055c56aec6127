"""The user's record of what was measured: kept, shared by processes, of the user alone, and never a reason to fail."""

import multiprocessing
import os
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import nnhal
from nnhal.base.log import warn_once
from nnhal.runtime import measured
from nnhal.runtime.measured import record
from nnhal.runtime.measured.profile import MachineProfile
from tests.execution import run_python
from tests.interrupts import interrupted_at
from tests.runtime.test_measured_profile import whole
from tests.waiting import Opened


@pytest.fixture(autouse=True)
def untold() -> None:
    """What other tests were told of once is told again."""
    warn_once.cache_clear()


def mine(pinned: bool = False) -> MachineProfile:
    each = whole()
    return MachineProfile(record.processor(), each.made, each.devices, each.crossings, pinned)


def test_without_a_record_nothing_is_known_and_none_is_made_by_asking() -> None:
    assert not measured.is_measured()
    assert record.profile() is None and record.tuned_times("m") == [] and record.failures(["d"]) == []
    assert not measured.is_measured()


def test_a_record_that_somebody_is_about_to_make_holds_nothing_and_is_nothing_to_tell_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record.keep_profile(mine())
    with closing(sqlite3.connect(measured.path())) as connection, connection:
        connection.execute("drop table profile")
        connection.execute("pragma user_version = 0")
    assert record.profile() is None and not caplog.records


def test_a_profile_is_kept_for_the_user_alone() -> None:
    record.keep_profile(mine())
    assert record.profile() == mine()
    assert measured.path().stat().st_mode & 0o777 == 0o600
    record.forget()
    assert record.profile() is None
    record.forget()


def test_a_profile_of_another_processor_is_not_found_unless_it_is_held_to() -> None:
    record.keep_profile(whole())
    assert record.profile() is None
    other = MachineProfile("elsewhere", 1, whole().devices, {}, pinned=True)
    record.keep_profile(other)
    assert record.profile() == other


def test_times_of_a_question_replace_those_of_its_tuning_before() -> None:
    record.record_tuned("m", "[]", {"a": 4.0, "b": 1.0})
    record.record_tuned("n", "[]", {"a": 2.0})
    record.record_tuned("m", "[]", {"a": 8.0})
    assert record.tuned_times("m") == [("[]", "a", 8.0)] and record.tuned_times("n") == [("[]", "a", 2.0)]
    assert record.tuned_times("o") == []


def test_times_of_a_question_for_other_devices_stay_behind_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    for second, devices in enumerate(("[1]", "[2]", "[1]", "[0]")):
        monkeypatch.setattr("time.time", lambda s=second: float(s))
        record.record_tuned("m", devices, {"a": 1.0 + second})
    assert record.tuned_times("m") == [("[0]", "a", 4.0), ("[1]", "a", 3.0), ("[2]", "a", 2.0)]


def test_a_record_of_the_second_form_keeps_its_tuned_times() -> None:
    record.record_tuned("m", "[1]", {"a": 4.0})
    with closing(sqlite3.connect(record.path())) as c, c:
        c.execute("drop table tuned")
        c.execute(
            "create table tuned (question text, devices text not null, assignment text, seconds real not null,"
            " at integer not null, primary key (question, assignment)) without rowid"
        )
        c.execute("insert into tuned values ('m', '[1]', 'a', 4.0, 1)")
        c.execute("pragma user_version = 2")
    assert record.tuned_times("m") == [("[1]", "a", 4.0)]
    record.record_tuned("m", "[2]", {"a": 5.0})
    assert record.tuned_times("m") == [("[2]", "a", 5.0), ("[1]", "a", 4.0)]


def test_a_record_of_the_first_form_keeps_its_profile_and_failures() -> None:
    record.keep_profile(mine())
    record.record_failure(record.StoredFailure("d", "m", (1,), "run", "why", "name"))
    with closing(sqlite3.connect(record.path())) as c, c:
        c.execute("drop table tuned")
        c.execute("create table learnt (model text, assignment text, seconds real, count integer, at integer)")
        c.execute("pragma user_version = 1")
    assert record.profile() == mine() and record.tuned_times("m") == [] and len(record.failures(["d"])) == 1
    record.record_tuned("m", "[]", {"a": 4.0})
    assert (
        record.tuned_times("m") == [("[]", "a", 4.0)]
        and record.profile() == mine()
        and len(record.failures(["d"])) == 1
    )
    with closing(sqlite3.connect(record.path())) as c:
        assert c.execute("select count(*) from sqlite_master where name = 'learnt'").fetchone() == (0,)


def test_no_more_is_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST", 5)
    for second in range(20):
        monkeypatch.setattr("time.time", lambda s=second: float(s))
        record.record_tuned(str(second), "[]", {"a": 1.0})
    kept = [second for second in range(20) if record.tuned_times(str(second))]
    assert set(kept) <= set(range(14, 20)) and len(kept) >= 5


def test_a_failure_is_kept_with_what_failed_and_why() -> None:
    first = record.StoredFailure("d", "m", (1, 2), "preparation", "no", "npu")
    record.record_failure(first)
    record.record_failure(first._replace(model="n", operations=(0,)))
    record.record_failure(first._replace(why="still no"))
    (found,) = record.failures(["d"], "m")
    assert found[:-1] == first._replace(why="still no")[:-1] and found.at > 0
    assert len(record.failures(["d"])) == 2 and record.failures(["e"]) == []


DAMAGE = [b"", b"no database", b"SQLite format 3\0" + bytes(500)]


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_record_is_as_if_nothing_had_been_measured(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    record.record_tuned("m", "[]", {"a": 1.0})
    measured.path().write_bytes(content)
    assert record.profile() is None and record.tuned_times("m") == [] and record.failures(["d"]) == []
    assert ("`nnhal calibrate --forget` deletes it" in caplog.text) == bool(content)
    record.record_tuned("m", "[]", {"a": 1.0})  # may be forgotten
    record.keep_profile(mine())  # measuring again mends it
    assert record.profile() == mine()


def test_whether_times_can_be_recorded_is_found_by_writing() -> None:
    record.record_tuned("m", "[]", {"a": 1.0})
    record.require_writable()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # files can be opened and locked, and not written
    try:
        with pytest.raises(nnhal.OperationFailed, match=r"^no measured time can be recorded: measured.sqlite: "):
            record.require_writable()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert record.tuned_times("m") == [("[]", "a", 1.0)]


def test_a_record_that_others_may_read_or_that_is_a_link_is_not_believed(tmp_path: Path) -> None:
    record.keep_profile(mine())
    measured.path().chmod(0o644)
    assert record.profile() is None
    measured.path().chmod(0o600)
    assert record.profile() == mine()
    os.rename(measured.path(), tmp_path / "moved")
    measured.path().symlink_to(tmp_path / "moved")
    assert record.profile() is None
    with pytest.raises(nnhal.OperationFailed, match="the profile is not kept"):
        record.keep_profile(mine())


@pytest.mark.parametrize(
    "row",
    [
        ("d", "m", "[" * 100_000 + "]" * 100_000, "run", "why", "name", 1),
        ("d", "m", "[true]", "run", "why", "name", 1),
        ("d", "m", "[1]", "run", b"\xff\xfe", "name", 1),
        ("d", "m", "[1]", "run", "why", "name", "yesterday"),
    ],
    ids=["nested deep", "no numbers", "no text", "no time"],
)
def test_a_failure_that_nobody_wrote_is_none(row: tuple[object, ...]) -> None:
    record.record_failure(record.StoredFailure("other", "m", (1,), "run", "why", "name"))
    with closing(sqlite3.connect(record.path())) as c, c:
        c.execute("insert into failures values (?, ?, ?, ?, ?, ?, ?)", row)
    assert record.failures(["d"], "m") == []


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), -float("inf")])
def test_a_time_that_cannot_be_is_none(seconds: float) -> None:
    record.record_tuned("m", "[]", {"a": 0.5, "b": 0.5})
    with closing(sqlite3.connect(record.path())) as c, c:
        c.execute("update tuned set seconds = ? where assignment = 'a'", (seconds,))
    assert record.tuned_times("m") == [("[]", "b", 0.5)]


def test_a_profile_that_lies_is_none() -> None:
    import sqlite3

    record.keep_profile(mine())
    with sqlite3.connect(measured.path()) as connection:
        connection.execute("update profile set content = ?", (b'{"form": 1}',))
    assert record.profile() is None


def test_a_record_of_another_form_is_neither_read_nor_spoilt() -> None:
    import sqlite3

    record.keep_profile(mine())
    with sqlite3.connect(measured.path()) as connection:
        connection.execute("pragma user_version = 9")
    before = measured.path().read_bytes()
    record.record_tuned("m", "[]", {"a": 1.0})
    assert measured.path().read_bytes() == before
    with pytest.raises(nnhal.OperationFailed, match="has format 9, must be 3; `nnhal calibrate --forget` deletes it"):
        record.keep_profile(mine())
    assert measured.path().read_bytes() == before


def _records(number: int) -> None:
    for n in range(25):
        record.record_tuned(f"{number} {n}", "[]", {"a": 1.0})


def test_a_record_that_cannot_be_read_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """A calibration after an upgrade warned of the earlier format at each of its thousand compilations."""
    record.keep_profile(mine())
    with closing(sqlite3.connect(measured.path())) as connection, connection:
        connection.execute("update profile set content = replace(content, '\"form\"', '\"from\"')")
    for _ in range(3):
        assert record.profile() is None
    assert len(caplog.records) == 1


def test_processes_record_at_once_and_nothing_is_lost() -> None:
    record.record_tuned("first", "[]", {"a": 1.0})
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_records, args=(n,)) for n in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
        assert each.exitcode == 0
    assert all(record.tuned_times(f"{number} {n}") for number in range(4) for n in range(25))
    assert record.tuned_times("first")


def test_interrupted_anywhere_it_leaves_no_descriptor_open() -> None:
    record.record_tuned("model", "[]", {"[]": 1.0})

    opened = Opened()
    files = "private.py", "record.py"
    count = interrupted_at(
        lambda frame, _: frame.f_code.co_filename.endswith(files), lambda: record.tuned_times("model")
    )
    assert count > 20
    opened.closed()


TAKE = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=0).execute("begin immediate")
"""


def test_who_reads_does_not_end_the_lock_of_another_thread_that_writes() -> None:
    record.record_tuned("m", "[]", {"[]": 1.0})
    with closing(sqlite3.connect(measured.path())) as writing:
        writing.execute("begin immediate")
        assert record.tuned_times("m") == [("[]", "[]", 1.0)]
        other = run_python(TAKE, str(measured.path()), check=False)
        assert "database is locked" in other.stderr
